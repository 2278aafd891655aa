//! Questions that only the leader can answer, handed on to it over HTTP on its peer URL as etcd's members do.

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

/// Pause before the leader is looked for again.
const PAUSE: Duration = Duration::from_millis(50);

/// All that a leader that runs etcd says of most refusals to promote a learner.
const ETCDS_REFUSAL: &[u8] = b"Internal Server Error";

/// What a caller without a token is told whom the leader would have to know.
const LEADER_WANTS_TOKEN: Status = Status::new(
    Code::FailedPrecondition,
    "mainstay: the leader wants to see a token, and the caller has shown a certificate only: ask the leader itself, or with a token",
);

/// Posts to the leader until it answers or the request times out. What `is_final` accepts is an answer whatever its status.
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
    let deadline = shared.clock.now() + shared.limits.request_timeout;
    loop {
        let leader = shared.state.load().leader;
        let left = deadline.saturating_duration_since(shared.clock.now());
        if left.is_zero() {
            return Err(error::TIMEOUT);
        }
        if leader == shared.identity.member_id {
            // Elected meanwhile: the caller asks its own core.
            return Err(error::NOT_PRIMARY_LESSOR);
        }
        if leader != 0
            && let Some(peers) = shared.peers()
        {
            let answered = peers.request(Target::Member(leader), request.clone(), left).await;
            // One that does not lead any more, or does not know its lease yet, says so with 500 and 408.
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
        shared.clock.sleep(PAUSE).await;
    }
}

/// Asks the leader about a lease, as [`ask_leader`] does.
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

/// Renews a lease at the leader: the TTL, 0 if the lease is gone.
///
/// # Errors
///
/// etcd's timeout when there is no leader to be found in time.
pub async fn renew(shared: &Shared, id: LeaseId) -> Result<Seconds, Status> {
    let response = ask_of_lease(shared, "/leases", &LeaseKeepAliveRequest { id: id.0 }).await?;
    match response.status() {
        StatusCode::OK => Ok(Seconds(decoded::<LeaseKeepAliveResponse>(&response)?.ttl)),
        StatusCode::NOT_FOUND => Ok(Seconds::ZERO),
        _ => Err(Status::with(Code::Unknown, String::from_utf8_lossy(response.body()).trim().to_owned())),
    }
}

/// Asks the leader how long a lease has.
///
/// # Errors
///
/// As [`renew`]; a lease that is gone is answered with a TTL of -1.
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

/// Why a leader may refuse to promote a learner, however often it is asked.
const FINAL: [Status; 5] = [
    error::INVALID_AUTH_TOKEN,
    error::USER_EMPTY,
    error::USER_NOT_FOUND,
    error::PERMISSION_DENIED,
    error::MEMBER_NOT_ENOUGH_STARTED,
];

/// The status that a leader's refusal to promote a learner stands for; `None` if it is worth asking again.
fn refusal(response: &Response<Bytes>) -> Option<Status> {
    let text = String::from_utf8_lossy(response.body());
    let text = text.trim();
    match response.status() {
        StatusCode::NOT_FOUND => Some(error::MEMBER_NOT_FOUND),
        // etcd's members and Mainstay's begin these texts differently.
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

/// Asks the leader to promote a learner, and returns the members afterwards. `token` is the one that the caller has shown, since
/// the leader asks for root itself.
///
/// # Errors
///
/// The leader's refusal. At once also if it gives no reason, which etcd never does, and the caller, who has no token to show,
/// must be root there.
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
        return replica::joining::read_members(response.body())
            .map_err(|e| Status::with(Code::Internal, format!("mainstay: the leader's answer: {e}")));
    }
    if wants_token(&response) {
        return Err(LEADER_WANTS_TOKEN);
    }
    let text = || String::from_utf8_lossy(response.body()).trim().to_owned();
    Err(refusal(&response).unwrap_or_else(|| Status::with(Code::Unknown, text())))
}
