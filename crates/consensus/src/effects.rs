//! Actions that a node requests from its caller, and the node's status.

use api::raftpb;
use numbers::{Index, MemberId, Term};

use crate::entry::{Entry, HardState};
use crate::event::Fetch;

/// Knowledge of a leader about the programs that the other members run, learners included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherPrograms {
    /// All other members have answered this leader in its term, and none of them runs etcd; or no other
    /// members exist.
    Mainstay,
    /// Some members have not answered the leader, and none of the rest runs etcd.
    Unheard,
    /// At least one member runs etcd.
    SomeEtcd,
}

/// Role of a node in its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one.
    Follower,
    /// Asks for votes, or for pre-votes.
    Candidate,
    /// Leads.
    Leader,
}

/// The present status of a node.
///
/// The applied index is never beyond `commit`, and `commit` is never beyond `last`. The synced index of this
/// member has no fixed order with `commit`: an entry is committed once a majority has synced it, and this
/// member, leader or follower, need not be part of that majority. Entries in [`Effects::commit`] are always
/// synced here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftStatus {
    /// Role of the node.
    pub role: Role,
    /// Id of the leader that the node knows; 0 for none.
    pub leader: MemberId,
    /// The current raft term.
    pub term: Term,
    /// The commit index.
    pub commit: Index,
    /// Index of the last entry in its log, synced or not.
    pub last: Index,
}

/// The way in which a leader sends entries to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressState {
    /// One append at a time, to find the last common entry of both logs.
    Probe,
    /// One append after the other, without waiting for acknowledgements.
    Replicate,
    /// No entries are sent until the snapshot of this index has arrived.
    Snapshot {
        /// Minimum log index of the snapshot.
        index: Index,
    },
}

/// A leader's knowledge of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Id of the member.
    pub id: MemberId,
    /// Index of the newest entry known to be on the member's disk.
    pub matched: Index,
    /// Index of the next entry to send to the member.
    pub next: Index,
    /// True if the member has no vote.
    pub is_learner: bool,
    /// True if the member has answered since the leader's last check, which happens every election timeout.
    pub recently_active: bool,
    /// The way in which entries are sent to the member.
    pub state: ProgressState,
}

/// An accepted snapshot, which replaces the log and the applied state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// Log index of the snapshot.
    pub index: Index,
    /// Raft term of the entry at `index`.
    pub term: Term,
    /// Ids of the members with a vote.
    pub voters: Vec<MemberId>,
    /// Ids of the members without a vote.
    pub learners: Vec<MemberId>,
}

/// Entries and hard state for the log.
#[derive(Debug)]
pub struct Append {
    /// Number that [`Event::LogSynced`](crate::Event::LogSynced) has to contain.
    pub number: u64,
    /// Entries in order; the first may replace entries already in the log.
    pub entries: Vec<Entry>,
    /// The new hard state, if it changed.
    pub hard_state: Option<HardState>,
}

/// A linearizable read that may be answered once this member has applied the entries up to `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmedRead {
    /// The number given with [`Request::Read`](crate::Request::Read).
    pub number: u64,
    /// Log index up to which entries have to be applied before the read.
    pub index: Index,
}

/// Actions for the caller.
#[derive(Debug, Default)]
pub struct Effects {
    /// Snapshot to install before `append`: the log restarts after it. It is persisted together with
    /// `append`, which is then present, even if only for its number.
    pub restore: Option<Restore>,
    /// Entries and hard state for the log.
    pub append: Option<Append>,
    /// Messages to be sent now, in this order. Messages that acknowledge something appear here once that is
    /// synced. A `MsgSnap` has only metadata, which the sender replaces by the metadata of the state that it
    /// sends.
    pub messages: Vec<raftpb::Message>,
    /// Committed entries, to be applied in order, without a gap. None is beyond [`RaftStatus::commit`], and
    /// none beyond [`Node::synced_index`](crate::Node::synced_index).
    pub commit: Vec<Entry>,
    /// Answers to [`Request::Read`](crate::Request::Read).
    pub reads: Vec<ConfirmedRead>,
    /// Entries to be read from the log, at most one fetch per follower at a time. Each is answered by
    /// [`Event::Fetched`](crate::Event::Fetched).
    pub fetches: Vec<Fetch>,
    /// The node's new status, if role or leader changed.
    pub status: Option<RaftStatus>,
}
