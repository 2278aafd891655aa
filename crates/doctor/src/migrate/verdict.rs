//! Judges a survey, and formats the result as text for people and as JSON for programs.

use std::fmt::Write as _;

use cli::json;

use super::findings::{MIGRATION_RULES, unseen_links};
use super::next_step::{NextStep, is_leader, next_step};
use super::survey::{Product, Survey, shown};
use crate::evidence::Member;
use crate::finding::Severity;
use crate::findings::{RULES, certificate};
use crate::limits::Limits;
use crate::report::{Report, counted, folded};
use crate::rule::{Blind, Rule};
use crate::show;

/// Names of the rules of `doctor` that are also applied before a migration, in addition to
/// [`certificate::RULE_FOR_STEPS`]. Most of the other rules of `doctor` concern only performance.
pub(crate) const SHARED_RULES: [&str; 8] = [
    "unreachable",
    "no-leader",
    "different-clusters",
    "alarm-corrupt",
    "alarm-nospace",
    "quota-near",
    "tls-files-unusable",
    "missing-compaction",
];

/// The judgment of a survey: the findings, and the next step.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Product to which the cluster is to be migrated.
    pub to: Product,
    /// The examined members, and the product that each runs.
    pub members: Vec<Row>,
    /// Short statements about the cluster, such as its version.
    pub facts: Vec<String>,
    /// The findings, and the evidence that could not be examined.
    pub report: Report,
    /// True if all members run the target product.
    pub is_done: bool,
    /// The next step; `None` if a problem has to be solved first, or the migration is complete.
    pub next: Option<NextStep>,
    /// Revision and hash of the data; `None` unless all voting members have the same hash.
    pub hash: Option<(i64, u32)>,
}

/// A member in the table of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name and endpoint of the member.
    pub label: String,
    /// Product that the member runs; `None` if unknown.
    pub runs: Option<Product>,
    /// Description of the member: product, version and role, or the reason why nothing is known.
    pub about: String,
    /// Version that the member reports; empty if unknown.
    pub version: String,
}

impl Verdict {
    /// Judges a survey.
    pub fn of(survey: &Survey) -> Verdict {
        let shared = RULES.iter().filter(|rule| SHARED_RULES.contains(&rule.name));
        let shared: Vec<&Rule> = shared.chain([&certificate::RULE_FOR_STEPS]).collect();
        let mut report = Report::of(&survey.evidence, &Limits::default(), 0.0, &shared);
        report.rules += MIGRATION_RULES.len();
        report.findings.extend(MIGRATION_RULES.iter().filter_map(|rule| (rule.judge)(survey)));
        report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        report.blind.extend(not_looked_at(survey));
        let is_ready = report.severity() != Some(Severity::Error);
        Verdict {
            to: survey.to,
            members: survey.evidence.members.iter().map(|member| row(survey, member)).collect(),
            facts: facts(survey),
            report,
            is_done: survey.is_done(),
            next: is_ready.then(|| next_step(survey)).flatten(),
            hash: agreed_hash(survey),
        }
    }

    /// Returns true if no finding has severity error. In this case the next step can be taken, or the
    /// migration is complete.
    pub fn is_ready(&self) -> bool {
        self.report.severity() != Some(Severity::Error)
    }

    /// Returns a summary of the verdict in one line.
    fn line(&self) -> String {
        let there = self.members.iter().filter(|row| row.runs == Some(self.to)).count();
        let (all, name) = (counted(self.members.len(), "member"), self.to.name());
        let so_far = match (self.is_done, there) {
            (true, _) => format!("{all}, all of {name}"),
            (false, 0) => format!("{all}, none of {name} yet"),
            (false, there) => format!("{there} of {all} of {name}"),
        };
        let errors =
            self.report.findings.iter().filter(|finding| finding.severity == Severity::Error).count();
        match (self.is_ready(), self.is_done) {
            (false, true) => format!("not ready: {so_far}, but {} above", counted(errors, "error")),
            (false, false) => format!("not ready: {so_far}; fix {} first", counted(errors, "error")),
            (true, true) => format!("ready: done, {so_far}"),
            (true, false) => format!("ready for the next step: {so_far}"),
        }
    }

    /// Returns advice on what to do when all members run the target product.
    fn afterwards(&self) -> &'static str {
        match self.to {
            Product::Mainstay => {
                "If you will not go back: restart the members without --api-version, and delete etcd's \
                 files at each with mainstay utl drop-etcd --data-dir DIR."
            }
            Product::Etcd => {
                "Mainstay's directories (DIR.mainstay) are out of date: delete them, and never start Mainstay on them again."
            }
        }
    }

    /// Formats the verdict as text for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let put = |out: &mut String, text: &str, first: &str, next: &str| {
            out.push_str(&folded(text, first, next));
            out.push('\n');
        };
        let from = if self.to == Product::Etcd { Product::Mainstay } else { Product::Etcd };
        put(&mut out, &format!("From {} to {}:", from.name(), self.to.name()), "", "");
        for row in &self.members {
            put(&mut out, &format!("{}: {}", row.label, row.about), "  ", "    ");
        }
        put(&mut out, &self.facts.join("; "), "  ", "    ");
        out.push_str(&self.report.body());
        out.push('\n');
        put(&mut out, &self.line(), "Verdict: ", "  ");
        if let Some(step) = &self.next {
            let part = if step.is_leader { "the leader" } else { "a follower" };
            put(&mut out, &format!("{}, {part}:", step.member), "Next is ", "  ");
            for command in &step.commands {
                // Do not wrap the command, so that it can be copied as one line.
                out.push_str(&format!("    {}\n", show::clean(command)));
            }
            for note in &step.notes {
                put(&mut out, note, "  ", "  ");
            }
            put(&mut out, "Then wait until it serves, and run this command again.", "  ", "  ");
        } else if self.is_ready() && self.is_done {
            put(&mut out, self.afterwards(), "  ", "  ");
        }
        out
    }

    /// Formats the verdict as JSON: one object on one line.
    pub fn json(&self) -> String {
        let strings = |texts: &[String]| {
            let quoted: Vec<String> = texts.iter().map(json::string).collect();
            format!("[{}]", quoted.join(","))
        };
        let runs = |runs: Option<Product>| match runs {
            Some(Product::Etcd) => "\"etcd\"",
            Some(Product::Mainstay) => "\"mainstay\"",
            None => "null",
        };
        let mut out = format!(
            "{{\"ready\":{},\"done\":{},\"to\":{},\"verdict\":{},\"members\":[",
            self.is_ready(),
            self.is_done,
            runs(Some(self.to)),
            json::string(self.line())
        );
        for (at, row) in self.members.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let (label, about, version) =
                (json::string(&row.label), json::string(&row.about), json::string(&row.version));
            write!(
                out,
                "{comma}{{\"member\":{label},\"runs\":{},\"version\":{version},\"about\":{about}}}",
                runs(row.runs)
            )
            .expect("strings take everything");
        }
        let hash = self.hash.map_or("null".to_owned(), |(revision, hash)| {
            format!("{{\"revision\":{revision},\"hash\":{hash}}}")
        });
        let next = self.next.as_ref().map_or("null".to_owned(), |step| {
            format!(
                "{{\"member\":{},\"is_leader\":{},\"commands\":{},\"notes\":{}}}",
                json::string(&step.member),
                step.is_leader,
                strings(&step.commands),
                strings(&step.notes)
            )
        });
        writeln!(
            out,
            "],\"facts\":{},\"hash_kv\":{hash},\"next\":{next},{}}}",
            strings(&self.facts),
            self.report.json_body()
        )
        .expect("strings take everything");
        out
    }
}

fn row(survey: &Survey, member: &Member) -> Row {
    let runs = Product::of(member);
    let (about, version) = match (&member.status, &member.reached) {
        (Ok(status), _) => {
            let product = match runs {
                Some(Product::Etcd) => "etcd ",
                Some(Product::Mainstay) => "Mainstay, etcd ",
                None => "etcd or Mainstay, ",
            };
            let part = match (is_leader(&survey.evidence, member), status.is_learner) {
                (true, _) => "leader",
                (false, true) => "learner",
                (false, false) => "follower",
            };
            (format!("{product}{}, {part}", status.version), status.version.clone())
        }
        (Err(why), Ok(())) => (format!("no status: {why}"), String::new()),
        (Err(_), Err(why)) => (format!("not reached: {why}"), String::new()),
    };
    Row { label: member.label(), runs, about, version }
}

/// Returns the revision and the hash; `None` unless all voting members have returned the same hash.
fn agreed_hash(survey: &Survey) -> Option<(i64, u32)> {
    let hashes = survey.hashes.as_ref().ok().filter(|hashes| hashes.is_comparable())?;
    let (_, first) = hashes.answers().next()?;
    hashes.answers().all(|(_, hashed)| hashed == first).then_some((hashes.revision, first.hash))
}

fn facts(survey: &Survey) -> Vec<String> {
    let mut facts = Vec::new();
    if let Some(release) = survey.cluster_release() {
        facts.push(format!("cluster version {}", shown(release)));
    }
    if let Ok(hashes) = &survey.hashes {
        let compacted = hashes.answers().map(|(_, hashed)| hashed.compacted).max();
        facts.push(match compacted {
            Some(1..) => {
                format!("revision {}, compacted up to {}", hashes.revision, compacted.unwrap_or_default())
            }
            _ => format!("revision {}, never compacted", hashes.revision),
        });
        if let Some((_, hash)) = agreed_hash(survey) {
            let voters = counted(hashes.of.len(), "voting member");
            facts.push(format!("HashKV {hash} at this revision, at {voters}"));
        }
    }
    let size = survey.evidence.statuses().map(|(_, status)| status.db_bytes_in_use).fold(0.0, f64::max);
    if size > 0.0 {
        facts.push(format!("{} of data", show::bytes(size)));
    }
    if let Ok(leases) = &survey.leases {
        facts.push(show::counted(leases.count as f64, "lease", "leases"));
    }
    if let Ok(alarms) = &survey.evidence.alarms {
        facts.push(match alarms.len() {
            0 => "no alarm".to_owned(),
            count => counted(count, "alarm"),
        });
    }
    facts
}

fn not_looked_at(survey: &Survey) -> Vec<Blind> {
    let mut blind = unseen_links(survey);
    if survey.is_done() {
        return blind;
    }
    let mut tell = |name: &'static str, because: &str| {
        blind.push(Blind { name, members: Vec::new(), because: because.to_owned(), is_failure: false });
    };
    match &survey.directory {
        None => tell(
            "disk-space",
            "no --data-dir was given: also run this on each member's machine with --data-dir",
        ),
        Some(Ok(directory)) if directory.is_running && survey.to == Product::Mainstay => tell(
            "old-keys",
            "the member is running, so its log after its newest snapshot was not checked for keys of API version 2",
        ),
        Some(_) => {}
    }
    if survey.settings.is_none() && survey.to == Product::Mainstay {
        tell(
            "settings",
            "no --config-file was given; flags and variables of etcd cannot be read from outside",
        );
    }
    blind
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Certificate, Member};
    use crate::migrate::fixture::{all_mainstay, directory, etcds, mixed};

    #[test]
    fn the_rules_that_are_shared_are_there() {
        for name in SHARED_RULES {
            assert!(RULES.iter().any(|rule| rule.name == name), "{name}");
        }
    }

    #[test]
    fn verdicts() {
        let line = |survey: &Survey| Verdict::of(survey).line();
        assert_eq!(line(&etcds("3.6.16")), "ready for the next step: 3 members, none of Mainstay yet");
        assert_eq!(line(&mixed()), "ready for the next step: 1 of 3 members of Mainstay");
        assert_eq!(line(&all_mainstay()), "ready: done, 3 members, all of Mainstay");
        let mut survey = all_mainstay();
        survey.views[0].read = Err("late".into());
        assert_eq!(line(&survey), "not ready: 3 members, all of Mainstay, but 1 error above");
        let mut survey = mixed();
        survey.evidence.members[2] = Member::unseen("10.0.0.3:2379", "m3", 3, "refused");
        let verdict = Verdict::of(&survey);
        assert_eq!(verdict.line(), "not ready: 1 of 3 members of Mainstay; fix 1 error first");
        assert_eq!((verdict.next.clone(), verdict.is_done), (None, false));
        assert!(!verdict.text().contains("Next is"));
    }

    #[test]
    fn a_certificate_that_ends_in_some_days_stops_no_step() {
        let mut survey = etcds("3.6.16");
        let ends_in = |survey: &mut Survey, seconds: f64| {
            let not_after_unix = survey.evidence.taken_unix + seconds;
            survey.evidence.members[1].certificate = Ok(Some(Certificate { not_after_unix }));
            let verdict = Verdict::of(survey);
            let found: Vec<_> = verdict.report.findings.iter().map(|f| (f.name, f.severity)).collect();
            (verdict.next.is_some(), found)
        };
        let name = "certificate-expiry";
        assert_eq!(ends_in(&mut survey, 3.0 * 86400.0), (true, vec![(name, Severity::Warning)]));
        assert_eq!(ends_in(&mut survey, 3600.0), (false, vec![(name, Severity::Error)]));
        assert_eq!(ends_in(&mut survey, -3600.0), (false, vec![(name, Severity::Error)]));
        // A certificate that could not be read is reported as not examined, as missing evidence for other
        // rules is.
        survey.evidence.members[1].certificate = Err("late".into());
        assert!(Verdict::of(&survey).report.blind.iter().any(|blind| blind.name == name));
    }

    #[test]
    fn what_was_not_looked_at_is_told() {
        let names =
            |survey: &Survey| -> Vec<&str> { not_looked_at(survey).iter().map(|blind| blind.name).collect() };
        let mut survey = etcds("3.6.16");
        assert_eq!(names(&survey), ["disk-space", "settings"]);
        survey.settings = Some(Default::default());
        survey.directory = Some(Ok(directory(1, 1)));
        assert_eq!(names(&survey), [""; 0]);
        survey.directory.as_mut().unwrap().as_mut().unwrap().is_running = true;
        assert_eq!(names(&survey), ["old-keys"]);
        survey.to = Product::Etcd;
        assert_eq!(names(&survey), [""; 0]);
        assert_eq!(names(&all_mainstay()), [""; 0], "no step is left for which it would matter");
        let mut survey = all_mainstay();
        survey.evidence.members[1].metrics = Err("HTTP status 404".into());
        assert_eq!(names(&survey), ["broken-peer-links"]);
    }
}
