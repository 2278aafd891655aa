//! Answers the calls of the Lease service: grant, revoke, keep-alive, time to live, list. The core keeps the
//! expiry times. `forwarding` asks the leader for times that only the leader knows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use accounting::{Account, Held};
use api::error;
use api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseLeasesResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    ResponseHeader,
};
use api::wire::{NumberFields, field_len, number_len, put_field, put_field_head, put_number};
use api::{Code, Rpc, Status};
use bytes::{Bytes, BytesMut};
use front::{Answer, Head, Inbound, LocalBoxFuture, Outbound, TrySend};
use machine::auth::{LeaseRights, Right};
use machine::{Outcome, SharedMap, check};
use numbers::{LeaseId, Seconds};
use planted::Bug;
use prost::Message as _;

use super::call::Call;
use super::ending::Ended;
use super::principal::{Asker, Principal, Unidentified};
use super::{Services, decode, decode_streamed, pieces, whole};
use crate::encode::{header_len, put_header};
use crate::forwarding;
use crate::watch::after_others;
use replica::core::{ClientRequest, LISTED_AT_ONCE, LeaseDetail, ReplyBody};
use replica::pending::PendingReply;
use telemetry::callers::Caller;
use telemetry::tracing::{Attribute, Within};

/// Size in bytes of each piece in which a long list of leases or keys is sent.
const PIECE_BYTES: usize = 64 << 10;

/// Field numbers of `InternalRaftRequest`.
mod field {
    pub const LEASE_GRANT: u32 = 8;
    pub const LEASE_REVOKE: u32 = 9;
}

/// Memory in bytes per lease while a list of leases is being sorted.
const LISTED_BYTES: usize = size_of::<(Duration, LeaseId)>();

/// Number of leases and keys whose rights are checked before other calls run.
const SEARCHED_AT_ONCE: usize = 512;

/// Maximum number of distinct leases counted per stream. Exact counts above this number have no use in
/// diagnosis.
const RENEWED_MAX: usize = 10_000;
/// Estimated memory per counted lease in bytes: its id and the overhead of the hash table.
const RENEWED_BYTES: usize = 10;

/// Maximum number of renewals that a stream answers in a row before it yields to other streams and calls.
const RENEWED_AT_ONCE_MAX: u32 = 64;

/// The leases that a stream has renewed, counted in the statistics of its client while the stream is open.
struct Renewed {
    caller: Arc<Caller>,
    /// First renewed lease. Nearly all streams renew only one.
    first: Option<LeaseId>,
    others: Option<Box<Others>>,
}

/// Leases that a stream renews in addition to its first one.
struct Others {
    ids: HashSet<LeaseId>,
    /// Reservation for the memory of `ids` in the memory account of the client's connection.
    held: Held,
}

impl Renewed {
    fn note(&mut self, id: LeaseId, account: impl FnOnce() -> Rc<Account>) {
        let Some(first) = self.first else {
            self.first = Some(id);
            self.caller.leases.fetch_add(1, Relaxed);
            return;
        };
        if first == id {
            return;
        }
        let others = self
            .others
            .get_or_insert_with(|| Box::new(Others { ids: HashSet::new(), held: account().hold(0) }));
        if others.ids.len() < RENEWED_MAX - 1 && others.ids.insert(id) {
            self.caller.leases.fetch_add(1, Relaxed);
            others.held.set(others.ids.capacity() * RENEWED_BYTES);
        }
    }
}

impl Drop for Renewed {
    fn drop(&mut self) {
        let others = self.others.as_ref().map_or(0, |others| others.ids.len());
        let ids = usize::from(self.first.is_some()) + others;
        self.caller.leases.fetch_sub(ids as i64, Relaxed);
    }
}

/// A keep-alive stream, as a future that resolves when the stream ends.
///
/// Most open streams are idle most of the time, so this struct holds only the memory that an idle stream
/// needs. It is a hand-written future, because an `async` block reserves memory for everything that it holds
/// at any `await`, and stores captured variables twice. Data that is needed only while the stream waits for
/// something other than its client is boxed.
pub(super) struct Renewing {
    services: Rc<Services>,
    asker: Asker,
    inbound: Inbound,
    outbound: Outbound,
    ended: Ended,
    renewed: Renewed,
    spans: Option<Rc<Within>>,
    /// Number of renewals answered without waiting since other streams and calls last ran.
    at_once: u32,
    /// A renewal that waits for the core, the leader or the identification of the user.
    asked: Option<LocalBoxFuture<Result<(LeaseId, Seconds), Status>>>,
    /// A response that waits until the outbound queue can take it.
    unsent: Option<Box<Bytes>>,
}

impl Future for Renewing {
    type Output = Result<(), Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let stream = &mut *self;
        loop {
            if stream.unsent.is_some() {
                ready!(stream.outbound.poll_ready(cx))?;
                if let Some(answer) = stream.unsent.take() {
                    stream.send(*answer)?;
                }
                continue;
            }
            if let Some(asked) = &mut stream.asked {
                let (id, ttl) = ready!(asked.as_mut().poll(cx))?;
                stream.asked = None;
                stream.answer(id, ttl)?;
                continue;
            }
            // Yields here: a client that always has more requests would otherwise keep the thread in this
            // loop.
            if stream.at_once == RENEWED_AT_ONCE_MAX {
                stream.at_once = 0;
                after_others(cx);
                return Poll::Pending;
            }
            let message = match stream.inbound.poll_next(cx) {
                Poll::Pending => {
                    return Pin::new(&mut stream.ended).poll(cx).map(|()| Err(error::STOPPED));
                }
                // The shutdown is checked here too, because `ended` is polled only while no request is
                // waiting. Otherwise a client that always has more requests would delay the shutdown.
                Poll::Ready(_) if stream.ended.is_due() => return Poll::Ready(Err(error::STOPPED)),
                Poll::Ready(message) => message?,
            };
            let Some(message) = message else { return Poll::Ready(Ok(())) };
            let LeaseKeepAliveRequest { id } = decode_streamed(message)?;
            let id = LeaseId(id);
            match stream.services.renew_at_once(&stream.asker, id, stream.spans.is_some()) {
                Some(ttl) => {
                    stream.at_once += 1;
                    stream.answer(id, ttl?)?;
                }
                None => stream.ask(id),
            }
        }
    }
}

impl Renewing {
    /// Starts a renewal that has to wait until the user is identified, or for the core or the leader.
    fn ask(&mut self, id: LeaseId) {
        let (services, asker, spans) = (Rc::clone(&self.services), self.asker.clone(), self.spans.clone());
        self.asked = Some(Box::pin(async move {
            let ttl = services.renew_for(&asker, id, spans.as_deref()).await?;
            Ok((id, ttl))
        }));
    }

    /// Sends the response to a renewal, immediately or as soon as the outbound queue can take it.
    fn answer(&mut self, id: LeaseId, ttl: Seconds) -> Result<(), Status> {
        self.renewed.note(id, || self.outbound.account());
        let answer = {
            let state = self.services.shared.state.load();
            let header = self.services.header(state.view.snapshot().current_revision(), &state);
            keep_alive_answer(&header, id, ttl)
        };
        self.send(answer)
    }

    fn send(&mut self, answer: Bytes) -> Result<(), Status> {
        match self.outbound.try_send(answer) {
            Ok(()) => Ok(()),
            Err(TrySend::Full(answer)) => {
                self.unsent = Some(Box::new(answer));
                Ok(())
            }
            Err(TrySend::TooLong(status)) => Err(status),
            Err(TrySend::Closed) => Err(Status::new(Code::Canceled, "context canceled")),
        }
    }
}

/// Keys attached to a lease.
type Keys = Arc<SharedMap<Bytes, ()>>;

/// Returns a response of `len` bytes that is sent in pieces. `next` makes pieces of about [`PIECE_BYTES`],
/// and an empty piece at the end. `next` holds `kept` bytes in memory until the end. `beginning` contains the
/// first bytes of the response.
fn in_pieces(
    len: usize,
    kept: usize,
    beginning: &[u8],
    mut next: impl FnMut() -> Bytes + 'static,
) -> Result<Answer, Status> {
    // Memory that stays reserved in the account of the client's connection until the end of the response: one
    // piece, and the `kept` bytes.
    let kept = PIECE_BYTES + kept;
    pieces::answer(len, kept, beginning, move |_, _| {
        let piece = next();
        Poll::Ready(Ok((!piece.is_empty()).then_some((piece, kept))))
    })
}

/// Maximum length of a `LeaseKeepAliveResponse` without its header: two fields, each a tag and a varint of up
/// to ten bytes.
const KEEP_ALIVE_BYTES_MAX: usize = 2 * 11;

/// Returns an encoded `LeaseKeepAliveResponse`.
fn keep_alive_answer(header: &ResponseHeader, id: LeaseId, ttl: Seconds) -> Bytes {
    let mut numbers = NumberFields::<KEEP_ALIVE_BYTES_MAX>::default();
    numbers.push(2, id.0 as u64);
    numbers.push(3, ttl.0 as u64);
    let mut out = BytesMut::with_capacity(header_len(header) + numbers.as_slice().len());
    put_header(&mut out, header);
    out.extend_from_slice(numbers.as_slice());
    out.freeze()
}

/// Returns the response with these keys, piece by piece if there are many.
async fn time_to_live_answer(mut response: LeaseTimeToLiveResponse, keys: Keys) -> Result<Answer, Status> {
    if keys.len() <= LISTED_AT_ONCE {
        response.keys = keys.keys().cloned().collect();
        return Ok(whole(&response));
    }
    let beginning = Bytes::from(response.encode_to_vec());
    let mut head = Some(beginning.clone());
    let mut len = head.as_ref().map_or(0, Bytes::len);
    let mut behind: Option<Bytes> = None;
    loop {
        let mut last = None;
        for (key, ()) in keys.after(behind.as_ref()).take(LISTED_AT_ONCE) {
            len += field_len(key.len());
            last = Some(key);
        }
        let Some(last) = last else { break };
        behind = Some(last.clone());
        accounting::note_work(LISTED_AT_ONCE as u64, 0);
        tokio::task::yield_now().await;
    }
    let mut behind: Option<Bytes> = None;
    // The whole list counts as kept memory (`len`), although at first it shares memory with the replicated
    // state. When a change of the state copies a part of the list, the response may remain as the only owner
    // of the old part.
    in_pieces(len, len, &beginning, move || {
        let mut out = BytesMut::with_capacity(PIECE_BYTES + 4096);
        out.extend(head.take());
        let mut last = None;
        for (key, ()) in keys.after(behind.as_ref()) {
            if out.len() >= PIECE_BYTES {
                break;
            }
            put_field(&mut out, 5, key);
            last = Some(key.clone());
        }
        behind = last.or(behind.take());
        out.freeze()
    })
}

/// Answers a LeaseGrant.
pub(super) async fn grant(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let mut request: LeaseGrantRequest = decode(message)?;
    call.allowed(Call::some_user).await?;
    let services = &call.services;
    services.check_quota(check::LEASE_COST)?;
    services.pending.note_lease(services.now());
    if request.id == 0 {
        request.id = services.shared.ids.lease_id().0;
    }
    // COMPAT-64: the minimum applies here and not in apply, because members may have different options.
    request.ttl = request.ttl.max(services.shared.member.limits.lease_ttl_min.0);
    let message = request.encode_to_vec().into();
    let applied = call.propose(field::LEASE_GRANT, message, "LeaseGrant").await?;
    let Outcome::LeaseGranted { id, ttl } = applied.outcome else { return Err(error::STOPPED) };
    let header = Some(applied.header);
    Ok(whole(&LeaseGrantResponse { header, id: id.0, ttl: ttl.0, error: String::new() }))
}

/// Answers a LeaseRevoke.
pub(super) async fn revoke(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let LeaseRevokeRequest { id } = decode(message.clone())?;
    call.allowed(Call::some_user).await?;
    may_revoke(call, LeaseId(id)).await?;
    let applied = call.propose(field::LEASE_REVOKE, message, "LeaseRevoke").await?;
    Ok(whole(&LeaseRevokeResponse { header: Some(applied.header) }))
}

/// Refuses to revoke a lease if the user may not write all keys attached to it. Apply checks the rights
/// again; but, as for all writes, this member does not propose an entry that apply would refuse
/// ([`Call::allowed`]).
async fn may_revoke(call: &Call, id: LeaseId) -> Result<(), Status> {
    let (services, principal) = (&call.services, call.principal()?);
    let mut is_known = services.shared.state.load().reads_local;
    let is_certain = is_known || !principal.is_dated();
    if is_certain && services.may_change_any(principal) && !call.is_expense_bounded() {
        return Ok(());
    }
    // In all other cases, the rights on all keys of the lease are checked below. Only the core knows these
    // keys.
    if !is_certain {
        // The caller's token may have been issued before root's password changed, and apply would accept it.
        // So this member first catches up, to learn of such a change.
        services.wait_readable(false).await?;
        is_known = true;
    }
    let count = loop {
        let keys = services.keys_to_change(id).await?;
        match services.may_all(Right::Write, [&*keys], principal).await {
            Ok(()) => break keys.len(),
            Err(refusal) if is_known => return Err(refusal),
            Err(_) => {
                services.wait_readable(false).await?;
                is_known = true;
            }
        }
    };
    call.expense(|_| check::is_many(count).into())
}

/// Answers a LeaseTimeToLive. Only the leader knows the remaining time of a lease.
pub(super) async fn time_to_live(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let LeaseTimeToLiveRequest { id, keys } = decode(message)?;
    call.some_user()?;
    call.expense(|_| keys.into())?;
    let services = &call.services;
    let began = services.now();
    let answered = services.whoever_leads(async || services.time_to_live(LeaseId(id), keys).await).await;
    let took = services.now().saturating_duration_since(began);
    services.took("LeaseTimeToLive", answered.is_ok(), took);
    let (mut response, keys) = answered?;
    services.may_all(Right::Read, [&*keys], call.principal()?).await?;
    response.header = Some(services.newest_header());
    time_to_live_answer(response, keys).await
}

/// Answers a LeaseLeases.
pub(super) async fn leases(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let LeaseLeasesRequest {} = decode(message)?;
    call.some_user()?;
    call.expensive()?;
    let services = &call.services;
    let began = services.now();
    // Reserves memory for the list while it is sorted, in the account of the client's connection. This code
    // runs in the turn of that connection.
    let held = Account::of_turn().map(|account| account.hold(0));
    let pending_reply = services.pending.ask(ClientRequest::Leases)?;
    let answered = match services.may_list_leases(call.principal()?).await {
        Ok(()) => services.leases(pending_reply, held).await,
        Err(status) => Err(status),
    };
    services.took("LeaseLeases", answered.is_ok(), services.now().saturating_duration_since(began));
    answered
}

impl Services {
    /// Returns the remaining time of a lease, and its keys if `keys` is true. If this member leads, asks its
    /// own core for the remaining time; otherwise asks the leader. The keys always come from this member,
    /// after it has caught up with the leader: a lease may have millions of keys, too many for a message
    /// between members.
    async fn time_to_live(&self, id: LeaseId, keys: bool) -> Result<(LeaseTimeToLiveResponse, Keys), Status> {
        if !self.leads() {
            let response = forwarding::time_to_live(&self.shared, id, false).await?;
            if !keys || response.ttl < 0 {
                return Ok((response, Keys::default()));
            }
            self.wait_confirmed(self.now()).await?;
            return match self.pending.ask(|request_id| ClientRequest::LeaseKeys(request_id, id))?.await?.body
            {
                ReplyBody::LeaseKeys(keys) => Ok((response, keys)),
                _ => Err(error::STOPPED),
            };
        }
        let detail = LeaseDetail::of(keys);
        match self.pending.ask(|request_id| ClientRequest::TimeToLive(request_id, id, detail))?.await?.body {
            ReplyBody::TimeToLive { ttl, granted, keys } => {
                let response = LeaseTimeToLiveResponse {
                    header: None,
                    id: id.0,
                    ttl: ttl.0,
                    granted_ttl: granted.0,
                    keys: Vec::new(),
                };
                Ok((response, keys))
            }
            ReplyBody::Outcome(Err(status), _) => Err(status),
            _ => Err(error::STOPPED),
        }
    }

    fn leads(&self) -> bool {
        self.shared.state.load().leader == self.shared.member.identity.member_id
    }

    /// Refuses to list leases unless the user may read all keys of all leases.
    async fn may_list_leases(&self, principal: &Principal) -> Result<(), Status> {
        let gate = self.gate(&self.state(), principal);
        if gate.is_open() || gate.admin().is_ok() {
            return Ok(());
        }
        self.some_user(principal)?;
        let ReplyBody::Image(head, _) = self.pending.ask(ClientRequest::Image)?.await?.body else {
            return Err(error::STOPPED);
        };
        self.may_all(Right::Read, head.leases.iter().map(|(_, lease)| lease.keys), principal).await
    }

    /// Returns a snapshot of the leases, ordered by remaining time. The core sorts a short list itself. For a
    /// long list it returns remaining times in slices, which this function sorts one by one and then merges.
    async fn leases(&self, pending_reply: PendingReply, mut held: Option<Held>) -> Result<Answer, Status> {
        let reply = pending_reply.await?;
        let header = self.shared.member.header(reply.revision, reply.raft_term);
        let leases = match reply.body {
            ReplyBody::Leases(ids) => {
                accounting::note_work(ids.len() as u64, 0);
                let leases = ids.iter().map(|id| LeaseStatus { id: id.0 }).collect();
                return Ok(whole(&LeaseLeasesResponse { header: Some(header), leases }));
            }
            ReplyBody::ManyLeases(leases) => leases,
            _ => return Err(error::STOPPED),
        };
        let mut len = header_len(&header);
        // The sorted slices (`runs`) are merged below. Each run has the soonest expiry at its end, and the
        // heap orders the runs by the lease that each would return next.
        let mut runs = BinaryHeap::new();
        let mut behind = None;
        loop {
            let ids: Vec<LeaseId> = leases.after(behind).take(LISTED_AT_ONCE).map(|(id, _)| id).collect();
            let Some(last) = ids.last() else { break };
            behind = Some(*last);
            let asked = ids.clone();
            let times = match self
                .pending
                .ask(|request_id| ClientRequest::LeaseTimes(request_id, asked))?
                .await?
                .body
            {
                ReplyBody::LeaseTimes(times) => times,
                _ => return Err(error::STOPPED),
            };
            len += ids.iter().map(|id| field_len(number_len(id.0))).sum::<usize>();
            let mut run: Vec<Reverse<(Duration, LeaseId)>> =
                times.into_iter().zip(ids).map(Reverse).collect();
            run.sort_unstable();
            accounting::note_work(run.len() as u64, 0);
            runs.extend(run.pop().map(|first| (first, run)));
            if let Some(held) = &mut held {
                held.set(runs.len() * LISTED_AT_ONCE * LISTED_BYTES);
            }
        }
        let mut beginning = BytesMut::new();
        put_header(&mut beginning, &header);
        let mut header = Some(header);
        let kept = leases.len() * LISTED_BYTES;
        drop((leases, held));
        in_pieces(len, kept, &beginning, move || {
            let mut out = BytesMut::with_capacity(PIECE_BYTES + 64);
            if let Some(header) = header.take() {
                put_header(&mut out, &header);
            }
            while out.len() < PIECE_BYTES {
                let Some((Reverse((_, id)), mut run)) = runs.pop() else { break };
                put_field_head(&mut out, 2, number_len(id.0));
                put_number(&mut out, 1, id.0);
                runs.extend(run.pop().map(|first| (first, run)));
            }
            out.freeze()
        })
    }

    /// Answers each request of the stream. The response for a lease that does not exist has TTL 0.
    pub(super) fn lease_keep_alive(
        self: Rc<Self>,
        caller: Arc<Caller>,
        head: &Head,
        inbound: Inbound,
        outbound: Outbound,
        spans: Option<Within>,
    ) -> Renewing {
        // Keeps this shard from running turns of the core, which could block it: a lease of this client may
        // be close to expiry when the first renewal arrives.
        self.pending.note_lease(self.shared.member.clock.now());
        Renewing {
            asker: Asker::of(head),
            inbound,
            outbound,
            ended: self.ending.begun(),
            renewed: Renewed { caller, first: None, others: None },
            spans: spans.map(Rc::new),
            at_once: 0,
            asked: None,
            unsent: None,
            services: self,
        }
    }

    /// Renews a lease for one request of a stream, or refuses the renewal, if neither needs a wait. Returns
    /// `None` if the user has to be identified first, if the core or the leader has to be asked, or if the
    /// renewal is traced or audited.
    fn renew_at_once(&self, asker: &Asker, id: LeaseId, is_traced: bool) -> Option<Result<Seconds, Status>> {
        if is_traced || self.audit.is_some() {
            return None;
        }
        match self.identify(asker) {
            Ok(principal) if self.may_change_any(&principal) => self.renew_here(id).map(Ok),
            Ok(_) | Err(Unidentified::NotYet | Unidentified::Unverified) => None,
            Err(Unidentified::Refused(status)) => Some(Err(status)),
        }
    }

    /// Renews a lease for one request of a stream, with its own span and audit record.
    async fn renew_for(&self, asker: &Asker, id: LeaseId, spans: Option<&Within>) -> Result<Seconds, Status> {
        // As in etcd, the user is identified with each request, because a token stays valid only while it is
        // used.
        let principal = self.identified(asker).await;
        let mut call = self.begin_stream_audit(Rpc::LeaseKeepAlive, asker, &principal);
        call.iter_mut()
            .for_each(|call| call.asks(&LeaseKeepAliveRequest { id: id.0 }.encode_to_vec().into()));
        let span = spans.map(|spans| spans.begin("lease_renew", vec![("id", Attribute::Int(id.0))]));
        let ttl = match &principal {
            Ok(principal) => self.renew(id, principal).await,
            Err(status) => Err(status.clone()),
        };
        drop(span);
        call.into_iter().for_each(|call| call.ended(&ttl.as_ref().map(drop).map_err(Status::clone)));
        ttl
    }

    /// Returns true if this user may renew and revoke any lease, whatever keys are attached to it.
    fn may_change_any(&self, principal: &Principal) -> bool {
        let gate = self.gate(&self.state(), principal);
        gate.is_open() || gate.admin().is_ok()
    }

    /// Refuses to renew a lease unless the user may write all keys attached to it.
    async fn may_renew(&self, id: LeaseId, principal: &Principal) -> Result<(), Status> {
        if self.may_change_any(principal) {
            return Ok(());
        }
        self.some_user(principal)?;
        let keys = self.keys_to_change(id).await?;
        self.may_all(Right::Write, [&*keys], principal).await
    }

    /// Returns the keys that a user must be allowed to write to renew or revoke this lease.
    async fn keys_to_change(&self, id: LeaseId) -> Result<Keys, Status> {
        let ask = |request_id| match planted::is(Bug::RenewalWaitsForEntry) {
            true => ClientRequest::LeaseKeys(request_id, id),
            false => ClientRequest::KeysToRenew(request_id, id),
        };
        match self.pending.ask(ask)?.await?.body {
            ReplyBody::LeaseKeys(keys) => Ok(keys),
            _ => Err(error::STOPPED),
        }
    }

    /// Refuses a user who lacks this right on any key of these leases. The keys are checked in slices. Other
    /// calls run between two slices, and each slice uses the newest users and roles.
    async fn may_all<'k>(
        &self,
        right: Right,
        leases: impl IntoIterator<Item = &'k SharedMap<Bytes, ()>>,
        principal: &Principal,
    ) -> Result<(), Status> {
        let mut rights = LeaseRights::new(right, leases);
        loop {
            let gate = self.gate(&self.state(), principal);
            if let Some(left) = rights.step(&gate, SEARCHED_AT_ONCE)? {
                accounting::note_work((SEARCHED_AT_ONCE - left) as u64, 0);
                return Ok(());
            }
            accounting::note_work(SEARCHED_AT_ONCE as u64, 0);
            tokio::task::yield_now().await;
        }
    }

    /// Renews a lease, here or at the leader. Returns its TTL, or 0 if the lease does not exist.
    pub(super) async fn renew(&self, id: LeaseId, principal: &Principal) -> Result<Seconds, Status> {
        self.may_renew(id, principal).await?;
        if let Some(ttl) = self.renew_here(id) {
            return Ok(ttl);
        }
        let renew = async || {
            if !self.leads() {
                return forwarding::renew(&self.shared, id).await;
            }
            match self.pending.ask(|request_id| ClientRequest::KeepAlive(request_id, id))?.await?.body {
                ReplyBody::KeptAlive(ttl) => Ok(ttl),
                ReplyBody::Outcome(Err(status), _) => Err(status),
                _ => Err(error::STOPPED),
            }
        };
        self.whoever_leads(renew).await
    }

    /// Renews a lease on this thread, without asking the core. Returns `None` if this is not possible.
    fn renew_here(&self, id: LeaseId) -> Option<Seconds> {
        let now = self.shared.member.clock.now();
        self.pending.note_lease(now);
        let ttl = self.shared.renewals.renew(id, now)?;
        self.shared.diagnostics.metrics.lease.renewed.inc();
        Some(ttl)
    }

    /// Makes a request that only the leader can answer. Repeats it if it fails because the leadership is
    /// changing, until the request timeout.
    async fn whoever_leads<T>(&self, ask: impl AsyncFn() -> Result<T, Status>) -> Result<T, Status> {
        let clock = &self.shared.member.clock;
        let deadline = clock.now() + self.shared.member.limits.request_timeout;
        loop {
            match ask().await {
                Err(status) if status == error::NOT_PRIMARY_LESSOR && clock.now() < deadline => {
                    clock.sleep(Duration::from_millis(50)).await;
                }
                Err(status) if status == error::NOT_PRIMARY_LESSOR => return Err(error::TIMEOUT),
                answered => return answered,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::LeaseKeepAliveResponse;

    use super::*;

    #[test]
    fn an_answer_to_a_renewal_is_written_as_the_generated_code_writes_it() {
        let header = ResponseHeader { cluster_id: u64::MAX, member_id: 1, revision: 300, raft_term: 0 };
        for (id, ttl) in [(i64::MAX, 100), (-1, 9_000_000_000), (1, 0), (0, 0)] {
            let answer = keep_alive_answer(&header, LeaseId(id), Seconds(ttl));
            let response = LeaseKeepAliveResponse { header: Some(header), id, ttl };
            assert_eq!(answer, response.encode_to_vec());
        }
    }

    #[test]
    fn an_open_stream_of_renewals_holds_little() {
        // This is a size class of the allocator; the next one is 224 bytes.
        assert!(size_of::<Renewing>() <= 192, "{} bytes", size_of::<Renewing>());
    }

    #[test]
    fn a_stream_counts_each_lease_once_and_one_lease_takes_no_table() {
        let account = accounting::Budget::new(64 << 20).open([127, 0, 0, 1].into());
        let caller = Arc::new(Caller::default());
        let mut renewed = Renewed { caller: Arc::clone(&caller), first: None, others: None };
        for _ in 0..3 {
            renewed.note(LeaseId(7), || panic!("a table for one lease"));
            assert_eq!(caller.leases.load(Relaxed), 1);
        }
        for id in (0..100).chain(0..100) {
            renewed.note(LeaseId(id), || Rc::clone(&account));
        }
        assert_eq!(caller.leases.load(Relaxed), 100);
        let held = renewed.others.as_ref().map_or(0, |others| others.held.bytes());
        assert!(held >= 99 * RENEWED_BYTES, "{held} bytes are charged");
        for id in 0..i64::try_from(2 * RENEWED_MAX).expect("fits") {
            renewed.note(LeaseId(id), || Rc::clone(&account));
        }
        assert_eq!(caller.leases.load(Relaxed), i64::try_from(RENEWED_MAX).expect("fits"));
        drop(renewed);
        assert_eq!(caller.leases.load(Relaxed), 0);
    }
}
