//! Transfers a member's state to another member: [`Source`] produces the data to send, and [`Receiver`]
//! receives the data.
//!
//! The receiver reports which versions of keys it has ([`Held`]). If the sender's state can build on these,
//! the sender sends only the newer versions; otherwise it sends all. If the stream breaks off, the receiver
//! keeps the received part for a limited time. The next stream then continues where that part ends.
//!
//! Members that run etcd send and receive the whole state as a database file; the module [`database`] handles
//! these.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::{Status, raftpb};
use bytes::Bytes;
use disk::Disk;
use http::Response;
use machine::image::{Head, RestoreError};
use machine::snapshot::SnapshotVersion;
use machine::transfer::{Assembly, Held, ReceivedVersion, TransferReader, TransferWriter};
use machine::{AsOf, Malformed, Overtaken, Rules, StateTrail};
use mvcc::Location;
use numbers::{Index, MemberId, Revision, Term};
use tokio::sync::oneshot;

use crate::inbox::Inbox;
use crate::received::{Outcome, ReceivedState};
use crate::requests::{CoreRequest, PeerRequest, Placement, ReplyBody, Shortage, SnapshotAttempt};
use crate::shared::Shared;
use storage::values::LogValues;

pub mod database;
mod refusals;

use database::{DatabaseError, Spool};
use refusals::Refusals;

/// Header of the answer to `GET /mainstay/snapshot` in which a receiver announces the newest format of a stream
/// that it reads ([`machine::transfer::FORMAT`]). Receivers of releases without this header read format 1.
pub const FORMAT_HEADER: &str = "x-mainstay-transfer";

/// Minimum bytes of values at which a batch is full and is given to the log. Each batch is a sync of its own, which
/// other members may feel that use the same disk.
const PORTION_BYTES: usize = 4 << 20;
/// Number of versions at which a batch is full, even if their values have fewer bytes.
const PORTION_VERSIONS: usize = 16 << 10;

/// A source of this member's state at one point in time, which is sent to another member.
pub struct Source {
    to: MemberId,
    head: Option<Head>,
    state: Option<AsOf>,
    /// Hashes of this member's state after each of its last entries.
    trail: StateTrail,
    values: log::Values,
    core: Arc<Inbox<CoreRequest>>,
    /// True if the state may be sent in etcd's form, to a member that runs etcd.
    may_be_etcd: bool,
}

impl Source {
    /// Returns a source of this member's state for the member `to`. `head` is the state except keys and
    /// values. `state` reads all versions of keys, including compacted ones that have not been removed yet.
    /// `trail` contains the hashes of the state after each of the last entries.
    pub fn new(to: MemberId, head: Head, trail: StateTrail, state: AsOf, shared: &Shared) -> Source {
        let (values, core) = (shared.data.values.clone(), Arc::clone(&shared.core.inbox));
        Source { to, head: Some(head), state: Some(state), trail, values, core, may_be_etcd: true }
    }

    /// Returns the source of a state for an observer, which is never sent in etcd's form.
    pub fn in_own_form(self) -> Source {
        Source { may_be_etcd: false, ..self }
    }
}

impl peer::SnapshotSource for Source {
    fn open(
        &mut self,
        receiver: Option<Response<Bytes>>,
    ) -> Result<peer::OpenedSnapshot<'_>, peer::BoxError> {
        let head = self.head.take().ok_or(SourceError::SentBefore)?;
        let state = self.state.take().ok_or(SourceError::SentBefore)?;
        let values = LogValues::new(self.values.clone());
        let Some(receiver) = receiver else {
            if !self.may_be_etcd {
                return Err(SourceError::NoObserver.into());
            }
            self.core.send(PeerRequest::DatabaseOpened { to: self.to, index: head.applied_index });
            return Ok(database::open(head, state, values)?);
        };
        let held = Held::from_bytes(receiver.body()).map_err(SourceError::Malformed)?;
        let format =
            receiver.headers().get(FORMAT_HEADER).and_then(|format| format.to_str().ok()?.parse().ok());
        let from = head.transfer_from(Some(&held), &self.trail);
        // A receiver without data gets only the readable versions. It needs no tombstones, because it has no
        // keys for them to delete.
        let state = if from == Revision(0) { state.of_what_is_readable() } else { state };
        let mut writer = TransferWriter::new(state, head, from).with_format_up_to(format.unwrap_or(1));
        let mut ended = false;
        let pieces = Box::new(std::iter::from_fn(move || {
            if ended {
                return None;
            }
            let chunk = writer.next_chunk(&values).map_err(io::Error::other).transpose();
            ended = matches!(chunk, Some(Err(_)) | None);
            chunk
        }));
        Ok(peer::OpenedSnapshot { form: peer::SnapshotForm::Own, data: Bytes::new(), pieces })
    }
}

/// Reason why a state cannot be sent.
#[derive(Debug)]
pub enum SourceError {
    /// The receiver's report of the data that it has cannot be decoded.
    Malformed(Malformed),
    /// The source was already used; it serves only one attempt.
    SentBefore,
    /// The receiver is registered as an observer, but does not answer as one.
    NoObserver,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::Malformed(error) => write!(f, "the receiver says that it has {}", error.0),
            SourceError::SentBefore => f.write_str("a snapshot is sent once"),
            SourceError::NoObserver => f.write_str("the receiver does not answer as an observer"),
        }
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SourceError::Malformed(error) => Some(error),
            SourceError::SentBefore | SourceError::NoObserver => None,
        }
    }
}

/// Reason why the state of another member was not accepted.
#[derive(Debug)]
pub enum ReceiveError {
    /// The stream broke, or contains invalid data.
    Read(RestoreError<io::Error>),
    /// The head (the state except keys and values) or a version of a key is not valid.
    Malformed(Malformed),
    /// The raft message that announces the state (MsgSnap) and the state itself name different last entries.
    OtherEntry,
    /// The core does not accept a state now, for this reason; `None` if the reason is not known.
    NotNow(Option<Status>),
    /// The log does not accept values now.
    LogFull,
    /// The log's disk has too little space for the whole state.
    NoRoom(Shortage),
    /// A recent attempt was refused for a reason that probably persists.
    RefusedBefore {
        /// Text of the error of that attempt.
        reason: String,
        /// Time until another attempt is accepted.
        left: Duration,
    },
    /// The log did not report the location of a value, which is a bug.
    Lost,
    /// This member's raft node refused the message that announces the state (MsgSnap), for this reason.
    Refused(String),
    /// The state is installed, but its first checkpoint failed for this reason.
    NotSaved(String),
    /// No state can be assembled from the received parts.
    Assemble(RestoreError<Overtaken>),
    /// The etcd database that was received cannot be used.
    Database(Box<DatabaseError>),
}

impl From<DatabaseError> for ReceiveError {
    fn from(error: DatabaseError) -> ReceiveError {
        ReceiveError::Database(Box::new(error))
    }
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceiveError::Read(error) => error.fmt(f),
            ReceiveError::Malformed(error) => f.write_str(error.0),
            ReceiveError::OtherEntry => f.write_str("the message and the state are not of the same entry"),
            ReceiveError::NotNow(Some(status)) => write!(f, "not now: {}", status.message),
            ReceiveError::NotNow(None) => f.write_str("not now"),
            ReceiveError::NoRoom(Shortage { free_bytes, wanted_bytes }) => write!(
                f,
                "no space left on device: the state, including the space that must stay free after it, \
                 needs {wanted_bytes} bytes on the log's disk, and {free_bytes} are free"
            ),
            ReceiveError::RefusedBefore { reason, left } => {
                write!(
                    f,
                    "refused before ({reason}); the next attempt is examined in {} s",
                    left.as_secs() + 1
                )
            }
            ReceiveError::LogFull => f.write_str("the log accepts no values at the moment"),
            ReceiveError::Lost => f.write_str("the log lost a value"),
            ReceiveError::Refused(reason) => write!(f, "refused: {reason}"),
            ReceiveError::NotSaved(reason) => write!(
                f,
                "the state is in place and not durable yet ({reason}): its checkpoint is retried; no \
                 rebuild is needed"
            ),
            ReceiveError::Assemble(error) => error.fmt(f),
            ReceiveError::Database(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReceiveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReceiveError::Read(error) => std::error::Error::source(error),
            ReceiveError::NotNow(status) => status.as_ref().map(|status| status as _),
            ReceiveError::Assemble(error) => std::error::Error::source(error),
            ReceiveError::Database(error) => std::error::Error::source(error),
            _ => None,
        }
    }
}

impl ReceiveError {
    /// Returns the kind of an error that the next attempt will probably meet again, because its cause is in
    /// the sent state or on this member's disk; `None` for temporary errors.
    pub fn lasting_kind(&self) -> Option<&'static str> {
        match self {
            ReceiveError::NotNow(_)
            | ReceiveError::LogFull
            | ReceiveError::Lost
            | ReceiveError::NotSaved(_)
            | ReceiveError::RefusedBefore { .. } => None,
            ReceiveError::NoRoom(_) => Some("room"),
            ReceiveError::Database(error) => error.lasting_kind(),
            ReceiveError::Read(_) | ReceiveError::Assemble(_) | ReceiveError::Malformed(_) => Some("state"),
            ReceiveError::OtherEntry => Some("entry"),
            ReceiveError::Refused(_) => Some("message"),
        }
    }
}

/// The part of a state that arrived before its stream broke off, kept for an attempt that continues there.
struct Broken {
    assembly: Assembly,
    held: Held,
    claim: u64,
    base_applied: Index,
}

/// A batch of received versions. Their values go to the log. Then the versions, with the locations of their
/// values in the log, go to an [`Assembly`].
#[derive(Default)]
struct Portion {
    versions: Vec<ReceivedVersion>,
    values: Vec<log::Value>,
    bytes: usize,
}

impl Portion {
    /// Adds a version that has arrived.
    ///
    /// # Errors
    ///
    /// Returns an error if the value of the version is too long.
    fn take(&mut self, version: &SnapshotVersion<'_>) -> Result<(), Malformed> {
        let noted = ReceivedVersion::of(version)?;
        if noted.value_len() > 0 {
            let id = log::ValueId { main: version.main.0, sub: i64::from(version.sub) };
            let data = Bytes::copy_from_slice(version.value);
            self.values.push(log::Value { id, data, compressed: None });
            self.bytes += version.value.len();
        }
        self.versions.push(noted);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.bytes >= PORTION_BYTES || self.versions.len() >= PORTION_VERSIONS
    }
}

/// Locations of the values of a batch, or why they were not written.
type ValuesPlaced = Result<Vec<(log::ValueId, Location)>, Shortage>;

/// A batch of received versions whose values were given to the log.
struct PlacedPortion {
    versions: Vec<ReceivedVersion>,
    /// Ids of the values, in the order of the versions; versions with empty values have none.
    ids: Vec<log::ValueId>,
    /// Receiver of the locations; `None` if all values are empty.
    placed: Option<oneshot::Receiver<ValuesPlaced>>,
}

/// Returns the attempt that this message announces, with the number `claim`. If the sender sends the whole
/// state, `whole_bytes` is the number of bytes that the state takes, 0 if that is not known. `None` if the
/// sender sends only a part, or if the space is not to be checked.
fn attempt(claim: u64, message: &raftpb::Message, whole_bytes: Option<u64>) -> SnapshotAttempt {
    SnapshotAttempt { claim, from: MemberId(message.from()), term: Term(message.term()), whole_bytes }
}

/// Receives states that other members send, one at a time.
pub struct Receiver {
    shared: Arc<Shared>,
    rules: Rules,
    spool: Spool,
    /// Refusals of states in Mainstay's own format.
    refusals: Refusals,
    /// Refusals of etcd databases.
    database_refusals: Refusals,
    broken: Arc<Mutex<Option<Broken>>>,
    claims: AtomicU64,
}

impl Receiver {
    /// Returns the receiver of this member, whose data are in the directory `member_dir`.
    pub fn new(shared: Arc<Shared>, rules: Rules, disk: Arc<dyn Disk>, member_dir: &Path) -> Receiver {
        let spool = Spool::new(disk, member_dir);
        Receiver {
            shared,
            rules,
            spool,
            refusals: Refusals::default(),
            database_refusals: Refusals::default(),
            broken: Arc::default(),
            claims: AtomicU64::new(0),
        }
    }

    /// Returns true if this receiver keeps the part of a state that arrived before its stream broke off.
    pub fn keeps_part(&self) -> bool {
        self.broken().is_some()
    }

    fn broken(&self) -> MutexGuard<'_, Option<Broken>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns which versions of keys this member has: its own, or those of an interrupted transfer if a new
    /// one can continue it. A sender requests this before it sends its state, so that it can leave these
    /// versions out. Returns `None` if the member is stopping.
    pub async fn held(&self) -> Option<Held> {
        let broken = self.broken().as_ref().map(|broken| (broken.held, broken.base_applied));
        match self.shared.core.ask(PeerRequest::Holds).await.map(|reply| reply.body) {
            Ok(ReplyBody::Holds(_, applied)) if broken.is_some_and(|(_, base)| base == applied) => {
                broken.map(|(held, _)| held)
            }
            Ok(ReplyBody::Holds(held, _)) => Some(held),
            _ => None,
        }
    }

    /// Receives a state, and returns when the complete state was passed to the core. Blocks while `body`
    /// blocks, and otherwise waits only for the core.
    ///
    /// # Errors
    ///
    /// Returns an error if the stream is invalid, or if this member cannot accept the state now.
    pub async fn receive(
        &self,
        message: raftpb::Message,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), ReceiveError> {
        let mut reader = TransferReader::open(body).map_err(ReceiveError::Read)?;
        let position = message.snapshot.as_ref().and_then(|snapshot| snapshot.metadata.as_ref());
        let told = position.map(|metadata| (metadata.index.unwrap_or(0), metadata.term.unwrap_or(0)));
        if told != Some((reader.head().applied_index.0, reader.head().applied_term.0)) {
            return Err(ReceiveError::OtherEntry);
        }
        let is_whole = reader.head().from == Revision(0);
        if is_whole {
            self.refusals.check(self.shared.member.clock.now())?;
        }
        let mut partial = match self.resume(&message, reader.head().from).await {
            Some(broken) => broken,
            None => self.begin(&message, is_whole.then_some(0)).await.inspect_err(|why| self.note(why))?,
        };
        let filled = self.fill(&mut partial, &mut reader).await;
        if let Err(why) = &filled
            && matches!(why, ReceiveError::NoRoom(_))
        {
            // The received part is dropped and not kept for another attempt, because it would occupy the
            // space that is lacking.
            self.shared.core.inbox.send(PeerRequest::SnapshotGivenUp(partial.claim));
            self.note(why);
            return filled;
        }
        if let Err(why) = filled {
            partial.held = partial.assembly.pause();
            let claim = partial.claim;
            self.keep(partial);
            let broken = Arc::clone(&self.broken);
            let forget = move || {
                let mut broken = broken.lock().unwrap_or_else(PoisonError::into_inner);
                let part = broken.take_if(|broken| broken.claim == claim);
                part.map(|part| -> Box<dyn Any + Send> { Box::new(part) })
            };
            self.shared.core.inbox.send(PeerRequest::SnapshotBroken(claim, Box::new(forget)));
            return Err(why);
        }
        let base_applied = (reader.head().from > Revision(0)).then_some(partial.base_applied);
        let machine = partial.assembly.finish(reader.finish()).map_err(|e| {
            self.shared.core.inbox.send(PeerRequest::SnapshotGivenUp(partial.claim));
            ReceiveError::Assemble(e)
        })?;
        let received = ReceivedState { message, machine: Box::new(machine), base_applied, told: None };
        self.shared.core.inbox.send(PeerRequest::SnapshotReceived(partial.claim, Box::new(received)));
        self.refusals.note(Ok(()), self.shared.member.clock.now());
        Ok(())
    }

    /// Records the error if the disk has too little space for a state in Mainstay's own format. Other errors
    /// are not recorded, because their cause probably does not persist.
    fn note(&self, why: &ReceiveError) {
        if let ReceiveError::NoRoom(_) = why {
            self.refusals.note(Err(why), self.shared.member.clock.now());
        }
    }

    /// Keeps the part that was received before the stream broke off, unless the part of a later attempt is
    /// kept already.
    fn keep(&self, partial: Broken) {
        let mut broken = self.broken();
        if broken.as_ref().is_none_or(|kept| kept.claim < partial.claim) {
            let before = broken.replace(partial);
            drop(broken);
            drop(before);
        }
    }

    /// Returns the partly received state if the new stream continues exactly where it ends. Returns `None` if
    /// the core does not agree: the sender must be the current leader, and the core must still wait for this
    /// attempt to be resumed. The part is taken out of `broken` only after the core has agreed. Otherwise any
    /// peer could make this member lose the part by sending such a request.
    async fn resume(&self, message: &raftpb::Message, behind: Revision) -> Option<Broken> {
        let kept = self.broken().as_ref().map(|broken| (broken.claim, broken.held.revision));
        let (claim, _) = kept.filter(|(_, revision)| *revision == behind)?;
        let attempt = attempt(claim, message, None);
        let reply = self
            .shared
            .core
            .ask(move |request_id| PeerRequest::ResumeSnapshot(request_id, attempt))
            .await
            .ok()?;
        if !matches!(reply.body, ReplyBody::Readable(_)) {
            return None;
        }
        let broken = self.broken().take_if(|broken| broken.claim == claim);
        if broken.is_none() {
            self.shared.core.inbox.send(PeerRequest::SnapshotGivenUp(claim));
        }
        broken
    }

    /// Begins an attempt. If the sender sends the whole state, `whole_bytes` is the number of bytes that the
    /// state takes, 0 if that is not known; otherwise `None`.
    async fn begin(
        &self,
        message: &raftpb::Message,
        whole_bytes: Option<u64>,
    ) -> Result<Broken, ReceiveError> {
        let claim = self.claims.fetch_add(1, Ordering::Relaxed) + 1;
        let attempt = attempt(claim, message, whole_bytes);
        let reply =
            self.shared.core.ask(move |request_id| PeerRequest::ReceiveSnapshot(request_id, attempt)).await;
        match reply.map(|reply| reply.body) {
            Ok(ReplyBody::Image(head, state)) => {
                let base_applied = head.applied_index;
                let held = head.held();
                let base = (base_applied > Index(0)).then(|| (*state, Arc::unwrap_or_clone(head)));
                Ok(Broken { assembly: Assembly::new(self.rules, base), held, claim, base_applied })
            }
            Ok(ReplyBody::Outcome(Err(status), _)) | Err(status) => Err(ReceiveError::NotNow(Some(status))),
            Ok(ReplyBody::Shortage(shortage)) => Err(ReceiveError::NoRoom(shortage)),
            Ok(_) => Err(ReceiveError::NotNow(None)),
        }
    }

    async fn fill<I>(&self, partial: &mut Broken, reader: &mut TransferReader<I>) -> Result<(), ReceiveError>
    where
        I: Iterator<Item = io::Result<Bytes>>,
    {
        let (claim, is_whole) = (partial.claim, reader.head().from == Revision(0));
        let assembly = &mut partial.assembly;
        assembly.begin(reader.head()).map_err(ReceiveError::Malformed)?;
        let (mut portion, mut placing) = (Portion::default(), None);
        loop {
            let next = reader.next().map_err(ReceiveError::Read);
            if let Ok(Some(version)) = &next {
                portion.take(version).map_err(ReceiveError::Malformed)?;
            }
            // After an error, the versions that arrived before it are written to the log, too. They are
            // valid, and a later stream can continue after them.
            let last = !matches!(next, Ok(Some(_)));
            if last || portion.is_full() {
                // The next batch is read while the log writes this one.
                if let Some(before) = placing.take() {
                    Receiver::placed(before, assembly).await?;
                }
                placing = Some(self.place((claim, is_whole), std::mem::take(&mut portion)));
            }
            if last && let Some(before) = placing.take() {
                Receiver::placed(before, assembly).await?;
            }
            match next {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(why) => return Err(why),
            }
        }
    }

    /// Gives the values of a batch to the log. [`Receiver::placed`] waits for it, before the next batch is given.
    fn place(&self, (claim, is_whole): (u64, bool), portion: Portion) -> PlacedPortion {
        let Portion { versions, values, .. } = portion;
        let ids = values.iter().map(|value| value.id).collect();
        let placed = (!values.is_empty()).then(|| {
            let (done, placed) = oneshot::channel();
            let placement = Placement { claim, values, is_whole, done };
            self.shared.core.inbox.send(PeerRequest::Place(placement));
            placed
        });
        PlacedPortion { versions, ids, placed }
    }

    /// Waits until the log has written a batch, and passes the versions with the locations of their values to the
    /// assembly.
    async fn placed(portion: PlacedPortion, assembly: &mut Assembly) -> Result<(), ReceiveError> {
        let PlacedPortion { versions, ids, placed } = portion;
        let places = match placed {
            None => Vec::new(),
            Some(placed) => {
                let placed = placed.await.map_err(|_| ReceiveError::LogFull)?;
                placed.map_err(ReceiveError::NoRoom)?
            }
        };
        let places: HashMap<log::ValueId, Location> = places.into_iter().collect();
        let mut places = ids.into_iter().map(|id| places.get(&id).copied());
        for version in versions {
            let location = match version.value_len() {
                0 => Location::default(),
                _ => places.next().flatten().ok_or(ReceiveError::Lost)?,
            };
            assembly.push(&version, location);
        }
        Ok(())
    }
}
