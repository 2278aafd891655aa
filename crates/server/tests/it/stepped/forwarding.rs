//! Writes that a follower hands on to its leader, when that leader is lost.

use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use api::Rpc;
use api::etcdserverpb::{PutRequest, RangeRequest, RangeResponse};
use api::raftpb::{Message, MessageType};
use peer::Handler as _;
use prost::Message as _;

use super::world::World;

/// The times that the key was written.
fn writes(world: &mut World, at: usize) -> i64 {
    let asked = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    let found: RangeResponse = world.call(at, Rpc::KvRange, &asked).expect("is answered");
    found.kvs.first().map_or(0, |kv| kv.version)
}

/// A follower hands a write on to a leader, which gets it only when it leads no more. Tells how often it was written,
/// and whether its client was told so.
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
    // What was on its way all the time gets there now.
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
