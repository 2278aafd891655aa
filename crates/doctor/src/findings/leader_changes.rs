use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "leader-changes",
    about: "elections, now or repeatedly since the start",
    needs: &[&[Need::Metric(CHANGES)]],
    judge,
};

const CHANGES: &str = "etcd_server_leader_changes_seen_total";
const QUARTER_HOUR: f64 = 900.0;

fn changed(changes: f64) -> String {
    show::counted(changes, "change of leader", "changes of leader")
}

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let metrics = member.metrics.as_ref().ok()?;
        let recent = metrics.grown(CHANGES, &[])?;
        if recent >= 1.0 {
            let text = format!("{} within {:.0} s", changed(recent), metrics.seconds);
            return Some((Severity::Error, text));
        }
        // Subtract the first leader that the member saw after its start: etcd's counter includes it, but it
        // is no change.
        let changes = (metrics.now(CHANGES)? - 1.0).max(0.0);
        let uptime = metrics.uptime(evidence.taken_unix)?;
        let often = changes / (uptime / QUARTER_HOUR).max(1.0);
        (often >= limits.leader_changes).then(|| {
            let text = format!(
                "{} in {} since it started: {often:.1} in a quarter of an hour",
                changed(changes),
                show::seconds(uptime)
            );
            (Severity::Warning, text)
        })
    })
    .found(
        RULE.name,
        "the leader changes repeatedly",
        "Each election stops writes for about an election timeout, and requests in progress fail or are retried.",
        &[
            "look for the cause among the other findings: slow-disk, fsync-stall, slow-peer-link, cpu, unreachable",
            "if the leader's machine is at its limits, move leadership: mainstay ctl move-leader ID",
            "set --election-timeout to at least ten round trips between the members and five times the slowest sync",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, facts, judged, with_metrics};

    fn seen(changes: u64, uptime: f64) -> String {
        format!("{CHANGES} {changes}\nprocess_start_time_seconds {}\n", NOW - uptime)
    }

    #[test]
    fn a_change_in_the_time_looked_at() {
        assert_eq!(
            facts(&RULE, &with_metrics(&seen(1, 1e6), &seen(2, 1e6))),
            (Severity::Error, vec!["m1 (10.0.0.1:2379): 1 change of leader within 10 s".to_owned()])
        );
        assert_eq!(judged(&RULE, &with_metrics(&seen(2, 1e6), &seen(2, 1e6))), None);
    }

    #[test]
    fn changes_since_the_start() {
        let text = seen(4, 600.0);
        assert_eq!(
            facts(&RULE, &with_metrics(&text, &text)).1,
            [
                "m1 (10.0.0.1:2379): 3 changes of leader in 10 min since it started: 3.0 in a quarter of an hour"
            ]
        );
        let text = seen(3, 600.0);
        assert_eq!(judged(&RULE, &with_metrics(&text, &text)), None);
        let text = seen(4, 901.0);
        assert_eq!(judged(&RULE, &with_metrics(&text, &text)), None);
    }
}
