//! Stores the terms of the log entries that are on disk and no longer in memory.

use std::collections::VecDeque;

use numbers::{EntryId, Index, Term};

use crate::event::Refusal;

/// Runs of equal terms over a range of the log, oldest first. Even a log of millions of entries has only as
/// many runs as it had elections.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    /// First entry of each run. Both indexes and terms are strictly increasing.
    runs: VecDeque<EntryId>,
}

impl Terms {
    /// Restores the terms up to and including `last`. `runs` contains the first entry of each run of equal
    /// terms; runs that begin after `last` are ignored.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the runs are not in order or contradict the term of `last`.
    pub fn restore(runs: &[EntryId], last: EntryId) -> Result<Terms, Refusal> {
        let mut terms = Terms::default();
        for &first in runs.iter().filter(|first| first.index <= last.index) {
            if let Some(before) = terms.runs.back()
                && (first.index <= before.index || first.term < before.term)
            {
                return Err(Refusal::because(format!(
                    "the log's terms are out of order at entry {}",
                    first.index
                )));
            }
            terms.push(first);
        }
        if terms.runs.back().is_some_and(|run| run.term > last.term) {
            return Err(Refusal::because(format!(
                "the log's terms contradict the term of entry {}",
                last.index
            )));
        }
        terms.push(last);
        // If the terms are known from entry 1 on, the term before it is known, too: index 0 has the term 0.
        if terms.runs.front().is_some_and(|run| run.index == Index(1)) {
            terms.runs.push_front(EntryId::default());
        }
        Ok(terms)
    }

    /// Adds the next entry. Its index must follow the last added index.
    pub fn push(&mut self, entry: EntryId) {
        if self.runs.back().is_none_or(|run| run.term != entry.term) {
            self.runs.push_back(entry);
        }
    }

    /// Returns the first index whose term is known.
    pub fn first(&self) -> Index {
        self.runs.front().map_or(Index(0), |run| run.index)
    }

    /// Returns the term of the entry at `index`, which must not be beyond the last added entry; `None` if the
    /// term is not known.
    pub fn at(&self, index: Index) -> Option<Term> {
        let after = self.runs.partition_point(|run| run.index <= index);
        self.runs.get(after.checked_sub(1)?).map(|run| run.term)
    }

    /// Drops the terms of the entries before `index`.
    pub fn discard(&mut self, index: Index) {
        while self.runs.get(1).is_some_and(|run| run.index <= index) {
            self.runs.pop_front();
        }
        if let Some(run) = self.runs.front_mut() {
            run.index = run.index.max(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> EntryId {
        EntryId { index: Index(index), term: Term(term) }
    }

    fn runs(all: &[(u64, u64)]) -> Vec<EntryId> {
        all.iter().map(|&(index, term)| entry(index, term)).collect()
    }

    fn at<const N: usize>(terms: &Terms, indexes: [u64; N]) -> [Option<u64>; N] {
        indexes.map(|index| terms.at(Index(index)).map(|term| term.0))
    }

    #[test]
    fn terms_of_runs() {
        let mut terms = Terms::restore(&runs(&[(1, 1), (5, 2), (9, 4)]), entry(12, 4)).expect("in order");
        assert_eq!(at(&terms, [0, 1, 4, 5, 8, 9, 12]), [0, 1, 1, 2, 2, 4, 4].map(Some));
        terms.push(entry(13, 6));
        terms.discard(Index(6));
        assert_eq!(terms.first(), Index(6));
        assert_eq!(at(&terms, [5, 6, 8, 9, 13]), [None, Some(2), Some(2), Some(4), Some(6)]);
    }

    #[test]
    fn only_the_applied_entry_is_known_without_runs() {
        let terms = Terms::restore(&runs(&[]), entry(7, 3)).expect("nothing to contradict");
        assert_eq!((terms.first(), at(&terms, [6, 7])), (Index(7), [None, Some(3)]));
    }

    #[test]
    fn runs_out_of_order_are_refused() {
        Terms::restore(&runs(&[(5, 2), (3, 3)]), entry(9, 3)).expect_err("indexes fall");
        Terms::restore(&runs(&[(1, 3), (3, 2)]), entry(9, 3)).expect_err("terms fall");
        Terms::restore(&runs(&[(1, 5)]), entry(9, 3)).expect_err("a term beyond the applied one");
    }
}
