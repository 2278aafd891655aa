//! Files that a start creates before the member has data. They do not count when a directory is checked for
//! data.

use std::path::Path;

use disk::Disk;

use crate::etcd_beside::SIGN_NAME;

/// Names in a data directory: the file that says that the directory belongs to Mainstay. It stays even after
/// the member was removed.
pub const IN_DATA_DIR: [&str; 1] = [SIGN_NAME];

/// Names in `member`: the lock, and the file that prevents etcd from starting.
pub const IN_MEMBER_DIR: [&str; 2] = ["lock", "snap"];

/// Directories in `member` that are empty until the member has data.
pub const EMPTY_IN_MEMBER_DIR: [&str; 2] = ["checkpoint", "log"];

/// Returns true if the directory of a member contains a file besides those that every start creates. Returns
/// false if the directory does not exist.
pub fn are_not_all(disk: &dyn Disk, member_dir: &Path) -> bool {
    let is_more = |name: &String| !IN_MEMBER_DIR.contains(&name.as_str());
    disk.list(member_dir).is_ok_and(|names| names.iter().any(is_more))
}
