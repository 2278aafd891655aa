//! The commands on keys, watches and leases.

use cli::{Command, Flag};

const KV: &str = "Key-value commands";
pub(super) const GET: Command = Command {
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

pub(super) const PUT: Command = Command {
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

pub(super) const DEL: Command = Command {
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

pub(super) const TXN: Command = Command {
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

pub(super) const COMPACTION: Command = Command {
    name: "compaction",
    usage: "compaction [options] <revision>",
    about: "Compacts the event history in etcd",
    example: "  etcdctl compaction 1234",
    flags: &[Flag::bool("physical", "'true' to wait for compaction to physically remove all old revisions")],
    group: KV,
    ..Command::EMPTY
};

pub(super) const WATCH: Command = Command {
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

pub(super) const LEASE: Command = Command {
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
