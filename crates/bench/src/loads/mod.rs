//! Defines the loads of etcd's benchmark, one file per kind of load, with the same keys and requests as
//! etcd's tool sends.

pub mod authenticate;
pub(crate) mod connections;
pub(crate) mod fleet;
pub mod index;
pub mod kubernetes;
pub mod lease;
pub mod leases;
pub mod range;
pub mod stm;
pub mod watch;
pub mod write;

use stdx::Random;

/// Returns a generator of random numbers. It is seeded by the clock, so each run has different numbers;
/// different values of `salt` give different generators within a run.
pub fn random_from_clock(salt: u64) -> Random {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64);
    Random::new(nanos ^ salt.rotate_left(32))
}
