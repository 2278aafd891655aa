//! Frees objects that the writer removed from the trees, once no view can reach them any more.
//!
//! Every retired object gets the next position in one queue. A view pins the position that the queue had
//! reached when the view was published, because the view may still see objects retired later. So everything
//! before the pin of the oldest living view can be freed; it is freed in batches of bounded size.
//!
//! The `interleaving` crate also compiles this file, with its own `crate::sync`, and runs it under a model of
//! memory.

use std::collections::VecDeque;

use crate::sync::Arc;

/// An object that was removed from the trees.
pub(crate) trait Garbage: Copy {
    /// Counters of allocations, updated when an object is freed.
    type Ledger;

    /// # Safety
    /// Nothing can reach the object any more, and it is freed only by this call.
    unsafe fn free(self, ledger: &Self::Ledger);
}

const CHUNK: usize = 1000;

/// A queue stored in chunks. Growth never moves the items, so no push takes long.
pub(crate) struct Chunks<T> {
    chunks: VecDeque<Vec<T>>,
    /// Number of items that were already popped from the first chunk.
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

/// Token held by a view. While it lives, nothing that was retired after the view's publication is freed.
#[derive(Debug)]
pub(crate) struct Pin;

/// State of reclamation (the retired objects and the pins of views), owned by the writer.
pub(crate) struct Epochs<G: Garbage> {
    /// Number of the batch being written. Nodes created in this batch are not published yet, so only the
    /// writer can reach them.
    batch: u64,
    garbage: Chunks<G>,
    /// Position after the newest garbage; positions count from the creation of the store.
    end: u64,
    /// `end` at the last publication.
    end_published: u64,
    /// Pins of published views, oldest first, each with the value of `end` at publication. Some of these
    /// views may already be dropped.
    pins: VecDeque<(Arc<Pin>, u64)>,
    /// Length that `pins` must reach before pins of dropped views are next removed from the whole list.
    pins_swept: usize,
    ledger: G::Ledger,
}

/// Number of objects freed at each publication, in addition to the number of objects that the batch has
/// retired.
const FREES_EXTRA: u64 = 64;

/// The list of pins is swept when it is twice as long as after the last sweep, plus this number.
const PINS_UNSWEPT: usize = 64;

impl<G: Garbage> Epochs<G> {
    pub(crate) fn new(ledger: G::Ledger) -> Epochs<G> {
        Epochs {
            batch: 1,
            garbage: Chunks::new(),
            end: 0,
            end_published: 0,
            pins: VecDeque::new(),
            pins_swept: PINS_UNSWEPT,
            ledger,
        }
    }

    pub(crate) fn batch(&self) -> u64 {
        self.batch
    }

    pub(crate) fn ledger(&self) -> &G::Ledger {
        &self.ledger
    }

    /// Returns the number of published views that may still be held.
    pub(crate) fn pinned(&self) -> usize {
        self.pins.len()
    }

    /// Returns the number of objects that are retired and not freed yet.
    pub(crate) fn pending(&self) -> usize {
        self.garbage.len()
    }

    pub(crate) fn retire(&mut self, garbage: G) {
        self.garbage.push(garbage);
        self.end += 1;
    }

    /// Ends the batch: frees a bounded number of retired objects, and returns the pin for the view that is
    /// being published.
    pub(crate) fn publish(&mut self) -> Arc<Pin> {
        let made = self.end - self.end_published;
        self.end_published = self.end;
        self.batch += 1;
        let pin = Arc::new(Pin);
        self.pins.push_back((Arc::clone(&pin), self.end));
        if self.pins.len() >= self.pins_swept {
            // Only the oldest living pin decides what can be freed. Dead pins after it are removed, so that
            // the list does not grow without bound while one view is held for long.
            self.pins.retain_mut(|(pin, _)| Arc::get_mut(pin).is_none());
            self.pins_swept = 2 * self.pins.len() + PINS_UNSWEPT;
        }
        self.reclaim(made + FREES_EXTRA);
        pin
    }

    /// Frees up to `budget` objects that no view can see. Returns the number of further objects that could be
    /// freed now.
    pub(crate) fn reclaim(&mut self, budget: u64) -> u64 {
        while self.pins.front_mut().is_some_and(|(pin, _)| Arc::get_mut(pin).is_some()) {
            self.pins.pop_front();
        }
        let limit = self.pins.front().map_or(self.end, |&(_, end)| end);
        let first = self.end - self.garbage.len() as u64;
        let free = limit - first;
        for _ in 0..free.min(budget) {
            if let Some(garbage) = self.garbage.pop() {
                // SAFETY: the object was retired before the oldest living view was published, so no living
                // view contains the object, and the writer's trees do not contain it either.
                unsafe { garbage.free(&self.ledger) };
            }
        }
        free - free.min(budget)
    }

    /// Removes and returns one object that has not been freed yet. The last owner calls it until no object is
    /// left, and frees each of them.
    pub(crate) fn pop(&mut self) -> Option<G> {
        self.garbage.pop()
    }
}
