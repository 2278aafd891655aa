//! Marks a member that was exported to a data directory of etcd, and refuses to start a marked member. Once
//! etcd starts on the exported directory, the data of the member is out of date.
//!
//! The member and the etcd member that was created from it have the same id. If the member started with its
//! out-of-date data, it would not know the votes that etcd has given and the entries that etcd has
//! acknowledged under that id since the export. It could vote again in the same term, or for a candidate that
//! lacks committed entries, before a leader contacts it. So a start is refused.

use std::path::Path;

use disk::Disk;
use log::OpenError;

use crate::error::DataDirError;
use crate::mark;

/// Name of the mark in a member's directory. Its content is the absolute path of the directory that was
/// created for etcd; but the member counts as exported whenever the file exists, whatever it contains.
pub const MARK_NAME: &str = "exported";

/// Marks a member, durably, as exported to the directory `to`.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn mark(disk: &dyn Disk, member_dir: &Path, to: &Path) -> Result<(), OpenError> {
    mark::write(disk, member_dir, MARK_NAME, to)
}

/// Removes, durably, the mark of an export that has failed and has left nothing on which etcd could start,
/// and the temporary file of a failed [`mark()`]. Both may be missing.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn unmark(disk: &dyn Disk, member_dir: &Path) -> Result<(), OpenError> {
    mark::remove(disk, member_dir, MARK_NAME)
}

/// Returns an error if the member was exported, so that it must not start.
///
/// # Errors
///
/// Returns [`DataDirError::Exported`] if the member was exported, or the error of the operating system.
pub fn refuse(disk: &dyn Disk, member_dir: &Path) -> Result<(), DataDirError> {
    match mark::read(disk, member_dir, MARK_NAME)? {
        None => Ok(()),
        Some((mark, to)) => Err(DataDirError::Exported { mark, to }),
    }
}

/// Returns an error if the member was exported, so that it must not be exported a second time: once etcd has
/// run on the first export, a second one would be out of date.
///
/// # Errors
///
/// Returns [`DataDirError::ExportedBefore`] if the member was exported, or the error of the operating system.
pub fn refuse_again(disk: &dyn Disk, member_dir: &Path) -> Result<(), DataDirError> {
    match mark::read(disk, member_dir, MARK_NAME)? {
        None => Ok(()),
        Some((mark, to)) => Err(DataDirError::ExportedBefore { mark, to }),
    }
}
