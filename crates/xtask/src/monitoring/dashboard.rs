//! Grafana dashboard as JSON: rows of panels, from the cluster as a whole to the resources of one member.

use serde_json::{Value, json};

/// Placeholder in the expressions below for the selectors of the dashboard's variables.
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

/// Panel as defined below: kind, title, Grafana's unit id, description, and the expressions with their
/// legends.
struct Written {
    kind: Kind,
    title: &'static str,
    unit: &'static str,
    text: &'static str,
    series: &'static [(&'static str, &'static str)],
}

/// Panel with the selectors filled in.
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

/// Rows of panels.
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
                "Alarms that are raised. One of NOSPACE or CORRUPT stops writes.",
                &[("sum(max by (server_id, alarm_type) (etcd_debugging_server_alarms{#})) or vector(0)", "")],
            ),
            figure(
                "Quota used",
                "percentunit",
                "Of the member that has used most.",
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
                "Unary calls that were answered, at all members.",
                &[("sum(rate(grpc_server_handled_total{#,grpc_type=\"unary\"}[$__rate_interval]))", "")],
            ),
            figure(
                "Changes of leader",
                "none",
                "During the time shown, as the member saw them that saw most.",
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
                "Unary calls answered, of all members chosen.",
                &[(
                    "sum by (grpc_method) (rate(grpc_server_handled_total{#,grpc_type=\"unary\"}[$__rate_interval])) > 0",
                    "{{grpc_method}}",
                )],
            ),
            chart(
                "Calls by member",
                "reqps",
                "Whether clients are spread over the members.",
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
                "What calls and transactions did.",
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
                "Time of each stage, in the order of docs/operations.md. A stage that grows is where to look.",
                &[(
                    "histogram_quantile(0.5, sum by (stage, le) (rate(mainstay_request_stage_seconds_bucket{#}[$__rate_interval])))",
                    "{{stage}}",
                )],
            ),
            chart(
                "Stages of requests, 99th percentile",
                "s",
                "The same of the slowest in a hundred.",
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
                "One of so many.",
                &[("mainstay_request_stage_sampling{#}", "{{instance}}")],
            ),
            chart(
                "Who and what makes the requests",
                "reqps",
                "The prefixes of keys, users and clients with most of them, by samples; empty without --metrics-heavy-hitters.",
                &[(
                    "topk(10, sum by (subject, name) (mainstay_heavy_requests_per_second{#}))",
                    "{{subject}} {{name}}",
                )],
            ),
            chart(
                "Who and what moves the bytes",
                "Bps",
                "The same by the bytes of requests and answers.",
                &[(
                    "topk(10, sum by (subject, name) (mainstay_heavy_bytes_per_second{#}))",
                    "{{subject}} {{name}}",
                )],
            ),
            chart(
                "Who and what takes the time",
                "none",
                "The same by how many of their requests are under way on average.",
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
            chart(
                "Leader",
                "none",
                "1 at the member that leads.",
                &[("etcd_server_is_leader{#}", "{{instance}}")],
            ),
            chart(
                "Proposals",
                "ops",
                "Entries of the log that were applied.",
                &[("rate(etcd_server_proposals_applied_total{#}[$__rate_interval])", "{{instance}}")],
            ),
            chart(
                "Entries behind",
                "short",
                "Behind the member that has committed most.",
                &[(
                    "scalar(max(etcd_server_proposals_committed_total{#})) - etcd_server_proposals_applied_total{#}",
                    "{{instance}}",
                )],
            ),
            chart(
                "Proposals that wait or failed",
                "short",
                "Waiting now, and failures a second.",
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
                "Each write and linearizable read needs one to a majority.",
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
                "Comparisons of members' states by the leader, and differences found, which have to be 0.",
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
                "The entry through which all members that answered hold the same.",
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
                "Each write waits for one of a majority.",
                &[
                    (
                        "histogram_quantile(0.5, sum by (instance, le) (rate(etcd_disk_wal_fsync_duration_seconds_bucket{#}[$__rate_interval])))",
                        "{{instance}} median",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (instance, le) (rate(etcd_disk_wal_fsync_duration_seconds_bucket{#}[$__rate_interval])))",
                        "{{instance}} 99 %",
                    ),
                ],
            ),
            chart(
                "Entries that share a sync",
                "short",
                "The size of a batch.",
                &[(
                    "rate(mainstay_log_entries_total{#}[$__rate_interval]) / rate(etcd_disk_wal_fsync_duration_seconds_count{#}[$__rate_interval])",
                    "{{instance}}",
                )],
            ),
            chart(
                "Syncs",
                "iops",
                "Syncs of the log, and those among them that a shard made, for its only client.",
                &[
                    ("rate(etcd_disk_wal_fsync_duration_seconds_count{#}[$__rate_interval])", "{{instance}}"),
                    ("rate(mainstay_core_lent_total{#}[$__rate_interval])", "{{instance}} by a shard"),
                ],
            ),
            chart(
                "Written to the log",
                "Bps",
                "Entries, and what prepares segments.",
                &[
                    ("rate(etcd_disk_wal_write_bytes_total{#}[$__rate_interval])", "{{instance}} entries"),
                    ("rate(mainstay_log_prepared_bytes_total{#}[$__rate_interval])", "{{instance}} prepared"),
                ],
            ),
            chart(
                "Waits for a segment",
                "cps",
                "Writes that waited since no segment of the log was prepared.",
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
                "On disk, and live; the rest goes with the next compaction. At the quota writes are refused.",
                &[
                    ("etcd_mvcc_db_total_size_in_bytes{#}", "{{instance}} on disk"),
                    ("etcd_mvcc_db_total_size_in_use_in_bytes{#}", "{{instance}} live"),
                    ("etcd_server_quota_backend_bytes{#}", "{{instance}} quota"),
                ],
            ),
            chart(
                "Compaction",
                "ops",
                "Revisions that compactions removed.",
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
                "All, and those that are behind.",
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
                "Events that wait",
                "short",
                "For a client that takes them.",
                &[("etcd_debugging_mvcc_pending_events_total{#}", "{{instance}}")],
            ),
            chart(
                "Leases",
                "ops",
                "At all members chosen; the leader counts renewals.",
                &[
                    ("max(rate(etcd_debugging_lease_granted_total{#}[$__rate_interval]))", "granted"),
                    ("sum(rate(etcd_debugging_lease_renewed_total{#}[$__rate_interval]))", "renewed"),
                    ("sum(rate(etcd_debugging_server_lease_expired_total{#}[$__rate_interval]))", "expired"),
                ],
            ),
            chart(
                "Long readers",
                "short",
                "Large ranges, snapshots, checkpoints and watches behind, whose state is not removed; and readers that were ended for it.",
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
                "Of all processors that the member may use.",
                &[(
                    "rate(process_cpu_seconds_total{#}[$__rate_interval]) / mainstay_processors{#}",
                    "{{instance}}",
                )],
            ),
            chart(
                "Memory",
                "bytes",
                "Resident. Values are in the page cache, which is not in it.",
                &[("process_resident_memory_bytes{#}", "{{instance}}")],
            ),
            chart(
                "Open files",
                "short",
                "And the limit.",
                &[("process_open_fds{#}", "{{instance}}"), ("process_max_fds{#}", "{{instance}} limit")],
            ),
            chart(
                "Running since",
                "dateTimeAsIso",
                "When the process began.",
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
                "What the member did to protect itself from clients.",
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
                        "rate(mainstay_expensive_calls_refused_total{#}[$__rate_interval])",
                        "{{instance}} expensive calls",
                    ),
                ],
            ),
            chart(
                "Certificates end in",
                "s",
                "The first of each kind to end.",
                &[(
                    "min by (instance, listener, certificate) (mainstay_tls_certificate_not_after_seconds{#} - time())",
                    "{{instance}} {{listener}} {{certificate}}",
                )],
            ),
            chart(
                "TLS files",
                "none",
                "How often they were loaded; whether those on disk cannot be used; how often that was logged.",
                &[
                    ("mainstay_tls_generation{#}", "{{instance}} {{listener}} loaded"),
                    ("mainstay_tls_reload_failing{#}", "{{instance}} {{listener}} failing"),
                    ("mainstay_tls_reload_failures_total{#}", "{{instance}} {{listener}} failures"),
                ],
            ),
            chart(
                "Connections that TLS did not let in",
                "cps",
                "The log says why.",
                &[(
                    "rate(mainstay_tls_rejected_connections_total{#}[$__rate_interval])",
                    "{{instance}} {{listener}}",
                )],
            ),
            chart(
                "Audit log",
                "cps",
                "Entries written; those dropped, and refused calls without a line, have to be 0.",
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
                "Sent to the collector, and dropped since it was slow or gone.",
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
