//! `--memory-mlock`: prevents the memory of the process from being swapped out.
//!
//! Each page of the process's memory is locked when it is first used, including memory that is allocated
//! later. If the process reached a limit on locked memory, an allocation would fail, which ends the process.
//! Therefore the lock is refused unless the process has no such limit, or has the right to ignore the limit
//! (`CAP_IPC_LOCK`). Values in the page cache belong to the kernel and are not locked.

use std::fmt;
use std::io;

/// Bit of `CAP_IPC_LOCK` in `/proc/self/status`. Source: `linux/capability.h`.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// Reason why the memory is not locked.
#[derive(Debug)]
pub enum MemoryLockError {
    /// The process is allowed to lock only this number of bytes.
    Limited(u64),
    /// The system refused to lock the memory.
    Refused(io::Error),
}

impl fmt::Display for MemoryLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLockError::Limited(bytes) => write!(
                f,
                "--memory-mlock: this process may lock only {bytes} bytes of memory; remove the limit \
                 (ulimit -l unlimited, LimitMEMLOCK=infinity) or grant the capability CAP_IPC_LOCK"
            ),
            MemoryLockError::Refused(error) => write!(f, "--memory-mlock: mlock error: {error}"),
        }
    }
}

impl std::error::Error for MemoryLockError {}

/// Locks the memory of the process.
///
/// # Errors
///
/// Returns an error if the process may not lock unlimited memory, or the system refuses.
pub fn lock() -> Result<(), MemoryLockError> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    check(raised_limit(), may_ignore_limits(&status))?;
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: a plain system call with valid flags.
    match unsafe { libc::mlockall(flags) } {
        0 => Ok(()),
        _ => Err(MemoryLockError::Refused(io::Error::last_os_error())),
    }
}

fn check(limit: Option<u64>, may_ignore_it: bool) -> Result<(), MemoryLockError> {
    match limit {
        Some(bytes) if !may_ignore_it => Err(MemoryLockError::Limited(bytes)),
        _ => Ok(()),
    }
}

/// Raises the soft limit on locked memory to the hard limit. Returns the limit in bytes; `None` if there is
/// no limit.
fn raised_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is initialized, and valid for the call to write to.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0 {
        return None;
    }
    limit.rlim_cur = limit.rlim_max;
    // The result is ignored, because `mlockall` reports an error later if the soft limit is too low.
    // SAFETY: the limit is initialized, and only read.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
    Some(limit.rlim_max).filter(|max| *max != libc::RLIM_INFINITY)
}

fn may_ignore_limits(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_some_and(|bits| bits & CAP_IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_counts_unless_it_may_be_ignored() {
        assert!(check(None, false).is_ok() && check(Some(8 << 20), true).is_ok());
        let refused = check(Some(8 << 20), false).unwrap_err().to_string();
        assert!(
            refused.contains("may lock only 8388608 bytes") && refused.contains("LimitMEMLOCK"),
            "{refused}"
        );
        assert!(may_ignore_limits("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!may_ignore_limits("CapEff:\t0000000000000000\n") && !may_ignore_limits(""));
    }
}
