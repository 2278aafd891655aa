//! Keeps in each checkpoint the raft terms of the log entries that are only on disk, so that a leader can
//! find the entry from which a follower's log differs from its own without reading its own log from the disk.

use machine::Machine;
use numbers::{EntryId, Index, Term};

/// Maximum number of runs of entries with the same term. Older runs are forgotten, and a follower whose log
/// ends before the oldest remaining run gets a snapshot.
const RUNS_MAX: usize = 1024;

/// Terms of the entries in a part of the log, stored as the first entry of each run of consecutive entries
/// with the same term. Indexes and terms increase strictly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms(Vec<EntryId>);

impl Terms {
    /// Returns the terms of a log that starts after this entry.
    pub fn starting_at(entry: EntryId) -> Terms {
        Terms(vec![entry])
    }

    /// Adds the next entry of the log. If there are then more than 1024 runs, removes the oldest ones.
    pub fn push(&mut self, entry: EntryId) {
        if self.0.last().is_none_or(|run| run.term != entry.term) {
            self.0.push(entry);
            if self.0.len() > RUNS_MAX {
                self.0.drain(..self.0.len() - RUNS_MAX);
            }
        }
    }

    /// Removes terms that are not needed when the log starts at `first`: the runs before the one that
    /// contains the entry `first - 1`.
    pub fn forget(&mut self, first: Index) {
        let needed = self.0.iter().rposition(|run| run.index < first).unwrap_or(0);
        self.0.drain(..needed);
    }

    /// Returns the first index whose term is known; `None` if no term is known.
    pub fn first_index(&self) -> Option<Index> {
        self.0.first().map(|run| run.index)
    }

    /// Returns the term of the entry with this index; `None` if it is not known, because the entry is before the
    /// first run. The index must not be after the end of the log.
    pub fn at(&self, index: Index) -> Option<Term> {
        self.0.iter().rfind(|run| run.index <= index).map(|run| run.term)
    }

    /// Returns the term of the newest run; `None` if no term is known.
    pub fn newest(&self) -> Option<Term> {
        self.0.last().map(|run| run.term)
    }

    /// Returns the first entry of each run, oldest first.
    pub fn runs(&self) -> &[EntryId] {
        &self.0
    }

    /// Encodes the runs for a checkpoint: index and term of each run, eight bytes each, little-endian.
    pub fn write(&self) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|run| [run.index.0.to_le_bytes(), run.term.0.to_le_bytes()])
            .flatten()
            .collect()
    }

    /// Decodes the runs. If they do not match the machine's state, or are missing because an older release of
    /// Mainstay wrote the checkpoint, returns only the term of the last applied entry, or no term if no entry
    /// was applied.
    pub fn read(bytes: &[u8], machine: &Machine) -> Terms {
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let run = |pair: &[u8]| EntryId { index: Index(number(&pair[..8])), term: Term(number(&pair[8..])) };
        let runs: Vec<EntryId> = bytes.chunks_exact(16).map(run).collect();
        let ascending =
            runs.windows(2).all(|pair| pair[0].index < pair[1].index && pair[0].term < pair[1].term);
        let applied = EntryId { index: machine.applied_index, term: machine.applied_term };
        let ends = runs.last().is_some_and(|run| run.index <= applied.index && run.term == applied.term);
        if ascending && ends && bytes.len().is_multiple_of(16) {
            return Terms(runs);
        }
        if applied.index == Index(0) { Terms::default() } else { Terms::starting_at(applied) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> EntryId {
        EntryId { index: Index(index), term: Term(term) }
    }

    #[test]
    fn runs_come_back_and_forget_what_is_gone() {
        let mut terms = Terms::default();
        for (index, term) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 7)] {
            terms.push(entry(index, term));
        }
        assert_eq!(terms.runs(), [entry(1, 1), entry(3, 2), entry(5, 7)]);
        let at = |index| terms.at(Index(index));
        assert_eq!(
            [at(0), at(1), at(2), at(4), at(5)],
            [None, Some(Term(1)), Some(Term(1)), Some(Term(2)), Some(Term(7))]
        );
        let mut machine = Machine::new(machine::Rules { learners_max: 1 });
        machine.applied_index = Index(6);
        machine.applied_term = Term(7);
        assert_eq!(Terms::read(&terms.write(), &machine), terms);
        assert_eq!(Terms::read(&[], &machine).runs(), [entry(6, 7)]);
        assert_eq!(Terms::read(&[1; 16], &machine).runs(), [entry(6, 7)]);
        terms.forget(Index(4));
        assert_eq!(terms.runs(), [entry(3, 2), entry(5, 7)]);
        terms.forget(Index(3));
        assert_eq!(terms.runs(), [entry(3, 2), entry(5, 7)]);
    }
}
