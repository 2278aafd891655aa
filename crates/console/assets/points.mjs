// One point of the charts: the figures of a member at one poll, and how the points of several members become one.

import { bucketsBetween, mergeBuckets, quantile, rateOf } from './metrics.mjs';

/** Kinds of requests, and the methods of each. What is in none is `other`. */
export const KINDS = ['put', 'range', 'delete', 'txn', 'watch', 'lease', 'other'];

function kindOf({ grpc_method: method = '' }) {
  if (method === 'Put') return 'put';
  if (method === 'Range' || method === 'RangeStream') return 'range';
  if (method === 'DeleteRange') return 'delete';
  if (method === 'Txn') return 'txn';
  if (method === 'Watch') return 'watch';
  return method.startsWith('Lease') ? 'lease' : 'other';
}

/** Stages in the order in which a request passes them. */
export const STAGES = [
  'front', 'auth', 'queue', 'read_index', 'apply_wait', 'append', 'fsync', 'replicate', 'apply', 'index', 'values', 'encode', 'range',
  'answer',
];

const HISTOGRAMS = {
  fsync: 'etcd_disk_wal_fsync_duration_seconds',
  apply: 'etcd_server_apply_duration_seconds',
  request: 'etcd_server_request_duration_seconds',
  commit: 'etcd_disk_backend_commit_duration_seconds',
  rtt: 'etcd_network_peer_round_trip_time_seconds',
};

/** The point of the newest sample. Rates are since the sample before; quantiles are of a longer `window`, as samples are rare. */
export function pointOf(sample, before, windowStart) {
  const rates = Object.fromEntries(
    KINDS.map((kind) => [kind, rateOf(before, sample, 'grpc_server_msg_received_total', (labels) => kindOf(labels) === kind)]),
  );
  const histograms = Object.fromEntries(
    Object.entries(HISTOGRAMS).map(([name, family]) => [name, bucketsBetween(windowStart, sample, family)]),
  );
  for (const stage of sample.valuesOf('mainstay_request_stage_seconds_bucket', 'stage')) {
    histograms[`stage:${stage}`] = bucketsBetween(windowStart, sample, 'mainstay_request_stage_seconds', (labels) => labels.stage === stage);
  }
  const committed = sample.sum('etcd_server_proposals_committed_total');
  const applied = sample.sum('etcd_server_proposals_applied_total');
  const entries = rateOf(windowStart, sample, 'mainstay_log_entries_total');
  const syncs = rateOf(windowStart, sample, 'etcd_disk_wal_fsync_duration_seconds_count');
  return {
    rates,
    histograms,
    committed,
    applyLag: committed === null || applied === null ? null : Math.max(0, committed - applied),
    entries,
    syncs,
    pendingProposals: sample.sum('etcd_server_proposals_pending'),
    failedProposals: rateOf(before, sample, 'etcd_server_proposals_failed_total'),
    events: rateOf(before, sample, 'etcd_debugging_mvcc_events_total'),
    pendingEvents: sample.sum('etcd_debugging_mvcc_pending_events_total'),
    slowWatchers: sample.sum('etcd_debugging_mvcc_slow_watcher_total'),
    watchers: sample.sum('etcd_debugging_mvcc_watcher_total'),
    memory: sample.sum('process_resident_memory_bytes'),
    cpu: rateOf(before, sample, 'process_cpu_seconds_total'),
    disk: sample.sum('etcd_mvcc_db_total_size_in_bytes'),
    diskInUse: sample.sum('etcd_mvcc_db_total_size_in_use_in_bytes'),
    files: sample.sum('process_open_fds'),
    connections: null,
    leaderChanges: sample.sum('etcd_server_leader_changes_seen_total'),
    sent: rateOf(before, sample, 'etcd_network_client_grpc_sent_bytes_total'),
    received: rateOf(before, sample, 'etcd_network_client_grpc_received_bytes_total'),
  };
}

/** Entries that shared a sync. */
export function batchOf(point) {
  return point.entries === null || !(point.syncs > 0) ? null : point.entries / point.syncs;
}

/** Quantiles that were computed, by point: a chart asks for the same ones every two seconds. */
const quantiles = new WeakMap();

export function quantileOf(point, name, share) {
  const known = quantiles.get(point) ?? new Map();
  quantiles.set(point, known);
  const key = `${name} ${share}`;
  if (!known.has(key)) known.set(key, quantile(share, point.histograms[name] ?? null));
  return known.get(key);
}

function add(a, b) {
  return a === null ? b : b === null ? a : a + b;
}

/** The points of several members at the same time as one: numbers and histograms are summed. `null` if there is none. */
export function sumOf(points) {
  const known = points.filter(Boolean);
  if (known.length < 2) return known[0] ?? null;
  const held = sums.get(known[0]);
  if (held?.of.length === known.length && held.of.every((point, at) => point === known[at])) return held.sum;
  const sum = addUp(known);
  sums.set(known[0], { of: known, sum });
  return sum;
}

/** Sums that were computed, by the first of their points. */
const sums = new WeakMap();

function addUp(points) {
  return points.reduce((sum, point) => {
    const next = {};
    for (const name of Object.keys(point)) {
      if (name === 'rates') next.rates = Object.fromEntries(KINDS.map((kind) => [kind, add(sum.rates[kind], point.rates[kind])]));
      else if (name === 'histograms') {
        const names = new Set([...Object.keys(sum.histograms), ...Object.keys(point.histograms)]);
        next.histograms = Object.fromEntries([...names].map((each) => [each, mergeBuckets(sum.histograms[each], point.histograms[each])]));
      } else next[name] = add(sum[name], point[name]);
    }
    return next;
  });
}
