//! Computes quantiles and differences of histograms that count values in buckets, as Prometheus does.

/// A histogram: observations counted in buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Buckets in ascending order. Each has its upper bound and the cumulative number of observations up to
    /// this bound. The last bound is infinite.
    buckets: Vec<(f64, f64)>,
    /// Number of all observations.
    pub count: f64,
    /// Sum of the observations.
    pub sum: f64,
}

impl Histogram {
    /// Creates a histogram from cumulative buckets in any order. If a faulty server reports a lower count for
    /// a bucket than for a smaller bound, the count is raised to that of the smaller bound.
    pub fn new(mut buckets: Vec<(f64, f64)>, count: f64, sum: f64) -> Histogram {
        let count = count.max(0.0);
        buckets.retain(|(bound, below)| !bound.is_nan() && below.is_finite());
        buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let mut least = 0.0f64;
        for (_, below) in &mut buckets {
            least = least.max(*below);
            *below = least;
        }
        if buckets.last().is_none_or(|(bound, _)| bound.is_finite()) {
            buckets.push((f64::INFINITY, count.max(least)));
        }
        let count = buckets.last().map_or(count, |(_, all)| *all);
        Histogram { buckets, count, sum }
    }

    /// Returns the observations made since `earlier`, an earlier reading of the same histogram. Returns all
    /// observations if the count has decreased or the buckets have changed, because the server restarted in
    /// between.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        if earlier.count > self.count || earlier.buckets.len() != self.buckets.len() {
            return self.clone();
        }
        let buckets = self.buckets.iter().zip(&earlier.buckets);
        let buckets = buckets.map(|((bound, now), (_, before))| (*bound, (now - before).max(0.0))).collect();
        Histogram::new(buckets, self.count - earlier.count, self.sum - earlier.sum)
    }

    /// Returns the quantile `share` (0.99 for the 99th percentile), interpolated linearly within its bucket
    /// as Prometheus does. If the quantile is above the last finite bound, returns that bound. Returns `None`
    /// if there are no observations.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        if self.count <= 0.0 {
            return None;
        }
        let wanted = self.count * share;
        let mut from = (0.0, 0.0);
        for (bound, below) in &self.buckets {
            if *below >= wanted && *below > from.1 {
                if bound.is_infinite() {
                    return Some(from.0);
                }
                return Some(from.0 + (bound - from.0) * (wanted - from.1) / (below - from.1));
            }
            from = (*bound, *below);
        }
        None
    }

    /// Returns a lower bound for the number of observations above `value`: those in buckets that lie entirely
    /// above it.
    pub fn above(&self, value: f64) -> f64 {
        let bucket = self.buckets.iter().find(|(bound, _)| *bound >= value);
        bucket.map_or(0.0, |(_, below)| self.count - below)
    }

    /// Returns the mean; `None` without observations.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(counts: &[(f64, f64)]) -> Histogram {
        Histogram::new(counts.to_vec(), counts.last().map_or(0.0, |last| last.1), 1.0)
    }

    #[test]
    fn quantiles_are_read_within_the_bucket() {
        let histogram = of(&[(1.0, 50.0), (2.0, 100.0), (f64::INFINITY, 100.0)]);
        assert_eq!(histogram.quantile(0.5), Some(1.0));
        assert_eq!(histogram.quantile(0.75), Some(1.5));
        assert_eq!(histogram.quantile(1.0), Some(2.0));
        let heavy = of(&[(1.0, 1.0), (f64::INFINITY, 100.0)]);
        assert_eq!(heavy.quantile(0.99), Some(1.0), "no bound above it is known");
        assert_eq!(of(&[(1.0, 0.0), (f64::INFINITY, 0.0)]).quantile(0.5), None);
    }

    #[test]
    fn a_later_look_less_an_earlier_one_is_what_came_between() {
        let before = of(&[(1.0, 10.0), (2.0, 20.0), (f64::INFINITY, 20.0)]);
        let after = of(&[(1.0, 10.0), (2.0, 30.0), (f64::INFINITY, 31.0)]);
        let between = after.since(&before);
        assert_eq!((between.count, between.above(1.0), between.above(2.0)), (11.0, 11.0, 1.0));
        assert_eq!(before.since(&after), before, "the server began anew");
    }

    #[test]
    fn counts_never_fall() {
        let broken = Histogram::new(vec![(2.0, 3.0), (1.0, 5.0), (f64::NAN, 9.0)], 1.0, 0.0);
        assert_eq!((broken.count, broken.quantile(0.5)), (5.0, Some(0.5)));
    }
}
