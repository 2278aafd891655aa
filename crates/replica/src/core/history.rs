//! Remembers facts about the entries of the log: their locations, their terms, and the first entry that the
//! log still has. [`History`] is the entry point.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use log::EntryPlace;
use numbers::{EntryId, Index, Location, Term};
use storage::terms::Terms;

use super::Fatal;

/// Interval at which the core asks the log for the index of its first entry.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum spare capacity for locations, in addition to those in use. A start reads 100,000 locations or
/// more, and most of that memory should be freed once the entries are applied.
const SPACE_MAX: usize = 4096;

/// Locations of the entries that are not applied yet, and terms of the applied entries.
pub(super) struct History {
    entries: log::Entries,
    /// Locations in log order, oldest first.
    locations: VecDeque<EntryPlace>,
    /// Terms of the applied entries, as far back as the log reaches.
    terms: Terms,
    /// Index of the last entry that was in the log when the member started.
    replayed_through: Index,
    next_look: Instant,
}

impl History {
    /// Returns the history after a start, from the locations of the entries that were read and the terms of
    /// the entries that the checkpoint covers.
    pub fn new(
        entries: log::Entries,
        locations: VecDeque<EntryPlace>,
        terms: Terms,
        now: Instant,
    ) -> History {
        let replayed_through = locations.back().map_or(Index(0), |last| last.index);
        History { entries, locations, terms, replayed_through, next_look: now }
    }

    /// Returns true if this entry was in the log when the member started.
    pub fn was_replayed(&self, index: Index) -> bool {
        index <= self.replayed_through
    }

    /// Records the locations of entries that are on disk now.
    pub fn located(&mut self, locations: Vec<EntryPlace>) {
        for located in locations {
            // A new entry at an index replaces the old entry at that index and all later entries in the log.
            // So their locations are removed here.
            while self.locations.back().is_some_and(|last| last.index >= located.index) {
                self.locations.pop_back();
            }
            self.locations.push_back(located);
        }
    }

    /// Removes and returns the location of this entry, and forgets the locations of earlier entries.
    ///
    /// # Errors
    ///
    /// [`Fatal::Unlocated`] if the entry is not on disk, which is a bug in Mainstay.
    pub fn take_location(&mut self, index: Index) -> Result<Location, Fatal> {
        while let Some(&EntryPlace { index: at, location }) = self.locations.front() {
            if at > index {
                break;
            }
            self.locations.pop_front();
            if at == index {
                self.give_space_back();
                return Ok(location);
            }
        }
        Err(Fatal::Unlocated { index })
    }

    fn give_space_back(&mut self) {
        let len = self.locations.len();
        // The capacity is reduced only after it is many times too large, so moving the remaining locations
        // costs little per removed location.
        if self.locations.capacity() > 8 * len + SPACE_MAX {
            self.locations.shrink_to(2 * len + SPACE_MAX / 2);
        }
    }

    /// Records that an entry was applied. Returns true if its term is newer than the terms of all earlier
    /// entries.
    pub fn applied(&mut self, index: Index, term: Term) -> bool {
        let newer = self.terms.newest().is_some_and(|newest| newest < term);
        self.terms.push(EntryId { index, term });
        newer
    }

    /// Records that the state of another member, which ends with this entry, has replaced the current state.
    pub fn restored(&mut self, index: Index, term: Term) {
        self.locations.clear();
        self.terms = Terms::starting_at(EntryId { index, term });
    }

    /// Returns the terms of the applied entries back to the first entry that the log has now.
    pub fn terms(&mut self) -> Terms {
        self.terms.forget(self.entries.first_index());
        self.terms.clone()
    }

    /// Returns the terms of the applied entries, like [`Self::terms`] but without asking the log for its
    /// first entry: the result may begin with entries that the log has deleted since the last call of
    /// [`Self::terms`].
    pub fn known_terms(&self) -> Terms {
        self.terms.clone()
    }

    /// Returns the index of the first entry that the log still has. Returns `None` if less than
    /// [`LOOK_INTERVAL`] has passed since the last result.
    pub fn first_index(&mut self, now: Instant) -> Option<Index> {
        if now < self.next_look {
            return None;
        }
        self.next_look = now + LOOK_INTERVAL;
        Some(self.entries.first_index())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use numbers::{ClusterId, MemberId};

    use super::*;

    fn history(now: Instant) -> History {
        let options = log::Options {
            by_hand: true,
            secret_seed: Some(1),
            ..log::Options::new("/log", ClusterId(1), MemberId(2))
        };
        let disk = Arc::new(disk::MemDisk::new(1));
        let opened = log::Log::open(options, disk, Index(1), &mut |_| {}, Box::new(|_| {}));
        let (log, _) = opened.unwrap_or_else(|e| panic!("{e}"));
        History::new(log.entries(), VecDeque::from([place(3, 1)]), Terms::starting_at(entry(2, 1)), now)
    }

    fn entry(index: u64, term: u64) -> EntryId {
        EntryId { index: Index(index), term: Term(term) }
    }

    fn place(index: u64, offset: u32) -> EntryPlace {
        EntryPlace { index: Index(index), location: Location::new(1, offset) }
    }

    #[test]
    fn an_entry_that_replaces_others_takes_their_places() {
        let mut history = history(Instant::now());
        assert!(history.was_replayed(Index(3)) && !history.was_replayed(Index(4)));
        history.located(vec![place(4, 2), place(5, 3)]);
        history.located(vec![place(4, 4)]);
        assert_eq!(history.take_location(Index(4)).expect("it is known").offset(), 4);
        assert!(history.take_location(Index(5)).is_err(), "it was replaced");
    }

    #[test]
    fn space_for_locations_that_were_taken_is_given_back() {
        let mut history = history(Instant::now());
        history.located((4..=100_000).map(|index| place(index, 1)).collect());
        assert!(history.take_location(Index(10)).is_ok() && history.locations.capacity() >= 99_990);
        assert!(history.take_location(Index(99_000)).is_ok());
        assert!(history.locations.capacity() <= 8 * 1000 + SPACE_MAX, "{}", history.locations.capacity());
        assert_eq!(
            history.locations.iter().map(|at| at.index.0).collect::<Vec<_>>(),
            Vec::from_iter(99_001..=100_000)
        );
        assert!(history.take_location(Index(100_000)).is_ok());
        assert!(history.locations.capacity() <= SPACE_MAX, "{}", history.locations.capacity());
    }

    #[test]
    fn the_first_entry_of_a_newer_term_is_noticed() {
        let now = Instant::now();
        let mut history = history(now);
        assert!(
            !history.applied(Index(3), Term(1))
                && history.applied(Index(4), Term(2))
                && !history.applied(Index(5), Term(2))
        );
        assert_eq!(history.known_terms().runs().last(), Some(&entry(4, 2)));
        history.restored(Index(9), Term(3));
        assert_eq!(history.known_terms().runs(), [entry(9, 3)]);
        assert!(history.first_index(now).is_some() && history.first_index(now).is_none(), "now and then");
    }
}
