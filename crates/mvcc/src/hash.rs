//! Which versions HashKV covers.
//!
//! With C the compact revision and R the revision asked for, etcd feeds its checksum, in the order of
//! revisions, all versions with C < main <= R, and of those at or below C the ones that a compaction at R would
//! keep: the newest of their key at R, unless it is a tombstone. If a compaction at R would keep nothing at all,
//! etcd does not filter what is at or below C, and feeds what its last compaction left there: of each key the
//! newest at C, unless it is a tombstone. A tombstone at C itself is never fed. None of it depends on how far
//! the physical compaction came.
//!
//! A compaction at R computes the same hash, with C the compact revision before it, and one difference: a tombstone
//! at R itself counts as something that the compaction keeps. A negative revision covers nothing.

use std::sync::Arc;

use numbers::{ChangeId, Revision};

use crate::range::KeyRange;
use crate::version::Version;
use crate::view::{RevisionError, Snapshot, View};

/// A walk over the versions that HashKV covers, which can be done in slices.
#[derive(Clone)]
pub struct HashWalk {
    rev: Revision,
    /// The compact revision that the hash belongs to.
    compacted: Revision,
    /// True if this is the hash of a compaction at `rev`, whose snapshot is already compacted there.
    of_compaction: bool,
    stage: Stage,
}

#[derive(Clone)]
enum Stage {
    /// Looking for any key that is live at the revision, behind this one.
    FindLive(Option<Box<[u8]>>),
    /// Walking the versions from this one on. `newest_at`: what is at or below C must be its key's newest here.
    Feed {
        from: ChangeId,
        newest_at: Revision,
    },
    Done,
}

impl HashWalk {
    /// Begins at revision `rev`; 0 means the current one, and less selects nothing. All later calls must be given the
    /// same snapshot.
    pub fn new(snapshot: &Snapshot<'_>, rev: Revision) -> Result<HashWalk, RevisionError> {
        let compacted = snapshot.compact_revision();
        if rev < Revision(0) {
            return Ok(HashWalk { rev, compacted, of_compaction: false, stage: Stage::Done });
        }
        let rev = snapshot.resolve(rev)?;
        Ok(HashWalk { rev, compacted, of_compaction: false, stage: Stage::FindLive(None) })
    }

    /// Begins the hash that a compaction at `rev` computes, when the compact revision was `previous` before it. The
    /// snapshot is one published after that compaction became known, and before it removed anything.
    ///
    /// # Panics
    ///
    /// When the snapshot is of another time.
    pub fn of_compaction(snapshot: &Snapshot<'_>, previous: Revision, rev: Revision) -> HashWalk {
        assert!(previous < rev && rev <= snapshot.compact_revision(), "the compaction is known");
        HashWalk { rev, compacted: previous, of_compaction: true, stage: Stage::FindLive(None) }
    }

    /// The revision hashed.
    pub fn revision(&self) -> Revision {
        self.rev
    }

    /// The compact revision that the hash belongs to; -1 for none.
    pub fn compact_revision(&self) -> Revision {
        self.compacted
    }

    /// Looks at up to `budget` versions and calls `feed` with those that the hash covers, in order. Returns true if all
    /// are done.
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

    /// Does the same as [`HashWalk::step`], but ends early, behind the version for which `feed` returns false.
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
                    for version in &mut versions {
                        if left == 0 {
                            stage = Stage::Feed { from: version.id(), newest_at: *newest_at };
                            break;
                        }
                        left -= 1;
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
                // This one was not looked at yet; the one before it was the last.
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

    /// What is fed at or below C when no key is live at the revision.
    fn newest_at_without_live(&self, snapshot: &Snapshot<'_>) -> Revision {
        let keeps_tombstone = self.of_compaction
            && snapshot.stored(ChangeId::first_of(self.rev), self.rev).any(Version::is_tombstone);
        if keeps_tombstone { self.rev } else { self.compacted }
    }
}

/// Returns the versions that HashKV covers at `rev` (0: current), in order, for a caller that needs no slices.
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
