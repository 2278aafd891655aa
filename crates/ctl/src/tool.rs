use std::ffi::OsString;
use std::process::ExitCode;

use cli::{Failure, Invocation, Io, UsageError};

use crate::call::Call;
use crate::commands::{HINT, PROGRAM, Runner};
use crate::process::Interruption;

/// Runs the command that `args` request, with the streams of this process; `args` are the arguments after the
/// tool's name.
pub fn run(args: &[OsString]) -> ExitCode {
    ExitCode::from(run_in(args, &Io::of_process(), None))
}

/// Runs the command that `args` request, with the streams and environment in `io`. A waiting command is
/// interrupted by `interruption` if it is given, otherwise by the signals of the process. Returns the exit
/// code.
pub fn run_in(args: &[OsString], io: &Io, interruption: Option<Interruption>) -> u8 {
    match ran(args, io, interruption) {
        Ok(()) => 0,
        Err(failure) => {
            if let Some(text) = &failure.text {
                io.err.notice(format!("Error: {text}\n"));
            }
            failure.code
        }
    }
}

fn ran(args: &[OsString], io: &Io, interruption: Option<Interruption>) -> Result<(), Failure> {
    let (matches, run) = match PROGRAM.parse(args, io.text_environment()) {
        Ok(Invocation::Run(matches, run)) => (matches, Some(run)),
        Ok(Invocation::Group(matches)) => (matches, None),
        Ok(Invocation::Help(text)) if text == PROGRAM.help(&[]) => return say(io, &help(&[])),
        Ok(Invocation::Help(text)) => return say(io, &text),
        Err(error) => return Err(refused(io, &error)),
    };
    for variable in &matches.unknown_env {
        io.err.notice(format!("Warning: unrecognized environment variable {variable}\n"));
    }
    for reason in &matches.unusable_env {
        io.err.notice(format!("Warning: {reason}; the variable has no effect\n"));
    }
    let asking = match run.map(|run| run.0) {
        None => return say(io, &help(&matches.path)),
        Some(Runner::Here(here)) => return here(&matches, io),
        Some(Runner::Asking(asking)) => asking,
    };
    let call = Call::new(matches, io.clone(), interruption);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::error)?;
    let outcome = runtime.block_on(async {
        let waiting = call.clone();
        let watch = tokio::spawn(async move { waiting.watch_unreached().await });
        let outcome = asking(&call).await;
        watch.abort();
        outcome
    });
    let is_late = |failure: &Failure| failure.text.as_ref().is_some_and(|text| text.contains(LATE));
    if outcome.as_ref().is_err_and(is_late) {
        call.tell_unreached(|_| true);
    }
    // Do not wait for threads that still read standard input or look up a host name, because they may never
    // end.
    runtime.shutdown_background();
    outcome
}

/// Prints to standard output.
///
/// # Errors
/// Returns an error if standard output is closed.
pub(crate) fn say(io: &Io, text: &str) -> Result<(), Failure> {
    io.out.write(text.as_bytes()).map_err(|_| Failure::said(Failure::ERROR))
}

/// Message of the failure of a command whose time limit has passed.
const LATE: &str = "context deadline exceeded";

const ROOT_FLAGS: &str = "\nFlags:\n  -h, --help   help for etcdctl\n";

/// Returns the help text of the command at `path`. The text for the whole tool lists no flags, because its
/// only flag is `--help`.
pub(crate) fn help(path: &[&str]) -> String {
    let text = PROGRAM.help(path);
    if path.is_empty() { text.replace(ROOT_FLAGS, "") } else { text }
}

/// Reports that a command line is not valid: prints the error and the correct usage, and returns the failure.
fn refused(io: &Io, error: &UsageError) -> Failure {
    if error.is_env {
        return Failure::error(error.message.clone());
    }
    if error.path.is_empty() && error.message.starts_with("unknown command") {
        io.err.notice(format!("Error: {}\nRun 'etcdctl --help' for usage.\n", error.message));
        return Failure::said(Failure::ERROR);
    }
    refused_as(io, &error.message, &error.path)
}

pub(crate) fn refused_as(io: &Io, error: &str, path: &[&str]) -> Failure {
    io.err.notice(format!("Error: {error}\n{}\n", plain_usage(path)));
    Failure::said(Failure::ERROR)
}

/// Returns the usage text that is printed after an error: the usage of the help text without the hint at its
/// end.
pub(crate) fn plain_usage(path: &[&str]) -> String {
    let usage = PROGRAM.usage(path);
    let kept: Vec<&str> = usage.lines().filter(|line| *line != HINT).collect();
    let mut text = kept.join("\n");
    text.truncate(text.trim_end().len());
    text.push('\n');
    if path.is_empty() { text.replace(ROOT_FLAGS, "") } else { text }
}
