//! Reasons why a data directory cannot be opened. Their texts for the operator are in `error/text.rs`.

mod text;

use std::error::Error;
use std::io;
use std::path::PathBuf;

use machine::image::RestoreError;
use numbers::Index;

use crate::beginning::AloneError;
use crate::etcd_store::EtcdBeside;
use crate::identity::Identity;

/// Reason why a data directory could not be opened, either to start its member or to read it while the member
/// is stopped.
#[derive(Debug)]
pub enum DataDirError {
    /// A file or directory could not be read or written, is damaged or missing, or belongs to another member.
    Files(log::OpenError),
    /// The operating system did not say whether this path exists.
    Lookup {
        /// Path that was looked up.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// Another process holds the lock of the directory.
    Locked {
        /// Path of the lock file.
        path: PathBuf,
    },
    /// The directory is a data directory of etcd.
    WrittenByEtcd {
        /// The file or directory that only etcd writes.
        path: PathBuf,
        /// Path of the data directory.
        data_dir: PathBuf,
        /// Description of the keys of API version 2, if the directory contains such keys.
        old_store: Option<String>,
    },
    /// etcd, or one of its tools, has the database open.
    EtcdRuns {
        /// Path of the locked database.
        path: PathBuf,
    },
    /// etcd has created a store beside the files of this member, which was never taken over from etcd.
    EtcdBeside(Box<EtcdBeside>),
    /// etcd has run again on its old files after this member was taken over.
    EtcdRanAgain {
        /// Path of the data directory.
        data_dir: PathBuf,
        /// Path of the directory of etcd's log.
        wal_dir: PathBuf,
        /// Path of the directory of Mainstay's log.
        log_dir: PathBuf,
    },
    /// The member was exported to a data directory of etcd.
    Exported {
        /// Path of the mark that the export has left.
        mark: PathBuf,
        /// The data directory that was made for etcd.
        to: PathBuf,
    },
    /// The member was exported to a data directory of etcd before, and another export was requested.
    ExportedBefore {
        /// Path of the mark that the export has left.
        mark: PathBuf,
        /// The data directory that was made for etcd.
        to: PathBuf,
    },
    /// The directory contains no member.
    Empty {
        /// Directory that was searched.
        path: PathBuf,
        /// Name of the missing part.
        lacks: &'static str,
    },
    /// The cluster has removed this member.
    Removed {
        /// Id of the member.
        member_id: u64,
        /// Path of the data directory.
        data_dir: PathBuf,
    },
    /// The options describe another member than the one in the directory.
    OtherMember {
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
        /// Identity of the member in the directory.
        made_for: Identity,
        /// Identity of the member that the options describe.
        configured: Identity,
    },
    /// A file of the checkpoint belongs to another member.
    OtherCheckpoint {
        /// Path of the run.
        path: PathBuf,
        /// Identity of the member that owns the directory.
        identity: Identity,
    },
    /// The log of this member is in another directory than the options name, or that directory cannot be used
    /// for it.
    LogDirMismatch(Box<LogDirMismatch>),
    /// Files of the directory contradict each other, or one lacks data that another needs.
    Inconsistent(Box<Inconsistency>),
    /// The first entries of a member without data could not be determined: [`crate::opening::Opening::begin`]
    /// failed.
    Begin(Box<dyn Error + Send + Sync>),
    /// The member cannot be made the only one of its cluster.
    ForceNewCluster(AloneError),
    /// The first entries of the log could not be made durable.
    FirstEntries(FirstEntriesError),
    /// A committed entry cannot be applied.
    Apply(machine::Fatal),
    /// The thread that opens the log has panicked, which is a bug.
    LogThreadPanicked,
    /// The thread that reads the checkpoint has panicked, which is a bug.
    CheckpointThreadPanicked,
}

/// Reason why a directory cannot be that of a member's log.
#[derive(Debug)]
pub enum LogDirMismatch {
    /// The log is in another directory.
    Elsewhere {
        /// Path of the log's directory.
        log_dir: PathBuf,
        /// Directory that the options name.
        chosen: PathBuf,
        /// Directory `<data-dir>/member/log`.
        own: PathBuf,
    },
    /// Neither directory holds the log.
    Missing {
        /// Directory that contained the log.
        log_dir: PathBuf,
        /// Directory that the options name.
        chosen: PathBuf,
    },
    /// The data directory names a directory that contains no log.
    NotThere {
        /// The directory that the data directory names.
        log_dir: PathBuf,
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
    },
    /// The log, or a copy of it, is in another directory, and its end is not recorded, because the member was
    /// not stopped cleanly.
    MovedInUse {
        /// Directory that contained the log.
        log_dir: PathBuf,
        /// Directory that the options name.
        chosen: PathBuf,
    },
    /// The directory contains a log, but the data directory contains no data of its member.
    OfAnother {
        /// Path of the log's directory.
        log_dir: PathBuf,
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
    },
    /// The directory contains files that do not belong to a log.
    NotEmpty {
        /// Directory that the options name.
        chosen: PathBuf,
        /// One of the files.
        file: PathBuf,
    },
    /// The directory contains the data directory, or is used for something else in it.
    Overlaps {
        /// Directory that the options name.
        chosen: PathBuf,
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
    },
}

/// A contradiction between the files of a data directory, each of which is readable.
#[derive(Debug)]
pub enum Inconsistency {
    /// The log is missing, but other files of the member exist.
    LogMissing {
        /// Path of the log's directory.
        log_dir: PathBuf,
    },
    /// The checkpoint cannot be used, and the log does not contain every entry since the first.
    LogNotWhole {
        /// Error of the checkpoint.
        checkpoint: DataDirError,
        /// Entries that the log lacks.
        lacking: MissingEntries,
    },
    /// The checkpoint is missing, and the log does not contain every entry since the first.
    NoCheckpoint {
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
        /// Entries that the log lacks.
        lacking: MissingEntries,
    },
    /// The applied index in the runs of the checkpoint differs from the one in its manifest.
    CheckpointIndex {
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
        /// Applied index in the manifest.
        stated: Index,
        /// Applied index in the runs.
        held: Index,
    },
    /// The log ends before entries that are in the checkpoint.
    LogEndsEarly {
        /// Path of the log's directory.
        log_dir: PathBuf,
        /// Index of the last entry in the log.
        last: Index,
        /// Index of the last entry in the checkpoint.
        applied: Index,
    },
    /// The replay of the log ended at an entry other than the one that the log reports as its last.
    LastEntry {
        /// Index of the last entry, as the log reports it.
        stated: Index,
        /// Index of the last replayed entry.
        held: Index,
    },
    /// Raft refuses the combination of log and checkpoint.
    Raft {
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
        /// Error of raft.
        refused: consensus::Refusal,
    },
    /// The manifest names a file that cannot be a run of the checkpoint.
    UnknownRun {
        /// Name of the file.
        name: String,
    },
    /// The runs of the checkpoint have content that Mainstay never writes.
    Checkpoint {
        /// The directory of the checkpoint.
        dir: PathBuf,
        /// Error of restoring the runs.
        error: RestoreError<log::OpenError>,
    },
    /// The data of a membership-change entry cannot be decoded.
    NotAChange {
        /// Log index of the entry.
        index: Index,
        /// Decoding error.
        error: prost::DecodeError,
    },
}

/// Entries that are missing in a log that should contain every entry since the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingEntries {
    /// The log starts after a snapshot that was installed at this entry.
    Before(Index),
    /// One or more entries in the middle of the log are missing.
    Gap {
        /// Index of the entry after the gap.
        found: Index,
        /// Index that was expected there.
        expected: Index,
    },
    /// Entries at the end of the log are missing. The log should contain the entries up to this index.
    UpTo(Index),
}

/// Reason why the first entries of a log could not be made durable.
#[derive(Debug)]
pub enum FirstEntriesError {
    /// The log refuses the entries.
    Refused(log::Refusal),
    /// The log has failed.
    Failed(log::Fatal),
    /// The disk is full.
    NoSpace,
    /// The disk did not answer in time.
    TimedOut,
}

impl DataDirError {
    /// Returns true if the cause is a missing or damaged file. A caller that has the content of the file in
    /// another place can then continue without it.
    pub fn is_damage(&self) -> bool {
        match self {
            DataDirError::Files(error) => error.is_damage(),
            DataDirError::Inconsistent(what) => matches!(**what, Inconsistency::Checkpoint { .. }),
            _ => false,
        }
    }
}

impl From<log::OpenError> for DataDirError {
    fn from(error: log::OpenError) -> DataDirError {
        DataDirError::Files(error)
    }
}

impl From<Inconsistency> for DataDirError {
    fn from(what: Inconsistency) -> DataDirError {
        DataDirError::Inconsistent(Box::new(what))
    }
}

impl From<LogDirMismatch> for DataDirError {
    fn from(what: LogDirMismatch) -> DataDirError {
        DataDirError::LogDirMismatch(Box::new(what))
    }
}

impl From<AloneError> for DataDirError {
    fn from(error: AloneError) -> DataDirError {
        DataDirError::ForceNewCluster(error)
    }
}

impl From<FirstEntriesError> for DataDirError {
    fn from(error: FirstEntriesError) -> DataDirError {
        DataDirError::FirstEntries(error)
    }
}

impl From<machine::Fatal> for DataDirError {
    fn from(error: machine::Fatal) -> DataDirError {
        DataDirError::Apply(error)
    }
}

impl Error for DataDirError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            DataDirError::Files(error) => error.source(),
            DataDirError::Lookup { error, .. } => Some(error),
            DataDirError::Inconsistent(what) => what.source(),
            DataDirError::Begin(error) => error.source(),
            DataDirError::ForceNewCluster(error) => error.source(),
            DataDirError::FirstEntries(error) => error.source(),
            _ => None,
        }
    }
}

impl Error for LogDirMismatch {}

impl Error for Inconsistency {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Inconsistency::LogNotWhole { checkpoint, .. } => Some(checkpoint),
            Inconsistency::Raft { refused, .. } => Some(refused),
            Inconsistency::Checkpoint { error, .. } => Some(error),
            Inconsistency::NotAChange { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl Error for FirstEntriesError {}
