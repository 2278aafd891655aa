//! Counts messages, snapshots and round trips for etcd's network metrics. [`Counters`] contains the live
//! counters of one peer, which several threads update; [`Figures`] is a copy of the counters of all peers at
//! one time. The names of the metrics are in `telemetry`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of buckets for round trip times. The first bound is 0.1 ms, each further bound is twice the
/// previous one.
const ROUND_TRIP_BUCKETS: usize = 16;
/// Number of buckets for durations of snapshots. The first bound is 0.1 s, each further bound is twice the
/// previous one.
const SNAPSHOT_BUCKETS: usize = 10;

/// Counters for etcd's network metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Counters by peer id. Members that were removed from the cluster stay in the map, so that their time
    /// series do not disappear.
    pub peers: BTreeMap<u64, PeerFigures>,
    /// Number of received snapshots that were refused because their sender is unknown.
    pub unknown_snapshot_failures: u64,
}

/// Counters of one peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerFigures {
    /// Zone that the peer announces; empty if it announces none.
    pub zone: Arc<str>,
    /// True if the peer is a member now (`etcd_network_known_peers`).
    pub known: bool,
    /// True if a connection to the peer works now (`etcd_network_active_peers`).
    pub active: bool,
    /// Number of times that the peer became inactive (`etcd_network_disconnected_peers_total`).
    pub disconnected: u64,
    /// Bytes of messages and snapshots sent to the peer.
    pub sent_bytes: u64,
    /// Bytes of messages and snapshots received from the peer.
    pub received_bytes: u64,
    /// Number of messages that were dropped or could not be sent.
    pub send_failures: u64,
    /// Number of received messages that were dropped or could not be read.
    pub receive_failures: u64,
    /// Number of messages queued for sending.
    pub queued_messages: u64,
    /// Bytes of messages queued for sending.
    pub queued_bytes: u64,
    /// Round trip times of probes, in seconds.
    pub round_trips: Histogram,
    /// Snapshots sent to the peer.
    pub snapshots_sent: SnapshotFigures,
    /// Snapshots received from the peer.
    pub snapshots_received: SnapshotFigures,
}

/// Counters for snapshots of one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotFigures {
    /// Number of snapshots that were transferred completely and accepted.
    pub successes: u64,
    /// Number of snapshots that were cut off or refused.
    pub failures: u64,
    /// Number of snapshots that are being transferred now.
    pub in_flight: u64,
    /// Bytes of all snapshots, including incomplete ones.
    pub bytes: u64,
    /// Durations of the snapshots that were accepted, in seconds.
    pub seconds: Histogram,
}

/// Histogram of durations with etcd's bucket bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Upper bound in seconds and number of samples for each bucket; a sample counts in the first bucket
    /// whose bound it does not exceed. Samples above all bounds are in `count` only.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of all samples, in seconds.
    pub sum: f64,
    /// Number of all samples.
    pub count: u64,
}

/// Histogram of durations that several threads update.
#[derive(Debug)]
pub(crate) struct Samples<const N: usize> {
    first: f64,
    buckets: [AtomicU64; N],
    nanos: AtomicU64,
    count: AtomicU64,
}

impl<const N: usize> Samples<N> {
    fn new(first: f64) -> Samples<N> {
        Samples {
            first,
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            nanos: AtomicU64::new(0),
            count: AtomicU64::new(0),
        }
    }

    pub(crate) fn add(&self, sample: Duration) {
        let seconds = sample.as_secs_f64();
        let mut bound = self.first;
        for bucket in &self.buckets {
            if seconds <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
                break;
            }
            bound *= 2.0;
        }
        self.nanos.fetch_add(u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn histogram(&self) -> Histogram {
        let mut bound = self.first;
        let mut buckets = Vec::with_capacity(N);
        for bucket in &self.buckets {
            buckets.push((bound, bucket.load(Ordering::Relaxed)));
            bound *= 2.0;
        }
        let nanos = self.nanos.load(Ordering::Relaxed);
        Histogram {
            buckets,
            sum: Duration::from_nanos(nanos).as_secs_f64(),
            count: self.count.load(Ordering::Relaxed),
        }
    }
}

/// Counter that several threads update.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Live counters for snapshots of one direction.
#[derive(Debug)]
pub(crate) struct SnapshotCounters {
    successes: Count,
    failures: Count,
    in_flight: Count,
    pub(crate) bytes: Count,
    seconds: Samples<SNAPSHOT_BUCKETS>,
}

impl SnapshotCounters {
    fn new() -> SnapshotCounters {
        SnapshotCounters {
            successes: Count::default(),
            failures: Count::default(),
            in_flight: Count::default(),
            bytes: Count::default(),
            seconds: Samples::new(0.1),
        }
    }

    pub(crate) fn begin(&self) {
        self.in_flight.add(1);
    }

    /// Counts the end of a snapshot. `took` is its duration if the snapshot was accepted, `None` if it
    /// failed.
    pub(crate) fn end(&self, took: Option<Duration>) {
        self.in_flight.sub(1);
        match took {
            Some(took) => {
                self.successes.add(1);
                self.seconds.add(took);
            }
            None => self.failures.add(1),
        }
    }

    fn figures(&self) -> SnapshotFigures {
        SnapshotFigures {
            successes: self.successes.get(),
            failures: self.failures.get(),
            in_flight: self.in_flight.get(),
            bytes: self.bytes.get(),
            seconds: self.seconds.histogram(),
        }
    }
}

/// Live counters of one peer.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) disconnected: Count,
    pub(crate) sent_bytes: Count,
    pub(crate) received_bytes: Count,
    pub(crate) send_failures: Count,
    pub(crate) receive_failures: Count,
    pub(crate) round_trips: Samples<ROUND_TRIP_BUCKETS>,
    pub(crate) snapshots_sent: SnapshotCounters,
    pub(crate) snapshots_received: SnapshotCounters,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            disconnected: Count::default(),
            sent_bytes: Count::default(),
            received_bytes: Count::default(),
            send_failures: Count::default(),
            receive_failures: Count::default(),
            round_trips: Samples::new(0.0001),
            snapshots_sent: SnapshotCounters::new(),
            snapshots_received: SnapshotCounters::new(),
        }
    }

    /// Returns a copy of the counters. The account of the peer fills in the other fields, such as `known` and
    /// `active`, which have default values here.
    pub(crate) fn figures(&self) -> PeerFigures {
        PeerFigures {
            disconnected: self.disconnected.get(),
            sent_bytes: self.sent_bytes.get(),
            received_bytes: self.received_bytes.get(),
            send_failures: self.send_failures.get(),
            receive_failures: self.receive_failures.get(),
            round_trips: self.round_trips.histogram(),
            snapshots_sent: self.snapshots_sent.figures(),
            snapshots_received: self.snapshots_received.figures(),
            ..PeerFigures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_counted_under_the_first_bound_that_holds_it() {
        let samples = Samples::<3>::new(0.1);
        for millis in [50, 100, 101, 400, 401] {
            samples.add(Duration::from_millis(millis));
        }
        let histogram = samples.histogram();
        assert_eq!(histogram.buckets, [(0.1, 2), (0.2, 1), (0.4, 1)]);
        assert_eq!(histogram.count, 5);
        assert!((histogram.sum - 1.052).abs() < 1e-9);
    }
}
