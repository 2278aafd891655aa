//! Restores saved states of arbitrary content (checkpoints, snapshots, and transfers between members), which
//! must not panic.
//!
//! If a state can be restored, it must be usable: it must accept an entry, and saving and restoring it again
//! must give the same state.

use std::convert::Infallible;
use std::sync::Arc;

use api::etcdserverpb::{InternalRaftRequest, PutRequest};
use bytes::Bytes;
use machine::image::{self, BaseBlocks, BaseFile, BaseRun, BaseTop, BaseWriter, BlockSource, RunWriter};
use machine::snapshot::{self, SnapshotReader};
use machine::transfer::{Assembly, Held, ReceivedVersion, TransferReader, TransferWriter};
use machine::{AsOf, Command, Machine};
use mvcc::{Base, Cache, Location};
use numbers::{BlockPlace, Index, Revision, Term};
use prost::Message as _;

use crate::commands;
use crate::journal::Journal;
use crate::script::{Scribe, Script, pieces};
use crate::state::{RULES, assert_same, snapshot_of, through_image, transfer_of};

const SNAPSHOT_MAGIC: &[u8; 16] = b"MAINSNAP\x01\0\0\0\0\0\0\0";
const TRANSFER_MAGIC: &[u8; 16] = b"MAINXFER\x01\0\0\0\0\0\0\0";
const ALIGN: usize = 512;
const FRAME_BYTES: usize = 8;
/// Empty block, which separates one run from the next.
const NEXT_RUN: &[u8] = b"";

/// Returns a state machine that has applied entries of all kinds, with its log.
fn example() -> (Machine, Journal) {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    for request in commands::examples() {
        let data = Bytes::from(request.encode_to_vec());
        let location = journal.append(&data);
        let index = machine.applied_index + 1;
        machine
            .apply(Command { index, term: Term(1), data: &data, location }, &journal, false)
            .expect("applies");
    }
    for change in commands::conf_changes() {
        let data = Bytes::from(change.encode_to_vec());
        let location = journal.append(&data);
        let index = machine.applied_index + 1;
        machine.apply_conf_change(Command { index, term: Term(1), data: &data, location }).expect("applies");
    }
    (machine, journal)
}

/// Checks that a restored state machine accepts an entry, and is the same after it was saved to a checkpoint
/// and restored again.
fn live_on(mut machine: Machine) {
    let snapshot = machine.store.snapshot();
    // Skip a state with a huge revision or index: it is valid, but no further entries can be applied to it.
    if snapshot.current_revision() >= Revision(i64::MAX / 2) || machine.applied_index >= Index(u64::MAX / 2) {
        return;
    }
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    let request = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
    let data = Bytes::from(request.encode_to_vec());
    let location = Location::new(Location::SEGMENT_MAX, 32);
    let (index, term) = (machine.applied_index + 1, machine.applied_term);
    let journal = Journal::default();
    machine
        .apply(Command { index, term, data: &data, location }, &journal, true)
        .expect("a put can be applied");
    let mut restored = through_image(&mut machine);
    assert_same(&mut machine, &mut restored);
}

/// Fuzz target for checkpoints: restores a state machine from blocks. The input contains runs of blocks, each
/// block after its length; an empty block ends a run.
pub fn run_image(data: &[u8]) {
    let mut script = Script::new(data);
    let mut runs: Vec<Vec<Vec<u8>>> = vec![Vec::new()];
    while !script.is_done() {
        let block = script.run();
        match runs.last_mut() {
            Some(run) if !block.is_empty() => run.push(block.to_vec()),
            _ => runs.push(Vec::new()),
        }
    }
    if let [run, changes, top, deltas @ ..] = runs.as_slice() {
        restore_in_blocks(&Files { run: run.clone(), changes: changes.clone() }, top, deltas);
    }
    let runs = runs.into_iter().map(|run| run.into_iter().map(Ok::<_, Infallible>)).collect();
    if let Ok(machine) = image::restore(RULES, runs) {
        live_on(machine);
    }
}

/// The files of a base in blocks. The checksum in a block's place is that of its bytes alone.
#[derive(Clone, Default)]
struct Files {
    run: Vec<Vec<u8>>,
    changes: Vec<Vec<u8>>,
}

impl Files {
    /// Appends a block to one of the files, and returns its place.
    fn append(&mut self, file: BaseFile, block: Vec<u8>) -> BlockPlace {
        let blocks = if file == BaseFile::Run { &mut self.run } else { &mut self.changes };
        let before = blocks.iter().fold(BlockPlace::default(), |place, block| {
            BlockPlace { len: block.len() as u32, ..place }.next()
        });
        let place = BlockPlace { len: block.len() as u32, crc: crc32c::crc32c(&block), ..before };
        blocks.push(block);
        place
    }

    fn block(&self, file: BaseFile, place: BlockPlace) -> Result<&[u8], String> {
        let blocks = if file == BaseFile::Run { &self.run } else { &self.changes };
        let number = usize::try_from(place.number).map_err(|error| error.to_string())?;
        let block = blocks.get(number).ok_or("there is no such block")?;
        match crc32c::crc32c(block) == place.crc {
            true => Ok(block),
            false => Err("another block".to_owned()),
        }
    }
}

impl BlockSource for Files {
    fn read(&self, file: BaseFile, place: BlockPlace, payload: &mut Vec<u8>) -> Result<(), String> {
        payload.clear();
        payload.extend_from_slice(self.block(file, place)?);
        Ok(())
    }

    fn path(&self, file: BaseFile) -> String {
        format!("{file:?}")
    }
}

/// Restores from a base in blocks and reads everything. Whatever the blocks contain, they are refused, or are a fault
/// of the index, or can be read.
fn restore_in_blocks(files: &Files, top: &[Vec<u8>], deltas: &[Vec<Vec<u8>>]) {
    let Ok(top) = BaseTop::decode(top.iter().map(Ok::<_, String>)) else { return };
    let top = Arc::new(top);
    let blocks = BaseBlocks::new(Arc::clone(&top), Box::new(files.clone()));
    let base = Base::new(Arc::new(blocks), Cache::new(1 << 20));
    let source = files.clone();
    let read = Box::new(move |place| source.block(BaseFile::Run, place).map(<[u8]>::to_vec));
    let runs = std::iter::once(&files.run).chain(deltas);
    let runs = runs.map(|run| run.clone().into_iter().map(Ok)).collect();
    let Ok((reading, mut building)) = image::begin_in_blocks(runs, BaseRun { top, base, read }) else {
        return;
    };
    let mut built = Ok(());
    let read = reading.read(100, |mut versions| {
        built = building.take(&versions);
        versions.clear();
        built.is_ok().then_some(versions)
    });
    let Ok(mut machine) = built.and(read).and_then(|()| building.finish(RULES)) else { return };
    let view = machine.store.publish();
    let snapshot = view.snapshot();
    let (histories, live) = (snapshot.histories().count(), snapshot.live_keys());
    let changes = snapshot.written(Revision(1), snapshot.current_revision()).count();
    if view.fault().is_none() {
        assert!(
            live <= histories as u64 && histories <= changes,
            "{live} live, {histories}, {changes} changes"
        );
    }
}

/// Returns two seeds: the blocks of a base run, and the blocks of a base run followed by a run with later
/// changes.
pub fn seeds_image() -> Vec<Vec<u8>> {
    let (mut machine, journal) = example();
    let base = |machine: &mut Machine, from| {
        let mut writer = RunWriter::new(machine.store.publish(), machine.head(), from);
        std::iter::from_fn(move || writer.next_block().expect("a held view has everything"))
            .collect::<Vec<_>>()
    };
    let scribe =
        |scribe: Scribe, blocks: &[Vec<u8>]| blocks.iter().fold(scribe, |scribe, block| scribe.run(block));
    let first = base(&mut machine, Revision(0));
    let from = machine.store.current_revision();
    let alone = scribe(Scribe::default(), &first).done();
    for request in commands::examples().into_iter().filter(|request| request.put.is_some()) {
        let data = Bytes::from(request.encode_to_vec());
        let location = journal.append(&data);
        let index = machine.applied_index + 1;
        machine
            .apply(Command { index, term: Term(1), data: &data, location }, &journal, false)
            .expect("applies");
    }
    let delta = base(&mut machine, from);
    let both = scribe(scribe(Scribe::default(), &first).run(NEXT_RUN), &delta).done();
    let mut empty = Machine::new(RULES);
    let nothing = scribe(Scribe::default(), &base(&mut empty, Revision(0))).done();
    // A base in blocks, with a delta run that has a version in the range of one of them.
    let put = |machine: &mut Machine, n: u32| {
        let put = PutRequest { key: format!("many/{n:04}").into(), ..PutRequest::default() };
        let request = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
        let data = Bytes::from(request.encode_to_vec());
        let location = journal.append(&data);
        let index = machine.applied_index + 1;
        machine
            .apply(Command { index, term: Term(1), data: &data, location }, &journal, false)
            .expect("applies");
    };
    (0..150).for_each(|n| put(&mut machine, n));
    machine.store.compact(machine.store.current_revision()).expect("compacts");
    while !machine.compact_step(1000) {}
    let mut writer = BaseWriter::new(machine.store.publish(), machine.head());
    let (mut files, mut top) = (Files::default(), Vec::new());
    while let Some((file, blocks)) = writer.next_blocks().expect("a held view has everything") {
        for block in blocks {
            if file == BaseFile::Top {
                top.push(block);
                writer.written(BlockPlace::default());
            } else {
                writer.written(files.append(file, block));
            }
        }
    }
    let from = machine.store.current_revision();
    put(&mut machine, 77);
    let delta = base(&mut machine, from);
    let runs = [&files.run, &files.changes, &top, &delta];
    let in_blocks =
        runs.iter().fold(Scribe::default(), |before, run| scribe(before, run).run(NEXT_RUN)).done();
    vec![alone, both, nothing, in_blocks]
}

/// Appends a block in its frame.
fn frame(block: &[u8], out: &mut Vec<u8>) {
    let len = (block.len() as u32).to_le_bytes();
    out.extend_from_slice(&len);
    out.extend_from_slice(&crc32c::crc32c_append(crc32c::crc32c(&len), block).to_le_bytes());
    out.extend_from_slice(block);
}

/// First byte of a script that contains the stream itself, in place of blocks from which the target builds
/// the stream.
const RAW: u8 = 0;

/// Returns the blocks in a stream of frames, without their frames.
fn unframed(stream: &[u8]) -> Vec<&[u8]> {
    let (mut blocks, mut rest) = (Vec::new(), &stream[SNAPSHOT_MAGIC.len()..]);
    while let Some((frame, behind)) = rest.split_first_chunk::<FRAME_BYTES>() {
        let len = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
        let (block, behind) = behind.split_at(len);
        blocks.push(block);
        rest = behind;
    }
    blocks
}

/// Fuzz target for snapshots: restores a state machine from a stream. The script contains either the whole
/// stream, or blocks to which this function adds frames and padding.
pub fn run_snapshot(data: &[u8]) {
    let mut script = Script::new(data);
    let (how, cut) = (script.u8(), script.u8());
    let stream = if how == RAW {
        script.rest().to_vec()
    } else {
        let mut stream = SNAPSHOT_MAGIC.to_vec();
        while !script.is_done() {
            let mut block = script.run().to_vec();
            if script.is_done() {
                let end = stream.len() + FRAME_BYTES + block.len();
                block.resize(block.len() + end.next_multiple_of(ALIGN) - end, 0);
            }
            frame(&block, &mut stream);
        }
        stream
    };
    let chunks = pieces(&stream, cut).map(Ok::<_, Infallible>);
    let Ok(reader) = SnapshotReader::open(chunks) else { return };
    let journal = Journal::default();
    let place = |value: &[u8]| Ok(journal.append(&Bytes::copy_from_slice(value)));
    if let Ok(mut machine) = snapshot::restore(RULES, reader, None, place) {
        let again = snapshot_of(&mut machine, &journal);
        let reader = SnapshotReader::open(again.chunks(100).map(Ok::<_, Infallible>)).expect("can be read");
        let mut restored =
            snapshot::restore(RULES, reader, None, place).expect("what was written can be read");
        assert_same(&mut machine, &mut restored);
        live_on(machine);
    }
}

/// Returns a snapshot, as a whole stream and in blocks.
pub fn seeds_snapshot() -> Vec<Vec<u8>> {
    let (mut machine, journal) = example();
    let stream = snapshot_of(&mut machine, &journal);
    let mut blocks = Scribe::default().u8(1).u8(9);
    for block in unframed(&stream) {
        // Remove the padding here, because the target adds it again.
        let len = block.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        blocks = blocks.run(&block[..len]);
    }
    vec![Scribe::default().u8(RAW).u8(0).raw(&stream).done(), blocks.done()]
}

fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
    (product as u64 ^ (product >> 64) as u64).rotate_left(23)
}

/// Fuzz target for transfers: a receiver, which is empty or already has data, receives two streams one after
/// the other. The script contains each stream either as a whole, or as blocks to which this function adds
/// frames and checksums.
pub fn run_transfer(data: &[u8]) {
    let mut script = Script::new(data);
    let held = script.run();
    if let Ok(held) = Held::from_bytes(held) {
        assert_eq!(Held::from_bytes(&held.to_bytes()), Ok(held));
        let (mut machine, journal) = example();
        let head = machine.head();
        head.can_follow(&held);
        let from = head.transfer_from(Some(&held), &machine.state_trail(Index(0)));
        let mut writer = TransferWriter::new(machine.store.publish(), head, from);
        while writer.next_chunk(&journal).expect("the journal keeps everything").is_some() {}
    }
    let has_something = script.flip();
    let (mut machine, journal) =
        if has_something { example() } else { (Machine::new(RULES), Journal::default()) };
    let base = has_something.then(|| (AsOf::from(machine.store.publish()), machine.head()));
    let mut assembly = Assembly::new(RULES, base);
    for _ in 0..2 {
        let (how, cut) = (script.u8(), script.u8());
        let stream = if how == RAW { script.run().to_vec() } else { transfer_stream(&mut script, how) };
        let chunks = pieces(&stream, cut).map(Ok::<_, Infallible>);
        let Ok(mut reader) = TransferReader::open(chunks) else { continue };
        if assembly.begin(reader.head()).is_err() {
            continue;
        }
        let whole = loop {
            match reader.next() {
                Ok(None) => break true,
                Err(_) => break false,
                Ok(Some(version)) => {
                    let location = match version.value {
                        [] => Location::default(),
                        value => journal.append(&Bytes::copy_from_slice(value)),
                    };
                    assembly.push(&ReceivedVersion::of(&version).expect("fits"), location);
                }
            }
        };
        if !whole {
            assembly.pause();
            continue;
        }
        if let Ok(machine) = assembly.finish(reader.finish()) {
            live_on(machine);
        }
        return;
    }
}

/// Builds a stream with this many blocks. The last block ends the stream and contains the checksum.
fn transfer_stream(script: &mut Script<'_>, blocks: u8) -> Vec<u8> {
    let (mut stream, mut checksum) = (TRANSFER_MAGIC.to_vec(), 0_u64);
    for number in 1..=blocks {
        let mut block = script.run().to_vec();
        if number == blocks {
            block.extend_from_slice(&checksum.to_le_bytes());
        }
        let start = stream.len();
        frame(&block, &mut stream);
        let framed = stream[start..].first_chunk().map_or(0, |frame| u64::from_le_bytes(*frame));
        checksum = mix(checksum, framed);
    }
    stream
}

/// Returns a transfer to an empty receiver, whole and interrupted, and one to a receiver that already has
/// data.
pub fn seeds_transfer() -> Vec<Vec<u8>> {
    let (mut machine, journal) = example();
    let held = machine.head().held().to_bytes();
    let in_blocks = |scribe: Scribe, stream: &[u8]| {
        let blocks = unframed(stream);
        let scribe = scribe.u8(blocks.len() as u8).u8(11);
        blocks.iter().enumerate().fold(scribe, |scribe, (at, block)| {
            let checksum = if at + 1 == blocks.len() { 8 } else { 0 };
            scribe.run(&block[..block.len() - checksum])
        })
    };
    let whole = transfer_of(&mut machine, &journal);
    let raw = Scribe::default().run(&held).u8(0).u8(RAW).u8(5).run(&whole).done();
    let broken = Scribe::default().run(&[]).u8(0).u8(RAW).u8(5).run(&whole[..whole.len() - 30]);
    let behind = machine.store.current_revision();
    let first = commands::examples().swap_remove(2);
    let data = Bytes::from(first.encode_to_vec());
    let location = journal.append(&data);
    let index = machine.applied_index + 1;
    machine.apply(Command { index, term: Term(1), data: &data, location }, &journal, false).expect("applies");
    let mut writer = TransferWriter::new(machine.store.publish(), machine.head(), behind);
    let mut delta = Vec::new();
    while let Some(chunk) = writer.next_chunk(&journal).expect("the journal keeps everything") {
        delta.extend_from_slice(&chunk);
    }
    vec![
        raw,
        in_blocks(Scribe::default().run(&[]).u8(0), &whole).done(),
        in_blocks(broken, &whole).done(),
        in_blocks(Scribe::default().run(&held).u8(1), &delta).done(),
    ]
}
