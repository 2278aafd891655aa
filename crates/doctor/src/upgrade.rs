//! Implements `doctor upgrade`, which checks whether a cluster of Mainstay is ready for the release of this program, and
//! names the member that comes next.
//!
//! The command collects the same survey as `doctor migrate` and judges it by the same rules, which find whatever speaks
//! against stopping a member, and by rules of its own ([`rules`]): releases, formats of files, and settings. The same
//! command line works before the first step, after each step, and after the last one.

mod command;
mod process;
mod rules;

use cli::json;
use std::fmt::Write as _;
use storage::formats::Formats;

use crate::evidence::Member;
use crate::finding::Severity;
use crate::findings::{RULES, certificate};
use crate::limits::Limits;
use crate::migrate::{self, MIGRATION_RULES, NextStep, Product, SHARED_RULES, Settings, Survey};
use crate::report::{Report, counted, folded};
use crate::rule::{Blind, Rule};
use crate::show;

pub(crate) use command::PROGRAM;

/// The release to which a cluster is upgraded: that of this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnRelease {
    /// Version of Mainstay.
    pub version: String,
    /// Commit from which it was built, in hexadecimal; `None` if unknown.
    pub commit: Option<String>,
    /// Newest version of etcd's API that it offers.
    pub api_version: String,
}

impl OwnRelease {
    /// Returns the release of this program.
    pub fn of_this_program() -> OwnRelease {
        OwnRelease {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: config::commit().map(str::to_owned),
            api_version: config::API_VERSION.to_owned(),
        }
    }

    /// Returns true if the member runs this release; `None` if that is not known.
    fn is_run_by(&self, member: &Member) -> Option<bool> {
        let page = member.page.as_ref().ok()?;
        if page.version.as_ref()? != &self.version || page.formats.is_none() {
            return Some(false);
        }
        Some(page.commit.as_ref()? == self.commit.as_ref()?)
    }

    fn shown(&self) -> String {
        release(&self.version, self.commit.as_deref())
    }
}

/// Returns a version with the beginning of its commit.
fn release(version: &str, commit: Option<&str>) -> String {
    match commit {
        Some(commit) => format!("{version} ({})", commit.chars().take(10).collect::<String>()),
        None => version.to_owned(),
    }
}

/// The judgment of an upgrade.
#[derive(Clone, Debug)]
pub struct Upgrade {
    /// The release to which the cluster is upgraded.
    pub to: OwnRelease,
    /// The examined members.
    pub members: Vec<UpgradeRow>,
    /// The findings, and the evidence that could not be examined.
    pub report: Report,
    /// The next step; `None` if a problem has to be solved first, or all members run the release.
    pub next: Option<NextStep>,
}

/// A member in the table of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeRow {
    /// Name and endpoint of the member.
    pub label: String,
    /// Release that the member runs, or why it is not known.
    pub runs: String,
    /// True if that is the release of this program; `None` if it is not known.
    pub is_done: Option<bool>,
    /// Role of the member: `leader`, `follower` or `learner`; empty if unknown.
    pub role: &'static str,
}

impl Upgrade {
    /// Judges a survey. `settings` are those of members on this machine.
    pub fn of(survey: &Survey, to: OwnRelease, settings: &[Settings]) -> Upgrade {
        let shared = RULES.iter().filter(|rule| SHARED_RULES.contains(&rule.name));
        let shared: Vec<&Rule> = shared.chain([&certificate::RULE_FOR_STEPS]).collect();
        let mut report = Report::of(&survey.evidence, &Limits::default(), 0.0, &shared);
        report.rules += MIGRATION_RULES.len() + rules::COUNT;
        // While members run etcd, the steps are those of a migration.
        report.findings.extend(MIGRATION_RULES.iter().filter_map(|rule| (rule.judge)(survey)));
        report.findings.extend(rules::judge(survey, &to, settings));
        report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        if settings.is_empty() {
            report.blind.push(Blind {
                name: "settings",
                members: Vec::new(),
                because: "neither --pid nor --config-file was given: flags cannot be read from outside; also run this \
                          on each member's machine with one of them"
                    .to_owned(),
                is_failure: false,
            });
        }
        let is_ready = report.severity() != Some(Severity::Error);
        let members = survey.evidence.members.iter().map(|member| row(survey, &to, member)).collect();
        let next = is_ready.then(|| next_step(survey, &to)).flatten();
        Upgrade { to, members, report, next }
    }

    /// Returns true if no finding has severity error.
    pub fn is_ready(&self) -> bool {
        self.report.severity() != Some(Severity::Error)
    }

    /// Returns true if all members run the release of this program.
    pub fn is_done(&self) -> bool {
        self.members.iter().all(|row| row.is_done == Some(true))
    }

    fn line(&self) -> String {
        let there = self.members.iter().filter(|row| row.is_done == Some(true)).count();
        let so_far = format!("{there} of {} run {}", counted(self.members.len(), "member"), self.to.shown());
        let errors =
            self.report.findings.iter().filter(|finding| finding.severity == Severity::Error).count();
        match (self.is_ready(), self.is_done()) {
            (false, _) => format!("not ready: {so_far}; fix {} first", counted(errors, "error")),
            (true, true) => format!("done: {so_far}"),
            (true, false) => format!("ready for the next step: {so_far}"),
        }
    }

    /// Formats the judgment as text for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let put = |out: &mut String, text: &str, first: &str, next: &str| {
            out.push_str(&folded(text, first, next));
            out.push('\n');
        };
        put(&mut out, &format!("To Mainstay {}:", self.to.shown()), "", "");
        for row in &self.members {
            let role = if row.role.is_empty() { String::new() } else { format!(", {}", row.role) };
            put(&mut out, &format!("{}: {}{role}", row.label, row.runs), "  ", "    ");
        }
        out.push_str(&self.report.body());
        out.push('\n');
        put(&mut out, &self.line(), "Verdict: ", "  ");
        if let Some(step) = &self.next {
            let part = if step.is_leader { "the leader" } else { "a follower" };
            put(&mut out, &format!("{}, {part}:", step.member), "Next is ", "  ");
            for command in &step.commands {
                out.push_str(&format!("    {}\n", show::clean(command)));
            }
            for note in &step.notes {
                put(&mut out, note, "  ", "  ");
            }
            put(&mut out, "Then wait until it serves, and run this command again.", "  ", "  ");
        }
        out
    }

    /// Formats the judgment as JSON: one object on one line.
    pub fn json(&self) -> String {
        let strings = |texts: &[String]| {
            let quoted: Vec<String> = texts.iter().map(json::string).collect();
            format!("[{}]", quoted.join(","))
        };
        let members: Vec<String> = self
            .members
            .iter()
            .map(|row| {
                format!(
                    "{{\"member\":{},\"runs\":{},\"done\":{},\"role\":{}}}",
                    json::string(&row.label),
                    json::string(&row.runs),
                    row.is_done.map_or("null", |is_done| if is_done { "true" } else { "false" }),
                    json::string(row.role)
                )
            })
            .collect();
        let next = self.next.as_ref().map_or("null".to_owned(), |step| {
            format!(
                "{{\"member\":{},\"is_leader\":{},\"commands\":{},\"notes\":{}}}",
                json::string(&step.member),
                step.is_leader,
                strings(&step.commands),
                strings(&step.notes)
            )
        });
        let mut out = String::new();
        writeln!(
            out,
            "{{\"ready\":{},\"done\":{},\"to\":{},\"verdict\":{},\"members\":[{}],\"next\":{next},{}}}",
            self.is_ready(),
            self.is_done(),
            json::string(self.to.shown()),
            json::string(self.line()),
            members.join(","),
            self.report.json_body()
        )
        .expect("strings take everything");
        out
    }
}

fn row(survey: &Survey, to: &OwnRelease, member: &Member) -> UpgradeRow {
    let role = match &member.status {
        Err(_) => "",
        Ok(_) if migrate::is_leader(&survey.evidence, member) => "leader",
        Ok(status) if status.is_learner => "learner",
        Ok(_) => "follower",
    };
    let runs = match (&member.page, &member.reached) {
        (Ok(page), _) => {
            let version = page.version.as_deref().unwrap_or("of an unknown version");
            format!("Mainstay {}", release(version, page.commit.as_deref()))
        }
        (Err(_), Ok(())) if Product::of(member) == Some(Product::Etcd) => "etcd".to_owned(),
        (Err(why), Ok(())) => format!("release unknown: {why}"),
        (Err(_), Err(why)) => format!("not reached: {why}"),
    };
    UpgradeRow { label: member.label(), runs, is_done: to.is_run_by(member), role }
}

/// Returns the formats of a member's release; those of the first releases if it does not tell them.
fn formats_of(member: &Member) -> Option<Formats> {
    let page = member.page.as_ref().ok()?;
    Some(page.formats.clone().unwrap_or_else(Formats::before_they_were_told))
}

/// Returns the next step: followers come first and the leader last, so that leadership moves only once. `None` if all
/// members run the release.
fn next_step(survey: &Survey, to: &OwnRelease) -> Option<NextStep> {
    let is_leading = |member: &Member| migrate::is_leader(&survey.evidence, member);
    let left = survey.evidence.statuses().filter(|(member, _)| to.is_run_by(member) != Some(true));
    let (member, status) = left.min_by_key(|(member, _)| (is_leading(member), member.label()))?;
    let is_leader = is_leading(member);
    let mut step = NextStep { member: member.label(), is_leader, commands: Vec::new(), notes: Vec::new() };
    let endpoint = migrate::word(&member.endpoint);
    if survey.evidence.members.iter().all(|member| to.is_run_by(member) != Some(true)) {
        step.commands.push(format!("mainstay ctl --endpoints={endpoint} snapshot save before-upgrade.db"));
        step.notes.push(
            "The snapshot is the way back if everything else fails: keep it on another machine.".to_owned(),
        );
    }
    if is_leader && let Some((successor, _)) = migrate::successor(survey, member) {
        step.commands.push(format!("mainstay ctl --endpoints={endpoint} move-leader {:x}", successor.id));
        step.notes.push(format!(
            "{} becomes the leader; then this member is a follower like the others.",
            successor.label()
        ));
    }
    step.commands.push("systemctl stop mainstay".to_owned());
    step.commands.push("install NEW_BINARY PATH_OF_MAINSTAY && systemctl start mainstay".to_owned());
    step.notes.push(
        "On that member's machine. Keep the old binary: until all members run the new one, put it back and start it on the same \
         data directory if the new one misbehaves, unless a warning above says otherwise."
            .to_owned(),
    );
    if to.is_run_by(member).is_none() {
        step.notes.push(
            "Which build this member runs cannot be told from outside, since one of the two builds does not know its commit: \
             skip it if it was upgraded already."
                .to_owned(),
        );
    }
    let voters = survey.evidence.statuses().filter(|(_, status)| !status.is_learner).count();
    if voters < 3 && !status.is_learner {
        step.notes.push(
            "The cluster does not serve while this member is down: it has too few voting members to continue without it."
                .to_owned(),
        );
    }
    Some(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::all_mainstay;
    use crate::page::Page;

    fn own() -> OwnRelease {
        OwnRelease { version: "0.2.0".into(), commit: Some("c0ffee".into()), api_version: "3.7.1".into() }
    }

    /// Makes a member run this release; without formats if `tells` is false, as the first releases do.
    fn run(survey: &mut Survey, at: usize, version: &str, commit: &str, tells: bool) {
        survey.evidence.members[at].page = Ok(Page {
            version: Some(version.to_owned()),
            commit: tells.then(|| commit.to_owned()),
            formats: tells.then(|| Formats::of_this_release(false, false)),
            ..Page::default()
        });
    }

    fn old() -> Survey {
        let mut survey = all_mainstay();
        (0..3).for_each(|at| run(&mut survey, at, "0.1.0", "", false));
        survey
    }

    #[test]
    fn followers_come_first_and_the_leader_last() {
        let mut survey = old();
        let judged = |survey: &Survey| Upgrade::of(survey, own(), &[Settings::default()]);
        let first = judged(&survey);
        assert_eq!(
            first.line(),
            "ready for the next step: 0 of 3 members run 0.2.0 (c0ffee)",
            "{}",
            first.text()
        );
        let step = first.next.unwrap();
        assert_eq!((&*step.member, step.is_leader), ("m2 (10.0.0.2:2379)", false));
        assert!(step.commands[0].ends_with("snapshot save before-upgrade.db"), "{:?}", step.commands);
        run(&mut survey, 1, "0.2.0", "c0ffee", true);
        let step = judged(&survey).next.unwrap();
        assert_eq!((&*step.member, &*step.commands[0]), ("m3 (10.0.0.3:2379)", "systemctl stop mainstay"));
        // The same version of another commit is not this release.
        run(&mut survey, 2, "0.2.0", "beef", true);
        assert_eq!(judged(&survey).next.unwrap().member, "m3 (10.0.0.3:2379)");
        run(&mut survey, 2, "0.2.0", "c0ffee", true);
        let step = judged(&survey).next.unwrap();
        assert!(step.is_leader && step.commands[0].contains("move-leader"), "{step:?}");
        run(&mut survey, 0, "0.2.0", "c0ffee", true);
        let done = judged(&survey);
        assert!(
            done.is_done() && done.next.is_none() && done.line().starts_with("done: 3 of 3"),
            "{}",
            done.text()
        );
        assert!(done.json().starts_with("{\"ready\":true,\"done\":true,"), "{}", done.json());
    }

    #[test]
    fn a_member_that_is_down_stops_the_next_step() {
        let mut survey = old();
        survey.evidence.members[2] = Member::unseen("10.0.0.3:2379", "m3", 3, "refused");
        let judged = Upgrade::of(&survey, own(), &[]);
        assert!(!judged.is_ready() && judged.next.is_none(), "{}", judged.text());
        assert!(judged.text().contains("not ready: 0 of 3 members"), "{}", judged.text());
        assert!(judged.report.blind.iter().any(|blind| blind.name == "settings"));
    }
}
