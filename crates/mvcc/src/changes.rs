//! Reads versions in the order in which they were written.
//!
//! The tree of revisions contains the versions after the change `settled`. The versions through that change,
//! if the store has a base, are listed by the base's blocks of changes. The lists never change; versions that
//! they contain may have been removed since. An entry of a list is valid if and only if the tree of keys still
//! has that version.

use numbers::{ChangeId, Revision};

use crate::base::{Base, BlockId, Loaded};
use crate::cursor::Cursor;
use crate::node::{ByKey, ByRevision, Inner, Leaf, Node, NodePtr, STUB, Stub};
use crate::version::Version;
use crate::view::{RevisionError, Snapshot};

impl<'a> Snapshot<'a> {
    fn revisions(&self) -> Option<Node<'a, ByRevision>> {
        // SAFETY: the trees of a snapshot are alive and unchanged for `'a`.
        unsafe { Node::open(self.state().revisions) }
    }

    /// Returns all versions, including tombstones, with main revisions from `from` to `through` (at most the
    /// current revision), in the order in which they were written. Returns `Compacted` if `from` is below the
    /// compact revision; the iterator is empty if `from` is above the current revision.
    pub fn changes(&self, from: Revision, through: Revision) -> Result<Changes<'a>, RevisionError> {
        if from < self.state().compacted && self.state().compacted >= Revision(0) {
            return Err(RevisionError::Compacted);
        }
        Ok(self.walk(ChangeId::first_of(from), false, through, self.state().compacted))
    }

    /// Returns changes like [`Snapshot::changes`], but starts after `change`.
    pub fn changes_after(&self, change: ChangeId, through: Revision) -> Result<Changes<'a>, RevisionError> {
        if change.main < self.state().compacted {
            return Err(RevisionError::Compacted);
        }
        Ok(self.walk(change, true, through, self.state().compacted))
    }

    /// Returns all versions that physically exist with these main revisions. It never fails. Below the
    /// compact revision, versions that the compaction made unreadable may be missing, and the result does not
    /// show which ones.
    pub fn written(&self, from: Revision, through: Revision) -> Changes<'a> {
        self.stored(ChangeId::first_of(from), through)
    }

    /// Returns versions like [`Snapshot::written`], but starts at the change `from` instead of a main
    /// revision.
    pub fn written_from(&self, from: ChangeId, through: Revision) -> Changes<'a> {
        self.stored(from, through)
    }

    /// Returns the versions that physically exist after `change`, in the order in which they were written,
    /// without the puts that the compact revision made unreadable. It is used to send a state to a member
    /// that may already have a part of that state. Which tombstones below the compact revision still exist
    /// depends on the progress of removal.
    ///
    /// A call of `next` skips all unreadable puts before the next result. There can be millions of them until
    /// compaction has removed them. [`Changes::look`] visits only one version per call.
    pub fn written_after(&self, change: ChangeId) -> Changes<'a> {
        self.walk(change, true, self.state().current, self.state().compacted)
    }

    /// Returns the versions that physically exist, from the change `from` to the revision `through`.
    pub(crate) fn stored(&self, from: ChangeId, through: Revision) -> Changes<'a> {
        self.walk(from, false, through, Revision::MIN)
    }

    /// Returns the version written by a change, which may be a tombstone, if it still exists. The code that
    /// relocates values within the log calls it to check whether a value is still needed.
    pub fn version_at(&self, change: ChangeId) -> Option<Version<'a>> {
        if change <= self.state().settled {
            let mut settled = Settled::seek(self, change, false)?;
            return settled.look().filter(|looked| looked.id == change)?.version;
        }
        let slot = Cursor::<ByRevision>::find(self.revisions(), change)?;
        // SAFETY: slots of a snapshot's trees hold records that are alive for `'a`.
        Some(unsafe { slot.version() })
    }

    /// Returns the versions that physically exist from the change `from` on, or after it if `after` is true,
    /// and that a compaction at `compacted` keeps.
    fn walk(&self, from: ChangeId, after: bool, through: Revision, compacted: Revision) -> Changes<'a> {
        let settled = if from <= self.state().settled { Settled::seek(self, from, after) } else { None };
        let cursor = Cursor::seek(self.revisions(), from, after);
        Changes { settled, cursor, through: through.min(self.state().current), compacted }
    }

    /// Returns the version of the tree of keys that an entry of the newest base's list of changes stands for,
    /// or `None` if the version was removed. `number` is the number of the block of keys that contains it.
    fn settled_version(&self, listed: Version<'a>, number: u32) -> Option<Version<'a>> {
        let mut pointer: NodePtr = self.state().keys;
        if pointer.is_null() {
            return None;
        }
        // SAFETY: the trees and bases of a snapshot are alive and unchanged for `'a`; the level tells the type
        // of a node.
        unsafe {
            loop {
                match (*pointer).level {
                    0 => {
                        let leaf = &*pointer.cast::<Leaf>();
                        let newest: Version<'a> = leaf.version(leaf.find::<ByKey>(listed.key()).ok()?);
                        return newest.stored(listed.id(), self.state().removed_before);
                    }
                    STUB => {
                        let stub = &*pointer.cast::<Stub>();
                        if std::ptr::eq(&raw const *stub.base, self.state().bases.newest) {
                            return (stub.number == number).then_some(listed);
                        }
                        // The stub refers to the base before, because the newest one is being adopted.
                        let leaf: &'a Leaf = &stub.base.open(BlockId::Keys(stub.number))?.leaf;
                        let version = leaf.version(leaf.find::<ByKey>(listed.key()).ok()?);
                        return (version.id() == listed.id()).then_some(version);
                    }
                    _ => {
                        let inner = &*pointer.cast::<Inner<ByKey>>();
                        pointer = inner.children[inner.route(listed.key())];
                    }
                }
            }
        }
    }
}

/// A position in the list of settled changes.
struct Settled<'a> {
    snapshot: Snapshot<'a>,
    base: &'a Base,
    /// Number of the current block of changes, and the position of the next entry in it.
    number: u32,
    at: usize,
    block: Option<&'a Loaded>,
}

impl<'a> Settled<'a> {
    /// Returns the position of the first entry not below `from`; with `after` true, of the first entry above
    /// it.
    fn seek(snapshot: &Snapshot<'a>, from: ChangeId, after: bool) -> Option<Settled<'a>> {
        // SAFETY: the bases of a snapshot are alive for `'a`.
        let base = unsafe { snapshot.state().bases.newest() }?;
        let blocks = base.blocks();
        let (mut low, mut high) = (0, blocks.change_blocks());
        while low < high {
            let middle = low.midpoint(high);
            if blocks.change_block(middle).first <= from { low = middle + 1 } else { high = middle }
        }
        let mut settled =
            Settled { snapshot: *snapshot, base, number: low.saturating_sub(1), at: 0, block: None };
        settled.open();
        if let Some(block) = settled.block {
            settled.at = match block.leaf.find::<ByRevision>(from) {
                Ok(at) => at + usize::from(after),
                Err(at) => at,
            };
        }
        Some(settled)
    }

    fn open(&mut self) {
        // SAFETY: the base is one of the snapshot's, which keeps its blocks alive for `'a`.
        self.block = unsafe { self.base.open(BlockId::Changes(self.number)) };
    }

    /// Returns the next entry without moving; `None` after the last one, and after a fault.
    fn peek(&mut self) -> Option<Version<'a>> {
        while self.at >= self.block?.leaf.len() {
            self.number += 1;
            self.at = 0;
            self.open();
        }
        let version = self.block?.leaf.version(self.at);
        (version.id() <= self.snapshot.state().settled).then_some(version)
    }

    /// Returns the next entry and moves behind it.
    fn look(&mut self) -> Option<Looked<'a>> {
        let listed = self.peek()?;
        let number = self.block?.number(self.at);
        self.at += 1;
        Some(Looked { id: listed.id(), version: self.snapshot.settled_version(listed, number) })
    }
}

/// Iterator over versions in the order in which they were written.
pub struct Changes<'a> {
    /// Position in the list of settled changes, which come first; `None` after them.
    settled: Option<Settled<'a>>,
    cursor: Cursor<'a, ByRevision>,
    through: Revision,
    /// Compact revision. Versions that a compaction at this revision removes are skipped, even while they
    /// physically exist.
    compacted: Revision,
}

/// Result of one step over the stored versions; see [`Changes::look`].
#[derive(Clone, Copy)]
pub struct Looked<'a> {
    /// Id of the change that wrote the version.
    pub id: ChangeId,
    /// The version; `None` if a compaction made it unreadable.
    pub version: Option<Version<'a>>,
}

impl<'a> Changes<'a> {
    /// Advances by one stored version, even if that version is not returned. It is meant for callers whose
    /// steps must be short, even if millions of versions wait to be removed after a compaction.
    pub fn look(&mut self) -> Option<Looked<'a>> {
        let looked = match self.look_at_settled() {
            Some(looked) => looked,
            None => {
                let version = self.cursor.version().filter(|version| version.main() <= self.through)?;
                self.cursor.advance(false);
                Looked { id: version.id(), version: Some(version) }
            }
        };
        let is_readable = |version: &Version<'_>| {
            version.main() > self.compacted || version.is_tombstone() || version.is_newest_at(self.compacted)
        };
        Some(Looked { id: looked.id, version: looked.version.filter(is_readable) })
    }

    /// Advances by one entry of the list of settled changes. Returns `None` if no entry is left that may be
    /// returned; then the versions after it are those of the tree of revisions.
    fn look_at_settled(&mut self) -> Option<Looked<'a>> {
        let settled = self.settled.as_mut()?;
        let Some(next) = settled.peek() else {
            self.settled = None;
            return None;
        };
        if next.main() > self.through {
            return None;
        }
        settled.look()
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
