//! The core: the one thread that decides, and the one writer of the state.
//!
//! It takes what shards ask and what the log tells, in batches: everything that gathered while it was busy. One turn
//! proposes it all, hands the log one batch, applies what has become durable and committed, publishes one state, and
//! only then answers (invariant I3). It never waits for the disk.
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
mod history;
mod install;
mod leadership;
mod leases;
mod membership;
mod meters;
mod parked;
mod proposals;
mod reads;
mod removal;
mod room;
mod run;
mod segments;
mod space;

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use api::Status;
use api::raftpb;
use bytes::Bytes;
use consensus::Fetch;
use log::LogEvent;
use machine::{AsOf, Leases, Outcome, SharedMap, StateTrail};
use tokio::sync::oneshot;

use crate::arrivals::Charge;
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

/// Identifies a request that is to be answered: a place among those that a shard waits for. The generation keeps a late
/// answer from a newer request at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The shard.
    pub shard: u16,
    /// The place.
    pub slot: u32,
    /// How often the place has been used.
    pub generation: u32,
}

/// Points of a state trail at most that the core gives, the newest.
pub const STATE_TRAIL_POINTS_MAX: usize = 1024;

/// Stands for a shard in the ids of requests that come from another thread.
const OUTSIDE: u16 = u16::MAX;

/// What the core is asked or told, by who asks.
pub enum CoreRequest {
    /// Clients.
    Client(ClientRequest),
    /// Other members.
    Peer(PeerRequest),
    /// The log and the disk.
    Storage(StorageRequest),
    /// The monitor of this member, or the process that ends it.
    Control(ControlRequest),
    /// Any of them that has an answer, from a thread that is no shard: it is answered through the channel.
    Outside(oneshot::Sender<Reply>, Box<dyn FnOnce(RequestId) -> CoreRequest + Send>),
}

/// What clients ask, by way of a shard or of another member that forwards it.
pub enum ClientRequest {
    /// To replicate a command.
    Propose {
        /// Whom to answer.
        request_id: RequestId,
        /// The id inside the command.
        id: u64,
        /// Bytes of an `InternalRaftRequest`.
        data: Bytes,
        /// Which connection it came over, more or less: to guess how many more are coming.
        writer: u16,
        /// For a compaction: answer only once everything it made unreadable is removed.
        wait_removed: bool,
    },
    /// To say when the newest published state is as new as a linearizable read needs.
    Read(RequestId),
    /// To change the members.
    ChangeMembers(RequestId, MemberChange),
    /// To hand leadership to this member.
    MoveLeader(RequestId, u64),
    /// To renew a lease.
    KeepAlive(RequestId, i64),
    /// Asks for the time that a lease has left and, with `true`, for its keys.
    TimeToLive(RequestId, i64, bool),
    /// Which keys a lease has, as this member knows it.
    LeaseKeys(RequestId, i64),
    /// Which leases there are, soonest to expire first.
    Leases(RequestId),
    /// The times that these leases have left; some hundreds at a time.
    LeaseTimes(RequestId, Vec<i64>),
    /// The state as of now, whole, for a snapshot.
    Image(RequestId),
    /// To raise the NOSPACE alarm, since a write would go over the quota.
    RaiseNoSpace,
}

impl From<ClientRequest> for CoreRequest {
    fn from(request: ClientRequest) -> CoreRequest {
        CoreRequest::Client(request)
    }
}

/// What other members send, and what comes of sending to them.
pub enum PeerRequest {
    /// Other members sent these, which take this room.
    Messages(Vec<raftpb::Message>, Charge),
    /// A member could not be reached.
    Unreachable(u64),
    /// Nobody listens any more where this member, which led, was reached.
    LeaderEnded(u64),
    /// A snapshot was delivered to a member, or was not.
    SnapshotSent {
        /// The member.
        to: u64,
        /// Whether it has all of it.
        delivered: bool,
    },
    /// What another member need not send of its state.
    Holds(RequestId),
    /// Another member sends its state: the present state is wanted, to build on. The number stands for this attempt.
    /// It comes from this member, in this term.
    ReceiveSnapshot(RequestId, u64, u64, u64),
    /// The sending has broken off; it may go on.
    SnapshotBroken(u64, Forget),
    /// It goes on, from this member, in this term.
    ResumeSnapshot(RequestId, u64, u64, u64),
    /// All of it has arrived in this attempt.
    SnapshotReceived(u64, Box<Received>),
    /// It will not arrive in this attempt.
    SnapshotGivenUp(u64),
    /// Values of a snapshot that is being received in this attempt, to be written to the log.
    Place(u64, Vec<log::Value>, oneshot::Sender<Vec<(log::ValueId, log::Location)>>),
    /// The hashes of the state after the entries from this one on.
    StateTrail(RequestId, u64),
    /// Another member says that this one was removed.
    Removed,
}

impl From<PeerRequest> for CoreRequest {
    fn from(request: PeerRequest) -> CoreRequest {
        CoreRequest::Peer(request)
    }
}

/// What the log, the checkpointer and readers of the disk tell.
pub enum StorageRequest {
    /// Values that an entry depends on were read, as far as could be.
    ValuesRead,
    /// Entries that a follower needs and that had left memory; none if they could not be read.
    Fetched(Fetch, Fetched),
    /// A checkpoint was made, or failed.
    Checkpointed(Result<Checkpointed, CheckpointError>),
    /// These values are to be moved out of their segments; the sender hears when they are.
    Relocate(Vec<Relocation>, SyncSender<()>),
    /// All values of an order to relocate have been moved, or could not be.
    Relocated,
    /// The log has something to tell.
    Log(LogEvent),
}

impl From<StorageRequest> for CoreRequest {
    fn from(request: StorageRequest) -> CoreRequest {
        CoreRequest::Storage(request)
    }
}

/// What those tell that watch over this member and the cluster, or end it.
pub enum ControlRequest {
    /// This member's state differs from that of the others; 0: of some member, it is not known which.
    Corrupt(u64),
    /// The cluster can run at this version.
    ClusterVersion(String),
    /// To stop, in order: leases' remaining time is saved first.
    Stop,
}

impl From<ControlRequest> for CoreRequest {
    fn from(request: ControlRequest) -> CoreRequest {
        CoreRequest::Control(request)
    }
}

/// The core's answer.
pub struct Reply {
    /// Whom it is for.
    pub request_id: RequestId,
    /// The store's revision when it was made.
    pub revision: i64,
    /// The term of the last entry applied then.
    pub raft_term: u64,
    /// The answer.
    pub body: ReplyBody,
}

// Up to 128 bytes are moved without a call.
const _: () = assert!(size_of::<Reply>() <= 128);

/// What an answer holds. What is large and rare in it lies behind a pointer: it is moved several times on its way.
#[derive(Debug)]
pub enum ReplyBody {
    /// Of a proposal; with the state right behind it, if its answer holds keys and values.
    Outcome(Result<Outcome, Status>, Option<Box<AsOf>>),
    /// The renewed lease's TTL in seconds; 0 if it is gone.
    KeptAlive(i64),
    /// A lease's time.
    TimeToLive {
        /// Seconds left; -1 if it is gone.
        ttl: i64,
        /// Seconds granted.
        granted: i64,
        /// Its keys, if asked for.
        keys: SharedMap<Bytes, ()>,
    },
    /// A lease's keys.
    LeaseKeys(SharedMap<Bytes, ()>),
    /// Lease ids, soonest to expire first.
    Leases(Vec<i64>),
    /// Leases, too many to be put in order at once.
    ManyLeases(Leases),
    /// Times left.
    LeaseTimes(Vec<Duration>),
    /// A linearizable read may be answered from the newest published state.
    Readable,
    /// The members are as asked.
    MembersChanged,
    /// The other member leads.
    LeaderMoved,
    /// What this member has of the state, and the last entry it has applied.
    Holds(Held, u64),
    /// Hashes of the state.
    StateTrail(StateTrail),
    /// The state: keys and values, and the rest.
    Image(Box<Head>, Box<AsOf>),
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
