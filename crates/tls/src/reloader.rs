use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::LoadError;
use crate::files::{self, Contents, Part, Stamp};
use crate::material::{Material, Warning};
use crate::tls::Tls;
use crate::trust::Fingerprint;

/// Interval at which it is reported again that changed files cannot be used.
const REMINDER: Duration = Duration::from_secs(3600);

/// Assumed resolution of file time stamps in seconds. A second change of a file within this time after the
/// first may leave the time stamp the same.
const STAMP_SECONDS: i64 = 2;

/// Result of a [`Reloader::poll`] that found changed files. The caller should log every event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Files have changed, and their new contents are in use from now on. The caller should check open
    /// connections with `still_valid`.
    Reloaded {
        /// Generation number of the new material ([`Tls::generation`]).
        generation: u64,
        /// Files whose contents have changed.
        changed: Vec<PathBuf>,
        /// Warnings about the new material.
        warnings: Vec<Warning>,
    },
    /// Files have changed, but cannot be used. The material that was loaded before stays in use. Reported
    /// once per change, and then again every hour.
    Kept {
        /// File that cannot be used, and the reason.
        error: LoadError,
    },
    /// The files could not be used for some time, and now have the contents again that are in use.
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
                write!(f, "cannot use changed TLS files; those loaded before stay in use: {error}")
            }
            Event::Restored => f.write_str("the TLS files match those in use again"),
        }
    }
}

/// Watches the files of one [`Tls`], and replaces its material when they change. The caller must call
/// [`Reloader::poll`] about once a second.
///
/// New contents are used only if two successive polls find the same contents. So a partly written file is
/// normally not used, even if it can be parsed. The contents of all files are replaced together or not at
/// all, so that a new certificate is not used before its key has been written.
pub struct Reloader {
    tls: Tls,
    files: Vec<(Part, PathBuf)>,
    /// Stamps that the files had when they were last read.
    stamps: Vec<Option<Stamp>>,
    /// True if the files must be read at the next poll even if their stamps are the same: they were last read
    /// so soon after a change that a further change may leave the stamps unchanged.
    read_again: bool,
    /// Hashes of the contents in use.
    loaded: Vec<Fingerprint>,
    /// Hashes of new contents that the last poll has found. They are used if the next poll finds them again.
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
            // Read the files once more at the first poll: they may have changed just before they were read
            // here, and a further change may then leave the stamps the same.
            read_again: true,
            loaded: contents.hashes(),
            candidate: None,
            failed: None,
        }
    }

    pub(crate) fn stamps(files: &[(Part, PathBuf)]) -> Vec<Option<Stamp>> {
        files.iter().map(|(_, path)| files::stamp(path)).collect()
    }

    /// Checks whether the files have changed, and replaces the material if their new contents can be used. If
    /// nothing has changed, this takes only one `stat` call per file, at most six.
    /// Also replaces the secrets for session tickets when it is time ([`crate::Tickets::tick`]).
    pub fn poll(&mut self, now: SystemTime) -> Option<Event> {
        self.tls.shared.tickets.tick(now);
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
        match Material::build(&shared.settings, contents, &shared.time, &shared.tickets, Some(&previous)) {
            Ok(material) => {
                let event = Event::Reloaded {
                    generation: material.generation,
                    changed: self.changed(&hashes),
                    warnings: material.warnings.clone(),
                };
                if let (Some(old), Some(new)) = (previous.listener_hash(), material.listener_hash()) {
                    shared.tickets.replace_certificate(old, new);
                }
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
    // Without the upper bound, a file with a time stamp far in the future would be read at every poll. The
    // bound is not `now`, because the clock of a file server may be a little ahead.
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
