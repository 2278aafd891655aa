//! Distributes connections over the shards: [`ShardChannels`] gives each connection to the shard with the
//! fewest connections, and counts the open connections of each client address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use accounting::ShardCounters;
use rustls::Connection;
use tokio::sync::mpsc::UnboundedSender;
use transport::{Detached, Records};

use crate::Origin;
use crate::admissions::Admission;

/// Connection on its way from the acceptor to its shard.
pub(crate) struct ConnectionTransfer {
    pub(crate) stream: Detached,
    pub(crate) origin: Origin,
    /// State after the TLS handshake; `None` for a connection without TLS.
    pub(crate) tls: Option<Box<TlsState>>,
    /// Counts the connection as open until dropped.
    pub(crate) slot: OpenSlot,
}

/// State of a TLS connection after its handshake.
pub(crate) struct TlsState {
    pub(crate) connection: Connection,
    pub(crate) records: Records,
    pub(crate) admission: Admission,
}

/// Counts one open connection, for its shard and for its client address, until dropped.
pub(crate) struct OpenSlot {
    shard: Arc<ShardCounters>,
    addresses: Arc<Addresses>,
    party: IpAddr,
}

impl OpenSlot {
    pub(crate) fn new(counters: &Arc<ShardCounters>, addresses: &Arc<Addresses>, peer: IpAddr) -> OpenSlot {
        counters.connections.fetch_add(1, Relaxed);
        let party = accounting::party(peer);
        *addresses.lock().entry(party).or_default() += 1;
        OpenSlot { shard: counters.clone(), addresses: addresses.clone(), party }
    }
}

impl Drop for OpenSlot {
    fn drop(&mut self) {
        self.shard.connections.fetch_sub(1, Relaxed);
        let mut open = self.addresses.lock();
        if let Entry::Occupied(mut of_party) = open.entry(self.party) {
            *of_party.get_mut() -= 1;
            if *of_party.get() == 0 {
                of_party.remove();
            }
        }
    }
}

/// Number of open connections of each client address. An IPv6 network of 64 bits counts as one address.
#[derive(Default)]
pub(crate) struct Addresses(Mutex<HashMap<IpAddr, usize>>);

impl Addresses {
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of open connections of an address. Returns 0 for the unspecified address, which
    /// stands for Unix sockets.
    pub(crate) fn open(&self, peer: IpAddr) -> usize {
        if peer.is_unspecified() {
            return 0;
        }
        self.lock().get(&accounting::party(peer)).copied().unwrap_or_default()
    }
}

/// Channels to the shards, with the counters of each shard, and the number of open connections of each client
/// address.
pub(crate) struct ShardChannels {
    shards: Vec<(UnboundedSender<ConnectionTransfer>, Arc<ShardCounters>)>,
    pub(crate) addresses: Arc<Addresses>,
}

impl ShardChannels {
    pub(crate) fn new(
        shards: Vec<(UnboundedSender<ConnectionTransfer>, Arc<ShardCounters>)>,
    ) -> ShardChannels {
        ShardChannels { shards, addresses: Arc::default() }
    }

    /// Returns the number of open connections on all shards.
    pub(crate) fn open(&self) -> usize {
        self.shards.iter().map(|(_, counters)| counters.connections.load(Relaxed)).sum()
    }

    /// Gives a connection to the shard with the fewest connections. Shards that are blocked, for example by a
    /// disk, are used only if all shards are blocked.
    pub(crate) fn give(&self, stream: Detached, origin: Origin, tls: Option<Box<TlsState>>) {
        let load = |counters: &ShardCounters| {
            (counters.stands_still.load(Relaxed), counters.connections.load(Relaxed))
        };
        let fewest = self.shards.iter().min_by_key(|(_, counters)| load(counters));
        if let Some((shard, counters)) = fewest {
            let slot = OpenSlot::new(counters, &self.addresses, origin.peer.ip());
            // The error is ignored: `send` fails only if the shard is closing, and the connection is then
            // dropped, which closes it.
            let _ = shard.send(ConnectionTransfer { stream, origin, tls, slot });
        }
    }
}
