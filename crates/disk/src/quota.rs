//! Bytes that the quotas of the user and the group leave, which the free space of a file system does not show.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::Path;

/// Sort of a quota and the command to read it, as the kernel packs them (`QCMD` of `sys/quota.h`).
const USER: libc::c_uint = (libc::Q_GETQUOTA as libc::c_uint) << 8;
const GROUP: libc::c_uint = USER | 1;
/// Quotas count in units of 1 KiB.
const UNIT_BYTES: u64 = 1024;
/// The fields for blocks hold something.
const LIMITS_AND_USAGE: u32 = libc::QIF_BLIMITS | libc::QIF_SPACE;

/// Bytes that this process may still write to the file system that holds `path`; `None` if no quota limits them, or the system does
/// not tell (Linux before 5.14, network file systems). Quotas of projects are part of the file system's free space.
pub(crate) fn bytes_left(path: &Path) -> Option<u64> {
    let file = fs::File::open(path).ok()?;
    // SAFETY: both only read the ids of the process.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let left = [(USER, user), (GROUP, group)].into_iter().filter_map(|(command, id)| {
        // SAFETY: `dqblk` is a plain C struct of integers, for which all zeros is a value.
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

/// Bytes that may be in use; `None` if there is no limit. Beyond the soft limit writes are taken for some days.
fn limit_of(found: &libc::dqblk) -> Option<u64> {
    (found.dqb_bhardlimit > 0).then(|| found.dqb_bhardlimit.saturating_mul(UNIT_BYTES))
}
