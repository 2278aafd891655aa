use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{BACK_FIRST, Product, Survey, release_of, shown};

pub const RULE: MigrationRule = MigrationRule {
    name: "way-back",
    about: "a way back to the current release of etcd that is closed, or about to close",
    judge,
};

fn judge(survey: &Survey) -> Option<Finding> {
    let cluster = survey.cluster_release()?;
    let back = survey.way_back()?;
    let mut facts = Facts::default();
    if survey.to == Product::Etcd {
        if cluster < BACK_FIRST {
            let text = format!(
                "the cluster's version is {}: members can go back to etcd {}",
                shown(cluster),
                shown(back)
            );
            facts.add(Severity::Warning, Fact::all(text));
        }
    } else if survey.running_this(Product::Etcd).next().is_some() {
        for (member, status) in survey.running_this(Product::Mainstay) {
            if release_of(&status.version).is_some_and(|release| release > back) {
                let text = format!(
                    "runs with --api-version={}",
                    release_of(&status.version).map(shown).unwrap_or_default()
                );
                facts.add(Severity::Warning, Fact::of(member, text));
            }
        }
    }
    let api_version = format!(
        "to keep the way back open, restart members of Mainstay with --api-version={} before the last member of etcd is taken \
         over",
        shown(back)
    );
    facts.found(
        RULE.name,
        match survey.to {
            Product::Etcd => "there is no way back to etcd 3.4",
            Product::Mainstay => "the way back closes with the last member of etcd",
        },
        "When all members have a later release, the cluster's version rises to it, and an older etcd can \
         join only after a downgrade (mainstay ctl downgrade). There is no way back to etcd 3.4, whose \
         storage format is no longer written.",
        &[&api_version, "if you will not go back, there is nothing to do"],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{cluster_version, etcds, facts, judged, mixed, run_mainstay};

    #[test]
    fn a_cluster_that_is_about_to_rise() {
        let mut survey = mixed();
        assert_eq!(judged(&RULE, &survey), None);
        run_mainstay(&mut survey, 1, "3.7.1");
        assert_eq!(
            facts(&RULE, &survey),
            (Severity::Warning, vec!["m2 (10.0.0.2:2379): runs with --api-version=3.7".to_owned()])
        );
        assert!(judged(&RULE, &survey).unwrap().remedies[0].contains("--api-version=3.6"));
        for at in 0..3 {
            run_mainstay(&mut survey, at, "3.7.1");
        }
        assert_eq!(judged(&RULE, &survey), None, "it has risen, or will at once");
    }

    #[test]
    fn nothing_leads_back_to_34() {
        let mut survey = etcds("3.4.30");
        run_mainstay(&mut survey, 0, "3.5.0");
        assert_eq!(judged(&RULE, &survey), None);
        survey.to = Product::Etcd;
        assert_eq!(
            facts(&RULE, &survey).1,
            ["the cluster's version is 3.4: members can go back to etcd 3.5"]
        );
        cluster_version(&mut survey, "3.5.0");
        assert_eq!(judged(&RULE, &survey), None);
    }
}
