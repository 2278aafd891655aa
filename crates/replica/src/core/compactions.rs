//! Groups the two parts of the core that compact: one decides about automatic compactions, which this member
//! proposes as the leader; the other removes versions of keys after each compaction.

use std::time::{Duration, Instant};

use numbers::Revision;

use super::compactor::{AutoCompaction, Compactor};
use super::removal::{self, Removal};

/// Decides when to compact, and when to remove the versions of keys that compactions made unreadable.
pub(super) struct Compactions {
    /// Decides when this member, as the leader, proposes an automatic compaction.
    pub automatic: Compactor,
    /// Decides when versions that compactions made unreadable are removed.
    pub removal: Removal,
    /// Maximum number of versions that a removal removes in one turn.
    pub versions_per_slice: u64,
}

impl Compactions {
    /// Returns both parts as they are when a member starts whose compact revision is `compacted`. A removal
    /// removes at most `batch_limit` versions per `interval`.
    pub fn new(
        mode: AutoCompaction,
        compacted: Revision,
        (batch_limit, interval): (u64, Duration),
        now: Instant,
    ) -> Compactions {
        let (versions_per_slice, pause) = removal::slices(batch_limit, interval);
        Compactions {
            automatic: Compactor::new(mode, now),
            removal: Removal::new(compacted, pause, now),
            versions_per_slice,
        }
    }
}
