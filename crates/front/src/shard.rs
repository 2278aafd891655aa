//! A shard: one thread with its own runtime, the connections that live on it, and their service. [`run`] is
//! the body of the thread; [`Closing`] signals a shutdown to services. The `acceptor` accepts connections,
//! and no call ever leaves the thread of its shard.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use stdx::{First, race};

use slab::Slab;
use tokio::sync::{mpsc, watch};
use transport::{BufferPool, Ending, TLS_BYTES, TlsStream};

use crate::acceptor::{Handed, Met};
use crate::clock::{self, Clock};
use crate::front::MakeService;
use crate::long_turns::LongTurns;
use crate::rejections::Rejections;
use crate::socket::{Socket, Transport, Wire};
use crate::standing::{self, Admission, Admitted, Standing};
use crate::turnstile::{Pass, Turnstile};
use crate::{Options, Origin, Service, connection, http1};
use accounting::ShardCounters;
use accounting::{Account, Held};

/// Index of a shard, starting at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub usize);

/// Signals services that the front is shutting down, so that endless streams can end with their own status.
#[derive(Clone, Debug)]
pub struct Closing(pub(crate) watch::Receiver<bool>);

/// Sender of the shutdown signal; dropping it also begins the shutdown.
#[derive(Debug)]
pub struct Close(watch::Sender<bool>);

impl Close {
    /// Begins the shutdown.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }
}

impl Closing {
    /// Returns both ends of a shutdown signal, for services that run without a front.
    pub fn by_hand() -> (Close, Closing) {
        let (close, closing) = watch::channel(false);
        (Close(close), Closing(closing))
    }

    /// Returns true if shutdown has begun.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when shutdown begins.
    pub async fn begun(&mut self) {
        // An error means that the front was dropped, which counts as closing.
        let _ = self.0.wait_for(|begun| *begun).await;
    }
}

/// Data about a shard, passed to [`crate::MakeService`].
#[derive(Clone, Debug)]
pub struct Shard {
    /// Number of the shard.
    pub id: ShardId,
    /// Signal of the front's shutdown.
    pub closing: Closing,
    /// Counters of the shard's connections, calls and messages.
    pub counters: Arc<ShardCounters>,
}

/// State that the connections of one shard share.
pub(crate) struct ShardState {
    pub(crate) options: Arc<Options>,
    /// HTTP/2 limits for clients.
    pub(crate) http2: Arc<http2::Options>,
    pub(crate) counters: Arc<ShardCounters>,
    pub(crate) pool: Rc<BufferPool>,
    pub(crate) closing: Cell<bool>,
    /// Wakers of all connections, for the clock and for the beginning of the shutdown.
    pub(crate) connections: RefCell<Slab<Waker>>,
    /// Alarms of the connections.
    pub(crate) clock: Clock,
    /// Connections that TLS has admitted.
    pub(crate) admitted: RefCell<Slab<Rc<Standing>>>,
    pub(crate) rejections: Arc<Rejections>,
    /// Throttle for work that may wait.
    pub(crate) turnstile: Turnstile,
    /// Queue of connections whose next turn is long.
    pub(crate) long_turns: LongTurns,
}

/// Inputs and outputs of the shard's certificate checks.
pub(crate) struct Certificates {
    /// Number of TLS reloads.
    pub(crate) reloads: watch::Receiver<u64>,
    pub(crate) rejections: Arc<Rejections>,
}

impl ShardState {
    pub(crate) fn wake_all(&self) {
        for (_, waker) in self.connections.borrow().iter() {
            waker.wake_by_ref();
        }
    }
}

/// Runs a shard's thread: serves the connections from `handed` until closing is complete or the shard is
/// killed. `counters` are those of all shards.
pub(crate) async fn run(
    shard: Shard,
    options: Arc<Options>,
    counters: Vec<Arc<ShardCounters>>,
    make_service: MakeService,
    mut handed: mpsc::UnboundedReceiver<Handed>,
    mut killed: watch::Receiver<bool>,
    certificates: Certificates,
) {
    let mut closing = shard.closing.clone();
    let service = make_service(shard.clone());
    let methods = u16::try_from(options.methods).unwrap_or(u16::MAX);
    let may_wait = (0..methods).map(|method| service.may_wait(method)).collect();
    let state = Rc::new(ShardState {
        http2: Arc::new(connection::engine_options(&options)),
        options,
        counters: counters[shard.id.0].clone(),
        pool: Rc::new(BufferPool::default()),
        closing: Cell::new(false),
        connections: RefCell::new(Slab::new()),
        clock: Clock::default(),
        admitted: RefCell::new(Slab::new()),
        rejections: certificates.rejections,
        turnstile: Turnstile::new(may_wait, counters),
        long_turns: LongTurns::default(),
    });
    // Detached: the task ends with the shard.
    drop(tokio::task::spawn_local(standing::watch(state.clone(), certificates.reloads)));
    let keeper = state.clone();
    drop(tokio::task::spawn_local(async move { keeper.turnstile.keep().await }));
    let keeper = state.clone();
    drop(tokio::task::spawn_local(async move { keeper.long_turns.keep().await }));
    let keeper = state.clone();
    drop(tokio::task::spawn_local(async move { clock::keep(&keeper).await }));
    // Each connection holds a sender, so the channel closes with the last connection.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let serving = async {
        while let First::Right(Some(handed)) = race(closing.begun(), handed.recv()).await {
            // On the heap: a task is as large as its largest state, and thousands of tasks may wait for their
            // turn.
            let handed = Box::new(handed);
            let (state, service, open) = (state.clone(), service.clone(), open.clone());
            let closing = shard.closing.clone();
            // Detached: the connection ends by itself or with the shard.
            drop(tokio::task::spawn_local(async move {
                Box::pin(Pass::default().through(&state.turnstile, handed.origin.peer.ip())).await;
                let Handed { stream, origin, met, slot } = *handed;
                // Errors of a connection concern its client only and are not reported.
                if let Ok(stream) = stream.attach() {
                    let (wire, admission) = match met.map(|met| *met) {
                        None => (Wire::Plain(stream), None),
                        Some(Met { tls, records, admission }) => {
                            // HTTP messages carry their own length.
                            let pool = state.pool.clone();
                            let stream = TlsStream::new(stream, tls, records, pool, Ending::Any);
                            (Wire::Tls(Box::new(stream)), Some(admission))
                        }
                    };
                    let begun =
                        Box::pin(begin(wire, origin, admission, state.clone(), closing.clone())).await;
                    match begun {
                        Ok(Some(begun)) if begun.speaks_h2 => {
                            // Spawned as a separate task, so that the memory used while waiting for the first
                            // bytes is freed.
                            let serving = connection::serve(begun, state, service, (slot, open));
                            drop(tokio::task::spawn_local(serving));
                        }
                        Ok(Some(begun)) => {
                            let _ = Box::pin(http1::serve(begun, state, service, closing)).await;
                            drop((slot, open));
                        }
                        Ok(None) | Err(_) => drop((slot, open)),
                    }
                }
            }));
        }
        state.closing.set(true);
        state.turnstile.release();
        state.wake_all();
        drop(open);
        // Connections that were handed over and have not begun are dropped, which closes them.
        handed.close();
        while handed.try_recv().is_ok() {}
        // No value is ever sent; this waits until all senders are dropped.
        let _ = all_closed.recv().await;
    };
    race(serving, killed.wait_for(|killed| *killed)).await;
}

/// Serves a connection of either protocol until it ends.
pub(crate) async fn serve<S: Transport + 'static>(
    wire: Wire<S>,
    origin: Origin,
    admission: Option<Admission>,
    state: Rc<ShardState>,
    service: Rc<dyn Service>,
    closing: Closing,
) -> std::io::Result<()> {
    match begin(wire, origin, admission, state.clone(), closing.clone()).await? {
        None => Ok(()),
        Some(begun) if begun.speaks_h2 => connection::serve(begun, state, service, ()).await,
        Some(begun) => http1::serve(begun, state, service, closing).await,
    }
}

/// Connection whose first bytes have arrived.
pub(crate) struct Begun<S> {
    pub(crate) socket: Socket<S>,
    speaks_h2: bool,
    pub(crate) origin: Origin,
    pub(crate) account: Rc<Account>,
    pub(crate) secured: Option<Box<Secured>>,
}

/// Additional state of a TLS connection.
pub(crate) struct Secured {
    admitted: Admitted,
    _held: Held,
}

impl Secured {
    /// Returns the handle that shows whether the client is still admitted.
    pub(crate) fn standing(&self) -> &Rc<Standing> {
        &self.admitted.standing
    }
}

/// Waits for the first bytes of a connection. Returns `None` if the front closes first, or if the client
/// speaks a protocol that its listener does not serve or that differs from the one negotiated by ALPN.
async fn begin<S: Transport + 'static>(
    wire: Wire<S>,
    origin: Origin,
    admission: Option<Admission>,
    state: Rc<ShardState>,
    mut closing: Closing,
) -> std::io::Result<Option<Begun<S>>> {
    let account = state.options.budget.open(origin.peer.ip());
    let secured = admission.map(|admission| {
        let admitted = Admitted::new(&state, admission, origin.peer);
        Box::new(Secured { admitted, _held: account.hold(TLS_BYTES) })
    });
    let standing = secured.as_ref().map(|secured| secured.standing().clone());
    let mut socket = Socket::new(wire, state.pool.clone());
    let mut pass = Pass::default();
    // The first check needs no turn: the connection was admitted through the turnstile just before.
    let mut has_turn = true;
    let first = poll_fn(|cx| {
        let waits =
            !std::mem::take(&mut has_turn) && pass.poll(&state.turnstile, origin.peer.ip(), cx).is_pending();
        let polled = if waits { Poll::Pending } else { socket.poll_speaks_h2(cx) };
        account.set_buffers(socket.buffer_bytes());
        if polled.is_pending() && account.poll_doomed(cx).is_ready() {
            return Poll::Ready(Err(std::io::ErrorKind::OutOfMemory.into()));
        }
        if standing.as_ref().is_some_and(|standing| standing.poll_over(cx).is_ready()) {
            return Poll::Ready(Err(std::io::ErrorKind::PermissionDenied.into()));
        }
        polled
    });
    let first = tokio::time::timeout(state.options.first_bytes_timeout, first);
    let First::Left(first) = race(first, closing.begun()).await else { return Ok(None) };
    let speaks_h2 = first.map_err(|_| std::io::ErrorKind::TimedOut)??;
    let is_taken = origin.serves.takes(speaks_h2, origin.is_tls) && (speaks_h2 || !socket.has_agreed_on_h2());
    Ok(is_taken.then_some(Begun { socket, speaks_h2, origin, account, secured }))
}
