//! Calls the operating system to switch off the terminal's echo, and to handle the signals that end a
//! command.

use std::sync::OnceLock;

use tokio::sync::watch;

/// Signals that end a waiting command. SIGHUP, which is sent when the terminal closes, is left out if the
/// process ignores it, as it does under `nohup`.
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// While this value exists, the terminal at standard input does not show typed characters.
pub struct EchoOff {
    before: Option<libc::termios>,
}

impl EchoOff {
    /// Switches the echo off, if standard input is a terminal.
    pub fn new() -> EchoOff {
        // SAFETY: termios is plain data, for which zeros are valid; `now` outlives the call, which fills it
        // or fails.
        let before = unsafe {
            let mut now: libc::termios = std::mem::zeroed();
            (libc::tcgetattr(libc::STDIN_FILENO, &mut now) == 0).then_some(now)
        };
        if let Some(mut quiet) = before {
            quiet.c_lflag &= !libc::ECHO;
            // SAFETY: `quiet` is initialized, and outlives the call, which only reads it.
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
            // SAFETY: `before` is initialized, and outlives the call, which only reads it.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, before) };
        }
    }
}

/// Reports SIGINT, SIGTERM and SIGHUP to a command. After a call of [`Interruption::of_process`], these
/// signals no longer end the process.
#[derive(Clone)]
pub struct Interruption(watch::Receiver<bool>);

impl Interruption {
    /// Blocks the signals and starts a thread that waits for them; later calls return the same interruption.
    /// Must be called before other threads start: each thread has its own signal mask, which it inherits when
    /// it starts, and a signal would end the process if any thread did not block it.
    pub fn of_process() -> Interruption {
        static ONLY: OnceLock<watch::Receiver<bool>> = OnceLock::new();
        Interruption(
            ONLY.get_or_init(|| {
                let set = ending();
                // SAFETY: the set is initialized; the old mask is not requested.
                let outcome = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
                assert_eq!(outcome, 0, "SIG_BLOCK and the set are valid");
                let (sender, receiver) = watch::channel(false);
                std::thread::spawn(move || {
                    let mut signal = 0;
                    // SAFETY: the set is initialized, and `signal` outlives the call.
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

    /// Creates an interruption that a test triggers through this channel.
    pub fn from_channel(receiver: watch::Receiver<bool>) -> Interruption {
        Interruption(receiver)
    }

    /// Waits for a signal. Returns immediately if a signal has already arrived.
    pub async fn came(&mut self) {
        if self.0.wait_for(|came| *came).await.is_err() {
            // The sender was dropped, so no signal can arrive any more. Wait without end, because returning
            // would mean that a signal has arrived.
            std::future::pending::<()>().await;
        }
    }

    /// Waits for another signal after the one that [`Interruption::came`] has reported.
    pub async fn came_again(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns true if the process was started with this signal ignored.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: sigaction is plain data, for which zeros are valid; `now` outlives the call, which stores the
    // current action in it or fails.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}

fn ending() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, which sigemptyset initializes; the signal numbers are valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        // Leave out SIGHUP if the process ignores it: `sigwait` would return a blocked signal even if it is
        // ignored, and so end a command that was started with `nohup`.
        for signal in ENDING.into_iter().filter(|signal| *signal != libc::SIGHUP || !is_ignored(*signal)) {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}
