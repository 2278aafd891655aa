//! Tests of checkpoints whose base is in blocks: written, restored with a memory budget and without, and damaged.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};

use api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest, PutRequest,
};
use disk::{Disk, Fault, MemDisk, Operation};
use log::checkpoint::{Manifest, Run};
use machine::{AsOf, Command, Machine, Rules};
use mvcc::{LoadedVersion, Location};
use numbers::{ClusterId, Index, MemberId, Revision, Term};
use prost::Message as _;
use telemetry::metrics::{Metrics, MetricsDetail};

use super::*;
use crate::checkpointer::{CheckpointError, Checkpointed, Checkpointer, Event, Order, Surface};
use crate::error::{DataDirError, Inconsistency};
use crate::identity::Identity;
use crate::nospace::Note;
use crate::opening::{InBlocks, restore};
use crate::terms::Terms;
use crate::values::LogValues;

const RULES: Rules = Rules { learners_max: 1 };
const DIR: &str = "/member/checkpoint";
const OWN: Identity = Identity { member_id: 2, cluster_id: 1 };

/// A machine whose checkpoints are written by a checkpointer, to a disk in memory.
struct World {
    memory: MemDisk,
    store: CheckpointStore,
    log: log::Log,
    machine: Machine,
    checkpointer: Checkpointer,
    told: Receiver<Event>,
    /// Damage of which the last restore has warned.
    warned: RefCell<Option<String>>,
}

impl World {
    fn new(budget: Option<u64>) -> World {
        World::on(MemDisk::new(7), Machine::new(RULES), Vec::new(), budget, OWN)
    }

    fn on(
        memory: MemDisk,
        machine: Machine,
        levels: Vec<Level>,
        budget: Option<u64>,
        identity: Identity,
    ) -> World {
        let disk: Arc<dyn Disk> = Arc::new(memory.clone());
        disk.create_dir_all(Path::new("/member")).expect("a disk in memory");
        let options = log::Options { by_hand: true, ..log::Options::new("/log", ClusterId(1), MemberId(2)) };
        let (log, _) = log::Log::open(options, Arc::clone(&disk), Index(1), &mut |_| {}, Box::new(|_| {}))
            .expect("opens");
        let store = CheckpointStore::open(Arc::clone(&disk), DIR).expect("opens");
        let (note, _) = Note::open(&disk, Path::new("/member"));
        let view = Machine::new(RULES).store.publish();
        let (sender, told) = channel();
        let member = Surface {
            identity,
            values: log.values(),
            segment_bytes: log.segment_bytes(),
            shares_file_system: true,
            newest: Box::new(move || Arc::clone(&view)),
            tell: Box::new(move |event| sender.send(event).expect("the test waits")),
            compresses: false,
            cache: budget.map(Cache::new),
            metrics: Arc::new(Metrics::new(&[], MetricsDetail::Basic)),
        };
        let checkpointer = Checkpointer::new(member, store.clone(), levels, note);
        World { memory, store, log, machine, checkpointer, told, warned: RefCell::default() }
    }

    fn apply(&mut self, request: &InternalRaftRequest) {
        let data = Bytes::from(request.encode_to_vec());
        let index = self.machine.applied_index.next();
        let location = Location::new(1 + (index.0 / 100) as u32, 4096 + 64 * (index.0 % 100) as u32);
        let command = Command { index, term: Term(1), data: &data, location };
        let values = LogValues::new(self.log.values());
        self.machine.apply(command, &values, false).expect("it can be applied");
    }

    fn put(&mut self, key: &str, value: &str, lease: i64) {
        let put = PutRequest {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            lease,
            ..PutRequest::default()
        };
        self.apply(&InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() });
    }

    fn delete(&mut self, key: &str) {
        let delete = DeleteRangeRequest { key: key.to_owned().into(), ..DeleteRangeRequest::default() };
        self.apply(&InternalRaftRequest { delete_range: Some(delete), ..InternalRaftRequest::default() });
    }

    /// Compacts at the current revision and removes what that made unreadable.
    fn compact(&mut self) {
        let revision = self.machine.store.current_revision().0;
        let compaction = CompactionRequest { revision, physical: false };
        self.apply(&InternalRaftRequest { compaction: Some(compaction), ..InternalRaftRequest::default() });
        while !self.machine.compact_step(1000) {}
    }

    /// Adds keys of which most are settled, some are leased, and some were written more than once.
    fn fill(&mut self, keys: u32) {
        let grant = LeaseGrantRequest { id: 7, ttl: 60 };
        self.apply(&InternalRaftRequest { lease_grant: Some(grant), ..InternalRaftRequest::default() });
        for n in 0..keys {
            self.put(&format!("key/{n:05}"), if n % 3 == 0 { "" } else { "value" }, 0);
        }
        self.put("leased", "x", 7);
        self.put("history", "1", 0);
        self.compact();
        self.put("history", "2", 0);
        self.put("new", "", 0);
    }

    fn checkpoint(&mut self, whole: bool) -> Result<Checkpointed, CheckpointError> {
        let state = AsOf::from(self.machine.store.publish());
        let head = Box::new(self.machine.head());
        assert!(self.checkpointer.take(Order::Checkpoint { head, state, whole, terms: Terms::default() }));
        loop {
            if let Ok(Event::Checkpointed(result)) = self.told.try_recv() {
                return result;
            }
            self.checkpointer.step();
        }
    }

    fn manifest(&self) -> Manifest {
        self.store.load().expect("readable").expect("there is one")
    }

    fn restored(&self, budget: Option<u64>, threads: bool) -> Result<(Machine, Vec<Level>), DataDirError> {
        let cache = budget.map(Cache::new);
        let manifest = self.store.load()?;
        self.warned.replace(None);
        let warn = |error: &DataDirError| drop(self.warned.replace(Some(error.to_string())));
        let in_blocks = cache.as_ref().map(|cache| InBlocks { cache, warn: &warn });
        restore(RULES, &self.store, manifest.as_ref(), Path::new("/member"), &OWN, threads, in_blocks)
    }

    /// Names of the files in the directory, except the reserve.
    fn names(&self) -> Vec<String> {
        let mut names = self.memory.list(Path::new(DIR)).expect("readable");
        names.retain(|name| !name.starts_with("reserve"));
        names.sort();
        names
    }
}

/// Everything that a machine contains, as far as it can be read. Reads all blocks.
fn contents(machine: &mut Machine) -> Vec<String> {
    let view = machine.store.publish();
    let snapshot = view.snapshot();
    let mut found = vec![format!(
        "{:?}",
        (
            (
                snapshot.current_revision(),
                snapshot.compact_revision(),
                snapshot.live_keys(),
                snapshot.versions()
            ),
            (machine.applied_index, machine.applied_term, machine.in_use_bytes(), machine.usage()),
            (machine.state_hash(), machine.leases.iter().collect::<Vec<_>>()),
        )
    )];
    found.extend(snapshot.histories().map(|version| format!("{:?}", LoadedVersion::from(version))));
    let through = snapshot.current_revision();
    let changes = snapshot.written(Revision(1), through);
    found.extend(changes.map(|version| format!("{:?}", LoadedVersion::from(version))));
    found
}

#[test]
fn a_base_in_blocks_is_restored_with_a_budget_and_without() {
    let mut world = World::new(Some(1 << 20));
    world.fill(600);
    let done = world.checkpoint(false).expect("the disk is good");
    let base = done.base.expect("something was compacted");
    assert!(base.blocks().key_blocks() > 8 && base.cache().fault().is_none());
    let manifest = world.manifest();
    assert_eq!(manifest.runs.len(), 3);
    assert!(manifest.runs[1].name.ends_with("-changes.run") && manifest.runs[2].name.ends_with("-top.run"));
    assert_eq!(done.bytes, manifest.runs.iter().map(|run| run.file_bytes).sum::<u64>());
    assert_eq!(world.names().len(), 4);
    for round in 0..4 {
        let mut expected = contents(&mut world.restored(None, false).expect("is whole").0);
        assert!(expected.len() > 1000);
        for threads in [false, true] {
            let (mut machine, levels) = world.restored(Some(1 << 20), threads).expect("is whole");
            assert_eq!(levels.len() > 1, round > 0);
            assert!(levels[0].companions.is_some());
            let in_blocks = Arc::clone(machine.store.base().expect("it has a base"));
            assert_eq!(in_blocks.cache().loads(), 0, "no block is decoded before somebody needs it");
            assert_eq!(contents(&mut machine), expected);
            assert!(in_blocks.cache().loads() > 5);
            assert_eq!(machine.store.publish().fault(), None);
        }
        expected.clear();
        // The next checkpoint has a delta run over some of the blocks.
        world.put(&format!("key/{:05}", 100 * round), "later", 0);
        world.put(&format!("key/{:05}x", 50 * round), "between", 7);
        world.delete(&format!("key/{:05}", 100 * round + 1));
        let done = world.checkpoint(false).expect("the disk is good");
        assert!(done.base.is_none() && !done.whole);
    }
    // The base that the core has received can be adopted, and reads from the files under their old names.
    assert_eq!(base.blocks().settled(), Revision(world.machine.store.compact_revision().0 - 1));
    let before = contents(&mut world.machine);
    let moment = world.machine.store.moment();
    world.machine.store.adopt(base, &moment);
    while !world.machine.store.adopt_step(10).done {}
    world.checkpoint(true).expect("the disk is good");
    assert_eq!(contents(&mut world.machine), before);
}

#[test]
fn a_budget_can_be_switched_on_and_off() {
    let mut world = World::new(None);
    world.fill(300);
    world.checkpoint(false).expect("the disk is good");
    assert_eq!(world.manifest().runs.len(), 1);
    let expected = contents(&mut world.machine);
    // A base that is not in blocks is restored whole.
    let (mut machine, levels) = world.restored(Some(1), true).expect("is whole");
    assert!(machine.store.base().is_none() && levels[0].companions.is_none());
    assert_eq!(contents(&mut machine), expected);
    let mut world = World::on(world.memory.clone(), machine, levels, Some(1), OWN);
    world.put("more", "", 0);
    assert!(world.checkpoint(true).expect("the disk is good").base.is_some());
    assert_eq!(world.manifest().runs.len(), 3);
    // Without a budget, the next checkpoint replaces the base by one that older releases read, too.
    let (machine, levels) = world.restored(None, true).expect("is whole");
    assert!(machine.store.base().is_none() && levels[0].companions.is_some());
    let mut world = World::on(world.memory.clone(), machine, levels, None, OWN);
    world.put("still more", "", 0);
    let done = world.checkpoint(false).expect("the disk is good");
    assert!(done.base.is_none() && done.whole);
    assert_eq!((world.manifest().runs.len(), world.names().len()), (1, 2));
    let (mut machine, levels) = world.restored(Some(1), false).expect("is whole");
    assert!(machine.store.base().is_none());
    assert_eq!(contents(&mut machine), contents(&mut world.machine));
    let mut world = World::on(world.memory.clone(), machine, levels, None, OWN);
    world.checkpoint(true).expect("the disk is good");
    assert_eq!((world.manifest().runs.len(), world.names().len()), (1, 2));
}

#[test]
fn without_a_compaction_nothing_is_settled_and_a_base_has_one_file() {
    let mut world = World::new(Some(1));
    world.put("key", "value", 0);
    assert!(world.checkpoint(false).expect("the disk is good").base.is_none());
    assert_eq!(world.manifest().runs.len(), 1);
    assert!(world.restored(Some(1), false).expect("is whole").0.store.base().is_none());
}

#[test]
fn every_flipped_byte_is_refused_or_reported_as_a_fault() {
    let mut world = World::new(Some(1 << 20));
    world.fill(130);
    world.checkpoint(false).expect("the disk is good");
    let expected = contents(&mut world.restored(None, false).expect("is whole").0);
    let (mut refused, mut faults, mut read_whole) = (0, 0, 0);
    for (at, run) in world.manifest().runs.iter().enumerate() {
        let path = PathBuf::from(DIR).join(&run.name);
        let good = world.memory.contents(&path).expect("there is one");
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1 << (byte % 8);
            world.memory.plant(&path, bad);
            let what = format!("byte {byte} of {}", run.name);
            match world.restored(Some(1 << 20), false) {
                Err(error) => {
                    assert!(
                        at == 0 && error.is_damage() && error.to_string().contains(&run.name),
                        "{what}: {error}"
                    );
                    refused += 1;
                }
                Ok((mut machine, levels)) => {
                    let found = contents(&mut machine);
                    if let Some(warned) = world.warned.take() {
                        // The base run is whole, and is read without the others.
                        assert!(at > 0 && warned.contains(&run.name), "{what}: {warned}");
                        assert!(machine.store.base().is_none() && levels[0].companions.is_none());
                        assert_eq!(found, expected, "{what}");
                        read_whole += 1;
                        continue;
                    }
                    let view = machine.store.publish();
                    let fault = view.fault().unwrap_or_else(|| panic!("{what} is not noticed"));
                    assert!(fault.contains(&run.name) && fault.contains("offset"), "{what}: {fault}");
                    assert_eq!(fault.contains("without --memory-budget"), at == 1, "{what}: {fault}");
                    faults += 1;
                }
            }
            // Without a budget, only the run is read.
            match world.restored(None, false) {
                Err(error) => assert!(at == 0 && error.is_damage(), "{what}: {error}"),
                Ok((mut machine, _)) => {
                    assert!(at > 0, "{what} is not noticed");
                    if byte % 100 == 0 {
                        assert_eq!(contents(&mut machine), expected);
                    }
                }
            }
        }
        world.memory.plant(&path, good);
    }
    assert!(refused > 200 && faults > 1000 && read_whole > 200, "{refused}, {faults}, {read_whole}");
}

#[test]
fn files_that_are_cut_missing_or_those_of_another_base_are_refused() {
    let mut world = World::new(Some(1 << 20));
    world.fill(130);
    world.checkpoint(false).expect("the disk is good");
    let manifest = world.manifest();
    let paths: Vec<PathBuf> = manifest.runs.iter().map(|run| PathBuf::from(DIR).join(&run.name)).collect();
    let good: Vec<Vec<u8>> =
        paths.iter().map(|path| world.memory.contents(path).expect("there is one")).collect();
    let is_refused = |at: usize, path: &Path| match world.restored(Some(1), false) {
        Err(error) => at == 0 && error.is_damage() && error.to_string().contains(&path.display().to_string()),
        Ok((machine, _)) => {
            let warned = world.warned.take().unwrap_or_default();
            at > 0 && machine.store.base().is_none() && warned.contains(&path.display().to_string())
        }
    };
    for (at, (path, good)) in paths.iter().zip(&good).enumerate() {
        for len in [0, 20, good.len() / 2, good.len() - 1] {
            world.memory.plant(path, good[..len].to_vec());
            assert!(is_refused(at, path), "{} cut to {len}", path.display());
        }
        world.memory.remove(path).expect("it is there");
        assert!(is_refused(at, path), "{} missing", path.display());
        world.memory.plant(path, good.clone());
    }
    // The same files of another base of the same member: with the lengths and checksums of the manifest changed, too,
    // so that each file by itself is whole.
    let mut other = World::new(Some(1 << 20));
    other.fill(131);
    other.checkpoint(false).expect("the disk is good");
    let others = other.manifest();
    for at in 0..3 {
        let theirs =
            other.memory.contents(&PathBuf::from(DIR).join(&others.runs[at].name)).expect("there is one");
        world.store.commit(&manifest).expect("the disk is good");
        world.memory.plant(&paths[at], theirs);
        assert!(is_refused(at, &paths[at]), "file {at}");
        let mut swapped = manifest.clone();
        swapped.runs[at] = Run { name: manifest.runs[at].name.clone(), ..others.runs[at].clone() };
        world.store.commit(&swapped).expect("the disk is good");
        // Another base run is whole by itself, but not the one of the list.
        match world.restored(Some(1), false) {
            Err(error) => assert!(error.is_damage(), "file {at}: {error}"),
            Ok((machine, _)) => {
                assert!(machine.store.base().is_none() && world.warned.take().is_some(), "file {at}");
            }
        }
        world.memory.plant(&paths[at], good[at].clone());
    }
    world.store.commit(&manifest).expect("the disk is good");
    assert!(world.restored(Some(1), false).is_ok());
    // Files of another member.
    let mut foreign = World::on(
        MemDisk::new(7),
        Machine::new(RULES),
        Vec::new(),
        Some(1),
        Identity { member_id: 3, ..OWN },
    );
    foreign.fill(130);
    foreign.checkpoint(false).expect("the disk is good");
    assert!(matches!(foreign.restored(Some(1), false), Err(DataDirError::OtherCheckpoint { .. })));
    // A manifest that names only some of the files, or in another order.
    let names = |order: &[usize]| {
        let runs = order.iter().map(|at| manifest.runs[*at].clone()).collect();
        world.store.commit(&Manifest { runs, ..manifest.clone() }).expect("the disk is good");
        world.restored(Some(1), false)
    };
    assert!(names(&[0]).is_ok_and(|(machine, _)| machine.store.base().is_none()), "restored whole");
    for order in [&[0, 1][..], &[0, 2], &[0, 2, 1], &[1, 0, 2], &[0, 1, 2, 2], &[1], &[2]] {
        let error = names(order).err().unwrap_or_else(|| panic!("{order:?}"));
        assert!(
            matches!(&error, DataDirError::Inconsistent(what) if matches!(**what, Inconsistency::UnknownRun { .. })),
            "{order:?}: {error}"
        );
    }
}

#[test]
fn a_crash_at_any_operation_leaves_the_old_or_the_new_base() {
    let mut found = std::collections::BTreeSet::new();
    for nth in 1.. {
        let mut world = World::new(Some(1 << 20));
        world.fill(70);
        let old = world.checkpoint(false).expect("the disk is good").applied_index;
        world.put("key/00005", "later", 0);
        world.compact();
        let new = world.machine.applied_index;
        world.memory.fail_at(world.memory.ops() + nth, Fault::PowerCut);
        let acknowledged = world.checkpoint(true).is_ok();
        world.memory.crash();
        let (mut machine, levels) = world.restored(Some(1 << 20), false).expect("is whole");
        assert!(machine.applied_index == new || !acknowledged && machine.applied_index == old);
        found.insert(machine.applied_index);
        let whole = contents(&mut world.restored(None, false).expect("is whole").0);
        assert_eq!(contents(&mut machine), whole, "operation {nth}");
        assert_eq!(machine.store.publish().fault(), None);
        // The next checkpoint removes what the failed one has left.
        let mut next = World::on(world.memory.clone(), machine, levels, Some(1 << 20), OWN);
        next.put("key/00006", "later", 0);
        next.checkpoint(true).expect("the disk is good");
        assert_eq!(next.names().len(), 4, "{:?}", next.names());
        if acknowledged {
            break;
        }
    }
    assert_eq!(found.len(), 2);
}

#[test]
fn a_base_that_could_not_be_written_leaves_no_files() {
    let mut failures = 0;
    for nth in 1..200 {
        let mut world = World::new(Some(1 << 20));
        world.fill(130);
        world.checkpoint(false).expect("the disk is good");
        let before = world.names();
        world.put("key/00005", "later", 0);
        world.compact();
        world.memory.fail_next(Operation::Write, nth, Fault::Once(28));
        let outcome = world.checkpoint(true);
        world.memory.heal();
        assert!(world.restored(Some(1 << 20), false).is_ok());
        match outcome {
            Ok(_) => break,
            Err(error) => {
                failures += 1;
                // Without a reserve, there is no file into which the manifest could be written.
                assert!(error.is_full() || error.to_string().contains("MANIFEST.tmp"), "{error}");
                assert_eq!(world.names(), before, "write {nth}");
            }
        }
    }
    assert!(failures > 10, "{failures}");
}

/// After a disk was too full for a base in blocks, the base has one file, which is smaller.
#[test]
fn on_a_full_disk_a_base_has_one_file() {
    let mut world = World::new(Some(1 << 20));
    world.fill(130);
    assert!(world.checkpoint(false).expect("the disk is good").base.is_some());
    world.put("key/00005", "later", 0);
    world.compact();
    // The change file does not fit.
    world.memory.fail_next(Operation::Create, 2, Fault::Once(28));
    assert!(world.checkpoint(true).is_err_and(|error| error.is_full()));
    world.memory.heal();
    let done = world.checkpoint(true).expect("the disk is good");
    assert!(done.whole && done.base.is_none());
    assert_eq!(world.manifest().runs.len(), 1);
    // And again in blocks, once there was space.
    assert!(world.checkpoint(true).expect("the disk is good").base.is_some());
}
