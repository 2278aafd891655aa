//! Lowers the priority of threads whose work can wait.

/// Nice values by which [`give_way`] lowers the priority of a thread: among threads that all have work, it gets
/// about a ninth of the time of the others.
const NICER: i32 = 10;
/// Lowest priority of a thread.
const NICE_MAX: i32 = 19;

/// Lowers the priority of the calling thread against the other threads of this machine, for as long as the thread
/// lives. It still uses all processor time that the others leave. Does nothing on systems other than Linux, where
/// threads have no priority of their own.
pub fn give_way() {
    #[cfg(target_os = "linux")]
    {
        // Errors are ignored: a sandbox may forbid it, and the thread works with any priority.
        let nice = rustix::process::getpriority_process(None).unwrap_or(0);
        let _ = rustix::process::setpriority_process(None, (nice + NICER).min(NICE_MAX));
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_gives_way() {
        let nice = || rustix::process::getpriority_process(None).expect("is known");
        let before = nice();
        let lowered = std::thread::spawn(move || {
            give_way();
            nice()
        });
        assert_eq!(lowered.join().expect("ends"), (before + NICER).min(NICE_MAX));
        assert_eq!(nice(), before);
    }
}
