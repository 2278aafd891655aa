//! Checks and sets up what this machine allows: network and mount namespaces, separate file systems, time
//! namespaces.

use std::ffi::CString;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::ClockOffset;

/// Runs a system command; its standard error becomes the error text.
pub(crate) fn system(program: &str, words: &[&str]) -> io::Result<()> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::other(format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} {}: {}", words.join(" "), said.trim())))
}

/// Moves the calling thread into a private mount namespace and, if requested, a private network namespace,
/// together with all threads and processes that it starts later. Interfaces, routes and mounts made there are
/// invisible from outside, and disappear with the last of these processes, however it ends.
///
/// Must be called before the program has a second thread.
///
/// # Errors
/// Returns an error if the operating system refuses, because the program does not run as root or runs in a
/// container.
pub fn enter(with_network: bool) -> io::Result<()> {
    let what = if with_network { libc::CLONE_NEWNET | libc::CLONE_NEWNS } else { libc::CLONE_NEWNS };
    // SAFETY: a plain system call, which touches no memory of this program; it only changes the namespaces of
    // this thread.
    if unsafe { libc::unshare(what) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mount = |kind: Option<&str>, target: &str, flags: libc::c_ulong| -> io::Result<()> {
        let kind = CString::new(kind.unwrap_or("none"))?;
        let target = CString::new(target)?;
        let (source, none) = (c"mainstay-torture", std::ptr::null());
        // SAFETY: all strings are terminated and live until the call returns; these kinds of mounts need no data.
        if unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, none) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // The root is made private, so that mounts made later stay in this namespace.
    mount(None, "/", libc::MS_REC | libc::MS_PRIVATE)?;
    if !with_network {
        return Ok(());
    }
    std::fs::create_dir_all("/run/netns")?;
    mount(Some("tmpfs"), "/run/netns", 0)?;
    system("ip", &["link", "set", "lo", "up"])
}

/// Checks that processes can be started with shifted clocks.
///
/// # Errors
/// Returns an error with the reason why they cannot be started.
pub fn probe_clock() -> io::Result<()> {
    const SHIFT_SECONDS: i64 = 100_000_000;
    let uptime = |text: &str| -> Option<f64> { text.split_whitespace().next()?.parse().ok() };
    let here = std::fs::read_to_string("/proc/uptime")?;
    let mut command = Command::new("cat");
    command.arg("/proc/uptime").stdin(Stdio::null());
    crate::process::shift_clock(&mut command, ClockOffset { seconds: SHIFT_SECONDS });
    let there = command.output()?;
    let there = String::from_utf8_lossy(&there.stdout).into_owned();
    match (uptime(&here), uptime(&there)) {
        (Some(here), Some(there)) if there - here > SHIFT_SECONDS as f64 / 2.0 => Ok(()),
        _ => Err(io::Error::other("a process in a new time namespace has the same clock")),
    }
}

/// Checks that a file system can be made and mounted in this directory.
///
/// # Errors
/// Returns an error with the reason why it cannot be mounted.
pub fn probe_disk(dir: &Path) -> io::Result<()> {
    const PROBE_BYTES: u64 = 32 << 20;
    let disk = crate::small_disk::SmallDisk::make(dir, "probe", PROBE_BYTES)?;
    disk.freeze()?;
    disk.thaw()?;
    disk.remove()
}
