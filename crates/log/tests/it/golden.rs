//! Files of each version, recorded once. These bytes never change: if a test here fails, the code is wrong.

use std::path::Path;
use std::sync::Arc;

use disk::{Disk, MemDisk};
use mainstay_log::checkpoint::{CheckpointStore, Manifest};
use mainstay_log::{Batch, Entry, HardState, Replayed, Reset, Value, ValueId};
use numbers::{EntryId, Index, MemberId, Term};

use crate::kit::{DIR, open, segment_path};

const SEGMENT: &str = include_str!("golden/segment.hex");
const SEGMENT_2: &str = include_str!("golden/segment_2.hex");
const RUN: &str = include_str!("golden/run.hex");
const MANIFEST: &str = include_str!("golden/manifest.hex");

/// Returns lines of `offset: bytes`, with sixteen bytes to a line; lines of zeros are left out.
fn dump(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).enumerate().filter(|(_, line)| line.iter().any(|byte| *byte != 0));
    let lines = lines.map(|(nth, line)| {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:06x}: {}\n", nth * 16, hex.join(" "))
    });
    format!("{}length {}\n", lines.collect::<String>(), bytes.len())
}

fn undump(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text.lines() {
        if let Some(len) = line.strip_prefix("length ") {
            bytes.resize(len.parse().unwrap(), 0);
            return bytes;
        }
        let (offset, hex) = line.split_once(": ").unwrap();
        bytes.resize(usize::from_str_radix(offset, 16).unwrap(), 0);
        bytes.extend(hex.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()));
    }
    panic!("a dump ends with its length");
}

fn entry(index: u64, term: u64, data: &'static str) -> Entry {
    Entry { term: Term(term), index: Index(index), entry_type: 1, data: data.into() }
}

fn batches() -> Vec<Batch> {
    vec![
        Batch {
            entries: vec![entry(1, 2, "first"), entry(2, 2, "second entry")],
            hard_state: Some(HardState { term: Term(2), vote: MemberId(0x3e), commit: Index(1) }),
            ..Batch::default()
        },
        Batch {
            reset: Some(Reset { index: Index(100), term: Term(5) }),
            entries: vec![entry(101, 5, "")],
            values: vec![Value { id: ValueId { main: 7, sub: -2 }, data: "moved".into(), compressed: None }],
            hard_state: None,
        },
    ]
}

fn write_checkpoint(disk: &MemDisk) {
    let store = CheckpointStore::open(Arc::new(disk.clone()), "/c").unwrap();
    let mut run = store.begin("7.run", Index(0x1234), Term(5), b"meta").unwrap();
    run.write_block(b"one").unwrap();
    run.write_block(b"two and more").unwrap();
    let runs = vec![run.finish().unwrap()];
    store
        .commit(&Manifest { applied_index: Index(0x1234), term: Term(5), metadata: b"all".to_vec(), runs })
        .unwrap();
}

#[test]
fn a_segment_is_written_as_it_always_was() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).unwrap();
    for batch in batches() {
        log.put(batch);
    }
    let found = dump(&disk.contents(&segment_path(0)).unwrap());
    assert!(found == SEGMENT_2, "the format has changed:\n{found}");
}

#[test]
fn segments_of_every_version_open() {
    for version in [SEGMENT, SEGMENT_2] {
        opens(version);
    }
}

fn opens(segment: &str) {
    let disk = MemDisk::new(1);
    disk.create_dir_all(Path::new(DIR)).unwrap();
    disk.plant(&segment_path(0), undump(segment));
    let log = open(&disk).unwrap();
    let state = HardState { term: Term(2), vote: MemberId(0x3e), commit: Index(1) };
    assert_eq!(
        (log.recovered.hard_state, log.recovered.base, log.recovered.last_index),
        (state, EntryId { index: Index(100), term: Term(5) }, Index(101))
    );
    let kinds: Vec<&Replayed> =
        log.replayed.iter().filter(|item| !matches!(item, Replayed::HardState(_))).collect();
    let expected = batches();
    match kinds.as_slice() {
        [
            Replayed::Entry(first, _),
            Replayed::Entry(second, _),
            Replayed::Reset(reset),
            Replayed::Entry(third, _),
            Replayed::Value(id, location, 5),
        ] => {
            assert_eq!([first, second], [&expected[0].entries[0], &expected[0].entries[1]]);
            assert_eq!((Some(*reset), third), (expected[1].reset, &expected[1].entries[0]));
            assert_eq!(*id, ValueId { main: 7, sub: -2 });
            let value = log.log.values().read(*location, 5, crc32c::crc32c(b"moved")).unwrap();
            assert_eq!(&value[..], b"moved");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_segment_of_version_1_is_left_as_soon_as_another_is_ready() {
    let disk = MemDisk::new(1);
    disk.create_dir_all(Path::new(DIR)).unwrap();
    disk.plant(&segment_path(0), undump(SEGMENT));
    let mut log = open(&disk).unwrap();
    log.put(Batch { entries: vec![entry(102, 5, "goes elsewhere")], ..Batch::default() });
    let segments = log.log.segments();
    assert!(segments[0].sealed && segments.len() == 2, "{segments:?}");
    drop(log);
    assert_eq!(open(&disk).unwrap().recovered.last_index, Index(102));

    // The disk is full, so only the rest of this segment can be written.
    let disk = MemDisk::new(1);
    disk.create_dir_all(Path::new(DIR)).unwrap();
    disk.plant(&segment_path(0), undump(SEGMENT));
    disk.set_capacity(Some(disk.used_bytes()));
    let mut log = open(&disk).unwrap();
    log.put(Batch { entries: vec![entry(102, 5, "stays")], ..Batch::default() });
    assert_eq!(log.log.segments().len(), 1);
    drop(log);
    assert_eq!(open(&disk).unwrap().recovered.last_index, Index(102));
}

#[test]
fn a_checkpoint_is_written_as_it_always_was() {
    let disk = MemDisk::new(1);
    write_checkpoint(&disk);
    let run = dump(&disk.contents(Path::new("/c/7.run")).unwrap());
    assert!(run == RUN, "the format has changed:\n{run}");
    let manifest = dump(&disk.contents(Path::new("/c/MANIFEST")).unwrap());
    assert!(manifest == MANIFEST, "the format has changed:\n{manifest}");
}

#[test]
fn a_checkpoint_of_version_1_opens() {
    let disk = MemDisk::new(1);
    let store = CheckpointStore::open(Arc::new(disk.clone()), "/c").unwrap();
    disk.plant(Path::new("/c/7.run"), undump(RUN));
    disk.plant(Path::new("/c/MANIFEST"), undump(MANIFEST));
    let manifest = store.load().unwrap().unwrap();
    assert_eq!(
        (manifest.applied_index, manifest.term, &manifest.metadata[..]),
        (Index(0x1234), Term(5), &b"all"[..])
    );
    let mut run = store.read(&manifest.runs[0]).unwrap();
    assert_eq!(run.next_block().unwrap().unwrap(), &b"one"[..]);
    assert_eq!(run.next_block().unwrap().unwrap(), &b"two and more"[..]);
    assert!(run.next_block().unwrap().is_none());
}
