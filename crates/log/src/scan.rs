//! Reads the records of a segment, and determines whether invalid data at their end is the remains of an
//! interrupted write (a torn tail) or damage.

use std::io;

use bytes::{Bytes, BytesMut};
use disk::File;

use crate::format::{
    END_BYTES, Found, Identity, RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES, find, outline,
    padded,
};

/// Number of bytes that one read asks for: enough to amortize the system call, but few enough to stay in the
/// processor's cache.
const CHUNK_BYTES: usize = 1 << 20;

/// The end of a segment's valid records, and the reason why they end there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub offset: u64,
    /// Description of the invalid data at the offset; `None` if there is a valid end mark.
    pub invalid: Option<&'static str>,
}

/// Calls `visit` with offset, header and payload of each valid record from `from` on, up to the first invalid
/// one. The payloads share the memory of the chunk that was read: keeping a payload keeps the whole chunk. An
/// error of `visit` ends the scan and is returned.
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
        // `reserve` reuses the memory of the previous chunk, unless `visit` has kept a payload in it.
        chunk.reserve(want - have);
        chunk.resize(want, 0);
        let read = file.read_at(&mut chunk[have..], offset + have as u64)?;
        chunk.truncate(have + read);
        if chunk.len() < needed {
            return Ok(Ending { offset, invalid: Some("the file ends within a record") });
        }
    }
}

/// Summary of the valid records that [`remains`] found after the offset at which the log seems to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remains {
    /// Offset of the first valid record whose batch began after the seeming end of the log. The record proves
    /// that the data at the seeming end had been synced, so that data is damaged.
    pub later_batch: Option<u64>,
    /// Offset of the first valid record; `None` if there is none.
    pub first: Option<u64>,
    /// End of the last valid record; `None` if there is none.
    pub end: Option<u64>,
}

/// Searches the whole rest of the file for valid records of this segment. `from` is the offset at which the
/// log seems to end.
pub(crate) fn remains(file: &dyn File, identity: Identity, len: u64, from: u64) -> io::Result<Remains> {
    let mut remains = Remains::default();
    let mut chunk: Vec<u8> = Vec::new();
    let mut record: Vec<u8> = Vec::new();
    let mut offset = from;
    while offset + RECORD_HEADER_BYTES as u64 <= len {
        let Some(data) = file.next_data(offset)? else { break };
        // Skip the hole up to the next data. Records begin at multiples of 8. The search begins one record
        // header before the data, because a record may begin with zeros that lie in the hole.
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
                // There is no record here. Zeros are skipped, because most of the unused space is zeros. The
                // last 8 of them are not, because a record may begin with up to 8 zero bytes.
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

/// The last valid record before the offset at which the log seems to end; all fields are zero if there is
/// none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    /// Offset of the record in the segment's file.
    pub record: u64,
    /// Offset of the first record of the batch to which the record belongs.
    pub batch: u64,
}

/// Number of bytes that a disk writes atomically: after a power cut they are all new or all old. Some disks
/// have larger units, none has smaller ones.
const SECTOR_BYTES: u64 = 512;

/// Returns true if no torn write can explain the bytes at `from`, where the valid records end, so that they
/// are damage. Returns false if they may be the remains of a torn write.
///
/// A torn write leaves each sector either completely new or completely old. A sector that the write reached
/// contains all bytes that were to be written there. In a sector that it did not reach, the batch before is
/// still followed by [`END_BYTES`] zeros.
///
/// The sector of `from` is known to be reached, or to be written by the batch before, only if the record
/// before `from` begins in it, or if a valid record after `from` begins in it. Only the header of a record
/// proves that a write reached a sector, because it contains a part of the segment's secret. The bytes of a
/// value prove nothing, because the previous use of the file may have left the same bytes there.
///
/// # Example
///
/// The previous batch ends at 4456, in the sector from 4096 to 4608. A torn write leaves at 4456 either zeros
/// or the header of a record that ends after 4608 (otherwise the sector would contain the whole record, and
/// the record would be valid). Anything else is damage, for example the header of a record that ends at 4544
/// and has a wrong checksum.
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
    // Nothing can be concluded if the first bytes of the record's header reach into the next sector, because
    // they may themselves be torn, or if the file has no space for a header.
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
        // The bytes are neither zeros nor the beginning of a record. At the first record of a segment that is
        // always damage: the segment's header was written together with zeros after it.
        let is_first = from == SEGMENT_HEADER_BYTES as u64;
        return Ok(is_first || before.record / SECTOR_BYTES == sector || reached(sector));
    };
    let end = from + padded(payload.0) as u64;
    let last_sector = (end - 1) / SECTOR_BYTES;
    Ok(last_sector == sector
        || last_sector == sector + 1 && remains.first == Some(end) && reached(last_sector))
}

/// Returns the number of zero bytes at the beginning of `bytes`, rounded down to a multiple of 8.
fn zeros(bytes: &[u8]) -> usize {
    // Compare blocks of 512 bytes first, because that is faster than single words; then the rest in words of
    // 8 bytes.
    let blocks = bytes.chunks_exact(512).take_while(|block| **block == [0; 512]).count() * 512;
    let words = bytes[blocks..].chunks_exact(8).take_while(|word| **word == [0; 8]).count() * 8;
    blocks + words
}

/// Overwrites the remains of a torn write with zeros, and syncs the file. The remains begin at `from`. `end`
/// is the end of the last valid record in them; if there is none, only the length of a record header is
/// overwritten.
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

/// Reads the bytes from `from` to `to` and writes them again, so that the next sync makes them durable.
/// Without this, the sync would not write them if an earlier sync has failed: Linux then marks the pages as
/// clean, although they were not written.
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
