//! Writes the audit log: which client requested what, from which address, and with which result. Each entry
//! is one line. A separate thread writes the lines, so that requests never wait for the disk.
//!
//! [`AuditLog::push`] never waits. Entries that the thread cannot write in time, because the disk is full or
//! slow, are dropped and counted, and a line in the audit log says how many are missing. The size and the
//! number of the files are limited: the newest file has the configured name, older ones end in `.1`, `.2` and
//! so on. The caller determines the contents of an entry ([`Entry`]).
//!
//! Refused calls ([`AuditLog::push_refused`]) go to separate files with separate queue limits, and their
//! lines are rate-limited (`refusals.rs`): any client that can connect can make any number of refused calls,
//! and these must not displace other entries.

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

/// Maximum number of queued entries, not counting those of refused calls; further entries are dropped.
pub const ENTRIES_MAX: usize = 8192;
/// Maximum size in bytes of all queued entries together, not counting those of refused calls; further entries
/// are dropped.
pub const BYTES_MAX: usize = 16 << 20;
/// Divisor for the limits of refused calls: [`ENTRIES_MAX`], [`BYTES_MAX`] and the maximum number of files
/// are divided by it. Refused calls may use the result in addition to what other entries may use.
const REFUSED_SHARE: usize = 8;
/// Number of bytes that a queued entry is assumed to take in addition to [`Entry::bytes`].
const ENTRY_BYTES: usize = 256;
/// Size of a batch of lines in bytes. The writing thread writes a batch when it has reached this size, or
/// when no more entries are queued.
const BATCH_BYTES: usize = 64 << 10;
/// Longest time for which the writing thread sleeps if no entry arrives. After this time, it reports dropped
/// entries and refused calls that have no line of their own.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest time for which [`AuditLog::stop`] waits until the last lines are written.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// An entry that becomes one line of the audit log.
pub trait Entry: Send {
    /// Returns the number of bytes that the entry takes while it is queued.
    fn bytes(&self) -> usize;

    /// Appends the line, without a line feed at its end. Appends nothing if it turns out that the entry need
    /// not be logged, for example when its request is decoded. Such work is done here, on the writing thread,
    /// so that no request waits for it.
    fn write(&self, out: &mut String);
}

/// Output for the lines of the audit log.
pub trait Lines: Send + 'static {
    /// Appends lines, each with its line feed.
    ///
    /// # Errors
    ///
    /// Returns an error if not all lines were written. In this case, none of them must be visible to readers.
    fn append(&mut self, lines: &[u8]) -> io::Result<()>;

    /// Makes the appended lines durable. Errors are ignored.
    fn sync(&mut self);
}

/// Options of the audit log.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Path of the newest file.
    pub path: PathBuf,
    /// Maximum size of a file in bytes. Lines that would make the newest file larger go to a new file, and
    /// the full one is renamed.
    pub file_bytes_max: u64,
    /// Maximum number of files, including the newest.
    pub files_max: u64,
}

enum Item {
    Entry(Box<dyn Entry>, Kind),
    Wake,
}

/// Kind of an entry. It determines in which files the entry is written, and how many entries may be queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Entry of a call that was executed, or may have been.
    Accepted,
    /// Entry of a call that was refused.
    Refused,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Accepted, Kind::Refused];

    /// Maximum number of bytes that queued entries of this kind take.
    fn bytes_max(self) -> usize {
        match self {
            Kind::Accepted => BYTES_MAX,
            Kind::Refused => BYTES_MAX / REFUSED_SHARE,
        }
    }
}

/// Number and size of the queued entries of one kind.
#[derive(Default)]
struct Waiting {
    entries: AtomicUsize,
    bytes: AtomicUsize,
}

/// The audit log of a member.
pub struct AuditLog {
    items: SyncSender<Item>,
    /// Maximum number of queued entries of each [`Kind`], indexed by the kind.
    entries_max: [usize; 2],
    clock: Clock,
    shared: Arc<Shared>,
    ended: Mutex<Option<Receiver<()>>>,
}

struct Shared {
    /// Number and size of the queued entries of each [`Kind`], indexed by the kind.
    waiting: [Waiting; 2],
    refusals: Mutex<Refusals>,
    /// Number of entries that were dropped since the start, not counting those of refused calls.
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
        // Use the state even if the lock is poisoned: no code that holds the lock can panic between two
        // related changes.
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, entry: &dyn Entry, kind: Kind) {
        let waiting = &self.waiting[kind as usize];
        waiting.bytes.fetch_sub(entry.bytes() + ENTRY_BYTES, Ordering::Relaxed);
        waiting.entries.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AuditLog {
    /// Opens the file of the audit log and the file of refused calls, whose name ends in `.refused`, and
    /// starts the thread that writes both.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be opened, or the thread cannot be started.
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

    /// Starts the audit log like [`AuditLog::start`], with these outputs and this limit of queued entries.
    /// Used by tests.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread cannot be started.
    pub fn to(
        lines: impl Lines,
        refused: impl Lines,
        entries_max: usize,
        clock: Clock,
        logger: Arc<Logger>,
        metrics: AuditMetrics,
    ) -> io::Result<AuditLog> {
        let entries_max = [entries_max, (entries_max / REFUSED_SHARE).max(1)];
        // Give the channel space for the entries of both kinds together, so that many entries of one kind
        // cannot use up the space of the other.
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

    /// Queues an entry for the thread, or drops the entry if too many entries are queued. This function never
    /// waits.
    pub fn push(&self, entry: Box<dyn Entry>) {
        if !self.queue(entry, Kind::Accepted) {
            self.shared.drop_entries(1);
        }
    }

    /// Queues an entry for a refused call of a client at this address. If this address, or all addresses
    /// together, had too many such entries recently, the call is only counted, and `entry` is not called. The
    /// call is also only counted if too many entries are queued. This function waits only for a lock that is
    /// held for a moment.
    pub fn push_refused(&self, address: IpAddr, entry: impl FnOnce() -> Box<dyn Entry>) {
        let now = self.clock.now();
        if !self.shared.refusals().admit(address, now) {
            self.shared.metrics.refused_not_shown.add(1);
        } else if !self.queue(entry(), Kind::Refused) {
            self.shared.metrics.refused_not_shown.add(1);
            self.shared.refusals().dropped(address, now);
        }
    }

    /// Queues an entry. Returns false if it was dropped because too many entries of its kind are queued.
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

    /// Returns the number of entries that were dropped since the start, not counting those of refused calls.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Makes the writing thread write the queued entries and end, and waits for that for at most two seconds.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        // Wake the thread, which otherwise notices the stop only after [`INTERVAL`]. If the queue is full,
        // the thread is awake already.
        drop(self.items.try_send(Item::Wake));
        if let Some(ended) = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = ended.recv_timeout(STOP_TIMEOUT);
        }
    }
}

/// Output for entries of one kind.
struct Output {
    lines: Box<dyn Lines>,
    is_failing: bool,
    /// Lines that have not been written yet. `entries` is the number of entries among them, so it does not
    /// count lines that report missing entries.
    batch: String,
    entries: u64,
}

impl Output {
    fn to(lines: impl Lines) -> Output {
        Output { lines: Box::new(lines), is_failing: false, batch: String::new(), entries: 0 }
    }

    /// Writes the batch. Returns the number of entries written, or as the error the number of entries lost.
    fn write(&mut self, logger: &Logger) -> Result<u64, u64> {
        let (batch, entries) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.entries));
        if batch.is_empty() {
            return Ok(0);
        }
        match self.lines.append(batch.as_bytes()) {
            Ok(()) => {
                if std::mem::take(&mut self.is_failing) {
                    logger.info("writing to the audit log works again", &[]);
                }
                Ok(entries)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    let fields = [("error", Value::Str(&error.to_string()))];
                    logger.error(
                        "cannot write the audit log; entries are dropped until writing works again",
                        &fields,
                    );
                }
                Err(entries)
            }
        }
    }
}

/// State of the thread that writes the audit log.
struct Writer {
    items: Receiver<Item>,
    /// The output for each [`Kind`], indexed by the kind.
    outputs: [Output; 2],
    shared: Arc<Shared>,
    clock: Clock,
    logger: Arc<Logger>,
    /// Number of dropped entries that lines in the audit log have reported so far.
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
            // Read the flag before emptying the queue, so that every entry that was queued before the stop is
            // written. The thread does not wait for entries that arrive later.
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

    /// Writes queued entries, up to one batch. Returns true if the queue is empty afterwards, so that nothing
    /// is left to write.
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

/// Writes the entries of one kind to a file. When the file is full, renames it and begins a new one.
pub struct RotatedFiles {
    path: PathBuf,
    file_bytes_max: u64,
    files_max: u64,
    file: File,
    /// True if the file possibly ends in an incomplete line.
    is_torn: bool,
}

impl RotatedFiles {
    /// Opens the newest file, or creates it, readable by its owner only.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be opened, or is not a regular file.
    pub fn open(settings: &Settings) -> io::Result<RotatedFiles> {
        let file = open(&settings.path)?;
        Ok(RotatedFiles {
            path: settings.path.clone(),
            file_bytes_max: settings.file_bytes_max.max(1),
            files_max: settings.files_max.max(1),
            // If the process that wrote the file ended in the middle of a line, the next line must not be
            // appended to the incomplete one.
            is_torn: ends_amid_a_line(&file)?,
            file,
        })
    }

    fn older(&self, number: u64) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    /// Renames the file and begins a new one, or truncates it if only one file is allowed. The new file is
    /// created before anything is renamed: if that fails, nothing has changed, and the next call tries again.
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
        // Only the files up to the first free name move. So a rotation that is tried again after it failed
        // halfway does not move the others once more, which would delete the oldest at each attempt.
        let free = (1..self.files_max - 1).find(|number| !is_there(&self.older(*number)));
        for number in (1..free.unwrap_or(self.files_max - 1)).rev() {
            rename_if_there(&self.older(number), &self.older(number + 1))?;
        }
        rename_if_there(&self.path, &self.older(1))?;
        fs::rename(&fresh, &self.path)?;
        self.file = file;
        Ok(())
    }

    /// Opens the configured name again if another process, such as logrotate, has removed or renamed the open
    /// file.
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

/// Returns true if a file or a link has this name, or that is not certain.
fn is_there(path: &Path) -> bool {
    !fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
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
        // Look at the file again before each write, because another process may have removed, renamed or
        // truncated it.
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
        // Ignore a failure. The lines are in the file, but a crash of the machine may lose them; nothing more
        // can be done about it.
        drop(self.file.sync_all());
    }
}
