//! A cluster seen through its endpoints: [`Client`] keeps a connection to each, sends calls round robin over those that
//! are up, logs in users, and repeats what may be repeated (`retry`). It knows which methods change something, and
//! nothing else about them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use api::etcdserverpb::{AuthenticateRequest, AuthenticateResponse, MemberListRequest, MemberListResponse};
use api::{Code, Rpc, Status, error};
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use prost::Message;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::call::CallOptions;
use crate::channel::Channel;
use crate::endpoint::Endpoint;
use crate::link::Link;
use crate::retry::{ATTEMPTS, Credentials, Verdict, pause, verdict};
use crate::settings::{Settings, SettingsError};
use crate::stream::Stream;
use crate::tls::PeerCertificates;
use crate::transport::Transport;

/// A cluster, seen through its endpoints. Clones share the connections and the token; any number of tasks may call.
///
/// Connections are made at the first call, one per endpoint, and are kept up in the background. Calls go round robin
/// over those that stand, and wait for one, as long as they may, when none does. Must be used in a tokio runtime.
#[derive(Clone)]
pub struct Client {
    cluster: Arc<Cluster>,
    /// The only endpoint to use, if this is a view of one.
    bound: Option<Arc<Link>>,
    require_leader: bool,
    timeout: Option<Duration>,
}

struct Cluster {
    transport: Transport,
    links: RwLock<Vec<Arc<Link>>>,
    turn: AtomicUsize,
    changes: watch::Sender<u64>,
    user: Option<(String, String)>,
    given_token: Option<HeaderValue>,
    token: Mutex<Token>,
    /// Held while a token is got, so that one authentication serves all who wait.
    authenticating: tokio::sync::Mutex<()>,
    zone: Option<String>,
    zones: RwLock<HashMap<String, String>>,
    dial_timeout: Option<Duration>,
}

/// A token from Authenticate.
#[derive(Clone, Default)]
struct Token {
    /// Number of tokens received so far.
    number: u64,
    value: Option<HeaderValue>,
}

impl Client {
    /// A client that has not connected yet.
    ///
    /// # Errors
    /// The settings make no client.
    pub fn new(settings: Settings) -> Result<Client, SettingsError> {
        if settings.endpoints.is_empty() {
            return Err(SettingsError::NoEndpoints);
        }
        let token = settings.token.as_ref().filter(|token| !token.is_empty());
        let named = settings.user.as_ref().is_some_and(|(name, word)| !name.is_empty() || !word.is_empty());
        if token.is_some() && named {
            return Err(SettingsError::UserAndToken);
        }
        if settings.receive_bytes_max < settings.send_bytes_max {
            let (receive, send) = (settings.receive_bytes_max, settings.send_bytes_max);
            return Err(SettingsError::ReceiveBelowSend(receive, send));
        }
        let given_token =
            token.map(|token| sensitive(token)).transpose().map_err(|_| SettingsError::BadToken)?;
        let (changes, _) = watch::channel(0);
        let transport = settings.transport();
        let cluster = Cluster {
            transport,
            links: RwLock::default(),
            turn: AtomicUsize::new(crate::retry::random() as usize),
            changes,
            user: settings.user.filter(|(name, word)| !name.is_empty() && !word.is_empty()),
            given_token,
            token: Mutex::default(),
            authenticating: tokio::sync::Mutex::default(),
            zone: settings.zone,
            zones: RwLock::default(),
            dial_timeout: settings.dial_timeout.filter(|timeout| !timeout.is_zero()),
        };
        let client = Client { cluster: Arc::new(cluster), bound: None, require_leader: false, timeout: None };
        client.set_endpoints(settings.endpoints);
        Ok(client)
    }

    /// Gets a token within the dial timeout, if there is a user; otherwise does nothing. Calls do this by themselves
    /// when it was not done; etcd's tools do it first and fail with its error.
    ///
    /// # Errors
    /// What Authenticate says; that authentication is not enabled is no error.
    pub async fn authenticate(&self) -> Result<(), Status> {
        let deadline = self.cluster.dial_timeout.map(|timeout| Instant::now() + timeout);
        self.renew_token(0, deadline).await
    }

    /// A view of one endpoint, whether or not it is among the client's.
    #[must_use]
    pub fn at(&self, endpoint: &str) -> Client {
        let known = self.links().into_iter().find(|link| link.endpoint.text == endpoint);
        let link = known.unwrap_or_else(|| self.cluster.link(endpoint));
        Client { bound: Some(link), ..self.clone() }
    }

    /// A view whose calls fail when the member has no leader, rather than wait for one.
    #[must_use]
    pub fn with_require_leader(&self) -> Client {
        Client { require_leader: true, ..self.clone() }
    }

    /// A view whose unary calls end after this long, waiting for a connection included.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Client {
        Client { timeout: Some(timeout), ..self.clone() }
    }

    /// The endpoints, as they were given; the only one of a view of one.
    pub fn endpoints(&self) -> Vec<String> {
        self.links().iter().map(|link| link.endpoint.text.clone()).collect()
    }

    /// Replaces the endpoints. Those that stay keep their connection; calls under way end where they are.
    pub fn set_endpoints(&self, endpoints: Vec<String>) {
        let mut links = self.cluster.links.write().unwrap_or_else(PoisonError::into_inner);
        *links = endpoints
            .iter()
            .map(|text| {
                let kept = links.iter().find(|link| link.endpoint.text == *text);
                kept.cloned().unwrap_or_else(|| self.cluster.link(text))
            })
            .collect();
    }

    /// Takes the endpoints from the member list: the client URLs of members that have started and vote.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn sync(&self) -> Result<(), Status> {
        let request = MemberListRequest { linearizable: true };
        let answer: MemberListResponse = self.call(Rpc::ClusterMemberList, &request).await?;
        let voters =
            answer.members.into_iter().filter(|member| !member.name.is_empty() && !member.is_learner);
        let endpoints: Vec<String> = voters.flat_map(|member| member.client_urls).collect();
        if !endpoints.is_empty() {
            self.set_endpoints(endpoints);
        }
        Ok(())
    }

    /// Says in which zone each endpoint's member is. With a zone in the settings, calls go to endpoints of that zone
    /// as long as one of them stands, and to others only then.
    pub fn set_zones(&self, zones: HashMap<String, String>) {
        *self.cluster.zones.write().unwrap_or_else(PoisonError::into_inner) = zones;
    }

    /// Calls a unary method.
    ///
    /// Failures are repeated as etcd's client does: what only reads (and granting or revoking a lease) after any
    /// `Unavailable`, everything else only when it is certain that no server saw it; a token that expired is renewed.
    ///
    /// # Errors
    /// The server's status, or `DeadlineExceeded`, or `Unavailable` for a connection that broke; see [`shown`].
    pub async fn call<Req: Message, Resp: Message + Default>(
        &self,
        rpc: Rpc,
        request: &Req,
    ) -> Result<Resp, Status> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        decode(&self.call_raw(rpc, request.encode_to_vec().into(), deadline).await?)
    }

    /// Opens a streaming call: one that waits for a connection, and starts with a fresh token if there is a user,
    /// since an old one may have expired. Once open it is not repeated.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn open<Req: Message, Resp: Message + Default>(
        &self,
        rpc: Rpc,
    ) -> Result<Stream<Req, Resp>, Status> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        if self.cluster.user.is_some() {
            let seen = self.cluster.token().number;
            self.renew_token(seen, deadline).await?;
        }
        loop {
            let channel = self.channel(deadline).await?;
            let options = CallOptions { metadata: self.metadata(rpc).1, ..CallOptions::default() };
            match channel.stream_with(rpc.path(), &options).await {
                Ok((sender, receiver)) => return Ok(Stream::new(sender, receiver)),
                // The connection went in between, and its keeper is about to see it.
                Err(status) if status.code == Code::Unavailable => sleep(pause(1, 1)).await,
                Err(status) => return Err(status),
            }
        }
    }

    /// Opens a call with one request and a stream of answers.
    ///
    /// # Errors
    /// As [`Client::open`], and `ResourceExhausted` for a request above the limit.
    pub async fn open_with<Req: Message, Resp: Message + Default>(
        &self,
        rpc: Rpc,
        request: &Req,
    ) -> Result<Stream<Req, Resp>, Status> {
        let mut stream = self.open(rpc).await?;
        stream.send(request).await?;
        stream.finish();
        Ok(stream)
    }

    /// Returns the certificates of the server from the TLS handshake; `None` without TLS. Connects first if needed.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded`.
    pub async fn peer(&self) -> Result<Option<PeerCertificates>, Status> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        Ok(self.channel(deadline).await?.peer().cloned())
    }

    /// Why there is no connection: endpoint and error of each that was tried, and does not stand or never stood for long.
    pub fn dial_errors(&self) -> Vec<(String, String)> {
        let links = self.links().into_iter();
        links.filter_map(|link| Some((link.endpoint.text.clone(), link.error()?))).collect()
    }

    /// Returns true if a connection stands, and servers did not hang up on those before it.
    pub fn is_connected(&self) -> bool {
        self.links().iter().any(|link| link.channel().is_some() && link.error().is_none())
    }

    /// Returns true if calls are made in a user's name, by password.
    pub(crate) fn has_user(&self) -> bool {
        self.cluster.user.is_some()
    }

    fn links(&self) -> Vec<Arc<Link>> {
        match &self.bound {
            Some(link) => vec![link.clone()],
            None => self.cluster.links.read().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    async fn call_raw(&self, rpc: Rpc, message: Bytes, deadline: Option<Instant>) -> Result<Bytes, Status> {
        if self.cluster.user.is_some() && self.cluster.token().number == 0 {
            self.renew_token(0, deadline).await?;
        }
        self.attempts(rpc, message, deadline).await
    }

    async fn attempts(&self, rpc: Rpc, message: Bytes, deadline: Option<Instant>) -> Result<Bytes, Status> {
        let endpoints = self.links().len();
        let mut last = LATE;
        for attempt in 0..ATTEMPTS {
            until(deadline, sleep(pause(attempt, endpoints))).await?;
            let channel = self.channel(deadline).await?;
            let (token, metadata) = self.metadata(rpc);
            let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let options = CallOptions { metadata, timeout, ..CallOptions::default() };
            let failure = match channel.attempt(rpc.path(), &options, message.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match verdict(rpc, &failure, endpoints, self.credentials(rpc)) {
                Verdict::Final => return Err(failure.status),
                Verdict::Repeat => {}
                Verdict::Authenticate if self.cluster.user.is_some() => {
                    // Boxed, because getting a token is a call itself.
                    Box::pin(self.renew_token(token, deadline)).await?;
                }
                Verdict::Authenticate => {}
            }
            last = failure.status;
        }
        Err(last)
    }

    fn credentials(&self, rpc: Rpc) -> Credentials {
        match (&self.cluster.user, &self.cluster.given_token) {
            (_, Some(_)) => Credentials::Token,
            // A call for a token cannot be mended by another one.
            (Some(_), None) if rpc != Rpc::Authenticate => Credentials::User,
            (Some(_), None) => Credentials::Token,
            (None, None) => Credentials::None,
        }
    }

    /// Gets a token, unless another call got a newer one than this number meanwhile.
    async fn renew_token(&self, seen: u64, deadline: Option<Instant>) -> Result<(), Status> {
        let Some((name, password)) = &self.cluster.user else { return Ok(()) };
        let _one = until(deadline, self.cluster.authenticating.lock()).await?;
        if self.cluster.token().number > seen {
            return Ok(());
        }
        let request = AuthenticateRequest { name: name.clone(), password: password.clone() };
        let answer = self.attempts(Rpc::Authenticate, request.encode_to_vec().into(), deadline).await;
        let value = match answer {
            Ok(answer) => {
                let answer: AuthenticateResponse = decode(&answer)?;
                let token = sensitive(&answer.token);
                Some(
                    token
                        .map_err(|_| Status::new(Code::Internal, "the server's token is no header value"))?,
                )
            }
            Err(status) if status.message == error::AUTH_NOT_ENABLED.message => None,
            Err(status) => return Err(status),
        };
        let mut token = self.cluster.token();
        *token = Token { number: token.number + 1, value };
        Ok(())
    }

    /// The number of the token used, and the metadata.
    fn metadata(&self, rpc: Rpc) -> (u64, Vec<(HeaderName, HeaderValue)>) {
        let version = HeaderValue::from_static(api::API_VERSION);
        let mut metadata = vec![(HeaderName::from_static("client-api-version"), version)];
        if self.require_leader {
            metadata.push((HeaderName::from_static("hasleader"), HeaderValue::from_static("true")));
        }
        let token = self.cluster.token().clone();
        let value = self.cluster.given_token.clone().or(token.value).filter(|_| rpc != Rpc::Authenticate);
        if let Some(value) = value {
            metadata.push((HeaderName::from_static("token"), value));
        }
        (token.number, metadata)
    }

    /// Number of endpoints that calls may go to.
    pub(crate) fn endpoint_count(&self) -> usize {
        match &self.bound {
            Some(_) => 1,
            None => self.cluster.links.read().unwrap_or_else(PoisonError::into_inner).len(),
        }
    }

    /// A connection that stands, and the next one each time.
    pub(crate) async fn channel(&self, deadline: Option<Instant>) -> Result<Channel, Status> {
        let mut changes = self.cluster.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(channel) = self.choose() {
                return Ok(channel);
            }
            until(deadline, changes.changed())
                .await?
                .map_err(|_| Status::new(Code::Unavailable, "the client is closed"))?;
        }
    }

    fn choose(&self) -> Option<Channel> {
        let links = self.links();
        let transport = &self.cluster.transport;
        let (near, far) = match &self.cluster.zone {
            Some(zone) if self.bound.is_none() => {
                let zones = self.cluster.zones.read().unwrap_or_else(PoisonError::into_inner);
                links.into_iter().partition(|link| zones.get(&link.endpoint.text) == Some(zone))
            }
            _ => (links, Vec::new()),
        };
        near.iter().for_each(|link| link.wake(transport));
        let turn = self.cluster.turn.fetch_add(1, Ordering::Relaxed);
        if let Some(channel) = standing(&near, turn) {
            return Some(channel);
        }
        if !near.iter().all(|link| link.was_tried()) {
            return None;
        }
        far.iter().for_each(|link| link.wake(transport));
        standing(&far, turn)
    }
}

impl Cluster {
    fn link(&self, endpoint: &str) -> Arc<Link> {
        Arc::new(Link::new(Endpoint::new(endpoint), self.changes.clone()))
    }

    fn token(&self) -> MutexGuard<'_, Token> {
        // It is replaced as a whole.
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Round robin over the connections that stand.
fn standing(links: &[Arc<Link>], turn: usize) -> Option<Channel> {
    let channels: Vec<Channel> = links.iter().filter_map(|link| link.channel()).collect();
    let at = turn.checked_rem(channels.len())?;
    channels.into_iter().nth(at)
}

/// Status of a call that ran out of time.
const LATE: Status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");

async fn until<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Result<T, Status> {
    match deadline {
        None => Ok(future.await),
        Some(deadline) => timeout_at(deadline, future).await.map_err(|_| LATE),
    }
}

fn sensitive(token: &str) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(token)?;
    value.set_sensitive(true);
    Ok(value)
}

pub(crate) fn decode<M: Message + Default>(bytes: &Bytes) -> Result<M, Status> {
    M::decode(bytes.clone()).map_err(|error| {
        Status::with(Code::Internal, format!("grpc: failed to unmarshal the received message: {error}"))
    })
}

/// The status that a text of etcd's catalogue stands for, such as a watch's cancel reason; `Unknown` for any other.
pub fn status_of_text(text: &str) -> Status {
    let known = error::CATALOGUE.iter().find(|known| known.message == text);
    known.cloned().unwrap_or_else(|| Status::with(Code::Unknown, text))
}

/// Returns the text of [`Status::shown`].
pub fn shown(status: &Status) -> String {
    status.shown()
}
