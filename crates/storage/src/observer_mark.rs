//! Marks the data directory of an observer, so that it is not started as a member, nor the directory of a
//! member as an observer.
//!
//! An observer that was started as a member would wait for ever, because no member sends it entries. A member
//! that was started as an observer would no longer vote, and its cluster would count on it.

use std::path::Path;

use disk::Disk;
use log::OpenError;

use crate::error::DataDirError;

/// Name of the mark in the directory `member` of an observer's data directory.
pub const MARK_NAME: &str = "observer";

/// Returns an error if the directory belongs to the other kind of node. `observes` says which kind is started.
/// If it is an observer, and the directory is `new`, the mark is written durably.
///
/// # Errors
///
/// Returns [`DataDirError::OfObserver`] or [`DataDirError::OfMember`], or the error of the operating system.
pub(crate) fn settle(
    disk: &dyn Disk,
    member_dir: &Path,
    observes: bool,
    is_new: bool,
) -> Result<(), DataDirError> {
    let mark = member_dir.join(MARK_NAME);
    let io = |doing, error| OpenError::Io { doing, path: mark.clone(), error };
    let is_marked = disk.exists(&mark).map_err(|error| io("read", error))?;
    let data_dir = || member_dir.parent().unwrap_or(member_dir).to_path_buf();
    match (observes, is_marked) {
        (false, false) | (true, true) => Ok(()),
        (false, true) => Err(DataDirError::OfObserver { data_dir: data_dir() }),
        (true, false) if !is_new => Err(DataDirError::OfMember { data_dir: data_dir() }),
        (true, false) => {
            let write = || {
                let file = disk.create(&mark)?;
                file.sync_all()?;
                disk.sync_dir(member_dir)
            };
            write().map_err(|error| io("write", error).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use disk::MemDisk;

    use super::*;

    #[test]
    fn a_directory_belongs_to_one_kind_of_node() {
        let dir = Path::new("/d/member");
        let disk = MemDisk::new(1);
        disk.create_dir_all(dir).expect("is made");
        settle(&disk, dir, false, true).expect("a new member");
        assert!(matches!(settle(&disk, dir, true, false), Err(DataDirError::OfMember { .. })));
        settle(&disk, dir, true, true).expect("a new observer");
        settle(&disk, dir, true, false).expect("the same observer");
        assert!(matches!(settle(&disk, dir, false, false), Err(DataDirError::OfObserver { .. })));
    }
}
