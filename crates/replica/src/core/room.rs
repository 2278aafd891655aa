//! Decides, on a disk that is full or nearly full, which batches are given to the log and which wait. The
//! NOSPACE alarm that follows the free space is in `alarms.rs`.
//!
//! Deletes, compactions, checkpoints and moving values free space, but each of them first needs some space.
//! So a write for one purpose must leave a certain amount of space for the purposes after it. With a segment
//! of 2 MiB and `log.room()` as the remaining space, batches are accepted:
//!
//! ```text
//! puts and lease grants           if the log has its spare file, and at least 2.6 MiB stay free afterwards
//! deletes, revocations            if at least 1.1 MiB stay free
//! moving live values              if at least 320 KiB stay free
//! compactions, alarms, members    if at least 64 KiB stay free
//! the member's own entries        to the last byte; a batch without space waits in `parked`
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{InternalRaftRequest, TxnRequest};
use api::raftpb;
use bytes::Bytes;
use log::{Batch, Log, Refusal, Space};
use prost::Message as _;

use super::{Fatal, Shortage};

/// Minimum time between two checkpoints that are made because of a shortage.
const FREE_PAUSE: Duration = Duration::from_secs(5);
/// Interval at which the free space of the disk is checked.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Free bytes at which the space for single writes is not checked, because fewer bytes than this can ever
/// wait for the log.
const PLENTY_BYTES: u64 = 1 << 30;
/// Maximum bytes of values that are moved in one batch.
const PORTION_BYTES: usize = 1 << 20;
/// Number of segments that must fit on the disk in addition to another member's whole state. With less free
/// space the log could not prepare its next segments and would report a shortage. (Two segments may already
/// be in preparation while the disk is checked.)
const STATE_SEGMENTS_FREE: u64 = 4;
/// Bytes in the log's queue at which the core holds back proposals until the next sync.
const LOG_QUEUE_BYTES: usize = 64 << 20;
/// Bytes in the log's queue at which entries from other members are dropped, as if the network had lost them.
const RECEIVED_QUEUE_BYTES: usize = 128 << 20;
/// Bytes counted for an entry in addition to its data. The overhead of a record is smaller, so the result is
/// an upper bound.
const ENTRY_BYTES: usize = 64;
/// Bytes counted for each write, and for each moved value, in addition to the data. This is more than the
/// record and the batch's own records take. The unused rest of a segment, if it is too short for the next
/// record, is not included.
const WRITE_BYTES: usize = 128;

const _: () = assert!(Batch::RECORD_BYTES_MAX <= ENTRY_BYTES);
const _: () = assert!(Batch::RECORD_BYTES_MAX + Batch::OWN_BYTES <= WRITE_BYTES);

/// Purpose for which a command needs disk space. When space runs out, commands are refused in the order of
/// the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// The command adds data: puts, also in a transaction, and lease grants.
    Adds,
    /// The command removes data, or adds only a little.
    Frees,
    /// The write moves live values out of segments, so that the segments can be deleted.
    Moves,
    /// The command can end the shortage, or concerns members: compactions, alarms and membership changes.
    Mends,
    /// The entry is one of the member's own, which cannot be refused.
    Own,
}

/// A batch for which the log had no space. Raft treats it as a batch whose sync takes long.
struct ParkedBatch {
    batch: Batch,
    /// Number that raft has given to the batch.
    raft: u64,
    since: Instant,
}

/// A batch that the log is writing and syncing.
struct Syncing {
    /// Number that the log has given to the batch.
    ticket: u64,
    /// Number that raft has given to the batch; 0 if the batch does not come from raft.
    raft: u64,
    since: Instant,
}

/// The result of a check of the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskCheck {
    /// True if the checkpointer should be ordered to reserve space for the next checkpoint. After the order
    /// the core calls [`Room::reserved`].
    pub wants_reserve: bool,
    /// True if the log or the last checkpoint found its disk short of space.
    pub is_short: bool,
}

/// Tracks the batches on their way to the log, and the space that the disk has for further writes.
///
/// Batches are given to the log in order. A batch for which the log has no space waits here until the log
/// accepts it. A caller that wants to write more first checks [`Room::has`] with the [`Purpose`] of the
/// write.
pub(super) struct Room {
    parked: VecDeque<ParkedBatch>,
    /// Batches that the log is syncing, oldest first.
    syncing: VecDeque<Syncing>,
    /// Free bytes of the file system at the last check.
    free_bytes: u64,
    next_look: Instant,
    /// True if the checkpointer was ordered to reserve space for the next checkpoint.
    reserve_asked: bool,
    /// Refers to a token that an order to reserve space holds. While the token exists, the order is in the
    /// checkpointer's queue.
    reserve_queued: Weak<()>,
    /// True if the last checkpoint failed for lack of space. This counts as a shortage even if the log has
    /// space, because the data directory may be on another disk than the log (`--wal-dir`), and without
    /// checkpoints the log only grows.
    lacks_checkpoint: bool,
    /// Earliest time of the next checkpoint that is made because of a shortage.
    next_free: Instant,
}

impl Room {
    /// Returns the value for a member that starts: no batch is in flight.
    pub fn new(now: Instant, log: &Log) -> Room {
        Room {
            parked: VecDeque::new(),
            syncing: VecDeque::new(),
            free_bytes: log.free_bytes().unwrap_or(u64::MAX / 2),
            next_look: now,
            reserve_asked: false,
            reserve_queued: Weak::new(),
            lacks_checkpoint: false,
            next_free: now,
        }
    }

    /// Returns true if a batch waits for space.
    pub fn is_full(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Returns the time since when the oldest batch has waited for its sync or for space.
    pub fn oldest(&self) -> Option<Instant> {
        let syncing = self.syncing.front().map(|open| open.since);
        syncing.into_iter().chain(self.parked.front().map(|parked| parked.since)).min()
    }

    /// Gives a batch to the log. If the log has no space for it, or earlier batches wait, stores the batch
    /// until the log accepts it, so that batches stay in order. `raft` is the number that raft has given to
    /// the batch.
    ///
    /// # Errors
    ///
    /// [`Fatal::LogRefused`] if the log has failed, or refuses the batch for another reason than lack of
    /// space.
    pub fn hand(&mut self, log: &mut Log, mut batch: Batch, raft: u64, now: Instant) -> Result<(), Fatal> {
        if batch.reset.is_some() {
            // A reset replaces the contents of all waiting batches, and may free the missing space. So the
            // waiting batches are dropped, except for the newest hard state. When the reset is synced, raft
            // also counts the batches with lower numbers as synced.
            let parked = std::mem::take(&mut self.parked);
            let hard_state = parked.into_iter().rev().find_map(|parked| parked.batch.hard_state);
            batch.hard_state = batch.hard_state.or(hard_state);
        }
        if self.parked.is_empty() {
            self.hand_now(log, ParkedBatch { batch, raft, since: now })
        } else {
            self.parked.push_back(ParkedBatch { batch, raft, since: now });
            Ok(())
        }
    }

    fn hand_now(&mut self, log: &mut Log, parked: ParkedBatch) -> Result<(), Fatal> {
        let ParkedBatch { batch, raft, since } = parked;
        match log.append(batch) {
            Ok(ticket) => self.syncing.push_back(Syncing { ticket, raft, since }),
            Err(refused) => match refused.reason {
                Refusal::NoSpace | Refusal::QueueFull if !planted::is(planted::Bug::FullLogFatal) => {
                    self.parked.push_front(ParkedBatch { batch: refused.batch, raft, since });
                }
                // Either the disk has failed, which the log also reports as an event, or this is a bug in
                // Mainstay.
                reason => return Err(Fatal::LogRefused(reason)),
            },
        }
        Ok(())
    }

    /// Gives the waiting batches to the log, as many as there is space for.
    ///
    /// # Errors
    ///
    /// [`Fatal::LogRefused`] if the log has failed, or refuses a batch for another reason than lack of space.
    pub fn retry(&mut self, log: &mut Log) -> Result<(), Fatal> {
        while let Some(parked) = self.parked.pop_front() {
            let waiting = self.parked.len();
            self.hand_now(log, parked)?;
            if self.parked.len() > waiting {
                break;
            }
        }
        Ok(())
    }

    /// Gives values to the log in a batch that does not come from raft. Returns the log's number of the
    /// batch. Returns `None`, and drops the batch, if the log does not accept it now.
    pub fn hand_values(&mut self, log: &mut Log, values: Vec<log::Value>, now: Instant) -> Option<u64> {
        let ticket = log.append(Batch { values, ..Batch::default() }).ok()?;
        self.syncing.push_back(Syncing { ticket, raft: 0, since: now });
        Some(ticket)
    }

    /// Records that the batches whose log number is at most `ticket` are on disk. Returns raft's number of
    /// the newest of them that comes from raft.
    pub fn synced(&mut self, ticket: u64) -> Option<u64> {
        let mut raft = None;
        while let Some(front) = self.syncing.front()
            && front.ticket <= ticket
        {
            if front.raft != 0 {
                raft = Some(front.raft);
            }
            self.syncing.pop_front();
        }
        raft
    }

    /// Returns the bytes that must stay free in the log after a write for this purpose, because the purposes
    /// after it may need them.
    fn kept_for_others(log: &Log, purpose: Purpose) -> u64 {
        let segment = log.segment_room();
        let own = (segment / 8).min(64 << 10);
        own + match purpose {
            Purpose::Adds => segment + segment / 4,
            Purpose::Frees => segment / 2,
            Purpose::Moves => segment / 8,
            Purpose::Mends => 0,
            Purpose::Own => return 0,
        }
    }

    /// Records that a checkpoint was saved (true), or failed for lack of space (false).
    pub fn checkpointed(&mut self, found_room: bool) {
        self.lacks_checkpoint = !found_room;
    }

    /// Returns true if neither the log nor the last checkpoint found its disk short of space.
    pub fn is_ample(&self, log: &Log) -> bool {
        log.space() == Space::Ample && !self.lacks_checkpoint
    }

    /// Returns true if so much space is free that single writes need not be checked against it.
    pub fn has_plenty(&self, log: &Log) -> bool {
        self.is_ample(log) && self.free_bytes >= PLENTY_BYTES
    }

    /// Returns the bytes that the log can accept in addition to those that wait for it. Free bytes of the
    /// file system are included only if the log has found no shortage. They are never included for moved
    /// values, because the batch of moved values must not wait for the log to prepare a segment.
    fn left(&self, log: &Log, purpose: Purpose) -> u64 {
        let counts = log.space() == Space::Ample && purpose != Purpose::Moves;
        let free = if counts { self.free_bytes } else { 0 };
        let parked: usize = self.parked.iter().map(|parked| Log::bytes_of(&parked.batch)).sum();
        (log.room() + free).saturating_sub((log.queued_bytes() + parked) as u64)
    }

    /// Returns true if the disk has space for this many more bytes. With plenty of free space the answer is
    /// computed without adding up the waiting bytes.
    pub fn has(&self, log: &Log, bytes: usize, purpose: Purpose) -> bool {
        if self.has_plenty(log) {
            return true;
        }
        if purpose == Purpose::Adds && !self.is_ample(log) {
            return false;
        }
        self.left(log, purpose) >= (bytes + WRITE_BYTES) as u64 + Room::kept_for_others(log, purpose)
    }

    /// Returns the bytes that values take in the log, given the size in bytes of each value.
    pub fn bytes_of(values: impl Iterator<Item = usize>) -> usize {
        values.map(|bytes| bytes + WRITE_BYTES).sum()
    }

    /// Checks if the disk has space for this many bytes of another member's whole state, and returns the
    /// shortage if not.
    ///
    /// A received state is stored in addition to the current one. It must not use space that is reserved for
    /// shortages, and must leave so much free space that the log finds no shortage. Otherwise a NOSPACE alarm
    /// would make the whole cluster refuse writes, although client data did not cause the shortage.
    pub fn shortage_of_state(&mut self, log: &Log, bytes: u64) -> Option<Shortage> {
        // The free space is read again, because gigabytes may have been written since the last periodic
        // check.
        self.free_bytes = log.free_bytes().unwrap_or(u64::MAX / 2);
        let free_bytes = if self.is_ample(log) { self.free_bytes } else { 0 };
        let wanted_bytes = bytes.saturating_add(STATE_SEGMENTS_FREE * u64::from(log.segment_bytes()));
        (free_bytes < wanted_bytes).then_some(Shortage { free_bytes, wanted_bytes })
    }

    /// Returns the maximum bytes of values that are moved in one batch. When space is short, the batches are
    /// small, so that the free space is checked more often.
    pub fn portion_bytes(&self, log: &Log) -> usize {
        let all = if self.has_plenty(log) { u64::MAX } else { log.segment_room() / 4 };
        usize::try_from(all).unwrap_or(usize::MAX).min(PORTION_BYTES)
    }

    /// Returns true if there is space for entries that a leader sent. If there is none, the caller drops the
    /// entries, as if the network had lost them, and the leader sends them again.
    pub fn takes_entries(&self, log: &Log, entries: &[raftpb::Entry]) -> bool {
        if planted::is(planted::Bug::FullLogFatal) {
            return true;
        }
        if self.parked.is_empty() && self.has_plenty(log) && log.queued_bytes() < RECEIVED_QUEUE_BYTES {
            return true;
        }
        let bytes_of = |entry: &raftpb::Entry| ENTRY_BYTES + entry.data.as_ref().map_or(0, Bytes::len);
        let bytes: usize = entries.iter().map(bytes_of).sum();
        let largest = entries.iter().map(bytes_of).max().unwrap_or(0);
        // A record larger than a segment gets a new, larger segment, so the rest of the current segment is
        // wasted and must be counted.
        let segment = usize::try_from(log.segment_room()).unwrap_or(usize::MAX);
        let wasted = if largest > segment { segment } else { 0 };
        self.parked.is_empty()
            && log.queued_bytes() < RECEIVED_QUEUE_BYTES
            && self.has(log, bytes.saturating_add(wasted), Purpose::Frees)
    }

    /// Removes from the message the forwarded proposals for which the disk has no space.
    pub fn thin_out(&self, log: &Log, message: &mut raftpb::Message) {
        if self.has_plenty(log) {
            return;
        }
        let mut bytes = 0;
        message.entries.retain(|entry| {
            let data = entry.data.as_ref();
            let with = bytes + ENTRY_BYTES + data.map_or(0, Bytes::len);
            let change = entry.r#type.unwrap_or(0) != raftpb::EntryType::EntryNormal as i32;
            let purpose = if change { Purpose::Mends } else { data.map_or(Purpose::Own, purpose_of) };
            let fits = self.has(log, with, purpose);
            bytes = if fits { with } else { bytes };
            fits
        });
    }

    /// Returns true if the log can accept more data before its next sync.
    pub fn takes_more(log: &Log) -> bool {
        log.queued_bytes() < LOG_QUEUE_BYTES
    }

    /// Returns the maximum number of bytes that may wait for the log. When the disk is short of space, the
    /// result is smaller than usual.
    pub fn queued_bytes_max(&self, log: &Log) -> usize {
        if self.has_plenty(log) {
            LOG_QUEUE_BYTES
        } else {
            LOG_QUEUE_BYTES.min(log.segment_bytes() as usize / 4)
        }
    }

    /// Checks the disk, at most once per [`LOOK_INTERVAL`]; returns `None` if the interval has not passed.
    pub fn look(&mut self, log: &Log, now: Instant) -> Option<DiskCheck> {
        if now < self.next_look {
            return None;
        }
        self.next_look = now + LOOK_INTERVAL;
        // A file system that does not report its free space is treated as if it had plenty.
        self.free_bytes = log.free_bytes().unwrap_or(u64::MAX / 2);
        // The reserve is requested as soon as free space is no longer plentiful, because there must still be
        // space to reserve.
        let has_plenty = self.has_plenty(log);
        self.reserve_asked &= !has_plenty;
        let wants_reserve = !has_plenty && !self.reserve_asked || log.holds_room();
        Some(DiskCheck { wants_reserve, is_short: !self.is_ample(log) })
    }

    /// Returns a token that the caller puts into an order to reserve space for the next checkpoint. Returns
    /// `None` if such an order is already queued, so that the queue keeps space for other orders.
    pub fn order_of_reserve(&mut self) -> Option<Arc<()>> {
        if self.reserve_queued.strong_count() > 0 {
            return None;
        }
        let queued = Arc::new(());
        self.reserve_queued = Arc::downgrade(&queued);
        Some(queued)
    }

    /// Records that the checkpointer was ordered to reserve space for the next checkpoint.
    pub fn reserved(&mut self) {
        self.reserve_asked = true;
    }

    /// Returns true if so much space is free that the NOSPACE alarm, once cleared, would not immediately be
    /// raised again.
    pub fn is_roomy(&self, log: &Log) -> bool {
        let is_short = !self.is_ample(log) || log.holds_room();
        !is_short && self.free_bytes >= 2 * u64::from(log.segment_bytes())
    }

    /// Returns true if space is so short that even small amounts of garbage should be reclaimed.
    pub fn is_tight(&self, log: &Log) -> bool {
        log.space() != Space::Ample || self.free_bytes < 4 * u64::from(log.segment_bytes())
    }

    /// Returns true if the disk still has much space after this many bytes were written: twice what
    /// [`Room::is_tight`] counts as short.
    pub fn leaves_plenty(&self, log: &Log, bytes: u64) -> bool {
        self.free_bytes.saturating_sub(bytes) >= 8 * u64::from(log.segment_bytes())
    }

    /// Returns true if a checkpoint may be made now to free space, because space is short and the last such
    /// checkpoint is long enough ago.
    pub fn may_free(&self, log: &Log, now: Instant) -> bool {
        self.is_tight(log) && now >= self.next_free
    }

    /// Records that a checkpoint was made because of a shortage.
    pub fn freed(&mut self, now: Instant) {
        self.next_free = now + FREE_PAUSE;
    }
}

/// Returns the purpose for which a command needs disk space.
pub(super) fn purpose_of(data: &Bytes) -> Purpose {
    // A command that cannot be decoded is refused later. Until then it counts as adding data, so that the
    // strictest limit applies to it.
    let Ok(request) = InternalRaftRequest::decode(data.clone()) else { return Purpose::Adds };
    if request.put.is_some() || request.lease_grant.is_some() {
        return Purpose::Adds;
    }
    if request.compaction.is_some() || request.alarm.is_some() || request.cluster_member_attr_set.is_some() {
        return Purpose::Mends;
    }
    if request.txn.is_some_and(|txn| puts(&txn)) { Purpose::Adds } else { Purpose::Frees }
}

/// Returns true if the transaction, or a transaction nested in it, contains a put.
fn puts(txn: &TxnRequest) -> bool {
    let mut open = vec![txn];
    while let Some(txn) = open.pop() {
        for op in txn.success.iter().chain(&txn.failure) {
            match &op.request {
                Some(Op::RequestPut(_)) => return true,
                Some(Op::RequestTxn(txn)) => open.push(txn),
                _ => {}
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::etcdserverpb::{CompactionRequest, DeleteRangeRequest, PutRequest, RequestOp};

    use numbers::{ClusterId, Index, MemberId, Term};

    use super::*;

    #[test]
    fn puts_are_found_at_any_depth() {
        let op = |request| RequestOp { request: Some(request) };
        let mut txn = TxnRequest {
            failure: vec![op(Op::RequestDeleteRange(DeleteRangeRequest::default()))],
            ..TxnRequest::default()
        };
        let purpose = |request: InternalRaftRequest| purpose_of(&request.encode_to_vec().into());
        let of_txn = |txn: &TxnRequest| {
            purpose(InternalRaftRequest { txn: Some(txn.clone()), ..InternalRaftRequest::default() })
        };
        for _ in 0..20 {
            txn = TxnRequest { success: vec![op(Op::RequestTxn(txn))], ..TxnRequest::default() };
            assert_eq!(of_txn(&txn), Purpose::Frees);
        }
        let mut with_put =
            TxnRequest { failure: vec![op(Op::RequestPut(PutRequest::default()))], ..TxnRequest::default() };
        for _ in 0..20 {
            assert_eq!(of_txn(&with_put), Purpose::Adds);
            with_put = TxnRequest { success: vec![op(Op::RequestTxn(with_put))], ..TxnRequest::default() };
        }
        let compaction = Some(CompactionRequest::default());
        assert_eq!(purpose(InternalRaftRequest { compaction, ..Default::default() }), Purpose::Mends);
        assert!(Purpose::Adds < Purpose::Frees && Purpose::Frees < Purpose::Mends);
    }

    /// Returns a log without threads, on a disk in memory. Its queue has space for one batch with `entry`,
    /// but not for a second one.
    fn log() -> Log {
        let options = log::Options {
            segment_bytes: 16 << 10,
            by_hand: true,
            secret_seed: Some(1),
            queued_bytes_max: 1000,
            ..log::Options::new("/log", ClusterId(1), MemberId(2))
        };
        let disk = Arc::new(disk::MemDisk::new(1));
        let opened = Log::open(options, disk, Index(1), &mut |_| {}, Box::new(|_| {}));
        opened.unwrap_or_else(|e| panic!("{e}")).0
    }

    fn entry(index: u64) -> Batch {
        let data = Bytes::from(vec![7; 600]);
        Batch {
            entries: vec![log::Entry { term: Term(1), index: Index(index), entry_type: 0, data }],
            ..Batch::default()
        }
    }

    #[test]
    fn the_bytes_that_are_counted_cover_those_that_the_log_takes() {
        for (count, bytes) in [(1, 0), (1, 1), (3, 8), (5, 9), (2, 4095)] {
            let data = Bytes::from(vec![7; bytes]);
            let entry =
                |index| log::Entry { term: Term(1), index: Index(index), entry_type: 0, data: data.clone() };
            let entries: Vec<log::Entry> = (1..=count).map(entry).collect();
            let value =
                || log::Value { id: log::ValueId { main: 5, sub: 0 }, data: data.clone(), compressed: None };
            let values: Vec<log::Value> = (0..count).map(|_| value()).collect();
            let counted =
                entries.iter().map(|entry| ENTRY_BYTES + entry.data.len()).sum::<usize>() + WRITE_BYTES;
            assert!(Log::bytes_of(&Batch { entries, ..Batch::default() }) <= counted);
            let counted = Room::bytes_of(values.iter().map(|value| value.data.len()));
            assert!(Log::bytes_of(&Batch { values, ..Batch::default() }) <= counted);
        }
    }

    #[test]
    fn what_finds_no_room_goes_to_the_log_later_in_its_order() {
        let (mut log, start) = (log(), Instant::now());
        let mut room = Room::new(start, &log);
        assert_eq!(room.oldest(), None);
        for raft in 1..=3 {
            let now = start + Duration::from_secs(raft);
            room.hand(&mut log, entry(raft), raft, now).expect("it is taken or kept");
        }
        assert!(room.is_full(), "the log's queue is");
        assert_eq!(room.oldest(), Some(start + Duration::from_secs(1)));
        assert_eq!(room.synced(1), Some(1));
        assert_eq!(room.oldest(), Some(start + Duration::from_secs(2)));
        for raft in 2..=3 {
            assert!(room.is_full());
            log.turn();
            room.retry(&mut log).expect("it is taken or kept");
            assert_eq!(room.synced(raft), Some(raft), "the log numbers them as they came");
        }
        assert!(!room.is_full());
        log.turn();
        // Raft has no number for batches of values.
        let id = log::ValueId { main: 5, sub: 0 };
        let value = log::Value { id, data: Bytes::from_static(b"v"), compressed: None };
        assert_eq!(room.hand_values(&mut log, vec![value], start), Some(4));
        assert_eq!((room.synced(4), room.oldest()), (None, None));
    }
}
