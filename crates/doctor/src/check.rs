//! The commands `check disk` and `check network`.

use std::ffi::OsString;
use std::process::ExitCode;

use cli::{Command, Flag, Program};

use crate::doctor::Outcome;
use crate::{check_disk, check_network, connection, doctor};

const DISK_FLAGS: &[Flag] = &[
    Flag::text("path", "", "the directory to write in: a member's data directory, or one on the same disk"),
    Flag::uint(
        "size",
        "0",
        "bytes of a record; 0: as the member at --endpoints writes them, if given, otherwise 2300",
    ),
    Flag::uint("count", "0", "end after so many records; 0: write for the whole time"),
    Flag::duration("for", "1m0s", "how long to write; burst credits end after minutes"),
    Flag::duration("limit", "10ms", "p99 of a sync that passes"),
];

const NETWORK_FLAGS: &[Flag] = &[
    Flag::on("cluster", "measure to all client URLs of all members, not only to --endpoints"),
    Flag::uint("count", "100", "round trips to measure per endpoint"),
    Flag::duration("for", "2s", "how long to send, and to receive, per endpoint"),
    Flag::duration("limit-rtt", "100ms", "p99 of a round trip that passes"),
    Flag::float("limit-loss", "0.01", "share of segments sent again that passes"),
];

pub(crate) const PROGRAM: Program = Program {
    root: Command {
        name: "check",
        about: "Measures what a member runs on",
        subcommands: &[
            Command {
                name: "disk",
                usage: "disk --path=DIR [flags]",
                about: "Measures the disk as the log uses it",
                long: "\
Writes records one after the other into a file in DIR, each followed by fdatasync, as a member's log does, and passes when
the p99 of the syncs is below 10 ms. The file has no name and is gone when the command ends. Write for minutes on disks with
a burst credit: the beginning and the end are compared.

Exit codes: 0 passed; 1 failed, or could not be measured.",
                example: "  mainstay check disk --path=/var/lib/mainstay
  mainstay check disk --path=/var/lib/mainstay --for=5m --endpoints=127.0.0.1:2379 -w json",
                flags: DISK_FLAGS,
                ..Command::EMPTY
            },
            Command {
                name: "network",
                usage: "network --endpoints=HOST:PORT,... [flags]",
                about: "Measures the network to the members, and between them as far as they tell",
                long: "\
Measures from here to each client URL: connecting, round trips, segments lost, bandwidth in both directions, the path's MTU;
with and without TLS where a member has URLs of both kinds. What members say of the round trips between them follows. To
measure between two machines, run it on one of them. Nothing is written: what is sent goes to the health service, which
looks at none of it.

Exit codes: 0 passed; 1 failed, or could not be measured.",
                example: "  mainstay check network --endpoints=10.0.0.1:2379
  mainstay check network --cluster=false --endpoints=https://10.0.0.2:2379 --cacert=ca.crt -w json",
                flags: NETWORK_FLAGS,
                ..Command::EMPTY
            },
        ],
        ..Command::EMPTY
    },
    globals: connection::FLAGS,
    env_prefix: Some("ETCDCTL_"),
    env_known: &["ETCDCTL_API"],
    globals_hint: "",
};

/// Runs `check disk` or `check network`: the arguments are those behind `check`. Prints the result.
pub fn check(args: &[OsString], env: impl IntoIterator<Item = (String, String)>) -> ExitCode {
    check_outcome(args, env).print()
}

/// As [`check`], but gives what it would print.
pub fn check_outcome(args: &[OsString], env: impl IntoIterator<Item = (String, String)>) -> Outcome {
    doctor::launch(&PROGRAM, args, env, |matches| async move {
        if matches.path.is_empty() {
            return Ok(Outcome::of(PROGRAM.help(&[]), 0));
        }
        if let Some(extra) = matches.arg_text(0) {
            return Err(format!("unknown argument {}", cli::go::quote(extra)));
        }
        match matches.path[..] {
            ["disk"] => check_disk::run(&matches).await,
            _ => check_network::run(&matches).await,
        }
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_tables_are_sound() {
        super::PROGRAM.assert_sound();
    }
}
