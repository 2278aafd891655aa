//! Raises the limit on open files, because each connection needs a file descriptor.

/// Raises the soft limit to the hard limit, as every Go program does. Service managers set the soft limit to
/// only 1024, for programs that still use `select`.
pub fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is initialised, and valid for the call to write to.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 || limit.rlim_cur >= limit.rlim_max {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    // If the system refuses this, the member serves only as many connections as the old limit allows. SAFETY:
    // the limit is initialised, and only read.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
}
