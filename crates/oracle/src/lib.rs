//! What clients of a cluster did and saw, and the judge of it: could a store that keeps etcd's promises have
//! answered so?
//!
//! * [`History`] is everything that is judged: operations, watches, holdings of locks, final states. It is written
//!   and read as lines of JSON, so that it can be kept, replayed and cut down.
//! * [`check`] judges it and gives a [`Verdict`].
//!
//! Within: `store` says in the plainest words what requests mean; `timeline` when each revision came into being;
//! `sequence` which operation made it, and what every answer had to be; `rules` has one file for each other promise.
//!
//! It does no IO, reads no clock, and knows no server, no protocol and no simulator: it must not share their mistakes.
//!
//! Invariants, and the tests that hold them (`tests/it`):
//! * a history that a right store can give is never found fault with (`right`, over many seeds; against a search that
//!   knows nothing of revisions, `search`);
//! * what its store says of requests is what etcd says (`recorded`; by hand beside `store`);
//! * each kind of mistake is found, under its name (`planted`, `expiry`);
//! * a search that is given up blames nobody, but hides no fault in keys that it is not about (`undecided`, `right`);
//! * what is written as lines and read again is the same history (`lines`).
//!
//! A question that cannot be decided is said to be open ([`Verdict::undecided`]), never answered.
//!
//! Not judged: how long anything takes (but for leases, if [`Settings::expire_by`] is set); the order of leases and remaining
//! times in answers; leases listed by a member; members, alarms; hashes against etcd's own formula; compaction that the
//! servers do by themselves.

#![forbid(unsafe_code)]

mod candidates;
mod effects;
mod evidence;
mod findings;
mod history;
mod json;
mod matching;
mod movable;
mod request;
mod rules;
mod sequence;
mod store;
mod timeline;
mod verdict;

pub use history::{
    Asker, Asking, End, Fence, Final, Grant, GrantChange, Header, History, Holding, Note, Operation, Outcome,
    Refusal, Settings, Watch, WatchAnswer, WatchResponse,
};
pub use json::Malformed;
pub use request::{
    Action, ActionResult, Compare, Delete, DeleteResult, Event, KeyValue, Order, Put, Range, RangeResult,
    Relation, Request, Response, SortTarget, Target, Txn, TxnResult,
};
pub use verdict::{Figures, Kind, Undecided, Verdict, Violation};

use evidence::Evidence;
use rules::compaction::Compactions;
use sequence::Sequence;
use timeline::Timeline;

/// Judges a history: in time about proportional to its length as long as most writes are answered or seen by a watch
/// of all keys.
pub fn check(history: &History) -> Verdict {
    let mut verdict = Verdict { figures: Figures::of(history), ..Verdict::default() };
    rules::record::check(history, &mut verdict);
    if !verdict.violations.is_empty() {
        return verdict;
    }
    let evidence = Evidence::new(history);
    let last = last_revision(history, &evidence, &mut verdict);
    verdict.figures.revision = last;
    let timeline = Timeline::new(history, last);
    rules::order::check(history, &timeline, &mut verdict);
    rules::headers::check(history, &mut verdict);
    let sequence = Sequence::new(history, &evidence, &timeline, &mut verdict);
    let compactions = Compactions::new(history);
    rules::compaction::check(history, &timeline, &mut verdict);
    rules::members::check(history, &mut verdict);
    rules::permissions::check(history, &mut verdict);
    let mut by_content = Verdict::default();
    rules::watches::check(history, &sequence.store, &compactions, &mut by_content);
    rules::refusals::check(history, &sequence, &timeline, &mut by_content);
    rules::leases::check(history, &sequence, &timeline, &mut by_content);
    rules::expiry::check(history, &sequence, &timeline, &mut by_content);
    rules::locks::check(history, &sequence, &mut by_content);
    verdict.figures.leases = by_content.figures.leases;
    verdict.figures.leases_expired = by_content.figures.leases_expired;
    for violation in by_content.violations {
        if sequence.is_ambiguous && violation.kind.hangs_on_contents() {
            let text = format!(
                "in one possible order of writes with unknown outcomes, but perhaps not in all: {violation}"
            );
            verdict.leave_open(violation.operations, text);
        } else {
            verdict.add(violation);
        }
    }
    verdict
}

/// The last revision that anybody saw; not more than can be, so that one wild number does not cost all memory.
fn last_revision(history: &History, evidence: &Evidence<'_>, verdict: &mut Verdict) -> i64 {
    let answers = history.operations.iter().filter_map(|op| op.done()).map(|(header, _)| header.revision);
    let responses =
        history.watches.iter().flat_map(|watch| &watch.responses).map(|response| response.revision);
    let finals = history.finals.iter().map(|last| last.revision);
    let last = answers.chain(responses).chain(finals).chain(evidence.revisions()).max().unwrap_or(1).max(1);
    let seen = evidence.revisions().count();
    let most = i64::try_from(history.operations.len() + seen + 1).unwrap_or(i64::MAX);
    if last > most && history.settings.unrecorded.is_empty() {
        let text = format!("revision {last} was seen, but there can be no more than {most}");
        verdict.add(Violation { kind: Kind::RevisionGap, operations: Vec::new(), watches: Vec::new(), text });
        return most;
    }
    last.min(most.saturating_mul(8))
}
