//! The commands `mainstay backup`, and those of `mainstay utl snapshot` that read a backup.

mod diff;
mod drill;
mod list;
mod prune;
mod restore;
mod run;
mod verify;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use cli::{Command, Failure, Flag, Io, Matches, Program};
use stdx::calendar::parse_rfc3339;

use crate::chain::{Chain, clusters};
use crate::live::wall_ms;
use crate::place;
use crate::plan::Moment;
use crate::store::Store;
use crate::trouble::{Fault, Trouble};

pub use prune::{PruneList, prune_list};
pub use run::{Follows, RunArguments, take_arguments};

/// Function that runs a command.
#[derive(Clone, Copy)]
pub struct Run(fn(&mut Call<'_>) -> Result<(), Failure>);

/// A command with its flags and streams.
pub(crate) struct Call<'c> {
    pub(crate) matches: &'c Matches,
    pub(crate) io: &'c Io,
}

const WRITE_OUT: Flag<String> = Flag::text("write-out", "simple", "output format: simple or json").short('w');
const CLUSTER_ID: Flag<String> = Flag::text(
    "cluster-id",
    "",
    "id of the cluster in hexadecimal; needed only if the place has backups of several clusters",
);

const LONG: &str = "\
Ships every committed change of a cluster to a bucket or a directory, and restores the state of any moment from there.
Places: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory. See docs/backup.md.";

/// The command line of `mainstay backup`.
pub const PROGRAM: Program<Run> = Program {
    root: Command {
        name: "backup",
        usage: "backup <subcommand>",
        about: "Continuous backup, and restore to any moment",
        long: LONG,
        subcommands: &[
            run::RUN,
            list::LIST,
            verify::VERIFY,
            restore::RESTORE,
            drill::DRILL,
            diff::DIFF,
            prune::PRUNE,
        ],
        ..Command::EMPTY
    },
    globals: &[],
    env_prefix: None,
    env_known: &[],
    globals_hint: "",
};

/// Runs a command other than `run`. `args` are the words after `backup`.
pub fn run(args: &[OsString]) -> ExitCode {
    ExitCode::from(run_in(args, &Io::of_process()))
}

/// Runs a command with the given streams. Returns the exit code.
pub fn run_in(args: &[OsString], io: &Io) -> u8 {
    PROGRAM.run_in(args, io, |matches, run| run.0(&mut Call { matches, io }))
}

/// Returns the words of the command of `mainstay backup` for those of `mainstay utl`, if they name a backup: `snapshot
/// restore URL` and `snapshot diff`.
pub fn of_utl(args: &[OsString]) -> Option<Vec<OsString>> {
    let words: Vec<&str> = args.iter().filter_map(|word| word.to_str()).collect();
    let names_backup = words.iter().any(|word| place::is_url(word));
    match (words.first(), words.get(1)) {
        (Some(&"snapshot"), Some(&"restore")) if names_backup => Some(args[1..].to_vec()),
        (Some(&"snapshot"), Some(&"diff")) => Some(args[1..].to_vec()),
        _ => None,
    }
}

impl Call<'_> {
    /// Returns the only argument.
    fn only_argument(&self, what: &str) -> Result<String, Failure> {
        match (self.matches.arg_text(0), self.matches.arg_text(1)) {
            (Some(only), None) => Ok(only),
            (None, _) => Err(Failure::usage(format!("{what} is missing"))),
            (_, Some(other)) => Err(Failure::usage(format!("{other:?} is one argument too many"))),
        }
    }

    /// Opens the place that the only argument names.
    fn place(&self) -> Result<Arc<dyn Store>, Failure> {
        Ok(place::open(&self.only_argument("the URL of the backup")?)?)
    }

    /// Returns the id of the cluster whose backup is meant, in hexadecimal and as a number.
    fn cluster(&self, store: &dyn Store) -> Result<(String, u64), Failure> {
        Ok(cluster_of(store, self.matches.get(CLUSTER_ID))?)
    }

    /// Returns true if the output is JSON.
    fn writes_json(&self) -> Result<bool, Failure> {
        match self.matches.get(WRITE_OUT) {
            "simple" => Ok(false),
            "json" => Ok(true),
            other => Err(Failure::bad_feature(format!("--write-out is simple or json, not {other:?}"))),
        }
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        self.io.out.write(text.as_bytes()).map_err(Failure::error)
    }
}

fn cluster_of(store: &dyn Store, given: &str) -> Result<(String, u64), Trouble> {
    let refuse = |text: String| Err(Trouble::new(Fault::Refused, text));
    let found = clusters(store)?;
    if !given.is_empty() {
        let Ok(id) = u64::from_str_radix(given.trim_start_matches("0x"), 16) else {
            return refuse(format!("--cluster-id={given} is no number in hexadecimal"));
        };
        let name = format!("{id:016x}");
        if !found.contains(&name) {
            let there = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
            return refuse(format!("{} has no backup of cluster {given}; it has {there}", store.url()));
        }
        return Ok((name, id));
    }
    match &found[..] {
        [only] => match u64::from_str_radix(only, 16) {
            Ok(id) => Ok((only.clone(), id)),
            Err(_) => refuse(format!("{only} is no id of a cluster")),
        },
        [] => refuse(format!("{} has no backup", store.url())),
        _ => refuse(format!(
            "{} has backups of several clusters: say which one with --cluster-id: {}",
            store.url(),
            found.join(", ")
        )),
    }
}

fn chain<'s>(store: &'s dyn Store, cluster: &'s str) -> Chain<'s> {
    Chain { store, cluster }
}

/// Reads a moment: a revision, or a time as in `2026-11-21T10:50:53Z`.
fn moment_of(revision: i64, time: &str) -> Result<Moment, Failure> {
    match (revision, time) {
        (0, "") => Ok(Moment::Newest),
        (revision, "") if revision > 0 => Ok(Moment::Revision(revision)),
        (0, time) => match parse_rfc3339(time) {
            Some(time) => Ok(Moment::TimeMs(wall_ms(time))),
            None => Err(Failure::bad_args(format!(
                "{time:?} is no time such as 2026-11-21T10:50:53Z or 2026-11-21T12:50:53.5+02:00"
            ))),
        },
        (_, "") => Err(Failure::bad_args("a revision is at least 1")),
        _ => Err(Failure::bad_args("give either --to-revision or --to-time, not both")),
    }
}

/// Returns a number of bytes as text.
fn size(bytes: u64) -> String {
    cli::go::bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sound() {
        PROGRAM.assert_sound();
    }

    #[test]
    fn a_moment_is_a_revision_or_a_time() {
        assert_eq!(moment_of(0, ""), Ok(Moment::Newest));
        assert_eq!(moment_of(7, ""), Ok(Moment::Revision(7)));
        assert_eq!(moment_of(0, "1970-01-01T00:00:01.5Z"), Ok(Moment::TimeMs(1500)));
        for (revision, time) in [(-1, ""), (0, "yesterday"), (7, "1970-01-01T00:00:01Z")] {
            assert!(moment_of(revision, time).is_err());
        }
    }

    #[test]
    fn commands_of_utl_with_a_backup_are_recognized() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let of = |text: &str| of_utl(&words(text));
        assert_eq!(
            of("snapshot restore s3://b/p --data-dir d"),
            Some(words("restore s3://b/p --data-dir d"))
        );
        assert_eq!(of("snapshot diff a b"), Some(words("diff a b")));
        assert_eq!(of("snapshot restore f.db --initial-advertise-peer-urls http://a:1"), None);
        assert_eq!(of("hashkv file:///x"), None);
    }
}
