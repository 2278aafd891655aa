//! Keeps the committed entries that wait to be applied, and limits how many of them one turn applies.
//!
//! A turn applies entries up to a maximum amount of work (`Thresholds::applied_per_turn`). The remaining
//! entries wait for later turns, so that the core does its other work in between. An entry that needs more
//! work than the maximum is applied slice by slice. It begins after all entries before it are published, and
//! nothing is published before it is complete, so views never contain only a part of its changes. Requests
//! that read the machine directly wait while [`machine::Machine::is_whole`] returns false.
//!
//! An entry can also depend on a value that is not in memory. Such an entry waits until the reader threads
//! have read the value, and the core does its other work in between.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use consensus::Entry;
use numbers::{Index, Term};

use super::meters::Meters;
use super::{CoreRequest, StorageRequest};
use crate::inbox::Inbox;
use storage::readers::{ReadValue, Reading};
use storage::values::LogValues;

/// Maximum bytes of committed entries that are not applied. Above this limit, the core drops entries that a
/// leader sends; the leader sends them again later.
const BEHIND_BYTES_MAX: usize = 128 << 20;

/// Memory in bytes that a waiting entry takes in addition to its data: the slot in the queue, the entry's
/// location in the log, and the overhead of the allocation.
const ENTRY_BYTES: usize = size_of::<Entry>() + size_of::<(u64, log::Location)>() + 32;

fn held_bytes(entry: &Entry) -> usize {
    ENTRY_BYTES + entry.data.len()
}

/// Parts of the core that are needed to apply committed entries, in addition to the machine.
pub(super) struct Apply {
    /// Entries that are not applied yet.
    pub queue: ApplyQueue,
    /// Reads the values on which entries depend.
    pub values: LogValues,
    /// Metrics of the applied entries.
    pub meters: Meters,
}

/// Committed entries that are not applied yet, and the amount of work that this turn may still do to apply
/// them.
///
/// This type stores the entries, and the values that the next entry needs and that had to be read from disk.
/// The state machine ([`machine::Machine`]) applies the entries.
pub(super) struct ApplyQueue {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Amount of work (see `Thresholds::applied_per_turn`) that this turn may still do to apply entries.
    left: u64,
    /// The entry that the machine has begun to apply and not completed.
    begun: Option<OpenEntry>,
    /// True if an entry was applied since the last view was published.
    unpublished: bool,
    /// The read in progress of values that the current entry needs; `None` if no values are being read.
    reading: Option<Reading>,
    /// Values that have been read for the current entry, sorted by their locations in the log.
    arrived: Vec<ReadValue>,
    /// Reservations of memory for the values in `arrived`.
    charges: Vec<accounting::Charge>,
    /// Waker that notifies the core when the values have been read.
    waker: Waker,
}

/// An entry that is being applied in slices.
pub(super) struct OpenEntry {
    pub index: Index,
    pub term: Term,
    pub bytes: usize,
    pub since: Instant,
}

struct ValuesRead(Arc<Inbox<CoreRequest>>);

impl Wake for ValuesRead {
    fn wake(self: Arc<Self>) {
        self.0.send(StorageRequest::ValuesRead);
    }
}

impl ApplyQueue {
    pub fn new(core: &Arc<Inbox<CoreRequest>>) -> ApplyQueue {
        ApplyQueue {
            entries: VecDeque::new(),
            bytes: 0,
            left: 0,
            begun: None,
            unpublished: false,
            reading: None,
            arrived: Vec::new(),
            charges: Vec::new(),
            waker: Waker::from(Arc::new(ValuesRead(Arc::clone(core)))),
        }
    }

    /// Adds committed entries.
    pub fn committed(&mut self, entries: Vec<Entry>) {
        self.bytes += entries.iter().map(held_bytes).sum::<usize>();
        self.entries.extend(entries);
    }

    /// Returns the bytes of the waiting entries, including the overhead per entry.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if the waiting entries take so much memory that the core should accept no more entries
    /// from a leader.
    pub fn is_far_behind(&self) -> bool {
        self.bytes > BEHIND_BYTES_MAX
    }

    /// Drops all waiting entries and what was read for the current one.
    pub fn clear(&mut self) {
        self.entries.clear();
        (self.bytes, self.begun, self.reading) = (0, None, None);
        self.arrived.clear();
        self.charges.clear();
    }

    /// Returns true if all values that were requested for the current entry have been read, or if none were
    /// requested.
    fn has_values(&mut self) -> bool {
        let Some(reading) = &mut self.reading else { return true };
        let Poll::Ready(mut arrived) = Pin::new(&mut *reading).poll(&mut Context::from_waker(&self.waker))
        else {
            return false;
        };
        self.charges = reading.take_charges();
        self.reading = None;
        arrived.sort_unstable_by_key(|(place, _)| *place);
        self.arrived = arrived;
        true
    }

    /// Begins a turn that may do this amount of work to apply entries.
    pub fn begin_turn(&mut self, left: u64) {
        self.left = left;
    }

    /// Returns the amount of work that this turn may still do to apply entries.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Sets the amount of work that this turn may still do to apply entries.
    pub fn set_left(&mut self, left: u64) {
        self.left = left;
    }

    /// Returns true if an entry waits to be begun or continued, and no read of values is in progress.
    pub fn has_to_apply(&self) -> bool {
        (self.begun.is_some() || !self.entries.is_empty()) && self.reading.is_none()
    }

    /// Returns true if an entry was begun and is not completely applied.
    pub fn is_amid(&self) -> bool {
        self.begun.is_some()
    }

    /// Returns true if the machine can continue the begun entry now: the entries before it are published,
    /// this turn may do more work, and the values that the entry needs have been read.
    pub fn can_go_on(&mut self) -> bool {
        !self.unpublished && self.left > 0 && self.has_values()
    }

    /// Records the entry that the machine has begun and could not complete in this turn.
    pub fn begun(&mut self, begun: OpenEntry) {
        self.begun = Some(begun);
    }

    /// Returns the values that were read for the current entry, by location.
    pub fn arrived(&self) -> &[ReadValue] {
        &self.arrived
    }

    /// Makes the current entry wait for the values of this read.
    pub fn wait_for(&mut self, reading: Option<Reading>) {
        self.reading = reading;
        // The read is polled once here, because it starts with its first poll.
        self.has_values();
    }

    /// Ends the current entry, which is completely applied now. Returns the entry if it was begun in an
    /// earlier turn.
    pub fn ended(&mut self) -> Option<OpenEntry> {
        self.arrived.clear();
        self.charges.clear();
        self.begun.take()
    }

    /// Records that an entry has been applied, or that its application has begun.
    pub fn applied(&mut self) {
        self.unpublished = true;
    }

    /// Returns true if an entry was applied since the last view was published.
    pub fn is_unpublished(&self) -> bool {
        self.unpublished
    }

    /// Records that a view was published.
    pub fn published(&mut self) {
        self.unpublished = false;
    }

    /// Removes and returns the next entry, if this turn may still begin one.
    pub fn next(&mut self) -> Option<Entry> {
        if self.left == 0 {
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.bytes -= held_bytes(&entry);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use consensus::EntryKind;

    use super::*;

    fn entry(index: u64, bytes: usize) -> Entry {
        Entry {
            term: Term(1),
            index: Index(index),
            kind: EntryKind::Normal,
            data: Bytes::from(vec![0; bytes]),
        }
    }

    #[test]
    fn a_turn_applies_so_much_and_an_entry_begins_once_all_before_it_is_published() {
        let mut applying = ApplyQueue::new(&Arc::new(Inbox::default()));
        applying.committed(vec![entry(1, 10), entry(2, 10)]);
        assert!(applying.has_to_apply() && applying.next().is_none(), "no turn has begun");
        applying.begin_turn(5);
        assert_eq!(applying.next().map(|entry| entry.index), Some(Index(1)));
        applying.applied();
        assert_eq!(applying.next().map(|entry| entry.index), Some(Index(2)));
        assert_eq!(applying.bytes(), 0);
        applying.begun(OpenEntry { index: Index(2), term: Term(1), bytes: 10, since: Instant::now() });
        assert!(applying.is_amid() && !applying.can_go_on(), "what was applied before it is not published");
        applying.published();
        assert!(applying.can_go_on());
        applying.set_left(0);
        assert!(!applying.can_go_on());
        assert_eq!(applying.ended().map(|begun| begun.index), Some(Index(2)));
        assert!(!applying.is_amid() && !applying.has_to_apply());
    }

    #[test]
    fn what_waits_is_bounded_by_its_bytes() {
        let mut applying = ApplyQueue::new(&Arc::new(Inbox::default()));
        applying.committed(vec![entry(1, BEHIND_BYTES_MAX)]);
        assert!(applying.is_far_behind());
        applying.clear();
        assert!(!applying.is_far_behind() && applying.bytes() == 0);
    }
}
