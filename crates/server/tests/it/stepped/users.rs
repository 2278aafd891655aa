//! Users in a cluster whose members do not all know the newest.

use api::etcdserverpb::{AlarmRequest, MemberListRequest};
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
