//! Implements the nodes of the copy-on-write B+tree, and the two orders in which trees are sorted.
//!
//! Every entry of a node has a *head*: four bytes of its key, taken after a prefix that all keys of the node
//! share. A search compares heads, which are contiguous in memory, and reads a record only if its head equals
//! the head of the searched key. The separators to the left and right of the node also share the prefix. So
//! every key that is routed into the node has the prefix, and an insertion never makes it invalid; but when
//! one of those separators changes, the prefix may have to become shorter. A revision counts as a key of
//! eight bytes, most significant first.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cmp::Ordering;
use std::ptr::NonNull;
use std::sync::Arc;

use numbers::{ChangeId, Revision};

use crate::base::{Base, BlockId};
use crate::epoch::{Census, Epochs, Kind, Retired};
use crate::version::{self, Content, Header, Version, prefetch};

/// Maximum number of entries of a leaf. With this number, a leaf has 768 bytes, which is a size class of
/// common allocators.
pub(crate) const LEAF: usize = 62;
/// Maximum number of children of an inner node.
pub(crate) const INNER: usize = 31;
/// Maximum number of levels above the leaves. It follows from the minimum fill: an inner node other than the
/// root has at least a quarter of its maximum number of children.
pub(crate) const DEPTH_MAX: usize = 14;

/// Pointer to a record; the lowest bit marks a tombstone, so that counting does not read the record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(*mut Header);

impl Slot {
    pub(crate) const EMPTY: Slot = Slot(std::ptr::null_mut());

    pub(crate) fn new(version: Version<'_>) -> Slot {
        let tag = usize::from(version.is_tombstone());
        Slot(version.record().as_ptr().map_addr(|address| address | tag))
    }

    pub(crate) fn is_live(self) -> bool {
        self.0.addr() & 1 == 0
    }

    pub(crate) fn weight(self) -> u64 {
        u64::from(self.is_live())
    }

    /// # Safety
    /// The slot must hold a record that is alive for `'t`.
    pub(crate) unsafe fn version<'t>(self) -> Version<'t> {
        let record = self.0.map_addr(|address| address & !1);
        // SAFETY: the caller promises that the record is alive; a slot with a record is never null.
        unsafe { Version::from_record(NonNull::new_unchecked(record)) }
    }
}

/// Order of versions by which a tree is sorted.
pub(crate) trait Order: Sized + 'static {
    /// The search key of a tree.
    type Query<'q>: Copy;
    /// Value that an inner node stores between two children. It is above everything to its left, and not
    /// above anything to its right.
    type Separator: Copy;
    /// Number of entries that stay in the left leaf when an append splits the rightmost leaf.
    const APPEND_KEEP: usize;
    /// Kind of retired inner nodes of this order, by which the reclaimer knows their type.
    const INNER_KIND: Kind;

    fn query(version: Version<'_>) -> Self::Query<'_>;
    /// # Safety
    /// The separator must be alive for `'t`.
    unsafe fn separator_query<'t>(separator: Self::Separator) -> Self::Query<'t>;
    fn compare(a: Self::Query<'_>, b: Self::Query<'_>) -> Ordering;
    fn head(query: Self::Query<'_>, prefix: u32) -> u32;
    /// Returns the length of the prefix that all keys between the two bounds share; `None` means no bound.
    fn shared(low: Option<Self::Query<'_>>, high: Option<Self::Query<'_>>) -> u32;
    /// Returns a new separator that is above `left` and not above `right`.
    fn separate(left: Self::Query<'_>, right: Self::Query<'_>, epochs: &Epochs) -> Self::Separator;
    /// Returns a new separator that equals `query`.
    fn separator_at(query: Self::Query<'_>, epochs: &Epochs) -> Self::Separator;
    fn retire_separator(separator: Self::Separator, epochs: &mut Epochs);
    /// # Safety
    /// No reference to the separator exists or will be created.
    unsafe fn free_separator(separator: Self::Separator, census: &Census);
    /// Returns a placeholder for an unused separator slot.
    fn no_separator() -> Self::Separator;
}

/// Tree order by key bytes.
pub(crate) struct ByKey;

/// A copy of key bytes, as a thin pointer to one allocation that holds the length and the bytes.
#[derive(Clone, Copy)]
pub(crate) struct KeySeparator(pub(crate) *mut u8);

fn separator_layout(len: usize) -> Layout {
    Layout::from_size_align(4 + len, 8).expect("the key length is bounded")
}

impl KeySeparator {
    fn create(bytes: &[u8]) -> KeySeparator {
        let layout = separator_layout(bytes.len());
        // SAFETY: the layout is never empty.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: the allocation has room for four aligned bytes of length, and for the bytes after them.
        unsafe {
            start.cast::<u32>().write(bytes.len() as u32);
            start.add(4).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        KeySeparator(start)
    }

    /// # Safety
    /// The separator must be alive for `'t`.
    pub(crate) unsafe fn bytes<'t>(self) -> &'t [u8] {
        // SAFETY: promised by the caller; `create` wrote the length and as many bytes.
        unsafe { std::slice::from_raw_parts(self.0.add(4), self.0.cast::<u32>().read() as usize) }
    }

    /// # Safety
    /// No reference to the separator exists or will be created. (The result is the number of freed bytes.)
    pub(crate) unsafe fn free(self) -> usize {
        // SAFETY: promised by the caller; the layout is that of `create`.
        unsafe {
            let layout = separator_layout(self.0.cast::<u32>().read() as usize);
            dealloc(self.0, layout);
            layout.size()
        }
    }
}

impl Order for ByKey {
    type Query<'q> = &'q [u8];
    type Separator = KeySeparator;
    const APPEND_KEEP: usize = LEAF - LEAF / 10;
    const INNER_KIND: Kind = Kind::KeyInner;

    fn query(version: Version<'_>) -> &[u8] {
        version.key()
    }

    unsafe fn separator_query<'t>(separator: KeySeparator) -> <Self as Order>::Query<'t> {
        // SAFETY: promised by the caller.
        unsafe { separator.bytes() }
    }

    fn compare(a: &[u8], b: &[u8]) -> Ordering {
        a.cmp(b)
    }

    fn head(query: &[u8], prefix: u32) -> u32 {
        let tail = query.get(prefix as usize..).unwrap_or_default();
        if let Some(four) = tail.first_chunk::<4>() {
            return u32::from_be_bytes(*four);
        }
        let mut four = [0; 4];
        four[..tail.len()].copy_from_slice(tail);
        u32::from_be_bytes(four)
    }

    fn shared(low: Option<&[u8]>, high: Option<&[u8]>) -> u32 {
        match (low, high) {
            (Some(low), Some(high)) => common(low, high) as u32,
            _ => 0,
        }
    }

    fn separate(left: &[u8], right: &[u8], epochs: &Epochs) -> KeySeparator {
        assert!(left < right, "keys of a leaf are out of order");
        Self::separator_at(&right[..=common(left, right)], epochs)
    }

    fn separator_at(query: &[u8], epochs: &Epochs) -> KeySeparator {
        epochs.census().separator_created(separator_layout(query.len()).size());
        KeySeparator::create(query)
    }

    fn retire_separator(separator: KeySeparator, epochs: &mut Epochs) {
        epochs.retire(Retired::new(separator.0, Kind::Separator));
    }

    unsafe fn free_separator(separator: KeySeparator, census: &Census) {
        // SAFETY: promised by the caller.
        unsafe { Retired::new(separator.0, Kind::Separator).free(census) }
    }

    fn no_separator() -> KeySeparator {
        KeySeparator(std::ptr::null_mut())
    }
}

/// Returns the length of the common prefix of two keys.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Tree order by main and sub-revision.
pub(crate) struct ByRevision;

impl Order for ByRevision {
    type Query<'q> = ChangeId;
    type Separator = ChangeId;
    // New revisions are always appended, never inserted in the middle, so a full leaf needs no space for
    // later insertions.
    const APPEND_KEEP: usize = LEAF;
    const INNER_KIND: Kind = Kind::RevisionInner;

    fn query(version: Version<'_>) -> ChangeId {
        version.id()
    }

    unsafe fn separator_query<'t>(separator: ChangeId) -> <Self as Order>::Query<'t> {
        separator
    }

    fn compare(a: ChangeId, b: ChangeId) -> Ordering {
        a.cmp(&b)
    }

    fn head(query: ChangeId, prefix: u32) -> u32 {
        ((revision_bytes(query) << (8 * prefix)) >> 32) as u32
    }

    fn shared(low: Option<ChangeId>, high: Option<ChangeId>) -> u32 {
        // Revisions in the tree are not negative, so 0 is a lower bound.
        let low = low.map_or(0, revision_bytes);
        // If all eight bytes are shared, a prefix of seven leaves one byte for the head.
        high.map_or(0, |high| ((revision_bytes(high) ^ low).leading_zeros() / 8).min(7))
    }

    fn separate(left: ChangeId, right: ChangeId, _epochs: &Epochs) -> ChangeId {
        assert!(left < right, "revisions are out of order");
        right
    }

    fn separator_at(query: ChangeId, _epochs: &Epochs) -> ChangeId {
        query
    }

    fn retire_separator(_separator: ChangeId, _epochs: &mut Epochs) {}

    unsafe fn free_separator(_separator: ChangeId, _census: &Census) {}

    fn no_separator() -> ChangeId {
        ChangeId::default()
    }
}

/// Returns a main revision as eight bytes of a key. Negative revisions occur only as bounds of a search; they
/// become 0 and are below all others.
fn revision_bytes(id: ChangeId) -> u64 {
    id.main.0.max(0) as u64
}

/// The header of every node.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct NodeHead {
    /// Batch in which the node was created: the writer changes nodes of its current batch in place.
    pub(crate) epoch: u64,
    /// Length of a prefix that all keys of the node share, not always the longest; heads start after it.
    pub(crate) prefix: u32,
    /// Number of entries if the node is a leaf or a stub; number of children if it is an inner node.
    pub(crate) len: u16,
    /// Height of the node above the leaves; 0 for a leaf, [`STUB`] for a stub.
    pub(crate) level: u16,
}

/// [`NodeHead::level`] of a stub.
pub(crate) const STUB: u16 = u16::MAX;

/// Pointer to a node of either kind; null for an empty tree.
pub(crate) type NodePtr = *mut NodeHead;

#[repr(C)]
pub(crate) struct Leaf {
    pub(crate) node: NodeHead,
    pub(crate) heads: [u32; LEAF],
    pub(crate) slots: [Slot; LEAF],
    unused: u64,
}

/// Stands in the tree of keys for a leaf whose entries are in a block of a base. A stub has the place, but not
/// the memory of a leaf. All its entries are live, and it never changes: a leaf that the writer makes from it
/// replaces it.
#[repr(C)]
pub(crate) struct Stub {
    pub(crate) node: NodeHead,
    pub(crate) base: Arc<Base>,
    /// Number of the block of keys.
    pub(crate) number: u32,
}

#[repr(C)]
pub(crate) struct Inner<K: Order> {
    pub(crate) node: NodeHead,
    /// Head of each separator. Entry 0 of `heads` and `separators` is unused: separator i is between child
    /// i-1 and child i.
    pub(crate) heads: [u32; INNER],
    pub(crate) separators: [K::Separator; INNER],
    pub(crate) children: [NodePtr; INNER],
    /// Number of live entries below each child.
    pub(crate) counts: [u64; INNER],
}

const _: () =
    assert!(size_of::<Leaf>() == 768 && size_of::<Inner<ByKey>>() <= 896 && size_of::<Stub>() == 32);

/// Reference to a node that is alive and unchanged for `'t`.
pub(crate) enum Node<'t, K: Order> {
    Leaf(&'t Leaf),
    Inner(&'t Inner<K>),
}

impl<K: Order> Clone for Node<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Order> Copy for Node<'_, K> {}

impl<'t, K: Order> Node<'t, K> {
    /// # Safety
    /// The pointer is null, or the tree below it belongs to order `K` and is alive and unchanged for `'t`.
    pub(crate) unsafe fn open(pointer: NodePtr) -> Option<Node<'t, K>> {
        if pointer.is_null() {
            return None;
        }
        // SAFETY: promised by the caller; the level tells the type of the node.
        unsafe {
            Some(match (*pointer).level {
                0 => Node::Leaf(&*pointer.cast::<Leaf>()),
                STUB => Node::Leaf((*pointer.cast::<Stub>()).leaf()),
                _ => Node::Inner(&*pointer.cast::<Inner<K>>()),
            })
        }
    }
}

impl Stub {
    pub(crate) fn new(epoch: u64, base: &Arc<Base>, number: u32, len: u16) -> Stub {
        let node = NodeHead { epoch, prefix: 0, len, level: STUB };
        Stub { node, base: Arc::clone(base), number }
    }

    /// Returns the leaf for which the stub stands, after reading its block if it is not in memory. The leaf is
    /// empty if the base has a fault.
    ///
    /// # Safety
    /// The stub is in a tree that is alive and unchanged for `'t`.
    #[cold]
    unsafe fn leaf<'t>(&self) -> &'t Leaf {
        // SAFETY: a loaded block is freed only when no view can contain a stub of it, or after it was retired
        // and all views of that time were dropped.
        unsafe { self.base.open(BlockId::Keys(self.number)) }.map_or(&EMPTY.0, |loaded| &loaded.leaf)
    }

    /// Returns an ordinary leaf with the same entries, in records of their own.
    pub(crate) fn to_leaf(&self, epochs: &Epochs) -> Leaf {
        let mut leaf = Leaf::new(epochs.batch());
        // SAFETY: the stub is part of the writer's tree, and only the writer retires loaded blocks.
        let stored: &Leaf = unsafe { self.leaf() };
        for at in 0..stored.len() {
            let version = stored.version(at);
            let record =
                version::create(version.key(), &Content::of(version), None, Revision::NEVER_COMPACTED);
            // SAFETY: the record was just created, and is freed only after it has left the tree.
            let version: Version<'_> = unsafe { Version::from_record(record) };
            epochs.census().version_created(version.bytes());
            leaf.insert::<ByKey>(at, version.key(), Slot::new(version));
        }
        leaf
    }
}

/// The leaf that stands for a block that cannot be read.
static EMPTY: EmptyLeaf = EmptyLeaf(Leaf {
    node: NodeHead { epoch: 0, prefix: 0, len: 0, level: 0 },
    heads: [0; LEAF],
    slots: [Slot::EMPTY; LEAF],
    unused: 0,
});

struct EmptyLeaf(Leaf);

// SAFETY: the leaf has no entries, and never changes.
unsafe impl Sync for EmptyLeaf {}

/// Asks the processor to prefetch the parts of a leaf that a walk reads: its length and its slots.
pub(crate) fn prefetch_leaf(leaf: NodePtr) {
    const LINE: usize = 64;
    prefetch(leaf.cast::<u8>());
    for at in (std::mem::offset_of!(Leaf, slots) / LINE * LINE..size_of::<Leaf>()).step_by(LINE) {
        prefetch(leaf.cast::<u8>().wrapping_add(at));
    }
}

/// Returns the index range of `heads` whose entries equal `head`. Compares with all heads, without branches,
/// so that the cache misses of a cold node overlap. The cache misses of a binary search would follow each
/// other.
fn ties(heads: &[u32], head: u32) -> (usize, usize) {
    // Summed as `u32`, the type of a head, so that the compiler vectorizes the loop.
    let low: u32 = heads.iter().map(|&other| u32::from(other < head)).sum();
    let high: u32 = heads.iter().map(|&other| u32::from(other <= head)).sum();
    (low as usize, high as usize)
}

impl Leaf {
    pub(crate) fn new(epoch: u64) -> Leaf {
        let node = NodeHead { epoch, prefix: 0, len: 0, level: 0 };
        Leaf { node, heads: [0; LEAF], slots: [Slot::EMPTY; LEAF], unused: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.node.len)
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots[..self.len()]
    }

    pub(crate) fn version(&self, at: usize) -> Version<'_> {
        // SAFETY: the first `len` slots of a live node hold records that live as long as the node is
        // reachable.
        unsafe { self.slots()[at].version() }
    }

    pub(crate) fn query<K: Order>(&self, at: usize) -> K::Query<'_> {
        K::query(self.version(at))
    }

    /// Returns the position of the entry that equals `query`, or as `Err` the position at which it would be
    /// inserted.
    pub(crate) fn find<K: Order>(&self, query: K::Query<'_>) -> Result<usize, usize> {
        let (mut low, mut high) = ties(&self.heads[..self.len()], K::head(query, self.node.prefix));
        if low < high && high == self.len() {
            // An appended entry belongs after the last one. That case is checked first, because it reads only
            // the last record.
            match K::compare(self.query::<K>(high - 1), query) {
                Ordering::Less => return Err(high),
                Ordering::Equal => return Ok(high - 1),
                Ordering::Greater => high -= 1,
            }
        }
        while low < high {
            let middle = low.midpoint(high);
            match K::compare(self.query::<K>(middle), query) {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    pub(crate) fn weight(&self) -> u64 {
        self.slots().iter().map(|slot| slot.weight()).sum()
    }

    pub(crate) fn insert<K: Order>(&mut self, at: usize, query: K::Query<'_>, slot: Slot) {
        let len = self.len();
        assert!(at <= len && len < LEAF);
        self.heads.copy_within(at..len, at + 1);
        self.slots.copy_within(at..len, at + 1);
        self.heads[at] = K::head(query, self.node.prefix);
        self.slots[at] = slot;
        self.node.len += 1;
    }

    pub(crate) fn remove(&mut self, at: usize) -> Slot {
        let len = self.len();
        let slot = self.slots()[at];
        self.heads.copy_within(at + 1..len, at);
        self.slots.copy_within(at + 1..len, at);
        self.node.len -= 1;
        slot
    }

    /// Moves the entry at position `at` and all entries after it to the end of `other`, or to the front of
    /// `other` if `to_front` is true.
    pub(crate) fn move_tail(&mut self, at: usize, other: &mut Leaf, to_front: bool) {
        let (len, room) = (self.len(), other.len());
        let moved = len - at;
        let target = if to_front {
            other.heads.copy_within(..room, moved);
            other.slots.copy_within(..room, moved);
            0
        } else {
            room
        };
        other.heads[target..target + moved].copy_from_slice(&self.heads[at..len]);
        other.slots[target..target + moved].copy_from_slice(&self.slots[at..len]);
        other.node.len += moved as u16;
        self.node.len -= moved as u16;
    }

    /// Moves the first `moved` entries to the end of `other`.
    pub(crate) fn move_front(&mut self, moved: usize, other: &mut Leaf) {
        let (len, room) = (self.len(), other.len());
        other.heads[room..room + moved].copy_from_slice(&self.heads[..moved]);
        other.slots[room..room + moved].copy_from_slice(&self.slots[..moved]);
        self.heads.copy_within(moved..len, 0);
        self.slots.copy_within(moved..len, 0);
        other.node.len += moved as u16;
        self.node.len -= moved as u16;
    }

    /// Sets a different shared prefix and recomputes all heads.
    pub(crate) fn set_prefix<K: Order>(&mut self, prefix: u32) {
        self.node.prefix = prefix;
        self.set_heads::<K>(0..self.len());
    }

    /// Recomputes the heads of the entries in `range`, which were moved to this leaf from another leaf.
    pub(crate) fn set_heads<K: Order>(&mut self, range: std::ops::Range<usize>) {
        for at in range {
            self.heads[at] = K::head(self.query::<K>(at), self.node.prefix);
        }
    }
}

impl<K: Order> Inner<K> {
    pub(crate) fn new(epoch: u64, level: u16) -> Inner<K> {
        Inner {
            node: NodeHead { epoch, prefix: 0, len: 0, level },
            heads: [0; INNER],
            separators: [K::no_separator(); INNER],
            children: [std::ptr::null_mut(); INNER],
            counts: [0; INNER],
        }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.node.len)
    }

    pub(crate) fn separator(&self, at: usize) -> K::Query<'_> {
        assert!(at > 0 && at < self.len());
        // SAFETY: separators 1..len of a live node are alive as long as the node is reachable.
        unsafe { K::separator_query(self.separators[at]) }
    }

    /// Returns the position of the child whose key range contains `query`.
    pub(crate) fn route(&self, query: K::Query<'_>) -> usize {
        let (low, high) = ties(&self.heads[1..self.len()], K::head(query, self.node.prefix));
        let (mut low, mut high) = (low + 1, high + 1);
        if low < high && high == self.len() {
            // An appended entry belongs into the last child. That case is checked first, because it compares
            // with only one separator.
            match K::compare(self.separator(high - 1), query) {
                Ordering::Greater => high -= 1,
                _ => return high - 1,
            }
        }
        while low < high {
            let middle = low.midpoint(high);
            match K::compare(self.separator(middle), query) {
                Ordering::Greater => high = middle,
                _ => low = middle + 1,
            }
        }
        low - 1
    }

    pub(crate) fn weight(&self) -> u64 {
        self.counts[..self.len()].iter().sum()
    }

    /// Returns a child. The child is alive and unchanged as long as this node is.
    pub(crate) fn child(&self, at: usize) -> Node<'_, K> {
        assert!(at < self.len());
        // SAFETY: children 0..len of a live node are live nodes of the same order.
        unsafe { Node::open(self.children[at]) }.expect("children are never null")
    }

    pub(crate) fn insert(&mut self, at: usize, separator: K::Separator, child: NodePtr, count: u64) {
        let len = self.len();
        assert!(at <= len && len < INNER && (at > 0 || len == 0));
        self.heads.copy_within(at..len, at + 1);
        self.separators.copy_within(at..len, at + 1);
        self.children.copy_within(at..len, at + 1);
        self.counts.copy_within(at..len, at + 1);
        self.separators[at] = separator;
        self.children[at] = child;
        self.counts[at] = count;
        self.node.len += 1;
        if at > 0 {
            self.heads[at] = K::head(self.separator(at), self.node.prefix);
        }
    }

    /// Removes a child, which must not be the first, and returns the separator before that child.
    pub(crate) fn remove(&mut self, at: usize) -> K::Separator {
        let len = self.len();
        assert!(at > 0 && at < len);
        let separator = self.separators[at];
        self.heads.copy_within(at + 1..len, at);
        self.separators.copy_within(at + 1..len, at);
        self.children.copy_within(at + 1..len, at);
        self.counts.copy_within(at + 1..len, at);
        self.node.len -= 1;
        separator
    }

    pub(crate) fn replace_separator(&mut self, at: usize, separator: K::Separator) -> K::Separator {
        let old = std::mem::replace(&mut self.separators[at], separator);
        self.heads[at] = K::head(self.separator(at), self.node.prefix);
        old
    }

    /// Moves the child at position `at` and all children after it to the end of `other`, where `joint`
    /// becomes the separator before the moved children. Returns the separator that preceded the moved
    /// children in this node. The caller has to recompute the heads of the moved children with `set_prefix`.
    pub(crate) fn move_tail(&mut self, at: usize, other: &mut Inner<K>, joint: K::Separator) -> K::Separator {
        let (len, room) = (self.len(), other.len());
        let moved = len - at;
        let before = self.separators[at];
        other.separators[room..room + moved].copy_from_slice(&self.separators[at..len]);
        other.children[room..room + moved].copy_from_slice(&self.children[at..len]);
        other.counts[room..room + moved].copy_from_slice(&self.counts[at..len]);
        other.separators[room] = joint;
        other.node.len += moved as u16;
        self.node.len -= moved as u16;
        before
    }

    /// Redistributes the children of two neighbors. `other`, the left node, gets the first `keep` of all
    /// children, and `self` gets the rest. `joint` is the old separator between the two nodes; the new
    /// separator is returned.
    pub(crate) fn even_out(
        &mut self,
        other: &mut Inner<K>,
        joint: K::Separator,
        keep: usize,
    ) -> K::Separator {
        let total = self.len() + other.len();
        let mut separators = [K::no_separator(); 2 * INNER];
        let mut children = [std::ptr::null_mut(); 2 * INNER];
        let mut counts = [0; 2 * INNER];
        let mut filled = 0;
        for part in [&*other, &*self] {
            let range = filled..filled + part.len();
            separators[range.clone()].copy_from_slice(&part.separators[..part.len()]);
            children[range.clone()].copy_from_slice(&part.children[..part.len()]);
            counts[range].copy_from_slice(&part.counts[..part.len()]);
            if filled > 0 {
                separators[filled] = joint;
            }
            filled += part.len();
        }
        for (part, range) in [(&mut *other, 0..keep), (&mut *self, keep..total)] {
            let len = range.len();
            part.separators[..len].copy_from_slice(&separators[range.clone()]);
            part.children[..len].copy_from_slice(&children[range.clone()]);
            part.counts[..len].copy_from_slice(&counts[range]);
            part.node.len = len as u16;
        }
        separators[keep]
    }

    /// Sets a different shared prefix and recomputes all heads.
    pub(crate) fn set_prefix(&mut self, prefix: u32) {
        self.node.prefix = prefix;
        for at in 1..self.len() {
            self.heads[at] = K::head(self.separator(at), prefix);
        }
    }
}
