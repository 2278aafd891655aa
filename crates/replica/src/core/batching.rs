//! How long proposals wait for others, to share a sync of the log with them.
//!
//! Not at all, as a rule: whatever arrives while the log syncs joins the next batch anyhow, and a fixed window would
//! only add its own length. But a sync costs processor time whatever it carries, some 60 to 150 us, and a server whose
//! processors are busy spends it better on requests. So, once syncs carry [`LARGE_BATCH`] proposals by themselves, the
//! next batch waits until half of the connections that write have put something in, as long as `--batch-fsync-window` says at the most.
//!
//! In a cluster a batch costs every member a sync, and each pair of members several messages. There a batch goes at once
//! when nothing is under way, and else waits until that is done: the members' disks and the network between them set
//! the pace. Again no longer than the window, so that a distant member slows nobody down.

use std::time::{Duration, Instant};

/// Proposals in a batch from which on gathering is worth it.
const LARGE_BATCH: usize = 8;
/// Proposals in a batch from which on keeping batches apart is worth it.
const SHARED_BATCH: usize = 3;
/// Proposals that are enough for a batch in a cluster, whatever is under way.
const ENOUGH_IN_CLUSTER: usize = 512;
/// Time for which a connection counts as writing after a write.
const ACTIVE: Duration = Duration::from_millis(50);

/// Knows who writes and how large batches are.
#[derive(Debug)]
pub struct Batching {
    /// Connections seen in this period and the one before, as bits of their hash.
    writers: [Box<[u64; 64]>; 2],
    counts: [usize; 2],
    period_began: Instant,
    /// Proposals in recent batches, on average, in sixteenths.
    batch16: usize,
    began: Option<Instant>,
    went_at: Instant,
    /// The longest wait.
    window: Duration,
}

impl Batching {
    /// Returns the state without writing connections.
    pub fn new(now: Instant, window: Duration) -> Batching {
        Batching {
            writers: [Box::new([0; 64]), Box::new([0; 64])],
            counts: [0; 2],
            period_began: now,
            batch16: 0,
            began: None,
            went_at: now,
            window,
        }
    }

    /// A proposal came over this connection.
    pub fn wrote(&mut self, writer: u16, now: Instant) {
        if now.saturating_duration_since(self.period_began) >= ACTIVE {
            self.writers.swap(0, 1);
            self.counts[1] = self.counts[0];
            self.writers[0].fill(0);
            self.counts[0] = 0;
            self.period_began = now;
        }
        let (word, bit) = (usize::from(writer / 64) % 64, 1u64 << (writer % 64));
        if self.writers[0][word] & bit == 0 {
            self.writers[0][word] |= bit;
            self.counts[0] += 1;
        }
        self.began.get_or_insert(now);
    }

    /// Returns how many more proposals to wait for, and how long, when `waiting` have arrived; `None` to propose now.
    pub fn wait(&self, waiting: usize, now: Instant) -> Option<(usize, Duration)> {
        let began = self.began?;
        let enough = self.counts[0].max(self.counts[1]) / 2;
        if self.batch16 < 16 * LARGE_BATCH || waiting >= enough {
            return None;
        }
        let left = self.window.checked_sub(now.saturating_duration_since(began))?;
        (!left.is_zero()).then_some((enough - waiting, left))
    }

    /// Returns the same as [`Self::wait`], for a cluster. `under_way` says if earlier proposals are not applied yet;
    /// `pace` is the least time between two batches.
    pub fn wait_in_cluster(
        &self,
        waiting: usize,
        under_way: bool,
        pace: Duration,
        now: Instant,
    ) -> Option<(usize, Duration)> {
        if waiting >= ENOUGH_IN_CLUSTER {
            return None;
        }
        // Batches that stay small say that there is nothing to gather.
        let pace = if self.batch16 < 16 * SHARED_BATCH { Duration::ZERO } else { pace };
        let paced = pace.saturating_sub(now.saturating_duration_since(self.went_at));
        let window = if under_way { self.window } else { Duration::ZERO };
        let left = window.saturating_sub(now.saturating_duration_since(self.began?)).max(paced);
        (!left.is_zero()).then_some((ENOUGH_IN_CLUSTER - waiting, left))
    }

    /// Notes proposals that another member has forwarded.
    pub fn came(&mut self, now: Instant) {
        self.began.get_or_insert(now);
    }

    /// Notes that a batch of this many proposals goes to the log.
    pub fn went(&mut self, proposals: usize, now: Instant) {
        self.went_at = now;
        self.batch16 = (self.batch16 * 7 + proposals * 16) / 8;
        self.began = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(2);

    #[test]
    fn few_writers_never_wait() {
        let now = Instant::now();
        let mut batching = Batching::new(now, WINDOW);
        for n in 0..1000u32 {
            let now = now + Duration::from_micros(100) * n;
            batching.wrote((n % 4) as u16, now);
            assert_eq!(batching.wait(1, now), None);
            batching.went(1, now);
        }
    }

    #[test]
    fn many_writers_wait_for_half_of_them_and_not_for_ever() {
        let now = Instant::now();
        let mut batching = Batching::new(now, WINDOW);
        for _ in 0..20 {
            for writer in 0..100 {
                batching.wrote(writer, now);
            }
            batching.went(20, now);
        }
        batching.wrote(1, now);
        assert_eq!(batching.wait(1, now), Some((49, WINDOW)));
        assert_eq!(batching.wait(50, now), None);
        assert_eq!(batching.wait(10, now + WINDOW), None);
        // In a cluster, what is under way is waited for.
        batching.wrote(1, now);
        let cluster = |batching: &Batching, waiting, under_way, pace_ms, later_ms| {
            let (pace, later) = (Duration::from_millis(pace_ms), Duration::from_millis(later_ms));
            batching.wait_in_cluster(waiting, under_way, pace, now + later)
        };
        let more = ENOUGH_IN_CLUSTER - 3;
        assert_eq!(cluster(&batching, 3, false, 0, 0), None);
        assert_eq!(cluster(&batching, 3, true, 0, 0), Some((more, WINDOW)));
        assert_eq!(cluster(&batching, ENOUGH_IN_CLUSTER, true, 9, 0), None);
        assert_eq!(cluster(&batching, 3, true, 0, 2), None);
        // And batches that several share keep their distance.
        assert_eq!(cluster(&batching, 3, false, 5, 1), Some((more, Duration::from_millis(4))));
        assert_eq!(cluster(&batching, 3, false, 5, 5), None);
        // Batches that stay small say that there is nothing to wait for.
        for _ in 0..40 {
            batching.went(2, now);
        }
        batching.wrote(1, now);
        assert_eq!(batching.wait(1, now), None);
    }

    #[test]
    fn without_a_window_nobody_waits() {
        let now = Instant::now();
        let mut batching = Batching::new(now, Duration::ZERO);
        for _ in 0..20 {
            (0..100).for_each(|writer| batching.wrote(writer, now));
            batching.went(20, now);
        }
        batching.wrote(1, now);
        assert_eq!(batching.wait(1, now), None);
        assert_eq!(batching.wait_in_cluster(3, true, Duration::ZERO, now), None);
    }
}
