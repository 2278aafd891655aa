//! The table of commands and flags, and who carries them out.

use cli::{Command, Flag, Program};

use crate::{Refusal, Session, defrag, export, hash_kv, import, migrate, restore, status};

/// The tool.
pub const PROGRAM: Program = Program {
    root: Command {
        name: "etcdutl",
        about: "An administrative command line tool for etcd3.",
        subcommands: &[COMPLETION, DEFRAG, EXPORT, HASHKV, IMPORT, MIGRATE, SNAPSHOT, VERSION],
        ..Command::EMPTY
    },
    globals: &[
        Flag::duration(
            "timeout",
            "10s",
            "time to wait to obtain a file lock on db file, 0 to block indefinitely",
        ),
        Flag::text("write-out", "simple", "set the output format (fields, json, protobuf, simple, table)")
            .short('w'),
    ],
    env_prefix: None,
    env_known: &[],
    globals_hint: "",
};

const SNAPSHOT: Command = Command {
    name: "snapshot",
    usage: "snapshot <subcommand>",
    about: "Manages etcd node snapshots",
    subcommands: &[RESTORE, STATUS],
    ..Command::EMPTY
};

const STATUS: Command = Command {
    name: "status",
    usage: "status <filename>",
    about: "Gets backend snapshot status of a given file",
    example: "  etcdutl snapshot status backup.db -w table",
    ..Command::EMPTY
};

const RESTORE: Command = Command {
    name: "restore",
    usage: "restore <filename> --data-dir {output dir} [options]",
    about: "Restores an etcd member snapshot to an etcd directory",
    example: "  etcdutl snapshot restore backup.db --data-dir new.etcd && mainstay --data-dir new.etcd
  etcdutl snapshot restore backup.db --data-dir m1 --name m1 --initial-cluster \\
      m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380 --initial-advertise-peer-urls http://10.0.0.1:2380
  etcdutl snapshot restore backup.db --data-dir for.etcd --format etcd",
    flags: &[
        Flag::uint("bump-revision", "0", "How much to increase the latest revision after restore"),
        Flag::text("data-dir", "", "Path to the output data directory"),
        Flag::text("format", "mainstay", "Which program will serve the data directory (mainstay, etcd)"),
        Flag::text(
            "initial-advertise-peer-urls",
            "http://localhost:2380",
            "List of this member's peer URLs to advertise to the rest of the cluster",
        ),
        Flag::text(
            "initial-cluster",
            "default=http://localhost:2380",
            "Initial cluster configuration for restore bootstrap",
        ),
        Flag::text(
            "initial-cluster-token",
            "etcd-cluster",
            "Initial cluster token for the etcd cluster during restore bootstrap",
        ),
        Flag::uint(
            "initial-memory-map-size",
            "10737418240",
            "Initial memory map size of the database in bytes (no effect: it is read and written piece by piece, not mapped)",
        ),
        Flag::bool(
            "mark-compacted",
            "Mark the latest revision after restore as the point of scheduled compaction (required if --bump-revision > 0, disallowed otherwise)",
        ),
        Flag::text("name", "default", "Human-readable name for this member"),
        Flag::bool(
            "skip-hash-check",
            "Ignore snapshot integrity hash value (required if copied from data directory)",
        ),
        Flag::text(
            "wal-dir",
            "",
            "Path to the WAL directory (use --data-dir if none given; only with --format etcd)",
        ),
        Flag::bool(
            "without-users",
            "Leave out users, roles and authentication, which this version of Mainstay does not have: everybody may read and write then (only with --format mainstay)",
        ),
    ],
    ..Command::EMPTY
};

const HASHKV: Command = Command {
    name: "hashkv",
    usage: "hashkv <filename>",
    about: "Prints the KV history hash of a given file",
    example: "  etcdutl hashkv backup.db --rev 1000",
    flags: &[Flag::int("rev", "0", "maximum revision to hash (default: latest revision)")],
    ..Command::EMPTY
};

const DEFRAG: Command = Command {
    name: "defrag",
    usage: "defrag",
    about: "Defragments the storage of the etcd",
    example: "  etcdutl defrag --data-dir default.etcd",
    flags: &[Flag::text("data-dir", "", "Required. Defragments a data directory not in use by etcd.")],
    ..Command::EMPTY
};

const MIGRATE: Command = Command {
    name: "migrate",
    usage: "migrate",
    about: "Migrates schema of etcd data dir files to make them compatible with different etcd version",
    example: "  etcdutl migrate --data-dir default.etcd --target-version 3.6",
    flags: &[
        Flag::text("data-dir", "", "Path to the etcd data dir"),
        Flag::bool(
            "force",
            "Ignore migration failure and forcefully override storage version. Not recommended.",
        ),
        Flag::text(
            "target-version",
            "",
            "Target etcd version to migrate contents of data dir. Minimal value 3.5. Format \"X.Y\" for example 3.6.",
        ),
    ],
    ..Command::EMPTY
};

const IMPORT: Command = Command {
    name: "import",
    usage: "import --data-dir {etcd data dir} --to {output dir} [options]",
    about: "Makes a data directory for Mainstay of one of etcd 3.4 to 3.7, with the same member and cluster",
    long: "Makes a data directory for Mainstay of one of etcd 3.4 to 3.7: its database and the log behind it.

Member, cluster, term and index stay, so the member goes on where etcd stopped; Mainstay is started with the flags that
etcd had and the new --data-dir. Of a cluster with several members, stop all, import each, and start all: members of
both kinds in one cluster are not supported. What is read is not changed, and may be mounted read-only.
",
    example: "  etcdutl import --data-dir default.etcd --to default.mainstay && mainstay --data-dir default.mainstay",
    flags: &[
        Flag::text("data-dir", "", "Required. Path to the etcd data dir, not in use by etcd"),
        Flag::text("to", "", "Required. Path to the output data directory, which must not exist or be empty"),
        Flag::text("wal-dir", "", "Path to the WAL directory, if etcd was given one"),
        Flag::bool("without-old-store", "Leave out keys of the old store (API version 2), which neither Mainstay nor etcd from 3.6 on has"),
        Flag::bool("without-users", "Leave out users, roles and authentication, which this version of Mainstay does not have: everybody may read and write then"),
    ],
    ..Command::EMPTY
};

const EXPORT: Command = Command {
    name: "export",
    usage: "export --data-dir {Mainstay data dir} --to {output dir} [options]",
    about: "Makes a data directory for etcd 3.5 to 3.7 of one of Mainstay, with the same member and cluster",
    long: "Makes a data directory for etcd 3.5 to 3.7 of that of a stopped member, which has to be the only one with a vote.

Of a cluster with several members, save a snapshot instead (etcdctl snapshot save) and restore it for each new member
(etcdutl snapshot restore --format etcd).
",
    example: "  etcdutl export --data-dir default.mainstay --to default.etcd && etcd --data-dir default.etcd",
    flags: &[
        Flag::text("data-dir", "", "Required. Path to the data directory, not in use"),
        Flag::text("release", "3.7", "Which etcd will serve the output (3.5, 3.6, 3.7)"),
        Flag::text("to", "", "Required. Path to the output data directory, which must not exist or be empty"),
    ],
    ..Command::EMPTY
};

const VERSION: Command =
    Command { name: "version", usage: "version", about: "Prints the version of etcdutl", ..Command::EMPTY };

const COMPLETION: Command = Command {
    name: "completion",
    usage: "completion [bash|zsh|fish]",
    about: "Generate completion script",
    example: "  source <(etcdutl completion bash)
  etcdutl completion zsh > \"${fpath[1]}/_etcdutl\"
  etcdutl completion fish | source",
    ..Command::EMPTY
};

/// Carries out what was asked for.
pub(crate) fn run(session: &mut Session<'_>) -> Result<(), Refusal> {
    match session.matches.path.as_slice() {
        ["snapshot", "status"] => status::run(session),
        ["snapshot", "restore"] => restore::run(session),
        ["hashkv"] => hash_kv::run(session),
        ["defrag"] => defrag::run(session),
        ["migrate"] => migrate::run(session),
        ["import"] => import::run(session),
        ["export"] => export::run(session),
        ["version"] => {
            let (version, api) = (api::API_VERSION, minor(api::API_VERSION));
            session.print(&format!("etcdutl version: {version}\nAPI version: {api}\n"))
        }
        ["completion"] => completion(session),
        path => session.print(&PROGRAM.usage(path)),
    }
}

/// `3.7` of `3.7.1`.
fn minor(version: &str) -> &str {
    version.rsplit_once('.').map_or(version, |(minor, _)| minor)
}

fn completion(session: &mut Session<'_>) -> Result<(), Refusal> {
    one_arg(session)?;
    let shell = session.matches.arg_text(0).unwrap_or_default();
    let script = match shell.as_str() {
        "bash" => cli::completion::bash(&PROGRAM, "etcdutl"),
        "zsh" => cli::completion::zsh(&PROGRAM, "etcdutl"),
        "fish" => cli::completion::fish(&PROGRAM, "etcdutl"),
        other => {
            let other = cli::go::quote(other);
            return Err(usage(session, &format!("invalid argument {other} for \"etcdutl completion\"")));
        }
    };
    session.print(&script)
}

/// What cobra says of a command line: the error, the usage and, by whoever called, the error again.
pub(crate) fn usage(session: &mut Session<'_>, message: &str) -> Refusal {
    session.notices.plain(&format!("Error: {message}\n{}\n", PROGRAM.usage(&session.matches.path)));
    Refusal::failed(message)
}

/// The only argument.
pub(crate) fn one_arg(session: &mut Session<'_>) -> Result<std::path::PathBuf, Refusal> {
    use std::os::unix::ffi::OsStringExt as _;
    match session.matches.args.as_slice() {
        [only] => Ok(std::ffi::OsString::from_vec(only.clone()).into()),
        args => {
            let message = format!("accepts 1 arg(s), received {}", args.len());
            Err(usage(session, &message))
        }
    }
}

/// Refuses unless these flags were given.
pub(crate) fn required(session: &mut Session<'_>, names: &[&str]) -> Result<(), Refusal> {
    let missing: Vec<String> =
        names.iter().filter(|name| !session.matches.is_set(name)).map(cli::go::quote).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("required flag(s) {} not set", missing.join(", "));
    Err(usage(session, &message))
}
