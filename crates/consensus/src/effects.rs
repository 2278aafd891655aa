//! What a node asks for, and how it stands.

use api::raftpb;
use numbers::{Index, MemberId, Term};

use crate::entry::{Entry, HardState};
use crate::event::Fetch;

/// What a leader knows of the programs that the other members, learners among them, run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// All have answered this leader in its term, and none of them runs etcd; or there are no others.
    Mainstay,
    /// Some have not answered it, and none of the rest runs etcd.
    Unheard,
    /// One at least runs etcd.
    SomeEtcd,
}

/// A node's part in its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one.
    Follower,
    /// Asks for votes, or whether it would get any.
    Candidate,
    /// Leads.
    Leader,
}

/// The present standing of a node.
///
/// What is applied is never beyond `commit`, and `commit` is never beyond `last`. What is synced here is in no order with
/// `commit`: an entry is committed once a majority has synced it, and this member, leader or follower, need not be a part
/// of that majority. What [`Effects::commit`] holds is always synced here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Role of the node.
    pub role: Role,
    /// The leader it knows of; 0 for none.
    pub leader: MemberId,
    /// The current term.
    pub term: Term,
    /// The newest committed index.
    pub commit: Index,
    /// The newest index in its log, synced or not.
    pub last: Index,
}

/// The way in which a leader sends entries to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressState {
    /// One append at a time, to find out where the logs meet.
    Probe,
    /// One append after the other, without waiting.
    Replicate,
    /// No entries are sent until the snapshot of this index has arrived.
    Snapshot {
        /// The snapshot's position, at the least.
        index: Index,
    },
}

/// A leader's knowledge of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The member.
    pub id: MemberId,
    /// The newest index known to be on its disk.
    pub matched: Index,
    /// The next index to send to it.
    pub next: Index,
    /// True if it has no vote.
    pub is_learner: bool,
    /// True if it answered since the leader last looked, which it does every election timeout.
    pub recently_active: bool,
    /// The way in which entries are sent to it.
    pub state: ProgressState,
}

/// A snapshot was accepted: what the log and the applied state are replaced by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// Index of the snapshot.
    pub index: Index,
    /// The term of the entry at that position.
    pub term: Term,
    /// The members with a vote.
    pub voters: Vec<MemberId>,
    /// The members without one.
    pub learners: Vec<MemberId>,
}

/// Entries and state for the log.
#[derive(Debug)]
pub struct Append {
    /// Number that [`Event::LogSynced`](crate::Event::LogSynced) has to name.
    pub number: u64,
    /// In order; the first may replace entries already in the log.
    pub entries: Vec<Entry>,
    /// The new hard state, if it changed.
    pub hard_state: Option<HardState>,
}

/// A linearizable read that may be answered once this member has applied enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmedRead {
    /// The number given with [`Request::Read`](crate::Request::Read).
    pub number: u64,
    /// Everything up to this index has to be applied before the read.
    pub index: Index,
}

/// What the caller has to do, in the imperative.
#[derive(Debug, Default)]
pub struct Effects {
    /// To be carried out before `append`: the log restarts behind it. Persisted together with `append`, which is
    /// then there, if only for its number.
    pub restore: Option<Restore>,
    /// For the log.
    pub append: Option<Append>,
    /// To be sent now, in this order. Those that promise something come once what they promise is synced. A `MsgSnap`
    /// has metadata only; the sender replaces them by those of the state that it sends.
    pub messages: Vec<raftpb::Message>,
    /// Committed entries, to be applied in order, without a gap. None is beyond [`Standing::commit`], and none beyond
    /// [`Node::synced_index`](crate::Node::synced_index).
    pub commit: Vec<Entry>,
    /// Answers to [`Request::Read`](crate::Request::Read).
    pub reads: Vec<ConfirmedRead>,
    /// Entries to be read from the log, at most one per follower at a time. Each is answered by
    /// [`Event::Fetched`](crate::Event::Fetched).
    pub fetches: Vec<Fetch>,
    /// The node's new standing, if role or leader changed.
    pub standing: Option<Standing>,
}
