//! The limit on open files; each connection takes one.

/// Raises the soft limit to the hard limit, as every Go program does: service managers leave the soft limit
/// at 1024 for programs that still use `select`.
pub fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is initialised, and valid for the call to write to.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 || limit.rlim_cur >= limit.rlim_max {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    // If this is refused, the member serves as many connections as the old limit allows.
    // SAFETY: the limit is initialised, and only read.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
}
