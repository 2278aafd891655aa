//! Writes checkpoints of the state while the member runs, so that a start need not replay the whole log. Also
//! finds values that have to be moved out of old log segments, so that these can be deleted.
//!
//! The checkpointer reads the state in short steps ([`AsOf`]) on a dedicated thread, with pauses in between,
//! so neither the writer nor readers of the state wait for it. A checkpoint is a base run followed by delta
//! runs, like the levels of a log-structured merge tree: most checkpoints write only new versions. A run is
//! rewritten, together with newer ones, only when the newer ones together have reached its size, so each
//! version is written only a few times in total.
//!
//! # Example: runs and levels
//!
//! A version takes 40 bytes here. Each line is a checkpoint; `(from, to]` are the revisions of a run.
//!
//! ```text
//! revision 1,000,000   (0, 1,000,000] 40 MB                                the base
//! revision 1,100,000   base + (1,000,000, 1,100,000] 4 MB                  only new versions are written
//! revision 1,200,000   base + (1,000,000, 1,200,000] 8 MB                  the new versions take 4 MB, as much as the last
//!                                                                          run: it is rewritten together with them
//! revision 1,300,000   base + (1,000,000, 1,200,000] + (1,200,000, 1,300,000] 4 MB
//! revision 2,100,000   (0, 2,100,000] 84 MB                                the runs of 4, 8 and 40 MB are each no larger than
//!                                                                          what is to be written: a new base is written
//! ```
//!
//! A run is reused only if no later compaction has removed versions in it (see `from_min`); otherwise a new
//! base is written. The new run is synced first, then a new `MANIFEST` that names it replaces the old one;
//! after that, files that no manifest names are deleted.
//!
//! With a memory budget, a base is written in blocks if something was compacted ([`machine::image`]). It consists of
//! three files, which are written and synced one after the other, and opened again before the manifest names them: the
//! core receives a base that was compared with its files.

mod base;
mod compressing;
pub(crate) mod level;
mod moving;
mod orders;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use disk::DiskSpace;
use log::Need;
use log::checkpoint::{CheckpointStore, CommitError, Manifest, Run};
use machine::AsOf;
use machine::image::{BaseWriter, Head, RunWriter};
use mvcc::{Base, Cache, View};
use numbers::{Index, Revision, Term};
use telemetry::metrics::Metrics;

use self::base::{SYNC_BYTES, WritingBase, WrittenBase};
use self::compressing::{Hopeless, Sampled, Sampling};
use self::level::VERSION_BYTES;
pub use self::level::{Companions, Level};
use self::moving::Moving;
pub use self::orders::{CheckpointError, Checkpointed, Event, Haste, Order, Relocation};
use crate::identity::Identity;
use crate::nospace::Note;

/// Maximum number of runs of a checkpoint. A checkpoint that would have more merges its newest runs, whatever
/// their sizes.
const RUNS_MAX: usize = 8;
/// Ratio of pause time to working time while a run is written, so that writing uses only a small part of a
/// processor core.
const PAUSE_FACTOR: u32 = 2;
const PAUSE_MAX: Duration = Duration::from_millis(5);
/// If the log grows by more than this many segments while a checkpoint is written, the pauses become shorter,
/// and at twice as many segments there are none. A start reads the part of the log after the checkpoint, so
/// this part must not grow for as long as a large checkpoint with all of its pauses takes.
const UNHURRIED_SEGMENTS: u64 = 4;
/// Pauses after the steps of work that gives way to everything else, which take longer than other steps: a
/// batch of moved values has a megabyte, so that a disk that writes 100 MB per second is idle two thirds of the
/// time.
const IDLE_WORK_PAUSES: RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_millis(100);
/// Pause after a commit that failed half-way, so that it is unknown whether it took effect. The next order,
/// which repeats the commit, is executed only after the pause.
const SETTLE_PAUSE: Duration = Duration::from_millis(200);
/// Estimated size of a version in the change file of a base in blocks, compared with that in the base run.
const CHANGES_FACTOR: u64 = 2;
/// Pause after a step of a base in blocks while the blocks that it reads take more memory than they should: as many as a
/// step reads are evicted in this time.
const MEMORY_PAUSE: Duration = Duration::from_millis(20);
/// Estimated size of a lease in a run, in bytes.
const LEASE_BYTES: u64 = 12;
/// Maximum number of bytes by which a run may exceed its estimated size, on a large disk.
const RUN_SLACK_BYTES: u64 = 256 << 10;
/// Maximum number of bytes by which a run may exceed its estimated size, on the smallest disks: a block of
/// most file systems.
const RUN_SLACK_BYTES_MIN: u64 = 4096;
/// If the file system has this many free bytes plus four times the size of the reserve, no space is reserved
/// for the next checkpoint.
const RESERVE_FREE_BYTES: u64 = 1 << 30;

/// Interfaces of the member that the checkpointer uses.
pub struct Surface {
    /// Ids of the member and its cluster, which are written into each checkpoint.
    pub identity: Identity,
    /// Reader of values in the log.
    pub values: log::Values,
    /// Size of a segment of the log in bytes.
    pub segment_bytes: u32,
    /// True if the log is on the same file system as the checkpoints.
    pub shares_file_system: bool,
    /// Returns the newest published view.
    pub newest: Box<dyn Fn() -> Arc<View> + Send>,
    /// Sends an event to the core.
    pub tell: Box<dyn Fn(Event) + Send>,
    /// True if values are compressed when they are moved.
    pub compresses: bool,
    /// Memory for blocks of a base; `None` if the whole index is in memory. If it is set, base runs are written in
    /// blocks.
    pub cache: Option<Arc<Cache>>,
    /// Metrics that record the durations of syncs, and the effect of compression.
    pub metrics: Arc<Metrics>,
}

/// Writes checkpoints and finds values that have to be moved out of old segments. It executes one order at a
/// time.
pub struct Checkpointer {
    member: Surface,
    store: CheckpointStore,
    levels: Vec<Level>,
    note: Note,
    /// Size in bytes of a version in the base run, if this process has written that run.
    base_version_bytes: Option<u64>,
    /// True if the last checkpoint failed because the disk was full.
    lacked_space: bool,
    /// True after the disk was full, until [`Checkpointer::keep_reserve`] finds that the disk has much free
    /// space again.
    was_short: bool,
    /// True after a checkpoint has failed because the disk was full although the file system reported enough
    /// free space. Never reset.
    has_hidden_limit: bool,
    /// True if the reserved space is less than the next checkpoint needs.
    lacks_reserve: bool,
    job: Option<Job>,
    hopeless: Hopeless,
    /// Total time for which [`Checkpointer::run`] has paused during the current order.
    paused: Duration,
    /// Number of bytes that had been written to the log when the current order was taken.
    log_bytes_at: u64,
    /// A manifest, and the levels that it names, whose commit failed half-way: a restart may find this
    /// manifest or the previous one. It is committed again before the next checkpoint.
    unsettled: Option<(Manifest, Vec<Level>)>,
}

/// The order that is being executed.
enum Job {
    Checkpoint(Box<Writing>),
    Sampling(Box<Sampling>),
    Relocation(Box<Moving>),
}

/// Result of a step of the checkpointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No order is being executed.
    Idle,
    /// A part of a checkpoint was written: a block, the end of a run, or the manifest. Or a part of the work was
    /// done that decides what is compressed.
    Written,
    /// The core has received a batch of values and must move them before the checkpointer can continue.
    Waiting,
    /// The order was executed, or has failed.
    Ended,
}

/// A checkpoint that is being written.
struct Writing {
    stage: Stage,
    /// Number of the checkpointer's `levels` that are kept; the new one follows them.
    kept: usize,
    from: Revision,
    to: Revision,
    applied_index: Index,
    term: Term,
    metadata: Vec<u8>,
    /// Number of versions in the state.
    versions: u64,
    /// The new base, if it is in blocks and complete.
    base: Option<Arc<Base>>,
}

#[allow(clippy::large_enum_variant, reason = "there is one, and it is on the heap")]
enum Stage {
    /// Blocks of the run are being written; the first `synced` bytes are synced.
    Blocks { file: log::checkpoint::RunWriter, blocks: RunWriter, synced: u64 },
    /// Blocks of the files of a base are being written.
    Base(Box<WritingBase>),
    /// The files of the base are complete. They have to be opened next.
    Written(Box<WrittenBase>),
    /// The run is complete. The manifest that names it has to be written next.
    Whole(Level),
    /// The manifest names the run. Files that it does not name can be deleted now.
    Committed,
}

impl Checkpointer {
    /// Creates a checkpointer. It continues the checkpoint with which the member was started, whose runs are
    /// `levels`.
    pub fn new(member: Surface, store: CheckpointStore, levels: Vec<Level>, note: Note) -> Checkpointer {
        Checkpointer {
            member,
            store,
            levels,
            note,
            base_version_bytes: None,
            lacked_space: false,
            was_short: false,
            has_hidden_limit: false,
            lacks_reserve: false,
            job: None,
            hopeless: Hopeless::new(),
            paused: Duration::ZERO,
            log_bytes_at: 0,
            unsettled: None,
        }
    }

    /// Executes orders until [`Order::Stop`] or the queue is closed.
    pub fn run(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            if !self.take(order) {
                return;
            }
            loop {
                if let Some(Job::Relocation(moving)) = &mut self.job {
                    moving.wait();
                }
                let clock = Instant::now();
                match self.step() {
                    Step::Written | Step::Waiting => {
                        let worked = clock.elapsed();
                        std::thread::sleep(self.pause_after(worked));
                        // On a busy machine a thread may wake late, so the real duration of the pause is
                        // measured.
                        self.paused += clock.elapsed().saturating_sub(worked);
                    }
                    Step::Idle | Step::Ended => break,
                }
                if !self.give_way(orders) {
                    return;
                }
            }
            if self.unsettled.is_some() {
                // The core may order the next checkpoint immediately. The pause keeps a failing disk from
                // being busy with retries.
                std::thread::sleep(SETTLE_PAUSE);
            }
        }
    }

    /// Returns true if the current order is of no use to anybody who waits: values are moved without haste, or
    /// segments are judged for that.
    fn gives_way(&self) -> bool {
        match &self.job {
            Some(Job::Sampling(_)) => true,
            Some(Job::Relocation(moving)) => moving.haste == Haste::InPauses,
            Some(Job::Checkpoint(_)) | None => false,
        }
    }

    /// Executes the next order, if there is one and the current one gives way. Returns
    /// false after [`Order::Stop`], or if the queue is closed.
    pub fn give_way(&mut self, orders: &Receiver<Order>) -> bool {
        if !self.gives_way() {
            return true;
        }
        match orders.try_recv() {
            Ok(order) => self.take_beside(order),
            Err(TryRecvError::Empty) => true,
            Err(TryRecvError::Disconnected) => false,
        }
    }

    /// Returns the pause after a step that took this long.
    fn pause_after(&self, worked: Duration) -> Duration {
        let pause = worked * PAUSE_FACTOR;
        let (shortest, longest) = (*IDLE_WORK_PAUSES.start(), *IDLE_WORK_PAUSES.end());
        match &self.job {
            // A step of judging may train a dictionary, which takes up to a second.
            Some(Job::Sampling(_)) => return pause.max(shortest),
            Some(Job::Relocation(moving)) => match moving.haste {
                Haste::AtOnce => return Duration::ZERO,
                Haste::InPauses => return pause.clamp(shortest, longest),
            },
            Some(Job::Checkpoint(_)) if self.member.cache.as_ref().is_some_and(|cache| cache.is_over()) => {
                return pause.max(MEMORY_PAUSE);
            }
            Some(Job::Checkpoint(_)) | None => {}
        }
        let log_bytes = self.member.values.figures().written_bytes();
        pause_of_checkpoint(worked, log_bytes.saturating_sub(self.log_bytes_at), self.member.segment_bytes)
    }

    /// Executes an order while other work [gives way](Checkpointer::gives_way). If the order takes long, that
    /// work ends: the rest of the values stay where they are. Returns false for [`Order::Stop`].
    fn take_beside(&mut self, order: Order) -> bool {
        let job = self.job.take();
        match order {
            Order::Checkpoint { .. } | Order::Relocate { .. } | Order::Compress { .. } | Order::Stop => {
                (self.member.tell)(Event::Relocated { is_whole: false });
                self.take(order)
            }
            Order::Note(_) | Order::Reserve { .. } | Order::Drop(_) => {
                let goes_on = self.take(order);
                self.job = job;
                goes_on
            }
        }
    }

    /// Begins to execute an order. Must not be called while another order is being executed. Returns false
    /// for [`Order::Stop`].
    pub fn take(&mut self, order: Order) -> bool {
        debug_assert!(self.job.is_none(), "one order at a time");
        self.paused = Duration::ZERO;
        self.log_bytes_at = self.member.values.figures().written_bytes();
        match order {
            Order::Checkpoint { head, state, whole, terms } => {
                match self.begin(*head, state, whole, terms.write()) {
                    Ok(writing) => self.job = Some(Job::Checkpoint(Box::new(writing))),
                    Err(why) => self.checkpointed(Err(why)),
                }
            }
            Order::Relocate { segments, portion_bytes, haste } => {
                let moving = Moving::new(&self.member, segments, portion_bytes, haste);
                self.job = Some(Job::Relocation(Box::new(moving)));
            }
            Order::Compress { segments, portion_bytes } => {
                let sampling = Sampling::new(&self.member, &segments, portion_bytes);
                self.job = Some(Job::Sampling(Box::new(sampling)));
            }
            Order::Note(cause) => {
                // The error is ignored, because its only consequence is that an alarm that was raised for a
                // full disk is not cleared automatically after a restart, but stays until a client disarms
                // it.
                let _ = self.note.write(cause);
            }
            Order::Reserve { is_short, queued } => {
                drop(queued);
                self.was_short |= is_short;
                self.keep_reserve();
            }
            Order::Drop(what) => drop(what),
            Order::Stop => return false,
        }
        true
    }

    /// Executes the next part of the current order: writes a block, or sends the core a batch of values to
    /// move. Does not wait for the core.
    pub fn step(&mut self) -> Step {
        match self.job.take() {
            None => Step::Idle,
            Some(Job::Checkpoint(mut writing)) => match self.write(&mut writing) {
                Ok(None) => {
                    self.job = Some(Job::Checkpoint(writing));
                    Step::Written
                }
                Ok(Some(done)) => {
                    self.checkpointed(Ok(done));
                    Step::Ended
                }
                Err(why) => {
                    self.checkpointed(Err(why));
                    Step::Ended
                }
            },
            Some(Job::Sampling(mut sampling)) => {
                self.job = Some(match sampling.step(&self.member, &mut self.hopeless) {
                    Sampled::More => Job::Sampling(sampling),
                    Sampled::Chosen(segments) if segments.is_empty() => {
                        (self.member.tell)(Event::Relocated { is_whole: true });
                        return Step::Ended;
                    }
                    Sampled::Chosen(segments) => {
                        let moving =
                            Moving::new(&self.member, segments, sampling.portion_bytes, Haste::InPauses);
                        Job::Relocation(Box::new(moving))
                    }
                });
                Step::Written
            }
            Some(Job::Relocation(mut moving)) => {
                if moving.step(&self.member) {
                    self.job = Some(Job::Relocation(moving));
                    return Step::Waiting;
                }
                (self.member.tell)(Event::Relocated { is_whole: true });
                Step::Ended
            }
        }
    }

    fn checkpointed(&mut self, result: Result<Checkpointed, CheckpointError>) {
        self.lacked_space = result.as_ref().is_err_and(CheckpointError::is_full);
        self.was_short |= self.lacked_space;
        // If the file system reports much free space although the checkpoint has just failed for lack of
        // space, there is a limit that the file system does not report, such as a quota.
        let plenty = |space: DiskSpace| space.free_bytes >= RESERVE_FREE_BYTES;
        self.has_hidden_limit |= self.lacked_space && self.store.space().is_some_and(plenty);
        if result.is_err() {
            if self.unsettled.is_none() {
                // Complete files of a base whose other files could not be written would occupy the space that the next
                // attempt needs. The error is ignored: the next attempt removes them, too.
                let _ =
                    self.store.prune(&Checkpointer::manifest(&self.levels, Index(0), Term(0), Vec::new()));
            }
            // The log may still be keeping space free for the failed checkpoint, which no longer needs it.
            // `keep_reserve` sets the amount again to what the next checkpoint needs.
            self.keep_reserve();
        }
        (self.member.tell)(Event::Checkpointed(result));
    }

    /// Returns the revision after which a new run starts, and the number of levels that are kept below the
    /// new run.
    ///
    /// `from_min` is the lowest revision at which a delta may start, because earlier runs may contain
    /// versions that later compactions removed. `in_base` is the size of a version in the base run, if this
    /// process has written that run.
    ///
    /// A run without versions has nothing but a head, as if leases were granted and no key was put. The new run
    /// replaces it: there may be millions of leases, and a start would read them once for each run.
    fn plan(
        levels: &[Level],
        revision: Revision,
        (versions, in_base): (u64, Option<u64>),
        from_min: Revision,
    ) -> (Revision, usize) {
        let on_disk: u64 = levels.iter().map(|level| level.run.file_bytes).sum();
        let each = in_base.unwrap_or(VERSION_BYTES).max(VERSION_BYTES);
        if on_disk > versions.saturating_mul(3 * each) + (16 << 20) {
            // Most of the stored versions have been compacted since, so a new base is written.
            return (Revision(0), 0);
        }
        let mut kept = levels.len();
        let mut from = levels.last().map_or(Revision(0), |level| level.to);
        // The size of a version is taken from the last run that has any, without the lower bound `VERSION_BYTES`: an
        // estimate that is too high would cause runs to be rewritten too often.
        let each = Level::version_bytes_of(levels);
        let mut bytes = u64::try_from(revision - from).unwrap_or(0).saturating_mul(each);
        while let Some(level) = kept.checked_sub(1).and_then(|last| levels.get(last))
            && (level.run.file_bytes <= bytes || kept >= RUNS_MAX || level.from == level.to)
        {
            from = level.from;
            if level.from < level.to {
                bytes = bytes.saturating_add(level.run.file_bytes);
            }
            kept -= 1;
        }
        if from < from_min {
            return (Revision(0), 0);
        }
        (from, kept)
    }

    /// Reserves space for the next checkpoint in a file, unless the disk has much free space. If only a part
    /// can be reserved now, makes the log leave the size of the rest free on the file system until the next
    /// call.
    fn keep_reserve(&mut self) {
        let Some(space) = self.store.space() else { return self.hold(0, Need::More) };
        let bytes = self.next_file_bytes();
        let slack = self.slack(space);
        // On a full disk some entries, mainly deletes, are still accepted, and make the next checkpoint
        // larger. If the free space is not known, the space for this growth must be part of the reserve.
        let hidden = self.is_limit_hidden();
        let growth = if hidden { u64::from(self.member.segment_bytes) / 2 } else { 0 };
        let wanted = (bytes + bytes / 2 + growth + slack).next_multiple_of(4096);
        let plenty = space.free_bytes >= RESERVE_FREE_BYTES + 4 * wanted;
        if plenty && !hidden {
            self.was_short = false;
            // The error is ignored: a reserve that cannot be removed only occupies space, of which there is
            // plenty.
            let _ = self.store.drop_reserve();
            return self.hold(0, Need::More);
        }
        // `keep_reserve` does not return an error if the disk is full, so an error has another cause. It
        // would not help then if the log kept space free, so the reserve counts as complete.
        let kept = self.store.keep_reserve(wanted, (slack / 4).max(4096)).unwrap_or(wanted);
        self.lacks_reserve = kept < wanted;
        // The need is urgent if the reserve is too small for a complete checkpoint: log segments can be
        // deleted only after the next checkpoint, so without that checkpoint no space becomes free.
        let need = if kept < bytes + growth { Need::Urgent } else { Need::More };
        self.hold(wanted.saturating_sub(kept), need);
    }

    /// Returns true if a write has failed before because the disk was full although the file system reported
    /// free space. This happens, for example, with a quota on a file server.
    fn is_limit_hidden(&self) -> bool {
        self.has_hidden_limit || self.member.values.has_hidden_limit()
    }

    /// Makes the log leave `bytes` free for checkpoints, if both are on the same file system.
    fn hold(&self, bytes: u64, need: Need) {
        if self.member.shares_file_system {
            self.member.values.hold_room(bytes, need);
        }
    }

    /// Makes the log keep free the space that is about to be released: the rest of the reserve file that the
    /// finished run does not need, and the runs that the new one replaces. Otherwise the log could take that
    /// space before [`Checkpointer::keep_reserve`] reserves it again. `spare_bytes` are those of the run that was
    /// written into the reserve file.
    fn hold_until_reserved(&self, is_in_reserve: bool, spare_bytes: u64, kept: usize) {
        if self.was_short || is_in_reserve {
            let replaced: u64 = self.levels[kept..].iter().map(Level::file_bytes).sum();
            self.hold(replaced + spare_bytes.max(1), Need::Passing);
        }
    }

    /// Returns the total size of the checkpoint's files in bytes.
    fn file_bytes(&self) -> u64 {
        self.levels.iter().map(Level::file_bytes).sum()
    }

    /// Returns the size in bytes that the checkpoint's files may have if its next base is in blocks: the settled
    /// versions are then in a second file, too. There they take more, because keys that follow each other share less.
    fn next_file_bytes(&self) -> u64 {
        let Some(base) = self.levels.first().filter(|_| self.writes_blocks()) else {
            return self.file_bytes();
        };
        let changes = base.companions.as_ref().map_or(0, |companions| companions.changes.file_bytes);
        self.file_bytes() - changes + changes.max(CHANGES_FACTOR * base.run.file_bytes)
    }

    /// Returns true if bases are written in blocks: with a memory budget, unless the disk was too full for the last
    /// checkpoint. A base that has one file is smaller, and may be all that can free space.
    fn writes_blocks(&self) -> bool {
        self.member.cache.is_some() && !self.lacked_space && !(self.was_short && self.lacks_reserve)
    }

    /// Returns the number of bytes by which a run may exceed its estimated size. It is small on a small file
    /// system, and with small segments.
    fn slack(&self, space: DiskSpace) -> u64 {
        let segment = u64::from(self.member.segment_bytes);
        (space.total_bytes / 64).min(segment / 8).clamp(RUN_SLACK_BYTES_MIN, RUN_SLACK_BYTES)
    }

    fn manifest(levels: &[Level], applied_index: Index, term: Term, metadata: Vec<u8>) -> Manifest {
        let runs = levels.iter().flat_map(Level::files).cloned().collect();
        Manifest { applied_index, term, metadata, runs }
    }

    fn begin(
        &mut self,
        head: Head,
        state: AsOf,
        whole: bool,
        metadata: Vec<u8>,
    ) -> Result<Writing, CheckpointError> {
        self.settle()?;
        // Without a budget, a base in blocks is replaced by one that releases without such bases can read, too.
        let is_in_blocks = self.levels.first().is_some_and(|base| base.companions.is_some());
        let whole = whole || is_in_blocks && self.member.cache.is_none();
        let from_min = if whole { Revision::MAX } else { head.delta_from_min };
        let versions = state.moment().versions();
        let sizes = (versions, self.base_version_bytes);
        let (mut from, mut kept) = Checkpointer::plan(&self.levels, head.revision, sizes, from_min);
        if self.was_short
            && self.lacks_reserve
            && kept == self.levels.len()
            && let Some(last) = self.levels.last()
            && last.from >= from_min
        {
            // The last run is rewritten together with the new versions. An additional run for each checkpoint
            // would use up the disk, and then no checkpoint could be written that allows the log to free
            // space.
            (from, kept) = (last.from, kept - 1);
        }
        // A base run needs only the versions that can still be read, so tombstones that cannot be read any
        // more need not be protected from removal while it is written.
        let state = if from == Revision(0) { state.of_what_is_readable() } else { state };
        let (to, applied_index, term) = (head.revision, head.applied_index, head.applied_term);
        let name = Level::name(from, to, applied_index, &self.levels);
        // Deletes files that no manifest names. A checkpoint that failed or was interrupted by a crash may
        // have left some, perhaps one with the name of the new run, which must not exist.
        self.store.prune(&Checkpointer::manifest(&self.levels, applied_index, term, Vec::new()))?;
        let in_blocks = self.writes_blocks() && from == Revision(0) && BaseWriter::can_settle(&head);
        let bytes = if from == Revision(0) {
            let each = if in_blocks { (1 + CHANGES_FACTOR) * 2 * VERSION_BYTES } else { 2 * VERSION_BYTES };
            self.next_file_bytes().max(versions.saturating_mul(each))
        } else {
            // The bytes per revision are estimated from the last run, because a revision may have many
            // versions, and keys may be long.
            let each = Level::version_bytes_of(&self.levels).max(VERSION_BYTES);
            u64::try_from(to - from).unwrap_or(0).saturating_mul(2 * each)
        };
        let bytes = bytes.saturating_add(head.leases.len() as u64 * LEASE_BYTES);
        // With an expected size this large, the run is always written into the reserve file. This is
        // necessary if the last checkpoint found the disk full despite its estimate, or if the free space is
        // not known.
        let bytes = if self.lacked_space || self.is_limit_hidden() { u64::MAX / 2 } else { bytes };
        let bytes = bytes + self.store.space().map_or(0, |space| self.slack(space));
        let identity = self.member.identity.to_bytes().to_vec();
        let file = self.store.begin_within(&name, applied_index, term, &identity, bytes)?;
        let stage = if in_blocks {
            let blocks = BaseWriter::new(state, head);
            Stage::Base(Box::new(WritingBase::new(blocks, file, name, (applied_index, term), identity)))
        } else {
            Stage::Blocks { file, blocks: RunWriter::new(state, head, from), synced: 0 }
        };
        Ok(Writing { stage, kept, from, to, applied_index, term, metadata, versions, base: None })
    }

    /// Commits a manifest. If that fails half-way, a restart may or may not find the manifest. So the files
    /// of this manifest and of the previous one are kept, and this manifest is stored in `unsettled` to be
    /// committed again. `perhaps` is true if an earlier attempt may have committed it already.
    fn commit(
        &mut self,
        manifest: Manifest,
        levels: Vec<Level>,
        perhaps: bool,
    ) -> Result<(), CheckpointError> {
        match self.store.commit(&manifest) {
            Ok(()) => {
                self.levels = levels;
                Ok(())
            }
            Err(error) => {
                if perhaps || matches!(error, CommitError::Unsettled(_)) {
                    self.unsettled = Some((manifest, levels));
                }
                Err(CheckpointError::Files(error.into()))
            }
        }
    }

    /// Repeats a commit that failed half-way, if there is one.
    fn settle(&mut self) -> Result<(), CheckpointError> {
        let Some((manifest, levels)) = self.unsettled.take() else { return Ok(()) };
        // Reserves space for the manifest again, because the earlier attempt may have used it up.
        self.keep_reserve();
        self.commit(manifest, levels, true)
    }

    /// Writes the next part of a checkpoint: a block, the end of the run, or the manifest. Returns `None`
    /// until the checkpoint is durable and the files that it does not need are deleted.
    fn write(&mut self, writing: &mut Writing) -> Result<Option<Checkpointed>, CheckpointError> {
        // The metric records the duration of each sync, because alerts on it are meant to detect a slow disk.
        // The duration of a whole checkpoint would include pauses.
        let metrics = Arc::clone(&self.member.metrics);
        let syncs = &metrics.disk.backend_commit_duration;
        match std::mem::replace(&mut writing.stage, Stage::Committed) {
            Stage::Blocks { mut file, mut blocks, mut synced } => {
                let Some(block) = blocks.next_block()? else {
                    let finishing = Instant::now();
                    self.hold_until_reserved(file.is_in_reserve(), file.spare_bytes(), writing.kept);
                    let run = file.finish()?;
                    syncs.observe_seconds(finishing.elapsed());
                    writing.stage = Stage::Whole(writing.level(run));
                    return Ok(None);
                };
                file.write_block(&block)?;
                if file.file_bytes() - synced >= SYNC_BYTES {
                    let syncing = Instant::now();
                    file.sync()?;
                    syncs.observe_seconds(syncing.elapsed());
                    synced = file.file_bytes();
                }
                writing.stage = Stage::Blocks { file, blocks, synced };
                Ok(None)
            }
            Stage::Base(base) => {
                let before_end = |is_in_reserve, spare_bytes| {
                    self.hold_until_reserved(is_in_reserve, spare_bytes, writing.kept);
                };
                writing.stage = match base.step(&self.store, &metrics, before_end)? {
                    Ok(base) => Stage::Base(base),
                    Err(written) => Stage::Written(Box::new(written)),
                };
                Ok(None)
            }
            Stage::Written(written) => {
                let cache =
                    self.member.cache.as_ref().expect("bases in blocks are those of members with a budget");
                let level = writing.level(written.run.clone());
                let (level, base) = written.open(&self.store, level, cache)?;
                writing.base = Some(base);
                writing.stage = Stage::Whole(level);
                Ok(None)
            }
            Stage::Whole(level) => {
                if writing.from == Revision(0) {
                    self.base_version_bytes = Some(level.run.file_bytes / writing.versions.max(1));
                }
                let mut levels = self.levels[..writing.kept].to_vec();
                levels.push(level);
                let metadata = std::mem::take(&mut writing.metadata);
                let manifest = Checkpointer::manifest(&levels, writing.applied_index, writing.term, metadata);
                let committed = self.commit(manifest, levels, false);
                // The commit is repeated once if it failed half-way, because the sync of the directory may
                // succeed the second time. Without the retry the checkpoint would fail, and the run, which is
                // valid, would be written again.
                committed.or_else(|why| if self.unsettled.is_some() { self.settle() } else { Err(why) })?;
                Ok(None)
            }
            Stage::Committed => {
                let (applied_index, term) = (writing.applied_index, writing.term);
                self.store.prune(&Checkpointer::manifest(&self.levels, applied_index, term, Vec::new()))?;
                let bytes = self.file_bytes();
                self.keep_reserve();
                let (whole, paused) = (writing.from == Revision(0), self.paused);
                let base = writing.base.take();
                Ok(Some(Checkpointed { applied_index, whole, bytes, paused, base }))
            }
        }
    }
}

impl Writing {
    /// Returns the level of the finished run.
    fn level(&self, run: Run) -> Level {
        Level { from: self.from, to: self.to, run, companions: None }
    }
}

/// Returns the pause after a step of a checkpoint that took this long. `grown_bytes` is how much the log has
/// grown since the checkpoint began.
fn pause_of_checkpoint(worked: Duration, grown_bytes: u64, segment_bytes: u32) -> Duration {
    let unhurried_bytes = UNHURRIED_SEGMENTS * u64::from(segment_bytes);
    let left_bytes = (2 * unhurried_bytes).saturating_sub(grown_bytes).min(unhurried_bytes);
    let part = left_bytes as f64 / unhurried_bytes.max(1) as f64;
    (worked * PAUSE_FACTOR).min(PAUSE_MAX).mul_f64(part)
}

#[cfg(test)]
mod tests;
