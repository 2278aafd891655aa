//! Prepares the files of segments in advance, so that the writer does not wait for them, and keeps a spare
//! file as the reserve for a full disk.
//!
//! Besides segments, the log's directory contains spare files (`<name>.free`), whose contents do not matter,
//! and unfinished files (`*.tmp`), which are removed when the log is opened after a crash.
//!
//! A new segment is made from a spare file if more than one exists: the file is renamed and gets a new
//! header. The file is not truncated, because syncs are fastest where the blocks of the file were written
//! before. Otherwise a new file with reserved space is made. One spare file is always kept as the reserve.
//! When the disk has no space for a new file, the reserve becomes the next segment. [`Space`] then reports a
//! shortage early, while that whole segment can still be filled.
//!
//! If the log is about to be closed, nothing is prepared in advance ([`crate::Values::wind_down`]).
//!
//! Measured: at p99 a sync takes 0.47-0.69 ms into space that is merely reserved, and 0.35-0.39 ms into space
//! filled with zeros; at p50 both take the same time. But filling with zeros doubles the bytes written. So
//! the next segment is filled only if the segment in use lasts longer than [`Options::quiet_after`], which
//! means that the log grows slowly.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use disk::File;
use planted::Bug;
use stdx::Random;

use crate::format::{END_BYTES, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::segment::{Shared, file_name, reserve, write_zeros};
use crate::writer::TAIL_BYTES;
use crate::{Need, Options, Space};

/// Name of the file in which the next segment is being made.
pub(crate) const NEXT_TMP: &str = "next.tmp";
pub(crate) const SPARE_TMP: &str = "spare.tmp";
/// Size in bytes of the chunks in which a segment is filled with zeros. Each chunk is synced, with a pause
/// ([`FILL_PAUSE`]) between two chunks, so that syncs of the log are not delayed for long.
const FILL_BYTES: usize = 256 << 10;
const FILL_PAUSE: Duration = Duration::from_millis(20);
/// Time after which a step is repeated that would have taken space that other parts of the server are about
/// to take.
const HELD_PAUSE: Duration = Duration::from_millis(10);
/// Time after which a failed step is repeated, for example because the disk was full, unless a segment is
/// released earlier.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A segment that is ready for use: its file has its final name and its header, and both are durable.
pub(crate) struct Prepared {
    pub seq: u32,
    pub path: PathBuf,
    pub file: Arc<dyn File>,
    pub header: SegmentHeader,
    /// Offset up to which the file is filled with zeros.
    pub filled: u64,
}

pub(crate) struct Preparation {
    shared: Arc<Shared>,
    options: Options,
    stock: Mutex<Stock>,
    changed: Condvar,
}

#[derive(Default)]
struct Stock {
    next: Option<Prepared>,
    next_seq: u32,
    /// True while a chunk of the next segment is being filled with zeros. A writer that takes the segment
    /// waits until the chunk is written.
    filling: bool,
    /// True if the writer needs the next segment and did not find it ready.
    wanted: bool,
    spares: Vec<PathBuf>,
    spare_number: u64,
    /// Number of secrets drawn from the seed so far.
    drawn: u64,
    discarded: VecDeque<PathBuf>,
    active_since: Option<Instant>,
    failed: bool,
    stop: bool,
}

/// Result of one step of preparation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The step has done something, and there may be more to do.
    Done,
    /// Nothing is left to do.
    Idle,
    /// There was no space. The step should be repeated later, or when a segment is released.
    Failed,
    /// The step would take space that other parts of the server are taking at the moment. It should be
    /// repeated soon.
    Held,
}

impl Preparation {
    pub fn new(shared: Arc<Shared>, options: Options, next_seq: u32) -> Preparation {
        let stock = Stock { next_seq, ..Stock::default() };
        Preparation { shared, options, stock: Mutex::new(stock), changed: Condvar::new() }
    }

    /// Returns the next segment if it is ready; otherwise records that it is needed and returns `None`.
    pub fn take(&self) -> Option<Prepared> {
        let mut stock = self.lock();
        while stock.filling {
            stock = self.changed.wait(stock).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(next) = stock.next.take() else {
            stock.wanted = true;
            self.changed.notify_all();
            return None;
        };
        stock.active_since = Some(Instant::now());
        stock.next_seq = next.seq.wrapping_add(1);
        self.changed.notify_all();
        Some(next)
    }

    /// Returns true if [`Preparation::take`] would return a segment now.
    pub fn ready(&self) -> bool {
        self.lock().next.is_some()
    }

    /// Returns the sequence number of the segment that [`Preparation::take`] returns next.
    pub fn next_seq(&self) -> u32 {
        self.lock().next_seq
    }

    /// Returns the number of bytes of records that fit into the prepared files: the next segment and the
    /// spare files.
    pub fn ready_bytes(&self) -> u64 {
        let stock = self.lock();
        let next = stock.next.as_ref().map_or(0, |next| usable(next.header.capacity));
        next + stock.spares.len() as u64 * usable(u64::from(self.options.segment_bytes))
    }

    /// Returns the free bytes of the file system without those that are held for other parts of the server;
    /// `None` if the operating system does not report the free space.
    pub fn free_bytes(&self) -> Option<u64> {
        let space = self.shared.disk.space(&self.options.dir).ok()?;
        Some(space.free_bytes.saturating_sub(self.shared.held_bytes()))
    }

    pub fn shares_file_system(&self, dir: &Path) -> bool {
        self.shared.disk.share_file_system(&self.options.dir, dir).unwrap_or(true)
    }

    /// Returns true if space is held for other parts of the server, and a new file of the log could take some
    /// of it.
    fn is_held(&self) -> bool {
        self.shared.need().is_some()
            && (self.shared.has_hidden_limit.load(Ordering::Relaxed) || !self.gives_segment())
    }

    /// Returns true if the file system reports enough free space for a segment, in addition to the space held
    /// for other parts of the server.
    fn gives_segment(&self) -> bool {
        self.free_bytes().is_some_and(|free| free >= u64::from(self.options.segment_bytes))
    }

    /// Creates an empty file, replacing one of the same name that an earlier attempt has left. Fails if the
    /// file could take space that is held for other parts of the server.
    fn create(&self, making: &Path) -> io::Result<Arc<dyn File>> {
        if self.is_held() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.shared.disk.exists(making)? {
            self.shared.disk.remove(making)?;
        }
        self.shared.disk.create(making)
    }

    /// Reserves space for a whole segment in a file, which is new or was a spare file. Returns the number of
    /// zeros written (see [`reserve`]).
    fn reserve(&self, file: &dyn File) -> io::Result<u64> {
        let bytes = u64::from(self.options.segment_bytes);
        // If the disk counts as full although the file system reports enough space, the file system has a
        // limit that it does not report. The reported space is checked before and after the call: if it was
        // freed only during the call, the error proves nothing.
        let gave = self.gives_segment();
        let made = reserve(&*self.shared.disk, &self.options.dir, file, 0, bytes);
        if made.as_ref().is_err_and(disk::is_full) && gave && self.gives_segment() {
            self.shared.has_hidden_limit.store(true, Ordering::Relaxed);
        }
        made
    }

    /// Removes a spare file, even the last one, so that the segment in use can grow into the freed space.
    /// Returns false if there is none or it cannot be removed.
    pub fn give_up_spare(&self) -> bool {
        let Some(path) = self.lock().spares.pop() else { return false };
        let removed = self.shared.disk.remove(&path).is_ok();
        self.changed.notify_all();
        removed
    }

    /// Sets the next segment, which an earlier process has prepared.
    pub fn put_next(&self, prepared: Prepared) {
        let mut stock = self.lock();
        assert!(stock.next.is_none() && stock.next_seq == prepared.seq, "segments are prepared in order");
        stock.next = Some(prepared);
    }

    /// Adds a spare file that was found when the log was opened.
    pub fn put_spare(&self, path: PathBuf) {
        self.lock().spares.push(path);
    }

    /// Queues the file of a released segment. A later step keeps the file as a spare file or removes it.
    pub fn discard(&self, path: PathBuf) {
        self.lock().discarded.push_back(path);
        self.changed.notify_all();
    }

    pub fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }

    /// Runs the main loop of the preparing thread. `notify` is called when a segment becomes ready or the
    /// state of the space has changed.
    pub fn run(&self, notify: impl Fn()) {
        loop {
            let before = (self.shared.space(), self.ready());
            let step = self.step();
            if (self.shared.space(), self.ready()) != before {
                notify();
            }
            let mut stock = self.lock();
            if stock.stop {
                return;
            }
            let wait = match step {
                Step::Done => continue,
                Step::Failed => Some(RETRY_AFTER),
                Step::Held => Some(HELD_PAUSE),
                Step::Idle => match self.fill_due(&stock) {
                    Some(due) if due.is_zero() => {
                        let filled = self.fill(stock);
                        stock = self.lock();
                        if stock.stop {
                            return;
                        }
                        Some(if filled { FILL_PAUSE } else { RETRY_AFTER })
                    }
                    due => due,
                },
            };
            // If a file was discarded or the next segment was taken since the step, its notification has
            // already passed, and waiting here would miss it. So the next step is done without a wait.
            if !stock.discarded.is_empty() || (self.needs_next(&stock) && step == Step::Idle) {
                continue;
            }
            match wait {
                Some(wait) => drop(self.changed.wait_timeout(stock, wait)),
                None => drop(self.changed.wait(stock)),
            }
        }
    }

    /// Does one step: removes or keeps a discarded file, prepares the next segment, or makes a new reserve.
    pub fn step(&self) -> Step {
        let mut stock = self.lock();
        if let Some(path) = stock.discarded.pop_front() {
            // While other parts of the server need space, the file is removed, unless the log itself has no
            // next segment and needs the file for it.
            let held = self.shared.need().is_some() && stock.next.is_some();
            let keep = stock.spares.len() < self.options.spare_files_max && !self.winds_down() && !held;
            drop(stock);
            self.free(&path, keep);
            return Step::Done;
        }
        let wants_file = stock.spares.len() <= usize::from(self.needs_next(&stock));
        if wants_file && !self.winds_down() && self.shared.need() == Some(Need::Passing) && self.is_held() {
            // Other parts of the server are taking the held space at this moment. Report no shortage now,
            // because only afterwards is it known how much space is free.
            return Step::Held;
        }
        if self.needs_next(&stock) {
            let seq = stock.next_seq;
            let spare = if stock.spares.len() > 1 { stock.spares.pop() } else { None };
            drop(stock);
            return self.prepare_next(seq, spare);
        }
        if self.gives_up_next(&stock)
            && let Some(next) = stock.next.take()
        {
            drop(stock);
            let _ = self.shared.disk.remove(&next.path);
            return self.settle(true);
        }
        if self.winds_down() {
            // The next process makes the files that are missing now. So the state of the space is not
            // published: missing files do not mean that space is lacking.
            return Step::Idle;
        }
        if stock.spares.is_empty() {
            drop(stock);
            return match self.make_spare() {
                Ok(path) => {
                    self.lock().spares.push(path);
                    Step::Done
                }
                Err(_) => self.settle(true),
            };
        }
        drop(stock);
        self.settle(false)
    }

    fn winds_down(&self) -> bool {
        self.shared.winding_down.load(Ordering::Acquire)
    }

    /// Returns true if the next segment must be prepared now.
    fn needs_next(&self, stock: &Stock) -> bool {
        stock.next.is_none() && (stock.wanted || !self.winds_down())
    }

    /// Returns true if other parts of the server need the space of the next segment more urgently than the
    /// log does ([`crate::Values::hold_room`]). That happens only on a file system with a limit that it does
    /// not report. On other file systems the log never takes the held space.
    fn gives_up_next(&self, stock: &Stock) -> bool {
        let in_use = self.shared.room.load(Ordering::Acquire);
        self.shared.has_hidden_limit.load(Ordering::Relaxed)
            && self.shared.need() == Some(Need::Urgent)
            && !stock.filling
            && !stock.wanted
            && in_use >= usable(u64::from(self.options.segment_bytes)) * 3 / 4
    }

    fn prepare_next(&self, seq: u32, spare: Option<PathBuf>) -> Step {
        let first = match spare {
            Some(_) => self.prepare(seq, spare).or_else(|_| self.prepare(seq, None)),
            None => self.prepare(seq, None),
        };
        let outcome = first.or_else(|error| {
            // The disk probably has no space for a new file, so the reserve becomes the next segment.
            let reserve = self.lock().spares.pop();
            reserve.map_or(Err(error), |path| self.prepare(seq, Some(path)))
        });
        match outcome {
            Ok(prepared) => {
                let mut stock = self.lock();
                (stock.next, stock.wanted) = (Some(prepared), false);
                // The state of the space is not published here: the next step tries to make a new reserve,
                // and then publishes it.
                Step::Done
            }
            Err(_) => self.settle(true),
        }
    }

    /// Publishes the [`Space`] that follows from the files that are ready, when no further step is possible.
    /// `failed` is true if that is because there was no space for a file.
    fn settle(&self, failed: bool) -> Step {
        let mut stock = self.lock();
        stock.failed = failed;
        let space = match (stock.next.is_some(), stock.spares.is_empty()) {
            (true, false) => Space::Ample,
            (true, true) => Space::Low,
            (false, _) if failed => Space::Exhausted,
            (false, _) => self.shared.space(),
        };
        self.shared.set_space(space);
        if failed { Step::Failed } else { Step::Idle }
    }

    fn prepare(&self, seq: u32, spare: Option<PathBuf>) -> io::Result<Prepared> {
        let disk = &self.shared.disk;
        let dir = &self.options.dir;
        let making = dir.join(NEXT_TMP);
        let path = dir.join(file_name(seq));
        let outcome = (|| {
            let file = match &spare {
                Some(spare) => {
                    disk.rename(spare, &making)?;
                    // Sync the new name before the contents change. Otherwise a crash could bring back the
                    // old name of the file together with the new contents.
                    if !planted::is(Bug::DirectoryNotSynced) {
                        disk.sync_dir(dir)?;
                    }
                    disk.open(&making)?
                }
                None => self.create(&making)?,
            };
            let capacity = u64::from(self.options.segment_bytes);
            if file.len()? > capacity {
                file.set_len(capacity)?;
            }
            let zeros = self.reserve(&*file)?;
            let header = SegmentHeader {
                seq,
                cluster_id: self.options.cluster_id,
                member_id: self.options.member_id,
                incarnation: self.options.incarnation,
                capacity,
                secret: Some(self.draw_secret(seq)),
            };
            let mut bytes = header.encode();
            // The zeros after the header mark the end of the records, of which there are none yet. Without
            // them, an old record in a recycled file would be taken for a torn record.
            bytes.resize(SEGMENT_HEADER_BYTES + END_BYTES.max(RECORD_HEADER_BYTES), 0);
            file.write_at(&bytes, 0)?;
            file.sync_all()?;
            disk.rename(&making, &path)?;
            if !planted::is(Bug::DirectoryNotSynced) {
                disk.sync_dir(dir)?;
            }
            self.shared.figures.prepared_bytes.fetch_add(bytes.len() as u64 + zeros, Ordering::Relaxed);
            // A recycled file counts as filled, because all its blocks were written in its previous use.
            let filled = if spare.is_some() || zeros > 0 { capacity } else { SEGMENT_HEADER_BYTES as u64 };
            Ok(Prepared { seq, path: path.clone(), file, header, filled })
        })();
        if outcome.is_err() {
            // Remove the unfinished file, because it would occupy space that is lacking. An error is ignored:
            // a file that stays is removed or replaced later.
            let _ = disk.remove(&making);
            let _ = disk.remove(&path);
        }
        outcome
    }

    /// Draws the secret for a new use of a file: a random number, or a number derived from the seed in the
    /// options.
    fn draw_secret(&self, seq: u32) -> u64 {
        match self.options.secret_seed {
            // The hash cannot be guessed: its keys come from randomness of the operating system, and each
            // `RandomState` has other keys.
            None => RandomState::new().hash_one(seq),
            Some(seed) => {
                let mut stock = self.lock();
                stock.drawn += 1;
                let mix = |number| Random::new(number).number();
                mix(seed ^ mix(u64::from(seq) << 32 | stock.drawn))
            }
        }
    }

    fn make_spare(&self) -> io::Result<PathBuf> {
        let disk = &self.shared.disk;
        let making = self.options.dir.join(SPARE_TMP);
        let outcome = (|| {
            let file = self.create(&making)?;
            let zeros = self.reserve(&*file)?;
            self.shared.figures.prepared_bytes.fetch_add(zeros, Ordering::Relaxed);
            let path = self.spare_path()?;
            disk.rename(&making, &path)?;
            Ok(path)
        })();
        if outcome.is_err() {
            let _ = disk.remove(&making);
        }
        outcome
    }

    fn spare_path(&self) -> io::Result<PathBuf> {
        loop {
            let mut stock = self.lock();
            let path = self.options.dir.join(format!("{:016x}.free", stock.spare_number));
            stock.spare_number += 1;
            drop(stock);
            if !self.shared.disk.exists(&path)? {
                return Ok(path);
            }
        }
    }

    /// Makes a file a spare file if `keep` is true, otherwise removes it. If that fails, the file stays until
    /// the log is opened next. The file is not taken for a segment then, because the log has recorded its
    /// release.
    fn free(&self, path: &Path, keep: bool) {
        let spare = if keep { self.spare_path().ok() } else { None };
        match spare {
            Some(spare) if self.shared.disk.rename(path, &spare).is_ok() => self.lock().spares.push(spare),
            _ => {
                let _ = self.shared.disk.remove(path);
            }
        }
    }

    /// Returns the time after which the next chunk of the next segment should be filled with zeros; `None` if
    /// nothing should be filled.
    fn fill_due(&self, stock: &Stock) -> Option<Duration> {
        let next = stock.next.as_ref()?;
        if next.filled >= next.header.capacity || self.winds_down() {
            return None;
        }
        Some(self.options.quiet_after.saturating_sub(stock.active_since?.elapsed()))
    }

    /// Fills one chunk of the next segment with zeros. Returns true on success.
    fn fill(&self, mut stock: MutexGuard<'_, Stock>) -> bool {
        let Some(next) = &stock.next else { return false };
        let (file, from, capacity) = (next.file.clone(), next.filled, next.header.capacity);
        stock.filling = true;
        drop(stock);
        let len = FILL_BYTES.min((capacity - from) as usize);
        let outcome = write_zeros(&*file, from, len as u64).and_then(|()| file.sync_data());
        let mut stock = self.lock();
        stock.filling = false;
        self.changed.notify_all();
        match (&mut stock.next, outcome) {
            (Some(next), Ok(())) => {
                next.filled += len as u64;
                self.shared.figures.prepared_bytes.fetch_add(len as u64, Ordering::Relaxed);
                true
            }
            (next, _) => {
                // The write or sync failed, so it is unknown what is on the disk, and the file must not
                // become a segment. Another file is prepared instead.
                if let Some(bad) = next.take() {
                    let _ = self.shared.disk.remove(&bad.path);
                }
                false
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of bytes reserved for a segment's Start record. It suffices for a list of about a hundred segments.
pub(crate) const START_BYTES: u64 = 512;

/// Returns the number of bytes that records of entries and values can take in a segment with this capacity.
pub(crate) fn usable(capacity: u64) -> u64 {
    capacity.saturating_sub(SEGMENT_HEADER_BYTES as u64 + START_BYTES + TAIL_BYTES)
}
