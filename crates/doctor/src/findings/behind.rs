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
        "Their serializable reads and watches are old, and a cluster that leans on them when another member fails stands \
         still until they have caught up.",
        &[
            "see what holds them up: findings slow-disk, slow-peer-link, cpu of those members",
            "one that never catches up: mainstay rebuild FLAGS (etcd: member remove, empty its data directory, member add)",
        ],
    )
}

/// Members of one kind that have applied so much less than any member has committed.
pub(crate) fn lagging(evidence: &Evidence, entries_max: f64, learners: bool) -> Facts {
    let mut facts = Facts::default();
    let newest = evidence.statuses().map(|(_, status)| status.index).max().unwrap_or(0);
    for (member, status) in evidence.statuses().filter(|(_, status)| status.is_learner == learners) {
        let lag = newest.saturating_sub(status.applied);
        if lag as f64 >= entries_max {
            let text = format!(
                "has applied index {}, {} entries behind {newest}",
                status.applied,
                show::count(lag as f64)
            );
            facts.add(Severity::Warning, Fact::of(member, text));
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
}
