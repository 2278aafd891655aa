//! Reclamation: what the writer took out of the trees is freed when no view can look at it any more.
//!
//! Everything retired gets a position in one queue. A view pins the position reached when it was published:
//! what was retired later may be visible to it. So everything before the pin of the oldest living view is free
//! to go, and it goes in bounded portions.
//!
//! The `interleaving` crate runs this file under a model of the memory: `crate::sync` is its own there.

use std::collections::VecDeque;

use crate::sync::Arc;

/// An object that was taken out of the trees.
pub(crate) trait Garbage: Copy {
    /// What has to be told of each that goes.
    type Ledger;

    /// # Safety
    /// Nobody can reach it, and it was retired once.
    unsafe fn free(self, ledger: &Self::Ledger);
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
pub(crate) struct Epochs<G: Garbage> {
    /// Number of the batch being written. Nodes made in it are still private to the writer.
    batch: u64,
    garbage: Chunks<G>,
    /// Position behind the newest garbage; positions count from the start of the process.
    end: u64,
    /// `end` at the last publication.
    end_published: u64,
    /// Published epochs whose views may be alive, oldest first, with `end` at their publication.
    pins: VecDeque<(Arc<Pin>, u64)>,
    /// Length of `pins` at which the dead ones are swept out again.
    pins_swept: usize,
    ledger: G::Ledger,
}

/// Frees at each publication, beyond as many as the batch itself retired.
const FREES_EXTRA: u64 = 64;

/// Dead pins tolerated beside as many as there are living ones.
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

    /// Published views that may still be held.
    pub(crate) fn pinned(&self) -> usize {
        self.pins.len()
    }

    /// Things retired and not yet freed.
    pub(crate) fn pending(&self) -> usize {
        self.garbage.len()
    }

    pub(crate) fn retire(&mut self, garbage: G) {
        self.garbage.push(garbage);
        self.end += 1;
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
            if let Some(garbage) = self.garbage.pop() {
                // SAFETY: it was retired before the oldest living view was published, so that view and all later
                // ones were made without it, and the writer's trees do not hold it either.
                unsafe { garbage.free(&self.ledger) };
            }
        }
        free - free.min(budget)
    }

    /// Takes one of what was not freed: for the last holder of all of it.
    pub(crate) fn pop(&mut self) -> Option<G> {
        self.garbage.pop()
    }
}
