//! Measures how busy the machine's processors are, as seen by the core's own thread.
//!
//! A round of messages between members, and a sync, cost about the same processor time for one request as for
//! many. While processors are idle, it is best to start rounds and syncs as early as possible. When
//! processors are busy, each round or sync takes processor time from requests. It is then better if requests
//! wait a few milliseconds to share a round or sync, because they are answered earlier.
//!
//! Neither the number of clients nor the size of batches tells the two cases apart, but two counters of the
//! kernel do: how long the kernel lets this runnable thread wait (`/proc/<tid>/schedstat`), and whether any
//! processor was idle at the same time (`/proc/stat`). Both are needed: threads that wake one another in turn
//! wait for a processor now and then even when most processor time is idle. Turns that other threads run
//! (`seat.rs`) are not measured; there are none while the core is busy, because its thread then does not sleep.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::time::{Duration, Instant};

/// Interval between two measurements.
const INTERVAL: Duration = Duration::from_millis(200);
/// Idle share of all processors' time at or above which the processors do not count as busy, so that the pace
/// is not reduced.
const IDLE_ENOUGH: f64 = 0.15;
/// Share of the thread's time spent waiting for a processor at which the pace begins to be reduced.
const WAITS_MIN: f64 = 0.15;
/// Share of the thread's time spent waiting for a processor at which the pace is the slowest.
const WAITS_MAX: f64 = 0.45;
/// Minimum time between two starts of a round or sync at the slowest pace.
const PACE_MAX: Duration = Duration::from_millis(10);

/// Tracks how busy the processors are.
pub(super) struct CpuPressure {
    /// The file `/proc/<tid>/schedstat` of the thread; `None` if the kernel does not provide it.
    schedstat: Option<File>,
    stat: Option<File>,
    /// Nanoseconds for which the thread ran and for which it waited, as of the last measurement.
    seen: (u64, u64),
    /// Ticks of all processors, and those of them that were idle, as of the last measurement.
    ticks: (u64, u64),
    /// Nanoseconds that the thread has spent in voluntary yields of the processor since the last measurement.
    /// The kernel counts them as waiting for a processor, so they are subtracted.
    gave_way: u64,
    next_look: Instant,
    /// Share of its time for which the thread had to wait for a processor, smoothed over the measurements.
    waits: f64,
}

impl CpuPressure {
    /// Starts measuring the calling thread.
    pub fn here(now: Instant) -> CpuPressure {
        CpuPressure {
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            stat: File::open("/proc/stat").ok(),
            seen: (0, 0),
            ticks: (0, 0),
            gave_way: 0,
            next_look: now,
            waits: 0.0,
        }
    }

    /// Returns a value that measures nothing and never reports pressure.
    pub fn none(now: Instant) -> CpuPressure {
        let (gave_way, waits) = (0, 0.0);
        CpuPressure {
            schedstat: None,
            stat: None,
            seen: (0, 0),
            ticks: (0, 0),
            gave_way,
            next_look: now,
            waits,
        }
    }

    /// Records that the thread yielded the processor for this time.
    pub fn gave_way(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.gave_way = self.gave_way.saturating_add(nanos);
    }

    /// Measures if the interval since the last measurement has passed.
    pub fn look(&mut self, now: Instant) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + INTERVAL;
        let Some([run, waited]) = self.schedstat.as_mut().and_then(|file| numbers(file, 0)) else { return };
        let Some([user, nice, system, idle, io_wait, irq, soft_irq]) =
            self.stat.as_mut().and_then(|file| numbers(file, 1))
        else {
            return;
        };
        let (ran, stood) = (run.saturating_sub(self.seen.0), waited.saturating_sub(self.seen.1));
        self.seen = (run, waited);
        let rest = idle + io_wait;
        let all = user + nice + system + irq + soft_irq + rest;
        let (passed, idled) = (all.saturating_sub(self.ticks.0), rest.saturating_sub(self.ticks.1));
        self.ticks = (all, rest);
        self.felt(ran, stood, idled as f64 / passed.max(1) as f64);
    }

    fn felt(&mut self, ran: u64, stood: u64, idle: f64) {
        let stood = stood.saturating_sub(std::mem::take(&mut self.gave_way));
        // A thread that has hardly run or waited gives no information about how busy the machine is, and
        // counts as not waiting.
        let free = ran + stood < 1_000_000 || idle >= IDLE_ENOUGH;
        let share = if free { 0.0 } else { stood as f64 / (ran + stood) as f64 };
        self.waits += (share - self.waits) / 2.0;
    }

    /// Returns the minimum time between two starts of a round or sync; zero while the processors are not
    /// busy.
    pub fn pace(&self) -> Duration {
        let pressing = ((self.waits - WAITS_MIN) / (WAITS_MAX - WAITS_MIN)).clamp(0.0, 1.0);
        PACE_MAX.mul_f64(pressing)
    }
}

/// Skips `words` words of the first line of the file, and returns the next `N` numbers.
fn numbers<const N: usize>(file: &mut File, words: usize) -> Option<[u64; N]> {
    let mut text = [0; 256];
    file.seek(SeekFrom::Start(0)).ok()?;
    let len = file.read(&mut text).ok()?;
    let line = String::from_utf8_lossy(&text[..len]);
    let mut found = line.lines().next()?.split_ascii_whitespace().skip(words);
    let mut out = [0; N];
    for number in &mut out {
        *number = found.next()?.parse().ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells() {
        let mut cpu_pressure = CpuPressure::here(Instant::now());
        cpu_pressure.look(Instant::now());
        // The kernel may not have counted the time of a thread that has just started, but it has counted the
        // time of the machine's processors.
        assert!(cpu_pressure.stat.is_none() || cpu_pressure.ticks.0 > cpu_pressure.ticks.1);
    }

    #[test]
    fn only_a_thread_that_has_to_wait_slows_down() {
        let mut cpu_pressure = CpuPressure::here(Instant::now());
        for _ in 0..50 {
            cpu_pressure.felt(90_000_000, 5_000_000, 0.0);
        }
        assert_eq!(cpu_pressure.pace(), Duration::ZERO);
        for _ in 0..50 {
            cpu_pressure.felt(10_000, 500_000, 0.0);
        }
        assert_eq!(cpu_pressure.pace(), Duration::ZERO, "an idle thread waits for nothing");
        for _ in 0..50 {
            cpu_pressure.felt(30_000_000, 60_000_000, 0.05);
        }
        assert_eq!(cpu_pressure.pace(), PACE_MAX);
        for _ in 0..50 {
            cpu_pressure.gave_way(Duration::from_millis(55));
            cpu_pressure.felt(30_000_000, 60_000_000, 0.05);
        }
        assert_eq!(cpu_pressure.pace(), Duration::ZERO, "it waited because it wanted to");
        for _ in 0..50 {
            cpu_pressure.felt(30_000_000, 60_000_000, 0.5);
        }
        assert_eq!(cpu_pressure.pace(), Duration::ZERO, "there are processors to be had");
        for _ in 0..50 {
            cpu_pressure.felt(70_000_000, 30_000_000, 0.0);
        }
        assert!(
            cpu_pressure.pace() > PACE_MAX / 3 && cpu_pressure.pace() < PACE_MAX,
            "{:?}",
            cpu_pressure.pace()
        );
    }
}
