//! Defines the actions that a node requires from its caller, and the status of a node.

use api::raftpb;
use bytes::Bytes;
use numbers::{Index, MemberId, Term};

use crate::entry::{Entry, HardState};
use crate::event::Fetch;

/// The programs that the other members run, including learners, as far as a leader knows them from their
/// answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherPrograms {
    /// All other members have answered this leader in its term, and none of them runs etcd; or no other
    /// members exist.
    Mainstay,
    /// Some members have not answered this leader in its term, and none of the members that have answered
    /// runs etcd.
    Unheard,
    /// At least one member's last answer to this leader in its term shows that it runs etcd.
    SomeEtcd,
}

/// Role of a node in its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one.
    Follower,
    /// Requests votes or pre-votes.
    Candidate,
    /// Leads.
    Leader,
}

/// The current status of a node.
///
/// The applied index is never beyond `commit`, and `commit` is never beyond `last`. The synced index of this
/// member can be below or above `commit`: an entry is committed once a majority has synced it, and that
/// majority need not include this member, even if it leads. Entries in [`Effects::commit`] are always synced
/// on this member.
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
    /// Index of the last entry in the node's log, synced or not.
    pub last: Index,
}

/// The mode in which a leader sends entries to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressState {
    /// One append at a time, until the last common entry of both logs is found.
    Probe,
    /// One append after the other, without waiting for acknowledgements.
    Replicate,
    /// No entries are sent until a snapshot with this index or a later one has arrived.
    Snapshot {
        /// Minimum log index of the snapshot.
        index: Index,
    },
}

/// A leader's view of a member.
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
    /// The mode in which entries are sent to the member.
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
    /// Number of this batch. The caller passes it back in [`Event::LogSynced`](crate::Event::LogSynced).
    pub number: u64,
    /// Entries in order; the first one may replace an entry that is already in the log, together with all
    /// entries after it.
    pub entries: Vec<Entry>,
    /// The new hard state, if it changed.
    pub hard_state: Option<HardState>,
}

/// A linearizable read that may be answered once this member has applied the entries up to `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmedRead {
    /// The number given with [`Request::Read`](crate::Request::Read).
    pub number: u64,
    /// Log index of the last entry that has to be applied before the read is answered.
    pub index: Index,
}

/// A linearizable read of an observer, which its feeder has to confirm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserverRead {
    /// Id of the observer.
    pub from: MemberId,
    /// The observer's own bytes, which the answer returns.
    pub context: Bytes,
}

/// Actions that the caller has to carry out.
#[derive(Debug, Default)]
pub struct Effects {
    /// Snapshot to install before `append`: the log restarts after the snapshot. The snapshot becomes durable
    /// together with `append`. So `append` is always `Some` if this is `Some`, even without entries and
    /// without a hard state.
    pub restore: Option<Restore>,
    /// Entries and hard state for the log.
    pub append: Option<Append>,
    /// Messages to be sent now, in this order. A message that acknowledges data appears here only after the
    /// data is synced. A `MsgSnap` contains only metadata. The code that sends the state replaces this
    /// metadata with the metadata of the state that it sends, which may be newer.
    pub messages: Vec<raftpb::Message>,
    /// Committed entries, to be applied in order, without a gap. None is beyond [`RaftStatus::commit`], and
    /// none beyond [`Node::synced_index`](crate::Node::synced_index).
    pub commit: Vec<Entry>,
    /// Answers to [`Request::Read`](crate::Request::Read).
    pub reads: Vec<ConfirmedRead>,
    /// Reads of observers. The caller finds out, as for a read of its own client, which index has to be
    /// applied, and answers with [`Request::AnswerObserver`](crate::Request::AnswerObserver).
    pub observer_reads: Vec<ObserverRead>,
    /// Entries to be read from the log, at most one fetch per follower at a time. Each fetch must be answered
    /// by [`Event::Fetched`](crate::Event::Fetched).
    pub fetches: Vec<Fetch>,
    /// The node's new status, if role or leader changed.
    pub status: Option<RaftStatus>,
}
