//! Reasons why a data directory cannot be opened, with texts for the operator.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use interchange::wal::GUARD_NAMES;
use machine::image::RestoreError;
use numbers::Index;

use crate::beginning::AloneError;
use crate::etcd_beside::EtcdBeside;
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
        /// Description of keys of API version 2, if the directory contains any.
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
        /// Path of the mark.
        mark: PathBuf,
        /// The data directory that was made for etcd.
        to: PathBuf,
    },
    /// The member was exported to a data directory of etcd before, and another export was requested.
    ExportedBefore {
        /// Path of the mark.
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
    Misplaced(Box<Misplaced>),
    /// Files of the directory contradict each other, or one lacks data that another needs.
    Inconsistent(Box<Inconsistency>),
    /// The first entries of a member without data could not be determined: [`crate::opening::Opening::begin`]
    /// failed.
    Begin(Box<dyn Error + Send + Sync>),
    /// The member cannot be made the only one of its cluster.
    ForceNewCluster(AloneError),
    /// The first entries could not be made durable.
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
pub enum Misplaced {
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
    /// The data directory notes a directory that contains no log.
    NotThere {
        /// The directory that is noted.
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
        /// Entries that are missing in the log.
        lacking: Lacking,
    },
    /// The checkpoint is missing, and the log does not contain every entry since the first.
    NoCheckpoint {
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
        /// Entries that are missing in the log.
        lacking: Lacking,
    },
    /// The state of the checkpoint has another applied index than its manifest states.
    CheckpointIndex {
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
        /// Index that the manifest states.
        stated: Index,
        /// Applied index of the state.
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
    /// The replay of the log ended at another entry than the log states.
    LastEntry {
        /// Index of the last entry that the log states.
        stated: Index,
        /// Index of the last replayed entry.
        held: Index,
    },
    /// Raft refuses the combination of log and checkpoint.
    Raft {
        /// Path of the directory `<data-dir>/member`.
        member_dir: PathBuf,
        /// Error of raft.
        refused: consensus::Refused,
    },
    /// The manifest names a file that cannot be a run of the checkpoint.
    UnknownRun {
        /// Name of the file.
        name: String,
    },
    /// The runs of the checkpoint have content that this program never writes.
    Checkpoint {
        /// The directory of the checkpoint.
        dir: PathBuf,
        /// Error of restoring the runs.
        error: RestoreError<log::OpenError>,
    },
    /// An entry of the type membership change does not decode as one.
    NotAChange {
        /// Log index of the entry.
        index: Index,
        /// Decoding error.
        error: prost::DecodeError,
    },
}

/// Entries that are missing in a log that should contain every entry since the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// The log starts after a snapshot that was installed at this entry.
    Before(Index),
    /// One or more entries in the middle of the log.
    Gap {
        /// Index of the entry after the gap.
        found: Index,
        /// Index that was expected there.
        expected: Index,
    },
    /// Entries at the end of the log, whose last index should be this one.
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
    /// Returns true if the cause is a missing or damaged file, so that a caller that has its content
    /// elsewhere may continue without it.
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

impl From<Misplaced> for DataDirError {
    fn from(what: Misplaced) -> DataDirError {
        DataDirError::Misplaced(Box::new(what))
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

impl fmt::Display for DataDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataDirError::Files(error) => error.fmt(f),
            DataDirError::Lookup { path, error } => write!(f, "cannot look for {}: {error}", path.display()),
            DataDirError::Locked { path } => {
                write!(f, "{} is locked: another process serves this data directory", path.display())
            }
            DataDirError::WrittenByEtcd { path, data_dir, old_store } => {
                write!(
                    f,
                    "{} was written by etcd: start with --import-etcd-data, which takes the member over where it is, or make \
                     a data directory of it with `mainstay utl import --data-dir {} --to NEW_DIR`, and start with --data-dir \
                     NEW_DIR",
                    path.display(),
                    data_dir.display()
                )?;
                old_store.as_ref().map_or(Ok(()), |what| {
                    write!(
                        f,
                        "; its old store (API version 2) was in use, {what}: import it, and give the command --migrate-v2, \
                         which moves keys to version 3, or --without-old-store"
                    )
                })
            }
            DataDirError::EtcdBeside(what) => what.fmt(f),
            DataDirError::EtcdRuns { path } => {
                write!(f, "{} is locked by another process: stop etcd first", path.display())
            }
            DataDirError::EtcdRanAgain { data_dir, wal_dir, log_dir } => {
                let member = data_dir.join("member");
                let guards = GUARD_NAMES.map(|name| wal_dir.join(name));
                let own = ["checkpoint", log::ShutdownRecord::FILE_NAME];
                let own = own.into_iter().chain([crate::nospace::FILE_NAME, crate::log_dir::NOTE_NAME]);
                let own = own.map(|name| member.join(name)).chain(guards).chain([log_dir.clone()]);
                // The mark comes last: if the command is interrupted before, the next start prints this text
                // again.
                let own = own.chain([member.join(crate::taken_over::MARK_NAME)]);
                let own: Vec<String> = own.map(|path| in_shell(&path)).collect();
                write!(
                    f,
                    "etcd has run on {data} since Mainstay took this member over, and neither set of files has everything \
                     that the member has promised and acknowledged. If this is a member of a cluster, replace it: `mainstay \
                     rebuild` with its flags. If it is the only one, copy {data}{apart}, and decide which to keep. To go on \
                     with Mainstay's: `rm -rf {snap} {wal}/*.wal`. To go on with etcd's, so that it is taken over again: \
                     `rm -rf {own}`",
                    data = data_dir.display(),
                    apart = match wal_dir.starts_with(data_dir) {
                        true => String::new(),
                        false => format!(" and {}", wal_dir.display()),
                    },
                    snap = in_shell(&member.join("snap")),
                    wal = in_shell(wal_dir),
                    own = own.join(" ")
                )
            }
            DataDirError::Exported { mark, to } => write!(
                f,
                "this member was exported to {to}, with which etcd goes on. If etcd was started on that, or on where it was \
                 moved, this directory is out of date: a member that is started on it has forgotten what it promised and \
                 acknowledged since, so remove it. If not, remove {to} to be sure that it never will be, and go on here: \
                 `rm {mark}`",
                to = to.display(),
                mark = in_shell(mark)
            ),
            DataDirError::ExportedBefore { mark, to } => write!(
                f,
                "this member was exported before, to {to}. If etcd was started on that, or on where it was moved, another export \
                 would be out of date: go on with etcd's directory. If not, remove {to} to be sure that it never will be, and \
                 export again behind `rm {mark}`",
                to = to.display(),
                mark = in_shell(mark)
            ),
            DataDirError::Empty { path, lacks } => write!(f, "{} holds no {lacks}", path.display()),
            DataDirError::Removed { member_id, data_dir } => write!(
                f,
                "member {member_id:x} has been permanently removed from the cluster: remove its data directory {}; to bring \
                 the machine back as a new member: `etcdctl member add NAME --peer-urls=URL`, then start with an empty \
                 directory and --initial-cluster-state=existing",
                data_dir.display()
            ),
            DataDirError::OtherMember { member_dir, made_for, configured } => write!(
                f,
                "{} was made for member {:x} of cluster {:x}, but by its options this is member {:x} of cluster \
                 {:x}",
                member_dir.display(),
                made_for.member_id,
                made_for.cluster_id,
                configured.member_id,
                configured.cluster_id
            ),
            DataDirError::OtherCheckpoint { path, identity } => write!(
                f,
                "{} belongs to another member or cluster, not to member {:x} of cluster {:x}: put this member's \
                 checkpoint directory back; if it is gone, {}",
                path.display(),
                identity.member_id,
                identity.cluster_id,
                log::REMEDY
            ),
            DataDirError::Misplaced(what) => what.fmt(f),
            DataDirError::Inconsistent(what) => what.fmt(f),
            DataDirError::Begin(error) => error.fmt(f),
            DataDirError::ForceNewCluster(error) => error.fmt(f),
            DataDirError::FirstEntries(error) => error.fmt(f),
            DataDirError::Apply(fatal) => fatal.fmt(f),
            DataDirError::LogThreadPanicked => f.write_str("the thread that opens the log panicked"),
            DataDirError::CheckpointThreadPanicked => {
                f.write_str("the thread that reads the checkpoint panicked")
            }
        }
    }
}

/// Returns a path quoted for a shell.
pub(crate) fn in_shell(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
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

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misplaced::Elsewhere { log_dir, chosen, own } => {
                let is_own = log_dir == own;
                let (log_dir, chosen) = (log_dir.display(), chosen.display());
                write!(f, "the log of this member is in {log_dir}, not in {chosen}: ")?;
                match is_own {
                    true => f.write_str("start without --wal-dir")?,
                    false => write!(f, "start with --wal-dir={log_dir}")?,
                }
                write!(f, ", or, while the member is stopped, move all files of {log_dir} to {chosen}")
            }
            Misplaced::Missing { log_dir, chosen } => write!(
                f,
                "the log of this member was in {}, which holds no log now, nor does {}: check --wal-dir, and that the disk \
                 of the log is mounted; if it is lost, {}",
                log_dir.display(),
                chosen.display(),
                log::REMEDY
            ),
            Misplaced::NotThere { log_dir, member_dir } => write!(
                f,
                "{} notes that the log of this member is in {log}, which holds no log: mount its disk. If the log was moved, or its \
                 directory renamed, start the member with the --wal-dir where it is now, which notes that, or make {log} a link to \
                 it; if it is lost, {}",
                member_dir.join(crate::log_dir::NOTE_NAME).display(),
                log::REMEDY,
                log = log_dir.display()
            ),
            Misplaced::MovedInUse { log_dir, chosen } => write!(
                f,
                "the log of this member was in {from}, and the member was not stopped cleanly: it cannot be told whether \
                 what is in {} now is all of it, or an older copy. Start the member once with the log where it was, stop \
                 it cleanly, and move the log then; or, if it is certain that all files of the log are there, make {from} \
                 a link to that directory for the start",
                chosen.display(),
                from = log_dir.display()
            ),
            Misplaced::OfAnother { log_dir, member_dir } => write!(
                f,
                "{} holds the log of another data directory: {} has nothing of that member. Check --data-dir and \
                 --wal-dir; if that data directory is lost, {}",
                log_dir.display(),
                member_dir.display(),
                log::REMEDY
            ),
            Misplaced::NotEmpty { chosen, file } => write!(
                f,
                "--wal-dir={}: there is {}, which is not of a log: name a directory that is empty or does not exist",
                chosen.display(),
                file.display()
            ),
            Misplaced::Overlaps { chosen, member_dir } => write!(
                f,
                "--wal-dir={}: the log needs a directory to itself, and this one holds {} or belongs to it",
                chosen.display(),
                member_dir.display()
            ),
        }
    }
}

impl Error for Misplaced {}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inconsistency::LogMissing { log_dir } => {
                write!(f, "{} is missing or empty, but was there before; {}", log_dir.display(), log::REMEDY)
            }
            Inconsistency::LogNotWhole { checkpoint, lacking } => {
                write!(f, "{checkpoint} (the log alone is not enough: {lacking})")
            }
            Inconsistency::NoCheckpoint { member_dir, lacking } => {
                write!(f, "{} has no checkpoint, and {lacking}", member_dir.display())
            }
            Inconsistency::CheckpointIndex { member_dir, stated, held } => write!(
                f,
                "the checkpoint in {} says it goes up to entry {stated}, but it holds entry {held}",
                member_dir.display()
            ),
            Inconsistency::LogEndsEarly { log_dir, last, applied } => write!(
                f,
                "{} ends with entry {last}, but the checkpoint beside it was made of entries up to {applied}; {}",
                log_dir.display(),
                log::REMEDY
            ),
            Inconsistency::LastEntry { stated, held } => {
                write!(f, "the log says its last entry is {stated}, but it holds {held}")
            }
            Inconsistency::Raft { member_dir, refused } => write!(
                f,
                "the log and the checkpoint in {} do not go together: {refused}; {}",
                member_dir.display(),
                log::REMEDY
            ),
            Inconsistency::UnknownRun { name } => {
                write!(f, "the checkpoint names a file {name:?}, which is none of its")
            }
            Inconsistency::Checkpoint { dir, error } => {
                write!(f, "cannot restore the checkpoint in {}: {error}; {}", dir.display(), log::REMEDY)
            }
            Inconsistency::NotAChange { index, error } => {
                write!(f, "entry {index} is no membership change: {error}")
            }
        }
    }
}

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

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lacking::Before(index) => {
                write!(f, "it begins behind a state that was taken over at entry {index}")
            }
            Lacking::Gap { found, expected } => {
                write!(f, "entry {found} follows where {expected} was expected")
            }
            Lacking::UpTo(index) => write!(f, "it lacks entries up to {index}"),
        }
    }
}

impl fmt::Display for FirstEntriesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FirstEntriesError::Refused(reason) => write!(f, "cannot write the first entries: {reason:?}"),
            FirstEntriesError::Failed(fatal) => fatal.fmt(f),
            FirstEntriesError::NoSpace => f.write_str("the disk has no room for the first entries"),
            FirstEntriesError::TimedOut => {
                f.write_str("the disk did not take the first entries within a minute")
            }
        }
    }
}

impl Error for FirstEntriesError {}
