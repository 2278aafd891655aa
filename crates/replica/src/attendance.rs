//! Knows which shards serve watches, and what these have been told. So the core wakes no shard without need, and removes
//! nothing that a watch has not seen.
//!
//! The `interleaving` crate runs this file under a model of the memory.

use numbers::Revision;

use crate::sync::{AtomicI64, AtomicUsize, Ordering, fence};

/// One entry for each shard.
pub struct Attendance {
    /// Number of watches that each shard serves.
    watches: Vec<AtomicUsize>,
    /// The revision that they have been told of.
    seen: Vec<AtomicI64>,
}

impl Attendance {
    /// Shards that serve no watches yet.
    pub fn new(shards: usize) -> Attendance {
        Attendance {
            watches: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
            seen: (0..shards).map(|_| AtomicI64::new(0)).collect(),
        }
    }

    /// Counts a watch, before its shard looks at the state: then either the core sees the count and wakes this shard
    /// for what it publishes next, or this shard sees what was published.
    pub fn watch_begins(&self, shard: usize) {
        self.watches[shard].fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Notes that a watch has ended, or that no change concerns it any more.
    pub fn watch_ends(&self, shard: usize) {
        self.watches[shard].fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the number of watches that a shard serves.
    pub fn watches(&self, shard: usize) -> usize {
        self.watches[shard].load(Ordering::Relaxed)
    }

    /// Returns true if a shard should be woken for the state just published.
    pub fn is_watched(&self, shard: usize) -> bool {
        // The counterpart of the fence in `watch_begins`, whatever the state is published with.
        fence(Ordering::SeqCst);
        self.watches[shard].load(Ordering::SeqCst) > 0
    }

    /// A shard's watches have been told of everything up to this revision.
    pub fn saw(&self, shard: usize, revision: Revision) {
        self.seen[shard].store(revision.0, Ordering::Release);
    }

    /// Returns true if all watches, on whatever shard, have been told of everything up to this revision.
    pub fn all_saw(&self, revision: Revision) -> bool {
        let told = |(watches, seen): (&AtomicUsize, &AtomicI64)| {
            watches.load(Ordering::SeqCst) == 0 || seen.load(Ordering::Acquire) >= revision.0
        };
        self.watches.iter().zip(&self.seen).all(told)
    }
}
