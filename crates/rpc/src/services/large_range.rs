//! Answers ranges with a large response. The length of the response is computed in slices, and the response
//! is made piece by piece as the client reads it.

use numbers::{ChangeId, Revision};
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use api::Status;
use api::error;
use api::etcdserverpb::{RangeRequest, ResponseHeader};
use api::wire::{field_len, number_len, put_number};
use bytes::{Bytes, BytesMut};
use clock::Clock;
use front::Answer;
use machine::AsOf;
use machine::key_value::Projection;
use machine::range::{self};
use mvcc::{KeyRange, Version};

use super::choose::{Chooser, Seen, gathered_bytes_max, read_at_once};
use super::large_value::{self, LargeValue, Part};
use super::walk::{
    BYTES_AT_ONCE, KVS, intact, key_range, keys_per_slice, kv_field_len, note_walk, projected, put_kv_field,
    slice,
};
use super::{Services, pieces};
use crate::encode::{header_len, put_header};
use replica::long_reads::Reader;
use storage::values::{Attempt, made};

/// Maximum number of keys that are visited for one piece of a response. If the range is read at an older
/// revision, some of these keys may not exist at that revision.
pub(super) const KEYS_PER_PIECE: u64 = 8192;

/// Makes the capacity of `out` large enough for a piece of this many bytes. It is called before each key, but
/// only the first call for a piece allocates.
pub(super) fn reserve(out: &mut BytesMut, piece_bytes: usize) {
    if out.capacity() < piece_bytes {
        out.reserve(piece_bytes + 4096 - out.len());
    }
}

/// The remaining part of a large response.
pub(super) struct Rest {
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
pub(super) enum Keys {
    /// The next `left` keys in key order after the key `behind`.
    Walk { start: Bytes, end: Bytes, behind: Option<Vec<u8>>, left: u64 },
    /// The versions with these main and sub revisions; the next one to send is at the end. The list contains
    /// no locations in the log, because these may change before the versions are read.
    Chosen(Vec<ChangeId>),
}

/// State, header and limits with which a long range is read.
pub(super) struct Opened {
    pub state: AsOf,
    pub header: ResponseHeader,
    /// Revision that the range reads.
    pub revision: Revision,
    /// Number of keys in the range, if it is known without a walk; at an older revision it is not.
    pub counted: Option<u64>,
    /// Maximum number of keys in the response.
    pub limit: u64,
}

/// Position at which a piece ends.
#[derive(Default)]
pub(super) struct Through {
    keys: u64,
    last: Option<Vec<u8>>,
    /// The key after these `keys` keys, if its value is large and the piece ends before or inside that value.
    large: Option<LargeValue>,
    ended: bool,
}

impl Through {
    /// Records that a piece ends before, inside or directly after the large value of `version`, and returns
    /// the bytes of the piece.
    pub(super) fn take(&mut self, part: Part, version: Version<'_>) -> Bytes {
        self.large = part.rest;
        // The key counts as sent only after the last part of its value. Until then, the next piece uses the
        // id in `large` to look up the same version again.
        if self.large.is_none() {
            self.keys += 1;
            self.last = Some(version.key().to_vec());
        }
        part.bytes
    }
}

impl Rest {
    /// Returns the response with these keys from `state` at `revision`. `more` and `count` are the response's
    /// fields of these names. `values` may already list values of the response as missing.
    pub(super) fn new(
        (state, revision): (AsOf, Revision),
        values: Attempt,
        (header, projection): (ResponseHeader, Projection),
        keys: Keys,
        (more, count): (bool, i64),
    ) -> Rest {
        let (header, large, ended) = (Some(header), None, false);
        Rest { state, values, projection, revision, header, keys, large, more, count, ended }
    }

    /// Returns the next piece and its end. If values were missing, the caller fetches them and calls this
    /// again.
    pub(super) fn piece(&self, bytes_max: usize) -> Result<(Bytes, Through), Status> {
        let made = self.make_piece(bytes_max);
        intact(&self.state)?;
        made
    }

    fn make_piece(&self, bytes_max: usize) -> Result<(Bytes, Through), Status> {
        let bytes_max = bytes_max.min(BYTES_AT_ONCE);
        let slice = slice(&self.state)?;
        let snapshot = slice.snapshot();
        let mut through = Through::default();
        if let Some(large) = self.large.clone() {
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

    pub(super) fn go_on(&mut self, through: Through) {
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

    pub(super) fn poll_piece(
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

    /// Returns the response of `len` bytes, which is small enough to be made in one step, and the time at
    /// which its values arrived.
    pub(super) async fn whole(mut self, len: usize, clock: &Clock) -> (Result<Answer, Status>, Instant) {
        // Fetches the values that were found missing when the keys were selected. Usually the response needs
        // no others.
        self.values.fetched().await;
        let fetched = clock.now();
        let piece = poll_fn(|context| self.poll_piece(len, context)).await;
        let is_whole =
            |piece: &Option<Bytes>| self.ended && piece.as_ref().is_some_and(|piece| piece.len() == len);
        debug_assert!(piece.as_ref().map_or(true, is_whole));
        (piece.map(|piece| Answer::Whole(piece.unwrap_or_default())), fetched)
    }

    /// Returns the response of `len` bytes, which is made piece by piece.
    pub(super) fn into_answer(mut self, len: usize) -> Result<Answer, Status> {
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
    pub(super) fn kept_bytes(&self) -> usize {
        match &self.keys {
            Keys::Walk { start, end, behind, .. } => {
                start.len() + end.len() + behind.as_ref().map_or(0, Vec::len)
            }
            Keys::Chosen(found) => found.capacity() * size_of::<ChangeId>(),
        }
    }
}

impl Services {
    /// Begins to read a range that may be large.
    pub(super) fn open(&self, request: &RangeRequest) -> Result<Opened, Status> {
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

    /// Returns the response of a range that may be large, once its length is known.
    pub(super) async fn large_range(&self, request: &RangeRequest) -> Result<Answer, Status> {
        let Opened { state, header, revision, counted, limit } = self.open(request)?;
        let projection = range::projection(request);
        let natural = range::is_natural(request);
        if !natural && !request.count_only {
            let (chosen, more, count, kvs) =
                self.choose(&state, request, revision, limit, projection).await?;
            let len = header_len(&header) + kvs + number_len(i64::from(more)) + number_len(count);
            let (values, keys) = (Attempt::new(self.values.clone()), Keys::Chosen(chosen));
            return Rest::new((state, revision), values, (header, projection), keys, (more, count))
                .into_answer(len);
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
        let values = Attempt::new(self.values.clone());
        Rest::new((state, revision), values, (header, projection), walk, (more, count)).into_answer(len)
    }

    /// Collects, filters and sorts a large range. Returns four results: the versions, last one first; true if
    /// the limit left some keys out; the number of keys in the range; and the length of the encoded keys and
    /// values in bytes.
    pub(super) async fn choose(
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
            // Computed outside the closure: both limits depend on the work left in the turn, and `made`
            // repeats the closure after it has fetched missing values. Every repetition must end at the same
            // key.
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
}
