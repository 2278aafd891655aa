//! Reads entries from the log for followers that lag, on a dedicated thread.

use std::sync::mpsc::Receiver;

use consensus::{Entry, EntryKind, Fetch};
use log::ReadError;

/// Maximum number of queued reads: one for each follower, of which there are few.
pub const FETCHES_MAX: usize = 64;

/// Entries that a follower needs and that are no longer in memory. Empty if the log no longer has them.
///
/// The error says why the entries cannot be read. Entries that the log has removed are not an error.
pub type Fetched = Result<Vec<Entry>, ReadError>;

/// Serves read orders until the queue is closed. `tell` receives each result.
pub fn run(entries: &log::Entries, fetches: &Receiver<Fetch>, tell: impl Fn(Fetch, Fetched)) {
    while let Ok(fetch) = fetches.recv() {
        let fetched = carry_out(entries, &fetch);
        tell(fetch, fetched);
    }
}

/// Serves one read order.
pub fn carry_out(entries: &log::Entries, fetch: &Fetch) -> Fetched {
    match entries.read(fetch.first, fetch.last, fetch.bytes_max) {
        Ok(entries) => Ok(entries.into_iter().map(entry_of).collect()),
        // The log has removed the entries in the meantime. The leader then finds out again which entries the
        // follower needs.
        Err(ReadError::Moved | ReadError::Unavailable) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Converts an entry of the log to an entry of raft.
pub fn entry_of(entry: log::Entry) -> Entry {
    let kind = if entry.entry_type == 0 { EntryKind::Normal } else { EntryKind::ConfChange };
    Entry { term: entry.term, index: entry.index, kind, data: entry.data }
}
