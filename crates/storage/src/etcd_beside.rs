//! Protects the directory of a member that was not taken over from etcd: prevents etcd from starting there,
//! and detects a store that etcd has created beside the member's files.
//!
//! If etcd is started in a directory without a log of etcd, it creates an empty store with the same member
//! id, and serves clients. To prevent that, a directory of Mainstay has a file at the path `member/snap`, at
//! which etcd first creates a directory. So every release of etcd refuses to start, with `failed to create
//! snapshot directory`, the path, and `not a directory`, and writes nothing. The content of that file
//! explains the remedy. A second file, beside `member`, explains the remedy in its name, which etcd prints
//! before it exits (`found invalid file under data directory`). For a member that was taken over, files in
//! the directory of etcd's log keep etcd from starting ([`crate::taken_over`]). In a directory without a log
//! of etcd, such files would not suffice, because etcd creates its database before it reads that directory.
//!
//! ```text
//! <data-dir>/THIS-IS-DATA-OF-MAINSTAY.…      text
//! <data-dir>/member/snap                     the same text
//! <data-dir>/member/snap.left-by-etcd-<n>    an empty directory that existed at the path `snap` before
//! ```
//!
//! If etcd has created a store anyway, the operator must decide whether to keep etcd's store or the member's
//! data. Until the operator has moved the files of one of them away, a start is refused, and so is an import
//! (`COMPAT-410`).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use disk::{Disk, Lock};
use interchange::{DataDir, Fingerprint};
use log::{Log, OpenError, ShutdownRecord};

use crate::error::DataDirError;
use crate::etcd_store::{EtcdBeside, EtcdFiles, Holds, Newer};
use crate::log_dir;
use crate::taken_over::TakenOver;

/// Name of a file in the data directory. The name tells the operator that the directory belongs to Mainstay,
/// because etcd 3.4 and later prints it in its log.
pub const SIGN_NAME: &str = "THIS-IS-DATA-OF-MAINSTAY.to-go-back-to-etcd-run-mainstay-utl-export";

/// Text of the file [`SIGN_NAME`], and of the file at the path of etcd's directory `member/snap`.
pub const SIGN_TEXT: &str = "\
This directory holds a member of Mainstay. etcd cannot read it, and does not start on it: it would begin an empty store under
the same member id. For that reason member/snap is a file here, unless it is a directory that etcd left when the member was
taken over, which is out of date.

To go on, start `mainstay` with the flags that etcd had.

To go back to etcd: stop the member, make a directory for etcd of this one, and start etcd on that:

    mainstay utl export --data-dir DIR --to NEW
    mv DIR DIR.mainstay && mv NEW DIR

(`mainstay utl export --help`; docs/migration.md has the steps for a cluster, and for --wal-dir.)
";

/// State of the path of etcd's directory `member/snap` after [`keep_out`].
#[derive(Debug, PartialEq, Eq)]
pub enum KeptOut {
    /// The directory contains etcd's files of a member that was taken over. [`crate::taken_over`] protects
    /// these files.
    TakenOver,
    /// The file that keeps etcd from starting exists.
    Guarded,
    /// The file that keeps etcd from starting exists. A directory of etcd without data was at its path, and
    /// was moved to this path.
    Moved(PathBuf),
}

/// Result of [`keep_out`].
pub struct Exclusion {
    /// State of the path of etcd's directory `member/snap` after the call.
    pub out: KeptOut,
    /// Lock of the database in a directory that was moved aside; `None` if none was moved. The lock must be
    /// held while the member runs: an etcd that opened the database file before the move waits for this lock,
    /// and would start if it were released.
    pub lock: Option<Lock>,
}

/// Maximum number of times that one call of [`keep_out`] tries to create the file at the path `snap`. It
/// tries again if etcd has created its directory there in the meantime; after the last failure, it returns an
/// error.
const LOOKS_MAX: u32 = 4;

/// Prevents etcd from creating a store in a member's directory that [`refuse`] has accepted: creates a file
/// at the path `snap` unless it exists. Must be called before the replay of the log, because etcd may be
/// started during a long replay. `wal_dir` is the directory of `--wal-dir`.
///
/// The file is written under a temporary name and then renamed to `snap`; the rename fails if etcd has
/// created its directory in the meantime. A directory of etcd is moved aside only after the database in it
/// was locked; a missing database is created for that. While the lock is held, no etcd runs on the directory,
/// and none can start.
///
/// # Errors
///
/// Returns [`DataDirError::EtcdRuns`] if etcd is running on the directory, and [`DataDirError::EtcdBeside`]
/// if it has created a store there since [`refuse`]. Returns [`DataDirError::Files`] if the operating system
/// refuses an operation; the caller can start the member anyway.
pub fn keep_out(
    disk: &dyn Disk,
    member_dir: &Path,
    wal_dir: Option<&Path>,
) -> Result<Exclusion, DataDirError> {
    let path = member_dir.join("snap");
    let io = |doing, path: &Path, error| OpenError::Io { doing, path: path.to_path_buf(), error };
    let mut kept = Exclusion { out: KeptOut::Guarded, lock: None };
    let mut looks = 1;
    loop {
        if is_dir(disk, &path).map_err(|error| io("list", &path, error))? {
            if TakenOver::read(disk, member_dir)?.is_some() {
                return Ok(Exclusion { out: KeptOut::TakenOver, lock: None });
            }
            let (to, lock) = move_aside(disk, member_dir, wal_dir)?;
            kept = Exclusion { out: KeptOut::Moved(to), lock: Some(lock.and(kept.lock)) };
        } else if disk.exists(&path).map_err(|error| io("look for", &path, error))? {
            return Ok(kept);
        }
        match write(disk, &path) {
            Ok(()) => break,
            Err(_) if looks < LOOKS_MAX && is_dir(disk, &path).unwrap_or(false) => looks += 1,
            Err(error) => return Err(io("write", &path, error).into()),
        }
    }
    disk.sync_dir(member_dir).map_err(|error| io("sync", member_dir, error))?;
    Ok(kept)
}

/// Renames etcd's directory `snap` if it contains no data. Returns its new path, and the lock of its
/// database.
fn move_aside(
    disk: &dyn Disk,
    member_dir: &Path,
    wal_dir: Option<&Path>,
) -> Result<(PathBuf, Lock), DataDirError> {
    let path = member_dir.join("snap");
    let io = |doing, path: &Path, error| OpenError::Io { doing, path: path.to_path_buf(), error };
    let db = path.join("db");
    let lock = disk.lock(&db).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => DataDirError::EtcdRuns { path: db.clone() },
        _ => io("lock", &db, error).into(),
    })?;
    // Repeats the check of `refuse` under the lock, because etcd may have created a store and exited since
    // then.
    if let Some(files) = EtcdFiles::find(disk, member_dir, wal_dir)? {
        drop(lock);
        return Err(DataDirError::EtcdBeside(Box::new(EtcdBeside::of(disk, member_dir, files)?)));
    }
    let aside = unused(disk, &path).map_err(|error| io("look for", &path, error))?;
    disk.rename(&path, &aside).map_err(|error| io("rename", &path, error))?;
    Ok((aside, lock))
}

/// Removes the files that keep etcd out, and the note that names the log's directory, if this data directory
/// contains no member. Called after the first start of a member has failed, so that its files do not prevent
/// a start of etcd or a later start of the member. The note is kept if it existed before the start
/// (`was_noted`), as in a rebuild. Returns true if the files were removed.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn let_in(disk: &dyn Disk, data_dir: &Path, was_noted: bool) -> Result<bool, OpenError> {
    let member_dir = &data_dir.join("member");
    let note = member_dir.join(log_dir::NOTE_NAME);
    let noted = log_dir::read_note(disk, member_dir)?;
    let has_begun = match &noted {
        Some(log_dir) => Log::is_in(disk, log_dir)? || holds_state(disk, member_dir)?,
        None => holds_member(disk, member_dir)?,
    };
    if has_begun || TakenOver::read(disk, member_dir)?.is_some() {
        return Ok(false);
    }
    let remove = |path: &Path, dir: &Path| {
        let io = |error| OpenError::Io { doing: "remove", path: path.to_path_buf(), error };
        if disk.exists(path).map_err(io)? && !is_dir(disk, path).map_err(io)? {
            disk.remove(path).and_then(|()| disk.sync_dir(dir)).map_err(io)?;
        }
        Ok::<(), OpenError>(())
    };
    if !was_noted {
        remove(&note, member_dir)?;
    }
    remove(&member_dir.join("snap"), member_dir)?;
    remove(&data_dir.join(SIGN_NAME), data_dir)?;
    Ok(true)
}

/// Creates the file [`SIGN_NAME`] in a data directory.
///
/// # Errors
///
/// Returns the error of the operating system; the caller can start the member anyway.
pub fn put_sign(disk: &dyn Disk, data_dir: &Path) -> Result<(), OpenError> {
    let path = data_dir.join(SIGN_NAME);
    let io = |error| OpenError::Io { doing: "write", path: path.clone(), error };
    if disk.exists(&path).map_err(io)? {
        return Ok(());
    }
    write(disk, &path).and_then(|()| disk.sync_dir(data_dir)).map_err(io)
}

/// Creates a file with [`SIGN_TEXT`] atomically: after a crash it has the whole text or does not exist.
fn write(disk: &dyn Disk, path: &Path) -> std::io::Result<()> {
    let mut making = path.as_os_str().to_os_string();
    making.push(".tmp");
    let making = PathBuf::from(making);
    if disk.exists(&making)? {
        disk.remove(&making)?;
    }
    let make = || {
        let file = disk.create(&making)?;
        file.write_at(SIGN_TEXT.as_bytes(), 0)?;
        file.sync_all()?;
        disk.rename(&making, path)
    };
    make().inspect_err(|_| {
        // The error is ignored: if the temporary file cannot be removed, the next call of `write` removes it.
        let _ = disk.remove(&making);
    })
}

/// Returns true for a directory; false for a file, for a dangling link, and if nothing exists at the path.
fn is_dir(disk: &dyn Disk, path: &Path) -> std::io::Result<bool> {
    match disk.list(path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns an unused path, in the same directory, to which etcd's directory `snap` can be renamed.
fn unused(disk: &dyn Disk, path: &Path) -> std::io::Result<PathBuf> {
    let mut number = 1;
    loop {
        let aside = path.with_file_name(format!("snap.left-by-etcd-{number}"));
        if !disk.exists(&aside)? {
            return Ok(aside);
        }
        number += 1;
    }
}

impl EtcdFiles {
    /// Searches for etcd's log and database; returns `None` if there are none, or only files without data.
    /// `wal_dir` is the directory of `--wal-dir`.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system, or an error if the note that names the log's directory is
    /// damaged.
    pub fn find(
        disk: &dyn Disk,
        member_dir: &Path,
        wal_dir: Option<&Path>,
    ) -> Result<Option<EtcdFiles>, DataDirError> {
        let io = |doing, path: &Path, error| OpenError::Io { doing, path: path.to_path_buf(), error };
        let mut logs: Vec<PathBuf> = Vec::new();
        let noted = log_dir::known(disk, member_dir)?;
        for dir in [Some(member_dir.join("wal")), wal_dir.map(Path::to_path_buf), noted].into_iter().flatten()
        {
            let holds = is_dir(disk, &dir).and_then(|is_dir| Ok(is_dir && Fingerprint::has_log(disk, &dir)?));
            let holds = holds.map_err(|error| io("list", &dir, error))?;
            let mut is_known = false;
            for known in &logs {
                is_known |= log_dir::same(disk, known, &dir)?;
            }
            if holds && !is_known {
                logs.push(dir);
            }
        }
        let snap = member_dir.join("snap");
        let snap = is_dir(disk, &snap).map_err(|error| io("list", &snap, error))?.then_some(snap);
        let is_missed = |snap: &PathBuf| !interchange::holds_nothing(disk, snap);
        let is_anything = !logs.is_empty() || snap.as_ref().is_some_and(is_missed);
        Ok(is_anything.then_some(EtcdFiles { snap, logs }))
    }
}

/// Returns true if a directory contains data of a member of Mainstay: its log, a note that names the log's
/// directory, a checkpoint, or the shutdown record.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn holds_member(disk: &dyn Disk, member_dir: &Path) -> Result<bool, OpenError> {
    let note = member_dir.join(log_dir::NOTE_NAME);
    Ok(disk.exists(&note).map_err(|error| OpenError::Io { doing: "look for", path: note.clone(), error })?
        || holds_state(disk, member_dir)?)
}

/// Returns true if a member has written a checkpoint, a shutdown record or a log in its directory. A log in a
/// separate directory is not considered.
fn holds_state(disk: &dyn Disk, member_dir: &Path) -> Result<bool, OpenError> {
    for path in ["checkpoint/MANIFEST", ShutdownRecord::FILE_NAME].map(|name| member_dir.join(name)) {
        if disk.exists(&path).map_err(|error| OpenError::Io { doing: "look for", path, error })? {
            return Ok(true);
        }
    }
    Log::is_in(disk, &member_dir.join("log"))
}

/// Returns an error if this is the directory of a member of Mainstay that was not taken over from etcd, and
/// etcd has created a store in it.
///
/// # Errors
///
/// Returns [`DataDirError::EtcdBeside`], [`DataDirError::EtcdRuns`], or the error of the operating system.
pub fn refuse(disk: &dyn Disk, member_dir: &Path, wal_dir: Option<&Path>) -> Result<(), DataDirError> {
    let there =
        |path: PathBuf| disk.exists(&path).map_err(|error| OpenError::Io { doing: "look for", path, error });
    // A member that was taken over has files of both etcd and Mainstay, during the takeover and afterwards,
    // so etcd's files are not an error there.
    if TakenOver::read(disk, member_dir)?.is_some()
        || there(member_dir.join(TAKING_OVER))?
        || !holds_member(disk, member_dir)?
    {
        return Ok(());
    }
    let snap = member_dir.join("snap");
    let asking = |error| OpenError::Io { doing: "lock", path: snap.join("db"), error };
    if interchange::is_in_use(disk, &snap).map_err(asking)? {
        return Err(DataDirError::EtcdRuns { path: snap.join("db") });
    }
    match EtcdFiles::find(disk, member_dir, wal_dir)? {
        None => Ok(()),
        Some(files) => Err(DataDirError::EtcdBeside(Box::new(EtcdBeside::of(disk, member_dir, files)?))),
    }
}

/// Name of the directory in a member's directory that exists while the member is taken over from etcd.
pub const TAKING_OVER: &str = "import";

impl EtcdBeside {
    fn of(disk: &dyn Disk, member_dir: &Path, files: EtcdFiles) -> Result<EtcdBeside, DataDirError> {
        let data_dir = member_dir.parent().unwrap_or(member_dir).to_path_buf();
        let log = files.logs.first().cloned().unwrap_or_else(|| member_dir.join("wal"));
        let opened = DataDir::glance(disk, &data_dir, &log);
        let holds = match opened.and_then(|opened| opened.was_written()) {
            Ok(false) => Holds::Nothing,
            Ok(true) => Holds::Something,
            Err(error) => Holds::Unreadable(error.to_string()),
        };
        let ours = log_dir::known(disk, member_dir)?.unwrap_or_else(|| member_dir.join("log"));
        let is_ours = |name: &str| name.ends_with(".seg");
        let is_theirs = |name: &str| name == "db" || name.ends_with(".snap") || name.ends_with(".wal");
        let theirs = files.logs.iter().chain(&files.snap);
        let theirs = theirs.filter_map(|dir| last_written(disk, dir, is_theirs)).max();
        let newer = last_written(disk, &ours, is_ours).zip(theirs).map(|(ours, theirs)| {
            match theirs.duration_since(ours) {
                Ok(by) => Newer::Etcd(by),
                Err(before) => Newer::Mainstay(before.duration()),
            }
        });
        Ok(EtcdBeside { data_dir, files, holds, newer })
    }
}

/// Returns the last modification time of those files in a directory for whose names `counts` returns true.
/// `None` for a test disk, which has no modification times.
fn last_written(disk: &dyn Disk, dir: &Path, counts: impl Fn(&str) -> bool) -> Option<SystemTime> {
    let names = disk.list(dir).ok()?;
    let named = names.iter().filter(|name| counts(name));
    named.filter_map(|name| std::fs::metadata(dir.join(name)).ok()?.modified().ok()).max()
}

#[cfg(test)]
mod tests {
    use disk::{Fault, MemDisk};

    use super::*;

    #[test]
    fn an_attempt_that_failed_at_any_step_is_made_up_for_by_the_next() {
        const EIO: i32 = 5;
        let (data, member) = (Path::new("/d"), Path::new("/d/member"));
        let keep = |disk: &MemDisk| {
            keep_out(disk, member, None).and_then(|kept| Ok(put_sign(disk, data).map(|()| kept.out)?))
        };
        let mut failed = 0;
        for nth in 1.. {
            let disk = MemDisk::new(nth);
            disk.create_dir_all(member).expect("is made");
            disk.fail_at(disk.ops() + nth, Fault::Once(EIO));
            let kept = keep(&disk);
            disk.heal();
            failed += usize::from(kept.is_err());
            assert_eq!(keep(&disk).expect("is made up for"), KeptOut::Guarded, "operation {nth} failed");
            let len = SIGN_TEXT.len() as u64;
            let whole = vec![(data.join(SIGN_NAME), len), (member.join("snap"), len)];
            assert_eq!(disk.files(), whole, "operation {nth} failed");
            if kept.is_ok() {
                break;
            }
        }
        assert!(failed >= 8, "{failed}");
    }
}
