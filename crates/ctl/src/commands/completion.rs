//! `completion`: prints scripts that let a shell complete commands and flags.

use cli::{Command, Failure, Io, Matches};

use super::{PROGRAM, Run, UTILITY};
use crate::tool::{refused_as, say};

pub(super) const COMPLETION: Command<Run> = Command {
    name: "completion",
    usage: "completion [bash|zsh|fish|powershell]",
    usage_is_whole: true,
    about: "Generate completion script",
    example: "  # For this shell\n  source <(etcdctl completion bash)\n\n  # For all future shells\n  \
              etcdctl completion bash > /etc/bash_completion.d/etcdctl\n  \
              etcdctl completion zsh > \"${fpath[1]}/_etcdctl\"\n  \
              etcdctl completion fish > ~/.config/fish/completions/etcdctl.fish\n  \
              etcdctl completion powershell | Out-String | Invoke-Expression",
    group: UTILITY,
    run: Some(Run::here(completion)),
    ..Command::EMPTY
};

fn completion(matches: &Matches, io: &Io) -> Result<(), Failure> {
    let [shell] = &matches.args[..] else {
        let error = format!("accepts 1 arg(s), received {}", matches.args.len());
        return Err(refused_as(io, &error, &["completion"]));
    };
    let Some(script) = cli::completion::Tree::of(&PROGRAM).script(shell, "etcdctl") else {
        let unknown = cli::go::quote(shell);
        let error = format!("invalid argument {unknown} for \"etcdctl completion\"");
        return Err(refused_as(io, &error, &["completion"]));
    };
    say(io, &script)
}
