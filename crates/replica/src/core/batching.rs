//! How long proposals wait for others, to share a sync of the log with them.
//!
//! Not at all, as a rule: whatever arrives while the log syncs joins the next batch anyhow, and a fixed window would
//! only add its own length. But a sync costs processor time whatever it carries, some 60 to 150 us, and a server whose
//! processors are busy spends it better on requests. So, once syncs carry [`LARGE_BATCH`] proposals by themselves, the
//! next batch waits until half of the connections that write have put something in, for [`FAST_WINDOW`] at the most, and no longer than
//! `--batch-fsync-window` says.
//!
//! For a member without others, on a device of which a sync takes long, whatever arrives while the log syncs is worth waiting
//! for the end of it, and then for those whose writes were just synced: a client that is answered writes again, but later than the log would begin its next
//! sync. Otherwise the clients fall into two halves, of which each waits for the syncs of both. So there a batch goes when
//! as many as were under way and waiting have come back, or half of a sync's time has passed, and no more than the window. Where those
//! that are waited for do not come, as with clients that write at times of their own, it is not tried again for a while.
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
/// The longest wait on a device that is not slow.
const FAST_WINDOW: Duration = Duration::from_millis(2);
/// Time of a sync from which on the device is slow.
const SLOW_SYNC: Duration = Duration::from_millis(1);
/// No sync counts for more: one that stalls says nothing of the next.
const SYNC_MAX: Duration = Duration::from_millis(50);
/// Bytes of proposals that are enough for a batch on a slow device.
const ENOUGH_BYTES: usize = 1 << 20;
/// Batches for which nobody is waited for, where those that were waited for did not come.
const SKIPPED: u32 = 16;
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
    /// Bytes that wait.
    bytes: usize,
    device: Device,
}

/// What is known of the time that a sync takes, and of those who write again after one.
#[derive(Debug)]
struct Device {
    /// A sync's time, on average.
    sync: Duration,
    /// Proposals are on their way to the disk.
    is_busy: bool,
    /// Proposals that went since they all were synced the last time.
    going: usize,
    /// When they all were the last time, how many waited then, and how many will if all of those write again.
    settled: Instant,
    here: usize,
    expected: usize,
    /// Batches for which nobody is waited for.
    skips: u32,
}

impl Device {
    fn new(now: Instant) -> Device {
        let sync = Duration::ZERO;
        Device { sync, is_busy: false, going: 0, settled: now, here: 0, expected: 0, skips: 0 }
    }

    fn is_slow(&self) -> bool {
        self.sync >= SLOW_SYNC
    }

    fn look(&mut self, is_busy: bool, waiting: usize, now: Instant) {
        if self.is_busy && !is_busy {
            self.settled = now;
            self.here = waiting;
            self.expected = waiting + std::mem::take(&mut self.going);
        }
        self.is_busy = is_busy;
    }

    /// Returns how many proposals are enough for a batch, and how long to wait for them at most since `began`.
    fn wait(&self, began: Instant, window: Duration, now: Instant) -> (usize, Duration) {
        if self.is_busy {
            // Its end wakes the core.
            let left = (2 * self.sync).saturating_sub(now.saturating_duration_since(began));
            return (ENOUGH_IN_CLUSTER, left);
        }
        if self.skips > 0 {
            return (0, Duration::ZERO);
        }
        let since = self.settled.max(began);
        let left = window.min(self.sync / 2).saturating_sub(now.saturating_duration_since(since));
        // The last few may think for longer.
        (self.expected - self.expected / 8, left)
    }

    fn went(&mut self, proposals: usize) {
        if self.skips > 0 {
            self.skips -= 1;
        } else if self.is_slow() && !self.is_busy && self.expected > self.here {
            let came = proposals.saturating_sub(self.here);
            if came * 2 < self.expected - self.here {
                self.skips = SKIPPED;
            }
        }
        self.going += proposals;
        self.expected = 0;
        // The next look may come behind its sync.
        self.is_busy = true;
    }
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
            bytes: 0,
            device: Device::new(now),
        }
    }

    /// A sync of the log took so long.
    pub fn synced(&mut self, took: Duration) {
        self.device.sync = (self.device.sync * 7 + took.min(SYNC_MAX)) / 8;
    }

    /// Takes note whether proposals are on their way to the disks, while so many wait.
    pub fn look(&mut self, under_way: bool, waiting: usize, now: Instant) {
        self.device.look(under_way, waiting, now);
    }

    /// A proposal of so many bytes came over this connection.
    pub fn wrote(&mut self, writer: u16, bytes: usize, now: Instant) {
        self.bytes += bytes;
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
        if self.device.is_slow() {
            let (enough, left) = self.wait_for_device(began, now);
            return (waiting < enough && !left.is_zero()).then(|| (enough - waiting, left));
        }
        let enough = self.counts[0].max(self.counts[1]) / 2;
        if self.batch16 < 16 * LARGE_BATCH || waiting >= enough {
            return None;
        }
        let window = self.window.min(FAST_WINDOW);
        let left = window.checked_sub(now.saturating_duration_since(began))?;
        (!left.is_zero()).then_some((enough - waiting, left))
    }

    /// Returns how many proposals are enough on a slow device, and how long to wait for them.
    fn wait_for_device(&self, began: Instant, now: Instant) -> (usize, Duration) {
        if self.bytes >= ENOUGH_BYTES || self.window.is_zero() {
            return (0, Duration::ZERO);
        }
        self.device.wait(began, self.window, now)
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
        let began = self.began?;
        let window = if under_way { self.window.min(FAST_WINDOW) } else { Duration::ZERO };
        let left = window.saturating_sub(now.saturating_duration_since(began)).max(paced);
        (!left.is_zero()).then_some((ENOUGH_IN_CLUSTER - waiting, left))
    }

    /// Notes proposals that another member has forwarded.
    pub fn came(&mut self, now: Instant) {
        self.began.get_or_insert(now);
    }

    /// Notes that a batch of this many proposals goes to the log.
    pub fn went(&mut self, proposals: usize, now: Instant) {
        self.went_at = now;
        self.bytes = 0;
        self.device.went(proposals);
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
            batching.wrote((n % 4) as u16, 1, now);
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
                batching.wrote(writer, 1, now);
            }
            batching.went(20, now);
        }
        batching.wrote(1, 1, now);
        assert_eq!(batching.wait(1, now), Some((49, WINDOW)));
        assert_eq!(batching.wait(50, now), None);
        assert_eq!(batching.wait(10, now + WINDOW), None);
        // In a cluster, what is under way is waited for.
        batching.wrote(1, 1, now);
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
        batching.wrote(1, 1, now);
        assert_eq!(batching.wait(1, now), None);
    }

    #[test]
    fn without_a_window_nobody_waits() {
        let now = Instant::now();
        let mut batching = Batching::new(now, Duration::ZERO);
        for _ in 0..20 {
            (0..100).for_each(|writer| batching.wrote(writer, 1, now));
            batching.went(20, now);
        }
        batching.wrote(1, 1, now);
        assert_eq!(batching.wait(1, now), None);
        assert_eq!(batching.wait_in_cluster(3, true, Duration::ZERO, now), None);
    }

    /// A device of which each sync takes 16 ms.
    fn slow(now: Instant) -> Batching {
        let mut batching = Batching::new(now, WINDOW);
        (0..100).for_each(|_| batching.synced(Duration::from_millis(16)));
        batching
    }

    /// A batch of ten goes, and so many more come while it is synced.
    fn goes_and_is_synced(batching: &mut Batching, meanwhile: u16, now: Instant) {
        batching.went(10, now);
        (0..meanwhile).for_each(|writer| batching.wrote(writer, 100, now));
        let waiting = usize::from(meanwhile);
        assert!(waiting == 0 || batching.wait(waiting, now).is_some(), "it waits for the end of the sync");
        batching.look(false, waiting, now);
    }

    #[test]
    fn on_a_slow_device_those_who_were_synced_are_waited_for() {
        let now = Instant::now();
        let mut batching = slow(now);
        goes_and_is_synced(&mut batching, 6, now);
        assert_eq!(batching.wait(6, now), Some((8, WINDOW)), "half of a sync would be longer");
        batching.wrote(7, 100, now);
        assert_eq!(batching.wait(7, now), Some((7, WINDOW)));
        assert_eq!(batching.wait(14, now), None, "the last few are not");
        assert_eq!(batching.wait(7, now + WINDOW), None);
        // A sync that takes longer than two holds nobody up, nor does a large batch.
        batching.look(true, 6, now);
        assert_eq!(batching.wait(6, now).map(|(_, left)| left.as_millis()), Some(31));
        assert_eq!(batching.wait(6, now + Duration::from_millis(32)), None);
        assert_eq!(batching.wait(ENOUGH_IN_CLUSTER, now), None);
        batching.wrote(7, ENOUGH_BYTES, now);
        assert_eq!(batching.wait(7, now), None);
        // One alone never waits.
        let mut batching = slow(now);
        batching.wrote(1, 100, now);
        assert_eq!(batching.wait(1, now), None);
        batching.went(1, now);
        batching.look(true, 0, now);
        batching.look(false, 0, now);
        batching.wrote(1, 100, now);
        assert_eq!(batching.wait(1, now), None);
    }

    #[test]
    fn on_a_slow_device_those_who_do_not_come_are_not_waited_for_again_for_a_while() {
        let now = Instant::now();
        let mut batching = slow(now);
        goes_and_is_synced(&mut batching, 3, now);
        assert!(batching.wait(3, now).is_some());
        batching.went(3, now + WINDOW);
        for _ in 0..SKIPPED {
            batching.look(true, 0, now);
            batching.wrote(1, 100, now);
            assert!(batching.wait(1, now).is_some(), "the end of a sync is");
            batching.look(false, 1, now);
            assert_eq!(batching.wait(1, now), None);
            batching.went(1, now);
        }
        batching.look(true, 0, now);
        batching.wrote(1, 100, now);
        batching.look(false, 1, now);
        assert!(batching.wait(1, now).is_some(), "they are tried again");
    }
}
