//! Determines facts about an operation that follow from its request and response alone, such as the steps
//! that it took and the key-value pairs that its response contains.

use crate::store::branch;
use crate::{
    Action, ActionResult, Delete, Header, KeyValue, Operation, Outcome, Put, Range, RangeResult, Request,
    Response, Txn, TxnResult,
};

impl Operation {
    /// Returns header and response if the operation was answered.
    pub(crate) fn done(&self) -> Option<(&Header, &Response)> {
        match &self.outcome {
            Outcome::Done(header, response) => Some((header, response)),
            _ => None,
        }
    }

    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.outcome, Outcome::Unknown(_))
    }

    /// Returns true if the response says that keys were changed.
    pub(crate) fn changed(&self) -> bool {
        match self.done() {
            Some((_, Response::Put(_))) => true,
            Some((_, Response::Delete(result))) => result.deleted > 0,
            Some((_, Response::Txn(result))) => txn_changed(result),
            _ => false,
        }
    }

    /// Returns true if the operation has a place in the total order of linearizable operations: if it is a
    /// write, or a read that a quorum has confirmed.
    pub(crate) fn is_linearizable(&self) -> bool {
        match &self.request {
            Request::Range(range) => !range.serializable,
            Request::Txn(txn) => !only_serializable(txn),
            Request::Put(_) | Request::Delete(_) => true,
            Request::Compact { .. } | Request::Grant { .. } | Request::Revoke { .. } => true,
            Request::KeepAlive { .. } | Request::TimeToLive { .. } | Request::Leases => false,
        }
    }

    /// Returns true if the response must follow from the keys and values of the store at the header's
    /// revision.
    pub(crate) fn is_of_keys(&self) -> bool {
        matches!(self.request, Request::Range(_) | Request::Put(_) | Request::Delete(_) | Request::Txn(_))
    }
}

fn txn_changed(result: &TxnResult) -> bool {
    result.results.iter().any(|result| match result {
        ActionResult::Range(_) => false,
        ActionResult::Put(_) => true,
        ActionResult::Delete(result) => result.deleted > 0,
        ActionResult::Txn(result) => txn_changed(result),
    })
}

/// Returns true if the transaction contains only serializable ranges, or no action at all. etcd answers such
/// a transaction from the local state of a member.
fn only_serializable(txn: &Txn) -> bool {
    let serializable = |action: &Action| matches!(action, Action::Range(range) if range.serializable);
    txn.success.iter().chain(&txn.failure).all(serializable)
}

/// A single step of a request. The steps of a transaction are those of both branches.
#[derive(Clone, Copy)]
pub(crate) enum Step<'a> {
    Range(&'a Range),
    Put(&'a Put),
    Delete(&'a Delete),
}

/// Returns all steps that a request can take; of a transaction, those of both branches.
pub(crate) fn steps(request: &Request) -> Vec<Step<'_>> {
    let mut all = Vec::new();
    match request {
        Request::Range(range) => all.push(Step::Range(range)),
        Request::Put(put) => all.push(Step::Put(put)),
        Request::Delete(delete) => all.push(Step::Delete(delete)),
        Request::Txn(txn) => steps_of_txn(txn, &mut all),
        _ => {}
    }
    all
}

fn steps_of_txn<'a>(txn: &'a Txn, all: &mut Vec<Step<'a>>) {
    for action in txn.success.iter().chain(&txn.failure) {
        match action {
            Action::Range(range) => all.push(Step::Range(range)),
            Action::Put(put) => all.push(Step::Put(put)),
            Action::Delete(delete) => all.push(Step::Delete(delete)),
            Action::Txn(inner) => steps_of_txn(inner, all),
        }
    }
}

/// Returns the steps that an answered request took.
pub(crate) fn steps_taken<'a>(request: &'a Request, response: &Response) -> Vec<Step<'a>> {
    match (request, response) {
        (Request::Txn(txn), Response::Txn(result)) => {
            let mut all = Vec::new();
            steps_taken_by_txn(txn, result, &mut all);
            all
        }
        _ => steps(request),
    }
}

fn steps_taken_by_txn<'a>(txn: &'a Txn, result: &TxnResult, all: &mut Vec<Step<'a>>) {
    for (action, result) in branch(txn, result.succeeded).iter().zip(&result.results) {
        match (action, result) {
            (Action::Range(range), _) => all.push(Step::Range(range)),
            (Action::Put(put), _) => all.push(Step::Put(put)),
            (Action::Delete(delete), _) => all.push(Step::Delete(delete)),
            (Action::Txn(inner), ActionResult::Txn(result)) => steps_taken_by_txn(inner, result, all),
            (Action::Txn(_), _) => {}
        }
    }
}

/// Calls `each` for every key-value pair that a response contains completely, with its value and revisions.
pub(crate) fn shown<'a>(request: &Request, response: &'a Response, each: &mut dyn FnMut(&'a KeyValue)) {
    match (request, response) {
        (Request::Range(range), Response::Range(result)) => shown_by_range(range, result, each),
        (_, Response::Put(Some(kv))) => each(kv),
        (_, Response::Delete(result)) => result.prev_kvs.iter().for_each(each),
        (Request::Txn(txn), Response::Txn(result)) => shown_by_txn(txn, result, each),
        _ => {}
    }
}

fn shown_by_range<'a>(range: &Range, result: &'a RangeResult, each: &mut dyn FnMut(&'a KeyValue)) {
    if !range.keys_only {
        result.kvs.iter().for_each(each);
    }
}

fn shown_by_txn<'a>(txn: &Txn, result: &'a TxnResult, each: &mut dyn FnMut(&'a KeyValue)) {
    for (action, result) in branch(txn, result.succeeded).iter().zip(&result.results) {
        match (action, result) {
            (Action::Range(range), ActionResult::Range(result)) => shown_by_range(range, result, each),
            (_, ActionResult::Put(Some(kv))) => each(kv),
            (_, ActionResult::Delete(result)) => result.prev_kvs.iter().for_each(&mut *each),
            (Action::Txn(inner), ActionResult::Txn(result)) => shown_by_txn(inner, result, each),
            _ => {}
        }
    }
}
