//! Decides how long proposals wait for further proposals, so that they form one batch, which costs one sync
//! of the log.
//!
//! Normally proposals do not wait: those that arrive while the log syncs form the next batch anyway, and a
//! fixed window would only add delay. But each sync costs about 60 to 150 us of processor time, however small
//! the batch. A busy server should spend that time on requests. Therefore, once batches have on average
//! [`LARGE_BATCH`] proposals, the next batch waits until half of the writing connections have sent a
//! proposal. It waits no longer than [`FAST_WINDOW`] and no longer than `--batch-fsync-window`.
//!
//! A single-member cluster on a slow device first waits for the end of the current sync. Then it waits for
//! the clients whose writes were just synced: an answered client writes again, but only after the log would
//! have begun its next sync. Without this second wait the clients would split into two halves that write in
//! turn, and each half would wait for the syncs of both. The second wait ends when the number of waiting
//! proposals reaches seven eighths of the number that were in flight or waiting at the end of the sync, or
//! when half the duration of a sync has passed, and at the latest after the window. If most of the expected
//! clients do not write again, for example because they write at independent times, the second wait is
//! skipped for the next [`SKIPPED`] batches.
//!
//! In a cluster a batch costs every member a sync, and the leader and each follower several messages. There a
//! batch starts immediately if no proposals are in flight. Otherwise it waits until those are applied, so
//! that the disks and the network set the pace. The window limits this wait, too, so that clients never wait
//! long for a distant member. While the processors are busy, batches also start at a minimum distance
//! (`pace`).

use std::time::{Duration, Instant};

/// Minimum average number of proposals in a batch for which waiting for further proposals is worth its delay.
const LARGE_BATCH: usize = 8;
/// Minimum average number of proposals in a batch for which a pause between batches is worth its delay.
const SHARED_BATCH: usize = 3;
/// Number of waiting proposals at which a batch in a cluster starts, even if earlier proposals are in flight.
const ENOUGH_IN_CLUSTER: usize = 512;
/// Maximum wait on a device that is not slow.
const FAST_WINDOW: Duration = Duration::from_millis(2);
/// Duration of a sync at which a device counts as slow.
const SLOW_SYNC: Duration = Duration::from_millis(1);
/// Maximum duration that one sync contributes to the average: a stall says nothing about the next sync.
const SYNC_MAX: Duration = Duration::from_millis(50);
/// Bytes of waiting proposals at which a batch on a slow device starts.
const ENOUGH_BYTES: usize = 1 << 20;
/// Number of batches for which the second wait is skipped after most of the expected clients did not write
/// again.
const SKIPPED: u32 = 16;
/// Time for which a connection counts as writing after its last write.
const ACTIVE: Duration = Duration::from_millis(50);

/// Tracks which connections write and how large batches are, and decides how long the next batch waits.
#[derive(Debug)]
pub struct Batching {
    /// Connections that wrote in the current period of at least [`ACTIVE`], and those that wrote in the
    /// period before it. Each bit stands for the connections whose client ports are equal modulo 4096.
    writers: [Box<[u64; 64]>; 2],
    counts: [usize; 2],
    period_began: Instant,
    /// Moving average of the number of proposals in a batch, in units of one sixteenth.
    batch16: usize,
    began: Option<Instant>,
    went_at: Instant,
    /// Maximum time that proposals wait (`--batch-fsync-window`).
    window: Duration,
    /// Bytes of the proposals that wait.
    bytes: usize,
    device: Device,
}

/// The average duration of a sync, and the number of clients expected to write again after it.
#[derive(Debug)]
struct Device {
    /// Average duration of a sync.
    sync: Duration,
    /// True while proposals are on their way to the disk.
    is_busy: bool,
    /// Number of proposals given to the log since all proposals were last synced.
    going: usize,
    /// Last time at which all proposals were synced. `here` is the number of proposals that waited at that
    /// time. `expected` is `here` plus the number of proposals that were synced by that time: their clients
    /// are expected to write again.
    settled: Instant,
    here: usize,
    expected: usize,
    /// Number of further batches that start without the second wait, which the module documentation
    /// describes.
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

    /// Returns the number of proposals at which the batch starts, and the time that is left to wait for them.
    /// `began` is the time at which the first of them arrived.
    fn wait(&self, began: Instant, window: Duration, now: Instant) -> (usize, Duration) {
        if self.is_busy {
            // The end of the sync wakes the core anyway, so this time is only an upper bound for a sync that
            // takes unusually long.
            let left = (2 * self.sync).saturating_sub(now.saturating_duration_since(began));
            return (ENOUGH_IN_CLUSTER, left);
        }
        if self.skips > 0 {
            return (0, Duration::ZERO);
        }
        let since = self.settled.max(began);
        let left = window.min(self.sync / 2).saturating_sub(now.saturating_duration_since(since));
        // One eighth is subtracted, so that the batch does not wait for the slowest clients.
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
        // The flag is set here and not at the next call of `look`. This batch may be synced before that call,
        // and `look` recognizes the end of a sync only if the flag was set before.
        self.is_busy = true;
    }
}

impl Batching {
    /// Returns the value for a member that starts: no connection has written, and no batch was formed.
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

    /// Records the duration of a sync of the log.
    pub fn synced(&mut self, took: Duration) {
        self.device.sync = (self.device.sync * 7 + took.min(SYNC_MAX)) / 8;
    }

    /// Records whether proposals are in flight to the disks, and how many proposals wait.
    pub fn look(&mut self, under_way: bool, waiting: usize, now: Instant) {
        self.device.look(under_way, waiting, now);
    }

    /// Records a proposal of `bytes` bytes from this connection.
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

    /// Returns the number of further proposals to wait for, and the maximum time, in a cluster of one member
    /// that has `waiting` proposals. Returns `None` if these should be proposed now.
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

    /// Returns the number of proposals at which a batch on a slow device starts, and the time that is left to
    /// wait for them.
    fn wait_for_device(&self, began: Instant, now: Instant) -> (usize, Duration) {
        if self.bytes >= ENOUGH_BYTES || self.window.is_zero() {
            return (0, Duration::ZERO);
        }
        self.device.wait(began, self.window, now)
    }

    /// Returns the result of [`Self::wait`] for a cluster. `under_way` is true if earlier proposals are not
    /// applied yet; `pace` is the minimum time between two batches.
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
        // Small batches show that few proposals arrive at the same time. A pause would only delay them, so
        // none is made.
        let pace = if self.batch16 < 16 * SHARED_BATCH { Duration::ZERO } else { pace };
        let paced = pace.saturating_sub(now.saturating_duration_since(self.went_at));
        let began = self.began?;
        let window = if under_way { self.window.min(FAST_WINDOW) } else { Duration::ZERO };
        let left = window.saturating_sub(now.saturating_duration_since(began)).max(paced);
        (!left.is_zero()).then_some((ENOUGH_IN_CLUSTER - waiting, left))
    }

    /// Records the arrival of proposals that another member has forwarded.
    pub fn came(&mut self, now: Instant) {
        self.began.get_or_insert(now);
    }

    /// Records that a batch of this many proposals is given to the log.
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
        // In a cluster, proposals wait while others are in flight.
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
        // Batches that several connections share start at the minimum distance.
        assert_eq!(cluster(&batching, 3, false, 5, 1), Some((more, Duration::from_millis(4))));
        assert_eq!(cluster(&batching, 3, false, 5, 5), None);
        // Batches that stay small show that there is nothing to wait for.
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

    /// Returns the value for a device on which each sync takes 16 ms.
    fn slow(now: Instant) -> Batching {
        let mut batching = Batching::new(now, WINDOW);
        (0..100).for_each(|_| batching.synced(Duration::from_millis(16)));
        batching
    }

    /// Passes on a batch of ten proposals. `meanwhile` proposals arrive while the batch is synced.
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
        // After a sync that takes longer than twice the average, no proposal waits any longer; and a large
        // batch never waits.
        batching.look(true, 6, now);
        assert_eq!(batching.wait(6, now).map(|(_, left)| left.as_millis()), Some(31));
        assert_eq!(batching.wait(6, now + Duration::from_millis(32)), None);
        assert_eq!(batching.wait(ENOUGH_IN_CLUSTER, now), None);
        batching.wrote(7, ENOUGH_BYTES, now);
        assert_eq!(batching.wait(7, now), None);
        // A single client never waits.
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
