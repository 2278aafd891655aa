//! Implements the receiving side of header compression: decodes header blocks into [`Fields`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use super::shared::{Remembered, is_shared, share};
use super::{Damaged, ENTRY_BYTES, TABLE_BYTES, Undecoded, huffman, number, static_table};
use crate::fields::{Class, Fields, Gathering, Refused, Use, is_taken_value};

/// Maximum number of cached blocks per connection. Few suffice, because a client usually sends one block per
/// method that it calls.
const MEMOS_MAX: usize = 4;
/// Maximum size of a block that is cached, in bytes. Blocks of clients that put repeated fields into the
/// table have only about a dozen bytes.
const MEMO_BYTES_MAX: usize = 256;
/// Maximum memory of a header list that is cached, in bytes. This limit is needed in addition, because a
/// short block can be decoded to a list of the maximum size.
const MEMO_LIST_BYTES_MAX: usize = 2048;

/// Factor by which a decoded list may exceed the maximum size that is accepted before the connection ends.
/// The limit is needed because one byte of a block can reference four kilobytes of the table, and decoding
/// costs time even if the fields are not stored.
const EXCESS_MAX: usize = 4;

/// Entry of the dynamic table.
#[derive(Clone, PartialEq)]
struct Entry {
    /// Offset of the name, counted over all bytes ever inserted into the table's text; wraps. The value
    /// follows the name.
    at: u32,
    name_len: u16,
    value_len: u16,
    class: Class,
    value_is_good: bool,
}

impl Entry {
    fn text_len(&self) -> usize {
        usize::from(self.name_len) + usize::from(self.value_len)
    }

    fn size(&self) -> usize {
        self.text_len() + ENTRY_BYTES
    }
}

/// Dynamic table (RFC 7541, section 2.3.2). Entries are evicted in the order of insertion, so the names and
/// values of all entries can be stored one after the other in a single allocation.
#[derive(Clone, Default, PartialEq)]
struct Table {
    /// Entries, newest last.
    entries: VecDeque<Entry>,
    text: Vec<u8>,
    /// Offset of the first byte of `text`, in the numbering of [`Entry::at`].
    base: u32,
    /// Bytes at the front of `text` that belong to evicted entries.
    dead: usize,
    /// Size of the table in bytes, as RFC 7541, section 4.1 counts it. `limit` is the maximum of this size.
    size: usize,
    limit: usize,
}

/// Table of a new connection.
static EMPTY: LazyLock<Arc<Table>> =
    LazyLock::new(|| Arc::new(Table { limit: TABLE_BYTES, ..Table::default() }));

thread_local! {
    static REMEMBERED: Remembered<Table> = const { RefCell::new(Vec::new()) };
}

impl Table {
    fn get(&self, at: usize) -> Option<(&[u8], &[u8], &Entry)> {
        let place = self.entries.len().checked_sub(at + 1)?;
        let entry = self.entries.get(place)?;
        let start = entry.at.wrapping_sub(self.base) as usize;
        let name_end = start + usize::from(entry.name_len);
        let value_end = name_end + usize::from(entry.value_len);
        Some((&self.text[start..name_end], &self.text[name_end..value_end], entry))
    }

    fn insert(&mut self, name: &[u8], value: &[u8], class: Class, value_is_good: bool) {
        if self.make_room(name.len() + value.len()) {
            let at = self.text.len();
            self.text.extend_from_slice(name);
            self.push(at, value, class, value_is_good);
        }
    }

    /// Inserts an entry with the name of the existing entry at index `named`. The insertion may evict that
    /// entry.
    fn insert_named(&mut self, named: usize, value: &[u8], value_is_good: bool) {
        let place = self.entries.len() - 1 - named;
        let Entry { at, name_len, class, .. } = self.entries[place];
        if self.make_room(usize::from(name_len) + value.len()) {
            // The name can still be read if its entry was evicted, because the text of evicted entries stays
            // until the table is compacted.
            let name = at.wrapping_sub(self.base) as usize;
            let at = self.text.len();
            self.text.extend_from_within(name..name + usize::from(name_len));
            self.push(at, value, class, value_is_good);
        }
    }

    /// Evicts entries until a new entry with `text_len` bytes of text fits. Returns false if the new entry is
    /// larger than the whole table; the table is then empty (RFC 7541, section 4.4).
    fn make_room(&mut self, text_len: usize) -> bool {
        let size = text_len + ENTRY_BYTES;
        self.shrink_to(self.limit.saturating_sub(size));
        size <= self.limit
    }

    /// Adds the entry whose name was appended to the text at offset `at`.
    fn push(&mut self, at: usize, value: &[u8], class: Class, value_is_good: bool) {
        // The casts are lossless: the entry fits into the table, as `make_room` has checked, and the limit of
        // the table is below 2^16.
        let (name_len, value_len) = ((self.text.len() - at) as u16, value.len() as u16);
        self.text.extend_from_slice(value);
        let at = self.base.wrapping_add(at as u32);
        let entry = Entry { at, name_len, value_len, class, value_is_good };
        self.size += entry.size();
        self.entries.push_back(entry);
        if self.dead > TABLE_BYTES / 4 && self.dead > self.text.len() / 2 {
            self.compact();
        }
    }

    fn compact(&mut self) {
        self.text.drain(..self.dead);
        self.base = self.base.wrapping_add(self.dead as u32);
        self.dead = 0;
    }

    /// Evicts the oldest entries until the table has at most `size` bytes.
    fn shrink_to(&mut self, size: usize) {
        while self.size > size {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.size -= oldest.size();
            self.dead += oldest.text_len();
        }
    }
}

/// Cached block, whose decoding has not changed the table, with its fields.
struct Memo {
    block: Box<[u8]>,
    /// Value of [`Decoder::changes`] when the block was decoded. It must be compared, because with another
    /// table the same bytes may mean other fields.
    changes: u64,
    what_for: Use,
    fields: Arc<Fields>,
}

/// Cached blocks.
#[derive(Default)]
struct Memos {
    list: Vec<Memo>,
    /// Index of the oldest element, which is overwritten next once the list is full.
    next: u8,
}

/// Decodes the header blocks of one direction of a connection, in order.
///
/// # Blocks that repeat
///
/// A client sends the same few blocks repeatedly. A block that only references tables and does not change
/// them is cached together with its fields when it arrives for the second time. It is not cached at the first
/// time, because many connections make one call and are then silent. Finding a cached block costs a few
/// comparisons. Example with bytes in hexadecimal:
///
/// ```text
/// 83 86 44 04 2f 6b 65 79 ...   the first request: `:path: /key` goes into the table   changes = 1, not kept
/// 83 86 be ...                  the second: refers to entry 62                         changes = 1, not kept
/// 83 86 be ...                  the third: the same bytes, a second time               changes = 1, kept
/// 83 86 be ...                  the fourth: the same bytes, changes is 1 still         found
/// 40 01 78 01 31                a request that puts `x: 1` into the table              changes = 2
/// 83 86 be ...                  entry 62 is `x: 1` now: not found, decoded again
/// ```
pub(crate) struct Decoder {
    /// Dynamic table; idle connections share equal tables.
    table: Arc<Table>,
    /// Number of changes of the table.
    changes: u64,
    /// Cached blocks; `None` in an idle connection.
    memos: Option<Box<Memos>>,
    /// Size limit of a decoded list in bytes, see [`Gathering::new`].
    list_bytes_max: u32,
    /// Bit set of the blocks that have arrived at least once, indexed by 5 bits of their hash. If two blocks
    /// have the same bit, the second block is already cached when it arrives for the first time, which does
    /// no harm.
    came_once: u32,
}

impl Decoder {
    pub(crate) fn new(list_bytes_max: u32) -> Decoder {
        Decoder { table: EMPTY.clone(), changes: 0, memos: None, list_bytes_max, came_once: 0 }
    }

    /// Frees memory that is kept only to make decoding the next block cheaper.
    pub(crate) fn rest(&mut self) {
        (self.memos, self.came_once) = (None, 0);
        if let Some(table) = Arc::get_mut(&mut self.table) {
            table.compact();
            table.text.shrink_to_fit();
            table.entries.shrink_to_fit();
        }
        share(&mut self.table, &REMEMBERED);
    }

    /// Returns the heap memory in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let memo = |memo: &Memo| memo.block.len() + memo.fields.heap_bytes() + size_of::<Fields>();
        let (text, entries) = (self.table.text.capacity(), self.table.entries.capacity());
        let table = size_of::<Table>() + text + entries * size_of::<Entry>();
        // The empty table is not counted for any connection, because it exists in the process even if no
        // connection uses it.
        let is_others = is_shared(&self.table) || Arc::ptr_eq(&self.table, &EMPTY);
        let table = if is_others { 0 } else { table };
        table
            + self.memos.as_ref().map_or(0, |memos| {
                size_of::<Memos>()
                    + memos.list.capacity() * size_of::<Memo>()
                    + memos.list.iter().map(memo).sum::<usize>()
            })
    }

    /// Decodes a block whose fields are not needed, to keep the table up to date. Returns false if the list
    /// is larger than the maximum size that is accepted.
    pub(crate) fn pass_over(&mut self, block: &[u8]) -> Result<bool, Undecoded> {
        let mut gathering = Gathering::of_nothing(self.list_bytes_max as usize);
        self.decode_into(block, &mut gathering)?;
        Ok(!gathering.exceeds(1))
    }

    /// Decodes a complete block. The outer error must end the connection, the inner error only the stream.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        what_for: Use,
    ) -> Result<Result<Arc<Fields>, Refused>, Undecoded> {
        let known =
            |memo: &&Memo| memo.changes == self.changes && *memo.block == *block && memo.what_for == what_for;
        if let Some(memos) = &self.memos
            && let Some(memo) = memos.list.iter().find(known)
        {
            return Ok(Ok(memo.fields.clone()));
        }
        let before = self.changes;
        let mut gathering = Gathering::new(self.list_bytes_max as usize);
        gathering.reserve(block.len() + 256, 12);
        self.decode_into(block, &mut gathering)?;
        let fields = match gathering.finish(what_for) {
            Ok(fields) => Arc::new(fields),
            Err(refused) => return Ok(Err(refused)),
        };
        let is_short = block.len() <= MEMO_BYTES_MAX && fields.heap_bytes() <= MEMO_LIST_BYTES_MAX;
        if self.changes == before && is_short && self.has_come_before(block) {
            self.remember(block, what_for, &fields);
        }
        Ok(Ok(fields))
    }

    /// Returns true if the block has probably arrived before, and records it.
    fn has_come_before(&mut self, block: &[u8]) -> bool {
        // The hash is FNV-1a, of which the upper bits are used, because they are better distributed.
        let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let bit = 1 << (block.iter().fold(0x811c_9dc5, step) >> 27);
        let came_once = self.came_once & bit != 0;
        self.came_once |= bit;
        came_once
    }

    fn remember(&mut self, block: &[u8], what_for: Use, fields: &Arc<Fields>) {
        let memo = Memo { block: block.into(), changes: self.changes, what_for, fields: fields.clone() };
        let memos = self.memos.get_or_insert_default();
        if memos.list.len() < MEMOS_MAX {
            memos.list.push(memo);
        } else {
            memos.list[usize::from(memos.next)] = memo;
            memos.next = (memos.next + 1) % MEMOS_MAX as u8;
        }
    }

    fn decode_into(&mut self, mut block: &[u8], gathering: &mut Gathering) -> Result<(), Undecoded> {
        let mut is_start = true;
        let (mut name_text, mut value_text) = (Vec::new(), Vec::new());
        while let Some(&first) = block.first() {
            if gathering.exceeds(EXCESS_MAX) {
                return Err(Undecoded::Excessive);
            }
            if first & 0x80 != 0 {
                // Indexed field (section 6.1).
                let index = number(&mut block, 7)?;
                if let Some((name, value, class)) = static_table::get(index) {
                    gathering.add(name, value, class, true);
                } else {
                    let (name, value, entry) = self.dynamic(index)?;
                    gathering.add(name, value, entry.class, entry.value_is_good);
                }
                is_start = false;
                continue;
            }
            if first & 0xe0 == 0x20 {
                // Table size update (section 6.3), which is an error after the first field (section 4.2).
                let limit = number(&mut block, 5)?;
                if limit > TABLE_BYTES || !is_start {
                    return Err(Undecoded::Damaged);
                }
                if limit != self.table.limit {
                    let table = Arc::make_mut(&mut self.table);
                    table.limit = limit;
                    table.shrink_to(limit);
                    self.changes += 1;
                }
                continue;
            }
            is_start = false;
            // Literal field with an indexed or literal name; with indexing (section 6.2.1), without (6.2.2)
            // or never indexed (6.2.3).
            let keeps = first & 0x40 != 0;
            let index = number(&mut block, if keeps { 6 } else { 4 })?;
            let name_literal = if index == 0 { Some(text(&mut block, &mut name_text)?) } else { None };
            let value = text(&mut block, &mut value_text)?;
            let value_is_good = is_taken_value(value);
            let (name, class) = match name_literal {
                Some(name) => (name, Class::of(name)),
                None => match static_table::get(index) {
                    Some((name, _, class)) => (name, class),
                    None => {
                        let (name, _, entry) = self.dynamic(index)?;
                        gathering.add(name, value, entry.class, value_is_good);
                        if keeps {
                            self.changes += 1;
                            let named = index - static_table::LEN - 1;
                            Arc::make_mut(&mut self.table).insert_named(named, value, value_is_good);
                        }
                        continue;
                    }
                },
            };
            gathering.add(name, value, class, value_is_good);
            if keeps {
                self.changes += 1;
                Arc::make_mut(&mut self.table).insert(name, value, class, value_is_good);
            }
        }
        Ok(())
    }

    fn dynamic(&self, index: usize) -> Result<(&[u8], &[u8], &Entry), Damaged> {
        // The indices of the dynamic table follow those of the static table. The subtraction fails only for
        // index 0, which is not valid (section 6.1).
        let at = index.checked_sub(static_table::LEN + 1).ok_or(Damaged)?;
        self.table.get(at).ok_or(Damaged)
    }

    #[cfg(test)]
    pub(crate) fn table_bytes(&self) -> usize {
        self.table.size
    }

    /// Returns name and value of an entry of the dynamic table, counted from the newest.
    #[cfg(test)]
    pub(crate) fn entry(&self, at: usize) -> Option<(&[u8], &[u8])> {
        self.table.get(at).map(|(name, value, _)| (name, value))
    }

    #[cfg(test)]
    pub(crate) fn memos(&self) -> usize {
        let memos = self.memos.iter().flat_map(|memos| &memos.list);
        memos.filter(|memo| memo.changes == self.changes).count()
    }
}

/// Reads a string (RFC 7541, section 5.2). A plain string is returned in place; a Huffman-coded string is
/// decoded into `out`.
fn text<'a, 'b: 'a>(block: &mut &'b [u8], out: &'a mut Vec<u8>) -> Result<&'a [u8], Damaged> {
    let is_huffman = block.first().ok_or(Damaged)? & 0x80 != 0;
    let length = number(block, 7)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(Damaged)?;
    *block = rest;
    if !is_huffman {
        return Ok(bytes);
    }
    out.clear();
    huffman::decode(bytes, out)?;
    Ok(out)
}
