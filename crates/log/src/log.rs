//! Contains [`Log`], the handle through which the caller appends to the log, and the thread that writes the
//! queued batches.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use compression::Dictionaries;
use disk::Disk;
use numbers::Index;

use crate::format::{PAYLOAD_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES, VALUE_HEAD_BYTES, padded};
use crate::preparation::{Preparation, START_BYTES, Step, usable};
use crate::segment::{Shared, is_refused_for_size, reserve};
use crate::writer::{Progress, Request, Writer};
use crate::{
    AppendError, Batch, Entries, Fatal, Figures, LogEvent, OpenError, Options, Owner, Recovered, Refusal,
    ReleaseError, Replayed, SegmentState, Space, Synced, Values, recovery,
};

/// Callback for events. It is called on the thread that writes the log, which writes nothing meanwhile. So
/// the callback must return quickly, unless no further batch is queued ([`Synced::is_last`]).
pub type OnEvent = Box<dyn FnMut(LogEvent) + Send>;

/// Time after which a writer that waits for a segment checks again, even if it was not notified.
const STARVED_WAIT: Duration = Duration::from_secs(1);

/// Maximum number of times that the log's thread waits [`STARVED_WAIT`] for a segment while the log is being
/// closed. After that, the thread ends, and the remaining batches are not written.
const CLOSING_WAITS_MAX: u32 = 10;

/// The log, owned by the caller that appends. Dropping it ends the log's threads, after the log's thread has
/// written the queued batches, as far as there is space.
pub struct Log {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    preparation: Arc<Preparation>,
    /// The writer. The thread that writes locks it: the log's thread, or the owner in [`Log::write_here`].
    worker: Arc<Mutex<Worker>>,
    /// Handles of the log's threads; empty if the log has no threads ([`Options::by_hand`]).
    threads: Vec<JoinHandle<()>>,
    /// True while appending a batch does not wake the log's thread, because the owner will call
    /// [`Log::write_here`].
    owner_writes: bool,
    /// True if the last turn of a log without threads left batches that lack a segment.
    is_starved: bool,
    queued_bytes_max: usize,
    segment_bytes: u32,
    next_index: Index,
    next_ticket: u64,
}

struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    releases: VecDeque<u32>,
    /// Bytes of all requests that are not durable yet, both those that are waiting and those that are being
    /// written.
    bytes: usize,
    /// True if the log's thread must call `Worker::turn` even without new requests, for example because a
    /// segment became ready.
    kicked: bool,
    closing: bool,
    failed: bool,
}

/// The writer with its queue and the callback for events. The log's thread, [`Log::write_here`] and
/// [`Log::turn`] run it.
struct Worker {
    writer: Writer,
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    on_event: OnEvent,
    ticket: u64,
    space: Space,
    /// Requests that were taken from the queue and are not completely written, because a segment was missing.
    requests: VecDeque<Request>,
    releases: VecDeque<u32>,
    failed: bool,
}

/// Reserves disk space for the unused parts of the segment in use and of the next segment, if the files of
/// these segments have holes. Holes exist if the directory was copied by a program that leaves out zeros, or
/// if an earlier release made the file on a file system that cannot reserve space.
///
/// # Errors
///
/// Returns an error if space cannot be reserved for a reason other than a full disk or a limit of the file
/// size: a disk that fails to write or to sync must not be used.
fn make_real(options: &Options, disk: &dyn Disk, opened: &mut recovery::Opened) -> Result<(), OpenError> {
    if options.only_read || disk.writes_elsewhere(&options.dir).is_some() {
        return Ok(());
    }
    let may_lack = |file: &dyn disk::File| file.hole_bytes().is_ok_and(|bytes| bytes > 0);
    let is_there = |path: &Path, file: &dyn disk::File, from: u64, len: u64| match reserve(
        disk,
        &options.dir,
        file,
        from,
        len,
    ) {
        Ok(_) => Ok(true),
        Err(error) if is_refused_for_size(&error) => Ok(false),
        Err(error) => Err(OpenError::io("reserve room in", path, error)),
    };
    if let Some(active) = &opened.position.active
        && may_lack(&*active.file)
    {
        let end = u64::from(active.end.load(Ordering::Relaxed));
        let room = active.capacity.load(Ordering::Relaxed).saturating_sub(end);
        if !is_there(&active.path, &*active.file, end, room)? {
            // A write into the rest of the segment could fail for lack of space. Reduce the capacity, so that
            // the segment counts as full: the log then uses the next segment, or reports that it has no
            // space.
            active.capacity.store(end, Ordering::Relaxed);
        }
    }
    let header = SEGMENT_HEADER_BYTES as u64;
    if let Some(next) = &opened.prepared
        && may_lack(&*next.file)
        && !is_there(&next.path, &*next.file, header, next.header.capacity - header)?
    {
        opened.next_seq = next.seq;
        // An error is ignored, because the next prepared segment replaces the file.
        let _ = disk.remove(&next.path);
        opened.prepared = None;
    }
    Ok(())
}

impl Log {
    /// Returns the cluster and member id of the log in a directory; `None` if the directory contains no log.
    pub fn identify(disk: &dyn Disk, dir: &Path) -> Result<Option<Owner>, OpenError> {
        recovery::identify(disk, dir)
    }

    /// Returns true if a directory contains segments of a log, valid or damaged.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn is_in(disk: &dyn Disk, dir: &Path) -> Result<bool, OpenError> {
        recovery::is_in(disk, dir)
    }

    /// Opens or creates a log. `from_index` is the applied index of the checkpoint plus one, or 1 without a
    /// checkpoint. Calls `replay` for every record that was written after the entry `from_index - 1`, and
    /// perhaps for some earlier records, in the order in which they were written. Entries with an index below
    /// `from_index` are not replayed, unless they replace an entry that was read before.
    pub fn open(
        options: Options,
        disk: Arc<dyn Disk>,
        from_index: Index,
        replay: &mut dyn FnMut(Replayed),
        on_event: OnEvent,
    ) -> Result<(Log, Recovered), OpenError> {
        if !(SEGMENT_BYTES_MIN..=1 << 30).contains(&options.segment_bytes) {
            return Err(OpenError::Option("the log's segments must have 16 KiB to 1 GiB"));
        }
        if options.spare_files_max == 0 {
            return Err(OpenError::Option("the log needs space for at least one spare file"));
        }
        let mut opened = recovery::open(&options, &*disk, from_index, replay)?;
        make_real(&options, &*disk, &mut opened)?;
        let dictionaries = Dictionaries::open(Arc::clone(&disk), &options.dir)
            .map_err(|error| OpenError::io("list", &options.dir, error))?;
        let shared = Arc::new(Shared::new(disk, dictionaries));
        for segment in opened.segments {
            shared.insert(segment);
        }
        *shared.index() = opened.index;
        let preparation = Arc::new(Preparation::new(shared.clone(), options.clone(), opened.next_seq));
        if let Some(prepared) = opened.prepared {
            preparation.put_next(prepared);
        }
        for path in opened.spares {
            preparation.put_spare(path);
        }
        for path in opened.released {
            preparation.discard(path);
        }
        let next_index = opened.position.next_index;
        let writer = Writer::new(shared.clone(), preparation.clone(), &options, opened.position);
        let queue = Arc::new(Queue { waiting: Mutex::new(Waiting::default()), changed: Condvar::new() });
        let worker = Worker {
            writer,
            shared: shared.clone(),
            queue: queue.clone(),
            on_event,
            ticket: 0,
            space: Space::Ample,
            requests: VecDeque::new(),
            releases: VecDeque::new(),
            failed: false,
        };
        let mut log = Log {
            shared,
            queue,
            preparation,
            worker: Arc::new(Mutex::new(worker)),
            threads: Vec::new(),
            owner_writes: false,
            is_starved: false,
            queued_bytes_max: options.queued_bytes_max,
            segment_bytes: options.segment_bytes,
            next_index,
            next_ticket: 1,
        };
        if !options.by_hand {
            log.spawn().map_err(|error| OpenError::io("start the threads of", &options.dir, error))?;
        }
        Ok((log, opened.recovered))
    }

    fn spawn(&mut self) -> std::io::Result<()> {
        let (preparation, queue) = (self.preparation.clone(), self.queue.clone());
        self.threads.push(
            thread::Builder::new()
                .name("log-prepare".to_owned())
                .spawn(move || preparation.run(|| queue.kick()))?,
        );
        let (worker, queue, shared) = (self.worker.clone(), self.queue.clone(), self.shared.clone());
        let body = move || run(&worker, &queue, &shared);
        self.threads.push(thread::Builder::new().name("log".to_owned()).spawn(body)?);
        Ok(())
    }

    /// Queues a batch and returns its ticket, counted from 1. [`LogEvent::Synced`] reports when the batch is
    /// durable. The first entry must follow the last entry of the log or replace an existing one, and the
    /// others must be contiguous. A gap is a bug of the caller and causes a panic.
    pub fn append(&mut self, batch: Batch) -> Result<u64, AppendError> {
        let refuse = |reason, batch| Err(AppendError { reason, batch });
        let too_large = batch.entries.iter().any(|entry| entry.data.len() >= PAYLOAD_BYTES_MAX)
            || batch.values.iter().any(|value| value.data.len() >= PAYLOAD_BYTES_MAX - VALUE_HEAD_BYTES);
        if too_large {
            return refuse(Refusal::TooLarge, batch);
        }
        let bytes = size(&batch);
        let mut waiting = self.queue.lock();
        if waiting.failed || waiting.closing {
            return refuse(Refusal::Stopped, batch);
        }
        if waiting.bytes > 0 && waiting.bytes + bytes > self.queued_bytes_max {
            return refuse(Refusal::QueueFull, batch);
        }
        // If space is lacking, only batches with entries or values are refused. A hard state or a reset may
        // use the space that is kept for such records.
        let data = !batch.entries.is_empty() || !batch.values.is_empty();
        if data && self.shared.space() != Space::Ample && (waiting.bytes + bytes) as u64 > self.room() {
            return refuse(Refusal::NoSpace, batch);
        }
        let mut next = batch.reset.map_or(self.next_index, |reset| reset.index + 1);
        for entry in &batch.entries {
            let continues = entry.index > Index(0) && entry.index <= next;
            assert!(continues, "entry {} leaves a gap: {next} was expected", entry.index);
            next = entry.index + 1;
        }
        self.next_index = next;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        waiting.bytes += bytes;
        waiting.requests.push_back(Request::new(ticket, batch, bytes));
        drop(waiting);
        if !self.owner_writes {
            self.queue.changed.notify_one();
        }
        Ok(ticket)
    }

    /// If `owner_writes` is true, [`Log::append`] does not wake the log's thread until the owner calls
    /// [`Log::write_here`], which writes the batches.
    pub fn owner_writes(&mut self, owner_writes: bool) {
        self.owner_writes = owner_writes;
    }

    /// Writes and syncs the queued batches on the caller's thread and reports the events there, if the
    /// batches have at most `bytes_max` bytes. If only one batch is queued, this is faster than waking the
    /// log's thread and being woken by it. If the queue is larger, if the log's thread is busy, or if a
    /// segment is missing, the log's thread is woken to do the work instead. Must not be called on a log
    /// without threads ([`Options::by_hand`]).
    ///
    /// Returns the time that the write and the sync took; `None` if the queue is empty or all of the work is
    /// left to the log's thread.
    pub fn write_here(&mut self, bytes_max: usize) -> Option<Duration> {
        self.owner_writes = false;
        let bytes = self.queue.lock().bytes;
        if bytes == 0 {
            // This is a normal case: the owner may call this without having appended anything.
            return None;
        }
        let begun = Instant::now();
        let rest = match self.worker.try_lock() {
            Ok(mut worker) if bytes <= bytes_max && worker.requests.is_empty() => {
                Some(worker.turn(usize::MAX) || worker.failed)
            }
            _ => None,
        };
        if rest != Some(false) {
            self.queue.kick();
        }
        rest.map(|_| begun.elapsed())
    }

    /// Makes the data in the segment in use durable, even if batches are not synced
    /// ([`Options::unsafe_no_fsync`]).
    ///
    /// # Errors
    ///
    /// Returns an error if the disk fails to sync.
    pub fn sync(&self) -> Result<(), OpenError> {
        let segments = self.shared.segments();
        let is_active = |segment: &&Arc<crate::segment::Segment>| {
            !segment.sealed.load(std::sync::atomic::Ordering::Acquire)
        };
        let Some(active) = segments.iter().rfind(is_active) else { return Ok(()) };
        active.file.sync_data().map_err(|error| OpenError::io("sync", &active.path, error))
    }

    /// Releases a sealed segment: its file is deleted, or kept for reuse. Once the log has recorded the
    /// release, readers get [`crate::ReadError::Moved`]. From then on, entries in this segment and in earlier
    /// ones cannot be read. The caller guarantees that no durable checkpoint, no view of the store and no
    /// follower needs the segment.
    pub fn release(&mut self, seq: u32) -> Result<(), ReleaseError> {
        let segment = self.shared.segment(seq).ok_or(ReleaseError::Unknown)?;
        if !segment.state().sealed {
            return Err(ReleaseError::Active);
        }
        let mut waiting = self.queue.lock();
        if waiting.failed || waiting.closing {
            return Err(ReleaseError::Stopped);
        }
        if segment.releasing.swap(true, std::sync::atomic::Ordering::Relaxed) {
            return Err(ReleaseError::Unknown);
        }
        waiting.releases.push_back(seq);
        drop(waiting);
        self.queue.changed.notify_one();
        Ok(())
    }

    /// Frees the memory for the locations of entries below `index`. From now on these entries cannot be read.
    pub fn forget_below(&mut self, index: Index) {
        self.shared.index().forget_below(index);
    }

    /// Returns the segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentState> {
        self.shared.segments().iter().map(|segment| segment.state()).collect()
    }

    /// Returns how much space the log has for more data. The caller should check this before it proposes an
    /// entry, and raise the NOSPACE alarm at [`Space::Low`].
    pub fn space(&self) -> Space {
        self.shared.space()
    }

    /// Number of bytes of records that the log can accept even if the disk is full: those that fit into the
    /// rest of the segment in use, into the next segment if it is ready, and into the spare files. Queued
    /// batches are not subtracted.
    pub fn room(&self) -> u64 {
        self.shared.room.load(std::sync::atomic::Ordering::Acquire) + self.preparation.ready_bytes()
    }

    /// Free bytes of the file system, without those that are held for other parts of the server
    /// ([`crate::Values::hold_room`]); `None` if the operating system does not report them. The bytes of
    /// [`Log::room`] are not included.
    pub fn free_bytes(&self) -> Option<u64> {
        self.preparation.free_bytes()
    }

    /// Returns true while disk space is held for other parts of the server ([`crate::Values::hold_room`]).
    pub fn holds_room(&self) -> bool {
        self.shared.need().is_some()
    }

    /// Returns true if this existing directory is on the log's file system, or if the operating system cannot
    /// tell.
    pub fn shares_file_system(&self, dir: &Path) -> bool {
        self.preparation.shares_file_system(dir)
    }

    /// Size of a segment's file in bytes.
    pub fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    /// Number of bytes of entries and values that fit into a segment.
    pub fn segment_room(&self) -> u64 {
        usable(u64::from(self.segment_bytes))
    }

    /// Returns the maximum number of bytes that `values` values, with `bytes` bytes in total, take in the log
    /// when they are copied to another segment.
    pub fn moved_bytes(values: u64, bytes: u64) -> u64 {
        values * padded(VALUE_HEAD_BYTES + 7) as u64 + bytes
    }

    /// Returns the number of bytes of a segment's records. The release of the segment frees them, apart from
    /// the live values, which are copied to another segment before. The header and the Start record do not
    /// count, because every segment has them.
    pub fn record_bytes(segment: &SegmentState) -> u64 {
        segment.used_bytes.saturating_sub(SEGMENT_HEADER_BYTES as u64 + START_BYTES)
    }

    /// Returns the number of bytes that a batch takes in the log.
    pub fn bytes_of(batch: &Batch) -> usize {
        size(batch)
    }

    /// Number of bytes of all batches that were appended and are not durable yet.
    pub fn queued_bytes(&self) -> usize {
        self.queue.lock().bytes
    }

    /// Returns a reader of values.
    pub fn values(&self) -> Values {
        Values { shared: self.shared.clone() }
    }

    /// Returns a reader of entries.
    pub fn entries(&self) -> Entries {
        Entries { shared: self.shared.clone() }
    }

    /// Returns the counters of the log, for metrics.
    pub fn figures(&self) -> &Figures {
        &self.shared.figures
    }

    /// Returns true if batches or releases are queued that no turn has taken yet. Only for a log without
    /// threads. Batches for which the last turn had no space do not count: see [`Log::is_starved`].
    pub fn wants_turn(&self) -> bool {
        let waiting = self.queue.lock();
        !waiting.requests.is_empty() || !waiting.releases.is_empty()
    }

    /// Returns true if the last turn left batches that lack a segment. They need further turns, also if the log
    /// reports no shortage: it makes no segment while other parts of the server take the space that is held for them.
    /// Only for a log without threads.
    pub fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// Prepares segments, writes and syncs queued batches, and reports events. Only for a log without
    /// threads.
    pub fn turn(&mut self) {
        self.turn_of(usize::MAX);
    }

    /// Does the work of [`Log::turn`], but for at most `batches_max` of the queued batches. The other batches
    /// stay queued, as if they had arrived while a thread was writing. Only for a log without threads.
    pub fn turn_of(&mut self, batches_max: usize) {
        if !self.threads.is_empty() {
            return;
        }
        let mut worker = lock(&self.worker);
        loop {
            while self.preparation.step() == Step::Done {}
            let offered = self.preparation.ready().then(|| self.preparation.next_seq());
            let starved = worker.turn(batches_max);
            self.is_starved = starved;
            // Prepare again: the turn may have released a segment or taken the prepared one.
            while self.preparation.step() == Step::Done {}
            // True if the turn did not take the segment that was ready. In that case a record larger than a
            // segment waits for space to enlarge the file of the segment in use. Another turn would not help
            // now, so the loop ends.
            let stuck = offered == Some(self.preparation.next_seq());
            if !starved || stuck || !self.preparation.ready() {
                break;
            }
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue.lock().closing = true;
        self.queue.changed.notify_one();
        // The log's thread, which was started last, is joined first: it may still need a segment from the
        // preparing thread. If a thread panicked, the error of `join` is ignored, because the panic hook has
        // already reported the panic.
        while let Some(thread) = self.threads.pop() {
            let _ = thread.join();
            self.preparation.stop();
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kick(&self) {
        self.lock().kicked = true;
        self.changed.notify_one();
    }
}

/// Runs the main loop of the log's thread.
fn run(worker: &Mutex<Worker>, queue: &Queue, shared: &Shared) {
    let mut starved = false;
    let mut waits = 0;
    loop {
        let mut waiting = queue.lock();
        loop {
            let work = !waiting.requests.is_empty() && !starved || !waiting.releases.is_empty();
            if work || waiting.kicked {
                break;
            }
            // If batches lack a segment while the log is being closed, wait for the segment, unless the disk
            // is full, and only for a limited time.
            let hopeless = shared.space() == Space::Exhausted || waits >= CLOSING_WAITS_MAX;
            if waiting.closing && (!starved || hopeless) {
                return;
            }
            waits += u32::from(waiting.closing);
            if starved {
                let (guard, timeout) =
                    queue.changed.wait_timeout(waiting, STARVED_WAIT).unwrap_or_else(PoisonError::into_inner);
                waiting = guard;
                if timeout.timed_out() {
                    break;
                }
            } else {
                waiting = queue.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
        }
        waiting.kicked = false;
        drop(waiting);
        let mut worker = lock(worker);
        starved = worker.turn(usize::MAX);
        if worker.failed {
            return;
        }
    }
}

fn lock(worker: &Mutex<Worker>) -> MutexGuard<'_, Worker> {
    // The lock is poisoned if a thread panicked while it held the lock. The panic hook has already reported
    // that, so this thread does not panic as well.
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// Removes at most `batches_max` waiting batches from the queue and writes them. Returns true if some
    /// batches or releases were not written, because they need a segment that is not ready.
    fn turn(&mut self, batches_max: usize) -> bool {
        if self.failed {
            return false;
        }
        {
            let mut waiting = self.queue.lock();
            if batches_max >= waiting.requests.len() {
                self.requests.append(&mut waiting.requests);
            } else {
                self.requests.extend(waiting.requests.drain(..batches_max));
            }
            self.releases.append(&mut waiting.releases);
        }
        let bytes_before = self.bytes_in_hand();
        let mut synced = Synced { ticket: self.ticket, ..Synced::default() };
        let outcome = if self.requests.is_empty() && self.releases.is_empty() {
            Ok(Progress::All)
        } else {
            self.writer.commit(&mut self.requests, &mut self.releases, &mut synced)
        };
        let bytes_done = bytes_before - self.bytes_in_hand();
        {
            let mut waiting = self.queue.lock();
            waiting.bytes -= bytes_done;
            synced.is_last = self.requests.is_empty() && waiting.requests.is_empty();
        }
        if outcome.is_ok() {
            self.report(synced);
        }
        let space = self.shared.space();
        if space != self.space {
            self.space = space;
            (self.on_event)(LogEvent::SpaceChanged(space));
        }
        match outcome {
            Ok(progress) => progress == Progress::Starved,
            Err(fatal) => {
                self.fail(fatal);
                false
            }
        }
    }

    fn bytes_in_hand(&self) -> usize {
        self.requests.iter().map(|request| request.bytes).sum()
    }

    fn report(&mut self, synced: Synced) {
        let news = synced.ticket != self.ticket
            || synced.hard_state.is_some()
            || !synced.locations.is_empty()
            || !synced.values.is_empty();
        assert!(
            synced.ticket >= self.ticket,
            "batch {} was synced before, now {}",
            self.ticket,
            synced.ticket
        );
        self.ticket = synced.ticket;
        if news {
            (self.on_event)(LogEvent::Synced(synced));
        }
    }

    fn fail(&mut self, fatal: Fatal) {
        self.failed = true;
        let mut waiting = self.queue.lock();
        waiting.failed = true;
        waiting.requests.clear();
        waiting.releases.clear();
        drop(waiting);
        self.requests.clear();
        (self.on_event)(LogEvent::Failed(fatal));
    }
}

/// Returns the number of bytes that a batch takes in the segment files.
fn size(batch: &Batch) -> usize {
    let entries: usize = batch.entries.iter().map(|entry| padded(entry.data.len())).sum();
    let values: usize = batch.values.iter().map(|value| padded(value.head_bytes() + value.data.len())).sum();
    entries + values + Batch::OWN_BYTES
}
