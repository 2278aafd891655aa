//! Describes the open segments ([`Segment`]) and the state that all parts of the log share ([`Shared`]), and
//! reserves space in segment files.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use compression::Dictionaries;
use disk::{Disk, File, Reservation};
use numbers::Index;

use crate::entry_index::EntryIndex;
use crate::figures::Figures;
use crate::format::Identity;
use crate::{Need, SegmentState, Space};

/// The open file of a segment, and its state, which only the log's writer changes.
pub(crate) struct Segment {
    pub seq: u32,
    pub path: PathBuf,
    pub file: Arc<dyn File>,
    pub identity: Identity,
    /// True for a segment of format version 1, which has no secret, so that clients could forge its records.
    /// The writer stops using it as soon as another segment is ready.
    pub guessable: bool,
    pub first_index: Index,
    /// Length of the file in bytes.
    pub capacity: AtomicU64,
    /// Offset in bytes at which the durable records of the segment end.
    pub end: AtomicU32,
    pub last_index: AtomicU64,
    pub sealed: AtomicBool,
    /// True once the segment's release has been requested.
    pub releasing: AtomicBool,
}

impl Segment {
    pub fn state(&self) -> SegmentState {
        SegmentState {
            seq: self.seq,
            file_bytes: self.capacity.load(Ordering::Relaxed),
            used_bytes: u64::from(self.end.load(Ordering::Relaxed)),
            first_index: self.first_index,
            last_index: Index(self.last_index.load(Ordering::Relaxed)),
            sealed: self.sealed.load(Ordering::Relaxed),
            releasing: self.releasing.load(Ordering::Relaxed),
        }
    }
}

/// State that the writer, the readers and the handles share.
pub(crate) struct Shared {
    pub disk: Arc<dyn Disk>,
    /// Dictionaries of compressed values.
    pub dictionaries: Dictionaries,
    segments: RwLock<BTreeMap<u32, Arc<Segment>>>,
    index: Mutex<EntryIndex>,
    pub figures: Figures,
    space: AtomicU8,
    /// Number of bytes of records that the segment in use can still take.
    pub room: AtomicU64,
    /// Number of bytes of the file system that the log leaves free for other parts of the server
    /// ([`crate::Values::hold_room`]).
    held_bytes: AtomicU64,
    /// Urgency of the space in `held_bytes`: a [`Need`] as a number. Meaningless while
    /// `held_bytes` is 0.
    need: AtomicU8,
    /// True once the file system had no space for a file although it reported enough. This happens, for
    /// example, with a quota on a file server, which is not part of the reported free space.
    pub has_hidden_limit: AtomicBool,
    /// True if the log is about to be closed. Files are then no longer prepared in advance.
    pub winding_down: AtomicBool,
}

impl Shared {
    pub fn new(disk: Arc<dyn Disk>, dictionaries: Dictionaries) -> Shared {
        Shared {
            disk,
            dictionaries,
            segments: RwLock::new(BTreeMap::new()),
            index: Mutex::new(EntryIndex::default()),
            figures: Figures::default(),
            space: AtomicU8::new(0),
            room: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            need: AtomicU8::new(Need::Passing as u8),
            has_hidden_limit: AtomicBool::new(false),
            winding_down: AtomicBool::new(false),
        }
    }

    pub fn segment(&self, seq: u32) -> Option<Arc<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).get(&seq).cloned()
    }

    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub fn insert(&self, segment: Arc<Segment>) {
        let before =
            self.segments.write().unwrap_or_else(PoisonError::into_inner).insert(segment.seq, segment);
        assert!(before.is_none(), "two segments with one sequence number");
    }

    pub fn remove(&self, seq: u32) -> Option<Arc<Segment>> {
        self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&seq)
    }

    pub fn index(&self) -> MutexGuard<'_, EntryIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn hold_room(&self, bytes: u64, need: Need) {
        self.need.store(need as u8, Ordering::Release);
        self.held_bytes.store(bytes, Ordering::Release);
    }

    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Acquire)
    }

    /// Returns how urgently other parts of the server need the space that is held for them; `None` if no
    /// space is held.
    pub fn need(&self) -> Option<Need> {
        (self.held_bytes() > 0).then(|| match self.need.load(Ordering::Acquire) {
            0 => Need::Passing,
            1 => Need::More,
            _ => Need::Urgent,
        })
    }

    pub fn space(&self) -> Space {
        match self.space.load(Ordering::Acquire) {
            0 => Space::Ample,
            1 => Space::Low,
            _ => Space::Exhausted,
        }
    }

    pub fn set_space(&self, space: Space) {
        self.space.store(space as u8, Ordering::Release);
    }
}

/// Returns the name of a segment's file.
pub(crate) fn file_name(seq: u32) -> String {
    format!("{seq:016x}.seg")
}

/// Returns the sequence number in the name of a segment's file; `None` for other names.
pub(crate) fn seq_of(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".seg")?;
    let plain = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if plain { u32::from_str_radix(digits, 16).ok() } else { None }
}

const PAGE_BYTES: u64 = 4096;
static ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// Fills a part of a file with zeros, with one write per page. After a single large write, Linux would hold
/// the data in large folios of the page cache. A later small write into such a folio marks the whole folio as
/// changed, and all of it may be written back (measured: 90 KB instead of 5 KB for a write of 1 KiB).
pub(crate) fn write_zeros(file: &dyn File, from: u64, len: u64) -> io::Result<()> {
    let (mut at, end) = (from, from + len);
    while at < end {
        let piece = (PAGE_BYTES - at % PAGE_BYTES).min(end - at);
        file.write_at(&ZEROS[..piece as usize], at)?;
        at += piece;
    }
    Ok(())
}

/// Returns true if [`reserve`] failed because the file cannot be as large as requested; a smaller request may
/// succeed.
pub(crate) fn is_refused_for_size(error: &io::Error) -> bool {
    disk::is_full(error) || error.kind() == io::ErrorKind::FileTooLarge
}

/// Number of zero bytes that [`reserve`] writes between two syncs. A sync of the log on the same disk then
/// waits for this many bytes at most, and not for a whole segment.
const RESERVED_AT_ONCE_BYTES: u64 = 1 << 20;

/// Reserves space in a file from `from` on. If the file system cannot reserve space, writes zeros over the
/// range and syncs them, because on a network file system only the sync shows whether there is enough space.
/// Returns the number of zeros written. If there is not enough space, the file keeps its length. Zeros that
/// were written into holes before the end of the file stay, and keep their space.
pub(crate) fn reserve(disk: &dyn Disk, path: &Path, file: &dyn File, from: u64, len: u64) -> io::Result<u64> {
    let before = file.len()?;
    if file.allocate(from, len)? == Reservation::Made {
        return Ok(0);
    }
    let outcome = (|| {
        // Check the free space first. Otherwise each retry on a nearly full disk would fill the rest of the
        // disk with zeros before it fails.
        let lacking = file.hole_bytes()?;
        if disk.space(path).is_ok_and(|space| space.free_bytes < lacking) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (mut at, end) = (from, from + len);
        while at < end {
            let piece = RESERVED_AT_ONCE_BYTES.min(end - at);
            write_zeros(file, at, piece)?;
            file.sync_data()?;
            at += piece;
        }
        Ok(len)
    })();
    if outcome.is_err() {
        // Give back the space that was taken beyond the old end of the file. An error is ignored: its only
        // effect is that the file stays longer than before.
        let _ = file.set_len(before);
    }
    outcome
}
