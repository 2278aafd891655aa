//! Keeps the times that set the pace of the core's loop: the time of its next tick, and measurements of how
//! busy the processors and the disk are.

use std::time::{Duration, Instant};

use super::cpu_pressure::CpuPressure;
use super::writing::Writing;

/// The time of the next tick, and two measurements that the core uses to decide how it works: how busy the
/// processors are, and how long the disk takes.
pub(super) struct Pace {
    next_tick: Instant,
    /// Measurement of how busy the processors are.
    pub cpu: CpuPressure,
    /// Decides which thread writes a batch to the log.
    pub writing: Writing,
}

impl Pace {
    /// Returns the value for a member that starts; its first tick is due immediately.
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

    /// Returns the time by which the next tick is overdue.
    pub fn late(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.next_tick)
    }

    /// Sets the time of the next tick.
    pub fn tick_at(&mut self, next: Instant) {
        self.next_tick = next;
    }
}
