//! Limits how often the same message is logged, so that a fault that occurs a million times per second does
//! not fill the disk.

use std::sync::atomic::{AtomicU64, Ordering};

use super::settings::Level;

/// Number of lines with the same message that may be written in one second.
#[derive(Clone, Copy)]
pub(super) struct Allowance {
    /// Number of lines with the same message that are all written in each second.
    burst: u64,
    /// After the first `burst` lines, one in this many lines is written for the rest of the second; `None` if
    /// no further line is written.
    every: Option<u64>,
}

impl Allowance {
    /// Allowance for messages about the member itself.
    pub(super) const OWN: Allowance = Allowance { burst: 100, every: Some(100) };
    /// Allowance for messages that any client or peer can cause.
    pub(super) const OF_STRANGERS: Allowance = Allowance { burst: 10, every: None };
}

/// Number of slots in the table of counts. Messages are distributed over the slots by their hash; messages in
/// the same slot share one allowance. The number bounds the memory.
const PLACES: usize = 1024;

/// Counts the lines with the same message in each second, in bounded memory and without a lock.
pub(super) struct RepeatLimit {
    places: Box<[Place]>,
}

#[derive(Default)]
struct Place {
    /// Second to which the counts belong: seconds since the start of the log, plus one; 0 if there are no
    /// counts yet.
    second: AtomicU64,
    seen: AtomicU64,
    suppressed: AtomicU64,
}

impl RepeatLimit {
    pub(super) fn new() -> RepeatLimit {
        RepeatLimit { places: (0..PLACES).map(|_| Place::default()).collect() }
    }

    /// Counts a line. Returns `None` if the line must be left out; otherwise the number of lines in its slot
    /// that were left out since the last one that was written.
    ///
    /// The limit is approximate: two threads that are the first in a new second may each reset the count.
    pub(super) fn admit(
        &self,
        level: Level,
        message: &str,
        second: u64,
        allowance: Allowance,
    ) -> Option<u64> {
        let place = &self.places[place_of(level, message)];
        let second = second + 1;
        if place.second.swap(second, Ordering::Relaxed) != second {
            place.seen.store(0, Ordering::Relaxed);
        }
        let seen = place.seen.fetch_add(1, Ordering::Relaxed);
        let Allowance { burst, every } = allowance;
        if seen < burst || every.is_some_and(|every| (seen - burst + 1).is_multiple_of(every)) {
            return Some(place.suppressed.swap(0, Ordering::Relaxed));
        }
        place.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Returns the index of the slot for a message: the FNV-1a hash of the level and the message, modulo the
/// number of slots.
fn place_of(level: Level, message: &str) -> usize {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in [level as u8].into_iter().chain(message.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    (hash % PLACES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_written_then_every_hundredth_and_a_new_second_begins_anew() {
        let limit = RepeatLimit::new();
        let admitted: Vec<u64> =
            (0..1000).filter_map(|_| limit.admit(Level::Warn, "m", 0, Allowance::OWN)).collect();
        assert_eq!(admitted.len(), 100 + 9);
        assert_eq!(admitted.iter().sum::<u64>(), 9 * 99);
        assert_eq!(
            limit.admit(Level::Info, "m", 0, Allowance::OWN),
            Some(0),
            "another level has its own allowance"
        );
        assert_eq!(limit.admit(Level::Warn, "m", 1, Allowance::OWN), Some(0));
    }

    #[test]
    fn what_was_left_out_is_told_in_the_next_second() {
        let limit = RepeatLimit::new();
        for _ in 0..150 {
            limit.admit(Level::Warn, "m", 7, Allowance::OWN);
        }
        assert_eq!(limit.admit(Level::Warn, "m", 8, Allowance::OWN), Some(50));
    }
    #[test]
    fn what_strangers_cause_is_written_ten_times_a_second() {
        let limit = RepeatLimit::new();
        let admit = |second| limit.admit(Level::Warn, "m", second, Allowance::OF_STRANGERS);
        assert_eq!((0..100_000).filter_map(|_| admit(3)).collect::<Vec<_>>(), [0; 10]);
        assert_eq!(admit(4), Some(99_990));
        assert_eq!(admit(4), Some(0));
    }
}
