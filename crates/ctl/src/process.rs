//! What only the operating system can do for this process: the terminal's echo, and signals that end a command.

use std::sync::OnceLock;

use tokio::sync::watch;

/// The signals that end a command that waits. The last is sent where the terminal goes away, unless `nohup` has it ignored.
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// While this lives, the terminal at standard input does not show what is typed.
pub struct EchoOff {
    before: Option<libc::termios>,
}

impl EchoOff {
    /// Switches the echo off, where standard input is a terminal.
    pub fn new() -> EchoOff {
        // SAFETY: termios is plain data; tcgetattr fills it, or fails, which is asked.
        let before = unsafe {
            let mut now: libc::termios = std::mem::zeroed();
            (libc::tcgetattr(libc::STDIN_FILENO, &mut now) == 0).then_some(now)
        };
        if let Some(mut quiet) = before {
            quiet.c_lflag &= !libc::ECHO;
            // SAFETY: the attributes were read from this terminal.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &quiet) };
        }
        EchoOff { before }
    }
}

impl Default for EchoOff {
    fn default() -> EchoOff {
        EchoOff::new()
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the attributes were read from this terminal.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, before) };
        }
    }
}

/// Tells of SIGINT, SIGTERM and SIGHUP, which from now on do not end the process by themselves.
#[derive(Clone)]
pub struct Interruption(watch::Receiver<bool>);

impl Interruption {
    /// Takes the signals over, once for the whole process. Must run before other threads are started, since those
    /// have a mask of their own.
    pub fn of_process() -> Interruption {
        static ONLY: OnceLock<watch::Receiver<bool>> = OnceLock::new();
        Interruption(
            ONLY.get_or_init(|| {
                let set = ending();
                // SAFETY: the set is initialised; the old mask is not asked for.
                let outcome = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
                assert_eq!(outcome, 0, "SIG_BLOCK and the set are valid");
                let (sender, receiver) = watch::channel(false);
                std::thread::spawn(move || {
                    let mut signal = 0;
                    // SAFETY: the set is initialised, and `signal` outlives the call.
                    while unsafe { libc::sigwait(&set, &mut signal) } == 0 {
                        if sender.send(true).is_err() {
                            return;
                        }
                    }
                });
                receiver
            })
            .clone(),
        )
    }

    /// One that a test sends on.
    pub fn from_channel(receiver: watch::Receiver<bool>) -> Interruption {
        Interruption(receiver)
    }

    /// Waits for a signal; one that came before counts.
    pub async fn came(&mut self) {
        if self.0.wait_for(|came| *came).await.is_err() {
            // All senders are gone: nothing will come.
            std::future::pending::<()>().await;
        }
    }

    /// Waits for another signal than the one that [`Interruption::came`] has told of.
    pub async fn came_again(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns true if the process was started with this signal ignored.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: sigaction is plain data; with no new action, the call fills in the present one, or fails, which is asked.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}

fn ending() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, which sigemptyset initialises; the signal numbers are valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        // One that is ignored would be delivered once it is blocked.
        for signal in ENDING.into_iter().filter(|signal| *signal != libc::SIGHUP || !is_ignored(*signal)) {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}
