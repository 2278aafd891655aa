//! `mainstay utl`, by name `etcdutl`: work on files while no member runs.
//!
//! What it is: etcdutl's commands with its flags, outputs, errors and exit codes ([`run`]), reading snapshots and data
//! directories of etcd 3.4 to 3.7 and of Mainstay; and two commands of its own, `import` and `export`, that make a
//! data directory of the one program out of one of the other.
//!
//! What it does not know: formats (`interchange`, `storage::restoration`, `storage::stopped`), the network, a running
//! member, which is always left alone.
//!
//! Invariants:
//! - What is read is never changed, but for `defrag` and `migrate`, whose work that is, and `export`, which cuts off
//!   what an interrupted write left at the end of a log, as a start would (test `import`, with a directory that takes
//!   no writes).
//! - A directory is there whole or not at all, whatever kills the process; nothing that is there is overwritten
//!   (tests `restore`, `damage`).
//! - Revisions, history, leases, alarms and HashKV come over as they are; what cannot, is refused (test `round_trip`).
//! - Memory holds, beside a few MiB, the index of what becomes a data directory of Mainstay, as a running member does:
//!   some 100 bytes and the key for each version. For etcd's format nothing depends on the size, but for 24 bytes per
//!   entry of a log that is read, and 32 to 80 per key for `snapshot status` and `hashkv`.
//!
//! Tests: `tests/it`, whole outputs against those of etcdutl 3.7 in `tests/it/golden`; with real etcd where
//! `MAINSTAY_TEST_ETCD_DIR` names a directory with its programs.

mod cluster;
mod commands;
mod defrag;
mod etcd_dir;
mod export;
mod hash_kv;
mod import;
mod migrate;
mod notice;
mod printer;
mod refusal;
mod restore;
mod snapshot_file;
mod status;
mod target;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::SystemTime;

pub use commands::PROGRAM;
pub use refusal::Refusal;

use cli::{Invocation, Matches};
use notice::Notices;

/// What a command works with.
struct Session<'s> {
    matches: &'s Matches,
    out: &'s mut dyn Write,
    notices: Notices<'s>,
}

impl Session<'_> {
    /// Prints a line of what was asked for.
    fn print(&mut self, text: &str) -> Result<(), Refusal> {
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()).map_err(Refusal::failed)
    }
}

/// Runs a command of the process: the arguments behind the program's name, and the environment. Data goes to standard
/// output, everything else to standard error.
pub fn run(args: &[OsString], env: impl IntoIterator<Item = (String, String)>) -> ExitCode {
    let code = run_with(args, env, &mut std::io::stdout(), &mut std::io::stderr(), SystemTime::now);
    ExitCode::from(code)
}

/// The same with other outputs and another clock; gives the exit code.
pub fn run_with(
    args: &[OsString],
    env: impl IntoIterator<Item = (String, String)>,
    out: &mut dyn Write,
    err: &mut dyn Write,
    clock: fn() -> SystemTime,
) -> u8 {
    let outcome = match PROGRAM.parse(args, env) {
        Err(error) => {
            // cobra says it twice, with the usage in between.
            let usage = match error.message.starts_with("unknown command") {
                true => format!("Run '{} --help' for usage.\n", PROGRAM.root.name),
                false => PROGRAM.usage(&error.path) + "\n",
            };
            let _ = write!(err, "Error: {error}\n{usage}Error: {error}\n");
            return 1;
        }
        Ok(Invocation::Help(text)) => {
            // etcdutl's help is its usage.
            let own =
                ["import", "export"].iter().any(|name| text.contains(&format!("etcdutl {name} --data-dir")));
            let usage = text.find("Usage:\n").and_then(|at| text.get(at..)).unwrap_or(&text);
            let usage = if own { text.as_str() } else { usage };
            out.write_all(usage.as_bytes()).map_err(Refusal::failed)
        }
        Ok(Invocation::Run(matches)) => {
            let mut session = Session { matches: &matches, out, notices: Notices::new(err, clock) };
            commands::run(&mut session)
        }
    };
    match outcome {
        Ok(()) => 0,
        Err(refusal) => {
            // Nobody can be told that standard error is gone.
            let _ = writeln!(err, "Error: {refusal}");
            refusal.code
        }
    }
}
