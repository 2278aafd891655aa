use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::{Member, Metrics};
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::Survey;
use crate::rule::Blind;

pub const RULE: MigrationRule = MigrationRule {
    name: "broken-peer-links",
    about: "voting members that have no working connection to each other",
    judge,
};

/// Metric that is 1 for each other member to which a connection works, and 0 for each to which it is lost.
/// The labels of its series are the ids of the two members in hexadecimal, without leading zeros.
const ACTIVE: &str = "etcd_network_active_peers";

/// Connection from one member to another, as the first one's metrics report it.
pub(super) struct Link {
    /// Id of the member whose metrics report the connection.
    pub local: u64,
    /// Id of the other member.
    pub remote: u64,
    /// True if the connection works.
    pub is_active: bool,
}

/// Returns the connections that a member's metrics report.
pub(super) fn links(metrics: &Metrics) -> impl Iterator<Item = Link> + '_ {
    metrics.after.samples(ACTIVE).iter().filter_map(|sample| {
        let id = |label: &str| u64::from_str_radix(sample.label(label)?, 16).ok();
        Some(Link { local: id("Local")?, remote: id("Remote")?, is_active: sample.value >= 1.0 })
    })
}

/// Returns two sets of member ids: those to which the member has a working connection, and all that its
/// metrics mention, because there was a connection since its start. Returns `None` if its metrics have no
/// connections.
fn links_of(id: u64, metrics: &Metrics) -> Option<(BTreeSet<u64>, BTreeSet<u64>)> {
    let own = || links(metrics).filter(move |link| link.local == id);
    own().next()?;
    let (active, known) = (own().filter(|link| link.is_active), own());
    Some((active.map(|link| link.remote).collect(), known.map(|link| link.remote).collect()))
}

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    let voters = survey.voters();
    let members = survey.evidence.members.iter();
    let told: BTreeMap<u64, (BTreeSet<u64>, BTreeSet<u64>)> = members
        .clone()
        .filter_map(|member| Some((member.id, links_of(member.id, member.metrics.as_ref().ok()?)?)))
        .collect();
    let has_active = |from: u64, to: u64| told.get(&from).is_some_and(|(active, _)| active.contains(&to));
    for member in members.filter(|member| voters.contains(&member.id)) {
        let Some((active, known)) = told.get(&member.id) else { continue };
        for other in voters.iter().filter(|other| **other != member.id && !active.contains(*other)) {
            let name = survey.evidence.name_of(*other);
            let text = match known.contains(other) {
                true => format!("no working connection to {name}"),
                false => format!("no working connection to {name} since it was started"),
            };
            // The two members may contradict each other if only the other one can open connections. They also
            // do so if this member runs etcd and one of its requests failed: etcd reports the connection as
            // lost until it connects the next time.
            let text = match has_active(*other, member.id) {
                true => format!("{text}, although {name} reports that its own works"),
                false => text,
            };
            facts.add(Severity::Error, Fact::of(member, text));
        }
    }
    facts.found(
        RULE.name,
        "voting members do not reach each other",
        "As long as the leader reaches both, such members are up to date and answer. When the leader \
         stops, they cannot elect another one: the step would cost the majority.",
        &[
            "check again: a member that was just started needs a moment to connect",
            "if only one of the two reports this for a long time, and neither logs anything about it: restart that one",
            "check both members' logs for the cause: a firewall, a wrong peer URL (mainstay ctl member \
             update), a peer certificate that the other one rejects",
        ],
    )
}

/// Returns the reached voters whose connections are not known, with the reasons.
pub(in crate::migrate) fn unseen_links(survey: &Survey) -> Vec<Blind> {
    let voters = survey.voters();
    let why = |member: &Member| match &member.metrics {
        Err(why) => Some((format!("no metrics: {why}"), true)),
        Ok(metrics) if links_of(member.id, metrics).is_none() => {
            Some((format!("its metrics have no {ACTIVE}"), false))
        }
        Ok(_) => None,
    };
    let reached = survey.evidence.members.iter().filter(|member| member.reached.is_ok());
    let asked = reached.filter(|member| voters.len() > 1 && voters.contains(&member.id));
    let blind = asked.filter_map(|member| {
        let (because, is_failure) = why(member)?;
        Some(Blind { name: RULE.name, members: vec![member.label()], because, is_failure })
    });
    blind.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{etcds, facts, judged};

    /// Replaces the metrics of the member with index `at` in the evidence.
    fn says(survey: &mut Survey, at: usize, page: &str) {
        survey.evidence.members[at].metrics = Ok(Metrics::of("", page, 1.0));
    }

    #[test]
    fn followers_that_do_not_reach_each_other() {
        let mut survey = etcds("3.6.16");
        says(
            &mut survey,
            1,
            "etcd_network_active_peers{Local=\"2\",Remote=\"1\"} 1\netcd_network_active_peers{Local=\"2\",Remote=\"3\"} 0\n",
        );
        says(&mut survey, 2, "etcd_network_active_peers{Local=\"3\",Remote=\"1\"} 1\n");
        assert_eq!(
            facts(&RULE, &survey),
            (
                Severity::Error,
                vec![
                    "m2 (10.0.0.2:2379): no working connection to m3".to_owned(),
                    "m3 (10.0.0.3:2379): no working connection to m2 since it was started".to_owned()
                ]
            )
        );
        assert_eq!(unseen_links(&survey), []);
        // A connection that works in only one direction is an error.
        let both = "etcd_network_active_peers{Local=\"3\",Remote=\"1\"} 1\netcd_network_active_peers{Local=\"3\",Remote=\"2\"} 1\n";
        says(&mut survey, 2, both);
        let told = "m2 (10.0.0.2:2379): no working connection to m3, although m3 reports that its own works"
            .to_owned();
        assert_eq!(facts(&RULE, &survey), (Severity::Error, vec![told]));
        // Connections to former members and learners do not matter.
        for view in &mut survey.views {
            let list = view.members.as_mut().unwrap();
            let mut last = list.pop_last().unwrap();
            last.is_learner = true;
            list.insert(last);
        }
        assert_eq!(judged(&RULE, &survey), None);
    }

    #[test]
    fn connections_that_cannot_be_seen() {
        let mut survey = etcds("3.6.16");
        says(&mut survey, 1, "etcd_server_has_leader 1\n");
        survey.evidence.members[2].metrics = Err("HTTP status 404".into());
        assert_eq!(judged(&RULE, &survey), None);
        let blind = |at: usize, because: &str, is_failure: bool| Blind {
            name: "broken-peer-links",
            members: vec![survey.evidence.members[at].label()],
            because: because.to_owned(),
            is_failure,
        };
        assert_eq!(
            unseen_links(&survey),
            [
                blind(1, "its metrics have no etcd_network_active_peers", false),
                blind(2, "no metrics: HTTP status 404", true)
            ]
        );
        // Members that were not reached are reported by another rule, and the only voter of a cluster has no
        // connections.
        survey.evidence.members[1].reached = Err("refused".into());
        assert_eq!(unseen_links(&survey).len(), 1);
        for view in &mut survey.views {
            view.members.as_mut().unwrap().retain(|listed| listed.id == 3);
        }
        assert_eq!(unseen_links(&survey), []);
    }
}
