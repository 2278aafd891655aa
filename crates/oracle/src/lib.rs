//! Judges a recorded history of what the clients of a cluster requested and observed: decides whether a store
//! with etcd's guarantees can have given these responses.
//!
//! * [`History`] contains everything that is judged: operations, watches, holdings of locks, final states. It
//!   is written and read as lines of JSON, so that it can be stored, replayed and reduced.
//! * [`check`] judges a history and returns a [`Verdict`]. Start reading there.
//!
//! Modules: `store` defines the effect of each request, as simply as possible; `timeline` determines when
//! each revision can have been made; `sequence` determines which operation made each revision, and checks the
//! contents of all responses; `rules` checks each other guarantee in a separate file.
//!
//! The crate does no IO, reads no clock, and uses no code of a server, a protocol or a simulator, so that it
//! does not share their bugs.
//!
//! Invariants, and the tests that check them (`tests/it`):
//! * a history that a correct store can produce is never reported as wrong (`right`, over many seeds;
//!   `search`, in comparison with a search that does not use revisions);
//! * the store model gives the same results as etcd (`recorded`; and tests written by hand, beside `store`);
//! * each kind of mistake is found and correctly named (`planted`, `expiry`);
//! * if the search is given up, contradictions that another choice might resolve are reported as open
//!   questions ([`Verdict::undecided`]), and violations that concern other keys are still found (`undecided`,
//!   `right`);
//! * a history written as lines and read again is unchanged (`lines`).
//!
//! Not judged: durations (except of leases, if [`Settings::expire_by`] is set); the order of leases, and the
//! remaining times, in responses; which leases a member lists; membership and alarms; how hashes are
//! computed; compactions that servers do automatically.

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

/// Judges a history. The running time grows about linearly with the length of the history if most writes were
/// answered or were seen by a watch of all keys.
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

/// Returns the last revision that any client saw. The result is limited by the number of recorded operations,
/// so that a single wrong revision does not make the judge allocate memory for all revisions up to it.
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
