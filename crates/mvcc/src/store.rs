//! Implements [`Store`], which contains all versions of all keys and has a single writer, and [`Writer`], its
//! write transaction.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use numbers::{ChangeId, LeaseId, Revision};

use crate::adoption::Adoption;
use crate::base::Base;
use crate::epoch::{Census, Epochs, Estate, NONE_SETTLED, Remains};
use crate::epochs::Chunks;
use crate::node::{ByKey, ByRevision, Slot};
use crate::range::KeyRange;
use crate::tree::Tree;
use crate::version::{self, Content, Value, Version};
use crate::view::{Moment, Removed, Snapshot, State, View};

/// Number of the next store that this process creates, from 1. It numbers the stores, so that a moment of one store is
/// not accepted by another store.
static STORES: AtomicU64 = AtomicU64::new(1);

/// All versions of all keys. One thread writes; all others read through the views that it publishes.
///
/// [`Store::publish`] asserts the order of the revisions: removed through <= compacted <= current, and
/// current revision of the previous view <= current. With a current revision of 9, a compaction at 7 makes
/// revisions below 7 unreadable immediately. The versions that only those revisions need are removed later,
/// in slices. Until then, `removed through` can be 5, for example, if all versions that a compaction at 5
/// removes have been removed. None of the three revisions ever decreases.
pub struct Store {
    pub(crate) keys: Tree<ByKey>,
    pub(crate) revisions: Tree<ByRevision>,
    pub(crate) current: Revision,
    /// Current revision of the newest view.
    published: Revision,
    pub(crate) compacted: Revision,
    pub(crate) removed: Removed,
    /// Superseded puts (tombstones are not in this queue), ordered by the revision of their successor. A
    /// compaction removes a prefix of this queue.
    pub(crate) superseded: Chunks<Slot>,
    /// Tombstones, ordered by their revision.
    pub(crate) tombstones: Chunks<Slot>,
    /// See [`Stats::removable_bytes`].
    pub(crate) removable_bytes: u64,
    /// Number of changes of the suspended transaction; 0 if no transaction is suspended. The changes are in
    /// the trees, above the current revision.
    pub(crate) suspended: u32,
    pub(crate) epochs: Epochs,
    /// The newest base, if the store has one.
    pub(crate) base: Option<Arc<Base>>,
    /// The base before, and how far the newest one replaces it, while the newest one is being adopted.
    pub(crate) adoption: Option<Adoption>,
    /// Bases that were replaced and may still be referenced by views.
    pub(crate) replaced: Vec<Weak<Base>>,
    /// The tree of revisions contains the versions after this change; see `changes`.
    pub(crate) settled: ChangeId,
    /// Number of versions through `settled`.
    pub(crate) settled_versions: u64,
    /// Number of times that a location or the set of stubs was changed by something else than a write:
    /// relocations, and beginnings and ends of adoptions.
    pub(crate) placements: u64,
    /// All versions whose successor is before this change are removed, and no others. Tombstones are not
    /// considered. Not kept while the store has no base.
    pub(crate) removed_before: ChangeId,
    /// See [`Stats::pinned_bytes`]: bytes of the index when it was smallest since the last adoption.
    pub(crate) bytes_at_adoption: u64,
    census: Arc<Census>,
    estate: Arc<Estate>,
}

// SAFETY: the store owns everything that its pointers lead to and shares it only with views, which only read.
// Nothing in it is bound to a thread.
unsafe impl Send for Store {}

/// Statistics of a store. Bytes are those requested from the allocator for versions, nodes and separators,
/// including garbage that is not freed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Number of live keys at the current revision.
    pub live_keys: u64,
    /// Number of keys in the index, including deleted ones that are not compacted yet.
    pub keys: u64,
    /// Number of versions, including tombstones.
    pub versions: u64,
    /// Bytes requested from the allocator for versions, nodes and separators, including garbage.
    pub bytes: u64,
    /// Bytes by which the index has grown since a base was last adopted; after a load, the bytes of the records
    /// that are not in blocks; all of [`Stats::bytes`] if the store has no base. A new base would make about as
    /// many bytes free, if the versions are settled by then.
    pub pinned_bytes: u64,
    /// Number of versions, nodes and separators that are retired and not freed yet.
    pub garbage: usize,
    /// Number of published views that may still be held. A dropped view is counted until a later publication
    /// notices the drop.
    pub views: usize,
    /// Number of superseded versions and tombstones that the current compaction or a later one can remove.
    pub removable: usize,
    /// Bytes of these versions: of their values, and of their records in memory with the keys.
    pub removable_bytes: u64,
}

impl Default for Store {
    fn default() -> Self {
        Store::new()
    }
}

impl Store {
    /// Returns an empty store at revision 1: the first write gets revision 2.
    pub fn new() -> Store {
        let census = Arc::new(Census::default());
        Store {
            keys: Tree::new(),
            revisions: Tree::new(),
            current: Revision::FIRST,
            published: Revision::FIRST,
            compacted: Revision::NEVER_COMPACTED,
            removed: Removed {
                store: STORES.fetch_add(1, Ordering::Relaxed),
                through: Revision::NEVER_COMPACTED,
                versions: 0,
            },
            superseded: Chunks::new(),
            tombstones: Chunks::new(),
            removable_bytes: 0,
            suspended: 0,
            epochs: Epochs::new(Arc::clone(&census)),
            base: None,
            adoption: None,
            replaced: Vec::new(),
            settled: NONE_SETTLED,
            settled_versions: 0,
            placements: 0,
            removed_before: ChangeId::end_of(Revision::MAX),
            bytes_at_adoption: 0,
            census,
            estate: Arc::new(Estate::new()),
        }
    }

    /// Returns the writer's current state, including unpublished changes, but without the changes of a
    /// suspended transaction.
    pub fn snapshot(&self) -> Snapshot<'_> {
        // SAFETY: the snapshot borrows the store, and changing or freeing anything needs `&mut self`.
        unsafe { Snapshot::new(self.state()) }
    }

    fn state(&self) -> State {
        State {
            keys: self.keys.root,
            revisions: self.revisions.root,
            current: self.current,
            compacted: self.compacted,
            live: self.keys.live,
            versions: self.versions(),
            newest: self.current + i64::from(self.suspended > 0),
            bases: self.bases(),
            settled: self.settled,
            removed_before: self.removed_before,
            placements: self.placements,
        }
    }

    /// Returns the number of versions that are not physically removed.
    fn versions(&self) -> u64 {
        self.revisions.len + self.settled_versions
    }

    /// Publishes the current state as a view, and frees a bounded number of retired objects that no view can
    /// see any more. The caller calls it once per applied batch, and never while a transaction is suspended.
    pub fn publish(&mut self) -> Arc<View> {
        assert!(!self.is_suspended(), "a transaction is published whole");
        let state = self.state();
        assert!(
            self.removed.through <= state.compacted && state.compacted <= state.current,
            "removed through {}, compacted at {}, current {}",
            self.removed.through,
            state.compacted,
            state.current
        );
        assert!(self.published <= state.current, "published {}, current {}", self.published, state.current);
        self.published = state.current;
        self.count_bytes();
        let pin = self.epochs.publish();
        Arc::new(View::new(state, self.removed, pin, Arc::clone(&self.estate)))
    }

    /// Returns the moment of the current state, to be read in views that are published later; see
    /// [`View::moment`].
    pub fn moment(&self) -> Moment {
        assert!(!self.is_suspended(), "a moment is read with whole transactions only");
        Moment::of(&self.state(), self.removed)
    }

    /// Frees up to `budget` objects that no view can see any more. Intended for idle times. Returns the
    /// number of further objects that could be freed now.
    pub fn reclaim(&mut self, budget: u64) -> u64 {
        self.epochs.reclaim(budget)
    }

    /// Starts a transaction, or continues the suspended one. All its changes have the same main revision.
    pub fn begin(&mut self) -> Writer<'_> {
        let changes = std::mem::take(&mut self.suspended);
        Writer { store: self, changes }
    }

    /// Returns true if a transaction with changes is suspended: see [`Writer::suspend`].
    pub fn is_suspended(&self) -> bool {
        self.suspended > 0
    }

    /// Returns the newest main revision.
    pub fn current_revision(&self) -> Revision {
        self.current
    }

    /// Returns the compact revision; -1 before the first compaction.
    pub fn compact_revision(&self) -> Revision {
        self.compacted
    }

    /// Returns true if a view of this store is held. If no view is held, dropping the store frees all of its
    /// memory, which takes time proportional to its size.
    pub fn is_viewed(&self) -> bool {
        Arc::strong_count(&self.estate) > 1
    }

    /// Returns statistics for metrics.
    pub fn stats(&self) -> Stats {
        Stats {
            live_keys: self.keys.live,
            keys: self.keys.len,
            versions: self.versions(),
            bytes: self.census.bytes(),
            pinned_bytes: self.census.bytes().saturating_sub(self.bytes_at_adoption),
            garbage: self.epochs.pending(),
            views: self.epochs.pinned(),
            removable: self.superseded.len() + self.tombstones.len(),
            removable_bytes: self.removable_bytes,
        }
    }

    /// Returns the counters of allocated objects.
    pub fn allocated(&self) -> &Census {
        &self.census
    }

    /// Returns the counters of allocated objects. They may be kept after the store is dropped.
    pub fn census(&self) -> Arc<Census> {
        Arc::clone(&self.census)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let remains = Remains {
            keys: self.keys.root,
            revisions: self.revisions.root,
            superseded: std::mem::replace(&mut self.superseded, Chunks::new()),
            settled: self.settled,
            bases: [self.base.take(), self.adoption.take().and_then(|adoption| adoption.before)],
            epochs: std::mem::replace(&mut self.epochs, Epochs::new(Arc::clone(&self.census))),
        };
        self.estate.leave(remains);
    }
}

/// Result of one change.
#[derive(Clone, Copy, Debug)]
pub struct Change<'w> {
    /// The new version; a tombstone for a deletion.
    pub version: Version<'w>,
    /// The live version that the change replaces, if there is one.
    pub previous: Option<Version<'w>>,
}

/// Result of a deletion that may have stopped early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedSome {
    /// Number of deleted keys.
    pub count: u64,
    /// Last deleted key, if the callback stopped the deletion at that key; the range may contain more keys.
    pub stopped_at: Option<Box<[u8]>>,
}

/// A write transaction. Its changes are visible through [`Writer::snapshot`] immediately, and to readers
/// after the next publication. A transaction cannot be rolled back, so the caller first checks everything
/// that can fail.
pub struct Writer<'s> {
    store: &'s mut Store,
    changes: u32,
}

impl Writer<'_> {
    /// Returns the main revision of this transaction's changes.
    pub fn revision(&self) -> Revision {
        self.store.current.next()
    }

    /// Returns the number of changes so far.
    pub fn changes(&self) -> u32 {
        self.changes
    }

    /// Returns the state including this transaction's changes.
    pub fn snapshot(&self) -> Snapshot<'_> {
        let mut state = self.store.state();
        state.current += i64::from(self.changes > 0);
        state.newest = state.current;
        // SAFETY: the snapshot borrows the writer, and changing or freeing anything needs `&mut self`.
        unsafe { Snapshot::new(state) }
    }

    /// Writes a key. The version number of the key becomes 1 more than that of its live predecessor, or 1 if
    /// there is no live predecessor.
    ///
    /// etcd rejects transactions that put a key twice, and most transactions that put a key after deleting
    /// it. The store itself accepts both and handles them correctly.
    pub fn put(&mut self, key: &[u8], value: Value, lease: LeaseId) -> Change<'_> {
        self.write(key, Some((value, lease)))
    }

    /// Deletes the live keys of a range in key order, and calls `visit` with each change. Returns the number
    /// of deleted keys.
    pub fn delete_range(&mut self, range: KeyRange<'_>, mut visit: impl FnMut(Change<'_>)) -> u64 {
        let deleted = self.delete_some(range, |change| {
            visit(change);
            true
        });
        deleted.count
    }

    /// Deletes like [`Writer::delete_range`], but stops after the key for which `visit` returns false.
    pub fn delete_some(
        &mut self,
        range: KeyRange<'_>,
        mut visit: impl FnMut(Change<'_>) -> bool,
    ) -> DeletedSome {
        if let Some(key) = range.as_single() {
            if self.store.keys.find(key).is_none_or(|slot| !slot.is_live()) {
                return DeletedSome { count: 0, stopped_at: None };
            }
            visit(self.write(key, None));
            return DeletedSome { count: 1, stopped_at: None };
        }
        if range.is_empty() {
            return DeletedSome { count: 0, stopped_at: None };
        }
        let mut count = 0;
        let mut rest = range;
        loop {
            let snapshot = self.snapshot();
            let mut cursor = rest.seek(&snapshot);
            while cursor.slot().is_some_and(|slot| !slot.is_live()) {
                cursor.advance(true);
            }
            let Some(next) = cursor.version().filter(|version| range.is_before_end(version.key())) else {
                return DeletedSome { count, stopped_at: None };
            };
            // SAFETY: the record stays alive: the deletion below only supersedes it, and records are freed
            // only by a publication or by `Store::reclaim`, which need the store that this writer borrows.
            let key = unsafe { Version::from_record(next.record()) }.key();
            let goes_on = visit(self.write(key, None));
            count += 1;
            if !goes_on {
                return DeletedSome { count, stopped_at: Some(key.into()) };
            }
            rest = range.after(key);
        }
    }

    fn write(&mut self, key: &[u8], put: Option<(Value, LeaseId)>) -> Change<'_> {
        let store = &mut *self.store;
        let id = ChangeId { main: store.current.next(), sub: self.changes };
        let compacted = store.compacted;
        let mut replaced = None;
        let slot = store.keys.upsert(key, &mut store.epochs, |existing, epochs| {
            // SAFETY: records in the writer's tree are alive.
            let newest: Option<Version<'_>> = existing.map(|slot| unsafe { slot.version() });
            let live = newest.filter(|version| !version.is_tombstone());
            let content = match put {
                Some((value, lease)) => Content {
                    id,
                    create_revision: live.map_or(id.main, Version::create_revision),
                    version: live.map_or(1, |version| version.version() + 1),
                    lease,
                    value,
                },
                None => Content {
                    id,
                    create_revision: Revision(0),
                    version: 0,
                    lease: LeaseId::NONE,
                    value: Value::default(),
                },
            };
            let record = version::create(key, &content, newest, compacted);
            replaced = existing;
            // SAFETY: the record was just created, and is freed only after it has left the trees.
            let version = unsafe { Version::from_record(record) };
            epochs.census().version_created(version.bytes());
            Slot::new(version)
        });
        store.revisions.upsert(id, &mut store.epochs, |existing, _| {
            assert!(existing.is_none(), "revision {id} was written twice");
            slot
        });
        let previous = replaced.filter(|slot| slot.is_live());
        for removable in previous.into_iter().chain((!slot.is_live()).then_some(slot)) {
            // SAFETY: both records are in the trees.
            unsafe { store.add_removable(removable) };
            if store.superseded.len() == 1 && removable.is_live() {
                store.removed_before = id;
            }
        }
        self.changes += 1;
        // SAFETY: both records are alive while the writer is borrowed.
        unsafe { Change { version: slot.version(), previous: previous.map(|slot| slot.version()) } }
    }

    /// Suspends the transaction, so that [`Store::begin`] can continue it later. Its changes stay invisible
    /// until the continued transaction ends: reads return the state before the transaction. Views published
    /// earlier do not change, and no view can be published while a transaction is suspended.
    pub fn suspend(mut self) {
        self.store.suspended = std::mem::take(&mut self.changes);
    }

    /// Ends the transaction and returns the current revision, which is raised by one if anything was changed.
    /// Dropping the writer has the same effect.
    pub fn finish(self) -> Revision {
        self.store.current + i64::from(self.changes > 0)
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.store.current += i64::from(self.changes > 0);
    }
}
