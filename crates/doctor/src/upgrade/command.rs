//! Implements the command `doctor upgrade`: reads its flags, examines the cluster, and prints the verdict with the
//! next step.

use cli::{Command, Failure, Flag, FlagRow, Io, Matches, Program};

use super::{OwnRelease, Upgrade, process};
use crate::arguments::no_arguments;
use crate::collect::Plan;
use crate::connection::{self, Connection, wants_json};
use crate::launch::{
    COULD_NOT_LOOK, METRICS_ENDPOINTS, Run, concluded, metrics_endpoints, no_member_answers,
};
use crate::migrate::{MigrationPlan, Product, Settings, WINDOW};

const CONFIG_FILE: Flag<String> = Flag::text(
    "config-file",
    "",
    "configuration file of a member on this machine, read as this release would read it",
);
const PID: Flag<Vec<String>> = Flag::list(
    "pid",
    "",
    "process ids of members on this machine, whose flags and variables are read as this release would read them",
);

const FLAGS: &[FlagRow] = &[CONFIG_FILE.row(), PID.row(), METRICS_ENDPOINTS.row()];

const LONG: &str = "\
Says whether a cluster of Mainstay is ready to be upgraded to the release of this program, which member is next, and whether
it can go back. Run it, with the new binary, before the first step and after each step. It checks what every member runs, the
formats of their files, the cluster's version, and, on a member's machine, its flags. Each finding says what is wrong, what it
means, and what to do.

It only reads, at all members of the cluster: versions, the leader, the progress of each member, alarms, quota, members,
leases, a linearizable read, and HashKV at one revision, which reads the whole database of one member after the other.

Exit codes: 0 ready for the next step, or done; 1 not ready, nothing could be examined, or wrong usage.";

const EXAMPLE: &str = "  ./mainstay-new doctor upgrade --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  ./mainstay-new doctor upgrade --endpoints=10.0.0.1:2379 --pid=$(pidof mainstay)
  ./mainstay-new doctor upgrade --endpoints=10.0.0.1:2379 -w json";

pub(crate) const PROGRAM: Program<Run> = Program {
    root: Command {
        name: "doctor upgrade",
        usage: "doctor upgrade [flags]",
        about: "Says whether a cluster of Mainstay is ready for the release of this program, and which step is next",
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

async fn run(matches: &Matches, io: &Io) -> Result<(), Failure> {
    no_arguments(matches)?;
    let is_json = wants_json(matches)?;
    let mut settings = Vec::new();
    for pid in matches.get(PID) {
        let number = pid
            .parse()
            .map_err(|_| Failure::error(format!("--pid takes process ids, not {}", cli::go::quote(pid))))?;
        settings.push(process::settings(number)?);
    }
    let config_file = matches.get(CONFIG_FILE);
    if !config_file.is_empty() {
        settings.push(Settings::of_file(config_file));
    }
    let connection = Connection::of(matches).await?;
    let metrics_endpoints = metrics_endpoints(matches, &connection)?;
    let plan = Plan { connection, metrics_endpoints, whole_cluster: true, window: WINDOW, sample_keys: 0 };
    let plan =
        MigrationPlan { plan, to: Product::Mainstay, data_dir: None, wal_dir: None, config_file: None };
    let survey = plan.collect().await.map_err(Failure::error)?;
    let upgrade = Upgrade::of(&survey, OwnRelease::of_this_program(), &settings);
    if survey.evidence.members.iter().all(|member| member.reached.is_err()) {
        return Err(no_member_answers(&survey.evidence));
    }
    let output = if is_json { upgrade.json() } else { upgrade.text() };
    concluded(io, &output, if upgrade.is_ready() { 0 } else { COULD_NOT_LOOK })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_is_sound() {
        super::PROGRAM.assert_sound();
    }
}
