//! Runs a member's process in its own network namespace and with its own clock, and kills it when this
//! program ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Interval between two checks whether a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Offset of a process's monotonic and boot clocks from those of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset {
    /// Offset in seconds. If it is positive, the process's clocks are ahead.
    pub seconds: i64,
}

/// Makes the command start its process in a time namespace with this clock offset.
pub(crate) fn shift_clock(command: &mut Command, offset: ClockOffset) {
    let line = format!("monotonic {0} 0\nboottime {0} 0\n", offset.seconds);
    let shift = move || {
        // SAFETY: the call takes no pointers, and this process has only one thread. The next exec enters the
        // new namespace.
        if unsafe { libc::unshare(CLONE_NEWTIME) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the path ends with a zero byte, and the closure owns `line`. The functions open, write and
        // close may be called between fork and exec.
        let written = unsafe {
            let file = libc::open(c"/proc/self/timens_offsets".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file < 0 {
                return Err(io::Error::last_os_error());
            }
            let written = libc::write(file, line.as_ptr().cast(), line.len());
            libc::close(file);
            written
        };
        if usize::try_from(written).is_ok_and(|written| written == line.len()) {
            return Ok(());
        }
        Err(io::Error::last_os_error())
    };
    // SAFETY: between fork and exec, the closure makes only system calls and allocates nothing.
    unsafe { command.pre_exec(shift) };
}

/// Value of the constant of this name in `linux/sched.h`.
const CLONE_NEWTIME: libc::c_int = 0x80;

/// Network namespace and clock for a process.
pub struct Place<'a> {
    /// Network namespace; `None` for the namespace of this program.
    pub network: Option<&'a OwnedFd>,
    /// Clock offset; `None` for the machine's clocks.
    pub clock: Option<ClockOffset>,
}

/// A child process. It is killed on drop.
pub struct Process {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts the command, and appends its output and errors to the log. The kernel kills the process when
    /// the calling thread ends.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn start(mut command: Command, place: &Place<'_>, log: &File) -> io::Result<Process> {
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        // Give the process its own group, so that a signal from the terminal reaches only this program. The
        // program then ends the process itself.
        command.process_group(0);
        if let Some(network) = place.network {
            let network = network.as_raw_fd();
            let enter = move || {
                // SAFETY: the parent keeps the descriptor open until this child has executed its program.
                if unsafe { libc::setns(network, libc::CLONE_NEWNET) } != 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            };
            // SAFETY: between fork and exec, the closure makes only one system call.
            unsafe { command.pre_exec(enter) };
        }
        if let Some(clock) = place.clock {
            shift_clock(&mut command, clock);
        }
        let parent = std::process::id();
        let bind = move || {
            // SAFETY: plain system calls without pointers.
            let bound = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } == 0;
            if !bound {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: a plain system call without pointers. The check is needed because the parent may have
            // ended before prctl took effect; in this case no signal would come.
            if unsafe { libc::getppid() }.unsigned_abs() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        };
        // SAFETY: between fork and exec, the closure makes only system calls, and its errors do not allocate.
        unsafe { command.pre_exec(bind) };
        Ok(Process { child: command.spawn()?, ended: None })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process. Does nothing if the process has ended.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn signal(&mut self, signal: libc::c_int) -> io::Result<()> {
        if self.ended()?.is_some() {
            return Ok(());
        }
        let Ok(id) = libc::pid_t::try_from(self.id()) else { return Err(io::ErrorKind::InvalidInput.into()) };
        // SAFETY: the id belongs to a child that has not been waited for yet, so no other process can have
        // this id.
        if unsafe { libc::kill(id, signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Returns the exit status; `None` while the process is running.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Waits until the process has ended, and returns its exit status.
    ///
    /// # Errors
    /// Returns `TimedOut` if the process is still running after `patience`, or the error of the operating
    /// system.
    pub fn wait(&mut self, patience: Duration) -> io::Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("the process did not end within {} s", patience.as_secs()),
                ));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Kills the process and waits until it has ended, because its files and ports may be in use until then.
    /// Returns its exit status.
    ///
    /// # Errors
    /// Returns `TimedOut` if the process is still running after `patience`, or the error of the operating
    /// system.
    pub fn kill(&mut self, patience: Duration) -> io::Result<ExitStatus> {
        self.signal(libc::SIGKILL)?;
        self.wait(patience)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ignore an error: killing fails only if the process has ended already.
        let _ = self.child.kill();
        // Limit the wait: a process whose disk is frozen cannot end, and the caller possibly thaws the disk
        // only after this drop.
        if let Err(error) = self.wait(Duration::from_secs(10)) {
            eprintln!("process {}: {error}", self.id());
        }
    }
}

/// Returns an exit status as text.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
