//! Keeps the outgoing messages, and holds each back until the data that it promises is on disk.

use std::collections::VecDeque;

use raft::eraftpb::{self, MessageType};

/// Maximum number of messages that wait for the disk. Beyond this number, the oldest messages are dropped:
/// raft tolerates the loss of any message, and only the newest messages matter once a disk that was stalled
/// works again.
const WAITING_MAX: usize = 4096;

/// Holds back every message that promises something until the disk has the promised data.
///
/// According to the raft crate, every message of a follower should wait until the batch made together with
/// the message is on disk. That is safe, because a message that is sent later looks like a message that the
/// network has delayed. But it is stricter than necessary. A message has to wait only for what it promises
/// and a crash can lose: log entries, the term and the vote. Hence:
///
/// * **An accepted append** promises that the log has everything up to its index. If some of these entries
///   are not on disk yet, the message waits for the newest batch, because it may promise entries of any batch
///   up to that one. If all of these entries are on disk, only the term is promised.
/// * **A vote** depends only on the term and the vote: it promises that no other candidate gets a vote of
///   this member in this term. A **request for votes** is a vote for the candidate itself, and announces
///   which entries its log has; but no node campaigns before its whole log is on disk.
/// * **A granted pre-vote** promises nothing: the voter does not store it, and the receiver only starts an
///   election in which real votes count.
/// * **All other messages** depend only on the term. They wait for a batch that changes the term or the vote:
///   a sole voter becomes leader before its vote for itself is on disk, and if it sent its learners entries
///   of that term and crashed, it would lead the same term again with other entries. The response to a
///   heartbeat acknowledges the leader's term; if a crash made the member forget that term, it could follow
///   an older leader. A rejection or a forwarded proposal contains at most the term.
///   A forwarded read acknowledges it, like a heartbeat response (`node/reads.rs`). None of these messages
///   depends on entries, so a linearizable read never waits for the sync of a write. The commit index is no
///   promise: only leaders send it, and they compute it from acknowledged syncs. The exception is the commit
///   of a member's removal, which no member may forget: all later messages, including reads and transfers of
///   leadership, wait until it is on disk.
///
/// # Example: a follower in term 3 whose log is on disk through entry 10
///
/// ```text
/// gets entries 11, 12       batch 7 goes to the log
/// posts append ok 12        promises 12 > 10: waits for batch 7
/// posts append ok 10        promises entries that are on disk: leaves immediately
/// posts heartbeat answer    promises term 3, which is on disk: leaves immediately
/// learns of term 4          batch 8 goes to the log, with the new term: all later messages wait for it
/// posts heartbeat answer    waits for batch 8
/// batch 7 synced            append ok 12 leaves
/// batch 8 synced            the heartbeat answer leaves
/// ```
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Number of the newest batch that was given to the caller.
    newest: u64,
    /// Number of the newest batch for which every message waits, because the batch changes the term or the
    /// vote, or makes the commit of a member's removal durable.
    newest_for_all: u64,
    /// Number of the newest batch on disk.
    synced: u64,
    /// Messages that wait, each with the number of the batch for which it waits.
    waiting: VecDeque<(u64, eraftpb::Message)>,
    ready: Vec<eraftpb::Message>,
}

impl Outbox {
    /// Records that a batch was given to the caller for the log. If `holds_all` is true, every later message
    /// waits for this batch, see [`Outbox::newest_for_all`].
    pub fn appended(&mut self, number: u64, holds_all: bool) {
        self.newest = number;
        if holds_all {
            self.newest_for_all = number;
        }
    }

    /// Records that a batch and all earlier batches are on disk.
    pub fn synced(&mut self, number: u64) {
        self.synced = self.synced.max(number);
        if self.waiting.is_empty() {
            return;
        }
        let synced = self.synced;
        let (free, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(need, _)| *need <= synced);
        self.waiting = waiting;
        let free: VecDeque<(u64, eraftpb::Message)> = free;
        self.ready.extend(free.into_iter().map(|(_, message)| message));
    }

    /// Returns true if this batch is on disk.
    pub fn is_synced(&self, number: u64) -> bool {
        number <= self.synced
    }

    /// Adds a message, which waits if it promises data that is not on disk yet. `persisted` is the index of
    /// the newest entry that is known to be on this member's disk.
    pub fn post(&mut self, message: eraftpb::Message, persisted: u64) {
        let promises_log = !planted::is(planted::Bug::PromiseBeforeSync)
            && message.get_msg_type() == MessageType::MsgAppendResponse
            && !message.reject
            && message.index > persisted;
        let need = if promises_log { self.newest } else { self.newest_for_all };
        if need <= self.synced {
            self.ready.push(message);
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((need, message));
    }

    /// Returns true if a proposal that is forwarded to another member has not been sent yet.
    pub fn holds_proposals(&self) -> bool {
        let mut all = self.ready.iter().chain(self.waiting.iter().map(|(_, message)| message));
        all.any(|message| message.get_msg_type() == MessageType::MsgPropose)
    }

    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    pub fn take(&mut self) -> Vec<eraftpb::Message> {
        std::mem::take(&mut self.ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: MessageType, index: u64) -> eraftpb::Message {
        let mut message = eraftpb::Message { index, ..eraftpb::Message::default() };
        message.set_msg_type(kind);
        message
    }

    fn indexes(outbox: &mut Outbox) -> Vec<u64> {
        outbox.take().iter().map(|m| m.index).collect()
    }

    #[test]
    fn what_waits_for_which_batch() {
        let mut outbox = Outbox::default();
        outbox.appended(1, true);
        outbox.post(message(MessageType::MsgRequestVoteResponse, 1), 0);
        outbox.appended(2, false);
        outbox.post(message(MessageType::MsgAppendResponse, 2), 1);
        outbox.post(message(MessageType::MsgHeartbeatResponse, 3), 1);
        outbox.post(message(MessageType::MsgAppendResponse, 1), 1);
        assert!(outbox.is_empty());
        outbox.synced(1);
        assert_eq!(indexes(&mut outbox), [1, 3, 1]);
        outbox.post(message(MessageType::MsgHeartbeatResponse, 4), 1);
        let rejection = eraftpb::Message { reject: true, ..message(MessageType::MsgAppendResponse, 9) };
        outbox.post(rejection, 1);
        assert_eq!(indexes(&mut outbox), [4, 9]);
        outbox.synced(2);
        assert_eq!(indexes(&mut outbox), [2]);
    }

    #[test]
    fn a_stalled_disk_does_not_fill_the_memory() {
        let mut outbox = Outbox::default();
        outbox.appended(1, false);
        let many = WAITING_MAX as u64 + 100;
        (1..=many).for_each(|index| outbox.post(message(MessageType::MsgAppendResponse, index), 0));
        outbox.synced(1);
        assert_eq!(indexes(&mut outbox), (101..=many).collect::<Vec<_>>());
    }
}
