//! Creates the working directory of a run, and removes those of earlier runs that were killed. Namespaces,
//! mounts and processes of killed runs need not be removed: the kernel has done that.

use std::io;
use std::path::{Path, PathBuf};

const PREFIX: &str = "mainstay-torture-";

/// Working directory of this run. It is removed on drop.
pub struct WorkDir(PathBuf);

impl WorkDir {
    /// Creates the directory.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn make() -> io::Result<WorkDir> {
        let path = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(WorkDir(path))
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

/// Removes the working directories of runs whose process no longer exists.
pub fn remove() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let Ok(id) = id.parse::<u32>() else { continue };
        if Path::new(&format!("/proc/{id}")).exists() {
            continue;
        }
        match std::fs::remove_dir_all(entry.path()) {
            Ok(()) => eprintln!("removed {}, left by an earlier run", entry.path().display()),
            Err(error) => eprintln!("{}: {error}", entry.path().display()),
        }
    }
}
