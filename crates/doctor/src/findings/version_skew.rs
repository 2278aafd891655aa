use crate::evidence::{Evidence, Member};
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};

pub const RULE: Rule = Rule {
    name: "version-skew",
    about: "members with different versions",
    needs: &[&[Need::Status, Need::Versions]],
    judge,
};

/// Cluster version, without its patch number, that a new cluster has for some seconds, until its leader knows
/// the versions of all members. It must not be reported as too old: clusters of the releases that the doctor
/// supports have this version only during these seconds.
const UNDECIDED: &str = "3.0";

fn version(member: &Member) -> Option<&str> {
    let by_status = member.status.as_ref().ok().map(|status| status.version.as_str());
    let by_page = member.versions.as_ref().ok().map(|versions| versions.server.as_str());
    by_status.or(by_page).filter(|version| !version.is_empty())
}

/// Returns the major and minor number of a version, such as `3.7`.
fn minor(version: &str) -> &str {
    version.match_indices('.').nth(1).map_or(version, |(at, _)| &version[..at])
}

fn judge(evidence: &Evidence, _: &Limits) -> Option<Finding> {
    let versions: Vec<(&Member, &str)> =
        evidence.members.iter().filter_map(|member| Some((member, version(member)?))).collect();
    let first = versions.first()?.1;
    let mut facts = Facts::default();
    if versions.iter().any(|(_, version)| *version != first) {
        for (member, version) in &versions {
            facts.add(Severity::Warning, Fact::of(member, format!("version {version}")));
        }
    }
    for member in &evidence.members {
        let Ok(versions) = &member.versions else { continue };
        let is_older = !versions.cluster.is_empty()
            && minor(&versions.cluster) != minor(&versions.server)
            && minor(&versions.cluster) != UNDECIDED;
        // If members run different versions, the cluster version is the lowest of them. The different
        // versions are reported above, so a low cluster version is reported only if there are none.
        if is_older && facts.is_empty() && versions.cluster.starts_with(|c: char| c.is_ascii_digit()) {
            let (server, cluster) = (&versions.server, &versions.cluster);
            let text = format!("version {server}, but the cluster's is {cluster}");
            facts.add(Severity::Warning, Fact::of(member, text));
        }
    }
    let target = evidence.statuses().find_map(|(_, status)| status.downgrade_target.as_deref());
    if let (Some(target), false) = (target, facts.is_empty()) {
        facts.add(Severity::Warning, Fact::all(format!("a downgrade to {target} is in progress")));
    }
    facts.found(
        RULE.name,
        "members have different versions",
        "The cluster is limited to the features of its oldest member. Do not add members while versions \
         differ, and finish the upgrade soon.",
        &[
            "finish the upgrade member by member, one minor version at a time",
            "if a downgrade was not finished: mainstay ctl downgrade cancel",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Versions;
    use crate::fixture::{facts, healthy, judged, status};

    #[test]
    fn two_versions() {
        let mut evidence = healthy();
        status(&mut evidence, 1).version = "3.6.9".to_owned();
        status(&mut evidence, 1).downgrade_target = Some("3.6.0".to_owned());
        assert_eq!(
            facts(&RULE, &evidence).1,
            [
                "m1 (10.0.0.1:2379): version 3.7.1",
                "m2 (10.0.0.2:2379): version 3.6.9",
                "m3 (10.0.0.3:2379): version 3.7.1",
                "a downgrade to 3.6.0 is in progress"
            ]
        );
    }

    #[test]
    fn a_cluster_that_has_just_begun_is_not_behind() {
        let mut evidence = healthy();
        for member in &mut evidence.members {
            member.versions = Ok(Versions { server: "3.7.1".to_owned(), cluster: "3.0.0".to_owned() });
        }
        assert!(judged(&RULE, &evidence).is_none());
    }

    #[test]
    fn a_cluster_version_that_stayed_behind() {
        let mut evidence = healthy();
        let versions =
            |cluster: &str| Ok(Versions { server: "3.7.1".to_owned(), cluster: cluster.to_owned() });
        evidence.members[0].versions = versions("3.6.0");
        assert_eq!(
            facts(&RULE, &evidence).1,
            ["m1 (10.0.0.1:2379): version 3.7.1, but the cluster's is 3.6.0"]
        );
        evidence.members[0].versions = versions("3.7.0");
        assert_eq!(judged(&RULE, &evidence), None);
        evidence.members[0].versions = versions("not_decided");
        assert_eq!(judged(&RULE, &evidence), None);
    }
}
