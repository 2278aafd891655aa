//! A disk that is full or nearly so: what still goes to the log, what waits, and the NOSPACE alarm that comes and goes
//! with the room.
//!
//! Room comes back by deletes, compactions, checkpoints and moving values, and each of them needs some first. So what is
//! left is given out in steps. With a segment of 2 MiB and `log.room()` as what is left:
//!
//! ```text
//! puts and lease grants           as long as the log has its spare file, and 2.6 MiB stay
//! deletes, revocations            as long as 1.1 MiB stay
//! moving live values              as long as 320 KiB stay
//! compactions, alarms, members    as long as 64 KiB stay
//! the member's own entries        to the last byte; what finds no room waits in `parked`
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest, TxnRequest};
use api::raftpb;
use bytes::Bytes;
use log::{Batch, Log, Refusal, Space};
use machine::Raised;
use prost::Message as _;

use super::proposals::Waiter;
use super::run::{Core, Syncing};
use storage::checkpointer::Order;
use storage::nospace::Cause;
use telemetry::logging::Value;

/// Pause before an alarm is proposed again.
const ALARM_PAUSE: Duration = Duration::from_secs(5);
/// How often the disk is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// With so many bytes free nothing is counted: more than ever waits for the log.
const PLENTY_BYTES: u64 = 1 << 30;
/// Bytes of values that are moved at once, at most.
const PORTION_BYTES: usize = 1 << 20;
/// Bytes waiting for the log beyond which entries of other members are dropped, as if lost on the way.
const RECEIVED_QUEUE_BYTES: usize = 128 << 20;

/// What a command needs the disk for, in the order in which they are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// It adds data: puts, also in a transaction, and grants of leases.
    Adds,
    /// It is small, or takes data away.
    Frees,
    /// It moves live values, so that their segments can go.
    Moves,
    /// It ends the shortage, or is about members: compactions, alarms, configuration changes.
    Mends,
    /// It is the member's own.
    Own,
}

/// A batch that the log had no room for. Raft takes it for one whose sync takes long.
struct Parked {
    batch: Batch,
    /// Raft's number of it.
    raft: u64,
    since: Instant,
}

/// What the core knows of the disk.
pub(super) struct Room {
    parked: VecDeque<Parked>,
    /// Bytes the file system gave when it was last looked at.
    free_bytes: u64,
    next_look: Instant,
    /// What raised this member's NOSPACE alarm, and what the note beside the log says.
    cause: Cause,
    noted: Cause,
    /// When the NOSPACE alarm was last proposed to be raised or cleared; it may have been lost on its way to the leader.
    proposed: Option<Instant>,
    /// Whether the checkpointer was told that it has to keep room for the next checkpoint.
    reserve_asked: bool,
    /// When a shortage may next have a checkpoint made.
    next_free: Instant,
}

impl Room {
    pub fn new(now: Instant, noted: Cause, log: &Log) -> Room {
        Room {
            parked: VecDeque::new(),
            free_bytes: log.free_bytes().unwrap_or(u64::MAX / 2),
            next_look: now,
            cause: noted,
            noted,
            proposed: None,
            reserve_asked: false,
            next_free: now,
        }
    }

    /// Since when the oldest batch has waited for room.
    pub fn parked_since(&self) -> Option<Instant> {
        self.parked.front().map(|parked| parked.since)
    }
}

impl Core {
    /// Hands the log a batch, or keeps it until the log takes it: batches stay in their order.
    pub(super) fn hand_to_log(&mut self, mut batch: Batch, raft: u64, now: Instant) -> Result<(), String> {
        if batch.reset.is_some() {
            // It voids what was to be written before, and may be what makes room. Raft's numbers count those before too.
            let parked = std::mem::take(&mut self.room.parked);
            let hard_state = parked.into_iter().rev().find_map(|parked| parked.batch.hard_state);
            batch.hard_state = batch.hard_state.or(hard_state);
        }
        if self.room.parked.is_empty() {
            self.hand_over_now(Parked { batch, raft, since: now })
        } else {
            self.room.parked.push_back(Parked { batch, raft, since: now });
            Ok(())
        }
    }

    fn hand_over_now(&mut self, parked: Parked) -> Result<(), String> {
        let Parked { batch, raft, since } = parked;
        match self.log.append(batch) {
            Ok(ticket) => self.syncing.push_back(Syncing { ticket, raft, since }),
            Err(refused) => match refused.reason {
                Refusal::NoSpace | Refusal::QueueFull if !planted::is(planted::Bug::FullLogFatal) => {
                    self.room.parked.push_front(Parked { batch: refused.batch, raft, since });
                }
                // The disk has failed, which the log tells by itself, or our own bug.
                reason => return Err(format!("the log takes no more: {reason:?}")),
            },
        }
        Ok(())
    }

    /// Has the log take what waits for it, as far as there is room.
    pub(super) fn retry_parked(&mut self) -> Result<(), String> {
        while let Some(parked) = self.room.parked.pop_front() {
            let waiting = self.room.parked.len();
            self.hand_over_now(parked)?;
            if self.room.parked.len() > waiting {
                break;
            }
        }
        Ok(())
    }

    /// Bytes that must stay in the log when something goes into it.
    fn kept_for_others(&self, purpose: Purpose) -> u64 {
        let segment = self.log.segment_room();
        let own = (segment / 8).min(64 << 10);
        own + match purpose {
            Purpose::Adds => segment + segment / 4,
            Purpose::Frees => segment / 2,
            Purpose::Moves => segment / 8,
            Purpose::Mends => 0,
            Purpose::Own => return 0,
        }
    }

    /// Whether the disk is so large that nothing has to be counted.
    pub(super) fn has_plenty(&self) -> bool {
        self.log.space() == Space::Ample && self.room.free_bytes >= PLENTY_BYTES
    }

    /// Bytes that the log takes beside what waits for it. What the file system is said to give counts where the log has
    /// found no shortage, but not for values that are moved: they must never be what the log waits with.
    fn left(&self, purpose: Purpose) -> u64 {
        let counts = self.log.space() == Space::Ample && purpose != Purpose::Moves;
        let free = if counts { self.room.free_bytes } else { 0 };
        let parked: usize = self.room.parked.iter().map(|parked| Log::bytes_of(&parked.batch)).sum();
        (self.log.room() + free).saturating_sub((self.log.queued_bytes() + parked) as u64)
    }

    /// Whether the disk has room for so many bytes more. On a large one this costs next to nothing.
    pub(super) fn has_room(&self, bytes: usize, purpose: Purpose) -> bool {
        if self.has_plenty() {
            return true;
        }
        if purpose == Purpose::Adds && self.log.space() != Space::Ample {
            return false;
        }
        // A record has a head, a hard state comes behind it, and it does not begin where a segment cannot hold all of it.
        self.left(purpose) >= bytes as u64 + 128 + self.kept_for_others(purpose)
    }

    /// Bytes of values that are moved at once: where room is short, few, so that each portion is held against it.
    pub(super) fn portion_bytes(&self) -> usize {
        let all = if self.has_plenty() { u64::MAX } else { self.log.segment_room() / 4 };
        usize::try_from(all).unwrap_or(usize::MAX).min(PORTION_BYTES)
    }

    /// Whether entries that a leader sent find room; if not, they are as good as lost on the way, and come again.
    pub(super) fn takes_entries(&self, entries: &[raftpb::Entry]) -> bool {
        if planted::is(planted::Bug::FullLogFatal) {
            return true;
        }
        if self.room.parked.is_empty() && self.has_plenty() && self.log.queued_bytes() < RECEIVED_QUEUE_BYTES
        {
            return true;
        }
        let bytes_of = |entry: &raftpb::Entry| 64 + entry.data.as_ref().map_or(0, Bytes::len);
        let bytes: usize = entries.iter().map(bytes_of).sum();
        let largest = entries.iter().map(bytes_of).max().unwrap_or(0);
        // A record that no segment holds makes a fresh one larger, in place of the spare files: what is left of the segment
        // in use does not help it.
        let segment = usize::try_from(self.log.segment_room()).unwrap_or(usize::MAX);
        let wasted = if largest > segment { segment } else { 0 };
        self.room.parked.is_empty()
            && self.log.queued_bytes() < RECEIVED_QUEUE_BYTES
            && self.has_room(bytes.saturating_add(wasted), Purpose::Frees)
    }

    /// Leaves those of the proposals that another member hands on that the disk has room for.
    pub(super) fn thin_out(&self, message: &mut raftpb::Message) {
        if self.has_plenty() {
            return;
        }
        let mut bytes = 0;
        message.entries.retain(|entry| {
            let data = entry.data.as_ref();
            let with = bytes + 64 + data.map_or(0, Bytes::len);
            let change = entry.r#type.unwrap_or(0) != raftpb::EntryType::EntryNormal as i32;
            let purpose = if change { Purpose::Mends } else { data.map_or(Purpose::Own, purpose_of) };
            let fits = self.has_room(with, purpose);
            bytes = if fits { with } else { bytes };
            fits
        });
    }

    /// Looks at the disk now and then: raises and clears the alarm, and has room won back where it is short.
    pub(super) fn look_at_disk(&mut self, now: Instant) {
        if now < self.room.next_look {
            return;
        }
        self.room.next_look = now + LOOK_INTERVAL;
        // A file system that does not say counts as one with plenty.
        self.room.free_bytes = self.log.free_bytes().unwrap_or(u64::MAX / 2);
        // As long as there is some room that can be kept for checkpoints.
        if self.has_plenty() {
            self.room.reserve_asked = false;
        } else if !self.room.reserve_asked {
            self.room.reserve_asked = self.orders.try_send(Order::Reserve).is_ok();
        }
        if self.log.space() != Space::Ample {
            self.raise_no_space(Cause::Disk, now);
        }
        self.look_at_alarm(now);
        self.note_cause();
        if self.is_tight()
            && now >= self.room.next_free
            && self.checkpoint.frees_at.is_none()
            && self.has_garbage()
        {
            self.room.next_free = now + ALARM_PAUSE;
            self.checkpoint.frees_at = Some(now);
        }
    }

    /// Whether garbage is worth winning back however little it is.
    pub(super) fn is_tight(&self) -> bool {
        self.log.space() != Space::Ample || self.room.free_bytes < 4 * u64::from(self.log.segment_bytes())
    }

    /// Raises the NOSPACE alarm for this member.
    pub(super) fn raise_no_space(&mut self, cause: Cause, now: Instant) {
        let own = self.shared.identity.member_id;
        let alarm = AlarmType::Nospace as i32;
        // An alarm that the quota has raised stays its own. Of one of which nothing is known, what is short now is the
        // cause.
        let raised = self.machine.alarms.is_raised(alarm, own);
        // Of two that come before the alarm is raised, the quota is the one that needs a client.
        let known = match self.room.cause {
            Cause::Nothing => false,
            Cause::Disk => raised,
            Cause::Quota => raised || self.room.proposed.is_some(),
        };
        if !known && cause != self.room.cause {
            self.room.cause = cause;
            self.note_cause();
        }
        if !self.machine.alarms.any(alarm) {
            self.propose_alarm(AlarmAction::Activate, now);
        }
    }

    /// An alarm was raised or cleared, so none is under way. The entry that raises this member's NOSPACE says what has
    /// raised it: a member that was restarted before it had noted that reads it there, since no checkpoint has the entry
    /// before the note is written.
    pub(super) fn alarms_changed(&mut self, raised: Option<Raised>) {
        let proposed = self.room.proposed.take().is_some();
        let (alarm, own) = (AlarmType::Nospace as i32, self.shared.identity.member_id);
        let raised = raised.filter(|raised| (raised.alarm, raised.member_id) == (alarm, own));
        let said = raised.and_then(|raised| Cause::of_entry(raised.cause));
        // Of two that come before the alarm is raised, the quota is the one that needs a client.
        if let Some(cause) = said
            && !(proposed && self.room.cause == Cause::Quota)
            && !planted::is(planted::Bug::AlarmCauseForgotten)
        {
            self.room.cause = cause;
        } else if !proposed && !self.machine.alarms.is_raised(alarm, own) {
            self.room.cause = Cause::Nothing;
        }
        self.note_cause();
    }

    /// Clears the NOSPACE alarm that the disk had raised once it has room again. One that the quota raised stays until
    /// a client disarms it, as in etcd; so does one of which nothing is noted.
    fn look_at_alarm(&mut self, now: Instant) {
        let raised = self.machine.alarms.is_raised(AlarmType::Nospace as i32, self.shared.identity.member_id);
        let quiet = self.room.proposed.is_none_or(|at| now.saturating_duration_since(at) >= ALARM_PAUSE);
        if !raised {
            if quiet && self.log.space() == Space::Ample {
                self.room.cause = Cause::Nothing;
            }
            return;
        }
        // More than what brings the alarm back at once.
        let segment = u64::from(self.log.segment_bytes());
        let roomy = self.log.space() == Space::Ample && self.room.free_bytes >= 2 * segment;
        let within = self.shared.limits.quota_bytes.is_none_or(|quota| self.machine.in_use_bytes() < quota);
        let stays = planted::is(planted::Bug::DiskAlarmStays);
        if self.room.cause == Cause::Disk && !stays && roomy && within && self.leader != 0 && quiet {
            self.logger.info("the disk has room again: clearing the NOSPACE alarm that it had raised", &[]);
            self.propose_alarm(AlarmAction::Deactivate, now);
        }
    }

    fn propose_alarm(&mut self, action: AlarmAction, now: Instant) {
        let proposed = self.room.proposed.is_some_and(|at| now.saturating_duration_since(at) < ALARM_PAUSE);
        if proposed || self.leader == 0 {
            return;
        }
        self.room.proposed = Some(now);
        let alarm = AlarmRequest {
            action: action as i32,
            member_id: self.shared.identity.member_id,
            alarm: AlarmType::Nospace as i32,
        };
        let alarm_cause = match action {
            AlarmAction::Activate => self.room.cause.in_entry(),
            _ => 0,
        };
        let request =
            InternalRaftRequest { alarm: Some(alarm), alarm_cause, ..InternalRaftRequest::default() };
        self.propose_own(request, Waiter::Nobody);
    }

    /// Has it noted beside the log what raised the alarm, so that the next process knows; whether the checkpointer was told, and
    /// does it before anything else that it is told from now on.
    pub(super) fn note_cause(&mut self) -> bool {
        if self.room.noted != self.room.cause && self.orders.try_send(Order::Note(self.room.cause)).is_ok() {
            self.room.noted = self.room.cause;
            self.logger.debug("noted what raised NOSPACE", &[("cause", Value::Str(self.room.cause.name()))]);
        }
        self.room.noted == self.room.cause
    }
}

/// What a command needs the disk for.
pub(super) fn purpose_of(data: &Bytes) -> Purpose {
    // What does not decode is refused elsewhere.
    let Ok(request) = InternalRaftRequest::decode(data.clone()) else { return Purpose::Adds };
    if request.put.is_some() || request.lease_grant.is_some() {
        return Purpose::Adds;
    }
    if request.compaction.is_some() || request.alarm.is_some() || request.cluster_member_attr_set.is_some() {
        return Purpose::Mends;
    }
    if request.txn.is_some_and(|txn| puts(&txn)) { Purpose::Adds } else { Purpose::Frees }
}

/// Whether a transaction may put something, at any depth.
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
    use api::etcdserverpb::{CompactionRequest, DeleteRangeRequest, PutRequest, RequestOp};

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
}
