//! Simulates the operator of the cluster, who replaces members that lost their data, adds, promotes and
//! removes members, and runs maintenance.
//!
//! Any response may be lost. After a lost response, the operator lists the members before its next change.

mod calls;

use std::collections::BTreeSet;

use crate::network::Host;

/// Kind of the call that the operator waits for.
enum Doing {
    /// A request for the member list; true for a linearizable one.
    List(bool),
    Add,
    Change,
    Other,
}

/// Member as the last member list describes it.
#[derive(Clone, Debug)]
struct Listed {
    id: u64,
    place: Host,
    learner: bool,
    urls: Vec<String>,
}

/// The operator of the cluster.
#[derive(Default)]
pub(crate) struct Operator {
    pending: Option<(u64, Doing)>,
    listed: Vec<Listed>,
    /// True if no membership change was requested since the last list.
    fresh: bool,
    /// Ids of members whose removal was requested, whether the request succeeded or not.
    removing: BTreeSet<u64>,
    voters_wanted: usize,
    /// Places for which the addition of a member was requested.
    adding: BTreeSet<Host>,
}

impl Operator {
    /// Returns true if the removal of this member was requested.
    pub fn is_removed(&self, id: u64) -> bool {
        self.removing.contains(&id)
    }

    /// Records that an autopilot has removed this member.
    pub fn removed_by_autopilot(&mut self, id: u64) {
        self.removing.insert(id);
    }

    /// Makes the operator list the members before its next action.
    pub fn look_again(&mut self) {
        self.fresh = false;
    }

    /// Returns true if the last member list is up to date and has all wanted voters, and no addition is pending.
    /// Learners are allowed only if `with_learners` is true.
    pub fn is_whole(&self, with_learners: bool) -> bool {
        let voters = self.listed.iter().filter(|member| !member.learner).count();
        let has_learners = voters != self.listed.len();
        self.fresh
            && voters >= self.voters_wanted
            && (with_learners || !has_learners)
            && self.adding.is_empty()
    }
}
