use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use accounting::{Budget, ShardCounters};
use stdx::{First, race};
use transport::{Detached, HandshakeThread, Stream, before_deadline};

use crate::closing::Closing;
use crate::handshakes::{HandshakeContext, ListenerTls, PendingHandshake, Quota};
use crate::shard_channels::{OpenSlot, ShardChannels};
use crate::{Listener, Origin, Protocols};

/// Pause after `accept` has failed with an error that will probably recur immediately, such as too many open
/// files.
const PAUSE: Duration = Duration::from_millis(50);

/// Number of accepted connections after which the acceptor yields the processor to other threads.
const ACCEPTED_AT_ONCE: u64 = 16;

/// Channels to the handshake threads, and the data that these threads need to perform a handshake.
pub(crate) struct HandshakeThreads {
    pub(crate) threads: Vec<HandshakeThread<IpAddr>>,
    pub(crate) context: Arc<HandshakeContext>,
    pub(crate) next: AtomicUsize,
    pub(crate) quota: Arc<Quota>,
}

impl HandshakeThreads {
    /// Starts a handshake with a client that was accepted at `since`. Returns false if the handshake quota is
    /// used up.
    fn begin(&self, stream: Detached, peer: SocketAddr, listener: &Arc<ListenerTls>, since: Instant) -> bool {
        let Some(share) = self.quota.share(peer.ip()) else { return false };
        let next = self.next.fetch_add(1, Relaxed) % self.threads.len().max(1);
        if let Some(thread) = self.threads.get(next) {
            let (context, listener) = (self.context.clone(), listener.clone());
            let pending = PendingHandshake { stream, peer, listener, share, since };
            // The result is ignored: `begin` returns false only if the front is closing, and then drops the
            // connection. The queue of the thread needs no limit, because the quota bounds the number of
            // handshakes.
            let _ = thread.begin(pending.share.party, move || async move { context.receive(pending).await });
        }
        true
    }
}

/// Accepts connections. Connections with TLS go to a handshake thread first, all others to the shard with the
/// fewest connections. On a listener that accepts connections with and without TLS, the acceptor waits for
/// the first byte of each connection. During that wait the connection counts as an open connection and not as
/// a handshake, so neither the handshake quota nor slow handshakes affect it.
pub(crate) struct Acceptor {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) shards: Arc<ShardChannels>,
    pub(crate) handshakes: HandshakeThreads,
    /// Counts connections that wait for their first byte, on listeners that accept connections with and
    /// without TLS.
    pub(crate) undecided: Arc<ShardCounters>,
    /// Time limit for the first byte and the handshake together.
    pub(crate) handshake_timeout: Duration,
    pub(crate) connections_max: usize,
    pub(crate) connections_per_address_max: usize,
    pub(crate) budget: Budget,
    pub(crate) refused: Arc<AtomicU64>,
    pub(crate) closing: Closing,
}

/// Starts the thread of the acceptor.
pub(crate) fn spawn(mut acceptor: Acceptor) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listeners = {
        let _inside = runtime.enter();
        let listeners = std::mem::take(&mut acceptor.listeners).into_iter();
        listeners.map(BoundListener::begin).collect::<io::Result<Vec<_>>>()?
    };
    std::thread::Builder::new().name("front-accept".to_owned()).spawn(move || {
        let local = tokio::task::LocalSet::new();
        let acceptor = Rc::new(acceptor);
        let mut closing = acceptor.closing.clone();
        for listener in listeners {
            let acceptor = acceptor.clone();
            // The task is detached, because it ends with the local set.
            drop(local.spawn_local(async move { acceptor.accept_from(listener).await }));
        }
        local.block_on(&runtime, closing.begun());
    })
}

/// Listener that is registered in the acceptor's event loop.
struct BoundListener {
    socket: transport::Listener,
    /// Number of the next connection through a Unix socket.
    next: Cell<u16>,
    secured: Option<Arc<ListenerTls>>,
    also_plain: bool,
    serves: Protocols,
}

impl BoundListener {
    fn begin(listener: Listener) -> io::Result<BoundListener> {
        let socket = transport::Listener::new(listener.socket)?;
        let Listener { also_plain, checks_address, serves, .. } = listener;
        let secured = listener.tls.map(|tls| Arc::new(ListenerTls { tls, checks_address, serves }));
        Ok(BoundListener { socket, next: Cell::new(1), secured, also_plain, serves })
    }

    /// Returns the next connection and the address of its client.
    async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (stream, peer) = self.socket.accept().await?;
        let peer = peer.unwrap_or_else(|| {
            let number = self.next.get();
            self.next.set(number.wrapping_add(1));
            Origin::without_address(number)
        });
        Ok((stream, peer))
    }
}

impl Acceptor {
    async fn accept_from(self: &Rc<Self>, listener: BoundListener) {
        for accepted in 1_u64.. {
            if accepted.is_multiple_of(ACCEPTED_AT_ONCE) {
                // Thousands of connections may arrive at the same time. Yielding lets a shard thread run on
                // this processor core in between.
                std::thread::yield_now();
            }
            match listener.accept().await {
                Ok((stream, peer)) => self.receive(stream, peer, &listener),
                Err(error) if concerns_one_connection(&error) => {}
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn receive(self: &Rc<Self>, stream: Stream, peer: SocketAddr, listener: &BoundListener) {
        let total = self.shards.open()
            + self.handshakes.quota.handshakes()
            + self.undecided.connections.load(Relaxed);
        let is_too_many = total >= self.connections_max
            || self.shards.addresses.open(peer.ip()) >= self.connections_per_address_max;
        if is_too_many || !self.budget.has_room_for(peer.ip()) {
            // The connection is closed immediately, so that the client can try another member instead of
            // waiting.
            return self.refuse();
        }
        if let Stream::Tcp(stream) = &stream
            && stream.set_nodelay(true).is_err()
        {
            // The option cannot be set because the client has already disconnected, so the connection is
            // dropped.
            return;
        }
        match &listener.secured {
            None => self.let_in(stream, peer, listener.serves),
            Some(secured) if listener.also_plain => {
                let (acceptor, secured) = (self.clone(), secured.clone());
                // The task is detached, because it ends after `handshake_timeout` at the latest, or with the
                // local set.
                drop(tokio::task::spawn_local(
                    async move { acceptor.tell_apart(stream, peer, &secured).await },
                ));
            }
            Some(secured) => self.shake_hands(stream, peer, secured, Instant::now()),
        }
    }

    /// Waits for the first byte of a connection, which shows whether the client speaks TLS, and passes the
    /// connection to a handshake thread or to a shard.
    async fn tell_apart(&self, stream: Stream, peer: SocketAddr, secured: &Arc<ListenerTls>) {
        let since = Instant::now();
        let deadline = since + self.handshake_timeout;
        let slot = OpenSlot::new(&self.undecided, &self.shards.addresses, peer.ip());
        let account = self.budget.open(peer.ip());
        let first = before_deadline(deadline, poll_fn(|cx| stream.poll_first_byte(cx)));
        let first = race(poll_fn(|cx| account.poll_doomed(cx)), first).await;
        drop((slot, account));
        match first {
            // The connection is dropped, because the memory budget is exhausted.
            First::Left(()) => {}
            // The client does not speak TLS: a letter begins an HTTP/1 method or the HTTP/2 preface, and a
            // TLS record begins with a byte below 32.
            First::Right(Some(Ok(Some(byte)))) if byte.is_ascii_alphabetic() => {
                self.let_in(stream, peer, secured.serves);
            }
            // A connection that has ended, failed or timed out also goes to the handshake, which then fails
            // and reports the reason.
            First::Right(_) => self.shake_hands(stream, peer, secured, since),
        }
    }

    /// Gives a connection without TLS to a shard.
    fn let_in(&self, stream: Stream, peer: SocketAddr, serves: Protocols) {
        // Detaches the socket from this thread's event loop, so that the shard thread can register it in its
        // own. That fails only for a broken socket, which is dropped.
        let Ok(stream) = stream.detach() else { return };
        self.shards.give(stream, Origin { serves, ..Origin::plain(peer) }, None);
    }

    /// Starts a handshake with a client that was accepted at `since`.
    fn shake_hands(&self, stream: Stream, peer: SocketAddr, secured: &Arc<ListenerTls>, since: Instant) {
        let Ok(stream) = stream.detach() else { return };
        if !self.handshakes.begin(stream, peer, secured, since) {
            self.refuse();
        }
    }

    /// Counts a connection as refused. The caller drops it, which closes it.
    fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
        self.budget.note_refused();
    }
}

/// Returns true for errors of `accept` that concern only one connection, so that the next call will probably
/// succeed.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}
