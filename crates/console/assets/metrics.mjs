// Prometheus' text format, and what this page takes out of it: one `Sample` a poll, rates and quantiles between two of them.

/** Families that are read; the lines of all others are passed over, which is most of them. */
const WANTED = new Set([
  'etcd_server_id', 'etcd_server_has_leader', 'etcd_server_is_leader', 'etcd_server_is_learner', 'etcd_server_leader_changes_seen_total',
  'etcd_server_heartbeat_send_failures_total', 'etcd_server_proposals_committed_total', 'etcd_server_proposals_applied_total',
  'etcd_server_proposals_pending', 'etcd_server_proposals_failed_total', 'etcd_server_quota_backend_bytes',
  'etcd_server_apply_duration_seconds', 'etcd_server_version', 'etcd_debugging_server_alarms',
  'mainstay_request_stage_seconds', 'mainstay_request_stage_sampling', 'etcd_server_request_duration_seconds',
  'etcd_mvcc_db_total_size_in_bytes', 'etcd_mvcc_db_total_size_in_use_in_bytes', 'etcd_debugging_mvcc_keys_total',
  'etcd_debugging_mvcc_current_revision', 'etcd_debugging_mvcc_compact_revision', 'etcd_debugging_mvcc_events_total',
  'etcd_debugging_mvcc_pending_events_total', 'etcd_debugging_mvcc_slow_watcher_total', 'etcd_debugging_mvcc_watcher_total',
  'etcd_debugging_mvcc_watch_stream_total', 'etcd_debugging_mvcc_db_compaction_last',
  'etcd_debugging_mvcc_db_compaction_total_duration_milliseconds', 'etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds',
  'etcd_debugging_mvcc_db_compaction_keys_total', 'etcd_mvcc_db_open_read_transactions',
  'etcd_disk_wal_fsync_duration_seconds', 'etcd_disk_backend_commit_duration_seconds', 'etcd_disk_wal_write_bytes_total',
  'mainstay_log_entries_total', 'mainstay_log_prepared_bytes_total', 'mainstay_log_segment_waits_total',
  'mainstay_long_reads', 'mainstay_long_reads_oldest_seconds', 'mainstay_long_reads_overtaken_total',
  'etcd_network_peer_round_trip_time_seconds', 'etcd_network_client_grpc_sent_bytes_total',
  'etcd_network_client_grpc_received_bytes_total', 'mainstay_client_connections_shed_total',
  'mainstay_client_connections_refused_total', 'mainstay_expensive_calls_refused_total', 'mainstay_state_hash_differences_total',
  'mainstay_tls_certificate_not_after_seconds', 'mainstay_tls_reload_failing', 'mainstay_audit_entries_dropped_total',
  'grpc_server_msg_received_total', 'process_resident_memory_bytes', 'process_cpu_seconds_total', 'process_open_fds',
  'process_max_fds', 'process_start_time_seconds', 'mainstay_processors', 'go_sched_gomaxprocs_threads', 'os_fd_used', 'os_fd_limit',
  'grpc_server_started_total', 'grpc_server_handled_total', 'grpc_server_msg_sent_total', 'etcd_server_slow_apply_total',
  'etcd_server_slow_read_indexes_total', 'etcd_server_read_indexes_failed_total', 'etcd_network_peer_sent_failures_total',
  'etcd_server_range_duration_seconds', 'etcd_debugging_mvcc_total_put_size_in_bytes', 'etcd_mvcc_put_total',
  'etcd_debugging_lease_granted_total', 'etcd_debugging_lease_revoked_total',
]);

const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

function labels(text) {
  const found = {};
  for (const [, name, value] of text.matchAll(LABEL)) found[name] = value.replace(/\\(.)/g, (_, char) => (char === 'n' ? '\n' : char));
  return found;
}

function number(text) {
  return text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text);
}

/** What one poll of a member told. `at` is in ms of `performance.now()`. */
export class Sample {
  constructor(text, at) {
    this.at = at;
    /** Name of a series' family, or of it with `_bucket` and the like, to its series. */
    this.series = new Map();
    for (const line of text.split('\n')) {
      const end = line.search(/[{ ]/);
      if (end <= 0 || line[0] === '#') continue;
      const name = line.slice(0, end);
      if (!WANTED.has(name) && !WANTED.has(name.replace(/_(bucket|sum|count)$/, ''))) continue;
      const close = line[end] === '{' ? line.lastIndexOf('}') : end - 1;
      const value = number(line.slice(close + 1).trim().split(' ')[0]);
      // A member of etcd lists each method with each code, most of which never occurred.
      if (Number.isNaN(value) || (value === 0 && name === 'grpc_server_handled_total')) continue;
      const list = this.series.get(name) ?? [];
      list.push({ labels: line[end] === '{' ? labels(line.slice(end + 1, close)) : {}, value });
      this.series.set(name, list);
    }
  }

  all(name) {
    return this.series.get(name) ?? [];
  }

  has(name) {
    return this.series.has(name);
  }

  /** The sum of a family's series, those that `wanted` takes; `null` if the member has none. */
  sum(name, wanted = () => true) {
    const found = this.series.get(name);
    if (!found) return null;
    return found.reduce((sum, { labels: each, value }) => (wanted(each) ? sum + value : sum), 0);
  }

  /** The buckets of a histogram, summed over its series: `{ bounds, counts }`, cumulative; `null` if the member has none. */
  buckets(name, wanted = () => true) {
    const found = this.series.get(`${name}_bucket`);
    if (!found) return null;
    const counts = new Map();
    for (const { labels: each, value } of found) {
      if (!wanted(each)) continue;
      const bound = number(each.le);
      counts.set(bound, (counts.get(bound) ?? 0) + value);
    }
    if (counts.size === 0) return null;
    const bounds = [...counts.keys()].sort((a, b) => a - b);
    return { bounds, counts: bounds.map((bound) => counts.get(bound)) };
  }

  /** Values of a label of a family. */
  valuesOf(name, label) {
    return [...new Set(this.all(name).map((each) => each.labels[label]))];
  }
}

/** Change per second between two samples; `null` if one has it not, or the member began again meanwhile. */
export function rateOf(before, after, name, wanted) {
  const [old, now] = [before?.sum(name, wanted) ?? null, after.sum(name, wanted)];
  if (old === null || now === null || now < old) return null;
  const passed = (after.at - before.at) / 1000;
  return passed > 0 ? (now - old) / passed : null;
}

/** What a histogram counted between two samples; `null` if nothing can be said. */
export function bucketsBetween(before, after, name, wanted) {
  const [old, now] = [before?.buckets(name, wanted), after.buckets(name, wanted)];
  if (!now || !old || old.bounds.length !== now.bounds.length) return null;
  const counts = now.counts.map((count, at) => count - old.counts[at]);
  return counts.some((count) => count < 0) ? null : { bounds: now.bounds, counts };
}

/** Two histograms of the same bounds as one. */
export function mergeBuckets(a, b) {
  if (!a || !b || a.bounds.length !== b.bounds.length) return a ?? b;
  return { bounds: a.bounds, counts: a.counts.map((count, at) => count + b.counts[at]) };
}

/** The quantile of a histogram, as Prometheus computes it: linear inside of a bucket. `null` if it counted nothing. */
export function quantile(share, buckets) {
  if (!buckets) return null;
  const { bounds, counts } = buckets;
  const total = counts[counts.length - 1];
  if (!(total > 0)) return null;
  const wanted = share * total;
  const at = counts.findIndex((count) => count >= wanted);
  if (bounds[at] === Infinity) return bounds[at - 1] ?? null;
  const [low, below] = at === 0 ? [0, 0] : [bounds[at - 1], counts[at - 1]];
  const inside = counts[at] - below;
  return inside > 0 ? low + ((bounds[at] - low) * (wanted - below)) / inside : bounds[at];
}
