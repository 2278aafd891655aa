//! Questions that only the leader can answer, handed on to it over HTTP on its peer URL as etcd's members do.

use std::time::Duration;

use api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use api::{Code, Status, error, leasepb};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use machine::Member;
use numbers::{LeaseId, Seconds};
use peer::Target;
use prost::Message;

use replica::shared::Shared;

/// Pause before the leader is looked for again.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks the leader until it answers or the request times out.
async fn ask_leader(
    shared: &Shared,
    method: &Method,
    path: &str,
    body: &Bytes,
) -> Result<http::Response<Bytes>, Status> {
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
            let request = Request::builder()
                .method(method.clone())
                .uri(path)
                .header("content-type", "application/protobuf")
                .body(body.clone())
                .map_err(|e| Status::with(Code::Internal, format!("mainstay: {e}")))?;
            let answered = peers.request(Target::Member(leader), request, left).await;
            // One that does not lead any more, or does not know its lease yet, says so with 500 and 408.
            if let Ok(response) = answered
                && !matches!(
                    response.status(),
                    StatusCode::INTERNAL_SERVER_ERROR
                        | StatusCode::SERVICE_UNAVAILABLE
                        | StatusCode::REQUEST_TIMEOUT
                )
            {
                return Ok(response);
            }
        }
        shared.clock.sleep(PAUSE).await;
    }
}

fn decoded<M: Message + Default>(response: &http::Response<Bytes>) -> Result<M, Status> {
    M::decode(response.body().clone())
        .map_err(|_| Status::with(Code::Internal, "mainstay: the leader's answer cannot be read".to_owned()))
}

/// Renews a lease at the leader: the TTL, 0 if the lease is gone.
///
/// # Errors
///
/// etcd's timeout when there is no leader to be found in time.
pub async fn renew(shared: &Shared, id: LeaseId) -> Result<Seconds, Status> {
    let body = LeaseKeepAliveRequest { id: id.0 }.encode_to_vec().into();
    let response = ask_leader(shared, &Method::POST, "/leases", &body).await?;
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
    let body = request.encode_to_vec().into();
    let response = ask_leader(shared, &Method::POST, "/leases/internal", &body).await?;
    match response.status() {
        StatusCode::OK => decoded::<leasepb::LeaseInternalResponse>(&response)?
            .lease_time_to_live_response
            .ok_or_else(|| Status::with(Code::Internal, "mainstay: the leader's answer is empty".to_owned())),
        StatusCode::NOT_FOUND => Ok(LeaseTimeToLiveResponse { id: id.0, ttl: -1, ..Default::default() }),
        _ => Err(Status::with(Code::Unknown, String::from_utf8_lossy(response.body()).trim().to_owned())),
    }
}

/// Asks the leader to promote a learner, and returns the members afterwards.
///
/// # Errors
///
/// The leader's refusal.
pub async fn promote(shared: &Shared, id: u64) -> Result<Vec<Member>, Status> {
    let path = format!("/members/promote/{id}");
    let response = ask_leader(shared, &Method::POST, &path, &Bytes::new()).await?;
    if response.status() == StatusCode::OK {
        return replica::joining::read_members(response.body())
            .map_err(|e| Status::with(Code::Internal, format!("mainstay: the leader's answer: {e}")));
    }
    let text = String::from_utf8_lossy(response.body()).trim().to_owned();
    let known = [error::MEMBER_NOT_FOUND, error::MEMBER_NOT_LEARNER, error::LEARNER_NOT_READY];
    let status = known.into_iter().find(|status| status.message.ends_with(&text) && !text.is_empty());
    Err(status.unwrap_or_else(|| Status::with(Code::Unknown, text)))
}
