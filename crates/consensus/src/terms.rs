//! Terms of entries that are only on disk.

use std::collections::VecDeque;

/// Runs of equal terms over a range of the log, oldest first. A log of millions of entries has as many runs as it had
/// elections.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    /// The first index of a run, and its term. Both grow strictly.
    runs: VecDeque<(u64, u64)>,
}

impl Terms {
    /// Runs as restored, up to and including `last`, whose term is `last_term`.
    ///
    /// # Errors
    ///
    /// When the runs are not in order or contradict `last_term`.
    pub fn restore(runs: &[(u64, u64)], last: u64, last_term: u64) -> Result<Terms, String> {
        let mut terms = Terms::default();
        for &(first, term) in runs.iter().filter(|(first, _)| *first <= last) {
            if let Some(&(first_before, term_before)) = terms.runs.back()
                && (first <= first_before || term < term_before)
            {
                return Err(format!("the log's terms are out of order at entry {first}"));
            }
            terms.push(first, term);
        }
        if terms.runs.back().is_some_and(|run| run.1 > last_term) {
            return Err(format!("the log's terms contradict the term of entry {last}"));
        }
        terms.push(last, last_term);
        // Before the first entry of all stands nothing, in the term 0.
        if terms.runs.front().is_some_and(|run| run.0 == 1) {
            terms.runs.push_front((0, 0));
        }
        Ok(terms)
    }

    /// The entry at `index`, which follows all those known, has this term.
    pub fn push(&mut self, index: u64, term: u64) {
        if self.runs.back().is_none_or(|run| run.1 != term) {
            self.runs.push_back((index, term));
        }
    }

    /// The first index whose term is known.
    pub fn first(&self) -> u64 {
        self.runs.front().map_or(0, |run| run.0)
    }

    /// The term at `index`, which must not be beyond the last entry pushed.
    pub fn at(&self, index: u64) -> Option<u64> {
        let after = self.runs.partition_point(|run| run.0 <= index);
        self.runs.get(after.checked_sub(1)?).map(|run| run.1)
    }

    /// Forgets the terms before `index`.
    pub fn discard(&mut self, index: u64) {
        while self.runs.get(1).is_some_and(|run| run.0 <= index) {
            self.runs.pop_front();
        }
        if let Some(run) = self.runs.front_mut() {
            run.0 = run.0.max(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_of_runs() {
        let mut terms = Terms::restore(&[(1, 1), (5, 2), (9, 4)], 12, 4).expect("in order");
        assert_eq!([0, 1, 4, 5, 8, 9, 12].map(|i| terms.at(i)), [0, 1, 1, 2, 2, 4, 4].map(Some));
        terms.push(13, 6);
        terms.discard(6);
        assert_eq!(terms.first(), 6);
        assert_eq!([5, 6, 8, 9, 13].map(|i| terms.at(i)), [None, Some(2), Some(2), Some(4), Some(6)]);
    }

    #[test]
    fn only_the_applied_entry_is_known_without_runs() {
        let terms = Terms::restore(&[], 7, 3).expect("nothing to contradict");
        assert_eq!((terms.first(), terms.at(6), terms.at(7)), (7, None, Some(3)));
    }

    #[test]
    fn runs_out_of_order_are_refused() {
        Terms::restore(&[(5, 2), (3, 3)], 9, 3).expect_err("indexes fall");
        Terms::restore(&[(1, 3), (3, 2)], 9, 3).expect_err("terms fall");
        Terms::restore(&[(1, 5)], 9, 3).expect_err("a term beyond the applied one");
    }
}
