//! Compactions: automatic ones that this member proposes, and the removal that follows each of them.

use std::time::{Duration, Instant};

use numbers::Revision;

use super::compactor::{AutoCompaction, Compactor};
use super::removal::Removal;

/// The compactions of the state.
pub(super) struct Compactions {
    /// Decides when a leader proposes an automatic compaction.
    pub automatic: Compactor,
    /// Decides when versions are removed that compactions made unreadable.
    pub removal: Removal,
}

impl Compactions {
    /// Returns the state after a start with this compact revision. `pause` is the pause between two slices of
    /// a removal.
    pub fn new(mode: AutoCompaction, compacted: Revision, pause: Duration, now: Instant) -> Compactions {
        Compactions { automatic: Compactor::new(mode, now), removal: Removal::new(compacted, pause, now) }
    }
}
