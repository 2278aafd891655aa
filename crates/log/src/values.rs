//! Reads values by their location ([`Values`]) and raft entries by their index ([`Entries`]), from any
//! thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use compression::Dictionaries;
use disk::File;
use numbers::{Index, Term};

use crate::compressed::{extent, record_bytes_max};
use crate::entry_index::EntryIndex;
use crate::format::{Found, Kind, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, find};
use crate::scan;
use crate::segment::{Segment, Shared};
use crate::{Entry, Figures, Location, LogEnd, Need, ReadError, SegmentState};

/// Number of bytes that one read of entries asks for, so that one system call reads many small entries.
const READ_BYTES: usize = 256 << 10;

/// Reads values by their location. Cheap to clone; the clones can be used by several threads.
#[derive(Clone)]
pub struct Values {
    pub(crate) shared: Arc<Shared>,
}

impl Values {
    /// Returns the counters of the log's work since it was opened, for metrics.
    pub fn figures(&self) -> &Figures {
        &self.shared.figures
    }

    /// Returns the dictionaries with which the log's compressed values are decompressed.
    pub fn dictionaries(&self) -> &Dictionaries {
        &self.shared.dictionaries
    }

    /// Returns the segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentState> {
        self.shared.segments().iter().map(|segment| segment.state()).collect()
    }

    /// Returns the current end of the log; `None` before the first write. After the [`crate::Log`] was
    /// dropped, the end no longer changes.
    pub fn log_end(&self) -> Option<LogEnd> {
        let segments = self.shared.segments();
        let active = segments.iter().rfind(|segment| !segment.sealed.load(Ordering::Acquire))?;
        let last_index = self.shared.index().next.previous();
        Some(LogEnd { segment: active.seq, offset: active.end.load(Ordering::Acquire), last_index })
    }

    /// Announces that the log will be closed soon: from now on no file is made in its directory, except a
    /// segment that the writer waits for. A caller that then removes the directory of a stopping member does
    /// not meet new files in it.
    pub fn wind_down(&self) {
        self.shared.winding_down.store(true, Ordering::Release);
    }

    /// Returns true after [`Values::wind_down`].
    pub fn winds_down(&self) -> bool {
        self.shared.winding_down.load(Ordering::Acquire)
    }

    /// Holds this many bytes of the file system free for other parts of the server; 0 holds none. While the
    /// log could take held space, it creates no files: it makes a segment only from a spare file. This is
    /// needed because a checkpoint needs space on a nearly full disk, and only a checkpoint allows the log to
    /// release segments, which frees space.
    pub fn hold_room(&self, bytes: u64, need: Need) {
        self.shared.hold_room(bytes, need);
    }

    /// Returns true once the log's file system had no space for a file although it reported enough. This
    /// happens, for example, with a quota on a file server, which is not part of the reported free space.
    pub fn has_hidden_limit(&self) -> bool {
        self.shared.has_hidden_limit.load(Ordering::Relaxed)
    }

    /// Reads `len` bytes and verifies their CRC-32C. Returns [`ReadError::Moved`] if the segment was released
    /// before the value was read; the caller then looks up the new location and reads again.
    pub fn read(&self, location: Location, len: u32, crc: u32) -> Result<Bytes, ReadError> {
        let mut bytes = BytesMut::with_capacity(len as usize);
        self.read_into(location, len, crc, &mut bytes)?;
        Ok(bytes.freeze())
    }

    /// Reads a value like [`Values::read`] and appends it to `into`. On an error `into` is unchanged.
    pub fn read_into(
        &self,
        location: Location,
        len: u32,
        crc: u32,
        into: &mut BytesMut,
    ) -> Result<(), ReadError> {
        let read = |file: &dyn File, buf: &mut [u8], offset| file.read_exact_at(buf, offset).map(|()| true);
        self.read_by(read, true, Wanted { location, len, crc }, into).map(|_| ())
    }

    /// Reads a value like [`Values::read_into`] if that is possible without waiting for a disk. Otherwise
    /// returns false and leaves `into` unchanged.
    pub fn read_cached_into(
        &self,
        location: Location,
        len: u32,
        crc: u32,
        into: &mut BytesMut,
    ) -> Result<bool, ReadError> {
        self.read_by(read_cached_exact_at, false, Wanted { location, len, crc }, into)
    }

    #[inline]
    fn read_by(
        &self,
        read: impl FnOnce(&dyn File, &mut [u8], u64) -> io::Result<bool>,
        waits: bool,
        Wanted { location, len, crc }: Wanted,
        into: &mut BytesMut,
    ) -> Result<bool, ReadError> {
        if location.is_compressed() {
            return self.read_compressed(&Wanted { location, len, crc }, waits, into);
        }
        let segment = self.shared.segment(location.segment()).ok_or(ReadError::Moved)?;
        let before = into.len();
        let (offset, _) = extent(&segment, &Wanted { location, len, crc })?;
        into.resize(before + len as usize, 0);
        let outcome = read(&*segment.file, &mut into[before..], offset);
        let failed = match outcome {
            Ok(true) if is_as_written(crc32c::crc32c(&into[before..]), crc) => return Ok(true),
            Ok(true) => damaged(&segment, offset, MISMATCH),
            Ok(false) => {
                into.truncate(before);
                return Ok(false);
            }
            Err(error) => ReadError::Io { path: segment.path.clone(), error },
        };
        into.truncate(before);
        // If the segment was released during the read, its file may already be reused for other data. In that
        // case the value is not damaged: it was copied to another segment.
        if self.shared.segment(location.segment()).is_none() { Err(ReadError::Moved) } else { Err(failed) }
    }

    /// Fills `into` with bytes of a value, starting at the value's byte `from`. Waits for a disk if `waits` is
    /// true; otherwise, if a wait would be needed, returns false, and `into` has undefined contents.
    ///
    /// The bytes are not verified, because the checksum covers the whole value: the caller has to compute it
    /// over all parts. For one part it is only guaranteed that the segment was not released before the part
    /// had been read, so that the bytes are not those of a later use of the file. A compressed value is
    /// decompressed and verified as a whole for each part.
    ///
    /// # Errors
    ///
    /// As for [`Values::read`].
    pub fn read_part(
        &self,
        value: Wanted,
        from: usize,
        into: &mut [u8],
        waits: bool,
    ) -> Result<bool, ReadError> {
        let Wanted { location, len, .. } = value;
        assert!(from + into.len() <= len as usize, "a part lies inside its value");
        if location.is_compressed() {
            let mut whole = BytesMut::new();
            let is_read = self.read_compressed(&value, waits, &mut whole)?;
            if is_read {
                into.copy_from_slice(&whole[from..from + into.len()]);
            }
            return Ok(is_read);
        }
        let segment = self.shared.segment(location.segment()).ok_or(ReadError::Moved)?;
        let offset = extent(&segment, &value)?.0 + from as u64;
        let read = if waits {
            segment.file.read_exact_at(into, offset).map(|()| true)
        } else {
            read_cached_exact_at(&*segment.file, into, offset)
        };
        if self.shared.segment(location.segment()).is_none() {
            return Err(ReadError::Moved);
        }
        read.map_err(|error| ReadError::Io { path: segment.path.clone(), error })
    }

    /// Fills `into` with the bytes of the segment from `from` on, up to the end of the file, and returns how
    /// many bytes were read. The bytes are not verified. Bytes after the end of the log are not part of it
    /// yet: later records will overwrite them. If `waits` is false, reading stops at the first byte for which
    /// a wait for a disk would be needed. Returns 0 if nothing can be read, also on an error: a read of the
    /// value with [`Values::read`] then returns that error.
    pub fn read_ahead(&self, from: Location, into: &mut [u8], waits: bool) -> usize {
        let Some(segment) = self.shared.segment(from.segment()) else { return 0 };
        let offset = u64::from(from.offset());
        if offset < SEGMENT_HEADER_BYTES as u64 {
            return 0;
        }
        let left = segment.capacity.load(Ordering::Relaxed).saturating_sub(offset);
        let len = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let into = &mut into[..len];
        let file = &segment.file;
        let read = if waits { file.read_at(into, offset) } else { file.read_cached_at(into, offset) };
        read.unwrap_or(0)
    }

    /// Returns false if the operating system cannot tell which parts of the segment file at `location` are in
    /// memory, so that reads that must not wait return nothing. This is known only after the first such read;
    /// before, the function returns true.
    pub fn tells_cached(&self, location: Location) -> bool {
        self.shared.segment(location.segment()).is_none_or(|segment| segment.file.tells_cached())
    }

    /// Verifies the CRC-32C of a value as [`Values::read`] does, but reads the value in chunks into `buffer`,
    /// and so needs no other memory. Waits for a disk if `waits` is true; otherwise returns false if a wait
    /// would be needed.
    ///
    /// # Errors
    ///
    /// As for [`Values::read`].
    pub fn check(&self, value: Wanted, buffer: &mut [u8], waits: bool) -> Result<bool, ReadError> {
        let Wanted { location, len, crc } = value;
        if location.is_compressed() {
            return self.read_compressed(&value, waits, &mut BytesMut::new());
        }
        let (mut at, mut sum) = (0, 0);
        while at < len as usize {
            let n = buffer.len().min(len as usize - at);
            let part = &mut buffer[..n];
            if !self.read_part(value, at, part, waits)? {
                return Ok(false);
            }
            sum = crc32c::crc32c_append(sum, part);
            at += n;
        }
        if is_as_written(sum, crc) {
            return Ok(true);
        }
        let segment = self.shared.segment(location.segment()).ok_or(ReadError::Moved)?;
        Err(damaged(&segment, u64::from(location.offset()), MISMATCH))
    }

    /// Reads values that lie close to each other (a run, see [`runs`]) with one read. Calls `each` for every
    /// value, in the order of the run, with the result that [`Values::read`] would return.
    pub fn read_run(&self, run: &[Wanted], mut each: impl FnMut(Wanted, Result<Bytes, ReadError>)) {
        if let [first, .., last] = run
            && let Some(segment) = self.shared.segment(first.location.segment())
            && let Ok((start, _)) = extent(&segment, first)
            && let Ok((behind, bytes)) = extent(&segment, last)
        {
            let mut bytes = BytesMut::zeroed((behind + bytes).saturating_sub(start) as usize);
            if segment.file.read_exact_at(&mut bytes, start).is_ok() {
                for wanted in run {
                    let at = u64::from(wanted.location.offset()).saturating_sub(start) as usize;
                    let mut value = BytesMut::new();
                    if self.take_from(wanted, bytes.get(at..).unwrap_or_default(), &mut value) {
                        each(*wanted, Ok(value.freeze()));
                    } else {
                        each(*wanted, self.read(wanted.location, wanted.len, wanted.crc));
                    }
                }
                return;
            }
        }
        // The run has only one value, or cannot be read as a whole. Read each value separately, because some
        // of them may still be readable.
        for wanted in run {
            each(*wanted, self.read(wanted.location, wanted.len, wanted.crc));
        }
    }
}

/// Fills `buf` from the file if that is possible without waiting for a disk; otherwise returns false, and
/// `buf` has undefined contents.
fn read_cached_exact_at(file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<bool> {
    file.read_cached_at(buf, offset).map(|read| read == buf.len())
}

/// Location, length and checksum of a value to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Location of the value.
    pub location: Location,
    /// Length of the value in bytes.
    pub len: u32,
    /// CRC-32C of the value.
    pub crc: u32,
}

/// Maximum number of bytes that a run of several values covers; a single value may be larger.
const RUN_BYTES_MAX: u64 = 256 << 10;
/// Maximum gap in bytes between two values of a run: reading such a gap is cheaper than a second read.
const GAP_BYTES_MAX: u64 = 16 << 10;

/// Sorts `wanted` by location, removes duplicates, and divides it into runs of neighboring values, each of
/// which is best read with one read ([`Values::read_run`]). Returns the number of values of each run, in the
/// order of `wanted`.
pub fn runs(wanted: &mut Vec<Wanted>) -> Vec<usize> {
    let place = |wanted: &Wanted| (wanted.location.segment(), wanted.location.offset());
    wanted.sort_unstable_by_key(place);
    wanted.dedup_by_key(|wanted| place(wanted));
    let mut lens = Vec::new();
    let (mut start, mut end) = ((0, 0), 0);
    for value in wanted.iter() {
        let offset = u64::from(value.location.offset());
        let bytes = match value.location.is_compressed() {
            true => record_bytes_max(value),
            false => u64::from(value.len),
        };
        let behind = offset + bytes;
        let fits = value.location.segment() == start.0
            && offset.saturating_sub(end) <= GAP_BYTES_MAX
            && behind - start.1 <= RUN_BYTES_MAX;
        match lens.last_mut() {
            Some(len) if fits => *len += 1,
            _ => {
                lens.push(1);
                start = (value.location.segment(), offset);
                end = 0;
            }
        }
        end = behind.max(end);
    }
    lens
}

pub(crate) const MISMATCH: &str = "the value's checksum does not match";

/// Returns true if `sum`, the checksum of the bytes that were read, equals `of_value`, the checksum that the
/// value had when it was written.
fn is_as_written(sum: u32, of_value: u32) -> bool {
    sum == of_value || planted::is(planted::Bug::ValueUnverified)
}

/// Reads raft entries by index. Cheap to clone; the clones can be used by several threads.
#[derive(Clone)]
pub struct Entries {
    pub(crate) shared: Arc<Shared>,
}

impl Entries {
    /// Index of the first entry that can be read; larger than [`Entries::last_index`] if there is none.
    pub fn first_index(&self) -> Index {
        self.shared.index().first()
    }

    /// Index of the last entry that is durable.
    pub fn last_index(&self) -> Index {
        self.shared.index().next.previous()
    }

    /// Returns the raft term of an entry. If the segment of the entry was skipped when the log was opened, it
    /// is read now.
    pub fn term(&self, index: Index) -> Result<Term, ReadError> {
        if let Some(term) = self.shared.index().term(index) {
            return Ok(term);
        }
        self.find_unread(index)?;
        self.shared.index().term(index).ok_or(ReadError::Unavailable)
    }

    /// Returns the entries `from..to`. If together they have more than `bytes_max` bytes of data, returns
    /// fewer, beginning at `from`, but at least one entry if the range is not empty. Fails with
    /// [`ReadError::Unavailable`] if the first entry is no longer kept, or if the range reaches beyond the
    /// last entry.
    pub fn read(&self, from: Index, to: Index, bytes_max: u64) -> Result<Vec<Entry>, ReadError> {
        let mut entries = Vec::new();
        if from >= to {
            return Ok(entries);
        }
        self.find_unread(from)?;
        if to > self.shared.index().next {
            return Err(ReadError::Unavailable);
        }
        let mut taken = 0;
        let mut window = Window { segment: None, start: 0, bytes: Bytes::new() };
        for index in (from.0..to.0).map(Index) {
            let place = self.shared.index().place(index);
            let Some((seq, offset)) = place else {
                return if entries.is_empty() { Err(ReadError::Unavailable) } else { Ok(entries) };
            };
            let entry = match self.read_one(&mut window, seq, offset, index) {
                Ok(entry) => entry,
                // The entry was dropped or replaced during the read, so the error is no damage. Return the
                // entries that were read before it.
                Err(_) if self.shared.index().place(index) != place => {
                    return if entries.is_empty() { Err(ReadError::Unavailable) } else { Ok(entries) };
                }
                Err(error) => return Err(error),
            };
            taken += entry.data.len() as u64;
            if taken > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    fn read_one(&self, window: &mut Window, seq: u32, offset: u32, index: Index) -> Result<Entry, ReadError> {
        let offset = u64::from(offset);
        let mut wanted = RECORD_HEADER_BYTES;
        loop {
            let segment = match &window.segment {
                Some(segment) if segment.seq == seq => segment.clone(),
                _ => {
                    let segment = self.shared.segment(seq).ok_or(ReadError::Unavailable)?;
                    *window = Window { segment: Some(segment.clone()), start: 0, bytes: Bytes::new() };
                    segment
                }
            };
            let capacity = segment.capacity.load(Ordering::Relaxed);
            let at = offset.checked_sub(window.start).filter(|at| *at <= window.bytes.len() as u64);
            let bytes = at.map_or(Bytes::new(), |at| window.bytes.slice(at as usize..));
            match find(&bytes, offset, capacity, segment.identity) {
                Found::Record(header, payload) if header.kind == Kind::Entry && header.index == index.0 => {
                    let data = bytes.slice(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload);
                    let (term, entry_type) = (Term(header.term), header.entry_type);
                    return Ok(Entry { term, index, entry_type, data });
                }
                Found::Short(total) if total > bytes.len() => {
                    wanted = wanted.max(total);
                    let durable = u64::from(segment.end.load(Ordering::Acquire));
                    let ahead = durable.saturating_sub(offset).min(READ_BYTES as u64) as usize;
                    let mut fresh = BytesMut::zeroed(wanted.max(ahead));
                    let io = |error| ReadError::Io { path: segment.path.clone(), error };
                    let read = segment.file.read_at(&mut fresh, offset).map_err(io)?;
                    if read < wanted {
                        return Err(damaged(&segment, offset, "the file ends within an entry"));
                    }
                    fresh.truncate(read);
                    window.start = offset;
                    window.bytes = fresh.freeze();
                }
                Found::Invalid(why) => return Err(damaged(&segment, offset, why)),
                _ => return Err(damaged(&segment, offset, "another record is where the entry was")),
            }
        }
    }

    /// If `index` is in a segment that was skipped when the log was opened, reads that segment and the
    /// skipped ones after it, and adds their entries to the index of entries.
    fn find_unread(&self, index: Index) -> Result<(), ReadError> {
        let unread = {
            let known = self.shared.index();
            if index >= known.first_known() || index < known.floor || known.unread.is_empty() {
                return Ok(());
            }
            known.unread.clone()
        };
        let Some(first) = unread.iter().filter(|(_, first)| **first <= index).map(|(seq, _)| *seq).max()
        else {
            return Ok(());
        };
        let mut older = EntryIndex::default();
        for (seq, next) in unread.range(first..) {
            let segment = self.shared.segment(*seq).ok_or(ReadError::Unavailable)?;
            if *seq == first {
                older.next = *next;
            }
            self.index_segment(&segment, &mut older)?;
        }
        let mut known = self.shared.index();
        // If another thread has read or dropped these segments meanwhile, discard the result.
        if known.unread.contains_key(&first) {
            known.prepend(older);
            known.unread.retain(|seq, _| *seq < first);
        }
        Ok(())
    }

    fn index_segment(&self, segment: &Segment, index: &mut EntryIndex) -> Result<(), ReadError> {
        let end = u64::from(segment.end.load(Ordering::Acquire));
        let from = SEGMENT_HEADER_BYTES as u64;
        let mut gap = None;
        let ending = scan::records(&*segment.file, segment.identity, end, from, |offset, header, _| {
            match header.kind {
                Kind::Entry if header.index > index.next.0 => gap = gap.or(Some(offset)),
                Kind::Entry => index.push(segment.seq, Index(header.index), Term(header.term), offset as u32),
                Kind::Reset => index.reset(Index(header.index.saturating_add(1))),
                _ => {}
            }
            io::Result::Ok(())
        })
        .map_err(|error| ReadError::Io { path: segment.path.clone(), error })?;
        if let Some(offset) = gap {
            return Err(damaged(segment, offset, "an entry is missing"));
        }
        match ending.invalid {
            Some(why) => Err(damaged(segment, ending.offset, why)),
            None => Ok(()),
        }
    }
}

struct Window {
    segment: Option<Arc<Segment>>,
    start: u64,
    bytes: Bytes,
}

pub(crate) fn damaged(segment: &Segment, offset: u64, found: &'static str) -> ReadError {
    ReadError::Damaged { path: segment.path.clone(), offset, found }
}
