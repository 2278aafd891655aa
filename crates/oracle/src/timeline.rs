//! When each revision can have come into being, from what clients saw.
//!
//! Every answer names the revision of the state it was given from, so the order of all changes needs no search (as in
//! Wing and Gong, "Testing and verifying concurrent objects", 1993, or Lowe, "Testing for linearizability", 2017): it
//! is the order of revisions, and what is left to ask is whether times can be given to revisions, none before the one
//! before it, so that every operation happens between its call and its return. Each operation only bounds single
//! revisions from below or above, so there are such times if and only if for no revision the greatest lower bound of
//! all revisions up to it is above the least upper bound of all revisions from it on.

use crate::{History, Operation, WatchAnswer};

/// A bound, and whose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub time: u64,
    pub witness: Option<Witness>,
}

/// Where in the history something was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Witness {
    /// An operation, by its place in [`History::operations`].
    Operation(usize),
    /// A watch, by its place in [`History::watches`].
    Watch(usize),
}

/// The bounds of all revisions.
pub(crate) struct Timeline {
    /// The last revision that anybody saw.
    pub last: i64,
    /// Per revision: it did not exist before this.
    not_before: Vec<Bound>,
    /// Per revision: it existed by this time.
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
        // A write's own revision came after its call; after an answer from a state, the next one did.
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

    /// The time before which a revision was not there.
    pub fn not_before(&self, revision: i64) -> Bound {
        at(&self.not_before, revision).copied().unwrap_or(UNBOUNDED_BELOW)
    }

    /// The time by which a revision was there.
    pub fn not_after(&self, revision: i64) -> Bound {
        at(&self.not_after, revision).copied().unwrap_or(UNBOUNDED_ABOVE)
    }

    /// The last revision that was there before a time for certain.
    pub fn surely_at(&self, time: u64) -> i64 {
        let there = self.not_after.partition_point(|bound| bound.time < time);
        i64::try_from(there).unwrap_or(i64::MAX).saturating_sub(1).clamp(1, self.last.max(1))
    }

    /// The last revision that can have been there at a time.
    pub fn perhaps_at(&self, time: u64) -> i64 {
        let there = self.not_before.partition_point(|bound| bound.time <= time);
        i64::try_from(there).unwrap_or(i64::MAX).saturating_sub(1).clamp(1, self.last.max(1))
    }
}

fn at(bounds: &[Bound], revision: i64) -> Option<&Bound> {
    bounds.get(usize::try_from(revision).ok()?)
}
