//! The audit log: who asked for what, from where, and what came of it. A line for each entry, written by a thread of its own.
//!
//! [`AuditLog::push`] never waits. What the thread cannot write, because the disk is full or slow, is dropped and counted, and
//! a line says how many entries are missing before the next one. The files are bounded: the newest has the name that was
//! configured, older ones end in `.1`, `.2` and so on. What is in an entry is for its maker to say ([`Entry`]).
//!
//! Calls that were refused ([`AuditLog::push_refused`]) have files, places in the queue and a rate of their own (`refusals.rs`):
//! whoever can connect can make any number of them, and they displace no other entry.

mod refusals;

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use clock::Clock;
use stdx::calendar::format_rfc3339;

use crate::logging::{Logger, Value};
use crate::metrics::AuditMetrics;

use self::refusals::{NotShown, Refusals};

/// Entries that wait for the thread at most.
pub const ENTRIES_MAX: usize = 8192;
/// Bytes that they hold at most.
pub const BYTES_MAX: usize = 16 << 20;
/// The share of refused calls in [`ENTRIES_MAX`], [`BYTES_MAX`] and the number of files: one in so many, apart from the rest.
const REFUSED_SHARE: usize = 8;
/// Bytes that an entry takes beside what it says of itself.
const ENTRY_BYTES: usize = 256;
/// Bytes that are written at once, or somewhat more.
const BATCH_BYTES: usize = 64 << 10;
/// Longest time for which entries wait for others, and between two attempts to say how many were dropped.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a stop waits for the last lines.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// What one line is made of.
pub trait Entry: Send {
    /// Returns the bytes that the entry holds while it waits.
    fn bytes(&self) -> usize;

    /// Appends the line, without its line feed; nothing if the entry turns out not to be one that is logged.
    fn write(&self, out: &mut String);
}

/// Where lines go.
pub trait Lines: Send + 'static {
    /// Appends whole lines.
    ///
    /// # Errors
    ///
    /// When not all of them were written; then none of them may be seen.
    fn append(&mut self, lines: &[u8]) -> io::Result<()>;

    /// Makes what was appended durable.
    fn sync(&mut self);
}

/// What options say of the audit log.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file.
    pub path: PathBuf,
    /// Bytes from which on another file is begun.
    pub file_bytes_max: u64,
    /// Files there are at most, the newest included.
    pub files_max: u64,
}

enum Item {
    Entry(Box<dyn Entry>, Kind),
    Wake,
}

/// Whose files and places an entry takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Of a call that was carried out, or may have been.
    Accepted,
    /// Of a call that was refused.
    Refused,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Accepted, Kind::Refused];

    /// Bytes that entries of this kind may hold while they wait.
    fn bytes_max(self) -> usize {
        match self {
            Kind::Accepted => BYTES_MAX,
            Kind::Refused => BYTES_MAX / REFUSED_SHARE,
        }
    }
}

/// Entries of one kind that wait.
#[derive(Default)]
struct Waiting {
    entries: AtomicUsize,
    bytes: AtomicUsize,
}

/// The audit log of a member.
pub struct AuditLog {
    items: SyncSender<Item>,
    /// Entries of each [`Kind`] that may wait.
    entries_max: [usize; 2],
    clock: Clock,
    shared: Arc<Shared>,
    ended: Mutex<Option<Receiver<()>>>,
}

struct Shared {
    /// By [`Kind`].
    waiting: [Waiting; 2],
    refusals: Mutex<Refusals>,
    /// Entries that were dropped since the start.
    dropped: AtomicU64,
    is_stopping: AtomicBool,
    metrics: AuditMetrics,
}

impl Shared {
    fn drop_entries(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
        self.metrics.dropped.add(count);
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        // Nothing inside can panic half-way.
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, entry: &dyn Entry, kind: Kind) {
        let waiting = &self.waiting[kind as usize];
        waiting.bytes.fetch_sub(entry.bytes() + ENTRY_BYTES, Ordering::Relaxed);
        waiting.entries.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AuditLog {
    /// Opens the file, and that of refused calls, whose name ends in `.refused`, and starts the thread that writes them.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened, or the thread not be started.
    pub fn start(
        settings: &Settings,
        clock: Clock,
        logger: Arc<Logger>,
        metrics: AuditMetrics,
    ) -> io::Result<AuditLog> {
        let mut path = settings.path.clone().into_os_string();
        path.push(".refused");
        let refused = Settings {
            path: path.into(),
            file_bytes_max: settings.file_bytes_max,
            files_max: settings.files_max.div_ceil(REFUSED_SHARE as u64),
        };
        let lines = RotatedFiles::open(settings)?;
        AuditLog::to(lines, RotatedFiles::open(&refused)?, ENTRIES_MAX, clock, logger, metrics)
    }

    /// As [`AuditLog::start`], for other outputs, of refused calls and of all others, and fewer entries.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started.
    pub fn to(
        lines: impl Lines,
        refused: impl Lines,
        entries_max: usize,
        clock: Clock,
        logger: Arc<Logger>,
        metrics: AuditMetrics,
    ) -> io::Result<AuditLog> {
        let entries_max = [entries_max, (entries_max / REFUSED_SHARE).max(1)];
        // Each kind finds its places free, however many of the other wait.
        let (items, arriving) = mpsc::sync_channel(entries_max.iter().sum());
        let (ending, ended) = mpsc::sync_channel(1);
        let shared = Arc::new(Shared {
            waiting: Default::default(),
            refusals: Mutex::default(),
            dropped: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            metrics,
        });
        let mut writer = Writer {
            items: arriving,
            outputs: [Output::to(lines), Output::to(refused)],
            shared: Arc::clone(&shared),
            clock: clock.clone(),
            logger,
            told_dropped: 0,
        };
        thread::Builder::new().name("audit".to_owned()).spawn(move || {
            writer.run();
            drop(ending);
        })?;
        Ok(AuditLog { items, entries_max, clock, shared, ended: Mutex::new(Some(ended)) })
    }

    /// Hands an entry to the thread, or drops it if too many wait. Never waits.
    pub fn push(&self, entry: Box<dyn Entry>) {
        if !self.queue(entry, Kind::Accepted) {
            self.shared.drop_entries(1);
        }
    }

    /// The same for a call that was refused, of a client at this address: only if it has not had too many written lately. The
    /// others are counted. Waits for nothing but a lock that is held for a moment.
    pub fn push_refused(&self, address: IpAddr, entry: impl FnOnce() -> Box<dyn Entry>) {
        let now = self.clock.now();
        if !self.shared.refusals().admit(address, now) {
            self.shared.metrics.refused_not_shown.add(1);
        } else if !self.queue(entry(), Kind::Refused) {
            self.shared.metrics.refused_not_shown.add(1);
            self.shared.refusals().dropped(address, now);
        }
    }

    /// Returns false if the entry was dropped: too many of its kind wait.
    fn queue(&self, entry: Box<dyn Entry>, kind: Kind) -> bool {
        let bytes = entry.bytes() + ENTRY_BYTES;
        let waiting = &self.shared.waiting[kind as usize];
        let entries_before = waiting.entries.fetch_add(1, Ordering::Relaxed);
        let bytes_before = waiting.bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_queued = bytes_before + bytes <= kind.bytes_max()
            && entries_before < self.entries_max[kind as usize]
            && self.items.try_send(Item::Entry(entry, kind)).is_ok();
        if !is_queued {
            waiting.bytes.fetch_sub(bytes, Ordering::Relaxed);
            waiting.entries.fetch_sub(1, Ordering::Relaxed);
        }
        is_queued
    }

    /// Returns how many entries were dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Has what waits written, and ends the thread; waits for it for two seconds.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        // If the queue is full, the thread is awake.
        drop(self.items.try_send(Item::Wake));
        if let Some(ended) = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = ended.recv_timeout(STOP_TIMEOUT);
        }
    }
}

/// Where lines of one kind go.
struct Output {
    lines: Box<dyn Lines>,
    is_failing: bool,
    /// Lines that are not written yet, and how many entries they are.
    batch: String,
    entries: u64,
}

impl Output {
    fn to(lines: impl Lines) -> Output {
        Output { lines: Box::new(lines), is_failing: false, batch: String::new(), entries: 0 }
    }

    /// Writes the batch; returns how many entries were written, or how many were lost.
    fn write(&mut self, logger: &Logger) -> Result<u64, u64> {
        let (batch, entries) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.entries));
        if batch.is_empty() {
            return Ok(0);
        }
        match self.lines.append(batch.as_bytes()) {
            Ok(()) => {
                if std::mem::take(&mut self.is_failing) {
                    logger.info("the audit log is written again", &[]);
                }
                Ok(entries)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    let fields = [("error", Value::Str(&error.to_string()))];
                    logger.error("cannot write the audit log: entries are dropped until it can be", &fields);
                }
                Err(entries)
            }
        }
    }
}

/// What the thread has.
struct Writer {
    items: Receiver<Item>,
    /// By [`Kind`].
    outputs: [Output; 2],
    shared: Arc<Shared>,
    clock: Clock,
    logger: Arc<Logger>,
    /// The dropped entries that lines have told of.
    told_dropped: u64,
}

impl Writer {
    fn run(&mut self) {
        loop {
            let first = match self.items.recv_timeout(INTERVAL) {
                Ok(item) => Some(item),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            // Before the rest of the queue is taken: what comes later is not waited for.
            let is_stopping = self.shared.is_stopping.load(Ordering::Acquire);
            let mut next = first;
            loop {
                let is_whole = self.write_batch(next.take(), is_stopping);
                if is_whole {
                    break;
                }
            }
            if is_stopping {
                break;
            }
        }
        for output in &mut self.outputs {
            output.lines.sync();
        }
    }

    /// Writes what waits, up to a batch; returns true if nothing is left.
    fn write_batch(&mut self, first: Option<Item>, is_stopping: bool) -> bool {
        let [accepted, refused] = &mut self.outputs;
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        if dropped > self.told_dropped {
            let _ = writeln!(
                accepted.batch,
                "{{\"ts\":\"{}\",\"dropped\":{}}}",
                format_rfc3339(self.clock.wall()),
                dropped - self.told_dropped
            );
        }
        let (mut next, mut is_whole) = (first, true);
        loop {
            if let Some(Item::Entry(entry, kind)) = next.take() {
                self.shared.release(&*entry, kind);
                let output = match kind {
                    Kind::Accepted => &mut *accepted,
                    Kind::Refused => &mut *refused,
                };
                let len = output.batch.len();
                entry.write(&mut output.batch);
                if output.batch.len() > len {
                    output.batch.push('\n');
                    output.entries += 1;
                }
            }
            if accepted.batch.len() + refused.batch.len() >= BATCH_BYTES {
                is_whole = false;
                break;
            }
            match self.items.try_recv() {
                Ok(item) => next = Some(item),
                Err(_) => break,
            }
        }
        let now = self.clock.now();
        let not_shown = match is_stopping && is_whole {
            true => self.shared.refusals().take(now),
            false => self.shared.refusals().report(now),
        };
        for NotShown { address, calls } in not_shown {
            let _ = write!(refused.batch, "{{\"ts\":\"{}\",", format_rfc3339(self.clock.wall()));
            if let Some(address) = address {
                let _ = write!(refused.batch, "\"remote\":\"{address}\",");
            }
            let _ = writeln!(refused.batch, "\"refused_not_shown\":{calls}}}");
        }
        for kind in Kind::ALL {
            let metrics = &self.shared.metrics;
            match (self.outputs[kind as usize].write(&self.logger), kind) {
                (Ok(entries), Kind::Accepted) => {
                    self.told_dropped = dropped;
                    metrics.entries.add(entries);
                }
                (Ok(entries), Kind::Refused) => metrics.entries.add(entries),
                (Err(entries), Kind::Accepted) => self.shared.drop_entries(entries),
                (Err(entries), Kind::Refused) => metrics.refused_not_shown.add(entries),
            }
        }
        is_whole
    }
}

/// The files of an audit log.
pub struct RotatedFiles {
    path: PathBuf,
    file_bytes_max: u64,
    files_max: u64,
    file: File,
    /// True if the file may end amid a line.
    is_torn: bool,
}

impl RotatedFiles {
    /// Opens the newest file, or creates it. Only its owner may read it.
    ///
    /// # Errors
    ///
    /// When it cannot be opened, or is no regular file.
    pub fn open(settings: &Settings) -> io::Result<RotatedFiles> {
        let file = open(&settings.path)?;
        Ok(RotatedFiles {
            path: settings.path.clone(),
            file_bytes_max: settings.file_bytes_max.max(1),
            files_max: settings.files_max.max(1),
            // A line that was cut off by the end of a process stays, but is not gone on with.
            is_torn: ends_amid_a_line(&file)?,
            file,
        })
    }

    fn older(&self, number: u64) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    /// Begins a new file. Nothing is renamed before that is there: a failure leaves all as it was, to be tried again.
    fn rotate(&mut self) -> io::Result<()> {
        if self.files_max == 1 {
            self.file.set_len(0)?;
            return Ok(());
        }
        let mut fresh = self.path.clone().into_os_string();
        fresh.push(".new");
        let fresh = PathBuf::from(fresh);
        let file = open(&fresh)?;
        file.set_len(0)?;
        for number in (1..self.files_max - 1).rev() {
            rename_if_there(&self.older(number), &self.older(number + 1))?;
        }
        rename_if_there(&self.path, &self.older(1))?;
        fs::rename(&fresh, &self.path)?;
        self.file = file;
        Ok(())
    }

    /// Goes on with the file of that name if the one that is open was removed, or moved away.
    fn follow(&mut self) -> io::Result<()> {
        let open_one = self.file.metadata()?;
        let is_same = fs::metadata(&self.path)
            .is_ok_and(|named| (named.dev(), named.ino()) == (open_one.dev(), open_one.ino()));
        if !is_same {
            let file = open(&self.path)?;
            self.is_torn = ends_amid_a_line(&file)?;
            self.file = file;
        }
        Ok(())
    }
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn ends_amid_a_line(file: &File) -> io::Result<bool> {
    let Some(last) = file.metadata()?.len().checked_sub(1) else { return Ok(false) };
    let mut byte = [0];
    Ok(file.read_at(&mut byte, last)? == 1 && byte != *b"\n")
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

impl Lines for RotatedFiles {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        // Asked for each time: somebody may have taken the file away, or cut it off.
        self.follow()?;
        let mut len = self.file.metadata()?.len();
        if len > 0 && len + lines.len() as u64 > self.file_bytes_max {
            self.rotate()?;
            (len, self.is_torn) = (0, false);
        }
        let written = if self.is_torn && len > 0 {
            self.file.write_all(&[b"\n", lines].concat())
        } else {
            self.file.write_all(lines)
        };
        self.is_torn = false;
        written.inspect_err(|_| self.is_torn = self.file.set_len(len).is_err())
    }

    fn sync(&mut self) {
        // What cannot be made durable is no worse than what was not written.
        drop(self.file.sync_all());
    }
}
