//! Values that are too large for one piece of a response: they are read in parts, and held in memory for a
//! client only if they do not stay in the page cache.

use std::path::PathBuf;
use std::task::{Context, Poll, Waker};

use accounting::Budget;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, LeaseGrantResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse, request_op, response_op,
};
use api::{Code, Rpc, Status};
use front::{Answer, Unary};
use prost::Message as _;

use super::world::World;
use super::{WORN, compact};

const VALUE_BYTES: usize = 400_000;
const PIECE_BYTES: usize = 64 << 10;
/// Length in bytes up to which a value is not sent in parts.
const SMALL_BYTES_MAX: usize = 128 << 10;
/// Lease whose number has the longest encoding behind a value.
const LEASE: i64 = -1;
/// Bytes that a response may hold: one part that is not sent yet, and the list of remaining keys.
const HELD_BYTES_MAX: usize = PIECE_BYTES + 4096;

fn value_of(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + at / 251 + n * 7) % 251) as u8).collect()
}

/// Returns the lease of a key: the last key has none.
fn lease_of(n: usize) -> i64 {
    if n == 6 { 0 } else { LEASE }
}

/// Starts a member with values, some of which are large. The values before the large ones are so long that
/// they fill a piece, or so short that they share a piece with the beginning of a large value.
fn filled(seed: u64) -> World {
    let mut world = World::started(1, seed, &[]);
    let lease = LeaseGrantRequest { ttl: 1_000_000, id: LEASE };
    let _: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &lease).expect("is granted");
    for n in 0..8 {
        let len = [VALUE_BYTES, 9000, 3000][n % 3];
        let (key, value) = (format!("k{n}").into(), value_of(n, len).into());
        let put = PutRequest { key, value, lease: lease_of(n), ..PutRequest::default() };
        let _: PutResponse = world.call(0, Rpc::KvPut, &put).expect("is taken");
    }
    world.settle().expect("all goes on");
    world
}

fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }
}

fn all() -> RangeRequest {
    RangeRequest { range_end: "l".into(), ..get("k") }
}

fn begin(world: &mut World, rpc: Rpc, request: &impl prost::Message) -> Answer {
    let answer = match world.member(0).unary(rpc, request.encode_to_vec().into()) {
        Unary::Done(answer) => answer,
        Unary::Later(answer) => world.run(answer),
    };
    answer.expect("is answered")
}

/// Takes a response to its end, or `pieces` pieces of it, with the piece sizes `wanted` in turn. Raises
/// `held_max` to the most bytes that the response held.
fn take(
    world: &mut World,
    answer: &mut Answer,
    taken: &mut Vec<u8>,
    wanted: &[usize],
    pieces: usize,
    held_max: &mut usize,
) -> Result<(), Status> {
    let Answer::Pieces { len, source, held, .. } = answer else {
        panic!("it is too small to come in pieces")
    };
    for wanted in wanted.iter().cycle().take(pieces) {
        let piece = loop {
            match source(*wanted, &mut Context::from_waker(Waker::noop())) {
                Poll::Ready(piece) => break piece?,
                Poll::Pending => world.settle().expect("all goes on"),
            }
        };
        *held_max = (*held_max).max(held.get());
        match piece {
            Some(piece) => {
                assert!(!piece.is_empty() && piece.len() <= *wanted);
                taken.extend_from_slice(&piece);
            }
            None => break,
        }
    }
    assert!(pieces < usize::MAX || taken.len() == *len, "{} of {len} bytes", taken.len());
    Ok(())
}

/// Takes a whole response. Returns its bytes, and the most bytes that it held.
fn taken(world: &mut World, answer: &mut Answer, wanted: &[usize]) -> Result<(Vec<u8>, usize), Status> {
    let (mut taken, mut held_max) = (Vec::new(), 0);
    take(world, answer, &mut taken, wanted, usize::MAX, &mut held_max)?;
    Ok((taken, held_max))
}

fn op(request: request_op::Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

#[test]
fn an_answer_holds_a_part_of_a_large_value_however_it_is_asked_for() {
    let by = |target: SortTarget| RangeRequest {
        sort_target: target as i32,
        sort_order: SortOrder::Descend as i32,
        ..all()
    };
    let ranges =
        [get("k3"), all(), RangeRequest { revision: 9, ..all() }, by(SortTarget::Mod), by(SortTarget::Key)];
    for (seed, per_mille) in [(31, 0), (32, 300), (33, 1000)] {
        let mut world = filled(seed);
        for wanted in [&[PIECE_BYTES][..], &[PIECE_BYTES - 5, 30_000, 1, 100, 16 << 10]] {
            for range in &ranges {
                let keys = if range.range_end.is_empty() { vec![3] } else { (0..8).collect::<Vec<_>>() };
                let is_sorted = range.sort_order != SortOrder::None as i32;
                let keys = keys.iter().map(|n| if is_sorted { 7 - n } else { *n });
                world.places[0].disk.set_misses_per_mille(per_mille);
                let mut answer = begin(&mut world, Rpc::KvRange, range);
                let (bytes, held) = taken(&mut world, &mut answer, wanted).expect("is read");
                assert!(held <= HELD_BYTES_MAX, "{range:?}: {held}");
                let ranged = RangeResponse::decode(bytes.as_slice()).expect("decodes");
                assert_eq!((ranged.kvs.len(), ranged.count), (keys.len(), keys.len() as i64));
                for (kv, n) in ranged.kvs.iter().zip(keys) {
                    assert!(kv.key == format!("k{n}") && kv.mod_revision == 2 + n as i64);
                    assert_eq!(kv.lease, lease_of(n), "{range:?}: {n}");
                    assert!(kv.value == value_of(n, kv.value.len()), "{range:?}: {n}");
                }
                // The same range in a transaction.
                let txn = vec![op(request_op::Request::RequestRange(range.clone()))];
                let txn = TxnRequest { success: txn, ..TxnRequest::default() };
                let mut answer = begin(&mut world, Rpc::KvTxn, &txn);
                let (bytes, held) = taken(&mut world, &mut answer, wanted).expect("is read");
                assert!(held <= HELD_BYTES_MAX, "{range:?}: {held}");
                let txn = TxnResponse::decode(bytes.as_slice()).expect("decodes");
                let Some(response_op::Response::ResponseRange(inside)) = &txn.responses[0].response else {
                    panic!("{:?}", txn.responses);
                };
                assert_eq!((&inside.kvs, inside.count), (&ranged.kvs, ranged.count));
            }
        }
    }
}

#[test]
fn what_writes_give_back_comes_in_parts_too() {
    for (seed, per_mille) in [(34, 0), (35, 1000)] {
        let mut world = filled(seed);
        world.places[0].disk.set_misses_per_mille(per_mille);
        let put = PutRequest { key: "k0".into(), prev_kv: true, ..PutRequest::default() };
        let mut answer = begin(&mut world, Rpc::KvPut, &put);
        let (bytes, held) = taken(&mut world, &mut answer, &[PIECE_BYTES]).expect("is read");
        assert!(held <= HELD_BYTES_MAX, "{held}");
        let before = PutResponse::decode(bytes.as_slice()).expect("decodes").prev_kv.expect("there was one");
        assert!(before.value == value_of(0, VALUE_BYTES) && before.lease == LEASE);
        let put = PutRequest { key: "k3".into(), prev_kv: true, ..PutRequest::default() };
        let success = vec![op(request_op::Request::RequestPut(put))];
        let mut answer = begin(&mut world, Rpc::KvTxn, &TxnRequest { success, ..TxnRequest::default() });
        let (bytes, held) = taken(&mut world, &mut answer, &[PIECE_BYTES]).expect("is read");
        assert!(held <= HELD_BYTES_MAX, "{held}");
        let txn = TxnResponse::decode(bytes.as_slice()).expect("decodes");
        let Some(response_op::Response::ResponsePut(put)) = &txn.responses[0].response else {
            panic!("{:?}", txn.responses);
        };
        assert!(put.prev_kv.as_ref().is_some_and(|kv| kv.value == value_of(3, VALUE_BYTES)));
        let delete = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
        let mut answer = begin(&mut world, Rpc::KvDeleteRange, &delete);
        let (bytes, held) = taken(&mut world, &mut answer, &[PIECE_BYTES]).expect("is read");
        assert!(held <= HELD_BYTES_MAX, "{held}");
        let deleted = DeleteRangeResponse::decode(bytes.as_slice()).expect("decodes");
        assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (8, 8));
        assert!(deleted.prev_kvs[6].value == value_of(6, VALUE_BYTES) && deleted.prev_kvs[6].lease == 0);
        assert!(deleted.prev_kvs[7].value == value_of(7, 9000) && deleted.prev_kvs[7].lease == LEASE);
    }
}

#[test]
fn a_value_that_does_not_stay_in_memory_is_fetched_twice_at_most() {
    let mut world = filled(36);
    world.places[0].disk.set_misses_per_mille(1000);
    let reads = world.places[0].disk.reads();
    let mut answer = begin(&mut world, Rpc::KvRange, &get("k3"));
    let (bytes, _) = taken(&mut world, &mut answer, &[16 << 10]).expect("is read");
    assert!(bytes.len() > VALUE_BYTES);
    let reads = world.places[0].disk.reads() - reads;
    assert!(reads <= 2, "{reads} reads");
    // Behind other values, which fill a piece, the large value is not read more often: it is fetched with the
    // others first, and checked.
    let few = RangeRequest { range_end: "k4".into(), ..get("k1") };
    let reads = world.places[0].disk.reads();
    let mut answer = begin(&mut world, Rpc::KvRange, &few);
    let (bytes, _) = taken(&mut world, &mut answer, &[16 << 10]).expect("is read");
    assert!(bytes.len() > VALUE_BYTES);
    let reads = world.places[0].disk.reads() - reads;
    assert!(reads <= 4, "{reads} reads");
}

#[test]
fn a_part_ends_where_its_value_does() {
    let mut world = World::started(1, 41, &[]);
    let lease = LeaseGrantRequest { ttl: 1_000_000, id: LEASE };
    let _: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &lease).expect("is granted");
    let around_a_piece = (3 * PIECE_BYTES - 120)..3 * PIECE_BYTES;
    let lens = [SMALL_BYTES_MAX - 1, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1];
    let (mut shortest, mut longest) = (usize::MAX, 0);
    for len in lens.into_iter().chain(around_a_piece) {
        let (key, value) = ("k".into(), value_of(len, len).into());
        let put = PutRequest { key, value, lease: LEASE, ..PutRequest::default() };
        let _: PutResponse = world.call(0, Rpc::KvPut, &put).expect("is taken");
        let mut answer = begin(&mut world, Rpc::KvRange, &get("k"));
        let (mut bytes, mut held) = (Vec::new(), 0);
        let Answer::Pieces { len: all, .. } = &answer else { panic!("{len} bytes come in pieces") };
        let all = *all;
        loop {
            let before = bytes.len();
            take(&mut world, &mut answer, &mut bytes, &[PIECE_BYTES], 1, &mut held).expect("is read");
            if bytes.len() == before {
                break;
            }
            // The number of keys follows the values, in a piece of two bytes.
            if bytes.len() == all - 2 {
                shortest = shortest.min(bytes.len() - before);
                longest = longest.max(bytes.len() - before);
            }
        }
        assert!(bytes.len() == all && held <= SMALL_BYTES_MAX + PIECE_BYTES);
        let ranged = RangeResponse::decode(bytes.as_slice()).expect("decodes");
        assert_eq!((ranged.kvs.len(), ranged.count, ranged.kvs[0].lease), (1, 1, LEASE));
        assert!(ranged.kvs[0].value == value_of(len, len), "{len}");
    }
    // The fields after a value take eleven bytes here, and are sent together with at least one byte of the
    // value.
    assert_eq!((shortest, longest), (12, PIECE_BYTES));
}

#[test]
fn a_long_key_before_a_large_value_is_a_piece_of_its_own() {
    let key = format!("k{}", "-".repeat(20_000));
    let mut world = filled(42);
    world.put(0, &key, &value_of(5, VALUE_BYTES)).expect("is taken");
    for per_mille in [0, 300, 1000] {
        world.places[0].disk.set_misses_per_mille(per_mille);
        for range in [get(&key), all()] {
            let mut answer = begin(&mut world, Rpc::KvRange, &range);
            let (bytes, held) = taken(&mut world, &mut answer, &[16 << 10]).expect("is read");
            assert!(held <= HELD_BYTES_MAX, "{held}");
            let ranged = RangeResponse::decode(bytes.as_slice()).expect("decodes");
            assert_eq!(ranged.kvs.len() as i64, ranged.count);
            assert!(ranged.kvs[0].key == key && ranged.kvs[0].value == value_of(5, VALUE_BYTES));
            let txn = vec![op(request_op::Request::RequestRange(range))];
            let txn = TxnRequest { success: txn, ..TxnRequest::default() };
            let mut answer = begin(&mut world, Rpc::KvTxn, &txn);
            let (bytes, _) = taken(&mut world, &mut answer, &[16 << 10]).expect("is read");
            let txn = TxnResponse::decode(bytes.as_slice()).expect("decodes");
            let Some(response_op::Response::ResponseRange(inside)) = &txn.responses[0].response else {
                panic!("{:?}", txn.responses);
            };
            assert_eq!(inside.kvs, ranged.kvs);
        }
    }
}

#[test]
fn a_walk_over_many_keys_goes_on_behind_large_values() {
    let mut world = filled(47);
    let value = |n: usize| value_of(n, if n.is_multiple_of(90) { 150_000 } else { 10 + 4 * n });
    for n in 0..300 {
        world.put(0, &format!("m{n:03}"), &value(n)).expect("is taken");
    }
    let newest = world.member(0).probe().revision.0;
    let many = RangeRequest { range_end: "n".into(), ..get("k4") };
    let expected: Vec<(String, Vec<u8>)> = (4..8)
        .map(|n| (format!("k{n}"), value_of(n, [VALUE_BYTES, 9000, 3000][n % 3])))
        .chain((0..300).map(|n| (format!("m{n:03}"), value(n))))
        .collect();
    let ranges = [
        many.clone(),
        RangeRequest { revision: newest, ..many.clone() },
        RangeRequest { limit: 275, ..many },
    ];
    // Readers of an older revision skip what is written now.
    world.put(0, "m", &value_of(1, VALUE_BYTES)).expect("is taken");
    let delete = DeleteRangeRequest { key: "m".into(), ..DeleteRangeRequest::default() };
    let _: DeleteRangeResponse = world.call(0, Rpc::KvDeleteRange, &delete).expect("is deleted");
    for per_mille in [0, 300, 1000] {
        world.places[0].disk.set_misses_per_mille(per_mille);
        for wanted in [&[PIECE_BYTES][..], &[PIECE_BYTES - 5, 30_000, 1, 100, 16 << 10]] {
            for range in &ranges {
                let keys = if range.limit > 0 { 275 } else { expected.len() };
                let is_same = |ranged: &RangeResponse| {
                    assert_eq!((ranged.kvs.len(), ranged.count), (keys, expected.len() as i64));
                    assert_eq!(ranged.more, keys < expected.len());
                    let mut pairs = ranged.kvs.iter().zip(&expected);
                    pairs.all(|(kv, (key, value))| kv.key == key.as_str() && kv.value == value.as_slice())
                };
                let mut answer = begin(&mut world, Rpc::KvRange, range);
                let (bytes, held) = taken(&mut world, &mut answer, wanted).expect("is read");
                assert!(held <= SMALL_BYTES_MAX, "{held}");
                assert!(is_same(&RangeResponse::decode(bytes.as_slice()).expect("decodes")), "{range:?}");
                let txn = vec![op(request_op::Request::RequestRange(range.clone()))];
                let txn = TxnRequest { success: txn, ..TxnRequest::default() };
                let mut answer = begin(&mut world, Rpc::KvTxn, &txn);
                let (bytes, _) = taken(&mut world, &mut answer, wanted).expect("is read");
                let txn = TxnResponse::decode(bytes.as_slice()).expect("decodes");
                let Some(response_op::Response::ResponseRange(inside)) = &txn.responses[0].response else {
                    panic!("{:?}", txn.responses);
                };
                assert!(is_same(inside), "{range:?} in a transaction");
            }
        }
    }
}

#[test]
fn a_value_that_was_fetched_is_charged_as_long_as_it_is_held() {
    let mut world = filled(43);
    let budget = Budget::new(64 << 20);
    world.member(0).charge_reads_to(&budget);
    let idle = budget.held_bytes();
    world.places[0].disk.set_misses_per_mille(1000);
    let (mut answer, mut bytes, mut held) = (begin(&mut world, Rpc::KvRange, &get("k3")), Vec::new(), 0);
    let mut charged = Vec::new();
    for _ in 0..4 {
        take(&mut world, &mut answer, &mut bytes, &[PIECE_BYTES], 1, &mut held).expect("is read");
        charged.push(budget.held_bytes() - idle);
    }
    // The first part comes from the first fetch, and the other parts should then be in the page cache. They
    // are not, so the data fetched for the second part is held in memory.
    assert_eq!(charged, [0, VALUE_BYTES, VALUE_BYTES, VALUE_BYTES]);
    take(&mut world, &mut answer, &mut bytes, &[PIECE_BYTES], usize::MAX, &mut held).expect("is read");
    assert_eq!(budget.held_bytes(), idle);
    // When the client leaves, the fetched value is released, too.
    let (mut answer, mut bytes) = (begin(&mut world, Rpc::KvRange, &get("k3")), Vec::new());
    take(&mut world, &mut answer, &mut bytes, &[PIECE_BYTES], 2, &mut held).expect("is read");
    assert_eq!(budget.held_bytes() - idle, VALUE_BYTES);
    drop(answer);
    assert_eq!(budget.held_bytes(), idle);
}

#[test]
fn a_value_is_fetched_once_where_the_system_does_not_tell_what_is_in_memory() {
    let mut world = filled(44);
    world.places[0].disk.set_tells_cached(false);
    for range in [get("k3"), all()] {
        let reads = world.places[0].disk.reads();
        let mut answer = begin(&mut world, Rpc::KvRange, &range);
        let (bytes, _) = taken(&mut world, &mut answer, &[16 << 10]).expect("is read");
        let ranged = RangeResponse::decode(bytes.as_slice()).expect("decodes");
        let reads = world.places[0].disk.reads() - reads;
        assert!(reads <= ranged.kvs.len() as u64, "{reads} reads for {} values", ranged.kvs.len());
    }
}

#[test]
fn a_value_that_was_fetched_is_not_checked_again() {
    let mut world = filled(45);
    world.places[0].disk.set_misses_per_mille(1000);
    let mut answer = begin(&mut world, Rpc::KvRange, &get("k3"));
    taken(&mut world, &mut answer, &[PIECE_BYTES]).expect("is read");
    world.places[0].disk.set_misses_per_mille(0);
    let reads = world.places[0].disk.reads();
    let mut answer = begin(&mut world, Rpc::KvRange, &get("k3"));
    taken(&mut world, &mut answer, &[PIECE_BYTES]).expect("is read");
    let reads = world.places[0].disk.reads() - reads;
    assert_eq!(reads, VALUE_BYTES.div_ceil(PIECE_BYTES) as u64, "those of its parts");
}

#[test]
fn responses_that_send_a_value_at_the_same_time_read_it_once() {
    let budget = Budget::new(1 << 30);
    let mut world = filled(48);
    world.member(0).charge_reads_to(&budget);
    let reads = |world: &World| world.places[0].disk.reads();
    let txn = vec![op(request_op::Request::RequestRange(get("k3")))];
    let txn = TxnRequest { success: txn, ..TxnRequest::default() };
    for wanted in [&[PIECE_BYTES][..], &[PIECE_BYTES - 5, 30_000, 1, 100, 16 << 10]] {
        for key in ["k3", "k6"] {
            // What is read alone.
            let mut answer = begin(&mut world, Rpc::KvRange, &get(key));
            let (alone, _) = taken(&mut world, &mut answer, wanted).expect("is read");
            // The first response reads in parts, the second one reads the whole value for those that follow.
            let mut answers = Vec::new();
            for n in 0..4 {
                let (mut answer, mut bytes) = (begin(&mut world, Rpc::KvRange, &get(key)), Vec::new());
                let before = reads(&world);
                take(&mut world, &mut answer, &mut bytes, &[100], 2, &mut 0).expect("is read");
                assert_eq!(reads(&world) - before, u64::from(n < 2), "{n}");
                answers.push((answer, bytes));
            }
            assert_eq!(budget.held_bytes(), VALUE_BYTES);
            let before = reads(&world);
            for (answer, bytes) in &mut answers[1..] {
                let mut held = 0;
                take(&mut world, answer, bytes, wanted, usize::MAX, &mut held).expect("is read");
                assert!(held <= HELD_BYTES_MAX, "{held}");
            }
            if key == "k3" {
                let mut answer = begin(&mut world, Rpc::KvTxn, &txn);
                let (bytes, _) = taken(&mut world, &mut answer, wanted).expect("is read");
                let txn = TxnResponse::decode(bytes.as_slice()).expect("decodes");
                let Some(response_op::Response::ResponseRange(inside)) = &txn.responses[0].response else {
                    panic!("{:?}", txn.responses);
                };
                assert!(inside.kvs[0].value == value_of(3, VALUE_BYTES) && inside.kvs[0].lease == LEASE);
            }
            assert!(answers[1..].iter().all(|(_, bytes)| *bytes == alone));
            let (answer, bytes) = &mut answers[0];
            take(&mut world, answer, bytes, wanted, usize::MAX, &mut 0).expect("is read");
            assert!(*bytes == alone && reads(&world) > before);
            assert_eq!(budget.held_bytes(), 0, "no response sends the value");
        }
    }
    // Clients that leave give the buffer back, too.
    let mut answers: Vec<Answer> = Vec::new();
    for _ in 0..3 {
        let (mut answer, mut bytes) = (begin(&mut world, Rpc::KvRange, &get("k3")), Vec::new());
        take(&mut world, &mut answer, &mut bytes, &[100], 2, &mut 0).expect("is read");
        answers.push(answer);
    }
    assert_eq!(budget.held_bytes(), VALUE_BYTES);
    answers.truncate(1);
    assert_eq!(budget.held_bytes(), 0);
}

#[test]
fn a_value_that_is_damaged_before_it_is_shared_is_refused() {
    let mut world = filled(49);
    let (path, offset) = place_of(&world, &value_of(3, VALUE_BYTES));
    let (mut first, mut bytes) = (begin(&mut world, Rpc::KvRange, &get("k3")), Vec::new());
    take(&mut world, &mut first, &mut bytes, &[PIECE_BYTES], 2, &mut 0).expect("is read");
    world.places[0].disk.flip_bit(&path, offset + 300_000, 3).expect("is there");
    let name = path.file_name().and_then(|name| name.to_str()).expect("it has a name");
    for _ in 0..2 {
        let (mut answer, mut bytes) = (begin(&mut world, Rpc::KvRange, &get("k3")), Vec::new());
        let refused = take(&mut world, &mut answer, &mut bytes, &[PIECE_BYTES], usize::MAX, &mut 0);
        let refused = refused.expect_err("it is damaged");
        assert!(bytes.is_empty() && refused.message.contains(name), "{refused:?}");
    }
    let failed = take(&mut world, &mut first, &mut bytes, &[PIECE_BYTES], usize::MAX, &mut 0);
    assert!(failed.expect_err("it is damaged").message.contains(name));
}

#[test]
fn a_value_that_is_not_in_memory_is_not_shared() {
    let budget = Budget::new(1 << 30);
    let mut world = filled(50);
    world.member(0).charge_reads_to(&budget);
    let mut answer = begin(&mut world, Rpc::KvRange, &get("k3"));
    let (alone, _) = taken(&mut world, &mut answer, &[PIECE_BYTES]).expect("is read");
    world.places[0].disk.set_misses_per_mille(1000);
    let mut answers: Vec<_> =
        (0..3).map(|_| (begin(&mut world, Rpc::KvRange, &get("k3")), Vec::new())).collect();
    for (answer, bytes) in &mut answers {
        take(&mut world, answer, bytes, &[PIECE_BYTES], 1, &mut 0).expect("is read");
    }
    assert_eq!(budget.held_bytes(), 0, "the first parts are dropped");
    for (answer, bytes) in &mut answers {
        take(&mut world, answer, bytes, &[PIECE_BYTES], usize::MAX, &mut 0).expect("is read");
        assert!(*bytes == alone);
    }
    assert_eq!(budget.held_bytes(), 0);
}

/// Returns the file and the offset at which a value is stored.
fn place_of(world: &World, value: &[u8]) -> (PathBuf, u64) {
    let disk = &world.places[0].disk;
    let mut segments =
        disk.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "seg"));
    let found = segments.find_map(|(path, _)| {
        let contents = disk.contents(&path).expect("is there");
        let at = contents.windows(value.len()).position(|window| window == value)?;
        Some((path, at as u64))
    });
    found.expect("it is somewhere")
}

#[test]
fn a_large_value_that_is_damaged_is_refused_before_its_first_byte() {
    let mut world = filled(37);
    let (path, offset) = place_of(&world, &value_of(3, VALUE_BYTES));
    world.places[0].disk.flip_bit(&path, offset + 390_000, 3).expect("is there");
    let mut told = Vec::new();
    for per_mille in [0, 1000, 0] {
        world.places[0].disk.set_misses_per_mille(per_mille);
        let mut answer = begin(&mut world, Rpc::KvRange, &get("k3"));
        let (mut bytes, mut held) = (Vec::new(), 0);
        let refused = take(&mut world, &mut answer, &mut bytes, &[PIECE_BYTES], usize::MAX, &mut held);
        let refused = refused.expect_err("it is damaged");
        assert_eq!((bytes.len(), refused.code), (0, Code::Internal));
        told.push(refused.message.into_owned());
        // Undamaged values can be read.
        let mut answer = begin(&mut world, Rpc::KvRange, &get("k6"));
        let (bytes, _) = taken(&mut world, &mut answer, &[PIECE_BYTES]).expect("is read");
        assert!(
            RangeResponse::decode(bytes.as_slice()).expect("decodes").kvs[0].value
                == value_of(6, VALUE_BYTES)
        );
    }
    let name = path.file_name().and_then(|name| name.to_str()).expect("it has a name");
    assert!(told[0].contains(name) && told.iter().all(|message| *message == told[0]), "{told:?}");
}

#[test]
fn a_damaged_value_behind_others_is_refused_before_their_first_byte() {
    let by_revision = RangeRequest { sort_target: SortTarget::Mod as i32, ..all() };
    let range = |range| op(request_op::Request::RequestRange(range));
    let put = |key: &str, prev_kv| {
        op(request_op::Request::RequestPut(PutRequest {
            key: key.to_owned().into(),
            prev_kv,
            ..PutRequest::default()
        }))
    };
    let txn = |success| TxnRequest { success, ..TxnRequest::default() }.encode_to_vec();
    let from = |range: RangeRequest| RangeRequest { key: "k1".into(), range_end: "k4".into(), ..range };
    let delete = DeleteRangeRequest { key: "k1".into(), range_end: "k4".into(), prev_kv: true };
    let calls = [
        (Rpc::KvRange, from(all()).encode_to_vec()),
        (Rpc::KvRange, from(by_revision.clone()).encode_to_vec()),
        (Rpc::KvTxn, txn(vec![range(from(all()))])),
        (Rpc::KvTxn, txn(vec![range(from(by_revision))])),
        (Rpc::KvTxn, txn(vec![put("other", false), range(from(all()))])),
        (Rpc::KvTxn, txn(vec![put("k1", true), put("k2", true), put("k3", true)])),
        (Rpc::KvDeleteRange, delete.encode_to_vec()),
    ];
    for (rpc, request) in calls {
        for per_mille in [0, 300, 1000] {
            let mut world = filled(46);
            let (path, offset) = place_of(&world, &value_of(3, VALUE_BYTES));
            world.places[0].disk.flip_bit(&path, offset + 390_000, 3).expect("is there");
            world.places[0].disk.set_misses_per_mille(per_mille);
            let answer = match world.member(0).unary(rpc, request.clone().into()) {
                Unary::Done(answer) => answer,
                Unary::Later(answer) => world.run(answer),
            };
            let (mut answer, mut bytes, mut held) = (answer.expect("is answered"), Vec::new(), 0);
            let refused = take(&mut world, &mut answer, &mut bytes, &[PIECE_BYTES], usize::MAX, &mut held);
            let refused = refused.expect_err("one of them is damaged");
            assert_eq!(bytes.len(), 0, "{rpc:?}, {per_mille}: {refused:?}");
            let name = path.file_name().and_then(|name| name.to_str()).expect("it has a name");
            assert!(refused.message.contains(name), "{refused:?}");
            let has_written = world.member(0).probe().revision.0 > 9;
            let code = if has_written { Code::Unavailable } else { Code::Internal };
            assert_eq!((refused.code, refused.message.contains("was carried out")), (code, has_written));
        }
    }
}

#[test]
fn a_large_value_that_is_damaged_while_it_is_taken_is_never_taken_whole() {
    for (seed, per_mille) in [(38, 0), (39, 500)] {
        let mut world = filled(seed);
        let (path, offset) = place_of(&world, &value_of(3, VALUE_BYTES));
        // The value is remembered as checked.
        let mut answer = begin(&mut world, Rpc::KvRange, &get("k3"));
        let (whole, _) = taken(&mut world, &mut answer, &[PIECE_BYTES]).expect("is read");
        let (mut answer, mut bytes, mut held) = (begin(&mut world, Rpc::KvRange, &get("k3")), Vec::new(), 0);
        take(&mut world, &mut answer, &mut bytes, &[PIECE_BYTES], 2, &mut held).expect("is read");
        assert!(bytes.len() > PIECE_BYTES && whole.starts_with(&bytes));
        world.places[0].disk.flip_bit(&path, offset + 300_000, 3).expect("is there");
        world.places[0].disk.set_misses_per_mille(per_mille);
        let failed = take(&mut world, &mut answer, &mut bytes, &[PIECE_BYTES], usize::MAX, &mut held);
        let failed = failed.expect_err("it is damaged");
        let name = path.file_name().and_then(|name| name.to_str()).expect("it has a name");
        assert!(failed.code == Code::Internal && failed.message.contains(name), "{failed:?}");
        assert!(bytes.len() < whole.len());
        // The damage is known now: the next request is refused at once.
        let (mut answer, mut bytes) = (begin(&mut world, Rpc::KvRange, &get("k3")), Vec::new());
        let refused = take(&mut world, &mut answer, &mut bytes, &[PIECE_BYTES], usize::MAX, &mut held);
        assert_eq!((refused, bytes.len()), (Err(failed), 0));
    }
}

#[test]
fn a_large_value_that_is_moved_while_it_is_taken_is_read_where_it_is() {
    let mut world = World::started(1, 40, WORN);
    let value = value_of(9, 150_000);
    let put = |n: usize, value: &[u8]| {
        let put =
            PutRequest { key: format!("k{n}").into(), value: value.to_vec().into(), ..PutRequest::default() };
        op(request_op::Request::RequestPut(put))
    };
    // The value is in one entry with others, most of which become garbage.
    let success = (0..9).map(|n| put(n, &value)).collect();
    let txn = TxnRequest { success, ..TxnRequest::default() };
    let _: TxnResponse = world.call(0, Rpc::KvTxn, &txn).expect("is taken");
    for n in 0..8 {
        world.put(0, &format!("k{n}"), b"small").expect("is taken");
    }
    let location = |world: &World| {
        let state = world.member(0).published();
        let snapshot = state.view.snapshot();
        let mut large = snapshot.histories().filter(|version| version.key() == b"k8");
        large.next().expect("is there").location()
    };
    for n in 0..100u8 {
        world.put(0, &format!("busy-{}", n % 3), &[n; 900]).expect("is taken");
    }
    compact(&mut world);
    // No writes follow, so the state that the reader began with stays the newest state.
    // The first response reads parts of the value; the others share a buffer with the whole value.
    let mut answers = Vec::new();
    for _ in 0..3 {
        let (mut answer, mut bytes) = (begin(&mut world, Rpc::KvRange, &get("k8")), Vec::new());
        take(&mut world, &mut answer, &mut bytes, &[16 << 10], 2, &mut 0).expect("is read");
        answers.push((answer, bytes));
    }
    let before = location(&world);
    world.until("it is moved", |world| location(world) != before);
    let old = format!("{:016x}.seg", before.segment());
    let is_there = |world: &World, name: &str| {
        let files = world.places[0].disk.files();
        files.iter().any(|(path, _)| path.file_name().and_then(|name| name.to_str()) == Some(name))
    };
    world.until("its segment is gone", |world| !is_there(world, &old));
    answers.push((begin(&mut world, Rpc::KvRange, &get("k8")), Vec::new()));
    for (mut answer, mut bytes) in answers {
        take(&mut world, &mut answer, &mut bytes, &[16 << 10], usize::MAX, &mut 0).expect("is read");
        let ranged = RangeResponse::decode(bytes.as_slice()).expect("decodes");
        assert!(ranged.kvs.len() == 1 && ranged.kvs[0].value == value);
    }
}
