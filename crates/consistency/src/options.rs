//! Defines the options of the leader's regular checks.

use std::time::Duration;

/// Intervals of the checks that the leader makes regularly.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time between two checks whether a downgrade is complete; zero switches these checks off.
    pub downgrade_check_interval: Duration,
    /// Time between two comparisons of the hash of all data with the other members; zero switches these
    /// comparisons off.
    pub corrupt_check_interval: Duration,
    /// Time between two comparisons of the hashes of the last compactions with the other members; zero
    /// switches these comparisons off.
    pub compact_hash_check_interval: Duration,
}
