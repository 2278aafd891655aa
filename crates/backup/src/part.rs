//! Parts: committed raft entries as they are kept in a backup.
//!
//! ```text
//! part    "MNSTPART" | version u32 (1) | 0 u32 | cluster id u64 | blocks
//! block    0 length u32, of what follows the first 8 bytes
//!          4 crc32c u32, of what follows
//!          8 time u64, in milliseconds since 1970: all entries of the block were applied by then
//!         16 revision i64, after the last entry of the block; -1 if it is not known
//!         24 first index u64
//!         32 last index u64
//!         40 flags u32: 1 if the next field is known
//!         44 rolling hash of the state after the last entry u64
//!         52 length u32, of the entries before compression
//!         56 a frame of zstd with the entries, by ascending index without a gap
//! entry    term u64 | type u8, raft's | length u32 | data
//! ```
//!
//! All numbers are little-endian. Blocks contain nothing about the part that they are in, so parts are merged by
//! putting their blocks one after the other. Entries of two blocks may overlap; then they are the same.

use bytes::Bytes;
use log::Entry;
use numbers::{Index, Term};

const MAGIC: [u8; 8] = *b"MNSTPART";
const VERSION: u32 = 1;
/// Number of bytes before the first block.
pub const PART_HEAD_BYTES: usize = 24;
const BLOCK_HEAD_BYTES: usize = 56;
const HASH_KNOWN: u32 = 1;
const ENTRY_HEAD_BYTES: usize = 13;
/// Bytes of entries at which a block is full. An entry is not divided, so a block may have more.
pub const BLOCK_BYTES: usize = 8 << 20;
/// Maximum number of bytes of the entries of a block, which bounds the memory for reading one.
const BLOCK_BYTES_MAX: usize = 1 << 30;
/// Bytes of the entries of a block above which it must have only one.
const SEVERAL_BYTES_MAX: usize = 64 << 20;
/// zstd's level of compression: the fastest, because entries are compressed while they arrive.
const LEVEL: i32 = 1;

/// Entries with the time by which they were applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Time in milliseconds since 1970 by which all entries of the block were applied.
    pub time_ms: u64,
    /// Revision after the last entry; `None` if it is not known.
    pub revision: Option<i64>,
    /// Rolling hash of the state after the last entry; `None` if it is not known.
    pub state_hash: Option<u64>,
    /// Index of the first entry.
    pub first: Index,
    /// Index of the last entry.
    pub last: Index,
    /// The entries.
    pub entries: Vec<Entry>,
}

/// A part that is being made.
#[derive(Clone, Debug)]
pub struct PartWriter {
    bytes: Vec<u8>,
    first: Index,
    last: Index,
    raw_bytes: u64,
}

impl PartWriter {
    /// Returns an empty part for a cluster.
    pub fn new(cluster_id: u64) -> PartWriter {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&cluster_id.to_le_bytes());
        PartWriter { bytes, first: Index(0), last: Index(0), raw_bytes: 0 }
    }

    /// Returns true if the part has no entries.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == PART_HEAD_BYTES
    }

    /// Returns the number of bytes of the entries before compression.
    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Returns the indexes of the first and the last entry; zeros if there is none.
    pub fn range(&self) -> (Index, Index) {
        (self.first, self.last)
    }

    /// Adds entries that were applied by a time. `revision` and `state_hash` are those after the last one, if they are
    /// known.
    ///
    /// # Panics
    ///
    /// Panics if there are no entries.
    pub fn push(&mut self, time_ms: u64, revision: Option<i64>, state_hash: Option<u64>, entries: &[Entry]) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            unreachable!("a block has entries");
        };
        let mut raw = Vec::with_capacity(entries.iter().map(|e| ENTRY_HEAD_BYTES + e.data.len()).sum());
        for entry in entries {
            raw.extend_from_slice(&entry.term.0.to_le_bytes());
            raw.push(entry.entry_type);
            raw.extend_from_slice(&(entry.data.len() as u32).to_le_bytes());
            raw.extend_from_slice(&entry.data);
        }
        let frame = compress(&raw);
        let mut block = Vec::with_capacity(BLOCK_HEAD_BYTES + frame.len());
        block.extend_from_slice(&[0; 8]);
        block.extend_from_slice(&time_ms.to_le_bytes());
        block.extend_from_slice(&revision.unwrap_or(-1).to_le_bytes());
        block.extend_from_slice(&first.index.0.to_le_bytes());
        block.extend_from_slice(&last.index.0.to_le_bytes());
        let flags = if state_hash.is_some() { HASH_KNOWN } else { 0 };
        block.extend_from_slice(&flags.to_le_bytes());
        block.extend_from_slice(&state_hash.unwrap_or(0).to_le_bytes());
        block.extend_from_slice(&(raw.len() as u32).to_le_bytes());
        block.extend_from_slice(&frame);
        let len = (block.len() - 8) as u32;
        let crc = crc32c::crc32c(&block[8..]);
        block[..4].copy_from_slice(&len.to_le_bytes());
        block[4..8].copy_from_slice(&crc.to_le_bytes());
        if self.is_empty() {
            self.first = first.index;
        }
        self.last = last.index;
        self.raw_bytes += raw.len() as u64;
        self.bytes.extend_from_slice(&block);
    }

    /// Returns the bytes of the part.
    pub fn finish(self) -> Bytes {
        self.bytes.into()
    }
}

/// Compresses with zstd. If that fails for want of memory, the process cannot go on.
pub fn compress(raw: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(zstd_safe::compress_bound(raw.len()));
    match zstd_safe::compress(&mut frame, raw, LEVEL) {
        Ok(_) => frame,
        Err(code) => panic!("zstd cannot compress: {}", zstd_safe::get_error_name(code)),
    }
}

/// Decompresses a frame of zstd that has exactly `len` bytes before compression.
///
/// # Errors
///
/// Returns a description of the damage.
pub fn decompress(frame: &[u8], len: usize) -> Result<Vec<u8>, &'static str> {
    let mut raw = Vec::with_capacity(len);
    match zstd_safe::decompress(&mut raw, frame) {
        Ok(decompressed) if decompressed == len => Ok(raw),
        Ok(_) => Err("has a block that is shorter than it says"),
        Err(code) => Err(zstd_safe::get_error_name(code)),
    }
}

/// Reads the blocks of a part, one after the other.
pub struct PartReader {
    rest: Bytes,
}

impl PartReader {
    /// Reads the head of a part. Returns a description of the damage, or that the part belongs to another cluster.
    ///
    /// # Errors
    ///
    /// As said.
    pub fn open(bytes: Bytes, cluster_id: u64) -> Result<PartReader, &'static str> {
        if bytes.len() < PART_HEAD_BYTES || bytes[..8] != MAGIC {
            return Err("does not start as a part of a backup");
        }
        if u32_at(&bytes, 8) != VERSION {
            return Err("has a format version that this release does not know");
        }
        if u64_at(&bytes, 16) != cluster_id {
            return Err("belongs to another cluster");
        }
        Ok(PartReader { rest: bytes.slice(PART_HEAD_BYTES..) })
    }

    /// Returns all blocks as they are, for a merged part.
    pub fn rest(&self) -> &Bytes {
        &self.rest
    }

    /// Returns the next block; `None` after the last.
    ///
    /// # Errors
    ///
    /// Returns a description of the damage.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Block>, &'static str> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        if self.rest.len() < BLOCK_HEAD_BYTES {
            return Err("ends within the head of a block");
        }
        let len = u32_at(&self.rest, 0) as usize;
        if len < BLOCK_HEAD_BYTES - 8 || len > self.rest.len() - 8 {
            return Err("ends within a block");
        }
        let block = self.rest.split_to(8 + len);
        if crc32c::crc32c(&block[8..]) != u32_at(&block, 4) {
            return Err("has a block whose checksum does not match");
        }
        let raw_len = u32_at(&block, 52) as usize;
        if raw_len > BLOCK_BYTES_MAX {
            return Err("has a block that is too large");
        }
        let (first, last) = (u64_at(&block, 24), u64_at(&block, 32));
        if last > u64::MAX / 2 {
            return Err("has an index that no log reaches");
        }
        let raw = Bytes::from(decompress(&block[BLOCK_HEAD_BYTES..], raw_len)?);
        let entries = entries(raw, first)?;
        if first.checked_add(entries.len() as u64) != last.checked_add(1) || entries.is_empty() {
            return Err("has a block with another number of entries than it says");
        }
        let revision = u64_at(&block, 16) as i64;
        Ok(Some(Block {
            time_ms: u64_at(&block, 8),
            revision: (revision >= 0).then_some(revision),
            state_hash: (u32_at(&block, 40) & HASH_KNOWN != 0).then(|| u64_at(&block, 44)),
            first: Index(first),
            last: Index(last),
            entries,
        }))
    }
}

/// Returns a part with the blocks of several parts of the cluster, in their order.
///
/// # Errors
///
/// Returns a description of the damage of one of the parts.
pub fn merge(parts: &[Bytes], cluster_id: u64) -> Result<Bytes, &'static str> {
    let mut merged = PartWriter::new(cluster_id).bytes;
    for part in parts {
        merged.extend_from_slice(PartReader::open(part.clone(), cluster_id)?.rest());
    }
    Ok(merged.into())
}

fn entries(mut raw: Bytes, first: u64) -> Result<Vec<Entry>, &'static str> {
    let (mut entries, all) = (Vec::new(), raw.len());
    while !raw.is_empty() {
        if raw.len() < ENTRY_HEAD_BYTES {
            return Err("has an entry that is cut");
        }
        let head = raw.split_to(ENTRY_HEAD_BYTES);
        let len = u32_at(&head, 9) as usize;
        if len > raw.len() {
            return Err("has an entry that is cut");
        }
        if all > SEVERAL_BYTES_MAX && !entries.is_empty() {
            return Err("has a block with more entries than any part");
        }
        let index = first.checked_add(entries.len() as u64).ok_or("has an index that no log reaches")?;
        entries.push(Entry {
            index: Index(index),
            term: Term(u64_at(&head, 0)),
            entry_type: head[8],
            data: raw.split_to(len),
        });
    }
    Ok(entries)
}

/// Returns the number at an offset, which the caller has checked to be inside.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, data: &'static str) -> Entry {
        Entry { index: Index(index), term: Term(3), entry_type: 0, data: data.into() }
    }

    fn sample() -> Bytes {
        let mut part = PartWriter::new(7);
        part.push(100, None, None, &[entry(5, "a"), entry(6, "")]);
        part.push(200, Some(9), Some(77), &[entry(7, "ccc")]);
        assert_eq!(part.range(), (Index(5), Index(7)));
        part.finish()
    }

    fn all(bytes: Bytes) -> Result<Vec<Block>, &'static str> {
        let mut reader = PartReader::open(bytes, 7)?;
        let mut blocks = Vec::new();
        while let Some(block) = reader.next()? {
            blocks.push(block);
        }
        Ok(blocks)
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        let blocks = all(sample()).expect("is whole");
        assert_eq!(blocks[0].entries, [entry(5, "a"), entry(6, "")]);
        assert_eq!((blocks[0].time_ms, blocks[0].revision, blocks[0].last), (100, None, Index(6)));
        assert_eq!((blocks[1].time_ms, blocks[1].revision, blocks[1].first), (200, Some(9), Index(7)));
        assert_eq!((blocks[0].state_hash, blocks[1].state_hash), (None, Some(77)));
        let merged = merge(&[sample(), sample()], 7).expect("are whole");
        assert_eq!(all(merged).expect("is whole"), [blocks.clone(), blocks].concat());
    }

    #[test]
    fn no_damage_is_read_as_entries() {
        let whole = sample();
        for len in 0..whole.len() {
            let blocks = all(whole.slice(..len));
            // A cut between two blocks leaves a part that is whole in itself; its length is in the manifest.
            assert!(blocks.is_err() || blocks.is_ok_and(|blocks| blocks.len() < 2), "cut at {len}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.to_vec();
                bytes[at] ^= 1 << bit;
                // Four bytes of the head have no meaning.
                assert!(all(bytes.into()).is_err() || (12..16).contains(&at), "bit {bit} of byte {at}");
            }
        }
        assert_eq!(PartReader::open(whole, 8).err(), Some("belongs to another cluster"));
    }
}
