//! Tests of appending, reading back and reopening.

use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use disk::{Disk, MemDisk, RealDisk};
use mainstay_log::{
    Batch, EntryPlace, HardState, Location, Log, LogEvent, Options, Owner, ReadError, Replayed, Reset, Value,
    ValueId,
};

use numbers::{ClusterId, EntryId, Index, MemberId, Term};
use testkit::TempDir;

use crate::kit::{DIR, Opened, entries, entry, open, open_with, options};

#[test]
fn what_is_appended_is_read_back_and_replayed() {
    let disk = MemDisk::new(1);
    let state = HardState { term: Term(2), vote: MemberId(7), commit: Index(40) };
    {
        let mut log = open(&disk).unwrap();
        assert_eq!((log.recovered.first_index, log.recovered.last_index), (Index(1), Index(0)));
        for index in 1..=50 {
            log.put(entries(index..=index, 2, 1000));
        }
        log.put(Batch { hard_state: Some(state), ..Batch::default() });
        log.told(|told| assert_eq!((told.ticket, told.last_index, told.hard_state), (51, 50, Some(state))));
        assert!(log.log.segments().len() > 3, "50 KB fill several segments of 16 KiB");
        let values = log.log.values();
        for EntryPlace { index, location } in log.told(|told| told.locations.clone()) {
            let data = entry(index.0, 2, 1000).data;
            let crc = crc32c::crc32c(&data[100..]);
            let at = Location::new(location.segment(), location.offset() + 100);
            assert_eq!(values.read(at, 900, crc).unwrap(), data[100..]);
            assert!(matches!(values.read(at, 900, crc ^ 1), Err(ReadError::Damaged { .. })));
        }
        let read = log.log.entries().read(Index(3), Index(49), u64::MAX).unwrap();
        assert!(read == entries(3..=48, 2, 1000).entries);
        assert_eq!(log.log.entries().read(Index(3), Index(49), 2500).unwrap().len(), 2);
        assert_eq!(log.log.entries().read(Index(3), Index(49), 0).unwrap().len(), 1);
        assert!(matches!(log.log.entries().read(Index(3), Index(52), 10), Err(ReadError::Unavailable)));
    }
    let log = open(&disk).unwrap();
    assert_eq!(log.recovered.hard_state, state);
    assert_eq!(
        (log.recovered.first_index, log.recovered.last_index, log.recovered.last_term),
        (Index(1), Index(50), Term(2))
    );
    assert!(log.entries() == entries(1..=50, 2, 1000).entries);
    assert!(log.recovered.repairs.is_empty(), "{:?}", log.recovered.repairs);
    for item in &log.replayed {
        if let Replayed::Entry(entry, location) = item {
            let crc = crc32c::crc32c(&entry.data);
            assert_eq!(log.log.values().read(*location, entry.data.len() as u32, crc).unwrap(), entry.data);
        }
    }
}

#[test]
fn an_index_given_again_replaces_the_tail() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).unwrap();
    log.put(entries(1..=30, 1, 900));
    log.put(entries(11..=12, 2, 900));
    let expected = [entries(1..=10, 1, 900).entries, entries(11..=12, 2, 900).entries].concat();
    assert!(log.log.entries().read(Index(1), Index(13), u64::MAX).unwrap() == expected);
    assert!(log.log.entries().read(Index(1), Index(14), u64::MAX).is_err());
    assert_eq!(
        (log.log.entries().term(Index(10)).unwrap(), log.log.entries().term(Index(11)).unwrap()),
        (Term(1), Term(2))
    );
    drop(log);
    let log = open(&disk).unwrap();
    assert!(log.entries() == expected);
    assert!(log.log.entries().read(Index(1), Index(13), u64::MAX).unwrap() == expected);
    // When the log is opened from a later index, earlier entries are found when they are read.
    for from in 2..=13 {
        let log = open_with(options(), &disk, from).unwrap();
        assert_eq!(log.recovered.first_index, Index(1));
        assert!(log.entries_from(from) == expected[from as usize - 1..], "from {from}");
        assert_eq!(log.log.entries().term(Index(1)).unwrap(), Term(1));
        assert!(log.log.entries().read(Index(1), Index(13), u64::MAX).unwrap() == expected);
    }
}

#[test]
fn a_reset_starts_the_log_again_behind_the_snapshot() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).unwrap();
    log.put(entries(1..=20, 1, 900));
    log.put(Batch {
        reset: Some(Reset { index: Index(1000), term: Term(5) }),
        ..entries(1001..=1030, 5, 900)
    });
    log.put(Batch { reset: Some(Reset { index: Index(500), term: Term(6) }), ..entries(501..=505, 6, 900) });
    drop(log);
    for from in [1, 501, 503] {
        let log = open_with(options(), &disk, from).unwrap();
        assert_eq!(
            (log.recovered.base, log.recovered.first_index),
            (EntryId { index: Index(500), term: Term(6) }, Index(501))
        );
        assert_eq!((log.recovered.last_index, log.recovered.last_term), (Index(505), Term(6)));
        assert!(
            log.log.entries().read(Index(501), Index(506), u64::MAX).unwrap()
                == entries(501..=505, 6, 900).entries
        );
        assert!(log.log.entries().read(Index(15), Index(16), u64::MAX).is_err());
    }
}

#[test]
fn relocated_values_are_read_and_replayed() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).unwrap();
    log.put(entries(1..=3, 1, 100));
    let id = ValueId { main: 77, sub: -1 };
    let data = Bytes::from(vec![5; 3000]);
    log.put(Batch { values: vec![Value { id, data: data.clone(), compressed: None }], ..Batch::default() });
    let (found, location) = log.told(|told| told.values[0]);
    assert_eq!(found, id);
    let crc = crc32c::crc32c(&data);
    assert_eq!(log.log.values().read(location, 3000, crc).unwrap(), data);
    drop(log);
    let log = open_with(options(), &disk, 4).unwrap();
    assert!(log.replayed.contains(&Replayed::Value(id, location, 3000)));
    assert_eq!(log.log.values().read(location, 3000, crc).unwrap(), data);
}

#[test]
fn a_record_larger_than_a_segment_makes_its_segment_larger() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).unwrap();
    let large = |index| entry(index, 1, 100_000);
    for index in 1..=3 {
        log.put(Batch { entries: vec![large(index)], ..Batch::default() });
    }
    log.put(entries(4..=9, 1, 5000));
    log.told(|told| assert_eq!(told.last_index, 9));
    drop(log);
    let log = open(&disk).unwrap();
    assert!(log.entries()[..3] == [large(1), large(2), large(3)]);
    assert_eq!(log.recovered.last_index, Index(9));
}

#[test]
fn an_entry_of_one_kibibyte_costs_less_than_a_hundred_bytes_more() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).unwrap();
    log.put(entries(1..=1, 1, 10));
    let before = log.log.figures().written_bytes();
    log.put(entries(2..=2, 1, 1024));
    assert!(log.log.figures().written_bytes() - before <= 1024 + 40);
}

#[test]
fn syncs_are_counted_with_the_entries_that_share_them() {
    let mut log = open(&MemDisk::new(1)).unwrap();
    let counted = |log: &Opened| {
        let figures = log.log.figures();
        (figures.fsyncs.count(), figures.shared_fsyncs.count(), figures.sync_entries.sum())
    };
    let before = counted(&log);
    log.put(entries(1..=1, 1, 10));
    log.put(entries(2..=6, 1, 10));
    let after = counted(&log);
    assert_eq!((after.0 - before.0, after.1 - before.1, after.2 - before.2), (2, 1, 6));
}

#[test]
fn a_gap_is_our_own_bug() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).unwrap();
    log.put(entries(1..=2, 1, 10));
    let outcome =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| log.log.append(entries(4..=4, 1, 10))));
    assert!(outcome.is_err());
}

#[test]
fn with_threads_on_a_real_disk() {
    let dir = TempDir::new("log");
    let options = Options {
        segment_bytes: 64 << 10,
        ..Options::new(dir.join("member/log"), ClusterId(1), MemberId(2))
    };
    let (tell, told) = mpsc::channel();
    let on_event = Box::new(move |event| {
        if let LogEvent::Synced(synced) = event {
            let _ = tell.send(synced);
        }
    });
    let (mut log, _) =
        Log::open(options.clone(), std::sync::Arc::new(RealDisk), Index(1), &mut |_| (), on_event).unwrap();
    for index in 1..=1000 {
        log.append(entries(index..=index, 3, 1000)).unwrap();
    }
    let mut last = 0;
    let mut locations = 0;
    while last < 1000 {
        let synced = told.recv_timeout(Duration::from_secs(60)).expect("synced within a minute");
        assert!(synced.last_index >= Index(last));
        last = synced.last_index.0;
        locations += synced.locations.len();
    }
    assert_eq!(locations, 1000);
    let all = entries(1..=1000, 3, 1000).entries;
    assert!(log.entries().read(Index(1), Index(1001), u64::MAX).unwrap() == all);
    // Batches that are queued when the log is dropped are still written.
    log.append(entries(1001..=1001, 3, 10)).unwrap();
    drop(log);
    let mut count = 0;
    let (_log, recovered) = Log::open(
        Options { verify_all: true, ..options },
        std::sync::Arc::new(RealDisk),
        Index(1),
        &mut |item| count += usize::from(matches!(item, Replayed::Entry(..))),
        Box::new(|_| ()),
    )
    .unwrap();
    assert_eq!((count, recovered.last_index, recovered.repairs.len()), (1001, Index(1001), 0));
}

#[test]
fn the_owner_is_told_and_checked() {
    let disk = MemDisk::new(1);
    assert_eq!(Log::identify(&disk, DIR.as_ref()).unwrap(), None);
    open(&disk).unwrap().put(entries(1..=2, 1, 10));
    assert_eq!(
        Log::identify(&disk, DIR.as_ref()).unwrap(),
        Some(Owner { cluster_id: ClusterId(0xc1), member_id: MemberId(0x3e) })
    );
    let error =
        open_with(Options { member_id: MemberId(9), ..options() }, &disk, 1).err().unwrap().to_string();
    assert!(error.contains("belongs to member 3e of cluster c1, not to member 9"), "{error}");
    assert!(disk.list(DIR.as_ref()).unwrap().iter().any(|name| name == "0000000000000000.seg"));
}
