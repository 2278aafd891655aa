//! The side of an observer that finds its feeder: its identity at the first start ([`begin`]), and the thread
//! that registers it with a feeder and goes to another one if that is lost ([`Registrar`]).

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use config::{Config, ObserverOptions};
use http::{Request, StatusCode};
use numbers::MemberId;
use peer::{RequestError, Target};

use crate::joining::{JoinError, check_version};
use replica::core::PeerRequest;
use replica::observing::{OBSERVERS, ObserverCard, REGISTRATION_INTERVAL};
use replica::other_members::members_of;
use replica::shared::Shared;
use storage::Identity;
use storage::beginning::{Beginning, texts};
use storage::block_on::block_on;
use telemetry::logging::{Logger, Value};
use tls::ClientTls;

/// Time to wait for the answer of a feeder.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Number of registrations that may fail one after the other, or bring no entries, before the next feeder is
/// tried.
const FAILURES_MAX: u32 = 3;

/// Determines the identity of an observer without data. The id is a function of the cluster and of the
/// observer's peer URLs, which must be its own: so it is the same if the first start is interrupted.
///
/// # Errors
///
/// Returns an error if no feeder answers, or if the cluster runs at a version that this release does not
/// support.
pub(crate) fn begin(
    config: &Config,
    observer: &ObserverOptions,
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
        let member_id =
            api::identity::observer_id(cluster_id, &texts(&config.cluster.initial_advertise_peer_urls));
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
            RegistrationError::InCircle => f.write_str("it is fed by this observer"),
        }
    }
}

/// The thread that keeps an observer registered with a feeder.
pub(crate) struct Registrar {
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Registrar {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread cannot be started.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        logger: &Arc<Logger>,
        config: &Config,
        observer: &ObserverOptions,
    ) -> io::Result<Registrar> {
        let (stop, stopped) = sync_channel::<()>(1);
        let mut registration = Registration::new(shared, logger, config, observer);
        let thread = std::thread::Builder::new().name("registrar".to_owned()).spawn(move || {
            loop {
                block_on(registration.turn());
                let told = stopped.recv_timeout(REGISTRATION_INTERVAL);
                if !matches!(told, Err(RecvTimeoutError::Timeout)) {
                    return;
                }
            }
        })?;
        Ok(Registrar { stop, thread })
    }

    /// Ends the thread, and waits until it has finished its current request.
    pub(crate) fn stop(self) {
        drop(self.stop);
        // If the thread has panicked, the panic hook has already reported that.
        let _ = self.thread.join();
    }
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
        };
        Registration {
            shared: Arc::clone(shared),
            logger: Arc::clone(logger),
            feeds: texts(&observer.feeds),
            card: card.to_json().to_string().into(),
            at: 0,
            failures: 0,
            told: String::new(),
        }
    }

    /// Registers with the current feeder, and goes to the next one if this one has not answered or sent
    /// anything for some turns.
    pub(crate) async fn turn(&mut self) {
        let Some(url) = self.feeds.get(self.at).cloned() else { return };
        let is_followed = self.shared.cluster.feeder();
        match self.register(&url).await {
            Ok(feeder) => {
                let is_silent = is_followed == Some(feeder.0) && !self.shared.cluster.is_fed();
                self.failures = if is_silent { self.failures + 1 } else { 0 };
                self.shared.core.inbox.send(PeerRequest::Follow(feeder, vec![url]));
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

    async fn register(&self, url: &str) -> Result<MemberId, RegistrationError> {
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
            (Some(feeder), Some(_)) if feeder != 0 => Ok(MemberId(feeder)),
            _ => Err(RegistrationError::Answer),
        }
    }
}
