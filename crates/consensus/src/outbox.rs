//! Messages on their way out, and those that wait for the disk.

use std::collections::VecDeque;

use raft::eraftpb::{self, MessageType};

/// The most messages that wait for the disk. Beyond it the oldest are dropped: raft bears the loss of any message,
/// and the newest are those that still matter once a stalled disk moves again.
const WAITING_MAX: usize = 4096;

/// Holds back every message that promises something until the disk has what it promises.
///
/// The raft crate wants all messages of a follower to wait for the ready that they came with. That is safe, for a
/// message that leaves once everything up to its making is on disk is the same as one delayed by the network; and
/// it is more than is needed. What a crash can undo is the log, the term and the vote, hence:
///
/// * **An accepted append** says that the log has everything up to its index. If some of that is not on disk yet, the
///   message waits for the newest batch given out, its own or an earlier one, for it may promise entries of any of
///   them. If all of it is on disk, nothing but the term is promised.
/// * **A vote** rests on term and vote alone: it says that nobody else gets one in this term. A **request for votes** is
///   a vote for oneself, and says what the log holds; but no node campaigns before its whole log is on disk.
/// * **A granted pre-vote** promises nothing: the voter remembers nothing of it, and the one who gets it only starts
///   an election in which real votes count.
/// * **All others** rest on the term alone. That they wait for a change of term or vote is needed: a sole voter
///   becomes leader before its vote for itself is on disk, and if it told its learners of entries in that term and
///   crashed, it would lead the same term again with other entries. A heartbeat's answer acknowledges the leader's
///   term, which must not be forgotten and given to an older leader; a rejection or a forwarded request tells at most
///   the term. Entries do not matter to any of these, so a linearizable read never waits behind a write's sync. The
///   commit index is not among the promises: it is only sent by leaders, who computed it from what is on disks. Only
///   that the removal of a member is committed nobody may forget: all that is said from then on waits for it, reads and
///   a hand-over included.
///
/// # Example: a follower in term 3 whose log is on disk through entry 10
///
/// ```text
/// gets entries 11, 12       batch 7 goes to the log
/// posts append ok 12        promises 12 > 10: waits for batch 7
/// posts append ok 10        promises what is on disk: leaves at once
/// posts heartbeat answer    promises term 3, which is on disk: leaves at once
/// hears of term 4           batch 8 goes to the log, with the new term: all that follows waits for it
/// posts heartbeat answer    waits for batch 8
/// batch 7 synced            append ok 12 leaves
/// batch 8 synced            the heartbeat answer leaves
/// ```
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// The newest batch given out.
    newest: u64,
    /// The newest batch given out that every message waits for: it changes term or vote, or with it the removal of a
    /// member is committed.
    newest_for_all: u64,
    /// The newest batch on disk.
    synced: u64,
    /// With the batch each waits for.
    waiting: VecDeque<(u64, eraftpb::Message)>,
    ready: Vec<eraftpb::Message>,
}

impl Outbox {
    /// A batch is given out for the log. Whether every message from now on waits for it: see [`Outbox::newest_for_all`].
    pub fn appended(&mut self, number: u64, holds_all: bool) {
        self.newest = number;
        if holds_all {
            self.newest_for_all = number;
        }
    }

    /// A batch and all before it are on disk.
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

    /// Takes a message; `persisted` is the newest entry known to be on disk here.
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

    /// Returns true if a proposal for another member has not gone yet.
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
