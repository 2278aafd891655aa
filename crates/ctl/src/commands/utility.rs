//! The commands that are of use beside the others.

use cli::{Command, Flag};

const UTILITY: &str = "Utility commands";

pub(super) const MAKE_MIRROR: Command = Command {
    name: "make-mirror",
    usage: "make-mirror [options] <destination>",
    about: "Makes a mirror at the destination etcd cluster",
    example: "  etcdctl make-mirror 10.1.0.1:2379 --prefix /config/\n\n  \
              # Goes on where it stopped, after a crash or a restart\n  \
              etcdctl make-mirror 10.1.0.1:2379 --prefix /config/ --progress-key /mirror/config",
    flags: &[
        Flag::text("prefix", "", "Key-value prefix to mirror"),
        Flag::int("rev", "0", "Specify the kv revision to start to mirror"),
        Flag::uint(
            "max-txn-ops",
            "128",
            "Maximum number of operations permitted in a transaction during syncing updates.",
        ),
        Flag::text(
            "dest-prefix",
            "",
            "destination prefix to mirror a prefix to a different prefix in the destination cluster",
        ),
        Flag::bool("no-dest-prefix", "mirror key-values to the root of the destination cluster"),
        Flag::text(
            "dest-cert",
            "",
            "Identify secure client using this TLS certificate file for the destination cluster",
        ),
        Flag::text("dest-key", "", "Identify secure client using this TLS key file"),
        Flag::text(
            "dest-cacert",
            "",
            "Verify certificates of TLS enabled secure servers using this CA bundle",
        ),
        Flag::on("dest-insecure-transport", "Disable transport security for client connections"),
        Flag::text(
            "dest-user",
            "",
            "Destination username[:password] for authentication (prompt if password is not supplied)",
        ),
        Flag::text(
            "dest-password",
            "",
            "Destination password for authentication (if this option is used, --user option shouldn't include password)",
        ),
        Flag::text(
            "progress-key",
            "",
            "key in the destination cluster that keeps how far the mirror is, to go on from there (not in etcd's etcdctl)",
        ),
    ],
    group: UTILITY,
    ..Command::EMPTY
};

const AUTO_COMPACT: Flag =
    Flag::bool("auto-compact", "Compact storage with last revision after test is finished.");
const AUTO_DEFRAG: Flag = Flag::bool("auto-defrag", "Defragment storage after test is finished.");

pub(super) const CHECK: Command = Command {
    name: "check",
    usage: "check <subcommand>",
    about: "commands for checking properties of the etcd cluster. Use `etcdctl check --help` to see subcommands",
    long: "commands for checking properties of the etcd cluster",
    example: "  etcdctl check perf --load=m",
    subcommands: &[
        Command {
            name: "datascale",
            usage: "datascale [options]",
            about: "Check the memory usage of holding data for different workloads on a given server endpoint.",
            long: "If no endpoint is provided, localhost will be used. If multiple endpoints are provided, first endpoint will be used.",
            example: "  etcdctl check datascale --load=s --auto-compact",
            flags: &[
                Flag::text(
                    "load",
                    "s",
                    "The datascale check's workload model. Accepted workloads: s(small), m(medium), l(large), xl(xLarge)",
                ),
                Flag::text(
                    "prefix",
                    "/etcdctl-check-datascale/",
                    "The prefix for writing the datascale check's keys.",
                ),
                AUTO_COMPACT,
                AUTO_DEFRAG,
            ],
            ..Command::EMPTY
        },
        Command {
            name: "perf",
            usage: "perf [options]",
            about: "Check the performance of the etcd cluster",
            example: "  # 1000 writes per second by 200 clients for a minute\n  etcdctl check perf --load=m",
            flags: &[
                Flag::text(
                    "load",
                    "s",
                    "The performance check's workload model. Accepted workloads: s(small), m(medium), l(large), xl(xLarge). Different workload models use different configurations in terms of number of clients and expected throughput.",
                ),
                Flag::text(
                    "prefix",
                    "/etcdctl-check-perf/",
                    "The prefix for writing the performance check's keys.",
                ),
                AUTO_COMPACT,
                AUTO_DEFRAG,
            ],
            ..Command::EMPTY
        },
    ],
    group: UTILITY,
    ..Command::EMPTY
};

pub(super) const COMPLETION: Command = Command {
    name: "completion",
    usage: "completion [bash|zsh|fish]",
    about: "Generate completion script",
    example: "  # For this shell\n  source <(etcdctl completion bash)\n\n  # For all to come\n  \
              etcdctl completion bash > /etc/bash_completion.d/etcdctl\n  \
              etcdctl completion zsh > \"${fpath[1]}/_etcdctl\"\n  \
              etcdctl completion fish > ~/.config/fish/completions/etcdctl.fish",
    group: UTILITY,
    ..Command::EMPTY
};

pub(super) const HELP: Command = Command {
    name: "help",
    usage: "help [command]",
    about: "Help about any command",
    long: "Help provides help for any command in the application.\n\
           Simply type etcdctl help [path to command] for full details.",
    example: "  etcdctl help member add",
    group: UTILITY,
    ..Command::EMPTY
};

pub(super) const OPTIONS: Command = Command {
    name: "options",
    usage: "options",
    about: "Show the global command-line flags",
    example: "  # Each can come from the environment, too\n  ETCDCTL_ENDPOINTS=10.0.0.1:2379 etcdctl get foo",
    group: UTILITY,
    ..Command::EMPTY
};

pub(super) const VERSION: Command = Command {
    name: "version",
    usage: "version",
    about: "Prints the version of etcdctl",
    example: "  etcdctl version",
    group: UTILITY,
    ..Command::EMPTY
};
