use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use api::Code;

/// Adds to a counter that only its own shard writes, so no atomic read-modify-write is needed.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Counters of one method on one shard. Any thread may read them with `load`; only the shard writes them.
#[derive(Debug, Default)]
pub struct MethodCounters {
    /// Number of calls begun.
    pub started: AtomicU64,
    /// Number of calls ended, indexed by [`Code`] number.
    pub handled: [AtomicU64; Code::ALL.len()],
    /// Number of messages received.
    pub messages_received: AtomicU64,
    /// Number of messages sent.
    pub messages_sent: AtomicU64,
}

/// Counters of one shard. The sum over `front::Front::counters` covers the whole front.
#[derive(Debug)]
pub struct ShardCounters {
    /// Counters per method, indexed by method id.
    pub methods: Vec<MethodCounters>,
    /// Bytes of gRPC messages received, as on the wire, without prefixes.
    pub bytes_received: AtomicU64,
    /// Bytes of gRPC messages sent, as on the wire, without prefixes.
    pub bytes_sent: AtomicU64,
    /// Number of messages received, for all methods together.
    pub messages_received: AtomicU64,
    /// Number of open connections.
    pub connections: AtomicUsize,
    /// True while the shard's thread waits for a disk; new connections go to other shards then.
    pub stands_still: AtomicBool,
    /// Number of connections closed for pinging too often.
    pub too_many_pings: AtomicU64,
    /// Number of streams reset because they held data without progress.
    pub stalled_streams: AtomicU64,
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
            stands_still: AtomicBool::new(false),
            too_many_pings: AtomicU64::new(0),
            stalled_streams: AtomicU64::new(0),
        }
    }

    fn method(&self, id: u16) -> &MethodCounters {
        assert!(usize::from(id) < self.methods.len(), "method id {id} is not below Options::methods");
        &self.methods[usize::from(id)]
    }

    /// Counts a call that begins. Like the other counting methods, only the shard's own thread may call it.
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
