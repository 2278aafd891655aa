//! What is known of the entries of the log: where they lie, of which terms they are, and which of them are still there.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mvcc::Location;

use super::Fatal;

/// Interval at which the log is asked for its first entry.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Locations of the entries that are not applied yet, and the terms of those that are.
pub(super) struct History {
    entries: log::Entries,
    /// The oldest first.
    locations: VecDeque<(u64, log::Location)>,
    /// The terms of the entries applied, as far back as the log goes.
    terms: Vec<(u64, u64)>,
    /// Entries up to here were in the log at start.
    replayed_through: u64,
    next_look: Instant,
}

impl History {
    /// Returns the history after a start, from the locations of the entries that were read and the terms of those that
    /// the checkpoint covers.
    pub fn new(
        entries: log::Entries,
        locations: VecDeque<(u64, log::Location)>,
        terms: Vec<(u64, u64)>,
        now: Instant,
    ) -> History {
        let replayed_through = locations.back().map_or(0, |(index, _)| *index);
        History { entries, locations, terms, replayed_through, next_look: now }
    }

    /// Returns true if this entry was in the log at the start.
    pub fn was_replayed(&self, index: u64) -> bool {
        index <= self.replayed_through
    }

    /// Notes the locations of entries that are on disk now.
    pub fn located(&mut self, locations: Vec<(u64, log::Location)>) {
        for located in locations {
            // An entry that replaces others takes their places in this list too.
            while self.locations.back().is_some_and(|(index, _)| *index >= located.0) {
                self.locations.pop_back();
            }
            self.locations.push_back(located);
        }
    }

    /// Takes out where this entry lies, and forgets those before.
    ///
    /// # Errors
    ///
    /// It is not on disk: our own bug.
    pub fn take_location(&mut self, index: u64) -> Result<Location, Fatal> {
        while let Some(&(at, location)) = self.locations.front() {
            if at == index {
                self.locations.pop_front();
                return Ok(Location { segment: location.segment, offset: location.offset });
            }
            if at > index {
                break;
            }
            self.locations.pop_front();
        }
        Err(Fatal::Unlocated { index })
    }

    /// An entry of this term is applied. Returns true if the term is newer than those before.
    pub fn applied(&mut self, index: u64, term: u64) -> bool {
        let newer = self.terms.last().is_some_and(|(_, last)| *last < term);
        storage::terms::push(&mut self.terms, index, term);
        newer
    }

    /// Notes that another member's state, as of this entry, has replaced the present one.
    pub fn restored(&mut self, index: u64, term: u64) {
        self.locations.clear();
        self.terms = vec![(index, term)];
    }

    /// The terms of the entries applied, as far back as the log goes now.
    pub fn terms(&mut self) -> Vec<(u64, u64)> {
        storage::terms::forget(&mut self.terms, self.entries.first_index());
        self.terms.clone()
    }

    /// Returns the terms of the applied entries, as far back as was known at the last look at the log.
    pub fn known_terms(&self) -> Vec<(u64, u64)> {
        self.terms.clone()
    }

    /// Now and then: the first entry that the log still has.
    pub fn first_index(&mut self, now: Instant) -> Option<u64> {
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

    use super::*;

    fn history(now: Instant) -> History {
        let options = log::Options { by_hand: true, secret_seed: Some(1), ..log::Options::new("/log", 1, 2) };
        let disk = Arc::new(disk::MemDisk::new(1));
        let opened = log::Log::open(options, disk, 1, &mut |_| {}, Box::new(|_| {}));
        let (log, _) = opened.unwrap_or_else(|e| panic!("{e}"));
        History::new(log.entries(), VecDeque::from([(3, place(1))]), vec![(2, 1)], now)
    }

    fn place(offset: u32) -> log::Location {
        log::Location { segment: 1, offset }
    }

    #[test]
    fn an_entry_that_replaces_others_takes_their_places() {
        let mut history = history(Instant::now());
        assert!(history.was_replayed(3) && !history.was_replayed(4));
        history.located(vec![(4, place(2)), (5, place(3))]);
        history.located(vec![(4, place(4))]);
        assert_eq!(history.take_location(4).expect("it is known").offset, 4);
        assert!(history.take_location(5).is_err(), "it was replaced");
    }

    #[test]
    fn the_first_entry_of_a_newer_term_is_noticed() {
        let now = Instant::now();
        let mut history = history(now);
        assert!(!history.applied(3, 1) && history.applied(4, 2) && !history.applied(5, 2));
        assert_eq!(history.known_terms().last(), Some(&(4, 2)));
        history.restored(9, 3);
        assert_eq!(history.known_terms(), [(9, 3)]);
        assert!(history.first_index(now).is_some() && history.first_index(now).is_none(), "now and then");
    }
}
