//! Defines the recording rules and alerts for Prometheus. Each alert has a remedy, and a test in promtool's
//! format.
//!
//! The expressions assume that all members of a cluster have the same `job` label, and that each cluster has
//! a different one. A metric that only members export needs no selector. A metric that every program exports
//! (`up`, `process_…`) is restricted to jobs whose names contain `mainstay` or `etcd`.

use std::fmt::Write as _;

/// Recording rule: a series that Prometheus computes periodically from an expression.
pub struct Recorded {
    pub name: &'static str,
    pub expression: &'static str,
    /// Labels of the series besides `job` and `instance`.
    pub labels: &'static [&'static str],
}

pub const RECORDED: &[Recorded] = &[
    Recorded {
        name: "instance:grpc_server_handled:rate5m",
        expression: "sum by (job, instance) (rate(grpc_server_handled_total{grpc_type=\"unary\"}[5m]))",
        labels: &[],
    },
    Recorded {
        name: "instance_method:grpc_server_handled:rate5m",
        expression: "sum by (job, instance, grpc_method) (rate(grpc_server_handled_total{grpc_type=\"unary\"}[5m]))",
        labels: &["grpc_method"],
    },
    Recorded {
        name: "instance:grpc_server_failed:ratio5m",
        expression: "sum by (job, instance) (rate(grpc_server_handled_total{grpc_type=\"unary\",\
                     grpc_code=~\"Unknown|ResourceExhausted|Internal|Unavailable|DataLoss|DeadlineExceeded\"}[5m]))\n\
                     / sum by (job, instance) (rate(grpc_server_handled_total{grpc_type=\"unary\"}[5m]))",
        labels: &[],
    },
    Recorded {
        name: "instance:etcd_disk_wal_fsync_duration_seconds:p99_5m",
        expression: "histogram_quantile(0.99, sum by (job, instance, le) (rate(etcd_disk_wal_fsync_duration_seconds_bucket[5m])))",
        labels: &[],
    },
    Recorded {
        name: "instance:mainstay_log_shared_sync_duration_seconds:p99_5m",
        expression: "histogram_quantile(0.99, sum by (job, instance, le) (rate(mainstay_log_shared_sync_duration_seconds_bucket[5m])))",
        labels: &[],
    },
    Recorded {
        name: "instance_to:etcd_network_peer_round_trip_time_seconds:p99_5m",
        expression: "histogram_quantile(0.99, sum by (job, instance, To, le) (rate(etcd_network_peer_round_trip_time_seconds_bucket[5m])))",
        labels: &["To"],
    },
    Recorded {
        name: "instance_stage:mainstay_request_stage_seconds:p50_5m",
        expression: "histogram_quantile(0.5, sum by (job, instance, stage, le) (rate(mainstay_request_stage_seconds_bucket[5m])))",
        labels: &["stage"],
    },
    Recorded {
        name: "instance_stage:mainstay_request_stage_seconds:p99_5m",
        expression: "histogram_quantile(0.99, sum by (job, instance, stage, le) (rate(mainstay_request_stage_seconds_bucket[5m])))",
        labels: &["stage"],
    },
    Recorded {
        name: "instance:mainstay_log_entries_per_sync:ratio5m",
        expression: "rate(mainstay_log_entries_total[5m]) / rate(etcd_disk_wal_fsync_duration_seconds_count[5m])",
        labels: &[],
    },
    Recorded {
        name: "instance:etcd_quota_used:ratio",
        expression: "etcd_mvcc_db_total_size_in_bytes / (etcd_server_quota_backend_bytes > 0)",
        labels: &[],
    },
    Recorded {
        name: "instance:process_cpu_used:ratio5m",
        expression: "rate(process_cpu_seconds_total[5m]) / mainstay_processors",
        labels: &[],
    },
];

/// Input of a test: series, each with its name and labels, and its values, one per minute, in promtool's
/// notation.
type Series = &'static [(&'static str, &'static str)];

/// An alert, with its tests and its remedy.
pub struct Alert {
    pub name: &'static str,
    /// Either `critical` (the cluster does not serve, or data is at risk) or `warning` (one of these may
    /// happen soon, or clients notice a problem).
    pub severity: &'static str,
    /// Time for which the expression must hold before the alert fires.
    pub holds: &'static str,
    pub expression: &'static str,
    /// Summary in one line, for the person on call. It may contain Prometheus' templates.
    pub summary: &'static str,
    pub meaning: &'static str,
    pub remedy: &'static str,
    /// Series for which the alert must fire within an hour.
    pub fires: Series,
    /// Similar series for which the alert must not fire.
    pub rests: Series,
}

pub const ALERTS: &[Alert] = &[
    Alert {
        name: "MainstayQuorumLost",
        severity: "critical",
        holds: "1m",
        expression: "sum by (job) (up{job=~\".*(mainstay|etcd).*\"})\n< floor(count by (job) (up{job=~\".*(mainstay|etcd).*\"}) / 2) + 1",
        summary: "{{ $labels.job }}: only {{ $value }} members answer, which is no majority",
        meaning: "Prometheus reaches fewer members than a majority. If the others are down, the cluster serves no writes and no \
                  linearizable reads.",
        remedy: "Check whether the members run (`systemctl status mainstay`, the log's last lines) and whether Prometheus reaches them. \
                 Start those that are down. If a majority is lost for good, see \"Growing, shrinking and repairing a cluster\" for \
                 `--force-new-cluster`.",
        fires: &[
            ("up{job=\"mainstay\",instance=\"a\"}", "1x60"),
            ("up{job=\"mainstay\",instance=\"b\"}", "0x60"),
            ("up{job=\"mainstay\",instance=\"c\"}", "0x60"),
        ],
        rests: &[
            ("up{job=\"mainstay\",instance=\"a\"}", "1x60"),
            ("up{job=\"mainstay\",instance=\"b\"}", "1x60"),
            ("up{job=\"mainstay\",instance=\"c\"}", "0x60"),
            ("up{job=\"node\",instance=\"a\"}", "0x60"),
        ],
    },
    Alert {
        name: "MainstayMemberDown",
        severity: "warning",
        holds: "3m",
        expression: "up{job=~\".*(mainstay|etcd).*\"} == 0",
        summary: "{{ $labels.job }}: {{ $labels.instance }} does not answer",
        meaning: "A member is down, or Prometheus does not reach it. The cluster serves as long as a majority remains.",
        remedy: "Start it. If it refuses, its log says what is damaged, and `mainstay rebuild` restores it from the others.",
        fires: &[("up{job=\"mainstay\",instance=\"a\"}", "0x60")],
        rests: &[
            ("up{job=\"mainstay\",instance=\"a\"}", "1x60"),
            ("up{job=\"node\",instance=\"a\"}", "0x60"),
        ],
    },
    Alert {
        name: "MainstayNoLeader",
        severity: "critical",
        holds: "1m",
        expression: "etcd_server_has_leader == 0",
        summary: "{{ $labels.instance }} has had no leader for a minute",
        meaning: "The member serves no writes and no linearizable reads. If all members report this, there is no quorum, or the members \
                  do not reach each other; if only one does, it is cut off.",
        remedy: "Compare `etcdctl endpoint status --cluster -w table` at each member, and look at MainstayPeerLost. `mainstay check network` \
                 measures the links.",
        fires: &[("etcd_server_has_leader{job=\"m\",instance=\"a\"}", "0x60")],
        rests: &[("etcd_server_has_leader{job=\"m\",instance=\"a\"}", "1x60")],
    },
    Alert {
        name: "MainstayStatesDiffer",
        severity: "critical",
        holds: "0m",
        expression: "increase(mainstay_state_hash_differences_total[10m]) > 0",
        summary: "{{ $labels.instance }} found a member whose state differs from its own",
        meaning: "Members do not hold the same data. The CORRUPT alarm is raised, and writes are refused.",
        remedy: "See \"When members differ\": the leader's log names the member, the entry and the revision. Rebuild that member, then \
                 run `etcdctl alarm disarm`.",
        fires: &[("mainstay_state_hash_differences_total{job=\"m\",instance=\"a\"}", "0x54 1x5")],
        rests: &[("mainstay_state_hash_differences_total{job=\"m\",instance=\"a\"}", "1x60")],
    },
    Alert {
        name: "MainstayShadowDifferent",
        severity: "critical",
        holds: "0m",
        expression: "mainstay_shadow_different == 1",
        summary: "{{ $labels.instance }} is a shadow whose copy differs from its source",
        meaning: "HashKV of the copy was different from that of the source at the same revision and compact revision, or a revision did not fit.",
        remedy: "The log of the shadow has the revision, the hashes and the first different key. If the endpoints of the source differ from each \
                 other, look at the source first. Keep the data directory of the shadow; see [shadow.md](shadow.md).",
        fires: &[("mainstay_shadow_different{job=\"s\",instance=\"a\"}", "0x54 1x5")],
        rests: &[("mainstay_shadow_different{job=\"s\",instance=\"a\"}", "0x60")],
    },
    Alert {
        name: "MainstayShadowBehind",
        severity: "warning",
        holds: "5m",
        expression: "mainstay_shadow_lag_seconds > 300",
        summary: "{{ $labels.instance }} is a shadow that has been behind its source for {{ $value }} s",
        meaning: "The source does not answer the shadow, or changes faster than the shadow applies. If it is compacted meanwhile, the shadow \
                  begins again from a snapshot.",
        remedy: "The log of the shadow says why it cannot follow: connections, permissions, or a full disk. Otherwise give it more processor time \
                 or a faster disk; see [shadow.md](shadow.md).",
        fires: &[("mainstay_shadow_lag_seconds{job=\"s\",instance=\"a\"}", "400x60")],
        rests: &[("mainstay_shadow_lag_seconds{job=\"s\",instance=\"a\"}", "0x60")],
    },
    Alert {
        name: "MainstayBackupBehind",
        severity: "critical",
        holds: "5m",
        expression: "mainstay_backup_lag_seconds > 60 and mainstay_backup_stands_by == 0",
        summary: "{{ $labels.instance }} is a backup that has been behind its cluster for {{ $value }} s",
        meaning: "The store does not answer or refuses, or the node of the backup receives nothing from the cluster. Changes wait in the data \
                  directory, and are lost for the backup if that becomes full.",
        remedy: "The log of the backup says why: the bucket, the credentials, the clock, or the cluster. See [backup.md](backup.md).",
        fires: &[
            ("mainstay_backup_lag_seconds{job=\"b\",instance=\"a\"}", "400x60"),
            ("mainstay_backup_stands_by{job=\"b\",instance=\"a\"}", "0x60"),
        ],
        rests: &[
            ("mainstay_backup_lag_seconds{job=\"b\",instance=\"a\"}", "0x60"),
            ("mainstay_backup_stands_by{job=\"b\",instance=\"a\"}", "0x60"),
        ],
    },
    Alert {
        name: "MainstayAlarm",
        severity: "critical",
        holds: "0m",
        expression: "max by (job, server_id, alarm_type) (etcd_debugging_server_alarms) == 1",
        summary: "{{ $labels.job }}: member {{ $labels.server_id }} has raised {{ $labels.alarm_type }}",
        meaning: "NOSPACE: the quota or a disk is full, and puts are refused. CORRUPT: the data of a member differs.",
        remedy: "NOSPACE: see \"Space\" and \"A full disk\": compact, delete keys or raise `--quota-backend-bytes`, then run `etcdctl \
                 alarm disarm`. CORRUPT: see \"When members differ\".",
        fires: &[(
            "etcd_debugging_server_alarms{job=\"m\",instance=\"a\",server_id=\"1\",alarm_type=\"NOSPACE\"}",
            "1x60",
        )],
        rests: &[(
            "etcd_debugging_server_alarms{job=\"m\",instance=\"a\",server_id=\"1\",alarm_type=\"NOSPACE\"}",
            "1x50 0x10",
        )],
    },
    Alert {
        name: "MainstayQuotaNear",
        severity: "warning",
        holds: "10m",
        expression: "instance:etcd_quota_used:ratio > 0.8",
        summary: "{{ $labels.instance }} has used {{ $value | humanizePercentage }} of its quota",
        meaning: "When the quota is reached, the NOSPACE alarm is raised and puts are refused.",
        remedy: "Find what grows (`mainstay doctor`). Compact, or let the members do it (`--auto-compaction-retention`); delete what is not \
                 needed; or raise `--quota-backend-bytes` at all members.",
        fires: &[
            ("etcd_mvcc_db_total_size_in_bytes{job=\"m\",instance=\"a\"}", "90x60"),
            ("etcd_server_quota_backend_bytes{job=\"m\",instance=\"a\"}", "100x60"),
        ],
        rests: &[
            ("etcd_mvcc_db_total_size_in_bytes{job=\"m\",instance=\"a\"}", "70x60"),
            ("etcd_server_quota_backend_bytes{job=\"m\",instance=\"a\"}", "100x60"),
            ("etcd_mvcc_db_total_size_in_bytes{job=\"m\",instance=\"b\"}", "70x60"),
            ("etcd_server_quota_backend_bytes{job=\"m\",instance=\"b\"}", "0x60"),
        ],
    },
    Alert {
        name: "MainstayQuotaFullSoon",
        severity: "warning",
        holds: "15m",
        expression: "predict_linear(etcd_mvcc_db_total_size_in_bytes[1h], 4 * 3600) > (etcd_server_quota_backend_bytes > 0)\n\
                     and instance:etcd_quota_used:ratio > 0.4",
        summary: "{{ $labels.instance }} will reach its quota within four hours at this rate",
        meaning: "At the rate of the last hour, the quota will be full before anybody is likely to notice.",
        remedy: "As for MainstayQuotaNear. The usual cause is a client that never stops writing: `mainstay doctor` names it.",
        fires: &[
            ("etcd_mvcc_db_total_size_in_bytes{job=\"m\",instance=\"a\"}", "3000+60x60"),
            ("etcd_server_quota_backend_bytes{job=\"m\",instance=\"a\"}", "10000x60"),
        ],
        rests: &[
            ("etcd_mvcc_db_total_size_in_bytes{job=\"m\",instance=\"a\"}", "5000+6x60"),
            ("etcd_server_quota_backend_bytes{job=\"m\",instance=\"a\"}", "10000x60"),
        ],
    },
    Alert {
        name: "MainstayLeaderChanges",
        severity: "warning",
        holds: "5m",
        expression: "increase(etcd_server_leader_changes_seen_total[15m]) >= 3",
        summary: "{{ $labels.instance }} has seen {{ $value | humanize }} changes of leader in a quarter of an hour",
        meaning: "Elections repeat, and each stops writes for about the election timeout. Causes: a slow disk, a bad link, or members \
                  short of processor time.",
        remedy: "Check whether MainstaySlowSync, MainstaySlowLink or MainstayProcessorFull fired at the same time. `mainstay check disk` \
                 says which `--heartbeat-interval` and `--election-timeout` suit the disk.",
        fires: &[("etcd_server_leader_changes_seen_total{job=\"m\",instance=\"a\"}", "0+1x60")],
        rests: &[("etcd_server_leader_changes_seen_total{job=\"m\",instance=\"a\"}", "0x30 1x30")],
    },
    Alert {
        name: "MainstayPeerLost",
        severity: "warning",
        holds: "3m",
        expression: "etcd_network_active_peers == 0 and etcd_network_known_peers == 1",
        summary: "{{ $labels.instance }} has no connection to member {{ $labels.Remote }}",
        meaning: "Two members do not reach each other, or one of them is down.",
        remedy: "If both are up, check the network between them (`mainstay check network`) and their certificates: the log says why a \
                 connection was refused.",
        fires: &[
            ("etcd_network_active_peers{job=\"m\",instance=\"a\",Local=\"1\",Remote=\"2\"}", "0x60"),
            ("etcd_network_known_peers{job=\"m\",instance=\"a\",Local=\"1\",Remote=\"2\"}", "1x60"),
        ],
        rests: &[
            ("etcd_network_active_peers{job=\"m\",instance=\"a\",Local=\"1\",Remote=\"2\"}", "0x60"),
            ("etcd_network_known_peers{job=\"m\",instance=\"a\",Local=\"1\",Remote=\"2\"}", "0x60"),
            ("etcd_network_active_peers{job=\"m\",instance=\"a\",Local=\"1\",Remote=\"3\"}", "1x60"),
            ("etcd_network_known_peers{job=\"m\",instance=\"a\",Local=\"1\",Remote=\"3\"}", "1x60"),
        ],
    },
    Alert {
        name: "MainstayMemberBehind",
        severity: "warning",
        holds: "5m",
        expression: "max by (job) (etcd_server_proposals_committed_total)\n- on (job) group_right etcd_server_proposals_applied_total > 10000",
        summary: "{{ $labels.instance }} is {{ $value | humanize }} entries behind its cluster",
        meaning: "A member does not keep up. Its serializable reads are outdated, and the loss of the leader now may leave a smaller \
                  quorum.",
        remedy: "See \"When a member is slow, or behind\". The cause is usually its disk or its processor: compare the panels of the log \
                 and of the process with those of the other members.",
        fires: &[
            ("etcd_server_proposals_committed_total{job=\"m\",instance=\"a\"}", "50000x60"),
            ("etcd_server_proposals_applied_total{job=\"m\",instance=\"a\"}", "50000x60"),
            ("etcd_server_proposals_applied_total{job=\"m\",instance=\"b\"}", "30000x60"),
        ],
        rests: &[
            ("etcd_server_proposals_committed_total{job=\"m\",instance=\"a\"}", "50000x60"),
            ("etcd_server_proposals_applied_total{job=\"m\",instance=\"b\"}", "49000x60"),
            ("etcd_server_proposals_applied_total{job=\"n\",instance=\"c\"}", "10x60"),
        ],
    },
    Alert {
        name: "MainstaySlowSync",
        severity: "warning",
        holds: "10m",
        expression: "instance:etcd_disk_wal_fsync_duration_seconds:p99_5m > 0.1",
        summary: "{{ $labels.instance }}: one sync of the log in a hundred takes {{ $value | humanizeDuration }}",
        meaning: "Each write waits for a sync of a majority. A suitable disk takes less than 10 ms.",
        remedy: "`mainstay check disk --path DIR` measures the disk without the member. Look for other programs that use the disk, or \
                 put the log on a disk of its own (`--wal-dir`).",
        fires: &[
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.128\"}", "0x60"),
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.256\"}", "0+60x60"),
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"+Inf\"}", "0+60x60"),
        ],
        rests: &[
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.064\"}", "0+60x60"),
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"+Inf\"}", "0+60x60"),
        ],
    },
    Alert {
        name: "MainstaySlowSharedSync",
        severity: "warning",
        holds: "10m",
        expression: "instance:mainstay_log_shared_sync_duration_seconds:p99_5m > 0.1 unless on (job, instance) \
                     instance:etcd_disk_wal_fsync_duration_seconds:p99_5m > 0.1",
        summary: "{{ $labels.instance }}: one sync in a hundred takes {{ $value | humanizeDuration }}, of those that several writes share",
        meaning: "Most syncs are fast, but those under load are not, and more writes wait for each of them. Syncs of single entries, \
                  which are the most on a member with little load, hide them in `etcd_disk_wal_fsync_duration_seconds`.",
        remedy: "The disk lacks throughput. `mainstay_log_sync_entries` shows how many entries a sync carries, and \
                 `mainstay check disk --path DIR` what the disk can do. Write less at once, or put the log on a faster disk (`--wal-dir`).",
        fires: &[
            (
                "etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.001\"}",
                "0+6000x60",
            ),
            (
                "etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.256\"}",
                "0+6010x60",
            ),
            (
                "etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"+Inf\"}",
                "0+6010x60",
            ),
            (
                "mainstay_log_shared_sync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.128\"}",
                "0x60",
            ),
            (
                "mainstay_log_shared_sync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.256\"}",
                "0+10x60",
            ),
            (
                "mainstay_log_shared_sync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"+Inf\"}",
                "0+10x60",
            ),
        ],
        rests: &[
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.128\"}", "0x60"),
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.256\"}", "0+60x60"),
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"+Inf\"}", "0+60x60"),
            (
                "mainstay_log_shared_sync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.128\"}",
                "0x60",
            ),
            (
                "mainstay_log_shared_sync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.256\"}",
                "0+10x60",
            ),
            (
                "mainstay_log_shared_sync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"+Inf\"}",
                "0+10x60",
            ),
        ],
    },
    Alert {
        name: "MainstayStalledSync",
        severity: "critical",
        holds: "5m",
        expression: "instance:etcd_disk_wal_fsync_duration_seconds:p99_5m > 0.5",
        summary: "{{ $labels.instance }}: one sync of the log in a hundred takes {{ $value | humanizeDuration }}",
        meaning: "At the election timeout (1 s by default), a leader with such a disk transfers leadership, and clients see timeouts.",
        remedy: "As for MainstaySlowSync, but without delay. `etcdctl move-leader` moves leadership to a member with a sound disk.",
        fires: &[
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.512\"}", "0x60"),
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"1.024\"}", "0+60x60"),
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"+Inf\"}", "0+60x60"),
        ],
        rests: &[
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"0.256\"}", "0+60x60"),
            ("etcd_disk_wal_fsync_duration_seconds_bucket{job=\"m\",instance=\"a\",le=\"+Inf\"}", "0+60x60"),
        ],
    },
    Alert {
        name: "MainstaySlowLink",
        severity: "warning",
        holds: "10m",
        expression: "instance_to:etcd_network_peer_round_trip_time_seconds:p99_5m > 0.15",
        summary: "{{ $labels.instance }}: one round trip to member {{ $labels.To }} in a hundred takes {{ $value | humanizeDuration }}",
        meaning: "Writes and linearizable reads wait for a round trip to a majority.",
        remedy: "`mainstay check network` measures round trips, loss and bandwidth. For members in different regions, raise \
                 `--heartbeat-interval` to the round trip and `--election-timeout` to ten times that.",
        fires: &[
            (
                "etcd_network_peer_round_trip_time_seconds_bucket{job=\"m\",instance=\"a\",To=\"2\",le=\"0.2048\"}",
                "0x60",
            ),
            (
                "etcd_network_peer_round_trip_time_seconds_bucket{job=\"m\",instance=\"a\",To=\"2\",le=\"0.4096\"}",
                "0+2x60",
            ),
            (
                "etcd_network_peer_round_trip_time_seconds_bucket{job=\"m\",instance=\"a\",To=\"2\",le=\"+Inf\"}",
                "0+2x60",
            ),
        ],
        rests: &[
            (
                "etcd_network_peer_round_trip_time_seconds_bucket{job=\"m\",instance=\"a\",To=\"2\",le=\"0.1024\"}",
                "0+2x60",
            ),
            (
                "etcd_network_peer_round_trip_time_seconds_bucket{job=\"m\",instance=\"a\",To=\"2\",le=\"+Inf\"}",
                "0+2x60",
            ),
        ],
    },
    Alert {
        name: "MainstayFailedCalls",
        severity: "warning",
        holds: "10m",
        expression: "instance:grpc_server_failed:ratio5m > 0.05\nand instance:grpc_server_handled:rate5m > 0.1",
        summary: "{{ $labels.instance }} cannot answer {{ $value | humanizePercentage }} of its calls",
        meaning: "Calls end with codes that are not the client's fault, such as Unavailable, DeadlineExceeded and ResourceExhausted.",
        remedy: "The panel \"Calls by code\" says which. Unavailable: no leader. ResourceExhausted: the quota, or a limit of \
                 [resources.md](reference/resources.md). DeadlineExceeded: the stages of requests show what they wait for.",
        fires: &[
            (
                "grpc_server_handled_total{job=\"m\",instance=\"a\",grpc_type=\"unary\",grpc_method=\"Put\",grpc_code=\"Unavailable\"}",
                "0+60x60",
            ),
            (
                "grpc_server_handled_total{job=\"m\",instance=\"a\",grpc_type=\"unary\",grpc_method=\"Put\",grpc_code=\"OK\"}",
                "0+600x60",
            ),
        ],
        rests: &[
            (
                "grpc_server_handled_total{job=\"m\",instance=\"a\",grpc_type=\"unary\",grpc_method=\"Put\",grpc_code=\"Unavailable\"}",
                "0+6x60",
            ),
            (
                "grpc_server_handled_total{job=\"m\",instance=\"a\",grpc_type=\"unary\",grpc_method=\"Put\",grpc_code=\"InvalidArgument\"}",
                "0+600x60",
            ),
            (
                "grpc_server_handled_total{job=\"m\",instance=\"a\",grpc_type=\"unary\",grpc_method=\"Put\",grpc_code=\"OK\"}",
                "0+600x60",
            ),
        ],
    },
    Alert {
        name: "MainstayFailedProposals",
        severity: "warning",
        holds: "0m",
        expression: "increase(etcd_server_proposals_failed_total[15m]) > 5",
        summary: "{{ $labels.instance }}: {{ $value | humanize }} proposals failed in a quarter of an hour",
        meaning: "Writes were not committed in time, usually because the leader changed or there was no quorum.",
        remedy: "As for MainstayLeaderChanges and MainstayNoLeader.",
        fires: &[("etcd_server_proposals_failed_total{job=\"m\",instance=\"a\"}", "0+1x60")],
        rests: &[("etcd_server_proposals_failed_total{job=\"m\",instance=\"a\"}", "0x50 3x10")],
    },
    Alert {
        name: "MainstaySlowReads",
        severity: "warning",
        holds: "5m",
        expression: "increase(etcd_server_slow_read_indexes_total[10m]) + increase(etcd_server_read_indexes_failed_total[10m]) > 10",
        summary: "{{ $labels.instance }}: {{ $value | humanize }} linearizable reads were confirmed late or not at all in ten minutes",
        meaning: "The leader does not confirm reads in time, because of the link to it or its processor.",
        remedy: "Check MainstaySlowLink and the leader's processor time. Reads that may return old data can be serializable.",
        fires: &[
            ("etcd_server_slow_read_indexes_total{job=\"m\",instance=\"a\"}", "0+3x60"),
            ("etcd_server_read_indexes_failed_total{job=\"m\",instance=\"a\"}", "0x60"),
        ],
        rests: &[
            ("etcd_server_slow_read_indexes_total{job=\"m\",instance=\"a\"}", "0x50 3x10"),
            ("etcd_server_read_indexes_failed_total{job=\"m\",instance=\"a\"}", "0x60"),
        ],
    },
    Alert {
        name: "MainstaySlowApplies",
        severity: "warning",
        holds: "10m",
        expression: "rate(etcd_server_slow_apply_total[5m]) > 1",
        summary: "{{ $labels.instance }} applies {{ $value | humanize }} requests a second too slowly",
        meaning: "Requests take longer to apply than `--warning-apply-duration`. Causes: large transactions and deletions, and values \
                  that must be read from disk.",
        remedy: "`/debug/requests` and the log line `request stats` name the requests; the stages show where their time goes.",
        fires: &[("etcd_server_slow_apply_total{job=\"m\",instance=\"a\"}", "0+120x60")],
        rests: &[("etcd_server_slow_apply_total{job=\"m\",instance=\"a\"}", "0+30x60")],
    },
    Alert {
        name: "MainstayProcessorFull",
        severity: "warning",
        holds: "15m",
        expression: "instance:process_cpu_used:ratio5m > 0.9",
        summary: "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its processors",
        meaning: "The member is at the limit of its processors; latencies rise, and elections may follow.",
        remedy: "`mainstay doctor` shows which client sends what. Add processors, spread clients over the members, or limit expensive \
                 calls (`--max-expensive-calls`).",
        fires: &[
            ("process_cpu_seconds_total{job=\"m\",instance=\"a\"}", "0+118x60"),
            ("mainstay_processors{job=\"m\",instance=\"a\"}", "2x60"),
        ],
        rests: &[
            ("process_cpu_seconds_total{job=\"m\",instance=\"a\"}", "0+90x60"),
            ("mainstay_processors{job=\"m\",instance=\"a\"}", "2x60"),
        ],
    },
    Alert {
        name: "MainstayOpenFiles",
        severity: "warning",
        holds: "10m",
        expression: "process_open_fds{job=~\".*(mainstay|etcd).*\"} / process_max_fds{job=~\".*(mainstay|etcd).*\"} > 0.8",
        summary: "{{ $labels.instance }} has {{ $value | humanizePercentage }} of its allowed files open",
        meaning: "Connections beyond the limit are closed immediately.",
        remedy: "See \"Open files\": raise the limit (`LimitNOFILE` of the unit), or find the client with too many connections \
                 (`mainstay doctor`) and limit it (`--max-connections-per-address`).",
        fires: &[
            ("process_open_fds{job=\"mainstay\",instance=\"a\"}", "900x60"),
            ("process_max_fds{job=\"mainstay\",instance=\"a\"}", "1000x60"),
        ],
        rests: &[
            ("process_open_fds{job=\"mainstay\",instance=\"a\"}", "700x60"),
            ("process_max_fds{job=\"mainstay\",instance=\"a\"}", "1000x60"),
            ("process_open_fds{job=\"node\",instance=\"a\"}", "900x60"),
            ("process_max_fds{job=\"node\",instance=\"a\"}", "1000x60"),
        ],
    },
    Alert {
        name: "MainstayConnectionsClosed",
        severity: "warning",
        holds: "0m",
        expression: "increase(mainstay_client_connections_shed_total[10m]) + increase(mainstay_client_connections_refused_total[10m]) > 0",
        summary: "{{ $labels.instance }} closed {{ $value | humanize }} connections of clients in ten minutes to protect itself",
        meaning: "All clients together held more than `--client-memory-bytes`, or too many connections were open.",
        remedy: "[resources.md](reference/resources.md) says what counts. The log names the addresses; `mainstay doctor` shows which \
                 client holds what.",
        fires: &[
            ("mainstay_client_connections_shed_total{job=\"m\",instance=\"a\"}", "0x55 2x5"),
            ("mainstay_client_connections_refused_total{job=\"m\",instance=\"a\"}", "0x60"),
        ],
        rests: &[
            ("mainstay_client_connections_shed_total{job=\"m\",instance=\"a\"}", "2x60"),
            ("mainstay_client_connections_refused_total{job=\"m\",instance=\"a\"}", "0x60"),
        ],
    },
    Alert {
        name: "MainstayLongReader",
        severity: "warning",
        holds: "5m",
        expression: "mainstay_long_reads_oldest_seconds > 300",
        summary: "{{ $labels.instance }}: a reader has held the same state for {{ $value | humanizeDuration }}",
        meaning: "Compacted versions that a large range, a snapshot or a checkpoint still reads are not removed, so the data grows.",
        remedy: "Find the client that reads its answer slowly (`mainstay doctor`). The member itself ends such readers after 5 to 30 \
                 minutes.",
        fires: &[("mainstay_long_reads_oldest_seconds{job=\"m\",instance=\"a\"}", "0+60x60")],
        rests: &[("mainstay_long_reads_oldest_seconds{job=\"m\",instance=\"a\"}", "200x60")],
    },
    Alert {
        name: "MainstaySlowWatchers",
        severity: "warning",
        holds: "15m",
        expression: "etcd_debugging_mvcc_slow_watcher_total > 0",
        summary: "{{ $labels.instance }}: {{ $value }} watchers have been behind for a quarter of an hour",
        meaning: "Watchers read history instead of new events: their clients are slow, or started at an old revision and do not catch \
                  up.",
        remedy: "`mainstay doctor` names their addresses. A compaction may cancel them.",
        fires: &[("etcd_debugging_mvcc_slow_watcher_total{job=\"m\",instance=\"a\"}", "2x60")],
        rests: &[("etcd_debugging_mvcc_slow_watcher_total{job=\"m\",instance=\"a\"}", "0x50 2x10")],
    },
    Alert {
        name: "MainstayCertificateEnds",
        severity: "warning",
        holds: "10m",
        expression: "mainstay_tls_certificate_not_after_seconds - time() < 14 * 86400",
        summary: "{{ $labels.instance }}: a {{ $labels.certificate }} certificate of the {{ $labels.listener }} side ends in {{ $value | humanizeDuration }}",
        meaning: "Once the certificate has expired, new connections are refused.",
        remedy: "Overwrite the old files with new ones: they are used within two seconds ([tls.md](tls.md)).",
        fires: &[(
            "mainstay_tls_certificate_not_after_seconds{job=\"m\",instance=\"a\",listener=\"client\",certificate=\"server\"}",
            "864000x60",
        )],
        rests: &[(
            "mainstay_tls_certificate_not_after_seconds{job=\"m\",instance=\"a\",listener=\"client\",certificate=\"server\"}",
            "1728000x60",
        )],
    },
    Alert {
        name: "MainstayTlsFiles",
        severity: "warning",
        holds: "5m",
        expression: "mainstay_tls_reload_failing == 1",
        summary: "{{ $labels.instance }} cannot use the TLS files of the {{ $labels.listener }} side",
        meaning: "The files on disk are truncated, corrupt or do not match each other. The files loaded before stay in use, but the \
                  member would not start with the new ones.",
        remedy: "The log names the file and what is wrong with it: `cannot use changed TLS files`.",
        fires: &[("mainstay_tls_reload_failing{job=\"m\",instance=\"a\",listener=\"peer\"}", "1x60")],
        rests: &[("mainstay_tls_reload_failing{job=\"m\",instance=\"a\",listener=\"peer\"}", "0x60")],
    },
    Alert {
        name: "MainstayAuditIncomplete",
        severity: "warning",
        holds: "0m",
        expression: "increase(mainstay_audit_entries_dropped_total[10m]) > 0",
        summary: "{{ $labels.instance }} dropped {{ $value | humanize }} entries of the audit log in ten minutes",
        meaning: "The disk of the audit log is full or slow: calls are served, but not all of them are logged.",
        remedy: "Free space, or keep fewer files (`--audit-log-files`); see [audit.md](audit.md).",
        fires: &[("mainstay_audit_entries_dropped_total{job=\"m\",instance=\"a\"}", "0x55 9x5")],
        rests: &[("mainstay_audit_entries_dropped_total{job=\"m\",instance=\"a\"}", "9x60")],
    },
    Alert {
        name: "MainstayVersionsDiffer",
        severity: "warning",
        holds: "1d",
        expression: "count by (job) (count by (job, server_version) (etcd_server_version == 1)) > 1",
        summary: "{{ $labels.job }}: members have presented {{ $value }} different versions for a day",
        meaning: "An upgrade or a downgrade was started and not finished.",
        remedy: "Finish it: `etcdctl endpoint status --cluster -w table` shows the versions.",
        fires: &[
            ("etcd_server_version{job=\"m\",instance=\"a\",server_version=\"3.6.0\"}", "1x3000"),
            ("etcd_server_version{job=\"m\",instance=\"b\",server_version=\"3.7.0\"}", "1x3000"),
        ],
        rests: &[
            ("etcd_server_version{job=\"m\",instance=\"a\",server_version=\"3.7.0\"}", "1x3000"),
            ("etcd_server_version{job=\"m\",instance=\"b\",server_version=\"3.7.0\"}", "1x3000"),
            ("etcd_server_version{job=\"n\",instance=\"c\",server_version=\"3.6.0\"}", "1x3000"),
        ],
    },
];

const GENERATED: &str = "# Generated from the table of metrics: `cargo xtask dashboards` writes it.\n";

/// Returns a text as a YAML string in double quotes.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns an expression as a YAML block that keeps its line breaks.
fn block(expression: &str, indent: usize) -> String {
    let space = " ".repeat(indent);
    let lines: Vec<String> = expression.lines().map(|line| format!("{space}{line}\n")).collect();
    format!("|-\n{}", lines.concat())
}

/// Returns the file of recording rules.
pub fn recording_yaml() -> String {
    let mut text = format!("{GENERATED}groups:\n  - name: mainstay-rules\n    rules:\n");
    for Recorded { name, expression, .. } in RECORDED {
        let _ = write!(text, "      - record: {name}\n        expr: {}", block(expression, 10));
    }
    text
}

/// Returns the file of alerts.
pub fn alerts_yaml() -> String {
    let mut text = format!("{GENERATED}groups:\n  - name: mainstay-alerts\n    rules:\n");
    for alert in ALERTS {
        let _ = write!(
            text,
            "      - alert: {name}\n        expr: {expression}        for: {holds}\n        labels:\n          severity: {severity}\n\
             \x20       annotations:\n          summary: {summary}\n          description: {description}\n          runbook: {runbook}\n",
            name = alert.name,
            expression = block(alert.expression, 10),
            holds = alert.holds,
            severity = alert.severity,
            summary = quoted(alert.summary),
            description = quoted(alert.meaning),
            runbook = quoted(&format!("docs/operations.md#{}", alert.name.to_lowercase())),
        );
    }
    text
}

/// Returns the tests for `promtool test rules`: each alert must fire for the series in [`Alert::fires`], and
/// must not fire for those in [`Alert::rests`].
pub fn tests_yaml() -> String {
    let mut text = format!(
        "{GENERATED}rule_files:\n  - mainstay-rules.yaml\n  - mainstay-alerts.yaml\nevaluation_interval: 1m\ntests:\n"
    );
    for alert in ALERTS {
        for (what, series, firing) in [("fires", alert.fires, true), ("rests", alert.rests, false)] {
            let _ = write!(text, "  - name: {} {what}\n    interval: 1m\n    input_series:\n", alert.name);
            let mut minutes = 0;
            for (series, values) in series {
                let _ =
                    write!(text, "      - series: {}\n        values: {}\n", quoted(series), quoted(values));
                minutes = minutes.max(length(values));
            }
            let of = format!("ALERTS{{alertname=\"{}\",alertstate=\"firing\"}}", alert.name);
            let (expression, value) =
                if firing { (format!("min({of})"), 1) } else { (format!("count({of}) or vector(0)"), 0) };
            let _ = write!(
                text,
                "    promql_expr_test:\n      - expr: {}\n        eval_time: {minutes}m\n        exp_samples:\n          - labels: \"{{}}\"\n            value: {value}\n",
                quoted(&expression)
            );
        }
    }
    text
}

/// Returns the duration of a series in minutes, which is one less than its number of values. For example,
/// `1x3 0x2` has 4 + 3 values, since `1x3` means 1 and three repetitions, so the result is 6.
fn length(values: &str) -> usize {
    let counts = values.split(' ').filter_map(|part| part.rsplit_once('x')?.1.parse::<usize>().ok());
    counts.map(|count| count + 1).sum::<usize>() - 1
}

/// Returns the runbook, with a section for each alert.
pub fn runbook() -> String {
    let mut text = String::new();
    for alert in ALERTS {
        let severity = if alert.severity == "critical" { "Critical" } else { "Warning" };
        let holds =
            if alert.holds == "0m" { "immediately".to_owned() } else { format!("after {}", alert.holds) };
        let _ = write!(
            text,
            "\n### {}\n\n{}\n\n{}\n",
            alert.name,
            wrapped(&format!("{severity}, {holds}. {}", alert.meaning)),
            wrapped(&format!("What to do: {}", alert.remedy)),
        );
    }
    text.push('\n');
    text
}

/// Wraps a paragraph into lines of at most 120 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last().map_or(0, String::len);
        if last + word.len() + 1 > 120 {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_a_length() {
        for (values, minutes) in [("1x60", 60), ("0x54 1x5", 60), ("0+3x10", 10)] {
            assert_eq!(length(values), minutes, "{values}");
        }
    }

    #[test]
    fn names_are_used_once() {
        let mut names: Vec<&str> =
            ALERTS.iter().map(|alert| alert.name).chain(RECORDED.iter().map(|rule| rule.name)).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }
}
