//! Configuration and input of a node: events and requests.

use api::raftpb;
use bytes::Bytes;
use numbers::{EntryId, Index, MemberId, Term};

use crate::entry::{ConfChange, Entry, HardState};

/// The settings of a node. All times are in ticks.
#[derive(Clone, Debug)]
pub struct Config {
    /// Id of this member; not 0.
    pub id: MemberId,
    /// Minimum number of ticks without a leader after which a follower campaigns; it waits up to twice as
    /// long.
    pub election_ticks: usize,
    /// Ticks between two heartbeats of a leader.
    pub heartbeat_ticks: usize,
    /// True if a member asks for pre-votes before it raises the term.
    pub pre_vote: bool,
    /// Seed of the election timeouts. Members of one cluster need different seeds.
    pub seed: u64,
    /// Maximum payload bytes in flight to one follower without an acknowledgement; the append that exceeds
    /// this number is still sent.
    pub bytes_in_flight_max: usize,
    /// For tests and simulation: the node uses none of Mainstay's extensions to raft, and passes a forwarded
    /// proposal on to the leader, in whatever term, as etcd's members do.
    pub speaks_as_etcd: bool,
}

impl Default for Config {
    /// Returns etcd's defaults, and no id.
    fn default() -> Config {
        Config {
            id: MemberId::NONE,
            election_ticks: 10,
            heartbeat_ticks: 1,
            pre_vote: true,
            seed: 0,
            bytes_in_flight_max: 16 * 1024 * 1024,
            speaks_as_etcd: false,
        }
    }
}

/// The state from which a node starts: the checkpoint's position and the content of the log.
#[derive(Clone, Debug, Default)]
pub struct RestoredState {
    /// Term, vote and commit index as last synced.
    pub hard_state: HardState,
    /// Ids of the members with a vote, as of `applied`. Empty for a member that learns the membership from
    /// its first entries or snapshot.
    pub voters: Vec<MemberId>,
    /// Ids of the members without a vote, as of `applied`.
    pub learners: Vec<MemberId>,
    /// Log index up to which the restored state has applied entries.
    pub applied: Index,
    /// Raft term of the entry at `applied`.
    pub applied_term: Term,
    /// Index of the first entry that can be read from the log on disk; 0 if no entry up to `applied` can be
    /// read.
    pub first_index: Index,
    /// Terms of the entries from `first_index - 1` or earlier to `applied`: the first entry of each run of
    /// equal terms. Entries before the first run count as not readable.
    pub terms: Vec<EntryId>,
    /// All entries of the log after `applied`, in order.
    pub entries: Vec<Entry>,
}

/// A request for entries that are in the log but not in memory, for a follower that lags behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Id of the follower.
    pub to: MemberId,
    /// Index of the first wanted entry.
    pub first: Index,
    /// Index after the last wanted entry.
    pub last: Index,
    /// Payload bytes that suffice. At least one entry is read, however large it is.
    pub bytes_max: u64,
}

/// A request of a client or a peer. It may be refused, which never ends the process.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a request is made and taken on the spot, and messages are most of them"
)]
pub enum Request {
    /// Replicate clients' commands, one entry each, in this order: bytes of `InternalRaftRequest`s. A
    /// follower forwards them to its leader in one message, which may get lost. [`Node::binds_proposals`]
    /// tells if they get into the log in the present term or never.
    ///
    /// [`Node::binds_proposals`]: crate::Node::binds_proposals
    Propose(Vec<Bytes>),
    /// Replicate a membership change; the bytes are etcd's `ConfChange`. A leader refuses it while an earlier
    /// change may not be applied yet; a change that a follower forwards at that time waits at the leader.
    ProposeConfChange(ConfChange, Bytes),
    /// Take a message from a peer.
    Receive(raftpb::Message),
    /// Find the log index up to which entries have to be applied before a linearizable read. The number comes
    /// back in `Effects::reads`, from whichever leader answers; it must be unique in the whole cluster. It
    /// may never come back, because messages get lost and leaders change: then ask again, with a new number.
    /// A leader answers once it has committed an entry of its term.
    Read(u64),
    /// Hand leadership to this voter. If that fails, the leader takes proposals again after an election
    /// timeout.
    Transfer(MemberId),
    /// Campaign without waiting for a timeout.
    Campaign,
}

/// An event that has happened on this member.
///
/// All events result from the caller's own actions, so a node that cannot take an event has found a bug.
/// Input of clients and peers is a [`Request`].
#[derive(Debug)]
pub enum Event {
    /// One tick has passed.
    Ticked,
    /// The append batch with this number, and all before it, are on disk, including a snapshot that belongs
    /// to one of them.
    LogSynced(u64),
    /// All entries up to this index have been applied. A snapshot counts as applied once its batch is synced.
    Applied(Index),
    /// A committed membership change has been applied to the member list. A leader that the change removes
    /// takes no more requests, and reports itself as a follower without a leader; but it continues to send
    /// until a majority of the remaining voters knows that the change is committed: see
    /// [`Node::is_leaving`](crate::Node::is_leaving).
    ConfChanged(ConfChange),
    /// Entries up to this index leave memory; the log still has them.
    Forgotten(Index),
    /// The log no longer has entries below this index.
    Discarded(Index),
    /// This node is to stop leading, without a chosen successor.
    StepDownRequested,
    /// Messages to this member may have been lost.
    PeerUnreachable(MemberId),
    /// The sending of a snapshot has ended.
    SnapshotReported {
        /// Id of the receiving member.
        to: MemberId,
        /// True if the receiver has the complete snapshot.
        delivered: bool,
    },
    /// The answer to one of `Effects::fetches`; each fetch must get one.
    Fetched {
        /// The fetch as it was requested.
        fetch: Fetch,
        /// Entries from `fetch.first` on, without a gap; none if they could not be read.
        entries: Vec<Entry>,
    },
    /// The disk hangs. While it does, this node starts no campaign, because it could not keep up as a leader.
    DiskStalled,
    /// The disk works again.
    DiskRecovered,
}

/// The node could not take an event, because it contradicts the node's state: a bug of this program.
#[derive(Debug, PartialEq, Eq)]
pub struct NodeBug(pub String);

impl std::fmt::Display for NodeBug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NodeBug {}

/// Reason for which the node refused a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no leader to take a proposal, a read or a transfer.
    NoLeader,
    /// Leadership is being handed over; no proposals are taken until that has ended.
    Transferring,
    /// Any other reason, as a text for the operator.
    Other(String),
}

impl Refusal {
    /// Returns a refusal with a reason that only the operator sees.
    pub(crate) fn because(why: impl Into<String>) -> Refusal {
        Refusal::Other(why.into())
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::NoLeader => f.write_str("no leader takes proposals"),
            Refusal::Transferring => f.write_str("leadership is being handed over"),
            Refusal::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Refusal {}
