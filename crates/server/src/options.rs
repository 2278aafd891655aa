//! Builds the options of a member's parts from its configuration.

use std::time::Duration;

use config::feature_gate::COMPACT_HASH_CHECK;
use config::{Config, MetricsDetail};
use numbers::Seconds;
use replica::core::AutoCompaction;
use replica::shared::Limits;

/// Returns the options with which the data directory is opened.
pub(crate) fn storage_options(config: &Config) -> storage::Options {
    storage::Options {
        data_dir: config.data_dir.clone(),
        wal_dir: config.wal_dir.clone(),
        unsafe_no_fsync: config.unsafe_no_fsync,
        force_new_cluster: config.force_new_cluster,
        peer_urls: config.initial_advertise_peer_urls.clone(),
        rules: storage::rules(config.max_learners),
        heartbeat_interval: config.heartbeat_interval,
        election_timeout: config.election_timeout,
        pre_vote: config.pre_vote,
    }
}

/// Returns the options of the core.
pub(crate) fn core_options(config: &Config) -> replica::core::Options {
    replica::core::Options {
        heartbeat_interval: config.heartbeat_interval,
        election_timeout: config.election_timeout,
        initial_election_tick_advance: config.initial_election_tick_advance,
        strict_reconfig_check: config.strict_reconfig_check,
        max_learners: config.max_learners,
        snapshot_count: config.snapshot_count,
        snapshot_catchup_entries: config.snapshot_catchup_entries,
        auto_compaction: match config.auto_compaction {
            config::AutoCompaction::Off => AutoCompaction::Off,
            config::AutoCompaction::Periodic(period) => AutoCompaction::Periodic(period),
            config::AutoCompaction::Revision(keep) => AutoCompaction::Revision(keep),
        },
        compaction_batch_limit: config.compaction_batch_limit,
        compaction_sleep_interval: config.compaction_sleep_interval,
        batch_fsync_window: config.batch_fsync_window,
        raft_pipeline: config.raft_pipeline,
        warning_apply_duration: config.warning_apply_duration,
    }
}

/// Returns the options of the leader's regular checks.
pub(crate) fn check_options(config: &Config) -> consistency::Options {
    let compares_compactions = config.feature_gates.is_enabled(&COMPACT_HASH_CHECK);
    consistency::Options {
        downgrade_check_interval: config.downgrade_check_time,
        corrupt_check_interval: config.corrupt_check_time,
        compact_hash_check_interval: match compares_compactions {
            true => config.compact_hash_check_time,
            false => Duration::ZERO,
        },
    }
}

/// Returns the limits that the options set.
pub(crate) fn limits(config: &Config) -> Limits {
    Limits {
        request_bytes_max: usize::try_from(config.max_request_bytes).unwrap_or(usize::MAX),
        txn_ops_max: usize::try_from(config.max_txn_ops).unwrap_or(usize::MAX),
        quota_bytes: config.quota_backend_bytes,
        request_timeout: Duration::from_secs(5) + 2 * config.election_timeout,
        election_timeout: config.election_timeout,
        lease_ttl_min: lease_ttl_min(config),
        progress_interval: config.watch_progress_notify_interval,
        slow_request: config.warning_unary_request_duration,
        slow_apply: config.warning_apply_duration,
        times_calls: config.metrics == MetricsDetail::Extensive,
    }
}

/// Returns the shortest lease TTL, as in etcd: one and a half election timeouts, rounded up to whole seconds.
/// The limit applies to leases granted by this member and to the expiry of leases while this member leads;
/// the replicated state does not depend on it.
fn lease_ttl_min(config: &Config) -> Seconds {
    let ms = config.election_timeout.as_millis() * 3 / 2;
    Seconds(i64::try_from(ms.div_ceil(1000)).unwrap_or(i64::MAX))
}
