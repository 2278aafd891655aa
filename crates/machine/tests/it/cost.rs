//! Tests of cost limits of requests, and that a request that passed the check can be applied.

use std::cell::Cell;

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use api::wire::put_field;
use bytes::{Bytes, BytesMut};
use mainstay_machine::txn::{self, Compared, Comparing, LookedAt, OpOutcome, Read};
use mainstay_machine::{Command, Machine, Outcome, ReadError, UNDECODABLE, Values, check, request};
use mvcc::{Location, Value};
use numbers::{Index, Term};
use prost::Message as _;

use testkit::Random;

use crate::image::RULES;
use crate::journal::Journal;

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_field(&mut out, number, bytes);
    out
}

/// Returns nested protobuf groups with a field number that no message uses.
fn groups(levels: u64) -> Vec<u8> {
    let level = |kind: u8| std::iter::repeat_n(15 << 3 | kind, levels as usize);
    level(3).chain(level(4)).collect()
}

/// Returns the bytes of a transaction with some nesting levels; each level may contain groups and empty
/// operations.
fn nested(random: &mut Random) -> Vec<u8> {
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    let mut bytes = field(2, &put.encode_to_vec());
    let levels = 1 + random.below(70);
    for level in 0..levels {
        let mut txn = field(if random.percent(50) { 2 } else { 3 }, &bytes);
        if random.percent(3) {
            txn.extend(groups(random.below(120)));
        }
        bytes = if level + 1 == levels { txn } else { field(4, &txn) };
    }
    bytes
}

fn apply(machine: &mut Machine, journal: &Journal, data: Bytes) -> mainstay_machine::Applied {
    let location = journal.append(&data);
    let command = Command { index: machine.applied_index + 1, term: Term(1), data: &data, location };
    machine.apply(command, journal, true).expect("nothing that passed the check ends a member")
}

#[test]
fn whatever_passes_the_check_can_be_applied() {
    let mut random = Random::new(7);
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let (mut deep, mut refused) = (0, 0);
    for _ in 0..2_000 {
        let bytes = nested(&mut random);
        // The transaction is decoded as a shard decodes it.
        let Ok((txn, _)) = request::txn(bytes.clone().into(), check::txn_elements_max(1_000)) else {
            refused += 1;
            continue;
        };
        if check::txn(&txn, 1_000).is_err() {
            refused += 1;
            continue;
        }
        deep += u32::from(TxnRequest::decode(&bytes[..]).is_err());
        deep += u32::from(InternalRaftRequest::decode(&field(6, &bytes)[..]).is_err());
        let applied = apply(&mut machine, &journal, field(6, &bytes).into());
        assert_eq!(applied.op, "Txn");
        assert!(applied.outcome.is_ok(), "{:?}", applied.outcome);
    }
    assert!(deep > 100 && refused > 50, "{deep} deep ones, {refused} refused");
    for levels in [90, 98, 99, 100, 101, 10_000] {
        let put = PutRequest { key: "k".into(), ..PutRequest::default() };
        let bytes = [put.encode_to_vec(), groups(levels)].concat();
        if PutRequest::decode(&bytes[..]).is_ok() {
            assert_eq!(apply(&mut machine, &journal, field(4, &bytes).into()).op, "Put");
        }
    }
}

#[test]
fn what_is_no_request_changes_nothing_and_ends_nobody() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let put = PutRequest { key: "k".into(), ..PutRequest::default() };
    apply(&mut machine, &journal, field(4, &put.encode_to_vec()).into());
    let before = (machine.store.current_revision(), machine.in_use_bytes());
    for bytes in [&b"\xff"[..], b"\x32\x05a", b"\x22\x03\x0a\x09k"] {
        let applied = apply(&mut machine, &journal, Bytes::copy_from_slice(bytes));
        assert_eq!((applied.op, applied.request_id), (UNDECODABLE, 0));
        assert!(applied.outcome.is_err() && applied.change.is_none());
    }
    assert_eq!((machine.store.current_revision(), machine.in_use_bytes()), before);
    assert_eq!(machine.applied_index, Index(4));
}

/// Counts the reads of values in a journal.
struct Counted<'a>(&'a Journal, Cell<u32>);

impl Values for Counted<'_> {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        self.1.set(self.1.get() + 1);
        self.0.read_into(value, out)
    }
}

/// A source of values on a disk that fails all reads.
struct Broken;

impl Values for Broken {
    fn read_into(&self, _: Value, _: &mut BytesMut) -> Result<(), ReadError> {
        Err(ReadError::Failed("damaged".to_owned()))
    }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn filled(keys: u32, journal: &Journal) -> Machine {
    let mut machine = Machine::new(RULES);
    for n in 0..keys {
        let put = PutRequest {
            key: format!("{n:05}").into(),
            value: format!("value {n}").into(),
            ..PutRequest::default()
        };
        apply(&mut machine, journal, field(4, &put.encode_to_vec()).into());
    }
    machine
}

#[test]
fn apply_walks_no_range_and_reads_no_value_of_a_transaction() {
    let journal = Journal::default();
    let mut machine = filled(3_000, &journal);
    let all = |sort_target: SortTarget| {
        op(Request::RequestRange(RangeRequest {
            key: "0".into(),
            range_end: "\0".into(),
            sort_target: sort_target as i32,
            sort_order: SortOrder::Descend as i32,
            limit: 1,
            ..RangeRequest::default()
        }))
    };
    let mut success =
        vec![op(Request::RequestPut(PutRequest { key: "new".into(), ..PutRequest::default() }))];
    success.extend((0..100).map(|n| all(if n % 2 == 0 { SortTarget::Value } else { SortTarget::Key })));
    let delete = DeleteRangeRequest { key: "01".into(), range_end: "02".into(), prev_kv: true };
    success.push(op(Request::RequestDeleteRange(delete)));
    let txn = TxnRequest { success, ..TxnRequest::default() };
    let data = Bytes::from(field(6, &txn.encode_to_vec()));
    let values = Counted(&journal, Cell::new(0));
    let location = journal.append(&data);
    let command = Command { index: machine.applied_index + 1, term: Term(1), data: &data, location };
    let applied = machine.apply(command, &values, true).expect("applies");
    let Ok(Outcome::Txn(outcome)) = applied.outcome else { panic!("it is a transaction") };
    assert_eq!(values.1.get(), 0, "values read");
    assert_eq!(outcome.responses.len(), 102);
    for response in &outcome.responses {
        let read = match response {
            OpOutcome::Range(ranged) => &ranged.read,
            OpOutcome::DeleteRange(deleted) => &deleted.previous,
            _ => continue,
        };
        assert!(matches!(read, Read::Past(_)), "it is left to whoever answers");
    }
}

#[test]
fn a_comparison_of_values_reads_only_what_may_be_equal() {
    let journal = Journal::default();
    let mut machine = filled(100, &journal);
    let mut compare = |result: CompareResult, with: &'static str, values: &dyn Values| {
        let txn = TxnRequest {
            compare: vec![Compare {
                key: "00007".into(),
                target: CompareTarget::Value as i32,
                result: result as i32,
                target_union: Some(TargetUnion::Value(with.into())),
                ..Compare::default()
            }],
            success: vec![op(Request::RequestPut(PutRequest { key: "s".into(), ..PutRequest::default() }))],
            failure: Vec::new(),
        };
        let data = Bytes::from(field(6, &txn.encode_to_vec()));
        let location = Location::new(1, 0);
        let index = machine.applied_index + 1;
        let command = Command { index, term: Term(1), data: &data, location };
        let applied = machine.apply(command, values, true);
        if let Err(fatal) = &applied {
            // The state is unchanged, so the entry can be applied again.
            assert!(fatal.is_unreadable);
            assert_eq!(machine.applied_index + 1, index);
        }
        applied.ok().map(|applied| match applied.outcome {
            Ok(Outcome::Txn(outcome)) => outcome.succeeded,
            other => panic!("it is a transaction: {other:?}"),
        })
    };
    use CompareResult::{Equal, Greater, Less, NotEqual};
    for (result, with, holds) in [
        (Equal, "value 8", Some(false)),
        (Equal, "value", Some(false)),
        (NotEqual, "value 8", Some(true)),
        (NotEqual, "", Some(true)),
        (Equal, "value 7", None),
        (NotEqual, "value 7", None),
        (Greater, "value 6", None),
        (Less, "value 8", None),
    ] {
        assert_eq!(compare(result, with, &Broken), holds, "{result:?} {with}");
        let truth = match result {
            Equal => "value 7" == with,
            NotEqual => "value 7" != with,
            Greater => "value 7" > with,
            Less => "value 7" < with,
        };
        assert_eq!(compare(result, with, &journal), Some(truth), "{result:?} {with}");
    }
}

#[test]
fn bytes_of_compared_values_are_counted_through_nesting() {
    let journal = Journal::default();
    let mut machine = Machine::new(RULES);
    for n in 0..50 {
        let put = PutRequest {
            key: format!("{n}").into(),
            value: vec![b'v'; 1_000].into(),
            ..PutRequest::default()
        };
        apply(&mut machine, &journal, field(4, &put.encode_to_vec()).into());
    }
    let snapshot = machine.store.snapshot();
    let compare = |range_end: &'static str, result: CompareResult, len: usize| Compare {
        key: "0".into(),
        range_end: range_end.into(),
        result: result as i32,
        target: CompareTarget::Value as i32,
        target_union: Some(TargetUnion::Value(vec![b'u'; len].into())),
    };
    let bytes = |compares: Vec<Compare>, max: u64| {
        let inner = TxnRequest { compare: compares.clone(), ..TxnRequest::default() };
        let txn = TxnRequest {
            compare: compares,
            failure: vec![op(Request::RequestTxn(inner))],
            ..TxnRequest::default()
        };
        // Slice by slice, as the shard reads the values before it proposes the transaction.
        let compared = Compared::of(&txn);
        let mut looked_at = LookedAt::default();
        while !compared.is_done(&looked_at) && looked_at.bytes <= max {
            looked_at = compared.look(&looked_at, &snapshot, &journal, 7, 3_000);
        }
        looked_at.bytes
    };
    let all = u64::MAX;
    // A value whose order matters is always read as a whole, once per comparison, however short the compared
    // value is.
    assert_eq!(bytes(vec![compare("", CompareResult::Greater, 1); 100], all), 200 * 1_000);
    assert_eq!(bytes(vec![compare("\0", CompareResult::Less, 1)], all), 2 * 50 * 1_000);
    // A value compared for equality is read only if the lengths are equal.
    assert_eq!(bytes(vec![compare("\0", CompareResult::Equal, 999)], all), 0);
    assert_eq!(bytes(vec![compare("\0", CompareResult::NotEqual, 1_000)], all), 2 * 50 * 1_000);
    // Counting stops soon after the bound is exceeded.
    assert!((9_001..=12_000).contains(&bytes(vec![compare("\0", CompareResult::Less, 1)], 9_000)));
}

#[test]
fn a_transaction_that_only_reads_compares_so_many_keys_and_bytes_in_a_slice() {
    let journal = Journal::default();
    let mut machine = filled(1_000, &journal);
    let all = |result: CompareResult, value: &'static str| Compare {
        key: "0".into(),
        range_end: "\0".into(),
        result: result as i32,
        target: CompareTarget::Value as i32,
        target_union: Some(TargetUnion::Value(value.into())),
    };
    let one = |result: CompareResult, key: &'static str| Compare {
        key: key.into(),
        range_end: Bytes::new(),
        ..all(result, "value 7")
    };
    use CompareResult::{Equal, Greater, NotEqual};
    let view = machine.store.publish();
    let moment = view.moment();
    let mut evaluate = |compare: Vec<Compare>, keys_max: u64, bytes_max: u64| {
        let txn = TxnRequest { compare, ..TxnRequest::default() };
        let mut comparing = Comparing::default();
        for slice in 1.. {
            // Most keys have been overwritten since the moment, but the read as of the moment still finds the
            // old versions.
            let view = machine.store.publish();
            let snapshot = view.snapshot_at(&moment).expect("is there");
            let bytes = comparing.bytes;
            let holds = comparing.step(&snapshot, &txn, &journal, keys_max, bytes_max).expect("is read");
            assert!(comparing.keys <= keys_max, "{} keys in a slice", comparing.keys);
            assert!(
                comparing.bytes - bytes < bytes_max.saturating_add(10),
                "{} bytes in a slice",
                comparing.bytes - bytes
            );
            if let Some(holds) = holds {
                let at_once = txn::read_only(&snapshot, &txn, holds).expect("only reads");
                assert_eq!((at_once.succeeded, at_once.revision), (holds, moment.revision()));
                return (holds, slice);
            }
            let put = PutRequest { key: "00999x".into(), value: "a".into(), ..PutRequest::default() };
            apply(&mut machine, &journal, field(4, &put.encode_to_vec()).into());
        }
        unreachable!("it ends")
    };
    let whole = u64::MAX;
    assert_eq!(evaluate(vec![all(Greater, "val")], whole, whole), (true, 1));
    assert_eq!(evaluate(vec![all(Greater, "val")], 100, whole), (true, 11));
    assert!(evaluate(vec![all(Greater, "val"); 2], 300, whole).0);
    // Each value has seven to nine bytes.
    let (holds, slices) = evaluate(vec![all(Greater, "val")], 1_000, 900);
    assert!(holds && (9..=12).contains(&slices), "{slices} slices");
    // Evaluation stops at the first comparison that does not hold; a missing key has no value to compare.
    assert_eq!(evaluate(vec![all(Greater, "value 5")], 100, whole), (false, 1));
    assert!(!evaluate(vec![all(Greater, "val"), one(NotEqual, "00007")], 100, whole).0);
    // A slice of one key stops after that key, and the next slice finds no more keys.
    assert_eq!(evaluate(vec![one(Equal, "00007"), one(NotEqual, "00008")], 1, whole), (true, 4));
    assert_eq!(evaluate(vec![one(NotEqual, "missing")], 100, whole), (false, 1));
    assert_eq!(evaluate(Vec::new(), 100, whole), (true, 1));
}

#[test]
fn comparisons_of_ranges_are_counted_through_nesting() {
    let journal = Journal::default();
    let machine = filled(1_000, &journal);
    let snapshot = machine.store.snapshot();
    let all = || Compare { key: "0".into(), range_end: "\0".into(), ..Compare::default() };
    let one = || Compare { key: "00001".into(), ..Compare::default() };
    let inner = TxnRequest { compare: vec![all(), one()], ..TxnRequest::default() };
    let txn = TxnRequest {
        compare: vec![all()],
        success: vec![op(Request::RequestTxn(inner.clone()))],
        failure: vec![op(Request::RequestTxn(inner))],
    };
    assert_eq!(check::compared_keys(&txn, &snapshot, 10_000), 3_000);
    assert!(check::compared_keys(&txn, &snapshot, 500) > 500);
    assert_eq!(
        check::compared_keys(&TxnRequest { compare: vec![one()], ..TxnRequest::default() }, &snapshot, 9),
        0
    );
}
