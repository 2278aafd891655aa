//! Writes a base in blocks: a base run whose blocks end where leaves of the index end, its settled versions in the
//! order of revisions, and the list of the blocks of both.

use std::collections::VecDeque;

use mvcc::{BLOCK_VERSIONS_MAX, ChangeBlock, KeyBlock, Version};
use numbers::{BlockPlace, ChangeId, LeaseId, Revision};

use crate::as_of::{AsOf, Overtaken};
use crate::codec::put_u64;
use crate::image::restore::Accounting;
use crate::image::top::{BaseFile, Position, TopWriter, Totals};
use crate::image::{
    BLOCK_BYTES, BaseTop, CHANGES, END, Entry, EntryWriter, Head, KEYS, LEASES, SETTLED, Walk,
};
use crate::state_hash::mix;

/// Number of versions of a block of changes, as many as a full leaf of the index has after its writer has filled it in
/// ascending order.
const CHANGES_PER_BLOCK: u32 = 56;
/// Maximum number of versions that are visited in one slice in the order of revisions. Only some of them may be written.
const VISITED_MAX: usize = 16 << 10;

/// Writer of a base in blocks. Like [`RunWriter`](crate::image::RunWriter) it can be used on any thread and for any
/// length of time, but it fails if a version that it still needs is removed after a compaction.
///
/// Both of its walks, in the order of keys and in that of revisions, are of one moment. Locations of values are read
/// as they are during each walk. If a value was moved in between, so that a block of changes has another location than
/// the block of keys, the writer fails.
pub struct BaseWriter {
    state: AsOf,
    head: Head,
    stage: Stage,
    walk: Walk,
    leaf: OpenLeaf,
    keys: OpenKeys,
    changes: OpenChanges,
    top_writer: TopWriter,
    top: BaseTop,
    totals: Accounting,
    settled_versions: u64,
    /// Sum of [`place_of`] over the settled versions in the order of keys, minus that in the order of revisions.
    places: u64,
    entries: u64,
    /// Number of versions of settled blocks of keys that are in blocks of changes.
    settled_changes: u64,
    /// Blocks that were returned, and whose places are not known yet.
    unplaced: VecDeque<Unplaced>,
}

enum Stage {
    Head,
    /// Blocks of leases, of which the next one begins after this lease.
    Leases(Option<LeaseId>),
    Keys,
    EndOfKeys,
    /// Blocks of changes, of which the next one begins after this change.
    Changes(ChangeId),
    EndOfChanges,
    Top,
    Done,
}

/// Description of a block for the top, before its place is known.
enum Unplaced {
    Keys {
        first_key: Vec<u8>,
        versions: u32,
        is_settled: bool,
    },
    Changes(ChangeBlock),
    EndOfKeys,
    EndOfChanges,
    /// A block that the top does not list.
    Unlisted,
}

/// Entries of the leaf that is being walked, as far as they are not in a block of keys yet.
#[derive(Default)]
struct OpenLeaf {
    bytes: Vec<u8>,
    writer: EntryWriter,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
    versions: u32,
    /// True if a version of the leaf is not settled, also if it was moved to the block of keys already.
    is_unsettled: bool,
    totals: Vec<LoadedSize>,
}

/// Figures of a version that the totals count: the length of its key, its id, and its value.
type LoadedSize = (usize, ChangeId, mvcc::Value);

/// Reason why a base cannot be finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseError {
    /// A version was removed, or could not be read.
    Overtaken(Overtaken),
    /// A value was moved within the log between the two walks.
    Moved,
}

impl From<Overtaken> for BaseError {
    fn from(error: Overtaken) -> BaseError {
        BaseError::Overtaken(error)
    }
}

impl std::fmt::Display for BaseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BaseError::Overtaken(error) => error.fmt(f),
            BaseError::Moved => f.write_str("a value was moved within the log while the base was written"),
        }
    }
}

impl std::error::Error for BaseError {}

/// Returns a number that two versions share only if they are of one change and have their values at one place. The
/// sums of these numbers over both walks are compared.
fn place_of(id: ChangeId, value: mvcc::Value) -> u64 {
    let numbers = [id.main.0 as u64, u64::from(id.sub), value.location.bits(), u64::from(value.len)];
    numbers.into_iter().fold(0, mix)
}

/// The block of keys of one leaf or several that is being filled.
#[derive(Default)]
struct OpenKeys {
    /// The block with its first byte; empty if it has no entries.
    block: Vec<u8>,
    first_key: Vec<u8>,
    versions: u32,
}

/// The block of changes that is being filled.
#[derive(Default)]
struct OpenChanges {
    block: Vec<u8>,
    writer: EntryWriter,
    first: ChangeId,
    versions: u32,
}

/// Blocks for one file, in order.
type Written = (BaseFile, Vec<Vec<u8>>);

impl BaseWriter {
    /// Returns true if versions of the state with this head can be settled: something was compacted.
    pub fn can_settle(head: &Head) -> bool {
        head.compact_revision > Revision::FIRST
    }

    /// Begins a base of everything that can be read.
    ///
    /// # Panics
    ///
    /// Panics if the state and the head are not from the same point in time, or if no version can be settled; and later
    /// if a value is compressed although the head says that none is.
    pub fn new(state: impl Into<AsOf>, head: Head) -> BaseWriter {
        let state = state.into();
        assert_eq!(
            (state.moment().revision(), state.moment().compact_revision()),
            (head.revision, head.compact_revision),
            "head and state are of one moment"
        );
        assert!(BaseWriter::can_settle(&head), "a base in blocks has versions that are settled");
        let (revision, compact_revision, applied_index) =
            (head.revision, head.compact_revision, head.applied_index);
        BaseWriter {
            state,
            head,
            stage: Stage::Head,
            walk: Walk::base(),
            leaf: OpenLeaf::default(),
            keys: OpenKeys::default(),
            changes: OpenChanges::default(),
            top_writer: TopWriter::default(),
            top: BaseTop::new(Position { revision, compact_revision, applied_index }),
            totals: Accounting::default(),
            settled_versions: 0,
            places: 0,
            entries: 0,
            settled_changes: 0,
            unplaced: VecDeque::new(),
        }
    }

    /// Returns the next blocks, of about 128 KiB together or one block that is longer, and the file to which they are
    /// appended; `None` after the last ones. The files are written one after the other, in the order of [`BaseFile`].
    /// The result may have no blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if a version of the base was removed after a compaction. The base then cannot be finished.
    ///
    /// # Panics
    ///
    /// Panics if [`BaseWriter::written`] was not called for all earlier blocks.
    pub fn next_blocks(&mut self) -> Result<Option<Written>, BaseError> {
        assert!(self.unplaced.is_empty(), "the places of all blocks are known before the next ones");
        let mut blocks = Vec::new();
        let file = match self.stage {
            Stage::Head => {
                self.stage = if self.head.has_leases_apart() { Stage::Leases(None) } else { Stage::Keys };
                self.emit(self.head.encode_of_base_in_blocks(), Unplaced::Unlisted, &mut blocks);
                BaseFile::Run
            }
            Stage::Leases(behind) => {
                let mut block = vec![LEASES];
                match self.head.leases.encode_some(behind, BLOCK_BYTES, &mut block) {
                    None => self.stage = Stage::Keys,
                    last => {
                        self.stage = Stage::Leases(last);
                        self.emit(block, Unplaced::Unlisted, &mut blocks);
                    }
                }
                BaseFile::Run
            }
            Stage::Keys => {
                self.some_keys(&mut blocks)?;
                BaseFile::Run
            }
            Stage::EndOfKeys => {
                self.stage = Stage::Changes(ChangeId::default());
                self.emit(end(self.entries), Unplaced::EndOfKeys, &mut blocks);
                let totals = std::mem::take(&mut self.totals);
                self.top.totals = Totals::of(totals, self.settled_versions);
                self.entries = 0;
                BaseFile::Run
            }
            Stage::Changes(behind) => {
                self.some_changes(behind, &mut blocks)?;
                BaseFile::Changes
            }
            Stage::EndOfChanges => {
                if (self.places, self.settled_changes) != (0, self.settled_versions) {
                    return Err(BaseError::Moved);
                }
                self.stage = Stage::Top;
                self.emit(end(self.entries), Unplaced::EndOfChanges, &mut blocks);
                BaseFile::Changes
            }
            Stage::Top => {
                match self.top_writer.next_block(&self.top) {
                    Some(block) => self.emit(block, Unplaced::Unlisted, &mut blocks),
                    None => self.stage = Stage::Done,
                }
                BaseFile::Top
            }
            Stage::Done => return Ok(None),
        };
        Ok(Some((file, blocks)))
    }

    /// Takes note of the place of the first block that [`BaseWriter::next_blocks`] has returned and whose place was not
    /// told yet.
    pub fn written(&mut self, place: BlockPlace) {
        match self.unplaced.pop_front().expect("a place is that of a block") {
            Unplaced::Keys { first_key, versions, is_settled } => {
                self.top.add_key_block(place, KeyBlock { first_key: &first_key, versions, is_settled });
            }
            Unplaced::Changes(block) => self.top.add_change_block(place, block),
            Unplaced::EndOfKeys if self.top.key_blocks() == 0 => self.top.keys_begin_at(place),
            Unplaced::EndOfChanges if self.top.change_blocks() == 0 => self.top.changes_begin_at(place),
            Unplaced::EndOfKeys | Unplaced::EndOfChanges | Unplaced::Unlisted => {}
        }
    }

    /// Returns the list of the blocks, after the last ones were written.
    ///
    /// # Panics
    ///
    /// Panics if [`BaseWriter::next_blocks`] has not returned `None`.
    pub fn into_top(self) -> BaseTop {
        assert!(matches!(self.stage, Stage::Done), "all blocks are written");
        self.top
    }

    fn emit(&mut self, block: Vec<u8>, of: Unplaced, blocks: &mut Vec<Vec<u8>>) {
        self.unplaced.push_back(of);
        blocks.push(block);
    }

    fn some_keys(&mut self, blocks: &mut Vec<Vec<u8>>) -> Result<(), Overtaken> {
        let settled = self.top.settled();
        let compressed_values = self.head.compressed_values;
        let slice = self.state.slice()?;
        let mut walk = std::mem::replace(&mut self.walk, Walk::base());
        let mut bytes = 0;
        walk.go_by_leaves(&slice.snapshot(), |version, ends_leaf| {
            let is_known = compressed_values || !version.location().is_compressed();
            assert!(is_known, "an older release would misread the base");
            self.entries += 1;
            self.leaf.put(version, settled);
            if self.leaf.is_unsettled && self.leaf.bytes.len() >= BLOCK_BYTES {
                // The rest of the leaf follows in the next block, so its first entry there has the whole key.
                bytes += self.leaf_to_keys(blocks);
                bytes += self.close_keys(blocks);
                self.leaf.writer = EntryWriter::default();
            }
            if ends_leaf {
                bytes += self.close_leaf(blocks);
            }
            bytes < BLOCK_BYTES
        });
        self.state.intact()?;
        self.walk = walk;
        if self.walk.is_done() {
            self.close_leaf(blocks);
            self.close_keys(blocks);
            self.stage = Stage::EndOfKeys;
        }
        Ok(())
    }

    /// Ends the leaf that is being walked. Returns the number of bytes of the blocks that became full.
    fn close_leaf(&mut self, blocks: &mut Vec<Vec<u8>>) -> usize {
        if self.leaf.versions == 0 || self.leaf.is_unsettled {
            let bytes = self.leaf_to_keys(blocks);
            self.leaf = OpenLeaf::default();
            return bytes;
        }
        let before = self.close_keys(blocks);
        let OpenLeaf { bytes, first_key, versions, totals, .. } = std::mem::take(&mut self.leaf);
        for (key_len, id, value) in totals {
            self.totals.add(key_len, value);
            self.places = self.places.wrapping_add(place_of(id, value));
        }
        self.settled_versions += u64::from(versions);
        let block = [&[SETTLED], bytes.as_slice()].concat();
        let len = block.len();
        self.emit(block, Unplaced::Keys { first_key, versions, is_settled: true }, blocks);
        before + len
    }

    /// Appends the entries of the leaf to the block of keys. Returns its length if it became full.
    fn leaf_to_keys(&mut self, blocks: &mut Vec<Vec<u8>>) -> usize {
        if self.leaf.versions == 0 {
            return 0;
        }
        if self.keys.block.is_empty() {
            self.keys.block.push(KEYS);
            self.keys.first_key.clone_from(&self.leaf.first_key);
        }
        self.keys.block.append(&mut self.leaf.bytes);
        self.keys.versions += std::mem::take(&mut self.leaf.versions);
        if self.keys.block.len() >= BLOCK_BYTES { self.close_keys(blocks) } else { 0 }
    }

    /// Ends the block of keys, if it has entries. Returns its length.
    fn close_keys(&mut self, blocks: &mut Vec<Vec<u8>>) -> usize {
        let OpenKeys { block, first_key, versions } = std::mem::take(&mut self.keys);
        let len = block.len();
        if len > 0 {
            self.emit(block, Unplaced::Keys { first_key, versions, is_settled: false }, blocks);
        }
        len
    }

    fn some_changes(&mut self, mut behind: ChangeId, blocks: &mut Vec<Vec<u8>>) -> Result<(), Overtaken> {
        let settled = self.top.settled();
        let slice = self.state.slice()?;
        let snapshot = slice.snapshot();
        let mut changes = snapshot.written_after(behind);
        let (mut bytes, mut is_done) = (0, false);
        for _ in 0..VISITED_MAX {
            let Some(looked) = changes.look().filter(|looked| looked.id.main <= settled) else {
                is_done = true;
                break;
            };
            behind = looked.id;
            // A deletion below the compact revision can no longer be read.
            let Some(version) = looked.version.filter(|version| !version.is_tombstone()) else { continue };
            if self.top.settled_block_of(version.key()).is_some() {
                self.places = self.places.wrapping_sub(place_of(version.id(), version.value()));
                self.settled_changes += 1;
            }
            self.changes.put(version);
            self.entries += 1;
            if self.changes.versions == CHANGES_PER_BLOCK || self.changes.block.len() >= BLOCK_BYTES {
                bytes += self.close_changes(blocks);
                if bytes >= BLOCK_BYTES {
                    break;
                }
            }
        }
        self.state.intact()?;
        self.stage = Stage::Changes(behind);
        if is_done {
            self.close_changes(blocks);
            self.stage = Stage::EndOfChanges;
        }
        Ok(())
    }

    /// Ends the block of changes, if it has entries. Returns its length.
    fn close_changes(&mut self, blocks: &mut Vec<Vec<u8>>) -> usize {
        let OpenChanges { block, first, versions, .. } = std::mem::take(&mut self.changes);
        let len = block.len();
        if versions > 0 {
            self.emit(block, Unplaced::Changes(ChangeBlock { first, versions }), blocks);
        }
        len
    }
}

fn end(entries: u64) -> Vec<u8> {
    let mut block = vec![END];
    put_u64(&mut block, entries);
    block
}

impl OpenLeaf {
    fn put(&mut self, version: Version<'_>, settled: Revision) {
        let is_same_key = self.versions > 0 && self.last_key == version.key();
        let is_settled =
            !version.is_tombstone() && version.lease() == LeaseId::NONE && version.main() <= settled;
        self.is_unsettled |= is_same_key || !is_settled || self.versions as usize >= BLOCK_VERSIONS_MAX;
        if self.versions == 0 {
            self.first_key.clear();
            self.first_key.extend_from_slice(version.key());
        }
        if !is_same_key {
            self.last_key.clear();
            self.last_key.extend_from_slice(version.key());
        }
        self.writer.put(version.key(), &Entry::of(version), &mut self.bytes);
        self.versions += 1;
        // A block of long keys would be long, too, and each read of one of them would read all of it.
        self.is_unsettled |= self.bytes.len() >= BLOCK_BYTES;
        if self.is_unsettled {
            self.totals.clear();
        } else {
            self.totals.push((version.key().len(), version.id(), version.value()));
        }
    }
}

impl OpenChanges {
    fn put(&mut self, version: Version<'_>) {
        if self.versions == 0 {
            self.block.push(CHANGES);
            self.first = version.id();
        }
        self.writer.put(version.key(), &Entry::of(version), &mut self.block);
        self.versions += 1;
    }
}
