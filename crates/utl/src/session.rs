//! Provides commands with their environment ([`Session`]), and with flags and argument checks that several
//! commands share.

use std::time::{Duration, SystemTime};

use cli::{Failure, Flag, FlagRow, Matches, Output, Program};

use crate::notice::Notices;

/// The function that runs a command.
#[derive(Clone, Copy)]
pub struct Run(pub(crate) fn(&mut Session<'_>) -> Result<(), Failure>);

/// Maximum time to wait for the lock on a database.
pub(crate) const TIMEOUT: Flag<Duration> = Flag::duration(
    "timeout",
    "10s",
    "time to wait to obtain a file lock on db file, 0 to block indefinitely",
);

/// The output format.
pub(crate) const WRITE_OUT: Flag<String> =
    Flag::text("write-out", "simple", "set the output format (fields, json, protobuf, simple, table)")
        .short('w');

/// The environment of a command.
pub(crate) struct Session<'s> {
    /// The tool, for usage texts and completions.
    pub(crate) program: &'s Program<Run>,
    pub(crate) matches: &'s Matches,
    pub(crate) out: Output,
    pub(crate) notices: Notices,
    /// Clock that gives the time in notices.
    pub(crate) clock: fn() -> SystemTime,
}

impl Session<'_> {
    /// Writes a text to standard output.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write(text.as_bytes()).map_err(Failure::error)
    }
}

/// Reports a usage error as cobra does: prints the error and the usage, and returns the error, which the
/// caller prints once more.
pub(crate) fn usage(session: &mut Session<'_>, message: &str) -> Failure {
    session.notices.plain(&format!("Error: {message}\n{}\n", session.program.usage(&session.matches.path)));
    Failure::error(message)
}

/// Returns the only argument. Returns an error if there is not exactly one.
pub(crate) fn one_arg(session: &mut Session<'_>) -> Result<std::path::PathBuf, Failure> {
    use std::os::unix::ffi::OsStringExt as _;
    match session.matches.args.as_slice() {
        [only] => Ok(std::ffi::OsString::from_vec(only.clone()).into()),
        args => {
            let message = format!("accepts 1 arg(s), received {}", args.len());
            Err(usage(session, &message))
        }
    }
}

/// Returns an error if one of these flags was not given.
pub(crate) fn required(session: &mut Session<'_>, flags: &[FlagRow]) -> Result<(), Failure> {
    let missing: Vec<String> = flags
        .iter()
        .filter(|flag| !session.matches.is_given(**flag))
        .map(|flag| cli::go::quote(flag.name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("required flag(s) {} not set", missing.join(", "));
    Err(usage(session, &message))
}
