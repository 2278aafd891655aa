//! Defines the input of a node: its configuration, events and requests.

use api::raftpb;
use bytes::Bytes;
use numbers::{EntryId, Index, MemberId, Term};

use crate::effects::ObserverRead;
use crate::entry::{ConfChange, Entry, HardState};

/// The settings of a node. All times are in ticks.
#[derive(Clone, Debug)]
pub struct Config {
    /// Id of this member; not 0.
    pub id: MemberId,
    /// Minimum number of ticks without a message from a leader after which a follower begins an election. The
    /// actual number is up to twice as large.
    pub election_ticks: usize,
    /// Ticks between two heartbeats of a leader.
    pub heartbeat_ticks: usize,
    /// True if a member requests pre-votes before it raises its term.
    pub pre_vote: bool,
    /// Seed of the election timeouts. Members of one cluster need different seeds.
    pub seed: u64,
    /// Maximum payload bytes in flight to one follower without an acknowledgement; the append that reaches or
    /// exceeds this number is still sent.
    pub bytes_in_flight_max: usize,
    /// True if this node is an observer: it is in no configuration of the cluster, never votes, and takes its
    /// entries from a feeder ([`Event::FeederChosen`]) instead of the leader.
    pub observes: bool,
    /// True if this node is the witness of its cluster: it votes, stores no payloads of ordinary entries, and
    /// never leads.
    pub is_witness: bool,
    /// For tests and simulation: if true, the node uses none of Mainstay's extensions to raft. Like etcd's
    /// members, it passes a forwarded proposal on to the leader, whatever the term is.
    pub speaks_as_etcd: bool,
}

impl Default for Config {
    /// Returns the defaults of etcd, without an id.
    fn default() -> Config {
        Config {
            id: MemberId::NONE,
            election_ticks: 10,
            heartbeat_ticks: 1,
            pre_vote: true,
            seed: 0,
            bytes_in_flight_max: 16 * 1024 * 1024,
            observes: false,
            is_witness: false,
            speaks_as_etcd: false,
        }
    }
}

/// The state with which a node starts: the position of the checkpoint, and the content of the log.
#[derive(Clone, Debug, Default)]
pub struct RestoredState {
    /// Term, vote and commit index as last synced.
    pub hard_state: HardState,
    /// Ids of the members with a vote, as of `applied`. Empty for a member that has yet to learn the
    /// membership from its first entries or from a snapshot.
    pub voters: Vec<MemberId>,
    /// Ids of the members without a vote, as of `applied`.
    pub learners: Vec<MemberId>,
    /// Id of the voter that is a witness, as of `applied`; 0 if there is none.
    pub witness: MemberId,
    /// Log index up to which the restored state has applied entries.
    pub applied: Index,
    /// Raft term of the entry at `applied`.
    pub applied_term: Term,
    /// Index of the first entry that can be read from the log on disk; 0 if no entry up to `applied` can be
    /// read.
    pub first_index: Index,
    /// Terms of the entries from `first_index - 1`, or from an earlier entry, to `applied`. The list has the
    /// first entry of each run of equal terms. Entries before the first run count as not readable.
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
    /// Maximum payload bytes to read. At least one entry is read, however large it is.
    pub bytes_max: u64,
}

/// A request of a client or a peer. Unlike an event, it may be refused, and a refusal never ends the process.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a request is made and taken on the spot, and messages are most of them"
)]
pub enum Request {
    /// Replicate clients' commands, one entry each, in this order: bytes of `InternalRaftRequest`s. A
    /// follower forwards them to its leader in one message, which may get lost. If [`Node::binds_proposals`]
    /// returns true, they enter the log in the current term or never.
    ///
    /// [`Node::binds_proposals`]: crate::Node::binds_proposals
    Propose(Vec<Bytes>),
    /// Replicate a membership change; the bytes are etcd's `ConfChange`. A leader refuses the request while
    /// an earlier change is possibly not applied yet. A change that a follower forwards during that time
    /// waits in the leader's node.
    ProposeConfChange(ConfChange, Bytes),
    /// Handle a message from a peer.
    Receive(raftpb::Message),
    /// Find the log index up to which entries have to be applied before a linearizable read. The answer has
    /// the given number and appears in `Effects::reads`. The number must be unique in the whole cluster. A
    /// leader answers once it has committed an entry of its term. The answer may never come, because messages
    /// get lost and leaders change; then the caller makes a new request with a new number.
    Read(u64),
    /// Transfer leadership to this voter. If that fails, the leader accepts proposals again after an election
    /// timeout.
    Transfer(MemberId),
    /// Begin an election without waiting for a timeout.
    Campaign,
    /// Answer a read of an observer with the index up to which it has to apply entries before it serves the
    /// read. Dropped if the observer is not fed any more.
    AnswerObserver(ObserverRead, Index),
}

/// An event reported to the node by the code that drives it.
///
/// The node trusts these reports: an event that contradicts the state of the node means that there is a bug.
/// Input of clients and peers, which is not trusted, is a [`Request`] instead.
#[derive(Debug)]
pub enum Event {
    /// One tick has passed.
    Ticked,
    /// The batch with this number, and all earlier ones, are on disk, including a snapshot that belongs to
    /// one of them.
    LogSynced(u64),
    /// All entries up to this index have been applied. A snapshot counts as applied once its batch is synced.
    Applied(Index),
    /// A committed membership change has been applied to the member list. A leader that the change removes
    /// accepts no more requests and reports that it is a follower without a leader. But it continues to send
    /// messages until a majority of the remaining voters knows that the change is committed: see
    /// [`Node::is_leaving`](crate::Node::is_leaving).
    ConfChanged(ConfChange),
    /// Entries up to this index may be dropped from memory; the log still has them.
    Forgotten(Index),
    /// The log no longer has entries below this index.
    Discarded(Index),
    /// The caller wants this node to stop leading, without a chosen successor.
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
    /// The answer to one of the fetches in `Effects::fetches`. Each fetch must be answered once.
    Fetched {
        /// The fetch as it was requested.
        fetch: Fetch,
        /// Entries from `fetch.first` on, without a gap; none if they could not be read.
        entries: Vec<Entry>,
    },
    /// Begin to feed this observer. If it is fed already, it has started again: forget what its log had. A witness
    /// feeds nobody.
    ObserverAdded(MemberId),
    /// Stop feeding this observer.
    ObserverRemoved(MemberId),
    /// Only for an observer: take entries from this feeder from now on, and from no other.
    FeederChosen {
        /// Id of the feeder.
        feeder: MemberId,
        /// Number of ticks after which a silent feeder counts as lost, if that is more than two election
        /// timeouts.
        silence_max: u64,
    },
    /// The member with this id is the cluster's witness from now on; the id 0 means that there is none. Stepped
    /// before the [`Event::ConfChanged`] that adds the witness. In the same way 0 is stepped before the one that removes
    /// it; the caller takes no effects between the two.
    WitnessSet(MemberId),
    /// A sync of the disk hangs. Until the disk has recovered, this node begins no election, because it could
    /// not keep up as a leader.
    DiskStalled,
    /// The disk works again.
    DiskRecovered,
}

/// Error of an event that contradicts the state of the node. This is a bug of Mainstay.
#[derive(Debug, PartialEq, Eq)]
pub struct NodeBug(pub String);

impl std::fmt::Display for NodeBug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NodeBug {}

/// Reason why the node refused a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No leader is known that could accept a proposal, a read or a transfer.
    NoLeader,
    /// Leadership is being transferred; no proposals are accepted until that has ended.
    Transferring,
    /// A feeder has sent this observer an entry that contradicts one that the observer has committed: it
    /// belongs to another cluster, or one of the two has lost or changed data.
    OtherHistory {
        /// Index of the entry.
        index: Index,
        /// Term that the feeder gives it.
        term: u64,
    },
    /// Any other reason, as a message for the operator's log.
    Other(String),
}

impl Refusal {
    /// Returns a refusal with this reason, a message for the operator's log.
    pub(crate) fn because(why: impl Into<String>) -> Refusal {
        Refusal::Other(why.into())
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::NoLeader => f.write_str("no leader takes proposals"),
            Refusal::Transferring => f.write_str("leadership is being handed over"),
            Refusal::OtherHistory { index, term } => {
                write!(
                    f,
                    "the feeder has entry {index} in term {term}, which contradicts this observer's data"
                )
            }
            Refusal::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Refusal {}
