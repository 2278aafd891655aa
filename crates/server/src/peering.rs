//! Handles the requests of other members. [`Peering`] is the handler that the `peer` crate calls: it passes
//! raft messages to the core, and answers the other requests.
//!
//! Paths, statuses and bodies are etcd's. Paths under `/mainstay/` are extensions; a real etcd answers them
//! with 404.

pub(crate) mod answers;
pub mod hashes;
mod observers;
mod root;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use api::{Status, error, leasepb, raftpb};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use machine::Member;
use numbers::{LeaseId, MemberId, Seconds};
use peer::{BoxError, SnapshotForm, SnapshotOutcome};
use prost::Message as _;

use answers::{JSON, PLAIN, answer, refused};
use consistency::comparison::OTHER_CLUSTER;
use consistency::reports::own_report;
use observers::PassedOn;
use replica::autopilot::AUTOPILOT;
use replica::core::{
    ChangeAttempt, ClientRequest, LISTED_AT_ONCE, LeaseDetail, MemberChange, PeerRequest, ReplyBody,
};
use replica::observing::{CARD_BYTES_MAX, OBSERVERS};
use replica::shared::Shared;
use replica::transfer::{FORMAT_HEADER, ReceiveError, Receiver};
use storage::block_on::block_on;
use telemetry::logging::{Logger, Value};
use tls::Tickets;

use crate::ticket_sharing;

/// Path of the renewals of leases.
const LEASES: &str = "/leases";
/// Path of questions about leases.
const LEASES_INTERNAL: &str = "/leases/internal";
/// Path before the id of a learner that is promoted.
const PROMOTE: &str = "/members/promote/";
const PROTOBUF: &str = "application/protobuf";
/// Longest body of a lease request in bytes, as in etcd.
const LEASE_BODY_BYTES_MAX: usize = 64 << 10;

/// Longest body of a hash request in bytes; the body is a revision in JSON.
const HASH_BODY_BYTES_MAX: usize = 4 << 10;

/// Path of the request with which a member that is about to send a snapshot asks which versions this member
/// already has.
const SNAPSHOT: &str = "/mainstay/snapshot";
/// Query of the request for [`SNAPSHOT`] with which the sender also asks for a hash of this member's state;
/// the crate `peer` sends it.
const HASHED: &str = "format=2";

/// Handler of the requests and messages that other members send.
#[derive(Clone)]
pub struct Peering {
    shared: Arc<Shared>,
    logger: Arc<Logger>,
    receiver: Arc<Receiver>,
    passed_on: Arc<PassedOn>,
    /// Secrets for TLS session tickets that other members may have; empty if they may not.
    tickets: Arc<OnceLock<Tickets>>,
}

impl Peering {
    /// Creates the handler for this member.
    pub fn new(shared: Arc<Shared>, logger: Arc<Logger>, receiver: Receiver) -> Peering {
        let (passed_on, tickets) = Default::default();
        Peering { shared, logger, receiver: Arc::new(receiver), passed_on, tickets }
    }

    /// Allows other members to get these secrets. Only the first call has an effect.
    pub(crate) fn share_tickets(&self, tickets: Tickets) {
        let _ = self.tickets.set(tickets);
    }

    /// Returns true if the receiver keeps a part of a snapshot whose stream was interrupted.
    pub fn keeps_part_of_snapshot(&self) -> bool {
        self.receiver.keeps_part()
    }

    /// Receives a snapshot like [`peer::Handler::receive_snapshot`]. Blocks only where `body` blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if the stream is not valid, or if this member cannot take the snapshot now.
    pub async fn take_snapshot(
        &self,
        message: raftpb::Message,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), ReceiveError> {
        self.receiver.receive(message, body).await.inspect_err(|error| {
            self.tell("could not receive a snapshot", error);
        })
    }

    /// Receives the database of a member that runs etcd, like [`peer::Handler::receive_snapshot`]. Blocks
    /// only where `body` and the disk block.
    ///
    /// # Errors
    ///
    /// Returns an error if the database is not valid, if this member cannot take it now, or if the received
    /// state is not durable yet.
    pub async fn take_database(
        &self,
        message: raftpb::Message,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), ReceiveError> {
        self.receiver.receive_database(message, body).await.inspect_err(|error| {
            let what = match error {
                ReceiveError::NotSaved(_) => "received etcd's database file; its state is not durable yet",
                _ => "could not receive etcd's database file",
            };
            self.tell(what, error);
        })
    }

    /// Logs why a snapshot of another member was not taken; logs an error if an operator has to act.
    fn tell(&self, what: &'static str, error: &ReceiveError) {
        let fields = [("error", Value::Str(&error.to_string()))];
        match error {
            // The error was logged when the first attempt was examined and refused, so a repetition is logged
            // only for debugging.
            ReceiveError::RefusedBefore { .. } => self.logger.debug(what, &fields),
            _ if error.lasting_kind().is_some() => self.logger.error(what, &fields),
            _ => self.logger.warn(what, &fields),
        }
    }
}

fn not_allowed(allowed: &'static str) -> Response<Bytes> {
    let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(http::header::ALLOW, HeaderValue::from_static(allowed));
    response
}

fn members_json<'a>(members: impl Iterator<Item = &'a Member>) -> String {
    let members: Vec<String> = members.map(Member::to_json).collect();
    format!("[{}]\n", members.join(","))
}

fn members(shared: &Shared) -> Response<Bytes> {
    let mut response = answer(StatusCode::OK, JSON, members_json(shared.state.load().members.by_id.values()));
    if let Ok(cluster) = HeaderValue::from_str(&format!("{:x}", shared.member.identity.cluster_id)) {
        response.headers_mut().insert("x-etcd-cluster-id", cluster);
    }
    response
}

/// Promotes a learner on behalf of another member's client, if `is_root` confirms that the client is root.
async fn promote(
    shared: &Shared,
    id: &str,
    is_root: impl Future<Output = Result<(), Status>>,
) -> Response<Bytes> {
    let Ok(id) = id.parse::<u64>() else {
        return refused(StatusCode::NOT_FOUND, &format!("member {id} not found in cluster"));
    };
    let promotion = async {
        is_root.await?;
        shared
            .core
            .ask(move |request_id| {
                ClientRequest::ChangeMembers(request_id, MemberChange::Promote(id), ChangeAttempt::Final)
            })
            .await
    };
    let status = match promotion.await.map(|reply| reply.body) {
        Ok(ReplyBody::MembersChanged) => {
            let state = shared.state.load_full();
            return answer(StatusCode::OK, JSON, members_json(state.members.by_id.values()));
        }
        Ok(ReplyBody::Outcome(Err(status), _)) | Err(status) => status,
        Ok(_) => error::STOPPED,
    };
    // Members that run etcd depend on these messages, which differ from those that clients get.
    let (code, text) = match &status {
        s if *s == error::MEMBER_NOT_FOUND => (StatusCode::NOT_FOUND, "membership: ID not found"),
        s if *s == error::MEMBER_NOT_LEARNER => {
            (StatusCode::PRECONDITION_FAILED, "membership: can only promote a learner member")
        }
        s if *s == error::LEARNER_NOT_READY => (StatusCode::PRECONDITION_FAILED, &*s.message),
        s => (StatusCode::INTERNAL_SERVER_ERROR, &*s.message),
    };
    refused(code, text)
}

/// Returns the response for a refused lease request, with etcd's status and text.
fn lease_refused(status: &Status) -> Response<Bytes> {
    if *status == error::LEASE_NOT_FOUND {
        return refused(StatusCode::NOT_FOUND, "lease not found");
    }
    refused(StatusCode::INTERNAL_SERVER_ERROR, &status.message)
}

async fn renew(shared: &Shared, body: Bytes) -> Response<Bytes> {
    let Ok(LeaseKeepAliveRequest { id }) = LeaseKeepAliveRequest::decode(body) else {
        return refused(StatusCode::BAD_REQUEST, "error unmarshalling request");
    };
    let reply =
        match shared.core.ask(move |request_id| ClientRequest::KeepAlive(request_id, LeaseId(id))).await {
            Ok(reply) => reply,
            Err(status) => return lease_refused(&status),
        };
    match reply.body {
        ReplyBody::KeptAlive(Seconds::ZERO) => lease_refused(&error::LEASE_NOT_FOUND),
        ReplyBody::KeptAlive(ttl) => {
            let header = Some(shared.member.header(reply.revision, reply.raft_term));
            answer(
                StatusCode::OK,
                PROTOBUF,
                LeaseKeepAliveResponse { header, id, ttl: ttl.0 }.encode_to_vec(),
            )
        }
        ReplyBody::Outcome(Err(status), _) => lease_refused(&status),
        _ => lease_refused(&error::STOPPED),
    }
}

async fn time_to_live(shared: &Shared, body: Bytes) -> Response<Bytes> {
    let request = leasepb::LeaseInternalRequest::decode(body).ok();
    let Some(LeaseTimeToLiveRequest { id, keys }) = request.and_then(|r| r.lease_time_to_live_request) else {
        return refused(StatusCode::BAD_REQUEST, "error unmarshalling request");
    };
    let detail = LeaseDetail::of(keys);
    let reply = match shared
        .core
        .ask(move |request_id| ClientRequest::TimeToLive(request_id, LeaseId(id), detail))
        .await
    {
        Ok(reply) => reply,
        Err(status) => return lease_refused(&status),
    };
    match reply.body {
        ReplyBody::TimeToLive { ttl: Seconds(-1), .. } => lease_refused(&error::LEASE_NOT_FOUND),
        ReplyBody::TimeToLive { ttl, granted, keys } => {
            let header = Some(shared.member.header(reply.revision, reply.raft_term));
            let mut response =
                LeaseTimeToLiveResponse { header, id, ttl: ttl.0, granted_ttl: granted.0, keys: Vec::new() };
            // A lease may have a million keys, so the loop yields between batches. (Only members that run
            // etcd request the keys of a lease from another member.)
            let mut behind: Option<Bytes> = None;
            loop {
                let some = keys.after(behind.as_ref()).take(LISTED_AT_ONCE).map(|(key, ())| key.clone());
                let before = response.keys.len();
                response.keys.extend(some);
                if response.keys.len() == before {
                    break;
                }
                behind = response.keys.last().cloned();
                tokio::task::yield_now().await;
            }
            let response = leasepb::LeaseInternalResponse { lease_time_to_live_response: Some(response) };
            answer(StatusCode::OK, PROTOBUF, response.encode_to_vec())
        }
        ReplyBody::Outcome(Err(status), _) => lease_refused(&status),
        _ => lease_refused(&error::STOPPED),
    }
}

/// Answers a member that is about to send a snapshot, and asks which versions this member already has. The
/// answer contains a hash of this member's state if the request says that the sender understands the hash, and
/// announces the format of a stream that this member reads.
async fn held(receiver: &Receiver, question: &Request<Bytes>) -> Response<Bytes> {
    let hashed = question.uri().query().is_some_and(|query| query.split('&').any(|pair| pair == HASHED));
    match receiver.held().await {
        Some(held) => {
            let bytes = if hashed { held.to_bytes() } else { held.to_bytes_unhashed() };
            let mut response = Response::new(Bytes::from(bytes));
            response.headers_mut().insert(FORMAT_HEADER, HeaderValue::from(machine::transfer::FORMAT));
            response
        }
        None => {
            let mut response = Response::new(Bytes::from_static(b"the member is stopping\n"));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
        }
    }
}

async fn route(peering: Peering, request: Request<Bytes>) -> Response<Bytes> {
    let Peering { shared, logger, receiver, passed_on, tickets } = peering;
    let path = request.uri().path().to_owned();
    let for_leader = [LEASES, LEASES_INTERNAL].contains(&path.as_str()) || path.starts_with(PROMOTE);
    if for_leader
        && let Some(hops) = observers::hops(request.headers())
        && shared.state.load().leader != shared.member.identity.member_id
        && request.body().len() <= LEASE_BODY_BYTES_MAX
    {
        return observers::pass_on(&shared, &passed_on, request, hops).await;
    }
    match (request.method(), path.as_str()) {
        (&Method::POST, OBSERVERS) => observers::register(&shared, &request).await,
        (_, OBSERVERS) => not_allowed("POST"),
        (&Method::GET, "/members") => members(&shared),
        (_, "/members") => not_allowed("GET"),
        (_, "/version") => rpc::http::version(&shared, &request),
        (&Method::POST, LEASES | LEASES_INTERNAL) if request.body().len() > LEASE_BODY_BYTES_MAX => {
            refused(StatusCode::BAD_REQUEST, "error reading body")
        }
        (&Method::POST, LEASES) => renew(&shared, request.into_body()).await,
        (&Method::POST, LEASES_INTERNAL) => time_to_live(&shared, request.into_body()).await,
        (_, LEASES | LEASES_INTERNAL) => refused(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"),
        (_, consistency::comparison::HASH_KV | consistency::comparison::STATE_HASHES)
            if shared.member.is_witness =>
        {
            refused(StatusCode::NOT_FOUND, &error::NOT_SUPPORTED_FOR_WITNESS.message)
        }
        (&Method::GET, consistency::comparison::HASH_KV) => hashes::hash_kv(&shared, &request).await,
        (_, consistency::comparison::HASH_KV) => not_allowed("GET"),
        (&Method::GET, "/downgrade/enabled") => {
            let enabled = shared.state.load().members.downgrade_target.is_some();
            answer(StatusCode::OK, PLAIN, enabled.to_string())
        }
        (&Method::GET, AUTOPILOT) if !hashes::is_of_this(&shared, &request) => {
            refused(StatusCode::PRECONDITION_FAILED, OTHER_CLUSTER)
        }
        (&Method::GET, AUTOPILOT) => answer(StatusCode::OK, JSON, own_report(&shared).to_json()),
        (_, AUTOPILOT) => not_allowed("GET"),
        (&Method::GET, ticket_sharing::PATH) => ticket_sharing::answer(&shared, tickets.get(), &request),
        (&Method::GET, SNAPSHOT) => held(&receiver, &request).await,
        (&Method::GET, consistency::comparison::STATE_HASHES) => {
            hashes::state_hashes(&shared, &request).await
        }
        (method, path) => match path.strip_prefix(PROMOTE) {
            Some(id) if method == Method::POST => {
                let is_root = root::is_root(&shared, &logger, request.headers());
                promote(&shared, id, is_root).await
            }
            Some(_) => not_allowed("POST"),
            None => refused(StatusCode::NOT_FOUND, "404 page not found"),
        },
    }
}

impl peer::Handler for Peering {
    fn received(&self, messages: &mut Vec<raftpb::Message>) {
        if let Some((messages, charge)) = self.shared.core.arrivals.admit(messages)
            && self.shared.core.send_from_peer_thread(PeerRequest::Messages(messages, charge))
        {
            self.shared.diagnostics.metrics.disk.core_lent_to_peers.inc();
        }
    }

    fn is_removed(&self, id: u64) -> bool {
        // An observer ends no member: it may know another history than the cluster that asks.
        !self.shared.member.observes && self.shared.state.load().members.removed.contains(&id)
    }

    fn has_witness(&self) -> bool {
        self.shared.member.is_witness || self.shared.state.load().members.witness().is_some()
    }

    fn unreachable(&self, id: u64) {
        self.shared.core.inbox.send(PeerRequest::Unreachable(MemberId(id)));
    }

    fn refused(&self, id: u64) {
        // A refused connection means that the peer's process has probably ended. The core is notified only if
        // the peer is the leader, because only then does the cluster have to elect another one.
        if self.shared.state.load().leader == id {
            self.shared.core.inbox.send(PeerRequest::LeaderEnded(MemberId(id)));
        }
    }

    fn rejected(&self) {
        self.shared.diagnostics.metrics.tls.rejected.with(&["peer"]).inc();
    }

    fn snapshot_sent(&self, to: u64, outcome: SnapshotOutcome) {
        let delivered = outcome == SnapshotOutcome::Delivered;
        self.shared.core.inbox.send(PeerRequest::SnapshotSent { to: MemberId(to), delivered });
    }

    fn removed(&self, by: u64) {
        self.shared.core.inbox.send(PeerRequest::Removed(MemberId(by)));
    }

    fn receive_snapshot(
        &self,
        message: raftpb::Message,
        form: SnapshotForm,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), BoxError> {
        let taken = match form {
            SnapshotForm::Own => block_on(self.take_snapshot(message, body)),
            SnapshotForm::Etcd => block_on(self.take_database(message, body)),
        };
        Ok(taken?)
    }

    fn body_bytes_max(&self, head: &http::request::Parts) -> usize {
        match (&head.method, head.uri.path()) {
            // Allows one byte more than the limit, so that the handler notices a body that is too long.
            (&Method::POST, LEASES | LEASES_INTERNAL) => LEASE_BODY_BYTES_MAX + 1,
            (&Method::POST, OBSERVERS) => CARD_BYTES_MAX,
            (&Method::GET, consistency::comparison::HASH_KV) => HASH_BODY_BYTES_MAX,
            _ => 0,
        }
    }

    fn http(&self, request: Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send>> {
        Box::pin(route(self.clone(), request))
    }
}
