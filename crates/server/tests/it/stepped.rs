//! Members that are driven step by step: they serve, recover, replicate, and repeat their runs.

mod certificates;
mod compared;
mod compression;
mod databases;
mod downgrades;
mod flags;
mod forwarding;
mod full_disk;
mod large_values;
mod leases;
mod locks;
mod membership;
mod questions;
mod raised_revision;
mod sliced;
mod uncached;
mod users;
mod world;

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use api::Rpc;
use api::error;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    self as pb, CompactionRequest, CompactionResponse, Compare, LeaseGrantRequest, LeaseGrantResponse,
    MemberAddRequest, MemberAddResponse, MemberPromoteRequest, MemberPromoteResponse, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, compare, request_op,
};
use disk::Fault;
use numbers::{Index, LeaseId, Seconds};

use mainstay_server::stepped::{Beginning, Identity, Stepped};
use world::{Stream, World};

fn all_keys() -> RangeRequest {
    RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() }
}

#[test]
fn one_member_serves_everything() {
    let mut world = World::started(1, 1, &[]);
    // A watch that runs as one of the member's tasks.
    let stream = Stream::default();
    stream.ask(&WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
            key: "a".into(),
            range_end: "z".into(),
            ..WatchCreateRequest::default()
        })),
    });
    let member = world.member(0);
    let watching = member.watch(true, stream.clone(), stream.clone(), std::future::pending());
    member.spawn(async move {
        let _ = watching.await;
    });
    world.until("the watch is there", |_| !stream.responses.borrow().is_empty());

    let put = world.put(0, "k", b"1").expect("is taken");
    let revision = put.header.expect("has one").revision;
    assert_eq!(world.get(0, "k"), Some(b"1".to_vec()));
    let txn = TxnRequest {
        compare: vec![Compare {
            key: "k".into(),
            result: compare::CompareResult::Equal as i32,
            target: compare::CompareTarget::Value as i32,
            target_union: Some(compare::TargetUnion::Value("1".into())),
            ..Compare::default()
        }],
        success: vec![RequestOp {
            request: Some(request_op::Request::RequestPut(pb::PutRequest {
                key: "k".into(),
                value: "2".into(),
                ..pb::PutRequest::default()
            })),
        }],
        failure: Vec::new(),
    };
    let answer: TxnResponse = world.call(0, Rpc::KvTxn, &txn).expect("is taken");
    assert!(answer.succeeded);
    assert_eq!(world.get(0, "k"), Some(b"2".to_vec()));

    // A lease that is not renewed expires and deletes its key.
    let grant = LeaseGrantRequest { ttl: 5, id: 0 };
    let lease: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &grant).expect("is granted");
    let put = pb::PutRequest { key: "l".into(), lease: lease.id, ..pb::PutRequest::default() };
    let _: pb::PutResponse = world.call(0, Rpc::KvPut, &put).expect("is taken");
    let began = world.places[0].clock.elapsed();
    let past =
        |world: &World, seconds| world.places[0].clock.elapsed() - began >= Duration::from_secs(seconds);
    for seconds in [3, 6, 9] {
        world.until("time has gone by", |world| past(world, seconds));
        let renewal = world.member(0).renew(LeaseId(lease.id));
        assert_eq!(world.run(renewal), Ok(Seconds(5)));
    }
    assert_eq!(world.get(0, "l"), Some(Vec::new()));
    world.until("the lease has expired", |world| world.member(0).probe().leases == 0);
    assert!(past(&world, 14), "not before its time");
    assert_eq!(world.get(0, "l"), None);
    let renewal = world.member(0).renew(LeaseId(lease.id));
    assert_eq!(world.run(renewal), Ok(Seconds(0)));

    let events: Vec<(i64, Vec<u8>)> = stream
        .responses
        .borrow()
        .iter()
        .flat_map(|response| &response.events)
        .map(|event| event.kv.as_ref().expect("has one"))
        .map(|kv| (kv.mod_revision, kv.key.to_vec()))
        .collect();
    let expected: Vec<(i64, Vec<u8>)> =
        (revision..).zip([b"k", b"k", b"l", b"l"]).map(|(at, key)| (at, key.to_vec())).collect();
    assert_eq!(events, expected);
    // The cluster's version is agreed on, as in every cluster.
    world.until("the cluster has a version", |world| {
        !world.member(0).published().members.cluster_version.is_empty()
    });
    world.member(0).stop();
    world.until("the member has stopped", |world| world.members().count() == 0);
}

/// Puts until segments fill up, checkpoints are taken, the log is compacted, and live values are moved. Adds
/// acknowledged puts to `known`, and puts whose outcome is unknown to `open`.
fn wear(
    world: &mut World,
    known: &mut BTreeMap<String, Vec<u8>>,
    open: &mut BTreeMap<String, Vec<u8>>,
) -> Result<(), String> {
    use prost::Message as _;
    for n in 0..180u32 {
        // One key in nine is written only once; its value keeps a segment alive until the value is moved.
        let key = if n % 9 == 0 { format!("kept-{n}") } else { format!("busy-{}", n % 5) };
        let value = vec![n as u8; 300 + (n as usize * 37) % 900];
        open.insert(key.clone(), value.clone());
        let put =
            pb::PutRequest { key: key.clone().into(), value: value.clone().into(), ..Default::default() };
        let answer = world.member(0).call(Rpc::KvPut, put.encode_to_vec().into());
        if world.try_run(answer)?.is_ok() {
            open.remove(&key);
            known.insert(key, value);
        }
        if n % 40 == 39 {
            let revision = world.member(0).probe().revision - 3;
            let compaction = CompactionRequest { revision: revision.0, physical: true };
            let answer = world.member(0).call(Rpc::KvCompact, compaction.encode_to_vec().into());
            world.try_run(answer)?.map_err(|status| status.message.into_owned())?;
        }
    }
    world.settle()
}

const WORN: &[&str] = &["--snapshot-count=20", "--snapshot-catchup-entries=20"];

#[test]
fn a_power_cut_at_any_operation_loses_nothing_acknowledged() {
    let mut whole = World::new(1, 7, WORN);
    whole.start(0).expect("starts");
    wear(&mut whole, &mut BTreeMap::new(), &mut BTreeMap::new()).expect("all goes well");
    let operations = whole.places[0].disk.ops();
    let text = whole.post.lock().expect("nobody panicked").trace.concat();
    assert!(!text.contains("\"level\":\"error\""), "{text}");
    assert!(
        whole.member(0).probe().checkpoint > Index(100),
        "checkpoints are made: {:?}",
        whole.member(0).probe()
    );
    assert!(operations > 300, "{operations}");
    drop(whole);

    // Tests some 400 of all disk operations, evenly spread.
    let every = (operations / 400).max(1);
    for nth in (1..=operations).step_by(usize::try_from(every).expect("is small")) {
        let mut world = World::new(1, 7 + nth, WORN);
        world.places[0].disk.fail_at(nth, Fault::PowerCut);
        let (mut known, mut open) = (BTreeMap::new(), BTreeMap::new());
        let outcome = world.start(0).and_then(|()| wear(&mut world, &mut known, &mut open));
        assert_eq!(world.places[0].disk.ops(), nth, "the power is cut: {outcome:?}");
        world.crash(0);
        // A second power cut, during or shortly after the recovery.
        world.places[0].disk.fail_at(1 + nth % 24, Fault::PowerCut);
        if world.start(0).is_ok() {
            let mut steps = 0..500;
            while steps.next().is_some() && world.work().is_ok() {
                world.wait();
            }
        }
        world.crash(0);
        world.start(0).unwrap_or_else(|why| panic!("operation {nth}: does not start again: {why}"));
        world.until("it is ready again", |world| world.member(0).is_ready());
        for (key, value) in &known {
            let found = world.get(0, key);
            let may_be = open.get(key);
            assert!(
                found.as_ref() == Some(value) || (may_be.is_some() && found.as_ref() == may_be),
                "operation {nth}: {key} is lost: {:?} instead of {:?}",
                found.map(|found| (found.first().copied(), found.len())),
                (value.first(), value.len()),
            );
        }
    }
}

#[test]
fn values_are_moved_and_segments_used_again() {
    let mut world = World::started(1, 7, WORN);
    let (mut known, mut open) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..4 {
        wear(&mut world, &mut known, &mut open).expect("all goes well");
    }
    let answer: CompactionResponse = {
        let revision = world.member(0).probe().revision;
        world
            .call(0, Rpc::KvCompact, &CompactionRequest { revision: revision.0, physical: true })
            .expect("compacts")
    };
    assert!(answer.header.is_some());
    for (key, value) in &known {
        assert_eq!(world.get(0, key).as_ref(), Some(value), "{key}");
    }
    // Half a megabyte went through segments of 16 KiB; the live data is some 60 KiB.
    let used = world.places[0].disk.used_bytes();
    assert!(used < 320 << 10, "{used} bytes are in use");
    world.crash(0);
    world.start(0).expect("starts again");
    world.until("it is ready again", |world| world.member(0).is_ready());
    for (key, value) in &known {
        assert_eq!(world.get(0, key).as_ref(), Some(value), "{key}");
    }
}

/// Three members elect a leader and replicate; one is cut off, the others continue, and it catches up by a snapshot.
fn script(seed: u64) -> World {
    let mut world = World::started(3, seed, WORN);
    for n in 0..30 {
        world.put(n % 3, &format!("a{n}"), &[n as u8; 200]).expect("is taken by any member");
    }
    let leader = world.leader().expect("somebody leads");
    let lagging = (leader + 1) % 3;
    world.cut(lagging, true);
    for n in 0..150 {
        world.put(leader, &format!("b{}", n % 50), &[n as u8; 500]).expect("two of three are enough");
    }
    // Compaction removes old values, so old segments of the log are deleted.
    let revision = world.member(leader).probe().revision;
    let compaction = CompactionRequest { revision: revision.0, physical: true };
    let _: CompactionResponse = world.call(leader, Rpc::KvCompact, &compaction).expect("compacts");
    for n in 0..100 {
        world.put(leader, &format!("b{}", n % 50), &[n as u8; 500]).expect("two of three are enough");
    }
    world.until("the log lets go of what is needed", |world| {
        world.member(lagging).probe().last_index + 1 < world.member(leader).probe().first_index
    });
    // The first attempt to send the snapshot is interrupted; the second resumes it.
    world.post.lock().expect("nobody panicked").breaks = 1;
    world.cut(lagging, false);
    world.until("all have the same", |world| {
        let probes: Vec<_> = world.members().map(Stepped::probe).collect();
        probes.iter().all(|p| p.applied == probes[0].applied && p.applied == p.commit && !p.installing)
    });
    let probes: Vec<_> = world.members().map(Stepped::probe).collect();
    assert!(probes[0].state_hash.is_some());
    assert!(probes.iter().all(|p| p.state_hash == probes[0].state_hash), "{probes:?}");
    assert!(probes[lagging].first_index > Index(1), "it came by a snapshot: {:?}", probes[lagging]);
    // When the leader crashes, another member leads, and no data is lost.
    world.crash(leader);
    world.until("another leads", |world| world.leader().is_some_and(|at| at != leader));
    let next = world.leader().expect("somebody leads");
    assert_eq!(world.get(next, "b49"), Some(vec![99; 500]));
    world.start(leader).expect("starts again");
    world.until("it is there again", |world| world.member(leader).is_ready());
    let found: RangeResponse = world.call(leader, Rpc::KvRange, &all_keys()).expect("is answered");
    assert_eq!(found.count, 80);
    world
}

#[test]
fn three_members_elect_replicate_and_send_snapshots() {
    let world = script(3);
    let trace = world.post.lock().expect("nobody panicked").trace.concat();
    assert!(trace.contains("sending a snapshot") && trace.contains("installed a snapshot"));
    assert!(trace.contains("could not receive a snapshot"), "the first broke off");
    assert!(world.members().all(|member| !member.published().members.cluster_version.is_empty()));
}

#[test]
fn messages_that_the_core_does_not_take_are_bounded() {
    use api::raftpb::{Entry, Message, MessageType};
    use peer::Handler as _;
    let mut world = World::started(3, 11, &[]);
    let leader = world.leader().expect("somebody leads");
    let (own, member) = (world.places[leader].id, world.places[(leader + 1) % 3].id);
    let large = |kind: MessageType, from: u64| {
        let entry = Entry { data: Some(vec![0; 1 << 20].into()), ..Entry::default() };
        Message {
            r#type: Some(kind as i32),
            from: Some(from),
            to: Some(own),
            entries: vec![entry],
            ..Message::default()
        }
    };
    let taken = |world: &World, kind, from| {
        let mut messages = vec![large(kind, from)];
        world.member(leader).peering().received(&mut messages);
        messages.is_empty()
    };
    let strangers = (1..100).filter(|id| taken(&world, MessageType::MsgHeartbeatResp, *id)).count();
    assert!((1..16).contains(&strangers), "{strangers} of 1 MiB were held");
    let members = (0..100).filter(|_| taken(&world, MessageType::MsgHeartbeatResp, member)).count();
    assert!((16..64).contains(&members), "{members} of 1 MiB were held");
    world.settle().expect("all go on");
    assert!(taken(&world, MessageType::MsgHeartbeatResp, 100), "the core has given the room back");
    world.put(leader, "k", b"v").expect("the cluster goes on");
    assert!(taken(&world, MessageType::MsgProp, member));
    world.settle().expect("all go on");
}

#[test]
fn appends_that_a_log_standing_still_cannot_take_end_no_member() {
    use api::raftpb::{Entry, Message, MessageType};
    use peer::Handler as _;
    let mut world = World::started(3, 11, &[]);
    let leader = world.leader().expect("somebody leads");
    let at = (leader + 1) % 3;
    world.settle().expect("all go on");
    let (last, term) = (world.member(at).probe().last_index, world.member(at).published().applied_term);
    world.places[at].log_held = true;
    // Messages of a leader that does not wait for acknowledgements.
    let data = bytes::Bytes::from(vec![0; 30 << 20]);
    for n in 0..12 {
        let index = Some(last.0 + n + 1);
        let entry = Entry { term: Some(term.0), index, data: Some(data.clone()), ..Entry::default() };
        let mut messages = vec![Message {
            r#type: Some(MessageType::MsgApp as i32),
            from: Some(world.places[leader].id),
            to: Some(world.places[at].id),
            term: Some(term.0),
            log_term: Some(term.0),
            index: Some((last + n).0),
            entries: vec![entry],
            ..Message::default()
        }];
        world.member(at).peering().received(&mut messages);
        world.settle().expect("the member goes on");
    }
}

#[test]
fn a_part_of_a_snapshot_is_forgotten_in_time() {
    let mut world = World::started(3, 11, WORN);
    let leader = world.leader().expect("somebody leads");
    let lagging = (leader + 1) % 3;
    world.cut(lagging, true);
    for n in 0..250 {
        world.put(leader, &format!("b{n}"), &[n as u8; 500]).expect("two of three are enough");
    }
    let revision = world.member(leader).probe().revision;
    let compaction = CompactionRequest { revision: revision.0, physical: true };
    let _: CompactionResponse = world.call(leader, Rpc::KvCompact, &compaction).expect("compacts");
    for n in 0..250 {
        world.put(leader, &format!("b{n}"), &[n as u8; 500]).expect("two of three are enough");
    }
    world.until("the log lets go of what is needed", |world| {
        world.member(lagging).probe().last_index + 1 < world.member(leader).probe().first_index
    });
    world.post.lock().expect("nobody panicked").breaks = 1;
    world.cut(lagging, false);
    world.until("a part has come", |world| world.member(lagging).peering().keeps_part_of_snapshot());
    assert!(world.member(lagging).says_that_it_takes_a_snapshot());
    // No other attempt continues this snapshot.
    world.cut(lagging, true);
    let until = world.places[lagging].clock.elapsed() + Duration::from_secs(70);
    world.until("time has gone by", |world| world.places[lagging].clock.elapsed() >= until);
    assert!(!world.member(lagging).peering().keeps_part_of_snapshot(), "it pins what it was built on");
    assert!(!world.member(lagging).says_that_it_takes_a_snapshot());
    world.cut(lagging, false);
    world.until("it has come by another", |world| {
        world.member(lagging).probe().applied == world.member(leader).probe().applied
    });
}

#[test]
fn a_state_that_was_replaced_is_not_dropped_by_the_core_nor_by_whoever_reads_it_last() {
    let mut world = World::started(3, 12, WORN);
    let leader = world.leader().expect("somebody leads");
    let lagging = (leader + 1) % 3;
    world.cut(lagging, true);
    for n in 0..250 {
        world.put(leader, &format!("b{}", n % 50), &[n as u8; 500]).expect("two of three are enough");
    }
    let revision = world.member(leader).probe().revision;
    let compaction = CompactionRequest { revision: revision.0, physical: true };
    let _: CompactionResponse = world.call(leader, Rpc::KvCompact, &compaction).expect("compacts");
    for n in 0..250 {
        world.put(leader, &format!("b{}", n % 50), &[n as u8; 500]).expect("two of three are enough");
    }
    world.until("the log lets go of what is needed", |world| {
        world.member(lagging).probe().last_index + 1 < world.member(leader).probe().first_index
    });
    let before = world.member(lagging).published();
    world.cut(lagging, false);
    world.until("it has taken over the leader's state", |world| {
        let probe = world.member(lagging).probe();
        probe.applied == world.member(leader).probe().applied && !probe.installing
    });
    assert!(world.text().contains("installed a snapshot"));
    assert_eq!(world.member(lagging).probe().discarded, 1, "somebody reads it");
    drop(before);
    world.until("the checkpointer has it", |world| world.member(lagging).probe().discarded == 0);
}

#[test]
fn a_follower_gets_a_snapshot_where_the_leaders_old_entries_are_damaged() {
    let mut world = World::started(3, 11, &["--snapshot-count=100000", "--snapshot-catchup-entries=20"]);
    let leader = world.leader().expect("somebody leads");
    let lagging = (leader + 1) % 3;
    world.cut(lagging, true);
    world.put(leader, "b0", b"a value that the disk will damage").expect("two of three are enough");
    for n in 0..100 {
        world.put(leader, &format!("b{}", n % 5), &[n as u8; 100]).expect("two of three are enough");
    }
    // No read needs the damaged value any more. It is needed only for sending its log entry.
    let revision = world.member(leader).probe().revision;
    let compaction = CompactionRequest { revision: revision.0, physical: true };
    let _: CompactionResponse = world.call(leader, Rpc::KvCompact, &compaction).expect("compacts");
    let disk = world.places[leader].disk.clone();
    let damaged = disk.files().into_iter().any(|(path, _)| {
        let bytes = disk.contents(&path).expect("is there");
        let at = bytes.windows(10).position(|window| window == b"a value th");
        at.is_some_and(|at| disk.flip_bit(&path, at as u64, 3).is_ok())
    });
    assert!(damaged, "the value lies in some file");
    world.cut(lagging, false);
    world.until("it has all the same", |world| {
        world.member(lagging).probe().applied == world.member(leader).probe().applied
    });
    assert_eq!(world.get(lagging, "b4"), Some(vec![99; 100]));
    let trace = world.post.lock().expect("nobody panicked").trace.concat();
    assert!(trace.contains("cannot read old entries for a follower"), "it was noticed");
    assert!(trace.contains("installed a snapshot"));
}

const DAMAGED: &[u8] = b"a value that the disk will damage";

/// Puts `DAMAGED` as `d`, waits until everything is in checkpoints and old segments, and damages the value on
/// the disk of one member.
fn damage_a_value(world: &mut World, member: usize) {
    let leader = world.leader().expect("somebody leads");
    world.put(leader, "d", DAMAGED).expect("is taken");
    for n in 0..120 {
        world.put(leader, &format!("b{n}"), &[n as u8; 500]).expect("is taken");
    }
    world.until("it has a checkpoint", |world| {
        let probe = world.member(member).probe();
        probe.applied == world.member(leader).probe().applied && probe.checkpoint > Index(60)
    });
    let disk = world.places[member].disk.clone();
    let damaged = disk.files().into_iter().any(|(path, _)| {
        let bytes = disk.contents(&path).expect("is there");
        let at = bytes.windows(DAMAGED.len()).position(|window| window == DAMAGED);
        at.is_some_and(|at| disk.flip_bit(&path, at as u64 + 5, 3).is_ok())
    });
    assert!(damaged, "the value lies in some file");
}

/// Returns a transaction that puts `key` if the value of `d` compares with `with` as `result` says.
fn compare_and_put(result: compare::CompareResult, with: &'static [u8], key: &'static str) -> TxnRequest {
    let put = pb::PutRequest { key: key.into(), value: "v".into(), ..pb::PutRequest::default() };
    TxnRequest {
        compare: vec![Compare {
            key: "d".into(),
            result: result as i32,
            target: compare::CompareTarget::Value as i32,
            target_union: Some(compare::TargetUnion::Value(with.into())),
            ..Compare::default()
        }],
        success: vec![RequestOp { request: Some(request_op::Request::RequestPut(put)) }],
        failure: Vec::new(),
    }
}

#[test]
fn a_damaged_value_that_is_compared_takes_one_member_out_of_service() {
    let mut world = World::started(3, 21, WORN);
    let leader = world.leader().expect("somebody leads");
    // The leader's own value is damaged: the other members continue without it.
    damage_a_value(&mut world, leader);
    let follower = (leader + 1) % 3;
    // A value that differs in length or checksum is compared without being read.
    for (result, with, succeeds) in [
        (compare::CompareResult::Equal, b"x".as_slice(), false),
        (compare::CompareResult::Equal, b"a value that the disk won't damage", false),
        (compare::CompareResult::NotEqual, b"a value that the disk has damaged", true),
    ] {
        let answer: TxnResponse =
            world.call(follower, Rpc::KvTxn, &compare_and_put(result, with, "unread")).expect("is applied");
        assert_eq!(answer.succeeded, succeeds);
    }
    let equal = compare_and_put(compare::CompareResult::Equal, DAMAGED, "read");
    let answer: TxnResponse = world.call(follower, Rpc::KvTxn, &equal).expect("is applied by the others");
    assert!(answer.succeeded);
    world.until("another leads", |world| world.leader().is_some_and(|at| at != leader));
    world.put(follower, "after", b"it").expect("two of three are enough");

    for restarted in [false, true] {
        if restarted {
            world.crash(leader);
            world.start(leader).expect("starts");
        }
        world.until("it lets clients in", |world| world.member(leader).is_ready());
        let refused = world.put(leader, "x", b"y").expect_err("it is out of service");
        assert_eq!(refused.code, api::Code::Unavailable);
        assert!(refused.message.contains("out of service"), "{refused}");
        let stale = RangeRequest { key: "b7".into(), serializable: true, ..RangeRequest::default() };
        let found: RangeResponse =
            world.call(leader, Rpc::KvRange, &stale).expect("stale reads are answered");
        assert_eq!(found.kvs[0].value, [7; 500].as_slice());
        let found: Result<RangeResponse, _> =
            world.call(leader, Rpc::KvRange, &RangeRequest { serializable: false, ..stale });
        assert!(found.is_err());
    }
    assert_eq!(world.get(follower, "read"), Some(b"v".to_vec()));
    let hashes: Vec<_> = [1, 2].map(|n| world.member((leader + n) % 3).probe().state_hash).to_vec();
    assert!(hashes[0].is_some() && hashes[0] == hashes[1]);
    world.member(leader).stop();
    world.until("the member has stopped", |world| world.members().count() == 2);
}

#[test]
fn a_member_alone_reads_on_where_a_damaged_value_is_compared() {
    let mut world = World::started(1, 22, WORN);
    damage_a_value(&mut world, 0);
    let greater = compare_and_put(compare::CompareResult::Greater, b"a", "read");
    let refused = world.call::<_, TxnResponse>(0, Rpc::KvTxn, &greater).expect_err("it cannot be known");
    assert_eq!(refused.code, api::Code::Unavailable);
    // All acknowledged data except the damaged value can be read, but nothing can be written.
    assert_eq!(world.get(0, "b119"), Some(vec![119; 500]));
    assert_eq!(world.get(0, "read"), None);
    assert!(world.put(0, "x", b"y").is_err());
    world.crash(0);
    world.start(0).expect("starts");
    world.until("it lets clients in", |world| world.member(0).is_ready());
    let stale = RangeRequest { key: "b119".into(), serializable: true, ..RangeRequest::default() };
    let found: RangeResponse = world.call(0, Rpc::KvRange, &stale).expect("stale reads are answered");
    assert_eq!(found.count, 1);
    assert!(world.put(0, "x", b"y").is_err());
}

#[test]
fn comparing_large_values_again_and_again_is_refused_before_it_is_proposed() {
    let mut world = World::started(1, 37, &[]);
    world.put(0, "large", &vec![b'v'; 1 << 20]).expect("is taken");
    let compare = pb::Compare {
        key: "large".into(),
        result: pb::compare::CompareResult::Greater as i32,
        target: pb::compare::CompareTarget::Value as i32,
        target_union: Some(pb::compare::TargetUnion::Value("u".into())),
        ..pb::Compare::default()
    };
    let put = pb::PutRequest { key: "k".into(), ..Default::default() };
    let put = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
    let txn = |compares: usize| TxnRequest {
        compare: vec![compare.clone(); compares],
        success: vec![put.clone()],
        failure: Vec::new(),
    };
    let taken: pb::TxnResponse = world.call(0, Rpc::KvTxn, &txn(16)).expect("is little enough");
    assert!(taken.succeeded);
    let refused = world.call::<_, pb::TxnResponse>(0, Rpc::KvTxn, &txn(17)).expect_err("is too much");
    assert_eq!(refused.code, api::Code::ResourceExhausted);
}

#[test]
fn many_large_values_of_a_transaction_are_not_held_at_once() {
    let mut world = World::started(1, 37, &[]);
    for n in 0..30u8 {
        world.put(0, &format!("k{n:02}"), &vec![n; 60_000]).expect("is taken");
    }
    let key = |n: u8| bytes::Bytes::from(format!("k{n:02}"));
    let put = |n| pb::PutRequest { key: key(n), prev_kv: true, ..Default::default() };
    let range = |n| RangeRequest { key: key(n), ..Default::default() };
    let op = |request| RequestOp { request: Some(request) };
    let txn = |request: &dyn Fn(u8) -> request_op::Request| TxnRequest {
        success: (0..30).map(|n| op(request(n))).collect(),
        ..Default::default()
    };
    // One transaction that reads, and one that writes.
    let reads = txn(&|n| request_op::Request::RequestRange(range(n)));
    let writes = txn(&|n| request_op::Request::RequestPut(put(n)));
    for txn in [reads, writes] {
        let call = world.member(0).call_in_pieces(Rpc::KvTxn, prost::Message::encode_to_vec(&txn).into());
        let pieces = world.run(call).expect("is answered");
        let largest = pieces.iter().map(bytes::Bytes::len).max().expect("there are some");
        assert!(pieces.len() >= 10 && largest <= 200_000, "{} pieces, {largest} bytes", pieces.len());
        let answer: TxnResponse =
            prost::Message::decode(bytes::Bytes::from(pieces.concat())).expect("decodes");
        assert_eq!(answer.responses.len(), 30);
        for (n, response) in (0..).zip(answer.responses) {
            let kv = match response.response.expect("is one") {
                pb::response_op::Response::ResponseRange(mut range) => range.kvs.remove(0),
                pb::response_op::Response::ResponsePut(put) => put.prev_kv.expect("has one"),
                other => panic!("{other:?}"),
            };
            assert_eq!((kv.key, kv.value.to_vec()), (key(n), vec![n; 60_000]));
        }
    }
}

#[test]
fn ranges_of_a_transaction_find_what_was_there_when_they_ran() {
    let mut world = World::started(3, 31, &[]);
    let leader = world.leader().expect("somebody leads");
    for n in 0..600 {
        world.put(leader, &format!("k{n:03}"), &[n as u8; 600]).expect("is taken");
    }
    let op = |request| RequestOp { request: Some(request) };
    let range = |shape: &dyn Fn(&mut RangeRequest)| {
        let mut request = all_keys();
        shape(&mut request);
        op(request_op::Request::RequestRange(request))
    };
    let put = |key: &'static str| {
        op(request_op::Request::RequestPut(pb::PutRequest {
            key: key.into(),
            prev_kv: true,
            ..Default::default()
        }))
    };
    let delete = |key: &'static str, end: &'static str| {
        let delete = pb::DeleteRangeRequest { key: key.into(), range_end: end.into(), prev_kv: true };
        op(request_op::Request::RequestDeleteRange(delete))
    };
    let txn = TxnRequest {
        compare: Vec::new(),
        success: vec![
            range(&|_| {}),
            put("k100"),
            put("new"),
            range(&|request| request.keys_only = true),
            delete("k2", "k3"),
            range(&|request| {
                request.sort_target = pb::range_request::SortTarget::Mod as i32;
                request.sort_order = pb::range_request::SortOrder::Descend as i32;
                request.limit = 2;
            }),
            range(&|request| request.count_only = true),
            range(&|request| request.limit = 3),
            range(&|request| request.key = "k205".into()),
            delete("k599", ""),
            range(&|request| request.min_mod_revision = 600),
            put("last"),
        ],
        failure: Vec::new(),
    };
    // The request goes to a follower, which executes and answers the read itself.
    let answer: TxnResponse = world.call((leader + 1) % 3, Rpc::KvTxn, &txn).expect("is applied");
    let now = answer.header.as_ref().expect("has one").revision;
    let mut answers = answer.responses.into_iter().map(|response| response.response.expect("is one"));
    let mut ranged = |revision: i64| loop {
        match answers.next().expect("there are more") {
            pb::response_op::Response::ResponseRange(range) => {
                assert_eq!(range.header.as_ref().expect("has one").revision, revision);
                return range;
            }
            pb::response_op::Response::ResponseDeleteRange(deleted) => {
                let previous: Vec<_> = deleted.prev_kvs.iter().map(|kv| kv.value[0]).collect();
                let expected: Vec<u8> =
                    if deleted.deleted == 1 { vec![87] } else { (200..300).map(|n| n as u8).collect() };
                assert_eq!(previous, expected);
                assert!(deleted.prev_kvs.iter().all(|kv| kv.value.len() == 600));
            }
            pb::response_op::Response::ResponsePut(put) => {
                let previous = put.prev_kv.map(|kv| kv.value.to_vec());
                assert!(previous.is_none() || previous == Some(vec![100; 600]));
            }
            other => panic!("{other:?}"),
        }
    };
    let keys = |range: &RangeResponse| -> Vec<String> {
        range.kvs.iter().map(|kv| String::from_utf8(kv.key.to_vec()).expect("is text")).collect()
    };
    let before = ranged(now - 1);
    assert_eq!((before.count, before.kvs.len(), before.more), (600, 600, false));
    assert!(before.kvs.iter().enumerate().all(|(n, kv)| kv.value == vec![n as u8; 600]));
    let amid = ranged(now);
    assert_eq!((amid.count, keys(&amid)[600].as_str()), (601, "new"));
    assert!(amid.kvs.iter().all(|kv| kv.value.is_empty()));
    assert_eq!(amid.kvs[100].mod_revision, now);
    let newest = ranged(now);
    assert_eq!((keys(&newest), newest.count, newest.more), (vec!["k100".into(), "new".into()], 501, true));
    let counted = ranged(now);
    assert_eq!((counted.count, counted.kvs.len(), counted.more), (501, 0, false));
    let few = ranged(now);
    assert_eq!(
        (keys(&few), few.count, few.more),
        (vec!["k000".into(), "k001".into(), "k002".into()], 501, true)
    );
    let from = ranged(now);
    assert_eq!((keys(&from)[0].as_str(), from.count), ("k300", 301));
    let filtered = ranged(now);
    assert_eq!((keys(&filtered), filtered.count), (vec!["k100".into(), "k598".into(), "new".into()], 500));
    // The same read in a transaction that only reads.
    let reads = TxnRequest {
        success: vec![range(&|_| {}), range(&|request| request.limit = 1)],
        ..Default::default()
    };
    let answer: TxnResponse = world.call(leader, Rpc::KvTxn, &reads).expect("is answered");
    let found: RangeResponse = world.call(leader, Rpc::KvRange, &all_keys()).expect("is answered");
    let Some(pb::response_op::Response::ResponseRange(all)) = &answer.responses[0].response else {
        panic!("a range")
    };
    assert_eq!((&all.kvs, all.count), (&found.kvs, found.count));
    assert_eq!(found.count, 501);
}

#[test]
fn a_learner_joins_and_gets_a_vote() {
    let mut world = World::started(1, 5, &[]);
    world.put(0, "k", b"v").expect("is taken");
    let add = MemberAddRequest {
        peer_urls: vec!["http://10.0.0.2:2380".to_owned()],
        is_learner: true,
        is_witness: false,
    };
    let added: MemberAddResponse = world.call(0, Rpc::ClusterMemberAdd, &add).expect("is added");
    let id = added.member.expect("is told").id;
    let identity = Identity { member_id: id, ..world.member(0).identity().clone() };
    let remotes = vec![(world.places[0].id, vec!["http://10.0.0.1:2380".to_owned()])];
    let at = world.add_place(Beginning { identity, entries: Vec::new(), remotes });
    world.start(at).expect("starts");
    world.until("the learner is ready", |world| world.member(at).is_ready());
    assert_eq!(world.member(at).probe().learners, [id]);
    // The member records in a separate file, already in its first run, that a log exists, so a lost log is
    // noticed.
    world.kill(at);
    world.places[at].disk.heal();
    let files = world.places[at].disk.files();
    let log: Vec<_> =
        files.iter().filter(|(path, _)| path.parent().is_some_and(|dir| dir.ends_with("log"))).collect();
    let log: Vec<_> = log
        .into_iter()
        .map(|(path, _)| (path, world.places[at].disk.contents(path).expect("is there")))
        .collect();
    for (path, _) in &log {
        disk::Disk::remove(&world.places[at].disk, path).expect("is removed");
    }
    let refusal = world.start(at).expect_err("its log is gone");
    assert!(refusal.contains("was there before"), "{refusal}");
    for (path, bytes) in log {
        world.places[at].disk.plant(path, bytes);
    }
    world.start(at).expect("starts with its log");
    world.until("the learner is ready again", |world| world.member(at).is_ready());
    let promote = MemberPromoteRequest { id };
    // The learner does not support this call; the leader would.
    let refused: Result<MemberPromoteResponse, _> = world.call(at, Rpc::ClusterMemberPromote, &promote);
    assert!(refused.is_err());
    let promoted: MemberPromoteResponse =
        world.call(0, Rpc::ClusterMemberPromote, &promote).expect("has caught up");
    assert!(promoted.members.iter().all(|member| !member.is_learner));
    world.until("it has heard of it", |world| world.member(at).probe().voters.len() == 2);
    assert_eq!(world.get(at, "k"), Some(b"v".to_vec()), "and it answers by the leader's word");
    // A lease is renewed at the leader, no matter which member gets the request.
    let grant = LeaseGrantRequest { ttl: 60, id: 7 };
    let _: LeaseGrantResponse = world.call(at, Rpc::LeaseGrant, &grant).expect("is granted");
    let renewal = world.member(at).renew(LeaseId(7));
    assert_eq!(world.run(renewal), Ok(Seconds(60)));
}

#[test]
fn a_full_disk_raises_the_alarm_and_room_ends_it() {
    let mut world = World::started(1, 9, WORN);
    let room = world.places[0].disk.used_bytes();
    world.places[0].disk.set_capacity(Some(room));
    let mut refused = None;
    for n in 0..200 {
        if let Err(status) = world.put(0, &format!("k{n}"), &[1; 700]) {
            refused = Some(status);
            break;
        }
    }
    assert_eq!(refused, Some(error::NO_SPACE));
    world.until("the alarm is raised", |world| !world.member(0).published().alarms.list(0, 0).is_empty());
    world.places[0].disk.set_capacity(None);
    world.until("the alarm goes", |world| world.member(0).published().alarms.list(0, 0).is_empty());
    world.put(0, "k", b"v").expect("there is room again");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let trace = |seed| std::mem::take(&mut script(seed).post.lock().expect("nobody panicked").trace);
    let (one, other) = (trace(11), trace(11));
    for (at, (one, other)) in one.iter().zip(&other).enumerate() {
        assert_eq!(one, other, "line {at}");
    }
    assert_eq!(one.len(), other.len());
    assert!(one.len() > 1_000);
}

/// Starts a range request of a client that takes the response piece by piece, as slowly as the test likes.
fn begin_range(world: &mut World, request: &RangeRequest) -> front::Answer {
    use prost::Message as _;
    let answer = match world.member(0).unary(Rpc::KvRange, request.encode_to_vec().into()) {
        front::Unary::Done(answer) => answer,
        front::Unary::Later(answer) => world.run(answer),
    };
    answer.expect("is answered")
}

/// Takes up to `pieces` pieces of an answer. Returns true if there are more.
fn take(answer: &mut front::Answer, taken: &mut Vec<u8>, pieces: usize) -> Result<bool, api::Status> {
    let front::Answer::Pieces { source, .. } = answer else { panic!("it is too small to come in pieces") };
    for _ in 0..pieces {
        match source(16 << 10, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(Some(piece))) => taken.extend_from_slice(&piece),
            Poll::Ready(Ok(None)) => return Ok(false),
            Poll::Ready(Err(status)) => return Err(status),
            Poll::Pending => panic!("all of it is in memory"),
        }
    }
    Ok(true)
}

fn compact(world: &mut World) {
    let revision = world.member(0).probe().revision;
    let _: CompactionResponse = world
        .call(0, Rpc::KvCompact, &CompactionRequest { revision: revision.0, physical: true })
        .expect("compacts");
}

/// Starts both kinds of responses that come in pieces: few keys with large values, and many keys.
fn slow_readers(world: &mut World) -> Vec<(RangeRequest, front::Answer, Vec<u8>, RangeResponse)> {
    use prost::Message as _;
    let mut readers = Vec::new();
    for request in [
        RangeRequest { key: "large".into(), range_end: "largf".into(), ..RangeRequest::default() },
        RangeRequest { key: "many".into(), range_end: "manz".into(), ..RangeRequest::default() },
        RangeRequest {
            key: "many".into(),
            range_end: "manz".into(),
            sort_target: pb::range_request::SortTarget::Mod as i32,
            sort_order: pb::range_request::SortOrder::Descend as i32,
            ..RangeRequest::default()
        },
    ] {
        let mut whole = begin_range(world, &request);
        let mut expected = Vec::new();
        assert_eq!(take(&mut whole, &mut expected, usize::MAX), Ok(false));
        let expected = RangeResponse::decode(expected.as_slice()).expect("decodes");
        let (mut answer, mut taken) = (begin_range(world, &request), Vec::new());
        assert_eq!(take(&mut answer, &mut taken, 1), Ok(true));
        readers.push((request, answer, taken, expected));
    }
    readers
}

fn fill(world: &mut World) {
    for n in 0..60 {
        world.put(0, &format!("large-{n:02}"), &vec![n as u8; 4000]).expect("is taken");
    }
    for n in 0..400 {
        world.put(0, &format!("many-{n:03}"), &vec![n as u8; 500]).expect("is taken");
    }
}

#[test]
fn a_slow_reader_loses_no_value_that_is_moved() {
    let mut world = World::started(1, 7, WORN);
    fill(&mut world);
    // There is enough garbage in the segments of the values that are being read, so these values are moved
    // when the garbage is removed.
    for n in 0..300u32 {
        world.put(0, &format!("busy-{}", n % 3), &vec![n as u8; 900]).expect("is taken");
    }
    for n in (0..60).filter(|n| n % 3 != 0) {
        world.put(0, &format!("large-{n:02}"), &vec![100 + n as u8; 4000]).expect("is taken");
    }
    compact(&mut world);
    let readers = slow_readers(&mut world);
    let segments = |world: &World| {
        let files = world.places[0].disk.files();
        files.into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "seg")).count()
    };
    let before = segments(&world);
    // No writes follow, so the state that the readers began with stays the newest state.
    let mut rounds = 0;
    world.until("segments were emptied and deleted", |world| segments(world) + 8 < before);
    while rounds < 200 {
        rounds += 1;
        world.settle().expect("all goes well");
        world.wait();
    }
    use prost::Message as _;
    for (request, mut answer, mut taken, expected) in readers {
        assert_eq!(take(&mut answer, &mut taken, usize::MAX), Ok(false), "{request:?}");
        assert_eq!(RangeResponse::decode(taken.as_slice()), Ok(expected), "{request:?}");
    }
}

/// A member with 600 values of this size, of which a fifth in each segment was written again, and what it
/// should read. Nothing is compacted yet.
fn with_little_garbage(segment_bytes: u32, value_bytes: usize) -> (World, BTreeMap<String, Vec<u8>>) {
    let mut world = World::new(1, 7, WORN);
    world.places[0].segment_bytes = segment_bytes;
    world.start_all();
    let mut known = BTreeMap::new();
    for n in (0..600).chain((0..600).filter(|n| n % 5 == 0)) {
        let (key, value) = (format!("k{n:03}"), vec![(n + known.len()) as u8; value_bytes]);
        world.put(0, &key, &value).expect("is taken");
        known.insert(key, value);
    }
    (world, known)
}

/// Returns the bytes that the files of such a member should have at most: the values, less than 100 bytes each
/// for their records, and a tenth more; headers of segments, a segment in use, and a checkpoint.
fn most_bytes(segment_bytes: u32, value_bytes: usize) -> u64 {
    let live = 600 * (value_bytes as u64 + 100);
    live * 11 / 10 + live / u64::from(segment_bytes) * (4 << 10) + u64::from(segment_bytes) + (40 << 10)
}

fn seconds_go_by(world: &mut World, seconds: u64) {
    let until = world.places[0].clock.now() + Duration::from_secs(seconds);
    world.until("time has gone by", |world| world.places[0].clock.now() >= until);
}

fn is_readable(world: &mut World, known: &BTreeMap<String, Vec<u8>>) {
    for (key, value) in known {
        assert_eq!(world.get(0, key).as_ref(), Some(value), "{key}");
    }
}

#[test]
fn little_garbage_in_every_segment_goes_too_though_nobody_writes() {
    let (mut world, known) = with_little_garbage(64 << 10, 4000);
    let most = most_bytes(64 << 10, 4000);
    let before = world.member(0).disk_bytes();
    assert!(before > most + most / 20, "{before} bytes");
    compact(&mut world);
    world.until("little garbage is left", |world| world.member(0).disk_bytes() <= most);
    is_readable(&mut world, &known);
    // Then nothing is written any more.
    world.settle().expect("all goes well");
    let files = |world: &World| world.places[0].disk.files();
    let at_rest = files(&world);
    seconds_go_by(&mut world, 60);
    assert_eq!(files(&world), at_rest);
    world.crash(0);
    world.start(0).expect("starts again");
    world.until("it is ready again", |world| world.member(0).is_ready());
    is_readable(&mut world, &known);
}

/// A reader keeps one version in each segment from being removed, while a fifth of the segment is garbage.
#[test]
fn beside_a_long_reader_nothing_is_copied_for_nothing_and_after_it_the_garbage_goes() {
    // With segments of 64 KiB orders follow each other soon; with 1 MiB there is one in some seconds.
    for (segment_bytes, value_bytes) in [(64 << 10, 4000), (1 << 20, 64_000)] {
        let (mut world, mut known) = with_little_garbage(segment_bytes, value_bytes);
        let revision = world.member(0).probe().revision;
        for n in (0..600).filter(|n| n % 15 == 1) {
            let (key, value) = (format!("k{n:03}"), vec![(n + 7) as u8; value_bytes]);
            world.put(0, &key, &value).expect("is taken");
            known.insert(key, value);
        }
        let request = CompactionRequest { revision: revision.0, physical: false };
        let _: CompactionResponse = world.call(0, Rpc::KvCompact, &request).expect("compacts");
        let request =
            RangeRequest { key: "k000".into(), range_end: "k100".into(), ..RangeRequest::default() };
        let (mut answer, mut taken) = (begin_range(&mut world, &request), Vec::new());
        assert_eq!(take(&mut answer, &mut taken, 1), Ok(true));
        compact(&mut world);
        let before = world.member(0).disk_bytes();
        seconds_go_by(&mut world, 30);
        let beside = world.member(0).disk_bytes();
        assert!(beside < before + before / 10, "{beside} bytes beside the reader, {before} before");
        assert_eq!(take(&mut answer, &mut taken, usize::MAX), Ok(false));
        drop(answer);
        let most = most_bytes(segment_bytes, value_bytes);
        world.until("little garbage is left", |world| world.member(0).disk_bytes() <= most);
        is_readable(&mut world, &known);
    }
}

#[test]
fn a_segment_that_exceeds_the_budget_does_not_keep_others_from_being_emptied() {
    let (mut world, _) = with_little_garbage(64 << 10, 4000);
    let op = |n: usize| RequestOp {
        request: Some(request_op::Request::RequestPut(pb::PutRequest {
            key: format!("t{n:03}").into(),
            value: vec![n as u8; 4000].into(),
            ..pb::PutRequest::default()
        })),
    };
    // The segment of this entry is larger than four segments.
    let txn = TxnRequest { success: (0..120).map(op).collect(), ..TxnRequest::default() };
    let _: TxnResponse = world.call(0, Rpc::KvTxn, &txn).expect("is taken");
    for n in (0..120).filter(|n| n % 4 == 0) {
        world.put(0, &format!("t{n:03}"), &[n as u8; 4000]).expect("is taken");
    }
    compact(&mut world);
    let most = most_bytes(64 << 10, 4000) + 120 * 4100 * 11 / 10;
    world.until("little garbage is left", |world| world.member(0).disk_bytes() <= most);
}

#[test]
fn a_value_that_cannot_be_moved_does_not_bring_checkpoints_without_end() {
    let mut world = World::started(1, 7, WORN);
    fill(&mut world);
    let state = world.member(0).published();
    let snapshot = state.view.snapshot();
    let version = snapshot.histories().filter(|version| version.value_len() == 500).nth(100);
    let damaged = version.expect("there are many").location();
    drop(state);
    let files = world.places[0].disk.files();
    let name = |path: &std::path::Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let (path, _) = files
        .iter()
        .find(|(path, _)| {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            path.extension().is_some_and(|e| e == "seg")
                && stem.and_then(|stem| u32::from_str_radix(stem, 16).ok()) == Some(damaged.segment())
        })
        .expect("the segment is there");
    world.places[0].disk.flip_bit(path, u64::from(damaged.offset()) + 200, 1).expect("is there");
    // The segment keeps some live values, which must be moved before the segment can be deleted.
    for n in (0..400).filter(|n| n % 5 != 0) {
        world.put(0, &format!("many-{n:03}"), b"small").expect("is taken");
    }
    let revision = world.member(0).probe().revision;
    let request = CompactionRequest { revision: revision.0, physical: false };
    let _: CompactionResponse = world.call(0, Rpc::KvCompact, &request).expect("compacts");
    let runs = |world: &World| {
        let files = world.places[0].disk.files();
        let runs = files.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "run"));
        runs.filter_map(|(path, _)| name(path)).collect::<Vec<_>>()
    };
    let (mut before, mut checkpoints) = (runs(&world), 0);
    for _ in 0..3000 {
        if !world.work().expect("all goes well") {
            world.wait();
        }
        let now = runs(&world);
        checkpoints += u32::from(now != before);
        before = now;
    }
    assert!(checkpoints < 20, "{checkpoints} checkpoints while nobody writes");
}

#[test]
fn a_segment_outlives_whoever_reads_the_newest_state() {
    let mut world = World::started(1, 7, WORN);
    let (mut looked, mut moved) = (0, 0);
    for n in 0..400u32 {
        let key = if n % 9 == 0 { format!("kept-{n}") } else { format!("busy-{}", n % 5) };
        world.put(0, &key, &vec![n as u8; 300 + (n as usize * 37) % 900]).expect("is taken");
        if n % 40 == 39 {
            compact(&mut world);
        }
        // While no writes happen, a reader remembers where values were stored in the newest state.
        let state = world.member(0).published();
        let snapshot = state.view.snapshot();
        let values = || snapshot.histories().filter(|version| version.value_len() > 0);
        let noted: Vec<u32> = values().map(|version| version.location().segment()).collect();
        for _ in 0..30 {
            if !world.work().expect("all goes well") {
                world.wait();
            }
        }
        let segments: Vec<u32> = world.places[0]
            .disk
            .files()
            .into_iter()
            .filter(|(path, _)| path.extension().is_some_and(|extension| extension == "seg"))
            .filter_map(|(path, _)| u32::from_str_radix(path.file_stem()?.to_str()?, 16).ok())
            .collect();
        for (version, at) in values().zip(&noted) {
            assert!(segments.contains(at), "{n}: segment {at} was deleted under a reader");
            looked += 1;
            moved += u32::from(version.location().segment() != *at);
        }
    }
    assert!(
        looked > 1000 && moved > 10,
        "{looked} values were looked at, {moved} of them while they were moved"
    );
}

#[test]
fn slow_readers_see_one_revision_and_keep_no_memory() {
    let growth = |reading: bool| {
        let mut world = World::started(1, 7, WORN);
        fill(&mut world);
        let readers = if reading { slow_readers(&mut world) } else { Vec::new() };
        let before = world.member(0).probe().index_bytes;
        for n in 0..1500 {
            world.put(0, &format!("many-{:03}", (n * 7) % 400), &[1; 20]).expect("is taken");
        }
        let growth = world.member(0).probe().index_bytes - before;
        // Values that the readers need survive compactions; other values are removed without delay.
        compact(&mut world);
        world.put(0, "many-000x", b"new").expect("is taken");
        compact(&mut world);
        use prost::Message as _;
        for (request, mut answer, mut taken, expected) in readers {
            assert_eq!(take(&mut answer, &mut taken, usize::MAX), Ok(false), "{request:?}");
            assert_eq!(RangeResponse::decode(taken.as_slice()), Ok(expected), "{request:?}");
        }
        world.until("everything is removed", |world| world.member(0).probe().removable == 0);
        growth
    };
    let (alone, beside) = (growth(false), growth(true));
    assert!(beside < alone + alone / 10, "{alone} bytes of 1500 puts, {beside} beside slow readers");
}

#[test]
fn a_reader_that_takes_too_long_is_overtaken() {
    let mut world = World::started(1, 7, WORN);
    fill(&mut world);
    let readers = slow_readers(&mut world);
    let began = world.places[0].clock.elapsed();
    world.until("time has gone by", |world| {
        world.places[0].clock.elapsed() - began > Duration::from_secs(299)
    });
    world.put(0, "many-000", b"new").expect("is taken");
    compact(&mut world);
    assert!(world.member(0).probe().removable > 0, "they are still read");
    world.until("the removal does not wait for ever", |world| world.member(0).probe().removable == 0);
    for (request, mut answer, mut taken, _) in readers {
        assert_eq!(take(&mut answer, &mut taken, usize::MAX), Err(error::COMPACTED), "{request:?}");
    }
    let trace = world.post.lock().expect("nobody panicked").trace.concat();
    assert!(
        trace.contains(
            "aborted long-running reads that delayed the removal of compacted revisions for too long"
        )
    );
}
