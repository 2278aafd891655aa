//! Power cuts and errors at every operation: acknowledged data exists afterwards, and whatever exists is
//! complete.

use std::collections::BTreeMap;

use disk::{Fault, MemDisk, Operation};
use mainstay_log::{Batch, Entry, HardState, LogEvent, OpenError, Replayed, Reset};
use numbers::{EntryId, Index, MemberId, Term};

use crate::kit::{Opened, entries, entry, open};

/// Expected contents of the log after each batch of the script. A reopened log may have any of these
/// contents.
#[derive(Clone, Default, PartialEq, Debug)]
struct Model {
    entries: BTreeMap<Index, Entry>,
    hard_state: HardState,
    base: EntryId,
}

impl Model {
    fn apply(&mut self, batch: &Batch) {
        if let Some(Reset { index, term }) = batch.reset {
            self.entries.clear();
            self.base = EntryId { index, term };
        }
        for entry in &batch.entries {
            self.entries.split_off(&entry.index);
            self.entries.insert(entry.index, entry.clone());
        }
        self.hard_state = batch.hard_state.unwrap_or(self.hard_state);
    }
}

/// Groups of batches, each group committed together; they cross segments, truncate and reset the log.
fn script() -> Vec<Vec<Batch>> {
    let state = |term, commit| Some(HardState { term: Term(term), vote: MemberId(1), commit: Index(commit) });
    vec![
        vec![Batch { hard_state: state(1, 0), ..Batch::default() }],
        vec![
            entries(1..=3, 1, 700),
            entries(4..=4, 1, 10),
            Batch { hard_state: state(1, 3), ..entries(5..=5, 1, 2000) },
        ],
        vec![entries(6..=12, 1, 900)],
        vec![Batch { hard_state: state(2, 8), ..entries(10..=11, 2, 400) }, entries(12..=14, 2, 1500)],
        vec![entries(15..=30, 2, 1100)],
        vec![Batch {
            reset: Some(Reset { index: Index(40), term: Term(3) }),
            hard_state: state(3, 40),
            ..Batch::default()
        }],
        vec![entries(41..=42, 3, 3000), entries(43..=43, 3, 0)],
        vec![Batch { entries: vec![entry(44, 3, 20_000)], ..Batch::default() }],
        vec![entries(45..=47, 3, 600), Batch { hard_state: state(3, 46), ..Batch::default() }],
    ]
}

/// Runs the script until an operation fails. Releases old segments while it runs. Returns the last
/// acknowledged ticket.
fn run(log: &mut Opened) -> u64 {
    for group in script() {
        for batch in group {
            if log.log.append(batch).is_err() {
                return log.told(|told| told.ticket);
            }
        }
        log.log.turn();
        let sealed: Vec<u32> =
            log.log.segments().iter().filter(|one| one.sealed).map(|one| one.seq).collect();
        if sealed.len() > 2 {
            // Releases only segments that later resets of the script make void, because the checker looks at
            // all other segments.
            let _ = log.log.release(sealed[0]);
        }
    }
    // A segment whose preparation failed once is prepared in a later turn.
    for _ in 0..2 {
        log.log.turn();
    }
    log.told(|told| told.ticket)
}

/// Checks that the log is in a state that a crash may leave: a prefix of the script's records.
fn check(log: &Opened, acknowledged: u64, what: &str) {
    let mut model = Model::default();
    let mut allowed = Vec::new();
    if acknowledged == 0 {
        allowed.push(model.clone());
    }
    let batches: Vec<Batch> = script().concat();
    for (nth, batch) in batches.iter().enumerate() {
        let ticket = nth as u64 + 1;
        // A batch may be cut between its records; the hard states of one group are merged into the last.
        let mut part = model.clone();
        part.apply(&Batch { reset: batch.reset, ..Batch::default() });
        if ticket > acknowledged {
            allowed.push(part.clone());
        }
        for entry in &batch.entries {
            part.apply(&Batch { entries: vec![entry.clone()], ..Batch::default() });
            if ticket > acknowledged {
                allowed.push(part.clone());
            }
        }
        model.apply(batch);
        if ticket >= acknowledged {
            allowed.push(model.clone());
        }
    }
    let mut found = Model {
        hard_state: log.recovered.hard_state,
        base: log.recovered.base,
        entries: log.entries().into_iter().map(|entry| (entry.index, entry)).collect(),
    };
    // Entries in released segments no longer exist, so the comparison begins at the first readable entry. The
    // test of releases checks which entry that is.
    let first = log.recovered.first_index;
    let unstated = HardState::default();
    found.entries = found.entries.split_off(&first);
    let states: Vec<HardState> = allowed.iter().map(|one| one.hard_state).collect();
    assert!(states.contains(&found.hard_state), "{what}: hard state {:?}", found.hard_state);
    found.hard_state = unstated;
    let fits = allowed.iter().any(|one| {
        let mut one = one.clone();
        one.hard_state = unstated;
        one.entries = one.entries.split_off(&first);
        one == found
    });
    let indexes: Vec<Index> = found.entries.keys().copied().collect();
    assert!(fits, "{what}: acknowledged {acknowledged}, found base {:?} entries {indexes:?}", found.base);
    let (from, to) = (first, log.recovered.last_index + 1);
    let read = log.log.entries().read(from, to, u64::MAX).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(read.iter().eq(found.entries.values()), "{what}: read back");
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_acknowledged() {
    let mut repairs = 0;
    let mut cuts = 0;
    for seed in 0..40 {
        for nth in 1.. {
            let what = format!("seed {seed}, operation {nth}");
            let disk = MemDisk::new(seed * 10_000 + nth);
            if seed % 2 == 1 {
                disk.keep_names_in_any_order();
            }
            disk.fail_at(nth, Fault::PowerCut);
            let mut acknowledged = 0;
            match open(&disk) {
                Ok(mut log) => acknowledged = run(&mut log),
                Err(error) => assert!(matches!(error, OpenError::Io { .. }), "{what}: {error}"),
            }
            let finished = disk.ops() < nth;
            disk.crash();
            // A second power cut, during the recovery, must do no harm either.
            disk.fail_at(1 + nth % 5, Fault::PowerCut);
            if let Err(error) = open(&disk) {
                assert!(matches!(error, OpenError::Io { .. }), "{what}: {error}");
            }
            disk.crash();
            let log = open(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            check(&log, acknowledged, &what);
            repairs += log.recovered.repairs.len();
            continue_after(log, &disk, &what);
            if finished {
                break;
            }
            cuts += 1;
        }
    }
    assert!(cuts > 500 && repairs > 50, "the cuts must hit something: {cuts} cuts, {repairs} repairs");
}

/// Checks that a recovered log accepts more entries and that a reopened log has them, with no old records in
/// between.
fn continue_after(mut log: Opened, disk: &MemDisk, what: &str) {
    let first = log.recovered.first_index;
    let last = log.recovered.last_index;
    let mut expected: Vec<Entry> = log.entries().into_iter().filter(|entry| entry.index >= first).collect();
    for index in last.0 + 1..=last.0 + 12 {
        log.put(entries(index..=index, 9, 800));
        expected.push(entry(index, 9, 800));
    }
    log.told(|told| assert_eq!((told.ticket, told.last_index), (12, last.0 + 12), "{what}"));
    drop(log);
    let log = open(disk).unwrap_or_else(|error| panic!("{what}, again: {error}"));
    assert!(log.recovered.repairs.is_empty(), "{what}: {:?}", log.recovered.repairs);
    let found: Vec<Entry> = log.entries().into_iter().filter(|entry| entry.index >= first).collect();
    assert!(found == expected, "{what}: after more was appended");
}

#[test]
fn an_error_at_any_operation_is_fatal_or_harmless_and_never_acknowledged() {
    let mut failures = 0;
    for errno in [5, 28] {
        for nth in 1.. {
            let what = format!("errno {errno}, operation {nth}");
            let disk = MemDisk::new(nth);
            disk.fail_at(nth, Fault::Once(errno));
            let mut acknowledged = 0;
            if let Ok(mut log) = open(&disk) {
                acknowledged = run(&mut log);
                let failed = log.told(|told| told.failed.len());
                assert!(failed <= 1, "{what}: told once");
                if failed == 1 {
                    failures += 1;
                    assert!(
                        log.log.append(entries(1000..=1000, 9, 1)).is_err(),
                        "{what}: nothing more is taken"
                    );
                    log.log.turn();
                    log.told(|told| {
                        assert_eq!((told.ticket, told.failed.len()), (acknowledged, 1), "{what}")
                    });
                } else {
                    assert_eq!(acknowledged, script().concat().len() as u64, "{what}: all of it was done");
                }
            }
            let finished = disk.ops() < nth;
            disk.crash();
            let log = open(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            check(&log, acknowledged, &what);
            if finished {
                break;
            }
        }
    }
    assert!(failures > 20, "errors must hit writes and syncs: {failures}");
}

#[test]
fn released_segments_stay_released_through_a_crash_at_any_operation() {
    for seed in 0..10 {
        for nth in 1.. {
            let what = format!("seed {seed}, operation {nth}");
            let disk = MemDisk::new(seed * 10_000 + nth);
            if seed % 2 == 1 {
                disk.keep_names_in_any_order();
            }
            let mut log = open(&disk).unwrap();
            for index in 1..=40 {
                log.put(entries(index..=index, 1, 1000));
            }
            disk.fail_at(disk.ops() + nth, Fault::PowerCut);
            let target = disk.ops() + nth;
            // Release a segment in the middle: a gap is allowed where it was made on purpose.
            log.log.release(1).unwrap();
            log.log.turn();
            let gone = !log.log.segments().iter().any(|one| one.seq == 1);
            let mut acknowledged = 40;
            for index in 41..=80 {
                if log.log.append(entries(index..=index, 1, 1000)).is_err() {
                    break;
                }
                log.log.turn();
                acknowledged = log.told(|told| told.last_index);
            }
            let finished = disk.ops() < target;
            drop(log);
            disk.crash();
            let log = open(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            let there = log.log.segments().iter().any(|one| one.seq == 1);
            assert!(!(gone && there), "{what}: a release that was recorded is not taken back");
            assert!(log.log.segments().iter().any(|one| one.seq == 0), "{what}: others stay");
            assert!(log.recovered.last_index >= Index(acknowledged), "{what}");
            if !there {
                assert!(log.recovered.first_index > Index(1), "{what}");
            }
            let first = log.recovered.first_index;
            let last = log.recovered.last_index;
            let read = log.log.entries().read(first, last + 1, u64::MAX).unwrap();
            assert!(read == entries(first.0..=last.0, 1, 1000).entries, "{what}");
            if finished {
                break;
            }
        }
    }
}

#[test]
fn nothing_is_acknowledged_before_it_is_synced() {
    // The callback opens a crashed copy of the disk, because the facts that an event reports must survive a
    // crash at that moment.
    let disk = MemDisk::new(11);
    let looked = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (look_at, count) = (disk.clone(), looked.clone());
    let (mut log, _) = mainstay_log::Log::open(
        crate::kit::options(),
        std::sync::Arc::new(disk.clone()),
        Index(1),
        &mut |_| (),
        Box::new(move |event| {
            if let LogEvent::Synced(synced) = event
                && synced.last_index == Index(7)
            {
                look_at.crash();
                let log = open(&look_at).unwrap();
                let there = log.replayed.iter().filter(|item| matches!(item, Replayed::Entry(..))).count();
                count.store(there as u64, std::sync::atomic::Ordering::Relaxed);
            }
        }),
    )
    .unwrap();
    for index in 1..=7 {
        log.append(entries(index..=index, 1, 500)).unwrap();
        log.turn();
    }
    assert_eq!(looked.load(std::sync::atomic::Ordering::Relaxed), 7);
}

/// Linux marks pages whose write failed as clean: they can be read, and no later sync writes them to the
/// disk.
#[test]
fn what_a_failed_sync_has_left_in_the_page_cache_is_given_out_only_once_it_is_durable() {
    let mut given_out = 0;
    for seed in 1..=40 {
        let disk = MemDisk::new(seed);
        let mut log = open(&disk).unwrap();
        log.put(entries(1..=5, 1, 700));
        disk.fail_next(Operation::Sync, 1, Fault::Once(5));
        log.put(entries(6..=9, 1, 700));
        assert_eq!(log.told(|told| told.failed.len()), 1, "seed {seed}: the process would end here");
        drop(log);
        disk.kill();
        disk.heal();
        let recovered = open(&disk).unwrap().entries();
        given_out += recovered.len();
        disk.crash();
        assert_eq!(open(&disk).unwrap().entries(), recovered, "seed {seed}: gone with the next power cut");
    }
    assert!(given_out > 40 * 5, "some of it could be read: {given_out}");
}

/// Data of a file's previous use may equal the data written now in every byte except the secret: a torn write
/// is still distinguished from damage.
#[test]
fn a_torn_write_over_the_same_values_of_an_earlier_use_is_no_damage() {
    let mut repairs = 0;
    for seed in 0..60u64 {
        let disk = MemDisk::new(seed);
        let fill = if seed % 2 == 0 { 0 } else { b'v' };
        let len = [24, 64, 88, 200, 480, 600][seed as usize % 6];
        let group = |first: u64, last: u64| Batch {
            entries: (first..=last)
                .map(|index| Entry { data: vec![fill; len].into(), ..entry(index, 1, 0) })
                .collect(),
            ..Batch::default()
        };
        let mut acknowledged = 0;
        for round in 0..12 {
            let what = format!("seed {seed}, round {round}");
            let mut log = open(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(log.recovered.last_index.0 >= acknowledged, "{what}");
            repairs += log.recovered.repairs.len();
            let mut next = log.recovered.last_index.0 + 1;
            // The first rounds fill some files and release them for another use.
            let sort = if round % 2 == 0 { Operation::Write } else { Operation::Sync };
            disk.fail_next(sort, 60 + (seed + round) % 9, Fault::PowerCut);
            while !disk.is_dark() {
                let end = next + 3 + next % 5;
                if log.log.append(group(next, end)).is_err() {
                    break;
                }
                log.log.turn();
                next = end + 1;
                acknowledged = log.told(|told| told.last_index).max(acknowledged);
                for segment in log.log.segments().iter().filter(|segment| segment.sealed) {
                    let _ = log.log.release(segment.seq);
                }
            }
            drop(log);
            disk.crash();
        }
    }
    assert!(repairs > 100, "{repairs} repairs");
}
