//! Holds the data that the core publishes for other threads in addition to the view, and decides when a
//! publication is due.

use std::sync::Arc;
use std::time::Instant;

use consensus::RaftStatus;
use machine::auth::Auth;
use machine::{Alarms, Machine};
use numbers::{Index, Revision};

use crate::stages::Positions;

/// Tables that all published states share, and the log positions that are recorded for the stages of writes.
///
/// A state is published for each batch, but these tables change rarely. A table is copied only when it
/// changes, so most published states share the tables of the previous one.
pub(super) struct Publication {
    /// True if something other than an applied entry has changed since the newest state was published.
    is_due: bool,
    /// Raised alarms as of their last change.
    pub alarms: Arc<Alarms>,
    /// Users and roles as of their last change.
    pub auth: Arc<Auth>,
    /// Index of the newest entry on this member's disk.
    synced: Index,
    /// Time at which the last synced entries had been written to the log's file, just before their sync
    /// began; `None` before the first write.
    written: Option<Instant>,
    /// Positions that were returned last by [`Publication::note`].
    noted: Option<Positions>,
}

impl Publication {
    /// Returns the value for a member that starts; its first turn publishes.
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

    /// Makes this turn publish a state.
    pub fn request(&mut self) {
        self.is_due = true;
    }

    /// Returns true if this turn has to publish a state.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// Records that a state was published.
    pub fn done(&mut self) {
        self.is_due = false;
    }

    /// Copies the raised alarms for the next published states. Must be called when the alarms have changed.
    pub fn alarms_changed(&mut self, machine: &Machine) {
        self.alarms = Arc::new(machine.alarms.clone());
    }

    /// Copies the users and roles for the next published states. Must be called when they have changed.
    pub fn auth_changed(&mut self, machine: &Machine) {
        self.auth = Arc::new(machine.auth.clone());
    }

    /// Records the index of the last entry on disk and, if it is known, the time at which the write of the
    /// entries had ended.
    pub fn synced(&mut self, last: Index, written: Option<Instant>) {
        self.synced = last;
        self.written = written.or(self.written);
    }

    /// Returns the positions of this turn if they differ from those returned last. `published` is the log
    /// index and the revision of the published state.
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
