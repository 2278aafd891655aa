//! Messages to the core and from the core: requests and events ([`CoreRequest`]), and replies ([`Reply`]).

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use api::raftpb;
use api::{Status, error};
use bytes::Bytes;
use consensus::Fetch;
use log::LogEvent;
use machine::image::Head;
use machine::transfer::Held;
use machine::{AsOf, Leases, Member, Outcome, SharedMap, StateTrail};
use numbers::{Index, LeaseId, MemberId, Revision, Seconds, Term};
use storage::catch_up::Fetched;
use storage::checkpointer::{CheckpointError, Checkpointed, Relocation};
use tokio::sync::oneshot;

use crate::arrivals::Charge;
use crate::autopilot::MemberReport;
use crate::observing::{ObserverCard, Registered};
use crate::received::ReceivedState;
use crate::stages::RoundTimes;

/// Id of a request that waits for its reply: a slot among the open requests of one shard. The generation
/// keeps a late reply from being delivered to a newer request in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// Number of the shard that waits for the reply.
    pub shard: u16,
    /// Slot of the request among the shard's open requests.
    pub slot: u32,
    /// Generation of the slot; it differs for each request that uses the slot.
    pub generation: u32,
}

/// A request to the core, or an event that the core handles. Each variant stands for one kind of source.
pub enum CoreRequest {
    /// A client's request, from a shard.
    Client(ClientRequest),
    /// A message, request or event that concerns another member.
    Peer(PeerRequest),
    /// An event of the log, the checkpointer or the readers of the disk.
    Storage(StorageRequest),
    /// A request of this member's monitor, or of the process that stops the member.
    Control(ControlRequest),
    /// A request from a thread that is not a shard. The core calls the closure with a request id, and the
    /// closure returns the actual request. The core sends the reply through the channel.
    Outside(oneshot::Sender<Reply>, Box<dyn FnOnce(RequestId) -> CoreRequest + Send>),
}

/// The client connection that sent a command, approximately identified by the client's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// A command other than a login.
    Port(u16),
    /// A login. The core may delay logins, so that several of them share a batch. It does not delay other
    /// commands for logins.
    Login(u16),
}

/// A membership change.
#[derive(Clone, Debug)]
pub enum MemberChange {
    /// Adds a member, with its id and peer URLs.
    Add(Member),
    /// Removes the member with this id.
    Remove(u64),
    /// Replaces the peer URLs of a member.
    Update(Member),
    /// Promotes the learner with this id to a voter.
    Promote(u64),
}

impl MemberChange {
    /// Returns true if the refusal `status` depends on the current members, so that this member may accept
    /// the same change after it has applied more entries.
    pub fn is_of_members(status: &Status) -> bool {
        [
            error::MEMBER_EXIST,
            error::PEER_URL_EXIST,
            error::MEMBER_NOT_FOUND,
            error::MEMBER_NOT_LEARNER,
            error::TOO_MANY_LEARNERS,
        ]
        .contains(status)
    }
}

/// Closure that makes the receiver of a snapshot give up the part that had arrived when the stream broke off.
/// Returns the received part, so that the caller can drop it, or `None` if the part no longer exists.
pub type Forget = Box<dyn FnOnce() -> Option<Box<dyn Any + Send>> + Send>;

/// Handling of a refused membership change: retried by the shard, or reported to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeAttempt {
    /// If the change is refused because of the current members ([`MemberChange::is_of_members`]), the shard
    /// retries it once this member has applied all earlier changes. So the core neither counts nor logs such
    /// a refusal.
    Tentative,
    /// The client gets the refusal, which the core counts and logs.
    Final,
}

/// Selects the content of a reply about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseDetail {
    /// The remaining time.
    Time,
    /// The remaining time and the keys.
    TimeAndKeys,
}

impl LeaseDetail {
    /// Returns the content of a reply with or without keys.
    pub fn of(with_keys: bool) -> LeaseDetail {
        if with_keys { LeaseDetail::TimeAndKeys } else { LeaseDetail::Time }
    }
}

/// A client's request, from a shard of this member or forwarded by another member.
pub enum ClientRequest {
    /// Replicate a command.
    Propose {
        /// Id of the request, which the reply carries.
        request_id: RequestId,
        /// Id inside the command. It identifies the entry of the command when the entry is applied.
        id: u64,
        /// Bytes of an `InternalRaftRequest`.
        data: Bytes,
        /// Client connection of the command, used to estimate how many connections write and how many more
        /// commands will arrive.
        writer: Writer,
        /// True for a compaction whose reply has to wait until all versions that it made unreadable are
        /// removed.
        wait_removed: bool,
    },
    /// Reply once the newest published state is new enough for a linearizable read.
    Read(RequestId),
    /// Change the membership.
    ChangeMembers(RequestId, MemberChange, ChangeAttempt),
    /// Transfer leadership to the member with this id.
    MoveLeader(RequestId, MemberId),
    /// Renew the lease with this id.
    KeepAlive(RequestId, LeaseId),
    /// Return the remaining time of the lease with this id and, depending on the detail, its keys.
    TimeToLive(RequestId, LeaseId, LeaseDetail),
    /// Return the keys of the lease with this id, as this member has them.
    LeaseKeys(RequestId, LeaseId),
    /// Return the keys of the lease with this id. The shard checks that the user who renews the lease may
    /// write all of them. The core answers this request even while it applies an entry in slices, because a
    /// renewal must not wait for that.
    KeysToRenew(RequestId, LeaseId),
    /// Return the ids of all leases, ordered by remaining time, shortest first.
    Leases(RequestId),
    /// Return the remaining times of these leases. A request has at most
    /// [`LISTED_AT_ONCE`](crate::core::LISTED_AT_ONCE) ids.
    LeaseTimes(RequestId, Vec<LeaseId>),
    /// Return the whole current state, for a snapshot.
    Image(RequestId),
    /// Raise the NOSPACE alarm, because a write would exceed the quota.
    RaiseNoSpace,
}

impl From<ClientRequest> for CoreRequest {
    fn from(request: ClientRequest) -> CoreRequest {
        CoreRequest::Client(request)
    }
}

/// An attempt of another member to send its state to this member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotAttempt {
    /// Number that this member has assigned to the attempt.
    pub claim: u64,
    /// Id of the sending member.
    pub from: MemberId,
    /// Term in which the sending member leads.
    pub term: Term,
    /// If the sender sends its whole state, an upper bound or estimate of the bytes that the state takes on
    /// the log's disk; 0 if the size is not known yet. `None` if the sender sends only the data that this
    /// member lacks, and in offers and resumed attempts, for which the space is not checked.
    pub whole_bytes: Option<u64>,
}

/// The reason why a whole state of another member is refused: the log's disk has too little free space for
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Number of free bytes; 0 if the log itself has already found a shortage.
    pub free_bytes: u64,
    /// Number of bytes that would have to be free.
    pub wanted_bytes: u64,
}

/// A request to write values of a snapshot, which is being received, to the log.
pub struct Placement {
    /// Number of the attempt in which the values arrived.
    pub claim: u64,
    /// The values.
    pub values: Vec<log::Value>,
    /// True if the sender sends its whole state, not only the data that this member lacks.
    pub is_whole: bool,
    /// Sender for the locations of the values, or for the shortage of space. The core drops this sender
    /// without a message if it cannot accept the values now.
    pub done: oneshot::Sender<Result<Vec<(log::ValueId, log::Location)>, Shortage>>,
}

/// A message or request of another member, or an event about the communication with another member.
pub enum PeerRequest {
    /// Raft messages of other members, and the bytes taken for them from the sender's memory budget.
    Messages(Vec<raftpb::Message>, Charge),
    /// The member with this id could not be reached.
    Unreachable(MemberId),
    /// The connection to the member with this id, which was the leader, shows that its process has ended: its
    /// address refuses connections.
    LeaderEnded(MemberId),
    /// This member sends the state at `index` to a member in etcd's database format, because that member runs
    /// etcd.
    DatabaseOpened {
        /// Id of the receiving member.
        to: MemberId,
        /// Log index of the last entry in the state.
        index: Index,
    },
    /// The sending of a snapshot to a member has ended.
    SnapshotSent {
        /// Id of the receiving member.
        to: MemberId,
        /// True if the member has received the whole snapshot; false if the sending failed.
        delivered: bool,
    },
    /// Return which versions of keys this member holds, so that the sender of a snapshot can leave them out.
    Holds(RequestId),
    /// Another member offers its whole state, which does not build on this member's state. Reply whether it
    /// would be accepted now.
    OfferSnapshot(RequestId, SnapshotAttempt),
    /// Another member begins to send its state. Return this member's current state, on which the received
    /// state may build.
    ReceiveSnapshot(RequestId, SnapshotAttempt),
    /// The stream of the attempt with this number broke off, and the attempt may be resumed. If it is not,
    /// the core calls the closure to drop the received part.
    SnapshotBroken(u64, Forget),
    /// The sender has opened a new stream to continue the attempt. Reply whether this member accepts that.
    ResumeSnapshot(RequestId, SnapshotAttempt),
    /// The whole state has arrived in the attempt with this number.
    SnapshotReceived(u64, Box<ReceivedState>),
    /// The attempt with this number to receive a state is given up.
    SnapshotGivenUp(u64),
    /// Write these values of a snapshot that is being received to the log, and return their locations.
    Place(Placement),
    /// Return the hashes of the state after each entry from this index on.
    StateTrail(RequestId, Index),
    /// The node with this id reports that this member was removed from the cluster.
    Removed(MemberId),
    /// An observer asks to be fed, or to be fed further.
    Observe(RequestId, Box<ObserverCard>),
    /// This observer takes its entries from the node with this id, at these peer URLs, which sends heartbeats at
    /// this interval.
    Follow(MemberId, Vec<String>, Duration),
}

impl From<PeerRequest> for CoreRequest {
    fn from(request: PeerRequest) -> CoreRequest {
        CoreRequest::Peer(request)
    }
}

/// An event of the log, the checkpointer or the readers of the disk.
pub enum StorageRequest {
    /// The values on which the next entry depends were read, or some of them cannot be read. The event starts
    /// a turn of the core, which checks the result.
    ValuesRead,
    /// Entries that a follower needs and that are no longer in memory, or the error of reading them.
    Fetched(Fetch, Fetched),
    /// A checkpoint is durable, or could not be written.
    Checkpointed(Result<Checkpointed, CheckpointError>),
    /// Write these live values to the log again, so that their old segments can be deleted. Signal through
    /// the sender when the values are written.
    Relocate(Vec<Relocation>, SyncSender<()>),
    /// An order to move or compress values has ended.
    Relocated {
        /// False if the order ended early, because another one came.
        is_whole: bool,
    },
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
    /// Raise the CORRUPT alarm for the member with this id, because its state differs. The id 0 means that
    /// the differing member is not known.
    Corrupt(u64),
    /// The state of this observer differs from that of its feeder with this id after the entry with this index:
    /// go out of service.
    DiffersFromFeeder(u64, Index),
    /// Set the cluster version to this version, which all members support.
    ClusterVersion(String),
    /// End the downgrade to this version, because all members run it.
    Downgraded(String),
    /// Reports of the members to the autopilot.
    Reports {
        /// Report of each member, by id; `None` for a member that has not answered, or that
        /// has no autopilot.
        reports: Vec<(u64, Option<MemberReport>)>,
        /// Ids of the other members whose states are equal to that of this member.
        agreeing: Vec<u64>,
        /// Ids of the members whose states are known to differ from that of this member.
        differing: Vec<u64>,
    },
    /// Stop cleanly: before the end, make lease checkpoints and transfer leadership.
    Stop,
}

impl From<ControlRequest> for CoreRequest {
    fn from(request: ControlRequest) -> CoreRequest {
        CoreRequest::Control(request)
    }
}

/// The core's reply to a request.
pub struct Reply {
    /// Id of the request to which this is the reply.
    pub request_id: RequestId,
    /// Revision for the header of the response: for the outcome of an entry, the revision right after the
    /// entry; for most other replies, the current revision when the reply was made.
    pub revision: Revision,
    /// Raft term for the header of the response: for the outcome of an entry, the term of the entry; for most
    /// other replies, the term of the last entry applied when the reply was made.
    pub raft_term: Term,
    /// Content of the reply.
    pub body: ReplyBody,
}

// Asserted because moves of up to 128 bytes compile to inline instructions, without a call of `memcpy`, and a
// reply is moved several times.
const _: () = assert!(size_of::<Reply>() <= 128);

/// Content of a reply. Large and rare parts are boxed, because a reply is moved several times. Parts that
/// many requests of a turn want are shared through an `Arc`.
#[derive(Debug)]
pub enum ReplyBody {
    /// Outcome of a proposal. If the response to the client contains keys and values, the second field is a
    /// handle to read them from the state as it was right after the proposal's entry was applied.
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
    /// Ids of all leases, ordered by remaining time, shortest first.
    Leases(Arc<[LeaseId]>),
    /// All leases, if they are too many for the core to sort in one turn.
    ManyLeases(Arc<Leases>),
    /// Remaining times of the leases, in the order of the request.
    LeaseTimes(Vec<Duration>),
    /// A linearizable read may be answered from the newest published state. Contains the times of the
    /// ReadIndex round that confirmed the read, if a round was needed.
    Readable(Option<RoundTimes>),
    /// The membership change is applied.
    MembersChanged,
    /// The member that was requested now leads.
    LeaderMoved,
    /// The reply to [`PeerRequest::Holds`]: which versions of keys this member holds, so that the sender of a
    /// snapshot can leave them out, and the index of the last entry that this member has applied.
    Holds(Held, Index),
    /// Hashes of the state after the last entries.
    StateTrail(StateTrail),
    /// The whole state at one moment: the head, which is the state except keys and values (such as leases,
    /// alarms and members), and a handle to read the keys and values.
    Image(Arc<Head>, Box<AsOf>),
    /// The log's disk has too little space for the state that another member wants to send.
    Shortage(Shortage),
    /// The observer is fed.
    Registered(Registered),
}
