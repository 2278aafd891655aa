//! The binary `mainstay`. Depending on its file name or its first argument, it runs a member or one of the
//! tools.
//!
//! `member` runs a member, with its signals, exit codes and the notification of systemd. `mainstay rebuild`
//! first replaces a damaged member, with `utl::rebuild`, and `mainstay recover` forms a cluster again with `utl::recover`.
//! `mainstay shadow` runs a copy of another cluster. `back_up` runs the node whose log is backed up. `discovery` finds the other members of a cluster
//! that is being formed. `completion` and `man` describe all commands to shells and to `man`.
//!
//! The crate only starts members and tools, which are in other crates. Invariant: while a rebuild of a member
//! is unfinished, the member does not start, and the same `rebuild` command continues it.
//!
//! Start reading with `main` and `member::run`. Tests: `tests/it`, which run real processes, with kill -9,
//! partitions, full disks and damage. The tests that measure time need the feature `full`.

mod back_up;
mod completion;
mod discovery;
mod local_time;
mod man;
mod member;
mod memory;
mod memory_lock;
mod open_files;
mod signals;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use member::Purpose;
use telemetry::logging::{Logger, Value};

#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::Allocator;

fn main() -> ExitCode {
    plant();
    config::set_commit(option_env!("MAINSTAY_COMMIT"));
    let words: Vec<OsString> = std::env::args_os().collect();
    let called = words.first().and_then(|path| Path::new(path).file_name()).and_then(|name| name.to_str());
    let arguments = words.get(1..).unwrap_or_default();
    match called {
        Some("etcd") => {
            return proxy(arguments).unwrap_or_else(|| member::run(arguments, Purpose::Etcd));
        }
        Some("etcdctl") => return ctl::run(arguments),
        Some("etcdutl") => {
            return match backup::command::of_utl(arguments) {
                Some(words) => backup::command::run(&words),
                None => utl::run(arguments),
            };
        }
        Some("benchmark" | "etcd-bench") => return bench::run(arguments),
        _ => {}
    }
    dispatch(arguments)
}

/// Words that are commands if they are the first word on the command line.
const COMMANDS: [&str; 19] = [
    "server",
    "observer",
    "witness",
    "shadow",
    "backup",
    "rebuild",
    "recover",
    "ctl",
    "utl",
    "bench",
    "check",
    "doctor",
    "console",
    "completion",
    "man",
    "gateway",
    "grpc-proxy",
    "help",
    "version",
];

/// Runs the command that the first word names; without a command, runs a member.
fn dispatch(arguments: &[OsString]) -> ExitCode {
    let Some((verb, rest)) = arguments.split_first() else {
        return member::run(arguments, Purpose::Serve);
    };
    match verb.to_str() {
        Some("help") => dispatch(&[rest, &[OsString::from("--help")]].concat()),
        Some("version") => member::run(&[OsString::from("--version")], Purpose::Serve),
        Some("server") => member::run(rest, Purpose::Serve),
        Some("observer") => member::run(rest, Purpose::Observe),
        Some("witness") => member::run(rest, Purpose::Witness),
        Some("shadow") => run_shadow(rest),
        Some("backup") => back_up::run(rest),
        Some("rebuild") => member::run(rest, Purpose::Rebuild),
        Some("recover") => utl::recover::run(rest),
        Some("ctl") => ctl::run(rest),
        Some("utl") => match backup::command::of_utl(rest) {
            Some(words) => backup::command::run(&words),
            None => utl::run(rest),
        },
        Some("bench") => bench::run(rest),
        Some("doctor") => doctor::run(rest),
        Some("console") => serve_console(rest),
        Some("completion") => completion::run(rest),
        Some("man") => man::run(rest),
        Some("gateway" | "grpc-proxy") => {
            proxy(arguments).unwrap_or_else(|| unreachable!("both are subcommands of a proxy"))
        }
        // `perf` and `datascale` are checks of etcdctl, which measure a cluster. All other checks examine
        // this machine.
        Some("check") if rest.first().is_some_and(|what| what == "perf" || what == "datascale") => {
            ctl::run(arguments)
        }
        Some("check") => doctor::check(rest),
        Some(verb) if !verb.starts_with('-') => {
            eprintln!(
                "{verb:?} is not a command; the commands are {}. To run a member, give flags only (see --help){}",
                COMMANDS.join(", "),
                cli::did_you_mean(&cli::near_names(verb, COMMANDS)).trim_end()
            );
            ExitCode::from(2)
        }
        _ => member::run(arguments, Purpose::Serve),
    }
}

/// Runs the console until a signal ends it.
fn serve_console(arguments: &[OsString]) -> ExitCode {
    // Block the signals before any other thread starts, so that only the main thread receives them.
    signals::block();
    console::run(arguments, &|logger| while signals::wait(Duration::from_secs(3600), logger).is_none() {})
}

/// Runs a shadow until a signal ends it.
fn run_shadow(arguments: &[OsString]) -> ExitCode {
    shadow::run(arguments, &prepare_shadow, &wait_for_signal)
}

/// Runs a shadow with something that works with its copy, until a signal ends it.
fn run_shadow_with(arguments: &[OsString], companion: Arc<dyn shadow::Companion>) -> ExitCode {
    shadow::run_with(arguments, &prepare_shadow, &wait_for_signal, companion)
}

fn prepare_shadow() {
    memory::use_small_pages();
    // Block the signals before any other thread starts, so that only the main thread receives them.
    signals::block();
    open_files::raise_limit();
}

/// Waits for a signal for at most a time. Returns true if there was one.
fn wait_for_signal(patience: Duration, logger: &Logger) -> bool {
    match signals::wait(patience, logger) {
        Some(signal) => {
            logger.info("received signal; shutting down", &[("signal", Value::Str(signals::name(signal)))]);
            true
        }
        None => false,
    }
}

/// Runs a proxy if the first word names one; returns `None` otherwise.
fn proxy(arguments: &[OsString]) -> Option<ExitCode> {
    let (verb, rest) = arguments.split_first()?;
    let ready = |logger: &telemetry::logging::Logger| server::systemd::Systemd::from_env().ready(logger);
    match verb.to_str() {
        Some("gateway") => {
            open_files::raise_limit();
            Some(proxy::run_gateway(rest, &ready))
        }
        Some("grpc-proxy") => {
            open_files::raise_limit();
            Some(proxy::run_grpc_proxy(rest, &ready))
        }
        _ => None,
    }
}

/// Activates the deliberate bug that the environment variable `MAINSTAY_PLANTED` names, to test that the
/// tests find it. Only builds with the feature `planted` contain such bugs.
fn plant() {
    if !cfg!(feature = "planted") {
        return;
    }
    let Ok(name) = std::env::var("MAINSTAY_PLANTED") else { return };
    let bug = planted::Bug::ALL.iter().copied().find(|bug| bug.name() == name);
    assert!(bug.is_some(), "MAINSTAY_PLANTED: unknown bug {name:?}");
    planted::plant(bug);
}

/// Returns the environment variables whose name and value are valid UTF-8.
fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
