//! Counts, retires and frees allocated objects, and frees all of them when the store is dropped. The module
//! `epochs` decides when retired objects are freed.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use numbers::{ChangeId, Revision};

use crate::base::{Base, Loaded};
use crate::epochs::Chunks;
use crate::epochs::{self, Garbage};
use crate::node::{ByKey, ByRevision, Inner, KeySeparator, Leaf, NodePtr, Order, STUB, Slot, Stub};
use crate::version::{self, Header, Version};

/// Counters of allocated objects. Only one thread at a time writes them: the writer of the store or, after
/// the store is dropped, the thread that drops the last view. Any thread can read them.
#[derive(Debug, Default)]
pub struct Census {
    versions: AtomicU64,
    nodes: AtomicU64,
    separators: AtomicU64,
    bytes: AtomicU64,
}

impl Census {
    /// Returns the number of version records, including those waiting to be freed.
    pub fn versions(&self) -> u64 {
        self.versions.load(Ordering::Relaxed)
    }

    /// Returns the number of tree nodes, including those waiting to be freed.
    pub fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Returns the number of key copies in inner nodes, including those waiting to be freed.
    pub fn separators(&self) -> u64 {
        self.separators.load(Ordering::Relaxed)
    }

    /// Returns the bytes requested from the allocator for all these objects.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    // A load and a separate store are cheaper than an atomic addition. They cannot lose a change, because
    // only one thread writes at any time.
    fn change(counter: &AtomicU64, by: i64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Relaxed);
    }

    fn count(&self, counter: &AtomicU64, number: i64, bytes: usize) {
        Self::change(counter, number);
        Self::change(&self.bytes, number * bytes as i64);
    }

    pub(crate) fn version_created(&self, bytes: usize) {
        self.count(&self.versions, 1, bytes);
    }

    pub(crate) fn node_created(&self, bytes: usize) {
        self.count(&self.nodes, 1, bytes);
    }

    pub(crate) fn separator_created(&self, bytes: usize) {
        self.count(&self.separators, 1, bytes);
    }
}

/// Type of the object that a retired pointer points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Version = 0,
    Leaf = 1,
    KeyInner = 2,
    RevisionInner = 3,
    Separator = 4,
    Stub = 5,
    Loaded = 6,
    Base = 7,
}

/// A pointer whose lowest three bits are the [`Kind`] of its target.
#[derive(Clone, Copy)]
pub(crate) struct Retired(*mut u8);

impl Retired {
    pub(crate) fn new<T>(pointer: *mut T, kind: Kind) -> Retired {
        assert!(pointer.addr() & 7 == 0);
        Retired(pointer.cast::<u8>().map_addr(|address| address | kind as usize))
    }

    /// # Safety
    /// Nothing can reach the target any more, and it is freed only by this call.
    pub(crate) unsafe fn free(self, census: &Census) {
        let tag = self.0.addr() & 7;
        let pointer = self.0.map_addr(|address| address & !7);
        // SAFETY: the tag tells how the target was allocated; the caller guarantees that nothing else uses
        // the target.
        unsafe {
            match tag {
                0 => {
                    let record = NonNull::new_unchecked(pointer.cast::<Header>());
                    census.count(&census.versions, -1, Version::from_record(record).bytes());
                    version::free(record);
                }
                1 => {
                    census.count(&census.nodes, -1, size_of::<Leaf>());
                    drop(Box::from_raw(pointer.cast::<Leaf>()));
                }
                2 => {
                    census.count(&census.nodes, -1, size_of::<Inner<ByKey>>());
                    drop(Box::from_raw(pointer.cast::<Inner<ByKey>>()));
                }
                3 => {
                    census.count(&census.nodes, -1, size_of::<Inner<ByRevision>>());
                    drop(Box::from_raw(pointer.cast::<Inner<ByRevision>>()));
                }
                4 => {
                    let bytes = KeySeparator(pointer).free();
                    census.count(&census.separators, -1, bytes);
                }
                5 => {
                    census.count(&census.nodes, -1, size_of::<Stub>());
                    drop(Box::from_raw(pointer.cast::<Stub>()));
                }
                6 => Loaded::free(NonNull::new_unchecked(pointer.cast::<Loaded>())),
                _ => drop(Arc::from_raw(pointer.cast::<Base>())),
            }
        }
    }
}

impl Garbage for Retired {
    type Ledger = Arc<Census>;

    unsafe fn free(self, census: &Arc<Census>) {
        // SAFETY: promised by the caller.
        unsafe { Retired::free(self, census) }
    }
}

/// State of reclamation (the retired objects and the pins of views), owned by the writer.
pub(crate) type Epochs = epochs::Epochs<Retired>;

impl Epochs {
    pub(crate) fn census(&self) -> &Census {
        self.ledger()
    }

    /// Retires a node that left the trees; frees it immediately if no view can have seen it.
    ///
    /// # Safety
    /// The node is no longer part of the writer's trees, and this function is called once for it.
    pub(crate) unsafe fn retire_node(&mut self, node: NodePtr, kind: Kind) {
        let retired = Retired::new(node, kind);
        // SAFETY: promised by the caller; a node of this batch was never published.
        unsafe {
            if (*node).epoch == self.batch() {
                retired.free(self.census());
            } else {
                self.retire(retired);
            }
        }
    }
}

/// The trees, the garbage and the bases of a dropped store.
pub(crate) struct Remains {
    pub(crate) keys: NodePtr,
    pub(crate) revisions: NodePtr,
    /// Superseded versions that were not removed.
    pub(crate) superseded: Chunks<Slot>,
    /// The tree of revisions contains the versions after this change.
    pub(crate) settled: ChangeId,
    pub(crate) epochs: Epochs,
    /// Bases that views of the store may read; freed after everything that refers to them.
    pub(crate) bases: [Option<Arc<Base>>; 2],
}

// SAFETY: the remains are the only owner of the objects that their pointers lead to, and only the last holder
// of the estate frees these objects.
unsafe impl Send for Remains {}

/// Owner of the objects of a dropped store. The store and all its views share it, and its last holder frees
/// everything.
pub(crate) struct Estate {
    remains: Mutex<Option<Remains>>,
}

impl Estate {
    pub(crate) fn new() -> Estate {
        Estate { remains: Mutex::new(None) }
    }

    /// Takes over the trees and the garbage of a store that is being dropped.
    pub(crate) fn leave(&self, remains: Remains) {
        *self.remains.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(remains);
    }
}

impl Drop for Estate {
    fn drop(&mut self) {
        let remains = self.remains.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let Some(mut remains) = remains else { return };
        let census = Arc::clone(remains.epochs.ledger());
        while let Some(retired) = remains.epochs.pop() {
            // SAFETY: the store and all its views are dropped, and retired objects are in no tree, so nothing
            // can reach them.
            unsafe { retired.free(&census) };
        }
        let settled = remains.settled;
        // SAFETY: no other owner is left. Every version after `settled` is in the tree of revisions exactly
        // once. Every other version is either the newest of its key, in a leaf of the tree of keys, or in the
        // queue of superseded versions. So each record is freed once, and the tree of revisions, whose
        // records the first two steps read, is freed last.
        unsafe {
            let of_settled = |slot: Slot| slot.version().id() <= settled;
            // Without a base, no record has to be read to know that it is not settled.
            if settled == NONE_SETTLED {
                free_tree::<ByKey>(remains.keys, &census, &|_| false);
            } else {
                free_tree::<ByKey>(remains.keys, &census, &of_settled);
                while let Some(slot) = remains.superseded.pop() {
                    if of_settled(slot) {
                        Retired::new(slot.version().record().as_ptr(), Kind::Version).free(&census);
                    }
                }
            }
            free_tree::<ByRevision>(remains.revisions, &census, &|_| true);
        }
        drop(remains.bases);
    }
}

/// The change before all others: no version is settled.
pub(crate) const NONE_SETTLED: ChangeId = ChangeId { main: Revision::MIN, sub: 0 };

/// Frees a whole tree, and also the records in its leaves for which `is_owned` returns true. Stubs are freed
/// without reading their blocks.
///
/// # Safety
/// Only the caller can reach the tree.
unsafe fn free_tree<K: Order>(root: NodePtr, census: &Census, is_owned: &impl Fn(Slot) -> bool) {
    if root.is_null() {
        return;
    }
    // SAFETY: promised by the caller; the level tells the type of the node, and the node is not used after it
    // was freed.
    unsafe {
        match (*root).level {
            0 => {
                for &slot in (*root.cast::<Leaf>()).slots() {
                    if is_owned(slot) {
                        Retired::new(slot.version().record().as_ptr(), Kind::Version).free(census);
                    }
                }
                Retired::new(root, Kind::Leaf).free(census);
            }
            STUB => Retired::new(root, Kind::Stub).free(census),
            _ => {
                let inner = &*root.cast::<Inner<K>>();
                for at in 0..inner.len() {
                    free_tree::<K>(inner.children[at], census, is_owned);
                    if at > 0 {
                        K::free_separator(inner.separators[at], census);
                    }
                }
                Retired::new(root, K::INNER_KIND).free(census);
            }
        }
    }
}
