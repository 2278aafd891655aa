//! Holds the measurements of a run: the latency of each operation, the operations of each second, and the
//! failures.

use std::collections::BTreeMap;

use crate::loadgen::histogram::Histogram;

/// Maximum number of latencies that are stored one by one. Further ones are only counted in a histogram, so
/// that the memory is bounded.
const EXACT_MAX: usize = 16 << 20;

/// Measurements of one kind of operation in one run. Latencies are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Series {
    exact: Vec<u64>,
    counted: Histogram,
    /// Successful operations, by the second since 1970 in which they were due.
    pub seconds: BTreeMap<i64, Second>,
    /// Number of failed operations, by error message.
    pub errors: BTreeMap<String, u64>,
}

/// The operations that were due in one second.
#[derive(Clone, Debug)]
pub struct Second {
    /// Histogram of all latencies.
    pub latencies: Histogram,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            exact: Vec::new(),
            counted: Histogram::new(Histogram::FINE),
            seconds: BTreeMap::new(),
            errors: BTreeMap::new(),
        }
    }
}

impl Series {
    /// Creates a series with these latencies, of operations that were all due in the second `second`.
    pub fn of(second: i64, latencies: impl IntoIterator<Item = u64>) -> Self {
        let mut series = Self::default();
        latencies.into_iter().for_each(|latency| series.record(second, latency));
        series
    }

    /// Records a successful operation that was due in the second `second`.
    pub fn record(&mut self, second: i64, latency: u64) {
        if self.exact.len() < EXACT_MAX {
            self.exact.push(latency);
        } else {
            self.counted.record(latency);
        }
        self.seconds
            .entry(second)
            .or_insert_with(|| Second { latencies: Histogram::new(Histogram::COARSE) })
            .latencies
            .record(latency);
    }

    /// Records an operation that failed with this error message.
    pub fn fail(&mut self, mut text: String) {
        // Limit the length of a message and the number of different messages, so that a server cannot fill
        // the memory with them.
        if let Some((end, _)) = text.char_indices().nth(1000) {
            text.truncate(end);
        }
        if self.errors.len() >= 1000 && !self.errors.contains_key(&text) {
            *self.errors.entry("other errors".to_owned()).or_default() += 1;
        } else {
            *self.errors.entry(text).or_default() += 1;
        }
    }

    /// Adds the measurements that another thread has made.
    pub fn add(&mut self, other: Self) {
        let room = EXACT_MAX.saturating_sub(self.exact.len());
        let (kept, rest) = other.exact.split_at(room.min(other.exact.len()));
        self.exact.extend_from_slice(kept);
        rest.iter().for_each(|latency| self.counted.record(*latency));
        self.counted.add(&other.counted);
        for (second, more) in other.seconds {
            match self.seconds.entry(second) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(more);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    entry.get_mut().latencies.add(&more.latencies);
                }
            }
        }
        for (text, count) in other.errors {
            *self.errors.entry(text).or_default() += count;
        }
    }

    /// Returns the number of successful operations.
    pub fn count(&self) -> u64 {
        self.exact.len() as u64 + self.counted.count()
    }

    /// Returns the number of failed operations.
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Returns the distinct latencies in ascending order, each with its number of occurrences.
    pub fn sorted(&self) -> Vec<(u64, u64)> {
        let mut exact = self.exact.clone();
        exact.sort_unstable();
        let mut runs: Vec<(u64, u64)> = Vec::with_capacity(exact.len().min(1 << 20));
        for latency in exact {
            match runs.last_mut() {
                Some((last, count)) if *last == latency => *count += 1,
                _ => runs.push((latency, 1)),
            }
        }
        if self.counted.count() > 0 {
            runs.extend(self.counted.buckets());
            runs.sort_unstable();
        }
        runs
    }

    /// Returns a histogram of all latencies, with the precision [`Histogram::FINE`].
    pub fn histogram(&self) -> Histogram {
        let mut all = self.counted.clone();
        self.exact.iter().for_each(|latency| all.record(*latency));
        all
    }
}
