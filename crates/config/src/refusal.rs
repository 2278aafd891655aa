//! Defines [`Refusal`]: why no member is started with the given options, as a message for the operator.

use std::fmt;

use super::help::usage;
use telemetry::logging::{Entry, Level};

/// Reason why no member is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The command line is malformed: print this text and the usage on stderr and exit with code 2.
    Syntax(String),
    /// The options are well-formed but invalid: log these entries and exit with code 1.
    Invalid(Vec<Entry>),
}

impl Refusal {
    /// Returns etcd's refusal of invalid options; `error` names the option and the reason.
    pub(super) fn invalid(error: impl Into<String>) -> Refusal {
        Refusal::Invalid(vec![Entry::new(Level::Warn, "failed to verify flags").with("error", error)])
    }

    /// Returns the refusal of options that are valid one by one, but with which a member cannot start. As in
    /// etcd, the message is "discovery failed" for every cause.
    pub(super) fn start_failed(error: impl Into<String>) -> Refusal {
        Refusal::Invalid(vec![Entry::new(Level::Fatal, "discovery failed").with("error", error)])
    }

    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Refusal::Syntax(_) => 2,
            Refusal::Invalid(_) => 1,
        }
    }

    /// Reports the reason: as plain text to `stderr` if the command line was malformed, otherwise each entry
    /// through `log`.
    pub fn report(&self, stderr: &mut dyn std::io::Write, log: impl FnMut(&Entry)) {
        match self {
            Refusal::Syntax(text) => {
                // The result is ignored: if stderr is closed, the exit code still reports the failure.
                let _ = writeln!(stderr, "{text}\n{}", usage());
            }
            Refusal::Invalid(entries) => entries.iter().for_each(log),
        }
    }
}

impl std::error::Error for Refusal {}

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
