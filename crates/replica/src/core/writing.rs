//! Chooses the thread that writes a batch to the log: the log's own thread, or the core's.
//!
//! As a rule the log's thread writes, so that the core never waits for a disk. But when one client writes
//! alone, each write is handed to that thread and back; the two hand-overs take as much time as the sync, and
//! half of the processor time. So on a member that is the only one of its cluster, a core with nothing else
//! to do writes a batch of very few proposals itself.
//!
//! If a shard serves no other connection, it lends its thread to the core for this (`seat.rs`), which also
//! spares both hand-overs between the shard and the core.
//!
//! The price appears when the disk stalls: until the sync ends the core answers nothing, not even with a
//! timeout error, and the one connection of a shard that lent its thread waits, too; nothing but writes came
//! on that connection (`pending.rs`). Reads and nearly all renewals continue, because shards answer them. (A
//! member of a cluster never writes on the core's thread, because the other members wait for its heartbeats.)
//! After a long sync, the log's thread therefore writes the next batches, for a time proportional to the
//! length of that sync. Most disks take a few milliseconds for one sync in thousands; on them the core still
//! writes nearly all batches.

use std::time::{Duration, Instant};

/// Maximum number of proposals in a batch that the core writes itself; larger batches share the cost of the
/// hand-overs.
const FEW: usize = 2;
/// Maximum bytes of a batch that the core writes itself.
pub(super) const FEW_BYTES: usize = 64 << 10;
/// Duration from which on a sync is long: the core might have had other work during it.
const LONG: Duration = Duration::from_millis(2);
/// After a long sync, the log's thread writes for this many times the sync's length. For syncs of up to 0.6 s
/// the core is thus blocked for at most a hundredth of the time, however often they occur.
const PAUSE_FACTOR: u32 = 100;
/// Maximum pause after a long sync, before the core writes again.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Time that a shard gets after a long sync to process waiting requests, such as lease renewals, before
/// leases expire again.
const SHARDS_CATCH_UP: Duration = Duration::from_millis(100);

/// Decides when the core may write by itself.
#[derive(Debug)]
pub(super) struct Writing {
    not_before: Instant,
    /// Time at which the last long sync began, and the time until which leases expire as of that time.
    held_up: Option<(Instant, Instant)>,
}

/// Facts about a batch from which [`Writing`] decides which thread writes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occasion {
    /// True if this member leads, is the only member, runs with threads, and is not stopping.
    pub is_alone: bool,
    /// Number of proposals that are not applied yet.
    pub proposals: usize,
    /// Bytes that the log was given earlier and has not written yet.
    pub queued_bytes: usize,
}

impl Writing {
    /// Returns the initial state, without any long sync.
    pub fn new(now: Instant) -> Writing {
        Writing { not_before: now, held_up: None }
    }

    /// Returns true if the core should write the batch that it is about to append.
    pub fn is_for_core(&self, occasion: Occasion, now: Instant) -> bool {
        occasion.is_alone
            && (1..=FEW).contains(&occasion.proposals)
            && occasion.queued_bytes == 0
            && now >= self.not_before
    }

    /// Returns the time as of which leases expire. A shard may have been blocked during a long sync, so the
    /// core may learn of timely renewals late.
    pub fn leases_as_of(&self, now: Instant) -> Instant {
        self.held_up.filter(|(_, until)| now < *until).map_or(now, |(began, _)| began)
    }

    /// Records the duration of a write with its sync that the core did itself and that began at `now`.
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
