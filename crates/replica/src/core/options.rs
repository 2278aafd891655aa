//! The options of the core.

use std::time::Duration;

use super::compactor::AutoCompaction;

/// The options of a member that concern the core.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time between two heartbeats, which is also the length of raft's tick; not 0.
    pub heartbeat_interval: Duration,
    /// Time after which a follower that hears from no leader begins an election.
    pub election_timeout: Duration,
    /// True if the first election timeout after a start is shortened.
    pub initial_election_tick_advance: bool,
    /// True if membership changes that would cost the cluster its quorum are refused.
    pub strict_reconfig_check: bool,
    /// Maximum number of learners in the cluster.
    pub max_learners: u64,
    /// Value of `--snapshot-count`, from which the numbers of entries between two checkpoints are derived
    /// (`Thresholds`); not 0.
    pub snapshot_count: u64,
    /// Number of entries kept behind a checkpoint for slow followers; not 0.
    pub snapshot_catchup_entries: u64,
    /// True if this node is an observer and no member of the cluster.
    pub observes: bool,
    /// For an observer: number of feeders that it may choose from.
    pub feeds: usize,
    /// False if leases end only when they are revoked, as in a shadow, whose source decides when they end.
    pub leases_expire: bool,
    /// Mode of automatic compaction.
    pub auto_compaction: AutoCompaction,
    /// Maximum number of revisions removed in one step of a compaction; not 0.
    pub compaction_batch_limit: u64,
    /// Pause between two steps of a compaction; not zero.
    pub compaction_sleep_interval: Duration,
    /// Maximum time for which writes are collected for one sync of the log.
    pub batch_fsync_window: Duration,
    /// True if a batch of proposals may start while an earlier batch is still being written, replicated or
    /// applied.
    pub raft_pipeline: bool,
    /// If applying an entry takes longer than this, the entry is logged as slow.
    pub warning_apply_duration: Duration,
    /// True if values in old segments of the log are compressed.
    pub compresses_values: bool,
}
