//! Sends the state to members that run etcd, and receives it from them, as an etcd database file.
//!
//! A received database is written to a file, checked as a whole, and then handled like a state in Mainstay's
//! own format: values go into the log, the rest into an [`Assembly`]. The name of the file is removed as soon
//! as the file is open, so that nothing is left of the file even if the process is killed.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::{error, raftpb};
use bytes::Bytes;
use disk::{Disk, File};
use interchange::FileSink;
use interchange::backend::{Backend, BackendWriter, Membership, Meta, Release};
use interchange::bolt::Bolt;
use machine::image::Head;
use machine::transfer::{Assembly, TransferEnd, TransferHead};
use machine::{Alarms, AsOf, Leases, Machine};
use numbers::{ChangeId, Index, Revision, Term};
use peer::{OpenedSnapshot, SnapshotForm};
use storage::etcd_database::{self, EtcdDatabase, EtcdDatabaseError, TooManyChanges, UnknownVersion};
use storage::values::LogValues;
use tokio::sync::oneshot;

use super::{Outcome, Portion, ReceiveError, ReceivedState, Receiver, attempt};
use crate::requests::{PeerRequest, ReplyBody};

/// Name of the file in the member's directory. The name exists only until the file is open.
const SPOOL_NAME: &str = "received.db";
/// Bytes written between two checks of the free space.
const LOOK_BYTES: u64 = 8 << 20;
/// Bytes that must stay free on the disk for the member's own log. On a small disk the limit is an eighth of
/// the disk, if that is less.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// Bytes that a change takes in the log and in a checkpoint in addition to its key and value.
const CHANGE_BYTES: u64 = 192;
/// Maximum number of versions whose encoded sizes are added up with one view of the state. (`WRITTEN_AT_ONCE`
/// limits the bytes of values that are written with one view.)
const MEASURED_AT_ONCE: usize = 2048;
const WRITTEN_AT_ONCE: usize = 256 << 10;
/// Maximum revision of a received database. It is half of the largest number, so that enough higher numbers
/// are left for later revisions.
const REVISION_MAX: Revision = Revision(i64::MAX / 2);

/// Reason why the database of a member that runs etcd was not accepted.
#[derive(Debug)]
pub enum DatabaseError {
    /// The stream broke off.
    Stream(io::Error),
    /// The sender no longer leads, because another member does.
    OtherLeader,
    /// The file for the database could not be created or written.
    Spool {
        /// The operation that failed.
        doing: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The disk has too little space for the database.
    NoSpace {
        /// Bytes of the database that were written.
        written: u64,
        /// Bytes that have to stay free for the log.
        free_min: u64,
    },
    /// The file cannot be read or is damaged.
    Read(interchange::Error),
    /// The database contains the state as of another log entry than the message says.
    OtherEntry {
        /// Log index of the state in the database.
        file: u64,
        /// Log index in the message.
        message: u64,
    },
    /// The database and the message name different members.
    OtherMembers {
        /// Ids of the members in the database.
        file: BTreeSet<u64>,
        /// Ids of the members in the message.
        message: BTreeSet<u64>,
    },
    /// The database does not contain this member, whose id this is.
    NotAMember(u64),
    /// The state has a version that this member does not know.
    Version(UnknownVersion),
    /// A revision has more changes than the index can number.
    Changes(TooManyChanges),
    /// A change is in the wrong order, or its revision is too high.
    OutOfOrder {
        /// Main and sub-revision of the change.
        at: ChangeId,
        /// Main and sub-revision of the previous change.
        last: ChangeId,
    },
    /// The compact revision is invalid.
    CompactRevision(Revision),
}

impl From<interchange::Error> for DatabaseError {
    fn from(error: interchange::Error) -> DatabaseError {
        DatabaseError::Read(error)
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ids: &BTreeSet<u64>| {
            let ids: Vec<String> = ids.iter().map(|id| format!("{id:x}")).collect();
            ids.join(", ")
        };
        match self {
            DatabaseError::Stream(error) => error.fmt(f),
            DatabaseError::OtherLeader => f.write_str("another member has become leader"),
            DatabaseError::Spool { doing, path, error } => {
                write!(f, "{doing} {}: {error}", path.display())
            }
            DatabaseError::NoSpace { written, free_min } => write!(
                f,
                "no space left on device: after the first {written} bytes of the database, less than \
                 {free_min} bytes would be left for the log"
            ),
            DatabaseError::Read(error) => error.fmt(f),
            DatabaseError::OtherEntry { file, message } => {
                write!(
                    f,
                    "the database holds the state at entry {file}, but the message is for entry {message}"
                )
            }
            DatabaseError::OtherMembers { file, message } => write!(
                f,
                "the database lists the members {}, but the message lists {}",
                list(file),
                list(message)
            ),
            DatabaseError::NotAMember(id) => write!(f, "member {id:x} is not in its member list"),
            DatabaseError::Version(error) => error.fmt(f),
            DatabaseError::Changes(error) => error.fmt(f),
            DatabaseError::OutOfOrder { at, last } => {
                write!(
                    f,
                    "a change at revision {}.{} follows one at {}.{}",
                    at.main, at.sub, last.main, last.sub
                )
            }
            DatabaseError::CompactRevision(revision) => {
                write!(f, "the state claims an impossible compaction at revision {revision}")
            }
        }
    }
}

impl DatabaseError {
    /// Returns the kind of an error whose cause probably persists, so that the next attempt would fail again;
    /// `None` for temporary errors.
    pub fn lasting_kind(&self) -> Option<&'static str> {
        match self {
            DatabaseError::Stream(_) | DatabaseError::Spool { .. } | DatabaseError::OtherLeader => None,
            DatabaseError::NoSpace { .. } => Some("spool"),
            DatabaseError::Read(_) => Some("damage"),
            DatabaseError::OtherEntry { .. } => Some("other entry"),
            DatabaseError::OtherMembers { .. } => Some("other members"),
            DatabaseError::NotAMember(_) => Some("no member"),
            DatabaseError::Version(_) => Some("version"),
            DatabaseError::Changes(_)
            | DatabaseError::OutOfOrder { .. }
            | DatabaseError::CompactRevision(_) => Some("history"),
        }
    }
}

impl std::error::Error for DatabaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DatabaseError::Stream(error) | DatabaseError::Spool { error, .. } => Some(error),
            DatabaseError::Read(error) => Some(error),
            _ => None,
        }
    }
}

/// The file for a database that is being received. Only one database is received at a time, because each may
/// fill the disk.
pub(super) struct Spool {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    is_taken: AtomicBool,
}

/// The right to use the spool. Dropping it returns the right, so that another receipt can take it.
struct Turn<'a>(&'a Spool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

impl Spool {
    /// Returns the spool in this directory. Tries to remove a file that a power cut has left in it.
    pub(super) fn new(disk: Arc<dyn Disk>, dir: &Path) -> Spool {
        let spool = Spool { disk, dir: dir.to_path_buf(), is_taken: AtomicBool::new(false) };
        // An error is ignored here. If the file cannot be removed, the next receipt of a database tries again
        // and fails with that error.
        let _ = spool.clear();
        spool
    }

    fn clear(&self) -> io::Result<()> {
        let path = self.dir.join(SPOOL_NAME);
        if self.disk.exists(&path)? { self.disk.remove(&path) } else { Ok(()) }
    }

    /// Returns the right to use the spool; `None` if it is in use.
    fn turn(&self) -> Option<Turn<'_>> {
        let is_free =
            self.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        is_free.then(|| Turn(self))
    }
}

impl Turn<'_> {
    /// Writes the body to a file without a name. Checks before each chunk that `is_wanted` still returns
    /// true, and fails if it does not.
    fn take(
        &self,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Arc<dyn File>, DatabaseError> {
        let Turn(spool) = self;
        let path = spool.dir.join(SPOOL_NAME);
        let failed = |doing| {
            let path = path.clone();
            move |error| DatabaseError::Spool { doing, path, error }
        };
        spool.clear().map_err(failed("remove"))?;
        let file = spool.disk.create(&path).map_err(failed("create"))?;
        spool.disk.remove(&path).map_err(failed("remove"))?;
        let mut sink = FileSink::new(Arc::clone(&file));
        let (mut written, mut looked_at) = (0, 0);
        for piece in body {
            let piece = piece.map_err(DatabaseError::Stream)?;
            if !is_wanted() {
                return Err(DatabaseError::OtherLeader);
            }
            if written >= looked_at {
                let space = spool.disk.space(&spool.dir).map_err(failed("look at"))?;
                let free_min = FREE_BYTES_MIN.min(space.total_bytes / 8);
                if space.free_bytes < free_min + LOOK_BYTES {
                    return Err(DatabaseError::NoSpace { written, free_min });
                }
                looked_at = written + LOOK_BYTES;
            }
            sink.write_all(&piece).map_err(failed("write"))?;
            written += piece.len() as u64;
        }
        // The file is not synced, because it has no name and could not be found after a crash.
        sink.flush().map_err(failed("write"))?;
        Ok(file)
    }
}

/// Returns the members of a received state. They are taken from the database (`file`), unless it does not
/// list all of them, as in etcd 3.4, which keeps them in its v2 store. In that case they are taken from
/// `image`, the copy of that store in the snapshot message. Whether a member votes is always taken from
/// `conf`, because raft uses `conf`, and the databases of some releases do not contain that information.
fn members(
    file: Membership,
    meta: &Meta,
    image: &[u8],
    conf: &raftpb::ConfState,
) -> Result<Membership, DatabaseError> {
    let told: BTreeSet<u64> = conf.voters.iter().chain(&conf.learners).copied().collect();
    let ids = |of: &Membership| -> BTreeSet<u64> { of.members.iter().map(|member| member.id).collect() };
    let in_image = meta.term.is_none() || ids(&file) != told;
    let mut members = match in_image && !image.is_empty() {
        true => interchange::members_of_image(image)?,
        false => file,
    };
    if ids(&members) != told {
        return Err(DatabaseError::OtherMembers { file: ids(&members), message: told });
    }
    for member in &mut members.members {
        member.is_learner = conf.learners.contains(&member.id);
    }
    Ok(members)
}

impl Receiver {
    /// Receives a state from a member that runs etcd. Returns when the state is durable on this member, or
    /// raft has ignored it. Until this method returns, the sender keeps the log entries after the state;
    /// after the response it keeps them only for half a minute. Blocks when `body` or the disk blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if the database is invalid, if this member cannot accept it now, or if the first
    /// attempt to make it durable failed.
    pub async fn receive_database(
        &self,
        mut message: raftpb::Message,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), ReceiveError> {
        let image = message.snapshot.as_mut().and_then(|snapshot| snapshot.data.take()).unwrap_or_default();
        self.database_refusals.check(self.shared.member.clock.now())?;
        let taken = self.take_database(message, image, body).await;
        self.database_refusals.note(taken.as_ref().copied(), self.shared.member.clock.now());
        taken
    }

    /// Receives a state, without the check for a pause after a refusal. First receives and checks the whole
    /// database, while this member continues normally. Only then begins an attempt, because during an attempt
    /// this member takes no checkpoints and frees no disk space.
    async fn take_database(
        &self,
        message: raftpb::Message,
        image: Bytes,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), ReceiveError> {
        self.check_front(&message, &image)?;
        let offered = attempt(0, &message, None);
        let reply =
            self.shared.core.ask(move |request_id| PeerRequest::OfferSnapshot(request_id, offered)).await;
        match reply.map(|reply| reply.body) {
            Ok(ReplyBody::Readable(_)) => {}
            Ok(ReplyBody::Outcome(Err(status), _)) | Err(status) => {
                return Err(ReceiveError::NotNow(Some(status)));
            }
            Ok(_) => return Err(ReceiveError::NotNow(None)),
        }
        let (claim, machine) = self.read_database(&message, image, body).await?;
        let (told, outcome) = oneshot::channel();
        let received =
            ReceivedState { message, machine: Box::new(machine), base_applied: None, told: Some(told) };
        self.shared.core.inbox.send(PeerRequest::SnapshotReceived(claim, Box::new(received)));
        match outcome.await {
            // Raft ignores a state whose entries this member already has, because the sender's information
            // was outdated. That counts as success, as in etcd.
            Ok(Outcome::Durable | Outcome::NotWanted) => Ok(()),
            Ok(Outcome::Refused(reason)) => Err(ReceiveError::Refused(reason)),
            Ok(Outcome::NotSaved(reason)) => Err(ReceiveError::NotSaved(reason)),
            Ok(Outcome::GivenUp(status)) => Err(ReceiveError::NotNow(Some(status))),
            // The core has ended, and with it the sender of the outcome.
            Err(_) => Err(ReceiveError::NotNow(Some(error::STOPPED))),
        }
    }

    /// Receives a database and builds a machine from it. Returns the number of the attempt, and the machine.
    /// The file and the image are dropped before this method returns.
    async fn read_database(
        &self,
        message: &raftpb::Message,
        image: Bytes,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(u64, Machine), ReceiveError> {
        let Some(turn) = self.spool.turn() else {
            return Err(ReceiveError::NotNow(Some(error::TOO_MANY_REQUESTS)));
        };
        // The receipt continues while no leader is known, because the sender may still be the leader. It ends
        // when another member becomes the leader.
        let from = message.from();
        let is_wanted = || [0, from].contains(&self.shared.state.load().leader);
        let database = opened(turn.take(body, is_wanted)?)?;
        let (head, database) = self.judge(message, &image, database)?;
        // A database contains the whole state, so the attempt does not build on this member's own state, and
        // the space is checked for all of it.
        let bound = database.bound_bytes;
        let claim = match self.begin(message, Some(bound)).await {
            Err(ReceiveError::NoRoom(_)) => {
                let exact = needed_bytes(&database.backend)?;
                self.begin(message, Some(exact)).await?.claim
            }
            begun => begun?.claim,
        };
        match self.convert(claim, head, &database.backend).await {
            Ok(machine) => Ok((claim, machine)),
            Err(why) => {
                self.shared.core.inbox.send(PeerRequest::SnapshotGivenUp(claim));
                Err(why)
            }
        }
    }

    /// Checks what the message already contains: the members, and the version in the image of the v2 store.
    fn check_front(&self, message: &raftpb::Message, image: &[u8]) -> Result<(), DatabaseError> {
        let metadata = message.snapshot.as_ref().and_then(|snapshot| snapshot.metadata.as_ref());
        let conf = metadata.and_then(|metadata| metadata.conf_state.as_ref());
        let own = self.shared.member.identity.member_id;
        if conf.is_none_or(|conf| !conf.voters.contains(&own) && !conf.learners.contains(&own)) {
            return Err(DatabaseError::NotAMember(own));
        }
        // If the image is empty or cannot be read, that is no error yet. The database, which arrives later,
        // may contain the members itself.
        match interchange::members_of_image(image) {
            Ok(membership) => {
                etcd_database::check_versions(None, &membership).map_err(DatabaseError::Version)
            }
            Err(_) => Ok(()),
        }
    }

    /// Checks everything in a database except its history, which is the list of all changes of keys. Returns
    /// the head (the state except keys and values) and the database. The revision in the head is a
    /// placeholder, which [`Self::convert`] replaces: a database does not store its current revision, so it
    /// is known only when the last change has been read.
    fn judge(
        &self,
        message: &raftpb::Message,
        image: &[u8],
        database: Opened,
    ) -> Result<(TransferHead, Opened), ReceiveError> {
        let metadata = message.snapshot.as_ref().and_then(|snapshot| snapshot.metadata.clone());
        let metadata = metadata.unwrap_or_default();
        let conf = metadata.conf_state.unwrap_or_default();
        let (index, term) = (metadata.index.unwrap_or(0), metadata.term.unwrap_or(0));
        let backend = &database.backend;
        let meta = backend.meta().map_err(DatabaseError::Read)?;
        // In releases before 3.5, entries that change only members do not advance the consistent index of the
        // database. So it may be lower than the index in the message.
        let fits = match meta.term {
            Some(_) => meta.consistent_index == index,
            None => meta.consistent_index <= index,
        };
        if !fits {
            return Err(DatabaseError::OtherEntry { file: meta.consistent_index, message: index }.into());
        }
        let membership = backend.membership().map_err(DatabaseError::Read)?;
        let membership = members(membership, &meta, image, &conf)?;
        etcd_database::check_versions(meta.storage_version.as_deref(), &membership)
            .map_err(DatabaseError::Version)?;
        let compact_revision = meta.compact_revision().unwrap_or(Revision::NEVER_COMPACTED);
        if !(Revision::NEVER_COMPACTED..=REVISION_MAX).contains(&compact_revision) {
            return Err(DatabaseError::CompactRevision(compact_revision).into());
        }
        let leases = etcd_database::leases(backend).map_err(DatabaseError::Read)?;
        let head = TransferHead {
            from: Revision(0),
            // A placeholder: the revision is known only after all changes of keys have been read.
            revision: Revision::FIRST,
            compact_revision,
            applied_index: Index(index),
            applied_term: Term(term),
            versions_max: 0,
            state_hash: None,
            leases: Leases::granted(leases).map_err(ReceiveError::Malformed)?,
            alarms: Alarms::raised(backend.alarms().map_err(DatabaseError::Read)?),
            members: etcd_database::members(&membership),
            auth: etcd_database::users(backend.auth().map_err(DatabaseError::Read)?),
        };
        Ok((head, database))
    }

    /// Builds a machine from a database.
    async fn convert(
        &self,
        claim: u64,
        mut head: TransferHead,
        database: &Backend<Arc<dyn File>>,
    ) -> Result<Machine, ReceiveError> {
        let mut assembly = Assembly::new(self.rules, None);
        assembly.begin(&head).map_err(ReceiveError::Malformed)?;
        let (entries, last) = self.take_history(claim, database, &mut assembly).await?;
        head.revision = last.main.max(head.compact_revision).max(Revision::FIRST);
        assembly.finish(TransferEnd { head, entries }).map_err(ReceiveError::Assemble)
    }

    /// Reads all changes of the database into the assembly. Returns the number of versions, and the id of the
    /// last change.
    async fn take_history(
        &self,
        claim: u64,
        database: &Backend<Arc<dyn File>>,
        assembly: &mut Assembly,
    ) -> Result<(u64, ChangeId), ReceiveError> {
        let mut history = database.history().map_err(DatabaseError::Read)?;
        let (mut entries, mut last) = (0, ChangeId::end_of(Revision(0)));
        let (mut portion, mut placing) = (Portion::default(), None);
        while let Some(change) = history.step().map_err(DatabaseError::Read)? {
            let version = etcd_database::version(&change).map_err(DatabaseError::Changes)?;
            let at = ChangeId { main: version.main, sub: version.sub };
            if at <= last || version.main > REVISION_MAX {
                return Err(DatabaseError::OutOfOrder { at, last }.into());
            }
            last = at;
            entries += 1;
            portion.take(&version).map_err(ReceiveError::Malformed)?;
            if portion.is_full() {
                // The next batch is read while the log writes this one.
                if let Some(before) = placing.take() {
                    Receiver::placed(before, assembly).await?;
                }
                placing = Some(self.place((claim, true), std::mem::take(&mut portion)));
            }
        }
        if let Some(before) = placing.take() {
            Receiver::placed(before, assembly).await?;
        }
        Receiver::placed(self.place((claim, true), portion), assembly).await?;
        Ok((entries, last))
    }
}

/// A database that was received completely.
struct Opened {
    backend: Backend<Arc<dyn File>>,
    /// Upper bound of the bytes that the history of the database takes in the log and in a checkpoint.
    bound_bytes: u64,
}

/// Opens a database that was received completely, and checks each of its pages.
fn opened(file: Arc<dyn File>) -> Result<Opened, DatabaseError> {
    let bolt = Bolt::whole(file)?;
    let checked = bolt.check()?;
    let page_bytes = u64::from(bolt.meta().page_bytes);
    let bound_bytes = checked.used_pages * page_bytes + checked.keys * CHANGE_BYTES;
    Ok(Opened { backend: Backend::new(bolt)?, bound_bytes })
}

/// Returns the bytes that the history of a database takes in the log and in a checkpoint.
fn needed_bytes(database: &Backend<Arc<dyn File>>) -> Result<u64, DatabaseError> {
    let mut history = database.history()?;
    let mut bytes = 0;
    while let Some(change) = history.step()? {
        bytes += (change.head.key.len() + change.value.len()) as u64 + CHANGE_BYTES;
    }
    Ok(bytes)
}

/// Converts the state to a database for a member that runs etcd, in the format of the release that matches
/// the cluster version. Each chunk is made when the stream is read, so only one chunk is in memory at a time.
///
/// # Errors
///
/// The stream of chunks ends with an error if the state contains something that an etcd database cannot hold,
/// or if a compaction has removed versions of the state.
pub(super) fn open(
    head: Head,
    state: AsOf,
    values: LogValues,
) -> Result<OpenedSnapshot<'static>, EtcdDatabaseError> {
    // An unknown cluster version gets the format of 3.5, because every later release converts a database of
    // an older release to its own format.
    let release = Release::of_cluster_version(&head.members.cluster_version).unwrap_or(Release::V3_5);
    let index = head.applied_index;
    let database = EtcdDatabase::of_cluster(state.of_what_is_readable(), &head, release);
    drop(head);
    let data = interchange::members_image(&database.membership, index.0).into();
    let mut measuring = database.measure();
    let plan = loop {
        if let Some(plan) = measuring.step(&database, MEASURED_AT_ONCE)? {
            break plan;
        }
    };
    let mut writing = Some(database.write(BackendWriter::new(Vec::new(), plan, release)?)?);
    let mut next = move || -> Result<Option<Vec<u8>>, EtcdDatabaseError> {
        while let Some(mut going) = writing.take() {
            if going.step(&database, &values, WRITTEN_AT_ONCE)? {
                return Ok(Some(going.into_writer().finish()?));
            }
            let piece = std::mem::take(going.output());
            writing = Some(going);
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    };
    // After an error the writer is gone, so the stream ends after the error.
    let pieces = std::iter::from_fn(move || next().map_err(io::Error::other).transpose());
    let pieces = Box::new(pieces.map(|piece| piece.map(Bytes::from)));
    Ok(OpenedSnapshot { form: SnapshotForm::Etcd, data, pieces })
}
