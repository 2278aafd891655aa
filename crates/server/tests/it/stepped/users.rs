//! Users in a cluster in which some members lag, the writes that unauthenticated callers can cause, and the
//! cost of operations on users, roles and leases.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use api::authpb::{Permission, UserAddOptions};
use api::etcdserverpb::{
    AlarmRequest, AlarmResponse, AlarmType, AuthDisableRequest, AuthDisableResponse, AuthEnableRequest,
    AuthRoleAddRequest, AuthRoleAddResponse, AuthRoleGetRequest, AuthRoleGrantPermissionRequest,
    AuthRoleGrantPermissionResponse, AuthUserAddRequest, AuthUserAddResponse, AuthUserChangePasswordRequest,
    AuthUserChangePasswordResponse, AuthUserGetRequest, AuthUserGrantRoleRequest, AuthUserGrantRoleResponse,
    AuthenticateRequest, AuthenticateResponse, CompactionRequest, DeleteRangeRequest, DeleteRangeResponse,
    LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest, LeaseRevokeResponse, MemberAddRequest,
    MemberListRequest, MoveLeaderRequest, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp,
    TxnRequest, TxnResponse, request_op::Request,
};
use api::raftpb::MessageType;
use api::{Rpc, Status, error};
use prost::Message;

use super::sliced::with_bob;
use super::world::World;

#[test]
fn a_member_that_lags_answers_nobody_what_has_to_be_new() {
    let mut world = World::started(3, 71, &[]);
    world.lead(0);
    let lags = world.places[2].id;
    world.lose(Some(Box::new(move |message| {
        message.r#type == Some(MessageType::MsgApp as i32) && message.to == Some(lags)
    })));
    with_bob(&mut world);
    assert!(!world.member(2).published().auth.is_enabled(), "it has not heard of it");
    let list = MemberListRequest { linearizable: true }.encode_to_vec();
    let asked =
        [(Rpc::ClusterMemberList, list), (Rpc::MaintenanceAlarm, AlarmRequest::default().encode_to_vec())]
            .map(|(rpc, request)| world.member(2).call(rpc, request.into()));
    world.lose(None);
    for answer in world.run_all(asked.into()) {
        assert_eq!(answer, Err(error::USER_EMPTY));
    }
}

#[test]
fn who_authenticates_again_at_once_gets_the_same_token_without_an_entry() {
    let mut world = World::started(1, 74, &[]);
    let (_, root) = with_bob(&mut world);
    let log_in = |world: &mut World, password: &str| {
        let request = AuthenticateRequest { name: "bob".into(), password: password.into() };
        let answer = world.call::<_, AuthenticateResponse>(0, Rpc::Authenticate, &request);
        let applied = world.member(0).published().applied_index;
        answer.map(|answer| (answer.token, applied))
    };
    let reads = |world: &mut World, token: &str| {
        world.member(0).present(Some(token));
        let range = RangeRequest { key: "bob".into(), ..RangeRequest::default() };
        let read = world.call::<_, RangeResponse>(0, Rpc::KvRange, &range);
        world.member(0).present(None);
        read.map(drop)
    };
    let pass_a_moment = |world: &mut World| {
        let until = world.places[0].clock.elapsed() + Duration::from_millis(200);
        while world.places[0].clock.elapsed() < until {
            world.wait();
        }
    };
    // The token that `with_bob` returned is not issued again.
    pass_a_moment(&mut world);
    let first = log_in(&mut world, "p").expect("is right");
    assert_eq!(log_in(&mut world, "p"), Ok(first.clone()));
    assert_eq!(log_in(&mut world, "wrong"), Err(error::AUTH_FAILED));
    assert_eq!(reads(&mut world, &first.0), Ok(()));

    // After a password change, the old password is refused, and the new one does not make the old token valid again.
    world.member(0).present(Some(&root));
    let change =
        AuthUserChangePasswordRequest { name: "bob".into(), password: "q".into(), ..Default::default() };
    let _: AuthUserChangePasswordResponse =
        world.call(0, Rpc::AuthUserChangePassword, &change).expect("is changed");
    world.member(0).present(None);
    assert_eq!(log_in(&mut world, "p"), Err(error::AUTH_FAILED));
    let second = log_in(&mut world, "q").expect("is right");
    assert_ne!(second.0, first.0);
    assert_eq!(reads(&mut world, &first.0), Err(error::INVALID_AUTH_TOKEN));
    assert_eq!(reads(&mut world, &second.0), Ok(()));

    pass_a_moment(&mut world);
    let third = log_in(&mut world, "q").expect("is right");
    assert!(third.0 != second.0 && third.1 > second.1, "{third:?}");
}

#[test]
fn strangers_fill_no_log_with_failed_logins_and_made_up_tokens() {
    const TRIES: usize = 500;
    let mut world = World::started(1, 72, &[]);
    with_bob(&mut world);
    let lines = |world: &World, what: &str| world.text().lines().filter(|line| line.contains(what)).count();
    let began = world.places[0].clock.elapsed();
    for _ in 0..TRIES {
        let request = AuthenticateRequest { name: "bob".into(), password: "x\u{9b}2J\u{2028}".into() };
        let refused = world.call::<_, AuthenticateResponse>(0, Rpc::Authenticate, &request);
        assert_eq!(refused.map(drop), Err(error::AUTH_FAILED));
    }
    world.member(0).present(Some("made.up"));
    for _ in 0..TRIES {
        let range = RangeRequest { key: "bob".into(), ..RangeRequest::default() };
        let refused = world.call::<_, RangeResponse>(0, Rpc::KvRange, &range);
        assert_eq!(refused.map(drop), Err(error::INVALID_AUTH_TOKEN));
    }
    world.member(0).present(None);
    let seconds = usize::try_from((world.places[0].clock.elapsed() - began).as_secs()).expect("is small");
    let most = 10 * (seconds + 2);
    assert!(most < TRIES / 2, "it took {seconds} s");
    for what in ["invalid authentication was requested", "invalid auth token"] {
        let lines = lines(&world, what);
        assert!((10..=most).contains(&lines), "{lines} lines in {seconds} s: {what}");
    }
}

#[test]
fn a_transaction_that_names_no_key_is_not_proposed_for_nobody() {
    let mut world = World::started(1, 76, &[]);
    with_bob(&mut world);
    let before = world.member(0).published().applied_index;
    let empty = RequestOp { request: Some(Request::RequestTxn(TxnRequest::default())) };
    let txn = TxnRequest { success: vec![empty], ..TxnRequest::default() };
    assert_eq!(world.call::<_, TxnResponse>(0, Rpc::KvTxn, &txn), Err(error::USER_EMPTY));
    assert_eq!(world.member(0).published().applied_index, before);
}

/// Returns writes of all kinds, each with a payload.
fn writes() -> Vec<(Rpc, Vec<u8>)> {
    let put = || PutRequest { key: "alice".into(), value: vec![7; 100_000].into(), ..PutRequest::default() };
    let op = RequestOp { request: Some(Request::RequestPut(put())) };
    let add = AuthUserAddRequest {
        name: "x".repeat(100_000),
        options: Some(UserAddOptions { no_password: true }),
        ..AuthUserAddRequest::default()
    };
    let change = AuthUserChangePasswordRequest { name: "root".into(), ..Default::default() };
    let delete = DeleteRangeRequest { key: "alice".into(), ..DeleteRangeRequest::default() };
    vec![
        (Rpc::KvPut, put().encode_to_vec()),
        (Rpc::KvDeleteRange, delete.encode_to_vec()),
        (Rpc::KvTxn, TxnRequest { success: vec![op], ..TxnRequest::default() }.encode_to_vec()),
        (Rpc::AuthUserAdd, add.encode_to_vec()),
        (Rpc::AuthUserChangePassword, change.encode_to_vec()),
        (Rpc::AuthRoleAdd, AuthRoleAddRequest { name: "x".repeat(100_000) }.encode_to_vec()),
        (Rpc::AuthDisable, AuthDisableRequest {}.encode_to_vec()),
        (Rpc::AuthEnable, AuthEnableRequest {}.encode_to_vec()),
    ]
}

#[test]
fn what_a_caller_may_not_write_does_not_become_an_entry_and_raises_no_alarm() {
    // A single put is as large as the quota.
    let mut world = World::started(1, 77, &["--quota-backend-bytes=100000"]);
    let (bob, _) = with_bob(&mut world);
    let before = world.member(0).published().applied_index;
    let grant = LeaseGrantRequest { ttl: 60, id: 7 }.encode_to_vec();
    for (token, refusal, mut writes) in
        [(None, error::USER_EMPTY, writes()), (Some(&*bob), error::PERMISSION_DENIED, writes())]
    {
        world.member(0).present(token);
        if token.is_none() {
            writes.push((Rpc::LeaseGrant, grant.clone()));
            writes.push((Rpc::LeaseRevoke, LeaseRevokeRequest { id: 7 }.encode_to_vec()));
        }
        for (rpc, request) in writes {
            let call = world.member(0).call(rpc, request.into());
            assert_eq!(world.run(call).map(drop), Err(refusal.clone()), "{rpc:?}");
        }
    }
    let published = world.member(0).published();
    assert_eq!(published.applied_index, before);
    assert!(!published.alarms.any(AlarmType::Nospace as i32));
    // A caller with permission is refused by the quota, as usual.
    let put = PutRequest { key: "bob".into(), value: vec![7; 100_000].into(), ..PutRequest::default() };
    assert_eq!(world.call::<_, PutResponse>(0, Rpc::KvPut, &put).map(drop), Err(error::NO_SPACE));
    world.until("the alarm is raised", |world| {
        world.member(0).published().alarms.any(AlarmType::Nospace as i32)
    });
}

/// Waits until all three members know the users.
fn all_know(world: &mut World) {
    world.until("all know the users", |world| {
        (0..3).all(|at| {
            let published = world.member(at).published();
            published.auth.is_enabled()
                && published.applied_index == world.member(0).published().applied_index
        })
    });
}

/// From now on, the third member receives no entries.
fn lag(world: &World) {
    let lags = world.places[2].id;
    world.lose(Some(Box::new(move |message| {
        message.r#type == Some(MessageType::MsgApp as i32) && message.to == Some(lags)
    })));
}

/// Grants leases, and puts a key with each.
fn with_leases(world: &mut World, leases: &[(i64, &str)]) {
    for (id, key) in leases {
        let grant = LeaseGrantRequest { ttl: 6000, id: *id };
        let _: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &grant).expect("is granted");
        let put = PutRequest { key: (*key).to_owned().into(), lease: *id, ..PutRequest::default() };
        let _: PutResponse = world.call(0, Rpc::KvPut, &put).expect("is put");
    }
}

#[test]
fn who_may_not_write_the_keys_of_a_lease_has_no_revocation_proposed() {
    let mut world = World::started(3, 79, &[]);
    world.lead(0);
    with_leases(&mut world, &[(7, "alice"), (8, "bob")]);
    let (bob, root) = with_bob(&mut world);
    all_know(&mut world);
    let revoke = |id| LeaseRevokeRequest { id };
    let before = world.member(0).published().applied_index;
    for at in [0, 2] {
        world.member(at).present(Some(&bob));
        let refused = world.call::<_, LeaseRevokeResponse>(at, Rpc::LeaseRevoke, &revoke(7));
        assert_eq!(refused.map(drop), Err(error::PERMISSION_DENIED));
    }
    assert_eq!(world.member(0).published().applied_index, before);

    // A key that was deleted through another member no longer counts, even if the member that gets the request lags.
    lag(&world);
    world.member(0).present(Some(&root));
    let delete = DeleteRangeRequest { key: "alice".into(), ..DeleteRangeRequest::default() };
    let _: DeleteRangeResponse = world.call(0, Rpc::KvDeleteRange, &delete).expect("is deleted");
    let asked = world.member(2).call(Rpc::LeaseRevoke, revoke(7).encode_to_vec().into());
    world.lose(None);
    assert_eq!(world.run(asked).map(drop), Ok(()));
    let _: LeaseRevokeResponse = world.call(2, Rpc::LeaseRevoke, &revoke(8)).expect("all keys are bob's");
    let gone = world.call::<_, LeaseRevokeResponse>(2, Rpc::LeaseRevoke, &revoke(8));
    assert_eq!(gone.map(drop), Err(error::LEASE_NOT_FOUND));
}

#[test]
fn a_token_of_root_from_before_its_password_was_changed_changes_nothing_at_a_member_that_lags() {
    let signed = "--auth-token=jwt,sign-method=HS256,priv-key=/secret,ttl=100h";
    for (number, options) in [&[signed][..], &[]].into_iter().enumerate() {
        let mut world = World::started(3, 80 + number as u64, options);
        world.lead(0);
        with_leases(&mut world, &[(7, "alice")]);
        let (_, root) = with_bob(&mut world);
        all_know(&mut world);
        lag(&world);
        world.member(0).present(Some(&root));
        let change =
            AuthUserChangePasswordRequest { name: "root".into(), password: "q".into(), ..Default::default() };
        let _: AuthUserChangePasswordResponse =
            world.call(0, Rpc::AuthUserChangePassword, &change).expect("is changed");
        world.member(2).present(Some(&root));
        let add = AuthUserAddRequest { name: "eve".into(), password: "e".into(), ..Default::default() };
        let change = AuthUserChangePasswordRequest { password: "back".into(), ..change };
        let mut asked = vec![
            (Rpc::AuthRoleAdd, AuthRoleAddRequest { name: "new".into() }.encode_to_vec()),
            (Rpc::AuthUserAdd, add.encode_to_vec()),
            (Rpc::AuthUserChangePassword, change.encode_to_vec()),
            (Rpc::AuthDisable, AuthDisableRequest {}.encode_to_vec()),
        ];
        if !options.is_empty() {
            asked.push((Rpc::LeaseRevoke, LeaseRevokeRequest { id: 7 }.encode_to_vec()));
        }
        let calls = asked.iter().map(|(rpc, request)| world.member(2).call(*rpc, request.clone().into()));
        let calls = calls.collect();
        world.lose(None);
        for ((rpc, _), answer) in asked.iter().zip(world.run_all(calls)) {
            assert_eq!(answer.map(drop), Err(error::AUTH_OLD_REVISION), "{rpc:?} {options:?}");
        }
        // The new token is valid for all calls.
        let request = AuthenticateRequest { name: "root".into(), password: "q".into() };
        let answer: AuthenticateResponse = world.call(2, Rpc::Authenticate, &request).expect("is right");
        world.member(2).present(Some(&answer.token));
        for (rpc, request) in asked.into_iter().rev() {
            let call = world.member(2).call(rpc, request.into());
            assert_eq!(world.run(call).map(drop), Ok(()), "{rpc:?} {options:?}");
        }
    }
}

#[test]
fn strangers_who_wait_to_be_refused_leave_places_for_others() {
    const CROWD: usize = 10_000;
    let mut world = World::started(3, 82, &[]);
    world.lead(0);
    let (bob, _) = with_bob(&mut world);
    all_know(&mut world);
    // A quorum cannot confirm anything to this member.
    world.cut(2, true);
    let put = PutRequest { key: "bob".into(), ..PutRequest::default() }.encode_to_vec();
    let range = RangeRequest { key: "bob".into(), ..RangeRequest::default() }.encode_to_vec();
    let ask = |world: &World, rpc, request: &[u8]| {
        let (mut waiting, mut answers) = (Vec::new(), Vec::new());
        for _ in 0..CROWD {
            let mut call = world.member(2).call(rpc, request.to_vec().into());
            match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => answers.push(answer.map(drop)),
                Poll::Pending => waiting.push(call),
            }
        }
        (waiting, answers)
    };
    let (waiting, refused) = ask(&world, Rpc::KvPut, &put);
    assert!(waiting.len() < CROWD / 2, "{} wait", waiting.len());
    assert!(refused.iter().all(|answer| *answer == Err(error::USER_EMPTY)));
    let (others, refused) = ask(&world, Rpc::KvRange, &range);
    assert_eq!(others.len(), 0);
    assert!(refused.iter().all(|answer| *answer == Err(error::TOO_MANY_REQUESTS)));
    // Requests with unknown tokens wait in a separate queue: one of the tokens may belong to a user.
    world.member(2).present(Some("madeupmadeupmade.9999999999"));
    let (unknown, refused) = ask(&world, Rpc::KvRange, &range);
    assert!((1..CROWD / 2).contains(&unknown.len()), "{} wait", unknown.len());
    assert!(refused.iter().all(|answer| *answer == Err(error::TOO_MANY_REQUESTS)));
    // Writes that only root may make are refused at once, too.
    world.member(2).present(None);
    for (rpc, request) in of_root() {
        let mut call = world.member(2).call(rpc, request.into());
        let answer = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(answer.map_ok(drop), Poll::Ready(Err(error::USER_EMPTY)), "{rpc:?}");
    }
    // A request of a known user is not refused.
    world.member(2).present(Some(&bob));
    let read = world.member(2).call(Rpc::KvRange, range.into());
    world.cut(2, false);
    assert_eq!(world.run(read).map(drop), Ok(()));
    for answer in world.run_all(waiting) {
        assert_eq!(answer.map(drop), Err(error::USER_EMPTY));
    }
    for answer in world.run_all(unknown) {
        assert_eq!(answer.map(drop), Err(error::INVALID_AUTH_TOKEN));
    }
    // The queue slots of the unauthenticated requests are free again.
    world.member(2).present(None);
    let read = world.call::<_, RangeResponse>(
        2,
        Rpc::KvRange,
        &RangeRequest { key: "bob".into(), ..Default::default() },
    );
    assert_eq!(read.map(drop), Err(error::USER_EMPTY));
}

/// Returns writes that only root may make.
fn of_root() -> Vec<(Rpc, Vec<u8>)> {
    let raise = AlarmRequest { action: 1, alarm: 1, ..AlarmRequest::default() };
    let add = MemberAddRequest { peer_urls: vec!["http://127.0.0.1:1".into()], ..Default::default() };
    vec![
        (Rpc::AuthRoleAdd, AuthRoleAddRequest { name: "new".into() }.encode_to_vec()),
        (Rpc::MaintenanceAlarm, raise.encode_to_vec()),
        (Rpc::KvCompact, CompactionRequest { revision: 1, physical: false }.encode_to_vec()),
        (Rpc::MaintenanceMoveLeader, MoveLeaderRequest { target_id: 1 }.encode_to_vec()),
        (Rpc::ClusterMemberAdd, add.encode_to_vec()),
    ]
}

#[test]
fn who_is_not_root_is_refused_by_name_where_there_is_no_leader() {
    let mut world = World::started(3, 85, &[]);
    world.lead(0);
    let (bob, root) = with_bob(&mut world);
    all_know(&mut world);
    world.cut(2, true);
    for (token, refusal) in [
        (None, error::USER_EMPTY),
        (Some(&bob), error::PERMISSION_DENIED),
        // Root has permission, and gets a timeout since no quorum can confirm anything.
        (Some(&root), error::TIMEOUT),
    ] {
        world.member(2).present(token.map(|token| &**token));
        for (rpc, request) in of_root() {
            let call = world.member(2).call(rpc, request.into());
            assert_eq!(world.run(call).map(drop), Err(refusal.clone()), "{rpc:?}");
        }
    }
}

#[test]
fn a_slow_write_of_root_is_told_of_once() {
    let mut world = World::started(3, 86, &[]);
    world.lead(0);
    let (_, root) = with_bob(&mut world);
    all_know(&mut world);
    world.member(2).present(Some(&root));
    world.cut(2, true);
    let mut call = world
        .member(2)
        .call(Rpc::AuthRoleAdd, AuthRoleAddRequest { name: "new".into() }.encode_to_vec().into());
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let until = world.places[2].clock.elapsed() + Duration::from_millis(2500);
    while world.places[2].clock.elapsed() < until {
        world.wait();
    }
    world.cut(2, false);
    assert_eq!(world.run(call).map(drop), Ok(()));
    let text = world.text();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.contains("request stats") && line.contains("/etcdserverpb.Auth/RoleAdd"))
        .collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn a_member_that_lags_refuses_no_write_that_is_allowed_by_now() {
    let mut world = World::started(3, 78, &[]);
    world.lead(0);
    let (bob, root) = with_bob(&mut world);
    all_know(&mut world);
    let put = |key: &str| PutRequest { key: key.to_owned().into(), ..PutRequest::default() }.encode_to_vec();

    // A permission that was granted through another member: the call gets the error that the users have changed.
    lag(&world);
    world.member(0).present(Some(&root));
    let perm = Permission { perm_type: 2, key: "alice".into(), ..Permission::default() };
    let grant = AuthRoleGrantPermissionRequest { name: "bob".into(), perm: Some(perm) };
    let _: AuthRoleGrantPermissionResponse =
        world.call(0, Rpc::AuthRoleGrantPermission, &grant).expect("is granted");
    world.member(2).present(Some(&bob));
    let asked = world.member(2).call(Rpc::KvPut, put("alice").into());
    world.lose(None);
    assert_eq!(world.run(asked).map(drop), Err(error::AUTH_OLD_REVISION));
    let asked = world.member(2).call(Rpc::KvPut, put("alice").into());
    assert_eq!(world.run(asked).map(drop), Ok(()));
    let asked = world.member(2).call(Rpc::KvPut, put("carol").into());
    assert_eq!(world.run(asked).map(drop), Err(error::PERMISSION_DENIED));

    // Authentication was disabled through another member.
    lag(&world);
    let _: AuthDisableResponse = world.call(0, Rpc::AuthDisable, &AuthDisableRequest {}).expect("is off");
    assert!(world.member(2).published().auth.is_enabled(), "it has not heard of it");
    world.member(2).present(None);
    let grant = LeaseGrantRequest { ttl: 60, id: 7 }.encode_to_vec();
    let asked = [(Rpc::KvPut, put("alice")), (Rpc::LeaseGrant, grant)]
        .map(|(rpc, request)| world.member(2).call(rpc, request.into()));
    world.lose(None);
    for answer in world.run_all(asked.into()) {
        assert_eq!(answer.map(drop), Ok(()));
    }
}

#[test]
fn a_slow_request_is_told_by_its_own_name_though_others_came_while_its_password_was_hashed() {
    let mut world = World::started(3, 75, &[]);
    world.lead(0);
    world.cut(0, true);
    let user =
        AuthUserAddRequest { name: "bob".into(), password: "p".into(), ..AuthUserAddRequest::default() };
    let put = PutRequest { key: "k".into(), ..PutRequest::default() };
    let calls = [(Rpc::AuthUserAdd, user.encode_to_vec()), (Rpc::KvPut, put.encode_to_vec())]
        .map(|(rpc, request)| world.member(0).call(rpc, request.into()));
    for answer in world.run_all(calls.into()) {
        assert!(answer.is_err(), "there is no quorum: {answer:?}");
    }
    for method in ["/etcdserverpb.Auth/UserAdd", "/etcdserverpb.KV/Put"] {
        let lines = world
            .text()
            .lines()
            .filter(|line| line.contains("request stats") && line.contains(method))
            .count();
        assert_eq!(lines, 1, "{method}");
    }
}

/// Any client can send such tokens. While calls with such tokens wait for a confirmation, they must not take
/// the slots of other calls.
#[test]
fn a_write_with_a_refused_token_waits_for_no_leader() {
    let mut world = World::started(3, 79, &[]);
    world.lead(0);
    with_bob(&mut world);
    all_know(&mut world);
    world.cut(2, true);
    world.member(2).present(Some("x"));
    for (rpc, request) in writes() {
        let mut asked = world.member(2).call(rpc, request.into());
        let answer = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(answer.map_ok(drop), Poll::Ready(Err(error::INVALID_AUTH_TOKEN)), "{rpc:?}");
    }
}

#[test]
fn alarms_are_listed_with_the_current_revision() {
    let mut world = World::started(1, 80, &[]);
    world.put(0, "k", b"v").expect("is taken");
    let listed: AlarmResponse =
        world.call(0, Rpc::MaintenanceAlarm, &AlarmRequest::default()).expect("is listed");
    assert_eq!(listed.header.map(|header| header.revision), Some(2));
}

/// Sends these calls concurrently. Returns how many are not refused.
fn taken(world: &mut World, rpc: Rpc, requests: Vec<impl Message>) -> usize {
    let calls = requests.iter().map(|request| world.member(0).call(rpc, request.encode_to_vec().into()));
    let calls: Vec<_> = calls.collect();
    let answers: Vec<Result<bytes::Bytes, Status>> = world.run_all(calls);
    let is_taken = |answer: &Result<bytes::Bytes, Status>| match answer {
        Ok(_) => true,
        Err(status) => {
            assert_eq!(&*status.message, "etcdserver: too many requests");
            false
        }
    };
    answers.iter().filter(|answer| is_taken(answer)).count()
}

#[test]
fn what_is_about_very_many_keys_permissions_or_roles_at_once_is_expensive() {
    const MANY: i64 = 1_001;
    let mut world = World::started(1, 73, &["--max-expensive-calls=1"]);
    let role = |name: &str| AuthRoleAddRequest { name: name.into() };
    for name in ["small", "large"] {
        let _: AuthRoleAddResponse = world.call(0, Rpc::AuthRoleAdd, &role(name)).expect("is added");
        let user =
            AuthUserAddRequest { name: name.into(), password: "p".into(), ..AuthUserAddRequest::default() };
        let _: AuthUserAddResponse = world.call(0, Rpc::AuthUserAdd, &user).expect("is added");
    }
    for number in 0..MANY {
        let perm = Permission { key: format!("{number:04}").into(), ..Permission::default() };
        let grant = AuthRoleGrantPermissionRequest { name: "large".into(), perm: Some(perm) };
        let _: AuthRoleGrantPermissionResponse =
            world.call(0, Rpc::AuthRoleGrantPermission, &grant).expect("is granted");
        let name = format!("r{number}");
        let _: AuthRoleAddResponse = world.call(0, Rpc::AuthRoleAdd, &role(&name)).expect("is added");
        let grant = AuthUserGrantRoleRequest { user: "large".into(), role: name };
        let _: AuthUserGrantRoleResponse = world.call(0, Rpc::AuthUserGrantRole, &grant).expect("is granted");
    }
    let leases = |ids: std::ops::Range<i64>| ids.map(|id| LeaseRevokeRequest { id }).collect::<Vec<_>>();
    for id in 1..16 {
        let grant = LeaseGrantRequest { ttl: 6000, id };
        let _: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &grant).expect("is granted");
        let keys = if id > 10 { MANY } else { 1 };
        for number in 0..keys {
            let put = PutRequest { key: format!("{id}/{number}").into(), lease: id, ..PutRequest::default() };
            let _: PutResponse = world.call(0, Rpc::KvPut, &put).expect("is put");
        }
    }
    let get = |name: &str| vec![AuthRoleGetRequest { role: name.into() }; 30];
    assert_eq!(taken(&mut world, Rpc::AuthRoleGet, get("small")), 30);
    assert!(taken(&mut world, Rpc::AuthRoleGet, get("large")) < 30);
    let get = |name: &str| vec![AuthUserGetRequest { name: name.into() }; 30];
    assert_eq!(taken(&mut world, Rpc::AuthUserGet, get("small")), 30);
    assert!(taken(&mut world, Rpc::AuthUserGet, get("large")) < 30);
    assert_eq!(taken(&mut world, Rpc::LeaseRevoke, leases(1..11)), 10);
    assert!(taken(&mut world, Rpc::LeaseRevoke, leases(11..16)) < 5);
}
