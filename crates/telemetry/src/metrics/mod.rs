//! Holds a member's metrics, with etcd's names, and writes them in Prometheus' text format.
//!
//! The module does not know HTTP, nor who updates a metric. Callers hold typed handles, which are grouped in
//! structs (`metrics.server.proposals_committed`). Names, labels and bounds are in one table (`table.rs`).
//!
//! Invariants: updating a counter takes no lock and touches one cache line, which threads share only if there
//! are more threads than lanes; a histogram touches two at most. The number of series is bounded. Names,
//! types and bounds of etcd's metrics are kept. Tests: beside the code, and `tests/it/metrics.rs`, which
//! compares the table with etcd's metrics.

mod family;
mod grpc;
mod process;
mod registry;
mod series;
mod table;
mod text;

pub use family::{Descriptor, Labelled};
pub use grpc::{GrpcMetrics, MethodMetrics, MethodTotals};
pub use process::{file_descriptor_limit, open_files_max};
pub use series::{Buckets, Counter, Distribution, Gauge, Histogram, Total};
pub use table::{
    AuditMetrics, BackupMetrics, DiskMetrics, HealthMetrics, IndexMetrics, LeaseMetrics, LongReadMetrics,
    MvccMetrics, NetworkMetrics, ScrapeMetrics, ServerMetrics, ShadowMetrics, StateHashMetrics, TlsMetrics,
    TracingMetrics, ValueCompressionMetrics,
};
pub use text::{CONTENT_TYPE, MetricType};

use std::sync::atomic::{AtomicBool, Ordering};

use api::{API_VERSION, RUNTIME_VERSION, Rpc};
use registry::Registry;
use text::Writer;

/// Values of the label `success`, indexed by the boolean as a number.
const SUCCESS: [&str; 2] = ["false", "true"];
/// Value of the label `version` of applied requests. It is always the same, because only etcd's API version 3
/// exists.
const APPLY_VERSION: &str = "v3";

/// Level of detail of the exported metrics, as `--metrics` sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsDetail {
    /// All metrics except histograms of the durations of gRPC calls.
    Basic,
    /// All metrics, including histograms of the durations of gRPC calls.
    Extensive,
}

/// All metrics of one member.
pub struct Metrics {
    /// Metrics of the member's raft node and of the requests.
    pub server: ServerMetrics,
    /// Metrics of the HTTP health checks.
    pub health: HealthMetrics,
    /// Metrics of the multi-version store and its watches.
    pub mvcc: MvccMetrics,
    /// Metrics of long reads, which keep old revisions from being removed.
    pub long_reads: LongReadMetrics,
    /// Metrics of the audit log.
    pub audit: AuditMetrics,
    /// Metrics of leases.
    pub lease: LeaseMetrics,
    /// Metrics of the write-ahead log and the checkpoints.
    pub disk: DiskMetrics,
    /// Metrics of the memory of the index.
    pub index: IndexMetrics,
    /// Metrics of the compression of values.
    pub value_compression: ValueCompressionMetrics,
    /// Metrics of the traffic with clients and other members.
    pub network: NetworkMetrics,
    /// Metrics of the leader's check that the replicated states of all members are equal.
    pub state_hash: StateHashMetrics,
    /// Metrics of TLS.
    pub tls: TlsMetrics,
    /// Metrics of scrapes, that is, of requests for metrics.
    pub scrapes: ScrapeMetrics,
    /// Metrics of tracing.
    pub tracing: TracingMetrics,
    /// Metrics of a shadow.
    pub shadow: ShadowMetrics,
    /// Metrics of a backup.
    pub backup: BackupMetrics,
    /// Metrics of gRPC methods.
    pub grpc: GrpcMetrics,
    /// True if the metrics of a shadow are exported.
    is_shadow: AtomicBool,
    /// True if the metrics of a backup are exported.
    is_backup: AtomicBool,
    registry: Registry,
}

/// Beginning of the names of metrics that only a shadow exports.
const OF_SHADOW: &str = "mainstay_shadow_";
/// Beginning of the names of metrics that only a process exports which makes a backup.
const OF_BACKUP: &str = "mainstay_backup_";

/// Counters of the requests from clients of one API version.
#[derive(Clone)]
pub struct ClientRequests {
    /// Number of unary requests.
    pub unary: Counter,
    /// Number of streams.
    pub stream: Counter,
}

/// Metrics of one health check.
#[derive(Clone)]
pub struct HealthCheck {
    last: Gauge,
    successes: Counter,
    errors: Counter,
}

impl Metrics {
    /// Returns metrics at zero for a server with these methods.
    pub fn new(rpcs: &[Rpc], detail: MetricsDetail) -> Metrics {
        let mut registry = Registry::default();
        let metrics = Metrics {
            server: ServerMetrics::register(&mut registry),
            health: HealthMetrics::register(&mut registry),
            mvcc: MvccMetrics::register(&mut registry),
            long_reads: LongReadMetrics::register(&mut registry),
            audit: AuditMetrics::register(&mut registry),
            lease: LeaseMetrics::register(&mut registry),
            disk: DiskMetrics::register(&mut registry),
            index: IndexMetrics::register(&mut registry),
            value_compression: ValueCompressionMetrics::register(&mut registry),
            network: NetworkMetrics::register(&mut registry),
            state_hash: StateHashMetrics::register(&mut registry),
            tls: TlsMetrics::register(&mut registry),
            scrapes: ScrapeMetrics::register(&mut registry),
            tracing: TracingMetrics::register(&mut registry),
            shadow: ShadowMetrics::register(&mut registry),
            backup: BackupMetrics::register(&mut registry),
            is_shadow: AtomicBool::new(false),
            is_backup: AtomicBool::new(false),
            grpc: GrpcMetrics::register(&mut registry, rpcs, detail == MetricsDetail::Extensive),
            registry,
        };
        metrics.set_version(API_VERSION);
        metrics.server.go_version.with(&[RUNTIME_VERSION]).set(1);
        for code in ["200", "500", "503"] {
            metrics.scrapes.requests.with(&[code]);
        }
        metrics
    }

    /// Exports the metrics of a shadow, too.
    pub fn export_shadow(&self) {
        for result in ["equal", "different", "skipped"] {
            self.shadow.comparisons.with(&[result]);
        }
        self.is_shadow.store(true, Ordering::Relaxed);
    }

    /// Exports the metrics of a backup, too.
    pub fn export_backup(&self) {
        self.is_backup.store(true, Ordering::Relaxed);
    }

    /// Sets the version that this member reports.
    pub fn set_version(&self, release: &str) {
        self.server.version.mark_only(&[vec![release.to_owned()]]);
    }

    /// Returns the descriptions of all metrics, sorted by name, without the metrics of the process.
    pub fn descriptors(&self) -> impl Iterator<Item = &Descriptor> {
        self.registry.descriptors()
    }

    /// Appends the metrics to `out`, in Prometheus' text format. Reads the metrics of the process from
    /// `/proc`.
    pub fn render(&self, out: &mut String) {
        let mut writer = Writer::new(out);
        let is_shadow = self.is_shadow.load(Ordering::Relaxed);
        let is_backup = self.is_backup.load(Ordering::Relaxed);
        self.registry.render(&mut writer, |name| {
            (is_shadow || !name.starts_with(OF_SHADOW)) && (is_backup || !name.starts_with(OF_BACKUP))
        });
        process::render(&mut writer);
    }
}

impl ServerMetrics {
    /// Sets the series whose label is the id of this member to 1.
    pub fn set_id(&self, id: u64) {
        self.id.with(&[&format!("{id:x}")]).set(1);
    }

    /// Sets the series of the current cluster version, such as `3.7`, to 1. The series of earlier versions
    /// become 0.
    pub fn set_cluster_version(&self, now: &str) {
        self.cluster_version.mark_only(&[vec![now.to_owned()]]);
    }

    /// Sets the series of the active alarms to 1. An alarm is identified by the member that raised it and by
    /// its name. The series of cleared alarms become 0.
    pub fn set_alarms(&self, raised: impl Iterator<Item = (u64, &'static str)>) {
        let raised: Vec<Vec<String>> =
            raised.map(|(member, name)| vec![format!("{member:x}"), name.to_owned()]).collect();
        self.alarms.mark_only(&raised);
    }

    /// Sets the series of the feature gates. Each gate is given by its name, its stage (`ALPHA`, `BETA`), and
    /// true if it is enabled.
    pub fn set_features(&self, gates: impl IntoIterator<Item = (&'static str, &'static str, bool)>) {
        for (name, stage, is_enabled) in gates {
            self.feature_enabled.with(&[name, stage]).set_bool(is_enabled);
        }
    }

    /// Returns the counters of the requests from clients of this API version, or `unknown` if the client does
    /// not name its version. This takes a lock, so keep the result for a connection.
    pub fn client_requests_of(&self, api_version: &str) -> ClientRequests {
        ClientRequests {
            unary: self.client_requests.with(&["unary", api_version]),
            stream: self.client_requests.with(&["stream", api_version]),
        }
    }

    /// Returns the histogram of the time to apply requests of type `op` (`Put`, `Txn`, …), for those that
    /// succeeded or for those that failed. This takes a lock, so keep the result.
    pub fn apply_duration_of(&self, op: &str, success: bool) -> Histogram {
        self.apply_duration.with(&[APPLY_VERSION, op, SUCCESS[usize::from(success)]])
    }

    /// Returns the histogram of the duration of ranges, for those that succeeded or for those that failed.
    /// This takes a lock, so keep the result.
    pub fn range_duration_of(&self, success: bool) -> Histogram {
        self.range_duration.with(&[SUCCESS[usize::from(success)]])
    }

    /// Returns the histogram of the duration of a stage of requests. This takes a lock, so keep the result.
    pub fn stage(&self, stage: &str) -> Histogram {
        self.stages.with(&[stage])
    }

    /// Returns the histogram of the duration of requests of type `request`, for those that succeeded or for
    /// those that failed. This takes a lock, so keep the result.
    pub fn request_duration_of(&self, request: &str, success: bool) -> Histogram {
        self.request_duration.with(&[request, SUCCESS[usize::from(success)]])
    }
}

impl NetworkMetrics {
    /// Sets the series of the current members to 1, and the series of former members to 0.
    pub fn set_members(&self, local: u64, members: impl Iterator<Item = u64>) {
        let local = format!("{local:x}");
        let members: Vec<Vec<String>> = members.map(|id| vec![local.clone(), format!("{id:x}")]).collect();
        self.known_peers.mark_only(&members);
    }
}

impl HealthMetrics {
    /// Returns the metrics of the health check `name` at the endpoint `endpoint` (`livez` or `readyz`).
    pub fn check(&self, endpoint: &str, name: &str) -> HealthCheck {
        HealthCheck {
            last: self.healthcheck.with(&[endpoint, name]),
            successes: self.healthchecks.with(&[endpoint, name, "success"]),
            errors: self.healthchecks.with(&[endpoint, name, "error"]),
        }
    }
}

impl HealthCheck {
    /// Records the result of one run of the check.
    pub fn record(&self, healthy: bool) {
        self.last.set_bool(healthy);
        if healthy { self.successes.inc() } else { self.errors.inc() }
    }
}
