use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::Member;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::{MigrationRule, peer_links};
use crate::migrate::survey::Survey;

pub const RULE: MigrationRule = MigrationRule {
    name: "not-each-once",
    about: "members of the cluster that were not checked, or were checked more than once",
    judge,
};

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    let mut seen: BTreeMap<u64, Vec<&Member>> = BTreeMap::new();
    // Skip members without an id: they were not reached, and another rule reports them.
    for member in survey.evidence.members.iter().filter(|member| member.id != 0) {
        seen.entry(member.id).or_default().push(member);
    }
    let listed: BTreeMap<u64, &str> =
        survey.listed().into_iter().map(|listed| (listed.id, listed.name.as_str())).collect();
    for (id, name) in &listed {
        if !seen.contains_key(id) {
            let text = format!("member {id:x} ({name}) is listed but was not checked");
            facts.add(Severity::Error, Fact::all(text));
        }
    }
    for (id, members) in &seen {
        if members.len() > 1 {
            for member in members {
                let text = format!("leads to member {id:x}, as does another endpoint");
                facts.add(Severity::Error, Fact::of(member, text));
            }
        } else if !listed.is_empty() && !listed.contains_key(id) {
            for member in members {
                let text = format!("is member {id:x}, which is not in any member's list");
                facts.add(Severity::Error, Fact::of(member, text));
            }
        }
    }
    for (member, metrics) in survey.evidence.metrics().filter(|(member, _)| member.id != 0) {
        let told: BTreeSet<u64> = peer_links::links(metrics).map(|link| link.local).collect();
        if let (Some(other), false) = (told.first(), told.contains(&member.id)) {
            let text = format!("its metrics are those of member {other:x}");
            facts.add(Severity::Error, Fact::of(member, text));
        }
    }
    facts.found(
        RULE.name,
        "not every member was checked exactly once",
        "A member that was not checked may be down, behind or have another version. The next step may then cost the majority.",
        &[
            "check again: a member may not have answered when it was asked for the member list",
            "if --endpoints contains a load balancer or a name with several addresses: give the client URL of each member instead",
            "likewise for --metrics-endpoints: give the URLs of each member, in the order of --endpoints",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Metrics;
    use crate::migrate::fixture::{etcds, facts, judged};

    #[test]
    fn a_member_that_was_not_looked_at() {
        let mut survey = etcds("3.6.16");
        survey.evidence.members.remove(1);
        survey.views.remove(1);
        assert_eq!(
            facts(&RULE, &survey),
            (Severity::Error, vec!["member 2 (m2) is listed but was not checked".to_owned()])
        );
        // The member was examined, although without success, so this rule does not report it as unchecked.
        let mut survey = etcds("3.6.16");
        survey.evidence.members[1] = Member::unseen("10.0.0.2:2379", "m2", 2, "refused");
        assert_eq!(judged(&RULE, &survey), None);
        // A member that only some of the lists contain must have been examined too.
        let mut survey = etcds("3.6.16");
        survey.evidence.members.remove(2);
        survey.views.remove(2);
        survey.views[0].members.as_mut().unwrap().pop_last();
        assert_eq!(facts(&RULE, &survey).1, ["member 3 (m3) is listed but was not checked"]);
    }

    #[test]
    fn endpoints_that_lead_to_one_member() {
        let mut survey = etcds("3.6.16");
        survey.evidence.members[2].id = 2;
        survey.evidence.members[2].metrics = survey.evidence.members[1].metrics.clone();
        assert_eq!(
            facts(&RULE, &survey).1,
            [
                "member 3 (m3) is listed but was not checked",
                "m2 (10.0.0.2:2379): leads to member 2, as does another endpoint",
                "m3 (10.0.0.3:2379): leads to member 2, as does another endpoint"
            ]
        );
        let mut survey = etcds("3.6.16");
        survey.evidence.members[2].metrics = survey.evidence.members[1].metrics.clone();
        assert_eq!(facts(&RULE, &survey).1, ["m3 (10.0.0.3:2379): its metrics are those of member 2"]);
    }

    #[test]
    fn members_that_nobody_lists() {
        let mut survey = etcds("3.6.16");
        for view in &mut survey.views {
            view.members.as_mut().unwrap().pop_last();
        }
        assert_eq!(
            facts(&RULE, &survey).1,
            ["m3 (10.0.0.3:2379): is member 3, which is not in any member's list"]
        );
        for view in &mut survey.views {
            view.members = Err("late".into());
        }
        assert_eq!(judged(&RULE, &survey), None, "that there is no list is told elsewhere");
        // Several members that run in one process, as embedded servers do, share one page of metrics.
        let mut survey = etcds("3.6.16");
        let page = "etcd_network_active_peers{Local=\"2\",Remote=\"3\"} 1\n\
                    etcd_network_active_peers{Local=\"3\",Remote=\"2\"} 1\n";
        survey.evidence.members[2].metrics = Ok(Metrics::of("", page, 1.0));
        assert_eq!(judged(&RULE, &survey), None);
    }
}
