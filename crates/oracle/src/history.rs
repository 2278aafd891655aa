//! Defines the history that is judged: what the clients of a cluster requested and observed. All times are
//! nanoseconds of one monotonic clock that all clients share: the virtual clock in a simulation, or the clock
//! of the machine on which all clients run.

use serde::{Deserialize, Serialize};

use crate::json::zero;
use crate::{Event, KeyValue, Request, Response};

/// All operations and observations of the clients of a cluster. When the history began, the cluster was
/// empty, at revision 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Properties of the run that the judge needs to know.
    pub settings: Settings,
    /// Operations, in any order.
    pub operations: Vec<Operation>,
    /// Watches, in any order.
    pub watches: Vec<Watch>,
    /// Periods in which clients believed that they held locks, in any order.
    pub holdings: Vec<Holding>,
    /// State of each member at the end of the run, when no operation was in progress.
    pub finals: Vec<Final>,
    /// Permissions that were granted or revoked, in the order of the requests. A single administrator made
    /// all requests, one after the other.
    pub grants: Vec<GrantChange>,
    /// Users of operations and watches. Permissions are judged only for the operations and watches that are
    /// listed here.
    pub askers: Vec<Asker>,
    /// Faults and other remarks. They are shown together with violations, and never judged.
    pub notes: Vec<Note>,
}

/// The user of an operation or a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// The name of the user.
    #[serde(default, skip_serializing_if = "zero")]
    pub user: String,
    /// Time at which the client received the token that it sent; 0 if unknown.
    #[serde(default, skip_serializing_if = "zero")]
    pub token_at: u64,
    /// The operation or watch.
    pub asking: Asking,
}

/// Refers to an operation or a watch by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Asking {
    /// Number of an operation, see [`Operation::id`].
    Operation(u64),
    /// Number of a watch, see [`Watch::id`].
    Watch(u64),
}

/// One change of the permissions of users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantChange {
    /// Time at which the change was requested.
    #[serde(default, skip_serializing_if = "zero")]
    pub call: u64,
    /// Time at which the change was acknowledged, or the administrator gave up waiting.
    #[serde(default, skip_serializing_if = "zero")]
    pub returned: u64,
    /// True if the change was acknowledged. Otherwise the change may take effect at any time after the call,
    /// or never.
    #[serde(default, skip_serializing_if = "zero")]
    pub certain: bool,
    /// True if `grant` holds after the change; false if it does not hold any more.
    #[serde(default, skip_serializing_if = "zero")]
    pub granted: bool,
    /// Permission or setting that changes.
    pub grant: Grant,
}

/// A condition on which the permissions of users depend. At the beginning of the history, none of these
/// conditions holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grant {
    /// Authentication is required.
    Authentication,
    /// This user exists and has its role. Each user has a separate role.
    Role(String),
    /// The role of this user allows these keys.
    Keys {
        /// The name of the user.
        #[serde(default, skip_serializing_if = "zero")]
        user: String,
        /// Key, or the first key of the range.
        #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
        key: Vec<u8>,
        /// End of the range, see [`crate::Range::range_end`].
        #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
        range_end: Vec<u8>,
        /// True if the role may read the keys.
        #[serde(default, skip_serializing_if = "zero")]
        read: bool,
        /// True if the role may put and delete the keys.
        #[serde(default, skip_serializing_if = "zero")]
        write: bool,
    },
    /// All tokens of this user that were issued before this change become invalid.
    Tokens(String),
}

/// Properties of the run that the judge needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Time in nanoseconds by which a lease may end before its time to live is over without being judged as
    /// too early. It allows for the constant part of the difference between the clocks of clients and
    /// members; `clock_drift_ppm` allows for the part that grows with time.
    #[serde(default, skip_serializing_if = "zero")]
    pub lease_slack: u64,
    /// Maximum time in nanoseconds for which a lease may still have keys after its time to live is over. It
    /// must allow for the time that the members need to notice the expiry and agree on it, and for a renewal
    /// that takes effect after its client gave up. 0 if the expiry is not judged.
    #[serde(default, skip_serializing_if = "zero")]
    pub expire_by: u64,
    /// Maximum rate, in millionths, by which a member's clock runs faster than the clients' clock.
    #[serde(default, skip_serializing_if = "zero")]
    pub clock_drift_ppm: u64,
    /// Prefixes of keys that clients write without recording their operations. A change of such a key needs
    /// no operation in the history.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blobs")]
    pub unrecorded: Vec<Vec<u8>>,
    /// Maximum number of steps of the search that places writes with unknown outcomes; 0 for the default.
    #[serde(default, skip_serializing_if = "zero")]
    pub search_steps_max: u64,
}

/// One request of a client and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Number of the operation, unique among the operations of the history.
    #[serde(default, skip_serializing_if = "zero")]
    pub id: u64,
    /// Number of the client.
    #[serde(default, skip_serializing_if = "zero")]
    pub client: u64,
    /// Number of the member that received the request.
    #[serde(default, skip_serializing_if = "zero")]
    pub member: u64,
    /// Number of the process of that member which answered, counted from 1 and increased by each restart; 0
    /// if it is not known for certain.
    #[serde(default, skip_serializing_if = "zero")]
    pub life: u64,
    /// Time at which the request was sent.
    #[serde(default, skip_serializing_if = "zero")]
    pub call: u64,
    /// Time at which the response arrived, or the client gave up waiting.
    #[serde(default, skip_serializing_if = "zero")]
    pub returned: u64,
    /// The request.
    pub request: Request,
    /// The outcome.
    pub outcome: Outcome,
    /// The lock that the client believed to hold when it sent the request; `None` for other operations.
    #[serde(default, skip_serializing_if = "zero")]
    pub fence: Option<Fence>,
}

/// Outcome of an operation, as far as the client knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The operation was answered.
    #[serde(with = "crate::json::done")]
    Done(Header, Response),
    /// The operation failed with an error that guarantees that it never takes effect.
    Refused(Refusal),
    /// The operation failed, and it is unknown whether it has taken effect or will still do so. Contains the
    /// error's text.
    Unknown(String),
}

/// Header of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Revision of the store; 0 if the response had none.
    #[serde(default, skip_serializing_if = "zero")]
    pub revision: i64,
    /// Raft term of the last applied entry; 0 if not recorded.
    #[serde(default, skip_serializing_if = "zero")]
    pub term: u64,
}

/// Reason why an operation never takes effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// `mvcc: required revision has been compacted`.
    #[serde(rename = "compacted")]
    Compacted,
    /// `mvcc: required revision is a future revision`.
    #[serde(rename = "future revision")]
    FutureRevision,
    /// `key not found`: `ignore_value` or `ignore_lease` was set for a missing key.
    #[serde(rename = "key not found")]
    KeyNotFound,
    /// `requested lease not found`.
    #[serde(rename = "lease not found")]
    LeaseNotFound,
    /// `lease already exists`.
    #[serde(rename = "lease exists")]
    LeaseExists,
    /// Any other error that guarantees that the operation never takes effect, for example because the member
    /// had no space or the request was malformed. The judge does not check if such a refusal was justified,
    /// except for missing permissions.
    #[serde(rename = "other")]
    Other(String),
}

/// The lock that a client believes to hold. The keys of a lock have a common prefix; the client whose key was
/// created first holds the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// Prefix of the lock's keys.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub prefix: Vec<u8>,
    /// The client's own key for the lock.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// Create revision of the client's key.
    #[serde(default, skip_serializing_if = "zero")]
    pub create_revision: i64,
}

/// A period in which a client believed that it held a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Number of the client.
    #[serde(default, skip_serializing_if = "zero")]
    pub client: u64,
    /// The lock, and the client's key.
    pub fence: Fence,
    /// Lease to which the client's key is attached.
    #[serde(default, skip_serializing_if = "zero")]
    pub lease: i64,
    /// Time at which the client learned that it held the lock.
    #[serde(default, skip_serializing_if = "zero")]
    pub from: u64,
    /// Time at which the client began to release the lock, or learned that it had lost the lock; the end of
    /// the run if neither happened. If the client's lease may have ended before, the judge uses that earlier
    /// time instead.
    #[serde(default, skip_serializing_if = "zero")]
    pub until: u64,
}

/// One watch of a client, from its creation to its end. A client that resumes after a broken stream records a
/// new watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Number of the watch, unique among the watches of the history.
    #[serde(default, skip_serializing_if = "zero")]
    pub id: u64,
    /// Number of the client.
    #[serde(default, skip_serializing_if = "zero")]
    pub client: u64,
    /// Number of the member.
    #[serde(default, skip_serializing_if = "zero")]
    pub member: u64,
    /// Number of the member's process, see [`Operation::life`].
    #[serde(default, skip_serializing_if = "zero")]
    pub life: u64,
    /// Time at which the request for the watch was sent.
    #[serde(default, skip_serializing_if = "zero")]
    pub opened: u64,
    /// Key, or the first key of the range; empty for the lowest key.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// End of the range, see [`crate::Range::range_end`].
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub range_end: Vec<u8>,
    /// First revision to report; 0 for changes after the watch's creation.
    #[serde(default, skip_serializing_if = "zero")]
    pub start_revision: i64,
    /// True if events contain the previous value.
    #[serde(default, skip_serializing_if = "zero")]
    pub prev_kv: bool,
    /// True if puts are not reported.
    #[serde(default, skip_serializing_if = "zero")]
    pub no_put: bool,
    /// True if deletions are not reported.
    #[serde(default, skip_serializing_if = "zero")]
    pub no_delete: bool,
    /// True if large responses may be split.
    #[serde(default, skip_serializing_if = "zero")]
    pub fragment: bool,
    /// Responses in the order of their arrival.
    #[serde(default, skip_serializing_if = "zero")]
    pub responses: Vec<WatchResponse>,
    /// The end of the watch.
    pub end: End,
}

/// One response of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchResponse {
    /// Time at which the response arrived.
    #[serde(default, skip_serializing_if = "zero")]
    pub at: u64,
    /// Revision in the header.
    #[serde(default, skip_serializing_if = "zero")]
    pub revision: i64,
    /// Contents of the response.
    pub answer: WatchAnswer,
}

/// Contents of a watch response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchAnswer {
    /// The watch was created.
    Created,
    /// The response reports changes of keys.
    Events {
        /// Events in the order of their arrival.
        #[serde(rename = "list", default, skip_serializing_if = "zero")]
        events: Vec<Event>,
        /// True if the next response continues this one.
        #[serde(default, skip_serializing_if = "zero")]
        fragment: bool,
    },
    /// A progress notification: everything up to the header's revision has been reported.
    Progress,
    /// The server ended the watch.
    Canceled {
        /// Compact revision, if the watch ended because revisions that it needs were compacted; otherwise 0.
        #[serde(default, skip_serializing_if = "zero")]
        compact_revision: i64,
        /// Reason given by the server.
        #[serde(default, skip_serializing_if = "zero")]
        reason: String,
    },
}

/// The end of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The stream broke, or the client closed it; more events may have been in flight.
    Broken,
    /// The server cancelled the watch, as the last response says.
    Canceled,
    /// The watch stayed open until the end of the run, and the client waited for all events. So the watch
    /// must have reported everything up to this revision.
    Drained(i64),
}

/// Final state of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Final {
    /// Number of the member.
    #[serde(default, skip_serializing_if = "zero")]
    pub member: u64,
    /// Revision in the header of the dump.
    #[serde(default, skip_serializing_if = "zero")]
    pub revision: i64,
    /// All keys in order, from a serializable read; `None` if not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<Vec<KeyValue>>,
    /// Result of `HashKV`: hash, revision of the hash, compact revision; `None` if not requested.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::json::hash")]
    pub hash: Option<(u32, i64, i64)>,
}

/// A remark about the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Time of the remark.
    #[serde(default, skip_serializing_if = "zero")]
    pub at: u64,
    /// Text of the remark.
    #[serde(default, skip_serializing_if = "zero")]
    pub text: String,
}
