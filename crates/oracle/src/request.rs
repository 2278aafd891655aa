//! Defines the requests and responses in a history, with etcd's names. Revisions are `i64` as in the
//! protocol, where 0 and an absent value have the same meaning.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::json::zero;

/// A key with its value, as in a response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// The key.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// Value of the key; empty in deletions and if only keys were requested.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub value: Vec<u8>,
    /// Revision that created the key; 0 in a deletion.
    #[serde(rename = "create", default, skip_serializing_if = "zero")]
    pub create_revision: i64,
    /// Revision that last changed the key.
    #[serde(rename = "mod", default, skip_serializing_if = "zero")]
    pub mod_revision: i64,
    /// Number of puts since the key was created; 0 in a deletion.
    #[serde(default, skip_serializing_if = "zero")]
    pub version: i64,
    /// Lease to which the key is attached; 0 for none.
    #[serde(default, skip_serializing_if = "zero")]
    pub lease: i64,
}

/// One change as a watch reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// True if the key was deleted; otherwise it was put.
    #[serde(default, skip_serializing_if = "zero")]
    pub deleted: bool,
    /// The key after the change; for a deletion, only its key and revision.
    pub kv: KeyValue,
    /// The key before the change; `None` if it was not requested or did not exist.
    #[serde(default, skip_serializing_if = "zero")]
    pub prev_kv: Option<KeyValue>,
}

/// A request of a client.
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
    /// `KV.Compact`.
    Compact {
        /// The compact revision: the oldest revision that stays readable.
        #[serde(default, skip_serializing_if = "zero")]
        revision: i64,
        /// True if the response waits until the data is removed.
        #[serde(default, skip_serializing_if = "zero")]
        physical: bool,
    },
    /// `Lease.LeaseGrant`.
    Grant {
        /// Requested id; 0 if the server chooses it.
        #[serde(default, skip_serializing_if = "zero")]
        id: i64,
        /// Requested time to live in seconds.
        #[serde(default, skip_serializing_if = "zero")]
        ttl: i64,
    },
    /// `Lease.LeaseRevoke`.
    #[serde(with = "crate::json::bare")]
    Revoke {
        /// Id of the lease.
        id: i64,
    },
    /// One message of `Lease.LeaseKeepAlive`.
    #[serde(with = "crate::json::bare")]
    KeepAlive {
        /// Id of the lease.
        id: i64,
    },
    /// `Lease.LeaseTimeToLive`.
    #[serde(rename = "ttl")]
    TimeToLive {
        /// Id of the lease.
        #[serde(default, skip_serializing_if = "zero")]
        id: i64,
        /// True if the attached keys are requested.
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
    /// Key, or the first key of the range.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// End of the range, exclusive; empty for a single key; one zero byte for no end.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub range_end: Vec<u8>,
    /// Maximum number of keys; 0 for all.
    #[serde(default, skip_serializing_if = "zero")]
    pub limit: i64,
    /// Revision to read; 0 or less for the current one.
    #[serde(default, skip_serializing_if = "zero")]
    pub revision: i64,
    /// Requested order.
    #[serde(default, skip_serializing_if = "zero")]
    pub order: Order,
    /// Field by which keys are ordered.
    #[serde(default, skip_serializing_if = "zero")]
    pub target: SortTarget,
    /// True if the read may return an old state.
    #[serde(default, skip_serializing_if = "zero")]
    pub serializable: bool,
    /// True if values are left out.
    #[serde(default, skip_serializing_if = "zero")]
    pub keys_only: bool,
    /// True if only the number of keys is returned.
    #[serde(default, skip_serializing_if = "zero")]
    pub count_only: bool,
    /// Lower bound of the mod revision; 0 for no bound.
    #[serde(default, skip_serializing_if = "zero")]
    pub min_mod_revision: i64,
    /// Upper bound of the mod revision; 0 for no bound.
    #[serde(default, skip_serializing_if = "zero")]
    pub max_mod_revision: i64,
    /// Lower bound of the create revision; 0 for no bound.
    #[serde(default, skip_serializing_if = "zero")]
    pub min_create_revision: i64,
    /// Upper bound of the create revision; 0 for no bound.
    #[serde(default, skip_serializing_if = "zero")]
    pub max_create_revision: i64,
}

/// `RangeRequest.SortOrder`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// If the target is the key, the order of keys; otherwise ascending.
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
    /// The new value. If values are unique, the judge is faster and can decide more questions.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub value: Vec<u8>,
    /// Lease to which the key is attached; 0 for none.
    #[serde(default, skip_serializing_if = "zero")]
    pub lease: i64,
    /// True if the response contains the previous value.
    #[serde(default, skip_serializing_if = "zero")]
    pub prev_kv: bool,
    /// True if the current value is kept and only the lease changes.
    #[serde(default, skip_serializing_if = "zero")]
    pub ignore_value: bool,
    /// True if the current lease is kept and only the value changes.
    #[serde(default, skip_serializing_if = "zero")]
    pub ignore_lease: bool,
}

/// A deletion of a key or a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delete {
    /// Key, or the first key of the range.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// End of the range, see [`Range::range_end`].
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub range_end: Vec<u8>,
    /// True if the response contains the deleted keys.
    #[serde(default, skip_serializing_if = "zero")]
    pub prev_kv: bool,
}

/// A transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Txn {
    /// Comparisons; the transaction succeeds if all of them hold.
    #[serde(default, skip_serializing_if = "zero")]
    pub compare: Vec<Compare>,
    /// Actions executed if all comparisons hold.
    #[serde(default, skip_serializing_if = "zero")]
    pub success: Vec<Action>,
    /// Actions executed if a comparison does not hold.
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
    /// A nested transaction.
    Txn(Txn),
}

/// One comparison of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compare {
    /// Key, or the first key of the range.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub key: Vec<u8>,
    /// End of the range, see [`Range::range_end`]; every key of the range must satisfy the comparison.
    #[serde(default, skip_serializing_if = "zero", with = "crate::json::blob")]
    pub range_end: Vec<u8>,
    /// Relation that the key's field must have to the target's value.
    pub relation: Relation,
    /// Field that is compared, and the value to compare with.
    #[serde(flatten)]
    pub target: Target,
}

/// `Compare.CompareResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Relation {
    /// The key's field is equal.
    #[serde(rename = "=")]
    Equal,
    /// The key's field is greater.
    #[serde(rename = ">")]
    Greater,
    /// The key's field is less.
    #[serde(rename = "<")]
    Less,
    /// The key's field is not equal.
    #[serde(rename = "!=")]
    NotEqual,
}

impl Relation {
    /// Returns true if the relation accepts this ordering of the key's field to the target's value.
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
    /// Version of the key.
    Version(i64),
    /// Create revision of the key.
    Create(i64),
    /// Mod revision of the key.
    Mod(i64),
    /// Value of the key.
    Value(Vec<u8>),
    /// Lease of the key.
    Lease(i64),
}

/// The response of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    /// Response to a range read.
    Range(RangeResult),
    /// Response to a put: the previous value, if requested and existing.
    #[serde(with = "crate::json::previous")]
    Put(Option<KeyValue>),
    /// Response to a deletion.
    Delete(DeleteResult),
    /// Response to a transaction.
    Txn(TxnResult),
    /// Response to a compaction.
    #[serde(with = "crate::json::empty")]
    Compacted,
    /// Response to a lease grant.
    Granted {
        /// Id of the lease.
        #[serde(default, skip_serializing_if = "zero")]
        id: i64,
        /// Granted time to live in seconds.
        #[serde(default, skip_serializing_if = "zero")]
        ttl: i64,
    },
    /// Response to a lease revocation.
    #[serde(with = "crate::json::empty")]
    Revoked,
    /// Response to a lease keepalive.
    #[serde(with = "crate::json::bare")]
    Renewed {
        /// Remaining time to live in seconds; 0 if the lease does not exist.
        ttl: i64,
    },
    /// Response to a time-to-live request.
    #[serde(rename = "ttl")]
    TimeToLive {
        /// Remaining seconds; -1 if the lease does not exist.
        #[serde(default, skip_serializing_if = "zero")]
        ttl: i64,
        /// Granted time to live in seconds.
        #[serde(default, skip_serializing_if = "zero")]
        granted_ttl: i64,
        /// Attached keys, if requested.
        #[serde(default, skip_serializing_if = "zero", with = "crate::json::blobs")]
        keys: Vec<Vec<u8>>,
    },
    /// Response to a request for all leases: their ids.
    Leases(Vec<i64>),
}

/// Result of a range read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeResult {
    /// Keys in the order in which the response has them.
    #[serde(default, skip_serializing_if = "zero")]
    pub kvs: Vec<KeyValue>,
    /// True if the limit cut off keys.
    #[serde(default, skip_serializing_if = "zero")]
    pub more: bool,
    /// Number of keys in the range.
    #[serde(default, skip_serializing_if = "zero")]
    pub count: i64,
}

/// Result of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteResult {
    /// Number of deleted keys.
    #[serde(default, skip_serializing_if = "zero")]
    pub deleted: i64,
    /// The deleted keys, if requested.
    #[serde(default, skip_serializing_if = "zero")]
    pub prev_kvs: Vec<KeyValue>,
}

/// Result of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnResult {
    /// True if all comparisons held.
    #[serde(default, skip_serializing_if = "zero")]
    pub succeeded: bool,
    /// One result for each action of the executed branch.
    #[serde(default, skip_serializing_if = "zero")]
    pub results: Vec<ActionResult>,
}

/// Result of one action of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionResult {
    /// Result of a read.
    Range(RangeResult),
    /// Result of a put: the previous value, if requested and existing.
    #[serde(with = "crate::json::previous")]
    Put(Option<KeyValue>),
    /// Result of a deletion.
    Delete(DeleteResult),
    /// Result of a nested transaction.
    Txn(TxnResult),
}
