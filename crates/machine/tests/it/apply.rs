//! Tests of applying entries: equality with the model, equality of two machines, and atomicity.

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    DowngradeVersionTestRequest, InternalRaftRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use api::{Status, error};
use bytes::Bytes;
use mainstay_machine::range::{self, Failure};
use mainstay_machine::txn::{OpOutcome, Read, TxnOutcome};
use mainstay_machine::{Machine, Outcome, StoredKeyValue};
use numbers::{Index, Revision, Term};
use prost::Message as _;

use crate::commands::Commands;
use crate::compare::assert_same;
use crate::image::RULES;
use crate::journal::{Effect, Journal, Placed, apply};
use crate::model::{Answer, Kv, Model};

fn kv(found: &StoredKeyValue, journal: &Journal) -> Kv {
    Kv {
        key: found.key.clone(),
        create: found.create_revision.0,
        modified: found.mod_revision.0,
        version: found.version,
        lease: found.lease.0,
        value: found.value.map(|value| journal.value(value)).unwrap_or_default(),
    }
}

/// Returns the result of a read, evaluated on the state right after the entry.
fn read(read: &Read, machine: &Machine, journal: &Journal) -> (Vec<Kv>, bool, i64) {
    match read {
        Read::Known { found, more, count } => {
            (found.iter().map(|found| kv(found, journal)).collect(), *more, *count)
        }
        Read::Past(past) => {
            let snapshot = machine.store.snapshot();
            let selection = past.select(&snapshot, journal).expect("it can be read");
            let projection = range::projection(&past.request);
            let found =
                selection.versions.into_iter().map(|version| StoredKeyValue::projected(version, projection));
            (found.map(|found| kv(&found, journal)).collect(), selection.more, selection.count)
        }
    }
}

fn answer_of_op(op: &OpOutcome, machine: &Machine, journal: &Journal) -> Answer {
    match op {
        OpOutcome::Range(ranged) => {
            let (kvs, more, count) = read(&ranged.read, machine, journal);
            Answer::Range { revision: ranged.revision.0, kvs, more, count }
        }
        OpOutcome::Put { revision, previous } => {
            Answer::Put { revision: revision.0, previous: previous.as_ref().map(|found| kv(found, journal)) }
        }
        OpOutcome::DeleteRange(deleted) => Answer::Delete {
            revision: deleted.revision.0,
            previous: read(&deleted.previous, machine, journal).0,
            deleted: deleted.deleted,
        },
        OpOutcome::Txn(txn) => answer_of_txn(txn, machine, journal),
    }
}

fn answer_of_txn(txn: &TxnOutcome, machine: &Machine, journal: &Journal) -> Answer {
    Answer::Txn {
        revision: txn.revision.0,
        succeeded: txn.succeeded,
        responses: txn.responses.iter().map(|op| answer_of_op(op, machine, journal)).collect(),
    }
}

pub fn answer(effect: Effect, machine: &Machine, journal: &Journal) -> Result<Answer, Status> {
    let Effect::Applied(Ok(applied)) = effect else { panic!("it stopped: {effect:?}") };
    Ok(match applied.outcome? {
        Outcome::Put { revision, previous } => {
            answer_of_op(&OpOutcome::Put { revision, previous }, machine, journal)
        }
        Outcome::DeleteRange(deleted) => answer_of_op(&OpOutcome::DeleteRange(deleted), machine, journal),
        Outcome::Txn(txn) => answer_of_txn(&txn, machine, journal),
        Outcome::LeaseGranted { ttl, .. } => Answer::Granted(ttl.0),
        _ => Answer::Done,
    })
}

fn select(machine: &Machine, request: &RangeRequest, journal: &Journal) -> Result<Answer, Status> {
    let snapshot = machine.store.snapshot();
    let selection = range::select(&snapshot, request, journal).map_err(|failure| match failure {
        Failure::Refused(status) => status,
        Failure::Unreadable(why) | Failure::Unknown(why) => panic!("{why}"),
        Failure::NotAtHand => panic!("the journal has everything at hand"),
    })?;
    let projection = range::projection(request);
    let kvs = selection
        .versions
        .iter()
        .map(|version| {
            // The pair is compared after encoding and decoding, as a client receives it.
            let mut bytes = bytes::BytesMut::new();
            mainstay_machine::key_value::put_kv(*version, projection, journal, &mut bytes).unwrap();
            let kv = api::mvccpb::KeyValue::decode(bytes.freeze()).unwrap();
            Kv {
                key: kv.key,
                create: kv.create_revision,
                modified: kv.mod_revision,
                version: kv.version,
                lease: kv.lease,
                value: kv.value,
            }
        })
        .collect();
    let revision = snapshot.current_revision();
    Ok(Answer::Range { revision: revision.0, kvs, more: selection.more, count: selection.count })
}

#[test]
fn the_machine_agrees_with_the_model() {
    for seed in 1..=10 {
        let mut commands = Commands::new(seed, [5, 12, 50, 200][seed as usize % 4]);
        commands.only_keys = true;
        let (mut machine, mut model, journal) = (Machine::new(RULES), Model::new(), Journal::default());
        for step in 0..500 {
            let request = commands.request(&machine);
            let data = Bytes::from(request.encode_to_vec());
            let placed = Placed { location: journal.append(&data), data, conf: false };
            let before = machine.store.current_revision();
            let effect = apply(&mut machine, &placed, &journal, true);
            let ours = answer(effect, &machine, &journal);
            assert_eq!(ours, model.apply(&request), "seed {seed}, step {step}: {request:?}");
            let after = machine.store.current_revision();
            assert_eq!(after, Revision(model.revision));
            assert!(after == before || after == before + 1, "a request raises the revision by one at most");
            assert_eq!(machine.store.compact_revision(), Revision(model.compacted));
            machine.compact_step(commands.random.below(5));
            for _ in 0..5 {
                let request = commands.read(model.revision);
                let expected = model.range(&request, model.revision);
                assert_eq!(
                    select(&machine, &request, &journal),
                    expected,
                    "seed {seed}, step {step}: {request:?}"
                );
            }
        }
        let leased: std::collections::BTreeMap<i64, Vec<Bytes>> =
            machine.leases.iter().map(|(id, lease)| (id.0, lease.keys.keys().cloned().collect())).collect();
        assert_eq!(leased, model.leased(), "seed {seed}");
    }
}

#[test]
fn the_same_commands_have_the_same_effects() {
    for seed in 1..=8 {
        let mut commands = Commands::new(seed, 30);
        let journal = Journal::default();
        let [mut first, mut second, mut silent] = [(); 3].map(|()| Machine::new(RULES));
        for _ in 0..600 {
            let placed = commands.next(&first, &journal);
            let effect = apply(&mut first, &placed, &journal, true);
            assert_eq!(apply(&mut second, &placed, &journal, true), effect);
            let quiet = apply(&mut silent, &placed, &journal, false);
            match (&quiet, &effect) {
                (Effect::Applied(Ok(quiet)), Effect::Applied(Ok(effect))) => {
                    assert_eq!(quiet.outcome.is_ok(), effect.outcome.is_ok());
                    assert_eq!((quiet.request_id, &quiet.change), (effect.request_id, &effect.change));
                }
                _ => assert_eq!(quiet, effect),
            }
            // The machines run physical compaction at different speeds.
            first.compact_step(commands.random.below(4));
            second.compact_step(1);
        }
        assert_same(&mut first, &mut second);
        assert_same(&mut first, &mut silent);
    }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

#[test]
fn a_transaction_that_fails_changes_nothing() {
    let put = |key: &str, lease, ignore_value| {
        let put = PutRequest { key: key.to_owned().into(), lease, ignore_value, ..PutRequest::default() };
        op(Request::RequestPut(put))
    };
    let read = |revision| {
        let range = RangeRequest { key: "a".into(), revision, ..RangeRequest::default() };
        op(Request::RequestRange(range))
    };
    let nested = |success| op(Request::RequestTxn(TxnRequest { success, ..TxnRequest::default() }));
    let cases = [
        (put("b", 99, false), error::LEASE_NOT_FOUND),
        (put("b", 0, true), error::KEY_NOT_FOUND),
        (read(1000), error::FUTURE_REV),
        (read(1), error::COMPACTED),
        (RequestOp { request: None }, error::KEY_NOT_FOUND),
        (nested(vec![put("c", 0, false), read(1000)]), error::FUTURE_REV),
    ];
    for answer_wanted in [true, false] {
        for (last, expected) in &cases {
            let (mut machine, journal) = (Machine::new(RULES), Journal::default());
            let go = |machine: &mut Machine, success: Vec<RequestOp>| {
                let txn = TxnRequest { success, ..TxnRequest::default() };
                let request = InternalRaftRequest { txn: Some(txn), ..InternalRaftRequest::default() };
                let data = Bytes::from(request.encode_to_vec());
                let placed = Placed { location: journal.append(&data), data, conf: false };
                let effect = apply(machine, &placed, &journal, answer_wanted);
                answer(effect, machine, &journal)
            };
            go(&mut machine, vec![put("a", 0, false), put("z", 0, false)]).unwrap();
            go(&mut machine, vec![put("a", 0, false)]).unwrap();
            assert_eq!(machine.store.current_revision(), Revision(3), "one revision for two changes");
            machine.store.compact(Revision(3)).unwrap();
            let (bytes, versions) = (machine.in_use_bytes(), machine.store.stats().versions);
            assert_eq!(go(&mut machine, vec![put("d", 0, false), last.clone()]).as_ref(), Err(expected));
            assert_eq!(machine.store.current_revision(), Revision(3));
            assert_eq!((machine.in_use_bytes(), machine.store.stats().versions), (bytes, versions));
        }
    }
}

/// Applies a request that members running etcd may propose and Mainstay members refuse before proposing, in
/// an empty state. Returns the revision after it.
fn revision_behind(request: &InternalRaftRequest, answer_wanted: bool) -> Revision {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let data = Bytes::from(request.encode_to_vec());
    let placed = Placed { location: journal.append(&data), data, conf: false };
    match apply(&mut machine, &placed, &journal, answer_wanted) {
        Effect::Applied(Ok(applied)) => assert!(applied.outcome.is_ok(), "{applied:?}"),
        other => panic!("{other:?}"),
    }
    machine.store.current_revision()
}

#[test]
fn an_order_that_nobody_knows_does_not_keep_a_transaction_from_being_applied() {
    let range = RangeRequest { key: "a".into(), sort_order: 7, sort_target: 9, ..RangeRequest::default() };
    let put = PutRequest { key: "a".into(), ..PutRequest::default() };
    let success = vec![op(Request::RequestPut(put)), op(Request::RequestRange(range))];
    for nested in [false, true] {
        let mut txn = TxnRequest { success: success.clone(), ..TxnRequest::default() };
        if nested {
            txn = TxnRequest { success: vec![op(Request::RequestTxn(txn))], ..TxnRequest::default() };
        }
        let request = InternalRaftRequest { txn: Some(txn), ..InternalRaftRequest::default() };
        for answer_wanted in [true, false] {
            assert_eq!(revision_behind(&request, answer_wanted), Revision(2), "{nested} {answer_wanted}");
        }
    }
}

#[test]
fn the_test_of_a_downgrade_does_nothing() {
    let test = DowngradeVersionTestRequest { ver: "3.6.0".to_owned() };
    let request =
        InternalRaftRequest { downgrade_version_test: Some(test), ..InternalRaftRequest::default() };
    assert_eq!(revision_behind(&request, false), Revision(1));
}

#[test]
fn what_cannot_be_understood_changes_nothing_or_stops_the_member() {
    let journal = Journal::default();
    for conf in [false, true] {
        for bytes in [b"\xff\xff\xff".as_slice(), b"\x1a\x7f", b"\x10"] {
            let mut machine = Machine::new(RULES);
            let data = Bytes::from_static(bytes);
            let placed = Placed { location: journal.append(&data), data, conf };
            let effect = apply(&mut machine, &placed, &journal, true);
            match effect {
                Effect::Applied(Ok(applied)) => assert!(applied.outcome.is_err(), "{applied:?}"),
                // The raft node refuses such an entry, so no machine ever applies it.
                Effect::Conf(Err(_)) => {}
                other => panic!("{other:?}"),
            }
            assert_eq!(machine.store.current_revision(), Revision(1));
        }
    }
}

#[test]
fn leases_and_their_keys_count_against_the_quota() {
    use api::etcdserverpb::{InternalRaftRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest};
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let mut index = 0;
    let mut run = |machine: &mut Machine, request: InternalRaftRequest| {
        index += 1;
        let data = Bytes::from(prost::Message::encode_to_vec(&request));
        let location = journal.append(&data);
        let command = mainstay_machine::Command { index: Index(index), term: Term(1), data: &data, location };
        machine.apply(command, &journal, true).expect("can be applied").outcome.expect("is taken");
        machine.in_use_bytes()
    };
    let grant = |id| InternalRaftRequest {
        lease_grant: Some(LeaseGrantRequest { id, ttl: 60 }),
        ..InternalRaftRequest::default()
    };
    let put = |lease| InternalRaftRequest {
        put: Some(PutRequest { key: "some key".into(), lease, ..PutRequest::default() }),
        ..InternalRaftRequest::default()
    };
    let empty = machine.in_use_bytes();
    let granted = run(&mut machine, grant(1));
    assert!(granted > empty, "a lease counts");
    assert_eq!(run(&mut machine, grant(2)) - granted, granted - empty);
    let plain = run(&mut machine, put(0));
    let version = plain - 2 * (granted - empty) - empty;
    let attached = run(&mut machine, put(1));
    assert!(attached > plain + version, "an attached key counts beside its version");
    assert_eq!(run(&mut machine, put(2)), attached + version, "it is attached to one of them");
    let revoke = InternalRaftRequest {
        lease_revoke: Some(LeaseRevokeRequest { id: 2 }),
        ..InternalRaftRequest::default()
    };
    // Bytes that remain: three versions, a deletion, a lease.
    let left = run(&mut machine, revoke);
    assert_eq!(left, empty + 4 * version + (granted - empty));
}
