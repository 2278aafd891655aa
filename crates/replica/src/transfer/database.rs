//! The state as a database file of etcd's, on its way between a member of this program and one that runs etcd.
//!
//! What arrives is written to a file, checked as a whole, and then goes the way that a state of ours goes: values into the log,
//! the rest into an [`Assembly`]. The file's name is removed as soon as it is open, so that nothing is left of it whatever
//! happens to the process.

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

use super::{Outcome, Portion, ReceiveError, Received, Receiver, attempt};
use crate::core::{PeerRequest, ReplyBody};

/// Name of the file in the member's directory, which it has for a moment only.
const SPOOL_NAME: &str = "received.db";
/// Bytes written between two looks at how much room the disk has left.
const LOOK_BYTES: u64 = 8 << 20;
/// Bytes that stay free on the disk for the member's own log, unless an eighth of the disk is less.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// Bytes that a change takes in the log and in a checkpoint beside its key and value.
const CHANGE_BYTES: u64 = 192;
/// Versions measured, and bytes of values written, from one view.
const MEASURED_AT_ONCE: usize = 2048;
const WRITTEN_AT_ONCE: usize = 256 << 10;
/// Room is left for revisions to come.
const REVISION_MAX: Revision = Revision(i64::MAX / 2);

/// Why the database of a member that runs etcd was not taken.
#[derive(Debug)]
pub enum DatabaseError {
    /// The stream broke off.
    Stream(io::Error),
    /// Another member leads by now than the one that sends.
    OtherLeader,
    /// The file for it could not be made or written.
    Spool {
        /// The operation that failed.
        doing: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The answer of the operating system.
        error: io::Error,
    },
    /// The disk has too little room for it.
    NoSpace {
        /// Bytes of the database that were written.
        written: u64,
        /// Bytes that have to stay free for the log.
        free_min: u64,
    },
    /// The file cannot be read or is damaged.
    Read(interchange::Error),
    /// The database holds the state of another entry than the message says.
    OtherEntry {
        /// The entry by the database.
        file: u64,
        /// The entry by the message.
        message: u64,
    },
    /// The members in the database are not those that the message names.
    OtherMembers {
        /// Ids by the database.
        file: BTreeSet<u64>,
        /// Ids by the message.
        message: BTreeSet<u64>,
    },
    /// This member, whose id this is, is not among the members.
    NotAMember(u64),
    /// The state is of a version that is not known here.
    Version(UnknownVersion),
    /// A revision has too many changes.
    Changes(TooManyChanges),
    /// A change came in the wrong order, or its revision is too high.
    OutOfOrder {
        /// Main and sub revision of the change.
        at: ChangeId,
        /// Main and sub revision of the change before it.
        last: ChangeId,
    },
    /// No state was compacted at this revision.
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
            DatabaseError::OtherLeader => f.write_str("another member leads by now"),
            DatabaseError::Spool { doing, path, error } => {
                write!(f, "{doing} {}: {error}", path.display())
            }
            DatabaseError::NoSpace { written, free_min } => write!(
                f,
                "no space left on device: behind the first {written} bytes of the database there would be less than \
                 {free_min} bytes left for the log"
            ),
            DatabaseError::Read(error) => error.fmt(f),
            DatabaseError::OtherEntry { file, message } => {
                write!(
                    f,
                    "the database holds the state at entry {file}, and the message is of entry {message}"
                )
            }
            DatabaseError::OtherMembers { file, message } => write!(
                f,
                "the members in the database are {}, and those in the message {}",
                list(file),
                list(message)
            ),
            DatabaseError::NotAMember(id) => write!(f, "member {id:x} is not among its members"),
            DatabaseError::Version(error) => error.fmt(f),
            DatabaseError::Changes(error) => error.fmt(f),
            DatabaseError::OutOfOrder { at, last } => {
                write!(
                    f,
                    "a change at revision {}.{} behind one at {}.{}",
                    at.main, at.sub, last.main, last.sub
                )
            }
            DatabaseError::CompactRevision(revision) => {
                write!(f, "a state that was compacted at {revision} cannot be")
            }
        }
    }
}

impl DatabaseError {
    /// Returns the kind of a reason that the next attempt most likely meets again; `None` for what passes by itself.
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

/// The place of a database that is being received: one at a time, since each may fill the disk.
pub(super) struct Spool {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    is_taken: AtomicBool,
}

/// The right to use the spool; it ends when this is dropped.
struct Turn<'a>(&'a Spool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

impl Spool {
    /// Returns the place in this directory. A file that was left there by a power cut is removed, if it can be.
    pub(super) fn new(disk: Arc<dyn Disk>, dir: &Path) -> Spool {
        let spool = Spool { disk, dir: dir.to_path_buf(), is_taken: AtomicBool::new(false) };
        // What is in its way then is said when a database comes.
        let _ = spool.clear();
        spool
    }

    fn clear(&self) -> io::Result<()> {
        let path = self.dir.join(SPOOL_NAME);
        if self.disk.exists(&path)? { self.disk.remove(&path) } else { Ok(()) }
    }

    /// Returns the right to use the spool, unless another has it.
    fn turn(&self) -> Option<Turn<'_>> {
        let is_free =
            self.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        is_free.then(|| Turn(self))
    }
}

impl Turn<'_> {
    /// Writes what comes to a file, which has no name, as long as `is_wanted`.
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
        // Nothing needs it after a crash, so it is not synced.
        sink.flush().map_err(failed("write"))?;
        Ok(file)
    }
}

/// The members of a state: those of the database, except that 3.4 keeps them in the old store, whose image is in the message.
/// Who of them votes, the message says, by which raft goes: the databases of some releases do not.
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
    /// Takes a state that a member sends which runs etcd; ends when it is durable here, or raft does not want it. From the
    /// answer on, the sender keeps the entries behind the state for half a minute only, and until then for as long as it
    /// takes. Blocks where `body` and the disk do.
    ///
    /// # Errors
    ///
    /// What was wrong with the database, why this member cannot take it now, or why it is not durable at the first attempt.
    pub async fn receive_database(
        &self,
        mut message: raftpb::Message,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), ReceiveError> {
        let image = message.snapshot.as_mut().and_then(|snapshot| snapshot.data.take()).unwrap_or_default();
        self.database_refusals.check(self.shared.clock.now())?;
        let taken = self.take_database(message, image, body).await;
        self.database_refusals.note(taken.as_ref().copied(), self.shared.clock.now());
        taken
    }

    /// Takes a state that is looked at. Until the database is there and sound, this member goes on as without it: only then an
    /// attempt begins, during which it takes no checkpoints and gives no disk space back.
    async fn take_database(
        &self,
        message: raftpb::Message,
        image: Bytes,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), ReceiveError> {
        self.check_front(&message, &image)?;
        let offered = attempt(0, &message, None);
        let reply = self.shared.ask(move |request_id| PeerRequest::OfferSnapshot(request_id, offered)).await;
        match reply.map(|reply| reply.body) {
            Ok(ReplyBody::Readable(_)) => {}
            Ok(ReplyBody::Outcome(Err(status), _)) | Err(status) => {
                return Err(ReceiveError::NotNow(Some(status)));
            }
            Ok(_) => return Err(ReceiveError::NotNow(None)),
        }
        let (claim, machine) = self.read_database(&message, image, body).await?;
        let (told, outcome) = oneshot::channel();
        let received = Received { message, machine: Box::new(machine), base_applied: None, told: Some(told) };
        self.shared.core.send(PeerRequest::SnapshotReceived(claim, Box::new(received)));
        match outcome.await {
            // Who sends what this member has is behind, and answered as by etcd.
            Ok(Outcome::Durable | Outcome::NotWanted) => Ok(()),
            Ok(Outcome::Refused(reason)) => Err(ReceiveError::Refused(reason)),
            Ok(Outcome::NotSaved(reason)) => Err(ReceiveError::NotSaved(reason)),
            Ok(Outcome::GivenUp(status)) => Err(ReceiveError::NotNow(Some(status))),
            // The core has ended.
            Err(_) => Err(ReceiveError::NotNow(Some(error::STOPPED))),
        }
    }

    /// Makes a machine of a database, in the attempt that this returns. The file and the image are gone at the end.
    async fn read_database(
        &self,
        message: &raftpb::Message,
        image: Bytes,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(u64, Machine), ReceiveError> {
        let Some(turn) = self.spool.turn() else {
            return Err(ReceiveError::NotNow(Some(error::TOO_MANY_REQUESTS)));
        };
        // Without a leader this member may hear of the same one again.
        let from = message.from();
        let is_wanted = || [0, from].contains(&self.shared.state.load().leader);
        let database = opened(turn.take(body, is_wanted)?)?;
        let (head, database) = self.judge(message, &image, database)?;
        // It builds on nothing that is here.
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
                self.shared.core.send(PeerRequest::SnapshotGivenUp(claim));
                Err(why)
            }
        }
    }

    /// Judges what is there before the body: the members, and the version in the image of the old store.
    fn check_front(&self, message: &raftpb::Message, image: &[u8]) -> Result<(), DatabaseError> {
        let metadata = message.snapshot.as_ref().and_then(|snapshot| snapshot.metadata.as_ref());
        let conf = metadata.and_then(|metadata| metadata.conf_state.as_ref());
        let own = self.shared.identity.member_id;
        if conf.is_none_or(|conf| !conf.voters.contains(&own) && !conf.learners.contains(&own)) {
            return Err(DatabaseError::NotAMember(own));
        }
        // An image that says nothing, or cannot be read, is judged with the database, which may need none.
        match interchange::members_of_image(image) {
            Ok(membership) => {
                etcd_database::check_versions(None, &membership).map_err(DatabaseError::Version)
            }
            Err(_) => Ok(()),
        }
    }

    /// Judges all of a database but its history, of which the head that this returns knows nothing yet.
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
        // etcd before 3.5 does not count entries that change members only.
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
            // Known at the end.
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

    /// Makes a machine of a database.
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

    /// Takes all changes over. Returns how many versions they are, and the last revision.
    async fn take_history(
        &self,
        claim: u64,
        database: &Backend<Arc<dyn File>>,
        assembly: &mut Assembly,
    ) -> Result<(u64, ChangeId), ReceiveError> {
        let mut history = database.history().map_err(DatabaseError::Read)?;
        let (mut entries, mut last) = (0, ChangeId::end_of(Revision(0)));
        let mut portion = Portion::default();
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
                self.place((claim, true), assembly, &mut portion).await?;
            }
        }
        self.place((claim, true), assembly, &mut portion).await?;
        Ok((entries, last))
    }
}

/// A database that has arrived.
struct Opened {
    backend: Backend<Arc<dyn File>>,
    /// Bytes that its history takes in the log and in a checkpoint at most.
    bound_bytes: u64,
}

/// Opens a database that has arrived, and checks each of its pages.
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

/// Opens the state as the database that a member running etcd takes, in the form of the release that the cluster has agreed on.
/// Memory holds a piece of it.
///
/// # Errors
///
/// The state holds what no database of etcd's can, or was compacted meanwhile.
pub(super) fn open(
    head: Head,
    state: AsOf,
    values: LogValues,
) -> Result<OpenedSnapshot<'static>, EtcdDatabaseError> {
    // Every release from 3.6 on brings what an older one wrote into its own form.
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
    // An error takes the writer along, so it is the end.
    let pieces = std::iter::from_fn(move || next().map_err(io::Error::other).transpose());
    let pieces = Box::new(pieces.map(|piece| piece.map(Bytes::from)));
    Ok(OpenedSnapshot { form: SnapshotForm::Etcd, data, pieces })
}
