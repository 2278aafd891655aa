//! Who writes a batch to the log: the log's own thread, or the core.
//!
//! As a rule the log's thread does, so that the core never waits for a disk. But where one client writes alone, each write is
//! handed to that thread and back, and the two hand-overs take as much time as the sync, and half of the processor time. So a
//! member without others, whose core has nothing to do meanwhile, writes a batch of very few proposals by itself.
//!
//! If a shard serves nobody else, it lends its thread to the core for it (`seat.rs`), which spares both hand-overs to the core, too.
//!
//! The price is a disk that stalls: until it comes back the core answers nothing, so that no write that waits too long is refused,
//! and the one connection of a shard that lent its thread waits with it: one on which nothing came but writes (`pending.rs`).
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

/// Time that a shard has for what waits behind a long sync, renewals of leases among it, before leases expire again.
const SHARDS_CATCH_UP: Duration = Duration::from_millis(100);

/// Knows when the core should not write by itself.
#[derive(Debug)]
pub(super) struct Writing {
    not_before: Instant,
    /// When the last long sync began, and until when leases expire as of then.
    held_up: Option<(Instant, Instant)>,
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
        Writing { not_before: now, held_up: None }
    }

    /// Returns true if the core should write by itself what it is about to append.
    pub fn is_for_core(&self, occasion: Occasion, now: Instant) -> bool {
        occasion.is_alone
            && (1..=FEW).contains(&occasion.proposals)
            && occasion.queued_bytes == 0
            && now >= self.not_before
    }

    /// Returns the time as of which leases expire. During a long sync a shard may have stood still, too, so that what was renewed in
    /// time is heard of late.
    pub fn leases_as_of(&self, now: Instant) -> Instant {
        self.held_up.filter(|(_, until)| now < *until).map_or(now, |(began, _)| began)
    }

    /// Notes how long a write of the core's took, with its sync, that began at `now`.
    pub fn took(&mut self, time: Duration, now: Instant) {
        if time > LONG {
            self.held_up = Some((now, now + time + SHARDS_CATCH_UP));
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

    #[test]
    fn what_was_renewed_during_a_long_sync_is_heard_of_before_anything_expires() {
        let now = Instant::now();
        let mut writing = Writing::new(now);
        writing.took(LONG, now);
        assert_eq!(writing.leases_as_of(now + LONG), now + LONG);
        let stall = Duration::from_secs(3);
        writing.took(stall, now);
        let ended = now + stall;
        assert_eq!(writing.leases_as_of(ended), now);
        assert_eq!(writing.leases_as_of(ended + SHARDS_CATCH_UP - Duration::from_millis(1)), now);
        assert_eq!(writing.leases_as_of(ended + SHARDS_CATCH_UP), ended + SHARDS_CATCH_UP);
    }
}
