//! Counts latencies in a histogram with bounded memory, and computes their percentiles.

/// A log-linear histogram, like HdrHistogram: the width of its buckets grows with the value. Each power of
/// two is divided into `2^(precision - 1)` equal buckets, so a value that is read from the histogram exceeds
/// the recorded value by a fraction of at most `1 / 2^(precision - 1)`.
///
/// The values are nanoseconds here, but the histogram does not depend on the unit.
#[derive(Clone, Debug)]
pub struct Histogram {
    precision: u32,
    counts: Vec<u64>,
    total: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Histogram {
    /// Precision for final results: about three decimal digits.
    pub const FINE: u32 = 11;
    /// Precision for the latencies of a single second. There is such a histogram for each second, so it must
    /// be small.
    pub const COARSE: u32 = 6;

    /// Creates an empty histogram with a `precision` from 1 to 16.
    pub fn new(precision: u32) -> Self {
        assert!((1..=16).contains(&precision), "a precision between 1 and 16 bits");
        Self { precision, counts: Vec::new(), total: 0, sum: 0, min: u64::MAX, max: 0 }
    }

    /// Counts a value.
    pub fn record(&mut self, value: u64) {
        self.record_times(value, 1);
    }

    /// Counts a value that occurred `times` times.
    pub fn record_times(&mut self, value: u64, times: u64) {
        if times == 0 {
            return;
        }
        let at = self.bucket(value);
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(at) {
            *count += times;
        }
        self.total += times;
        self.sum += u128::from(value) * u128::from(times);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds all counts of another histogram with the same precision.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.precision, other.precision, "histograms of the same precision");
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Returns the smallest value; 0 if there is none.
    pub fn min(&self) -> u64 {
        if self.total == 0 { 0 } else { self.min }
    }

    /// Returns the largest value, which is exact.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the exact mean; 0 if there are no values.
    pub fn mean(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.sum as f64 / self.total as f64 }
    }

    /// Returns a percentile: the value that `percent` of all values do not exceed. It is rounded up to the
    /// end of its bucket, but never above the largest value.
    pub fn percentile(&self, percent: f64) -> u64 {
        // Reduce the product slightly: a rounding error could put it just above an integer, and so select the
        // next value.
        let wanted = (percent * self.total as f64 / 100.0 * (1.0 - 1e-12)).ceil() as u64;
        let wanted = wanted.clamp(1, self.total.max(1));
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return self.upper(at).clamp(self.min(), self.max);
            }
        }
        self.max
    }

    /// Returns the non-empty buckets in ascending order: the upper end of each, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(at, count)| (self.upper(at).clamp(self.min(), self.max), *count))
    }

    /// Returns the index of a value's bucket. Values below `2^precision` have a bucket each. Above, each
    /// power of two has `2^(precision - 1)` buckets.
    fn bucket(&self, value: u64) -> usize {
        let exponent = (64 - value.leading_zeros()).saturating_sub(self.precision);
        if exponent == 0 {
            return value as usize;
        }
        let half = 1_usize << (self.precision - 1);
        let mantissa = (value >> exponent) as usize;
        (1 << self.precision) + (exponent as usize - 1) * half + (mantissa - half)
    }

    fn upper(&self, bucket: usize) -> u64 {
        let full = 1_usize << self.precision;
        if bucket < full {
            return bucket as u64;
        }
        let half = full / 2;
        let exponent = ((bucket - full) / half + 1) as u32;
        let mantissa = ((bucket - full) % half + half) as u64;
        (((u128::from(mantissa) + 1) << exponent) - 1).min(u128::from(u64::MAX)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_read_back_within_the_promised_error() {
        let mut value = 0_u64;
        while value < 1 << 60 {
            let mut one = Histogram::new(Histogram::FINE);
            one.record(value);
            let bucket = one.bucket(value);
            let upper = one.upper(bucket);
            assert!(upper >= value, "{value} came back as {upper}");
            assert!((upper - value) as f64 <= value as f64 / 1024.0, "{value} came back as {upper}");
            assert!(bucket == 0 || one.upper(bucket - 1) < value, "{value} lies in an earlier bucket");
            value = value + value / 37 + 1;
        }
    }

    #[test]
    fn percentiles_of_a_thousand_values() {
        let mut all = Histogram::new(Histogram::FINE);
        for value in 1..=1000 {
            all.record(value);
        }
        assert_eq!(all.percentile(50.0), 500);
        assert_eq!(all.percentile(99.0), 990);
        assert_eq!(all.percentile(99.9), 999);
        assert_eq!(all.percentile(99.99), 1000);
        assert_eq!(all.percentile(100.0), 1000);
        assert_eq!((all.min(), all.max(), all.count()), (1, 1000, 1000));
        assert!((all.mean() - 500.5).abs() < 1e-9);
    }

    #[test]
    fn two_halves_make_the_whole() {
        let (mut left, mut right, mut whole) = (Histogram::new(6), Histogram::new(6), Histogram::new(6));
        for value in 0..10_000_u64 {
            let value = value * value;
            if value % 2 == 0 {
                left.record(value)
            } else {
                right.record(value)
            }
            whole.record(value);
        }
        left.add(&right);
        assert_eq!(left.buckets().collect::<Vec<_>>(), whole.buckets().collect::<Vec<_>>());
        assert_eq!(left.percentile(99.0), whole.percentile(99.0));
    }
}
