//! Lists the files that a start creates before the member has data. A check whether a directory contains data
//! ignores these files.

use std::path::Path;

use disk::Disk;

use crate::etcd_beside::SIGN_NAME;

/// Names of the files that a start creates in the data directory before the member has data: only the file
/// that tells operators that the directory belongs to Mainstay. That file stays even after the member was
/// removed from the cluster.
pub const IN_DATA_DIR: [&str; 1] = [SIGN_NAME];

/// Names of the files that a start creates in the directory `<data-dir>/member` before the member has data:
/// the lock file, and the file that prevents etcd from starting.
pub const IN_MEMBER_DIR: [&str; 2] = ["lock", "snap"];

/// Names of the directories in `<data-dir>/member` that are empty until the member has data.
pub const EMPTY_IN_MEMBER_DIR: [&str; 2] = ["checkpoint", "log"];

/// Returns true if the directory of a member contains a file or directory other than [`IN_MEMBER_DIR`].
/// Returns false if the directory does not exist or cannot be listed.
pub fn are_not_all(disk: &dyn Disk, member_dir: &Path) -> bool {
    let is_more = |name: &String| !IN_MEMBER_DIR.contains(&name.as_str());
    disk.list(member_dir).is_ok_and(|names| names.iter().any(is_more))
}
