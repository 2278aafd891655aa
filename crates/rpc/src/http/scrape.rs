//! Answers a scrape: copies metrics that are counted elsewhere, and writes all metrics.

mod peers;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use accounting::ShardCounters;
use api::etcdserverpb::AlarmType;

use replica::autopilot::Mode;
use replica::shared::{Published, Shared};
use telemetry::heavy_hitters::{Measure, Subject};
use telemetry::metrics::{Distribution, MethodTotals, Metrics};

/// Number of entries of each list of heavy hitters that become metrics.
const HEAVY_MAX: usize = 10;

/// Counters of the connections and calls of all shards, set once the fronts run. Clones share the same
/// counters.
#[derive(Clone, Default)]
pub struct FrontCounters(Arc<Mutex<Vec<Arc<ShardCounters>>>>);

impl FrontCounters {
    /// Sets the counters of the shards.
    pub fn set(&self, counters: Vec<Arc<ShardCounters>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }
}

/// Returns all metrics in Prometheus' text format. Names of keys, users and clients are included only if
/// `tells_names` is true and the option for them is set. The methods with which the metrics of `shared` were
/// created must be in the order of the front's method ids.
pub fn scrape(shared: &Shared, counters: &FrontCounters, tells_names: bool) -> String {
    // The lock is held until the metrics are written. Otherwise a concurrent scrape that must not contain
    // names could write the names that this scrape has copied.
    let counters = counters.0.lock().unwrap_or_else(PoisonError::into_inner);
    copy_front(&shared.diagnostics.metrics, &counters);
    copy_zones_of_clients(shared, &counters);
    copy_log(&shared.diagnostics.metrics, shared.data.values.figures());
    copy_index(shared);
    shared.diagnostics.metrics.disk.core_lent_to_log.raise_to(shared.core.lent_to_log.load(Relaxed));
    copy_state(shared, &shared.state.load());
    copy_heavy(shared, tells_names && shared.diagnostics.heavy_hitters_in_metrics);
    shared.diagnostics.metrics.network.expensive_refused.raise_to(shared.clients.expensive.refused());
    if let Some(budget) = shared.clients.memory.get() {
        shared.diagnostics.metrics.network.connections_shed.raise_to(budget.connections_shed());
        shared.diagnostics.metrics.network.connections_refused.raise_to(budget.connections_refused());
    }
    if let Some(peers) = shared.cluster.peers() {
        peers::copy_peers(
            &shared.diagnostics.metrics.network,
            (shared.member.identity.member_id, &shared.member.zone),
            |id| shared.cluster.observers().iter().any(|observer| observer.card.id == id),
            &peers.figures(),
        );
    }
    let scrapes = &shared.diagnostics.metrics.scrapes;
    scrapes.in_flight.set(1);
    let mut text = String::new();
    shared.diagnostics.metrics.render(&mut text);
    scrapes.requests.with(&["200"]).inc();
    text
}

fn copy_front(metrics: &Metrics, shards: &[Arc<ShardCounters>]) {
    for (id, series) in metrics.grpc.methods().iter().enumerate() {
        let mut totals = MethodTotals::default();
        for method in shards.iter().filter_map(|shard| shard.methods.get(id)) {
            // Ended calls are read before started calls, so that a scrape does not show more calls ended than
            // started.
            for (sum, handled) in totals.handled.iter_mut().zip(&method.handled) {
                *sum += handled.load(Relaxed);
            }
            totals.sent += method.messages_sent.load(Relaxed);
            totals.received += method.messages_received.load(Relaxed);
            totals.started += method.started.load(Relaxed);
        }
        series.raise_to(&totals);
    }
    let sum = |of: fn(&ShardCounters) -> u64| shards.iter().map(|shard| of(shard)).sum();
    metrics.network.client_grpc_received_bytes.raise_to(sum(|shard| shard.bytes_received.load(Relaxed)));
    metrics.network.client_grpc_sent_bytes.raise_to(sum(|shard| shard.bytes_sent.load(Relaxed)));
    metrics.network.connections_drained.raise_to(sum(|shard| shard.connections_drained.load(Relaxed)));
}

fn copy_index(shared: &Shared) {
    let (metrics, memory) = (&shared.diagnostics.metrics.index, &shared.diagnostics.memory);
    metrics.bytes.set_u64(memory.index_bytes.load(Relaxed));
    let Some(cache) = shared.data.index_cache() else { return };
    metrics.budget_bytes.set_u64(cache.budget_bytes());
    metrics.pinned_bytes.set_u64(memory.index_pinned_bytes.load(Relaxed));
    metrics.block_bytes.set_u64(cache.resident_bytes());
    metrics.block_loads.raise_to(cache.loads());
    metrics.block_evictions.raise_to(cache.evictions());
}

/// Adds up the bytes of clients in other zones. A member without a zone has none that are other.
fn copy_zones_of_clients(shared: &Shared, shards: &[Arc<ShardCounters>]) {
    let own = shared.member.zone.as_str();
    if own.is_empty() {
        return;
    }
    let to = &shared.diagnostics.metrics.network.cross_zone_bytes;
    for (at, zone) in shared.clients.zones.0.names().iter().enumerate().filter(|(_, zone)| *zone != own) {
        let counted = || shards.iter().filter_map(|shard| shard.zones.get(at));
        let sent = counted().map(|zone| zone.sent.load(Relaxed)).sum();
        let received = counted().map(|zone| zone.received.load(Relaxed)).sum();
        to.with(&[own, zone, "clients"]).raise_to(sent);
        to.with(&[zone, own, "clients"]).raise_to(received);
    }
}

fn copy_log(metrics: &Metrics, figures: &log::Figures) {
    let copy = |to: &Distribution, from: &log::Durations| {
        to.raise_to(&from.buckets(), from.sum().as_secs_f64());
    };
    copy(&metrics.disk.wal_fsync_duration, &figures.fsyncs);
    copy(&metrics.disk.shared_sync_duration, &figures.shared_fsyncs);
    metrics.disk.sync_entries.raise_to(&figures.sync_entries.buckets(), figures.sync_entries.sum() as f64);
    copy(&metrics.disk.wal_write_duration, &figures.writes);
    metrics.disk.wal_write_bytes.set_u64(figures.written_bytes());
    metrics.disk.log_entries.raise_to(figures.entries());
    metrics.disk.log_prepared_bytes.set_u64(figures.prepared_bytes());
    metrics.disk.log_segment_waits.raise_to(figures.waits());
}

/// Copies the heavy hitters into metrics, with lower bounds of their rates. While authentication is enabled,
/// only clients are included, so that a scrape does not show which keys and users exist.
fn copy_heavy(shared: &Shared, tells_names: bool) {
    let server = &shared.diagnostics.metrics.server;
    let has_users = shared.state.load().auth.is_enabled();
    let now = shared.member.clock.now();
    for measure in Measure::ALL {
        let (family, scale) = match measure {
            Measure::Requests => (&server.heavy_requests, 1.0),
            Measure::Bytes => (&server.heavy_bytes, 1.0),
            Measure::Time => (&server.heavy_time, 1e3),
        };
        let subjects = Subject::ALL
            .into_iter()
            .filter(|subject| tells_names && (!has_users || *subject == Subject::Client));
        let series = subjects.flat_map(|subject| {
            let top =
                shared.diagnostics.heavy_hitters.certain(subject, measure, now).into_iter().take(HEAVY_MAX);
            top.map(move |heavy| {
                let labels = vec![subject.name().to_owned(), heavy.name.escape_ascii().to_string()];
                (labels, ((heavy.per_second - heavy.error) * scale).round() as i64)
            })
        });
        family.replace(series.collect());
    }
}

fn copy_state(shared: &Shared, state: &Published) {
    let id = shared.member.identity.member_id;
    let server = &shared.diagnostics.metrics.server;
    server.has_leader.set_bool(state.leader != 0);
    server.is_leader.set_bool(state.leader == id);
    let is_learner = state.members.by_id.get(&id).is_some_and(|member| member.is_learner);
    server.is_learner.set_bool(is_learner || shared.member.observes);
    server.is_witness.set_bool(shared.member.is_witness);
    server.witness_counts.set_bool(shared.cluster.counts_witness());
    let observers = shared.cluster.observers();
    server.observers.set_u64(observers.len() as u64);
    server.observers_inactive.set_u64(observers.iter().filter(|observer| !observer.is_active).count() as u64);
    server
        .observer_lag_entries
        .set_u64(observers.iter().map(|observer| observer.lag_entries).max().unwrap_or_default());
    let autopilot = shared.cluster.autopilot();
    server.autopilot_mode.set_u64(match shared.member.autopilot.mode {
        Mode::Off => 0,
        Mode::DryRun => 1,
        Mode::On => 2,
    });
    server.autopilot_deciding.set_bool(autopilot.decides);
    server.autopilot_advice.set_u64(autopilot.advice.len() as u64);
    server.autopilot_members_gone.set_u64(autopilot.gone);
    server.observer_fed.set_bool(shared.cluster.is_fed());
    server.observer_feed_depth.set_u64(shared.cluster.feed_depth().into());
    server.proposals_committed.set_u64(state.commit_index.0);
    server.proposals_applied.set_u64(state.applied_index.0);
    server.auth_revision.set_u64(state.auth.revision());
    shared.diagnostics.metrics.network.set_members(id, state.members.by_id.keys().copied());
    // As in etcd, the metric is 0 if there is no limit.
    server.quota_backend_bytes.set_u64(shared.member.limits.quota_bytes.unwrap_or(0));
    let raised = state.alarms.list(0, 0);
    server.set_alarms(raised.iter().map(|raised| {
        let known = AlarmType::try_from(raised.alarm).map_or("UNKNOWN", |alarm| alarm.as_str_name());
        (raised.member_id, known)
    }));
    let mut numbers = state.members.cluster_version.split('.');
    if let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) {
        server.set_cluster_version(&format!("{major}.{minor}"));
    }

    let mvcc = &shared.diagnostics.metrics.mvcc;
    let snapshot = state.view.snapshot();
    mvcc.current_revision.set(snapshot.current_revision().0);
    mvcc.compact_revision.set(snapshot.compact_revision().0);
    mvcc.keys.set_u64(snapshot.live_keys());
    mvcc.db_total_size.set_u64(shared.data.db_size(state.in_use_bytes));
    mvcc.db_total_size_in_use.set_u64(state.in_use_bytes);
}
