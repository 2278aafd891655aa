//! Puts, deletes, transactions, compactions: one function per method, called by `dispatch`. Each decodes, checks, proposes and
//! encodes the answer; applying is the machine's.

use numbers::Term;
use std::rc::Rc;
use std::sync::Arc;
use storage::values::unreadable;

use api::error;
use api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, PutRequest, ResponseHeader, TxnRequest,
    request_op,
};
use api::{Code, Status};
use bytes::Bytes;
use front::{Account, Answer, Held, Unary};
use machine::request::{ELEMENT_BYTES, Undecodable};
use machine::txn::{Compared, Comparing, LookedAt, TxnOutcome};
use machine::{AsOf, Leases, Outcome, ReadError, check};
use mvcc::Snapshot;
use planted::{Bug, Measure};

use super::choose::READ_AT_ONCE;
use super::principal::Principal;
use super::range::{BYTES_AT_ONCE, KEYS_PER_SLICE};
use super::{Services, UNPARSEABLE, answers, decode, whole};
use crate::encode;
use replica::core::{ClientRequest, ReplyBody, RequestId, Writer, command};
use replica::long_reads::Reader;
use storage::values::{Attempt, made};
use telemetry::slow_requests;

/// Keys that the comparisons of one transaction may look at (COMPAT-74).
const COMPARED_KEYS_MAX: u64 = 100_000;
/// Bytes of values that they may read: a few of the largest values.
const COMPARED_BYTES_MAX: u64 = 16 << 20;
const TOO_MUCH_COMPARED: Status =
    Status::new(Code::ResourceExhausted, "mainstay: too much to compare in one transaction");

/// After this many passes in the newest state, a read-only transaction is evaluated in a state that stays the same.
const CURRENT_PASSES_MAX: u32 = 8;
/// After this many passes, all values that are compared are fetched, even those that are not needed.
const PASSES_WITH_QUESTIONS: u32 = 3;
/// Slices in which the comparisons of a read-only transaction are made at most, besides those that follow from the number of
/// comparisons: keys that were written since its moment are passed over.
const COMPARED_SLICES_MAX: usize = 512;
/// Comparisons for which there is another slice.
const COMPARES_PER_SLICE: usize = 256;

/// The result of a read-only transaction.
struct Evaluated {
    /// State in which it was evaluated.
    state: AsOf,
    /// The term of the last entry before it.
    term: Term,
    outcome: TxnOutcome,
}

/// A transaction that may write, on its way to the log.
struct ProposedTxn {
    principal: Principal,
    request: TxnRequest,
    /// The memory that the request counts for, until this is dropped.
    held: Option<Held>,
    message: Bytes,
}

/// Fields of `InternalRaftRequest`.
mod field {
    pub const PUT: u32 = 4;
    pub const DELETE_RANGE: u32 = 5;
    pub const TXN: u32 = 6;
    pub const COMPACTION: u32 = 7;
}

/// Number of comparisons and operations of a transaction whose memory the charge for a call covers.
const FEW_ELEMENTS: usize = 16;

/// Charges the connection whose turn it is with what was decoded of a transaction with so many elements.
fn charge_elements(elements: usize) -> Option<Held> {
    if elements <= FEW_ELEMENTS {
        return None;
    }
    Account::of_turn().map(|account| account.hold(elements * ELEMENT_BYTES))
}

impl Services {
    /// Most comparisons and operations of a transaction, in all branches together.
    pub(crate) fn txn_elements_max(&self) -> usize {
        check::txn_elements_max(self.shared.limits.txn_ops_max)
    }

    /// Puts a client's request to the core, unchanged, as this field of an `InternalRaftRequest`.
    pub(super) fn propose(
        self: &Rc<Self>,
        principal: &Principal,
        field: u32,
        request: &Bytes,
        wait_removed: bool,
        what: &'static str,
        answer: impl FnOnce(&Services, Outcome, ResponseHeader) -> Result<Answer, Status> + 'static,
    ) -> Result<Unary, Status> {
        self.propose_then(principal, field, request, wait_removed, what, |services, outcome, _, header| {
            Ok(Unary::Done(answer(services, outcome, header)))
        })
    }

    /// Proposes as [`Services::propose`] does, for answers that hold keys and values: they come with the state right
    /// behind the write.
    fn propose_then(
        self: &Rc<Self>,
        principal: &Principal,
        field: u32,
        request: &Bytes,
        wait_removed: bool,
        what: &'static str,
        answer: impl FnOnce(&Services, Outcome, Option<Box<AsOf>>, ResponseHeader) -> Result<Unary, Status>
        + 'static,
    ) -> Result<Unary, Status> {
        let id = self.shared.command_id();
        let data = command(id, field, request, principal.caller());
        if data.len() > self.shared.limits.request_bytes_max {
            return Err(error::REQUEST_TOO_LARGE);
        }
        let bytes = data.len();
        self.shared.admit_proposal(bytes)?;
        let port = self.peer.get().port();
        let writer =
            if field == super::auth::field::AUTHENTICATE { Writer::Login(port) } else { Writer::Port(port) };
        let ask =
            |request_id: RequestId| ClientRequest::Propose { request_id, id, data, writer, wait_removed };
        self.ask_then(ask, what, |services, body, header| match body {
            ReplyBody::Outcome(outcome, state) => answer(services, outcome?, state, header),
            _ => Err(error::STOPPED),
        })
        .inspect_err(|_| self.shared.proposal_taken(bytes))
    }

    /// Keeps in mind who puts large values.
    fn note_value(&self, put: &PutRequest) {
        if put.value.len() >= slow_requests::VALUE_BYTES {
            let (client, now) = (self.peer.get().ip(), self.shared.clock.wall());
            self.shared.slow_requests.put(client, &put.key, put.value.len(), now);
        }
    }

    pub(super) fn put(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request: PutRequest = decode(message.clone())?;
        check::put(&request)?;
        let put = (self.principal()?, request, message);
        let may = |services: &Services, (principal, request, _): &(Principal, PutRequest, Bytes)| {
            services.may(principal, |gate| gate.put(request, &Leases::default()))
        };
        self.if_allowed(put, may, |services, (principal, request, message)| {
            services.put_allowed(&principal, &request, &message)
        })
    }

    fn put_allowed(
        self: &Rc<Self>,
        principal: &Principal,
        request: &PutRequest,
        message: &Bytes,
    ) -> Result<Unary, Status> {
        self.check_quota(check::put_cost(request))?;
        self.note_value(request);
        self.propose_then(principal, field::PUT, message, false, "Put", |services, outcome, state, header| {
            let Outcome::Put { revision, previous } = outcome else { return Err(error::STOPPED) };
            let header = ResponseHeader { revision: revision.0, ..header };
            let (Some(previous), Some(state)) = (previous, state) else {
                let answer = encode::put(&header, None, &*services.values);
                return Ok(Unary::Done(answer.map(Answer::Whole).map_err(|e| unreadable(&e))));
            };
            let encode = |values: &Attempt| encode::put(&header, Some(&previous), values);
            if let Some(answer) = services.at_once(previous.encoded_len(), encode) {
                return Ok(answer);
            }
            let answer = answers::put(*state, Rc::clone(&services.values), header, previous);
            Ok(Unary::Later(Box::pin(answers::written(answer))))
        })
    }

    pub(super) fn delete_range(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request: DeleteRangeRequest = decode(message.clone())?;
        check::delete_range(&request)?;
        let deletion = (self.principal()?, request, message);
        let may = |services: &Services, (principal, request, _): &(Principal, DeleteRangeRequest, Bytes)| {
            services.may(principal, |gate| gate.delete_range(request))
        };
        self.if_allowed(deletion, may, |services, (principal, request, message)| {
            if !request.range_end.is_empty() {
                services.expensive(&principal, services.peer.get().ip())?;
            }
            services.delete_allowed(&principal, &message)
        })
    }

    fn delete_allowed(self: &Rc<Self>, principal: &Principal, message: &Bytes) -> Result<Unary, Status> {
        self.propose_then(
            principal,
            field::DELETE_RANGE,
            message,
            false,
            "DeleteRange",
            |services, outcome, state, header| {
                let Outcome::DeleteRange(deleted) = outcome else { return Err(error::STOPPED) };
                let header = ResponseHeader { revision: deleted.revision.0, ..header };
                // It fails if something is left to be read.
                let encode = |values: &Attempt| encode::delete_range(&header, &deleted, values);
                if let Some(answer) = services.at_once(encode::found_len(&deleted.previous), encode) {
                    return Ok(answer);
                }
                let state = state.ok_or(error::STOPPED)?;
                let answer = answers::delete_range(*state, Rc::clone(&services.values), header, deleted);
                Ok(Unary::Later(Box::pin(answers::written(answer))))
            },
        )
    }

    pub(super) fn txn(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let elements_max = self.txn_elements_max();
        let decoded = machine::request::txn(message.clone(), elements_max).map_err(|why| match why {
            Undecodable::TooDeep | Undecodable::TooMany => error::TOO_MANY_OPS,
            Undecodable::Malformed(_) => UNPARSEABLE,
        });
        let (request, elements) = decoded?;
        let held = charge_elements(elements);
        check::txn(&request, self.shared.limits.txn_ops_max)?;
        let principal = self.principal()?;
        self.expense(&principal, self.peer.get().ip(), |now| check::txn_expense(&request, now))?;
        if check::txn_is_read_only(&request) {
            // Nothing is looked at for those who may not: how much there is would tell them something.
            if self.may_txn(&principal, &request).is_ok() && self.compares_too_many(&request) {
                return Err(TOO_MUCH_COMPARED);
            }
            let serializable = check::txn_is_serializable(&request);
            return self.read(serializable, move |services| {
                let answer = services.txn_now(request, held, &principal)?;
                Ok(services.read_by(principal, answer))
            });
        }
        let txn = ProposedTxn { principal, request, held, message };
        let may = |services: &Services, txn: &ProposedTxn| services.may_txn(&txn.principal, &txn.request);
        self.if_allowed(txn, may, Services::txn_allowed)
    }

    /// Refuses a transaction that its caller may not make, as far as this member knows. Any user may make one that names no key.
    fn may_txn(&self, principal: &Principal, request: &TxnRequest) -> Result<(), Status> {
        self.some_user(principal)?;
        self.may(principal, |gate| gate.txn(request, &Leases::default()))
    }

    /// Proposes a transaction that may write.
    fn txn_allowed(self: &Rc<Self>, txn: ProposedTxn) -> Result<Unary, Status> {
        let ProposedTxn { principal, request, held, message } = txn;
        if self.compares_too_many(&request) {
            return Err(TOO_MUCH_COMPARED);
        }
        let cost = check::txn_cost(&request);
        if cost > 0 {
            self.check_quota(cost)?;
        }
        for operation in request.success.iter().chain(&request.failure) {
            if let Some(request_op::Request::RequestPut(put)) = &operation.request {
                self.note_value(put);
            }
        }
        if !machine::txn::compares_values(&request) {
            return self.propose_txn(&principal, &message);
        }
        // The core is not to wait for a disk when it applies this: what it will compare is fetched first.
        let compared = Compared::of(&request);
        let values = Attempt::new(self.values.clone());
        let looked_at = self.look(&compared, &LookedAt::default(), &values)?;
        if values.is_complete() && compared.is_done(&looked_at) {
            return self.propose_txn(&principal, &message);
        }
        let (services, call) = (Rc::clone(self), self.at_hand());
        Ok(Unary::Later(Box::pin(async move {
            let _held = held;
            let mut looked_at = LookedAt::default();
            while !compared.is_done(&looked_at) {
                let values = services.values.clone();
                looked_at = made(values, |values| services.look(&compared, &looked_at, values)).await?;
                tokio::task::yield_now().await;
            }
            services.go_on(call);
            match services.propose_txn(&principal, &message)? {
                Unary::Done(answer) => answer,
                Unary::Later(answer) => answer.await,
            }
        })))
    }

    /// Returns true if the comparisons of a transaction look at too many keys of the newest state.
    fn compares_too_many(&self, request: &TxnRequest) -> bool {
        let state = self.shared.state.load();
        check::compared_keys(request, &state.view.snapshot(), COMPARED_KEYS_MAX) > COMPARED_KEYS_MAX
    }

    /// Looks at the next of the values that a transaction compares.
    fn look(&self, compared: &Compared, from: &LookedAt, values: &Attempt) -> Result<LookedAt, Status> {
        let state = self.shared.state.load();
        let looked_at = compared.look(from, &state.view.snapshot(), values, KEYS_PER_SLICE, READ_AT_ONCE);
        // A slice that ends early is the last one.
        let keys = if compared.is_done(&looked_at) { 1 } else { KEYS_PER_SLICE as u64 };
        front::note_work(keys, looked_at.bytes - from.bytes);
        if looked_at.bytes > COMPARED_BYTES_MAX { Err(TOO_MUCH_COMPARED) } else { Ok(looked_at) }
    }

    fn propose_txn(self: &Rc<Self>, principal: &Principal, message: &Bytes) -> Result<Unary, Status> {
        self.propose_then(principal, field::TXN, message, false, "Txn", |services, outcome, state, header| {
            let Outcome::Txn(txn) = outcome else { return Err(error::STOPPED) };
            let header = ResponseHeader { revision: txn.revision.0, ..header };
            if let Some(answer) = services.txn_at_once(&header, &txn) {
                return Ok(answer);
            }
            let state = state.ok_or(error::STOPPED)?;
            let answer = answers::txn(*state, Rc::clone(&services.values), header, txn);
            Ok(Unary::Later(Box::pin(answers::written(answer))))
        })
    }

    /// An answer that `encode` makes, if all values that it holds are at hand, and where they were.
    /// `None` also if its keys and values, of so many bytes, are more than are answered at once.
    fn at_once(
        &self,
        bytes: usize,
        encode: impl FnOnce(&Attempt) -> Result<Bytes, ReadError>,
    ) -> Option<Unary> {
        if bytes > BYTES_AT_ONCE {
            return None;
        }
        let values = Attempt::new(self.values.clone());
        let answer = encode(&values).ok()?;
        values.is_complete().then(|| Unary::Done(Ok(Answer::Whole(answer))))
    }

    /// The answer of a transaction, unless it has ranges to read, or much, or something that is not at hand.
    fn txn_at_once(&self, header: &ResponseHeader, outcome: &TxnOutcome) -> Option<Unary> {
        if outcome.reads_later() {
            return None;
        }
        self.at_once(encode::named_len(outcome), |values| encode::txn(header, outcome, values))
    }

    /// Answers a transaction that only reads. `held` is what it is charged with until it is dropped.
    fn txn_now(
        self: &Rc<Self>,
        request: TxnRequest,
        held: Option<Held>,
        principal: &Principal,
    ) -> Result<Unary, Status> {
        let before = self.state();
        // It puts nothing, so no lease matters.
        self.gate(&before, principal).txn(&request, &Leases::default())?;
        principal.is_of(&before.auth)?;
        let values = Attempt::new(self.values.clone());
        let snapshot = before.view.snapshot();
        let mut comparing = Comparing::default();
        let holds = compare_some(&mut comparing, &snapshot, &request, &values);
        let (mut known, mut is_long) = (None, false);
        if values.is_complete() {
            match holds? {
                Some(holds) => {
                    let outcome =
                        machine::txn::read_only(&snapshot, &request, holds).map_err(super::range::failed)?;
                    let header = self.header(outcome.revision, &before);
                    if let Some(answer) = self.txn_at_once(&header, &outcome) {
                        return Ok(answer);
                    }
                    known = Some(outcome);
                }
                None => is_long = true,
            }
        }
        // It takes a while: from here on as of a moment, without a view.
        let (state, newest) = self.shared.read_long(Reader::Range);
        let term = newest.applied_term;
        let known = known.filter(|_| Arc::ptr_eq(&before, &newest));
        let known = known.map(|outcome| Evaluated { state: state.clone(), term, outcome });
        drop(newest);
        let services = Rc::clone(self);
        Ok(Unary::Later(Box::pin(async move {
            let Evaluated { state, term, outcome } = match known {
                Some(known) => known,
                None if is_long => services.compared(state, term, &request, values).await?,
                None => {
                    drop(state);
                    services.evaluated(&request, values).await?
                }
            };
            drop((request, held));
            let header = services.shared.header(outcome.revision, term);
            answers::txn(state, Rc::clone(&services.values), header, outcome).await
        })))
    }

    /// Evaluates a read-only transaction of which values were missing; fetches those that it compares.
    ///
    /// Each pass is made in the newest state at that time, if it takes a slice only: as of an older moment, a walk would pass over
    /// everything that was written and deleted in its ranges since.
    async fn evaluated(&self, request: &TxnRequest, mut values: Attempt) -> Result<Evaluated, Status> {
        values.fetched().await;
        let compared = Compared::of(request);
        let mut passes = 0;
        let (state, term) = loop {
            // All that it may compare: a comparison ends at the first value that is missing.
            let mut looked_at = LookedAt::default();
            while !compared.is_done(&looked_at) {
                looked_at = self.look(&compared, &looked_at, &values)?;
                if passes < PASSES_WITH_QUESTIONS {
                    values.ask_again();
                }
                values.fetched().await;
                tokio::task::yield_now().await;
            }
            let (state, newest) = self.shared.read_long(Reader::Range);
            let term = newest.applied_term;
            let mut comparing = Comparing::default();
            let holds = compare_some(&mut comparing, &newest.view.snapshot(), request, &values);
            if values.is_complete() {
                let Some(holds) = holds? else { break (state, term) };
                let outcome = machine::txn::read_only(&newest.view.snapshot(), request, holds);
                return Ok(Evaluated { state, term, outcome: outcome.map_err(super::range::failed)? });
            }
            passes += 1;
            if passes == CURRENT_PASSES_MAX {
                break (state, term);
            }
            drop((state, newest));
            values.fetched().await;
        };
        // It is long, or what it compares changes all the time.
        self.compared(state, term, request, values).await
    }

    /// Evaluates a read-only transaction as of this moment, slice by slice; fetches the values that it compares.
    async fn compared(
        &self,
        state: AsOf,
        term: Term,
        request: &TxnRequest,
        mut values: Attempt,
    ) -> Result<Evaluated, Status> {
        let (mut so_far, mut slices) = (Comparing::default(), 0);
        let slices_max = COMPARED_SLICES_MAX + request.compare.len() / COMPARES_PER_SLICE;
        loop {
            values.fetched().await;
            let mut comparing = so_far.clone();
            let slice = super::range::slice(&state)?;
            let holds = compare_some(&mut comparing, &slice.snapshot(), request, &values);
            if !values.is_complete() {
                continue;
            }
            if let Some(holds) = holds? {
                let outcome = machine::txn::read_only(&slice.snapshot(), request, holds);
                drop(slice);
                return Ok(Evaluated { state, term, outcome: outcome.map_err(super::range::failed)? });
            }
            drop(slice);
            slices += 1;
            if slices > slices_max || comparing.bytes > COMPARED_BYTES_MAX {
                return Err(TOO_MUCH_COMPARED);
            }
            so_far = comparing;
            tokio::task::yield_now().await;
        }
    }

    pub(super) fn compact(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request: CompactionRequest = decode(message.clone())?;
        self.as_root(move |services, principal| {
            let (field, wait_removed) = (field::COMPACTION, request.physical);
            services.propose(principal, field, &message, wait_removed, "Compaction", |_, outcome, header| {
                let Outcome::Compacted = outcome else { return Err(error::STOPPED) };
                Ok(whole(&CompactionResponse { header: Some(header) }))
            })
        })
    }
}

/// Makes the next comparisons of a read-only transaction: a slice, which counts as work of the turn. Returns whether all hold, once
/// that is known. If values were missing, to be made again from a copy once they are fetched, those of the whole slice at once.
fn compare_some(
    comparing: &mut Comparing,
    snapshot: &Snapshot<'_>,
    request: &TxnRequest,
    values: &Attempt,
) -> Result<Option<bool>, Status> {
    let at_once = planted::is(Bug::ComparedAllAtOnce);
    let keys_max = if at_once { u64::MAX } else { KEYS_PER_SLICE as u64 };
    let bytes_max = if at_once { u64::MAX } else { READ_AT_ONCE as u64 };
    let from = comparing.clone();
    let holds = comparing.step(snapshot, request, values, keys_max, bytes_max);
    planted::looked_at(Measure::Compared, usize::try_from(comparing.keys).unwrap_or(usize::MAX));
    if !values.is_complete() {
        // What is missing is not compared with anything, so that the slice has ended with it.
        from.look(snapshot, request, values, KEYS_PER_SLICE, READ_AT_ONCE);
    }
    front::note_work(comparing.keys, comparing.bytes - from.bytes);
    holds.map_err(super::range::failed)
}
