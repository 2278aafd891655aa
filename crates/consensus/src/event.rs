//! What a node is told.

use api::raftpb;
use bytes::Bytes;
use numbers::{EntryId, Index, MemberId, Term};

use crate::entry::{ConfChange, Entry, HardState};

/// The settings of a node. All times are in ticks.
#[derive(Clone, Debug)]
pub struct Config {
    /// This member's id; not 0.
    pub id: MemberId,
    /// Ticks without a leader after which a follower campaigns, at the least; it waits up to twice as long.
    pub election_ticks: usize,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// True if a member asks around before it raises the term.
    pub pre_vote: bool,
    /// Decides the election timeouts. Members of one cluster need different ones.
    pub seed: u64,
    /// Payload bytes that may be under way to one follower without its acknowledgement; the append that reaches this
    /// number still goes.
    pub bytes_in_flight_max: usize,
    /// For tests and simulation: the node uses none of this project's extensions to raft, and passes a forwarded
    /// proposal on to the leader, in whatever term, as etcd's members do.
    pub speaks_as_etcd: bool,
}

impl Default for Config {
    /// etcd's defaults, and no id.
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
pub struct Restored {
    /// Term, vote and commit index as last synced.
    pub hard_state: HardState,
    /// The members with a vote, as of `applied`. Empty for a member that waits to be told.
    pub voters: Vec<MemberId>,
    /// The members without one, as of `applied`.
    pub learners: Vec<MemberId>,
    /// The index that the restored state has applied.
    pub applied: Index,
    /// The term of the entry at `applied`.
    pub applied_term: Term,
    /// The first entry that can be read from the log on disk; 0 when none up to `applied` can.
    pub first_index: Index,
    /// The terms of the entries from `first_index - 1` or earlier to `applied`: the first entry of each run of equal
    /// terms. Entries before the first run count as not readable.
    pub terms: Vec<EntryId>,
    /// All entries of the log after `applied`, in order.
    pub entries: Vec<Entry>,
}

/// Entries that the log has and memory has not, wanted for a follower that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The follower.
    pub to: MemberId,
    /// The first entry wanted.
    pub first: Index,
    /// The first entry that is not wanted any more.
    pub last: Index,
    /// Bytes of payload that are enough. One entry is read however large it is.
    pub bytes_max: u64,
}

/// What a client or a peer wants of a node. It may be refused: never the end of the process.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a request is made and taken on the spot, and messages are most of them"
)]
pub enum Request {
    /// Replicate clients' commands, one entry each, in this order: bytes of `InternalRaftRequest`s. A follower
    /// forwards them to its leader in one message, which may get lost. [`Node::binds_proposals`] says whether they
    /// get into the log in the present term or never.
    ///
    /// [`Node::binds_proposals`]: crate::Node::binds_proposals
    Propose(Vec<Bytes>),
    /// Replicate a membership change; the bytes are etcd's `ConfChange`. A leader refuses it while an earlier one may
    /// not be applied yet; one that a follower forwards becomes an empty entry then.
    ProposeConfChange(ConfChange, Bytes),
    /// Take a message from a peer.
    Receive(raftpb::Message),
    /// Find out the index up to which a linearizable read has to wait. The number comes back in `Effects::reads`, from
    /// whichever leader answers; it must be unique in the whole cluster. It may never come back: messages get lost and
    /// leaders change. Ask again then, with a new number. A leader answers once it has committed something in its
    /// term.
    Read(u64),
    /// Hand leadership to this voter. It may fail: then the leader takes proposals again after an election timeout.
    Transfer(MemberId),
    /// Campaign without waiting for a timeout.
    Campaign,
}

/// An event that has happened, in the past tense.
///
/// The caller knows all of it from its own doing, so a node that cannot take an event has found a bug. What clients and
/// peers cause is a [`Request`].
#[derive(Debug)]
pub enum Event {
    /// One tick went by.
    Ticked,
    /// The append batch with this number, and all before it, are on disk; so is the snapshot that came with one.
    LogSynced(u64),
    /// Everything up to this index has been applied. A snapshot counts as applied once its batch is synced.
    Applied(Index),
    /// A committed membership change has been applied to the member list. A leader that this removes takes no more
    /// requests, and counts as a follower of nobody; but it goes on sending until a majority of the voters that are
    /// left knows that the change is committed: see [`Node::is_leaving`](crate::Node::is_leaving).
    ConfChanged(ConfChange),
    /// Entries up to this index leave memory; the log still has them.
    Forgotten(Index),
    /// The log has no entries below this index any more.
    Discarded(Index),
    /// This node is to stop leading, in favour of nobody.
    StepDownRequested,
    /// Messages to this member may have been lost.
    PeerUnreachable(MemberId),
    /// The sending of a snapshot has ended.
    SnapshotReported {
        /// Id of the member that it was for.
        to: MemberId,
        /// True if the receiver has it whole.
        delivered: bool,
    },
    /// The answer to one of `Effects::fetches`; each must get one.
    Fetched {
        /// The fetch as it was requested.
        fetch: Fetch,
        /// Entries from `fetch.first` on, without a gap; none if they could not be read.
        entries: Vec<Entry>,
    },
    /// The disk hangs, or works again. While it hangs, this node starts no campaign, since it could not keep up as a
    /// leader.
    DiskStalled(bool),
}

/// The node could not take an event, since it contradicts what the node knows: a bug of this program.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken(pub String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

/// The node did not take a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no leader to take a proposal, a read or a transfer.
    NoLeader,
    /// Leadership is being handed over; no proposals until that has ended.
    Transferring,
    /// Description for the operator.
    Other(String),
}

impl Refused {
    /// A refusal for this reason, which only the operator is told.
    pub(crate) fn because(why: impl Into<String>) -> Refused {
        Refused::Other(why.into())
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::NoLeader => f.write_str("no leader takes proposals"),
            Refused::Transferring => f.write_str("leadership is being handed over"),
            Refused::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Refused {}
