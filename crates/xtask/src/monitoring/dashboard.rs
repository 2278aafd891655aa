//! Generates the Grafana dashboard as JSON: rows of panels, from the whole cluster down to the resources of a
//! single member.

use serde_json::{Value, json};

/// Placeholder in the expressions below, which is replaced by [`SELECTORS`].
const CHOSEN: &str = "#";
const SELECTORS: &str = "job=\"$job\",instance=~\"$instance\"";

/// Number of columns of Grafana's grid.
const COLUMNS: u64 = 24;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Single value.
    Figure,
    /// Time series.
    Chart,
}

/// A panel as it is defined in [`ROWS`]. `unit` is Grafana's id of the unit, `text` is the description, and
/// `series` has the expressions, each with its legend.
struct Written {
    kind: Kind,
    title: &'static str,
    unit: &'static str,
    text: &'static str,
    series: &'static [(&'static str, &'static str)],
}

/// A panel in whose expressions the placeholder is replaced by the selectors.
pub struct Panel {
    kind: Kind,
    pub title: &'static str,
    unit: &'static str,
    text: &'static str,
    pub series: Vec<(String, &'static str)>,
}

const fn figure(
    title: &'static str,
    unit: &'static str,
    text: &'static str,
    series: &'static [(&'static str, &'static str)],
) -> Written {
    Written { kind: Kind::Figure, title, unit, text, series }
}

const fn chart(
    title: &'static str,
    unit: &'static str,
    text: &'static str,
    series: &'static [(&'static str, &'static str)],
) -> Written {
    Written { kind: Kind::Chart, title, unit, text, series }
}

/// The rows of the dashboard, each with its title and its panels.
const ROWS: &[(&str, &[Written])] = &[
    (
        "The cluster",
        &[
            figure("Members up", "none", "Members that answer Prometheus.", &[("sum(up{#})", "")]),
            figure(
                "With a leader",
                "none",
                "Members that know a leader.",
                &[("sum(etcd_server_has_leader{#})", "")],
            ),
            figure(
                "Alarms",
                "none",
                "Raised alarms. NOSPACE and CORRUPT stop writes.",
                &[("sum(max by (server_id, alarm_type) (etcd_debugging_server_alarms{#})) or vector(0)", "")],
            ),
            figure(
                "Quota used",
                "percentunit",
                "Of the member with the highest use.",
                &[(
                    "max(etcd_mvcc_db_total_size_in_bytes{#} / (etcd_server_quota_backend_bytes{#} > 0))",
                    "",
                )],
            ),
            figure("Keys", "short", "Live keys.", &[("max(etcd_debugging_mvcc_keys_total{#})", "")]),
            figure(
                "Revision",
                "none",
                "Newest revision.",
                &[("max(etcd_debugging_mvcc_current_revision{#})", "")],
            ),
            figure(
                "Calls",
                "reqps",
                "Unary calls answered, at all members.",
                &[("sum(rate(grpc_server_handled_total{#,grpc_type=\"unary\"}[$__rate_interval]))", "")],
            ),
            figure(
                "Leader changes",
                "none",
                "During the time shown, at the member that saw most of them.",
                &[("max(increase(etcd_server_leader_changes_seen_total{#}[$__range]))", "")],
            ),
        ],
    ),
    (
        "Requests",
        &[
            chart(
                "Calls by method",
                "reqps",
                "Unary calls answered by the selected members.",
                &[(
                    "sum by (grpc_method) (rate(grpc_server_handled_total{#,grpc_type=\"unary\"}[$__rate_interval])) > 0",
                    "{{grpc_method}}",
                )],
            ),
            chart(
                "Calls by member",
                "reqps",
                "Shows how clients are spread across the members.",
                &[(
                    "sum by (instance) (rate(grpc_server_handled_total{#,grpc_type=\"unary\"}[$__rate_interval]))",
                    "{{instance}}",
                )],
            ),
            chart(
                "Calls by code",
                "reqps",
                "Unary calls that did not end with OK.",
                &[(
                    "sum by (grpc_code) (rate(grpc_server_handled_total{#,grpc_type=\"unary\",grpc_code!=\"OK\"}[$__rate_interval]))",
                    "{{grpc_code}}",
                )],
            ),
            chart(
                "Operations of the store",
                "ops",
                "Operations made by calls and transactions.",
                &[
                    ("sum(rate(etcd_mvcc_range_total{#}[$__rate_interval]))", "ranges"),
                    ("sum(rate(etcd_mvcc_put_total{#}[$__rate_interval]))", "puts, applied by each member"),
                    (
                        "sum(rate(etcd_mvcc_delete_total{#}[$__rate_interval]))",
                        "deletes, applied by each member",
                    ),
                    (
                        "sum(rate(etcd_mvcc_txn_total{#}[$__rate_interval]))",
                        "transactions, applied by each member",
                    ),
                ],
            ),
            chart(
                "Stages of requests, median",
                "s",
                "Time of each stage, in the order of docs/operations.md. Look first at a stage that grows.",
                &[(
                    "histogram_quantile(0.5, sum by (stage, le) (rate(mainstay_request_stage_seconds_bucket{#}[$__rate_interval])))",
                    "{{stage}}",
                )],
            ),
            chart(
                "Stages of requests, 99th percentile",
                "s",
                "The same for the slowest request in a hundred.",
                &[(
                    "histogram_quantile(0.99, sum by (stage, le) (rate(mainstay_request_stage_seconds_bucket{#}[$__rate_interval])))",
                    "{{stage}}",
                )],
            ),
            chart(
                "Slow requests",
                "cps",
                "Applied, or confirmed by the leader, later than the warning thresholds.",
                &[
                    ("rate(etcd_server_slow_apply_total{#}[$__rate_interval])", "{{instance}} applies"),
                    ("rate(etcd_server_slow_read_indexes_total{#}[$__rate_interval])", "{{instance}} reads"),
                    (
                        "rate(etcd_server_read_indexes_failed_total{#}[$__rate_interval])",
                        "{{instance}} reads that failed",
                    ),
                ],
            ),
            chart(
                "Calls whose stages are measured",
                "none",
                "One call out of this number.",
                &[("mainstay_request_stage_sampling{#}", "{{instance}}")],
            ),
            chart(
                "Sources of requests",
                "reqps",
                "The key prefixes, users and clients with most requests, from samples; empty without --metrics-heavy-hitters.",
                &[(
                    "topk(10, sum by (subject, name) (mainstay_heavy_requests_per_second{#}))",
                    "{{subject}} {{name}}",
                )],
            ),
            chart(
                "Sources of traffic",
                "Bps",
                "The same by bytes of requests and answers.",
                &[(
                    "topk(10, sum by (subject, name) (mainstay_heavy_bytes_per_second{#}))",
                    "{{subject}} {{name}}",
                )],
            ),
            chart(
                "Sources of load",
                "none",
                "The same by the average number of requests in progress.",
                &[(
                    "topk(10, sum by (subject, name) (mainstay_heavy_milliseconds_per_second{#})) / 1000",
                    "{{subject}} {{name}}",
                )],
            ),
            chart(
                "Traffic with clients",
                "Bps",
                "Bytes of gRPC.",
                &[
                    (
                        "rate(etcd_network_client_grpc_received_bytes_total{#}[$__rate_interval])",
                        "{{instance}} received",
                    ),
                    (
                        "rate(etcd_network_client_grpc_sent_bytes_total{#}[$__rate_interval])",
                        "{{instance}} sent",
                    ),
                ],
            ),
        ],
    ),
    (
        "Raft and other members",
        &[
            chart("Leader", "none", "1 at the leader.", &[("etcd_server_is_leader{#}", "{{instance}}")]),
            chart(
                "Proposals",
                "ops",
                "Log entries applied.",
                &[("rate(etcd_server_proposals_applied_total{#}[$__rate_interval])", "{{instance}}")],
            ),
            chart(
                "Entries behind",
                "short",
                "Entries behind the member that has committed most.",
                &[(
                    "scalar(max(etcd_server_proposals_committed_total{#})) - etcd_server_proposals_applied_total{#}",
                    "{{instance}}",
                )],
            ),
            chart(
                "Pending and failed proposals",
                "short",
                "Pending now, and failures per second.",
                &[
                    ("etcd_server_proposals_pending{#}", "{{instance}} waiting"),
                    (
                        "rate(etcd_server_proposals_failed_total{#}[$__rate_interval])",
                        "{{instance}} failed a second",
                    ),
                ],
            ),
            chart(
                "Round trips between members, 99th percentile",
                "s",
                "Each write and linearizable read needs a round trip to a majority.",
                &[(
                    "histogram_quantile(0.99, sum by (instance, To, le) (rate(etcd_network_peer_round_trip_time_seconds_bucket{#}[$__rate_interval])))",
                    "{{instance}} to {{To}}",
                )],
            ),
            chart(
                "Traffic with members",
                "Bps",
                "Bytes of raft.",
                &[
                    (
                        "sum by (instance) (rate(etcd_network_peer_received_bytes_total{#}[$__rate_interval]))",
                        "{{instance}} received",
                    ),
                    (
                        "sum by (instance) (rate(etcd_network_peer_sent_bytes_total{#}[$__rate_interval]))",
                        "{{instance}} sent",
                    ),
                ],
            ),
            chart(
                "Work without a wake-up of the core",
                "cps",
                "Batches of messages of members, and syncs, that the receiving thread or the log's thread processed while the core's thread slept.",
                &[
                    ("rate(mainstay_core_lent_to_peers_total{#}[$__rate_interval])", "{{instance}} messages"),
                    ("rate(mainstay_core_lent_to_log_total{#}[$__rate_interval])", "{{instance}} syncs"),
                ],
            ),
            chart(
                "Observers",
                "short",
                "Observers that a node feeds, those of them that do not answer, and the entries that the one furthest behind lacks; for an observer: 1 while its feeder sends, and the nodes between it and a member.",
                &[
                    ("mainstay_observers{#}", "{{instance}} fed"),
                    ("mainstay_observers_inactive{#}", "{{instance}} silent"),
                    ("mainstay_observer_lag_entries{#}", "{{instance}} lag"),
                    ("mainstay_observer_fed{#}", "{{instance}} is fed"),
                    ("mainstay_observer_feed_depth{#}", "{{instance}} depth"),
                ],
            ),
            chart(
                "Autopilot",
                "short",
                "Steps of the leader's autopilot by kind and outcome, members that are gone, and what it leaves to a person; whether it is on at a member (1 dry run, 2 on), and decides there.",
                &[
                    (
                        "increase(mainstay_autopilot_steps_total{#}[$__rate_interval])",
                        "{{instance}} {{step}} {{outcome}}",
                    ),
                    ("mainstay_autopilot_members_gone{#}", "{{instance}} gone"),
                    ("mainstay_autopilot_advice{#}", "{{instance}} advice"),
                    ("mainstay_autopilot_mode{#}", "{{instance}} mode"),
                    ("mainstay_autopilot_deciding{#}", "{{instance}} decides"),
                ],
            ),
            chart(
                "Witness",
                "short",
                "1 at a witness; and 1 at a leader that counts it, because too few members with data are in step: then no other machine may be lost.",
                &[
                    ("mainstay_is_witness{#}", "{{instance}} is one"),
                    ("mainstay_witness_counts{#}", "{{instance}} counts it"),
                ],
            ),
            chart(
                "Between zones",
                "Bps",
                "Bytes between zones: those that nodes send to members and observers, and those between nodes and clients.",
                &[(
                    "rate(mainstay_cross_zone_bytes_total{#}[$__rate_interval])",
                    "{{instance}} {{with}}: {{from}} to {{to}}",
                )],
            ),
            chart(
                "Trouble between members",
                "cps",
                "Messages dropped, connections lost, heartbeats sent late.",
                &[
                    (
                        "sum by (instance) (rate(etcd_network_peer_sent_failures_total{#}[$__rate_interval]))",
                        "{{instance}} not sent",
                    ),
                    (
                        "sum by (instance) (rate(etcd_network_disconnected_peers_total{#}[$__rate_interval]))",
                        "{{instance}} disconnected",
                    ),
                    (
                        "rate(etcd_server_heartbeat_send_failures_total{#}[$__rate_interval])",
                        "{{instance}} late heartbeats",
                    ),
                ],
            ),
            chart(
                "States compared",
                "cps",
                "Comparisons of members' states by the leader, and differences found, which must be 0.",
                &[
                    (
                        "rate(mainstay_state_hash_compared_total{#}[$__rate_interval])",
                        "{{instance}} comparisons",
                    ),
                    (
                        "rate(mainstay_state_hash_differences_total{#}[$__rate_interval])",
                        "{{instance}} differences",
                    ),
                ],
            ),
            chart(
                "Entry compared last",
                "none",
                "Last entry at which all members that answered had the same state.",
                &[("mainstay_state_hash_index{#}", "{{instance}}")],
            ),
        ],
    ),
    (
        "Log and disk",
        &[
            chart(
                "Sync of the log, median and 99th percentile",
                "s",
                "Each write waits for the sync of a majority.",
                &[
                    (
                        "histogram_quantile(0.5, sum by (instance, le) (rate(etcd_disk_wal_fsync_duration_seconds_bucket{#}[$__rate_interval])))",
                        "{{instance}} median",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (instance, le) (rate(etcd_disk_wal_fsync_duration_seconds_bucket{#}[$__rate_interval])))",
                        "{{instance}} 99 %",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (instance, le) (rate(mainstay_log_shared_sync_duration_seconds_bucket{#}[$__rate_interval])))",
                        "{{instance}} 99 % of those that entries share",
                    ),
                ],
            ),
            chart(
                "Entries that share a sync",
                "short",
                "Size of a batch: mean and 99th percentile.",
                &[
                    (
                        "rate(mainstay_log_entries_total{#}[$__rate_interval]) / rate(etcd_disk_wal_fsync_duration_seconds_count{#}[$__rate_interval])",
                        "{{instance}} mean",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (instance, le) (rate(mainstay_log_sync_entries_bucket{#}[$__rate_interval])))",
                        "{{instance}} 99 %",
                    ),
                ],
            ),
            chart(
                "Syncs",
                "iops",
                "Syncs of the log, and the part of them made by a shard for its only client.",
                &[
                    ("rate(etcd_disk_wal_fsync_duration_seconds_count{#}[$__rate_interval])", "{{instance}}"),
                    ("rate(mainstay_core_lent_total{#}[$__rate_interval])", "{{instance}} by a shard"),
                ],
            ),
            chart(
                "Written to the log",
                "Bps",
                "Entries, and bytes that prepare segments.",
                &[
                    ("rate(etcd_disk_wal_write_bytes_total{#}[$__rate_interval])", "{{instance}} entries"),
                    ("rate(mainstay_log_prepared_bytes_total{#}[$__rate_interval])", "{{instance}} prepared"),
                ],
            ),
            chart(
                "Memory of the index",
                "bytes",
                "The part that is in memory in any case and, with --memory-budget, its growth since the last checkpoint in blocks, the blocks in memory, and the budget.",
                &[
                    ("mainstay_index_bytes{#}", "{{instance}}"),
                    ("mainstay_index_pinned_bytes{#}", "{{instance}} growth"),
                    ("mainstay_index_block_bytes{#}", "{{instance}} blocks"),
                    ("mainstay_index_memory_budget_bytes{#}", "{{instance}} budget"),
                ],
            ),
            chart(
                "Blocks of the index",
                "cps",
                "With --memory-budget: blocks read from the checkpoint, and evicted. As many as reads: the budget is too small for the keys in use.",
                &[
                    ("rate(mainstay_index_block_loads_total{#}[$__rate_interval])", "{{instance}} read"),
                    (
                        "rate(mainstay_index_block_evictions_total{#}[$__rate_interval])",
                        "{{instance}} evicted",
                    ),
                ],
            ),
            chart(
                "Compressed values",
                "Bps",
                "With --value-compression=zstd: values compressed in the background, before and after.",
                &[
                    (
                        "rate(mainstay_value_compression_compressed_raw_bytes_total{#}[$__rate_interval])",
                        "{{instance}} before",
                    ),
                    (
                        "rate(mainstay_value_compression_compressed_bytes_total{#}[$__rate_interval])",
                        "{{instance}} after",
                    ),
                ],
            ),
            chart(
                "Values moved while values are compressed",
                "cps",
                "Those that were compressed, and those that were left as they are because it saves too little.",
                &[
                    (
                        "rate(mainstay_value_compression_compressed_total{#}[$__rate_interval])",
                        "{{instance}} compressed",
                    ),
                    (
                        "rate(mainstay_value_compression_skipped_total{#}[$__rate_interval])",
                        "{{instance}} left",
                    ),
                ],
            ),
            chart(
                "Values left as they are",
                "Bps",
                "Bytes of moved values that compression would not make a quarter smaller.",
                &[(
                    "rate(mainstay_value_compression_skipped_bytes_total{#}[$__rate_interval])",
                    "{{instance}}",
                )],
            ),
            chart(
                "Dictionaries of compressed values",
                "short",
                "At most 64; damaged ones count.",
                &[("mainstay_value_compression_dictionaries{#}", "{{instance}}")],
            ),
            chart(
                "Waits for a segment",
                "cps",
                "Writes that waited because no log segment was prepared.",
                &[("rate(mainstay_log_segment_waits_total{#}[$__rate_interval])", "{{instance}}")],
            ),
            chart(
                "Sync of a portion of a checkpoint, 99th percentile",
                "s",
                "No request waits for it.",
                &[(
                    "histogram_quantile(0.99, sum by (instance, le) (rate(etcd_disk_backend_commit_duration_seconds_bucket{#}[$__rate_interval])))",
                    "{{instance}}",
                )],
            ),
            chart(
                "Data",
                "bytes",
                "On disk, and live; the rest is removed after the next compaction. At the quota, writes are refused.",
                &[
                    ("etcd_mvcc_db_total_size_in_bytes{#}", "{{instance}} on disk"),
                    ("etcd_mvcc_db_total_size_in_use_in_bytes{#}", "{{instance}} live"),
                    ("etcd_server_quota_backend_bytes{#}", "{{instance}} quota"),
                ],
            ),
            chart(
                "Compaction",
                "ops",
                "Revisions removed by compactions.",
                &[(
                    "rate(etcd_debugging_mvcc_db_compaction_keys_total{#}[$__rate_interval])",
                    "{{instance}}",
                )],
            ),
            chart(
                "History kept",
                "short",
                "Revisions since the last compaction.",
                &[(
                    "etcd_debugging_mvcc_current_revision{#} - etcd_debugging_mvcc_compact_revision{#}",
                    "{{instance}}",
                )],
            ),
        ],
    ),
    (
        "Watches, leases, long readers",
        &[
            chart(
                "Watchers",
                "short",
                "All watchers, and those that are behind.",
                &[
                    ("etcd_debugging_mvcc_watcher_total{#}", "{{instance}}"),
                    ("etcd_debugging_mvcc_slow_watcher_total{#}", "{{instance}} behind"),
                ],
            ),
            chart(
                "Events",
                "ops",
                "Sent to watchers.",
                &[("rate(etcd_debugging_mvcc_events_total{#}[$__rate_interval])", "{{instance}}")],
            ),
            chart(
                "Pending events",
                "short",
                "Waiting for their clients to read them.",
                &[("etcd_debugging_mvcc_pending_events_total{#}", "{{instance}}")],
            ),
            chart(
                "Leases",
                "ops",
                "At all selected members; the leader counts renewals.",
                &[
                    ("max(rate(etcd_debugging_lease_granted_total{#}[$__rate_interval]))", "granted"),
                    ("sum(rate(etcd_debugging_lease_renewed_total{#}[$__rate_interval]))", "renewed"),
                    ("sum(rate(etcd_debugging_server_lease_expired_total{#}[$__rate_interval]))", "expired"),
                ],
            ),
            chart(
                "Long readers",
                "short",
                "Large ranges, snapshots, checkpoints and lagging watches, whose revisions are not removed; and readers that were ended for this reason.",
                &[
                    ("mainstay_long_reads{#}", "{{instance}}"),
                    (
                        "increase(mainstay_long_reads_overtaken_total{#}[$__rate_interval])",
                        "{{instance}} ended",
                    ),
                ],
            ),
            chart(
                "Oldest long reader",
                "s",
                "Its age.",
                &[("mainstay_long_reads_oldest_seconds{#}", "{{instance}}")],
            ),
        ],
    ),
    (
        "The process",
        &[
            chart(
                "Processor time used",
                "percentunit",
                "Share of all processors that the member may use.",
                &[(
                    "rate(process_cpu_seconds_total{#}[$__rate_interval]) / mainstay_processors{#}",
                    "{{instance}}",
                )],
            ),
            chart(
                "Memory",
                "bytes",
                "Resident memory. Values are in the page cache, which is not included.",
                &[("process_resident_memory_bytes{#}", "{{instance}}")],
            ),
            chart(
                "Open files",
                "short",
                "Open files, and the limit.",
                &[("process_open_fds{#}", "{{instance}}"), ("process_max_fds{#}", "{{instance}} limit")],
            ),
            chart(
                "Running since",
                "dateTimeAsIso",
                "Start time of the process.",
                &[("process_start_time_seconds{#} * 1000", "{{instance}}")],
            ),
        ],
    ),
    (
        "Protection, TLS, audit, tracing",
        &[
            chart(
                "Connections closed and calls refused",
                "cps",
                "What the member did to protect itself from overload by clients, and connections that an operator drains.",
                &[
                    (
                        "rate(mainstay_client_connections_shed_total{#}[$__rate_interval])",
                        "{{instance}} closed for memory",
                    ),
                    (
                        "rate(mainstay_client_connections_refused_total{#}[$__rate_interval])",
                        "{{instance}} refused",
                    ),
                    (
                        "rate(mainstay_client_connections_drained_total{#}[$__rate_interval])",
                        "{{instance}} drained",
                    ),
                    (
                        "rate(mainstay_expensive_calls_refused_total{#}[$__rate_interval])",
                        "{{instance}} expensive calls",
                    ),
                ],
            ),
            chart(
                "Certificates expire in",
                "s",
                "The first of each kind to expire.",
                &[(
                    "min by (instance, listener, certificate) (mainstay_tls_certificate_not_after_seconds{#} - time())",
                    "{{instance}} {{listener}} {{certificate}}",
                )],
            ),
            chart(
                "TLS files",
                "none",
                "Loads; 1 while the files on disk cannot be used; failed loads that were logged.",
                &[
                    ("mainstay_tls_generation{#}", "{{instance}} {{listener}} loaded"),
                    ("mainstay_tls_reload_failing{#}", "{{instance}} {{listener}} failing"),
                    ("mainstay_tls_reload_failures_total{#}", "{{instance}} {{listener}} failures"),
                ],
            ),
            chart(
                "Connections refused by TLS",
                "cps",
                "The log has the reasons.",
                &[(
                    "rate(mainstay_tls_rejected_connections_total{#}[$__rate_interval])",
                    "{{instance}} {{listener}}",
                )],
            ),
            chart(
                "TLS handshakes of clients",
                "cps",
                "Full, or resumed with a session ticket; 1 while sessions of other members are resumed, too.",
                &[
                    ("rate(mainstay_tls_handshakes_total{#}[$__rate_interval])", "{{instance}} {{kind}}"),
                    ("mainstay_tls_tickets_shared{#}", "{{instance}} shared"),
                ],
            ),
            chart(
                "Audit log",
                "cps",
                "Entries written. Dropped entries, and refused calls without a line, must be 0.",
                &[
                    ("rate(mainstay_audit_entries_total{#}[$__rate_interval])", "{{instance}} written"),
                    (
                        "rate(mainstay_audit_entries_dropped_total{#}[$__rate_interval])",
                        "{{instance}} dropped",
                    ),
                    (
                        "rate(mainstay_audit_refused_not_shown_total{#}[$__rate_interval])",
                        "{{instance}} not shown",
                    ),
                ],
            ),
            chart(
                "Spans",
                "cps",
                "Sent to the collector, and dropped because it was slow or unreachable.",
                &[
                    ("rate(mainstay_tracing_spans_sent_total{#}[$__rate_interval])", "{{instance}} sent"),
                    (
                        "rate(mainstay_tracing_spans_dropped_total{#}[$__rate_interval])",
                        "{{instance}} dropped",
                    ),
                ],
            ),
        ],
    ),
    (
        "A backup",
        &[
            figure(
                "Lag",
                "s",
                "Age of the oldest change that is not in the store.",
                &[("max(mainstay_backup_lag_seconds{#})", "")],
            ),
            figure(
                "In the store up to",
                "dateTimeFromNow",
                "Time up to which everything is in the store.",
                &[("max(mainstay_backup_last_success_timestamp_seconds{#}) * 1000", "")],
            ),
            figure(
                "Gaps",
                "none",
                "Times that entries were lost for the backup.",
                &[("max(mainstay_backup_gaps_total{#})", "")],
            ),
            chart(
                "Positions",
                "none",
                "Newest revision and manifest in the store, and 1 while another process ships.",
                &[
                    ("mainstay_backup_revision{#}", "{{instance}} revision"),
                    ("mainstay_backup_manifest{#}", "{{instance}} manifest"),
                    ("mainstay_backup_stands_by{#}", "{{instance}} stands by"),
                ],
            ),
            chart(
                "Shipped",
                "Bps",
                "Bytes written to the store, and those that wait for it.",
                &[
                    ("rate(mainstay_backup_bytes_total{#}[$__rate_interval])", "{{instance}} written"),
                    ("mainstay_backup_waiting_bytes{#}", "{{instance}} waiting"),
                ],
            ),
            chart(
                "Manifests, bases and failures",
                "short",
                "What was written, and attempts that failed.",
                &[
                    ("rate(mainstay_backup_manifests_total{#}[$__rate_interval])", "{{instance}} manifests"),
                    ("rate(mainstay_backup_failures_total{#}[$__rate_interval])", "{{instance}} failures"),
                    ("mainstay_backup_bases_total{#}", "{{instance}} bases"),
                ],
            ),
        ],
    ),
    (
        "A shadow",
        &[
            figure(
                "Different",
                "none",
                "1 if a comparison with the source has ever been different.",
                &[("max(mainstay_shadow_different{#})", "")],
            ),
            figure(
                "Last compared revision",
                "none",
                "Revision of the last comparison that was equal or different.",
                &[("max(mainstay_shadow_last_comparison_revision{#})", "")],
            ),
            figure(
                "Last comparison",
                "dateTimeFromNow",
                "Time of the last comparison that was equal or different.",
                &[("max(mainstay_shadow_last_comparison_timestamp_seconds{#}) * 1000", "")],
            ),
            chart(
                "Comparisons",
                "short",
                "Comparisons with the source by result, and snapshots from which the shadow has begun.",
                &[
                    ("mainstay_shadow_comparisons_total{#}", "{{instance}} {{result}}"),
                    ("mainstay_shadow_snapshots_total{#}", "{{instance}} snapshots"),
                ],
            ),
            chart(
                "Revisions",
                "none",
                "Revision of the copy and of its source, and the revisions that the copy lacks.",
                &[
                    ("mainstay_shadow_revision{#}", "{{instance}} copy"),
                    ("mainstay_shadow_source_revision{#}", "{{instance}} source"),
                    ("mainstay_shadow_lag_revisions{#}", "{{instance}} lag"),
                ],
            ),
            chart(
                "Lag",
                "s",
                "Time since the copy was last known to have all revisions, and 1 while the source answers.",
                &[
                    ("mainstay_shadow_lag_seconds{#}", "{{instance}} lag"),
                    ("mainstay_shadow_connected{#}", "{{instance}} connected"),
                ],
            ),
            chart(
                "Changes applied",
                "cps",
                "Changes of keys that the shadow has applied.",
                &[("rate(mainstay_shadow_events_total{#}[$__rate_interval])", "{{instance}}")],
            ),
        ],
    ),
];

fn filled(written: &Written) -> Panel {
    let series =
        written.series.iter().map(|(expression, legend)| (expression.replace(CHOSEN, SELECTORS), *legend));
    Panel {
        kind: written.kind,
        title: written.title,
        unit: written.unit,
        text: written.text,
        series: series.collect(),
    }
}

/// Returns all panels in order.
pub fn panels() -> impl Iterator<Item = Panel> {
    ROWS.iter().flat_map(|(_, panels)| panels.iter().map(filled))
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn grid(x: u64, y: u64, w: u64, h: u64) -> Value {
    json!({ "x": x, "y": y, "w": w, "h": h })
}

fn panel(panel: &Panel, id: u64, place: Value) -> Value {
    let targets: Vec<Value> = panel
        .series
        .iter()
        .zip('A'..)
        .map(|((expression, legend), letter)| {
            json!({
                "datasource": source(),
                "editorMode": "code",
                "expr": expression,
                "instant": panel.kind == Kind::Figure,
                "range": panel.kind == Kind::Chart,
                "legendFormat": legend,
                "refId": letter.to_string(),
            })
        })
        .collect();
    let (kind, custom, options) = match panel.kind {
        Kind::Figure => (
            "stat",
            json!({}),
            json!({
                "colorMode": "none",
                "graphMode": "none",
                "justifyMode": "auto",
                "orientation": "auto",
                "textMode": "value",
                "wideLayout": true,
                "showPercentChange": false,
                "percentChangeColorMode": "standard",
                "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
            }),
        ),
        Kind::Chart => (
            "timeseries",
            json!({ "drawStyle": "line", "fillOpacity": 5, "lineWidth": 1, "showPoints": "never", "spanNulls": false }),
            json!({
                "legend": { "calcs": ["mean", "max"], "displayMode": "table", "placement": "bottom", "showLegend": true },
                "tooltip": { "mode": "multi", "sort": "desc" },
            }),
        ),
    };
    json!({
        "id": id,
        "type": kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": source(),
        "gridPos": place,
        "fieldConfig": { "defaults": { "unit": panel.unit, "custom": custom }, "overrides": [] },
        "options": options,
        "targets": targets,
    })
}

/// Returns a dashboard variable that lists the values of a label.
fn variable(name: &str, label: &str, query: &str, all: bool) -> Value {
    let mut value = json!({
        "name": name,
        "label": label,
        "type": "query",
        "datasource": source(),
        "query": { "query": query, "refId": "StandardVariableQuery" },
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": all,
        "includeAll": all,
        "hide": 0,
        "options": [],
    });
    if all {
        value["allValue"] = json!(".*");
        value["current"] = json!({ "selected": true, "text": ["All"], "value": ["$__all"] });
    }
    value
}

/// Returns the dashboard.
pub fn json() -> String {
    let mut panels = Vec::new();
    let (mut id, mut y) = (0, 0);
    let mut next = || {
        id += 1;
        id
    };
    for (title, row) in ROWS {
        panels.push(json!({
            "id": next(), "type": "row", "title": title, "collapsed": false, "panels": [], "gridPos": grid(0, y, COLUMNS, 1),
        }));
        y += 1;
        let mut x = 0;
        let mut height = 0;
        for written in *row {
            let (w, h) = if written.kind == Kind::Figure { (3, 4) } else { (8, 8) };
            if x + w > COLUMNS {
                (x, y) = (0, y + height);
            }
            panels.push(panel(&filled(written), next(), grid(x, y, w, h)));
            (x, height) = (x + w, h);
        }
        y += height;
    }
    let dashboard = json!({
        "uid": "mainstay",
        "title": "Mainstay",
        "description": "Members of a Mainstay cluster: requests and their stages, raft, log and disk, watches, the process, protection.",
        "tags": ["mainstay", "etcd"],
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": { "from": "now-1h", "to": "now" },
        "timezone": "browser",
        "annotations": { "list": [] },
        "links": [],
        "templating": { "list": [
            { "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "hide": 0, "options": [] },
            variable("job", "Cluster", "label_values(etcd_server_has_leader, job)", false),
            variable("instance", "Member", "label_values(etcd_server_has_leader{job=\"$job\"}, instance)", true),
        ] },
        "panels": panels,
    });
    format!("{dashboard:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_do_not_overlap() {
        let dashboard: Value = serde_json::from_str(&json()).unwrap();
        let mut taken = std::collections::BTreeMap::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
            assert!(place("x") + place("w") <= COLUMNS, "{}", panel["title"]);
            for x in place("x")..place("x") + place("w") {
                for y in place("y")..place("y") + place("h") {
                    let other = taken.insert((x, y), panel["title"].clone());
                    assert!(other.is_none(), "{} and {other:?}", panel["title"]);
                }
            }
        }
        assert_eq!(panels().count() + ROWS.len(), dashboard["panels"].as_array().unwrap().len());
    }
}
