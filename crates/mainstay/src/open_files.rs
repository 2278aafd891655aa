//! Raises the limit on open files, since each connection needs a file descriptor.

/// Raises the soft limit to the hard limit, as the Go runtime does. Service managers usually set a soft limit
/// of only 1024, for programs that still use `select`.
pub fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is initialized, and valid for the call to write to.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 || limit.rlim_cur >= limit.rlim_max {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    // The result is ignored: with the old limit the member works too, but with fewer connections.
    // SAFETY: the limit is initialized, and only read.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
}
