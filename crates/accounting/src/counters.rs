use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use api::Code;

/// Adds to a counter that only its own shard writes: no locked instruction is needed.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Counters of one method on one shard. Read them with `load`; only the shard writes.
#[derive(Debug, Default)]
pub struct MethodCounters {
    /// Calls begun.
    pub started: AtomicU64,
    /// Calls ended, by [`Code`] number.
    pub handled: [AtomicU64; Code::ALL.len()],
    /// Messages taken.
    pub messages_received: AtomicU64,
    /// Messages given.
    pub messages_sent: AtomicU64,
}

/// Counters of one shard. The sum over `front::Front::counters` is the whole server's.
#[derive(Debug)]
pub struct ShardCounters {
    /// Indexed by method id.
    pub methods: Vec<MethodCounters>,
    /// Bytes of gRPC messages taken, as on the wire, without prefixes.
    pub bytes_received: AtomicU64,
    /// Bytes of gRPC messages given, as on the wire, without prefixes.
    pub bytes_sent: AtomicU64,
    /// Messages taken, of all methods.
    pub messages_received: AtomicU64,
    /// Connections open now.
    pub connections: AtomicUsize,
    /// True while the shard's thread waits for a disk: new connections go to another shard.
    pub stands_still: AtomicBool,
    /// Connections closed for pinging too often.
    pub too_many_pings: AtomicU64,
    /// Streams reset because they held data without progress.
    pub stalled_streams: AtomicU64,
}

impl ShardCounters {
    /// Returns counters of a shard that has done nothing.
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

    /// Counts a call that begins. As the other counts, it is for the shard's own thread.
    pub fn started(&self, id: u16) {
        add(&self.method(id).started, 1);
    }

    /// Counts a call that ended with this code.
    pub fn handled(&self, id: u16, code: Code) {
        add(&self.method(id).handled[code as usize], 1);
    }

    /// Counts a message that was taken, of this many bytes.
    pub fn received(&self, id: u16, bytes: usize) {
        add(&self.method(id).messages_received, 1);
        add(&self.bytes_received, bytes as u64);
        add(&self.messages_received, 1);
    }

    /// Counts a message that was given, of this many bytes.
    pub fn sent(&self, id: u16, bytes: usize) {
        self.sent_together(id, 1, bytes);
    }

    /// Counts so many messages that were given, of this many bytes in all.
    pub fn sent_together(&self, id: u16, messages: usize, bytes: usize) {
        add(&self.method(id).messages_sent, messages as u64);
        add(&self.bytes_sent, bytes as u64);
    }
}
