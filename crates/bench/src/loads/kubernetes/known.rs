//! Records the objects that the load generator has written and its requests in progress, and compares what was
//! written with what watches received.

use super::Resource;

/// What is known of an object: the revision of its last change, and whether a write of it is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known(i64);

impl Known {
    const BUSY: i64 = 1 << 62;
    const UNSURE: i64 = 1 << 61;

    /// Returns the state of an object whose last change has this revision; 0 for an object that is not there.
    pub fn at(revision: i64) -> Self {
        Self(revision & !(Self::BUSY | Self::UNSURE))
    }

    /// Returns the revision of the last known change.
    pub fn revision(self) -> i64 {
        self.0 & !(Self::BUSY | Self::UNSURE)
    }

    /// Returns true if a write is in flight.
    pub fn is_busy(self) -> bool {
        self.0 & Self::BUSY != 0
    }

    /// Returns true if a write failed in a way that leaves open whether the server carried it out.
    pub fn is_unsure(self) -> bool {
        self.0 & Self::UNSURE != 0
    }

    /// Begins a write. Returns the revision to compare; `None` if another write is in flight.
    pub fn begin(&mut self) -> Option<i64> {
        if self.is_busy() {
            return None;
        }
        self.0 |= Self::BUSY;
        Some(self.revision())
    }

    /// Ends a write that was answered: the last change of the object has this revision.
    pub fn end(&mut self, revision: i64) {
        *self = Self::at(revision);
    }

    /// Ends a write that failed: the server possibly carried it out.
    pub fn fail(&mut self) {
        self.0 = self.revision() | Self::UNSURE;
    }
}

/// Number of changes, and the sum of their revisions. Two tallies are equal if they counted the same changes;
/// one that is missing, twice or with a wrong revision makes a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of changes.
    pub count: u64,
    /// Sum of their revisions, modulo 2^64.
    pub sum: u64,
}

impl Tally {
    /// Counts a change with this revision.
    pub fn add(&mut self, revision: i64) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(revision as u64);
    }
}

/// A list in progress.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) revision: i64,
    /// First key of the next page; empty if there is none.
    pub(super) next: Vec<u8>,
    pub(super) is_done: bool,
    pub(super) is_streamed: bool,
}

/// Objects that one transaction writes: those of one resource, with consecutive numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub(super) resource: Resource,
    pub(super) first: u64,
    pub(super) count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_one_write_in_flight_and_the_revision_of_its_last_answer() {
        let mut known = Known::at(7);
        assert_eq!(known.begin(), Some(7));
        assert_eq!(known.begin(), None, "the first write is not answered");
        known.end(12);
        assert_eq!((known.begin(), known.is_unsure()), (Some(12), false));
        known.fail();
        assert!(known.is_unsure() && !known.is_busy());
        assert_eq!((known.begin(), known.is_unsure()), (Some(12), true), "the doubt stays until an answer");
        known.end(13);
        assert_eq!(known, Known::at(13));
        assert_eq!(std::mem::size_of::<Known>(), 8);
    }

    #[test]
    fn tallies_tell_lost_doubled_and_wrong_changes_apart() {
        let of = |revisions: &[i64]| {
            let mut tally = Tally::default();
            revisions.iter().for_each(|revision| tally.add(*revision));
            tally
        };
        let all = of(&[2, 3, 4]);
        assert_eq!(all, of(&[4, 2, 3]));
        for other in [&[2, 3][..], &[2, 3, 4, 4], &[2, 3, 5]] {
            assert_ne!(all, of(other), "{other:?}");
        }
    }
}
