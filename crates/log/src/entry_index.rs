//! Keeps the locations of the raft entries in memory, with four bytes per entry, so that an entry can be read
//! by its index.

use std::collections::BTreeMap;

use numbers::{EntryId, Index, Term};

/// Maps a raft index to the segment and the offset of the entry's record. The current entries in one segment
/// have contiguous indexes (a run). Adding an entry with an existing index drops the old entry and all
/// entries with higher indexes, in this segment and in earlier ones.
#[derive(Default)]
pub(crate) struct EntryIndex {
    runs: BTreeMap<u32, Run>,
    /// Segments at the log's beginning that were not read when the log was opened: the sequence number of
    /// each, with the raft index that was expected next when the segment began.
    pub unread: BTreeMap<u32, Index>,
    /// Lowest index that may still be read. Entries below this index are treated as unknown.
    pub floor: Index,
    /// Index after the last entry: the index of the next appended entry, unless that entry replaces an
    /// earlier one.
    pub next: Index,
}

struct Run {
    first: Index,
    offsets: Vec<u32>,
    /// Index and term of the first entry of each sequence of entries with the same term, in ascending order
    /// of the indexes.
    terms: Vec<EntryId>,
}

impl Run {
    fn end(&self) -> Index {
        self.first + self.offsets.len() as u64
    }
}

impl EntryIndex {
    /// Returns an empty index whose first entry is expected to have the index `next`.
    pub fn starting_at(next: Index) -> EntryIndex {
        EntryIndex { next, ..EntryIndex::default() }
    }

    /// Adds an entry, whose index must be at most [`EntryIndex::next`]. If the index is lower, the existing
    /// entry with that index and all later ones are dropped first.
    pub fn push(&mut self, seq: u32, index: Index, term: Term, offset: u32) {
        assert!(index <= self.next, "entry {index} leaves a gap after {}", self.next.previous());
        if index < self.next {
            self.truncate(index);
        }
        let run =
            self.runs.entry(seq).or_insert(Run { first: index, offsets: Vec::new(), terms: Vec::new() });
        assert_eq!(run.end(), index, "a segment's entries are contiguous");
        if run.terms.last().is_none_or(|run| run.term != term) {
            run.terms.push(EntryId { index, term });
        }
        run.offsets.push(offset);
        self.next = index + 1;
    }

    /// Drops all entries whose index is `index` or higher.
    pub fn truncate(&mut self, index: Index) {
        while let Some(mut last) = self.runs.last_entry() {
            let run = last.get_mut();
            if run.end() <= index {
                break;
            }
            if run.first >= index {
                last.remove();
                continue;
            }
            run.offsets.truncate((index - run.first) as usize);
            run.terms.retain(|run| run.index < index);
            break;
        }
        self.next = self.next.min(index);
    }

    /// Drops all entries, because the log restarts with an entry that has the index `next`.
    pub fn reset(&mut self, next: Index) {
        self.runs.clear();
        self.unread.clear();
        self.next = next;
    }

    /// Removes a segment. Entries in this segment and in earlier ones can no longer be read.
    pub fn remove_segment(&mut self, seq: u32) {
        if let Some(run) = self.runs.remove(&seq) {
            self.floor = self.floor.max(run.end());
        }
        if self.unread.contains_key(&seq) {
            self.unread.retain(|kept, _| *kept > seq);
        }
    }

    /// Frees the memory for the locations of entries below `floor`. From now on these entries cannot be read.
    pub fn forget_below(&mut self, floor: Index) {
        self.floor = self.floor.max(floor);
        let floor = self.floor;
        self.runs.retain(|_, run| run.end() > floor);
        // Drop the unread segments that contain only entries below the floor. The entries of a segment begin
        // at the index recorded in `unread`, or below it. So the last segment whose recorded index is not
        // above the floor may contain the entry at the floor: this segment and the later ones are kept.
        let needed = self.unread.iter().filter(|(_, first)| **first <= floor).map(|(seq, _)| *seq).max();
        if self.runs.values().next().is_some_and(|run| run.first <= floor) {
            self.unread.clear();
        } else if let Some(needed) = needed {
            self.unread.retain(|seq, _| *seq >= needed);
        }
    }

    /// Returns the lowest index from which on the locations of all entries are known.
    pub fn first_known(&self) -> Index {
        let mut first = self.next;
        for run in self.runs.values().rev() {
            if run.end() != first {
                break;
            }
            first = run.first;
        }
        first.max(self.floor)
    }

    /// Returns the index of the first entry that can be read, including entries in segments whose records
    /// have not been read yet.
    pub fn first(&self) -> Index {
        match self.unread.values().min() {
            Some(first) => (*first).min(self.first_known()).max(self.floor),
            None => self.first_known(),
        }
    }

    /// Returns the term of an entry; `None` if its location is not known.
    pub fn term(&self, index: Index) -> Option<Term> {
        let run = self.run(index)?;
        run.terms.iter().rev().find(|run| run.index <= index).map(|run| run.term)
    }

    /// Returns the segment and the record offset of an entry; `None` if the location is not known.
    pub fn place(&self, index: Index) -> Option<(u32, u32)> {
        if index < self.floor {
            return None;
        }
        self.runs.iter().rev().find_map(|(seq, run)| {
            let nth = usize::try_from(index.0.checked_sub(run.first.0)?).ok()?;
            run.offsets.get(nth).map(|offset| (*seq, *offset))
        })
    }

    /// Adds the locations of the entries in `older`, an index of segments that precede those of this index
    /// and were read later.
    pub fn prepend(&mut self, mut older: EntryIndex) {
        older.truncate(self.first_known());
        for (seq, run) in older.runs {
            self.runs.entry(seq).or_insert(run);
        }
    }

    fn run(&self, index: Index) -> Option<&Run> {
        self.runs.values().rev().find(|run| run.first <= index && index < run.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_segments() -> EntryIndex {
        let mut index = EntryIndex::starting_at(Index(1));
        for i in 1..=9u64 {
            index.push((i / 4) as u32, Index(i), Term(1 + i / 6), 100 * i as u32);
        }
        index
    }

    #[test]
    fn places_and_terms_are_found() {
        let index = three_segments();
        assert_eq!((index.first(), index.next), (Index(1), Index(10)));
        assert_eq!(index.place(Index(3)), Some((0, 300)));
        assert_eq!(index.place(Index(4)), Some((1, 400)));
        assert_eq!(index.place(Index(10)), None);
        assert_eq!(
            (index.term(Index(5)), index.term(Index(6)), index.term(Index(10))),
            (Some(Term(1)), Some(Term(2)), None)
        );
    }

    #[test]
    fn an_index_given_again_replaces_the_tail_across_segments() {
        let mut index = three_segments();
        index.push(2, Index(3), Term(7), 4242);
        assert_eq!(
            (index.next, index.place(Index(3)), index.place(Index(4)), index.term(Index(3))),
            (Index(4), Some((2, 4242)), None, Some(Term(7)))
        );
        assert_eq!(index.place(Index(2)), Some((0, 200)));
    }

    #[test]
    fn a_removed_segment_takes_all_before_it_along() {
        let mut index = three_segments();
        index.remove_segment(1);
        assert_eq!(
            (index.first(), index.place(Index(7)), index.place(Index(8))),
            (Index(8), None, Some((2, 800)))
        );
        index.forget_below(Index(9));
        assert_eq!(
            (index.first(), index.place(Index(8)), index.place(Index(9))),
            (Index(9), None, Some((2, 900)))
        );
    }
}
