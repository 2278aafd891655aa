//! The command line of `mainstay shadow`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use cli::{Command, Failure, Flag, FlagRow, Invocation, Io, Matches, Program};
use client::TlsFiles;
use config::Url;
use telemetry::logging::{Level, LogSettings, Logger, Value};

use crate::follow::{self, Settings, Stop};
use crate::trouble::Trouble;

const FEED: Flag<Vec<String>> =
    Flag::list("feed", "", "client URLs of members of the cluster that is followed (required)");
const DATA_DIR: Flag<String> = Flag::text("data-dir", "", "`directory` of the copy (required)");
const METRICS_URLS: Flag<Vec<String>> = Flag::list(
    "listen-metrics-urls",
    "",
    "http URLs at which to serve /metrics and /health; nothing else is ever served",
);
const COMPARE_INTERVAL: Flag<Duration> = Flag::duration(
    "compare-interval",
    "1h0m0s",
    "interval of comparisons at the newest revision, for which a member of the source reads its whole database and \
     takes no writes meanwhile; 0 compares only when the source is compacted",
);
const COMPARE_REST: Flag<u32> = Flag::uint32(
    "compare-rest",
    "1000",
    "rest after a comparison, as a multiple of the time that a member of the source needed for its hash, even if \
     --compare-interval is shorter",
);
const EXIT_ON_MISMATCH: Flag<bool> =
    Flag::bool("exit-on-mismatch", "exit with code 3 at the first comparison that is different");
const RESTART_ON_COMPACTION: Flag<bool> = Flag::on(
    "restart-on-compaction",
    "begin again from a snapshot if the source has compacted what the copy lacks; if false, exit",
);
const LOG_LEVEL: Flag<String> = Flag::text("log-level", "info", "debug, info, warn or error");
const LOG_FORMAT: Flag<String> = Flag::text("log-format", "json", "json or console");
const CACERT: Flag<String> =
    Flag::text("cacert", "", "verify certificates of TLS-enabled secure servers using this CA bundle");
const CERT: Flag<String> = Flag::text("cert", "", "identify secure client using this TLS certificate file");
const KEY: Flag<String> = Flag::text("key", "", "identify secure client using this TLS key file");
const INSECURE_SKIP_TLS_VERIFY: Flag<bool> =
    Flag::bool("insecure-skip-tls-verify", "skip server certificate verification (for testing only)");
const USER: Flag<String> = Flag::text(
    "user",
    "",
    "username:password of a user with the role root, if the source has authentication",
);
const PASSWORD: Flag<String> =
    Flag::text("password", "", "password of the user, if --user does not contain it");

const OWN_FLAGS: &[FlagRow] = &[
    FEED.row(),
    DATA_DIR.row(),
    METRICS_URLS.row(),
    COMPARE_INTERVAL.row(),
    COMPARE_REST.row(),
    EXIT_ON_MISMATCH.row(),
    RESTART_ON_COMPACTION.row(),
    LOG_LEVEL.row(),
    LOG_FORMAT.row(),
];
/// Flags with the same names as etcdctl's. They can also be set by etcdctl's environment variables.
const SHARED_FLAGS: &[FlagRow] =
    &[CACERT.row(), CERT.row(), KEY.row(), INSECURE_SKIP_TLS_VERIFY.row(), USER.row(), PASSWORD.row()];

const LONG: &str = "\
Follows a cluster of etcd 3.4 to 3.7 or of Mainstay without being part of it, holds the same data in a member of Mainstay that
serves nobody, and compares HashKV of both, at each compaction of the source and at an interval. The source is only read.

The exit code is 0 after a signal, 3 if a comparison was different, and 1 after an error. See docs/shadow.md.";

const EXAMPLE: &str = "  mainstay shadow --feed=https://etcd-1:2379,https://etcd-2:2379 --cacert=ca.crt --cert=client.crt --key=client.key \\
      --data-dir=/var/lib/mainstay-shadow --listen-metrics-urls=http://127.0.0.1:2383
  ETCDCTL_USER=root:secret mainstay shadow --feed=10.0.0.1:2379 --data-dir=shadow --compare-interval=6h";

/// The command line of `mainstay shadow`.
pub const PROGRAM: Program<()> = Program {
    root: Command {
        name: "shadow",
        usage: "shadow --feed=URL,... --data-dir=DIR [flags]",
        about: "Follows a production cluster and proves that Mainstay holds the same data",
        long: LONG,
        example: EXAMPLE,
        flags: OWN_FLAGS,
        run: Some(()),
        ..Command::EMPTY
    },
    globals: SHARED_FLAGS,
    env_prefix: Some("ETCDCTL_"),
    env_known: &["ETCDCTL_API", "ETCDCTL_ENDPOINTS"],
    globals_hint: "",
};

/// Exit code if a comparison was different.
const DIFFERENT: u8 = 3;
/// Interval at which the main thread looks for the end of the shadow while it waits for a signal.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Time that a shadow has for stopping cleanly. After it the process ends anyway, which loses nothing.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Runs a shadow in this process. `args` are the arguments that follow `shadow`. `prepare` is called before any thread
/// starts, and `wait` waits for at most a time and returns true once a signal asks the process to end.
pub fn run(args: &[OsString], prepare: &dyn Fn(), wait: &dyn Fn(Duration, &Logger) -> bool) -> ExitCode {
    run_with(args, prepare, wait, Arc::new(Alone))
}

/// Runs a shadow as [`run`] does, with something that works with its copy.
pub fn run_with(
    args: &[OsString],
    prepare: &dyn Fn(),
    wait: &dyn Fn(Duration, &Logger) -> bool,
    companion: Arc<dyn Companion>,
) -> ExitCode {
    let io = Io::of_process();
    let matches = match PROGRAM.parse(args, io.text_environment()) {
        Ok(Invocation::Run(matches, ())) => matches,
        Ok(Invocation::Help(text)) => {
            io.out.notice(text);
            return ExitCode::SUCCESS;
        }
        Ok(Invocation::Group(matches)) => {
            io.out.notice(PROGRAM.help(&matches.path));
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            io.err.notice(format!("Error: {error}\n{}", PROGRAM.usage(&error.path)));
            return ExitCode::from(Failure::ERROR);
        }
    };
    for reason in &matches.unusable_env {
        io.err.notice(format!("Warning: {reason}; the variable has no effect\n"));
    }
    let (settings, logger) = match settings(&matches).and_then(|settings| Ok((settings, logger(&matches)?))) {
        Ok(read) => read,
        Err(failure) => {
            io.err.notice(format!("Error: {failure}\n"));
            return ExitCode::from(failure.code);
        }
    };
    prepare();
    ExitCode::from(serve(settings, &Arc::new(logger), wait, companion))
}

/// Runs the shadow on a thread of its own until it ends or a signal arrives. Returns the exit code.
fn serve(
    settings: Settings,
    logger: &Arc<Logger>,
    wait: &dyn Fn(Duration, &Logger) -> bool,
    companion: Arc<dyn Companion>,
) -> u8 {
    logger.info(
        "starting a shadow",
        &[
            ("data-dir", Value::Str(&settings.data_dir.display().to_string())),
            ("version", Value::Str(env!("CARGO_PKG_VERSION"))),
        ],
    );
    let stop = Stop::default();
    let (ended, end) = channel();
    let (stopping, logging) = (stop.clone(), Arc::clone(logger));
    let attached = Arc::clone(&companion);
    let started = std::thread::Builder::new().name("shadow".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let outcome = match runtime {
            Ok(runtime) => {
                let outcome = runtime.block_on(follow::run(settings, logging, stopping, attached));
                // A hash that is still being computed is of no use any more.
                runtime.shutdown_background();
                outcome
            }
            Err(error) => Err(Trouble::Final(error.to_string())),
        };
        // The main thread may no longer wait.
        let _ = ended.send(outcome);
    });
    if let Err(error) = started {
        logger.fatal("cannot start the shadow", &[("error", Value::Str(&error.to_string()))]);
        return Failure::ERROR;
    }
    let (mut patience, mut failed) = (None, false);
    loop {
        match end.recv_timeout(Duration::ZERO) {
            Ok(Ok(false)) => return if failed { Failure::ERROR } else { 0 },
            Ok(Ok(true)) => return DIFFERENT,
            Ok(Err(trouble)) => {
                logger.fatal("the shadow ends", &[("error", Value::Str(&trouble.text()))]);
                return if let Trouble::Different(..) = trouble { DIFFERENT } else { Failure::ERROR };
            }
            Err(RecvTimeoutError::Disconnected) => {
                logger.fatal("the shadow ends", &[("error", Value::Str("its thread has failed"))]);
                return Failure::ERROR;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if patience.is_none() && companion.has_failed() {
            // It has logged the reason.
            failed = true;
            stop.ask();
            patience = Some(STOP_PATIENCE);
        }
        match &mut patience {
            None if wait(LOOK_INTERVAL, logger) => {
                stop.ask();
                patience = Some(STOP_PATIENCE);
            }
            None => {}
            Some(left) if left.is_zero() => {
                logger.warn("the shadow ends without a clean stop; nothing is lost", &[]);
                return if failed { Failure::ERROR } else { 0 };
            }
            Some(left) => {
                let _ = wait(LOOK_INTERVAL, logger);
                *left = left.saturating_sub(LOOK_INTERVAL);
            }
        }
    }
}

/// Works with the copy of a shadow while it is open, for example by shipping its log. The methods are called on
/// threads of the shadow and may block.
pub trait Companion: Send + Sync {
    /// Begins to work with a copy of the cluster `cluster_id`, whose data directory is `data_dir`.
    ///
    /// # Errors
    ///
    /// Returns the reason for which the shadow has to end.
    fn begin(
        &self,
        copy: &server::boot::Running,
        cluster_id: u64,
        data_dir: &Path,
        logger: &Arc<Logger>,
    ) -> Result<(), String>;

    /// Ends the work with the copy, which is closed next.
    fn end(&self);

    /// Returns true if the companion cannot go on, so that the shadow ends.
    fn has_failed(&self) -> bool;
}

/// No companion.
struct Alone;

impl Companion for Alone {
    fn begin(&self, _: &server::boot::Running, _: u64, _: &Path, _: &Arc<Logger>) -> Result<(), String> {
        Ok(())
    }

    fn end(&self) {}

    fn has_failed(&self) -> bool {
        false
    }
}

fn settings(matches: &Matches) -> Result<Settings, Failure> {
    if let Some(extra) = matches.arg_text(0) {
        let extra = cli::go::quote(extra);
        return Err(Failure::error(format!("unknown argument {extra}: give endpoints with --feed")));
    }
    let feeds: Vec<String> =
        matches.get(FEED).iter().map(|feed| feed.trim().to_owned()).filter(|feed| !feed.is_empty()).collect();
    if feeds.is_empty() {
        return Err(Failure::error("--feed is required: client URLs of the cluster to follow"));
    }
    let data_dir = matches.get(DATA_DIR);
    if data_dir.is_empty() {
        return Err(Failure::error("--data-dir is required: a directory for the copy"));
    }
    let path =
        |flag: Flag<String>| Some(matches.get(flag)).filter(|text| !text.is_empty()).map(PathBuf::from);
    let files = TlsFiles {
        cert: path(CERT),
        key: path(KEY),
        cacert: path(CACERT),
        server_name: None,
        insecure_skip_verify: matches.get(INSECURE_SKIP_TLS_VERIFY),
    };
    let mut client = client::Settings {
        dial_timeout: Some(Duration::from_secs(5)),
        // Without pings, a connection to a host that has vanished would look as if nothing changed at the source.
        keepalive_time: Duration::from_secs(10),
        keepalive_timeout: Duration::from_secs(10),
        receive_bytes_max: i32::MAX as usize,
        user: user(matches.get(USER), matches.get(PASSWORD))?,
        ..client::Settings::of(feeds)
    };
    client.secure(&files, true).map_err(|error| Failure::error(error.to_string()))?;
    Ok(Settings {
        client,
        data_dir: PathBuf::from(data_dir),
        metrics_urls: metrics_urls(matches.get(METRICS_URLS))?,
        compare_interval: matches.get(COMPARE_INTERVAL),
        compare_rest: matches.get(COMPARE_REST),
        exit_on_mismatch: matches.get(EXIT_ON_MISMATCH),
        restart_on_compaction: matches.get(RESTART_ON_COMPACTION),
    })
}

/// Returns the name and the password of a user; `None` if no user is given.
fn user(user: &str, password: &str) -> Result<Option<(String, String)>, Failure> {
    let (name, password) = match user.split_once(':') {
        Some((name, word)) if password.is_empty() => (name, word),
        _ => (user, password),
    };
    match (name.is_empty(), password.is_empty()) {
        (true, true) => Ok(None),
        (false, false) => Ok(Some((name.to_owned(), password.to_owned()))),
        _ => Err(Failure::error("--user needs a name and a password: --user NAME:PASSWORD, or --password")),
    }
}

/// Checks the URLs for metrics: the shadow has no certificate to serve, so they are http or Unix sockets.
fn metrics_urls(given: &[String]) -> Result<Vec<String>, Failure> {
    let mut urls = Vec::new();
    for text in given.iter().map(|text| text.trim()).filter(|text| !text.is_empty()) {
        let url =
            Url::parse(text).map_err(|error| Failure::error(format!("--listen-metrics-urls: {error}")))?;
        if url.scheme().is_secure() {
            return Err(Failure::error(format!("--listen-metrics-urls={text}: only http is served")));
        }
        urls.push(text.to_owned());
    }
    Ok(urls)
}

fn logger(matches: &Matches) -> Result<Logger, Failure> {
    let level = matches.get(LOG_LEVEL);
    let level = Level::parse(level)
        .ok_or_else(|| Failure::error(format!("--log-level={level}: debug, info, warn or error")))?;
    let settings = LogSettings::parse(level, matches.get(LOG_FORMAT), &["stderr".to_owned()])
        .map_err(|error| Failure::error(format!("--log-format: {error}")))?;
    Logger::open(&settings).map_err(|error| Failure::error(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Settings, String> {
        let args: Vec<OsString> = words.iter().map(OsString::from).collect();
        match PROGRAM.parse(&args, Vec::new()) {
            Ok(Invocation::Run(matches, ())) => settings(&matches).map_err(|failure| failure.to_string()),
            _ => Err("another invocation".to_owned()),
        }
    }

    #[test]
    fn the_tables_are_sound() {
        PROGRAM.assert_sound();
    }

    #[test]
    fn what_is_missing_or_contradictory_is_named() {
        let with = |more: &[&str]| read(&[&["--feed=a:1, b:2", "--data-dir=d"], more].concat());
        let settings = with(&[]).expect("is enough");
        assert_eq!(settings.client.endpoints, ["a:1", "b:2"]);
        assert_eq!((settings.compare_interval, settings.compare_rest), (Duration::from_secs(3600), 1000));
        assert!(settings.restart_on_compaction && !settings.exit_on_mismatch);
        let settings = with(&["--user=root:a:b"]).expect("is enough");
        assert_eq!(settings.client.user, Some(("root".to_owned(), "a:b".to_owned())));
        let settings = with(&["--user=root", "--password=c"]).expect("is enough");
        assert_eq!(settings.client.user, Some(("root".to_owned(), "c".to_owned())));
        for (words, told) in [
            (&["--data-dir=d"][..], "--feed is required"),
            (&["--feed=a:1"], "--data-dir is required"),
            (&["--feed=a:1", "--data-dir=d", "x"], "unknown argument \"x\""),
            (&["--feed=a:1", "--data-dir=d", "--user=root"], "--user needs a name and a password"),
            (&["--feed=a:1", "--data-dir=d", "--password=c"], "--user needs a name and a password"),
            (&["--feed=a:1", "--data-dir=d", "--listen-metrics-urls=https://a:1"], "only http is served"),
            (&["--feed=a:1", "--data-dir=d", "--listen-metrics-urls=x"], "--listen-metrics-urls: "),
            (&["--feed=a:1", "--data-dir=d", "--cert=/none", "--key=/none"], "/none"),
        ] {
            let refusal = read(words).err().unwrap_or_default();
            assert!(refusal.contains(told), "{words:?}: {refusal}");
        }
    }
}
