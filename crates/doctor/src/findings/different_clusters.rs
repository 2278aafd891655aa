use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};

pub const RULE: Rule = Rule {
    name: "different-clusters",
    about: "endpoints of different clusters",
    needs: &[&[Need::Status]],
    judge,
};

fn judge(evidence: &Evidence, _: &Limits) -> Option<Finding> {
    let first = evidence.statuses().next()?.1.cluster_id;
    if evidence.statuses().all(|(_, status)| status.cluster_id == first) {
        return None;
    }
    let mut facts = Facts::default();
    for (member, status) in evidence.statuses() {
        facts.add(Severity::Error, Fact::of(member, format!("cluster {:x}", status.cluster_id)));
    }
    facts.found(
        RULE.name,
        "the endpoints belong to different clusters",
        "A client with these endpoints may read from one cluster what it wrote to another.",
        &[
            "give each client the endpoints of one cluster only",
            "if a member was started with another --initial-cluster-token or an old data directory: remove it and add it again",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, healthy, judged, status};

    #[test]
    fn two_clusters() {
        let mut evidence = healthy();
        assert_eq!(judged(&RULE, &evidence), None);
        status(&mut evidence, 2).cluster_id = 0xabc;
        let (severity, facts) = facts(&RULE, &evidence);
        assert_eq!((severity, facts.len()), (Severity::Error, 3));
        assert_eq!(facts[2], "m3 (10.0.0.3:2379): cluster abc");
    }
}
