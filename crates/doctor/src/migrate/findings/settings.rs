use config::feature_gate::{ALL_ALPHA, ALL_BETA, FeatureGate};

use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Product, Survey};

pub const RULE: MigrationRule = MigrationRule {
    name: "settings",
    about: "settings that Mainstay refuses, or that have no effect there",
    judge,
};

/// Largest number of errors, of warnings, and of unknown features that are shown for one file or member.
const TEXTS_MAX: usize = 50;

fn judge(survey: &Survey) -> Option<Finding> {
    if survey.to == Product::Etcd {
        return None;
    }
    let mut facts = Facts::default();
    if let Some(settings) = &survey.settings {
        let texts = |texts: &[String]| texts.iter().take(TEXTS_MAX).cloned().collect::<Vec<String>>();
        for text in texts(&settings.refusals) {
            facts.add(Severity::Error, Fact::all(format!("{}: {text}", settings.path)));
        }
        for text in texts(&settings.warnings) {
            facts.add(Severity::Warning, Fact::all(format!("{}: {text}", settings.path)));
        }
    }
    for (member, metrics) in survey.evidence.metrics().filter(|(member, _)| !member.is_mainstay()) {
        for sample in metrics.after.samples("etcd_server_feature_enabled").iter().take(TEXTS_MAX) {
            let name = sample.label("name").unwrap_or_default();
            let is_known = FeatureGate::find(name).is_some() || [ALL_ALPHA, ALL_BETA].contains(&name);
            if sample.value > 0.0 && !is_known {
                let text = format!(
                    "the feature {} is on, but --feature-gates of Mainstay has no gate of that name",
                    cli::go::quote(name)
                );
                facts.add(Severity::Warning, Fact::of(member, text));
            }
        }
    }
    facts.found(
        RULE.name,
        "some settings cannot be taken over unchanged",
        "A setting that Mainstay refuses makes the start fail immediately; the others are named in its log and have no effect.",
        &[
            "change the file before the step; docs/flags.md lists every setting and its effect",
            "keep a copy of the file if etcd's own binary must start with it again",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Metrics;
    use crate::migrate::fixture::{etcds, facts, judged};
    use crate::migrate::settings::Settings;

    #[test]
    fn a_file_that_is_refused_or_warned_of() {
        let mut survey = etcds("3.6.16");
        survey.settings = Some(Settings { path: "etcd.yaml".to_owned(), ..Settings::default() });
        assert_eq!(judged(&RULE, &survey), None);
        survey.settings.as_mut().unwrap().warnings = vec!["no such key".to_owned()];
        assert_eq!(facts(&RULE, &survey), (Severity::Warning, vec!["etcd.yaml: no such key".to_owned()]));
        survey.settings.as_mut().unwrap().refusals = vec!["bad".to_owned()];
        assert_eq!(facts(&RULE, &survey).0, Severity::Error);
        survey.to = Product::Etcd;
        assert_eq!(judged(&RULE, &survey), None);
    }

    #[test]
    fn features_of_etcd() {
        let with = |name: &str, on: u8| {
            let mut survey = etcds("3.6.16");
            let page = format!("etcd_server_feature_enabled{{name=\"{name}\",stage=\"ALPHA\"}} {on}\n");
            survey.evidence.members[0].metrics = Ok(Metrics::of("", &page, 1.0));
            survey
        };
        assert_eq!(judged(&RULE, &with("CompactHashCheck", 1)), None);
        assert_eq!(judged(&RULE, &with("AllAlpha", 1)), None);
        assert_eq!(judged(&RULE, &with("Telepathy", 0)), None);
        assert_eq!(
            facts(&RULE, &with("Telepathy", 1)).1,
            [
                "m1 (10.0.0.1:2379): the feature \"Telepathy\" is on, but --feature-gates of Mainstay has no gate of that name"
            ]
        );
    }
}
