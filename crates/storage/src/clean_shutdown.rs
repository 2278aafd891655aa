//! Reads and writes a small file beside the log that contains the ids of its member, and the end of the log
//! at the last clean shutdown or start. With this file, a start detects that the end of the log was lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::Disk;
use log::{LogEnd, OpenError, Owner, ShutdownRecord};
use numbers::{ClusterId, MemberId};

use crate::identity::Identity;
use telemetry::logging::{Logger, Value};

/// The file of the shutdown record in a data directory, and the record that it contained at the start.
pub struct CleanShutdown {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// The record in the file when it was read at the start; `None` if it was missing or damaged.
    pub known: Option<ShutdownRecord>,
    /// True if the file existed, even if it was damaged.
    pub was_there: bool,
}

impl CleanShutdown {
    /// Reads the record. A damaged record counts as missing, because the member can run without it: it only
    /// serves to detect that other data is missing.
    pub fn read(
        disk: &Arc<dyn Disk>,
        member_dir: &Path,
        logger: &Logger,
    ) -> Result<CleanShutdown, OpenError> {
        let path = member_dir.join(ShutdownRecord::FILE_NAME);
        let was_there = disk.exists(&path).map_err(|error| OpenError::Io {
            doing: "look for",
            path: path.clone(),
            error,
        })?;
        let known = match ShutdownRecord::read(&**disk, &path) {
            Ok(known) => known,
            Err(OpenError::Damaged { path, offset, found }) => {
                let path = path.display().to_string();
                logger.warn(
                    "the witness file is damaged and will be written anew once the log is read; a loss at the end of the log cannot be detected at this start",
                    &[
                        ("file", Value::Str(&path)),
                        ("offset", Value::Uint(offset)),
                        ("found", Value::Str(&found)),
                    ],
                );
                None
            }
            Err(error) => return Err(error),
        };
        Ok(CleanShutdown { disk: Arc::clone(disk), path, known, was_there })
    }

    /// Returns an error if the record belongs to another member.
    pub fn check(&self, identity: &Identity) -> Result<(), OpenError> {
        let expected = identity.owner();
        match self.known.map(|record| Owner { cluster_id: record.cluster_id, member_id: record.member_id }) {
            Some(found) if found != expected => {
                Err(OpenError::Foreign { path: self.path.clone(), found, expected })
            }
            _ => Ok(()),
        }
    }

    /// Records that the log is in use, and the position up to which it is durable. Must be called before
    /// anything is written to the log. Otherwise, after a crash, the file would still contain the record of a
    /// clean shutdown, and the next start would be refused, because the log would be longer than that record
    /// says.
    pub fn open(&self, identity: &Identity, synced_to: Option<LogEnd>) -> Result<(), OpenError> {
        self.write(identity, None, synced_to)
    }

    /// Records the position at which the log ends after it is closed. Does nothing if `end` is `None`, which
    /// stands for a log that was never written.
    pub fn close(&self, identity: &Identity, end: Option<LogEnd>) -> Result<(), OpenError> {
        if end.is_some() { self.write(identity, end, None) } else { Ok(()) }
    }

    fn write(
        &self,
        identity: &Identity,
        end: Option<LogEnd>,
        synced_to: Option<LogEnd>,
    ) -> Result<(), OpenError> {
        let record = ShutdownRecord {
            cluster_id: ClusterId(identity.cluster_id),
            member_id: MemberId(identity.member_id),
            end,
            synced_to,
        };
        record.write(&*self.disk, &self.path)
    }
}
