use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Product, Survey};

pub const RULE: MigrationRule =
    MigrationRule { name: "unknown-product", about: "members whose product or status is unknown", judge };

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    for member in survey.evidence.members.iter().filter(|member| member.reached.is_ok()) {
        if let Err(why) = &member.status {
            facts.add(Severity::Error, Fact::of(member, format!("no status: {why}")));
        } else if let (None, Err(why)) = (Product::of(member), &member.metrics) {
            facts.add(Severity::Error, Fact::of(member, format!("no metrics: {why}")));
        }
    }
    facts.found(
        RULE.name,
        "the product or status of members is unknown",
        "The choice of the next member depends on it, and a member that does not report its status cannot be called healthy.",
        &[
            "if metrics are served elsewhere (--listen-metrics-urls, --listen-client-http-urls): give \
             --metrics-endpoints, one for each of --endpoints",
            "with authentication: give --user, preferably root",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{etcds, facts, judged};

    #[test]
    fn a_member_without_metrics_or_status() {
        let mut survey = etcds("3.6.16");
        survey.evidence.members[0].metrics = Err("HTTP status 404".into());
        survey.evidence.members[1].status = Err("permission denied".into());
        assert_eq!(
            facts(&RULE, &survey),
            (
                Severity::Error,
                vec![
                    "m1 (10.0.0.1:2379): no metrics: HTTP status 404".to_owned(),
                    "m2 (10.0.0.2:2379): no status: permission denied".to_owned()
                ]
            )
        );
        // Mainstay's own page identifies the product even without metrics. A member that was not reached is
        // reported by another rule.
        let mut survey = etcds("3.6.16");
        survey.evidence.members[0].metrics = Err("HTTP status 404".into());
        survey.evidence.members[0].page = Ok(crate::page::Page::default());
        survey.evidence.members[1].status = Err("late".into());
        survey.evidence.members[1].reached = Err("late".into());
        assert_eq!(judged(&RULE, &survey), None);
    }
}
