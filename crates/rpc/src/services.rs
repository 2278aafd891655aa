//! Answers the gRPC calls that arrive at one shard (a server thread with its own event loop).
//!
//! Reads are answered on this thread, from the newest published state. Writes are checked here, sent to the
//! core, and answered after the core replies. Nothing here blocks the thread: values that are not in the page
//! cache are fetched by other threads (`values`, `readers`), and the call continues when they arrive.

mod answers;
mod auth;
mod call;
mod choose;
mod cluster;
mod connections;
mod dispatch;
mod downgrade;
mod election;
mod ending;
mod freshness;
mod heavy;
mod kv;
mod large_range;
mod large_value;
mod lease;
mod lock;
mod maintenance;
mod pieces;
mod preload;
mod principal;
mod range;
mod range_stream;
mod slow;
mod stages;
mod steps;
mod strangers;
mod traced;
mod walk;

pub(crate) use walk::index_unreadable;

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use api::error;
use api::etcdserverpb::{AlarmType, ResponseHeader};
use api::{Code, Rpc, Status};
use bytes::Bytes;
use front::{Answer, Closing, Head, LocalBoxFuture, Unary};
use numbers::{LeaseId, Revision, Seconds};
use prost::Message;

use self::ending::Ending;
use self::principal::{Asker, Asks, Known, Principal, UserPermit};
use self::strangers::Strangers;
use crate::audit::{self, Auditor};
use crate::http::FrontCounters;
use crate::watch::{Hub, Requests, Responses};
use replica::core::{ClientRequest, ReplyBody};
use replica::fold::FoldMap;
use replica::pending::{Pending, PendingReply};
use replica::shared::{Published, Shared};
use replica::stages::RoundTimes;
use storage::values::LogValues;
use telemetry::callers::{CALLERS_MAX, Caller};
use telemetry::logging::Logger;
use telemetry::metrics::{ClientRequests, Histogram};
use telemetry::stages::{Sampler, Stage};
use telemetry::tracing::Tracer;

/// The services of one shard, which run on its thread.
pub struct Services {
    shared: Arc<Shared>,
    counters: FrontCounters,
    logger: Arc<Logger>,
    closing: Closing,
    /// Takes orders to drain connections.
    drains: front::Drains,
    /// Notifies all open streams when the server shuts down. Triggered by `closing`.
    ending: Rc<Ending>,
    pending: Rc<Pending>,
    values: Rc<LogValues>,
    hub: Rc<Hub>,
    rpcs: FoldMap<&'static str, Rpc>,
    /// Counters of the client API version that was seen last, cached because calls of one client often follow
    /// each other.
    client: RefCell<(String, ClientRequests)>,
    range_time: [Histogram; 2],
    request_times: RefCell<FoldMap<(&'static str, bool), Histogram>>,
    /// Statistics of the clients that this shard has seen, cached so that calls do not wait for the lock that
    /// all shards share.
    callers: RefCell<HashMap<IpAddr, Arc<Caller>>>,
    /// Statistics of the client that was seen last, cached because calls of one client often follow each
    /// other.
    caller: RefCell<Option<(IpAddr, Arc<Caller>)>>,
    /// True if the time of every call is added to the metrics of its method, which `--metrics extensive`
    /// enables.
    timed: bool,
    /// Cached tokens of connections and cached rights of users.
    known: RefCell<Known>,
    /// Slots for calls without a user, which they hold while they wait until this member is confirmed to be
    /// up to date.
    strangers: Strangers,
    /// Slots for logins, which they hold while they wait for the same confirmation. Logins have their own
    /// slots, so that other calls without a user cannot block them.
    logins: Strangers,
    /// Slots for calls whose token this member does not know yet. They are separate from the slots for calls
    /// without a token, because an unknown token may be valid.
    unknown_tokens: Strangers,
    /// The audit log, if it is enabled.
    audit: Option<Auditor>,
    /// Decides which calls are traced, if tracing is enabled.
    tracer: Option<Arc<Tracer>>,
    /// Selects the calls whose stages are added to the histograms.
    sampler: Sampler,
    /// Histograms of the stages of this shard's calls, indexed by stage number.
    stage_times: RefCell<[Option<Histogram>; Stage::ALL.len()]>,
}

/// Number of consecutive checks that must find no leader before streams that require a leader are ended. One
/// check is made per election timeout.
const LEADERLESS_LOOKS: u32 = 3;

/// Interval at which expired tokens are removed.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Decodes a unary request. Returns grpc-go's error if that fails.
pub(crate) fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|_| UNPARSEABLE)
}

/// Decodes a request that arrived on a stream. Returns grpc-go's error if that fails.
pub(crate) fn decode_streamed<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|_| UNPARSEABLE_STREAMED)
}

/// Error of grpc-go and Go's protobuf for a unary request that cannot be decoded.
const UNPARSEABLE: Status = Status::new(
    Code::Internal,
    "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data",
);
/// grpc-go's error for a message on a stream that cannot be decoded.
const UNPARSEABLE_STREAMED: Status = Status::new(
    Code::Internal,
    "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data",
);
/// grpc-go's error for a server stream whose client sends no request.
pub(crate) const NO_REQUEST: Status = Status::new(
    Code::Internal,
    "cardinality violation: received no request message from non-client-streaming RPC",
);

pub(crate) fn whole(message: &impl Message) -> Answer {
    Answer::Whole(message.encode_to_vec().into())
}

impl Services {
    /// Starts the services of a shard, on the shard's thread and inside its event loop.
    pub fn start(
        shared: Arc<Shared>,
        counters: FrontCounters,
        logger: Arc<Logger>,
        shard: front::Shard,
    ) -> Rc<Services> {
        let number = shard.id.0;
        let pending = Pending::new(Arc::clone(&shared), u16::try_from(number).unwrap_or(u16::MAX));
        let values = Rc::new(LogValues::fetched_by(&shared.data.readers, shared.data.values.clone()));
        let hub = Hub::new(Arc::clone(&shared), number, values.clone());
        let range_time = [
            shared.diagnostics.metrics.server.range_duration_of(false),
            shared.diagnostics.metrics.server.range_duration_of(true),
        ];
        let client = RefCell::new((
            "unknown".to_owned(),
            shared.diagnostics.metrics.server.client_requests_of("unknown"),
        ));
        let one_in = if shared.member.limits.times_calls { 1 } else { stages::ONE_IN };
        shared.diagnostics.metrics.server.stage_sampling.set_u64(one_in.into());
        let services = Rc::new(Services {
            rpcs: Rpc::ALL.into_iter().map(|rpc| (rpc.method().path, rpc)).collect(),
            closing: shard.closing,
            drains: shard.drains,
            ending: Rc::default(),
            counters,
            logger,
            pending: Rc::clone(&pending),
            values,
            hub: Rc::clone(&hub),
            client,
            range_time,
            request_times: RefCell::default(),
            callers: RefCell::default(),
            caller: RefCell::default(),
            known: RefCell::default(),
            strangers: Strangers::default(),
            logins: Strangers::default(),
            unknown_tokens: Strangers::default(),
            audit: shared
                .diagnostics
                .audit
                .get()
                .map(|(log, reads)| Auditor { log: Arc::clone(log), reads: *reads }),
            timed: shared.member.limits.times_calls,
            tracer: shared.diagnostics.tracer.get().cloned(),
            sampler: Sampler::new(one_in, number as u64),
            stage_times: RefCell::default(),
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
        let (sweeping, clock) = (Rc::clone(&pending), shared.member.clock.clone());
        tokio::task::spawn_local(async move {
            loop {
                clock.sleep(Pending::SWEEP_INTERVAL).await;
                sweeping.sweep(clock.now());
            }
        });
        let (leading, clock) = (Rc::clone(&hub), shared.member.clock.clone());
        tokio::task::spawn_local(async move {
            let mut without_leader = 0;
            loop {
                clock.sleep(leading.election_timeout()).await;
                without_leader = if leading.has_leader() { 0 } else { without_leader + 1 };
                if without_leader >= LEADERLESS_LOOKS {
                    leading.leader_lost();
                }
                leading.end_if_quarantined();
                // The session of a token may have been withdrawn without a new published state, so the
                // watches are checked here too.
                leading.advance();
            }
        });
        if number == 0 {
            let (credentials, clock) = (Arc::clone(&shared.clients.credentials), shared.member.clock.clone());
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
            shared.core.outboxes[number].poll(context.waker(), &mut replies);
            for reply in replies.drain(..) {
                pending.answered(reply);
            }
            hub.advance();
            Poll::Pending
        }));
        services
    }

    /// Answers a unary call that was made inside this process and not received by the `front` crate, as
    /// [`front::Service::unary`] would. The handler is polled once before this function returns.
    pub fn call(self: &Rc<Self>, head: Head, message: Bytes) -> Unary {
        let mut answer = front::Service::unary(Rc::clone(self), head, message);
        if let Unary::Later(later) = &mut answer
            && let Poll::Ready(done) = later.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            answer = Unary::Done(done);
        }
        answer
    }

    /// Serves a watch stream that was opened inside this process and not received by the `front` crate, as
    /// [`front::Service::stream`] would. `closed` resolves when the server stops.
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

    /// Answers one request of a keep-alive stream: returns the TTL of the lease, or 0 if the lease does not
    /// exist.
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

    /// Counts one expensive call against the rate limits of this user and this client address.
    ///
    /// # Errors
    ///
    /// Returns an error if the rate limit on expensive calls is exceeded.
    fn expensive(&self, principal: &Principal, client: IpAddr) -> Result<(), Status> {
        self.expense(principal, client, |_| 1)
    }

    /// Counts a call as several expensive calls: the number that `calls` returns for the current revision.
    /// `calls` runs only if a limit is configured.
    ///
    /// # Errors
    ///
    /// See [`Services::expensive`].
    fn expense(
        &self,
        principal: &Principal,
        client: IpAddr,
        calls: impl FnOnce(Revision) -> u64,
    ) -> Result<(), Status> {
        if !self.shared.clients.expensive.is_bounded() {
            return Ok(());
        }
        let calls = calls(self.shared.state.load().view.snapshot().current_revision());
        self.shared.clients.expensive.admit(principal.name(), client, calls, self.now())
    }

    /// Returns the time of the member's clock.
    pub(crate) fn now(&self) -> Instant {
        self.shared.member.clock.now()
    }

    /// Returns a future that resolves after `time`.
    pub(crate) fn sleep(&self, time: Duration) -> clock::Sleep {
        self.shared.member.clock.sleep(time)
    }

    fn state(&self) -> Arc<Published> {
        self.shared.state.load_full()
    }

    fn header(&self, revision: Revision, state: &Published) -> ResponseHeader {
        self.shared.member.header(revision, state.applied_term)
    }

    /// Returns the response header for the newest state.
    fn newest_header(&self) -> ResponseHeader {
        let state = self.shared.state.load();
        self.header(state.view.snapshot().current_revision(), &state)
    }

    fn count_client(&self, head: &Head, stream: bool) -> Result<(), Status> {
        let version = match head.client_api_version() {
            None => "unknown",
            Some(version) => version.ok_or(error::INVALID_CLIENT_API_VERSION)?,
        };
        let mut client = self.client.borrow_mut();
        if client.0 != version {
            *client =
                (version.to_owned(), self.shared.diagnostics.metrics.server.client_requests_of(version));
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

    /// Returns the statistics of a client from the table that all shards share, and caches them on this
    /// shard.
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

    /// Returns the statistics of the client whose call was counted last, usually without the lock that all
    /// shards share.
    fn caller_just_counted(&self, peer: SocketAddr) -> Arc<Caller> {
        match &*self.caller.borrow() {
            Some((address, caller)) if *address == peer.ip() => Arc::clone(caller),
            _ => self.caller_of(peer),
        }
    }

    fn caller_of(&self, peer: SocketAddr) -> Arc<Caller> {
        self.shared.diagnostics.callers.of(peer.ip())
    }

    /// Makes the checks that apply to every call, before its message is decoded. Returns true if
    /// authentication is enabled.
    ///
    /// # Errors
    ///
    /// Returns etcd's error if the client's API version is invalid, if this member is a learner or a witness and
    /// does not answer the method, if the call requires a leader and there is none, or if the CORRUPT alarm names this
    /// member and the method is about data.
    fn admit(&self, rpc: Rpc, head: &Head, stream: bool) -> Result<bool, Status> {
        self.count_client(head, stream)?;
        self.count_caller(head.peer);
        let state = self.shared.state.load();
        if self.shared.member.is_witness && !is_for_witnesses(rpc) {
            return Err(error::NOT_SUPPORTED_FOR_WITNESS);
        }
        if self.learns(&state) && !is_for_learners(rpc) {
            return Err(error::NOT_SUPPORTED_FOR_LEARNER);
        }
        if head.requires_leader && state.leader == 0 {
            return Err(error::NO_LEADER);
        }
        if state.is_quarantined(self.shared.member.identity.member_id) && is_about_data(rpc) {
            return Err(error::CORRUPT);
        }
        Ok(state.auth.is_enabled())
    }

    /// Returns true if this member is a learner, which has no vote and may lag far behind.
    fn learns(&self, state: &Published) -> bool {
        state
            .members
            .by_id
            .get(&self.shared.member.identity.member_id)
            .is_some_and(|member| member.is_learner)
    }

    /// Starts the record of a call in the audit log.
    fn begin_audit(
        &self,
        audit: &Auditor,
        rpc: Rpc,
        asker: &impl Asks,
        principal: &Result<Principal, Status>,
        message: Option<&Bytes>,
    ) -> audit::Call {
        let who = principal::who(asker, principal, self.shared.state.load().auth.is_enabled());
        audit.begin(rpc, who, message, self.shared.member.clock.wall())
    }

    /// Starts the record of a stream in the audit log, if there is one. The request of the stream is not
    /// known yet.
    fn begin_stream_audit(
        &self,
        rpc: Rpc,
        asker: &impl Asks,
        principal: &Result<Principal, Status>,
    ) -> Option<audit::Call> {
        let audit = self.audit.as_ref()?;
        Some(self.begin_audit(audit, rpc, asker, principal, None))
    }

    /// Writes a call that was not admitted to the audit log, if there is one.
    fn audit_refused(&self, rpc: Rpc, head: &Head, message: Option<&Bytes>, status: &Status) {
        let Some(audit) = &self.audit else { return };
        // The call is already refused, so its record is written without waiting for a token to be verified.
        // If the caller cannot be identified immediately, the record contains no user.
        let principal = self.identify(head).map_err(|_| status.clone());
        let call = self.begin_audit(audit, rpc, head, &principal, message);
        call.ended(&Err(status.clone()));
    }

    /// Adds the time since `admitted`, when the call passed [`Services::admit`], to the metrics of the call's
    /// method. Called only with `--metrics extensive`.
    fn timed(&self, rpc: Rpc, admitted: Instant) {
        if let Some(method) = self.shared.diagnostics.metrics.grpc.methods().get(rpc as usize) {
            method.took(self.now().saturating_duration_since(admitted));
        }
    }

    /// Adds the time `took` of a request to the metrics. `what` is etcd's name for the request.
    pub(crate) fn took(&self, what: &'static str, success: bool, took: Duration) {
        let mut times = self.request_times.borrow_mut();
        match times.get(&(what, success)) {
            Some(time) => time.observe_seconds(took),
            None => {
                let time = self.shared.diagnostics.metrics.server.request_duration_of(what, success);
                time.observe_seconds(took);
                times.insert((what, success), time);
            }
        }
    }

    /// Waits until the leader has confirmed the commit index for a linearizable read and this member has
    /// applied up to that index. Returns the ReadIndex round that confirmed it, if one was needed. `now` is
    /// the current time.
    async fn wait_confirmed(&self, now: Instant) -> Result<Option<RoundTimes>, Status> {
        let pending_reply: PendingReply = self.pending.ask_at(now, ClientRequest::Read)?;
        match pending_reply.await?.body {
            ReplyBody::Readable(round) => Ok(round),
            ReplyBody::Outcome(Err(status), _) => Err(status),
            _ => Err(error::STOPPED),
        }
    }

    /// Waits until this member's published state is new enough for a linearizable read. Does not wait if the
    /// read is serializable, or if this member can answer linearizable reads locally.
    async fn wait_readable(&self, serializable: bool) -> Result<(), Status> {
        if serializable || self.shared.state.load().reads_local {
            return Ok(());
        }
        self.wait_confirmed(self.now()).await.map(|_| ())
    }

    /// Waits as [`Services::wait_readable`] does, on behalf of `principal`. A caller without a user holds one
    /// of the limited slots while it waits.
    async fn wait_readable_for(&self, principal: &Principal, serializable: bool) -> Result<(), Status> {
        let _place = if serializable { None } else { self.place_of(principal)? };
        self.wait_readable(serializable).await
    }

    /// Refuses a write of `cost` bytes that would exceed the quota, and raises the NOSPACE alarm in that
    /// case. A member that is the only voter also refuses writes while the NOSPACE alarm is raised.
    fn check_quota(&self, cost: u64) -> Result<(), Status> {
        let state = self.shared.state.load();
        // Only a sole voter (`reads_local`) certainly knows the current alarms. Any other member has possibly
        // not applied the entry that disarmed the alarm, and would refuse the write wrongly. On such a
        // member, the alarms are checked only when the write is applied.
        if state.reads_local && state.alarms.any(AlarmType::Nospace as i32) {
            // If both alarms are raised, etcd refuses writes with the error of the CORRUPT alarm.
            let corrupt = state.alarms.any(AlarmType::Corrupt as i32);
            return Err(if corrupt { error::CORRUPT } else { error::NO_SPACE });
        }
        if let Some(quota) = self.shared.member.limits.quota_bytes
            && state.in_use_bytes + cost > quota
        {
            self.pending.tell(ClientRequest::RaiseNoSpace);
            return Err(error::NO_SPACE);
        }
        Ok(())
    }
}

/// Returns true for the methods that a witness answers. It has neither keys nor users, so it cannot check rights
/// either: what it answers is what anyone may know.
fn is_for_witnesses(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::MaintenanceStatus
            | Rpc::ClusterMemberList
            | Rpc::HealthCheck
            | Rpc::HealthWatch
            | Rpc::HealthList
    )
}

/// Returns true for the methods that a learner answers. A learner answers a range only if the range is
/// serializable.
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

/// Returns true for the methods that a member refuses while the CORRUPT alarm names it, because its data is
/// known to be wrong. An etcd member continues to answer reads in that case (COMPAT-20).
///
/// Other methods are not refused here. Leases are renewed at the leader, and an operator needs calls for
/// diagnosis and repair. Puts and deletes are refused when they are applied, at the same entry on all
/// members: a member that has not applied the disarming of the alarm yet would refuse them wrongly here.
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

/// Returns the RPC to which [`front::Service::method`] gave this number.
///
/// # Panics
///
/// Panics if no RPC has the number; this cannot happen, because the front passes on only numbers that
/// [`front::Service::method`] returned.
#[inline]
fn numbered(method: u16) -> Rpc {
    Rpc::ALL[usize::from(method)]
}
