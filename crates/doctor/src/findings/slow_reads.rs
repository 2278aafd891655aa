use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "slow-reads",
    about: "linearizable reads that wait long for the leader's confirmation",
    needs: &[&[Need::Metric(SLOW)], &[Need::Metric(FAILED)]],
    judge,
};

const SLOW: &str = "etcd_server_slow_read_indexes_total";
const FAILED: &str = "etcd_server_read_indexes_failed_total";

fn judge(evidence: &Evidence, _: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let metrics = member.metrics.as_ref().ok()?;
        let slow = metrics.grown(SLOW, &[]).unwrap_or(0.0);
        let failed = metrics.grown(FAILED, &[]).unwrap_or(0.0);
        let severity = if failed >= 1.0 { Severity::Error } else { Severity::Warning };
        (slow + failed >= 1.0).then(|| {
            let (slow, failed) = (show::count(slow), show::count(failed));
            let text =
                format!("{slow} slow and {failed} failed read confirmations within {:.0} s", metrics.seconds);
            (severity, text)
        })
    })
    .found(
        RULE.name,
        "linearizable reads wait for the leader",
        "Each linearizable read waits until the leader has confirmed with a majority that it is still the leader.",
        &[
            "check whether members are cut off or busy: findings slow-peer-link, cpu, leader-changes",
            "use serializable reads, which do not wait, where slightly old data is acceptable (mainstay ctl get --consistency=s)",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, judged, with_metrics};

    #[test]
    fn slow_and_failed_ones() {
        let counts = |slow: u64, failed: u64| format!("{SLOW} {slow}\n{FAILED} {failed}\n");
        assert_eq!(
            facts(&RULE, &with_metrics(&counts(3, 7), &counts(4, 7))),
            (
                Severity::Warning,
                vec!["m1 (10.0.0.1:2379): 1 slow and 0 failed read confirmations within 10 s".to_owned()]
            )
        );
        assert_eq!(facts(&RULE, &with_metrics(&counts(3, 7), &counts(3, 8))).0, Severity::Error);
        assert_eq!(judged(&RULE, &with_metrics(&counts(3, 7), &counts(3, 7))), None);
    }
}
