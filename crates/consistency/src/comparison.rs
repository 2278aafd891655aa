//! Provides the hashes with which members compare their data: computes the hashes of this member, and
//! requests those of the other members. `corruption` and `divergence` compare them. The crate `server`
//! answers the requests of other members.

use std::fmt::{self, Write as _};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::Status;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use machine::{Overtaken, StatePoint, StateTrail, range};
use mvcc::{HashWalk, RevisionError};
use numbers::{Index, Revision};
use peer::{RequestError, Target};
use serde_json::{Value, json};

use replica::core::STATE_TRAIL_POINTS_MAX;
use replica::long_reads::Reader;
use replica::shared::Shared;
use storage::kv_hash::KvHash;
use storage::values::LogValues;

/// HTTP path at which a member returns the hash of its store. Members that run etcd have the same path.
pub const HASH_KV: &str = "/members/hashkv";
/// HTTP path at which a member returns the hashes of its state after each of its last entries. Only Mainstay
/// has it.
pub const STATE_HASHES: &str = "/mainstay/state-hashes";

/// Version of the algorithm of the state hashes. Hashes of different versions must not be compared. Version 1
/// included the remaining times of leases.
const ALGORITHM: u64 = 2;
/// Number of key versions that are hashed with one snapshot of the store. After them, the computation checks
/// whether it should stop, and takes a new snapshot, so that no snapshot is kept for long.
const HASHED_PER_SLICE: usize = 4096;

/// Name of the HTTP header with the id of the cluster, in hexadecimal, to which a request or response
/// belongs.
pub const CLUSTER_ID: &str = "x-etcd-cluster-id";
/// etcd's error messages for a revision that has no hash. A member sends them as the reason, and recognizes
/// the reason of other members by them.
const COMPACTED: &str = "mvcc: required revision has been compacted";
const FUTURE: &str = "mvcc: required revision is a future revision";
/// etcd's error message for a request that was meant for another cluster.
pub const OTHER_CLUSTER: &str = "cluster ID mismatch";

/// A hash of all data up to a revision, with the same algorithm as etcd's call HashKV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// The hash.
    pub hash: u32,
    /// Compact revision at the time of hashing.
    pub compact_revision: Revision,
    /// Revision up to which the data is hashed.
    pub revision: Revision,
    /// Current revision of the store at the time of hashing.
    pub current_revision: Revision,
}

/// Reason why the state of this member cannot be hashed. Errors about revisions have etcd's messages.
#[derive(Debug)]
pub enum HashError {
    /// The revision was compacted, or the store has not reached it.
    Revision(RevisionError),
    /// The revision was compacted while it was being read.
    Overtaken(Overtaken),
    /// A value cannot be read.
    Read(Status),
    /// The caller has ended the computation early.
    Stopped,
    /// The thread for the hashing cannot be started.
    NoThread(io::Error),
    /// The hashing thread has ended without a result. Happens only if it panicked.
    ThreadEnded,
}

impl fmt::Display for HashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HashError::Revision(error) => {
                f.write_str(range::refused(*error).message.trim_start_matches("etcdserver: "))
            }
            HashError::Overtaken(error) => error.fmt(f),
            HashError::Read(status) => f.write_str(&status.message),
            HashError::Stopped => f.write_str("stopped"),
            HashError::NoThread(error) => write!(f, "cannot start a thread: {error}"),
            HashError::ThreadEnded => f.write_str("the hash could not be computed"),
        }
    }
}

impl std::error::Error for HashError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HashError::Revision(error) => Some(error),
            HashError::Read(status) => Some(status),
            HashError::NoThread(error) => Some(error),
            HashError::Overtaken(_) | HashError::Stopped | HashError::ThreadEnded => None,
        }
    }
}

/// The response of another member to a request for its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashAnswer {
    /// The member's hash.
    Hashed(Hashed),
    /// The member has compacted that revision.
    Compacted,
    /// The member has not reached that revision.
    Future,
    /// The member belongs to another cluster.
    OtherCluster,
    /// The member has returned no valid hash. Contains the reason.
    Nothing(String),
}

/// Returns the id of this member's cluster in hexadecimal, as it is in the header [`CLUSTER_ID`].
pub fn cluster_id(shared: &Shared) -> String {
    format!("{:x}", shared.member.identity.cluster_id)
}

/// Computes the hash of the data up to a revision; 0 means the newest one. This may take long, so it must not
/// run on a thread that serves clients. Setting `stop` to true ends it early.
///
/// # Errors
///
/// Returns an error if the revision was compacted or is in the future, if a value cannot be read, or if
/// `stop` was set.
pub fn hash_of(shared: &Arc<Shared>, revision: Revision, stop: &AtomicBool) -> Result<Hashed, HashError> {
    let began = Instant::now();
    let (state, published) = shared.read_long(Reader::Hash);
    let values = LogValues::new(shared.data.values.clone());
    let current_revision = state.moment().revision();
    let mut walk = HashWalk::new(&published.view.snapshot(), revision).map_err(HashError::Revision)?;
    drop(published);
    let (revision, compact_revision) = (walk.revision(), walk.compact_revision());
    let mut hash = KvHash::default();
    let mut failed = None;
    loop {
        let slice = state.slice().map_err(HashError::Overtaken)?;
        let done = walk.step(&slice.snapshot(), HASHED_PER_SLICE, |version| {
            if failed.is_none() {
                failed = hash.feed(version, &values).err();
            }
        });
        if done || failed.is_some() {
            break;
        }
        if stop.load(Ordering::Relaxed) {
            return Err(HashError::Stopped);
        }
    }
    if let Some(status) = failed {
        return Err(HashError::Read(status));
    }
    state.intact().map_err(HashError::Overtaken)?;
    shared.diagnostics.metrics.mvcc.hash_rev_duration.observe_seconds(began.elapsed());
    Ok(Hashed { hash: hash.finish(), compact_revision, revision, current_revision })
}

/// Returns the hash at a revision, for another member; 0 means the newest revision. If the revision is that
/// of one of the last compactions, its hash is already known. Otherwise the hash is computed on a separate
/// thread.
///
/// # Errors
///
/// Returns an error if the revision was compacted or is in the future, or if a value cannot be read.
pub async fn hash_at(shared: &Arc<Shared>, revision: Revision) -> Result<Hashed, HashError> {
    match hash_of_compaction(shared, revision).await {
        Some(hashed) => Ok(hashed),
        None => hash_elsewhere(shared, revision).await,
    }
}

/// Returns the hash of the compaction at this revision, and waits for it if it is being computed. Returns
/// `None` if none of the last compactions was at this revision, or if the computation has ended without a
/// hash.
async fn hash_of_compaction(shared: &Shared, revision: Revision) -> Option<Hashed> {
    let cached = shared.data.compaction_hashes.at(revision)?;
    let compact_revision = cached.compact_revision;
    let hash = cached.wait().await?;
    let current_revision = shared.state.load().view.snapshot().current_revision();
    Some(Hashed { hash, compact_revision, revision, current_revision })
}

/// Computes the hash at a revision on a separate thread, because the calling thread serves clients.
async fn hash_elsewhere(shared: &Arc<Shared>, revision: Revision) -> Result<Hashed, HashError> {
    if !shared.member.threads {
        return hash_of(shared, revision, &AtomicBool::new(false));
    }
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let hashing = Arc::clone(shared);
    std::thread::Builder::new()
        .name("hash".to_owned())
        .spawn(move || {
            // An error is ignored: it means that the caller no longer waits for the hash.
            let _ = sender.send(hash_of(&hashing, revision, &AtomicBool::new(false)));
        })
        .map_err(HashError::NoThread)?;
    receiver.await.unwrap_or(Err(HashError::ThreadEnded))
}

/// Requests the hash at a revision from all other members, in parallel. Returns each member's id with its
/// response.
pub async fn hashes_of_others(shared: &Shared, revision: Revision) -> Vec<(u64, HashAnswer)> {
    let cluster = cluster_id(shared);
    let body = Bytes::from(json!({ "revision": revision.0 }).to_string());
    let question = |_| {
        Request::get(HASH_KV)
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(CLUSTER_ID, cluster.as_str())
            .body(body.clone())
    };
    let answers = ask_others(shared, shared.member.limits.request_timeout, question).await;
    answers.into_iter().map(|(id, answer)| (id, read_hash(answer))).collect()
}

/// Decodes the response of a member, which may run etcd.
pub fn read_hash(answer: Result<Response<Bytes>, RequestError>) -> HashAnswer {
    let response = match answer {
        Ok(response) => response,
        Err(error) => return HashAnswer::Nothing(error.to_string()),
    };
    let text = String::from_utf8_lossy(response.body());
    match response.status() {
        StatusCode::OK => {}
        StatusCode::BAD_REQUEST if text.contains(COMPACTED) => return HashAnswer::Compacted,
        StatusCode::BAD_REQUEST if text.contains(FUTURE) => return HashAnswer::Future,
        StatusCode::PRECONDITION_FAILED if text.contains(OTHER_CLUSTER) => return HashAnswer::OtherCluster,
        status => return HashAnswer::Nothing(format!("{status}: {}", text.trim_end())),
    }
    let Ok(told) = serde_json::from_str::<Value>(&text) else {
        return HashAnswer::Nothing("the answer is not JSON".to_owned());
    };
    // A missing field has the value 0, because Go omits such fields.
    let hash = told.get("hash").map_or(Some(0), Value::as_u64).and_then(|hash| u32::try_from(hash).ok());
    let number = |value: &Value| if value.is_null() { Some(0) } else { value.as_i64() };
    match (
        hash,
        number(&told["compact_revision"]),
        number(&told["hash_revision"]),
        number(&told["header"]["revision"]),
    ) {
        (Some(hash), Some(compact_revision), Some(revision), Some(current_revision)) => {
            HashAnswer::Hashed(Hashed {
                hash,
                compact_revision: Revision(compact_revision),
                revision: Revision(revision),
                current_revision: Revision(current_revision),
            })
        }
        _ => HashAnswer::Nothing("the answer is not a hash".to_owned()),
    }
}

/// Sends a request to all other members with keys in parallel, and waits for their responses.
pub(crate) async fn ask_others(
    shared: &Shared,
    timeout: Duration,
    question: impl Fn(u64) -> http::Result<Request<Bytes>>,
) -> Vec<(u64, Result<Response<Bytes>, RequestError>)> {
    let own = shared.member.identity.member_id;
    let members = Arc::clone(&shared.state.load().members);
    let Some(peers) = shared.cluster.peers() else { return Vec::new() };
    let open: Vec<_> = members
        .by_id
        .values()
        // A witness has no keys to compare.
        .filter(|member| member.id != own && !member.peer_urls.is_empty() && !member.is_witness)
        .map(|member| {
            let asked = question(member.id).map_err(RequestError::from);
            (member.id, asked.map(|request| peers.request(Target::Member(member.id), request, timeout)))
        })
        .collect();
    let mut answers = Vec::with_capacity(open.len());
    for (id, asked) in open {
        answers.push((
            id,
            match asked {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            },
        ));
    }
    answers
}

/// Encodes the newest points of a trail, which is the list of a member's state hashes, as JSON for another
/// member.
pub fn write_trail(trail: &StateTrail) -> String {
    let newest = &trail.points[trail.points.len().saturating_sub(STATE_TRAIL_POINTS_MAX)..];
    let mut body = String::with_capacity(64 + newest.len() * 48);
    // Format the JSON without a library, because that is faster, and the leader requests it every two
    // seconds. Results are ignored, because writing to a `String` cannot fail.
    let _ =
        write!(body, "{{\"algorithm\":{ALGORITHM},\"applied_index\":{},\"points\":[", trail.applied_index);
    for (point, at) in newest.iter().zip(0..) {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(body, "{comma}[{},{},{}]", point.index, point.revision, point.hash);
    }
    body.push_str("]}");
    body
}

/// Decodes the output of [`write_trail`]. Returns `None` if `text` is anything else, or if its hashes have
/// another version.
pub fn read_trail(text: &[u8]) -> Option<StateTrail> {
    let told: Value = serde_json::from_slice(text).ok()?;
    if told["algorithm"].as_u64()? != ALGORITHM {
        return None;
    }
    let points = told["points"].as_array().filter(|points| points.len() <= STATE_TRAIL_POINTS_MAX)?;
    let point = |point: &Value| {
        let [index, revision, hash] = point.as_array()?.as_slice() else { return None };
        Some(StatePoint {
            index: Index(index.as_u64()?),
            revision: Revision(revision.as_i64()?),
            hash: hash.as_u64()?,
        })
    };
    let points: Vec<StatePoint> = points.iter().map(point).collect::<Option<_>>()?;
    let trail = StateTrail { applied_index: Index(told["applied_index"].as_u64()?), points };
    trail.points.is_sorted_by(|a, b| a.index < b.index).then_some(trail)
}

/// Requests the state hashes of all other members, in parallel. `from` returns for each member the log index
/// at which its hashes should begin. Members that return no valid hashes are left out, for example those that
/// run etcd.
pub async fn trails_of_others(
    shared: &Shared,
    timeout: Duration,
    from: impl Fn(u64) -> Index,
) -> Vec<(u64, StateTrail)> {
    let answers = ask_others(shared, timeout, |id| trail_question(shared, from(id))).await.into_iter();
    answers.filter_map(|(id, answer)| Some((id, trail_in(answer.ok()?)?))).collect()
}

/// Requests the state hashes of one other node, from this log index on. Returns `None` if it has returned no
/// valid hashes.
pub async fn trail_of(shared: &Shared, id: u64, timeout: Duration, from: Index) -> Option<StateTrail> {
    let request = trail_question(shared, from).ok()?;
    trail_in(shared.cluster.peers()?.request(Target::Member(id), request, timeout).await.ok()?)
}

fn trail_question(shared: &Shared, from: Index) -> http::Result<Request<Bytes>> {
    // Send the cluster id, so that members of another cluster refuse the request. Due to a wrong
    // configuration, the address of a member may belong to another cluster, and a difference from its data
    // must not raise an alarm.
    Request::get(format!("{STATE_HASHES}?from={from}"))
        .header(CLUSTER_ID, cluster_id(shared))
        .body(Bytes::new())
}

fn trail_in(response: Response<Bytes>) -> Option<StateTrail> {
    if response.status() == StatusCode::OK { read_trail(response.body()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_etcd_are_understood() {
        let answer = |status: u16, body: &'static str| {
            let mut response = Response::new(Bytes::from_static(body.as_bytes()));
            *response.status_mut() = StatusCode::from_u16(status).expect("is a status");
            read_hash(Ok(response))
        };
        // The text is that of etcd 3.7.1.
        let whole = r#"{"header":{"revision":1},"hash":1084519789,"compact_revision":-1,"hash_revision":1}"#;
        let hashed = Hashed {
            hash: 1_084_519_789,
            compact_revision: Revision(-1),
            revision: Revision(1),
            current_revision: Revision(1),
        };
        assert_eq!(answer(200, whole), HashAnswer::Hashed(hashed));
        let none = r#"{"header":{},"compact_revision":2}"#;
        let hashed = Hashed {
            hash: 0,
            compact_revision: Revision(2),
            revision: Revision(0),
            current_revision: Revision(0),
        };
        assert_eq!(answer(200, none), HashAnswer::Hashed(hashed));
        assert_eq!(answer(400, "mvcc: required revision has been compacted\n"), HashAnswer::Compacted);
        assert_eq!(answer(400, "mvcc: required revision is a future revision\n"), HashAnswer::Future);
        assert_eq!(answer(412, "cluster ID mismatch\n"), HashAnswer::OtherCluster);
        for (status, body) in
            [(404, "404 page not found\n"), (400, "bad path"), (200, "ok"), (200, r#"{"hash":-1}"#)]
        {
            assert!(matches!(answer(status, body), HashAnswer::Nothing(_)), "{status} {body}");
        }
        let stopping = HashAnswer::Nothing("the member is stopping".to_owned());
        assert_eq!(read_hash(Err(RequestError::Stopping)), stopping);
    }

    #[test]
    fn trails_are_read_back_and_bounded() {
        let point = |index: u64| StatePoint {
            index: Index(index),
            revision: Revision(index as i64 * 2),
            hash: u64::MAX - index,
        };
        let trail = StateTrail { applied_index: Index(9), points: [3, 5, 8].map(point).to_vec() };
        assert_eq!(read_trail(write_trail(&trail).as_bytes()), Some(trail.clone()));
        let nothing = StateTrail { applied_index: Index(9), points: Vec::new() };
        assert_eq!(read_trail(write_trail(&nothing).as_bytes()), Some(nothing));

        let long = StateTrail { applied_index: Index(5_000), points: (1..=5_000).map(point).collect() };
        let read = read_trail(write_trail(&long).as_bytes()).expect("is one");
        assert_eq!(read.points, long.points[5_000 - STATE_TRAIL_POINTS_MAX..], "the newest");

        let text = write_trail(&trail);
        for (part, other) in [
            ("\"algorithm\":2", "\"algorithm\":1"),
            ("\"algorithm\":2,", ""),
            ("[3,6,", "[8,6,"),
            ("[3,6,", "[3,"),
            ("[3,6,", "[-3,6,"),
            ("]}", ""),
        ] {
            let changed = text.replacen(part, other, 1);
            assert_ne!(changed, text);
            assert_eq!(read_trail(changed.as_bytes()), None, "{changed}");
        }
    }
}
