//! `completion`: scripts that let a shell complete commands and flags.

use cli::{Command, Failure};

use crate::Session;
use crate::commands::{PROGRAM, Run, one_arg, usage};

pub(crate) const COMPLETION: Command<Run> = Command {
    name: "completion",
    usage: "completion [bash|zsh|fish]",
    about: "Generate completion script",
    example: "  source <(etcdutl completion bash)
  etcdutl completion zsh > \"${fpath[1]}/_etcdutl\"
  etcdutl completion fish | source",
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    one_arg(session)?;
    let shell = session.matches.arg_text(0).unwrap_or_default();
    let script = match shell.as_str() {
        "bash" => cli::completion::bash(&PROGRAM, "etcdutl"),
        "zsh" => cli::completion::zsh(&PROGRAM, "etcdutl"),
        "fish" => cli::completion::fish(&PROGRAM, "etcdutl"),
        other => {
            let other = cli::go::quote(other);
            return Err(usage(session, &format!("invalid argument {other} for \"etcdutl completion\"")));
        }
    };
    session.print(&script)
}
