//! The store: the single writer's side, and its transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use numbers::{ChangeId, LeaseId, Revision};

use crate::epoch::{Census, Epochs, Estate, Remains};
use crate::epochs::Chunks;
use crate::node::{ByKey, ByRevision, Slot};
use crate::range::KeyRange;
use crate::tree::Tree;
use crate::version::{self, Content, Value, Version};
use crate::view::{Moment, Removed, Snapshot, State, View};

/// Stores made so far in this process, so that a moment of one is never looked for in another.
static STORES: AtomicU64 = AtomicU64::new(0);

/// All versions of all keys. One thread writes; all others read through the views it publishes.
///
/// Its revisions are ordered, and [`Store::publish`] asserts it: removed through <= compacted <= current, and the current
/// revision of the view before <= current. With a current
/// revision of 9, a compaction at 7 makes revisions below 7 unreadable at once; the versions that only those needed are
/// removed later, in slices, so that for a while nothing or only what a compaction at 5 removes may be gone. None of the
/// three ever goes back.
pub struct Store {
    pub(crate) keys: Tree<ByKey>,
    pub(crate) revisions: Tree<ByRevision>,
    pub(crate) current: Revision,
    /// The current revision of the newest view.
    published: Revision,
    pub(crate) compacted: Revision,
    pub(crate) removed: Removed,
    /// Versions that have a successor, but no tombstones, in the order of their successors' revisions: what a
    /// compaction removes is the front of it.
    pub(crate) superseded: Chunks<Slot>,
    /// Tombstones in the order of their revisions.
    pub(crate) tombstones: Chunks<Slot>,
    /// Number of changes of the suspended transaction; 0 if there is none. They are in the trees, above the current
    /// revision.
    pub(crate) suspended: u32,
    pub(crate) epochs: Epochs,
    census: Arc<Census>,
    estate: Arc<Estate>,
}

// SAFETY: the store owns what its pointers lead to, together with views that only read; nothing is bound to a
// thread.
unsafe impl Send for Store {}

/// Numbers about a store. Bytes are those asked of the allocator for versions, nodes and separators, including
/// what waits to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Live keys at the current revision.
    pub live_keys: u64,
    /// Keys in the index, deleted ones that are not yet compacted away included.
    pub keys: u64,
    /// Versions, tombstones included.
    pub versions: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// Versions, nodes and separators taken out and not yet freed.
    pub garbage: usize,
    /// Published views that may still be held; some more than are, until the next publications.
    pub views: usize,
    /// Superseded versions and tombstones that some future compaction will remove.
    pub removable: usize,
}

impl Default for Store {
    fn default() -> Self {
        Store::new()
    }
}

impl Store {
    /// An empty store at revision 1: the first write makes revision 2.
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
            suspended: 0,
            epochs: Epochs::new(Arc::clone(&census)),
            census,
            estate: Arc::new(Estate::new()),
        }
    }

    /// The writer's own current state, including what is not published, without the changes of a suspended transaction.
    pub fn snapshot(&self) -> Snapshot<'_> {
        // SAFETY: changing or freeing anything needs `&mut self`.
        unsafe { Snapshot::new(self.state()) }
    }

    fn state(&self) -> State {
        State {
            keys: self.keys.root,
            revisions: self.revisions.root,
            current: self.current,
            compacted: self.compacted,
            live: self.keys.live,
            versions: self.revisions.len,
            newest: self.current + i64::from(self.suspended > 0),
        }
    }

    /// Freezes the present state for readers, and frees a bounded portion of what no view can see any more.
    /// Call it once per applied batch, and not while a transaction is suspended.
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
        let pin = self.epochs.publish();
        Arc::new(View::new(state, self.removed, pin, Arc::clone(&self.estate)))
    }

    /// The present state, to be read in views that are published later; see [`View::moment`].
    pub fn moment(&self) -> Moment {
        assert!(!self.is_suspended(), "a moment is read with whole transactions only");
        Moment::of(&self.state(), self.removed)
    }

    /// Frees up to `budget` things that no view can see any more, for idle moments; returns how many are left
    /// that could be freed now.
    pub fn reclaim(&mut self, budget: u64) -> u64 {
        self.epochs.reclaim(budget)
    }

    /// Begins a mutating request, or goes on with the one that was suspended. All its changes share one main revision.
    pub fn begin(&mut self) -> Writer<'_> {
        let changes = std::mem::take(&mut self.suspended);
        Writer { store: self, changes }
    }

    /// Returns true if a transaction is suspended that has changed something: see [`Writer::suspend`].
    pub fn is_suspended(&self) -> bool {
        self.suspended > 0
    }

    /// The newest main revision.
    pub fn current_revision(&self) -> Revision {
        self.current
    }

    /// The compact revision; -1 before any compaction.
    pub fn compact_revision(&self) -> Revision {
        self.compacted
    }

    /// Returns true if a view of it is held. Once it is no longer published and no view is held, dropping it frees all of
    /// it, which takes time in proportion to what it holds.
    pub fn is_viewed(&self) -> bool {
        Arc::strong_count(&self.estate) > 1
    }

    /// Numbers for metrics.
    pub fn stats(&self) -> Stats {
        Stats {
            live_keys: self.keys.live,
            keys: self.keys.len,
            versions: self.revisions.len,
            bytes: self.census.bytes(),
            garbage: self.epochs.pending(),
            views: self.epochs.pinned(),
            removable: self.superseded.len() + self.tombstones.len(),
        }
    }

    /// Counts of what is allocated.
    pub fn allocated(&self) -> &Census {
        &self.census
    }

    /// The same counts, to be kept for longer than the store.
    pub fn census(&self) -> Arc<Census> {
        Arc::clone(&self.census)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let remains = Remains {
            keys: self.keys.root,
            revisions: self.revisions.root,
            epochs: std::mem::replace(&mut self.epochs, Epochs::new(Arc::clone(&self.census))),
        };
        self.estate.leave(remains);
    }
}

/// The result of one change.
#[derive(Clone, Copy, Debug)]
pub struct Change<'w> {
    /// The version written; a tombstone for a deletion.
    pub version: Version<'w>,
    /// The live version it replaced.
    pub previous: Option<Version<'w>>,
}

/// The result of a part of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedSome {
    /// Keys deleted.
    pub count: u64,
    /// The last of them, if it was told to stop there; there may be more behind it.
    pub stopped_at: Option<Box<[u8]>>,
}

/// One mutating request. Its changes are visible through [`Writer::snapshot`] at once, and to readers with the
/// next publication. There is no way back: whatever can fail is checked before.
pub struct Writer<'s> {
    store: &'s mut Store,
    changes: u32,
}

impl Writer<'_> {
    /// The main revision that this transaction's changes bear.
    pub fn revision(&self) -> Revision {
        self.store.current.next()
    }

    /// Number of changes so far.
    pub fn changes(&self) -> u32 {
        self.changes
    }

    /// The state with this transaction's changes.
    pub fn snapshot(&self) -> Snapshot<'_> {
        let mut state = self.store.state();
        state.current += i64::from(self.changes > 0);
        state.newest = state.current;
        // SAFETY: changing or freeing anything needs `&mut self`.
        unsafe { Snapshot::new(state) }
    }

    /// Writes a key. The version counts on from the live predecessor, or begins at 1.
    ///
    /// etcd rejects requests that put a key twice, and most that put it after deleting it. Nothing breaks here if
    /// one does.
    pub fn put(&mut self, key: &[u8], value: Value, lease: LeaseId) -> Change<'_> {
        self.write(key, Some((value, lease)))
    }

    /// Deletes the live keys of a range in key order, telling `visit` of each; returns how many there were.
    pub fn delete_range(&mut self, range: KeyRange<'_>, mut visit: impl FnMut(Change<'_>)) -> u64 {
        let deleted = self.delete_some(range, |change| {
            visit(change);
            true
        });
        deleted.count
    }

    /// Deletes as [`Writer::delete_range`] does, but stops behind the key for which `visit` returns false.
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
            // SAFETY: the record stays alive: it is only superseded below, and nothing is freed before the next
            // publication, which needs the store that this writer borrows.
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
            // SAFETY: what the writer's tree holds is alive.
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
            // SAFETY: the record was just made, and is freed only after it left the trees.
            let version = unsafe { Version::from_record(record) };
            epochs.census().version_created(version.bytes());
            Slot::new(version)
        });
        store.revisions.upsert(id, &mut store.epochs, |existing, _| {
            assert!(existing.is_none(), "revision {id} was written twice");
            slot
        });
        let previous = replaced.filter(|slot| slot.is_live());
        if let Some(previous) = previous {
            store.superseded.push(previous);
        }
        if !slot.is_live() {
            store.tombstones.push(slot);
        }
        self.changes += 1;
        // SAFETY: both records are alive while the writer is borrowed.
        unsafe { Change { version: slot.version(), previous: previous.map(|slot| slot.version()) } }
    }

    /// Stops amid the transaction. Nobody sees its changes until it has gone on, with [`Store::begin`], and come to its
    /// end: what is read meanwhile is the state before it. Views published before stay as they are; none can be published.
    pub fn suspend(mut self) {
        self.store.suspended = std::mem::take(&mut self.changes);
    }

    /// Ends the transaction and returns the current revision: raised by one if anything was changed. Dropping
    /// the writer does the same.
    pub fn finish(self) -> Revision {
        self.store.current + i64::from(self.changes > 0)
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.store.current += i64::from(self.changes > 0);
    }
}
