use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::LoadError;
use crate::files::{self, Contents, Part, Stamp};
use crate::material::{Material, Warning};
use crate::tls::Tls;
use crate::trust::Fingerprint;

/// How often a failure that lasts is reported again.
const REMINDER: Duration = Duration::from_secs(3600);

/// A file that changed less than so many seconds before it was read may change again without another time stamp.
const STAMP_SECONDS: i64 = 2;

/// What happened to the files. All of it belongs into the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The files changed and are in use from now on. Connections that exist are to be checked (`still_valid`).
    Reloaded {
        /// The new [`Tls::generation`].
        generation: u64,
        /// Files whose contents are new.
        changed: Vec<PathBuf>,
        /// What is strange about the new material.
        warnings: Vec<Warning>,
    },
    /// The files changed and cannot be used. What was loaded before stays in use. It is reported once for each change, and
    /// again every hour.
    Kept {
        /// Which file is at fault, and why.
        error: LoadError,
    },
    /// After a failure the files are again as they were when they were loaded.
    Restored,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Reloaded { generation, changed, .. } => {
                let changed: Vec<String> = changed.iter().map(|file| file.display().to_string()).collect();
                write!(f, "reloaded TLS files (generation {generation}): {}", changed.join(", "))
            }
            Event::Kept { error } => {
                write!(f, "cannot use changed TLS files, those loaded before stay in use: {error}")
            }
            Event::Restored => f.write_str("TLS files are again those in use"),
        }
    }
}

/// Watches the files of one [`Tls`] and replaces what it has loaded. The caller owns a thread and polls about once a second.
///
/// A change is taken over at the second poll that sees the same contents, so that a file that is being written is not
/// mistaken for a whole one that happens to parse. Everything is replaced together or nothing: a new certificate waits for
/// its key.
pub struct Reloader {
    tls: Tls,
    files: Vec<(Part, PathBuf)>,
    /// Of the contents that were read last.
    stamps: Vec<Option<Stamp>>,
    /// The contents were read so soon after the last change that the stamps cannot be trusted.
    read_again: bool,
    /// Contents in use.
    loaded: Vec<Fingerprint>,
    /// Contents that were seen at the last poll and are not in use.
    candidate: Option<Vec<Fingerprint>>,
    failed: Option<Failed>,
}

struct Failed {
    contents: Vec<Fingerprint>,
    error: LoadError,
    reminder_at: SystemTime,
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Reloader {
    pub(crate) fn new(
        tls: Tls,
        files: Vec<(Part, PathBuf)>,
        stamps: Vec<Option<Stamp>>,
        contents: &Contents,
    ) -> Reloader {
        Reloader {
            tls,
            files,
            stamps,
            // The caller has no clock at hand: one more reading costs little.
            read_again: true,
            loaded: contents.hashes(),
            candidate: None,
            failed: None,
        }
    }

    pub(crate) fn stamps(files: &[(Part, PathBuf)]) -> Vec<Option<Stamp>> {
        files.iter().map(|(_, path)| files::stamp(path)).collect()
    }

    /// Looks at the files. As long as they do not change that costs one `stat` for each, at most six.
    pub fn poll(&mut self, now: SystemTime) -> Option<Event> {
        let stamps = Reloader::stamps(&self.files);
        if stamps == self.stamps && !self.read_again && self.candidate.is_none() {
            return self.remind(now);
        }
        self.read_again = changed_lately(&stamps, now);
        self.stamps = stamps;
        let contents = Contents::read(&self.files);
        let hashes = contents.hashes();

        if hashes == self.loaded {
            self.candidate = None;
            return self.clear_failure();
        }
        if self.failed.as_ref().is_some_and(|failed| failed.contents == hashes) {
            self.candidate = None;
            return self.remind(now);
        }
        if self.candidate.as_ref() != Some(&hashes) {
            self.candidate = Some(hashes);
            return None;
        }
        self.candidate = None;
        Some(self.replace(&contents, hashes, now))
    }

    fn replace(&mut self, contents: &Contents, hashes: Vec<Fingerprint>, now: SystemTime) -> Event {
        let shared = &self.tls.shared;
        let previous = shared.current.load_full();
        match Material::build(&shared.settings, contents, &shared.time, Some(&previous)) {
            Ok(material) => {
                let event = Event::Reloaded {
                    generation: material.generation,
                    changed: self.changed(&hashes),
                    warnings: material.warnings.clone(),
                };
                shared.current.store(Arc::new(material));
                self.loaded = hashes;
                _ = self.clear_failure();
                event
            }
            Err(error) => {
                self.set_failure(Some(error.clone()));
                let reminder_at = now.checked_add(REMINDER).unwrap_or(now);
                self.failed = Some(Failed { contents: hashes, error: error.clone(), reminder_at });
                Event::Kept { error }
            }
        }
    }

    fn changed(&self, hashes: &[Fingerprint]) -> Vec<PathBuf> {
        let changed = |at: &usize| self.loaded.get(*at) != hashes.get(*at);
        let paths = self.files.iter().enumerate().filter(|(at, _)| changed(at));
        paths.map(|(_, (_, path))| path.clone()).collect()
    }

    fn remind(&mut self, now: SystemTime) -> Option<Event> {
        let failed = self.failed.as_mut().filter(|failed| now >= failed.reminder_at)?;
        failed.reminder_at = now.checked_add(REMINDER).unwrap_or(now);
        Some(Event::Kept { error: failed.error.clone() })
    }

    fn clear_failure(&mut self) -> Option<Event> {
        let failed = self.failed.take();
        self.set_failure(None);
        failed.map(|_| Event::Restored)
    }

    fn set_failure(&self, failure: Option<LoadError>) {
        *self.tls.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}

fn changed_lately(stamps: &[Option<Stamp>], now: SystemTime) -> bool {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    // Files whose stamps are in the future, by more than clocks of file servers differ, are not read for ever.
    let lately = now - STAMP_SECONDS..=now + STAMP_SECONDS;
    stamps.iter().flatten().flat_map(Stamp::changed_seconds).any(|seconds| lately.contains(&seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_dated_in_the_future_are_not_read_for_ever() {
        let dir = testkit::TempDir::in_memory("tls-stamps");
        let path = dir.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        let hours = |count: u64| SystemTime::now() + Duration::from_secs(count * 3600);
        let lately = |now| changed_lately(&[files::stamp(&path)], now);
        assert!(lately(SystemTime::now()) && !lately(hours(1)));
        file.set_modified(hours(2)).unwrap();
        assert!(!lately(hours(1)), "it was written an hour ago");
        assert!(lately(SystemTime::now()), "the kernel has seen a change just now");
    }
}
