//! Supports log directories that are not at the usual place in the data directory: determines their location
//! and creates them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cli::Failure;
use disk::{Disk, RealDisk};
use storage::Identity;
use storage::etcd_beside;
use storage::restoration::Restoration;

use crate::target::Target;

/// Location of a member's log that the user has named.
pub(crate) enum WalDir {
    /// Path below the data directory, relative to it.
    Inside(PathBuf),
    /// An absolute path outside of the data directory.
    Apart(PathBuf),
}

impl WalDir {
    /// Determines the location of the log. `flags` are the names of the two flags that gave the directories,
    /// for error messages.
    ///
    /// # Errors
    ///
    /// Returns an error if a path contains `..`, or if the two directories could not appear atomically: if
    /// the data directory would be inside the log's directory, or if the log would be in the data directory
    /// but not below its `member`.
    pub fn of(
        wal_dir: &Path,
        data_dir: &Path,
        (wal_flag, data_flag): (&str, &str),
    ) -> Result<WalDir, Failure> {
        let whole = |path: &Path| std::path::absolute(path).map_err(Failure::error);
        let (wal_dir, data_dir) = (whole(wal_dir)?, whole(data_dir)?);
        let goes_up = |path: &Path| path.components().any(|part| part == std::path::Component::ParentDir);
        if goes_up(&wal_dir) || goes_up(&data_dir) {
            return Err(Failure::bad_args(format!(
                "--{wal_flag} and --{data_flag} must not contain \"..\" when both are given"
            )));
        }
        if data_dir.starts_with(&wal_dir) {
            return Err(Failure::bad_args(format!(
                "--{data_flag} is inside --{wal_flag}: the log needs a directory of its own"
            )));
        }
        match wal_dir.strip_prefix(&data_dir) {
            Ok(below) if below.starts_with("member") && below != Path::new("member") => {
                Ok(WalDir::Inside(below.to_path_buf()))
            }
            Ok(_) => Err(Failure::bad_args(format!(
                "--{wal_flag} is inside --{data_flag}: choose a directory below its \"member\", or one outside of it"
            ))),
            Err(_) => Ok(WalDir::Apart(wal_dir)),
        }
    }
}

/// Begins a data directory of Mainstay in `making`, which the caller will rename to `data_dir`. If the log is
/// outside of the data directory, begins the log's directory too.
///
/// # Errors
///
/// Returns an error if something exists at the path of the log's directory, or the operating system refuses.
pub(crate) fn begin(
    making: &Path,
    data_dir: &Path,
    wal_dir: Option<&WalDir>,
    identity: Identity,
) -> Result<(Restoration, Option<Target>), Failure> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let apart = |log_dir: &Path, named: &Path, identity| {
        Restoration::begin_apart(&disk, making, log_dir, named, identity).map_err(Failure::error)
    };
    let begun = match wal_dir {
        None => (Restoration::begin(&disk, making, identity).map_err(Failure::error)?, None),
        Some(WalDir::Inside(below)) => {
            let data_dir = std::path::absolute(data_dir).map_err(Failure::error)?;
            (apart(&making.join(below), &data_dir.join(below), identity)?, None)
        }
        Some(WalDir::Apart(path)) => {
            let wal = Target::begin(path)?;
            (apart(wal.making(), path, identity)?, Some(wal))
        }
    };
    etcd_beside::keep_out(&*disk, &making.join("member"), None).map_err(Failure::error)?;
    Ok(begun)
}
