//! Peer thread: [`Hub`] owns the peers, the listeners and their connections, takes the contents of the inbox
//! that other threads fill, and wakes streams that have data to send. `routes` answers the requests.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stdx::{First, race};

use api::raftpb::Message;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use tls::{PeerNames, ServerTls, SystemResolver};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use transport::{Clock, Stream, end_turn};

use crate::acceptor::Acceptor;
use crate::client::{self, Client};
use crate::dialer::Dialer;
use crate::endpoint::Endpoint;
use crate::error::{ExchangeError, PostError, RequestError};
use crate::fair_stream::FairStream;
use crate::frame_buffer::FrameBuffer;
use crate::handler::{Handler, SnapshotForm};
use crate::handshakes::{Failure, Handshakes, LOOK_UPS_MAX, Rejected, SharedResolver};
use crate::identity::{self, Identity, MAINSTAY_SNAPSHOT};
use crate::inbox::{Arrivals, Command, Inbox};
use crate::options::{
    CONNECTIONS_MAX, Field, IDLE_MAX, Level, Log, Options, REJECTIONS_SAID_MAX, REMOTES_MAX,
    SESSION_CHECK_INTERVAL, SNAPSHOT_ANSWER_TIMEOUT, SNAPSHOT_TIMEOUTS, SNAPSHOTS_RECEIVED_MAX,
};
use crate::peer::Peer;
use crate::piece::Piece;
use crate::places::{Guest, Places, SnapshotPlaces};
use crate::request_body::RequestBody;
use crate::routes;
use crate::sessions::{Finding, Side};
use crate::socket::Socket;
use crate::target::Target;

/// Maximum number of batches taken from the inbox before the network has its turn.
const BATCHES_PER_TURN: usize = 8;
/// Pause after a failed accept, for example when no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of bytes read from the answer to a refused snapshot.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// Rate limit for log lines about rejected connections.
#[derive(Clone, Copy, Default)]
struct Rejections {
    second: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl Rejections {
    /// Counts a rejection. Returns `None` if it must not be logged, else the number of rejections not logged
    /// since the last one.
    fn note(&mut self, now: Instant) -> Option<u64> {
        if self.second.is_none_or(|second| now.duration_since(second) >= Duration::from_secs(1)) {
            self.second = Some(now);
            self.said = 0;
        }
        if self.said == REJECTIONS_SAID_MAX {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// State of the peer thread.
pub(crate) struct Hub {
    pub(crate) identity: Identity,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) client: Client,
    pub(crate) read_timeout: Duration,
    pub(crate) write_timeout: Duration,
    /// Slots for snapshots that are being received.
    pub(crate) receiving: SnapshotPlaces,
    /// Bytes of message bodies being read from senders that claim to be members.
    pub(crate) members_bodies: Cell<usize>,
    /// Bytes of message bodies being read from all other senders.
    pub(crate) strangers_bodies: Cell<usize>,
    log: Log,
    peers: RefCell<BTreeMap<u64, Rc<Peer>>>,
    /// Ids of unknown senders that can be answered, least recently heard first.
    remotes: RefCell<VecDeque<u64>>,
    places: Places,
    /// Resolver for the names in clients' certificates.
    resolver: SharedResolver,
    look_ups: Arc<Semaphore>,
    rejections: Cell<Rejections>,
    /// Time of the last log line about too many connections.
    crowded: Cell<Option<Instant>>,
    told_removed: Cell<bool>,
    stopping: Cell<bool>,
}

impl Hub {
    /// The pair of durations is [`Options::read_timeout`] and [`Options::write_timeout`].
    pub(crate) fn new(
        identity: Identity,
        handler: Arc<dyn Handler>,
        log: Log,
        inbox: Arc<Inbox>,
        (read_timeout, write_timeout): (Duration, Duration),
        dialer: Dialer,
    ) -> Hub {
        Hub {
            identity,
            handler,
            inbox,
            client: Client::new(dialer),
            resolver: Arc::new(SystemResolver),
            look_ups: Arc::new(Semaphore::new(LOOK_UPS_MAX)),
            rejections: Cell::default(),
            read_timeout,
            write_timeout,
            receiving: SnapshotPlaces::new(SNAPSHOTS_RECEIVED_MAX, read_timeout * SNAPSHOT_TIMEOUTS),
            members_bodies: Cell::new(0),
            strangers_bodies: Cell::new(0),
            log,
            peers: RefCell::default(),
            remotes: RefCell::default(),
            places: Places::new(CONNECTIONS_MAX),
            crowded: Cell::new(None),
            told_removed: Cell::new(false),
            stopping: Cell::new(false),
        }
    }

    pub(crate) fn start(
        options: Options,
        handler: Arc<dyn Handler>,
        log: Log,
        inbox: Arc<Inbox>,
    ) -> io::Result<JoinHandle<()>> {
        let identity = Identity::new(&options)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let mut listeners = Vec::with_capacity(options.listeners.len());
        for listener in options.listeners {
            listeners.push(Acceptor::new(listener)?);
        }
        drop(entered);
        let (read_timeout, write_timeout) = (options.read_timeout, options.write_timeout);
        let (tls, local_address) = (options.tls, options.local_address);
        std::thread::Builder::new().name("peer".to_owned()).spawn(move || {
            let dialer = Dialer::new(tls, Some(Handshakes::default())).bound_to(local_address);
            let hub = Rc::new(Hub::new(identity, handler, log, inbox, (read_timeout, write_timeout), dialer));
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, run(Rc::clone(&hub), listeners));
            hub.stopping.set(true);
            // Tasks hold references to the hub and the peers; dropping the tasks closes everything.
            drop(local);
            // A pending name look-up does not delay the shutdown.
            runtime.shutdown_background();
        })
    }

    /// Writes a log line about a peer.
    pub(crate) fn log(&self, level: Level, message: &str, peer: u64, detail: &str) {
        let id = format!("{peer:x}");
        let fields = [("remote-peer-id", Field::Text(&id)), ("detail", Field::Text(detail))];
        (self.log)(level, message, if detail.is_empty() { &fields[..1] } else { &fields });
    }

    /// Returns the peer with this id if it is a member, and not only a known sender.
    pub(crate) fn member(&self, id: u64) -> Option<Rc<Peer>> {
        self.peers.borrow().get(&id).filter(|peer| !peer.is_remote).cloned()
    }

    /// Returns the member that a request claims to come from; 0 if the request names none, or none that is
    /// valid.
    pub(crate) fn known_sender(&self, headers: &http::HeaderMap) -> u64 {
        let from = headers.get(identity::SERVER_FROM).and_then(|id| identity::parse_id(id.to_str().ok()?));
        let known = from.filter(|id| self.member(*id).is_some() && self.identity.check(headers).is_ok());
        known.unwrap_or(0)
    }

    /// Logs that connections are closed, at most once a second.
    fn crowded(&self, text: &str) {
        let now = Instant::now();
        if self.crowded.get().is_none_or(|at| now.duration_since(at) >= Duration::from_secs(1)) {
            self.crowded.set(Some(now));
            (self.log)(Level::Warn, text, &[]);
        }
    }

    /// Closes the TLS connections whose peers are no longer trusted.
    fn check_sessions(&self) {
        self.client.dialer.sessions.end_untrusted(|finding, remote, refusal| {
            let error = refusal.to_string();
            let fields = [("remote-addr", Field::Text(remote)), ("error", Field::Text(&error))];
            let (level, text) = match finding {
                Finding::Closed => (Level::Warn, "closed a TLS connection between members"),
                Finding::Expired => (
                    Level::Error,
                    "the certificate of a connected member has ended: its connections stay, but new ones are refused; \
                     replace the certificate",
                ),
            };
            (self.log)(level, text, &fields);
        });
    }

    /// Logs a rejected connection in etcd's words; at most a few per second, others are only counted.
    fn rejected(&self, from: SocketAddr, rejected: &Rejected) {
        self.handler.rejected();
        // As in etcd, port probes, which connect and send nothing, do not fill the log.
        let is_probe = rejected.failure.is_end_of_file();
        let left_out = if is_probe {
            0
        } else {
            let mut rejections = self.rejections.get();
            let left_out = rejections.note(Instant::now());
            self.rejections.set(rejections);
            let Some(left_out) = left_out else { return };
            left_out
        };
        let (from, error, left_out) = (from.to_string(), rejected.failure.to_string(), left_out.to_string());
        let mut fields =
            vec![("remote-addr", Field::Text(&from)), ("server-name", Field::Text(&rejected.server_name))];
        let PeerNames { ip_addresses, dns_names } = rejected.names.clone().unwrap_or_default();
        let ip_addresses: Vec<String> = ip_addresses.iter().map(IpAddr::to_string).collect();
        let ip_addresses: Vec<&str> = ip_addresses.iter().map(String::as_str).collect();
        let dns_names: Vec<&str> = dns_names.iter().map(String::as_str).collect();
        if rejected.names.is_some() {
            fields.push(("ip-addresses", Field::List(&ip_addresses)));
            fields.push(("dns-names", Field::List(&dns_names)));
        }
        fields.push(("error", Field::Text(&error)));
        if left_out != "0" {
            fields.push(("rejections-left-out", Field::Text(&left_out)));
        }
        let level = if is_probe { Level::Debug } else { Level::Warn };
        (self.log)(level, "rejected connection on peer endpoint", &fields);
    }

    pub(crate) fn unreachable(&self, id: u64) {
        if !self.stopping.get() {
            self.handler.unreachable(id);
        }
    }

    pub(crate) fn told_removed(&self, by: u64) {
        if !self.told_removed.replace(true) {
            self.log(Level::Error, "a peer says that this member was removed from the cluster", by, "");
            self.handler.removed();
        }
    }

    /// Remembers an unknown sender and its URLs, so that it can be answered; it may know more about the
    /// cluster than this member.
    pub(crate) fn add_remote(self: &Rc<Self>, id: u64, urls: &[String]) {
        let mut peers = self.peers.borrow_mut();
        let mut remotes = self.remotes.borrow_mut();
        if let Some(at) = remotes.iter().position(|known| *known == id) {
            // The sender is known already and becomes the most recently heard one.
            remotes.remove(at);
            remotes.push_back(id);
            return;
        }
        if id == 0
            || id == self.identity.local_id
            || peers.contains_key(&id)
            || self.handler.is_removed(id)
            || !urls.iter().any(|url| Endpoint::dialable(url, self.client.dialer.has_tls()).is_ok())
        {
            return;
        }
        if remotes.len() >= REMOTES_MAX
            && let Some(oldest) = remotes.pop_front()
            && let Some(peer) = peers.remove(&oldest)
        {
            peer.close();
            self.inbox.forget_remote(oldest);
        }
        let account = self.inbox.add_remote(id);
        peers.insert(id, Peer::remote(self, account, urls));
        remotes.push_back(id);
        self.log(Level::Info, "added remote peer", id, &urls.join(","));
    }

    fn take(self: &Rc<Self>, arrivals: Arrivals) {
        for command in arrivals.commands {
            match command {
                Command::Members(members) => self.set_members(members),
                Command::TlsReloaded => self.check_sessions(),
                Command::Request { target, request, timeout, answer, permit } => {
                    let hub = Rc::clone(self);
                    tokio::task::spawn_local(async move {
                        let mut answer = answer;
                        let exchange = hub.exchange(&target, request, timeout);
                        if let First::Left(answered) = race(exchange, answer.closed()).await {
                            // The receiver may have been dropped.
                            let _ = answer.send(answered);
                        }
                        drop(permit);
                    });
                }
                Command::Snapshot { message, form, pieces, done } => {
                    tokio::task::spawn_local(post_snapshot(Rc::clone(self), message, form, pieces, done));
                }
            }
        }
        let mut unreachable: BTreeSet<u64> = arrivals.unreachable.into_iter().collect();
        let peers = self.peers.borrow();
        for message in arrivals.messages {
            let to = message.to.unwrap_or(0);
            match peers.get(&to) {
                Some(peer) => {
                    if !peer.enqueue(self, message) {
                        unreachable.insert(to);
                    }
                }
                // The peer was removed since the message was queued.
                None => {
                    if let Some(account) = self.inbox.account(to) {
                        account.give_back(&message);
                    }
                }
            }
        }
        drop(peers);
        for id in unreachable {
            self.unreachable(id);
        }
        for id in arrivals.snapshots_refused {
            self.handler.snapshot_sent(id, false);
        }
    }

    pub(crate) fn set_members(self: &Rc<Self>, members: Vec<(u64, Vec<String>)>) {
        let mut peers = self.peers.borrow_mut();
        self.remotes.borrow_mut().retain(|id| !members.iter().any(|member| member.0 == *id));
        let mut left = Vec::new();
        peers.retain(|id, peer| {
            let stays = peer.is_remote || members.iter().any(|member| member.0 == *id);
            if !stays {
                left.push(Rc::clone(peer));
            }
            stays
        });
        for (id, urls) in members {
            match peers.get(&id) {
                Some(peer) if !peer.is_remote => peer.set_urls(self, &urls),
                _ => {
                    let Some(account) = self.inbox.account(id) else { continue };
                    if let Some(remote) = peers.insert(id, Peer::member(self, account, &urls)) {
                        left.push(remote);
                    }
                    self.log(Level::Info, "added remote peer", id, &urls.join(","));
                }
            }
        }
        drop(peers);
        for peer in left {
            peer.close();
            self.log(Level::Info, "removed remote peer", peer.id, "");
        }
    }

    async fn exchange(
        &self,
        target: &Target,
        mut request: Request<Bytes>,
        timeout: Duration,
    ) -> Result<Response<Bytes>, RequestError> {
        if let Target::Member(_) = target {
            // The identity headers let the member recognize the request as one from a member.
            self.identity.stamp(request.headers_mut());
        }
        match target {
            Target::Url(url) => {
                let endpoint = Endpoint::dialable(url, self.client.dialer.has_tls())?;
                let answered = self.client.exchange(&endpoint, request, timeout).await;
                answered.map_err(|error| RequestError::Failed { to: url.clone(), error })
            }
            Target::Member(id) => {
                // The URL of an unknown sender is not verified, so a client's token must not be sent to it.
                let has_token = request.headers().contains_key(AUTHORIZATION);
                let peer = self.peers.borrow().get(id).filter(|peer| !(peer.is_remote && has_token)).cloned();
                let peer = peer.ok_or(RequestError::UnknownMember(*id))?;
                let endpoint = peer.endpoint()?;
                let answered = self.client.exchange(&endpoint, request, timeout).await;
                answered.map_err(|error| {
                    peer.endpoint_failed(&endpoint);
                    let to = format!("member {id:x} at {}", endpoint.authority);
                    RequestError::Failed { to, error }
                })
            }
        }
    }
}

async fn run(hub: Rc<Hub>, listeners: Vec<Acceptor>) {
    for listener in listeners {
        tokio::task::spawn_local(accept(Rc::clone(&hub), listener));
    }
    let checker = Rc::clone(&hub);
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(SESSION_CHECK_INTERVAL).await;
            checker.check_sessions();
        }
    });
    let sweeper = Rc::clone(&hub);
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(IDLE_MAX).await;
            sweeper.client.sweep();
        }
    });
    poll_fn(|cx| {
        for _ in 0..BATCHES_PER_TURN {
            match std::task::ready!(hub.inbox.poll_arrivals(cx)) {
                Some(arrivals) => hub.take(arrivals),
                None => return Poll::Ready(()),
            }
        }
        end_turn(cx);
        Poll::Pending
    })
    .await;
}

async fn accept(hub: Rc<Hub>, listener: Acceptor) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => match hub.places.take(from.map(|from| from.ip().to_canonical())) {
                Some((guest, made_way)) => {
                    if made_way {
                        hub.crowded("closed a connection of a stranger: too many are open");
                    }
                    let (hub, tls) = (Rc::clone(&hub), listener.tls.clone());
                    tokio::task::spawn_local(async move {
                        race(serve(&hub, &guest, stream, from, tls), guest.cut.notified()).await;
                        hub.places.leave(&guest);
                    });
                }
                None => hub.crowded("closed a connection: too many are open"),
            },
            Err(error) => {
                (hub.log)(
                    Level::Warn,
                    "cannot accept a connection",
                    &[("error", Field::Text(&error.to_string()))],
                );
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(
    hub: &Rc<Hub>,
    guest: &Rc<Guest>,
    stream: Stream,
    from: Option<SocketAddr>,
    tls: Option<ServerTls>,
) {
    let socket = match (tls, from) {
        (Some(tls), Some(from)) => shake_hands(hub, guest, stream, from, tls).await,
        (None, _) => FairStream::new(stream, hub.write_timeout).map(Socket::plain),
        // A client on a Unix socket has no address that its certificate could be compared with; `Acceptor::new` refuses TLS there.
        (Some(_), None) => return,
    };
    // A connection that already broke is dropped without a log line.
    if let Ok(socket) = socket {
        answer_requests(hub, guest, socket).await;
    }
}

/// Performs the TLS handshake of an accepted connection. A client that is not admitted is disconnected.
async fn shake_hands(
    hub: &Rc<Hub>,
    guest: &Rc<Guest>,
    stream: Stream,
    from: SocketAddr,
    tls: ServerTls,
) -> io::Result<Socket> {
    let stream = stream.detach()?;
    let Some(handshakes) = &hub.client.dialer.handshakes else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let (resolver, look_ups) = (Arc::clone(&hub.resolver), Arc::clone(&hub.look_ups));
    let met = handshakes.accept(stream, from, tls.clone(), hub.write_timeout, resolver, look_ups).await;
    let met = met.map_err(|rejected| {
        hub.rejected(from, &rejected);
        rejected.failure
    })?;
    guest.is_verified.set(met.session.not_after().is_some());
    let (wire, session) = met.attach(hub.write_timeout)?;
    let side = Side::Accepted(tls, Rc::clone(guest));
    let watched = hub.client.dialer.sessions.watch(side, session, from.to_string()).map_err(|refusal| {
        let failure = Failure::Refused(refusal);
        hub.rejected(from, &Rejected { failure, server_name: String::new(), names: None });
        io::ErrorKind::PermissionDenied
    })?;
    Ok(Socket::secured(wire, watched))
}

/// Answers the requests of one connection until it ends.
pub(crate) async fn answer_requests(
    hub: &Rc<Hub>,
    guest: &Rc<Guest>,
    socket: impl hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
) {
    let answer = hyper::service::service_fn(|request| {
        let (hub, guest) = (Rc::clone(hub), Rc::clone(guest));
        async move { Ok::<_, Infallible>(routes::answer(hub, &guest, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(Clock)
        .header_read_timeout(hub.read_timeout)
        .title_case_headers(true)
        .serve_connection(socket, answer);
    // The error is not needed: a broken connection also fails its stream writer or snapshot body.
    let _ = connection.await;
}

/// Sends one snapshot and reports the result to `done`. If this ends early, the thread that provides the
/// pieces notices.
async fn post_snapshot(
    hub: Rc<Hub>,
    message: Message,
    form: SnapshotForm,
    pieces: mpsc::Receiver<Piece>,
    done: oneshot::Sender<Result<(), PostError>>,
) {
    let to = message.to.unwrap_or(0);
    let peer = hub.peers.borrow().get(&to).cloned();
    let sent = match peer {
        Some(peer) => deliver_snapshot(&hub, &peer, message, form, pieces).await,
        None => Err(PostError::Left { member_id: to }),
    };
    // Only the snapshot's thread receives the result, and it waits until then.
    let _ = done.send(sent);
}

async fn deliver_snapshot(
    hub: &Hub,
    peer: &Peer,
    message: Message,
    form: SnapshotForm,
    pieces: mpsc::Receiver<Piece>,
) -> Result<(), PostError> {
    let endpoint = peer.endpoint()?;
    let mut envelope = FrameBuffer::default();
    envelope.put_sized_message(message);
    let handed_over = Rc::new(Notify::new());
    let mut request = Request::new(RequestBody::Snapshot {
        envelope: Some(envelope.take()),
        pieces,
        account: Arc::clone(&peer.account),
        handed_over: Rc::clone(&handed_over),
    });
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(crate::snapshot_receiver::PATH);
    client::name_host(&mut request, &endpoint).map_err(ExchangeError::from)?;
    let headers = request.headers_mut();
    hub.identity.stamp(headers);
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if form == SnapshotForm::Own {
        headers.insert(MAINSTAY_SNAPSHOT, HeaderValue::from_static("1"));
    }

    let dialed = client::dial(&hub.client.dialer, &endpoint, hub.write_timeout * SNAPSHOT_TIMEOUTS).await;
    let mut link = dialed.inspect_err(|_| peer.endpoint_failed(&endpoint))?;
    let outcome = async {
        let answer = link.send(request).await.map_err(ExchangeError::from)?;
        let status = answer.status();
        if status == StatusCode::NO_CONTENT {
            return Ok(());
        }
        let body = Limited::new(answer.into_body(), REFUSAL_BYTES_MAX).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        Err(PostError::Snapshot(status, String::from_utf8_lossy(&body).trim_end().to_owned()))
    };
    // The time limit for the answer starts after the last piece. The duration of the pieces depends on their
    // number, and the connection's write timeout checks that they make progress.
    let patience = async {
        handed_over.notified().await;
        tokio::time::sleep(SNAPSHOT_ANSWER_TIMEOUT).await;
    };
    let outcome = match race(outcome, patience).await {
        First::Left(outcome) => outcome,
        First::Right(()) => Err(ExchangeError::TimedOut(SNAPSHOT_ANSWER_TIMEOUT).into()),
    };
    // A refusal arrives before the whole body is sent; closing the connection stops the rest of the body.
    drop(link);
    outcome
}
