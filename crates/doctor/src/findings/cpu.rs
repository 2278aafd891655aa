use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "cpu",
    about: "members whose processors are busy",
    needs: &[
        &[Need::Metric(SECONDS)],
        &[Need::Metric("go_sched_gomaxprocs_threads"), Need::Metric("mainstay_processors")],
    ],
    judge,
};

const SECONDS: &str = "process_cpu_seconds_total";

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let metrics = member.metrics.as_ref().ok()?;
        let used = metrics.rate(SECONDS, &[])?;
        let processors =
            metrics.now("mainstay_processors").or_else(|| metrics.now("go_sched_gomaxprocs_threads"))?;
        let share = used / processors.max(1.0);
        (share >= limits.cpu).then(|| {
            let text = format!("uses {used:.1} of {processors:.0} processors ({})", show::percent(share));
            (Severity::Warning, text)
        })
    })
    .found(
        RULE.name,
        "the processors are busy",
        "Requests wait for a processor. Under more load, heartbeats wait too, and the leader changes.",
        &[
            "look for the largest cost: findings expensive-ranges, authentication-without-token-reuse, crowded-connections",
            "send reads that may return old data to other members: serializable reads, more endpoints per client",
            "add processors to the machine, or move other processes elsewhere",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, judged, with_metrics};

    #[test]
    fn the_share_of_the_processors() {
        let used = |seconds: f64| format!("{SECONDS} {seconds}\ngo_sched_gomaxprocs_threads 2\n");
        assert_eq!(
            facts(&RULE, &with_metrics(&used(100.0), &used(117.0))).1,
            ["m1 (10.0.0.1:2379): uses 1.7 of 2 processors (85 %)"]
        );
        assert_eq!(judged(&RULE, &with_metrics(&used(100.0), &used(116.9))), None);
    }
}
