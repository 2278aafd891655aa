use std::path::Path;
use std::sync::mpsc::channel;

use api::etcdserverpb::{InternalRaftRequest, PutRequest};
use bytes::Bytes;
use disk::{Disk, MemDisk};
use machine::{Command, Machine, Rules};
use mvcc::Location;
use prost::Message as _;
use telemetry::metrics::MetricsDetail;

use numbers::{ChangeId, ClusterId, MemberId};

use super::level::VERSION_BYTES_MIN;
use super::moving::MOVED_BYTES;
use super::*;
use crate::terms::Terms;
use crate::values::LogValues;

/// Returns the interfaces of a member with this log and this newest view, and the events that it is sent.
fn surface(log: &log::Log, view: Arc<View>, compresses: bool) -> (Surface, Receiver<Event>) {
    let (sender, told) = channel();
    let member = Surface {
        identity: Identity { member_id: 2, cluster_id: 1 },
        values: log.values(),
        segment_bytes: log.segment_bytes(),
        shares_file_system: true,
        newest: Box::new(move || Arc::clone(&view)),
        tell: Box::new(move |event| sender.send(event).expect("the test waits")),
        compresses,
        cache: None,
        metrics: Arc::new(Metrics::new(&[], MetricsDetail::Basic)),
    };
    (member, told)
}

fn level(from: i64, to: i64, file_bytes: u64) -> Level {
    let (from, to) = (Revision(from), Revision(to));
    let name = Level::name(from, to, Index(7), &[]);
    Level { from, to, run: Run { name, file_bytes, total_crc: 0 }, companions: None }
}

#[test]
fn names_say_what_runs_cover() {
    let level = level(0, 0x1234, 9);
    assert_eq!(Level::of(level.run.clone()).as_ref(), Some(&level));
    let again = Level::name(Revision(0), Revision(0x1234), Index(7), std::slice::from_ref(&level));
    assert_ne!(again, level.run.name);
    let run = Run { name: again, file_bytes: 9, total_crc: 0 };
    assert_eq!(Level::of(run).map(|level| (level.from, level.to)), Some((Revision(0), Revision(0x1234))));
    assert_eq!(Level::of(Run { name: "x.run".to_owned(), file_bytes: 0, total_crc: 0 }), None);
}

#[test]
fn pauses_end_when_the_log_grows_much_beside_a_checkpoint() {
    let micros = |grown| pause_of_checkpoint(Duration::from_millis(1), grown, 1 << 20).as_micros();
    let mib = |mib: u64| mib << 20;
    assert_eq!([0, 4, 5, 6, 7, 8, 100].map(|n| micros(mib(n))), [2000, 2000, 1500, 1000, 500, 0, 0]);
    assert_eq!(pause_of_checkpoint(Duration::from_secs(9), 0, 1 << 20), PAUSE_MAX);
}

#[test]
fn each_version_is_written_a_few_times() {
    // Versions with short keys and with long keys.
    for version_bytes in [VERSION_BYTES_MIN, 20, VERSION_BYTES, 500] {
        for (checkpoints, times) in [(10, 2.4), (50, 3.6), (200, 4.4)] {
            let (mut levels, mut base_version_bytes) = (Vec::<Level>::new(), None);
            let (mut revision, mut written) = (1, 0);
            for _ in 0..checkpoints {
                revision += 50_000;
                let versions = revision as u64;
                let sizes = (versions, base_version_bytes);
                let (from, kept) = Checkpointer::plan(&levels, Revision(revision), sizes, Revision(0));
                if from == Revision(0) {
                    base_version_bytes = Some(version_bytes);
                }
                let bytes = (Revision(revision) - from) as u64 * version_bytes;
                written += bytes;
                levels.truncate(kept);
                levels.push(level(from.0, revision, bytes));
                assert!(levels.len() <= RUNS_MAX);
                assert!(levels[0].from == Revision(0) && levels.windows(2).all(|w| w[0].to == w[1].from));
            }
            let each = written as f64 / (checkpoints * 50_000 * version_bytes) as f64;
            assert!(each < times, "{checkpoints} of {version_bytes} bytes a version: {each}");
        }
    }
}

#[test]
fn a_run_without_versions_is_replaced() {
    let base = level(0, 1000, 40 << 10);
    let plan = |levels: &[Level], revision, from_min| {
        Checkpointer::plan(levels, Revision(revision), (100_000, None), Revision(from_min))
    };
    let empty = [base.clone(), level(1000, 1000, 1 << 20)];
    assert_eq!(plan(&empty, 1000, 0), (Revision(1000), 1));
    assert_eq!(plan(&empty, 1001, 0), (Revision(1000), 1));
    assert_eq!(plan(&empty, 1001, 1001), (Revision(0), 0), "the tombstones after it were removed");
    let filled = [base, level(1000, 1001, 1 << 20)];
    assert_eq!(plan(&filled, 1001, 0), (Revision(1001), 2));
}

/// Executes an order for a checkpoint and returns the result that the core receives.
fn checkpointed(
    checkpointer: &mut Checkpointer,
    told: &Receiver<Event>,
    machine: &mut Machine,
    mut after_each_step: impl FnMut(),
) -> Result<Checkpointed, CheckpointError> {
    let state = AsOf::from(machine.store.publish());
    let head = Box::new(machine.head());
    assert!(checkpointer.take(Order::Checkpoint { head, state, whole: false, terms: Terms::default() }));
    loop {
        after_each_step();
        if let Ok(Event::Checkpointed(result)) = told.try_recv() {
            after_each_step();
            return result;
        }
        checkpointer.step();
    }
}

#[test]
fn a_checkpoint_that_a_restart_may_find_keeps_its_runs_whichever_sync_failed() {
    let (mut failures, mut unsettled) = (0, 0);
    for nth in 1..12 {
        let memory = MemDisk::new(nth);
        let disk: Arc<dyn Disk> = Arc::new(memory.clone());
        let options = log::Options { by_hand: true, ..log::Options::new("/log", ClusterId(1), MemberId(2)) };
        let (log, _) = log::Log::open(options, Arc::clone(&disk), Index(1), &mut |_| {}, Box::new(|_| {}))
            .expect("opens");
        let store = CheckpointStore::open(Arc::clone(&disk), "/checkpoint").expect("opens");
        disk.create_dir_all(Path::new("/member")).expect("a disk in memory");
        let (note, _) = Note::open(&disk, Path::new("/member"));
        let mut machine = Machine::new(Rules { learners_max: 1 });
        let view = machine.store.publish();
        let (member, told) = surface(&log, view, false);
        let mut checkpointer = Checkpointer::new(member, store.clone(), Vec::new(), note);
        let values = LogValues::new(log.values());
        let put = |machine: &mut Machine, index: u64| {
            let put = PutRequest { key: format!("k{index}").into(), ..PutRequest::default() };
            let request = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
            let data = Bytes::from(request.encode_to_vec());
            let location = Location::new(1, 4096);
            let command = Command { index: Index(index), term: Term(1), data: &data, location };
            machine.apply(command, &values, false).expect("it can be applied");
        };
        // Asserts that the checkpoint that a restart would find is complete. Returns its applied index.
        let is_whole = || {
            let manifest = store.load().expect("the disk answers").expect("there is a checkpoint");
            for run in &manifest.runs {
                store.read(run).unwrap_or_else(|error| panic!("sync {nth}: {error}"));
            }
            manifest.applied_index
        };
        put(&mut machine, 1);
        checkpointed(&mut checkpointer, &told, &mut machine, || ()).expect("the disk is good");
        put(&mut machine, 2);
        // Two failures are injected, because a commit repeats a failed sync of the directory once.
        memory.fail_next(disk::Operation::Sync, nth, disk::Fault::Once(5));
        memory.fail_next(disk::Operation::Sync, nth + 2, disk::Fault::Once(5));
        let failed = checkpointed(&mut checkpointer, &told, &mut machine, || ()).is_err();
        failures += u32::from(failed);
        unsettled += u32::from(checkpointer.unsettled.is_some());
        memory.heal();
        is_whole();
        put(&mut machine, 3);
        let last = checkpointed(&mut checkpointer, &told, &mut machine, || {
            is_whole();
        });
        assert_eq!(last.map(|done| done.applied_index).ok(), Some(Index(3)), "sync {nth}");
        assert_eq!(is_whole(), Index(3));
    }
    assert!(failures >= 3, "the run, the manifest and the directory are synced: {failures}");
    assert!(unsettled > 0, "no commit failed half-way twice");
}

#[test]
fn portions_of_moved_values_are_short_however_small_the_values_are() {
    const VALUES: usize = 20_000;
    let options = log::Options {
        by_hand: true,
        segment_bytes: 8 << 20,
        ..log::Options::new("/log", ClusterId(1), MemberId(2))
    };
    let (synced, places) = channel();
    let on_event = Box::new(move |event| {
        if let log::LogEvent::Synced(told) = event {
            synced.send(told.locations).expect("the test waits");
        }
    });
    let disk = Arc::new(MemDisk::new(1));
    let (mut log, _) = log::Log::open(options, disk.clone(), Index(1), &mut |_| {}, on_event).expect("opens");
    let request = |n: usize| {
        let put = PutRequest { key: format!("k{n}").into(), value: "v".into(), ..PutRequest::default() };
        InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() }
    };
    let entry = |n: usize| log::Entry {
        term: Term(1),
        index: Index(n as u64 + 1),
        entry_type: 0,
        data: Bytes::from(request(n).encode_to_vec()),
    };
    let entries = (0..VALUES).map(entry).collect();
    log.append(log::Batch { entries, ..log::Batch::default() }).expect("there is room");
    log.turn();
    let places = places.recv().expect("is synced");
    let mut machine = Machine::new(Rules { learners_max: 1 });
    let values = LogValues::new(log.values());
    for (n, place) in places.iter().enumerate() {
        let log::Entry { term, index, data, .. } = entry(n);
        let command = Command { index, term, data: &data, location: place.location };
        machine.apply(command, &values, false).expect("it can be applied");
    }
    let view = machine.store.publish();
    let through = view.snapshot().current_revision();
    let (member, told) = surface(&log, view, false);
    let mut segments: Vec<u32> = places.iter().map(|place| place.location.segment()).collect();
    segments.dedup();
    let portion_bytes = 1 << 20;
    let behind = ChangeId::end_of(Revision(0));
    let segments = segments.into_iter().collect();
    let mut moving = Moving {
        through,
        segments,
        portion_bytes,
        haste: Haste::AtOnce,
        values,
        behind,
        compressor: None,
        moved: None,
    };
    let mut moved = 0;
    while moving.step(&member) {
        if let Ok(Event::Relocate(portion, done)) = told.try_recv() {
            assert!(portion.len() <= portion_bytes / MOVED_BYTES, "{} at once", portion.len());
            moved += portion.len();
            done.send(()).expect("is waited for");
        }
    }
    assert_eq!(moved, VALUES);
}

#[test]
fn a_member_that_stops_does_not_wait_until_segments_are_judged() {
    let memory = MemDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(memory.clone());
    let options = log::Options { by_hand: true, ..log::Options::new("/log", ClusterId(1), MemberId(2)) };
    let (log, _) = log::Log::open(options, Arc::clone(&disk), Index(1), &mut |_| {}, Box::new(|_| {}))
        .expect("the disk is good");
    let store = CheckpointStore::open(Arc::clone(&disk), "/checkpoint").expect("the disk is good");
    disk.create_dir_all(Path::new("/member")).expect("a disk in memory");
    let (note, _) = Note::open(&disk, Path::new("/member"));
    let view = Machine::new(Rules { learners_max: 1 }).store.publish();
    let (member, told) = surface(&log, view, true);
    let checkpointer = Checkpointer::new(member, store, Vec::new(), note);
    let (orders, queue) = channel();
    let compress = || Order::Compress { segments: Vec::new(), portion_bytes: 1 };
    orders.send(compress()).expect("there is room");
    // What is dropped meanwhile ends nothing; another long order ends the first, and the stop ends that.
    orders.send(Order::Drop(Box::new(()))).expect("there is room");
    orders.send(compress()).expect("there is room");
    orders.send(Order::Stop).expect("there is room");
    checkpointer.run(&queue);
    let ended: Vec<bool> = told
        .try_iter()
        .filter_map(|event| match event {
            Event::Relocated { is_whole } => Some(is_whole),
            _ => None,
        })
        .collect();
    assert_eq!(ended, [false, false]);
    assert!(queue.try_recv().is_err(), "all orders were taken");
}
