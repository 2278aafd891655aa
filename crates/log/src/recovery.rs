//! Opens a log: determines which files belong to it, reads their records, removes the remains of interrupted
//! writes, and determines where writing continues.
//!
//! The valid records of the last segment end at an offset p. If bytes that are no valid record, or further
//! records, follow there, they are either damage or a torn tail. A torn tail is the remains of a write that
//! was interrupted, and whose entries were never acknowledged. It is overwritten with zeros and reported as a
//! repair. The bytes are damage if something proves that the data at p had been synced, for example a valid
//! record whose batch starts after p. An invalid record in an earlier segment is always damage, because a
//! segment is complete before the next one is begun. Damage means that acknowledged data may be lost, so
//! opening is refused.
//!
//! # Example: a torn tail, and damage
//!
//! The last segment contains two batches. A batch here is all records of one write, and it is written only
//! after the batch before it was synced. Every record contains the offset at which its batch starts.
//!
//! ```text
//! offset  batch starts at
//!  4096   4096    entry 7    valid
//!  4352   4352    entry 8    valid
//!  4480   4352    entry 9    invalid (its checksum is wrong)   <- p
//!  5632   4352    entry 10   valid
//! ```
//!
//! The only record after p belongs to the batch that starts at 4352, before p. So nothing proves that this
//! batch was ever synced, and its entries are treated as never acknowledged: entries 9 and 10 are overwritten
//! with zeros, and entry 8 becomes the last entry.
//!
//! ```text
//!  5888   5888    entry 11   valid
//! ```
//!
//! If this record exists as well, entry 9 is damaged: the batch of entry 11 starts at 5888, after p, and was
//! written after the batch at 4352 had been synced. So entry 9 may have been acknowledged, and opening is
//! refused with offset 4480.
//!
//! Opening is also refused if the member has recorded, at its last clean shutdown or at its last start, that
//! the log ended after p. And it is refused if no torn write can explain the bytes at p
//! (`scan::is_no_torn_write`): if entry 9 ended at 4608, it would lie in the same sector as the head of entry
//! 8, and an interrupted write leaves a sector either completely old or completely new.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use bytes::Bytes;
use disk::{Disk, File};
use numbers::{EntryId, Index, MemberId, Term};

use crate::entry_index::EntryIndex;
use crate::format::{
    COMPRESSED_HEAD_BYTES, Found, Kind, RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES,
    SegmentHeader, Start, VALUE_COMPRESSED, VALUE_HEAD_BYTES, VALUE_RAW, find, payload_location, u32_at,
    u64_at, value_location,
};
use crate::preparation::Prepared;
use crate::preparation::{NEXT_TMP, SPARE_TMP};
use crate::scan::{self, Before, Ending};
use crate::segment::{Segment, file_name, seq_of};
use crate::writer::Position;
use crate::{
    Entry, HardState, Location, LogEnd, OpenError, Options, Owner, Recovered, Repair, Replayed, Reset,
    ValueId,
};

/// Result of [`open`]: the state of the log that was found.
pub(crate) struct Opened {
    pub recovered: Recovered,
    pub position: Position,
    pub segments: Vec<Arc<Segment>>,
    pub index: EntryIndex,
    pub prepared: Option<Prepared>,
    pub next_seq: u32,
    /// Spare files, which can be used for new segments.
    pub spares: Vec<PathBuf>,
    /// Files of released segments. They can be removed or become spare files.
    pub released: Vec<PathBuf>,
}

/// The file of a segment of which only the header and the first record have been read so far.
struct Candidate {
    seq: u32,
    path: PathBuf,
    file: Arc<dyn File>,
    len: u64,
    header: SegmentHeader,
    /// Contents of the first record; `None` if the first record is not valid.
    start: Option<Start>,
}

/// Returns true if `dir` contains files with names of segments.
pub(crate) fn is_in(disk: &dyn Disk, dir: &Path) -> Result<bool, OpenError> {
    if !disk.exists(dir).map_err(|error| OpenError::io("look for", dir, error))? {
        return Ok(false);
    }
    let names = disk.list(dir).map_err(|error| OpenError::io("list", dir, error))?;
    Ok(names.iter().any(|name| seq_of(name).is_some()))
}

/// Returns the cluster and member id of the log in `dir`; `None` if `dir` contains no log.
pub(crate) fn identify(disk: &dyn Disk, dir: &Path) -> Result<Option<Owner>, OpenError> {
    if !disk.exists(dir).map_err(|error| OpenError::io("look for", dir, error))? {
        return Ok(None);
    }
    let names = disk.list(dir).map_err(|error| OpenError::io("list", dir, error))?;
    let Some(seq) = names.iter().find_map(|name| seq_of(name)) else { return Ok(None) };
    let candidate = Candidate::open(disk, dir, seq)?;
    Ok(Some(candidate.owner()))
}

pub(crate) fn open(
    options: &Options,
    disk: &dyn Disk,
    from_index: Index,
    replay: &mut dyn FnMut(Replayed),
) -> Result<Opened, OpenError> {
    let dir = &options.dir;
    disk.create_dir_all(dir).map_err(|error| OpenError::io("create", dir, error))?;
    let mut seqs = Vec::new();
    let mut spares = Vec::new();
    for name in disk.list(dir).map_err(|error| OpenError::io("list", dir, error))? {
        if let Some(seq) = seq_of(&name) {
            seqs.push(seq);
        } else if name.ends_with(".free") {
            spares.push(dir.join(name));
        } else if name.ends_with(".tmp") {
            let path = dir.join(name);
            disk.remove(&path).map_err(|error| OpenError::io("remove", &path, error))?;
        }
    }
    // An earlier process may have died before it synced the names that are found here. Sync them now, so that
    // a crash of the machine cannot undo a name on which later steps rely.
    disk.sync_dir(dir).map_err(|error| OpenError::io("sync", dir, error))?;
    seqs.sort_unstable();
    let mut candidates = Vec::with_capacity(seqs.len());
    let mut repairs = Vec::new();
    let mut damaged = Vec::new();
    for seq in seqs {
        match Candidate::open(disk, dir, seq) {
            Ok(candidate) => {
                candidate.check_owner(options)?;
                candidates.push(candidate);
            }
            Err(error @ OpenError::Damaged { .. })
                if options.closed_at.is_some_and(|end| seq > end.segment) =>
            {
                damaged.push(error);
            }
            Err(error) => return Err(error),
        }
    }
    let unused = split_unused(disk, &mut candidates)?;
    // If the log continues in a segment after its recorded end, an old release, which does not update the
    // record, has used the log since. In that case the recorded end is outdated, and is ignored.
    let goes_on = |end: &LogEnd| candidates.last().is_some_and(|last| last.seq > end.segment);
    let closed_at = options.closed_at.filter(|end| !goes_on(end));
    for error in damaged {
        if closed_at.is_none() {
            return Err(error);
        }
        let OpenError::Damaged { path, offset, .. } = error else { continue };
        // This segment comes after the one in which the log was closed. So it had only been prepared, and
        // contains no records: remove it, because it will be made again.
        disk.remove(&path).map_err(|error| OpenError::io("remove", &path, error))?;
        let found = "the segment was not in use yet; it was recreated";
        repairs.push(Repair { file: path, offset, found });
    }
    refuse_strangers(options, disk, &candidates, &unused)?;
    let mut reading = Reading::new(from_index);
    reading.repairs = repairs;
    if let Some(end) = &closed_at {
        check_closed(options, disk, end, &candidates, &unused)?;
    }
    reading.closed_at = closed_at;
    reading.synced_to = match &options.synced_to {
        Some(end) if !planted::is(planted::Bug::NotedEndIgnored) => Some(*end),
        _ => None,
    };
    if let Some(end) = reading.synced_to
        && candidates.last().is_none_or(|last| last.seq < end.segment)
    {
        let path = options.dir.join(file_name(end.segment));
        if unused.iter().all(|candidate| candidate.seq != end.segment) {
            return Err(missing(disk, path));
        }
        let found = "the segment's first record is not valid, but it was when the member last started";
        return Err(OpenError::damaged(&path, SEGMENT_HEADER_BYTES as u64, found));
    }
    reading.clear_unused(&unused)?;
    let mut released = match candidates.last() {
        None => Vec::new(),
        Some(_) => reading.read_all(options, disk, &mut candidates, replay)?,
    };
    let mut unused = unused;
    if unused.first().is_some_and(|first| first.header.secret.is_none()) {
        // An unused segment without a secret (format version 1) contains no data, but clients could forge its
        // records. So it is removed and will be made again with a secret. The last of these files is removed
        // first: a crash in between must not leave a segment whose predecessor is missing, because such a log
        // is refused.
        for candidate in unused.drain(..).rev() {
            let path = candidate.path;
            disk.remove(&path).map_err(|error| OpenError::io("remove", &path, error))?;
            disk.sync_dir(dir).map_err(|error| OpenError::io("sync", dir, error))?;
        }
    }
    let mut unused = unused.into_iter();
    let prepared = unused.next();
    // Only one prepared segment is kept. If a second one exists, its file is reused or removed like that of a
    // released segment.
    released.extend(unused.map(|candidate| candidate.path));
    finish(reading, candidates, prepared, spares, released)
}

/// Splits off the segments at the end of the log that have no valid first record. There are at most two: the
/// one that was prepared as the next segment, and the one before it if its first write was torn. More of them
/// are damage.
fn split_unused(disk: &dyn Disk, candidates: &mut Vec<Candidate>) -> Result<Vec<Candidate>, OpenError> {
    let used = candidates.iter().rposition(|candidate| candidate.start.is_some()).map_or(0, |at| at + 1);
    let unused = candidates.split_off(used);
    let mut expected = candidates.last().map_or(0, |last| last.seq.wrapping_add(1));
    for candidate in &unused {
        if candidate.seq != expected {
            return Err(missing(disk, candidate.path.with_file_name(file_name(expected))));
        }
        expected = expected.wrapping_add(1);
    }
    match unused.as_slice() {
        [first, _, _, ..] => {
            let what =
                "the segment's first record is not valid, but later files show that the segment was in use";
            Err(OpenError::damaged(&first.path, SEGMENT_HEADER_BYTES as u64, what))
        }
        _ => Ok(unused),
    }
}

/// Returns the error for a segment that is missing or is not a regular file.
fn missing(disk: &dyn Disk, path: PathBuf) -> OpenError {
    match disk.exists(&path) {
        Ok(true) => OpenError::NotAFile { path },
        Ok(false) | Err(_) => OpenError::Missing { path },
    }
}

/// Returns an error if a directory or another object has a name that the log needs for its next files.
fn refuse_strangers(
    options: &Options,
    disk: &dyn Disk,
    used: &[Candidate],
    unused: &[Candidate],
) -> Result<(), OpenError> {
    let next = unused.last().or(used.last()).map_or(0, |last| last.seq.wrapping_add(1));
    let there = |path: &Path| disk.exists(path).map_err(|error| OpenError::io("look for", path, error));
    let path = options.dir.join(file_name(next));
    if there(&path)? {
        return Err(OpenError::NotAFile { path });
    }
    for name in [NEXT_TMP, SPARE_TMP] {
        let path = options.dir.join(name);
        if there(&path)? {
            return Err(OpenError::InTheWay { path });
        }
    }
    Ok(())
}

/// Checks that a log that was closed cleanly still has the segment in which it ended.
fn check_closed(
    options: &Options,
    disk: &dyn Disk,
    end: &LogEnd,
    used: &[Candidate],
    unused: &[Candidate],
) -> Result<(), OpenError> {
    let path = options.dir.join(file_name(end.segment));
    match used.last() {
        Some(last) if last.seq == end.segment => Ok(()),
        _ if unused.iter().any(|candidate| candidate.seq == end.segment) => {
            let found = "the segment's first record is not valid, but the member had shut down cleanly";
            Err(OpenError::damaged(&path, SEGMENT_HEADER_BYTES as u64, found))
        }
        _ => Err(missing(disk, path)),
    }
}

/// Part of an error message. It says why invalid data at the end of the log is damage and not a torn write.
const NO_TORN_WRITE: &str =
    "an interrupted write leaves whole sectors of 512 bytes unchanged, but a part of this one was written";

/// State of the log according to the records that have been read so far.
struct Reading {
    /// End of the log that was recorded at its clean shutdown, if known. The log must not end before it.
    closed_at: Option<LogEnd>,
    /// End of the log that was recorded when the member last started, if known. The log must not end before
    /// it.
    synced_to: Option<LogEnd>,
    from_index: Index,
    index: EntryIndex,
    hard_state: HardState,
    base: EntryId,
    last_term: Term,
    repairs: Vec<Repair>,
    scanned_bytes: u64,
    /// Offset at which the records of each segment end, for the segments that were read; by sequence number.
    ends: BTreeMap<u32, u64>,
    live: BTreeSet<u32>,
    /// True if a torn write was found at the beginning of the segment after the last segment in use. It
    /// proves that all records of the last segment in use had been synced.
    next_begun: bool,
}

impl Reading {
    fn new(from_index: Index) -> Reading {
        Reading {
            closed_at: None,
            synced_to: None,
            from_index,
            index: EntryIndex::starting_at(Index(1)),
            hard_state: HardState::default(),
            base: EntryId::default(),
            last_term: Term(0),
            repairs: Vec::new(),
            scanned_bytes: 0,
            ends: BTreeMap::new(),
            live: BTreeSet::new(),
            next_begun: false,
        }
    }

    /// Reads the records of the segments that are needed for the replay, and verifies the others if the
    /// options say so. Returns the files of the released segments.
    fn read_all(
        &mut self,
        options: &Options,
        disk: &dyn Disk,
        candidates: &mut Vec<Candidate>,
        replay: &mut dyn FnMut(Replayed),
    ) -> Result<Vec<PathBuf>, OpenError> {
        let released = self.choose(disk, candidates)?;
        let first = self.first_to_read(candidates);
        if options.verify_all {
            for candidate in &candidates[..first] {
                self.verify(candidate, candidates)?;
            }
        }
        for (nth, candidate) in candidates.iter().enumerate() {
            let Some(start) = &candidate.start else { continue };
            if nth < first {
                // This segment is not read now. Add it to `unread`, so that its entries can be read later.
                // But if the segment after it was released, the log has a gap, and entries before the gap
                // cannot be used.
                if candidates.get(nth + 1).is_some_and(|next| next.seq != candidate.seq + 1) {
                    self.index.unread.clear();
                } else {
                    self.index.unread.insert(candidate.seq, start.next_index);
                }
                continue;
            }
            let adjacent = nth > first && candidates[nth - 1].seq + 1 == candidate.seq;
            if !adjacent {
                if nth > first {
                    self.index.reset(start.next_index);
                }
                self.index.next = start.next_index;
                self.base = start.base;
            }
            self.read(candidate, nth + 1 == candidates.len(), adjacent, replay)?;
            self.check_end(candidate, candidates.get(nth + 1))?;
        }
        Ok(released)
    }

    /// Splits off the released segments and returns their files. Fails if a segment is missing that was not
    /// released.
    fn choose(
        &mut self,
        disk: &dyn Disk,
        candidates: &mut Vec<Candidate>,
    ) -> Result<Vec<PathBuf>, OpenError> {
        let Some(last) = candidates.last() else { return Ok(Vec::new()) };
        let mut live: BTreeSet<u32> =
            last.start.as_ref().map(|start| start.live.iter().copied().collect()).unwrap_or_default();
        // The last segment lists the earlier segments that existed when it was begun. Each release since then
        // has a Released record in the last segment. If the list is empty, there is nothing to search for.
        let scan_to = if live.is_empty() { 0 } else { last.len };
        scan::records(
            &*last.file,
            last.header.identity(),
            scan_to,
            SEGMENT_HEADER_BYTES as u64,
            |_, header, _| {
                if header.kind == Kind::Released {
                    live.remove(&(header.index as u32));
                }
                io::Result::Ok(())
            },
        )
        .map_err(|error| OpenError::io("read", &last.path, error))?;
        let last_seq = last.seq;
        let present: BTreeSet<u32> = candidates.iter().map(|candidate| candidate.seq).collect();
        if let Some(missing) = live.iter().find(|seq| !present.contains(seq)) {
            return Err(self::missing(disk, last.path.with_file_name(file_name(*missing))));
        }
        let mut released = Vec::new();
        candidates.retain(|candidate| {
            let kept = candidate.seq == last_seq || live.contains(&candidate.seq);
            if !kept {
                released.push(candidate.path.clone());
            }
            kept
        });
        if let Some(bad) = candidates.iter().find(|candidate| candidate.start.is_none()) {
            let what =
                "the segment's first record is not valid, but later files show that the segment was in use";
            return Err(OpenError::damaged(&bad.path, SEGMENT_HEADER_BYTES as u64, what));
        }
        self.live = live;
        Ok(released)
    }

    /// Returns the position in `candidates` from which on the segments are replayed: the last segment that
    /// began before the entry `from_index - 1` was written. The last record of that entry, and everything
    /// written after it, is in that segment or in later ones.
    fn first_to_read(&self, candidates: &[Candidate]) -> usize {
        candidates
            .iter()
            .rposition(|candidate| {
                candidate.start.as_ref().is_some_and(|start| start.next_index < self.from_index)
            })
            .unwrap_or(0)
    }

    fn read(
        &mut self,
        candidate: &Candidate,
        is_last: bool,
        adjacent: bool,
        replay: &mut dyn FnMut(Replayed),
    ) -> Result<(), OpenError> {
        let path = &candidate.path;
        let mut before = Before::default();
        let ending = candidate.records(|offset, header, payload| {
            before = Before { record: offset, batch: u64::from(header.batch_start) };
            self.take(candidate, adjacent, offset, header, payload, replay)
        })?;
        self.scanned_bytes += ending.offset;
        self.ends.insert(candidate.seq, ending.offset);
        match (is_last, ending.invalid) {
            (false, Some(why)) => return Err(OpenError::damaged(path, ending.offset, why)),
            (false, None) => return Ok(()),
            (true, _) => {}
        }
        let file = &*candidate.file;
        let remains = scan::remains(file, candidate.header.identity(), candidate.len, ending.offset)
            .map_err(|error| OpenError::io("read", path, error))?;
        let why = ending.invalid.unwrap_or("the record was never written, although parts of its batch were");
        let believes_zeros = ending.invalid.is_none() && planted::is(planted::Bug::HoleTakenForEnd);
        let looks_behind = !planted::is(planted::Bug::DamageTakenForTornEnd) && !believes_zeros;
        if let Some(later) = remains.later_batch.filter(|_| looks_behind) {
            let found = format!(
                "{why}; the record at offset {later} was written only after this one had been synced"
            );
            return Err(OpenError::damaged(path, ending.offset, found));
        }
        let is_torn = !scan::is_no_torn_write(
            file,
            candidate.header.identity(),
            candidate.len,
            ending.offset,
            before,
            &remains,
        )
        .map_err(|error| OpenError::io("read", path, error))?;
        if !is_torn && looks_behind {
            return Err(OpenError::damaged(path, ending.offset, format!("{why}; {NO_TORN_WRITE}")));
        }
        if self.next_begun && (ending.invalid.is_some() || remains.end.is_some()) {
            let found = format!("{why}; the next segment was started only after this record had been synced");
            return Err(OpenError::damaged(path, ending.offset, found));
        }
        if let Some(end) = self.closed_at.filter(|end| u64::from(end.offset) > ending.offset) {
            let found = match ending.invalid {
                Some(why) => {
                    format!("{why}; the log reached to offset {} when the member stopped", end.offset)
                }
                None => format!(
                    "the log ends here, but it reached to offset {} when the member stopped",
                    end.offset
                ),
            };
            return Err(OpenError::damaged(path, ending.offset, found));
        }
        let shorter = |end: &LogEnd| end.segment == candidate.seq && u64::from(end.offset) > ending.offset;
        if let Some(end) = self.synced_to.filter(shorter) {
            let why = ending.invalid.unwrap_or("the log ends here");
            let found =
                format!("{why}; it was synced up to offset {} when the member last started", end.offset);
            return Err(OpenError::damaged(path, ending.offset, found));
        }
        // Write the last batch again, because recovered data must not be lost later. The previous process may
        // have died because it could not sync this batch. In that case the bytes that were read may exist
        // only in the page cache, and a sync would not write them, because Linux marks pages as clean after a
        // failed sync.
        scan::rewrite(file, before.batch.max(SEGMENT_HEADER_BYTES as u64), ending.offset)
            .map_err(|error| OpenError::io("write again", path, error))?;
        if ending.invalid.is_some() || remains.end.is_some() {
            scan::clear(file, candidate.len, ending.offset, remains.end)
                .map_err(|error| OpenError::io("repair", path, error))?;
            self.repairs.push(Repair { file: path.clone(), offset: ending.offset, found: why });
        } else {
            file.sync_data().map_err(|error| OpenError::io("sync", path, error))?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        candidate: &Candidate,
        adjacent: bool,
        offset: u64,
        header: RecordHeader,
        payload: Bytes,
        replay: &mut dyn FnMut(Replayed),
    ) -> Result<(), OpenError> {
        let bad = |found: String| Err(OpenError::damaged(&candidate.path, offset, found));
        match header.kind {
            Kind::Entry => {
                let (index, term) = (Index(header.index), Term(header.term));
                if index > self.index.next || header.index == 0 || header.index == u64::MAX {
                    let expected = self.index.next;
                    return bad(format!("entry {} follows where {expected} was expected", header.index));
                }
                let replaces = index < self.index.next;
                self.index.push(candidate.seq, index, term, offset as u32);
                self.last_term = term;
                // If this entry replaces one that the caller may have received, pass it on even if its index
                // is below `from_index`.
                if index >= self.from_index || replaces {
                    let entry_type = header.entry_type;
                    let entry = Entry { term, index, entry_type, data: payload };
                    replay(Replayed::Entry(entry, payload_location(candidate.seq, offset as u32)));
                }
            }
            Kind::HardState => {
                if payload.len() != 8 {
                    return bad("a hard state with a wrong length".to_owned());
                }
                let (term, vote, commit) =
                    (Term(header.term), MemberId(u64_at(&payload, 0)), Index(header.index));
                self.hard_state = HardState { term, vote, commit };
                replay(Replayed::HardState(self.hard_state));
            }
            Kind::Reset => {
                if header.index == u64::MAX {
                    return bad("a restart at an impossible index".to_owned());
                }
                let (index, term) = (Index(header.index), Term(header.term));
                self.base = EntryId { index, term };
                self.last_term = term;
                self.index.reset(index.next());
                replay(Replayed::Reset(Reset { index, term }));
            }
            Kind::Value => {
                if payload.len() < VALUE_HEAD_BYTES {
                    return bad("a value with a wrong length".to_owned());
                }
                let id = ValueId { main: header.index as i64, sub: u64_at(&payload, 0) as i64 };
                let raw = (payload.len() - VALUE_HEAD_BYTES) as u32;
                let place = match header.entry_type {
                    VALUE_RAW => Some((value_location(candidate.seq, offset as u32), raw)),
                    VALUE_COMPRESSED if payload.len() >= COMPRESSED_HEAD_BYTES => {
                        let (stored, len) = (payload.len() as u32, u32_at(&payload, VALUE_HEAD_BYTES));
                        let location = Location::compressed(candidate.seq, offset as u32, stored, len);
                        location.map(|location| (location, len))
                    }
                    _ => None,
                };
                let Some((location, len)) = place else {
                    return bad("a value in a form that this release does not know".to_owned());
                };
                replay(Replayed::Value(id, location, len));
            }
            Kind::Start => {
                let start =
                    Start::decode(&header, &payload).filter(|_| offset == SEGMENT_HEADER_BYTES as u64);
                let Some(start) = start else {
                    return bad("a segment's first record at an impossible place".to_owned());
                };
                if adjacent && start.next_index != self.index.next {
                    let (next, expected) = (start.next_index, self.index.next);
                    return bad(format!(
                        "the segment begins with index {next} where {expected} was expected"
                    ));
                }
                self.hard_state = start.hard_state;
                self.last_term = start.last_term;
                replay(Replayed::HardState(self.hard_state));
            }
            Kind::Released => {}
        }
        Ok(())
    }

    /// Checks that the records of a sealed segment end at the offset that the next segment has recorded.
    fn check_end(&self, candidate: &Candidate, next: Option<&Candidate>) -> Result<(), OpenError> {
        let Some(next) = next.filter(|next| next.seq == candidate.seq + 1) else { return Ok(()) };
        let (Some(start), Some(end)) = (&next.start, self.ends.get(&candidate.seq)) else { return Ok(()) };
        if u64::from(start.end_before) == *end {
            return Ok(());
        }
        let found = format!(
            "the records end here, but reached to {} when the next segment was started",
            start.end_before
        );
        Err(OpenError::damaged(&candidate.path, *end, found))
    }

    /// Verifies the records of a segment that is not replayed.
    fn verify(&mut self, candidate: &Candidate, all: &[Candidate]) -> Result<(), OpenError> {
        let ending = candidate.records(|_, _, _| Ok(()))?;
        if let Some(why) = ending.invalid {
            return Err(OpenError::damaged(&candidate.path, ending.offset, why));
        }
        self.scanned_bytes += ending.offset;
        self.ends.insert(candidate.seq, ending.offset);
        self.check_end(candidate, all.iter().find(|other| other.seq == candidate.seq + 1))
    }

    /// Overwrites the remains of a torn first write with zeros. `unused` are the segments that have no valid
    /// first record. Only the first of them can have such remains: remains in the second one, or any sign
    /// that the first write had been synced, are damage, and an error is returned.
    fn clear_unused(&mut self, unused: &[Candidate]) -> Result<(), OpenError> {
        for (nth, candidate) in unused.iter().enumerate() {
            let path = &candidate.path;
            let from = SEGMENT_HEADER_BYTES as u64;
            let identity = candidate.header.identity();
            let remains = scan::remains(&*candidate.file, identity, candidate.len, from)
                .map_err(|error| OpenError::io("read", path, error))?;
            if let Some(later) = remains.later_batch {
                let found = format!(
                    "the segment's first record is not valid; the record at offset {later} was written \
                     only after it had been synced"
                );
                return Err(OpenError::damaged(path, from, found));
            }
            let is_torn = !scan::is_no_torn_write(
                &*candidate.file,
                identity,
                candidate.len,
                from,
                Before::default(),
                &remains,
            )
            .map_err(|error| OpenError::io("read", path, error))?;
            if !is_torn && self.closed_at.is_none() {
                let found = format!("the segment's first record is not valid; {NO_TORN_WRITE}");
                return Err(OpenError::damaged(path, from, found));
            }
            if remains.end.is_none() {
                continue;
            }
            if let Some(end) = &self.closed_at {
                let found =
                    format!("data was written here, but the member had stopped in segment {}", end.segment);
                return Err(OpenError::damaged(path, from, found));
            }
            if nth > 0 {
                let found = "the segment's first record is not valid; the next segment was started only \
                             after it had been synced";
                return Err(OpenError::damaged(&unused[0].path, from, found));
            }
            self.next_begun = true;
            scan::clear(&*candidate.file, candidate.len, from, remains.end)
                .map_err(|error| OpenError::io("repair", path, error))?;
            let found = "the segment's first write was torn";
            self.repairs.push(Repair { file: path.clone(), offset: from, found });
        }
        Ok(())
    }
}

fn finish(
    reading: Reading,
    candidates: Vec<Candidate>,
    prepared: Option<Candidate>,
    spares: Vec<PathBuf>,
    released: Vec<PathBuf>,
) -> Result<Opened, OpenError> {
    let next_index = reading.index.next;
    let mut segments = Vec::with_capacity(candidates.len());
    for (nth, candidate) in candidates.iter().enumerate() {
        let sealed = nth + 1 < candidates.len();
        let next = candidates.get(nth + 1).filter(|next| next.seq == candidate.seq + 1);
        let next = next.and_then(|next| next.start.as_ref());
        let known = reading.ends.get(&candidate.seq).copied();
        let end = known.or(next.map(|start| u64::from(start.end_before))).unwrap_or(candidate.len);
        let first_index = candidate.start.as_ref().map_or(Index(0), |start| start.next_index);
        // If the segments between this one and the next existing one were released, `last_index` is larger
        // than the true last index of this segment. The only consequence is that the segment is released
        // later than possible.
        let later = candidates.get(nth + 1).and_then(|later| later.start.as_ref());
        let last_index = later.map_or(next_index, |start| start.next_index) - 1;
        segments.push(Arc::new(Segment {
            seq: candidate.seq,
            path: candidate.path.clone(),
            file: candidate.file.clone(),
            identity: candidate.header.identity(),
            guessable: candidate.header.secret.is_none(),
            first_index,
            capacity: AtomicU64::new(candidate.len),
            end: AtomicU32::new(u32::try_from(end).unwrap_or(u32::MAX)),
            last_index: AtomicU64::new(last_index.0),
            sealed: AtomicBool::new(sealed),
            releasing: AtomicBool::new(false),
        }));
    }
    let active = segments.last().cloned();
    let last_seq = prepared.as_ref().map(|one| one.seq).or(active.as_ref().map(|one| one.seq + 1));
    let recovered = Recovered {
        hard_state: reading.hard_state,
        first_index: reading.index.first(),
        last_index: next_index - 1,
        last_term: reading.last_term,
        base: reading.base,
        repairs: reading.repairs,
        scanned_bytes: reading.scanned_bytes,
    };
    Ok(Opened {
        position: Position {
            active,
            live: reading.live,
            hard_state: reading.hard_state,
            base: reading.base,
            next_index,
            last_term: reading.last_term,
        },
        recovered,
        segments,
        index: reading.index,
        next_seq: last_seq.unwrap_or(0),
        prepared: prepared.map(|one| Prepared {
            seq: one.seq,
            path: one.path,
            file: one.file,
            filled: one.header.capacity,
            header: one.header,
        }),
        spares,
        released,
    })
}

impl Candidate {
    fn open(disk: &dyn Disk, dir: &Path, seq: u32) -> Result<Candidate, OpenError> {
        let path = dir.join(file_name(seq));
        let io = |error| OpenError::io("read", &path, error);
        let file = disk.open(&path).map_err(io)?;
        let len = file.len().map_err(io)?;
        let mut bytes = vec![0; SEGMENT_HEADER_BYTES + 4096];
        let read = file.read_at(&mut bytes, 0).map_err(io)?;
        bytes.truncate(read);
        let header = SegmentHeader::decode(&bytes).map_err(|why| OpenError::damaged(&path, 0, why))?;
        if header.seq != seq {
            let found = format!("the segment has number {}, but its file name says {seq}", header.seq);
            return Err(OpenError::damaged(&path, 12, found));
        }
        if len > u64::from(u32::MAX) {
            return Err(OpenError::damaged(&path, 0, "the file is longer than a segment can be"));
        }
        if len < header.capacity {
            let found =
                format!("the file is truncated: it had {} bytes when it was created", header.capacity);
            return Err(OpenError::damaged(&path, len, found));
        }
        let offset = SEGMENT_HEADER_BYTES as u64;
        let mut found = find(&bytes[SEGMENT_HEADER_BYTES..], offset, len, header.identity());
        if let Found::Short(total) = found {
            bytes.resize(SEGMENT_HEADER_BYTES + total, 0);
            let read = file.read_at(&mut bytes, 0).map_err(io)?;
            bytes.truncate(read);
            found = find(bytes.get(SEGMENT_HEADER_BYTES..).unwrap_or(&[]), offset, len, header.identity());
        }
        let start = match found {
            Found::Record(record, payload) => {
                let from = SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES;
                match Start::decode(&record, &bytes[from..from + payload]) {
                    Some(start) if start.next_index > Index(0) => Some(start),
                    _ => {
                        let what = "the segment does not begin with a Start record";
                        return Err(OpenError::damaged(&path, offset, what));
                    }
                }
            }
            _ => None,
        };
        Ok(Candidate { seq, path, file, len, header, start })
    }

    fn owner(&self) -> Owner {
        Owner { cluster_id: self.header.cluster_id, member_id: self.header.member_id }
    }

    fn check_owner(&self, options: &Options) -> Result<(), OpenError> {
        let found = self.owner();
        let expected = Owner { cluster_id: options.cluster_id, member_id: options.member_id };
        if found == expected {
            return Ok(());
        }
        Err(OpenError::Foreign { path: self.path.clone(), found, expected })
    }

    fn records(
        &self,
        mut visit: impl FnMut(u64, RecordHeader, Bytes) -> Result<(), OpenError>,
    ) -> Result<Ending, OpenError> {
        let from = SEGMENT_HEADER_BYTES as u64;
        let outcome =
            scan::records(&*self.file, self.header.identity(), self.len, from, |offset, header, bytes| {
                visit(offset, header, bytes).map_err(Stop::Open)
            });
        outcome.map_err(|stop| match stop {
            Stop::Open(error) => error,
            Stop::Io(error) => OpenError::io("read", &self.path, error),
        })
    }
}

/// Reason why a scan stopped: a read failed, or a record was refused.
enum Stop {
    Io(io::Error),
    Open(OpenError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Io(error)
    }
}
