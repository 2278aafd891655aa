//! Generates the load for the commands below `check` with many clients that write keys, and records the
//! duration or the error of each write.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stdx::Random;

use api::Rpc;
use api::etcdserverpb as pb;
use cli::Failure;
use client::{Client, shown};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::call::Call;
use crate::printer::put;

/// Timeout of each request that compacts or defragments after the measurement.
const CLEANUP_LIMIT: Duration = Duration::from_secs(30);

/// Results of all writes of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Duration of each successful write, in seconds.
    pub(crate) latencies: Vec<f64>,
    /// Number of occurrences of each error.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Seconds from the start of the clients to the end of the last write.
    pub(crate) total: f64,
}

impl Outcome {
    /// Returns the successful writes per second.
    pub(crate) fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.total
    }

    /// Returns the longest duration, in seconds.
    pub(crate) fn slowest(&self) -> f64 {
        self.latencies.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the standard deviation of the durations, in seconds.
    pub(crate) fn deviation(&self) -> f64 {
        let count = self.latencies.len() as f64;
        let mean = self.latencies.iter().sum::<f64>() / count;
        let square = |latency: &f64| (latency - mean) * (latency - mean);
        (self.latencies.iter().map(square).sum::<f64>() / count).sqrt()
    }

    /// Returns the lines of the report that list the errors; an empty text if there were none.
    pub(crate) fn error_lines(&self) -> String {
        let mut lines = Vec::new();
        if !self.errors.is_empty() {
            put!(lines, "FAIL: too many errors\n");
        }
        for (error, count) in &self.errors {
            put!(lines, "FAIL: ERROR({error}) -> {count}\n");
        }
        String::from_utf8_lossy(&lines).into_owned()
    }
}

/// Clients that take write requests from one shared, bounded queue. Each client has its own connection.
pub(crate) struct Clients {
    queue: Option<mpsc::Sender<pb::PutRequest>>,
    running: JoinSet<()>,
    seen: Arc<Mutex<Outcome>>,
    started: Instant,
}

impl Clients {
    /// Starts a client for each connection.
    pub(crate) fn start(connections: Vec<Client>) -> Clients {
        let (queue, requests) = mpsc::channel(connections.len().max(1));
        let requests = Arc::new(tokio::sync::Mutex::new(requests));
        let seen = Arc::new(Mutex::new(Outcome::default()));
        let mut running = JoinSet::new();
        for connection in connections {
            let (requests, seen) = (requests.clone(), seen.clone());
            running.spawn(async move {
                loop {
                    let request = requests.lock().await.recv().await;
                    let Some(request) = request else { return };
                    let start = Instant::now();
                    let outcome = connection.call::<_, pb::PutResponse>(Rpc::KvPut, &request).await;
                    let took = start.elapsed().as_secs_f64();
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    match outcome {
                        Ok(_) => seen.latencies.push(took),
                        Err(status) => *seen.errors.entry(shown(&status)).or_default() += 1,
                    }
                }
            });
        }
        Clients { queue: Some(queue), running, seen, started: Instant::now() }
    }

    /// Queues a write. Waits while the queue is full because all clients are busy.
    pub(crate) async fn offer(&self, request: pb::PutRequest) {
        if let Some(queue) = &self.queue {
            // Ignore an error: the queue is closed only if all clients have panicked, and in that case the
            // outcome lacks the write.
            let _ = queue.send(request).await;
        }
    }

    /// Returns true if a write can be queued without waiting.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.capacity() > 0)
    }

    /// Returns the number of writes that have succeeded so far.
    pub(crate) fn done(&self) -> u64 {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).latencies.len() as u64
    }

    /// Waits until all queued writes are finished, and returns their results.
    pub(crate) async fn finish(mut self) -> Outcome {
        self.queue = None;
        while self.running.join_next().await.is_some() {}
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        seen.total = self.started.elapsed().as_secs_f64();
        seen
    }
}

/// Opens this number of separate connections to the cluster.
pub(crate) async fn connections(call: &Call, count: usize) -> Result<Vec<Client>, Failure> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        connections.push(call.connect().await?);
    }
    Ok(connections)
}

/// Returns an error if keys with this prefix exist: the command deletes all keys with the prefix at the end,
/// and must not delete keys of other clients.
pub(crate) async fn refuse_if_used(connection: &Client, prefix: &str, quoted: &str) -> Result<(), Failure> {
    let request = pb::RangeRequest {
        key: prefix.to_owned().into(),
        range_end: crate::ranges::prefix_end(prefix.as_bytes()).into(),
        limit: 1,
        ..Default::default()
    };
    let answer: pb::RangeResponse = connection.call(Rpc::KvRange, &request).await?;
    if answer.kvs.is_empty() {
        return Ok(());
    }
    let shown = cli::go::quote(prefix);
    Err(Failure::new(
        Failure::INVALID_INPUT,
        format!("prefix {shown} has keys. Delete with {quoted}etcdctl del --prefix {prefix}{quoted} first"),
    ))
}

/// Deletes all keys with this prefix. Returns the revision of the deletion.
pub(crate) async fn delete_all(connection: &Client, prefix: &str) -> Result<i64, api::Status> {
    let request = pb::DeleteRangeRequest {
        key: prefix.to_owned().into(),
        range_end: crate::ranges::prefix_end(prefix.as_bytes()).into(),
        prev_kv: false,
    };
    let connection = connection.within(CLEANUP_LIMIT);
    let answer: pb::DeleteRangeResponse = connection.call(Rpc::KvDeleteRange, &request).await?;
    Ok(answer.header.unwrap_or_default().revision)
}

/// Compacts the history up to `revision`, and waits until the compacted data is removed.
pub(crate) async fn compact(call: &Call, connection: &Client, revision: i64) -> Result<(), Failure> {
    call.line(format!("Compacting with revision {revision}"))?;
    let request = pb::CompactionRequest { revision, physical: true };
    let connection = connection.within(CLEANUP_LIMIT);
    let _: pb::CompactionResponse = connection.call(Rpc::KvCompact, &request).await?;
    call.line(format!("Compacted with revision {revision}"))
}

/// Defragments every endpoint.
pub(crate) async fn defragment(call: &Call, connection: &Client) -> Result<(), Failure> {
    for endpoint in connection.endpoints() {
        let shown = cli::go::quote(&endpoint);
        call.line(format!("Defragmenting {shown}"))?;
        let one = connection.at(&endpoint).within(CLEANUP_LIMIT);
        let request = pb::DefragmentRequest {};
        let _: pb::DefragmentResponse = one.call(Rpc::MaintenanceDefragment, &request).await?;
        call.line(format!("Defragmented {shown}"))?;
    }
    Ok(())
}

/// Generates keys of the same length: a prefix, followed by a random number as a varint and by zero bytes.
/// Equal to the keys of etcdctl.
pub(crate) struct RandomKeys {
    prefix: Vec<u8>,
    length: usize,
    random: Random,
}

impl RandomKeys {
    pub(crate) fn new(prefix: &str, length: usize) -> RandomKeys {
        let random = Random::new(RandomState::new().build_hasher().finish());
        RandomKeys { prefix: prefix.as_bytes().to_vec(), length, random }
    }

    pub(crate) fn next(&mut self) -> Vec<u8> {
        let mut key = self.prefix.clone();
        // Make the number even, as Go's PutVarint does, which doubles positive numbers (zigzag encoding).
        let mut number = (self.random.number() >> 1) << 1;
        while number >= 0x80 {
            key.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        key.push(number.to_le_bytes()[0]);
        key.resize(self.prefix.len() + self.length, 0);
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_the_latencies() {
        let outcome = Outcome { latencies: vec![0.1, 0.2, 0.3], total: 1.5, ..Outcome::default() };
        assert!((outcome.rate() - 2.0).abs() < 1e-9);
        assert!((outcome.slowest() - 0.3).abs() < 1e-9);
        assert!((outcome.deviation() - 0.081_649_658).abs() < 1e-6);
        assert_eq!(outcome.error_lines(), "");
    }

    #[test]
    fn errors_are_counted() {
        let errors = BTreeMap::from([("etcdserver: no leader".to_owned(), 2)]);
        let lines = Outcome { errors, ..Outcome::default() }.error_lines();
        assert_eq!(lines, "FAIL: too many errors\nFAIL: ERROR(etcdserver: no leader) -> 2\n");
    }

    #[test]
    fn keys_have_their_length_and_differ() {
        let mut keys = RandomKeys::new("/p/", 16);
        let (a, b) = (keys.next(), keys.next());
        assert_eq!((a.len(), b.len()), (19, 19));
        assert_ne!(a, b);
        assert!(a.starts_with(b"/p/"));
    }
}
