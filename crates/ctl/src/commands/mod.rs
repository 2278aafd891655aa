//! Defines etcdctl's commands. Each family of commands is in one file, with its flags, its rows of the
//! command table, and the functions that run the commands.

mod alarm;
mod auth;
mod autopilot;
mod check;
mod check_datascale;
mod check_perf;
mod compaction;
mod completion;
mod connections;
mod defrag;
mod del;
mod downgrade;
mod elect;
mod endpoint;
mod get;
mod help;
mod lease;
mod lock;
mod measurement;
mod member;
mod mirror;
mod mirror_revisions;
mod move_leader;
mod observer;
mod options;
mod put;
mod role;
mod snapshot;
mod txn;
mod user;
mod version;
mod watch;
mod watch_arguments;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::pin::Pin;

use cli::{Command, Failure, Invocation, Io, Matches, Program};

use crate::call::Call;
use crate::globals;

/// The function that runs a command.
#[derive(Clone, Copy)]
pub struct Run(pub(crate) Runner);

#[derive(Clone, Copy)]
pub(crate) enum Runner {
    /// A command that needs no cluster.
    Here(fn(&Matches, &Io) -> Result<(), Failure>),
    /// A command that sends requests to a cluster, and therefore runs on an async runtime.
    Asking(for<'c> fn(&'c Call) -> Running<'c>),
}

/// Future of a running command.
pub(crate) type Running<'c> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'c>>;

impl Run {
    const fn here(run: fn(&Matches, &Io) -> Result<(), Failure>) -> Run {
        Run(Runner::Here(run))
    }

    const fn asking(run: for<'c> fn(&'c Call) -> Running<'c>) -> Run {
        Run(Runner::Asking(run))
    }
}

// Headings under which the list of commands is grouped.
const KV: &str = "Key-value commands";
const MAINTENANCE: &str = "Cluster maintenance commands";
const CONCURRENCY: &str = "Concurrency commands";
const AUTHENTICATION: &str = "Authentication commands";
const UTILITY: &str = "Utility commands";

/// The command table of the tool.
pub static PROGRAM: Program<Run> = Program {
    root: Command {
        name: "etcdctl",
        about: "A simple command line client for etcd3.",
        subcommands: COMMANDS,
        ..Command::EMPTY
    },
    globals: globals::FLAGS,
    env_prefix: Some("ETCDCTL_"),
    // ETCDCTL_API once selected API version 2 or 3. It has no effect, but is known so that scripts that still
    // set it get no warning.
    env_known: &["ETCDCTL_API", "ETCDCTL_WATCH_KEY", "ETCDCTL_WATCH_RANGE_END"],
    globals_hint: HINT,
};

/// Last line of the help texts.
pub(crate) const HINT: &str =
    "Use \"etcdctl options\" for a list of global command-line options (applies to all commands).";

/// Commands, grouped by heading, and sorted by name within each group.
static COMMANDS: &[Command<Run>] = &[
    compaction::COMPACTION,
    del::DEL,
    get::GET,
    lease::LEASE,
    put::PUT,
    txn::TXN,
    watch::WATCH, //
    alarm::ALARM,
    connections::CONNECTIONS,
    defrag::DEFRAG,
    downgrade::DOWNGRADE,
    endpoint::ENDPOINT,
    member::MEMBER,
    move_leader::MOVE_LEADER,
    autopilot::AUTOPILOT,
    observer::OBSERVER,
    snapshot::SNAPSHOT, //
    elect::ELECT,
    lock::LOCK, //
    auth::AUTH,
    role::ROLE,
    user::USER, //
    check::CHECK,
    completion::COMPLETION,
    help::HELP,
    mirror::MAKE_MIRROR,
    options::OPTIONS,
    version::VERSION,
];

/// The commands that may stand on a line of a transaction that `txn` reads.
static REQUESTS: Program<Run> = Program {
    root: Command { name: "", subcommands: &[get::GET, put::PUT, del::DEL], ..Command::EMPTY },
    globals: &[],
    env_prefix: None,
    env_known: &[],
    globals_hint: "",
};

/// The command that may stand on a line that an interactive `watch` reads.
static WATCHES: Program<Run> =
    Program { root: watch::WATCH, globals: &[], env_prefix: None, env_known: &[], globals_hint: "" };

fn os(words: &[Vec<u8>]) -> Vec<OsString> {
    words.iter().cloned().map(OsString::from_vec).collect()
}

/// Parses a line of a transaction. Returns `None` if the words are not a valid request.
pub(crate) fn parse_request(words: &[Vec<u8>]) -> Option<Matches> {
    match REQUESTS.parse(&os(words), []) {
        Ok(Invocation::Run(matches, _)) => Some(matches),
        _ => None,
    }
}

/// Parses the words after `watch` on a line of an interactive watch.
///
/// # Errors
/// Returns an error that says why the words are not valid.
pub(crate) fn parse_watch(words: &[Vec<u8>]) -> Result<Matches, Failure> {
    match WATCHES.parse(&os(words), []) {
        Ok(Invocation::Run(matches, _) | Invocation::Group(matches)) => Ok(matches),
        Ok(Invocation::Help(_)) => Err(Failure::bad_args("pflag: help requested")),
        Err(error) => Err(Failure::bad_args(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sound() {
        PROGRAM.assert_sound();
        REQUESTS.assert_sound();
        WATCHES.assert_sound();
    }

    #[test]
    fn every_command_has_an_example() {
        fn check(command: &Command<Run>) {
            assert!(!command.example.is_empty(), "{}", command.name);
            command.subcommands.iter().for_each(check);
        }
        COMMANDS.iter().for_each(check);
    }
}
