//! Decides when the operations of the load are due. Periodic operations are cadences, so the schedule takes
//! the same few bytes whatever the number of nodes.

use std::time::{Duration, Instant};

/// A sequence of operations at equal distances: operation *k* is due at `offset + k * period`, in seconds
/// since the start of the agenda.
#[derive(Clone, Copy, Debug)]
struct Cadence {
    offset: f64,
    period: f64,
    next: u64,
}

impl Cadence {
    fn due(&self) -> f64 {
        self.offset + self.next as f64 * self.period
    }
}

/// An operation that is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Due<T> {
    /// Which cadence the operation belongs to.
    pub what: T,
    /// Number of the operation in its cadence, from 0.
    pub number: u64,
    /// Time at which the operation is due, whenever it begins.
    pub at: Instant,
}

/// All cadences of a load, with the time at which they start.
#[derive(Clone, Debug)]
pub struct Agenda<T> {
    start: Instant,
    cadences: Vec<(T, Cadence)>,
}

impl<T: Copy> Agenda<T> {
    /// Creates an agenda without cadences.
    pub fn new(start: Instant) -> Self {
        Self { start, cadences: Vec::new() }
    }

    /// Adds a cadence whose first operation is due `offset` after the start, and the others `period` seconds
    /// after each other. A period that is not positive adds nothing: there are no such operations.
    pub fn add(&mut self, what: T, offset: Duration, period: f64) {
        if period.is_finite() && period > 0.0 {
            self.cadences.push((what, Cadence { offset: offset.as_secs_f64(), period, next: 0 }));
        }
    }

    /// Returns the time of the operation that is due next; `None` if there are no cadences.
    pub fn next(&self) -> Option<Instant> {
        self.earliest().map(|at| self.time(self.cadences[at].1.due()))
    }

    /// Takes the next operation, if it is due at `now` and before `end`.
    pub fn take(&mut self, now: Instant, end: Instant) -> Option<Due<T>> {
        let at = self.earliest()?;
        let time = self.time(self.cadences[at].1.due());
        if time > now || time >= end {
            return None;
        }
        let (what, cadence) = &mut self.cadences[at];
        cadence.next += 1;
        Some(Due { what: *what, number: cadence.next - 1, at: time })
    }

    fn time(&self, seconds: f64) -> Instant {
        self.start + Duration::from_secs_f64(seconds.max(0.0))
    }

    /// Returns the index of the cadence whose next operation is due first. There are some twenty cadences, for
    /// which a scan is faster than a heap.
    fn earliest(&self) -> Option<usize> {
        let due = |at: &usize| self.cadences[*at].1.due();
        (0..self.cadences.len()).min_by(|a, b| due(a).total_cmp(&due(b)))
    }
}

/// A fixed order of the numbers below `len`, which looks random and takes no memory: number *k* of the order
/// is `k * factor mod len`. Nodes of a cluster do not renew in the order of their names, and a server must
/// not profit from neighbours that are written one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    len: u64,
    factor: u64,
}

impl Order {
    /// Creates an order of the numbers below `len`, which must not be 0.
    pub fn new(len: u64) -> Self {
        assert!(len > 0, "an order of something");
        // Any factor without a common divisor visits each number once. One near the golden ratio spreads
        // successive numbers best.
        let mut factor = ((len as f64 * 0.618_033_988_75) as u64).max(1);
        while gcd(factor, len) != 1 {
            factor += 1;
        }
        Self { len, factor }
    }

    /// Returns number `k` of the order. The order repeats after `len` numbers.
    pub fn at(self, k: u64) -> u64 {
        (u128::from(k % self.len) * u128::from(self.factor) % u128::from(self.len)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_each_number_once() {
        for len in [1, 2, 3, 10, 97, 1000, 4096, 99_991] {
            let order = Order::new(len);
            let mut seen = vec![false; len as usize];
            for k in 0..len {
                let at = order.at(k) as usize;
                assert!(!std::mem::replace(&mut seen[at], true), "{at} twice among {len}");
            }
            assert_eq!(order.at(0), order.at(len), "the order repeats");
        }
        // Neighbours in time are not neighbours in the order of names.
        let order = Order::new(1000);
        assert!((0..999).all(|k| order.at(k).abs_diff(order.at(k + 1)) > 1));
    }

    #[test]
    fn each_node_is_due_exactly_once_in_every_interval() {
        let (nodes, interval) = (250_u64, 10.0);
        let start = Instant::now();
        let mut agenda = Agenda::new(start);
        agenda.add('l', Duration::ZERO, interval / nodes as f64);
        let order = Order::new(nodes);
        let far = start + Duration::from_secs(1000);
        let mut last = vec![None::<Instant>; nodes as usize];
        for round in 1..=4_u64 {
            let end = start + Duration::from_secs(10 * round);
            let mut count = 0;
            while let Some(due) = agenda.take(far, end) {
                let node = order.at(due.number) as usize;
                if let Some(before) = last[node].replace(due.at) {
                    let apart = (due.at - before).as_secs_f64();
                    assert!((apart - interval).abs() < 1e-6, "node {node}: {apart} s apart");
                }
                count += 1;
            }
            assert_eq!(count, nodes, "in interval {round}");
            assert!(last.iter().all(Option::is_some));
        }
    }

    #[test]
    fn operations_are_taken_in_the_order_of_their_times_and_not_early() {
        let start = Instant::now();
        let mut agenda = Agenda::new(start);
        agenda.add('a', Duration::from_millis(5), 0.010);
        agenda.add('b', Duration::ZERO, 0.004);
        agenda.add('n', Duration::ZERO, f64::INFINITY);
        let end = start + Duration::from_millis(16);
        assert_eq!(agenda.take(start, end).map(|due| due.what), Some('b'));
        assert_eq!(agenda.take(start, end), None, "the next one is due after 4 ms");
        assert_eq!(agenda.next(), Some(start + Duration::from_millis(4)));
        let mut rest = Vec::new();
        while let Some(due) = agenda.take(start + Duration::from_secs(1), end) {
            rest.push((due.what, due.number, (due.at - start).as_millis()));
        }
        assert_eq!(rest, [('b', 1, 4), ('a', 0, 5), ('b', 2, 8), ('b', 3, 12), ('a', 1, 15)]);
    }
}
