//! All commands of the tool: those of etcd's benchmark, with the same names and defaults, and additional
//! ones. Each command has a file with its flags and its function.

mod authenticate;
mod compare;
mod completion;
mod connections;
mod kubernetes;
mod lease_keepalive;
mod leases;
mod mvcc;
mod put;
mod range;
mod responder;
mod stm;
mod txn_mixed;
mod txn_put;
mod watch;
mod watch_get;
mod watch_latency;

use cli::{Command, Failure, FlagRow, Program};

use crate::given;
use crate::session::Session;

/// The function that runs a command, and what the command accepts on its command line besides its flags.
#[derive(Clone, Copy)]
pub struct Run {
    pub(crate) run: fn(&Session) -> Result<(), Failure>,
    /// True if the command takes positional arguments.
    pub(crate) takes_words: bool,
    /// Global flags that this command does not support; giving one of them is an error.
    pub(crate) unused: &'static [FlagRow],
}

impl Run {
    const fn of(run: fn(&Session) -> Result<(), Failure>) -> Run {
        Run { run, takes_words: false, unused: &[] }
    }

    const fn with_words(mut self) -> Run {
        self.takes_words = true;
        self
    }

    const fn without(mut self, unused: &'static [FlagRow]) -> Run {
        self.unused = unused;
        self
    }
}

/// The command-line tool: all its commands and global flags.
pub static PROGRAM: Program<Run> = Program {
    root: Command {
        name: "benchmark",
        usage: "benchmark",
        about: "Loads and measures etcd and Mainstay",
        long: "benchmark is a low-level benchmark tool for etcd3.\nIt uses gRPC directly and does not depend on any etcd \
               client library.\n\nWithout --rate, each client begins an operation when it has the answer to its last one, as \
               in etcd's tool; a server\nthat stalls is then asked less, and its latencies look better than users would \
               find them. With --rate, operations\nbegin at fixed times whatever the server does, and latency counts from \
               the time each was meant to begin.",
        subcommands: &[
            authenticate::AUTHENTICATE,
            compare::COMPARE,
            completion::COMPLETION,
            connections::CONNECTIONS_COMMAND,
            kubernetes::KUBERNETES,
            lease_keepalive::LEASE_KEEPALIVE,
            leases::LEASES,
            mvcc::MVCC,
            put::PUT,
            range::RANGE,
            responder::RESPONDER,
            stm::STM,
            txn_mixed::TXN_MIXED,
            txn_put::TXN_PUT,
            watch::WATCH,
            watch_get::WATCH_GET,
            watch_latency::WATCH_LATENCY,
        ],
        ..Command::EMPTY
    },
    globals: given::GLOBALS,
    env_prefix: None,
    env_known: &[],
    globals_hint: "",
};

#[cfg(test)]
mod tests {
    #[test]
    fn tables_are_sound() {
        super::PROGRAM.assert_sound();
    }
}
