//! Changes of the membership and of the leader, with messages lost and windows full.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use api::error;
use api::etcdserverpb::{
    MemberRemoveRequest, MemberRemoveResponse, MoveLeaderRequest, PutRequest, RangeRequest, RangeResponse,
};
use api::raftpb::{Entry, EntryType, Message, MessageType};
use mainstay_server::stepped::Stepped;
use peer::Handler as _;
use prost::Message as _;

use super::world::World;
use super::{PUT, RANGE};

const REMOVE: &str = "/etcdserverpb.Cluster/MemberRemove";
const MOVE: &str = "/etcdserverpb.Maintenance/MoveLeader";
/// Members may be removed although they have not been connected for long.
const LAX: &str = "--strict-reconfig-check=false";

/// Loses the first messages between any two members that tell that a change of the membership is committed.
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

/// Removes the leader while clients write, and has the members that are left serve.
fn removes_its_leader(world: &mut World) {
    let leader = world.leader().expect("somebody leads");
    let id = world.places[leader].id;
    let puts =
        |n: u32| PutRequest { key: format!("k{n}").into(), value: vec![1; 100].into(), ..Default::default() };
    let member = world.member(leader);
    let mut calls: Vec<_> = (0..8).map(|n| member.call(PUT, puts(n).encode_to_vec().into())).collect();
    calls.push(member.call(REMOVE, MemberRemoveRequest { id }.encode_to_vec().into()));
    calls.extend((8..40).map(|n| member.call(PUT, puts(n).encode_to_vec().into())));
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
            let said = "handing leadership over before being removed";
            for removed in 1..members {
                commits_of_changes_get_lost(&world, times);
                let leader = world.leader().expect("somebody leads");
                let id = world.places[leader].id;
                // The answer may be what is lost.
                let _: Result<MemberRemoveResponse, _> =
                    world.call(leader, REMOVE, &MemberRemoveRequest { id });
                world.lose(None);
                if world.places[leader].member.is_some() && times > 0 {
                    // It may not have heard that it was removed; where it asks, it is told so.
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
            world.call(leader, REMOVE, &MemberRemoveRequest { id }).expect("is removed");
        world.put(leader, "k", b"v").expect("one is enough");
        assert_eq!(world.member(leader).probe().voters, [world.places[leader].id]);
    }
}

#[test]
fn a_follower_has_its_leader_removed() {
    for members in 2..=4 {
        let mut world = World::started(members, 9, &[LAX]);
        let leader = world.leader().expect("somebody leads");
        let id = world.places[leader].id;
        let follower = (leader + 1) % members;
        let _: MemberRemoveResponse =
            world.call(follower, REMOVE, &MemberRemoveRequest { id }).expect("the leader is removed");
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

/// Nobody is known to be connected, so the leader cannot hand over; and the one that is left hears that the removal is
/// committed together with entries that are not on its disk yet.
#[test]
fn the_last_member_is_told_while_its_log_is_busy() {
    let mut world = World::started(2, 8, &[LAX]);
    world.post.lock().expect("nobody panicked").strangers = true;
    let leader = world.leader().expect("somebody leads");
    let (id, left) = (world.places[leader].id, world.places[1 - leader].id);
    let (held, acknowledged) = (Arc::<Mutex<Vec<Message>>>::default(), Arc::<Mutex<Vec<Message>>>::default());
    let (holding, keeping, mut changed) = (Arc::clone(&held), Arc::clone(&acknowledged), false);
    world.lose(Some(Box::new(move |message: &Message| {
        let is_of = |kind: MessageType| message.r#type == Some(kind as i32);
        let appends = changed && message.to == Some(left) && is_of(MessageType::MsgApp);
        let answers = changed && message.to == Some(id) && is_of(MessageType::MsgAppResp);
        changed |=
            message.entries.iter().any(|entry| entry.r#type == Some(EntryType::EntryConfChange as i32));
        if appends {
            holding.lock().expect("nobody panicked").push(message.clone());
        } else if answers {
            keeping.lock().expect("nobody panicked").push(message.clone());
        }
        appends || answers
    })));
    let remove = MemberRemoveRequest { id }.encode_to_vec();
    let removal = world.member(leader).call(REMOVE, remove.into());
    let mut put = None;
    world.until("the removal is committed, and a write is behind it", |world| {
        let mut answers = acknowledged.lock().expect("nobody panicked");
        if put.is_none() && !answers.is_empty() {
            let request = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
            put = Some(world.member(leader).call(PUT, request.encode_to_vec().into()));
        }
        if held.lock().expect("nobody panicked").iter().any(|message| !message.entries.is_empty()) {
            world.member(leader).peering().received(&mut answers);
        }
        world.member(leader).probe().voters.len() == 1
    });
    world.lose(None);
    let mut messages = std::mem::take(&mut *held.lock().expect("nobody panicked"));
    assert!(messages.iter().any(|message| !message.entries.is_empty()), "writes came behind the removal");
    world.member(1 - leader).peering().received(&mut messages);
    assert!(world.run(removal).is_ok());
    drop(put);
    world.until("the one that is left leads", |world| world.leader() == Some(1 - leader));
    world.put(1 - leader, "k", b"v").expect("one is enough");
    assert_eq!(world.member(1 - leader).probe().voters, [left]);
}

#[test]
fn a_removal_is_heard_of_though_the_leader_could_not_hand_over() {
    for members in [2, 4] {
        for times in [1, 3] {
            let mut world = World::started(members, 3, &[LAX]);
            world.post.lock().expect("nobody panicked").strangers = true;
            commits_of_changes_get_lost(&world, times);
            let leader = world.leader().expect("somebody leads");
            let id = world.places[leader].id;
            let _: MemberRemoveResponse =
                world.call(leader, REMOVE, &MemberRemoveRequest { id }).expect("is removed");
            serves_without(&mut world, leader, id);
        }
    }
}

#[test]
fn moving_a_leadership_that_is_just_lost_is_refused() {
    let mut world = World::started(3, 2, &[]);
    let leader = world.leader().expect("somebody leads");
    let (id, other) = (world.places[leader].id, world.places[(leader + 1) % 3].id);
    // Both come before the leader's next turn.
    let newer = Message {
        r#type: Some(MessageType::MsgHeartbeatResp as i32),
        to: Some(id),
        from: Some(other),
        term: Some(world.member(leader).probe().term + 1),
        ..Message::default()
    };
    world.member(leader).peering().received(&mut vec![newer]);
    let request = MoveLeaderRequest { target_id: other };
    let answer = world.member(leader).call(MOVE, request.encode_to_vec().into());
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
    // Nobody confirms these.
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
    let found: RangeResponse = world.call(leader, RANGE, &key).expect("is answered once there is room");
    assert_eq!(found.count, 0);
    let leaders: BTreeSet<u64> = world.members().map(|member: &Stepped| member.published().leader).collect();
    assert_eq!(leaders.len(), 1);
}
