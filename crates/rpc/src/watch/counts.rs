//! Counts what the streams of a hub queue and send: [`Counts`]. The metrics, which all shards share, are
//! updated once for many streams and not once per stream.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use telemetry::metrics::Metrics;

/// Counts of the responses that were sent in one turn of a stream, or of several streams.
#[derive(Clone, Copy, Default)]
pub(super) struct Sent {
    /// Responses without events.
    pub controls: u64,
    /// Responses with events.
    pub responses: u64,
    /// Events in all `responses` together.
    pub events: u64,
}

impl Sent {
    /// Adds `responses` responses that contain `events` events in total.
    pub fn add(&mut self, responses: u32, events: u32) {
        if events == 0 {
            self.controls += u64::from(responses);
        } else {
            self.responses += u64::from(responses);
            self.events += u64::from(events);
        }
    }

    fn all(&self) -> u64 {
        self.controls + self.responses
    }
}

/// Counts of responses and of turns that the metrics do not contain yet.
#[derive(Clone, Copy, Default)]
struct Unpublished {
    sent: Sent,
    /// Number of turns of streams in which something was sent.
    turns: u32,
    /// Number of responses whose sending was timed, and the time that it took.
    timed: u64,
    took: Duration,
}

/// Counters of a hub's streams.
///
/// The hub updates the metrics with them whenever it looks for a new state, and the streams do when no events
/// wait any more or the client of a stream is too slow. While events wait for a slow client, what other
/// streams send is in the metrics after [`TURNS_MAX`] turns of streams, the next change or an election
/// timeout, whichever comes first.
pub(super) struct Counts {
    metrics: Arc<Metrics>,
    /// Number of events that wait in all streams of the hub.
    waiting: Cell<i64>,
    /// Number of waiting events that the metrics contain.
    waiting_published: Cell<i64>,
    unpublished: Cell<Unpublished>,
}

/// Maximum number of turns of streams that are counted before the metrics are updated.
const TURNS_MAX: u32 = 64;
/// One in so many turns of streams is timed, because reading the clock takes as long as sending a short
/// response.
const TIMED_EVERY: u32 = 8;

impl Counts {
    pub fn new(metrics: Arc<Metrics>) -> Counts {
        Counts {
            metrics,
            waiting: Cell::new(0),
            waiting_published: Cell::new(0),
            unpublished: Cell::default(),
        }
    }

    /// Adds to the number of events that wait in the streams.
    pub fn add_waiting(&self, events: i64) {
        self.waiting.set(self.waiting.get() + events);
    }

    /// Returns the time, if the turn of a stream that begins now is to be timed. Turns are timed until one
    /// has sent something, and then one in [`TIMED_EVERY`].
    pub fn begin_turn(&self) -> Option<Instant> {
        let Unpublished { turns, timed, .. } = self.unpublished.get();
        (timed == 0 || turns.is_multiple_of(TIMED_EVERY)).then(Instant::now)
    }

    /// Counts the responses that a stream has sent in the turn that began with [`Counts::begin_turn`];
    /// `sent_all` is false if the stream has to wait for its client. Updates the metrics in that case, when
    /// no events wait any more, or when many turns were counted.
    pub fn end_turn(&self, begun: Option<Instant>, sent: &Sent, sent_all: bool) {
        let mut unpublished = self.unpublished.get();
        unpublished.turns += 1;
        unpublished.sent.controls += sent.controls;
        unpublished.sent.responses += sent.responses;
        unpublished.sent.events += sent.events;
        if let Some(begun) = begun
            && sent.all() > 0
        {
            unpublished.timed += sent.all();
            unpublished.took += begun.elapsed();
        }
        self.unpublished.set(unpublished);
        if !sent_all || self.waiting.get() == 0 || unpublished.turns >= TURNS_MAX {
            self.publish();
        }
    }

    /// Updates the metrics. Each sent response is counted with an equal share of the time that the timed ones
    /// took.
    pub fn publish(&self) {
        let waiting = self.waiting.get();
        let change = waiting - self.waiting_published.replace(waiting);
        if change != 0 {
            self.metrics.mvcc.pending_events.add(change);
        }
        let Unpublished { sent, timed, took, .. } = self.unpublished.take();
        let each = took.as_secs_f64() / timed.max(1) as f64;
        let Sent { controls, responses, events } = sent;
        if controls > 0 {
            self.metrics.server.watch_send_control.observe_each(each, controls);
        }
        if responses > 0 {
            self.metrics.mvcc.events.add(events);
            self.metrics.server.watch_send_stream.observe_each(each, responses);
            let each_event = each * responses as f64 / events as f64;
            self.metrics.server.watch_send_event.observe_each(each_event, responses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::metrics::MetricsDetail;

    /// Counts a turn of a stream that sends a response with so many events; none if its client is slow.
    fn send(counts: &Counts, events: Option<u32>) {
        let begun = counts.begin_turn();
        let mut sent = Sent::default();
        if let Some(events) = events {
            counts.add_waiting(-i64::from(events));
            sent.add(1, events);
        }
        counts.end_turn(begun, &sent, events.is_some());
    }

    #[test]
    fn the_metrics_are_updated_when_all_is_sent_or_many_streams_were_served() {
        let metrics = Arc::new(Metrics::new(&[], MetricsDetail::Basic));
        let counts = Counts::new(Arc::clone(&metrics));
        let published = || {
            let stream = &metrics.server.watch_send_stream;
            (metrics.mvcc.pending_events.value(), metrics.mvcc.events.value(), stream.count())
        };
        counts.add_waiting(6);
        assert_eq!(published(), (0, 0, 0));
        counts.publish();
        assert_eq!(published(), (6, 0, 0));
        send(&counts, Some(2));
        assert_eq!(published(), (6, 0, 0));
        send(&counts, Some(4));
        assert_eq!(published(), (0, 6, 2), "all is sent");
        counts.add_waiting(2 + i64::from(TURNS_MAX));
        send(&counts, Some(1));
        assert_eq!(published(), (0, 6, 2));
        send(&counts, None);
        assert_eq!(published(), (1 + i64::from(TURNS_MAX), 7, 3), "a client is slow");
        for _ in 0..TURNS_MAX {
            assert_eq!(published(), (1 + i64::from(TURNS_MAX), 7, 3));
            send(&counts, Some(1));
        }
        assert_eq!(published(), (1, 7 + u64::from(TURNS_MAX), 3 + u64::from(TURNS_MAX)));
    }

    #[test]
    fn the_time_of_some_turns_is_counted_for_all() {
        let metrics = Arc::new(Metrics::new(&[], MetricsDetail::Basic));
        let counts = Counts::new(Arc::clone(&metrics));
        counts.add_waiting(2 * i64::from(TIMED_EVERY));
        let timed = (0..2 * TIMED_EVERY).filter(|_| {
            let is_timed = counts.begin_turn().is_some();
            send(&counts, Some(1));
            is_timed
        });
        assert_eq!(timed.count(), 2);
        let stream = &metrics.server.watch_send_stream;
        assert_eq!(stream.count(), 2 * u64::from(TIMED_EVERY));
        assert!(stream.sum() > 0.0);
    }
}
