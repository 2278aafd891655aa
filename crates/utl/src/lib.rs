//! `mainstay utl`, also available as `etcdutl`: works on the files of members that are not running.
//!
//! Parts: etcdutl's commands with the same flags, outputs, errors and exit codes ([`run`]), which read
//! snapshots and data directories of etcd 3.4 to 3.7 and of Mainstay; and Mainstay's own commands `import`
//! and `export`, which convert a data directory of one program to one of the other. [`take_over`] imports in
//! place when a member is started. [`rebuild`] replaces a member whose data is damaged by a new member, which
//! is then started.
//!
//! The crate does not define formats (`interchange`, `storage::restoration`, `storage::stopped`), and never
//! touches a running member. It uses the network only in [`rebuild`], which sends the changes of the
//! cluster's members to the other members.
//!
//! Invariants:
//! - Input is never changed, except by `defrag` and `migrate`, whose purpose this is, and by `export`. Like a
//!   start, `export` cuts off an interrupted write at the end of a log; it also marks the member as exported
//!   (test `import`, with a read-only directory).
//! - A directory exists completely or not at all, even if the process is killed; existing data is never
//!   overwritten (tests `restore`, `damage`).
//! - Revisions, history, leases, alarms and HashKV are preserved. Data that cannot be preserved makes the
//!   command fail (test `round_trip`).
//! - Memory holds a few MiB and the index of the new Mainstay data directory, as a running member does: about
//!   100 bytes and the key for each version. Writing etcd's format takes memory independent of the size,
//!   except 24 bytes per entry of a log that is read, and 32 to 80 bytes per key for `snapshot status` and
//!   `hashkv`.
//!
//! Start reading with [`run_in`], `restore.rs`, `import.rs` and `takeover.rs`. Tests: `tests/it`. Whole
//! outputs are compared with those of etcdutl 3.7 in `tests/it/golden`, and with real etcd if
//! `MAINSTAY_TEST_ETCD_DIR` names a directory with its programs.

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
mod restore;
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

pub use commands::PROGRAM;
pub use takeover::{TakeOver, take_over};

/// Runs the tool in this process. `args` are the words after the program's name. Data goes to standard
/// output, everything else to standard error.
pub fn run(args: &[OsString]) -> ExitCode {
    ExitCode::from(run_in(args, &Io::of_process()))
}

/// Runs the tool with the given streams and clock. Returns the exit code.
pub fn run_in(args: &[OsString], io: &Io) -> u8 {
    let outcome = match PROGRAM.parse(args, io.text_environment()) {
        Err(error) => {
            // cobra prints the error before the usage and again after it.
            let usage = match error.message.starts_with("unknown command") {
                true => format!("Run '{} --help' for usage.\n", PROGRAM.root.name),
                false => PROGRAM.usage(&error.path) + "\n",
            };
            io.err.notice(format!("Error: {error}\n{usage}Error: {error}\n"));
            return 1;
        }
        Ok(Invocation::Help(text)) => {
            // The help of etcdutl's own commands consists only of the usage text.
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
