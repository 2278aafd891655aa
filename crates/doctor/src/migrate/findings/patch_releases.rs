use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Product, Release, Survey, release_of};

pub const RULE: MigrationRule = MigrationRule {
    name: "patch-releases",
    about: "releases of etcd that apply requests which Mainstay refuses, so members would differ",
    judge,
};

/// A bug of older releases of etcd: they apply certain requests that fixed releases and Mainstay refuse. If
/// members with and without the bug run together, their data may become different.
struct Fault {
    what: &'static str,
    /// True if the bug occurs only while authentication is enabled.
    takes_users: bool,
    /// For each minor release that got a fix, the patch number of the first fixed version. A release that is
    /// not listed still has the bug if it is older than all listed ones; otherwise it never had it.
    mended: &'static [(Release, u32)],
}

/// The known bugs. The table in `docs/migration.md` lists the same ones.
const FAULTS: [Fault; 4] = [
    Fault {
        what: "transactions whose puts are all in nested transactions, while NOSPACE is raised",
        takes_users: false,
        mended: &[((3, 5), 33), ((3, 6), 14), ((3, 7), 1)],
    },
    Fault {
        what: "nested transactions with operations that their user may not perform",
        takes_users: true,
        mended: &[((3, 4), 42), ((3, 5), 28), ((3, 6), 9)],
    },
    Fault {
        what: "puts in transactions that request a previous value which their user may not read, or use a \
               lease with keys that their user may not write",
        takes_users: true,
        mended: &[((3, 4), 44), ((3, 5), 30), ((3, 6), 11)],
    },
    Fault {
        what: "any request of any user, while NOSPACE or CORRUPT is raised",
        takes_users: true,
        mended: &[((3, 6), 0)],
    },
];

impl Fault {
    fn is_in(&self, release: Release, patch: u32) -> bool {
        match self.mended_in(release) {
            Some(first) => patch < first,
            None => self.mended.first().is_some_and(|(first, _)| release < *first),
        }
    }

    /// Returns the patch number of the first version of this minor release without the bug; `None` if the
    /// release is not listed in the table.
    fn mended_in(&self, release: Release) -> Option<u32> {
        self.mended.iter().find(|(of, _)| *of == release).map(|(_, first)| *first)
    }
}

/// Returns the patch number of a version, such as 21 for `3.5.21`; 0 if the version has no number there.
fn patch_of(version: &str) -> u32 {
    let digits = version.split('.').nth(2).unwrap_or_default();
    let digits = digits.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or_default()
}

fn judge(survey: &Survey) -> Option<Finding> {
    let has_users = survey.has_users != Ok(false);
    let mut facts = Facts::default();
    for (member, status) in survey.running_this(Product::Etcd) {
        let Some(release) = release_of(&status.version) else { continue };
        let patch = patch_of(&status.version);
        for fault in FAULTS.iter().filter(|fault| has_users || !fault.takes_users) {
            if fault.is_in(release, patch) {
                let (major, minor) = release;
                let mended = match fault.mended_in(release) {
                    Some(patch) => format!("{major}.{minor}.{patch} does not"),
                    None => format!("every {major}.{minor} does"),
                };
                let users =
                    if survey.has_users.is_err() && fault.takes_users { ", if there are users" } else { "" };
                let text = format!("version {} applies {}{users}; {mended}", status.version, fault.what);
                facts.add(Severity::Warning, Fact::of(member, text));
            }
        }
    }
    facts.found(
        RULE.name,
        "members of etcd apply requests that Mainstay and newer releases of etcd refuse",
        "After such a request, members have different data while both kinds run together: their revisions \
         no longer agree, and the corruption check raises CORRUPT. A rolling upgrade of etcd has the same \
         risk. Without such requests, nothing of this happens.",
        &[
            "upgrade etcd first, to the fixed release of its minor version if there is one (docs/migration.md, Members of both kinds)",
            "begin while no alarm is raised, and do all steps without a pause",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{all_mainstay, etcds, facts, judged, mixed, run_etcd};

    #[test]
    fn each_fault_is_found_up_to_the_release_that_mends_it() {
        for (version, without_users, with_users) in [
            ("3.4.41", 1, 4),
            ("3.4.43", 1, 3),
            ("3.4.44", 1, 2),
            ("3.5.27", 1, 4),
            ("3.5.29", 1, 3),
            ("3.5.32", 1, 2),
            ("3.5.33", 0, 1),
            ("3.6.8", 1, 3),
            ("3.6.10", 1, 2),
            ("3.6.13", 1, 1),
            ("3.6.14", 0, 0),
            ("3.7.0", 1, 1),
            ("3.7.0-rc.0", 1, 1),
            ("3.7.1", 0, 0),
        ] {
            let mut survey = etcds("3.6.14");
            run_etcd(&mut survey, 1, version);
            for (has_users, expected) in
                [(Ok(false), without_users), (Ok(true), with_users), (Err("late".into()), with_users)]
            {
                survey.has_users = has_users;
                let found = judged(&RULE, &survey);
                assert!(found.iter().all(|finding| finding.severity == Severity::Warning));
                assert_eq!(found.map_or(0, |finding| finding.facts.len()), expected, "{version}");
            }
        }
        assert!([all_mainstay(), mixed()].iter().all(|survey| judged(&RULE, survey).is_none()));
        let mut survey = etcds("3.6.13");
        assert_eq!(
            facts(&RULE, &survey).1[0],
            "m1 (10.0.0.1:2379): version 3.6.13 applies transactions whose puts are all in nested transactions, while NOSPACE is \
             raised; 3.6.14 does not"
        );
        survey = etcds("3.5.33");
        survey.has_users = Err("late".into());
        assert_eq!(
            facts(&RULE, &survey).1[0],
            "m1 (10.0.0.1:2379): version 3.5.33 applies any request of any user, while NOSPACE or CORRUPT \
             is raised, if there are users; every 3.5 does"
        );
    }
}
