//! Runs one command of the tool: parses the command line, measures, and writes the results.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cli::{Failure, Flag, Invocation, Io, Matches};

use crate::commands::{PROGRAM, Run as Command};
use crate::given::{
    AUTO_SYNC_INTERVAL, CSV, DURATION, ENDPOINTS, HTML, JSON, PID, REPEAT, REPORT_PERFDASH, SCHEDULE,
    THREADS, USER, WARMUP, credentials, open_target, plan, style,
};
use crate::loadgen::ask::Asker;
use crate::loadgen::calls::Target;
use crate::loadgen::drive::{Generator, Observer as _, Plan, Run, Schedule, Workload, measure};
use crate::loadgen::samples::Series;
use crate::loads::watch::Measured;
use crate::outcome::{Document, Row};
use crate::report;
use crate::usage::Usage;
use crate::watcher::Watcher;
use crate::{Error, html, machine, render};

/// Runs the tool in this process. `args` are the words after the program's name. Results go to standard
/// output, everything else goes to standard error.
pub fn run(args: &[OsString]) -> ExitCode {
    ExitCode::from(run_in(args, &Io::of_process()))
}

/// Runs the tool like [`run`], with caller-supplied streams and environment. Returns the exit code.
pub fn run_in(args: &[OsString], io: &Io) -> u8 {
    match PROGRAM.parse(args, io.text_environment()) {
        Ok(Invocation::Help(text)) => help(io, &text),
        Ok(Invocation::Group(matches)) => help(io, &PROGRAM.help(&matches.path)),
        Ok(Invocation::Run(matches, command)) => {
            let artifacts = Some(io.variable("ARTIFACTS")).filter(|path| !path.is_empty());
            let artifacts = artifacts.map(|path| path.to_string_lossy().into_owned());
            let session = Session { command: shown(args), artifacts, matches, io: io.clone() };
            match session.carry_out(command) {
                Ok(()) => 0,
                Err(failure) => {
                    let usage = match failure.shows_usage {
                        true => PROGRAM.usage(&session.matches.path) + "\n",
                        false => String::new(),
                    };
                    io.err.notice(format!("{failure}\n{usage}"));
                    failure.code
                }
            }
        }
        Err(error) => {
            io.err.notice(format!("Error: {error}\n{}\n", PROGRAM.usage(&error.path)));
            // Return 255, because etcd's tool exits with -1 after such an error.
            255
        }
    }
}

fn help(io: &Io, text: &str) -> u8 {
    // Ignore errors: the reader of the help may have closed the pipe.
    io.out.notice(text);
    0
}

/// Returns the command line as text that a user can run again, except that passwords are replaced by `***`.
fn shown(args: &[OsString]) -> String {
    let mut words = vec!["mainstay bench".to_owned()];
    let mut secret = false;
    for arg in args {
        let word = arg.to_string_lossy();
        let hidden =
            |user: &str| user.split_once(':').map_or(user.to_owned(), |(name, _)| format!("{name}:***"));
        words.push(if secret {
            hidden(&word)
        } else if let Some(user) = word.strip_prefix("--user=") {
            format!("--user={}", hidden(user))
        } else if word.contains(|c: char| c.is_whitespace() || "'\"\\$;&|<>*?".contains(c)) {
            format!("'{}'", word.replace('\'', "'\\''"))
        } else {
            word.to_string()
        });
        secret = word == "--user";
    }
    words.join(" ")
}

/// One execution of a command: its arguments and its streams.
pub(crate) struct Session {
    /// Command line, as returned by [`shown`].
    pub(crate) command: String,
    /// Directory for perfdash files, from the environment variable `ARTIFACTS`.
    artifacts: Option<String>,
    pub(crate) matches: Matches,
    pub(crate) io: Io,
}

impl Session {
    fn carry_out(&self, command: Command) -> Result<(), Failure> {
        let matches = &self.matches;
        // Refuse extra words after a command, although etcd's tool ignores them: this tool must not ignore
        // any input.
        if !command.takes_words && !matches.args.is_empty() {
            let word = matches.arg_text(0).unwrap_or_default();
            return Err(Failure::usage(format!(
                "{} takes no arguments, but was given {word:?}",
                matches.path.join(" ")
            )));
        }
        let pid = matches.get(PID);
        if pid > 0 && !std::path::Path::new(&format!("/proc/{pid}")).exists() {
            return Err(Failure::error(format!("--pid: there is no process {pid}")));
        }
        if let Some(flag) = command.unused.iter().find(|flag| matches.is_given(**flag)) {
            let text = format!("{} does not support --{}", matches.path.join(" "), flag.name);
            return Err(Failure::usage(text));
        }
        if !matches.get(AUTO_SYNC_INTERVAL).is_zero() {
            return Err(Failure::error(
                "--auto-sync-interval: the endpoints do not change during a measurement; give all of them with \
                 --endpoints",
            ));
        }
        (command.run)(self)
    }

    /// Prints to standard output.
    pub(crate) fn say(&self, text: &str) -> Result<(), Failure> {
        self.io
            .out
            .write(text.as_bytes())
            .map_err(|error| Failure::error(format!("standard output: {error}")))
    }

    /// Prints a warning to standard error.
    pub(crate) fn warn(&self, text: &str) {
        self.io.err.notice(format!("warning: {text}\n"));
    }

    pub(crate) fn target(&self) -> Result<Target, Failure> {
        let mut target = open_target(&self.matches)?;
        let user = self.matches.get(USER);
        if !user.is_empty() {
            let (name, password) = credentials(user, &self.io)?;
            let token = Asker::new(target.clone())
                .and_then(|mut asker| asker.authenticate(&name, &password))
                .map_err(Failure::error)?;
            target.token = Some(token);
        }
        Ok(target)
    }

    /// Runs a load of single operations, and writes its results. `names` are the names of its series.
    /// `layout` is the text around the reports: each `%s` in it is replaced by the report of a series, and
    /// each `%d` by the number of operations of a series.
    pub(crate) fn unary<W: Workload>(
        &self,
        names: &[&str],
        layout: &str,
        total: Flag<i64>,
        make: impl Fn(u64) -> Result<W, Failure>,
    ) -> Result<(), Failure> {
        let plan = plan(&self.matches, total)?;
        // Create the first workload before connecting to the server, so that an invalid argument is reported
        // right away.
        let mut first = Some(make(0)?);
        let target = self.target()?;
        let mut watch = Watcher::new(&self.matches, &target, &plan);
        let before = machine::checks();
        // Create the workloads of the other threads. This does not fail, because they have the same arguments
        // as the first one.
        let others: Vec<W> = (1..plan.threads as u64).map(&make).collect::<Result<_, _>>()?;
        let mut others = others.into_iter();
        let mut workloads: Vec<Option<W>> = vec![first.take()];
        workloads.extend(std::iter::from_fn(|| others.next().map(Some)));
        let workloads = std::cell::RefCell::new(workloads);
        let take = |thread: usize| {
            let taken = workloads.borrow_mut().get_mut(thread).and_then(Option::take);
            taken.unwrap_or_else(|| unreachable!("a workload was made for each thread"))
        };
        let runs = measure(&plan, &target, take, &mut watch).map_err(Failure::error)?;
        let mut document = self.document(&target, before);
        for (at, name) in names.iter().enumerate() {
            document.rows.push(Row::new(name, "", &runs, at, &watch.usages));
        }
        if let (Schedule::Open(rate), [row]) = (plan.schedule, document.rows.as_slice()) {
            let warning = machine::rate_check(row, rate);
            document.warnings.extend(warning);
        }
        let segment = runs.first().and_then(|run| run.generator.segment_bytes);
        self.conclude(&mut document, &target, segment);
        let shown = closest(&runs, document.rows.first()).and_then(|at| runs.get(at));
        let mut text = layout.to_owned();
        if let Some(run) = shown {
            for (series, name) in run.series.iter().zip(names) {
                let report = self.reported(name, series, run.elapsed);
                let operations = series.count() + series.failed();
                text = text.replacen("%d", &operations.to_string(), 1).replacen("%s", &report, 1);
            }
        }
        self.write(&text, &document)
    }

    /// Returns the report of a series. If requested, also writes the perfdash file.
    fn reported(&self, name: &str, series: &Series, elapsed: Duration) -> String {
        let text = report::report(style(&self.matches), series, elapsed);
        if self.matches.get(REPORT_PERFDASH) {
            return report::write_perfdash(name, series, elapsed, self.artifacts.as_deref()) + &text;
        }
        text
    }

    pub(crate) fn document(&self, target: &Target, warnings: Vec<String>) -> Document {
        let mut facts = machine::facts();
        if let Ok((version, _)) = Asker::new(target.clone()).and_then(|mut asker| asker.status())
            && !version.is_empty()
        {
            facts.push(("Server".to_owned(), format!("version {version}")));
        }
        facts.push(("Endpoints".to_owned(), self.matches.get(ENDPOINTS).join(", ")));
        Document { command: self.command.clone(), time: now(), facts, warnings, ..Document::default() }
    }

    fn conclude(&self, document: &mut Document, target: &Target, segment_bytes: Option<u32>) {
        let name = target.endpoints.first().map_or("", |endpoint| endpoint.address.as_str());
        document.warnings.extend(machine::path_check(name, segment_bytes));
        let more: Vec<String> = document.rows.iter().flat_map(machine::run_checks).collect();
        document.warnings.extend(more);
        let starved: Vec<String> = document.rows.iter().filter_map(machine::starved_check).collect();
        document.warnings.extend(starved);
    }

    /// Runs a load that consists of several measured parts, `--repeat` times, and writes its results. `names`
    /// are the names of the parts. Each `%s` in `layout` is replaced by the report of a part; these reports
    /// are from the run in which the last part had the median rate. If the parts run one after the other,
    /// `run` must call its argument between them. If they run at the same time, it must not call it; the
    /// server's resource usage is then known only for all parts together, and is shown for each of them.
    pub(crate) fn in_parts<const N: usize>(
        &self,
        names: [&str; N],
        layout: &str,
        target: &Target,
        mut run: impl FnMut(&mut dyn FnMut()) -> Result<[Measured; N], Error>,
    ) -> Result<(), Failure> {
        let repeat = self.matches.get(REPEAT);
        if !(1..=1_000_000).contains(&repeat) {
            return Err(Failure::error(format!(
                "expected --{} of 1 to 1000000, got ({repeat})",
                REPEAT.name()
            )));
        }
        let before = machine::checks();
        let plan = Plan { repeat: repeat as usize, ..Plan::default() };
        let mut watcher = Watcher::new(&self.matches, target, &plan);
        let mut parts: [(Vec<Run>, Vec<Option<Usage>>); N] = [const { (Vec::new(), Vec::new()) }; N];
        for at in 0..plan.repeat {
            let first = watcher.own.len();
            watcher.begins(at);
            let measured = run(&mut || {
                watcher.ends(at);
                watcher.begins(at);
            })?;
            watcher.ends(at);
            let stages = watcher.own.get(first..).unwrap_or_default();
            let used = watcher.usages.get(first..).unwrap_or_default();
            for (number, ((runs, usages), (series, elapsed))) in parts.iter_mut().zip(measured).enumerate() {
                let (generator, usage) = attributed(stages, used, (number, N), elapsed);
                runs.push(Run { series: vec![series], began: SystemTime::now(), elapsed, generator });
                usages.push(usage);
            }
        }
        let mut document = self.document(target, before);
        for (name, (runs, usages)) in names.iter().zip(&parts) {
            document.rows.push(Row::new(name, "", runs, 0, usages));
        }
        self.conclude(&mut document, target, None);
        let last = parts.last().and_then(|(runs, _)| closest(runs, document.rows.last())).unwrap_or(0);
        let mut text = layout.to_owned();
        for (name, (runs, _)) in names.iter().zip(&parts) {
            let Some(Run { series, elapsed, .. }) = runs.get(last) else { continue };
            let [series] = &series[..] else { continue };
            text = text.replacen("%s", &self.reported(name, series, *elapsed), 1);
        }
        self.write(&text, &document)
    }

    pub(crate) fn write_offline(
        &self,
        text: &str,
        name: &str,
        (series, elapsed): (Series, Duration),
    ) -> Result<(), Failure> {
        let said = if self.matches.get(REPORT_PERFDASH) {
            // Use the last word of the command as the operation's name in the perfdash file.
            let operation = self.matches.path.last().copied().unwrap_or(name);
            report::write_perfdash(operation, &series, elapsed, self.artifacts.as_deref())
        } else {
            String::new()
        };
        let run = Run {
            series: vec![series],
            began: SystemTime::now(),
            elapsed,
            generator: crate::loadgen::drive::Generator::default(),
        };
        let mut document = Document {
            command: self.command.clone(),
            time: now(),
            facts: machine::facts(),
            warnings: machine::checks(),
            ..Document::default()
        };
        document.rows.push(Row::new(name, "", &[run], 0, &[]));
        self.write(&(said + text), &document)
    }

    /// Prints the text, and writes the files that the flags ask for.
    pub(crate) fn write(&self, text: &str, document: &Document) -> Result<(), Failure> {
        for warning in &document.warnings {
            self.warn(warning);
        }
        // Print the text first, so that the results are not lost if a file cannot be written.
        if self.matches.get(JSON) != "-" {
            self.say(text)?;
            // Print additional text only on a terminal, or if a flag is given that etcd's tool does not have.
            // Otherwise programs may parse the output as the report of etcd's tool.
            let ours = [DURATION.row(), REPEAT.row(), SCHEDULE.row(), THREADS.row(), WARMUP.row(), PID.row()];
            let asked = ours.iter().any(|flag| self.matches.is_given(*flag));
            let is_table = [["compare"], ["kubernetes"]].iter().any(|path| self.matches.path == *path);
            if !is_table && (asked || self.io.is_terminal) {
                for row in &document.rows {
                    self.say(&render::details(row))?;
                }
            }
        }
        for (flag, make) in
            [(JSON, render::json as fn(&Document) -> String), (CSV, render::csv), (HTML, html::html)]
        {
            let file = self.matches.get(flag);
            if file == "-" && flag.name() == JSON.name() {
                self.say(&make(document))?;
            } else if !file.is_empty() {
                std::fs::write(file, make(document))
                    .map_err(|error| Failure::error(format!("{file}: {error}")))?;
            }
        }
        Ok(())
    }
}

/// Returns the resources that the load generator and the server used for part number `part` of `parts`, which
/// took `elapsed`. `stages` and `used` have an entry for each part if the parts ran one after the other,
/// otherwise one entry for all parts together.
fn attributed(
    stages: &[(Duration, Generator)],
    used: &[Option<Usage>],
    (part, parts): (usize, usize),
    elapsed: Duration,
) -> (Generator, Option<Usage>) {
    let stage = if stages.len() == parts { part } else { 0 };
    let (took, whole) = stages.get(stage).copied().unwrap_or_default();
    // For parts that ran at the same time, the load generator's own usage is known only for all of them
    // together. Attribute to each part a share that is proportional to its duration.
    let share = (elapsed.as_secs_f64() / took.as_secs_f64().max(1e-9)).min(1.0);
    let generator =
        Generator { cpu: whole.cpu.mul_f64(share), starved: whole.starved.mul_f64(share), ..whole };
    (generator, used.get(stage).copied().flatten())
}

/// Returns the index of the run whose rate is closest to the row's median rate.
fn closest(runs: &[Run], row: Option<&Row>) -> Option<usize> {
    let row = row?;
    let apart = |at: usize| row.runs.get(at).map_or(f64::MAX, |run| (run.rate - row.median.rate).abs());
    (0..runs.len()).min_by(|a, b| apart(*a).total_cmp(&apart(*b)))
}

/// Returns the current time in RFC 3339 format.
pub fn now() -> String {
    report::rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_follow_each_other_have_used_what_each_has() {
        let second = Duration::from_secs(1);
        let stage = |cpu: u32| (second, Generator { cpu: second * cpu, ..Generator::default() });
        let usage = |cpu_s: f64| Some(Usage { cpu_s: Some(cpu_s), ..Usage::default() });
        let (stages, used) = ([stage(1), stage(5)], [usage(0.1), usage(7.0)]);
        for (part, cpu) in [(0, 1), (1, 5)] {
            let (generator, usage) = attributed(&stages, &used, (part, 2), second);
            assert_eq!((generator.cpu, usage), (second * cpu, used[part]), "{part}");
        }
        // Parts that ran at the same time share the usage of the whole run.
        let (generator, usage) = attributed(&stages[1..], &used[1..], (1, 2), second / 2);
        assert_eq!((generator.cpu, usage), (second * 5 / 2, used[1]));
        // If the server's process was not found, its usage is unknown.
        assert_eq!(attributed(&stages, &[None, None], (1, 2), second).1, None);
    }

    #[test]
    fn passwords_are_not_shown() {
        let args = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(shown(&args(&["--user", "root:x", "put"])), "mainstay bench --user root:*** put");
        assert_eq!(
            shown(&args(&["--user=root:x", "range", "a b"])),
            "mainstay bench --user=root:*** range 'a b'"
        );
    }
}
