//! Says whether a server carried a cluster: latencies below a limit, and nothing that falls behind.

use std::time::Duration;

use super::KINDS;
use super::measured::Measured;

/// Longest time after the window that answers and events may take if nothing has fallen behind.
pub const CATCH_UP_MAX: Duration = Duration::from_secs(1);

impl Measured {
    /// Returns a sentence for each reason for which the server did not carry the cluster: a kind of operation
    /// whose p99 exceeds the limit, or anything that failed or fell behind. Empty if it carried it.
    pub fn shortfalls(&self, p99_max: Duration) -> Vec<String> {
        let mut all = Vec::new();
        for (kind, series) in KINDS.iter().zip(&self.series) {
            let p99 = Duration::from_nanos(series.histogram().percentile(99.0));
            if series.count() > 0 && p99 > p99_max {
                all.push(format!("{kind}: p99 is {:.1} ms", p99.as_secs_f64() * 1e3));
            }
            if let Some((text, _)) = series.errors.iter().max_by_key(|(_, count)| **count) {
                all.push(format!("{kind}: {} failed, most of them: {text}", series.failed()));
            }
        }
        for (kind, skipped) in KINDS.iter().zip(self.skipped) {
            if skipped > 0 {
                all.push(format!("{kind}: {skipped} did not begin, because the last one was not answered"));
            }
        }
        if self.disordered > 0 {
            all.push(format!("{} events arrived after later ones", self.disordered));
        }
        all.extend(self.differences.iter().cloned());
        if self.catch_up > CATCH_UP_MAX {
            all.push(format!(
                "answers and events of the window arrived up to {:.1} s after it",
                self.catch_up.as_secs_f64()
            ));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::samples::Series;

    fn fine() -> Measured {
        let mut series = vec![Series::default(); KINDS.len()];
        series[0] = Series::of(1, (0..1000).map(|at| if at < 991 { 1_000_000 } else { 90_000_000 }));
        Measured { series, ..Measured::default() }
    }

    #[test]
    fn a_server_that_keeps_up_has_no_shortfalls() {
        assert_eq!(fine().shortfalls(Duration::from_millis(50)), [""; 0]);
    }

    #[test]
    fn each_way_to_fall_behind_is_told() {
        let limit = Duration::from_millis(50);
        let told = |change: fn(&mut Measured)| {
            let mut measured = fine();
            change(&mut measured);
            measured.shortfalls(limit).join("; ")
        };
        assert_eq!(fine().shortfalls(Duration::from_micros(900)), ["lease renewal: p99 is 1.0 ms"]);
        assert_eq!(told(|it| it.series[1].fail("no".into())), "node status: 1 failed, most of them: no");
        assert!(told(|it| it.skipped[0] = 3).starts_with("lease renewal: 3 did not begin"));
        assert_eq!(told(|it| it.disordered = 2), "2 events arrived after later ones");
        assert_eq!(told(|it| it.differences.push("lost".into())), "lost");
        assert!(told(|it| it.catch_up = Duration::from_millis(1500)).contains("up to 1.5 s after it"));
    }
}
