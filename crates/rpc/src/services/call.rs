//! A unary call, from its arrival to its answer.
//!
//! [`Call`] is one value: the front's request becomes one in [`crate::dispatch`], a handler borrows it, and [`Call::end`]
//! reports the answer to all observers: metrics, slow log, stages, audit log, heavy hitters and trace. A handler asks the
//! core, waits for a confirmation and checks rights through the call, so that nothing about a call is kept in the shard
//! while other calls run. A step of a lock or an election is a call, too; it has no observers.

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
use crate::audit;

/// A unary call, from its arrival to its answer.
pub(super) struct Call {
    pub services: Rc<Services>,
    /// Method that the client called; for a step, that of the whole call.
    pub rpc: Rpc,
    /// Address of the client.
    pub peer: SocketAddr,
    pub begun: Begun,
    /// User of the call, or why its token was refused.
    principal: Result<Principal, Status>,
    /// True for a step of a lock or an election: the whole call was counted already.
    is_step: bool,
    pub(super) path: Path,
    observers: Option<Box<Observers>>,
}

/// Work that a call's answer came from, as far as its time is reported.
pub(super) enum Path {
    /// Work whose time is not reported.
    Unreported,
    /// A request to the core.
    Core {
        /// etcd's name for the request.
        what: &'static str,
        /// Time at which the core was asked.
        asked: Instant,
        /// Revision of the core's reply; `None` as long as there is no reply.
        revision: Option<Revision>,
    },
    /// A read of published state.
    Read(Box<ReadPath>),
}

/// A read of published state.
pub(super) struct ReadPath {
    /// Time at which the call asked for a confirmation, or read the state.
    pub began: Instant,
    /// Confirmation of the read, if it needed one.
    pub confirmed: Option<Confirmed>,
    /// Time at which the answer was made, if it is known before the call ends.
    pub answered: Option<Instant>,
    /// Time that each part of making the answer took, if it was measured.
    pub making: Option<Making>,
    /// etcd's name for reads that it counts among the requests that are applied, such as `read-only range `.
    pub applied_as: Option<&'static str>,
    /// Length of the request in bytes and its text form, for requests that the slow log shows.
    pub shown: Option<(usize, String)>,
}

/// Observers of one call besides metrics and the slow log. Most calls have none.
#[derive(Default)]
struct Observers {
    audit: Option<audit::Call>,
    sample: Option<Sample>,
    trace: Option<Trace>,
    /// Time at which the call was admitted, with `--metrics extensive`.
    admitted: Option<Instant>,
}

/// Outcome of an entry that the core has applied.
pub(super) struct Applied {
    pub outcome: Outcome,
    /// State right behind the entry, for answers with keys and values that are not in memory.
    pub state: Option<Box<AsOf>>,
    pub header: ResponseHeader,
}

impl Call {
    /// Returns a call that is not observed yet; see [`Call::observe`].
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

    /// Returns a step of a lock or an election.
    pub(super) fn step(
        services: &Rc<Services>,
        client: (Rpc, SocketAddr),
        principal: Result<Principal, Status>,
    ) -> Call {
        let begun = Begun::unmeasured(services.now());
        Call { is_step: true, ..Call::new(Rc::clone(services), client, begun, principal) }
    }

    /// Begins to observe the call, if anything is to observe it.
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

    /// Answers the call by this handler, which runs as far as it can when the answer is polled first.
    pub fn run(
        self,
        handler: impl AsyncFnOnce(&mut Call, Bytes) -> Result<Answer, Status> + 'static,
        message: Bytes,
    ) -> Unary {
        Unary::Later(Box::pin(self.answer(handler, message)))
    }

    /// Answers the call by this handler, which makes other calls as its steps, on behalf of the client whose head this is.
    pub fn run_steps(
        self,
        handler: impl AsyncFnOnce(&mut Call, Asker, Bytes) -> Result<Answer, Status> + 'static,
        head: &Head,
        message: Bytes,
    ) -> Unary {
        let asker = Asker::of(head);
        self.run(async |call, message| handler(call, asker, message).await, message)
    }

    /// Answers the call as [`Call::run`] does, for a caller who awaits the answer.
    pub async fn answer(
        mut self,
        handler: impl AsyncFnOnce(&mut Call, Bytes) -> Result<Answer, Status>,
        message: Bytes,
    ) -> Result<Answer, Status> {
        let mut answer = handler(&mut self, message).await;
        self.end(&mut answer);
        answer
    }

    /// Reports the answer to all observers of the call, and turns it into what the client gets.
    #[inline]
    pub fn end(&mut self, answer: &mut Result<Answer, Status>) {
        let stages = match self.path {
            Path::Unreported if self.observers.is_none() && !has_steps(self.rpc) => return,
            Path::Unreported => None,
            Path::Core { what, asked, revision: Some(revision) } => {
                let now = self.services.now();
                self.services.took(what, answer.is_ok(), now.saturating_duration_since(asked));
                let took = now.saturating_duration_since(self.begun.arrived);
                let is_reported = self.begun.is_measured() || took > self.shared().limits.slow_request;
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
    /// When its token was refused.
    pub fn principal(&self) -> Result<&Principal, Status> {
        self.principal.as_ref().map_err(Status::clone)
    }

    /// Makes the rest of the call on behalf of nobody.
    pub(super) fn go_on_as_nobody(&mut self) {
        self.principal = Ok(Principal::default());
    }

    /// Returns what the user may do as of this state.
    ///
    /// # Errors
    ///
    /// As for [`Call::principal`].
    pub(super) fn gate(&self, state: &Published) -> Result<Gate, Status> {
        Ok(self.services.gate(state, self.principal()?))
    }

    /// Refuses a call without a user once authentication is enabled.
    ///
    /// # Errors
    ///
    /// When the call's token was refused, or there is none.
    pub(super) fn some_user(&self) -> Result<(), Status> {
        self.services.some_user(self.principal()?)
    }

    /// Refuses an answer that was read while users or roles changed: a permission may have been taken away meanwhile.
    ///
    /// # Errors
    ///
    /// When users or roles have changed since the user was established.
    pub(super) fn still(&self) -> Result<(), Status> {
        self.services.still(self.principal()?)
    }

    /// Refuses a call whose user is not root, as far as this member knows.
    ///
    /// # Errors
    ///
    /// Those of [`Gate::admin`], and when the call's token was refused.
    pub(super) fn root(&self) -> Result<(), Status> {
        self.gate(&self.shared().state.load())?.admin()
    }

    /// Asks for a right of the user, as far as this member knows. `ask` runs only while authentication is enabled.
    ///
    /// # Errors
    ///
    /// Those of `ask`, and when the call's token was refused.
    pub(super) fn may(&self, ask: impl FnOnce(&Gate) -> Result<(), Status>) -> Result<(), Status> {
        let principal = self.principal()?;
        let state = self.shared().state.load();
        if state.auth.is_enabled() { ask(&self.services.gate(&state, principal)) } else { Ok(()) }
    }

    /// Refuses a write that `may` does not allow. Apply asks again; but an entry that apply would refuse is not proposed, since
    /// any client could fill disks with such entries (COMPAT-422).
    ///
    /// A member may lag behind an acknowledged change of users, roles or authentication. A member that does not know the newest
    /// state for certain therefore refuses only after it has applied all that was acknowledged before the call. Only refusals
    /// wait for that. If too many strangers wait already, further strangers are refused by what this member knows.
    ///
    /// # Errors
    ///
    /// Those of `may`.
    #[inline(always)]
    pub(super) async fn allowed(&mut self, may: impl Fn(&Call) -> Result<(), Status>) -> Result<(), Status> {
        match may(self) {
            Ok(()) => Ok(()),
            Err(refusal) => Box::pin(self.allowed_later(refusal, may)).await,
        }
    }

    /// Judges a write again that `may` does not allow as far as this member knows.
    async fn allowed_later(
        &mut self,
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

    /// Refuses a call whose user is not root. If authentication is enabled, that is judged after this member has applied all that
    /// was acknowledged before. So a role that was revoked through another member counts, and so does a change of root's password,
    /// after which an older token is void; apply knows nothing of tokens.
    ///
    /// A caller who is not root as far as this member knows is refused later too, since the member may lag behind a role that was
    /// granted. If too many strangers wait already, or nothing is confirmed to this member, such a caller is refused by what the
    /// member knows.
    ///
    /// # Errors
    ///
    /// Those of [`Gate::admin`], and when the call's token was refused.
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

    /// Takes the place in which a stranger waits for a confirmation; `None` for all other callers.
    ///
    /// # Errors
    ///
    /// As for [`Services::place_of`].
    fn place_to_wait(&self) -> Result<Option<Place>, Status> {
        self.principal.as_ref().map_or(Ok(None), |principal| self.services.place_of(principal))
    }

    /// Waits until the leader has confirmed how far a member must have come for a linearizable read, and this member has come that
    /// far. `place` is given up as soon as that is known.
    ///
    /// # Errors
    ///
    /// When there are too many requests, or nothing is confirmed in time.
    pub(super) async fn confirmed(&mut self, place: Option<Place>) -> Result<Confirmed, Status> {
        let asked = self.services.now();
        let round = self.services.wait_confirmed(asked).await?;
        drop(place);
        Ok(Confirmed { asked, round, went_on: self.services.now() })
    }

    /// Begins a read: waits as [`Call::confirmed`] does, unless the read may be stale or this member knows the newest state.
    /// `applied_as` is [`ReadPath::applied_as`].
    ///
    /// # Errors
    ///
    /// As for [`Call::confirmed`], and when too many strangers wait.
    pub(super) async fn readable(
        &mut self,
        is_serializable: bool,
        applied_as: Option<&'static str>,
    ) -> Result<(), Status> {
        let began = self.services.now();
        let confirmed = match is_serializable || self.shared().state.load().reads_local {
            true => None,
            false => {
                let place = self.place_to_wait()?;
                Some(self.confirmed(place).await?)
            }
        };
        let (answered, making, shown) = (None, None, None);
        self.path = Path::Read(Box::new(ReadPath { began, confirmed, answered, making, applied_as, shown }));
        Ok(())
    }

    /// Counts the call as an expensive one of its client.
    ///
    /// # Errors
    ///
    /// When the client has made as many as it may in this time, or the call's token was refused.
    pub(super) fn expensive(&self) -> Result<(), Status> {
        self.expense(|_| 1)
    }

    /// Counts the call as so many expensive ones as `calls` says for this revision; `calls` runs only if there is a bound.
    ///
    /// # Errors
    ///
    /// As for [`Call::expensive`].
    pub(super) fn expense(&self, calls: impl FnOnce(Revision) -> u64) -> Result<(), Status> {
        let principal = self.principal()?;
        if self.is_step { Ok(()) } else { self.services.expense(principal, self.client(), calls) }
    }

    /// Returns true if the call may be refused for earlier requests of its client.
    pub(super) fn is_expense_bounded(&self) -> bool {
        !self.is_step && self.shared().expensive.is_bounded()
    }

    /// Lists the client of a put with a large value for the page of large values.
    pub(super) fn note_value(&self, put: &PutRequest) {
        if put.value.len() >= slow_requests::VALUE_BYTES {
            let shared = self.shared();
            shared.slow_requests.put(self.client(), &put.key, put.value.len(), shared.clock.wall());
        }
    }

    /// Sends a request to the core and waits for the reply. `what` is etcd's name for the request.
    ///
    /// # Errors
    ///
    /// When there are too many requests, or there is no reply in time.
    pub(super) async fn ask(
        &mut self,
        what: &'static str,
        ask: impl FnOnce(RequestId) -> ClientRequest,
    ) -> Result<(ReplyBody, ResponseHeader), Status> {
        let reply = self.send(what, ask)?.await?;
        Ok(self.replied(reply))
    }

    /// Proposes a client's request as this field of an `InternalRaftRequest`, on behalf of the call's user, and waits until it is
    /// applied. `what` is etcd's name for the request.
    ///
    /// # Errors
    ///
    /// When the request is too large, when there are too many requests, when there is no reply in time, and those of apply.
    pub(super) async fn propose(
        &mut self,
        field: u32,
        request: Bytes,
        what: &'static str,
    ) -> Result<Applied, Status> {
        let writer = Writer::Port(self.peer.port());
        let reply = self.send_proposal(field, request, what, writer, false)?.await?;
        self.applied(reply)
    }

    /// Proposes a login: no other command waits to share its batch.
    ///
    /// # Errors
    ///
    /// As for [`Call::propose`].
    pub(super) async fn propose_login(&mut self, field: u32, request: Bytes) -> Result<Applied, Status> {
        let writer = Writer::Login(self.peer.port());
        let reply = self.send_proposal(field, request, "Authenticate", writer, false)?.await?;
        self.applied(reply)
    }

    /// Proposes a compaction, and waits until it is applied; if it is physical, until it has removed what it makes unreadable.
    ///
    /// # Errors
    ///
    /// As for [`Call::propose`].
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
        let id = shared.command_id();
        let data = command(id, field, &request, self.principal()?.caller());
        // A copy is on its way: the request's own bytes are not held until the reply.
        drop(request);
        let bytes = data.len();
        if bytes > shared.limits.request_bytes_max {
            return Err(error::REQUEST_TOO_LARGE);
        }
        shared.admit_proposal(bytes)?;
        self.send(what, |request_id| ClientRequest::Propose { request_id, id, data, writer, wait_removed })
            .inspect_err(|_| self.services.shared.proposal_taken(bytes))
    }

    fn send(
        &mut self,
        what: &'static str,
        ask: impl FnOnce(RequestId) -> ClientRequest,
    ) -> Result<PendingReply, Status> {
        let asked = self.services.now();
        if let Path::Core { what, asked: before, .. } = self.path {
            // The call asks once more, since its earlier request had no effect.
            self.services.took(what, false, asked.saturating_duration_since(before));
        }
        let pending_reply = self.services.pending.ask_at(asked, ask)?;
        self.path = Path::Core { what, asked, revision: None };
        Ok(pending_reply)
    }

    fn replied(&mut self, reply: Reply) -> (ReplyBody, ResponseHeader) {
        (reply.body, self.header_of(reply.revision, reply.raft_term))
    }

    fn applied(&mut self, reply: Reply) -> Result<Applied, Status> {
        let header = self.header_of(reply.revision, reply.raft_term);
        match reply.body {
            ReplyBody::Outcome(outcome, state) => Ok(Applied { outcome: outcome?, state, header }),
            _ => Err(error::STOPPED),
        }
    }

    /// Returns the header of an answer to a reply of the core, and notes that there is a reply.
    fn header_of(&mut self, at: Revision, raft_term: Term) -> ResponseHeader {
        if let Path::Core { revision, .. } = &mut self.path {
            *revision = Some(at);
        }
        self.shared().header(at, raft_term)
    }
}

/// Returns true for calls that are made of steps.
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

/// An error of a step as clients of these services get it from etcd: its client library has taken the code away.
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

    /// Each open write holds its call and the future of its handler.
    #[test]
    fn an_open_write_holds_little() {
        fn future_bytes<'a, F: Future>(_: impl FnOnce(&'a mut Call, Bytes) -> F) -> usize {
            size_of::<F>()
        }
        assert!(size_of::<Call>() <= 192, "{} bytes", size_of::<Call>());
        for bytes in [future_bytes(kv::put), future_bytes(kv::delete_range), future_bytes(kv::txn)] {
            assert!(bytes <= 384, "{bytes} bytes");
        }
    }

    #[test]
    fn only_etcds_errors_lose_their_codes() {
        assert_eq!(without_code(error::LEASE_NOT_FOUND).code, Code::Unknown);
        let own = Status::new(Code::ResourceExhausted, "mainstay: too much to compare in one transaction");
        assert_eq!(without_code(own.clone()), own);
    }
}
