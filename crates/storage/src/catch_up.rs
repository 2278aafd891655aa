//! Reads entries from the log for followers that lag, on a thread of its own.

use std::sync::mpsc::Receiver;

use consensus::{Entry, EntryKind, Fetch};
use log::ReadError;

/// Reads that may wait: one for each follower, of which there are few.
pub const FETCHES_MAX: usize = 64;

/// Entries that a follower needs and that had left memory; none if the log has let them go meanwhile.
///
/// An error says why they cannot be read: never that the log has let them go.
pub type Fetched = Result<Vec<Entry>, ReadError>;

/// Carries out reads until the queue ends.
pub fn run(entries: &log::Entries, fetches: &Receiver<Fetch>, tell: impl Fn(Fetch, Fetched)) {
    while let Ok(fetch) = fetches.recv() {
        let fetched = carry_out(entries, &fetch);
        tell(fetch, fetched);
    }
}

/// Carries out one.
pub fn carry_out(entries: &log::Entries, fetch: &Fetch) -> Fetched {
    match entries.read(fetch.first, fetch.last, fetch.bytes_max) {
        Ok(entries) => Ok(entries.into_iter().map(entry_of).collect()),
        // The log has let them go meanwhile: the follower is asked again what it needs.
        Err(ReadError::Moved | ReadError::Unavailable) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The log's entry as raft knows it.
pub fn entry_of(entry: log::Entry) -> Entry {
    let kind = if entry.entry_type == 0 { EntryKind::Normal } else { EntryKind::ConfChange };
    Entry { term: entry.term, index: entry.index, kind, data: entry.data }
}
