//! Opens a data directory: [`open`] loads the checkpoint, replays the log after it, checks that both match,
//! and reports damage with the file, the offset and the remedy. If the directory is empty, [`open`] creates a
//! new member. This module does not start the member.

mod checkpoint;
mod replay;
mod start;

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use consensus::Node;
use disk::{Disk, Lock};
use log::checkpoint::{CheckpointStore, Manifest};
use log::{EntryPlace, Log, LogEvent, Recovered};
use machine::Machine;
use mvcc::Cache;
use numbers::Index;

pub(crate) use self::checkpoint::{InBlocks, restore};
pub(crate) use self::replay::{ReplayedLog, replay_log};
use self::start::Start;
use crate::beginning::Beginning;
use crate::checkpointer::Level;
use crate::clean_shutdown::CleanShutdown;
use crate::error::{DataDirError, Inconsistency};
use crate::etcd_beside::{self, KeptOut};
use crate::etcd_store::EtcdFiles;
use crate::exported;
use crate::identity::Identity;
use crate::log_dir::{self, LogDir, OtherFiles};
use crate::nospace::{Cause, Note};
use crate::observer_mark;
use crate::options::Options;
use crate::recovered;
use crate::taken_over::TakenOver;
use crate::terms::Terms;
use crate::witness_mark;
use telemetry::logging::{Logger, Value};

/// Settings that a test or a simulation may change. A real server uses the defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Switches {
    /// Maximum payload bytes in flight to one follower without an acknowledgement; `None` for the default.
    pub bytes_in_flight_max: Option<usize>,
    /// Makes the raft node behave like that of etcd; see [`consensus::Config::speaks_as_etcd`].
    pub speaks_as_etcd: bool,
}

/// Queue of events from the log to their receiver, which is the core once it runs.
pub trait LogEvents: Send + Sync {
    /// Adds an event to the queue. Called on the log's threads.
    fn tell(&self, event: LogEvent);

    /// Makes the calling thread the receiver of the events: each new event wakes this thread.
    fn receive_here(&self);

    /// Moves all queued events into `into`, which must be empty. Waits for the first event, but at most for
    /// `patience`.
    fn receive(&self, into: &mut Vec<LogEvent>, patience: Duration);
}

/// Parameters for opening a data directory.
pub struct Opening<'a> {
    /// The member's options.
    pub options: &'a Options,
    /// Disk that contains the directory.
    pub disk: &'a Arc<dyn Disk>,
    /// Receiver of the log's events.
    pub events: &'a Arc<dyn LogEvents>,
    /// The member's log for its operator (not the raft log).
    pub logger: &'a Logger,
    /// True if opening may start threads. Otherwise all steps run one after the other, and the raft log has
    /// no threads.
    pub threads: bool,
    /// Size of the log's segments in bytes; `None` derives it from the size of the file system.
    pub segment_bytes: Option<u32>,
    /// Seed of this member's election timeouts and of the secrets of the log's segments. Members of one
    /// cluster need different seeds, so that they do not time out at the same time. With `None` the timeouts
    /// are derived from the member id, and the secrets are random numbers of the operating system.
    pub seed: Option<u64>,
    /// Settings of a test or a simulation.
    pub switches: Switches,
    /// Closure that returns the identity and first entries of a new member. Called only if the directory
    /// contains no log, or a log without entries.
    pub begin: &'a dyn Fn() -> Result<Beginning, Box<dyn Error + Send + Sync>>,
}

/// Result of opening a data directory: the parts of a member.
pub struct Opened {
    /// Ids of the member and its cluster.
    pub identity: Identity,
    /// State machine with the state of the checkpoint. The entries after the checkpoint have not been applied
    /// to it yet.
    pub machine: Machine,
    /// Raft node, which has the entries after the checkpoint.
    pub node: Node,
    /// The log, ready for appending.
    pub log: Log,
    /// Report of opening the log: the last index, the hard state, and the repairs that were made.
    pub recovered: Recovered,
    /// Location of each entry after the checkpoint.
    pub locations: VecDeque<EntryPlace>,
    /// Store of the checkpoint's files.
    pub checkpoints: CheckpointStore,
    /// Runs of the checkpoint.
    pub levels: Vec<Level>,
    /// Memory for blocks of the checkpoint's base, if the member has a memory budget.
    pub cache: Option<Arc<Cache>>,
    /// Terms of the entries that are not in memory; see [`crate::terms`].
    pub terms: Terms,
    /// Id and peer URLs of each member that the cluster already has. Empty if this member knows the members
    /// from its own log.
    pub remotes: Vec<(u64, Vec<String>)>,
    /// Shutdown record beside the log.
    pub clean_shutdown: CleanShutdown,
    /// File that records the cause of this member's NOSPACE alarm, and the cause recorded in it.
    pub note: (Note, Cause),
    /// Lock of the data directory, and of the log's directory if that is separate. It must be held while the
    /// member runs.
    pub lock: Lock,
}

impl Opened {
    /// Writes the repairs of the raft log, and a summary of the restored state, to the operator's log. `took`
    /// is the duration of opening.
    pub fn report(&self, logger: &Logger, took: Duration) {
        for repair in &self.recovered.repairs {
            logger.warn(
                "repaired the end of the log: cut off the remains of an interrupted write",
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
                ("checkpoint-index", Value::Uint(self.machine.applied_index.0)),
                ("last-index", Value::Uint(self.recovered.last_index.0)),
                ("revision", Value::Int(self.machine.store.current_revision().0)),
                ("took", Value::Duration(took)),
            ],
        );
    }
}

/// Returns an error that names the operation that the operating system has refused, and the remedy.
fn refused(doing: &'static str, path: &Path, error: std::io::Error) -> DataDirError {
    log::OpenError::Io { doing, path: path.to_path_buf(), error }.into()
}

/// Returns an error if this is a directory of etcd, or if etcd has created a store in it beside a member of
/// Mainstay.
fn refuse_foreign(disk: &dyn Disk, member_dir: &Path, wal_dir: Option<&Path>) -> Result<(), DataDirError> {
    etcd_beside::refuse(disk, member_dir, wal_dir)?;
    let Some(files) = EtcdFiles::find(disk, member_dir, wal_dir)? else { return Ok(()) };
    let data_dir = member_dir.parent().unwrap_or(member_dir).to_path_buf();
    let their_log = files.logs.first().cloned();
    let path = their_log.clone().or(files.snap).unwrap_or_else(|| member_dir.to_path_buf());
    let their_log = their_log.unwrap_or_else(|| member_dir.join("wal"));
    // An error while reading etcd's files is ignored: the returned error recommends an import, and the import
    // reports the read error.
    let theirs = interchange::DataDir::glance(disk, &data_dir, &their_log);
    let old_store = theirs.ok().and_then(|theirs| theirs.old_store.loss());
    Err(DataDirError::WrittenByEtcd { path, data_dir, old_store })
}

/// Locks the data directory against other processes. Refuses a directory that contains etcd's files, unless
/// the member was taken over from etcd and etcd is not running and has not run since. `wal_dir` is the
/// directory of `--wal-dir`. Also locks the database that etcd has left in a directory that was taken over,
/// so that etcd cannot open it until the lock is dropped. If that database cannot be opened, but other files
/// keep etcd from starting, `warn` receives the error.
///
/// # Errors
///
/// Returns an error if another process uses the directory, if it is a directory of etcd that is refused as
/// described above, or if the operating system refuses an operation.
pub fn lock(
    disk: &dyn Disk,
    member_dir: &Path,
    wal_dir: Option<&Path>,
    warn: &dyn Fn(&log::OpenError),
) -> Result<Lock, DataDirError> {
    if let Some(mark) = TakenOver::read(disk, member_dir)? {
        let lock = lock_member(disk, member_dir)?;
        // The database is locked before etcd's log is checked: an etcd that is just starting has possibly
        // written nothing to its log yet, so the check alone would not detect it.
        let etcd = mark.shut_out(disk, member_dir)?;
        if let Some(why) = &etcd.unlocked {
            warn(why);
        }
        // The mark is read again, because it was first read without the lock and may have changed since.
        if let Some(mark) = TakenOver::read(disk, member_dir)? {
            mark.check(disk, member_dir)?;
        }
        return Ok(lock.and(etcd.lock));
    }
    refuse_foreign(disk, member_dir, wal_dir)?;
    disk.create_dir_all(member_dir).map_err(|error| refused("create", member_dir, error))?;
    lock_member(disk, member_dir)
}

/// Locks the directory of a member, so that no other member or command uses it.
///
/// # Errors
///
/// Returns [`DataDirError::Locked`] if another process holds the lock, or the error of the operating system.
pub fn lock_member(disk: &dyn Disk, member_dir: &Path) -> Result<Lock, DataDirError> {
    let lock_path = member_dir.join("lock");
    disk.lock(&lock_path).map_err(|e| {
        if e.kind() == std::io::ErrorKind::WouldBlock {
            DataDirError::Locked { path: lock_path.clone() }
        } else {
            refused("lock", &lock_path, e)
        }
    })
}

/// Contents of a data directory, as found before the log is replayed.
struct Found<'a> {
    member_dir: &'a Path,
    checkpoints: CheckpointStore,
    manifest: Option<Manifest>,
    /// Error with which the checkpoint was refused, if it is damaged.
    unusable: Option<DataDirError>,
    clean_shutdown: CleanShutdown,
    identity: Identity,
    log_dir: LogDir,
    /// Identity and first entries of a new member. Present only if the directory contains no log.
    beginning: Option<Beginning>,
}

/// State of the checkpoint, and the log after the checkpoint.
struct Replay {
    machine: Machine,
    levels: Vec<Level>,
    /// Index of the last log entry that is applied to `machine`.
    applied: Index,
    manifest: Option<Manifest>,
    replayed: ReplayedLog,
    cache: Option<Arc<Cache>>,
}

/// Opens a data directory.
///
/// # Errors
///
/// Returns an error whose message names the file or option, the fault and the remedy.
pub fn open(opening: &Opening<'_>) -> Result<Opened, DataDirError> {
    open_or_refuse(opening).inspect_err(|error| {
        if opening.options.unsafe_no_fsync && error.is_damage() {
            opening.logger.error(
                "the member's files are damaged, and it runs with --unsafe-no-fsync, which can cause that when the \
                 machine stops: acknowledged writes may be lost; rebuild the member from the others with \
                 `mainstay rebuild`, or restore its data directory from a backup if it is the only one",
                &[("found", Value::Str(&error.to_string()))],
            );
        }
    })
}

fn open_or_refuse(opening: &Opening<'_>) -> Result<Opened, DataDirError> {
    let Opening { options, disk, .. } = *opening;
    let member_dir = &options.data_dir.join("member");
    let lock = lock(&**disk, member_dir, options.wal_dir.as_deref(), &|why| {
        opening.logger.warn(
            "cannot lock etcd's database; the files beside etcd's log keep etcd from starting",
            &[("error", Value::Str(&why.to_string()))],
        );
    })?;
    exported::refuse(&**disk, member_dir)?;
    recovered::refuse(&**disk, member_dir)?;
    if let Some(taken_over) = TakenOver::read(&**disk, member_dir)? {
        // The files that keep etcd from starting must exist before this member votes or acknowledges an
        // entry: an etcd that started on its old files would not know of these votes and entries, and could
        // contradict them.
        taken_over.guard(&**disk, member_dir)?;
    }
    let found = look(opening, member_dir)?;
    let is_new = found.beginning.is_some();
    observer_mark::check(&**disk, member_dir, options.observes, is_new)?;
    witness_mark::check(&**disk, member_dir, options.is_witness, is_new)?;
    if options.is_witness {
        if options.force_new_cluster {
            return Err(DataDirError::WitnessAlone { data_dir: options.data_dir.clone() });
        }
        // The mark comes before the log: a directory with the log of a witness must never be started as a member.
        witness_mark::write(&**disk, member_dir)?;
    }
    let was_noted = log_dir::read_note(&**disk, member_dir)?.is_some();
    // etcd is kept out before the replay, which may take minutes, and before a new member is created, because
    // an etcd that is started in the meantime would create a store here.
    let lock = keep_etcd_out(opening, member_dir, lock)?;
    open_found(opening, found, lock).inspect_err(|_| {
        if is_new && let Err(why) = etcd_beside::let_in(&**disk, &options.data_dir, was_noted) {
            opening.logger.warn(
                "this directory holds no member, but the files that keep etcd from starting on it cannot be removed",
                &[("error", Value::Str(&why.to_string()))],
            );
        }
    })
}

/// Opens the contents of a data directory after etcd was prevented from starting in it.
fn open_found(opening: &Opening<'_>, mut found: Found<'_>, lock: Lock) -> Result<Opened, DataDirError> {
    let Opening { options, disk, .. } = *opening;
    let member_dir = found.member_dir;
    if found.beginning.is_some() {
        found.log_dir.settle()?;
    }
    let Replay { machine, levels, applied, manifest, replayed, cache } = replay(opening, &mut found)?;
    let Found { checkpoints, clean_shutdown, identity, beginning, mut log_dir, .. } = found;
    log_dir.settle()?;
    // For a new log, the shutdown record is written only after the first entries are durable (below). A crash
    // before they are durable may leave no segment of the log. The next start then creates the member once
    // more, but only if no shutdown record says that a log existed.
    let lasting = beginning.is_none();
    if lasting {
        clean_shutdown.open(&identity, replayed.log.values().log_end())?;
    }
    if machine.members.removed.contains(&identity.member_id) {
        let data_dir = options.data_dir.clone();
        return Err(DataDirError::Removed { member_id: identity.member_id, data_dir });
    }
    let mut start = Start::of(opening, &log_dir.path, &machine, applied, manifest.as_ref(), replayed)?;
    let remotes = start.begin(opening, member_dir, &identity, beginning, &machine)?;
    if !lasting {
        if options.unsafe_no_fsync {
            // The shutdown record will say that the first entries are durable. If they were lost, the member
            // could not be started again, so they are synced here despite `--unsafe-no-fsync`.
            start.log.sync()?;
        }
        clean_shutdown.open(&identity, start.log.values().log_end())?;
    }
    if options.force_new_cluster {
        start.force_new_cluster(opening, &identity, &machine, applied)?;
    }
    let terms = Terms::read(manifest.as_ref().map_or(&[][..], |manifest| &manifest.metadata), &machine);
    let node = start
        .node(opening, &identity, &machine, &terms)
        .map_err(|refused| Inconsistency::Raft { member_dir: member_dir.to_path_buf(), refused })?;
    let Start { log, recovered, locations, .. } = start;
    Ok(Opened {
        identity,
        machine,
        node,
        log,
        recovered,
        locations,
        checkpoints,
        levels,
        cache,
        terms,
        remotes,
        note: Note::open(disk, member_dir),
        clean_shutdown,
        lock: lock.and(log_dir.into_lock()),
    })
}

/// Prevents etcd from creating a store in this directory. If the operating system refuses that, only logs a
/// warning, and the member can start anyway. Returns the lock of the directory, combined with the lock of an
/// etcd database that was moved aside.
///
/// # Errors
///
/// Returns an error if etcd is running there, or has created a store since the directory was locked.
fn keep_etcd_out(opening: &Opening<'_>, member_dir: &Path, lock: Lock) -> Result<Lock, DataDirError> {
    let Opening { options, disk, logger, .. } = *opening;
    let warn = |why: &log::OpenError| {
        logger.warn(
            "cannot write the files that keep etcd from starting on this directory",
            &[("error", Value::Str(&why.to_string()))],
        );
    };
    let kept = match etcd_beside::keep_out(&**disk, member_dir, options.wal_dir.as_deref()) {
        Ok(kept) => kept,
        Err(DataDirError::Files(why)) => {
            warn(&why);
            return Ok(lock);
        }
        Err(error) => return Err(error),
    };
    if let KeptOut::Moved(to) = &kept.out {
        logger.warn(
            "etcd was started here and left a directory without data; moved it aside",
            &[("to", Value::Str(&to.display().to_string()))],
        );
    }
    if let Err(why) = etcd_beside::put_sign(&**disk, &options.data_dir) {
        warn(&why);
    }
    Ok(lock.and(kept.lock))
}

/// Determines the identity of the directory's member, and loads the checkpoint's manifest.
fn look<'a>(opening: &Opening<'_>, member_dir: &'a Path) -> Result<Found<'a>, DataDirError> {
    let disk = opening.disk;
    let checkpoints = CheckpointStore::open(Arc::clone(disk), member_dir.join("checkpoint"))?;
    let (manifest, unusable) = match checkpoints.load() {
        Ok(manifest) => (manifest, None),
        Err(error) if error.is_damage() => (None, Some(error.into())),
        Err(error) => return Err(error.into()),
    };
    let clean_shutdown = CleanShutdown::read(disk, member_dir, opening.logger)?;
    let beside = OtherFiles {
        is_anything: manifest.is_some() || unusable.is_some() || clean_shutdown.was_there,
        stopped_cleanly: clean_shutdown.known.is_some_and(|record| record.end.is_some()),
    };
    let log_dir = LogDir::find(disk, member_dir, opening.options.wal_dir.as_deref(), beside)?;
    let known = Log::identify(&**disk, &log_dir.path)?;
    let (identity, beginning) = match known {
        Some(owner) => (Identity::of(owner), None),
        None if beside.is_anything => {
            return Err(Inconsistency::LogMissing { log_dir: log_dir.path }.into());
        }
        None => {
            let beginning = (opening.begin)().map_err(DataDirError::Begin)?;
            (beginning.identity.clone(), Some(beginning))
        }
    };
    clean_shutdown.check(&identity)?;
    Ok(Found { member_dir, checkpoints, manifest, unusable, clean_shutdown, identity, log_dir, beginning })
}

/// Restores the state of the checkpoint and replays the log after it. If the checkpoint is damaged and the
/// log is complete, uses only the log.
fn replay(opening: &Opening<'_>, found: &mut Found<'_>) -> Result<Replay, DataDirError> {
    let Opening { options, disk, events, logger, threads, seed, .. } = *opening;
    let Found { member_dir, ref checkpoints, ref clean_shutdown, ref identity, ref log_dir, .. } = *found;
    let (mut manifest, mut unusable) = (found.manifest.take(), found.unusable.take());
    let rules = options.rules;
    let mut applied = manifest.as_ref().map_or(Index(0), |manifest| manifest.applied_index);
    let segment_bytes = opening.segment_bytes.or_else(|| {
        disk.space(if log_dir.is_apart { &log_dir.path } else { member_dir })
            .ok()
            .map(|space| log::segment_bytes_for(space.total_bytes))
    });
    let replay_from = |first: Index| {
        let log::Owner { cluster_id, member_id } = identity.owner();
        let mut log_options = log::Options::new(&log_dir.path, cluster_id, member_id);
        log_options.unsafe_no_fsync = options.unsafe_no_fsync;
        log_options.by_hand = !threads;
        log_options.segment_bytes = segment_bytes.unwrap_or(log_options.segment_bytes);
        log_options.secret_seed = seed;
        log_options.closed_at = clean_shutdown.known.and_then(|record| record.end);
        log_options.synced_to = clean_shutdown.known.and_then(|record| record.synced_to);
        let events = Arc::clone(events);
        replay_log(log_options, disk, first, Box::new(move |event| events.tell(event)))
    };
    let cache = options.memory_budget.map(Cache::new);
    let restore = || {
        let warn = |error: &DataDirError| {
            logger.warn(
                "a file is damaged that only --memory-budget needs; the whole index is read into memory, until the next complete checkpoint",
                &[("found", Value::Str(&error.to_string()))],
            );
        };
        let in_blocks = cache.as_ref().map(|cache| InBlocks { cache, warn: &warn });
        restore(rules, checkpoints, manifest.as_ref(), member_dir, identity, threads, in_blocks)
    };
    let (state, replayed) = if threads {
        // Restoring the checkpoint and replaying the log are independent and take about the same time, so
        // they run in parallel.
        std::thread::scope(|scope| {
            let log = scope.spawn(|| replay_from(applied.next()));
            let state = restore();
            let replayed = log.join().map_err(|_| DataDirError::LogThreadPanicked);
            (state, replayed.and_then(|replayed| replayed.map_err(DataDirError::from)))
        })
    } else {
        (restore(), replay_from(applied.next()).map_err(DataDirError::from))
    };
    let mut replayed = replayed?;
    let (machine, levels) = match state {
        Ok(state) => state,
        Err(error) if !error.is_damage() => return Err(error),
        Err(error) => {
            let repairs = std::mem::take(&mut replayed.recovered.repairs);
            drop(replayed);
            (applied, manifest, unusable) = (Index(0), None, Some(error));
            replayed = replay_from(Index(1))?;
            replayed.recovered.repairs.splice(..0, repairs);
            (Machine::new(rules), Vec::new())
        }
    };
    if manifest.is_none() {
        // Without a checkpoint, the log must contain every entry since the first.
        if let Err(lacking) = replayed.is_whole() {
            let missing = || {
                let path = member_dir.join("checkpoint").join("MANIFEST");
                log::OpenError::Missing { path }.into()
            };
            let checkpoint = unusable.unwrap_or_else(missing);
            return Err(Inconsistency::LogNotWhole { checkpoint, lacking }.into());
        }
        if let Some(why) = unusable {
            logger.warn(
                "the checkpoint is damaged; the log is complete and is read instead",
                &[("found", Value::Str(&why.to_string()))],
            );
        }
    }
    if machine.applied_index != applied {
        let (member_dir, held) = (member_dir.to_path_buf(), machine.applied_index);
        return Err(Inconsistency::CheckpointIndex { member_dir, stated: applied, held }.into());
    }
    Ok(Replay { machine, levels, applied, manifest, replayed, cache })
}
#[cfg(test)]
mod first_start;
