//! Answers ranges, from the newest published state. A small range whose values are in memory is answered
//! immediately.
//!
//! A large response takes two walks over its keys (`large_range`): the first adds up its length, and the
//! second makes it piece by piece as the client reads. Both walks yield to other calls regularly. Between two
//! pieces they hold at most one piece in memory, and no view ([`AsOf`](machine::AsOf)). Values that are not
//! in memory are fetched for a whole piece together, while other calls run.

use numbers::Revision;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Status;
use api::error;
use api::etcdserverpb::range_request::SortTarget;
use api::etcdserverpb::{RangeRequest, ResponseHeader};
use api::wire::{number_len, put_number};
use arc_swap::Guard;
use bytes::{Bytes, BytesMut};
use front::{Answer, Head, LocalBoxFuture};
use machine::Values;
use machine::check;
use machine::range::{self, Selection};
use mvcc::{KeyRange, Snapshot};
use prost::Message as _;

use super::call::{Call, Path, ReadPath};
use super::freshness::Freshness;
use super::large_range::{Keys, Rest};
use super::slow::shown;
use super::stages::{Confirmed, Making, Meter};
use super::strangers::Place;
use super::walk::{BYTES_AT_ONCE, failed, kv_field_len, put_kv_field};
use super::{Services, decode};
use crate::encode::{header_len, put_header};
use replica::long_reads::Reader;
use replica::shared::Published;
use storage::values::Attempt;
use telemetry::slow_requests;

/// Maximum number of keys in a response that is made in one step.
const KEYS_AT_ONCE: u64 = 128;
/// Maximum number of keys that are sorted by value in one step. It is low because each value has to be read.
const VALUES_SORTED_AT_ONCE: u64 = 4;
/// Estimated size of a range, before it is read.
struct Size {
    /// True if the range may select more keys than a response that is made in one step may have.
    is_large: bool,
    /// Number of keys in the range, if it was counted.
    counted: Option<u64>,
}

/// Result of the attempt to answer a Range immediately.
pub(super) enum Attempted {
    Answered(Answer),
    /// The read needs a confirmation. The slot is the one that an unauthenticated caller holds while it
    /// waits; `None` for other callers.
    Unconfirmed(Timing, Option<Place>),
    /// Blocks of the index that the read needs are not in memory. The future loads them.
    Absent(Timing, LocalBoxFuture<()>),
    /// The response cannot be made in one step.
    Unmade(Box<Unmade>),
}

/// A Range whose response cannot be made in one step.
pub(super) struct Unmade {
    timing: Timing,
    work: Work,
}

/// Remaining work for a Range's response.
#[expect(clippy::large_enum_variant, reason = "[`Unmade`], which holds it, is in a box")]
enum Work {
    /// The keys are found, but some values are not in memory. The number is the length of the response in
    /// bytes.
    Fetch(Rest, usize),
    /// There may be many keys. The response is made in slices, from the state that is newest when the first
    /// slice begins.
    Slices,
}

/// Times of a Range, for reports.
#[derive(Clone, Copy)]
pub(super) struct Timing {
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

fn checked(message: Bytes) -> Result<RangeRequest, Status> {
    let request: RangeRequest = decode(message)?;
    check::range(&request)?;
    Ok(request)
}

/// Decodes and checks a Range, and the bounds on its staleness.
pub(super) fn request(message: Bytes, head: &Head) -> Result<(RangeRequest, Option<Freshness>), Status> {
    let request = checked(message)?;
    let freshness = if request.serializable { Freshness::of(head)? } else { None };
    Ok((request, freshness))
}

/// Answers a Range immediately if that needs no other thread and little time.
///
/// # Errors
///
/// Returns etcd's errors for a Range.
pub(super) fn at_once(
    call: &mut Call,
    request: &RangeRequest,
    freshness: Option<Freshness>,
) -> Result<Attempted, Status> {
    let shared = call.shared();
    shared.diagnostics.metrics.mvcc.ranges.inc();
    let as_of = freshness.and_then(|_| shared.confirmed_as_of());
    let state = shared.state.load();
    if !request.serializable && call.services.learns(&state) {
        return Err(error::NOT_SUPPORTED_FOR_LEARNER);
    }
    let timing = Timing { began: call.services.now(), confirmed: None };
    call.expense(|now| check::range_is_expensive(request, now).into())?;
    let is_fresh = || freshness.is_none_or(|freshness| freshness.allows(as_of, &state, timing.began));
    if request.serializable && is_fresh() || state.reads_local && freshness.is_none() {
        if let Some(preload) = preload(call, request, &state)? {
            return Ok(Attempted::Absent(timing, preload));
        }
        return Ok(match from_state(call, request, timing, state)? {
            Ok(answer) => Attempted::Answered(answer),
            Err(unmade) => Attempted::Unmade(unmade),
        });
    }
    // While authentication is disabled, the caller needs no slot, and an error of its token is ignored.
    let place = if state.auth.is_enabled() { call.services.place_of(call.principal()?)? } else { None };
    Ok(Attempted::Unconfirmed(timing, place))
}

/// Answers a Range that could not be answered immediately.
pub(super) async fn go_on(
    call: &mut Call,
    request: RangeRequest,
    freshness: Option<Freshness>,
    attempted: Attempted,
) -> Result<Answer, Status> {
    let made = match attempted {
        Attempted::Answered(answer) => Ok(answer),
        Attempted::Unmade(unmade) => Err(unmade),
        Attempted::Absent(timing, preload) => {
            preload.await;
            // This state is at least as new as the one in which the blocks were absent.
            let state = call.shared().state.load();
            from_state(call, &request, timing, state)?
        }
        Attempted::Unconfirmed(timing, place) => {
            let confirmed = call.confirmed(place).await;
            let confirmed = Some(confirmed.map_err(|status| match freshness {
                Some(freshness) => freshness.unconfirmed(&status),
                None => status,
            })?);
            let mut state = call.shared().state.load();
            if let Some(preload) = preload(call, &request, &state)? {
                drop(state);
                preload.await;
                state = call.shared().state.load();
            }
            if let Some(freshness) = freshness {
                freshness.check_confirmed(&state)?;
            }
            from_state(call, &request, Timing { confirmed, ..timing }, state)?
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
    let request = checked(message)?;
    let attempted = at_once(call, &request, None)?;
    go_on(call, request, None, attempted).await
}

/// Returns a future that loads the blocks of the index that the range needs; `None` if they are in memory. Returns
/// an error if the user has no right to read the range.
fn preload(
    call: &Call,
    request: &RangeRequest,
    state: &Published,
) -> Result<Option<LocalBoxFuture<()>>, Status> {
    let services = &call.services;
    if services.shared.data.index_cache().is_none() {
        return Ok(None);
    }
    services.gate(state, call.principal()?).read(&request.key, &request.range_end)?;
    Ok(services.preload(|| vec![(request.key.clone(), request.range_end.clone())]))
}

/// Answers from `state`, if the user has the right to read the range and if that takes little time. `state`
/// is new enough for a linearizable read, unless the read is serializable.
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
    let meter = call.begun.is_measured().then(|| Meter::new(services.shared.member.clock.clone()));
    let answer = services.small_range(request, &state, counted, &values, meter.as_ref()).transpose();
    if values.is_complete()
        && let Some(answer) = answer
    {
        ranged(call, request, timing, &answer, meter.map(|meter| meter.made()));
        return answer.map(Ok);
    }
    // The values are large or not in memory. The view is dropped now, so that it is not held while they are
    // fetched.
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

/// Makes a response that cannot be made in one step.
async fn make(call: &mut Call, request: RangeRequest, unmade: Unmade) -> Result<Answer, Status> {
    let Unmade { timing, work } = unmade;
    let services = Rc::clone(&call.services);
    match work {
        Work::Fetch(rest, len) => {
            let chosen = services.now();
            let (answer, fetched) = rest.whole(len, &services.shared.member.clock).await;
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
    let limits = &call.shared().member.limits;
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
        // The count is taken from the newest state, even if the request is for an older revision, because it
        // only has to distinguish large ranges from small ones.
        let keys = state.view.snapshot().count(keys, Revision::CURRENT).unwrap_or(0);
        let limit =
            u64::try_from(request.limit).ok().filter(|limit| *limit > 0 && range::is_natural(request));
        let keys = keys.min(limit.unwrap_or(u64::MAX));
        if keys >= slow_requests::RANGE_KEYS || bytes >= slow_requests::RANGE_BYTES {
            let now = self.shared.member.clock.wall();
            let (key, end) = (&request.key, &request.range_end);
            self.shared.diagnostics.slow_requests.ranged(client, (key, end), keys, bytes as u64, took, now);
        }
    }

    /// Estimates whether a request may select more keys than can be answered in one step. The result contains
    /// the number of keys if they were counted.
    fn size(&self, request: &RangeRequest, state: &Published) -> Result<Size, Status> {
        let uncounted = |is_large| Ok(Size { is_large, counted: None });
        let range = KeyRange::of_request(&request.key, &request.range_end);
        if range.as_single().is_some() || (request.count_only && request.revision <= 0) {
            return uncounted(false);
        }
        let snapshot = state.view.snapshot();
        if request.revision > 0 && Revision(request.revision) != snapshot.current_revision() {
            // Counting at an older revision would walk the range. The number of all versions in the store is
            // used instead, as an upper bound.
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

    /// Returns a response with few keys; `None` if their values are too large for a response that is made in
    /// one step.
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

    /// Returns a response with few keys that cannot be made in one step, and its length in bytes. The
    /// response is not sorted by values. `values` may already list values of the response as missing. Returns
    /// `None` if the range may be large in the newest state.
    fn chosen(&self, request: &RangeRequest, values: Attempt) -> Result<Option<(Rest, usize)>, Status> {
        let (state, published) = self.shared.read_long(Reader::Range);
        let Size { is_large: false, counted } = self.size(request, &published)? else { return Ok(None) };
        let snapshot = published.view.snapshot();
        let revision = snapshot.current_revision();
        let header = self.header(revision, &published);
        let (Selection { versions, more, count }, len) =
            self.select(&snapshot, request, &header, counted, &values)?;
        // The last version comes first, so that versions are removed from the end once they are sent.
        let keys = Keys::Chosen(versions.into_iter().rev().map(|v| v.id()).collect());
        let projection = range::projection(request);
        let rest = Rest::new((state, revision), values, (header, projection), keys, (more, count));
        Ok(Some((rest, len)))
    }
}
