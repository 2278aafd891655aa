//! What becomes free: saving checkpoints, emptying and deleting segments.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use log::{Log, SegmentState, Space};
use planted::Bug;

use super::removal::{self, Sliced};
use super::room::Purpose;
use super::run::Core;
use crate::long_reads::Reader;
use storage::checkpointer::{Checkpointed, Order, Relocation};
use telemetry::logging::Value;

/// When checkpoints are due, when room is worth winning back, and what is done at once.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// Log bytes after which a checkpoint is due, and four times as many if they are fewer entries than
    /// `--snapshot-count`: what a restart has to read at most, more or less.
    pub checkpoint_log_bytes: u64,
    /// Entries after which one is due, whatever they weigh.
    pub checkpoint_entries: u64,
    /// The age at which one is due, if there was anything to save.
    pub checkpoint_age: Duration,
    /// Least bytes of dead records in sealed segments that are worth moving the live ones away.
    pub reclaim_dead_bytes: u64,
    /// What one turn of the core applies at most, in keys, operations and KiB, about a microsecond each: an entry that
    /// takes more is applied in as many turns as it takes.
    pub applied_per_turn: u64,
    /// How often a leader notes the time left of leases that have used up as much, so that it survives a restart.
    pub note_interval: Duration,
}

impl Thresholds {
    /// Those of a member whose `--snapshot-count` is this. Checkpoints cost less than etcd's snapshots and free no
    /// memory, so ten times as many entries go between them. Segments are smaller on small disks, and so are the bytes.
    pub fn of(snapshot_count: u64, segment_bytes: u32) -> Thresholds {
        let bytes = (64 << 20).min(2 * u64::from(segment_bytes));
        Thresholds {
            checkpoint_log_bytes: bytes,
            checkpoint_entries: snapshot_count.saturating_mul(10).clamp(1000, 100_000),
            checkpoint_age: Duration::from_secs(60),
            reclaim_dead_bytes: bytes,
            applied_per_turn: 2048,
            note_interval: Duration::from_secs(60),
        }
    }
}

/// Pause before a checkpoint that failed and would have freed segments is tried again.
const FREE_PAUSE: Duration = Duration::from_secs(5);
/// From this size on what a whole checkpoint writes is held against what it frees.
const WHOLE_BYTES_LARGE: u64 = 16 << 20;
/// Checkpoints of few entries are due after so many times the bytes of others.
const FEW_ENTRIES_FACTOR: u64 = 4;
/// Bytes a version is taken to need in a checkpoint.
const VERSION_BYTES: u64 = 64;
/// Segments emptied at once.
const RECLAIM_SEGMENTS: usize = 16;

/// What the core knows of checkpoints.
pub(super) struct Checkpoints {
    pub busy: bool,
    /// Segments without a live value when the one under way was ordered.
    pub empty_segments: Vec<u32>,
    /// Segments that values were moved out of since the last whole checkpoint was ordered: runs from before name the old
    /// places.
    pub emptied: BTreeSet<u32>,
    /// Those that the whole checkpoint under way makes as good as any other.
    pub emptying: BTreeSet<u32>,
    pub whole_wanted: bool,
    /// When to take one because it would free segments, whatever has been written since the last.
    pub frees_at: Option<Instant>,
    /// Whether the one under way was wanted for that.
    pub frees: bool,
    pub applied_index: u64,
    pub entries_since: u64,
    pub log_bytes_at: u64,
    pub at: Instant,
    pub bytes: u64,
}

impl Checkpoints {
    /// One that holds everything has been ordered.
    pub fn begun(&mut self, now: Instant, log_bytes: u64) {
        self.busy = true;
        self.empty_segments.clear();
        self.entries_since = 0;
        self.log_bytes_at = log_bytes;
        self.at = now;
    }
}

/// Bytes that a segment's live values need in another one. A small value's record is more than the value: were that taken
/// for garbage, small values would be moved for ever.
fn moved_bytes(usage: &machine::SegmentUse) -> u64 {
    Log::moved_bytes(usage.values, usage.bytes)
}

impl Core {
    /// Removes a slice of what compactions made unreadable.
    pub(super) fn remove_slice(&mut self, now: Instant) {
        if !self.machine.is_whole() {
            return;
        }
        let compacted = self.machine.store.compact_revision();
        match self.removal.step(compacted, |revision| self.shared.all_saw(revision), now) {
            removal::Step::Nothing => return,
            removal::Step::Publish => {
                self.applied_since = true;
                return;
            }
            removal::Step::Remove => {}
        }
        let removable = self.shared.long_reads.removable(compacted, now);
        if removable.overtaken > 0 {
            self.shared.metrics.long_reads.overtaken.add(removable.overtaken as u64);
            self.logger.warn(
                "ended readers that kept a compaction from removing for too long",
                &[("readers", Value::Uint(removable.overtaken as u64)), ("revision", Value::Int(compacted))],
            );
        }
        let versions = self.machine.store.stats().versions;
        let done = self.machine.compact_step_through(removable.through, self.config.compaction_batch_limit);
        let removed = versions.saturating_sub(self.machine.store.stats().versions);
        let sliced = match done {
            true => Sliced::All,
            false if removed == 0 => Sliced::Waits,
            false => Sliced::Some,
        };
        let (told, took) = self.removal.sliced(sliced, now);
        if sliced != Sliced::Waits {
            let metrics = &self.shared.metrics.mvcc;
            metrics.db_compaction_keys.add(removed);
            let pause = self.shared.clock.now().saturating_duration_since(now);
            metrics.db_compaction_pause.observe_milliseconds(pause);
            // What was removed leaves memory with the next publications.
            self.applied_since = true;
        }
        if let Some(took) = took {
            if self.has_garbage() {
                self.checkpoint.frees_at = Some(now);
            }
            let metrics = &self.shared.metrics.mvcc;
            metrics.db_compaction_total.observe_milliseconds(took);
            metrics.db_compaction_last.set_u64(self.shared.clock.unix_seconds());
        }
        for reply in told {
            let queue = self.queue_of(reply.ticket);
            self.replies[queue].push(reply);
        }
    }

    pub(super) fn order_checkpoint(&mut self, now: Instant) {
        // While a snapshot is being received, nothing may go that it counts on.
        if self.checkpoint.busy || self.install.is_receiving() || !self.machine.is_whole() {
            return;
        }
        if self.install.wants_checkpoint() {
            self.order_install(now);
            return;
        }
        // On a full disk the entry that settles a leader may wait for what this checkpoint frees.
        let short = self.log.space() != Space::Ample;
        if (self.leadership.leader() == 0 || (self.leadership.leads() && !self.leadership.has_settled()))
            && !short
        {
            return;
        }
        let log_bytes = self.log.figures().written_bytes();
        let (since, enough_bytes) = self.unsaved_bytes();
        let due = &self.thresholds;
        let (entries, age) =
            (self.checkpoint.entries_since, now.saturating_duration_since(self.checkpoint.at));
        let by_bytes = entries > 0 && since >= enough_bytes;
        let by_bytes = by_bytes && !planted::is(Bug::CheckpointByEntriesAlone);
        let by_entries = entries >= self.config.snapshot_count
            && (since >= due.checkpoint_log_bytes
                || entries >= due.checkpoint_entries
                || age >= due.checkpoint_age);
        let enough = by_bytes || by_entries;
        let frees = self.checkpoint.frees_at.is_some_and(|at| now >= at);
        // One that is to free emptied segments, and failed, is wanted whole again.
        let whole = self.checkpoint.whole_wanted || (frees && self.has_emptied());
        if !enough && !whole && !frees {
            return;
        }
        // The entry that raised an alarm may leave the log with it.
        if !self.note_cause() {
            return;
        }
        let moment = self.shared.state.load().view.moment_of_everything();
        let keep_behind = self.kept_behind(self.machine.applied_index);
        let usage = self.machine.usage();
        let empty = |seq: u32| usage.get(&seq).is_none_or(|u| u.values == 0);
        let empty_segments = self
            .log
            .segments()
            .iter()
            .filter(|s| s.sealed && !s.releasing && s.last_index <= keep_behind && empty(s.seq))
            .map(|s| s.seq)
            .filter(|seq| whole || !self.checkpoint.emptied.contains(seq))
            .filter(|seq| !self.doomed.iter().any(|(_, doomed)| doomed == seq))
            .collect();
        storage::terms::forget(&mut self.terms, self.entries.first_index());
        let terms = self.terms.clone();
        let mut head = Box::new(self.machine.head());
        if planted::is(Bug::AppliedIndexEarly) {
            head.applied_index += 1;
        }
        let state = self.shared.read_long_at(Reader::Checkpoint, moment);
        let order = Order::Checkpoint { head, state, whole, terms };
        if self.orders.try_send(order).is_err() {
            return;
        }
        self.checkpoint.begun(now, log_bytes);
        self.checkpoint.empty_segments = empty_segments;
        if whole {
            self.checkpoint.emptying = std::mem::take(&mut self.checkpoint.emptied);
        }
        if planted::is(Bug::SegmentDeletedEarly) {
            let early = self.checkpoint.empty_segments.drain(..).map(|seq| (self.published, seq));
            self.doomed.extend(early);
        }
        self.checkpoint.whole_wanted = false;
        // What becomes garbage while this one is under way is for the next.
        self.checkpoint.frees = self.checkpoint.frees_at.take().is_some() || whole;
    }

    /// Bytes of log written since the newest checkpoint was ordered, and those after which another is due however few
    /// entries they are.
    pub(super) fn unsaved_bytes(&self) -> (u64, u64) {
        let since = self.log.figures().written_bytes().saturating_sub(self.checkpoint.log_bytes_at);
        (since, FEW_ENTRIES_FACTOR * self.thresholds.checkpoint_log_bytes)
    }

    /// The entry up to which nothing is kept for followers that lag.
    fn kept_behind(&self, applied_index: u64) -> u64 {
        match self.machine.members.by_id.len() {
            0 | 1 => applied_index,
            // A follower that lags gets the whole state then.
            _ if self.room.is_tight(&self.log) => applied_index,
            _ => applied_index.saturating_sub(self.config.snapshot_catchup_entries),
        }
    }

    pub(super) fn checkpointed(
        &mut self,
        result: Result<Checkpointed, String>,
        now: Instant,
    ) -> Result<(), String> {
        self.checkpoint.busy = false;
        self.checkpoint.at = now;
        match result {
            Ok(done) => {
                self.checkpoint.applied_index = done.applied_index;
                self.checkpoint.bytes = done.bytes;
                self.log.forget_below(self.kept_behind(done.applied_index));
                // What is still in one of them cannot be moved, and another whole checkpoint would not change that.
                self.checkpoint.emptying.clear();
                for seq in std::mem::take(&mut self.checkpoint.empty_segments) {
                    self.doomed.push((self.published, seq));
                }
                self.logger
                    .debug("saved a checkpoint", &[("applied-index", Value::Uint(done.applied_index))]);
                self.install_saved(done.applied_index, now)?;
                self.reclaim();
            }
            Err(why) => {
                // Nothing is lost: the log has it all. It is tried again when the next is due.
                self.checkpoint.empty_segments.clear();
                let mut emptying = std::mem::take(&mut self.checkpoint.emptying);
                self.checkpoint.emptied.append(&mut emptying);
                self.install.retry();
                if self.checkpoint.frees {
                    self.checkpoint.frees_at = Some(now + FREE_PAUSE);
                }
                self.logger.warn("could not save a checkpoint", &[("error", Value::Str(&why))]);
            }
        }
        self.measure_disk();
        Ok(())
    }

    /// Tells the others how much of the disk is in use.
    pub(super) fn measure_disk(&self) {
        let log_bytes: u64 = self.log.segments().iter().map(|s| s.used_bytes).sum();
        self.shared.set_disk_bytes(log_bytes + self.checkpoint.bytes);
    }

    pub(super) fn measure_readers(&self, now: Instant) {
        let (readers, since) = self.shared.long_reads.figures();
        let metrics = &self.shared.metrics.long_reads;
        metrics.open.set_u64(readers as u64);
        metrics.oldest.set_u64(since.map_or(0, |since| now.saturating_duration_since(since).as_secs()));
    }

    /// Bytes of garbage that are worth a checkpoint: on a disk that is short of room, any that fill half a segment.
    fn worth_bytes(&self, live: u64) -> u64 {
        if self.room.is_tight(&self.log) {
            u64::from(self.log.segment_bytes()) / 2
        } else {
            self.thresholds.reclaim_dead_bytes.max(live / 2)
        }
    }

    /// Whether sealed segments hold so little that a checkpoint would free some, or have some emptied.
    pub(super) fn has_garbage(&self) -> bool {
        let usage = self.machine.usage();
        let kept_behind = self.kept_behind(self.machine.applied_index);
        let (mut live, mut dead) = (0, 0);
        let segments = self.log.segments();
        // A doomed one goes as soon as nobody reads it any more.
        let doomed = |seq: u32| self.doomed.iter().any(|(_, doomed)| *doomed == seq);
        let goes = |segment: &SegmentState| segment.releasing || doomed(segment.seq);
        for segment in segments.iter().filter(|s| s.sealed && s.last_index <= kept_behind && !goes(s)) {
            let in_use = usage.get(&segment.seq).map_or(0, moved_bytes);
            let used = self.winnable_bytes(segment);
            let unused = used.saturating_sub(in_use);
            // Short of room, only what emptying would free counts.
            if !self.room.is_tight(&self.log) || self.is_worth_emptying(in_use, used) {
                dead += unused;
            }
            live += in_use;
        }
        dead >= self.worth_bytes(live)
    }

    /// Whether values were moved out of segments that hold nothing any more, and only a whole checkpoint frees those.
    pub(super) fn has_emptied(&self) -> bool {
        let usage = self.machine.usage();
        self.checkpoint.emptied.iter().any(|seq| usage.get(seq).is_none_or(|usage| usage.values == 0))
    }

    /// Bytes of a segment that count as garbage if nobody needs them. Short of room all of it does, header and all; a
    /// segment is no smaller than 512 KiB then, and what is moved out of it never fills another one as badly.
    fn winnable_bytes(&self, segment: &SegmentState) -> u64 {
        if self.room.is_tight(&self.log) { segment.used_bytes } else { Log::record_bytes(segment) }
    }

    /// Whether a segment with so many live bytes is to be emptied.
    fn is_worth_emptying(&self, live: u64, used: u64) -> bool {
        if self.room.is_tight(&self.log) { live < used - used / 4 } else { live < used / 2 }
    }

    /// Looks for segments that hold little, and has their live values moved.
    pub(super) fn reclaim(&mut self) {
        let usage = self.machine.usage();
        let live = |seq: u32| usage.get(&seq).map_or(0, moved_bytes);
        let mut sealed: Vec<(u64, u64, u32)> = self
            .log
            .segments()
            .iter()
            .filter(|s| s.sealed && !s.releasing && s.last_index <= self.checkpoint.applied_index)
            .map(|s| (live(s.seq), self.winnable_bytes(s), s.seq))
            .filter(|(live, _, seq)| *live > 0 && !self.doomed.iter().any(|(_, doomed)| doomed == seq))
            .collect();
        let dead: u64 = sealed.iter().map(|(live, used, _)| used.saturating_sub(*live)).sum();
        let all_live: u64 = sealed.iter().map(|(live, _, _)| live).sum();
        if dead < self.worth_bytes(all_live) {
            return;
        }
        // Moved values make the next checkpoint a whole one: what it writes must be little beside what becomes free.
        let whole_bytes = self.machine.store.stats().versions * VERSION_BYTES;
        if !self.room.is_tight(&self.log) && whole_bytes >= WHOLE_BYTES_LARGE && dead < 2 * whole_bytes {
            return;
        }
        sealed.retain(|(live, used, _)| self.is_worth_emptying(*live, *used));
        sealed.sort_unstable();
        // Values go to new places before the old ones are free.
        let mut moved = 0;
        let segments: Vec<u32> = sealed
            .into_iter()
            .take(RECLAIM_SEGMENTS)
            .take_while(|(live, _, _)| {
                moved += usize::try_from(*live).unwrap_or(usize::MAX);
                self.room.has(&self.log, moved + moved / 8, Purpose::Moves)
            })
            .map(|(_, _, seq)| seq)
            .collect();
        if segments.is_empty() {
            return;
        }
        // If the checkpointer is busy, the next checkpoint asks again.
        let portion_bytes = self.room.portion_bytes(&self.log);
        let _ = self.orders.try_send(Order::Relocate { segments, portion_bytes });
    }

    pub(super) fn relocate(&mut self, values: Vec<Relocation>, done: SyncSender<()>, now: Instant) {
        let receiving = self.install.is_receiving();
        let bytes = values.iter().map(|value| value.data.len() + 128).sum();
        let fits = self.room.has(&self.log, bytes, Purpose::Moves) && !self.room.is_full();
        if !fits || self.stopping.is_some() || receiving || values.is_empty() {
            let _ = done.try_send(());
            return;
        }
        let mut batch = Vec::with_capacity(values.len());
        let mut moving = Vec::with_capacity(values.len());
        for value in values {
            let id = log::ValueId { main: value.main, sub: i64::from(value.sub) };
            moving.push(((value.main, value.sub), value.from));
            batch.push(log::Value { id, data: value.data });
        }
        // What the log does not take now stays where it is: the next checkpoint asks again.
        if self.room.hand_values(&mut self.log, batch, now).is_none() {
            let _ = done.try_send(());
            return;
        }
        self.moving.extend(moving);
        self.mover = Some(done);
    }

    pub(super) fn release_doomed(&mut self) {
        if self.doomed.is_empty() || self.install.is_receiving() {
            return;
        }
        while self.views.front().is_some_and(|(_, view)| view.strong_count() == 0) {
            self.views.pop_front();
        }
        let oldest = self.views.front().map_or(u64::MAX, |(number, _)| *number);
        let mut kept = Vec::new();
        for (number, seq) in self.doomed.drain(..) {
            if oldest <= number && !planted::is(Bug::SegmentDeletedUnderView) {
                kept.push((number, seq));
            } else if let Err(why) = self.log.release(seq) {
                self.logger
                    .warn("could not release a segment", &[("error", Value::Str(&format!("{why:?}")))]);
            }
        }
        self.doomed = kept;
        // If only the published state itself holds a view from before, another has to take its place. A reader may have
        // that view too, so the segment does not simply go.
        self.applied_since |= !self.doomed.is_empty() && oldest == self.published;
    }
}
