//! Reads and writes etcd's state in a bbolt database. The buckets have these contents:
//!
//! ```text
//! bucket           key                          value
//! key              revision                     KeyValue; for a deletion, only its key is set
//! lease            id, 8 bytes                  Lease
//! alarm            AlarmMember                  empty
//! auth             authEnabled                  1 byte: 0 or 1
//!                  authRevision                 8 bytes
//! authUsers        name                         User, its password hashed
//! authRoles        name                         Role
//! members          id in hex                    {"id":…,"peerURLs":[…],"isLearner":…,"name":…,…}
//! members_removed  id in hex                    removed
//! cluster          clusterVersion               3.7.0
//!                  downgrade                    {"target-version":"3.6.0","enabled":true}
//! meta             consistent_index             8 bytes: raft index of the last applied entry
//!                  term                         8 bytes: the term of that entry; from 3.5 on
//!                  confState                    {"voters":[…],"learners":[…],"auto_leave":…}; from 3.5 on
//!                  storageVersion               3.7.0; from 3.6 on
//!                  scheduledCompactRev          revision of the last compaction that was started
//!                  finishedCompactRev           revision of the last compaction that was finished
//!
//! revision: bytes 0 to 7 main revision, byte 8 `_`, bytes 9 to 16 sub-revision, byte 17 `t` for a deletion
//! ```
//!
//! Numbers are big-endian. KeyValue, Lease, AlarmMember, User and Role are protobuf messages. A member older
//! than 3.5 stores the index of its last applied entry without the entry's term. A missing `authEnabled`
//! means that authentication is disabled.

mod change;
mod content;
mod copy;
mod history;
mod reader;
mod writer;

pub use change::{Change, ChangeHead, StoredChangeId};
pub use content::{Auth, ConfState, Member, Membership, Meta, Release};
pub use copy::{Copy, CopyError};
pub use history::{History, Leases};
pub use reader::Backend;
pub use writer::{BackendLayout, BackendWriter};

/// Names of buckets.
pub(crate) mod name {
    pub const KEY: &[u8] = b"key";
    pub const META: &[u8] = b"meta";
    pub const LEASE: &[u8] = b"lease";
    pub const ALARM: &[u8] = b"alarm";
    pub const CLUSTER: &[u8] = b"cluster";
    pub const MEMBERS: &[u8] = b"members";
    pub const MEMBERS_REMOVED: &[u8] = b"members_removed";
    pub const AUTH: &[u8] = b"auth";
    pub const AUTH_USERS: &[u8] = b"authUsers";
    pub const AUTH_ROLES: &[u8] = b"authRoles";

    /// Buckets that every database of etcd has.
    pub const ALL: [&[u8]; 10] =
        [ALARM, AUTH, AUTH_ROLES, AUTH_USERS, CLUSTER, KEY, LEASE, MEMBERS, MEMBERS_REMOVED, META];
}
