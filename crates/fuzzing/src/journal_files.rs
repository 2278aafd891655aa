//! Opens log and checkpoint files of arbitrary content. Recovery must either succeed or return an error, and
//! must not panic.
//!
//! The formats are specified in `log/src/format.rs` and `log/src/checkpoint/mod.rs`. The files are built here
//! from the specification, without the code under test.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use disk::{Disk, MemDisk};
use log::checkpoint::{CheckpointStore, Manifest, Run};
use log::{Batch, Entry, HardState, Log, LogEvent, Options, Reset, Value, ValueId};
use log::{Recovered, Replayed};
use numbers::{ClusterId, Index, MemberId, Term};

use crate::script::{Scribe, Script};

pub(crate) const DIR: &str = "/data/log";
const SEGMENT_BYTES: usize = 16 << 10;
pub(crate) const HEADER_BYTES: usize = 4096;
const RECORD_BYTES: usize = 32;
const CLUSTER: u64 = 0xc1;
const MEMBER: u64 = 0x3e;
/// Maximum number of files that one input creates.
const FILES_MAX: usize = 6;
const RECORDS_MAX: usize = 24;

fn options() -> Options {
    let segment_bytes = SEGMENT_BYTES as u32;
    Options {
        segment_bytes,
        by_hand: true,
        secret_seed: Some(1),
        ..Options::new(DIR, ClusterId(CLUSTER), MemberId(MEMBER))
    }
}

fn path(seq: u32) -> PathBuf {
    Path::new(DIR).join(format!("{seq:016x}.seg"))
}

pub(crate) fn new_disk() -> Arc<MemDisk> {
    let disk = Arc::new(MemDisk::new(1));
    disk.create_dir_all(Path::new(DIR)).expect("a disk in memory");
    disk
}

/// Result of opening a log: the recovered state and the replayed items.
pub(crate) type Told = (Recovered, Vec<Replayed>);

/// Opens the log. Returns `None` if the log is refused.
pub(crate) fn open(
    disk: &Arc<MemDisk>,
    from_index: u64,
    verify_all: bool,
) -> Option<(Log, Told, Arc<Mutex<u64>>)> {
    let synced = Arc::new(Mutex::new(0));
    let listener = Arc::clone(&synced);
    let mut replayed = Vec::new();
    let opened = Log::open(
        Options { verify_all, ..options() },
        Arc::clone(disk) as Arc<dyn Disk>,
        Index(from_index),
        &mut |item| replayed.push(item),
        Box::new(move |event| {
            if let LogEvent::Synced(told) = event {
                *listener.lock().expect("no panic") = told.ticket;
            }
        }),
    );
    // The error of a refused log must have a message.
    let (log, recovered) = opened.map_err(|error| assert!(!error.to_string().is_empty())).ok()?;
    Some((log, (recovered, replayed), synced))
}

/// Returns the entries that remain after a replay. An entry replaces all earlier ones with the same or a
/// higher index.
pub(crate) fn entries(replayed: &[Replayed]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for item in replayed {
        match item {
            Replayed::Entry(entry, _) => {
                entries.retain(|old| old.index < entry.index);
                entries.push(entry.clone());
            }
            Replayed::Reset(_) => entries.clear(),
            _ => {}
        }
    }
    entries
}

/// Opens the files as a log. If this succeeds, opening them again must give the same result, and the log must
/// accept an entry and keep it.
fn check(disk: &Arc<MemDisk>, from_index: u64, verify_all: bool) {
    let _ = Log::identify(&**disk, Path::new(DIR));
    let Some((log, (recovered, replayed), _)) = open(disk, from_index, verify_all) else { return };
    drop(log);
    let (mut log, (again, same), synced) =
        open(disk, from_index, verify_all).expect("what opened opens again");
    assert!(again.repairs.is_empty(), "repaired once is repaired");
    assert_eq!(
        (
            recovered.hard_state,
            recovered.first_index,
            recovered.last_index,
            recovered.last_term,
            recovered.base
        ),
        (again.hard_state, again.first_index, again.last_index, again.last_term, again.base)
    );
    assert_eq!(replayed, same);
    for item in &same {
        if let Replayed::Entry(entry, location) = item {
            let mut bytes = vec![0; entry.data.len()];
            let file = disk.open(&path(location.segment())).expect("it was just read");
            file.read_exact_at(&mut bytes, u64::from(location.offset())).expect("it was just read");
            assert_eq!(bytes, entry.data, "the location is that of the data");
        }
    }
    if recovered.last_index >= Index(u64::MAX / 2) {
        return;
    }
    let index = recovered.last_index + 1;
    let term = recovered.last_term.max(Term(1));
    let entry = Entry { term, index, entry_type: 0, data: Bytes::from_static(b"behind it") };
    let batch = Batch { entries: vec![entry.clone()], ..Batch::default() };
    let ticket = log.append(batch).expect("there is room");
    log.turn();
    assert_eq!(*synced.lock().expect("no panic"), ticket, "a disk in memory takes it");
    drop(log);
    disk.crash();
    let (_, (recovered, replayed), _) = open(disk, from_index, verify_all).expect("opens with the new entry");
    assert_eq!(recovered.last_index, index);
    if index >= Index(from_index) {
        assert_eq!(entries(&replayed).last(), Some(&entry));
    }
}

/// Values that all records of a segment have in common, and by which recovery recognizes a record of the
/// segment: the start value of their checksums, the mark in their headers, and true if the checksum covers
/// the record's offset.
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    seed: u32,
    mark: u16,
    placed: bool,
}

/// Returns the identity of a segment. In version 2 of the format, a segment has a `secret`.
pub(crate) fn identity(seq: u32, incarnation: u64, secret: Option<u64>) -> Identity {
    if let Some(secret) = secret {
        return Identity { seed: secret as u32, mark: (secret >> 32) as u16, placed: true };
    }
    let mut bytes = Vec::new();
    for number in [CLUSTER, MEMBER, incarnation] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&seq.to_le_bytes());
    let seed = crc32c::crc32c(&bytes);
    Identity { seed, mark: (seed >> 16) as u16 ^ seed as u16, placed: false }
}

pub(crate) fn header(seq: u32, incarnation: u64, capacity: u64, secret: Option<u64>) -> Vec<u8> {
    let mut bytes = b"MNSTSEG\n".to_vec();
    bytes.extend_from_slice(&(1 + u32::from(secret.is_some())).to_le_bytes());
    bytes.extend_from_slice(&seq.to_le_bytes());
    for number in [CLUSTER, MEMBER, incarnation, capacity, secret.unwrap_or(0)] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.resize(HEADER_BYTES - 4, 0);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

#[allow(clippy::too_many_arguments, reason = "the fields of a record, in their order")]
pub(crate) fn record(
    identity: Identity,
    offset: usize,
    kind: u8,
    entry_type: u8,
    batch: u32,
    term: u64,
    index: u64,
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[kind, entry_type]);
    bytes.extend_from_slice(&identity.mark.to_le_bytes());
    bytes.extend_from_slice(&batch.to_le_bytes());
    bytes.extend_from_slice(&term.to_le_bytes());
    bytes.extend_from_slice(&index.to_le_bytes());
    bytes.extend_from_slice(payload);
    let start = if identity.placed { identity.seed ^ offset as u32 } else { identity.seed };
    let crc = crc32c::crc32c_append(start, &bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Fuzz target for segments: files with valid headers and checksums, whose records have arbitrary content.
pub fn run_segments(data: &[u8]) {
    let mut script = Script::new(data);
    let disk = new_disk();
    let from_index = script.near(&[1, 2, 5]);
    let verify_all = script.flip();
    for number in 0..usize::from(script.below(FILES_MAX as u8 + 1)) {
        let seq = if script.below(8) > 0 { number as u32 } else { script.near(&[0, 1, 2]) as u32 };
        // An odd incarnation stands for a segment of version 2.
        let incarnation = if script.below(16) > 0 { 1 + u64::from(script.flip()) } else { script.u64() };
        let secret = (incarnation % 2 == 1).then(|| 0x5ec2_e7ed_0000_0000 | u64::from(seq));
        let mut file = header(seq, incarnation, SEGMENT_BYTES as u64, secret);
        let identity = identity(seq, incarnation, secret);
        let mut batch = HEADER_BYTES as u32;
        for at in 0..usize::from(script.below(RECORDS_MAX as u8)) {
            // Mostly begin a segment with a Start record (5), as a valid segment does.
            let kind = if at == 0 && script.below(16) > 0 { 5 } else { script.below(8) };
            let how = script.u8();
            if how & 1 == 1 {
                batch = file.len() as u32;
            }
            let batch_said = if how & 0x0e == 2 { script.u32() } else { batch };
            let term = script.near(&[1, 2]);
            let index = script.near(&[1, 2, 3, 4, 5, 6, 7, 8]);
            let payload = match kind {
                // Mostly give a Start record (5) and a hard state (2) the payload that their formats require.
                5 if how & 0x30 != 0 => start(&mut script, number as u32),
                2 if how & 0x30 != 0 => script.u64().to_le_bytes().to_vec(),
                _ => script.run().to_vec(),
            };
            let (offset, entry_type) = (file.len(), script.below(4));
            let mut bytes = record(identity, offset, kind, entry_type, batch_said, term, index, &payload);
            if how & 0xc0 == 0x40 {
                // Damages one byte of the record.
                let at = usize::from(script.u8()) % bytes.len();
                bytes[at] ^= script.u8();
            }
            file.extend_from_slice(&bytes);
        }
        if script.below(8) > 0 {
            file.resize(file.len().max(SEGMENT_BYTES), 0);
        }
        disk.plant(&path(seq), file);
    }
    check(&disk, from_index, verify_all);
}

fn start(script: &mut Script<'_>, number: u32) -> Vec<u8> {
    let mut payload = Vec::new();
    for _ in 0..5 {
        let number = if script.flip() { script.near(&[0, 1, 2, 5]) } else { 0 };
        payload.extend_from_slice(&number.to_le_bytes());
    }
    payload.extend_from_slice(&script.near(&[0, 4096, 4184]).to_le_bytes()[..4]);
    let live: Vec<u32> = (0..number).filter(|_| script.below(8) > 0).collect();
    payload.extend_from_slice(&(live.len() as u32).to_le_bytes());
    for seq in live {
        payload.extend_from_slice(&seq.to_le_bytes());
    }
    payload
}

/// Returns scripts of arbitrary bytes, because any bytes are a valid script.
pub fn seeds_segments() -> Vec<Vec<u8>> {
    crate::commands::seeds()
}

/// Fuzz target for whole files: the input gives a segment number, flags and the bytes of each file.
pub fn run_files(data: &[u8]) {
    let mut script = Script::new(data);
    let disk = new_disk();
    for _ in 0..FILES_MAX {
        if script.is_done() {
            break;
        }
        let (seq, how) = (u32::from(script.u8()), script.u8());
        let mut file = script.run().to_vec();
        if how & 1 == 0 {
            file.resize(file.len().max(SEGMENT_BYTES), 0);
        }
        if how & 2 == 0 && file.len() >= HEADER_BYTES {
            let crc = crc32c::crc32c(&file[..HEADER_BYTES - 4]);
            file[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        }
        disk.plant(&path(seq), file);
    }
    check(&disk, 1, false);
}

/// Returns seeds with the files of a log that contains batches of all kinds.
pub fn seeds_files() -> Vec<Vec<u8>> {
    let disk = new_disk();
    let (mut log, ..) = open(&disk, 1, false).expect("opens");
    let entry = |index, term| Entry { term, index, entry_type: 0, data: Bytes::from(vec![7; 40]) };
    let batches = [
        Batch {
            entries: vec![entry(Index(1), Term(1)), entry(Index(2), Term(1))],
            hard_state: Some(HardState { term: Term(1), vote: MemberId(2), commit: Index(1) }),
            ..Batch::default()
        },
        Batch {
            entries: vec![entry(Index(2), Term(2)), entry(Index(3), Term(2))],
            values: vec![Value {
                id: ValueId { main: 2, sub: 0 },
                data: Bytes::from_static(b"moved"),
                compressed: None,
            }],
            ..Batch::default()
        },
        Batch {
            reset: Some(Reset { index: Index(9), term: Term(3) }),
            entries: vec![entry(Index(10), Term(3))],
            ..Batch::default()
        },
    ];
    let mut seeds = Vec::new();
    for batch in batches {
        log.append(batch).expect("there is room");
        log.turn();
        let mut scribe = Scribe::default();
        for name in disk.list(Path::new(DIR)).expect("a disk in memory") {
            let Some(seq) = name.strip_suffix(".seg").and_then(|seq| u8::from_str_radix(seq, 16).ok()) else {
                continue;
            };
            let bytes = disk.contents(&Path::new(DIR).join(name)).expect("a disk in memory");
            let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            scribe = scribe.u8(seq).u8(0).run(&bytes[..len]);
        }
        seeds.push(scribe.done());
    }
    seeds
}

/// Fuzz target for damage: writes a log, closes it and damages it in one place. After that, opening the log
/// must either fail, or recover what the records up to the first damaged one say. It may lose the later
/// records only if no intact record among them proves that the damaged record was synced
/// (docs/reference/damage.md, "The limit").
pub fn run_damage(data: &[u8]) {
    let mut script = Script::new(data);
    let disk = new_disk();
    let (mut log, ..) = open(&disk, 1, false).expect("opens");
    // The entries that the log must contain according to the batches that were written.
    let mut model: Vec<Entry> = Vec::new();
    let mut base = 0;
    let batches = 1 + script.below(12);
    for _ in 0..batches {
        let mut batch = Batch::default();
        let how = script.u8();
        let before = model.clone();
        if how & 0x1f == 1 {
            base += 10 + model.len() as u64;
            model.clear();
            batch.reset = Some(Reset { index: Index(base), term: Term(1) });
        }
        let back = u64::from(script.below(3)).min(model.len() as u64);
        let next = base + model.len() as u64 + 1 - back;
        model.truncate(model.len() - back as usize);
        for offset in 0..u64::from(script.below(4)) {
            let len = usize::from(script.u8()) * usize::from(1 + script.below(8));
            let data = Bytes::from(vec![script.u8(); len]);
            let entry = Entry { term: Term(1), index: Index(next + offset), entry_type: 0, data };
            model.push(entry.clone());
            batch.entries.push(entry);
        }
        if batch.entries.is_empty() {
            // A batch without entries replaces no entries, so undo the truncation of the model.
            if batch.reset.is_none() {
                model.clone_from(&before);
            }
        }
        if how & 0x20 != 0 {
            let id = ValueId { main: i64::from(how), sub: 0 };
            let data = Bytes::from(vec![3; usize::from(script.u8())]);
            batch.values.push(Value { id, data, compressed: None });
        }
        if how & 0x40 != 0 || batch == Batch::default() {
            batch.hard_state =
                Some(HardState { term: Term(1), vote: MemberId(script.u64()), commit: Index(0) });
        }
        log.append(batch).expect("there is room");
        log.turn();
    }
    drop(log);
    let names: Vec<String> = disk
        .list(Path::new(DIR))
        .expect("a disk in memory")
        .into_iter()
        .filter(|name| name.ends_with(".seg"))
        .collect();
    let victim = usize::from(script.u8()) % names.len();
    let victim_path = Path::new(DIR).join(&names[victim]);
    let contents = |name: &String| disk.contents(&Path::new(DIR).join(name)).expect("a disk in memory");
    let records: Vec<Vec<Written>> = names.iter().map(|name| written(&contents(name))).collect();
    let whole = state_of(records.iter().flatten());
    let last_index = base + model.len() as u64;
    assert_eq!((&whole.entries, whole.last_index), (&model, last_index), "the records are what was appended");
    let good = contents(&names[victim]);
    let mut bytes = good.clone();
    let at = usize::from(script.u16()) % bytes.len().max(1);
    match script.below(5) {
        0 => {}
        1 => bytes[at] ^= script.u8(),
        2 => bytes.truncate(at),
        3 => {
            // Overwrites a sector with zeros.
            let sector = at / 512 * 512;
            let end = (sector + 512).min(bytes.len());
            bytes[sector..end].fill(0);
        }
        _ => {
            let end = (at + 8).min(bytes.len());
            bytes[at..end].fill(script.u8());
        }
    }
    let is_sound = |record: &Written| bytes.get(record.range.clone()) == Some(&good[record.range.clone()]);
    let own = &records[victim];
    let hurt = own.iter().position(|record| !is_sound(record));
    let expected = match hurt {
        None => whole,
        Some(hurt) => state_of(records[..victim].iter().flatten().chain(&own[..hurt])),
    };
    let hurt = hurt.map(|at| &own[at]);
    let proof = hurt.and_then(|hurt| {
        let later = records[victim + 1..].iter().flatten().next();
        own.iter().find(|record| is_sound(record) && record.batch > hurt.range.start).or(later)
    });
    disk.plant(&victim_path, bytes.clone());
    let Some((log, (recovered, replayed), _)) = open(&disk, 1, script.flip()) else { return };
    drop(log);
    assert!(proof.is_none(), "silent loss: {hurt:?} had been synced before {proof:?} was written");
    assert_eq!(
        (entries(&replayed), recovered.last_index.0, recovered.hard_state),
        (expected.entries, expected.last_index, expected.hard_state),
        "what the sound records in front of the damage say"
    );
    check(&disk, 1, false);
}

/// A record as it is stored in a segment.
#[derive(Debug)]
struct Written {
    /// Range of the record's bytes, including the zero padding up to a multiple of 8.
    range: std::ops::Range<usize>,
    /// Offset of the first record of the batch.
    batch: usize,
    kind: u8,
    term: Term,
    index: Index,
    payload: Bytes,
}

/// Reads a little-endian number from these bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the records of an intact segment.
fn written(segment: &[u8]) -> Vec<Written> {
    let mut records = Vec::new();
    let mut at = HEADER_BYTES;
    while let Some(head) = segment.get(at..at + RECORD_BYTES).filter(|head| head[8] != 0) {
        let payload_end = at + RECORD_BYTES + number(&head[4..8]) as usize;
        let end = payload_end.next_multiple_of(8);
        records.push(Written {
            range: at..end,
            batch: number(&head[12..16]) as usize,
            kind: head[8],
            term: Term(number(&head[16..24])),
            index: Index(number(&head[24..32])),
            payload: Bytes::copy_from_slice(&segment[at + RECORD_BYTES..payload_end]),
        });
        at = end;
    }
    records
}

/// State of a log according to some of its records, from the first one on.
#[derive(Default)]
struct Held {
    entries: Vec<Entry>,
    last_index: u64,
    hard_state: HardState,
}

fn state_of<'w>(records: impl Iterator<Item = &'w Written>) -> Held {
    let mut held = Held::default();
    for Written { kind, term, index, payload, .. } in records {
        let (term, index) = (*term, *index);
        match kind {
            1 => {
                held.entries.retain(|old| old.index < index);
                held.entries.push(Entry { term, index, entry_type: 0, data: payload.clone() });
                held.last_index = index.0;
            }
            2 => {
                let vote = MemberId(number(&payload[..8]));
                held.hard_state = HardState { term, vote, commit: index };
            }
            3 => {
                held.entries.clear();
                held.last_index = index.0;
            }
            5 => {
                let [term, vote, commit] = [0, 8, 16].map(|at| number(&payload[at..at + 8]));
                held.hard_state = HardState { term: Term(term), vote: MemberId(vote), commit: Index(commit) };
            }
            _ => {}
        }
    }
    held
}

/// Returns scripts of arbitrary bytes, because any bytes are a valid script.
pub fn seeds_damage() -> Vec<Vec<u8>> {
    crate::commands::seeds()
}

const CHECKPOINTS: &str = "/data/checkpoint";

fn put_crc(bytes: &mut Vec<u8>) {
    let crc = crc32c::crc32c(bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
}

/// Fuzz target for the files of a checkpoint: a manifest and runs, with valid or invalid checksums.
pub fn run_checkpoint(data: &[u8]) {
    let mut script = Script::new(data);
    let disk = new_disk();
    let dir = Path::new(CHECKPOINTS);
    disk.create_dir_all(dir).expect("a disk in memory");
    let how = script.u8();
    let mut manifest = script.run().to_vec();
    if how & 1 == 0 {
        put_crc(&mut manifest);
    }
    disk.plant(&dir.join("MANIFEST"), manifest);
    for name in ["a", "b"] {
        let how = script.u8();
        let mut file = script.run().to_vec();
        if how & 1 == 0 {
            put_crc(&mut file);
            // Append blocks and a footer, each with its checksum, so that mutations reach the code behind the
            // checksums.
            let seed = crc32c::crc32c(&file[..file.len() - 4]);
            let (mut total, mut bytes, count) = (0, 0, u64::from(how >> 4));
            for number in 0..count {
                let block = script.run();
                let len = (block.len() as u32).to_le_bytes();
                let crc = crc32c::crc32c_append(seed, &number.to_le_bytes());
                let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &len), block).to_le_bytes();
                file.extend_from_slice(&len);
                file.extend_from_slice(&crc);
                file.extend_from_slice(block);
                total = crc32c::crc32c_append(total, &crc);
                bytes += block.len() as u64;
            }
            let mut tail = count.to_le_bytes().to_vec();
            tail.extend_from_slice(&bytes.to_le_bytes());
            tail.extend_from_slice(&total.to_le_bytes());
            file.extend_from_slice(&[0; 4]);
            file.extend_from_slice(&crc32c::crc32c_append(seed, &tail).to_le_bytes());
            file.extend_from_slice(&tail);
        }
        disk.plant(&dir.join(name), file);
    }
    let store = CheckpointStore::open(Arc::clone(&disk) as Arc<dyn Disk>, dir).expect("a disk in memory");
    let Ok(Some(manifest)) = store.load() else { return };
    for run in &manifest.runs {
        // Read each run twice: with the length in the manifest, which usually is wrong, so that the run is
        // rejected early, and with the real length of the file.
        let len = disk.contents(&dir.join(&run.name)).map_or(0, |bytes| bytes.len() as u64);
        for run in [run.clone(), Run { file_bytes: len, ..run.clone() }] {
            let Ok(mut reader) = store.read(&run) else { continue };
            let (mut blocks, mut bytes) = (Vec::new(), 0);
            let is_whole = loop {
                match reader.next_block() {
                    Ok(Some(block)) => {
                        assert!(!block.is_empty());
                        bytes += block.len() as u64;
                        blocks.push(block);
                    }
                    end => break end.is_ok(),
                }
            };
            assert!(bytes <= len);
            assert_eq!(is_whole, same_block_by_block(&store, &run, &blocks), "{} blocks", blocks.len());
        }
    }
    // A manifest that is written and read again must be unchanged.
    store.commit(&manifest).expect("a disk in memory");
    assert_eq!(store.load().expect("reads"), Some(manifest));
}

/// Reads the run block by block. Returns true if it is whole; then it must have these blocks, and otherwise no other
/// ones before its damage.
fn same_block_by_block(store: &CheckpointStore, run: &Run, blocks: &[bytes::Bytes]) -> bool {
    let Ok(reader) = store.read_blocks(run) else { return false };
    let (mut places, mut next) = (Vec::new(), reader.first());
    let mut payload = Vec::new();
    for block in blocks {
        let place = reader.locate(next.number, next.offset).expect("the block was read");
        reader.read(place, &mut payload).expect("the block was read");
        assert_eq!(payload, *block);
        next = place.next();
        places.push(place);
    }
    reader.check_places(places).is_ok()
}

/// Returns seeds with a checkpoint that has one run.
pub fn seeds_checkpoint() -> Vec<Vec<u8>> {
    let disk = new_disk();
    let dir = Path::new(CHECKPOINTS);
    let store = CheckpointStore::open(Arc::clone(&disk) as Arc<dyn Disk>, dir).expect("opens");
    let mut writer = store.begin("a", Index(7), Term(2), b"meta").expect("begins");
    writer.write_block(b"one block").expect("writes");
    writer.write_block(&[9; 300]).expect("writes");
    let run = writer.finish().expect("finishes");
    store
        .commit(&Manifest {
            applied_index: Index(7),
            term: Term(2),
            metadata: b"more".to_vec(),
            runs: vec![run],
        })
        .expect("commits");
    let file = |name: &str| disk.contents(&dir.join(name)).expect("a disk in memory");
    let (manifest, run) = (file("MANIFEST"), file("a"));
    let head = RECORD_BYTES + b"meta".len();
    vec![
        Scribe::default().u8(1).run(&manifest).u8(1).run(&run).done(),
        Scribe::default()
            .u8(0)
            .run(&manifest[..manifest.len() - 4])
            .u8(0x20)
            .run(&run[..head])
            .run(b"one block")
            .run(&[9; 300])
            .done(),
    ]
}
