//! Makes calls to a cluster. [`Client`] keeps one connection to each endpoint, distributes calls round robin
//! over the open connections, authenticates a user, and retries calls by the rules in `retry`. It knows
//! nothing about the API's methods except which of them are safe to retry.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use api::etcdserverpb::{AuthenticateRequest, AuthenticateResponse, MemberListRequest, MemberListResponse};
use api::{Code, Rpc, Status, error};
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use prost::Message;
use stdx::{First, race};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::call::CallOptions;
use crate::channel::Channel;
use crate::endpoint::Endpoint;
use crate::link::{Link, PATIENCE};
use crate::preference::Preference;
use crate::retry::{ATTEMPTS, Credentials, Verdict, pause, verdict};
use crate::settings::{Settings, SettingsError};
use crate::stream::Stream;
use crate::tls::PeerCertificates;
use crate::transport::Transport;

/// Client of a cluster. Clones share the connections and the token; any number of tasks may make calls
/// concurrently.
///
/// The first call opens one connection per endpoint, and background tasks keep the connections open. Calls are
/// distributed round robin over the open connections. If the settings have a [`Preference`], a call uses only
/// the endpoints of the lowest rank that have an open connection, and endpoints of higher ranks are connected
/// only if needed; each repetition of a failed call goes on to the next endpoint in that order. If no connection
/// is open, a call waits for one until its deadline. Must be used in a tokio runtime.
#[derive(Clone)]
pub struct Client {
    cluster: Arc<Cluster>,
    /// The only endpoint to use, if [`Client::at`] has created this client; otherwise `None`.
    bound: Option<Arc<Link>>,
    require_leader: bool,
    timeout: Option<Duration>,
}

struct Cluster {
    transport: Transport,
    links: RwLock<Vec<Arc<Link>>>,
    turn: AtomicUsize,
    changes: watch::Sender<u64>,
    /// The endpoints in the settings. A client with a preference keeps them when it synchronises its endpoints.
    given: Vec<String>,
    user: Option<(String, String)>,
    given_token: Option<HeaderValue>,
    token: Mutex<Token>,
    /// Locked while a token is requested, so that calls that need a token at the same time wait, and then use
    /// this token instead of requesting another one.
    authenticating: tokio::sync::Mutex<()>,
    preference: Option<Preference>,
    dial_timeout: Option<Duration>,
}

/// Token that the server returned from Authenticate.
#[derive(Clone, Default)]
struct Token {
    /// Number of tokens received so far.
    number: u64,
    value: Option<HeaderValue>,
}

impl Client {
    /// Creates a client. It does not connect before the first call.
    ///
    /// # Errors
    /// Returns an error if the settings are incomplete or contradict each other.
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
            given: settings.endpoints.clone(),
            user: settings.user.filter(|(name, word)| !name.is_empty() && !word.is_empty()),
            given_token,
            token: Mutex::default(),
            authenticating: tokio::sync::Mutex::default(),
            preference: settings.preference,
            dial_timeout: settings.dial_timeout.filter(|timeout| !timeout.is_zero()),
        };
        let client = Client { cluster: Arc::new(cluster), bound: None, require_leader: false, timeout: None };
        client.set_endpoints(settings.endpoints);
        Ok(client)
    }

    /// Gets a token. Does nothing if the client has no user or already has a token. The time limit is the
    /// dial timeout. Calling this is optional, because every call first gets a token if the client has none.
    /// It serves tools that, like etcd's, authenticate first and exit with the error if that fails.
    ///
    /// # Errors
    /// Returns the status of Authenticate. It is not an error if authentication is disabled on the server.
    pub async fn authenticate(&self) -> Result<(), Status> {
        let deadline = self.cluster.dial_timeout.map(|timeout| Instant::now() + timeout);
        self.renew_token(0, deadline).await
    }

    /// Returns a client that uses only this endpoint, which need not be one of the client's endpoints.
    #[must_use]
    pub fn at(&self, endpoint: &str) -> Client {
        let known = self.links().into_iter().find(|link| link.endpoint.text == endpoint);
        let link = known.unwrap_or_else(|| self.cluster.link(endpoint));
        Client { bound: Some(link), ..self.clone() }
    }

    /// Returns a client whose calls fail if the member has no leader, instead of waiting for a leader.
    #[must_use]
    pub fn with_require_leader(&self) -> Client {
        Client { require_leader: true, ..self.clone() }
    }

    /// Returns a client whose unary calls have this time limit, which includes waiting for a connection.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Client {
        Client { timeout: Some(timeout), ..self.clone() }
    }

    /// Returns the endpoints as strings, as they were given. For a client from [`Client::at`], returns its
    /// only endpoint.
    pub fn endpoints(&self) -> Vec<String> {
        self.links().iter().map(|link| link.endpoint.text.clone()).collect()
    }

    /// Replaces the endpoints. Endpoints that are in both lists keep their connection. Calls in flight finish
    /// on their old connection.
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

    /// Replaces the endpoints by the client URLs in the member list. Learners and members that have not
    /// started are left out. A client with a [`Preference`] keeps those of its settings: the list may name only
    /// members of its zone, which may all end, and the ranks decide which endpoints are used anyway.
    ///
    /// # Errors
    /// Returns the same errors as [`Client::call`].
    pub async fn sync(&self) -> Result<(), Status> {
        let request = MemberListRequest { linearizable: true };
        let answer: MemberListResponse = self.call(Rpc::ClusterMemberList, &request).await?;
        let voters =
            answer.members.into_iter().filter(|member| !member.name.is_empty() && !member.is_learner);
        let mut endpoints: Vec<String> = voters.flat_map(|member| member.client_urls).collect();
        if !endpoints.is_empty() {
            if self.cluster.preference.is_some() {
                endpoints = self.with_given(endpoints);
            }
            self.set_endpoints(endpoints);
        }
        Ok(())
    }

    /// Returns the endpoints of the settings and then those of these that are others. An endpoint keeps the string
    /// of the settings, because its rank has that name and the other clients with the preference may not
    /// synchronise their endpoints.
    fn with_given(&self, synced: Vec<String>) -> Vec<String> {
        let address = |text: &String| Endpoint::new(text.as_str()).address;
        let given = &self.cluster.given;
        let known: Vec<_> = given.iter().map(address).collect();
        let others = synced.into_iter().filter(|text| !known.contains(&address(text)));
        given.iter().cloned().chain(others).collect()
    }

    /// Returns the order in which the client prefers its endpoints; `None` if it uses all in turn.
    pub fn preference(&self) -> Option<&Preference> {
        self.cluster.preference.as_ref().filter(|_| self.bound.is_none())
    }

    /// Returns true if an endpoint that is preferred to this one has a stable connection. Streams stay at the
    /// endpoint at which they were opened; with this, their owner can tell that it is time to open them again.
    /// Each `class` ranks in a row count as equal, so that a stream need not move for a small difference.
    pub fn is_outranked(&self, endpoint: &str, class: u32) -> bool {
        let Some(preference) = self.preference() else { return false };
        let class_of = |endpoint: &str| preference.rank(endpoint) / class.max(1);
        let own = class_of(endpoint);
        let preferred = self.links().into_iter().filter(|link| class_of(&link.endpoint.text) < own);
        let mut preferred = preferred.inspect(|link| link.wake(&self.cluster.transport));
        preferred.any(|link| link.channel().is_some() && link.error().is_none())
    }

    /// Calls a unary method.
    ///
    /// Retries failed calls as etcd's client does. Reads, and a few other calls whose repetition does no harm
    /// (such as granting or revoking a lease), are retried after any `Unavailable`; all other calls only if
    /// it is certain that no server processed them. An expired token is renewed.
    ///
    /// # Errors
    /// Returns the status that the server sent, `DeadlineExceeded`, `Unavailable` if the connection broke, or
    /// `ResourceExhausted` for a message above a size limit. [`shown`] returns the message to show to users.
    pub async fn call<Req: Message, Resp: Message + Default>(
        &self,
        rpc: Rpc,
        request: &Req,
    ) -> Result<Resp, Status> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        decode(&self.call_raw(rpc, request.encode_to_vec().into(), deadline).await?)
    }

    /// Opens a streaming call. Waits for a connection. If the client has a user, first gets a new token,
    /// because the old one may have expired. A call that is open is not retried.
    ///
    /// # Errors
    /// Returns the same errors as [`Client::call`].
    pub async fn open<Req: Message, Resp: Message + Default>(
        &self,
        rpc: Rpc,
    ) -> Result<Stream<Req, Resp>, Status> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        if self.cluster.user.is_some() {
            let seen = self.cluster.token().number;
            self.renew_token(seen, deadline).await?;
        }
        let mut route = self.route(0);
        loop {
            let channel = self.channel(deadline, &mut route).await?.0;
            let options = CallOptions { metadata: self.metadata(rpc).1, ..CallOptions::default() };
            match channel.stream_with(rpc.path(), &options).await {
                Ok((sender, receiver)) => return Ok(Stream::new(sender, receiver)),
                // The connection broke after it was chosen. Try again, because the task that maintains the
                // connection will soon open another one.
                Err(status) if status.code == Code::Unavailable => sleep(pause(1, 1)).await,
                Err(status) => return Err(status),
            }
        }
    }

    /// Opens a call with one request and a stream of responses.
    ///
    /// # Errors
    /// Returns the errors of [`Client::open`], and `ResourceExhausted` for a request above the size limit.
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

    /// Returns the certificates that the server sent in the TLS handshake; `None` without TLS. Connects first
    /// if needed.
    ///
    /// # Errors
    ///
    /// Returns `DeadlineExceeded` if no connection was opened in time.
    pub async fn peer(&self) -> Result<Option<PeerCertificates>, Status> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        Ok(self.channel(deadline, &mut self.route(0)).await?.0.peer().cloned())
    }

    /// Returns the endpoints without a stable connection, with their last errors: endpoints that could not be
    /// reached, and those whose last connection broke and whose new one has not lasted long enough.
    pub fn dial_errors(&self) -> Vec<(String, String)> {
        let links = self.links().into_iter();
        links.filter_map(|link| Some((link.endpoint.text.clone(), link.error()?))).collect()
    }

    /// Returns true if a connection to any endpoint is open. After an error, a new connection counts only
    /// after it has been open for a while, so that a server that closes every connection immediately does not
    /// count as connected.
    pub fn is_connected(&self) -> bool {
        self.links().iter().any(|link| link.channel().is_some() && link.error().is_none())
    }

    /// Returns true if the client authenticates with a user name and a password.
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
        let mut route = self.route(0);
        let mut last = LATE;
        for attempt in 0..ATTEMPTS {
            until(deadline, sleep(pause(attempt, endpoints))).await?;
            let (channel, _) = self.channel(deadline, &mut route).await?;
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
                    // Box the future, because the function is recursive: getting a token is itself a call
                    // through this function.
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
            // A failure of Authenticate must not lead to another authentication. `Token` prevents this.
            (Some(_), None) if rpc != Rpc::Authenticate => Credentials::User,
            (Some(_), None) => Credentials::Token,
            (None, None) => Credentials::None,
        }
    }

    /// Gets a new token. Does nothing if another call has already received a token whose number is above
    /// `seen`.
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
                Some(token.map_err(|_| {
                    Status::new(Code::Internal, "the server's token is not a valid header value")
                })?)
            }
            Err(status) if status.message == error::AUTH_NOT_ENABLED.message => None,
            Err(status) => return Err(status),
        };
        let mut token = self.cluster.token();
        *token = Token { number: token.number + 1, value };
        Ok(())
    }

    /// Returns the number of the token in use, and the metadata of a call.
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

    /// Number of endpoints that calls may use.
    pub(crate) fn endpoint_count(&self) -> usize {
        match &self.bound {
            Some(_) => 1,
            None => self.cluster.links.read().unwrap_or_else(PoisonError::into_inner).len(),
        }
    }

    /// Returns the order in which one call tries the endpoints. The first attempt passes over so many of the
    /// preferred endpoints.
    pub(crate) fn route(&self, passed_over: usize) -> Route {
        let turn = self.cluster.turn.fetch_add(1, Ordering::Relaxed);
        match self.cluster.preference {
            Some(_) if self.bound.is_none() => {
                Route { turn: turn.wrapping_sub(passed_over), next: passed_over }
            }
            _ => Route { turn, next: 0 },
        }
    }

    /// Waits for an open connection and returns it with its endpoint. Each further call with the same route
    /// returns the next connection of that route.
    pub(crate) async fn channel(
        &self,
        deadline: Option<Instant>,
        route: &mut Route,
    ) -> Result<(Channel, Arc<Link>), Status> {
        let mut changes = self.cluster.changes.subscribe();
        // Only for calls that have to wait: all threads share the preference.
        let mut ranks = None;
        loop {
            changes.mark_unchanged();
            ranks.iter_mut().for_each(watch::Receiver::mark_unchanged);
            if let Some((channel, link)) = self.choose(route) {
                route.next += 1;
                if let Some(preference) = self.preference() {
                    preference.count_attempt(&link.endpoint.text);
                }
                return Ok((channel, link));
            }
            if ranks.is_none()
                && let Some(preference) = self.preference()
            {
                // Look again, in case that the order has changed just before.
                ranks = Some(preference.changes());
                continue;
            }
            let other_order = async {
                match &mut ranks {
                    // Or the time has come to use those that are not preferred.
                    Some(ranks) => drop(timeout(PATIENCE, ranks.changed()).await),
                    None => std::future::pending().await,
                }
            };
            let changed = match until(deadline, race(changes.changed(), other_order)).await? {
                First::Left(changed) => changed,
                First::Right(()) => continue,
            };
            changed.map_err(|_| Status::new(Code::Unavailable, "the client is closed"))?;
        }
    }

    fn choose(&self, route: &Route) -> Option<(Channel, Arc<Link>)> {
        let links = self.links();
        let preference = self.preference();
        let rank = |link: &Arc<Link>| preference.map_or(0, |order| order.rank(&link.endpoint.text));
        let mut ranked: Vec<(u32, Arc<Link>)> = links.into_iter().map(|link| (rank(&link), link)).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        // Open connections in the order of the route, up to the one to use now.
        let mut order = Vec::new();
        // True if an attempt to connect to a preferred endpoint takes long. Others are used meanwhile.
        let mut is_connecting = false;
        for equals in ranked.chunk_by(|one, other| one.0 == other.0) {
            equals.iter().for_each(|(_, link)| link.wake(&self.cluster.transport));
            let open = equals.iter().filter_map(|(_, link)| Some((link.channel()?, link.clone())));
            let mut open: Vec<_> = open.collect();
            if let Some(first) = route.turn.checked_rem(open.len()) {
                open.rotate_left(first);
            }
            order.append(&mut open);
            if order.len() > route.next {
                break;
            }
            let untried = equals.iter().filter(|(_, link)| !link.was_tried());
            if order.is_empty() && !is_connecting {
                if untried.clone().any(|(_, link)| !link.is_slow()) {
                    break;
                }
                is_connecting = untried.count() > 0;
            }
        }
        let at = route.next.checked_rem(order.len())?;
        Some(order.swap_remove(at))
    }
}

/// Order in which one call tries the endpoints.
#[derive(Debug)]
pub(crate) struct Route {
    /// Counter that decides which of the endpoints of the same rank is the first.
    turn: usize,
    /// Number of endpoints to pass over in the next attempt.
    next: usize,
}

impl Cluster {
    fn link(&self, endpoint: &str) -> Arc<Link> {
        Arc::new(Link::new(Endpoint::new(endpoint), self.changes.clone()))
    }

    fn token(&self) -> MutexGuard<'_, Token> {
        // The token is always replaced as a whole, so a poisoned mutex still holds a valid value.
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Status of a call whose time limit is exceeded.
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

/// Returns the status for one of etcd's error messages, for example for the cancel reason of a watch. The
/// code is `Unknown` for any other message.
pub fn status_of_text(text: &str) -> Status {
    let known = error::CATALOGUE.iter().find(|known| known.message == text);
    known.cloned().unwrap_or_else(|| Status::with(Code::Unknown, text))
}

/// Returns the message of a status to show to users; see [`Status::shown`].
pub fn shown(status: &Status) -> String {
    status.shown()
}
