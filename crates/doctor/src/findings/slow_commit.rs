use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "slow-commit",
    about: "slow backend commits (etcd)",
    needs: &[&[Need::OnlyEtcd(COMMIT)]],
    judge,
};

const COMMIT: &str = "etcd_disk_backend_commit_duration_seconds";
const SEVERE: f64 = 10.0;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let metrics = member.metrics.as_ref().ok()?;
        let observed = metrics.observed(COMMIT, &[])?;
        let p99 = observed.histogram.quantile(0.99)?;
        let severity = if p99 > SEVERE * limits.commit { Severity::Error } else { Severity::Warning };
        (p99 > limits.commit).then(|| {
            let (p99, limit) = (show::seconds(p99), show::seconds(limits.commit));
            (severity, format!("a commit takes {p99} (p99), limit {limit} {}", observed.span(metrics)))
        })
    })
    .found(
        RULE.name,
        "commits to the database file are slow",
        "While a commit runs, applying entries waits, and reads wait for that.",
        &[
            "measure the disk: mainstay check disk --path DATA-DIR --size 65536",
            "a large or fragmented file slows commits: mainstay ctl defrag, and compact more often",
            "put the log on a disk of its own, so that the two do not wait for each other: --wal-dir",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, histogram, judged, with_metrics};

    #[test]
    fn the_p99_against_the_limit() {
        let slow = histogram(COMMIT, "", &[(0.016, 90), (0.032, 100)]);
        assert_eq!(
            facts(&RULE, &with_metrics("", &slow)),
            (
                Severity::Warning,
                vec![
                    "m1 (10.0.0.1:2379): a commit takes 30.4 ms (p99), limit 25.0 ms (100 in 10 s)"
                        .to_owned()
                ]
            )
        );
        // 0.016 + 0.016 * 9 / 16 = 25 ms: the p99 is at the limit, not above it.
        let near = histogram(COMMIT, "", &[(0.016, 981), (0.032, 997), (0.064, 1000)]);
        let found = judged(&RULE, &with_metrics("", &near));
        assert_eq!(found, None, "{found:?}");
    }
}
