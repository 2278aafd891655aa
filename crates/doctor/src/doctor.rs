//! Implements the command `doctor`: reads its flags, examines the cluster, applies the rules to the evidence,
//! and prints the report.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cli::{Command, Failure, Flag, FlagRow, Io, Matches, Program};

use crate::collect::Plan;
use crate::connection::{self, Connection, wants_json};
use crate::findings::RULES;
use crate::launch::{METRICS_ENDPOINTS, Run, launch, metrics_endpoints, no_member_answers, print};
use crate::limits::{self, Limits};
use crate::migrate;
use crate::report::{Health, Report};
use crate::rule::Rule;
use crate::upgrade;

/// Exit code if a finding of severity error exists.
const ERRORS: u8 = 5;
/// Exit code if only warnings were found.
const WARNINGS: u8 = 6;
/// Exit code if there are no errors, but some evidence could not be read, so an error may be hidden.
const UNKNOWN: u8 = 7;

/// Name of the subcommand `doctor migrate`, which has its own flags ([`migrate`]).
const MIGRATE: &str = "migrate";
/// Name of the subcommand `doctor upgrade`, which has its own flags ([`upgrade`]).
const UPGRADE: &str = "upgrade";

/// Shortest accepted `--for`: the time between the two readings of the metrics from which rates are computed.
const WINDOW_MIN: Duration = Duration::from_millis(10);

const FOR: Flag<Duration> =
    Flag::duration("for", "10s", "how long to observe rates; longer is more reliable");
const CLUSTER: Flag<bool> = Flag::on("cluster", "examine all members of the cluster, not only --endpoints");
const SAMPLE: Flag<i64> = Flag::int(
    "sample",
    "200",
    "number of keys to sample for large values, in a few small serializable reads; 0 for none",
);
const ONLY: Flag<Vec<String>> = Flag::list("only", "", "check only these (names as in the output)");
const SKIP: Flag<Vec<String>> = Flag::list("skip", "", "do not check these");
const LIST: Flag<bool> = Flag::bool("list", "list the checks and exit");

const HTML: Flag<String> =
    Flag::text("html", "", "also write the report to this `file`, as a self-contained page");

const OWN_FLAGS: &[FlagRow] = &[
    FOR.row(),
    CLUSTER.row(),
    METRICS_ENDPOINTS.row(),
    SAMPLE.row(),
    ONLY.row(),
    SKIP.row(),
    LIST.row(),
    HTML.row(),
];

const LONG: &str = "\
Examines a running cluster of Mainstay or etcd and finds out why it is slow or about to fail. Each finding has its
figures, the member it is about, its consequences, and what to do. Checks that are not possible are listed too, with the
reason. The doctor only reads, with a few small requests a second.

mainstay doctor migrate says whether a cluster can be migrated from etcd to Mainstay, or back, and which step is next.
mainstay doctor upgrade says whether a cluster of Mainstay is ready for the release of this program, and which step is next.

Exit codes: 0 nothing was found; 1 nothing could be examined; 5 errors were found; 6 only warnings were found; 7 no errors
were found, but not everything could be read, so an error may be hidden.";

const EXAMPLE: &str = "  mainstay doctor --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  mainstay doctor --cacert=ca.crt --cert=client.crt --key=client.key --endpoints=https://etcd.example:2379 --for=1m
  mainstay doctor --json --skip=unbalanced-clients --limit-fsync=20ms
  mainstay doctor --for=1m --html=report.html";

const ALL_FLAGS_COUNT: usize = OWN_FLAGS.len() + connection::FLAGS.len() + limits::FLAGS.len();

/// The command's own flags, the flags for connections, and the flags for limits, in one table.
const ALL_FLAGS: [FlagRow; ALL_FLAGS_COUNT] = {
    let mut all = [CLUSTER.row(); ALL_FLAGS_COUNT];
    let (own, shared) = (OWN_FLAGS.len(), connection::FLAGS.len());
    let mut at = 0;
    while at < ALL_FLAGS_COUNT {
        all[at] = if at < own {
            OWN_FLAGS[at]
        } else if at < own + shared {
            connection::FLAGS[at - own]
        } else {
            limits::FLAGS[at - own - shared]
        };
        at += 1;
    }
    all
};

pub(crate) const PROGRAM: Program<Run> = Program {
    root: Command {
        name: "doctor",
        usage: "doctor [flags]",
        about: "Finds out why a cluster is slow or about to fail",
        long: LONG,
        example: EXAMPLE,
        run: Some(Run(|matches, io| Box::pin(examine(matches, io)))),
        ..Command::EMPTY
    },
    globals: &ALL_FLAGS,
    env_prefix: Some("ETCDCTL_"),
    env_known: &["ETCDCTL_API"],
    globals_hint: "",
};

/// Runs the command `doctor` in this process and prints the report. `args` are the arguments that follow
/// `doctor`.
pub fn run(args: &[OsString]) -> ExitCode {
    ExitCode::from(run_in(args, &Io::of_process()))
}

/// Runs the doctor like [`run`], with caller-supplied streams and environment. Returns the exit code.
pub fn run_in(args: &[OsString], io: &Io) -> u8 {
    match args.split_first() {
        Some((word, rest)) if word == MIGRATE => launch(&migrate::PROGRAM, rest, io),
        Some((word, rest)) if word == UPGRADE => launch(&upgrade::PROGRAM, rest, io),
        _ => launch(&PROGRAM, args, io),
    }
}

async fn examine(matches: &Matches, io: &Io) -> Result<(), Failure> {
    if let Some(extra) = matches.arg_text(0) {
        if [MIGRATE, UPGRADE].contains(&&*extra) {
            return Err(Failure::error(format!(
                "{extra} comes before the flags: mainstay doctor {extra} --endpoints=..."
            )));
        }
        let extra = cli::go::quote(extra);
        return Err(Failure::error(format!("unknown argument {extra}: give endpoints with --endpoints")));
    }
    if matches.get(LIST) {
        let lines: Vec<String> =
            RULES.iter().map(|rule| format!("{:36}{}\n", rule.name, rule.about)).collect();
        return print(io, &lines.concat());
    }
    let is_json = wants_json(matches)?;
    let rules = chosen(matches)?;
    let connection = Connection::of(matches).await?;
    let metrics_endpoints = metrics_endpoints(matches, &connection)?;
    let sample_keys =
        usize::try_from(matches.get(SAMPLE)).map_err(|_| Failure::error("--sample must not be negative"))?;
    let window = matches.get(FOR);
    if window < WINDOW_MIN {
        let least = cli::go::duration(WINDOW_MIN);
        return Err(Failure::error(format!("--for must be at least {least}")));
    }
    let whole_cluster = matches.get(CLUSTER);
    let plan = Plan { connection, metrics_endpoints, whole_cluster, window, sample_keys };
    let evidence = plan.collect().await.map_err(Failure::error)?;
    let report = Report::of(&evidence, &Limits::of(matches), window.as_secs_f64(), &rules);
    // Fail only if no member was reached and there is nothing else to report. Findings such as an expired
    // certificate do not need a connection that works.
    let is_told = report.findings.iter().any(|finding| finding.name != "unreachable");
    if !is_told && evidence.members.iter().all(|member| member.reached.is_err()) {
        return Err(no_member_answers(&evidence));
    }
    let code = match report.health() {
        Health::Healthy => 0,
        Health::Errors => ERRORS,
        Health::Warnings => WARNINGS,
        Health::Unknown => UNKNOWN,
    };
    // Print the report first, so that it is not lost if the file cannot be written.
    print(io, &if is_json { report.json() } else { report.text() })?;
    let file = matches.get(HTML);
    let taken = format!("{}Z", stdx::calendar::Utc::from_unix(evidence.taken_unix as u64));
    let written = if file.is_empty() { Ok(()) } else { write_page(Path::new(file), &report.html(&taken)) };
    match (written, code) {
        (Ok(()), 0) => Ok(()),
        (Ok(()), code) => Err(Failure::said(code)),
        // Keep the exit code of the report unless it is 0, because the findings matter more than the file.
        // Only if there is nothing to report, use the exit code of a general error.
        (Err(error), code) => {
            let code = if code == 0 { Failure::ERROR } else { code };
            Err(Failure::new(code, format!("cannot write {file}: {error}")))
        }
    }
}

/// Writes a page of HTML to `file` atomically. Only the current user can read it, because it names keys and
/// clients. Refuses a path at which something other than a regular file exists, such as a symbolic link.
fn write_page(file: &Path, page: &str) -> io::Result<()> {
    let name = file.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    if fs::symlink_metadata(file).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::other("it exists and is not a regular file"));
    }
    let mut making = OsString::from(".");
    making.push(name);
    making.push(format!(".{}", std::process::id()));
    let making = file.with_file_name(making);
    // An interrupted run with the same process id may have left this file, and then `create_new` would fail.
    // In containers, the same process ids occur often.
    if let Err(error) = fs::remove_file(&making)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut new = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&making)?;
    let written =
        new.write_all(page.as_bytes()).and_then(|()| new.sync_all()).and_then(|()| fs::rename(&making, file));
    if written.is_err() {
        // Remove the incomplete file. If that fails too, ignore it: the caller needs the error that is
        // returned below.
        let _ = fs::remove_file(&making);
    }
    written
}

/// Returns the rules that `--only` and `--skip` select.
fn chosen(matches: &Matches) -> Result<Vec<&'static Rule>, Failure> {
    let (only, skip) = (matches.get(ONLY), matches.get(SKIP));
    for name in only.iter().chain(skip) {
        if !RULES.iter().any(|rule| rule.name == name) {
            let name = cli::go::quote(name);
            let text = format!("there is no check named {name}: see mainstay doctor --list");
            return Err(Failure::error(text));
        }
    }
    let is_chosen = |rule: &&Rule| {
        let named = |list: &[String]| list.iter().any(|name| name == rule.name);
        (only.is_empty() || named(only)) && !named(skip)
    };
    Ok(RULES.iter().filter(is_chosen).collect())
}

#[cfg(test)]
mod tests {
    use cli::Invocation;

    use super::*;

    #[test]
    fn the_tables_are_sound_and_say_what_the_limits_are() {
        PROGRAM.assert_sound();
        let Ok(Invocation::Run(matches, _)) = PROGRAM.parse(&[], Vec::new()) else {
            panic!("no arguments are needed")
        };
        assert_eq!(Limits::of(&matches), Limits::default());
        assert_eq!(chosen(&matches).unwrap().len(), RULES.len());
    }
}
