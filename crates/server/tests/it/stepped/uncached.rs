//! Values that are not in memory: only calls that need a value wait for it, and no call gets wrong data instead.

use std::collections::VecDeque;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use accounting::Budget;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::{
    self as pb, Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, compare, request_op,
    watch_request,
};
use api::{Code, Rpc, Status};
use bytes::Bytes;
use prost::Message as _;

use super::all_keys;
use super::world::{Stream, World};

type Call = Pin<Box<dyn Future<Output = Result<Bytes, Status>>>>;

fn poll(call: &mut Call) -> Poll<Result<Bytes, Status>> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn value_of(n: usize) -> Vec<u8> {
    let mut value = format!("value {n} ").into_bytes();
    // Some values are so large that their response comes in pieces, and some are empty.
    value.resize(
        match n % 7 {
            0 => 6000,
            3 => 0,
            rest => 40 * rest,
        },
        n as u8,
    );
    value
}

/// Starts a member with keys `k000..` and values of all sizes, some of them overwritten.
fn filled(seed: u64, keys: usize) -> World {
    let mut world = World::started(1, seed, &[]);
    for n in 0..keys {
        world.put(0, &format!("k{n:03}"), &value_of(n)).expect("is taken");
    }
    for n in (0..keys).step_by(5) {
        world.put(0, &format!("k{n:03}"), &value_of(n + 1)).expect("is taken");
    }
    world.settle().expect("all goes on");
    world
}

fn misses(world: &World, per_mille: u64) {
    world.places[0].disk.set_misses_per_mille(per_mille);
}

fn hold(world: &mut World, held: bool) {
    world.places[0].member.as_mut().expect("runs").hold_reads(held);
}

/// Does one pending read. Returns false if there is none.
fn read(world: &mut World) -> bool {
    world.places[0].member.as_mut().expect("runs").read_step()
}

fn begin(world: &World, rpc: Rpc, request: &impl prost::Message) -> Call {
    world.member(0).call(rpc, request.encode_to_vec().into())
}

#[test]
fn a_call_that_waits_for_the_disk_holds_up_no_other() {
    let mut world = filled(1, 40);
    misses(&world, 1000);
    hold(&mut world, true);
    let (mut all, mut one) = (
        begin(&world, Rpc::KvRange, &all_keys()),
        begin(&world, Rpc::KvRange, &RangeRequest { key: "k001".into(), ..RangeRequest::default() }),
    );
    let ranges = |key: &str| RequestOp {
        request: Some(request_op::Request::RequestRange(RangeRequest {
            key: key.to_owned().into(),
            ..RangeRequest::default()
        })),
    };
    let txn = TxnRequest { success: vec![ranges("k001"), ranges("k002")], ..TxnRequest::default() };
    let mut txn = begin(&world, Rpc::KvTxn, &txn);
    let reads = world.places[0].disk.reads();
    for _ in 0..3 {
        world.settle().expect("all goes on");
        assert!(poll(&mut all).is_pending() && poll(&mut one).is_pending() && poll(&mut txn).is_pending());
    }
    assert_eq!(world.places[0].disk.reads(), reads, "the shard reads nothing itself");
    // Other calls are answered in the meantime: writes, and reads of values in memory.
    world.put(0, "other", b"1").expect("is taken");
    misses(&world, 0);
    assert_eq!(world.get(0, "other"), Some(b"1".to_vec()));
    assert_eq!(world.get(0, "k002"), Some(value_of(2)));
    misses(&world, 1000);
    assert!(poll(&mut all).is_pending() && poll(&mut one).is_pending() && poll(&mut txn).is_pending());
    // Calls take turns in reading: a call for one value does not wait behind a call for forty.
    let mut steps = 0;
    while poll(&mut one).is_pending() {
        assert!(read(&mut world), "it waits for nothing else");
        world.settle().expect("all goes on");
        steps += 1;
    }
    assert!(steps <= 3, "{steps}");
    hold(&mut world, false);
    let all = RangeResponse::decode(world.run(all).expect("is answered")).expect("decodes");
    assert_eq!(all.kvs.len(), 40);
    let txn = TxnResponse::decode(world.run(txn).expect("is answered")).expect("decodes");
    assert_eq!(txn.responses.len(), 2);
}

/// Checks that another call is answered while this one waits for the disk, and that the shard itself reads
/// nothing. Returns the response to this call.
fn holds_up_nobody(world: &mut World, rpc: Rpc, request: &impl prost::Message) -> Bytes {
    misses(world, 1000);
    hold(world, true);
    let reads = world.places[0].disk.reads();
    let mut call = begin(world, rpc, request);
    for _ in 0..3 {
        world.settle().expect("all goes on");
        assert!(poll(&mut call).is_pending());
    }
    assert_eq!(world.places[0].disk.reads(), reads, "the shard reads nothing itself");
    misses(world, 0);
    world.put(0, "other", b"1").expect("is taken");
    assert_eq!(world.get(0, "other"), Some(b"1".to_vec()));
    misses(world, 1000);
    assert!(poll(&mut call).is_pending());
    hold(world, false);
    let answer = world.run(call).expect("is answered");
    misses(world, 0);
    answer
}

#[test]
fn values_that_are_sorted_by_are_fetched() {
    for (seed, keys) in [(11, 40), (12, 300)] {
        let mut world = filled(seed, keys);
        for order in [SortOrder::Ascend, SortOrder::Descend] {
            for limit in [0, 7] {
                let range = RangeRequest {
                    key: "k".into(),
                    range_end: "l".into(),
                    sort_target: SortTarget::Value as i32,
                    sort_order: order as i32,
                    limit,
                    ..RangeRequest::default()
                };
                let plain: RangeResponse = world.call(0, Rpc::KvRange, &range).expect("is answered");
                let cold = holds_up_nobody(&mut world, Rpc::KvRange, &range);
                let cold = RangeResponse::decode(cold).expect("decodes");
                assert_eq!((cold.kvs, cold.more, cold.count), (plain.kvs, plain.more, plain.count));
                let inside = TxnRequest {
                    success: vec![RequestOp { request: Some(request_op::Request::RequestRange(range)) }],
                    ..TxnRequest::default()
                };
                let plain: TxnResponse = world.call(0, Rpc::KvTxn, &inside).expect("is answered");
                let cold = holds_up_nobody(&mut world, Rpc::KvTxn, &inside);
                let cold = TxnResponse::decode(cold).expect("decodes");
                let ranged = |txn: &TxnResponse| match &txn.responses[0].response {
                    Some(pb::response_op::Response::ResponseRange(range)) => {
                        (range.kvs.clone(), range.more, range.count)
                    }
                    other => panic!("{other:?}"),
                };
                assert_eq!(ranged(&cold), ranged(&plain));
            }
        }
    }
}

#[test]
fn previous_values_beside_a_range_are_fetched() {
    // One world returns previous values from memory; its twin reads the same values from the disk.
    let answers = [false, true].map(|cold| {
        let mut world = filled(13, 60);
        // With these keys, the response is too large to be made at once.
        for n in 50..53 {
            world.put(0, &format!("k{n:03}"), &vec![n as u8; 100_000]).expect("is taken");
        }
        world.settle().expect("all goes on");
        let put = |n: usize| {
            let put = PutRequest { key: format!("k{n:03}").into(), prev_kv: true, ..PutRequest::default() };
            RequestOp { request: Some(request_op::Request::RequestPut(put)) }
        };
        let count = RangeRequest { count_only: true, ..all_keys() };
        let count = RequestOp { request: Some(request_op::Request::RequestRange(count)) };
        let inner = TxnRequest { success: vec![put(42), put(99), count.clone()], ..TxnRequest::default() };
        let inner = RequestOp { request: Some(request_op::Request::RequestTxn(inner)) };
        let mut success: Vec<RequestOp> = (0..40).chain(50..53).map(put).collect();
        success.extend([count, inner, put(41)]);
        let txn = TxnRequest { success, ..TxnRequest::default() };
        let mut txn = if cold {
            TxnResponse::decode(holds_up_nobody(&mut world, Rpc::KvTxn, &txn)).expect("decodes")
        } else {
            world.call::<_, TxnResponse>(0, Rpc::KvTxn, &txn).expect("is taken")
        };
        txn.header = None;
        txn
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0].responses.len(), 46);
    for (n, response) in answers[0].responses.iter().enumerate().take(40) {
        let Some(pb::response_op::Response::ResponsePut(put)) = &response.response else {
            panic!("{response:?}");
        };
        let before = value_of(if n % 5 == 0 { n + 1 } else { n });
        assert_eq!(put.prev_kv.as_ref().expect("there was one").value, before);
    }
}

#[test]
fn a_call_that_is_dropped_has_nothing_more_read() {
    let mut world = filled(2, 40);
    misses(&world, 1000);
    hold(&mut world, true);
    let mut all = begin(&world, Rpc::KvRange, &all_keys());
    world.settle().expect("all goes on");
    assert!(poll(&mut all).is_pending());
    drop(all);
    assert!(!read(&mut world), "nobody waits for it");
}

fn questions() -> Vec<(Rpc, Vec<u8>)> {
    let mut ranges = vec![
        all_keys(),
        RangeRequest { limit: 7, ..all_keys() },
        RangeRequest { key: "k003".into(), ..RangeRequest::default() },
        RangeRequest { key: "k010".into(), ..RangeRequest::default() },
        RangeRequest { keys_only: true, ..all_keys() },
        RangeRequest { revision: 30, ..all_keys() },
        RangeRequest { min_mod_revision: 20, ..all_keys() },
        RangeRequest { key: "k01".into(), range_end: "k02".into(), ..RangeRequest::default() },
    ];
    for target in [SortTarget::Key, SortTarget::Value, SortTarget::Mod] {
        for order in [SortOrder::Ascend, SortOrder::Descend] {
            let sort = (target as i32, order as i32);
            ranges.push(RangeRequest { sort_target: sort.0, sort_order: sort.1, limit: 11, ..all_keys() });
            ranges.push(RangeRequest { sort_target: sort.0, sort_order: sort.1, ..all_keys() });
        }
    }
    let range_op =
        |range: &RangeRequest| RequestOp { request: Some(request_op::Request::RequestRange(range.clone())) };
    let is = |key: &str, value: Vec<u8>| Compare {
        key: key.to_owned().into(),
        result: compare::CompareResult::Equal as i32,
        target: compare::CompareTarget::Value as i32,
        target_union: Some(compare::TargetUnion::Value(value.into())),
        ..Compare::default()
    };
    let mut all: Vec<(Rpc, Vec<u8>)> =
        ranges.iter().map(|range| (Rpc::KvRange, range.encode_to_vec())).collect();
    for right in [true, false] {
        // The comparison selects the branch: zeros in place of the value would select the other branch.
        let value = if right { value_of(8) } else { vec![0; value_of(8).len()] };
        let txn = TxnRequest {
            compare: vec![is("k008", value)],
            success: vec![range_op(&ranges[0]), range_op(&ranges[2])],
            failure: vec![range_op(&RangeRequest { revision: 9_999, ..all_keys() })],
        };
        all.push((Rpc::KvTxn, txn.encode_to_vec()));
    }
    all
}

#[test]
fn answers_do_not_depend_on_what_is_in_memory() {
    for (seed, keys) in [(3, 60), (4, 200)] {
        let mut world = filled(seed, keys);
        for (rpc, request) in questions() {
            let mut answers = VecDeque::new();
            for per_mille in [0, 1000, 500, 100, 20, 500] {
                misses(&world, per_mille);
                let answer = world.member(0).call(rpc, request.clone().into());
                answers.push_back(world.run(answer).map_err(|status| (status.code, status.message)));
            }
            let plain = answers.pop_front().expect("was asked");
            for answer in answers {
                assert_eq!(answer, plain);
            }
        }
    }
}

#[test]
fn what_writes_give_back_is_fetched_too() {
    let mut world = filled(5, 40);
    misses(&world, 700);
    let put = PutRequest { key: "k007".into(), prev_kv: true, ..PutRequest::default() };
    let answer: PutResponse = world.call(0, Rpc::KvPut, &put).expect("is taken");
    assert_eq!(answer.prev_kv.expect("there was one").value, value_of(7));
    let txn = TxnRequest {
        success: vec![RequestOp {
            request: Some(request_op::Request::RequestPut(PutRequest {
                key: "k008".into(),
                prev_kv: true,
                ..PutRequest::default()
            })),
        }],
        ..TxnRequest::default()
    };
    let answer: TxnResponse = world.call(0, Rpc::KvTxn, &txn).expect("is taken");
    let Some(pb::response_op::Response::ResponsePut(put)) = &answer.responses[0].response else {
        panic!("{answer:?}");
    };
    assert_eq!(put.prev_kv.as_ref().expect("there was one").value, value_of(8));
    let delete = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
    let answer: DeleteRangeResponse = world.call(0, Rpc::KvDeleteRange, &delete).expect("is taken");
    assert_eq!(answer.deleted, 40);
    for (n, kv) in answer.prev_kvs.iter().enumerate().filter(|(n, _)| !matches!(n, 7 | 8)) {
        assert_eq!(kv.value, value_of(if n % 5 == 0 { n + 1 } else { n }), "{n}");
    }
}

#[test]
fn a_damaged_value_fails_its_own_call_alone_and_with_the_same_words() {
    let mut world = filled(6, 60);
    let value = value_of(22);
    let (path, offset) = place_of(&world, &value);
    world.places[0].disk.flip_bit(&path, offset + 20, 3).expect("is there");
    let mut told = Vec::new();
    for per_mille in [0, 1000] {
        misses(&world, per_mille);
        let one = RangeRequest { key: "k022".into(), ..RangeRequest::default() };
        let failed = world.call::<_, RangeResponse>(0, Rpc::KvRange, &one).expect_err("it is damaged");
        assert_eq!(failed.code, Code::Internal);
        told.push(failed.message.into_owned());
        let failed =
            world.call::<_, RangeResponse>(0, Rpc::KvRange, &all_keys()).expect_err("one is damaged");
        told.push(failed.message.into_owned());
        // The neighboring values, which are read in the same operation, are intact.
        assert_eq!(world.get(0, "k023"), Some(value_of(23)));
        let near = RangeRequest { key: "k023".into(), range_end: "k029".into(), ..RangeRequest::default() };
        let near: RangeResponse = world.call(0, Rpc::KvRange, &near).expect("all of these are well");
        assert_eq!(near.kvs.len(), 6);
    }
    assert!(told.iter().all(|message| message == &told[0]), "{told:?}");
}

/// Returns the file and the offset at which a value is stored.
fn place_of(world: &World, value: &[u8]) -> (PathBuf, u64) {
    let disk = &world.places[0].disk;
    for (path, _) in disk.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "seg"))
    {
        let contents = disk.contents(&path).expect("is there");
        if let Some(at) = contents.windows(value.len()).position(|window| window == value) {
            return (path, at as u64);
        }
    }
    panic!("it is nowhere");
}

#[test]
fn values_that_are_moved_while_their_reads_are_queued_are_read_where_they_are() {
    let mut world = filled(7, 60);
    misses(&world, 1000);
    hold(&mut world, true);
    let mut all = begin(&world, Rpc::KvRange, &all_keys());
    world.settle().expect("all goes on");
    assert!(poll(&mut all).is_pending());
    // Overwriting one key makes garbage, so that live values between the garbage are moved and segments are released.
    let segments = |world: &World| {
        let mut names: Vec<PathBuf> =
            world.places[0].disk.files().into_iter().map(|(path, _)| path).collect();
        names.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
        names
    };
    let before = segments(&world);
    for n in 0..200 {
        world.put(0, "busy", &[n as u8; 900]).expect("is taken");
        if n % 40 == 39 {
            let revision = world.member(0).probe().revision - 3;
            let compaction = pb::CompactionRequest { revision: revision.0, physical: false };
            let _: pb::CompactionResponse = world.call(0, Rpc::KvCompact, &compaction).expect("is taken");
        }
    }
    world.settle().expect("all goes on");
    let after = segments(&world);
    hold(&mut world, false);
    let all = RangeResponse::decode(world.run(all).expect("is answered")).expect("decodes");
    assert_eq!(all.kvs.len(), 60);
    for (n, kv) in all.kvs.iter().enumerate() {
        assert_eq!(kv.value, value_of(if n % 5 == 0 { n + 1 } else { n }), "{n}");
    }
    assert_ne!(before, after, "something was to happen meanwhile");
}

#[test]
fn a_call_that_waits_for_the_disk_keeps_no_memory() {
    let get = |key: &str| RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
    let some = RangeRequest { key: "k01".into(), range_end: "k02".into(), ..RangeRequest::default() };
    let by_value = RangeRequest { sort_target: SortTarget::Value as i32, ..some.clone() };
    let few_by_value = RangeRequest { range_end: "k014".into(), ..by_value.clone() };
    let op = |request| RequestOp { request: Some(request) };
    let range = |range: &RangeRequest| op(request_op::Request::RequestRange(range.clone()));
    let put = |key: &str| PutRequest { key: key.to_owned().into(), prev_kv: true, ..PutRequest::default() };
    let is = Compare {
        key: "k008".into(),
        result: compare::CompareResult::Equal as i32,
        target: compare::CompareTarget::Value as i32,
        target_union: Some(compare::TargetUnion::Value(value_of(8).into())),
        ..Compare::default()
    };
    let reads = vec![range(&get("k001")), range(&some)];
    let calls = [
        (Rpc::KvRange, get("k001").encode_to_vec()),
        (Rpc::KvRange, some.encode_to_vec()),
        (Rpc::KvRange, by_value.encode_to_vec()),
        (Rpc::KvRange, few_by_value.encode_to_vec()),
        (
            Rpc::KvTxn,
            TxnRequest { success: vec![range(&get("k001"))], ..TxnRequest::default() }.encode_to_vec(),
        ),
        (
            Rpc::KvTxn,
            TxnRequest { compare: vec![is.clone()], success: reads, ..TxnRequest::default() }.encode_to_vec(),
        ),
        (Rpc::KvTxn, TxnRequest { compare: vec![is], ..TxnRequest::default() }.encode_to_vec()),
        (Rpc::KvPut, put("k001").encode_to_vec()),
        (Rpc::KvTxn, {
            let success = vec![op(request_op::Request::RequestPut(put("k001")))];
            TxnRequest { success, ..TxnRequest::default() }.encode_to_vec()
        }),
        (
            Rpc::KvDeleteRange,
            DeleteRangeRequest { key: "k001".into(), range_end: Bytes::new(), prev_kv: true }.encode_to_vec(),
        ),
        (
            Rpc::KvDeleteRange,
            DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true }.encode_to_vec(),
        ),
    ];
    // Writes and compacts while the call waits; many writes are new versions of the same keys.
    let write = |world: &mut World| {
        for n in 0..200 {
            world.put(0, &format!("k{:03}", (n * 7) % 60), &[1; 20]).expect("is taken");
        }
    };
    for (rpc, request) in calls {
        let worlds = [false, true].map(|cold| {
            let mut world = filled(21, 60);
            misses(&world, if cold { 1000 } else { 0 });
            hold(&mut world, cold);
            let mut call = world.member(0).call(rpc, request.clone().into());
            let mut answer = None;
            if cold {
                world.settle().expect("all goes on");
                assert!(poll(&mut call).is_pending(), "{rpc:?}");
            } else {
                answer = Some(world.run(&mut call));
            }
            let before = world.member(0).probe().index_bytes;
            write(&mut world);
            let growth = world.member(0).probe().index_bytes - before;
            let revision = world.member(0).probe().revision;
            let compaction = pb::CompactionRequest { revision: revision.0, physical: false };
            let _: pb::CompactionResponse = world.call(0, Rpc::KvCompact, &compaction).expect("is taken");
            world.settle().expect("all goes on");
            assert!(!cold || poll(&mut call).is_pending(), "{rpc:?}");
            hold(&mut world, false);
            let answer = answer.unwrap_or_else(|| world.run(&mut call));
            drop(call);
            world.until("all is removed", |world| {
                let probe = world.member(0).probe();
                probe.removable == 0 && probe.long_readers == 0
            });
            (answer, growth)
        });
        let [(warm, alone), (cold, beside)] = worlds;
        // A transaction with comparisons waits for their values, and then reads the newest state, which
        // differs between the worlds.
        let is_of_then = TxnRequest::decode(request.as_slice()).is_ok_and(|txn| !txn.compare.is_empty());
        assert!(if rpc == Rpc::KvTxn && is_of_then { cold.is_ok() } else { warm == cold }, "{rpc:?}");
        assert!(warm.is_ok_and(|answer| answer.len() > 20));
        assert!(beside < alone + alone / 10, "{rpc:?}: {alone} bytes of 200 puts, {beside} beside it");
    }
}

#[test]
fn a_client_that_takes_a_byte_at_a_time_does_not_cost_a_read_for_each_value() {
    let mut world = World::started(1, 22, &[]);
    for n in 0..300 {
        world
            .put(0, &format!("k{n:03}"), &vec![n as u8; if n < 200 { 500 } else { 1500 }])
            .expect("is taken");
    }
    let many = RangeRequest { key: "k".into(), range_end: "l".into(), ..RangeRequest::default() };
    let few = RangeRequest { key: "k2".into(), ..many.clone() };
    let sorted = RangeRequest {
        sort_target: SortTarget::Mod as i32,
        sort_order: SortOrder::Descend as i32,
        ..many.clone()
    };
    let op = |request| RequestOp { request: Some(request) };
    let txn = |success| TxnRequest { success, ..TxnRequest::default() }.encode_to_vec();
    let inside = txn(vec![op(request_op::Request::RequestRange(many.clone()))]);
    let puts = (172..300).map(|n| PutRequest {
        key: format!("k{n:03}").into(),
        prev_kv: true,
        ..PutRequest::default()
    });
    let before = txn(puts.map(|put| op(request_op::Request::RequestPut(put))).collect());
    let ranges = [many, few, sorted].map(|range| (Rpc::KvRange, range.encode_to_vec()));
    for (rpc, request) in ranges.into_iter().chain([(Rpc::KvTxn, inside), (Rpc::KvTxn, before)]) {
        let is_range = rpc == Rpc::KvRange;
        let plain = if is_range { Some(world.member(0).call(rpc, request.clone().into())) } else { None };
        let plain = plain.map(|call| world.run(call).expect("is answered"));
        misses(&world, 1000);
        let reads = world.places[0].disk.reads();
        let answer = match world.member(0).unary(rpc, request.into()) {
            front::Unary::Done(answer) => answer,
            front::Unary::Later(answer) => world.run(answer),
        };
        let Ok(front::Answer::Pieces { len, mut source, .. }) = answer else { panic!("it comes in pieces") };
        let mut taken = Vec::new();
        loop {
            match source(1, &mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(Some(piece))) => taken.extend_from_slice(&piece),
                Poll::Ready(other) => break assert_eq!(other, Ok(None)),
                Poll::Pending => world.settle().expect("all goes on"),
            }
        }
        let reads = world.places[0].disk.reads() - reads;
        assert!(taken.len() == len && plain.is_none_or(|plain| plain == taken));
        // Segments are small, and values in different segments are never neighbors.
        assert!(reads <= len as u64 / 4096, "{rpc:?}: {reads} reads for {len} bytes");
        misses(&world, 0);
    }
}

#[test]
fn what_a_transaction_compares_is_fetched_before_the_core_has_it() {
    let mut world = filled(10, 20);
    misses(&world, 1000);
    hold(&mut world, true);
    let txn = TxnRequest {
        compare: vec![Compare {
            key: "k008".into(),
            result: compare::CompareResult::Equal as i32,
            target: compare::CompareTarget::Value as i32,
            target_union: Some(compare::TargetUnion::Value(value_of(8).into())),
            ..Compare::default()
        }],
        success: vec![RequestOp {
            request: Some(request_op::Request::RequestPut(PutRequest {
                key: "k008".into(),
                ..PutRequest::default()
            })),
        }],
        ..TxnRequest::default()
    };
    let before = world.member(0).probe().revision;
    let mut call = begin(&world, Rpc::KvTxn, &txn);
    let reads = world.places[0].disk.reads();
    world.settle().expect("all goes on");
    assert!(poll(&mut call).is_pending());
    assert_eq!((world.member(0).probe().revision, world.places[0].disk.reads()), (before, reads));
    world.put(0, "other", b"1").expect("is taken");
    hold(&mut world, false);
    let answer = TxnResponse::decode(world.run(call).expect("is answered")).expect("decodes");
    assert!(answer.succeeded);
    assert_eq!(world.get(0, "k008"), Some(Vec::new()));
}

#[test]
fn what_a_transaction_compares_in_large_ranges_is_fetched_too() {
    let mut world = filled(14, 700);
    // An ordering comparison has to read every value.
    let txn = TxnRequest {
        compare: vec![Compare {
            key: "k".into(),
            range_end: "l".into(),
            result: compare::CompareResult::Less as i32,
            target: compare::CompareTarget::Value as i32,
            target_union: Some(compare::TargetUnion::Value("x".into())),
        }],
        success: vec![RequestOp {
            request: Some(request_op::Request::RequestPut(PutRequest {
                key: "done".into(),
                ..PutRequest::default()
            })),
        }],
        ..TxnRequest::default()
    };
    let answer = holds_up_nobody(&mut world, Rpc::KvTxn, &txn);
    assert!(TxnResponse::decode(answer).expect("decodes").succeeded);
    assert_eq!(world.get(0, "done"), Some(Vec::new()));
}

/// Returns a transaction that reads if these keys have these values.
fn reads_if(keys: impl Iterator<Item = (String, Vec<u8>)>) -> TxnRequest {
    let compare = |(key, value): (String, Vec<u8>)| Compare {
        key: key.into(),
        result: compare::CompareResult::Equal as i32,
        target: compare::CompareTarget::Value as i32,
        target_union: Some(compare::TargetUnion::Value(value.into())),
        ..Compare::default()
    };
    let get = RangeRequest { key: "k001".into(), ..RangeRequest::default() };
    TxnRequest {
        compare: keys.map(compare).collect(),
        success: vec![RequestOp { request: Some(request_op::Request::RequestRange(get)) }],
        ..TxnRequest::default()
    }
}

/// Returns a transaction that reads if the values of these keys are less than `than`.
fn reads_if_less(keys: impl Iterator<Item = String>, than: &[u8]) -> TxnRequest {
    let compare = |key: String| Compare {
        key: key.into(),
        result: compare::CompareResult::Less as i32,
        target: compare::CompareTarget::Value as i32,
        target_union: Some(compare::TargetUnion::Value(than.to_vec().into())),
        ..Compare::default()
    };
    TxnRequest { compare: keys.map(compare).collect(), ..reads_if(std::iter::empty()) }
}

#[test]
fn what_a_transaction_compares_is_fetched_together_though_all_of_it_changes_all_the_time() {
    const COMPARED: usize = 100;
    let mut world = filled(22, 5);
    let rewrite = |world: &mut World, round: usize| {
        let put = |n| PutRequest {
            key: format!("c{n:03}").into(),
            value: format!("value {round}").into(),
            ..PutRequest::default()
        };
        let put = |n| RequestOp { request: Some(request_op::Request::RequestPut(put(n))) };
        let txn = TxnRequest { success: (0..COMPARED).map(put).collect(), ..TxnRequest::default() };
        let call = begin(world, Rpc::KvTxn, &txn);
        world.run(call).expect("is taken");
    };
    rewrite(&mut world, 0);
    misses(&world, 1000);
    hold(&mut world, true);
    // The comparison ends at the first value that is missing.
    let compare = Compare {
        key: "c".into(),
        range_end: "d".into(),
        result: compare::CompareResult::Greater as i32,
        target: compare::CompareTarget::Value as i32,
        target_union: Some(compare::TargetUnion::Value("a".into())),
    };
    let request = TxnRequest { compare: vec![compare], ..reads_if(std::iter::empty()) };
    let mut call = begin(&world, Rpc::KvTxn, &request);
    // The compared keys change after every pass; after some passes, the transaction uses a snapshot.
    let mut round = 0;
    let answer = loop {
        world.settle().expect("all goes on");
        if let Poll::Ready(answer) = poll(&mut call) {
            break answer;
        }
        while read(&mut world) {}
        round += 1;
        assert!(round < COMPARED / 2, "it fetches one value after the other");
        rewrite(&mut world, round);
    };
    assert!(round > 16, "it had passes in the newest state before: {round}");
    assert!(TxnResponse::decode(answer.expect("is answered")).expect("decodes").succeeded);
}

#[test]
fn what_a_call_takes_from_the_readers_is_charged_to_its_connection() {
    const LARGE_BYTES: usize = 500_000;
    const COMPARED: usize = 8;
    let mut world = filled(21, 5);
    let large = |n: usize| format!("large{n}");
    for n in 0..COMPARED {
        world.put(0, &large(n), &vec![b'a'; LARGE_BYTES]).expect("is taken");
    }
    let budget = Budget::new(16 << 20);
    world.places[0].member.as_ref().expect("runs").charge_reads_to(&budget);
    misses(&world, 1000);
    hold(&mut world, true);
    let (connection, other) = (budget.open([10, 0, 0, 1].into()), budget.open([10, 0, 0, 2].into()));
    let (idle, _others) = (connection.held_bytes(), other.hold(1 << 20));
    let request = reads_if_less((0..COMPARED).map(large), b"b");

    // A single call: what it has read is charged to its connection while it waits for more, and until it ends.
    let mut call = begin(&world, Rpc::KvTxn, &request);
    let (mut most, mut steps) = (0, 0);
    let answer = loop {
        world.settle().expect("all goes on");
        let turn = connection.begin_turn();
        let polled = poll(&mut call);
        drop(turn);
        let held = connection.held_bytes() - idle;
        assert!(held <= most + (1 << 20) || polled.is_ready(), "{held} after {most}");
        most = most.max(held);
        if let Poll::Ready(answer) = polled {
            break answer;
        }
        read(&mut world);
        steps += 1;
        assert!(steps < 200, "it does not end");
    };
    assert!(TxnResponse::decode(answer.expect("is answered")).expect("decodes").succeeded);
    assert_eq!((most, connection.held_bytes()), (COMPARED * LARGE_BYTES, idle));

    // Many calls together exceed the budget, so their connection is closed.
    let mut calls: Vec<Call> = (0..6).map(|_| begin(&world, Rpc::KvTxn, &request)).collect();
    while budget.connections_shed() == 0 {
        world.settle().expect("all goes on");
        let turn = connection.begin_turn();
        assert!(calls.iter_mut().all(|call| poll(call).is_pending()), "they hold no more than there may be");
        drop(turn);
        read(&mut world);
    }
    assert!(connection.is_doomed() && !other.is_doomed(), "{budget:?}");
}

#[test]
fn what_a_transaction_that_reads_compares_is_fetched_at_once() {
    let mut world = filled(15, 40);
    misses(&world, 1000);
    hold(&mut world, true);
    let keys = (0..40).filter(|n| n % 5 > 0).map(|n| (format!("k{n:03}"), value_of(n)));
    let mut call = begin(&world, Rpc::KvTxn, &reads_if(keys));
    let (mut rounds, mut polls) = (0, 0);
    let answer = loop {
        world.settle().expect("all goes on");
        if let Poll::Ready(answer) = poll(&mut call) {
            break answer;
        }
        rounds += usize::from(read(&mut world));
        while read(&mut world) {}
        polls += 1;
        assert!(polls < 100, "it waits, and nothing is to be read");
    };
    assert!(TxnResponse::decode(answer.expect("is answered")).expect("decodes").succeeded);
    // One round for values missing in the first pass, one for all compared values, one for the response.
    assert!(rounds <= 3, "{rounds}");
}

#[test]
fn a_transaction_that_reads_and_waits_for_the_disk_is_of_the_newest_state() {
    let mut world = filled(16, 10);
    misses(&world, 1000);
    hold(&mut world, true);
    let keys = [2, 3].map(|n| (format!("k{n:03}"), value_of(n)));
    let mut call = begin(&world, Rpc::KvTxn, &reads_if(keys.into_iter()));
    world.settle().expect("all goes on");
    assert!(poll(&mut call).is_pending());
    world.put(0, "k003", b"other").expect("is taken");
    let revision = world.member(0).probe().revision;
    hold(&mut world, false);
    let answer = TxnResponse::decode(world.run(call).expect("is answered")).expect("decodes");
    // The transaction reads the newest state, not the state in which it began.
    assert!(!answer.succeeded);
    assert_eq!(answer.header.expect("has one").revision, revision.0);
}

#[test]
fn a_write_whose_previous_value_cannot_be_read_is_said_to_have_been_carried_out() {
    for (seed, per_mille) in [(17, 0), (18, 1000)] {
        let mut world = filled(seed, 30);
        let (path, offset) = place_of(&world, &value_of(22));
        world.places[0].disk.flip_bit(&path, offset + 20, 3).expect("is there");
        misses(&world, per_mille);
        let before = world.member(0).probe().revision;
        let failed = if seed == 17 {
            let put = PutRequest { key: "k022".into(), prev_kv: true, ..PutRequest::default() };
            world.call::<_, PutResponse>(0, Rpc::KvPut, &put).map(|_| ())
        } else {
            let delete = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
            world.call::<_, DeleteRangeResponse>(0, Rpc::KvDeleteRange, &delete).map(|_| ())
        };
        let failed = failed.expect_err("it is damaged");
        assert_eq!(world.member(0).probe().revision, before + 1);
        assert_eq!(failed.code, Code::Unavailable, "{failed:?}");
        assert!(failed.message.contains("the write was carried out"), "{failed:?}");
    }
}

fn watch(world: &World, creation: WatchCreateRequest) -> Stream {
    let stream = Stream::default();
    serve(world, &stream, [creation]);
    stream
}

fn serve<const N: usize>(world: &World, stream: &Stream, creations: [WatchCreateRequest; N]) {
    for creation in creations {
        let request_union = Some(watch_request::RequestUnion::CreateRequest(creation));
        stream.ask(&WatchRequest { request_union });
    }
    let member = world.member(0);
    let watching = member.watch(true, stream.clone(), stream.clone(), std::future::pending());
    member.spawn(async move {
        let _ = watching.await;
    });
}

fn events(stream: &Stream) -> Vec<api::mvccpb::Event> {
    stream.responses.borrow().iter().flat_map(|response| response.events.clone()).collect()
}

#[test]
fn history_that_is_not_in_memory_is_told_whole_and_holds_up_no_other_watch() {
    let mut world = filled(8, 60);
    let all = WatchCreateRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        start_revision: 2,
        prev_kv: true,
        ..WatchCreateRequest::default()
    };
    let written = 60 + 12;
    let plain = watch(&world, all.clone());
    world.until("all was told", |_| events(&plain).len() == written);
    for per_mille in [1000, 300] {
        misses(&world, per_mille);
        hold(&mut world, true);
        let cold = watch(&world, all.clone());
        let new = watch(&world, WatchCreateRequest { key: "new".into(), ..WatchCreateRequest::default() });
        world.settle().expect("all goes on");
        assert_eq!(events(&cold), [], "it waits for the disk");
        misses(&world, 0);
        world.put(0, "new", b"1").expect("is taken");
        world.settle().expect("all goes on");
        assert_eq!(events(&new).len(), 1, "it does not");
        misses(&world, per_mille);
        hold(&mut world, false);
        world.until("all was told", |_| events(&cold).len() == events(&plain).len());
        assert_eq!(events(&cold), events(&plain));
    }
}

#[test]
fn what_is_read_for_a_watch_whose_client_takes_nothing_is_taken_from_the_readers() {
    let mut world = filled(9, 60);
    misses(&world, 1000);
    hold(&mut world, true);
    let stream = Stream::default();
    let new = WatchCreateRequest { key: "new".into(), ..WatchCreateRequest::default() };
    let history = WatchCreateRequest {
        key: "k".into(),
        range_end: "l".into(),
        start_revision: 2,
        ..WatchCreateRequest::default()
    };
    serve(&world, &stream, [new, history]);
    world.settle().expect("all goes on");
    assert!(events(&stream).is_empty() && world.places[0].member.as_ref().expect("runs").wants_read());
    // A response to the client is queued before the events of the history.
    stream.is_shut.set(true);
    misses(&world, 0);
    world.put(0, "new", b"1").expect("is taken");
    world.settle().expect("all goes on");
    hold(&mut world, false);
    world.settle().expect("all goes on");
    assert!(events(&stream).is_empty());
    let member = world.places[0].member.as_ref().expect("runs");
    assert!(!member.wants_read() && !member.holds_untaken());
}

#[test]
fn large_previous_values_of_one_revision_are_fetched_a_part_at_a_time() {
    let mut world = World::started(1, 10, &[]);
    // More bytes than one turn of the shard turns into events.
    for n in 0..20 {
        world.put(0, &format!("k{n:03}"), &vec![n as u8; 500_000]).expect("is taken");
    }
    let request =
        DeleteRangeRequest { key: "k".into(), range_end: "l".into(), ..DeleteRangeRequest::default() };
    let mut call = begin(&world, Rpc::KvDeleteRange, &request);
    world.until("it is deleted", |_| poll(&mut call).is_ready());
    let all = WatchCreateRequest {
        key: "k".into(),
        range_end: "l".into(),
        start_revision: 22,
        prev_kv: true,
        ..WatchCreateRequest::default()
    };
    let plain = watch(&world, all.clone());
    world.until("all was told", |_| events(&plain).len() == 20);
    for (n, event) in events(&plain).iter().enumerate() {
        assert!(event.prev_kv.as_ref().is_some_and(|kv| kv.value == vec![n as u8; 500_000]));
    }
    for per_mille in [1000, 300] {
        misses(&world, per_mille);
        let cold = watch(&world, all.clone());
        world.until("all was told", |_| events(&cold).len() == 20);
        assert!(events(&cold) == events(&plain));
    }
}

#[test]
fn a_watch_whose_event_is_not_in_memory_is_told_of_it_later_and_once() {
    let mut world = filled(9, 20);
    let with_previous = WatchCreateRequest {
        key: "k".into(),
        range_end: "l".into(),
        prev_kv: true,
        ..WatchCreateRequest::default()
    };
    let plain = watch(&world, with_previous.clone());
    let keys_alone = watch(&world, WatchCreateRequest { prev_kv: false, ..with_previous });
    world.settle().expect("all goes on");
    misses(&world, 500);
    for n in (0..20).rev() {
        world.put(0, &format!("k{n:03}"), &value_of(n + 3)).expect("is taken");
    }
    for stream in [&plain, &keys_alone] {
        world.until("all was told", |_| events(stream).len() >= 20);
        world.settle().expect("all goes on");
        let keys: Vec<String> = (0..20).rev().map(|n| format!("k{n:03}")).collect();
        let told = events(stream);
        let kvs = || told.iter().map(|event| event.kv.as_ref().expect("has one"));
        assert_eq!(kvs().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect::<Vec<_>>(), keys);
        for (n, kv) in (0..20).rev().zip(kvs()) {
            assert_eq!(kv.value, value_of(n + 3));
        }
    }
    for (n, event) in (0..20).rev().zip(events(&plain)) {
        let before = value_of(if n % 5 == 0 { n + 1 } else { n });
        assert_eq!(event.prev_kv.expect("was asked for").value, before);
    }
}
