//! Formats the report of the doctor as text for people, as JSON for programs, and as HTML for browsers.

use std::fmt::Write as _;

use cli::json;
use html_report::{Found, Level, Page};

use crate::connection;
use crate::evidence::Evidence;
use crate::finding::{Fact, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Blind, Rule, out_of_sight};
use crate::show;

/// The findings of an examination, and what could not be examined.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The examined members. For each, its label, and a text with its product and version, or the reason why
    /// they are unknown.
    pub members: Vec<(String, String)>,
    /// Time in seconds over which rates were measured.
    pub seconds: f64,
    /// Number of rules that were applied to the evidence.
    pub rules: usize,
    /// Findings, the most severe first.
    pub findings: Vec<Finding>,
    /// Facts that could not be examined, with the rules that needed them.
    pub blind: Vec<Blind>,
}

/// Overall result of an examination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// There are no findings, and no request failed.
    Healthy,
    /// Only warnings were found, and no request failed.
    Warnings,
    /// No errors were found, but a request failed or was refused, so some problems may be hidden.
    Unknown,
    /// Errors were found.
    Errors,
}

impl Health {
    /// Returns the word for this result in the JSON report.
    pub fn word(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Warnings => "warnings",
            Health::Unknown => "unknown",
            Health::Errors => "errors",
        }
    }
}

/// Width of the text output, in columns.
const COLUMNS: usize = 110;

impl Report {
    /// Applies these rules to the evidence.
    pub fn of(evidence: &Evidence, limits: &Limits, seconds: f64, rules: &[&Rule]) -> Report {
        let mut findings: Vec<Finding> =
            rules.iter().filter_map(|rule| (rule.judge)(evidence, limits)).collect();
        // The sort is stable: within a severity, the findings stay in the order of the rules, which is the
        // order of danger.
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let blind = rules.iter().flat_map(|rule| rule.blind(evidence));
        let blind = out_of_sight(evidence).into_iter().chain(blind).collect();
        let member = |member: &crate::evidence::Member| {
            let product = if member.is_mainstay() { "Mainstay, etcd " } else { "etcd " };
            let about = match (&member.status, &member.reached) {
                (Ok(status), _) => format!("{product}{}", status.version),
                (Err(why), Ok(())) => format!("no status: {why}"),
                (Err(_), Err(why)) => format!("not reached: {why}"),
            };
            (member.label(), about)
        };
        Report {
            members: evidence.members.iter().map(member).collect(),
            seconds,
            rules: rules.len(),
            findings,
            blind,
        }
    }

    /// Returns the highest severity among the findings; `None` if there are none.
    pub fn severity(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// Returns the overall result. A failed request is worse than a warning, because it may hide an error.
    pub fn health(&self) -> Health {
        match (self.severity(), self.blind.iter().any(|blind| blind.is_failure)) {
            (Some(Severity::Error), _) => Health::Errors,
            (_, true) => Health::Unknown,
            (Some(Severity::Warning), false) => Health::Warnings,
            (None, false) => Health::Healthy,
        }
    }

    /// Formats the report as text for people.
    pub fn text(&self) -> String {
        let members = counted(self.members.len(), "member");
        let mut out = format!("Examined {members} for {:.0} s:\n", self.seconds);
        for (label, about) in &self.members {
            out.push_str(&folded(&format!("{label}: {about}"), "  ", "    "));
            out.push('\n');
        }
        out.push_str(&self.body());
        out
    }

    /// Formats the report without the list of members as text for people: the summary, the findings, and what
    /// could not be read or was not checked.
    pub(crate) fn body(&self) -> String {
        let mut out = String::new();
        let put = |out: &mut String, text: &str| {
            out.push_str(text);
            out.push('\n');
        };
        put(&mut out, &self.summary());
        for finding in &self.findings {
            out.push('\n');
            put(
                &mut out,
                &format!("{} {}: {}", finding.severity.word().to_uppercase(), finding.name, finding.title),
            );
            for fact in &finding.facts {
                put(&mut out, &folded(&fact.line(), "  ", "    "));
            }
            put(&mut out, &folded(finding.meaning, "  Means: ", "    "));
            for remedy in &finding.remedies {
                put(&mut out, &folded(remedy, "  Do: ", "    "));
            }
        }
        for (heading, is_failure) in [("Could not be read:", true), ("Not checked:", false)] {
            let lines = self.not_looked_at(is_failure);
            if lines.is_empty() {
                continue;
            }
            out.push('\n');
            put(&mut out, heading);
            for line in lines {
                put(&mut out, &folded(&line, "  ", "    "));
            }
            if is_failure {
                for remedy in self.sight_remedies() {
                    put(&mut out, &folded(remedy, "  Do: ", "    "));
                }
            }
        }
        out
    }

    /// Returns advice for the next run on how to let the doctor read what it could not read this time.
    fn sight_remedies(&self) -> Vec<&'static str> {
        let failed = || self.blind.iter().filter(|blind| blind.is_failure);
        let members = || self.members.iter().map(|(_, about)| about).filter(|_| failed().next().is_some());
        let says =
            |text: &str| failed().map(|blind| &blind.because).chain(members()).any(|why| why.contains(text));
        let mut remedies = Vec::new();
        if connection::REFUSALS.iter().any(|refusal| says(&refusal.message)) {
            remedies.push(connection::WITH_USERS);
        }
        if says("no metrics: ") {
            remedies.push(
                "if metrics are served elsewhere (--listen-metrics-urls, --listen-client-http-urls): give \
                 --metrics-endpoints, one for each of --endpoints",
            );
        }
        remedies
    }

    /// Returns one sentence with the numbers of errors and warnings. It also says if failed requests may hide
    /// problems.
    fn summary(&self) -> String {
        let of = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        let summary = match (of(Severity::Error), of(Severity::Warning)) {
            (0, 0) => "Nothing found".to_owned(),
            (errors, 0) => counted(errors, "error"),
            (0, warnings) => counted(warnings, "warning"),
            (errors, warnings) => format!("{}, {}", counted(errors, "error"), counted(warnings, "warning")),
        };
        let rules = counted(self.rules, "rule");
        match self.health() {
            Health::Unknown => format!(
                "{summary}, by {rules}, but not everything could be read: it is unknown whether the cluster is healthy."
            ),
            Health::Healthy | Health::Warnings | Health::Errors => format!("{summary}, by {rules}."),
        }
    }

    /// Returns one line for each reason why something was not examined, with the names of all rules that the
    /// reason affects. `is_failure` selects the reasons: true for failed requests, false for data that does
    /// not exist or was not requested.
    fn not_looked_at(&self, is_failure: bool) -> Vec<String> {
        let mut told: Vec<(&Blind, Vec<&str>)> = Vec::new();
        for blind in self.blind.iter().filter(|blind| blind.is_failure == is_failure) {
            let same = |known: &&Blind| known.members == blind.members && known.because == blind.because;
            match told.iter_mut().find(|(known, _)| same(known)) {
                Some((_, names)) => names.push(blind.name),
                None => told.push((blind, vec![blind.name])),
            }
        }
        let line = |(blind, names): (&Blind, Vec<&str>)| {
            let members = match blind.members.is_empty() {
                true => String::new(),
                false => format!(" at {}", blind.members.join(", ")),
            };
            format!("{}{members}, because {}", names.join(", "), blind.because)
        };
        told.into_iter().map(line).collect()
    }

    /// Formats the report as a self-contained HTML page. `taken` is the time of the examination.
    pub fn html(&self, taken: &str) -> String {
        let mut page = Page::new("What the doctor found");
        let members = counted(self.members.len(), "member");
        page.paragraph(&format!(
            "{} Examined {members} for {:.0} s, until {taken}.",
            self.summary(),
            self.seconds
        ));
        let found = |finding: &Finding| Found {
            level: match finding.severity {
                Severity::Error => Level::Error,
                Severity::Warning => Level::Warning,
            },
            title: format!("{}: {}", finding.name, finding.title),
            facts: finding.facts.iter().map(Fact::line).collect(),
            meaning: finding.meaning.to_owned(),
            remedies: finding.remedies.clone(),
        };
        let mut findings: Vec<Found> = self.findings.iter().map(found).collect();
        if self.health() == Health::Unknown {
            findings.insert(
                0,
                Found {
                    level: Level::Warning,
                    title: "Not everything could be read: it is unknown whether the cluster is healthy"
                        .to_owned(),
                    facts: self.not_looked_at(true),
                    meaning: String::new(),
                    remedies: self.sight_remedies().into_iter().map(str::to_owned).collect(),
                },
            );
        } else if findings.is_empty() {
            findings.push(Found {
                level: Level::Good,
                title: "Nothing was found".to_owned(),
                facts: Vec::new(),
                meaning: String::new(),
                remedies: Vec::new(),
            });
        }
        page.heading("Findings, worst first");
        page.findings(&findings);
        page.heading("Members");
        page.facts(&self.members);
        if !self.blind.is_empty() {
            page.heading("Not checked");
            page.note("A check that was not possible does not count as healthy.");
            page.list(&[self.not_looked_at(true), self.not_looked_at(false)].concat());
        }
        page.html()
    }

    /// Formats the report as JSON: one object on one line.
    pub fn json(&self) -> String {
        let mut out = format!(
            "{{\"healthy\":{},\"verdict\":\"{}\",\"seconds\":{:.3},\"rules\":{},\"members\":[",
            self.health() == Health::Healthy,
            self.health().word(),
            self.seconds,
            self.rules
        );
        let write = |out: &mut String, text: std::fmt::Arguments<'_>| {
            out.write_fmt(text).expect("strings take everything");
        };
        for (at, (label, about)) in self.members.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let (label, about) = (json::string(label), json::string(about));
            write(&mut out, format_args!("{comma}{{\"member\":{label},\"about\":{about}}}"));
        }
        write(&mut out, format_args!("],{}}}\n", self.json_body()));
        out
    }

    /// Returns the fields `findings`, `not_looked_at` and `remedies` of a JSON object, without the braces
    /// around them. The remedies say how to let the doctor read what it could not read.
    pub(crate) fn json_body(&self) -> String {
        let strings = |texts: &[String]| {
            let quoted: Vec<String> = texts.iter().map(json::string).collect();
            format!("[{}]", quoted.join(","))
        };
        let write = |out: &mut String, text: std::fmt::Arguments<'_>| {
            out.write_fmt(text).expect("strings take everything");
        };
        let mut out = "\"findings\":[".to_owned();
        for (at, finding) in self.findings.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write(
                &mut out,
                format_args!(
                    "{comma}{{\"name\":{},\"severity\":\"{}\",\"title\":{},\"evidence\":[",
                    json::string(finding.name),
                    finding.severity.word(),
                    json::string(&finding.title)
                ),
            );
            for (at, fact) in finding.facts.iter().enumerate() {
                let comma = if at > 0 { "," } else { "" };
                let member = fact.member.as_ref().map_or("null".to_owned(), json::string);
                write(
                    &mut out,
                    format_args!("{comma}{{\"member\":{member},\"text\":{}}}", json::string(&fact.text)),
                );
            }
            let (meaning, remedies) = (json::string(finding.meaning), strings(&finding.remedies));
            write(&mut out, format_args!("],\"meaning\":{meaning},\"remedies\":{remedies}}}"));
        }
        out.push_str("],\"not_looked_at\":[");
        for (at, blind) in self.blind.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let (name, because) = (json::string(blind.name), json::string(&blind.because));
            let members = strings(&blind.members);
            write(
                &mut out,
                format_args!(
                    "{comma}{{\"name\":{name},\"members\":{members},\"because\":{because},\"failed\":{}}}",
                    blind.is_failure
                ),
            );
        }
        let remedies: Vec<String> = self.sight_remedies().into_iter().map(str::to_owned).collect();
        write(&mut out, format_args!("],\"remedies\":{}", strings(&remedies)));
        out
    }
}

/// Returns a number with its noun, which gets a plural s unless the number is 1.
pub(crate) fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Wraps a text into lines of at most [`COLUMNS`] characters. The first line starts with `first`, the others
/// with `next`.
pub(crate) fn folded(text: &str, first: &str, next: &str) -> String {
    let mut out = first.to_owned();
    let mut column = first.chars().count();
    let mut is_first = true;
    let text = show::clean(text);
    for word in text.split(' ') {
        let width = word.chars().count();
        if !is_first && column + 1 + width > COLUMNS {
            out.push('\n');
            out.push_str(next);
            column = next.chars().count();
        } else if !is_first {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
        is_first = false;
    }
    out
}
