//! Reads the entries that are in the log of a data directory and not in the checkpoint.

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
        // An entry with an index that was read before replaces all entries from that index on, and a
        // restarted log has no entries from before the restart.
        Replayed::Entry(..) | Replayed::Reset(_) => {
            entries.clear();
            locations.clear();
        }
        // The hard state is part of the result of opening. Values that were moved after the checkpoint also
        // exist at their old locations, and values of a snapshot that was never installed are not needed.
        Replayed::HardState(_) | Replayed::Value(..) => {}
    };
    let (log, recovered) = Log::open(options, Arc::clone(disk), first, &mut replay, on_event)?;
    Ok(ReplayedLog { log, recovered, entries, locations })
}
