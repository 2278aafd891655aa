//! A member's options: one table, from which parser, environment variables, help text and documentation follow.
//!
//! What it does not know: sockets, clocks, and files but the one of `--config-file`. It turns arguments and environment, or that
//! file, into a [`Config`], or into a [`Refusal`] with etcd's words and exit code.
//!
//! Invariants: no option is accepted and silently ignored ([`flag::Status`]); a [`Config`] has passed every check
//! that can be made without looking at the machine. Tests: beside the code, and `tests/it/options.rs`.

#![forbid(unsafe_code)]

mod bootstrap;
mod config_file;
mod discovery;
pub mod feature_gate;
pub mod flag;
mod help;
pub mod identity;
pub mod log_settings;
mod parser;
mod refusal;
pub mod table;
mod tls_options;
pub use api::url;
mod validation;
mod yaml;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use api::API_VERSION;
pub use bootstrap::{Bootstrap, BootstrapError, InitialMember};
pub use discovery::{Discovery, DiscoveryService};
pub use feature_gate::FeatureGates;
pub use help::{RUNTIME_VERSION, flag_help, flags_page, usage, version_text};
pub use log_settings::{Format, Level, LogOutput, LogSettings};
pub use parser::parse;
pub use refusal::{Entry, Refusal};
pub use tls_options::TlsOptions;
pub use url::Url;
pub use validation::QUOTA_BYTES_DEFAULT;

/// The request of the command line.
#[derive(Clone, Debug)]
pub enum Invocation {
    /// Run a member.
    Serve(Box<Parsed>),
    /// Print [`usage`] on stderr and [`flag_help`] on stdout, and exit with 0.
    Help,
    /// Print [`version_text`] on stdout, and exit with 0.
    Version,
}

/// A valid configuration, and what the operator is to be told of it once the log is open.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The options.
    pub config: Config,
    /// Entries to be logged as warnings.
    pub warnings: Vec<Entry>,
    /// Entries to be logged for information.
    pub notices: Vec<Entry>,
}

/// Where the audit log goes, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLogOptions {
    /// The file.
    pub path: PathBuf,
    /// Bytes from which on another file is begun; at least 1 MiB.
    pub file_bytes_max: u64,
    /// Files that are kept, the newest included; at least one.
    pub files_max: u64,
    /// True if calls that change nothing are in it.
    pub reads: bool,
}

/// The options of one member.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the member.
    pub name: String,
    /// Directory of the member's data.
    pub data_dir: PathBuf,
    /// Directory of the log, if it is not in the data directory.
    pub wal_dir: Option<PathBuf>,
    /// Take a member over whose data directory was written by etcd.
    pub import_etcd_data: bool,
    /// Listeners for other members; at least one.
    pub listen_peer_urls: Vec<Url>,
    /// Listeners for clients; at least one.
    pub listen_client_urls: Vec<Url>,
    /// Listeners for clients that ask for pages over HTTP; if there are any, those above serve gRPC only.
    pub listen_client_http_urls: Vec<Url>,
    /// Further listeners for metrics and health.
    pub listen_metrics_urls: Vec<Url>,
    /// Listeners of the web console; none if it is off.
    pub listen_console_urls: Vec<Url>,
    /// Peer URLs other members are told; at least one.
    pub initial_advertise_peer_urls: Vec<Url>,
    /// Client URLs clients are told; at least one.
    pub advertise_client_urls: Vec<Url>,
    /// The cluster to be formed or joined, as written. Read it with [`Config::bootstrap`], and only when the data
    /// directory holds no member: etcd does not look at it otherwise.
    pub initial_cluster: String,
    /// Where the members of the initial cluster are found; `None` if `initial_cluster` names them.
    pub discovery: Option<Discovery>,
    /// Says if a cluster is formed or joined.
    pub initial_cluster_state: InitialClusterState,
    /// Text mixed into ids.
    pub initial_cluster_token: String,
    /// TLS of the listeners for clients and metrics.
    pub client_tls: TlsOptions,
    /// TLS of the listeners for members, and of connections to them.
    pub peer_tls: TlsOptions,
    /// Bytes the data may take; `None` for no limit.
    pub quota_backend_bytes: Option<u64>,
    /// Compaction without being asked.
    pub auto_compaction: AutoCompaction,
    /// Applied entries between two checkpoints; not 0.
    pub snapshot_count: u64,
    /// Entries kept behind a checkpoint for followers that lag; not 0.
    pub snapshot_catchup_entries: u64,
    /// Largest request of a client, in bytes.
    pub max_request_bytes: u64,
    /// Most operations in a transaction.
    pub max_txn_ops: u64,
    /// Kind of the tokens of users, and its options, as written.
    pub auth_token: String,
    /// Time for which a simple token is valid after its last use; zero for the default.
    pub auth_token_ttl: Duration,
    /// Cost of hashing a password, as written; 4 to 31 are valid.
    pub bcrypt_cost: u64,
    /// The audit log, if there is one.
    pub audit_log: Option<AuditLogOptions>,
    /// Most streams on one client connection.
    pub max_concurrent_streams: u32,
    /// Bytes that all clients together may make this member hold; `None` for a part of the machine's.
    pub client_memory_bytes: Option<u64>,
    /// Time between two heartbeats; not 0.
    pub heartbeat_interval: Duration,
    /// Time without a leader after which an election begins; 5 heartbeats to 50 s.
    pub election_timeout: Duration,
    /// True if the first election timeout after a start is shortened.
    pub initial_election_tick_advance: bool,
    /// Outputs, format and level of the log.
    pub log: LogSettings,
    /// Says if the histograms of gRPC handling times are exported.
    pub metrics: MetricsDetail,
    /// True if metrics tell which prefixes, users and clients take most.
    pub heavy_hitters_in_metrics: bool,
    /// Where spans of calls are sent, if they are.
    pub tracing: Option<TracingOptions>,
    /// True if profiles are served.
    pub pprof: bool,
    /// Duration from which applying a request is logged as slow; zero logs all.
    pub warning_apply_duration: Duration,
    /// Duration from which a unary request is logged as slow; not zero.
    pub warning_unary_request_duration: Duration,
    /// Time between progress notifications of a watch; not zero.
    pub watch_progress_notify_interval: Duration,
    /// Shortest time between a client's pings; zero does not look.
    pub grpc_keepalive_min_time: Duration,
    /// Time between pings to a client; zero sends none.
    pub grpc_keepalive_interval: Duration,
    /// Time to wait for the answer to a ping; zero sends none.
    pub grpc_keepalive_timeout: Duration,
    /// True if votes are asked for before an election.
    pub pre_vote: bool,
    /// True if changes of membership that would lose the quorum are refused.
    pub strict_reconfig_check: bool,
    /// Most learners in the cluster.
    pub max_learners: u64,
    /// Names that HTTP requests without TLS may be for; `None` for any.
    pub host_whitelist: Option<Vec<String>>,
    /// True if calls in JSON are served under `/v3/`.
    pub enable_grpc_gateway: bool,
    /// Origins whose pages may read answers in a browser; `None` for any.
    pub cors: Option<Vec<String>>,
    /// Connections that clients of one address may have open; `None` for the default.
    pub max_connections_per_address: Option<u64>,
    /// Expensive calls that a client may make in a second; 0 for any number.
    pub max_expensive_calls: u64,
    /// The release of etcd that this member presents, such as `3.7.1`.
    pub api_version: &'static str,
    /// Time between looks whether a downgrade is over; zero looks never.
    pub downgrade_check_time: Duration,
    /// The zone this member says it is in; empty: none.
    pub zone: String,
    /// Duration of silence after which a connection from another member is given up.
    pub raft_read_timeout: Duration,
    /// Duration after which a connection to another member that takes nothing is given up.
    pub raft_write_timeout: Duration,
    /// True if this member is to become the only one of its cluster.
    pub force_new_cluster: bool,
    /// Time between comparisons of all members' data; zero does not compare.
    pub corrupt_check_time: Duration,
    /// Time between comparisons of members' hashes at the last compaction; not zero.
    pub compact_hash_check_time: Duration,
    /// True if writes are not synced. For tests: it loses acknowledged writes.
    pub unsafe_no_fsync: bool,
    /// Most revisions removed in one step of a compaction; not 0.
    pub compaction_batch_limit: u64,
    /// Pause between two steps of a compaction; not zero.
    pub compaction_sleep_interval: Duration,
    /// SO_REUSEPORT on listeners.
    pub socket_reuse_port: bool,
    /// SO_REUSEADDR on listeners.
    pub socket_reuse_address: bool,
    /// True if the next batch of proposals goes while the one before is written, replicated or applied.
    pub raft_pipeline: bool,
    /// The longest time that writes are gathered for one sync of the log; they wait only where that pays.
    pub batch_fsync_window: Duration,
    /// True if the process keeps all its memory from being swapped out.
    pub memory_mlock: bool,
    /// Feature gates that were set.
    pub feature_gates: FeatureGates,
}

impl Config {
    /// The address that connections to other members come from, with the feature gate `SetMemberLocalAddr`: the first one
    /// that is an IP address in the advertised peer URLs, and no loopback address; `None`: the system chooses.
    pub fn peer_local_address(&self) -> Option<IpAddr> {
        if !self.feature_gates.is_on("SetMemberLocalAddr") {
            return None;
        }
        let addresses = self.initial_advertise_peer_urls.iter().filter_map(|url| url.host().parse().ok());
        addresses.into_iter().find(|address: &IpAddr| !address.is_loopback() && !address.is_unspecified())
    }
}

/// Tracing of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingOptions {
    /// Host and port of the collector.
    pub address: String,
    /// Name of the service in spans.
    pub service_name: String,
    /// Id of the member in spans; empty for none.
    pub instance_id: String,
    /// Traces that are begun, out of a million calls without a parent.
    pub rate: u64,
}

/// Says if a member without data forms a cluster or joins one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialClusterState {
    /// The member forms a cluster, together with the other members named.
    New,
    /// The member joins a cluster to which it was added.
    Existing,
}

/// The mode of automatic compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoCompaction {
    /// Never.
    Off,
    /// History older than this is compacted; not zero.
    Periodic(Duration),
    /// History but for this many revisions is compacted; not 0.
    Revision(u64),
}

/// Detail of the exported metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsDetail {
    /// Metrics without histograms of gRPC handling times.
    Basic,
    /// Metrics with histograms of gRPC handling times.
    Extensive,
}
