use std::collections::HashSet;

use crate::findings::brief;
use crate::{History, Kind, Request, Response, Verdict, Violation};

/// Checks that the history itself is valid: no operation returns before its call, no id occurs twice, and
/// each response has the type that belongs to its request. Otherwise, the recording program has a bug.
pub(crate) fn check(history: &History, verdict: &mut Verdict) {
    let mut ids = HashSet::new();
    for op in &history.operations {
        let wrong = if !ids.insert(op.id) {
            "its number is there twice"
        } else if op.returned < op.call {
            "it returned before it was called"
        } else if op.done().is_some_and(|(_, response)| !is_answer_to(&op.request, response)) {
            "the answer is not one to the request"
        } else if op.done().is_some_and(|(header, _)| header.revision < 1 && op.is_of_keys()) {
            "the answer has no revision"
        } else {
            continue;
        };
        verdict.add(Violation::of(Kind::BadHistory, &[op], format!("{}: {wrong}", brief(op))));
    }
    let mut ids = HashSet::new();
    for watch in &history.watches {
        if !ids.insert(watch.id) {
            verdict.add(Violation::of_watch(Kind::BadHistory, watch, "is there twice".to_owned()));
        }
    }
}

fn is_answer_to(request: &Request, response: &Response) -> bool {
    matches!(
        (request, response),
        (Request::Range(_), Response::Range(_))
            | (Request::Put(_), Response::Put(_))
            | (Request::Delete(_), Response::Delete(_))
            | (Request::Txn(_), Response::Txn(_))
            | (Request::Compact { .. }, Response::Compacted)
            | (Request::Grant { .. }, Response::Granted { .. })
            | (Request::Revoke { .. }, Response::Revoked)
            | (Request::KeepAlive { .. }, Response::Renewed { .. })
            | (Request::TimeToLive { .. }, Response::TimeToLive { .. })
            | (Request::Leases, Response::Leases(_))
    )
}
