//! The state of a member as of one applied index. Only the core publishes it.

use std::sync::Arc;

use api::etcdserverpb::AlarmType;
use machine::auth::Auth;
use machine::{Alarms, Members};
use mvcc::View;
use numbers::{Index, Revision, Term};

/// The state of a member after a batch of entries. Every read is answered from one such state.
///
/// `applied_index` is never beyond `commit_index`, and `removed_through` is never beyond the view's revision.
/// `applied_index`, `applied_term` and `commit_index` never decrease from one published state to the next. So
/// a client that has seen one state never gets an answer from an older state. Both indexes are raft log
/// indexes. Entries up to `applied_index` are synced by this member, or are part of a snapshot that this
/// member has installed. Entries up to `commit_index` are synced by a majority, which need not include this
/// member.
pub struct Published {
    /// The immutable index of keys and values.
    pub view: Arc<View>,
    /// Index of the last entry applied.
    pub applied_index: Index,
    /// Raft term of the entry at [`Self::applied_index`].
    pub applied_term: Term,
    /// Index of the newest entry known to be committed.
    pub commit_index: Index,
    /// Id of the leader; 0 if none is known.
    pub leader: u64,
    /// True if this state answers linearizable reads without a ReadIndex round: this member is the only
    /// voter, leads, and has applied an entry of its own term. Under these conditions the newest published
    /// state contains every acknowledged write.
    pub reads_local: bool,
    /// Alarms that are raised.
    pub alarms: Arc<Alarms>,
    /// Members of the cluster.
    pub members: Arc<Members>,
    /// Users and roles.
    pub auth: Arc<Auth>,
    /// Bytes of all keys and values that are not compacted.
    pub in_use_bytes: u64,
    /// Compact revision up to which old versions may already have been removed. All versions that a
    /// compaction at this revision keeps are still present. The core raises this revision and publishes the
    /// state before it removes a version.
    pub removed_through: Revision,
    /// True if this is an observer whose state differs from that of its feeders, so that it must not be read.
    pub is_wrong: bool,
}

impl Published {
    /// Asserts that this state may be published after `earlier`.
    pub fn assert_follows(&self, earlier: &Published) {
        let (applied, commit) = (self.applied_index, self.commit_index);
        assert!(applied <= commit, "entry {applied} is applied, but only {commit} is committed");
        assert!(
            earlier.applied_index <= applied && earlier.applied_term <= self.applied_term,
            "entry {} was published as applied, now {applied}",
            earlier.applied_index
        );
        assert!(
            earlier.commit_index <= commit,
            "entry {} was published as committed, now {commit}",
            earlier.commit_index
        );
        debug_assert!(self.removed_through <= self.view.snapshot().current_revision());
    }

    /// Returns true if the CORRUPT alarm names this member, or if it is an observer that found it out itself: its
    /// data differ from those of the other members, so clients must not read them.
    pub fn is_quarantined(&self, member_id: u64) -> bool {
        self.is_wrong || self.alarms.is_raised(AlarmType::Corrupt as i32, member_id)
    }
}
