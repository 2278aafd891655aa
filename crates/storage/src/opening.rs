//! Opens a data directory: [`open`] loads the checkpoint, replays the log after it, checks that both match,
//! and reports damage with file, offset and remedy. If the directory is empty, it creates a new member. It
//! does not start the member.

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{channel, sync_channel};
use std::time::{Duration, Instant};

use api::raftpb;
use bytes::Bytes;
use consensus::{Entry, EntryKind, HardState, Node, Restored};
use disk::{Disk, Lock};
use log::checkpoint::{CheckpointStore, Manifest};
use log::{Batch, EntryPlace, Log, LogEvent, Recovered, Replayed, Reset};
use machine::image::{RestoreError, Versions};
use machine::{Machine, Members, Rules};
use numbers::{Index, MemberId, Term};
use prost::Message as _;

use crate::beginning::{self, Beginning};
use crate::catch_up::entry_of;
use crate::checkpointer::Level;
use crate::clean_shutdown::CleanShutdown;
use crate::error::{DataDirError, FirstEntriesError, Inconsistency, Lacking};
use crate::etcd_beside::{self, KeptOut};
use crate::etcd_store::EtcdFiles;
use crate::exported;
use crate::identity::Identity;
use crate::log_dir::{self, Beside, LogDir};
use crate::nospace::{Cause, Note};
use crate::options::Options;
use crate::taken_over::TakenOver;
use crate::terms::Terms;
use telemetry::logging::{Logger, Value};

/// Time that the first start waits until its first entry is durable.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

/// Settings that a test or a simulation may change. A process uses the defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Switches {
    /// Maximum payload bytes in flight to one follower without acknowledgement; `None` for the default.
    pub bytes_in_flight_max: Option<usize>,
    /// See [`consensus::Config::speaks_as_etcd`].
    pub speaks_as_etcd: bool,
}

/// Queue of the log's events to their receiver, which is the core once it runs.
pub trait LogEvents: Send + Sync {
    /// Sends an event; called on the log's threads.
    fn tell(&self, event: LogEvent);

    /// Makes the calling thread the receiver.
    fn receive_here(&self);

    /// Moves all queued events into `into`, which is empty; waits up to `patience` for the first one.
    fn receive(&self, into: &mut Vec<LogEvent>, patience: Duration);
}

/// The parameters of opening a data directory.
pub struct Opening<'a> {
    /// The member's options.
    pub options: &'a Options,
    /// Disk that contains the directory.
    pub disk: &'a Arc<dyn Disk>,
    /// Receiver of the log's events.
    pub events: &'a Arc<dyn LogEvents>,
    /// Log for the operator.
    pub logger: &'a Logger,
    /// True if threads may be started. Otherwise all steps run one after the other, and the log is driven by
    /// hand.
    pub threads: bool,
    /// Size of the log's segments in bytes; `None` derives it from the size of the file system.
    pub segment_bytes: Option<u32>,
    /// Seed of this member's election timeouts; members of one cluster must not time out at the same time.
    /// `None` uses the member id. The secrets of the log's segments are derived from the seed, too; `None`
    /// takes them from the operating system's random numbers.
    pub seed: Option<u64>,
    /// Settings of a test or a simulation.
    pub switches: Switches,
    /// Returns the beginning of a new member; called if the log is empty.
    pub begin: &'a dyn Fn() -> Result<Beginning, Box<dyn Error + Send + Sync>>,
}

/// Result of opening a data directory: the parts of a member.
pub struct Opened {
    /// Ids of the member and its cluster.
    pub identity: Identity,
    /// State of the checkpoint; the entries after it are not applied yet.
    pub machine: Machine,
    /// Raft node, with the entries after the checkpoint.
    pub node: Node,
    /// The log, open for appending.
    pub log: Log,
    /// The result of opening the log.
    pub recovered: Recovered,
    /// Location of each entry after the checkpoint.
    pub locations: VecDeque<EntryPlace>,
    /// Store of the checkpoint's files.
    pub checkpoints: CheckpointStore,
    /// Runs of the checkpoint.
    pub levels: Vec<Level>,
    /// Terms of entries that are not in memory; see [`crate::terms`].
    pub terms: Terms,
    /// Existing members of the cluster, if this member does not know them from its own log yet.
    pub remotes: Vec<(u64, Vec<String>)>,
    /// Shutdown record beside the log.
    pub clean_shutdown: CleanShutdown,
    /// File that records the cause of this member's NOSPACE alarm, and the recorded cause.
    pub note: (Note, Cause),
    /// Lock of the data directory, and of the log's directory if that is separate. Held while the member
    /// runs.
    pub lock: Lock,
}

impl Opened {
    /// Logs repairs of the log and the restored state for the operator; `took` is the duration of opening.
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

/// Returns an error with the operation that the operating system refused, and the remedy.
fn refused(doing: &'static str, path: &Path, error: std::io::Error) -> DataDirError {
    log::OpenError::Io { doing, path: path.to_path_buf(), error }.into()
}

/// Refuses a directory of etcd, and one in which etcd has created a store beside a member of Mainstay.
fn refuse_foreign(disk: &dyn Disk, member_dir: &Path, wal_dir: Option<&Path>) -> Result<(), DataDirError> {
    etcd_beside::refuse(disk, member_dir, wal_dir)?;
    let Some(files) = EtcdFiles::find(disk, member_dir, wal_dir)? else { return Ok(()) };
    let data_dir = member_dir.parent().unwrap_or(member_dir).to_path_buf();
    let their_log = files.logs.first().cloned();
    let path = their_log.clone().or(files.snap).unwrap_or_else(|| member_dir.to_path_buf());
    let their_log = their_log.unwrap_or_else(|| member_dir.join("wal"));
    // The import reports the fault of a directory that cannot be read.
    let theirs = interchange::DataDir::glance(disk, &data_dir, &their_log);
    let old_store = theirs.ok().and_then(|theirs| theirs.old_store.loss());
    Err(DataDirError::WrittenByEtcd { path, data_dir, old_store })
}

/// Locks the data directory against other processes. Refuses a directory of etcd, unless the member was taken
/// over from etcd and etcd neither runs nor has run since. `wal_dir` is the directory of `--wal-dir`. Until
/// the lock is dropped, etcd cannot open the database that it left there either; if that database cannot be
/// opened, `warn` receives the error.
///
/// # Errors
///
/// Returns an error if another process serves the directory, if it is a directory of etcd as described above,
/// or if the operating system refuses an operation.
pub fn lock(
    disk: &dyn Disk,
    member_dir: &Path,
    wal_dir: Option<&Path>,
    warn: &dyn Fn(&log::OpenError),
) -> Result<Lock, DataDirError> {
    if let Some(mark) = TakenOver::read(disk, member_dir)? {
        let lock = lock_member(disk, member_dir)?;
        // Locked before etcd's log is checked: a running etcd may not have written to its log yet.
        let etcd = mark.shut_out(disk, member_dir)?;
        if let Some(why) = &etcd.unlocked {
            warn(why);
        }
        // The mark was first read without the lock and may have changed since.
        if let Some(mark) = TakenOver::read(disk, member_dir)? {
            mark.check(disk, member_dir)?;
        }
        return Ok(lock.and(etcd.lock));
    }
    refuse_foreign(disk, member_dir, wal_dir)?;
    disk.create_dir_all(member_dir).map_err(|error| refused("create", member_dir, error))?;
    lock_member(disk, member_dir)
}

/// Locks the directory of a member against running members and other commands.
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

/// Contents of a data directory before the replay.
struct Found<'a> {
    member_dir: &'a Path,
    checkpoints: CheckpointStore,
    manifest: Option<Manifest>,
    /// Error of the checkpoint, if it is damaged.
    unusable: Option<DataDirError>,
    clean_shutdown: CleanShutdown,
    identity: Identity,
    log_dir: LogDir,
    /// Present only if the directory contains no log.
    beginning: Option<Beginning>,
}

/// State of the checkpoint, and the log after it.
struct Replay {
    machine: Machine,
    levels: Vec<Level>,
    /// Log index up to which entries are applied to `machine`.
    applied: Index,
    manifest: Option<Manifest>,
    replayed: ReplayedLog,
}

/// Opens a data directory.
///
/// # Errors
///
/// Returns an error that names the file or option and the fault, with the remedy in its text.
pub fn open(opening: &Opening<'_>) -> Result<Opened, DataDirError> {
    open_or_refuse(opening).inspect_err(|error| {
        if opening.options.unsafe_no_fsync && error.is_damage() {
            opening.logger.error(
                "the member runs with --unsafe-no-fsync, which can leave files in this state when the \
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
    if let Some(taken_over) = TakenOver::read(&**disk, member_dir)? {
        // The guards are written before the member promises anything that etcd's files do not contain.
        taken_over.guard(&**disk, member_dir)?;
    }
    let found = look(opening, member_dir)?;
    let is_new = found.beginning.is_some();
    let was_noted = log_dir::read_note(&**disk, member_dir)?.is_some();
    // Before the replay, which may take minutes, and before a new member is created beside a store that an
    // etcd has created in the meantime.
    let lock = keep_etcd_out(opening, member_dir, lock)?;
    open_found(opening, found, lock).inspect_err(|_| {
        if is_new && let Err(why) = etcd_beside::let_in(&**disk, &options.data_dir, was_noted) {
            opening.logger.warn(
                "cannot remove the files that keep etcd from starting on this directory, although it holds no member",
                &[("error", Value::Str(&why.to_string()))],
            );
        }
    })
}

/// Opens the contents of a data directory in which etcd can no longer start.
fn open_found(opening: &Opening<'_>, mut found: Found<'_>, lock: Lock) -> Result<Opened, DataDirError> {
    let Opening { options, disk, .. } = *opening;
    let member_dir = found.member_dir;
    if found.beginning.is_some() {
        found.log_dir.settle()?;
    }
    let Replay { machine, levels, applied, manifest, replayed } = replay(opening, &mut found)?;
    let Found { checkpoints, clean_shutdown, identity, beginning, mut log_dir, .. } = found;
    log_dir.settle()?;
    // A log without a segment counts as empty: after a crash now, the shutdown record must not describe a log
    // that never existed.
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
            // The record states that the first entries are durable, and without them the member could not be
            // started again.
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
        terms,
        remotes,
        note: Note::open(disk, member_dir),
        clean_shutdown,
        lock: lock.and(log_dir.into_lock()),
    })
}

/// Prevents etcd from creating a store in this directory. If the operating system refuses that, the member is
/// served anyway. Returns the lock of the directory, combined with the lock of an etcd database that was
/// moved aside.
///
/// # Errors
///
/// Returns an error if an etcd is running there, or has created a store since the directory was locked.
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
    let beside = Beside {
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

/// Restores the state and replays the log after it; uses only the log if the log is complete and the
/// checkpoint is damaged.
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
    let restore = || restore(rules, checkpoints, manifest.as_ref(), member_dir, identity, threads);
    let (state, replayed) = if threads {
        // The restore and the replay take about the same time and are independent.
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
        // A log with every entry since the first needs no checkpoint.
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
    Ok(Replay { machine, levels, applied, manifest, replayed })
}

/// State from which the raft node starts.
struct Start {
    log: Log,
    recovered: Recovered,
    entries: Vec<Entry>,
    locations: VecDeque<EntryPlace>,
    hard_state: HardState,
}

impl Start {
    /// Returns the raft state after the machine's state. If the log ends before an installed snapshot, the
    /// log is restarted after that snapshot.
    fn of(
        opening: &Opening<'_>,
        log_dir: &Path,
        machine: &Machine,
        applied: Index,
        manifest: Option<&Manifest>,
        replayed: ReplayedLog,
    ) -> Result<Start, DataDirError> {
        let ReplayedLog { log, recovered, entries, locations } = replayed;
        let hard_state = HardState {
            term: recovered.hard_state.term.max(machine.applied_term),
            vote: if recovered.hard_state.term < machine.applied_term {
                MemberId::NONE
            } else {
                recovered.hard_state.vote
            },
            commit: recovered.hard_state.commit,
        };
        let mut start = Start { log, recovered, entries, locations, hard_state };
        let last_index = start.recovered.last_index;
        // A snapshot was installed, and the member stopped before the log was restarted after it.
        let behind = last_index < applied
            || start.entries.first().is_some_and(|entry| entry.term < machine.applied_term);
        if behind && applied > Index(0) {
            // The terms of an installed snapshot start after the entries of this log. If they start within
            // this log, the checkpoint was made from it, and the log has lost its end.
            let terms = Terms::read(manifest.map_or(&[][..], |manifest| &manifest.metadata), machine);
            if last_index < applied && terms.first_index().is_some_and(|first| first <= last_index) {
                let log_dir = log_dir.to_path_buf();
                return Err(Inconsistency::LogEndsEarly { log_dir, last: last_index, applied }.into());
            }
            let reset = Reset { index: applied, term: machine.applied_term };
            let batch = Batch { reset: Some(reset), hard_state: Some(saved(hard_state)), ..Batch::default() };
            append_and_wait(&mut start.log, &**opening.events, batch, opening.threads)?;
            start.entries.clear();
            start.locations.clear();
        } else if let Some(last) = start.entries.last()
            && last.index != last_index
        {
            return Err(Inconsistency::LastEntry { stated: last_index, held: last.index }.into());
        }
        Ok(start)
    }

    /// Creates the first entries of an empty log, and returns the existing members of the cluster. A first
    /// start that was interrupted starts over, and a member that joins may not have received entries from the
    /// others yet.
    fn begin(
        &mut self,
        opening: &Opening<'_>,
        member_dir: &Path,
        identity: &Identity,
        beginning: Option<Beginning>,
        machine: &Machine,
    ) -> Result<Vec<(u64, Vec<String>)>, DataDirError> {
        let is_new = beginning.is_some();
        let empty =
            self.hard_state.term == Term(0) && machine.applied_index == Index(0) && self.entries.is_empty();
        let beginning = match beginning {
            None if empty => Some((opening.begin)().map_err(DataDirError::Begin)?),
            beginning => beginning,
        };
        let Some(Beginning { identity: found, entries: first, remotes }) = beginning else {
            return Ok(Vec::new());
        };
        if found != *identity {
            return Err(DataDirError::OtherMember {
                member_dir: member_dir.to_path_buf(),
                made_for: identity.clone(),
                configured: found,
            });
        }
        if !first.is_empty() {
            self.hard_state =
                HardState { term: Term(1), vote: MemberId::NONE, commit: Index(first.len() as u64) };
            self.locations = self.append(opening, &first)?;
            self.entries = first;
        } else if is_new {
            // A joining member gets its entries from the others. Its log gets a record now, so that a loss of
            // the log is detected even before the member's first clean shutdown.
            let batch = Batch { hard_state: Some(log::HardState::default()), ..Batch::default() };
            append_and_wait(&mut self.log, &**opening.events, batch, opening.threads)?;
        }
        Ok(remotes)
    }

    /// Appends the entries that make this member the only one of its cluster.
    fn force_new_cluster(
        &mut self,
        opening: &Opening<'_>,
        identity: &Identity,
        machine: &Machine,
        applied: Index,
    ) -> Result<(), DataDirError> {
        let options = opening.options;
        let learners_max = options.rules.learners_max;
        let members = members_at_end(machine, &self.entries, learners_max)?;
        let last = self.entries.last().map_or(applied, |entry| entry.index);
        let urls = &options.peer_urls;
        let term = self.hard_state.term.max(Term(1));
        let changes = beginning::alone(identity.member_id, &members, urls, term, last, learners_max)?;
        opening.logger.warn(
            "forcing a new cluster with this member alone",
            &[("removed", Value::Uint(changes.len() as u64)), ("last-index", Value::Uint(last.0))],
        );
        // All entries of the log become committed: acknowledged ones are among them, and no other member is
        // left to ask.
        self.hard_state.term = term;
        self.hard_state.commit = last + changes.len() as u64;
        if !changes.is_empty() {
            let locations = self.append(opening, &changes)?;
            self.locations.extend(locations);
            self.entries.extend(changes);
        }
        Ok(())
    }

    /// Appends entries with the hard state before the member runs. Returns their locations.
    fn append(
        &mut self,
        opening: &Opening<'_>,
        entries: &[Entry],
    ) -> Result<VecDeque<EntryPlace>, FirstEntriesError> {
        append_entries(&mut self.log, &**opening.events, entries, self.hard_state, opening.threads)
    }

    /// Returns the raft node, with the entries after the state.
    fn node(
        &mut self,
        opening: &Opening<'_>,
        identity: &Identity,
        machine: &Machine,
        terms: &Terms,
    ) -> Result<Node, consensus::Refused> {
        let options = opening.options;
        let first_index =
            self.log.entries().first_index().max(terms.first_index().unwrap_or_default().next());
        let heartbeat = options.heartbeat_interval.max(Duration::from_millis(1));
        let election_ticks = options.election_timeout.as_millis() / heartbeat.as_millis().max(1);
        let standard = consensus::Config::default();
        let switches = opening.switches;
        Node::new(
            consensus::Config {
                election_ticks: usize::try_from(election_ticks).unwrap_or(10).max(2),
                pre_vote: options.pre_vote,
                id: MemberId(identity.member_id),
                seed: opening.seed.unwrap_or(identity.member_id),
                bytes_in_flight_max: switches.bytes_in_flight_max.unwrap_or(standard.bytes_in_flight_max),
                speaks_as_etcd: switches.speaks_as_etcd,
                ..standard
            },
            Restored {
                hard_state: self.hard_state,
                voters: machine.members.voters().into_iter().map(MemberId).collect(),
                learners: machine.members.learners().into_iter().map(MemberId).collect(),
                applied: machine.applied_index,
                applied_term: machine.applied_term,
                entries: std::mem::take(&mut self.entries),
                first_index: first_index.min(machine.applied_index.next()),
                terms: terms.runs().to_vec(),
            },
        )
    }
}

/// Returns the members after all entries are applied.
fn members_at_end(
    machine: &Machine,
    entries: &[Entry],
    learners_max: usize,
) -> Result<Members, Inconsistency> {
    let mut members = machine.members.clone();
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::ConfChange) {
        let change = raftpb::ConfChange::decode(entry.data.clone())
            .map_err(|error| Inconsistency::NotAChange { index: entry.index, error })?;
        // A change that applying will refuse has no effect.
        let _ = machine::reconfigure(&mut members, &change, learners_max);
    }
    Ok(members)
}

/// An opened log, and its entries that are not in the checkpoint.
pub(crate) struct ReplayedLog {
    pub log: Log,
    pub recovered: Recovered,
    pub entries: Vec<Entry>,
    pub locations: VecDeque<EntryPlace>,
}

impl ReplayedLog {
    /// Checks that the log contains every entry since the first.
    ///
    /// # Errors
    ///
    /// Returns the entries that are missing.
    pub fn is_whole(&self) -> Result<(), Lacking> {
        if self.recovered.base.index > Index(0) {
            return Err(Lacking::Before(self.recovered.base.index));
        }
        let numbered = self.entries.iter().zip(1..).find(|(entry, index)| entry.index != Index(*index));
        match numbered {
            Some((entry, expected)) => Err(Lacking::Gap { found: entry.index, expected: Index(expected) }),
            None if self.entries.len() as u64 == self.recovered.last_index.0 => Ok(()),
            None => Err(Lacking::UpTo(self.recovered.last_index)),
        }
    }
}

pub(crate) fn replay_log(
    options: log::Options,
    disk: &Arc<dyn Disk>,
    first: Index,
    on_event: Box<dyn Fn(LogEvent) + Send>,
) -> Result<ReplayedLog, log::OpenError> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut locations: VecDeque<EntryPlace> = VecDeque::new();
    let mut replay = |replayed: Replayed| match replayed {
        Replayed::Entry(entry, location) if entry.index >= first => {
            let keep = usize::try_from(entry.index - first).unwrap_or(usize::MAX);
            entries.truncate(keep);
            locations.truncate(keep);
            locations.push_back(EntryPlace { index: entry.index, location });
            entries.push(entry_of(entry));
        }
        // An older entry that arrives later replaces all entries from its index on; a restarted log has no
        // entries before the restart.
        Replayed::Entry(..) | Replayed::Reset(_) => {
            entries.clear();
            locations.clear();
        }
        // The hard state is part of the result. Values that were moved after the checkpoint also exist at
        // their old locations, and values of a snapshot that was never installed are not referenced.
        Replayed::HardState(_) | Replayed::Value(..) => {}
    };
    let (log, recovered) = Log::open(options, Arc::clone(disk), first, &mut replay, on_event)?;
    Ok(ReplayedLog { log, recovered, entries, locations })
}

/// Restores the state of a checkpoint, with two threads if `threads` is true. If the error is damage
/// ([`DataDirError::is_damage`]), the log may be read instead.
pub(crate) fn restore(
    rules: Rules,
    checkpoints: &CheckpointStore,
    manifest: Option<&Manifest>,
    member_dir: &Path,
    identity: &Identity,
    threads: bool,
) -> Result<(Machine, Vec<Level>), DataDirError> {
    let Some(manifest) = manifest else { return Ok((Machine::new(rules), Vec::new())) };
    let (mut runs, mut levels) = (Vec::new(), Vec::new());
    for run in &manifest.runs {
        let mut reader = checkpoints.read(run)?;
        // Runs of an older version contain no identity.
        if !reader.metadata.is_empty() && reader.metadata != identity.to_bytes() {
            let path = member_dir.join("checkpoint").join(&run.name);
            return Err(DataDirError::OtherCheckpoint { path, identity: identity.clone() });
        }
        runs.push(std::iter::from_fn(move || reader.next_block().transpose()));
        let level =
            Level::of(run.clone()).ok_or_else(|| Inconsistency::UnknownRun { name: run.name.clone() })?;
        levels.push(level);
    }
    let restored = if threads { restore_in_two(rules, runs)? } else { machine::image::restore(rules, runs) };
    let machine = restored.map_err(|error| match error {
        RestoreError::Read(error) => DataDirError::Files(error),
        error => Inconsistency::Checkpoint { dir: member_dir.join("checkpoint"), error }.into(),
    })?;
    Ok((machine, levels))
}

/// Restores from runs with two threads: a second thread reads, checks and decodes blocks, while this thread
/// builds the machine, so that the machine's memory is allocated on this thread.
fn restore_in_two<I>(
    rules: Rules,
    runs: Vec<I>,
) -> Result<Result<Machine, RestoreError<log::OpenError>>, DataDirError>
where
    I: Iterator<Item = Result<Bytes, log::OpenError>> + Send,
{
    let (reading, mut building) = match machine::image::begin(runs) {
        Ok(halves) => halves,
        Err(error) => return Ok(Err(error)),
    };
    std::thread::scope(|scope| {
        let (full, filled) = sync_channel::<Versions>(PIECES_MAX);
        let (emptied, empty) = channel::<Versions>();
        let reader = scope.spawn(move || {
            reading.read(VERSIONS_PER_PIECE, |versions| {
                full.send(versions).ok()?;
                Some(empty.try_recv().unwrap_or_default())
            })
        });
        let mut built = Ok(());
        for mut versions in &filled {
            built = building.take(&versions);
            if built.is_err() {
                break;
            }
            versions.clear();
            // A reader that has ended needs no more batches.
            let _ = emptied.send(versions);
        }
        // Unblocks a reader that waits for this thread.
        drop(filled);
        let read = reader.join().map_err(|_| DataDirError::CheckpointThreadPanicked)?;
        // An error of building concerns earlier versions than an error of reading, so it is reported first.
        Ok(built.and(read).and_then(|()| building.finish(rules)))
    })
}

/// Number of versions in a batch between the threads: a batch fits in a processor's cache.
const VERSIONS_PER_PIECE: usize = 2048;
/// Maximum number of batches that wait for the building thread.
const PIECES_MAX: usize = 4;

fn saved(state: HardState) -> log::HardState {
    log::HardState { term: state.term, vote: state.vote, commit: state.commit }
}

/// Appends entries before the member runs. Returns their locations.
fn append_entries(
    log: &mut Log,
    events: &dyn LogEvents,
    entries: &[Entry],
    hard_state: HardState,
    threads: bool,
) -> Result<VecDeque<EntryPlace>, FirstEntriesError> {
    let entries = entries
        .iter()
        .map(|entry| log::Entry {
            term: entry.term,
            index: entry.index,
            entry_type: u8::from(entry.kind == EntryKind::ConfChange),
            data: entry.data.clone(),
        })
        .collect();
    let batch = Batch { entries, hard_state: Some(saved(hard_state)), ..Batch::default() };
    append_and_wait(log, events, batch, threads)
}

fn append_and_wait(
    log: &mut Log,
    events: &dyn LogEvents,
    batch: Batch,
    threads: bool,
) -> Result<VecDeque<EntryPlace>, FirstEntriesError> {
    if threads {
        events.receive_here();
    }
    let ticket = log.append(batch).map_err(|error| FirstEntriesError::Refused(error.reason))?;
    let deadline = Instant::now() + BOOT_TIMEOUT;
    let (mut told, mut places) = (Vec::new(), VecDeque::new());
    // A log that is driven by hand has sent all its events when its turn is over.
    log.turn();
    let patience = if threads { Duration::from_secs(1) } else { Duration::ZERO };
    while Instant::now() < deadline {
        events.receive(&mut told, patience);
        if !threads && told.is_empty() {
            return Err(FirstEntriesError::NoSpace);
        }
        for event in told.drain(..) {
            match event {
                LogEvent::Synced(synced) => {
                    places.extend(synced.locations);
                    if synced.ticket >= ticket {
                        return Ok(places);
                    }
                }
                LogEvent::Failed(fatal) => return Err(FirstEntriesError::Failed(fatal)),
                _ => {}
            }
        }
    }
    Err(FirstEntriesError::TimedOut)
}

#[cfg(test)]
mod first_start;

#[cfg(test)]
mod tests {
    use machine::image::{self, RunWriter};
    use mvcc::LoadError;
    use numbers::{LeaseId, Revision};

    use super::*;

    const RULES: Rules = Rules { learners_max: 1 };

    fn blocks(machine: &mut Machine) -> Vec<Bytes> {
        let mut writer = RunWriter::new(machine.store.publish(), machine.head(), Revision(0));
        std::iter::from_fn(|| writer.next_block().expect("a held view has everything"))
            .map(Bytes::from)
            .collect()
    }

    /// Returns blocks that can be read up to block number `torn`.
    fn torn_at(
        blocks: &[Bytes],
        torn: usize,
    ) -> Vec<impl Iterator<Item = Result<Bytes, log::OpenError>> + Send> {
        let missing = || log::OpenError::Missing { path: "run".into() };
        let each = move |(at, block)| if at == torn { Err(missing()) } else { Ok(block) };
        vec![blocks.iter().cloned().enumerate().map(each)]
    }

    /// Uses far more versions than may be in flight, so that either thread waits for the other wherever one
    /// of them ends.
    #[test]
    fn two_threads_restore_what_one_does_and_refuse_what_it_refuses() {
        let mut machine = Machine::new(RULES);
        for number in 0..40 * VERSIONS_PER_PIECE {
            let key = format!("/{number:08}");
            machine.store.begin().put(key.as_bytes(), mvcc::Value::default(), LeaseId::NONE);
        }
        let whole = blocks(&mut machine);
        assert!(whole.len() > 5, "{} blocks", whole.len());
        let mut restored =
            restore_in_two(RULES, torn_at(&whole, usize::MAX)).expect("nothing panics").expect("is whole");
        assert!(blocks(&mut restored) == whole);
        let text = |error: &RestoreError<log::OpenError>| format!("{error:?}");
        let both = |blocks: &[Bytes], torn: usize| {
            let one = image::restore(RULES, torn_at(blocks, torn)).expect_err("is damaged");
            let two = restore_in_two(RULES, torn_at(blocks, torn)).expect("nothing panics");
            assert_eq!(two.as_ref().err().map(text), Some(text(&one)));
            one
        };
        for torn in 0..whole.len() {
            assert!(matches!(both(&whole, torn), RestoreError::Read(_)));
            let mut missing = whole.clone();
            missing.remove(torn);
            both(&missing, usize::MAX);
        }
        for at in 1..whole.len() - 2 {
            let mut swapped = whole.clone();
            swapped.swap(at, at + 1);
            // The versions of earlier blocks contradict each other before the torn block is read.
            for torn in [usize::MAX, whole.len() - 1] {
                assert_eq!(text(&both(&swapped, torn)), text(&RestoreError::Load(LoadError::OutOfOrder)));
            }
        }
    }
}
