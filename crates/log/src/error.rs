//! Defines the errors of the log, with messages for the operator.

use compression::DecompressError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Batch, Owner};

/// Advice for the operator about damaged data. It is the last part of several error messages.
pub const REMEDY: &str = "data that this member acknowledged may be missing: do not just delete the file; \
     rebuild the member from the others with `mainstay rebuild` and the flags it was started with or, if \
     it is the only one, restore its data directory from a backup";

/// Returns advice for the operator about an error of the operating system.
fn io_remedy(error: &io::Error) -> &'static str {
    if disk::is_full(error) {
        return "free some space, and start the member again";
    }
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "the user that runs the member must be allowed to read and write it; nothing was changed"
        }
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
            "put the original file back, or rebuild the member from the others with `mainstay rebuild` and \
             the flags it was started with"
        }
        _ => {
            "check the disk; if the file remains unreadable, rebuild the member from the others with `mainstay \
             rebuild` and the flags it was started with or, if it is the only one, restore its data directory from \
             a backup"
        }
    }
}

/// Error returned when a log or a checkpoint cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The operating system refused an operation.
    Io {
        /// Operation that failed, such as `read`.
        doing: &'static str,
        /// File or directory of the operation.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A file does not contain the bytes that were written to it: they are different or missing.
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset of the damage in bytes.
        offset: u64,
        /// Description of the damage.
        found: String,
    },
    /// A required file is missing.
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A directory, a link or something else exists where a regular file must be.
    NotAFile {
        /// Path of the directory, link or other object.
        path: PathBuf,
    },
    /// A directory has the name of a temporary file that the log must create.
    InTheWay {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The files belong to another member or another cluster.
    Foreign {
        /// The file.
        path: PathBuf,
        /// Cluster id and member id that the file contains.
        found: Owner,
        /// Cluster id and member id that the options contain.
        expected: Owner,
    },
    /// An option is out of its valid range.
    Option(&'static str),
}

impl OpenError {
    pub(crate) fn io(doing: &'static str, path: &Path, error: io::Error) -> OpenError {
        OpenError::Io { doing, path: path.to_path_buf(), error }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, found: impl Into<String>) -> OpenError {
        OpenError::Damaged { path: path.to_path_buf(), offset, found: found.into() }
    }
}

impl OpenError {
    /// Returns true if a file is missing, damaged or not a regular file. A caller that has the same contents
    /// elsewhere can continue without the file.
    pub fn is_damage(&self) -> bool {
        matches!(self, OpenError::Damaged { .. } | OpenError::Missing { .. } | OpenError::NotAFile { .. })
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Io { doing, path, error } => {
                write!(f, "cannot {doing} {}: {error}; {}", path.display(), io_remedy(error))
            }
            OpenError::Damaged { path, offset, found } => {
                write!(f, "{} is damaged at offset {offset}: {found}; {REMEDY}", path.display())
            }
            OpenError::Missing { path } => write!(f, "{} is missing; {REMEDY}", path.display()),
            OpenError::InTheWay { path } => {
                write!(
                    f,
                    "{} is in the way of a file that the member must create: move it elsewhere",
                    path.display()
                )
            }
            OpenError::NotAFile { path } => write!(
                f,
                "{} is not a plain file: put the file itself back where the link or directory is now; if it is gone, \
                 {REMEDY}",
                path.display()
            ),
            OpenError::Foreign { path, found, expected } => write!(
                f,
                "{} belongs to member {:x} of cluster {:x}, not to member {:x} of cluster {:x}: check the \
                 data directory and the flags, and put the original file back",
                path.display(),
                found.member_id,
                found.cluster_id,
                expected.member_id,
                expected.cluster_id
            ),
            OpenError::Option(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Error that stops the log permanently. A write or sync of a segment in use failed, so it is unknown which
/// data is on the disk, and the member must stop.
#[derive(Clone, Debug)]
pub struct Fatal {
    /// Operation that failed, such as `sync`.
    pub doing: &'static str,
    /// File of the operation.
    pub path: PathBuf,
    /// Error of the operating system.
    pub error: Arc<io::Error>,
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot {} {}: {}; the member stops, because the content of the disk is now unknown: check the \
             disk, then start the member again",
            self.doing,
            self.path.display(),
            self.error
        )
    }
}

impl std::error::Error for Fatal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.error)
    }
}

/// Error returned when the log refuses a batch. It gives the batch back to the caller.
#[derive(Debug)]
pub struct AppendError {
    /// Reason of the refusal.
    pub reason: Refusal,
    /// The batch, unchanged.
    pub batch: Batch,
}

/// Reason why the log refuses a batch. `QueueFull` and `NoSpace` are temporary; the others are permanent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The batch would exceed the limit of queued bytes ([`crate::Options::queued_bytes_max`]).
    QueueFull,
    /// The disk is full. The caller has to release segments, or the operator has to free space on the disk.
    NoSpace,
    /// The log has failed, or it was closed.
    Stopped,
    /// An entry or a value of the batch exceeds the limit of about 1 GiB.
    TooLarge,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::QueueFull => "the log's queue is full",
            Refusal::NoSpace => "no space is left for the log",
            Refusal::Stopped => "the log has stopped",
            Refusal::TooLarge => "an entry or value is too large for the log",
        })
    }
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for AppendError {}

/// Error returned when a segment cannot be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseError {
    /// The segment is in use: records are still written to it.
    Active,
    /// No segment has this sequence number, or the release of the segment was already requested.
    Unknown,
    /// The log has failed, or it was closed.
    Stopped,
}

/// Error returned when bytes cannot be read from the log.
#[derive(Debug)]
pub enum ReadError {
    /// The segment was released. If the value is still live, it was copied to another segment before the
    /// release, and the caller has to look up its new location.
    Moved,
    /// The entry is no longer kept, or it was replaced during the read, or its index is beyond the last
    /// entry.
    Unavailable,
    /// The bytes at the location differ from those that were written.
    Damaged {
        /// The segment's file.
        path: PathBuf,
        /// Offset of the damage in bytes.
        offset: u64,
        /// Description of the damage.
        found: &'static str,
    },
    /// The bytes at the location are as they were written, but the value cannot be decompressed, because its
    /// dictionary is damaged or missing.
    Undecodable {
        /// The segment's file.
        path: PathBuf,
        /// Offset of the value's record in bytes.
        offset: u64,
        /// Reason, with the file of the dictionary.
        error: DecompressError,
    },
    /// The operating system refused the read.
    Io {
        /// The segment's file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Moved => f.write_str("the segment is gone"),
            ReadError::Unavailable => f.write_str("the log does not hold these entries"),
            ReadError::Damaged { path, offset, found } => {
                write!(f, "{} is damaged at offset {offset}: {found}", path.display())
            }
            ReadError::Undecodable { path, offset, error } => {
                write!(f, "cannot read the value at offset {offset} of {}: {error}", path.display())
            }
            ReadError::Io { path, error } => write!(f, "cannot read {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io { error, .. } => Some(error),
            ReadError::Undecodable { error, .. } => Some(error),
            _ => None,
        }
    }
}
