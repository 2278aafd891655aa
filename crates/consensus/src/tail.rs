//! Keeps the newest entries of the log in memory for raft.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use numbers::{EntryId, Index, Term};
use raft::eraftpb;
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::terms::Terms;

/// Entries after `before_index`, without a gap; the terms of earlier entries; and earlier entries that were
/// fetched for followers that lag behind. This type implements the interface through which the raft crate
/// reads a log.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Index of the first entry that the log on disk still has; `before_index + 1` if it has none up to
    /// `before_index`.
    pub first_index: u64,
    /// Index of the newest entry that was dropped from memory; all later entries are in memory.
    pub before_index: u64,
    /// Terms of the entries from `first_index - 1` or earlier to `before_index`.
    pub terms: Terms,
    pub entries: VecDeque<eraftpb::Entry>,
    pub hard_state: eraftpb::HardState,
    /// The members as of the last applied conf change.
    pub conf_state: eraftpb::ConfState,
    /// Index of the newest applied entry, which becomes the index of a requested snapshot.
    pub applied: u64,
    /// Payload bytes of the entries in `entries`.
    pub bytes: usize,
    /// Entries that were read back from disk for a follower and are not sent yet, by follower.
    pub fetched: BTreeMap<u64, Vec<eraftpb::Entry>>,
    /// Indexes at which raft has requested entries that are only on disk.
    pub wanted: RefCell<Vec<u64>>,
}

/// Maximum spare capacity for entries, in addition to those kept. A member that starts may read 100,000
/// entries or more, and later keeps at most a few thousand.
const SPACE_MAX: usize = 4096;

pub(crate) fn payload_bytes(entry: &eraftpb::Entry) -> usize {
    entry.data.len() + entry.context.len()
}

/// Returns the first entries whose bytes fit into `bytes_max`, but at least one if there is any.
pub(crate) fn limited<'a>(
    entries: impl Iterator<Item = &'a eraftpb::Entry>,
    bytes_max: u64,
) -> Vec<eraftpb::Entry> {
    let mut bytes = 0u64;
    let mut out = Vec::new();
    for entry in entries {
        bytes += payload_bytes(entry) as u64 + 16;
        if bytes > bytes_max && !out.is_empty() {
            break;
        }
        out.push(entry.clone());
    }
    out
}

impl Tail {
    pub fn last(&self) -> u64 {
        self.before_index + self.entries.len() as u64
    }

    /// Returns the entries in memory after the index `behind`, up to and including `through`.
    pub fn between(&self, behind: u64, through: u64) -> impl Iterator<Item = &eraftpb::Entry> {
        let at = |index: u64| {
            let at = usize::try_from(index.saturating_sub(self.before_index)).unwrap_or(usize::MAX);
            at.min(self.entries.len())
        };
        self.entries.range(at(behind)..at(through).max(at(behind)))
    }

    /// Appends entries. They replace existing entries at their indexes and all entries after them.
    pub fn append(&mut self, entries: &[eraftpb::Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.before_index, "raft rewrites an entry that was applied and forgotten");
        assert!(first.index <= self.last() + 1, "raft leaves a gap in the log");
        while self.last() >= first.index {
            if let Some(gone) = self.entries.pop_back() {
                self.bytes -= payload_bytes(&gone);
            }
        }
        self.bytes += entries.iter().map(payload_bytes).sum::<usize>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Drops entries up to and including `index` from memory; the log on disk still has them.
    pub fn forget(&mut self, index: u64) {
        while self.before_index < index {
            let Some(gone) = self.entries.pop_front() else { break };
            self.before_index = gone.index;
            self.terms.push(EntryId { index: Index(gone.index), term: Term(gone.term) });
            self.bytes -= payload_bytes(&gone);
        }
        // The capacity is reduced only after it is many times too large, so moving the remaining entries
        // costs little per dropped entry.
        let len = self.entries.len();
        if self.entries.capacity() > 8 * len + SPACE_MAX {
            self.entries.shrink_to(2 * len + SPACE_MAX / 2);
        }
    }

    /// Records that the log on disk no longer has entries below `first`. Drops these entries from memory,
    /// too.
    pub fn discard(&mut self, first: u64) {
        if first <= self.first_index {
            return;
        }
        self.forget(first - 1);
        self.first_index = first;
        self.terms.discard(Index(first - 1));
    }

    /// Drops all entries, and lets the log begin after the snapshot.
    pub fn restore(&mut self, metadata: &eraftpb::SnapshotMetadata) {
        self.first_index = metadata.index + 1;
        self.before_index = metadata.index;
        self.terms = Terms::default();
        self.terms.push(EntryId { index: Index(metadata.index), term: Term(metadata.term) });
        self.entries.clear();
        self.bytes = 0;
        self.fetched.clear();
        self.conf_state = metadata.get_conf_state().clone();
    }

    pub fn term_of(&self, index: u64) -> Option<u64> {
        if index <= self.before_index {
            return self.terms.at(Index(index)).map(|term| term.0);
        }
        let at = usize::try_from(index - self.before_index - 1).ok()?;
        self.entries.get(at).map(|e| e.term)
    }
}

impl Storage for Tail {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState { hard_state: self.hard_state.clone(), conf_state: self.conf_state.clone() })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        if low < self.first_index {
            return Err(StorageError::Compacted.into());
        }
        if low > self.before_index {
            let skip = usize::try_from(low - self.before_index - 1).unwrap_or(usize::MAX);
            let take = usize::try_from(high.saturating_sub(low)).unwrap_or(usize::MAX);
            return Ok(limited(self.entries.iter().skip(skip).take(take), bytes_max));
        }
        // Entries that are not in memory are applied, so they never change, and entries that were fetched for
        // one follower are valid for any other.
        for entries in self.fetched.values() {
            let found = entries.iter().skip_while(|e| e.index < low).take_while(|e| e.index < high);
            if entries.first().is_some_and(|e| e.index <= low) {
                let found = limited(found, bytes_max);
                if !found.is_empty() {
                    return Ok(found);
                }
            }
        }
        // Raft needs such old entries only for followers. Entries that it needs for this node itself are
        // unapplied, and therefore in memory.
        assert!(context.can_async(), "raft needs entry {low}, which is applied and forgotten");
        self.wanted.borrow_mut().push(low);
        Err(StorageError::LogTemporarilyUnavailable.into())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index > self.last() {
            return Err(StorageError::Unavailable.into());
        }
        self.term_of(index).ok_or_else(|| StorageError::Compacted.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first_index)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// Returns a snapshot that has only the position and the members. The state itself is read when the
    /// snapshot is sent.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<eraftpb::Snapshot> {
        match self.term_of(self.applied) {
            Some(term) if self.applied > 0 && self.applied >= request_index => {
                let mut snapshot = eraftpb::Snapshot::default();
                let metadata = snapshot.mut_metadata();
                metadata.index = self.applied;
                metadata.term = term;
                metadata.set_conf_state(self.conf_state.clone());
                Ok(snapshot)
            }
            _ => Err(StorageError::SnapshotTemporarilyUnavailable.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_for_entries_that_are_forgotten_is_given_back() {
        let mut tail = Tail::default();
        let entries: Vec<_> =
            (1..=100_000).map(|index| eraftpb::Entry { index, ..eraftpb::Entry::default() }).collect();
        tail.append(&entries);
        tail.forget(10);
        assert!(tail.entries.capacity() >= 99_990);
        tail.forget(99_000);
        assert!(tail.entries.capacity() <= 1000 * 8 + SPACE_MAX, "space for {}", tail.entries.capacity());
        assert_eq!(
            tail.between(0, 100_000).map(|entry| entry.index).collect::<Vec<_>>(),
            Vec::from_iter(99_001..=100_000)
        );
        tail.forget(100_000);
        assert!(tail.entries.capacity() <= SPACE_MAX, "space for {}", tail.entries.capacity());
        assert_eq!((tail.last(), tail.bytes), (100_000, 0));
    }
}
