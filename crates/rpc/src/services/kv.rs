//! Answers puts, deletes, transactions and compactions, with one handler per method. A handler decodes and
//! checks a request, proposes it and encodes the response; the state machine applies it.

use numbers::Term;
use std::rc::Rc;
use std::sync::Arc;
use storage::values::unreadable;

use accounting::{Account, Held};
use api::error;
use api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, PutRequest, ResponseHeader, TxnRequest,
    request_op,
};
use api::{Code, Status};
use bytes::Bytes;
use front::Answer;
use machine::request::{ELEMENT_BYTES, Undecodable};
use machine::txn::{Compared, Comparing, LookedAt, TxnOutcome};
use machine::{AsOf, Leases, Outcome, ReadError, check};
use mvcc::Snapshot;
use planted::{Bug, Measure};

use super::call::{Applied, Call};
use super::choose::READ_AT_ONCE;
use super::preload::ranges_of;
use super::walk::{BYTES_AT_ONCE, KEYS_PER_SLICE, failed, slice};
use super::{Services, UNPARSEABLE, answers, decode, whole};
use crate::encode;
use replica::long_reads::Reader;
use storage::values::{Attempt, made};

/// Maximum number of keys that the comparisons of one transaction may visit (COMPAT-74).
const COMPARED_KEYS_MAX: u64 = 100_000;
/// Maximum bytes of values that the comparisons of one transaction may read: enough for a few of the largest
/// values.
const COMPARED_BYTES_MAX: u64 = 16 << 20;
const TOO_MUCH_COMPARED: Status =
    Status::new(Code::ResourceExhausted, "mainstay: too much to compare in one transaction");

/// Number of times that a read-only transaction is tried against the newest state, which may change between
/// two tries. After that, it is evaluated against one fixed state.
const CURRENT_PASSES_MAX: u32 = 8;
/// Number of passes, from the first on, in which a compared value that was missing is looked up in memory
/// again before it is fetched, because it may be in memory now. Later passes fetch it without that look-up.
const PASSES_WITH_QUESTIONS: u32 = 3;
/// Maximum number of slices in which the comparisons of a read-only transaction run, plus one slice per
/// [`COMPARES_PER_SLICE`] comparisons. The limit is needed because the comparisons read an older moment: they
/// also pass over all keys that were written after that moment.
const COMPARED_SLICES_MAX: usize = 512;
/// Number of comparisons that raise the limit on slices by one.
const COMPARES_PER_SLICE: usize = 256;

/// Result of a read-only transaction.
struct Evaluated {
    /// State in which the transaction was evaluated.
    state: AsOf,
    /// Raft term of the last entry that is applied in `state`.
    term: Term,
    outcome: TxnOutcome,
}

/// Field numbers of `InternalRaftRequest`.
mod field {
    pub const PUT: u32 = 4;
    pub const DELETE_RANGE: u32 = 5;
    pub const TXN: u32 = 6;
    pub const COMPACTION: u32 = 7;
}

/// Maximum number of comparisons and operations of a transaction whose decoded form needs no reservation of
/// memory, because the reservation for its call covers it.
const FEW_ELEMENTS: usize = 16;

/// Reserves memory for a decoded transaction with this number of elements, in the account of the connection
/// whose turn it is. Returns `None` if no separate reservation is needed, or if the code runs outside of a
/// connection's turn.
fn charge_elements(elements: usize) -> Option<Held> {
    if elements <= FEW_ELEMENTS {
        return None;
    }
    Account::of_turn().map(|account| account.hold(elements * ELEMENT_BYTES))
}

/// Answers a Put.
pub(super) async fn put(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let request: PutRequest = decode(message.clone())?;
    check::put(&request)?;
    call.allowed(|call| call.may(|gate| gate.put(&request, &Leases::default()))).await?;
    call.services.check_quota(check::put_cost(&request))?;
    call.note_value(&request);
    let preload = call.services.preload(|| vec![(request.key.clone(), Bytes::new())]);
    drop(request);
    if let Some(preload) = preload {
        preload.await;
    }
    let reply = call.send_write(field::PUT, message, "Put")?.await?;
    let Applied { outcome, state, header } = call.applied(reply)?;
    let Outcome::Put { revision, previous } = outcome else { return Err(error::STOPPED) };
    let header = ResponseHeader { revision: revision.0, ..header };
    let services = &call.services;
    let (Some(previous), Some(state)) = (previous, state) else {
        return encode::put(&header, None, &*services.values).map(Answer::Whole).map_err(|e| unreadable(&e));
    };
    let encode = |values: &Attempt| encode::put(&header, Some(&previous), values);
    if let Some(answer) = services.at_once(previous.encoded_len(), encode) {
        return Ok(answer);
    }
    let answer = answers::put(*state, Rc::clone(&services.values), header, previous);
    Box::pin(answers::written(answer)).await
}

/// Answers a DeleteRange.
pub(super) async fn delete_range(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let request: DeleteRangeRequest = decode(message.clone())?;
    check::delete_range(&request)?;
    call.allowed(|call| call.may(|gate| gate.delete_range(&request))).await?;
    if !request.range_end.is_empty() {
        call.expensive()?;
    }
    let preload = call.services.preload(|| vec![(request.key.clone(), request.range_end.clone())]);
    drop(request);
    if let Some(preload) = preload {
        preload.await;
    }
    let applied = call.propose(field::DELETE_RANGE, message, "DeleteRange").await?;
    let Outcome::DeleteRange(deleted) = applied.outcome else { return Err(error::STOPPED) };
    let header = ResponseHeader { revision: deleted.revision.0, ..applied.header };
    let services = &call.services;
    // Encoding fails if apply left the previous keys to be read later. In that case the response is made
    // piece by piece below.
    let encode = |values: &Attempt| encode::delete_range(&header, &deleted, values);
    if let Some(answer) = services.at_once(encode::found_len(&deleted.previous), encode) {
        return Ok(answer);
    }
    let state = applied.state.ok_or(error::STOPPED)?;
    let answer = answers::delete_range(*state, Rc::clone(&services.values), header, deleted);
    Box::pin(answers::written(answer)).await
}

/// Answers a Txn.
pub(super) async fn txn(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let services = Rc::clone(&call.services);
    let decoded = machine::request::txn(message.clone(), services.txn_elements_max());
    let (request, elements) = decoded.map_err(|why| match why {
        Undecodable::TooDeep | Undecodable::TooMany => error::TOO_MANY_OPS,
        Undecodable::Malformed(_) => UNPARSEABLE,
    })?;
    let held = charge_elements(elements);
    check::txn(&request, services.shared.member.limits.txn_ops_max)?;
    call.expense(|now| check::txn_expense(&request, now))?;
    if check::txn_is_read_only(&request) {
        drop(message);
        if let Some(preload) = services.preload(|| ranges_of(&request)) {
            preload.await;
        }
        return Box::pin(read_only_txn(call, request, held)).await;
    }
    call.allowed(|call| may_txn(call, &request)).await?;
    if services.compares_too_many(&request) {
        return Err(TOO_MUCH_COMPARED);
    }
    let cost = check::txn_cost(&request);
    if cost > 0 {
        services.check_quota(cost)?;
    }
    for operation in request.success.iter().chain(&request.failure) {
        if let Some(request_op::Request::RequestPut(put)) = &operation.request {
            call.note_value(put);
        }
    }
    let compared = machine::txn::compares_values(&request).then(|| Compared::of(&request));
    let preload = services.preload(|| ranges_of(&request));
    drop(request);
    if let Some(preload) = preload {
        preload.await;
    }
    if let Some(compared) = compared {
        Box::pin(fetch_compared(&services, compared)).await?;
    }
    drop(held);
    let reply = call.send_write(field::TXN, message, "Txn")?.await?;
    let applied = call.applied(reply)?;
    let Outcome::Txn(txn) = applied.outcome else { return Err(error::STOPPED) };
    let header = ResponseHeader { revision: txn.revision.0, ..applied.header };
    if let Some(answer) = services.txn_at_once(&header, &txn) {
        return Ok(answer);
    }
    let state = applied.state.ok_or(error::STOPPED)?;
    let answer = answers::txn(*state, Rc::clone(&services.values), header, txn);
    Box::pin(answers::written(answer)).await
}

/// Refuses a transaction that the caller has no right to make, according to the state that this member has
/// applied. Any user may make a transaction that names no key.
fn may_txn(call: &Call, request: &TxnRequest) -> Result<(), Status> {
    call.some_user()?;
    call.may(|gate| gate.txn(request, &Leases::default()))
}

/// Fetches the values that a transaction compares, because the core must not wait for a disk while it applies
/// the transaction.
async fn fetch_compared(services: &Services, compared: Compared) -> Result<(), Status> {
    let values = Attempt::new(services.values.clone());
    let mut looked_at = services.look(&compared, &LookedAt::default(), &values)?;
    if values.is_complete() && compared.is_done(&looked_at) {
        return Ok(());
    }
    looked_at = LookedAt::default();
    while !compared.is_done(&looked_at) {
        let values = services.values.clone();
        looked_at = made(values, |values| services.look(&compared, &looked_at, values)).await?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Answers a read-only transaction. `held` is the reservation for the memory of `request`.
async fn read_only_txn(call: &mut Call, request: TxnRequest, held: Option<Held>) -> Result<Answer, Status> {
    // Comparisons of callers without rights are not counted: the error would reveal how many keys exist.
    if may_txn(call, &request).is_ok() && call.services.compares_too_many(&request) {
        return Err(TOO_MUCH_COMPARED);
    }
    let mut read = call.readable(check::txn_is_serializable(&request)).await?;
    let before = call.services.state();
    // A read-only transaction puts nothing, so leases do not matter for its rights.
    call.gate(&before)?.txn(&request, &Leases::default())?;
    call.principal()?.is_of(&before.auth)?;
    read.applied_as = Some("read-only txn ");
    call.reads(read);
    let services = &call.services;
    let values = Attempt::new(services.values.clone());
    let mut known = None;
    let mut is_long = false;
    {
        let snapshot = before.view.snapshot();
        let mut comparing = Comparing::default();
        let holds = compare_some(&mut comparing, &snapshot, &request, &values);
        if values.is_complete() {
            match holds? {
                Some(holds) => {
                    let outcome = machine::txn::read_only(&snapshot, &request, holds).map_err(failed)?;
                    let header = services.header(outcome.revision, &before);
                    if let Some(answer) = services.txn_at_once(&header, &outcome) {
                        return Ok(answer);
                    }
                    known = Some(outcome);
                }
                None => is_long = true,
            }
        }
    }
    // The rest takes longer, so it reads as of a fixed moment and holds no view.
    let (state, newest) = services.shared.read_long(Reader::Range);
    let term = newest.applied_term;
    let known = known.filter(|_| Arc::ptr_eq(&before, &newest));
    drop((before, newest));
    let Evaluated { state, term, outcome } = match known {
        Some(outcome) => Evaluated { state, term, outcome },
        None if is_long => services.compared(state, term, &request, values).await?,
        None => {
            drop(state);
            services.evaluated(&request, values).await?
        }
    };
    drop((request, held));
    let header = services.shared.member.header(outcome.revision, term);
    let answer = answers::txn(state, Rc::clone(&services.values), header, outcome).await?;
    call.still()?;
    Ok(answer)
}

/// Answers a Compact.
pub(super) async fn compact(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let request: CompactionRequest = decode(message.clone())?;
    call.as_root().await?;
    let applied = call.propose_compaction(field::COMPACTION, message, request.physical).await?;
    let Outcome::Compacted = applied.outcome else { return Err(error::STOPPED) };
    Ok(whole(&CompactionResponse { header: Some(applied.header) }))
}

impl Services {
    /// Returns the maximum number of comparisons and operations of a transaction, in all branches together.
    pub(crate) fn txn_elements_max(&self) -> usize {
        check::txn_elements_max(self.shared.member.limits.txn_ops_max)
    }

    /// Returns true if the comparisons of a transaction visit too many keys of the newest state.
    fn compares_too_many(&self, request: &TxnRequest) -> bool {
        let state = self.shared.state.load();
        check::compared_keys(request, &state.view.snapshot(), COMPARED_KEYS_MAX) > COMPARED_KEYS_MAX
    }

    /// Reads the next slice of the values that a transaction compares, and returns the new progress.
    fn look(&self, compared: &Compared, from: &LookedAt, values: &Attempt) -> Result<LookedAt, Status> {
        let state = self.shared.state.load();
        let looked_at = compared.look(from, &state.view.snapshot(), values, KEYS_PER_SLICE, READ_AT_ONCE);
        // The last slice may end early, and is counted as one key.
        let keys = if compared.is_done(&looked_at) { 1 } else { KEYS_PER_SLICE as u64 };
        accounting::note_work(keys, looked_at.bytes - from.bytes);
        if looked_at.bytes > COMPARED_BYTES_MAX { Err(TOO_MUCH_COMPARED) } else { Ok(looked_at) }
    }

    /// Returns the response that `encode` makes, if all its values are in memory. Returns `None` if a value
    /// has to be fetched, if encoding fails, or if the response, of about `bytes` bytes, is too large to be
    /// made in one step.
    fn at_once(
        &self,
        bytes: usize,
        encode: impl FnOnce(&Attempt) -> Result<Bytes, ReadError>,
    ) -> Option<Answer> {
        if bytes > BYTES_AT_ONCE {
            return None;
        }
        let values = Attempt::new(self.values.clone());
        let answer = encode(&values).ok()?;
        values.is_complete().then_some(Answer::Whole(answer))
    }

    /// Returns the response to a transaction if it can be made in one step: it is small, all its values are
    /// in memory, and no range is left to be read.
    fn txn_at_once(&self, header: &ResponseHeader, outcome: &TxnOutcome) -> Option<Answer> {
        if outcome.reads_later() {
            return None;
        }
        self.at_once(encode::named_len(outcome), |values| encode::txn(header, outcome, values))
    }

    /// Evaluates a read-only transaction some of whose values were not in memory, and fetches the values that
    /// it compares.
    ///
    /// As long as one slice suffices, each pass reads the newest state. A walk at an older moment would also
    /// have to pass over everything that was written and deleted in its ranges after that moment.
    async fn evaluated(&self, request: &TxnRequest, mut values: Attempt) -> Result<Evaluated, Status> {
        values.fetched().await;
        let compared = Compared::of(request);
        let mut passes = 0;
        let (state, term) = loop {
            // Fetch all values that may be compared, because a comparison stops at the first missing value.
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
                return Ok(Evaluated { state, term, outcome: outcome.map_err(failed)? });
            }
            passes += 1;
            if passes == CURRENT_PASSES_MAX {
                break (state, term);
            }
            drop((state, newest));
            values.fetched().await;
        };
        // One slice does not suffice, or the compared values change all the time. So the comparisons are now
        // made in a fixed state.
        self.compared(state, term, request, values).await
    }

    /// Evaluates a read-only transaction in `state`, slice by slice, and fetches the values that it compares.
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
            let slice = slice(&state)?;
            let holds = compare_some(&mut comparing, &slice.snapshot(), request, &values);
            if !values.is_complete() {
                continue;
            }
            if let Some(holds) = holds? {
                let outcome = machine::txn::read_only(&slice.snapshot(), request, holds);
                drop(slice);
                return Ok(Evaluated { state, term, outcome: outcome.map_err(failed)? });
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
}

/// Runs the next slice of a read-only transaction's comparisons, and counts it as work of the connection's
/// turn. Returns `Some` once the result of all comparisons is known: true if all hold. If values are missing,
/// all missing values of the slice are requested together. The caller then repeats the slice, from a copy of
/// `comparing`, after the values are fetched.
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
        // The slice stopped at its first missing value. `look` requests all missing values of the slice.
        from.look(snapshot, request, values, KEYS_PER_SLICE, READ_AT_ONCE);
    }
    accounting::note_work(comparing.keys, comparing.bytes - from.bytes);
    holds.map_err(failed)
}
