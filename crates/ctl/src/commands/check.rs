//! `check`: the group of commands that measure the performance of a cluster and the memory that it needs.

use cli::Command;

use super::check_datascale::DATASCALE;
use super::check_perf::PERF;
use super::{Run, UTILITY};

pub(super) const CHECK: Command<Run> = Command {
    name: "check",
    usage: "check <subcommand>",
    about: "commands for checking properties of the etcd cluster. Use `etcdctl check --help` to see subcommands",
    long: "commands for checking properties of the etcd cluster",
    example: "  etcdctl check perf --load=m",
    subcommands: &[DATASCALE, PERF],
    group: UTILITY,
    ..Command::EMPTY
};
