//! Writes the structured log, in etcd's format: JSON lines, or lines for the console, on stderr, stdout or in
//! files.
//!
//! The module does not end the process: `fatal` is only a level, and its caller exits.
//!
//! Invariants: a line below the level costs one comparison. Lines of different threads are not mixed. An
//! output that fails, for example because of a closed pipe or a full disk, never stops the process, and the
//! lost lines are counted. If a message is repeated many times in a second, most of the lines are left out,
//! and a later line says how many. Tests: beside the code, and `tests/it/logging.rs`.

mod encoding;
mod entry;
mod repeat;
mod rotation;
mod settings;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, UNIX_EPOCH};

pub use encoding::Value;
pub use entry::Entry;
pub use rotation::Zone;
pub use settings::{Format, Level, LogOutput, LogRotation, LogSettings};

use encoding::Line;
use repeat::{Allowance, RepeatLimit};
use rotation::RotatedFile;

use clock::Clock;

/// A handle of the log. Clones write to the same outputs.
#[derive(Clone)]
pub struct Logger {
    shared: Arc<Shared>,
}

struct Shared {
    /// Level from the options, which [`Logger::set_level`] can restore.
    level: Level,
    /// Level that is currently in effect, as a number.
    level_now: AtomicU8,
    format: Format,
    outputs: Mutex<Vec<Box<dyn Write + Send>>>,
    repeats: RepeatLimit,
    clock: Clock,
    started: Instant,
    lines_lost: AtomicU64,
}

/// Reason why an output cannot be opened.
#[derive(Debug)]
pub struct OpenError {
    /// Path of the file.
    pub path: PathBuf,
    /// Error of the operating system.
    pub error: io::Error,
}

impl Logger {
    /// Opens the outputs. Creates missing files, and appends to existing ones.
    pub fn open(settings: &LogSettings) -> Result<Logger, OpenError> {
        Logger::open_in_zone(settings, |_| 0)
    }

    /// Opens the outputs like [`Logger::open`]. If the settings ask for local time in the names of rotated
    /// files, `zone` determines it.
    pub fn open_in_zone(settings: &LogSettings, zone: Zone) -> Result<Logger, OpenError> {
        let open = |path: &Path| -> Result<Box<dyn Write + Send>, OpenError> {
            let Some(rotation) = settings.rotation else { return Ok(Box::new(open_file(path)?)) };
            let rotated = RotatedFile::open(path, rotation, Clock::real(), zone);
            Ok(Box::new(rotated.map_err(|error| OpenError { path: path.to_path_buf(), error })?))
        };
        let mut outputs: Vec<Box<dyn Write + Send>> = Vec::new();
        for output in &settings.outputs {
            outputs.push(match output {
                LogOutput::Stderr => Box::new(io::stderr()),
                LogOutput::Stdout => Box::new(io::stdout()),
                LogOutput::File(path) => open(path)?,
            });
        }
        Ok(Logger::to(settings.level, settings.format, outputs))
    }

    /// Returns a log to stderr in the default format, for messages before the options have been parsed.
    pub fn stderr() -> Logger {
        Logger::to(Level::Info, Format::Json, vec![Box::new(io::stderr())])
    }

    /// Returns a log to these outputs.
    pub fn to(level: Level, format: Format, outputs: Vec<Box<dyn Write + Send>>) -> Logger {
        Logger::by(Clock::real(), level, format, outputs)
    }

    /// Returns a log to these outputs. The times of its lines come from this clock.
    pub fn by(clock: Clock, level: Level, format: Format, outputs: Vec<Box<dyn Write + Send>>) -> Logger {
        let shared = Shared {
            level,
            level_now: AtomicU8::new(level as u8),
            format,
            outputs: Mutex::new(outputs),
            repeats: RepeatLimit::new(),
            started: clock.now(),
            clock,
            lines_lost: AtomicU64::new(0),
        };
        Logger { shared: Arc::new(shared) }
    }

    /// Returns true if lines of this level are written. Callers check this before they compute expensive
    /// fields.
    #[inline]
    pub fn enabled(&self, level: Level) -> bool {
        level as u8 >= self.shared.level_now.load(Ordering::Relaxed)
    }

    /// Changes the level from the next line on. `None` restores the level from the options.
    pub fn set_level(&self, level: Option<Level>) {
        self.shared.level_now.store(level.unwrap_or(self.shared.level) as u8, Ordering::Relaxed);
    }

    /// Returns the number of lines that at least one output failed to write completely.
    pub fn lines_lost(&self) -> u64 {
        self.shared.lines_lost.load(Ordering::Relaxed)
    }

    /// Logs details that are useful only for debugging.
    #[track_caller]
    #[inline]
    pub fn debug(&self, message: &str, fields: &[(&str, Value<'_>)]) {
        self.log(Level::Debug, message, fields);
    }

    /// Logs a normal event.
    #[track_caller]
    #[inline]
    pub fn info(&self, message: &str, fields: &[(&str, Value<'_>)]) {
        self.log(Level::Info, message, fields);
    }

    /// Logs a problem that the member can handle.
    #[track_caller]
    #[inline]
    pub fn warn(&self, message: &str, fields: &[(&str, Value<'_>)]) {
        self.log(Level::Warn, message, fields);
    }

    /// Logs a failure, such as a request or a task that could not be done.
    #[track_caller]
    #[inline]
    pub fn error(&self, message: &str, fields: &[(&str, Value<'_>)]) {
        self.log(Level::Error, message, fields);
    }

    /// Logs why the process is about to end. The caller must end it.
    #[track_caller]
    #[inline]
    pub fn fatal(&self, message: &str, fields: &[(&str, Value<'_>)]) {
        self.log(Level::Fatal, message, fields);
    }

    /// Logs an entry that was made before the log was open.
    #[track_caller]
    pub fn log_entry(&self, entry: &Entry) {
        let fields: Vec<(&str, Value<'_>)> =
            entry.fields.iter().map(|(key, value)| (*key, Value::Str(value))).collect();
        self.log(entry.level, &entry.message, &fields);
    }

    /// Logs one line.
    #[track_caller]
    #[inline]
    pub fn log(&self, level: Level, message: &str, fields: &[(&str, Value<'_>)]) {
        if self.enabled(level) {
            self.write(level, message, fields, Allowance::OWN, Location::caller());
        }
    }

    /// Logs a warning that any client or peer can cause at any rate: at most ten lines per second are
    /// written, and the next line says how many were left out.
    #[track_caller]
    pub fn warn_of_strangers(&self, message: &str, fields: &[(&str, Value<'_>)]) {
        if self.enabled(Level::Warn) {
            self.write(Level::Warn, message, fields, Allowance::OF_STRANGERS, Location::caller());
        }
    }

    #[cold]
    fn write(
        &self,
        level: Level,
        message: &str,
        fields: &[(&str, Value<'_>)],
        allowance: Allowance,
        caller: &Location<'_>,
    ) {
        let shared = &*self.shared;
        let second = shared.clock.now().saturating_duration_since(shared.started).as_secs();
        // Never leave out a line about a bug or a fatal error, even if it is repeated often.
        let suppressed = if level >= Level::DPanic {
            0
        } else {
            match shared.repeats.admit(level, message, second, allowance) {
                Some(suppressed) => suppressed,
                None => return,
            }
        };
        let now_us = shared.clock.wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let now_us = u64::try_from(now_us).unwrap_or(u64::MAX);
        let line = Line { level, now_us, caller, message, fields, suppressed };
        let text = line.encode(shared.format);
        // Use the outputs even if the lock is poisoned: a thread that panicked while writing leaves them
        // usable.
        let mut outputs = shared.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lost = false;
        for output in outputs.iter_mut() {
            lost |= output.write_all(text.as_bytes()).and_then(|()| output.flush()).is_err();
        }
        if lost {
            shared.lines_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn open_file(path: &Path) -> Result<std::fs::File, OpenError> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|error| OpenError { path: path.to_path_buf(), error })
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "couldn't open log output {}: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for OpenError {}

impl std::fmt::Debug for Logger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logger")
            .field("level", &self.shared.level)
            .field("format", &self.shared.format)
            .finish()
    }
}
