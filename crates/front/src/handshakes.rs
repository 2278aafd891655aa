//! Performs TLS handshakes on separate threads ([`spawn`]), so that established connections do not wait for
//! them. The threads take accepted connections, perform many handshakes concurrently, check the clients'
//! identities, and hand admitted connections over to the shards.
//!
//! The client addresses are served in rotation ([`stdx::Turns`]), one step of a handshake each, so that an
//! address with many handshakes delays another address by only one step at a time. The memory that clients
//! can make this module hold is bounded ([`Quota`]), and so is the time of each handshake
//! ([`crate::Options::handshake_timeout`]).

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::{Connection, HandshakeKind, ServerConnection};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use transport::{
    BUFFER_BYTES, Detached, Handshake, HandshakeError, HandshakeThread, Stream, before_deadline,
};

use crate::admissions::Admission;
use crate::closing::Closing;
use crate::rejections::Rejections;
use crate::shard_channels::{ShardChannels, TlsState};
use crate::socket::Transport;
use crate::{Origin, Protocols, Rejection};
use accounting::Budget;
use accounting::{Charge, party};

/// Memory reserved for a handshake at its start, in bytes: for the TLS state, the first buffer of rustls, and
/// a task.
const FIRST_BYTES: usize = 16 * 1024;
/// Memory reserved for a long handshake, in bytes: enough for a message of the largest size that rustls
/// accepts, and its parsed form.
const LONG_BYTES: usize = 160 * 1024;
/// Input in bytes from the client above which a handshake counts as long.
const SHORT_INPUT_BYTES: usize = 8 * 1024;
/// Maximum number of bytes that a client may send in a handshake; a client that sends more is rejected.
const INPUT_BYTES_MAX: usize = 192 * 1024;

/// Maximum time for which bytes of a rejected client are read and discarded, so that the client can receive
/// the reason.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum number of bytes of a rejected client that are read and discarded.
const LINGER_BYTES: usize = 256 * 1024;

/// Maximum number of certificates whose names are looked up concurrently. While the maximum is reached, a
/// client whose certificate needs a look-up is refused.
const LOOK_UPS_MAX: usize = 64;
/// Number of threads for name look-ups.
const LOOK_UP_THREADS: usize = 4;

/// Response to an HTTP request without TLS on a port with TLS, the same as that of Go's server, on which etcd
/// is based.
const NOT_PLAIN: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// Memory limit for all handshakes together. An address may hold at most as much memory as is still free. So
/// a single address gets at most half of the quota, and an address without handshakes can begin one unless
/// very many addresses share the quota.
pub(crate) struct Quota {
    bytes_max: usize,
    budget: Budget,
    held: Mutex<QuotaUse>,
}

#[derive(Default)]
struct QuotaUse {
    all: usize,
    handshakes: usize,
    by_party: HashMap<IpAddr, usize>,
}

/// Memory that one handshake has reserved in a [`Quota`]. The quota gets the memory back when this value is
/// dropped.
pub(crate) struct QuotaShare {
    quota: Arc<Quota>,
    /// Address of the client.
    pub(crate) party: IpAddr,
    bytes: usize,
    _charge: Charge,
}

impl Quota {
    /// Creates a quota of one eighth of `budget`.
    pub(crate) fn new(budget: &Budget) -> Arc<Quota> {
        let bytes_max = budget.bytes_max() / 8;
        Arc::new(Quota { bytes_max, budget: budget.clone(), held: Mutex::default() })
    }

    fn held(&self) -> MutexGuard<'_, QuotaUse> {
        // A poisoned lock is ignored, because no code under it can panic halfway through a change.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, party: IpAddr, bytes: usize) -> bool {
        let mut held = self.held();
        let free = self.bytes_max.saturating_sub(held.all);
        let own = held.by_party.get(&party).copied().unwrap_or(0);
        if own + bytes > free {
            return false;
        }
        held.all += bytes;
        held.by_party.insert(party, own + bytes);
        true
    }

    /// Reserves memory for another handshake with this client; returns `None` if the quota has not enough
    /// memory left.
    pub(crate) fn share(self: &Arc<Quota>, peer: IpAddr) -> Option<QuotaShare> {
        let party = party(peer);
        if !self.take(party, FIRST_BYTES) {
            return None;
        }
        self.held().handshakes += 1;
        Some(QuotaShare {
            quota: self.clone(),
            party,
            bytes: FIRST_BYTES,
            _charge: self.budget.charge(FIRST_BYTES),
        })
    }

    /// Returns the number of handshakes in progress.
    pub(crate) fn handshakes(&self) -> usize {
        self.held().handshakes
    }
}

impl QuotaShare {
    /// Raises the reserved memory to that of a long handshake. Returns false if the quota has not enough
    /// memory left.
    fn lengthen(&mut self) -> bool {
        if self.bytes == LONG_BYTES {
            return true;
        }
        if !self.quota.take(self.party, LONG_BYTES - self.bytes) {
            return false;
        }
        self.bytes = LONG_BYTES;
        self._charge = self.quota.budget.charge(LONG_BYTES);
        true
    }
}

impl Drop for QuotaShare {
    fn drop(&mut self) {
        let mut held = self.quota.held();
        held.all -= self.bytes;
        held.handshakes -= 1;
        if let Some(own) = held.by_party.get_mut(&self.party) {
            *own -= self.bytes;
            if *own == 0 {
                held.by_party.remove(&self.party);
            }
        }
    }
}

/// TLS settings of a listener.
pub(crate) struct ListenerTls {
    pub(crate) tls: tls::ServerTls,
    pub(crate) checks_address: bool,
    pub(crate) serves: Protocols,
}

/// Accepted connection whose handshake has not begun.
pub(crate) struct PendingHandshake {
    pub(crate) stream: Detached,
    pub(crate) peer: SocketAddr,
    pub(crate) listener: Arc<ListenerTls>,
    pub(crate) share: QuotaShare,
    /// Time at which the connection was accepted.
    pub(crate) since: Instant,
}

/// State that the handshake threads share.
pub(crate) struct HandshakeContext {
    pub(crate) shards: Arc<ShardChannels>,
    pub(crate) rejections: Arc<Rejections>,
    pub(crate) resolver: Arc<dyn tls::Resolver + Send + Sync>,
    pub(crate) look_ups: Arc<AtomicUsize>,
    pub(crate) timeout: Duration,
    /// [`crate::Options::handshaken`].
    pub(crate) handshaken: Arc<dyn Fn(bool) + Send + Sync>,
}

/// Starts a handshake thread. When the front begins to close, the thread drops its handshakes and ends.
pub(crate) fn spawn(
    number: usize,
    mut closing: Closing,
) -> io::Result<(HandshakeThread<IpAddr>, JoinHandle<()>)> {
    let until = async move { closing.begun().await };
    HandshakeThread::start(format!("tls-{number}"), LOOK_UP_THREADS, until)
}

/// Reason why a client is not admitted.
#[derive(Debug)]
pub(crate) enum Failure {
    EndOfFile,
    Io(io::Error),
    TimedOut,
    Tls(rustls::Error),
    Refused(tls::Refusal),
    PlainHttp,
    TooLong,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

/// Addresses of both ends of a connection, displayed as in the messages of Go's network errors.
pub(crate) struct ConnectionEnds {
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: SocketAddr,
}

impl fmt::Display for ConnectionEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.local {
            Some(local) => write!(f, "read tcp {local}->{}", self.peer),
            None => f.write_str("read unix"),
        }
    }
}

impl Failure {
    /// Returns the message that etcd logs for this failure, which comes from Go.
    pub(crate) fn text(&self, ends: &ConnectionEnds) -> String {
        match self {
            Failure::EndOfFile => "EOF".to_owned(),
            Failure::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => "unexpected EOF".to_owned(),
            Failure::Io(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                format!("{ends}: read: connection reset by peer")
            }
            Failure::Io(error) => format!("{ends}: {error}"),
            Failure::TimedOut => format!("{ends}: i/o timeout"),
            Failure::Tls(error) => tls::explain(error),
            Failure::Refused(refusal) => refusal.to_string(),
            Failure::PlainHttp => "tls: first record does not look like a TLS handshake".to_owned(),
            Failure::TooLong => "tls: handshake message is too long".to_owned(),
        }
    }
}

impl From<HandshakeError> for Failure {
    fn from(error: HandshakeError) -> Failure {
        match error {
            HandshakeError::EndOfFile => Failure::EndOfFile,
            HandshakeError::Closed => Failure::TooLong,
            HandshakeError::Io(error) => Failure::Io(error),
            HandshakeError::Tls(error) => Failure::Tls(error),
        }
    }
}

/// Creates the handshake with a client.
pub(crate) fn begin<S: Transport>(stream: S, tls: ServerConnection) -> Handshake<S> {
    Handshake::new(stream, tls, BUFFER_BYTES)
}

/// Continues a handshake until it is complete. Fails if the client exceeds the limits on its input, or does
/// not speak TLS.
pub(crate) fn poll_done<S: Transport>(
    handshake: &mut Handshake<S>,
    cx: &mut Context<'_>,
    share: &mut QuotaShare,
) -> Poll<Result<(), Failure>> {
    handshake.poll_done(cx, |_, received| {
        if looks_like_http(received.first) {
            return Err(Failure::PlainHttp);
        }
        let is_long = received.bytes > SHORT_INPUT_BYTES;
        if received.bytes > INPUT_BYTES_MAX || (is_long && !share.lengthen()) {
            return Err(Failure::TooLong);
        }
        Ok(())
    })
}

/// Returns true if the first five bytes look like an HTTP/1 request, by the same rule as in Go's server.
fn looks_like_http(first: &[u8]) -> bool {
    [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"].iter().any(|begin| first == &begin[..])
}

impl HandshakeContext {
    /// Performs the handshake with a client, and then hands the connection over to a shard or rejects it.
    pub(crate) async fn receive(&self, pending: PendingHandshake) {
        let PendingHandshake { stream, peer, listener, mut share, since } = pending;
        let Ok(stream) = stream.attach() else { return };
        let deadline = since + self.timeout;
        let Ok(tls) = ServerConnection::new(listener.tls.config()) else { return };
        let mut handshake = begin(stream, tls);
        let met = async {
            poll_fn(|cx| poll_done(&mut handshake, cx, &mut share)).await?;
            self.check(&handshake.tls, &listener, peer).await.map_err(Failure::Refused)
        };
        match before_deadline(deadline, met).await.unwrap_or(Err(Failure::TimedOut)) {
            Ok(session) => self.hand_over(handshake, listener, session, peer),
            Err(failure) => {
                self.report(&handshake, &failure, peer);
                // The result is ignored: an error or a timeout means that the client does not read the
                // reason.
                let _ = tokio::time::timeout(LINGER, self.send_away(&mut handshake, &failure)).await;
            }
        }
    }

    /// Checks the identity of the client and returns its session if the client is admitted.
    async fn check(
        &self,
        connection: &Connection,
        listener: &ListenerTls,
        peer: SocketAddr,
    ) -> Result<tls::Session, tls::Refusal> {
        let chain = connection.peer_certificates();
        let session = listener.tls.admit(chain)?;
        if listener.checks_address && !peer.ip().is_unspecified() {
            match listener.tls.check_address(chain, peer.ip()) {
                tls::AddressCheck::Passed => {}
                tls::AddressCheck::Refused(refusal) => return Err(refusal),
                tls::AddressCheck::Ask(look_up) => self.look_up(look_up).await?,
            }
        }
        Ok(session)
    }

    /// Looks up the names in a certificate on a thread that may block, and checks that they match the
    /// client's address.
    async fn look_up(&self, look_up: tls::LookUp) -> Result<(), tls::Refusal> {
        /// Counts a look-up in progress until dropped. The thread of the look-up owns it, because the look-up
        /// may outlast the handshake that waits for it.
        struct LookUpCount(Arc<AtomicUsize>);
        impl Drop for LookUpCount {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Relaxed);
            }
        }
        let refused = || tls::Refusal::WrongAddress("tls: too many names are being looked up".to_owned());
        if self.look_ups.fetch_add(1, Relaxed) >= LOOK_UPS_MAX {
            self.look_ups.fetch_sub(1, Relaxed);
            return Err(refused());
        }
        let in_progress = LookUpCount(self.look_ups.clone());
        let resolver = self.resolver.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let _in_progress = in_progress;
            look_up.resolve(&*resolver)
        });
        asked.await.unwrap_or_else(|_| Err(refused()))
    }

    fn hand_over(
        &self,
        handshake: Handshake<Stream>,
        listener: Arc<ListenerTls>,
        session: tls::Session,
        peer: SocketAddr,
    ) {
        let Handshake { stream, tls, records, .. } = handshake;
        // Detaching fails only for a broken socket, which is dropped.
        let Ok(stream) = stream.detach() else { return };
        (self.handshaken)(tls.handshake_kind() == Some(HandshakeKind::Resumed));
        let is_user = listener.tls.settings().client_cert_auth;
        // As in etcd, a certificate without a common name stands for the user with the empty name, who may do
        // what every user may, but has no permission on keys.
        let common_name = is_user.then(|| Arc::from(session.common_name().unwrap_or_default()));
        let origin = Origin { peer, common_name, is_tls: true, serves: listener.serves };
        let admission = Admission { tls: listener.tls.clone(), session };
        self.shards.give(stream, origin, Some(Box::new(TlsState { connection: tls, records, admission })));
    }

    fn report(&self, handshake: &Handshake<Stream>, failure: &Failure, peer: SocketAddr) {
        let rejected = Rejection {
            server_name: handshake.server_name().unwrap_or_default().to_owned(),
            names: tls::PeerNames::of(handshake.tls.peer_certificates()),
            is_end_of_file: matches!(failure, Failure::EndOfFile),
            ..Rejection::new(
                peer,
                failure.text(&ConnectionEnds { local: handshake.stream.local_address(), peer }),
            )
        };
        self.rejections.report(rejected, Instant::now());
    }

    /// Sends the reason of a rejection to the client, and then discards what the client still sends, for a
    /// limited time. If the connection were closed immediately, with unread bytes from the client, the kernel
    /// would reset it, and the reason could be lost in flight.
    async fn send_away(&self, handshake: &mut Handshake<Stream>, failure: &Failure) -> io::Result<()> {
        if let Failure::PlainHttp = failure {
            let mut rest = NOT_PLAIN;
            while !rest.is_empty() {
                let n = poll_fn(|cx| Pin::new(&mut handshake.stream).poll_write(cx, rest)).await?;
                rest = rest.get(n..).filter(|_| n > 0).ok_or(io::ErrorKind::WriteZero)?;
            }
        } else {
            poll_fn(|cx| handshake.poll_flush(cx)).await?;
        }
        poll_fn(|cx| Pin::new(&mut handshake.stream).poll_shutdown(cx)).await?;
        let mut left = LINGER_BYTES;
        poll_fn(|cx| {
            transport::with_scratch(|scratch| {
                loop {
                    let mut space = ReadBuf::new(scratch);
                    ready!(Pin::new(&mut handshake.stream).poll_read(cx, &mut space))?;
                    let n = space.filled().len();
                    left = left.saturating_sub(n);
                    if n == 0 || left == 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
            })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn an_address_alone_gets_half_and_leaves_room_for_others() {
        let budget = Budget::new(64 * 1024 * 1024);
        let quota = Quota::new(&budget);
        let one: Vec<QuotaShare> = std::iter::from_fn(|| quota.share(peer(1))).collect();
        assert_eq!(one.len() * FIRST_BYTES, 4 * 1024 * 1024);
        let other: Vec<QuotaShare> = std::iter::from_fn(|| quota.share(peer(2))).collect();
        assert_eq!(other.len() * FIRST_BYTES, 2 * 1024 * 1024);
        assert!(quota.share(peer(1)).is_none() && quota.share(peer(3)).is_some());
        assert_eq!(quota.handshakes(), one.len() + other.len());
        assert_eq!(budget.held_bytes(), 6 * 1024 * 1024);
        drop((one, other));
        assert_eq!((budget.held_bytes(), quota.handshakes()), (0, 0));
        assert!(quota.held().by_party.is_empty());
    }

    #[test]
    fn long_handshakes_take_their_room() {
        let quota = Quota::new(&Budget::new(64 * 1024 * 1024));
        let mut all: Vec<QuotaShare> = std::iter::from_fn(|| quota.share(peer(1))).take(100).collect();
        let long = all.iter_mut().filter_map(|share| share.lengthen().then_some(())).count();
        assert!(long > 10 && long < 30, "{long}");
        assert!(quota.held().all <= 4 * 1024 * 1024);
    }

    #[test]
    fn only_beginnings_of_requests_look_like_http() {
        for first in ["GET /", "POST ", "OPTIO", "HEAD ", "PUT /"] {
            assert!(looks_like_http(first.as_bytes()));
        }
        for first in ["", "GET", "PRI *", "\x16\x03\x01\x02\x00", "DELET"] {
            assert!(!looks_like_http(first.as_bytes()), "{first:?}");
        }
    }
}
