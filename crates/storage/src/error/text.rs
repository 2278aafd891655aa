//! Texts of the errors for the operator.

use std::fmt;

use interchange::wal::GUARD_NAMES;

use super::{DataDirError, FirstEntriesError, Inconsistency, LogDirMismatch, MissingEntries};
use crate::log_dir::NOTE_NAME;
use crate::nospace;
use crate::shell::in_shell;
use crate::taken_over::MARK_NAME;

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
                let own = own.into_iter().chain([nospace::FILE_NAME, NOTE_NAME]);
                let own = own.map(|name| member.join(name)).chain(guards).chain([log_dir.clone()]);
                // The mark comes last: if the command is interrupted before, the next start prints this text
                // again.
                let own = own.chain([member.join(MARK_NAME)]);
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
            DataDirError::LogDirMismatch(what) => what.fmt(f),
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

impl fmt::Display for LogDirMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogDirMismatch::Elsewhere { log_dir, chosen, own } => {
                let is_own = log_dir == own;
                let (log_dir, chosen) = (log_dir.display(), chosen.display());
                write!(f, "the log of this member is in {log_dir}, not in {chosen}: ")?;
                match is_own {
                    true => f.write_str("start without --wal-dir")?,
                    false => write!(f, "start with --wal-dir={log_dir}")?,
                }
                write!(f, ", or, while the member is stopped, move all files of {log_dir} to {chosen}")
            }
            LogDirMismatch::Missing { log_dir, chosen } => write!(
                f,
                "the log of this member was in {}, which holds no log now, nor does {}: check --wal-dir, and that the disk \
                 of the log is mounted; if it is lost, {}",
                log_dir.display(),
                chosen.display(),
                log::REMEDY
            ),
            LogDirMismatch::NotThere { log_dir, member_dir } => write!(
                f,
                "{} notes that the log of this member is in {log}, which holds no log: mount its disk. If the log was moved, or its \
                 directory renamed, start the member with the --wal-dir where it is now, which notes that, or make {log} a link to \
                 it; if it is lost, {}",
                member_dir.join(NOTE_NAME).display(),
                log::REMEDY,
                log = log_dir.display()
            ),
            LogDirMismatch::MovedInUse { log_dir, chosen } => write!(
                f,
                "the log of this member was in {from}, and the member was not stopped cleanly: it cannot be told whether \
                 what is in {} now is all of it, or an older copy. Start the member once with the log where it was, stop \
                 it cleanly, and move the log then; or, if it is certain that all files of the log are there, make {from} \
                 a link to that directory for the start",
                chosen.display(),
                from = log_dir.display()
            ),
            LogDirMismatch::OfAnother { log_dir, member_dir } => write!(
                f,
                "{} holds the log of another data directory: {} has nothing of that member. Check --data-dir and \
                 --wal-dir; if that data directory is lost, {}",
                log_dir.display(),
                member_dir.display(),
                log::REMEDY
            ),
            LogDirMismatch::NotEmpty { chosen, file } => write!(
                f,
                "--wal-dir={}: there is {}, which is not of a log: name a directory that is empty or does not exist",
                chosen.display(),
                file.display()
            ),
            LogDirMismatch::Overlaps { chosen, member_dir } => write!(
                f,
                "--wal-dir={}: the log needs a directory to itself, and this one holds {} or belongs to it",
                chosen.display(),
                member_dir.display()
            ),
        }
    }
}

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

impl fmt::Display for MissingEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MissingEntries::Before(index) => {
                write!(f, "it begins behind a state that was taken over at entry {index}")
            }
            MissingEntries::Gap { found, expected } => {
                write!(f, "entry {found} follows where {expected} was expected")
            }
            MissingEntries::UpTo(index) => write!(f, "it lacks entries up to {index}"),
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
