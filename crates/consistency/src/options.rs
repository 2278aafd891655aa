//! The options of the leader's checks.

use std::time::Duration;

/// The options of the checks that the leader makes regularly.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time between checks whether a downgrade is finished; zero turns them off.
    pub downgrade_check_interval: Duration,
    /// Time between comparisons of all members' data; zero turns them off.
    pub corrupt_check_interval: Duration,
    /// Time between comparisons of members' hashes at the last compaction; zero turns them off.
    pub compact_hash_check_interval: Duration,
}
