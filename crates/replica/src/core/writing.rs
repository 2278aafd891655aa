//! Chooses the thread that writes a batch to the log: the log's own thread, or the core's.
//!
//! As a rule the log's thread writes, so that the core never waits for a disk. But when one client writes
//! alone, each write is passed to the log's thread and back. The two wake-ups take as much time as the sync,
//! and half of the processor time. So in a single-member cluster, a core with nothing else to do writes a
//! batch of very few proposals itself.
//!
//! If a shard serves no other connection, it runs the core's turn on its own thread (`seat.rs`), which saves
//! the two wake-ups between the shard and the core as well.
//!
//! The disadvantage appears when the disk stalls. Until the sync ends, the core answers nothing, not even
//! with a timeout error. A shard that runs the core's turn waits, too, but its only connection has carried
//! nothing but writes (`pending.rs`). Reads and nearly all renewals continue, because shards answer them.
//!
//! To keep such stalls rare, the log's thread writes for a time after each long sync, a time proportional to
//! the length of that sync. Most disks take a few milliseconds for one sync in thousands; with such a disk
//! the core still writes nearly all batches. A member of a larger cluster never writes on the core's thread,
//! because the other members wait for its heartbeats.

use std::time::{Duration, Instant};

/// Maximum number of proposals in a batch that the core writes itself. In larger batches each proposal bears
/// only a small part of the cost of the wake-ups.
const FEW: usize = 2;
/// Maximum bytes of a batch that the core writes itself.
pub(super) const FEW_BYTES: usize = 64 << 10;
/// Minimum duration of a sync that counts as long, because other work may have waited for the core meanwhile.
const LONG: Duration = Duration::from_millis(2);
/// After a long sync, the log's thread writes for this many times the sync's length. So syncs of up to 0.6 s
/// block the core for at most a hundredth of the time, however often they occur.
const PAUSE_FACTOR: u32 = 100;
/// Maximum time after a long sync during which the log's thread writes.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Time after a long sync during which no further leases expire, so that a shard that was blocked can process
/// the renewals that wait.
const SHARDS_CATCH_UP: Duration = Duration::from_millis(100);

/// Decides which batches the core writes on its own thread.
#[derive(Debug)]
pub(super) struct Writing {
    not_before: Instant,
    /// Time at which the last long sync began, and the time up to which only those leases expire whose
    /// deadlines had passed when it began.
    held_up: Option<(Instant, Instant)>,
}

/// Facts about a batch. [`Writing`] decides with them which thread writes the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occasion {
    /// True if this member leads, is the only member, has separate threads, and is not stopping.
    pub is_alone: bool,
    /// Number of proposals that are not applied yet.
    pub proposals: usize,
    /// Bytes that the log has received in earlier batches and not written yet.
    pub queued_bytes: usize,
}

impl Writing {
    /// Returns the value for a member that starts: no sync has taken long.
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

    /// Returns the time that decides which leases have expired. During a long sync, and shortly after it,
    /// this is the time at which the sync began. A shard may have been blocked by the sync, so renewals that
    /// arrived in time may reach the core late.
    pub fn leases_as_of(&self, now: Instant) -> Instant {
        self.held_up.filter(|(_, until)| now < *until).map_or(now, |(began, _)| began)
    }

    /// Records that a write, including its sync, that the core did itself took `time` and began at `now`.
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
