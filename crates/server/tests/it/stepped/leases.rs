//! Leases at the edges: renewed while their time is being noted, while they are being revoked, by a leader that was
//! replaced.

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use api::Rpc;
use api::etcdserverpb::{
    self as pb, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest, LeaseRevokeResponse,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, MoveLeaderRequest,
};
use api::raftpb::{Entry, Message, MessageType};
use numbers::{LeaseId, Seconds};
use peer::Handler as _;
use prost::Message as _;

use super::world::World;

fn grant(world: &mut World, at: usize, ttl: i64) -> i64 {
    let answer: LeaseGrantResponse =
        world.call(at, Rpc::LeaseGrant, &LeaseGrantRequest { ttl, id: 0 }).expect("is granted");
    answer.id
}

fn time_to_live(world: &mut World, at: usize, id: i64) -> LeaseTimeToLiveResponse {
    let request = LeaseTimeToLiveRequest { id, keys: true };
    world.call(at, Rpc::LeaseTimeToLive, &request).expect("is answered")
}

fn pass(world: &mut World, time: Duration) {
    let until = world.places[0].clock.elapsed() + time;
    world.until("time has gone by", |world| world.places[0].clock.elapsed() >= until);
}

/// What a future gives within so much time of the members' clocks, if it ends by then.
fn within<T>(world: &mut World, time: Duration, future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    let until = world.places[0].clock.elapsed() + time;
    let mut context = Context::from_waker(Waker::noop());
    while world.places[0].clock.elapsed() < until {
        if let Poll::Ready(output) = std::pin::Pin::new(&mut *future).poll(&mut context) {
            return Some(output);
        }
        if !world.work().expect("all go on") {
            world.wait();
        }
    }
    None
}

#[test]
fn a_renewal_takes_back_a_note_that_is_under_way() {
    let mut world = World::started(1, 3, &[]);
    let lease = grant(&mut world, 0, 100);
    pass(&mut world, Duration::from_secs(50));
    // The time left is noted before the member stops. The note is in the log already, but not yet committed.
    world.places[0].log_held = true;
    world.member(0).stop();
    let mut renewal = Box::pin(world.member(0).renew(LeaseId(lease)));
    let _ = within(&mut world, Duration::from_millis(200), &mut renewal);
    world.places[0].log_held = false;
    world.until("the member has stopped", |world| world.members().count() == 0);
    world.start(0).expect("starts again");
    world.until("it is ready", |world| world.member(0).is_ready());
    let left = time_to_live(&mut world, 0, lease).ttl;
    assert!(left > 95, "the renewal counts, not the older note: {left} s");
}

#[test]
fn a_renewal_behind_a_clearing_under_way_waits_for_it() {
    let mut world = World::started(1, 4, &[]);
    let lease = grant(&mut world, 0, 400);
    pass(&mut world, Duration::from_secs(110));
    world.places[0].log_held = true;
    // A note that comes with time, and two renewals while nothing reaches the disk.
    pass(&mut world, Duration::from_secs(12));
    let mut first = Box::pin(world.member(0).renew(LeaseId(lease)));
    assert_eq!(within(&mut world, Duration::from_millis(300), &mut first), None);
    let mut second = Box::pin(world.member(0).renew(LeaseId(lease)));
    assert_eq!(within(&mut world, Duration::from_millis(300), &mut second), None);
    world.places[0].log_held = false;
    assert_eq!((world.run(first), world.run(second)), (Ok(Seconds(400)), Ok(Seconds(400))));
}

#[test]
fn a_note_under_way_does_not_become_that_of_a_lease_granted_under_the_same_id() {
    let mut world = World::started(1, 8, &[]);
    let id = grant(&mut world, 0, 400);
    pass(&mut world, Duration::from_secs(110));
    world.places[0].log_held = true;
    // It is revoked and granted anew, and its time left is noted, while nothing reaches the disk: the note comes last.
    let call = |world: &World, rpc, request: Vec<u8>| Box::pin(world.member(0).call(rpc, request.into()));
    let mut revoked = call(&world, Rpc::LeaseRevoke, LeaseRevokeRequest { id }.encode_to_vec());
    assert!(within(&mut world, Duration::from_millis(300), &mut revoked).is_none());
    let again = LeaseGrantRequest { ttl: 400, id };
    let mut granted = call(&world, Rpc::LeaseGrant, again.encode_to_vec());
    assert!(within(&mut world, Duration::from_millis(300), &mut granted).is_none());
    pass(&mut world, Duration::from_secs(12));
    world.places[0].log_held = false;
    pass(&mut world, Duration::from_secs(1));
    assert_eq!(world.member(0).probe().leases, 1);
    world.crash(0);
    world.start(0).expect("starts again");
    world.until("it is ready", |world| world.member(0).is_ready());
    let left = time_to_live(&mut world, 0, id).ttl;
    assert!(left > 390, "the note was the earlier lease's: {left} s");
}

#[test]
fn a_lease_without_a_ttl_is_renewed_by_that_of_its_leader() {
    let mut world = World::started(3, 11, &[]);
    world.lead(0);
    // As a member that runs etcd hands it on: every member raises the TTL for itself.
    let lease_grant = Some(LeaseGrantRequest { id: 77, ttl: 0 });
    let header = Some(pb::RequestHeader { id: 9, ..Default::default() });
    let request = pb::InternalRaftRequest { header, lease_grant, ..Default::default() };
    let entry = Entry { data: Some(request.encode_to_vec().into()), ..Default::default() };
    let mut messages = vec![Message {
        r#type: Some(MessageType::MsgProp as i32),
        from: Some(world.places[1].id),
        to: Some(world.places[0].id),
        entries: vec![entry],
        ..Default::default()
    }];
    world.member(0).peering().received(&mut messages);
    world.until("all know it", |world| world.members().all(|member| member.probe().leases == 1));
    let renewal = world.member(0).renew(LeaseId(77));
    assert_eq!(world.run(renewal), Ok(Seconds(2)), "it lives: 0 would say that it is gone");
    assert_eq!(time_to_live(&mut world, 1, 77).granted_ttl, 2);
}

#[test]
fn a_renewal_of_a_lease_that_is_being_revoked_hears_of_it_once_it_is_gone() {
    let mut world = World::started(3, 12, &[]);
    world.lead(0);
    let lease = grant(&mut world, 0, 60);
    // Nothing is committed.
    let leader = world.places[0].id;
    let is_append = |message: &Message| message.r#type == Some(MessageType::MsgAppResp as i32);
    world.lose(Some(Box::new(move |message| message.to == Some(leader) && is_append(message))));
    let request = LeaseRevokeRequest { id: lease }.encode_to_vec();
    let mut revoked = Box::pin(world.member(0).call(Rpc::LeaseRevoke, request.into()));
    assert!(within(&mut world, Duration::from_millis(200), &mut revoked).is_none());
    // Until it is, the lease lives. A follower or another leader could say so.
    let renewal = world.member(0).renew(LeaseId(lease));
    assert_eq!(world.run(renewal), Ok(Seconds(60)));
    assert_eq!(world.member(0).probe().leases, 1);
    world.lose(None);
    world.run(revoked).expect("is revoked");
    let renewal = world.member(0).renew(LeaseId(lease));
    assert_eq!(world.run(renewal), Ok(Seconds(0)));
}

#[test]
fn a_leader_that_stops_notes_no_time_for_a_lease_granted_under_the_same_id() {
    let mut world = World::started(3, 10, &[]);
    world.lead(0);
    let (id, other) = (grant(&mut world, 0, 400), grant(&mut world, 0, 500));
    pass(&mut world, Duration::from_secs(20));
    world.places[0].log_held = true;
    // It is revoked and granted anew; the leader has not applied that when it stops and notes what time is left.
    let call = |world: &World, rpc, request: Vec<u8>| Box::pin(world.member(0).call(rpc, request.into()));
    let mut revoked = call(&world, Rpc::LeaseRevoke, LeaseRevokeRequest { id }.encode_to_vec());
    assert!(within(&mut world, Duration::from_millis(200), &mut revoked).is_none());
    let again = LeaseGrantRequest { ttl: 400, id };
    let mut granted = call(&world, Rpc::LeaseGrant, again.encode_to_vec());
    assert!(within(&mut world, Duration::from_millis(200), &mut granted).is_none());
    world.member(0).stop();
    world.until("another leads", |world| world.leader().is_some_and(|at| at != 0));
    let leader = world.leader().expect("somebody leads");
    let left = time_to_live(&mut world, leader, id).ttl;
    assert!(left > 390, "the note was the earlier lease's: {left} s");
    let left = time_to_live(&mut world, leader, other).ttl;
    assert!(left < 485, "that of the other is noted: {left} s");
}

#[test]
fn an_expired_lease_is_not_renewed_while_its_revocation_is_under_way() {
    let mut world = World::started(1, 5, &[]);
    let lease = grant(&mut world, 0, 5);
    world.places[0].log_held = true;
    pass(&mut world, Duration::from_secs(7));
    // The revocation is in the log, not yet committed. As in etcd, a renewal waits for it.
    let mut early = Box::pin(world.member(0).renew(LeaseId(lease)));
    assert_eq!(within(&mut world, Duration::from_secs(3), &mut early), None);
    pass(&mut world, Duration::from_secs(8));
    let mut late = Box::pin(world.member(0).renew(LeaseId(lease)));
    assert_eq!(within(&mut world, Duration::from_secs(1), &mut late), None, "it is not revived");
    world.places[0].log_held = false;
    assert_eq!(world.run(late), Ok(Seconds(0)));
    assert_eq!(world.member(0).probe().leases, 0);
    // One that is granted under the same id now is another lease, which no second revocation ends.
    let again = LeaseGrantRequest { ttl: 60, id: lease };
    let _: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &again).expect("is granted");
    pass(&mut world, Duration::from_secs(10));
    assert_eq!(world.member(0).probe().leases, 1);
}

#[test]
fn a_renewal_that_waits_for_a_quorum_counts_from_when_it_came() {
    let mut world = World::started(3, 9, &[]);
    world.lead(0);
    let lease = grant(&mut world, 0, 2);
    pass(&mut world, Duration::from_millis(1600));
    let leader = world.places[0].id;
    world.lose(Some(Box::new(move |message| {
        message.to == Some(leader) && message.r#type == Some(MessageType::MsgHeartbeatResp as i32)
    })));
    let mut renewal = Box::pin(world.member(0).renew(LeaseId(lease)));
    assert_eq!(within(&mut world, Duration::from_millis(700), &mut renewal), None);
    world.lose(None);
    assert_eq!(world.run(renewal), Ok(Seconds(2)));
    pass(&mut world, Duration::from_millis(1500));
    assert_eq!((world.leader(), world.member(0).probe().leases), (Some(0), 1));
    world.until("it expires", |world| world.member(0).probe().leases == 0);
}

#[test]
fn a_leader_that_was_replaced_renews_nothing() {
    let mut world = World::started(3, 6, &[]);
    world.until("somebody leads", |world| world.leader().is_some());
    let old = world.leader().expect("somebody leads");
    let new = (old + 1) % 3;
    let lease = grant(&mut world, old, 60);
    // Just now a quorum has confirmed it.
    let renewal = world.member(old).renew(LeaseId(lease));
    assert_eq!(world.run(renewal), Ok(Seconds(60)));
    let request = MoveLeaderRequest { target_id: world.places[new].id };
    let moving = world.member(old).call(Rpc::MaintenanceMoveLeader, request.encode_to_vec().into());
    let mut moving = Box::pin(moving);
    let told = |world: &World| {
        let post = world.post.lock().expect("nobody panicked");
        post.trace.iter().rev().take(100).any(|line| line.contains("MsgTimeoutNow"))
    };
    let mut context = Context::from_waker(Waker::noop());
    while !told(&world) {
        assert!(moving.as_mut().poll(&mut context).is_pending());
        world.work().expect("all go on");
    }
    world.cut(old, true);
    world.until("the other leads", |world| world.member(new).probe().settled);
    let _: LeaseRevokeResponse =
        world.call(new, Rpc::LeaseRevoke, &LeaseRevokeRequest { id: lease }).expect("is revoked");
    let mut renewal = Box::pin(world.member(old).renew(LeaseId(lease)));
    assert_eq!(within(&mut world, Duration::from_millis(200), &mut renewal), None);
    world.cut(old, false);
    assert_eq!(world.run(renewal), Ok(Seconds(0)));
}

#[test]
fn long_lists_are_whole_and_in_order() {
    const COUNT: i64 = 3000;
    let mut world = World::started(3, 7, &[]);
    world.until("somebody leads", |world| world.leader().is_some());
    let leader = world.leader().expect("somebody leads");
    let follower = (leader + 1) % 3;
    // Granted in an order that is neither that of their ids nor that in which they end.
    let many: Vec<_> = (0..COUNT)
        .map(|n| {
            let request = LeaseGrantRequest { ttl: 1000 + (n * 7919) % COUNT, id: 1 + (n * 4801) % COUNT };
            let request = request.encode_to_vec().into();
            world.member(leader).call(Rpc::LeaseGrant, request)
        })
        .collect();
    let ttl_of =
        |id: i64| (0..COUNT).find(|n| 1 + (n * 4801) % COUNT == id).map(|n| 1000 + (n * 7919) % COUNT);
    for one in many {
        world.run(one).expect("is granted");
    }
    let keys: Vec<Vec<u8>> = (0..1500).map(|n| format!("key-{n:05}").into_bytes()).collect();
    for some in keys.chunks(100) {
        let put = |key: &Vec<u8>| pb::PutRequest { key: key.clone().into(), lease: 77, ..Default::default() };
        let op = |key| pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put(key))) };
        let txn = pb::TxnRequest { success: some.iter().map(op).collect(), ..Default::default() };
        let _: pb::TxnResponse = world.call(leader, Rpc::KvTxn, &txn).expect("is taken");
    }
    for at in [leader, follower] {
        let found = time_to_live(&mut world, at, 77);
        assert_eq!(found.keys.iter().map(|key| key.to_vec()).collect::<Vec<_>>(), keys);
        let list: pb::LeaseLeasesResponse =
            world.call(at, Rpc::LeaseLeases, &pb::LeaseLeasesRequest {}).expect("is answered");
        let ids: Vec<i64> = list.leases.iter().map(|lease| lease.id).collect();
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), COUNT as usize);
        let ttls: Vec<i64> = ids.iter().filter_map(|id| ttl_of(*id)).collect();
        assert!(ttls.is_sorted() && ttls.len() == COUNT as usize);
    }
    // Another leader knows them all, whether their clocks have been started or not.
    world.kill(leader);
    world.until("another leads", |world| world.leader().is_some_and(|at| at != leader));
    let now = world.leader().expect("somebody leads");
    let renewal = world.member(now).renew(LeaseId(COUNT));
    assert_eq!(world.run(renewal), Ok(Seconds(ttl_of(COUNT).expect("is granted"))));
    assert_eq!(world.member(now).probe().leases, COUNT as usize);
    let left = time_to_live(&mut world, now, 2999).ttl;
    assert!(left >= ttl_of(2999).expect("is granted"), "{left}");
}

/// Gives the TTL that a lease has under the next leader, once the leader at `at` has stopped, or crashed.
fn left_behind(world: &mut World, at: usize, crashes: bool, id: i64) -> i64 {
    if crashes {
        world.crash(at);
    } else {
        world.member(at).stop();
    }
    world.until("another leads", |world| world.leader().is_some_and(|leader| leader != at));
    let leader = world.leader().expect("somebody leads");
    time_to_live(world, leader, id).ttl
}

#[test]
fn no_time_is_noted_while_a_member_runs_etcd() {
    for crashes in [false, true] {
        let mut world = World::new(3, 21, &[]);
        world.places[1].switches.speaks_as_etcd = true;
        world.start_all();
        world.lead(0);
        let lease = grant(&mut world, 0, 400);
        pass(&mut world, Duration::from_secs(130));
        let left = left_behind(&mut world, 0, crashes, lease);
        assert!(left > 390, "etcd would give it no more from then on: {left} s");
    }
}

#[test]
fn no_time_is_noted_before_all_members_were_heard_of() {
    let mut world = World::started(3, 22, &[]);
    world.lead(1);
    world.kill(2);
    world.lead(0);
    let lease = grant(&mut world, 0, 400);
    pass(&mut world, Duration::from_secs(130));
    world.cut(0, true);
    world.start(2).expect("starts");
    world.until("another leads", |world| [1, 2].iter().any(|at| world.member(*at).probe().settled));
    let leader = [1, 2].into_iter().find(|at| world.member(*at).probe().settled).expect("one leads");
    let left = time_to_live(&mut world, leader, lease).ttl;
    assert!(left > 390, "the member that was away might have run etcd: {left} s");
}

#[test]
fn notes_are_taken_back_once_a_member_runs_etcd() {
    for crashes in [false, true] {
        let mut world = World::started(3, 23, &[]);
        world.lead(0);
        // More than one entry takes back.
        let leases: Vec<i64> = (0..1_200).map(|_| grant(&mut world, 0, 400)).collect();
        pass(&mut world, Duration::from_secs(130));
        world.kill(2);
        world.places[2].switches.speaks_as_etcd = true;
        world.start(2).expect("starts");
        world.until("it has caught up", |world| {
            let committed = world.member(0).probe().commit;
            world.members().all(|member| member.probe().applied == committed)
        });
        pass(&mut world, Duration::from_secs(2));
        let left = left_behind(&mut world, 0, crashes, leases[0]);
        assert!(left > 390, "{left} s");
        let leader = world.leader().expect("somebody leads");
        assert!(time_to_live(&mut world, leader, leases[1_199]).ttl > 390);
    }
}

#[test]
fn a_leader_behind_one_that_runs_etcd_gives_leases_their_whole_time() {
    let mut world = World::new(3, 24, &[]);
    world.places[1].switches.speaks_as_etcd = true;
    world.start_all();
    world.lead(1);
    let lease = grant(&mut world, 1, 400);
    // A note from when no member ran etcd: renewals since then have not taken it back.
    let checkpoints = vec![pb::LeaseCheckpoint { id: lease, remaining_ttl: 30 }];
    let lease_checkpoint = Some(pb::LeaseCheckpointRequest { checkpoints });
    let header = Some(pb::RequestHeader { id: 9, ..Default::default() });
    let request = pb::InternalRaftRequest { header, lease_checkpoint, ..Default::default() };
    let entry = Entry { data: Some(request.encode_to_vec().into()), ..Default::default() };
    let mut messages = vec![Message {
        r#type: Some(MessageType::MsgProp as i32),
        from: Some(world.places[0].id),
        to: Some(world.places[1].id),
        entries: vec![entry],
        ..Default::default()
    }];
    let before = world.member(1).probe().applied;
    world.member(1).peering().received(&mut messages);
    world.until("all have it", |world| world.members().all(|member| member.probe().applied > before));
    world.lead(0);
    let left = time_to_live(&mut world, 0, lease).ttl;
    assert!(left > 390, "{left} s");
    // And the note is gone: a member that runs etcd would go by it.
    pass(&mut world, Duration::from_secs(2));
    world.lead(1);
    let left = time_to_live(&mut world, 1, lease).ttl;
    assert!(left > 390, "{left} s");
}
