use std::ffi::OsString;
use std::process::ExitCode;

use cli::{Invocation, Matches, UsageError, completion};

use crate::call::Call;
use crate::command;
use crate::commands::{HINT, PROGRAM};
use crate::failure::Failure;
use crate::surroundings::Surroundings;

/// Runs the tool in this process: `args` are the words behind its name, `environment` the variables.
pub fn run(args: &[OsString], environment: impl IntoIterator<Item = (OsString, OsString)>) -> ExitCode {
    let environment = environment.into_iter().collect();
    ExitCode::from(run_in(args, &Surroundings { environment, ..Surroundings::of_process() }))
}

/// Runs the tool in any surroundings. Gives its exit code.
pub fn run_in(args: &[OsString], io: &Surroundings) -> u8 {
    match ran(args, io) {
        Ok(()) => 0,
        Err(failure) => {
            if failure.text.is_some() {
                // Nobody to tell that it cannot be told.
                let _ = io.err.line(failure.to_string());
            }
            failure.code
        }
    }
}

fn ran(args: &[OsString], io: &Surroundings) -> Result<(), Failure> {
    let environment = io
        .environment
        .iter()
        .filter_map(|(key, value)| Some((key.to_str()?.to_owned(), value.to_str()?.to_owned())));
    let matches = match PROGRAM.parse(args, environment) {
        Ok(Invocation::Run(matches)) => matches,
        Ok(Invocation::Help(text)) if text == PROGRAM.help(&[]) => return say(io, &help(&[])),
        Ok(Invocation::Help(text)) => return say(io, &text),
        Err(error) => return Err(refused(io, &error)),
    };
    for variable in &matches.unknown_env {
        // Nobody to tell that it cannot be told.
        let _ = io.err.line(format!("Warning: unrecognized environment variable {variable}"));
    }
    match &matches.path[..] {
        [] => return say(io, &help(&[])),
        ["help"] => return help_about(&matches, io),
        ["options"] => {
            let flags = PROGRAM.global_flags();
            return say(io, &format!("The following options can be passed to any command:\n\n{flags}"));
        }
        ["completion"] => return complete(&matches, io),
        path if is_group(path) => return say(io, &help(path)),
        _ => {}
    }
    let path = matches.path.clone();
    let call = Call::new(matches, io.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::error(error.to_string()))?;
    let outcome = runtime.block_on(command::run(&path, &call));
    // A thread that still waits for a line of standard input, or for a name to be resolved, is not waited for.
    runtime.shutdown_background();
    outcome
}

fn say(io: &Surroundings, text: &str) -> Result<(), Failure> {
    io.out.write(text.as_bytes()).map_err(|_| Failure::said(Failure::ERROR))
}

/// Whether there are commands below the one at this path, which is of this program.
fn is_group(path: &[&str]) -> bool {
    let mut at = &PROGRAM.root;
    for name in path {
        match at.subcommands.iter().find(|command| command.name == *name) {
            Some(below) => at = below,
            None => return false,
        }
    }
    !at.subcommands.is_empty()
}

const ROOT_FLAGS: &str = "\nFlags:\n  -h, --help   help for etcdctl\n";

/// A help text. That of the whole tool says nothing of flags: its only one is the one that has been found.
fn help(path: &[&str]) -> String {
    let text = PROGRAM.help(path);
    if path.is_empty() { text.replace(ROOT_FLAGS, "") } else { text }
}

fn help_about(matches: &Matches, io: &Surroundings) -> Result<(), Failure> {
    let mut path = Vec::new();
    let mut at = &PROGRAM.root;
    for word in &matches.args {
        let mut begun = at.subcommands.iter().filter(|below| below.name.as_bytes().starts_with(word));
        let exact = at.subcommands.iter().find(|below| below.name.as_bytes() == &word[..]);
        match exact.or_else(|| begun.next().filter(|_| begun.next().is_none())) {
            Some(below) => {
                path.push(below.name);
                at = below;
            }
            None if path.is_empty() => {
                let topics: Vec<String> = matches.args.iter().map(|topic| topic_shown(topic)).collect();
                let text = format!("Unknown help topic [{}]\n{}", topics.join(" "), plain_usage(&[]));
                // Nobody to tell that it cannot be told.
                let _ = io.err.write(text.as_bytes());
                return Ok(());
            }
            None => break,
        }
    }
    say(io, &help(&path))
}

/// A word between backquotes, where it can be: Go's `%#q`.
fn topic_shown(word: &[u8]) -> String {
    match std::str::from_utf8(word) {
        Ok(text) if !text.contains(|c: char| c.is_control() || c == '`') => format!("`{text}`"),
        _ => cli::go::quote(word),
    }
}

fn complete(matches: &Matches, io: &Surroundings) -> Result<(), Failure> {
    let [shell] = &matches.args[..] else {
        let error = format!("accepts 1 arg(s), received {}", matches.args.len());
        return Err(refused_as(io, &error, &["completion"]));
    };
    let called = "etcdctl";
    let script = match &shell[..] {
        b"bash" => completion::bash(&PROGRAM, called),
        b"zsh" => completion::zsh(&PROGRAM, called),
        b"fish" => completion::fish(&PROGRAM, called),
        unknown => {
            let unknown = cli::go::quote(unknown);
            let error = format!("invalid argument {unknown} for \"etcdctl completion\"");
            return Err(refused_as(io, &error, &["completion"]));
        }
    };
    say(io, &script)
}

/// A refused command line: what is wrong, and how it would be right.
fn refused(io: &Surroundings, error: &UsageError) -> Failure {
    if error.is_env {
        return Failure::error(error.message.clone());
    }
    if error.path.is_empty() && error.message.starts_with("unknown command") {
        // Nobody to tell that it cannot be told.
        let _ = io.err.line(format!("Error: {}\nRun 'etcdctl --help' for usage.", error.message));
        return Failure::said(Failure::ERROR);
    }
    refused_as(io, &error.message, &error.path)
}

fn refused_as(io: &Surroundings, error: &str, path: &[&str]) -> Failure {
    // Nobody to tell that it cannot be told.
    let _ = io.err.line(format!("Error: {error}\n{}", plain_usage(path)));
    Failure::said(Failure::ERROR)
}

/// The usage as it follows an error: without the hint that stands in help texts.
fn plain_usage(path: &[&str]) -> String {
    let usage = PROGRAM.usage(path);
    let kept: Vec<&str> = usage.lines().filter(|line| *line != HINT).collect();
    let mut text = kept.join("\n");
    text.truncate(text.trim_end().len());
    text.push('\n');
    if path.is_empty() { text.replace(ROOT_FLAGS, "") } else { text }
}
