//! Gives all members of a cluster the same secrets for TLS session tickets, so that a client that lost its
//! member resumes its session at another one: [`start`] asks the leader for its secrets, and
//! [`answer`] answers the other members.
//!
//! The secrets are never part of the replicated state, of a snapshot or of a log. They pass only over
//! connections between members on which both ends have verified the other's certificate and the name in it,
//! which `--share-tls-tickets` requires. Without that flag each member keeps secrets of its own, and a client
//! that comes from another member does a whole handshake.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use consistency::comparison::{CLUSTER_ID, OTHER_CLUSTER, cluster_id};
use http::{Request, Response, StatusCode};
use peer::Target;
use replica::shared::Shared;
use stdx::{FirstRun, Periodic};
use storage::block_on::block_on;
use telemetry::logging::{Logger, Value};
use telemetry::metrics::Metrics;
use tls::{Tickets, tickets::OFFER_BYTES_MAX};

use crate::peering::answers::{answer as answered, refused};
use crate::peering::hashes::is_of_this;

/// Path with which a member asks the leader for its secrets.
pub(crate) const PATH: &str = "/mainstay/tls-tickets";
const BINARY: &str = "application/octet-stream";

/// Interval at which the member determines whether it has to ask the leader.
const TURN: Duration = Duration::from_secs(1);
/// Interval at which a member asks the same leader again. Must be well below the time after which a leader uses
/// a new secret.
const INTERVAL: Duration = Duration::from_secs(30);
/// Pause after the leader gave no secrets.
const PAUSE: Duration = Duration::from_secs(5);
/// Time limit for the leader's answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Answers a member that asks for the secrets. `tickets` is `None` if this member may not share them.
pub(crate) fn answer(
    shared: &Shared,
    tickets: Option<&Tickets>,
    request: &Request<Bytes>,
) -> Response<Bytes> {
    let Some(tickets) = tickets else {
        return refused(StatusCode::NOT_FOUND, "this member shares no secrets for TLS session tickets");
    };
    if request.extensions().get::<peer::VerifiedPeer>().is_none() {
        return refused(StatusCode::FORBIDDEN, "only a member with a verified certificate gets this");
    }
    if !is_of_this(shared, request) {
        return refused(StatusCode::PRECONDITION_FAILED, OTHER_CLUSTER);
    }
    if shared.state.load().leader != shared.member.identity.member_id {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "this member does not lead the cluster");
    }
    tickets.tick(shared.member.clock.wall());
    answered(StatusCode::OK, BINARY, tickets.offer(shared.member.clock.wall()))
}

/// Starts the thread that asks the leader for its secrets. Dropping the returned value ends the thread.
///
/// # Errors
///
/// Returns an error if the thread cannot be started.
pub(crate) fn start(shared: &Arc<Shared>, tickets: Tickets, logger: &Arc<Logger>) -> io::Result<Periodic> {
    let (shared, logger) = (Arc::clone(shared), Arc::clone(logger));
    let metrics = Arc::clone(&shared.diagnostics.metrics);
    let next = shared.member.clock.now();
    let mut follower = Follower { shared, tickets, logger, metrics, leader: 0, next, attempt: 0, last: None };
    Periodic::start("tls-tickets", TURN, FirstRun::AfterInterval, move || follower.turn())
}

/// Adopts the secrets of whichever member leads.
struct Follower {
    shared: Arc<Shared>,
    tickets: Tickets,
    logger: Arc<Logger>,
    metrics: Arc<Metrics>,
    /// The leader that was asked last; 0 if none was.
    leader: u64,
    /// Time at which the leader is asked next.
    next: Instant,
    /// Number of questions to the leader, which selects one of its URLs.
    attempt: usize,
    /// Result of the last question, as it was logged; `None` before the first.
    last: Option<Result<(), String>>,
}

impl Follower {
    fn turn(&mut self) {
        let (leader, urls) = {
            let state = self.shared.state.load();
            let member = state.members.by_id.get(&state.leader);
            (state.leader, member.map(|member| member.peer_urls.clone()).unwrap_or_default())
        };
        if leader == self.shared.member.identity.member_id {
            self.leader = leader;
            self.tickets.lead();
            self.metrics.tls.tickets_shared.set_bool(true);
            return;
        }
        let now = self.shared.member.clock.now();
        if leader == 0 || leader == self.leader && now < self.next {
            return;
        }
        self.leader = leader;
        let adopted = self.ask(&urls);
        self.attempt = self.attempt.wrapping_add(1);
        self.next = now + if adopted.is_ok() { INTERVAL } else { PAUSE };
        self.metrics.tls.tickets_shared.set_bool(adopted.is_ok());
        if self.last.as_ref() == Some(&adopted) {
            return;
        }
        let member = format!("{leader:x}");
        let leader = ("leader", Value::Str(&member));
        match &adopted {
            Ok(()) => self.logger.info("sharing the secrets of TLS session tickets with the leader", &[leader]),
            Err(error) => self.logger.warn(
                "cannot get the secrets of TLS session tickets from the leader; clients of other members do whole \
                 handshakes with this member",
                &[leader, ("error", Value::Str(error))],
            ),
        }
        self.last = Some(adopted);
    }

    /// Asks the leader for its secrets, and adopts them.
    fn ask(&self, urls: &[String]) -> Result<(), String> {
        // An explicit URL, so that the question never goes over a connection without TLS.
        let secure: Vec<&String> = urls.iter().filter(|url| url.starts_with("https://")).collect();
        let Some(url) = secure.get(self.attempt % secure.len().max(1)) else {
            return Err("the leader has no peer URL with TLS".to_owned());
        };
        let request = Request::get(PATH).header(CLUSTER_ID, cluster_id(&self.shared));
        let request = request.body(Bytes::new()).map_err(|error| error.to_string())?;
        let peers = self.shared.cluster.peers().ok_or_else(|| "the member is starting".to_owned())?;
        let answered = block_on(peers.request(Target::Url((*url).clone()), request, TIMEOUT));
        let response = answered.map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            let text = String::from_utf8_lossy(response.body());
            return Err(format!(
                "{}: {}",
                response.status(),
                text.trim().chars().take(200).collect::<String>()
            ));
        }
        if response.body().len() > OFFER_BYTES_MAX {
            return Err("the answer is too long".to_owned());
        }
        self.tickets
            .adopt(response.body(), self.shared.member.clock.wall())
            .map_err(|_| "the answer is malformed".to_owned())
    }
}
