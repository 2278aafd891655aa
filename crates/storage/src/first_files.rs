//! The files that a start makes before there is a member: who asks whether a directory holds anything leaves them out.

use std::path::Path;

use disk::Disk;

use crate::etcd_beside::SIGN_NAME;

/// Names in a data directory: the file that says whose it is. It also stays where a member was removed.
pub const IN_DATA_DIR: [&str; 1] = [SIGN_NAME];

/// Names in `member`: the lock, and the file that keeps etcd out.
pub const IN_MEMBER_DIR: [&str; 2] = ["lock", "snap"];

/// Directories in `member` that are empty until the member has begun.
pub const EMPTY_IN_MEMBER_DIR: [&str; 2] = ["checkpoint", "log"];

/// Returns true if there is a file in the directory of a member, which need not be there, besides those that every start makes first.
pub fn are_not_all(disk: &dyn Disk, member_dir: &Path) -> bool {
    let is_more = |name: &String| !IN_MEMBER_DIR.contains(&name.as_str());
    disk.list(member_dir).is_ok_and(|names| names.iter().any(is_more))
}
