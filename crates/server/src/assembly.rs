//! Builds the parts of a member from the contents of its data directory, before any of them runs.
//!
//! This module starts no thread and opens no socket. `boot` gives each part a thread; `stepped` drives the
//! parts by hand.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, UNIX_EPOCH};

use consensus::{Fetch, Node};
use disk::Disk;
use log::Log;
use log::checkpoint::CheckpointStore;
use machine::Machine;
use numbers::Index;
use planted::Bug;

use crate::options::{core_options, limits};
use crate::peering::Peering;
use clock::Clock;
use config::Config;
use replica::browsers::Browsers;
use replica::core::{Parts, StorageRequest, Thresholds};
use replica::credentials::Credentials;
use replica::expensive::ExpensiveCalls;
use replica::shared::{
    Clients, CoreQueues, Data, Diagnostics, Draining, LogEventQueue, Member, Published, Shared,
};
use replica::transfer;
use storage::Identity;
use storage::catch_up::FETCHES_MAX;
use storage::checkpointer::{Checkpointer, Event, Level, Order, Surface};
use storage::clean_shutdown::CleanShutdown;
use storage::compaction_hash::{self, Job};
use storage::opening::Opened;
use telemetry::logging::{Logger, Value};
use telemetry::metrics::Metrics;

/// Capacity of the queue of orders to the checkpointer.
const ORDERS_MAX: usize = 4;

/// Everything that a member is built from, in addition to its opened data directory.
pub(crate) struct Setting {
    pub config: Config,
    pub disk: Arc<dyn Disk>,
    pub logger: Arc<Logger>,
    pub log_events: Arc<LogEventQueue>,
    pub clock: Clock,
    /// Number of event loops (shards) that serve clients.
    pub shards: usize,
    pub threads: bool,
    pub thresholds: Thresholds,
    pub credentials: Credentials,
    /// Number that differs between runs of the member, even if the clock shows the same time again.
    pub random: u64,
}

/// The parts of a member, and the ends of the queues between them.
pub(crate) struct Assembled {
    pub config: Config,
    pub shared: Arc<Shared>,
    pub core: Parts,
    pub checkpointer: Checkpointer,
    pub orders: Receiver<Order>,
    pub hash_jobs: Receiver<Job>,
    pub entries: log::Entries,
    pub fetches: Receiver<Fetch>,
    pub peering: Arc<Peering>,
    /// Receives one message when the member is ready to serve clients.
    pub ready: Receiver<()>,
    /// True if the data directory held the data of a member.
    pub had_data: bool,
    pub clean_shutdown: CleanShutdown,
    /// Lock on the data directory, held while the member runs.
    pub lock: disk::Lock,
}

/// Builds the parts of a member. The links to the other members must be set in [`Shared::cluster`] before the
/// member runs.
pub(crate) fn assemble(setting: Setting, opened: Opened) -> Assembled {
    let Setting { config, disk, logger, log_events, clock, shards, threads, thresholds, credentials, random } =
        setting;
    let Opened {
        identity,
        mut machine,
        node,
        log,
        recovered,
        locations,
        checkpoints,
        levels,
        cache,
        terms,
        remotes,
        clean_shutdown,
        note: (note, cause),
        lock,
    } = opened;
    let had_data = recovered.last_index > Index(0) || machine.applied_index > Index(0);
    let has_compressed_values = machine.has_compressed_values() || core_options(&config).compresses_values;
    let state = first_state(&mut machine, &node);
    credentials.auth_restored(machine.auth.is_enabled(), machine.auth.revision());
    let seed = id_seed(&clock, random);
    let diagnostics = diagnostics(&config, &identity, clock.now());
    let member = Member {
        identity,
        api_version: config.api_version,
        commit: config::commit(),
        zone: config.zone.clone(),
        observes: config.observer.is_some(),
        autopilot: crate::options::autopilot(&config),
        is_witness: config.is_witness,
        limits: limits(&config),
        began: clock.now(),
        clock,
        threads,
    };
    let shared = Arc::new(Shared::new(
        member,
        clients(&config, credentials),
        state,
        CoreQueues::new(&log_events, shards),
        Data::new(log.values(), threads),
        diagnostics,
        seed,
    ));
    if has_compressed_values {
        shared.data.note_compressed_values();
    }
    let checkpoint_bytes: u64 = levels.iter().map(Level::file_bytes).sum();
    let log_bytes: u64 = log.segments().iter().map(|s| s.used_bytes).sum();
    shared.data.set_disk_bytes(log_bytes + checkpoint_bytes);

    let (orders, order_queue) = sync_channel::<Order>(ORDERS_MAX);
    look_at_dictionaries(&shared, &log, &logger);
    if let Some(cache) = &cache {
        shared.data.set_index_cache(Arc::clone(cache));
    }
    let index_cache = cache.clone();
    let surface =
        Surface { cache, ..surface(&shared, &log, &checkpoints, core_options(&config).compresses_values) };
    let checkpointer = Checkpointer::new(surface, checkpoints, levels, note);
    let (hash_jobs, hash_queue) = sync_channel(compaction_hash::JOBS_MAX);
    let (fetches, fetch_queue) = sync_channel(FETCHES_MAX);
    let entries = log.entries();
    let member_dir = config.storage.data_dir.join("member");
    let receiver = transfer::Receiver::new(
        Arc::clone(&shared),
        storage::rules(config.cluster.max_learners),
        disk,
        &member_dir,
    );
    let peering = Arc::new(Peering::new(Arc::clone(&shared), Arc::clone(&logger), receiver));
    let (ready_sender, ready) = sync_channel(1);
    let attributes = (
        config.name.clone(),
        config.cluster.advertise_client_urls.iter().map(|u| u.as_str().to_owned()).collect(),
    );
    let core = Parts {
        shared: Arc::clone(&shared),
        logger,
        options: core_options(&config),
        node,
        machine,
        log,
        locations,
        orders,
        hash_jobs,
        fetches,
        remotes,
        terms,
        attributes,
        checkpoint_bytes,
        thresholds,
        cause,
        ready: ready_sender,
        index_cache,
    };
    Assembled {
        config,
        shared,
        core,
        checkpointer,
        orders: order_queue,
        hash_jobs: hash_queue,
        entries,
        fetches: fetch_queue,
        peering,
        ready,
        had_data,
        clean_shutdown,
        lock,
    }
}

/// Returns the seed of the ids of commands and leases.
fn id_seed(clock: &Clock, random: u64) -> u64 {
    let millis = clock.wall().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    // The clock alone does not make a unique seed: it may be set back, or it may start at the same time after
    // every boot of the machine.
    if planted::is(Bug::IdsByTheClock) { millis } else { millis ^ random }
}

/// Returns the diagnostics of a member that starts now.
fn diagnostics(config: &Config, identity: &Identity, now: Instant) -> Diagnostics {
    let metrics = Arc::new(Metrics::new(&api::Rpc::ALL, config.observability.metrics));
    metrics.server.set_id(identity.member_id);
    metrics.server.set_features(config.feature_gates.states());
    metrics.set_version(config.api_version);
    Diagnostics {
        heavy_hitters_in_metrics: config.observability.heavy_hitters_in_metrics,
        pprof: config.observability.pprof,
        ..Diagnostics::new(metrics, now)
    }
}

/// Returns the settings for clients, as the options say: credentials, browsers and the gateway.
fn clients(config: &Config, credentials: Credentials) -> Clients {
    let tls = &config.client_tls.settings;
    Clients {
        credentials: Arc::new(credentials),
        show_certificates: tls.client_cert_auth || tls.trusted_ca_file.is_some(),
        browsers: Browsers {
            hosts: config.clients.host_whitelist.clone(),
            origins: config.clients.cors.clone(),
        },
        gateway: config.clients.enable_grpc_gateway,
        expensive: ExpensiveCalls::new(config.limits.max_expensive_calls),
        zones: config.zone_networks.clone(),
        memory: OnceLock::new(),
        shards: OnceLock::new(),
        draining: Draining::default(),
    }
}

/// Returns the state that is published first: the state of the data directory, with no leader known.
fn first_state(machine: &mut Machine, node: &Node) -> Published {
    Published {
        view: machine.store.publish(),
        applied_index: machine.applied_index,
        applied_term: machine.applied_term,
        commit_index: node.status().commit,
        leader: 0,
        reads_local: false,
        alarms: Arc::new(machine.alarms.clone()),
        members: Arc::new(machine.members.clone()),
        auth: Arc::new(machine.auth.clone()),
        in_use_bytes: machine.in_use_bytes(),
        removed_through: machine.store.compact_revision(),
        is_wrong: false,
    }
}

/// Logs which dictionaries of compressed values cannot be used, and counts all of them.
fn look_at_dictionaries(shared: &Shared, log: &Log, logger: &Logger) {
    let values = log.values();
    let dictionaries = values.dictionaries();
    for damage in dictionaries.damaged() {
        logger.error(
            "a dictionary of compressed values cannot be used, so that the values that need it cannot be read; put the file back from a backup, or rebuild the member from the others with `mainstay rebuild`",
            &[
                ("path", Value::Str(&damage.path.display().to_string())),
                ("error", Value::Str(&damage.found)),
            ],
        );
    }
    let count = dictionaries.count() as u64;
    shared.diagnostics.metrics.value_compression.dictionaries.set_u64(count);
}

/// Returns the handles and callbacks through which the checkpointer works with this member.
fn surface(shared: &Arc<Shared>, log: &Log, checkpoints: &CheckpointStore, compresses: bool) -> Surface {
    let (newest, core) = (Arc::clone(shared), Arc::clone(&shared.core.inbox));
    Surface {
        identity: shared.member.identity.clone(),
        values: shared.data.values.clone(),
        segment_bytes: log.segment_bytes(),
        shares_file_system: log.shares_file_system(checkpoints.dir()),
        newest: Box::new(move || Arc::clone(&newest.state.load().view)),
        tell: Box::new(move |event| {
            core.send(match event {
                Event::Checkpointed(result) => StorageRequest::Checkpointed(result),
                Event::Relocate(values, done) => StorageRequest::Relocate(values, done),
                Event::Relocated { is_whole } => StorageRequest::Relocated { is_whole },
            });
        }),
        compresses,
        cache: None,
        metrics: Arc::clone(&shared.diagnostics.metrics),
    }
}
