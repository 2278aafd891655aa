//! From a configuration and a data directory to a running member.

use std::collections::VecDeque;
use std::net::{TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::raftpb;
use consensus::{Entry, EntryKind, HardState, Node, Restored};
use disk::{Disk, Lock, RealDisk};
use front::Front;
use log::checkpoint::{CheckpointStore, Manifest};
use log::{Batch, Log, LogEvent, Recovered, Replayed};
use machine::{Machine, Member, Rules};
use prost::Message as _;

use crate::compaction_hash;
use crate::config::{Bootstrap, Config, InitialClusterState, MetricsDetail, Url};
use crate::core::{Ask, Core, Order, Parts};
use crate::http::MetricsListener;
use crate::inbox::Inbox;
use crate::keeper::{Keeper, Level};
use crate::logging::{Logger, Value};
use crate::metrics::{GrpcMethod, MethodType, Metrics};
use crate::services::Services;
use crate::shared::{Identity, Limits, Published, Shared};

/// How long the first start waits for its own first entry.
const BOOT_PATIENCE: Duration = Duration::from_secs(60);
/// How long calls in flight may go on when the member stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// Orders that may wait for the keeper of checkpoints.
const ORDERS_MAX: usize = 4;

/// A running member.
pub struct Running {
    shared: Arc<Shared>,
    fronts: Vec<Front>,
    core: JoinHandle<Result<(), String>>,
    keeper: JoinHandle<()>,
    hasher: JoinHandle<()>,
    /// Says that the core has ended.
    ended: Receiver<()>,
    _lock: Lock,
}

/// Where a member listens, once it does.
pub struct Listening {
    /// Addresses for clients, as URLs.
    pub clients: Vec<String>,
    /// Addresses for members, as URLs.
    pub peers: Vec<String>,
}

/// Starts a member; returns once it serves clients.
///
/// # Errors
///
/// The text says what is wrong with which file, address or option, and what to do.
pub fn start(config: Config, logger: Arc<Logger>) -> Result<(Running, Listening), String> {
    let clients = listen(&config.listen_client_urls, &config)?;
    let peers = listen(&config.listen_peer_urls, &config)?;
    let metrics_listeners = listen(&config.listen_metrics_urls, &config)?;
    let listening = Listening {
        clients: urls(&config.listen_client_urls, &clients),
        peers: urls(&config.listen_peer_urls, &peers),
    };

    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let member_dir = config.data_dir.join("member");
    refuse_foreign(&*disk, &member_dir)?;
    disk.create_dir_all(&member_dir).map_err(|e| format!("cannot create {}: {e}", member_dir.display()))?;
    let lock_path = member_dir.join("lock");
    let lock = disk.lock(&lock_path).map_err(|e| {
        if e.kind() == std::io::ErrorKind::WouldBlock {
            format!("{} is locked: another process serves this data directory", lock_path.display())
        } else {
            format!("cannot lock {}: {e}", lock_path.display())
        }
    })?;

    let began = Instant::now();
    let inbox = Arc::new(Inbox::default());
    let opened = open(&config, &disk, &member_dir, Arc::clone(&inbox))?;
    for repair in &opened.recovered.repairs {
        logger.warn(
            "cut off what an interrupted write left at the end of the log; nothing of it was acknowledged",
            &[("repair", Value::Str(&format!("{repair:?}")))],
        );
    }
    logger.info(
        "restored the state",
        &[
            ("checkpoint-index", Value::Uint(opened.machine.applied_index)),
            ("last-index", Value::Uint(opened.recovered.last_index)),
            ("revision", Value::Int(opened.machine.store.current_revision())),
            ("took", Value::Duration(began.elapsed())),
        ],
    );
    serve(config, logger, opened, inbox, (clients, peers, metrics_listeners), lock, listening)
}

/// What opening the data directory gave.
struct Opened {
    identity: Identity,
    machine: Machine,
    node: Node,
    log: Log,
    recovered: Recovered,
    locations: VecDeque<(u64, log::Location)>,
    checkpoints: CheckpointStore,
    levels: Vec<Level>,
}

fn refuse_foreign(disk: &dyn Disk, member_dir: &Path) -> Result<(), String> {
    for theirs in ["wal", "snap"] {
        let path = member_dir.join(theirs);
        if disk.exists(&path).map_err(|e| format!("cannot look for {}: {e}", path.display()))? {
            return Err(format!(
                "{} was written by etcd, whose files this version does not read: use an empty data directory \
                 (--data-dir), and copy the keys over with etcdctl make-mirror",
                path.display()
            ));
        }
    }
    Ok(())
}

fn open(
    config: &Config,
    disk: &Arc<dyn Disk>,
    member_dir: &Path,
    inbox: Arc<Inbox<Ask>>,
) -> Result<Opened, String> {
    let text = |e: log::OpenError| e.to_string();
    let log_dir = member_dir.join("log");
    let checkpoints = CheckpointStore::open(Arc::clone(disk), member_dir.join("checkpoint")).map_err(text)?;
    let manifest = checkpoints.load().map_err(text)?;
    let known = Log::identify(&**disk, &log_dir).map_err(text)?;
    let (identity, bootstrap) = match known {
        Some((cluster_id, member_id)) => (Identity { member_id, cluster_id }, None),
        None if manifest.is_some() => {
            return Err(format!(
                "{} is missing or empty, but there is a checkpoint beside it: the log holds the values; restore \
                 the directory, or start with an empty data directory",
                log_dir.display()
            ));
        }
        None => {
            let bootstrap = first_start(config)?;
            let identity = Identity { member_id: bootstrap.local_id, cluster_id: bootstrap.cluster_id };
            (identity, Some(bootstrap))
        }
    };

    let rules = Rules { lease_ttl_min: lease_ttl_min(config) };
    let applied = manifest.as_ref().map_or(0, |manifest| manifest.applied_index);
    // The two take about as long as each other, and neither needs the other.
    let (state, replayed) = std::thread::scope(|scope| {
        let log = scope.spawn(|| {
            let mut options = log::Options::new(&log_dir, identity.cluster_id, identity.member_id);
            options.unsafe_no_fsync = config.unsafe_no_fsync;
            replay_log(options, disk, applied + 1, Arc::clone(&inbox))
        });
        let state = restore(rules, &checkpoints, manifest.as_ref(), member_dir);
        (state, log.join())
    });
    let (machine, levels) = state?;
    let replayed = replayed.map_err(|_| "the thread that opens the log panicked".to_owned())??;
    let ReplayedLog { mut log, recovered, mut entries, mut locations } = replayed;
    if machine.applied_index != applied {
        return Err(format!(
            "the checkpoint in {} says it goes up to entry {applied}, but it holds entry {}",
            member_dir.display(),
            machine.applied_index
        ));
    }
    if let Some(last) = entries.last()
        && last.index != recovered.last_index
    {
        return Err(format!(
            "the log says its last entry is {}, but it holds {}",
            recovered.last_index, last.index
        ));
    }

    let mut hard_state = HardState {
        term: recovered.hard_state.term,
        vote: recovered.hard_state.vote,
        commit: recovered.hard_state.commit,
    };
    // A first start that was cut short begins again: all it can have written is its own first entry.
    let cut_short = bootstrap.is_none() && hard_state.term == 0 && machine.applied_index == 0;
    let bootstrap = if cut_short { Some(first_start(config)?) } else { bootstrap };
    if let Some(bootstrap) = bootstrap {
        let entry = first_entry(&bootstrap);
        hard_state = HardState { term: 1, vote: 0, commit: 1 };
        let location = append_and_wait(&mut log, &inbox, &entry, hard_state)?;
        entries = vec![entry];
        locations = VecDeque::from([(1, location)]);
    }

    let heartbeat = config.heartbeat_interval.max(Duration::from_millis(1));
    let election_ticks = config.election_timeout.as_millis() / heartbeat.as_millis().max(1);
    let node = Node::new(
        consensus::Config {
            id: identity.member_id,
            election_ticks: usize::try_from(election_ticks).unwrap_or(10).max(2),
            heartbeat_ticks: 1,
            pre_vote: config.pre_vote,
            seed: identity.member_id,
        },
        Restored {
            hard_state,
            voters: machine.members.voters(),
            learners: machine.members.learners(),
            applied: machine.applied_index,
            applied_term: machine.applied_term,
            entries,
        },
    )
    .map_err(|e| format!("the log and the checkpoint in {} do not go together: {e}", member_dir.display()))?;
    Ok(Opened { identity, machine, node, log, recovered, locations, checkpoints, levels })
}

/// A log that was opened, and what of it the checkpoint does not have.
struct ReplayedLog {
    log: Log,
    recovered: Recovered,
    entries: Vec<Entry>,
    locations: VecDeque<(u64, log::Location)>,
}

fn replay_log(
    options: log::Options,
    disk: &Arc<dyn Disk>,
    first: u64,
    inbox: Arc<Inbox<Ask>>,
) -> Result<ReplayedLog, String> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut locations: VecDeque<(u64, log::Location)> = VecDeque::new();
    let mut replay = |replayed: Replayed| match replayed {
        Replayed::Entry(entry, location) if entry.index >= first => {
            let keep = usize::try_from(entry.index - first).unwrap_or(usize::MAX);
            entries.truncate(keep);
            locations.truncate(keep);
            let kind = if entry.entry_type == 0 { EntryKind::Normal } else { EntryKind::ConfChange };
            locations.push_back((entry.index, location));
            entries.push(Entry { term: entry.term, index: entry.index, kind, data: entry.data });
        }
        // An older entry that comes late replaces everything from it on.
        Replayed::Entry(..) => {
            entries.clear();
            locations.clear();
        }
        // A hard state is told with the result; a reset comes with clusters; values that were moved after the
        // checkpoint are still in their old places as well.
        Replayed::HardState(_) | Replayed::Reset(_) | Replayed::Value(..) => {}
    };
    let on_event = Box::new(move |event: LogEvent| inbox.send(Ask::Log(event)));
    let (log, recovered) =
        Log::open(options, Arc::clone(disk), first, &mut replay, on_event).map_err(|e| e.to_string())?;
    Ok(ReplayedLog { log, recovered, entries, locations })
}

fn restore(
    rules: Rules,
    checkpoints: &CheckpointStore,
    manifest: Option<&Manifest>,
    member_dir: &Path,
) -> Result<(Machine, Vec<Level>), String> {
    let Some(manifest) = manifest else { return Ok((Machine::new(rules), Vec::new())) };
    let (mut runs, mut levels) = (Vec::new(), Vec::new());
    for run in &manifest.runs {
        let mut reader = checkpoints.read(run).map_err(|e| e.to_string())?;
        runs.push(std::iter::from_fn(move || reader.next_block().transpose()));
        let level = Level::of(run.clone())
            .ok_or_else(|| format!("the checkpoint names a file {:?}, which is none of its", run.name))?;
        levels.push(level);
    }
    let machine = machine::image::restore(rules, runs)
        .map_err(|e| format!("cannot restore the checkpoint in {}: {e}", member_dir.display()))?;
    Ok((machine, levels))
}

fn first_start(config: &Config) -> Result<Bootstrap, String> {
    if config.initial_cluster_state == InitialClusterState::Existing {
        return Err(
            "--initial-cluster-state=existing: joining a cluster is not supported by this version".to_owned()
        );
    }
    let bootstrap = config.bootstrap().map_err(|e| e.to_string())?;
    if bootstrap.members.len() != 1 {
        return Err(format!(
            "--initial-cluster names {} members: clusters of several members are not supported by this version",
            bootstrap.members.len()
        ));
    }
    Ok(bootstrap)
}

/// The entry that begins every cluster: a membership change for each initial member, as etcd writes it.
fn first_entry(bootstrap: &Bootstrap) -> Entry {
    let member = &bootstrap.members[0];
    let context = Member {
        id: member.id,
        peer_urls: member.peer_urls.iter().map(|url| url.as_str().to_owned()).collect(),
        name: member.name.clone(),
        ..Member::default()
    };
    let change = raftpb::ConfChange {
        id: None,
        r#type: Some(raftpb::ConfChangeType::ConfChangeAddNode as i32),
        node_id: Some(member.id),
        context: Some(context.to_json().into()),
    };
    Entry { term: 1, index: 1, kind: EntryKind::ConfChange, data: change.encode_to_vec().into() }
}

fn append_and_wait(
    log: &mut Log,
    inbox: &Inbox<Ask>,
    entry: &Entry,
    hard_state: HardState,
) -> Result<log::Location, String> {
    inbox.receive_here();
    let batch = Batch {
        entries: vec![log::Entry { term: 1, index: 1, entry_type: 1, data: entry.data.clone() }],
        hard_state: Some(log::HardState {
            term: hard_state.term,
            vote: hard_state.vote,
            commit: hard_state.commit,
        }),
        ..Batch::default()
    };
    let ticket = log.append(batch).map_err(|e| format!("cannot write the first entry: {:?}", e.reason))?;
    let deadline = Instant::now() + BOOT_PATIENCE;
    let mut told = Vec::new();
    while Instant::now() < deadline {
        inbox.drain(&mut told, Duration::from_secs(1), 1);
        for ask in told.drain(..) {
            match ask {
                Ask::Log(LogEvent::Synced(synced)) if synced.ticket >= ticket => {
                    let location = synced.locations.iter().find(|(index, _)| *index == 1);
                    return location
                        .map(|(_, l)| *l)
                        .ok_or_else(|| "the first entry has no place".to_owned());
                }
                Ask::Log(LogEvent::Failed(fatal)) => return Err(fatal.to_string()),
                _ => {}
            }
        }
    }
    Err("the disk did not take the first entry within a minute".to_owned())
}

/// etcd's shortest TTL: one and a half election timeouts, in whole seconds.
fn lease_ttl_min(config: &Config) -> i64 {
    let ms = config.election_timeout.as_millis() * 3 / 2;
    i64::try_from(ms.div_ceil(1000)).unwrap_or(i64::MAX)
}

fn resolve(url: &Url) -> Result<std::net::SocketAddr, String> {
    (url.host(), url.port())
        .to_socket_addrs()
        .map_err(|e| format!("cannot resolve {}: {e}", url.as_str()))?
        // "localhost" first means IPv4 to most clients.
        .min_by_key(|address| address.is_ipv6())
        .ok_or_else(|| format!("{} has no address", url.as_str()))
}

fn listen(listen_urls: &[Url], config: &Config) -> Result<Vec<TcpListener>, String> {
    let bind = |url: &Url| -> Result<TcpListener, String> {
        let address = resolve(url)?;
        let failed = |e: std::io::Error| format!("cannot listen on {}: {e}", url.as_str());
        let domain = if address.is_ipv6() { socket2::Domain::IPV6 } else { socket2::Domain::IPV4 };
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))
            .map_err(failed)?;
        // As Go does for every listener; the flag only says so.
        socket.set_reuse_address(true).map_err(failed)?;
        if config.socket_reuse_port {
            socket.set_reuse_port(true).map_err(failed)?;
        }
        socket.bind(&address.into()).map_err(failed)?;
        socket.listen(4096).map_err(failed)?;
        Ok(socket.into())
    };
    listen_urls.iter().map(bind).collect()
}

/// The URLs with the ports that were really taken: 0 asks for any.
fn urls(asked: &[Url], listeners: &[TcpListener]) -> Vec<String> {
    asked
        .iter()
        .zip(listeners)
        .map(|(url, listener)| match listener.local_addr() {
            Ok(address) if url.port() == 0 => format!("http://{address}"),
            _ => url.as_str().to_owned(),
        })
        .collect()
}

/// The RPCs as metrics know them, in the order of [`api::METHODS`].
pub fn grpc_methods() -> Vec<GrpcMethod> {
    api::METHODS
        .iter()
        .map(|method| GrpcMethod {
            service: method.service,
            method: method.name,
            kind: match method.kind {
                api::Kind::Unary => MethodType::Unary,
                api::Kind::ServerStream => MethodType::ServerStream,
                api::Kind::ClientStream => MethodType::ClientStream,
                api::Kind::BidiStream => MethodType::BidiStream,
            },
        })
        .collect()
}

type Listeners = (Vec<TcpListener>, Vec<TcpListener>, Vec<TcpListener>);

fn serve(
    config: Config,
    logger: Arc<Logger>,
    opened: Opened,
    inbox: Arc<Inbox<Ask>>,
    (clients, peers, metrics_listeners): Listeners,
    lock: Lock,
    listening: Listening,
) -> Result<(Running, Listening), String> {
    let Opened { identity, mut machine, node, log, locations, checkpoints, levels, .. } = opened;
    let metrics = Arc::new(Metrics::new(&grpc_methods(), config.metrics));
    metrics.server.set_id(identity.member_id);
    metrics.server.set_features(&config.feature_gates);
    let shards = std::thread::available_parallelism().map_or(1, usize::from);
    let limits = Limits {
        request_bytes_max: usize::try_from(config.max_request_bytes).unwrap_or(usize::MAX),
        txn_ops_max: usize::try_from(config.max_txn_ops).unwrap_or(usize::MAX),
        quota_bytes: config.quota_backend_bytes,
        request_timeout: Duration::from_secs(5) + 2 * config.election_timeout,
        progress_interval: config.watch_progress_notify_interval,
        slow_request: config.warning_unary_request_duration,
        times_calls: config.metrics == MetricsDetail::Extensive,
    };
    let state = Published {
        view: machine.store.publish(),
        applied_index: machine.applied_index,
        applied_term: machine.applied_term,
        commit_index: node.standing().commit,
        leader: 0,
        reads_local: false,
        alarms: Arc::new(machine.alarms.clone()),
        members: Arc::new(machine.members.clone()),
        in_use_bytes: machine.in_use_bytes(),
        removed_through: machine.store.compact_revision(),
    };
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    let shared = Arc::new(Shared::new(identity, state, limits, shards, inbox, log.values(), metrics, seed));
    let checkpoint_bytes: u64 = levels.iter().map(|level| level.run.file_bytes).sum();
    let log_bytes: u64 = log.segments().iter().map(|s| s.used_bytes).sum();
    shared.set_disk_bytes(log_bytes + checkpoint_bytes);

    let (orders, order_queue) = sync_channel::<Order>(ORDERS_MAX);
    let keeper = Keeper::new(Arc::clone(&shared), checkpoints, levels);
    let keeper = spawn("keeper", move || keeper.run(&order_queue))?;
    let (hash_jobs, hash_queue) = sync_channel(compaction_hash::JOBS_MAX);
    let hashing = Arc::clone(&shared);
    let hasher = spawn("hasher", move || hashing.compaction_hashes.run(&hash_queue))?;

    let (ready_sender, ready) = sync_channel(1);
    let (ended_sender, ended) = sync_channel(1);
    let attributes =
        (config.name.clone(), config.advertise_client_urls.iter().map(|u| u.as_str().to_owned()).collect());
    let front_options = front_options(&config, shards);
    let parts = Parts {
        shared: Arc::clone(&shared),
        logger: Arc::clone(&logger),
        config,
        node,
        machine,
        log,
        locations,
        orders,
        hash_jobs,
        attributes,
        checkpoint_bytes,
        ready: ready_sender,
    };
    let core = spawn("core", move || {
        let outcome = Core::new(parts).run();
        // Whoever waits hears of the end by the sender's drop; a full channel says the same.
        let _ = ended_sender.try_send(());
        outcome
    })?;

    if ready.recv().is_err() {
        return Err(match core.join() {
            Ok(Err(why)) => why,
            _ => "the core ended before the member was ready".to_owned(),
        });
    }
    let counters = crate::http::FrontCounters::default();
    let (service_shared, service_counters, service_logger) =
        (Arc::clone(&shared), counters.clone(), Arc::clone(&logger));
    let front = front::start(
        front_options.clone(),
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
    .map_err(|e| format!("cannot start the threads that serve clients: {e}"))?;
    counters.set(front.counters().to_vec());
    let mut fronts = vec![front];
    let side = |e: std::io::Error| format!("cannot start the threads that serve members and metrics: {e}");
    fronts.push(crate::peer_listener::start(&shared, front_options.clone(), peers).map_err(side)?);
    if !metrics_listeners.is_empty() {
        let front =
            MetricsListener::start(&shared, &counters, front_options, metrics_listeners).map_err(side)?;
        fronts.push(front);
    }
    logger.info("ready to serve client requests", &[]);
    for url in &listening.clients {
        logger.info(
            "serving client traffic insecurely; this is strongly discouraged!",
            &[("address", Value::Str(url.trim_start_matches("http://")))],
        );
    }
    notify_systemd(&logger);
    Ok((Running { shared, fronts, core, keeper, hasher, ended, _lock: lock }, listening))
}

fn front_options(config: &Config, shards: usize) -> front::Options {
    front::Options {
        shards,
        methods: api::METHODS.len(),
        message_bytes_max: usize::try_from(config.max_request_bytes)
            .unwrap_or(usize::MAX)
            .saturating_add(api::limits::GRPC_OVERHEAD_BYTES),
        max_concurrent_streams: config.max_concurrent_streams,
        keepalive_interval: config.grpc_keepalive_interval,
        keepalive_timeout: config.grpc_keepalive_timeout,
        keepalive_min_time: config.grpc_keepalive_min_time,
        ..front::Options::default()
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, String> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|e| format!("cannot start the {name} thread: {e}"))
}

/// Tells systemd that the member is ready, if it asked to be told.
fn notify_systemd(logger: &Logger) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let told = std::os::unix::net::UnixDatagram::unbound()
        .and_then(|socket| socket.send_to(b"READY=1", PathBuf::from(&path)));
    if let Err(error) = told {
        logger.warn("could not notify systemd", &[("error", Value::Str(&error.to_string()))]);
    }
}

impl Running {
    /// Waits until the core has ended by itself, up to `patience`; whether it has.
    pub fn ended(&self, patience: Duration) -> bool {
        !matches!(self.ended.recv_timeout(patience), Err(std::sync::mpsc::RecvTimeoutError::Timeout))
    }

    /// Stops in order: no new calls, those under way finish, leases' times are saved, the log is synced.
    ///
    /// # Errors
    ///
    /// Why the core had ended before, if it had.
    pub fn stop(self) -> Result<(), String> {
        for front in self.fronts {
            front.shutdown_blocking(STOP_PATIENCE);
        }
        self.shared.core.send(Ask::Stop);
        let outcome = self.core.join().map_err(|_| "the core's thread panicked".to_owned())?;
        self.shared.compaction_hashes.stop();
        let _ = self.hasher.join();
        // The core tells the keeper to end.
        let _ = self.keeper.join();
        outcome
    }
}
