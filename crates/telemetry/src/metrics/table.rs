//! Defines all metrics except those of gRPC methods (`grpc.rs`) and of the process (`process.rs`). etcd's
//! metrics keep their names, types, labels and bounds, because dashboards and alerts use them. This includes
//! odd names: some gauges' names end in `_total`, and some counters' names do not.

use super::family::{Descriptor, Family, Labelled};
use super::registry::Registry;
use super::series::{Buckets, Counter, Distribution, Gauge, Histogram, Total};

/// Defines a group of metrics: a struct with a field for each metric, and a function that registers them.
macro_rules! group {
    ($(#[$meta:meta])* $group:ident {
        $($field:ident: $type:ty = $name:literal $([$($label:literal),+])? $(exp($start:expr, $factor:expr, $count:expr))?, $help:literal;)+
    }) => {
        $(#[$meta])*
        #[derive(Clone)]
        pub struct $group {
            $(#[doc = concat!("`", $name, "`: ", $help)] pub $field: $type,)+
        }

        impl $group {
            pub(super) fn register(registry: &mut Registry) -> $group {
                $group {
                    $($field: registry.add(Descriptor {
                        name: $name,
                        kind: <$type as Family>::KIND,
                        help: $help,
                        labels: &[$($($label),+)?],
                        buckets: None $(.or(Some(Buckets { start: $start, factor: $factor, count: $count })))?,
                    }),)+
                }
            }
        }
    };
}

group! {
    /// Metrics of the member: its raft node, its requests, its health.
    ServerMetrics {
        has_leader: Gauge = "etcd_server_has_leader", "1 if this member knows a leader.";
        is_leader: Gauge = "etcd_server_is_leader", "1 if this member is the leader.";
        is_learner: Gauge = "etcd_server_is_learner", "1 if this member is a learner.";
        is_witness: Gauge = "mainstay_is_witness", "1 if this member is a witness, which votes and has no keys.";
        witness_counts: Gauge = "mainstay_witness_counts", "1 if this member leads and counts the witness, because too few members with data are in step: no other machine must be lost.";
        observers: Gauge = "mainstay_observers", "Observers that this node feeds.";
        observers_inactive: Gauge = "mainstay_observers_inactive", "Observers that this node feeds and that have not answered for two election timeouts.";
        observer_lag_entries: Gauge = "mainstay_observer_lag_entries", "Entries that this node has applied and the observer that is furthest behind has not acknowledged.";
        observer_fed: Gauge = "mainstay_observer_fed", "1 if this is an observer and its feeder sends; 0 otherwise.";
        autopilot_mode: Gauge = "mainstay_autopilot_mode", "What the autopilot of this member does while the member leads (--autopilot): 0 nothing, 1 only logs (dry-run), 2 acts.";
        autopilot_deciding: Gauge = "mainstay_autopilot_deciding", "1 if the autopilot of this member decides, because the member leads; 0 otherwise.";
        autopilot_steps: Labelled<Counter> = "mainstay_autopilot_steps_total" ["step", "outcome"], "Steps of this member's autopilot, by kind (promote, remove, move-leader, disarm) and outcome (done, failed, dry-run).";
        autopilot_advice: Gauge = "mainstay_autopilot_advice", "Things that the autopilot of this leader sees and does not do, because that would be unsafe or a person is needed; `mainstay ctl autopilot status` lists them.";
        autopilot_members_gone: Gauge = "mainstay_autopilot_members_gone", "Members that have not answered this leader for --autopilot-replace-after.";
        observer_feed_depth: Gauge = "mainstay_observer_feed_depth", "Nodes between this observer and a member, the feeding member included; 0 if it is not known, and for members.";
        leader_changes: Counter = "etcd_server_leader_changes_seen_total", "Leader changes seen.";
        learner_promote_successes: Counter = "etcd_server_learner_promote_successes", "Learners promoted while this member led.";
        learner_promote_failures: Labelled<Counter> = "etcd_server_learner_promote_failures" ["Reason"], "Promotions of learners that failed while this member led.";
        heartbeat_send_failures: Counter = "etcd_server_heartbeat_send_failures_total", "Heartbeats the leader sent late, probably because of a slow disk.";
        proposals_committed: Gauge = "etcd_server_proposals_committed_total", "Index of the last committed proposal.";
        proposals_applied: Gauge = "etcd_server_proposals_applied_total", "Index of the last applied proposal.";
        proposals_pending: Gauge = "etcd_server_proposals_pending", "Proposals waiting to be committed.";
        proposals_failed: Counter = "etcd_server_proposals_failed_total", "Proposals that failed.";
        slow_apply: Counter = "etcd_server_slow_apply_total", "Requests applied more slowly than the warning threshold.";
        slow_read_indexes: Counter = "etcd_server_slow_read_indexes_total", "Read indexes not confirmed within the warning threshold.";
        read_indexes_failed: Counter = "etcd_server_read_indexes_failed_total", "Read indexes that could not be confirmed.";
        snapshot_apply_in_progress: Gauge = "etcd_server_snapshot_apply_in_progress_total", "1 while a snapshot from the leader is being applied.";
        quota_backend_bytes: Gauge = "etcd_server_quota_backend_bytes", "Quota of the data, in bytes.";
        auth_revision: Gauge = "etcd_debugging_auth_revision", "The revision of users and roles.";
        id: Labelled<Gauge> = "etcd_server_id" ["server_id"], "1 for the id of this member, in hexadecimal.";
        version: Labelled<Gauge> = "etcd_server_version" ["server_version"], "1 for the version whose API this member serves.";
        go_version: Labelled<Gauge> = "etcd_server_go_version" ["server_go_version"], "1 for the version of the language runtime.";
        cluster_version: Labelled<Gauge> = "etcd_cluster_version" ["cluster_version"], "1 for the version of the cluster.";
        feature_enabled: Labelled<Gauge> = "etcd_server_feature_enabled" ["name", "stage"], "1 if the feature gate is enabled.";
        client_requests: Labelled<Counter> = "etcd_server_client_requests_total" ["type", "client_api_version"], "Requests by the client's API version.";
        apply_duration: Labelled<Histogram> = "etcd_server_apply_duration_seconds" ["version", "op", "success"] exp(0.0001, 2.0, 20), "Time to apply a request.";
        range_duration: Labelled<Histogram> = "etcd_server_range_duration_seconds" ["success"] exp(0.0001, 2.0, 20), "Time to answer a range from the store.";
        request_duration: Labelled<Histogram> = "etcd_server_request_duration_seconds" ["type", "success"] exp(0.001, 2.0, 14), "Time that a request spends in the server.";
        stages: Labelled<Histogram> = "mainstay_request_stage_seconds" ["stage"] exp(0.000001, 2.0, 24), "Time of each stage of puts, deletes, transactions, ranges and other calls, for one call out of mainstay_request_stage_sampling, picked at random.";
        stage_sampling: Gauge = "mainstay_request_stage_sampling", "Number of calls of which one is measured in stages: 64, or 1 with --metrics=extensive.";
        heavy_requests: Labelled<Gauge> = "mainstay_heavy_requests_per_second" ["subject", "name"], "Request rate of the prefixes, users and clients that account for at least a hundredth of the total, over the last minutes, from sampled requests; only with --metrics-heavy-hitters, and prefixes and users only while authentication is off.";
        heavy_bytes: Labelled<Gauge> = "mainstay_heavy_bytes_per_second" ["subject", "name"], "Bytes per second of requests and answers, for the prefixes, users and clients that account for the most, like mainstay_heavy_requests_per_second.";
        heavy_time: Labelled<Gauge> = "mainstay_heavy_milliseconds_per_second" ["subject", "name"], "Milliseconds per second that requests are in progress, for the prefixes, users and clients that account for the most, like mainstay_heavy_requests_per_second; 1000 means one request in progress all the time.";
        alarms: Labelled<Gauge> = "etcd_debugging_server_alarms" ["server_id", "alarm_type"], "1 for each raised alarm.";
        watch_send_stream: Histogram = "etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds" exp(0.001, 2.0, 14), "Time to send one response with events to a watch stream.";
        watch_send_event: Histogram = "etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds" exp(0.001, 2.0, 14), "Time to send one response with events to a watch stream, divided by the number of its events.";
        watch_send_control: Histogram = "etcd_debugging_server_watch_send_loop_control_stream_duration_seconds" exp(0.001, 2.0, 14), "Time to send a response without events to a watch stream.";
        watch_send_progress: Histogram = "etcd_debugging_server_watch_send_loop_progress_duration_seconds" exp(0.001, 2.0, 14), "Time to send progress notifications to a watch stream.";
    }
}

group! {
    /// Metrics of health checks over HTTP.
    HealthMetrics {
        successes: Counter = "etcd_server_health_success", "Successful answers of /health.";
        failures: Counter = "etcd_server_health_failures", "Failed answers of /health.";
        healthcheck: Labelled<Gauge> = "etcd_server_healthcheck" ["type", "name"], "Outcome of the last check of /livez or /readyz: 1 success, 0 failure.";
        healthchecks: Labelled<Counter> = "etcd_server_healthchecks_total" ["type", "name", "status"], "Checks of /livez and /readyz by outcome.";
    }
}

group! {
    /// Metrics of the multi-version store and its watches.
    MvccMetrics {
        db_total_size: Gauge = "etcd_mvcc_db_total_size_in_bytes", "Size of the data on disk, in bytes.";
        db_total_size_in_use: Gauge = "etcd_mvcc_db_total_size_in_use_in_bytes", "Bytes of etcd_mvcc_db_total_size_in_bytes that hold live data.";
        db_open_read_transactions: Gauge = "etcd_mvcc_db_open_read_transactions", "Open read views.";
        ranges: Counter = "etcd_mvcc_range_total", "Ranges.";
        puts: Counter = "etcd_mvcc_put_total", "Puts.";
        deletes: Counter = "etcd_mvcc_delete_total", "Deletes.";
        txns: Counter = "etcd_mvcc_txn_total", "Transactions.";
        hash_duration: Histogram = "etcd_mvcc_hash_duration_seconds" exp(0.01, 2.0, 15), "Time to hash the store.";
        hash_rev_duration: Histogram = "etcd_mvcc_hash_rev_duration_seconds" exp(0.01, 2.0, 15), "Time to hash the store up to a revision.";
        keys: Gauge = "etcd_debugging_mvcc_keys_total", "Keys.";
        current_revision: Gauge = "etcd_debugging_mvcc_current_revision", "The store's revision.";
        compact_revision: Gauge = "etcd_debugging_mvcc_compact_revision", "The revision of the last compaction.";
        total_put_size: Gauge = "etcd_debugging_mvcc_total_put_size_in_bytes", "Bytes of keys and values put.";
        events: Counter = "etcd_debugging_mvcc_events_total", "Events sent to watchers.";
        pending_events: Gauge = "etcd_debugging_mvcc_pending_events_total", "Events waiting to be sent.";
        slow_watchers: Gauge = "etcd_debugging_mvcc_slow_watcher_total", "Watchers that read history because they fell behind.";
        watchers: Gauge = "etcd_debugging_mvcc_watcher_total", "Watchers.";
        watch_streams: Gauge = "etcd_debugging_mvcc_watch_stream_total", "Watch streams.";
        db_compaction_pause: Histogram = "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds" exp(1.0, 2.0, 13), "Time that one step of a compaction delays writes.";
        db_compaction_total: Histogram = "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds" exp(100.0, 2.0, 14), "Time of a compaction.";
        db_compaction_keys: Counter = "etcd_debugging_mvcc_db_compaction_keys_total", "Revisions removed by compactions.";
        db_compaction_last: Gauge = "etcd_debugging_mvcc_db_compaction_last", "End of the last compaction, in seconds since 1970.";
        index_compaction_pause: Histogram = "etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds" exp(0.5, 2.0, 14), "Time that the compaction of the index delays writes.";
    }
}

group! {
    /// Metrics of long reads at an old revision, such as large ranges, snapshots, hashes and checkpoints.
    /// etcd has no such metrics.
    LongReadMetrics {
        open: Gauge = "mainstay_long_reads", "Large ranges, snapshots, hashes, checkpoints and watches that fell behind; the revisions that they read are not removed.";
        oldest: Gauge = "mainstay_long_reads_oldest_seconds", "Age of the oldest read counted by mainstay_long_reads.";
        overtaken: Counter = "mainstay_long_reads_overtaken_total", "Long-running reads that were aborted because they delayed the removal of compacted revisions for too long.";
    }
}

group! {
    /// Metrics of the audit log. etcd has no such metrics.
    AuditMetrics {
        entries: Counter = "mainstay_audit_entries_total", "Entries written to the audit log.";
        dropped: Counter = "mainstay_audit_entries_dropped_total", "Audit log entries dropped because the disk was full or slow.";
        refused_not_shown: Counter = "mainstay_audit_refused_not_shown_total", "Refused calls without a line in the audit log because there were too many.";
    }
}

group! {
    /// Metrics of leases.
    LeaseMetrics {
        granted: Counter = "etcd_debugging_lease_granted_total", "Leases granted.";
        revoked: Counter = "etcd_debugging_lease_revoked_total", "Leases revoked.";
        renewed: Counter = "etcd_debugging_lease_renewed_total", "Lease renewals received by the leader.";
        expired: Counter = "etcd_debugging_server_lease_expired_total", "Leases that expired.";
        ttl: Histogram = "etcd_debugging_lease_ttl_total" exp(1.0, 2.0, 24), "Requested time to live of leases, in seconds.";
    }
}

group! {
    /// Metrics of the write-ahead log and the checkpoints.
    DiskMetrics {
        wal_fsync_duration: Distribution = "etcd_disk_wal_fsync_duration_seconds" exp(0.001, 2.0, 14), "Time to sync the log.";
        shared_sync_duration: Distribution = "mainstay_log_shared_sync_duration_seconds" exp(0.001, 2.0, 14), "Time of those syncs of the log that several entries shared.";
        sync_entries: Distribution = "mainstay_log_sync_entries" exp(1.0, 2.0, 13), "Entries that share a sync of the log; 0 for syncs of a term, a vote or values that were moved.";
        wal_write_duration: Distribution = "etcd_disk_wal_write_duration_seconds" exp(0.001, 2.0, 14), "Duration of writes to the log.";
        wal_write_bytes: Gauge = "etcd_disk_wal_write_bytes_total", "Bytes written to the log.";
        backend_commit_duration: Histogram = "etcd_disk_backend_commit_duration_seconds" exp(0.001, 2.0, 14), "Time to sync one portion of a checkpoint. No request waits for it, because this server has no backend to commit to.";
        snapshot_duration: Histogram = "etcd_disk_backend_snapshot_duration_seconds" exp(0.01, 2.0, 17), "Time to send a snapshot to a client.";
        defrag_duration: Histogram = "etcd_disk_backend_defrag_duration_seconds" exp(0.1, 2.0, 13), "Time to answer a defragmentation request, which does nothing.";
        defrag_inflight: Gauge = "etcd_disk_defrag_inflight", "Always 0, because nothing is defragmented.";
        log_entries: Total = "mainstay_log_entries_total", "Entries written to the log. Divided by the count of etcd_disk_wal_fsync_duration_seconds, this is the number of entries that share a sync.";
        log_prepared_bytes: Gauge = "mainstay_log_prepared_bytes_total", "Bytes written to prepare segments of the log: headers, and zeros ahead of small writes.";
        core_lent: Counter = "mainstay_core_lent_total", "Requests for which the thread that serves the client did the work of the core thread, which stayed asleep.";
        core_lent_to_peers: Counter = "mainstay_core_lent_to_peers_total", "Batches of messages of other members that the receiving thread processed itself, while the core thread stayed asleep.";
        core_lent_to_log: Total = "mainstay_core_lent_to_log_total", "Syncs of a single entry after which the log's thread did the work of the core thread, which stayed asleep.";
        log_segment_waits: Total = "mainstay_log_segment_waits_total", "Writes to the log that waited for a segment to be prepared.";
    }
}

group! {
    /// Metrics of the memory of the index.
    IndexMetrics {
        budget_bytes: Gauge = "mainstay_index_memory_budget_bytes", "Value of --memory-budget; 0 if all of the index is in memory.";
        bytes: Gauge = "mainstay_index_bytes", "Bytes of the part of the index that is in memory in any case: versions, nodes and separators.";
        pinned_bytes: Gauge = "mainstay_index_pinned_bytes", "With --memory-budget: bytes by which that part has grown since the index last adopted a checkpoint in blocks. More than half of the budget makes another one due after the next compaction.";
        block_bytes: Gauge = "mainstay_index_block_bytes", "With --memory-budget: bytes of the blocks of the index that are in memory.";
        block_loads: Total = "mainstay_index_block_loads_total", "Blocks of the index that were read from a checkpoint.";
        block_evictions: Total = "mainstay_index_block_evictions_total", "Blocks of the index that were evicted from memory.";
    }
}

group! {
    /// Metrics of the compression of values.
    ValueCompressionMetrics {
        compressed: Counter = "mainstay_value_compression_compressed_total", "Values that were compressed when they were moved out of old segments of the log.";
        compressed_raw_bytes: Counter = "mainstay_value_compression_compressed_raw_bytes_total", "Bytes of the values that were compressed, before compression.";
        compressed_bytes: Counter = "mainstay_value_compression_compressed_bytes_total", "Bytes of the values that were compressed, after compression.";
        raw: Counter = "mainstay_value_compression_skipped_total", "Values that were moved as they are although values are compressed, because compression saves less than a quarter of them.";
        raw_bytes: Counter = "mainstay_value_compression_skipped_bytes_total", "Bytes of the values that were moved as they are although values are compressed.";
        dictionaries: Gauge = "mainstay_value_compression_dictionaries", "Dictionaries of compressed values.";
    }
}

group! {
    /// Metrics of the traffic with clients and other members.
    NetworkMetrics {
        peer_round_trip_time: Labelled<Distribution> = "etcd_network_peer_round_trip_time_seconds" ["To"] exp(0.0001, 2.0, 16), "Round-trip times to a member.";
        peer_sent_bytes: Labelled<Total> = "etcd_network_peer_sent_bytes_total" ["To"], "Bytes sent to a member.";
        peer_received_bytes: Labelled<Total> = "etcd_network_peer_received_bytes_total" ["From"], "Bytes received from a member.";
        cross_zone_bytes: Labelled<Total> = "mainstay_cross_zone_bytes_total" ["from", "to", "with"], "Bytes between the zone of this node and another zone. With `nodes`: those that this node sends to members and observers. With `clients`: those that it sends to, and receives from, clients in one of the --zone-networks.";
        peer_sent_failures: Labelled<Total> = "etcd_network_peer_sent_failures_total" ["To"], "Messages to a member that were dropped or could not be sent.";
        peer_received_failures: Labelled<Total> = "etcd_network_peer_received_failures_total" ["From"], "Messages from a member that could not be decoded, or were dropped for lack of space.";
        active_peers: Labelled<Gauge> = "etcd_network_active_peers" ["Local", "Remote"], "1 for every other member with a working connection.";
        known_peers: Labelled<Gauge> = "etcd_network_known_peers" ["Local", "Remote"], "1 for every member, this one included.";
        disconnected_peers: Labelled<Total> = "etcd_network_disconnected_peers_total" ["Local", "Remote"], "Lost connections to a member.";
        snapshot_send_success: Labelled<Total> = "etcd_network_snapshot_send_success" ["To"], "Snapshots sent to a member.";
        snapshot_send_failures: Labelled<Total> = "etcd_network_snapshot_send_failures" ["To"], "Snapshots that could not be sent to a member.";
        snapshot_send_inflights: Labelled<Gauge> = "etcd_network_snapshot_send_inflights_total" ["To"], "Snapshots being sent to a member.";
        snapshot_send_duration: Labelled<Distribution> = "etcd_network_snapshot_send_total_duration_seconds" ["To"] exp(0.1, 2.0, 10), "Time to send a snapshot to a member.";
        snapshot_receive_success: Labelled<Total> = "etcd_network_snapshot_receive_success" ["From"], "Snapshots received from a member.";
        snapshot_receive_failures: Labelled<Total> = "etcd_network_snapshot_receive_failures" ["From"], "Snapshots from a member that could not be received.";
        snapshot_receive_inflights: Labelled<Gauge> = "etcd_network_snapshot_receive_inflights_total" ["From"], "Snapshots being received from a member.";
        snapshot_receive_duration: Labelled<Distribution> = "etcd_network_snapshot_receive_total_duration_seconds" ["From"] exp(0.1, 2.0, 10), "Time to receive a snapshot from a member.";
        client_grpc_sent_bytes: Total = "etcd_network_client_grpc_sent_bytes_total", "Bytes sent to gRPC clients.";
        client_grpc_received_bytes: Total = "etcd_network_client_grpc_received_bytes_total", "Bytes received from gRPC clients.";
        connections_shed: Total = "mainstay_client_connections_shed_total", "Client connections closed because all clients together held too much memory.";
        connections_refused: Total = "mainstay_client_connections_refused_total", "Client connections closed on accept because too many were open, in all or from one address, or memory was short.";
        connections_drained: Total = "mainstay_client_connections_drained_total", "Client connections that were told to end because an operator drains connections.";
        expensive_refused: Total = "mainstay_expensive_calls_refused_total", "Calls refused because their client made more expensive calls than --max-expensive-calls.";
        server_stream_failures: Labelled<Counter> = "etcd_network_server_stream_failures_total" ["Type", "API"], "Client streams that failed.";
    }
}

group! {
    /// Metrics of scrapes, with the names that Prometheus' Go client uses.
    ScrapeMetrics {
        requests: Labelled<Counter> = "promhttp_metric_handler_requests_total" ["code"], "Scrapes by the HTTP status of their answer.";
        in_flight: Gauge = "promhttp_metric_handler_requests_in_flight", "Scrapes in progress.";
    }
}

group! {
    /// Metrics of the spans of traced calls. etcd has no such metrics.
    TracingMetrics {
        sent: Counter = "mainstay_tracing_spans_sent_total", "Spans accepted by the collector.";
        dropped: Counter = "mainstay_tracing_spans_dropped_total", "Spans dropped because the collector was slow or unreachable.";
    }
}

group! {
    /// Metrics of the leader's check that the replicated states of all members are equal. etcd has no such
    /// metrics.
    StateHashMetrics {
        compared: Counter = "mainstay_state_hash_compared_total", "Comparisons of another member's state with this member's, while this member was leader.";
        differences: Counter = "mainstay_state_hash_differences_total", "Members found to differ from this one, while this member was leader.";
        index: Gauge = "mainstay_state_hash_index", "Last entry at which all members that answered had the same state.";
    }
}

group! {
    /// Metrics of a shadow, which compares itself with the cluster that it follows. Only a shadow exports them.
    ShadowMetrics {
        revision: Gauge = "mainstay_shadow_revision", "Revision that this shadow has applied.";
        source_revision: Gauge = "mainstay_shadow_source_revision", "Newest revision of the source that this shadow knows of.";
        lag_revisions: Gauge = "mainstay_shadow_lag_revisions", "Revisions of the source that this shadow knows of and has not applied.";
        lag_seconds: Gauge = "mainstay_shadow_lag_seconds", "Time since this shadow last knew that it had applied all revisions of its source; grows while the source does not answer.";
        connected: Gauge = "mainstay_shadow_connected", "1 if this shadow receives the changes of its source; 0 otherwise.";
        events: Counter = "mainstay_shadow_events_total", "Changes of keys that this shadow has applied.";
        snapshots: Total = "mainstay_shadow_snapshots_total", "Snapshots of its source from which this shadow has begun.";
        comparisons: Labelled<Total> = "mainstay_shadow_comparisons_total" ["result"], "Comparisons of HashKV with the source by result: equal, different, or skipped because the two hashes were not comparable.";
        compared_revision: Gauge = "mainstay_shadow_last_comparison_revision", "Revision of the last comparison that was equal or different.";
        compared_at: Gauge = "mainstay_shadow_last_comparison_timestamp_seconds", "Time of the last comparison that was equal or different, in seconds since 1970.";
        different: Gauge = "mainstay_shadow_different", "1 if a comparison has ever been different in the data directory of this shadow; 0 otherwise.";
    }
}

group! {
    /// Metrics of a backup, which ships the log of a cluster to a store. Only a process that makes one exports them.
    BackupMetrics {
        lag_seconds: Gauge = "mainstay_backup_lag_seconds", "Age of the oldest change that this node has applied and that is not in the store yet; grows while the node receives nothing from the cluster.";
        revision: Gauge = "mainstay_backup_revision", "Newest revision in the store.";
        sequence: Gauge = "mainstay_backup_manifest", "Number of the newest manifest in the store.";
        shipped_at: Gauge = "mainstay_backup_last_success_timestamp_seconds", "Time up to which everything is in the store, in seconds since 1970.";
        manifests: Total = "mainstay_backup_manifests_total", "Manifests that this process has written.";
        bytes: Total = "mainstay_backup_bytes_total", "Bytes that this process has written to the store.";
        bases: Total = "mainstay_backup_bases_total", "Whole states that this process has written to the store.";
        failures: Counter = "mainstay_backup_failures_total", "Attempts to write to the store that failed; each is repeated.";
        gaps: Total = "mainstay_backup_gaps_total", "Times that the log had dropped entries before they were in the store, so that the moments between cannot be restored.";
        waiting_bytes: Gauge = "mainstay_backup_waiting_bytes", "Bytes of entries that wait for the store.";
        stands_by: Gauge = "mainstay_backup_stands_by", "1 while another process writes this backup, and this one waits.";
    }
}

group! {
    /// Metrics of TLS. The label `listener` is `client` for the listeners for clients and metrics, and `peer`
    /// for the listener for members. etcd has no such metrics.
    TlsMetrics {
        not_after: Labelled<Gauge> = "mainstay_tls_certificate_not_after_seconds" ["listener", "certificate"], "Expiry of the first certificate in use to expire, in seconds since 1970: of the listeners (server), of those shown to other servers (client), of trusted authorities (authority).";
        generation: Labelled<Gauge> = "mainstay_tls_generation" ["listener"], "Times that TLS files were loaded, including at the start.";
        reload_failures: Labelled<Counter> = "mainstay_tls_reload_failures_total" ["listener"], "Times that changed TLS files could not be used; each is logged.";
        reload_failing: Labelled<Gauge> = "mainstay_tls_reload_failing" ["listener"], "1 while the TLS files on disk cannot be used and those loaded before stay in use.";
        handshakes: Labelled<Counter> = "mainstay_tls_handshakes_total" ["kind"], "Completed TLS handshakes of clients: full, or resumed with a session ticket.";
        tickets_shared: Gauge = "mainstay_tls_tickets_shared", "1 if clients resume TLS sessions of other members at this member: it leads, or has the leader's secrets.";
        rejected: Labelled<Counter> = "mainstay_tls_rejected_connections_total" ["listener"], "Connections refused by TLS, or closed because TLS would no longer accept them; connections between members are counted only when refused.";
    }
}
