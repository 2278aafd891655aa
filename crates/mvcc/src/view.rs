//! Reads the store: snapshots, and the views that keep the data of snapshots alive.

use std::marker::PhantomData;
use std::sync::Arc;

use numbers::{ChangeId, Revision};

use crate::base::Bases;
use crate::cursor::Cursor;
use crate::epoch::Estate;
use crate::epochs::Pin;
use crate::node::{ByKey, Node, NodePtr};
use crate::range::{KeyRange, Range};
use crate::version::Version;

/// Reason why a revision cannot be read or compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevisionError {
    /// The revision is below the compact revision; for a compaction, it is at or below the compact revision.
    Compacted,
    /// The revision is above the current revision.
    FutureRevision,
}

impl std::fmt::Display for RevisionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RevisionError::Compacted => "the revision has been compacted",
            RevisionError::FutureRevision => "the revision lies in the future",
        })
    }
}

impl std::error::Error for RevisionError {}

/// The state that a snapshot reads: the roots of the trees, the revisions, and the counts.
#[derive(Clone, Copy)]
pub(crate) struct State {
    pub(crate) keys: NodePtr,
    pub(crate) revisions: NodePtr,
    pub(crate) current: Revision,
    pub(crate) compacted: Revision,
    pub(crate) live: u64,
    pub(crate) versions: u64,
    /// Newest main revision in the trees. It is above `current` if the trees are read as of an earlier
    /// moment.
    pub(crate) newest: Revision,
    /// Bases of the stubs in the tree of keys. The newest one lists the settled changes.
    pub(crate) bases: Bases,
    /// The tree of revisions contains the versions after this change. The others are listed by the newest
    /// base.
    pub(crate) settled: ChangeId,
    /// Versions whose successor is before this change were removed when the trees were as they are.
    pub(crate) removed_before: ChangeId,
    /// See [`crate::store::Store::placements`].
    pub(crate) placements: u64,
}

/// A handle to the state of one published [`View`], with its revisions and counts. Later views of the same
/// store can be read as of a moment.
///
/// A long reader holds a moment instead of a view, because a view would keep all memory that writes free in
/// the meantime. It reads in short slices of work, each from the view that is the newest at that time, see
/// [`View::snapshot_at`]. This works as long as no version that the moment needs is physically removed: the
/// caller of [`crate::Store::compact_step`] must respect [`Moment::keeps`].
///
/// # Example
///
/// Key a was written at revisions 2 and 5, key b at 6; nothing is compacted.
///
/// ```text
/// revision 6   a reader takes the moment of the view: revision 6, compact revision -1, keeps -1
/// revision 8   key a is written again
/// compact 6    a@2 can no longer be read, but removal must not go beyond -1: a@2 stays
///              the reader reads its next slice in the view of revision 8: it skips a@8 and sees a@5, b@6
///              it may also read at revision 3, as at its moment, and sees a@2
///              the reader ends; removal goes through 6 and removes a@2; a@5, the newest at 6, stays
/// ```
///
/// If removal had gone through 6 before the reader ended, [`View::snapshot_at`] would have returned
/// `Compacted`, since 6 is above -1, the revision that the moment keeps. It would never have shown a state
/// without a@2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    store: u64,
    current: Revision,
    compacted: Revision,
    live: u64,
    versions: u64,
    /// Highest compact revision up to which versions may be physically removed while the moment is read.
    keeps: Revision,
    /// Number of relocations and of beginnings and ends of adoptions before the moment.
    placements: u64,
    /// Number of versions removed before the moment, if no version may be removed while the moment is read;
    /// otherwise `None`.
    removals: Option<u64>,
}

impl Moment {
    pub(crate) fn of(state: &State, removed: Removed) -> Moment {
        let State { current, compacted, live, versions, placements, .. } = *state;
        Moment {
            store: removed.store,
            current,
            compacted,
            live,
            versions,
            keeps: compacted,
            placements,
            removals: None,
        }
    }

    /// Returns true if the moment is of the store with this number, and if that store has neither relocated a
    /// value nor begun or ended an adoption since.
    pub(crate) fn is_of_placements(&self, store: u64, placements: u64) -> bool {
        (self.store, self.placements) == (store, placements)
    }

    /// Returns the current revision of the moment.
    pub fn revision(&self) -> Revision {
        self.current
    }

    /// Returns the compact revision of the moment.
    pub fn compact_revision(&self) -> Revision {
        self.compacted
    }

    /// Returns the number that [`Snapshot::versions`] returned at the moment.
    pub fn versions(&self) -> u64 {
        self.versions
    }

    /// Returns the compact revision up to which versions may be physically removed without affecting this
    /// moment; [`Revision::MIN`] if none may be removed.
    pub fn keeps(&self) -> Revision {
        if self.removals.is_some() { Revision::MIN } else { self.keeps }
    }

    /// Returns a moment that also keeps the versions that a compaction at this revision keeps. It is used to
    /// compute the hash of a later compaction, because that hash covers versions that the compaction removes.
    #[must_use]
    pub fn keeping_from(self, compact_revision: Revision) -> Moment {
        Moment { keeps: self.keeps.min(compact_revision), ..self }
    }

    /// Returns the same moment, which now keeps only the versions that can be read at it.
    #[must_use]
    pub fn keeping_readable(self) -> Moment {
        Moment { keeps: self.compacted, removals: None, ..self }
    }
}

/// One state of the whole store, which can be read at its current revision and at older revisions. A snapshot
/// is a cheap handle, obtained from a [`View`], the store or a writer.
///
/// In all methods with a revision `rev`, 0 or less means the current revision. These methods return
/// `Compacted` for a revision below the compact revision, and `FutureRevision` for a revision above the
/// current one.
#[derive(Clone, Copy)]
pub struct Snapshot<'a> {
    state: State,
    lives: PhantomData<&'a State>,
}

// SAFETY: everything reachable from a snapshot is immutable for its lifetime, except for two atomic words per
// record, so any thread may read it.
unsafe impl Send for Snapshot<'_> {}
// SAFETY: everything reachable from a snapshot is immutable for its lifetime, except for two atomic words per
// record, so several threads may read it.
unsafe impl Sync for Snapshot<'_> {}

impl<'a> Snapshot<'a> {
    /// # Safety
    /// The trees of `state` are alive and unchanged for `'a`.
    pub(crate) unsafe fn new(state: State) -> Snapshot<'a> {
        Snapshot { state, lives: PhantomData }
    }

    pub(crate) fn keys(&self) -> Option<Node<'a, ByKey>> {
        // SAFETY: the caller of `new` promised that the trees are alive and unchanged.
        unsafe { Node::open(self.state.keys) }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Returns the message of the first block of a base that could not be read, or whose content was wrong. Of
    /// all bases with the same [`Cache`](crate::Cache), the first one counts. From then on, everything that was read may be incomplete and must
    /// not be used. The caller checks after reading.
    pub fn fault(&self) -> Option<&'a str> {
        // SAFETY: the bases that the trees refer to are alive for `'a`.
        unsafe { self.state.bases.fault() }
    }

    /// Returns the number of live keys between two positions of the tree of keys. They may be in the wrong
    /// order after a fault.
    pub(crate) fn between(&self, front: &Cursor<'a, ByKey>, back: &Cursor<'a, ByKey>) -> u64 {
        let (front, back) = (front.rank(), back.rank());
        assert!(front <= back || self.fault().is_some(), "the end of a range is before its beginning");
        back.saturating_sub(front)
    }

    /// Returns the newest main revision. In a snapshot of a writer that has changed something, this is the
    /// revision that is being written.
    pub fn current_revision(&self) -> Revision {
        self.state.current
    }

    /// Returns the compact revision, the oldest revision that can be read; -1 before the first compaction.
    pub fn compact_revision(&self) -> Revision {
        self.state.compacted
    }

    /// Returns the number of live keys at the current revision.
    pub fn live_keys(&self) -> u64 {
        self.state.live
    }

    /// Returns the number of versions, including tombstones, that are not physically removed yet.
    pub fn versions(&self) -> u64 {
        self.state.versions
    }

    /// Returns the revision that a request for `rev` reads: the current revision if `rev` is 0 or less,
    /// otherwise `rev`.
    pub fn resolve(&self, rev: Revision) -> Result<Revision, RevisionError> {
        if rev <= Revision::CURRENT {
            Ok(self.state.current)
        } else if rev > self.state.current {
            Err(RevisionError::FutureRevision)
        } else if rev < self.state.compacted {
            Err(RevisionError::Compacted)
        } else {
            Ok(rev)
        }
    }

    /// Returns true if a read at `rev` returns the newest version of each key in the trees.
    pub(crate) fn is_newest(&self, rev: Revision) -> bool {
        rev == self.state.newest
    }

    /// Returns the key's live version at `rev`, in O(log n).
    pub fn get(&self, key: &[u8], rev: Revision) -> Result<Option<Version<'a>>, RevisionError> {
        let rev = self.resolve(rev)?;
        Ok(self.newest(key, rev).filter(|version| !version.is_tombstone()))
    }

    /// Returns the key's newest version at the resolved revision `rev`, which may be a tombstone.
    pub(crate) fn newest(&self, key: &[u8], rev: Revision) -> Option<Version<'a>> {
        let slot = Cursor::<ByKey>::find(self.keys(), key)?;
        // SAFETY: slots of a snapshot's trees hold records that are alive for `'a`.
        unsafe { slot.version::<'a>() }.at(rev)
    }

    /// Returns the version of the same key that was live just before the main revision of `version`. A
    /// watcher receives it as the previous value. Returns `Compacted` if that version may have been removed.
    pub fn previous(&self, version: Version<'_>) -> Result<Option<Version<'a>>, RevisionError> {
        let before = version.main() - 1;
        if before <= Revision(0) { Ok(None) } else { self.get(version.key(), before) }
    }

    /// Returns the live versions of a range at `rev`, in key order; `.rev()` walks downwards.
    /// [`KeyRange::after`] and [`KeyRange::before`] resume a walk in O(log n).
    pub fn range(&self, range: KeyRange<'_>, rev: Revision) -> Result<Range<'a>, RevisionError> {
        Ok(Range::new(self, range, self.resolve(rev)?))
    }

    /// Returns the versions of a range that were live just before `change`, as a read in the middle of the
    /// same transaction sees them. If `change` is above the current revision, returns the current state.
    ///
    /// # Errors
    ///
    /// Returns `Compacted` if the revision before the revision of `change` is compacted.
    pub fn range_before(&self, range: KeyRange<'_>, change: ChangeId) -> Result<Range<'a>, RevisionError> {
        let current = self.state.current;
        if change.main > current || (change.main == current && self.version_at(change).is_none()) {
            return self.range(range, Revision::CURRENT);
        }
        if change.main <= self.state.compacted {
            return Err(RevisionError::Compacted);
        }
        Ok(Range::before(self, range, change))
    }

    /// Returns the number of live keys in a range at `rev`: O(log n) at the current revision, a scan at older
    /// ones.
    pub fn count(&self, range: KeyRange<'_>, rev: Revision) -> Result<u64, RevisionError> {
        let rev = self.resolve(rev)?;
        if range.is_empty() {
            return Ok(0);
        }
        if self.is_newest(rev) {
            let (front, back) = (range.seek(self), range.seek_end(self));
            return Ok(self.between(&front, &back));
        }
        Ok(Range::new(self, range, rev).count() as u64)
    }

    /// Returns every version that a checkpoint must contain: in ascending key order, and from old to new for
    /// each key, which is the order that [`crate::Loader`] expects. The result does not depend on the
    /// progress of physical compaction.
    pub fn histories(&self) -> Histories<'a> {
        self.histories_after(None)
    }

    /// Returns versions like [`Snapshot::histories`], but starts after all versions of `key`.
    pub fn histories_after(&self, key: Option<&[u8]>) -> Histories<'a> {
        let cursor = Cursor::seek(self.keys(), key.unwrap_or_default(), key.is_some());
        let (through, compacted) = (self.state.current, self.state.compacted);
        Histories { cursor, through, compacted, pending: Vec::new() }
    }
}

/// Iterator over all versions key by key, see [`Snapshot::histories`].
pub struct Histories<'a> {
    /// Position of the next key.
    cursor: Cursor<'a, ByKey>,
    through: Revision,
    compacted: Revision,
    /// Remaining versions of the current key, newest first.
    pending: Vec<Version<'a>>,
}

impl<'a> Histories<'a> {
    /// Returns true if the iterator will return no more versions of the leaf of the index from which the last
    /// version came. A block of a base should end there: only a block with exactly the versions of a leaf can
    /// take the place of the leaf.
    pub fn is_at_leaf_end(&mut self) -> bool {
        while self.pending.is_empty() {
            if self.cursor.is_at_leaf_start() {
                return true;
            }
            self.take_key();
        }
        false
    }

    /// Moves the versions of the next key to `pending`. Returns false after the last key.
    fn take_key(&mut self) -> bool {
        let Some(newest) = self.cursor.version() else { return false };
        self.cursor.advance(false);
        let held = newest.held_at(self.through, self.compacted);
        let Some(newest) = held.filter(|newest| !newest.is_tombstone() || newest.main() >= self.compacted)
        else {
            return true;
        };
        self.pending.push(newest);
        let mut version = newest;
        while let Some(older) = version.predecessor(self.compacted) {
            self.pending.push(older);
            version = older;
        }
        true
    }
}

impl<'a> Iterator for Histories<'a> {
    type Item = Version<'a>;

    fn next(&mut self) -> Option<Version<'a>> {
        while self.pending.is_empty() {
            if !self.take_key() {
                return None;
            }
        }
        self.pending.pop()
    }
}

/// Progress of physical removal when a view was published.
#[derive(Clone, Copy)]
pub(crate) struct Removed {
    /// Serial number of the store among all stores that this process has created.
    pub(crate) store: u64,
    /// Revision through which removal has gone: a compaction at this revision would remove every version
    /// removed so far.
    pub(crate) through: Revision,
    /// Number of removed versions.
    pub(crate) versions: u64,
}

/// An immutable published state, usable on any thread for as long as it is held, even after the store is
/// dropped. While a view is held, nothing that it can see is freed, so it should be held only briefly.
pub struct View {
    state: State,
    removed: Removed,
    // The fields are dropped in this order: the pin first, so that the writer can free what only this view
    // saw, then the estate, whose last owner frees everything.
    _pin: Arc<Pin>,
    _estate: Arc<Estate>,
}

// SAFETY: everything that the view sees is immutable except for two atomic words per record, and is freed
// only after the view is dropped.
unsafe impl Send for View {}
// SAFETY: everything that the view sees is immutable except for two atomic words per record, and is freed
// only after the view is dropped.
unsafe impl Sync for View {}

impl View {
    pub(crate) fn new(state: State, removed: Removed, pin: Arc<Pin>, estate: Arc<Estate>) -> View {
        View { state, removed, _pin: pin, _estate: estate }
    }

    /// Returns the moment of this view, for readers that continue in later views. The moment keeps only the
    /// versions that can be read; [`Moment::keeping_from`] and [`View::moment_of_everything`] return moments
    /// that keep more.
    pub fn moment(&self) -> Moment {
        Moment::of(&self.state, self.removed)
    }

    /// Returns the moment of this view like [`View::moment`], but no version at all may be physically removed
    /// while the moment is read.
    pub fn moment_of_everything(&self) -> Moment {
        Moment { removals: Some(self.removed.versions), ..self.moment() }
    }

    /// Returns the compact revision up to which versions have been physically removed: a compaction at this
    /// revision would remove every version that has been removed so far. The result is never above the
    /// compact revision of the store.
    pub fn removed_through(&self) -> Revision {
        self.removed.through
    }

    /// Returns the fault of a base like [`Snapshot::fault`].
    pub fn fault(&self) -> Option<&str> {
        self.snapshot().fault()
    }

    /// Returns true if the moment belongs to this view's store. Returns false if an installed state has
    /// replaced that store.
    pub fn has_moment(&self, moment: &Moment) -> bool {
        moment.store == self.removed.store
    }

    /// Returns the state at `moment`, read in this later view of the same store. Every read returns the same
    /// as it did at the moment, except for the locations of values that were relocated within the log.
    ///
    /// Walks skip the versions written after the moment. Counting keys at the moment's current revision is a
    /// walk, too.
    ///
    /// # Errors
    ///
    /// Returns `Compacted` if a version that the moment needs was physically removed, or if this is a view of
    /// another store. Returns `FutureRevision` if this view is older than the moment.
    pub fn snapshot_at(&self, moment: &Moment) -> Result<Snapshot<'_>, RevisionError> {
        let Removed { store, through, versions } = self.removed;
        if moment.store != store
            || moment.keeps < through
            || moment.removals.is_some_and(|then| then < versions)
        {
            return Err(RevisionError::Compacted);
        }
        if moment.current > self.state.current {
            return Err(RevisionError::FutureRevision);
        }
        let state = State {
            current: moment.current,
            compacted: moment.compacted,
            live: moment.live,
            versions: moment.versions,
            ..self.state
        };
        // SAFETY: the pin keeps everything reachable from the state alive while the view is borrowed. The
        // compact revision is not below the revision through which versions were removed, and following a
        // version's links relies only on that.
        Ok(unsafe { Snapshot::new(state) })
    }

    /// Returns the state of the view.
    pub fn snapshot(&self) -> Snapshot<'_> {
        // SAFETY: the pin keeps everything reachable from the state alive while the view is borrowed.
        unsafe { Snapshot::new(self.state) }
    }
}
