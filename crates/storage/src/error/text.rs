//! Formats the errors of a data directory as messages for the operator, with the remedies.

use std::fmt;

use interchange::wal::{GUARD_MESSAGE_NAME, GUARD_NAMES};

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
                    "{} was written by etcd: start with --import-etcd-data to take the member over in \
                     place, or convert it with `mainstay utl import --data-dir {} --to NEW_DIR` and start \
                     with --data-dir NEW_DIR",
                    path.display(),
                    data_dir.display()
                )?;
                old_store.as_ref().map_or(Ok(()), |what| {
                    write!(
                        f,
                        "; its old store (API version 2) was in use, {what}: import it with --migrate-v2, \
                         which moves its keys to version 3, or with --without-old-store"
                    )
                })
            }
            DataDirError::EtcdBeside(what) => what.fmt(f),
            DataDirError::EtcdRuns { path } => {
                write!(f, "{} is locked by another process: stop etcd first", path.display())
            }
            DataDirError::EtcdRanAgain { data_dir, wal_dir, log_dir } => {
                let member = data_dir.join("member");
                let [first, second] = GUARD_NAMES;
                let guards = [first, GUARD_MESSAGE_NAME, second].map(|name| wal_dir.join(name));
                let own = ["checkpoint", log::ShutdownRecord::FILE_NAME];
                let own = own.into_iter().chain([nospace::FILE_NAME, NOTE_NAME]);
                let own = own.map(|name| member.join(name)).chain(guards).chain([log_dir.clone()]);
                // The recommended `rm` command removes the mark last: if the command is interrupted earlier,
                // the next start still finds the mark, and prints this message again.
                let own = own.chain([member.join(MARK_NAME)]);
                let own: Vec<String> = own.map(|path| in_shell(&path)).collect();
                write!(
                    f,
                    "etcd has run on {data} since Mainstay took this member over, so neither set of files \
                     contains everything that the member has promised and acknowledged. If this is a \
                     member of a cluster, replace it: `mainstay rebuild` with its flags. If it is the only \
                     one, copy {data}{apart}, and decide which to keep. To continue with Mainstay's: `rm -rf {snap} {wal}/*.wal`. To continue with etcd's, which is then taken over again: \
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
                "this member was exported to {to} for etcd. If etcd was started on that directory, \
                 wherever it is now, this one is out of date: a member started on it would forget what it \
                 has promised and acknowledged since, so remove it. If etcd was never started on it, \
                 remove {to} so that it never is, and continue here: `rm {mark}`",
                to = to.display(),
                mark = in_shell(mark)
            ),
            DataDirError::ExportedBefore { mark, to } => write!(
                f,
                "this member was exported before, to {to}. If etcd was started on that directory, wherever \
                 it is now, another export would be out of date: continue with etcd's directory. If etcd \
                 was never started on it, remove {to} so that it never is, and export again after `rm \
                 {mark}`",
                to = to.display(),
                mark = in_shell(mark)
            ),
            DataDirError::Recovered { mark, to } => write!(
                f,
                "the cluster of this member was formed again in {to} by `mainstay recover`, without this member: \
                 started here it could elect a second leader. To bring this machine back, move this data directory \
                 away, add a member to the new cluster with `etcdctl member add`, and start with an empty directory and \
                 --initial-cluster-state=existing. If no member was ever started on {to}, remove {to} so that none ever \
                 is, and continue here: `rm {mark}`",
                to = to.display(),
                mark = in_shell(mark)
            ),
            DataDirError::OfObserver { data_dir } => write!(
                f,
                "{} is the data directory of an observer: start it with `mainstay observer`, or give this member another \
                 directory",
                data_dir.display()
            ),
            DataDirError::OfMember { data_dir } => write!(
                f,
                "{} is the data directory of a member: start it without `observer`, or give the observer another directory",
                data_dir.display()
            ),
            DataDirError::OfWitness { data_dir } => write!(
                f,
                "{} is the data directory of a witness, which has no keys: start it with `mainstay witness`; to put a \
                 member with data in its place, remove the witness from the cluster and add the member with another \
                 directory",
                data_dir.display()
            ),
            DataDirError::NotOfWitness { data_dir } => write!(
                f,
                "{} is the data directory of a member with data: start it without `witness`, or give the witness another \
                 directory",
                data_dir.display()
            ),
            DataDirError::WitnessAlone { data_dir } => write!(
                f,
                "{} is the data directory of a witness, which has no keys, so no cluster can be formed from it: use \
                 --force-new-cluster with the directory of a member",
                data_dir.display()
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
                "{} was created for member {:x} of cluster {:x}, but the flags describe member {:x} of \
                 cluster {:x}",
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
                "the log of this member was in {}, which holds no log now, and neither does {}: check \
                 --wal-dir, and that the log's disk is mounted; if the log is lost, {}",
                log_dir.display(),
                chosen.display(),
                log::REMEDY
            ),
            LogDirMismatch::NotThere { log_dir, member_dir } => write!(
                f,
                "{} records that the log of this member is in {log}, which holds no log: mount its disk. \
                 If the log was moved or its directory renamed, start the member once with the new \
                 directory in --wal-dir, which records it, or make {log} a link to it; if the log is lost, \
                 {}",
                member_dir.join(NOTE_NAME).display(),
                log::REMEDY,
                log = log_dir.display()
            ),
            LogDirMismatch::MovedInUse { log_dir, chosen } => write!(
                f,
                "the log of this member was in {from}, and the member was not stopped cleanly, so {} may \
                 hold only a part or an older copy of it. Start the member once with the log in its old \
                 place, stop it cleanly, and then move the log; or, if you are certain that all files of \
                 the log were moved, make {from} a link to that directory for the start",
                chosen.display(),
                from = log_dir.display()
            ),
            LogDirMismatch::OfAnother { log_dir, member_dir } => write!(
                f,
                "{} holds the log of another data directory: {} contains no data of that member. Check \
                 --data-dir and --wal-dir; if that data directory is lost, {}",
                log_dir.display(),
                member_dir.display(),
                log::REMEDY
            ),
            LogDirMismatch::NotEmpty { chosen, file } => write!(
                f,
                "--wal-dir={}: it contains {}, which does not belong to a log: name a directory that is empty or does not exist",
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
                write!(f, "{checkpoint} (the log alone is not sufficient: {lacking})")
            }
            Inconsistency::NoCheckpoint { member_dir, lacking } => {
                write!(f, "{} has no checkpoint, and {lacking}", member_dir.display())
            }
            Inconsistency::CheckpointIndex { member_dir, stated, held } => write!(
                f,
                "the checkpoint in {} claims to end at entry {stated}, but it holds entry {held}",
                member_dir.display()
            ),
            Inconsistency::LogEndsEarly { log_dir, last, applied } => write!(
                f,
                "{} ends with entry {last}, but the checkpoint beside it contains entries up to {applied}; {}",
                log_dir.display(),
                log::REMEDY
            ),
            Inconsistency::LastEntry { stated, held } => {
                write!(f, "the log claims that its last entry is {stated}, but it holds {held}")
            }
            Inconsistency::Raft { member_dir, refused } => write!(
                f,
                "the log and the checkpoint in {} do not match: {refused}; {}",
                member_dir.display(),
                log::REMEDY
            ),
            Inconsistency::UnknownRun { name } => {
                write!(f, "the checkpoint names a file {name:?} that does not belong to it")
            }
            Inconsistency::Checkpoint { dir, error } => {
                write!(f, "cannot restore the checkpoint in {}: {error}; {}", dir.display(), log::REMEDY)
            }
            Inconsistency::NotAChange { index, error } => {
                write!(f, "entry {index} is not a valid membership change: {error}")
            }
        }
    }
}

impl fmt::Display for MissingEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MissingEntries::Before(index) => {
                write!(f, "it begins after a state that was taken over at entry {index}")
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
            FirstEntriesError::NoSpace => f.write_str("the disk has no space for the first entries"),
            FirstEntriesError::TimedOut => {
                f.write_str("the disk did not write the first entries within a minute")
            }
        }
    }
}
