//! Selects the versions that HashKV covers, as etcd does.
//!
//! Let C be the compact revision and R the requested revision. etcd hashes, in the order of revisions, all
//! versions with C < main <= R, and in addition the versions at or below C that a compaction at R would keep:
//! a version that is the newest of its key at R and no tombstone. If a compaction at R would keep nothing at
//! all, etcd does not filter the versions at or below C. In that case it hashes all versions that its last
//! compaction left: for each key the newest version at C, unless it is a tombstone. A tombstone at C itself
//! is never hashed. None of this depends on the progress of physical compaction.
//!
//! A compaction at R computes the same hash, with the compact revision before this compaction as C, and with
//! one difference: a tombstone at R itself counts as a version that the compaction keeps. A hash at a
//! negative R covers no version.

use std::sync::Arc;

use numbers::{ChangeId, Revision};

use crate::range::KeyRange;
use crate::version::Version;
use crate::view::{RevisionError, Snapshot, View};

/// A resumable walk over the versions that HashKV covers.
#[derive(Clone)]
pub struct HashWalk {
    rev: Revision,
    /// Compact revision for which the hash is computed (C).
    compacted: Revision,
    /// True for the hash of a compaction at `rev`. In that case the compact revision of the snapshot is at
    /// least `rev`.
    of_compaction: bool,
    stage: Stage,
}

#[derive(Clone)]
enum Stage {
    /// Searches for any key that is live at the hashed revision. The search starts after this key.
    FindLive(Option<Box<[u8]>>),
    /// Walks the versions from this change on. A version at or below C must be the newest of its key at
    /// `newest_at`.
    Feed {
        from: ChangeId,
        newest_at: Revision,
    },
    Done,
}

impl HashWalk {
    /// Starts a walk at revision `rev`; 0 means the current revision, and a negative revision selects
    /// nothing. All later calls must pass the same snapshot.
    pub fn new(snapshot: &Snapshot<'_>, rev: Revision) -> Result<HashWalk, RevisionError> {
        let compacted = snapshot.compact_revision();
        if rev < Revision(0) {
            return Ok(HashWalk { rev, compacted, of_compaction: false, stage: Stage::Done });
        }
        let rev = snapshot.resolve(rev)?;
        Ok(HashWalk { rev, compacted, of_compaction: false, stage: Stage::FindLive(None) })
    }

    /// Starts the hash of a compaction at `rev`, where `previous` is the compact revision before the
    /// compaction. The snapshot must be published after the compaction was applied and before any version was
    /// removed.
    ///
    /// # Panics
    ///
    /// Panics if the compact revision of the snapshot is below `rev`, or `previous` is not below `rev`.
    pub fn of_compaction(snapshot: &Snapshot<'_>, previous: Revision, rev: Revision) -> HashWalk {
        assert!(previous < rev && rev <= snapshot.compact_revision(), "the compaction is known");
        HashWalk { rev, compacted: previous, of_compaction: true, stage: Stage::FindLive(None) }
    }

    /// Returns the hashed revision.
    pub fn revision(&self) -> Revision {
        self.rev
    }

    /// Returns the compact revision for which the hash is computed; -1 if there is none.
    pub fn compact_revision(&self) -> Revision {
        self.compacted
    }

    /// Visits up to `budget` versions and calls `feed` with those that the hash covers, in order. Returns
    /// true if the walk is done.
    pub fn step(
        &mut self,
        snapshot: &Snapshot<'_>,
        budget: usize,
        mut feed: impl FnMut(Version<'_>),
    ) -> bool {
        self.step_while(snapshot, budget, |version| {
            feed(version);
            true
        })
    }

    /// Walks like [`HashWalk::step`], but stops after the version for which `feed` returns false.
    pub fn step_while(
        &mut self,
        snapshot: &Snapshot<'_>,
        budget: usize,
        mut feed: impl FnMut(Version<'_>) -> bool,
    ) -> bool {
        let compacted = snapshot.compact_revision();
        assert!(if self.of_compaction { compacted >= self.rev } else { compacted == self.compacted });
        assert!(snapshot.current_revision() >= self.rev);
        let mut left = budget.max(1);
        while left > 0 {
            match &mut self.stage {
                Stage::Done => return true,
                Stage::FindLive(behind) => {
                    let behind = behind.take();
                    self.stage = self.find_live(snapshot, behind.as_deref(), &mut left);
                }
                Stage::Feed { from, newest_at } => {
                    let mut stage = Stage::Done;
                    let mut versions = snapshot.stored(*from, self.rev);
                    while let Some(looked) = versions.look() {
                        if left == 0 {
                            stage = Stage::Feed { from: looked.id, newest_at: *newest_at };
                            break;
                        }
                        left -= 1;
                        let Some(version) = looked.version else { continue };
                        let is_covered = version.main() > self.compacted
                            || (!version.is_tombstone() && version.is_newest_at(*newest_at));
                        if is_covered && !feed(version) {
                            left = 0;
                        }
                    }
                    self.stage = stage;
                }
            }
        }
        matches!(self.stage, Stage::Done)
    }

    fn find_live(&self, snapshot: &Snapshot<'_>, behind: Option<&[u8]>, left: &mut usize) -> Stage {
        let from = ChangeId::first_of(Revision::MIN);
        if self.compacted < Revision(0)
            || (self.rev == snapshot.current_revision() && snapshot.live_keys() > 0)
        {
            return Stage::Feed { from, newest_at: self.rev };
        }
        if self.rev == snapshot.current_revision() {
            return Stage::Feed { from, newest_at: self.newest_at_without_live(snapshot) };
        }
        let range = behind.map_or(KeyRange::ALL, |key| KeyRange::ALL.after(key));
        let mut cursor = range.seek(snapshot);
        while let Some(newest) = cursor.version() {
            if *left == 0 {
                // The budget ran out before this key was visited, so the next step has to continue after the
                // previous key.
                cursor.retreat(false);
                let last = cursor.version().map(|version| Box::from(version.key()));
                return Stage::FindLive(last);
            }
            *left -= 1;
            if newest.at(self.rev).is_some_and(|version| !version.is_tombstone()) {
                return Stage::Feed { from, newest_at: self.rev };
            }
            cursor.advance(false);
        }
        Stage::Feed { from, newest_at: self.newest_at_without_live(snapshot) }
    }

    /// Returns the revision for [`Stage::Feed`] in the case that no key is live at the hashed revision.
    fn newest_at_without_live(&self, snapshot: &Snapshot<'_>) -> Revision {
        let keeps_tombstone = self.of_compaction
            && snapshot.stored(ChangeId::first_of(self.rev), self.rev).any(Version::is_tombstone);
        if keeps_tombstone { self.rev } else { self.compacted }
    }
}

/// Calls `feed` with the versions that HashKV covers at `rev` (0 means the current revision), in order, in
/// one step.
pub fn hash_versions<'v>(
    view: &'v Arc<View>,
    rev: Revision,
    mut feed: impl FnMut(Version<'_>),
) -> Result<(), RevisionError> {
    let snapshot: Snapshot<'v> = view.snapshot();
    let mut walk = HashWalk::new(&snapshot, rev)?;
    while !walk.step(&snapshot, usize::MAX, &mut feed) {}
    Ok(())
}
