//! Builds the options of a member's parts from its configuration.

use std::time::Duration;

use config::feature_gate::COMPACT_HASH_CHECK;
use config::{AutopilotMode, Config, MetricsDetail, ValueCompression};
use numbers::Seconds;
use replica::autopilot::{AutopilotOptions, Mode};
use replica::core::AutoCompaction;
use replica::shared::Limits;

/// Returns the options with which the data directory is opened.
pub(crate) fn storage_options(config: &Config) -> storage::Options {
    storage::Options {
        data_dir: config.storage.data_dir.clone(),
        wal_dir: config.storage.wal_dir.clone(),
        unsafe_no_fsync: config.storage.unsafe_no_fsync,
        observes: config.observer.is_some(),
        is_witness: config.is_witness,
        force_new_cluster: config.cluster.force_new_cluster,
        peer_urls: config.cluster.initial_advertise_peer_urls.clone(),
        rules: storage::rules(config.cluster.max_learners),
        memory_budget: config.storage.memory_budget_bytes,
        heartbeat_interval: config.raft.heartbeat_interval,
        election_timeout: config.raft.election_timeout,
        pre_vote: config.raft.pre_vote,
    }
}

/// Returns the options of the core.
pub(crate) fn core_options(config: &Config) -> replica::core::Options {
    replica::core::Options {
        heartbeat_interval: config.raft.heartbeat_interval,
        election_timeout: config.raft.election_timeout,
        initial_election_tick_advance: config.raft.initial_election_tick_advance,
        strict_reconfig_check: config.cluster.strict_reconfig_check,
        max_learners: config.cluster.max_learners,
        snapshot_count: config.raft.snapshot_count,
        snapshot_catchup_entries: config.raft.snapshot_catchup_entries,
        observes: config.observer.is_some(),
        feeds: config.observer.as_ref().map_or(0, |observer| observer.feeds.len()),
        leases_expire: config.leases_expire,
        auto_compaction: match config.compaction.auto {
            config::AutoCompaction::Off => AutoCompaction::Off,
            config::AutoCompaction::Periodic(period) => AutoCompaction::Periodic(period),
            config::AutoCompaction::Revision(keep) => AutoCompaction::Revision(keep),
        },
        compaction_batch_limit: config.compaction.batch_limit,
        compaction_sleep_interval: config.compaction.sleep_interval,
        batch_fsync_window: config.raft.batch_fsync_window,
        raft_pipeline: config.raft.pipeline,
        warning_apply_duration: config.observability.warning_apply_duration,
        compresses_values: config.storage.value_compression == ValueCompression::Zstd,
    }
}

/// Returns the options of the leader's regular checks.
pub(crate) fn check_options(config: &Config) -> consistency::Options {
    let compares_compactions = config.feature_gates.is_enabled(&COMPACT_HASH_CHECK);
    consistency::Options {
        downgrade_check_interval: config.checks.downgrade_check_time,
        corrupt_check_interval: config.checks.corrupt_check_time,
        compact_hash_check_interval: match compares_compactions {
            true => config.checks.compact_hash_check_time,
            false => Duration::ZERO,
        },
    }
}

/// Returns the options of the autopilot.
pub(crate) fn autopilot(config: &Config) -> AutopilotOptions {
    let settings = config.autopilot;
    AutopilotOptions {
        mode: match settings.mode {
            AutopilotMode::Off => Mode::Off,
            AutopilotMode::DryRun => Mode::DryRun,
            AutopilotMode::On => Mode::On,
        },
        replace_after: settings.replace_after,
        interval: settings.interval,
        is_standby: settings.is_standby,
    }
}

/// Returns the limits that the options set.
pub(crate) fn limits(config: &Config) -> Limits {
    Limits {
        request_bytes_max: usize::try_from(config.limits.max_request_bytes).unwrap_or(usize::MAX),
        txn_ops_max: usize::try_from(config.limits.max_txn_ops).unwrap_or(usize::MAX),
        quota_bytes: config.limits.quota_backend_bytes,
        request_timeout: Duration::from_secs(5) + 2 * config.raft.election_timeout,
        election_timeout: config.raft.election_timeout,
        lease_ttl_min: lease_ttl_min(config),
        progress_interval: config.clients.watch_progress_notify_interval,
        slow_request: config.observability.warning_unary_request_duration,
        slow_apply: config.observability.warning_apply_duration,
        times_calls: config.observability.metrics == MetricsDetail::Extensive,
    }
}

/// Returns the shortest lease TTL, as in etcd: one and a half election timeouts, rounded up to whole seconds.
/// This member raises shorter TTLs to it in the grants that it proposes, and, while it leads, when it
/// computes when a lease expires. Applying an entry does not use it, because members may have different
/// options.
fn lease_ttl_min(config: &Config) -> Seconds {
    let ms = config.raft.election_timeout.as_millis() * 3 / 2;
    Seconds(i64::try_from(ms.div_ceil(1000)).unwrap_or(i64::MAX))
}
