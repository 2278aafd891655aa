//! Ranges, whole and streamed, read from the newest published state.
//!
//! A small response is made at once. A large response takes two walks over its keys: the first adds up its
//! length, and the second makes it piece by piece as the client reads. Both walks yield to other calls
//! regularly. Between two pieces they hold at most one piece in memory, and no view ([`AsOf`]). Values that
//! are not in memory are fetched for a whole piece together, while other calls run.

use numbers::{ChangeId, LeaseId, Revision};
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use storage::values::unreadable;

use api::error;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use api::wire::{field_len, number_len, put_field, put_field_head, put_number};
use api::{Code, Status, mvccpb};
use arc_swap::Guard;
use bytes::{Bytes, BytesMut};
use clock::Clock;
use front::{Answer, Inbound, Outbound};
use machine::Values;
use machine::check;
use machine::key_value::{Projection, StoredKeyValue, kv_len, put_kv};
use machine::range::{self, Failure, Selection};
use machine::{AsOf, Overtaken, Slice};
use mvcc::{KeyRange, Snapshot, Version};
use prost::Message as _;

use super::call::{Call, Path, ReadPath};
use super::choose::{Chooser, Seen, gathered_bytes_max, read_at_once};
use super::large_value::{self, LargeValue, Part};
use super::principal::Principal;
use super::slow::shown;
use super::stages::{Confirmed, Making, Meter};
use super::strangers::Place;
use super::traced::told_of_range_stream;
use super::{NO_REQUEST, Services, decode, decode_streamed, pieces};
use crate::audit;
use crate::encode::{header_len, put_header};
use replica::long_reads::Reader;
use replica::shared::Published;
use storage::values::{Attempt, made};
use telemetry::slow_requests;
use telemetry::tracing::Within;

/// Maximum number of keys in a response that is made at once.
const KEYS_AT_ONCE: u64 = 128;
/// Maximum number of keys that are sorted by value at once. The limit is low because each value has to be read.
const VALUES_SORTED_AT_ONCE: u64 = 4;
/// Maximum size in bytes of a response that is made at once.
pub(crate) const BYTES_AT_ONCE: usize = 128 << 10;
/// Maximum number of keys that a walk visits before it yields to other calls.
pub(super) const KEYS_PER_SLICE: usize = 512;
/// Number of keys that a slice visits even if little work is left in the connection's turn.
const KEYS_PER_SLICE_MIN: usize = 32;
/// Number of keys visited for one piece of a response. At an older revision some of these keys may not exist.
const KEYS_PER_PIECE: u64 = 8192;

pub(super) fn failed(failure: Failure) -> Status {
    match failure {
        Failure::Refused(status) => status,
        other => {
            Status::with(Code::Internal, format!("mainstay: a value could not be read: {}", other.text()))
        }
    }
}

/// Number of the field `kvs` of `RangeResponse`.
const KVS: u8 = 2;

/// Reserves memory for a piece of this many bytes, once: only while `out` has no more capacity than the
/// header needs.
fn reserve(out: &mut BytesMut, piece_bytes: usize) {
    if out.capacity() < piece_bytes {
        out.reserve(piece_bytes + 4096 - out.len());
    }
}

fn put_kv_field(
    out: &mut BytesMut,
    version: Version<'_>,
    projection: Projection,
    values: &dyn Values,
) -> Result<(), Status> {
    put_field_head(out, KVS, kv_len(version, projection));
    put_kv(version, projection, values, out).map_err(|e| unreadable(&e))
}

fn kv_field_len(version: Version<'_>, projection: Projection) -> usize {
    field_len(kv_len(version, projection))
}

/// Returns the number of keys that the next slice of a walk visits: as many as the work left in the turn
/// allows. The limit matters because all connections may start a slice at the same time, each before it has
/// to queue for a long turn.
pub(super) fn keys_per_slice() -> usize {
    (accounting::work_left() / accounting::KEY_BYTES).clamp(KEYS_PER_SLICE_MIN, KEYS_PER_SLICE)
}

/// Counts a walk as work of the connection's turn: the keys that it visited out of its limit `looks`, and
/// `bytes` bytes of values.
pub(super) fn note_walk(walk: &mvcc::Range<'_>, looks: u64, bytes: usize) {
    accounting::note_work(looks - walk.looks_left(), bytes as u64);
}

/// Error of a read whose state no longer exists because this member has installed another member's state.
pub(super) const REPLACED: Status =
    Status::new(Code::Unavailable, "mainstay: this member has taken over another one's state; ask again");

/// Returns the next slice of a long range; an error if the state no longer exists.
pub(super) fn slice(state: &AsOf) -> Result<Slice, Status> {
    state.slice().map_err(|Overtaken| overtaken(state))
}

/// Returns the error for a reader whose state no longer exists.
pub(super) fn overtaken(state: &AsOf) -> Status {
    if state.is_replaced() { REPLACED } else { error::COMPACTED }
}

/// The remaining part of a large response.
struct Rest {
    state: AsOf,
    values: Attempt,
    projection: Projection,
    revision: Revision,
    header: Option<ResponseHeader>,
    keys: Keys,
    /// The first of the remaining keys, if its value is large and was checked or partly sent.
    large: Option<LargeValue>,
    more: bool,
    count: i64,
    ended: bool,
}

/// The keys that the response still lacks.
enum Keys {
    /// The next `left` keys in key order after the key `behind`.
    Walk { start: Bytes, end: Bytes, behind: Option<Vec<u8>>, left: u64 },
    /// These versions, the last one first, by main and sub revision. Their locations in the log may change
    /// until they are read.
    Chosen(Vec<ChangeId>),
}

fn key_range<'a>(start: &'a Bytes, end: &'a Bytes, behind: Option<&'a [u8]>) -> KeyRange<'a> {
    let range = KeyRange::of_request(start, end);
    match behind {
        Some(key) => range.after(key),
        None => range,
    }
}

/// Estimated size of a range, before it is read.
struct Size {
    /// True if the range may select more keys than can be answered at once.
    is_large: bool,
    /// Number of keys in the range, if it was counted.
    counted: Option<u64>,
}

/// Result of the attempt to answer a Range at once.
pub(super) enum Attempted {
    Answered(Answer),
    /// The read needs a confirmation. An unauthenticated caller waits for it in this slot.
    Unconfirmed(Option<Place>),
    /// The response cannot be made at once.
    Unmade(Box<Unmade>),
}

/// A Range whose response cannot be made at once.
pub(super) struct Unmade {
    timing: Timing,
    work: Work,
}

/// Remaining work for a Range's response.
enum Work {
    /// The keys are found, but some values are not in memory. The number is the length of the response in
    /// bytes.
    Fetch(Rest, usize),
    /// There may be many keys. The response is made in slices, from the state that is newest when this begins.
    Slices,
}

/// Times of a Range, for reports.
#[derive(Clone, Copy)]
struct Timing {
    /// Time at which the request was decoded.
    began: Instant,
    /// Confirmation of the read, if it needed one.
    confirmed: Option<Confirmed>,
}

impl Timing {
    /// Returns the time at which making the response began.
    fn went_on(&self) -> Instant {
        self.confirmed.map_or(self.began, |confirmed| confirmed.went_on)
    }
}

/// State, header and limits of a long range that was begun.
struct Opened {
    state: AsOf,
    header: ResponseHeader,
    /// Revision that the range reads.
    revision: Revision,
    /// Number of keys in the range, if it is known without a walk; at an older revision it is not.
    counted: Option<u64>,
    /// Maximum number of keys in the response.
    limit: u64,
}

/// Position at which a piece ends.
#[derive(Default)]
struct Through {
    keys: u64,
    last: Option<Vec<u8>>,
    /// The key after the first `keys` ones, if its value is large and the piece ends before or inside that
    /// value.
    large: Option<LargeValue>,
    ended: bool,
}

impl Through {
    /// Notes that a piece ends before, inside or directly after the large value of `version`, and returns the
    /// bytes of the piece.
    fn take(&mut self, part: Part, version: Version<'_>) -> Bytes {
        self.large = part.rest;
        // The walk passes the key only after its last part; until then the version is found by the id in
        // `large`.
        if self.large.is_none() {
            self.keys += 1;
            self.last = Some(version.key().to_vec());
        }
        part.bytes
    }
}

impl Rest {
    /// Returns the next piece and its end. If values were missing, the caller fetches them and calls this
    /// again.
    fn piece(&self, bytes_max: usize) -> Result<(Bytes, Through), Status> {
        let bytes_max = bytes_max.min(BYTES_AT_ONCE);
        let slice = slice(&self.state)?;
        let snapshot = slice.snapshot();
        let mut through = Through::default();
        if let Some(large) = self.large {
            let version = snapshot.version_at(large.id()).ok_or(error::COMPACTED)?;
            let part = large.go_on(version, self.projection, &self.values, bytes_max)?;
            return Ok((through.take(part, version), through));
        }
        let mut out = BytesMut::new();
        if let Some(header) = &self.header {
            put_header(&mut out, header);
        }
        let begin = |before: BytesMut, version| {
            LargeValue::begin(before, KVS, version, self.projection, &self.values, bytes_max)
        };
        match &self.keys {
            Keys::Walk { start, end, behind, left } => {
                let mut walk = snapshot
                    .range(key_range(start, end, behind.as_deref()), self.revision)
                    .map_err(range::refused)?;
                walk.set_looks(KEYS_PER_PIECE);
                let mut last = None;
                while through.keys < *left && out.len() < self.values.piece_bytes(bytes_max) {
                    let Some(version) = walk.next() else { break };
                    if large_value::is_large(version, self.projection) {
                        let part = begin(out, version)?;
                        return Ok((through.take(part, version), through));
                    }
                    reserve(&mut out, self.values.piece_bytes(bytes_max));
                    put_kv_field(&mut out, version, self.projection, &self.values)?;
                    last = Some(version.key());
                    through.keys += 1;
                }
                note_walk(&walk, KEYS_PER_PIECE, 0);
                through.last = walk.stopped_at().or(last).map(<[u8]>::to_vec);
                through.ended = through.keys == *left;
            }
            Keys::Chosen(found) => {
                let mut rest = found.iter().rev();
                while out.len() < self.values.piece_bytes(bytes_max) {
                    let Some(change) = rest.next() else { break };
                    let version = snapshot.version_at(*change).ok_or(error::COMPACTED)?;
                    if large_value::is_large(version, self.projection) {
                        let part = begin(out, version)?;
                        return Ok((through.take(part, version), through));
                    }
                    reserve(&mut out, self.values.piece_bytes(bytes_max));
                    put_kv_field(&mut out, version, self.projection, &self.values)?;
                    through.keys += 1;
                }
                accounting::note_work(through.keys, 0);
                through.ended = through.keys == found.len() as u64;
            }
        }
        if through.ended {
            put_number(&mut out, 3, i64::from(self.more));
            put_number(&mut out, 4, self.count);
        }
        Ok((out.freeze(), through))
    }

    fn go_on(&mut self, through: Through) {
        self.header = None;
        self.ended = through.ended;
        self.large = through.large;
        match &mut self.keys {
            Keys::Walk { behind, left, .. } => {
                *left -= through.keys;
                if through.last.is_some() {
                    *behind = through.last;
                }
            }
            Keys::Chosen(found) => {
                found.truncate(found.len() - usize::try_from(through.keys).unwrap_or(found.len()));
            }
        }
    }

    fn poll_piece(
        &mut self,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        loop {
            ready!(self.values.poll_fetched(context));
            let made = self.piece(bytes_max);
            if self.values.is_complete() {
                let (piece, through) = made?;
                self.go_on(through);
                large_value::forget(&mut self.values, &mut self.large);
                return Poll::Ready(Ok(Some(piece)));
            }
        }
    }

    /// Returns the response of `len` bytes, small enough to be made at once, and the time at which its values
    /// arrived.
    async fn whole(mut self, len: usize, clock: &Clock) -> (Result<Answer, Status>, Instant) {
        // These are the values that were missing in the first attempt, usually all that are missing.
        self.values.fetched().await;
        let fetched = clock.now();
        let piece = poll_fn(|context| self.poll_piece(len, context)).await;
        let is_whole =
            |piece: &Option<Bytes>| self.ended && piece.as_ref().is_some_and(|piece| piece.len() == len);
        debug_assert!(piece.as_ref().map_or(true, is_whole));
        (piece.map(|piece| Answer::Whole(piece.unwrap_or_default())), fetched)
    }

    /// Returns the response of `len` bytes, which is made piece by piece.
    fn into_answer(mut self, len: usize) -> Result<Answer, Status> {
        let mut beginning = BytesMut::new();
        if let Some(header) = &self.header {
            put_header(&mut beginning, header);
        }
        pieces::answer(len, self.kept_bytes(), &beginning, move |bytes_max, context| {
            let piece = ready!(self.poll_piece(bytes_max, context))?;
            Poll::Ready(Ok(piece.map(|piece| (piece, self.kept_bytes()))))
        })
    }

    /// Returns the number of bytes held between two pieces.
    fn kept_bytes(&self) -> usize {
        match &self.keys {
            Keys::Walk { start, end, behind, .. } => {
                start.len() + end.len() + behind.as_ref().map_or(0, Vec::len)
            }
            Keys::Chosen(found) => found.capacity() * size_of::<ChangeId>(),
        }
    }
}

/// Decodes and checks a Range.
pub(super) fn request(message: Bytes) -> Result<RangeRequest, Status> {
    let request: RangeRequest = decode(message)?;
    check::range(&request)?;
    Ok(request)
}

/// Answers a Range if that needs no other thread and little time.
///
/// # Errors
///
/// Returns etcd's errors for a Range.
pub(super) fn at_once(call: &mut Call, request: &RangeRequest) -> Result<Attempted, Status> {
    let shared = call.shared();
    shared.metrics.mvcc.ranges.inc();
    let state = shared.state.load();
    if !request.serializable && call.services.learns(&state) {
        return Err(error::NOT_SUPPORTED_FOR_LEARNER);
    }
    let timing = Timing { began: call.services.now(), confirmed: None };
    call.expense(|now| check::range_is_expensive(request, now).into())?;
    if request.serializable || state.reads_local {
        return Ok(match from_state(call, request, timing, state)? {
            Ok(answer) => Attempted::Answered(answer),
            Err(unmade) => Attempted::Unmade(unmade),
        });
    }
    // While authentication is disabled, a range skips the check of its user.
    let place = if state.auth.is_enabled() { call.services.place_of(call.principal()?)? } else { None };
    Ok(Attempted::Unconfirmed(place))
}

/// Answers a Range that was not answered at once.
pub(super) async fn go_on(
    call: &mut Call,
    request: RangeRequest,
    attempted: Attempted,
) -> Result<Answer, Status> {
    let made = match attempted {
        Attempted::Answered(answer) => Ok(answer),
        Attempted::Unmade(unmade) => Err(unmade),
        Attempted::Unconfirmed(place) => {
            let began = call.services.now();
            let confirmed = Some(call.confirmed(place).await?);
            let state = call.shared().state.load();
            from_state(call, &request, Timing { began, confirmed }, state)?
        }
    };
    match made {
        Ok(answer) => Ok(answer),
        Err(unmade) => {
            let answer = Box::pin(make(call, request, *unmade)).await?;
            call.still()?;
            Ok(answer)
        }
    }
}

/// Answers a Range.
pub(super) async fn range(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let request = request(message)?;
    let attempted = at_once(call, &request)?;
    go_on(call, request, attempted).await
}

/// Answers from `state`, if the user has the right to read it and if that takes little time. `state` is the
/// newest one, unless the read is serializable.
fn from_state(
    call: &mut Call,
    request: &RangeRequest,
    timing: Timing,
    state: Guard<Arc<Published>>,
) -> Result<Result<Answer, Box<Unmade>>, Status> {
    let services = &call.services;
    let principal = call.principal()?;
    services.gate(&state, principal).read(&request.key, &request.range_end)?;
    principal.is_of(&state.auth)?;
    let unmade = |work| Ok(Err(Box::new(Unmade { timing, work })));
    let Size { is_large, counted } = services.size(request, &state)?;
    if is_large {
        return unmade(Work::Slices);
    }
    let values = Attempt::new(services.values.clone());
    let meter = call.begun.is_measured().then(|| Meter::new(services.shared.clock.clone()));
    let answer = services.small_range(request, &state, counted, &values, meter.as_ref()).transpose();
    if values.is_complete()
        && let Some(answer) = answer
    {
        ranged(call, request, timing, &answer, meter.map(|meter| meter.made()));
        return answer.map(Ok);
    }
    // The values are large or not in memory, so the range goes on without holding a view.
    drop(state);
    if request.sort_target == SortTarget::Value as i32 {
        return unmade(Work::Slices);
    }
    let (rest, len) = match services.chosen(request, values) {
        Ok(Some(chosen)) => chosen,
        Ok(None) => return unmade(Work::Slices),
        Err(status) => {
            services.ranged(false, services.now().saturating_duration_since(timing.began));
            return Err(status);
        }
    };
    if len > BYTES_AT_ONCE {
        let answer = rest.into_answer(len);
        ranged(call, request, timing, &answer, None);
        return answer.map(Ok);
    }
    unmade(Work::Fetch(rest, len))
}

/// Makes a response that cannot be made at once.
async fn make(call: &mut Call, request: RangeRequest, unmade: Unmade) -> Result<Answer, Status> {
    let Unmade { timing, work } = unmade;
    let services = Rc::clone(&call.services);
    match work {
        Work::Fetch(rest, len) => {
            let chosen = services.now();
            let (answer, fetched) = rest.whole(len, &services.shared.clock).await;
            let making = Making::Parts {
                index: chosen.saturating_duration_since(timing.went_on()),
                values: fetched.saturating_duration_since(chosen),
                encode: services.now().saturating_duration_since(fetched),
            };
            ranged(call, &request, timing, &answer, Some(making));
            answer
        }
        Work::Slices => {
            let answer = services.large_range(&request).await;
            let now = services.now();
            let took = now.saturating_duration_since(timing.began);
            services.ranged(answer.is_ok(), took);
            services.note_range(&request, call.client(), &answer, took);
            // The values are read and encoded later, as the client reads the response.
            let making = Making::Index(now.saturating_duration_since(timing.went_on()));
            report(call, &request, timing, now, Some(making));
            answer
        }
    }
}

/// Counts the time of an answered range with few keys, and reports the range if it was measured or slow.
fn ranged(
    call: &mut Call,
    request: &RangeRequest,
    timing: Timing,
    answer: &Result<Answer, Status>,
    making: Option<Making>,
) {
    let now = call.services.now();
    let took = now.saturating_duration_since(timing.began);
    call.services.ranged(answer.is_ok(), took);
    if matches!(answer, Ok(Answer::Pieces { .. })) {
        call.services.note_range(request, call.client(), answer, took);
    }
    report(call, request, timing, now, making);
}

/// Stores the data that is reported at the end of the call, if the range was measured or slow. `now` is the
/// time at which the response was complete.
#[inline]
fn report(call: &mut Call, request: &RangeRequest, timing: Timing, now: Instant, making: Option<Making>) {
    let limits = &call.shared().limits;
    let slow = limits.slow_apply.min(limits.slow_request);
    let took = now.saturating_duration_since(call.begun.arrived);
    if call.begun.is_measured() || took > slow {
        report_with_request(call, request, timing, now, making, took > slow);
    }
}

#[cold]
fn report_with_request(
    call: &mut Call,
    request: &RangeRequest,
    Timing { began, confirmed }: Timing,
    now: Instant,
    making: Option<Making>,
    is_shown: bool,
) {
    let (answered, applied_as) = (Some(now), Some("read-only range "));
    let shown = is_shown.then(|| (request.encoded_len(), shown(request)));
    call.path = Path::Read(Box::new(ReadPath { began, confirmed, answered, making, applied_as, shown }));
}

impl Services {
    fn ranged(&self, success: bool, took: Duration) {
        self.range_time[usize::from(success)].observe_seconds(took);
        self.took("Range", success, took);
    }

    /// Adds a range to the list of slow requests if it found many keys or returned many bytes.
    fn note_range(
        &self,
        request: &RangeRequest,
        client: IpAddr,
        answer: &Result<Answer, Status>,
        took: Duration,
    ) {
        let bytes = match answer {
            Ok(Answer::Pieces { len, .. }) => *len,
            Ok(Answer::Whole(message)) => message.len(),
            Err(_) => return,
        };
        let state = self.shared.state.load();
        let keys = KeyRange::of_request(&request.key, &request.range_end);
        // The count is taken from the newest state, whatever the requested revision: it only has to tell
        // large ranges from small ones.
        let keys = state.view.snapshot().count(keys, Revision::CURRENT).unwrap_or(0);
        let limit =
            u64::try_from(request.limit).ok().filter(|limit| *limit > 0 && range::is_natural(request));
        let keys = keys.min(limit.unwrap_or(u64::MAX));
        if keys >= slow_requests::RANGE_KEYS || bytes >= slow_requests::RANGE_BYTES {
            let now = self.shared.clock.wall();
            let (key, end) = (&request.key, &request.range_end);
            self.shared.slow_requests.ranged(client, (key, end), keys, bytes as u64, took, now);
        }
    }

    /// Returns whether a request may select more keys than can be answered at once, with the number of keys
    /// if they were counted.
    fn size(&self, request: &RangeRequest, state: &Published) -> Result<Size, Status> {
        let uncounted = |is_large| Ok(Size { is_large, counted: None });
        let range = KeyRange::of_request(&request.key, &request.range_end);
        if range.as_single().is_some() || (request.count_only && request.revision <= 0) {
            return uncounted(false);
        }
        let snapshot = state.view.snapshot();
        if request.revision > 0 && Revision(request.revision) != snapshot.current_revision() {
            // Counting at an older revision would walk the range.
            snapshot.resolve(Revision(request.revision)).map_err(range::refused)?;
            return uncounted(snapshot.versions() > KEYS_AT_ONCE);
        }
        let count = snapshot.count(range, Revision::CURRENT).map_err(range::refused)?;
        let limit = u64::try_from(request.limit).unwrap_or(0);
        let keys = if limit > 0 && range::is_natural(request) { count.min(limit) } else { count };
        // Sorting by value reads every value of the range, even those that the limit leaves out.
        let sorts_values = request.sort_target == SortTarget::Value as i32;
        let is_large = keys > if sorts_values { VALUES_SORTED_AT_ONCE } else { KEYS_AT_ONCE };
        Ok(Size { is_large, counted: Some(count) })
    }

    /// Selects the keys of a small range. Returns them with the length of the response in bytes.
    fn select<'v>(
        &self,
        snapshot: &Snapshot<'v>,
        request: &RangeRequest,
        header: &ResponseHeader,
        counted: Option<u64>,
        values: &dyn Values,
    ) -> Result<(Selection<'v>, usize), Status> {
        let selection = range::select_counted(snapshot, request, counted, values).map_err(failed)?;
        let projection = range::projection(request);
        let kvs: usize = selection.versions.iter().map(|v| kv_field_len(*v, projection)).sum();
        let numbers = number_len(i64::from(selection.more)) + number_len(selection.count);
        Ok((selection, header_len(header) + kvs + numbers))
    }

    /// Returns a response with few keys; `None` if their values are too large for a response that is made at
    /// once.
    fn small_range(
        &self,
        request: &RangeRequest,
        state: &Published,
        counted: Option<u64>,
        values: &Attempt,
        meter: Option<&Meter>,
    ) -> Result<Option<Answer>, Status> {
        let snapshot = state.view.snapshot();
        let header = self.header(snapshot.current_revision(), state);
        let measured = meter.map(|meter| meter.measured(values));
        let values: &dyn Values = match &measured {
            None => values,
            Some(measured) => measured,
        };
        let (Selection { versions, more, count }, len) =
            self.select(&snapshot, request, &header, counted, values)?;
        if let Some(meter) = meter {
            meter.found();
        }
        if versions.len() > 1 {
            accounting::note_work(versions.len() as u64, 0);
        }
        if len > BYTES_AT_ONCE {
            return Ok(None);
        }
        let projection = range::projection(request);
        let mut out = BytesMut::with_capacity(len);
        put_header(&mut out, &header);
        for version in versions {
            put_kv_field(&mut out, version, projection, values)?;
        }
        put_number(&mut out, 3, i64::from(more));
        put_number(&mut out, 4, count);
        Ok(Some(Answer::Whole(out.freeze())))
    }

    /// Returns a response with few keys that cannot be made at once, and its length in bytes. The response is
    /// not sorted by values. `values` may already list values of the response as missing. Returns `None` if
    /// the range may be large in the newest state.
    fn chosen(&self, request: &RangeRequest, values: Attempt) -> Result<Option<(Rest, usize)>, Status> {
        let (state, published) = self.shared.read_long(Reader::Range);
        let Size { is_large: false, counted } = self.size(request, &published)? else { return Ok(None) };
        let snapshot = published.view.snapshot();
        let revision = snapshot.current_revision();
        let header = self.header(revision, &published);
        let (Selection { versions, more, count }, len) =
            self.select(&snapshot, request, &header, counted, &values)?;
        // The versions are stored last first, so that versions are removed from the end.
        let keys = Keys::Chosen(versions.into_iter().rev().map(|v| v.id()).collect());
        let projection = range::projection(request);
        let header = Some(header);
        let (large, ended) = (None, false);
        let rest = Rest { state, values, projection, revision, header, keys, large, more, count, ended };
        Ok(Some((rest, len)))
    }

    /// Returns a response of `len` bytes from `state` at `revision`, which is made piece by piece.
    fn rest(
        &self,
        (state, revision): (AsOf, Revision),
        projection: Projection,
        header: ResponseHeader,
        keys: Keys,
        (more, count): (bool, i64),
        len: usize,
    ) -> Result<Answer, Status> {
        let values = Attempt::new(self.values.clone());
        let rest = Rest {
            state,
            values,
            projection,
            revision,
            header: Some(header),
            keys,
            large: None,
            more,
            count,
            ended: false,
        };
        rest.into_answer(len)
    }

    fn open(&self, request: &RangeRequest) -> Result<Opened, Status> {
        let (state, published) = self.shared.read_long(Reader::Range);
        let snapshot = published.view.snapshot();
        let revision = snapshot.resolve(Revision(request.revision)).map_err(range::refused)?;
        let counted = (revision == snapshot.current_revision()).then(|| {
            snapshot.count(KeyRange::of_request(&request.key, &request.range_end), Revision::CURRENT)
        });
        Ok(Opened {
            state,
            header: self.header(snapshot.current_revision(), &published),
            revision,
            counted: counted.transpose().map_err(range::refused)?,
            limit: match u64::try_from(request.limit) {
                Ok(0) | Err(_) => u64::MAX,
                Ok(limit) => limit,
            },
        })
    }

    async fn large_range(&self, request: &RangeRequest) -> Result<Answer, Status> {
        let Opened { state, header, revision, counted, limit } = self.open(request)?;
        let projection = range::projection(request);
        let natural = range::is_natural(request);
        if !natural && !request.count_only {
            let (chosen, more, count, kvs) =
                self.choose(&state, request, revision, limit, projection).await?;
            let len = header_len(&header) + kvs + number_len(i64::from(more)) + number_len(count);
            return self.rest(
                (state, revision),
                projection,
                header,
                Keys::Chosen(chosen),
                (more, count),
                len,
            );
        }

        let take = if request.count_only { 0 } else { limit };
        let (mut keys, mut kvs, mut count) = (0u64, 0usize, 0i64);
        let mut behind: Option<Vec<u8>> = None;
        'walk: loop {
            {
                let slice = slice(&state)?;
                let range = key_range(&request.key, &request.range_end, behind.as_deref());
                let mut walk = slice.snapshot().range(range, revision).map_err(range::refused)?;
                let looks = keys_per_slice() as u64;
                walk.set_looks(looks);
                while let Some(version) = walk.next() {
                    if keys < take {
                        kvs += kv_field_len(version, projection);
                        keys += 1;
                    } else if let Some(counted) = counted {
                        // The remaining keys were counted already, so the walk stops.
                        count = counted as i64;
                        note_walk(&walk, looks, 0);
                        break 'walk;
                    }
                    count += 1;
                }
                note_walk(&walk, looks, 0);
                match walk.stopped_at() {
                    Some(key) => behind = Some(key.to_vec()),
                    None => break 'walk,
                }
            }
            tokio::task::yield_now().await;
        }
        let more = !request.count_only && (keys as i64) < count;
        let len = header_len(&header) + kvs + number_len(i64::from(more)) + number_len(count);
        // The bytes are copied, because the decoded request keeps the whole buffer alive that was read from
        // the socket.
        let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        let (start, end) = (copy(&request.key), copy(&request.range_end));
        let walk = Keys::Walk { start, end, behind: None, left: keys };
        self.rest((state, revision), projection, header, walk, (more, count), len)
    }

    /// Collects, filters and sorts a large range. Returns the versions, last one first; whether the limit
    /// left some out; the number of keys in the range; and the length of the encoded keys and values in
    /// bytes.
    async fn choose(
        &self,
        state: &AsOf,
        request: &RangeRequest,
        revision: Revision,
        limit: u64,
        projection: Projection,
    ) -> Result<(Vec<ChangeId>, bool, i64, usize), Status> {
        let keys_max = range::keys_before_sort(request).unwrap_or(usize::MAX) as u64;
        let limited = RangeRequest { limit: i64::try_from(limit).unwrap_or(0), ..request.clone() };
        let mut chooser = Chooser::new(&limited, gathered_bytes_max());
        let (mut count, mut behind): (i64, Option<Vec<u8>>) = (0, None);
        loop {
            // `made` may run the slice twice. Both runs use these limits, whatever other work the turn does
            // between them.
            let (looks, read_max) = (keys_per_slice() as u64, read_at_once());
            let looked = made(self.values.clone(), |values| {
                let slice = slice(state)?;
                let range = key_range(&request.key, &request.range_end, behind.as_deref());
                let mut walk = slice.snapshot().range(range, revision).map_err(range::refused)?;
                walk.set_looks(looks);
                let (mut seen, mut count, mut last) = (Seen::up_to(read_max), count, None);
                while !seen.is_due()
                    && let Some(version) = walk.next()
                {
                    count += 1;
                    if count as u64 <= keys_max {
                        chooser.look(version, values, &mut seen)?;
                    }
                    last = Some(version.key());
                }
                note_walk(&walk, looks, seen.read_bytes());
                let last = walk.stopped_at().or(last.filter(|_| seen.is_due())).map(<[u8]>::to_vec);
                Ok::<_, Status>((seen, count, last))
            });
            let (seen, through, last) = looked.await?;
            chooser.take(seen)?;
            count = through;
            match last {
                Some(key) => behind = Some(key),
                None => break,
            }
            tokio::task::yield_now().await;
        }
        let (found, more) = chooser.finish().await;
        let chosen = found.iter().map(|found| found.id()).collect();
        let projected = found.into_iter().map(|found| projected(found, projection));
        let kvs = projected.map(|found| field_len(found.encoded_len())).sum();
        Ok((chosen, more, count, kvs))
    }

    /// Streams a range in pieces, each a `RangeResponse`; clients merge them. A request that RangeStream does
    /// not support is refused with that error even if the token is invalid.
    pub(super) async fn range_stream(
        self: Rc<Self>,
        principal: Result<Principal, Status>,
        (client, call): (IpAddr, Option<&mut audit::Call>),
        mut inbound: Inbound,
        mut outbound: Outbound,
        spans: Option<Within>,
    ) -> Result<(), Status> {
        let Some(message) = inbound.next().await? else { return Err(NO_REQUEST) };
        call.into_iter().for_each(|call| call.asks(&message));
        let request: RangeRequest = decode_streamed(message)?;
        let _span = spans.map(|spans| spans.begin("range_streaming", told_of_range_stream(&request)));
        check::range(&request)?;
        check_stream(&request)?;
        let principal = &principal?;
        self.expense(principal, client, |now| check::range_is_expensive(&request, now).into())?;
        self.wait_readable_for(principal, request.serializable).await?;
        let state = self.state();
        self.gate(&state, principal).read(&request.key, &request.range_end)?;
        principal.is_of(&state.auth)?;
        drop(state);
        let Opened { state, header, revision, counted, limit: mut left } = self.open(&request)?;
        let projection = range::projection(&request);
        let target = self.shared.limits.request_bytes_max / 2;
        if request.count_only {
            left = 0;
        } else if request.sort_target != SortTarget::Key as i32 {
            let (chosen, more, count, _) = self.choose(&state, &request, revision, left, projection).await?;
            let chosen = (chosen, projection);
            return self.stream_chosen(principal, &state, chosen, header, (more, count), &mut outbound).await;
        }
        let mut behind: Option<Vec<u8>> = None;
        let mut sent = 0i64;
        // The newest piece is held back until the next one or the end, see `end_of_stream`.
        let (mut unsent, mut held) = (BytesMut::new(), outbound.account().hold(0));
        while left > 0 {
            let looks = keys_per_slice();
            let keys_max = looks.min(usize::try_from(left).unwrap_or(usize::MAX));
            let piece = made(self.values.clone(), |values| {
                let (mut out, mut keys) = (BytesMut::new(), 0);
                let slice = slice(&state)?;
                let range = key_range(&request.key, &request.range_end, behind.as_deref());
                let mut walk = slice.snapshot().range(range, revision).map_err(range::refused)?;
                walk.set_looks(looks as u64);
                let mut last = None;
                for version in walk.by_ref().take(keys_max) {
                    put_kv_field(&mut out, version, projection, values)?;
                    last = Some(version.key());
                    keys += 1;
                    if out.len() >= target {
                        break;
                    }
                }
                note_walk(&walk, looks as u64, out.len());
                Ok::<_, Status>((out, keys, walk.stopped_at().or(last).map(<[u8]>::to_vec)))
            });
            let (out, keys, Some(last)) = piece.await? else { break };
            behind = Some(last);
            sent += keys;
            left -= keys as u64;
            if out.is_empty() {
                tokio::task::yield_now().await;
                continue;
            }
            if !unsent.is_empty() {
                self.still(principal)?;
                outbound.send(piece_of_stream(&unsent)).await?;
            }
            held.set(out.len());
            unsent = out;
            tokio::task::yield_now().await;
        }
        let mut count = counted.map_or(sent, |counted| counted as i64);
        while counted.is_none() {
            let last = {
                let slice = slice(&state)?;
                let range = key_range(&request.key, &request.range_end, behind.as_deref());
                let mut walk = slice.snapshot().range(range, revision).map_err(range::refused)?;
                let looks = keys_per_slice() as u64;
                walk.set_looks(looks);
                count += walk.by_ref().count() as i64;
                note_walk(&walk, looks, 0);
                walk.stopped_at().map(<[u8]>::to_vec)
            };
            match last {
                Some(key) => behind = Some(key),
                None => break,
            }
            tokio::task::yield_now().await;
        }
        let more = !request.count_only && count > sent;
        self.still(principal)?;
        outbound.send(end_of_stream(&unsent, header, more, count)).await
    }

    /// Streams keys that are sorted already; `chosen` holds the last one first.
    ///
    /// etcd sorts each of its pieces by itself and continues after the last key of a piece, so that beyond
    /// ten keys it repeats some and leaves out others. Here the whole range is sorted, as for a Range
    /// (COMPAT-6).
    async fn stream_chosen(
        &self,
        principal: &Principal,
        state: &AsOf,
        (mut chosen, projection): (Vec<ChangeId>, Projection),
        header: ResponseHeader,
        (more, count): (bool, i64),
        outbound: &mut Outbound,
    ) -> Result<(), Status> {
        let target = self.shared.limits.request_bytes_max / 2;
        let mut held = outbound.account().hold(chosen.capacity() * size_of::<ChangeId>());
        let mut unsent = BytesMut::new();
        while !chosen.is_empty() {
            let keys_max = keys_per_slice();
            let piece = made(self.values.clone(), |values| {
                let (mut out, mut keys) = (BytesMut::new(), 0);
                let slice = slice(state)?;
                let snapshot = slice.snapshot();
                for change in chosen.iter().rev().take(keys_max) {
                    let version = snapshot.version_at(*change).ok_or(error::COMPACTED)?;
                    put_kv_field(&mut out, version, projection, values)?;
                    keys += 1;
                    if out.len() >= target {
                        break;
                    }
                }
                accounting::note_work(keys as u64, out.len() as u64);
                Ok::<_, Status>((out, keys))
            });
            let (out, keys) = piece.await?;
            chosen.truncate(chosen.len() - keys);
            if !unsent.is_empty() {
                self.still(principal)?;
                outbound.send(piece_of_stream(&unsent)).await?;
            }
            held.set(chosen.capacity() * size_of::<ChangeId>() + out.len());
            unsent = out;
            tokio::task::yield_now().await;
        }
        self.still(principal)?;
        outbound.send(end_of_stream(&unsent, header, more, count)).await
    }
}

/// Returns a message of a streamed range that contains only keys; `kvs` are their encoded fields.
fn piece_of_stream(kvs: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(kvs.len() + 8);
    debug_assert!(field_len(kvs.len()) <= kvs.len() + 8);
    put_field(&mut message, 1, kvs);
    message.freeze()
}

/// Returns the last message of a streamed range: the keys that were not sent yet, the header, `more` and
/// `count`. As in etcd, the last keys are in this message: kube-apiserver stops reading when it has as many
/// keys as it wants, and takes the revision from what it has read.
fn end_of_stream(kvs: &[u8], header: ResponseHeader, more: bool, count: i64) -> Bytes {
    let end = RangeResponse { header: Some(header), kvs: Vec::<mvccpb::KeyValue>::new(), more, count };
    let fields = [end.encode_to_vec().as_slice(), kvs].concat();
    piece_of_stream(&fields)
}

/// Refuses requests that RangeStream does not support, in the order of etcd's checks. The sort order `NONE`
/// is accepted with any sort target.
fn check_stream(request: &RangeRequest) -> Result<(), Status> {
    let is_plain = request.sort_order == SortOrder::None as i32
        || (request.sort_order == SortOrder::Ascend as i32 && request.sort_target == SortTarget::Key as i32);
    if !is_plain {
        return Err(Status::new(Code::Unimplemented, "RangeStream does not support custom sort orders"));
    }
    if range::is_filtered(request) {
        return Err(Status::new(Code::Unimplemented, "RangeStream does not support revision filters"));
    }
    Ok(())
}

pub(super) fn projected(mut found: StoredKeyValue, projection: Projection) -> StoredKeyValue {
    if projection.keys_only {
        found.value = None;
    }
    if projection.without_lease {
        found.lease = LeaseId::NONE;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_refused_as_etcd_refuses_them() {
        let order = |order: SortOrder, target: SortTarget, min_mod_revision: i64| {
            let request = RangeRequest {
                sort_order: order as i32,
                sort_target: target as i32,
                min_mod_revision,
                ..RangeRequest::default()
            };
            check_stream(&request).map_err(|status| status.message.into_owned())
        };
        let sorted = Err("RangeStream does not support custom sort orders".to_owned());
        let filtered = Err("RangeStream does not support revision filters".to_owned());
        assert_eq!(order(SortOrder::None, SortTarget::Key, 0), Ok(()));
        assert_eq!(order(SortOrder::Ascend, SortTarget::Key, 0), Ok(()));
        assert_eq!(order(SortOrder::None, SortTarget::Version, 0), Ok(()));
        assert_eq!(order(SortOrder::None, SortTarget::Create, -1), filtered);
        assert_eq!(order(SortOrder::Descend, SortTarget::Key, 0), sorted);
        assert_eq!(order(SortOrder::Ascend, SortTarget::Version, 5), sorted);
    }
}
