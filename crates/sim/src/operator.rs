//! The operator of the cluster: replaces lost members, adds, promotes and removes others, and runs
//! maintenance.
//!
//! Every response may be lost; then the operator lists the members before it continues.

mod calls;

use std::collections::BTreeSet;

use crate::network::Host;

/// Kind of the call that the operator waits for.
enum Doing {
    /// Member list; true if the list is linearizable.
    List(bool),
    Add,
    Change,
    Other,
}

/// Member as the last list shows it.
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
    /// Ids of members whose removal was requested, whether or not it succeeded.
    removing: BTreeSet<u64>,
    voters_wanted: usize,
    /// Places where a member's addition was requested.
    adding: BTreeSet<Host>,
}

impl Operator {
    /// Returns true if the removal of this member was requested.
    pub fn is_removed(&self, id: u64) -> bool {
        self.removing.contains(&id)
    }

    /// Makes the operator list the members before its next action.
    pub fn look_again(&mut self) {
        self.fresh = false;
    }

    /// Returns true if the cluster has all wanted voters, no learner, and no pending addition.
    pub fn is_whole(&self) -> bool {
        let voters = self.listed.iter().filter(|member| !member.learner).count();
        self.fresh && voters >= self.voters_wanted && voters == self.listed.len() && self.adding.is_empty()
    }
}
