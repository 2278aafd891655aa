//! `mainstay utl`, also available as `etcdutl`: works on the files of members that are not running.
//!
//! [`run`] runs a command. etcdutl's commands have the same flags, outputs, errors and exit codes as in
//! etcdutl, and read snapshots and data directories of etcd 3.4 to 3.7 and of Mainstay. Mainstay's own
//! commands `import` and `export` convert a data directory of etcd to one of Mainstay, and the reverse.
//! [`take_over`] imports a directory of etcd in place when a member is started, and [`restore_copy`] restores a
//! snapshot for a shadow; [`restore_moment`] does so with a state that a backup holds. [`rebuild`] replaces a member
//! whose data is damaged by a new member, which is then started. [`recover`] forms a cluster again from directories
//! that have survived the loss of its quorum.
//!
//! The crate does not define file formats: these are in `interchange`, `storage::restoration` and
//! `storage::stopped`. It uses the network only in [`rebuild`], which requests membership changes from the
//! other members.
//!
//! Invariants:
//! - Input is not changed (test `import`, with a read-only directory), with these exceptions: `defrag` and
//!   `migrate` rewrite a database, `drop-etcd` deletes etcd's files, [`rebuild`] moves the old data aside,
//!   [`recover`] marks members if it is asked to,
//!   and `export` marks the member as exported and, like a start, cuts off an interrupted write at the end of
//!   the log.
//! - An output directory appears under its final name completely or not at all, even if the process is
//!   killed. Existing data is never overwritten (tests `restore`, `damage`).
//! - Revisions, history, leases, alarms and HashKV are preserved. If data cannot be preserved, the command
//!   fails, unless a flag says to leave the data out (test `round_trip`).
//! - Commands that read or write a data directory of Mainstay hold its index in memory, as a running member
//!   does: for each version of a key about 100 bytes plus the key. Other commands use a few MiB, plus 24
//!   bytes per entry of a log that is read, and 32 to 80 bytes per key for `snapshot status` and `hashkv`.
//!
//! Start reading with [`run_in`], `restore.rs`, `import.rs` and `takeover.rs`. Tests: `tests/it`. They
//! compare whole outputs with recorded outputs of etcdutl 3.7 in `tests/it/golden`, and with real etcd if
//! `MAINSTAY_TEST_ETCD_DIR` names a directory with etcd's programs.

#![forbid(unsafe_code)]

mod cluster;
mod commands;
mod completion;
mod defrag;
mod drop_etcd;
mod etcd_dir;
mod export;
mod hash_kv;
mod import;
mod max_learners;
mod migrate;
mod notice;
mod old_store;
mod places;
mod printer;
pub mod rebuild;
pub mod recover;
mod restore;
pub mod restore_flags;
mod session;
mod snapshot_file;
mod status;
mod takeover;
mod target;
mod version;
mod wal_dir;

use std::ffi::OsString;
use std::process::ExitCode;

use cli::{Failure, Invocation, Io};
use notice::Notices;
use session::Session;

pub use cluster::ClusterOptions;
pub use commands::PROGRAM;
pub use restore::{CopyOptions, RestoredCopy, restore_copy, restore_moment};
pub use takeover::{TakeOver, take_over};

/// Runs the command that `args` request; `args` are the words after the program's name. Results go to
/// standard output, all other messages to standard error.
pub fn run(args: &[OsString]) -> ExitCode {
    ExitCode::from(run_in(args, &Io::of_process()))
}

/// Runs the tool with the given streams and clock. Returns the exit code.
pub fn run_in(args: &[OsString], io: &Io) -> u8 {
    let outcome = match PROGRAM.parse(args, io.text_environment()) {
        Err(error) => {
            // Like cobra, print the error before the usage and again after it.
            let usage = match error.message.starts_with("unknown command") {
                true => format!("Run '{} --help' for usage.\n", PROGRAM.root.name),
                false => PROGRAM.usage(&error.path) + "\n",
            };
            io.err.notice(format!("Error: {error}\n{usage}Error: {error}\n"));
            return 1;
        }
        Ok(Invocation::Help(text)) => {
            // The help of etcdutl's commands is only the usage text, as in etcdutl; Mainstay's own commands
            // show the whole help text.
            let own = ["import", "export", "drop-etcd"]
                .iter()
                .any(|name| text.contains(&format!("etcdutl {name} --data-dir")));
            let usage = text.find("Usage:\n").and_then(|at| text.get(at..)).unwrap_or(&text);
            let usage = if own { text.as_str() } else { usage };
            io.out.write(usage.as_bytes()).map_err(Failure::error)
        }
        Ok(Invocation::Group(matches)) => {
            io.out.write(PROGRAM.usage(&matches.path).as_bytes()).map_err(Failure::error)
        }
        Ok(Invocation::Run(matches, run)) => {
            let mut session = Session {
                program: &PROGRAM,
                matches: &matches,
                out: io.out.clone(),
                notices: Notices::new(io),
                clock: io.clock,
            };
            run.0(&mut session)
        }
    };
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            io.err.notice(format!("Error: {failure}\n"));
            failure.code
        }
    }
}
