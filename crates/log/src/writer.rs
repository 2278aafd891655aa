//! Writes queued batches: places their records in segments, and writes and syncs all of them together (group
//! commit). Only this module writes to a segment in use.

use std::collections::{BTreeSet, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use numbers::{EntryId, Index, Term};
use planted::Bug;

use crate::format::{
    COMPRESSED_HEAD_BYTES, END_BYTES, Kind, PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, RecordHeader,
    SEGMENT_HEADER_BYTES, Start, VALUE_COMPRESSED, VALUE_RAW, padded, payload_location, value_location,
};
use crate::preparation::{Preparation, Prepared};
use crate::segment::{Segment, Shared, reserve, write_zeros};
use crate::{
    Batch, Compressed, Entry, EntryPlace, Fatal, HardState, Location, Options, Reset, Synced, Value, ValueId,
};

/// Maximum size in bytes of a payload that is copied next to its header. For a small payload the copy is
/// cheaper than a separate buffer in the vectored write.
const COPY_BYTES_MAX: usize = 256;
/// Bytes at a segment's end that entries and values leave free. On a full disk, hard states still find space
/// there, and so do the records that release segments ([`Kind::Released`]), which then free further space.
pub(crate) const TAIL_BYTES: u64 = 4096;
/// Bytes at a segment's end that hard states and resets leave free for the records that release segments
/// ([`Kind::Released`]).
const RELEASE_TAIL_BYTES: u64 = 2048;

/// A queued batch, or the rest of it: entries, values and the other fields are removed once they are placed
/// in a segment.
pub(crate) struct Request {
    pub ticket: u64,
    pub reset: Option<Reset>,
    pub entries: std::vec::IntoIter<Entry>,
    pub values: std::vec::IntoIter<Value>,
    pub hard_state: Option<HardState>,
    /// Number of bytes of the whole batch, which count as queued until all of it is durable.
    pub bytes: usize,
}

impl Request {
    pub fn new(ticket: u64, batch: Batch, bytes: usize) -> Request {
        Request {
            ticket,
            bytes,
            reset: batch.reset,
            entries: batch.entries.into_iter(),
            values: batch.values.into_iter(),
            hard_state: batch.hard_state,
        }
    }
}

/// Result of [`Writer::commit`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    All,
    /// Some batches, or releases of segments, need a segment that is not ready. They are still queued.
    Starved,
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    preparation: Arc<Preparation>,
    unsafe_no_fsync: bool,
    by_hand: bool,
    active: Option<Arc<Segment>>,
    /// Sequence numbers of the segments before the segment in use that were not released.
    live: BTreeSet<u32>,
    hard_state: HardState,
    base: EntryId,
    next_index: Index,
    last_term: Term,
    write: Write,
    /// Offset in the segment in use up to which the blocks of the file were written before, as zeros or in
    /// the previous use of the file. A sync of writes up to this offset is fast, because the file system has
    /// nothing to write to its journal.
    filled: u64,
    /// Moving average of the sizes of recent writes in bytes.
    typical_bytes: u64,
}

/// Maximum number of zero bytes that are written in advance after a write ([`Writer::zeros_ahead`]).
const AHEAD_BYTES: usize = 256 << 10;
/// Average size in bytes of recent writes from which on no zeros are written in advance. Many entries share
/// the sync of such a large write, so a faster sync matters less than the additional bytes.
const LARGE_WRITE_BYTES: u64 = 12 << 10;

/// The next write, which is being assembled. It begins at the end of the durable records of the segment in
/// use.
#[derive(Default)]
struct Write {
    /// Offset of the first byte of the write. All records of the write contain it as their batch start.
    start: u32,
    /// Offset after the last byte of the write.
    end: u32,
    /// Headers, padding and small payloads, concatenated.
    copied: Vec<u8>,
    pieces: Vec<Piece>,
    effects: Vec<Effect>,
}

enum Piece {
    /// The next bytes of [`Write::copied`]. Contains their number.
    Copied(usize),
    Payload(Bytes),
}

/// Change of the log's state in memory that is made once the write is synced.
enum Effect {
    Entry {
        index: Index,
        term: Term,
        offset: u32,
    },
    Reset(Reset),
    /// `compressed` contains the number of bytes of the payload, and the length of the value.
    Value {
        id: ValueId,
        offset: u32,
        compressed: Option<(u32, u32)>,
    },
    HardState(HardState),
    Released(u32),
}

/// State of the log after opening, from which the writer continues.
pub(crate) struct Position {
    pub active: Option<Arc<Segment>>,
    pub live: BTreeSet<u32>,
    pub hard_state: HardState,
    pub base: EntryId,
    pub next_index: Index,
    pub last_term: Term,
}

impl Writer {
    pub fn new(
        shared: Arc<Shared>,
        preparation: Arc<Preparation>,
        options: &Options,
        position: Position,
    ) -> Writer {
        let end = position.active.as_ref().map_or(0, |active| active.end.load(Ordering::Relaxed));
        let writer = Writer {
            shared,
            preparation,
            unsafe_no_fsync: options.unsafe_no_fsync,
            by_hand: options.by_hand,
            active: position.active,
            live: position.live,
            hard_state: position.hard_state,
            base: position.base,
            next_index: position.next_index,
            last_term: position.last_term,
            write: Write { start: end, end, ..Write::default() },
            filled: 0,
            typical_bytes: 0,
        };
        writer.publish_room();
        writer
    }

    /// Writes and syncs the batches in `queue`, and a record for each segment in `releases`, which contains
    /// the sequence numbers of segments whose files can be deleted or reused. A record that finds no space
    /// in a segment that is ready stays queued, and so do the records behind it in the same queue. What
    /// became durable is added to `synced`, even if an error is returned.
    pub fn commit(
        &mut self,
        queue: &mut VecDeque<Request>,
        releases: &mut VecDeque<u32>,
        synced: &mut Synced,
    ) -> Result<Progress, Fatal> {
        let mut progress = self.place_all(queue, releases, synced)?;
        self.flush(synced)?;
        // If batches or releases of segments are left, report `Starved`, even if a release that was just
        // recorded has freed the missing space: the next segment must be prepared first.
        if !queue.is_empty() || !releases.is_empty() {
            progress = Progress::Starved;
        }
        self.publish_room();
        synced.last_index = self.next_index.previous();
        debug_assert_eq!(
            self.shared.index().next,
            self.next_index,
            "what is placed is written and synced by now"
        );
        Ok(progress)
    }

    fn place_all(
        &mut self,
        queue: &mut VecDeque<Request>,
        releases: &mut VecDeque<u32>,
        synced: &mut Synced,
    ) -> Result<Progress, Fatal> {
        while let Some(&seq) = releases.front() {
            if !self.make_room(0, 0, synced)? {
                break;
            }
            self.place(Kind::Released, 0, 0, u64::from(seq), &[], Bytes::new());
            self.live.remove(&seq);
            self.write.effects.push(Effect::Released(seq));
            releases.pop_front();
        }
        // Of all hard states in the queue only the newest is written, after all other records. If there is no
        // space for it, only the batches before the first one with a hard state are complete. `ticket_held`
        // is the ticket of the last of these, and is reported as durable in that case.
        let mut hard_state = None;
        let mut ticket_done = synced.ticket;
        let mut ticket_held = None;
        while let Some(request) = queue.front_mut() {
            if !self.place_request(request, synced)? {
                break;
            }
            let Some(request) = queue.pop_front() else { break };
            if let Some(state) = request.hard_state {
                hard_state = Some(state);
                ticket_held.get_or_insert(ticket_done);
            }
            ticket_done = request.ticket;
        }
        let starved = !queue.is_empty();
        if let Some(state) = hard_state {
            if self.make_room(8, RELEASE_TAIL_BYTES, synced)? {
                let vote = if planted::is(Bug::VoteForgotten) { 0 } else { state.vote.0 }.to_le_bytes();
                self.place(Kind::HardState, 0, state.term.0, state.commit.0, &vote, Bytes::new());
                self.write.effects.push(Effect::HardState(state));
            } else {
                let batch = Batch { hard_state: Some(state), ..Batch::default() };
                queue.push_front(Request::new(ticket_done, batch, 0));
                synced.ticket = ticket_held.unwrap_or(ticket_done);
                return Ok(Progress::Starved);
            }
        }
        synced.ticket = ticket_done;
        Ok(if starved { Progress::Starved } else { Progress::All })
    }

    /// Places all records of a request except its hard state. Returns false if a segment was missing; the
    /// records that were placed are then removed from the request.
    fn place_request(&mut self, request: &mut Request, synced: &mut Synced) -> Result<bool, Fatal> {
        if let Some(reset) = request.reset {
            // A Reset may use the space that is kept for hard states, because it has to be written on a full
            // disk, too: it makes all entries void, so that their segments can be released.
            if !self.make_room(0, RELEASE_TAIL_BYTES, synced)? {
                return Ok(false);
            }
            self.place(Kind::Reset, 0, reset.term.0, reset.index.0, &[], Bytes::new());
            self.write.effects.push(Effect::Reset(reset));
            self.base = EntryId { index: reset.index, term: reset.term };
            self.next_index = reset.index + 1;
            self.last_term = reset.term;
            request.reset = None;
        }
        while let Some(next) = request.entries.as_slice().first() {
            if !self.make_room(next.data.len(), TAIL_BYTES, synced)? {
                return Ok(false);
            }
            let Some(entry) = request.entries.next() else { break };
            let offset =
                self.place(Kind::Entry, entry.entry_type, entry.term.0, entry.index.0, &[], entry.data);
            self.write.effects.push(Effect::Entry { index: entry.index, term: entry.term, offset });
            self.next_index = entry.index + 1;
            self.last_term = entry.term;
        }
        while let Some(next) = request.values.as_slice().first() {
            if !self.make_room(next.head_bytes() + next.data.len(), TAIL_BYTES, synced)? {
                return Ok(false);
            }
            let Some(value) = request.values.next() else { break };
            let mut head = Vec::with_capacity(value.head_bytes());
            head.extend_from_slice(&value.id.sub.to_le_bytes());
            let (mut form, mut compressed) = (VALUE_RAW, None);
            if let Some(Compressed { len, dictionary }) = value.compressed {
                head.extend_from_slice(&len.to_le_bytes());
                head.extend_from_slice(&dictionary.to_le_bytes());
                form = VALUE_COMPRESSED;
                compressed = Some(((head.len() + value.data.len()) as u32, len));
            }
            let offset = self.place(Kind::Value, form, 0, value.id.main as u64, &head, value.data);
            self.write.effects.push(Effect::Value { id: value.id, offset, compressed });
        }
        Ok(true)
    }

    /// Adds a record to the write and returns its offset in the segment. The payload is `head` followed by
    /// `tail`. The caller has checked that the record fits.
    fn place(&mut self, kind: Kind, entry_type: u8, term: u64, index: u64, head: &[u8], tail: Bytes) -> u32 {
        let offset = self.write.end;
        let header = RecordHeader { kind, entry_type, batch_start: self.write.start, term, index };
        let len = head.len() + tail.len();
        assert!(self.active.is_some(), "there is room, so there is a segment");
        let Some(active) = &self.active else { return offset };
        let header = header.encode(active.identity, offset, &[head, &tail]);
        let write = &mut self.write;
        write.copy(&header);
        write.copy(head);
        if tail.len() <= COPY_BYTES_MAX {
            write.copy(&tail);
        } else {
            write.pieces.push(Piece::Payload(tail));
        }
        let padding = padded(len) - RECORD_HEADER_BYTES - len;
        write.copy(&[0; 8][..padding]);
        write.end += padded(len) as u32;
        offset
    }

    /// Ensures that the segment in use has space for a record with a payload of this length, and for `tail`
    /// further bytes after the record. Changes to the next segment if necessary. Returns false if that
    /// segment is not ready, or if the file cannot be enlarged for a record larger than a segment.
    fn make_room(&mut self, payload: usize, tail: u64, synced: &mut Synced) -> Result<bool, Fatal> {
        assert!(payload < PAYLOAD_BYTES_MAX + COMPRESSED_HEAD_BYTES, "checked when it was appended");
        let need = padded(payload) as u64 + tail;
        // Clients could forge records of a segment of format version 1. So such a segment is replaced as soon
        // as another segment is ready, even if it is not full. On a full disk it stays in use.
        let leave = |active: &Segment| active.guessable && self.preparation.ready();
        if let Some(active) = self.active.as_ref().filter(|active| !leave(active)) {
            if u64::from(self.write.end) + need <= active.capacity.load(Ordering::Relaxed) {
                return Ok(true);
            }
            // If the segment is still empty, the record is larger than a whole segment. Enlarge the file of
            // this segment: the next segment would be too small, too.
            if self.is_fresh() {
                return Ok(self.grow(need));
            }
        }
        self.flush(synced)?;
        let Some(prepared) = self.preparation.take() else {
            self.shared.figures.waits.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        };
        self.begin_segment(prepared);
        let fits = self.active.as_ref().is_some_and(|active| {
            u64::from(self.write.end) + need <= active.capacity.load(Ordering::Relaxed)
        });
        Ok(fits || self.grow(need))
    }

    /// Returns true if the segment in use contains only its Start record.
    fn is_fresh(&self) -> bool {
        let start = padded(48 + 4 * self.live.len()) as u64 + SEGMENT_HEADER_BYTES as u64;
        u64::from(self.write.end) <= start
    }

    /// Enlarges the file of the segment in use, so that `need` bytes fit after the records that are placed.
    /// Returns false if there is no space for that, which is not fatal.
    fn grow(&mut self, need: u64) -> bool {
        let Some(active) = &self.active else { return false };
        let capacity = active.capacity.load(Ordering::Relaxed);
        let wanted = u64::from(self.write.end) + need;
        assert!(wanted < u64::from(u32::MAX), "a segment's offsets have 32 bits");
        // On a full disk the spare files, including the reserve, are removed one after the other to make
        // space.
        let disk = &*self.shared.disk;
        while reserve(disk, &active.path, &*active.file, capacity, wanted - capacity).is_err() {
            if !self.preparation.give_up_spare() {
                return false;
            }
        }
        active.capacity.store(wanted, Ordering::Relaxed);
        true
    }

    fn begin_segment(&mut self, prepared: Prepared) {
        let mut end_before = 0;
        if let Some(sealed) = self.active.take() {
            end_before = sealed.end.load(Ordering::Relaxed);
            sealed.last_index.store(self.next_index.0 - 1, Ordering::Relaxed);
            sealed.sealed.store(true, Ordering::Release);
            self.live.insert(sealed.seq);
        }
        let segment = Arc::new(Segment {
            seq: prepared.seq,
            path: prepared.path,
            file: prepared.file,
            identity: prepared.header.identity(),
            guessable: false,
            first_index: self.next_index,
            capacity: AtomicU64::new(prepared.header.capacity),
            end: AtomicU32::new(SEGMENT_HEADER_BYTES as u32),
            last_index: AtomicU64::new(self.next_index.0 - 1),
            sealed: AtomicBool::new(false),
            releasing: AtomicBool::new(false),
        });
        self.shared.insert(segment.clone());
        self.active = Some(segment);
        self.filled = prepared.filled;
        self.write.start = SEGMENT_HEADER_BYTES as u32;
        self.write.end = SEGMENT_HEADER_BYTES as u32;
        let start = Start {
            next_index: self.next_index,
            last_term: self.last_term,
            hard_state: self.hard_state,
            base: self.base,
            end_before,
            live: self.live.iter().copied().collect(),
        };
        let payload = start.encode();
        let room = self.active.as_ref().map_or(0, |active| active.capacity.load(Ordering::Relaxed));
        let need = padded(payload.len()) as u64;
        assert!(
            u64::from(self.write.end) + need <= room,
            "a segment of {room} bytes has room for the list of {} segments before it",
            self.live.len()
        );
        self.place(Kind::Start, 0, self.last_term.0, self.next_index.0, &payload, Bytes::new());
    }

    /// Writes and syncs the placed records. Any error is fatal, because it is then unknown which data is on
    /// the disk.
    fn flush(&mut self, synced: &mut Synced) -> Result<(), Fatal> {
        let Some(active) = self.active.clone() else { return Ok(()) };
        if self.write.pieces.is_empty() {
            return Ok(());
        }
        let bytes = u64::from(self.write.end - self.write.start);
        if u64::from(self.write.end) + END_BYTES as u64 <= active.capacity.load(Ordering::Relaxed) {
            self.write.copy(&[0; END_BYTES]);
        }
        let fatal = |doing, error| Fatal { doing, path: active.path.clone(), error: Arc::new(error) };
        let figures = &self.shared.figures;
        self.typical_bytes = (self.typical_bytes * 7 + bytes) / 8;
        let capacity = active.capacity.load(Ordering::Relaxed);
        let zeros = self.zeros_ahead(capacity);
        let begun = Instant::now();
        let mut pieces = self.write.slices();
        active
            .file
            .write_vectored_at(&mut pieces, u64::from(self.write.start))
            .map_err(|error| fatal("write to", error))?;
        if zeros > 0 {
            let behind = u64::from(self.write.end) + END_BYTES as u64;
            write_zeros(&*active.file, behind, zeros as u64).map_err(|error| fatal("write to", error))?;
            figures.prepared_bytes.fetch_add(zeros as u64, Ordering::Relaxed);
        }
        let written = Instant::now();
        figures.writes.add(written - begun);
        figures.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.filled = self.filled.max(u64::from(self.write.end) + zeros as u64);
        let mut waited = None;
        if !self.unsafe_no_fsync && !planted::is(Bug::AckBeforeSync) {
            let outcome = active.file.sync_data();
            let outcome = if planted::is(Bug::SyncErrorIgnored) {
                outcome.or_else(|_| active.file.sync_data())
            } else {
                outcome
            };
            outcome.map_err(|error| fatal("sync", error))?;
            let took = written.elapsed();
            synced.took = (!self.by_hand).then_some(took);
            waited = Some(took);
        }
        synced.written = Some(written);
        let entries = self.take_effect(&active, synced);
        if let Some(took) = waited {
            self.shared.figures.synced(took, entries);
        }
        Ok(())
    }

    /// Returns the number of zeros to write after this write. Later writes then overwrite blocks that were
    /// written before, and their syncs are faster. Measured for writes of 1 KiB: a sync of blocks that are
    /// only reserved takes 140 us of processor time and waits for the journal of the file system; a sync of
    /// blocks written before takes 62 us.
    fn zeros_ahead(&self, capacity: u64) -> usize {
        let end = u64::from(self.write.end) + END_BYTES as u64;
        if self.typical_bytes >= LARGE_WRITE_BYTES || end <= self.filled || end >= capacity {
            return 0;
        }
        usize::try_from(capacity - end).map_or(AHEAD_BYTES, |left| left.min(AHEAD_BYTES))
    }

    /// Makes the written records visible to readers, and notes them in `synced`. Returns the number of entries.
    fn take_effect(&mut self, active: &Segment, synced: &mut Synced) -> u64 {
        let write = &mut self.write;
        active.end.store(write.end, Ordering::Release);
        let mut index = self.shared.index();
        let mut entries = 0;
        for effect in write.effects.drain(..) {
            match effect {
                Effect::Entry { index: number, term, offset } => {
                    index.push(active.seq, number, term, offset);
                    let location = payload_location(active.seq, offset);
                    synced.locations.push(EntryPlace { index: number, location });
                    entries += 1;
                }
                Effect::Reset(reset) => index.reset(reset.index + 1),
                Effect::Value { id, offset, compressed } => {
                    let location = match compressed {
                        None => value_location(active.seq, offset),
                        Some((stored, len)) => Location::compressed(active.seq, offset, stored, len)
                            .expect("only values for which it pays are compressed"),
                    };
                    synced.values.push((id, location));
                }
                Effect::HardState(state) => {
                    self.hard_state = state;
                    synced.hard_state = Some(state);
                }
                Effect::Released(seq) => {
                    index.remove_segment(seq);
                    if let Some(gone) = self.shared.remove(seq) {
                        self.preparation.discard(gone.path.clone());
                    }
                }
            }
        }
        drop(index);
        active.last_index.store(self.next_index.0 - 1, Ordering::Relaxed);
        self.shared.figures.entries.fetch_add(entries, Ordering::Relaxed);
        write.start = write.end;
        write.copied.clear();
        write.pieces.clear();
        entries
    }

    fn publish_room(&self) {
        let room = self.active.as_ref().map_or(0, |active| {
            let taken = u64::from(self.write.end) + TAIL_BYTES;
            active.capacity.load(Ordering::Relaxed).saturating_sub(taken)
        });
        self.shared.room.store(room, Ordering::Release);
    }
}

impl Write {
    fn copy(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.copied.extend_from_slice(bytes);
        match self.pieces.last_mut() {
            Some(Piece::Copied(len)) => *len += bytes.len(),
            _ => self.pieces.push(Piece::Copied(bytes.len())),
        }
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut rest = self.copied.as_slice();
        self.pieces
            .iter()
            .map(|piece| match piece {
                Piece::Copied(len) => {
                    let (part, after) = rest.split_at(*len);
                    rest = after;
                    IoSlice::new(part)
                }
                Piece::Payload(bytes) => IoSlice::new(bytes),
            })
            .collect()
    }
}
