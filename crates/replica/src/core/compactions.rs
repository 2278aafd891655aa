//! The parts of the core that compact: automatic compactions, which this member proposes as the leader, and
//! the removal of versions after each compaction.

use std::time::{Duration, Instant};

use numbers::Revision;

use super::compactor::{AutoCompaction, Compactor};
use super::removal::Removal;

/// Decides about compactions and about the removal of versions.
pub(super) struct Compactions {
    /// Decides when this member, as the leader, proposes an automatic compaction.
    pub automatic: Compactor,
    /// Decides when versions that compactions made unreadable are removed.
    pub removal: Removal,
}

impl Compactions {
    /// Returns the state after a start with this compact revision. `pause` is the pause between two slices of
    /// a removal.
    pub fn new(mode: AutoCompaction, compacted: Revision, pause: Duration, now: Instant) -> Compactions {
        Compactions { automatic: Compactor::new(mode, now), removal: Removal::new(compacted, pause, now) }
    }
}
