//! The table of commands, and code that the commands share. Each command has its own file with its flags and
//! its function.

use std::time::Duration;

use cli::{Command, Failure, Flag, FlagRow, Program};

use crate::{
    Session, completion, defrag, drop_etcd, export, hash_kv, import, migrate, restore, status, version,
};

/// The function that runs a command.
#[derive(Clone, Copy)]
pub struct Run(pub(crate) fn(&mut Session<'_>) -> Result<(), Failure>);

/// The tool `etcdutl` with all its commands.
pub const PROGRAM: Program<Run> = Program {
    root: Command {
        name: "etcdutl",
        about: "An administrative command line tool for etcd3.",
        subcommands: &[
            completion::COMPLETION,
            defrag::DEFRAG,
            drop_etcd::DROP_ETCD,
            export::EXPORT,
            hash_kv::HASHKV,
            import::IMPORT,
            migrate::MIGRATE,
            SNAPSHOT,
            version::VERSION,
        ],
        ..Command::EMPTY
    },
    globals: &[TIMEOUT.row(), WRITE_OUT.row()],
    env_prefix: None,
    env_known: &[],
    globals_hint: "",
};

/// Time to wait for the lock on a database.
pub(crate) const TIMEOUT: Flag<Duration> = Flag::duration(
    "timeout",
    "10s",
    "time to wait to obtain a file lock on db file, 0 to block indefinitely",
);

/// The output format.
pub(crate) const WRITE_OUT: Flag<String> =
    Flag::text("write-out", "simple", "set the output format (fields, json, protobuf, simple, table)")
        .short('w');

const SNAPSHOT: Command<Run> = Command {
    name: "snapshot",
    usage: "snapshot <subcommand>",
    about: "Manages etcd node snapshots",
    subcommands: &[restore::RESTORE, status::STATUS],
    ..Command::EMPTY
};

/// Reports a usage error as cobra does: prints the error and the usage; the caller prints the returned error
/// again.
pub(crate) fn usage(session: &mut Session<'_>, message: &str) -> Failure {
    session.notices.plain(&format!("Error: {message}\n{}\n", PROGRAM.usage(&session.matches.path)));
    Failure::error(message)
}

/// Returns the only argument; fails if there is none or more than one.
pub(crate) fn one_arg(session: &mut Session<'_>) -> Result<std::path::PathBuf, Failure> {
    use std::os::unix::ffi::OsStringExt as _;
    match session.matches.args.as_slice() {
        [only] => Ok(std::ffi::OsString::from_vec(only.clone()).into()),
        args => {
            let message = format!("accepts 1 arg(s), received {}", args.len());
            Err(usage(session, &message))
        }
    }
}

/// Fails unless all of these flags were given.
pub(crate) fn required(session: &mut Session<'_>, flags: &[FlagRow]) -> Result<(), Failure> {
    let missing: Vec<String> = flags
        .iter()
        .filter(|flag| !session.matches.is_given(**flag))
        .map(|flag| cli::go::quote(flag.name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("required flag(s) {} not set", missing.join(", "));
    Err(usage(session, &message))
}
