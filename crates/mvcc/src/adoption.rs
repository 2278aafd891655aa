//! Replaces leaves of the tree of keys by stubs for blocks of a base, and blocks in memory by nothing.
//!
//! A new base is adopted in slices, each of which leaves the store in a state that can be published. First the
//! versions that the base lists leave the tree of revisions. Then a walk in key order compares the leaves of
//! the tree of keys with the blocks of the base.
//!
//! # When a leaf equals a block
//!
//! A leaf becomes a stub of a block if its first key and its number of entries are those of the block, its
//! last key is below the first key of the next block, and all its entries are settled: puts without a lease at
//! or below [`Blocks::settled`]. Then the block has the same versions, although
//! nobody reads it. Let the base be of revision 90, with blocks `a b c` and `f g`:
//!
//! ```text
//! leaf now             compared with a b c
//! a@1 b@2 c@3          equal
//! a@1 b@95 c@3         b@95 is not settled: it was written after the base
//! a@1 c@3              two entries, not three: b was deleted and removed
//! a@1 c@3 f@4          its last key is not below f: b was removed, and leaves were joined
//! ```
//!
//! A stub of the base before is compared by its first key and its number of entries alone. This is enough
//! because nothing was adopted between the moment of the new base and now. Locations are not compared: no value
//! may be relocated between the moment and the end of the adoption. [`Store::adoptable`] checks both.
//!
//! Leaves between stubs stay small if most of their keys are deleted: their entries cannot move to a stub. They
//! join when one of their neighbors becomes an ordinary leaf because a key of it is written.
//!
//! In general: the settled entries of the leaf were in the tree at revision 90, and the block has all keys of
//! that time from its first key to the first key of the next block. So the leaf's entries are a part of the
//! block's, and as many.

use std::sync::{Arc, Weak};

use numbers::{ChangeId, LeaseId, Location, Revision};

use crate::base::{Base, Bases, BlockId, Blocks, Eviction};
use crate::epoch::{Kind, Retired};
use crate::node::{ByKey, Inner, LEAF, Leaf, NodePtr, STUB, Stub};
use crate::range::KeyRange;
use crate::store::Store;
use crate::tree::{allocate, is_inner};
use crate::version::{Value, Version};
use crate::view::{Moment, Snapshot};

/// Progress of the adoption of a base.
pub(crate) struct Adoption {
    /// The base before.
    pub(crate) before: Option<Arc<Base>>,
    stage: Stage,
}

enum Stage {
    /// Versions that the base lists leave the tree of revisions.
    Revisions,
    /// Leaves become stubs. The walk continues at the leaf that contains `from`, and with this block.
    Keys { from: Box<[u8]>, block: u32 },
}

/// Result of [`Store::adoptable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adoptable {
    /// Now.
    Now,
    /// Once versions are removed that are unreadable at the compact revision of the base, and the adoption or
    /// transaction in progress has ended.
    Later,
    /// The base belongs to a store, is older than the newest base or has another cache, or since its moment a
    /// value was relocated, or another base was adopted.
    Never,
}

/// Result of one slice of an adoption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptProgress {
    /// Number of leaves that this slice replaced by stubs.
    pub settled_leaves: u64,
    /// True if no leaf refers to the base before any more.
    pub done: bool,
}

/// A block that a read would have to load.
#[derive(Clone, Debug)]
pub struct AbsentBlock {
    base: Arc<Base>,
    block: BlockId,
}

impl AbsentBlock {
    /// Loads the block. This waits for the disk. A failure is the fault of the base, which the read reports.
    pub fn load(&self) {
        self.base.load(self.block);
    }
}

impl Store {
    /// Returns whether [`Store::adopt`] accepts a base that was written from a moment of this store.
    pub fn adoptable(&self, base: &Base, moment: &Moment) -> Adoptable {
        let settled = base.settled();
        let is_of_other_cache = |before: &Arc<Base>| !Arc::ptr_eq(before.cache(), base.cache());
        if base.is_claimed()
            || !moment.is_of_placements(self.removed.store, self.placements)
            || settled.next() != moment.compact_revision()
            || self
                .base
                .as_ref()
                .is_some_and(|before| before.settled() > settled || is_of_other_cache(before))
        {
            return Adoptable::Never;
        }
        let is_ready = self.adoption.is_none()
            && !self.is_suspended()
            && base.cache().fault().is_none()
            && self.is_removal_done_through(settled.next());
        if is_ready { Adoptable::Now } else { Adoptable::Later }
    }

    /// Begins to adopt a base that was written from `moment`. [`Store::adopt_step`] does the work.
    ///
    /// # Panics
    ///
    /// Panics if [`Store::adoptable`] does not return [`Adoptable::Now`].
    pub fn adopt(&mut self, base: Arc<Base>, moment: &Moment) {
        assert!(self.adoptable(&base, moment) == Adoptable::Now, "{base:?} is adopted at a wrong time");
        assert!(base.claim(self.removed.store), "a base belongs to one store");
        let before = self.base.replace(base);
        self.placements += 1;
        self.find_removed_before();
        self.adoption = Some(Adoption { before, stage: Stage::Revisions });
    }

    /// Adopts a part of the base: visits up to `budget` leaves. The caller publishes after each step. After a
    /// fault the adoption does not go on.
    pub fn adopt_step(&mut self, budget: u64) -> AdoptProgress {
        let mut progress = AdoptProgress { settled_leaves: 0, done: self.adoption.is_none() };
        let (Some(mut adoption), Some(base)) = (self.adoption.take(), self.base.clone()) else {
            return progress;
        };
        for _ in 0..budget {
            if base.cache().fault().is_some() {
                break;
            }
            match &mut adoption.stage {
                Stage::Revisions => {
                    if !self.settle_revisions(ChangeId::end_of(base.settled())) {
                        adoption.stage = Stage::Keys { from: Box::default(), block: 0 };
                    }
                }
                Stage::Keys { from, block } => {
                    let (next, is_settled) = self.settle_leaf(&base, from, block);
                    progress.settled_leaves += u64::from(is_settled);
                    match next {
                        _ if base.cache().fault().is_some() => break,
                        Some(next) => *from = next,
                        None => {
                            progress.done = true;
                            break;
                        }
                    }
                }
            }
        }
        if !progress.done {
            self.adoption = Some(adoption);
            return progress;
        }
        self.bytes_at_adoption = u64::MAX;
        self.placements += 1;
        if let Some(before) = adoption.before {
            // One by one, so that no single object of garbage takes long to free.
            while let Some(Eviction::Evicted(loaded)) = before.evict(true) {
                self.epochs.retire(Retired::new(loaded.as_ptr(), Kind::Loaded));
            }
            self.replaced.push(Arc::downgrade(&before));
            // Views that were published before may still refer to it.
            let pointer = Arc::into_raw(before).cast_mut();
            self.epochs.retire(Retired::new(pointer, Kind::Base));
        }
        progress
    }

    /// Returns true if a base is being adopted.
    pub fn is_adopting(&self) -> bool {
        self.adoption.is_some()
    }

    /// Returns the newest base.
    pub fn base(&self) -> Option<&Arc<Base>> {
        self.base.as_ref()
    }

    /// Returns the number of bases besides the newest one that the store or a view still refers to. Their
    /// files must stay.
    pub fn old_bases(&mut self) -> usize {
        self.replaced.retain(|base| Weak::strong_count(base) > 0);
        self.replaced.len() + usize::from(self.bases().before.addr() != 0)
    }

    /// Returns the fault of a base, like [`Snapshot::fault`]. The caller checks it before it publishes or
    /// acknowledges anything: a write to a block that could not be read is wrong.
    pub fn fault(&self) -> Option<&str> {
        self.snapshot().fault()
    }

    pub(crate) fn bases(&self) -> Bases {
        let pointer = |base: Option<&Arc<Base>>| base.map_or(std::ptr::null(), Arc::as_ptr);
        Bases {
            newest: pointer(self.base.as_ref()),
            before: pointer(self.adoption.as_ref().and_then(|adoption| adoption.before.as_ref())),
        }
    }

    /// Updates what the cache and [`Stats::pinned_bytes`](crate::Stats::pinned_bytes) know of the memory.
    pub(crate) fn count_bytes(&mut self) {
        if let Some(base) = &self.base {
            let bytes = self.allocated().bytes();
            base.cache().set_indexed_bytes(bytes);
            self.bytes_at_adoption = self.bytes_at_adoption.min(bytes);
        }
    }

    /// Takes up to `max` blocks out of memory that were not used lately, as long as the cache is over its
    /// budget. Their memory is freed once no view can read them. Returns the number of blocks.
    pub fn evict(&mut self, max: usize) -> usize {
        /// Number of blocks that are looked at for each one that may be evicted.
        const LOOKS: usize = 4;
        let before = self.adoption.as_ref().and_then(|adoption| adoption.before.as_ref());
        let mut evicted = 0;
        // The base before is no longer needed soon.
        for base in before.into_iter().chain(&self.base) {
            for _ in 0..max.saturating_mul(LOOKS) {
                if evicted == max || !base.cache().is_over() {
                    break;
                }
                match base.evict(false) {
                    None => break,
                    Some(Eviction::Stays) => {}
                    Some(Eviction::Evicted(loaded)) => {
                        self.epochs.retire(Retired::new(loaded.as_ptr(), Kind::Loaded));
                        evicted += 1;
                    }
                }
            }
        }
        evicted
    }

    /// Stores the new location of a value that was copied within the log. Readers of later views see the new
    /// location; the old copy must stay readable for readers of earlier views. Returns the value as it was
    /// before, or `None` without a change if the version no longer exists, or its value is empty or no longer at
    /// `from`, or while a base is being adopted, whose blocks have the locations of its moment.
    pub fn relocate(&mut self, change: ChangeId, from: Location, to: Location) -> Option<Value> {
        if self.adoption.is_some() {
            return None;
        }
        let snapshot = self.snapshot();
        let version = snapshot
            .version_at(change)
            .filter(|version| version.location() == from && version.value_len() > 0)?;
        if change > self.settled {
            let before = version.value();
            version.set_location(to);
            self.placements += 1;
            return Some(before);
        }
        // The location in a block cannot be changed, so the version gets a record of its own.
        let key: Box<[u8]> = version.key().into();
        self.pin(&key);
        let version = self.snapshot().version_at(change).filter(|version| version.location() == from)?;
        let before = version.value();
        version.set_location(to);
        self.placements += 1;
        Some(before)
    }

    /// Replaces the stub that contains `key`, if it is one, by an ordinary leaf.
    fn pin(&mut self, key: &[u8]) {
        self.keys.pin(key, &mut self.epochs);
    }

    /// Moves the boundary between the versions that the base lists and the tree of revisions, by one leaf.
    /// Returns false if it has reached `through`.
    fn settle_revisions(&mut self, through: ChangeId) -> bool {
        if let Some((last, versions)) = self.revisions.remove_first_leaf(through, &mut self.epochs) {
            self.settled = last;
            self.settled_versions += versions;
            return true;
        }
        // The first leaf also contains versions that stay.
        for _ in 0..LEAF {
            let first = self.revisions.first().map(Version::id).filter(|first| *first <= through);
            let Some(first) = first else { break };
            self.revisions.remove(first, &mut self.epochs);
            self.settled_versions += 1;
        }
        self.settled = self.settled.max(through);
        false
    }

    /// Replaces the leaf that contains `from` by a stub of the new base, if a block equals it; a stub of
    /// another base without such a block becomes an ordinary leaf. Returns the beginning of the next leaf, and
    /// true if there is a new stub. `block` is a block that is not after the next one to compare.
    fn settle_leaf(&mut self, base: &Arc<Base>, from: &[u8], block: &mut u32) -> (Option<Box<[u8]>>, bool) {
        let Some((leaf, next)) = self.leaf_at(from) else { return (None, false) };
        let blocks = base.blocks();
        // SAFETY: the node is a leaf or stub of the writer's tree, which is not changed while it is read.
        let first_key: Box<[u8]> = unsafe {
            match (*leaf).level {
                STUB => {
                    let stub = &*leaf.cast::<Stub>();
                    if Arc::ptr_eq(&stub.base, base) {
                        return (next, false);
                    }
                    stub.base.blocks().key_block(stub.number).first_key.into()
                }
                _ => match (*leaf.cast::<Leaf>()).slots().first() {
                    Some(slot) => slot.version::<'_>().key().into(),
                    None => return (next, false),
                },
            }
        };
        *block = first_not_below(&**blocks, *block, &first_key);
        let number = *block;
        let is_equal = number < blocks.key_blocks() && {
            let found = blocks.key_block(number);
            let end = (number + 1 < blocks.key_blocks()).then(|| blocks.key_block(number + 1).first_key);
            // SAFETY: as above.
            found.is_settled
                && *found.first_key == *first_key
                && unsafe {
                    found.versions == u32::from((*leaf).len) && is_settled(leaf, base.settled(), end)
                }
        };
        if !is_equal {
            // SAFETY: as above. A block that cannot be read stays a stub.
            let is_readable_stub = unsafe {
                (*leaf).level == STUB && {
                    let stub = &*leaf.cast::<Stub>();
                    stub.base.open(BlockId::Keys(stub.number)).is_some()
                }
            };
            if is_readable_stub {
                self.pin(&first_key);
            }
            return (next, false);
        }
        // SAFETY: as above.
        let len = unsafe { (*leaf).len };
        let old = self.keys.replace_leaf(&first_key, &mut self.epochs, |epochs| {
            allocate(Stub::new(epochs.batch(), base, number, len), epochs)
        });
        assert!(std::ptr::eq(old, leaf), "the leaf is where it was found");
        // SAFETY: the node is not part of the tree any more. The records of the leaf are in no other tree,
        // because they are settled, and in no queue, because they are the newest of their keys.
        unsafe {
            if (*old).level == STUB {
                self.epochs.retire_node(old, Kind::Stub);
            } else {
                for &slot in (*old.cast::<Leaf>()).slots() {
                    let record = slot.version::<'_>().record();
                    self.epochs.retire(Retired::new(record.as_ptr(), Kind::Version));
                }
                self.epochs.retire_node(old, Kind::Leaf);
            }
        }
        (next, true)
    }

    /// Returns the leaf or stub of the tree of keys whose range contains `key`, and the beginning of the range
    /// of the next one.
    fn leaf_at(&self, key: &[u8]) -> Option<(NodePtr, Option<Box<[u8]>>)> {
        let mut node = self.keys.root;
        let mut next: Option<Box<[u8]>> = None;
        if node.is_null() {
            return None;
        }
        // SAFETY: the nodes of the tree are alive while the store is borrowed.
        unsafe {
            while is_inner(node) {
                let inner = &*node.cast::<Inner<ByKey>>();
                let at = inner.route(key);
                if at + 1 < inner.len() {
                    next = Some(inner.separator(at + 1).into());
                }
                node = inner.children[at];
            }
        }
        Some((node, next))
    }
}

/// Returns the number of the first block of keys from `from` on whose first key is not below `key`. The search
/// takes O(log n) steps for n blocks that it passes over.
fn first_not_below(blocks: &dyn Blocks, from: u32, key: &[u8]) -> u32 {
    let is_below = |number: u32| blocks.key_block(number).first_key < key;
    let count = blocks.key_blocks();
    let (mut low, mut step) = (from, 1);
    let mut high = from;
    while high < count && is_below(high) {
        low = high + 1;
        high = high.saturating_add(step).min(count);
        step = step.saturating_mul(2);
    }
    while low < high {
        let middle = low.midpoint(high);
        if is_below(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// Returns true if all entries of a leaf are settled and, unless the leaf is a stub, below `end`.
///
/// # Safety
/// The node is a leaf or a stub that is alive.
unsafe fn is_settled(leaf: NodePtr, settled: Revision, end: Option<&[u8]>) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        if (*leaf).level == STUB {
            // The versions were settled by an earlier base, and none of them has changed. The adoption of
            // that base had ended before the moment of this one ([`Store::adoptable`]), so the keys of the
            // stub were all keys from its first to its last, at this moment, too.
            return true;
        }
        let leaf = &*leaf.cast::<Leaf>();
        let is_settled = |version: Version<'_>| {
            version.main() <= settled && !version.is_tombstone() && version.lease() == LeaseId::NONE
        };
        let last = leaf.len() - 1;
        leaf.slots().iter().all(|slot| slot.is_live())
            && end.is_none_or(|end| leaf.version(last).key() < end)
            && (0..=last).all(|at| is_settled(leaf.version(at)))
    }
}

impl Snapshot<'_> {
    /// Returns up to `max` blocks that a walk over a range of keys would have to load, in the order of the
    /// walk. A caller that must not wait for a disk lets another thread load them, and asks again, since which
    /// leaf follows the range is known only when the last leaf of the range is in memory. After a few rounds
    /// it reads anyway: blocks may be evicted as fast as they are loaded.
    ///
    /// At most a few leaves per block that may be returned are looked at. Beyond them, a large range may have
    /// more absent blocks.
    pub fn absent(&self, range: KeyRange<'_>, max: usize) -> Vec<AbsentBlock> {
        /// Number of leaves that are looked at for each block that may be returned.
        const LOOKS: usize = 8;
        let mut absent = Absent { range: &range, max, looks: LOOKS * max, found: Vec::new() };
        let root = self.state().keys;
        let has_base = !self.state().bases.newest.is_null();
        if has_base && max > 0 && !root.is_null() && !range.is_empty() && self.fault().is_none() {
            // SAFETY: the nodes of a snapshot are alive and unchanged.
            unsafe { absent.collect(root, true, None) };
        }
        absent.found
    }
}

/// A walk that collects absent blocks.
struct Absent<'r> {
    range: &'r KeyRange<'r>,
    max: usize,
    /// Number of leaves that may still be looked at.
    looks: usize,
    found: Vec<AbsentBlock>,
}

impl Absent<'_> {
    /// Collects the absent blocks of the range below a node that contains keys of the range, or the first key
    /// after it. Returns true if the walk goes on in the next node. `is_first` is true if the walk begins
    /// below the node; `end` is the end of the node's range, unless it is the last node.
    ///
    /// # Safety
    /// The node is alive and belongs to a tree of keys.
    unsafe fn collect(&mut self, node: NodePtr, is_first: bool, end: Option<&[u8]>) -> bool {
        // SAFETY: promised by the caller; the level tells the type of the node.
        unsafe {
            if is_inner(node) {
                let inner = &*node.cast::<Inner<ByKey>>();
                let first = if is_first { inner.route(self.range.start().0) } else { 0 };
                return (first..inner.len()).all(|at| {
                    let end = if at + 1 < inner.len() { Some(inner.separator(at + 1)) } else { end };
                    self.collect(inner.children[at], is_first && at == first, end)
                });
            }
            self.looks -= 1;
            let leaf = if (*node).level == STUB {
                let stub = &*node.cast::<Stub>();
                let block = BlockId::Keys(stub.number);
                let Some(loaded) = stub.base.peek(block) else {
                    self.found.push(AbsentBlock { base: Arc::clone(&stub.base), block });
                    let goes_on = end.is_some_and(|end| self.range.is_before_end(end));
                    return goes_on && self.found.len() < self.max && self.looks > 0;
                };
                &loaded.leaf
            } else {
                &*node.cast::<Leaf>()
            };
            let last = leaf.slots().last().map(|last| last.version::<'_>().key());
            self.looks > 0 && last.is_none_or(|last| self.range.is_before_end(last))
        }
    }
}
