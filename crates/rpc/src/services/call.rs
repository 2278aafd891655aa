//! Carries one unary call from its arrival to its response.
//!
//! [`super::dispatch`] turns a request from the front into a [`Call`], a handler borrows the call, and
//! [`Call::end`] reports the response to all observers: metrics, slow log, stages, audit log, heavy hitters
//! and trace. A handler sends requests to the core, waits for confirmations and checks rights through its
//! call. So all state of a waiting call is in its [`Call`] and in the future of its handler. Each step of a
//! lock or an election is also a [`Call`], but has no observers.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use api::etcdserverpb::{PutRequest, ResponseHeader};
use api::{Code, Rpc, Status, error};
use bytes::Bytes;
use front::{Answer, Head, Unary};
use machine::auth::Gate;
use machine::{AsOf, Outcome};
use numbers::{Revision, Term};
use replica::core::{ClientRequest, Reply, ReplyBody, RequestId, Writer, command};
use replica::pending::PendingReply;
use replica::shared::{Published, Shared};
use telemetry::slow_requests;

use super::Services;
use super::heavy::Sample;
use super::principal::{Asker, Asks, Principal};
use super::stages::{Begun, Confirmed, Making, Told};
use super::strangers::Place;
use super::traced::Trace;
use super::walk::index_unreadable;
use crate::audit;

/// One unary call, from its arrival to its response.
pub(super) struct Call {
    pub services: Rc<Services>,
    /// Method that the client called. For a step of a lock or an election, the method of the whole call.
    pub rpc: Rpc,
    /// Address of the client.
    pub peer: SocketAddr,
    pub begun: Begun,
    /// User of the call, or the error with which its token was refused.
    principal: Result<Principal, Status>,
    /// True for a step of a lock or an election. The rate limit on expensive calls does not count such a
    /// step, because it has counted the whole call.
    is_step: bool,
    pub(super) path: Path,
    observers: Option<Box<Observers>>,
}

/// Source of a call's response, and the times of the call that are reported.
pub(super) enum Path {
    /// The time of the call is not reported.
    Unreported,
    /// The response comes from a request to the core.
    Core {
        /// etcd's name for the request, such as `LeaseGrant`, for metrics and traces.
        what: &'static str,
        /// Time at which the request was sent to the core.
        asked: Instant,
        /// Revision of the core's reply; `None` until the reply arrives.
        revision: Option<Revision>,
        /// True if the time of the request was already added to the metrics, so that [`Call::end`] must not
        /// add it again.
        is_counted: bool,
    },
    /// The response comes from a read of published state.
    Read(Box<ReadPath>),
}

/// Times and details of a read of published state, for reports.
pub(super) struct ReadPath {
    /// Time at which the call asked for a confirmation or, if it needed none, read the state.
    pub began: Instant,
    /// Confirmation of the read, if it needed one.
    pub confirmed: Option<Confirmed>,
    /// Time at which the response was complete, if that is known before the call ends.
    pub answered: Option<Instant>,
    /// Durations of the stages of making the response, if they were measured.
    pub making: Option<Making>,
    /// etcd's name for a read that etcd counts among applied requests, such as `read-only range `; `None` for
    /// other reads.
    pub applied_as: Option<&'static str>,
    /// Length of the encoded request in bytes, and the request as text for the slow log. `None` if the slow
    /// log does not show the request.
    pub shown: Option<(usize, String)>,
}

/// Observers of one call besides metrics and the slow log. Most calls have none.
#[derive(Default)]
struct Observers {
    audit: Option<audit::Call>,
    sample: Option<Sample>,
    trace: Option<Trace>,
    /// Time at which the call was admitted; set only with `--metrics extensive`.
    admitted: Option<Instant>,
}

/// Result of an entry that the core has applied.
pub(super) struct Applied {
    pub outcome: Outcome,
    /// State directly after the entry; `Some` only if some keys or values of the response have to be read
    /// from it.
    pub state: Option<Box<AsOf>>,
    pub header: ResponseHeader,
}

impl Call {
    /// Returns a call without observers; [`Call::observe`] adds them.
    pub fn new(
        services: Rc<Services>,
        (rpc, peer): (Rpc, SocketAddr),
        begun: Begun,
        principal: Result<Principal, Status>,
    ) -> Call {
        Call {
            services,
            rpc,
            peer,
            begun,
            principal,
            is_step: false,
            path: Path::Unreported,
            observers: None,
        }
    }

    /// Returns a call for one step of a lock or an election.
    pub(super) fn step(
        services: &Rc<Services>,
        client: (Rpc, SocketAddr),
        principal: Result<Principal, Status>,
    ) -> Call {
        let begun = Begun::unmeasured(services.now());
        Call { is_step: true, ..Call::new(Rc::clone(services), client, begun, principal) }
    }

    /// Adds the observers of the call (audit log, sampling, trace, timing) if any of them is active.
    #[inline]
    pub fn observe(
        &mut self,
        asker: &impl Asks,
        message: &Bytes,
        trace: Option<Trace>,
        admitted: Option<Instant>,
    ) {
        let has_audit = self.services.audit.is_some();
        if has_audit || self.begun.is_sample || trace.is_some() || admitted.is_some() {
            self.observe_by(asker, message, trace, admitted);
        }
    }

    #[cold]
    fn observe_by(
        &mut self,
        asker: &impl Asks,
        message: &Bytes,
        trace: Option<Trace>,
        admitted: Option<Instant>,
    ) {
        let services = &self.services;
        let audit = services
            .audit
            .as_ref()
            .map(|audit| services.begin_audit(audit, self.rpc, asker, &self.principal, Some(message)));
        let sample = self.begun.is_sample.then(|| {
            let user = self.principal.as_ref().map_or("", Principal::name);
            Sample::begin((self.rpc, self.client(), user), self.begun.arrived, message)
        });
        self.observers = Some(Box::new(Observers { audit, sample, trace, admitted }));
    }

    /// Answers the call with `handler`. When the response is first polled, the handler runs until it has to
    /// wait.
    pub fn run(
        self,
        handler: impl AsyncFnOnce(&mut Call, Bytes) -> Result<Answer, Status> + 'static,
        message: Bytes,
    ) -> Unary {
        Unary::Later(Box::pin(self.answer(handler, message)))
    }

    /// Answers the call with `handler`, which makes further calls as its steps, on behalf of the client that
    /// sent `head`.
    pub fn run_steps(
        self,
        handler: impl AsyncFnOnce(&mut Call, Asker, Bytes) -> Result<Answer, Status> + 'static,
        head: &Head,
        message: Bytes,
    ) -> Unary {
        let asker = Asker::of(head);
        self.run(async |call, message| handler(call, asker, message).await, message)
    }

    /// Answers the call as [`Call::run`] does, but as a future that the caller awaits, without a box.
    pub async fn answer(
        mut self,
        handler: impl AsyncFnOnce(&mut Call, Bytes) -> Result<Answer, Status>,
        message: Bytes,
    ) -> Result<Answer, Status> {
        let mut answer = handler(&mut self, message).await;
        self.end(&mut answer);
        answer
    }

    /// Reports the response to all observers of the call, and removes the status code from the error of a
    /// lock or an election, as etcd does ([`without_code`]). The audit log still gets the error with its
    /// code.
    #[inline]
    pub fn end(&mut self, answer: &mut Result<Answer, Status>) {
        if let Some(fault) = self.shared().data.index_fault() {
            *answer = Err(index_unreadable(fault));
        }
        let stages = match self.path {
            Path::Unreported => None,
            Path::Core { what, asked, revision: Some(revision), is_counted } => {
                let now = self.services.now();
                if !is_counted {
                    self.services.took(what, answer.is_ok(), now.saturating_duration_since(asked));
                }
                let took = now.saturating_duration_since(self.begun.arrived);
                let is_reported = self.begun.is_measured() || took > self.shared().member.limits.slow_request;
                if is_reported { self.report_core((asked, now), revision, answer) } else { None }
            }
            Path::Core { revision: None, .. } => self.report_timeout(answer),
            Path::Read(ref read) => self.report_read(read, answer),
        };
        if self.observers.is_some() || has_steps(self.rpc) {
            self.end_observed(answer, stages);
        }
    }

    #[cold]
    fn end_observed(&mut self, answer: &mut Result<Answer, Status>, stages: Option<Told>) {
        let observers = self.observers.take().map(|observers| *observers);
        let Observers { audit, sample, trace, admitted } = observers.unwrap_or_default();
        if let Some(audit) = audit {
            audit.done(answer);
        }
        if let Some(sample) = sample {
            self.services.sampled(&sample, answer);
        }
        if !self.is_step
            && has_steps(self.rpc)
            && let Err(status) = answer
        {
            *status = without_code(status.clone());
        }
        if let Some(admitted) = admitted {
            self.services.timed(self.rpc, admitted);
        }
        if let Some(trace) = trace {
            trace.end(answer.as_ref().map(|_| ()), stages);
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.services.shared
    }

    /// Returns the address of the client without its port.
    pub fn client(&self) -> IpAddr {
        self.peer.ip()
    }

    /// Returns the user of the call.
    ///
    /// # Errors
    ///
    /// Returns the error with which the call's token was refused.
    pub fn principal(&self) -> Result<&Principal, Status> {
        self.principal.as_ref().map_err(Status::clone)
    }

    /// Removes the user from the call, which from now on is treated as a call without a user.
    pub(super) fn go_on_as_nobody(&mut self) {
        self.principal = Ok(Principal::default());
    }

    /// Returns the rights of the call's user in `state`.
    ///
    /// # Errors
    ///
    /// See [`Call::principal`].
    pub(super) fn gate(&self, state: &Published) -> Result<Gate, Status> {
        Ok(self.services.gate(state, self.principal()?))
    }

    /// Refuses a call without a user if authentication is enabled.
    ///
    /// # Errors
    ///
    /// Returns an error if the call's token was refused, or if the call has no user while authentication is
    /// enabled.
    pub(super) fn some_user(&self) -> Result<(), Status> {
        self.services.some_user(self.principal()?)
    }

    /// Refuses the response if users or roles changed while it was read, because a permission may have been
    /// revoked.
    ///
    /// # Errors
    ///
    /// Returns an error if users or roles have changed since the user of the call was identified, or if the
    /// call has no user and authentication is enabled now.
    pub(super) fn still(&self) -> Result<(), Status> {
        self.services.still(self.principal()?)
    }

    /// Refuses a call whose user is not root, according to the state that this member has applied.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Gate::admin`], or the error with which the call's token was refused.
    pub(super) fn root(&self) -> Result<(), Status> {
        self.gate(&self.shared().state.load())?.admin()
    }

    /// Checks a right of the user with `ask`, according to the state that this member has applied. `ask` runs
    /// only if authentication is enabled.
    ///
    /// # Errors
    ///
    /// Returns the errors of `ask`, or the error with which the call's token was refused.
    pub(super) fn may(&self, ask: impl FnOnce(&Gate) -> Result<(), Status>) -> Result<(), Status> {
        let principal = self.principal()?;
        let state = self.shared().state.load();
        if state.auth.is_enabled() { ask(&self.services.gate(&state, principal)) } else { Ok(()) }
    }

    /// Refuses a write that `may` does not allow. The check is repeated when the entry is applied, but a
    /// write that apply would refuse is not proposed: otherwise any client could fill disks with such entries
    /// (COMPAT-422).
    ///
    /// A member may lag behind an acknowledged change of users, roles or authentication. So unless this
    /// member is certain to have the newest state, it refuses a write only after it has applied everything
    /// that was acknowledged before the call. Writes that are allowed do not wait. If too many
    /// unauthenticated callers wait already, further unauthenticated callers are refused according to the
    /// state that this member has applied.
    ///
    /// # Errors
    ///
    /// Returns the errors of `may`, and those of [`Call::confirmed`].
    pub(super) async fn allowed(&self, may: impl Fn(&Call) -> Result<(), Status>) -> Result<(), Status> {
        // If the token was refused, the refusal is final and no confirmation is requested.
        self.principal()?;
        match may(self) {
            Ok(()) => Ok(()),
            Err(refusal) => Box::pin(self.allowed_later(refusal, may)).await,
        }
    }

    /// Repeats the check of a write that `may` has refused, after this member has caught up.
    async fn allowed_later(
        &self,
        refusal: Status,
        may: impl Fn(&Call) -> Result<(), Status>,
    ) -> Result<(), Status> {
        if self.shared().state.load().reads_local {
            return Err(refusal);
        }
        let place = self.place_to_wait().map_err(|_| refusal)?;
        self.confirmed(place).await?;
        may(self)
    }

    /// Refuses a call whose user is not root. If authentication is enabled, the check waits until this member
    /// has applied everything that was acknowledged before the call, unless this member is certain to have
    /// the newest state. The check therefore sees a role that was revoked through another member, and a
    /// change of root's password, which makes older tokens void. Apply cannot find out that a token is void,
    /// because log entries contain the user but no token.
    ///
    /// A caller that is not root in the applied state is refused only after that wait, since this member may
    /// lag behind a grant of the role. There are two exceptions. If too many unauthenticated callers wait
    /// already, an unauthenticated caller is refused without waiting. If no confirmation arrives, the caller
    /// is refused according to the applied state.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Gate::admin`], or the error with which the call's token was refused. A caller
    /// that is root in the applied state gets an error if no confirmation arrives.
    pub(super) async fn as_root(&mut self) -> Result<(), Status> {
        let refusal = {
            let principal = self.principal()?;
            let state = self.shared().state.load();
            if !state.auth.is_enabled() {
                return Ok(());
            }
            let admin = self.services.gate(&state, principal).admin();
            if state.reads_local {
                return admin;
            }
            admin.err()
        };
        let place = match &refusal {
            Some(refusal) => self.place_to_wait().map_err(|_| refusal.clone())?,
            None => None,
        };
        let began = self.services.now();
        if let Err(status) = self.services.wait_confirmed(began).await {
            return Err(refusal.unwrap_or(status));
        }
        drop(place);
        self.begun.auth += self.services.now().saturating_duration_since(began);
        self.root()
    }

    /// Takes the slot in which an unauthenticated caller waits for a confirmation; returns `None` for other
    /// callers.
    ///
    /// # Errors
    ///
    /// See [`Services::place_of`].
    fn place_to_wait(&self) -> Result<Option<Place>, Status> {
        self.services.place_of(self.principal()?)
    }

    /// Waits until the leader has confirmed the commit index for a linearizable read and this member has
    /// applied up to that index. After that, releases `place`, the slot of an unauthenticated caller.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many requests, or if no confirmation arrives in time.
    pub(super) async fn confirmed(&self, place: Option<Place>) -> Result<Confirmed, Status> {
        let asked = self.services.now();
        let round = self.services.wait_confirmed(asked).await?;
        drop(place);
        Ok(Confirmed { asked, round, went_on: self.services.now() })
    }

    /// Starts a read. Waits as [`Call::confirmed`] does, unless the read is serializable or this member
    /// answers linearizable reads locally. The caller passes the result to [`Call::reads`] once the read is
    /// allowed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Call::confirmed`], or an error if too many unauthenticated callers wait.
    pub(super) async fn readable(&self, is_serializable: bool) -> Result<Box<ReadPath>, Status> {
        let began = self.services.now();
        let confirmed = match is_serializable || self.shared().state.load().reads_local {
            true => None,
            false => {
                let place = self.place_to_wait()?;
                Some(self.confirmed(place).await?)
            }
        };
        let (answered, making, applied_as, shown) = (None, None, None, None);
        Ok(Box::new(ReadPath { began, confirmed, answered, making, applied_as, shown }))
    }

    /// Makes [`Call::end`] report the time of a read. Handlers call this only after the read is allowed: a
    /// refused read causes no load, and so is not reported.
    pub(super) fn reads(&mut self, read: Box<ReadPath>) {
        self.path = Path::Read(read);
    }

    /// Counts the call as one expensive call against the rate limits of its user and its client address.
    ///
    /// # Errors
    ///
    /// Returns an error if the user or the client exceeds the rate limit for expensive calls, or if the
    /// call's token was refused.
    pub(super) fn expensive(&self) -> Result<(), Status> {
        self.expense(|_| 1)
    }

    /// Counts the call as several expensive calls: the number that `calls` returns for the current revision.
    /// `calls` runs only if a limit is configured.
    ///
    /// # Errors
    ///
    /// See [`Call::expensive`].
    pub(super) fn expense(&self, calls: impl FnOnce(Revision) -> u64) -> Result<(), Status> {
        let principal = self.principal()?;
        if self.is_step { Ok(()) } else { self.services.expense(principal, self.client(), calls) }
    }

    /// Returns true if the call may be refused because of the rate limit on expensive calls.
    pub(super) fn is_expense_bounded(&self) -> bool {
        !self.is_step && self.shared().clients.expensive.is_bounded()
    }

    /// Adds a put with a large value to the list of slow requests, under the address of its client.
    pub(super) fn note_value(&self, put: &PutRequest) {
        if put.value.len() >= slow_requests::VALUE_BYTES {
            let shared = self.shared();
            shared.diagnostics.slow_requests.put(
                self.client(),
                &put.key,
                put.value.len(),
                shared.member.clock.wall(),
            );
        }
    }

    /// Sends a request to the core and waits for the reply. `what` is etcd's name for the request.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many requests, or if no reply arrives in time.
    pub(super) async fn ask(
        &mut self,
        what: &'static str,
        ask: impl FnOnce(RequestId) -> ClientRequest,
    ) -> Result<(ReplyBody, ResponseHeader), Status> {
        let reply = self.send(what, ask)?.await?;
        Ok(self.replied(reply))
    }

    /// Proposes a client's request as `field` of an `InternalRaftRequest`, on behalf of the call's user, and
    /// waits until the entry is applied. `what` is etcd's name for the request.
    ///
    /// # Errors
    ///
    /// Returns an error if the request is too large, if there are too many requests, or if no reply arrives
    /// in time; otherwise the errors of apply.
    pub(super) async fn propose(
        &mut self,
        field: u32,
        request: Bytes,
        what: &'static str,
    ) -> Result<Applied, Status> {
        let reply = self.send_write(field, request, what)?.await?;
        self.applied(reply)
    }

    /// Sends a proposal as [`Call::propose`] does. The handler awaits the reply itself and passes it to
    /// [`Call::applied`], which avoids a nested future in the most frequent calls.
    ///
    /// # Errors
    ///
    /// Returns an error if the request is too large, or if there are too many requests.
    pub(super) fn send_write(
        &mut self,
        field: u32,
        request: Bytes,
        what: &'static str,
    ) -> Result<PendingReply, Status> {
        let writer = Writer::Port(self.peer.port());
        self.send_proposal(field, request, what, writer, false)
    }

    /// Proposes a login. Unlike with a write, the core does not make other commands wait to share a batch
    /// with the login.
    ///
    /// # Errors
    ///
    /// See [`Call::propose`].
    pub(super) async fn propose_login(&mut self, field: u32, request: Bytes) -> Result<Applied, Status> {
        let writer = Writer::Login(self.peer.port());
        let reply = self.send_proposal(field, request, "Authenticate", writer, false)?.await?;
        let applied = self.applied(reply);
        // Counts the time of this request now and not in `Call::end`: after this reply, a login still signs
        // its token and may have to propose another entry, and that time is no part of this request.
        if let Path::Core { what, asked, is_counted, .. } = &mut self.path {
            *is_counted = true;
            self.services.took(what, applied.is_ok(), self.services.now().saturating_duration_since(*asked));
        }
        applied
    }

    /// Proposes a compaction and waits until it is applied. If `is_physical` is true, also waits until the
    /// compacted revisions have been removed.
    ///
    /// # Errors
    ///
    /// See [`Call::propose`].
    pub(super) async fn propose_compaction(
        &mut self,
        field: u32,
        request: Bytes,
        is_physical: bool,
    ) -> Result<Applied, Status> {
        let writer = Writer::Port(self.peer.port());
        let reply = self.send_proposal(field, request, "Compaction", writer, is_physical)?.await?;
        self.applied(reply)
    }

    fn send_proposal(
        &mut self,
        field: u32,
        request: Bytes,
        what: &'static str,
        writer: Writer,
        wait_removed: bool,
    ) -> Result<PendingReply, Status> {
        let shared = self.shared();
        let id = shared.ids.command_id();
        let data = command(id, field, &request, self.principal()?.caller());
        // `data` is a copy of the request, so the original bytes are freed before the reply arrives.
        drop(request);
        let bytes = data.len();
        if bytes > shared.member.limits.request_bytes_max {
            return Err(error::REQUEST_TOO_LARGE);
        }
        shared.core.admit_proposal(bytes)?;
        self.send(what, |request_id| ClientRequest::Propose { request_id, id, data, writer, wait_removed })
            .inspect_err(|_| self.services.shared.core.proposal_taken(bytes))
    }

    fn send(
        &mut self,
        what: &'static str,
        ask: impl FnOnce(RequestId) -> ClientRequest,
    ) -> Result<PendingReply, Status> {
        let asked = self.services.now();
        let pending_reply = self.services.pending.ask_at(asked, ask)?;
        self.path = Path::Core { what, asked, revision: None, is_counted: false };
        Ok(pending_reply)
    }

    fn replied(&mut self, reply: Reply) -> (ReplyBody, ResponseHeader) {
        (reply.body, self.header_of(reply.revision, reply.raft_term))
    }

    /// Returns the outcome of a proposal from the core's reply.
    ///
    /// # Errors
    ///
    /// Returns the errors of apply.
    pub(super) fn applied(&mut self, reply: Reply) -> Result<Applied, Status> {
        let header = self.header_of(reply.revision, reply.raft_term);
        match reply.body {
            ReplyBody::Outcome(outcome, state) => Ok(Applied { outcome: outcome?, state, header }),
            _ => Err(error::STOPPED),
        }
    }

    /// Returns the response header for a reply of the core, and records in `path` that the reply has arrived.
    fn header_of(&mut self, at: Revision, raft_term: Term) -> ResponseHeader {
        if let Path::Core { revision, .. } = &mut self.path {
            *revision = Some(at);
        }
        self.shared().member.header(at, raft_term)
    }
}

/// Returns true for methods whose calls consist of steps.
fn has_steps(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::Lock
            | Rpc::LockUnlock
            | Rpc::ElectionCampaign
            | Rpc::ElectionProclaim
            | Rpc::ElectionLeader
            | Rpc::ElectionResign
    )
}

/// Returns the error of a step as clients of etcd's lock and election services get it: an error of etcd gets
/// the code `Unknown`, because etcd makes the steps through its client library, which drops the status code.
pub(super) fn without_code(status: Status) -> Status {
    match error::CATALOGUE.iter().find(|known| known.message == status.message) {
        Some(_) => Status { code: Code::Unknown, ..status },
        None => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::kv;

    /// Limits the size of a call and of its handler's future: each open write holds both in memory.
    #[test]
    fn an_open_write_holds_little() {
        fn future_bytes<'a, F: Future>(_: impl FnOnce(&'a mut Call, Bytes) -> F) -> usize {
            size_of::<F>()
        }
        assert!(size_of::<Call>() <= 192, "{} bytes", size_of::<Call>());
        for bytes in [future_bytes(kv::put), future_bytes(kv::delete_range), future_bytes(kv::txn)] {
            assert!(bytes <= 416, "{bytes} bytes");
        }
    }

    #[test]
    fn only_etcds_errors_lose_their_codes() {
        assert_eq!(without_code(error::LEASE_NOT_FOUND).code, Code::Unknown);
        let own = Status::new(Code::ResourceExhausted, "mainstay: too much to compare in one transaction");
        assert_eq!(without_code(own.clone()), own);
    }
}
