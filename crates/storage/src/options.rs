//! Defines the options of a member that concern its data directory.

use std::path::PathBuf;
use std::time::Duration;

use api::url::Url;
use machine::Rules;

/// The options with which a data directory is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the member's data.
    pub data_dir: PathBuf,
    /// Directory of the log; `None` if the log is in the data directory.
    pub wal_dir: Option<PathBuf>,
    /// True if writes are not synced, so that acknowledged writes can be lost. For tests.
    pub unsafe_no_fsync: bool,
    /// True if the directory is that of an observer, which is no member of the cluster.
    pub observes: bool,
    /// True if the member is a witness, which votes and keeps no keys.
    pub is_witness: bool,
    /// True if the start makes the member the only one of its cluster.
    pub force_new_cluster: bool,
    /// Peer URLs that this member announces to other members; at least one. Used only with
    /// [`Self::force_new_cluster`].
    pub peer_urls: Vec<Url>,
    /// Rules by which the state machine applies entries.
    pub rules: Rules,
    /// Number of bytes that the parts of the index may take that can also be read from the checkpoint; `None` if the
    /// whole index is in memory.
    pub memory_budget: Option<u64>,
    /// Time between two heartbeats, which is also the length of raft's tick; not 0.
    pub heartbeat_interval: Duration,
    /// Time after which a follower that hears from no leader begins an election.
    pub election_timeout: Duration,
    /// True if the member asks the others in a pre-vote whether it could win before it begins an election.
    pub pre_vote: bool,
}

/// Returns the rules by which the state machine applies entries if the option `--max-learners` has this
/// value.
pub fn rules(max_learners: u64) -> Rules {
    Rules { learners_max: usize::try_from(max_learners).unwrap_or(usize::MAX) }
}
