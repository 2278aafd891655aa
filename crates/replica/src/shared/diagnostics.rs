//! Everything by which an operator sees what a member does: metrics, figures per client, traces, the audit log.

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
    /// True if the metrics include the heaviest prefixes, users and clients.
    pub heavy_hitters_in_metrics: bool,
    /// True if profiles (pprof) are served.
    pub pprof: bool,
    /// Figures per client address.
    pub callers: Callers,
    /// Expensive requests, and who sent them.
    pub slow_requests: SlowRequests,
    /// Prefixes, users and clients that cause the most load.
    pub heavy_hitters: HeavyHitters,
    /// Times at which the newest log entries passed each stage.
    pub stages: Stages,
    /// Memory that the core holds.
    pub memory: CoreMemory,
    /// Decides which calls are traced, if any are. Boot sets it once, after it has started the thread that
    /// sends spans: the parts of a member are built before any thread of it runs.
    pub tracer: OnceLock<Arc<Tracer>>,
    /// The audit log, if configured, and a flag: true if it also records calls that change nothing. Boot sets
    /// it once, after it has started the thread that writes the log: the parts of a member are built before
    /// any thread of it runs.
    pub audit: OnceLock<(Arc<AuditLog>, bool)>,
}

impl Diagnostics {
    /// Returns diagnostics that count from `now` on, with no profiles and no heaviest clients in the metrics.
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

/// Memory that the core holds, as the core counts it. The core updates the figures in turns in which the log
/// or the state has changed.
#[derive(Debug, Default)]
pub struct CoreMemory {
    /// Number of records, nodes and separators of the index, including those that are only reachable from
    /// held views.
    pub index_objects: AtomicU64,
    /// Bytes of the records, nodes and separators that [`Self::index_objects`] counts.
    pub index_bytes: AtomicU64,
    /// Bytes of the newest entries of the log, which are kept in memory for followers.
    pub window_bytes: AtomicU64,
    /// Bytes of entries that wait to be written to the log, or to be applied.
    pub queued_bytes: AtomicU64,
}
