use crate::effects::{Step, steps, steps_taken};
use crate::findings::brief;
use crate::timeline::Timeline;
use crate::{History, Kind, Operation, Outcome, Refusal, Request, Verdict, Violation};

/// Checks compactions. A read below the compact revision must be refused. A read at or above the compact
/// revision must be answered as if there were no compaction (`sequence` checks the response). A read of a
/// revision that does not exist yet must be refused as a future revision. A revision can be compacted only
/// once, and only after it exists.
///
/// etcd: "KV.Compact", "RangeRequest.revision". Compaction goes through the log, so a member whose header
/// revision is higher than that of a compaction's response has applied the compaction.
pub(crate) fn check(history: &History, timeline: &Timeline, verdict: &mut Verdict) {
    let compactions = Compactions::new(history);
    for op in &history.operations {
        match &op.outcome {
            Outcome::Done(header, response) => match &op.request {
                Request::Compact { revision, .. } => {
                    compactions.answered(op, *revision, header.revision, verdict);
                }
                _ => {
                    for step in steps_taken(&op.request, response) {
                        if let Step::Range(range) = step {
                            compactions.read(op, range.revision, header.revision, verdict);
                        }
                    }
                }
            },
            Outcome::Refused(Refusal::Compacted) => compactions.refused(op, verdict),
            Outcome::Refused(Refusal::FutureRevision) => refused_as_future(op, timeline, verdict),
            _ => {}
        }
    }
}

/// All compactions that happened or may have happened.
pub(crate) struct Compactions<'a> {
    /// The compactions with their revisions, in ascending order of the times of their calls.
    all: Vec<(&'a Operation, i64)>,
    /// For each compaction, the time of its call, and the highest revision that this or an earlier call
    /// requested. In ascending order of time.
    by_call: Vec<(u64, i64)>,
    /// For each answered compaction, the time of its response, and the highest revision that this or an
    /// earlier response confirmed. In ascending order of time.
    by_return: Vec<(u64, i64)>,
    /// For each answered compaction, the revision in the header of its response, and the highest revision
    /// that a response with this or a lower header revision confirmed. In ascending order of header
    /// revisions.
    by_revision: Vec<(i64, i64)>,
}

impl<'a> Compactions<'a> {
    pub fn new(history: &'a History) -> Compactions<'a> {
        let mut all = Vec::new();
        let (mut by_return, mut by_revision) = (Vec::new(), Vec::new());
        for op in &history.operations {
            let Request::Compact { revision, .. } = op.request else { continue };
            match &op.outcome {
                Outcome::Refused(_) => continue,
                Outcome::Unknown(_) => {}
                Outcome::Done(header, _) => {
                    by_return.push((op.returned, revision));
                    by_revision.push((header.revision, revision));
                }
            }
            all.push((op, revision));
        }
        all.sort_by_key(|(op, _)| op.call);
        by_return.sort_unstable();
        by_revision.sort_unstable();
        let mut by_call: Vec<(u64, i64)> = all.iter().map(|(op, revision)| (op.call, *revision)).collect();
        up_to(&mut by_call);
        up_to(&mut by_return);
        up_to(&mut by_revision);
        Compactions { all, by_call, by_return, by_revision }
    }

    /// Returns the highest revision that was certainly compacted before this time; 0 if there is none.
    pub fn surely_before(&self, time: u64) -> i64 {
        let before = self.by_return.partition_point(|(returned, _)| *returned < time);
        before.checked_sub(1).map_or(0, |at| self.by_return[at].1)
    }

    /// Returns the highest revision that was certainly compacted on a member that has applied `revision`; 0
    /// if there is none.
    fn surely_applied_with(&self, revision: i64) -> i64 {
        let before = self.by_revision.partition_point(|(header, _)| *header < revision);
        before.checked_sub(1).map_or(0, |at| self.by_revision[at].1)
    }

    /// Returns the highest revision that may have been compacted by this time; 0 if there is none.
    pub fn perhaps_by(&self, time: u64) -> i64 {
        let called = self.by_call.partition_point(|(call, _)| *call <= time);
        called.checked_sub(1).map_or(0, |at| self.by_call[at].1)
    }

    /// Returns true if a compaction to exactly this revision may have happened by a time.
    pub fn perhaps_to(&self, revision: i64, time: u64) -> bool {
        let mut called = self.all.iter().take_while(|(op, _)| op.call <= time);
        called.any(|(_, compacted)| *compacted == revision)
    }

    /// Checks a compaction that was answered.
    fn answered(&self, op: &Operation, to: i64, header: i64, verdict: &mut Verdict) {
        if to > header {
            let text = format!("{}: it compacted a revision that was not there", brief(op));
            verdict.add(Violation::of(Kind::FutureRevision, &[op], text));
        }
        let known = self.surely_before(op.call);
        if to <= known {
            let text = format!("{}: all up to {known} was compacted before its call", brief(op));
            verdict.add(Violation::of(Kind::CompactionLie, &[op], text));
        }
    }

    /// Checks an answered read of an old revision.
    fn read(&self, op: &Operation, revision: i64, header: i64, verdict: &mut Verdict) {
        if revision <= 0 {
            return;
        }
        let mut compacted = self.surely_applied_with(header);
        if op.is_linearizable() {
            compacted = compacted.max(self.surely_before(op.call));
        }
        if revision < compacted {
            let text =
                format!("{}: it reads revision {revision}, but all below {compacted} was gone", brief(op));
            verdict.add(Violation::of(Kind::ReadCompacted, &[op], text));
        }
    }

    /// Checks an operation that was refused as compacted.
    fn refused(&self, op: &Operation, verdict: &mut Verdict) {
        let perhaps = match op.request {
            // The refusal of a compaction is right if another compaction may have reached the same or a
            // higher revision before.
            Request::Compact { revision, .. } => {
                let others =
                    self.all.iter().filter(|(other, _)| other.id != op.id && other.call <= op.returned);
                let perhaps = others.map(|(_, compacted)| *compacted).max().unwrap_or(0);
                if revision <= perhaps {
                    return;
                }
                perhaps
            }
            _ => {
                let perhaps = self.perhaps_by(op.returned);
                let below = |step: &Step<'_>| matches!(step, Step::Range(range) if range.revision > 0 && range.revision < perhaps);
                if steps(&op.request).iter().any(below) {
                    return;
                }
                perhaps
            }
        };
        let text = format!("{}: nothing beyond {perhaps} can have been compacted", brief(op));
        verdict.add(Violation::of(Kind::CompactionLie, &[op], text));
    }
}

/// Replaces each revision by the highest revision at its position or before it.
fn up_to<T>(list: &mut [(T, i64)]) {
    let mut highest = 0;
    for (_, revision) in list {
        highest = highest.max(*revision);
        *revision = highest;
    }
}

/// Checks an operation that was refused because its revision does not exist yet.
fn refused_as_future(op: &Operation, timeline: &Timeline, verdict: &mut Verdict) {
    if !op.is_linearizable() {
        return; // The member may have lagged behind, so its refusal is allowed.
    }
    let there = timeline.surely_at(op.call);
    let asked = match op.request {
        Request::Compact { revision, .. } => Some(revision),
        _ => {
            let ranges = steps(&op.request).into_iter().filter_map(|step| match step {
                Step::Range(range) => Some(range.revision),
                _ => None,
            });
            ranges.max()
        }
    };
    if asked.is_none_or(|asked| asked <= there) {
        let text = format!("{}: revision {there} was there before its call", brief(op));
        verdict.add(Violation::of(Kind::FutureRevision, &[op], text));
    }
}
