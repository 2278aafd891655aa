use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Product, Survey};

pub const RULE: MigrationRule =
    MigrationRule { name: "downgrade", about: "a downgrade of the cluster that is under way", judge };

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    // It may be what leads to an older etcd.
    let severity = if survey.to == Product::Etcd { Severity::Warning } else { Severity::Error };
    for (member, status) in survey.evidence.statuses() {
        if let Some(target) = &status.downgrade_target {
            facts.add(severity, Fact::of(member, format!("a downgrade to {target} is under way")));
        }
    }
    facts.found(
        RULE.name,
        "a downgrade is under way",
        "Until it is over, the cluster's version and the form of what members store change, and with them which binary may \
         be started where.",
        &[
            "finish it: restart the members with the older release (Mainstay: with --api-version) until it is over",
            "or take it back: mainstay ctl downgrade cancel",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{etcds, facts, judged};

    #[test]
    fn a_downgrade() {
        let mut survey = etcds("3.7.1");
        assert_eq!(judged(&RULE, &survey), None);
        survey.evidence.members[1].status.as_mut().unwrap().downgrade_target = Some("3.6.0".to_owned());
        assert_eq!(
            facts(&RULE, &survey),
            (Severity::Error, vec!["m2 (10.0.0.2:2379): a downgrade to 3.6.0 is under way".to_owned()])
        );
        survey.to = Product::Etcd;
        assert_eq!(facts(&RULE, &survey).0, Severity::Warning);
        assert_eq!(survey.way_back(), Some((3, 6)));
    }
}
