//! Leases in edge cases: renewed while their remaining time is being saved, while they are being revoked, or
//! by a leader that was replaced.

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use api::Rpc;
use api::etcdserverpb::{
    self as pb, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest, LeaseRevokeResponse,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, MemberAddRequest, MemberAddResponse,
    MemberRemoveRequest, MemberRemoveResponse, MoveLeaderRequest,
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

/// Polls a future for this much time of the members' clocks. Returns its output if it resolves by then.
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

/// Returns the response to a renewal if the shard answers it alone, before any other part of the member gets a turn.
fn renewed_at_once(world: &World, at: usize, id: i64) -> Option<Seconds> {
    let mut renewal = world.member(at).renew(LeaseId(id));
    match renewal.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer.expect("is renewed")),
        Poll::Pending => None,
    }
}

fn renew(world: &mut World, at: usize, id: i64) -> i64 {
    let renewal = world.member(at).renew(LeaseId(id));
    world.run(renewal).expect("is answered").0
}

#[test]
fn the_only_voter_renews_a_lease_without_its_core_once_that_has_seen_it() {
    let mut world = World::started(1, 31, &[]);
    let lease = grant(&mut world, 0, 60);
    assert_eq!(renewed_at_once(&world, 0, lease), None, "its core has renewed it never yet");
    assert_eq!(renew(&mut world, 0, lease), 60);
    pass(&mut world, Duration::from_secs(40));
    assert_eq!(renewed_at_once(&world, 0, lease), Some(Seconds(60)));
    // The lease still exists, so the renewal took effect: nothing else could have kept the lease alive so
    // long.
    assert_eq!(time_to_live(&mut world, 0, lease).ttl, 60);
    pass(&mut world, Duration::from_secs(50));
    assert_eq!(world.member(0).probe().leases, 1);
    assert!(time_to_live(&mut world, 0, lease).ttl <= 10);
    // After the revocation is acknowledged, no renewal succeeds.
    let _: LeaseRevokeResponse =
        world.call(0, Rpc::LeaseRevoke, &LeaseRevokeRequest { id: lease }).expect("is revoked");
    assert_eq!(renewed_at_once(&world, 0, lease), None);
    assert_eq!(renew(&mut world, 0, lease), 0);
    // A new lease with the same id does not inherit the old lease's renewals.
    let again = LeaseGrantRequest { ttl: 5, id: lease };
    let _: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &again).expect("is granted");
    assert_eq!(renewed_at_once(&world, 0, lease), None);
    assert_eq!(renew(&mut world, 0, lease), 5);
    // After its time is up, the lease is not revived.
    world.places[0].log_held = true;
    pass(&mut world, Duration::from_secs(6));
    assert_eq!(renewed_at_once(&world, 0, lease), None);
    world.places[0].log_held = false;
    assert_eq!(renew(&mut world, 0, lease), 0);
}

#[test]
fn a_leader_asks_a_quorum_as_soon_as_there_is_another_voter() {
    let mut world = World::started(2, 32, &["--strict-reconfig-check=false"]);
    let leader = world.leader().expect("somebody leads");
    let lease = grant(&mut world, leader, 60);
    for _ in 0..2 {
        assert_eq!(renewed_at_once(&world, leader, lease), None, "the other member may lead by now");
        assert_eq!(renew(&mut world, leader, lease), 60);
    }
    let id = world.places[1 - leader].id;
    let _: MemberRemoveResponse =
        world.call(leader, Rpc::ClusterMemberRemove, &MemberRemoveRequest { id }).expect("is removed");
    world.until("it is alone", |world| renewed_at_once(world, leader, lease).is_some());
    // The new member never starts, so there is no quorum from here on.
    let peer_urls = vec!["http://10.0.1.9:2380".to_owned()];
    let add = MemberAddRequest { peer_urls, is_learner: false, is_witness: false };
    let _: MemberAddResponse = world.call(leader, Rpc::ClusterMemberAdd, &add).expect("is added");
    let mut renewal = Box::pin(world.member(leader).renew(LeaseId(lease)));
    assert_eq!(within(&mut world, Duration::from_millis(300), &mut renewal), None);
}

/// Renews a lease at the only member, which is stopping and whose log is held; then releases the log and
/// restarts the member.
fn renew_and_start_again(world: &mut World, lease: i64) {
    let mut renewal = Box::pin(world.member(0).renew(LeaseId(lease)));
    let _ = within(world, Duration::from_millis(200), &mut renewal);
    world.places[0].log_held = false;
    world.until("the member has stopped", |world| world.members().count() == 0);
    world.start(0).expect("starts again");
    world.until("it is ready", |world| world.member(0).is_ready());
}

#[test]
fn a_note_is_taken_back_although_the_renewals_before_it_took_no_core() {
    let mut world = World::started(1, 33, &[]);
    let lease = grant(&mut world, 0, 100);
    assert_eq!(renew(&mut world, 0, lease), 100);
    pass(&mut world, Duration::from_secs(30));
    assert_eq!(renewed_at_once(&world, 0, lease), Some(Seconds(100)));
    pass(&mut world, Duration::from_secs(50));
    // The remaining time is saved before the member stops.
    world.places[0].log_held = true;
    world.member(0).stop();
    pass(&mut world, Duration::from_millis(100));
    assert_eq!(renewed_at_once(&world, 0, lease), None, "the note would outlive it");
    renew_and_start_again(&mut world, lease);
    assert_eq!(renewed_at_once(&world, 0, lease), None, "another run of it has other clocks");
    let left = time_to_live(&mut world, 0, lease).ttl;
    assert!(left > 95, "the renewal counts, not the older note: {left} s");
}

#[test]
fn a_note_under_way_ends_renewals_without_the_core_until_it_is_taken_back() {
    let mut world = World::started(1, 34, &[]);
    let lease = grant(&mut world, 0, 400);
    assert_eq!(renew(&mut world, 0, lease), 400);
    // Remaining times are saved each minute; the saved time of this lease is low enough to matter.
    pass(&mut world, Duration::from_secs(130));
    assert_eq!(renewed_at_once(&world, 0, lease), None);
    world.places[0].log_held = true;
    let mut first = Box::pin(world.member(0).renew(LeaseId(lease)));
    assert_eq!(within(&mut world, Duration::from_millis(300), &mut first), None);
    assert_eq!(renewed_at_once(&world, 0, lease), None, "the note is not taken back yet");
    world.places[0].log_held = false;
    assert_eq!(world.run(first), Ok(Seconds(400)));
    // The core must see once that no saved time is left.
    assert_eq!(renew(&mut world, 0, lease), 400);
    assert_eq!(renewed_at_once(&world, 0, lease), Some(Seconds(400)));
}

#[test]
fn a_renewal_takes_back_a_note_that_is_under_way() {
    let mut world = World::started(1, 3, &[]);
    let lease = grant(&mut world, 0, 100);
    pass(&mut world, Duration::from_secs(50));
    // The remaining time is saved before the member stops. The entry is in the log, but not committed yet.
    world.places[0].log_held = true;
    world.member(0).stop();
    renew_and_start_again(&mut world, lease);
    let left = time_to_live(&mut world, 0, lease).ttl;
    assert!(left > 95, "the renewal counts, not the older note: {left} s");
}

#[test]
fn a_renewal_behind_a_clearing_under_way_waits_for_it() {
    let mut world = World::started(1, 4, &[]);
    let lease = grant(&mut world, 0, 400);
    pass(&mut world, Duration::from_secs(110));
    world.places[0].log_held = true;
    // A periodic save of the remaining time, and two renewals, while the log is held.
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
    // The lease is revoked and granted again, and its remaining time is saved, while the log is held: the
    // saved time comes last.
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
fn a_lease_that_is_granted_again_while_the_disk_stalls_is_not_ended_by_the_expiry_of_the_old_one() {
    let mut world = World::started(1, 8, &[]);
    let id = grant(&mut world, 0, 10);
    let other = grant(&mut world, 0, 10);
    world.places[0].log_held = true;
    let call = |world: &World, rpc, request: Vec<u8>| Box::pin(world.member(0).call(rpc, request.into()));
    let mut revoked = call(&world, Rpc::LeaseRevoke, LeaseRevokeRequest { id }.encode_to_vec());
    assert!(within(&mut world, Duration::from_millis(300), &mut revoked).is_none());
    let again = LeaseGrantRequest { ttl: 400, id };
    let mut granted = call(&world, Rpc::LeaseGrant, again.encode_to_vec());
    assert!(within(&mut world, Duration::from_millis(300), &mut granted).is_none());
    // The time of the old lease runs out, and that of another lease that is not granted again.
    pass(&mut world, Duration::from_secs(14));
    world.places[0].log_held = false;
    world.until("the other one is gone", |world| world.member(0).probe().leases == 1);
    pass(&mut world, Duration::from_secs(2));
    assert!(time_to_live(&mut world, 0, id).ttl > 380);
    assert_eq!(time_to_live(&mut world, 0, other).ttl, -1);
    pass(&mut world, Duration::from_secs(370));
    assert_eq!(world.member(0).probe().leases, 1);
    world.until("it expires in its time", |world| world.member(0).probe().leases == 0);
}

#[test]
fn a_lease_without_a_ttl_is_renewed_by_that_of_its_leader() {
    let mut world = World::started(3, 11, &[]);
    world.lead(0);
    // A member that runs etcd forwards a grant like this: every member raises the TTL by itself.
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
    // Lost responses keep anything from being committed.
    let leader = world.places[0].id;
    let is_append = |message: &Message| message.r#type == Some(MessageType::MsgAppResp as i32);
    world.lose(Some(Box::new(move |message| message.to == Some(leader) && is_append(message))));
    let request = LeaseRevokeRequest { id: lease }.encode_to_vec();
    let mut revoked = Box::pin(world.member(0).call(Rpc::LeaseRevoke, request.into()));
    assert!(within(&mut world, Duration::from_millis(200), &mut revoked).is_none());
    // The lease exists until the revocation is committed, so a renewal at a follower or at another leader may
    // succeed.
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
    // The lease is revoked and granted again; the leader has not applied that when it stops and saves the
    // remaining time.
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
    // The revocation is in the log, but not committed. As in etcd, a renewal waits for it.
    let mut early = Box::pin(world.member(0).renew(LeaseId(lease)));
    assert_eq!(within(&mut world, Duration::from_secs(3), &mut early), None);
    pass(&mut world, Duration::from_secs(8));
    let mut late = Box::pin(world.member(0).renew(LeaseId(lease)));
    assert_eq!(within(&mut world, Duration::from_secs(1), &mut late), None, "it is not revived");
    world.places[0].log_held = false;
    assert_eq!(world.run(late), Ok(Seconds(0)));
    assert_eq!(world.member(0).probe().leases, 0);
    // A lease granted with the same id is another lease; no second revocation ends it.
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
    // A quorum has just confirmed the leader.
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
    // The order of the grants differs from the order of the ids and from the order of expiry.
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
    // Another leader knows all leases, whether it has started their clocks or not.
    world.kill(leader);
    world.until("another leads", |world| world.leader().is_some_and(|at| at != leader));
    let now = world.leader().expect("somebody leads");
    let renewal = world.member(now).renew(LeaseId(COUNT));
    assert_eq!(world.run(renewal), Ok(Seconds(ttl_of(COUNT).expect("is granted"))));
    assert_eq!(world.member(now).probe().leases, COUNT as usize);
    let left = time_to_live(&mut world, now, 2999).ttl;
    assert!(left >= ttl_of(2999).expect("is granted"), "{left}");
}

/// From now on, only the member of this place can be elected.
fn only_leads(world: &World, at: usize) {
    let id = world.places[at].id;
    world.lose(Some(Box::new(move |message| match message.r#type() {
        MessageType::MsgVote | MessageType::MsgPreVote => message.from() != id,
        MessageType::MsgTimeoutNow => message.to() != id,
        _ => false,
    })));
}

/// Returns the TTL of a lease at a member that behaves like etcd and uses the saved remaining time. That
/// member leads after the leader has stopped, or crashed.
fn left_behind(world: &mut World, (before, next): (usize, usize), crashes: bool, id: i64) -> i64 {
    assert_eq!(world.leader(), Some(before));
    assert!(world.places[next].switches.speaks_as_etcd);
    only_leads(world, next);
    if crashes {
        world.crash(before);
    } else {
        world.member(before).stop();
    }
    world.until("the other leads", |world| world.leader() == Some(next));
    world.lose(None);
    time_to_live(world, next, id).ttl
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
        let left = left_behind(&mut world, (0, 1), crashes, lease);
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
        // More leases than one entry can reset.
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
        let left = left_behind(&mut world, (0, 2), crashes, leases[0]);
        assert!(left > 390, "{left} s");
        assert!(time_to_live(&mut world, 2, leases[1_199]).ttl > 390);
    }
}

/// Lets one member propose a saved remaining time of `seconds` for the lease, and waits until all members
/// have applied it.
fn note(world: &mut World, (from, leader): (usize, usize), lease: i64, seconds: i64) {
    let checkpoints = vec![pb::LeaseCheckpoint { id: lease, remaining_ttl: seconds }];
    let lease_checkpoint = Some(pb::LeaseCheckpointRequest { checkpoints });
    let header = Some(pb::RequestHeader { id: 9, ..Default::default() });
    let request = pb::InternalRaftRequest { header, lease_checkpoint, ..Default::default() };
    let entry = Entry { data: Some(request.encode_to_vec().into()), ..Default::default() };
    let mut messages = vec![Message {
        r#type: Some(MessageType::MsgProp as i32),
        from: Some(world.places[from].id),
        to: Some(world.places[leader].id),
        entries: vec![entry],
        ..Default::default()
    }];
    let before = world.member(leader).probe().applied;
    world.member(leader).peering().received(&mut messages);
    world.until("all have it", |world| world.members().all(|member| member.probe().applied > before));
}

#[test]
fn a_leader_behind_one_that_runs_etcd_gives_leases_their_whole_time() {
    let mut world = World::new(3, 24, &[]);
    world.places[1].switches.speaks_as_etcd = true;
    world.start_all();
    world.lead(1);
    let lease = grant(&mut world, 1, 400);
    // The saved time is from a period in which no member ran etcd, so later renewals have not reset it.
    note(&mut world, (0, 1), lease, 30);
    // A heartbeat tells the followers that the leader runs etcd. Then the leader is lost.
    pass(&mut world, Duration::from_secs(2));
    only_leads(&world, 0);
    world.kill(1);
    world.until("another leads", |world| world.leader() == Some(0));
    world.lose(None);
    let left = time_to_live(&mut world, 0, lease).ttl;
    assert!(left > 390, "{left} s");
    // The saved time was reset. Otherwise a member that runs etcd would use it.
    world.start(1).expect("starts");
    let last = world.member(0).probe().last_index;
    world.until("it has caught up", |world| world.member(1).probe().applied >= last);
    world.lead(1);
    let left = time_to_live(&mut world, 1, lease).ttl;
    assert!(left > 390, "{left} s");
}

#[test]
fn a_leader_that_settles_by_the_answer_of_one_that_runs_etcd_gives_leases_their_whole_time() {
    let mut world = World::new(3, 27, &[]);
    world.places[1].switches.speaks_as_etcd = true;
    world.start_all();
    world.lead(2);
    // Since its restart, the member has followed no leader that runs etcd.
    world.kill(0);
    world.start(0).expect("starts");
    let lease = grant(&mut world, 0, 400);
    note(&mut world, (0, 2), lease, 30);
    let (own, other) = (world.places[0].id, world.places[2].id);
    world.lose(Some(Box::new(move |message| {
        let answers = [MessageType::MsgAppResp, MessageType::MsgHeartbeatResp];
        message.to() == own && message.from() == other && answers.contains(&message.r#type())
    })));
    world.lead(0);
    let left = time_to_live(&mut world, 0, lease).ttl;
    assert!(left > 390, "{left} s");
    world.lose(None);
    pass(&mut world, Duration::from_secs(2));
    world.lead(1);
    let left = time_to_live(&mut world, 1, lease).ttl;
    assert!(left > 390, "{left} s");
}

#[test]
fn a_leader_that_could_not_take_notes_back_is_still_in_doubt_when_it_leads_again() {
    let mut world = World::new(5, 25, &[]);
    world.places[1].switches.speaks_as_etcd = true;
    world.start_all();
    world.lead(1);
    let lease = grant(&mut world, 1, 400);
    note(&mut world, (0, 1), lease, 100);
    // The entries with which this member resets saved times reach no other member.
    let own = world.places[0].id;
    world.lose(Some(Box::new(move |message| {
        let notes = |entry: &Entry| {
            let request = pb::InternalRaftRequest::decode(entry.data.clone().unwrap_or_default());
            request.is_ok_and(|request| request.lease_checkpoint.is_some())
        };
        message.from() == own && message.entries.iter().any(notes)
    })));
    world.lead(0);
    world.until("it takes notes back", |world| {
        let probe = world.member(0).probe();
        probe.last_index > probe.commit
    });
    // The other members know of no leader that ran etcd, and the only leader that did is lost.
    world.kill(1);
    world.cut(0, true);
    for at in 2..5 {
        world.kill(at);
        world.start(at).expect("starts");
    }
    let others = |world: &World| (2..5).find(|at| world.member(*at).probe().settled);
    world.until("another leads", |world| others(world).is_some());
    let next = others(&world).expect("one leads");
    assert!(time_to_live(&mut world, next, lease).ttl < 110, "it goes by the note");
    world.cut(0, false);
    let last = world.member(next).probe().last_index;
    world.until("it has caught up", |world| world.member(0).probe().applied >= last);
    world.lose(None);
    world.lead(0);
    let left = time_to_live(&mut world, 0, lease).ttl;
    assert!(left > 390, "{left} s");
    pass(&mut world, Duration::from_secs(2));
    world.lead(next);
    let left = time_to_live(&mut world, next, lease).ttl;
    assert!(left > 390, "{left} s");
}

#[test]
fn notes_are_taken_back_after_a_transfer_that_failed() {
    let mut world = World::started(3, 26, &[]);
    world.lead(0);
    let lease = grant(&mut world, 0, 400);
    pass(&mut world, Duration::from_secs(130));
    world.kill(2);
    world.places[2].switches.speaks_as_etcd = true;
    world.lose(Some(Box::new(|message| message.r#type() == MessageType::MsgTimeoutNow)));
    let request = MoveLeaderRequest { target_id: world.places[1].id };
    let moving = world.member(0).call(Rpc::MaintenanceMoveLeader, request.encode_to_vec().into());
    // The transfer is in progress when the leader learns what the other member runs.
    world.start(2).expect("starts");
    assert!(world.try_run(moving).expect("the members go on").is_err(), "nobody hears that it is to lead");
    world.lose(None);
    assert_eq!(world.leader(), Some(0));
    pass(&mut world, Duration::from_secs(2));
    world.lead(2);
    let left = time_to_live(&mut world, 2, lease).ttl;
    assert!(left > 390, "{left} s");
}

/// Grants `count` leases of 400 s concurrently.
fn grant_many(world: &mut World, at: usize, count: i64) {
    let request = |id| LeaseGrantRequest { ttl: 400, id }.encode_to_vec().into();
    let granted: Vec<_> = (1..=count).map(|id| world.member(at).call(Rpc::LeaseGrant, request(id))).collect();
    for one in granted {
        world.run(one).expect("is granted");
    }
}

#[test]
fn very_many_leases_are_sent_in_blocks_to_receivers_that_announce_to_read_them() {
    const COUNT: i64 = 6_000;
    let mut world = World::started(3, 37, &["--snapshot-count=20", "--snapshot-catchup-entries=20"]);
    world.lead(0);
    world.cut(2, true);
    for first in (1..=COUNT).step_by(3000) {
        let requests = (first..first + 3000).map(|id| LeaseGrantRequest { ttl: 36_000, id }.encode_to_vec());
        let granted: Vec<_> =
            requests.map(|request| world.member(0).call(Rpc::LeaseGrant, request.into())).collect();
        for one in granted {
            world.run(one).expect("is granted");
        }
    }
    for (announced, format) in [(true, 2), (false, 1)] {
        world.post.lock().expect("nobody panicked").formats_unannounced = !announced;
        for n in 0..60 {
            world.put(0, "k", &[n]).expect("two of three are enough");
        }
        world.until("the log lets go of what is needed", |world| {
            world.member(2).probe().last_index + 1 < world.member(0).probe().first_index
        });
        world.cut(2, false);
        world.until("it has all leases", |world| {
            world.member(2).probe().leases as i64 == COUNT
                && world.member(2).probe().applied == world.member(0).probe().applied
        });
        assert_eq!(world.post.lock().expect("nobody panicked").formats.last(), Some(&format));
        world.cut(2, true);
    }
}

/// Restarts a member as one that behaves like etcd.
fn becomes_etcd(world: &mut World, at: usize) {
    world.kill(at);
    world.places[at].switches.speaks_as_etcd = true;
    world.start(at).expect("starts");
}

#[test]
fn notes_are_taken_back_no_faster_than_the_disks_take_it() {
    let mut world = World::started(3, 26, &[]);
    world.lead(0);
    grant_many(&mut world, 0, 9_500);
    pass(&mut world, Duration::from_secs(130));
    becomes_etcd(&mut world, 2);
    for at in [0, 1] {
        world.places[at].log_held = true;
    }
    let ahead = |world: &World| {
        let probe = world.member(0).probe();
        probe.last_index - probe.applied
    };
    world.until("some are taken back", |world| ahead(world) >= 4);
    pass(&mut world, Duration::from_millis(200));
    // The attributes that the restarted member publishes are an entry, too.
    assert!(ahead(&world) <= 6, "ten would be one write: {}", ahead(&world));
    for at in [0, 1] {
        world.places[at].log_held = false;
    }
    pass(&mut world, Duration::from_secs(2));
    let left = left_behind(&mut world, (0, 2), true, 9_500);
    assert!(left > 390, "{left} s");
}

#[test]
fn notes_that_are_taken_back_leave_a_full_disk_the_room_for_deletes() {
    let mut world = World::started(3, 27, &["--snapshot-count=20", "--snapshot-catchup-entries=20"]);
    world.lead(0);
    grant_many(&mut world, 0, 5_000);
    pass(&mut world, Duration::from_secs(130));
    let disk = world.places[0].disk.clone();
    disk.set_capacity(Some(disk.used_bytes() + (128 << 10)));
    let mut puts = 0;
    while world.put(0, &format!("k{puts:05}"), &[1; 700]).is_ok() {
        puts += 1;
    }
    becomes_etcd(&mut world, 2);
    for n in 0..4 {
        pass(&mut world, Duration::from_millis(500));
        let request = pb::DeleteRangeRequest { key: format!("k{n:05}").into(), ..Default::default() };
        let deleted: Result<pb::DeleteRangeResponse, _> = world.call(0, Rpc::KvDeleteRange, &request);
        assert_eq!(deleted.map(|answer| answer.deleted), Ok(1), "{n} of {puts}");
    }
    disk.set_capacity(None);
    pass(&mut world, Duration::from_secs(3));
    let left = left_behind(&mut world, (0, 2), true, 5_000);
    assert!(left > 390, "{left} s");
}
