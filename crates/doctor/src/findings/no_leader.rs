use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};

pub const RULE: Rule = Rule {
    name: "no-leader",
    about: "members without a leader",
    needs: &[&[Need::Status, Need::Metric("etcd_server_has_leader")]],
    judge,
};

fn judge(evidence: &Evidence, _: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let led = match (&member.status, &member.metrics) {
            (Ok(status), _) => status.leader != 0,
            (Err(_), Ok(metrics)) => metrics.now("etcd_server_has_leader")? > 0.0,
            (Err(_), Err(_)) => return None,
        };
        (!led).then(|| (Severity::Error, "has no leader".to_owned()))
    })
    .found(
        RULE.name,
        "no leader",
        "Without a leader, writes are impossible and only serializable reads are answered.",
        &[
            "start the members that are down: without a majority there can be no leader (see unreachable)",
            "check that the members reach each other's peer URLs: mainstay check network, mainstay ctl member list",
            "if a majority is lost for good: mainstay utl snapshot restore, or start one member with --force-new-cluster",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, healthy, judged, status, with_metrics};

    #[test]
    fn a_member_without_a_leader() {
        let mut evidence = healthy();
        status(&mut evidence, 1).leader = 0;
        assert_eq!(facts(&RULE, &evidence).1, ["m2 (10.0.0.2:2379): has no leader"]);
        // If the member does not return its status, its metrics decide whether it has a leader.
        let mut evidence = with_metrics("", "etcd_server_has_leader 0\n");
        evidence.members[0].status = Err("late".into());
        assert_eq!(facts(&RULE, &evidence).1, ["m1 (10.0.0.1:2379): has no leader"]);
        let mut evidence = with_metrics("", "etcd_server_has_leader 1\n");
        evidence.members[0].status = Err("late".into());
        assert_eq!(judged(&RULE, &evidence), None);
    }
}
