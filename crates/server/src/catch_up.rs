//! Reads entries from the log for followers that lag, on a thread of its own.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use consensus::{Entry, EntryKind, Fetch};
use log::ReadError;

use crate::core::Ask;
use crate::shared::Shared;

/// Reads that may wait: one for each follower, of which there are few.
pub const FETCHES_MAX: usize = 64;

/// Carries out reads until the core ends.
pub fn run(shared: &Arc<Shared>, entries: &log::Entries, fetches: &Receiver<Fetch>) {
    while let Ok(fetch) = fetches.recv() {
        carry_out(shared, entries, fetch);
    }
}

/// Carries out one.
pub fn carry_out(shared: &Shared, entries: &log::Entries, fetch: Fetch) {
    let read = match entries.read(fetch.first, fetch.last, fetch.bytes_max) {
        Ok(entries) => Ok(entries.into_iter().map(entry_of).collect()),
        // The log has let them go meanwhile: the follower is asked again what it needs.
        Err(ReadError::Moved | ReadError::Unavailable) => Ok(Vec::new()),
        Err(error) => Err(error.to_string()),
    };
    shared.core.send(Ask::Fetched(fetch, read));
}

/// The log's entry as raft knows it.
pub fn entry_of(entry: log::Entry) -> Entry {
    let kind = if entry.entry_type == 0 { EntryKind::Normal } else { EntryKind::ConfChange };
    Entry { term: entry.term, index: entry.index, kind, data: entry.data }
}
