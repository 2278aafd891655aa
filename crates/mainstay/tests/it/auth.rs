//! Users, roles and tokens, end to end.

use api::authpb::{Permission, permission};
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::*;
use api::v3electionpb::*;
use api::v3lockpb::*;
use api::{Code, Rpc, Status, error};
use bytes::Bytes;
use prost::Message as _;
use testkit::TempDir;

use crate::client::Client;
use crate::member::Setup;
use crate::run;

/// A fast hash, since these tests do not measure bcrypt.
pub const CHEAP: &str = "--bcrypt-cost=4";

pub async fn user_add(client: &Client, name: &str, password: &str) -> Result<(), Status> {
    let request = AuthUserAddRequest {
        name: name.to_owned(),
        password: password.to_owned(),
        ..AuthUserAddRequest::default()
    };
    client.call::<AuthUserAddResponse>(Rpc::AuthUserAdd, &request).await.map(drop)
}

async fn grant_role(client: &Client, user: &str, role: &str) -> Result<(), Status> {
    let request = AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
    client.call::<AuthUserGrantRoleResponse>(Rpc::AuthUserGrantRole, &request).await.map(drop)
}

pub async fn allow(
    client: &Client,
    role: &str,
    kind: permission::Type,
    key: &str,
    end: &str,
) -> Result<(), Status> {
    let perm =
        Permission { perm_type: kind as i32, key: key.to_owned().into(), range_end: end.to_owned().into() };
    let request = AuthRoleGrantPermissionRequest { name: role.to_owned(), perm: Some(perm) };
    client.call::<AuthRoleGrantPermissionResponse>(Rpc::AuthRoleGrantPermission, &request).await.map(drop)
}

async fn disallow(client: &Client, role: &str, key: &str, end: &str) -> Result<(), Status> {
    let request = AuthRoleRevokePermissionRequest {
        role: role.to_owned(),
        key: key.to_owned().into(),
        range_end: end.to_owned().into(),
    };
    client.call::<AuthRoleRevokePermissionResponse>(Rpc::AuthRoleRevokePermission, &request).await.map(drop)
}

/// Authenticates, and returns a client that presents the token.
pub async fn log_in(client: &Client, name: &str, password: &str) -> Result<Client, Status> {
    let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
    let answer: AuthenticateResponse = client.call(Rpc::Authenticate, &request).await?;
    Ok(client.with_token(&answer.token))
}

/// Enables authentication, with root, and with bob who may read and write [b, c). Returns root's client and bob's.
pub async fn secured(client: &Client) -> (Client, Client) {
    add_users(client).await;
    enable(client).await;
    let root = log_in(client, "root", "rootpw").await.expect("is root");
    let bob = log_in(client, "bob", "bobpw").await.expect("is bob");
    (root, bob)
}

async fn enable(client: &Client) {
    client.call::<AuthEnableResponse>(Rpc::AuthEnable, &AuthEnableRequest {}).await.expect("is enabled");
}

async fn add_users(client: &Client) {
    user_add(client, "root", "rootpw").await.expect("is added");
    grant_role(client, "root", "root").await.expect("is granted");
    user_add(client, "bob", "bobpw").await.expect("is added");
    let role = AuthRoleAddRequest { name: "r".to_owned() };
    client.call::<AuthRoleAddResponse>(Rpc::AuthRoleAdd, &role).await.expect("is added");
    allow(client, "r", permission::Type::Readwrite, "b", "c").await.expect("is allowed");
    grant_role(client, "bob", "r").await.expect("is granted");
}

#[test]
fn nobody_gets_in_who_should_not() {
    let dir = TempDir::new("auth");
    let member = Setup::new(dir.path()).flag(CHEAP).start();
    run(async {
        let client = member.client().await;
        client.put("a", "secret").await.expect("authentication is off");
        let (root, bob) = secured(&client).await;
        assert_eq!(client.get("a").await.map(drop), Err(error::USER_EMPTY));
        assert_eq!(client.put("b", "v").await, Err(error::USER_EMPTY));
        assert_eq!(client.get_local("b").await.map(drop), Err(error::USER_EMPTY), "nor what may be stale");
        assert_eq!(bob.get("a").await.map(drop), Err(error::PERMISSION_DENIED));
        assert_eq!(bob.put("a", "v").await, Err(error::PERMISSION_DENIED));
        assert_eq!(bob.delete("a").await, Err(error::PERMISSION_DENIED));
        bob.put("b", "v").await.expect("is allowed");
        assert_eq!(bob.get("b").await.expect("is allowed").map(|kv| kv.value), Some("v".into()));
        assert_eq!(root.get("a").await.expect("root may").map(|kv| kv.value), Some("secret".into()));
        // The page for the doctor names the keys of large values, but not while authentication is enabled.
        root.put("private", vec![b'v'; 1 << 20]).await.expect("root may");
        let page = testkit::http1::get(member.client_address(), "/debug/mainstay").text().to_owned();
        assert!(page.contains("\"clients\"") && !page.contains("private"), "{page}");
        // The lists must be absent and not empty, because an empty list would tell the doctor that there are
        // no such keys.
        assert!(!page.contains("large_values") && !page.contains("expensive_ranges"), "{page}");
        // Calls that are not about keys.
        assert_eq!(bob.compact(2, false).await.map(drop), Err(error::PERMISSION_DENIED));
        assert_eq!(bob.hash_kv(0).await.map(drop), Err(error::PERMISSION_DENIED));
        assert_eq!(client.status().await.map(drop), Err(error::USER_EMPTY));
        bob.status().await.expect("any user may");
        assert_eq!(client.grant(60).await, Err(error::USER_EMPTY));
        assert_eq!(user_add(&bob, "eve", "x").await, Err(error::PERMISSION_DENIED));
        // Wrong passwords and invalid tokens.
        assert_eq!(log_in(&client, "bob", "wrong").await.map(drop), Err(error::AUTH_FAILED));
        assert_eq!(log_in(&client, "eve", "bobpw").await.map(drop), Err(error::AUTH_FAILED));
        for forged in ["", "x", "ABCDEFGHIJKLMNOP.1", "ABCDEFGHIJKLMNOP.99999999", "Bearer ", "a.b.c"] {
            let got = client.with_token(forged).get("b").await.map(drop);
            assert_eq!(got, Err(error::INVALID_AUTH_TOKEN), "{forged:?}");
        }
        // Invalid requests are refused before permissions are checked, as in etcd.
        let plain = RangeRequest { key: "b".into(), ..RangeRequest::default() };
        let sorted = RangeRequest { sort_order: range_request::SortOrder::Descend as i32, ..plain.clone() };
        for (request, code) in [
            (RangeRequest::default(), Code::InvalidArgument),
            (sorted, Code::Unimplemented),
            (plain, Code::Unauthenticated),
        ] {
            let (mut sender, mut receiver) =
                client.with_token("x").open(Rpc::KvRangeStream).await.expect("opens");
            sender.send(Bytes::from(request.encode_to_vec())).await.expect("is taken");
            let refused = receiver.next().await.map(drop).expect_err("is refused");
            assert_eq!(refused.code, code, "{request:?}: {refused:?}");
        }
    });
}

#[test]
fn what_there_is_cannot_be_learnt_from_refusals() {
    let dir = TempDir::new("auth-hidden");
    let member = Setup::new(dir.path()).flag(CHEAP).start();
    run(async {
        let client = member.client().await;
        let (root, bob) = secured(&client).await;
        for number in 0..26 {
            root.put(format!("secret{number:02}"), "v").await.expect("root may");
        }
        // If the range had many keys, these comparisons would be too much work for one step.
        let compare = || Compare {
            key: "secret".into(),
            range_end: "secreu".into(),
            target: compare::CompareTarget::Create as i32,
            target_union: Some(compare::TargetUnion::CreateRevision(0)),
            ..Compare::default()
        };
        let nested = || RequestOp {
            request: Some(request_op::Request::RequestTxn(TxnRequest {
                compare: (0..64).map(|_| compare()).collect(),
                ..TxnRequest::default()
            })),
        };
        let put = RequestOp {
            request: Some(request_op::Request::RequestPut(PutRequest {
                key: "b".into(),
                ..PutRequest::default()
            })),
        };
        let success = (0..62).map(|_| nested()).chain([put]).collect();
        let txn = TxnRequest { success, ..TxnRequest::default() };
        for (who, refusal) in [(&client, error::USER_EMPTY), (&bob, error::PERMISSION_DENIED)] {
            assert_eq!(who.call::<TxnResponse>(Rpc::KvTxn, &txn).await.map(drop), Err(refusal));
        }
        let said = root.call::<TxnResponse>(Rpc::KvTxn, &txn).await.expect_err("it compares too much");
        assert!(said.message.contains("too much to compare"), "{said:?}");
        // A name that is too long for a user does not fill the log either.
        let long = "x".repeat(2000);
        assert_eq!(log_in(&client, &long, "pw").await.map(drop), Err(error::AUTH_FAILED));
        assert!(!member.said().contains("xxxxxxxx"));
    });
}

#[test]
fn a_permission_that_goes_ends_tokens_rights_and_watches() {
    let dir = TempDir::new("auth-revoke");
    let member = Setup::new(dir.path()).flag(CHEAP).start();
    run(async {
        let client = member.client().await;
        let (root, bob) = secured(&client).await;
        let watch = |key: &str, end: &str| WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
                key: key.to_owned().into(),
                range_end: end.to_owned().into(),
                ..WatchCreateRequest::default()
            })),
        };
        let (mut sender, mut receiver) = bob.open(Rpc::Watch).await.expect("opens");
        let next = async |receiver: &mut client::Receiver| {
            let message = receiver.next().await.expect("the stream goes on").expect("a response");
            WatchResponse::decode(message).expect("is one")
        };
        for (key, end, allowed) in [("b", "c", true), ("b", "\0", false), ("a", "", false), ("b1", "", true)]
        {
            sender.send(watch(key, end).encode_to_vec().into()).await.expect("is taken");
            let response = next(&mut receiver).await;
            assert_eq!(response.canceled, !allowed, "{key:?} to {end:?}: {response:?}");
            if !allowed {
                let reason = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
                assert_eq!((response.watch_id, response.cancel_reason.as_str()), (-1, reason));
            }
        }
        bob.put("b", "seen").await.expect("is allowed");
        assert_eq!(next(&mut receiver).await.events.len(), 1);
        // Bob keeps the key b1, but loses the range from b to c.
        allow(&root, "r", permission::Type::Read, "b1", "").await.expect("is allowed");
        disallow(&root, "r", "b", "c").await.expect("is taken away");
        let ended = next(&mut receiver).await;
        assert!(ended.canceled && ended.watch_id == 0, "{ended:?}");
        assert_eq!(bob.put("b", "v").await, Err(error::PERMISSION_DENIED));
        root.put("b", "unseen").await.expect("root may");
        root.put("b1", "seen").await.expect("root may");
        let response = next(&mut receiver).await;
        let keys: Vec<_> =
            response.events.iter().flat_map(|event| &event.kv).map(|kv| kv.key.clone()).collect();
        assert_eq!((response.watch_id, keys), (1, vec!["b1".into()]));
        // A changed password invalidates the user's tokens.
        let change = AuthUserChangePasswordRequest {
            name: "bob".to_owned(),
            password: "new".to_owned(),
            ..AuthUserChangePasswordRequest::default()
        };
        let changed = root.call::<AuthUserChangePasswordResponse>(Rpc::AuthUserChangePassword, &change).await;
        changed.expect("is changed");
        assert_eq!(bob.get("b1").await.map(drop), Err(error::INVALID_AUTH_TOKEN));
        assert_eq!(log_in(&client, "bob", "bobpw").await.map(drop), Err(error::AUTH_FAILED));
        log_in(&client, "bob", "new").await.expect("is bob").get("b1").await.expect("is allowed");
    });
}

#[test]
fn users_survive_a_kill_and_their_hashes_are_told_to_nobody() {
    let dir = TempDir::new("auth-kill");
    let setup = Setup::new(dir.path()).flag(CHEAP);
    let member = setup.start();
    run(async {
        let (_, bob) = secured(&member.client().await).await;
        bob.put("b", "v").await.expect("is allowed");
    });
    let said = member.said();
    assert!(!said.contains("bobpw") && !said.contains("$2a$"), "{said}");
    member.kill();
    let member = setup.start();
    run(async {
        let client = member.client().await;
        assert_eq!(client.get("b").await.map(drop), Err(error::USER_EMPTY));
        let bob = log_in(&client, "bob", "bobpw").await.expect("is bob");
        assert_eq!(bob.get("b").await.expect("is allowed").map(|kv| kv.value), Some("v".into()));
        assert_eq!(bob.get("a").await.map(drop), Err(error::PERMISSION_DENIED));
    });
}

#[test]
fn options_that_cannot_be_followed_are_refused() {
    for (given, expected) in [
        ("--auth-token=other", "auth: invalid auth options"),
        ("--auth-token=jwt", "auth: invalid auth options"),
        ("--auth-token=jwt,sign-method=none", "unsupported signing method"),
        ("--auth-token=jwt,sign-method=RS256,priv-key=/nowhere", "/nowhere"),
        ("--auth-token=simple,x", "auth: invalid auth options"),
    ] {
        let dir = TempDir::new("auth-option");
        let said = Setup::new(dir.path()).flag(given).refused();
        assert!(said.contains(expected), "{given}: {said}");
    }
}

#[test]
fn json_web_tokens_are_made_and_taken() {
    let dir = TempDir::new("auth-jwt");
    let member = signed_tokens(&dir).start();
    run(async {
        let client = member.client().await;
        let (root, bob) = secured(&client).await;
        bob.put("b", "v").await.expect("is allowed");
        assert_eq!(bob.get("a").await.map(drop), Err(error::PERMISSION_DENIED));
        // A signed token contains the auth revision at which it was issued.
        user_add(&root, "other", "x").await.expect("is added");
        assert_eq!(bob.get("b").await.map(drop), Err(error::AUTH_OLD_REVISION));
        let bob = log_in(&client, "bob", "bobpw").await.expect("is bob");
        bob.get("b").await.expect("is allowed");
        // Root's token stays valid after changes that root makes, until root's own password changes.
        // Otherwise a stolen token could be used to change the password again.
        user_add(&root, "another", "x").await.expect("is added");
        let changed = |password: &str| AuthUserChangePasswordRequest {
            name: "root".to_owned(),
            password: password.to_owned(),
            ..AuthUserChangePasswordRequest::default()
        };
        let change = async |client: &Client, password| {
            let request = changed(password);
            let rpc = Rpc::AuthUserChangePassword;
            client.call::<AuthUserChangePasswordResponse>(rpc, &request).await.map(drop)
        };
        change(&root, "newpw").await.expect("root may");
        assert_eq!(change(&root, "stolen").await, Err(error::AUTH_OLD_REVISION));
        assert_eq!(change(&root, "").await, Err(error::AUTH_OLD_REVISION));
        assert_eq!(user_add(&root, "eve", "x").await, Err(error::AUTH_OLD_REVISION));
        assert_eq!(grant_role(&root, "bob", "root").await, Err(error::AUTH_OLD_REVISION));
        assert_eq!(root.compact(1, false).await.map(drop), Err(error::AUTH_OLD_REVISION));
        let root = log_in(&client, "root", "newpw").await.expect("is root");
        user_add(&root, "eve", "x").await.expect("is added");
    });
}

/// Returns read-only transactions: an empty one, one with a stale range, one with a range, and one with only
/// a comparison.
fn read_only_transactions(key: &str) -> [TxnRequest; 4] {
    let range =
        |serializable| RangeRequest { key: key.to_owned().into(), serializable, ..RangeRequest::default() };
    let with = |range| TxnRequest {
        success: vec![RequestOp { request: Some(request_op::Request::RequestRange(range)) }],
        ..TxnRequest::default()
    };
    let compare = Compare { key: key.to_owned().into(), ..Compare::default() };
    [
        TxnRequest::default(),
        with(range(true)),
        with(range(false)),
        TxnRequest { compare: vec![compare], ..TxnRequest::default() },
    ]
}

fn signed_tokens(dir: &TempDir) -> Setup {
    let key = dir.join("key");
    std::fs::write(&key, "a secret that is long enough").expect("is written");
    let token = format!("--auth-token=jwt,sign-method=HS256,priv-key={}", key.display());
    Setup::new(dir.path()).flag(CHEAP).flag(token)
}

#[test]
fn a_transaction_that_only_reads_needs_a_token_of_the_present_users() {
    async fn all_refused(client: &Client, expected: &Status) {
        for request in read_only_transactions("b") {
            let refused = client.call::<TxnResponse>(Rpc::KvTxn, &request).await;
            assert_eq!(refused.as_ref(), Err(expected), "{request:?}");
        }
    }
    let dirs = ["auth-txn-jwt", "auth-txn-lag"].map(TempDir::new);
    let signed = dirs.each_ref().map(|dir| signed_tokens(dir).start());
    run(async {
        let client = signed[0].client().await;
        let (root, bob) = secured(&client).await;
        for request in read_only_transactions("b") {
            bob.call::<TxnResponse>(Rpc::KvTxn, &request).await.expect("is allowed");
        }
        user_add(&root, "other", "x").await.expect("is added");
        all_refused(&bob, &error::AUTH_OLD_REVISION).await;
        // A transaction that is proposed and names no key is carried out, as in etcd.
        let nested = RequestOp { request: Some(request_op::Request::RequestTxn(TxnRequest::default())) };
        let nested = TxnRequest { success: vec![nested], ..TxnRequest::default() };
        bob.call::<TxnResponse>(Rpc::KvTxn, &nested).await.expect("asks for nothing");

        // A member that lags behind refuses a read if the token is newer than the member's copy of the users.
        let request = AuthenticateRequest { name: "bob".to_owned(), password: "bobpw".to_owned() };
        let newer: AuthenticateResponse = client.call(Rpc::Authenticate, &request).await.expect("is bob");
        let lags = signed[1].client().await;
        secured(&lags).await;
        let bob = lags.with_token(&newer.token);
        all_refused(&bob, &error::AUTH_OLD_REVISION).await;
        assert_eq!(bob.get("b").await.map(drop), Err(error::AUTH_OLD_REVISION));
        assert_eq!(bob.get("a").await.map(drop), Err(error::PERMISSION_DENIED));
        let streamed = RangeRequest { key: "b".into(), ..RangeRequest::default() };
        let (mut sender, mut receiver) = bob.open(Rpc::KvRangeStream).await.expect("opens");
        sender.send(Bytes::from(streamed.encode_to_vec())).await.expect("is taken");
        assert_eq!(receiver.next().await.map(drop), Err(error::AUTH_OLD_REVISION));
    });
    let dir = TempDir::new("auth-txn");
    let simple = Setup::new(dir.path()).flag(CHEAP).start();
    run(async {
        let (root, bob) = secured(&simple.client().await).await;
        // A simple token contains no revision, so it stays valid until a change makes it invalid.
        user_add(&root, "other", "x").await.expect("is added");
        for request in read_only_transactions("b") {
            bob.call::<TxnResponse>(Rpc::KvTxn, &request).await.expect("is allowed");
        }
        let change = AuthUserChangePasswordRequest {
            name: "bob".to_owned(),
            password: "new".to_owned(),
            ..AuthUserChangePasswordRequest::default()
        };
        let changed = root.call::<AuthUserChangePasswordResponse>(Rpc::AuthUserChangePassword, &change).await;
        changed.expect("is changed");
        all_refused(&bob, &error::INVALID_AUTH_TOKEN).await;
    });
}

#[test]
fn a_stream_that_is_older_than_authentication_makes_watches_with_its_json_web_token() {
    let dirs = ["auth-jwt-one", "auth-jwt-two"].map(TempDir::new);
    let members = dirs.each_ref().map(|dir| signed_tokens(dir).start());
    run(async {
        // The other cluster has the same users at the same auth revision, so its tokens are valid in this
        // one.
        let elsewhere = members[0].client().await;
        secured(&elsewhere).await;
        let request = AuthenticateRequest { name: "bob".to_owned(), password: "bobpw".to_owned() };
        let answer: AuthenticateResponse = elsewhere.call(Rpc::Authenticate, &request).await.expect("is bob");
        let client = members[1].client().await;
        add_users(&client).await;
        let bob = client.with_token(&answer.token);
        let (mut sender, mut receiver) = bob.open(Rpc::Watch).await.expect("opens");
        let create = |watch_id| {
            let create = WatchCreateRequest { key: "b".into(), watch_id, ..WatchCreateRequest::default() };
            let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
            Bytes::from(create.encode_to_vec())
        };
        let mut told = async |watch_id| loop {
            let message = receiver.next().await.expect("is answered").expect("goes on");
            let told = WatchResponse::decode(message).expect("is an answer");
            if told.created && told.watch_id == watch_id || told.cancel_reason.ends_with("auth token") {
                return told;
            }
        };
        sender.send(create(1)).await.expect("is taken");
        assert!(told(1).await.created);
        enable(&client).await;
        sender.send(create(2)).await.expect("is taken");
        let told = told(2).await;
        assert!(told.created && !told.canceled, "{told:?}");
    });
}

#[test]
fn keys_of_tokens_are_replaced_while_the_member_runs() {
    let dir = TempDir::new("auth-jwt-keys");
    let key = dir.join("key");
    std::fs::write(&key, "a secret that is long enough").expect("is written");
    let token = format!("--auth-token=jwt,sign-method=HS256,priv-key={}", key.display());
    let member = Setup::new(dir.path()).flag(CHEAP).flag(token).start();
    run(async {
        let client = member.client().await;
        let (_, bob) = secured(&client).await;
        bob.put("b", "v").await.expect("is allowed");
        std::fs::write(&key, "").expect("is written");
        member.wait_for("cannot use the changed key files");
        bob.put("b", "v").await.expect("the key that was read before is in use");
        let (mut sender, mut receiver) = bob.open(Rpc::Watch).await.expect("opens");
        let create = WatchCreateRequest { key: "b".into(), ..WatchCreateRequest::default() };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        sender.send(create.encode_to_vec().into()).await.expect("is taken");
        let mut told = async || -> WatchResponse {
            let message = receiver.next().await.expect("is answered").expect("goes on");
            WatchResponse::decode(message).expect("is an answer")
        };
        assert!(told().await.created);
        std::fs::write(&key, "another secret that is long enough").expect("is written");
        member.wait_for("reloaded the key files");
        assert_eq!(bob.put("b", "v").await, Err(error::INVALID_AUTH_TOKEN));
        let told = told().await;
        assert!(told.canceled && told.cancel_reason.ends_with("invalid auth token"), "{told:?}");
        let bob = log_in(&client, "bob", "bobpw").await.expect("is bob");
        bob.put("b", "v").await.expect("the new key has signed it");
    });
}

#[test]
fn the_audit_log_tells_who_did_what() {
    let dir = TempDir::new("audit");
    let file = dir.join("audit.log");
    let flag = format!("--audit-log={}", file.display());
    let member = Setup::new(dir.path()).flag(CHEAP).flag(flag).start();
    run(async {
        let client = member.client().await;
        let (root, bob) = secured(&client).await;
        bob.put("b", "planted-value").await.expect("is allowed");
        bob.get("b").await.expect("is allowed");
        assert_eq!(bob.get("a").await.map(drop), Err(error::PERMISSION_DENIED));
        assert_eq!(log_in(&client, "bob", "wrongpw").await.map(drop), Err(error::AUTH_FAILED));
        let forged = client.with_token("forgedtoken").put("b", "v").await;
        assert_eq!(forged, Err(error::INVALID_AUTH_TOKEN));
        let (mut sender, mut receiver) = bob.open(Rpc::Watch).await.expect("opens");
        let create = WatchCreateRequest { key: "w".into(), ..WatchCreateRequest::default() };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        sender.send(create.encode_to_vec().into()).await.expect("is taken");
        receiver.next().await.expect("is answered");
        root.put("c", "v").await.expect("root may");
    });
    member.stop();
    let [accepted, refused] = ["audit.log", "audit.log.refused"]
        .map(|name| std::fs::read_to_string(dir.join(name)).expect("is there"));
    let has = |text: &str, part: &str| text.lines().any(|line| line.contains(part));
    assert!(!has(&accepted, "denied") && !has(&accepted, "failed"), "{accepted}");
    assert!(!has(&refused, "\"code\":\"OK\""), "{refused}");
    let text = accepted + &refused;
    let lines: Vec<&str> = text.lines().collect();
    for secret in ["rootpw", "bobpw", "wrongpw", "planted-value", "forgedtoken", "$2a$"] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
    let found =
        |parts: &[&str]| lines.iter().filter(|line| parts.iter().all(|part| line.contains(part))).count();
    let put = [
        "\"user\":\"bob\",\"auth\":\"token\",\"remote\":\"127.0.0.1:",
        "KV/Put\",\"key\":\"b\"",
        "\"code\":\"OK\"",
    ];
    assert_eq!(found(&put), 1, "{text}");
    assert_eq!(found(&["KV/Range", "\"key\":\"b\""]), 0, "a read that is allowed: {text}");
    assert_eq!(found(&["KV/Range", "\"key\":\"a\"", "\"user\":\"bob\"", "PermissionDenied"]), 1, "{text}");
    assert_eq!(found(&["Auth/Authenticate", "\"name\":\"bob\"", "\"code\":\"OK\""]), 1, "{text}");
    assert_eq!(found(&["Auth/Authenticate", "\"name\":\"bob\"", "authentication failed"]), 1, "{text}");
    assert_eq!(found(&["KV/Put", "\"user\":\"\"", "invalid auth token"]), 1, "{text}");
    assert_eq!(found(&["Watch/Watch", "\"key\":\"w\"", "permission denied"]), 1, "{text}");
    assert_eq!(found(&["Auth/AuthEnable", "\"auth\":\"none\""]), 1, "{text}");
    let refused = Setup::new(dir.path()).flag(format!("--audit-log={}", dir.path().display())).refused();
    assert!(refused.contains("named by --audit-log"), "{refused}");
}

#[test]
fn the_audit_log_has_the_revisions_of_writes_whose_answers_are_large() {
    let dir = TempDir::new("audit-large");
    let flags = [format!("--audit-log={}", dir.join("audit.log").display()), "--audit-log-reads".to_owned()];
    let member = flags.into_iter().fold(Setup::new(dir.path()), Setup::flag).start();
    run(async {
        let client = member.client().await;
        for key in ["put", "txn", "deleted"] {
            client.put(key, vec![1; 200_000]).await.expect("is written");
        }
        let put = |key: &'static str| PutRequest { key: key.into(), prev_kv: true, ..PutRequest::default() };
        let answer: PutResponse = client.call(Rpc::KvPut, &put("put")).await.expect("is written");
        assert_eq!(answer.prev_kv.map(|kv| kv.value.len()), Some(200_000));
        let success = vec![RequestOp { request: Some(request_op::Request::RequestPut(put("txn"))) }];
        let txn = TxnRequest { success, ..TxnRequest::default() };
        let _: TxnResponse = client.call(Rpc::KvTxn, &txn).await.expect("is carried out");
        let _ = client.get("deleted").await.expect("is read");
        let delete = DeleteRangeRequest { key: "deleted".into(), prev_kv: true, ..Default::default() };
        let answer: DeleteRangeResponse = client.call(Rpc::KvDeleteRange, &delete).await.expect("is deleted");
        assert_eq!(answer.prev_kvs.first().map(|kv| kv.value.len()), Some(200_000));
    });
    member.stop();
    let text = std::fs::read_to_string(dir.join("audit.log")).expect("is there");
    for expected in [
        "KV/Put\",\"key\":\"put\",\"revision\":5,\"code\":\"OK\"",
        "KV/Txn\",\"ranges\":[{\"op\":\"put\",\"key\":\"txn\"}],\"revision\":6,\"succeeded\":true,\"code\":\"OK\"",
        "KV/Range\",\"key\":\"deleted\",\"revision\":6,\"code\":\"OK\"",
        "KV/DeleteRange\",\"key\":\"deleted\",\"revision\":7,\"deleted\":1,\"code\":\"OK\"",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}

#[test]
fn the_audit_log_has_refused_locks_and_elections_among_the_refused() {
    let dir = TempDir::new("audit-locks");
    let flag = format!("--audit-log={}", dir.join("audit.log").display());
    let member = Setup::new(dir.path()).flag(CHEAP).flag(flag).start();
    run(async {
        let client = member.client().await;
        let (root, bob) = secured(&client).await;
        let lease = root.grant(60).await.expect("a lease");
        let denied = |said: Status| {
            assert_eq!((said.code, &*said.message), (Code::Unknown, "etcdserver: permission denied"));
        };
        let lock = |lease| LockRequest { name: "none".into(), lease };
        denied(bob.call::<LockResponse>(Rpc::Lock, &lock(lease)).await.expect_err("bob may not"));
        // The call grants a lease before it fails, so it has changed something.
        denied(bob.call::<LockResponse>(Rpc::Lock, &lock(0)).await.expect_err("bob may not"));
        let unlock = UnlockRequest { key: "none".into() };
        denied(bob.call::<UnlockResponse>(Rpc::LockUnlock, &unlock).await.expect_err("bob may not"));
        let campaign = CampaignRequest { name: "none".into(), lease, value: "bob".into() };
        let refused = bob.call::<CampaignResponse>(Rpc::ElectionCampaign, &campaign).await;
        denied(refused.expect_err("bob may not"));
        let leader = LeaderRequest { name: "none".into() };
        let refused = bob.call::<LeaderResponse>(Rpc::ElectionLeader, &leader).await;
        denied(refused.expect_err("bob may not"));
        let (mut sender, mut receiver) = bob.open(Rpc::ElectionObserve).await.expect("a stream");
        sender.send_last(leader.encode_to_vec().into()).await.expect("the stream is open");
        assert_eq!(receiver.next().await, Ok(None), "as with etcd the stream ends without an error");
    });
    member.stop();
    let [accepted, refused] = ["audit.log", "audit.log.refused"]
        .map(|name| std::fs::read_to_string(dir.join(name)).expect("is there"));
    let found = |text: &str, method: &str| {
        text.lines().filter(|line| line.contains(method) && line.contains("permission denied")).count()
    };
    for method in ["Lock/Lock", "Lock/Unlock", "Election/Campaign", "Election/Leader", "Election/Observe"] {
        assert_eq!(found(&refused, method), 1, "{method}: {refused}");
        assert_eq!(found(&accepted, method), usize::from(method == "Lock/Lock"), "{method}: {accepted}");
    }
}
