//! Determines, from what clients observed, the times at which each revision can have been made.
//!
//! Every response names the revision of the state from which it was given, so the order of all changes is
//! that of revisions and needs no search (unlike Wing and Gong, "Testing and verifying concurrent objects",
//! 1993, or Lowe, "Testing for linearizability", 2017). It remains to check if each revision can be assigned
//! a time, in ascending order, so that every operation takes effect between its call and its return. Each
//! operation gives a lower or an upper bound for the time of a revision. So such times exist if and only if,
//! for each revision, the greatest lower bound of this and all earlier revisions is not above the least upper
//! bound of this and all later revisions.

use crate::{History, Operation, WatchAnswer};

/// A bound for the time of a revision, and the observation that proves the bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub time: u64,
    pub witness: Option<Witness>,
}

/// Position of an observation in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Witness {
    /// An operation, by its position in [`History::operations`].
    Operation(usize),
    /// A watch, by its position in [`History::watches`].
    Watch(usize),
}

/// The bounds of the times of all revisions.
pub(crate) struct Timeline {
    /// Last revision that any client saw.
    pub last: i64,
    /// For each revision, the latest time at which it certainly did not exist yet.
    not_before: Vec<Bound>,
    /// For each revision, the earliest time at which it certainly existed.
    not_after: Vec<Bound>,
}

const UNBOUNDED_BELOW: Bound = Bound { time: 0, witness: None };
const UNBOUNDED_ABOVE: Bound = Bound { time: u64::MAX, witness: None };

impl Timeline {
    pub fn new(history: &History, last: i64) -> Timeline {
        let len = usize::try_from(last).unwrap_or(0) + 2;
        let mut timeline =
            Timeline { last, not_before: vec![UNBOUNDED_BELOW; len], not_after: vec![UNBOUNDED_ABOVE; len] };
        for (at, op) in history.operations.iter().enumerate() {
            timeline.take(at, op);
        }
        for (at, watch) in history.watches.iter().enumerate() {
            for response in &watch.responses {
                let newest = match &response.answer {
                    WatchAnswer::Events { events, .. } => events.iter().map(|e| e.kv.mod_revision).max(),
                    _ => None,
                };
                timeline.seen(newest.unwrap_or(0).max(response.revision), response.at, Witness::Watch(at));
            }
        }
        for at in 1..len {
            if timeline.not_before[at].time < timeline.not_before[at - 1].time {
                timeline.not_before[at] = timeline.not_before[at - 1];
            }
        }
        for at in (1..len).rev() {
            if timeline.not_after[at - 1].time > timeline.not_after[at].time {
                timeline.not_after[at - 1] = timeline.not_after[at];
            }
        }
        timeline
    }

    fn take(&mut self, at: usize, op: &Operation) {
        let Some((header, _)) = op.done() else { return };
        let witness = Witness::Operation(at);
        self.seen(header.revision, op.returned, witness);
        if !op.is_linearizable() || header.revision <= 0 {
            return;
        }
        // A write made the revision of its header after its call. An operation that changed nothing saw the
        // revision of its header as the newest one, so the revision after this one was made after its call.
        let revision = if op.changed() { header.revision } else { header.revision + 1 };
        if let Some(bound) = usize::try_from(revision).ok().and_then(|at| self.not_before.get_mut(at))
            && bound.time < op.call
        {
            *bound = Bound { time: op.call, witness: Some(witness) };
        }
    }

    fn seen(&mut self, revision: i64, time: u64, witness: Witness) {
        if let Some(bound) = usize::try_from(revision).ok().and_then(|at| self.not_after.get_mut(at))
            && bound.time > time
        {
            *bound = Bound { time, witness: Some(witness) };
        }
    }

    /// Returns the latest time at which a revision certainly did not exist yet.
    pub fn not_before(&self, revision: i64) -> Bound {
        at(&self.not_before, revision).copied().unwrap_or(UNBOUNDED_BELOW)
    }

    /// Returns the earliest time at which a revision certainly existed.
    pub fn not_after(&self, revision: i64) -> Bound {
        at(&self.not_after, revision).copied().unwrap_or(UNBOUNDED_ABOVE)
    }

    /// Returns the last revision that certainly existed before a time.
    pub fn surely_at(&self, time: u64) -> i64 {
        let there = self.not_after.partition_point(|bound| bound.time < time);
        i64::try_from(there).unwrap_or(i64::MAX).saturating_sub(1).clamp(1, self.last.max(1))
    }

    /// Returns the last revision that may have existed at a time.
    pub fn perhaps_at(&self, time: u64) -> i64 {
        let there = self.not_before.partition_point(|bound| bound.time <= time);
        i64::try_from(there).unwrap_or(i64::MAX).saturating_sub(1).clamp(1, self.last.max(1))
    }
}

fn at(bounds: &[Bound], revision: i64) -> Option<&Bound> {
    bounds.get(usize::try_from(revision).ok()?)
}
