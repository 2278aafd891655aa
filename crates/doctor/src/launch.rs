//! Runs the commands of the doctor: their type, their runtime, and what several of them share.

use std::ffi::OsString;
use std::pin::Pin;

use cli::{Failure, Flag, Invocation, Io, Matches, Program};

use crate::connection::{self, Connection};
use crate::evidence::Evidence;

/// Exit code if nothing could be examined, the command line is wrong, or a check did not pass.
pub(crate) const COULD_NOT_LOOK: u8 = 1;

pub(crate) const METRICS_ENDPOINTS: Flag<Vec<String>> = Flag::list(
    "metrics-endpoints",
    "",
    "URLs of the metrics of each of --endpoints, in the same order, if they are served elsewhere",
);

/// Function of a command. It prints the result. If the result is not good, it returns an error with the exit
/// code for it.
#[derive(Clone, Copy)]
pub(crate) struct Run(pub(crate) for<'c> fn(&'c Matches, &'c Io) -> Running<'c>);

/// Future of a running command.
pub(crate) type Running<'c> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'c>>;

/// Parses the command line, and runs the command to its end on a single-threaded runtime. Returns the exit
/// code.
pub(crate) fn launch(program: &Program<Run>, args: &[OsString], io: &Io) -> u8 {
    let outcome = match program.parse(args, io.text_environment()) {
        Ok(Invocation::Help(text)) => print(io, &text),
        Ok(Invocation::Group(matches)) => print(io, &program.help(&matches.path)),
        Ok(Invocation::Run(matches, run)) => {
            for reason in &matches.unusable_env {
                io.err.notice(format!("Warning: {reason}; the variable has no effect\n"));
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(Failure::error).and_then(|runtime| runtime.block_on(run.0(&matches, io)))
        }
        Err(error) => {
            io.err.notice(format!("Error: {error}\n{}", program.usage(&error.path)));
            return Failure::ERROR;
        }
    };
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            if let Some(text) = &failure.text {
                io.err.notice(format!("Error: {text}\n"));
            }
            failure.code
        }
    }
}

/// Prints to standard output. A failed write, for example because the reader has closed the pipe, is not
/// reported as an error.
pub(crate) fn print(io: &Io, text: &str) -> Result<(), Failure> {
    io.out.notice(text);
    Ok(())
}

/// Prints a result. Returns an error with the exit code `code` unless it is 0.
pub(crate) fn concluded(io: &Io, output: &str, code: u8) -> Result<(), Failure> {
    print(io, output)?;
    if code == 0 { Ok(()) } else { Err(Failure::said(code)) }
}

/// Returns the URL of each endpoint's metrics, in the order of the endpoints; empty if the endpoints
/// themselves serve the metrics.
///
/// # Errors
/// Returns an error if the number of URLs differs from the number of endpoints.
pub(crate) fn metrics_endpoints(matches: &Matches, connection: &Connection) -> Result<Vec<String>, Failure> {
    let given = matches.get(METRICS_ENDPOINTS).to_vec();
    if !given.is_empty() && given.len() != connection.settings.endpoints.len() {
        return Err(Failure::error("--metrics-endpoints must name one URL for each of --endpoints"));
    }
    Ok(given)
}

/// Returns an error that says that no member can be reached, with the reason for each member.
pub(crate) fn no_member_answers(evidence: &Evidence) -> Failure {
    let whys: Vec<String> = evidence
        .members
        .iter()
        .filter_map(|member| Some(format!("{}: {}", member.label(), member.reached.as_ref().err()?)))
        .collect();
    let whys = whys.join("; ");
    let is_refused = connection::REFUSALS.iter().any(|refusal| whys.contains(&*refusal.message));
    let what_to_do = if is_refused { format!("\n{}", connection::WITH_USERS) } else { String::new() };
    Failure::error(format!("no member can be reached: {whys}{what_to_do}"))
}
