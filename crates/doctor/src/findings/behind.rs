use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "member-behind",
    about: "voting members far behind the leader",
    needs: &[&[Need::Status]],
    judge,
};

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    lagging(evidence, limits.behind, false).found(
        RULE.name,
        "members are far behind the leader",
        "Their serializable reads and watches return old data. If another member fails and the cluster \
         needs them for its quorum, writes stop until they have caught up.",
        &[
            "look for the cause: findings slow-disk, slow-peer-link, cpu of those members",
            "if one never catches up: mainstay rebuild FLAGS (etcd: member remove, empty its data directory, member add)",
        ],
    )
}

/// Returns a fact about each voter, or with `learners` about each learner, whose applied index is at least
/// `entries_max` entries below the highest commit index of any member.
pub(crate) fn lagging(evidence: &Evidence, entries_max: f64, learners: bool) -> Facts {
    let mut facts = Facts::default();
    // Members are asked for their status at different times, and under load many entries are committed in
    // between. To compare fairly, estimate the highest commit index at the time when each member was asked.
    let Some((_, newest)) = evidence.statuses().max_by_key(|(_, status)| status.index) else { return facts };
    for (member, status) in evidence.statuses().filter(|(_, status)| status.is_learner == learners) {
        let lag = newest.index_at(status.at_unix) - status.applied as f64;
        if lag >= entries_max {
            let (applied, lag, newest) = (status.applied, show::count(lag), newest.index);
            facts.add(
                Severity::Warning,
                Fact::of(member, format!("has applied index {applied}, {lag} entries behind {newest}")),
            );
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, healthy, judged, status};

    #[test]
    fn entries_behind() {
        let mut evidence = healthy();
        status(&mut evidence, 0).index = 6000;
        status(&mut evidence, 0).applied = 6000;
        status(&mut evidence, 1).applied = 5990;
        status(&mut evidence, 2).applied = 1000;
        assert_eq!(
            facts(&RULE, &evidence).1,
            ["m3 (10.0.0.3:2379): has applied index 1000, 5,000 entries behind 6000"]
        );
        status(&mut evidence, 2).applied = 1001;
        assert_eq!(judged(&RULE, &evidence), None);
        status(&mut evidence, 2).applied = 0;
        status(&mut evidence, 2).is_learner = true;
        assert_eq!(judged(&RULE, &evidence), None, "a learner is another matter");
    }

    #[test]
    fn a_member_asked_earlier_is_not_behind_for_that() {
        let mut evidence = healthy();
        let leader = status(&mut evidence, 0);
        (leader.index, leader.applied) = (100_000, 100_000);
        (leader.earlier, leader.at_unix) = (Some((0, 0.0)), 10.0);
        // At 10,000 entries a second, the leader's commit index was 90,000 at 9 s.
        for (at, applied) in [(1, 90_000), (2, 85_001)] {
            let follower = status(&mut evidence, at);
            (follower.applied, follower.at_unix) = (applied, 9.0);
        }
        assert_eq!(judged(&RULE, &evidence), None);
        status(&mut evidence, 2).applied = 85_000;
        assert_eq!(
            facts(&RULE, &evidence).1,
            ["m3 (10.0.0.3:2379): has applied index 85000, 5,000 entries behind 100000"]
        );
    }
}
