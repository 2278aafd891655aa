//! Puts, deletes, transactions, compactions.

use std::rc::Rc;

use api::error;
use api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, PutRequest, ResponseHeader, TxnRequest,
    request_op,
};
use api::{Code, Status};
use bytes::Bytes;
use front::{Answer, Unary};
use machine::request::Undecodable;
use machine::txn::{Compared, LookedAt, Read};
use machine::{AsOf, Outcome, ReadError, check};

use super::choose::READ_AT_ONCE;
use super::range::{BYTES_AT_ONCE, KEYS_PER_SLICE};
use super::{Services, UNPARSEABLE, answers, decode, unreadable, whole};
use crate::core::{Ask, Pinned, ReplyBody, Ticket, command};
use crate::encode;
use crate::long_reads::Reader;
use crate::notable;
use crate::shared::Published;
use crate::values::{Attempt, made};

/// Keys that the comparisons of one transaction may look at (COMPAT-74): they are made in apply, in one go.
const COMPARED_KEYS_MAX: u64 = 100_000;
/// Bytes of values that they may read: a few of the largest values.
const COMPARED_BYTES_MAX: u64 = 16 << 20;
const TOO_MUCH_COMPARED: Status =
    Status::new(Code::ResourceExhausted, "mainstay: too much to compare in one transaction");

/// Fields of `InternalRaftRequest`.
mod field {
    pub const PUT: u32 = 4;
    pub const DELETE_RANGE: u32 = 5;
    pub const TXN: u32 = 6;
    pub const COMPACTION: u32 = 7;
}

impl Services {
    /// Puts a client's request to the core, unchanged, as this field of an `InternalRaftRequest`.
    pub(super) fn propose(
        self: &Rc<Self>,
        field: u32,
        request: &Bytes,
        wait_removed: bool,
        what: &'static str,
        answer: impl FnOnce(&Services, Outcome, ResponseHeader) -> Result<Answer, Status> + 'static,
    ) -> Result<Unary, Status> {
        self.propose_then(field, request, wait_removed, what, |services, outcome, _pin, header| {
            Ok(Unary::Done(answer(services, outcome, header)))
        })
    }

    /// As [`Services::propose`], for answers that may be read from the view that the core hands over.
    fn propose_then(
        self: &Rc<Self>,
        field: u32,
        request: &Bytes,
        wait_removed: bool,
        what: &'static str,
        answer: impl FnOnce(&Services, Outcome, Option<Pinned>, ResponseHeader) -> Result<Unary, Status> + 'static,
    ) -> Result<Unary, Status> {
        let id = self.shared.request_id();
        let data = command(id, field, request);
        if data.len() > self.shared.limits.request_bytes_max {
            return Err(error::REQUEST_TOO_LARGE);
        }
        let bytes = data.len();
        self.shared.admit_proposal(bytes)?;
        let writer = self.peer.get().port();
        let ask = |ticket: Ticket| Ask::Propose { ticket, id, data, writer, wait_removed };
        self.ask_then(ask, what, |services, body, header| match body {
            // The pin keeps the places readable that the outcome names until the answer is made.
            ReplyBody::Outcome(outcome, pin) => answer(services, outcome?, pin, header),
            _ => Err(error::STOPPED),
        })
        .inspect_err(|_| self.shared.proposal_taken(bytes))
    }

    /// Keeps in mind who puts large values.
    fn note_value(&self, put: &PutRequest) {
        if put.value.len() >= notable::VALUE_BYTES {
            let (client, now) = (self.peer.get().ip(), self.shared.clock.wall());
            self.shared.notable.put(client, &put.key, put.value.len(), now);
        }
    }

    pub(super) fn put(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request: PutRequest = decode(message.clone())?;
        check::put(&request)?;
        self.check_quota(check::put_cost(&request))?;
        self.note_value(&request);
        self.propose_then(field::PUT, &message, false, "Put", |services, outcome, pin, header| {
            let Outcome::Put { revision, previous } = outcome else { return Err(error::STOPPED) };
            let header = ResponseHeader { revision, ..header };
            let Some(previous) = previous else {
                let answer = encode::put(&header, None, &*services.values);
                return Ok(Unary::Done(answer.map(Answer::Whole).map_err(|e| unreadable(&e))));
            };
            Ok(services.encoded(pin, move |values| encode::put(&header, Some(&previous), values)))
        })
    }

    pub(super) fn delete_range(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request: DeleteRangeRequest = decode(message.clone())?;
        check::delete_range(&request)?;
        self.propose_then(
            field::DELETE_RANGE,
            &message,
            false,
            "DeleteRange",
            |services, outcome, pin, header| {
                let Outcome::DeleteRange(deleted) = outcome else { return Err(error::STOPPED) };
                let header = ResponseHeader { revision: deleted.revision, ..header };
                if let (Read::Past(_), Some(Pinned(_, Some(state)))) = (&deleted.previous, &pin) {
                    let (state, values) = (AsOf::clone(state), Rc::clone(&services.values));
                    let answer = answers::delete_range(state, values, header, deleted);
                    return Ok(Unary::Later(Box::pin(answers::written(answer))));
                }
                Ok(services.encoded(pin, move |values| encode::delete_range(&header, &deleted, values)))
            },
        )
    }

    pub(super) fn txn(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request = machine::request::txn(message.clone()).map_err(|why| match why {
            Undecodable::TooDeep => error::TOO_MANY_OPS,
            Undecodable::Malformed(_) => UNPARSEABLE,
        })?;
        check::txn(&request, self.shared.limits.txn_ops_max)?;
        let state = self.shared.state.load();
        let compared = check::compared_keys(&request, &state.view.snapshot(), COMPARED_KEYS_MAX);
        if compared > COMPARED_KEYS_MAX
            || check::compared_bytes(&request, &state.view.snapshot(), COMPARED_BYTES_MAX)
                > COMPARED_BYTES_MAX
        {
            return Err(TOO_MUCH_COMPARED);
        }
        drop(state);
        if check::txn_is_read_only(&request) {
            let serializable = check::txn_is_serializable(&request);
            return self.read(serializable, move |services| services.txn_now(request));
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
            return self.propose_txn(&message);
        }
        // The core is not to wait for a disk when it applies this: what it will compare is fetched first.
        let compared = Compared::of(&request);
        let values = Attempt::new(self.values.clone());
        let looked_at = self.look(&compared, &LookedAt::default(), &values);
        if values.is_complete() && compared.is_done(&looked_at) {
            return self.propose_txn(&message);
        }
        let services = Rc::clone(self);
        Ok(Unary::Later(Box::pin(async move {
            let mut looked_at = LookedAt::default();
            while !compared.is_done(&looked_at) {
                let values = services.values.clone();
                looked_at = made(values, |values| services.look(&compared, &looked_at, values)).await;
                tokio::task::yield_now().await;
            }
            match services.propose_txn(&message)? {
                Unary::Done(answer) => answer,
                Unary::Later(answer) => answer.await,
            }
        })))
    }

    /// Looks at the next of the values that a transaction compares.
    fn look(&self, compared: &Compared, from: &LookedAt, values: &Attempt) -> LookedAt {
        let state = self.shared.state.load();
        compared.look(from, &state.view.snapshot(), values, KEYS_PER_SLICE, READ_AT_ONCE)
    }

    fn propose_txn(self: &Rc<Self>, message: &Bytes) -> Result<Unary, Status> {
        self.propose_then(field::TXN, message, false, "Txn", |services, outcome, pin, header| {
            let Outcome::Txn(txn) = outcome else { return Err(error::STOPPED) };
            let header = ResponseHeader { revision: txn.revision, ..header };
            let state = pin.as_ref().and_then(|Pinned(_, state)| state.as_deref().cloned());
            let Some(state) = state else {
                return Ok(services.encoded(pin, move |values| encode::txn(&header, &txn, values)));
            };
            let answer = answers::txn(state, Rc::clone(&services.values), header, txn);
            Ok(Unary::Later(Box::pin(answers::written(answer))))
        })
    }

    /// An answer that `encode` makes of values, fetched if they are not at hand; `pin` keeps them where they are.
    fn encoded(
        &self,
        pin: Option<Pinned>,
        mut encode: impl FnMut(&Attempt) -> Result<Bytes, ReadError> + 'static,
    ) -> Unary {
        let whole = |answer: Result<Bytes, ReadError>| answer.map(Answer::Whole).map_err(|e| unreadable(&e));
        let mut values = Attempt::new(self.values.clone());
        let answer = encode(&values);
        if values.is_complete() {
            return Unary::Done(whole(answer));
        }
        Unary::Later(Box::pin(async move {
            let _pin = pin;
            loop {
                values.fetched().await;
                let answer = encode(&values);
                if values.is_complete() {
                    return whole(answer);
                }
            }
        }))
    }

    /// Answers a transaction that only reads.
    fn txn_now(self: &Rc<Self>, request: TxnRequest) -> Result<Unary, Status> {
        let state = self.state();
        let mut values = Attempt::new(self.values.clone());
        let answer = self.txn_answer(&request, &state, &values);
        if values.is_complete() {
            return answer;
        }
        let services = Rc::clone(self);
        Ok(Unary::Later(Box::pin(async move {
            loop {
                values.fetched().await;
                let answer = services.txn_answer(&request, &state, &values);
                if values.is_complete() {
                    return match answer? {
                        Unary::Done(answer) => answer,
                        Unary::Later(answer) => answer.await,
                    };
                }
            }
        })))
    }

    fn txn_answer(&self, request: &TxnRequest, state: &Published, values: &Attempt) -> Result<Unary, Status> {
        let outcome =
            machine::txn::read_only(&state.view.snapshot(), request, values).map_err(super::range::failed)?;
        let header = self.header(outcome.revision, state);
        if outcome.reads_later() || encode::named_len(&outcome) > BYTES_AT_ONCE {
            let (state, published) = self.shared.read_long(Reader::Range);
            let outcome = machine::txn::read_only(&published.view.snapshot(), request, values)
                .map_err(super::range::failed)?;
            let header = self.header(outcome.revision, &published);
            let answer = answers::txn(state, Rc::clone(&self.values), header, outcome);
            return Ok(Unary::Later(Box::pin(answer)));
        }
        let answer = encode::txn(&header, &outcome, values).map_err(|e| unreadable(&e))?;
        Ok(Unary::Done(Ok(Answer::Whole(answer))))
    }

    pub(super) fn compact(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request: CompactionRequest = decode(message.clone())?;
        self.propose(field::COMPACTION, &message, request.physical, "Compaction", |_, outcome, header| {
            let Outcome::Compacted = outcome else { return Err(error::STOPPED) };
            Ok(whole(&CompactionResponse { header: Some(header) }))
        })
    }
}
