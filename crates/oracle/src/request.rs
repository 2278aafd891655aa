//! Requests and answers, in etcd's words. All revisions are `i64` as on the wire; 0 and absence mean what they mean
//! there.

use std::cmp::Ordering;

/// A key and its value as an answer gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Vec<u8>,
    /// Its value; empty where only keys were asked for, and in deletions.
    pub value: Vec<u8>,
    /// The revision that created the key, 0 in a deletion.
    pub create_revision: i64,
    /// The revision that changed it last.
    pub mod_revision: i64,
    /// How often it was put since it was created, 0 in a deletion.
    pub version: i64,
    /// The lease it is attached to, 0 for none.
    pub lease: i64,
}

/// One change as a watch tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Whether the key was deleted; otherwise it was put.
    pub deleted: bool,
    /// The key after the change; of a deletion only the key and the revision.
    pub kv: KeyValue,
    /// The key before the change, where it was asked for.
    pub prev_kv: Option<KeyValue>,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        revision: i64,
        /// Whether the answer waits for the removal.
        physical: bool,
    },
    /// `Lease.LeaseGrant`.
    Grant {
        /// The id the client wants, 0 to leave it to the server.
        id: i64,
        /// Seconds.
        ttl: i64,
    },
    /// `Lease.LeaseRevoke`.
    Revoke {
        /// Which.
        id: i64,
    },
    /// One message of `Lease.LeaseKeepAlive`.
    KeepAlive {
        /// Which.
        id: i64,
    },
    /// `Lease.LeaseTimeToLive`.
    TimeToLive {
        /// Which.
        id: i64,
        /// Whether its keys are asked for.
        keys: bool,
    },
    /// `Lease.LeaseLeases`.
    Leases,
}

/// A range read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The key, or the first of the range.
    pub key: Vec<u8>,
    /// The end of the range, exclusive; empty for one key; one zero byte for no end.
    pub range_end: Vec<u8>,
    /// At most this many keys; 0 for all.
    pub limit: i64,
    /// The revision to read; 0 or less for the current one.
    pub revision: i64,
    /// The order asked for.
    pub order: Order,
    /// What the order is of.
    pub target: SortTarget,
    /// Any state that was will do.
    pub serializable: bool,
    /// No values.
    pub keys_only: bool,
    /// Only how many there are.
    pub count_only: bool,
    /// Only keys changed last at or after it; 0 for no bound.
    pub min_mod_revision: i64,
    /// Only keys changed last at or before it; 0 for no bound.
    pub max_mod_revision: i64,
    /// Only keys created at or after it; 0 for no bound.
    pub min_create_revision: i64,
    /// Only keys created at or before it; 0 for no bound.
    pub max_create_revision: i64,
}

/// `RangeRequest.SortOrder`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By key where the target is the key, otherwise ascending.
    #[default]
    None,
    /// Ascending.
    Ascend,
    /// Descending.
    Descend,
}

/// `RangeRequest.SortTarget`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortTarget {
    /// The key.
    #[default]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: Vec<u8>,
    /// The new value. The judge decides faster, and more, when values are unique.
    pub value: Vec<u8>,
    /// The lease to attach the key to, 0 for none.
    pub lease: i64,
    /// Whether the answer has the previous value.
    pub prev_kv: bool,
    /// Keeps the value, changes the lease.
    pub ignore_value: bool,
    /// Keeps the lease, changes the value.
    pub ignore_lease: bool,
}

/// A deletion of a key or a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// The key, or the first of the range.
    pub key: Vec<u8>,
    /// As in [`Range::range_end`].
    pub range_end: Vec<u8>,
    /// Whether the answer has what was deleted.
    pub prev_kv: bool,
}

/// A transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All of these have to hold.
    pub compare: Vec<Compare>,
    /// Done if they do.
    pub success: Vec<Action>,
    /// Done if they do not.
    pub failure: Vec<Action>,
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The key, or the first of the range.
    pub key: Vec<u8>,
    /// As in [`Range::range_end`]: every key of the range must satisfy.
    pub range_end: Vec<u8>,
    /// How the key's number or value has to stand to the target's.
    pub relation: Relation,
    /// What is compared, and with what.
    pub target: Target,
}

/// `Compare.CompareResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Equal.
    Equal,
    /// The key's is greater.
    Greater,
    /// The key's is less.
    Less,
    /// Not equal.
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// To a range.
    Range(RangeResult),
    /// To a put: the previous value if it was asked for and there was one.
    Put(Option<KeyValue>),
    /// To a deletion.
    Delete(DeleteResult),
    /// To a transaction.
    Txn(TxnResult),
    /// To a compaction.
    Compacted,
    /// To a grant.
    Granted {
        /// The lease's id.
        id: i64,
        /// Seconds it was granted for.
        ttl: i64,
    },
    /// To a revocation.
    Revoked,
    /// To a keepalive: seconds from now; 0 when the lease is gone.
    Renewed {
        /// Seconds.
        ttl: i64,
    },
    /// To a question for the time to live.
    TimeToLive {
        /// Seconds left, -1 when the lease is gone.
        ttl: i64,
        /// Seconds it was granted for.
        granted_ttl: i64,
        /// The attached keys, if asked for.
        keys: Vec<Vec<u8>>,
    },
    /// To a question for all leases.
    Leases(Vec<i64>),
}

/// What a range read gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeResult {
    /// The keys, in the order they came.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit cut something off.
    pub more: bool,
    /// How many keys are in the range.
    pub count: i64,
}

/// What a deletion gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteResult {
    /// How many keys were deleted.
    pub deleted: i64,
    /// What they were, if asked for.
    pub prev_kvs: Vec<KeyValue>,
}

/// What a transaction gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnResult {
    /// Whether all comparisons held.
    pub succeeded: bool,
    /// One result for each action of the branch taken.
    pub results: Vec<ActionResult>,
}

/// The answer to one action of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionResult {
    /// To a read.
    Range(RangeResult),
    /// To a put.
    Put(Option<KeyValue>),
    /// To a deletion.
    Delete(DeleteResult),
    /// To a transaction within.
    Txn(TxnResult),
}
