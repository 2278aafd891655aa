//! Decides when a checkpoint of the state is due, and which segments of the log can be deleted after it.
//! [`Checkpoints`] is the entry point. The checkpointer, which has its own thread, writes the checkpoints.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use numbers::Index;
use planted::Bug;
use storage::checkpointer::Checkpointed;

/// Pause before a failed checkpoint is tried again, if it was to free segments or has failed for lack of
/// space.
const FREE_PAUSE: Duration = Duration::from_secs(5);
/// Limits the checkpoints that are due only because no entries are being applied
/// ([`Thresholds::checkpoint_quiet`]). Example: a checkpoint begins at 0 s and takes 10 s of work, pauses not
/// included; the next checkpoint that is due only for this reason begins at 40 s at the earliest. So if
/// writes come in bursts, checkpoints keep the disk busy for at most a quarter of the time.
const QUIET_WORK_FACTOR: u32 = 4;
/// If fewer than `--snapshot-count` entries are unsaved, a checkpoint is due only after this many times
/// `checkpoint_log_bytes`.
const FEW_ENTRIES_FACTOR: u64 = 4;

/// Limits at which checkpoints are due and space is reclaimed, and the maximum work of one turn.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// Log bytes after which a checkpoint is due, if they contain at least `--snapshot-count` entries. If
    /// they contain fewer, a checkpoint is due after four times as many bytes, which is roughly the maximum
    /// that a restart has to read.
    pub checkpoint_log_bytes: u64,
    /// Number of entries after which a checkpoint is due, whatever their size in bytes.
    pub checkpoint_entries: u64,
    /// Time after which a checkpoint is due, if at least `--snapshot-count` entries are unsaved.
    pub checkpoint_age: Duration,
    /// Time without an applied entry after which a checkpoint is due, if at least `--snapshot-count` entries
    /// are unsaved. A checkpoint at such a time disturbs no writes, and a restart need not read these
    /// entries. The checkpoint is delayed if the previous one took much work (`QUIET_WORK_FACTOR`).
    pub checkpoint_quiet: Duration,
    /// Minimum bytes of dead records in sealed segments at which it is worthwhile to move the live records to
    /// the end of the log, so that the segments can be deleted.
    pub reclaim_dead_bytes: u64,
    /// Maximum amount of work for entries in one turn, counted in keys, operations and KiB, each of which
    /// takes about a microsecond. An entry that needs more is applied over several turns.
    pub applied_per_turn: u64,
    /// Value of `applied_per_turn` while no leader is known, as at a start. It can be higher, because without
    /// a leader no client waits for the end of a turn. Longer turns also publish fewer views.
    pub applied_per_turn_unled: u64,
    /// Maximum amount of work for client requests that the core answers without a log entry (questions) in
    /// one turn, counted in answers, leases visited and pointers copied, each of which takes about a
    /// microsecond. The last request of a turn may exceed it.
    pub questions_per_turn: u64,
    /// Interval at which a leader makes lease checkpoints (log entries that record remaining times), so that
    /// remaining times survive a restart. Leases that have used up at least this much of their TTL are
    /// included.
    pub note_interval: Duration,
}

impl Thresholds {
    /// Returns the thresholds for this `--snapshot-count`. etcd's snapshots also free memory. Checkpoints
    /// need not do that, so there are ten times as many entries between two of them. The byte limits are
    /// proportional to the size of segments, which is smaller on small disks.
    pub fn of(snapshot_count: u64, segment_bytes: u32) -> Thresholds {
        let bytes = (64 << 20).min(2 * u64::from(segment_bytes));
        Thresholds {
            checkpoint_log_bytes: bytes,
            checkpoint_entries: snapshot_count.saturating_mul(10).clamp(1000, 100_000),
            checkpoint_age: Duration::from_secs(60),
            checkpoint_quiet: Duration::from_secs(1),
            reclaim_dead_bytes: bytes,
            applied_per_turn: 2048,
            applied_per_turn_unled: 16 * 2048,
            questions_per_turn: 2048,
            note_interval: Duration::from_secs(60),
        }
    }
}

/// Decides when checkpoints are due: tracks what has been written since the last checkpoint, which segments
/// hold no live values any more, and whether a checkpoint is in progress.
///
/// The core reports what is applied, moved, ordered and saved. This type says whether another checkpoint is
/// due and, when a checkpoint is saved, which segments no durable file needs any more.
///
/// A checkpoint consists of runs. A run is a file with the changes of a range of revisions; it names the
/// locations of their values in the log. An ordinary checkpoint writes one new run, and may keep runs of
/// earlier checkpoints, with the locations as they were then. A *whole* checkpoint keeps none of them: its
/// only run contains the whole state, with the present locations.
pub(super) struct Checkpoints {
    thresholds: Thresholds,
    /// Minimum number of unsaved entries for a checkpoint that is due because of the log bytes, because of
    /// the time, or because the member is quiet (`--snapshot-count`).
    snapshot_count: u64,
    busy: bool,
    /// Segments that had no live value when the checkpoint in progress was ordered.
    empty_segments: Vec<u32>,
    /// Segments out of which values were moved to the end of the log since the last whole checkpoint was
    /// ordered. Runs of earlier checkpoints may still name the old locations of these values.
    emptied: BTreeSet<u32>,
    /// Segments with old locations of moved values. Once the whole checkpoint in progress is durable, no run
    /// refers to these locations.
    emptying: BTreeSet<u32>,
    whole_wanted: bool,
    /// Time from which on a checkpoint is due because it would free segments, even if little was written
    /// since the last one; `None` if it would free none.
    frees_at: Option<Instant>,
    /// True if the checkpoint in progress was ordered to free segments.
    frees: bool,
    applied_index: Index,
    entries_since: u64,
    /// Value of `entries_since` at the last call of [`Checkpoints::due`], and the time at which that value
    /// was first seen.
    seen: (u64, Instant),
    log_bytes_at: u64,
    /// Time at which the last checkpoint was ordered or, once it has ended, the time of its end.
    at: Instant,
    /// Time before which no checkpoint is due merely because no entries are applied.
    quiet_after: Instant,
    bytes: u64,
}

impl Checkpoints {
    /// Returns the scheduler as it is when the member starts. `applied_index` is that of the newest
    /// checkpoint, and `bytes` is the total size of its files.
    pub fn new(
        thresholds: Thresholds,
        snapshot_count: u64,
        (applied_index, bytes): (Index, u64),
        now: Instant,
    ) -> Checkpoints {
        Checkpoints {
            thresholds,
            snapshot_count,
            busy: false,
            empty_segments: Vec::new(),
            emptied: BTreeSet::new(),
            emptying: BTreeSet::new(),
            whole_wanted: false,
            frees_at: None,
            frees: false,
            applied_index,
            entries_since: 0,
            seen: (0, now),
            log_bytes_at: 0,
            at: now,
            quiet_after: now,
            bytes,
        }
    }

    /// Returns the limits at which checkpoints are due, and the maximum work of one turn.
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Returns true if a checkpoint is in progress.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Returns the index of the last entry in the newest durable checkpoint.
    pub fn applied_index(&self) -> Index {
        self.applied_index
    }

    /// Returns the bytes of the files of the newest durable checkpoint.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts an applied entry.
    pub fn entry_applied(&mut self) {
        self.entries_since += 1;
    }

    /// Returns two byte counts: the log bytes written since the newest checkpoint was ordered, and the limit
    /// at which another checkpoint is due even if these bytes contain few entries. `written_bytes` is the
    /// number of all log bytes written so far.
    pub fn unsaved_bytes(&self, written_bytes: u64) -> (u64, u64) {
        let since = written_bytes.saturating_sub(self.log_bytes_at);
        (since, FEW_ENTRIES_FACTOR * self.thresholds.checkpoint_log_bytes)
    }

    /// Records that a value was moved out of this segment to the end of the log.
    pub fn moved_out_of(&mut self, segment: u32) {
        self.emptied.insert(segment);
    }

    /// Returns true if values were moved out of a segment that holds no live value now. Files (runs) of
    /// earlier checkpoints may still name the old locations of these values. So the segment can be deleted
    /// only after a whole checkpoint, which keeps none of these files.
    pub fn has_emptied(&self, is_empty: impl Fn(u32) -> bool) -> bool {
        self.emptied.iter().any(|segment| is_empty(*segment))
    }

    /// Makes the next checkpoint a whole one, which keeps no file (run) of an earlier checkpoint.
    pub fn want_whole(&mut self) {
        self.whole_wanted = true;
    }

    /// Records that a checkpoint taken now would free segments, so that one is due.
    pub fn would_free(&mut self, now: Instant) {
        self.frees_at = Some(now);
    }

    /// Returns true if a checkpoint is due, now or after a pause, because it would free segments.
    pub fn is_to_free(&self) -> bool {
        self.frees_at.is_some()
    }

    /// Returns `Some(true)` if a whole checkpoint is due, `Some(false)` if an ordinary one is due, and `None`
    /// if none is due. `is_empty` returns true for a segment that holds no live value.
    pub fn due(&mut self, written_bytes: u64, is_empty: impl Fn(u32) -> bool, now: Instant) -> Option<bool> {
        let (since, enough_bytes) = self.unsaved_bytes(written_bytes);
        let due = &self.thresholds;
        let (entries, age) = (self.entries_since, now.saturating_duration_since(self.at));
        if self.seen.0 != entries {
            self.seen = (entries, now);
        }
        let quiet = now.saturating_duration_since(self.seen.1);
        let by_bytes = entries > 0 && since >= enough_bytes;
        let by_bytes = by_bytes && !planted::is(Bug::CheckpointByEntriesAlone);
        let by_entries = entries >= self.snapshot_count
            && (since >= due.checkpoint_log_bytes
                || entries >= due.checkpoint_entries
                || age >= due.checkpoint_age
                || (quiet >= due.checkpoint_quiet && now >= self.quiet_after));
        let frees = self.frees_at.is_some_and(|at| now >= at);
        // `whole_wanted` alone is not enough. It is false again after a whole checkpoint was ordered; if that
        // checkpoint failed, its retry must be a whole one, too, to free the emptied segments.
        let whole = self.whole_wanted || (frees && self.has_emptied(is_empty));
        (by_bytes || by_entries || whole || frees).then_some(whole)
    }

    /// Returns true if `segment`, which holds no live value any more, can be deleted once the checkpoint that
    /// is about to be ordered is saved.
    ///
    /// If values were moved out of the segment, the files (runs) of earlier checkpoints may still name their
    /// old locations in the segment. An ordinary checkpoint may keep these files, so the segment has to stay.
    /// A whole checkpoint (`whole`) writes the complete state to a new file and keeps none of them, so the
    /// segment can be deleted.
    pub fn frees(&self, segment: u32, whole: bool) -> bool {
        whole || !self.emptied.contains(&segment)
    }

    /// Records that a checkpoint was ordered. `empty_segments` are the segments that can be deleted once the
    /// checkpoint is durable.
    pub fn ordered(&mut self, empty_segments: Vec<u32>, whole: bool, written_bytes: u64, now: Instant) {
        self.begun(written_bytes, now);
        self.empty_segments = empty_segments;
        if whole {
            self.emptying = std::mem::take(&mut self.emptied);
        }
        self.whole_wanted = false;
        // `frees_at` is reset here. A segment that becomes empty while this checkpoint is in progress sets it
        // again, for the next checkpoint.
        self.frees = self.frees_at.take().is_some() || whole;
    }

    /// Records that the checkpoint of an installed snapshot is in progress.
    pub fn begun(&mut self, written_bytes: u64, now: Instant) {
        self.busy = true;
        self.empty_segments.clear();
        self.entries_since = 0;
        self.seen = (0, now);
        self.log_bytes_at = written_bytes;
        self.at = now;
    }

    /// Removes and returns the segments that nothing needs once the checkpoint in progress is saved.
    pub fn take_empty(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.empty_segments)
    }

    /// Records that the checkpoint in progress is durable. Returns the segments that no durable file needs
    /// any more.
    pub fn saved(&mut self, done: &Checkpointed, now: Instant) -> Vec<u32> {
        let (before, saved) = (self.applied_index, done.applied_index);
        assert!(before <= saved, "a checkpoint through entry {saved} follows one through entry {before}");
        self.ended(done.paused, now);
        self.applied_index = saved;
        self.bytes = done.bytes;
        // `emptying` is not put back into `emptied`: a segment in it that still holds a value is forgotten.
        // That value cannot be moved, so another whole checkpoint would not free the segment either.
        self.emptying.clear();
        self.take_empty()
    }

    /// Records that the checkpoint in progress could not be written. No data is lost, because the log has all
    /// entries. If the checkpoint was to free segments, another one is due after a pause. Otherwise the next
    /// one is due when one of the limits is reached again.
    pub fn failed(&mut self, now: Instant) {
        self.ended(Duration::ZERO, now);
        self.empty_segments.clear();
        let mut emptying = std::mem::take(&mut self.emptying);
        self.emptied.append(&mut emptying);
        if self.frees {
            self.retry(now);
        }
    }

    /// Records the end of a checkpoint. `paused` is the part of its duration in which it did no work. After a
    /// failure the whole duration counts as work, because the cause may persist.
    ///
    /// Pauses do not delay the next checkpoint. On a loaded member a checkpoint takes many seconds, and most
    /// of that time is pauses. If they counted as work, the next checkpoint would come late, and a restart
    /// soon after the load would have to read all entries since this one.
    fn ended(&mut self, paused: Duration, now: Instant) {
        let worked = now.saturating_duration_since(self.at).saturating_sub(paused);
        self.quiet_after = self.at + worked * QUIET_WORK_FACTOR;
        (self.busy, self.at) = (false, now);
    }

    /// Makes a failed checkpoint due again after a pause, even if nothing is written in the meantime.
    pub fn retry(&mut self, now: Instant) {
        self.frees_at = Some(now + FREE_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoints(now: Instant) -> Checkpoints {
        let thresholds = Thresholds {
            checkpoint_log_bytes: 1000,
            checkpoint_entries: 100,
            checkpoint_age: Duration::from_secs(60),
            ..Thresholds::of(10, 1 << 20)
        };
        Checkpoints::new(thresholds, 10, (Index(0), 0), now)
    }

    fn due(checkpoints: &mut Checkpoints, written_bytes: u64, now: Instant) -> Option<bool> {
        checkpoints.due(written_bytes, |_| true, now)
    }

    fn applied(entries: usize, now: Instant) -> Checkpoints {
        let mut checkpoints = checkpoints(now);
        (0..entries).for_each(|_| checkpoints.entry_applied());
        checkpoints
    }

    const DONE: Checkpointed =
        Checkpointed { applied_index: Index(9), whole: false, bytes: 77, paused: Duration::ZERO, base: None };

    #[test]
    fn one_is_due_by_bytes_entries_or_age() {
        let now = Instant::now();
        assert_eq!(due(&mut checkpoints(now), 1 << 30, now), None, "there is nothing to save");
        assert_eq!(due(&mut applied(9, now), 3999, now), None);
        assert_eq!(due(&mut applied(9, now), 4000, now), Some(false));
        assert_eq!(due(&mut applied(10, now), 999, now), None);
        assert_eq!(due(&mut applied(10, now), 1000, now), Some(false));
        assert_eq!(due(&mut applied(100, now), 0, now), Some(false));
        let mut under_way = applied(100, now);
        under_way.ordered(vec![3], false, 500, now);
        assert!(under_way.is_busy() && due(&mut under_way, 500, now).is_none());
        assert_eq!(under_way.saved(&DONE, now), [3]);
        assert_eq!(
            (under_way.applied_index(), under_way.bytes(), under_way.is_busy()),
            (Index(9), 77, false)
        );
        assert_eq!(under_way.unsaved_bytes(600), (100, 4000));
    }

    /// Returns the seconds at which a checkpoint is due. In each second, `applied` entries are applied before
    /// the check.
    fn due_at(applied: impl Fn(u64) -> usize) -> Vec<u64> {
        let begin = Instant::now();
        let mut checkpoints = checkpoints(begin);
        checkpoints.thresholds.checkpoint_quiet = Duration::from_secs(5);
        let look = |second: &u64| {
            (0..applied(*second)).for_each(|_| checkpoints.entry_applied());
            due(&mut checkpoints, 0, begin + Duration::from_secs(*second)).is_some()
        };
        (0..70).filter(look).take(1).collect()
    }

    #[test]
    fn one_is_due_once_nothing_is_applied_any_more_and_by_age_otherwise() {
        assert_eq!(due_at(|second| if second < 8 { 2 } else { 0 }), [12], "five seconds after the last");
        assert_eq!(due_at(|second| if second == 3 { 9 } else { 0 }), [0; 0], "too few are not worth it");
        assert_eq!(
            due_at(|second| if second < 11 || second % 4 == 0 { 1 } else { 0 }),
            [60],
            "it is never quiet"
        );
        // Entries that are applied while no check is made count as applied at the time of the next check.
        let begin = Instant::now();
        let mut late = applied(20, begin);
        late.thresholds.checkpoint_quiet = Duration::from_secs(5);
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        assert_eq!(due(&mut late, 0, after(30)), None);
        assert_eq!(due(&mut late, 0, after(34)), None);
        assert_eq!(due(&mut late, 0, after(35)), Some(false));
        // A saved checkpoint leaves nothing to save.
        late.ordered(vec![], false, 0, after(35));
        late.saved(&DONE, after(45));
        assert_eq!(due(&mut late, 0, after(85)), None);
    }

    /// Orders a checkpoint that takes ten seconds, with pauses of `seconds`, and applies entries while it
    /// runs. Returns the seconds from the order until another checkpoint is due because the member has been
    /// quiet for five seconds.
    fn due_after_one_that_paused(seconds: u64) -> Option<u64> {
        let begin = Instant::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut checkpoints = applied(20, begin);
        checkpoints.thresholds.checkpoint_quiet = Duration::from_secs(5);
        checkpoints.ordered(vec![], false, 0, begin);
        (0..20).for_each(|_| checkpoints.entry_applied());
        checkpoints.saved(&Checkpointed { paused: Duration::from_secs(seconds), ..DONE }, after(10));
        (10..60).find(|second| due(&mut checkpoints, 0, after(*second)).is_some())
    }

    #[test]
    fn one_that_nobody_waits_for_is_put_off_by_the_work_for_the_last_and_not_by_its_pauses() {
        assert_eq!(due_after_one_that_paused(0), Some(40), "four times the ten seconds of work");
        assert_eq!(due_after_one_that_paused(4), Some(24));
        assert_eq!(due_after_one_that_paused(8), Some(15), "as soon as it is quiet");
        assert_eq!(due_after_one_that_paused(10), Some(15));
    }

    #[test]
    fn bursts_with_pauses_between_them_keep_the_disk_busy_a_quarter_of_the_time() {
        for paused in [0, 1, 2] {
            let begin = Instant::now();
            let mut checkpoints = checkpoints(begin);
            let (mut worked, mut ends) = (0, None);
            for second in 0..900 {
                let now = begin + Duration::from_secs(second);
                if second % 3 == 0 {
                    (0..20).for_each(|_| checkpoints.entry_applied());
                }
                if ends == Some(second) {
                    ends = None;
                    worked += 3 - paused;
                    checkpoints.saved(&Checkpointed { paused: Duration::from_secs(paused), ..DONE }, now);
                }
                if !checkpoints.is_busy() && due(&mut checkpoints, 0, now).is_some() {
                    checkpoints.ordered(vec![], false, 0, now);
                    ends = Some(second + 3);
                }
            }
            assert!((150..=225).contains(&worked), "{worked} seconds of 900 with pauses of {paused}");
        }
    }

    #[test]
    fn segments_that_were_emptied_are_freed_by_a_whole_one() {
        let now = Instant::now();
        let mut checkpoints = checkpoints(now);
        checkpoints.moved_out_of(5);
        assert!(!checkpoints.frees(5, false) && checkpoints.frees(5, true) && checkpoints.frees(6, false));
        assert_eq!(due(&mut checkpoints, 0, now), None);
        checkpoints.would_free(now);
        assert_eq!(checkpoints.due(0, |_| false, now), Some(false));
        assert_eq!(due(&mut checkpoints, 0, now), Some(true));
        checkpoints.ordered(vec![5], true, 0, now);
        assert!(!checkpoints.is_to_free());
        // A failed checkpoint is tried again after a pause.
        checkpoints.failed(now);
        assert_eq!(due(&mut checkpoints, 0, now), None);
        let later = now + FREE_PAUSE;
        assert_eq!(due(&mut checkpoints, 0, later), Some(true));
        checkpoints.ordered(vec![5], true, 0, later);
        assert_eq!(checkpoints.saved(&DONE, later), [5]);
        assert!(!checkpoints.has_emptied(|_| true));
    }
}
