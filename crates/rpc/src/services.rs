//! The services of one shard: calls in, answers out.
//!
//! Reads are answered here, from the newest published state, without any other thread. Writes are checked here, put
//! to the core, and answered when it says so. Nothing here blocks: values that are not in the page cache are fetched by
//! other threads (`values`, `readers`), and the call goes on when they are here.

mod answers;
mod auth;
mod choose;
mod cluster;
mod downgrade;
mod election;
mod ending;
mod heavy;
mod kv;
mod large_value;
mod lease;
mod lock;
mod maintenance;
mod pieces;
mod principal;
mod range;
mod slow;
mod stages;
mod steps;
mod strangers;
mod traced;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use api::error;
use api::etcdserverpb::{AlarmType, ResponseHeader};
use api::{Code, Rpc, Status};
use bytes::Bytes;
use front::{
    Answer, Closing, Exchange, Head, Inbound, LocalBoxFuture, Method, Outbound, ResponseBody, Unary,
};
use numbers::{LeaseId, Revision, Seconds};
use prost::Message;

use self::ending::Ending;
use self::principal::{Asker, Asks, Known, Principal, Unidentified, UserPermit};
use self::stages::{Begun, Confirmed, Told};
use self::strangers::{Place, Strangers};
use crate::audit::{self, Auditor};
use crate::http::{CallForm, FrontCounters};
use crate::watch::{Hub, Requests, Responses};
use replica::core::{ClientRequest, Reply, ReplyBody};
use replica::fold::FoldMap;
use replica::pending::{Pending, PendingReply};
use replica::shared::{Published, Shared};
use replica::stages::RoundTimes;
use storage::values::LogValues;
use telemetry::callers::{CALLERS_MAX, Caller, Connected};
use telemetry::logging::Logger;
use telemetry::metrics::{ClientRequests, Histogram};
use telemetry::stages::{Sampler, Stage};
use telemetry::tracing::{Tracer, Within};

/// The services of one shard.
pub struct Services {
    shared: Arc<Shared>,
    counters: FrontCounters,
    logger: Arc<Logger>,
    closing: Closing,
    /// Tells open streams, of which there may be many, that the server ends. It is told by `closing`.
    ending: Rc<Ending>,
    pending: Rc<Pending>,
    values: Rc<LogValues>,
    hub: Rc<Hub>,
    rpcs: FoldMap<&'static str, Rpc>,
    /// Counters of the client API version met last: one client's calls come in a row.
    client: RefCell<(String, ClientRequests)>,
    range_time: [Histogram; 2],
    request_times: RefCell<FoldMap<(&'static str, bool), Histogram>>,
    /// Address of the client whose call is being handled.
    peer: Cell<SocketAddr>,
    /// True while a step of a call is looked at: the call was counted as a whole.
    is_step: Cell<bool>,
    /// The figures of the clients that this shard has met, so that no call waits for the other shards' lock.
    callers: RefCell<HashMap<IpAddr, Arc<Caller>>>,
    /// The one met last: one client's calls come in a row.
    caller: RefCell<Option<(IpAddr, Arc<Caller>)>>,
    /// True if the time of every call is counted.
    timed: bool,
    /// On whose behalf the call being looked at is made, or why that is not known.
    principal: RefCell<Result<Principal, Status>>,
    /// What is known of users.
    known: RefCell<Known>,
    /// Strangers whose calls wait until this member knows the newest users.
    strangers: Strangers,
    /// Clients that log in, and wait likewise: strangers who make no login do not keep them out.
    logins: Strangers,
    /// Calls with tokens that this member does not know yet. They wait apart from calls without a token, since a user's own may be
    /// among them.
    unknown_tokens: Strangers,
    /// The audit log, if there is one.
    audit: Option<Auditor>,
    began: Cell<Instant>,
    /// The call being looked at.
    rpc: Cell<Rpc>,
    /// Decides which calls are traced, if any are.
    tracer: Option<Arc<Tracer>>,
    /// Picks the calls whose stages go into the histograms.
    sampler: Sampler,
    /// Histograms of the stages that calls of this shard have passed, each at the place of its number.
    stage_times: RefCell<[Option<Histogram>; Stage::ALL.len()]>,
    /// How the call being looked at began.
    begun: Cell<Begun>,
    /// What is told of the traced call whose answer was made last.
    told: Cell<Option<Told>>,
}

/// What is known of the call being looked at, for calls that go on after others were.
#[derive(Clone, Copy)]
struct AtHand {
    rpc: Rpc,
    peer: SocketAddr,
    begun: Begun,
}

/// Number of looks in a row, an election timeout apart, that must find no leader before streams that require one end.
const LEADERLESS_LOOKS: u32 = 3;

/// Interval at which tokens that are no longer valid are forgotten.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Decodes a request as grpc-go would, with its words for one that cannot be.
pub(crate) fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|_| UNPARSEABLE)
}

/// Decodes a request that came on a stream.
pub(crate) fn decode_streamed<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|_| UNPARSEABLE_STREAMED)
}

/// The words of grpc-go and of Go's protobuf for a unary request that cannot be decoded.
const UNPARSEABLE: Status = Status::new(
    Code::Internal,
    "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data",
);
/// grpc-go's error for a message on a stream that cannot be decoded.
const UNPARSEABLE_STREAMED: Status = Status::new(
    Code::Internal,
    "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data",
);
/// grpc-go's error for a stream of answers whose client sends no request.
pub(crate) const NO_REQUEST: Status = Status::new(
    Code::Internal,
    "cardinality violation: received no request message from non-client-streaming RPC",
);

pub(crate) fn whole(message: &impl Message) -> Answer {
    Answer::Whole(message.encode_to_vec().into())
}

impl Services {
    /// Starts the services of a shard, on its thread and inside its loop.
    pub fn start(
        shared: Arc<Shared>,
        counters: FrontCounters,
        logger: Arc<Logger>,
        shard: front::Shard,
    ) -> Rc<Services> {
        let number = shard.id.0;
        let pending = Pending::new(Arc::clone(&shared), u16::try_from(number).unwrap_or(u16::MAX));
        let values = Rc::new(LogValues::fetched_by(&shared.readers, shared.values.clone()));
        let hub = Hub::new(Arc::clone(&shared), number, values.clone());
        let range_time =
            [shared.metrics.server.range_duration_of(false), shared.metrics.server.range_duration_of(true)];
        let client =
            RefCell::new(("unknown".to_owned(), shared.metrics.server.client_requests_of("unknown")));
        let one_in = if shared.limits.times_calls { 1 } else { stages::ONE_IN };
        shared.metrics.server.stage_sampling.set_u64(one_in.into());
        let services = Rc::new(Services {
            rpcs: Rpc::ALL.into_iter().map(|rpc| (rpc.method().path, rpc)).collect(),
            closing: shard.closing,
            ending: Rc::default(),
            counters,
            logger,
            pending: Rc::clone(&pending),
            values,
            hub: Rc::clone(&hub),
            client,
            range_time,
            request_times: RefCell::default(),
            peer: Cell::new(SocketAddr::from(([0, 0, 0, 0], 0))),
            is_step: Cell::new(false),
            callers: RefCell::default(),
            caller: RefCell::default(),
            principal: RefCell::new(Ok(Principal::default())),
            known: RefCell::default(),
            strangers: Strangers::default(),
            logins: Strangers::default(),
            unknown_tokens: Strangers::default(),
            audit: shared.audit.get().map(|(log, reads)| Auditor { log: Arc::clone(log), reads: *reads }),
            timed: shared.limits.times_calls,
            rpc: Cell::new(Rpc::KvRange),
            tracer: shared.tracer.get().cloned(),
            sampler: Sampler::new(one_in, number as u64),
            stage_times: RefCell::default(),
            begun: Cell::new(Begun::unmeasured(shared.clock.now())),
            told: Cell::new(None),
            began: Cell::new(shared.clock.now()),
            shared: Arc::clone(&shared),
        });
        let (flushing, own) = (Rc::clone(&pending), shard.counters);
        tokio::task::spawn_local(poll_fn::<(), _>(move |context| {
            flushing.poll_flush(context, &own);
            Poll::Pending
        }));
        let (ending, mut closing) = (Rc::clone(&services.ending), services.closing.clone());
        tokio::task::spawn_local(async move {
            closing.begun().await;
            ending.begin();
        });
        let (sweeping, clock) = (Rc::clone(&pending), shared.clock.clone());
        tokio::task::spawn_local(async move {
            loop {
                clock.sleep(Pending::SWEEP_INTERVAL).await;
                sweeping.sweep(clock.now());
            }
        });
        let (leading, clock) = (Rc::clone(&hub), shared.clock.clone());
        tokio::task::spawn_local(async move {
            let mut without_leader = 0;
            loop {
                clock.sleep(leading.election_timeout()).await;
                without_leader = if leading.has_leader() { 0 } else { without_leader + 1 };
                if without_leader >= LEADERLESS_LOOKS {
                    leading.leader_lost();
                }
                leading.end_if_quarantined();
                // Sessions may have been withdrawn, which no state tells.
                leading.advance();
            }
        });
        if number == 0 {
            let (credentials, clock) = (Arc::clone(&shared.credentials), shared.clock.clone());
            tokio::task::spawn_local(async move {
                loop {
                    clock.sleep(EXPIRY_INTERVAL).await;
                    credentials.expire();
                }
            });
        }
        let working = Rc::clone(&hub);
        tokio::task::spawn_local(poll_fn::<(), _>(move |context| {
            working.poll_work(context);
            Poll::Pending
        }));
        let mut replies = Vec::new();
        tokio::task::spawn_local(poll_fn::<(), _>(move |context| {
            shared.shards[number].poll(context.waker(), &mut replies);
            for reply in replies.drain(..) {
                pending.answered(reply);
            }
            hub.advance();
            Poll::Pending
        }));
        services
    }

    /// Answers a unary call that did not come through a front, as if it had.
    pub fn call(self: &Rc<Self>, head: Head, message: Bytes) -> Unary {
        front::Service::unary(Rc::clone(self), head, message)
    }

    /// Serves a watch stream that did not come through a front, as if it had; `closed` resolves when the server stops.
    pub fn watch(
        self: &Rc<Self>,
        head: &Head,
        requests: impl Requests,
        responses: impl Responses,
        closed: impl Future<Output = ()> + 'static,
    ) -> LocalBoxFuture<Result<(), Status>> {
        let rpc = numbered(head.method);
        if let Err(status) = self.admit(rpc, head, true) {
            self.audit_refused(rpc, head, None, &status);
            return Box::pin(async move { Err(status) });
        }
        let (services, needs_leader, asked_by) = (Rc::clone(self), head.requires_leader, Asker::of(head));
        Box::pin(async move {
            let caller = services.caller_of(asked_by.peer);
            let permit = Box::new(UserPermit::<false>::of(&services, asked_by).await);
            let closed = Box::pin(closed);
            services.hub.serve(needs_leader, (caller, permit, None), requests, responses, closed).await
        })
    }

    /// Answers one request of a stream of renewals: the lease's TTL, 0 if it is gone.
    pub fn keep_alive(self: &Rc<Self>, head: &Head, id: LeaseId) -> LocalBoxFuture<Result<Seconds, Status>> {
        let rpc = numbered(head.method);
        if let Err(status) = self.admit(rpc, head, true) {
            self.audit_refused(rpc, head, None, &status);
            return Box::pin(async move { Err(status) });
        }
        let principal = match self.identify(head) {
            Ok(principal) => principal,
            Err(_) => return Box::pin(async { Err(error::INVALID_AUTH_TOKEN) }),
        };
        let services = Rc::clone(self);
        Box::pin(async move { services.renew(id, &principal).await })
    }

    /// Counts an expensive call of the call's client.
    ///
    /// # Errors
    ///
    /// The client has made as many as it may in this time.
    fn expensive(&self, principal: &Principal, client: IpAddr) -> Result<(), Status> {
        self.expense(principal, client, |_| 1)
    }

    /// The same for a call that may be expensive: `calls` says as how many it counts at this revision, and is not asked if there
    /// is no bound.
    fn expense(
        &self,
        principal: &Principal,
        client: IpAddr,
        calls: impl FnOnce(Revision) -> u64,
    ) -> Result<(), Status> {
        if !self.is_expense_bounded() {
            return Ok(());
        }
        let calls = calls(self.shared.state.load().view.snapshot().current_revision());
        self.shared.expensive.admit(principal.name(), client, calls, self.shared.clock.now())
    }

    /// Returns true if the call that is looked at may be refused for what its client has asked for before.
    fn is_expense_bounded(&self) -> bool {
        self.shared.expensive.is_bounded() && !self.is_step.get()
    }

    /// What is known of the call being looked at.
    fn at_hand(&self) -> AtHand {
        AtHand { rpc: self.rpc.get(), peer: self.peer.get(), begun: self.begun.get() }
    }

    /// Goes on with a call after others may have been looked at.
    fn go_on(&self, AtHand { rpc, peer, begun }: AtHand) {
        self.rpc.set(rpc);
        self.peer.set(peer);
        self.begun.set(begun);
    }

    /// The member's time.
    pub(crate) fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Resolves after this time.
    pub(crate) fn sleep(&self, time: Duration) -> clock::Sleep {
        self.shared.clock.sleep(time)
    }

    fn state(&self) -> Arc<Published> {
        self.shared.state.load_full()
    }

    fn header(&self, revision: Revision, state: &Published) -> ResponseHeader {
        self.shared.header(revision, state.applied_term)
    }

    fn count_client(&self, head: &Head, stream: bool) -> Result<(), Status> {
        let version = match head.client_api_version() {
            None => "unknown",
            Some(version) => version.ok_or(error::INVALID_CLIENT_API_VERSION)?,
        };
        let mut client = self.client.borrow_mut();
        if client.0 != version {
            *client = (version.to_owned(), self.shared.metrics.server.client_requests_of(version));
        }
        if stream {
            client.1.stream.inc()
        } else {
            client.1.unary.inc()
        }
        Ok(())
    }

    fn count_caller(&self, peer: SocketAddr) {
        let address = peer.ip();
        if let Some((last, caller)) = &*self.caller.borrow()
            && *last == address
        {
            caller.requests.fetch_add(1, Relaxed);
            return;
        }
        let known = self.callers.borrow().get(&address).cloned();
        let caller = known.unwrap_or_else(|| self.meet(peer));
        caller.requests.fetch_add(1, Relaxed);
        *self.caller.borrow_mut() = Some((address, caller));
    }

    /// Keeps a client's figures at hand.
    fn meet(&self, peer: SocketAddr) -> Arc<Caller> {
        let caller = self.caller_of(peer);
        let mut callers = self.callers.borrow_mut();
        if callers.len() >= CALLERS_MAX {
            callers.clear();
        }
        callers.insert(peer.ip(), Arc::clone(&caller));
        *self.caller.borrow_mut() = Some((peer.ip(), Arc::clone(&caller)));
        caller
    }

    /// The figures of the client whose call was counted last, without the lock that all shards share.
    fn caller_just_counted(&self, peer: SocketAddr) -> Arc<Caller> {
        match &*self.caller.borrow() {
            Some((address, caller)) if *address == peer.ip() => Arc::clone(caller),
            _ => self.caller_of(peer),
        }
    }

    fn caller_of(&self, peer: SocketAddr) -> Arc<Caller> {
        self.shared.callers.of(peer.ip())
    }

    /// Checks what holds for every call before its message is decoded. Returns true if the call needs a user.
    ///
    /// # Errors
    ///
    /// etcd's error for a learner, for a call that requires a leader when there is none, and for a member that the
    /// CORRUPT alarm names.
    fn admit(&self, rpc: Rpc, head: &Head, stream: bool) -> Result<bool, Status> {
        self.count_client(head, stream)?;
        self.count_caller(head.peer);
        let state = self.shared.state.load();
        if self.learns(&state) && !is_for_learners(rpc) {
            return Err(error::NOT_SUPPORTED_FOR_LEARNER);
        }
        if head.requires_leader && state.leader == 0 {
            return Err(error::NO_LEADER);
        }
        if state.is_quarantined(self.shared.identity.member_id) && is_about_data(rpc) {
            return Err(error::CORRUPT);
        }
        Ok(state.auth.is_enabled())
    }

    /// Returns true if this member has no vote yet, and so may be far behind.
    fn learns(&self, state: &Published) -> bool {
        state.members.by_id.get(&self.shared.identity.member_id).is_some_and(|member| member.is_learner)
    }

    fn dispatch(self: &Rc<Self>, rpc: Rpc, head: &Head, message: Bytes) -> Result<Unary, Status> {
        match rpc {
            Rpc::KvRange => self.range(message),
            Rpc::KvPut => self.put(message),
            Rpc::KvDeleteRange => self.delete_range(message),
            Rpc::KvTxn => self.txn(message),
            Rpc::KvCompact => self.compact(message),
            Rpc::LeaseGrant => self.lease_grant(message),
            Rpc::LeaseRevoke => self.lease_revoke(message),
            Rpc::LeaseTimeToLive => self.lease_time_to_live(message),
            Rpc::LeaseLeases => self.lease_leases(message),
            Rpc::ClusterMemberList => self.member_list(message),
            Rpc::MaintenanceAlarm => self.alarm(message),
            Rpc::MaintenanceStatus => self.status(message),
            Rpc::MaintenanceDefragment => self.defragment(message),
            Rpc::MaintenanceHash => self.hash(message),
            Rpc::MaintenanceHashKv => self.hash_kv(message),
            Rpc::MaintenanceMoveLeader => self.move_leader(message),
            Rpc::AuthStatus => self.auth_status(message),
            Rpc::Authenticate => self.authenticate(message),
            Rpc::HealthCheck => maintenance::health_check(message),
            Rpc::HealthList => Ok(Unary::Done(Ok(whole(&maintenance::health_list())))),
            Rpc::ClusterMemberAdd => self.member_add(message),
            Rpc::ClusterMemberRemove => self.member_remove(message),
            Rpc::ClusterMemberUpdate => self.member_update(message),
            Rpc::ClusterMemberPromote => self.member_promote(head, message),
            Rpc::MaintenanceDowngrade => self.downgrade(message),
            Rpc::AuthEnable
            | Rpc::AuthDisable
            | Rpc::AuthUserDelete
            | Rpc::AuthUserGrantRole
            | Rpc::AuthUserRevokeRole
            | Rpc::AuthRoleAdd
            | Rpc::AuthRoleDelete
            | Rpc::AuthRoleGrantPermission
            | Rpc::AuthRoleRevokePermission => self.change_auth(rpc, message),
            Rpc::AuthUserAdd => self.user_add(message),
            Rpc::AuthUserGet => self.user_get(message),
            Rpc::AuthUserList => self.user_list(message),
            Rpc::AuthUserChangePassword => self.user_change_password(message),
            Rpc::AuthRoleGet => self.role_get(message),
            Rpc::AuthRoleList => self.role_list(message),
            Rpc::Lock => self.lock(head, message),
            Rpc::LockUnlock => self.unlock(head, message),
            Rpc::ElectionCampaign => self.campaign(head, message),
            Rpc::ElectionProclaim => self.proclaim(head, message),
            Rpc::ElectionLeader => self.elected(head, message),
            Rpc::ElectionResign => self.resign(head, message),
            // The front gives streams to `stream`.
            Rpc::KvRangeStream
            | Rpc::Watch
            | Rpc::LeaseKeepAlive
            | Rpc::MaintenanceSnapshot
            | Rpc::ElectionObserve
            | Rpc::HealthWatch => Err(error::UNKNOWN_METHOD),
        }
    }

    /// Goes on with a call whose token another member gave out, once this one has applied what was committed by then.
    fn dispatch_later(self: Rc<Self>, rpc: Rpc, head: Head, message: Bytes) -> Unary {
        let mut call = self.at_hand();
        Unary::Later(Box::pin(async move {
            let asked = self.now();
            let principal = self.identified(&head).await;
            call.begun.auth = self.now().saturating_duration_since(asked);
            self.go_on(call);
            match self.dispatch_for(rpc, &head, principal, message) {
                Unary::Done(answer) => answer,
                Unary::Later(answer) => answer.await,
            }
        }))
    }

    /// Carries out a call on behalf of this user, and has it in the audit log, if there is one.
    fn dispatch_for(
        self: &Rc<Self>,
        rpc: Rpc,
        head: &Head,
        principal: Result<Principal, Status>,
        message: Bytes,
    ) -> Unary {
        let begin = |audit| self.begin_audit(audit, rpc, head, &principal, Some(&message));
        let call = self.audit.as_ref().map(begin);
        let sample = self.begin_sample(rpc, head, principal.as_ref().map_or("", Principal::name), &message);
        // With every call, whoever made the one before.
        *self.principal.borrow_mut() = principal;
        let answer = self.dispatch(rpc, head, message).unwrap_or_else(|status| Unary::Done(Err(status)));
        let answer = match call {
            None => answer,
            Some(call) => once_answered(answer, move |answer| call.done(answer)),
        };
        let answer = match sample {
            None => answer,
            Some(sample) => self.sampled(sample, answer),
        };
        if steps::has_steps(rpc) { steps::told(answer) } else { answer }
    }

    /// A call that the audit log is to tell of, by whoever makes it.
    fn begin_audit(
        &self,
        audit: &Auditor,
        rpc: Rpc,
        asker: &impl Asks,
        principal: &Result<Principal, Status>,
        message: Option<&Bytes>,
    ) -> audit::Call {
        let who = principal::who(asker, principal, self.shared.state.load().auth.is_enabled());
        audit.begin(rpc, who, message, self.shared.clock.wall())
    }

    /// The same for a stream, whose request is not known yet.
    fn begin_stream_audit(
        &self,
        rpc: Rpc,
        asker: &impl Asks,
        principal: &Result<Principal, Status>,
    ) -> Option<audit::Call> {
        let audit = self.audit.as_ref()?;
        Some(self.begin_audit(audit, rpc, asker, principal, None))
    }

    /// Has a call that is not taken at all in the audit log, if there is one.
    fn audit_refused(&self, rpc: Rpc, head: &Head, message: Option<&Bytes>, status: &Status) {
        let Some(audit) = &self.audit else { return };
        // Who it is is not waited for.
        let principal = self.identify(head).map_err(|_| status.clone());
        let call = self.begin_audit(audit, rpc, head, &principal, message);
        call.ended(&Err(status.clone()));
    }

    /// Asks the core and answers with what `answer` makes of the reply. Slow ones are logged.
    fn ask(
        self: &Rc<Self>,
        ask: impl FnOnce(replica::core::RequestId) -> ClientRequest,
        what: &'static str,
        answer: impl FnOnce(&Services, ReplyBody, ResponseHeader) -> Result<Answer, Status> + 'static,
    ) -> Result<Unary, Status> {
        self.ask_then(ask, what, |services, body, header| Ok(Unary::Done(answer(services, body, header))))
    }

    /// Asks the core as [`Services::ask`] does, for answers that take a while to make.
    fn ask_then(
        self: &Rc<Self>,
        ask: impl FnOnce(replica::core::RequestId) -> ClientRequest,
        what: &'static str,
        answer: impl FnOnce(&Services, ReplyBody, ResponseHeader) -> Result<Unary, Status> + 'static,
    ) -> Result<Unary, Status> {
        let began = self.shared.clock.now();
        let pending_reply: PendingReply = self.pending.ask_at(began, ask)?;
        let services = Rc::clone(self);
        let AtHand { rpc, peer, begun } = self.at_hand();
        Ok(Unary::Later(Box::pin(async move {
            let reply = match pending_reply.await {
                Ok(reply) => reply,
                Err(status) => {
                    services.gave_up((rpc, peer), &begun);
                    return Err(status);
                }
            };
            let revision = reply.revision;
            let header = services.shared.header(reply.revision, reply.raft_term);
            let answered = match answer(&services, reply.body, header) {
                Ok(Unary::Done(answered)) => answered,
                Ok(Unary::Later(answered)) => answered.await,
                Err(status) => Err(status),
            };
            let now = services.shared.clock.now();
            services.took(what, answered.is_ok(), now.saturating_duration_since(began));
            let is_slow = now.saturating_duration_since(begun.arrived) > services.shared.limits.slow_request;
            if is_slow || begun.is_measured() {
                services.look_at_write((rpc, peer), &begun, (began, now), revision, &answered);
            }
            answered
        })))
    }

    /// Counts the time of a call with `--metrics extensive`, whether it is answered now or later.
    fn timed(self: &Rc<Self>, rpc: Rpc, answer: Unary) -> Unary {
        let (services, began) = (Rc::clone(self), self.began.get());
        once_answered(answer, move |_| {
            if let Some(method) = services.shared.metrics.grpc.methods().get(rpc as usize) {
                method.took(services.shared.clock.now().saturating_duration_since(began));
            }
        })
    }

    /// Counts the time of a request by etcd's name for it.
    pub(crate) fn took(&self, what: &'static str, success: bool, took: Duration) {
        let mut times = self.request_times.borrow_mut();
        match times.get(&(what, success)) {
            Some(time) => time.observe_seconds(took),
            None => {
                let time = self.shared.metrics.server.request_duration_of(what, success);
                time.observe_seconds(took);
                times.insert((what, success), time);
            }
        }
    }

    /// Answers what reads state: at once if it may be stale or this member's newest state is known to be the newest
    /// there is; else after the cluster's leader has confirmed how far one has to have come.
    fn read(
        self: &Rc<Self>,
        serializable: bool,
        answer: impl FnOnce(&Rc<Services>) -> Result<Unary, Status> + 'static,
    ) -> Result<Unary, Status> {
        let (began, call) = (self.now(), self.at_hand());
        if serializable || self.shared.state.load().reads_local {
            let answer = answer(self)?;
            return Ok(self.looked_at_read(call, began, None, answer));
        }
        self.read_confirmed(move |services, confirmed| {
            let answer = answer(services)?;
            Ok(services.looked_at_read(call, began, Some(confirmed), answer))
        })
    }

    /// Looks at a read other than a range once it is answered; `began` is when it went to the core, or to the state.
    fn looked_at_read(
        self: &Rc<Self>,
        call: AtHand,
        began: Instant,
        confirmed: Option<Confirmed>,
        answer: Unary,
    ) -> Unary {
        let services = Rc::clone(self);
        once_answered(answer, move |answer| services.look_at_read(&call, began, confirmed.as_ref(), answer))
    }

    /// Answers the call being looked at after the cluster's leader has confirmed how far one has to have come.
    fn read_confirmed(
        self: &Rc<Self>,
        answer: impl FnOnce(&Rc<Services>, Confirmed) -> Result<Unary, Status> + 'static,
    ) -> Result<Unary, Status> {
        let place = self.place_to_wait()?;
        self.confirmed_in(place, answer)
    }

    /// Does what [`Services::read_confirmed`] does for whoever has this place, or needs none.
    fn confirmed_in(
        self: &Rc<Self>,
        place: Option<Place>,
        answer: impl FnOnce(&Rc<Services>, Confirmed) -> Result<Unary, Status> + 'static,
    ) -> Result<Unary, Status> {
        let asked = self.shared.clock.now();
        let pending_reply = self.pending.ask_at(asked, ClientRequest::Read)?;
        let (services, call) = (Rc::clone(self), self.at_hand());
        Ok(Unary::Later(Box::pin(async move {
            let round = confirmed(pending_reply.await?)?;
            drop(place);
            let confirmed = Confirmed { asked, round, went_on: services.shared.clock.now() };
            services.go_on(call);
            match answer(&services, confirmed)? {
                Unary::Done(answer) => answer,
                Unary::Later(answer) => answer.await,
            }
        })))
    }

    /// Waits until the newest published state is new enough for a linearizable read; for streams. A serializable read
    /// does not wait.
    async fn wait_readable(&self, serializable: bool) -> Result<(), Status> {
        if serializable || self.shared.state.load().reads_local {
            return Ok(());
        }
        confirmed(self.pending.ask(ClientRequest::Read)?.await?).map(|_| ())
    }

    /// Does the same on behalf of this user, or of a stranger, who takes a place meanwhile.
    async fn wait_readable_for(&self, principal: &Principal, serializable: bool) -> Result<(), Status> {
        let _place = if serializable { None } else { self.place_of(principal)? };
        self.wait_readable(serializable).await
    }

    /// Refuses a write of `cost` bytes if the NOSPACE alarm is raised, or if the write would exceed the quota; then it
    /// raises the alarm.
    fn check_quota(&self, cost: u64) -> Result<(), Status> {
        let state = self.shared.state.load();
        // In a cluster this member may not have heard yet that the alarm was disarmed; applying a write tells.
        if state.reads_local && state.alarms.any(AlarmType::Nospace as i32) {
            // With both alarms raised, etcd's writes fail for the other one.
            let corrupt = state.alarms.any(AlarmType::Corrupt as i32);
            return Err(if corrupt { error::CORRUPT } else { error::NO_SPACE });
        }
        if let Some(quota) = self.shared.limits.quota_bytes
            && state.in_use_bytes + cost > quota
        {
            self.pending.tell(ClientRequest::RaiseNoSpace);
            return Err(error::NO_SPACE);
        }
        Ok(())
    }
}

/// Has `note` look at the answer, whether it is there now or later. A call that is given up is not noted.
fn once_answered(answer: Unary, note: impl FnOnce(&Result<Answer, Status>) + 'static) -> Unary {
    match answer {
        Unary::Done(answer) => {
            note(&answer);
            Unary::Done(answer)
        }
        Unary::Later(answer) => Unary::Later(Box::pin(async move {
            let answer = answer.await;
            note(&answer);
            answer
        })),
    }
}

/// The calls that a member without a vote answers. Of ranges it answers the serializable ones.
fn is_for_learners(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::MaintenanceStatus
            | Rpc::MaintenanceSnapshot
            | Rpc::KvRange
            | Rpc::HealthCheck
            | Rpc::HealthWatch
            | Rpc::HealthList
    )
}

/// The calls that a member does not answer while the CORRUPT alarm names it: etcd's goes on answering reads, from a
/// state that is known to be wrong (COMPAT-20). Leases are renewed at the leader, and what an operator needs to look
/// and to repair goes on. Writes are refused when they are applied, at all members at the same entry, so that one behind
/// a disarming is not refused by a member that has not heard of it yet.
fn is_about_data(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::KvRange
            | Rpc::KvRangeStream
            | Rpc::KvTxn
            | Rpc::Watch
            | Rpc::Lock
            | Rpc::LockUnlock
            | Rpc::ElectionCampaign
            | Rpc::ElectionProclaim
            | Rpc::ElectionLeader
            | Rpc::ElectionObserve
            | Rpc::ElectionResign
    )
}

/// Error for a call that was carried out and may have written, but whose client takes no answers (COMPAT-62).
const CARRIED_OUT: Status = Status::new(
    Code::Unavailable,
    "mainstay: the request was carried out, but cannot be answered: its client takes no answers",
);

/// Returns the error that replaces an answer for which there is no space. Clients take `too many requests` for a refusal,
/// so only calls that change nothing get it.
fn unanswered(rpc: Rpc) -> Status {
    match rpc {
        Rpc::KvRange
        | Rpc::LeaseTimeToLive
        | Rpc::LeaseLeases
        | Rpc::ClusterMemberList
        | Rpc::MaintenanceStatus
        | Rpc::MaintenanceHash
        | Rpc::MaintenanceHashKv => error::TOO_MANY_REQUESTS,
        _ => CARRIED_OUT,
    }
}

/// Returns the RPC to which [`front::Service::method`] gave this number.
///
/// # Panics
///
/// Panics if there is none: the front passes on only numbers that it was given.
#[inline]
fn numbered(method: u16) -> Rpc {
    Rpc::ALL[usize::from(method)]
}

/// Returns the round that confirmed a linearizable read, if it took one.
fn confirmed(reply: Reply) -> Result<Option<RoundTimes>, Status> {
    match reply.body {
        ReplyBody::Readable(round) => Ok(round),
        ReplyBody::Outcome(Err(status), _) => Err(status),
        _ => Err(error::STOPPED),
    }
}

impl Services {
    /// Serves a stream that was admitted.
    fn stream_of(
        self: Rc<Self>,
        rpc: Rpc,
        head: Head,
        inbound: Inbound,
        outbound: Outbound,
        spans: Option<Within>,
    ) -> LocalBoxFuture<Result<(), Status>> {
        let services = self;
        match rpc {
            Rpc::Watch => {
                let ended = services.ending.begun();
                let caller = services.caller_of(head.peer);
                #[expect(clippy::async_yields_async, reason = "it is awaited once this future is dropped")]
                let begins: LocalBoxFuture<_> = Box::pin(async move {
                    let permit = Box::new(UserPermit::<false>::of(&services, Asker::of(&head)).await);
                    services.hub.stream(&head, (caller, permit, spans), inbound, outbound, ended)
                });
                Box::pin(Watching::Begins(begins))
            }
            Rpc::LeaseKeepAlive => {
                let caller = services.caller_just_counted(head.peer);
                Box::pin(services.lease_keep_alive(caller, &head, inbound, outbound, spans))
            }
            Rpc::KvRangeStream => Box::pin(async move {
                let principal = services.identified(&head).await;
                let mut call = services.begin_stream_audit(rpc, &head, &principal);
                let asked_by = (head.peer.ip(), call.as_mut());
                let result = services.range_stream(principal, asked_by, inbound, outbound, spans).await;
                call.into_iter().for_each(|call| call.ended(&result));
                result
            }),
            Rpc::MaintenanceSnapshot => Box::pin(async move {
                let principal = services.identified(&head).await;
                let call = services.begin_stream_audit(rpc, &head, &principal);
                let result = match principal {
                    Ok(principal) => services.snapshot(principal, head.peer.ip(), inbound, outbound).await,
                    Err(status) => Err(status),
                };
                call.into_iter().for_each(|call| call.ended(&result));
                result
            }),
            Rpc::HealthWatch => Box::pin(services.health_watch(inbound, outbound)),
            Rpc::ElectionObserve => Box::pin(async move {
                let principal = services.identified(&head).await;
                let call = services.begin_stream_audit(rpc, &head, &principal);
                services.observe(&head, principal, call, inbound, outbound).await
            }),
            _ => Box::pin(async { Err(error::UNKNOWN_METHOD) }),
        }
    }
}

/// A stream of watches. Streams are open for days: what was only needed to begin one, its head above all, goes before it is served.
/// Written by hand, since an `async` block has room for both futures at once.
enum Watching<F> {
    Begins(LocalBoxFuture<F>),
    Served(F),
}

impl<F: Future<Output = Result<(), Status>> + Unpin> Future for Watching<F> {
    type Output = Result<(), Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if let Watching::Begins(begins) = &mut *self {
            let served = ready!(begins.as_mut().poll(cx));
            *self = Watching::Served(served);
        }
        match &mut *self {
            Watching::Served(served) => Pin::new(served).poll(cx),
            Watching::Begins(_) => unreachable!("it is served by now"),
        }
    }
}

impl front::Service for Services {
    fn method(&self, path: &str) -> Option<Method> {
        self.rpcs.get(path).map(|rpc| Method::from(*rpc))
    }

    fn has_service(&self, name: &str) -> bool {
        api::METHODS.iter().any(|method| method.service == name)
    }

    fn may_wait(&self, method: u16) -> bool {
        method == Rpc::Authenticate as u16
    }

    fn page_method(&self, path: &str) -> Option<u16> {
        if !self.shared.gateway {
            return None;
        }
        let rpc = crate::http::gateway_rpc(path).or_else(|| self.rpcs.get(path).copied())?;
        Some(rpc as u16)
    }

    fn connected(&self, from: &front::Origin) -> Option<Box<dyn Any>> {
        // Anew: its figures may have made way, and begun again, since this shard met it.
        Some(Box::new((Connected::new(self.meet(from.peer)), self.known.borrow().connected(from.peer))))
    }

    fn unary(self: Rc<Self>, head: Head, message: Bytes) -> Unary {
        let rpc = numbered(head.method);
        let begin = |tracer| traced::Trace::begin(&self, tracer, rpc, &head, Some(&message));
        let trace = self.tracer.as_ref().and_then(begin);
        let (is_sample, is_traced) = (self.sampler.takes(), trace.is_some());
        let mut begun = Begun { is_sample, is_traced, ..Begun::unmeasured(head.arrived) };
        let needs_user = match self.admit(rpc, &head, false) {
            Ok(needs_user) => needs_user,
            Err(status) => {
                self.audit_refused(rpc, &head, Some(&message), &status);
                if let Some(trace) = trace {
                    trace.end(Err(&status), None);
                }
                return Unary::Done(Err(status));
            }
        };
        self.rpc.set(rpc);
        if self.timed {
            self.began.set(self.shared.clock.now());
        }
        self.peer.set(head.peer);
        let identified = match needs_user {
            false => Ok(Principal::default()),
            true if begun.is_measured() => {
                let asked = self.now();
                let identified = self.identify(&head);
                begun.auth = self.now().saturating_duration_since(asked);
                identified
            }
            true => self.identify(&head),
        };
        self.begun.set(begun);
        let principal = match identified {
            Ok(principal) => Some(Ok(principal)),
            // Some calls need no user, and others are refused for another reason first.
            Err(Unidentified::Refused(status)) => Some(Err(status)),
            // These need no user, and are answered without one.
            Err(Unidentified::NotYet | Unidentified::Unverified)
                if matches!(rpc, Rpc::Authenticate | Rpc::HealthCheck | Rpc::HealthList) =>
            {
                Some(Ok(Principal::default()))
            }
            Err(Unidentified::NotYet | Unidentified::Unverified) => None,
        };
        let answer = match principal {
            Some(principal) => self.dispatch_for(rpc, &head, principal, message),
            None => Rc::clone(&self).dispatch_later(rpc, head, message),
        };
        let answer = if self.timed { self.timed(rpc, answer) } else { answer };
        match trace {
            None => answer,
            Some(trace) => self.traced(trace, answer),
        }
    }

    fn unanswered(&self, method: u16) -> Status {
        unanswered(numbered(method))
    }

    fn stream(
        self: Rc<Self>,
        head: Head,
        inbound: Inbound,
        outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>> {
        let services = self;
        let rpc = numbered(head.method);
        let begin = |tracer| traced::Trace::begin(&services, tracer, rpc, &head, None);
        let trace = services.tracer.as_ref().and_then(begin);
        if let Err(status) = services.admit(rpc, &head, true) {
            services.audit_refused(rpc, &head, None, &status);
            if let Some(trace) = trace {
                trace.end(Err(&status), None);
            }
            return Box::pin(async move { Err(status) });
        }
        let spans = trace.as_ref().map(|trace| trace.within(&services));
        let stream = services.stream_of(rpc, head, inbound, outbound, spans);
        match trace {
            None => stream,
            Some(trace) => Services::traced_stream(trace, stream),
        }
    }

    fn exchange(self: Rc<Self>, mut exchange: Exchange) -> LocalBoxFuture<http::Response<ResponseBody>> {
        Box::pin(async move {
            let long_turn = crate::http::is_long(exchange.head.uri.path()).then(|| exchange.long_turn());
            let mut asked = http::Request::from_parts(exchange.head, Bytes::new());
            asked.extensions_mut().insert(exchange.origin.peer);
            asked.extensions_mut().insert(exchange.origin.clone());
            match crate::http::for_call(&self.shared, &asked) {
                Some(Err(refusal)) => refusal.map(ResponseBody::from),
                Some(Ok(form)) => {
                    let mut cross_origin = http::HeaderMap::new();
                    crate::http::allow_origin(&self.shared, &asked, &mut cross_origin);
                    exchange.head = asked.into_parts().0;
                    let mut answer = match form {
                        CallForm::Json(path) => crate::gateway::answer(self, &path, exchange).await,
                        CallForm::GrpcWeb => crate::grpc_web::answer(self, exchange).await,
                    };
                    answer.headers_mut().extend(cross_origin);
                    answer
                }
                None => {
                    *asked.body_mut() = match exchange.body.gather().await {
                        Ok(body) => body,
                        Err(status) => return crate::http::of_status(status).map(ResponseBody::from),
                    };
                    if let Some(long_turn) = long_turn {
                        long_turn.await;
                    }
                    self.http(asked).await.map(ResponseBody::from)
                }
            }
        })
    }

    fn http(self: Rc<Self>, mut request: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>> {
        Box::pin(async move {
            crate::http::confirm(&self.shared, &mut request).await;
            if let Some(token) = crate::http::token_of_root(&request).cloned() {
                let peer = request.extensions().get::<SocketAddr>().copied();
                if self.is_roots(token, peer).await {
                    crate::http::by_root(&mut request);
                }
            }
            crate::http::collect(&self.shared, &mut request).await;
            crate::http::answer(&self.shared, &self.values, &self.counters, &self.logger, &request)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_write_is_said_to_have_been_refused_for_want_of_room_for_its_answer() {
        let writes = [
            Rpc::KvPut,
            Rpc::KvDeleteRange,
            Rpc::KvTxn,
            Rpc::KvCompact,
            Rpc::LeaseGrant,
            Rpc::ClusterMemberAdd,
        ];
        for rpc in writes {
            let said = unanswered(rpc);
            assert!(
                said.code == Code::Unavailable && said.message.contains("was carried out"),
                "{rpc:?}: {said:?}"
            );
        }
        assert_eq!(unanswered(Rpc::KvRange), error::TOO_MANY_REQUESTS);
    }
}
