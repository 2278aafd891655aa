//! Reclamation: what the writer took out of the trees is freed when no view can look at it any more.
//!
//! Everything retired gets a position in one queue. A view pins the position reached when it was published:
//! what was retired later may be visible to it. So everything before the pin of the oldest living view is free
//! to go, and it goes in bounded portions.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::node::{ByKey, ByRevision, Inner, KeySeparator, Leaf, Node, NodePtr, Order};
use crate::version::{self, Header, Version};

/// Count of what is allocated. Written by the one owner of the trees (the writer, or whoever drops the last
/// view), readable by all.
#[derive(Debug, Default)]
pub struct Census {
    versions: AtomicU64,
    nodes: AtomicU64,
    separators: AtomicU64,
    bytes: AtomicU64,
}

impl Census {
    /// Version records that exist, those waiting to be freed included.
    pub fn versions(&self) -> u64 {
        self.versions.load(Ordering::Relaxed)
    }

    /// Tree nodes that exist, those waiting to be freed included.
    pub fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Key copies in inner nodes that exist, those waiting to be freed included.
    pub fn separators(&self) -> u64 {
        self.separators.load(Ordering::Relaxed)
    }

    /// Bytes asked of the allocator for all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    // There is one writer at any time, so a load and a store do, without the price of an atomic addition.
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

/// What a retired pointer points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Version = 0,
    Leaf = 1,
    KeyInner = 2,
    RevisionInner = 3,
    Separator = 4,
}

/// A pointer whose lowest three bits say what it points to.
#[derive(Clone, Copy)]
pub(crate) struct Retired(*mut u8);

impl Retired {
    pub(crate) fn new<T>(pointer: *mut T, kind: Kind) -> Retired {
        assert!(pointer.addr() & 7 == 0);
        Retired(pointer.cast::<u8>().map_addr(|address| address | kind as usize))
    }

    /// # Safety
    /// Nobody can reach what it points to, and it was retired once.
    pub(crate) unsafe fn free(self, census: &Census) {
        let tag = self.0.addr() & 7;
        let pointer = self.0.map_addr(|address| address & !7);
        // SAFETY: the tag says how the pointer was made; nobody else uses it, as the caller promises.
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
                _ => {
                    let bytes = KeySeparator(pointer).free();
                    census.count(&census.separators, -1, bytes);
                }
            }
        }
    }
}

const CHUNK: usize = 1000;

/// A queue in chunks: growing it never moves what is in it, so that no push pauses.
pub(crate) struct Chunks<T> {
    chunks: VecDeque<Vec<T>>,
    /// Entries of the first chunk already taken.
    taken: usize,
    spare: Option<Vec<T>>,
    len: usize,
}

impl<T: Copy> Chunks<T> {
    pub(crate) fn new() -> Chunks<T> {
        Chunks { chunks: VecDeque::new(), taken: 0, spare: None, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, item: T) {
        if self.chunks.back().is_none_or(|last| last.len() == CHUNK) {
            let chunk = self.spare.take().unwrap_or_else(|| Vec::with_capacity(CHUNK));
            self.chunks.push_back(chunk);
        }
        if let Some(last) = self.chunks.back_mut() {
            last.push(item);
        }
        self.len += 1;
    }

    pub(crate) fn front(&self) -> Option<T> {
        self.chunks.front().and_then(|chunk| chunk.get(self.taken)).copied()
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.front()?;
        self.taken += 1;
        self.len -= 1;
        let first = self.chunks.front().map_or(0, Vec::len);
        if self.taken == first && (first == CHUNK || self.len == 0) {
            self.taken = 0;
            if let Some(mut chunk) = self.chunks.pop_front() {
                chunk.clear();
                self.spare = Some(chunk);
            }
        }
        Some(item)
    }
}

/// Held by a view: as long as it lives, nothing retired after its publication is freed.
#[derive(Debug)]
pub(crate) struct Pin;

/// The writer's side of reclamation.
pub(crate) struct Epochs {
    /// Number of the batch being written. Nodes made in it are still private to the writer.
    batch: u64,
    garbage: Chunks<Retired>,
    /// Position behind the newest garbage; positions count from the start of the process.
    end: u64,
    /// `end` at the last publication.
    end_published: u64,
    /// Published epochs whose views may be alive, oldest first, with `end` at their publication.
    pins: VecDeque<(Arc<Pin>, u64)>,
    /// Length of `pins` at which the dead ones are swept out again.
    pins_swept: usize,
    census: Arc<Census>,
}

/// Frees at each publication, beyond as many as the batch itself retired.
const FREES_EXTRA: u64 = 64;

/// Dead pins tolerated beside as many as there are living ones.
const PINS_UNSWEPT: usize = 64;

impl Epochs {
    pub(crate) fn new(census: Arc<Census>) -> Epochs {
        Epochs {
            batch: 1,
            garbage: Chunks::new(),
            end: 0,
            end_published: 0,
            pins: VecDeque::new(),
            pins_swept: PINS_UNSWEPT,
            census,
        }
    }

    pub(crate) fn batch(&self) -> u64 {
        self.batch
    }

    pub(crate) fn census(&self) -> &Census {
        &self.census
    }

    /// Published views that may still be held.
    pub(crate) fn pinned(&self) -> usize {
        self.pins.len()
    }

    /// Things retired and not yet freed.
    pub(crate) fn pending(&self) -> usize {
        self.garbage.len()
    }

    pub(crate) fn retire(&mut self, retired: Retired) {
        self.garbage.push(retired);
        self.end += 1;
    }

    /// Takes a node out of use: it is freed at once if no view can ever have seen it.
    ///
    /// # Safety
    /// The node is no longer part of the writer's trees, and is retired once.
    pub(crate) unsafe fn retire_node(&mut self, node: NodePtr, kind: Kind) {
        let retired = Retired::new(node, kind);
        // SAFETY: promised by the caller; a node of this batch was never published.
        unsafe {
            if (*node).epoch == self.batch {
                retired.free(&self.census);
            } else {
                self.retire(retired);
            }
        }
    }

    /// Ends the batch: the pin is for the view of what was written so far. Frees a bounded portion.
    pub(crate) fn publish(&mut self) -> Arc<Pin> {
        let made = self.end - self.end_published;
        self.end_published = self.end;
        self.batch += 1;
        let pin = Arc::new(Pin);
        self.pins.push_back((Arc::clone(&pin), self.end));
        if self.pins.len() >= self.pins_swept {
            // Only the oldest living pin counts; forget dead ones behind it, so that one long-held view does
            // not make the list of its successors grow without end.
            self.pins.retain_mut(|(pin, _)| Arc::get_mut(pin).is_none());
            self.pins_swept = 2 * self.pins.len() + PINS_UNSWEPT;
        }
        self.reclaim(made + FREES_EXTRA);
        pin
    }

    /// Frees up to `budget` things no view can see; says how many could be freed yet.
    pub(crate) fn reclaim(&mut self, budget: u64) -> u64 {
        while self.pins.front_mut().is_some_and(|(pin, _)| Arc::get_mut(pin).is_some()) {
            self.pins.pop_front();
        }
        let limit = self.pins.front().map_or(self.end, |&(_, end)| end);
        let first = self.end - self.garbage.len() as u64;
        let free = limit - first;
        for _ in 0..free.min(budget) {
            if let Some(retired) = self.garbage.pop() {
                // SAFETY: it was retired before the oldest living view was published, so that view and all later
                // ones were made without it, and the writer's trees do not hold it either.
                unsafe { retired.free(&self.census) };
            }
        }
        free - free.min(budget)
    }
}

/// What is left of a store when it goes: its trees and its garbage.
pub(crate) struct Remains {
    pub(crate) keys: NodePtr,
    pub(crate) revisions: NodePtr,
    pub(crate) epochs: Epochs,
}

// SAFETY: the remains are the only owner of what they point to, and whoever frees them is the last to hold them.
unsafe impl Send for Remains {}

/// Shared by the store and all its views. The last to let go frees everything.
pub(crate) struct Estate {
    remains: Mutex<Option<Remains>>,
}

impl Estate {
    pub(crate) fn new() -> Estate {
        Estate { remains: Mutex::new(None) }
    }

    /// Left by the store when it is dropped.
    pub(crate) fn leave(&self, remains: Remains) {
        *self.remains.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(remains);
    }
}

impl Drop for Estate {
    fn drop(&mut self) {
        let remains = self.remains.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let Some(mut remains) = remains else { return };
        let census = Arc::clone(&remains.epochs.census);
        while let Some(retired) = remains.epochs.garbage.pop() {
            // SAFETY: store and views are gone; what is in the garbage is in no tree.
            unsafe { retired.free(&census) };
        }
        // SAFETY: nobody else is left. Every version is in the tree of revisions exactly once.
        unsafe {
            free_tree::<ByKey>(remains.keys, &census, false);
            free_tree::<ByRevision>(remains.revisions, &census, true);
        }
    }
}

/// Frees a whole tree, and with `versions` also the records in its leaves.
///
/// # Safety
/// Nobody else can reach the tree.
unsafe fn free_tree<K: Order>(root: NodePtr, census: &Census, versions: bool) {
    // SAFETY: promised by the caller; the node is not used after it was freed.
    unsafe {
        match Node::<K>::open(root) {
            None => {}
            Some(Node::Leaf(leaf)) => {
                if versions {
                    for slot in leaf.slots() {
                        Retired::new(slot.version().record().as_ptr(), Kind::Version).free(census);
                    }
                }
                Retired::new(root, Kind::Leaf).free(census);
            }
            Some(Node::Inner(inner)) => {
                for at in 0..inner.len() {
                    free_tree::<K>(inner.children[at], census, versions);
                    if at > 0 {
                        K::free_separator(inner.separators[at], census);
                    }
                }
                Retired::new(root, K::INNER_KIND).free(census);
            }
        }
    }
}
