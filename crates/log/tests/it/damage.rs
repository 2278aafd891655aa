//! Damaged files: damage to acknowledged data is reported with file and offset, torn tails are cut off,
//! nothing panics.

use std::path::Path;

use disk::{Disk, MemDisk};
use mainstay_log::{Batch, HardState, OpenError, Options};
use numbers::{Index, MemberId, Term};
use testkit::Random;

use crate::kit::{DIR, Opened, entries, open, open_with, options, segment_path};

/// A disk with a log of three segments, the last of which has several batches.
fn filled() -> MemDisk {
    let disk = MemDisk::new(5);
    let mut log = open(&disk).unwrap();
    for index in 1..=22 {
        log.put(entries(index..=index, 1, 904));
    }
    log.put(Batch {
        hard_state: Some(HardState { term: Term(1), vote: MemberId(2), commit: Index(22) }),
        ..Batch::default()
    });
    assert_eq!(log.log.segments().len(), 3);
    disk
}

fn used(log: &Opened, seq: usize) -> usize {
    log.log.segments()[seq].used_bytes as usize
}

#[test]
fn every_flipped_bit_is_classified() {
    let disk = filled();
    let reference = open(&disk).unwrap();
    let last_batch = used(&reference, 2) - 40;
    for seq in 0..3u32 {
        let path = segment_path(seq);
        let good = disk.contents(&path).unwrap();
        let end = used(&reference, seq as usize);
        // Tests every byte at the beginning and at the end, and a sample of the others.
        for at in
            (0..end).filter(|at| *at < 60 || (4088..4400).contains(at) || *at > end - 100 || at % 37 == 0)
        {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            disk.plant(&path, bad);
            let what = format!("segment {seq}, byte {at}");
            match open(&disk) {
                // If the changed byte is in the last record's length, the record seems to continue in the
                // next sector, which a torn write may not have reached. If it is in the mark, the bytes are
                // no record, and the record in front begins in another sector. In both cases a torn write
                // explains the bytes.
                Ok(log) if seq == 2 && (last_batch + 5..last_batch + 16).contains(&at) => {
                    assert_eq!(log.recovered.repairs.len(), 1, "{what}");
                    assert_eq!(log.recovered.repairs[0].offset as usize, last_batch, "{what}");
                    assert_eq!(log.recovered.last_index, Index(22), "{what}");
                }
                Ok(_) => panic!("{what}: damage was not noticed"),
                Err(error) => {
                    assert!(matches!(error, OpenError::Damaged { .. }), "{what}: {error}");
                    let text = error.to_string();
                    assert!(
                        text.contains(&format!("{seq:016x}.seg")) && text.contains("offset"),
                        "{what}: {text}"
                    );
                }
            }
            disk.plant(&path, good.clone());
        }
    }
    assert!(open(&disk).unwrap().recovered.repairs.is_empty());
}

#[test]
fn segments_that_need_not_be_read_are_verified_when_asked_for() {
    let disk = filled();
    let path = segment_path(0);
    let mut bad = disk.contents(&path).unwrap();
    bad[9000] ^= 1;
    disk.plant(&path, bad);
    assert!(open(&disk).is_err());
    let log = open_with(options(), &disk, 20).unwrap();
    assert!(
        log.log.entries().read(Index(1), Index(20), u64::MAX).is_err(),
        "and are verified when they are read"
    );
    assert!(open_with(Options { verify_all: true, ..options() }, &disk, 20).is_err());
}

/// Leaves the remains of an interrupted write of entry 23 at `end`: its first sector was written, and the
/// next sector has other data.
fn tear_record_23(disk: &MemDisk, end: usize) {
    let mut log = open(disk).unwrap();
    log.put(entries(23..=23, 1, 904));
    drop(log);
    let path = segment_path(2);
    let mut bad = disk.contents(&path).unwrap();
    let sector = (end + 16).next_multiple_of(512);
    bad[sector..sector + 512].fill(0xa5);
    disk.plant(&path, bad);
}

#[test]
fn a_torn_tail_is_cut_off_and_told_once() {
    let disk = filled();
    let end = used(&open(&disk).unwrap(), 2);
    let path = segment_path(2);
    tear_record_23(&disk, end);
    let mut log = open(&disk).unwrap();
    assert_eq!((log.recovered.last_index, log.recovered.repairs.len()), (Index(22), 1));
    assert_eq!(log.recovered.repairs[0].file, path);
    log.put(entries(23..=23, 1, 10));
    drop(log);
    let log = open(&disk).unwrap();
    assert_eq!((log.recovered.last_index, log.recovered.repairs.len()), (Index(23), 0));
}

/// A torn write leaves whole sectors: bytes lost from the middle of a sector are damage, unless the record
/// there continues in the next sector.
#[test]
fn an_end_that_is_lost_from_the_middle_of_a_sector_is_refused() {
    const SECTOR: usize = 512;
    let (mut refused, mut cut_off) = (0, 0);
    for puts in 1..50u64 {
        let disk = MemDisk::new(7);
        let mut log = open(&disk).unwrap();
        log.put(Batch {
            hard_state: Some(HardState { term: Term(1), ..HardState::default() }),
            ..Batch::default()
        });
        let mut begins = Vec::new();
        for index in 1..=puts {
            begins.push(used(&log, 0));
            log.put(entries(index..=index, 1, 60 + puts as usize));
        }
        let end = used(&log, 0);
        begins.push(end);
        drop(log);
        let from = end - SECTOR;
        let Some(last) = begins.iter().rposition(|begin| *begin <= from) else { continue };
        let path = segment_path(0);
        let mut bad = disk.contents(&path).unwrap();
        bad[from..end].fill(0);
        disk.plant(&path, bad.clone());
        let begin = begins[last];
        let is_refused = match from - begin {
            0 => false,
            // The rest of the record's head is lost. Only the previous record, if it begins in the same
            // sector, proves that this record existed.
            8 => begin % SECTOR <= 496 && begins[last.saturating_sub(1)] / SECTOR == begin / SECTOR,
            _ => begin % SECTOR <= 496 && begin / SECTOR == (begins[last + 1] - 1) / SECTOR,
        };
        match open(&disk) {
            Err(OpenError::Damaged { offset, .. }) if is_refused => {
                assert_eq!(offset as usize, begin, "{puts} entries");
                assert_eq!(disk.contents(&path).unwrap(), bad, "nothing is changed");
                refused += 1;
            }
            Ok(log) if !is_refused => {
                assert_eq!(log.recovered.last_index, Index(last as u64), "{puts} entries");
                cut_off += 1;
            }
            Err(error) => panic!("{puts} entries, zeros from {from}: {error}"),
            Ok(_) => panic!("{puts} entries, zeros from {from}: cut off"),
        }
    }
    assert!(refused > 20 && cut_off > 5, "{refused} refused, {cut_off} cut off");
}

/// Of several records of one batch in one sector, either all exist or none.
#[test]
fn a_record_that_is_damaged_between_others_of_its_sector_is_refused() {
    let disk = MemDisk::new(8);
    let mut log = open(&disk).unwrap();
    log.put(entries(1..=1, 1, 600));
    let from = used(&log, 0);
    log.put(entries(2..=12, 1, 64));
    let end = used(&log, 0);
    drop(log);
    let path = segment_path(0);
    let good = disk.contents(&path).unwrap();
    let mut cut_off = 0;
    for at in from..end {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        disk.plant(&path, bad);
        match open(&disk) {
            Ok(log) => {
                assert_eq!(log.recovered.repairs.len(), 1, "byte {at}");
                cut_off += 1;
            }
            Err(error) => assert!(matches!(error, OpenError::Damaged { .. }), "byte {at}: {error}"),
        }
        disk.plant(&path, good.clone());
    }
    // Exceptions: bytes that changed a length, and a record that begins in the last bytes of a sector.
    assert!(cut_off * 4 < end - from, "{cut_off} of {} bytes", end - from);
    // A torn write leaves sectors with the contents they had before it.
    for sector in from / 512..=end / 512 {
        let mut torn = good.clone();
        torn[(sector * 512).max(from)..(sector + 1) * 512].fill(0);
        disk.plant(&path, torn);
        assert_eq!(open(&disk).unwrap().recovered.repairs.len(), 1, "sector {sector}");
        disk.plant(&path, good.clone());
    }
}

/// The limit of what a log can detect (docs/reference/damage.md): if a sector is lost that holds the end of one batch
/// and the whole last batch, it looks like a sector that an interrupted write of the first of these batches
/// did not reach. Only an end recorded elsewhere reveals the loss.
#[test]
fn a_lost_sector_that_holds_all_of_the_last_batch_is_told_by_a_noted_end_alone() {
    const SECTOR: usize = 512;
    let disk = MemDisk::new(6);
    let path = segment_path(0);
    let lost = |sector: usize| {
        let mut bytes = disk.contents(&path).unwrap();
        bytes[sector..sector + SECTOR].fill(0);
        bytes
    };
    let mut log = open(&disk).unwrap();
    log.put(entries(1..=2, 1, 100));
    log.put(entries(3..=4, 1, 350));
    let sector = used(&log, 0) / SECTOR * SECTOR;
    let torn = lost(sector);
    let noted = log.log.values().log_end();
    log.put(entries(5..=5, 1, 100));
    assert!(used(&log, 0) < sector + SECTOR, "it lies within the sector");
    let damaged = lost(sector);
    let mut proven = log;
    proven.put(entries(6..=6, 1, 600));
    proven.put(entries(7..=7, 1, 100));
    let proven_damaged = lost(sector);
    drop(proven);
    assert_eq!(damaged, torn, "nothing is left of the last batch");

    disk.plant(&path, damaged.clone());
    let said = open_with(Options { synced_to: noted, ..options() }, &disk, 1).err().unwrap().to_string();
    assert!(said.contains("when the member last started"), "{said}");
    assert_eq!(disk.contents(&path).unwrap(), damaged, "nothing is changed");
    let log = open(&disk).unwrap();
    assert_eq!((log.recovered.last_index, log.recovered.repairs.len()), (Index(3), 1));
    drop(log);

    // A valid record of any later batch proves that the lost data had been synced.
    disk.plant(&path, proven_damaged);
    let said = open(&disk).err().unwrap().to_string();
    assert!(said.contains("was written only after this one had been synced"), "{said}");
}

#[test]
fn a_file_that_is_missing_cut_short_doubled_or_a_stranger_is_refused() {
    let disk = filled();
    for seq in 0..3u32 {
        let path = segment_path(seq);
        let good = disk.contents(&path).unwrap();
        disk.remove(&path).unwrap();
        match open(&disk) {
            // Nothing records the loss of the newest segment itself; the segment prepared after it reveals
            // the gap.
            Err(OpenError::Missing { path: named }) => assert_eq!(named, path),
            Err(error) => panic!("segment {seq}: {error}"),
            Ok(_) => panic!("segment {seq}: its loss was not noticed"),
        }
        for len in [0, 1, 100, 4096, 5000, good.len() - 1] {
            disk.plant(&path, good[..len].to_vec());
            assert!(matches!(open(&disk), Err(OpenError::Damaged { .. })), "segment {seq} of {len} bytes");
        }
        disk.plant(&path, good);
    }
    let first = disk.contents(&segment_path(0)).unwrap();
    let second = disk.contents(&segment_path(1)).unwrap();
    disk.plant(&segment_path(1), first.clone());
    let error = open(&disk).err().unwrap().to_string();
    assert!(error.contains("its file name says 1"), "{error}");
    disk.plant(&segment_path(1), second);
    disk.plant(&segment_path(0xffff_ffff), first);
    assert!(open(&disk).is_err());
}

#[test]
fn garbage_never_panics() {
    let mut random = Random::new(1);
    let mut draw = move || random.number() as usize;
    let good = filled();
    for round in 0..400 {
        let disk = filled();
        for _ in 0..1 + draw() % 3 {
            let path = segment_path((draw() % 4) as u32);
            let mut data = good.contents(&path).unwrap();
            match draw() % 5 {
                0 => data.truncate(draw() % data.len()),
                1 => {
                    let (from, len) = (draw() % data.len(), draw() % 600);
                    let end = (from + len).min(data.len());
                    data[from..end].iter_mut().for_each(|byte| *byte = draw() as u8);
                }
                2 => data = (0..draw() % 9000).map(|_| draw() as u8).collect(),
                3 => {
                    let (from, to) = (draw() % data.len(), draw() % data.len());
                    let len = (draw() % 4000).min(data.len() - from.max(to));
                    data.copy_within(from..from + len, to);
                }
                _ => {
                    let from = draw() % data.len();
                    data[from..].fill(0);
                }
            }
            disk.plant(&path, data);
        }
        if let Ok(mut log) = open(&disk) {
            let next = log.recovered.last_index + 1;
            log.put(entries(next.0..=(next + 3).0, 50, 500));
            drop(log);
            let log = open(&disk).unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert_eq!(log.recovered.last_index, next + 3);
        }
    }
}

#[test]
fn values_of_any_content_never_read_as_records() {
    // A value that contains a whole log, shifted by 8 bytes so that its headers lie on record boundaries.
    let disk = filled();
    let inside = disk.contents(&segment_path(2)).unwrap();
    let mut log = open(&disk).unwrap();
    let entry = mainstay_log::Entry {
        term: Term(1),
        index: Index(23),
        entry_type: 0,
        data: inside[4096..].to_vec().into(),
    };
    log.put(Batch { entries: vec![entry], ..Batch::default() });
    log.put(entries(24..=24, 1, 10));
    drop(log);
    let log = open(&disk).unwrap();
    assert_eq!((log.recovered.last_index, log.recovered.repairs.len()), (Index(24), 0));
    assert!(disk.exists(Path::new(DIR)).unwrap());
}

#[test]
fn what_is_left_of_a_torn_write_is_wiped_so_that_it_cannot_come_back() {
    let disk = filled();
    let mut log = open(&disk).unwrap();
    let from = used(&log, 2);
    log.put(entries(23..=24, 1, 904));
    let end = used(&log, 2);
    drop(log);
    let path = segment_path(2);
    let mut bad = disk.contents(&path).unwrap();
    // The first record was lost, the other records of its batch were kept.
    bad[from..from + 512].fill(0);
    disk.plant(&path, bad);
    let log = open(&disk).unwrap();
    assert_eq!((log.recovered.last_index, log.recovered.repairs.len()), (Index(22), 1));
    assert!(disk.contents(&path).unwrap()[from..end].iter().all(|byte| *byte == 0));
}

#[test]
fn a_record_missing_at_the_end_of_a_sealed_segment_is_noticed() {
    let disk = MemDisk::new(5);
    let mut log = open(&disk).unwrap();
    let mut index = 1;
    while log.log.segments().len() < 2 {
        log.put(entries(index..=index, 1, 904));
        log.put(Batch {
            hard_state: Some(HardState { term: Term(1), vote: MemberId(1), commit: Index(index) }),
            ..Batch::default()
        });
        index += 1;
    }
    // The segment ends with a hard state, whose loss would leave no gap in the raft index.
    let end = used(&log, 0);
    drop(log);
    let path = segment_path(0);
    let mut bad = disk.contents(&path).unwrap();
    bad[end - 40..end].fill(0);
    disk.plant(&path, bad);
    match open(&disk).err() {
        Some(OpenError::Damaged { path: named, offset, .. }) => {
            assert_eq!((named, offset), (path, end as u64 - 40))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_log_that_was_closed_in_order_ends_where_it_did_then() {
    let disk = filled();
    let end = {
        let reference = open(&disk).unwrap();
        reference.log.values().log_end().unwrap()
    };
    let closed = || Options { closed_at: Some(end), ..options() };
    assert_eq!((end.segment, end.last_index), (2, Index(22)));
    assert!(open_with(closed(), &disk, 1).unwrap().recovered.repairs.is_empty());
    let path = segment_path(2);
    let good = disk.contents(&path).unwrap();
    let len = end.offset as usize;
    // These are bytes of the last batch. Without the recorded end, damage to them could not be distinguished
    // from a torn write.
    for at in len - 40..len {
        let mut bad = good.clone();
        bad[at] ^= 1;
        disk.plant(&path, bad.clone());
        let error = open_with(closed(), &disk, 1).map(|_| ()).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "byte {at}: {error}");
        assert_eq!(disk.contents(&path).unwrap(), bad, "nothing is changed");
    }
    // The end of the log is lost without a trace, at every offset.
    for from in (4096..len).step_by(8) {
        let mut bad = good.clone();
        bad[from..len].fill(0);
        disk.plant(&path, bad);
        assert!(open_with(closed(), &disk, 1).is_err(), "zeros from {from} on");
    }
    disk.remove(&path).unwrap();
    let error = open_with(closed(), &disk, 1).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::Missing { .. }), "{error}");
    disk.plant(&path, good);

    // After a clean shutdown, a segment that was prepared and never used is made again, whatever it contains.
    let next = segment_path(3);
    disk.plant(&next, vec![7; 100]);
    assert!(open(&disk).is_err(), "after a crash it may have been in use");
    let opened = open_with(closed(), &disk, 1).unwrap();
    assert_eq!(opened.recovered.last_index, Index(22));
    assert_eq!(opened.recovered.repairs.len(), 1);
}

#[test]
fn a_log_does_not_end_before_where_it_ended_at_the_last_start() {
    let disk = filled();
    let noted = open(&disk).unwrap().log.values().log_end().unwrap();
    let started = || Options { synced_to: Some(noted), ..options() };
    let path = segment_path(2);
    let good = disk.contents(&path).unwrap();
    let len = noted.offset as usize;
    // Bytes of the batch that was last at that start. Nothing follows it, so the log alone cannot distinguish
    // damage from a torn write.
    for at in len - 40..len {
        let mut bad = good.clone();
        bad[at] ^= 1;
        disk.plant(&path, bad.clone());
        let error = open_with(started(), &disk, 1).map(|_| ()).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "byte {at}: {error}");
        assert_eq!(disk.contents(&path).unwrap(), bad, "nothing is changed");
    }
    for from in (4096..len).step_by(8) {
        let mut bad = good.clone();
        bad[from..len].fill(0);
        disk.plant(&path, bad);
        assert!(open_with(started(), &disk, 1).is_err(), "zeros from {from} on");
    }
    disk.remove(&path).unwrap();
    let error = open_with(started(), &disk, 1).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::Missing { .. }), "{error}");
    disk.plant(&path, good);

    // A write torn after that start is no damage, in this segment or in the next one.
    tear_record_23(&disk, len);
    let log = open_with(started(), &disk, 1).unwrap();
    assert_eq!((log.recovered.last_index, log.recovered.repairs.len()), (Index(22), 1));
    drop(log);
    let next = segment_path(3);
    let mut torn = disk.contents(&next).unwrap();
    torn[4608..5000].fill(0xa5);
    disk.plant(&next, torn);
    assert_eq!(open_with(started(), &disk, 1).unwrap().recovered.last_index, Index(22));

    // A log that has grown since that start is accepted, too: by one entry, and then by some segments.
    for last in [23, 60] {
        let mut log = open_with(started(), &disk, 1).unwrap();
        let first = log.recovered.last_index + 1;
        for index in first.0..=last {
            log.put(entries(index..=index, 1, 904));
        }
        drop(log);
        assert_eq!(open_with(started(), &disk, 1).unwrap().recovered.last_index, Index(last));
    }
}

#[test]
fn a_log_that_went_on_behind_its_known_end_is_not_refused() {
    let disk = filled();
    let end = open(&disk).unwrap().log.values().log_end().unwrap();
    let closed = || Options { closed_at: Some(end), ..options() };
    // A build that records no end writes one entry, and then some segments.
    for last in [23, 60] {
        let mut log = open(&disk).unwrap();
        let first = log.recovered.last_index + 1;
        for index in first.0..=last {
            log.put(entries(index..=index, 1, 904));
        }
        drop(log);
        assert_eq!(open_with(closed(), &disk, 1).unwrap().recovered.last_index, Index(last));
    }
    // A segment after the recorded end whose header is damaged may be in use as well, so opening is refused.
    let next = segment_path(open(&disk).unwrap().log.values().log_end().unwrap().segment + 1);
    disk.plant(&next, vec![7; 100]);
    assert!(open_with(closed(), &disk, 1).is_err());
}
