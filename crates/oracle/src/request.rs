//! Requests and answers, in etcd's words. All revisions are `i64` as on the wire; 0 and absence mean what they mean
//! there.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::json::zero;

/// A key and its value as an answer gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// The key.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// Its value; empty where only keys were asked for, and in deletions.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub value: Vec<u8>,
    /// The revision that created the key, 0 in a deletion.
    #[serde(rename = "create", default, skip_serializing_if = "zero")]
    pub create_revision: i64,
    /// The revision that changed it last.
    #[serde(rename = "mod", default, skip_serializing_if = "zero")]
    pub mod_revision: i64,
    /// How often it was put since it was created, 0 in a deletion.
    #[serde(default, skip_serializing_if = "zero")]
    pub version: i64,
    /// The lease it is attached to, 0 for none.
    #[serde(default, skip_serializing_if = "zero")]
    pub lease: i64,
}

/// One change as a watch tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Whether the key was deleted; otherwise it was put.
    #[serde(default, skip_serializing_if = "zero")]
    pub deleted: bool,
    /// The key after the change; of a deletion only the key and the revision.
    pub kv: KeyValue,
    /// The key before the change, where it was asked for.
    #[serde(default, skip_serializing_if = "zero")]
    pub prev_kv: Option<KeyValue>,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// `KV.Range`.
    Range(Range),
    /// `KV.Put`.
    Put(Put),
    /// `KV.DeleteRange`.
    Delete(Delete),
    /// `KV.Txn`.
    Txn(Txn),
    /// `KV.Compact` up to this revision.
    Compact {
        /// The oldest revision that stays readable.
        #[serde(default, skip_serializing_if = "zero")]
        revision: i64,
        /// Whether the answer waits for the removal.
        #[serde(default, skip_serializing_if = "zero")]
        physical: bool,
    },
    /// `Lease.LeaseGrant`.
    Grant {
        /// The id the client wants, 0 to leave it to the server.
        #[serde(default, skip_serializing_if = "zero")]
        id: i64,
        /// Seconds.
        #[serde(default, skip_serializing_if = "zero")]
        ttl: i64,
    },
    /// `Lease.LeaseRevoke`.
    #[serde(with = "crate::json::bare")]
    Revoke {
        /// Which.
        id: i64,
    },
    /// One message of `Lease.LeaseKeepAlive`.
    #[serde(with = "crate::json::bare")]
    KeepAlive {
        /// Which.
        id: i64,
    },
    /// `Lease.LeaseTimeToLive`.
    #[serde(rename = "ttl")]
    TimeToLive {
        /// Which.
        #[serde(default, skip_serializing_if = "zero")]
        id: i64,
        /// Whether its keys are asked for.
        #[serde(default, skip_serializing_if = "zero")]
        keys: bool,
    },
    /// `Lease.LeaseLeases`.
    #[serde(with = "crate::json::empty")]
    Leases,
}

/// A range read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The key, or the first of the range.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// The end of the range, exclusive; empty for one key; one zero byte for no end.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub range_end: Vec<u8>,
    /// At most this many keys; 0 for all.
    #[serde(default, skip_serializing_if = "zero")]
    pub limit: i64,
    /// The revision to read; 0 or less for the current one.
    #[serde(default, skip_serializing_if = "zero")]
    pub revision: i64,
    /// The order asked for.
    #[serde(default, skip_serializing_if = "zero")]
    pub order: Order,
    /// What the order is of.
    #[serde(default, skip_serializing_if = "zero")]
    pub target: SortTarget,
    /// Any state that was will do.
    #[serde(default, skip_serializing_if = "zero")]
    pub serializable: bool,
    /// No values.
    #[serde(default, skip_serializing_if = "zero")]
    pub keys_only: bool,
    /// Only how many there are.
    #[serde(default, skip_serializing_if = "zero")]
    pub count_only: bool,
    /// Only keys changed last at or after it; 0 for no bound.
    #[serde(default, skip_serializing_if = "zero")]
    pub min_mod_revision: i64,
    /// Only keys changed last at or before it; 0 for no bound.
    #[serde(default, skip_serializing_if = "zero")]
    pub max_mod_revision: i64,
    /// Only keys created at or after it; 0 for no bound.
    #[serde(default, skip_serializing_if = "zero")]
    pub min_create_revision: i64,
    /// Only keys created at or before it; 0 for no bound.
    #[serde(default, skip_serializing_if = "zero")]
    pub max_create_revision: i64,
}

/// `RangeRequest.SortOrder`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// By key where the target is the key, otherwise ascending.
    #[default]
    #[serde(rename = "")]
    None,
    /// Ascending.
    Ascend,
    /// Descending.
    Descend,
}

/// `RangeRequest.SortTarget`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SortTarget {
    /// The key.
    #[default]
    #[serde(rename = "")]
    Key,
    /// The version.
    Version,
    /// The create revision.
    Create,
    /// The mod revision.
    Mod,
    /// The value.
    Value,
}

/// A put.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The key.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// The new value. The judge decides faster, and more, when values are unique.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub value: Vec<u8>,
    /// The lease to attach the key to, 0 for none.
    #[serde(default, skip_serializing_if = "zero")]
    pub lease: i64,
    /// Whether the answer has the previous value.
    #[serde(default, skip_serializing_if = "zero")]
    pub prev_kv: bool,
    /// Keeps the value, changes the lease.
    #[serde(default, skip_serializing_if = "zero")]
    pub ignore_value: bool,
    /// Keeps the lease, changes the value.
    #[serde(default, skip_serializing_if = "zero")]
    pub ignore_lease: bool,
}

/// A deletion of a key or a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delete {
    /// The key, or the first of the range.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// As in [`Range::range_end`].
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub range_end: Vec<u8>,
    /// Whether the answer has what was deleted.
    #[serde(default, skip_serializing_if = "zero")]
    pub prev_kv: bool,
}

/// A transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Txn {
    /// All of these have to hold.
    #[serde(default, skip_serializing_if = "zero")]
    pub compare: Vec<Compare>,
    /// Done if they do.
    #[serde(default, skip_serializing_if = "zero")]
    pub success: Vec<Action>,
    /// Done if they do not.
    #[serde(default, skip_serializing_if = "zero")]
    pub failure: Vec<Action>,
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// A read.
    Range(Range),
    /// A put.
    Put(Put),
    /// A deletion.
    Delete(Delete),
    /// A transaction within.
    Txn(Txn),
}

/// One comparison of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compare {
    /// The key, or the first of the range.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// As in [`Range::range_end`]: every key of the range must satisfy.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub range_end: Vec<u8>,
    /// How the key's number or value has to stand to the target's.
    pub relation: Relation,
    /// What is compared, and with what.
    #[serde(flatten)]
    pub target: Target,
}

/// `Compare.CompareResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Relation {
    /// Equal.
    #[serde(rename = "=")]
    Equal,
    /// The key's is greater.
    #[serde(rename = ">")]
    Greater,
    /// The key's is less.
    #[serde(rename = "<")]
    Less,
    /// Not equal.
    #[serde(rename = "!=")]
    NotEqual,
}

impl Relation {
    /// Whether an ordering of the key's to the target's is what is asked for.
    pub fn allows(self, ordering: Ordering) -> bool {
        match self {
            Relation::Equal => ordering == Ordering::Equal,
            Relation::Greater => ordering == Ordering::Greater,
            Relation::Less => ordering == Ordering::Less,
            Relation::NotEqual => ordering != Ordering::Equal,
        }
    }
}

/// `Compare.CompareTarget` with its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "crate::json::TargetLine", try_from = "crate::json::TargetLine")]
pub enum Target {
    /// The key's version.
    Version(i64),
    /// Its create revision.
    Create(i64),
    /// Its mod revision.
    Mod(i64),
    /// Its value.
    Value(Vec<u8>),
    /// Its lease.
    Lease(i64),
}

/// What the server answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    /// To a range.
    Range(RangeResult),
    /// To a put: the previous value if it was asked for and there was one.
    #[serde(with = "crate::json::previous")]
    Put(Option<KeyValue>),
    /// To a deletion.
    Delete(DeleteResult),
    /// To a transaction.
    Txn(TxnResult),
    /// To a compaction.
    #[serde(with = "crate::json::empty")]
    Compacted,
    /// To a grant.
    Granted {
        /// The lease's id.
        #[serde(default, skip_serializing_if = "zero")]
        id: i64,
        /// Seconds it was granted for.
        #[serde(default, skip_serializing_if = "zero")]
        ttl: i64,
    },
    /// To a revocation.
    #[serde(with = "crate::json::empty")]
    Revoked,
    /// To a keepalive: seconds from now; 0 when the lease is gone.
    #[serde(with = "crate::json::bare")]
    Renewed {
        /// Seconds.
        ttl: i64,
    },
    /// To a question for the time to live.
    #[serde(rename = "ttl")]
    TimeToLive {
        /// Seconds left, -1 when the lease is gone.
        #[serde(default, skip_serializing_if = "zero")]
        ttl: i64,
        /// Seconds it was granted for.
        #[serde(default, skip_serializing_if = "zero")]
        granted_ttl: i64,
        /// The attached keys, if asked for.
        #[serde(default, skip_serializing_if = "zero", with = "crate::json::blobs")]
        keys: Vec<Vec<u8>>,
    },
    /// To a question for all leases.
    Leases(Vec<i64>),
}

/// What a range read gave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeResult {
    /// The keys, in the order they came.
    #[serde(default, skip_serializing_if = "zero")]
    pub kvs: Vec<KeyValue>,
    /// Whether the limit cut something off.
    #[serde(default, skip_serializing_if = "zero")]
    pub more: bool,
    /// How many keys are in the range.
    #[serde(default, skip_serializing_if = "zero")]
    pub count: i64,
}

/// What a deletion gave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteResult {
    /// How many keys were deleted.
    #[serde(default, skip_serializing_if = "zero")]
    pub deleted: i64,
    /// What they were, if asked for.
    #[serde(default, skip_serializing_if = "zero")]
    pub prev_kvs: Vec<KeyValue>,
}

/// What a transaction gave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnResult {
    /// Whether all comparisons held.
    #[serde(default, skip_serializing_if = "zero")]
    pub succeeded: bool,
    /// One result for each action of the branch taken.
    #[serde(default, skip_serializing_if = "zero")]
    pub results: Vec<ActionResult>,
}

/// The answer to one action of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionResult {
    /// To a read.
    Range(RangeResult),
    /// To a put.
    #[serde(with = "crate::json::previous")]
    Put(Option<KeyValue>),
    /// To a deletion.
    Delete(DeleteResult),
    /// To a transaction within.
    Txn(TxnResult),
}
