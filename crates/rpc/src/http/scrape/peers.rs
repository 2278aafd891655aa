//! Copies the counts of the peer crate about other members into the metrics.

use std::collections::BTreeMap;

use peer::{Figures, Histogram, SnapshotFigures};
use telemetry::metrics::{Distribution, NetworkMetrics};

/// Value of the label `From` for a snapshot that was refused before its sender was known.
const UNKNOWN_SNAPSHOT_SENDER: &str = "UNKNOWN_SNAPSHOT_SENDER";

/// Copies the counts about other members. As in etcd, the series about snapshots exist only for members to
/// which a snapshot was sent or from which a snapshot was received.
///
/// Observers have no series of their own, because new ones may come again and again.
pub(super) fn copy_peers(
    to: &NetworkMetrics,
    (local, zone): (u64, &str),
    is_observer: impl Fn(u64) -> bool,
    figures: &Figures,
) {
    copy_zones(to, zone, figures);
    let local = format!("{local:x}");
    for (id, peer) in figures.peers.iter().filter(|(id, _)| !is_observer(**id)) {
        let id = format!("{id:x}");
        let (one, both) = (&[id.as_str()][..], &[local.as_str(), id.as_str()][..]);
        copy_histogram(&to.peer_round_trip_time.with(one), &peer.round_trips);
        to.peer_sent_bytes.with(one).raise_to(peer.sent_bytes);
        to.peer_received_bytes.with(one).raise_to(peer.received_bytes);
        to.peer_sent_failures.with(one).raise_to(peer.send_failures);
        to.peer_received_failures.with(one).raise_to(peer.receive_failures);
        to.active_peers.with(both).set_bool(peer.active);
        to.disconnected_peers.with(both).raise_to(peer.disconnected);
        let (sent, received) = (&peer.snapshots_sent, &peer.snapshots_received);
        if has_any(sent) {
            to.snapshot_send_success.with(one).raise_to(sent.successes);
            to.snapshot_send_failures.with(one).raise_to(sent.failures);
            to.snapshot_send_inflights.with(one).set_u64(sent.in_flight);
            copy_histogram(&to.snapshot_send_duration.with(one), &sent.seconds);
        }
        if has_any(received) {
            to.snapshot_receive_success.with(one).raise_to(received.successes);
            to.snapshot_receive_failures.with(one).raise_to(received.failures);
            to.snapshot_receive_inflights.with(one).set_u64(received.in_flight);
            copy_histogram(&to.snapshot_receive_duration.with(one), &received.seconds);
        }
    }
    if figures.unknown_snapshot_failures > 0 {
        let failures = to.snapshot_receive_failures.with(&[UNKNOWN_SNAPSHOT_SENDER]);
        failures.raise_to(figures.unknown_snapshot_failures);
    }
}

/// Adds up what was sent to other zones. Nodes that announce no zone are in none.
fn copy_zones(to: &NetworkMetrics, own: &str, figures: &Figures) {
    let mut sent: BTreeMap<&str, u64> = BTreeMap::new();
    for peer in figures.peers.values().filter(|peer| !peer.zone.is_empty() && *peer.zone != *own) {
        *sent.entry(&peer.zone).or_default() += peer.sent_bytes;
    }
    if !own.is_empty() {
        for (zone, bytes) in sent {
            to.cross_zone_bytes.with(&[own, zone, "nodes"]).raise_to(bytes);
        }
    }
}

fn has_any(snapshots: &SnapshotFigures) -> bool {
    snapshots.successes + snapshots.failures + snapshots.in_flight > 0
}

/// Copies the counts without converting them, because both histograms have the same bounds: tests of `peer`
/// and of `telemetry` compare the bounds with etcd's.
fn copy_histogram(to: &Distribution, from: &Histogram) {
    if from.buckets.is_empty() {
        return;
    }
    let mut counts: Vec<u64> = from.buckets.iter().map(|(_, count)| *count).collect();
    // The counts of the buckets are read one after the other, without a lock, so their sum may be lower than
    // the total by some samples. These go into the last bucket.
    counts.push(from.count.saturating_sub(counts.iter().sum()));
    to.raise_to(&counts, from.sum);
}

#[cfg(test)]
mod tests {
    use peer::PeerFigures;
    use telemetry::metrics::{Metrics, MetricsDetail};

    use super::*;

    fn value(text: &str, series: &str) -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} is missing")).parse().unwrap()
    }

    /// Counts of the peer crate about traffic with one other member.
    fn figures(id: u64) -> Figures {
        let histogram = |first: f64, bounds: i32| {
            let bucket = |at: i32| (first * 2f64.powi(at), u64::from(at == 1));
            Histogram { buckets: (0..bounds).map(bucket).collect(), sum: 2.5, count: 3 }
        };
        let snapshots = |successes| SnapshotFigures {
            successes,
            failures: 4,
            in_flight: 1,
            bytes: 1_000,
            seconds: histogram(0.1, 10),
        };
        let counted = PeerFigures {
            known: true,
            active: true,
            disconnected: 2,
            sent_bytes: 100,
            received_bytes: 200,
            send_failures: 5,
            receive_failures: 6,
            round_trips: histogram(0.0001, 16),
            snapshots_sent: snapshots(7),
            snapshots_received: snapshots(8),
            ..PeerFigures::default()
        };
        Figures { peers: BTreeMap::from([(id, counted)]), unknown_snapshot_failures: 9 }
    }

    #[test]
    fn what_was_counted_for_other_members_is_shown() {
        let metrics = Metrics::new(&[], MetricsDetail::Basic);
        metrics.network.set_members(0xab, [0xab, 0xcd, 0xef].into_iter());
        metrics.network.set_members(0xab, [0xab, 0xcd].into_iter());
        copy_peers(&metrics.network, (0xab, "b"), |_| false, &figures(0xcd));
        // Copy again, with another member that was never contacted, and without one that is gone.
        let mut later = figures(0xcd);
        later.peers.insert(0xef, PeerFigures::default());
        if let Some(peer) = later.peers.get_mut(&0xcd) {
            peer.active = false;
            peer.sent_bytes = 150;
            peer.snapshots_sent.in_flight = 0;
            peer.zone = "c".into();
        }
        copy_peers(&metrics.network, (0xab, "b"), |_| false, &later);
        let mut text = String::new();
        metrics.render(&mut text);
        for (series, expected) in [
            ("known_peers{Local=\"ab\",Remote=\"ab\"}", 1.0),
            ("known_peers{Local=\"ab\",Remote=\"cd\"}", 1.0),
            ("known_peers{Local=\"ab\",Remote=\"ef\"}", 0.0),
            ("active_peers{Local=\"ab\",Remote=\"cd\"}", 0.0),
            ("disconnected_peers_total{Local=\"ab\",Remote=\"cd\"}", 2.0),
            ("peer_sent_bytes_total{To=\"cd\"}", 150.0),
            ("peer_sent_bytes_total{To=\"ef\"}", 0.0),
            ("peer_received_bytes_total{From=\"cd\"}", 200.0),
            ("peer_sent_failures_total{To=\"cd\"}", 5.0),
            ("peer_received_failures_total{From=\"cd\"}", 6.0),
            ("peer_round_trip_time_seconds_bucket{To=\"cd\",le=\"0.0001\"}", 0.0),
            ("peer_round_trip_time_seconds_bucket{To=\"cd\",le=\"0.0002\"}", 1.0),
            ("peer_round_trip_time_seconds_bucket{To=\"cd\",le=\"+Inf\"}", 3.0),
            ("peer_round_trip_time_seconds_sum{To=\"cd\"}", 2.5),
            ("snapshot_send_success{To=\"cd\"}", 7.0),
            ("snapshot_send_failures{To=\"cd\"}", 4.0),
            ("snapshot_send_inflights_total{To=\"cd\"}", 0.0),
            ("snapshot_send_total_duration_seconds_count{To=\"cd\"}", 3.0),
            ("snapshot_receive_success{From=\"cd\"}", 8.0),
            ("snapshot_receive_failures{From=\"cd\"}", 4.0),
            ("snapshot_receive_failures{From=\"UNKNOWN_SNAPSHOT_SENDER\"}", 9.0),
            ("snapshot_receive_inflights_total{From=\"cd\"}", 1.0),
            ("snapshot_receive_total_duration_seconds_sum{From=\"cd\"}", 2.5),
        ] {
            assert_eq!(value(&text, &format!("etcd_network_{series}")), expected, "{series}");
        }
        let other_zones = value(&text, "mainstay_cross_zone_bytes_total{from=\"b\",to=\"c\",with=\"nodes\"}");
        assert!((other_zones - 150.0).abs() < 1e-9, "{other_zones}");
        assert!(!text.contains("snapshot_send_success{To=\"ef\"}"), "no snapshot was sent to it");
    }
}
