//! Creates a data directory from an external state, for restoring a snapshot or importing another program's
//! data. [`Restoration`] is the entry point. The module knows neither etcd's formats nor command lines.
//!
//! The created directory is like that of a member that has installed another member's state: the values are
//! in the log, the index is in a checkpoint of one base run, and the log is restarted after the last entry
//! that the state contains. Further entries may follow in the log.
//!
//! Nothing is synced before [`Restoration::finish`]. The caller renames the directory to its final name after
//! that; after an earlier crash it must begin again with an empty directory. The process needs memory for the
//! index, as much as the member that will be started, and for a batch of values.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use api::etcdserverpb::AlarmMember;
use disk::Disk;
use log::checkpoint::{CheckpointStore, Manifest};
use log::{Batch, HardState, Log, LogEvent, Reset, Synced};
use machine::auth::Auth;
use machine::image::{RestoreError, RunWriter};
use machine::snapshot::SnapshotVersion;
use machine::transfer::{Assembly, ReceivedVersion, TransferEnd, TransferHead, TransferReader};
use machine::{Alarms, Command, GrantedLease, Leases, Machine, Malformed, Members, Overtaken, Rules};
use mvcc::{LoadError, Location, RevisionError};
use numbers::{ChangeId, ClusterId, EntryId, Index, MemberId, Revision, Term};

use crate::checkpointer::Level;
use crate::identity::Identity;
use crate::terms::Terms;
use crate::values::LogValues;

/// Bytes of values after which a batch is appended to the log.
const PORTION_BYTES: usize = 4 << 20;
/// Maximum number of versions or entries in one batch, whatever their size.
const PORTION_VERSIONS: usize = 16 << 10;

/// Maximum revision of a state that is accepted: half of the range of the type, so that the revisions of
/// later writes cannot overflow. A state with a higher revision is refused.
const REVISION_MAX: Revision = Revision(i64::MAX / 2);
/// Initial value and factor of the digest of a state: an odd number with many bits set.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The state except keys and values.
#[derive(Debug)]
pub struct RestoredHead {
    /// Compact revision of the state; -1 if it was never compacted.
    pub compact_revision: Revision,
    /// Log index of the last entry that the state contains.
    pub index: Index,
    /// Raft term of the entry at `index`.
    pub term: Term,
    /// Leases: id, TTL in seconds, and the remaining TTL in seconds of the last lease checkpoint (0 if there
    /// is none).
    pub leases: Vec<GrantedLease>,
    /// All raised alarms.
    pub alarms: Vec<AlarmMember>,
    /// Members of the cluster, and the cluster version.
    pub members: Members,
    /// Users, roles, and whether authentication is enabled.
    pub auth: Auth,
    /// True if all members of the cluster are created from this same state. Their rolling hash, which members
    /// compare to detect different states, then starts with a hash of this state. If false, the rolling hash
    /// is unknown and is not compared.
    pub is_shared: bool,
}

/// An entry that follows a restored state in the raft log.
#[derive(Clone, Debug)]
pub struct RestoredEntry {
    /// True if the entry is committed but not yet part of the restored state, so that it must be applied to
    /// the state as well as appended to the log.
    pub applies: bool,
    /// The log entry.
    pub entry: log::Entry,
}

/// Reason why a data directory could not be created from a state.
#[derive(Debug)]
pub enum RestorationError {
    /// A file of the log or of the checkpoint could not be written.
    Files(log::OpenError),
    /// A directory could not be created, examined or synced.
    Io {
        /// The operation that failed, such as `create`.
        doing: &'static str,
        /// The file or directory of the operation.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A file or directory exists at the path of the new directory.
    Exists {
        /// Path of the existing file or directory.
        path: PathBuf,
    },
    /// The disk is full.
    NoSpace {
        /// Directory of the log.
        log_dir: PathBuf,
    },
    /// The log refuses a batch for this reason.
    Refused(log::Refusal),
    /// The log has failed.
    LogFailed(log::Fatal),
    /// The log did not return the location of this item, which is a bug in Mainstay.
    Lost(&'static str),
    /// The state cannot be read from its source.
    Source(Box<dyn Error + Send + Sync>),
    /// The compact revision of the state is invalid.
    CompactRevision(Revision),
    /// Raising the revision would exceed the maximum.
    Bump {
        /// Revision that is to be raised.
        revision: Revision,
        /// Number by which the revision is to be raised.
        by: u64,
    },
    /// A version of a key is out of order, or its revision is too high.
    OutOfOrder {
        /// Main and sub-revision of the version.
        at: ChangeId,
        /// Main and sub-revision of the previous version.
        last: ChangeId,
    },
    /// The head, a lease or a version of the state is invalid.
    Malformed(Malformed),
    /// The versions contradict each other.
    Versions(LoadError),
    /// The versions of a snapshot in Mainstay's own format contradict each other.
    Snapshot(LoadError),
    /// The state cannot be compacted.
    Compaction(RevisionError),
    /// An entry that follows the state cannot be applied.
    Apply(machine::Fatal),
    /// The state was compacted while it was being written, so versions are missing.
    Overtaken(Overtaken),
}

impl From<log::OpenError> for RestorationError {
    fn from(error: log::OpenError) -> RestorationError {
        RestorationError::Files(error)
    }
}

impl From<Malformed> for RestorationError {
    fn from(error: Malformed) -> RestorationError {
        RestorationError::Malformed(error)
    }
}

impl From<machine::Fatal> for RestorationError {
    fn from(error: machine::Fatal) -> RestorationError {
        RestorationError::Apply(error)
    }
}

impl fmt::Display for RestorationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestorationError::Files(error) => error.fmt(f),
            RestorationError::Io { doing, path, error } => {
                write!(f, "cannot {doing} {}: {error}", path.display())
            }
            RestorationError::Exists { path } => write!(f, "{} already exists", path.display()),
            RestorationError::NoSpace { log_dir } => write!(
                f,
                "the disk has no space for {}: a log needs the size of its values and some 200 MB more",
                log_dir.display()
            ),
            RestorationError::Refused(reason) => {
                write!(f, "the log refuses an entry that must be written: {reason:?}")
            }
            RestorationError::LogFailed(fatal) => fatal.fmt(f),
            RestorationError::Lost(what) => write!(f, "the log lost {what}"),
            RestorationError::Source(error) => error.fmt(f),
            RestorationError::CompactRevision(revision) => {
                write!(f, "the state claims an impossible compaction at revision {revision}")
            }
            RestorationError::Bump { revision, by } => {
                write!(f, "revision {revision} cannot be raised by {by}: the highest is {REVISION_MAX}")
            }
            RestorationError::OutOfOrder { at, last } => {
                write!(
                    f,
                    "a version at revision {}.{} follows one at {}.{}",
                    at.main, at.sub, last.main, last.sub
                )
            }
            RestorationError::Malformed(error) => error.fmt(f),
            RestorationError::Versions(error) => write!(f, "the versions contradict each other: {error}"),
            RestorationError::Snapshot(error) => RestoreError::<Overtaken>::Load(*error).fmt(f),
            RestorationError::Compaction(error) => write!(f, "{error:?}"),
            RestorationError::Apply(fatal) => fatal.fmt(f),
            RestorationError::Overtaken(error) => error.fmt(f),
        }
    }
}

impl Error for RestorationError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            RestorationError::Files(error) => error.source(),
            RestorationError::Io { error, .. } => Some(error),
            RestorationError::Source(error) => error.source(),
            RestorationError::Versions(error) | RestorationError::Snapshot(error) => Some(error),
            RestorationError::Compaction(error) => Some(error),
            _ => None,
        }
    }
}

/// A data directory that is being created.
pub struct Restoration {
    disk: Arc<dyn Disk>,
    member_dir: PathBuf,
    log_dir: PathBuf,
    identity: Identity,
    rules: Rules,
    refused_learner: Option<Index>,
    log: Log,
    events: Receiver<LogEvent>,
}

/// Receives the versions of all keys of a state, in the order of revisions, and writes their values to the
/// log of a directory that is being created.
pub struct Filling<'r> {
    restoration: &'r mut Restoration,
    assembly: Assembly,
    head: TransferHead,
    versions: Vec<ReceivedVersion>,
    values: Vec<log::Value>,
    bytes: usize,
    entries: u64,
    /// Id of the last version that was added.
    last: ChangeId,
}

/// Rules by which entries are applied if the options of the member are not known: at most one learner, which
/// is the default of `--max-learners`.
pub const RULES: Rules = Rules { learners_max: 1 };

impl Restoration {
    /// Starts to create a data directory at a path where no member exists.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses an operation, or if a member exists in the directory.
    pub fn begin(
        disk: &Arc<dyn Disk>,
        data_dir: &Path,
        identity: Identity,
    ) -> Result<Restoration, RestorationError> {
        Restoration::begin_sized(disk, data_dir, identity, 0)
    }

    /// Starts a restoration like [`Restoration::begin`], with the log in the separate directory `log_dir`.
    /// The data directory records `named` as the path of the log: the name that the caller will give
    /// `log_dir` when it is complete.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Restoration::begin`].
    pub fn begin_apart(
        disk: &Arc<dyn Disk>,
        data_dir: &Path,
        log_dir: &Path,
        named: &Path,
        identity: Identity,
    ) -> Result<Restoration, RestorationError> {
        let restoration = Restoration::begin_in(disk, data_dir, Some(log_dir), identity, 0)?;
        crate::log_dir::write_note(&**disk, &restoration.member_dir, named)?;
        Ok(restoration)
    }

    /// Starts a restoration like [`Restoration::begin`], with segments of `segment_bytes` bytes (0 for the
    /// usual size). For tests of the ends of segments.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Restoration::begin`].
    pub fn begin_sized(
        disk: &Arc<dyn Disk>,
        data_dir: &Path,
        identity: Identity,
        segment_bytes: u32,
    ) -> Result<Restoration, RestorationError> {
        Restoration::begin_in(disk, data_dir, None, identity, segment_bytes)
    }

    fn begin_in(
        disk: &Arc<dyn Disk>,
        data_dir: &Path,
        log_dir: Option<&Path>,
        identity: Identity,
        segment_bytes: u32,
    ) -> Result<Restoration, RestorationError> {
        let member_dir = data_dir.join("member");
        let failed = |error| RestorationError::Io { doing: "create", path: member_dir.clone(), error };
        if disk.exists(&member_dir).map_err(failed)? {
            return Err(RestorationError::Exists { path: member_dir });
        }
        disk.create_dir_all(&member_dir).map_err(failed)?;
        let log::Owner { cluster_id, member_id } = identity.owner();
        let log_dir = log_dir.map_or_else(|| member_dir.join("log"), Path::to_path_buf);
        let mut options = log::Options::new(&log_dir, cluster_id, member_id);
        options.by_hand = true;
        let failed_in_log = |doing| {
            let path = log_dir.clone();
            move |error| RestorationError::Io { doing, path, error }
        };
        disk.create_dir_all(&log_dir).map_err(failed_in_log("create"))?;
        let space = disk.space(&log_dir).map_err(failed_in_log("ask for the free space of"))?;
        options.segment_bytes =
            if segment_bytes > 0 { segment_bytes } else { log::segment_bytes_for(space.total_bytes) };
        options.unsafe_no_fsync = true;
        let (sender, events) = channel();
        // The error of `send` is ignored: once the directory is complete, the receiver is dropped, and later
        // events are not needed.
        let on_event = Box::new(move |event| drop(sender.send(event)));
        let (log, _) = Log::open(options, Arc::clone(disk), Index(1), &mut |_| {}, on_event)?;
        let disk = Arc::clone(disk);
        Ok(Restoration {
            disk,
            member_dir,
            log_dir,
            identity,
            rules: RULES,
            refused_learner: None,
            log,
            events,
        })
    }

    /// Returns a reader of the values that were written.
    pub fn values(&self) -> LogValues {
        LogValues::new(self.log.values())
    }

    /// Begins to restore a state with this head. The versions are then added to the returned value.
    ///
    /// # Errors
    ///
    /// Returns an error if the head is invalid.
    pub fn fill(&mut self, head: RestoredHead) -> Result<Filling<'_>, RestorationError> {
        if !(Revision::NEVER_COMPACTED..=REVISION_MAX).contains(&head.compact_revision) {
            return Err(RestorationError::CompactRevision(head.compact_revision));
        }
        let digest = head.is_shared.then(|| {
            let mut digest = SEED;
            for GrantedLease { id, ttl, remaining } in &head.leases {
                digest =
                    [id.0, ttl.0, remaining.0].into_iter().fold(digest, |digest, n| mix(digest, n as u64));
            }
            for word in head.auth.digest() {
                digest = mix(digest, word);
            }
            mix(digest, head.compact_revision.0 as u64)
        });
        let head = TransferHead {
            from: Revision(0),
            revision: Revision::FIRST,
            compact_revision: head.compact_revision,
            applied_index: head.index,
            applied_term: head.term,
            versions_max: 0,
            state_hash: digest,
            leases: Leases::granted(head.leases)?,
            alarms: Alarms::raised(head.alarms),
            members: head.members,
            auth: head.auth,
        };
        let mut assembly = Assembly::new(self.rules, None);
        assembly.begin(&head)?;
        let (versions, values) = (Vec::new(), Vec::new());
        Ok(Filling {
            restoration: self,
            assembly,
            head,
            versions,
            values,
            bytes: 0,
            entries: 0,
            last: ChangeId::default(),
        })
    }

    /// Writes the values of a snapshot in Mainstay's own format to the log, and returns the restored machine.
    /// The caller may have changed the head of the snapshot. If `bump` is given, the revision is raised by
    /// that number, and all earlier revisions are compacted.
    ///
    /// # Errors
    ///
    /// Returns an error if the snapshot is damaged, or the disk fails.
    pub fn take_snapshot<I, B>(
        &mut self,
        mut reader: machine::snapshot::SnapshotReader<I>,
        bump: Option<u64>,
    ) -> Result<Machine, RestorationError>
    where
        I: Iterator<Item = Result<B, RestorationError>>,
        B: AsRef<[u8]>,
    {
        let rules = self.rules;
        let bump = bump.map(|by| bumped(reader.head().revision, by)).transpose()?;
        if let Some(to) = bump {
            let head = reader.head_mut();
            head.revision = to;
            // Members restored from the same snapshot with different bumps have different states. So the
            // raised revision is mixed into the hash, to make their hashes differ.
            head.state_hash = head.state_hash.map(|hash| mix(hash, to.0 as u64));
        }
        let mut number = 0;
        let mut machine = machine::snapshot::restore(rules, reader, bump, |value| {
            // Serial numbers suffice as ids of these values: the index stores the location of each value, so
            // the ids are not used later.
            number += 1;
            let id = log::ValueId { main: number, sub: 0 };
            let data = bytes::Bytes::copy_from_slice(value);
            let placed = self.append(Batch {
                values: vec![log::Value { id, data, compressed: None }],
                ..Batch::default()
            })?;
            placed.values.first().map(|(_, place)| *place).ok_or(RestorationError::Lost("a value"))
        })
        .map_err(|error| match error {
            RestoreError::Read(error) => error,
            RestoreError::Malformed(error) => RestorationError::Malformed(error),
            RestoreError::Load(error) => RestorationError::Snapshot(error),
        })?;
        if bump.is_some() {
            let revision = machine.store.current_revision();
            machine.store.compact(revision).map_err(RestorationError::Compaction)?;
            while !machine.compact_step(u64::MAX) {}
        }
        Ok(machine)
    }

    /// Writes the values of a whole transfer to the log, and returns the restored machine. The caller may have
    /// changed the head of the transfer. If `bump` is given, the revision is raised by that number, and all
    /// earlier revisions are compacted. Otherwise the rolling hash of the state is that of the transfer.
    ///
    /// # Errors
    ///
    /// Returns an error if the transfer is damaged or lacks its beginning, or the disk fails.
    pub fn take_transfer<I, B>(
        &mut self,
        mut reader: TransferReader<I>,
        bump: Option<u64>,
    ) -> Result<Machine, RestorationError>
    where
        I: Iterator<Item = Result<B, RestorationError>>,
        B: AsRef<[u8]>,
    {
        if reader.head().from != Revision(0) {
            return Err(Malformed("a transfer that lacks its beginning").into());
        }
        let mut assembly = Assembly::new(self.rules, None);
        assembly.begin(reader.head())?;
        let mut filling = Filling {
            restoration: self,
            assembly,
            // The head of the transfer takes its place below. Without a hash of its own, it does not mix the
            // versions into one: the hash of the transfer covers them already.
            head: TransferHead {
                from: Revision(0),
                revision: Revision::FIRST,
                compact_revision: Revision::NEVER_COMPACTED,
                applied_index: Index(0),
                applied_term: Term(0),
                versions_max: 0,
                state_hash: None,
                leases: Leases::default(),
                alarms: Alarms::default(),
                members: Members::default(),
                auth: Auth::default(),
            },
            versions: Vec::new(),
            values: Vec::new(),
            bytes: 0,
            entries: 0,
            last: ChangeId::default(),
        };
        while let Some(version) = reader.next().map_err(unreadable)? {
            filling.push(&version)?;
        }
        filling.head = reader.finish().head;
        filling.finish(bump)
    }

    /// Sets the rules for applying entries that the options of the member define.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Returns the index of the first applied entry that was refused only because of the number of learners,
    /// under the rules that were set. The member itself may have used other rules, under which the learner
    /// was added.
    pub fn refused_learner(&self) -> Option<Index> {
        self.refused_learner
    }

    /// Starts the log after the entry `begin`, by default the last one that the machine's state contains, and
    /// appends entries. Entries marked with `applies` are also applied to the machine. Returns the terms of
    /// the entries that the state then contains, for [`Restoration::finish`].
    ///
    /// # Errors
    ///
    /// Returns an error if an entry cannot be applied, or the disk fails.
    pub fn follow(
        &mut self,
        machine: &mut Machine,
        hard_state: HardState,
        begin: Option<EntryId>,
        entries: &mut dyn Iterator<Item = Result<RestoredEntry, Box<dyn Error + Send + Sync>>>,
    ) -> Result<Terms, RestorationError> {
        let in_state = EntryId { index: machine.applied_index, term: machine.applied_term };
        let EntryId { index, term } = begin.unwrap_or(in_state);
        let mut terms = Terms::default();
        let mut batch = Batch::default();
        if index > Index(0) {
            terms.push(EntryId { index, term });
            batch.reset = Some(Reset { index, term });
        }
        self.append_entries(machine, hard_state, entries, (batch, &mut terms))?;
        Ok(terms)
    }

    /// Appends further entries after those of [`Restoration::follow`], which returned `terms`, and applies
    /// them in the same way. The new hard state replaces the earlier one.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Restoration::follow`].
    pub fn follow_on(
        &mut self,
        machine: &mut Machine,
        hard_state: HardState,
        entries: &mut dyn Iterator<Item = Result<RestoredEntry, Box<dyn Error + Send + Sync>>>,
        terms: &mut Terms,
    ) -> Result<(), RestorationError> {
        self.append_entries(machine, hard_state, entries, (Batch::default(), terms))
    }

    fn append_entries(
        &mut self,
        machine: &mut Machine,
        hard_state: HardState,
        entries: &mut dyn Iterator<Item = Result<RestoredEntry, Box<dyn Error + Send + Sync>>>,
        (mut batch, terms): (Batch, &mut Terms),
    ) -> Result<(), RestorationError> {
        let values = self.values();
        // Entries up to this index are already part of the state. If they are appended to the log
        // nevertheless, only their terms are recorded.
        let in_state = machine.applied_index;
        let (mut applies, mut bytes) = (Vec::new(), 0);
        loop {
            let next = entries.next().transpose().map_err(RestorationError::Source)?;
            let is_last = next.is_none();
            if let Some(RestoredEntry { applies: does, entry }) = next {
                bytes += entry.data.len();
                applies.push(does);
                batch.entries.push(entry);
            }
            if !is_last && bytes < PORTION_BYTES && applies.len() < PORTION_VERSIONS {
                continue;
            }
            let portion = batch.entries.clone();
            if is_last {
                batch.hard_state = Some(hard_state);
            }
            let placed = self.append(std::mem::take(&mut batch))?;
            if placed.locations.len() != portion.len() {
                return Err(RestorationError::Lost("an entry"));
            }
            for ((entry, does), place) in portion.iter().zip(applies.drain(..)).zip(placed.locations) {
                if entry.index <= in_state {
                    terms.push(EntryId { index: entry.index, term: entry.term });
                }
                if !does {
                    continue;
                }
                let (index, term, location) = (entry.index, entry.term, place.location);
                let command = Command { index, term, data: &entry.data, location };
                let applied = match entry.entry_type {
                    0 => machine.apply(command, &values, false).map(drop),
                    _ => {
                        if self.refused_learner.is_none() && machine.is_refused_by_learners_max(&entry.data) {
                            self.refused_learner = Some(index);
                        }
                        machine.apply_conf_change(command).map(drop)
                    }
                };
                applied?;
                terms.push(EntryId { index, term });
            }
            bytes = 0;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Writes the checkpoint and makes everything durable. `terms` is the result of [`Restoration::follow`].
    ///
    /// # Errors
    ///
    /// Returns an error if the disk fails.
    pub fn finish(self, mut machine: Machine, terms: &Terms) -> Result<(), RestorationError> {
        let Restoration { disk, member_dir, log_dir, identity, log, .. } = self;
        let values = log.values();
        drop(log);
        let failed = |error| RestorationError::Io { doing: "sync", path: log_dir.clone(), error };
        for name in disk.list(&log_dir).map_err(failed)? {
            // Syncs every file in the directory: the files of the log, and, if the caller has created one,
            // the mark that the directory is under construction.
            disk.open(&log_dir.join(name)).and_then(|file| file.sync_all()).map_err(failed)?;
        }
        disk.sync_dir(&log_dir).map_err(failed)?;
        if machine.applied_index > Index(0) {
            let checkpoints = CheckpointStore::open(Arc::clone(&disk), member_dir.join("checkpoint"))?;
            let view = machine.store.publish();
            let head = machine.head();
            let (to, applied_index, term) = (head.revision, head.applied_index, head.applied_term);
            let name = Level::name(Revision(0), to, applied_index, &[]);
            let mut file = checkpoints.begin(&name, applied_index, term, &identity.to_bytes())?;
            let mut blocks = RunWriter::new(view, head, Revision(0));
            while let Some(block) = blocks.next_block().map_err(RestorationError::Overtaken)? {
                file.write_block(&block)?;
            }
            let run = file.finish()?;
            let metadata = terms.write();
            let manifest = Manifest { applied_index, term, metadata, runs: vec![run] };
            checkpoints.commit(&manifest).map_err(log::OpenError::from)?;
        }
        let end = values.log_end();
        let record = log::ShutdownRecord {
            cluster_id: ClusterId(identity.cluster_id),
            member_id: MemberId(identity.member_id),
            end,
            synced_to: None,
        };
        record.write(&*disk, &member_dir.join(log::ShutdownRecord::FILE_NAME))?;
        disk.sync_dir(&member_dir).map_err(|error| RestorationError::Io {
            doing: "sync",
            path: member_dir.clone(),
            error,
        })
    }

    /// Appends a batch and returns the locations of its entries and values.
    fn append(&mut self, batch: Batch) -> Result<Synced, RestorationError> {
        let full = || RestorationError::NoSpace { log_dir: self.log_dir.clone() };
        let ticket = match self.log.append(batch) {
            Ok(ticket) => ticket,
            Err(refused) => {
                return Err(match refused.reason {
                    log::Refusal::NoSpace => full(),
                    reason => RestorationError::Refused(reason),
                });
            }
        };
        self.log.turn();
        let mut all = Synced::default();
        while let Ok(event) = self.events.try_recv() {
            match event {
                LogEvent::Synced(synced) => {
                    all.ticket = synced.ticket;
                    all.locations.extend(synced.locations);
                    all.values.extend(synced.values);
                }
                LogEvent::Failed(fatal) => return Err(RestorationError::LogFailed(fatal)),
                LogEvent::SpaceChanged(_) => {}
            }
        }
        if all.ticket < ticket { Err(full()) } else { Ok(all) }
    }
}

/// Returns the revision raised by `by`.
///
/// # Errors
///
/// Returns an error if the raised revision exceeds the maximum.
pub fn bumped(revision: Revision, by: u64) -> Result<Revision, RestorationError> {
    i64::try_from(by)
        .ok()
        .and_then(|by| revision.0.checked_add(by))
        .map(Revision)
        .filter(|revision| *revision <= REVISION_MAX)
        .ok_or(RestorationError::Bump { revision, by })
}

fn unreadable(error: RestoreError<RestorationError>) -> RestorationError {
    match error {
        RestoreError::Read(error) => error,
        RestoreError::Malformed(error) => RestorationError::Malformed(error),
        RestoreError::Load(error) => RestorationError::Versions(error),
    }
}

fn mix(digest: u64, word: u64) -> u64 {
    // Because the factor is odd, two different words never give the same result for the same digest. The
    // rotation moves high bits down, because a multiplication only carries them up.
    (digest ^ word).wrapping_mul(SEED).rotate_left(29)
}

impl Filling<'_> {
    /// Adds the next version, in the order of revisions.
    ///
    /// # Errors
    ///
    /// Returns an error if the version is out of order, if its revision is too high, or if the disk fails.
    pub fn push(&mut self, version: &SnapshotVersion<'_>) -> Result<(), RestorationError> {
        let received = ReceivedVersion::of(version)?;
        let at = ChangeId { main: version.main, sub: version.sub };
        if at <= self.last || version.main > REVISION_MAX {
            return Err(RestorationError::OutOfOrder { at, last: self.last });
        }
        self.last = at;
        if let Some(digest) = &mut self.head.state_hash {
            let bytes =
                u64::from(crc32c::crc32c(version.key)) << 32 | u64::from(crc32c::crc32c(version.value));
            let numbers = [
                version.main.0 as u64,
                u64::from(version.sub),
                version.version as u64,
                version.lease.0 as u64,
            ];
            *digest = numbers.into_iter().fold(mix(*digest, bytes), mix);
        }
        if received.value_len() > 0 {
            let id = log::ValueId { main: version.main.0, sub: i64::from(version.sub) };
            let data = bytes::Bytes::copy_from_slice(version.value);
            self.values.push(log::Value { id, data, compressed: None });
            self.bytes += version.value.len();
        }
        self.versions.push(received);
        self.entries += 1;
        if self.bytes >= PORTION_BYTES || self.versions.len() >= PORTION_VERSIONS {
            self.place()?;
        }
        Ok(())
    }

    /// Returns the revision of the state that consists of the versions added so far.
    pub fn revision(&self) -> Revision {
        self.last.main.max(self.head.compact_revision).max(Revision::FIRST)
    }

    /// Builds the machine from the versions added. If `bump` is given, the revision of the state becomes that
    /// of the last version plus this number, and all earlier revisions are compacted, as `etcdutl` does.
    ///
    /// # Errors
    ///
    /// Returns an error if versions contradict each other, if the raised revision exceeds the maximum, or if
    /// the disk fails.
    pub fn finish(mut self, bump: Option<u64>) -> Result<Machine, RestorationError> {
        if let Some(by) = bump {
            let to = bumped(self.last.main, by)?;
            self.push(&SnapshotVersion::bump(to))?;
            self.head.compact_revision = self.head.compact_revision.max(to);
        }
        self.place()?;
        self.head.revision = self.revision();
        let end = TransferEnd { head: self.head, entries: self.entries };
        self.assembly.finish(end).map_err(|error| match error {
            RestoreError::Load(error) => RestorationError::Versions(error),
            RestoreError::Malformed(error) => RestorationError::Malformed(error),
            RestoreError::Read(error) => RestorationError::Overtaken(error),
        })
    }

    fn place(&mut self) -> Result<(), RestorationError> {
        self.bytes = 0;
        let values = std::mem::take(&mut self.values);
        let places = match values.is_empty() {
            true => Vec::new(),
            false => self.restoration.append(Batch { values, ..Batch::default() })?.values,
        };
        let mut places = places.into_iter();
        for version in self.versions.drain(..) {
            let location = match version.value_len() {
                0 => Location::default(),
                _ => places.next().ok_or(RestorationError::Lost("a value"))?.1,
            };
            self.assembly.push(&version, location);
        }
        Ok(())
    }
}
