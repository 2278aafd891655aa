//! Creates answers to requests of other members, with etcd's statuses and messages.

use api::raftpb::Message;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use crate::answer_body::AnswerBody;
use crate::identity::{CLUSTER_ID, KNOWS_WITNESSES, WITNESS, ZONE};
use crate::local_member::LocalMember;
use crate::pipeline;

/// Adds the headers with this member's cluster id and zone to an answer.
pub(crate) fn stamp(local: &LocalMember, mut response: Response<AnswerBody>) -> Response<AnswerBody> {
    response.headers_mut().insert(CLUSTER_ID, local.identity.cluster_hex.clone());
    response.headers_mut().insert(WITNESS, KNOWS_WITNESSES);
    if !local.identity.zone.is_empty() {
        response.headers_mut().insert(ZONE, local.identity.zone.clone());
    }
    response
}

/// Creates the answer to a request whose HTTP method is not `allowed`.
pub(crate) fn wrong_method(allowed: &'static str) -> Response<AnswerBody> {
    let mut refusal = refuse(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    refusal.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    refusal
}

/// Creates an answer that refuses a request, in the format of Go's `http.Error`.
pub(crate) fn refuse(status: StatusCode, text: &str) -> Response<AnswerBody> {
    let mut refusal = plain(status, format!("{text}\n"));
    let nosniff = HeaderName::from_static("x-content-type-options");
    refusal.headers_mut().insert(nosniff, HeaderValue::from_static("nosniff"));
    refusal
}

/// Creates an answer of plain text.
pub(crate) fn plain(status: StatusCode, text: String) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::from(text));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

/// Returns the answer that refuses a message, if its sender was removed from the cluster or if it is
/// addressed to another member. `misdirected` is etcd's message for the second case.
pub(crate) fn check_sender(
    local: &LocalMember,
    message: &Message,
    misdirected: &str,
) -> Result<(), Box<Response<AnswerBody>>> {
    if local.handler.is_removed(message.from.unwrap_or(0)) {
        let mut refusal =
            Response::new(AnswerBody::from(format!("{{\"message\":\"{}\"}}", pipeline::REMOVED)));
        *refusal.status_mut() = StatusCode::FORBIDDEN;
        refusal.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        return Err(Box::new(refusal));
    }
    if message.to != Some(local.identity.local_id) {
        return Err(Box::new(refuse(StatusCode::INTERNAL_SERVER_ERROR, misdirected)));
    }
    Ok(())
}
