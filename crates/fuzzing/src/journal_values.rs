//! Stores values that look like parts of the log. Recovery must never take such a value for a record.
//!
//! A client chooses the bytes of a value, which are stored unchanged in a segment. So a client could try to
//! forge a record, a header or a whole segment. Recovery could find the forged bytes after a torn write, in a
//! reused segment, or after the end of the log.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use disk::{Disk, Fault, MemDisk, Operation};
use log::{Batch, Entry, Log};
use numbers::{Index, Term};

use crate::journal_files::{DIR, HEADER_BYTES, entries, header, identity, new_disk, open, record};
use crate::script::Script;

/// Maximum number of steps that one input performs.
const STEPS_MAX: usize = 40;
const VALUE_BYTES_MAX: usize = 5000;

/// Returns the number and the content of each segment; the newest segment is the last one.
fn segments(disk: &MemDisk) -> Vec<(u32, Vec<u8>)> {
    let names = disk.list(Path::new(DIR)).expect("a disk in memory");
    let mut all: Vec<(u32, Vec<u8>)> = names
        .iter()
        .filter_map(|name| {
            let seq = u32::from_str_radix(name.strip_suffix(".seg")?, 16).ok()?;
            Some((seq, disk.contents(&Path::new(DIR).join(name)).expect("a disk in memory")))
        })
        .collect();
    all.sort_unstable();
    all
}

/// Builds a value that looks like a part of the log. `next` is the index of the next entry.
fn forged(script: &mut Script<'_>, disk: &MemDisk, next: u64) -> Bytes {
    let all = segments(disk);
    let (seq, newest) = all.last().cloned().unwrap_or_default();
    let from = usize::from(script.u16());
    let len = usize::from(script.u16()) % VALUE_BYTES_MAX;
    let cut = |bytes: &[u8]| {
        let at = if bytes.is_empty() { 0 } else { from % bytes.len() };
        bytes[at..].iter().copied().take(len).collect::<Vec<u8>>()
    };
    let bytes = match script.below(5) {
        // Copies bytes from a segment of the log: from the newest one (0), or from any of them (1).
        0 => cut(&newest),
        1 => cut(all.get(from % all.len().max(1)).map_or(&[][..], |(_, bytes)| bytes)),
        // Builds records in version 1 of the format, whose identity can be computed from ids that clients
        // know.
        2 => {
            let known = identity(seq, 1 + u64::from(script.below(2)), None);
            (0..8)
                .flat_map(|n| record(known, HEADER_BYTES, 1, 0, script.u32(), 1, next + n, b"forged"))
                .collect()
        }
        // Builds records in the current version, with a guessed secret.
        3 => {
            let guessed = identity(seq, 1, Some(script.u64()));
            let end = newest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let place = end.next_multiple_of(8) + 64;
            (0..8)
                .flat_map(|n| {
                    record(guessed, place + 64 * n, 1, 0, place as u32, 1, next + n as u64, b"forged")
                })
                .collect()
        }
        // Builds the beginning of a whole segment: a header and a record.
        _ => {
            let mut bytes = header(seq + 1, 1, 16 << 10, script.flip().then_some(1));
            bytes.extend(record(identity(seq + 1, 1, None), bytes.len(), 1, 0, 4096, 1, next, b"forged"));
            bytes
        }
    };
    let shift = usize::from(script.below(8));
    Bytes::from([&vec![0; shift], bytes.as_slice()].concat())
}

/// Returns the entries with index `first` and higher.
fn kept(all: &[Entry], first: u64) -> Vec<Entry> {
    all.iter().filter(|entry| entry.index >= Index(first)).cloned().collect()
}

/// Opens the log again. It must contain all synced entries, which are those of `model` from index `first` on.
/// It may also contain the entry `maybe`, whose write was interrupted.
fn reopen(disk: &Arc<MemDisk>, model: &mut Vec<Entry>, maybe: Option<Entry>, first: u64) -> Log {
    let (log, (recovered, replayed), _) =
        open(disk, first, false).unwrap_or_else(|| panic!("a log of {} entries is refused", model.len()));
    let there = kept(&entries(&replayed), first);
    let expected = kept(model, first);
    let longer: Vec<Entry> = expected.iter().cloned().chain(maybe.clone()).collect();
    if maybe.is_some() && there == longer {
        model.extend(maybe);
    } else {
        assert_eq!(there, expected, "{recovered:?}");
    }
    log
}

/// Fuzz target: appends forged values, interrupts writes, reuses files, and checks the log after each
/// restart.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let disk = new_disk();
    let mut log = open(&disk, 1, false).expect("opens").0;
    let (mut model, mut first) = (Vec::new(), 1);
    for _ in 0..STEPS_MAX {
        if script.is_done() {
            break;
        }
        let index = model.len() as u64 + 1;
        let how = script.below(8);
        let data = if how < 6 { forged(&mut script, &disk, index) } else { Bytes::new() };
        let entry = Entry { term: Term(1), index: Index(index), entry_type: 0, data };
        let batch = Batch { entries: vec![entry.clone()], ..Batch::default() };
        match how {
            0..=3 => {
                log.append(batch).expect("there is room");
                log.turn();
                model.push(entry);
            }
            // The power fails during the write.
            4 | 5 => {
                disk.fail_next(Operation::Change, 1 + u64::from(script.below(3)), Fault::PowerCut);
                let _ = log.append(batch);
                log.turn();
                drop(log);
                disk.crash();
                disk.heal();
                log = reopen(&disk, &mut model, Some(entry), first);
            }
            6 => {
                drop(log);
                if script.flip() {
                    disk.crash();
                }
                log = reopen(&disk, &mut model, None, first);
            }
            // Drops old entries, so that their files are used again.
            _ => {
                first = index.saturating_sub(u64::from(script.below(4))).max(first).max(1);
                log.forget_below(Index(first));
                let old: Vec<u32> = log
                    .segments()
                    .iter()
                    .filter(|segment| segment.sealed && segment.last_index < Index(first))
                    .map(|segment| segment.seq)
                    .collect();
                for seq in old {
                    log.release(seq).expect("it is sealed, and nobody reads it");
                }
                log.turn();
            }
        }
    }
    drop(log);
    reopen(&disk, &mut model, None, first);
}

/// Returns scripts of arbitrary bytes, because any bytes are a valid script.
pub fn seeds() -> Vec<Vec<u8>> {
    crate::commands::seeds()
}
