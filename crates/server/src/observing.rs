//! The side of an observer that finds its feeder: its identity at the first start ([`begin`]), and the thread
//! that registers it with a feeder and goes to another one if that is lost ([`start`]).

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use config::{Config, ObserverOptions};
use disk::Disk;
use http::{Request, StatusCode};
use numbers::{Index, MemberId};
use peer::{RequestError, Target};

use crate::joining::{JoinError, check_version};
use replica::cluster_version::minor;
use replica::core::PeerRequest;
use replica::observing::{OBSERVERS, ObserverCard, REGISTRATION_INTERVAL};
use replica::other_members::members_of;
use replica::shared::Shared;
use stdx::{FirstRun, Periodic};
use storage::Identity;
use storage::beginning::{Beginning, texts};
use storage::block_on::block_on;
use storage::observer_mark;
use telemetry::logging::{Logger, Value};
use tls::ClientTls;

/// Time to wait for the answer of a feeder.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which a confirmed round shows that a feeder is useful.
const USEFUL_FOR: Duration = Duration::from_secs(3);
/// Maximum interval between heartbeats that is believed of a feeder.
const HEARTBEAT_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// Number of registrations that may fail one after the other, or bring no entries, before the next feeder is
/// tried.
const FAILURES_MAX: u32 = 3;

/// Determines the identity of an observer without data. Its id is random, and kept in the mark of the directory:
/// so it is the same if the first start is interrupted.
///
/// # Errors
///
/// Returns an error if no feeder answers, if the cluster runs at a version that this release does not support, or
/// if the mark cannot be written.
pub(crate) fn begin(
    config: &Config,
    observer: &ObserverOptions,
    (disk, random): (&dyn Disk, u64),
    tls: Option<&ClientTls>,
    logger: &Logger,
) -> Result<Beginning, JoinError> {
    for url in texts(&observer.feeds) {
        let cluster_id = match members_of(&url, TIMEOUT, tls) {
            Ok((cluster_id, _)) => cluster_id,
            Err(error) => {
                let fields = [("address", Value::Str(&url)), ("error", Value::Display(&error))];
                logger.warn("a feeder does not answer", &fields);
                continue;
            }
        };
        check_version(&url, config.api_version, tls, logger)?;
        let member_dir = config.storage.data_dir.join("member");
        let member_id = observer_mark::id(disk, &member_dir, random)
            .map_err(|error| JoinError::Mark(error.to_string()))?;
        let identity = Identity { member_id, cluster_id };
        return Ok(Beginning { identity, entries: Vec::new(), remotes: Vec::new() });
    }
    Err(JoinError::NoFeeder)
}

/// Reason why a registration has failed.
#[derive(Debug)]
enum RegistrationError {
    Request(RequestError),
    Refused { status: StatusCode, text: String },
    Answer,
    InCircle,
    Differs,
}

impl fmt::Display for RegistrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistrationError::Request(error) => error.fmt(f),
            RegistrationError::Refused { status, .. } if *status == StatusCode::NOT_FOUND => {
                f.write_str("it does not feed observers: it runs etcd, or an older release of Mainstay")
            }
            RegistrationError::Refused { status, text } => write!(f, "{status}: {text}"),
            RegistrationError::Answer => f.write_str("its answer cannot be read"),
            RegistrationError::Differs => f.write_str("its state differs from that of this observer"),
            RegistrationError::InCircle => f.write_str("it is fed by this observer"),
        }
    }
}

/// Starts the thread that keeps an observer registered with a feeder. Dropping the returned value ends the thread.
///
/// # Errors
///
/// Returns an error if the thread cannot be started.
pub(crate) fn start(
    shared: &Arc<Shared>,
    logger: &Arc<Logger>,
    config: &Config,
    observer: &ObserverOptions,
) -> io::Result<Periodic> {
    let mut registration = Registration::new(shared, logger, config, observer);
    Periodic::start("registrar", REGISTRATION_INTERVAL, FirstRun::AtOnce, move || {
        block_on(registration.turn())
    })
}

/// The registration of an observer with its feeders, one at a time.
pub(crate) struct Registration {
    shared: Arc<Shared>,
    logger: Arc<Logger>,
    feeds: Vec<String>,
    card: Bytes,
    /// Position of the current feeder in `feeds`.
    at: usize,
    /// Number of turns, one after the other, in which the feeder did not answer or sent nothing.
    failures: u32,
    /// The last error that was logged, so that it is not logged again in each turn.
    told: String,
    /// Index of the last entry that was applied at the last turn.
    applied: Index,
    /// Interval of this node's own ticks.
    heartbeat_interval: Duration,
}

impl Registration {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        logger: &Arc<Logger>,
        config: &Config,
        observer: &ObserverOptions,
    ) -> Registration {
        let card = ObserverCard {
            id: shared.member.identity.member_id,
            name: config.name.clone(),
            peer_urls: texts(&config.cluster.initial_advertise_peer_urls),
            client_urls: texts(&config.cluster.advertise_client_urls),
            zone: config.zone.clone(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            api_version: minor(shared.member.api_version),
            start: shared.ids.command_id(),
        };
        let card_json = card.to_json().to_string();
        shared.cluster.set_own_card(card);
        Registration {
            shared: Arc::clone(shared),
            logger: Arc::clone(logger),
            feeds: texts(&observer.feeds),
            card: card_json.into(),
            at: 0,
            failures: 0,
            told: String::new(),
            applied: Index(0),
            heartbeat_interval: config.raft.heartbeat_interval,
        }
    }

    /// Registers with the current feeder, and goes to the next one if this one has not answered or sent
    /// anything for some turns.
    pub(crate) async fn turn(&mut self) {
        let Some(url) = self.feeds.get(self.at).cloned() else { return };
        if self.shared.state.load().is_wrong {
            return;
        }
        let is_followed = self.shared.cluster.feeder();
        match self.register(&url).await {
            Ok((feeder, heartbeat_interval)) => {
                // A feeder is useful if a round is confirmed through it: then it is fed itself, knows a leader with
                // a quorum, and sends what this observer lacks.
                let now = self.shared.member.clock.now();
                let confirmed = self.shared.confirmed_as_of();
                let useful_for = USEFUL_FOR + 2 * heartbeat_interval.max(self.heartbeat_interval);
                let is_useful = confirmed.is_some_and(|at| now.saturating_duration_since(at) < useful_for);
                let is_idle = is_followed == Some(feeder.0) && !is_useful && !self.is_catching_up();
                self.failures = if is_idle { self.failures + 1 } else { 0 };
                self.shared.core.inbox.send(PeerRequest::Follow(feeder, vec![url], heartbeat_interval));
                self.told.clear();
            }
            Err(error) => {
                // While no feeder sends, the next one is tried at once; one that sends may miss some
                // registrations.
                self.failures += if self.shared.cluster.is_fed() { 1 } else { FAILURES_MAX };
                let text = error.to_string();
                if self.told != text {
                    let fields = [("address", Value::Str(&url)), ("error", Value::Str(&text))];
                    self.logger.warn("cannot register with a feeder", &fields);
                    self.told = text;
                }
            }
        }
        if self.failures >= FAILURES_MAX {
            self.failures = 0;
            self.at = (self.at + 1) % self.feeds.len();
        }
    }

    /// Returns true if this observer has applied entries since the last turn, or receives the whole state.
    fn is_catching_up(&mut self) -> bool {
        // An observer that has all that its feeder has does not catch up: then it is the feeder that lags.
        let (applied, commit) = {
            let state = self.shared.state.load();
            (state.applied_index, state.commit_index)
        };
        let has_advanced = std::mem::replace(&mut self.applied, applied) < applied;
        has_advanced && applied < commit || self.shared.cluster.is_installing()
    }

    async fn register(&self, url: &str) -> Result<(MemberId, Duration), RegistrationError> {
        let Some(peers) = self.shared.cluster.peers() else { return Err(RegistrationError::Answer) };
        let request = Request::post(OBSERVERS)
            .header(consistency::comparison::CLUSTER_ID, consistency::comparison::cluster_id(&self.shared))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(self.card.clone())
            .map_err(|_| RegistrationError::Answer)?;
        let answered = peers.request(Target::Url(url.to_owned()), request, TIMEOUT).await;
        let response = answered.map_err(RegistrationError::Request)?;
        let text = String::from_utf8_lossy(response.body()).trim().to_owned();
        if response.status() != StatusCode::OK {
            return Err(RegistrationError::Refused { status: response.status(), text });
        }
        let answer: serde_json::Value = serde_json::from_str(&text).map_err(|_| RegistrationError::Answer)?;
        let id = |name: &str| answer[name].as_str().and_then(|id| u64::from_str_radix(id, 16).ok());
        let own = self.shared.member.identity.member_id;
        match (id("feeder"), id("fedBy")) {
            (Some(feeder), Some(fed_by)) if feeder == own || fed_by == own => {
                Err(RegistrationError::InCircle)
            }
            (Some(feeder), _) if self.shared.cluster.avoids(feeder) => Err(RegistrationError::Differs),
            (Some(feeder), Some(_)) if feeder != 0 => {
                let interval = Duration::from_millis(answer["heartbeatMs"].as_u64().unwrap_or(0));
                Ok((MemberId(feeder), interval.min(HEARTBEAT_INTERVAL_MAX)))
            }
            _ => Err(RegistrationError::Answer),
        }
    }
}
