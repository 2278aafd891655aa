//! `completion`: scripts that let a shell complete commands and flags.

use cli::{Command, Failure};

use super::PROGRAM;
use super::Run;
use crate::session::Session;

pub(super) const COMPLETION: Command<Run> = Command {
    name: "completion",
    usage: "completion [bash|zsh|fish]",
    about: "Generate the autocompletion script for the specified shell",
    example: "  source <(benchmark completion bash)",
    run: Some(Run::of(completion).with_words()),
    ..Command::EMPTY
};

fn completion(session: &Session) -> Result<(), Failure> {
    let shell = session.matches.arg_text(0).unwrap_or_default();
    let make = match (shell.as_str(), session.matches.args.len()) {
        ("bash", 1) => cli::completion::bash,
        ("zsh", 1) => cli::completion::zsh,
        ("fish", 1) => cli::completion::fish,
        _ => return Err(Failure::usage("completion takes one of bash, zsh, fish")),
    };
    session.say(&make(&PROGRAM, PROGRAM.root.name))
}
