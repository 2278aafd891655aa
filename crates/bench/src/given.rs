//! Defines the flags that several commands share, checks their values, and converts them to this crate's
//! types.

use std::io::IsTerminal as _;
use std::time::Duration;

use cli::{Failure, Flag, FlagRow, Io, Matches};

use crate::loadgen::calls::Target;
use crate::loadgen::drive::{Plan, Schedule};
use crate::loadgen::socket::Endpoint;
use crate::report::Style;
use crate::tls;

pub(crate) const AUTO_SYNC_INTERVAL: Flag<Duration> = Flag::duration(
    "auto-sync-interval",
    "0s",
    "AutoSyncInterval is the interval to update endpoints with its latest members; only 0s: the endpoints \
         do not change during a measurement",
);
pub(crate) const CACERT: Flag<String> =
    Flag::text("cacert", "", "verify certificates of HTTPS-enabled servers using this CA bundle");
pub(crate) const CERT: Flag<String> =
    Flag::text("cert", "", "identify HTTPS client using this SSL certificate file");
pub(crate) const CLIENTS: Flag<u64> = Flag::uint("clients", "1", "Total number of gRPC clients");
pub(crate) const CONNS: Flag<u64> = Flag::uint("conns", "1", "Total number of gRPC connections");
pub(crate) const DIAL_TIMEOUT: Flag<Duration> =
    Flag::duration("dial-timeout", "0s", "dial timeout for client connections");
pub(crate) const ENDPOINTS: Flag<Vec<String>> = Flag::list("endpoints", "127.0.0.1:2379", "gRPC endpoints");
pub(crate) const INSECURE_SKIP_TLS_VERIFY: Flag<bool> =
    Flag::bool("insecure-skip-tls-verify", "skip server certificate verification");
pub(crate) const KEY: Flag<String> = Flag::text("key", "", "identify HTTPS client using this SSL key file");
pub(crate) const PRECISE: Flag<bool> = Flag::bool("precise", "use full floating point precision");
pub(crate) const REPORT_PERFDASH: Flag<bool> =
    Flag::bool("report-perfdash", "Generate benchmark report in perfdash format");
pub(crate) const SAMPLE: Flag<bool> = Flag::bool("sample", "'true' to sample requests for every second");
pub(crate) const USER: Flag<String> =
    Flag::text("user", "", "provide username[:password] and prompt if password is not supplied.");
pub(crate) const CSV: Flag<String> = Flag::text("csv", "", "write the figures of each run to this `file`");
pub(crate) const HTML: Flag<String> =
    Flag::text("html", "", "write a report with plots, one self-contained page, to this `file`");
pub(crate) const JSON: Flag<String> =
    Flag::text("json", "", "write all results to this `file` ('-': standard output, instead of the text)");
pub(crate) const PID: Flag<u64> = Flag::uint(
    "pid",
    "0",
    "process of the server, to measure its use of resources (0: found by the endpoint's port)",
);

/// Flags that every command has.
pub(crate) static GLOBALS: &[FlagRow] = &[
    AUTO_SYNC_INTERVAL.row(),
    CACERT.row(),
    CERT.row(),
    CLIENTS.row(),
    CONNS.row(),
    DIAL_TIMEOUT.row(),
    ENDPOINTS.row(),
    INSECURE_SKIP_TLS_VERIFY.row(),
    KEY.row(),
    PRECISE.row(),
    REPORT_PERFDASH.row(),
    SAMPLE.row(),
    USER.row(),
    CSV.row(),
    HTML.row(),
    JSON.row(),
    PID.row(),
];

// Flags that only some commands have.
pub(crate) const DURATION: Flag<Duration> = Flag::duration(
    "duration",
    "0s",
    "Duration for which operations are started, instead of a total number of them",
);
pub(crate) const REPEAT: Flag<u64> = Flag::uint("repeat", "1", "Number of runs; the medians are reported");
pub(crate) const SCHEDULE: Flag<String> = Flag::text(
    "schedule",
    "open",
    "With --rate: open (operations start at fixed times, and latency counts from the scheduled start) or \
     paced (like etcd's tool: a client that waits for the server starts nothing in the meantime)",
);
pub(crate) const THREADS: Flag<u64> = Flag::uint("threads", "1", "Threads that generate the load");
pub(crate) const WARMUP: Flag<Duration> =
    Flag::duration("warmup", "0s", "Warm-up time of the load before it is measured");

/// Flags of every command that measures single operations. Such a command also has the flags `--total` and
/// `--rate`; they are not in this list, because their help text differs from command to command (see
/// [`total`] and [`rate`]).
pub(crate) const RUN_FLAGS: &[FlagRow] =
    &[DURATION.row(), REPEAT.row(), SCHEDULE.row(), THREADS.row(), WARMUP.row()];

pub(crate) const KEY_SPACE_SIZE: Flag<i64> = Flag::int("key-space-size", "1", "Maximum possible keys");
pub(crate) const SEQUENTIAL_KEYS: Flag<bool> = Flag::bool("sequential-keys", "Use sequential keys");
pub(crate) const CONSISTENCY: Flag<String> =
    Flag::text("consistency", "l", "Linearizable(l) or Serializable(s)");

/// Returns the flag `--rate`: the maximum number of operations that a command begins per second.
pub(crate) const fn rate(help: &'static str) -> Flag<i64> {
    Flag::int("rate", "0", help)
}

/// Returns the flag `--total`: the number of operations that a command measures.
pub(crate) const fn total(help: &'static str) -> Flag<i64> {
    Flag::int("total", "10000", help)
}

/// Returns the value of a flag. Returns an error if it is not at least 1.
pub fn positive(matches: &Matches, flag: Flag<i64>) -> Result<u64, Failure> {
    match u64::try_from(matches.get(flag)) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(Failure::error(format!("expected positive --{}, got ({})", flag.name(), matches.get(flag)))),
    }
}

/// Returns the value of a flag. Returns an error if it is negative.
pub fn natural(matches: &Matches, flag: Flag<i64>) -> Result<u64, Failure> {
    u64::try_from(matches.get(flag)).map_err(|_| {
        Failure::error(format!("--{} must not be negative, got ({})", flag.name(), matches.get(flag)))
    })
}

/// Returns a flag's value as a size in bytes.
pub fn size(matches: &Matches, flag: Flag<i64>) -> Result<usize, Failure> {
    // Refuse a size of more than a gibibyte, which is probably a typing error.
    match natural(matches, flag)? {
        bytes if bytes <= 1 << 30 => Ok(bytes as usize),
        bytes => Err(Failure::error(format!("--{} of {bytes} is more than any server accepts", flag.name()))),
    }
}

/// Returns the report's heading for the consistency that `--consistency` selects, and true if reads are to be
/// serializable.
pub fn consistency(matches: &Matches) -> Result<(&'static str, bool), Failure> {
    match matches.get(CONSISTENCY) {
        "l" => Ok(("bench with linearizable range\n", false)),
        "s" => Ok(("bench with serializable range\n", true)),
        other => Err(Failure::usage(format!("--consistency must be l or s, not {other:?}"))),
    }
}

/// Returns the endpoints and the TLS settings that the flags describe, without an auth token: does not log
/// in.
pub fn open_target(matches: &Matches) -> Result<Target, Failure> {
    let endpoints = matches.get(ENDPOINTS);
    let files = tls::Files {
        cacert: matches.get(CACERT).to_owned(),
        cert: matches.get(CERT).to_owned(),
        key: matches.get(KEY).to_owned(),
        skip_verify: matches.get(INSECURE_SKIP_TLS_VERIFY),
    };
    let secure = |text: &String| text.starts_with("https://") || text.starts_with("unixs://");
    let config = files
        .client(endpoints.iter().any(secure))
        .map_err(|error| Failure::error(format!("bad tls config: {error}")))?;
    let parsed: Result<Vec<Endpoint>, _> =
        endpoints.iter().map(|text| Endpoint::parse(text.trim(), config.as_ref())).collect();
    let parsed = parsed.map_err(Failure::error)?;
    if parsed.is_empty() {
        return Err(Failure::error("--endpoints is empty"));
    }
    let mut target = Target::new(parsed);
    let dial = matches.get(DIAL_TIMEOUT);
    if !dial.is_zero() {
        target.dial_timeout = dial;
    }
    Ok(target)
}

/// Returns the number of clients and the number of connections.
pub fn connections(matches: &Matches) -> Result<(usize, usize), Failure> {
    match (matches.get(CLIENTS) as usize, matches.get(CONNS) as usize) {
        (0, _) => Err(Failure::error("expected positive --clients, got (0)")),
        (_, 0) => Err(Failure::error("expected positive --conns, got (0)")),
        both => Ok(both),
    }
}

/// Splits `name:password`. Without a colon, asks for the password on the terminal.
pub fn credentials(user: &str, io: &Io) -> Result<(String, String), Failure> {
    if let Some((name, password)) = user.split_once(':') {
        return Ok((name.to_owned(), password.to_owned()));
    }
    let password =
        password(io).map_err(|error| Failure::error(format!("bad user information: {user} {error}")))?;
    Ok((user.to_owned(), password))
}

/// Reads a password from standard input. While the user types, the terminal does not show the text.
fn password(io: &Io) -> std::io::Result<String> {
    io.err.notice("Password: ");
    let hidden = io.is_process && std::io::stdin().is_terminal();
    let echo = |word: &str| {
        // Ignore a failure: the terminal then shows the password while it is typed, but the command still
        // works.
        let _ = std::process::Command::new("stty").arg(word).status();
    };
    if hidden {
        echo("-echo");
    }
    let read = io.input.rest_of_line();
    if hidden {
        echo("echo");
        io.err.notice("\n");
    }
    let line = String::from_utf8(read?).map_err(std::io::Error::other)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// Returns how reports are to be formatted.
pub fn style(matches: &Matches) -> Style {
    Style { precise: matches.get(PRECISE), sample: matches.get(SAMPLE) }
}

/// Returns the plan of a load as the flags describe it. `total` is the flag with the number of operations.
pub fn plan(matches: &Matches, total: Flag<i64>) -> Result<Plan, Failure> {
    let rate = natural(matches, rate(""))? as f64;
    let schedule = match (matches.get(SCHEDULE), rate) {
        ("open" | "paced", 0.0) => Schedule::Flat,
        ("open", rate) => Schedule::Open(rate),
        ("paced", rate) => Schedule::Paced(rate),
        (other, _) => return Err(Failure::usage(format!("--schedule must be open or paced, not {other:?}"))),
    };
    let count = |flag: Flag<u64>| match (matches.get(flag), flag.name()) {
        (0, name) => Err(Failure::error(format!("expected positive --{name}, got (0)"))),
        (value, name) if value > 1_000_000 => {
            Err(Failure::error(format!("--{name} of {value} is too large for any machine")))
        }
        (value, _) => Ok(value as usize),
    };
    let duration = matches.get(DURATION);
    if !duration.is_zero() && matches.is_given(total) {
        return Err(Failure::usage(format!("--duration and --{} are mutually exclusive", total.name())));
    }
    Ok(Plan {
        total: natural(matches, total)?,
        duration: (!duration.is_zero()).then_some(duration),
        schedule,
        clients: count(CLIENTS)?,
        connections: count(CONNS)?,
        threads: count(THREADS)?,
        warmup: matches.get(WARMUP),
        repeat: count(REPEAT)?,
        ..Plan::default()
    })
}
