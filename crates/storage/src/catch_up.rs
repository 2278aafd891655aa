//! Reads entries from the log for followers that lag, on a dedicated thread.

use std::sync::mpsc::Receiver;

use consensus::{Entry, EntryKind, Fetch};
use log::ReadError;

/// Maximum number of queued reads. It is never reached in practice: the leader has at most one read in
/// progress for each follower, and a cluster has few followers.
pub const FETCHES_MAX: usize = 64;

/// Result of reading entries that a follower needs and that are no longer in memory. Empty if the log has
/// removed them, which is not an error. The error says why existing entries cannot be read.
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
        // The log has removed the entries since the leader ordered the read. An empty result makes the leader
        // determine again what to send to the follower, for example a snapshot.
        Err(ReadError::Moved | ReadError::Unavailable) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Converts an entry of the log to an entry of raft.
pub fn entry_of(entry: log::Entry) -> Entry {
    let kind = if entry.entry_type == 0 { EntryKind::Normal } else { EntryKind::ConfChange };
    Entry { term: entry.term, index: entry.index, kind, data: entry.data }
}
