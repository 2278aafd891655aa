//! Measurements: the latency of each operation, the operations of each second, and the failures.

use std::collections::BTreeMap;

use crate::loadgen::histogram::Histogram;

/// Largest number of latencies that are kept exactly. Further latencies are only counted in a histogram.
const EXACT_MAX: usize = 16 << 20;

/// Measurements of one kind of operation in one run. Latencies are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Series {
    exact: Vec<u64>,
    counted: Histogram,
    /// Operations by the Unix second in which they were due.
    pub seconds: BTreeMap<i64, Second>,
    /// Number of failures by error text.
    pub errors: BTreeMap<String, u64>,
}

/// Operations of one second.
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
    /// Creates a series with these latencies; all operations were due in this second.
    pub fn of(second: i64, latencies: impl IntoIterator<Item = u64>) -> Self {
        let mut series = Self::default();
        latencies.into_iter().for_each(|latency| series.record(second, latency));
        series
    }

    /// Records a successful operation.
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

    /// Records a failed operation.
    pub fn fail(&mut self, mut text: String) {
        // The text and the number of different texts are limited, so that a server cannot fill the memory
        // with them.
        if let Some((end, _)) = text.char_indices().nth(1000) {
            text.truncate(end);
        }
        if self.errors.len() >= 1000 && !self.errors.contains_key(&text) {
            *self.errors.entry("other errors".to_owned()).or_default() += 1;
        } else {
            *self.errors.entry(text).or_default() += 1;
        }
    }

    /// Adds another thread's measurements.
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

    /// Returns the number of successes.
    pub fn count(&self) -> u64 {
        self.exact.len() as u64 + self.counted.count()
    }

    /// Returns the number of failures.
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

    /// Returns a histogram of all latencies, which gives three decimal digits.
    pub fn histogram(&self) -> Histogram {
        let mut all = self.counted.clone();
        self.exact.iter().for_each(|latency| all.record(*latency));
        all
    }
}
