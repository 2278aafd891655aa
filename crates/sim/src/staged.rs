//! Defines the staged faults, which wait until a certain operation is in flight, and happen at that moment.

mod steps;

use crate::network::Host;
use crate::profile::Fault;
use crate::schedule::Nanos;

/// State of the staged faults.
#[derive(Default)]
pub(crate) struct Staged {
    /// Fault that waits for a suitable call of a client.
    lurks: Option<Fault>,
    /// Follower that is cut off, and the time until which the simulator waits for it to fall behind.
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
    /// Ends the wait for the snapshot: the follower should have installed one by now.
    Late(Host),
    /// Ends this member's process: by a power failure if true, otherwise by a kill.
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
    /// Grants this number of leases at this member at the same time.
    Crowd(Host, u64),
    /// Revokes this number of the crowd's leases at the same time.
    Disperse(Host, u64),
    /// Retires this member, and drops all messages that it has sent and that have not arrived.
    Vanish(Host),
}

impl Staged {
    /// Returns true if other faults must not happen now, because they would disturb a staged fault.
    pub fn is_delicate(&self) -> bool {
        self.leaving.is_some()
    }

    /// Returns true if a staged fault waits for this member to make progress.
    pub fn waits_for(&self, at: Host) -> bool {
        self.leaving == Some(at) || self.back && self.stranded.is_some_and(|(stranded, _)| stranded == at)
    }

    /// Records the time at which a fault happened.
    pub fn disturbed(&mut self, now: Nanos) {
        self.fault_at = now;
    }

    /// Makes a fault wait for a suitable call.
    pub fn lurk(&mut self, fault: Fault) {
        self.lurks = Some(fault);
    }

    /// Records that the operator's call to remove a member was answered, so the leader no longer has to end.
    pub fn removal_ended(&mut self) {
        self.leaving = None;
    }
}
