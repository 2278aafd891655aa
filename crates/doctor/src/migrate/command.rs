//! Implements the command `doctor migrate`: reads its flags, examines the cluster, and prints the verdict
//! with the next step.

use std::path::PathBuf;
use std::time::Duration;

use cli::{Command, Failure, Flag, FlagRow, Io, Matches, Program};

use super::look::MigrationPlan;
use super::survey::Product;
use super::verdict::Verdict;
use crate::arguments::no_arguments;
use crate::collect::Plan;
use crate::connection::{self, Connection, wants_json};
use crate::launch::{
    COULD_NOT_LOOK, METRICS_ENDPOINTS, Run, concluded, metrics_endpoints, no_member_answers,
};

const TO: Flag<String> = Flag::text("to", "mainstay", "target of the migration: mainstay, or back to etcd");
const DATA_DIR: Flag<String> = Flag::text(
    "data-dir",
    "",
    "data directory of a member on this machine, which may be running: its files and the disk are examined too",
);
const WAL_DIR: Flag<String> = Flag::text("wal-dir", "", "directory of that member's log, if it has its own");
const CONFIG_FILE: Flag<String> = Flag::text(
    "config-file",
    "",
    "configuration file of a member on this machine, read as Mainstay would read it",
);

const FLAGS: &[FlagRow] =
    &[TO.row(), DATA_DIR.row(), WAL_DIR.row(), CONFIG_FILE.row(), METRICS_ENDPOINTS.row()];

const LONG: &str = "\
Says whether a cluster of etcd 3.4 to 3.7 is ready to be taken over by Mainstay, or a cluster of Mainstay to go back to
etcd, and which step is next. Run it before the first step and after each step. It checks what every member runs, so the
same command works for clusters of etcd, of Mainstay, and of both. Each finding says what is wrong, what it means, and
what to do.

It only reads, at all members of the cluster: versions, the leader, the progress of each member, alarms, quota, members,
leases, a linearizable read, and HashKV at one revision, which reads the whole database of one member after the other.

Exit codes: 0 ready for the next step, or done; 1 not ready, nothing could be examined, or wrong usage.";

const EXAMPLE: &str = "  mainstay doctor migrate --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  mainstay doctor migrate --endpoints=10.0.0.1:2379 --data-dir=/var/lib/etcd --config-file=/etc/etcd.yaml
  mainstay doctor migrate --endpoints=10.0.0.1:2379 --to=etcd -w json";

pub(crate) const PROGRAM: Program<Run> = Program {
    root: Command {
        name: "doctor migrate",
        usage: "doctor migrate [flags]",
        about: "Says whether a cluster can be migrated from etcd to Mainstay, or back, and which step is next",
        long: LONG,
        example: EXAMPLE,
        flags: FLAGS,
        run: Some(Run(|matches, io| Box::pin(run(matches, io)))),
        ..Command::EMPTY
    },
    globals: connection::FLAGS,
    env_prefix: Some("ETCDCTL_"),
    env_known: &["ETCDCTL_API"],
    globals_hint: "",
};

/// Time between the first and the last reading of each member's commit index and applied index.
pub(crate) const WINDOW: Duration = Duration::from_millis(500);

async fn run(matches: &Matches, io: &Io) -> Result<(), Failure> {
    no_arguments(matches)?;
    let is_json = wants_json(matches)?;
    let to = match matches.get(TO) {
        "mainstay" => Product::Mainstay,
        "etcd" => Product::Etcd,
        other => {
            let other = cli::go::quote(other);
            return Err(Failure::error(format!("--to must be mainstay or etcd, not {other}")));
        }
    };
    let given = |flag: Flag<String>| Some(matches.get(flag)).filter(|text| !text.is_empty());
    let (data_dir, wal_dir) = (given(DATA_DIR).map(PathBuf::from), given(WAL_DIR).map(PathBuf::from));
    if data_dir.is_none() && wal_dir.is_some() {
        return Err(Failure::error("--wal-dir requires --data-dir"));
    }
    let connection = Connection::of(matches).await?;
    let metrics_endpoints = metrics_endpoints(matches, &connection)?;
    let plan = Plan { connection, metrics_endpoints, whole_cluster: true, window: WINDOW, sample_keys: 0 };
    let config_file = given(CONFIG_FILE).map(str::to_owned);
    let survey =
        MigrationPlan { plan, to, data_dir, wal_dir, config_file }.collect().await.map_err(Failure::error)?;
    let verdict = Verdict::of(&survey);
    if survey.evidence.members.iter().all(|member| member.reached.is_err()) {
        return Err(no_member_answers(&survey.evidence));
    }
    let output = if is_json { verdict.json() } else { verdict.text() };
    concluded(io, &output, if verdict.is_ready() { 0 } else { COULD_NOT_LOOK })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_is_sound() {
        super::PROGRAM.assert_sound();
    }
}
