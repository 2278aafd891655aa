//! The table of commands: names, flags, texts and examples, as etcdctl 3.7 has them.

mod access;
mod keys;
mod maintenance;
mod utility;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use cli::{Command, Flag, Invocation, Matches, Program};

use access::{AUTH, ELECT, LOCK, ROLE, USER};
use keys::{COMPACTION, DEL, GET, LEASE, PUT, TXN, WATCH};
use maintenance::{ALARM, DEFRAG, DOWNGRADE, ENDPOINT, MEMBER, MOVE_LEADER, SNAPSHOT};
use utility::{CHECK, COMPLETION, HELP, MAKE_MIRROR, OPTIONS, VERSION};

/// The tool.
pub static PROGRAM: Program = Program {
    root: Command {
        name: "etcdctl",
        about: "A simple command line client for etcd3.",
        subcommands: COMMANDS,
        ..Command::EMPTY
    },
    globals: GLOBALS,
    env_prefix: Some("ETCDCTL_"),
    // ETCDCTL_API chose between two clients once; scripts still set it, and there is only one now.
    env_known: &["ETCDCTL_API", "ETCDCTL_WATCH_KEY", "ETCDCTL_WATCH_RANGE_END"],
    globals_hint: HINT,
};

/// The last line of help texts.
pub(crate) const HINT: &str =
    "Use \"etcdctl options\" for a list of global command-line options (applies to all commands).";

static GLOBALS: &[Flag] = &[
    Flag::list("endpoints", "127.0.0.1:2379", "gRPC endpoints"),
    Flag::bool("debug", "enable client-side debug logging"),
    Flag::text("write-out", "simple", "set the output format (fields, json, protobuf, simple, table)")
        .short('w'),
    Flag::bool("hex", "print byte strings as hex encoded strings"),
    Flag::duration("dial-timeout", "2s", "dial timeout for client connections"),
    Flag::duration("command-timeout", "5s", "timeout for short running command (excluding dial timeout)"),
    Flag::duration("keepalive-time", "2s", "keepalive time for client connections"),
    Flag::duration("keepalive-timeout", "6s", "keepalive timeout for client connections"),
    Flag::int(
        "max-request-bytes",
        "0",
        "client-side request send limit in bytes (if 0, it defaults to 2.0 MiB (2 * 1024 * 1024).)",
    ),
    Flag::int(
        "max-recv-bytes",
        "0",
        "client-side response receive limit in bytes (if 0, it defaults to \"math.MaxInt32\")",
    ),
    Flag::on("insecure-transport", "disable transport security for client connections"),
    Flag::on("insecure-discovery", "accept insecure SRV records describing cluster endpoints"),
    Flag::bool(
        "insecure-skip-tls-verify",
        "skip server certificate verification (CAUTION: this option should be enabled only for testing purposes)",
    ),
    Flag::text("cert", "", "identify secure client using this TLS certificate file"),
    Flag::text("key", "", "identify secure client using this TLS key file"),
    Flag::text("cacert", "", "verify certificates of TLS-enabled secure servers using this CA bundle"),
    Flag::text(
        "auth-jwt-token",
        "",
        "JWT token used for authentication (if this option is used, --user and --password should not be set)",
    ),
    Flag::text("user", "", "username[:password] for authentication (prompt if password is not supplied)"),
    Flag::text(
        "password",
        "",
        "password for authentication (if this option is used, --user option shouldn't include password)",
    ),
    Flag::text("discovery-srv", "", "domain name to query for SRV records describing cluster endpoints")
        .short('d'),
    Flag::text("discovery-srv-name", "", "service name to query when using DNS discovery"),
    // Ours: hidden, so that the list of options is etcdctl's.
    Flag::text("zone", "", "use endpoints of members in this zone while one of them answers").hidden(),
];

/// By heading, and by name under each.
static COMMANDS: &[Command] = &[
    COMPACTION,
    DEL,
    GET,
    LEASE,
    PUT,
    TXN,
    WATCH, //
    ALARM,
    DEFRAG,
    DOWNGRADE,
    ENDPOINT,
    MEMBER,
    MOVE_LEADER,
    SNAPSHOT, //
    ELECT,
    LOCK, //
    AUTH,
    ROLE,
    USER, //
    CHECK,
    COMPLETION,
    HELP,
    MAKE_MIRROR,
    OPTIONS,
    VERSION,
];

/// What may stand on a line of a transaction.
static REQUESTS: Program = Program {
    root: Command { name: "", subcommands: &[GET, PUT, DEL], ..Command::EMPTY },
    globals: &[],
    env_prefix: None,
    env_known: &[],
    globals_hint: "",
};

/// What may stand on a line of an interactive `watch`.
static WATCHES: Program =
    Program { root: WATCH, globals: &[], env_prefix: None, env_known: &[], globals_hint: "" };

fn os(words: &[Vec<u8>]) -> Vec<OsString> {
    words.iter().cloned().map(OsString::from_vec).collect()
}

/// Reads a request within a transaction; `None` when it is none.
pub(crate) fn parse_request(words: &[Vec<u8>]) -> Option<Matches> {
    match REQUESTS.parse(&os(words), []) {
        Ok(Invocation::Run(matches)) if !matches.path.is_empty() => Some(matches),
        _ => None,
    }
}

/// Reads what follows `watch` on an interactive line.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse_watch(words: &[Vec<u8>]) -> Result<Matches, String> {
    match WATCHES.parse(&os(words), []) {
        Ok(Invocation::Run(matches)) => Ok(matches),
        Ok(Invocation::Help(_)) => Err("pflag: help requested".to_owned()),
        Err(error) => Err(error.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sound() {
        PROGRAM.assert_sound();
        REQUESTS.assert_sound();
        WATCHES.assert_sound();
    }

    #[test]
    fn every_command_has_an_example() {
        fn check(command: &Command) {
            assert!(!command.example.is_empty(), "{}", command.name);
            command.subcommands.iter().for_each(check);
        }
        COMMANDS.iter().for_each(check);
    }
}
