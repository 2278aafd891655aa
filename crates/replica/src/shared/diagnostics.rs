//! Data for operators about the work of a member: metrics, statistics per client, slow requests, traces, and
//! the audit log.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use telemetry::audit::AuditLog;
use telemetry::callers::Callers;
use telemetry::heavy_hitters::HeavyHitters;
use telemetry::metrics::Metrics;
use telemetry::slow_requests::SlowRequests;
use telemetry::tracing::Tracer;

use crate::stages::Stages;

/// Metrics and records of a member's work.
pub struct Diagnostics {
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// True if the metrics include the key prefixes, users and clients that cause the most load.
    pub heavy_hitters_in_metrics: bool,
    /// True if profiles (pprof) are served.
    pub pprof: bool,
    /// Statistics per client address.
    pub callers: Callers,
    /// Slow requests, and the clients that sent them.
    pub slow_requests: SlowRequests,
    /// Key prefixes, users and clients that cause the most load.
    pub heavy_hitters: HeavyHitters,
    /// Times at which the newest log entries passed each stage.
    pub stages: Stages,
    /// Bytes and objects that the core holds in memory.
    pub memory: CoreMemory,
    /// Decides which calls are traced, if any are. Boot sets it once, after it has started the thread that
    /// sends spans. It cannot be set earlier, because the parts of a member are built before any of its
    /// threads runs.
    pub tracer: OnceLock<Arc<Tracer>>,
    /// The audit log, if it is configured, and a flag that is true if it also records calls that change
    /// nothing. Boot sets it once, after it has started the thread that writes the log. It cannot be set
    /// earlier, because the parts of a member are built before any of its threads runs.
    pub audit: OnceLock<(Arc<AuditLog>, bool)>,
}

impl Diagnostics {
    /// Returns diagnostics with these metrics, and without a tracer or an audit log. Profiles (pprof) are not
    /// served. The metrics do not include the heavy hitters, which are counted from `now` on.
    pub fn new(metrics: Arc<Metrics>, now: Instant) -> Diagnostics {
        Diagnostics {
            metrics,
            heavy_hitters_in_metrics: false,
            pprof: false,
            callers: Callers::default(),
            slow_requests: SlowRequests::default(),
            heavy_hitters: HeavyHitters::new(now),
            stages: Stages::default(),
            memory: CoreMemory::default(),
            tracer: OnceLock::new(),
            audit: OnceLock::new(),
        }
    }
}

/// Counts and sizes of the core's memory. The core updates them at the end of each turn in which the log or
/// the state has changed.
#[derive(Debug, Default)]
pub struct CoreMemory {
    /// Number of records, nodes and separators of the index, including those that are in memory
    /// only because an old view is still held.
    pub index_objects: AtomicU64,
    /// Bytes of the records, nodes and separators that [`Self::index_objects`] counts.
    pub index_bytes: AtomicU64,
    /// Bytes by which the index has grown since it last adopted a checkpoint in blocks
    /// ([`mvcc::Stats::pinned_bytes`]).
    pub index_pinned_bytes: AtomicU64,
    /// Bytes of the newest log entries, which are kept in memory for followers.
    pub window_bytes: AtomicU64,
    /// Bytes of entries that wait to be written to the log, or to be applied.
    pub queued_bytes: AtomicU64,
}
