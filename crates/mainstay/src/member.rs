//! Runs a member: `mainstay [server] FLAGS`, `mainstay rebuild FLAGS`, and the binary under the name `etcd`.

use std::error::Error;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use config::{self, Config, Invocation, Parsed};
use server::boot::{self, Listening};
use server::systemd::Systemd;
use telemetry::logging::{Logger, Value};
use utl::rebuild::{self, Rebuild};

use crate::{discovery, environment, local_time, memory, memory_lock, open_files, signals};

/// Command with which the member was started.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The binary was started under the name `etcd`: print nothing that etcd does not print.
    Etcd,
    /// Started as `mainstay`: if standard output is a terminal, print a few lines that say where the member
    /// serves.
    Serve,
    /// Started as `mainstay observer`: run an observer, which follows the log of a cluster without being a
    /// member.
    Observe,
    /// Started as `mainstay witness`: run a member that votes, keeps no keys and never leads.
    Witness,
    /// Started as `mainstay backup run`: run an observer, and ship its log.
    BackUp,
    /// Started as `mainstay rebuild`: first replace the damaged member by a new one, which then gets its data
    /// from the other members.
    Rebuild,
}

/// Runs a member with these flags.
pub fn run(arguments: &[OsString], purpose: Purpose) -> ExitCode {
    run_with(arguments, purpose, None)
}

/// Runs a member as [`run`] does. If `backup` is given, the member is an observer whose log is shipped.
pub fn run_with(
    arguments: &[OsString],
    purpose: Purpose,
    backup: Option<&backup::shipping::Settings>,
) -> ExitCode {
    let mut words = Vec::new();
    for word in arguments {
        match word.to_str() {
            Some(word) => words.push(word.to_owned()),
            None => {
                eprintln!("{}: arguments must be UTF-8", word.to_string_lossy());
                return ExitCode::from(2);
            }
        }
    }
    let mut rebuilding = None;
    if purpose == Purpose::Rebuild {
        let (endpoints, others) = take_endpoints(&words);
        rebuilding = Some(endpoints);
        words = others;
    }
    match config::parse(&words, &environment()) {
        Ok(Invocation::Help) => {
            eprint!("{}", config::usage());
            if purpose != Purpose::Etcd {
                eprint!("{OTHERS_USAGE}");
            }
            print!("{}", config::flag_help());
            ExitCode::SUCCESS
        }
        Ok(Invocation::Version) => {
            print!("{}", config::version_text(config::commit()));
            ExitCode::SUCCESS
        }
        Ok(Invocation::Serve(parsed))
            if parsed.config.observer.is_some() != matches!(purpose, Purpose::Observe | Purpose::BackUp) =>
        {
            eprintln!("{}", if purpose == Purpose::Observe { NO_FEED } else { FEED_OF_MEMBER });
            ExitCode::from(2)
        }
        Ok(Invocation::Serve(parsed))
            if purpose == Purpose::Witness && parsed.config.cluster.force_new_cluster =>
        {
            eprintln!("{WITNESS_ALONE}");
            ExitCode::from(2)
        }
        Ok(Invocation::Serve(mut parsed)) => {
            parsed.config.is_witness = purpose == Purpose::Witness;
            let is_flag =
                |word: &String| word.trim_start_matches('-').split('=').next() == Some("listen-client-urls");
            let is_variable = |(name, _): &(String, String)| name.ends_with("_LISTEN_CLIENT_URLS");
            let is_given = words.iter().any(is_flag) || environment().iter().any(is_variable);
            if purpose == Purpose::BackUp && !is_given {
                // The node serves nobody unless it is asked to.
                parsed.config.listen.client_urls.clear();
                parsed.config.listen.client_http_urls.clear();
                parsed.config.cluster.advertise_client_urls.clear();
            }
            let greet = !matches!(purpose, Purpose::Etcd | Purpose::BackUp);
            serve(*parsed, greet, rebuilding, backup)
        }
        Err(refusal) => {
            let logger = Logger::stderr();
            refusal.report(&mut std::io::stderr(), |entry| logger.log_entry(entry));
            ExitCode::from(refusal.exit_code())
        }
    }
}

const NO_FEED: &str = "mainstay observer needs --feed=URL: the peer URL of a member or of another observer";
const FEED_OF_MEMBER: &str = "--feed is a flag of `mainstay observer`: members get the log from their leader";

const WITNESS_ALONE: &str = "a witness has no keys, so no cluster can be formed from it: use --force-new-cluster with the directory of a member";

const OTHERS_USAGE: &str = "
  mainstay observer --feed=URL,... --data-dir=DIR [--listen-client-urls=... and other FLAGS]
    Serve reads, watches and forwarded writes from a copy of the data, without being a member: see
    docs/observers.md.

  mainstay witness --initial-cluster-witness=NAME --data-dir=DIR [FLAGS of a member]
    Run the third vote of a cluster of two members, without keys: see docs/clustering.md.

  mainstay shadow --feed=URL,... --data-dir=DIR
    Follow a production cluster of etcd or Mainstay, serve nobody, and prove that the copy is the same: see docs/shadow.md.

  mainstay backup run --feed=URL,... --data-dir=DIR --to=s3://BUCKET/PREFIX
    Ship every change to a bucket or a directory, from which `mainstay backup restore` makes the state of any moment: see
    docs/backup.md.

  mainstay rebuild FLAGS [--endpoints HOST:PORT,...]
    Restore a member whose data is damaged or lost from the other members: FLAGS are those it was started with. Its data
    is moved aside, not deleted.

  mainstay recover DIR... [--form ...]
    After the loss of a quorum: which of the data directories that are left has the newest state, and what is missing from it;
    and form the cluster again from it.

  mainstay ctl|utl|bench ...
    etcdctl, etcdutl and etcd's benchmark, also under those names (etcdctl, etcdutl, etcd-bench or benchmark: a link is enough).

  mainstay doctor [--endpoints HOST:PORT,...]
    Find out why a cluster is slow or about to fail.

  mainstay console [--endpoints HOST:PORT,...] [--listen URL]
    Serve a web console for a cluster of Mainstay or etcd.

  mainstay check perf|datascale|disk|network ...
    Measure what a cluster, a disk or the network between members can do.

  mainstay help [COMMAND]
    Print this, or the help of a command.

  mainstay completion bash|zsh|fish|powershell
    Print a completion script for a shell.
";

/// Separates `--endpoints`, which is a flag only of `rebuild`, from the other arguments.
fn take_endpoints(arguments: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut endpoints, mut others) = (Vec::new(), Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let list = match argument.trim_start_matches('-').split_once('=') {
            Some(("endpoints", list)) if argument.starts_with('-') => Some(list.to_owned()),
            None if argument == "--endpoints" || argument == "-endpoints" => {
                Some(arguments.next().cloned().unwrap_or_default())
            }
            _ => None,
        };
        match list {
            Some(list) => endpoints.extend(list.split(',').filter(|one| !one.is_empty()).map(str::to_owned)),
            None => others.push(argument.clone()),
        }
    }
    (endpoints, others)
}

/// Runs a member until it is asked to stop. If `rebuilding` is `Some`, first rebuilds the member; the list
/// has client URLs of other members, and is empty if the user gave none. If `greet` is true, prints the
/// greeting. If `backup` is given, ships the log of the member, which is an observer.
fn serve(
    mut parsed: Parsed,
    greet: bool,
    rebuilding: Option<Vec<String>>,
    backup: Option<&backup::shipping::Settings>,
) -> ExitCode {
    memory::use_small_pages();
    // Block the signals before any other thread starts, so that only the main thread receives them.
    signals::block();
    open_files::raise_limit();
    let logger = match Logger::open_in_zone(&parsed.config.log, local_time::ahead_of_utc) {
        Ok(logger) => Arc::new(logger),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    for entry in parsed.warnings.iter().chain(&parsed.notices) {
        logger.log_entry(entry);
    }
    logger.info(
        "starting a member",
        &[
            ("name", Value::Str(&parsed.config.name)),
            ("data-dir", Value::Str(&parsed.config.storage.data_dir.display().to_string())),
            ("version", Value::Str(env!("CARGO_PKG_VERSION"))),
            ("api-version", Value::Str(parsed.config.api_version)),
        ],
    );
    if parsed.config.memory_mlock {
        match memory_lock::lock() {
            Ok(()) => logger.info("locked the memory of this process", &[]),
            Err(error) => {
                logger.fatal("cannot start the member", &[("error", Value::Str(&error.to_string()))]);
                return ExitCode::FAILURE;
            }
        }
    }
    let data_path = parsed.config.storage.data_dir.clone();
    let data_dir = data_path.display().to_string();
    let mut signal = None;
    let early = std::cell::Cell::new(None);
    let stop_within = |patience: Duration| {
        early.set(early.get().or_else(|| signals::wait(patience, &logger)));
        early.get().is_some()
    };
    let stop_wanted = || stop_within(Duration::ZERO);
    let prepared: Result<_, Box<dyn Error>> = match &rebuilding {
        Some(endpoints) => match server::dialing(&parsed.config) {
            Ok(peer_tls) => Rebuild::new(&mut parsed.config, endpoints, peer_tls, &logger, &stop_within)
                .and_then(Rebuild::prepare)
                .map(Some)
                .map_err(Into::into),
            Err(error) => Err(error.into()),
        },
        None if rebuild::journal_path(&data_path).exists() => Err(rebuild::UNFINISHED.into()),
        // A witness takes nothing over: a directory of etcd is refused when it is opened.
        None if parsed.config.is_witness => Ok(None),
        None => utl::take_over(&utl::TakeOver {
            config: &parsed.config,
            logger: &logger,
            stop_wanted: &stop_wanted,
        })
        .map(|()| None)
        .map_err(|failure| failure.to_string().into()),
    };
    // The closure takes `_lock`, so that the lock against other rebuilds is held until the rebuild is
    // finished.
    let started = prepared.and_then(|_lock| {
        let discover =
            |config: &Config| discovery::discover(config, &logger, &stop_wanted).map_err(Into::into);
        let started = boot::start(parsed.config, Arc::clone(&logger), &discover, &stop_wanted)?;
        if rebuilding.is_some() {
            rebuild::finish(&data_path)?;
            logger.info("the member was rebuilt", &[]);
        }
        Ok(started)
    });
    let (running, listening) = match started {
        Ok(started) => started,
        Err(error) => {
            if let Some(signal) = early.get() {
                if rebuilding.is_some() {
                    // Log this before the line about the signal, which alone would not tell the operator that
                    // the rebuild is not done.
                    logger.warn("the member was not rebuilt", &[("error", Value::Str(&error.to_string()))]);
                }
                logger
                    .info("received signal; shutting down", &[("signal", Value::Str(signals::name(signal)))]);
                signals::die_by(signal);
            }
            logger.fatal("cannot start the member", &[("error", Value::Str(&error.to_string()))]);
            return ExitCode::FAILURE;
        }
    };
    let shipping = match backup.map(|settings| ship(&running, settings, &logger)).transpose() {
        Ok(shipping) => shipping,
        Err(trouble) => {
            logger.fatal("cannot start the backup", &[("error", Value::Str(&trouble.text))]);
            let _ = running.stop();
            return ExitCode::FAILURE;
        }
    };
    let mut systemd = Systemd::from_env();
    systemd.ready(&logger);
    // Print the greeting only to a terminal: a program that reads standard output may expect only the log,
    // which is JSON.
    if greet && std::io::stdout().is_terminal() {
        greeting(&listening, &data_dir);
    }
    let mut free_pages = memory::FreePages::default();
    while signal.is_none() {
        signal = signals::wait(systemd.patience(Duration::from_millis(500)), &logger);
        systemd.alive(&logger);
        free_pages.give_back();
        let has_failed = shipping.as_ref().is_some_and(|shipping| shipping.failure().is_some());
        if signal.is_none() && (running.ended(Duration::ZERO) || has_failed) {
            break;
        }
    }
    if let Some(signal) = signal {
        logger.info("received signal; shutting down", &[("signal", Value::Str(signals::name(signal)))]);
    }
    systemd.stopping(&logger);
    let failure = shipping.as_ref().and_then(backup::shipping::Shipping::failure);
    // What was read last is shipped now, while the member still runs.
    drop(shipping);
    match running.stop() {
        Ok(()) => {}
        Err(error) => {
            logger.fatal("the member cannot continue", &[("error", Value::Str(&error.to_string()))]);
            return ExitCode::FAILURE;
        }
    }
    if failure.is_some() {
        // The log has the reason.
        return ExitCode::FAILURE;
    }
    if let Some(signal) = signal
        && std::process::id() != 1
    {
        signals::die_by(signal);
    }
    ExitCode::SUCCESS
}

/// Starts to ship the log of an observer.
fn ship(
    running: &boot::Running,
    settings: &backup::shipping::Settings,
    logger: &Arc<Logger>,
) -> Result<backup::shipping::Shipping, backup::Trouble> {
    let shared = running.shared();
    let metrics = &shared.diagnostics.metrics;
    metrics.export_backup();
    let source = backup::live::LiveSource::observer(shared, running.entries());
    backup::shipping::Shipping::start(Arc::new(source), settings, metrics.backup.clone(), Arc::clone(logger))
}

/// Prints a few lines for an operator who started the member by hand.
fn greeting(listening: &Listening, data_dir: &str) {
    let mut out = std::io::stdout().lock();
    let client = listening.clients.first().map_or("", String::as_str);
    let page = match listening.pages.first().map_or(client, String::as_str).split_once(':') {
        Some(("unix", path)) => {
            format!("--unix-socket {} http://localhost", path.strip_prefix("//").unwrap_or(path))
        }
        _ => listening.pages.first().map_or(client, String::as_str).to_owned(),
    };
    // Ignore an error, because a closed standard output must not stop the member.
    let _ = writeln!(
        out,
        "\x1b[1mMainstay is ready.\x1b[0m\n  \
           clients  {}\n  \
           members  {}\n  \
           data     {data_dir}\n\
         Try:\n  \
           mainstay ctl --endpoints={client} put greeting hello\n  \
           mainstay ctl --endpoints={client} get greeting\n  \
           curl {page}/health",
        listening.clients.join(", "),
        listening.peers.join(", "),
    );
    if let Some(console) = listening.console.first() {
        let _ = writeln!(out, "The console is at {console}");
    }
}
