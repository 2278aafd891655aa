//! Sets up, and checks, what the machine provides to isolate members: network and mount namespaces, separate
//! file systems, and time namespaces.

use std::ffi::CString;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::ClockOffset;

/// Runs a system command. If it fails, the error contains what it has written to standard error.
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

/// Moves the calling thread into a new mount namespace and, if requested, a new network namespace. Threads
/// and processes that it starts later are in these namespaces too. Interfaces, routes and mounts made there
/// are invisible from outside. They disappear with the last of these processes, however it ends.
///
/// Must be called before the program has a second thread.
///
/// # Errors
/// Returns an error if the operating system refuses this, because the program does not run as root, or a
/// container restricts it.
pub fn enter(with_network: bool) -> io::Result<()> {
    let what = if with_network { libc::CLONE_NEWNET | libc::CLONE_NEWNS } else { libc::CLONE_NEWNS };
    // SAFETY: this system call accesses no memory of the process. It only changes the namespaces of this
    // thread.
    if unsafe { libc::unshare(what) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mount = |kind: Option<&str>, target: &str, flags: libc::c_ulong| -> io::Result<()> {
        let kind = CString::new(kind.unwrap_or("none"))?;
        let target = CString::new(target)?;
        let (source, none) = (c"mainstay-torture", std::ptr::null());
        // SAFETY: all strings end with a zero byte and live until the call returns. These kinds of mounts
        // need no data.
        if unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, none) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // Make the root mount private, so that later mounts do not appear outside of this namespace.
    mount(None, "/", libc::MS_REC | libc::MS_PRIVATE)?;
    if !with_network {
        return Ok(());
    }
    std::fs::create_dir_all("/run/netns")?;
    mount(Some("tmpfs"), "/run/netns", 0)?;
    system("ip", &["link", "set", "lo", "up"])
}

/// Checks that processes can be started in a time namespace with a shifted clock.
///
/// # Errors
/// Returns an error that says why this is not possible.
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

/// Checks that a file system can be created, mounted and frozen in this directory.
///
/// # Errors
/// Returns an error that says why this is not possible.
pub fn probe_disk(dir: &Path) -> io::Result<()> {
    const PROBE_BYTES: u64 = 32 << 20;
    let disk = crate::small_disk::SmallDisk::make(dir, "probe", PROBE_BYTES)?;
    disk.freeze()?;
    disk.thaw()?;
    disk.remove()
}
