//! Whether all members hold the same data: what a member tells of itself, and how answers are compared.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use machine::range;
use mvcc::HashWalk;
use serde_json::json;

use crate::core::{Ask, ReplyBody};
use crate::kv_hash::KvHash;
use crate::shared::Shared;
use crate::values::LogValues;

/// Where a member tells the hashes of its state after its last entries.
pub const STATE_HASHES: &str = "/mainstay/state-hashes";

/// Versions hashed at a time.
const HASHED_PER_SLICE: usize = 4096;

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn refused(status: StatusCode, text: &str) -> Response<Bytes> {
    answer(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

/// A hash of everything up to a revision, as HashKV gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// The hash.
    pub hash: u32,
    /// The compact revision then.
    pub compact_revision: i64,
    /// The revision.
    pub revision: i64,
}

/// Hashes the present state up to a revision; 0 is the newest. Takes a while and must not run on a thread that others
/// wait for.
///
/// # Errors
///
/// The words of a refusal: the revision was compacted, or is in the future.
pub fn hash_of(shared: &Shared, revision: i64) -> Result<Hashed, String> {
    let view = std::sync::Arc::clone(&shared.state.load().view);
    let values = LogValues::new(shared.values.clone());
    let mut walk =
        HashWalk::new(&view.snapshot(), revision).map_err(|e| range::refused(e).message.into_owned())?;
    let (revision, compact_revision) = (walk.revision(), walk.compact_revision());
    let mut hash = KvHash::default();
    let mut failed = None;
    while !walk.step(&view.snapshot(), HASHED_PER_SLICE, |version| {
        if failed.is_none() {
            failed = hash.feed(version, &values).err();
        }
    }) {}
    match failed {
        Some(status) => Err(status.message.into_owned()),
        None => Ok(Hashed { hash: hash.finish(), compact_revision, revision }),
    }
}

/// Answers another member that wants to compare.
pub async fn hash_kv(shared: &std::sync::Arc<Shared>, request: &Request<Bytes>) -> Response<Bytes> {
    let cluster = format!("{:x}", shared.identity.cluster_id);
    if request.headers().get("x-etcd-cluster-id").and_then(|id| id.to_str().ok()) != Some(cluster.as_str()) {
        return refused(StatusCode::PRECONDITION_FAILED, "cluster ID mismatch");
    }
    let asked: Option<serde_json::Value> = serde_json::from_slice(request.body()).ok();
    let Some(asked) = asked else {
        return refused(StatusCode::BAD_REQUEST, "error unmarshalling request");
    };
    let revision = asked["revision"].as_i64().unwrap_or(0);
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let hashing = std::sync::Arc::clone(shared);
    let spawned = std::thread::Builder::new().name("hash".to_owned()).spawn(move || {
        // Whoever asked may have gone.
        let _ = sender.send(hash_of(&hashing, revision));
    });
    if spawned.is_err() {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "no thread could be started");
    }
    match receiver.await {
        Ok(Ok(hashed)) => {
            let state = shared.state.load();
            let header = json!({
                "cluster_id": shared.identity.cluster_id,
                "member_id": shared.identity.member_id,
                "revision": state.view.snapshot().current_revision(),
                "raft_term": state.applied_term,
            });
            let body = json!({
                "header": header,
                "hash": hashed.hash,
                "compact_revision": hashed.compact_revision,
                "hash_revision": hashed.revision,
            });
            answer(StatusCode::OK, "application/json", body.to_string())
        }
        Ok(Err(why)) => refused(StatusCode::BAD_REQUEST, why.trim_start_matches("etcdserver: ")),
        Err(_) => refused(StatusCode::SERVICE_UNAVAILABLE, "the hash could not be computed"),
    }
}

/// Answers another member with the hashes of this one's state after its last entries.
pub async fn state_hashes(shared: &Shared, request: &Request<Bytes>) -> Response<Bytes> {
    let query = request.uri().query().unwrap_or_default();
    let from = query.strip_prefix("from=").and_then(|from| from.parse().ok()).unwrap_or(0u64);
    let reply = shared.ask(move |ticket| Ask::StateTrail(ticket, from)).await;
    match reply.map(|reply| reply.body) {
        Ok(ReplyBody::StateTrail(trail)) => {
            let points: Vec<_> = trail.points.iter().map(|p| json!([p.index, p.revision, p.hash])).collect();
            let body = json!({ "applied_index": trail.applied_index, "points": points });
            answer(StatusCode::OK, "application/json", body.to_string())
        }
        _ => refused(StatusCode::SERVICE_UNAVAILABLE, "the member is stopping"),
    }
}
