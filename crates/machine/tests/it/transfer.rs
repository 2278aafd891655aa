//! Tests of transferring the state between members: whole or in part, uninterrupted or with interruptions.

use std::collections::BTreeMap;

use bytes::Bytes;
use mainstay_machine::image::{Head, RestoreError};
use mainstay_machine::snapshot::CHUNK_BYTES_MAX;
use mainstay_machine::transfer::{Assembly, FORMAT, Held, ReceivedVersion, TransferReader, TransferWriter};
use mainstay_machine::{AsOf, Lease, Machine, Malformed, ReadError, Values};
use mvcc::{Location, Snapshot, hash_versions};
use numbers::{ChangeId, Index, LeaseId, Revision};

use testkit::Random;

use crate::apply::answer;
use crate::commands::Commands;
use crate::image::{RULES, delete, execute, put, restored, run, specimen};
use crate::journal::{Effect, Journal, Placed, apply};
use crate::snapshot::{rows, used};

/// Returns the chunks of a transfer from the current state.
fn send(machine: &mut Machine, from: Revision, values: &dyn Values) -> Vec<Bytes> {
    let (view, head) = (machine.store.publish(), machine.head());
    let mut writer = TransferWriter::new(view, head, from);
    let mut chunks = Vec::new();
    while let Some(chunk) = writer.next_chunk(values).unwrap() {
        assert!(!chunk.is_empty() && chunk.len() <= CHUNK_BYTES_MAX);
        chunks.push(chunk);
    }
    assert_eq!(writer.next_chunk(values), Ok(None), "it stays at its end");
    chunks
}

/// Returns the chunks of a transfer to a receiver that reads formats up to this one.
fn send_in_format(machine: &mut Machine, from: Revision, format: u32, values: &dyn Values) -> Vec<Bytes> {
    let (view, head) = (machine.store.publish(), machine.head());
    let mut writer = TransferWriter::new(view, head, from).with_format_up_to(format);
    std::iter::from_fn(|| writer.next_chunk(values).unwrap()).collect()
}

/// Receives chunks until they end or fail, and stores values in batches of `batch` versions. Returns the
/// machine or, after an interruption, the assembly and the versions that it has.
fn receive(
    mut assembly: Assembly,
    chunks: impl Iterator<Item = Result<Bytes, String>>,
    journal: &Journal,
    batch: usize,
) -> Result<Machine, Box<(Assembly, Held, RestoreError<String>)>> {
    let mut waiting: Vec<(ReceivedVersion, Location)> = Vec::new();
    let mut reader = match TransferReader::open(chunks) {
        Ok(reader) => reader,
        Err(error) => {
            let held = assembly.pause();
            return Err(Box::new((assembly, held, error)));
        }
    };
    if let Err(error) = assembly.begin(reader.head()) {
        let held = assembly.pause();
        return Err(Box::new((assembly, held, error.into())));
    }
    let failed = loop {
        match reader.next() {
            Ok(Some(version)) => {
                let received = ReceivedVersion::of(&version).unwrap();
                assert_eq!(received.value_len() as usize, version.value.len());
                let location = match version.value {
                    b"" => Location::default(),
                    value => journal.append(&Bytes::copy_from_slice(value)),
                };
                waiting.push((received, location));
                if waiting.len() == batch {
                    for (received, location) in waiting.drain(..) {
                        assembly.push(&received, location);
                    }
                }
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    if let Some(error) = failed {
        // Versions whose values are not stored yet are lost.
        let held = assembly.pause();
        return Err(Box::new((assembly, held, error)));
    }
    for (received, location) in waiting.drain(..) {
        assembly.push(&received, location);
    }
    Ok(assembly.finish(reader.finish()).unwrap())
}

fn whole(chunks: &[Bytes]) -> impl Iterator<Item = Result<Bytes, String>> + '_ {
    chunks.iter().map(|chunk| Ok(chunk.clone()))
}

fn leases(machine: &Machine) -> BTreeMap<LeaseId, Lease<'_>> {
    machine.leases.iter().collect()
}

/// Returns etcd's hash of keys and values at every revision that can be read.
fn hashes(machine: &mut Machine, journal: &Journal) -> Vec<u32> {
    let view = machine.store.publish();
    let first = view.snapshot().compact_revision().max(Revision(1));
    (first.0..=view.snapshot().current_revision().0)
        .map(|revision| {
            let mut crc = 0;
            hash_versions(&view, Revision(revision), |version| {
                crc = crc32c::crc32c_append(crc, version.key());
                for number in [version.main().0, i64::from(version.sub()), version.create_revision().0] {
                    crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
                }
                for number in [version.version(), version.lease().0] {
                    crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
                }
                crc = crc32c::crc32c_append(crc, &journal.value(version.value()));
            })
            .unwrap();
            crc
        })
        .collect()
}

fn changes(snapshot: &Snapshot<'_>) -> Vec<ChangeId> {
    let changes = snapshot.changes(snapshot.compact_revision().max(Revision(1)), snapshot.current_revision());
    changes.unwrap().map(|version| version.id()).collect()
}

/// Asserts that the receiver equals the sender, except for the locations of its values.
fn assert_equal(sender: &mut Machine, receiver: &mut Machine, journal: &Journal) {
    while !sender.compact_step(100) {}
    while !receiver.compact_step(100) {}
    assert_eq!(rows(&sender.store.snapshot(), journal), rows(&receiver.store.snapshot(), journal));
    assert_eq!(changes(&sender.store.snapshot()), changes(&receiver.store.snapshot()));
    assert_eq!(hashes(sender, journal), hashes(receiver, journal));
    assert_eq!(leases(sender), leases(receiver));
    assert_eq!((&sender.alarms, &sender.members), (&receiver.alarms, &receiver.members));
    assert_eq!((sender.applied_index, sender.applied_term), (receiver.applied_index, receiver.applied_term));
    assert_eq!(sender.store.compact_revision(), receiver.store.compact_revision());
    assert_eq!(sender.store.current_revision(), receiver.store.current_revision());
    assert_eq!(sender.store.stats().versions, receiver.store.stats().versions);
    assert_eq!(used(sender), used(receiver));
    assert_eq!(sender.in_use_bytes(), receiver.in_use_bytes());
    assert!(sender.state_hash().is_some());
    assert_eq!(sender.state_hash(), receiver.state_hash());
}

/// Returns everything of an effect that a client can observe.
fn seen(effect: Effect, machine: &Machine, journal: &Journal) -> String {
    match effect {
        Effect::Conf(conf) => format!("{conf:?}"),
        Effect::Applied(ref applied) => {
            let rest = applied.as_ref().map(|a| (a.request_id, a.op, a.change.clone()));
            let rest = format!("{rest:?}");
            format!("{rest} {:?}", answer(effect, machine, journal))
        }
    }
}

struct Leader {
    machine: Machine,
    commands: Commands,
    journal: Journal,
}

impl Leader {
    fn new(seed: u64) -> Leader {
        let commands = Commands::new(seed, [4, 12, 60, 300][seed as usize % 4]);
        Leader { machine: Machine::new(RULES), commands, journal: Journal::default() }
    }

    /// Applies some entries to this machine and to `others`.
    fn go(&mut self, entries: u64, others: &mut [&mut Machine]) {
        for _ in 0..entries {
            let placed: Placed = self.commands.next(&self.machine, &self.journal);
            let effect = apply(&mut self.machine, &placed, &self.journal, true);
            let effect = seen(effect, &self.machine, &self.journal);
            for other in others.iter_mut() {
                let theirs = apply(other, &placed, &self.journal, true);
                assert_eq!(seen(theirs, other, &self.journal), effect);
            }
            // Machines compact at random times, each at its own speed.
            for machine in others.iter_mut().map(|other| &mut **other).chain([&mut self.machine]) {
                if self.commands.random.percent(10) {
                    machine.compact_step(self.commands.random.below(12));
                }
            }
        }
    }

    /// Makes another member the leader, one that was restarted, whose checkpoint does not contain compacted
    /// deletions.
    fn change(&mut self) {
        self.machine = restored(&[run(&mut self.machine, Revision(0))]).unwrap();
    }
}

#[derive(Debug, Default)]
struct Seen {
    wholes: u32,
    parts: u32,
    resumed_wholes: u32,
    resumed_parts: u32,
    begun_anew: u32,
    refused: u32,
}

#[test]
fn whatever_the_receiver_has_it_ends_where_the_sender_is() {
    let mut counts = Seen::default();
    for seed in 1..=240 {
        let mut leader = Leader::new(seed);
        let mut follower = Machine::new(RULES);
        let first = leader.commands.random.below(400);
        leader.go(first, &mut [&mut follower]);
        let alone = 1 + leader.commands.random.below([20, 60, 300][seed as usize % 3]);
        leader.go(alone, &mut []);
        let base = leader
            .commands
            .random
            .percent(70)
            .then(|| (AsOf::from(follower.store.publish()), follower.head()));
        let mut held = base.as_ref().map(|(_, head)| head.held());
        let mut assembly = Assembly::new(RULES, base);
        let mut breaks = leader.commands.random.below(4);
        let mut before = None;
        let mut receiver = loop {
            if leader.commands.random.percent(20) {
                leader.change();
            }
            let head = leader.machine.head();
            let told = held.map(|held| Held::from_bytes(&held.to_bytes()).unwrap());
            let from = head.transfer_from(told.as_ref(), &leader.machine.state_trail(Index(0)));
            match (before, from) {
                (None, Revision(0)) => counts.wholes += 1,
                (None, _) => counts.parts += 1,
                (Some(_), Revision(0)) => counts.begun_anew += 1,
                (Some(Revision(0)), _) => counts.resumed_wholes += 1,
                (Some(_), _) => counts.resumed_parts += 1,
            }
            counts.refused += u32::from(from == Revision(0) && held.is_some());
            // A transfer that starts again from revision 0 counts as a whole one.
            before = Some(if before.is_none_or(|_| from == Revision(0)) {
                from
            } else {
                before.unwrap_or(Revision(0))
            });
            let chunks = send(&mut leader.machine, from, &leader.journal);
            let bytes = Bytes::from(chunks.concat());
            let mut cut = Vec::new();
            let mut at = 0;
            while at < bytes.len() {
                let end = (at + 1 + leader.commands.random.below(5000) as usize).min(bytes.len());
                cut.push(Ok(bytes.slice(at..end)));
                at = end;
            }
            let batch = 1 + leader.commands.random.below(30) as usize;
            if breaks == 0 {
                break receive(assembly, cut.into_iter(), &leader.journal, batch).map_err(|e| e.2).unwrap();
            }
            breaks -= 1;
            // A small state has only one large block, so the stream is interrupted between versions instead.
            let mut reader = TransferReader::open(cut.into_iter()).unwrap();
            assembly.begin(reader.head()).unwrap();
            let count = leader.commands.random.below(400);
            for _ in 0..count {
                let Some(version) = reader.next().unwrap() else { break };
                let place = match version.value {
                    b"" => Location::default(),
                    value => leader.journal.append(&Bytes::copy_from_slice(value)),
                };
                assembly.push(&ReceivedVersion::of(&version).unwrap(), place);
            }
            let now = assembly.pause();
            assert_eq!(assembly.pause(), now);
            held = Some(now);
            let meanwhile = leader.commands.random.below([5, 30, 150][seed as usize % 3]);
            leader.go(meanwhile, &mut []);
        };
        let mut copy = restored(&[run(&mut receiver, Revision(0))]).unwrap();
        assert_equal(&mut leader.machine, &mut receiver, &leader.journal);
        // Later entries must have the same effects, also on a machine restored from a checkpoint of the
        // result.
        leader.go(80, &mut [&mut receiver, &mut copy]);
        assert_equal(&mut leader.machine, &mut receiver, &leader.journal);
        assert_equal(&mut leader.machine, &mut copy, &leader.journal);
    }
    println!("{counts:?}");
    let all = [counts.wholes, counts.parts, counts.resumed_wholes, counts.resumed_parts];
    assert!(all.iter().chain([&counts.begun_anew, &counts.refused]).all(|count| *count >= 15), "{counts:?}");
}

#[test]
fn only_what_is_new_is_sent() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    for n in 0..5000 {
        execute(&mut machine, &journal, &put(&format!("key-{n:05}"), "a value of some length", 0));
    }
    let base = (AsOf::from(machine.store.publish()), machine.head());
    let bytes = |chunks: &[Bytes]| chunks.iter().map(Bytes::len).sum::<usize>();
    let everything = bytes(&send(&mut machine, Revision(0), &journal));
    for n in 0..50 {
        execute(&mut machine, &journal, &put(&format!("key-{:05}", n * 7), "another one", 0));
    }
    let from = machine.head().transfer_from(Some(&base.1.held()), &machine.state_trail(Index(0)));
    assert_eq!(from, base.1.revision);
    let chunks = send(&mut machine, from, &journal);
    assert!(bytes(&chunks) < everything / 50, "{} of {everything} bytes", bytes(&chunks));
    let mut back =
        receive(Assembly::new(RULES, Some(base)), whole(&chunks), &journal, 7).map_err(|e| e.2).unwrap();
    assert_equal(&mut machine, &mut back, &journal);
}

/// Without the check, the receiver would take over the sender's hash, and the difference would never be
/// detected later.
#[test]
fn a_receiver_whose_state_differs_gets_everything() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let mut differs = Machine::new(RULES);
    for key in ["a", "b", "c"] {
        execute(&mut machine, &journal, &put(key, "v", 0));
        execute(&mut differs, &journal, &put(key, if key == "b" { "wrong" } else { "v" }, 0));
    }
    let base = (AsOf::from(differs.store.publish()), differs.head());
    execute(&mut machine, &journal, &put("d", "v", 0));
    assert!(machine.head().can_follow(&base.1.held()));
    let behind = base.1.revision;
    let part = send(&mut machine, behind, &journal);
    let assembly = Assembly::new(RULES, Some((base.0.clone(), base.1.clone())));
    let wrong = receive(assembly, whole(&part), &journal, 1).map_err(|e| e.2).unwrap();
    assert_eq!(wrong.state_hash(), machine.state_hash(), "what lies behind its revision makes it look right");

    let from = machine.head().transfer_from(Some(&base.1.held()), &machine.state_trail(Index(0)));
    assert_eq!(from, Revision(0));
    let chunks = send(&mut machine, from, &journal);
    let assembly = Assembly::new(RULES, Some(base));
    let mut right = receive(assembly, whole(&chunks), &journal, 1).map_err(|e| e.2).unwrap();
    assert_equal(&mut machine, &mut right, &journal);
}

#[test]
fn a_deletion_that_compaction_removed_cannot_be_followed_on() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    execute(&mut machine, &journal, &put("gone", "v", 0));
    let base = (AsOf::from(machine.store.publish()), machine.head());
    execute(&mut machine, &journal, &delete("gone"));
    execute(&mut machine, &journal, &put("stays", "v", 0));
    machine.store.compact(Revision(4)).unwrap();
    assert!(machine.head().can_follow(&base.1.held()), "it is still there");
    let chunks = send(&mut machine, Revision(2), &journal);
    let assembly = Assembly::new(RULES, Some((base.0.clone(), base.1.clone())));
    let back = receive(assembly, whole(&chunks), &journal, 1).map_err(|e| e.2).unwrap();
    assert_eq!(back.store.stats().keys, 1);
    // A checkpoint does not contain the compacted deletion, and neither does the machine after physical
    // compaction.
    let restarted = restored(&[run(&mut machine, Revision(0))]).unwrap();
    assert!(!restarted.head().can_follow(&base.1.held()));
    while !machine.compact_step(1) {}
    assert!(!machine.head().can_follow(&base.1.held()));
}

#[test]
fn a_part_once_broken_off_is_as_old_as_what_it_began_with() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    execute(&mut machine, &journal, &put("gone", "v", 0));
    let base = (AsOf::from(machine.store.publish()), machine.head());
    for key in ["a", "b"] {
        execute(&mut machine, &journal, &put(key, "v", 0));
    }
    execute(&mut machine, &journal, &delete("gone"));
    execute(&mut machine, &journal, &put("c", "v", 0));
    machine.store.compact(Revision(6)).unwrap();
    // The first stream contained the deletion, but was interrupted before it.
    let chunks = send(&mut machine, Revision(2), &journal);
    let mut reader = TransferReader::open(whole(&chunks)).unwrap();
    let mut assembly = Assembly::new(RULES, Some(base));
    assembly.begin(reader.head()).unwrap();
    for _ in 0..2 {
        let version = reader.next().unwrap().unwrap();
        let place = journal.append(&Bytes::copy_from_slice(version.value));
        assembly.push(&ReceivedVersion::of(&version).unwrap(), place);
    }
    let held = assembly.pause();
    let hashed = machine.state_hash().map(|hash| (machine.applied_index, hash));
    assert_eq!(
        held,
        Held { revision: Revision(3), compacted_min: Revision(-1), compacted_max: Revision(6), hashed }
    );
    assert!(machine.head().can_follow(&held));
    while !machine.compact_step(1) {}
    assert!(!machine.head().can_follow(&held), "the deletion of 5 would be missed");
    // After a full transfer has started, every part is as new as that stream.
    let chunks = send(&mut machine, Revision(0), &journal);
    let mut reader = TransferReader::open(whole(&chunks)).unwrap();
    assembly.begin(reader.head()).unwrap();
    for _ in 0..2 {
        let version = reader.next().unwrap().unwrap();
        let place = journal.append(&Bytes::copy_from_slice(version.value));
        assembly.push(&ReceivedVersion::of(&version).unwrap(), place);
    }
    let held = assembly.pause();
    assert_eq!(
        held,
        Held { revision: Revision(3), compacted_min: Revision(6), compacted_max: Revision(6), hashed }
    );
    assert!(machine.head().can_follow(&held));
    let chunks = send(&mut machine, Revision(3), &journal);
    let mut back = receive(assembly, whole(&chunks), &journal, 1).map_err(|e| e.2).unwrap();
    assert_equal(&mut machine, &mut back, &journal);
}

#[test]
fn a_stream_that_does_not_follow_is_refused_and_one_of_everything_replaces() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    for key in ["a", "b", "c"] {
        execute(&mut machine, &journal, &put(key, "v", 0));
    }
    let older = (machine.store.publish(), machine.head());
    execute(&mut machine, &journal, &put("d", "v", 0));
    let base = (AsOf::from(machine.store.publish()), machine.head());
    for from in [older.1.revision, Revision(2), Revision(1)] {
        let chunks = send(&mut machine, from, &journal);
        let assembly = Assembly::new(RULES, Some(base.clone()));
        let (mut assembly, held, error) = *receive(assembly, whole(&chunks), &journal, 1).unwrap_err();
        let expected = Malformed("a transfer that does not follow on what is there");
        assert_eq!(error, RestoreError::Malformed(expected));
        assert_eq!(held, base.1.held());
        // The assembly can still continue, from its last revision or from 0.
        assert_eq!(assembly.pause(), held);
        let chunks = send(&mut machine, [Revision(0), held.revision][from.0 as usize % 2], &journal);
        let mut back = receive(assembly, whole(&chunks), &journal, 1).map_err(|e| e.2).unwrap();
        assert_equal(&mut machine, &mut back, &journal);
    }
    // A sender with a lower applied index, although none of the later entries changed a key.
    let base = {
        let mut ahead = restored(&[run(&mut machine, Revision(0))]).unwrap();
        execute(&mut ahead, &journal, &crate::image::grant(5, 60));
        (AsOf::from(ahead.store.publish()), ahead.head())
    };
    let chunks = send(&mut machine, base.1.revision, &journal);
    assert!(receive(Assembly::new(RULES, Some(base)), whole(&chunks), &journal, 1).is_err());
    // A sender with an older compact revision than the receiver: it has versions that the receiver is
    // missing, but does not send them.
    let mut compacted = restored(&[run(&mut machine, Revision(0))]).unwrap();
    compacted.store.compact(Revision(4)).unwrap();
    let base = (AsOf::from(compacted.store.publish()), compacted.head());
    assert!(!machine.head().can_follow(&base.1.held()));
    let chunks = send(&mut machine, base.1.revision, &journal);
    assert!(receive(Assembly::new(RULES, Some(base)), whole(&chunks), &journal, 1).is_err());
}

#[test]
fn large_values_come_in_bounded_chunks() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let mut random = Random::new(9);
    for n in 0..40 {
        let len = [0, 1000, 200_000, 1_500_000][random.below(4) as usize];
        let value: Bytes = (0..len).map(|at| (at * n) as u8).collect::<Vec<u8>>().into();
        let put = api::etcdserverpb::PutRequest { key: format!("{n}").into(), value, ..Default::default() };
        let request = api::etcdserverpb::InternalRaftRequest { put: Some(put), ..Default::default() };
        execute(&mut machine, &journal, &request);
    }
    let chunks = send(&mut machine, Revision(0), &journal);
    assert!(chunks.len() > 20);
    let mut back = receive(Assembly::new(RULES, None), whole(&chunks), &journal, 3).map_err(|e| e.2).unwrap();
    assert_equal(&mut machine, &mut back, &journal);
}

#[test]
fn a_broken_connection_leaves_whole_revisions() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let put_of = |key: String| {
        let request = put(&key, &"v".repeat(3000), 0).put.unwrap();
        api::etcdserverpb::RequestOp {
            request: Some(api::etcdserverpb::request_op::Request::RequestPut(request)),
        }
    };
    for n in 0..100 {
        let success = (0..5).map(|k| put_of(format!("{n}-{k}"))).collect();
        let txn = api::etcdserverpb::TxnRequest { success, ..Default::default() };
        let request = api::etcdserverpb::InternalRaftRequest { txn: Some(txn), ..Default::default() };
        execute(&mut machine, &journal, &request);
    }
    let chunks = send(&mut machine, Revision(0), &journal);
    let held_after = |count: usize| {
        let broken = whole(&chunks[..count]).chain([Err("the connection broke".to_owned())]);
        let (assembly, held, error) = *receive(Assembly::new(RULES, None), broken, &journal, 1).unwrap_err();
        assert_eq!(error, RestoreError::Read("the connection broke".to_owned()));
        (assembly, held.revision)
    };
    let mut last = 0;
    for count in 0..chunks.len() {
        let (assembly, revision) = held_after(count);
        assert!(revision >= Revision(last) && revision <= machine.store.current_revision());
        last = revision.0;
        let rest = send(&mut machine, revision, &journal);
        let mut back = receive(assembly, whole(&rest), &journal, 10).map_err(|e| e.2).unwrap();
        assert_equal(&mut machine, &mut back, &journal);
    }
    assert!(last > 80, "{last}: nothing but the end was missing");
}

/// The versions of the specimen after revision 3, in format 1, with a head of format 4.
const GOLDEN: &str = "4d41494e5846455201000000000000004b0000002d73ce790104030601060105010e78000001257b226964223a332c227065657255524c73223a5b22687474703a2f2f613a32333830225d7d010405332e372e300000014d267fc3ba64f239000100001d00000084cd8a4d02400003666f6f040202057468726565020303626172052405017a060e0a000000660fc13603039ac5e3ab1c6305cc";

/// The same transfer as `GOLDEN` with a head of format 2, whose hash is of another function.
const GOLDEN_2: &str = "4d41494e58464552010000000000000047000000f839f5400102030601060105010e78000001257b226964223a332c227065657255524c73223a5b22687474703a2f2f613a32333830225d7d010405332e372e300000014d267fc3ba64f2391d00000084cd8a4d02400003666f6f040202057468726565020303626172052405017a060e0a000000759d03330303ce6707ef7194dfa9";

fn unhex(text: &str) -> Bytes {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

#[test]
fn members_of_old_versions_are_understood() {
    let journal = Journal::default();
    let mut machine = specimen(&journal);
    let bytes = send(&mut machine, Revision(3), &journal).concat();
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text, GOLDEN);
    for golden in [GOLDEN, GOLDEN_2] {
        let mut base = Machine::new(RULES);
        execute(&mut base, &journal, &crate::image::grant(7, 60));
        execute(&mut base, &journal, &put("foo", "one", 0));
        execute(&mut base, &journal, &put("foobar", "two", 7));
        let assembly = Assembly::new(RULES, Some((AsOf::from(base.store.publish()), base.head())));
        let mut back = receive(assembly, whole(&[unhex(golden)]), &journal, 1).map_err(|e| e.2).unwrap();
        if golden == GOLDEN {
            assert_equal(&mut machine, &mut back, &journal);
        } else {
            assert_eq!(rows(&machine.store.snapshot(), &journal), rows(&back.store.snapshot(), &journal));
            assert_eq!(back.state_hash(), None);
        }
    }
}

#[test]
fn every_cut_and_every_flipped_bit_is_refused() {
    let journal = Journal::default();
    let all = Bytes::from(send(&mut specimen(&journal), Revision(0), &journal).concat());
    let take = |bytes: Bytes| {
        let other = Journal::default();
        receive(Assembly::new(RULES, None), [Ok(bytes)].into_iter(), &other, 1).map_err(|e| e.2)
    };
    assert!(take(all.clone()).is_ok());
    for len in 0..all.len() {
        assert!(take(all.slice(..len)).is_err(), "cut to {len}");
    }
    for bit in 0..all.len() * 8 {
        let mut damaged = all.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(take(damaged.into()).is_err(), "bit {bit}");
    }
    let longer = Bytes::from([all.as_ref(), &[0]].concat());
    let expected = Malformed("data after the end of the transfer");
    assert_eq!(take(longer).err(), Some(RestoreError::Malformed(expected)));
    // A damaged length must not cause a large allocation.
    let mut huge = all.to_vec();
    huge[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    let expected = RestoreError::Malformed(Malformed("a snapshot without its end"));
    assert_eq!(take(huge.into()).err(), Some(expected));
}

/// Returns the offset of each block, followed by the offset of the end.
fn frames(bytes: &[u8]) -> Vec<usize> {
    let mut starts = vec![16];
    while let Some(&start) = starts.last().filter(|start| **start < bytes.len()) {
        let len = u32::from_le_bytes(bytes[start..start + 4].try_into().unwrap());
        starts.push(start + 8 + len as usize);
    }
    starts
}

#[test]
fn blocks_that_are_good_but_of_another_stream_are_refused() {
    let journal = Journal::default();
    let state = |letter: &str| {
        let mut machine = Machine::new(RULES);
        for n in 0..3000 {
            execute(&mut machine, &journal, &put(&format!("{n:05}"), &letter.repeat(100), 0));
        }
        send(&mut machine, Revision(0), &journal).concat()
    };
    let (ours, theirs) = (state("a"), state("b"));
    let starts = frames(&ours);
    assert!(starts.len() > 4 && starts == frames(&theirs));
    let mut mixed = ours.clone();
    mixed[starts[1]..starts[2]].copy_from_slice(&theirs[starts[1]..starts[2]]);
    for (bytes, good) in [(ours, true), (theirs, true), (mixed, false)] {
        let chunks = [Bytes::from(bytes)];
        let back = receive(Assembly::new(RULES, None), whole(&chunks), &Journal::default(), 100);
        assert_eq!(back.is_ok(), good);
    }
}

/// The frames are intact and the blocks in them are damaged, as from a defective sender.
#[test]
fn no_damage_makes_it_panic() {
    let mut leader = Leader::new(4);
    leader.go(120, &mut []);
    let all = send(&mut leader.machine, Revision(0), &leader.journal).concat();
    let starts = frames(&all);
    let random = &mut leader.commands.random;
    let (mut refused, mut taken) = (0, 0);
    for _ in 0..4000 {
        let mut bytes = all.clone();
        // Any block except the end block.
        let block = random.below(starts.len() as u64 - 2) as usize;
        let (frame, end) = (starts[block], starts[block + 1]);
        for _ in 0..1 + random.below(3) {
            let at = frame + 8 + random.below((end - frame - 8) as u64) as usize;
            bytes[at] ^= [0xff, 1 << random.below(8)][random.below(2) as usize];
        }
        if bytes == all {
            continue;
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[frame..frame + 4]), &bytes[frame + 8..end]);
        bytes[frame + 4..frame + 8].copy_from_slice(&crc.to_le_bytes());
        let chunks = [Bytes::from(bytes)];
        let Err(broken) = receive(Assembly::new(RULES, None), whole(&chunks), &leader.journal, 1) else {
            panic!("the checksum over all blocks does not match");
        };
        // Versions that were accepted before the damage must be valid in a later stream, or be refused at its
        // end.
        let (mut assembly, held, _) = *broken;
        if !leader.machine.head().can_follow(&held) {
            refused += 1;
            continue;
        }
        let rest = send(&mut leader.machine, held.revision, &leader.journal);
        let mut reader = TransferReader::open(whole(&rest)).unwrap();
        if assembly.begin(reader.head()).is_err() {
            refused += 1;
            continue;
        }
        while let Some(version) = reader.next().unwrap() {
            assembly.push(&ReceivedVersion::of(&version).unwrap(), Location::new(1, 32));
        }
        match assembly.finish(reader.finish()) {
            Err(_) => refused += 1,
            Ok(mut machine) => {
                taken += 1;
                execute(&mut machine, &Journal::default(), &put("k", "v", 0));
                let revision = machine.store.current_revision();
                machine.store.compact(revision).unwrap();
                while !machine.compact_step(100) {}
            }
        }
    }
    assert!(refused > 300 && taken > 300, "{refused} refused, {taken} taken");
}

/// Returns a machine with this number of leases, one of which has a key.
fn with_leases(journal: &Journal, count: i64) -> Machine {
    let mut machine = Machine::new(RULES);
    for id in 1..=count {
        let grant = api::etcdserverpb::LeaseGrantRequest { id, ttl: 60 + id % 1000 };
        let request = api::etcdserverpb::InternalRaftRequest {
            lease_grant: Some(grant),
            ..api::etcdserverpb::InternalRaftRequest::default()
        };
        execute(&mut machine, journal, &request);
    }
    execute(&mut machine, journal, &put("a", "1", 7));
    execute(&mut machine, journal, &put("b", "2", 0));
    machine
}

#[test]
fn many_leases_come_in_bounded_blocks_to_receivers_that_read_them() {
    const COUNT: i64 = 70_000;
    let journal = Journal::default();
    let mut machine = with_leases(&journal, COUNT);
    let longest = |chunks: &[Bytes]| {
        let starts = frames(&chunks.concat());
        starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    };
    let format = |chunks: &[Bytes]| chunks[0][8];
    // The previous release reads format 1 only, in which all leases are in one block.
    let old = send_in_format(&mut machine, Revision(0), 1, &journal);
    let new = send_in_format(&mut machine, Revision(0), FORMAT, &journal);
    assert_eq!((format(&old), format(&new)), (1, 2));
    assert!(longest(&old) > 256 << 10 && longest(&new) < 129 << 10, "{} {}", longest(&old), longest(&new));
    for chunks in [&old, &new] {
        let received = receive(Assembly::new(RULES, None), whole(chunks), &journal, 10).ok().unwrap();
        assert_eq!(leases(&received), leases(&machine));
        assert_eq!(received.leases.bytes(), machine.leases.bytes());
    }
    // A receiver that has the first key gets the second one and, again, all leases.
    let rest = send_in_format(&mut machine, Revision(2), FORMAT, &journal);
    let mut reader = TransferReader::open(whole(&rest)).unwrap();
    let mut keys = Vec::new();
    while let Some(version) = reader.next().unwrap() {
        keys.push(version.key.to_vec());
    }
    assert_eq!((keys, reader.finish().head.leases.len()), (vec![b"b".to_vec()], COUNT as usize));
    // Few leases stay in the head, so that the previous release can read most streams in a backup, too.
    let few = send_in_format(&mut with_leases(&journal, 3), Revision(0), FORMAT, &journal);
    assert_eq!(format(&few), 1);
}

#[test]
fn blocks_of_leases_that_are_missing_repeated_or_out_of_place_are_refused() {
    let journal = Journal::default();
    let chunks = send_in_format(&mut with_leases(&journal, 70_000), Revision(0), FORMAT, &journal);
    let all = chunks.concat();
    let starts = frames(&all);
    // A head, at least two blocks of leases, one of keys, and the end.
    assert!(starts.len() >= 6, "{starts:?}");
    let block = |n: usize| all[starts[n]..starts[n + 1]].to_vec();
    let blocks = starts.len() - 1;
    let refusal = |magic: &[u8], order: &[usize]| {
        let bytes = [magic.to_vec(), order.iter().flat_map(|n| block(*n)).collect()].concat();
        let taken = receive(Assembly::new(RULES, None), [Ok(bytes.into())].into_iter(), &journal, 1);
        taken.err().map(|broken| broken.2)
    };
    let magic = &all[..16];
    let whole: Vec<usize> = (0..blocks).collect();
    assert_eq!(refusal(magic, &whole), None);
    let without = |n: usize| whole.iter().copied().filter(|block| *block != n).collect::<Vec<_>>();
    let malformed = |text| Some(RestoreError::Malformed(Malformed(text)));
    let missing = malformed("a transfer with blocks missing or out of order");
    assert_eq!(refusal(magic, &without(1)), missing);
    assert_eq!(refusal(magic, &without(2)), missing);
    assert_eq!(refusal(magic, &[&[0, 1, 1], &whole[2..]].concat()), malformed("a lease twice"));
    let late: Vec<usize> = without(1).into_iter().take(blocks - 2).chain([1, blocks - 1]).collect();
    assert_eq!(refusal(magic, &late), malformed("a block of an unknown kind"));
    // Format 1 has no blocks of leases.
    let old = b"MAINXFER\x01\0\0\0\0\0\0\0";
    assert_eq!(refusal(old, &whole), malformed("a block of an unknown kind"));
    for cut in [starts[1] + 3, starts[2], starts[3] - 1] {
        let bytes = Bytes::copy_from_slice(&all[..cut]);
        assert!(receive(Assembly::new(RULES, None), [Ok(bytes)].into_iter(), &journal, 1).is_err());
    }
}

#[test]
fn a_value_that_cannot_be_read_breaks_it_off() {
    struct Broken;
    impl Values for Broken {
        fn read_into(&self, _: mvcc::Value, _: &mut bytes::BytesMut) -> Result<(), ReadError> {
            Err(ReadError::Failed("the disk is gone".to_owned()))
        }
    }
    let mut machine = specimen(&Journal::default());
    let (view, head) = (machine.store.publish(), machine.head());
    let mut writer = TransferWriter::new(view, head, Revision(0));
    assert!(writer.next_chunk(&Broken).is_ok(), "the head needs no values");
    assert_eq!(writer.next_chunk(&Broken), Err(ReadError::Failed("the disk is gone".to_owned())));
}

#[test]
fn both_sides_go_to_other_threads() {
    fn is_send<T: Send>() {}
    is_send::<TransferWriter>();
    is_send::<Assembly>();
    is_send::<(ReceivedVersion, Head)>();
    is_send::<TransferReader<std::vec::IntoIter<Result<Bytes, String>>>>();
}
