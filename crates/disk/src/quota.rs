//! Determines how many bytes the disk quotas of the user and the group leave free. The free space that a file
//! system reports does not take these quotas into account.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Command to read a quota of a user, with the type of quota in the lower bits (`QCMD` of `sys/quota.h`);
/// `GROUP` is that for a group.
const USER: libc::c_uint = (libc::Q_GETQUOTA as libc::c_uint) << 8;
const GROUP: libc::c_uint = USER | 1;
/// Number of bytes in one unit of a quota's limit.
const UNIT_BYTES: u64 = 1024;
/// Flags that are set in a result if it contains the limits and the usage of space.
const LIMITS_AND_USAGE: u32 = libc::QIF_BLIMITS | libc::QIF_SPACE;

/// Returns the number of bytes that the quotas of this process still allow on the file system that contains
/// `path`. Returns `None` if no quota limits the process, or if the operating system does not report quotas
/// (Linux before 5.14, network file systems). Project quotas do not matter here, because the free space of
/// the file system already takes them into account.
pub(crate) fn bytes_left(path: &Path) -> Option<u64> {
    let file = fs::File::open(path).ok()?;
    // SAFETY: both calls have no arguments and only return ids of the process.
    let (user, own_group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let group = file.metadata().map_or(own_group, |found| group_of_new_files(&found, own_group));
    let left = [(USER, user), (GROUP, group)].into_iter().filter_map(|(command, id)| {
        // SAFETY: `dqblk` is a plain C struct of integers, for which all zeros is a valid value.
        let mut found: libc::dqblk = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open for the whole call, which writes only into `found`.
        let code =
            unsafe { libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command, id, &raw mut found) };
        if code != 0 || found.dqb_valid & LIMITS_AND_USAGE != LIMITS_AND_USAGE {
            return None;
        }
        limit_of(&found).map(|limit| limit.saturating_sub(found.dqb_curspace))
    });
    left.min()
}

/// Returns the group that will own new files in this directory, and whose quota limits them. It is the group
/// of the directory if the setgid bit of the directory is set; otherwise the group of the process.
fn group_of_new_files(dir: &fs::Metadata, own_group: u32) -> u32 {
    let is_inherited = dir.is_dir() && dir.mode() & libc::S_ISGID != 0;
    if is_inherited { dir.gid() } else { own_group }
}

/// Returns the maximum number of bytes that a quota allows; `None` if it has no limit. The hard limit counts,
/// because writes beyond the soft limit succeed for a grace period of some days.
fn limit_of(found: &libc::dqblk) -> Option<u64> {
    (found.dqb_bhardlimit > 0).then(|| found.dqb_bhardlimit.saturating_mul(UNIT_BYTES))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use testkit::TempDir;

    use super::*;

    #[test]
    fn new_files_count_for_the_group_that_they_get() {
        let dir = TempDir::new("quota-group");
        let found = || fs::metadata(dir.path()).expect("is there");
        let (own, other) = (found().gid(), found().gid() + 1);
        assert_eq!(group_of_new_files(&found(), other), other);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o2700)).expect("is set");
        assert_eq!(group_of_new_files(&found(), other), own);
        let file = dir.join("file");
        fs::write(&file, b"").expect("is written");
        assert_eq!(fs::metadata(&file).expect("is there").gid(), own);
        assert_eq!(group_of_new_files(&fs::metadata(&file).expect("is there"), other), other);
    }
}
