//! Groups the two parts of the core that compact: one decides about automatic compactions, which this member
//! proposes as the leader; the other removes versions of keys after each compaction.

use std::time::{Duration, Instant};

use numbers::Revision;

use super::compactor::{AutoCompaction, Compactor};
use super::removal::Removal;

/// Decides when to compact, and when to remove the versions of keys that compactions made unreadable.
pub(super) struct Compactions {
    /// Decides when this member, as the leader, proposes an automatic compaction.
    pub automatic: Compactor,
    /// Decides when versions that compactions made unreadable are removed.
    pub removal: Removal,
}

impl Compactions {
    /// Returns both parts as they are when a member starts whose compact revision is `compacted`. `pause` is
    /// the pause between two slices of a removal.
    pub fn new(mode: AutoCompaction, compacted: Revision, pause: Duration, now: Instant) -> Compactions {
        Compactions { automatic: Compactor::new(mode, now), removal: Removal::new(compacted, pause, now) }
    }
}
