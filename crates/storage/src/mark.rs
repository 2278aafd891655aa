//! Writes and reads a mark in a member's directory: a file that contains the path of a directory that was made from
//! this one. A member does not start on a marked directory ([`crate::exported`], [`crate::recovered`]).

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use disk::Disk;
use log::OpenError;

/// Maximum number of bytes that are read from a mark: the maximum length of a path in Linux. A longer content is
/// cut off.
const BYTES_MAX: usize = 4096;

/// Writes the mark `name` durably, with the absolute path of `to`. An existing mark is replaced.
///
/// # Errors
///
/// Returns the error of the operating system.
pub(crate) fn write(disk: &dyn Disk, member_dir: &Path, name: &str, to: &Path) -> Result<(), OpenError> {
    let path = member_dir.join(name);
    let making = member_dir.join(format!("{name}.tmp"));
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

/// Removes the mark `name` durably, and the temporary file of a failed [`write()`]. Both may be missing.
///
/// # Errors
///
/// Returns the error of the operating system.
pub(crate) fn remove(disk: &dyn Disk, member_dir: &Path, name: &str) -> Result<(), OpenError> {
    let path = member_dir.join(name);
    let remove = || {
        for path in [member_dir.join(format!("{name}.tmp")), path.clone()] {
            if disk.exists(&path)? {
                disk.remove(&path)?;
            }
        }
        disk.sync_dir(member_dir)
    };
    remove().map_err(|error| OpenError::Io { doing: "remove", path: path.clone(), error })
}

/// Returns the path of the mark `name`, and the directory that it names, if the mark exists.
///
/// # Errors
///
/// Returns the error of the operating system.
pub(crate) fn read(
    disk: &dyn Disk,
    member_dir: &Path,
    name: &str,
) -> Result<Option<(PathBuf, PathBuf)>, OpenError> {
    let mark = member_dir.join(name);
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
            let marked = write(&disk, member, "mark", Path::new("/to"));
            disk.heal();
            if marked.is_ok() {
                break;
            }
            failed += 1;
            remove(&disk, member, "mark").expect("can be removed");
            assert_eq!(disk.files(), [], "operation {nth} failed");
        }
        assert!(failed >= 4, "{failed}");
    }
}
