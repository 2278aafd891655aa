//! Answers observers: their registration with this node, and requests for the leader that they pass on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use serde_json::json;

use super::answers::{JSON, answer, refused};
use super::hashes::is_of_this;
use api::Code;
use consistency::comparison::OTHER_CLUSTER;
use peer::Target;
use replica::core::{PeerRequest, ReplyBody};
use replica::observing::ObserverCard;
use replica::shared::Shared;
use rpc::forwarding::{HOPS, HOPS_MAX};

/// Maximum number of requests that are passed on at the same time, so that this node has room for its own.
const PASSED_ON_MAX: usize = 256;
/// Time to wait for the answer to a request that is passed on. The observer that sent it repeats it.
const PASS_ON_TIMEOUT: Duration = Duration::from_secs(5);

/// Registers an observer, which is then fed.
pub(super) async fn register(shared: &Shared, request: &Request<Bytes>) -> Response<Bytes> {
    // Both headers are required: a page in a browser cannot send them without being asked first.
    let headers = request.headers();
    if !is_of_this(shared, request) {
        return refused(StatusCode::PRECONDITION_FAILED, OTHER_CLUSTER);
    }
    if headers.get(http::header::CONTENT_TYPE).is_none_or(|kind| kind != JSON) {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content type is not application/json");
    }
    let card = match ObserverCard::from_json(request.body()) {
        Ok(card) => card,
        Err(reason) => return refused(StatusCode::BAD_REQUEST, &reason),
    };
    if let Some(url) = card.peer_urls.iter().find(|url| !is_reachable(url)) {
        return refused(
            StatusCode::BAD_REQUEST,
            &format!("{url:?} is not an http or https URL of a host and a port"),
        );
    }
    let asked = shared.core.ask(move |request_id| PeerRequest::Observe(request_id, Box::new(card)));
    match asked.await.map(|reply| reply.body) {
        Ok(ReplyBody::Registered(registered)) => {
            let body = json!({
                "feeder": format!("{:x}", registered.feeder.0),
                "fedBy": format!("{:x}", registered.fed_by.0),
                "heartbeatMs": u64::try_from(registered.heartbeat_interval.as_millis()).unwrap_or(u64::MAX),
            });
            answer(StatusCode::OK, JSON, body.to_string())
        }
        Ok(ReplyBody::Outcome(Err(status), _)) | Err(status) => {
            let code = match status.code {
                Code::FailedPrecondition => StatusCode::CONFLICT,
                Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            refused(code, &status.message)
        }
        Ok(_) => refused(StatusCode::SERVICE_UNAVAILABLE, "the member is stopping"),
    }
}

fn is_reachable(url: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) && peer::check_url(url).is_ok()
}

/// Returns the number of observers that have passed a request on; `None` if it comes from a member.
pub(super) fn hops(headers: &HeaderMap) -> Option<u32> {
    headers.get(HOPS)?.to_str().ok()?.parse().ok()
}

/// The requests that are being passed on.
#[derive(Default)]
pub(super) struct PassedOn(AtomicUsize);

/// One request that is being passed on.
struct Passing<'a>(&'a AtomicUsize);

impl PassedOn {
    /// Counts one more request. Returns `None` if too many are being passed on.
    fn begin(&self) -> Option<Passing<'_>> {
        let fits = |open: usize| (open < PASSED_ON_MAX).then_some(open + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok().map(|_| Passing(&self.0))
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Passes a request of an observer on to the leader, or to this observer's own feeder.
pub(super) async fn pass_on(
    shared: &Shared,
    open: &PassedOn,
    mut request: Request<Bytes>,
    hops: u32,
) -> Response<Bytes> {
    let Some(_passing) = open.begin() else {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "too many requests are being passed on");
    };
    let leader = shared.state.load().leader;
    let Some(peers) = shared.cluster.peers().filter(|_| leader != 0) else {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "no leader is known");
    };
    if hops > HOPS_MAX {
        return refused(StatusCode::LOOP_DETECTED, "passed on too often: observers may feed each other");
    }
    request.headers_mut().remove(HOPS);
    if shared.cluster.feeder().is_some() {
        request.headers_mut().insert(HOPS, HeaderValue::from(hops + 1));
    }
    // Headers of the connection on which the request came are not those of the next one.
    for name in [http::header::HOST, http::header::CONNECTION, http::header::CONTENT_LENGTH] {
        request.headers_mut().remove(name);
    }
    match peers.request(Target::Member(shared.cluster.way_to(leader)), request, PASS_ON_TIMEOUT).await {
        Ok(response) => {
            let mut passed = Response::new(response.body().clone());
            *passed.status_mut() = response.status();
            if let Some(kind) = response.headers().get(http::header::CONTENT_TYPE) {
                passed.headers_mut().insert(http::header::CONTENT_TYPE, kind.clone());
            }
            passed
        }
        Err(error) => refused(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    }
}
