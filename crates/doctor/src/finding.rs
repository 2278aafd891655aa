//! Defines a finding, which is a problem that a rule has found in a cluster, and the facts that prove it.

use crate::evidence::{Evidence, Member};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The cluster is slower than it should be, or close to a failure.
    Warning,
    /// Requests fail, or are about to.
    Error,
}

impl Severity {
    /// Returns the word for the severity.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// One finding: a problem and its evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Name of the finding, which is also its rule's name. Flags such as `--only` and scripts use it.
    pub name: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// Description of the problem in one line.
    pub title: String,
    /// Facts with numbers that show the problem.
    pub facts: Vec<Fact>,
    /// Consequence of the problem.
    pub meaning: &'static str,
    /// Remedies, the best one first.
    pub remedies: Vec<String>,
}

/// One line of evidence in a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Member that the fact is about; `None` if it is about the whole cluster.
    pub member: Option<String>,
    /// The statement, with its numbers.
    pub text: String,
}

impl Fact {
    /// Creates a fact about a member.
    pub fn of(member: &Member, text: impl Into<String>) -> Fact {
        Fact { member: Some(member.label()), text: text.into() }
    }

    /// Creates a fact about the cluster.
    pub fn all(text: impl Into<String>) -> Fact {
        Fact { member: None, text: text.into() }
    }

    /// Returns the text, preceded by the member that it is about.
    pub(crate) fn line(&self) -> String {
        match &self.member {
            Some(member) => format!("{member}: {}", self.text),
            None => self.text.clone(),
        }
    }
}

/// The facts that a rule has collected, and the highest severity among them.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    facts: Vec<Fact>,
    severity: Option<Severity>,
}

impl Facts {
    pub(crate) fn add(&mut self, severity: Severity, fact: Fact) {
        self.severity = self.severity.max(Some(severity));
        self.facts.push(fact);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// Collects a fact about each member for which `judge` returns one.
    pub(crate) fn of_each(
        evidence: &Evidence,
        judge: impl Fn(&Member) -> Option<(Severity, String)>,
    ) -> Facts {
        let mut facts = Facts::default();
        for member in &evidence.members {
            if let Some((severity, text)) = judge(member) {
                facts.add(severity, Fact::of(member, text));
            }
        }
        facts
    }

    /// Returns a finding if there are facts.
    pub(crate) fn found(
        self,
        name: &'static str,
        title: impl Into<String>,
        meaning: &'static str,
        remedies: &[&str],
    ) -> Option<Finding> {
        let severity = self.severity?;
        let remedies = remedies.iter().map(|remedy| (*remedy).to_owned()).collect();
        Some(Finding { name, severity, title: title.into(), facts: self.facts, meaning, remedies })
    }
}
