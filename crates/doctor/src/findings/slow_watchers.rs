use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "slow-watchers",
    about: "watches that do not keep up with their events",
    needs: &[&[Need::Metric(SLOW)]],
    judge,
};

const SLOW: &str = "etcd_debugging_mvcc_slow_watcher_total";

/// Largest number of clients with slow watches that are reported for each member.
const TOLD_MAX: usize = 5;

fn judge(evidence: &Evidence, _: &Limits) -> Option<Finding> {
    let mut facts = Facts::default();
    for (member, metrics) in evidence.metrics() {
        let Some((before, after)) = metrics.before.sum(SLOW, &[]).zip(metrics.now(SLOW)) else { continue };
        // Take the lower of the two readings, so that only watches that stay behind are reported. A watch
        // that starts by reading history is behind only for a short time.
        let lasting = before.min(after);
        if lasting < 1.0 {
            continue;
        }
        let text = format!("{} behind the events", show::counted(lasting, "watch lags", "watches lag"));
        facts.add(Severity::Warning, Fact::of(member, text));
        let clients = member.page.as_ref().ok().and_then(|page| page.clients.as_ref());
        let mut slow: Vec<_> =
            clients.into_iter().flatten().filter(|client| client.slow_watches >= 1.0).collect();
        slow.sort_by(|a, b| b.slow_watches.total_cmp(&a.slow_watches));
        for client in slow.iter().take(TOLD_MAX) {
            let (slow, all) = (show::count(client.slow_watches), show::count(client.watches));
            let text = format!("{}: {slow} of its {all} watches", client.address);
            facts.add(Severity::Warning, Fact::of(member, text));
        }
    }
    facts.found(
        RULE.name,
        "watches do not keep up",
        "Their clients act on old data; if history is compacted before they have read it, they must list again.",
        &[
            "check that their clients read their events, and cancel watches that are not read",
            "watch less: a narrower prefix, filters, no previous values",
            "use fewer watches per connection: finding crowded-connections",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, judged, with_metrics};
    use crate::page::Page;

    #[test]
    fn slow_twice() {
        let slow = |count: u64| format!("{SLOW} {count}\n");
        assert_eq!(
            facts(&RULE, &with_metrics(&slow(3), &slow(1))).1,
            ["m1 (10.0.0.1:2379): 1 watch lags behind the events"]
        );
        assert_eq!(judged(&RULE, &with_metrics(&slow(0), &slow(3))), None);
    }

    #[test]
    fn whose_they_are() {
        let mut evidence = with_metrics(&format!("{SLOW} 3\n"), &format!("{SLOW} 3\n"));
        let page = br#"{"clients":[{"address":"10.0.0.8","watches":9,"slow_watches":0},
            {"address":"10.0.0.9","watches":4,"slow_watches":3}]}"#;
        evidence.members[0].page = Page::read(page);
        assert_eq!(
            facts(&RULE, &evidence).1,
            [
                "m1 (10.0.0.1:2379): 3 watches lag behind the events",
                "m1 (10.0.0.1:2379): 10.0.0.9: 3 of its 4 watches"
            ]
        );
    }
}
