//! Reading: snapshots, and the views that keep one alive.

use std::marker::PhantomData;
use std::sync::Arc;

use numbers::{ChangeId, Revision};

use crate::cursor::Cursor;
use crate::epoch::Estate;
use crate::epochs::Pin;
use crate::node::{ByKey, ByRevision, Node, NodePtr};
use crate::range::{KeyRange, Range};
use crate::version::Version;

/// Why a revision cannot be read or compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevisionError {
    /// The revision lies below the compact revision (for a compaction: not above it).
    Compacted,
    /// The revision lies above the current revision.
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

/// The roots and numbers of a snapshot.
#[derive(Clone, Copy)]
pub(crate) struct State {
    pub(crate) keys: NodePtr,
    pub(crate) revisions: NodePtr,
    pub(crate) current: Revision,
    pub(crate) compacted: Revision,
    pub(crate) live: u64,
    pub(crate) versions: u64,
    /// The newest main revision in the trees; above `current` where they are read as of an earlier moment.
    pub(crate) newest: Revision,
}

/// What a [`View`] was published with: all that is needed to read later views of the same store as that one was.
///
/// A reader that takes long holds a moment and not a view: memory that writes free meanwhile is then not kept for it.
/// It reads piece by piece, each from the newest view, see [`View::snapshot_at`]. That works as long as nothing was
/// physically removed that the moment needs: the caller of [`crate::Store::compact_step`] has to respect [`Moment::keeps`].
///
/// # Example
///
/// Key a was written at revisions 2 and 5, key b at 6; nothing is compacted.
///
/// ```text
/// revision 6   a reader takes the moment of the view: revision 6, compact revision -1, keeps -1
/// revision 8   key a is written again
/// compact 6    a@2 cannot be read any more, but removal must not go beyond -1: it stays
///              the reader reads its next slice in the view of revision 8: it passes over a@8 and sees a@5, b@6
///              it may also read at revision 3, as at its moment, and sees a@2
///              the reader ends; removal goes through 6 and takes out a@2; a@5, the newest at 6, stays
/// ```
///
/// Had removal gone through 6 before, [`View::snapshot_at`] would have answered `Compacted`, since 6 is above what the moment
/// keeps. It would not have shown a state without a@2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    store: u64,
    current: Revision,
    compacted: Revision,
    live: u64,
    versions: u64,
    /// Removal may go so far: to what a compaction at this revision removes.
    keeps: Revision,
    /// Number of versions that had been removed, if no more may be.
    removals: Option<u64>,
}

impl Moment {
    pub(crate) fn of(state: &State, removed: Removed) -> Moment {
        let State { current, compacted, live, versions, .. } = *state;
        Moment { store: removed.store, current, compacted, live, versions, keeps: compacted, removals: None }
    }

    /// The current revision then.
    pub fn revision(&self) -> Revision {
        self.current
    }

    /// The compact revision then.
    pub fn compact_revision(&self) -> Revision {
        self.compacted
    }

    /// [`Snapshot::versions`] then.
    pub fn versions(&self) -> u64 {
        self.versions
    }

    /// The compact revision up to which versions may be physically removed without harm to this moment; [`Revision::MIN`] if
    /// none may be.
    pub fn keeps(&self) -> Revision {
        if self.removals.is_some() { Revision::MIN } else { self.keeps }
    }

    /// Returns a moment that also needs what a compaction at this revision keeps. For the hash of a compaction, which
    /// covers what that compaction removes.
    #[must_use]
    pub fn keeping_from(self, compact_revision: Revision) -> Moment {
        Moment { keeps: self.keeps.min(compact_revision), ..self }
    }

    /// Returns a moment that needs only what can be read.
    #[must_use]
    pub fn keeping_readable(self) -> Moment {
        Moment { keeps: self.compacted, removals: None, ..self }
    }
}

/// The whole store at one moment, for reading; a cheap handle. Taken from a [`View`], the store or a writer.
///
/// Wherever a revision `rev` is asked for, 0 or less means the current one; one below the compact revision is
/// answered with `Compacted` and one above the current with `FutureRevision`.
#[derive(Clone, Copy)]
pub struct Snapshot<'a> {
    state: State,
    lives: PhantomData<&'a State>,
}

// SAFETY: everything reachable from a snapshot is immutable for its lifetime, but for two atomic words a record.
unsafe impl Send for Snapshot<'_> {}
// SAFETY: as above.
unsafe impl Sync for Snapshot<'_> {}

impl<'a> Snapshot<'a> {
    /// # Safety
    /// The trees of `state` are alive and unchanged for `'a`.
    pub(crate) unsafe fn new(state: State) -> Snapshot<'a> {
        Snapshot { state, lives: PhantomData }
    }

    pub(crate) fn keys(&self) -> Option<Node<'a, ByKey>> {
        // SAFETY: promised when the snapshot was made.
        unsafe { Node::open(self.state.keys) }
    }

    pub(crate) fn revisions(&self) -> Option<Node<'a, ByRevision>> {
        // SAFETY: promised when the snapshot was made.
        unsafe { Node::open(self.state.revisions) }
    }

    /// The newest main revision. Inside a writer that has changed something: the revision it is writing.
    pub fn current_revision(&self) -> Revision {
        self.state.current
    }

    /// The compact revision: the oldest that can be read; -1 before any compaction.
    pub fn compact_revision(&self) -> Revision {
        self.state.compacted
    }

    /// Number of live keys at the current revision.
    pub fn live_keys(&self) -> u64 {
        self.state.live
    }

    /// Number of versions, tombstones included, that are not yet physically removed.
    pub fn versions(&self) -> u64 {
        self.state.versions
    }

    /// The revision that a request for `rev` reads.
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

    /// Returns true if the newest version of each key in the trees is the one to be read at `rev`.
    pub(crate) fn is_newest(&self, rev: Revision) -> bool {
        rev == self.state.newest
    }

    /// The key's live version at `rev`. O(log n).
    pub fn get(&self, key: &[u8], rev: Revision) -> Result<Option<Version<'a>>, RevisionError> {
        let rev = self.resolve(rev)?;
        Ok(self.newest(key, rev).filter(|version| !version.is_tombstone()))
    }

    /// The key's newest version at the resolved revision `rev`, tombstones included.
    pub(crate) fn newest(&self, key: &[u8], rev: Revision) -> Option<Version<'a>> {
        let slot = Cursor::<ByKey>::find(self.keys(), key)?;
        // SAFETY: slots of a snapshot's trees hold records that are alive for `'a`.
        unsafe { slot.version::<'a>() }.at(rev)
    }

    /// The live version of the same key just before the main revision of `version`: what a watcher calls the
    /// previous value. `Compacted` when it can no longer be known.
    pub fn previous(&self, version: Version<'_>) -> Result<Option<Version<'a>>, RevisionError> {
        let before = version.main() - 1;
        if before <= Revision(0) { Ok(None) } else { self.get(version.key(), before) }
    }

    /// The live versions of a range at `rev`, in key order; `.rev()` walks downwards. A walk is resumed with
    /// [`KeyRange::after`] and [`KeyRange::before`] in O(log n).
    pub fn range(&self, range: KeyRange<'_>, rev: Revision) -> Result<Range<'a>, RevisionError> {
        Ok(Range::new(self, range, self.resolve(rev)?))
    }

    /// The live versions of a range as they were just before a change: what a read in the middle of its
    /// transaction found. A change above the current revision means the current state.
    ///
    /// # Errors
    ///
    /// `Compacted` when the revision before that of the change is.
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

    /// Number of live keys in a range at `rev`: O(log n) at the current revision, a scan at older ones.
    pub fn count(&self, range: KeyRange<'_>, rev: Revision) -> Result<u64, RevisionError> {
        let rev = self.resolve(rev)?;
        if range.is_empty() {
            return Ok(0);
        }
        if self.is_newest(rev) {
            return Ok(range.seek_end(self).rank() - range.seek(self).rank());
        }
        Ok(Range::new(self, range, rev).count() as u64)
    }

    /// All versions, tombstones included, with main revisions from `from` through `through` (at most the
    /// current one), in the order of their writing. `Compacted` if `from` lies below the compact revision; a
    /// `from` above the current revision yields nothing.
    pub fn changes(&self, from: Revision, through: Revision) -> Result<Changes<'a>, RevisionError> {
        if from < self.state.compacted && self.state.compacted >= Revision(0) {
            return Err(RevisionError::Compacted);
        }
        Ok(Changes { compacted: self.state.compacted, ..self.stored(ChangeId::first_of(from), through) })
    }

    /// Like [`Snapshot::changes`], going on behind `change`.
    pub fn changes_after(&self, change: ChangeId, through: Revision) -> Result<Changes<'a>, RevisionError> {
        if change.main < self.state.compacted {
            return Err(RevisionError::Compacted);
        }
        let cursor = Cursor::seek(self.revisions(), change, true);
        Ok(Changes { cursor, through: through.min(self.state.current), compacted: self.state.compacted })
    }

    /// Like [`Snapshot::changes`], but never refused: what is physically there with these main revisions. Below
    /// the compact revision anything that it made unreadable may be missing; what is not there can be told from
    /// nothing.
    pub fn written(&self, from: Revision, through: Revision) -> Changes<'a> {
        self.stored(ChangeId::first_of(from), through)
    }

    /// Like [`Snapshot::written`], from the change `from` on.
    pub fn written_from(&self, from: ChangeId, through: Revision) -> Changes<'a> {
        self.stored(from, through)
    }

    /// Returns the versions that are physically present behind `change`, in the order of writing, without the puts that
    /// the compact revision made unreadable. A state is sent so to a receiver that may have a part of it: which
    /// tombstones below the compact revision are still there depends on the progress of removal.
    ///
    /// Those puts may be many until they are removed: see [`Changes::look`].
    pub fn written_after(&self, change: ChangeId) -> Changes<'a> {
        let cursor = Cursor::seek(self.revisions(), change, true);
        Changes { cursor, through: self.state.current, compacted: self.state.compacted }
    }

    /// Returns the versions that are physically present from this change on.
    pub(crate) fn stored(&self, from: ChangeId, through: Revision) -> Changes<'a> {
        let cursor = Cursor::seek(self.revisions(), from, false);
        Changes { cursor, through: through.min(self.state.current), compacted: Revision::MIN }
    }

    /// The version written by a change, tombstones included, if it is still there.
    /// How a mover of values asks whether one is still wanted.
    pub fn version_at(&self, change: ChangeId) -> Option<Version<'a>> {
        let slot = Cursor::<ByRevision>::find(self.revisions(), change)?;
        // SAFETY: slots of a snapshot's trees hold records that are alive for `'a`.
        Some(unsafe { slot.version() })
    }

    /// Every version a checkpoint has to keep: by key in ascending order, for each key from old to new. The
    /// order in which [`crate::Loader`] takes them. How far physical compaction got makes no difference.
    pub fn histories(&self) -> Histories<'a> {
        self.histories_after(None)
    }

    /// Like [`Snapshot::histories`], going on behind all versions of `key`.
    pub fn histories_after(&self, key: Option<&[u8]>) -> Histories<'a> {
        let cursor = Cursor::seek(self.keys(), key.unwrap_or_default(), key.is_some());
        let (through, compacted) = (self.state.current, self.state.compacted);
        Histories { cursor, through, compacted, pending: Vec::new() }
    }
}

/// Versions in the order of their writing.
pub struct Changes<'a> {
    cursor: Cursor<'a, ByRevision>,
    through: Revision,
    /// At or below this revision, what a compaction there removes is left out even while it is still stored.
    compacted: Revision,
}

/// What one step over what is stored comes upon; see [`Changes::look`].
#[derive(Clone, Copy)]
pub struct Looked<'a> {
    /// What wrote it.
    pub id: ChangeId,
    /// The version; `None` if a compaction made it unreadable.
    pub version: Option<Version<'a>>,
}

impl<'a> Changes<'a> {
    /// Goes one version further, whether it is given out or not: for callers whose steps must be short where a compaction left
    /// millions of versions to be removed.
    pub fn look(&mut self) -> Option<Looked<'a>> {
        let version = self.cursor.version().filter(|version| version.main() <= self.through)?;
        self.cursor.advance(false);
        let is_readable =
            version.main() > self.compacted || version.is_tombstone() || version.is_newest_at(self.compacted);
        Some(Looked { id: version.id(), version: is_readable.then_some(version) })
    }
}

impl<'a> Iterator for Changes<'a> {
    type Item = Version<'a>;

    fn next(&mut self) -> Option<Version<'a>> {
        loop {
            if let Some(version) = self.look()?.version {
                return Some(version);
            }
        }
    }
}

/// All versions key by key, see [`Snapshot::histories`].
pub struct Histories<'a> {
    cursor: Cursor<'a, ByKey>,
    through: Revision,
    compacted: Revision,
    /// Versions of the present key yet to be given out, newest first.
    pending: Vec<Version<'a>>,
}

impl<'a> Iterator for Histories<'a> {
    type Item = Version<'a>;

    fn next(&mut self) -> Option<Version<'a>> {
        while self.pending.is_empty() {
            let newest = self.cursor.version()?.held_at(self.through, self.compacted);
            self.cursor.advance(false);
            let Some(newest) = newest else { continue };
            if newest.is_tombstone() && newest.main() < self.compacted {
                continue;
            }
            self.pending.push(newest);
            let mut version = newest;
            while let Some(older) = version.predecessor(self.compacted) {
                self.pending.push(older);
                version = older;
            }
        }
        self.pending.pop()
    }
}

/// The progress of physical removal when a view was published.
#[derive(Clone, Copy)]
pub(crate) struct Removed {
    /// Number of the store among all that the process has had.
    pub(crate) store: u64,
    /// All that was removed, a compaction at this revision removes.
    pub(crate) through: Revision,
    /// Versions removed.
    pub(crate) versions: u64,
}

/// A published state that stays exactly as it is, for any thread, for as long as it is held. It may outlive the
/// store. While it is held, nothing it can see is freed: hold it as long as needed and no longer.
pub struct View {
    state: State,
    removed: Removed,
    // Dropped in this order: the pin lets the writer free what only this view saw; the estate, when this is the
    // last to go, frees everything.
    _pin: Arc<Pin>,
    _estate: Arc<Estate>,
}

// SAFETY: what the view sees is immutable but for two atomic words a record, and freed only after its drop.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    pub(crate) fn new(state: State, removed: Removed, pin: Arc<Pin>, estate: Arc<Estate>) -> View {
        View { state, removed, _pin: pin, _estate: estate }
    }

    /// Returns the moment of this view, for readers that continue in later views. It needs what can be read; see
    /// [`Moment::keeping_from`] and [`View::moment_of_everything`].
    pub fn moment(&self) -> Moment {
        Moment::of(&self.state, self.removed)
    }

    /// Returns the moment of this view as [`View::moment`] does, but nothing may be physically removed as long as it is
    /// read.
    pub fn moment_of_everything(&self) -> Moment {
        Moment { removals: Some(self.removed.versions), ..self.moment() }
    }

    /// The compact revision up to which versions have been physically removed: all that was removed, a compaction at this
    /// revision removes. It is not above the compact revision.
    pub fn removed_through(&self) -> Revision {
        self.removed.through
    }

    /// Returns true if the moment is one of this view's store. If not, an installed state has replaced that store.
    pub fn has_moment(&self, moment: &Moment) -> bool {
        moment.store == self.removed.store
    }

    /// The state as it was at `moment`, read in this later view of the same store: every read gives what it gave then,
    /// but for values that lie elsewhere by now.
    ///
    /// Walks pass over what was written since. At the moment's current revision, counting is a walk.
    ///
    /// # Errors
    ///
    /// `Compacted` when something that the moment needs was physically removed, or this is a view of another store;
    /// `FutureRevision` when this is an earlier view.
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
        // SAFETY: the pin keeps everything reachable from the state alive while the view is borrowed. The compact
        // revision is not below what has been removed, and that is all that following a version's links relies on.
        Ok(unsafe { Snapshot::new(state) })
    }

    /// The state, for reading.
    pub fn snapshot(&self) -> Snapshot<'_> {
        // SAFETY: the pin keeps everything reachable from the state alive while the view is borrowed.
        unsafe { Snapshot::new(self.state) }
    }
}
