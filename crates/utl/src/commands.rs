//! Lists the commands of the tool for the parser. Each command is defined in its own file, with its flags and
//! the function that runs it.

use cli::{Command, Program};

use crate::session::{Run, TIMEOUT, WRITE_OUT};
use crate::{completion, defrag, drop_etcd, export, hash_kv, import, migrate, restore, status, version};

/// The tool `etcdutl` with all its commands.
pub const PROGRAM: Program<Run> = Program {
    root: Command {
        name: "etcdutl",
        about: "An administrative command line tool for etcd3.",
        subcommands: &[
            completion::COMPLETION,
            defrag::DEFRAG,
            drop_etcd::DROP_ETCD,
            export::EXPORT,
            hash_kv::HASHKV,
            import::IMPORT,
            migrate::MIGRATE,
            SNAPSHOT,
            version::VERSION,
        ],
        ..Command::EMPTY
    },
    globals: &[TIMEOUT.row(), WRITE_OUT.row()],
    env_prefix: None,
    env_known: &[],
    globals_hint: "",
};

const SNAPSHOT: Command<Run> = Command {
    name: "snapshot",
    usage: "snapshot <subcommand>",
    about: "Manages etcd node snapshots",
    subcommands: &[restore::RESTORE, status::STATUS],
    ..Command::EMPTY
};
