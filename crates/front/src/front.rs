use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stdx::Gathering;
use tokio::sync::{mpsc, watch};

use crate::acceptor::{Acceptor, HandshakeThreads};
use crate::closing::{Closing, Shutdown};
use crate::drains::Drains;
use crate::handshakes::{HandshakeContext, Quota};
use crate::rejections::Rejections;
use crate::shard::{Certificates, MakeService, Shard, ShardId};
use crate::shard_channels::{ConnectionTransfer, ShardChannels};
use crate::{Listener, Options, acceptor, handshakes};
use accounting::ShardCounters;

/// Average number of messages per poll of the network above which a shard yields to other threads before the
/// next poll, so that more messages arrive until then and are served together. A single client that waits for
/// each answer sends only one message per poll, so it does not make the shard yield, which would only delay
/// its answers.
const GATHERED: u64 = 2;

/// A running front. Dropping it closes all connections immediately; [`Front::shutdown`] lets calls in flight
/// end first.
pub struct Front {
    shutdown: watch::Sender<Shutdown>,
    /// Counts the reloads of TLS files; shards check their connections when it changes.
    reloads: watch::Sender<u64>,
    counters: Vec<Arc<ShardCounters>>,
    refused: Arc<AtomicU64>,
    drains: Drains,
    threads: Vec<JoinHandle<()>>,
    ended: mpsc::UnboundedReceiver<()>,
}

/// Starts the threads of the shards, and accepts connections on all listeners.
///
/// # Errors
/// Returns an error if a thread or its event loop cannot be created, or if a listener cannot be set up.
pub fn start(options: Options, listeners: Vec<Listener>, make_service: MakeService) -> io::Result<Front> {
    let shards = match options.shards {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        shards => shards,
    };
    let options = Arc::new(options);
    let (shutdown, closing) = watch::channel(Shutdown::NotBegun);
    let closing = Closing(closing);
    let (ended_tx, ended) = mpsc::unbounded_channel::<()>();
    let counters_of_shard = || ShardCounters::new(options.methods).with_zones(options.zones.names().len());
    let counters: Vec<_> = (0..shards).map(|_| Arc::new(counters_of_shard())).collect();
    let drains = Drains::new(&counters);
    let mut front = Front {
        shutdown,
        reloads: watch::Sender::new(0),
        counters,
        refused: Arc::new(AtomicU64::new(0)),
        drains: drains.clone(),
        threads: Vec::with_capacity(shards + 1),
        ended,
    };
    let mut channels = Vec::with_capacity(shards);
    let rejections = Arc::new(Rejections::new(options.rejected.clone()));
    for shard in 0..shards {
        // The channel needs no limit: a connection counts as open before it is sent here, so
        // `Options::connections_max` bounds the number of queued ones.
        let (channel, handed) = mpsc::unbounded_channel::<ConnectionTransfer>();
        channels.push((channel, front.counters[shard].clone()));
        let counters = front.counters.clone();
        let (own, gathering) = (front.counters[shard].clone(), Mutex::new((0, Gathering::new(GATHERED))));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(move || {
                // A poisoned lock is ignored, because nothing that can panic runs under it.
                let mut gathering = gathering.lock().unwrap_or_else(PoisonError::into_inner);
                let (seen, gathering) = &mut *gathering;
                let messages = own.messages_received.load(Relaxed);
                if gathering.turn(messages.wrapping_sub(std::mem::replace(seen, messages))) {
                    let began = Instant::now();
                    std::thread::yield_now();
                    gathering.gave_way(began.elapsed());
                }
            })
            .build()?;
        let (options, make_service) = (options.clone(), make_service.clone());
        let shard = Shard {
            id: ShardId(shard),
            closing: closing.clone(),
            drains: drains.clone(),
            counters: front.counters[shard].clone(),
        };
        let ended = ended_tx.clone();
        let certificates =
            Certificates { reloads: front.reloads.subscribe(), rejections: rejections.clone() };
        let thread = std::thread::Builder::new().name(format!("front-{}", shard.id.0)).spawn(move || {
            let local = tokio::task::LocalSet::new();
            let run = crate::shard::run(shard, options, counters, make_service, handed, certificates);
            local.block_on(&runtime, run);
            // Dropping the local set closes the connections that were still open at the deadline of the
            // shutdown.
            drop(local);
            drop(runtime);
            drop(ended);
        })?;
        front.threads.push(thread);
    }
    let channels = Arc::new(ShardChannels::new(channels));
    let quota = Quota::new(&options.budget);
    let context = Arc::new(HandshakeContext {
        shards: channels.clone(),
        rejections,
        resolver: options.resolver.clone(),
        look_ups: Arc::new(AtomicUsize::new(0)),
        timeout: options.handshake_timeout,
        handshaken: options.handshaken.clone(),
    });
    let mut handshakes = HandshakeThreads { threads: Vec::new(), context, next: AtomicUsize::new(0), quota };
    if listeners.iter().any(|listener| listener.tls.is_some()) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for number in 0..handshake_threads(cores, shards) {
            let (thread, joined) = handshakes::spawn(number, closing.clone())?;
            front.threads.push(joined);
            handshakes.threads.push(thread);
        }
    }
    let acceptor = Acceptor {
        listeners,
        shards: channels,
        handshakes,
        undecided: Arc::new(ShardCounters::new(0)),
        handshake_timeout: options.handshake_timeout,
        connections_max: options.connections_max,
        connections_per_address_max: options.connections_per_address_max,
        budget: options.budget.clone(),
        refused: front.refused.clone(),
        closing,
    };
    front.threads.push(acceptor::spawn(acceptor)?);
    Ok(front)
}

/// Returns the number of handshake threads: one less than there are cores, so that a core is left for
/// established connections; not more than there are shards; and at least one.
fn handshake_threads(cores: usize, shards: usize) -> usize {
    cores.saturating_sub(1).min(shards).max(1)
}

impl Front {
    /// Returns the counters of each shard, indexed by shard id. The handles stay readable after shutdown.
    pub fn counters(&self) -> &[Arc<ShardCounters>] {
        &self.counters
    }

    /// Returns the counter of connections that were closed before they were served, because
    /// [`Options::connections_max`], [`Options::connections_per_address_max`], [`Options::budget`] or the
    /// memory limit for TLS handshakes was reached.
    pub fn connections_refused(&self) -> Arc<AtomicU64> {
        self.refused.clone()
    }

    /// Returns the end that takes orders to drain connections. The services have it, too ([`Shard::drains`]).
    pub fn drains(&self) -> &Drains {
        &self.drains
    }

    /// Must be called after TLS files of a listener were reloaded. Closes, soon, the connections that would
    /// not be admitted any more. The front also checks periodically
    /// ([`Options::certificates_checked_every`]), because certificates expire.
    pub fn tls_reloaded(&self) {
        self.reloads.send_modify(|reloads| *reloads = reloads.wrapping_add(1));
    }

    /// Returns a handle for another thread with the effect of [`Front::tls_reloaded`].
    pub fn tls_reloads(&self) -> impl Fn() + Send + use<> {
        let reloads = self.reloads.clone();
        move || reloads.send_modify(|reloads| *reloads = reloads.wrapping_add(1))
    }

    /// Stops accepting, sends GOAWAY to every client, waits for calls in flight until `deadline`, closes the
    /// remaining connections, and returns when all threads have ended. Works in any tokio runtime with time
    /// enabled.
    pub async fn shutdown(mut self, deadline: Instant) {
        self.shutdown.send_replace(Shutdown::Graceful);
        // Resolves when all shards have ended, because the thread of each shard drops its sender then.
        let all_ended = async { while self.ended.recv().await.is_some() {} };
        if tokio::time::timeout_at(deadline.into(), all_ended).await.is_err() {
            self.shutdown.send_replace(Shutdown::Immediate);
            while self.ended.recv().await.is_some() {}
        }
        self.join();
    }

    /// Shuts down like [`Front::shutdown`], from a thread without a runtime. Waits at most `patience` for
    /// calls in flight and then blocks until the threads have ended.
    pub fn shutdown_blocking(mut self, patience: Duration) {
        self.shutdown.send_replace(Shutdown::Graceful);
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline && self.threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        self.shutdown.send_replace(Shutdown::Immediate);
        self.join();
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // The error is ignored: it means that the thread has panicked. The panic hook has reported the
            // panic, and in release builds a panic ends the process.
            let _ = thread.join();
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.shutdown.send_replace(Shutdown::Immediate);
        self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_with_one_shard_shakes_hands_on_one_thread() {
        let threads = |cores, shards| handshake_threads(cores, shards);
        assert_eq!((threads(64, 64), threads(64, 1), threads(1, 1), threads(2, 8)), (63, 1, 1, 1));
    }
}
