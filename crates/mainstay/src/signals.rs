//! SIGINT and SIGTERM, taken by the main thread one at a time.

use std::time::Duration;

/// The signals that end a member.
const ENDING: [libc::c_int; 2] = [libc::SIGINT, libc::SIGTERM];

fn ending() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, which sigemptyset initialises; the signal numbers are valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in ENDING {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Keeps the ending signals for [`wait`], on this thread and those it starts.
pub fn block() {
    let set = ending();
    // SAFETY: the set is initialised; the old mask is not asked for.
    let outcome = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    assert_eq!(outcome, 0, "SIG_BLOCK and the set are valid");
}

/// The signal that came, or `None` after `patience`.
pub fn wait(patience: Duration) -> Option<i32> {
    let set = ending();
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(patience.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(patience.subsec_nanos() as i32),
    };
    // SAFETY: set and timeout are initialised; no details of the signal are asked for.
    let signal = unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &timeout) };
    (signal > 0).then_some(signal)
}

/// The name of an ending signal, as Go prints it.
pub fn name(signal: i32) -> &'static str {
    if signal == libc::SIGINT { "interrupt" } else { "terminated" }
}

/// Ends the process by this signal, as etcd does, so that its parent process sees why it ended.
pub fn die_by(signal: i32) -> ! {
    let set = ending();
    // SAFETY: the default action is restored and the signal unblocked before it is raised; all arguments are valid.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}
