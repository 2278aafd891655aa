use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use api::{Code, Rpc, Status, error};

use crate::channel::Failure;

/// Maximum number of attempts of a unary call.
pub(crate) const ATTEMPTS: u32 = 100;

/// Unary methods that may be retried after `Unavailable`, although the server may have processed the call.
/// Source: `retry.go` of clientv3. Most of them are reads. Of the others, a repeated grant of a lease does no
/// harm because the surplus lease expires, a repeated revocation finds no lease, and a repeated change of an
/// alarm or move of the leader changes nothing more.
const REPEATABLE: &[Rpc] = &[
    Rpc::KvRange,
    Rpc::LeaseTimeToLive,
    Rpc::LeaseLeases,
    Rpc::LeaseGrant,
    Rpc::LeaseRevoke,
    Rpc::ClusterMemberList,
    Rpc::MaintenanceAlarm,
    Rpc::MaintenanceStatus,
    Rpc::MaintenanceHash,
    Rpc::MaintenanceHashKv,
    Rpc::MaintenanceMoveLeader,
    Rpc::AuthUserList,
    Rpc::AuthUserGet,
    Rpc::AuthRoleGet,
    Rpc::AuthRoleList,
];

/// Action to take after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Do not retry: return the failure to the caller.
    Final,
    /// Retry, possibly at another endpoint.
    Repeat,
    /// Get a new token, then retry.
    Authenticate,
}

/// Message that maintenance calls of etcd 3.4 and 3.5 return for an invalid token, in place of the message of
/// [`error::INVALID_AUTH_TOKEN`].
const UNKNOWN_TOKEN: &str = "auth: invalid auth token";

/// Decides whether a failed attempt is retried. Source: `retry_interceptor.go` of clientv3. Unlike clientv3,
/// this also gets a new token after [`UNKNOWN_TOKEN`]. Otherwise, with several endpoints, maintenance calls
/// would fail at every member that did not issue the token.
pub(crate) fn verdict(rpc: Rpc, failure: &Failure, endpoints: usize, credentials: Credentials) -> Verdict {
    let status = &failure.status;
    if matches!(status.code, Code::DeadlineExceeded | Code::Canceled) {
        return Verdict::Final;
    }
    let is = |known: &Status| status.message == known.message;
    match credentials {
        Credentials::User if is(&error::USER_EMPTY) => return Verdict::Authenticate,
        // A client without a user also gets `Authenticate`, for example because its call fails with
        // `AUTH_OLD_REVISION` if users change at the same time. It then retries without getting a token.
        Credentials::User | Credentials::None
            if is(&error::INVALID_AUTH_TOKEN)
                || is(&error::AUTH_OLD_REVISION)
                || status.message == UNKNOWN_TOKEN =>
        {
            return Verdict::Authenticate;
        }
        _ => {}
    }
    let elsewhere = is(&error::NOT_SUPPORTED_FOR_LEARNER) && endpoints > 1;
    let repeatable = status.code == Code::Unavailable && REPEATABLE.contains(&rpc);
    let unsent = status.code == Code::Unavailable && failure.unsent;
    if elsewhere || repeatable || unsent { Verdict::Repeat } else { Verdict::Final }
}

/// Kind of credentials with which a client makes calls: none, a user name with a password, or only a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credentials {
    None,
    User,
    Token,
}

/// Returns the pause before an attempt; attempts are counted from 0. As in clientv3, a pause precedes only
/// every attempt whose number is a multiple of the quorum of the endpoints, and not the first attempt.
pub(crate) fn pause(attempt: u32, endpoints: usize) -> Duration {
    let quorum = u32::try_from(endpoints / 2 + 1).unwrap_or(u32::MAX);
    if attempt == 0 || !attempt.is_multiple_of(quorum) {
        return Duration::ZERO;
    }
    Duration::from_micros(22_500 + random() % 5_000)
}

/// Returns a random number for spreading the load of many clients. It is predictable, so it must not be used
/// for secrets.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_repeated_only_when_they_were_never_sent() {
        let lost = || Status::new(Code::Unavailable, "connection error");
        let judge = |rpc, failure| verdict(rpc, &failure, 3, Credentials::None);
        assert_eq!(judge(Rpc::KvPut, Failure::sent(lost())), Verdict::Final);
        assert_eq!(judge(Rpc::KvPut, Failure::sent(error::NO_LEADER)), Verdict::Final);
        assert_eq!(judge(Rpc::KvPut, Failure::unsent(lost())), Verdict::Repeat);
        assert_eq!(judge(Rpc::KvRange, Failure::sent(lost())), Verdict::Repeat);
        assert_eq!(judge(Rpc::KvRange, Failure::sent(error::NO_LEADER)), Verdict::Repeat);
        assert_eq!(judge(Rpc::KvRange, Failure::sent(error::COMPACTED)), Verdict::Final);
        let late = Status::new(Code::DeadlineExceeded, "context deadline exceeded");
        assert_eq!(judge(Rpc::KvRange, Failure::unsent(late)), Verdict::Final);
    }

    #[test]
    fn a_learner_is_left_for_another_endpoint_if_there_is_one() {
        let refused = || Failure::sent(error::NOT_SUPPORTED_FOR_LEARNER);
        assert_eq!(verdict(Rpc::KvPut, &refused(), 2, Credentials::None), Verdict::Repeat);
        assert_eq!(verdict(Rpc::KvPut, &refused(), 1, Credentials::None), Verdict::Final);
    }

    #[test]
    fn tokens_are_renewed_unless_given_by_hand() {
        let stale = || Failure::sent(error::INVALID_AUTH_TOKEN);
        assert_eq!(verdict(Rpc::KvPut, &stale(), 1, Credentials::User), Verdict::Authenticate);
        assert_eq!(verdict(Rpc::KvPut, &stale(), 1, Credentials::Token), Verdict::Final);
        let unknown = Failure::sent(Status::new(Code::Unknown, UNKNOWN_TOKEN));
        assert_eq!(verdict(Rpc::MaintenanceHashKv, &unknown, 1, Credentials::User), Verdict::Authenticate);
        assert_eq!(verdict(Rpc::MaintenanceHashKv, &unknown, 1, Credentials::Token), Verdict::Final);
        let old = Failure::sent(error::AUTH_OLD_REVISION);
        assert_eq!(verdict(Rpc::KvPut, &old, 1, Credentials::User), Verdict::Authenticate);
        let empty = || Failure::sent(error::USER_EMPTY);
        assert_eq!(verdict(Rpc::KvPut, &empty(), 1, Credentials::User), Verdict::Authenticate);
        assert_eq!(verdict(Rpc::KvPut, &empty(), 1, Credentials::None), Verdict::Final);
    }

    #[test]
    fn a_round_through_a_quorum_goes_without_a_pause() {
        let paused: Vec<u32> = (0..7).filter(|attempt| !pause(*attempt, 3).is_zero()).collect();
        assert_eq!(paused, [2, 4, 6]);
    }
}
