//! Records the times at which the newest log entries passed each stage of a write. They are used to break
//! down the latency of a write.
//!
//! The core records a few times per appended batch, not per write. A shard looks up the times only for writes
//! that were slow, traced or sampled, so other writes cost nothing. The times of a linearizable read are
//! those of its ReadIndex round ([`RoundTimes`]) and arrive with the core's reply.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use numbers::{Index, Revision};
use telemetry::stages::Stage;

/// Maximum number of batches that are remembered.
const BATCHES_MAX: usize = 1024;

/// Entries that were appended in one turn of the core, and the times at which they passed the stages.
#[derive(Clone, Copy, Debug)]
struct Batch {
    last: Index,
    appended: Instant,
    written: Option<Instant>,
    synced: Option<Instant>,
    committed: Option<Instant>,
    published: Option<(Instant, Revision)>,
}

/// Stage times of the newest batches.
#[derive(Debug, Default)]
pub struct Stages(Mutex<VecDeque<Batch>>);

/// Positions in the log at the end of a turn of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Index of the newest entry in the log.
    pub last: Index,
    /// Index of the newest entry that this member has synced to its disk.
    pub synced: Index,
    /// Index of the newest entry that is committed.
    pub commit: Index,
    /// Log index and revision of the published state.
    pub published: (Index, Revision),
    /// Time at which the log had written the entry at `synced` and began to sync it; `None` before the first
    /// write.
    pub written: Option<Instant>,
}

/// Times of the ReadIndex round that confirmed a linearizable read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTimes {
    /// Time at which the core sent the ReadIndex request to the leader.
    pub began: Instant,
    /// Time at which the leader confirmed its leadership and its commit index.
    pub confirmed: Instant,
}

/// Times at which one write passed each stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTimes {
    /// Time at which the core passed the write's entry to the log and to the other members.
    pub appended: Instant,
    /// Time at which the log had written the entry to the file and began to sync it.
    pub written: Instant,
    /// Time at which the core learned that this member's disk has the entry.
    pub synced: Instant,
    /// Time at which the core learned that a majority has the entry.
    pub committed: Instant,
    /// Time at which the core published the state with the entry applied.
    pub published: Instant,
}

impl WriteTimes {
    /// Returns the stages of a write that was requested at `asked` and answered at `answered`, in order and
    /// with their durations. The durations add up to the time from `asked` to `answered`.
    pub fn stages(&self, asked: Instant, answered: Instant) -> [(Stage, Duration); 6] {
        // A majority may have the entry before this member's own disk has it. The commit then counts as
        // reached at the time of the sync, so the replicate stage takes no time and no stage is negative.
        let committed = self.committed.max(self.synced);
        // The log's thread reads the clock itself, while the core uses the time at which its turn began. So
        // the recorded time of the write may be outside the interval from the append to the sync, and is
        // moved into it.
        let written = self.written.max(self.appended).min(self.synced);
        let since = |later: Instant, earlier: Instant| later.saturating_duration_since(earlier);
        [
            (Stage::Queue, since(self.appended, asked)),
            (Stage::Append, since(written, self.appended)),
            (Stage::Fsync, since(self.synced, written)),
            (Stage::Replicate, since(committed, self.synced)),
            (Stage::Apply, since(self.published, committed)),
            (Stage::Answer, since(answered, self.published)),
        ]
    }
}

impl Stages {
    /// Records the core's positions at the end of the turn that began at `now`. Calls `clock` only if
    /// something was published.
    pub fn turn(&self, positions: Positions, now: Instant, clock: impl FnOnce() -> Instant) {
        let mut batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if batches.back().is_none_or(|newest| newest.last < positions.last) {
            if batches.len() == BATCHES_MAX {
                batches.pop_front();
            }
            batches.push_back(Batch {
                last: positions.last,
                appended: now,
                written: None,
                synced: None,
                committed: None,
                published: None,
            });
        }
        let (applied, revision) = positions.published;
        let mut clock = Some(clock);
        let mut ended = None;
        for batch in batches.iter_mut().rev() {
            if batch.synced.is_none() && batch.last <= positions.synced {
                batch.synced = Some(now);
                batch.written = positions.written;
            }
            if batch.committed.is_none() && batch.last <= positions.commit {
                batch.committed = Some(now);
            }
            if batch.published.is_none() && batch.last <= applied {
                let at = *ended.get_or_insert_with(|| clock.take().map_or(now, |clock| clock()));
                batch.published = Some((at, revision));
            } else if batch.published.is_some() && batch.synced.is_some() {
                // Older batches have passed these stages, too, so the search ends.
                break;
            }
        }
    }

    /// Returns the times of a write that was requested at `asked` and answered at `revision`; `None` if the
    /// times are no longer remembered.
    pub fn of(&self, asked: Instant, revision: Revision) -> Option<WriteTimes> {
        let batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        batches.iter().find_map(|batch| {
            let (published, reached) = batch.published?;
            if batch.appended < asked || reached < revision {
                return None;
            }
            let committed = batch.committed?;
            // If the entry was committed and applied before this member's disk reported it as synced, the
            // commit counts as the time of the sync, too.
            let synced = batch.synced.unwrap_or(committed);
            let written = batch.written.unwrap_or(synced);
            Some(WriteTimes { appended: batch.appended, written, synced, committed, published })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u64, synced: u64, commit: u64, applied: u64) -> Positions {
        Positions {
            last: Index(last),
            synced: Index(synced),
            commit: Index(commit),
            published: (Index(applied), Revision(applied as i64)),
            written: None,
        }
    }

    #[test]
    fn a_write_is_told_when_it_passed_each_stage() {
        let stages = Stages::default();
        let start = Instant::now();
        let ms = |ms: u64| start + Duration::from_millis(ms);
        stages.turn(at(5, 5, 5, 5), ms(0), || ms(0));
        stages.turn(at(7, 5, 5, 5), ms(10), || ms(99));
        stages.turn(Positions { written: Some(ms(16)), ..at(9, 7, 5, 5) }, ms(20), || ms(99));
        stages.turn(at(9, 9, 7, 7), ms(30), || ms(31));
        stages.turn(at(9, 9, 9, 9), ms(40), || ms(41));
        let passed = stages.of(ms(5), Revision(7)).expect("it is known");
        let [appended, written, synced, committed, published] = [10, 16, 20, 30, 31].map(ms);
        assert_eq!(passed, WriteTimes { appended, written, synced, committed, published });
        let told = passed.stages(ms(5), ms(35)).map(|(stage, took)| (stage.name(), took.as_millis()));
        let expected =
            [("queue", 5), ("append", 6), ("fsync", 4), ("replicate", 10), ("apply", 1), ("answer", 4)];
        assert_eq!(told, expected);
        let passed = stages.of(ms(15), Revision(8)).expect("it is known");
        assert_eq!((passed.appended, passed.published), (ms(20), ms(41)));
        assert_eq!(stages.of(ms(50), Revision(9)), None, "nothing was appended since");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let stages = Stages::default();
        let now = Instant::now();
        for index in 1..3000 {
            stages.turn(at(index, index, index, index), now, || now);
        }
        assert_eq!(stages.0.lock().unwrap().len(), BATCHES_MAX);
    }
}
