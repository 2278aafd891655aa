use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::shard::Closing;
use crate::stream::{Detached, Stream};
use crate::{Budget, Listener, ListenerSocket, Origin, ShardCounters};

/// Pause in accepting after an error such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// A connection on its way to its shard.
pub(crate) struct Handed {
    pub(crate) stream: Detached,
    pub(crate) origin: Origin,
    /// Counts it as open while it lives.
    pub(crate) slot: OpenSlot,
}

/// One of a shard's open connections.
pub(crate) struct OpenSlot(Arc<ShardCounters>);

impl OpenSlot {
    fn new(counters: &Arc<ShardCounters>) -> OpenSlot {
        counters.connections.fetch_add(1, Relaxed);
        OpenSlot(counters.clone())
    }
}

impl Drop for OpenSlot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

/// Accepts connections and hands each to the shard with the fewest.
pub(crate) struct Acceptor {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) hands: Vec<(UnboundedSender<Handed>, Arc<ShardCounters>)>,
    pub(crate) connections_max: usize,
    pub(crate) budget: Budget,
    pub(crate) refused: Arc<AtomicU64>,
    pub(crate) closing: Closing,
}

/// Starts the acceptor's thread.
pub(crate) fn spawn(mut acceptor: Acceptor) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listeners = {
        let _inside = runtime.enter();
        let listeners = std::mem::take(&mut acceptor.listeners).into_iter();
        listeners.map(Accepting::begin).collect::<io::Result<Vec<_>>>()?
    };
    std::thread::Builder::new().name("front-accept".to_owned()).spawn(move || {
        let local = tokio::task::LocalSet::new();
        let acceptor = std::rc::Rc::new(acceptor);
        let mut closing = acceptor.closing.clone();
        for listener in listeners {
            let acceptor = acceptor.clone();
            // Detached: it ends with the local set.
            drop(local.spawn_local(async move { acceptor.accept_from(listener).await }));
        }
        local.block_on(&runtime, closing.begun());
    })
}

/// A listener in the acceptor's event loop.
enum Accepting {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Accepting {
    fn begin(listener: Listener) -> io::Result<Accepting> {
        if listener.tls.is_some() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "TLS is not supported yet"));
        }
        Ok(match listener.socket {
            ListenerSocket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Accepting::Tcp(tokio::net::TcpListener::from_std(listener)?)
            }
            ListenerSocket::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Accepting::Unix(tokio::net::UnixListener::from_std(listener)?)
            }
        })
    }

    /// The next connection, and its client's address.
    async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Accepting::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Stream::Tcp(stream), peer))
            }
            Accepting::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), Origin::NO_ADDRESS))
            }
        }
    }
}

impl Acceptor {
    async fn accept_from(&self, listener: Accepting) {
        loop {
            // Taken out of this runtime's event loop again: the shard puts it into its own.
            let accepted = listener.accept().await;
            match accepted.and_then(|(stream, peer)| Ok((stream.detach()?, peer))) {
                Ok((stream, peer)) => self.hand_over(stream, peer),
                Err(error) if concerns_one_connection(&error) => {}
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn hand_over(&self, stream: Detached, peer: SocketAddr) {
        let open = |counters: &ShardCounters| counters.connections.load(Relaxed);
        let total: usize = self.hands.iter().map(|(_, counters)| open(counters)).sum();
        if total >= self.connections_max || !self.budget.has_room_for(peer.ip()) {
            // Closing at once lets the client try another member instead of waiting.
            self.refused.fetch_add(1, Relaxed);
            return;
        }
        if let Detached::Tcp(stream) = &stream
            && stream.set_nodelay(true).is_err()
        {
            // The client is gone already.
            return;
        }
        if let Some((hand, counters)) = self.hands.iter().min_by_key(|(_, counters)| open(counters)) {
            let slot = OpenSlot::new(counters);
            // It fails only when the shard is closing: then the connection is closed.
            let _ = hand.send(Handed { stream, origin: Origin::plain(peer), slot });
        }
    }
}

/// Errors of `accept` that say nothing about the next one.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}
