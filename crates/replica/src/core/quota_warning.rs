//! Warns the operator before the data reaches its quota. etcd does not warn: its operators first notice a
//! full quota when writes are refused.

/// Percentages of the quota at which a warning is logged.
const LEVELS: [u64; 3] = [80, 90, 95];
/// Percentage points by which the data must fall below a level before the warning for that level is logged
/// again.
const REARMED_BELOW: u64 = 5;

/// Remembers the levels for which a warning was logged.
#[derive(Debug, Default)]
pub(super) struct QuotaWarning {
    /// Number of levels, counted from the lowest, for which a warning was logged.
    said: usize,
}

impl QuotaWarning {
    /// Returns the used percentage of the quota if a warning is due now.
    pub fn look(&mut self, in_use_bytes: u64, quota_bytes: u64) -> Option<u64> {
        let percent = u64::try_from(u128::from(in_use_bytes) * 100 / u128::from(quota_bytes.max(1)));
        let percent = percent.unwrap_or(u64::MAX);
        let reached = LEVELS.iter().take_while(|level| percent >= **level).count();
        if reached > self.said {
            self.said = reached;
            return Some(percent);
        }
        while self.said > reached && percent + REARMED_BELOW < LEVELS[self.said - 1] {
            self.said -= 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_is_warned_of_once_until_the_data_was_well_below_it() {
        let mut warning = QuotaWarning::default();
        let said: Vec<Option<u64>> = [79, 80, 85, 89, 91, 90, 89, 91, 84, 91, 97, 120, 10, 81, 96]
            .into_iter()
            .map(|percent| warning.look(percent * 10, 1000))
            .collect();
        let expected = [
            None,
            Some(80),
            None,
            None,
            Some(91),
            None,
            None,
            None,
            None,
            Some(91),
            Some(97),
            None,
            None,
            Some(81),
            Some(96),
        ];
        assert_eq!(said, expected);
        assert_eq!(QuotaWarning::default().look(u64::MAX, 0), Some(u64::MAX));
    }
}
