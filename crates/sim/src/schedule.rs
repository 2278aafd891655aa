//! Queues the simulation's events in the order of their virtual times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Virtual time in nanoseconds, starting at 0.
pub type Nanos = u64;

/// One microsecond.
pub const MICRO: Nanos = 1000;
/// One millisecond.
pub const MILLI: Nanos = 1_000_000;
/// One second.
pub const SECOND: Nanos = 1_000_000_000;

/// Queue of events in the order of their times; events with the same time are in insertion order.
pub struct Schedule<E> {
    now: Nanos,
    next: u64,
    waiting: BinaryHeap<Reverse<Due<E>>>,
}

struct Due<E> {
    at: Nanos,
    number: u64,
    /// The event is boxed, so that the heap moves only pointers.
    event: Box<E>,
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Due<E> {}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Schedule { now: 0, next: 0, waiting: BinaryHeap::new() }
    }
}

impl<E> Schedule<E> {
    /// Returns the time of the last event taken.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Adds an event that happens after a delay.
    pub fn after(&mut self, delay: Nanos, event: E) {
        self.at(self.now + delay, event);
    }

    /// Adds an event that happens at this time, or now if the time has passed.
    pub fn at(&mut self, at: Nanos, event: E) {
        let number = self.next;
        self.next += 1;
        self.waiting.push(Reverse(Due { at: at.max(self.now), number, event: Box::new(event) }));
    }

    /// Takes the next event and advances the time to it.
    pub fn take(&mut self) -> Option<E> {
        let Reverse(due) = self.waiting.pop()?;
        self.now = due.at;
        Some(*due.event)
    }

    /// Returns the number of waiting events.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if no event waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_they_were_put_in() {
        let mut schedule = Schedule::default();
        for (delay, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            schedule.after(delay, event);
        }
        let mut seen = Vec::new();
        while let Some(event) = schedule.take() {
            seen.push((schedule.now(), event));
        }
        assert_eq!(seen, [(1, 'a'), (3, 'b'), (5, 'c'), (5, 'd')]);
        schedule.at(2, 'e');
        schedule.take();
        assert_eq!(schedule.now(), 5, "time does not go back");
    }
}
