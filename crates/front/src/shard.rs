//! A shard: one thread with a runtime of its own, the connections that live on it, and their service. [`run`] is the body
//! of the thread; [`Closing`] tells services of a shutdown. It accepts no connections (`acceptor` does), and no call ever
//! leaves its thread.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use stdx::{First, race};

use slab::Slab;
use tokio::sync::{mpsc, watch};

use crate::acceptor::{Handed, Met};
use crate::clock::{self, Clock};
use crate::front::MakeService;
use crate::long_turns::LongTurns;
use crate::rejections::Rejections;
use crate::socket::{BufferPool, Socket, Transport};
use crate::standing::{self, Admission, Admitted, Standing};
use crate::turnstile::{Pass, Turnstile};
use crate::wire::{TLS_BYTES, TlsStream, Wire};
use crate::{Options, Origin, Service, connection, http1};
use accounting::ShardCounters;
use accounting::{Account, Held};

/// The number of a shard, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub usize);

/// Tells services that the front is shutting down, so that endless streams can end with their own status.
#[derive(Clone, Debug)]
pub struct Closing(pub(crate) watch::Receiver<bool>);

/// Begins the shutdown that a [`Closing`] tells of; a drop does the same.
#[derive(Debug)]
pub struct Close(watch::Sender<bool>);

impl Close {
    /// Shutdown begins.
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
        // An error means that the front is gone, which means the same as closing.
        let _ = self.0.wait_for(|begun| *begun).await;
    }
}

/// Facts about the shard that a service is made for.
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
    /// What HTTP/2 allows clients.
    pub(crate) http2: Arc<http2::Options>,
    pub(crate) counters: Arc<ShardCounters>,
    pub(crate) pool: Rc<BufferPool>,
    pub(crate) closing: Cell<bool>,
    /// Wakers of all connections, woken when closing begins, and by the clock.
    pub(crate) connections: RefCell<Slab<Waker>>,
    /// When connections want to be woken.
    pub(crate) clock: Clock,
    /// Connections that were let in by TLS.
    pub(crate) admitted: RefCell<Slab<Rc<Standing>>>,
    pub(crate) rejections: Arc<Rejections>,
    /// Where work waits that may.
    pub(crate) turnstile: Turnstile,
    /// Where connections wait that have much to do.
    pub(crate) long_turns: LongTurns,
}

/// What a shard hears of certificates, and tells.
pub(crate) struct Certificates {
    /// Counts how often TLS was loaded anew.
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

/// The body of a shard's thread: serves what is handed over until closing is done or it is killed. `counters` are those of all
/// shards.
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
    // Detached: it ends with the shard.
    drop(tokio::task::spawn_local(standing::watch(state.clone(), certificates.reloads)));
    let keeper = state.clone();
    drop(tokio::task::spawn_local(async move { keeper.turnstile.keep().await }));
    let keeper = state.clone();
    drop(tokio::task::spawn_local(async move { keeper.long_turns.keep().await }));
    let keeper = state.clone();
    drop(tokio::task::spawn_local(async move { clock::keep(&keeper).await }));
    // Connections hold a sender each: the channel ends with the last of them.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let serving = async {
        while let First::Right(Some(handed)) = race(closing.begun(), handed.recv()).await {
            // On the heap: a task has the size of its largest part, and thousands may wait for their turn.
            let handed = Box::new(handed);
            let (state, service, open) = (state.clone(), service.clone(), open.clone());
            let closing = shard.closing.clone();
            // Detached: the connection ends by itself or with the shard.
            drop(tokio::task::spawn_local(async move {
                Box::pin(Pass::default().through(&state.turnstile, handed.origin.peer.ip())).await;
                let Handed { stream, origin, met, slot } = *handed;
                // How a connection ended is the client's affair.
                if let Ok(stream) = stream.attach() {
                    let (wire, admission) = match met.map(|met| *met) {
                        None => (Wire::Plain(stream), None),
                        Some(Met { tls, records, admission }) => {
                            let stream = TlsStream::new(stream, tls, records, state.pool.clone());
                            (Wire::Tls(Box::new(stream)), Some(admission))
                        }
                    };
                    let begun =
                        Box::pin(begin(wire, origin, admission, state.clone(), closing.clone())).await;
                    match begun {
                        Ok(Some(begun)) if begun.speaks_h2 => {
                            // A task of its own, which holds nothing of the beginning.
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
        // Handed over but not begun: their clients see the connection close.
        handed.close();
        while handed.try_recv().is_ok() {}
        // Nothing is ever sent: this waits for the senders to go.
        let _ = all_closed.recv().await;
    };
    race(serving, killed.wait_for(|killed| *killed)).await;
}

/// Serves a connection, whichever protocol it speaks, until it ends.
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

/// A connection whose first bytes have come.
pub(crate) struct Begun<S> {
    pub(crate) socket: Socket<S>,
    speaks_h2: bool,
    pub(crate) origin: Origin,
    pub(crate) account: Rc<Account>,
    pub(crate) secured: Option<Box<Secured>>,
}

/// What a connection with TLS has besides, until it is gone.
pub(crate) struct Secured {
    admitted: Admitted,
    _held: Held,
}

impl Secured {
    /// Whether its client may stay.
    pub(crate) fn standing(&self) -> &Rc<Standing> {
        &self.admitted.standing
    }
}

/// Waits for the first bytes of a connection; `None` if it is over before, or speaks what its listener does not take, or not what
/// it has agreed on.
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
    // The turn that brought the connection here is its first look.
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
