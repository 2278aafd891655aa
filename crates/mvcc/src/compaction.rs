//! Compaction: at once in meaning, in slices in memory.
//!
//! A compaction at C keeps of each key its newest version at or below C, unless that is a tombstone, and all
//! above C. As etcd does since 3.5.16, a tombstone whose main revision is C itself stays until the next
//! compaction, so that a reader of the changes from C on misses none. The writer keeps superseded versions
//! in the order of what superseded them, and tombstones in the order of their writing, so the work is
//! proportional to what is removed.

use numbers::Revision;

use crate::epoch::{Kind, Retired};
use crate::node::Slot;
use crate::store::Store;
use crate::version::Version;
use crate::view::RevisionError;

/// The result of a slice of compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactProgress {
    /// Versions removed by this slice.
    pub removed: u64,
    /// True if nothing that the compact revision made unreadable is left to remove.
    pub done: bool,
}

impl Store {
    /// Sets the compact revision: from now on (for views: from the next publication on) older revisions cannot
    /// be read. Nothing is removed yet; see [`Store::compact_step`].
    pub fn compact(&mut self, rev: Revision) -> Result<(), RevisionError> {
        if rev <= self.compacted {
            return Err(RevisionError::Compacted);
        }
        if rev > self.current {
            return Err(RevisionError::FutureRevision);
        }
        self.compacted = rev;
        Ok(())
    }

    /// Removes up to `budget` versions that the compact revision made unreadable, telling `removed` of each, so
    /// that the caller can count what became dead in its segments. Memory is given back when no view that
    /// was published before can see them.
    pub fn compact_step(&mut self, budget: u64, removed: impl FnMut(Version<'_>)) -> CompactProgress {
        self.compact_step_through(self.compacted, budget, removed)
    }

    /// Removes versions as [`Store::compact_step`] does, but only what a compaction at `through` would: nothing that is
    /// needed by moments whose [`Moment::keeps`](crate::Moment::keeps) is not below it. A `through` above the compact
    /// revision means that one.
    pub fn compact_step_through(
        &mut self,
        through: Revision,
        budget: u64,
        mut removed: impl FnMut(Version<'_>),
    ) -> CompactProgress {
        let through = through.min(self.compacted);
        let mut count = 0;
        while count < budget {
            let Some(slot) = self.next_removable(through) else { break };
            // SAFETY: the record was in the trees until now, and is freed after a later publication.
            let version: Version<'_> = unsafe { slot.version() };
            removed(version);
            if version.is_tombstone() && version.superseded() == Revision(0) {
                assert!(self.keys.remove(version.key(), &mut self.epochs) == slot);
            }
            assert!(self.revisions.remove(version.id(), &mut self.epochs) == slot);
            self.epochs.retire(Retired::new(version.record().as_ptr(), Kind::Version));
            count += 1;
        }
        if count > 0 {
            self.removed.through = self.removed.through.max(through);
            self.removed.versions += count;
        }
        CompactProgress { removed: count, done: self.peek_removable(self.compacted).is_none() }
    }

    fn next_removable(&mut self, through: Revision) -> Option<Slot> {
        let slot = self.peek_removable(through)?;
        if slot.is_live() { self.superseded.pop() } else { self.tombstones.pop() }
    }

    fn peek_removable(&self, through: Revision) -> Option<Slot> {
        // SAFETY: what the queues hold is in the trees and alive.
        let version = |slot: Slot| -> Version<'_> { unsafe { slot.version() } };
        let superseded = self.superseded.front().filter(|&slot| version(slot).superseded() <= through);
        superseded.or_else(|| self.tombstones.front().filter(|&slot| version(slot).main() < through))
    }
}
