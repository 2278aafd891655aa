use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule =
    Rule { name: "slow-disk", about: "slow syncs of the log", needs: &[&[Need::Observations(FSYNC)]], judge };

const FSYNC: &str = "etcd_disk_wal_fsync_duration_seconds";
/// Multiple of the limit above which the finding is an error, because such a disk also delays heartbeats.
const SEVERE: f64 = 10.0;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let metrics = member.metrics.as_ref().ok()?;
        let observed = metrics.observed(FSYNC, &[])?;
        let p99 = observed.histogram.quantile(0.99)?;
        let severity = if p99 > SEVERE * limits.fsync { Severity::Error } else { Severity::Warning };
        (p99 > limits.fsync).then(|| {
            let p50 = show::seconds(observed.histogram.quantile(0.5).unwrap_or(0.0));
            let (p99, limit) = (show::seconds(p99), show::seconds(limits.fsync));
            let span = observed.span(metrics);
            (severity, format!("syncing the log takes {p99} (p99; median {p50}), limit {limit} {span}"))
        })
    })
    .found(
        RULE.name,
        "syncs of the log are slow",
        "Every write waits for the sync of a majority of members; a slow leader slows all writes and may \
         lose leadership.",
        &[
            "measure the disk alone: mainstay check disk --path DATA-DIR",
            "put the log on a disk of its own, preferably an SSD: --wal-dir; move other writers elsewhere (iostat -x 1)",
            "on burstable cloud disks, check the credit; until the disk is fast again, raise \
             --heartbeat-interval and --election-timeout",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, histogram, judged, with_metrics};

    #[test]
    fn the_p99_against_the_limit() {
        // 98 of 100 fsyncs are within 8 ms, the others evenly distributed up to 16 ms: the p99 is 12 ms.
        let slow = histogram(FSYNC, "", &[(0.001, 90), (0.008, 98), (0.016, 100)]);
        assert_eq!(
            facts(&RULE, &with_metrics("", &slow)),
            (
                Severity::Warning,
                vec![
                    "m1 (10.0.0.1:2379): syncing the log takes 12.0 ms (p99; median 556 µs), limit 10.0 ms (100 in 10 s)"
                        .to_owned()
                ]
            )
        );
        let near = histogram(FSYNC, "", &[(0.001, 90), (0.008, 988), (0.016, 1000)]);
        assert_eq!(judged(&RULE, &with_metrics("", &near)), None, "9.3 ms");
        let severe = histogram(FSYNC, "", &[(0.128, 10), (0.256, 100)]);
        assert_eq!(facts(&RULE, &with_metrics("", &severe)).0, Severity::Error);
    }

    #[test]
    fn a_slow_past_does_not_count_once_the_present_is_known() {
        let past = histogram(FSYNC, "", &[(0.001, 0), (0.256, 1000)]);
        let present = histogram(FSYNC, "", &[(0.001, 20), (0.256, 1020)]);
        assert_eq!(judged(&RULE, &with_metrics(&past, &present)), None);
        let quiet = histogram(FSYNC, "", &[(0.001, 19), (0.256, 1019)]);
        assert!(facts(&RULE, &with_metrics(&past, &quiet)).1[0].ends_with("(1,019 since the start)"));
        let young = histogram(FSYNC, "", &[(0.001, 0), (0.256, 19)]);
        assert_eq!(judged(&RULE, &with_metrics("", &young)), None, "too few to say");
        assert_eq!(RULE.blind(&with_metrics("", &young)).len(), 2, "and that is said");
    }
}
