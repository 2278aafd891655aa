//! Tests of writing a base run and delta runs, and of restoring them.

use std::convert::Infallible;

use api::etcdserverpb::{
    DeleteRangeRequest, InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseGrantRequest,
    LeaseRevokeRequest, PutRequest,
};
use bytes::Bytes;
use mainstay_machine::image::{RestoreError, RunWriter, Versions, begin, restore};
use mainstay_machine::{Machine, Malformed, Rules};
use numbers::{Index, LeaseId, Revision};
use prost::Message as _;

use testkit::Random;

use crate::commands::Commands;
use crate::compare::{assert_same, assert_same_but_hash};
use crate::journal::{Journal, Placed, apply};

pub const RULES: Rules = Rules { learners_max: 1 };

pub type Blocks = Vec<Vec<u8>>;

pub fn run(machine: &mut Machine, from: Revision) -> Blocks {
    let (view, head) = (machine.store.publish(), machine.head());
    let mut writer = RunWriter::new(view, head, from);
    std::iter::from_fn(|| writer.next_block().expect("a held view has everything")).collect()
}

/// Restores in one step and in two halves, and asserts that the results are equal.
pub fn restored(runs: &[Blocks]) -> Result<Machine, RestoreError<Infallible>> {
    let whole = restore(RULES, runs.iter().map(|run| run.iter().map(Ok)).collect());
    match (&whole, restored_in_halves(runs, 3)) {
        (Ok(_), Ok(mut halves)) => {
            let mut whole = restore(RULES, runs.iter().map(|run| run.iter().map(Ok)).collect())?;
            assert_eq!(run(&mut whole, Revision(0)), run(&mut halves, Revision(0)));
            assert_eq!(whole.usage(), halves.usage());
            assert_eq!(whole.in_use_bytes(), halves.in_use_bytes());
        }
        (whole, halves) => assert_eq!(whole.as_ref().err(), halves.err().as_ref()),
    }
    whole
}

fn restored_in_halves(runs: &[Blocks], versions_max: usize) -> Result<Machine, RestoreError<Infallible>> {
    let (reading, mut building) = begin(runs.iter().map(|run| run.iter().map(Ok)).collect())?;
    // Used batches are returned for reuse only sometimes, as by the building thread.
    let (mut pieces, mut used) = (Vec::new(), Vec::<Versions>::new());
    let mut built = Ok(());
    let read = reading.read(versions_max, |versions| {
        pieces.push(versions);
        if pieces.len() % 3 == 0 {
            for mut versions in pieces.drain(..) {
                built = built.clone().and_then(|()| building.take(&versions));
                versions.clear();
                used.push(versions);
            }
        }
        built.is_ok().then(|| used.pop().unwrap_or_default())
    });
    for versions in &pieces {
        built = built.and_then(|()| building.take(versions));
    }
    built.and(read).and_then(|()| building.finish(RULES))
}

pub fn put(key: &str, value: &str, lease: i64) -> InternalRaftRequest {
    let put = PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        lease,
        ..PutRequest::default()
    };
    InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() }
}

pub fn delete(key: &str) -> InternalRaftRequest {
    let delete = DeleteRangeRequest { key: key.to_owned().into(), ..DeleteRangeRequest::default() };
    InternalRaftRequest { delete_range: Some(delete), ..InternalRaftRequest::default() }
}

pub fn grant(id: i64, ttl: i64) -> InternalRaftRequest {
    InternalRaftRequest { lease_grant: Some(LeaseGrantRequest { id, ttl }), ..InternalRaftRequest::default() }
}

pub fn execute(machine: &mut Machine, journal: &Journal, request: &InternalRaftRequest) {
    let data = Bytes::from(request.encode_to_vec());
    let placed = Placed { location: journal.append(&data), data, conf: false };
    apply(machine, &placed, journal, true);
}

#[test]
fn what_is_restored_is_the_same_and_goes_on_alike() {
    for seed in 1..=12 {
        let mut commands = Commands::new(seed, [6, 40, 300][seed as usize % 3]);
        let journal = Journal::default();
        let mut machine = Machine::new(RULES);
        let mut runs: Vec<Blocks> = Vec::new();
        let (mut saved, mut deltas) = (0, 0);
        for _ in 0..12 {
            for _ in 0..80 {
                let placed = commands.next(&machine, &journal);
                apply(&mut machine, &placed, &journal, true);
                if commands.random.percent(10) {
                    machine.compact_step(commands.random.below(8));
                }
            }
            if runs.is_empty()
                || machine.head().delta_from_min > Revision(saved)
                || commands.random.percent(10)
            {
                runs.clear();
                saved = 0;
            }
            deltas += usize::from(saved != 0);
            runs.push(run(&mut machine, Revision(saved)));
            saved = machine.store.current_revision().0;
            let mut back = restored(&runs).unwrap();
            let mut again = restored(&runs).unwrap();
            assert_same(&mut back, &mut again);
            // Later entries must have the same effects on the restored machine as on a copy of the original.
            let mut original = restored(&[run(&mut machine, Revision(0))]).unwrap();
            let mut compacted = restored(&runs).unwrap();
            for _ in 0..60 {
                let placed = commands.next(&original, &journal);
                let effect = apply(&mut original, &placed, &journal, true);
                assert_eq!(apply(&mut compacted, &placed, &journal, true), effect, "seed {seed}");
                original.compact_step(commands.random.below(3));
            }
            assert_same(&mut original, &mut compacted);
            if commands.random.percent(50) {
                assert_same(&mut machine, &mut back);
            } else {
                // The physical compaction of the original is not finished here: writing another base run
                // leaves out the compacted versions, too.
                let mut other = restored(&[run(&mut machine, Revision(0))]).unwrap();
                assert_same(&mut other, &mut back);
            }
        }
        assert!(deltas > 0, "seed {seed} wrote no delta run");
        assert!(saved > 150, "seed {seed} wrote little: {saved}");
        let mut back = restored(&[run(&mut machine, Revision(0))]).unwrap();
        assert_same(&mut machine, &mut back);
    }
}

#[test]
fn a_moved_value_is_found_by_the_next_base_run() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let mut commands = Commands::new(7, 30);
    commands.only_keys = true;
    for _ in 0..300 {
        let placed = commands.next(&machine, &journal);
        apply(&mut machine, &placed, &journal, true);
    }
    let view = machine.store.publish();
    let mut moved = 0;
    for version in view.snapshot().histories().filter(|version| version.value_len() > 0) {
        let from = version.location();
        let bytes = journal.value(version.value());
        let to = journal.append(&bytes);
        assert!(!machine.relocate(version.id(), to, to), "it is not there");
        assert!(machine.relocate(version.id(), from, to));
        assert!(!machine.relocate(version.id(), from, to), "only once");
        moved += 1;
    }
    assert!(moved > 20);
    let mut back = restored(&[run(&mut machine, Revision(0))]).unwrap();
    assert_same(&mut machine, &mut back);
}

#[test]
fn a_delta_run_cannot_bring_deleted_keys_back() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    execute(&mut machine, &journal, &put("gone", "v", 0));
    let base = run(&mut machine, Revision(0));
    let saved = machine.store.current_revision();
    execute(&mut machine, &journal, &delete("gone"));
    execute(&mut machine, &journal, &put("stays", "v", 0));
    let revision = machine.store.current_revision();
    machine.store.compact(revision).unwrap();
    // Compacted but not physically removed yet: the delta run contains the deletion.
    assert!(machine.head().delta_from_min <= saved);
    let delta = run(&mut machine, saved);
    let back = restored(&[base, delta]).unwrap();
    assert_eq!(back.store.stats().keys, 1);
    // After the physical removal a delta run would miss the deletion, so it is refused.
    while !machine.compact_step(1) {}
    assert!(machine.head().delta_from_min > saved);
    let (view, head) = (machine.store.publish(), machine.head());
    let refused =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| RunWriter::new(view, head, saved)));
    assert!(refused.is_err());
}

#[test]
fn a_long_history_spans_blocks() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    execute(&mut machine, &journal, &grant(5, 60));
    for n in 0..30_000 {
        execute(&mut machine, &journal, &put(if n % 3 == 0 { "other" } else { "key" }, "v", 5 * (n % 2)));
    }
    execute(&mut machine, &journal, &put("zzz", "v", 5));
    let base = run(&mut machine, Revision(0));
    assert!(base.len() > 4, "head, end and {} blocks", base.len() - 2);
    let half = Revision(machine.store.current_revision().0 / 2);
    let back = restored(std::slice::from_ref(&base)).unwrap();
    let versions = |m: &Machine, from| -> Vec<(Revision, i64, LeaseId)> {
        let view = m.store.snapshot();
        view.changes(from, view.current_revision())
            .unwrap()
            .map(|v| (v.main(), v.version(), v.lease()))
            .collect()
    };
    assert_eq!(versions(&machine, Revision(1)), versions(&back, Revision(1)));
    assert_eq!(back.leases.get(LeaseId(5)), machine.leases.get(LeaseId(5)));
    // Merged with a run that contains one of the same keys, and compacted in the middle of the key's history.
    let saved = machine.store.current_revision();
    for key in ["key", "between", "key"] {
        execute(&mut machine, &journal, &put(key, "v", 0));
    }
    let back = restored(&[base.clone(), run(&mut machine, saved)]).unwrap();
    assert_eq!(versions(&machine, Revision(1)), versions(&back, Revision(1)));
    machine.store.compact(half).unwrap();
    let back = restored(&[base, run(&mut machine, saved)]).unwrap();
    assert_eq!(versions(&machine, half), versions(&back, half));
    let mut back = restored(&[run(&mut machine, Revision(0))]).unwrap();
    assert_eq!(versions(&machine, half), versions(&back, half));
    while !machine.compact_step(1000) {}
    while !back.compact_step(1000) {}
    assert_eq!(machine.in_use_bytes(), back.in_use_bytes());
}

/// Returns a base run and a delta run of a machine with more leases than a head contains, and the machine.
fn with_many_leases() -> (Machine, Blocks, Blocks) {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let mut random = Random::new(5);
    for n in 0..66_000 {
        let id = if n % 2 == 0 { n } else { random.number() as i64 };
        execute(
            &mut machine,
            &journal,
            &grant(id, [0, 60, i64::from(u32::MAX), 9_000_000_000][n as usize % 4]),
        );
    }
    execute(&mut machine, &journal, &put("key", "v", 2));
    let base = run(&mut machine, Revision(0));
    let saved = machine.store.current_revision();
    let revoke = LeaseRevokeRequest { id: 4 };
    let revoke = InternalRaftRequest { lease_revoke: Some(revoke), ..Default::default() };
    execute(&mut machine, &journal, &revoke);
    execute(&mut machine, &journal, &put("other", "v", 6));
    let delta = run(&mut machine, saved);
    (machine, base, delta)
}

#[test]
fn many_leases_are_in_blocks_of_their_own() {
    const LEASES: u8 = 4;
    let (mut machine, base, delta) = with_many_leases();
    let longest = base.iter().chain(&delta).map(Vec::len).max();
    assert!(longest < Some(129 << 10), "{longest:?}");
    let leases = base.iter().filter(|block| block[0] == LEASES).count();
    assert!(leases > 3, "{leases} blocks of leases");
    // The leases are those of the newest run.
    let mut back = restored(&[base.clone(), delta.clone()]).unwrap();
    assert_same(&mut machine, &mut back);
    assert!(back.leases.get(LeaseId(4)).is_none() && back.leases == machine.leases);
    let mut back = restored(&[run(&mut machine, Revision(0))]).unwrap();
    assert_same(&mut machine, &mut back);
    // A block of leases is missing, comes twice, or comes in another place.
    let missing = Some(RestoreError::Malformed(Malformed("a run with leases missing")));
    for runs in [vec![base.clone()], vec![base.clone(), delta.clone()]] {
        for run in 0..runs.len() {
            for at in 1..=leases.min(3) {
                let mut cut = runs.clone();
                let block = cut[run].remove(at);
                assert_eq!(restored(&cut).err(), missing);
                cut[run].insert(at, block.clone());
                cut[run].insert(at, block);
                assert!(restored(&cut).is_err());
            }
        }
    }
    let mut none = base.clone();
    none[1] = vec![LEASES, 0];
    assert!(restored(&[none]).is_err());
    // Once the leases are few they are in the head again, which an older release can read.
    let ids: Vec<i64> = machine.leases.iter().map(|(id, _)| id.0).skip(100).collect();
    for id in ids {
        let revoke = LeaseRevokeRequest { id };
        let revoke = InternalRaftRequest { lease_revoke: Some(revoke), ..Default::default() };
        execute(&mut machine, &Journal::default(), &revoke);
    }
    let few = run(&mut machine, Revision(0));
    assert!(few.iter().all(|block| block[0] != LEASES) && few[0][1] == 4);
}

#[test]
fn no_damage_to_leases_makes_it_panic() {
    let (_, base, delta) = with_many_leases();
    let mut random = Random::new(13);
    let (mut refused, mut taken) = (0u32, 0u32);
    for _ in 0..100 {
        let mut runs = [base.clone(), delta.clone()];
        let run = &mut runs[random.below(2) as usize];
        let block = &mut run[random.below(3) as usize];
        let byte = match random.below(3) {
            0 => random.below(8),
            _ => random.below(block.len() as u64),
        };
        block[byte as usize] ^= 1 << random.below(8);
        match restore(RULES, runs.iter().map(|run| run.iter().map(Ok::<_, Infallible>)).collect()) {
            Err(_) => refused += 1,
            Ok(mut machine) => {
                taken += 1;
                execute(&mut machine, &Journal::default(), &grant(1_000_001, 60));
                assert!(machine.leases.iter().map(|(id, _)| id).is_sorted());
            }
        }
    }
    assert!(refused > 10 && taken > 10, "{refused} refused, {taken} taken");
}

/// Returns a machine with state of every kind, from fixed commands at fixed locations.
pub fn specimen(journal: &Journal) -> Machine {
    let mut machine = Machine::new(RULES);
    execute(&mut machine, journal, &grant(7, 60));
    execute(&mut machine, journal, &put("foo", "one", 0));
    execute(&mut machine, journal, &put("foobar", "two", 7));
    execute(&mut machine, journal, &put("foo", "three", 0));
    execute(&mut machine, journal, &delete("foobar"));
    execute(&mut machine, journal, &put("foobaz", "", 7));
    let member =
        mainstay_machine::Member { id: 3, peer_urls: vec!["http://a:2380".to_owned()], ..Default::default() };
    machine.members.by_id.insert(3, member);
    machine.members.removed.insert(4);
    machine.members.cluster_version = "3.7.0".to_owned();
    machine
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// The specimen in format 4. This text never changes, because every later version must be able to read it.
/// The hash at its end never changes either, because members of different versions compare their hashes.
const GOLDEN: [&str; 3] = [
    "0104000601060105010e78000001257b226964223a332c227065657255524c73223a5b22687474703a2f2f613a32333830225d7d010405332e372e300000014d267fc3ba64f23900010000",
    "02440003666f6f02013703e9b2942ac9026405bc51441ce40303626172030e4e03a3b3d85203022405017a060e",
    "0305",
];

/// The specimen in format 3, with a hash of another function.
const GOLDEN_3: [&str; 3] = [
    "0103000601060105010e78000001257b226964223a332c227065657255524c73223a5b22687474703a2f2f613a32333830225d7d010405332e372e300000014d267fc3ba64f23900010000",
    "02440003666f6f02013703e9b2942ac9026405bc51441ce40303626172030e4e03a3b3d85203022405017a060e",
    "0305",
];

/// The specimen in format 2, without users and roles.
const GOLDEN_2: [&str; 3] = [
    "0102000601060105010e78000001257b226964223a332c227065657255524c73223a5b22687474703a2f2f613a32333830225d7d010405332e372e300000014d267fc3ba64f239",
    "02440003666f6f02013703e9b2942ac9026405bc51441ce40303626172030e4e03a3b3d85203022405017a060e",
    "0305",
];

/// The specimen in format 1, without a hash.
const GOLDEN_1: [&str; 3] = [
    "0101000601060105010e78000001257b226964223a332c227065657255524c73223a5b22687474703a2f2f613a32333830225d7d010405332e372e300000",
    "02440003666f6f02013703e9b2942ac9026405bc51441ce40303626172030e4e03a3b3d85203022405017a060e",
    "0305",
];

#[test]
fn old_images_open_for_ever() {
    let mut machine = specimen(&Journal::default());
    let written: Vec<String> = run(&mut machine, Revision(0)).iter().map(|block| hex(block)).collect();
    assert_eq!(written, GOLDEN);
    let golden: Blocks = GOLDEN.iter().map(|block| unhex(block)).collect();
    let mut back = restored(&[golden]).unwrap();
    assert_same(&mut machine, &mut back);
    for golden in [GOLDEN_1, GOLDEN_2, GOLDEN_3] {
        let golden: Blocks = golden.iter().map(|block| unhex(block)).collect();
        let mut back = restored(&[golden]).unwrap();
        assert_same_but_hash(&mut machine, &mut back);
        assert_eq!(back.state_hash(), None);
        // An unknown hash stays unknown, also after further entries.
        execute(&mut back, &Journal::default(), &put("k", "v", 0));
        assert_eq!((back.state_hash(), back.state_hashes(Index(0)).count()), (None, 0));
        let again = restored(&[run(&mut back, Revision(0))]).unwrap();
        assert_eq!(again.state_hash(), None);
    }
}

#[test]
fn a_single_version_takes_few_bytes() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let mut random = Random::new(1);
    for _ in 0..5000 {
        let key = format!("{:024x}", u128::from(random.number()) << 32);
        execute(&mut machine, &journal, &put(&key, "value", 0));
    }
    let bytes: usize = run(&mut machine, Revision(0)).iter().map(Vec::len).sum();
    assert!(bytes < 5000 * (25 + 22), "{} bytes a key", bytes / 5000);
}

fn damage_base() -> (Machine, Blocks, Blocks) {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let mut commands = Commands::new(3, 40);
    let mut step = |machine: &mut Machine| {
        for _ in 0..150 {
            let placed = commands.next(machine, &journal);
            apply(machine, &placed, &journal, true);
        }
    };
    step(&mut machine);
    let base = run(&mut machine, Revision(0));
    let saved = machine.store.current_revision();
    step(&mut machine);
    let delta = run(&mut machine, saved);
    (machine, base, delta)
}

#[test]
fn every_truncation_is_refused() {
    let (_, base, delta) = damage_base();
    assert!(restored(&[base.clone(), delta.clone()]).is_ok());
    for (at, block) in base.iter().enumerate() {
        let mut missing = base.clone();
        missing.remove(at);
        assert!(restored(&[missing]).is_err());
        assert!(restored(&[base[..at].to_vec()]).is_err());
        for len in 0..block.len() {
            let mut cut = base.clone();
            cut[at].truncate(len);
            assert!(restored(&[cut.clone()]).is_err(), "block {at} cut to {len}");
            assert!(restored(&[cut, delta.clone()]).is_err(), "block {at} cut to {len}, merged");
        }
        let mut longer = base.clone();
        longer[at].push(0);
        assert!(restored(&[longer]).is_err(), "block {at} with a byte more");
    }
    let mut twice = base.clone();
    twice.push(base[base.len() - 1].clone());
    assert!(restored(&[twice]).is_err());
    let mut foreign = base.clone();
    foreign[0] = delta[0].clone();
    let expected = RestoreError::Malformed(Malformed("a version outside the revisions of its run"));
    assert_eq!(restored(&[base.clone(), foreign]).err(), Some(expected));
    assert!(restored(std::slice::from_ref(&delta)).is_err(), "a delta alone");
    assert!(restored(&[delta.clone(), base.clone()]).is_err(), "in the wrong order");
    assert!(restored(&[base.clone(), base]).is_err(), "two bases");
    assert_eq!(restored(&[]).err(), Some(RestoreError::Malformed(Malformed("a checkpoint without runs"))));
}

#[test]
fn no_damage_makes_it_panic() {
    let (_, base, delta) = damage_base();
    let mut random = Random::new(11);
    let (mut refused, mut taken) = (0u32, 0u32);
    for round in 0..20_000 {
        let mut runs = if round % 2 == 0 { vec![base.clone()] } else { vec![base.clone(), delta.clone()] };
        let which = random.below(runs.len() as u64) as usize;
        let run = &mut runs[which];
        for _ in 0..1 + random.below(3) {
            let at = random.below(run.len() as u64) as usize;
            let block = &mut run[at];
            let byte = random.below(block.len() as u64) as usize;
            block[byte] ^= match random.below(3) {
                0 => 0xff,
                _ => 1 << random.below(8),
            };
        }
        match restored(&runs) {
            Err(_) => refused += 1,
            // A changed letter of a key gives another valid key, which only the checksum around the block can
            // detect. Every machine that is restored must work.
            Ok(mut machine) => {
                taken += 1;
                let journal = Journal::default();
                execute(&mut machine, &journal, &put("k", "v", 0));
                execute(&mut machine, &journal, &delete("/"));
                let revision = machine.store.current_revision();
                machine.store.compact(revision).unwrap();
                while !machine.compact_step(100) {}
                let ids: Vec<LeaseId> = machine.leases.iter().map(|(id, _)| id).collect();
                for id in ids {
                    let checkpoint = LeaseCheckpoint { id: id.0, remaining_ttl: 5 };
                    let checkpoint = LeaseCheckpointRequest { checkpoints: vec![checkpoint] };
                    let request =
                        InternalRaftRequest { lease_checkpoint: Some(checkpoint), ..Default::default() };
                    execute(&mut machine, &journal, &request);
                    let revoke = LeaseRevokeRequest { id: id.0 };
                    let request = InternalRaftRequest { lease_revoke: Some(revoke), ..Default::default() };
                    execute(&mut machine, &journal, &request);
                }
            }
        }
    }
    assert!(refused > 1000 && taken > 1000, "{refused} refused, {taken} taken");
}

#[test]
fn a_read_error_is_passed_on() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    execute(&mut machine, &journal, &put("k", "v", 0));
    let base = run(&mut machine, Revision(0));
    for at in 0..base.len() {
        let blocks = base.iter().enumerate().map(|(n, block)| if n == at { Err("torn") } else { Ok(block) });
        assert_eq!(restore(RULES, vec![blocks]).err(), Some(RestoreError::Read("torn")));
    }
}

#[test]
fn writers_go_to_other_threads() {
    fn is_send<T: Send + 'static>() {}
    is_send::<RunWriter>();
    is_send::<mainstay_machine::snapshot::SnapshotWriter>();
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    execute(&mut machine, &journal, &put("before", "v", 0));
    let (view, head) = (machine.store.publish(), machine.head());
    let blocks: Blocks = std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            let mut writer = RunWriter::new(view, head, Revision(0));
            std::iter::from_fn(|| writer.next_block().expect("a held view has everything")).collect()
        });
        // Entries applied while the run is written are not in the run.
        execute(&mut machine, &journal, &put("meanwhile", "v", 0));
        writing.join().unwrap()
    });
    let back = restored(&[blocks]).unwrap();
    assert_eq!((back.store.stats().keys, back.store.current_revision()), (1, Revision(2)));
}

/// Batches that the two threads of a start exchange are small, even if the keys are long.
#[test]
fn pieces_of_long_keys_are_short() {
    let mut machine = Machine::new(RULES);
    let mut write = |key: &[u8]| {
        machine.store.begin().put(key, mvcc::Value::default(), LeaseId::NONE);
    };
    let long = |number: usize| format!("{number:08}").repeat(8 << 10).into_bytes();
    (0..3000).for_each(|_| write(&long(0)));
    (1..40).for_each(|number| write(&long(number)));
    let blocks = run(&mut machine, Revision(0));
    let (reading, mut building) = begin(vec![blocks.iter().map(Ok::<_, Infallible>)]).unwrap();
    let mut most = 0;
    reading
        .read(2048, |mut versions| {
            most = most.max(versions.key_bytes());
            building.take::<Infallible>(&versions).unwrap();
            versions.clear();
            Some(versions)
        })
        .unwrap();
    assert!(most <= 1 << 20, "{most} bytes");
    let mut back = building.finish::<Infallible>(RULES).unwrap();
    assert_eq!(run(&mut back, Revision(0)), blocks);
}

#[test]
fn compressed_values_are_marked_and_an_older_release_refuses_their_runs() {
    let journal = Journal::default();
    let mut machine = Machine::new(RULES);
    for index in 1..=20u64 {
        let put = PutRequest {
            key: format!("k{index}").into(),
            value: vec![index as u8; 100 * index as usize].into(),
            ..PutRequest::default()
        };
        let request = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
        let data = Bytes::from(request.encode_to_vec());
        let location = journal.append(&data);
        let placed = Placed { data, location, conf: false };
        apply(&mut machine, &placed, &journal, false);
    }
    let format = |blocks: &Blocks| blocks[0][1];
    assert_eq!(format(&run(&mut machine, Revision(0))), 4);
    assert!(!machine.has_compressed_values());
    let before: u64 = machine.usage().values().map(|usage| usage.bytes).sum();
    assert_eq!(before, machine.usage().values().map(|usage| usage.raw_bytes).sum::<u64>());
    let values: Vec<_> = {
        let view = machine.store.publish();
        let snapshot = view.snapshot();
        let versions = snapshot.histories().map(|version| (version.id(), version.value()));
        versions.collect()
    };
    // Every second value is moved to segment 77, compressed to a third.
    let mut stored = 0;
    for (n, (id, value)) in values.iter().enumerate().filter(|(n, _)| n % 2 == 0) {
        let to = mvcc::Location::compressed(77, 4096 + 8 * n as u32, value.len / 3, value.len).unwrap();
        assert!(machine.relocate(*id, value.location, to));
        stored += to.stored_bytes(value.len);
    }
    let usage = machine.usage()[&77];
    assert_eq!((usage.values, usage.bytes, usage.raw_bytes), (10, stored, 0));
    assert!(machine.has_compressed_values());
    let blocks = run(&mut machine, Revision(0));
    assert_eq!(format(&blocks), 5);
    let mut again = restored(&[blocks]).unwrap();
    let in_use = |machine: &Machine| -> Vec<_> {
        machine.usage().iter().filter(|(_, usage)| usage.values > 0).map(|(id, it)| (*id, *it)).collect()
    };
    assert_eq!(in_use(&again), in_use(&machine));
    assert_same(&mut again, &mut machine);
    let view = again.store.publish();
    for (id, value) in &values {
        let found = view.snapshot().version_at(*id).unwrap().value();
        assert_eq!((found.len, found.crc), (value.len, value.crc));
        assert_eq!(found.location.is_compressed(), found.location.segment() == 77);
        assert_eq!(found.location, machine.store.snapshot().version_at(*id).unwrap().location());
    }
    // A head that says that nothing is compressed is a bug, which stops the member.
    let mut head = machine.head();
    head.compressed_values = false;
    let mut writer = RunWriter::new(machine.store.publish(), head, Revision(0));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        while writer.next_block().is_ok_and(|b| b.is_some()) {}
    }));
    assert!(panicked.is_err());
}
