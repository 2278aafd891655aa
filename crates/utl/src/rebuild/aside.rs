//! Moves the damaged data of the old member aside, so that the new member starts with an empty directory. No
//! data is deleted.
//!
//! * `<data-dir>/member` is renamed to `<data-dir>/member.damaged-<n>`.
//! * If the log is in the directory of `--wal-dir` or in its subdirectory `log`, the files of the log are
//!   moved to a new subdirectory `damaged-<n>` of the directory in which they are.
//! * If `<data-dir>/member/wal` is a symbolic link or a mount point and the log is behind it, the log is
//!   treated in the same way. The link or mount point stays in `member`, together with a note that says that
//!   the log is behind it. Everything else in `member` is moved to `member.damaged-<n>`, one file after the
//!   other.
//!
//! A link or mount point at `member/wal` must stay. If it were moved, the new member would write its log to
//! the disk of the data directory; and after the next mount the old log would be visible at `member/wal`,
//! where it would be taken for a log of etcd.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use disk::Lock;
use storage::log_dir;
use telemetry::logging::Value;

use super::{Rebuild, RebuildError};

/// Name of the directory inside `--wal-dir` that contains Mainstay's log if Mainstay took the member over
/// from etcd. etcd's own log is in `--wal-dir` itself.
pub(super) const BESIDE_ETCD: &str = "log";
/// Prefix of the names of the directories inside a log directory to which its files are moved.
const DAMAGED: &str = "damaged";

/// A locked log directory whose files will be moved aside.
pub(super) struct OldLog {
    dir: PathBuf,
    /// Directory inside `dir` to which the files are moved.
    to: PathBuf,
    _lock: Lock,
}

/// Location of the old member's log. The new member's log gets the same location.
pub(super) enum LogPlace {
    /// In the data directory, at the usual place.
    Inside,
    /// In the directory of `--wal-dir`, or in a directory below it.
    Apart(PathBuf),
    /// Below `member/wal`, which is a symbolic link or a mount point.
    BehindLink(PathBuf),
}

impl Rebuild<'_> {
    /// Determines the location of the log.
    ///
    /// # Errors
    ///
    /// Returns an error if a directory that would have to be moved is a mount point.
    pub(super) fn log_place(&self, member_dir: &Path) -> Result<LogPlace, RebuildError> {
        if let Some(wal_dir) = &self.config.storage.wal_dir {
            return Ok(LogPlace::Apart(wal_dir.clone()));
        }
        let wal = member_dir.join("wal");
        let is_noted = || {
            let noted = log_dir::read_note(&*self.disk, member_dir).ok().flatten();
            noted.is_some_and(|noted| log_dir::is_beside_link(&noted))
        };
        let is_in_use =
            || log::Log::is_in(&*self.disk, &wal.join(BESIDE_ETCD)).unwrap_or(false) || is_noted();
        let has_etcds = || {
            let names = self.disk.list(&wal).unwrap_or_default();
            names.iter().any(|name| name.ends_with(".wal"))
        };
        if !log_dir::leads_elsewhere(&wal) || !(is_in_use() || has_etcds()) {
            return Ok(LogPlace::Inside);
        }
        let snap = member_dir.join("snap");
        let is_link = fs::symlink_metadata(&snap).is_ok_and(|found| found.is_symlink());
        if log_dir::leads_elsewhere(&snap) && !is_link && snap.is_dir() {
            return Err(RebuildError::Refused(format!(
                "a disk is mounted at {snap}, where etcd had its database: unmount it and remove it from \
                 /etc/fstab, because a file that keeps etcd from starting will replace it; then run this \
                 again. The data on that disk is out of date",
                snap = snap.display()
            )));
        }
        Ok(LogPlace::BehindLink(wal))
    }

    /// Lists the files in the directory of a log, except the directories to which earlier rebuilds have moved
    /// files.
    fn left_in(&self, log_dir: &Path) -> Result<Vec<String>, RebuildError> {
        let mut names = self.disk.list(log_dir).map_err(|error| RebuildError::io("list", log_dir, error))?;
        names.retain(|name| !name.starts_with(DAMAGED));
        Ok(names)
    }

    /// Returns the path inside a log directory to which its files are moved: the first `damaged-<n>` that
    /// does not exist or is an empty directory, which an interrupted rebuild may have created. If a rebuild
    /// is interrupted while it moves files, the next run uses the next number, so the files end up in two
    /// directories.
    fn place_in(&self, log_dir: &Path) -> PathBuf {
        let mut number = 1;
        loop {
            let path = log_dir.join(format!("{DAMAGED}-{number}"));
            if self.disk.list(&path).map_or(true, |names| names.is_empty()) {
                return path;
            }
            number += 1;
        }
    }

    /// Returns an error if the flags name a log directory other than the one that the member has recorded. A
    /// member records the directory only if it is outside of the data directory.
    pub(super) fn refuse_other_log_dir(&self, member_dir: &Path) -> Result<(), RebuildError> {
        // If the record is damaged, it cannot be compared. This is no error, because the record is moved
        // aside with the other files.
        let Ok(Some(noted)) = log_dir::known(&*self.disk, member_dir) else { return Ok(()) };
        let given = self.config.storage.wal_dir.iter().flat_map(|dir| [dir.clone(), dir.join(BESIDE_ETCD)]);
        // If etcd's log was behind a link or on a mounted disk at `member/wal`, no flag names its directory,
        // so this path is also allowed.
        let given = given.chain([member_dir.join("wal").join(BESIDE_ETCD)]);
        if given.into_iter().any(|dir| log_dir::same(&*self.disk, &noted, &dir).unwrap_or(false)) {
            return Ok(());
        }
        // Accept a recorded path behind `member/wal` at which there is no log: the data directory was renamed
        // after the path was recorded, and the log is lost, so no flag can name it.
        let is_lost = !log::Log::is_in(&*self.disk, &noted).unwrap_or(true);
        if self.config.storage.wal_dir.is_none() && log_dir::is_beside_link(&noted) && is_lost {
            return Ok(());
        }
        Err(RebuildError::Refused(format!(
            "the log of this member is in {}: give the --wal-dir with which it was started",
            noted.display()
        )))
    }

    /// Locks and returns the logs outside of the data directory that must be moved aside, and creates the
    /// directories to which they will be moved. Returns an error if a process uses a log, or if a log belongs
    /// to a different member than the data in the data directory.
    pub(super) fn old_logs(
        &self,
        place: &LogPlace,
        known: Option<(u64, u64)>,
    ) -> Result<Vec<OldLog>, RebuildError> {
        let wal_dir = match place {
            LogPlace::Inside => return Ok(Vec::new()),
            LogPlace::Apart(wal_dir) | LogPlace::BehindLink(wal_dir) => wal_dir,
        };
        let mut logs = Vec::new();
        for dir in [wal_dir.join(BESIDE_ETCD), wal_dir.clone()] {
            if fs::symlink_metadata(&dir).is_err() {
                continue;
            }
            let names = self.left_in(&dir)?;
            if names.is_empty() {
                continue;
            }
            let lock = self.disk.lock(&dir).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => RebuildError::Locked {
                    path: dir.clone(),
                    by: "a member is running with this log; stop it first",
                },
                _ => RebuildError::io("lock", &dir, error),
            })?;
            let owner = log::Log::identify(&*self.disk, &dir).ok().flatten();
            let owner = owner.map(|owner| (owner.cluster_id.0, owner.member_id.0));
            let is_log = |dir: &Path| log::Log::is_in(&*self.disk, dir).unwrap_or(true);
            let is_etcds = |name: &String| name == BESIDE_ETCD || name.contains(".wal");
            if owner.is_none()
                && !is_log(&dir)
                && let Some(other) = names.iter().find(|name| !is_etcds(name))
            {
                return Err(RebuildError::Refused(format!(
                    "{} holds no log, but {other}: check --wal-dir",
                    dir.display()
                )));
            }
            if let (Some(owner), Some(known)) = (owner, known)
                && owner != known
            {
                return Err(RebuildError::Refused(format!(
                    "{} holds the log of member {:x} of cluster {:x}, and the data directory is of member {:x} of cluster {:x}: \
                     check --wal-dir and --data-dir",
                    dir.display(),
                    owner.1,
                    owner.0,
                    known.1,
                    known.0
                )));
            }
            let to = self.place_in(&dir);
            self.disk.create_dir_all(&to).map_err(|error| RebuildError::io("create", &to, error))?;
            self.disk.sync_dir(&dir).map_err(|error| RebuildError::io("sync", &dir, error))?;
            logs.push(OldLog { dir, to, _lock: lock });
        }
        Ok(logs)
    }

    /// Moves the contents of the data directory aside, and also the logs outside of it. If the log is behind
    /// a link or a mount at `member/wal`, the link or mount stays, and a record says that the log is there.
    pub(super) fn move_aside(
        &self,
        data_dir: &Path,
        place: &LogPlace,
        logs: Vec<OldLog>,
    ) -> Result<(), RebuildError> {
        let from = data_dir.join("member");
        if let LogPlace::BehindLink(wal_dir) = place {
            // Write the record before anything is moved, so that another run finds the log even if the data
            // directory is renamed in between.
            log_dir::beside_etcd(wal_dir)
                .and_then(|log_dir| log_dir::write_note(&*self.disk, &from, &log_dir))
                .map_err(|error| RebuildError::Refused(error.to_string()))?;
        }
        for log in logs {
            self.move_log_aside(&log)?;
        }
        if fs::symlink_metadata(&from).is_err() {
            return Ok(());
        }
        let to = unused(data_dir, "member.damaged")?;
        match place {
            LogPlace::BehindLink(_) => {
                let to_list = |error| RebuildError::io("list", &from, error);
                let stays = |name: &OsStr| name == "wal" || name == log_dir::NOTE_NAME;
                self.disk.create_dir_all(&to).map_err(|error| RebuildError::io("create", &to, error))?;
                for entry in fs::read_dir(&from).map_err(to_list)? {
                    let name = entry.map_err(to_list)?.file_name();
                    if !stays(&name) {
                        rename(&from.join(&name), &to.join(&name))?;
                    }
                }
                for dir in [&to, &from] {
                    self.disk.sync_dir(dir).map_err(|error| RebuildError::io("sync", dir, error))?;
                }
            }
            LogPlace::Inside | LogPlace::Apart(_) => rename(&from, &to)?,
        }
        self.disk.sync_dir(data_dir).map_err(|error| RebuildError::io("sync", data_dir, error))?;
        let to = to.display().to_string();
        self.logger.warn("moved the old data aside", &[("to", Value::Str(&to))]);
        Ok(())
    }

    /// Moves the files of a log into a directory inside the log directory. The log directory is not moved,
    /// because it may be a mount point.
    fn move_log_aside(&self, OldLog { dir: log_dir, to, .. }: &OldLog) -> Result<(), RebuildError> {
        for name in self.left_in(log_dir)? {
            let (from, to) = (log_dir.join(&name), to.join(&name));
            rename(&from, &to)?;
        }
        for dir in [to, log_dir] {
            self.disk.sync_dir(dir).map_err(|error| RebuildError::io("sync", dir, error))?;
        }
        let to = to.display().to_string();
        self.logger.warn("moved the old log aside", &[("to", Value::Str(&to))]);
        Ok(())
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), RebuildError> {
    fs::rename(from, to).map_err(|error| RebuildError::Move {
        from: from.to_path_buf(),
        to: to.to_path_buf(),
        error,
    })
}

/// Returns a path in this directory that does not exist yet.
fn unused(dir: &Path, name: &str) -> Result<PathBuf, RebuildError> {
    let mut number = 1;
    loop {
        let path = dir.join(format!("{name}-{number}"));
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(RebuildError::io("look for", &path, error)),
            Ok(_) => number += 1,
        }
    }
}
