//! Limits the payload bytes in flight to one follower.

use std::collections::VecDeque;

use raft::eraftpb;

use crate::tail::payload_bytes;

/// The appends to one follower that it has not acknowledged, and appends that wait until fewer bytes are in
/// flight.
///
/// The raft crate limits the number of appends in flight, not their bytes. While `bytes_max` bytes or more
/// are in flight, this type holds back further appends, and later releases them in order. No append is lost:
/// raft limits the number of appends that are held back, counts them as in flight, and makes them again when
/// it starts probing the follower; then [`Window::clear`] drops those held back here.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Last index and size in bytes of each append in flight.
    sent: VecDeque<(u64, usize)>,
    sent_bytes: usize,
    held: VecDeque<eraftpb::Message>,
    /// The tick of the last call of [`Window::nudge`] that released an append.
    nudged: u64,
    /// The tick of the last call of [`Window::may_repeat`] that returned true.
    repeated: u64,
}

impl Window {
    /// Adds an append. Returns it if it may be sent now; otherwise it is held back.
    pub fn offer(&mut self, message: eraftpb::Message, bytes_max: usize) -> Option<eraftpb::Message> {
        if let Some(last) = self.held.back_mut() {
            if message.entries.is_empty() {
                // An append without entries only carries the commit index, and must not overtake the appends
                // that are held back. So its commit index is put into the last append that is held back.
                last.commit = last.commit.max(message.commit);
            } else {
                self.held.push_back(message);
            }
            return None;
        }
        if !message.entries.is_empty() && self.sent_bytes >= bytes_max {
            self.held.push_back(message);
            return None;
        }
        self.count(&message);
        Some(message)
    }

    fn count(&mut self, message: &eraftpb::Message) {
        if let Some(last) = message.entries.last() {
            let bytes = message.entries.iter().map(payload_bytes).sum::<usize>();
            self.sent.push_back((last.index, bytes));
            self.sent_bytes += bytes;
        }
    }

    /// Records that the follower has all entries up to `matched`, and returns the appends that may be sent
    /// now.
    pub fn acknowledge(&mut self, matched: u64, bytes_max: usize) -> Vec<eraftpb::Message> {
        while let Some(&(last, bytes)) = self.sent.front()
            && last <= matched
        {
            self.sent_bytes -= bytes;
            self.sent.pop_front();
        }
        let mut free = Vec::new();
        while self.sent_bytes < bytes_max
            && let Some(message) = self.held.pop_front()
        {
            self.count(&message);
            free.push(message);
        }
        free
    }

    /// Releases one more append. Must be called when the follower responds to heartbeats but acknowledges no
    /// appends, because appends may have been lost: the response to one more append shows raft the loss. The
    /// raft crate does the same when its own limit is reached. At most one append per tick is released,
    /// because heartbeats are also sent with every read.
    pub fn nudge(&mut self, tick: u64) -> Option<eraftpb::Message> {
        if std::mem::replace(&mut self.nudged, tick) == tick {
            return None;
        }
        let message = self.held.pop_front()?;
        self.count(&message);
        Some(message)
    }

    /// Returns true if an append without entries may be sent because the follower has answered a heartbeat
    /// but not acknowledged all entries: its response shows raft if entries or acknowledgements were lost.
    /// True at most once per tick, because heartbeats are also sent with every read, and while writes are in
    /// flight each of them would cause such an append.
    pub fn may_repeat(&mut self, tick: u64) -> bool {
        std::mem::replace(&mut self.repeated, tick) != tick
    }

    /// Drops all appends, because raft probes this follower again and will make new appends.
    pub fn clear(&mut self) {
        *self = Window::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(index: u64, commit: u64, bytes: usize) -> eraftpb::Message {
        let mut message = eraftpb::Message { commit, ..eraftpb::Message::default() };
        if bytes > 0 {
            let entry = eraftpb::Entry { index, data: vec![0; bytes].into(), ..eraftpb::Entry::default() };
            message.set_entries(vec![entry].into());
        }
        message
    }

    fn indexes(messages: &[eraftpb::Message]) -> Vec<u64> {
        messages.iter().map(|m| m.entries.last().map_or(0, |e| e.index)).collect()
    }

    #[test]
    fn appends_wait_for_room_and_leave_in_order() {
        let mut window = Window::default();
        assert!(window.offer(append(1, 0, 60), 100).is_some());
        assert!(window.offer(append(2, 0, 60), 100).is_some());
        assert!(window.offer(append(3, 0, 60), 100).is_none());
        assert!(window.offer(append(4, 0, 10), 100).is_none());
        assert!(window.offer(append(0, 2, 0), 100).is_none());
        assert!(window.acknowledge(0, 100).is_empty());
        let free = window.acknowledge(1, 100);
        assert_eq!(indexes(&free), [3]);
        let free = window.acknowledge(2, 100);
        assert_eq!(indexes(&free), [4]);
        assert_eq!(free[0].commit, 2, "the commit index travels with the last append");
        assert!(window.held.is_empty());
    }

    #[test]
    fn a_silent_follower_is_nudged_and_a_probed_one_starts_over() {
        let mut window = Window::default();
        assert!(window.offer(append(1, 0, 100), 100).is_some());
        assert!(window.offer(append(2, 0, 1), 100).is_none());
        assert!(window.offer(append(3, 0, 1), 100).is_none());
        assert!(window.nudge(5).is_some());
        assert!(window.nudge(5).is_none(), "one a tick");
        assert!(window.nudge(6).is_some());
        assert!(window.nudge(7).is_none(), "nothing is held");
        assert!(window.may_repeat(5) && !window.may_repeat(5) && window.may_repeat(6), "one a tick");
        assert!(window.offer(append(4, 0, 1), 100).is_none());
        window.clear();
        assert!(window.offer(append(3, 0, 1), 100).is_some());
    }
}
