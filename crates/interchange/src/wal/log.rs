//! Reads the whole write-ahead log of a member.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use disk::Disk;
use prost::Message as _;

use crate::backend::ConfState;
use crate::error::Error;
use crate::wal::frame::{Frames, Next};
use crate::wal::{CRC, ENTRY, METADATA, SNAPSHOT, STATE};
use crate::wire::{Field, Fields};

type SharedFile = Arc<dyn disk::File>;

/// The raft log of a member. [`Wal::open`] reads and verifies all entries, but keeps only their locations, in
/// 24 bytes of memory per entry; [`Wal::entry`] reads an entry again.
pub struct Wal {
    files: Vec<LogFile>,
    /// Ids of the log's owner.
    pub identity: Identity,
    /// Raft's hard state: term, vote and commit index.
    pub hard_state: HardState,
    /// Snapshots that the log records and whose index is committed, in the order in which they were made.
    pub snapshots: Vec<SnapshotMark>,
    /// Unfinished write at the end of the last file, which is not part of the log; `None` if there is none.
    pub repair: Option<Repair>,
    /// End of the log: the position after its last complete record.
    pub end: WalEnd,
    first: u64,
    entries: Vec<Place>,
}

/// A position in the last file of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalEnd {
    /// Name of the file.
    pub file: String,
    /// Offset in bytes from the beginning of the file.
    pub offset: u64,
}

/// The ids of a log's owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Id of the member.
    pub member_id: u64,
    /// Id of the cluster.
    pub cluster_id: u64,
}

/// Raft's hard state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// Newest raft term that the member has seen.
    pub term: u64,
    /// Member for which this member voted in `term`; 0 for none.
    pub vote: u64,
    /// Index of the last entry that the member knew to be committed; later entries may be committed too.
    pub commit: u64,
}

/// A snapshot that the log records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotMark {
    /// Index of the last entry in the snapshot.
    pub index: u64,
    /// Raft term of the entry at `index`.
    pub term: u64,
    /// Voters and learners at `index`; `None` if `index` is 0, or etcd from before 3.5 made the snapshot.
    pub conf_state: Option<ConfState>,
}

/// An unfinished write at the end of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Name of the file.
    pub file: String,
    /// Offset in bytes at which the unfinished write begins. The log ends there.
    pub offset: u64,
}

struct LogFile {
    name: String,
    file: SharedFile,
    len: u64,
}

#[derive(Clone, Copy)]
struct Place {
    term: u64,
    offset: u64,
    file: u32,
    is_conf_change: bool,
}

impl Wal {
    /// Reads the log in a directory.
    ///
    /// # Errors
    ///
    /// Returns an error if the log cannot be read or is damaged other than by an unfinished write at its end.
    pub fn open(disk: &dyn Disk, dir: &Path) -> Result<Wal, Error> {
        let names = disk.list(dir).map_err(|e| Error::io(format!("listing {}", dir.display()), e))?;
        let mut files = Vec::new();
        let mut before: Option<u64> = None;
        for name in names {
            let Some((sequence, _)) = parse_name(&name) else { continue };
            if super::GUARD_NAMES.contains(&name.as_str()) {
                let what = "Mainstay has taken this member over: etcd's files here are older than what the \
                            member has promised and acknowledged since";
                return Err(Error::damaged(0, what).in_file(&name));
            }
            if before.is_some_and(|before| before.checked_add(1) != Some(sequence)) {
                return Err(Error::damaged(0, "a file of the log before this one is missing").in_file(&name));
            }
            before = Some(sequence);
            let opened = |e| Error::io(format!("opening {}", dir.join(&name).display()), e);
            let file = disk.open_read(&dir.join(&name)).map_err(opened)?;
            let len = file.len().map_err(opened)?;
            files.push(LogFile { name, file, len });
        }
        let mut scan = Scan::default();
        for (i, file) in files.iter().enumerate() {
            scan.file(i, file, i + 1 == files.len()).map_err(|e| e.in_file(&file.name))?;
        }
        let Some(metadata) = scan.metadata else {
            let what = "the log does not identify its member";
            return Err(Error::damaged(0, what).in_file(&dir.display().to_string()));
        };
        let metadata = api::etcdserverpb::Metadata::decode(metadata.as_slice())
            .map_err(|_| Error::damaged(0, "the log has invalid data about its member"))?;
        scan.snapshots.retain(|snapshot| snapshot.index <= scan.hard_state.commit);
        if scan.entries.is_empty() {
            scan.first = 1 + scan.snapshots.iter().map(|snapshot| snapshot.index).max().unwrap_or_default();
        }
        Ok(Wal {
            files,
            identity: Identity { member_id: metadata.node_id(), cluster_id: metadata.cluster_id() },
            hard_state: scan.hard_state,
            snapshots: scan.snapshots,
            repair: scan.repair,
            end: scan.end,
            first: scan.first,
            entries: scan.entries,
        })
    }

    /// Returns the index of the first entry; one above [`Wal::last`] if the log has no entries.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the index of the last entry. If the log has no entries, this is the index of the newest
    /// snapshot.
    pub fn last(&self) -> u64 {
        (self.first + self.entries.len() as u64).saturating_sub(1)
    }

    /// Returns the raft term of an entry; `None` if the log does not have the entry.
    pub fn term(&self, index: u64) -> Option<u64> {
        self.place(index).map(|place| place.term)
    }

    /// Returns true if the entry changes the membership.
    pub fn is_conf_change(&self, index: u64) -> bool {
        self.place(index).is_some_and(|place| place.is_conf_change)
    }

    /// Reads an entry; returns `None` if the log does not have it.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read any more, or has changed since the log was opened.
    pub fn entry(&self, index: u64) -> Result<Option<api::raftpb::Entry>, Error> {
        let Some(place) = self.place(index) else { return Ok(None) };
        let Some(file) = self.files.get(place.file as usize) else { return Ok(None) };
        let read = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            file.file
                .read_exact_at(&mut bytes, at)
                .map_err(|e| Error::io(format!("reading the log at byte {at}"), e).in_file(&file.name))?;
            Ok(bytes)
        };
        let changed =
            || Error::damaged(place.offset, "the log changed while it was read").in_file(&file.name);
        let head = read(place.offset, 8)?;
        let len = u64::from_le_bytes(head.try_into().unwrap_or_default()) & !(0xff << 56);
        if len > file.len {
            return Err(changed());
        }
        let record = read(place.offset + 8, len as usize)?;
        let record = api::walpb::Record::decode(bytes::Bytes::from(record)).map_err(|_| changed())?;
        let entry = api::raftpb::Entry::decode(record.data.unwrap_or_default()).map_err(|_| changed())?;
        if entry.index() != index || entry.term() != place.term {
            return Err(changed());
        }
        Ok(Some(entry))
    }

    fn place(&self, index: u64) -> Option<&Place> {
        let i = usize::try_from(index.checked_sub(self.first)?).ok()?;
        self.entries.get(i)
    }
}

/// Returns true if the name has the form of etcd's log file names.
pub(crate) fn is_file_name(name: &str) -> bool {
    parse_name(name).is_some()
}

/// Returns the sequence number and the first index that the name of a log file contains.
fn parse_name(name: &str) -> Option<(u64, u64)> {
    let (sequence, index) = name.strip_suffix(".wal")?.split_once('-')?;
    let hex = |text: &str| match text.len() == 16 {
        true => u64::from_str_radix(text, 16).ok(),
        false => None,
    };
    Some((hex(sequence)?, hex(index)?))
}

/// Results of reading the log so far.
#[derive(Default)]
struct Scan {
    metadata: Option<Vec<u8>>,
    hard_state: HardState,
    snapshots: Vec<SnapshotMark>,
    first: u64,
    entries: Vec<Place>,
    crc: u32,
    repair: Option<Repair>,
    end: WalEnd,
}

impl Scan {
    fn file(&mut self, number: usize, file: &LogFile, is_last: bool) -> Result<(), Error> {
        let mut frames = Frames::new(&file.file, file.len, self.crc, is_last);
        let mut is_first = true;
        loop {
            let so_far = frames.crc();
            let record = match frames.next()? {
                Next::Record(record) => record,
                Next::End => break,
                Next::Torn => {
                    let offset = frames.at();
                    self.repair = Some(Repair { file: file.name.clone(), offset });
                    break;
                }
            };
            let offset = record.offset;
            let wrong = |what: &str| Error::damaged(offset, what);
            if std::mem::take(&mut is_first) && record.kind != CRC {
                return Err(wrong("the file does not begin with a checksum"));
            }
            match record.kind {
                CRC => {
                    let crc = record.crc;
                    // The record must have the running checksum of the previous file. Only in the first
                    // existing file may it have any value, because that file may continue a deleted one.
                    if so_far != crc && !(number == 0 && so_far == 0) {
                        return Err(wrong("the file does not continue where the previous one ends"));
                    }
                    frames.set_crc(crc);
                }
                METADATA => match &self.metadata {
                    Some(before) if before != record.data => {
                        return Err(wrong("two files of the log name different members"));
                    }
                    _ => self.metadata = Some(record.data.to_vec()),
                },
                STATE => {
                    self.hard_state = hard_state(record.data).ok_or_else(|| wrong("an invalid hard state"))?
                }
                SNAPSHOT => {
                    let snapshot = snapshot(record.data).ok_or_else(|| wrong("an invalid snapshot"))?;
                    self.snapshot(snapshot);
                }
                ENTRY => {
                    let entry = entry(record.data).ok_or_else(|| wrong("an invalid entry"))?;
                    self.entry(number, offset, entry)
                        .map_err(|what| Error::damaged(offset, what.to_string()))?;
                }
                kind => return Err(wrong(&format!("a record of the unknown type {kind}"))),
            }
        }
        self.crc = frames.crc();
        self.end = WalEnd { file: file.name.clone(), offset: frames.at() };
        Ok(())
    }

    /// Records a snapshot that the member saved itself or received from the leader. The log may have a
    /// different entry at the index of a received snapshot. In that case, this entry and all later ones were
    /// never committed, and the snapshot replaces them.
    fn snapshot(&mut self, snapshot: SnapshotMark) {
        let at = snapshot.index.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(at) = at
            && self.entries.get(at).is_some_and(|place| place.term != snapshot.term)
        {
            self.entries.truncate(at);
        }
        self.snapshots.push(snapshot);
    }

    fn entry(&mut self, file: usize, offset: u64, entry: ScannedEntry) -> Result<(), OrderError> {
        let place =
            Place { term: entry.term, offset, file: file as u32, is_conf_change: entry.is_conf_change };
        let next = self.first + self.entries.len() as u64;
        if self.entries.is_empty() || entry.index < self.first {
            self.entries.clear();
            self.first = entry.index;
        } else if entry.index > next {
            // Allow a gap only if this entry directly follows a snapshot: a member that has received a whole
            // state continues its log after that state.
            if !self.snapshots.iter().any(|snapshot| snapshot.index.checked_add(1) == Some(entry.index)) {
                return Err(OrderError::Gap { index: entry.index, before: next - 1 });
            }
            self.entries.clear();
            self.first = entry.index;
        } else {
            self.entries.truncate((entry.index - self.first) as usize);
        }
        if self.entries.last().is_some_and(|before| before.term > entry.term) {
            return Err(OrderError::Term { index: entry.index });
        }
        self.entries.push(place);
        Ok(())
    }
}

/// Reason why an entry cannot follow the entries before it.
enum OrderError {
    /// Entries between this entry and the one before are missing.
    Gap { index: u64, before: u64 },
    /// The entry's term is lower than that of the entry before.
    Term { index: u64 },
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrderError::Gap { index, before } => write!(f, "entry {index} follows entry {before}"),
            OrderError::Term { index } => {
                write!(f, "entry {index} has an older term than the previous one")
            }
        }
    }
}

struct ScannedEntry {
    index: u64,
    term: u64,
    is_conf_change: bool,
}

/// Decodes the needed fields of an entry; `None` if the data is not an entry. This check is needed although
/// records have a checksum, because the checksum does not cover the type of a record.
fn entry(data: &[u8]) -> Option<ScannedEntry> {
    let [kind, term, index] = numbers(data, 4)?;
    // Refuse the index 2^64 - 1, so that code that adds one to an index cannot overflow.
    (index > 0 && index < u64::MAX && term > 0 && kind <= 2).then_some(ScannedEntry {
        index,
        term,
        is_conf_change: kind != 0,
    })
}

fn hard_state(data: &[u8]) -> Option<HardState> {
    let [term, vote, commit] = numbers(data, 0)?;
    (term > 0 || (vote == 0 && commit == 0)).then_some(HardState { term, vote, commit })
}

fn snapshot(data: &[u8]) -> Option<SnapshotMark> {
    let snapshot = api::walpb::Snapshot::decode(data).ok()?;
    // Refuse the index 2^64 - 1, so that code that adds one to an index cannot overflow.
    (snapshot.index() < u64::MAX).then(|| SnapshotMark {
        index: snapshot.index(),
        term: snapshot.term(),
        conf_state: snapshot.conf_state.as_ref().map(ConfState::from),
    })
}

/// Decodes a message that has numbers in fields 1 to 3, and bytes at most in the field with the number
/// `bytes` (0 for none). Returns `None` if the message has other fields.
fn numbers(data: &[u8], bytes: u64) -> Option<[u64; 3]> {
    let mut found = [0; 3];
    let mut fields = Fields(data);
    while let Some((number, field)) = fields.next().ok()? {
        match field {
            Field::Varint(n) => *found.get_mut(usize::try_from(number).ok()?.checked_sub(1)?)? = n,
            Field::Bytes(_) if number == bytes => {}
            _ => return None,
        }
    }
    Some(found)
}
