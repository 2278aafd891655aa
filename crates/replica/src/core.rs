//! The core: what decides, and the one writer of the state. One thread at a time does its work, as a rule its own.
//!
//! It takes what shards ask and what the log tells, in batches: everything that gathered while it was busy. One turn
//! proposes it all, hands the log one batch, applies what has become durable and committed, publishes one state, and
//! only then answers (invariant I3). It waits for the disk only where `writing.rs` says.
//!
//! `run.rs` is the loop. The other files are what it looks after, each with its own state: [`Core`] says how they go together.

mod alarms;
mod answers;
mod apply;
mod attributes;
mod batching;
mod checkpoints;
mod command;
mod compactor;
mod cpu_pressure;
mod fatal;
mod granted_ahead;
mod history;
mod install;
mod leadership;
mod leases;
mod membership;
mod meters;
mod outgoing;
mod parked;
mod proposals;
mod questions;
mod quota_warning;
mod reads;
mod removal;
mod room;
mod run;
mod segments;
mod space;
mod writing;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use api::Status;
use api::raftpb;
use bytes::Bytes;
use consensus::Fetch;
use log::LogEvent;
use machine::{AsOf, Leases, Outcome, SharedMap, StateTrail};
use numbers::{Index, LeaseId, MemberId, Revision, Seconds, Term};
use tokio::sync::oneshot;

use crate::arrivals::Charge;
use crate::stages::RoundTimes;
use crate::transfer::Received;
use machine::image::Head;
use machine::transfer::Held;
use storage::catch_up::Fetched;
use storage::checkpointer::{CheckpointError, Checkpointed, Relocation};

pub use checkpoints::Thresholds;
pub use command::command;
pub use fatal::Fatal;
pub use install::Forget;
pub use leases::LISTED_AT_ONCE;
pub use membership::MemberChange;
pub use run::{Core, Parts, Probe};

/// Identifies a request that waits for its reply: a slot among the open requests of one shard. The generation keeps a
/// late reply from a newer request that uses the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// Number of the shard that waits for the reply.
    pub shard: u16,
    /// Slot of the request among the shard's open requests.
    pub slot: u32,
    /// Number of times that the slot has been used before.
    pub generation: u32,
}

/// Maximum number of points of a state trail that the core returns; they are the newest.
pub const STATE_TRAIL_POINTS_MAX: usize = 1024;

/// Shard number in the ids of requests that come from a thread which is no shard.
const OUTSIDE: u16 = u16::MAX;

/// A request to the core, or an event that it is told, sorted by its source.
pub enum CoreRequest {
    /// A client's request, from a shard.
    Client(ClientRequest),
    /// A message, request or event that concerns another member.
    Peer(PeerRequest),
    /// An event of the log, the checkpointer or the readers of the disk.
    Storage(StorageRequest),
    /// A request of this member's monitor, or of the process that stops the member.
    Control(ControlRequest),
    /// A request from a thread that is no shard; the reply goes through the channel.
    Outside(oneshot::Sender<Reply>, Box<dyn FnOnce(RequestId) -> CoreRequest + Send>),
}

/// The connection that a command came over, more or less: the port of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// A command other than a login.
    Port(u16),
    /// A login. No other command waits for logins to share its batch.
    Login(u16),
}

/// A client's request, from a shard of this member or forwarded by another member.
pub enum ClientRequest {
    /// Replicate a command.
    Propose {
        /// Id of the request that the reply goes to.
        request_id: RequestId,
        /// Id inside the command, by which its entry is recognized when it is applied.
        id: u64,
        /// Bytes of an `InternalRaftRequest`.
        data: Bytes,
        /// Who sent it, to estimate how many connections write and how many more commands will come.
        writer: Writer,
        /// For a compaction: reply only once everything that it made unreadable is removed.
        wait_removed: bool,
    },
    /// Reply once the newest published state is new enough for a linearizable read.
    Read(RequestId),
    /// Change the membership. With `true`, what is refused for the members that there are ([`MemberChange::is_of_members`]) is
    /// asked once more when this member has heard of all changes before, so that it is neither counted nor logged.
    ChangeMembers(RequestId, MemberChange, bool),
    /// Hand leadership over to the member with this id.
    MoveLeader(RequestId, MemberId),
    /// Renew the lease with this id.
    KeepAlive(RequestId, LeaseId),
    /// Return the time that the lease with this id has left and, with `true`, its keys.
    TimeToLive(RequestId, LeaseId, bool),
    /// Return the keys of the lease with this id, as this member has them.
    LeaseKeys(RequestId, LeaseId),
    /// Return the keys that whoever renews the lease with this id must be allowed to write, amid an entry too.
    KeysToRenew(RequestId, LeaseId),
    /// Return the ids of all leases, soonest to expire first.
    Leases(RequestId),
    /// Return the times that these leases have left; a request has some hundred ids.
    LeaseTimes(RequestId, Vec<LeaseId>),
    /// Return the whole present state, for a snapshot.
    Image(RequestId),
    /// Raise the NOSPACE alarm, since a write would exceed the quota.
    RaiseNoSpace,
}

impl From<ClientRequest> for CoreRequest {
    fn from(request: ClientRequest) -> CoreRequest {
        CoreRequest::Client(request)
    }
}

/// An attempt of another member to send its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotAttempt {
    /// Number of the attempt, as counted by the receiver.
    pub claim: u64,
    /// Id of the sending member.
    pub from: MemberId,
    /// Term in which the sending member leads.
    pub term: Term,
    /// Bytes that the state takes on the log's disk as far as they are known, if all of it comes; `None` if only what this
    /// member lacks does.
    pub whole_bytes: Option<u64>,
}

/// Too little room on the log's disk for another member's whole state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that are free; 0 if the log itself has found a shortage.
    pub free_bytes: u64,
    /// Bytes that have to be free.
    pub wanted_bytes: u64,
}

/// Values of a state that is being received, for the log.
pub struct Placement {
    /// Number of the attempt in which they came.
    pub claim: u64,
    /// The values.
    pub values: Vec<log::Value>,
    /// True if all of the state comes, not only what this member lacks.
    pub is_whole: bool,
    /// Gets the locations of the values, or why there is no room for them; is dropped if they cannot be taken now.
    pub done: oneshot::Sender<Result<Vec<(log::ValueId, log::Location)>, Shortage>>,
}

/// A message or request of another member, or an event on the way to or from one.
pub enum PeerRequest {
    /// Raft messages of other members, and the charge for their memory.
    Messages(Vec<raftpb::Message>, Charge),
    /// The member with this id could not be reached.
    Unreachable(MemberId),
    /// The process of this member, which was the leader, has ended: its address refuses connections.
    LeaderEnded(MemberId),
    /// The state at this entry goes to a member as a database, since the member runs etcd.
    DatabaseOpened {
        /// Id of the receiving member.
        to: MemberId,
        /// The last entry in the state.
        index: Index,
    },
    /// A snapshot was delivered to a member, or its sending failed.
    SnapshotSent {
        /// Id of the receiving member.
        to: MemberId,
        /// True if the member has received all of it.
        delivered: bool,
    },
    /// Return what this member already has of the state, so that the sender of a snapshot leaves it out.
    Holds(RequestId),
    /// Another member offers all of its state, which does not build on the present one; tell if it would be taken now.
    OfferSnapshot(RequestId, SnapshotAttempt),
    /// Another member begins to send its state; return the present state, on which the received one builds.
    ReceiveSnapshot(RequestId, SnapshotAttempt),
    /// The stream of this attempt broke off; the attempt may be resumed.
    SnapshotBroken(u64, Forget),
    /// The stream of this attempt goes on.
    ResumeSnapshot(RequestId, SnapshotAttempt),
    /// The whole state has arrived in this attempt.
    SnapshotReceived(u64, Box<Received>),
    /// This attempt to receive a state is given up.
    SnapshotGivenUp(u64),
    /// Write these values of the state that this attempt receives to the log, and send back their locations.
    Place(Placement),
    /// Return the hashes of the state after each entry from this index on.
    StateTrail(RequestId, Index),
    /// Another member reports that this member was removed from the cluster.
    Removed,
}

impl From<PeerRequest> for CoreRequest {
    fn from(request: PeerRequest) -> CoreRequest {
        CoreRequest::Peer(request)
    }
}

/// An event of the log, the checkpointer or the readers of the disk.
pub enum StorageRequest {
    /// The values that the next entry depends on were read, as far as possible.
    ValuesRead,
    /// Entries that a follower needs and that were no longer in memory, or why they could not be read.
    Fetched(Fetch, Fetched),
    /// A checkpoint is durable, or failed.
    Checkpointed(Result<Checkpointed, CheckpointError>),
    /// Write these live values to the log again, so that their segments can be deleted; signal the sender when that is
    /// done.
    Relocate(Vec<Relocation>, SyncSender<()>),
    /// All values of an order to relocate have been moved, or could not be moved.
    Relocated,
    /// The log reports an event, such as a sync.
    Log(LogEvent),
}

impl From<StorageRequest> for CoreRequest {
    fn from(request: StorageRequest) -> CoreRequest {
        CoreRequest::Storage(request)
    }
}

/// A request of the monitor, of the corruption checks, or of the process that stops the member.
pub enum ControlRequest {
    /// Raise the CORRUPT alarm for the member with this id, whose state differs; 0 if it is not known whose does.
    Corrupt(u64),
    /// Set the cluster version to this one, which all members support.
    ClusterVersion(String),
    /// End the downgrade to this version: all members run it.
    Downgraded(String),
    /// Stop cleanly: note the remaining time of leases and hand leadership over first.
    Stop,
}

impl From<ControlRequest> for CoreRequest {
    fn from(request: ControlRequest) -> CoreRequest {
        CoreRequest::Control(request)
    }
}

/// The core's reply to a request.
pub struct Reply {
    /// Id of the request that is answered.
    pub request_id: RequestId,
    /// Revision of the store when the reply was made.
    pub revision: Revision,
    /// Raft term of the last entry applied when the reply was made.
    pub raft_term: Term,
    /// Content of the reply.
    pub body: ReplyBody,
}

// Up to 128 bytes are moved without a call.
const _: () = assert!(size_of::<Reply>() <= 128);

/// Content of a reply. Parts that are large and rare are boxed, since a reply is moved several times; those that many ask for
/// are shared by all answers of a turn.
#[derive(Debug)]
pub enum ReplyBody {
    /// Result of a proposal; with the state right behind its entry, if the answer holds keys and values.
    Outcome(Result<Outcome, Status>, Option<Box<AsOf>>),
    /// TTL of the renewed lease in seconds; 0 if the lease does not exist.
    KeptAlive(Seconds),
    /// Time left of a lease.
    TimeToLive {
        /// Seconds left; -1 if the lease does not exist.
        ttl: Seconds,
        /// TTL that was granted, in seconds.
        granted: Seconds,
        /// Keys of the lease, if they were asked for.
        keys: Arc<SharedMap<Bytes, ()>>,
    },
    /// Keys of a lease.
    LeaseKeys(Arc<SharedMap<Bytes, ()>>),
    /// Lease ids, soonest to expire first.
    Leases(Arc<[LeaseId]>),
    /// All leases: there are too many for the core to sort at once.
    ManyLeases(Arc<Leases>),
    /// Times that the leases have left, in the order of the request.
    LeaseTimes(Vec<Duration>),
    /// A linearizable read may be answered from the newest published state; with the times of the round of ReadIndex that
    /// confirmed it, if it took one.
    Readable(Option<RoundTimes>),
    /// The membership change is applied.
    MembersChanged,
    /// The requested member leads now.
    LeaderMoved,
    /// Parts of the state that this member has, and the index of the last entry it has applied.
    Holds(Held, Index),
    /// Hashes of the state after the last entries.
    StateTrail(StateTrail),
    /// The whole state: leases, alarms and members, and a moment of keys and values.
    Image(Arc<Head>, Box<AsOf>),
    /// There is too little room for the state that a member wants to send.
    Shortage(Shortage),
}

impl storage::opening::LogEvents for crate::inbox::Inbox<CoreRequest> {
    fn tell(&self, event: LogEvent) {
        self.send(StorageRequest::Log(event));
    }

    fn receive_here(&self) {
        crate::inbox::Inbox::receive_here(self);
    }

    fn receive(&self, into: &mut Vec<LogEvent>, patience: Duration) {
        let mut asked = Vec::new();
        self.drain(&mut asked, patience, 1);
        into.extend(asked.into_iter().filter_map(|request| match request {
            CoreRequest::Storage(StorageRequest::Log(event)) => Some(event),
            _ => None,
        }));
    }
}
