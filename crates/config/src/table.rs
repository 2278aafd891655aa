//! Defines the table of all server flags, from which parser, environment variables, help text and
//! documentation are derived.

use super::feature_gate::{self, FeatureGate};
use super::flag::Status::{Implemented, Legacy, NoEffect};
use super::flag::{Flag, FlagRow, Group, Kind, value};

/// etcd's warning about a flag that it no longer supports.
const IGNORED: &str = "flag is no longer supported - ignoring";

/// Declares a constant for each flag, with which code reads the value of the flag, and `FLAGS`, a list of the
/// rows of all flags. The third word of a row is the syntax of the flag: it is the name of a variant of
/// [`Kind`] and of the type in [`value`].
macro_rules! flags {
    ($($key:ident = $name:literal, $group:ident, $kind:ident $(($words:expr))?, $default:literal, $status:expr, $help:literal;)*) => {
        $(
            #[doc = concat!("The flag `--", $name, "`.")]
            pub const $key: Flag<value::$kind> = Flag::of_row(FlagRow {
                name: $name,
                group: Group::$group,
                kind: Kind::$kind $(($words))?,
                default: $default,
                status: $status,
                help: $help,
            });
        )*

        /// All flags; within each group in the order of the help text.
        pub const FLAGS: &[FlagRow] = &[$($key.row()),*];
    };
}

// Not formatted, so that each flag has one row and the columns can be compared.
#[rustfmt::skip]
flags! {
    NAME = "name", Member, Text, "default", Implemented, "Human-readable name of this member, unique in its cluster.";
    DATA_DIR = "data-dir", Member, Text, "", Implemented, "Directory that holds this member's data.";
    WAL_DIR = "wal-dir", Member, Text, "", Implemented, "Directory of the log, which holds the values, if it is not to be in --data-dir.";
    IMPORT_ETCD_DATA = "import-etcd-data", Member, Bool, "true", Implemented, "Take over a member whose --data-dir was written by etcd, and continue as the same member of the same cluster. etcd's files are kept. With false, such a directory is refused. Not a flag of etcd.";
    SNAPSHOT_COUNT = "snapshot-count", Member, Uint, "10000", Implemented, "Number of applied entries after which a checkpoint may be taken. It is taken after ten times as many (1,000 to 100,000), 64 MiB of log, a minute, or a second without an applied entry.";
    SNAPSHOT_CATCHUP_ENTRIES = "snapshot-catchup-entries", Features, Uint, "5000", Implemented, "Number of log entries kept before a checkpoint for followers that lag.";
    HEARTBEAT_INTERVAL = "heartbeat-interval", Member, Uint, "100", Implemented, "Milliseconds between heartbeats of a leader.";
    ELECTION_TIMEOUT = "election-timeout", Member, Uint, "1000", Implemented, "Milliseconds without a leader after which an election starts.";
    INITIAL_ELECTION_TICK_ADVANCE = "initial-election-tick-advance", Member, Bool, "true", Implemented, "Shorten the first election timeout after a start.";
    LISTEN_PEER_URLS = "listen-peer-urls", Member, Urls, "http://localhost:2380", Implemented, "URLs to listen on for other members.";
    LISTEN_CLIENT_URLS = "listen-client-urls", Member, Urls, "http://localhost:2379", Implemented, "URLs to listen on for clients, gRPC and HTTP alike.";
    LISTEN_CLIENT_HTTP_URLS = "listen-client-http-urls", Member, Urls, "", Implemented, "URLs to listen on for HTTP (health, metrics, version); --listen-client-urls then serve gRPC only.";
    LISTEN_CONSOLE_URLS = "listen-console-urls", Member, Urls, "", Implemented, "URLs at which to serve the web console, such as http://127.0.0.1:2382; https URLs use the certificates of --listen-client-urls. Not a flag of etcd.";
    MAX_SNAPSHOTS = "max-snapshots", Member, Uint, "5", Legacy("--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8."), "Number of snapshot files to keep (0 is unlimited).";
    MAX_WALS = "max-wals", Member, Uint, "5", NoEffect("log segments are reclaimed as soon as nothing refers to them"), "Number of write-ahead log files to keep (0 is unlimited).";
    MEMORY_MLOCK = "memory-mlock", Member, Bool, "false", Implemented, "Keep the memory of the process from being swapped out. Needs an unlimited memory lock limit (ulimit -l), or CAP_IPC_LOCK.";
    QUOTA_BACKEND_BYTES = "quota-backend-bytes", Member, Int, "0", Implemented, "Size of the data, in bytes, at which writes are refused; 0 means 2 GiB, a negative number no limit.";
    BACKEND_BBOLT_FREELIST_TYPE = "backend-bbolt-freelist-type", Member, Text, "map", NoEffect("the engine has no free list"), "Kind of free list of etcd's storage engine, map or array.";
    BACKEND_BATCH_INTERVAL = "backend-batch-interval", Member, Duration, "0s", NoEffect("each batch of writes is synced immediately, without waiting for an interval"), "Maximum time before etcd's storage engine commits.";
    BACKEND_BATCH_LIMIT = "backend-batch-limit", Member, Int, "0", NoEffect("each batch of writes is synced immediately, without waiting for a number of operations"), "Maximum number of operations before etcd's storage engine commits.";
    MAX_TXN_OPS = "max-txn-ops", Member, Uint, "128", Implemented, "Maximum number of operations permitted in a transaction.";
    MAX_REQUEST_BYTES = "max-request-bytes", Member, Uint, "1572864", Implemented, "Maximum size of a client request, in bytes.";
    MAX_CONCURRENT_STREAMS = "max-concurrent-streams", Member, Uint32, "4294967295", Implemented, "Maximum number of concurrent streams per client connection.";
    GRPC_KEEPALIVE_MIN_TIME = "grpc-keepalive-min-time", Member, Duration, "5s", Implemented, "Minimum time between pings of a client.";
    GRPC_KEEPALIVE_INTERVAL = "grpc-keepalive-interval", Member, Duration, "2h", Implemented, "Time between pings sent to a client to check that it is alive (0 to disable).";
    GRPC_KEEPALIVE_TIMEOUT = "grpc-keepalive-timeout", Member, Duration, "20s", Implemented, "Time to wait for the answer to a ping before the connection is closed (0 to disable).";
    SOCKET_REUSE_PORT = "socket-reuse-port", Member, Bool, "false", Implemented, "Set SO_REUSEPORT on listeners, so that a port in use can be bound again.";
    SOCKET_REUSE_ADDRESS = "socket-reuse-address", Member, Bool, "false", Implemented, "Set SO_REUSEADDR on listeners, so that an address in TIME_WAIT can be bound.";
    ENABLE_GRPC_GATEWAY = "enable-grpc-gateway", Member, Bool, "true", Implemented, "Serve the JSON gateway under /v3/, and gRPC-Web.";
    RAFT_READ_TIMEOUT = "raft-read-timeout", Member, Duration, "5s", Implemented, "Read timeout of connections between members.";
    RAFT_WRITE_TIMEOUT = "raft-write-timeout", Member, Duration, "5s", Implemented, "Write timeout of connections between members.";
    FEATURE_GATES = "feature-gates", Member, Gates, "", Implemented, "Comma-separated list of NAME=true|false. Names and defaults are listed below.";
    INITIAL_ADVERTISE_PEER_URLS = "initial-advertise-peer-urls", Clustering, Urls, "http://localhost:2380", Implemented, "This member's peer URLs, as advertised to the other members.";
    INITIAL_CLUSTER = "initial-cluster", Clustering, Text, "default=http://localhost:2380", Implemented, "Members of the cluster to be formed, as a comma-separated list of NAME=URL. Ignored once the data directory holds a member.";
    INITIAL_CLUSTER_STATE = "initial-cluster-state", Clustering, OneOf(&["new", "existing"]), "new", Implemented, "`new` to form a cluster, `existing` to join one. Ignored once the data directory holds a member.";
    INITIAL_CLUSTER_TOKEN = "initial-cluster-token", Clustering, Text, "etcd-cluster", Implemented, "Text that becomes part of the ids of the cluster and its members, to tell apart clusters formed from the same URLs.";
    INITIAL_CLUSTER_WITNESS = "initial-cluster-witness", Clustering, Text, "", Implemented, "Name of the member of --initial-cluster that is a witness, which votes and keeps no keys: it is started with `mainstay witness`. All members need the same value; it becomes part of the ids. Not a flag of etcd.";
    ADVERTISE_CLIENT_URLS = "advertise-client-urls", Clustering, Urls, "http://localhost:2379", Implemented, "This member's client URLs, as advertised to clients. Required when --listen-client-urls is set.";
    FEED = "feed", Clustering, UrlsInOrder, "", Implemented, "Peer URLs of the members or observers from which `mainstay observer` takes the log; the first that answers is used. Not a flag of etcd.";
    DISCOVERY_TOKEN = "discovery-token", Clustering, Text, "", Implemented, "Token of the cluster at the discovery service.";
    DISCOVERY_ENDPOINTS = "discovery-endpoints", Clustering, List, "", Implemented, "gRPC endpoints of the discovery service.";
    DISCOVERY_DIAL_TIMEOUT = "discovery-dial-timeout", Clustering, Duration, "2s", Implemented, "Timeout for connecting to the discovery service.";
    DISCOVERY_REQUEST_TIMEOUT = "discovery-request-timeout", Clustering, Duration, "5s", Implemented, "Timeout for a request to the discovery service.";
    DISCOVERY_KEEPALIVE_TIME = "discovery-keepalive-time", Clustering, Duration, "2s", Implemented, "Time between pings to the discovery service.";
    DISCOVERY_KEEPALIVE_TIMEOUT = "discovery-keepalive-timeout", Clustering, Duration, "6s", Implemented, "Time to wait for the discovery service's answer to a ping.";
    DISCOVERY_INSECURE_TRANSPORT = "discovery-insecure-transport", Clustering, Bool, "true", Implemented, "Connect to the discovery service without TLS.";
    DISCOVERY_INSECURE_SKIP_TLS_VERIFY = "discovery-insecure-skip-tls-verify", Clustering, Bool, "false", Implemented, "Do not verify the discovery service's certificate.";
    DISCOVERY_CERT = "discovery-cert", Clustering, Text, "", Implemented, "Client certificate file for the discovery service.";
    DISCOVERY_KEY = "discovery-key", Clustering, Text, "", Implemented, "Client key file for the discovery service.";
    DISCOVERY_CACERT = "discovery-cacert", Clustering, Text, "", Implemented, "CA file to verify the discovery service.";
    DISCOVERY_USER = "discovery-user", Clustering, Text, "", Implemented, "User, or user:password, at the discovery service.";
    DISCOVERY_PASSWORD = "discovery-password", Clustering, Text, "", Implemented, "Password at the discovery service.";
    DISCOVERY_FALLBACK = "discovery-fallback", Clustering, OneOf(&["exit", "proxy"]), "exit", Implemented, "Action when discovery fails; only `exit` is supported.";
    DISCOVERY_SRV = "discovery-srv", Clustering, Text, "", Implemented, "DNS domain whose SRV records name the initial cluster.";
    DISCOVERY_SRV_NAME = "discovery-srv-name", Clustering, Text, "", Implemented, "Suffix of the service name in the SRV query.";
    STRICT_RECONFIG_CHECK = "strict-reconfig-check", Clustering, Bool, "true", Implemented, "Refuse changes of membership that would lose the quorum.";
    PRE_VOTE = "pre-vote", Clustering, Bool, "true", Implemented, "Ask for votes before an election, so that a returning member does not disturb the leader.";
    AUTO_COMPACTION_RETENTION = "auto-compaction-retention", Clustering, Text, "0", Implemented, "History to keep: hours or a duration in mode periodic, a number of revisions in mode revision; 0 keeps everything.";
    AUTO_COMPACTION_MODE = "auto-compaction-mode", Clustering, Text, "periodic", Implemented, "Unit of --auto-compaction-retention: periodic or revision.";
    V2_DEPRECATION = "v2-deprecation", Clustering, AnyOf(&["write-only", "write-only-skip-check", "write-only-drop-data", "gone"]), "write-only", Legacy("--v2-deprecation is deprecated and scheduled for removal in v3.8. The default value is enforced, ignoring user input."), "Phase of the removal of the v2 store.";
    CERT_FILE = "cert-file", Security, Text, "", Implemented, "Certificate file (PEM) of the client listeners, for https URLs.";
    KEY_FILE = "key-file", Security, Text, "", Implemented, "Key file (PEM) of the client listeners.";
    CLIENT_CERT_AUTH = "client-cert-auth", Security, Bool, "false", Implemented, "Require client certificates. With authentication on, a certificate's common name is the user.";
    CLIENT_CERT_FILE = "client-cert-file", Security, Text, "", Implemented, "Certificate file for connections to client URLs, which only the console opens (--listen-console-urls). Without a console, the file is only checked, reloaded and monitored for expiry.";
    CLIENT_KEY_FILE = "client-key-file", Security, Text, "", Implemented, "Key file of --client-cert-file.";
    CLIENT_CRL_FILE = "client-crl-file", Security, Text, "", Implemented, "List of revoked client certificates, DER or PEM.";
    CLIENT_CERT_ALLOWED_HOSTNAME = "client-cert-allowed-hostname", Security, Words, "", Implemented, "Host names, one of which must be in a client's certificate.";
    TRUSTED_CA_FILE = "trusted-ca-file", Security, Text, "", Implemented, "CA file to verify client certificates. With it, clients must show a certificate.";
    AUTO_TLS = "auto-tls", Security, Bool, "false", Implemented, "Serve clients with a generated certificate, unless --cert-file is given.";
    PEER_CERT_FILE = "peer-cert-file", Security, Text, "", Implemented, "Certificate file (PEM) of the peer listeners, for https URLs; also shown to other members.";
    PEER_KEY_FILE = "peer-key-file", Security, Text, "", Implemented, "Key file (PEM) of the peer listeners.";
    PEER_CLIENT_CERT_AUTH = "peer-client-cert-auth", Security, Bool, "false", Implemented, "Require certificates from other members.";
    PEER_CLIENT_CERT_FILE = "peer-client-cert-file", Security, Text, "", Implemented, "Certificate file for connections to other members, instead of --peer-cert-file.";
    PEER_CLIENT_KEY_FILE = "peer-client-key-file", Security, Text, "", Implemented, "Key file of --peer-client-cert-file.";
    PEER_TRUSTED_CA_FILE = "peer-trusted-ca-file", Security, Text, "", Implemented, "CA file to verify other members' certificates. With it, they must show a certificate.";
    PEER_CERT_ALLOWED_CN = "peer-cert-allowed-cn", Security, Words, "", Implemented, "Common names, one of which must be in another member's certificate.";
    PEER_CERT_ALLOWED_HOSTNAME = "peer-cert-allowed-hostname", Security, Words, "", Implemented, "Host names, one of which must be in another member's certificate.";
    PEER_AUTO_TLS = "peer-auto-tls", Security, Bool, "false", Implemented, "Use a generated certificate with other members, unless --peer-cert-file is given. Any certificate of theirs is accepted.";
    SELF_SIGNED_CERT_VALIDITY = "self-signed-cert-validity", Security, Uint, "1", Implemented, "Years a generated certificate is valid.";
    PEER_CRL_FILE = "peer-crl-file", Security, Text, "", Implemented, "List of revoked certificates of other members, DER or PEM.";
    SHARE_TLS_TICKETS = "share-tls-tickets", Security, Bool, "false", Implemented, "Share the secrets of TLS session tickets with the other members, so that clients resume their sessions at any member. Needs certificates and allowed names of members. Not a flag of etcd.";
    CIPHER_SUITES = "cipher-suites", Security, Words, "", Implemented, "TLS 1.2 cipher suites, by Go's names; empty means all that are supported.";
    CORS = "cors", Security, Origins, "*", Implemented, "Comma-separated list of origins (scheme, host and port) whose pages may read answers in a browser; * means all.";
    HOST_WHITELIST = "host-whitelist", Security, List, "*", Implemented, "Comma-separated list of host names accepted in HTTP requests without TLS; * means all.";
    TLS_MIN_VERSION = "tls-min-version", Security, Text, "TLS1.2", Implemented, "Minimum TLS version for clients and members: TLS1.2 or TLS1.3.";
    TLS_MAX_VERSION = "tls-max-version", Security, Text, "", Implemented, "Maximum TLS version for clients and members: TLS1.2 or TLS1.3; empty means the highest supported one.";
    AUTH_TOKEN = "auth-token", Auth, Text, "simple", Implemented, "Kind of authentication token and its options: simple or jwt.";
    BCRYPT_COST = "bcrypt-cost", Auth, Uint, "10", Implemented, "Cost of hashing a password, 4 to 31.";
    AUTH_TOKEN_TTL = "auth-token-ttl", Auth, Uint, "300", Implemented, "Seconds for which a simple token is valid after its last use.";
    ENABLE_PPROF = "enable-pprof", Profiling, Bool, "false", Implemented, "Serve profiles under /debug/pprof/ at the client URLs, to anyone who can reach them.";
    METRICS = "metrics", Profiling, Text, "basic", Implemented, "Level of detail of metrics: basic, or extensive to add histograms of gRPC handling times.";
    METRICS_HEAVY_HITTERS = "metrics-heavy-hitters", Profiling, Bool, "false", Implemented, "Add to the metrics which key prefixes, users and clients account for the most requests, bytes and time. Anyone who can read the metrics sees them; while authentication is on, only clients are included. Not a flag of etcd.";
    LISTEN_METRICS_URLS = "listen-metrics-urls", Profiling, Urls, "", Implemented, "Additional URLs to serve metrics and health on.";
    LOGGER = "logger", Logging, Text, "zap", Implemented, "Logger to use; only zap is supported.";
    LOG_OUTPUTS = "log-outputs", Logging, List, "default", Implemented, "Outputs of the log: default or stderr, stdout, or file paths, as a comma-separated list.";
    LOG_LEVEL = "log-level", Logging, Text, "info", Implemented, "Minimum level that is logged: debug, info, warn, error, panic or fatal.";
    LOG_FORMAT = "log-format", Logging, Text, "json", Implemented, "Format of log lines: json or console.";
    ENABLE_LOG_ROTATION = "enable-log-rotation", Logging, Bool, "false", Implemented, "Rename the log file when it is full, and start a new one. --log-outputs must name exactly one file.";
    LOG_ROTATION_CONFIG_JSON = "log-rotation-config-json", Logging, Text, "{\"maxsize\": 100, \"maxage\": 0, \"maxbackups\": 0, \"localtime\": false, \"compress\": false}", Implemented, "With --enable-log-rotation: the size in MiB at which the file is rotated, the age in days and the number of files beyond which old files are removed (0: never), whether their names use local time, and whether they are compressed.";
    WARNING_UNARY_REQUEST_DURATION = "warning-unary-request-duration", Logging, Duration, "300ms", Implemented, "Duration above which a unary request is logged as slow.";
    ENABLE_DISTRIBUTED_TRACING = "enable-distributed-tracing", Tracing, Bool, "false", Implemented, "Send spans to a collector.";
    DISTRIBUTED_TRACING_ADDRESS = "distributed-tracing-address", Tracing, Text, "localhost:4317", Implemented, "Address of the collector, which must accept OTLP over gRPC without TLS.";
    DISTRIBUTED_TRACING_SERVICE_NAME = "distributed-tracing-service-name", Tracing, Text, "etcd", Implemented, "Service name in spans.";
    DISTRIBUTED_TRACING_INSTANCE_ID = "distributed-tracing-instance-id", Tracing, Text, "", Implemented, "Instance id in spans.";
    DISTRIBUTED_TRACING_SAMPLING_RATE = "distributed-tracing-sampling-rate", Tracing, Int, "0", Implemented, "Number of traces per million calls of clients that are not traced themselves; calls of traced clients are always traced.";
    CORRUPT_CHECK_TIME = "corrupt-check-time", Features, Duration, "0s", Implemented, "Time between checks that all members hold the same data (0 to disable).";
    COMPACT_HASH_CHECK_TIME = "compact-hash-check-time", Features, Duration, "1m0s", Implemented, "Time between checks that members' hashes at the last compaction agree.";
    COMPACTION_BATCH_LIMIT = "compaction-batch-limit", Features, Int, "0", Implemented, "Maximum number of revisions removed in one step of a compaction; 0 means 1000.";
    COMPACTION_SLEEP_INTERVAL = "compaction-sleep-interval", Features, Duration, "0s", Implemented, "Pause between two steps of a compaction; 0 means 1ms, because each step is short.";
    PEER_SKIP_CLIENT_SAN_VERIFICATION = "peer-skip-client-san-verification", Features, Bool, "false", Implemented, "Do not compare the names and addresses in other members' certificates with the addresses that they connect from.";
    WATCH_PROGRESS_NOTIFY_INTERVAL = "watch-progress-notify-interval", Features, Duration, "0s", Implemented, "Time between progress notifications to idle watchers that asked for them; 0 means 10m.";
    WARNING_APPLY_DURATION = "warning-apply-duration", Features, Duration, "100ms", Implemented, "Duration above which applying a request is logged as slow.";
    BOOTSTRAP_DEFRAG_THRESHOLD_MEGABYTES = "bootstrap-defrag-threshold-megabytes", Features, Uint, "0", NoEffect("the engine needs no defragmentation"), "Megabytes that a defragmentation at start must free to be worthwhile.";
    MAX_LEARNERS = "max-learners", Features, Int, "1", Implemented, "Maximum number of learners in the cluster.";
    AUTOPILOT = "autopilot", Features, OneOf(&["off", "dry-run", "on"]), "off", Implemented, "What this member does about the membership while it leads: `on` promotes learners that have caught up, replaces members that are gone by standby learners, removes learners that are gone, and moves leadership away from a slow disk, a member that drains or a zone without clients; `dry-run` only logs what it would do. Not a flag of etcd.";
    AUTOPILOT_REPLACE_AFTER = "autopilot-replace-after", Features, Duration, "10m0s", Implemented, "Time without an answer after which --autopilot takes a member for gone; at least five election timeouts. Not a flag of etcd.";
    AUTOPILOT_INTERVAL = "autopilot-interval", Features, Duration, "30s", Implemented, "Minimum time between two steps of --autopilot, and between the election of a leader and its first; from 1s to 1h. Not a flag of etcd.";
    STANDBY = "standby", Features, Bool, "false", Implemented, "This member, while it is a learner, waits until --autopilot needs it to replace a voter. Needs --initial-cluster-state=existing. Not a flag of etcd.";
    CLIENT_MEMORY_BYTES = "client-memory-bytes", Features, Uint, "0", Implemented, "Memory in bytes that this member may hold for all clients together; 0 means a quarter of the machine's memory, or of the control group's limit. Never less than 32 MiB and four times --max-request-bytes. Not a flag of etcd.";
    MAX_CONNECTIONS_PER_ADDRESS = "max-connections-per-address", Features, Uint, "0", Implemented, "Maximum number of open connections from one client address; 0 means three quarters of what the limit on open files allows in all. Not a flag of etcd.";
    MAX_EXPENSIVE_CALLS = "max-expensive-calls", Features, Uint, "0", Implemented, "Maximum number of expensive calls (calls that may examine many keys, changes, leases or users; COMPAT-118 lists them) per second for a user or, without users, for an address; 0 means no limit. Not a flag of etcd.";
    AUDIT_LOG = "audit-log", Features, Text, "", Implemented, "File to which a line of JSON is written for each call that changes something or is refused: user, address, request and outcome. Lines about refused calls go to FILE.refused. Empty means no audit log. Not a flag of etcd.";
    AUDIT_LOG_MAX_BYTES = "audit-log-max-bytes", Features, Uint, "104857600", Implemented, "Size in bytes at which the file of --audit-log is renamed and a new one started; at least 1 MiB. Not a flag of etcd.";
    AUDIT_LOG_FILES = "audit-log-files", Features, Uint, "10", Implemented, "Number of files of --audit-log to keep, including the newest; at most 1000. Not a flag of etcd.";
    AUDIT_LOG_READS = "audit-log-reads", Features, Bool, "false", Implemented, "Write to --audit-log also the calls that change nothing, such as reads. Not a flag of etcd.";
    RAFT_PIPELINE = "raft-pipeline", Features, Bool, "true", Implemented, "Propose the next batch of writes while the previous one is being written, replicated or applied; false processes one batch at a time, to measure the difference. Not a flag of etcd.";
    BATCH_FSYNC_WINDOW = "batch-fsync-window", Features, Duration, "5ms", Implemented, "Maximum time for which writes are gathered for one sync of the log, 0 to 5ms. They wait only if it pays: for at most 2ms if batches are already large; and, in a cluster of one member whose syncs take 1ms or more, for the end of the current sync and then for at most half the time of a sync. 0 disables both. Not a flag of etcd.";
    VALUE_COMPRESSION = "value-compression", Features, OneOf(&["none", "zstd"]), "none", Implemented, "`zstd` compresses values that are some time old, in the background, where that saves space; `none` compresses no more values, and those that are compressed stay readable. Not a flag of etcd.";
    MEMORY_BUDGET = "memory-budget", Features, Uint, "0", Implemented, "Memory in bytes that the index should take at most; 0 keeps all of it in memory. With a budget, keys that a compaction has passed, that have no lease and that are not written any more are read from the checkpoint in blocks, and a start reads only the rest. A budget needs compactions. Not a flag of etcd.";
    ZONE = "zone", Features, Text, "", Implemented, "Name of the zone of this member, at most 64 letters, digits, dots, dashes and underscores. Clients that request it prefer members of their own zone. Not a flag of etcd.";
    ZONE_NETWORKS = "zone-networks", Features, List, "", Implemented, "Networks of clients by zone, as a comma-separated list of ZONE=ADDRESS/BITS: for --zone-member-list, and with --zone for the bytes between clients and another zone in `mainstay_cross_zone_bytes_total`. Not a flag of etcd.";
    ZONE_MEMBER_LIST = "zone-member-list", Features, OneOf(&["off", "first", "only"]), "off", Implemented, "What a client in one of the --zone-networks gets from MemberList: `first`, the members and observers of its zone before all others; `only`, these alone while one of them is connected. Not a flag of etcd.";
    DOWNGRADE_CHECK_TIME = "downgrade-check-time", Features, Duration, "5s", Implemented, "Time between checks of the state of a downgrade; 0 disables the checks, and a downgrade must then be ended by hand.";
    API_VERSION = "api-version", Features, OneOf(&["3.5", "3.6", "3.7"]), "3.7", Implemented, "Release of etcd that this member reports to clients and other members. Not a flag of etcd.";
    FORCE_NEW_CLUSTER = "force-new-cluster", Unsafe, Bool, "false", Implemented, "Form a new cluster of one member from this member's data.";
    UNSAFE_NO_FSYNC = "unsafe-no-fsync", Unsafe, Bool, "false", Implemented, "Do not sync writes to disk. Acknowledged writes are lost when the machine stops.";
    CONFIG_FILE = "config-file", General, Text, "", Implemented, "Path of a configuration file (YAML or JSON). If given, all other flags and the environment are ignored.";
    VERSION = "version", General, Bool, "false", Implemented, "Print the version and exit.";
    CLUSTER_ACTIVE_SIZE = "cluster-active-size", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    CLUSTER_REMOVE_DELAY = "cluster-remove-delay", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    CLUSTER_SYNC_INTERVAL = "cluster-sync-interval", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    CONFIG = "config", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    FORCE = "force", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    MAX_RESULT_BUFFER = "max-result-buffer", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    MAX_RETRY_ATTEMPTS = "max-retry-attempts", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    PEER_HEARTBEAT_INTERVAL = "peer-heartbeat-interval", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    PEER_ELECTION_TIMEOUT = "peer-election-timeout", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    RETRY_INTERVAL = "retry-interval", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    SNAPSHOT = "snapshot", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    V = "v", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
    VV = "vv", Legacy, Ignored, "", Legacy(IGNORED), "Nothing.";
}

/// An old name of a flag. etcd accepted the name until 3.6, and refuses it since 3.7. Mainstay accepts it
/// with a warning, because manifests still use it.
#[derive(Clone, Copy, Debug)]
pub struct OldSpelling {
    /// Name without leading dashes.
    pub name: &'static str,
    /// Current name.
    pub successor: Successor,
}

/// The current option that an old spelling stands for.
#[derive(Clone, Copy, Debug)]
pub enum Successor {
    /// A flag with the same syntax.
    Flag(FlagRow),
    /// A feature gate; the old spelling has a boolean value.
    Gate(FeatureGate),
}

const fn renamed(name: &'static str, successor: FlagRow) -> OldSpelling {
    OldSpelling { name, successor: Successor::Flag(successor) }
}

const fn gated(name: &'static str, gate: FeatureGate) -> OldSpelling {
    OldSpelling { name, successor: Successor::Gate(gate) }
}

/// All old spellings.
#[rustfmt::skip] // One row per spelling.
pub const OLD_SPELLINGS: &[OldSpelling] = &[
    renamed("experimental-batch-fsync-window", BATCH_FSYNC_WINDOW.row()),
    renamed("experimental-bootstrap-defrag-threshold-megabytes", BOOTSTRAP_DEFRAG_THRESHOLD_MEGABYTES.row()),
    renamed("experimental-compact-hash-check-time", COMPACT_HASH_CHECK_TIME.row()),
    renamed("experimental-compaction-batch-limit", COMPACTION_BATCH_LIMIT.row()),
    renamed("experimental-compaction-sleep-interval", COMPACTION_SLEEP_INTERVAL.row()),
    renamed("experimental-corrupt-check-time", CORRUPT_CHECK_TIME.row()),
    renamed("experimental-distributed-tracing-address", DISTRIBUTED_TRACING_ADDRESS.row()),
    renamed("experimental-distributed-tracing-instance-id", DISTRIBUTED_TRACING_INSTANCE_ID.row()),
    renamed("experimental-distributed-tracing-sampling-rate", DISTRIBUTED_TRACING_SAMPLING_RATE.row()),
    renamed("experimental-distributed-tracing-service-name", DISTRIBUTED_TRACING_SERVICE_NAME.row()),
    renamed("experimental-downgrade-check-time", DOWNGRADE_CHECK_TIME.row()),
    renamed("experimental-enable-distributed-tracing", ENABLE_DISTRIBUTED_TRACING.row()),
    renamed("experimental-max-learners", MAX_LEARNERS.row()),
    renamed("experimental-memory-mlock", MEMORY_MLOCK.row()),
    renamed("experimental-peer-skip-client-san-verification", PEER_SKIP_CLIENT_SAN_VERIFICATION.row()),
    renamed("experimental-raft-pipeline", RAFT_PIPELINE.row()),
    renamed("experimental-snapshot-catchup-entries", SNAPSHOT_CATCHUP_ENTRIES.row()),
    renamed("experimental-warning-apply-duration", WARNING_APPLY_DURATION.row()),
    renamed("experimental-warning-unary-request-duration", WARNING_UNARY_REQUEST_DURATION.row()),
    renamed("experimental-watch-progress-notify-interval", WATCH_PROGRESS_NOTIFY_INTERVAL.row()),
    gated("experimental-compact-hash-check-enabled", feature_gate::COMPACT_HASH_CHECK),
    gated("experimental-enable-lease-checkpoint", feature_gate::LEASE_CHECKPOINT),
    gated("experimental-enable-lease-checkpoint-persist", feature_gate::LEASE_CHECKPOINT_PERSIST),
    gated("experimental-initial-corrupt-check", feature_gate::INITIAL_CORRUPT_CHECK),
    gated("experimental-stop-grpc-service-on-defrag", feature_gate::STOP_GRPC_SERVICE_ON_DEFRAG),
    gated("experimental-txn-mode-write-with-shared-buffer", feature_gate::TXN_MODE_WRITE_WITH_SHARED_BUFFER),
];

/// Returns the flag with this name; old spellings are not flags.
pub fn find_flag(name: &str) -> Option<&'static FlagRow> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// Returns the old spelling with this name.
pub fn find_old_spelling(name: &str) -> Option<&'static OldSpelling> {
    OLD_SPELLINGS.iter().find(|old| old.name == name)
}
