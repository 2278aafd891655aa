//! A log without threads on a disk in memory, and the events that it has reported.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use disk::{Disk, MemDisk};
use mainstay_log::{
    Batch, Entry, EntryPlace, Fatal, HardState, Location, Log, LogEvent, OpenError, Options, Recovered,
    Replayed, Space, ValueId,
};
use numbers::{ClusterId, Index, MemberId, Term};
use testkit::Random;

/// Directory of the log under test.
pub const DIR: &str = "/data/member/log";

/// Options for a log with small segments and without threads.
pub fn options() -> Options {
    Options {
        segment_bytes: 16 << 10,
        by_hand: true,
        secret_seed: Some(1),
        ..Options::new(DIR, ClusterId(0xc1), MemberId(0x3e))
    }
}

/// Summary of the events that a log has reported so far.
#[derive(Default)]
pub struct Told {
    pub ticket: u64,
    pub last_index: u64,
    pub hard_state: Option<HardState>,
    pub locations: Vec<EntryPlace>,
    pub values: Vec<(ValueId, Location)>,
    pub spaces: Vec<Space>,
    pub failed: Vec<Fatal>,
}

/// An open log with its listener.
pub struct Opened {
    pub log: Log,
    pub recovered: Recovered,
    pub replayed: Vec<Replayed>,
    pub told: Arc<Mutex<Told>>,
}

pub fn open_with(options: Options, disk: &dyn CloneDisk, from_index: u64) -> Result<Opened, OpenError> {
    let told = Arc::new(Mutex::new(Told::default()));
    let listener = told.clone();
    let mut replayed = Vec::new();
    let (log, recovered) = Log::open(
        options,
        disk.arc(),
        Index(from_index),
        &mut |item| replayed.push(item),
        Box::new(move |event| {
            let mut told = listener.lock().unwrap();
            match event {
                LogEvent::Synced(synced) => {
                    assert!(told.failed.is_empty(), "nothing is acknowledged after a failure");
                    told.ticket = synced.ticket;
                    told.last_index = synced.last_index.0;
                    told.hard_state = synced.hard_state.or(told.hard_state);
                    told.locations.extend(synced.locations);
                    told.values.extend(synced.values);
                }
                LogEvent::SpaceChanged(space) => told.spaces.push(space),
                LogEvent::Failed(fatal) => told.failed.push(fatal),
            }
        }),
    )?;
    Ok(Opened { log, recovered, replayed, told })
}

pub fn open(disk: &MemDisk) -> Result<Opened, OpenError> {
    open_with(options(), disk, 1)
}

/// Disks that a test can give to a log and still use itself.
pub trait CloneDisk {
    fn arc(&self) -> Arc<dyn Disk>;
}

impl<D: Disk + Clone + 'static> CloneDisk for D {
    fn arc(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }
}

impl Opened {
    /// Returns the entries after the replay: later entries have replaced earlier ones.
    pub fn entries(&self) -> Vec<Entry> {
        self.entries_from(1)
    }

    /// Returns the entries like [`Opened::entries`], but without those below `from`.
    pub fn entries_from(&self, from: u64) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        for item in &self.replayed {
            match item {
                Replayed::Entry(entry, _) => {
                    entries.retain(|old| old.index < entry.index);
                    entries.push(entry.clone());
                }
                Replayed::Reset(_) => entries.clear(),
                _ => {}
            }
        }
        entries.retain(|entry| entry.index.0 >= from);
        entries
    }

    /// Appends a batch and runs one turn.
    pub fn put(&mut self, batch: Batch) {
        self.log.append(batch).unwrap();
        self.log.turn();
    }

    pub fn told<T>(&self, of: impl FnOnce(&Told) -> T) -> T {
        of(&self.told.lock().unwrap())
    }
}

/// An entry with `len` bytes of data derived from index and term.
pub fn entry(index: u64, term: u64, len: usize) -> Entry {
    let data = Random::new(index << 32 ^ term).bytes(len);
    Entry { term: Term(term), index: Index(index), entry_type: 0, data: Bytes::from(data) }
}

pub fn entries(range: std::ops::RangeInclusive<u64>, term: u64, len: usize) -> Batch {
    Batch { entries: range.map(|index| entry(index, term, len)).collect(), ..Batch::default() }
}

pub fn segment_path(seq: u32) -> PathBuf {
    Path::new(DIR).join(format!("{seq:016x}.seg"))
}
