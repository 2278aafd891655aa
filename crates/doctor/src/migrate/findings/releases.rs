use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Product, RELEASES, Release, Survey, release_of, shown};

pub const RULE: MigrationRule = MigrationRule {
    name: "releases",
    about: "releases that cannot be migrated, or should not run together",
    judge,
};

/// Versions of etcd 3.5 that may corrupt their data if the process is killed.
const UNSOUND: [&str; 3] = ["3.5.0", "3.5.1", "3.5.2"];

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    let mut etcds: Vec<Release> = Vec::new();
    for (member, status, product) in survey.running() {
        let version = &status.version;
        let Some(release) = release_of(version) else {
            let text = format!("its version is {}", cli::go::quote(version));
            facts.add(Severity::Error, Fact::of(member, text));
            continue;
        };
        if release < RELEASES.0 || release > RELEASES.1 {
            let (first, last) = (shown(RELEASES.0), shown(RELEASES.1));
            let text =
                format!("version {version}, but only members of etcd {first} to {last} can be migrated");
            facts.add(Severity::Error, Fact::of(member, text));
        } else if product == Some(Product::Etcd) {
            etcds.push(release);
            if UNSOUND.contains(&version.as_str()) {
                let text =
                    format!("version {version}, which may leave members with different data if it is killed");
                facts.add(Severity::Warning, Fact::of(member, text));
            }
        }
    }
    if let (Some(oldest), Some(newest)) = (etcds.iter().min(), etcds.iter().max()) {
        let (apart, both) = (newest.1 - oldest.1, (shown(*oldest), shown(*newest)));
        if apart > 1 {
            let text = format!(
                "members of etcd {} and {} run together, which etcd does not support",
                both.0, both.1
            );
            facts.add(Severity::Error, Fact::all(text));
        } else if apart == 1 && survey.to == Product::Mainstay {
            let text = format!(
                "members of etcd {} and {} run together: an upgrade or downgrade is not finished",
                both.0, both.1
            );
            facts.add(Severity::Warning, Fact::all(text));
        }
    }
    facts.found(
        RULE.name,
        "the members' releases prevent the migration",
        "Members with incompatible releases may exit, refuse to start, or interpret the same data differently.",
        &[
            "finish the upgrade of etcd first, member by member, one minor release at a time, always to its newest version",
            "upgrade members of etcd 3.3 or older to 3.4 first; members of etcd 3.8 or newer cannot be taken over yet",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{etcds, facts, judged, run_etcd, run_mainstay};

    #[test]
    fn releases_out_of_range_and_garbage() {
        let mut survey = etcds("3.6.16");
        run_etcd(&mut survey, 0, "3.3.27");
        run_etcd(&mut survey, 1, "3.8.0");
        run_etcd(&mut survey, 2, "\u{1b}[2J");
        assert_eq!(
            facts(&RULE, &survey),
            (
                Severity::Error,
                vec![
                    "m1 (10.0.0.1:2379): version 3.3.27, but only members of etcd 3.4 to 3.7 can be migrated"
                        .to_owned(),
                    "m2 (10.0.0.2:2379): version 3.8.0, but only members of etcd 3.4 to 3.7 can be migrated"
                        .to_owned(),
                    "m3 (10.0.0.3:2379): its version is \"\\x1b[2J\"".to_owned()
                ]
            )
        );
        for version in ["3.4.0", "3.5.3", "3.7.9"] {
            assert_eq!(judged(&RULE, &etcds(version)), None);
        }
        assert_eq!(facts(&RULE, &etcds("3.5.2")).0, Severity::Warning);
    }

    #[test]
    fn mixtures() {
        let mut survey = etcds("3.6.16");
        run_etcd(&mut survey, 0, "3.4.30");
        assert_eq!(
            facts(&RULE, &survey),
            (
                Severity::Error,
                vec!["members of etcd 3.4 and 3.6 run together, which etcd does not support".to_owned()]
            )
        );
        run_etcd(&mut survey, 0, "3.5.21");
        assert_eq!(facts(&RULE, &survey).0, Severity::Warning);
        survey.to = Product::Etcd;
        assert_eq!(
            judged(&RULE, &survey),
            None,
            "what comes back may be of a newer release than what stayed"
        );
        // This mixture is fine: Mainstay restricts itself to what the oldest release in the cluster supports.
        let mut survey = etcds("3.4.30");
        run_mainstay(&mut survey, 0, "3.7.1");
        assert_eq!(judged(&RULE, &survey), None);
    }
}
