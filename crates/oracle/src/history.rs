//! What is judged. Times are nanoseconds of one clock that only goes forward and that all clients share: virtual time
//! in a simulation, the monotonic clock of the one machine that all clients run on.

use serde::{Deserialize, Serialize};

use crate::json::zero;
use crate::{Event, KeyValue, Request, Response};

/// Everything that clients did and saw, of a cluster that began empty at revision 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// What the judge has to know of the run.
    pub settings: Settings,
    /// In any order.
    pub operations: Vec<Operation>,
    /// In any order.
    pub watches: Vec<Watch>,
    /// In any order.
    pub holdings: Vec<Holding>,
    /// What members said at the end, when all was quiet.
    pub finals: Vec<Final>,
    /// What was granted to users and taken away, in the order in which one administrator asked for it, one change after the
    /// other.
    pub grants: Vec<GrantChange>,
    /// Whose operations and watches they were, as far as permissions are to be judged.
    pub askers: Vec<Asker>,
    /// Faults and other remarks; shown beside violations, never judged.
    pub notes: Vec<Note>,
}

/// The user of an operation or a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// The name of the user.
    #[serde(default, skip_serializing_if = "zero")]
    pub user: String,
    /// When the client had the token that it sent; 0 if that is not known.
    #[serde(default, skip_serializing_if = "zero")]
    pub token_at: u64,
    /// What it asked.
    pub asking: Asking,
}

/// An operation or a watch, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Asking {
    /// By [`Operation::id`].
    Operation(u64),
    /// By [`Watch::id`].
    Watch(u64),
}

/// One change of what users may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantChange {
    /// When it was asked for.
    #[serde(default, skip_serializing_if = "zero")]
    pub call: u64,
    /// When it was acknowledged, or given up.
    #[serde(default, skip_serializing_if = "zero")]
    pub returned: u64,
    /// Whether it was acknowledged: otherwise it may take effect at any time from the call on, or never.
    #[serde(default, skip_serializing_if = "zero")]
    pub certain: bool,
    /// Whether what it is about holds from then on.
    #[serde(default, skip_serializing_if = "zero")]
    pub granted: bool,
    /// What it is about.
    pub grant: Grant,
}

/// What users may do depends on this. None of it holds at first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grant {
    /// Authentication is required.
    Authentication,
    /// This user exists and has its role. Each user has a role of its own.
    Role(String),
    /// The role of this user allows these keys.
    Keys {
        /// The name of the user.
        #[serde(default, skip_serializing_if = "zero")]
        user: String,
        /// The key, or the first of the range.
        #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
        key: Vec<u8>,
        /// As in [`crate::Range::range_end`].
        #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
        range_end: Vec<u8>,
        /// True if the role may read the keys.
        #[serde(default, skip_serializing_if = "zero")]
        read: bool,
        /// True if the role may put and delete the keys.
        #[serde(default, skip_serializing_if = "zero")]
        write: bool,
    },
    /// The tokens of this user that were given out before, which are void from then on.
    Tokens(String),
}

/// What the judge has to know of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// By how much a lease may seem to end too early, in nanoseconds: what is between the clients' clock and the
    /// members' that is not proportional to time.
    #[serde(default, skip_serializing_if = "zero")]
    pub lease_slack: u64,
    /// How long after its time to live a lease may still have keys at the most, in nanoseconds: what the members need to
    /// notice and to agree, while they can, and how long after its client gave up on it a renewal may still happen. 0 if
    /// that is not to be judged.
    #[serde(default, skip_serializing_if = "zero")]
    pub expire_by: u64,
    /// By how much a member's clock may run faster than the clients', in millionths.
    #[serde(default, skip_serializing_if = "zero")]
    pub clock_drift_ppm: u64,
    /// Prefixes of keys that clients write who are not recorded. Changes of such keys need no operation.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blobs")]
    pub unrecorded: Vec<Vec<u8>>,
    /// How many steps the search for the place of writes with unknown outcomes may take; 0 for the usual number.
    #[serde(default, skip_serializing_if = "zero")]
    pub search_steps_max: u64,
}

/// One request of a client and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Its number in the history: unique among operations.
    #[serde(default, skip_serializing_if = "zero")]
    pub id: u64,
    /// Which client.
    #[serde(default, skip_serializing_if = "zero")]
    pub client: u64,
    /// Which member it asked.
    #[serde(default, skip_serializing_if = "zero")]
    pub member: u64,
    /// Which life of the member's process (counted from 1) answered; 0 when that is not known for certain.
    #[serde(default, skip_serializing_if = "zero")]
    pub life: u64,
    /// When it was sent.
    #[serde(default, skip_serializing_if = "zero")]
    pub call: u64,
    /// When the answer came, or the client gave up.
    #[serde(default, skip_serializing_if = "zero")]
    pub returned: u64,
    /// What was asked.
    pub request: Request,
    /// What became of it.
    pub outcome: Outcome,
    /// Set when the writer believed to hold a lock.
    #[serde(default, skip_serializing_if = "zero")]
    pub fence: Option<Fence>,
}

/// What the client knows of its operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was answered.
    #[serde(with = "crate::json::done")]
    Done(Header, Response),
    /// It failed in a way that says for certain that it never happens.
    Refused(Refusal),
    /// It failed in a way that leaves open whether it has happened, or will happen still. With the error's text.
    Unknown(String),
}

/// The header of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The store's revision; 0 where the answer had none.
    #[serde(default, skip_serializing_if = "zero")]
    pub revision: i64,
    /// The term of the last applied entry; 0 if not recorded.
    #[serde(default, skip_serializing_if = "zero")]
    pub term: u64,
}

/// Why an operation never happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// `mvcc: required revision has been compacted`.
    #[serde(rename = "compacted")]
    Compacted,
    /// `mvcc: required revision is a future revision`.
    #[serde(rename = "future revision")]
    FutureRevision,
    /// `key not found`: `ignore_value` or `ignore_lease` without a key.
    #[serde(rename = "key not found")]
    KeyNotFound,
    /// `requested lease not found`.
    #[serde(rename = "lease not found")]
    LeaseNotFound,
    /// `lease already exists`.
    #[serde(rename = "lease exists")]
    LeaseExists,
    /// Anything else that says for certain that nothing happens (no quorum was asked, no space, malformed); the judge
    /// does not ask whether there was reason to refuse.
    #[serde(rename = "other")]
    Other(String),
}

/// Which lock a writer held: the lock's keys have a common prefix, and the one created first holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The prefix of the lock's keys.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub prefix: Vec<u8>,
    /// The writer's own key.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// The create revision of its key.
    #[serde(default, skip_serializing_if = "zero")]
    pub create_revision: i64,
}

/// The time in which a client believed to hold a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Which client.
    #[serde(default, skip_serializing_if = "zero")]
    pub client: u64,
    /// The lock and the client's key.
    pub fence: Fence,
    /// The lease its key is attached to.
    #[serde(default, skip_serializing_if = "zero")]
    pub lease: i64,
    /// From when the client knew it held the lock.
    #[serde(default, skip_serializing_if = "zero")]
    pub from: u64,
    /// When it began to give it up, or knew that it had lost it; the end of the run if neither. The judge itself cuts
    /// this down to what the lease promises.
    #[serde(default, skip_serializing_if = "zero")]
    pub until: u64,
}

/// One watch of a client, from its creation to its end. A client that goes on after a broken stream records a new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Its number in the history: unique among watches.
    #[serde(default, skip_serializing_if = "zero")]
    pub id: u64,
    /// Which client.
    #[serde(default, skip_serializing_if = "zero")]
    pub client: u64,
    /// Which member.
    #[serde(default, skip_serializing_if = "zero")]
    pub member: u64,
    /// As in [`Operation::life`].
    #[serde(default, skip_serializing_if = "zero")]
    pub life: u64,
    /// When the request for it was sent.
    #[serde(default, skip_serializing_if = "zero")]
    pub opened: u64,
    /// The key, or the first of the range; empty means from the first key.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// As in [`crate::Range::range_end`].
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub range_end: Vec<u8>,
    /// 0 for what comes after its creation.
    #[serde(default, skip_serializing_if = "zero")]
    pub start_revision: i64,
    /// Whether events have the previous value.
    #[serde(default, skip_serializing_if = "zero")]
    pub prev_kv: bool,
    /// Puts are left out.
    #[serde(default, skip_serializing_if = "zero")]
    pub no_put: bool,
    /// Deletions are left out.
    #[serde(default, skip_serializing_if = "zero")]
    pub no_delete: bool,
    /// Whether big responses may come in parts.
    #[serde(default, skip_serializing_if = "zero")]
    pub fragment: bool,
    /// In the order in which they came.
    #[serde(default, skip_serializing_if = "zero")]
    pub responses: Vec<WatchResponse>,
    /// How it ended.
    pub end: End,
}

/// One response of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchResponse {
    /// When it came.
    #[serde(default, skip_serializing_if = "zero")]
    pub at: u64,
    /// The header's revision.
    #[serde(default, skip_serializing_if = "zero")]
    pub revision: i64,
    /// What it says.
    pub answer: WatchAnswer,
}

/// What a response of a watch says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchAnswer {
    /// The watch stands.
    Created,
    /// Changes.
    Events {
        /// In the order in which they came.
        #[serde(rename = "list", default, skip_serializing_if = "zero")]
        events: Vec<Event>,
        /// Whether the response goes on in the next.
        #[serde(default, skip_serializing_if = "zero")]
        fragment: bool,
    },
    /// All up to the header's revision has been told.
    Progress,
    /// The server ended the watch.
    Canceled {
        /// Not 0 if it ended because what it needs was compacted up to here.
        #[serde(default, skip_serializing_if = "zero")]
        compact_revision: i64,
        /// The reason in words.
        #[serde(default, skip_serializing_if = "zero")]
        reason: String,
    },
}

/// How a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The stream broke, or the client ended it; more may have been under way.
    Broken,
    /// The server canceled it; the last response says so.
    Canceled,
    /// It was open to the end of the run, and the client waited until there was nothing more to come: it has to have
    /// told everything up to this revision.
    Drained(i64),
}

/// What one member said at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Final {
    /// Which member.
    #[serde(default, skip_serializing_if = "zero")]
    pub member: u64,
    /// The header's revision of the dump.
    #[serde(default, skip_serializing_if = "zero")]
    pub revision: i64,
    /// All keys, in order, of a serializable read; `None` if not taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<Vec<KeyValue>>,
    /// What `HashKV` gave: hash, the revision it is of, the compact revision; `None` if not taken.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::json::hash")]
    pub hash: Option<(u32, i64, i64)>,
}

/// A remark on the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When.
    #[serde(default, skip_serializing_if = "zero")]
    pub at: u64,
    /// What.
    #[serde(default, skip_serializing_if = "zero")]
    pub text: String,
}
