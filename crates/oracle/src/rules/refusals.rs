use crate::findings::brief;
use crate::sequence::Sequence;
use crate::timeline::Timeline;
use crate::{History, Kind, Operation, Outcome, Refusal, Request, Verdict, Violation};

/// Checks refused puts. A put that keeps the value or the lease of its key may be refused with `key not
/// found` only if the key was missing at some time between the put's call and return.
pub(crate) fn check(history: &History, sequence: &Sequence<'_>, timeline: &Timeline, verdict: &mut Verdict) {
    for op in &history.operations {
        if op.outcome != Outcome::Refused(Refusal::KeyNotFound) {
            continue;
        }
        let Request::Put(put) = &op.request else { continue };
        if !put.ignore_value && !put.ignore_lease {
            wrong(verdict, op, "it needs no key that is there");
            continue;
        }
        let (from, to) = (timeline.surely_at(op.call), timeline.perhaps_at(op.returned));
        let mut missing = sequence.store.at(&put.key, from).is_none();
        let mut next = from + 1;
        while let Some(change) =
            sequence.store.next_change(&put.key, next).filter(|change| !missing && *change <= to)
        {
            missing = sequence.store.at(&put.key, change).is_none();
            next = change + 1;
        }
        if !missing {
            wrong(verdict, op, "its key was there all the time");
        }
    }
}

fn wrong(verdict: &mut Verdict, op: &Operation, why: &str) {
    verdict.add(Violation::of(Kind::WrongRefusal, &[op], format!("{}: {why}", brief(op))));
}
