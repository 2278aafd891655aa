//! What an earlier run left that was killed: its directory of images. Its namespaces, mounts and processes are gone by
//! themselves.

use std::io;
use std::path::{Path, PathBuf};

const PREFIX: &str = "mainstay-torture-";

/// A directory of this run, removed at its end.
pub struct WorkDir(PathBuf);

impl WorkDir {
    /// Makes it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn make() -> io::Result<WorkDir> {
        let path = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(WorkDir(path))
    }

    /// Where it is.
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

/// Removes the directories of runs whose process is gone.
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
