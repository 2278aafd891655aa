//! Records how many watches each shard serves, and up to which revision the watches were notified. The core
//! uses the counts to wake only shards that serve watches, and the revisions to keep data that a watch has
//! not been notified of yet.
//!
//! The `interleaving` crate also compiles this file, and runs it under a model of memory.

use numbers::Revision;

use crate::sync::{AtomicI64, AtomicUsize, Ordering, fence};

/// Per shard, the number of watches and the revision up to which they were notified.
pub struct Attendance {
    /// Number of watches that each shard serves.
    watches: Vec<AtomicUsize>,
    /// For each shard, the revision up to which all its watches were notified of changes.
    seen: Vec<AtomicI64>,
}

impl Attendance {
    /// Returns counters for this number of shards, none of which serves a watch yet.
    pub fn new(shards: usize) -> Attendance {
        Attendance {
            watches: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
            seen: (0..shards).map(|_| AtomicI64::new(0)).collect(),
        }
    }

    /// Counts a watch that begins. The shard must call this before it reads the published state. This order
    /// makes sure that the watch misses no state: either the core sees the count and wakes the shard for the
    /// next published state, or the shard already reads that next state.
    pub fn watch_begins(&self, shard: usize) {
        self.watches[shard].fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Subtracts one from the watches of a shard, because a watch has ended or must not be notified of
    /// further changes.
    pub fn watch_ends(&self, shard: usize) {
        self.watches[shard].fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the number of watches that a shard serves.
    pub fn watches(&self, shard: usize) -> usize {
        self.watches[shard].load(Ordering::Relaxed)
    }

    /// Returns true if a shard should be woken for the state just published.
    pub fn is_watched(&self, shard: usize) -> bool {
        // Pairs with the fence in `watch_begins`: either this load sees the count of a new watch, or that
        // watch reads the state just published. Because both sides have a fence, this holds for any memory
        // ordering with which the core publishes the state.
        fence(Ordering::SeqCst);
        self.watches[shard].load(Ordering::SeqCst) > 0
    }

    /// Records that the watches of a shard were notified of all changes up to this revision.
    pub fn saw(&self, shard: usize, revision: Revision) {
        self.seen[shard].store(revision.0, Ordering::Release);
    }

    /// Returns true if the watches of all shards were notified of all changes up to this revision.
    pub fn all_saw(&self, revision: Revision) -> bool {
        let told = |(watches, seen): (&AtomicUsize, &AtomicI64)| {
            watches.load(Ordering::SeqCst) == 0 || seen.load(Ordering::Acquire) >= revision.0
        };
        self.watches.iter().zip(&self.seen).all(told)
    }
}
