//! Requests that a follower forwards to its leader: writes, when the leader is lost, and promotions of
//! learners, for callers with different rights.

use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use api::etcdserverpb::{MemberPromoteRequest, PutRequest, RangeRequest, RangeResponse};
use api::raftpb::{Message, MessageType};
use api::{Code, Rpc, Status, error};
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, Response, StatusCode};
use peer::Handler as _;
use prost::Message as _;

use super::sliced::with_bob;
use super::world::World;

/// Returns the number of times that the key was written.
fn writes(world: &mut World, at: usize) -> i64 {
    let asked = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    let found: RangeResponse = world.call(at, Rpc::KvRange, &asked).expect("is answered");
    found.kvs.first().map_or(0, |kv| kv.version)
}

/// A follower forwards a write to a leader, which receives it only after it has lost leadership. Returns how
/// often the write was applied, and whether its client got a success.
fn late_proposal(like_etcd: &[usize]) -> (i64, bool) {
    let mut world = World::new(3, 6, &[]);
    for at in like_etcd {
        world.places[*at].switches.speaks_as_etcd = true;
    }
    world.start_all();
    world.lead(1);
    let held = Arc::new(Mutex::new(Vec::new()));
    let holding = Arc::clone(&held);
    world.lose(Some(Box::new(move |message: &Message| {
        let proposal = message.r#type == Some(MessageType::MsgProp as i32);
        if proposal {
            holding.lock().expect("nobody panicked").push(message.clone());
        }
        proposal
    })));
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    let mut answer = world.member(0).call(Rpc::KvPut, put.encode_to_vec().into());
    world.until("the write is on its way", |_| {
        let _ = answer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        !held.lock().expect("nobody panicked").is_empty()
    });
    world.lose(None);
    world.cut(1, true);
    world.until("another leads", |world| world.leader().is_some_and(|at| at != 1));
    let leader = world.leader().expect("somebody leads");
    world.put(leader, "other", b"v").expect("two of three are enough");
    world.settle().expect("all go on");
    world.cut(1, false);
    world.until("the old leader follows", |world| {
        world.member(1).published().leader == world.places[leader].id
    });
    // The delayed proposal arrives now.
    let mut late = std::mem::take(&mut *held.lock().expect("nobody panicked"));
    world.member(1).peering().received(&mut late);
    let told = world.run(answer).is_ok();
    world.settle().expect("all go on");
    (writes(&mut world, leader), told)
}

#[test]
fn a_write_that_a_member_like_etcds_passes_on_is_not_proposed_again() {
    assert_eq!(late_proposal(&[1, 2]), (1, true), "it is written when it gets there");
    assert_eq!(late_proposal(&[1]), (1, true));
}

#[test]
fn a_write_that_nobody_passes_on_is_proposed_again() {
    assert_eq!(late_proposal(&[]), (1, true));
    assert_eq!(late_proposal(&[2]), (1, true));
}

/// Sends a request to promote a voter to the member's peer port. Returns the status and the text of the response.
fn promotes_by_peer(world: &mut World, at: usize, token: Option<&str>) -> (u16, String) {
    let mut request = Request::post(format!("/members/promote/{}", world.places[0].id));
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, token);
    }
    let request = request.body(Bytes::new()).expect("is one");
    let answer = world.member(at).peering().http(request);
    let answer = world.run(answer);
    let text = String::from_utf8(answer.body().to_vec()).expect("is text");
    (answer.status().as_u16(), text.trim().to_owned())
}

#[test]
fn a_promotion_that_another_member_hands_on_is_for_root_only() {
    const NO_LEARNER: (u16, &str) = (412, "membership: can only promote a learner member");
    const NO_USER: (u16, &str) = (500, "etcdserver: user name is empty");
    // A certificate that opens the peer port does not say on whose behalf the request is made either.
    let with_certificates = [
        "--listen-peer-urls=https://10.0.0.1:2380",
        "--peer-trusted-ca-file=/ca.crt",
        "--peer-cert-file=/m.crt",
        "--peer-key-file=/m.key",
    ];
    for options in [&[][..], &with_certificates] {
        let mut world = World::started(1, 77, options);
        let said = |world: &mut World, token: Option<&str>, expected: (u16, &str)| {
            let (code, text) = promotes_by_peer(world, 0, token);
            assert_eq!((code, &*text), expected, "{token:?} {options:?}");
        };
        said(&mut world, None, NO_LEARNER);
        let (bob, root) = with_bob(&mut world);
        said(&mut world, None, NO_USER);
        said(&mut world, Some(""), NO_USER);
        said(&mut world, Some(&bob), (500, "etcdserver: permission denied"));
        said(&mut world, Some("made.up"), (500, "etcdserver: invalid auth token"));
        said(&mut world, Some(&root), NO_LEARNER);
        said(&mut world, Some(&format!("Bearer {root}")), NO_LEARNER);
    }
}

#[test]
fn a_promotion_is_judged_by_a_member_that_knows_all_that_was_acknowledged() {
    let mut world = World::started(3, 79, &[]);
    world.lead(0);
    assert_eq!(promotes_by_peer(&mut world, 0, None).0, 412, "it is no learner");
    for at in [1, 2] {
        world.cut(at, true);
    }
    // The other members may have enabled authentication by now.
    let (code, text) = promotes_by_peer(&mut world, 0, None);
    assert_eq!(code, 500, "{text}");
}

#[test]
fn a_follower_hands_on_a_promotion_with_the_token_of_its_caller() {
    let mut world = World::started(3, 78, &[]);
    world.lead(0);
    let (bob, root) = with_bob(&mut world);
    world.until("the follower knows", |world| world.member(1).published().auth.is_enabled());
    let promote = MemberPromoteRequest { id: world.places[2].id };
    let as_user = |world: &mut World, token: Option<&str>, name: Option<&str>| -> Result<(), Status> {
        let mut head = world.member(1).head(Rpc::ClusterMemberPromote);
        head.common_name = name.map(Into::into);
        if let Some(token) = token {
            head.metadata.insert("token", HeaderValue::from_str(token).expect("is one"));
        }
        let answer = world.member(1).call_as(head, promote.encode_to_vec().into());
        world.run(answer).map(drop)
    };
    assert_eq!(as_user(&mut world, Some(&bob), None), Err(error::PERMISSION_DENIED));
    assert_eq!(as_user(&mut world, Some(&root), None), Err(error::MEMBER_NOT_LEARNER));

    let wants_token = |refused: Result<(), Status>| {
        let status = refused.expect_err("is refused");
        assert_eq!(status.code, Code::FailedPrecondition, "{status:?}");
        assert!(status.message.contains("the leader requires a token"), "{status:?}");
    };
    wants_token(as_user(&mut world, None, Some("root")));

    // The same requests with a leader that runs etcd.
    let asked = Arc::new(Mutex::new(Vec::new()));
    let etcd = |world: &World, code: StatusCode, body: &'static str| {
        let asked = Arc::clone(&asked);
        world.post.lock().expect("nobody panicked").answers = Some(Box::new(move |request| {
            asked.lock().expect("nobody panicked").push(request.headers().get(AUTHORIZATION).cloned());
            let mut answer = Response::new(Bytes::from_static(body.as_bytes()));
            *answer.status_mut() = code;
            Some(answer)
        }));
    };
    let shown = || std::mem::take(&mut *asked.lock().expect("nobody panicked"));
    let token = Some(HeaderValue::from_str(&root).expect("is one"));
    for (code, body, expected) in [
        (StatusCode::NOT_FOUND, "membership: ID not found\n", error::MEMBER_NOT_FOUND),
        (
            StatusCode::PRECONDITION_FAILED,
            "membership: can only promote a learner member\n",
            error::MEMBER_NOT_LEARNER,
        ),
        (
            StatusCode::PRECONDITION_FAILED,
            "etcdserver: can only promote a learner member which is in sync with leader\n",
            error::LEARNER_NOT_READY,
        ),
    ] {
        etcd(&world, code, body);
        assert_eq!(as_user(&mut world, Some(&root), None), Err(expected));
        assert_eq!(shown(), std::slice::from_ref(&token));
    }
    etcd(&world, StatusCode::INTERNAL_SERVER_ERROR, r#"{"message":"Internal Server Error"}"#);
    wants_token(as_user(&mut world, None, Some("root")));
    assert_eq!(shown(), [None], "it was asked once");
    // If the client has shown a token, the refusal may mean that the member lost leadership, so the request
    // is retried.
    assert_eq!(as_user(&mut world, Some(&root), None), Err(error::TIMEOUT));
    assert!(shown().len() > 1);
}
