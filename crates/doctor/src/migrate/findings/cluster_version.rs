use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Survey, release_of, shown};

pub const RULE: MigrationRule = MigrationRule {
    name: "cluster-version",
    about: "a cluster version that does not match the members' versions",
    judge,
};

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    let lowest = survey.evidence.statuses().filter_map(|(_, status)| release_of(&status.version)).min();
    let is_downgraded = survey.evidence.statuses().any(|(_, status)| status.downgrade_target.is_some());
    let members = survey.evidence.members.iter().filter(|member| member.status.is_ok());
    for member in members {
        let cluster = match &member.versions {
            Ok(versions) => &versions.cluster,
            Err(why) => {
                facts.add(
                    Severity::Warning,
                    Fact::of(member, format!("its page /version could not be read: {why}")),
                );
                continue;
            }
        };
        match (release_of(cluster), lowest) {
            (None, _) => {
                let text = format!("it reports the cluster version {}", cli::go::quote(cluster));
                facts.add(Severity::Error, Fact::of(member, text));
            }
            (Some(release), Some(lowest)) if release > lowest && !is_downgraded => {
                let text =
                    format!("the cluster's version is {}, a member's {}", shown(release), shown(lowest));
                facts.add(Severity::Error, Fact::of(member, text));
            }
            (Some(release), Some(lowest)) if release < lowest && !is_downgraded => {
                let text = format!(
                    "the cluster's version is {}, no member's is below {}",
                    shown(release),
                    shown(lowest)
                );
                facts.add(Severity::Warning, Fact::of(member, text));
            }
            _ => {}
        }
    }
    if survey.cluster_release().is_none() {
        facts.add(Severity::Error, Fact::all("no member reports the cluster's version"));
    }
    facts.found(
        RULE.name,
        "the cluster's version does not match the members' versions",
        "It decides which messages members exchange, which releases of etcd can join, and to which release you can go back.",
        &[
            "if the cluster has just started, or its last old member was just replaced: wait some seconds and check again",
            "if the version stays behind, the leader cannot reach a member: check that members reach each other's peer URLs",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{cluster_version, etcds, facts, judged};

    #[test]
    fn versions_that_do_not_follow() {
        let mut survey = etcds("3.6.16");
        cluster_version(&mut survey, "3.5.0");
        let (severity, found) = facts(&RULE, &survey);
        assert_eq!(severity, Severity::Warning);
        assert_eq!(found[0], "m1 (10.0.0.1:2379): the cluster's version is 3.5, no member's is below 3.6");
        cluster_version(&mut survey, "3.7.0");
        assert_eq!(facts(&RULE, &survey).0, Severity::Error);
        for member in &mut survey.evidence.members {
            member.status.as_mut().unwrap().downgrade_target = Some("3.6.0".to_owned());
        }
        assert_eq!(judged(&RULE, &survey), None, "a downgrade is told elsewhere");
        cluster_version(&mut survey, "3.5.0");
        assert_eq!(judged(&RULE, &survey), None, "it has come down before its members");
    }

    #[test]
    fn versions_that_nobody_knows() {
        let mut survey = etcds("3.6.16");
        survey.evidence.members[0].versions = Err("not JSON".into());
        assert_eq!(
            facts(&RULE, &survey),
            (
                Severity::Warning,
                vec!["m1 (10.0.0.1:2379): its page /version could not be read: not JSON".to_owned()]
            )
        );
        for member in &mut survey.evidence.members {
            member.versions = Err("not JSON".into());
        }
        let (severity, found) = facts(&RULE, &survey);
        assert_eq!((severity, &*found[3]), (Severity::Error, "no member reports the cluster's version"));
        cluster_version(&mut survey, "not_decided");
        assert_eq!(facts(&RULE, &survey).0, Severity::Error);
    }
}
