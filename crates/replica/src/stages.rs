//! When the last entries of the log passed each stage, so that a slow write can be told where its time went.
//!
//! The core notes a few times for each batch that it appends, not for each write, and a shard looks them up only for writes that
//! were slow or are traced: a write pays nothing.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use numbers::{Index, Revision};

/// Batches that are remembered.
const BATCHES_MAX: usize = 1024;

/// Entries that were appended in one turn of the core.
#[derive(Clone, Copy, Debug)]
struct Batch {
    last: Index,
    appended: Instant,
    synced: Option<Instant>,
    committed: Option<Instant>,
    published: Option<(Instant, Revision)>,
}

/// The times of the last batches.
#[derive(Debug, Default)]
pub struct Stages(Mutex<VecDeque<Batch>>);

/// Positions at the end of a turn of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Index of the newest entry in the log.
    pub last: Index,
    /// Index of the newest entry that this member's disk has.
    pub synced: Index,
    /// Index of the newest entry that is committed.
    pub commit: Index,
    /// Index and revision of what is published.
    pub published: (Index, Revision),
}

/// When one write passed each stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Its entry was handed to the log, and to the other members.
    pub appended: Instant,
    /// This member's disk had it.
    pub synced: Instant,
    /// A majority had it.
    pub committed: Instant,
    /// It was applied, and published.
    pub published: Instant,
}

impl Passed {
    /// The stages of a write that was asked for at one time and answered at another: name and duration of each.
    pub fn stages(&self, asked: Instant, answered: Instant) -> [(&'static str, Duration); 5] {
        let since = |later: Instant, earlier: Instant| later.saturating_duration_since(earlier);
        [
            ("queue", since(self.appended, asked)),
            ("fsync", since(self.synced, self.appended)),
            ("replicate", since(self.committed, self.synced)),
            ("apply", since(self.published, self.committed.max(self.synced))),
            ("answer", since(answered, self.published)),
        ]
    }
}

impl Stages {
    /// Notes where the core stands at the end of the turn that began at `now`; `clock` is asked if something was published.
    pub fn turn(&self, positions: Positions, now: Instant, clock: impl FnOnce() -> Instant) {
        let mut batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if batches.back().is_none_or(|newest| newest.last < positions.last) {
            if batches.len() == BATCHES_MAX {
                batches.pop_front();
            }
            let (synced, committed, published) = (None, None, None);
            batches.push_back(Batch { last: positions.last, appended: now, synced, committed, published });
        }
        let (applied, revision) = positions.published;
        let mut clock = Some(clock);
        let mut ended = None;
        for batch in batches.iter_mut().rev() {
            if batch.synced.is_none() && batch.last <= positions.synced {
                batch.synced = Some(now);
            }
            if batch.committed.is_none() && batch.last <= positions.commit {
                batch.committed = Some(now);
            }
            if batch.published.is_none() && batch.last <= applied {
                let at = *ended.get_or_insert_with(|| clock.take().map_or(now, |clock| clock()));
                batch.published = Some((at, revision));
            } else if batch.published.is_some() && batch.synced.is_some() {
                // All before have passed, too.
                break;
            }
        }
    }

    /// When a write passed, which was asked for at this time and answered at this revision; `None` if that is no longer known.
    pub fn of(&self, asked: Instant, revision: Revision) -> Option<Passed> {
        let batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        batches.iter().find_map(|batch| {
            let (published, reached) = batch.published?;
            if batch.appended < asked || reached < revision {
                return None;
            }
            let committed = batch.committed?;
            // A majority may have it, and this member's state, before its disk has told.
            let synced = batch.synced.unwrap_or(committed);
            Some(Passed { appended: batch.appended, synced, committed, published })
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
        }
    }

    #[test]
    fn a_write_is_told_when_it_passed_each_stage() {
        let stages = Stages::default();
        let start = Instant::now();
        let ms = |ms: u64| start + Duration::from_millis(ms);
        stages.turn(at(5, 5, 5, 5), ms(0), || ms(0));
        stages.turn(at(7, 5, 5, 5), ms(10), || ms(99));
        stages.turn(at(9, 7, 5, 5), ms(20), || ms(99));
        stages.turn(at(9, 9, 7, 7), ms(30), || ms(31));
        stages.turn(at(9, 9, 9, 9), ms(40), || ms(41));
        let passed = stages.of(ms(5), Revision(7)).expect("it is known");
        assert_eq!(passed, Passed { appended: ms(10), synced: ms(20), committed: ms(30), published: ms(31) });
        let told = passed.stages(ms(5), ms(35)).map(|(name, took)| (name, took.as_millis()));
        assert_eq!(told, [("queue", 5), ("fsync", 10), ("replicate", 10), ("apply", 1), ("answer", 4)]);
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
