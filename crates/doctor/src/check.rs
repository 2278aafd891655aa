//! The commands `check disk` and `check network`: their command table, and the entry points that run them.

use std::ffi::OsString;
use std::process::ExitCode;

use cli::completion::Tree;
use cli::{Command, Failure, Io, Program};

use crate::check_disk::DISK;
use crate::check_network::NETWORK;
use crate::connection;
use crate::launch::{Run, launch};

pub(crate) const PROGRAM: Program<Run> = Program {
    root: Command {
        name: "check",
        about: "Measures the machine and the network under a member",
        subcommands: &[DISK, NETWORK, PERF, DATASCALE],
        ..Command::EMPTY
    },
    globals: connection::FLAGS,
    env_prefix: Some("ETCDCTL_"),
    env_known: &["ETCDCTL_API"],
    globals_hint: "",
};

/// Checks that belong to etcdctl: `mainstay ctl check` runs them. This table contains them only so that the
/// help of `check` lists them; their function returns an error.
const PERF: Command<Run> = of_etcdctl("perf", "Check the performance of the etcd cluster (etcdctl's)");
const DATASCALE: Command<Run> = of_etcdctl(
    "datascale",
    "Check the memory usage of holding data for different workloads on a given server endpoint (etcdctl's)",
);

const fn of_etcdctl(name: &'static str, about: &'static str) -> Command<Run> {
    let run = Run(|_, _| Box::pin(async { Err(Failure::error("it is etcdctl's: mainstay ctl check")) }));
    Command { name, about, run: Some(run), ..Command::EMPTY }
}

/// Returns the shell completions for `doctor` and for `check`. The completions for `check` leave out the
/// checks that belong to etcdctl.
pub fn completion() -> [Tree; 2] {
    let mut doctor = Tree::of(&crate::doctor::PROGRAM);
    doctor.below.push(Tree { name: "migrate", ..Tree::of(&crate::migrate::PROGRAM) });
    doctor.below.push(Tree { name: "upgrade", ..Tree::of(&crate::upgrade::PROGRAM) });
    let mut check = Tree::of(&PROGRAM);
    check.below.retain(|below| ![PERF.name, DATASCALE.name].contains(&below.name));
    [doctor, check]
}

/// Runs `check disk` or `check network` in this process and prints the result. `args` are the arguments that
/// follow `check`.
pub fn check(args: &[OsString]) -> ExitCode {
    ExitCode::from(check_in(args, &Io::of_process()))
}

/// Runs a check like [`check`], with caller-supplied streams and environment. Returns the exit code.
pub fn check_in(args: &[OsString], io: &Io) -> u8 {
    launch(&PROGRAM, args, io)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_tables_are_sound() {
        super::PROGRAM.assert_sound();
    }
}
