//! The pace of the core's loop: its next tick, and how busy processors and disk are.

use std::time::{Duration, Instant};

use super::cpu_pressure::CpuPressure;
use super::writing::Writing;

/// The time of the next tick, and the two measures by which the core chooses between waiting and working:
/// how busy the processors are, and how long the disk takes.
pub(super) struct Pace {
    next_tick: Instant,
    /// The pressure of other threads on the processors.
    pub cpu: CpuPressure,
    /// Which thread writes a batch to the log.
    pub writing: Writing,
}

impl Pace {
    /// Returns the pace at the start; the first tick is due at once.
    pub fn new(cpu: CpuPressure, now: Instant) -> Pace {
        Pace { next_tick: now, cpu, writing: Writing::new(now) }
    }

    /// Returns true if the next tick is due.
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.next_tick
    }

    /// Returns the time until the next tick.
    pub fn left(&self, now: Instant) -> Duration {
        self.next_tick.saturating_duration_since(now)
    }

    /// Returns the time by which the tick is late.
    pub fn late(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.next_tick)
    }

    /// Sets the time of the next tick.
    pub fn tick_at(&mut self, next: Instant) {
        self.next_tick = next;
    }
}
