use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use api::Code;

/// Adds `n` to a counter. Only one thread may write the counter, because the addition is not atomic: it is a
/// load and a store, which are faster.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Counters of one gRPC method on one shard. Only the shard's thread writes them; any thread may read them.
#[derive(Debug, Default)]
pub struct MethodCounters {
    /// Number of calls that have begun.
    pub started: AtomicU64,
    /// Number of calls that have ended with each status; the index is the number of the [`Code`].
    pub handled: [AtomicU64; Code::ALL.len()],
    /// Number of messages received.
    pub messages_received: AtomicU64,
    /// Number of messages sent.
    pub messages_sent: AtomicU64,
}

/// Bytes that clients of one group have sent and received over one shard, as their connections carry them, without what
/// TLS and TCP add. Only the shard's thread writes them; any thread may read them.
///
/// Each has a pair of cache lines of its own, because the threads of all shards count at the same time.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct TrafficCounters {
    /// Number of bytes received from clients.
    pub received: AtomicU64,
    /// Number of bytes sent to clients.
    pub sent: AtomicU64,
}

/// Counters of one shard, a thread of the front that serves connections. `front::Front::counters` returns
/// those of all shards.
#[derive(Debug)]
pub struct ShardCounters {
    /// Counters of each method; the index is the method id.
    pub methods: Vec<MethodCounters>,
    /// Number of bytes of the received gRPC messages, as they were transferred, without the 5-byte prefixes.
    pub bytes_received: AtomicU64,
    /// Number of bytes of the sent gRPC messages, as they were transferred, without the 5-byte prefixes.
    pub bytes_sent: AtomicU64,
    /// Number of messages received, for all methods together.
    pub messages_received: AtomicU64,
    /// Number of open connections.
    pub connections: AtomicUsize,
    /// Number of open HTTP/2 connections. They are a part of [`Self::connections`], which also counts
    /// connections that have sent no bytes yet and those that speak HTTP/1.
    pub http2_connections: AtomicU64,
    /// Number of connections that the current order to drain has yet to end.
    pub connections_to_drain: AtomicU64,
    /// Number of connections that were told to end because of an order to drain.
    pub connections_drained: AtomicU64,
    /// True while the shard's thread waits for a disk. New connections are then given to other shards.
    pub stands_still: AtomicBool,
    /// Number of connections that were closed because the client has sent too many pings.
    pub too_many_pings: AtomicU64,
    /// Number of streams that were reset because data was buffered for them, and they made no progress.
    pub stalled_streams: AtomicU64,
    /// Bytes of the clients of each zone that has networks; the index is that of the zone in
    /// `stdx::zones::ZoneNetworks`.
    pub zones: Vec<Arc<TrafficCounters>>,
}

impl ShardCounters {
    /// Creates counters that are all zero.
    pub fn new(methods: usize) -> ShardCounters {
        ShardCounters {
            methods: (0..methods).map(|_| MethodCounters::default()).collect(),
            bytes_received: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            messages_received: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            http2_connections: AtomicU64::new(0),
            connections_to_drain: AtomicU64::new(0),
            connections_drained: AtomicU64::new(0),
            stands_still: AtomicBool::new(false),
            too_many_pings: AtomicU64::new(0),
            stalled_streams: AtomicU64::new(0),
            zones: Vec::new(),
        }
    }

    /// Adds counters for the clients of this number of zones.
    #[must_use]
    pub fn with_zones(mut self, zones: usize) -> ShardCounters {
        self.zones = (0..zones).map(|_| Arc::default()).collect();
        self
    }

    fn method(&self, id: u16) -> &MethodCounters {
        assert!(usize::from(id) < self.methods.len(), "method id {id} is not below Options::methods");
        &self.methods[usize::from(id)]
    }

    /// Counts a call that begins. Only the shard's thread may call this method and the other counting
    /// methods.
    pub fn started(&self, id: u16) {
        add(&self.method(id).started, 1);
    }

    /// Counts a call that ended with `code`.
    pub fn handled(&self, id: u16, code: Code) {
        add(&self.method(id).handled[code as usize], 1);
    }

    /// Counts a received message of `bytes` bytes.
    pub fn received(&self, id: u16, bytes: usize) {
        add(&self.method(id).messages_received, 1);
        add(&self.bytes_received, bytes as u64);
        add(&self.messages_received, 1);
    }

    /// Counts a sent message of `bytes` bytes.
    pub fn sent(&self, id: u16, bytes: usize) {
        self.sent_together(id, 1, bytes);
    }

    /// Counts `messages` sent messages of `bytes` bytes in total.
    pub fn sent_together(&self, id: u16, messages: usize, bytes: usize) {
        add(&self.method(id).messages_sent, messages as u64);
        add(&self.bytes_sent, bytes as u64);
    }
}
