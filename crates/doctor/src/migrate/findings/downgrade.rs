use crate::evidence::{Member, Status};
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{BACK_FIRST, Product, Release, Survey, release_of, shown};

pub const RULE: MigrationRule =
    MigrationRule { name: "downgrade", about: "a downgrade of the cluster in progress", judge };

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    // A downgrade in progress prevents a migration to Mainstay, so it is an error. Before a migration to
    // etcd, it may be intended, to go back to an older release, so it is only a warning.
    let severity = if survey.to == Product::Etcd { Severity::Warning } else { Severity::Error };
    for (member, status) in survey.evidence.statuses() {
        if let Some(target) = &status.downgrade_target {
            facts.add(severity, Fact::of(member, format!("a downgrade to {target} is in progress")));
        }
    }
    if survey.to == Product::Etcd {
        judge_way_back(survey, &mut facts);
    }
    facts.found(
        RULE.name,
        "a downgrade is in progress",
        "Until it has finished, the cluster's version and the members' storage format change, and with \
         them which binary may be started where.",
        &[
            "right after the start of a downgrade: wait some seconds, until the cluster's version is the target, and check again",
            "finish it: restart the members with the older release (Mainstay: with --api-version)",
            "or cancel it: mainstay ctl downgrade cancel",
        ],
    )
}

/// Adds facts about what must still happen before a member may run etcd of the downgrade's target release.
fn judge_way_back(survey: &Survey, facts: &mut Facts) {
    let targets = survey.evidence.statuses().filter_map(|(_, status)| status.downgrade_target.as_deref());
    let Some(target) = targets.filter_map(release_of).min() else { return };
    if target < BACK_FIRST {
        let text = format!("there is no way back to etcd {}", shown(target));
        facts.add(Severity::Error, Fact::all(text));
        return;
    }
    unaware(survey, target, facts);
    if survey.running_this(Product::Mainstay).any(|(_, status)| is_above(status, target)) {
        not_come_down(survey, target, facts);
    }
}

/// Returns true if the release that a member runs is above `target`, or is not known.
fn is_above(status: &Status, target: Release) -> bool {
    release_of(&status.version).is_none_or(|release| release > target)
}

/// Adds a fact about each member above the target release that does not report this downgrade.
fn unaware(survey: &Survey, target: Release, facts: &mut Facts) {
    for (member, status) in survey.evidence.statuses().filter(|(_, status)| is_above(status, target)) {
        let own = status.downgrade_target.as_deref();
        if own.and_then(release_of) != Some(target) {
            let knows = own.map_or_else(|| "no downgrade".to_owned(), |own| format!("one to {own}"));
            let text = format!("it knows of {knows}, others of one to {}", shown(target));
            facts.add(Severity::Error, Fact::of(member, text));
        }
    }
}

/// Adds a fact about each member that does not report the lowered cluster version. Only once that version is
/// lowered can no member propose anything that the target release does not know. etcd's leader checks every
/// few seconds whether to lower it.
fn not_come_down(survey: &Survey, target: Release, facts: &mut Facts) {
    let version = |member: &Member| release_of(&member.versions.as_ref().ok()?.cluster);
    let known: Vec<Release> = survey.evidence.statuses().filter_map(|(member, _)| version(member)).collect();
    // All members have the same cluster version, apart from short delays. So if all versions that are
    // reported are the target, a member that reports none is only a warning.
    let is_known = !known.is_empty() && known.iter().all(|known| *known == target);
    let elsewhere = if is_known { Severity::Warning } else { Severity::Error };
    for (member, _) in survey.evidence.statuses().filter(|(member, _)| version(member) != Some(target)) {
        match &member.versions {
            Ok(versions) => {
                let text = format!(
                    "it reports the cluster version {}, which must first be lowered to {}",
                    cli::go::quote(&versions.cluster),
                    shown(target)
                );
                facts.add(Severity::Error, Fact::of(member, text));
            }
            Err(why) => {
                let text = format!("it is unknown whether the cluster's version has been lowered: {why}");
                facts.add(elsewhere, Fact::of(member, text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{all_mainstay, cluster_version, etcds, facts, judged, run_etcd};

    fn goes_down(survey: &mut Survey, members: &[usize], target: &str) {
        for at in members {
            let status = survey.evidence.members[*at].status.as_mut().unwrap();
            status.downgrade_target = Some(target.to_owned());
        }
    }

    #[test]
    fn a_downgrade() {
        let mut survey = etcds("3.7.1");
        assert_eq!(judged(&RULE, &survey), None);
        goes_down(&mut survey, &[1], "3.6.0");
        assert_eq!(
            facts(&RULE, &survey),
            (Severity::Error, vec!["m2 (10.0.0.2:2379): a downgrade to 3.6.0 is in progress".to_owned()])
        );
    }

    #[test]
    fn the_way_back_waits_until_the_cluster_has_come_down() {
        let mut survey = all_mainstay();
        survey.to = Product::Etcd;
        goes_down(&mut survey, &[0, 1], "3.5.0");
        let (severity, found) = facts(&RULE, &survey);
        assert_eq!((severity, found.len()), (Severity::Error, 6));
        assert_eq!(
            found[2..4],
            [
                "m3 (10.0.0.3:2379): it knows of no downgrade, others of one to 3.5",
                "m1 (10.0.0.1:2379): it reports the cluster version \"3.6.0\", which must first be lowered to 3.5"
            ]
        );
        goes_down(&mut survey, &[2], "3.5.0");
        assert_eq!(
            facts(&RULE, &survey).0,
            Severity::Error,
            "all know of it, and the version is what it was"
        );
        cluster_version(&mut survey, "3.5.0");
        let (severity, found) = facts(&RULE, &survey);
        assert_eq!((severity, found.len(), survey.way_back()), (Severity::Warning, 3, Some((3, 5))));
        // A member of etcd 3.5 does not report the downgrade. This is no problem, because it runs the target
        // release already.
        run_etcd(&mut survey, 1, "3.5.21");
        survey.evidence.members[1].status.as_mut().unwrap().downgrade_target = None;
        assert_eq!(facts(&RULE, &survey).0, Severity::Warning);
        let known = survey.clone();
        survey.evidence.members[2].versions = Err("late".into());
        assert_eq!(facts(&RULE, &survey).0, Severity::Warning, "the version is the cluster's");
        survey.evidence.members[0].versions = Err("late".into());
        survey.evidence.members[1].versions = Err("late".into());
        assert_eq!(facts(&RULE, &survey).0, Severity::Error, "nobody says it");
        survey = known;
        for at in 0..3 {
            run_etcd(&mut survey, at, "3.6.16");
        }
        goes_down(&mut survey, &[0, 1, 2], "3.5.0");
        cluster_version(&mut survey, "3.6.0");
        assert_eq!(facts(&RULE, &survey).0, Severity::Warning, "no member is left to export");
    }

    #[test]
    fn nothing_leads_back_to_34() {
        let mut survey = all_mainstay();
        survey.to = Product::Etcd;
        goes_down(&mut survey, &[0, 1, 2], "3.4.0");
        assert_eq!(facts(&RULE, &survey).1[3], "there is no way back to etcd 3.4");
    }
}
