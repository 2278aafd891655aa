//! Finds what speaks against an upgrade beside the obstacles to any step: releases, formats of files, and settings.

use super::{OwnRelease, formats_of};
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::{Product, Settings, Survey};
use storage::formats::Formats;

/// Number of rules.
pub(super) const COUNT: usize = 5;

/// Largest number of texts of one kind that are shown for one source of settings.
const TEXTS_MAX: usize = 50;

/// Applies all rules.
pub(super) fn judge(survey: &Survey, to: &OwnRelease, settings: &[Settings]) -> Vec<Finding> {
    let found = [
        not_mainstay(survey),
        newer(survey),
        cluster_version(survey, to),
        way_back(survey),
        refused(settings),
    ];
    found.into_iter().flatten().collect()
}

fn not_mainstay(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    for (member, _) in survey.running_this(Product::Etcd) {
        facts.add(Severity::Error, Fact::of(member, "runs etcd"));
    }
    facts.found(
        "not-mainstay",
        "some members run etcd",
        "This command is for clusters in which every member runs Mainstay.",
        &["finish the migration first: mainstay doctor migrate"],
    )
}

/// Finds members with files that this release cannot read: it is older than theirs.
fn newer(survey: &Survey) -> Option<Finding> {
    let own = Formats::of_this_release(true, true);
    let mut facts = Facts::default();
    for member in &survey.evidence.members {
        let Some(theirs) = formats_of(member) else { continue };
        for (what, theirs, own) in
            [("log", &theirs.log, &own.log), ("checkpoints", &theirs.checkpoint, &own.checkpoint)]
        {
            if !own.reads.contains(&theirs.writes) {
                let (first, last) = (own.reads.start(), own.reads.end());
                let text =
                    format!("its {what} have format {}, this release reads {first} to {last}", theirs.writes);
                facts.add(Severity::Error, Fact::of(member, text));
            }
        }
    }
    facts.found(
        "formats",
        "this release cannot read the files of some members",
        "Started on such a directory it refuses, and changes nothing there.",
        &[
            "use a release that is at least as new as that of the members",
            "to go down all the same: add members with empty directories",
        ],
    )
}

fn cluster_version(survey: &Survey, to: &OwnRelease) -> Option<Finding> {
    let number = |version: &str| {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
        Some((parts.next()??, parts.next()??))
    };
    let own = number(&to.api_version)?;
    let cluster = survey.cluster_release()?;
    let mut facts = Facts::default();
    if cluster > own {
        let text = format!(
            "the cluster has version {}.{}, this release offers at most {}.{}",
            cluster.0, cluster.1, own.0, own.1
        );
        facts.add(Severity::Error, Fact::all(text));
    }
    facts.found(
        "cluster-version-above",
        "the cluster's version is above that of this release",
        "A member of this release refuses to start in this cluster.",
        &["use a newer release", "or downgrade the cluster first: mainstay ctl downgrade"],
    )
}

/// Finds members whose present release could not read what this release writes on their directories.
fn way_back(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    // Whether the new release writes the later formats depends on flags, --value-compression and --memory-budget; a member
    // that writes them already needs them.
    let is_written = |compressed_values, in_blocks| {
        let format = Formats::of_this_release(compressed_values, in_blocks).checkpoint.writes;
        survey
            .evidence
            .members
            .iter()
            .filter_map(formats_of)
            .any(|formats| formats.checkpoint.writes == format)
    };
    let own = Formats::of_this_release(
        is_written(true, false) || is_written(true, true),
        is_written(false, true) || is_written(true, true),
    );
    for member in &survey.evidence.members {
        let Some(theirs) = formats_of(member) else { continue };
        for (what, theirs, own) in
            [("log", &theirs.log, &own.log), ("checkpoints", &theirs.checkpoint, &own.checkpoint)]
        {
            if !theirs.reads.contains(&own.writes) {
                let text = format!(
                    "this release writes {what} of format {}, its present one reads up to {}",
                    own.writes,
                    theirs.reads.end()
                );
                facts.add(Severity::Warning, Fact::of(member, text));
            }
        }
    }
    facts.found(
        "no-way-back",
        "some members cannot go back to their present release in place",
        "Once the new release has written its first files there, the old one refuses to start on the directory, and changes \
         nothing in it. The cluster itself can go back: a member of the old release joins with an empty directory, and gets \
         values as they were written.",
        &["save a snapshot before the step", "leave out --value-compression=zstd and --memory-budget until all members run the new release and stay with it"],
    )
}

fn refused(settings: &[Settings]) -> Option<Finding> {
    let mut facts = Facts::default();
    for settings in settings {
        for text in settings.refusals.iter().take(TEXTS_MAX) {
            facts.add(Severity::Error, Fact::all(format!("{}: {text}", settings.path)));
        }
        for text in settings.warnings.iter().take(TEXTS_MAX) {
            facts.add(Severity::Warning, Fact::all(format!("{}: {text}", settings.path)));
        }
    }
    facts.found(
        "changed-settings",
        "some settings are not accepted unchanged by this release",
        "A setting that is refused makes the start fail immediately; the others are named in the log and have no effect.",
        &["change the setting before the step; docs/flags.md lists every setting and its effect"],
    )
}

#[cfg(test)]
mod tests {
    use storage::formats::Format;

    use super::*;
    use crate::migrate::fixture::{all_mainstay, cluster_version as set_cluster_version, mixed};
    use crate::page::Page;

    fn own() -> OwnRelease {
        OwnRelease { version: "0.2.0".into(), commit: None, api_version: "3.7.1".into() }
    }

    fn tells(survey: &mut Survey, at: usize, formats: Option<Formats>) {
        survey.evidence.members[at].page = Ok(Page { formats, ..Page::default() });
    }

    fn names(survey: &Survey) -> Vec<(&'static str, Severity)> {
        judge(survey, &own(), &[]).iter().map(|finding| (finding.name, finding.severity)).collect()
    }

    #[test]
    fn a_healthy_cluster_has_nothing() {
        let mut survey = all_mainstay();
        assert_eq!(names(&survey), []);
        for at in 0..3 {
            tells(&mut survey, at, Some(Formats::of_this_release(true, false)));
        }
        assert_eq!(names(&survey), [], "all compress, and all read that");
    }

    #[test]
    fn members_of_etcd_and_of_later_releases() {
        assert_eq!(names(&mixed())[0], ("not-mainstay", Severity::Error));
        let mut survey = all_mainstay();
        let later = Formats {
            checkpoint: Format { reads: 1..=99, writes: 99 },
            ..Formats::of_this_release(false, false)
        };
        tells(&mut survey, 1, Some(later));
        assert_eq!(names(&survey), [("formats", Severity::Error)]);
        set_cluster_version(&mut survey, "3.8.0");
        assert_eq!(names(&survey)[1], ("cluster-version-above", Severity::Error));
    }

    #[test]
    fn compressed_values_close_the_way_back_to_a_release_that_does_not_know_them() {
        let mut survey = all_mainstay();
        tells(&mut survey, 0, Some(Formats::of_this_release(true, false)));
        tells(&mut survey, 1, None);
        tells(&mut survey, 2, Some(Formats::of_this_release(false, false)));
        let found = judge(&survey, &own(), &[]);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name, found[0].severity, found[0].facts.len()),
            ("no-way-back", Severity::Warning, 1)
        );
        assert!(found[0].facts[0].line().starts_with("m2 "), "{:?}", found[0].facts);
    }

    #[test]
    fn settings_that_are_refused() {
        let settings = Settings {
            path: "process 7".to_owned(),
            refusals: vec!["bad".to_owned()],
            ..Settings::default()
        };
        let found = judge(&all_mainstay(), &own(), &[Settings::default(), settings]);
        assert_eq!((found[0].name, found[0].severity), ("changed-settings", Severity::Error));
        assert_eq!(found[0].facts[0].line(), "process 7: bad");
    }
}
