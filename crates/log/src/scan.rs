//! Reads the records of a segment, and distinguishes a torn tail from damage.

use std::io;

use bytes::{Bytes, BytesMut};
use disk::File;

use crate::format::{
    END_BYTES, Found, Identity, RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES, find, outline,
    padded,
};

/// Number of bytes read at once: large enough to amortize the system call, small enough to stay in the
/// processor's cache.
const CHUNK_BYTES: usize = 1 << 20;

/// Offset at which the records of a segment end, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub offset: u64,
    /// Description of the invalid data at the offset; `None` if there is a valid end mark.
    pub invalid: Option<&'static str>,
}

/// Calls `visit` with offset, header and payload of each record from `from` on. The payloads share the memory
/// of the chunk that was read. An error of `visit` ends the scan.
pub(crate) fn records<E: From<io::Error>>(
    file: &dyn File,
    identity: Identity,
    len: u64,
    from: u64,
    mut visit: impl FnMut(u64, RecordHeader, Bytes) -> Result<(), E>,
) -> Result<Ending, E> {
    let mut chunk = BytesMut::new();
    let mut offset = from;
    loop {
        let needed = match find(&chunk, offset, len, identity) {
            Found::Record(header, payload) => {
                let mut record = chunk.split_to(padded(payload));
                let payload = record.split_off(RECORD_HEADER_BYTES).split_to(payload).freeze();
                let next = offset + padded(payload.len()) as u64;
                visit(offset, header, payload)?;
                offset = next;
                continue;
            }
            Found::Short(total) => total,
            Found::End => return Ok(Ending { offset, invalid: None }),
            Found::Invalid(why) => return Ok(Ending { offset, invalid: Some(why) }),
        };
        let have = chunk.len();
        let want = (needed.max(CHUNK_BYTES) as u64).min(len - offset) as usize;
        // `reserve` reuses the memory of the previous chunk if no slice of it is still referenced.
        chunk.reserve(want - have);
        chunk.resize(want, 0);
        let read = file.read_at(&mut chunk[have..], offset + have as u64)?;
        chunk.truncate(have + read);
        if chunk.len() < needed {
            return Ok(Ending { offset, invalid: Some("the file ends within a record") });
        }
    }
}

/// Valid records that were found after an offset at which the log seems to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remains {
    /// Offset of the first valid record whose batch began after that offset. It proves that the data at the
    /// offset had been synced.
    pub later_batch: Option<u64>,
    /// Offset of the first valid record; `None` if there is none.
    pub first: Option<u64>,
    /// End of the last valid record; `None` if there is none.
    pub end: Option<u64>,
}

/// Searches for valid records of this segment anywhere after `from`.
pub(crate) fn remains(file: &dyn File, identity: Identity, len: u64, from: u64) -> io::Result<Remains> {
    let mut remains = Remains::default();
    let mut chunk: Vec<u8> = Vec::new();
    let mut record: Vec<u8> = Vec::new();
    let mut offset = from;
    while offset + RECORD_HEADER_BYTES as u64 <= len {
        let Some(data) = file.next_data(offset)? else { break };
        // Records begin at multiples of 8. A record may begin with zeros, that is, before the first byte that
        // is not zero.
        offset = offset.max((data & !7).saturating_sub(RECORD_HEADER_BYTES as u64));
        let want = (CHUNK_BYTES as u64).min(len.saturating_sub(offset)) as usize;
        chunk.resize(want, 0);
        let read = file.read_at(&mut chunk, offset)?;
        if read < RECORD_HEADER_BYTES {
            break;
        }
        let mut at = 0;
        while at + RECORD_HEADER_BYTES <= read {
            let here = offset + at as u64;
            let found = match find(&chunk[at..read], here, len, identity) {
                Found::Short(total) => {
                    record.resize(total, 0);
                    let got = file.read_at(&mut record, here)?;
                    find(&record[..got], here, len, identity)
                }
                found => found,
            };
            let Found::Record(header, payload) = found else {
                // Most of a segment's unused space is zeros, which are skipped. A record begins with at most
                // 8 zero bytes.
                at += 8 + zeros(&chunk[at + 8..read]).saturating_sub(8);
                continue;
            };
            if u64::from(header.batch_start) > from {
                remains.later_batch.get_or_insert(here);
            }
            remains.first.get_or_insert(here);
            remains.end = Some(here + padded(payload) as u64);
            at += padded(payload);
        }
        offset += at as u64;
    }
    Ok(remains)
}

/// The last valid record before an offset; all fields are zero if there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    /// Offset of the record.
    pub record: u64,
    /// Offset of the first record of its batch.
    pub batch: u64,
}

/// Number of bytes that a device writes atomically: after a power cut they are all new or all old. Some
/// devices have larger units, none has smaller ones.
const SECTOR_BYTES: u64 = 512;

/// Returns true if no torn write explains the bytes at `from`, where the valid records end.
///
/// A torn write leaves whole sectors with their old contents, and these are partly known: every synced batch
/// is followed by [`END_BYTES`] zeros. So a sector that the write reached has all records of the write, and a
/// sector that it did not reach has those zeros. The sector of `from` can be judged only if the record before
/// `from` ends within it, or if it has records of the same batch after `from`. Only the head of a record
/// proves that the write reached a sector, because it contains a part of the segment's secret. The bytes of a
/// value prove nothing, because the previous use of the file may have had the same data there.
///
/// # Example
///
/// The previous batch ends at 4456, in the sector from 4096 to 4608. A torn write leaves at 4456 either zeros
/// or the head of a record that ends after 4608. Anything else is damage, for example the head of a record
/// that ends at 4544 and has a wrong checksum.
pub(crate) fn is_no_torn_write(
    file: &dyn File,
    identity: Identity,
    len: u64,
    from: u64,
    before: Before,
    remains: &Remains,
) -> io::Result<bool> {
    let sector = from / SECTOR_BYTES;
    let reached = |at: u64| remains.first.is_some_and(|first| first / SECTOR_BYTES == at);
    let sector_end = (sector + 1) * SECTOR_BYTES;
    // A head that continues in the next sector may itself be torn, so nothing can be concluded.
    if from + END_BYTES as u64 > sector_end || from + RECORD_HEADER_BYTES as u64 > len {
        return Ok(false);
    }
    let mut head = [0; END_BYTES];
    file.read_exact_at(&mut head, from)?;
    if head == [0; END_BYTES] {
        return Ok(reached(sector));
    }
    let begins_there = |start: u32| u64::from(start) == from || u64::from(start) == before.batch;
    let Some(payload) = outline(&head, identity).filter(|(_, start)| begins_there(*start)) else {
        // The header of a segment is written together with the zeros after it.
        let is_first = from == SEGMENT_HEADER_BYTES as u64;
        return Ok(is_first || before.record / SECTOR_BYTES == sector || reached(sector));
    };
    let end = from + padded(payload.0) as u64;
    let last_sector = (end - 1) / SECTOR_BYTES;
    Ok(last_sector == sector
        || last_sector == sector + 1 && remains.first == Some(end) && reached(last_sector))
}

/// Returns the number of zero bytes at the beginning, as a multiple of 8.
fn zeros(bytes: &[u8]) -> usize {
    // Large blocks are compared first: each comparison is one call that compares many bytes at once.
    let blocks = bytes.chunks_exact(512).take_while(|block| **block == [0; 512]).count() * 512;
    let words = bytes[blocks..].chunks_exact(8).take_while(|word| **word == [0; 8]).count() * 8;
    blocks + words
}

/// Overwrites the remains of a torn write with zeros, and syncs them. `end` is the end of the last valid
/// record in the remains.
pub(crate) fn clear(file: &dyn File, len: u64, from: u64, end: Option<u64>) -> io::Result<()> {
    assert!(from >= SEGMENT_HEADER_BYTES as u64, "the header is never overwritten");
    let least = (from + RECORD_HEADER_BYTES as u64).min(len);
    let to = end.unwrap_or(least).max(least).min(len);
    let zeros = vec![0; CHUNK_BYTES];
    let mut at = from;
    while at < to {
        let piece = zeros.len().min((to - at) as usize);
        file.write_at(&zeros[..piece], at)?;
        at += piece as u64;
    }
    file.sync_data()
}

/// Reads the bytes from `from` to `to` and writes them again, so that the next sync makes them durable even
/// if an earlier sync failed: after a failed sync, Linux marks the pages as clean although they were not
/// written.
pub(crate) fn rewrite(file: &dyn File, from: u64, to: u64) -> io::Result<()> {
    let mut chunk = Vec::new();
    let mut at = from;
    while at < to {
        chunk.resize((CHUNK_BYTES as u64).min(to - at) as usize, 0);
        let read = file.read_at(&mut chunk, at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_at(&chunk[..read], at)?;
        at += read as u64;
    }
    Ok(())
}
