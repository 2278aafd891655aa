//! Starts a member from a configuration and a data directory: [`start`] opens the directory, builds the
//! parts, starts a thread per part and listens; [`Running::stop`] shuts down cleanly.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{self, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use consensus::Fetch;
use console::Console;
use disk::{Disk, Lock, RealDisk};
use front::Front;
use peer::Peers;

use crate::assembly::{Assembled, Setting, assemble};
use crate::audit;
use crate::credentials::credentials;
use crate::error::{EndError, StartError};
use crate::go_environment::GoEnvironment;
use crate::joining;
pub use crate::listening::Listening;
use crate::listening::{Listeners, SocketFile};
use crate::observing;
use crate::options::{check_options, storage_options};
use crate::own_console;
use crate::peering::Peering;
use crate::ticket_sharing;
use crate::tls::{self as member_tls, MemberTls, Side};
use crate::tracing::{self, Exporting};
use clock::Clock;
use config::Config;
use consistency::monitor::Monitor;
use replica::cluster_version::minor;
use replica::core::{ControlRequest, Core, Fatal, Parts, StorageRequest, Thresholds};
use replica::peer_links::PeerLinks;
use replica::shared::{LogEventQueue, Shared};
use rpc::http::MetricsListener;
use rpc::services::Services;
use stdx::Periodic;
use storage::DataDirError;
use storage::catch_up;
use storage::clean_shutdown::CleanShutdown;
use storage::opening::{self, LogEvents, Opening};
use telemetry::logging::{Logger, Value};

/// Time that calls in flight may still take when the member stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a segment of a witness's log, whose entries have a few dozen bytes: a member's log has segments of up to
/// 64 MiB, three of which are made at once.
const WITNESS_SEGMENT_BYTES: u32 = 2 << 20;
/// Interval at which a start that waits for the cluster checks `stop_wanted`.
const READY_LOOK: Duration = Duration::from_millis(200);

/// A running member.
pub struct Running {
    shared: Arc<Shared>,
    /// Reads entries of the raft log.
    entries: log::Entries,
    exporting: Option<Exporting>,
    fronts: Arc<Fronts>,
    /// The console; empty if the member has none.
    console: Arc<OnceLock<Console>>,
    core: JoinHandle<Result<(), Fatal>>,
    checkpointer: JoinHandle<()>,
    hasher: JoinHandle<()>,
    monitor: Monitor,
    /// The thread that registers an observer with its feeder.
    registrar: Option<Periodic>,
    peers: Arc<Peers>,
    /// Receives a message when the core has ended.
    ended: mpsc::Receiver<()>,
    clean_shutdown: CleanShutdown,
    reloading: Periodic,
    sharing: Option<Periodic>,
    socket_files: Vec<SocketFile>,
    _lock: Lock,
}

/// The threads that serve clients and metrics; empty until these threads are started.
type Fronts = OnceLock<Vec<Front>>;

/// Function that finds the other members for a member without data. Returns the options with the initial
/// cluster filled in.
pub type Discover<'a> = dyn Fn(&Config) -> Result<Config, Box<dyn Error + Send + Sync>> + 'a;

/// Starts a member; returns once it serves clients. A member can serve only when the cluster has a quorum,
/// which may take long. So `stop_wanted` is called periodically, and when it returns true, the start is
/// aborted.
///
/// # Errors
///
/// Returns the reason why the member does not start. If a file, an address or an option is wrong, the message
/// names it, and says what to do.
pub fn start(
    config: Config,
    logger: Arc<Logger>,
    discover: &Discover<'_>,
    stop_wanted: &dyn Fn() -> bool,
) -> Result<(Running, Listening), StartError> {
    let clock = Clock::real();
    let tls = MemberTls::load(&config, &logger, &clock)?;
    let listeners = Listeners::bind(&config, &tls)?;
    let listening = listeners.addresses(&config);

    // Password hashing may use all processors: it yields every few rounds to requests of users that are
    // logged in already.
    let (credentials, key_files) =
        credentials(&config, &logger, processors()).map_err(StartError::Credentials)?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let began = Instant::now();
    let log_events = Arc::new(LogEventQueue::default());
    let events: Arc<dyn LogEvents> = Arc::clone(&log_events) as _;
    let mut random = [0; 8];
    identity::system_entropy()(&mut random);
    let random = u64::from_le_bytes(random);
    let opened = opening::open(&Opening {
        options: &storage_options(&config),
        disk: &disk,
        events: &events,
        logger: &logger,
        threads: true,
        segment_bytes: config.is_witness.then_some(WITNESS_SEGMENT_BYTES),
        seed: None,
        switches: opening::Switches::default(),
        begin: &|| match config.cluster.discovery {
            _ if let Some(observer) = &config.observer => {
                let random = (&*disk, random);
                observing::begin(&config, observer, random, Some(&tls.dialing()), &logger).map_err(Into::into)
            }
            Some(_) => Ok(joining::begin(&discover(&config)?, Some(&tls.dialing()), &logger)?),
            None => joining::begin(&config, Some(&tls.dialing()), &logger).map_err(Into::into),
        },
    })?;
    opened.report(&logger, began.elapsed());
    warn_of_file_systems(
        &logger,
        &*disk,
        [Some(config.storage.data_dir.as_path()), config.storage.wal_dir.as_deref()],
    );
    let shards = processors();
    let thresholds = Thresholds::of(config.raft.snapshot_count, opened.log.segment_bytes());
    let setting = Setting {
        config,
        disk,
        logger,
        log_events,
        clock,
        shards,
        threads: true,
        thresholds,
        credentials,
        random,
    };
    let watching_logger = Arc::clone(&setting.logger);
    let assembled = assemble(setting, opened);
    if let Some(files) = key_files {
        files
            .watch(&assembled.shared.clients.credentials, &watching_logger)
            .map_err(|error| StartError::Thread { what: "the thread that checks the key files", error })?;
    }
    serve(assembled, tls, listeners, listening, stop_wanted)
}

/// Refuses to start if this release is older than the version of the cluster, as etcd does: entries of newer
/// members may be unknown to this release. An operator lowers the cluster's version with a downgrade first.
/// Must be called after all entries are applied that were committed before the start, because a checkpoint
/// may be older than the last change of the cluster's version.
fn check_release(shared: &Shared) -> Result<(), StartError> {
    let members = Arc::clone(&shared.state.load().members);
    let (cluster, own) = (minor(&members.cluster_version), minor(shared.member.api_version));
    if cluster > own {
        let cluster_version = members.cluster_version.clone();
        return Err(StartError::TooOld { cluster_version, own: shared.member.api_version });
    }
    Ok(())
}

/// Returns the number of processors that the process may use.
fn processors() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    GoEnvironment::read().processors_max.map_or(processors, |max| max.min(processors))
}

/// Starts the threads of a member. Returns once it serves clients.
fn serve(
    assembled: Assembled,
    tls: MemberTls,
    Listeners {
        clients,
        peers,
        metrics: metrics_listeners,
        console: console_listeners,
        files: socket_files,
        ..
    }: Listeners,
    listening: Listening,
    stop_wanted: &dyn Fn() -> bool,
) -> Result<(Running, Listening), StartError> {
    let Assembled {
        config,
        shared,
        core: parts,
        checkpointer,
        orders,
        hash_jobs,
        entries,
        fetches,
        peering,
        ready,
        had_data,
        clean_shutdown,
        lock,
    } = assembled;
    let logger = Arc::clone(&parts.logger);
    let audit_log = config.audit_log.clone();
    let console_hosts = config.clients.host_whitelist.clone().unwrap_or_default();
    // A member without data has nothing to compare with the other members, so the check is skipped. A witness never
    // has.
    // An observer has no connections with the members; its feeder's data are compared all the time.
    let checks = had_data
        && config.observer.is_none()
        && !config.is_witness
        && config.feature_gates.is_enabled(&config::feature_gate::INITIAL_CORRUPT_CHECK);
    let checkpointer = spawn("checkpointer", "the checkpointer thread", move || checkpointer.run(&orders))?;
    let hashing = Arc::clone(&shared);
    let hasher =
        spawn("hasher", "the hasher thread", move || hashing.data.compaction_hashes.run(&hash_jobs))?;
    start_catch_up(&shared, entries.clone(), fetches)?;
    let sharing = tls.client_tickets().filter(|_| config.share_tls_tickets);
    sharing.iter().for_each(|tickets| peering.share_tickets(tickets.clone()));
    let peers = start_peers(&shared, &logger, &config, peering, peers, tls.dialing())?;
    let sharing = sharing
        .map(|tickets| ticket_sharing::start(&shared, tickets, &logger))
        .transpose()
        .map_err(|error| StartError::Thread { what: "the thread that shares TLS session tickets", error })?;
    let (fronts, console): (Arc<Fronts>, Arc<OnceLock<Console>>) = Default::default();
    let console_dialing = tls.console_dialing();
    let reloading = start_reloading(&shared, &logger, tls, &peers, (&fronts, &console))?;
    let registrar = match &config.observer {
        Some(observer) => {
            Some(observing::start(&shared, &logger, &config, observer).map_err(|error| {
                StartError::Thread { what: "the thread that registers with feeders", error }
            })?)
        }
        None => None,
    };
    let monitor = Monitor::start(&shared, &logger, &check_options(&config))
        .map_err(|error| StartError::Thread { what: "the monitor thread", error })?;
    let mut front_options = front_options(&config, shared.core.outboxes.len(), parts.log.segments().len())?;
    GoEnvironment::read().log(&logger);
    warn_of_few_connections(&logger, &front_options);
    warn_of_raised_memory(&logger, &config, &front_options);
    shared.data.readers.charge_to(&front_options.budget);
    audit::start(&shared, audit_log, &logger)?;
    let exporting = tracing::start(&shared, config.observability.tracing.clone(), &logger)?;
    front_options.rejected =
        audit::rejections(&shared, member_tls::rejections(&shared.diagnostics.metrics, &logger));
    front_options.handshaken = member_tls::handshakes(&shared.diagnostics.metrics);
    let data_dir = config.storage.data_dir.clone();
    let (core, ended) = start_core(parts)?;
    let core = await_cluster(core, &shared, &ready, stop_wanted, data_dir)?;
    let checked = check_release(&shared).and_then(|()| match checks {
        true => consistency::corruption::check_initially(&shared, &logger).map_err(StartError::InitialCheck),
        false => Ok(()),
    });
    if let Err(error) = checked {
        shared.core.inbox.send(ControlRequest::Stop);
        let _ = core.join();
        return Err(error);
    }
    if shared.clients.memory.set(front_options.budget.clone()).is_err() {
        unreachable!("fronts are started once");
    }
    let started = start_fronts(&shared, &logger, front_options, clients, metrics_listeners)?;
    if fronts.set(started).is_err() {
        unreachable!("fronts are started once");
    }
    if let Some(dialing) = console_dialing.filter(|_| !console_listeners.is_empty()) {
        let started =
            own_console::start(&shared, &logger, console_listeners, &listening, console_hosts, dialing)?;
        if console.set(started).is_err() {
            unreachable!("the console is started once");
        }
    }
    tell_of_service(&logger, &listening);
    let running = Running {
        shared,
        entries,
        exporting,
        fronts,
        console,
        core,
        checkpointer,
        hasher,
        monitor,
        registrar,
        peers,
        ended,
        clean_shutdown,
        reloading,
        sharing,
        socket_files,
        _lock: lock,
    };
    Ok((running, listening))
}

/// Starts the thread that reads old entries for followers. The thread ends when the core drops its end of the
/// queue.
fn start_catch_up(
    shared: &Shared,
    entries: log::Entries,
    fetches: mpsc::Receiver<Fetch>,
) -> Result<(), StartError> {
    let core = Arc::clone(&shared.core.inbox);
    spawn("catch-up", "the catch-up thread", move || {
        catch_up::run(&entries, &fetches, |fetch, fetched| {
            core.send(StorageRequest::Fetched(fetch, fetched))
        });
    })?;
    Ok(())
}

/// Starts the thread that talks to the other members, and sets it as the links of [`Shared::cluster`].
fn start_peers(
    shared: &Shared,
    logger: &Arc<Logger>,
    config: &Config,
    peering: Arc<Peering>,
    listeners: Vec<peer::Listener>,
    tls: tls::ClientTls,
) -> Result<Arc<Peers>, StartError> {
    let peer_logger = Arc::clone(logger);
    let options = peer::Options {
        local_id: shared.member.identity.member_id,
        cluster_id: shared.member.identity.cluster_id,
        peer_urls: config
            .cluster
            .initial_advertise_peer_urls
            .iter()
            .map(|url| url.as_str().to_owned())
            .collect(),
        server_version: shared.member.api_version,
        min_cluster_version: api::MIN_CLUSTER_VERSION,
        read_timeout: config.raft.read_timeout,
        write_timeout: config.raft.write_timeout,
        listeners,
        tls: Some(tls),
        local_address: config.peer_local_address(),
        zone: config.zone.clone(),
    };
    let peers = Peers::start(
        options,
        peering,
        Arc::new(move |level, line, fields| {
            log_peer(&peer_logger, level, line, fields);
        }),
    )
    .map_err(|error| StartError::Thread { what: "the thread that talks to other members", error })?;
    let peers = Arc::new(peers);
    shared.cluster.set_peers(Arc::clone(&peers) as Arc<dyn PeerLinks>);
    Ok(peers)
}

/// Starts the thread that reloads changed TLS files, and logs the TLS settings for clients.
fn start_reloading(
    shared: &Shared,
    logger: &Arc<Logger>,
    tls: MemberTls,
    peers: &Arc<Peers>,
    (fronts, console): (&Arc<Fronts>, &Arc<OnceLock<Console>>),
) -> Result<Periodic, StartError> {
    tls.log_clients(logger);
    let (peers, fronts, console) = (Arc::clone(peers), Arc::clone(fronts), Arc::clone(console));
    let reloaded = Box::new(move |side| match side {
        Side::Peer => peers.tls_reloaded(),
        Side::Client => {
            fronts.get().into_iter().flatten().for_each(Front::tls_reloaded);
            console.get().into_iter().for_each(Console::tls_reloaded);
        }
    });
    let (metrics, logger) = (Arc::clone(&shared.diagnostics.metrics), Arc::clone(logger));
    member_tls::start_reloading(tls, reloaded, shared.member.clock.clone(), metrics, logger)
        .map_err(|error| StartError::Thread { what: "the thread that reloads TLS files", error })
}

/// Number of connections below which a warning is logged.
const CONNECTIONS_ADVISED: usize = 1000;

/// Warns if the limit on open files leaves few connections, and says how to raise it.
fn warn_of_few_connections(logger: &Logger, options: &front::Options) {
    if options.connections_max < CONNECTIONS_ADVISED {
        logger.warn(
            "the limit on open files leaves few connections for clients; raise it (ulimit -n, LimitNOFILE)",
            &[("connections", Value::Uint(options.connections_max as u64))],
        );
    }
}

/// Warns if the file system of the data or of the log cannot reserve space.
fn warn_of_file_systems(logger: &Logger, disk: &dyn Disk, dirs: [Option<&Path>; 2]) {
    for dir in dirs.into_iter().flatten() {
        let Some(file_system) = disk.writes_elsewhere(dir) else { continue };
        logger.warn(
            "this file system never overwrites data in place, so the member cannot reserve space for the time when \
             the disk is full; leave some space free, or keep the data on ext4 or XFS",
            &[("directory", Value::Display(&dir.display())), ("file-system", Value::Str(file_system))],
        );
    }
}

/// Warns if the memory budget for clients is larger than the operator configured.
fn warn_of_raised_memory(logger: &Logger, config: &Config, options: &front::Options) {
    if let Some(told) = config.limits.client_memory_bytes
        && (options.budget.bytes_max() as u64) > told
    {
        logger.warn(
            "--client-memory-bytes is below 32 MiB or below four times --max-request-bytes; it was raised",
            &[("told", Value::Uint(told)), ("bytes", Value::Uint(options.budget.bytes_max() as u64))],
        );
    }
}

/// The thread of the core, and a receiver that gets a message when the core ends.
type CoreThread = (JoinHandle<Result<(), Fatal>>, mpsc::Receiver<()>);

/// Starts the core.
fn start_core(parts: Parts) -> Result<CoreThread, StartError> {
    let (ended_sender, ended) = sync_channel(1);
    let core = spawn("core", "the core thread", move || {
        let outcome = Core::new(parts).run();
        // A failed send does not matter: dropping the sender wakes the receiver too, and a full channel
        // already holds a message.
        let _ = ended_sender.try_send(());
        outcome
    })?;
    Ok((core, ended))
}

/// Waits until the member may serve clients (its first proposal since the start is applied, or it went out of
/// service), or until `stop_wanted` returns true. Returns the handle of the core.
fn await_cluster(
    core: JoinHandle<Result<(), Fatal>>,
    shared: &Shared,
    ready: &mpsc::Receiver<()>,
    stop_wanted: &dyn Fn() -> bool,
    data_dir: PathBuf,
) -> Result<JoinHandle<Result<(), Fatal>>, StartError> {
    loop {
        match ready.recv_timeout(READY_LOOK) {
            Ok(()) => return Ok(core),
            Err(mpsc::RecvTimeoutError::Timeout) if !stop_wanted() => {}
            Err(mpsc::RecvTimeoutError::Timeout) => {
                shared.core.inbox.send(ControlRequest::Stop);
                let _ = core.join();
                return Err(StartError::Stopped);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(match core.join() {
                    Ok(Err(fatal)) => StartError::Core(fatal),
                    // The core ended without an error although it was not told to stop. It does so only if
                    // the log or another member reports that the member was removed.
                    Ok(Ok(())) => {
                        let member_id = shared.member.identity.member_id;
                        StartError::DataDir(DataDirError::Removed { member_id, data_dir })
                    }
                    Err(_) => StartError::CorePanicked,
                });
            }
        }
    }
}

/// Starts the threads that serve clients, and those that serve metrics on separate addresses.
fn start_fronts(
    shared: &Arc<Shared>,
    logger: &Arc<Logger>,
    options: front::Options,
    clients: Vec<front::Listener>,
    metrics_listeners: Vec<front::Listener>,
) -> Result<Vec<Front>, StartError> {
    let counters = rpc::http::FrontCounters::default();
    let (service_shared, service_counters, service_logger) =
        (Arc::clone(shared), counters.clone(), Arc::clone(logger));
    let front = front::start(
        options.clone(),
        clients,
        Arc::new(move |shard| -> Rc<dyn front::Service> {
            Services::start(
                Arc::clone(&service_shared),
                service_counters.clone(),
                Arc::clone(&service_logger),
                shard,
            )
        }),
    )
    .map_err(|error| StartError::Thread { what: "the threads that serve clients", error })?;
    counters.set(front.counters().to_vec());
    // An error would mean that they are set already, which does not happen: this runs once.
    let _ = shared.clients.shards.set(front.counters().to_vec());
    let mut fronts = vec![front];
    if !metrics_listeners.is_empty() {
        let front = MetricsListener::start(shared, &counters, logger, options, metrics_listeners)
            .map_err(|error| StartError::Thread { what: "the threads that serve metrics", error })?;
        fronts.push(front);
    }
    Ok(fronts)
}

/// Logs the addresses on which the member serves.
fn tell_of_service(logger: &Logger, listening: &Listening) {
    let without_scheme = |url: &str| url.split_once("://").map_or(url, |(_, address)| address).to_owned();
    for url in &listening.peers {
        logger.info("serving peer traffic", &[("address", Value::Str(&without_scheme(url)))]);
    }
    for url in &listening.console {
        logger.info("serving the console", &[("url", Value::Str(url))]);
    }
    // The copy of a shadow serves nobody.
    if listening.clients.is_empty() && listening.pages.is_empty() {
        return;
    }
    logger.info("ready to serve client requests", &[]);
    let apart = if listening.pages.is_empty() { "grpc+http" } else { "grpc" };
    let clients = listening.clients.iter().map(|url| (url, apart));
    for (url, traffic) in clients.chain(listening.pages.iter().map(|url| (url, "http"))) {
        let Some((scheme, address)) = url.split_once(':') else { continue };
        let address = address.strip_prefix("//").unwrap_or(address);
        let line = match scheme {
            "https" | "unixs" => "serving client traffic securely",
            _ => "serving client traffic insecurely; this is strongly discouraged!",
        };
        logger.info(line, &[("traffic", Value::Str(traffic)), ("address", Value::Str(address))]);
    }
}

fn log_peer(logger: &Logger, level: peer::Level, line: &str, fields: &[(&str, peer::Field<'_>)]) {
    fn value(field: peer::Field<'_>) -> Value<'_> {
        match field {
            peer::Field::Text(text) => Value::Str(text),
            peer::Field::List(list) => Value::List(list),
        }
    }
    let fields: Vec<(&str, Value<'_>)> = fields.iter().map(|(name, field)| (*name, value(*field))).collect();
    match level {
        peer::Level::Debug => logger.debug(line, &fields),
        peer::Level::Info => logger.info(line, &fields),
        peer::Level::Warn => logger.warn(line, &fields),
        peer::Level::Error => logger.error(line, &fields),
    }
}

/// Open files reserved for everything but connections, as in etcd. For each log segment two more files are
/// reserved, because the number of segments may grow.
const OTHER_FILES: usize = 150;
/// Minimum number of connections that the limit on open files must allow; with fewer, a member does not
/// start.
const CONNECTIONS_MIN: usize = 16;

fn front_options(config: &Config, shards: usize, segments: usize) -> Result<front::Options, StartError> {
    let defaults = front::Options::default();
    let reserved = OTHER_FILES + 2 * segments;
    let files = telemetry::metrics::open_files_max().unwrap_or(usize::MAX);
    let connections_max = files.saturating_sub(reserved).min(defaults.connections_max);
    if connections_max < CONNECTIONS_MIN {
        return Err(StartError::OpenFiles { limit: files, needed: reserved + CONNECTIONS_MIN });
    }
    let message_bytes_max = usize::try_from(config.limits.max_request_bytes)
        .unwrap_or(usize::MAX)
        .saturating_add(api::limits::GRPC_OVERHEAD_BYTES);
    let budget_bytes = client_memory_bytes(config.limits.client_memory_bytes, message_bytes_max);
    Ok(front::Options {
        shards,
        budget: accounting::Budget::new(budget_bytes),
        request_bytes_max: request_bytes_max(defaults.request_bytes_max, budget_bytes, message_bytes_max),
        answer_bytes_max: defaults.answer_bytes_max.min(budget_bytes / 4),
        connections_max,
        connections_per_address_max: connections_per_address_max(config, connections_max),
        methods: api::Rpc::ALL.len(),
        message_bytes_max,
        max_concurrent_streams: config.limits.max_concurrent_streams,
        keepalive_interval: config.clients.keepalive_interval,
        keepalive_timeout: config.clients.keepalive_timeout,
        keepalive_min_time: config.clients.keepalive_min_time,
        zones: config.zone_networks.0.clone(),
        ..defaults
    })
}

/// Returns the bytes that the calls in flight of one connection may hold: the default, or twice the size of
/// the largest message if that is more; in both cases at most half of the budget. The budget is large enough
/// for four of the largest messages.
fn request_bytes_max(default: usize, budget_bytes: usize, message_bytes_max: usize) -> usize {
    default.max(message_bytes_max.saturating_mul(2)).min(budget_bytes / 2)
}

/// Returns the number of connections that one address may have: the configured number, or three quarters of
/// all connections.
fn connections_per_address_max(config: &Config, connections_max: usize) -> usize {
    let told =
        config.limits.max_connections_per_address.map(|max| usize::try_from(max).unwrap_or(usize::MAX));
    told.unwrap_or(connections_max - connections_max / 4)
}

/// Minimum memory budget for all clients together, in bytes; a lower configured budget is raised to it.
const CLIENT_MEMORY_BYTES_MIN: usize = 32 << 20;
/// Number of largest messages that the memory budget for clients must hold.
const MESSAGES_MIN: usize = 4;

/// Returns the memory budget of all clients together, in bytes: as configured, or a quarter of the available
/// memory; in both cases raised to the minimum that [`CLIENT_MEMORY_BYTES_MIN`] and [`MESSAGES_MIN`] set.
fn client_memory_bytes(told: Option<u64>, message_bytes_max: usize) -> usize {
    let bytes = match told {
        Some(bytes) => bytes,
        None => {
            let bytes = crate::memory::available_bytes();
            GoEnvironment::read().memory_bytes_max.map_or(bytes, |max| max.min(bytes)) / 4
        }
    };
    let least = CLIENT_MEMORY_BYTES_MIN.max(message_bytes_max.saturating_mul(MESSAGES_MIN));
    usize::try_from(bytes).unwrap_or(usize::MAX).max(least)
}

/// Starts a thread with this name. `what` names the thread in the error message.
fn spawn<T: Send + 'static>(
    name: &'static str,
    what: &'static str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, StartError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|error| StartError::Thread { what, error })
}

impl Running {
    /// Returns the state and the queues that the threads of the member share, for a process that works with its
    /// member directly.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns a reader of the entries of the raft log. Those up to the published applied index are committed.
    pub fn entries(&self) -> log::Entries {
        self.entries.clone()
    }

    /// Waits until the core has ended by itself, but at most for `patience`. Returns true if it has ended.
    pub fn ended(&self, patience: Duration) -> bool {
        !matches!(self.ended.recv_timeout(patience), Err(std::sync::mpsc::RecvTimeoutError::Timeout))
    }

    /// Shuts down cleanly: refuses new calls, lets calls in flight finish, saves the remaining times of
    /// leases, and syncs the log.
    ///
    /// # Errors
    ///
    /// Returns the reason why the core had already ended by itself, or why the clean shutdown could not be
    /// recorded. In these cases, too, the member's other threads have been stopped, except for the one that
    /// reads old entries for followers, which ends by itself.
    pub fn stop(self) -> Result<(), EndError> {
        self.shared.data.values.wind_down();
        // Dropped first: the reloading thread notifies the fronts, the console and the peers of new files, so
        // it must end before them.
        drop(self.reloading);
        drop(self.sharing);
        // Removed before the listeners close, so that no client finds a socket file on which no process
        // listens.
        drop(self.socket_files);
        // Dropped before the listeners for clients, since the console holds connections to them.
        drop(self.console);
        let fronts = Arc::into_inner(self.fronts).and_then(Fronts::into_inner);
        for front in fronts.expect("only the thread that ended used the fronts") {
            front.shutdown_blocking(STOP_TIMEOUT);
        }
        audit::stop(&self.shared);
        self.exporting.into_iter().for_each(Exporting::stop);
        self.shared.clients.credentials.stop();
        self.shared.core.inbox.send(ControlRequest::Stop);
        let ended = self.core.join();
        if ended.is_err() {
            // A core that panicked did not close its queue, and the checkpointer may wait for an answer
            // there. Closing the queue ends that wait.
            self.shared.core.inbox.close();
        }
        self.monitor.stop();
        drop(self.registrar);
        self.peers.close();
        self.shared.data.compaction_hashes.stop();
        let _ = self.hasher.join();
        // The checkpointer ends, because the core has told it to end or, in a panic, has dropped its end of
        // the queue of orders.
        let _ = self.checkpointer.join();
        let outcome = ended.map_err(|_| EndError::CorePanicked)?;
        if outcome.is_ok() {
            // The end of the log can be recorded now: the core, which owned the log, has ended, so the log is
            // closed and its end is final.
            let end = self.shared.data.values.log_end();
            self.clean_shutdown.close(&self.shared.member.identity, end).map_err(EndError::CleanShutdown)?;
        }
        Ok(outcome?)
    }
}

#[cfg(test)]
mod tests {
    use replica::core::CoreRequest;
    use telemetry::logging::{Format, Level};
    use testkit::TempDir;

    use super::*;

    /// Starts a member that is alone in its cluster, with addresses that the system chooses.
    fn started(data_dir: &Path) -> Running {
        let args: Vec<String> = [
            "--name=alone",
            "--initial-cluster=alone=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--listen-client-urls=http://127.0.0.1:0",
            "--advertise-client-urls=http://127.0.0.1:0",
        ]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("--data-dir={}", data_dir.display())])
        .collect();
        let config = match config::parse(&args, &[]) {
            Ok(config::Invocation::Serve(parsed)) => parsed.config,
            other => panic!("{other:?}"),
        };
        let logger = Arc::new(Logger::to(Level::Error, Format::Json, Vec::new()));
        let (running, _) =
            start(config, logger, &|_| Err("no discovery".into()), &|| false).expect("it starts");
        running
    }

    /// Returns the names of the member's threads that run in this process.
    fn threads() -> Vec<String> {
        let names = ["core", "log", "checkpointer", "catch-up", "hasher", "monitor", "peer"];
        let tasks = std::fs::read_dir("/proc/self/task").expect("there are threads");
        // A thread that ends meanwhile is left out, because its name cannot be read.
        tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .map(|name| name.trim_end().to_owned())
            .filter(|name| names.contains(&name.as_str()))
            .collect()
    }

    #[test]
    fn a_member_whose_core_panicked_stops_its_other_threads_and_starts_again() {
        let dir = TempDir::new("core-panicked");
        let running = started(dir.path());
        let (sender, _receiver) = tokio::sync::oneshot::channel();
        let panics = Box::new(|_| -> CoreRequest { panic!("a bug in the core, which this test plants") });
        running.shared.core.inbox.send(CoreRequest::Outside(sender, panics));
        assert!(running.ended(Duration::from_secs(60)), "the core goes on after a panic");
        assert!(matches!(running.stop(), Err(EndError::CorePanicked)));
        let deadline = Instant::now() + Duration::from_secs(60);
        while let running @ [_, ..] = &threads()[..] {
            assert!(Instant::now() < deadline, "still running: {running:?}");
            std::thread::yield_now();
        }
        started(dir.path()).stop().expect("a clean shutdown");
    }

    #[test]
    fn a_few_of_the_largest_messages_fit_into_the_memory_for_clients() {
        for (told, message, held) in [
            (1, 2 << 20, 32 << 20),
            (1, 20 << 20, 80 << 20),
            (100 << 20, 20 << 20, 100 << 20),
            (100 << 20, usize::MAX, usize::MAX),
        ] {
            assert_eq!(client_memory_bytes(Some(told), message), held);
        }
    }

    #[test]
    fn the_largest_message_fits_into_what_a_connection_may_hold() {
        let default = front::Options::default().request_bytes_max;
        for (message, held) in [(2 << 20, default), (200 << 20, 400 << 20), (1 << 30, 2 << 30)] {
            let budget = client_memory_bytes(Some(1 << 30), message);
            assert_eq!(request_bytes_max(default, budget, message), held);
        }
        assert_eq!(request_bytes_max(default, 32 << 20, 2 << 20), 16 << 20);
    }
}
