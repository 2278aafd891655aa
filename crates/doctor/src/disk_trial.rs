//! Tests a disk: writes records as a member writes its write-ahead log, and measures how long each fsync
//! takes.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stdx::Random;

use disk::{Disk as _, File, RealDisk, Reservation};

use crate::quantiles::Quantiles;

/// Size in bytes of the trial's file, which is overwritten from the start when its end is reached. A segment
/// of etcd's write-ahead log has this size.
const FILE_BYTES: u64 = 64_000_000;
/// Number of equal time windows into which the trial is divided, to find out whether the disk becomes slower.
const WINDOWS: u32 = 10;
/// Size in bytes of each write of the bandwidth trial.
const BLOCK_BYTES: usize = 1024 * 1024;
const BANDWIDTH_TIME: Duration = Duration::from_secs(5);
/// If the write rate in the last two windows is below this share of the rate in the first two, the disk
/// counts as having become slower. The usual cause is that the disk, for example a cloud volume, has used up
/// its burst credit.
const SLOWER: f64 = 0.6;

/// Parameters of a disk trial.
#[derive(Clone, Debug)]
pub struct DiskTrial {
    /// Size of a record in bytes.
    pub record_bytes: usize,
    /// Largest number of records; 0 for as many as the time allows.
    pub records_max: u64,
    /// Duration of the trial.
    pub time: Duration,
}

/// Result of a disk trial.
#[derive(Clone, Debug, Default)]
pub struct DiskResult {
    /// Size of a record in bytes.
    pub record_bytes: usize,
    /// Durations of the fsyncs, in seconds.
    pub syncs: Quantiles,
    /// Duration of the trial, in seconds.
    pub seconds: f64,
    /// Consecutive time windows of the trial.
    pub windows: Vec<DiskWindow>,
    /// Rate of large sequential writes with one fsync at the end, in bytes per second.
    pub bandwidth: f64,
    /// Says whether a member can reserve space for its log on this file system.
    pub reserved: ReservedRoom,
}

/// Says whether a file system can reserve space. A member reserves space for its log so that it can still
/// write when the disk becomes full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservedRoom {
    /// The file system can reserve space and keeps the reserved space.
    #[default]
    Kept,
    /// The file system cannot reserve space by a system call, so a member has to write zeros to do so.
    Zeros,
    /// Space cannot be reserved, because this file system writes changed blocks elsewhere. Contains the name
    /// of the file system.
    Nowhere(&'static str),
}

/// One time window of the trial.
#[derive(Clone, Debug, Default)]
pub struct DiskWindow {
    /// Records per second.
    pub rate: f64,
    /// p99 of the window's fsyncs, in seconds.
    pub p99: f64,
}

/// Creates a file and removes its name right away, so that the file disappears when the process ends, however
/// it ends.
fn nameless_file(dir: &Path) -> io::Result<Arc<dyn File>> {
    let path = dir.join(format!(".mainstay-check-disk-{}", std::process::id()));
    let file = RealDisk.create(&path)?;
    RealDisk.remove(&path)?;
    Ok(file)
}

impl DiskTrial {
    /// Runs the trial in this directory. Calls `told` periodically with the elapsed time in seconds.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written to, or lacks space.
    pub fn run(&self, dir: &Path, mut told: impl FnMut(f64)) -> io::Result<DiskResult> {
        // Random bytes, because a disk that compresses data would otherwise write less than a record.
        let record = Random::new(1).bytes(self.record_bytes.max(1));
        let file_bytes = FILE_BYTES.max(record.len() as u64);
        let room = RealDisk.space(dir)?.free_bytes;
        if room < 2 * file_bytes {
            let text = format!("{} bytes are free, {} are needed", room, 2 * file_bytes);
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        let file = nameless_file(dir)?;
        let reserved = match (RealDisk.writes_elsewhere(dir), file.allocate(0, file_bytes)?) {
            (Some(file_system), _) => ReservedRoom::Nowhere(file_system),
            (None, Reservation::NeedsZeros) => ReservedRoom::Zeros,
            (None, Reservation::Made) => ReservedRoom::Kept,
        };
        file.sync_all()?;

        let begun = Instant::now();
        let mut syncs: Vec<f64> = Vec::new();
        let mut windows: Vec<Vec<f64>> = vec![Vec::new(); WINDOWS as usize];
        let mut offset = 0;
        while begun.elapsed() < self.time
            && (self.records_max == 0 || (syncs.len() as u64) < self.records_max)
        {
            if offset + record.len() as u64 > file_bytes {
                offset = 0;
            }
            file.write_at(&record, offset)?;
            let asked = Instant::now();
            file.sync_data()?;
            let took = asked.elapsed().as_secs_f64();
            offset += record.len() as u64;
            syncs.push(took);
            let over = begun.elapsed().as_secs_f64();
            let share = over / self.time.as_secs_f64().max(1e-9);
            let at = ((share * f64::from(WINDOWS)) as usize).min(windows.len() - 1);
            windows[at].push(took);
            told(over);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let window_seconds = self.time.as_secs_f64() / f64::from(WINDOWS);
        // If the trial ended early, because the maximum number of records was written, its last window is
        // incomplete. Leave it out, because its rate would be too low.
        let whole = (seconds / window_seconds.max(1e-9)).floor() as usize;
        let windows = windows.into_iter().take(whole).map(|times| DiskWindow {
            rate: times.len() as f64 / window_seconds,
            p99: Quantiles::of(times).at(0.99),
        });
        Ok(DiskResult {
            record_bytes: record.len(),
            windows: windows.collect(),
            syncs: Quantiles::of(syncs),
            seconds,
            bandwidth: bandwidth(&*file, file_bytes)?,
            reserved,
        })
    }
}

fn bandwidth(file: &dyn File, file_bytes: u64) -> io::Result<f64> {
    let block = Random::new(1).bytes(BLOCK_BYTES);
    let begun = Instant::now();
    let mut written = 0;
    let mut offset = 0;
    while offset + block.len() as u64 <= file_bytes && begun.elapsed() < BANDWIDTH_TIME {
        file.write_at(&block, offset)?;
        offset += block.len() as u64;
        written += block.len();
    }
    file.sync_data()?;
    Ok(written as f64 / begun.elapsed().as_secs_f64().max(1e-9))
}

/// Result of comparing the disk's write rates at the beginning and at the end of the trial.
#[derive(Clone, Debug, PartialEq)]
pub enum Pace {
    /// The trial was too short to use up a burst credit, so nothing is known.
    TooShort,
    /// The disk kept its rate.
    Steady,
    /// The disk became slower; rates are in records per second.
    Slower {
        /// Rate in the first fifth of the time.
        first: f64,
        /// Rate in the last fifth of the time.
        last: f64,
    },
}

impl DiskResult {
    /// Returns the average rate in records per second.
    pub fn rate(&self) -> f64 {
        self.syncs.count() as f64 / self.seconds.max(1e-9)
    }

    /// Compares the rates of the first and the last fifth of the time.
    pub fn pace(&self) -> Pace {
        /// Shorter trials do not use up the burst credit of most disks, so they cannot show that a disk keeps
        /// its rate.
        const SECONDS_MIN: f64 = 30.0;
        let (Some(first), Some(last)) = (self.windows.first_chunk::<2>(), self.windows.last_chunk::<2>())
        else {
            return Pace::TooShort;
        };
        let mean = |two: &[DiskWindow; 2]| f64::midpoint(two[0].rate, two[1].rate);
        let (first, last) = (mean(first), mean(last));
        if self.windows.len() >= 4 && last < SLOWER * first {
            return Pace::Slower { first, last };
        }
        if self.seconds < SECONDS_MIN { Pace::TooShort } else { Pace::Steady }
    }

    /// Returns settings that suit this disk.
    pub fn advice(&self) -> DiskAdvice {
        let milliseconds = |seconds: f64| seconds * 1e3;
        let (p50, p99, longest) = (
            milliseconds(self.syncs.at(0.5)),
            milliseconds(self.syncs.at(0.99)),
            milliseconds(self.syncs.max()),
        );
        let heartbeat = up_to((2.0 * p99).max(100.0), 50.0);
        let election = up_to((10.0 * heartbeat).max(5.0 * longest), 100.0).min(50_000.0);
        // `window` is the time for which a member collects writes before each fsync. Recommend half the
        // duration of an fsync, from 2 to 5 ms: even a window as long as an fsync would at most halve the
        // number of fsyncs. A fast disk needs only a short window or none. A disk that has used up its burst
        // credit gets none, because large batches make its delays worse.
        let window = match self.pace() {
            Pace::Slower { .. } => 0.0,
            _ if p50 < 0.5 => 0.0,
            _ if p50 < 2.0 => 1.0,
            _ => (p50 / 2.0).clamp(2.0, 5.0).round(),
        };
        DiskAdvice { window_ms: window as u64, heartbeat_ms: heartbeat as u64, election_ms: election as u64 }
    }
}

/// Recommended settings, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskAdvice {
    /// Time in milliseconds for which writes are collected for one fsync; 0 for not at all.
    pub window_ms: u64,
    /// Value for `--heartbeat-interval` in milliseconds: at least twice the 99th percentile of the fsyncs,
    /// and at least 100, the default.
    pub heartbeat_ms: u64,
    /// Value for `--election-timeout` in milliseconds: at least ten heartbeat intervals and five times the
    /// longest fsync, but at most 50,000, which is etcd's upper limit.
    pub election_ms: u64,
}

fn up_to(value: f64, step: f64) -> f64 {
    (value / step).ceil() * step
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::TempDir;

    fn result(rates: &[f64], seconds: f64, sync: f64, longest: f64) -> DiskResult {
        let windows = rates.iter().map(|rate| DiskWindow { rate: *rate, p99: sync }).collect();
        let mut syncs = vec![sync; 9999];
        syncs.push(longest);
        DiskResult {
            record_bytes: 2300,
            syncs: Quantiles::of(syncs),
            seconds,
            windows,
            bandwidth: 1e8,
            reserved: ReservedRoom::Kept,
        }
    }

    #[test]
    fn a_credit_that_ends_is_seen() {
        let slower = result(&[3000.0, 3000.0, 3000.0, 300.0, 300.0], 60.0, 0.001, 0.001);
        assert_eq!(slower.pace(), Pace::Slower { first: 3000.0, last: 300.0 });
        assert_eq!(slower.advice().window_ms, 0);
        assert_eq!(result(&[1000.0, 1000.0, 900.0, 600.0, 600.0], 60.0, 0.001, 0.001).pace(), Pace::Steady);
        assert_eq!(result(&[1000.0; 10], 29.0, 0.001, 0.001).pace(), Pace::TooShort);
        assert_eq!(result(&[1000.0], 60.0, 0.001, 0.001).pace(), Pace::TooShort);
    }

    #[test]
    fn advice_follows_the_disk() {
        let advice = |sync: f64, longest: f64| result(&[1.0; 10], 60.0, sync, longest).advice();
        assert_eq!(advice(0.0002, 0.001), DiskAdvice { window_ms: 0, heartbeat_ms: 100, election_ms: 1000 });
        assert_eq!(advice(0.001, 0.5), DiskAdvice { window_ms: 1, heartbeat_ms: 100, election_ms: 2500 });
        assert_eq!(advice(0.08, 0.1), DiskAdvice { window_ms: 5, heartbeat_ms: 200, election_ms: 2000 });
        assert_eq!(advice(0.001, 60.0).election_ms, 50_000);
    }

    #[test]
    fn a_run_measures_and_leaves_nothing() {
        let dir = TempDir::new("disk-trial");
        let trial = DiskTrial { record_bytes: 100, records_max: 5, time: Duration::from_secs(60) };
        let mut told = 0;
        let result = trial.run(dir.path(), |_| told += 1).unwrap();
        assert_eq!((result.syncs.count(), told, result.record_bytes), (5, 5, 100));
        assert!(result.bandwidth > 0.0 && result.rate() > 0.0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::fs::remove_dir(dir.path()).unwrap();
        assert!(trial.run(dir.path(), |_| ()).is_err(), "no such directory");
    }
}
