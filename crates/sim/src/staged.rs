//! Faults that wait for their moment: a certain operation has to be in flight when they happen.

mod steps;

use crate::network::Host;
use crate::profile::Fault;
use crate::schedule::Nanos;

/// State of the staged faults.
#[derive(Default)]
pub(crate) struct Staged {
    /// Fault that waits for a client's call.
    lurks: Option<Fault>,
    /// Follower that is cut off, and the time at which the wait for its lag ends.
    stranded: Option<(Host, Nanos)>,
    /// True if the stranded follower is connected again and installs a snapshot next.
    back: bool,
    /// Leader that ends as soon as it has applied its own removal.
    leaving: Option<Host>,
    /// Time of the last fault.
    fault_at: Nanos,
}

/// Next step of a staged fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Cuts off this follower.
    CutOff(Host),
    /// Checks if the follower is so far behind that it needs a snapshot.
    Behind(Host),
    /// Connects the follower again.
    Back(Host),
    /// Gives up waiting: the follower should have installed a snapshot by now.
    Late(Host),
    /// Ends this member's process, by loss of power if true, else by a kill.
    End(Host, bool),
    /// Ends the leader's process abruptly.
    Depose,
    /// Asks the leader's process to shut down cleanly.
    Stop,
    /// Writes a key at this member.
    Write(Host),
    /// Revokes a lease at this member, on behalf of a client that does not own the lease.
    Revoke(Host, i64),
    /// Renews the revoked lease at this member, on behalf of its owner.
    Renew(Host, i64),
    /// Grants this number of leases at this member at once.
    Crowd(Host, u64),
    /// Revokes this number of the crowd's leases at once.
    Disperse(Host, u64),
    /// Retires this member, and loses everything it has sent that has not arrived.
    Vanish(Host),
}

impl Staged {
    /// Returns true if no other fault may happen now.
    pub fn is_delicate(&self) -> bool {
        self.leaving.is_some()
    }

    /// Returns true if a step waits for the progress of this member.
    pub fn waits_for(&self, at: Host) -> bool {
        self.leaving == Some(at) || self.back && self.stranded.is_some_and(|(stranded, _)| stranded == at)
    }

    /// Records the time of a fault.
    pub fn disturbed(&mut self, now: Nanos) {
        self.fault_at = now;
    }

    /// Makes a fault wait for its moment.
    pub fn lurk(&mut self, fault: Fault) {
        self.lurks = Some(fault);
    }

    /// Records that the operator's call was answered.
    pub fn removal_ended(&mut self) {
        self.leaving = None;
    }
}
