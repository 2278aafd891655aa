//! How short of processors the machine is, as the core's own thread feels it.
//!
//! A round of messages and a sync cost about the same whatever they carry. While processors are idle, the sooner they
//! begin the better. When they are not, each takes time from requests, and what waits a few milliseconds for others to
//! share its way is answered sooner for it. How long the kernel lets a runnable thread wait (`/proc/<tid>/schedstat`)
//! tells the two apart, which neither the number of clients nor the size of batches can.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::time::{Duration, Instant};

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(100);
/// The share of its time that a thread has to wait before anything is slowed down.
const WAITS_MIN: f64 = 0.15;
/// The share from which on the pace is the slowest.
const WAITS_MAX: f64 = 0.45;
/// The slowest pace.
const PACE_MAX: Duration = Duration::from_millis(10);

/// Knows how short processors are.
pub(super) struct Pressure {
    /// Absent where the kernel does not tell.
    schedstat: Option<File>,
    /// Nanoseconds run and waited, as last seen.
    seen: (u64, u64),
    next_look: Instant,
    /// The share of the time that the thread had to wait for a processor, smoothed.
    waits: f64,
}

impl Pressure {
    /// Of the calling thread.
    pub fn here(now: Instant) -> Pressure {
        let schedstat = File::open("/proc/thread-self/schedstat").ok();
        Pressure { schedstat, seen: (0, 0), next_look: now, waits: 0.0 }
    }

    /// Looks, if it is time.
    pub fn look(&mut self, now: Instant) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + INTERVAL;
        let Some((run, waited)) = self.schedstat.as_mut().and_then(read) else { return };
        let (ran, stood) = (run.saturating_sub(self.seen.0), waited.saturating_sub(self.seen.1));
        self.seen = (run, waited);
        self.felt(ran, stood);
    }

    fn felt(&mut self, ran: u64, stood: u64) {
        // A thread with next to nothing to do says nothing about the machine.
        let share = if ran + stood < 1_000_000 { 0.0 } else { stood as f64 / (ran + stood) as f64 };
        self.waits += (share - self.waits) / 4.0;
    }

    /// The shortest time between two beginnings of what costs the same whatever it carries.
    pub fn pace(&self) -> Duration {
        let pressing = ((self.waits - WAITS_MIN) / (WAITS_MAX - WAITS_MIN)).clamp(0.0, 1.0);
        PACE_MAX.mul_f64(pressing)
    }
}

fn read(file: &mut File) -> Option<(u64, u64)> {
    let mut text = [0; 96];
    file.seek(SeekFrom::Start(0)).ok()?;
    let len = file.read(&mut text).ok()?;
    let mut numbers = std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace();
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_has_to_wait_slows_down() {
        let mut pressure = Pressure { schedstat: None, seen: (0, 0), next_look: Instant::now(), waits: 0.0 };
        for _ in 0..50 {
            pressure.felt(90_000_000, 5_000_000);
        }
        assert_eq!(pressure.pace(), Duration::ZERO);
        for _ in 0..50 {
            pressure.felt(10_000, 500_000);
        }
        assert_eq!(pressure.pace(), Duration::ZERO, "an idle thread waits for nothing");
        for _ in 0..50 {
            pressure.felt(30_000_000, 60_000_000);
        }
        assert_eq!(pressure.pace(), PACE_MAX);
        for _ in 0..50 {
            pressure.felt(70_000_000, 30_000_000);
        }
        assert!(pressure.pace() > PACE_MAX / 3 && pressure.pace() < PACE_MAX, "{:?}", pressure.pace());
    }
}
