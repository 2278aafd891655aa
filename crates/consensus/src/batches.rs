//! Tracks the batches of log data (raft's entries and hard states) that are on their way to the disk.

use std::collections::VecDeque;

use numbers::Index;

use crate::event::NodeBug;

/// A batch that was given to the caller for the log and is not synced yet.
#[derive(Debug)]
struct Unsynced {
    number: u64,
    /// Index of the last entry of the log once the batch is synced.
    last: Index,
    /// True if the batch replaces entries that are already in the log.
    replaces: bool,
}

/// The batches that were given to the caller for the log and are not synced yet, and the index up to which
/// the log is on disk.
#[derive(Debug)]
pub(crate) struct Batches {
    /// Number of the newest batch, with or without data for the log.
    newest: u64,
    /// The batches that were given to the caller for the log and are not synced yet.
    unsynced: VecDeque<Unsynced>,
    /// Index of the last entry of the newest synced batch.
    stored: Index,
}

impl Batches {
    /// Returns the batches as they are when the member starts: none, and a log whose last entry has the index
    /// `stored`.
    pub fn new(stored: Index) -> Batches {
        Batches { newest: 0, unsynced: VecDeque::new(), stored }
    }

    /// Records that a batch was made, with or without data for the log.
    pub fn made(&mut self, number: u64) {
        self.newest = number;
    }

    /// Records that a batch was given to the caller for the log, which then ends with the entry `last`.
    /// `replaces` says whether the batch replaces entries in the log.
    pub fn appended(&mut self, number: u64, last: Index, replaces: bool) {
        self.unsynced.push_back(Unsynced { number, last, replaces });
    }

    /// Records that a batch and all earlier batches are on disk.
    ///
    /// # Errors
    ///
    /// Returns an error if the batch was never given to the caller.
    pub fn synced(&mut self, number: u64) -> Result<(), NodeBug> {
        if number > self.newest {
            return Err(NodeBug(format!("batch {number} is synced, the last one was {}", self.newest)));
        }
        while let Some(batch) = self.unsynced.front()
            && batch.number <= number
        {
            self.stored = batch.last;
            self.unsynced.pop_front();
        }
        Ok(())
    }

    /// Returns the number of the newest batch that counts as on disk. A batch without data for the log counts
    /// as synced when the batch before it is synced.
    pub fn synced_through(&self) -> u64 {
        self.unsynced.front().map_or(self.newest, |next| next.number - 1)
    }

    /// Returns true if a batch that replaces entries is being written.
    pub fn are_replacing(&self) -> bool {
        self.unsynced.iter().any(|batch| batch.replaces)
    }

    /// Returns true if no batch is being written.
    pub fn are_synced(&self) -> bool {
        self.unsynced.is_empty()
    }

    /// Returns the index of the last entry that is on disk.
    pub fn stored(&self) -> Index {
        self.stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_without_data_counts_as_synced_with_the_one_before_it() {
        let mut batches = Batches::new(Index(10));
        for number in 1..=3 {
            batches.made(number);
            if number != 2 {
                batches.appended(number, Index(10 + number), number == 3);
            }
        }
        assert_eq!((batches.synced_through(), batches.stored()), (0, Index(10)));
        assert!(batches.synced(4).is_err());
        assert!(batches.synced(1).is_ok());
        assert_eq!((batches.synced_through(), batches.stored()), (2, Index(11)));
        assert!(batches.are_replacing() && !batches.are_synced());
        assert!(batches.synced(3).is_ok());
        assert_eq!((batches.synced_through(), batches.stored()), (3, Index(13)));
        assert!(!batches.are_replacing() && batches.are_synced());
    }
}
