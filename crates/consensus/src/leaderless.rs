//! Queues forwarded proposals until a leader is known.

use raft::eraftpb;

use crate::tail::payload_bytes;

/// Maximum number of forwarded proposals that wait until a leader is known. Further proposals are not
/// accepted.
const LEADERLESS_MAX: usize = 1024;
/// Maximum bytes of forwarded proposals that wait until a leader is known. They are all sent at the same
/// time, so the limit is half of the send queue to a member, which leaves space for other messages.
const LEADERLESS_BYTES_MAX: usize = 8 << 20;

/// Memory in bytes of an entry in addition to its payload.
const ENTRY_BYTES: usize = 64;

/// Proposals that members which run etcd have forwarded, and that wait until a leader is known, in order of
/// arrival. A proposal that is bound to a leader's term is refused and not queued, except in a node with
/// `speaks_as_etcd`.
#[derive(Debug, Default)]
pub(crate) struct LeaderlessQueue {
    messages: Vec<eraftpb::Message>,
    /// Total bytes of the proposals in `messages`.
    bytes: usize,
    /// Tick at which the first proposal in `messages` arrived.
    since: u64,
}

impl LeaderlessQueue {
    /// Adds a proposal that arrived at this tick. Returns false if the limits are reached.
    pub fn push(&mut self, message: eraftpb::Message, tick: u64) -> bool {
        let bytes: usize = message.entries.iter().map(|entry| payload_bytes(entry) + ENTRY_BYTES).sum();
        let fits = self.messages.len() < LEADERLESS_MAX && self.bytes + bytes <= LEADERLESS_BYTES_MAX;
        if fits {
            if self.messages.is_empty() {
                self.since = tick;
            }
            self.bytes += bytes;
            self.messages.push(message);
        }
        fits
    }

    /// Returns true if no proposal waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the number of ticks for which the first proposal has waited.
    pub fn waited(&self, tick: u64) -> u64 {
        tick - self.since
    }

    /// Removes and returns all proposals.
    pub fn take(&mut self) -> Vec<eraftpb::Message> {
        self.bytes = 0;
        std::mem::take(&mut self.messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(bytes: usize) -> eraftpb::Message {
        let entry = eraftpb::Entry { data: vec![0; bytes].into(), ..eraftpb::Entry::default() };
        eraftpb::Message { entries: vec![entry].into(), ..eraftpb::Message::default() }
    }

    #[test]
    fn number_and_bytes_of_waiting_proposals_are_bounded() {
        let mut queue = LeaderlessQueue::default();
        assert!(queue.push(proposal(LEADERLESS_BYTES_MAX / 2), 3));
        assert!(!queue.push(proposal(LEADERLESS_BYTES_MAX / 2), 4), "the entry's own memory counts");
        assert_eq!(queue.waited(10), 7);
        assert_eq!((queue.take().len(), queue.is_empty()), (1, true));
        assert_eq!((0..2 * LEADERLESS_MAX).filter(|_| queue.push(proposal(0), 12)).count(), LEADERLESS_MAX);
        assert_eq!(queue.waited(12), 0);
    }
}
