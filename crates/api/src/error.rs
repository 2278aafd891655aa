//! Defines the error catalogue: the gRPC code and message of every error that a client of etcd may receive.
//!
//! Some clients (Patroni, kube-apiserver and clientv3) compare messages byte for byte, so all messages are
//! defined here and must not be spelled out elsewhere. Two errors do not have the code that etcd's source
//! declares, because etcd's server sends a different one: [`TOO_MANY_REQUESTS`] and
//! [`MEMBER_NOT_ENOUGH_STARTED`].

use std::borrow::Cow;
use std::fmt;

/// A gRPC status code, with gRPC's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are gRPC's own")]
pub enum Code {
    Ok = 0,
    Canceled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// All codes, in the order of their numbers.
    pub const ALL: [Code; 17] = [
        Code::Ok,
        Code::Canceled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    /// Returns the code with this number; unknown numbers give `Unknown`, as gRPC requires of receivers.
    pub fn from_number(number: u32) -> Code {
        usize::try_from(number).ok().and_then(|at| Code::ALL.get(at)).copied().unwrap_or(Code::Unknown)
    }

    /// Returns the name that metrics and grpc-go use, such as `InvalidArgument`.
    pub fn name(self) -> &'static str {
        match self {
            Code::Ok => "OK",
            Code::Canceled => "Canceled",
            Code::Unknown => "Unknown",
            Code::InvalidArgument => "InvalidArgument",
            Code::DeadlineExceeded => "DeadlineExceeded",
            Code::NotFound => "NotFound",
            Code::AlreadyExists => "AlreadyExists",
            Code::PermissionDenied => "PermissionDenied",
            Code::ResourceExhausted => "ResourceExhausted",
            Code::FailedPrecondition => "FailedPrecondition",
            Code::Aborted => "Aborted",
            Code::OutOfRange => "OutOfRange",
            Code::Unimplemented => "Unimplemented",
            Code::Internal => "Internal",
            Code::Unavailable => "Unavailable",
            Code::DataLoss => "DataLoss",
            Code::Unauthenticated => "Unauthenticated",
        }
    }
}

/// The error status that a client receives instead of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The gRPC code.
    pub code: Code,
    /// The message; for errors that etcd has too, exactly as etcd spells it.
    pub message: Cow<'static, str>,
}

impl Status {
    /// Creates a status with a constant message.
    pub const fn new(code: Code, message: &'static str) -> Status {
        Status { code, message: Cow::Borrowed(message) }
    }

    /// Creates a status with a message that is built at run time.
    pub fn with(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: Cow::Owned(message.into()) }
    }
}

impl Status {
    /// Returns the status as etcd's tools print it: only a message for errors in [`CATALOGUE`], for an
    /// exceeded deadline and for a cancellation; for all other errors gRPC's text with code and message.
    pub fn shown(&self) -> String {
        match self.code {
            _ if CATALOGUE.iter().any(|known| known.message == self.message) => self.message.to_string(),
            Code::DeadlineExceeded => "context deadline exceeded".to_owned(),
            Code::Canceled => "context canceled".to_owned(),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rpc error: code = {} desc = {}", self.code.name(), self.message)
    }
}

impl std::error::Error for Status {}

/// `etcdserver: key is not provided`
pub const EMPTY_KEY: Status = Status::new(Code::InvalidArgument, "etcdserver: key is not provided");
/// `etcdserver: key not found`
pub const KEY_NOT_FOUND: Status = Status::new(Code::InvalidArgument, "etcdserver: key not found");
/// `etcdserver: value is provided`
pub const VALUE_PROVIDED: Status = Status::new(Code::InvalidArgument, "etcdserver: value is provided");
/// `etcdserver: lease is provided`
pub const LEASE_PROVIDED: Status = Status::new(Code::InvalidArgument, "etcdserver: lease is provided");
/// `etcdserver: too many operations in txn request`
pub const TOO_MANY_OPS: Status =
    Status::new(Code::InvalidArgument, "etcdserver: too many operations in txn request");
/// `etcdserver: duplicate key given in txn request`
pub const DUPLICATE_KEY: Status =
    Status::new(Code::InvalidArgument, "etcdserver: duplicate key given in txn request");
/// `etcdserver: invalid client api version`
pub const INVALID_CLIENT_API_VERSION: Status =
    Status::new(Code::InvalidArgument, "etcdserver: invalid client api version");
/// `etcdserver: invalid sort option`
pub const INVALID_SORT_OPTION: Status = Status::new(Code::InvalidArgument, "etcdserver: invalid sort option");
/// `etcdserver: mvcc: required revision has been compacted`
pub const COMPACTED: Status =
    Status::new(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
/// `etcdserver: mvcc: required revision is a future revision`
pub const FUTURE_REV: Status =
    Status::new(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision");
/// `etcdserver: mvcc: database space exceeded`
pub const NO_SPACE: Status =
    Status::new(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
/// `etcdserver: requested lease not found`
pub const LEASE_NOT_FOUND: Status = Status::new(Code::NotFound, "etcdserver: requested lease not found");
/// `etcdserver: lease already exists`
pub const LEASE_EXIST: Status = Status::new(Code::FailedPrecondition, "etcdserver: lease already exists");
/// `etcdserver: too large lease TTL`
pub const LEASE_TTL_TOO_LARGE: Status = Status::new(Code::OutOfRange, "etcdserver: too large lease TTL");
/// `etcdserver: watch canceled`
pub const WATCH_CANCELED: Status = Status::new(Code::Canceled, "etcdserver: watch canceled");
/// `etcdserver: member ID already exist`
pub const MEMBER_EXIST: Status = Status::new(Code::FailedPrecondition, "etcdserver: member ID already exist");
/// `etcdserver: Peer URLs already exists`
pub const PEER_URL_EXIST: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: Peer URLs already exists");
/// `etcdserver: re-configuration failed due to not enough started members`. etcd's source declares the code
/// FailedPrecondition, but etcd's server sends Unknown, so this is the code that clients expect.
pub const MEMBER_NOT_ENOUGH_STARTED: Status =
    Status::new(Code::Unknown, "etcdserver: re-configuration failed due to not enough started members");
/// `etcdserver: given member URLs are invalid`
pub const MEMBER_BAD_URLS: Status =
    Status::new(Code::InvalidArgument, "etcdserver: given member URLs are invalid");
/// `etcdserver: member not found`
pub const MEMBER_NOT_FOUND: Status = Status::new(Code::NotFound, "etcdserver: member not found");
/// `etcdserver: can only promote a learner member`
pub const MEMBER_NOT_LEARNER: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: can only promote a learner member");
/// `etcdserver: can only promote a learner member which is in sync with leader`
pub const LEARNER_NOT_READY: Status = Status::new(
    Code::FailedPrecondition,
    "etcdserver: can only promote a learner member which is in sync with leader",
);
/// `etcdserver: too many learner members in cluster`
pub const TOO_MANY_LEARNERS: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: too many learner members in cluster");
/// `etcdserver: cluster ID mismatch`
pub const CLUSTER_ID_MISMATCH: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: cluster ID mismatch");
/// `etcdserver: request is too large`
pub const REQUEST_TOO_LARGE: Status = Status::new(Code::InvalidArgument, "etcdserver: request is too large");
/// `etcdserver: too many requests`. etcd's source declares the code ResourceExhausted, but etcd's server
/// sends Unknown, so this is the code that clients expect.
pub const TOO_MANY_REQUESTS: Status = Status::new(Code::Unknown, "etcdserver: too many requests");
/// `etcdserver: root user does not exist`
pub const ROOT_USER_NOT_EXIST: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: root user does not exist");
/// `etcdserver: root user does not have root role`
pub const ROOT_ROLE_NOT_EXIST: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: root user does not have root role");
/// `etcdserver: user name already exists`
pub const USER_ALREADY_EXIST: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: user name already exists");
/// `etcdserver: user name is empty`
pub const USER_EMPTY: Status = Status::new(Code::InvalidArgument, "etcdserver: user name is empty");
/// `etcdserver: user name not found`
pub const USER_NOT_FOUND: Status = Status::new(Code::FailedPrecondition, "etcdserver: user name not found");
/// `etcdserver: role name already exists`
pub const ROLE_ALREADY_EXIST: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: role name already exists");
/// `etcdserver: role name not found`
pub const ROLE_NOT_FOUND: Status = Status::new(Code::FailedPrecondition, "etcdserver: role name not found");
/// `etcdserver: role name is empty`
pub const ROLE_EMPTY: Status = Status::new(Code::InvalidArgument, "etcdserver: role name is empty");
/// `etcdserver: authentication failed, invalid user ID or password`
pub const AUTH_FAILED: Status =
    Status::new(Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password");
/// `etcdserver: permission not given`
pub const PERMISSION_NOT_GIVEN: Status =
    Status::new(Code::InvalidArgument, "etcdserver: permission not given");
/// `etcdserver: permission denied`
pub const PERMISSION_DENIED: Status = Status::new(Code::PermissionDenied, "etcdserver: permission denied");
/// `etcdserver: role is not granted to the user`
pub const ROLE_NOT_GRANTED: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: role is not granted to the user");
/// `etcdserver: permission is not granted to the role`
pub const PERMISSION_NOT_GRANTED: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: permission is not granted to the role");
/// `etcdserver: authentication is not enabled`
pub const AUTH_NOT_ENABLED: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: authentication is not enabled");
/// `etcdserver: invalid auth token`
pub const INVALID_AUTH_TOKEN: Status = Status::new(Code::Unauthenticated, "etcdserver: invalid auth token");
/// `etcdserver: invalid auth management`
pub const INVALID_AUTH_MGMT: Status =
    Status::new(Code::InvalidArgument, "etcdserver: invalid auth management");
/// `etcdserver: revision of auth store is old`
pub const AUTH_OLD_REVISION: Status =
    Status::new(Code::InvalidArgument, "etcdserver: revision of auth store is old");
/// `etcdserver: no leader`
pub const NO_LEADER: Status = Status::new(Code::Unavailable, "etcdserver: no leader");
/// `etcdserver: not leader`
pub const NOT_LEADER: Status = Status::new(Code::FailedPrecondition, "etcdserver: not leader");
/// `etcdserver: leader changed`
pub const LEADER_CHANGED: Status = Status::new(Code::Unavailable, "etcdserver: leader changed");
/// `etcdserver: not capable`
pub const NOT_CAPABLE: Status = Status::new(Code::FailedPrecondition, "etcdserver: not capable");
/// `etcdserver: server stopped`
pub const STOPPED: Status = Status::new(Code::Unavailable, "etcdserver: server stopped");
/// `etcdserver: request timed out`
pub const TIMEOUT: Status = Status::new(Code::Unavailable, "etcdserver: request timed out");
/// `etcdserver: request timed out, possibly due to previous leader failure`
pub const TIMEOUT_DUE_TO_LEADER_FAIL: Status =
    Status::new(Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure");
/// `etcdserver: request timed out, possibly due to connection lost`
pub const TIMEOUT_DUE_TO_CONNECTION_LOST: Status =
    Status::new(Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost");
/// `etcdserver: request timed out, waiting for the applied index took too long`
pub const TIMEOUT_WAIT_APPLIED_INDEX: Status = Status::new(
    Code::Unavailable,
    "etcdserver: request timed out, waiting for the applied index took too long",
);
/// `etcdserver: unhealthy cluster`
pub const UNHEALTHY: Status = Status::new(Code::Unavailable, "etcdserver: unhealthy cluster");
/// `etcdserver: corrupt cluster`
pub const CORRUPT: Status = Status::new(Code::DataLoss, "etcdserver: corrupt cluster");
/// `etcdserver: rpc not supported for learner`
pub const NOT_SUPPORTED_FOR_LEARNER: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: rpc not supported for learner");
/// Mainstay's own: the member that was asked is a witness, which has no keys.
pub const NOT_SUPPORTED_FOR_WITNESS: Status = Status::new(
    Code::FailedPrecondition,
    "mainstay: this member is a witness, which has no keys: ask another member",
);
/// Mainstay's own: a learner is to be added as a witness.
pub const WITNESS_IS_NO_LEARNER: Status =
    Status::new(Code::FailedPrecondition, "mainstay: a witness has a vote, so it cannot be a learner");
/// Mainstay's own: the cluster has a witness already.
pub const TOO_MANY_WITNESSES: Status = Status::new(
    Code::FailedPrecondition,
    "mainstay: the cluster has a witness already, and more than one would not be safe",
);
/// Mainstay's own: a witness is to be added to a cluster with fewer than two voting members.
pub const TOO_FEW_MEMBERS_FOR_WITNESS: Status = Status::new(
    Code::FailedPrecondition,
    "mainstay: a witness needs at least two voting members with data beside it",
);
/// Mainstay's own: a witness is to be added, and not all members are known to run Mainstay.
pub const WITNESS_BESIDE_ETCD: Status = Status::new(
    Code::FailedPrecondition,
    "mainstay: a cluster with a witness must not have members that run etcd, and not all members have said yet that they run Mainstay",
);
/// Mainstay's own: a member is to be removed that has writes which the others may lack.
pub const REMOVAL_WHILE_WITNESS_COUNTS: Status = Status::new(
    Code::FailedPrecondition,
    "mainstay: the witness counts, and this member has writes that the others may lack: wait until they have caught up",
);
/// `etcdserver: bad leader transferee`
pub const BAD_LEADER_TRANSFEREE: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: bad leader transferee");
/// `etcdserver: wrong downgrade target version format`
pub const WRONG_DOWNGRADE_VERSION_FORMAT: Status =
    Status::new(Code::InvalidArgument, "etcdserver: wrong downgrade target version format");
/// `etcdserver: invalid downgrade target version`
pub const INVALID_DOWNGRADE_TARGET_VERSION: Status =
    Status::new(Code::InvalidArgument, "etcdserver: invalid downgrade target version");
/// `etcdserver: cluster version not found during downgrade`
pub const CLUSTER_VERSION_UNAVAILABLE: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: cluster version not found during downgrade");
/// `etcdserver: cluster has a downgrade job in progress`
pub const DOWNGRADE_IN_PROCESS: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: cluster has a downgrade job in progress");
/// `etcdserver: no inflight downgrade job`
pub const NO_INFLIGHT_DOWNGRADE: Status =
    Status::new(Code::FailedPrecondition, "etcdserver: no inflight downgrade job");
/// `etcdserver: request canceled`
pub const CANCELED: Status = Status::new(Code::Canceled, "etcdserver: request canceled");
/// `etcdserver: context deadline exceeded`
pub const DEADLINE_EXCEEDED: Status =
    Status::new(Code::DeadlineExceeded, "etcdserver: context deadline exceeded");
/// `etcdserver: unknown method`: an error that etcd does not map to a gRPC status, so it is sent with the
/// code `Unknown`.
pub const UNKNOWN_METHOD: Status = Status::new(Code::Unknown, "etcdserver: unknown method");
/// `etcdserver: request timed out, leader transfer took too long`: an error that etcd does not map to a gRPC
/// status, so it is sent with the code `Unknown`.
pub const LEADER_TRANSFER_TIMEOUT: Status =
    Status::new(Code::Unknown, "etcdserver: request timed out, leader transfer took too long");
/// `not a primary lessor`: an error that etcd does not map to a gRPC status, so it is sent with the code
/// `Unknown`.
pub const NOT_PRIMARY_LESSOR: Status = Status::new(Code::Unknown, "not a primary lessor");
/// `auth: authentication failed, password was given for no password user`: an error that etcd does not map to
/// a gRPC status, so it is sent with the code `Unknown`.
pub const NO_PASSWORD_USER: Status =
    Status::new(Code::Unknown, "auth: authentication failed, password was given for no password user");
/// `auth: invalid auth options`: an error that etcd does not map to a gRPC status, so it is sent with the
/// code `Unknown`.
pub const INVALID_AUTH_OPTIONS: Status = Status::new(Code::Unknown, "auth: invalid auth options");
/// `auth: invalid auth signature method`: an error that etcd does not map to a gRPC status, so it is sent
/// with the code `Unknown`.
pub const INVALID_AUTH_METHOD: Status = Status::new(Code::Unknown, "auth: invalid auth signature method");
/// `\"leader\" field must be provided`: an error that etcd does not map to a gRPC status, so it is sent with
/// the code `Unknown`.
pub const LEADER_FIELD_MISSING: Status = Status::new(Code::Unknown, "\"leader\" field must be provided");
/// `election: not leader`: an error that etcd does not map to a gRPC status, so it is sent with the code
/// `Unknown`.
pub const ELECTION_NOT_LEADER: Status = Status::new(Code::Unknown, "election: not leader");
/// `election: no leader`: an error that etcd does not map to a gRPC status, so it is sent with the code
/// `Unknown`.
pub const ELECTION_NO_LEADER: Status = Status::new(Code::Unknown, "election: no leader");
/// `mvcc: watcher range is empty`: an error that etcd does not map to a gRPC status, so it is sent with the
/// code `Unknown`.
pub const WATCH_EMPTY_RANGE: Status = Status::new(Code::Unknown, "mvcc: watcher range is empty");
/// `mvcc: duplicate watch ID provided on the WatchStream`: an error that etcd does not map to a gRPC status,
/// so it is sent with the code `Unknown`.
pub const WATCH_DUPLICATE_ID: Status =
    Status::new(Code::Unknown, "mvcc: duplicate watch ID provided on the WatchStream");

/// All errors of the catalogue.
pub const CATALOGUE: &[Status] = &[
    EMPTY_KEY,
    KEY_NOT_FOUND,
    VALUE_PROVIDED,
    LEASE_PROVIDED,
    TOO_MANY_OPS,
    DUPLICATE_KEY,
    INVALID_CLIENT_API_VERSION,
    INVALID_SORT_OPTION,
    COMPACTED,
    FUTURE_REV,
    NO_SPACE,
    LEASE_NOT_FOUND,
    LEASE_EXIST,
    LEASE_TTL_TOO_LARGE,
    WATCH_CANCELED,
    MEMBER_EXIST,
    PEER_URL_EXIST,
    MEMBER_NOT_ENOUGH_STARTED,
    MEMBER_BAD_URLS,
    MEMBER_NOT_FOUND,
    MEMBER_NOT_LEARNER,
    LEARNER_NOT_READY,
    TOO_MANY_LEARNERS,
    CLUSTER_ID_MISMATCH,
    REQUEST_TOO_LARGE,
    TOO_MANY_REQUESTS,
    ROOT_USER_NOT_EXIST,
    ROOT_ROLE_NOT_EXIST,
    USER_ALREADY_EXIST,
    USER_EMPTY,
    USER_NOT_FOUND,
    ROLE_ALREADY_EXIST,
    ROLE_NOT_FOUND,
    ROLE_EMPTY,
    AUTH_FAILED,
    PERMISSION_NOT_GIVEN,
    PERMISSION_DENIED,
    ROLE_NOT_GRANTED,
    PERMISSION_NOT_GRANTED,
    AUTH_NOT_ENABLED,
    INVALID_AUTH_TOKEN,
    INVALID_AUTH_MGMT,
    AUTH_OLD_REVISION,
    NO_LEADER,
    NOT_LEADER,
    LEADER_CHANGED,
    NOT_CAPABLE,
    STOPPED,
    TIMEOUT,
    TIMEOUT_DUE_TO_LEADER_FAIL,
    TIMEOUT_DUE_TO_CONNECTION_LOST,
    TIMEOUT_WAIT_APPLIED_INDEX,
    UNHEALTHY,
    CORRUPT,
    NOT_SUPPORTED_FOR_LEARNER,
    BAD_LEADER_TRANSFEREE,
    WRONG_DOWNGRADE_VERSION_FORMAT,
    INVALID_DOWNGRADE_TARGET_VERSION,
    CLUSTER_VERSION_UNAVAILABLE,
    DOWNGRADE_IN_PROCESS,
    NO_INFLIGHT_DOWNGRADE,
    CANCELED,
    DEADLINE_EXCEEDED,
    UNKNOWN_METHOD,
    LEADER_TRANSFER_TIMEOUT,
    NOT_PRIMARY_LESSOR,
    NO_PASSWORD_USER,
    INVALID_AUTH_OPTIONS,
    INVALID_AUTH_METHOD,
    LEADER_FIELD_MISSING,
    ELECTION_NOT_LEADER,
    ELECTION_NO_LEADER,
    WATCH_EMPTY_RANGE,
    WATCH_DUPLICATE_ID,
];
