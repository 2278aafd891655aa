//! Who writes a batch to the log: the log's own thread, or the core.
//!
//! As a rule the log's thread does, so that the core never waits for a disk. But where one client writes alone, each write is
//! handed to that thread and back, and the two hand-overs take as much time as the sync, and half of the processor time. So a
//! member without others, whose core has nothing to do meanwhile, writes a batch of very few proposals by itself.
//!
//! The price is a disk that stalls: until it comes back the core answers nothing, so that no write that waits too long is refused.
//! Reads and nearly all renewals go on, which shards answer. (A member of a cluster, where others wait for its heartbeats, never writes by itself.) So a sync that
//! took long sends the next ones to the log's thread, for a time that goes by how long it took: a disk of which one sync in
//! thousands takes a few milliseconds, as nearly all have, is written to by the core nearly always.

use std::time::{Duration, Instant};

/// Proposals that a batch of the core's may have: more of them share what the hand-overs cost.
const FEW: usize = 2;
/// Bytes that such a batch may have.
pub(super) const FEW_BYTES: usize = 64 << 10;
/// A sync that takes so long is one during which the core might have had other things to do.
const LONG: Duration = Duration::from_millis(2);
/// After a long sync the log's thread writes for so many times its length: the core then stands still for syncs of up to 0.6 s for
/// a hundredth of the time, however often they come.
const PAUSE_FACTOR: u32 = 100;
/// A disk that stalled for long is tried again after this time.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Knows when the core should not write by itself.
#[derive(Debug)]
pub(super) struct Writing {
    not_before: Instant,
}

/// What is to be written, and by whom it is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occasion {
    /// True if the member leads and has no others, runs with threads, and does not stop.
    pub is_alone: bool,
    /// Proposals that are not applied.
    pub proposals: usize,
    /// Bytes that the log was given before and has not written.
    pub queued_bytes: usize,
}

impl Writing {
    /// Returns the state in which no sync took long.
    pub fn new(now: Instant) -> Writing {
        Writing { not_before: now }
    }

    /// Returns true if the core should write by itself what it is about to append.
    pub fn is_for_core(&self, occasion: Occasion, now: Instant) -> bool {
        occasion.is_alone
            && (1..=FEW).contains(&occasion.proposals)
            && occasion.queued_bytes == 0
            && now >= self.not_before
    }

    /// Notes how long a write of the core's took, with its sync.
    pub fn took(&mut self, time: Duration, now: Instant) {
        if time > LONG {
            self.not_before = now + time + time.saturating_mul(PAUSE_FACTOR).min(PAUSE_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_writes_little_alone_and_on_a_quick_disk() {
        let now = Instant::now();
        let mut writing = Writing::new(now);
        let alone = Occasion { is_alone: true, proposals: 1, queued_bytes: 0 };
        assert!(writing.is_for_core(alone, now));
        for other in [
            Occasion { is_alone: false, ..alone },
            Occasion { proposals: 0, ..alone },
            Occasion { proposals: FEW + 1, ..alone },
            Occasion { queued_bytes: 1, ..alone },
        ] {
            assert!(!writing.is_for_core(other, now), "{other:?}");
        }
        writing.took(LONG, now);
        assert!(writing.is_for_core(alone, now));
        for (stall, pause) in [
            (LONG + Duration::from_millis(1), Duration::from_millis(300)),
            (Duration::from_millis(100), Duration::from_secs(10)),
            (Duration::from_secs(3), Duration::from_secs(60)),
        ] {
            let mut writing = Writing::new(now);
            writing.took(stall, now);
            let ended = now + stall;
            assert!(!writing.is_for_core(alone, ended + pause - Duration::from_millis(1)), "{stall:?}");
            assert!(writing.is_for_core(alone, ended + pause), "{stall:?}");
        }
    }
}
