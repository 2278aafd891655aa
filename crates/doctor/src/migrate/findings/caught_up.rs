use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::Survey;
use crate::show;

pub const RULE: MigrationRule = MigrationRule {
    name: "not-caught-up",
    about: "members and learners that have not applied what was committed before the check began",
    judge,
};

fn judge(survey: &Survey) -> Option<Finding> {
    let statuses = survey.evidence.statuses();
    let committed = statuses.filter_map(|(_, status)| Some(status.earlier?.0)).max()?;
    let mut facts = Facts::default();
    for (member, status) in survey.evidence.statuses().filter(|(_, status)| status.applied < committed) {
        let what = if status.is_learner { "a learner, " } else { "" };
        let behind = show::count((committed - status.applied) as f64);
        let text = format!("{what}has applied index {}, {behind} behind {committed}", status.applied);
        facts.add(Severity::Error, Fact::of(member, text));
    }
    facts.found(
        RULE.name,
        "members have not caught up",
        "They have not applied what was committed half a second before. If the next member stops now, the \
         cluster may lack a majority of members that are up to date, and writes wait.",
        &[
            "wait, and check again; after a start, a member may have much to catch up with",
            "if one stays behind: mainstay doctor finds the cause (disk, network, processor)",
            "if a learner is not needed: mainstay ctl member remove ID",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{etcds, facts, judged};

    #[test]
    fn members_and_learners_behind() {
        let mut survey = etcds("3.6.16");
        let status = |at: usize, survey: &mut Survey| survey.evidence.members[at].status.clone().unwrap();
        let mut behind = status(1, &mut survey);
        // Entries that were committed after the first reading do not count. This member has applied all
        // earlier ones.
        behind.applied = 990;
        survey.evidence.members[1].status = Ok(behind.clone());
        assert_eq!(judged(&RULE, &survey), None);
        behind.applied = 989;
        survey.evidence.members[1].status = Ok(behind.clone());
        behind.is_learner = true;
        behind.applied = 0;
        survey.evidence.members[2].status = Ok(behind);
        assert_eq!(
            facts(&RULE, &survey),
            (
                Severity::Error,
                vec![
                    "m2 (10.0.0.2:2379): has applied index 989, 1 behind 990".to_owned(),
                    "m3 (10.0.0.3:2379): a learner, has applied index 0, 990 behind 990".to_owned()
                ]
            )
        );
    }
}
