//! Measures the garbage in the log's segments, and chooses the segments that are worth emptying.
//!
//! # Example
//!
//! Four sealed segments of 64 MiB, bytes of live values: 0, 10, 20 and 60 MiB; space is not short. The first
//! segment is empty, and is deleted once a checkpoint covers its entries. The others hold 90 MiB of 192 MiB,
//! so 102 MiB are dead. A checkpoint is worthwhile, because these are more than `dead_bytes_min` (here 64
//! MiB) and more than half of the live bytes (45 MiB). Segments that are less than half full are emptied: the
//! second and third. Their 30 MiB are appended to the log again, and 128 MiB become free. The fourth stays
//! until more of it is dead. (Moved values require a whole checkpoint. With an index so large that this
//! checkpoint would write more than half of the dead bytes, nothing is emptied yet.)
//!
//! If less is dead, segments are emptied slowly: see `tidying.rs`.

use log::{Log, SegmentState};
use machine::Machine;
use numbers::Index;

use super::room::{Purpose, Room};
use super::segments::Segments;
use super::tidying::SEGMENTS_MAX;

/// Size of a whole checkpoint in bytes from which on its cost is considered. Moving values makes a whole
/// checkpoint necessary. If that checkpoint has at least this size, values are moved only if there are at
/// least twice as many garbage bytes as the checkpoint writes.
const WHOLE_BYTES_LARGE: u64 = 16 << 20;
/// Estimated number of bytes that one version needs in a checkpoint.
const VERSION_BYTES: u64 = 64;
/// Maximum number of segments that one order to the checkpointer empties.
const RECLAIM_SEGMENTS: usize = 16;
/// Segments with little garbage are emptied slowly, if all of them together hold more than this part of the
/// live bytes.
const TIDY_PART: u64 = 10;
/// A segment with less than this part of garbage is not emptied.
const TIDIED_PART: u64 = 20;
/// The segments that are emptied together must free at least this part of the checkpoint that follows.
const TIDY_CHECKPOINT_PART: u64 = 4;

/// Maximum number of segments that one order to the checkpointer compresses, unless more are needed to make up
/// for the whole checkpoint that follows.
const COMPRESS_SEGMENTS: usize = 64;
/// Number of the newest sealed segments that are not compressed: many of their values will soon be replaced.
const HOT_SEGMENTS: usize = 1;

/// Returns the bytes that the live values of a segment would take in another segment, including the overhead
/// of their records. The overhead must count as live. If it counted as garbage, segments with small values
/// would be emptied again and again, because moving the values does not reduce it.
fn moved_bytes(usage: &machine::SegmentUse) -> u64 {
    Log::moved_bytes(usage.values, usage.bytes)
}

/// A survey of the garbage in the segments, made for one decision. It keeps no state between calls.
#[derive(Clone, Copy)]
pub(super) struct Survey<'a> {
    /// The raft log, with its segments.
    pub log: &'a Log,
    /// The state, which knows which values are live.
    pub machine: &'a Machine,
    /// The space on the disk. If it is short, even a small amount of garbage is worth reclaiming.
    pub room: &'a Room,
    /// Segments that already wait to be deleted.
    pub segments: &'a Segments,
    /// Log index up to which no entries are kept for followers that lag behind.
    pub kept_behind: Index,
    /// Minimum bytes of dead records at which moving the live records out of their segments is worthwhile.
    pub dead_bytes_min: u64,
}

impl Survey<'_> {
    /// Returns true if this segment holds no live value.
    pub fn is_empty(&self, segment: u32) -> bool {
        self.machine.usage().get(&segment).is_none_or(|usage| usage.values == 0)
    }

    /// Returns the sealed segments that can be deleted once the current state is saved.
    pub fn empty_segments(&self) -> Vec<u32> {
        let segments = self.log.segments();
        let empty = segments
            .iter()
            .filter(|s| s.sealed && !s.releasing && s.last_index <= self.kept_behind && self.is_empty(s.seq));
        empty.map(|s| s.seq).filter(|seq| !self.segments.is_pending_delete(*seq)).collect()
    }

    /// Returns the number of garbage bytes at which a checkpoint is worthwhile. On a disk that is short of
    /// space, this is half a segment.
    fn worth_bytes(&self, live: u64) -> u64 {
        if self.room.is_tight(self.log) {
            u64::from(self.log.segment_bytes()) / 2
        } else {
            self.dead_bytes_min.max(live / 2)
        }
    }

    /// Returns true if sealed segments hold so much garbage that a checkpoint is worthwhile: it frees
    /// segments, or lets values be moved out of them.
    pub fn has_garbage(&self) -> bool {
        let usage = self.machine.usage();
        let (mut live, mut dead) = (0, 0);
        let segments = self.log.segments();
        // A segment that waits to be deleted is not counted. It needs no checkpoint, because it is deleted as
        // soon as no view refers to it.
        let goes = |segment: &SegmentState| segment.releasing || self.segments.is_pending_delete(segment.seq);
        for segment in segments.iter().filter(|s| s.sealed && s.last_index <= self.kept_behind && !goes(s)) {
            let in_use = usage.get(&segment.seq).map_or(0, moved_bytes);
            let used = self.winnable_bytes(segment);
            let unused = used.saturating_sub(in_use);
            // When space is short, garbage counts only in segments that should be emptied, because only there
            // it can be freed.
            if !self.room.is_tight(self.log) || self.is_worth_emptying(in_use, used) {
                dead += unused;
            }
            live += in_use;
        }
        dead >= self.worth_bytes(live)
    }

    /// Returns the bytes of a segment that would be garbage if no value in it were live. When space is short,
    /// the whole segment counts, including its header. A segment has at least 512 KiB, and its values take
    /// less overhead in another segment, so moving them frees space even if they fill most of the segment.
    fn winnable_bytes(&self, segment: &SegmentState) -> u64 {
        if self.room.is_tight(self.log) { segment.used_bytes } else { Log::record_bytes(segment) }
    }

    /// Returns true if a segment with this many live bytes should be emptied.
    fn is_worth_emptying(&self, live: u64, used: u64) -> bool {
        if self.room.is_tight(self.log) { live < used - used / 4 } else { live < used / 2 }
    }

    /// Returns the segments with many live values that are not compressed, oldest first, each with its live
    /// values; none if compressing them frees too little compared with the whole checkpoint that it
    /// makes necessary. Only segments are considered that can be deleted as soon as they are empty, and that
    /// are not judged. `saved_through` is the last entry in the durable checkpoint.
    pub fn worth_compressing(
        &self,
        saved_through: Index,
        is_judged: impl Fn(u32) -> bool,
    ) -> Vec<(u32, machine::SegmentUse)> {
        let usage = self.machine.usage();
        let through = saved_through.min(self.kept_behind);
        let mut sealed = self.log.segments();
        sealed.retain(|s| s.sealed && !s.releasing && !self.segments.is_pending_delete(s.seq));
        sealed.truncate(sealed.len().saturating_sub(HOT_SEGMENTS));
        let candidates = sealed.iter().filter(|s| s.last_index <= through && !is_judged(s.seq));
        // Segments that are less than half full are emptied soon anyway, and their values are compressed then.
        let candidates = candidates.filter_map(|s| {
            let usage = usage.get(&s.seq)?;
            (usage.raw_bytes >= Log::record_bytes(s) / 2).then_some((s.seq, usage))
        });
        let whole_bytes = self.whole_checkpoint_bytes();
        let enough_bytes = if whole_bytes >= WHOLE_BYTES_LARGE { 2 * whole_bytes } else { 0 };
        let (mut chosen, mut freed, mut moved) = (Vec::new(), 0, 0_u64);
        for (seq, usage) in candidates {
            if chosen.len() >= COMPRESS_SEGMENTS && freed >= enough_bytes {
                break;
            }
            // Until the old segments are deleted, the values take additional space: in the worst case all of it.
            moved += moved_bytes(usage);
            if !self.room.leaves_plenty(self.log, moved + whole_bytes) {
                break;
            }
            // Compression frees about two thirds of most values; half is assumed.
            freed += usage.raw_bytes / 2;
            chosen.push((seq, *usage));
        }
        if freed < enough_bytes {
            chosen.clear();
        }
        chosen
    }

    /// Returns the estimated size of a checkpoint that contains the whole state, in bytes.
    pub fn whole_checkpoint_bytes(&self) -> u64 {
        self.machine.store.stats().versions * VERSION_BYTES
    }

    /// Returns the sealed segments with live values, each with the bytes that these values take elsewhere and
    /// the bytes that would be garbage if none were live, and the sums of live and of dead bytes. Only
    /// segments whose entries are all in a durable checkpoint are considered; `saved_through` is the last
    /// entry in that checkpoint.
    fn sealed(&self, saved_through: Index) -> (Vec<(u64, u64, u32)>, u64, u64) {
        let usage = self.machine.usage();
        let live = |seq: u32| usage.get(&seq).map_or(0, moved_bytes);
        let sealed: Vec<(u64, u64, u32)> = self
            .log
            .segments()
            .iter()
            .filter(|s| s.sealed && !s.releasing && s.last_index <= saved_through)
            .map(|s| (live(s.seq), self.winnable_bytes(s), s.seq))
            .filter(|(live, _, seq)| *live > 0 && !self.segments.is_pending_delete(*seq))
            .collect();
        let dead = sealed.iter().map(|(live, used, _)| used.saturating_sub(*live)).sum();
        let all_live = sealed.iter().map(|(live, _, _)| live).sum();
        (sealed, all_live, dead)
    }

    /// Returns segments with little garbage that should be emptied because all of them together hold more
    /// than a tenth of the live bytes: those with most garbage first, and as many as `budget_bytes` suffice
    /// for. Each is returned with its live bytes. `is_left_alone` is called with a segment and its live bytes,
    /// and returns true if it must not be chosen.
    pub fn worth_tidying(
        &self,
        saved_through: Index,
        budget_bytes: u64,
        is_left_alone: impl Fn(u32, u64) -> bool,
    ) -> Vec<(u32, u64)> {
        // A segment whose entries a follower may need could not be deleted, and would only take space twice.
        let (mut sealed, all_live, dead) = self.sealed(saved_through.min(self.kept_behind));
        if dead < self.dead_bytes_min.max(all_live / TIDY_PART) {
            return Vec::new();
        }
        // A segment without garbage worth mentioning would be written again for nothing.
        sealed.retain(|(live, used, seq)| *live < used - used / TIDIED_PART && !is_left_alone(*seq, *live));
        let dead_part = |&(live, used, _): &(u64, u64, u32)| (used - live) as f64 / used as f64;
        sealed.sort_by(|a, b| dead_part(b).total_cmp(&dead_part(a)));
        let whole_bytes = self.whole_checkpoint_bytes();
        let (mut chosen, mut spent, mut freed) = (Vec::new(), whole_bytes, 0);
        for (live, used, seq) in sealed {
            // A segment that exceeds the budget, because it was enlarged for a long entry, goes alone.
            let fits = spent.saturating_add(live) <= budget_bytes || chosen.is_empty() && live > budget_bytes;
            if fits && chosen.len() < SEGMENTS_MAX {
                spent = spent.saturating_add(live);
                freed += used - live;
                chosen.push((seq, live));
            }
        }
        // What becomes free must be worth the checkpoint after it, and until then there must be space for both.
        let is_worth = whole_bytes < WHOLE_BYTES_LARGE || freed >= whole_bytes / TIDY_CHECKPOINT_PART;
        if is_worth && self.room.leaves_plenty(self.log, spent) { chosen } else { Vec::new() }
    }

    /// Returns the segments with so few live values that these should be moved to the end of the log. Only
    /// segments whose entries are all in a durable checkpoint are considered; `saved_through` is the last
    /// entry in that checkpoint.
    pub fn worth_emptying(&self, saved_through: Index) -> Vec<u32> {
        let (mut sealed, all_live, dead) = self.sealed(saved_through);
        if dead < self.worth_bytes(all_live) {
            return Vec::new();
        }
        // Moved values make the next checkpoint a whole one. So no values are moved if that checkpoint would
        // write many bytes compared with the bytes that become free.
        let whole_bytes = self.whole_checkpoint_bytes();
        if !self.room.is_tight(self.log) && whole_bytes >= WHOLE_BYTES_LARGE && dead < 2 * whole_bytes {
            return Vec::new();
        }
        sealed.retain(|(live, used, _)| self.is_worth_emptying(*live, *used));
        sealed.sort_unstable();
        // Only as many segments are chosen as there is space for: until the old segments are deleted, the
        // values take additional space at their new locations.
        let mut moved = 0;
        sealed
            .into_iter()
            .take(RECLAIM_SEGMENTS)
            .take_while(|(live, _, _)| {
                moved += usize::try_from(*live).unwrap_or(usize::MAX);
                self.room.has(self.log, moved + moved / 8, Purpose::Moves)
            })
            .map(|(_, _, seq)| seq)
            .collect()
    }
}
