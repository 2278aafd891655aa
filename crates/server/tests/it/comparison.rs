//! Requests with which members compare their data, and the HTTP responses to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::http::{Request, Response};
use bytes::Bytes;
use consistency::comparison::{self, HashAnswer, Hashed};
use machine::{StatePoint, StateTrail};
use mainstay_server::peering::hashes;
use numbers::{Index, Revision, Term};
use replica::core::STATE_TRAIL_POINTS_MAX as POINTS_MAX;
use replica::core::{CoreRequest, PeerRequest, Reply, ReplyBody, RequestId};
use replica::shared::Shared;

use crate::http::{Given, Served, put, served};

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn three_keys() -> Served {
    served(Given { entries: vec![put("a"), put("b"), put("a")], ..Given::default() }, |_| {})
}

fn ask_hash(served: &Served, cluster: Option<&str>, body: &'static str) -> Response<Bytes> {
    let mut request = Request::get(comparison::HASH_KV);
    if let Some(cluster) = cluster {
        request = request.header("X-Etcd-Cluster-ID", cluster);
    }
    run(hashes::hash_kv(&served.shared, &request.body(Bytes::from_static(body.as_bytes())).unwrap()))
}

#[test]
fn a_hash_is_told_as_etcd_tells_it() {
    let served = three_keys();
    let own = |revision| comparison::hash_of(&served.shared, revision, &AtomicBool::new(false)).unwrap();
    for (cluster, body, revision) in [
        (Some("c1"), r#"{"revision":0}"#, 0),
        (None, "{}", 0),
        (Some(""), r#"{"revision":2}"#, 2),
        (Some("c1"), r#"{"revision":4}"#, 4),
    ] {
        let response = ask_hash(&served, cluster, body);
        assert_eq!(response.status(), 200, "{body}");
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["x-etcd-cluster-id"], "c1");
        let hashed = own(Revision(revision));
        assert_eq!(hashed.current_revision, Revision(4));
        assert_eq!(comparison::read_hash(Ok(response)), HashAnswer::Hashed(hashed), "{body}");
    }
    let Hashed { revision, compact_revision, .. } = own(Revision(0));
    assert_eq!((revision, compact_revision), (Revision(4), Revision::NEVER_COMPACTED));
    assert_ne!(own(Revision(2)).hash, own(Revision(3)).hash);
    for (cluster, body, status, text) in [
        ("c2", "{}", 412, "cluster ID mismatch\n"),
        ("c1", "", 400, "error unmarshalling request\n"),
        ("c1", "{", 400, "error unmarshalling request\n"),
        ("c1", r#"{"revision":5}"#, 400, "mvcc: required revision is a future revision\n"),
    ] {
        let response = ask_hash(&served, Some(cluster), body);
        assert_eq!((response.status().as_u16(), &response.body()[..]), (status, text.as_bytes()));
    }
    assert!(
        comparison::hash_of(&served.shared, Revision(0), &AtomicBool::new(true)).is_ok(),
        "nothing to stop in"
    );
}

/// Answers requests for the state trail as the core does, until `stop` is set.
fn answer_trails(shared: &Shared, trail: &StateTrail, stop: &AtomicBool) {
    shared.core.inbox.receive_here();
    let mut asks = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        shared.core.inbox.drain(&mut asks, Duration::from_millis(20), 1);
        for ask in asks.drain(..) {
            let CoreRequest::Outside(sender, ask) = ask else { panic!("another question") };
            let CoreRequest::Peer(PeerRequest::StateTrail(request_id, from)) =
                ask(RequestId { shard: 0, slot: 0, generation: 0 })
            else {
                panic!("another question")
            };
            let points = trail.points.iter().copied().filter(|point| point.index >= from).collect();
            let body = ReplyBody::StateTrail(StateTrail { points, ..*trail });
            let _ = sender.send(Reply { request_id, revision: Revision(1), raft_term: Term(1), body });
        }
    }
}

#[test]
fn hashes_of_the_state_are_told_from_an_entry_on() {
    let served = three_keys();
    let point =
        |index: u64| StatePoint { index: Index(index), revision: Revision(index as i64), hash: index << 40 };
    let trail = StateTrail { applied_index: Index(3_000), points: (1..=2_500).map(point).collect() };
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| answer_trails(&served.shared, &trail, &stop));
        let ask = |query: &str| {
            let request = Request::get(format!("{}{query}", comparison::STATE_HASHES)).body(Bytes::new());
            run(hashes::state_hashes(&served.shared, &request.unwrap()))
        };
        for (query, first) in [
            ("?from=2400", 2_400),
            ("?x=1&from=2500", 2_500),
            ("", 2_501 - POINTS_MAX as u64),
            ("?from=10", 2_501 - POINTS_MAX as u64),
        ] {
            let response = ask(query);
            assert_eq!(response.status(), 200);
            let read = comparison::read_trail(response.body()).unwrap();
            assert_eq!(read.applied_index, Index(3_000));
            assert_eq!(read.points, (first..=2_500).map(point).collect::<Vec<_>>(), "{query}");
        }
        assert_eq!(ask("?from=x").status(), 400);
        assert_eq!(ask("?from=-1").status(), 400);
        stop.store(true, Ordering::SeqCst);
    });
    served.shared.core.inbox.close();
    let request = Request::get(comparison::STATE_HASHES).body(Bytes::new()).unwrap();
    assert_eq!(run(hashes::state_hashes(&served.shared, &request)).status(), 503, "the core has ended");
}
