//! The command `doctor`.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use cli::{Command, Flag, Invocation, Matches, Program};

use crate::collect::Plan;
use crate::connection::{self, Connection, wants_json};
use crate::finding::Severity;
use crate::findings::RULES;
use crate::limits::{self, Limits};
use crate::report::Report;
use crate::rule::Rule;

/// Nothing could be looked at, or the command line is wrong.
pub(crate) const COULD_NOT_LOOK: u8 = 1;
/// Something of severity error was found.
const ERRORS: u8 = 5;
/// Only warnings were found.
const WARNINGS: u8 = 6;

/// Rates need a time between two looks.
const WINDOW_MIN: Duration = Duration::from_millis(10);

const OWN_FLAGS: &[Flag] = &[
    Flag::duration("for", "10s", "how long to watch rates; the longer, the surer"),
    Flag::on("cluster", "look at all members of the cluster, not only at --endpoints"),
    Flag::list(
        "metrics-endpoints",
        "",
        "where the metrics of each of --endpoints are, in their order, if elsewhere",
    ),
    Flag::int(
        "sample",
        "200",
        "how many keys to look at for large values, in few small serializable reads; 0 for none",
    ),
    Flag::list("only", "", "look for nothing but these (names as in the output)"),
    Flag::list("skip", "", "do not look for these"),
    Flag::bool("list", "print what is looked for, and end"),
];

const LONG: &str = "\
Looks at a running cluster, Mainstay's or etcd's, and says why it is slow or about to fail: each finding with the figures
and the member it is about, what it leads to, and what to do. What cannot be looked at is said too, with the reason.
The cluster is only read, with a few small requests a second.

Exit codes: 0 nothing was found; 1 nothing could be looked at; 5 errors were found; 6 only warnings were found.";

const EXAMPLE: &str = "  mainstay doctor --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  mainstay doctor --cacert=ca.crt --cert=client.crt --key=client.key --endpoints=https://etcd.example:2379 --for=1m
  mainstay doctor --json --skip=unbalanced-clients --limit-fsync=20ms";

const ALL_FLAGS_COUNT: usize = OWN_FLAGS.len() + connection::FLAGS.len() + limits::FLAGS.len();

/// The flags of all parts in one table.
const ALL_FLAGS: [Flag; ALL_FLAGS_COUNT] = {
    let mut all = [Flag::bool("none", ""); ALL_FLAGS_COUNT];
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

pub(crate) const PROGRAM: Program = Program {
    root: Command {
        name: "doctor",
        usage: "doctor [flags]",
        about: "Says why a cluster is slow or about to fail",
        long: LONG,
        example: EXAMPLE,
        ..Command::EMPTY
    },
    globals: &ALL_FLAGS,
    env_prefix: Some("ETCDCTL_"),
    env_known: &["ETCDCTL_API"],
    globals_hint: "",
};

/// What a command printed, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// For standard output.
    pub output: String,
    /// For standard error.
    pub error: String,
    /// The exit code.
    pub code: u8,
}

impl Outcome {
    pub(crate) fn of(output: String, code: u8) -> Outcome {
        Outcome { output, error: String::new(), code }
    }

    fn refused(error: String) -> Outcome {
        Outcome { output: String::new(), error, code: COULD_NOT_LOOK }
    }

    pub(crate) fn print(&self) -> ExitCode {
        // A reader that went away wants no more.
        let _ = std::io::stdout().write_all(self.output.as_bytes());
        let _ = std::io::stderr().write_all(self.error.as_bytes());
        ExitCode::from(self.code)
    }
}

/// Runs the command `doctor` with these arguments (those behind its name) and environment, and prints the report.
pub fn run(args: &[OsString], env: impl IntoIterator<Item = (String, String)>) -> ExitCode {
    outcome(args, env).print()
}

/// As [`run`], but gives what it would print.
pub fn outcome(args: &[OsString], env: impl IntoIterator<Item = (String, String)>) -> Outcome {
    launch(&PROGRAM, args, env, |matches| async move { examine(&matches).await })
}

/// Reads the command line, and runs the command to its end in a runtime of one thread.
pub(crate) fn launch<F: Future<Output = Result<Outcome, String>>>(
    program: &Program,
    args: &[OsString],
    env: impl IntoIterator<Item = (String, String)>,
    command: impl FnOnce(Matches) -> F,
) -> Outcome {
    let ours = |name: &str| program.env_prefix.is_some_and(|prefix| name.starts_with(prefix));
    let matches = match program.parse(args, env.into_iter().filter(|(name, _)| ours(name))) {
        Ok(Invocation::Run(matches)) => matches,
        Ok(Invocation::Help(text)) => return Outcome::of(text, 0),
        Err(error) => return Outcome::refused(format!("Error: {error}\n{}", program.usage(&error.path))),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(command(matches)),
        Err(error) => Err(error.to_string()),
    };
    ended.unwrap_or_else(|error| Outcome::refused(format!("Error: {error}\n")))
}

async fn examine(matches: &Matches) -> Result<Outcome, String> {
    if let Some(extra) = matches.arg_text(0) {
        return Err(format!("unknown argument {}: endpoints go behind --endpoints", cli::go::quote(extra)));
    }
    if matches.flag("list") {
        let lines: Vec<String> =
            RULES.iter().map(|rule| format!("{:36}{}\n", rule.name, rule.about)).collect();
        return Ok(Outcome::of(lines.concat(), 0));
    }
    let is_json = wants_json(matches)?;
    let rules = chosen(matches)?;
    let connection = Connection::of(matches).await?;
    let metrics_endpoints = matches.list("metrics-endpoints").to_vec();
    if !metrics_endpoints.is_empty() && metrics_endpoints.len() != connection.settings.endpoints.len() {
        return Err("--metrics-endpoints has to name one for each of --endpoints".to_owned());
    }
    let sample_keys =
        usize::try_from(matches.int("sample")).map_err(|_| "--sample is below zero".to_owned())?;
    let window = matches.duration("for");
    if window < WINDOW_MIN {
        return Err(format!("--for is at least {}", cli::go::duration(WINDOW_MIN)));
    }
    let whole_cluster = matches.flag("cluster");
    let plan = Plan { connection, metrics_endpoints, whole_cluster, window, sample_keys };
    let evidence = plan.collect().await?;
    let report = Report::of(&evidence, &Limits::of(matches), window.as_secs_f64(), &rules);
    // A certificate may say enough by itself.
    let is_told = report.findings.iter().any(|finding| finding.name != "unreachable");
    if !is_told && evidence.members.iter().all(|member| member.reached.is_err()) {
        let whys: Vec<String> = evidence
            .members
            .iter()
            .filter_map(|member| Some(format!("{}: {}", member.label(), member.reached.as_ref().err()?)))
            .collect();
        return Err(format!("no member can be reached: {}", whys.join("; ")));
    }
    let code = match report.severity() {
        None => 0,
        Some(Severity::Error) => ERRORS,
        Some(Severity::Warning) => WARNINGS,
    };
    Ok(Outcome::of(if is_json { report.json() } else { report.text() }, code))
}

/// The rules that `--only` and `--skip` leave.
fn chosen(matches: &Matches) -> Result<Vec<&'static Rule>, String> {
    let (only, skip) = (matches.list("only"), matches.list("skip"));
    for name in only.iter().chain(skip) {
        if !RULES.iter().any(|rule| rule.name == name) {
            let name = cli::go::quote(name);
            return Err(format!("nothing of the name {name} is looked for: mainstay doctor --list"));
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
    use super::*;

    #[test]
    fn the_tables_are_sound_and_say_what_the_limits_are() {
        PROGRAM.assert_sound();
        let Ok(Invocation::Run(matches)) = PROGRAM.parse(&[], Vec::new()) else {
            panic!("no arguments are needed")
        };
        assert_eq!(Limits::of(&matches), Limits::default());
        assert_eq!(chosen(&matches).unwrap().len(), RULES.len());
    }
}
