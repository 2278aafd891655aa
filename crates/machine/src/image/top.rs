//! The list of the blocks of a base run in blocks, with the totals over its settled blocks: the part of the base that
//! a member with a memory budget keeps in memory.

use std::collections::BTreeMap;

use mvcc::{BLOCK_VERSIONS_MAX, ChangeBlock, KeyBlock};
use numbers::{BlockPlace, ChangeId, Index, Revision};

use crate::codec::{Input, Malformed, put_bytes, put_i64, put_u64};
use crate::image::restore::{Accounting, RestoreError};
use crate::image::{BLOCK_BYTES, END, TOP, TOTALS};
use crate::machine::SegmentUse;

/// First number of a list of key blocks in a block of the top.
const OF_KEYS: u64 = 1;
/// First number of a list of change blocks in a block of the top.
const OF_CHANGES: u64 = 2;
/// Maximum number of versions in a key block: a block has less than twice [`BLOCK_BYTES`] before its last version, and
/// an entry has at least two bytes.
const VERSIONS_MAX: u64 = BLOCK_BYTES as u64;

/// One of the files of a base in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BaseFile {
    /// The base run: head, leases and blocks of keys.
    Run,
    /// The settled versions in the order of revisions.
    Changes,
    /// The list of the blocks of the other two.
    Top,
}

/// Blocks of a base run and of its change file in order, with what is known of each without reading it.
///
/// A block takes 32 bytes of memory and its first key. With 56 versions in a block that is about one byte per version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseTop {
    pub(crate) position: Position,
    /// Place of the first key block, of which only number and offset count.
    keys_at: BlockPlace,
    /// Place of the first change block, of which only number and offset count.
    changes_at: BlockPlace,
    key_blocks: Vec<KeyEntry>,
    /// First keys of all key blocks, one after the other.
    first_keys: Vec<u8>,
    change_blocks: Vec<ChangeEntry>,
    pub(crate) totals: Totals,
}

/// The state of which a top is a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub revision: Revision,
    pub compact_revision: Revision,
    pub applied_index: Index,
}

impl Position {
    /// Returns the revision up to which versions are settled: none of them can be removed by a compaction, unless a
    /// later version of its key supersedes it.
    pub fn settled(&self) -> Revision {
        self.compact_revision - 1
    }
}

/// Totals over the settled key blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub versions: u64,
    pub in_use_bytes: u64,
    pub usage: BTreeMap<u32, SegmentUse>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyEntry {
    offset: u64,
    /// Offset in `first_keys` at which the block's first key ends.
    key_end: usize,
    len: u32,
    crc: u32,
    versions: u32,
    is_settled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChangeEntry {
    offset: u64,
    len: u32,
    crc: u32,
    first: ChangeId,
    versions: u32,
}

impl BaseTop {
    pub(crate) fn new(position: Position) -> BaseTop {
        BaseTop { position, ..BaseTop::default() }
    }

    /// Returns the revision up to which versions are settled.
    pub fn settled(&self) -> Revision {
        self.position.settled()
    }

    /// Returns the number of key blocks.
    pub fn key_blocks(&self) -> u32 {
        self.key_blocks.len() as u32
    }

    /// Returns the number of change blocks.
    pub fn change_blocks(&self) -> u32 {
        self.change_blocks.len() as u32
    }

    /// Returns the number of versions in settled key blocks.
    pub fn settled_versions(&self) -> u64 {
        self.totals.versions
    }

    /// Returns the memory that the top takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.key_blocks.capacity() * size_of::<KeyEntry>()
            + self.first_keys.capacity()
            + self.change_blocks.capacity() * size_of::<ChangeEntry>()
    }

    /// Returns the place at which the key blocks begin: number and offset of the first one.
    pub fn first_key_place(&self) -> BlockPlace {
        self.keys_at
    }

    /// Returns the place at which the change blocks begin: number and offset of the first one.
    pub fn first_change_place(&self) -> BlockPlace {
        self.changes_at
    }

    /// Returns the places of all key blocks, in order.
    pub fn key_places(&self) -> impl Iterator<Item = BlockPlace> + Clone + '_ {
        (0..self.key_blocks()).filter_map(|number| self.key_place(number))
    }

    /// Returns the places of all change blocks, in order.
    pub fn change_places(&self) -> impl Iterator<Item = BlockPlace> + Clone + '_ {
        (0..self.change_blocks()).filter_map(|number| self.change_place(number))
    }

    pub(crate) fn key_place(&self, number: u32) -> Option<BlockPlace> {
        let &KeyEntry { offset, len, crc, .. } = self.key_blocks.get(number as usize)?;
        Some(BlockPlace { number: self.keys_at.number + u64::from(number), offset, len, crc })
    }

    pub(crate) fn change_place(&self, number: u32) -> Option<BlockPlace> {
        let &ChangeEntry { offset, len, crc, .. } = self.change_blocks.get(number as usize)?;
        Some(BlockPlace { number: self.changes_at.number + u64::from(number), offset, len, crc })
    }

    pub(crate) fn key_block(&self, number: u32) -> Option<KeyBlock<'_>> {
        let at = number as usize;
        let &KeyEntry { key_end, versions, is_settled, .. } = self.key_blocks.get(at)?;
        let begin = at.checked_sub(1).map_or(0, |before| self.key_blocks[before].key_end);
        Some(KeyBlock { first_key: &self.first_keys[begin..key_end], versions, is_settled })
    }

    pub(crate) fn change_block(&self, number: u32) -> Option<ChangeBlock> {
        let &ChangeEntry { first, versions, .. } = self.change_blocks.get(number as usize)?;
        Some(ChangeBlock { first, versions })
    }

    /// Returns the number of the settled key block that has the readable version of this key, if one has.
    pub(crate) fn settled_block_of(&self, key: &[u8]) -> Option<u32> {
        let first_key = |number: usize| {
            let begin = number.checked_sub(1).map_or(0, |before| self.key_blocks[before].key_end);
            &self.first_keys[begin..self.key_blocks[number].key_end]
        };
        let (mut low, mut high) = (0, self.key_blocks.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if first_key(middle) <= key { low = middle + 1 } else { high = middle }
        }
        let number = low.checked_sub(1)?;
        self.key_blocks[number].is_settled.then_some(number as u32)
    }

    /// Sets the place at which the key blocks begin; needed if there are none.
    pub(crate) fn keys_begin_at(&mut self, place: BlockPlace) {
        self.keys_at = BlockPlace { len: 0, crc: 0, ..place };
    }

    /// Sets the place at which the change blocks begin; needed if there are none.
    pub(crate) fn changes_begin_at(&mut self, place: BlockPlace) {
        self.changes_at = BlockPlace { len: 0, crc: 0, ..place };
    }

    pub(crate) fn add_key_block(&mut self, place: BlockPlace, top: KeyBlock<'_>) {
        if self.key_blocks.is_empty() {
            self.keys_begin_at(place);
        }
        self.first_keys.extend_from_slice(top.first_key);
        self.key_blocks.push(KeyEntry {
            offset: place.offset,
            key_end: self.first_keys.len(),
            len: place.len,
            crc: place.crc,
            versions: top.versions,
            is_settled: top.is_settled,
        });
    }

    pub(crate) fn add_change_block(&mut self, place: BlockPlace, top: ChangeBlock) {
        if self.change_blocks.is_empty() {
            self.changes_begin_at(place);
        }
        self.change_blocks.push(ChangeEntry {
            offset: place.offset,
            len: place.len,
            crc: place.crc,
            first: top.first,
            versions: top.versions,
        });
    }

    /// Returns true if this is the block that ends the base run.
    pub fn is_end_of_keys(&self, block: &[u8]) -> bool {
        is_end(block, self.key_blocks.iter().map(|block| u64::from(block.versions)).sum())
    }

    /// Returns true if this is the block that ends the change file.
    pub fn is_end_of_changes(&self, block: &[u8]) -> bool {
        is_end(block, self.change_blocks.iter().map(|block| u64::from(block.versions)).sum())
    }
}

fn is_end(block: &[u8], entries: u64) -> bool {
    let mut expected = vec![END];
    put_u64(&mut expected, entries);
    block == expected
}

/// Encoder of a top, block by block.
#[derive(Debug, Default)]
pub(crate) struct TopWriter {
    keys: u32,
    changes: u32,
    is_done: bool,
}

impl TopWriter {
    /// Returns the next block; `None` after the last one.
    pub fn next_block(&mut self, top: &BaseTop) -> Option<Vec<u8>> {
        if self.keys < top.key_blocks() {
            return Some(self.some_keys(top));
        }
        if self.changes < top.change_blocks() {
            return Some(self.some_changes(top));
        }
        if std::mem::replace(&mut self.is_done, true) {
            return None;
        }
        let mut out = vec![TOTALS];
        put_u64(&mut out, top.position.revision.0 as u64);
        put_i64(&mut out, top.position.compact_revision.0);
        put_u64(&mut out, top.position.applied_index.0);
        for (place, blocks) in [(top.keys_at, top.key_blocks()), (top.changes_at, top.change_blocks())] {
            put_u64(&mut out, place.number);
            put_u64(&mut out, place.offset);
            put_u64(&mut out, u64::from(blocks));
        }
        put_u64(&mut out, top.totals.versions);
        put_u64(&mut out, top.totals.in_use_bytes);
        put_u64(&mut out, top.totals.usage.len() as u64);
        for (segment, usage) in &top.totals.usage {
            for number in [u64::from(*segment), usage.values, usage.bytes, usage.raw_bytes] {
                put_u64(&mut out, number);
            }
        }
        Some(out)
    }

    fn some_keys(&mut self, top: &BaseTop) -> Vec<u8> {
        let mut out = vec![TOP];
        put_u64(&mut out, OF_KEYS);
        let mut before: &[u8] = b"";
        while out.len() < BLOCK_BYTES
            && let (Some(block), Some(place)) = (top.key_block(self.keys), top.key_place(self.keys))
        {
            let KeyBlock { first_key, versions, is_settled } = block;
            put_u64(&mut out, u64::from(versions) << 1 | u64::from(is_settled));
            put_u64(&mut out, u64::from(place.len));
            out.extend_from_slice(&place.crc.to_le_bytes());
            let shared = first_key.iter().zip(before).take_while(|(a, b)| a == b).count();
            put_u64(&mut out, shared as u64);
            put_bytes(&mut out, &first_key[shared..]);
            before = first_key;
            self.keys += 1;
        }
        out
    }

    fn some_changes(&mut self, top: &BaseTop) -> Vec<u8> {
        let mut out = vec![TOP];
        put_u64(&mut out, OF_CHANGES);
        let mut before = Revision(0);
        while out.len() < BLOCK_BYTES
            && let (Some(ChangeBlock { first, versions }), Some(place)) =
                (top.change_block(self.changes), top.change_place(self.changes))
        {
            put_u64(&mut out, u64::from(versions));
            put_u64(&mut out, u64::from(place.len));
            out.extend_from_slice(&place.crc.to_le_bytes());
            put_u64(&mut out, (first.main - before) as u64);
            put_u64(&mut out, u64::from(first.sub));
            before = first.main;
            self.changes += 1;
        }
        out
    }
}

impl BaseTop {
    /// Decodes a top from the blocks of its file.
    ///
    /// # Errors
    ///
    /// Returns an error if a block cannot be read, or if something is missing, contradictory or left over. The memory
    /// that decoding takes is proportional to the bytes that were read.
    pub fn decode<B: AsRef<[u8]>, E>(
        blocks: impl IntoIterator<Item = Result<B, E>>,
    ) -> Result<BaseTop, RestoreError<E>> {
        let mut top = BaseTop::default();
        let mut is_done = false;
        for block in blocks {
            let block = block.map_err(RestoreError::Read)?;
            let (kind, mut input) = match block.as_ref() {
                _ if is_done => return Err(Malformed("a block behind the last").into()),
                [kind, rest @ ..] => (*kind, Input(rest)),
                [] => return Err(Malformed("an empty block").into()),
            };
            match kind {
                TOP => match input.u64()? {
                    OF_KEYS if top.change_blocks.is_empty() => top.take_keys(&mut input)?,
                    OF_CHANGES => top.take_changes(&mut input)?,
                    _ => return Err(Malformed("a list of blocks of an unknown kind").into()),
                },
                TOTALS => {
                    top.take_totals(&mut input)?;
                    is_done = true;
                }
                _ => return Err(Malformed("a block of an unknown kind").into()),
            }
        }
        if !is_done {
            return Err(Malformed("a list of blocks without an end").into());
        }
        Ok(top)
    }

    fn take_keys(&mut self, input: &mut Input<'_>) -> Result<(), Malformed> {
        let mut before_begin = self.first_keys.len();
        let mut before_end = before_begin;
        while !input.is_empty() {
            let number = input.u64()?;
            let (versions, is_settled) = (number >> 1, number & 1 == 1);
            let most = if is_settled { BLOCK_VERSIONS_MAX as u64 } else { VERSIONS_MAX };
            if versions == 0 || versions > most {
                return Err(Malformed("a block with an impossible number of versions"));
            }
            let (len, crc) = (input.u32()?, crc(input)?);
            let shared = usize::try_from(input.u64()?).map_err(|_| Malformed("a key out of nothing"))?;
            if shared > before_end - before_begin {
                return Err(Malformed("a key out of nothing"));
            }
            let rest = input.bytes()?;
            // A block contains its first key, so all first keys together are not longer than the files.
            if rest.len() > (mvcc::KEY_BYTES_MAX - shared).min((len as usize).saturating_sub(shared)) {
                return Err(Malformed("a key that is too long"));
            }
            let begin = self.first_keys.len();
            self.first_keys.extend_from_within(before_begin..before_begin + shared);
            self.first_keys.extend_from_slice(rest);
            if let Some(before) = self.key_blocks.last() {
                let from = self.key_blocks.len().checked_sub(2).map_or(0, |at| self.key_blocks[at].key_end);
                let (before_key, key) = (&self.first_keys[from..begin], &self.first_keys[begin..]);
                // The history of a key may continue in the next block, but not that of a settled one.
                if before_key > key || before_key == key && (before.is_settled || is_settled) {
                    return Err(Malformed("blocks that are not in order"));
                }
            }
            self.key_blocks.push(KeyEntry {
                offset: 0,
                key_end: self.first_keys.len(),
                len,
                crc,
                versions: versions as u32,
                is_settled,
            });
            (before_begin, before_end) = (begin, self.first_keys.len());
        }
        Ok(())
    }

    fn take_changes(&mut self, input: &mut Input<'_>) -> Result<(), Malformed> {
        let mut before = Revision(0);
        while !input.is_empty() {
            let versions = input.u64()?;
            if versions == 0 || versions > BLOCK_VERSIONS_MAX as u64 {
                return Err(Malformed("a block with an impossible number of versions"));
            }
            let (len, crc) = (input.u32()?, crc(input)?);
            let main = i64::try_from(input.u64()?).ok().and_then(|more| before.0.checked_add(more));
            let main =
                main.map(Revision).filter(|main| (Revision::FIRST..=Revision(i64::MAX / 2)).contains(main));
            let first =
                ChangeId { main: main.ok_or(Malformed("a revision out of range"))?, sub: input.u32()? };
            if self.change_blocks.last().is_some_and(|block| block.first >= first) {
                return Err(Malformed("blocks that are not in order"));
            }
            self.change_blocks.push(ChangeEntry { offset: 0, len, crc, first, versions: versions as u32 });
            before = first.main;
        }
        Ok(())
    }

    fn take_totals(&mut self, input: &mut Input<'_>) -> Result<(), Malformed> {
        let revision = i64::try_from(input.u64()?).map_err(|_| Malformed("a revision out of range"))?;
        self.position = Position {
            revision: Revision(revision),
            compact_revision: Revision(input.i64()?),
            applied_index: Index(input.u64()?),
        };
        let Position { revision, compact_revision, .. } = self.position;
        if compact_revision <= Revision::FIRST
            || compact_revision > revision
            || revision > Revision(i64::MAX / 2)
        {
            return Err(Malformed("a revision out of range"));
        }
        if self.change_blocks.last().is_some_and(|block| block.first.main > self.position.settled()) {
            return Err(Malformed("a block of changes that are not settled"));
        }
        let mut offset = 0;
        let mut place = |offset: &mut u64| -> Result<(BlockPlace, u64), Malformed> {
            let (number, at, blocks) = (input.u64()?, input.u64()?, input.u64()?);
            if number > u64::MAX / 2 {
                return Err(Malformed("a number out of range"));
            }
            *offset = at;
            Ok((BlockPlace { number, offset: at, ..BlockPlace::default() }, blocks))
        };
        let (keys_at, keys) = place(&mut offset)?;
        for block in &mut self.key_blocks {
            block.offset = offset;
            offset = behind(offset, block.len)?;
        }
        let (changes_at, changes) = place(&mut offset)?;
        for block in &mut self.change_blocks {
            block.offset = offset;
            offset = behind(offset, block.len)?;
        }
        (self.keys_at, self.changes_at) = (keys_at, changes_at);
        if (keys, changes) != (self.key_blocks.len() as u64, self.change_blocks.len() as u64)
            || keys.max(changes) >= u64::from(u32::MAX)
        {
            return Err(Malformed("a list of blocks with some missing"));
        }
        let (versions, in_use_bytes, segments) = (input.u64()?, input.u64()?, input.u64()?);
        let mut usage = BTreeMap::new();
        for _ in 0..segments {
            let segment = input.u32()?;
            let (values, bytes, raw_bytes) = (input.u64()?, input.u64()?, input.u64()?);
            let is_next = usage.last_key_value().is_none_or(|(last, _)| *last < segment);
            if !is_next || values == 0 || raw_bytes > bytes || bytes > u64::MAX / 2 {
                return Err(Malformed("a segment with an impossible use"));
            }
            usage.insert(segment, SegmentUse { values, bytes, raw_bytes });
        }
        let settled: u64 = self
            .key_blocks
            .iter()
            .filter(|block| block.is_settled)
            .map(|block| u64::from(block.versions))
            .sum();
        let values = usage.values().try_fold(0u64, |sum, usage| sum.checked_add(usage.values));
        if versions != settled
            || in_use_bytes > u64::MAX / 2
            || values.is_none_or(|values| values > versions)
            || !input.is_empty()
        {
            return Err(Malformed("totals that contradict the blocks"));
        }
        self.totals = Totals { versions, in_use_bytes, usage };
        Ok(())
    }
}

fn crc(input: &mut Input<'_>) -> Result<u32, Malformed> {
    let bytes = input.raw(4)?.try_into().map_err(|_| Malformed("bytes beyond the end"))?;
    Ok(u32::from_le_bytes(bytes))
}

fn behind(offset: u64, len: u32) -> Result<u64, Malformed> {
    offset.checked_add(BlockPlace::HEAD_BYTES + u64::from(len)).ok_or(Malformed("a number out of range"))
}

impl Totals {
    /// Returns the totals that these versions add up to.
    pub fn of(accounting: Accounting, versions: u64) -> Totals {
        let (usage, in_use_bytes) = accounting.finish();
        Totals { versions, in_use_bytes, usage }
    }
}
