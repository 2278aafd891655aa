//! Provides counters and histograms that many threads can update without slowing each other down, and gauges.
//! Each thread adds to its own lane, a part of the metric's memory in separate cache lines; the lanes are
//! summed only when the metric is read. Gauges have no lanes. Numbers that other crates count are copied at
//! each scrape. All memory orders are relaxed, so a reader may see the second of two related updates without
//! the first.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Number of lanes of a counter. If there are more threads, several share a lane: the counts stay correct,
/// but updates become slower.
const LANES: usize = 8;
const CELLS_PER_LINE: usize = 8;

static NEXT_LANE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LANE: Cell<usize> = Cell::new(NEXT_LANE.fetch_add(1, Ordering::Relaxed) % LANES);
}

fn lane() -> usize {
    // Use lane 0 if the thread is ending and can no longer access its thread-local lane.
    LANE.try_with(Cell::get).unwrap_or(0)
}

/// A cache line of cells. All of them belong to the same lane, so that threads of different lanes never write
/// to the same cache line.
#[repr(align(64))]
#[derive(Default)]
struct Line([AtomicU64; CELLS_PER_LINE]);

/// A group of cells that exists once in each lane.
struct Block {
    lines: Box<[Line]>,
    lines_per_lane: usize,
}

impl Block {
    fn new(cells: usize) -> Arc<Block> {
        let lines_per_lane = cells.div_ceil(CELLS_PER_LINE);
        let lines = (0..lines_per_lane * LANES).map(|_| Line::default()).collect();
        Arc::new(Block { lines, lines_per_lane })
    }

    #[inline]
    fn cell(&self, lane: usize, index: usize) -> &AtomicU64 {
        &self.lines[lane * self.lines_per_lane + index / CELLS_PER_LINE].0[index % CELLS_PER_LINE]
    }

    #[inline]
    fn add(&self, index: usize, amount: u64) {
        self.cell(lane(), index).fetch_add(amount, Ordering::Relaxed);
    }

    #[inline]
    fn add_float(&self, index: usize, amount: f64) {
        let cell = self.cell(lane(), index);
        let mut seen = cell.load(Ordering::Relaxed);
        loop {
            let sum = (f64::from_bits(seen) + amount).to_bits();
            match cell.compare_exchange_weak(seen, sum, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn total(&self, index: usize) -> u64 {
        (0..LANES).map(|lane| self.cell(lane, index).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    fn total_float(&self, index: usize) -> f64 {
        (0..LANES).map(|lane| f64::from_bits(self.cell(lane, index).load(Ordering::Relaxed))).sum()
    }
}

/// A number that only increases. Clones refer to the same counter.
#[derive(Clone)]
pub struct Counter {
    block: Arc<Block>,
    cell: usize,
}

impl Counter {
    pub(super) fn new() -> Counter {
        Counter { block: Block::new(1), cell: 0 }
    }

    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `amount`.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.block.add(self.cell, amount);
    }

    /// Returns the current count, summed over all lanes.
    pub fn value(&self) -> u64 {
        self.block.total(self.cell)
    }
}

/// A number that only increases, and that other crates count. Each scrape copies the current count into it.
/// Clones refer to the same number.
#[derive(Clone, Default)]
pub struct Total {
    value: Arc<AtomicU64>,
}

impl Total {
    /// Raises the number to `count`; a lower count has no effect. So if two concurrent scrapes write their
    /// counts in the wrong order, the number does not decrease, which Prometheus would take for a restart of
    /// the process.
    pub fn raise_to(&self, count: u64) {
        self.value.fetch_max(count, Ordering::Relaxed);
    }

    /// Returns the number as of the newest scrape: the largest count that was passed to
    /// [`Total::raise_to`], because concurrent scrapes may pass their counts in the wrong order. 0 if there
    /// was no scrape yet.
    pub fn value(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// A whole number that can increase and decrease. Clones refer to the same gauge. Because a gauge can be set,
/// it has only one cell and no lanes. So if many threads change a value often, they should count it
/// elsewhere, and one thread should set the gauge.
#[derive(Clone, Default)]
pub struct Gauge {
    value: Arc<AtomicI64>,
}

impl Gauge {
    /// Sets the gauge.
    #[inline]
    pub fn set(&self, value: i64) {
        self.value.store(value, Ordering::Relaxed);
    }

    /// Sets the gauge to an unsigned number; a number above the maximum of `i64` becomes that maximum.
    #[inline]
    pub fn set_u64(&self, value: u64) {
        self.set(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// Sets the gauge to 1 for true, 0 for false.
    #[inline]
    pub fn set_bool(&self, value: bool) {
        self.set(i64::from(value));
    }

    /// Adds `amount`, which may be negative.
    #[inline]
    pub fn add(&self, amount: i64) {
        self.value.fetch_add(amount, Ordering::Relaxed);
    }

    /// Returns the current value.
    pub fn value(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// Upper bounds of a histogram's buckets, which grow exponentially: `start`, `start * factor`, `start *
/// factor^2` and so on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buckets {
    /// The first bound.
    pub start: f64,
    /// Ratio of each bound to the previous one.
    pub factor: f64,
    /// Number of bounds.
    pub count: usize,
}

impl Buckets {
    /// Returns the bounds. They are computed by repeated multiplication as in etcd, so that even rounding
    /// errors are the same.
    pub fn bounds(self) -> Vec<f64> {
        std::iter::successors(Some(self.start), |bound| Some(bound * self.factor)).take(self.count).collect()
    }
}

/// A distribution of observed values over fixed buckets. Clones refer to the same histogram.
#[derive(Clone)]
pub struct Histogram {
    /// Cells: one for each bucket with an upper bound, one for values above the last bound, and one for the
    /// sum.
    block: Arc<Block>,
    bounds: Arc<[f64]>,
}

impl Histogram {
    pub(super) fn new(bounds: &[f64]) -> Histogram {
        assert!(bounds.is_sorted(), "bounds must ascend: {bounds:?}");
        Histogram { block: Block::new(bounds.len() + 2), bounds: bounds.into() }
    }

    /// Records one value, in the unit of the metric's name.
    #[inline]
    pub fn observe(&self, value: f64) {
        self.observe_each(value, 1);
    }

    /// Records `times` values that were measured together, and whose mean is `value`.
    #[inline]
    pub fn observe_each(&self, value: f64, times: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.block.add(bucket, times);
        self.block.add_float(self.bounds.len() + 1, value * times as f64);
    }

    /// Records one duration, for metrics in seconds.
    #[inline]
    pub fn observe_seconds(&self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }

    /// Records one duration, for metrics in milliseconds.
    #[inline]
    pub fn observe_milliseconds(&self, duration: Duration) {
        self.observe(duration.as_secs_f64() * 1_000.0);
    }

    /// Returns the number of values recorded so far.
    pub fn count(&self) -> u64 {
        (0..=self.bounds.len()).map(|bucket| self.block.total(bucket)).sum()
    }

    /// Returns the sum of the values recorded so far.
    pub fn sum(&self) -> f64 {
        self.block.total_float(self.bounds.len() + 1)
    }

    /// Returns each upper bound with the number of values up to it. The last bound is infinite.
    pub(super) fn cumulative(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let mut seen = 0;
        bounds
            .enumerate()
            .map(|(bucket, bound)| {
                seen += self.block.total(bucket);
                (bound, seen)
            })
            .collect()
    }
}

/// A distribution that other crates count. Each scrape copies the current counts into it, as into a
/// [`Total`]. Clones refer to the same distribution.
#[derive(Clone)]
pub struct Distribution {
    bounds: Arc<[f64]>,
    /// Number of values in each bucket: one for each upper bound, and one for values above the last bound.
    buckets: Arc<[Total]>,
    /// Bits of the sum, which is a floating-point number. The bits of numbers that are not negative have, as
    /// integers, the same order as the numbers, so [`Total::raise_to`] works for them.
    sum: Total,
}

impl Distribution {
    pub(super) fn new(bounds: &[f64]) -> Distribution {
        assert!(bounds.is_sorted(), "bounds must ascend: {bounds:?}");
        let buckets = (0..=bounds.len()).map(|_| Total::default()).collect();
        Distribution { bounds: bounds.into(), buckets, sum: Total::default() }
    }

    /// Raises the distribution to these numbers. `counts` is the number of values in each bucket, not
    /// cumulative, with the values above the last bound at the end. `sum` is the sum of all values, in the
    /// unit of the metric's name.
    ///
    /// # Panics
    /// Panics if the number of counts is not the number of buckets, or if the sum is negative.
    pub fn raise_to(&self, counts: &[u64], sum: f64) {
        assert_eq!(counts.len(), self.buckets.len(), "a count for each bucket");
        assert!(sum >= 0.0, "values are not negative");
        for (bucket, count) in self.buckets.iter().zip(counts) {
            bucket.raise_to(*count);
        }
        self.sum.raise_to(sum.to_bits());
    }

    /// Returns the sum of the values as of the newest scrape: the largest sum that was passed to
    /// [`Distribution::raise_to`], because concurrent scrapes may pass their sums in the wrong order. 0 if
    /// there was no scrape yet.
    pub fn sum(&self) -> f64 {
        f64::from_bits(self.sum.value())
    }

    /// Returns each upper bound with the number of values up to it, like [`Histogram::cumulative`].
    pub(super) fn cumulative(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.buckets.iter().scan(0, |seen, bucket| {
            *seen += bucket.value();
            Some(*seen)
        });
        bounds.zip(counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counted_several_times_is_as_many_values() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        histogram.observe(0.5);
        histogram.observe_each(1.5, 4);
        histogram.observe_each(9.0, 0);
        assert_eq!(histogram.cumulative(), [(1.0, 1), (2.0, 5), (f64::INFINITY, 5)]);
        assert_eq!((histogram.count(), histogram.sum()), (5, 6.5));
    }

    #[test]
    fn what_is_counted_elsewhere_never_steps_back() {
        let total = Total::default();
        total.raise_to(5);
        total.raise_to(3);
        assert_eq!(total.value(), 5);

        let distribution = Distribution::new(&[1.0, 2.0]);
        distribution.raise_to(&[1, 2, 3], 10.5);
        distribution.raise_to(&[1, 1, 3], 9.0);
        assert_eq!(distribution.cumulative(), [(1.0, 1), (2.0, 3), (f64::INFINITY, 6)]);
        assert_eq!(distribution.sum(), 10.5);
        distribution.raise_to(&[1, 2, 4], 100.25);
        assert_eq!(distribution.sum(), 100.25);
    }
}
