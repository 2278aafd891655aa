//! Writes a run of a checkpoint, block by block.

use mvcc::{Changes, Snapshot, Version};
use numbers::{ChangeId, LeaseId, Revision};

use crate::as_of::{AsOf, Overtaken};
use crate::codec::put_u64;
use crate::image::{BLOCK_BYTES, END, Entry, EntryWriter, Head, KEYS, LEASES};

/// Writer of one run of a checkpoint. It can be used on any thread and for any length of time, but it fails
/// if a version that it still needs is removed after a compaction.
pub struct RunWriter {
    state: AsOf,
    head: Head,
    from: Revision,
    stage: Stage,
    walk: Walk,
    entries: u64,
}

enum Stage {
    Head,
    /// Blocks of leases, of which the next one begins after this lease.
    Leases(Option<LeaseId>),
    Keys,
    End,
    Done,
}

impl RunWriter {
    /// Begins a run of the versions above revision `from`. If `from` is 0, begins a base run with everything
    /// that can be read.
    ///
    /// A delta run also contains deletions that can no longer be read, so its `state` must be read at a
    /// [moment of everything](mvcc::View::moment_of_everything), or be a view that is held.
    ///
    /// # Panics
    ///
    /// Panics if the state and the head are not from the same point in time, and later if a value is compressed
    /// although the head says that none is. Also panics if `from` is neither
    /// 0 nor between the head's `delta_from_min` and its revision, because such a run could not be restored.
    pub fn new(state: impl Into<AsOf>, head: Head, from: Revision) -> RunWriter {
        let state = state.into();
        assert_eq!(
            (state.moment().revision(), state.moment().compact_revision()),
            (head.revision, head.compact_revision),
            "head and state are of one moment"
        );
        assert!(
            from == Revision(0) || (from >= head.delta_from_min && from <= head.revision),
            "a delta run from {from} cannot follow: compaction went on to {}",
            head.delta_from_min
        );
        RunWriter { state, head, from, stage: Stage::Head, walk: Walk::base(), entries: 0 }
    }

    /// Returns the next block of up to about 128 KiB, or `None` after the last block. A head block with many
    /// users, leases or members may have some megabytes, and a block with a long key may be longer. The first
    /// call for a delta run sorts its versions.
    ///
    /// # Errors
    ///
    /// Returns an error if a version of the run was removed after a compaction. The run then cannot be
    /// finished.
    pub fn next_block(&mut self) -> Result<Option<Vec<u8>>, Overtaken> {
        match self.stage {
            Stage::Head => {
                self.stage = if self.head.has_leases_apart() { Stage::Leases(None) } else { Stage::Keys };
                if self.from > Revision(0) {
                    self.walk = Walk::delta(&self.state.slice()?.snapshot(), self.from);
                    self.state.intact()?;
                }
                let versions = match self.from {
                    Revision(0) => self.head.versions,
                    _ => self.walk.queue.len() as u64,
                };
                Ok(Some(self.head.encode_of_run(self.from, versions)))
            }
            Stage::Leases(behind) => {
                let mut block = vec![LEASES];
                match self.head.leases.encode_some(behind, BLOCK_BYTES, &mut block) {
                    None => {
                        self.stage = Stage::Keys;
                        self.next_block()
                    }
                    last => {
                        self.stage = Stage::Leases(last);
                        Ok(Some(block))
                    }
                }
            }
            Stage::Keys => {
                let mut block = Vec::with_capacity(BLOCK_BYTES + (4 << 10));
                block.push(KEYS);
                let mut writer = EntryWriter::default();
                let (entries, compressed_values) = (&mut self.entries, self.head.compressed_values);
                self.walk.go(&self.state.slice()?.snapshot(), |version| {
                    let is_known = compressed_values || !version.location().is_compressed();
                    assert!(is_known, "an older release would misread the run");
                    writer.put(version.key(), &Entry::of(version), &mut block);
                    *entries += 1;
                    block.len() < BLOCK_BYTES
                });
                self.state.intact()?;
                if self.walk.is_done() {
                    self.stage = Stage::End;
                }
                if block.len() > 1 { Ok(Some(block)) } else { self.next_block() }
            }
            Stage::End => {
                self.stage = Stage::Done;
                let mut block = vec![END];
                put_u64(&mut block, self.entries);
                Ok(Some(block))
            }
            Stage::Done => Ok(None),
        }
    }
}

/// A resumable walk over the versions of a run. It can stop between any two versions, even of the same key.
pub(crate) struct Walk {
    /// Ids of the versions that are visited first.
    queue: std::vec::IntoIter<ChangeId>,
    /// Position from which the walk continues once the queue is empty, with all versions of each following
    /// key; `None` if the walk ends with the queue.
    behind: Option<Behind>,
}

enum Behind {
    Start,
    Key(Vec<u8>),
}

impl Walk {
    pub fn base() -> Walk {
        Walk { queue: Vec::new().into_iter(), behind: Some(Behind::Start) }
    }

    pub fn delta(snapshot: &Snapshot<'_>, from: Revision) -> Walk {
        let mut versions: Vec<Version<'_>> =
            snapshot.written(from + 1, snapshot.current_revision()).collect();
        versions.sort_unstable_by(|a, b| a.key().cmp(b.key()).then_with(|| a.id().cmp(&b.id())));
        let queue: Vec<ChangeId> = versions.into_iter().map(Version::id).collect();
        Walk { queue: queue.into_iter(), behind: None }
    }

    pub fn is_done(&self) -> bool {
        self.queue.len() == 0 && self.behind.is_none()
    }

    /// Calls `visit` with each version, until `visit` returns false or the walk is done.
    pub fn go(&mut self, snapshot: &Snapshot<'_>, mut visit: impl FnMut(Version<'_>) -> bool) {
        self.walk::<false>(snapshot, |version, _| visit(version));
    }

    /// Calls `visit` like [`Walk::go`], and with true if the version is the last one of a leaf of the index, or if the
    /// rest of the leaf is better seen as a leaf of its own.
    pub fn go_by_leaves(&mut self, snapshot: &Snapshot<'_>, visit: impl FnMut(Version<'_>, bool) -> bool) {
        self.walk::<true>(snapshot, visit);
    }

    fn walk<const LEAVES: bool>(
        &mut self,
        snapshot: &Snapshot<'_>,
        mut visit: impl FnMut(Version<'_>, bool) -> bool,
    ) {
        let mut finder = Finder { snapshot, last: None, behind: None };
        while let Some(change) = self.queue.next() {
            let Some(version) = finder.version_at(change) else {
                assert!(snapshot.fault().is_some(), "what a moment needs is kept");
                return;
            };
            if !visit(version, LEAVES && self.queue.len() == 0) {
                return;
            }
        }
        let behind = match &self.behind {
            None => return,
            Some(Behind::Start) => None,
            Some(Behind::Key(key)) => Some(key.as_slice()),
        };
        let mut histories = snapshot.histories_after(behind);
        while let Some(version) = histories.next() {
            if visit(version, LEAVES && histories.is_at_leaf_end()) {
                continue;
            }
            // The walk stops inside the history of this key, so the next call first visits the rest of that
            // history.
            let rest: Vec<ChangeId> =
                histories.take_while(|next| next.key() == version.key()).map(Version::id).collect();
            self.queue = rest.into_iter();
            self.behind = Some(Behind::Key(version.key().to_vec()));
            return;
        }
        self.behind = None;
    }
}

/// Finds versions by id. A look-up is cheaper if the version was written directly after the version that the
/// previous look-up found. This is the case if one key was written repeatedly, or if keys were written in key
/// order.
struct Finder<'s, 'a> {
    snapshot: &'s Snapshot<'a>,
    last: Option<ChangeId>,
    /// Iterator over the versions written after `last`; `None` unless the last two look-ups found versions
    /// that were written one directly after the other.
    behind: Option<Changes<'a>>,
}

impl<'a> Finder<'_, 'a> {
    fn version_at(&mut self, change: ChangeId) -> Option<Version<'a>> {
        let is_in_row =
            self.last.replace(change).is_some_and(|last| change == ChangeId::first_of(last.main + 1));
        if !is_in_row {
            self.behind = None;
            return self.snapshot.version_at(change);
        }
        let snapshot = self.snapshot;
        let behind =
            self.behind.get_or_insert_with(|| snapshot.written(change.main, snapshot.current_revision()));
        match behind.next() {
            Some(version) if version.id() == change => Some(version),
            // The transaction that wrote the previous version has made more changes, so the iterator is at
            // one of these. The version is looked up in the index instead.
            _ => {
                self.behind = None;
                self.snapshot.version_at(change)
            }
        }
    }
}
