//! Tracks, for a leader, the appends in flight to each follower, and the fetches of old entries from the log
//! for each follower.

use std::collections::{BTreeMap, btree_map};

use raft::eraftpb;

use crate::event::Fetch;
use crate::window::Window;

/// Windows of appends, and fetches of old entries, by follower. All of this data belongs to one term in which
/// this node leads.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    /// Term to which the other fields belong.
    term: u64,
    windows: BTreeMap<u64, Window>,
    /// Fetches that have not been answered yet, by follower.
    fetching: BTreeMap<u64, Fetch>,
    /// Fetches that are queued and not handed to the caller yet.
    fetches: Vec<Fetch>,
}

impl Followers {
    /// If the term has changed, or if this node does not lead, drops all data and returns true.
    pub fn begin_term(&mut self, term: u64, leads: bool) -> bool {
        let is_over = !leads || self.term != term;
        if is_over {
            self.term = term;
            self.windows.clear();
            self.fetching.clear();
            self.fetches.clear();
        }
        is_over
    }

    /// Drops the windows and fetches of members for which `stays` returns false.
    pub fn retain(&mut self, stays: impl Fn(u64) -> bool) {
        self.windows.retain(|id, _| stays(*id));
        self.fetching.retain(|id, _| stays(*id));
    }

    /// Adds an append to the window of its follower. Returns the append if it may be sent now; otherwise the
    /// window holds it back.
    pub fn offer(&mut self, append: eraftpb::Message, bytes_max: usize) -> Option<eraftpb::Message> {
        self.windows.entry(append.to).or_default().offer(append, bytes_max)
    }

    /// Returns the windows by follower.
    pub fn windows(&mut self) -> impl Iterator<Item = (u64, &mut Window)> {
        self.windows.iter_mut().map(|(id, window)| (*id, window))
    }

    /// Releases one more append to a follower that answers heartbeats but acknowledges no appends, see
    /// [`Window::nudge`].
    pub fn nudge(&mut self, id: u64, tick: u64) -> Option<eraftpb::Message> {
        self.windows.get_mut(&id)?.nudge(tick)
    }

    /// Returns true if an append without entries may be sent to a follower that has answered a heartbeat, see
    /// [`Window::may_repeat`].
    pub fn may_repeat(&mut self, id: u64, tick: u64) -> bool {
        self.windows.entry(id).or_default().may_repeat(tick)
    }

    /// Queues a fetch, unless an earlier fetch for this follower is not answered yet.
    pub fn fetch(&mut self, fetch: Fetch) {
        if let btree_map::Entry::Vacant(free) = self.fetching.entry(fetch.to.0) {
            free.insert(fetch);
            self.fetches.push(fetch);
        }
    }

    /// Records the answer to a fetch. Returns false if the fetch is no longer wanted.
    pub fn fetched(&mut self, fetch: Fetch) -> bool {
        let is_awaited = self.fetching.get(&fetch.to.0) == Some(&fetch);
        if is_awaited {
            self.fetching.remove(&fetch.to.0);
        }
        is_awaited
    }

    /// Returns true if a fetch is queued.
    pub fn has_fetches(&self) -> bool {
        !self.fetches.is_empty()
    }

    /// Removes and returns the queued fetches.
    pub fn take_fetches(&mut self) -> Vec<Fetch> {
        std::mem::take(&mut self.fetches)
    }
}

#[cfg(test)]
mod tests {
    use numbers::{Index, MemberId};

    use super::*;

    #[test]
    fn a_follower_has_one_fetch_at_a_time_and_none_of_an_earlier_term() {
        let fetch = |to, first| Fetch { to: MemberId(to), first: Index(first), last: Index(9), bytes_max: 1 };
        let mut followers = Followers::default();
        assert!(followers.begin_term(4, true) && !followers.begin_term(4, true));
        followers.fetch(fetch(2, 1));
        followers.fetch(fetch(2, 5));
        followers.fetch(fetch(3, 5));
        assert_eq!(followers.take_fetches(), [fetch(2, 1), fetch(3, 5)]);
        assert!(!followers.fetched(fetch(2, 5)) && followers.fetched(fetch(2, 1)));
        followers.retain(|id| id != 3);
        assert!(!followers.fetched(fetch(3, 5)), "the member is gone");
        followers.fetch(fetch(2, 5));
        assert!(followers.begin_term(5, true) && !followers.has_fetches());
        assert!(followers.begin_term(5, false) && followers.begin_term(5, false), "it does not lead");
    }
}
