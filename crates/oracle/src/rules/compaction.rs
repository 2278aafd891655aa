use crate::effects::{Step, steps, steps_taken};
use crate::findings::brief;
use crate::timeline::Timeline;
use crate::{History, Kind, Operation, Outcome, Refusal, Request, Verdict, Violation};

/// Compaction is honest: below the compact revision a read is refused, at and above it is answered, from a state that
/// compaction did not touch (the answers themselves are held against the store when the sequence is built); and what
/// is not there yet is refused as future. A revision can be compacted once, and not before it is there.
///
/// etcd: "KV.Compact", "RangeRequest.revision"; compaction goes through the log, so a member whose header is past the
/// revision at which a compaction was answered has applied it.
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

/// All compactions that happened, or may have.
pub(crate) struct Compactions<'a> {
    /// By call.
    all: Vec<(&'a Operation, i64)>,
    /// By call, with the highest revision that was asked for up to then.
    by_call: Vec<(u64, i64)>,
    /// Answered ones by return, with the highest revision compacted up to then.
    by_return: Vec<(u64, i64)>,
    /// Answered ones by the revision of their header, with the highest revision compacted up to then.
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

    /// The revision up to which everything was compacted before a time, for certain; 0 for none.
    pub fn surely_before(&self, time: u64) -> i64 {
        let before = self.by_return.partition_point(|(returned, _)| *returned < time);
        before.checked_sub(1).map_or(0, |at| self.by_return[at].1)
    }

    /// The same for a member that has applied a revision.
    fn surely_applied_with(&self, revision: i64) -> i64 {
        let before = self.by_revision.partition_point(|(header, _)| *header < revision);
        before.checked_sub(1).map_or(0, |at| self.by_revision[at].1)
    }

    /// The revision up to which everything may have been compacted by a time; 0 for none.
    pub fn perhaps_by(&self, time: u64) -> i64 {
        let called = self.by_call.partition_point(|(call, _)| *call <= time);
        called.checked_sub(1).map_or(0, |at| self.by_call[at].1)
    }

    /// Whether there may have been a compaction to just this revision by a time.
    pub fn perhaps_to(&self, revision: i64, time: u64) -> bool {
        let mut called = self.all.iter().take_while(|(op, _)| op.call <= time);
        called.any(|(_, compacted)| *compacted == revision)
    }

    /// A compaction that was answered.
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

    /// A read of an old revision that was answered.
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

    /// Something that was refused as compacted.
    fn refused(&self, op: &Operation, verdict: &mut Verdict) {
        let perhaps = match op.request {
            // A compaction is refused if another one came at least as far.
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

/// Makes each number the highest up to it.
fn up_to<T>(list: &mut [(T, i64)]) {
    let mut highest = 0;
    for (_, revision) in list {
        highest = highest.max(*revision);
        *revision = highest;
    }
}

/// Something that was refused because it asks for a revision that is not there yet.
fn refused_as_future(op: &Operation, timeline: &Timeline, verdict: &mut Verdict) {
    if !op.is_linearizable() {
        return; // The member may have been behind.
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
