//! A directory that comes to be whole or not at all.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use disk::{Disk as _, Lock, RealDisk};

use crate::Refusal;

/// A directory being made under another name, which nobody takes for a member's. Dropped unfinished, it is removed;
/// what a killed process leaves is removed by the next attempt.
pub struct Target {
    path: PathBuf,
    making: PathBuf,
    finished: bool,
    _lock: Lock,
}

/// Whether something is at this path that must not be overwritten; an empty directory may be.
///
/// # Errors
///
/// When the operating system does not say.
pub fn is_taken(path: &Path) -> io::Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(_) => Ok(true),
    }
}

impl Target {
    /// Begins a directory; its parents are made where they are missing. The caller knows that it is not taken.
    ///
    /// # Errors
    ///
    /// When another process is making it, or the operating system refuses.
    pub fn begin(path: &Path) -> Result<Target, Refusal> {
        let mut name = path.file_name().map(std::ffi::OsStr::to_os_string).ok_or_else(|| {
            Refusal::failed(format!("{} is no name that a directory can get", path.display()))
        })?;
        name.push(".unfinished");
        let making = path.with_file_name(name);
        let failed = |e: io::Error| Refusal::failed(format!("cannot make {}: {e}", making.display()));
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            RealDisk.create_dir_all(parent).map_err(failed)?;
        }
        // Mode 0700: nobody else sees what is in it, whatever the files' modes are.
        match fs::DirBuilder::new().mode(0o700).create(&making) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let lock = RealDisk.lock(&making).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                Refusal::failed(format!("another process is writing {}", making.display()))
            }
            _ => failed(error),
        })?;
        clear(&making).map_err(failed)?;
        Ok(Target { path: path.to_path_buf(), making, finished: false, _lock: lock })
    }

    /// Where to write.
    pub fn making(&self) -> &Path {
        &self.making
    }

    /// Gives the directory its name, once all in it is durable.
    ///
    /// # Errors
    ///
    /// When something has taken its place meanwhile, or the operating system refuses.
    pub fn finish(mut self) -> Result<(), Refusal> {
        let failed = |e: io::Error| {
            Refusal::failed(format!(
                "cannot rename {} to {}: {e}",
                self.making.display(),
                self.path.display()
            ))
        };
        RealDisk.sync_dir(&self.making).map_err(failed)?;
        // An empty directory in its place is replaced, anything else is an error.
        RealDisk.rename(&self.making, &self.path).map_err(failed)?;
        self.finished = true;
        RealDisk.sync_dir(parent(&self.path)).map_err(failed)
    }
}

fn clear(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The directory that a path is in.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.finished {
            // If it cannot be removed, the next attempt does it.
            let _ = fs::remove_dir_all(&self.making);
        }
    }
}

/// A file that comes to be whole in the place of one that is there.
pub struct Replacement {
    path: PathBuf,
    making: PathBuf,
    finished: bool,
}

impl Replacement {
    /// Begins; what an earlier attempt left is removed. The caller holds a lock on the file that is there.
    ///
    /// # Errors
    ///
    /// When the operating system refuses.
    pub fn begin(path: &Path) -> Result<Replacement, Refusal> {
        let making = path.with_extension("unfinished");
        match fs::remove_file(&making) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(Refusal::failed(format!("cannot remove {}: {e}", making.display())));
            }
            _ => Ok(Replacement { path: path.to_path_buf(), making, finished: false }),
        }
    }

    /// Where to write.
    pub fn making(&self) -> &Path {
        &self.making
    }

    /// Puts the file in its place, once it is durable.
    ///
    /// # Errors
    ///
    /// When the operating system refuses.
    pub fn finish(mut self) -> Result<(), Refusal> {
        let failed = |e: io::Error| Refusal::failed(format!("cannot replace {}: {e}", self.path.display()));
        RealDisk.rename(&self.making, &self.path).map_err(failed)?;
        self.finished = true;
        RealDisk.sync_dir(parent(&self.path)).map_err(failed)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.finished {
            // If it cannot be removed, the next attempt does it.
            let _ = fs::remove_file(&self.making);
        }
    }
}
