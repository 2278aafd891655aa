//! The machine's time zone, which the standard library does not know.

/// Seconds by which local time is ahead of UTC at a time in seconds since 1970; 0 where the system cannot say.
pub fn ahead_of_utc(seconds: u64) -> i64 {
    let Ok(time) = libc::time_t::try_from(seconds) else { return 0 };
    // SAFETY: `tm` is plain data, for which zeros are valid.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are initialised and live until the call returns; localtime_r keeps neither.
    let known = unsafe { !libc::localtime_r(&raw const time, &raw mut local).is_null() };
    if known { local.tm_gmtoff } else { 0 }
}
