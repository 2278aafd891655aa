//! Defines [`Config`]: the checked options of one member, grouped by subject.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::discovery::Discovery;
use super::feature_gate::{self, FeatureGates};
use super::tls_options::TlsOptions;
use api::url::Url;
use stdx::zones::{ZoneMemberList, ZoneNetworks};
use telemetry::logging::LogSettings;
use telemetry::metrics::MetricsDetail;

/// The options of one member.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the member.
    pub name: String,
    /// Zone that this member reports as its location; empty for none.
    pub zone: String,
    /// Networks of clients by zone, and what their clients get from MemberList.
    pub zone_networks: (ZoneNetworks, ZoneMemberList),
    /// Settings of an observer; `None` for a member.
    pub observer: Option<ObserverOptions>,
    /// Settings of the autopilot, which changes the membership while the member leads.
    pub autopilot: AutopilotSettings,
    /// True for a witness, which votes and keeps no keys. No flag sets it: the command `mainstay witness` does.
    pub is_witness: bool,
    /// False for a shadow, whose leases end only when they end at its source. No flag sets it.
    pub leases_expire: bool,
    /// Release of etcd that this member reports, such as `3.7.1`.
    pub api_version: &'static str,
    /// Feature gates that were set.
    pub feature_gates: FeatureGates,
    /// True if all memory of the process is locked, so that it is never swapped out.
    pub memory_mlock: bool,
    /// Data and log directories, and how the member writes to them.
    pub storage: StorageOptions,
    /// Listeners of the member.
    pub listen: ListenOptions,
    /// Formation of the cluster, URLs announced to its members and clients, and rules for membership changes.
    pub cluster: ClusterOptions,
    /// TLS of the listeners for clients and metrics.
    pub client_tls: TlsOptions,
    /// TLS of the listeners for members, and of connections to other members.
    pub peer_tls: TlsOptions,
    /// True if the members of the cluster share the secrets of TLS session tickets of clients. They then verify
    /// each other's certificates, also the names in them.
    pub share_tls_tickets: bool,
    /// Elections, replication and the length of the raft log.
    pub raft: RaftOptions,
    /// Limits on the size of the data, and on requests, connections and memory of clients.
    pub limits: LimitOptions,
    /// Options of the client service: pings, watch progress, and requests over HTTP.
    pub clients: ClientOptions,
    /// Options of user tokens and password hashes.
    pub auth: AuthOptions,
    /// Automatic compaction, and the speed of compactions.
    pub compaction: CompactionOptions,
    /// Intervals of periodic checks: comparisons of members' data, and the progress of a downgrade.
    pub checks: CheckOptions,
    /// Outputs, format and level of the log.
    pub log: LogSettings,
    /// Options of the audit log; `None` if it is off.
    pub audit_log: Option<AuditLogOptions>,
    /// Metrics, traces, profiles, and the durations above which requests are logged as slow.
    pub observability: ObservabilityOptions,
}

impl Config {
    /// Returns the local address for connections to other members: if the feature gate `SetMemberLocalAddr`
    /// is on, the first IP address in the advertised peer URLs that is not a loopback address. With `None`
    /// the operating system chooses the address.
    pub fn peer_local_address(&self) -> Option<IpAddr> {
        if !self.feature_gates.is_enabled(&feature_gate::SET_MEMBER_LOCAL_ADDR) {
            return None;
        }
        let addresses =
            self.cluster.initial_advertise_peer_urls.iter().filter_map(|url| url.host().parse().ok());
        addresses.into_iter().find(|address: &IpAddr| !address.is_loopback() && !address.is_unspecified())
    }
}

/// Data and log directories, and how the member writes to them.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// Directory of the member's data.
    pub data_dir: PathBuf,
    /// Directory of the log; `None` if it is in the data directory.
    pub wal_dir: Option<PathBuf>,
    /// True if the member may take over a data directory written by etcd.
    pub import_etcd_data: bool,
    /// True if writes are not synced to the disk. For tests only: acknowledged writes are lost if the machine
    /// crashes.
    pub unsafe_no_fsync: bool,
    /// Compression of old values in the log.
    pub value_compression: ValueCompression,
    /// Memory in bytes that the index should take at most; `None` if all of it is in memory.
    pub memory_budget_bytes: Option<u64>,
}

/// Compression of old values in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueCompression {
    /// No further values are compressed.
    None,
    /// Values are compressed with zstd where that saves space.
    Zstd,
}

/// Listeners of the member.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Listeners for other members; at least one.
    pub peer_urls: Vec<Url>,
    /// Listeners for clients; at least one.
    pub client_urls: Vec<Url>,
    /// Separate listeners for HTTP requests of clients. If there are any, the listeners of `client_urls`
    /// serve only gRPC.
    pub client_http_urls: Vec<Url>,
    /// Additional listeners for metrics and health checks.
    pub metrics_urls: Vec<Url>,
    /// Listeners of the web console; empty if it is off.
    pub console_urls: Vec<Url>,
    /// True if listeners use SO_REUSEPORT.
    pub reuse_port: bool,
    /// True if listeners use SO_REUSEADDR.
    pub reuse_address: bool,
}

/// Formation of the cluster, URLs announced to its members and clients, and rules for membership changes.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The cluster to form or join, as written. Parse it with [`Config::bootstrap`] only if the data
    /// directory contains no member; otherwise the member ignores this option, as in etcd.
    pub initial_cluster: String,
    /// State of the initial cluster: whether the member forms a new cluster or joins an existing one.
    pub initial_cluster_state: InitialClusterState,
    /// Name of the member of the initial cluster that is its witness; empty for none.
    pub initial_cluster_witness: String,
    /// Token that is included in the computation of ids.
    pub initial_cluster_token: String,
    /// Source of the list of members of the initial cluster; `None` if `initial_cluster` names them.
    pub discovery: Option<Discovery>,
    /// Peer URLs that are announced to other members; at least one.
    pub initial_advertise_peer_urls: Vec<Url>,
    /// Client URLs that are announced to clients; at least one.
    pub advertise_client_urls: Vec<Url>,
    /// True if this member removes all other members from its cluster when it starts.
    pub force_new_cluster: bool,
    /// True if membership changes that would lose the quorum are refused.
    pub strict_reconfig_check: bool,
    /// Maximum number of learners in the cluster.
    pub max_learners: u64,
}

/// Settings of the autopilot, which changes the membership while the member leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutopilotSettings {
    /// Mode of the autopilot.
    pub mode: AutopilotMode,
    /// Time without an answer after which a member counts as gone; at least five election timeouts.
    pub replace_after: Duration,
    /// Minimum time between two steps; from 1 s to 1 h.
    pub interval: Duration,
    /// True if this member, while it is a learner, waits until it is needed.
    pub is_standby: bool,
}

/// Degree to which the autopilot acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutopilotMode {
    /// It does nothing.
    Off,
    /// It logs what it would do.
    DryRun,
    /// It acts.
    On,
}

/// The settings of an observer, which follows the log of a cluster without being a member.
#[derive(Clone, Debug)]
pub struct ObserverOptions {
    /// Peer URLs of members or observers, from which the log is taken; at least one.
    pub feeds: Vec<Url>,
}

/// Elections, replication and the length of the raft log.
#[derive(Clone, Debug)]
pub struct RaftOptions {
    /// Time between two heartbeats; not 0.
    pub heartbeat_interval: Duration,
    /// Time without a leader after which an election begins; from 5 heartbeats to 50 s.
    pub election_timeout: Duration,
    /// True if the first election timeout after a start is shortened, so that a new leader is elected sooner.
    pub initial_election_tick_advance: bool,
    /// True if raft's pre-vote is used before an election.
    pub pre_vote: bool,
    /// Time without data after which a connection from another member is closed.
    pub read_timeout: Duration,
    /// Time without progress of a write after which a connection to another member is closed.
    pub write_timeout: Duration,
    /// True if a new batch of proposals may be begun while the previous batch is still being written,
    /// replicated or applied.
    pub pipeline: bool,
    /// Maximum time for which writes are delayed to share one sync of the log. Writes are delayed only if
    /// this improves throughput.
    pub batch_fsync_window: Duration,
    /// Number of applied entries since the last checkpoint before which normally no new checkpoint is taken;
    /// not 0.
    pub snapshot_count: u64,
    /// Number of entries before a checkpoint that the log keeps for slow followers; not 0.
    pub snapshot_catchup_entries: u64,
}

/// Limits on the size of the data, and on requests, connections and memory of clients.
#[derive(Clone, Debug)]
pub struct LimitOptions {
    /// Maximum number of bytes of data; `None` for no limit.
    pub quota_backend_bytes: Option<u64>,
    /// Maximum size of a client request in bytes.
    pub max_request_bytes: u64,
    /// Maximum number of operations in a transaction.
    pub max_txn_ops: u64,
    /// Maximum number of streams on one client connection.
    pub max_concurrent_streams: u32,
    /// Maximum number of open connections per client address; `None` for three quarters of the connections
    /// that the limit on open files allows.
    pub max_connections_per_address: Option<u64>,
    /// Maximum number of expensive calls per second of one user, or of one client address if the client is
    /// not authenticated; 0 for no limit.
    pub max_expensive_calls: u64,
    /// Maximum number of bytes of memory that this member uses for all clients together; `None` for a
    /// fraction of the machine's memory.
    pub client_memory_bytes: Option<u64>,
}

/// Options of the client service: pings, watch progress, and requests over HTTP.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Minimum time between HTTP/2 pings of a client, which is disconnected if it sends them more often; zero
    /// turns the check off.
    pub keepalive_min_time: Duration,
    /// Time between pings to a client; zero sends none.
    pub keepalive_interval: Duration,
    /// Time to wait for the response to a ping; zero sends no pings.
    pub keepalive_timeout: Duration,
    /// Time between progress notifications of a watch; not zero.
    pub watch_progress_notify_interval: Duration,
    /// True if calls in JSON are served under `/v3/`.
    pub enable_grpc_gateway: bool,
    /// Host names that HTTP requests without TLS may name; `None` for any.
    pub host_whitelist: Option<Vec<String>>,
    /// Origins whose web pages may read responses in a browser; `None` for any.
    pub cors: Option<Vec<String>>,
}

/// Options of user tokens and password hashes.
#[derive(Clone, Debug)]
pub struct AuthOptions {
    /// Kind of user tokens with its options, as written.
    pub token: String,
    /// Time for which a simple token is valid after its last use; zero for the default.
    pub token_ttl: Duration,
    /// Cost of hashing a password, as written; values from 4 to 31 are valid.
    pub bcrypt_cost: u64,
}

/// Automatic compaction, and the speed of compactions.
#[derive(Clone, Debug)]
pub struct CompactionOptions {
    /// Mode of automatic compaction.
    pub auto: AutoCompaction,
    /// Maximum number of revisions removed in one step of a compaction; not 0.
    pub batch_limit: u64,
    /// Pause between two steps of a compaction; not zero.
    pub sleep_interval: Duration,
}

/// Intervals of periodic checks: comparisons of members' data, and the progress of a downgrade.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Time between comparisons of all members' data; zero turns them off.
    pub corrupt_check_time: Duration,
    /// Time between comparisons of members' hashes at the last compaction; not zero.
    pub compact_hash_check_time: Duration,
    /// Time between checks whether a downgrade is finished; zero turns them off.
    pub downgrade_check_time: Duration,
}

/// Metrics, traces, profiles, and the durations above which requests are logged as slow.
#[derive(Clone, Debug)]
pub struct ObservabilityOptions {
    /// Detail of the metrics: whether histograms of gRPC handling times are exported.
    pub metrics: MetricsDetail,
    /// True if metrics show which prefixes, users and clients cause the most load.
    pub heavy_hitters_in_metrics: bool,
    /// Options for sending the spans of traced calls; `None` if tracing is off.
    pub tracing: Option<TracingOptions>,
    /// True if profiles are served.
    pub pprof: bool,
    /// Duration above which the application of a request is logged as slow; zero logs all requests.
    pub warning_apply_duration: Duration,
    /// Duration above which a unary request is logged as slow; not zero.
    pub warning_unary_request_duration: Duration,
}

/// Options of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLogOptions {
    /// Path of the newest file.
    pub path: PathBuf,
    /// Size in bytes above which a new file is begun; at least 1 MiB.
    pub file_bytes_max: u64,
    /// Number of files that are kept, including the newest; at least one.
    pub files_max: u64,
    /// True if calls that change nothing are logged too.
    pub reads: bool,
}

/// Options of distributed tracing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingOptions {
    /// Host and port of the collector.
    pub address: String,
    /// Name of the service in spans.
    pub service_name: String,
    /// Id of the member in spans; empty for none.
    pub instance_id: String,
    /// Number of traces started per million calls without a parent span.
    pub rate: u64,
}

/// State of the initial cluster: whether a member without data forms a new cluster or joins an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialClusterState {
    /// The member forms a cluster, together with the other members named.
    New,
    /// The member joins a cluster to which it was added.
    Existing,
}

/// Mode of automatic compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoCompaction {
    /// No automatic compaction.
    Off,
    /// Revisions older than this duration are compacted; not zero.
    Periodic(Duration),
    /// All revisions except this number of the latest ones are compacted; not 0.
    Revision(u64),
}
