//! Gets the machine's time zone, which the standard library does not provide, for the times in the log.

/// Returns the offset of local time from UTC at a given Unix time in seconds. The offset is in seconds and
/// positive east of Greenwich; it is 0 if the system does not know the time zone.
pub fn ahead_of_utc(seconds: u64) -> i64 {
    let Ok(time) = libc::time_t::try_from(seconds) else { return 0 };
    // SAFETY: `tm` is plain data, for which zeros are valid.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: `time` and `local` are initialized and live until the call returns; localtime_r keeps neither
    // pointer.
    let known = unsafe { !libc::localtime_r(&raw const time, &raw mut local).is_null() };
    if known { local.tm_gmtoff } else { 0 }
}
