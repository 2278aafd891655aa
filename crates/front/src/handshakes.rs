//! TLS handshakes: threads of their own ([`spawn`]) take accepted connections, shake hands with many clients at once, check
//! who they are, and hand those that are let in over to the shards. Established connections never wait for one.
//!
//! Each address gets one step in turn ([`Turns`]), so that one with many handshakes holds up the others by one step each.
//! What clients can make this hold is bounded ([`Quota`]), and so is the time that each may take
//! ([`crate::Options::handshake_timeout`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::ServerConnection;
use stdx::{Turns, before, race};
use tls::Records;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::sync::mpsc;

use crate::acceptor::{Hands, Secured};
use crate::rejections::Rejections;
use crate::shard::Closing;
use crate::socket::Transport;
use crate::standing::Admission;
use crate::stream::{Detached, Stream};
use crate::wire::Kernel;
use crate::{Origin, Rejected};
use accounting::Budget;
use accounting::{Charge, party};

/// What a handshake holds that has hardly begun, in bytes: state, the library's first buffer, a task.
const FIRST_BYTES: usize = 16 * 1024;
/// What one holds at most: a message of the largest size that the library takes, and what is read from it.
const LONG_BYTES: usize = 160 * 1024;
/// More than this from the client, in bytes, makes a handshake a long one.
const SHORT_INPUT_BYTES: usize = 8 * 1024;
/// A client that sends more than this, in bytes, before its handshake is done, is not going to end it.
const INPUT_BYTES_MAX: usize = 192 * 1024;
/// Bytes read at once.
pub(crate) const READ_BYTES: usize = 16 * 1024;

/// Time that a connection which is not let in still reads, so that its client learns why.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes that it reads meanwhile at most.
const LINGER_BYTES: usize = 256 * 1024;

/// Certificates whose names are being looked up at once; further ones are refused.
const LOOK_UPS_MAX: usize = 64;
/// Threads that look up names.
const LOOK_UP_THREADS: usize = 4;

/// Go's answer to plain HTTP on a port for TLS.
const NOT_PLAIN: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// What all handshakes may hold together. An address may have as much as is left besides: alone it gets at most half, and
/// there is always room for one that has nothing yet, unless very many addresses share what there is.
pub(crate) struct Quota {
    bytes_max: usize,
    budget: Budget,
    held: Mutex<QuotaHeld>,
}

#[derive(Default)]
struct QuotaHeld {
    all: usize,
    handshakes: usize,
    by_party: HashMap<IpAddr, usize>,
}

/// What one handshake holds of a [`Quota`].
pub(crate) struct Share {
    quota: Arc<Quota>,
    party: IpAddr,
    bytes: usize,
    _charge: Charge,
}

impl Quota {
    /// An eighth of what all clients may have.
    pub(crate) fn new(budget: &Budget) -> Arc<Quota> {
        let bytes_max = budget.bytes_max() / 8;
        Arc::new(Quota { bytes_max, budget: budget.clone(), held: Mutex::default() })
    }

    fn held(&self) -> MutexGuard<'_, QuotaHeld> {
        // Nothing inside can panic half-way.
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

    /// Room for another handshake with this client; `None` if there is none.
    pub(crate) fn share(self: &Arc<Quota>, peer: IpAddr) -> Option<Share> {
        let party = party(peer);
        if !self.take(party, FIRST_BYTES) {
            return None;
        }
        self.held().handshakes += 1;
        Some(Share {
            quota: self.clone(),
            party,
            bytes: FIRST_BYTES,
            _charge: self.budget.charge(FIRST_BYTES),
        })
    }

    /// Handshakes that are going on.
    pub(crate) fn handshakes(&self) -> usize {
        self.held().handshakes
    }
}

impl Share {
    /// The handshake is a long one; false if there is no room for it.
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

impl Drop for Share {
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

/// A connection whose handshake is to begin.
pub(crate) struct Arriving {
    pub(crate) stream: Detached,
    pub(crate) peer: SocketAddr,
    pub(crate) listener: Arc<Secured>,
    pub(crate) share: Share,
    /// When it was accepted.
    pub(crate) since: Instant,
}

/// What the threads share.
pub(crate) struct Shared {
    pub(crate) hands: Arc<Hands>,
    pub(crate) rejections: Arc<Rejections>,
    pub(crate) resolver: Arc<dyn tls::Resolver + Send + Sync>,
    pub(crate) look_ups: Arc<AtomicUsize>,
    pub(crate) timeout: Duration,
}

/// Starts a thread. It ends when closing begins, and with it the handshakes that are going on.
pub(crate) fn spawn(
    number: usize,
    shared: Arc<Shared>,
    mut arriving: mpsc::UnboundedReceiver<Arriving>,
    mut closing: Closing,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(LOOK_UP_THREADS)
        .thread_name("tls-look-up")
        .build()?;
    std::thread::Builder::new().name(format!("tls-{number}")).spawn(move || {
        let hall = Rc::new(Hall { shared, scratch: RefCell::new(vec![0; READ_BYTES].into_boxed_slice()) });
        let mut turns = Turns::new();
        let serving = poll_fn(|cx| {
            while let Poll::Ready(arriving) = arriving.poll_recv(cx) {
                let Some(arriving) = arriving else { return Poll::Ready(()) };
                let (hall, party) = (hall.clone(), arriving.share.party);
                // It ends by itself, in bounded time, or with the thread.
                turns.add(party, Box::pin(async move { hall.receive(arriving).await }));
            }
            if turns.poll_one(cx).is_ready() {
                // The network is asked what has come before the next turn. Never ready at the first poll.
                let _ = pin!(tokio::task::yield_now()).poll(cx);
            }
            Poll::Pending
        });
        runtime.block_on(race(closing.begun(), serving));
        // Sockets and timers belong to the runtime.
        let inside = runtime.enter();
        drop(turns);
        drop(inside);
        // A look-up may take its time.
        runtime.shutdown_background();
    })
}

/// Why a client is not let in.
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

/// Addresses of a connection, as Go's errors show them.
pub(crate) struct Ends {
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: SocketAddr,
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.local {
            Some(local) => write!(f, "read tcp {local}->{}", self.peer),
            None => f.write_str("read unix"),
        }
    }
}

impl Failure {
    /// In etcd's words, which are Go's.
    pub(crate) fn text(&self, ends: &Ends) -> String {
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

/// A handshake that goes on.
pub(crate) struct Shaking<S> {
    pub(crate) stream: S,
    pub(crate) tls: ServerConnection,
    pub(crate) records: Records,
    received: usize,
    /// The first bytes that came in.
    first: [u8; 5],
}

impl<S: Transport> Shaking<S> {
    pub(crate) fn new(stream: S, mut tls: ServerConnection) -> Shaking<S> {
        tls.set_buffer_limit(Some(crate::socket::BUFFER_BYTES));
        Shaking { stream, tls, records: Records::default(), received: 0, first: [0; 5] }
    }

    /// Goes on until both sides are content.
    pub(crate) fn poll_done(
        &mut self,
        cx: &mut Context<'_>,
        share: &mut Share,
        scratch: &mut [u8],
    ) -> Poll<Result<(), Failure>> {
        loop {
            ready!(self.poll_flush(cx))?;
            if !self.tls.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            let mut space = ReadBuf::new(scratch);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut space))?;
            let bytes = space.filled();
            if bytes.is_empty() {
                let is_clean = self.records.unfinished() == 0;
                return Poll::Ready(Err(if is_clean {
                    Failure::EndOfFile
                } else {
                    Failure::Io(io::ErrorKind::UnexpectedEof.into())
                }));
            }
            self.take(bytes, share)?;
        }
    }

    /// Sends what the library has to say.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Kernel { stream: &mut self.stream, cx }) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Gives the library what came in.
    fn take(&mut self, mut bytes: &[u8], share: &mut Share) -> Result<(), Failure> {
        let known = self.received.min(self.first.len());
        let n = bytes.len().min(self.first.len() - known);
        self.first[known..known + n].copy_from_slice(&bytes[..n]);
        self.received += bytes.len();
        if looks_like_http(&self.first[..self.received.min(self.first.len())]) {
            return Err(Failure::PlainHttp);
        }
        if self.received > INPUT_BYTES_MAX || (self.received > SHORT_INPUT_BYTES && !share.lengthen()) {
            return Err(Failure::TooLong);
        }
        while !bytes.is_empty() {
            let before = bytes;
            let taken = self.tls.read_tls(&mut bytes)?;
            if taken == 0 {
                return Err(Failure::TooLong);
            }
            self.records.scan(&before[..taken]);
            self.tls.process_new_packets().map_err(Failure::Tls)?;
        }
        Ok(())
    }
}

/// Returns true if these first bytes are those of an HTTP/1 request, as Go's server decides it.
fn looks_like_http(first: &[u8]) -> bool {
    [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"].iter().any(|begin| first == &begin[..])
}

/// Where clients wait until they are let in.
struct Hall {
    shared: Arc<Shared>,
    /// What is being read; nothing stays in it.
    scratch: RefCell<Box<[u8]>>,
}

impl Hall {
    /// A client from its first byte until it is handed over or sent away.
    async fn receive(&self, arriving: Arriving) {
        let Arriving { stream, peer, listener, mut share, since } = arriving;
        let Ok(stream) = stream.attach() else { return };
        let deadline = since + self.shared.timeout;
        let Ok(tls) = ServerConnection::new(listener.tls.config()) else { return };
        let mut shaking = Shaking::new(stream, tls);
        let met = async {
            poll_fn(|cx| shaking.poll_done(cx, &mut share, &mut self.scratch.borrow_mut())).await?;
            self.check(&shaking.tls, &listener, peer).await.map_err(Failure::Refused)
        };
        // A step costs a signature.
        let over = tokio::time::sleep_until(deadline.into());
        let met = before(|| Instant::now() >= deadline, over, met).await;
        match met.unwrap_or(Err(Failure::TimedOut)) {
            Ok(session) => self.hand_over(shaking, listener, session, peer),
            Err(failure) => {
                self.report(&shaking, &failure, peer);
                // An error or a time-out means that the client does not listen.
                let _ = tokio::time::timeout(LINGER, self.send_away(&mut shaking, &failure)).await;
            }
        }
    }

    /// Who the client is, and whether it may come in.
    async fn check(
        &self,
        connection: &ServerConnection,
        listener: &Secured,
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

    /// Asks for names on a thread that may wait.
    async fn look_up(&self, look_up: tls::LookUp) -> Result<(), tls::Refusal> {
        /// A look-up that goes on, perhaps longer than anybody waits for it.
        struct Place(Arc<AtomicUsize>);
        impl Drop for Place {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Relaxed);
            }
        }
        let refused = || tls::Refusal::WrongAddress("tls: too many names are being looked up".to_owned());
        if self.shared.look_ups.fetch_add(1, Relaxed) >= LOOK_UPS_MAX {
            self.shared.look_ups.fetch_sub(1, Relaxed);
            return Err(refused());
        }
        let place = Place(self.shared.look_ups.clone());
        let resolver = self.shared.resolver.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let _place = place;
            look_up.resolve(&*resolver)
        });
        asked.await.unwrap_or_else(|_| Err(refused()))
    }

    fn hand_over(
        &self,
        shaking: Shaking<Stream>,
        listener: Arc<Secured>,
        session: tls::Session,
        peer: SocketAddr,
    ) {
        let Shaking { stream, tls, records, .. } = shaking;
        // It fails only for a socket that is broken.
        let Ok(stream) = stream.detach() else { return };
        let is_user = listener.tls.settings().client_cert_auth;
        // A certificate without a name is not no certificate: etcd takes its client for the user whose name is empty, who may do
        // what any user may, and nothing with keys.
        let common_name = is_user.then(|| Arc::from(session.common_name().unwrap_or_default()));
        let origin = Origin { peer, common_name, is_tls: true, serves: listener.serves };
        let admission = Admission { tls: listener.tls.clone(), session };
        self.shared.hands.give(
            stream,
            origin,
            Some(Box::new(crate::acceptor::Met { tls, records, admission })),
        );
    }

    fn report(&self, shaking: &Shaking<Stream>, failure: &Failure, peer: SocketAddr) {
        let rejected = Rejected {
            server_name: shaking.tls.server_name().unwrap_or_default().to_owned(),
            names: tls::PeerNames::of(shaking.tls.peer_certificates()),
            is_end_of_file: matches!(failure, Failure::EndOfFile),
            ..Rejected::new(peer, failure.text(&Ends { local: shaking.stream.local_address(), peer }))
        };
        self.shared.rejections.report(rejected, Instant::now());
    }

    /// Tells the client why, and gives it time to hear it: closing at once, with bytes of it unread, would destroy what is on
    /// its way.
    async fn send_away(&self, shaking: &mut Shaking<Stream>, failure: &Failure) -> io::Result<()> {
        if let Failure::PlainHttp = failure {
            let mut rest = NOT_PLAIN;
            while !rest.is_empty() {
                let n = poll_fn(|cx| Pin::new(&mut shaking.stream).poll_write(cx, rest)).await?;
                rest = rest.get(n..).filter(|_| n > 0).ok_or(io::ErrorKind::WriteZero)?;
            }
        } else {
            poll_fn(|cx| shaking.poll_flush(cx)).await?;
        }
        poll_fn(|cx| Pin::new(&mut shaking.stream).poll_shutdown(cx)).await?;
        let mut left = LINGER_BYTES;
        poll_fn(|cx| {
            let mut scratch = self.scratch.borrow_mut();
            loop {
                let mut space = ReadBuf::new(&mut scratch);
                ready!(Pin::new(&mut shaking.stream).poll_read(cx, &mut space))?;
                let n = space.filled().len();
                left = left.saturating_sub(n);
                if n == 0 || left == 0 {
                    return Poll::Ready(Ok(()));
                }
            }
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
        let one: Vec<Share> = std::iter::from_fn(|| quota.share(peer(1))).collect();
        assert_eq!(one.len() * FIRST_BYTES, 4 * 1024 * 1024);
        let other: Vec<Share> = std::iter::from_fn(|| quota.share(peer(2))).collect();
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
        let mut all: Vec<Share> = std::iter::from_fn(|| quota.share(peer(1))).take(100).collect();
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
