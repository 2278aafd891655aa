//! Statuses and texts, as in etcd 3.7.

use prost::Message as _;

use crate::kit::{self, heartbeat};
use crate::raw::{self, Answer, Headers, headers, request, with};

#[track_caller]
fn assert_text(answer: &Answer, status: u16, text: &str) {
    assert_eq!((answer.status, answer.text()), (status, text));
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
}

#[test]
fn streams_are_refused_as_etcd_refuses_them() {
    let one = kit::member(1);
    one.peers.set_members(vec![(2, vec![kit::nowhere()])]);
    one.recorder.with(|heard| heard.removed_ids.push(9));
    let good = || with(headers("2"), "X-Raft-To", "1");
    let get = |path: &str, headers: Headers| request(&one.url, "GET", path, &headers, b"");
    let cases = [
        ("/raft/stream/foo/2", good(), 404, "invalid path\n"),
        ("/raft/stream/message", good(), 404, "invalid path\n"),
        ("/raft/stream/message/2/3", good(), 404, "invalid path\n"),
        ("/raft/stream/message/", good(), 404, "invalid from\n"),
        ("/raft/stream/msgapp/zz", good(), 404, "invalid from\n"),
        ("/raft/stream/message/77", good(), 404, "error sender not found\n"),
        ("/raft/stream/message/2", with(good(), "X-Raft-To", "3"), 412, "to field mismatch\n"),
        ("/raft/stream/message/2", with(good(), "X-Raft-To", ""), 412, "to field mismatch\n"),
        ("/raft/stream/message/2", with(good(), "X-Etcd-Cluster-ID", "c2"), 412, "cluster ID mismatch\n"),
        ("/raft/stream/message/2", with(good(), "X-Server-Version", ""), 412, "incompatible version\n"),
        ("/raft/stream/message/2", with(good(), "X-Server-Version", "2.3.8"), 412, "incompatible version\n"),
        (
            "/raft/stream/message/2",
            with(good(), "X-Min-Cluster-Version", "3.8.0"),
            412,
            "incompatible version\n",
        ),
    ];
    for (path, headers, status, text) in cases {
        let answer = get(path, headers);
        assert_text(&answer, status, text);
        assert_eq!(answer.header("x-etcd-cluster-id"), Some("c1"), "{path}");
        assert_eq!(answer.header("x-server-version"), Some("3.7.1"), "{path}");
    }
    let gone = get("/raft/stream/message/9", good());
    assert_eq!((gone.status, gone.text()), (410, ""));

    let posted = request(&one.url, "POST", "/raft/stream/message/2", &good(), b"");
    assert_text(&posted, 405, "Method Not Allowed\n");
    assert_eq!(posted.header("allow"), Some("GET"));
    assert_eq!(posted.header("x-etcd-cluster-id"), None);
}

#[test]
fn pipelined_messages_are_refused_as_etcd_refuses_them() {
    let one = kit::member(1);
    one.recorder.with(|heard| heard.removed_ids.push(9));
    let post = |headers: Headers, body: &[u8]| request(&one.url, "POST", "/raft", &headers, body);
    let bytes = |from, to| heartbeat(from, to, 5).encode_to_vec();

    let taken = post(headers("2"), &bytes(2, 1));
    assert_eq!((taken.status, taken.text()), (204, ""));
    assert_eq!(taken.header("x-etcd-cluster-id"), Some("c1"));
    assert_eq!(one.recorder.wait_messages(1), [heartbeat(2, 1, 5)]);

    assert_text(&post(headers("2"), b"xyz"), 400, "error unmarshalling raft message\n");
    assert_text(&post(headers("2"), &bytes(2, 3)), 500, "error processing raft message\n");
    assert_text(&post(headers("2"), b""), 500, "error processing raft message\n");
    assert_text(
        &post(with(headers("2"), "X-Etcd-Cluster-ID", "c2"), &bytes(2, 1)),
        412,
        "cluster ID mismatch\n",
    );
    assert_text(
        &post(with(headers("2"), "X-Server-Version", "1.0.0"), &bytes(2, 1)),
        412,
        "incompatible version\n",
    );
    let removed = post(headers("9"), &bytes(9, 1));
    assert_eq!(
        (removed.status, removed.text()),
        (403, "{\"message\":\"cannot process message from removed member\"}")
    );
    assert_eq!(removed.header("content-type"), Some("application/json"));

    let got = request(&one.url, "GET", "/raft", &headers("2"), b"");
    assert_text(&got, 405, "Method Not Allowed\n");
    assert_eq!(got.header("allow"), Some("POST"));
    let snapshot = kit::message(api::raftpb::MessageType::MsgSnap, 2, 1, 5).encode_to_vec();
    assert_text(&post(headers("2"), &snapshot), 400, "wrong raft message type\n");
    assert_eq!(one.recorder.with(|heard| heard.messages.len()), 0);
}

#[test]
fn probes_and_other_paths_are_answered() {
    let one = kit::member(1);
    let probed = request(&one.url, "GET", "/raft/probing", &[], b"");
    assert_eq!((probed.status, probed.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    assert!(probed.text().starts_with("{\"OK\":true,\"Now\":\"2") && probed.text().ends_with("Z\"}\n"));
    let echoed = request(&one.url, "POST", "/echo", &[], b"hello");
    assert_eq!((echoed.status, echoed.text()), (200, "hello"));
    for path in ["/", "/raft/", "/raft/stream", "/raft/probing/x", "/members"] {
        assert_eq!(request(&one.url, "GET", path, &[], b"").status, 404, "{path}");
    }
    let large = vec![b'x'; (1 << 20) + 1];
    assert_text(&request(&one.url, "POST", "/echo", &[], &large), 413, "request body too large\n");
    assert_eq!(request(&one.url, "POST", "/echo", &[], &large[1..]).body.len(), 1 << 20);
}

#[test]
fn a_removed_member_is_told_and_its_log_says_so_once() {
    let (one, two) = (kit::member(1), kit::member(2));
    two.recorder.with(|heard| heard.removed_ids.push(1));
    one.peers.set_members(vec![(2, vec![two.url.clone()])]);
    one.recorder.wait("removed", |heard| (heard.removed > 0).then_some(()));
    // The pipeline receives the refusal too.
    one.peers.send(vec![heartbeat(1, 2, 3)]);
    one.recorder.wait("unreachable", |heard| heard.unreachable.contains(&2).then_some(()));
    let said = |line: &&String| line.contains("reports that this member was removed");
    assert_eq!(one.recorder.with(|heard| heard.lines.iter().filter(said).count()), 1);
    assert_eq!(two.recorder.with(|heard| heard.messages.len()), 0);
}

#[test]
fn members_of_different_clusters_do_not_meet() {
    let ((l1, u1), (l2, u2)) = (kit::listen(), kit::listen());
    let one = kit::member_at(1, 0xc1, l1, &u1, kit::TIMEOUTS);
    let two = kit::member_at(2, 0xc2, l2, &u2, kit::TIMEOUTS);
    kit::introduce(&[&one, &two]);
    kit::wait_log(&one, "cannot dial a stream", 2, "cluster ID mismatch");
    kit::wait_log(&two, "cannot dial a stream", 1, "cluster ID mismatch");
    one.peers.send(vec![heartbeat(1, 2, 3)]);
    one.recorder.wait("unreachable", |heard| heard.unreachable.contains(&2).then_some(()));
    assert_eq!(two.recorder.with(|heard| heard.messages.len()), 0);
    assert!(one.peers.active_since(2).is_none());
}

#[test]
fn a_url_that_needs_tls_is_refused_without_settings_for_it() {
    let one = kit::member(1);
    one.peers.set_members(vec![(2, vec!["https://127.0.0.1:1".to_owned()])]);
    kit::wait_log(&one, "cannot use a peer URL", 2, "this member has no TLS settings");
    one.peers.send(vec![heartbeat(1, 2, 3)]);
    one.recorder.wait("unreachable", |heard| (heard.unreachable == [2]).then_some(()));
    assert!(raw::connect(&one.url).peer_addr().is_ok());
}
