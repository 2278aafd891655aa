//! Differences from etcd that COMPAT.md lists and that belong to no other subject, each shown by a real member.

use std::io::Write as _;
use std::time::Duration;

use api::etcdserverpb::*;
use api::{Code, Rpc, error};
use prost::Message as _;

use testkit::http2::{
    Connection, DATA, END_HEADERS, END_STREAM, HEADERS, block, call, call_block, frame, message,
};
use testkit::{TempDir, http1};

use crate::client::ALL;
use crate::cluster::Cluster;
use crate::member::Setup;
use crate::{filler, run};

/// COMPAT-2: etcd's server crashes.
#[test]
fn an_alarm_request_with_an_unknown_action_is_invalid() {
    let dir = TempDir::new("alarm-action");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        for action in [3, -1, i32::MAX] {
            let request = AlarmRequest { action, ..AlarmRequest::default() };
            let refused = client.call::<AlarmResponse>(Rpc::MaintenanceAlarm, &request).await;
            let refused = refused.expect_err("the action is unknown");
            assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
            assert_eq!(refused.message, format!("etcdserver: unknown alarm action {action}"));
        }
        client.put("k", "v").await.expect("the member serves");
    });
    member.stop();
}

/// COMPAT-12: etcd repeats the content type of the request.
#[test]
fn the_content_type_of_a_response_is_constant() {
    let dir = TempDir::new("content-type");
    let member = Setup::new(dir.path()).start();
    for content_type in ["application/grpc", "application/grpc+proto"] {
        let mut connection = Connection::greedy(member.client_address());
        let headers = block(&[
            (":method", "POST"),
            (":scheme", "http"),
            (":path", Rpc::KvRange.path()),
            (":authority", "test"),
            ("content-type", content_type),
            ("te", "trailers"),
        ]);
        let range = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        connection.send(&frame(HEADERS, END_HEADERS, 1, &headers));
        connection.send(&frame(DATA, END_STREAM, 1, &message(0, &range.encode_to_vec())));
        let answer = connection.next_of(HEADERS).payload;
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains("application/grpc") && !text.contains("+proto"), "{content_type}: {text:?}");
    }
    member.stop();
}

/// COMPAT-13: etcd serves a unary call after its first message.
#[test]
fn a_unary_call_is_served_once_its_client_has_ended_its_side() {
    let dir = TempDir::new("half-closed");
    let member = Setup::new(dir.path()).start();
    let mut connection = Connection::greedy(member.client_address());
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    connection.send(&frame(HEADERS, END_HEADERS, 1, &call_block(Rpc::KvPut.path(), &[])));
    connection.send(&frame(DATA, 0, 1, &message(0, &put.encode_to_vec())));
    let count = |connection: &mut Connection, stream: u32| {
        let range = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        connection.send(&call(stream, Rpc::KvRange.path(), &range.encode_to_vec()));
        let data = connection.next_of(DATA);
        assert_eq!(data.stream, stream, "nothing else is answered");
        RangeResponse::decode(&data.payload[5..]).expect("a response").count
    };
    // A later put of the same connection is answered, so an earlier one that was proposed would be applied.
    let other = PutRequest { key: "other".into(), ..PutRequest::default() };
    connection.send(&call(3, Rpc::KvPut.path(), &other.encode_to_vec()));
    assert_eq!(connection.next_of(DATA).stream, 3, "nothing else is answered");
    assert_eq!(count(&mut connection, 5), 0);
    connection.send(&frame(DATA, END_STREAM, 1, &[]));
    assert_eq!(connection.next_of(DATA).stream, 1, "the put is answered");
    assert_eq!(count(&mut connection, 7), 1);
    member.stop();
}

/// COMPAT-18: etcd compresses the metrics on request.
#[test]
fn the_metrics_are_not_compressed() {
    let dir = TempDir::new("plain-metrics");
    let member = Setup::new(dir.path()).start();
    let headers = [("Accept-Encoding", "gzip")];
    let answer = http1::request(member.client_address(), "GET", "/metrics", &headers, b"");
    assert_eq!((answer.status, answer.header("content-encoding")), (200, None));
    assert!(answer.text().contains("etcd_server_has_leader 1"));
    member.stop();
}

/// COMPAT-26: in etcd, members that restart together cannot answer each other's check.
#[test]
fn members_that_restart_together_check_each_other() {
    let flags = ["--feature-gates=InitialCorruptCheck=true"];
    let mut cluster = Cluster::start("initial-check", 3, &flags);
    let ids = run(async {
        cluster.put(0, "k", "v").await;
        let mut ids = Vec::new();
        for at in 0..3 {
            let header = cluster.client(at).await.status().await.expect("a status").header;
            ids.push(format!("{:x}", header.expect("has a header").member_id));
        }
        ids
    });
    for at in 0..3 {
        cluster.kill(at);
    }
    cluster.start_all();
    // Warnings that another member's hash differs or could not be compared.
    let warnings = |at: usize| -> String {
        let member = cluster.member(at);
        member.wait_for("initial corruption checking passed; no corruption");
        let said = member.said();
        said.lines().filter(|line| line.contains("local-member-hash")).collect()
    };
    let warnings: Vec<String> = (0..3).map(warnings).collect();
    // A member that is still behind cannot answer, but it compares itself once it has caught up. So of two
    // members at least one has compared both.
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        let both = warnings[a].contains(&ids[b]) && warnings[b].contains(&ids[a]);
        assert!(!both, "{a} and {b}: {warnings:?}");
    }
}

/// COMPAT-27: in etcd, the removal ends the cluster.
#[test]
fn the_last_voter_cannot_be_removed() {
    let dir = TempDir::new("last-voter");
    let member = Setup::new(dir.path()).flag("--strict-reconfig-check=false").start();
    run(async {
        let client = member.client().await;
        let id = client.members().await.expect("a list")[0].id;
        let request = MemberRemoveRequest { id };
        let refused = client.call::<MemberRemoveResponse>(Rpc::ClusterMemberRemove, &request).await;
        assert_eq!(refused.map(drop), Err(error::MEMBER_NOT_ENOUGH_STARTED));
        client.put("k", "v").await.expect("the member serves");
    });
    member.stop();
}

/// COMPAT-46: etcd waits 30 s for each host name that cannot be resolved.
#[test]
fn host_names_that_cannot_be_resolved_do_not_delay_a_new_cluster() {
    let dir = TempDir::new("no-such-host");
    let url = "http://no-such-host.invalid:2380";
    let setup = Setup::new(dir.path())
        .flag(format!("--initial-advertise-peer-urls={url}"))
        .flag(format!("--initial-cluster=m={url}"));
    let member = setup.start();
    // A start takes less than a second.
    assert!(member.started_in < Duration::from_secs(20), "{:?}", member.started_in);
    run(async {
        let client = member.client().await;
        assert_eq!(client.members().await.expect("a list")[0].peer_urls, [url]);
    });
    member.stop();
    // Names are not resolved to find out whether two URLs are the same: the texts have to match.
    let refused = Setup::new(&dir.join("other"))
        .flag("--initial-advertise-peer-urls=http://127.0.0.1:2380")
        .flag("--initial-cluster=m=http://localhost:2380")
        .refused();
    assert!(refused.contains("http://localhost:2380"), "{refused}");
}

/// COMPAT-78: etcd sends up to 2 GiB.
#[test]
fn a_watch_whose_revision_is_larger_than_a_quarter_of_the_memory_for_clients_ends() {
    let dir = TempDir::in_memory("large-revision");
    let member = Setup::new(dir.path()).flag(format!("--client-memory-bytes={}", 64 << 20)).start();
    run(async {
        let client = member.client().await;
        let watch = |prev_kv| WatchCreateRequest {
            key: ALL.into(),
            range_end: ALL.into(),
            prev_kv,
            ..WatchCreateRequest::default()
        };
        // The previous values of one deletion are 20 MiB; without them its events are small.
        for number in 0..20 {
            client.put(format!("k{number:02}"), filler(number, 1 << 20)).await.expect("is written");
        }
        let mut small = client.watch(watch(false)).await.expect("a watch");
        let mut large = client.watch(watch(true)).await.expect("a watch");
        let all = DeleteRangeRequest { key: ALL.into(), range_end: ALL.into(), ..Default::default() };
        let _: DeleteRangeResponse = client.call(Rpc::KvDeleteRange, &all).await.expect("is deleted");
        assert_eq!(small.next().await.expect("the events").events.len(), 20);
        let ended = large.next().await.expect_err("the stream ends");
        assert_eq!(ended.code, Code::ResourceExhausted, "{ended}");
        assert!(ended.message.starts_with("grpc: trying to send message larger than max ("), "{ended}");
        client.put("k", "v").await.expect("the member serves");
    });
    member.stop();
}

/// COMPAT-138: etcd's gateway serves streams over WebSockets too.
#[test]
fn the_gateway_answers_an_upgrade_request_like_any_other() {
    let dir = TempDir::new("no-websocket");
    let member = Setup::new(dir.path()).start();
    let upgrade = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let address = member.client_address();
    let answer = http1::request(address, "GET", "/v3/watch", &upgrade, b"");
    assert_eq!((answer.status, answer.text()), (501, r#"{"code":12,"message":"Method Not Allowed"}"#));
    let answer = http1::request(address, "POST", "/v3/kv/range", &upgrade, br#"{"key":"Zm9v"}"#);
    assert_eq!((answer.status, answer.header("upgrade")), (200, None));
    member.stop();
}

/// COMPAT-140: in etcd, calls of the gateway come from the member itself.
#[test]
fn the_audit_log_names_the_client_of_a_json_call() {
    let dir = TempDir::new("audit-json");
    let file = dir.join("audit.log");
    let member = Setup::new(dir.path()).flag(format!("--audit-log={}", file.display())).start();
    let mut stream = http1::connect(member.client_address());
    let own = stream.local_addr().expect("an address");
    let body = br#"{"key":"Zm9v","value":"YmFy"}"#;
    let length = body.len().to_string();
    let mut request = http1::head("POST", "/v3/kv/put", &[("Content-Length", &length)]);
    request.extend_from_slice(body);
    stream.write_all(&request).expect("is sent");
    assert_eq!(http1::read_answer(&mut stream).status, 200);
    member.stop();
    let text = std::fs::read_to_string(file).expect("is there");
    let line = text.lines().find(|line| line.contains("KV/Put")).expect("the put has a line");
    assert!(line.contains(&format!("\"remote\":\"{own}\"")), "{own}: {line}");
}
