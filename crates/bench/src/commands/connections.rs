//! Implements the command `connections`: measures what open connections, leases and watches cost a server, and
//! what established clients notice when all others reconnect at once.

use std::time::Duration;

use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{self, JSON, PID, natural, positive};
use crate::loads::connections::Connections;
use crate::session::Session;
use crate::usage::Meter;

const AT_ONCE: Flag<i64> =
    Flag::int("at-once", "500", "Maximum number of clients that connect at the same time, before the storm");
const CONNECTIONS: Flag<i64> = Flag::int("connections", "1000", "Number of connections");
const ESTABLISHED: Flag<i64> =
    Flag::int("established", "10", "With --storm: connections that send requests meanwhile");
const HOLD: Flag<Duration> =
    Flag::duration("hold", "10s", "Time for which the connections are only open, to measure the CPU time");
const LEASE_TTL: Flag<i64> = Flag::int(
    "lease-ttl",
    "60",
    "TTL in seconds of the lease of each connection, which is renewed after a third of it (0: no leases)",
);
const NO_TICKETS: Flag<bool> =
    Flag::bool("no-tickets", "Do whole TLS handshakes: resume no session with a ticket");
const RATE: Flag<i64> =
    Flag::int("rate", "1000", "With --storm: linearizable reads a second of the established connections");
const STORM: Flag<bool> = Flag::bool(
    "storm",
    "At the end, close all connections and let all clients reconnect at once, each to the next endpoint",
);
const WATCHES: Flag<i64> =
    Flag::int("watches-per-connection", "1", "Number of watches of each connection, on one stream");

/// More connections than this need more source addresses than the command uses.
const CONNECTIONS_MAX: u64 = 10_000_000;

pub(super) const CONNECTIONS_COMMAND: Command<Run> = Command {
    name: "connections",
    usage: "connections",
    about: "Benchmark open connections, each with a lease and watches",
    long: "Opens many connections, each with a lease and a stream of watches, and reports the server's memory for each\n\
           connection and each watch, and its CPU time while they are only open. Servers on this machine are reached\n\
           from as many loopback addresses as the connections need. The limit on open files (ulimit -n) of this process\n\
           and of the server must be above the number of connections.",
    flags: &[
        AT_ONCE.row(),
        CONNECTIONS.row(),
        ESTABLISHED.row(),
        HOLD.row(),
        LEASE_TTL.row(),
        NO_TICKETS.row(),
        RATE.row(),
        STORM.row(),
        WATCHES.row(),
    ],
    example: "  bench connections --connections 10000 --watches-per-connection 10 --storm",
    run: Some(Run::of(connections).without(&[
        given::CLIENTS.row(),
        given::CONNS.row(),
        given::CSV.row(),
        given::HTML.row(),
        given::PRECISE.row(),
        given::REPORT_PERFDASH.row(),
        given::SAMPLE.row(),
    ])),
    ..Command::EMPTY
};

fn connections(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let load = Connections {
        connections: match positive(matches, CONNECTIONS)? {
            many if many > CONNECTIONS_MAX => {
                return Err(Failure::error(format!(
                    "--connections must be at most {CONNECTIONS_MAX}, got ({many})"
                )));
            }
            connections => connections as usize,
        },
        ttl: natural(matches, LEASE_TTL)?,
        watches: natural(matches, WATCHES)? as usize,
        at_once: positive(matches, AT_ONCE)? as usize,
        hold: matches.get(HOLD),
        resumes: !matches.get(NO_TICKETS),
        storm: matches.get(STORM),
        established: positive(matches, ESTABLISHED)? as usize,
        rate: match positive(matches, RATE)? {
            rate if rate > 1_000_000 => {
                return Err(Failure::error(format!("--rate must be at most 1000000, got ({rate})")));
            }
            rate => rate,
        },
    };
    if load.ttl == 0 && load.watches == 0 {
        return Err(Failure::usage("--lease-ttl and --watches-per-connection must not both be 0"));
    }
    let only_with_storm = [ESTABLISHED.row(), RATE.row(), NO_TICKETS.row()];
    if !load.storm
        && let Some(flag) = only_with_storm.iter().find(|flag| matches.is_given(**flag))
    {
        return Err(Failure::usage(format!("--{} has an effect only with --storm", flag.name)));
    }
    let target = session.target()?;
    if !load.resumes && target.endpoints.iter().all(|endpoint| endpoint.tls.is_none()) {
        return Err(Failure::usage("--no-tickets has an effect only with TLS"));
    }
    let pid = u32::try_from(matches.get(PID)).ok().filter(|pid| *pid != 0);
    let meter = Meter::new(&target.endpoints[0], pid);
    let report = load
        .run(&target, &meter, &|line| session.io.err.notice(format!("{line}\n")))
        .map_err(Failure::error)?;
    match matches.get(JSON) {
        "-" => session.say(&report.json())?,
        path => {
            session.say(&report.text())?;
            if !path.is_empty() {
                std::fs::write(path, report.json())
                    .map_err(|error| Failure::error(format!("{path}: {error}")))?;
            }
        }
    }
    if report.ready < load.connections {
        return Err(Failure::error(format!(
            "only {} of {} connections were ready",
            report.ready, load.connections
        )));
    }
    Ok(())
}
