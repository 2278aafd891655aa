//! `drop-etcd`: deletes the files that etcd left in the data directory of a member that Mainstay took over,
//! that is, which Mainstay now runs in place of etcd, on the same data directory.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cli::{Command, Failure, Flag};
use disk::{Disk as _, RealDisk};
use interchange::wal::{GUARD_MESSAGE_NAME, GUARD_NAMES};
use storage::DataDirError;
use storage::etcd_beside;
use storage::opening::lock_member;
use storage::taken_over::{Files, TakenOver};

use crate::Session;
use crate::places;
use crate::session::{Run, required};

const DATA_DIR: Flag<String> =
    Flag::text("data-dir", "", "Required. Path to the data directory of a member that was taken over");

pub(crate) const DROP_ETCD: Command<Run> = Command {
    name: "drop-etcd",
    usage: "drop-etcd --data-dir {data dir}",
    about: "Deletes the files that etcd left in the data directory of a member that Mainstay took over",
    long: "Deletes the files that etcd left in the data directory of a member that Mainstay took over in place. They have
been out of date since Mainstay first served from that directory. The member may be running.

Two empty files stay where etcd had its log, and member/snap becomes a file: because of them, etcd refuses to start there
instead of creating an empty member with the same id.
",
    example: "  etcdutl drop-etcd --data-dir default.etcd",
    flags: &[DATA_DIR.row()],
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    required(session, &[DATA_DIR.row()])?;
    let data_dir = PathBuf::from(session.matches.get(DATA_DIR));
    let member_dir = data_dir.join("member");
    places::refuse_file(&data_dir)?;
    let mark = TakenOver::read(&RealDisk, &member_dir).map_err(Failure::error)?;
    let Some(mark) = mark.filter(|mark| mark.files != Files::Dropped) else {
        places::refuse_other(&data_dir)?;
        return Err(Failure::error(format!(
            "{} does not hold a member taken over from etcd, or etcd's files were already deleted",
            data_dir.display()
        )));
    };
    if let Some(wal_dir) = &mark.wal_apart
        && !RealDisk.exists(wal_dir).map_err(|error| looking(wal_dir, &error))?
    {
        return Err(Failure::error(format!(
            "etcd's log was in {wal}, which does not exist: mount its disk. If it was renamed, make {wal} \
             a link to its new place; if it is gone for good, create an empty directory with that name, \
             and run this again",
            wal = wal_dir.display()
        )));
    }
    // Take the locks of Mainstay and etcd, because an etcd process may be running that has not changed its
    // files yet. If a Mainstay member is running, the locks are not needed: that member keeps etcd out
    // itself.
    let _locks = match lock_member(&RealDisk, &member_dir) {
        Ok(lock) => Some(lock.and(mark.shut_out(&RealDisk, &member_dir).map_err(Failure::error)?.lock)),
        Err(DataDirError::Locked { .. }) => None,
        Err(error) => return Err(Failure::error(error)),
    };
    mark.check(&RealDisk, &member_dir).map_err(Failure::error)?;
    // Create the guard files first, so that etcd cannot start on the remaining files or on an empty
    // directory, even if this process is killed.
    mark.guard(&RealDisk, &member_dir).map_err(Failure::error)?;
    // Record that files of etcd are being deleted. Without this record, the member would refuse to start
    // while some of them are missing.
    let mark = TakenOver { files: Files::BeingDropped, ..mark };
    mark.write(&RealDisk, &member_dir).map_err(Failure::error)?;
    let wal_dir = mark.wal_dir(&member_dir);
    let snap = member_dir.join("snap");
    let mut files = empty(&snap, |_| true)?;
    files += empty(&wal_dir, |name| {
        let keeps_out = GUARD_NAMES.contains(&name) || name == GUARD_MESSAGE_NAME;
        (name.ends_with(".wal") || is_prepared(name)) && !keeps_out
    })?;
    // A symbolic link or a mount point cannot be removed. In this case the empty directory stays, which is no
    // error.
    if fs::remove_dir(&snap).is_ok() {
        RealDisk.sync_dir(&member_dir).map_err(|error| unsure(&member_dir, &error))?;
    }
    let mark = TakenOver { files: Files::Dropped, ..mark };
    mark.write(&RealDisk, &member_dir).map_err(Failure::error)?;
    if let Err(why) = etcd_beside::keep_out(&RealDisk, &member_dir, None) {
        // Only warn and do not fail: the guard files in etcd's log directory keep etcd from starting, and the
        // member's next start tries again to create the file `member/snap`.
        session.notices.warn(
            "cannot replace member/snap with a file that keeps etcd from starting; the files in etcd's log \
             directory still do so",
            &[("error", why.to_string().into())],
        );
    }
    session.notices.info(
        "deleted etcd's files",
        &[("data-dir", data_dir.display().to_string().into()), ("files", files.into())],
    );
    Ok(())
}

/// Returns true if this is the name of a file that etcd has prepared for its log: digits followed by `.tmp`.
fn is_prepared(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Durably deletes the files in a directory for whose names `is_etcds` returns true, and returns their
/// number. The directory may be a symbolic link, and need not exist.
fn empty(dir: &Path, is_etcds: impl Fn(&str) -> bool) -> Result<usize, Failure> {
    let names = match RealDisk.list(dir) {
        // A file in place of the directory was put there by Mainstay to keep etcd from starting, so there is
        // nothing to delete.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(0);
        }
        listed => {
            listed.map_err(|error| Failure::error(format!("cannot list {}: {error}", dir.display())))?
        }
    };
    let mut files = 0;
    for name in names.iter().filter(|name| is_etcds(name)) {
        let path = dir.join(name);
        free(&path);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::error(format!("cannot remove {}: {error}", path.display())));
            }
            _ => files += 1,
        }
    }
    RealDisk.sync_dir(dir).map_err(|error| unsure(dir, &error))?;
    Ok(files)
}

/// Truncates a file that is about to be deleted, so that its disk space is freed even while a running member
/// has the file open. If truncating fails, the space is freed when the member stops. A file with another hard
/// link is left unchanged, since a truncation would change the file under its other name too.
fn free(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.nlink() == 1) {
        let _ = fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0));
    }
}

fn looking(path: &Path, error: &io::Error) -> Failure {
    Failure::error(format!("cannot look for {}: {error}", path.display()))
}

fn unsure(dir: &Path, error: &io::Error) -> Failure {
    Failure::error(format!("cannot make it durable in {}: {error}", dir.display()))
}
