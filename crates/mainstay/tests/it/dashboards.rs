//! Every series that etcd's dashboards and alert rules use is in a scrape of a cluster's member, with the
//! labels by which the expressions select and group. `interop/metrics_same.py` evaluates the expressions
//! themselves.

use std::collections::BTreeMap;

use testkit::{eventually, http1};

use crate::cluster::{Cluster, PATIENCE};
use crate::run;

/// Labels with the values that a selector names; an empty value stands for any value.
type Labels = &'static [(&'static str, &'static str)];

const UNARY: Labels = &[("grpc_type", "unary")];
const WATCHES: Labels = &[("grpc_service", "etcdserverpb.Watch"), ("grpc_type", "bidi_stream")];
const LEASES: Labels = &[("grpc_service", "etcdserverpb.Lease"), ("grpc_type", "bidi_stream")];
const BUCKETS: Labels = &[("le", "")];
const TO: Labels = &[("To", "")];
const FROM: Labels = &[("From", "")];

/// Series, grouped by source: the alert rules and the dashboard of etcd's mixin, the dashboard "Etcd by
/// Prometheus" (3070), and additional series of kubeadm's and other dashboards.
const WANTED: [(&str, Labels); 58] = [
    // Series of alert rules.
    ("etcd_network_peer_sent_failures_total", TO),
    ("etcd_server_has_leader", &[]),
    ("etcd_server_leader_changes_seen_total", &[]),
    ("grpc_server_handled_total", &[("grpc_code", "Unknown"), ("grpc_method", ""), ("grpc_type", "")]),
    ("grpc_server_handled_total", &[("grpc_code", "FailedPrecondition"), ("grpc_service", "")]),
    ("grpc_server_handled_total", &[("grpc_code", "ResourceExhausted")]),
    ("grpc_server_handled_total", &[("grpc_code", "Internal")]),
    ("grpc_server_handled_total", &[("grpc_code", "Unavailable")]),
    ("grpc_server_handled_total", &[("grpc_code", "DataLoss")]),
    ("grpc_server_handled_total", &[("grpc_code", "DeadlineExceeded")]),
    (
        "grpc_server_handling_seconds_bucket",
        &[("grpc_type", "unary"), ("grpc_method", "Range"), ("grpc_service", "etcdserverpb.KV"), ("le", "")],
    ),
    ("etcd_network_peer_round_trip_time_seconds_bucket", &[("To", ""), ("le", "")]),
    ("etcd_server_proposals_failed_total", &[]),
    ("etcd_disk_wal_fsync_duration_seconds_bucket", BUCKETS),
    ("etcd_disk_backend_commit_duration_seconds_bucket", BUCKETS),
    ("etcd_mvcc_db_total_size_in_bytes", &[]),
    ("etcd_mvcc_db_total_size_in_use_in_bytes", &[]),
    ("etcd_server_quota_backend_bytes", &[]),
    // Series of dashboards.
    ("grpc_server_started_total", UNARY),
    ("grpc_server_handled_total", UNARY),
    ("grpc_server_started_total", WATCHES),
    ("grpc_server_handled_total", WATCHES),
    ("grpc_server_started_total", LEASES),
    ("grpc_server_handled_total", LEASES),
    ("grpc_server_msg_received_total", UNARY),
    ("grpc_server_msg_sent_total", UNARY),
    ("process_resident_memory_bytes", &[]),
    ("process_cpu_seconds_total", &[]),
    ("process_start_time_seconds", &[]),
    ("process_open_fds", &[]),
    ("process_max_fds", &[]),
    ("process_virtual_memory_bytes", &[]),
    ("os_fd_used", &[]),
    ("os_fd_limit", &[]),
    ("etcd_network_client_grpc_received_bytes_total", &[]),
    ("etcd_network_client_grpc_sent_bytes_total", &[]),
    ("etcd_network_peer_received_bytes_total", FROM),
    ("etcd_network_peer_sent_bytes_total", TO),
    ("etcd_server_proposals_pending", &[]),
    ("etcd_server_proposals_committed_total", &[]),
    ("etcd_server_proposals_applied_total", &[]),
    ("etcd_server_is_leader", &[]),
    ("etcd_server_id", &[("server_id", "")]),
    ("etcd_server_version", &[("server_version", "")]),
    ("etcd_cluster_version", &[("cluster_version", "")]),
    ("etcd_server_slow_apply_total", &[]),
    ("etcd_server_slow_read_indexes_total", &[]),
    ("etcd_server_heartbeat_send_failures_total", &[]),
    ("etcd_server_health_failures", &[]),
    ("etcd_disk_wal_fsync_duration_seconds_sum", &[]),
    ("etcd_disk_wal_fsync_duration_seconds_count", &[]),
    ("etcd_debugging_mvcc_keys_total", &[]),
    ("etcd_debugging_mvcc_watcher_total", &[]),
    ("etcd_debugging_mvcc_slow_watcher_total", &[]),
    ("etcd_debugging_mvcc_pending_events_total", &[]),
    ("etcd_mvcc_put_total", &[]),
    ("etcd_debugging_auth_revision", &[]),
    ("etcd_network_active_peers", &[("Local", ""), ("Remote", "")]),
];

struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
}

/// Parses a scrape. The examined label values contain no comma and no quote.
fn samples(text: &str) -> Vec<Sample> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (series, _) = line.rsplit_once(' ').expect("a series and its value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let pairs = labels.trim_end_matches('}').split("\",").filter_map(|pair| pair.split_once("=\""));
        let labels = pairs.map(|(name, value)| (name.to_owned(), value.trim_end_matches('"').to_owned()));
        Sample { name: name.to_owned(), labels: labels.collect() }
    };
    lines.map(sample).collect()
}

fn has(samples: &[Sample], name: &str, labels: Labels) -> bool {
    samples.iter().any(|sample| {
        let fits = |(label, value): &(&str, &str)| {
            sample.labels.get(*label).is_some_and(|found| value.is_empty() || found == value)
        };
        sample.name == name && labels.iter().all(fits)
    })
}

#[test]
fn dashboards_and_alert_rules_find_their_series() {
    run(async {
        let cluster = Cluster::start("boards", 3, &["--metrics=extensive"]);
        let client = cluster.client(0).await;
        client.put("k", "v").await.expect("puts are served");
        client.get("k").await.expect("reads are served");
        // The series of a peer exist once the peer was heard, and the version exists once it is agreed on.
        eventually("all series are there", PATIENCE, async || {
            let answer = http1::get(cluster.member(0).client_address(), "/metrics");
            let found = samples(answer.text());
            let missing: Vec<_> = WANTED.iter().filter(|(name, labels)| !has(&found, name, labels)).collect();
            if !missing.is_empty() {
                println!("missing: {missing:?}");
            }
            missing.is_empty().then_some(())
        })
        .await;
    });
}
