//! From a command line to a measurement and what is written about it.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cli::{Invocation, Matches, completion};

use crate::ask::Asker;
use crate::compactor::Compactor;
use crate::drive::{Observer as _, Plan, Run, Schedule, Workload, measure};
use crate::engine::calls::Target;
use crate::engine::connection::Method;
use crate::given::{
    connections, consistency, credentials, natural, open_target, plan, positive, size, style,
};
use crate::loads::index::{self, Puts};
use crate::loads::range::Range;
use crate::loads::stm::{Isolation, Locker, Stm};
use crate::loads::watch::{Measured, Watch, WatchGet, WatchLatency};
use crate::loads::write::{Keys, Put, TxnMixed, TxnPut};
use crate::loads::{Random, authenticate, lease};
use crate::outcome::{Document, Row};
use crate::report::{self, Style};
use crate::responder::{self, Responder};
use crate::samples::Series;
use crate::tables::PROGRAM;
use crate::watcher::Watcher;
use crate::wire::Fields;
use crate::{compare, html, machine, render, tls};

/// Why a command was not carried out.
#[derive(Debug)]
pub enum Refusal {
    /// What was asked for makes no sense; shown with the command's usage.
    Usage(String),
    /// It makes sense, but did not work.
    Failed(String),
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Refusal::Failed(text)
    }
}

impl From<&str> for Refusal {
    fn from(text: &str) -> Self {
        Refusal::Failed(text.to_owned())
    }
}

/// Where a command writes.
pub struct Io<'a> {
    /// Results.
    pub out: &'a mut dyn std::io::Write,
    /// Everything else.
    pub err: &'a mut dyn std::io::Write,
    /// Whether a person reads the results as they come.
    pub is_terminal: bool,
}

/// Runs the tool with these arguments (without the program's name). Results go to standard output, everything else to
/// standard error.
pub fn run(args: &[OsString], env: &[(String, String)]) -> ExitCode {
    let is_terminal = std::io::stdout().is_terminal();
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr());
    ExitCode::from(execute(args, env, &mut Io { out: &mut out, err: &mut err, is_terminal }))
}

/// The same with other places to write to; gives the exit code.
pub fn execute(args: &[OsString], env: &[(String, String)], io: &mut Io) -> u8 {
    let (text, code) = match PROGRAM.parse(args, env.iter().cloned()) {
        Ok(Invocation::Help(text)) => return help(io, &text),
        Ok(Invocation::Run(matches)) if matches.path.is_empty() || matches.path == ["mvcc"] => {
            return help(io, &PROGRAM.help(&matches.path));
        }
        Ok(Invocation::Run(matches)) => {
            let session = Session { command: shown(args), artifacts: env_of(env, "ARTIFACTS") };
            match session.carry_out(&matches, io) {
                Ok(()) => return 0,
                Err(Refusal::Usage(text)) => (format!("{text}\n{}\n", PROGRAM.usage(&matches.path)), 1),
                Err(Refusal::Failed(text)) => (format!("{text}\n"), 1),
            }
        }
        // etcd's tool ends with -1 here.
        Err(error) => (format!("Error: {error}\n{}\n", PROGRAM.usage(&error.path)), 255),
    };
    // Nobody can be told that standard error is gone.
    let _ = io.err.write_all(text.as_bytes());
    code
}

fn help(io: &mut Io, text: &str) -> u8 {
    // A reader that has gone away has read enough.
    let _ = io.out.write_all(text.as_bytes()).and_then(|()| io.out.flush());
    0
}

fn env_of(env: &[(String, String)], name: &str) -> Option<String> {
    env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
}

/// The command line, so that somebody can give it again; without what follows a user's name.
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

/// What is the same for all commands of one call of the tool.
struct Session {
    command: String,
    artifacts: Option<String>,
}

impl Session {
    fn carry_out(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        // A watch or a put with words behind it is a mistake that etcd's tool does not see; refuse it.
        let takes_words = matches!(matches.path.as_slice(), ["range"] | ["txn-mixed"] | ["completion"]);
        if !takes_words && !matches.args.is_empty() {
            let word = matches.arg_text(0).unwrap_or_default();
            return Err(Refusal::Usage(format!(
                "{} takes no arguments, but was given {word:?}",
                matches.path.join(" ")
            )));
        }
        let pid = matches.uint("pid");
        if pid > 0 && !std::path::Path::new(&format!("/proc/{pid}")).exists() {
            return Err(Refusal::Failed(format!("--pid: there is no process {pid}")));
        }
        let idle: &[&str] = match matches.path.as_slice() {
            ["compare"] => &[
                "clients",
                "conns",
                "dial-timeout",
                "endpoints",
                "pid",
                "precise",
                "report-perfdash",
                "sample",
                "user",
            ],
            ["responder"] => &[
                "cacert",
                "cert",
                "clients",
                "conns",
                "csv",
                "dial-timeout",
                "endpoints",
                "html",
                "insecure-skip-tls-verify",
                "json",
                "key",
                "pid",
                "precise",
                "report-perfdash",
                "sample",
                "user",
            ],
            ["mvcc", _] => &["pid"],
            _ => &[],
        };
        if let Some(flag) = idle.iter().find(|flag| matches.is_set(flag)) {
            return Err(Refusal::Usage(format!("{} has no use for --{flag}", matches.path.join(" "))));
        }
        if !matches.duration("auto-sync-interval").is_zero() {
            return Err("--auto-sync-interval: the endpoints of a measurement stay what they are; give all of them with \
                        --endpoints"
                .into());
        }
        match matches.path.as_slice() {
            ["put"] => self.put(matches, io),
            ["range"] => self.range(matches, io),
            ["txn-put"] => self.txn_put(matches, io),
            ["txn-mixed"] => self.txn_mixed(matches, io),
            ["stm"] => self.stm(matches, io),
            ["lease-keepalive"] => {
                self.unary(matches, io, &["lease-keepalive"], "%s", "total", |_| Ok(lease::KeepAlive))
            }
            ["authenticate"] => self.authenticate(matches, io),
            ["watch"] => self.watch(matches, io),
            ["watch-get"] => self.watch_get(matches, io),
            ["watch-latency"] => self.watch_latency(matches, io),
            ["mvcc", "put"] => self.mvcc_put(matches, io),
            ["mvcc", "range"] => self.mvcc_range(matches, io),
            ["responder"] => self.responder(matches, io),
            ["completion"] => {
                let shell = matches.arg_text(0).unwrap_or_default();
                let make = match (shell.as_str(), matches.args.len()) {
                    ("bash", 1) => completion::bash,
                    ("zsh", 1) => completion::zsh,
                    ("fish", 1) => completion::fish,
                    _ => return Err(Refusal::Usage("completion takes one of bash, zsh, fish".to_owned())),
                };
                say(io, &make(&PROGRAM, PROGRAM.root.name))
            }
            ["compare"] => {
                let document = compare::run(matches, &self.command)?;
                self.write(matches, io, &compare::text(&document), &document)
            }
            other => Err(Refusal::Failed(format!("{other:?} is in the tables but nowhere else"))),
        }
    }

    fn target(&self, matches: &Matches) -> Result<Target, Refusal> {
        let mut target = open_target(matches)?;
        let user = matches.text("user");
        if !user.is_empty() {
            let (name, password) = credentials(user)?;
            let token = Asker::new(target.clone())?.authenticate(&name, &password)?;
            target.token = Some(token);
        }
        Ok(target)
    }

    /// Runs a load of single operations and writes about it. `names` are those of its series; `layout` has `%s` for each
    /// one's report and `%d` for how many operations it had.
    fn unary<W: Workload>(
        &self,
        matches: &Matches,
        io: &mut Io,
        names: &[&str],
        layout: &str,
        total: &str,
        make: impl Fn(u64) -> Result<W, Refusal>,
    ) -> Result<(), Refusal> {
        let plan = plan(matches, total)?;
        // Refused before anything is connected.
        let mut first = Some(make(0)?);
        let target = self.target(matches)?;
        let mut watch = Watcher::new(matches, &target, &plan);
        let before = machine::checks();
        // What works for the first thread works for all.
        let others: Vec<W> = (1..plan.threads as u64).map(&make).collect::<Result<_, _>>()?;
        let mut others = others.into_iter();
        let mut workloads: Vec<Option<W>> = vec![first.take()];
        workloads.extend(std::iter::from_fn(|| others.next().map(Some)));
        let workloads = std::cell::RefCell::new(workloads);
        let take = |thread: usize| {
            let taken = workloads.borrow_mut().get_mut(thread).and_then(Option::take);
            taken.unwrap_or_else(|| unreachable!("a workload was made for each thread"))
        };
        let runs = measure(&plan, &target, take, &mut watch)?;
        let mut document = self.document(matches, &target, before);
        for (at, name) in names.iter().enumerate() {
            document.rows.push(Row::new(name, "", &runs, at, &watch.usages));
        }
        if let (Schedule::Open(rate), [row]) = (plan.schedule, document.rows.as_slice()) {
            let warning = machine::rate_check(row, rate);
            document.warnings.extend(warning);
        }
        let segment = runs.first().and_then(|run| run.generator.segment_bytes);
        self.conclude(&mut document, &target, segment);
        let shown = closest(&runs, document.rows.first());
        let mut text = layout.to_owned();
        if let Some(run) = shown {
            for (series, name) in run.series.iter().zip(names) {
                let mut report = report::report(style(matches), series, run.elapsed);
                if matches.flag("report-perfdash") {
                    report = report::write_perfdash(name, series, run.elapsed, self.artifacts.as_deref())
                        + &report;
                }
                let operations = series.count() + series.failed();
                text = text.replacen("%d", &operations.to_string(), 1).replacen("%s", &report, 1);
            }
        }
        self.write(matches, io, &text, &document)
    }

    fn put(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        let space = positive(matches, "key-space-size")?;
        let (key, value) = (size(matches, "key-size")?, size(matches, "val-size")?);
        let sequential = matches.flag("sequential-keys");
        let delta = matches.int("compact-index-delta");
        let interval = matches.duration("compact-interval");
        let compactor = if interval.is_zero() {
            None
        } else {
            Some(Compactor::start(self.target(matches)?, interval, delta)?)
        };
        self.unary(matches, io, &["put"], "%s\n", "total", |seed| {
            Ok(Put::new(Keys::new(key, space)?, value, sequential, seed))
        })?;
        if let Some(compactor) = compactor {
            compactor.stop()?;
        }
        if matches.flag("check-hashkv") {
            let text = hash_kv(&self.target(matches)?, matches.list("endpoints"))?;
            say(io, &text)?;
        }
        Ok(())
    }

    fn range(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        let words = &matches.args;
        let prefix = matches.flag("prefix");
        if words.len() > 2 || words.is_empty() && !prefix {
            return Err(Refusal::Usage("range takes a key, and may take the end of a range".to_owned()));
        }
        if matches.flag("paginate") && matches.int("limit") > 0 {
            return Err("--paginate and --limit are mutually exclusive".into());
        }
        if matches.flag("count-only") && matches.flag("keys-only") {
            return Err("`--keys-only` and `--count-only` cannot be set at the same time".into());
        }
        if matches.flag("paginate") && matches.flag("stream") {
            return Err("--paginate and --stream are mutually exclusive".into());
        }
        let (heading, serializable) = consistency(matches)?;
        let mut range = Range {
            key: words.first().cloned().unwrap_or_default(),
            end: words.get(1).cloned().unwrap_or_default(),
            limit: matches.int("limit").max(0),
            count_only: matches.flag("count-only"),
            keys_only: matches.flag("keys-only"),
            serializable,
            stream: matches.flag("stream"),
            paginate: matches.flag("paginate"),
        };
        if prefix {
            let key = range.key.clone();
            range.prefix(&key);
        }
        self.unary(matches, io, &["range"], &format!("{heading}%s"), "total", |_| Ok(range.clone()))
    }

    fn txn_put(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        let space = positive(matches, "key-space-size")?;
        let operations = natural(matches, "txn-ops")?;
        if operations > space {
            return Err(Refusal::Failed(format!(
                "expected --txn-ops no larger than --key-space-size, got txn-ops({operations}) key-space-size({space})"
            )));
        }
        let (key, value) = (size(matches, "key-size")?, size(matches, "val-size")?);
        self.unary(matches, io, &["txn-put"], "%s\n", "total", |seed| {
            Ok(TxnPut::new(Keys::new(key, space)?, value, operations, seed))
        })
    }

    fn txn_mixed(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        let space = positive(matches, "key-space-size")?;
        let (heading, serializable) = consistency(matches)?;
        let ratio = matches.float("rw-ratio");
        if !(0.0..=1e9).contains(&ratio) {
            return Err(Refusal::Failed(format!("--rw-ratio is reads per write, not {ratio}")));
        }
        let end = matches.text("end-key");
        let reads = Range {
            key: vec![0],
            end: if end.is_empty() { vec![0] } else { end.as_bytes().to_vec() },
            limit: matches.int("limit").max(0),
            serializable,
            ..Range::default()
        };
        let (key, value) = (size(matches, "key-size")?, size(matches, "val-size")?);
        let layout = format!("{heading}Total Read Ops: %d\nDetails:%s\nTotal Write Ops: %d\nDetails:%s\n");
        self.unary(matches, io, &["txn-mixed-read", "txn-mixed-write"], &layout, "total", |seed| {
            Ok(TxnMixed::new(Keys::new(key, space)?, value, ratio, &reads, seed))
        })
    }

    fn stm(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        let keys = positive(matches, "keys")?;
        let percent = matches.int("txn-wr-percent");
        if !(0..=100).contains(&percent) {
            return Err(Refusal::Failed(format!("expected [0, 100] --txn-wr-percent, got ({percent})")));
        }
        let per_txn = matches.int("keys-per-txn");
        if per_txn < 0 || per_txn as u64 > keys {
            return Err(Refusal::Failed(format!(
                "expected --keys-per-txn between 0 and {keys}, got ({per_txn})"
            )));
        }
        let isolation = match matches.text("isolation") {
            "c" => Isolation::ReadCommitted,
            "r" => Isolation::RepeatableReads,
            "s" => Isolation::Serializable,
            "ss" => Isolation::SerializableSnapshot,
            other => return Err(Refusal::Usage(format!("--isolation is c, r, s or ss, not {other:?}"))),
        };
        let locker = match matches.text("stm-locker") {
            "stm" => Locker::None,
            "lock-client" => Locker::Client,
            "lock-rpc" => Locker::Rpc,
            other => return Err(Refusal::Failed(format!("unexpected stm locker {}", cli::go::quote(other)))),
        };
        let value = size(matches, "val-size")?;
        self.unary(matches, io, &["stm"], "%s", "total", |seed| {
            let mut stm = Stm::new(isolation, locker, keys, seed);
            stm.keys_per_txn = per_txn as usize;
            stm.write_percent = percent as u64;
            stm.value_bytes = value;
            Ok(stm)
        })
    }

    fn authenticate(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        let user = matches.text("user");
        if user.is_empty() {
            return Err(Refusal::Usage("authenticate needs --user name:password".to_owned()));
        }
        let (name, password) = credentials(user)?;
        self.unary(matches, io, &["authenticate"], "%s", "total", |_| {
            Ok(authenticate::authenticate(&name, &password))
        })
    }

    fn watch(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        let space = positive(matches, "key-space-size")?;
        let streams = positive(matches, "streams")? as usize;
        let total = positive(matches, "watched-key-total")?;
        let mut random = Random::from_clock(4);
        let mut keys = Keys::new(size(matches, "key-size")?, space)?;
        let keys = (0..total)
            .map(|number| {
                let number =
                    if matches.flag("sequential-keys") { number % space } else { random.below(space) };
                keys.key(number).to_vec()
            })
            .collect();
        let (clients, conns) = connections(matches)?;
        let wanted = 1 + streams / 100;
        if conns.min(clients) < wanted {
            let have = conns.min(clients);
            warn(
                io,
                &format!("grpc limits 100 streams per client connection, have {have} but need {wanted}"),
            );
        }
        let watch = Watch {
            streams,
            per_stream: positive(matches, "watch-per-stream")? as usize,
            keys,
            put_rate: natural(matches, "put-rate")?,
            put_total: natural(matches, "put-total")?,
            clients,
        };
        let target = self.target(matches)?;
        let before = machine::checks();
        let mut watcher = Watcher::new(matches, &target, &Plan::default());
        watcher.begins(0);
        let style = style(matches);
        let mut made = None;
        let events = watch.run(target.clone(), conns, |measured| made = Some(measured.clone()))?;
        watcher.ends(0);
        let made = made.unwrap_or_default();
        let text = format!(
            "Watch creation summary:\n{}Watch events received summary:\n{}",
            self.reported(matches, "watch-make", &made, style),
            self.reported(matches, "watch-put", &events, style)
        );
        let parts = [("watch-make", made), ("watch-put", events)];
        self.write_parts(matches, io, &text, &target, before, &parts, &watcher)
    }

    fn watch_get(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        let load = WatchGet {
            watchers: positive(matches, "watchers")? as usize,
            streams: positive(matches, "streams")? as usize,
            events: positive(matches, "events")? as usize,
        };
        let (_, conns) = connections(matches)?;
        let target = self.target(matches)?;
        let before = machine::checks();
        let mut watcher = Watcher::new(matches, &target, &Plan::default());
        watcher.begins(0);
        let gets = load.run(target.clone(), conns)?;
        watcher.ends(0);
        let text = format!(
            "Get during watch summary:\n{}",
            self.reported(matches, "watch-get", &gets, style(matches))
        );
        self.write_parts(matches, io, &text, &target, before, &[("watch-get", gets)], &watcher)
    }

    fn watch_latency(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        let load = WatchLatency {
            streams: positive(matches, "streams")? as usize,
            per_stream: positive(matches, "watchers-per-stream")? as usize,
            prev_kv: matches.flag("prevkv"),
            put_total: natural(matches, "put-total")?,
            put_rate: natural(matches, "put-rate")?,
            key_bytes: size(matches, "key-size")?,
            value_bytes: size(matches, "val-size")?,
        };
        let (_, conns) = connections(matches)?;
        let target = self.target(matches)?;
        let before = machine::checks();
        let mut watcher = Watcher::new(matches, &target, &Plan::default());
        watcher.begins(0);
        let (puts, events) = load.run(target.clone(), conns)?;
        watcher.ends(0);
        let style = style(matches);
        let text = format!(
            "\nPut summary:\n{}\nWatch events summary:\n{}",
            self.reported(matches, "watch-latency-put", &puts, style),
            self.reported(matches, "watch-latency-watch", &events, style)
        );
        let parts = [("watch-latency-put", puts), ("watch-latency-watch", events)];
        self.write_parts(matches, io, &text, &target, before, &parts, &watcher)
    }

    fn mvcc_put(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        if matches.int("batch-interval") != 100 {
            return Err("--batch-interval: our index publishes by count, see --batch-limit".into());
        }
        let per_txn = if matches.flag("txn") { positive(matches, "txn-ops")? as usize } else { 1 };
        let puts = Puts {
            total: natural(matches, "total")?,
            key_bytes: size(matches, "key-size")?,
            value_bytes: size(matches, "value-size")?,
            per_txn,
            batch: positive(matches, "batch-limit")?,
        };
        let measured = index::put(&puts);
        // etcd's tool gives each operation the weight of its puts if --txn is given.
        let text = if matches.flag("sample") {
            report::report(style(matches), &measured.0, measured.1)
        } else {
            report::weighted(style(matches), &measured.0, measured.1, per_txn as f64)
        };
        self.write_offline(matches, io, &text, "mvcc put", measured)
    }

    fn mvcc_range(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        let puts = Puts {
            total: positive(matches, "keys")?,
            key_bytes: size(matches, "key-size")?,
            value_bytes: 64,
            per_txn: 1,
            batch: positive(matches, "batch-limit")?,
        };
        let limit = positive(matches, "limit")? as usize;
        let measured = index::range(&puts, natural(matches, "total")?, limit)?;
        let text = report::report(style(matches), &measured.0, measured.1);
        self.write_offline(matches, io, &text, "mvcc range", measured)
    }

    fn responder(&self, matches: &Matches, io: &mut Io) -> Result<(), Refusal> {
        let (cert, key) = (matches.text("server-cert"), matches.text("server-key"));
        if cert.is_empty() != key.is_empty() {
            return Err(Refusal::Usage(
                "--server-cert and --server-key have to be given together".to_owned(),
            ));
        }
        let options = responder::Options {
            value_bytes: size(matches, "val-size")?,
            tls: if cert.is_empty() { None } else { Some(tls::server(cert, key)?) },
            ..responder::Options::default()
        };
        let listen = matches.text("listen");
        let mut responder = Responder::bind(listen, options).map_err(|error| format!("{listen}: {error}"))?;
        let address = responder.address().map_err(|error| error.to_string())?;
        say(io, &format!("{address}\n"))?;
        responder.run(&AtomicBool::new(false)).map_err(|error| Refusal::Failed(error.to_string()))
    }

    fn reported(&self, matches: &Matches, name: &str, measured: &Measured, style: Style) -> String {
        let text = report::report(style, &measured.0, measured.1);
        if matches.flag("report-perfdash") {
            return report::write_perfdash(name, &measured.0, measured.1, self.artifacts.as_deref()) + &text;
        }
        text
    }

    fn document(&self, matches: &Matches, target: &Target, warnings: Vec<String>) -> Document {
        let mut facts = machine::facts();
        if let Ok((version, _)) = Asker::new(target.clone()).and_then(|mut asker| asker.status())
            && !version.is_empty()
        {
            facts.push(("Server".to_owned(), format!("version {version}")));
        }
        facts.push(("Endpoints".to_owned(), matches.list("endpoints").join(", ")));
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

    #[allow(clippy::too_many_arguments)]
    fn write_parts(
        &self,
        matches: &Matches,
        io: &mut Io,
        text: &str,
        target: &Target,
        warnings: Vec<String>,
        parts: &[(&str, Measured)],
        watcher: &Watcher,
    ) -> Result<(), Refusal> {
        let mut document = self.document(matches, target, warnings);
        for (name, (series, elapsed)) in parts {
            // What the tool used is known for all parts together: each gets its share of the time.
            let share = (elapsed.as_secs_f64() / watcher.took.as_secs_f64().max(1e-9)).min(1.0);
            let whole = watcher.generator;
            let generator = crate::drive::Generator {
                cpu: whole.cpu.mul_f64(share),
                starved: whole.starved.mul_f64(share),
                ..whole
            };
            let run =
                Run { series: vec![series.clone()], began: SystemTime::now(), elapsed: *elapsed, generator };
            document.rows.push(Row::new(name, "", &[run], 0, &watcher.usages));
        }
        self.conclude(&mut document, target, None);
        self.write(matches, io, text, &document)
    }

    fn write_offline(
        &self,
        matches: &Matches,
        io: &mut Io,
        text: &str,
        name: &str,
        (series, elapsed): (Series, Duration),
    ) -> Result<(), Refusal> {
        let said = if matches.flag("report-perfdash") {
            // The operation is named as the command's last word.
            let operation = matches.path.last().copied().unwrap_or(name);
            report::write_perfdash(operation, &series, elapsed, self.artifacts.as_deref())
        } else {
            String::new()
        };
        let run = Run {
            series: vec![series],
            began: SystemTime::now(),
            elapsed,
            generator: crate::drive::Generator::default(),
        };
        let mut document = Document {
            command: self.command.clone(),
            time: now(),
            facts: machine::facts(),
            warnings: machine::checks(),
            ..Document::default()
        };
        document.rows.push(Row::new(name, "", &[run], 0, &[]));
        self.write(matches, io, &(said + text), &document)
    }

    /// Writes the text, and the files that were asked for.
    fn write(&self, matches: &Matches, io: &mut Io, text: &str, document: &Document) -> Result<(), Refusal> {
        for warning in &document.warnings {
            warn(io, warning);
        }
        // The text first: a file that cannot be written must not cost the measurement.
        if matches.text("json") != "-" {
            say(io, text)?;
            // Whoever reads etcd's report by a program gets nothing else, unless it was asked for.
            let ours = ["duration", "repeat", "schedule", "threads", "warmup", "pid"];
            let asked = ours.iter().any(|flag| matches.has(flag) && matches.is_set(flag));
            if matches.path != ["compare"] && (asked || io.is_terminal) {
                for row in &document.rows {
                    say(io, &render::details(row))?;
                }
            }
        }
        for (flag, make) in
            [("json", render::json as fn(&Document) -> String), ("csv", render::csv), ("html", html::html)]
        {
            let file = matches.text(flag);
            if file == "-" && flag == "json" {
                say(io, &make(document))?;
            } else if !file.is_empty() {
                std::fs::write(file, make(document)).map_err(|error| format!("{file}: {error}"))?;
            }
        }
        Ok(())
    }
}

fn closest<'a>(runs: &'a [Run], row: Option<&Row>) -> Option<&'a Run> {
    let row = row?;
    let apart = |at: usize| row.runs.get(at).map_or(f64::MAX, |run| (run.rate - row.median.rate).abs());
    (0..runs.len()).min_by(|a, b| apart(*a).total_cmp(&apart(*b))).and_then(|at| runs.get(at))
}

fn say(io: &mut Io, text: &str) -> Result<(), Refusal> {
    io.out
        .write_all(text.as_bytes())
        .and_then(|()| io.out.flush())
        .map_err(|error| Refusal::Failed(format!("standard output: {error}")))
}

/// The time as RFC 3339.
pub fn now() -> String {
    report::rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
}

fn warn(io: &mut Io, text: &str) {
    // Nobody can be told that standard error is gone.
    let _ = writeln!(io.err, "warning: {text}");
}

fn hash_kv(target: &Target, endpoints: &[String]) -> Result<String, Refusal> {
    let host = endpoints.first().map(|text| text.trim()).unwrap_or_default();
    let mut first = target.clone();
    first.endpoints.truncate(1);
    let began = std::time::Instant::now();
    let mut asker = Asker::new(first)?;
    let failed = |what: &str, error: String| format!("Failed to get the {what} of endpoint {host} ({error})");
    let answer = asker.ask(Method::HashKv, |_| ()).map_err(|error| failed("hashkv", error))?;
    let (_, bytes) = asker.status().map_err(|error| failed("status", error))?;
    Ok(format!(
        "HashKV Summary:\n\tHashKV: {}\n\tEndpoint: {host}\n\tTime taken to get hashkv: {}\n\tDB size: {}\n",
        Fields(&answer).number(2),
        cli::go::duration(began.elapsed()),
        cli::go::bytes(bytes)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

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
