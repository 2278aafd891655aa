//! Compacts the store: old revisions become unreadable in one step, and their versions are removed in slices.
//!
//! A compaction at C keeps all versions above C and, for each key, its newest version at or below C, unless
//! that version is a tombstone. As in etcd since 3.5.16, a tombstone whose main revision is C itself stays
//! until the next compaction, so that a reader of the changes from C on misses no change. The writer queues
//! superseded versions in the order of their successors, and tombstones in the order of their revisions, so
//! the work is proportional to the number of removed versions.

use numbers::{ChangeId, Revision};

use crate::epoch::{Kind, Retired};
use crate::node::Slot;
use crate::store::Store;
use crate::version::Version;
use crate::view::RevisionError;

/// Result of one slice of the removal of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactProgress {
    /// Number of versions removed by this slice.
    pub removed: u64,
    /// True if no version that the compact revision made unreadable is left to remove.
    pub done: bool,
}

impl Store {
    /// Sets the compact revision: from now on (for views: from the next publication on) older revisions
    /// cannot be read. Nothing is removed yet; see [`Store::compact_step`].
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

    /// Removes up to `budget` versions that the compact revision made unreadable, and calls `removed` with
    /// each removed version, so that the caller can count dead bytes in its log segments. Memory is freed
    /// once no older view can see the versions any more.
    pub fn compact_step(&mut self, budget: u64, removed: impl FnMut(Version<'_>)) -> CompactProgress {
        self.compact_step_through(self.compacted, budget, removed)
    }

    /// Removes versions like [`Store::compact_step`], but only those that a compaction at `through` removes.
    /// A moment whose [`Moment::keeps`](crate::Moment::keeps) is at or above `through` needs none of those
    /// versions. A `through` above the compact revision is lowered to the compact revision.
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
            // SAFETY: the record was in the trees until this removal. It is only retired below, and is freed
            // by a later publication or call of `Store::reclaim`.
            let version: Version<'_> = unsafe { slot.version() };
            removed(version);
            if version.is_tombstone() && version.superseded() == Revision(0) {
                assert!(self.keys.remove(version.key(), &mut self.epochs) == slot);
            }
            if version.id() > self.settled {
                assert!(self.revisions.remove(version.id(), &mut self.epochs) == slot);
            } else {
                // The base lists the version; the entry is not valid any more once the tree of keys does not
                // lead to the version.
                self.settled_versions -= 1;
            }
            self.epochs.retire(Retired::new(version.record().as_ptr(), Kind::Version));
            count += 1;
        }
        if count > 0 {
            self.find_removed_before();
            self.removed.through = self.removed.through.max(through);
            self.removed.versions += count;
        }
        CompactProgress { removed: count, done: self.is_removal_done() }
    }

    /// Returns true if no version that the compact revision made unreadable is left to remove.
    pub fn is_removal_done(&self) -> bool {
        self.is_removal_done_through(self.compacted)
    }

    /// Returns true if no version that a compaction at `through` removes is left to remove.
    pub(crate) fn is_removal_done_through(&self, through: Revision) -> bool {
        self.peek_removable(through).is_none()
    }

    /// Adds a version to those that a compaction can remove.
    ///
    /// # Safety
    /// The slot's record must be alive.
    pub(crate) unsafe fn add_removable(&mut self, slot: Slot) {
        // SAFETY: promised by the caller.
        self.removable_bytes += unsafe { removable_bytes(slot) };
        if slot.is_live() { self.superseded.push(slot) } else { self.tombstones.push(slot) }
    }

    /// Finds out which versions are removed, if the store has a base.
    pub(crate) fn find_removed_before(&mut self) {
        if self.base.is_none() {
            return;
        }
        let Some(front) = self.superseded.front() else {
            self.removed_before = ChangeId::end_of(Revision::MAX);
            return;
        };
        // SAFETY: every record in the queue is alive, and so are all later versions of its key: they are
        // superseded later, and tombstones that follow such a version are removed after it.
        let successor = unsafe {
            let front: Version<'_> = front.version();
            let by = front.superseded();
            let newest = self.keys.find(front.key()).map(|slot| slot.version::<'_>());
            let mut next = newest.and_then(|newest| newest.held_at(by, by));
            while let Some(version) = next.filter(|version| !version.follows(front)) {
                next = version.predecessor_of_same_main();
            }
            next
        };
        match successor {
            Some(next) => self.removed_before = next.id(),
            None => assert!(self.fault().is_some(), "a superseded version has a successor"),
        }
    }

    fn next_removable(&mut self, through: Revision) -> Option<Slot> {
        let slot = self.peek_removable(through)?;
        // SAFETY: every record in the two queues is also in the trees, so it is alive.
        self.removable_bytes -= unsafe { removable_bytes(slot) };
        if slot.is_live() { self.superseded.pop() } else { self.tombstones.pop() }
    }

    fn peek_removable(&self, through: Revision) -> Option<Slot> {
        // SAFETY: every record in the two queues is also in the trees, so it is alive.
        let version = |slot: Slot| -> Version<'_> { unsafe { slot.version() } };
        let superseded = self.superseded.front().filter(|&slot| version(slot).superseded() <= through);
        superseded.or_else(|| self.tombstones.front().filter(|&slot| version(slot).main() < through))
    }
}

/// Returns what a version counts in [`crate::Stats::removable_bytes`].
///
/// # Safety
/// The slot's record must be alive.
unsafe fn removable_bytes(slot: Slot) -> u64 {
    // SAFETY: promised by the caller.
    let version: Version<'_> = unsafe { slot.version() };
    version.bytes() as u64 + u64::from(version.value_len())
}
