//! The commands and their flags: etcd's benchmark's, with the same names and defaults, and ours.

use cli::{Command, Flag, Program};

const ENDPOINTS: Flag = Flag::list("endpoints", "127.0.0.1:2379", "gRPC endpoints");

/// Flags of every command.
static GLOBALS: &[Flag] = &[
    Flag::duration(
        "auto-sync-interval",
        "0s",
        "AutoSyncInterval is the interval to update endpoints with its latest members; only 0s: the endpoints of a \
         measurement stay what they are",
    ),
    Flag::text("cacert", "", "verify certificates of HTTPS-enabled servers using this CA bundle"),
    Flag::text("cert", "", "identify HTTPS client using this SSL certificate file"),
    Flag::uint("clients", "1", "Total number of gRPC clients"),
    Flag::uint("conns", "1", "Total number of gRPC connections"),
    Flag::duration("dial-timeout", "0s", "dial timeout for client connections"),
    ENDPOINTS,
    Flag::bool("insecure-skip-tls-verify", "skip server certificate verification"),
    Flag::text("key", "", "identify HTTPS client using this SSL key file"),
    Flag::bool("precise", "use full floating point precision"),
    Flag::bool("report-perfdash", "Generate benchmark report in perfdash format"),
    Flag::bool("sample", "'true' to sample requests for every second"),
    Flag::text("user", "", "provide username[:password] and prompt if password is not supplied."),
    Flag::text("csv", "", "write the figures of each run to this `file`"),
    Flag::text("html", "", "write a report with plots, one self-contained page, to this `file`"),
    Flag::text("json", "", "write all results to this `file` ('-': standard output, instead of the text)"),
    Flag::uint(
        "pid",
        "0",
        "process of the server, to measure what it uses (0: found by the endpoint's port)",
    ),
];

const DURATION: Flag =
    Flag::duration("duration", "0s", "Begin operations for so long, instead of a total number of them");
const REPEAT: Flag = Flag::uint("repeat", "1", "Measure so many times, and give the medians");
const SCHEDULE: Flag = Flag::text(
    "schedule",
    "open",
    "With --rate: open (operations begin at fixed times, and latency counts from the time each was meant to begin) or \
     paced (as etcd's tool: a client that waits for the server begins nothing meanwhile)",
);
const THREADS: Flag = Flag::uint("threads", "1", "Threads that generate the load");
const WARMUP: Flag = Flag::duration("warmup", "0s", "Run the load for so long before it is measured");

const fn rate(help: &'static str) -> Flag {
    Flag::int("rate", "0", help)
}
const fn total(help: &'static str) -> Flag {
    Flag::int("total", "10000", help)
}
const KEY_SPACE: Flag = Flag::int("key-space-size", "1", "Maximum possible keys");
const SEQUENTIAL: Flag = Flag::bool("sequential-keys", "Use sequential keys");
const CONSISTENCY: Flag = Flag::text("consistency", "l", "Linearizable(l) or Serializable(s)");

static PUT: &[Flag] = &[
    Flag::bool("check-hashkv", "'true' to check hashkv"),
    Flag::int(
        "compact-index-delta",
        "1000",
        "Delta between current revision and compact revision (e.g. current revision 10000, compact at 9000)",
    ),
    Flag::duration(
        "compact-interval",
        "0s",
        "Interval to compact database (do not duplicate this with etcd's 'auto-compaction-retention' flag) (e.g. \
         --compact-interval=5m compacts every 5-minute)",
    ),
    Flag::int("key-size", "8", "Key size of put request"),
    KEY_SPACE,
    rate("Maximum puts per second (0 is no limit)"),
    SEQUENTIAL,
    total("Total number of put requests"),
    Flag::int("val-size", "8", "Value size of put request"),
    DURATION,
    REPEAT,
    SCHEDULE,
    THREADS,
    WARMUP,
];

static RANGE: &[Flag] = &[
    CONSISTENCY,
    Flag::bool("count-only", "Only returns the count of keys"),
    Flag::bool("keys-only", "Only returns the keys"),
    Flag::int("limit", "0", "Maximum number of results to return from range request (0 is no limit)"),
    Flag::bool("paginate", "Use paginated unary range with 10k-key pages"),
    Flag::bool("prefix", "Range over all keys with the given key as prefix"),
    rate("Maximum range requests per second (0 is no limit)"),
    Flag::bool("stream", "Use RangeStream instead of unary Range"),
    total("Total number of range requests"),
    DURATION,
    REPEAT,
    SCHEDULE,
    THREADS,
    WARMUP,
];

static TXN_PUT: &[Flag] = &[
    Flag::int("key-size", "8", "Key size of txn put"),
    KEY_SPACE,
    rate("Maximum txns per second (0 is no limit)"),
    total("Total number of txn requests"),
    Flag::int("txn-ops", "1", "Number of puts per txn"),
    Flag::int("val-size", "8", "Value size of txn put"),
    DURATION,
    REPEAT,
    SCHEDULE,
    THREADS,
    WARMUP,
];

static TXN_MIXED: &[Flag] = &[
    CONSISTENCY,
    Flag::text(
        "end-key",
        "",
        "Read operation range end key. By default, we do full range query with the default limit of 1000.",
    ),
    Flag::int("key-size", "8", "Key size of mixed txn"),
    KEY_SPACE,
    Flag::int("limit", "1000", "Read operation range result limit"),
    rate("Maximum txns per second (0 is no limit)"),
    Flag::float("rw-ratio", "1", "Read/write ops ratio"),
    total("Total number of txn requests"),
    Flag::int("val-size", "8", "Value size of mixed txn"),
    DURATION,
    REPEAT,
    SCHEDULE,
    THREADS,
    WARMUP,
];

static STM: &[Flag] = &[
    Flag::text(
        "isolation",
        "r",
        "Read Committed (c), Repeatable Reads (r), Serializable (s), or Snapshot (ss)",
    ),
    Flag::int("keys", "1", "Total unique keys accessible by the benchmark"),
    Flag::int("keys-per-txn", "1", "Number of keys to access per transaction"),
    rate("Maximum STM transactions per second (0 is no limit)"),
    Flag::text(
        "stm-locker",
        "stm",
        "Wrap STM transaction with a custom locking mechanism (stm, lock-client, lock-rpc)",
    ),
    total("Total number of completed STM transactions"),
    Flag::int("txn-wr-percent", "50", "Percentage of keys to overwrite per transaction"),
    Flag::int("val-size", "8", "Value size of each STM put request"),
    DURATION,
    REPEAT,
    SCHEDULE,
    THREADS,
    WARMUP,
];

static LEASE: &[Flag] = &[
    total("Total number of lease keepalive requests"),
    rate("Maximum keepalives per second (0 is no limit)"),
    DURATION,
    REPEAT,
    SCHEDULE,
    THREADS,
    WARMUP,
];

static AUTHENTICATE: &[Flag] = &[
    Flag::int("total", "100", "Total number of logins"),
    rate("Maximum logins per second (0 is no limit)"),
    DURATION,
    REPEAT,
    SCHEDULE,
    THREADS,
    WARMUP,
];

static WATCH: &[Flag] = &[
    Flag::int("key-size", "32", "Key size of watch request"),
    KEY_SPACE,
    Flag::int("put-rate", "0", "Number of keys to put per second"),
    Flag::int("put-total", "1000", "Number of put requests"),
    SEQUENTIAL,
    Flag::int("streams", "10", "Total watch streams"),
    Flag::int("watch-per-stream", "100", "Total watchers per stream"),
    Flag::int("watched-key-total", "1", "Total number of keys to be watched"),
];

static WATCH_GET: &[Flag] = &[
    Flag::int("events", "8", "Number of events per watcher"),
    Flag::int("streams", "1", "Total number of watcher streams"),
    Flag::int("watchers", "10000", "Total number of watchers"),
];

static WATCH_LATENCY: &[Flag] = &[
    Flag::int("key-size", "32", "Key size of watch response"),
    Flag::bool("prevkv", "PrevKV enabled on watch requests"),
    Flag::int("put-rate", "100", "Number of keys to put per second"),
    Flag::int("put-total", "1000", "Total number of put requests"),
    Flag::int("streams", "10", "Total watch streams"),
    Flag::int("val-size", "32", "Value size of watch response"),
    Flag::int("watchers-per-stream", "10", "Total watchers per stream"),
];

static MVCC_PUT: &[Flag] = &[
    Flag::int("batch-interval", "100", "Interval of batching (milliseconds); only 100: our index has none"),
    Flag::int("batch-limit", "10000", "A limit of batched transaction"),
    Flag::int("key-size", "64", "a size of key (Byte)"),
    Flag::int("total", "100", "a total number of keys to put"),
    Flag::bool("txn", "put a key in transaction or not"),
    Flag::int("txn-ops", "1", "a number of keys to put per transaction"),
    Flag::int("value-size", "64", "a size of value (Byte)"),
];

static MVCC_RANGE: &[Flag] = &[
    Flag::int("batch-limit", "10000", "A limit of batched transaction"),
    Flag::int("key-size", "64", "a size of key (Byte)"),
    Flag::int("keys", "100000", "how many keys there are"),
    Flag::int("limit", "1", "how many of them a range reads"),
    Flag::int("total", "10000", "a total number of ranges"),
];

static RESPONDER: &[Flag] = &[
    Flag::text("listen", "127.0.0.1:0", "`HOST:PORT` to listen on; port 0 is any free one, and is printed"),
    Flag::int("val-size", "1024", "Size of the value that a range answers with"),
    Flag::text("server-cert", "", "serve over TLS with this certificate"),
    Flag::text("server-key", "", "and this key"),
];

static COMPARE: &[Flag] = &[
    Flag::list(
        "server",
        "",
        "`NAME=PATH`: a server to be started, etcd of any version or Mainstay; flags for it follow, each behind a comma; may \
         be given several times",
    ),
    Flag::list(
        "at",
        "",
        "`NAME=ENDPOINT`: a server that runs already, keys are written to it; pid=N behind a comma names its process",
    ),
    Flag::on("responder", "Include a server that does nothing, as the baseline"),
    Flag::text("reference", "", "Server that the others are compared with (default: the first)"),
    Flag::list("workload", "", "Workloads to run (default: all); one that does not exist lists them"),
    Flag::text("scale", "small", "How much of each: small, medium or full"),
    Flag::uint("repeat", "3", "Rounds; in each all servers take turns, and medians are given"),
    Flag::bool("tls", "Run all once more over TLS, with certificates made for it"),
    Flag::text(
        "data-dir",
        "",
        "Directory for the data of the servers that are started (default: a temporary one)",
    ),
    THREADS,
];

static SUBCOMMANDS: &[Command] = &[
    Command {
        name: "authenticate",
        usage: "authenticate",
        about: "Benchmark logins of --user",
        flags: AUTHENTICATE,
        example: "  bench --user root:secret --conns 200 --clients 200 authenticate",
        ..Command::EMPTY
    },
    Command {
        name: "compare",
        usage: "compare",
        about: "Compare several servers, and write one table",
        long: "Runs workloads against several servers, which take turns within each round, and writes one table of \
               medians:\nrates, latencies, what the servers used per request, and ratios to a reference and to a server \
               that does nothing.",
        example: "  bench compare --server etcd-3.7=/usr/bin/etcd --server mainstay=/usr/bin/mainstay --workload put-1k \
                  --html report.html",
        flags: COMPARE,
        ..Command::EMPTY
    },
    Command {
        name: "completion",
        usage: "completion [bash|zsh|fish]",
        about: "Generate the autocompletion script for the specified shell",
        example: "  source <(benchmark completion bash)",
        ..Command::EMPTY
    },
    Command {
        name: "lease-keepalive",
        usage: "lease-keepalive",
        about: "Benchmark lease keepalive",
        flags: LEASE,
        example: "  bench --clients 10 lease-keepalive --total 10000",
        ..Command::EMPTY
    },
    Command {
        name: "mvcc",
        usage: "mvcc",
        about: "Benchmark mvcc",
        long: "storage subcommand is a set of various benchmark tools for MVCC storage subsystem of etcd.\nActual \
               benchmarks are implemented as its subcommands.",
        subcommands: &[
            Command {
                name: "put",
                usage: "put",
                about: "Benchmark put performance of storage",
                flags: MVCC_PUT,
                example: "  bench mvcc put --total 100000",
                ..Command::EMPTY
            },
            Command {
                name: "range",
                usage: "range",
                about: "Benchmark range performance of storage",
                flags: MVCC_RANGE,
                example: "  bench mvcc range --keys 1000000 --limit 1000",
                ..Command::EMPTY
            },
        ],
        ..Command::EMPTY
    },
    Command {
        name: "put",
        usage: "put",
        about: "Benchmark put",
        flags: PUT,
        example: "  bench --conns 100 --clients 500 put --total 100000 --val-size 1024\n  \
                  bench --clients 500 put --rate 5000 --duration 60s --html put.html",
        ..Command::EMPTY
    },
    Command {
        name: "range",
        usage: "range key [end-range]",
        about: "Benchmark range",
        flags: RANGE,
        example: "  bench --conns 100 --clients 1000 range foo --consistency s --total 500000",
        ..Command::EMPTY
    },
    Command {
        name: "responder",
        usage: "responder",
        about: "Answer every request at once, and do nothing",
        flags: RESPONDER,
        example: "  bench responder --listen 127.0.0.1:12379",
        ..Command::EMPTY
    },
    Command {
        name: "stm",
        usage: "stm",
        about: "Benchmark STM",
        flags: STM,
        example: "  bench --clients 10 stm --isolation s --keys 100 --keys-per-txn 4",
        ..Command::EMPTY
    },
    Command {
        name: "txn-mixed",
        usage: "txn-mixed key [end-range]",
        about: "Benchmark a mixed load of txn-put & txn-range.",
        flags: TXN_MIXED,
        example: "  bench --clients 100 txn-mixed --rw-ratio 4 --limit 10",
        ..Command::EMPTY
    },
    Command {
        name: "txn-put",
        usage: "txn-put",
        about: "Benchmark txn-put",
        flags: TXN_PUT,
        example: "  bench --clients 100 txn-put --txn-ops 10 --key-space-size 1000",
        ..Command::EMPTY
    },
    Command {
        name: "watch",
        usage: "watch",
        about: "Benchmark watch",
        long: "Benchmark watch tests the performance of processing watch requests and\nsending events to watchers. It \
               tests the sending performance by\nchanging the value of the watched keys with concurrent \
               put\nrequests.\n\nDuring the test, each watcher watches (--total/--watchers) keys\n\n(a watcher might watch \
               on the same key multiple times if\n--watched-key-total is small).\n\nEach key is watched by \
               (--total/--watched-key-total) watchers.\n",
        flags: WATCH,
        example: "  bench watch --streams 10 --watch-per-stream 100 --put-total 10000",
        ..Command::EMPTY
    },
    Command {
        name: "watch-get",
        usage: "watch-get",
        about: "Benchmark watch with get",
        long: "Benchmark for serialized key gets with many unsynced watchers",
        flags: WATCH_GET,
        example: "  bench watch-get --watchers 1000",
        ..Command::EMPTY
    },
    Command {
        name: "watch-latency",
        usage: "watch-latency",
        about: "Benchmark watch latency",
        long: "Benchmarks the latency for watches by measuring\n\tthe latency between writing to a key and receiving \
               the\n\tassociated watch response.",
        flags: WATCH_LATENCY,
        example: "  bench watch-latency --put-rate 100",
        ..Command::EMPTY
    },
];

/// The tool.
pub static PROGRAM: Program = Program {
    root: Command {
        name: "benchmark",
        usage: "benchmark",
        about: "Loads and measures etcd and Mainstay",
        long: "benchmark is a low-level benchmark tool for etcd3.\nIt uses gRPC directly and does not depend on any etcd \
               client library.\n\nWithout --rate, each client begins an operation when it has the answer to its last one, as \
               in etcd's tool; a server\nthat stalls is then asked less, and its latencies look better than users would \
               find them. With --rate, operations\nbegin at fixed times whatever the server does, and latency counts from \
               the time each was meant to begin.",
        subcommands: SUBCOMMANDS,
        ..Command::EMPTY
    },
    globals: GLOBALS,
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
