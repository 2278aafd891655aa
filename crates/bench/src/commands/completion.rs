//! Implements the command `completion`: prints a script with which a shell completes commands and flags.

use cli::{Command, Failure};

use super::PROGRAM;
use super::Run;
use crate::session::Session;

pub(super) const COMPLETION: Command<Run> = Command {
    name: "completion",
    usage: "completion [bash|zsh|fish|powershell]",
    about: "Generate the autocompletion script for the specified shell",
    example: "  source <(benchmark completion bash)",
    run: Some(Run::of(completion).with_words()),
    ..Command::EMPTY
};

fn completion(session: &Session) -> Result<(), Failure> {
    let shell = session.matches.arg_text(0).filter(|_| session.matches.args.len() == 1).unwrap_or_default();
    let script =
        cli::completion::Tree::of(&PROGRAM).script(shell.as_bytes(), PROGRAM.root.name).ok_or_else(|| {
            Failure::usage(format!("completion takes one of {}", cli::completion::SHELLS.join(", ")))
        })?;
    session.say(&script)
}
