//! Computes quantiles of durations that were measured one by one.

/// Measured times in seconds, sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quantiles {
    sorted: Vec<f64>,
}

impl Quantiles {
    /// Returns the quantiles of these times, which may be in any order.
    pub fn of(mut times: Vec<f64>) -> Quantiles {
        times.sort_by(f64::total_cmp);
        Quantiles { sorted: times }
    }

    /// Returns the number of times.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the quantile `share` (0.99 for the 99th percentile) by the nearest rank: the smallest time
    /// such that at least this share of all times is not longer. Returns 0 if there are no times.
    pub fn at(&self, share: f64) -> f64 {
        let rank = (share * self.sorted.len() as f64).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).or(self.sorted.last()).copied().unwrap_or(0.0)
    }

    /// Returns the longest time; 0 if there are no times.
    pub fn max(&self) -> f64 {
        self.sorted.last().copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_ranks() {
        let times = Quantiles::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((times.at(0.5), times.at(0.99), times.at(0.999), times.max()), (50.0, 99.0, 100.0, 100.0));
        assert_eq!((Quantiles::default().at(0.99), Quantiles::of(vec![7.0]).at(0.0)), (0.0, 7.0));
    }
}
