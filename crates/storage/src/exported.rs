//! Marks a member that was exported to a data directory of etcd, and refuses to start a marked member. Once
//! etcd starts on the exported directory, the data of the member is out of date.
//!
//! The member and the etcd member that was created from it have the same id. If the member started with its
//! out-of-date data, it would not know the votes that etcd has given and the entries that etcd has
//! acknowledged under that id since the export. It could vote again in the same term, or for a candidate that
//! lacks committed entries, before a leader contacts it. So a start is refused.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use disk::Disk;
use log::OpenError;

use crate::error::DataDirError;

/// Name of the mark in a member's directory. Its content is the absolute path of the directory that was
/// created for etcd; but the member counts as exported whenever the file exists, whatever it contains.
pub const MARK_NAME: &str = "exported";

/// Maximum number of bytes that are read from the mark: the maximum length of a path in Linux. A longer
/// content is cut off.
const BYTES_MAX: usize = 4096;

/// Marks a member, durably, as exported to the directory `to`.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn mark(disk: &dyn Disk, member_dir: &Path, to: &Path) -> Result<(), OpenError> {
    let path = member_dir.join(MARK_NAME);
    let making = member_dir.join(format!("{MARK_NAME}.tmp"));
    let write = || {
        if disk.exists(&making)? {
            disk.remove(&making)?;
        }
        let file = disk.create(&making)?;
        file.write_at(std::path::absolute(to)?.as_os_str().as_bytes(), 0)?;
        file.sync_all()?;
        disk.rename(&making, &path)?;
        disk.sync_dir(member_dir)
    };
    write().map_err(|error| OpenError::Io { doing: "write", path: path.clone(), error })
}

/// Removes, durably, the mark of an export that has failed and has left nothing on which etcd could start,
/// and the temporary file of a failed [`mark`]. Both may be missing.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn unmark(disk: &dyn Disk, member_dir: &Path) -> Result<(), OpenError> {
    let path = member_dir.join(MARK_NAME);
    let remove = || {
        for path in [member_dir.join(format!("{MARK_NAME}.tmp")), path.clone()] {
            if disk.exists(&path)? {
                disk.remove(&path)?;
            }
        }
        disk.sync_dir(member_dir)
    };
    remove().map_err(|error| OpenError::Io { doing: "remove", path: path.clone(), error })
}

/// Returns an error if the member was exported, so that it must not start.
///
/// # Errors
///
/// Returns [`DataDirError::Exported`] if the member was exported, or the error of the operating system.
pub fn refuse(disk: &dyn Disk, member_dir: &Path) -> Result<(), DataDirError> {
    match read(disk, member_dir)? {
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
    match read(disk, member_dir)? {
        None => Ok(()),
        Some((mark, to)) => Err(DataDirError::ExportedBefore { mark, to }),
    }
}

/// Returns the path of the mark, and the directory that it names, if the mark exists.
fn read(disk: &dyn Disk, member_dir: &Path) -> Result<Option<(PathBuf, PathBuf)>, OpenError> {
    let mark = member_dir.join(MARK_NAME);
    let io = |error| OpenError::Io { doing: "read", path: mark.clone(), error };
    if !disk.exists(&mark).map_err(io)? {
        return Ok(None);
    }
    let mut bytes = vec![0; BYTES_MAX];
    let read = disk.open_read(&mark).and_then(|file| file.read_at(&mut bytes, 0)).map_err(io)?;
    bytes.truncate(read);
    Ok(Some((mark, PathBuf::from(std::ffi::OsString::from_vec(bytes)))))
}

#[cfg(test)]
mod tests {
    use disk::{Fault, MemDisk};

    use super::*;

    #[test]
    fn a_mark_that_failed_at_any_step_leaves_nothing_once_it_is_removed() {
        const EIO: i32 = 5;
        let member = Path::new("/m");
        let mut failed = 0;
        for nth in 1.. {
            let disk = MemDisk::new(nth);
            disk.create_dir_all(member).expect("is made");
            disk.fail_at(disk.ops() + nth, Fault::Once(EIO));
            let marked = mark(&disk, member, Path::new("/to"));
            disk.heal();
            if marked.is_ok() {
                break;
            }
            failed += 1;
            unmark(&disk, member).expect("can be removed");
            assert_eq!(disk.files(), [], "operation {nth} failed");
        }
        assert!(failed >= 4, "{failed}");
    }
}
