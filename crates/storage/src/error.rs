//! Defines the reasons why a data directory cannot be opened. Their messages for the operator are in
//! `error/text.rs`.

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
    /// The operating system returned an error when it was asked whether this path exists.
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
        /// Description of the keys in etcd's v2 store, which Mainstay does not have; `None` if there are no
        /// such keys.
        old_store: Option<String>,
    },
    /// etcd, or one of its tools, has etcd's database in this directory open.
    EtcdRuns {
        /// Path of the locked database.
        path: PathBuf,
    },
    /// etcd has created a store beside the files of this member, which was never taken over from etcd.
    EtcdBeside(Box<EtcdBeside>),
    /// etcd has run again on its old files after Mainstay took this member over.
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
        /// Path of the file with which the export has marked this member as exported.
        mark: PathBuf,
        /// The data directory that the export created for etcd.
        to: PathBuf,
    },
    /// The member was exported to a data directory of etcd before, and another export was requested.
    ExportedBefore {
        /// Path of the file with which the export has marked this member as exported.
        mark: PathBuf,
        /// The data directory that the export created for etcd.
        to: PathBuf,
    },
    /// The cluster of this member was formed again, in another directory, by `mainstay recover`.
    Recovered {
        /// Path of the file with which the recovery has marked this member.
        mark: PathBuf,
        /// Data directory of the first member of the cluster that was formed again.
        to: PathBuf,
    },
    /// The directory belongs to an observer, and a member was started on it.
    OfObserver {
        /// Path of the data directory.
        data_dir: PathBuf,
    },
    /// The directory belongs to a member, and an observer was started on it.
    OfMember {
        /// Path of the data directory.
        data_dir: PathBuf,
    },
    /// The directory belongs to a witness, and a member was started on it.
    OfWitness {
        /// Path of the data directory.
        data_dir: PathBuf,
    },
    /// The directory belongs to a member with data, and a witness was started on it.
    NotOfWitness {
        /// Path of the data directory.
        data_dir: PathBuf,
    },
    /// A witness is to become the only member of its cluster.
    WitnessAlone {
        /// Path of the data directory.
        data_dir: PathBuf,
    },
    /// The directory contains no member.
    Empty {
        /// Directory that was searched.
        path: PathBuf,
        /// Name of the data that the directory lacks, for the error message.
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
    /// The log of this member is not in the directory that the options name, or that directory cannot be used
    /// for the log.
    LogDirMismatch(Box<LogDirMismatch>),
    /// Files of the directory contradict each other, or one lacks data that another needs.
    Inconsistent(Box<Inconsistency>),
    /// The first log entries of a member that has no data yet could not be determined:
    /// [`crate::opening::Opening::begin`] failed.
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

/// Reason why a directory cannot be used for a member's log.
#[derive(Debug)]
pub enum LogDirMismatch {
    /// The log is not in the directory that the options name, but in another.
    Elsewhere {
        /// Path of the log's directory.
        log_dir: PathBuf,
        /// Directory that the options name.
        chosen: PathBuf,
        /// Directory `<data-dir>/member/log`.
        own: PathBuf,
    },
    /// The log is neither in the directory that contained it before nor in the one that the options name.
    Missing {
        /// Directory that contained the log.
        log_dir: PathBuf,
        /// Directory that the options name.
        chosen: PathBuf,
    },
    /// The data directory has a note that the log is in a certain directory, but that directory contains no
    /// log.
    NotThere {
        /// Directory of the log according to the note in the data directory.
        log_dir: PathBuf,
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
    },
    /// The log, or a copy of it, is in another directory than before. Its end was not recorded, because the
    /// member was not stopped cleanly, so it is unknown whether this log is complete.
    MovedInUse {
        /// Directory that contained the log.
        log_dir: PathBuf,
        /// Directory that the options name.
        chosen: PathBuf,
    },
    /// The directory contains a log, but the data directory contains no data of the member to which the log
    /// belongs.
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
        /// One of the files that do not belong to a log.
        file: PathBuf,
    },
    /// The directory contains the data directory, or is in it and used for something other than the log.
    Overlaps {
        /// Directory that the options name.
        chosen: PathBuf,
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
    },
}

/// A contradiction between files of a data directory, or content of a file that no release of Mainstay
/// writes.
#[derive(Debug)]
pub enum Inconsistency {
    /// The log is missing, but other files of the member exist.
    LogMissing {
        /// Path of the log's directory.
        log_dir: PathBuf,
    },
    /// The checkpoint cannot be used, and the log cannot replace it, because it does not contain every entry
    /// since the first.
    LogNotWhole {
        /// Error of the checkpoint.
        checkpoint: DataDirError,
        /// Entries that are missing in the log.
        lacking: MissingEntries,
    },
    /// The checkpoint is missing, and the log cannot replace it, because it does not contain every entry
    /// since the first.
    NoCheckpoint {
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
        /// Entries that are missing in the log.
        lacking: MissingEntries,
    },
    /// The runs of the checkpoint and its manifest name different applied indexes.
    CheckpointIndex {
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
        /// Applied index in the manifest.
        stated: Index,
        /// Applied index in the runs.
        held: Index,
    },
    /// The checkpoint covers entries after the end of the log.
    LogEndsEarly {
        /// Directory that contains the log.
        log_dir: PathBuf,
        /// Index of the last entry in the log.
        last: Index,
        /// Index of the last entry that the checkpoint covers.
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
        /// Name of the file in the manifest.
        name: String,
    },
    /// The runs of the checkpoint have content that Mainstay never writes.
    Checkpoint {
        /// The directory of the checkpoint.
        dir: PathBuf,
        /// Error of restoring the runs.
        error: RestoreError<log::OpenError>,
    },
    /// The data of a log entry that changes the membership cannot be decoded.
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
    /// The log starts after this entry, up to which a snapshot was installed.
    Before(Index),
    /// One or more entries in the middle of the log are missing.
    Gap {
        /// Index of the entry after the gap.
        found: Index,
        /// Index of the entry that was expected there, which is the first missing one.
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
    /// Returns true if the cause is a missing or damaged file. A caller that has the content of the file
    /// elsewhere can then continue: for example, a start can replay the log instead of reading the
    /// checkpoint.
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
