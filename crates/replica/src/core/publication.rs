//! What the core publishes for other threads in addition to the view, and when.

use std::sync::Arc;
use std::time::Instant;

use consensus::RaftStatus;
use machine::auth::Auth;
use machine::{Alarms, Machine};
use numbers::{Index, Revision};

use crate::stages::Positions;

/// Tables that every published state shares, and the positions for the stages of writes.
///
/// Copying a table for each published state was rejected: a state is published per batch, and these tables
/// change rarely. So they are copied when they change.
pub(super) struct Publication {
    /// True if something has changed that the newest published state does not show, other than an applied
    /// entry.
    is_due: bool,
    /// Raised alarms as of their last change.
    pub alarms: Arc<Alarms>,
    /// Users and roles as of their last change.
    pub auth: Arc<Auth>,
    /// Index of the newest entry that this member's disk has.
    synced: Index,
    /// Time at which the log had written the entries that it synced last.
    written: Option<Instant>,
    /// Positions for which the stages of writes were recorded last.
    noted: Option<Positions>,
}

impl Publication {
    /// Returns the state after a start: the first turn publishes.
    pub fn new(machine: &Machine) -> Publication {
        Publication {
            is_due: true,
            alarms: Arc::new(machine.alarms.clone()),
            auth: Arc::new(machine.auth.clone()),
            synced: Index(0),
            written: None,
            noted: None,
        }
    }

    /// Records that this turn has to publish a state.
    pub fn request(&mut self) {
        self.is_due = true;
    }

    /// Returns true if this turn has to publish a state.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// Records that a state is published.
    pub fn done(&mut self) {
        self.is_due = false;
    }

    /// Takes over alarms that have changed.
    pub fn alarms_changed(&mut self, machine: &Machine) {
        self.alarms = Arc::new(machine.alarms.clone());
    }

    /// Takes over users and roles that have changed.
    pub fn auth_changed(&mut self, machine: &Machine) {
        self.auth = Arc::new(machine.auth.clone());
    }

    /// Records how far the log is on disk, and the time at which it was written, if that is known.
    pub fn synced(&mut self, last: Index, written: Option<Instant>) {
        self.synced = last;
        self.written = written.or(self.written);
    }

    /// Returns the positions of this turn if they differ from those of the last. `published` is the index and
    /// the revision of the published state.
    pub fn note(&mut self, raft_status: RaftStatus, published: (Index, Revision)) -> Option<Positions> {
        let positions = Positions {
            last: raft_status.last,
            synced: self.synced,
            commit: raft_status.commit,
            published,
            written: self.written,
        };
        (self.noted.replace(positions) != Some(positions)).then_some(positions)
    }
}
