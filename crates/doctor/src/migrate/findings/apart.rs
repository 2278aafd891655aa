use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Survey, View};
use crate::show;

pub const RULE: MigrationRule = MigrationRule {
    name: "members-disagree",
    about: "members whose lists of members, alarms or leases differ from the others'",
    judge,
};

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    let views: Vec<(usize, &View)> = survey
        .views
        .iter()
        .enumerate()
        .filter(|(at, _)| survey.evidence.members[*at].status.is_ok())
        .collect();
    let named = |at: usize| &survey.evidence.members[at];
    let lists = views.iter().filter_map(|(at, view)| Some((*at, view.members.as_ref().ok()?)));
    let lists: Vec<_> = lists.collect();
    if lists.iter().any(|(_, list)| *list != lists[0].1) {
        for (at, list) in &lists {
            let shown = list.iter().take(MEMBERS_SHOWN).map(|one| {
                let learner = if one.is_learner { " (learner)" } else { "" };
                format!("{:x} {} {}{learner}", one.id, one.name, one.peer_urls.join(" "))
            });
            let text = format!("lists {}", shown.collect::<Vec<String>>().join(", "));
            facts.add(Severity::Error, Fact::of(named(*at), text));
        }
    }
    let alarms = views.iter().filter_map(|(at, view)| Some((*at, view.alarms.as_ref().ok()?)));
    let alarms: Vec<_> = alarms.collect();
    if alarms.iter().any(|(_, list)| *list != alarms[0].1) {
        for (at, list) in &alarms {
            let text = format!("knows of {}", show::counted(list.len() as f64, "alarm", "alarms"));
            facts.add(Severity::Error, Fact::of(named(*at), text));
        }
    }
    match &survey.leases {
        Ok(leases) => {
            for (at, count, one) in &leases.missing {
                let count = show::counted(*count as f64, "lease", "leases");
                let text = format!("lacks {count} that others have, including {one:x}");
                facts.add(Severity::Error, Fact::of(named(*at), text));
            }
        }
        Err(why) => facts.add(Severity::Error, Fact::all(format!("leases could not be compared: {why}"))),
    }
    for (at, view) in &views {
        if let Err(why) = &view.members {
            facts.add(Severity::Error, Fact::of(named(*at), format!("no list of members: {why}")));
        }
        if let (Err(why), false) = (&view.alarms, survey.is_learner(*at)) {
            facts.add(Severity::Error, Fact::of(named(*at), format!("no list of alarms: {why}")));
        }
    }
    facts.found(
        RULE.name,
        "members disagree about the cluster",
        "A member is taken over with the members, alarms and leases that it knows. If its lists differ \
         from the others', it counts a different majority, or loses keys attached to a lease.",
        &[
            "check again: a change of members or alarms may be in progress",
            "if one member still lists a promoted learner as a learner: restart that member with the \
             newest etcd 3.6, which repairs it",
            "otherwise rebuild the member that differs from the others (etcd: member remove, empty its \
             data directory, member add)",
            "with authentication: --user=root:PASSWORD",
        ],
    )
}

/// Largest number of listed members that are shown; real clusters have fewer.
const MEMBERS_SHOWN: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Alarm, AlarmKind};
    use crate::migrate::fixture::{etcds, facts, judged};

    #[test]
    fn lists_that_differ() {
        let mut survey = etcds("3.6.16");
        let list = survey.views[2].members.as_mut().unwrap();
        let mut last = list.pop_last().unwrap();
        last.is_learner = true;
        list.insert(last);
        let (severity, found) = facts(&RULE, &survey);
        assert_eq!((severity, found.len()), (Severity::Error, 3));
        assert!(found[2].ends_with("3 m3 http://10.0.0.3:2380 (learner)"), "{found:?}");
    }

    #[test]
    fn alarms_and_leases_that_differ() {
        let mut survey = etcds("3.6.16");
        let alarm = Alarm { member_id: 1, kind: AlarmKind::NoSpace };
        for view in &mut survey.views {
            view.alarms = Ok(vec![alarm.clone()]);
        }
        assert_eq!(judged(&RULE, &survey), None, "the same everywhere is another finding");
        survey.views[0].alarms = Ok(Vec::new());
        survey.leases.as_mut().unwrap().missing = vec![(1, 3, 0xabc)];
        assert_eq!(
            facts(&RULE, &survey).1,
            [
                "m1 (10.0.0.1:2379): knows of 0 alarms",
                "m2 (10.0.0.2:2379): knows of 1 alarm",
                "m3 (10.0.0.3:2379): knows of 1 alarm",
                "m2 (10.0.0.2:2379): lacks 3 leases that others have, including abc"
            ]
        );
    }

    #[test]
    fn what_is_not_said() {
        let mut survey = etcds("3.6.16");
        survey.views[1].members = Err("permission denied".into());
        survey.views[1].alarms = Err("permission denied".into());
        survey.leases = Err("permission denied".into());
        assert_eq!(facts(&RULE, &survey).1.len(), 3);
        let mut survey = etcds("3.6.16");
        survey.evidence.members[1].status.as_mut().unwrap().is_learner = true;
        survey.views[1].alarms = Err("a learner".into());
        assert_eq!(judged(&RULE, &survey), None);
        survey.evidence.members[1].status = Err("late".into());
        survey.views[1].members = Err("late".into());
        assert_eq!(judged(&RULE, &survey), None, "a member that says nothing is told elsewhere");
    }
}
