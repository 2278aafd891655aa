//! Runs a shard: one thread with its own runtime, the connections that live on it, and their service. [`run`]
//! is the body of the thread. Another thread accepts the connections (`acceptor`). No call ever leaves the
//! thread of its shard.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use stdx::{First, race};

use accounting::ShardCounters;
use slab::Slab;
use tokio::sync::{mpsc, watch};
use transport::{Ending, TlsStream};

use crate::admissions::{Admission, Admissions};
use crate::clock::Clock;
use crate::closing::Closing;
use crate::drains::{self, Departures, Drains};
use crate::long_turns::LongTurns;
use crate::new_connection::begin;
use crate::rejections::Rejections;
use crate::shard_channels::{ConnectionTransfer, TlsState};
use crate::shard_state::ShardState;
use crate::socket::{SocketShared, Transport, Wire};
use crate::turnstile::{Pass, Turnstile};
use crate::{Options, Origin, Service, connection, http1, serving};

/// Creates the service of a shard. Called on that shard's thread, inside its `LocalSet`.
pub type MakeService = Arc<dyn Fn(Shard) -> Rc<dyn Service> + Send + Sync>;

/// Index of a shard, starting at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub usize);

/// Data about a shard, passed to [`crate::MakeService`].
#[derive(Clone, Debug)]
pub struct Shard {
    /// Index of the shard.
    pub id: ShardId,
    /// Signal of the front's shutdown.
    pub closing: Closing,
    /// Takes orders to drain connections of the front, of all shards.
    pub drains: Drains,
    /// Counters of the shard's connections, calls and messages.
    pub counters: Arc<ShardCounters>,
}

/// Inputs and outputs of a shard's repeated checks of its clients' certificates.
pub(crate) struct Certificates {
    /// Changes whenever TLS files were reloaded, after which the certificates are checked.
    pub(crate) reloads: watch::Receiver<u64>,
    pub(crate) rejections: Arc<Rejections>,
}

/// Serves the connections that arrive through `handed`, as the body of a shard's thread. Returns when all
/// connections have closed after a shutdown began, or when they must be closed immediately. `counters` are
/// the counters of all shards.
pub(crate) async fn run(
    shard: Shard,
    options: Arc<Options>,
    counters: Vec<Arc<ShardCounters>>,
    make_service: MakeService,
    mut handed: mpsc::UnboundedReceiver<ConnectionTransfer>,
    certificates: Certificates,
) {
    let mut closing = shard.closing.clone();
    let mut killed = shard.closing.clone();
    let service = make_service(shard.clone());
    let methods = u16::try_from(options.methods).unwrap_or(u16::MAX);
    let may_wait = (0..methods).map(|method| service.may_wait(method)).collect();
    let state = Rc::new(ShardState {
        http2: Arc::new(connection::engine_options(&options)),
        sockets: SocketShared::new(&options, &counters[shard.id.0]),
        options,
        counters: counters[shard.id.0].clone(),
        closing: Cell::new(false),
        connections: RefCell::new(Slab::new()),
        clock: Clock::default(),
        departures: Departures::default(),
        admissions: Rc::new(Admissions::new(certificates.rejections)),
        turnstile: Turnstile::new(may_wait, counters),
        long_turns: LongTurns::default(),
    });
    // The tasks are detached, because they end with the shard.
    let (admissions, every) = (state.admissions.clone(), state.options.certificates_checked_every);
    drop(tokio::task::spawn_local(async move { admissions.watch(every, certificates.reloads).await }));
    let keeper = state.clone();
    drop(tokio::task::spawn_local(async move { keeper.turnstile.keep().await }));
    let keeper = state.clone();
    drop(tokio::task::spawn_local(async move { keeper.long_turns.keep().await }));
    let keeper = state.clone();
    drop(tokio::task::spawn_local(async move { keeper.clock.keep(&keeper.connections).await }));
    drop(tokio::task::spawn_local(drains::keep(state.clone(), shard.id.0, shard.drains.orders())));
    // Each connection holds a sender, so the channel closes with the last connection.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let serving = async {
        while let First::Right(Some(handed)) = race(closing.begun(), handed.recv()).await {
            // Boxed to keep the task small: a task is as large as its largest state, and thousands of tasks
            // may wait at the turnstile.
            let handed = Box::new(handed);
            let (state, service, open) = (state.clone(), service.clone(), open.clone());
            let closing = shard.closing.clone();
            // The task is detached, because it ends by itself or with the shard.
            drop(tokio::task::spawn_local(async move {
                Box::pin(Pass::default().through(&state.turnstile, handed.origin.peer.ip())).await;
                let ConnectionTransfer { stream, origin, tls, slot } = *handed;
                // Errors of a connection concern its client only and are not reported.
                if let Ok(stream) = stream.attach() {
                    let (wire, admission) = match tls.map(|tls| *tls) {
                        None => (Wire::Plain(stream), None),
                        Some(TlsState { connection: tls, records, admission }) => {
                            // The client may end the TLS connection without `close_notify`, because HTTP
                            // messages carry their own length.
                            let pool = state.sockets.pool.clone();
                            let stream = TlsStream::new(stream, tls, records, pool, Ending::Any);
                            (Wire::Tls(Box::new(stream)), Some(admission))
                        }
                    };
                    let begun =
                        Box::pin(begin(wire, origin, admission, state.clone(), closing.clone())).await;
                    match begun {
                        Ok(Some(begun)) if begun.speaks_h2 => {
                            // Served by a new task, so that the larger task that has waited for the first
                            // bytes is freed.
                            let serving = serving::serve(begun, state, service, (slot, open));
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
        // Waits until all connections have dropped their senders; no value is ever sent.
        let _ = all_closed.recv().await;
    };
    race(serving, killed.immediate()).await;
}

/// Serves one connection, HTTP/2 or HTTP/1, until it ends. For connections that no shard serves, as in
/// fuzzing.
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
        Some(begun) if begun.speaks_h2 => serving::serve(begun, state, service, ()).await,
        Some(begun) => http1::serve(begun, state, service, closing).await,
    }
}
