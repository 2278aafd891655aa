//! Users in a cluster whose members do not all know the newest, what strangers may have a member write into its log, and what is
//! expensive of users, roles and leases.

use api::etcdserverpb::{
    AlarmRequest, AuthenticateRequest, AuthenticateResponse, MemberListRequest, RangeRequest, RangeResponse,
};
use api::raftpb::MessageType;
use api::{Rpc, error};
use prost::Message as _;

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
