//! Decides when segments that hold only a little garbage are emptied.
//!
//! Segments that are mostly garbage are emptied at once (`space.rs`), which keeps the log below one and a
//! half times its live data. Below that, emptying costs much and frees little: of a segment that is 15 % dead,
//! 5.7 bytes are written for each byte that becomes free. So the remaining garbage is removed slowly, with a
//! budget of bytes that grows with time ([`BYTES_PER_SECOND`]), until it is a tenth of the live data.
//!
//! # Example
//!
//! 30 GB of live data in segments of 67 MB, each 13 % dead, and an index whose checkpoint has 100 MB. After
//! 50 s the budget is 400 MB: four checkpoints, which is more than four segments. Five segments are emptied.
//! Their 290 MB of live values are written again, then a whole checkpoint, and the five files of 335 MB are
//! deleted: 45 MB have become free. After twenty such orders, which take a quarter of an hour and write 8 GB,
//! less than 3 GB are dead.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use log::Log;

/// Rate at which the budget grows: a small part of what the disk of a server can write.
const BYTES_PER_SECOND: u64 = 8 << 20;
/// An order is given only once the budget is this many times the size of a segment, so that several segments
/// share the checkpoint that follows.
const SEGMENTS_MIN: u64 = 4;
/// An order is given only once the budget is this many times the size of the checkpoint that follows, so that
/// most of what is written are values.
const CHECKPOINTS_MIN: u64 = 4;

/// The budget, and the segments that it was spent on.
pub(super) struct Tidying {
    budget_bytes: u64,
    /// Time up to which the budget has grown.
    grown: Instant,
    /// Segments that were ordered to be emptied. None is ordered twice: a segment that stays has a value
    /// that cannot be read.
    ordered: BTreeSet<u32>,
}

impl Tidying {
    /// Returns an empty budget, as it is when the member starts.
    pub fn new(now: Instant) -> Tidying {
        Tidying { budget_bytes: 0, grown: now, ordered: BTreeSet::new() }
    }

    /// Lets the budget grow up to `now`, and returns it if it is large enough for an order. `whole_bytes` is
    /// the size of the checkpoint that must follow.
    pub fn budget(&mut self, log: &Log, whole_bytes: u64, now: Instant) -> Option<u64> {
        self.grow(u64::from(log.segment_bytes()), whole_bytes, now)
    }

    fn grow(&mut self, segment_bytes: u64, whole_bytes: u64, now: Instant) -> Option<u64> {
        let enough = (SEGMENTS_MIN * segment_bytes).max(CHECKPOINTS_MIN.saturating_mul(whole_bytes));
        // The time is counted in milliseconds. What is left of a millisecond counts at the next call.
        let millis = now.saturating_duration_since(self.grown).as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        self.grown += Duration::from_millis(millis);
        let grown = self.budget_bytes.saturating_add(millis.saturating_mul(BYTES_PER_SECOND / 1000));
        // There is nothing to save up for: an order is given as soon as there is enough for it.
        self.budget_bytes = grown.min(enough);
        (grown >= enough).then_some(enough)
    }

    /// Returns true if the segment was ordered to be emptied before.
    pub fn was_ordered(&self, segment: u32) -> bool {
        self.ordered.contains(&segment)
    }

    /// Records that segments were ordered to be emptied, and spends the budget. Forgets segments below
    /// `oldest`, which the log no longer has.
    pub fn ordered(&mut self, segments: &[u32], oldest: u32) {
        self.ordered = self.ordered.split_off(&oldest);
        self.ordered.extend(segments);
        self.budget_bytes = 0;
    }

    /// Records that there was nothing to tidy: the next look is due when the budget is full again, because a
    /// look visits all segments.
    pub fn found_nothing(&mut self) {
        self.budget_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_budget_grows_with_time_and_is_spent_by_an_order() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut tidying = Tidying::new(start);
        assert_eq!(tidying.grow(64 * MIB, 0, at(31_000)), None);
        assert_eq!(tidying.grow(64 * MIB, 0, at(32_100)), Some(256 * MIB));
        // It is kept until it is spent, and does not grow further.
        assert_eq!(tidying.grow(64 * MIB, 0, at(3_600_000)), Some(256 * MIB));
        assert_eq!(tidying.grow(64 * MIB, 100 * MIB, at(3_600_000)), None, "the checkpoint is large");
        assert_eq!(tidying.grow(64 * MIB, 100 * MIB, at(3_619_000)), Some(400 * MIB));
        tidying.ordered(&[3, 5], 0);
        assert_eq!(tidying.grow(64 * MIB, 0, at(3_650_000)), None);
        assert!(tidying.was_ordered(3) && !tidying.was_ordered(4) && tidying.was_ordered(5));
        tidying.ordered(&[9], 4);
        assert!(!tidying.was_ordered(3) && tidying.was_ordered(5) && tidying.was_ordered(9));
        // Calls within a millisecond do not lose time.
        let mut often = Tidying::new(start);
        let grown = (0..=100_000)
            .find(|tenths| often.grow(MIB, 0, start + Duration::from_micros(100 * tenths)).is_some());
        assert_eq!(grown, Some(5010), "4 MiB take half a second");
    }

    #[test]
    fn sizes_that_nobody_has_do_not_overflow() {
        let start = Instant::now();
        let mut tidying = Tidying::new(start);
        let years = start + Duration::from_secs(100 * 365 * 86_400);
        assert_eq!(tidying.grow(u64::from(u32::MAX), u64::MAX, years), None);
    }
}
