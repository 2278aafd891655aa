//! Answers the requests of other members that compare their data with this member's.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use numbers::{Index, Revision};
use serde_json::{Value, json};

use super::answers::{JSON, answer, refused};
use consistency::comparison::{CLUSTER_ID, OTHER_CLUSTER, cluster_id, hash_at, write_trail};
use replica::core::{PeerRequest, ReplyBody};
use replica::shared::Shared;

/// Returns true if the request names another cluster than this one.
pub(super) fn is_of_another(cluster: &str, request: &Request<Bytes>) -> bool {
    let theirs = request.headers().get(CLUSTER_ID);
    theirs.is_some_and(|id| !id.is_empty() && id.as_bytes() != cluster.as_bytes())
}

/// Returns true if the request names this cluster.
pub(crate) fn is_of_this(shared: &Shared, request: &Request<Bytes>) -> bool {
    request.headers().get(CLUSTER_ID).is_some_and(|id| id.as_bytes() == cluster_id(shared).as_bytes())
}

/// Answers another member's request for the hash of the key-value pairs at a revision, as HashKV computes it.
pub async fn hash_kv(shared: &Arc<Shared>, request: &Request<Bytes>) -> Response<Bytes> {
    let cluster = cluster_id(shared);
    if is_of_another(&cluster, request) {
        return refused(StatusCode::PRECONDITION_FAILED, OTHER_CLUSTER);
    }
    let asked: Option<Value> = serde_json::from_slice(request.body()).ok();
    let Some(asked) = asked else {
        return refused(StatusCode::BAD_REQUEST, "error unmarshalling request");
    };
    let revision = Revision(asked["revision"].as_i64().unwrap_or(0));
    match hash_at(shared, revision).await {
        Ok(hashed) => {
            let body = json!({
                "header": { "revision": hashed.current_revision.0 },
                "hash": hashed.hash,
                "compact_revision": hashed.compact_revision.0,
                "hash_revision": hashed.revision.0,
            });
            let mut response = answer(StatusCode::OK, JSON, body.to_string());
            if let Ok(cluster) = HeaderValue::from_str(&cluster) {
                response.headers_mut().insert(CLUSTER_ID, cluster);
            }
            response
        }
        Err(error) => refused(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

/// Answers another member with the hashes of this member's state after its last entries.
pub async fn state_hashes(shared: &Shared, request: &Request<Bytes>) -> Response<Bytes> {
    if is_of_another(&cluster_id(shared), request) {
        return refused(StatusCode::PRECONDITION_FAILED, OTHER_CLUSTER);
    }
    let query = request.uri().query().unwrap_or_default();
    let from = query.split('&').find_map(|pair| pair.strip_prefix("from="));
    let Ok(from) = from.unwrap_or("0").parse().map(Index) else {
        return refused(StatusCode::BAD_REQUEST, "from is not the index of an entry");
    };
    let reply = shared.core.ask(move |request_id| PeerRequest::StateTrail(request_id, from)).await;
    match reply.map(|reply| reply.body) {
        Ok(ReplyBody::StateTrail(trail)) => answer(StatusCode::OK, JSON, write_trail(&trail)),
        _ => refused(StatusCode::SERVICE_UNAVAILABLE, "the member is stopping"),
    }
}
