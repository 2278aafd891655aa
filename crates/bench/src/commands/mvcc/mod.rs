//! The `mvcc` commands, which measure the key index alone: in this process, without a server.

mod put;
mod range;

use cli::Command;

use super::Run;

pub(super) const MVCC: Command<Run> = Command {
    name: "mvcc",
    usage: "mvcc",
    about: "Benchmark mvcc",
    long: "storage subcommand is a set of various benchmark tools for MVCC storage subsystem of etcd.\nActual \
               benchmarks are implemented as its subcommands.",
    subcommands: &[put::PUT, range::RANGE],
    ..Command::EMPTY
};
