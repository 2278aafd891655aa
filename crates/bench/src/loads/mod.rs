//! The loads of etcd's benchmark, one file per command, with the same keys and requests.

pub mod authenticate;
pub mod index;
pub mod lease;
pub mod range;
pub mod stm;
pub mod watch;
pub mod write;

use stdx::Random;

/// Returns a random generator that is different in each run. Within a run, each `salt` gives a different
/// generator.
pub fn random_from_clock(salt: u64) -> Random {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64);
    Random::new(nanos ^ salt.rotate_left(32))
}
