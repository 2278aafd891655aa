//! From a configuration and a data directory to a running member.

use std::collections::{BTreeSet, VecDeque};
use std::net::{TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::raftpb;
use consensus::{Entry, EntryKind, HardState, Node, Restored};
use disk::{Disk, Lock, RealDisk};
use front::Front;
use log::Reset;
use log::checkpoint::{CheckpointStore, Manifest};
use log::{Batch, Log, LogEvent, Recovered, Replayed};
use machine::{Machine, Rules};
use peer::Peers;
use prost::Message as _;

use crate::catch_up::{self, FETCHES_MAX, entry_of};
use crate::compaction_hash;
use crate::config::{Config, MetricsDetail, Url};
use crate::core::{Ask, Core, Order, Parts};
use crate::evidence::Evidence;
use crate::http::MetricsListener;
use crate::inbox::Inbox;
use crate::joining::{self, Beginning};
use crate::keeper::{Keeper, Level};
use crate::logging::{Logger, Value};
use crate::metrics::{GrpcMethod, MethodType, Metrics};
use crate::monitor::Monitor;
use crate::peering::Peering;
use crate::services::Services;
use crate::shared::{Identity, Limits, Published, Shared};
use crate::terms;
use crate::transfer::Receiver;

/// How long the first start waits for its own first entry.
const BOOT_PATIENCE: Duration = Duration::from_secs(60);
/// How long calls in flight may go on when the member stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How often a start that waits for the cluster looks whether it is to stop.
const READY_LOOK: Duration = Duration::from_millis(200);
/// Orders that may wait for the keeper of checkpoints.
const ORDERS_MAX: usize = 4;

/// A running member.
pub struct Running {
    shared: Arc<Shared>,
    fronts: Vec<Front>,
    core: JoinHandle<Result<(), String>>,
    keeper: JoinHandle<()>,
    hasher: JoinHandle<()>,
    monitor: Monitor,
    peers: Arc<Peers>,
    /// Says that the core has ended.
    ended: mpsc::Receiver<()>,
    evidence: Evidence,
    _lock: Lock,
}

/// Where a member listens, once it does.
pub struct Listening {
    /// Addresses for clients, as URLs.
    pub clients: Vec<String>,
    /// Addresses for members, as URLs.
    pub peers: Vec<String>,
}

/// Starts a member; returns once it serves clients. That needs a quorum of its cluster, so `stop_wanted` is asked now
/// and then whether to go on waiting.
///
/// # Errors
///
/// The text says what is wrong with which file, address or option, and what to do.
pub fn start(
    config: Config,
    logger: Arc<Logger>,
    stop_wanted: &dyn Fn() -> bool,
) -> Result<(Running, Listening), String> {
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
    disk.create_dir_all(&member_dir).map_err(|error| refused("create", &member_dir, error))?;
    let lock_path = member_dir.join("lock");
    let lock = disk.lock(&lock_path).map_err(|e| {
        if e.kind() == std::io::ErrorKind::WouldBlock {
            format!("{} is locked: another process serves this data directory", lock_path.display())
        } else {
            refused("lock", &lock_path, e)
        }
    })?;

    let began = Instant::now();
    let inbox = Arc::new(Inbox::default());
    let opened = open(&config, &disk, &member_dir, &inbox, &logger)?;
    for repair in &opened.recovered.repairs {
        logger.warn(
            "repaired the end of the log: cut off what an interrupted write left",
            &[
                ("file", Value::Str(&repair.file.display().to_string())),
                ("offset", Value::Uint(repair.offset)),
                ("found", Value::Str(repair.found)),
            ],
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
    let listeners = (clients, peers, metrics_listeners);
    serve(config, logger, opened, inbox, listeners, lock, listening, stop_wanted)
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
    terms: Vec<(u64, u64)>,
    /// Members that are there already, as far as this member does not know them from its own log.
    remotes: Vec<(u64, Vec<String>)>,
    evidence: Evidence,
}

/// What the operating system refuses, and what to do about it.
fn refused(doing: &'static str, path: &Path, error: std::io::Error) -> String {
    log::OpenError::Io { doing, path: path.to_path_buf(), error }.to_string()
}

fn refuse_foreign(disk: &dyn Disk, member_dir: &Path) -> Result<(), String> {
    for theirs in ["wal", "snap"] {
        let path = member_dir.join(theirs);
        if disk.exists(&path).map_err(|error| refused("look for", &path, error))? {
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
    inbox: &Arc<Inbox<Ask>>,
    logger: &Logger,
) -> Result<Opened, String> {
    let text = |e: log::OpenError| e.to_string();
    let log_dir = member_dir.join("log");
    let checkpoints = CheckpointStore::open(Arc::clone(disk), member_dir.join("checkpoint")).map_err(text)?;
    let (manifest, mut unusable) = match checkpoints.load() {
        Ok(manifest) => (manifest, None),
        Err(error) if error.is_damage() => (None, Some(error.to_string())),
        Err(error) => return Err(error.to_string()),
    };
    let evidence = Evidence::read(disk, member_dir, logger).map_err(text)?;
    let known = Log::identify(&**disk, &log_dir).map_err(text)?;
    let (identity, beginning) = match known {
        Some((cluster_id, member_id)) => (Identity { member_id, cluster_id }, None),
        None if manifest.is_some() || evidence.known.is_some() => {
            return Err(format!(
                "{} is missing or empty, but was there before; {}",
                log_dir.display(),
                log::REMEDY
            ));
        }
        None => {
            let beginning = joining::begin(config, logger)?;
            (beginning.identity.clone(), Some(beginning))
        }
    };

    evidence.check(&identity).map_err(text)?;
    let rules = rules(config);
    let replay_from = |first: u64| {
        let mut options = log::Options::new(&log_dir, identity.cluster_id, identity.member_id);
        options.unsafe_no_fsync = config.unsafe_no_fsync;
        options.closed_at = evidence.known.and_then(|witness| witness.end);
        replay_log(options, disk, first, Arc::clone(inbox))
    };
    let mut applied = manifest.as_ref().map_or(0, |manifest| manifest.applied_index);
    // The two take about as long as each other, and neither needs the other.
    let (state, replayed) = std::thread::scope(|scope| {
        let log = scope.spawn(|| replay_from(applied + 1));
        let state = restore(rules, &checkpoints, manifest.as_ref(), member_dir, &identity);
        (state, log.join())
    });
    let mut replayed = replayed.map_err(|_| "the thread that opens the log panicked".to_owned())??;
    let mut manifest = manifest;
    let (machine, levels) = match state {
        Ok(state) => state,
        Err(Unrestored::Refused(why)) => return Err(why),
        Err(Unrestored::Damaged(why)) => {
            let repairs = std::mem::take(&mut replayed.recovered.repairs);
            drop(replayed);
            (applied, manifest, unusable) = (0, None, Some(why));
            replayed = replay_from(1)?;
            replayed.recovered.repairs.splice(..0, repairs);
            (Machine::new(rules), Vec::new())
        }
    };
    if manifest.is_none() {
        // A log that holds everything since the first entry needs no checkpoint.
        if let Err(lacking) = replayed.is_whole() {
            let missing = || {
                let path = member_dir.join("checkpoint").join("MANIFEST");
                log::OpenError::Missing { path }.to_string()
            };
            return Err(format!(
                "{} (the log alone is not enough: {lacking})",
                unusable.unwrap_or_else(missing)
            ));
        }
        if let Some(why) = unusable {
            logger.warn(
                "the checkpoint is damaged; the log holds everything since the first entry and is read instead",
                &[("found", Value::Str(&why))],
            );
        }
    }
    let ReplayedLog { mut log, recovered, mut entries, mut locations } = replayed;
    if machine.applied_index != applied {
        return Err(format!(
            "the checkpoint in {} says it goes up to entry {applied}, but it holds entry {}",
            member_dir.display(),
            machine.applied_index
        ));
    }
    // A log without a segment is as good as none: a crash now must not leave a witness of something that never was.
    let lasting = beginning.is_none();
    if lasting {
        evidence.open(&identity).map_err(text)?;
    }
    if machine.members.removed.contains(&identity.member_id) {
        return Err(format!(
            "member {:x} has been permanently removed from the cluster: remove its data directory {}",
            identity.member_id,
            config.data_dir.display()
        ));
    }
    let mut hard_state = HardState {
        term: recovered.hard_state.term.max(machine.applied_term),
        vote: if recovered.hard_state.term < machine.applied_term { 0 } else { recovered.hard_state.vote },
        commit: recovered.hard_state.commit,
    };
    // A snapshot was taken over, and the member stopped before the log could start anew behind it.
    let behind = recovered.last_index < applied
        || entries.first().is_some_and(|entry| entry.term < machine.applied_term);
    if behind && applied > 0 {
        // One that was taken over knows nothing of the entries in this log.
        let terms = terms::read(manifest.as_ref().map_or(&[][..], |manifest| &manifest.metadata), &machine);
        if recovered.last_index < applied
            && terms.first().is_some_and(|(index, _)| *index <= recovered.last_index)
        {
            return Err(format!(
                "{} ends with entry {}, but the checkpoint beside it was made of entries up to {applied}; {}",
                log_dir.display(),
                recovered.last_index,
                log::REMEDY
            ));
        }
        let reset = Reset { index: applied, term: machine.applied_term };
        let batch = Batch { reset: Some(reset), hard_state: Some(saved(hard_state)), ..Batch::default() };
        append_and_wait(&mut log, inbox, batch)?;
        entries.clear();
        locations.clear();
    } else if let Some(last) = entries.last()
        && last.index != recovered.last_index
    {
        return Err(format!(
            "the log says its last entry is {}, but it holds {}",
            recovered.last_index, last.index
        ));
    }

    // Nothing was ever in this log: a first start that was cut short begins again, and a member that joins may not
    // have heard from the others yet.
    let empty = hard_state.term == 0 && machine.applied_index == 0 && entries.is_empty();
    let beginning = match beginning {
        None if empty => Some(joining::begin(config, logger)?),
        beginning => beginning,
    };
    let mut remotes = Vec::new();
    if let Some(beginning) = beginning {
        let Beginning { identity: found, entries: first, remotes: others } = beginning;
        if found != identity {
            return Err(format!(
                "{} was made for member {:x} of cluster {:x}, but by its options this is member {:x} of cluster \
                 {:x}",
                member_dir.display(),
                identity.member_id,
                identity.cluster_id,
                found.member_id,
                found.cluster_id
            ));
        }
        remotes = others;
        if !first.is_empty() {
            hard_state = HardState { term: 1, vote: 0, commit: first.len() as u64 };
            locations = append_entries(&mut log, inbox, &first, hard_state)?;
            entries = first;
            if !lasting {
                evidence.open(&identity).map_err(text)?;
            }
        }
    }
    if config.force_new_cluster {
        let members = members_at_end(&machine, &entries)?;
        let last = entries.last().map_or(applied, |entry| entry.index);
        let own = machine.members.by_id.get(&identity.member_id);
        let urls = &config.initial_advertise_peer_urls;
        let changes = joining::alone(identity.member_id, own, &members, urls, hard_state.term.max(1), last);
        logger.warn(
            "forcing a new cluster of this member alone",
            &[("removed", Value::Uint(changes.len() as u64)), ("last-index", Value::Uint(last))],
        );
        // All that is in the log counts: what was acknowledged is among it, and there is nobody left to ask.
        hard_state.term = hard_state.term.max(1);
        hard_state.commit = last + changes.len() as u64;
        if !changes.is_empty() {
            locations.extend(append_entries(&mut log, inbox, &changes, hard_state)?);
            entries.extend(changes);
        }
    }

    let terms = terms::read(manifest.as_ref().map_or(&[][..], |manifest| &manifest.metadata), &machine);
    let first_index = log.entries().first_index().max(terms.first().map_or(0, |(index, _)| *index) + 1);
    let heartbeat = config.heartbeat_interval.max(Duration::from_millis(1));
    let election_ticks = config.election_timeout.as_millis() / heartbeat.as_millis().max(1);
    let node = Node::new(
        consensus::Config {
            election_ticks: usize::try_from(election_ticks).unwrap_or(10).max(2),
            pre_vote: config.pre_vote,
            id: identity.member_id,
            // Members of one cluster must not time out together.
            seed: identity.member_id,
            ..consensus::Config::default()
        },
        Restored {
            hard_state,
            voters: machine.members.voters(),
            learners: machine.members.learners(),
            applied: machine.applied_index,
            applied_term: machine.applied_term,
            entries,
            first_index: first_index.min(machine.applied_index + 1),
            terms: terms.clone(),
        },
    )
    .map_err(|e| {
        let dir = member_dir.display();
        format!("the log and the checkpoint in {dir} do not go together: {e}; {}", log::REMEDY)
    })?;
    Ok(Opened {
        identity,
        machine,
        node,
        log,
        recovered,
        locations,
        checkpoints,
        levels,
        terms,
        remotes,
        evidence,
    })
}

/// The ids of the members once all entries are applied.
fn members_at_end(machine: &Machine, entries: &[Entry]) -> Result<BTreeSet<u64>, String> {
    let mut ids: BTreeSet<u64> = machine.members.by_id.keys().copied().collect();
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::ConfChange) {
        let change = raftpb::ConfChange::decode(entry.data.clone())
            .map_err(|e| format!("entry {} is no membership change: {e}", entry.index))?;
        let id = change.node_id.unwrap_or(0);
        match raftpb::ConfChangeType::try_from(change.r#type.unwrap_or(0)) {
            Ok(raftpb::ConfChangeType::ConfChangeRemoveNode) => {
                ids.remove(&id);
            }
            Ok(raftpb::ConfChangeType::ConfChangeUpdateNode) | Err(_) => {}
            Ok(_) => {
                ids.insert(id);
            }
        }
    }
    Ok(ids)
}

/// A log that was opened, and what of it the checkpoint does not have.
struct ReplayedLog {
    log: Log,
    recovered: Recovered,
    entries: Vec<Entry>,
    locations: VecDeque<(u64, log::Location)>,
}

impl ReplayedLog {
    /// Whether it holds every entry there ever was; if not, what it lacks.
    fn is_whole(&self) -> Result<(), String> {
        if self.recovered.base.0 > 0 {
            return Err(format!(
                "it begins behind a state that was taken over at entry {}",
                self.recovered.base.0
            ));
        }
        let numbered = self.entries.iter().zip(1..).find(|(entry, index)| entry.index != *index);
        match numbered {
            Some((entry, lacking)) => {
                Err(format!("entry {} follows where {lacking} was expected", entry.index))
            }
            None if self.entries.len() as u64 == self.recovered.last_index => Ok(()),
            None => Err(format!("it lacks entries up to {}", self.recovered.last_index)),
        }
    }
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
            locations.push_back((entry.index, location));
            entries.push(entry_of(entry));
        }
        // An older entry that comes late replaces everything from it on; and a log that starts anew has nothing else.
        Replayed::Entry(..) | Replayed::Reset(_) => {
            entries.clear();
            locations.clear();
        }
        // A hard state is told with the result; values that were moved after the checkpoint are still in their old
        // places as well, and those of a snapshot that was never taken over belong to nobody.
        Replayed::HardState(_) | Replayed::Value(..) => {}
    };
    let on_event = Box::new(move |event: LogEvent| inbox.send(Ask::Log(event)));
    let (log, recovered) =
        Log::open(options, Arc::clone(disk), first, &mut replay, on_event).map_err(|e| e.to_string())?;
    Ok(ReplayedLog { log, recovered, entries, locations })
}

/// Why there is no state from a checkpoint.
enum Unrestored {
    /// Its files are not as they were written.
    Damaged(String),
    /// Anything else.
    Refused(String),
}

impl From<log::OpenError> for Unrestored {
    fn from(error: log::OpenError) -> Self {
        if error.is_damage() {
            Unrestored::Damaged(error.to_string())
        } else {
            Unrestored::Refused(error.to_string())
        }
    }
}

fn restore(
    rules: Rules,
    checkpoints: &CheckpointStore,
    manifest: Option<&Manifest>,
    member_dir: &Path,
    identity: &Identity,
) -> Result<(Machine, Vec<Level>), Unrestored> {
    let Some(manifest) = manifest else { return Ok((Machine::new(rules), Vec::new())) };
    let (mut runs, mut levels) = (Vec::new(), Vec::new());
    for run in &manifest.runs {
        let mut reader = checkpoints.read(run)?;
        // Runs of an older version name nobody.
        if !reader.metadata.is_empty() && reader.metadata != identity.to_bytes() {
            return Err(Unrestored::Refused(format!(
                "{} belongs to another member or cluster, not to member {:x} of cluster {:x}: put this member's \
                 checkpoint directory back; if it is gone, {}",
                member_dir.join("checkpoint").join(&run.name).display(),
                identity.member_id,
                identity.cluster_id,
                log::REMEDY
            )));
        }
        runs.push(std::iter::from_fn(move || reader.next_block().transpose()));
        let level = Level::of(run.clone()).ok_or_else(|| {
            Unrestored::Refused(format!("the checkpoint names a file {:?}, which is none of its", run.name))
        })?;
        levels.push(level);
    }
    let machine = machine::image::restore(rules, runs).map_err(|error| match error {
        machine::image::RestoreError::Read(error) => Unrestored::from(error),
        other => Unrestored::Damaged(format!(
            "cannot restore the checkpoint in {}: {other}; {}",
            member_dir.join("checkpoint").display(),
            log::REMEDY
        )),
    })?;
    Ok((machine, levels))
}

fn saved(state: HardState) -> log::HardState {
    log::HardState { term: state.term, vote: state.vote, commit: state.commit }
}

/// Appends entries before anything runs; where they lie.
fn append_entries(
    log: &mut Log,
    inbox: &Inbox<Ask>,
    entries: &[Entry],
    hard_state: HardState,
) -> Result<VecDeque<(u64, log::Location)>, String> {
    let entries = entries
        .iter()
        .map(|entry| log::Entry {
            term: entry.term,
            index: entry.index,
            entry_type: u8::from(entry.kind == EntryKind::ConfChange),
            data: entry.data.clone(),
        })
        .collect();
    append_and_wait(log, inbox, Batch { entries, hard_state: Some(saved(hard_state)), ..Batch::default() })
}

fn append_and_wait(
    log: &mut Log,
    inbox: &Inbox<Ask>,
    batch: Batch,
) -> Result<VecDeque<(u64, log::Location)>, String> {
    inbox.receive_here();
    let ticket = log.append(batch).map_err(|e| format!("cannot write the first entries: {:?}", e.reason))?;
    let deadline = Instant::now() + BOOT_PATIENCE;
    let (mut told, mut places) = (Vec::new(), VecDeque::new());
    while Instant::now() < deadline {
        inbox.drain(&mut told, Duration::from_secs(1), 1);
        for ask in told.drain(..) {
            match ask {
                Ask::Log(LogEvent::Synced(synced)) => {
                    places.extend(synced.locations);
                    if synced.ticket >= ticket {
                        return Ok(places);
                    }
                }
                Ask::Log(LogEvent::Failed(fatal)) => return Err(fatal.to_string()),
                _ => {}
            }
        }
    }
    Err("the disk did not take the first entries within a minute".to_owned())
}

fn rules(config: &Config) -> Rules {
    let learners_max = usize::try_from(config.max_learners).unwrap_or(usize::MAX);
    Rules { lease_ttl_min: lease_ttl_min(config), learners_max }
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

#[allow(clippy::too_many_arguments, reason = "called once, with what start made")]
fn serve(
    config: Config,
    logger: Arc<Logger>,
    opened: Opened,
    inbox: Arc<Inbox<Ask>>,
    (clients, peers, metrics_listeners): Listeners,
    lock: Lock,
    listening: Listening,
    stop_wanted: &dyn Fn() -> bool,
) -> Result<(Running, Listening), String> {
    let Opened {
        identity,
        mut machine,
        node,
        log,
        recovered,
        locations,
        checkpoints,
        levels,
        terms,
        remotes,
        evidence,
    } = opened;
    // One that has nothing yet has nothing to compare.
    let had_data = recovered.last_index > 0 || machine.applied_index > 0;
    let checks = had_data && config.feature_gates.is_on("InitialCorruptCheck");
    let metrics = Arc::new(Metrics::new(&grpc_methods(), config.metrics));
    metrics.server.set_id(identity.member_id);
    metrics.server.set_features(&config.feature_gates);
    let shards = std::thread::available_parallelism().map_or(1, usize::from);
    let limits = Limits {
        request_bytes_max: usize::try_from(config.max_request_bytes).unwrap_or(usize::MAX),
        txn_ops_max: usize::try_from(config.max_txn_ops).unwrap_or(usize::MAX),
        quota_bytes: config.quota_backend_bytes,
        request_timeout: Duration::from_secs(5) + 2 * config.election_timeout,
        election_timeout: config.election_timeout,
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

    let (fetches, fetch_queue) = sync_channel(FETCHES_MAX);
    let (reader, entries) = (Arc::clone(&shared), log.entries());
    // Ends when the core lets go of its end of the queue.
    spawn("catch-up", move || catch_up::run(&reader, &entries, &fetch_queue))?;

    let receiver = Receiver::new(Arc::clone(&shared), rules(&config));
    let peering = Arc::new(Peering::new(Arc::clone(&shared), Arc::clone(&logger), receiver));
    let peer_logger = Arc::clone(&logger);
    let options = peer::Options {
        local_id: shared.identity.member_id,
        cluster_id: shared.identity.cluster_id,
        peer_urls: config.initial_advertise_peer_urls.iter().map(|url| url.as_str().to_owned()).collect(),
        server_version: api::API_VERSION,
        min_cluster_version: api::MIN_CLUSTER_VERSION,
        read_timeout: config.raft_read_timeout,
        write_timeout: config.raft_write_timeout,
        listeners: peers,
    };
    let peers = Peers::start(
        options,
        peering,
        Arc::new(move |level, line, fields| {
            log_peer(&peer_logger, level, line, fields);
        }),
    )
    .map_err(|e| format!("cannot start the thread that talks to other members: {e}"))?;
    let peers = Arc::new(peers);
    shared.set_peers(Arc::clone(&peers));
    let monitor = Monitor::start(&shared, &logger, &config)?;

    let (ready_sender, ready) = sync_channel(1);
    let (ended_sender, ended) = sync_channel(1);
    let attributes =
        (config.name.clone(), config.advertise_client_urls.iter().map(|u| u.as_str().to_owned()).collect());
    let front_options = front_options(&config, shards, log.segments().len())?;
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
        fetches,
        remotes,
        terms,
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

    loop {
        match ready.recv_timeout(READY_LOOK) {
            Ok(()) => break,
            Err(mpsc::RecvTimeoutError::Timeout) if !stop_wanted() => {}
            Err(mpsc::RecvTimeoutError::Timeout) => {
                shared.core.send(Ask::Stop);
                let _ = core.join();
                return Err("stopped before the cluster had heard of this member".to_owned());
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(match core.join() {
                    Ok(Err(why)) => why,
                    _ => "the core ended before the member was ready".to_owned(),
                });
            }
        }
    }
    if checks && let Err(why) = crate::corruption::check_initially(&shared, &logger) {
        shared.core.send(Ask::Stop);
        let _ = core.join();
        return Err(why);
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
    let side = |e: std::io::Error| format!("cannot start the threads that serve metrics: {e}");
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
    let running =
        Running { shared, fronts, core, keeper, hasher, monitor, peers, ended, evidence, _lock: lock };
    Ok((running, listening))
}

fn log_peer(logger: &Logger, level: peer::Level, line: &str, fields: &[(&str, &str)]) {
    let fields: Vec<(&str, Value<'_>)> =
        fields.iter().map(|(name, value)| (*name, Value::Str(value))).collect();
    match level {
        peer::Level::Debug => logger.debug(line, &fields),
        peer::Level::Info => logger.info(line, &fields),
        peer::Level::Warn => logger.warn(line, &fields),
        peer::Level::Error => logger.error(line, &fields),
    }
}

/// Files that connections must leave for everything else, as in etcd; and for each segment of the log two, for there
/// may be more of them later.
const OTHER_FILES: usize = 150;
/// Fewer connections than this are no service.
const CONNECTIONS_MIN: usize = 16;

fn front_options(config: &Config, shards: usize, segments: usize) -> Result<front::Options, String> {
    let defaults = front::Options::default();
    let reserved = OTHER_FILES + 2 * segments;
    let files = crate::metrics::open_files_max().unwrap_or(usize::MAX);
    let connections_max = files.saturating_sub(reserved).min(defaults.connections_max);
    if connections_max < CONNECTIONS_MIN {
        return Err(format!(
            "the limit on open files, {files}, is too low: this member needs {} at least (ulimit -n, LimitNOFILE)",
            reserved + CONNECTIONS_MIN
        ));
    }
    Ok(front::Options {
        shards,
        connections_max,
        methods: api::METHODS.len(),
        message_bytes_max: usize::try_from(config.max_request_bytes)
            .unwrap_or(usize::MAX)
            .saturating_add(api::limits::GRPC_OVERHEAD_BYTES),
        max_concurrent_streams: config.max_concurrent_streams,
        keepalive_interval: config.grpc_keepalive_interval,
        keepalive_timeout: config.grpc_keepalive_timeout,
        keepalive_min_time: config.grpc_keepalive_min_time,
        ..defaults
    })
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
        self.monitor.stop();
        self.peers.close();
        self.shared.compaction_hashes.stop();
        let _ = self.hasher.join();
        // The core tells the keeper to end.
        let _ = self.keeper.join();
        if outcome.is_ok() {
            // The log is closed: the core had it.
            let end = self.shared.values.log_end();
            self.evidence.close(&self.shared.identity, end).map_err(|e| e.to_string())?;
        }
        outcome
    }
}
