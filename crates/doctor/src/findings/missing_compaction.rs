use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "missing-compaction",
    about: "history that is never compacted",
    needs: &[&[Need::Metric(CURRENT)], &[Need::Metric(COMPACTED)]],
    judge,
};

const CURRENT: &str = "etcd_debugging_mvcc_current_revision";
const COMPACTED: &str = "etcd_debugging_mvcc_compact_revision";
const KEYS: &str = "etcd_debugging_mvcc_keys_total";
/// Minimum number of kept revisions per key for a finding. With so many, most of the database is history.
const REVISIONS_PER_KEY: f64 = 3.0;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let metrics = member.metrics.as_ref().ok()?;
        let (current, compacted) = (metrics.now(CURRENT)?, metrics.now(COMPACTED)?);
        let kept = current - compacted.max(0.0);
        let keys = metrics.now(KEYS).unwrap_or(0.0);
        (kept >= limits.revisions && kept >= REVISIONS_PER_KEY * keys).then(|| {
            let (kept, keys) = (show::count(kept), show::count(keys));
            let last = match compacted > 0.0 {
                true => format!("compacted up to {compacted:.0} of {current:.0}"),
                false => "never compacted".to_owned(),
            };
            (Severity::Warning, format!("{kept} revisions of {keys} keys are kept: {last}"))
        })
    })
    .found(
        RULE.name,
        "history is not compacted",
        "The database grows with each write until the quota is reached, and starts and restores take longer.",
        &[
            "compact automatically: --auto-compaction-mode=periodic --auto-compaction-retention=1h on each member",
            "compact now: mainstay ctl compact REVISION",
            "Kubernetes compacts automatically every five minutes: check that its API server reaches etcd",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, judged, with_metrics};

    fn at(current: u64, compacted: i64, keys: u64) -> Evidence {
        with_metrics("", &format!("{CURRENT} {current}\n{COMPACTED} {compacted}\n{KEYS} {keys}\n"))
    }

    #[test]
    fn revisions_kept() {
        assert_eq!(
            facts(&RULE, &at(100_000, -1, 50)).1,
            ["m1 (10.0.0.1:2379): 100,000 revisions of 50 keys are kept: never compacted"]
        );
        assert_eq!(judged(&RULE, &at(99_999, -1, 50)), None);
        assert_eq!(judged(&RULE, &at(300_000, 200_001, 50)), None);
        assert_eq!(facts(&RULE, &at(300_000, 200_000, 50)).1.len(), 1);
        assert_eq!(judged(&RULE, &at(100_000, -1, 33_334)), None, "data, not history");
    }
}
