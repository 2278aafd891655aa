//! What etcd's benchmark does, command by command, with its keys and its requests.

pub mod authenticate;
pub mod index;
pub mod lease;
pub mod range;
pub mod stm;
pub mod watch;
pub mod write;

use stdx::Random;

/// Random numbers that differ from run to run, and for each purpose (`salt`) within one.
pub fn random_from_clock(salt: u64) -> Random {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64);
    Random::new(nanos ^ salt.rotate_left(32))
}
