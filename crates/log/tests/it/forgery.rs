//! Tests with values forged by a client that knows the format, the ids (which every response header
//! contains), and the numbering of segments.

use bytes::Bytes;
use disk::MemDisk;
use mainstay_log::{Batch, Entry, HardState, Options};
use numbers::{Index, MemberId, Term};

use crate::kit::{Opened, entries, entry, open_with, options, segment_path};

const SEGMENT_BYTES: usize = 16 << 10;

/// Options with secrets from the operating system's randomness, as a member has them.
fn real() -> Options {
    Options { secret_seed: None, ..options() }
}

fn closed(log: Opened) -> Options {
    let closed_at = log.log.values().log_end();
    drop(log);
    Options { closed_at, ..real() }
}

/// The checksum that version 1 uses instead of a secret: over the cluster, the member, the incarnation and
/// the number of a segment.
fn guess(seq: u32) -> u32 {
    let mut bytes = Vec::new();
    for number in [0xc1u64, 0x3e, 1] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&seq.to_le_bytes());
    crc32c::crc32c(&bytes)
}

/// Returns a forged record without a payload. `place` is the part of its checksum that depends on the
/// record's offset.
fn forged(identity: u32, mark: u16, place: u32, kind: u8, batch: u32, term: u64, index: u64) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend_from_slice(&[kind, 0]);
    bytes.extend_from_slice(&mark.to_le_bytes());
    bytes.extend_from_slice(&batch.to_le_bytes());
    bytes.extend_from_slice(&term.to_le_bytes());
    bytes.extend_from_slice(&index.to_le_bytes());
    let crc = crc32c::crc32c_append(identity ^ place, &bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// A value full of forged records for the segments `from..from + 8`, whose batches begin late in the segment.
fn poison(from: u32, index: u64) -> Bytes {
    let mut value = Vec::new();
    for nth in 0..28u32 {
        let identity = guess(from + nth % 8);
        let mark = (identity >> 16) as u16 ^ identity as u16;
        let kind = [1, 2, 3, 6][(nth / 8) as usize];
        value.extend_from_slice(&forged(
            identity,
            mark,
            0,
            kind,
            4096 + 4096 * (nth % 2),
            1 << 40,
            index + 1,
        ));
    }
    Bytes::from(value)
}

fn put(log: &mut Opened, index: u64, data: Bytes) {
    log.put(Batch {
        entries: vec![Entry { term: Term(1), index: Index(index), entry_type: 0, data }],
        hard_state: Some(HardState { term: Term(1), vote: MemberId(0x3e), commit: Index(index) }),
        ..Batch::default()
    });
}

fn release_sealed(log: &mut Opened) {
    for segment in log.log.segments().iter().filter(|segment| segment.sealed) {
        log.log.release(segment.seq).unwrap();
    }
    log.log.turn();
}

#[test]
fn values_made_of_guessed_records_do_no_harm_in_recycled_files() {
    let disk = MemDisk::new(1);
    let mut log = open_with(real(), &disk, 1).unwrap();
    let mut index = 0;
    for round in 0..40 {
        for _ in 0..1 + round % 13 {
            index += 1;
            let seq = log.log.segments().last().map_or(0, |segment| segment.seq);
            put(&mut log, index, poison(seq, index));
        }
        release_sealed(&mut log);
        // Reopen after a clean shutdown.
        let options = closed(log);
        log = open_with(options, &disk, 1).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let found = (log.recovered.last_index, log.recovered.hard_state.term, log.recovered.repairs.len());
        assert_eq!(found, (Index(index), Term(1), 0), "round {round}");
        // Reopen after a kill during a write that left garbage.
        let end = log.log.values().log_end().unwrap();
        drop(log);
        let path = segment_path(end.segment);
        let mut torn = disk.contents(&path).unwrap();
        // The garbage begins after the sector in which the log ends, because an interrupted write leaves
        // whole sectors.
        let from = (end.offset as usize).next_multiple_of(512);
        let to = (from + 100).min(torn.len());
        torn[from.min(to)..to].fill(0xa5);
        disk.plant(&path, torn);
        log = open_with(real(), &disk, 1).unwrap_or_else(|error| panic!("round {round}, torn: {error}"));
        assert_eq!(
            (log.recovered.last_index, log.recovered.hard_state.term),
            (Index(index), Term(1)),
            "round {round}"
        );
    }
}

#[test]
fn the_batch_that_was_torn_may_hold_whatever_it_likes() {
    let disk = MemDisk::new(1);
    let mut log = open_with(real(), &disk, 1).unwrap();
    log.put(entries(1..=3, 1, 500));
    // Forged records, and genuine ones of this very segment, which is copied whole.
    let own = disk.contents(&segment_path(0)).unwrap();
    let used = log.log.segments()[0].used_bytes as usize;
    let mut data = own[4096..used].to_vec();
    data.extend_from_slice(&poison(0, 4));
    let from = used;
    put(&mut log, 4, Bytes::from(data.clone()));
    let end = log.log.segments()[0].used_bytes as usize;
    drop(log);
    let path = segment_path(0);
    let whole = disk.contents(&path).unwrap();
    // Whichever sector is missing, the batch was never acknowledged, so it is cut off.
    for sector in from / 512..end.div_ceil(512) {
        let mut torn = whole.clone();
        torn[(sector * 512).max(from)..((sector + 1) * 512).min(end)].fill(0);
        disk.plant(&path, torn);
        let mut log = open_with(real(), &disk, 1).unwrap_or_else(|error| panic!("sector {sector}: {error}"));
        let last = log.recovered.last_index;
        assert!(last == Index(3) || last == Index(4) && sector == (end - 1) / 512, "sector {sector}: {last}");
        log.put(Batch { entries: vec![entry((last + 1).0, 2, 40)], ..Batch::default() });
        drop(log);
        assert_eq!(open_with(real(), &disk, 1).unwrap().recovered.last_index, last + 1, "sector {sector}");
    }
}

#[test]
fn a_record_copied_to_another_place_of_its_own_segment_is_none() {
    let disk = MemDisk::new(1);
    let mut log = open_with(real(), &disk, 1).unwrap();
    for index in 1..=3 {
        log.put(entries(index..=index, 1, 100));
    }
    let used = log.log.segments()[0].used_bytes as usize;
    drop(log);
    let path = segment_path(0);
    let good = disk.contents(&path).unwrap();
    let record = good[used - 136..used].to_vec();
    // Behind the end and its 16 zeros, where a client's value could have left the record.
    for at in (used + 16..SEGMENT_BYTES - 200).step_by(8).take(64) {
        let mut bad = good.clone();
        bad[at..at + record.len()].copy_from_slice(&record);
        disk.plant(&path, bad);
        let log = open_with(real(), &disk, 1).unwrap_or_else(|error| panic!("at {at}: {error}"));
        assert_eq!(log.recovered.last_index, Index(3), "at {at}");
    }
}

#[test]
fn every_use_of_a_segment_has_a_secret_of_its_own() {
    let secrets = |options: fn() -> Options| {
        let disk = MemDisk::new(1);
        let mut log = open_with(options(), &disk, 1).unwrap();
        let mut secrets = Vec::new();
        for index in 1..=60 {
            log.put(entries(index..=index, 1, 1500));
            for segment in log.log.segments() {
                let bytes = disk.contents(&segment_path(segment.seq)).unwrap();
                let secret = u64::from_le_bytes(bytes[48..56].try_into().unwrap());
                if !secrets.contains(&secret) {
                    secrets.push(secret);
                }
            }
            release_sealed(&mut log);
        }
        let segments = log.log.segments().last().unwrap().seq as usize + 1;
        assert_eq!(secrets.len(), segments);
        secrets
    };
    let first = secrets(real);
    assert!(secrets(real).iter().all(|secret| !first.contains(secret)), "another directory has others");
    let seeded = || Options { secret_seed: Some(9), ..options() };
    assert_eq!(secrets(seeded), secrets(seeded), "with a seed they repeat");
}
