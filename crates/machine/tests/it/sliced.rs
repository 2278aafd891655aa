//! Tests that an entry applied in slices cannot be distinguished from one applied in one step, neither during
//! nor after it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, InternalRaftRequest, LeaseRevokeRequest, PutRequest, RequestOp,
    TxnRequest,
};
use bytes::{Bytes, BytesMut};
use mainstay_machine::{Applied, Command, Fatal, Machine, Outcome, Progress, ReadError, Values};
use mvcc::{KeyRange, LoadedVersion, Snapshot, Value};
use numbers::{LeaseId, Revision, Term};
use prost::Message as _;

use testkit::Random;

use crate::commands::Commands;
use crate::compare::assert_same;
use crate::image::{RULES, grant, put};
use crate::journal::{Effect, Journal, Placed, apply};

/// A source of values that are in memory only after they were requested and fetched.
struct Fetched<'a> {
    journal: &'a Journal,
    at_hand: RefCell<BTreeSet<(u32, u32)>>,
    missing: RefCell<Vec<(u32, u32)>>,
    waits: Cell<u32>,
    every: u32,
}

impl<'a> Fetched<'a> {
    fn new(journal: &'a Journal, every: u32) -> Fetched<'a> {
        Fetched {
            journal,
            at_hand: RefCell::default(),
            missing: RefCell::default(),
            waits: Cell::new(0),
            every,
        }
    }

    fn fetch(&self) {
        let missing = self.missing.take();
        assert!(!missing.is_empty(), "it waits for something");
        self.at_hand.borrow_mut().extend(missing);
        self.waits.set(self.waits.get() + 1);
    }
}

impl Values for Fetched<'_> {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        let place = (value.location.segment(), value.location.offset());
        if self.every > 0
            && (place.0 + place.1 / 8).is_multiple_of(self.every)
            && !self.at_hand.borrow().contains(&place)
        {
            self.missing.borrow_mut().push(place);
            return Err(ReadError::NotAtHand);
        }
        self.journal.read_into(value, out)
    }
}

fn rows(snapshot: &Snapshot<'_>) -> Vec<(Bytes, Revision, u32)> {
    let row = |version: LoadedVersion<'_>| (Bytes::copy_from_slice(version.key), version.main, version.sub);
    let range = snapshot.range(KeyRange::ALL, Revision::CURRENT).expect("the current revision is readable");
    range.map(LoadedVersion::from).map(row).collect()
}

/// Returns everything observable of a machine between two entries.
fn seen(machine: &Machine) -> impl PartialEq + std::fmt::Debug + use<> {
    let snapshot = machine.store.snapshot();
    (
        rows(&snapshot),
        (snapshot.current_revision(), snapshot.count(KeyRange::ALL, Revision::CURRENT)),
        (machine.applied_index, machine.applied_term),
        (machine.state_hash(), machine.in_use_bytes()),
        machine.leases.iter().map(|(id, lease)| (id, lease.ttl, lease.remaining)).collect::<Vec<_>>(),
    )
}

/// Applies an entry in slices; returns the result and the number of slices.
fn sliced(
    machine: &mut Machine,
    placed: &Placed,
    values: &Fetched<'_>,
    mut slice: impl FnMut() -> u64,
    answer: bool,
) -> (Result<Applied, Fatal>, u32) {
    let command = Command {
        index: machine.applied_index + 1,
        term: Term(1 + machine.applied_index.0 / 100),
        data: &placed.data,
        location: placed.location,
    };
    let before = seen(machine);
    let view = machine.store.publish();
    match machine.begin(command, values, &mut slice(), |_| answer) {
        Ok(None) => {}
        Ok(Some(applied)) => return (Ok(applied), 0),
        Err(fatal) => return (Err(fatal), 0),
    }
    values.missing.take();
    let mut slices = 0;
    loop {
        assert!(machine.has_unfinished());
        assert!(seen(machine) == before, "nothing of it is to be seen");
        slices += 1;
        match machine.go_on(values, &mut slice()) {
            Ok(Progress::More) => {}
            Ok(Progress::Waits) => values.fetch(),
            Ok(Progress::Whole(applied)) => {
                assert!(machine.is_whole() && !machine.has_unfinished());
                assert!(view.snapshot().current_revision() + 1 >= machine.store.current_revision());
                return (Ok(*applied), slices);
            }
            Err(fatal) => return (Err(fatal), slices),
        }
    }
}

#[test]
fn slices_of_any_size_come_to_the_same() {
    let (mut most, mut waited) = (0, 0);
    for seed in 1..=12 {
        let mut commands = Commands::new(seed, [5, 30, 120, 400][seed as usize % 4]);
        let mut random = Random::new(seed ^ 0xABCD);
        let journal = Journal::default();
        let values = Fetched::new(&journal, [0, 2, 3][seed as usize % 3]);
        let (mut ours, mut theirs) = (Machine::new(RULES), Machine::new(RULES));
        for step in 0..800 {
            let placed = commands.next(&theirs, &journal);
            let answer = random.percent(70);
            let at_once = apply(&mut theirs, &placed, &journal, answer);
            let in_slices = if placed.conf {
                apply(&mut ours, &placed, &journal, answer)
            } else {
                let (applied, slices) = sliced(&mut ours, &placed, &values, || 1 + random.below(4), answer);
                most = most.max(slices);
                Effect::Applied(applied)
            };
            assert_eq!(in_slices, at_once, "seed {seed}, step {step}");
            assert_eq!(ours.state_hash(), theirs.state_hash(), "seed {seed}, step {step}");
            if random.percent(20) {
                ours.compact_step(random.below(9));
            }
        }
        waited += values.waits.get();
        assert_same(&mut ours, &mut theirs);
    }
    assert!(most > 20 && waited > 20, "{most} slices at most, {waited} waits");
}

fn place(journal: &Journal, request: &InternalRaftRequest) -> Placed {
    let data = Bytes::from(request.encode_to_vec());
    Placed { location: journal.append(&data), data, conf: false }
}

/// Returns a machine with `keys` keys `k0000..` attached to lease 1.
fn filled(journal: &Journal, keys: u32) -> Machine {
    let mut machine = Machine::new(RULES);
    apply(&mut machine, &place(journal, &grant(1, 60)), journal, false);
    for n in 0..keys {
        apply(&mut machine, &place(journal, &put(&format!("k{n:05}"), "v", 1)), journal, false);
    }
    machine
}

fn delete_all() -> DeleteRangeRequest {
    DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true }
}

#[test]
fn a_slice_does_so_much_and_no_more() {
    let journal = Journal::default();
    let values = Fetched::new(&journal, 0);
    let deletion = InternalRaftRequest { delete_range: Some(delete_all()), ..Default::default() };
    let revoke =
        InternalRaftRequest { lease_revoke: Some(LeaseRevokeRequest { id: 1 }), ..Default::default() };
    let op = |request| RequestOp { request: Some(request) };
    let mut puts: Vec<RequestOp> = (0..500)
        .map(|n| op(Request::RequestPut(PutRequest { key: format!("p{n}").into(), ..Default::default() })))
        .collect();
    puts.push(op(Request::RequestDeleteRange(delete_all())));
    let txn = InternalRaftRequest {
        txn: Some(TxnRequest { success: puts, ..Default::default() }),
        ..Default::default()
    };
    // An operation of a transaction costs twice as much: once for its check, and once for its execution.
    for (what, request, cost) in [("delete", deletion, 3000), ("revoke", revoke, 3000), ("txn", txn, 4002)] {
        let mut machine = filled(&journal, 3000);
        let (applied, slices) = sliced(&mut machine, &place(&journal, &request), &values, || 100, true);
        assert!(applied.expect("applies").outcome.is_ok());
        let expected = cost / 100;
        assert!((expected..=expected + 10).contains(&slices), "{what}: {slices} slices");
        assert_eq!(
            machine.store.snapshot().count(KeyRange::of_request(b"k", b"l"), Revision::CURRENT),
            Ok(0)
        );
    }
    // A small entry is applied in one step.
    let mut machine = filled(&journal, 10);
    let request = InternalRaftRequest { delete_range: Some(delete_all()), ..Default::default() };
    let (applied, slices) = sliced(&mut machine, &place(&journal, &request), &values, || 2000, true);
    let Ok(Outcome::DeleteRange(deleted)) = applied.expect("applies").outcome else { panic!("it deletes") };
    assert_eq!((deleted.deleted, slices), (10, 0));
}

/// Counts the bytes of values that are read.
struct Counted<'a>(&'a Journal, Cell<usize>);

impl Values for Counted<'_> {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        self.1.set(self.1.get() + value.len as usize);
        self.0.read_into(value, out)
    }
}

#[test]
fn what_is_done_at_once_is_taken_from_what_a_step_may_do() {
    use api::etcdserverpb::Compare;
    use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
    let journal = Journal::default();
    let mut machine = filled(&journal, 2000);
    let large = "v".repeat(100_000);
    for n in 0..15 {
        apply(&mut machine, &place(&journal, &put(&format!("large{n:02}"), &large, 0)), &journal, false);
    }
    let compare = |key: &str, end: &str, target: CompareTarget, result: CompareResult, union| TxnRequest {
        compare: vec![Compare {
            key: key.to_owned().into(),
            range_end: end.to_owned().into(),
            target: target as i32,
            result: result as i32,
            target_union: Some(union),
        }],
        ..Default::default()
    };
    let keys =
        compare("k00", "k00255", CompareTarget::Mod, CompareResult::Greater, TargetUnion::ModRevision(0));
    let less = TargetUnion::Value("w".into());
    let values = compare("large", "largf", CompareTarget::Value, CompareResult::Less, less.clone());
    let one = compare("large00", "", CompareTarget::Value, CompareResult::Less, less);
    let puts = (0..128).map(|n| PutRequest { key: format!("p{n}").into(), ..Default::default() });
    let puts = puts.map(|put| RequestOp { request: Some(Request::RequestPut(put)) });
    let puts = TxnRequest { success: puts.collect(), ..Default::default() };
    let txn = |txn: &TxnRequest| InternalRaftRequest { txn: Some(txn.clone()), ..Default::default() };
    let deletion = |n: usize| InternalRaftRequest {
        delete_range: Some(DeleteRangeRequest {
            key: format!("k{:05}", n * 16).into(),
            range_end: format!("k{:05}", n * 16 + 16).into(),
            prev_kv: false,
        }),
        ..Default::default()
    };
    // Counts how many requests fit into one step.
    let mut fit = |what: &str, request: &dyn Fn(usize) -> InternalRaftRequest, expected: usize| {
        let values = Counted(&journal, Cell::new(0));
        let (mut left, mut done) = (2048, 0);
        while left > 0 && done < 5000 {
            let placed = place(&journal, &request(done));
            let index = machine.applied_index + 1;
            let term = machine.applied_term;
            let command = Command { index, term, data: &placed.data, location: placed.location };
            let begun = machine.begin(command, &values, &mut left, |_| false).expect("can be applied");
            let Some(applied) = begun else {
                // The entry that exceeded this step fits into the next one.
                let whole = machine.go_on(&values, &mut 2048);
                assert!(matches!(whole, Ok(Progress::Whole(_))), "{what}: {whole:?}");
                break;
            };
            assert!(applied.outcome.is_ok(), "{what}: {applied:?}");
            done += 1;
        }
        assert!((expected - 1..=expected + 1).contains(&done), "{what}: {done} in a step");
        values.1.get()
    };
    assert_eq!(fit("comparisons of 255 keys", &|_| txn(&keys), 2048 / 256), 0);
    let bytes = fit("comparisons of 15 large values", &|_| txn(&values), 1);
    assert!(bytes <= 2 * 1_500_000, "{bytes} read");
    fit("comparisons of one large value", &|_| txn(&one), 2048 / 100);
    fit("128 puts", &|_| txn(&puts), 2048 / 128);
    fit("deletions of 16 keys", &deletion, 2048 / 17);
}

#[test]
fn an_entry_of_two_requests_is_the_same_in_slices() {
    let journal = Journal::default();
    for more in [
        InternalRaftRequest {
            compaction: Some(CompactionRequest { revision: 30, physical: false }),
            ..Default::default()
        },
        grant(2, 60),
    ] {
        let request = InternalRaftRequest { lease_revoke: Some(LeaseRevokeRequest { id: 1 }), ..more };
        let placed = place(&journal, &request);
        let (mut ours, mut theirs) = (filled(&journal, 50), filled(&journal, 50));
        let at_once = apply(&mut theirs, &placed, &journal, true);
        let values = Fetched::new(&journal, 0);
        let (applied, _) = sliced(&mut ours, &placed, &values, || 20, true);
        assert_eq!(Effect::Applied(applied), at_once);
        assert_eq!(ours.state_hash(), theirs.state_hash());
        assert!(seen(&ours) == seen(&theirs));
    }
}

#[test]
fn a_value_that_cannot_be_read_stops_an_entry_before_it_has_changed_anything() {
    struct Damaged<'a>(&'a Journal, Cell<bool>);
    impl Values for Damaged<'_> {
        fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
            if self.1.get() {
                return Err(ReadError::NotAtHand);
            }
            let _ = (value, out, self.0);
            Err(ReadError::Failed("damaged".to_owned()))
        }
    }
    let journal = Journal::default();
    let mut machine = filled(&journal, 5);
    let compare = api::etcdserverpb::Compare {
        key: "k00001".into(),
        target: 3,
        target_union: Some(api::etcdserverpb::compare::TargetUnion::Value("v".into())),
        ..Default::default()
    };
    let delete = RequestOp { request: Some(Request::RequestDeleteRange(delete_all())) };
    let txn = TxnRequest { compare: vec![compare], success: vec![delete], ..Default::default() };
    let placed = place(&journal, &InternalRaftRequest { txn: Some(txn), ..Default::default() });
    let command = Command {
        index: machine.applied_index + 1,
        term: Term(1),
        data: &placed.data,
        location: placed.location,
    };
    let (before, values) = (seen(&machine), Damaged(&journal, Cell::new(true)));
    assert_eq!(machine.begin(command, &values, &mut 2048, |_| true), Ok(None));
    assert_eq!(machine.go_on(&values, &mut 2048), Ok(Progress::Waits));
    values.1.set(false);
    assert!(machine.go_on(&values, &mut 2048).is_err_and(|fatal| fatal.is_unreadable));
    assert!(seen(&machine) == before && machine.is_whole() && !machine.has_unfinished());
    // The entry can be applied once the value can be read.
    let at_once = machine.apply(command, &journal, true).expect("applies");
    assert!(at_once.outcome.is_ok());
}

#[test]
fn amid_an_entry_a_lease_has_at_least_the_keys_that_it_will_have() {
    let journal = Journal::default();
    let mut machine = filled(&journal, 300);
    let apply_one = |machine: &mut Machine, request: InternalRaftRequest| {
        let placed = place(&journal, &request);
        assert!(matches!(apply(machine, &placed, &journal, true), Effect::Applied(Ok(_))));
    };
    let grant = api::etcdserverpb::LeaseGrantRequest { ttl: 60, id: 7 };
    apply_one(&mut machine, InternalRaftRequest { lease_grant: Some(grant), ..Default::default() });
    let put = |key: &str, lease: i64| {
        let put = PutRequest { key: Bytes::copy_from_slice(key.as_bytes()), lease, ..Default::default() };
        RequestOp { request: Some(Request::RequestPut(put)) }
    };
    let first = TxnRequest { success: vec![put("k00001", 7)], ..Default::default() };
    apply_one(&mut machine, InternalRaftRequest { txn: Some(first), ..Default::default() });
    // The lease loses its key, then several hundred keys are deleted, and then a nested transaction attaches
    // another key to the lease.
    let delete = RequestOp { request: Some(Request::RequestDeleteRange(delete_all())) };
    let nested =
        TxnRequest { success: vec![put("z1", 7)], failure: vec![put("z2", 7)], ..Default::default() };
    let nested = RequestOp { request: Some(Request::RequestTxn(nested)) };
    let txn = TxnRequest {
        success: vec![delete, nested, put("z3", 7)],
        failure: vec![put("z4", 7)],
        ..Default::default()
    };
    let placed = place(&journal, &InternalRaftRequest { txn: Some(txn), ..Default::default() });
    let command = Command {
        index: machine.applied_index + 1,
        term: Term(9),
        data: &placed.data,
        location: placed.location,
    };
    let keys =
        |machine: &Machine| -> Vec<Bytes> { machine.keys_to_renew(LeaseId(7)).0.keys().cloned().collect() };
    assert_eq!(keys(&machine), ["k00001"]);
    let values = Fetched::new(&journal, 0);
    assert_eq!(machine.begin(command, &values, &mut 20, |_| true), Ok(None));
    let mut amid = 0;
    while machine.has_unfinished() {
        if machine.is_whole() {
            assert_eq!(keys(&machine), ["k00001"], "nothing has changed yet");
        } else {
            let keys = keys(&machine);
            assert!(keys.ends_with(&["z1".into(), "z3".into()]) && keys.len() <= 3, "{keys:?}");
            amid += 1;
        }
        machine.go_on(&values, &mut 20).expect("is readable");
    }
    assert!(amid > 5, "{amid}");
    assert_eq!(keys(&machine), ["z1", "z3"]);
}
