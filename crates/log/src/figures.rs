//! Counts the log's work for metrics, and remembers the slowest recent syncs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Upper bounds in seconds of the buckets of [`Durations`]: 1 ms, and each further bound twice the previous
/// one. The metrics `etcd_disk_wal_fsync_duration_seconds` and `etcd_disk_wal_write_duration_seconds` of etcd
/// have the same bounds.
pub const DURATION_BOUNDS_S: [f64; 14] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192];

/// Upper bounds of the buckets of [`Sizes`], in entries.
pub const SIZE_BOUNDS: [u64; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// A histogram of numbers of entries.
#[derive(Debug, Default)]
pub struct Sizes {
    buckets: [AtomicU64; SIZE_BOUNDS.len() + 1],
    sum: AtomicU64,
}

impl Sizes {
    fn add(&self, size: u64) {
        let bucket = SIZE_BOUNDS.partition_point(|bound| *bound < size);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(size, Ordering::Relaxed);
    }

    /// Number of samples in each bucket (not cumulative). The last bucket counts the samples above the
    /// highest bound.
    pub fn buckets(&self) -> [u64; SIZE_BOUNDS.len() + 1] {
        std::array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed))
    }

    /// Sum of all sizes that were added.
    pub fn sum(&self) -> u64 {
        self.sum.load(Ordering::Relaxed)
    }
}

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [AtomicU64; DURATION_BOUNDS_S.len() + 1],
    sum_ns: AtomicU64,
}

impl Durations {
    pub(crate) fn add(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = DURATION_BOUNDS_S.iter().position(|bound| seconds <= *bound);
        self.buckets[bucket.unwrap_or(DURATION_BOUNDS_S.len())].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Number of samples in each bucket (not cumulative). The last bucket counts the samples above the
    /// highest bound.
    pub fn buckets(&self) -> [u64; DURATION_BOUNDS_S.len() + 1] {
        std::array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed))
    }

    /// Number of durations that were added.
    pub fn count(&self) -> u64 {
        self.buckets().iter().sum()
    }

    /// Sum of all durations that were added.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed))
    }
}

/// Counters of the log's work since it was opened.
#[derive(Debug, Default)]
pub struct Figures {
    /// Duration of each `fdatasync` of a segment in use.
    pub fsyncs: Durations,
    /// Duration of each of these syncs that several entries shared.
    pub shared_fsyncs: Durations,
    /// Number of entries of each of these syncs. A sync without entries is of values that were moved, or of a
    /// term or vote.
    pub sync_entries: Sizes,
    /// Duration of each vectored write into a segment in use.
    pub writes: Durations,
    stalls: Mutex<VecDeque<Stall>>,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) prepared_bytes: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) waits: AtomicU64,
}

/// A sync that took so long that it delayed the requests that waited for it.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// Time when the sync ended.
    pub ended: Instant,
    /// Duration of the sync.
    pub took: Duration,
}

/// Minimum duration of a sync that counts as a stall: a tenth of etcd's default election timeout.
const STALL_MIN: Duration = Duration::from_millis(100);
/// Maximum number of stalls that are remembered; a further one replaces the oldest.
const STALLS_MAX: usize = 32;

impl Figures {
    /// Records a sync of a write with this number of entries.
    pub(crate) fn synced(&self, took: Duration, entries: u64) {
        self.fsyncs.add(took);
        self.sync_entries.add(entries);
        if entries > 1 {
            self.shared_fsyncs.add(took);
        }
        if took >= STALL_MIN {
            let mut stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
            if stalls.len() == STALLS_MAX {
                stalls.pop_front();
            }
            stalls.push_back(Stall { ended: Instant::now(), took });
        }
    }

    /// Returns the most recent syncs, at most 32, that took 100 ms or longer, oldest first.
    pub fn stalls(&self) -> Vec<Stall> {
        self.stalls.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// Bytes written as records, including headers and padding (`etcd_disk_wal_write_bytes_total`).
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Bytes written in addition to records: headers of segments, and zeros that reserve or initialize space.
    pub fn prepared_bytes(&self) -> u64 {
        self.prepared_bytes.load(Ordering::Relaxed)
    }

    /// Number of entries written.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Number of times that the writer found no segment prepared, and had to wait for one.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_fall_into_the_bucket_whose_bound_they_do_not_exceed() {
        let durations = Durations::default();
        for us in [1, 1000, 1001, 9_000_000] {
            durations.add(Duration::from_micros(us));
        }
        let buckets = durations.buckets();
        assert_eq!((buckets[0], buckets[1], buckets[14], durations.count()), (2, 1, 1, 4));
        assert_eq!(durations.sum(), Duration::from_micros(9_002_002));
    }

    #[test]
    fn the_last_stalls_are_remembered() {
        let figures = Figures::default();
        figures.synced(STALL_MIN - Duration::from_nanos(1), 1);
        assert!(figures.stalls().is_empty());
        for ms in 0..=STALLS_MAX as u64 {
            figures.synced(STALL_MIN + Duration::from_millis(ms), 2);
        }
        let took: Vec<Duration> = figures.stalls().iter().map(|stall| stall.took).collect();
        assert_eq!(took.len(), STALLS_MAX);
        assert_eq!(took[0], STALL_MIN + Duration::from_millis(1), "the oldest made way");
        assert_eq!(figures.fsyncs.count(), STALLS_MAX as u64 + 2);
        assert_eq!(figures.shared_fsyncs.count(), STALLS_MAX as u64 + 1, "all but the first");
    }

    #[test]
    fn the_entries_of_a_sync_are_counted_up_to_each_bound() {
        let sizes = Sizes::default();
        for size in [0, 1, 2, 3, 4, 4096, 4097] {
            sizes.add(size);
        }
        let buckets = sizes.buckets();
        assert_eq!((&buckets[..3], buckets[12], buckets[13]), (&[2, 1, 2][..], 1, 1));
        assert_eq!(sizes.sum(), 8_203);
    }
}
