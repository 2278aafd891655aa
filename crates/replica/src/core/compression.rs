//! Decides when values in old segments of the log are compressed ([`Compression`]). `space.rs` chooses the
//! segments; the checkpointer samples them, and compresses those for which it pays.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time between two surveys for segments that could be compressed. A survey looks at the list of segments only.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time until the next survey after an order that ended early: its segments are judged again from the
/// beginning.
const AGAIN: Duration = Duration::from_secs(30);

/// Tracks which segments were given to the checkpointer to be compressed.
///
/// A segment is given to the checkpointer once. Either its values are moved, compressed, and the segment is
/// deleted; or compression is not worth it, and the segment is remembered so that it is not sampled again. The
/// list holds only numbers of existing segments, and is lost in a restart, after which a segment that is not
/// worth it is sampled once more.
pub(super) struct Compression {
    /// Segments that were given to the checkpointer.
    judged: BTreeSet<u32>,
    /// Segments of the order that the checkpointer has received and not finished.
    ordered: Vec<u32>,
    next_at: Instant,
}

impl Compression {
    pub fn new(now: Instant) -> Compression {
        Compression { judged: BTreeSet::new(), ordered: Vec::new(), next_at: now + INTERVAL }
    }

    /// Returns true if it is time for a survey, and the checkpointer is not busy with an earlier order.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.ordered.is_empty() && now >= self.next_at;
        if is_due {
            self.next_at = now + INTERVAL;
        }
        is_due
    }

    /// Returns true if the segment was given to the checkpointer.
    pub fn is_judged(&self, segment: u32) -> bool {
        self.judged.contains(&segment)
    }

    /// Records that the checkpointer has received an order for these segments. Forgets the segments that no
    /// longer exist.
    pub fn ordered(&mut self, segments: Vec<u32>, exists: impl Fn(u32) -> bool) {
        self.judged.retain(|segment| exists(*segment));
        self.judged.extend(&segments);
        self.ordered = segments;
    }

    /// Records that an order of the checkpointer has ended. If `is_whole` is false, because some of the values could
    /// not be moved or another order came, the segments are given to the checkpointer again after a pause.
    pub fn ended(&mut self, is_whole: bool, now: Instant) {
        for segment in self.ordered.drain(..) {
            if !is_whole {
                self.judged.remove(&segment);
                self.next_at = now + AGAIN;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_given_once_unless_its_values_could_not_be_moved() {
        let start = Instant::now();
        let mut compression = Compression::new(start);
        assert!(!compression.is_due(start) && compression.is_due(start + INTERVAL));
        assert!(!compression.is_due(start + INTERVAL), "it was due a moment ago");
        compression.ordered(vec![3, 4], |_| true);
        assert!(!compression.is_due(start + 9 * INTERVAL), "the checkpointer is busy");
        compression.ended(true, start + 9 * INTERVAL);
        assert!(compression.is_due(start + 9 * INTERVAL));
        compression.ordered(vec![5], |segment| segment != 3);
        assert_eq!(compression.judged, BTreeSet::from([4, 5]), "3 is gone");
        compression.ended(false, start + 10 * INTERVAL);
        assert_eq!(compression.judged, BTreeSet::from([4]), "5 is tried again");
        let again = start + 10 * INTERVAL + AGAIN;
        assert!(!compression.is_due(again - INTERVAL) && compression.is_due(again));
    }
}
