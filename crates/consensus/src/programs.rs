//! Detects from the messages of the other members whether they run Mainstay or etcd.

use std::collections::BTreeMap;

/// Facts that the messages of other members have shown about their programs, with the terms to which these
/// facts belong.
///
/// A leader learns them from the responses of the members, a follower from the announcements of its leader.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// Term whose leader has announced that it binds proposals to their term.
    bound_term: u64,
    /// Term in which the last heartbeat of the leader announced that no voter runs etcd.
    no_etcd_term: u64,
    /// True if this node has followed a leader that runs etcd since the last call of
    /// [`Programs::take_followed_etcd`].
    followed_etcd: bool,
    /// For each member that has responded to this leader: true if its last response shows that it does not
    /// run etcd. Empty if this node does not lead.
    runs_mainstay: BTreeMap<u64, bool>,
    /// Term to which the answers in `runs_mainstay` belong.
    answers_term: u64,
}

impl Programs {
    /// Records that the leader of this term binds proposals to their term.
    pub fn binds(&mut self, term: u64) {
        self.bound_term = term;
    }

    /// Returns true if the leader of this term has announced that it binds proposals to their term.
    pub fn is_bound(&self, term: u64) -> bool {
        self.bound_term == term
    }

    /// Records a heartbeat of the leader of this term: `no_etcd` says that the heartbeat announces that no
    /// voter runs etcd, and `is_etcd` that the leader itself runs etcd.
    pub fn heartbeat(&mut self, term: u64, no_etcd: bool, is_etcd: bool) {
        self.no_etcd_term = if no_etcd { term } else { 0 };
        self.followed_etcd |= is_etcd;
    }

    /// Returns true if the leader's last heartbeat of this term has announced that no voter runs etcd.
    pub fn has_no_etcd(&self, term: u64) -> bool {
        self.no_etcd_term == term
    }

    /// Returns true if this node has followed a leader that runs etcd since the last call.
    pub fn take_followed_etcd(&mut self) -> bool {
        std::mem::take(&mut self.followed_etcd)
    }

    /// Records a member's response to the leader of this term, which is this node.
    pub fn answered(&mut self, from: u64, term: u64, runs_mainstay: bool) {
        if self.answers_term != term {
            self.answers_term = term;
            self.runs_mainstay.clear();
        }
        self.runs_mainstay.insert(from, runs_mainstay);
    }

    /// Returns `Some(true)` if the member's last response shows that it does not run etcd; `None` if the
    /// member has not responded in this term.
    pub fn runs_mainstay(&self, id: u64, term: u64) -> Option<bool> {
        self.runs_mainstay.get(&id).copied().filter(|_| self.answers_term == term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_ends_with_its_term() {
        let mut programs = Programs::default();
        programs.binds(3);
        programs.heartbeat(3, true, false);
        assert!(programs.is_bound(3) && programs.has_no_etcd(3));
        assert!(!programs.is_bound(4) && !programs.has_no_etcd(4));
        programs.heartbeat(3, false, true);
        assert!(!programs.has_no_etcd(3));
        assert!(programs.take_followed_etcd() && !programs.take_followed_etcd());
        programs.answered(2, 4, true);
        assert_eq!((programs.runs_mainstay(2, 4), programs.runs_mainstay(2, 5)), (Some(true), None));
        programs.answered(3, 5, false);
        assert_eq!((programs.runs_mainstay(2, 5), programs.runs_mainstay(3, 5)), (None, Some(false)));
    }
}
