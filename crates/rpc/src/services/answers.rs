//! Makes those responses of writes and transactions that are not complete right after apply, because they
//! contain results of ranges at a point inside the transaction, or values that are not in memory.
//!
//! For such a range, apply records only its request and its point in the transaction
//! ([`machine::txn::Past`]). The shard of the client evaluates the range here, in the state directly after
//! the transaction. Values that apply found but did not read are read here too, and no view is held while the
//! disk is read. So only the member that the client has called does this work, and it does the work on a
//! shard and not in the core. As for a large Range, two walks visit the keys in slices: the first adds up
//! lengths, and the second makes the response piece by piece as the client reads it.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use accounting::{Account, Held};
use api::etcdserverpb::ResponseHeader;
use api::wire::{field_len, put_field_head, put_number};
use api::{Code, Status, error};
use bytes::{Bytes, BytesMut};
use front::Answer;
use machine::key_value::{Projection, StoredKeyValue, kv_len, put_kv};
use machine::txn::{Deleted, OpOutcome, Past, Read, TxnOutcome};
use machine::{AsOf, range};
use mvcc::Version;
use numbers::{ChangeId, Revision};

use super::choose::{Chooser, Seen, gathered_bytes_max, read_at_once};
use super::large_value::{self, LargeValue};
use super::pieces;
use super::walk::{BYTES_AT_ONCE, REPLACED, keys_per_slice, note_walk, projected, slice};
use crate::encode;
use storage::values::unreadable;
use storage::values::{Attempt, LogValues, made};

/// Result of a read in a transaction: its keys, their number, and the length of their encoding.
struct Measured {
    /// Length of all encoded `kvs` fields of the read, in bytes.
    kvs: usize,
    more: bool,
    count: i64,
    keys: Keys,
}

enum Keys {
    /// The versions with these main and sub revisions. The last one comes first, so that versions are removed
    /// from the end once they are sent.
    Chosen(Vec<ChangeId>),
    /// The next `left` keys after `behind`, in key order, of the range as it was at the point `past` of the
    /// transaction.
    Walk { past: Box<Past>, left: u64, behind: Option<Vec<u8>> },
}

/// A part of a response.
enum Part {
    Bytes(Bytes),
    /// Key-value pairs that are still to be read and encoded: the number of their response field, their
    /// projection, and their keys.
    Kvs(u8, Projection, Keys),
}

impl Part {
    fn held_bytes(&self) -> usize {
        let more = match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::Kvs(_, _, Keys::Chosen(found)) => found.capacity() * size_of::<ChangeId>(),
            Part::Kvs(_, _, Keys::Walk { past, .. }) => past.request.key.len() + past.request.range_end.len(),
        };
        size_of::<Part>() + more
    }
}

/// A response under construction, or a piece of one: a list of parts, and their total length.
#[derive(Default)]
struct Rope {
    len: usize,
    parts: Vec<Part>,
    /// Bytes after the last part.
    tail: BytesMut,
}

impl Rope {
    fn put(&mut self, put: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        put(&mut self.tail);
        self.len += self.tail.len() - before;
    }

    fn kvs(&mut self, field: u8, projection: Projection, measured: Measured) {
        let nothing = matches!(&measured.keys, Keys::Chosen(found) if found.is_empty());
        if nothing || matches!(&measured.keys, Keys::Walk { left: 0, .. }) {
            return;
        }
        self.cut();
        self.parts.push(Part::Kvs(field, projection, measured.keys));
        self.len += measured.kvs;
    }

    fn cut(&mut self) {
        if !self.tail.is_empty() {
            self.parts.push(Part::Bytes(self.tail.split().freeze()));
        }
    }

    fn append(&mut self, mut other: Rope) {
        if !other.parts.is_empty() {
            self.cut();
            self.parts.append(&mut other.parts);
        }
        self.tail.extend_from_slice(&other.tail);
        self.len += other.len;
    }
}

/// Progress of a walk over a range: the keys that belong to the response, their encoded length, and the
/// number of all keys found.
#[derive(Clone, Copy, Default)]
struct Looked {
    keys: u64,
    kvs: usize,
    count: i64,
}

/// Evaluates the reads that a transaction left to be evaluated after apply.
struct Evaluation {
    state: AsOf,
    values: Rc<LogValues>,
    /// Number of bytes that may still be gathered for sorting.
    gather: usize,
    /// Reservation for the gathered bytes in the memory account of the client's connection.
    held: Option<Held>,
}

impl Evaluation {
    fn new(state: AsOf, values: Rc<LogValues>) -> Evaluation {
        let held = Account::of_turn().map(|account| account.hold(0));
        Evaluation { state, values, gather: gathered_bytes_max(), held }
    }

    /// Computes the encoded lengths of the results of all reads, in the order of the response.
    async fn measure_all(&mut self, outcome: &TxnOutcome) -> Result<Vec<Measured>, Status> {
        let mut measured = Vec::new();
        // Nested transactions are kept on a stack, because clients choose the depth, and an async function
        // that calls itself would need a box per level.
        let mut open = vec![outcome.responses.iter()];
        while let Some(responses) = open.last_mut() {
            match responses.next() {
                Some(OpOutcome::Range(ranged)) => measured.push(self.measure(&ranged.read).await?),
                Some(OpOutcome::DeleteRange(deleted)) => {
                    measured.push(self.measure(&deleted.previous).await?)
                }
                Some(OpOutcome::Put { .. }) => {}
                Some(OpOutcome::Txn(nested)) => open.push(nested.responses.iter()),
                None => drop(open.pop()),
            }
        }
        Ok(measured)
    }

    async fn measure(&mut self, read: &Read) -> Result<Measured, Status> {
        let past = match read {
            Read::Known { found, more, count } => {
                let kvs = found.iter().map(|found| field_len(found.encoded_len())).sum();
                let keys = Keys::Chosen(found.iter().rev().map(StoredKeyValue::id).collect());
                return Ok(Measured { kvs, more: *more, count: *count, keys });
            }
            Read::Past(past) => past,
        };
        let request = &past.request;
        let projection = range::projection(request);
        let limit = match u64::try_from(request.limit) {
            Ok(0) | Err(_) => u64::MAX,
            Ok(limit) => limit,
        };
        let natural = range::is_natural(request);
        let mut chooser = (!natural && !request.count_only).then(|| Chooser::new(request, self.gather));
        let keys_max = range::keys_before_sort(request).unwrap_or(usize::MAX) as u64;
        let take = if request.count_only { 0 } else { limit };
        let mut looked = Looked::default();
        let mut behind: Option<Vec<u8>> = None;
        loop {
            // Computed outside the closure: both limits depend on the work left in the turn, and `made`
            // repeats the closure after it has fetched missing values. Every repetition must end at the same
            // key.
            let (looks, read_max) = (keys_per_slice() as u64, read_at_once());
            let next = made(self.values.clone(), |values| {
                let slice = slice(&self.state)?;
                let mut walk = past.walk(&slice.snapshot(), behind.as_deref()).map_err(range::refused)?;
                walk.set_looks(looks);
                let (mut looked, mut seen) = (looked, Seen::up_to(read_max));
                if let (left, Some(all)) = walk.size_hint()
                    && left == all
                    && chooser.is_none()
                    && looked.keys >= take
                {
                    // The response needs no more keys, only their count, and the number of the remaining keys
                    // is known. So the walk stops here.
                    looked.count += left as i64;
                    return Ok((looked, seen, None));
                }
                let mut last = None;
                while !seen.is_due()
                    && let Some(version) = walk.next()
                {
                    looked.count += 1;
                    if let Some(chooser) = &chooser {
                        if looked.count as u64 <= keys_max {
                            chooser.look(version, values, &mut seen)?;
                        }
                    } else if looked.keys < take {
                        looked.kvs += field_len(kv_len(version, projection));
                        looked.keys += 1;
                    }
                    last = Some(version.key());
                }
                note_walk(&walk, looks, seen.read_bytes());
                let last = walk.stopped_at().or(last.filter(|_| seen.is_due())).map(<[u8]>::to_vec);
                Ok::<_, Status>((looked, seen, last))
            });
            let (through, seen, last) = next.await?;
            looked = through;
            if let Some(chooser) = &mut chooser {
                chooser.take(seen)?;
            }
            match last {
                Some(key) => behind = Some(key),
                None => break,
            }
            tokio::task::yield_now().await;
        }
        let Looked { keys, kvs, count } = looked;
        if let Some(chooser) = chooser {
            let (found, more) = chooser.finish().await;
            let chosen: Vec<_> = found.iter().map(StoredKeyValue::id).collect();
            let bytes = chosen.capacity() * size_of::<ChangeId>();
            self.gather = self.gather.saturating_sub(bytes);
            if let Some(held) = &mut self.held {
                held.set(held.bytes() + bytes);
            }
            let kvs =
                found.into_iter().map(|found| field_len(projected(found, projection).encoded_len())).sum();
            return Ok(Measured { kvs, more, count, keys: Keys::Chosen(chosen) });
        }
        let more = !request.count_only && (keys as i64) < count;
        let keys = Keys::Walk { past: past.clone(), left: keys, behind: None };
        Ok(Measured { kvs, more, count, keys })
    }

    /// Returns the response that `rope` describes.
    async fn answer(self, mut rope: Rope) -> Result<Answer, Status> {
        rope.cut();
        let len = rope.len;
        pieces::check_len(len)?;
        rope.parts.reverse();
        let values = Attempt::new(self.values);
        let mut rest = Pieces { state: self.state, values, parts: rope.parts, large: None, looks: None };
        if len <= BYTES_AT_ONCE {
            let mut out = BytesMut::with_capacity(len);
            while let Some(piece) = poll_fn(|context| rest.poll_next(BYTES_AT_ONCE, context)).await? {
                if piece.is_empty() {
                    tokio::task::yield_now().await;
                }
                out.extend_from_slice(&piece);
            }
            debug_assert_eq!(out.len(), len);
            return Ok(Answer::Whole(out.freeze()));
        }
        let beginning = match rest.parts.last() {
            Some(Part::Bytes(bytes)) => bytes.clone(),
            _ => Bytes::new(),
        };
        // The number of kept bytes stays the same until the response ends, because the memory of the parts is
        // freed only at that time.
        let kept = rest.parts.iter().map(Part::held_bytes).sum();
        pieces::answer(len, kept, &beginning, move |bytes_max, context| {
            let piece = ready!(rest.poll_next(bytes_max.min(BYTES_AT_ONCE), context))?;
            Poll::Ready(Ok(piece.map(|piece| (piece, kept))))
        })
    }
}

/// The remaining parts of a response, last one first.
struct Pieces {
    state: AsOf,
    values: Attempt,
    parts: Vec<Part>,
    /// The first key of the next part, if its value is large and was checked or partly sent.
    large: Option<LargeValue>,
    /// Maximum number of keys that the current piece may visit. It is chosen once per piece, and stays the
    /// same when the piece is made again after missing values were fetched.
    looks: Option<u64>,
}

impl Pieces {
    /// Returns the next piece, which may exceed `bytes_max` by some bytes and may be empty; `None` after the
    /// last piece. If values of the piece are missing, the piece is made again after they are fetched.
    fn poll_next(
        &mut self,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            ready!(self.values.poll_fetched(context));
            let looks = *self.looks.get_or_insert_with(|| keys_per_slice() as u64);
            let made = self.piece(bytes_max, looks);
            if !self.values.is_complete() {
                continue;
            }
            self.looks = None;
            let made = made?;
            self.large = made.as_ref().and_then(|(_, through)| through.large.clone());
            large_value::forget(&mut self.values, &mut self.large);
            let Some((piece, through)) = made else { return Poll::Ready(Ok(None)) };
            self.parts.truncate(self.parts.len() - through.parts);
            match self.parts.last_mut() {
                Some(Part::Kvs(_, _, Keys::Chosen(found))) => found.truncate(found.len() - through.keys),
                Some(Part::Kvs(_, _, Keys::Walk { left, behind, .. })) => {
                    *left -= through.keys as u64;
                    if through.behind.is_some() {
                        *behind = through.behind;
                    }
                }
                _ => {}
            }
            return Poll::Ready(Ok(Some(piece)));
        }
    }

    /// Returns the next piece and its end. A piece covers as many parts as fit, so that their values are
    /// fetched together. It contains at most one walk over keys, which visits at most `looks` keys and ends
    /// the piece.
    fn piece(&self, bytes_max: usize, looks: u64) -> Result<Option<(Bytes, Through)>, Status> {
        let mut through = Through::default();
        let mut out = BytesMut::new();
        if let Some(Part::Bytes(bytes)) = self.parts.last()
            && (bytes.len() >= bytes_max || self.parts.len() == 1)
        {
            through.parts = 1;
            return Ok(Some((bytes.clone(), through)));
        }
        if let Some(large) = self.large.clone()
            && let Some(Part::Kvs(_, projection, _)) = self.parts.last()
        {
            let slice = slice(&self.state)?;
            let version = slice.snapshot().version_at(large.id()).ok_or(error::COMPACTED)?;
            let part = large.go_on(version, *projection, &self.values, bytes_max)?;
            return Ok(Some((through.take(part, version), through)));
        }
        for part in self.parts.iter().rev() {
            (through.keys, through.behind) = (0, None);
            let (ended, walked) = match part {
                Part::Bytes(bytes) => {
                    out.extend_from_slice(bytes);
                    (true, false)
                }
                Part::Kvs(field, projection, Keys::Chosen(found)) => {
                    let slice = slice(&self.state)?;
                    let snapshot = slice.snapshot();
                    for change in found.iter().rev() {
                        if out.len() >= self.values.piece_bytes(bytes_max) {
                            break;
                        }
                        let version = snapshot.version_at(*change).ok_or(error::COMPACTED)?;
                        if large_value::is_large(version, *projection) {
                            let (values, wanted) = (&self.values, bytes_max);
                            let part = LargeValue::begin(out, *field, version, *projection, values, wanted)?;
                            return Ok(Some((through.take(part, version), through)));
                        }
                        put_kv_field(&mut out, *field, version, *projection, &self.values)?;
                        through.keys += 1;
                    }
                    accounting::note_work(through.keys as u64, 0);
                    (through.keys == found.len(), false)
                }
                Part::Kvs(field, projection, Keys::Walk { past, left, behind }) => {
                    let slice = slice(&self.state)?;
                    let mut walk = past.walk(&slice.snapshot(), behind.as_deref()).map_err(range::refused)?;
                    walk.set_looks(looks);
                    let mut last = None;
                    while (through.keys as u64) < *left
                        && out.len() < self.values.piece_bytes(bytes_max)
                        && let Some(version) = walk.next()
                    {
                        if large_value::is_large(version, *projection) {
                            let (values, wanted) = (&self.values, bytes_max);
                            let part = LargeValue::begin(out, *field, version, *projection, values, wanted)?;
                            return Ok(Some((through.take(part, version), through)));
                        }
                        put_kv_field(&mut out, *field, version, *projection, &self.values)?;
                        last = Some(version.key());
                        through.keys += 1;
                    }
                    note_walk(&walk, looks, 0);
                    through.behind = walk.stopped_at().or(last).map(<[u8]>::to_vec);
                    (through.keys as u64 == *left, true)
                }
            };
            if !ended {
                break;
            }
            (through.parts, through.keys, through.behind) = (through.parts + 1, 0, None);
            if walked || out.len() >= self.values.piece_bytes(bytes_max) {
                break;
            }
        }
        Ok((!self.parts.is_empty()).then(|| (out.freeze(), through)))
    }
}

/// Position at which a piece ends.
#[derive(Default)]
struct Through {
    /// Number of parts that end with the piece.
    parts: usize,
    /// Number of keys of the next part that the piece contains.
    keys: usize,
    behind: Option<Vec<u8>>,
    /// The key of the next part after these `keys` keys, if its value is large and the piece ends before or
    /// inside that value.
    large: Option<LargeValue>,
}

impl Through {
    /// Records that a piece ends before, inside or directly after the large value of `version`, and returns
    /// the bytes of the piece.
    fn take(&mut self, part: large_value::Part, version: Version<'_>) -> Bytes {
        self.large = part.rest;
        // The key counts as sent only after the last part of its value. Until then, the next piece uses the
        // id in `large` to look up the same version again.
        if self.large.is_none() {
            self.keys += 1;
            self.behind = Some(version.key().to_vec());
        }
        part.bytes
    }
}

/// Number of the response field with the key-value pairs of a range: `kvs`.
const KVS: u8 = 2;
/// Number of the response field with the previous key-value pair of a put: `prev_kv`.
const PREV_KV: u8 = 2;
/// Number of the response field with the previous key-value pairs of a deletion: `prev_kvs`.
const PREV_KVS: u8 = 3;

fn put_kv_field(
    out: &mut BytesMut,
    field: u8,
    version: Version<'_>,
    projection: Projection,
    values: &Attempt,
) -> Result<(), Status> {
    put_field_head(out, field, kv_len(version, projection));
    put_kv(version, projection, values, out).map_err(|e| unreadable(&e))
}

fn only(revision: Revision) -> ResponseHeader {
    ResponseHeader { revision: revision.0, ..ResponseHeader::default() }
}

/// Returns the response of a transaction as a rope. Takes the measured reads in the order in which
/// [`Evaluation::measure_all`] returned them.
fn txn_rope(
    header: &ResponseHeader,
    outcome: &TxnOutcome,
    measured: &mut std::vec::IntoIter<Measured>,
) -> Rope {
    let mut rope = Rope::default();
    rope.put(|out| {
        encode::put_header(out, header);
        put_number(out, 2, i64::from(outcome.succeeded));
    });
    for response in &outcome.responses {
        let (field, body) = match response {
            OpOutcome::Range(ranged) => {
                let mut body = Rope::default();
                body.put(|out| encode::put_header(out, &only(ranged.revision)));
                if let Some(measured) = measured.next() {
                    let (more, count) = (measured.more, measured.count);
                    body.kvs(KVS, ranged.projection, measured);
                    body.put(|out| {
                        put_number(out, 3, i64::from(more));
                        put_number(out, 4, count);
                    });
                }
                (1, body)
            }
            OpOutcome::Put { revision, previous } => (2, put_rope(&only(*revision), previous.as_deref())),
            OpOutcome::DeleteRange(deleted) => {
                (3, delete_rope(&only(deleted.revision), deleted, measured.next()))
            }
            OpOutcome::Txn(nested) => (4, txn_rope(&only(nested.revision), nested, measured)),
        };
        rope.put(|out| {
            put_field_head(out, 3, field_len(body.len));
            put_field_head(out, field, body.len);
        });
        rope.append(body);
    }
    rope
}

fn put_rope(header: &ResponseHeader, previous: Option<&StoredKeyValue>) -> Rope {
    let mut rope = Rope::default();
    rope.put(|out| encode::put_header(out, header));
    if let Some(found) = previous {
        let (kvs, keys) = (field_len(found.encoded_len()), Keys::Chosen(vec![found.id()]));
        rope.kvs(PREV_KV, Projection::default(), Measured { kvs, more: false, count: 1, keys });
    }
    rope
}

fn delete_rope(header: &ResponseHeader, deleted: &Deleted, measured: Option<Measured>) -> Rope {
    let mut rope = Rope::default();
    rope.put(|out| {
        encode::put_header(out, header);
        put_number(out, 2, deleted.deleted);
    });
    if let Some(measured) = measured {
        rope.kvs(PREV_KVS, Projection::default(), measured);
    }
    rope
}

/// Returns the response of a transaction whose reads are evaluated in `state`.
pub(super) async fn txn(
    state: AsOf,
    values: Rc<LogValues>,
    header: ResponseHeader,
    outcome: TxnOutcome,
) -> Result<Answer, Status> {
    let mut evaluation = Evaluation::new(state, values);
    let mut measured = evaluation.measure_all(&outcome).await?.into_iter();
    let rope = txn_rope(&header, &outcome, &mut measured);
    evaluation.answer(rope).await
}

/// Returns the response of a put whose previous value is read in `state`.
pub(super) async fn put(
    state: AsOf,
    values: Rc<LogValues>,
    header: ResponseHeader,
    previous: Box<StoredKeyValue>,
) -> Result<Answer, Status> {
    Evaluation::new(state, values).answer(put_rope(&header, Some(&previous))).await
}

/// Returns the response of a deletion whose previous keys are read in `state`.
pub(super) async fn delete_range(
    state: AsOf,
    values: Rc<LogValues>,
    header: ResponseHeader,
    deleted: Deleted,
) -> Result<Answer, Status> {
    let mut evaluation = Evaluation::new(state, values);
    let measured = evaluation.measure(&deleted.previous).await?;
    evaluation.answer(delete_rope(&header, &deleted, Some(measured))).await
}

/// Error for a write that was carried out, but whose response can no longer be read (COMPAT-81). The error
/// must not suggest that the write was refused, as `required revision has been compacted` would.
const WRITTEN: Status = Status::new(
    Code::Unavailable,
    "mainstay: the write was carried out, but the values that it read were removed before it could be answered",
);

/// Returns the error for a write that was carried out, if its response fails with `status`.
fn of_write(status: Status) -> Status {
    if status == error::COMPACTED || status == REPLACED {
        return WRITTEN;
    }
    // A response fails with these codes if too many bytes would have to be gathered, or if a value is
    // damaged. The code is replaced, because a client would conclude from it that the write was refused or
    // failed.
    let is_refusal = matches!(status.code, Code::ResourceExhausted | Code::Internal);
    if is_refusal && status.message.starts_with("mainstay: ") {
        let text = format!(
            "mainstay: the write was carried out, but its answer cannot be built: {}",
            status.message
        );
        return Status::with(Code::Unavailable, text);
    }
    status
}

/// Returns the response of a write. If `answer` fails, the error says that the write was carried out.
pub(super) async fn written(answer: impl Future<Output = Result<Answer, Status>>) -> Result<Answer, Status> {
    match answer.await.map_err(of_write)? {
        Answer::Pieces { len, beginning, mut source, held } => {
            let source = Box::new(move |bytes_max: usize, context: &mut Context<'_>| {
                source(bytes_max, context).map_err(of_write)
            });
            Ok(Answer::Pieces { len, beginning, source, held })
        }
        whole => Ok(whole),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use api::etcdserverpb::RangeRequest;
    use disk::MemDisk;
    use machine::Newest;
    use machine::txn::Ranged;
    use mvcc::{KeyRange, Moment, Store, Value, View};
    use numbers::{ClusterId, Index, LeaseId, MemberId};

    use super::*;

    /// A source of the newest view, if there is one, that counts the slices read.
    struct Counting(Option<Arc<View>>, AtomicUsize);

    impl Newest for Counting {
        fn view(&self) -> Option<Arc<View>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.clone()
        }

        fn needs(&self, _moment: &Moment) {}
    }

    fn values() -> (log::Log, Rc<LogValues>) {
        let options = log::Options { by_hand: true, ..log::Options::new("/log", ClusterId(1), MemberId(2)) };
        let disk = Arc::new(MemDisk::new(1));
        let (log, _) = log::Log::open(options, disk, Index(1), &mut |_| {}, Box::new(|_| {})).expect("opens");
        let values = Rc::new(LogValues::new(log.values()));
        (log, values)
    }

    /// Returns a moment at which few keys existed in a store: they have long names, and one of them is the
    /// last of all keys. All other keys are written after that moment.
    fn sparse(store: &mut Store, keys: u64) -> Moment {
        let was_there = |n: u64| n < 40 || n == keys - 1;
        let put = |store: &mut Store, n: u64| {
            let tail = "-".repeat(if was_there(n) { 4096 } else { 0 });
            let mut writer = store.begin();
            writer.put(format!("key-{n:08}{tail}").as_bytes(), Value::default(), LeaseId::NONE);
            writer.finish();
        };
        (0..keys).filter(|n| was_there(*n)).for_each(|n| put(store, n));
        let moment = store.moment();
        (0..keys).filter(|n| !was_there(*n)).for_each(|n| put(store, n));
        moment
    }

    fn whole(moment: &Moment) -> TxnOutcome {
        let request = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() };
        let past = Box::new(Past { request, before: ChangeId::first_of(moment.revision().next()) });
        let (revision, projection) = (moment.revision(), Projection::default());
        let range = OpOutcome::Range(Ranged { revision, projection, read: Read::Past(past) });
        TxnOutcome { revision, succeeded: true, responses: vec![range] }
    }

    #[test]
    fn other_calls_run_while_keys_are_looked_at_that_were_not_there() {
        let (_log, values) = values();
        let mut store = Store::new();
        let moment = sparse(&mut store, 40_000);
        let newest = Arc::new(Counting(Some(store.publish()), AtomicUsize::new(0)));
        let state = AsOf::new(moment, Arc::clone(&newest) as Arc<dyn Newest>);
        let answer = txn(state, values, ResponseHeader::default(), whole(&moment));
        let Ok(Answer::Pieces { len, mut source, .. }) = storage::block_on::block_on(answer) else {
            panic!("it is made in pieces");
        };
        newest.1.store(0, Ordering::Relaxed);
        let (mut made, mut turns) = (0, 0);
        while made < len {
            match source(BYTES_AT_ONCE, &mut Context::from_waker(std::task::Waker::noop())) {
                Poll::Ready(piece) => made += piece.expect("is made").expect("is not all").len(),
                Poll::Pending => turns += 1,
            }
            let slices = newest.1.swap(0, Ordering::Relaxed);
            assert!(slices <= 2, "{slices} slices in one turn");
        }
        assert!(turns > 40_000 / crate::services::walk::KEYS_PER_SLICE / 2, "{turns}");
    }

    #[test]
    fn a_write_whose_answer_was_overtaken_is_not_said_to_have_failed() {
        let (_log, values) = values();
        let mut store = Store::new();
        let moment = sparse(&mut store, 10);
        let gone = || AsOf::new(moment, Arc::new(Counting(None, AtomicUsize::new(0))));
        let header = ResponseHeader::default();
        let answer = || txn(gone(), Rc::clone(&values), header, whole(&moment));
        let refusal = |answer: Result<Answer, Status>| answer.map(|_| ()).expect_err("it was overtaken");
        assert_eq!(refusal(storage::block_on::block_on(written(answer()))), WRITTEN);
        assert_eq!(refusal(storage::block_on::block_on(answer())), error::COMPACTED);
        // The same holds if the member has installed another member's state.
        let other =
            || AsOf::new(moment, Arc::new(Counting(Some(Store::new().publish()), AtomicUsize::new(0))));
        let answer = || txn(other(), Rc::clone(&values), header, whole(&moment));
        assert_eq!(refusal(storage::block_on::block_on(written(answer()))), WRITTEN);
        assert_eq!(refusal(storage::block_on::block_on(answer())), REPLACED);
        let mut writer = store.begin();
        let deleted = writer.delete_range(KeyRange::of_request(b"key", b"l"), |_| {}) as i64;
        let revision = writer.finish();
        let request = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() };
        let previous = Read::Past(Box::new(Past { request, before: ChangeId::first_of(revision) }));
        let deletion =
            delete_range(gone(), Rc::clone(&values), header, Deleted { revision, deleted, previous });
        assert_eq!(refusal(storage::block_on::block_on(written(deletion))), WRITTEN);
    }

    #[test]
    fn a_write_that_reads_too_much_to_put_in_order_is_not_said_to_be_refused() {
        let (_log, values) = values();
        let mut store = Store::new();
        let moment = sparse(&mut store, 10);
        let newest = Arc::new(Counting(Some(store.publish()), AtomicUsize::new(0)));
        let mut outcome = whole(&moment);
        if let Some(OpOutcome::Range(Ranged { read: Read::Past(past), .. })) = outcome.responses.first_mut() {
            past.request.sort_target = 3;
        }
        let state = AsOf::new(moment, Arc::clone(&newest) as Arc<dyn Newest>);
        let mut evaluation = Evaluation { gather: 1, ..Evaluation::new(state, values) };
        let measured = storage::block_on::block_on(evaluation.measure_all(&outcome));
        let status = measured.map(|_| ()).expect_err("is too much");
        assert_eq!(
            (status.code, of_write(status.clone()).code),
            (Code::ResourceExhausted, Code::Unavailable)
        );
    }
}
