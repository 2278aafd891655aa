//! Forwards requests that only the leader can answer, over HTTP to its peer URL, as members of etcd do.

use std::time::Duration;

use api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use api::{Code, Status, error, leasepb};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use machine::Member;
use numbers::{LeaseId, Seconds};
use peer::Target;
use prost::Message;

use replica::shared::Shared;

/// Header of a request to the leader that an observer sends to its feeder: the number of observers that have
/// passed it on. A member that has it passes the request on to the leader.
pub const HOPS: &str = "x-mainstay-hops";
/// Maximum number of observers that pass a request on.
pub const HOPS_MAX: u32 = 8;

/// Pause before a request to the leader is retried.
const PAUSE: Duration = Duration::from_millis(50);

/// Body of the response with which an etcd leader refuses most requests to promote a learner. It does not
/// contain the reason.
const ETCDS_REFUSAL: &[u8] = b"Internal Server Error";

/// Error for a caller that presented a certificate but no token, if the leader requires a token.
const LEADER_WANTS_TOKEN: Status = Status::new(
    Code::FailedPrecondition,
    "mainstay: the leader requires a token, but the caller identified itself with a certificate only: call the leader directly, or use a token",
);

/// Posts a request to the leader, and retries until the leader gives a usable answer or the request times
/// out. If `is_final` returns true for a response, that response is returned, whatever its status.
async fn ask_leader(
    shared: &Shared,
    path: &str,
    body: Bytes,
    token: Option<HeaderValue>,
    is_final: impl Fn(&Response<Bytes>) -> bool,
) -> Result<Response<Bytes>, Status> {
    let mut request = Request::post(path)
        .header(CONTENT_TYPE, "application/protobuf")
        .body(body)
        .map_err(|e| Status::with(Code::Internal, format!("mainstay: {e}")))?;
    request.headers_mut().extend(token.map(|token| (AUTHORIZATION, token)));
    if shared.cluster.feeder().is_some() {
        request.headers_mut().insert(HOPS, HeaderValue::from(1));
    }
    let deadline = shared.member.clock.now() + shared.member.limits.request_timeout;
    loop {
        let leader = shared.state.load().leader;
        let left = deadline.saturating_duration_since(shared.member.clock.now());
        if left.is_zero() {
            return Err(error::TIMEOUT);
        }
        if leader == shared.member.identity.member_id {
            // This member has become the leader in the meantime, so the caller asks its own core.
            return Err(error::NOT_PRIMARY_LESSOR);
        }
        if leader != 0
            && let Some(peers) = shared.cluster.peers()
        {
            let answered =
                peers.request(Target::Member(shared.cluster.way_to(leader)), request.clone(), left).await;
            // A member that no longer leads, or a leader that does not know the lease yet, answers with
            // status 500 or 408. The request is then sent again.
            if let Ok(response) = answered
                && (is_final(&response)
                    || !matches!(
                        response.status(),
                        StatusCode::INTERNAL_SERVER_ERROR
                            | StatusCode::SERVICE_UNAVAILABLE
                            | StatusCode::REQUEST_TIMEOUT
                    ))
            {
                return Ok(response);
            }
        }
        shared.member.clock.sleep(PAUSE).await;
    }
}

/// Sends a request about a lease to the leader, as [`ask_leader`] does.
async fn ask_of_lease(
    shared: &Shared,
    path: &str,
    request: &impl Message,
) -> Result<Response<Bytes>, Status> {
    ask_leader(shared, path, request.encode_to_vec().into(), None, |_| false).await
}

fn decoded<M: Message + Default>(response: &Response<Bytes>) -> Result<M, Status> {
    M::decode(response.body().clone())
        .map_err(|_| Status::with(Code::Internal, "mainstay: the leader's answer cannot be read".to_owned()))
}

/// Renews a lease at the leader. Returns its TTL, or 0 if the lease does not exist.
///
/// # Errors
///
/// Returns etcd's timeout if no leader is found in time, or the error of the leader.
pub async fn renew(shared: &Shared, id: LeaseId) -> Result<Seconds, Status> {
    let response = ask_of_lease(shared, "/leases", &LeaseKeepAliveRequest { id: id.0 }).await?;
    match response.status() {
        StatusCode::OK => Ok(Seconds(decoded::<LeaseKeepAliveResponse>(&response)?.ttl)),
        StatusCode::NOT_FOUND => Ok(Seconds::ZERO),
        _ => Err(Status::with(Code::Unknown, String::from_utf8_lossy(response.body()).trim().to_owned())),
    }
}

/// Asks the leader for the remaining time of a lease. The TTL is -1 if the lease does not exist.
///
/// # Errors
///
/// Returns the same errors as [`renew`].
pub async fn time_to_live(
    shared: &Shared,
    id: LeaseId,
    keys: bool,
) -> Result<LeaseTimeToLiveResponse, Status> {
    let request = LeaseTimeToLiveRequest { id: id.0, keys };
    let request = leasepb::LeaseInternalRequest { lease_time_to_live_request: Some(request) };
    let response = ask_of_lease(shared, "/leases/internal", &request).await?;
    match response.status() {
        StatusCode::OK => decoded::<leasepb::LeaseInternalResponse>(&response)?
            .lease_time_to_live_response
            .ok_or_else(|| Status::with(Code::Internal, "mainstay: the leader's answer is empty".to_owned())),
        StatusCode::NOT_FOUND => Ok(LeaseTimeToLiveResponse { id: id.0, ttl: -1, ..Default::default() }),
        _ => Err(Status::with(Code::Unknown, String::from_utf8_lossy(response.body()).trim().to_owned())),
    }
}

/// Final refusals of a leader to promote a learner: a retry would get the same refusal.
const FINAL: [Status; 5] = [
    error::INVALID_AUTH_TOKEN,
    error::USER_EMPTY,
    error::USER_NOT_FOUND,
    error::PERMISSION_DENIED,
    error::MEMBER_NOT_ENOUGH_STARTED,
];

/// Returns the status for a leader's refusal to promote a learner; `None` if a retry may succeed.
fn refusal(response: &Response<Bytes>) -> Option<Status> {
    let text = String::from_utf8_lossy(response.body());
    let text = text.trim();
    match response.status() {
        StatusCode::NOT_FOUND => Some(error::MEMBER_NOT_FOUND),
        // The ends of these messages are compared, because members of etcd and of Mainstay begin them
        // differently.
        StatusCode::PRECONDITION_FAILED if text.ends_with("in sync with leader") => {
            Some(error::LEARNER_NOT_READY)
        }
        StatusCode::PRECONDITION_FAILED if text.ends_with("can only promote a learner member") => {
            Some(error::MEMBER_NOT_LEARNER)
        }
        StatusCode::INTERNAL_SERVER_ERROR => FINAL.into_iter().find(|status| status.message == text),
        _ => None,
    }
}

/// Asks the leader to promote a learner, and returns the members afterwards. `token` is the token of the
/// caller, because the leader checks for root itself.
///
/// # Errors
///
/// Returns the leader's refusal. A refusal without a reason, such as etcd's, is retried until the request
/// times out, with one exception: if authentication is enabled and the caller has no token, the error says
/// that the leader requires a token.
pub async fn promote(shared: &Shared, id: u64, token: Option<HeaderValue>) -> Result<Vec<Member>, Status> {
    let path = format!("/members/promote/{id}");
    let lacks_token = token.is_none() && shared.state.load().auth.is_enabled();
    let wants_token = |response: &Response<Bytes>| {
        lacks_token
            && response.status() == StatusCode::INTERNAL_SERVER_ERROR
            && match refusal(response) {
                Some(status) => status == error::USER_EMPTY,
                None => response.body().windows(ETCDS_REFUSAL.len()).any(|part| part == ETCDS_REFUSAL),
            }
    };
    let is_final = |response: &Response<Bytes>| wants_token(response) || refusal(response).is_some();
    let response = ask_leader(shared, &path, Bytes::new(), token, is_final).await?;
    if response.status() == StatusCode::OK {
        return replica::other_members::read_members(response.body()).map_err(|e| {
            Status::with(Code::Internal, format!("mainstay: invalid answer from the leader: {e}"))
        });
    }
    if wants_token(&response) {
        return Err(LEADER_WANTS_TOKEN);
    }
    let text = || String::from_utf8_lossy(response.body()).trim().to_owned();
    Err(refusal(&response).unwrap_or_else(|| Status::with(Code::Unknown, text())))
}
