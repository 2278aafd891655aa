use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "slow-watchers",
    about: "watches that do not keep up with the events",
    needs: &[&[Need::Metric(SLOW)]],
    judge,
};

const SLOW: &str = "etcd_debugging_mvcc_slow_watcher_total";

fn judge(evidence: &Evidence, _: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let metrics = member.metrics.as_ref().ok()?;
        let before = metrics.before.sum(SLOW, &[])?;
        let after = metrics.now(SLOW)?;
        // A watch that catches up with history is slow for a moment; one that is so twice does not keep up.
        let lasting = before.min(after);
        (lasting >= 1.0).then(|| (Severity::Warning, format!("{} behind the events", show::counted(lasting, "watch lags", "watches lag"))))
    })
    .found(
        RULE.name,
        "watches do not keep up",
        "Their clients act on old data; when history is compacted before they have read it, they have to list anew.",
        &[
            "see whether their clients read: a watch that nobody reads is to be cancelled",
            "narrow what is watched: a prefix, filters, no previous values",
            "fewer watches per connection: finding crowded-connections",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, judged, with_metrics};

    #[test]
    fn slow_twice() {
        let slow = |count: u64| format!("{SLOW} {count}\n");
        assert_eq!(
            facts(&RULE, &with_metrics(&slow(3), &slow(1))).1,
            ["m1 (10.0.0.1:2379): 1 watch lags behind the events"]
        );
        assert_eq!(judged(&RULE, &with_metrics(&slow(0), &slow(3))), None);
    }
}
