//! Marks the data directory of an observer, so that it is not started as a member, nor the directory of a
//! member as an observer.
//!
//! An observer that was started as a member would wait for ever, because no member sends it entries. A member
//! that was started as an observer would no longer vote, and its cluster would count on it.

use std::path::Path;

use disk::Disk;
use log::OpenError;

use crate::error::DataDirError;

/// Name of the mark in the directory `member` of an observer's data directory. It contains the observer's id in
/// hexadecimal.
pub const MARK_NAME: &str = "observer";
/// Length of the mark's content in bytes.
const MARK_BYTES: usize = 16;

/// Returns the id of an observer: that of the mark in its directory, which exists; or `random`, for which the mark
/// is written durably.
///
/// # Errors
///
/// Returns the error of the operating system, or that the mark contains no id.
pub fn id(disk: &dyn Disk, member_dir: &Path, random: u64) -> Result<u64, OpenError> {
    let mark = member_dir.join(MARK_NAME);
    let io = |doing, error| OpenError::Io { doing, path: mark.clone(), error };
    if disk.exists(&mark).map_err(|error| io("read", error))? {
        let mut bytes = [0; MARK_BYTES];
        let read = disk.open_read(&mark).and_then(|file| file.read_at(&mut bytes, 0));
        let len = read.map_err(|error| io("read", error))?;
        let text = std::str::from_utf8(&bytes[..len]).ok();
        let id = text.and_then(|text| u64::from_str_radix(text, 16).ok()).filter(|id| *id != 0);
        let no_id =
            || std::io::Error::new(std::io::ErrorKind::InvalidData, "it contains no id of an observer");
        return id.ok_or_else(|| io("read", no_id()));
    }
    // 0 stands for no member.
    let id = random.max(1);
    let making = member_dir.join(format!("{MARK_NAME}.tmp"));
    let write = || {
        if disk.exists(&making)? {
            disk.remove(&making)?;
        }
        let file = disk.create(&making)?;
        file.write_at(format!("{id:016x}").as_bytes(), 0)?;
        file.sync_all()?;
        disk.rename(&making, &mark)?;
        disk.sync_dir(member_dir)
    };
    write().map_err(|error| io("write", error))?;
    Ok(id)
}

/// Returns an error if the directory belongs to the other kind of node. `observes` says which kind is started.
///
/// # Errors
///
/// Returns [`DataDirError::OfObserver`] or [`DataDirError::OfMember`], or the error of the operating system.
pub(crate) fn check(
    disk: &dyn Disk,
    member_dir: &Path,
    observes: bool,
    is_new: bool,
) -> Result<(), DataDirError> {
    let mark = member_dir.join(MARK_NAME);
    let is_marked =
        disk.exists(&mark).map_err(|error| OpenError::Io { doing: "read", path: mark.clone(), error })?;
    let data_dir = || member_dir.parent().unwrap_or(member_dir).to_path_buf();
    match (observes, is_marked) {
        (false, true) => Err(DataDirError::OfObserver { data_dir: data_dir() }),
        (true, false) if !is_new => Err(DataDirError::OfMember { data_dir: data_dir() }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use disk::{Fault, MemDisk};

    use super::*;

    #[test]
    fn a_directory_belongs_to_one_kind_of_node() {
        let dir = Path::new("/d/member");
        let disk = MemDisk::new(1);
        disk.create_dir_all(dir).expect("is made");
        check(&disk, dir, false, true).expect("a new member");
        assert!(matches!(check(&disk, dir, true, false), Err(DataDirError::OfMember { .. })));
        assert_eq!(id(&disk, dir, 0xab).ok(), Some(0xab));
        assert_eq!(id(&disk, dir, 0xcd).ok(), Some(0xab), "the same at every start");
        check(&disk, dir, true, true).expect("a new observer");
        check(&disk, dir, true, false).expect("the same observer");
        assert!(matches!(check(&disk, dir, false, false), Err(DataDirError::OfObserver { .. })));
    }

    #[test]
    fn a_mark_that_failed_at_any_step_is_made_again() {
        let dir = Path::new("/d/member");
        for nth in 1.. {
            let disk = MemDisk::new(nth);
            disk.create_dir_all(dir).expect("is made");
            disk.fail_at(disk.ops() + nth, Fault::Once(5));
            let made = id(&disk, dir, 7);
            disk.heal();
            assert_eq!(id(&disk, dir, 7).ok(), Some(7), "operation {nth} failed");
            if made.is_ok() {
                break;
            }
        }
    }

    #[test]
    fn a_damaged_mark_is_refused() {
        let (dir, disk) = (Path::new("/d/member"), MemDisk::new(1));
        disk.create_dir_all(dir).expect("is made");
        let file = disk.create(&dir.join(MARK_NAME)).expect("is made");
        file.write_at(b"nothing", 0).expect("is written");
        assert!(id(&disk, dir, 7).expect_err("no id").to_string().contains("no id"));
    }
}
