//! What the flags say, in the terms of this crate; refused where it makes no sense.

use std::io::IsTerminal as _;

use cli::Matches;

use crate::command::Refusal;
use crate::drive::{Plan, Schedule};
use crate::engine::calls::Target;
use crate::engine::socket::Endpoint;
use crate::report::Style;
use crate::tls;

/// A count of a flag that must not be below one.
pub fn positive(matches: &Matches, name: &str) -> Result<u64, Refusal> {
    match u64::try_from(matches.int(name)) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(Refusal::Failed(format!("expected positive --{name}, got ({})", matches.int(name)))),
    }
}

/// One that must not be below zero.
pub fn natural(matches: &Matches, name: &str) -> Result<u64, Refusal> {
    u64::try_from(matches.int(name))
        .map_err(|_| Refusal::Failed(format!("--{name} must not be negative, got ({})", matches.int(name))))
}

/// A size in bytes.
pub fn size(matches: &Matches, name: &str) -> Result<usize, Refusal> {
    // More than a gigabyte in one request is a typing error.
    match natural(matches, name)? {
        bytes if bytes <= 1 << 30 => Ok(bytes as usize),
        bytes => Err(Refusal::Failed(format!("--{name} of {bytes} is more than any server takes"))),
    }
}

/// The text of `--consistency`: what is printed first, and whether reads are serializable.
pub fn consistency(matches: &Matches) -> Result<(&'static str, bool), Refusal> {
    match matches.text("consistency") {
        "l" => Ok(("bench with linearizable range\n", false)),
        "s" => Ok(("bench with serializable range\n", true)),
        other => Err(Refusal::Usage(format!("--consistency is l or s, not {other:?}"))),
    }
}

/// Endpoints and TLS as the flags say, nobody logged in.
pub fn open_target(matches: &Matches) -> Result<Target, Refusal> {
    let endpoints = matches.list("endpoints");
    let files = tls::Files {
        cacert: matches.text("cacert").to_owned(),
        cert: matches.text("cert").to_owned(),
        key: matches.text("key").to_owned(),
        skip_verify: matches.flag("insecure-skip-tls-verify"),
    };
    let secure = |text: &String| text.starts_with("https://") || text.starts_with("unixs://");
    let config =
        files.client(endpoints.iter().any(secure)).map_err(|error| format!("bad tls config: {error}"))?;
    let parsed: Result<Vec<Endpoint>, String> =
        endpoints.iter().map(|text| Endpoint::parse(text.trim(), config.as_ref())).collect();
    let parsed = parsed?;
    if parsed.is_empty() {
        return Err("--endpoints names none".into());
    }
    let mut target = Target::new(parsed);
    let dial = matches.duration("dial-timeout");
    if !dial.is_zero() {
        target.dial_timeout = dial;
    }
    Ok(target)
}

/// Clients and connections.
pub fn connections(matches: &Matches) -> Result<(usize, usize), Refusal> {
    match (matches.uint("clients") as usize, matches.uint("conns") as usize) {
        (0, _) => Err("expected positive --clients, got (0)".into()),
        (_, 0) => Err("expected positive --conns, got (0)".into()),
        both => Ok(both),
    }
}

/// `name:password`; the password is asked for where it is missing.
pub fn credentials(user: &str) -> Result<(String, String), Refusal> {
    if let Some((name, password)) = user.split_once(':') {
        return Ok((name.to_owned(), password.to_owned()));
    }
    let password = password().map_err(|error| format!("bad user information: {user} {error}"))?;
    Ok((user.to_owned(), password))
}

/// Reads a line from standard input, unseen where that is a terminal.
fn password() -> std::io::Result<String> {
    eprint!("Password: ");
    let hidden = std::io::stdin().is_terminal();
    let echo = |word: &str| {
        // A terminal that cannot be told shows what is typed; that is no reason to refuse.
        let _ = std::process::Command::new("stty").arg(word).status();
    };
    if hidden {
        echo("-echo");
    }
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    if hidden {
        echo("echo");
        eprintln!();
    }
    read?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// How reports are written.
pub fn style(matches: &Matches) -> Style {
    Style { precise: matches.flag("precise"), sample: matches.flag("sample") }
}

/// The plan of a load; `total` is the flag that says how many operations.
pub fn plan(matches: &Matches, total: &str) -> Result<Plan, Refusal> {
    let rate = natural(matches, "rate")? as f64;
    let schedule = match (matches.text("schedule"), rate) {
        ("open" | "paced", 0.0) => Schedule::Flat,
        ("open", rate) => Schedule::Open(rate),
        ("paced", rate) => Schedule::Paced(rate),
        (other, _) => return Err(Refusal::Usage(format!("--schedule is open or paced, not {other:?}"))),
    };
    let count = |name: &str| match matches.uint(name) {
        0 => Err(Refusal::Failed(format!("expected positive --{name}, got (0)"))),
        value if value > 1_000_000 => {
            Err(Refusal::Failed(format!("--{name} of {value} is beyond any machine")))
        }
        value => Ok(value as usize),
    };
    let duration = matches.duration("duration");
    if !duration.is_zero() && matches.is_set(total) {
        return Err(Refusal::Usage(format!("--duration and --{total} are mutually exclusive")));
    }
    Ok(Plan {
        total: natural(matches, total)?,
        duration: (!duration.is_zero()).then_some(duration),
        schedule,
        clients: count("clients")?,
        connections: count("conns")?,
        threads: count("threads")?,
        warmup: matches.duration("warmup"),
        repeat: count("repeat")?,
        ..Plan::default()
    })
}
