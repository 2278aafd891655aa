//! The options of the leader's checks.

use std::time::Duration;

/// The options of the checks that the leader makes regularly.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time between checks if a downgrade has finished; zero switches these checks off.
    pub downgrade_check_interval: Duration,
    /// Time between comparisons of the data of all members; zero switches these comparisons off.
    pub corrupt_check_interval: Duration,
    /// Time between comparisons of the members' hashes at the last compaction; zero switches these
    /// comparisons off.
    pub compact_hash_check_interval: Duration,
}
