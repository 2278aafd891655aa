use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::Survey;

pub const RULE: MigrationRule = MigrationRule {
    name: "no-linearizable-read",
    about: "voting members that do not answer a linearizable read",
    judge,
};

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    for (at, (member, view)) in survey.evidence.members.iter().zip(&survey.views).enumerate() {
        if let (Ok(_), Err(why), false) = (&member.status, &view.read, survey.is_learner(at)) {
            facts.add(Severity::Error, Fact::of(member, why.to_string()));
        }
    }
    facts.found(
        RULE.name,
        "members do not answer a linearizable read",
        "Such a read needs a leader and a majority. If it fails, clients fail too, and another restart makes it worse.",
        &[
            "with authentication: give --user with any user; that user's permissions do not matter",
            "check that the cluster has a leader, and that the members reach each other: mainstay doctor",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{etcds, facts, judged};

    #[test]
    fn a_member_that_does_not_read() {
        let mut survey = etcds("3.6.16");
        survey.views[1].read = Err("etcdserver: request timed out".into());
        assert_eq!(
            facts(&RULE, &survey),
            (Severity::Error, vec!["m2 (10.0.0.2:2379): etcdserver: request timed out".to_owned()])
        );
        survey.evidence.members[1].status.as_mut().unwrap().is_learner = true;
        assert_eq!(judged(&RULE, &survey), None, "a learner reads nothing");
    }
}
