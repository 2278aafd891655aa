//! Builds a store from a saved image in bulk, without searching the trees and without splitting nodes.
//!
//! The tree `keys` is built while the versions arrive, in key order. The tree `revisions` is built at the end
//! from two sources: a table with one entry per main revision, which has the first change of each
//! transaction, and a sorted list, which has all other changes. If there are far fewer versions than
//! revisions, the table would waste memory, and the list has all versions. The versions come from a file
//! whose content is not trusted, so everything that would break an invariant of the index is an error.

use std::sync::Arc;

use numbers::{ChangeId, Revision};

use crate::base::Base;
use crate::epoch::{Census, Epochs, Kind, Retired};
use crate::node::{ByKey, ByRevision, INNER, Inner, LEAF, Leaf, NodePtr, Order, STUB, Slot, Stub};
use crate::saved::{LoadedVersion, REVISION_MAX, VERSION_MAX};
use crate::store::Store;
use crate::tree::{Tree, allocate};
use crate::version::{self, Content, KEY_BYTES_MAX, Version};

/// Reason why an image is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The keys are not in ascending order, or the revisions of one key are not in ascending order.
    OutOfOrder,
    /// A key is longer than the index can hold.
    KeyTooLong,
    /// No sequence of puts and deletions results in the version numbers of this key: a tombstone after a
    /// tombstone, a first version after a live one, a later version after a tombstone, or negative numbers.
    InvalidHistory,
    /// A version's main revision is below 1 or above the current revision of the image, or the current or the
    /// compact revision of the image is out of bounds.
    RevisionOutOfBounds,
    /// Two versions have the same main and sub-revision.
    RevisionTwice,
    /// A block of the base does not exist, or is not settled.
    InvalidBlock,
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LoadError::OutOfOrder => "keys or revisions are not in ascending order",
            LoadError::KeyTooLong => "a key is too long",
            LoadError::InvalidHistory => "the version numbers of a key contradict each other",
            LoadError::RevisionOutOfBounds => "a revision is out of bounds",
            LoadError::RevisionTwice => "two versions bear the same revision",
            LoadError::InvalidBlock => "a block of the base cannot stand for a leaf of the index",
        })
    }
}

impl std::error::Error for LoadError {}

/// Builds a store from versions. They must be pushed in ascending key order and, for each key, from old to
/// new (the order of [`crate::Snapshot::histories`]).
pub struct Loader {
    // Has no records until `finish` succeeds. Until then the loader owns all records, in `placed`, `fresh`
    // and `records`, and frees them if loading fails.
    store: Store,
    keys: TreeBuilder<ByKey>,
    /// First change of each main revision below `places_max`, at the index of the revision; grows as needed.
    placed: Vec<Slot>,
    places_max: usize,
    /// Changes that arrived last and are in neither `placed` nor `records` yet.
    fresh: Vec<(ChangeId, Slot)>,
    /// Changes that have no entry in `placed`: main revisions from `places_max` on, and all but the first
    /// change of a transaction.
    records: Vec<(Revision, Slot)>,
    /// Superseded versions, each with the id of its successor.
    superseded: Vec<(ChangeId, Slot)>,
    newest: Option<Slot>,
    /// Versions that the base lists as settled changes; they are not in the tree of revisions.
    listed: Vec<(ChangeId, Slot)>,
    /// Number of versions in blocks that were pushed.
    in_blocks: u64,
    /// Bytes of the records of all other versions.
    record_bytes: u64,
    /// First key that may follow a block that was pushed last.
    after_block: Option<AfterBlock>,
}

/// Keys that may follow a block.
enum AfterBlock {
    /// Keys from the first key of this block on.
    Block(u32),
    /// No key, because the block is the last one.
    Nothing,
}

// SAFETY: the loader is the only owner of the objects that its pointers lead to.
unsafe impl Send for Loader {}

/// Number of changes that are written to the table together. Changes arrive in key order, so successive
/// changes usually belong to distant entries of the table, and most writes cause a cache miss. Writing many
/// changes in one tight loop lets the processor overlap these misses.
const PLACED_TOGETHER: usize = 1024;

/// Maximum number of versions for which memory is reserved in advance. Without this bound, a wrong number in
/// a file could reserve all memory.
const RESERVED_MAX: usize = 1 << 24;

impl Loader {
    /// Starts loading an image; `versions` is the expected number of its versions, `current` is its current
    /// revision.
    pub fn new(versions: u64, current: Revision) -> Loader {
        let versions = usize::try_from(versions).map_or(RESERVED_MAX, |n| n.min(RESERVED_MAX));
        let places = usize::try_from(current.0).unwrap_or(usize::MAX).saturating_add(1);
        // An entry of the table takes half as much memory as an entry of the list, so the table is smaller if
        // at least half of its entries are used.
        let places_max = if places / 2 <= versions { places } else { 0 };
        Loader {
            store: Store::new(),
            keys: TreeBuilder::new(),
            placed: Vec::with_capacity(places_max),
            places_max,
            fresh: Vec::with_capacity(PLACED_TOGETHER),
            records: Vec::with_capacity(versions.saturating_sub(places_max)),
            superseded: Vec::new(),
            newest: None,
            listed: Vec::new(),
            in_blocks: 0,
            record_bytes: 0,
            after_block: None,
        }
    }

    /// Starts loading an image whose settled leaves stay in the blocks of a base. All versions at or below
    /// [`Blocks::settled`](crate::Blocks::settled) that are pushed must be in the base's list of changes.
    /// `versions` is the expected number of versions that are pushed one by one.
    ///
    /// # Panics
    ///
    /// Panics if the base belongs to another store or loader.
    pub fn with_base(versions: u64, current: Revision, base: Arc<Base>) -> Loader {
        let mut loader = Loader::new(versions, current);
        assert!(base.claim(loader.store.removed.store), "a base belongs to one store");
        loader.store.settled = ChangeId::end_of(base.settled());
        loader.store.base = Some(base);
        loader
    }

    /// Adds all versions of a settled block of the base, without reading the block. No version that was
    /// pushed before or is pushed later may be in the range of the block, which extends to the first key of
    /// the next block. After an error the loader can only be dropped.
    ///
    /// # Errors
    ///
    /// Returns `OutOfOrder` if the block is not after everything pushed so far, and `InvalidBlock` if it does
    /// not exist or is not settled.
    pub fn push_block(&mut self, number: u32) -> Result<(), LoadError> {
        let Some(base) = self.store.base.clone() else { return Err(LoadError::InvalidBlock) };
        let blocks = base.blocks();
        if number >= blocks.key_blocks() {
            return Err(LoadError::InvalidBlock);
        }
        let block = blocks.key_block(number);
        let len = u16::try_from(block.versions).ok().filter(|len| (1..=LEAF).contains(&usize::from(*len)));
        let Some(len) = len.filter(|_| block.is_settled && block.first_key.len() <= KEY_BYTES_MAX) else {
            return Err(LoadError::InvalidBlock);
        };
        self.check_after_block(block.first_key)?;
        let next = (number + 1 < blocks.key_blocks()).then(|| blocks.key_block(number + 1).first_key);
        if next.is_some_and(|next| next <= block.first_key) {
            return Err(LoadError::OutOfOrder);
        }
        if let Some(newest) = self.newest.take() {
            // SAFETY: the loader owns the record.
            if unsafe { newest.version::<'_>() }.key() >= block.first_key {
                self.newest = Some(newest);
                return Err(LoadError::OutOfOrder);
            }
            self.keys.push(newest, None, &self.store.epochs);
        }
        let epochs = &self.store.epochs;
        self.keys.push_stub(Stub::new(epochs.batch(), &base, number, len), block.first_key, epochs);
        self.in_blocks += u64::from(len);
        self.after_block = Some(match number + 1 < blocks.key_blocks() {
            true => AfterBlock::Block(number + 1),
            false => AfterBlock::Nothing,
        });
        Ok(())
    }

    /// Returns an error if `key` may be in the range of the block that was pushed last.
    fn check_after_block(&self, key: &[u8]) -> Result<(), LoadError> {
        let is_after = match (&self.after_block, &self.store.base) {
            (Some(AfterBlock::Block(next)), Some(base)) => key >= base.blocks().key_block(*next).first_key,
            (Some(AfterBlock::Nothing), _) => false,
            _ => true,
        };
        if is_after { Ok(()) } else { Err(LoadError::OutOfOrder) }
    }

    /// Returns the counters of allocated objects. They may be kept after the loader and the store are
    /// dropped.
    pub fn census(&self) -> Arc<Census> {
        self.store.census()
    }

    /// Adds the next version. After an error the loader can only be dropped.
    pub fn push(&mut self, loaded: &LoadedVersion<'_>) -> Result<(), LoadError> {
        if loaded.key.len() > KEY_BYTES_MAX {
            return Err(LoadError::KeyTooLong);
        }
        if loaded.main < Revision::FIRST || loaded.main > REVISION_MAX {
            return Err(LoadError::RevisionOutOfBounds);
        }
        if self.after_block.is_some() {
            self.check_after_block(loaded.key)?;
            self.after_block = None;
        }
        // SAFETY: the loader owns the record, and frees its records only when it is dropped.
        let newest: Option<Version<'_>> = self.newest.map(|slot| unsafe { slot.version() });
        let mut previous = None;
        if let Some(newest) = newest {
            match newest.key().cmp(loaded.key) {
                std::cmp::Ordering::Greater => return Err(LoadError::OutOfOrder),
                std::cmp::Ordering::Equal => previous = Some(newest),
                std::cmp::Ordering::Less => {}
            }
        }
        let valid = match (previous, loaded.version) {
            (_, ..0) => false,
            (_, version) if version > VERSION_MAX => false,
            (None, _) => true,
            (Some(previous), 0) => !previous.is_tombstone(),
            (Some(previous), 1) => previous.is_tombstone(),
            (Some(previous), version) => !previous.is_tombstone() && version > previous.version(),
        };
        if !valid {
            return Err(LoadError::InvalidHistory);
        }
        let id = ChangeId { main: loaded.main, sub: loaded.sub };
        if previous.is_some_and(|previous| previous.id() >= id) {
            return Err(LoadError::OutOfOrder);
        }
        let is_listed = id <= self.store.settled;
        if is_listed && loaded.version == 0 {
            // Compactions have removed all tombstones that old.
            return Err(LoadError::InvalidHistory);
        }
        let content = Content {
            id,
            create_revision: loaded.create_revision,
            version: loaded.version,
            lease: loaded.lease,
            value: loaded.value,
        };
        // Nothing is freed while loading, so records may be linked as if nothing were compacted.
        let record = version::create(loaded.key, &content, previous, Revision::NEVER_COMPACTED);
        // SAFETY: the record was just created, and the loader owns it.
        let version: Version<'_> = unsafe { Version::from_record(record) };
        let slot = Slot::new(version);
        self.store.epochs.census().version_created(version.bytes());
        self.record_bytes += version.bytes() as u64;
        if is_listed {
            self.listed.push((id, slot));
        } else {
            self.fresh.push((id, slot));
        }
        if self.fresh.len() == PLACED_TOGETHER {
            self.place();
        }
        if let Some(previous) = previous {
            if !previous.is_tombstone() {
                self.superseded.push((id, Slot::new(previous)));
            }
        } else if let Some(finished) = self.newest {
            self.keys.push(finished, None, &self.store.epochs);
        }
        self.newest = Some(slot);
        Ok(())
    }

    /// Moves the changes in `fresh` to the table `placed`, or to the list `records` if they have no free
    /// entry in the table.
    fn place(&mut self) {
        let within = |id: ChangeId| {
            usize::try_from(id.main.0).ok().filter(|place| id.sub == 0 && *place < self.places_max)
        };
        let places = self.fresh.iter().filter_map(|(id, _)| within(*id)).max().map_or(0, |last| last + 1);
        if self.placed.len() < places {
            self.placed.resize(places, Slot::EMPTY);
        }
        for (id, slot) in self.fresh.drain(..) {
            match within(id).map(|place| &mut self.placed[place]) {
                Some(place) if *place == Slot::EMPTY => *place = slot,
                _ => self.records.push((id.main, slot)),
            }
        }
    }

    /// Builds the store with these current and compact revisions. A `compacted` of -1 means that nothing was
    /// compacted.
    pub fn finish(mut self, current: Revision, compacted: Revision) -> Result<Store, LoadError> {
        if !(Revision::FIRST..=REVISION_MAX).contains(&current)
            || compacted > current
            || compacted < Revision::NEVER_COMPACTED
        {
            return Err(LoadError::RevisionOutOfBounds);
        }
        self.place();
        // SAFETY: the loader owns all records.
        let sub = |slot: Slot| unsafe { slot.version() }.sub();
        sort_by_change(&mut self.records, sub);
        let twice = |pair: &[(Revision, Slot)]| pair[0].0 == pair[1].0 && sub(pair[0].1) == sub(pair[1].1);
        // Returns true for a record of the list that should be in the table, because its sub-revision is 0.
        // Another version with the same main and sub-revision occupies its entry.
        let taken =
            |&(main, slot): &(Revision, Slot)| sub(slot) == 0 && (main.0 as usize) < self.placed.len();
        if self.records.windows(2).any(twice) || self.records.iter().any(taken) {
            return Err(LoadError::RevisionTwice);
        }
        self.listed.sort_unstable_by_key(|(id, _)| *id);
        if self.listed.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(LoadError::RevisionTwice);
        }
        if self.store.base.as_ref().is_some_and(|base| base.settled() >= compacted) {
            return Err(LoadError::RevisionOutOfBounds);
        }
        let highest = self.records.last().map_or(0, |(main, _)| main.0);
        if highest.max(self.placed.len() as i64 - 1) > current.0 {
            return Err(LoadError::RevisionOutOfBounds);
        }

        if let Some(last) = self.newest.take() {
            self.keys.push(last, None, &self.store.epochs);
        }
        self.store.keys = self.keys.finish(&self.store.epochs);
        let mut revisions = TreeBuilder::<ByRevision>::new();
        let mut tombstones = Vec::new();
        let mut in_order = |main: Revision, slot: Slot| {
            revisions.push(slot, Some(ChangeId::first_of(main)), &self.store.epochs);
            if !slot.is_live() {
                tombstones.push(slot);
            }
        };
        let mut records = self.records.as_slice();
        for (main, &slot) in (0..).map(Revision).zip(&self.placed) {
            if slot != Slot::EMPTY {
                in_order(main, slot);
            }
            while let Some((&(_, slot), rest)) = records.split_first().filter(|(record, _)| record.0 == main)
            {
                in_order(main, slot);
                records = rest;
            }
        }
        records.iter().for_each(|&(main, slot)| in_order(main, slot));
        self.store.revisions = revisions.finish(&self.store.epochs);
        // The store owns the records from here on, so the loader must not free them when it is dropped.
        self.store.settled_versions = self.listed.len() as u64 + self.in_blocks;
        if self.store.base.is_some() {
            // The versions that had to be loaded count as growth: the next base may contain most of them.
            self.store.bytes_at_adoption = self.store.allocated().bytes().saturating_sub(self.record_bytes);
        }
        (self.placed, self.records, self.listed) = (Vec::new(), Vec::new(), Vec::new());
        self.superseded.sort_unstable_by_key(|&(by, _)| by);
        let superseded = self.superseded.iter().map(|(_, slot)| *slot);
        for slot in tombstones.into_iter().chain(superseded) {
            // SAFETY: the store owns the record, which is in its trees.
            unsafe { self.store.add_removable(slot) };
        }
        self.store.current = current;
        self.store.compacted = compacted;
        self.store.removed.through = compacted;
        self.store.find_removed_before();
        Ok(std::mem::take(&mut self.store))
    }
}

/// Sorts records by main revision, and those of one main revision by sub-revision. `sub` returns the
/// sub-revision.
fn sort_by_change<T: Copy>(records: &mut [(Revision, T)], sub: impl Fn(T) -> u32) {
    let highest = records.iter().map(|(main, _)| main.0).max().unwrap_or(0);
    sort_by_revision(records, i64::BITS - highest.leading_zeros());
    for of_one in records.chunk_by_mut(|a, b| a.0 == b.0).filter(|of_one| of_one.len() > 1) {
        of_one.sort_unstable_by_key(|(_, record)| sub(*record));
    }
}

/// Sorts by the lowest `bits` of the revision; the higher bits must be equal in all records. The algorithm is
/// an in-place radix sort from the highest digit down (McIlroy, Bostic and McIlroy, Engineering Radix Sort,
/// 1993): a sort with a second list would double the memory use.
fn sort_by_revision<T: Copy>(records: &mut [(Revision, T)], bits: u32) {
    const DIGIT_BITS: u32 = 8;
    /// Number of records up to which a digit table costs more than it saves.
    const FEW: usize = 64;
    if records.len() <= FEW {
        records.sort_unstable_by_key(|(main, _)| *main);
        return;
    }
    let shift = bits.saturating_sub(DIGIT_BITS);
    let digits = 1_usize << (bits - shift);
    let digit = |main: Revision| (main.0 >> shift) as usize % digits;
    // For each digit, the end position of its bucket, and the next position of the bucket that is not sorted
    // yet.
    let (mut ends, mut next) = ([0; 1 << DIGIT_BITS], [0; 1 << DIGIT_BITS]);
    records.iter().for_each(|(main, _)| ends[digit(*main)] += 1);
    let mut before = 0;
    for (end, next) in ends.iter_mut().zip(&mut next).take(digits) {
        *next = before;
        before += *end;
        *end = before;
    }
    for at in 0..digits {
        while next[at] < ends[at] {
            // The record moves to its bucket, and the record that it is swapped with is examined next.
            let of = digit(records[next[at]].0);
            records.swap(next[at], next[of]);
            next[of] += 1;
        }
    }
    if shift == 0 {
        return;
    }
    let mut rest = records;
    let mut begin = 0;
    for end in &ends[..digits] {
        let (of_digit, behind) = rest.split_at_mut(*end - begin);
        sort_by_revision(of_digit, shift);
        (rest, begin) = (behind, *end);
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // The builder holds no nodes after a successful load; after a failed load it frees them here.
        self.keys.discard(&self.store.epochs);
        let placed = self.placed.iter().copied().filter(|slot| *slot != Slot::EMPTY);
        let others = self.records.iter().map(|(_, slot)| *slot);
        let by_change = self.fresh.iter().chain(&self.listed).map(|(_, slot)| *slot);
        for slot in by_change.chain(others).chain(placed) {
            // SAFETY: no tree owns the records yet, and each record is visited once.
            unsafe {
                let record = slot.version().record();
                Retired::new(record.as_ptr(), Kind::Version).free(self.store.epochs.census());
            }
        }
    }
}

/// A finished node that has no parent yet.
struct Built<K: Order> {
    node: NodePtr,
    weight: u64,
    /// Separator between this node and the node before it; undefined for the first node.
    separator: K::Separator,
}

/// Builds a tree bottom-up from its entries in order.
struct TreeBuilder<K: Order> {
    /// The leaf that is being filled.
    leaf: Leaf,
    /// Search keys of the entries of that leaf, if the caller knows them without reading the records.
    known: Vec<K::Query<'static>>,
    separator: K::Separator,
    /// A stub that was pushed last. The separator after it is known once the next entry arrives.
    stub: Option<(NodePtr, u64)>,
    built: Vec<Built<K>>,
    len: u64,
}

/// Maximum number of children that the builder gives an inner node. Some entries stay free for later
/// insertions.
const INNER_FILL: usize = INNER - INNER / 8;

impl<K: Order> TreeBuilder<K> {
    fn new() -> TreeBuilder<K> {
        TreeBuilder {
            leaf: Leaf::new(0),
            known: Vec::new(),
            separator: K::no_separator(),
            stub: None,
            built: Vec::new(),
            len: 0,
        }
    }

    /// Appends an entry, whose record must be alive and above all earlier entries. `known` is a search key
    /// with the same head as the record's key, and saves reading the record.
    fn push(&mut self, slot: Slot, known: Option<K::Query<'static>>, epochs: &Epochs) {
        // SAFETY: the caller owns the record.
        let version: Version<'_> = unsafe { slot.version() };
        if self.stub.is_some() {
            self.close_stub(Some(K::separator_at(K::query(version), epochs)));
        }
        let len = self.leaf.len();
        let at = if len == K::APPEND_KEEP {
            let separator = K::separate(self.leaf.query::<K>(len - 1), K::query(version), epochs);
            self.close_leaf(Some(separator), epochs);
            0
        } else {
            len
        };
        self.known.extend(known);
        self.leaf.slots[at] = slot;
        self.leaf.node.len += 1;
        self.len += 1;
    }

    /// Moves the stub that was pushed last to the finished nodes.
    fn close_stub(&mut self, next: Option<K::Separator>) {
        let Some((node, weight)) = self.stub.take() else { return };
        let separator = std::mem::replace(&mut self.separator, next.unwrap_or_else(K::no_separator));
        self.built.push(Built { node, weight, separator });
    }

    fn close_leaf(&mut self, next: Option<K::Separator>, epochs: &Epochs) {
        let low = (!self.built.is_empty()).then_some(self.separator);
        let prefix = shared::<K>(low, next);
        let mut leaf = std::mem::replace(&mut self.leaf, Leaf::new(0));
        leaf.node.epoch = epochs.batch();
        if self.known.len() == leaf.len() {
            leaf.node.prefix = prefix;
            for (head, query) in leaf.heads.iter_mut().zip(self.known.drain(..)) {
                *head = K::head(query, prefix);
            }
        } else {
            leaf.set_prefix::<K>(prefix);
        }
        let weight = leaf.weight();
        let separator = std::mem::replace(&mut self.separator, next.unwrap_or_else(K::no_separator));
        self.built.push(Built { node: allocate(leaf, epochs), weight, separator });
    }

    fn finish(&mut self, epochs: &Epochs) -> Tree<K> {
        if self.leaf.len() > 0 {
            self.close_leaf(None, epochs);
        }
        self.close_stub(None);
        let mut level = 0;
        while self.built.len() > 1 {
            level += 1;
            let below = std::mem::take(&mut self.built);
            // Children are distributed evenly, so that no node gets a single child.
            let groups = below.len().div_ceil(INNER_FILL);
            for group in 0..groups {
                let (from, to) = (group * below.len() / groups, (group + 1) * below.len() / groups);
                let mut inner = Inner::<K>::new(epochs.batch(), level);
                let low = (from > 0).then(|| below[from].separator);
                inner.node.prefix = shared::<K>(low, below.get(to).map(|next| next.separator));
                for (at, child) in below[from..to].iter().enumerate() {
                    inner.insert(at, child.separator, child.node, child.weight);
                }
                let weight = inner.weight();
                self.built.push(Built {
                    node: allocate(inner, epochs),
                    weight,
                    separator: below[from].separator,
                });
            }
        }
        let mut tree = Tree::new();
        if let Some(root) = self.built.pop() {
            tree.root = root.node;
            tree.live = root.weight;
            tree.len = self.len;
        }
        tree
    }

    /// Frees the nodes of an unfinished tree, but not the records. An unfinished tree has only leaves,
    /// because `finish` builds the inner nodes and also completes the tree.
    fn discard(&mut self, epochs: &Epochs) {
        if let Some((stub, _)) = self.stub.take() {
            // SAFETY: the builder is the only owner of its nodes.
            unsafe { Retired::new(stub, Kind::Stub).free(epochs.census()) };
        }
        if self.built.is_empty() {
            return;
        }
        // Every leaf but the first has a separator before it, and so does the leaf that is being filled. All
        // these separators are freed.
        let mut separators = vec![self.separator];
        separators.extend(self.built.iter().skip(1).map(|leaf| leaf.separator));
        for separator in separators {
            // SAFETY: the builder is the only owner of its separators.
            unsafe { K::free_separator(separator, epochs.census()) };
        }
        for leaf in self.built.drain(..) {
            // SAFETY: the builder is the only owner of its nodes.
            unsafe {
                let kind = if (*leaf.node).level == STUB { Kind::Stub } else { Kind::Leaf };
                Retired::new(leaf.node, kind).free(epochs.census());
            }
        }
    }
}

impl TreeBuilder<ByKey> {
    /// Appends a stub whose entries are above all earlier ones. `first_key` is the key of its first entry.
    fn push_stub(&mut self, stub: Stub, first_key: &[u8], epochs: &Epochs) {
        let len = self.leaf.len();
        if len > 0 {
            let separator = ByKey::separate(self.leaf.query::<ByKey>(len - 1), first_key, epochs);
            self.close_leaf(Some(separator), epochs);
        } else if self.stub.is_some() {
            // The last key of the stub before is not known.
            self.close_stub(Some(ByKey::separator_at(first_key, epochs)));
        }
        let entries = u64::from(stub.node.len);
        self.len += entries;
        self.stub = Some((allocate(stub, epochs), entries));
    }
}

/// Returns the length of the prefix that all keys between two separators share.
fn shared<K: Order>(low: Option<K::Separator>, high: Option<K::Separator>) -> u32 {
    // SAFETY: separators of a tree being built are alive.
    let query = |separator| unsafe { K::separator_query(separator) };
    K::shared(low.map(query), high.map(query))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_sorted_as_by_comparing_them() {
        // Multiples of a prime spread revisions and sub-revisions; several changes have the same revision.
        for (count, highest) in [
            (0, 1),
            (1, 1),
            (5, 3),
            (2000, 1500),
            (3000, 1 << 40),
            (100, REVISION_MAX.0),
            (9000, REVISION_MAX.0),
        ] {
            let mut records: Vec<(Revision, u32)> = (0..count)
                .map(|n: i64| {
                    let main = 1 + (n / 3 * 2_654_435_761_987).rem_euclid(highest);
                    (Revision(main), (n * 7919 % 1009) as u32)
                })
                .collect();
            records.extend((count > 0).then_some((Revision(highest), 7)));
            let mut expected = records.clone();
            expected.sort_by_key(|(main, sub)| (*main, *sub));
            sort_by_change(&mut records, |sub| sub);
            assert_eq!(records, expected, "{count} up to {highest}");
        }
    }
}
