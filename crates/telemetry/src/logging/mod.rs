//! The structured log, in the form etcd's has: JSON lines (or `console` lines) on stderr, stdout or files.
//!
//! What it does not know: who logs, and when to stop: `fatal` is a level, the caller ends the process.
//!
//! Invariants: a line below the level costs one comparison; a line is written whole or not at all; an output that
//! fails (a closed pipe, a full disk) never stops the process, the lines lost are counted; a message repeated many
//! times in a second is thinned, and the next line of it says how many were left out.
//! Tests: beside the code, and `tests/it/logging.rs`.

mod encoding;
mod repeat;
mod rotation;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, UNIX_EPOCH};

pub use config::log_settings::{Format, Level, LogOutput, LogSettings};
pub use encoding::Value;
pub use rotation::Zone;

use encoding::Line;
use repeat::{Allowance, RepeatLimit};
use rotation::RotatedFile;

use clock::Clock;

/// A handle of the log; clones write to the same outputs.
#[derive(Clone)]
pub struct Logger {
    shared: Arc<Shared>,
}

struct Shared {
    /// The level of the options.
    level: Level,
    /// The level that counts now, as a number.
    level_now: AtomicU8,
    format: Format,
    outputs: Mutex<Vec<Box<dyn Write + Send>>>,
    repeats: RepeatLimit,
    clock: Clock,
    started: Instant,
    lines_lost: AtomicU64,
}

/// An output that could not be opened.
#[derive(Debug)]
pub struct OpenError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

impl Logger {
    /// Opens the outputs. Files are created when missing, and appended to.
    pub fn open(settings: &LogSettings) -> Result<Logger, OpenError> {
        Logger::open_in_zone(settings, |_| 0)
    }

    /// As [`Logger::open`], with the local time for the names of files that are moved aside, should the settings want that.
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

    /// A log to stderr in the default form, for what has to be said before the options are known.
    pub fn stderr() -> Logger {
        Logger::to(Level::Info, Format::Json, vec![Box::new(io::stderr())])
    }

    /// A log to these outputs.
    pub fn to(level: Level, format: Format, outputs: Vec<Box<dyn Write + Send>>) -> Logger {
        Logger::by(Clock::real(), level, format, outputs)
    }

    /// A log to these outputs whose lines bear the time of this clock.
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

    /// True when lines of this level are written; to be asked before fields are computed that cost something.
    #[inline]
    pub fn enabled(&self, level: Level) -> bool {
        level as u8 >= self.shared.level_now.load(Ordering::Relaxed)
    }

    /// Changes the level from the next line on; `None` for the level of the options.
    pub fn set_level(&self, level: Option<Level>) {
        self.shared.level_now.store(level.unwrap_or(self.shared.level) as u8, Ordering::Relaxed);
    }

    /// Lines that no output took, or not all of them.
    pub fn lines_lost(&self) -> u64 {
        self.shared.lines_lost.load(Ordering::Relaxed)
    }

    /// Logs what is of use only in a search for a fault.
    #[track_caller]
    #[inline]
    pub fn debug(&self, message: &str, fields: &[(&str, Value<'_>)]) {
        self.log(Level::Debug, message, fields);
    }

    /// Logs what happened in the course of things.
    #[track_caller]
    #[inline]
    pub fn info(&self, message: &str, fields: &[(&str, Value<'_>)]) {
        self.log(Level::Info, message, fields);
    }

    /// Logs what should not happen, but was coped with.
    #[track_caller]
    #[inline]
    pub fn warn(&self, message: &str, fields: &[(&str, Value<'_>)]) {
        self.log(Level::Warn, message, fields);
    }

    /// Logs what failed.
    #[track_caller]
    #[inline]
    pub fn error(&self, message: &str, fields: &[(&str, Value<'_>)]) {
        self.log(Level::Error, message, fields);
    }

    /// Logs why the process is about to end. Ending it is the caller's part.
    #[track_caller]
    #[inline]
    pub fn fatal(&self, message: &str, fields: &[(&str, Value<'_>)]) {
        self.log(Level::Fatal, message, fields);
    }

    /// Logs what was found out about the options before the log was open.
    #[track_caller]
    pub fn log_entry(&self, entry: &config::Entry) {
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

    /// Logs a warning that anybody can cause who reaches the member, as often as they like: ten are written in a second, and the next
    /// one says how many were not.
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
        // What ends the process is said however often it was said before.
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
        // A thread that panicked while writing leaves outputs that are still good.
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
