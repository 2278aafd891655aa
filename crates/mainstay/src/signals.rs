//! Receives the signals that a member or the console handles: SIGINT and SIGTERM, which end it, and SIGUSR1
//! and SIGUSR2, which change the log level. The signals are blocked in all threads, and the main thread waits
//! for them.

use std::time::Duration;

use telemetry::logging::{Level, Logger};

/// The handled signals: two that end the process, and two that change the log level.
const TAKEN: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

fn taken() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, which sigemptyset initializes; the signal numbers are valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in TAKEN {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Blocks the signals on this thread and on all threads that it starts later, so that only [`wait`] receives
/// them.
pub fn block() {
    let set = taken();
    // SAFETY: the set is initialized; the old mask is not requested.
    let outcome = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    assert_eq!(outcome, 0, "SIG_BLOCK and the set are valid");
}

/// Waits for a signal that ends the member, and returns it. Returns `None` after the time `patience`, or
/// earlier if a signal has changed the log level.
pub fn wait(patience: Duration, logger: &Logger) -> Option<i32> {
    let set = taken();
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(patience.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(patience.subsec_nanos() as i32),
    };
    // SAFETY: set and timeout are initialized; no details of the signal are requested.
    let signal = unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &timeout) };
    match signal {
        libc::SIGUSR1 => {
            logger.set_level(Some(Level::Debug));
            logger.info("received SIGUSR1: logging all lines until SIGUSR2", &[]);
            None
        }
        libc::SIGUSR2 => {
            logger.info("received SIGUSR2: logging at --log-level again", &[]);
            logger.set_level(None);
            None
        }
        signal => (signal > 0).then_some(signal),
    }
}

/// Returns the name of an ending signal, as Go prints it.
pub fn name(signal: i32) -> &'static str {
    if signal == libc::SIGINT { "interrupt" } else { "terminated" }
}

/// Ends the process by raising this signal with its default action, as etcd does, so that the parent process
/// sees which signal ended the process.
pub fn die_by(signal: i32) -> ! {
    let set = taken();
    // SAFETY: the default action is restored and the signal unblocked before it is raised; all arguments are
    // valid.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}
