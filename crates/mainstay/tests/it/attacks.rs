//! Attacks described in published advisories of etcd, gRPC and HTTP/2, tried on a member.
//! `docs/security-advisories.md` lists all of them, including those that are tested elsewhere.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use api::authpb::permission;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::*;
use api::{Code, Rpc, Status, error};
use prost::Message as _;
use testkit::http2::{Connection, END_HEADERS, END_STREAM, HEADERS, call_block, frame, message};
use testkit::{TempDir, http1};

use crate::auth::{CHEAP, allow, secured};
use crate::client::Client;
use crate::member::Setup;
use crate::run;

fn put(key: &'static str, prev_kv: bool, lease: i64) -> request_op::Request {
    let put = PutRequest { key: key.into(), value: "v".into(), prev_kv, lease, ..PutRequest::default() };
    request_op::Request::RequestPut(put)
}

fn get(key: &'static str) -> request_op::Request {
    request_op::Request::RequestRange(RangeRequest { key: key.into(), ..RangeRequest::default() })
}

fn delete(key: &'static str) -> request_op::Request {
    request_op::Request::RequestDeleteRange(DeleteRangeRequest {
        key: key.into(),
        ..DeleteRangeRequest::default()
    })
}

/// Returns an operation nested in `depth` transactions. Transactions at odd depths are in the branch that is
/// not taken.
fn nested(depth: u32, request: request_op::Request) -> TxnRequest {
    let mut txn = TxnRequest { success: vec![RequestOp { request: Some(request) }], ..TxnRequest::default() };
    for level in 0..depth {
        let op = RequestOp { request: Some(request_op::Request::RequestTxn(txn)) };
        let (success, failure) = if level % 2 == 0 { (vec![op], Vec::new()) } else { (Vec::new(), vec![op]) };
        txn = TxnRequest { success, failure, ..TxnRequest::default() };
    }
    txn
}

async fn commit(client: &Client, txn: &TxnRequest) -> Result<TxnResponse, Status> {
    client.call(Rpc::KvTxn, txn).await
}

/// GHSA-rfx7-8w68-q57q and CVE-2026-44283: permissions are checked at every depth, in both branches, and also
/// for previous values and for leases.
#[test]
fn a_transaction_asks_for_what_is_inside_of_it() {
    let dir = TempDir::new("attacks-txn");
    let member = Setup::new(dir.path()).flag(CHEAP).start();
    run(async {
        let client = member.client().await;
        client.put("a", "secret").await.expect("authentication is off");
        let (root, bob) = secured(&client).await;
        let lease = root.grant(600).await.expect("root may");
        root.call::<PutResponse>(
            Rpc::KvPut,
            &PutRequest { key: "a".into(), value: "s".into(), lease, ..Default::default() },
        )
        .await
        .expect("root may");
        // A user who may only write [d, e) must not read previous values.
        allow(&root, "r", permission::Type::Write, "d", "e").await.expect("is allowed");
        root.put("d", "hidden").await.expect("root may");
        for depth in 0..4 {
            for refused in
                [get("a"), put("a", false, 0), delete("a"), put("d", true, 0), put("b", false, lease)]
            {
                let said = commit(&bob, &nested(depth, refused.clone())).await.map(drop);
                assert_eq!(said, Err(error::PERMISSION_DENIED), "{depth} deep: {refused:?}");
            }
            for allowed in [get("b"), put("b", true, 0), put("d", false, 0)] {
                commit(&bob, &nested(depth, allowed)).await.expect("is allowed");
            }
        }
        assert_eq!(root.get("a").await.expect("root may").map(|kv| kv.value), Some("s".into()));
    });
}

/// GHSA-xg4h-6gfc-h4m8: a watch must not cover more keys than its user may read.
#[test]
fn a_watch_from_one_key_on_needs_all_keys_behind_it() {
    let dir = TempDir::new("attacks-watch");
    let member = Setup::new(dir.path()).flag(CHEAP).start();
    run(async {
        let client = member.client().await;
        let (root, bob) = secured(&client).await;
        allow(&root, "r", permission::Type::Read, "k", "").await.expect("is allowed");
        // Log in again, because a token from before the permission change is refused as outdated.
        let bob = crate::auth::log_in(&bob, "bob", "bobpw").await.expect("is bob");
        for (key, end, is_allowed) in [
            ("k", "", true),
            ("k", "\0", false),
            ("k", "l", false),
            ("\0", "\0", false),
            ("b", "c", true),
            ("b", "d", false),
        ] {
            let create = WatchCreateRequest {
                key: key.into(),
                range_end: end.into(),
                ..WatchCreateRequest::default()
            };
            let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
            let (mut sender, mut receiver) = bob.open(Rpc::Watch).await.expect("opens");
            sender.send(request.encode_to_vec().into()).await.expect("is taken");
            let answer = receiver.next().await.expect("the stream goes on").expect("a response");
            let answer = WatchResponse::decode(answer).expect("is one");
            assert_eq!(!answer.canceled, is_allowed, "{key:?} to {end:?}: {answer:?}");
            if !is_allowed {
                assert!(answer.cancel_reason.contains("permission denied"), "{answer:?}");
            }
        }
    });
}

/// GHSA-q8m4-xhhv-38mg: calls that are not about keys are closed to unauthenticated callers, and calls that
/// change the cluster require root. CVE-2023-32082: the keys of a lease are shown only to users who may read
/// them.
#[test]
fn members_alarms_leases_and_maintenance_need_a_user() {
    let dir = TempDir::new("attacks-calls");
    let member = Setup::new(dir.path()).flag(CHEAP).start();
    run(async {
        let client = member.client().await;
        let (root, bob) = secured(&client).await;
        let lease = root.grant(600).await.expect("root may");
        root.call::<PutResponse>(
            Rpc::KvPut,
            &PutRequest { key: "secret".into(), lease, ..Default::default() },
        )
        .await
        .expect("root may");
        let raise = AlarmRequest { action: 1, member_id: 1, alarm: 1 };
        let compact = CompactionRequest { revision: 1, physical: false };
        let remove = MemberRemoveRequest { id: 1 };
        for (who, refusal) in [(&client, error::USER_EMPTY), (&bob, error::PERMISSION_DENIED)] {
            assert_eq!(
                who.call::<AlarmResponse>(Rpc::MaintenanceAlarm, &raise).await.map(drop),
                Err(refusal.clone())
            );
            assert_eq!(
                who.call::<CompactionResponse>(Rpc::KvCompact, &compact).await.map(drop),
                Err(refusal.clone())
            );
            let removed = who.call::<MemberRemoveResponse>(Rpc::ClusterMemberRemove, &remove).await.map(drop);
            assert_eq!(removed, Err(refusal.clone()));
            let moved = MoveLeaderRequest { target_id: 1 };
            let moved = who.call::<MoveLeaderResponse>(Rpc::MaintenanceMoveLeader, &moved).await.map(drop);
            assert_eq!(moved, Err(refusal.clone()));
            assert_eq!(who.hash_kv(0).await.map(drop), Err(refusal.clone()));
            let hash = who.call::<HashResponse>(Rpc::MaintenanceHash, &HashRequest {}).await.map(drop);
            assert_eq!(hash, Err(refusal.clone()));
            let (mut sender, mut receiver) = who.open(Rpc::MaintenanceSnapshot).await.expect("opens");
            sender.send(SnapshotRequest {}.encode_to_vec().into()).await.expect("is taken");
            assert_eq!(receiver.next().await.map(drop), Err(refusal));
        }
        // Any user may make these calls, as in etcd, but a caller without a user may not.
        let members = MemberListRequest { linearizable: false };
        let listed = client.call::<MemberListResponse>(Rpc::ClusterMemberList, &members).await.map(drop);
        assert_eq!(listed, Err(error::USER_EMPTY));
        assert_eq!(client.grant(60).await.map(drop), Err(error::USER_EMPTY));
        let leases =
            client.call::<LeaseLeasesResponse>(Rpc::LeaseLeases, &LeaseLeasesRequest {}).await.map(drop);
        assert_eq!(leases, Err(error::USER_EMPTY));
        // A lease with keys requires permission to read or write the keys.
        let tell = LeaseTimeToLiveRequest { id: lease, keys: true };
        for (who, refusal) in [(&client, error::USER_EMPTY), (&bob, error::PERMISSION_DENIED)] {
            let told = who.call::<LeaseTimeToLiveResponse>(Rpc::LeaseTimeToLive, &tell).await.map(drop);
            assert_eq!(told, Err(refusal));
        }
        let revoked = bob
            .call::<LeaseRevokeResponse>(Rpc::LeaseRevoke, &LeaseRevokeRequest { id: lease })
            .await
            .map(drop);
        assert_eq!(revoked, Err(error::PERMISSION_DENIED));
        assert!(root.get("secret").await.expect("root may").is_some());
    });
}

/// CVE-2021-28235: neither the pages for operators nor the log contain passwords or tokens.
#[test]
fn no_page_and_no_log_line_tells_a_secret() {
    let dir = TempDir::new("attacks-secrets");
    let member =
        Setup::new(dir.path()).flag(CHEAP).flag("--log-level=debug").flag("--metrics=extensive").start();
    let token = run(async {
        let client = member.client().await;
        let (root, _) = secured(&client).await;
        crate::auth::user_add(&root, "eve", "opensesame").await.expect("is added");
        let request = AuthenticateRequest { name: "eve".to_owned(), password: "opensesame".to_owned() };
        let answer: AuthenticateResponse = client.call(Rpc::Authenticate, &request).await.expect("is eve");
        let wrong = AuthenticateRequest { password: "opensesamf".to_owned(), ..request };
        client
            .call::<AuthenticateResponse>(Rpc::Authenticate, &wrong)
            .await
            .expect_err("the password is wrong");
        client.with_token(&format!("{}9", answer.token)).status().await.expect_err("the token is forged");
        answer.token
    });
    let pages = [
        "/metrics",
        "/debug/vars",
        "/debug/mainstay",
        "/debug/requests",
        "/debug/events",
        "/debug/pprof/",
        "/health",
    ];
    let shown: String = pages
        .iter()
        .map(|page| String::from_utf8_lossy(&http1::get(member.client_address(), page).body).into_owned())
        .collect();
    let said = shown + &member.said();
    for secret in ["rootpw", "bobpw", "opensesam", &token, "$2a$"] {
        assert!(!said.contains(secret), "{secret} is told");
    }
}

/// CVE-2026-33186: a path without its leading slash reaches no method.
#[test]
fn a_path_that_is_spelled_otherwise_reaches_nothing() {
    let dir = TempDir::new("attacks-path");
    let member = Setup::new(dir.path()).start();
    for path in [
        "etcdserverpb.KV/Put",
        "//etcdserverpb.KV/Put",
        "/etcdserverpb.KV//Put",
        "/etcdserverpb.KV/Put/",
        "/etcdserverpb.KV/Put?x",
        "/etcdserverpb.KV/%50ut",
        "/ETCDSERVERPB.KV/Put",
        "http://x/etcdserverpb.KV/Put",
        "*",
        "",
    ] {
        let mut raw = Connection::h2(member.client_address(), &[]);
        raw.send(&frame(HEADERS, END_HEADERS, 1, &call_block(path, &[])));
        // The request: field 1 is "k", and field 2 is "v".
        raw.send(&frame(0, END_STREAM, 1, &message(0, b"\x0a\x01k\x12\x01v")));
        raw.finish();
        raw.read_to_close();
    }
    run(async {
        let client = member.client().await;
        // A query string is not part of the path.
        assert!(client.get("k").await.expect("a member that serves").is_none_or(|kv| kv.version == 1));
    });
}

/// CVE-2020-15113: files and directories of a member are accessible to its own user only, even if the
/// directories existed before.
#[test]
fn directories_and_files_are_for_their_owner_alone() {
    let dir = TempDir::new("attacks-modes");
    let member = Setup::new(dir.path()).start();
    run(async { member.client().await.put("a", "b").await.expect("is put") });
    fn look(path: &Path) {
        let mode = path.symlink_metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
        if path.is_dir() {
            for entry in path.read_dir().expect("reads") {
                look(&entry.expect("an entry").path());
            }
        }
    }
    look(&dir.path().join("data"));
}

/// CVE-2018-1098, CVE-2018-1099, CVE-2018-5702: a request whose host name was rebound to a member is answered
/// only if the operator allows the name, and pages of other origins may read responses only if their origin
/// is allowed.
#[test]
fn other_hosts_and_origins_are_refused_if_the_operator_says_so() {
    let dir = TempDir::new("attacks-hosts");
    let member = Setup::new(dir.path())
        .flag("--host-whitelist=good.example,127.0.0.1")
        .flag("--cors=https://page.example:443")
        .start();
    let ask = |method: &str, path: &str, host: &str, origin: &str| {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nConnection: close\r\n\r\n"
        );
        let mut stream = http1::connect(member.client_address());
        stream.write_all(request.as_bytes()).expect("is sent");
        http1::read_answer(&mut stream)
    };
    for host in ["good.example", "good.example:99", "127.0.0.1:2379"] {
        let answer = ask("GET", "/version", host, "https://page.example:443");
        assert_eq!(answer.status, 200, "{host}");
        assert_eq!(answer.header("access-control-allow-origin"), Some("https://page.example:443"));
        let answer = ask("GET", "/health", host, "https://other.example:443");
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, None), "{host}");
    }
    for (method, path) in [
        ("GET", "/version"),
        ("GET", "/health"),
        ("POST", "/v3/kv/put"),
        ("OPTIONS", "/x"),
        ("GET", "//x"),
        ("GET", "/metrics"),
    ] {
        let answer = ask(method, path, "bad.example:2379", "https://page.example:443");
        assert_eq!(answer.status, 421, "{method} {path}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
        assert_eq!(answer.text(), MISDIRECTED, "as etcd's");
    }
    // gRPC is not used by browsers, so its host is not checked.
    run(async { member.client().await.put("a", "b").await.expect("is put") });
}

const MISDIRECTED: &str = "
etcd received your request, but the Host header was unrecognized.

To fix this, choose one of the following options:
- Enable TLS, then any HTTPS request will be allowed.
- Add the hostname you want to use to the whitelist in settings.
  - e.g. etcd --host-whitelist \"bad.example\"

This requirement has been added to help prevent \"DNS Rebinding\" attacks (CVE-2018-5702).

";

/// If the operator sets a limit, a client that repeats expensive calls is refused; its small calls and other
/// clients are not.
#[test]
fn expensive_calls_are_bounded_for_each_client_if_the_operator_says_so() {
    let dir = TempDir::new("attacks-expensive");
    let member = Setup::new(dir.path()).flag(CHEAP).flag("--max-expensive-calls=3").start();
    run(async {
        let client = member.client().await;
        let (root, bob) = secured(&client).await;
        let all =
            |limit| RangeRequest { key: "b".into(), range_end: "c".into(), limit, ..RangeRequest::default() };
        let (mut refused, mut calls) = (0, 0);
        while refused == 0 {
            calls += 1;
            assert!(calls < 1_000, "none of {calls} calls was refused");
            match bob.call::<RangeResponse>(Rpc::KvRange, &all(0)).await {
                Ok(_) => {}
                Err(said) => {
                    assert_eq!(
                        (said.code, &*said.message),
                        (Code::ResourceExhausted, "etcdserver: too many requests")
                    );
                    refused += 1;
                }
            }
        }
        assert!(calls > 3);
        for _ in 0..20 {
            bob.call::<RangeResponse>(Rpc::KvRange, &all(500)).await.expect("a page is not expensive");
            bob.put("b", "v").await.expect("a put is not expensive");
        }
        root.hash_kv(0).await.expect("root has made no calls");
    });
    let metrics = http1::get(member.client_address(), "/metrics").text().to_owned();
    assert!(metrics.contains("\nmainstay_expensive_calls_refused_total 1\n"), "it is counted");
}
