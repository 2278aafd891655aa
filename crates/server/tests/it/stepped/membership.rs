//! Changes of the membership and of the leader, with lost messages and full windows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use api::Rpc;
use api::error;
use api::etcdserverpb::{
    MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberRemoveRequest,
    MemberRemoveResponse, MoveLeaderRequest, PutRequest, RangeRequest, RangeResponse,
};
use api::raftpb::{Entry, EntryType, Message, MessageType};
use mainstay_server::stepped::Stepped;
use peer::Handler as _;
use prost::Message as _;

use super::world::World;

/// Option with which members may be removed even if they have not been connected for long.
const LAX: &str = "--strict-reconfig-check=false";

/// Loses the first messages between any two members that say that a membership change is committed.
fn commits_of_changes_get_lost(world: &World, times: usize) {
    let (mut change, mut lost) = (None, Vec::new());
    world.lose(Some(Box::new(move |message: &Message| {
        for entry in &message.entries {
            if entry.r#type == Some(EntryType::EntryConfChange as i32) && entry.index.is_some() {
                change = entry.index;
            }
        }
        let tells = change.is_some_and(|index| message.commit.is_some_and(|commit| commit >= index));
        let way = (message.from, message.to);
        let is_lost = tells && lost.iter().filter(|other| **other == way).count() < times;
        if is_lost {
            lost.push(way);
        }
        is_lost
    })));
}

/// Removes the leader while clients write, and checks that the remaining members serve.
fn removes_its_leader(world: &mut World) {
    let leader = world.leader().expect("somebody leads");
    let id = world.places[leader].id;
    let puts =
        |n: u32| PutRequest { key: format!("k{n}").into(), value: vec![1; 100].into(), ..Default::default() };
    let member = world.member(leader);
    let mut calls: Vec<_> = (0..8).map(|n| member.call(Rpc::KvPut, puts(n).encode_to_vec().into())).collect();
    calls.push(member.call(Rpc::ClusterMemberRemove, MemberRemoveRequest { id }.encode_to_vec().into()));
    calls.extend((8..40).map(|n| member.call(Rpc::KvPut, puts(n).encode_to_vec().into())));
    let removed = world.run_all(calls).swap_remove(8);
    assert!(removed.is_ok(), "the leader is removed: {removed:?}");
    serves_without(world, leader, id);
}

fn serves_without(world: &mut World, gone: usize, id: u64) {
    let left = |world: &World| -> Vec<usize> {
        (0..world.places.len()).filter(|at| *at != gone && world.places[*at].member.is_some()).collect()
    };
    world.until("the others lead themselves", |world| {
        left(world).iter().any(|at| world.member(*at).probe().settled)
            && left(world).iter().all(|at| !world.member(*at).probe().voters.contains(&id))
    });
    for at in left(world) {
        world.put(at, "after", b"v").expect("is taken");
        assert_eq!(world.get(at, "after"), Some(b"v".to_vec()));
    }
    world.until("the removed member ends", |world| world.places[gone].member.is_none());
}

#[test]
fn two_members_become_one_while_clients_write() {
    for seed in 0..4 {
        let mut world = World::started(2, seed, &[LAX]);
        removes_its_leader(&mut world);
    }
}

#[test]
fn clusters_shrink_to_one_leader_by_leader_though_messages_are_lost() {
    for members in 2..=5 {
        for times in [0, 1, 3] {
            let mut world = World::started(members, 3, &[LAX]);
            let said = "transferring leadership before being removed";
            for removed in 1..members {
                commits_of_changes_get_lost(&world, times);
                let leader = world.leader().expect("somebody leads");
                let id = world.places[leader].id;
                // The lost message may be the response.
                let _: Result<MemberRemoveResponse, _> =
                    world.call(leader, Rpc::ClusterMemberRemove, &MemberRemoveRequest { id });
                world.lose(None);
                if world.places[leader].member.is_some() && times > 0 {
                    // The removed leader may not know of its removal; another member reports it on contact.
                    world.kill(leader);
                }
                serves_without(&mut world, leader, id);
                assert_eq!(world.text().matches(said).count(), removed);
            }
        }
    }
}

#[test]
fn a_follower_is_removed_and_its_leader_goes_on_alone() {
    for times in [0, 1, 3] {
        let mut world = World::started(2, 1, &[LAX]);
        let leader = world.leader().expect("somebody leads");
        let id = world.places[1 - leader].id;
        commits_of_changes_get_lost(&world, times);
        let _: MemberRemoveResponse =
            world.call(leader, Rpc::ClusterMemberRemove, &MemberRemoveRequest { id }).expect("is removed");
        world.put(leader, "k", b"v").expect("one is enough");
        assert_eq!(world.member(leader).probe().voters, [world.places[leader].id]);
    }
}

#[test]
fn a_member_is_added_again_through_one_that_has_yet_to_hear_of_its_removal() {
    for times in [1, 3] {
        let mut world = World::started(3, 6, &[LAX]);
        let leader = world.leader().expect("somebody leads");
        let (follower, gone) = ((leader + 1) % 3, (leader + 2) % 3);
        let id = world.places[gone].id;
        let list = MemberListRequest { linearizable: true };
        let listed: MemberListResponse =
            world.call(leader, Rpc::ClusterMemberList, &list).expect("is listed");
        let member = listed.members.into_iter().find(|member| member.id == id).expect("is a member");
        commits_of_changes_get_lost(&world, times);
        let remove = MemberRemoveRequest { id };
        let _: MemberRemoveResponse =
            world.call(leader, Rpc::ClusterMemberRemove, &remove).expect("is removed");
        assert!(world.member(follower).probe().voters.contains(&id), "it has heard of it already");
        let add = MemberAddRequest { peer_urls: member.peer_urls, is_learner: false, is_witness: false };
        let added: MemberAddResponse = world.call(follower, Rpc::ClusterMemberAdd, &add).expect("is added");
        assert_eq!(added.members.len(), 3);
        let again: Result<MemberAddResponse, _> = world.call(follower, Rpc::ClusterMemberAdd, &add);
        // The member's id is derived from its URLs and from the time in seconds, so a second add in the same
        // second gives the same id.
        assert_eq!(again, Err(error::MEMBER_EXIST));
        let again: Result<MemberRemoveResponse, _> = world.call(follower, Rpc::ClusterMemberRemove, &remove);
        assert_eq!(again, Err(error::MEMBER_NOT_FOUND));
    }
}

/// The second attempt of a change that was refused belongs to the same call, whatever other clients ask for meanwhile.
#[test]
fn a_change_that_is_judged_twice_is_logged_with_its_own_client_and_method() {
    let mut world = World::started(3, 14, &[LAX]);
    world.lead(0);
    let follower = 1;
    world.cut(follower, true);
    let call = |world: &World, rpc: Rpc, request: Vec<u8>, port: u16| {
        let mut head = world.member(follower).head(rpc);
        head.peer.set_port(port);
        world.member(follower).call_as(head, request.into())
    };
    let remove = MemberRemoveRequest { id: 77 }.encode_to_vec();
    let range = RangeRequest { key: "k".into(), ..RangeRequest::default() }.encode_to_vec();
    let mut calls = vec![call(&world, Rpc::ClusterMemberRemove, remove, 7001)];
    // It is refused, and now waits for a confirmation that does not come.
    world.settle().expect("all go on");
    assert!(calls[0].as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    calls.push(call(&world, Rpc::KvRange, range, 7002));
    let until = world.places[0].clock.now() + Duration::from_secs(2);
    world.until("the calls have become slow", |world| world.places[0].clock.now() >= until);
    world.cut(follower, false);
    let answers = world.run_all(calls);
    assert_eq!(answers[0].clone().map(drop), Err(error::MEMBER_NOT_FOUND));
    assert!(answers[1].is_ok(), "{:?}", answers[1]);
    let text = world.text();
    for (method, port) in [("/etcdserverpb.Cluster/MemberRemove", 7001), ("/etcdserverpb.KV/Range", 7002)] {
        let lines: Vec<&str> =
            text.lines().filter(|line| line.contains("request stats") && line.contains(method)).collect();
        assert!(lines.len() == 1 && lines[0].contains(&format!("127.0.0.1:{port}")), "{method}: {lines:?}");
    }
}

#[test]
fn a_follower_has_its_leader_removed() {
    for members in 2..=4 {
        let mut world = World::started(members, 9, &[LAX]);
        let leader = world.leader().expect("somebody leads");
        let id = world.places[leader].id;
        let follower = (leader + 1) % members;
        let _: MemberRemoveResponse = world
            .call(follower, Rpc::ClusterMemberRemove, &MemberRemoveRequest { id })
            .expect("the leader is removed");
        serves_without(&mut world, leader, id);
    }
}

#[test]
fn a_leader_is_removed_whose_windows_are_full() {
    let mut world = World::new(2, 5, &[LAX]);
    for place in &mut world.places {
        place.switches.bytes_in_flight_max = Some(300);
    }
    world.start_all();
    removes_its_leader(&mut world);
}

#[test]
fn a_removal_is_heard_of_though_the_leader_could_not_hand_over() {
    for members in [3, 4] {
        for times in [1, 3] {
            let mut world = World::started(members, 3, &[LAX]);
            world.post.lock().expect("nobody panicked").strangers = true;
            commits_of_changes_get_lost(&world, times);
            let leader = world.leader().expect("somebody leads");
            let id = world.places[leader].id;
            let _: MemberRemoveResponse = world
                .call(leader, Rpc::ClusterMemberRemove, &MemberRemoveRequest { id })
                .expect("is removed");
            serves_without(&mut world, leader, id);
        }
    }
}

/// The leader could end before the other member learns of the removal; that member would then wait for its
/// vote forever.
#[test]
fn a_leader_of_two_is_not_removed_before_it_has_handed_over() {
    for asked in [0, 1] {
        let mut world = World::started(2, 3, &[LAX]);
        let leader = world.leader().expect("somebody leads");
        let id = world.places[leader].id;
        // No member knows that another is connected.
        world.post.lock().expect("nobody panicked").strangers = true;
        let remove = MemberRemoveRequest { id };
        let outcome: Result<MemberRemoveResponse, _> =
            world.call((leader + asked) % 2, Rpc::ClusterMemberRemove, &remove);
        assert_eq!(outcome.map(|_| ()), Err(error::TIMEOUT));
        assert_eq!(world.member(leader).probe().voters.len(), 2);
        world.put(leader, "k", b"v").expect("both are there");
        world.post.lock().expect("nobody panicked").strangers = false;
        let _: MemberRemoveResponse =
            world.call(leader, Rpc::ClusterMemberRemove, &remove).expect("it can hand over");
        serves_without(&mut world, leader, id);
    }
}

/// The other member has all entries, but never receives the request to lead. Clients write between two attempts.
#[test]
fn clients_write_while_a_leader_of_two_cannot_hand_over() {
    let mut world = World::started(2, 3, &[LAX]);
    let leader = world.leader().expect("somebody leads");
    let id = world.places[leader].id;
    let hands_over = |message: &Message| message.r#type == Some(MessageType::MsgTimeoutNow as i32);
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    world.lose(Some(Box::new(move |message: &Message| {
        counted.fetch_add(usize::from(hands_over(message)), Ordering::Relaxed);
        hands_over(message)
    })));
    let remove = MemberRemoveRequest { id };
    let mut removal = world.member(leader).call(Rpc::ClusterMemberRemove, remove.encode_to_vec().into());
    let mut context = Context::from_waker(Waker::noop());
    let mut writes = 0;
    while removal.as_mut().poll(&mut context).is_pending() {
        world.put(leader, "k", b"v").expect("is written");
        writes += 1;
        world.wait();
    }
    let attempts = attempts.load(Ordering::Relaxed);
    assert!(attempts > 1, "it tries again");
    assert!(writes > 5 * attempts, "{writes} writes, one after the other, and {attempts} attempts");
    world.lose(None);
    let _: MemberRemoveResponse =
        world.call(leader, Rpc::ClusterMemberRemove, &remove).expect("it can hand over");
    serves_without(&mut world, leader, id);
}

#[test]
fn moving_a_leadership_that_is_just_lost_is_refused() {
    let mut world = World::started(3, 2, &[]);
    let leader = world.leader().expect("somebody leads");
    let (id, other) = (world.places[leader].id, world.places[(leader + 1) % 3].id);
    // Both messages arrive before the leader's next turn.
    let newer = Message {
        r#type: Some(MessageType::MsgHeartbeatResp as i32),
        to: Some(id),
        from: Some(other),
        term: Some((world.member(leader).probe().term + 1).0),
        ..Message::default()
    };
    world.member(leader).peering().received(&mut vec![newer]);
    let request = MoveLeaderRequest { target_id: other };
    let answer = world.member(leader).call(Rpc::MaintenanceMoveLeader, request.encode_to_vec().into());
    if let Some(member) = &mut world.places[leader].member {
        member.poll_tasks();
    }
    assert_eq!(world.run(answer).map(|_| ()), Err(error::NOT_LEADER));
    world.until("somebody leads again", |world| world.leader().is_some());
    world.put(leader, "k", b"v").expect("is taken");
}

#[test]
fn reads_beyond_what_a_leader_can_ask_for_at_once_wait() {
    let mut world = World::started(3, 2, &[]);
    let leader = world.leader().expect("somebody leads");
    let (id, other) = (world.places[leader].id, world.places[(leader + 1) % 3].id);
    // No member confirms these reads.
    let read = |n: u64| Message {
        r#type: Some(MessageType::MsgReadIndex as i32),
        to: Some(id),
        from: Some(other),
        entries: vec![Entry { data: Some(n.to_be_bytes().to_vec().into()), ..Entry::default() }],
        ..Message::default()
    };
    let mut reads: Vec<Message> = (0..5000).map(|n| read(n << 20)).collect();
    world.member(leader).peering().received(&mut reads);
    let key = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    let found: RangeResponse =
        world.call(leader, Rpc::KvRange, &key).expect("is answered once there is room");
    assert_eq!(found.count, 0);
    let leaders: BTreeSet<u64> = world.members().map(|member: &Stepped| member.published().leader).collect();
    assert_eq!(leaders.len(), 1);
}

#[test]
fn a_member_that_runs_3_5_tells_its_name() {
    let mut world = World::started(3, 51, &[]);
    world.lead(0);
    let [leader, other] = [0, 1].map(|at| world.places[at].id);
    // A member that runs 3.5 puts its attributes into its v2 store, and all members read them.
    let mut data = Vec::new();
    api::wire::put_number(&mut data, 1, 9);
    api::wire::put_bytes(&mut data, 2, b"PUT");
    api::wire::put_bytes(&mut data, 3, format!("/0/members/{other:x}/attributes").as_bytes());
    api::wire::put_bytes(&mut data, 4, br#"{"name":"of 3.5","clientURLs":["http://c:1"]}"#);
    let entry = Entry { data: Some(data.into()), ..Entry::default() };
    let mut messages = vec![Message {
        r#type: Some(MessageType::MsgProp as i32),
        from: Some(other),
        to: Some(leader),
        entries: vec![entry],
        ..Message::default()
    }];
    world.member(0).peering().received(&mut messages);
    world.until("all know its name", |world| {
        world.members().all(|member| {
            let members = &member.published().members;
            members
                .by_id
                .get(&other)
                .is_some_and(|told| told.name == "of 3.5" && told.client_urls == ["http://c:1"])
        })
    });
}

#[test]
fn a_second_learner_is_refused_while_a_member_may_run_etcd() {
    for (etcd, allowed) in [(true, false), (false, true)] {
        let mut world = World::new(3, 25, &[LAX, "--max-learners=5"]);
        world.places[1].switches.speaks_as_etcd = etcd;
        world.start_all();
        world.lead(0);
        // Followers learn of the change with a heartbeat.
        let until = world.places[0].clock.elapsed() + std::time::Duration::from_secs(2);
        world.until("time has gone by", |world| world.places[0].clock.elapsed() >= until);
        let add = |world: &mut World, at: usize, number: usize| {
            let peer_urls = vec![format!("http://10.0.1.{number}:2380")];
            let request = MemberAddRequest { peer_urls, is_learner: true, is_witness: false };
            world.call::<_, MemberAddResponse>(at, Rpc::ClusterMemberAdd, &request)
        };
        add(&mut world, 0, 1).expect("every etcd allows one");
        for at in [0, 2] {
            match add(&mut world, at, 2 + at) {
                Ok(_) => assert!(allowed, "member {at}"),
                Err(status) => {
                    assert!(!allowed, "member {at}: {status:?}");
                    assert_eq!(status, error::TOO_MANY_LEARNERS);
                }
            }
        }
        let reason = "a voter runs etcd or has not reported yet, or a learner runs etcd";
        assert_eq!(world.text().matches(reason).count(), if etcd { 2 } else { 0 });
    }
}

/// The member must not wait for the next tick to lead.
#[test]
fn a_member_without_others_leads_as_soon_as_it_has_read_its_log() {
    let mut world = World::started(1, 83, &[]);
    for n in 0..5 {
        world.put(0, &format!("key{n}"), b"value").expect("writes");
    }
    world.kill(0);
    // Applying the log takes several turns.
    world.places[0].applied_per_turn = 3;
    world.start(0).expect("starts again");
    world.settle().expect("goes on");
    assert_eq!(world.leader(), Some(0));
}

/// An observer may follow the history of another cluster, in which this member was removed. What it says about that
/// counts for nothing.
#[test]
fn a_node_that_is_no_member_cannot_end_a_member() {
    let mut world = World::started(3, 22, &[]);
    world.lead(0);
    world.member(2).peering().removed(0x0b5e);
    world.put(0, "k", b"v").expect("is taken");
    world.settle().expect("goes on");
    assert!(world.places[2].member.is_some());
    assert_eq!(world.get(2, "k"), Some(b"v".to_vec()));
}

/// Only its own log tells a member for certain that it was removed. If a peer says so, the process ends, but
/// this is not recorded: the peer may be wrong, and the member that then refused to start might be the one
/// that has the data (docs/operations.md).
#[test]
fn a_member_that_is_told_wrongly_that_it_was_removed_goes_on_once_it_is_started_again() {
    let mut world = World::started(3, 21, &[]);
    world.lead(0);
    world.put(0, "k", b"v").expect("is taken");
    // The sender is a peer that was turned into a separate cluster, or another program at the address of a
    // peer.
    let by = world.member(1).identity().member_id;
    world.member(2).peering().removed(by);
    world.until("the member that was told so ends", |world| world.places[2].member.is_none());
    assert!(world.text().contains("has been permanently removed from the cluster"), "{}", world.text());
    world.start(2).expect("nothing in its log says that it was removed");
    // The restarted member's vote counts.
    world.kill(1);
    world.put(0, "k", b"w").expect("two of three are enough");
    assert_eq!(world.get(2, "k"), Some(b"w".to_vec()));
}
