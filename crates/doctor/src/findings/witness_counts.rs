use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};

pub const RULE: Rule = Rule {
    name: "witness-counts",
    about: "a witness without which there is no majority",
    needs: &[&[Need::Status]],
    judge,
};

fn judge(evidence: &Evidence, _: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let counts = member.status.as_ref().ok()?.witness_counts;
        counts.then(|| (Severity::Warning, "leads, and counts the witness".to_owned()))
    })
    .found(
        RULE.name,
        "the witness counts: no other machine must be lost",
        "Too few members with data are in step, so a majority needs the witness, which has no data. The loss of another \
         machine with its disk may now lose acknowledged writes.",
        &[
            "start the members that are down (see unreachable), and wait until the leader says that the witness does not count",
            "if one is lost for good, replace it: mainstay rebuild, or mainstay ctl member add",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, healthy, judged, status};

    #[test]
    fn a_leader_that_counts_the_witness() {
        let mut evidence = healthy();
        assert_eq!(judged(&RULE, &evidence), None);
        status(&mut evidence, 0).witness_counts = true;
        assert_eq!(facts(&RULE, &evidence).1, ["m1 (10.0.0.1:2379): leads, and counts the witness"]);
    }
}
