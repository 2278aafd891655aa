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

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Rate at which the budget grows: a small part of what the disk of a server can write.
const BYTES_PER_SECOND: u64 = 8 << 20;
/// An order is given only once the budget is this many times the size of a segment, so that several segments
/// share the checkpoint that follows.
const SEGMENTS_MIN: u64 = 4;
/// Maximum number of segments that one order empties.
pub(super) const SEGMENTS_MAX: usize = 16;
/// An order is given only once the budget is this many times the size of the checkpoint that follows, so that
/// most of what is written are values, if [`SEGMENTS_MAX`] segments have as many.
const CHECKPOINTS_MIN: u64 = 4;

/// The budget, and the segments that it was spent on.
pub(super) struct Tidying {
    budget_bytes: u64,
    /// Time up to which the budget has grown.
    grown: Instant,
    /// Segments that were ordered to be emptied, each with its live bytes at that time. A segment in which no
    /// value has been moved or removed since is not ordered again: its values cannot be read.
    ordered: BTreeMap<u32, u64>,
    /// Segments of the order that has not ended.
    current: Vec<u32>,
}

impl Tidying {
    /// Returns an empty budget, as it is when the member starts.
    pub fn new(now: Instant) -> Tidying {
        Tidying { budget_bytes: 0, grown: now, ordered: BTreeMap::new(), current: Vec::new() }
    }

    /// Lets the budget grow up to `now`, and returns it if it is large enough for an order. `whole_bytes` is
    /// the size of the checkpoint that must follow.
    pub fn budget(&mut self, segment_bytes: u32, whole_bytes: u64, now: Instant) -> Option<u64> {
        let segment_bytes = u64::from(segment_bytes);
        let most = (SEGMENTS_MAX as u64 * segment_bytes).saturating_add(whole_bytes);
        let enough =
            most.min((SEGMENTS_MIN * segment_bytes).max(CHECKPOINTS_MIN.saturating_mul(whole_bytes)));
        // The time is counted in milliseconds. What is left of a millisecond counts at the next call.
        let millis = now.saturating_duration_since(self.grown).as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        self.grown += Duration::from_millis(millis);
        let grown = self.budget_bytes.saturating_add(millis.saturating_mul(BYTES_PER_SECOND / 1000));
        // There is nothing to save up for: an order is given as soon as there is enough for it.
        self.budget_bytes = grown.min(enough);
        (grown >= enough).then_some(enough)
    }

    /// Returns true if the segment, which has this many live bytes, was ordered to be emptied before, and
    /// nothing in it has changed since.
    pub fn is_left_alone(&self, segment: u32, live_bytes: u64) -> bool {
        self.ordered.get(&segment) == Some(&live_bytes)
    }

    /// Records that segments, given with their live bytes, were ordered to be emptied, and spends the budget.
    /// Forgets the segments that no longer exist.
    pub fn ordered(&mut self, segments: &[(u32, u64)], exists: impl Fn(u32) -> bool) {
        self.ordered.retain(|segment, _| exists(*segment));
        self.ordered.extend(segments.iter().copied());
        self.current = segments.iter().map(|(segment, _)| *segment).collect();
        self.budget_bytes = 0;
    }

    /// Records that the order has ended. If `is_whole` is false, because some of the values could not be moved or
    /// another order came, its segments may be ordered again.
    pub fn ended(&mut self, is_whole: bool) {
        for segment in self.current.drain(..) {
            if !is_whole {
                self.ordered.remove(&segment);
            }
        }
    }

    /// Records that nothing can be tidied now: the next look is due when the budget is full again, because a
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
        assert_eq!(tidying.budget(64 << 20, 0, at(31_000)), None);
        assert_eq!(tidying.budget(64 << 20, 0, at(32_100)), Some(256 * MIB));
        // It is kept until it is spent, and does not grow further.
        assert_eq!(tidying.budget(64 << 20, 0, at(3_600_000)), Some(256 * MIB));
        assert_eq!(tidying.budget(64 << 20, 100 * MIB, at(3_600_000)), None, "the checkpoint is large");
        assert_eq!(tidying.budget(64 << 20, 100 * MIB, at(3_619_000)), Some(400 * MIB));
        tidying.ordered(&[(3, 30), (5, 50)], |_| true);
        assert_eq!(tidying.budget(64 << 20, 0, at(3_650_000)), None);
        let alone = |tidying: &Tidying, (segment, live)| tidying.is_left_alone(segment, live);
        assert_eq!([(3, 30), (3, 29), (4, 30)].map(|each| alone(&tidying, each)), [true, false, false]);
        tidying.ordered(&[(9, 90)], |segment| segment != 3);
        assert_eq!([(3, 30), (5, 50), (9, 90)].map(|each| alone(&tidying, each)), [false, true, true]);
        tidying.ended(true);
        assert!(alone(&tidying, (9, 90)), "its values cannot be read");
        tidying.ordered(&[(9, 90)], |_| true);
        tidying.ended(false);
        assert_eq!([(5, 50), (9, 90)].map(|each| alone(&tidying, each)), [true, false]);
        // Calls within a millisecond do not lose time.
        let mut often = Tidying::new(start);
        let grown = (0..=100_000)
            .find(|tenths| often.budget(1 << 20, 0, start + Duration::from_micros(100 * tenths)).is_some());
        assert_eq!(grown, Some(5010), "4 MiB take half a second");
    }

    #[test]
    fn the_budget_does_not_exceed_what_an_order_can_spend() {
        let start = Instant::now();
        let mut tidying = Tidying::new(start);
        let years = start + Duration::from_secs(100 * 365 * 86_400);
        assert_eq!(tidying.budget(64 << 20, 6400 * MIB, years), Some(1024 * MIB + 6400 * MIB));
        assert_eq!(tidying.budget(u32::MAX, u64::MAX, years), None, "time has ended");
    }
}
