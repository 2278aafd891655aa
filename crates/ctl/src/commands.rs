//! The table of commands: names, flags, texts and examples, as etcdctl 3.7 has them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use cli::{Command, Flag, Invocation, Matches, Program};

const KV: &str = "Key-value commands";
const MAINTENANCE: &str = "Cluster maintenance commands";
const CONCURRENCY: &str = "Concurrency commands";
const AUTHENTICATION: &str = "Authentication commands";
const UTILITY: &str = "Utility commands";

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

const GET: Command = Command {
    name: "get",
    usage: "get [options] <key> [range_end]",
    about: "Gets the key or a range of keys",
    example: "  # One key\n  etcdctl get foo\n\n  # The first ten keys under a prefix, newest first\n  \
              etcdctl get --prefix /registry/ --sort-by=MODIFY --order=DESCEND --limit=10\n\n  # How many keys there are\n  \
              etcdctl get --prefix '' --count-only --write-out=fields\n\n  # As it was at revision 1000\n  \
              etcdctl get foo --rev=1000 -w json",
    flags: &[
        Flag::text("consistency", "l", "Linearizable(l) or Serializable(s)"),
        Flag::text("order", "", "Order of results; ASCEND or DESCEND (ASCEND by default)"),
        Flag::text("sort-by", "", "Sort target; CREATE, KEY, MODIFY, VALUE, or VERSION"),
        Flag::int("limit", "0", "Maximum number of results"),
        Flag::bool("prefix", "Get keys with matching prefix"),
        Flag::bool("from-key", "Get keys that are greater than or equal to the given key using byte compare"),
        Flag::int("rev", "0", "Specify the kv revision"),
        Flag::bool("keys-only", "Get only the keys"),
        Flag::bool("count-only", "Get only the count"),
        Flag::bool("print-value-only", "Only write values when using the \"simple\" output format"),
        Flag::int("min-create-rev", "0", "Minimum create revision"),
        Flag::int("max-create-rev", "0", "Maximum create revision"),
        Flag::int("min-mod-rev", "0", "Minimum modification revision"),
        Flag::int("max-mod-rev", "0", "Maximum modification revision"),
        Flag::bool("stream", "Use the RangeStream RPC"),
    ],
    group: KV,
    ..Command::EMPTY
};

const PUT: Command = Command {
    name: "put",
    usage: "put [options] <key> <value> (<value> can also be given from stdin)",
    about: "Puts the given key into the store",
    long: "\nPuts the given key into the store.\n\nWhen <value> begins with '-', <value> is interpreted as a flag.\n\
           Insert '--' for workaround:\n\n$ put <key> -- <value>\n$ put -- <key> <value>\n\n\
           If <value> isn't given as a command line argument and '--ignore-value' is not specified,\n\
           this command tries to read the value from standard input.\n\n\
           If <lease> isn't given as a command line argument and '--ignore-lease' is not specified,\n\
           this command tries to read the value from standard input.\n\n\
           For example,\n$ cat file | put <key>\nwill store the content of the file to <key>.\n",
    example: "  # A key that lives as long as a lease\n  etcdctl put foo bar --lease=1234abcd\n\n  \
              # The value from a file\n  etcdctl put foo < value.bin",
    flags: &[
        Flag::text("lease", "0", "lease ID (in hexadecimal) to attach to the key"),
        Flag::bool("prev-kv", "return the previous key-value pair before modification"),
        Flag::bool("ignore-value", "updates the key using its current value"),
        Flag::bool("ignore-lease", "updates the key using its current lease"),
    ],
    group: KV,
    ..Command::EMPTY
};

const DEL: Command = Command {
    name: "del",
    usage: "del [options] <key> [range_end]",
    about: "Removes the specified key or range of keys [key, range_end)",
    example: "  etcdctl del foo\n\n  # Everything under a prefix, printing what it was\n  \
              etcdctl del --prefix /locks/ --prev-kv\n\n  # From one key up to another\n  \
              etcdctl del --range a c",
    flags: &[
        Flag::bool("prefix", "delete keys with matching prefix"),
        Flag::bool("prev-kv", "return deleted key-value pairs"),
        Flag::bool(
            "from-key",
            "delete keys that are greater than or equal to the given key using byte compare",
        ),
        Flag::bool("range", "delete range of keys"),
    ],
    group: KV,
    ..Command::EMPTY
};

const TXN: Command = Command {
    name: "txn",
    usage: "txn [options]",
    about: "Txn processes all the requests in one transaction",
    long: "Txn reads multiple etcd requests from standard input and applies them as a single atomic transaction.\n\
           A transaction consists of three components:\n1) a list of conditions,\n\
           2) a list of requests to apply if all the conditions are true,\n\
           3) a list of requests to apply if any condition is false.\n\nExample interactive stdin usage:\n---\n\
           etcdctl txn -i\n# compares:\nmod(\"key1\") > \"0\"\n\n# success requests (get, put, delete):\n\
           put key1 \"overwrote-key1\"\n\n# failure requests (get, put, delete):\nput key1 \"created-key1\"\n\
           put key2 \"some extra key\"\n---\n\n\
           Refer to https://github.com/etcd-io/etcd/blob/main/etcdctl/README.md#txn-options.",
    example: "  # Make a key unless it exists\n  \
              printf 'create(\"foo\") = \"0\"\\n\\nput foo bar\\n\\nget foo\\n\\n' | etcdctl txn",
    flags: &[Flag::bool("interactive", "Input transaction in interactive mode").short('i')],
    group: KV,
    ..Command::EMPTY
};

const COMPACTION: Command = Command {
    name: "compaction",
    usage: "compaction [options] <revision>",
    about: "Compacts the event history in etcd",
    example: "  etcdctl compaction 1234",
    flags: &[Flag::bool("physical", "'true' to wait for compaction to physically remove all old revisions")],
    group: KV,
    ..Command::EMPTY
};

const WATCH: Command = Command {
    name: "watch",
    usage: "watch [options] [key or prefix] [range_end] [--] [exec-command arg1 arg2 ...]",
    about: "Watches events stream on keys or prefixes",
    example: "  etcdctl watch --prefix /config/ --rev=1000\n\n  # A program for each event\n  \
              etcdctl watch foo -- sh -c 'echo $ETCD_WATCH_EVENT_TYPE $ETCD_WATCH_VALUE'\n\n  \
              # Several watches; `progress` asks how far they are\n  \
              printf 'watch foo\\nwatch --prefix bar\\n' | etcdctl watch -i",
    flags: &[
        Flag::bool("interactive", "Interactive mode").short('i'),
        Flag::bool("prefix", "Watch on a prefix if prefix is set"),
        Flag::int("rev", "0", "Revision to start watching"),
        Flag::bool("prev-kv", "get the previous key-value pair before the event happens"),
        Flag::bool("progress-notify", "get periodic watch progress notification from server"),
    ],
    group: KV,
    ..Command::EMPTY
};

const LEASE: Command = Command {
    name: "lease",
    usage: "lease <subcommand>",
    about: "Lease related commands. Use `etcdctl lease --help` to see subcommands",
    long: "Lease related commands",
    example: "  etcdctl lease grant 60",
    subcommands: &[
        Command {
            name: "grant",
            usage: "grant <ttl>",
            about: "Creates leases",
            example: "  # For 60 seconds\n  etcdctl lease grant 60",
            ..Command::EMPTY
        },
        Command {
            name: "keep-alive",
            usage: "keep-alive [options] <leaseID>",
            about: "Keeps leases alive (renew)",
            example: "  etcdctl lease keep-alive 32695410dcc0ca06",
            flags: &[Flag::bool(
                "once",
                "Resets the keep-alive time to its original value and cobrautl.Exits immediately",
            )],
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "List all active leases",
            example: "  etcdctl lease list",
            ..Command::EMPTY
        },
        Command {
            name: "revoke",
            usage: "revoke <leaseID>",
            about: "Revokes leases",
            example: "  etcdctl lease revoke 32695410dcc0ca06",
            ..Command::EMPTY
        },
        Command {
            name: "timetolive",
            usage: "timetolive <leaseID> [options]",
            about: "Get lease information",
            example: "  etcdctl lease timetolive 32695410dcc0ca06 --keys",
            flags: &[Flag::bool("keys", "Get keys attached to this lease")],
            ..Command::EMPTY
        },
    ],
    group: KV,
    ..Command::EMPTY
};

const MEMBER: Command = Command {
    name: "member",
    usage: "member <subcommand>",
    about: "Membership related commands. Use `etcdctl member --help` to see subcommands",
    long: "Membership related commands",
    example: "  etcdctl member list -w table",
    subcommands: &[
        Command {
            name: "add",
            usage: "add <memberName> [options]",
            about: "Adds a member into the cluster",
            example: "  # As a learner first: it catches up before it votes\n  \
                      etcdctl member add m4 --peer-urls=https://10.0.0.4:2380 --learner",
            flags: &[
                Flag::text("peer-urls", "", "comma separated peer URLs for the new member."),
                Flag::bool("learner", "indicates if the new member is raft learner"),
            ],
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all members in the cluster",
            long: "When --write-out is set to simple, this command prints out comma-separated member lists for each \
                   endpoint.\nThe items in the lists are ID, Status, Name, Peer Addrs, Client Addrs, Is Learner.\n",
            example: "  etcdctl member list -w table",
            flags: &[Flag::text("consistency", "l", "Linearizable(l) or Serializable(s)")],
            ..Command::EMPTY
        },
        Command {
            name: "promote",
            usage: "promote <memberID>",
            about: "Promotes a non-voting member in the cluster",
            long: "Promotes a non-voting learner member to a voting one in the cluster.\n",
            example: "  etcdctl member promote 9fbd8925a5a7ae4c",
            ..Command::EMPTY
        },
        Command {
            name: "remove",
            usage: "remove <memberID>",
            about: "Removes a member from the cluster",
            example: "  etcdctl member remove 9fbd8925a5a7ae4c",
            ..Command::EMPTY
        },
        Command {
            name: "update",
            usage: "update <memberID> [options]",
            about: "Updates a member in the cluster",
            example: "  etcdctl member update 9fbd8925a5a7ae4c --peer-urls=https://10.0.0.5:2380",
            flags: &[Flag::text("peer-urls", "", "comma separated peer URLs for the updated member.")],
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};

const CLUSTER: Flag = Flag::bool("cluster", "use all endpoints from the cluster member list");

const ENDPOINT: Command = Command {
    name: "endpoint",
    usage: "endpoint <subcommand>",
    about: "Endpoint related commands. Use `etcdctl endpoint --help` to see subcommands",
    long: "Endpoint related commands",
    example: "  etcdctl endpoint status --cluster -w table",
    flags: &[CLUSTER],
    subcommands: &[
        Command {
            name: "hashkv",
            usage: "hashkv",
            about: "Prints the KV history hash for each endpoint in --endpoints",
            example: "  # Equal numbers: the members hold the same history\n  etcdctl endpoint hashkv --cluster",
            flags: &[CLUSTER, Flag::int("rev", "0", "maximum revision to hash (default: latest revision)")],
            ..Command::EMPTY
        },
        Command {
            name: "health",
            usage: "health",
            about: "Checks the healthiness of endpoints specified in `--endpoints` flag",
            example: "  etcdctl endpoint health --cluster",
            flags: &[CLUSTER],
            ..Command::EMPTY
        },
        Command {
            name: "status",
            usage: "status",
            about: "Prints out the status of endpoints specified in `--endpoints` flag",
            long: "When --write-out is set to simple, this command prints out comma-separated status lists for each \
                   endpoint.\nThe items in the lists are endpoint, ID, version, db size, is leader, is learner, raft \
                   term, raft index, raft applied index, errors.\n",
            example: "  etcdctl endpoint status --cluster -w table",
            flags: &[CLUSTER],
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};

const ALARM: Command = Command {
    name: "alarm",
    usage: "alarm <subcommand>",
    about: "Alarm related commands. Use `etcdctl alarm --help` to see subcommands",
    long: "Alarm related commands",
    example: "  etcdctl alarm list",
    subcommands: &[
        Command {
            name: "disarm",
            usage: "disarm",
            about: "Disarms all alarms",
            example: "  # After making room\n  etcdctl alarm disarm",
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all alarms",
            example: "  etcdctl alarm list",
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};

const DEFRAG: Command = Command {
    name: "defrag",
    usage: "defrag",
    about: "Defragments the storage of the etcd members with given endpoints",
    example: "  etcdctl defrag --cluster",
    flags: &[CLUSTER],
    group: MAINTENANCE,
    ..Command::EMPTY
};

const SNAPSHOT_EXAMPLE: &str = "  # Save snapshot to a given file\n  etcdctl snapshot save /backup/etcd-snapshot.db\n  \n  \
# Get snapshot from given address and save it to file\n  \
etcdctl snapshot save --endpoints=127.0.0.1:3000 /backup/etcd-snapshot.db\n  \n  \
# Get snapshot from given address with certificates\n  \
etcdctl --endpoints=https://127.0.0.1:2379 --cacert=/etc/etcd/ca.crt --cert=/etc/etcd/etcd.crt \
--key=/etc/etcd/etcd.key snapshot save /backup/etcd-snapshot.db\n  \n  \
# Get snapshot with certain user and password\n  \
etcdctl --user=root --password=password123 snapshot save /backup/etcd-snapshot.db\n  \n  \
# Get snapshot from given address with timeout\n  \
etcdctl --endpoints=https://127.0.0.1:2379 --dial-timeout=20s snapshot save /backup/etcd-snapshot.db\n  \n  \
# Save snapshot with desirable time format\n  \
etcdctl snapshot save /mnt/backup/etcd/backup_$(date +%Y%m%d_%H%M%S).db";

const SNAPSHOT: Command = Command {
    name: "snapshot",
    usage: "snapshot <subcommand>",
    about: "Manages etcd node snapshots",
    example: SNAPSHOT_EXAMPLE,
    subcommands: &[Command {
        name: "save",
        usage: "save <filename>",
        about: "Stores an etcd node backend snapshot to a given file",
        example: SNAPSHOT_EXAMPLE,
        ..Command::EMPTY
    }],
    group: MAINTENANCE,
    ..Command::EMPTY
};

const MOVE_LEADER: Command = Command {
    name: "move-leader",
    usage: "move-leader <transferee-member-id>",
    about: "Transfers leadership to another etcd cluster member.",
    example: "  etcdctl --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379 move-leader c89feb932daef420",
    group: MAINTENANCE,
    ..Command::EMPTY
};

const DOWNGRADE: Command = Command {
    name: "downgrade",
    usage: "downgrade <TARGET_VERSION>",
    about: "Downgrade related commands. Use `etcdctl downgrade --help` to see subcommands",
    long: "Downgrade related commands",
    example: "  etcdctl downgrade validate 3.6",
    subcommands: &[
        Command {
            name: "cancel",
            usage: "cancel",
            about: "Cancel the ongoing downgrade action to cluster",
            example: "  etcdctl downgrade cancel",
            ..Command::EMPTY
        },
        Command {
            name: "enable",
            usage: "enable <TARGET_VERSION>",
            about: "Start a downgrade action to cluster",
            example: "  etcdctl downgrade enable 3.6",
            ..Command::EMPTY
        },
        Command {
            name: "validate",
            usage: "validate <TARGET_VERSION>",
            about: "Validate downgrade capability before starting downgrade",
            example: "  etcdctl downgrade validate 3.6",
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};

const LOCK: Command = Command {
    name: "lock",
    usage: "lock <lockname> [exec-command arg1 arg2 ...]",
    about: "Acquires a named lock",
    example: "  # Hold it until interrupted\n  etcdctl lock backup\n\n  # Hold it while a program runs\n  \
              etcdctl lock backup -- sh -c 'echo $ETCD_LOCK_KEY'",
    flags: &[Flag::int("ttl", "10", "timeout for session")],
    group: CONCURRENCY,
    ..Command::EMPTY
};

const ELECT: Command = Command {
    name: "elect",
    usage: "elect <election-name> [proposal]",
    about: "Observes and participates in leader election",
    example: "  # Lead until interrupted\n  etcdctl elect scheduler host-1\n\n  # See who leads\n  \
              etcdctl elect -l scheduler",
    flags: &[Flag::bool("listen", "observation mode").short('l')],
    group: CONCURRENCY,
    ..Command::EMPTY
};

const AUTH: Command = Command {
    name: "auth",
    usage: "auth <enable or disable>",
    about: "Enable or disable authentication. Use `etcdctl auth --help` to see subcommands",
    long: "Enable or disable authentication",
    example: "  etcdctl user add root && etcdctl auth enable",
    subcommands: &[
        Command {
            name: "disable",
            usage: "disable",
            about: "Disables authentication",
            example: "  etcdctl --user=root auth disable",
            ..Command::EMPTY
        },
        Command {
            name: "enable",
            usage: "enable",
            about: "Enables authentication",
            example: "  etcdctl user add root && etcdctl auth enable",
            ..Command::EMPTY
        },
        Command {
            name: "status",
            usage: "status",
            about: "Returns authentication status",
            example: "  etcdctl auth status",
            ..Command::EMPTY
        },
    ],
    group: AUTHENTICATION,
    ..Command::EMPTY
};

const USER: Command = Command {
    name: "user",
    usage: "user <subcommand>",
    about: "User related commands. Use `etcdctl user --help` to see subcommands",
    long: "User related commands",
    example: "  etcdctl user add alice",
    subcommands: &[
        Command {
            name: "add",
            usage: "add <user name or user:password> [options]",
            about: "Adds a new user",
            example: "  # Asks for the password\n  etcdctl user add alice\n\n  # Reads it\n  \
                      etcdctl user add alice --interactive=false < password.txt",
            flags: &[
                Flag::on("interactive", "Read password from stdin instead of interactive terminal"),
                Flag::text("new-user-password", "", "Supply password from the command line flag"),
                Flag::bool("no-password", "Create a user without password (CN based auth only)"),
            ],
            ..Command::EMPTY
        },
        Command {
            name: "delete",
            usage: "delete <user name>",
            about: "Deletes a user",
            example: "  etcdctl user delete alice",
            ..Command::EMPTY
        },
        Command {
            name: "get",
            usage: "get <user name> [options]",
            about: "Gets detailed information of a user",
            example: "  etcdctl user get alice --detail",
            flags: &[Flag::bool("detail", "Show permissions of roles granted to the user")],
            ..Command::EMPTY
        },
        Command {
            name: "grant-role",
            usage: "grant-role <user name> <role name>",
            about: "Grants a role to a user",
            example: "  etcdctl user grant-role alice readers",
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all users",
            example: "  etcdctl user list",
            ..Command::EMPTY
        },
        Command {
            name: "passwd",
            usage: "passwd <user name> [options]",
            about: "Changes password of user",
            example: "  etcdctl user passwd alice",
            flags: &[Flag::on(
                "interactive",
                "If true, read password from stdin instead of interactive terminal",
            )],
            ..Command::EMPTY
        },
        Command {
            name: "revoke-role",
            usage: "revoke-role <user name> <role name>",
            about: "Revokes a role from a user",
            example: "  etcdctl user revoke-role alice readers",
            ..Command::EMPTY
        },
    ],
    group: AUTHENTICATION,
    ..Command::EMPTY
};

const ROLE: Command = Command {
    name: "role",
    usage: "role <subcommand>",
    about: "Role related commands. Use `etcdctl role --help` to see subcommands",
    long: "Role related commands",
    example: "  etcdctl role add readers && etcdctl role grant-permission --prefix readers read /public/",
    subcommands: &[
        Command {
            name: "add",
            usage: "add <role name>",
            about: "Adds a new role",
            example: "  etcdctl role add readers",
            ..Command::EMPTY
        },
        Command {
            name: "delete",
            usage: "delete <role name>",
            about: "Deletes a role",
            example: "  etcdctl role delete readers",
            ..Command::EMPTY
        },
        Command {
            name: "get",
            usage: "get <role name>",
            about: "Gets detailed information of a role",
            example: "  etcdctl role get readers",
            ..Command::EMPTY
        },
        Command {
            name: "grant-permission",
            usage: "grant-permission [options] <role name> <permission type> <key> [endkey]",
            about: "Grants a key to a role",
            example: "  etcdctl role grant-permission --prefix readers read /public/",
            flags: &[
                Flag::bool("prefix", "grant a prefix permission"),
                Flag::bool(
                    "from-key",
                    "grant a permission of keys that are greater than or equal to the given key using byte compare",
                ),
            ],
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all roles",
            example: "  etcdctl role list",
            ..Command::EMPTY
        },
        Command {
            name: "revoke-permission",
            usage: "revoke-permission <role name> <key> [endkey]",
            about: "Revokes a key from a role",
            example: "  etcdctl role revoke-permission --prefix readers /public/",
            flags: &[
                Flag::bool("prefix", "revoke a prefix permission"),
                Flag::bool(
                    "from-key",
                    "revoke a permission of keys that are greater than or equal to the given key using byte compare",
                ),
            ],
            ..Command::EMPTY
        },
    ],
    group: AUTHENTICATION,
    ..Command::EMPTY
};

const MAKE_MIRROR: Command = Command {
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

const CHECK: Command = Command {
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

const COMPLETION: Command = Command {
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

const HELP: Command = Command {
    name: "help",
    usage: "help [command]",
    about: "Help about any command",
    long: "Help provides help for any command in the application.\n\
           Simply type etcdctl help [path to command] for full details.",
    example: "  etcdctl help member add",
    group: UTILITY,
    ..Command::EMPTY
};

const OPTIONS: Command = Command {
    name: "options",
    usage: "options",
    about: "Show the global command-line flags",
    example: "  # Each can come from the environment, too\n  ETCDCTL_ENDPOINTS=10.0.0.1:2379 etcdctl get foo",
    group: UTILITY,
    ..Command::EMPTY
};

const VERSION: Command = Command {
    name: "version",
    usage: "version",
    about: "Prints the version of etcdctl",
    example: "  etcdctl version",
    group: UTILITY,
    ..Command::EMPTY
};

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
