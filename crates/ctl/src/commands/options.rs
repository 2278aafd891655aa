//! `options`: lists the flags that every command has.

use cli::{Command, Failure, Io, Matches};

use super::{PROGRAM, Run, UTILITY};
use crate::tool::say;

pub(super) const OPTIONS: Command<Run> = Command {
    name: "options",
    usage: "options",
    about: "Show the global command-line flags",
    example: "  # Each can also be set in the environment\n  ETCDCTL_ENDPOINTS=10.0.0.1:2379 etcdctl get foo",
    group: UTILITY,
    run: Some(Run::here(options)),
    ..Command::EMPTY
};

fn options(_: &Matches, io: &Io) -> Result<(), Failure> {
    let flags = PROGRAM.global_flags();
    say(io, &format!("The following options can be passed to any command:\n\n{flags}"))
}
