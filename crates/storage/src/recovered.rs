//! Marks the directory of a member from whose cluster `mainstay recover` has formed a cluster again, and refuses to
//! start a marked member.
//!
//! The new cluster has a configuration without the old members. The old ones do not know that: enough of them
//! could elect a leader of their own, beside that of the new cluster, and acknowledge writes that the new cluster
//! never gets. So a start is refused.

use std::path::{Path, PathBuf};

use disk::Disk;
use log::OpenError;

use crate::error::DataDirError;
use crate::mark;

/// Name of the mark in a member's directory. Its content is the absolute path of the data directory of the new
/// cluster's first member; but the member counts as replaced whenever the file exists, whatever it contains.
pub const MARK_NAME: &str = "recovered";

/// Marks a member, durably, as one of a cluster that was formed again in the data directory `to`.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn mark(disk: &dyn Disk, member_dir: &Path, to: &Path) -> Result<(), OpenError> {
    mark::write(disk, member_dir, MARK_NAME, to)
}

/// Removes the mark durably. It may be missing.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn unmark(disk: &dyn Disk, member_dir: &Path) -> Result<(), OpenError> {
    mark::remove(disk, member_dir, MARK_NAME)
}

/// Returns the data directory of the new cluster's first member, if this member is marked.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn formed(disk: &dyn Disk, member_dir: &Path) -> Result<Option<PathBuf>, OpenError> {
    Ok(mark::read(disk, member_dir, MARK_NAME)?.map(|(_, to)| to))
}

/// Returns an error if the member is marked, so that it must not start.
///
/// # Errors
///
/// Returns [`DataDirError::Recovered`] if the member is marked, or the error of the operating system.
pub fn refuse(disk: &dyn Disk, member_dir: &Path) -> Result<(), DataDirError> {
    match mark::read(disk, member_dir, MARK_NAME)? {
        None => Ok(()),
        Some((mark, to)) => Err(DataDirError::Recovered { mark, to }),
    }
}
