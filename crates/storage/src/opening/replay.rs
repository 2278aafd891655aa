//! Reads the entries of a data directory's log that come after the checkpoint.

use std::collections::VecDeque;
use std::sync::Arc;

use consensus::Entry;
use disk::Disk;
use log::{EntryPlace, Log, LogEvent, Recovered, Replayed};
use numbers::Index;

use crate::catch_up::entry_of;
use crate::error::MissingEntries;

/// An opened log, and its entries that are not in the checkpoint.
pub(crate) struct ReplayedLog {
    pub log: Log,
    pub recovered: Recovered,
    pub entries: Vec<Entry>,
    pub locations: VecDeque<EntryPlace>,
}

impl ReplayedLog {
    /// Checks that the log contains every entry since the first one.
    ///
    /// # Errors
    ///
    /// Returns a description of the missing entries.
    pub fn is_whole(&self) -> Result<(), MissingEntries> {
        if self.recovered.base.index > Index(0) {
            return Err(MissingEntries::Before(self.recovered.base.index));
        }
        let numbered = self.entries.iter().zip(1..).find(|(entry, index)| entry.index != Index(*index));
        match numbered {
            Some((entry, expected)) => {
                Err(MissingEntries::Gap { found: entry.index, expected: Index(expected) })
            }
            None if self.entries.len() as u64 == self.recovered.last_index.0 => Ok(()),
            None => Err(MissingEntries::UpTo(self.recovered.last_index)),
        }
    }
}

/// Opens a log, and returns its entries from the index `first` on.
pub(crate) fn replay_log(
    options: log::Options,
    disk: &Arc<dyn Disk>,
    first: Index,
    on_event: Box<dyn Fn(LogEvent) + Send>,
) -> Result<ReplayedLog, log::OpenError> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut locations: VecDeque<EntryPlace> = VecDeque::new();
    let mut replay = |replayed: Replayed| match replayed {
        Replayed::Entry(entry, location) if entry.index >= first => {
            let keep = usize::try_from(entry.index - first).unwrap_or(usize::MAX);
            entries.truncate(keep);
            locations.truncate(keep);
            locations.push_back(EntryPlace { index: entry.index, location });
            entries.push(entry_of(entry));
        }
        // Both records make the collected entries invalid: an entry with an index below `first` replaces all
        // entries from its index on, and a log that was restarted after a snapshot has no entries from before
        // the restart.
        Replayed::Entry(..) | Replayed::Reset(_) => {
            entries.clear();
            locations.clear();
        }
        // These records are skipped. The hard state is also part of `recovered`. Values that were moved after
        // the checkpoint also exist at their old locations, and values of a snapshot that was never installed
        // are not needed.
        Replayed::HardState(_) | Replayed::Value(..) => {}
    };
    let (log, recovered) = Log::open(options, Arc::clone(disk), first, &mut replay, on_event)?;
    Ok(ReplayedLog { log, recovered, entries, locations })
}
