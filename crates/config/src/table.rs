//! The table of all server flags, from which parser, environment variables, help text and documentation are
//! derived.

use super::feature_gate::{self, FeatureGate};
use super::flag::Status::{Implemented, Legacy, NoEffect};
use super::flag::{Flag, FlagRow, Group, Kind, value};

/// etcd's text for a flag that it no longer supports.
const IGNORED: &str = "flag is no longer supported - ignoring";

/// Declares each flag as a constant, the key with which its value is read, and lists the rows of all of them.
/// The word for the syntax names both the variant of [`Kind`] and the type of the value in [`value`].
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

// One row per flag: a table is read by its columns.
#[rustfmt::skip]
flags! {
    NAME = "name", Member, Text, "default", Implemented, "Human-readable name of this member, unique in its cluster.";
    DATA_DIR = "data-dir", Member, Text, "", Implemented, "Directory that holds this member's data.";
    WAL_DIR = "wal-dir", Member, Text, "", Implemented, "Directory of the log, which holds the values, if it is to be on another disk than --data-dir.";
    IMPORT_ETCD_DATA = "import-etcd-data", Member, Bool, "true", Implemented, "Take a member over whose --data-dir was written by etcd, and go on as the same member of the same cluster. etcd's files are kept beside. Otherwise such a directory is refused. No flag of etcd's.";
    SNAPSHOT_COUNT = "snapshot-count", Member, Uint, "10000", Implemented, "Applied entries before a checkpoint may be taken; one is after ten times as many (1,000 to 100,000), 64 MiB of log, a minute, or a second in which none was applied.";
    SNAPSHOT_CATCHUP_ENTRIES = "snapshot-catchup-entries", Features, Uint, "5000", Implemented, "Number of log entries kept behind a checkpoint for followers that lag.";
    HEARTBEAT_INTERVAL = "heartbeat-interval", Member, Uint, "100", Implemented, "Milliseconds between two heartbeats of a leader.";
    ELECTION_TIMEOUT = "election-timeout", Member, Uint, "1000", Implemented, "Milliseconds without a leader after which an election begins.";
    INITIAL_ELECTION_TICK_ADVANCE = "initial-election-tick-advance", Member, Bool, "true", Implemented, "Shorten the first election timeout after a start.";
    LISTEN_PEER_URLS = "listen-peer-urls", Member, Urls, "http://localhost:2380", Implemented, "URLs to listen on for other members.";
    LISTEN_CLIENT_URLS = "listen-client-urls", Member, Urls, "http://localhost:2379", Implemented, "URLs to listen on for clients, gRPC and HTTP alike.";
    LISTEN_CLIENT_HTTP_URLS = "listen-client-http-urls", Member, Urls, "", Implemented, "URLs to listen on for pages over HTTP (health, metrics, version); --listen-client-urls serve gRPC only then.";
    LISTEN_CONSOLE_URLS = "listen-console-urls", Member, Urls, "", Implemented, "URLs to serve the web console at, such as http://127.0.0.1:2382; https URLs have the certificates of --listen-client-urls. No flag of etcd's.";
    MAX_SNAPSHOTS = "max-snapshots", Member, Uint, "5", Legacy("--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8."), "Number of snapshot files to keep (0 is unlimited).";
    MAX_WALS = "max-wals", Member, Uint, "5", NoEffect("segments of the log are reclaimed as soon as nothing refers to them"), "Number of write-ahead log files to keep (0 is unlimited).";
    MEMORY_MLOCK = "memory-mlock", Member, Bool, "false", Implemented, "Keep the process's memory from being swapped out. Needs a memory lock limit (ulimit -l) of unlimited, or CAP_IPC_LOCK.";
    QUOTA_BACKEND_BYTES = "quota-backend-bytes", Member, Int, "0", Implemented, "Bytes the data may take before writes are refused; 0 means 2 GiB, a negative number no limit.";
    BACKEND_BBOLT_FREELIST_TYPE = "backend-bbolt-freelist-type", Member, Text, "map", NoEffect("the engine has no free list"), "Kind of free list of etcd's storage engine, map or array.";
    BACKEND_BATCH_INTERVAL = "backend-batch-interval", Member, Duration, "0s", NoEffect("every batch of writes is synced at once, so nothing waits for an interval"), "Longest time before etcd's storage engine commits.";
    BACKEND_BATCH_LIMIT = "backend-batch-limit", Member, Int, "0", NoEffect("every batch of writes is synced at once, so nothing waits for a count"), "Most operations before etcd's storage engine commits.";
    MAX_TXN_OPS = "max-txn-ops", Member, Uint, "128", Implemented, "Most operations permitted in a transaction.";
    MAX_REQUEST_BYTES = "max-request-bytes", Member, Uint, "1572864", Implemented, "Largest request of a client that is accepted, in bytes.";
    MAX_CONCURRENT_STREAMS = "max-concurrent-streams", Member, Uint32, "4294967295", Implemented, "Most streams a client connection may have open at once.";
    GRPC_KEEPALIVE_MIN_TIME = "grpc-keepalive-min-time", Member, Duration, "5s", Implemented, "Shortest time between pings a client may send.";
    GRPC_KEEPALIVE_INTERVAL = "grpc-keepalive-interval", Member, Duration, "2h", Implemented, "Time between pings sent to a client to see whether it is alive (0 to disable).";
    GRPC_KEEPALIVE_TIMEOUT = "grpc-keepalive-timeout", Member, Duration, "20s", Implemented, "Time to wait for the answer to a ping before the connection is closed (0 to disable).";
    SOCKET_REUSE_PORT = "socket-reuse-port", Member, Bool, "false", Implemented, "Set SO_REUSEPORT on listeners, so that a port in use can be bound again.";
    SOCKET_REUSE_ADDRESS = "socket-reuse-address", Member, Bool, "false", Implemented, "Set SO_REUSEADDR on listeners, so that an address in TIME_WAIT can be bound.";
    ENABLE_GRPC_GATEWAY = "enable-grpc-gateway", Member, Bool, "true", Implemented, "Serve the JSON gateway under /v3/, and calls in gRPC-Web.";
    RAFT_READ_TIMEOUT = "raft-read-timeout", Member, Duration, "5s", Implemented, "Read timeout of connections between members.";
    RAFT_WRITE_TIMEOUT = "raft-write-timeout", Member, Duration, "5s", Implemented, "Write timeout of connections between members.";
    FEATURE_GATES = "feature-gates", Member, Gates, "", Implemented, "Comma list of NAME=true|false. Names and defaults are listed below.";
    INITIAL_ADVERTISE_PEER_URLS = "initial-advertise-peer-urls", Clustering, Urls, "http://localhost:2380", Implemented, "This member's peer URLs as told to the rest of the cluster.";
    INITIAL_CLUSTER = "initial-cluster", Clustering, Text, "default=http://localhost:2380", Implemented, "Members of the cluster to be formed, as a comma list of NAME=URL. Not looked at once the data directory holds a member.";
    INITIAL_CLUSTER_STATE = "initial-cluster-state", Clustering, OneOf(&["new", "existing"]), "new", Implemented, "`new` to form a cluster, `existing` to join one. Not looked at once the data directory holds a member.";
    INITIAL_CLUSTER_TOKEN = "initial-cluster-token", Clustering, Text, "etcd-cluster", Implemented, "Text mixed into the ids of the cluster and its members, which keeps clusters apart that were formed from the same URLs.";
    ADVERTISE_CLIENT_URLS = "advertise-client-urls", Clustering, Urls, "http://localhost:2379", Implemented, "This member's client URLs as told to clients. Required when --listen-client-urls is set.";
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
    DISCOVERY_CACERT = "discovery-cacert", Clustering, Text, "", Implemented, "CA file to verify the discovery service with.";
    DISCOVERY_USER = "discovery-user", Clustering, Text, "", Implemented, "User, or user:password, at the discovery service.";
    DISCOVERY_PASSWORD = "discovery-password", Clustering, Text, "", Implemented, "Password at the discovery service.";
    DISCOVERY_FALLBACK = "discovery-fallback", Clustering, OneOf(&["exit", "proxy"]), "exit", Implemented, "What to do when discovery fails; only `exit` is left.";
    DISCOVERY_SRV = "discovery-srv", Clustering, Text, "", Implemented, "DNS domain whose SRV records name the initial cluster.";
    DISCOVERY_SRV_NAME = "discovery-srv-name", Clustering, Text, "", Implemented, "Suffix of the service name in the SRV query.";
    STRICT_RECONFIG_CHECK = "strict-reconfig-check", Clustering, Bool, "true", Implemented, "Refuse changes of membership that would lose the quorum.";
    PRE_VOTE = "pre-vote", Clustering, Bool, "true", Implemented, "Ask for votes before an election, so that a member that comes back does not disturb the leader.";
    AUTO_COMPACTION_RETENTION = "auto-compaction-retention", Clustering, Text, "0", Implemented, "How much history to keep: hours or a duration in mode periodic, revisions in mode revision; 0 keeps all.";
    AUTO_COMPACTION_MODE = "auto-compaction-mode", Clustering, Text, "periodic", Implemented, "What --auto-compaction-retention counts: periodic or revision.";
    V2_DEPRECATION = "v2-deprecation", Clustering, AnyOf(&["write-only", "write-only-skip-check", "write-only-drop-data", "gone"]), "write-only", Legacy("--v2-deprecation is deprecated and scheduled for removal in v3.8. The default value is enforced, ignoring user input."), "Phase of the removal of the v2 store.";
    CERT_FILE = "cert-file", Security, Text, "", Implemented, "Certificate file (PEM) of the client listeners, for https URLs.";
    KEY_FILE = "key-file", Security, Text, "", Implemented, "Key file (PEM) of the client listeners.";
    CLIENT_CERT_AUTH = "client-cert-auth", Security, Bool, "false", Implemented, "Require certificates of clients. With authentication on, a certificate's common name is the user.";
    CLIENT_CERT_FILE = "client-cert-file", Security, Text, "", Implemented, "Certificate file for connections to client URLs, which only the console opens (--listen-console-urls). Without one, the file is checked, reloaded and watched for its end.";
    CLIENT_KEY_FILE = "client-key-file", Security, Text, "", Implemented, "Key file of --client-cert-file.";
    CLIENT_CRL_FILE = "client-crl-file", Security, Text, "", Implemented, "List of revoked client certificates, DER or PEM.";
    CLIENT_CERT_ALLOWED_HOSTNAME = "client-cert-allowed-hostname", Security, Words, "", Implemented, "Host names of which one must be in a client's certificate.";
    TRUSTED_CA_FILE = "trusted-ca-file", Security, Text, "", Implemented, "CA file that clients' certificates are verified with. With it clients must show a certificate.";
    AUTO_TLS = "auto-tls", Security, Bool, "false", Implemented, "Serve clients with a generated certificate, unless --cert-file is given.";
    PEER_CERT_FILE = "peer-cert-file", Security, Text, "", Implemented, "Certificate file (PEM) of the peer listeners, for https URLs; also shown to other members.";
    PEER_KEY_FILE = "peer-key-file", Security, Text, "", Implemented, "Key file (PEM) of the peer listeners.";
    PEER_CLIENT_CERT_AUTH = "peer-client-cert-auth", Security, Bool, "false", Implemented, "Require certificates of other members.";
    PEER_CLIENT_CERT_FILE = "peer-client-cert-file", Security, Text, "", Implemented, "Certificate file for connections to other members, instead of --peer-cert-file.";
    PEER_CLIENT_KEY_FILE = "peer-client-key-file", Security, Text, "", Implemented, "Key file of --peer-client-cert-file.";
    PEER_TRUSTED_CA_FILE = "peer-trusted-ca-file", Security, Text, "", Implemented, "CA file that other members' certificates are verified with. With it they must show a certificate.";
    PEER_CERT_ALLOWED_CN = "peer-cert-allowed-cn", Security, Words, "", Implemented, "Common names of which one must be in another member's certificate.";
    PEER_CERT_ALLOWED_HOSTNAME = "peer-cert-allowed-hostname", Security, Words, "", Implemented, "Host names of which one must be in another member's certificate.";
    PEER_AUTO_TLS = "peer-auto-tls", Security, Bool, "false", Implemented, "Speak to other members with a generated certificate, unless --peer-cert-file is given. Any certificate of theirs is taken.";
    SELF_SIGNED_CERT_VALIDITY = "self-signed-cert-validity", Security, Uint, "1", Implemented, "Years a generated certificate is valid.";
    PEER_CRL_FILE = "peer-crl-file", Security, Text, "", Implemented, "List of revoked certificates of other members, DER or PEM.";
    CIPHER_SUITES = "cipher-suites", Security, Words, "", Implemented, "TLS 1.2 cipher suites, by Go's names; none means all that are supported.";
    CORS = "cors", Security, Origins, "*", Implemented, "Comma list of origins (scheme, host and port) whose pages may read answers in a browser; * means all.";
    HOST_WHITELIST = "host-whitelist", Security, List, "*", Implemented, "Comma list of host names that HTTP requests without TLS may be for; * means all.";
    TLS_MIN_VERSION = "tls-min-version", Security, Text, "TLS1.2", Implemented, "Lowest TLS version, of clients and members: TLS1.2 or TLS1.3.";
    TLS_MAX_VERSION = "tls-max-version", Security, Text, "", Implemented, "Highest TLS version, of clients and members: TLS1.2 or TLS1.3; empty means the highest there is.";
    AUTH_TOKEN = "auth-token", Auth, Text, "simple", Implemented, "Kind of authentication token and its options: simple or jwt.";
    BCRYPT_COST = "bcrypt-cost", Auth, Uint, "10", Implemented, "Cost of hashing a password, 4 to 31.";
    AUTH_TOKEN_TTL = "auth-token-ttl", Auth, Uint, "300", Implemented, "Seconds a simple token is valid after its last use.";
    ENABLE_PPROF = "enable-pprof", Profiling, Bool, "false", Implemented, "Serve profiles under /debug/pprof/ at the client URLs, to whoever can reach them.";
    METRICS = "metrics", Profiling, Text, "basic", Implemented, "Detail of metrics: basic, or extensive to add histograms of gRPC handling times.";
    METRICS_HEAVY_HITTERS = "metrics-heavy-hitters", Profiling, Bool, "false", Implemented, "Tell in metrics which prefixes of keys, users and clients take most requests, bytes and time, to whoever can read metrics; prefixes and users only while authentication is off. No flag of etcd's.";
    LISTEN_METRICS_URLS = "listen-metrics-urls", Profiling, Urls, "", Implemented, "Further URLs to serve metrics and health on.";
    LOGGER = "logger", Logging, Text, "zap", Implemented, "Form of the log; zap is the only one.";
    LOG_OUTPUTS = "log-outputs", Logging, List, "default", Implemented, "Where the log goes: default or stderr, stdout, or file paths, as a comma list.";
    LOG_LEVEL = "log-level", Logging, Text, "info", Implemented, "Least severe level that is logged: debug, info, warn, error, panic or fatal.";
    LOG_FORMAT = "log-format", Logging, Text, "json", Implemented, "Form of a line: json or console.";
    ENABLE_LOG_ROTATION = "enable-log-rotation", Logging, Bool, "false", Implemented, "Move the log file aside when it is full, and begin another one. --log-outputs has to name one file.";
    LOG_ROTATION_CONFIG_JSON = "log-rotation-config-json", Logging, Text, "{\"maxsize\": 100, \"maxage\": 0, \"maxbackups\": 0, \"localtime\": false, \"compress\": false}", Implemented, "With --enable-log-rotation: the size in MiB at which the file is moved aside, the days and the number of files after which older ones are removed (0: never), whether their names have local time, and whether they are compressed.";
    WARNING_UNARY_REQUEST_DURATION = "warning-unary-request-duration", Logging, Duration, "300ms", Implemented, "Time from which on a unary request is logged as slow.";
    ENABLE_DISTRIBUTED_TRACING = "enable-distributed-tracing", Tracing, Bool, "false", Implemented, "Send spans to a collector.";
    DISTRIBUTED_TRACING_ADDRESS = "distributed-tracing-address", Tracing, Text, "localhost:4317", Implemented, "Address of the collector, which takes OTLP over gRPC without TLS.";
    DISTRIBUTED_TRACING_SERVICE_NAME = "distributed-tracing-service-name", Tracing, Text, "etcd", Implemented, "Service name in spans.";
    DISTRIBUTED_TRACING_INSTANCE_ID = "distributed-tracing-instance-id", Tracing, Text, "", Implemented, "Instance id in spans.";
    DISTRIBUTED_TRACING_SAMPLING_RATE = "distributed-tracing-sampling-rate", Tracing, Int, "0", Implemented, "Traces begun out of a million calls whose clients are not traced themselves; those of clients that are traced are always sent.";
    CORRUPT_CHECK_TIME = "corrupt-check-time", Features, Duration, "0s", Implemented, "Time between checks that all members hold the same data (0 to disable).";
    COMPACT_HASH_CHECK_TIME = "compact-hash-check-time", Features, Duration, "1m0s", Implemented, "Time between checks that members' hashes at the last compaction agree.";
    COMPACTION_BATCH_LIMIT = "compaction-batch-limit", Features, Int, "0", Implemented, "Most revisions removed in one step of a compaction; 0 means 1000.";
    COMPACTION_SLEEP_INTERVAL = "compaction-sleep-interval", Features, Duration, "0s", Implemented, "Pause between two steps of a compaction; 0 means 1ms, since a step holds nobody up for long.";
    PEER_SKIP_CLIENT_SAN_VERIFICATION = "peer-skip-client-san-verification", Features, Bool, "false", Implemented, "Do not compare the names and addresses in other members' certificates with where they come from.";
    WATCH_PROGRESS_NOTIFY_INTERVAL = "watch-progress-notify-interval", Features, Duration, "0s", Implemented, "Time between progress notifications to idle watchers that asked for them; 0 means 10m.";
    WARNING_APPLY_DURATION = "warning-apply-duration", Features, Duration, "100ms", Implemented, "Time from which on applying a request is logged as slow.";
    BOOTSTRAP_DEFRAG_THRESHOLD_MEGABYTES = "bootstrap-defrag-threshold-megabytes", Features, Uint, "0", NoEffect("the engine needs no defragmentation"), "Megabytes that defragmenting at start must free to be done.";
    MAX_LEARNERS = "max-learners", Features, Int, "1", Implemented, "Most learners in the cluster.";
    CLIENT_MEMORY_BYTES = "client-memory-bytes", Features, Uint, "0", Implemented, "Bytes that all clients together may make this member hold for them; 0 means a quarter of the machine's memory, or of the control group's limit. Never less than 32 MiB and four times --max-request-bytes. No flag of etcd's.";
    MAX_CONNECTIONS_PER_ADDRESS = "max-connections-per-address", Features, Uint, "0", Implemented, "Connections that clients of one address may have open; 0 means three quarters of what the limit of open files allows for all. No flag of etcd's.";
    MAX_EXPENSIVE_CALLS = "max-expensive-calls", Features, Uint, "0", Implemented, "Expensive calls (what may look at many keys, changes, leases or users; COMPAT-118 lists them) that a user, or an address without users, may make in a second; 0 means any number. No flag of etcd's.";
    AUDIT_LOG = "audit-log", Features, Text, "", Implemented, "File into which a line of JSON is written for each call that changes something or is refused: who asked, from where, for what, and what came of it. Lines about refused calls go to FILE.refused. Empty means none. No flag of etcd's.";
    AUDIT_LOG_MAX_BYTES = "audit-log-max-bytes", Features, Uint, "104857600", Implemented, "Bytes from which on the file of --audit-log is renamed and another one begun; at least 1 MiB. No flag of etcd's.";
    AUDIT_LOG_FILES = "audit-log-files", Features, Uint, "10", Implemented, "Files of --audit-log that are kept, the newest included; at most 1000. No flag of etcd's.";
    AUDIT_LOG_READS = "audit-log-reads", Features, Bool, "false", Implemented, "Write calls that change nothing into --audit-log, too. No flag of etcd's.";
    RAFT_PIPELINE = "raft-pipeline", Features, Bool, "true", Implemented, "Propose the next batch of writes while the one before is written, replicated or applied; false does one after the other, to measure the difference. No flag of etcd's.";
    BATCH_FSYNC_WINDOW = "batch-fsync-window", Features, Duration, "5ms", Implemented, "Longest time that writes are gathered for one sync of the log, 0 to 5ms. They wait only where it pays: for 2ms at most where batches are large already, and at a member without others, where a sync takes 1ms or more, for the end of the one under way and then for half of a sync's time at most; 0 waits for neither. No flag of etcd's.";
    ZONE = "zone", Features, Text, "", Implemented, "Name of the zone that this member is in. Clients that ask for it prefer members of their own zone. No flag of etcd's.";
    DOWNGRADE_CHECK_TIME = "downgrade-check-time", Features, Duration, "5s", Implemented, "Time between checks of the state of a downgrade; 0 looks never, and a downgrade has to be ended by hand.";
    API_VERSION = "api-version", Features, OneOf(&["3.5", "3.6", "3.7"]), "3.7", Implemented, "Release of etcd that this member presents to clients and other members. No flag of etcd's.";
    FORCE_NEW_CLUSTER = "force-new-cluster", Unsafe, Bool, "false", Implemented, "Make a cluster of one member out of this member's data.";
    UNSAFE_NO_FSYNC = "unsafe-no-fsync", Unsafe, Bool, "false", Implemented, "Do not sync writes to disk. Loses acknowledged writes when the machine stops.";
    CONFIG_FILE = "config-file", General, Text, "", Implemented, "Path of a configuration file (YAML or JSON), for which all other flags and the environment are ignored.";
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

/// An old spelling that etcd accepted until 3.6 and that 3.7 refuses. It is accepted with a warning, for
/// manifests that still use it.
#[derive(Clone, Copy, Debug)]
pub struct OldSpelling {
    /// Name without leading dashes.
    pub name: &'static str,
    /// Current name.
    pub successor: Successor,
}

/// Current name of an old spelling.
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
