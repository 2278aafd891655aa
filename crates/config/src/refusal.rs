//! What the operator is told about options.

use std::fmt;

use super::help::usage;
use crate::log_settings::Level;

/// A line for the log, kept until the log is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Severity of the entry.
    pub level: Level,
    /// Message of the entry.
    pub message: String,
    /// Fields of the entry: the option, and the reason.
    pub fields: Vec<(&'static str, String)>,
}

/// Why no member is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The command line is malformed: this text and the usage go to stderr as they are, exit code 2.
    Syntax(String),
    /// The options are well-formed, but not good: these entries go to the log, exit code 1.
    Invalid(Vec<Entry>),
}

impl Entry {
    pub(super) fn new(level: Level, message: impl Into<String>) -> Entry {
        Entry { level, message: message.into(), fields: Vec::new() }
    }

    pub(super) fn with(mut self, key: &'static str, value: impl Into<String>) -> Entry {
        self.fields.push((key, value.into()));
        self
    }
}

impl Refusal {
    /// The refusal etcd gives for options that are not good, with `error` saying which and why.
    pub(super) fn invalid(error: impl Into<String>) -> Refusal {
        Refusal::Invalid(vec![Entry::new(Level::Warn, "failed to verify flags").with("error", error)])
    }

    /// The refusal etcd gives when the options were good but the member they describe is not. etcd's words name
    /// discovery, whatever it was that failed.
    pub(super) fn start_failed(error: impl Into<String>) -> Refusal {
        Refusal::Invalid(vec![Entry::new(Level::Fatal, "discovery failed").with("error", error)])
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Refusal::Syntax(_) => 2,
            Refusal::Invalid(_) => 1,
        }
    }

    /// Says why: plain text to `stderr` when the command line was malformed, else each entry by `log`.
    pub fn report(&self, stderr: &mut dyn std::io::Write, log: impl FnMut(&Entry)) {
        match self {
            Refusal::Syntax(text) => {
                // When stderr is gone there is nobody left to tell; the exit code still says it.
                let _ = writeln!(stderr, "{text}\n{}", usage());
            }
            Refusal::Invalid(entries) => entries.iter().for_each(log),
        }
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.level, self.message)?;
        self.fields.iter().try_for_each(|(key, value)| write!(f, "\n  {key}: {value}"))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Syntax(text) => f.write_str(text),
            Refusal::Invalid(entries) => {
                for (i, entry) in entries.iter().enumerate() {
                    write!(f, "{}{entry}", if i == 0 { "" } else { "\n" })?;
                }
                Ok(())
            }
        }
    }
}
