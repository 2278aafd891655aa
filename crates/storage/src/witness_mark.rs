//! Marks the data directory of a witness, so that it is not started as a member with data, nor the directory of
//! such a member as a witness.
//!
//! The log of a witness has no values. A member that was started on it would look like one with all data and serve
//! an empty store; a member that was started as a witness would no longer keep what its cluster relies on.

use std::path::Path;

use disk::Disk;
use log::OpenError;

use crate::error::DataDirError;

/// Name of the mark, an empty file in the directory `member` of a witness's data directory. (The file `witness` there
/// is something else: the record of the end of the log.)
pub const MARK_NAME: &str = "without-keys";

fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> OpenError {
    move |error| OpenError::Io { doing, path: path.to_path_buf(), error }
}

/// Returns true if the directory `member_dir` is marked as that of a witness.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn is_marked(disk: &dyn Disk, member_dir: &Path) -> Result<bool, OpenError> {
    let mark = member_dir.join(MARK_NAME);
    disk.exists(&mark).map_err(io("read", &mark))
}

/// Returns an error if the directory belongs to the other kind of member. `is_witness` says which kind is started,
/// and `is_new` is true if the directory holds no member yet.
///
/// # Errors
///
/// Returns [`DataDirError::OfWitness`] or [`DataDirError::NotOfWitness`], or the error of the operating system.
pub(crate) fn check(
    disk: &dyn Disk,
    member_dir: &Path,
    is_witness: bool,
    is_new: bool,
) -> Result<(), DataDirError> {
    let data_dir = || member_dir.parent().unwrap_or(member_dir).to_path_buf();
    match (is_witness, is_marked(disk, member_dir)?) {
        (false, true) => Err(DataDirError::OfWitness { data_dir: data_dir() }),
        (true, false) if !is_new => Err(DataDirError::NotOfWitness { data_dir: data_dir() }),
        _ => Ok(()),
    }
}

/// Writes the mark durably, unless the directory has it.
///
/// # Errors
///
/// Returns the error of the operating system.
pub(crate) fn write(disk: &dyn Disk, member_dir: &Path) -> Result<(), OpenError> {
    if is_marked(disk, member_dir)? {
        return Ok(());
    }
    let mark = member_dir.join(MARK_NAME);
    let made = disk.create(&mark).and_then(|file| file.sync_all()).and_then(|()| disk.sync_dir(member_dir));
    made.map_err(io("write", &mark))
}

#[cfg(test)]
mod tests {
    use disk::MemDisk;

    use super::*;

    #[test]
    fn a_directory_belongs_to_one_kind_of_member() {
        let dir = Path::new("/d/member");
        let disk = MemDisk::new(1);
        disk.create_dir_all(dir).expect("is made");
        check(&disk, dir, false, true).expect("a new member");
        check(&disk, dir, false, false).expect("the same member");
        assert!(matches!(check(&disk, dir, true, false), Err(DataDirError::NotOfWitness { .. })));
        check(&disk, dir, true, true).expect("a new witness");
        write(&disk, dir).expect("is written");
        write(&disk, dir).expect("is there");
        disk.crash();
        check(&disk, dir, true, false).expect("the same witness");
        check(&disk, dir, true, true).expect("a witness whose first start was interrupted");
        for is_new in [false, true] {
            assert!(matches!(check(&disk, dir, false, is_new), Err(DataDirError::OfWitness { .. })));
        }
    }
}
