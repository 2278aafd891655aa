//! Creates the output directory of a command atomically: if the command fails or is killed, no directory with
//! the final name exists.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cli::Failure;
use disk::{Disk as _, Lock, RealDisk};
use storage::etcd_beside::holds_member;
use storage::first_files;

/// A directory that is created under a temporary name, which is never taken for a member's directory, and
/// renamed at the end. Dropping the value before the rename removes the directory. If the process is killed,
/// the next run of the command removes it.
///
/// An existing directory with the temporary name is removed only if an earlier run of this command has
/// created it: it must belong to the current user, be inaccessible to other users, and contain the file
/// [`MARK`] or nothing. If anything else has the temporary name, the command fails.
///
/// An existing empty target directory may be a mount point, or its parent directory may not be writable, so
/// it cannot be replaced by a rename. Therefore, if the target directory exists, the new directory is created
/// inside it, and at the end the only entry of the new directory, which is the directory `member`, is moved
/// up into the target directory.
pub struct Target {
    path: PathBuf,
    making: PathBuf,
    /// True if the target directory existed, so that the new directory is created inside it.
    is_inside: bool,
    finished: bool,
    /// True after the temporary directory was removed. It must not be removed again, because another process
    /// may since have created a directory with the same name.
    is_removed: bool,
    _lock: Lock,
}

/// Suffix of the name of an unfinished directory.
const UNFINISHED: &str = "unfinished";
/// Name of the file that marks an unfinished directory as created by Mainstay.
const MARK: &str = "unfinished-by-mainstay";

/// Returns true if a command must not write its output to this path, because something exists there. An empty
/// directory, the remains of a killed run, and the file which says that the directory belongs to Mainstay (it
/// stays when a member is removed) may be overwritten.
///
/// # Errors
///
/// Returns an error if the directory cannot be read.
pub fn is_taken(path: &Path) -> io::Result<bool> {
    match fs::read_dir(path) {
        Ok(entries) => {
            for entry in entries {
                let name = entry?.file_name();
                if name != UNFINISHED && !first_files::IN_DATA_DIR.iter().any(|first| name == *first) {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // The path itself is a file. If a parent directory is a file, the path does not exist and is not
        // taken; creating the directory will fail later with a clear error.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory && path.exists() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns an error if [`is_taken`] is true for the directory; `besides` is appended to the error message.
///
/// # Errors
///
/// Returns an error that says what exists at the path, or why the path cannot be read.
pub fn refuse_taken(path: &Path, besides: &str) -> Result<(), Failure> {
    let name = path.display();
    match is_taken(path) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Failure::error(match left_by_first_start(path) {
            Some(member_dir) => format!(
                "{name} already exists and holds no member, only the remains of a failed first start: `rm \
                 -r {}`, and try again",
                member_dir.display()
            ),
            None => format!("{name} already exists and is not empty{besides}"),
        })),
        Err(error) => Err(Failure::error(format!("cannot look into {name}: {error}"))),
    }
}

/// Returns the directory `member` of a data directory if it contains only the files of a first start that
/// failed before the member had formed or joined its cluster. Returns `None` if it contains anything else, or
/// if a process has locked it.
pub fn left_by_first_start(data_dir: &Path) -> Option<PathBuf> {
    let member_dir = data_dir.join("member");
    let all = |dir: &Path, is_first: &dyn Fn(&fs::DirEntry) -> bool| {
        fs::read_dir(dir)
            .is_ok_and(|entries| entries.into_iter().all(|entry| entry.is_ok_and(|e| is_first(&e))))
    };
    let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    let named = |entry: &fs::DirEntry, names: &[&str]| names.iter().any(|name| entry.file_name() == *name);
    let is_first = all(data_dir, &|entry| {
        entry.file_name() == "member" || (named(entry, &first_files::IN_DATA_DIR) && is_file(entry))
    });
    let is_first = is_first
        && all(&member_dir, &|entry| {
            (named(entry, &first_files::IN_MEMBER_DIR) && is_file(entry))
                || (named(entry, &first_files::EMPTY_IN_MEMBER_DIR) && all(&entry.path(), &|_| false))
        });
    let is_free = |lock: &Path| !lock.exists() || RealDisk.lock_read(lock).is_ok();
    let is_left = is_first && !holds_member(&RealDisk, &member_dir).unwrap_or(true);
    (is_left && is_free(&member_dir.join("lock"))).then_some(member_dir)
}

impl Target {
    /// Begins to create a directory, and creates missing parent directories. The caller must have checked
    /// that [`is_taken`] returns false.
    ///
    /// # Errors
    ///
    /// Returns an error if another process is creating the same directory, or the operating system refuses.
    pub fn begin(path: &Path) -> Result<Target, Failure> {
        let is_inside = path.is_dir();
        let making = if is_inside { path.join(UNFINISHED) } else { Target::making_of(path)? };
        let failed = |e: io::Error| Failure::error(format!("cannot make {}: {e}", making.display()));
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            RealDisk.create_dir_all(parent).map_err(failed)?;
        }
        // With mode 0700 other users cannot read the contents, whatever modes the files in it have.
        let is_new = match fs::DirBuilder::new().mode(0o700).create(&making) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed(error)),
        };
        if !is_new && !is_own(&making).map_err(failed)? {
            return Err(Failure::error(format!(
                "{} exists and was not created by this program for this user: check it, and move it away",
                making.display()
            )));
        }
        let lock = RealDisk.lock(&making).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                Failure::error(format!("another process is writing {}", making.display()))
            }
            _ => failed(error),
        })?;
        // Write the mark before all other files. It is removed last, so that every non-empty directory that a
        // killed process leaves has the mark.
        let mark = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(making.join(MARK));
        mark.and_then(|file| file.sync_all()).map_err(failed)?;
        clear(&making).map_err(failed)?;
        Ok(Target {
            path: path.to_path_buf(),
            making,
            is_inside,
            finished: false,
            is_removed: false,
            _lock: lock,
        })
    }

    /// Returns the temporary path that is used for a target directory that does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the path has no last component.
    pub fn making_of(path: &Path) -> Result<PathBuf, Failure> {
        let mut name = path.file_name().map(std::ffi::OsStr::to_os_string).ok_or_else(|| {
            Failure::error(format!("{} is not a valid name for a directory", path.display()))
        })?;
        name.push(".");
        name.push(UNFINISHED);
        Ok(path.with_file_name(name))
    }

    /// Returns the temporary path, to which the caller writes.
    pub fn making(&self) -> &Path {
        &self.making
    }

    /// Makes the directory durable and keeps it under its temporary name. The caller moves its contents
    /// elsewhere.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses.
    pub fn leave(mut self) -> Result<(), Failure> {
        RealDisk
            .sync_dir(&self.making)
            .and_then(|()| RealDisk.sync_dir(parent(&self.making)))
            .map_err(|e| Failure::error(format!("cannot make {} durable: {e}", self.making.display())))?;
        self.finished = true;
        Ok(())
    }

    /// Makes the directory durable and renames it to its final name. Afterwards a member may start on the
    /// directory, even if [`Target::finish`] is not called.
    ///
    /// # Errors
    ///
    /// Returns an error if the final name was taken in the meantime, or the operating system refuses. Even
    /// then the rename may have taken effect; see [`Target::is_in_place`].
    pub fn place(&mut self) -> Result<(), Failure> {
        RealDisk.sync_dir(&self.making).map_err(|error| self.failed(error))?;
        // All data is in the only subdirectory, so one rename makes the data directory appear completely or
        // not at all.
        let (from, to) = match self.is_inside {
            true => (self.making.join("member"), self.path.join("member")),
            false => (self.making.clone(), self.path.clone()),
        };
        let renamed = RealDisk.rename(&from, &to);
        // On a network file system the rename may have succeeded although its response was lost. If the old
        // name does not exist any more, it has succeeded.
        self.finished = renamed.is_ok() || !from.try_exists().unwrap_or(false);
        renamed.map_err(|error| self.failed(error))
    }

    /// Returns true if the directory has its final name, or possibly has it because a failed rename may have
    /// taken effect.
    pub fn is_in_place(&self) -> bool {
        self.finished
    }

    fn failed(&self, error: io::Error) -> Failure {
        Failure::error(format!("cannot rename {} to {}: {error}", self.making.display(), self.path.display()))
    }

    /// Removes the temporary directory durably, if it still exists. Must not be called after the directory
    /// was renamed.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses. In that case all contents may still exist.
    pub fn remove(&mut self) -> io::Result<()> {
        if !self.is_removed {
            gone(clear(&self.making))?;
            gone(fs::remove_file(self.making.join(MARK)))?;
            gone(fs::remove_dir(&self.making))?;
            // Must not be removed again, for example on drop: the lock was in the directory, so another
            // process may have created a directory with this name since.
            self.is_removed = true;
        }
        RealDisk.sync_dir(parent(&self.making))
    }

    /// Renames the directory as [`Target::place`] does, unless this was done already, and makes the rename
    /// durable.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Target::place`].
    pub fn finish(mut self) -> Result<(), Failure> {
        if !self.finished {
            self.place()?;
        }
        let failed = |error| self.failed(error);
        if !self.is_inside {
            RealDisk.sync_dir(parent(&self.path)).map_err(failed)?;
            fs::remove_file(self.path.join(MARK)).map_err(failed)?;
            return RealDisk.sync_dir(&self.path).map_err(failed);
        }
        fs::remove_file(self.making.join(MARK)).map_err(failed)?;
        fs::remove_dir(&self.making).map_err(failed)?;
        RealDisk.sync_dir(&self.path).map_err(failed)
    }
}

/// Returns true if an earlier run of the command by this user has left this directory: it belongs to the
/// user, is not a symbolic link, is not accessible to other users, and is either marked or empty.
fn is_own(dir: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(dir)?;
    // `/proc/self` belongs to the user that this process runs as, so its owner is the current user.
    let user = fs::metadata("/proc/self")?.uid();
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Ok(false);
    }
    let mark = fs::symlink_metadata(dir.join(MARK)).is_ok_and(|mark| mark.is_file());
    // Accept an empty directory without a mark too, since the process may have been killed before it wrote
    // the mark.
    Ok(mark || fs::read_dir(dir)?.next().is_none())
}

fn clear(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == MARK {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Treats a file or directory that no longer exists as removed.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Returns the parent directory of a path.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.finished && !self.is_removed {
            // The error is ignored: the next run of the command removes the rest, which it recognizes because
            // the mark is removed last.
            let _ = self.remove();
        }
    }
}

/// A new file that atomically replaces an existing file, and gets the owner and mode of that file.
pub struct Replacement {
    path: PathBuf,
    making: PathBuf,
    finished: bool,
}

impl Replacement {
    /// Removes the remains of an earlier run, so that the caller can create the new file at
    /// [`Replacement::making`]. The caller must hold a lock on the existing file.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses.
    pub fn begin(path: &Path) -> Result<Replacement, Failure> {
        let making = path.with_extension("unfinished");
        match fs::remove_file(&making) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Failure::error(format!("cannot remove {}: {e}", making.display())))
            }
            _ => Ok(Replacement { path: path.to_path_buf(), making, finished: false }),
        }
    }

    /// Returns the temporary path, to which the caller writes.
    pub fn making(&self) -> &Path {
        &self.making
    }

    /// Makes the new file durable and renames it over the existing file.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses.
    pub fn finish(mut self) -> Result<(), Failure> {
        let failed = |e: io::Error| Failure::error(format!("cannot replace {}: {e}", self.path.display()));
        // Copy owner and mode, because the member that reads the file may run as a different user than this
        // process.
        let before = fs::metadata(&self.path).map_err(failed)?;
        let own = fs::metadata(&self.making).map_err(failed)?;
        if (own.uid(), own.gid()) != (before.uid(), before.gid()) {
            std::os::unix::fs::chown(&self.making, Some(before.uid()), Some(before.gid())).map_err(failed)?;
        }
        fs::set_permissions(&self.making, before.permissions()).map_err(failed)?;
        RealDisk.rename(&self.making, &self.path).map_err(failed)?;
        self.finished = true;
        RealDisk.sync_dir(parent(&self.path)).map_err(failed)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.finished {
            // The error is ignored, because the next run of the command removes the file.
            let _ = fs::remove_file(&self.making);
        }
    }
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[test]
    fn what_was_removed_is_not_removed_again_under_another_process() {
        let dir = TempDir::new("target-removed-once");
        let path = dir.join("data");
        let mut first = Target::begin(&path).expect("begins");
        first.remove().expect("is removed");
        let second = Target::begin(&path).expect("begins");
        let file = second.making().join("file");
        fs::write(&file, "").expect("is written");
        drop(first);
        assert!(file.exists() && second.making().join(MARK).exists());
        second.finish().expect("is placed");
    }

    #[test]
    fn what_is_not_there_any_more_counts_as_removed() {
        let dir = TempDir::new("target-gone");
        for rest in [false, true] {
            let mut target = Target::begin(&dir.join("data")).expect("begins");
            if rest {
                fs::remove_file(target.making().join(MARK)).expect("is removed");
            } else {
                fs::remove_dir_all(target.making()).expect("is removed");
            }
            target.remove().expect("is gone");
            assert!(!target.making().exists());
        }
    }
}
