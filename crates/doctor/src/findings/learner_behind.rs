use super::behind::lagging;
use crate::evidence::Evidence;
use crate::finding::Finding;
use crate::limits::Limits;
use crate::rule::{Need, Rule};

pub const RULE: Rule = Rule {
    name: "learner-behind",
    about: "learners far behind the leader",
    needs: &[&[Need::Status]],
    judge,
};

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    lagging(evidence, limits.behind, true).found(
        RULE.name,
        "a learner has fallen behind",
        "It cannot be promoted until it has nine tenths of the leader's log, and it counts towards the \
         maximum number of learners.",
        &[
            "check that it runs and reaches the leader's peer URL; its log shows what it is waiting for",
            "if it is not needed: mainstay ctl member remove ID",
            "once it has caught up: mainstay ctl member promote ID",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, healthy, judged, status};

    #[test]
    fn entries_behind() {
        let mut evidence = healthy();
        status(&mut evidence, 2).is_learner = true;
        assert_eq!(judged(&RULE, &evidence), None);
        status(&mut evidence, 0).index = 6001;
        status(&mut evidence, 0).applied = 6001;
        status(&mut evidence, 1).applied = 6001;
        assert_eq!(
            facts(&RULE, &evidence).1,
            ["m3 (10.0.0.3:2379): has applied index 1000, 5,001 entries behind 6001"]
        );
        status(&mut evidence, 2).applied = 1002;
        assert_eq!(judged(&RULE, &evidence), None);
    }
}
