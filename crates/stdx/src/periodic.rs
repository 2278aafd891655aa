//! A thread that repeats a task at an interval: [`Periodic`].

use std::io;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time of the first run of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstRun {
    /// As soon as the thread runs.
    AtOnce,
    /// One interval after that.
    AfterInterval,
}

/// A thread that repeats a task. Dropping this ends the thread, and waits until it has finished its current run.
#[derive(Debug)]
pub struct Periodic {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Periodic {
    /// Starts the thread. `interval` is the time between the end of a run and the beginning of the next one.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread cannot be started.
    pub fn start(
        name: &str,
        interval: Duration,
        first: FirstRun,
        mut task: impl FnMut() + Send + 'static,
    ) -> io::Result<Periodic> {
        let (stop, stopped) = sync_channel::<()>(0);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            if first == FirstRun::AtOnce {
                task();
            }
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                task();
            }
        })?;
        Ok(Periodic { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The result is ignored: if the thread has panicked, the panic hook has already reported that.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{TryRecvError, channel};

    #[test]
    fn a_task_is_repeated_until_the_handle_is_dropped() {
        let (ran, runs) = channel();
        let task = move || ran.send(()).expect("the test waits");
        let periodic =
            Periodic::start("p", Duration::from_millis(1), FirstRun::AtOnce, task).expect("a thread");
        for _ in 0..3 {
            runs.recv().expect("it runs");
        }
        drop(periodic);
        while runs.try_recv().is_ok() {}
        assert_eq!(runs.try_recv(), Err(TryRecvError::Disconnected), "the thread has ended");
    }

    #[test]
    fn a_task_that_waits_for_its_interval_first_does_not_run_before() {
        let (ran, runs) = channel();
        let task = move || ran.send(()).expect("the test waits");
        drop(Periodic::start("p", Duration::MAX, FirstRun::AfterInterval, task).expect("a thread"));
        assert_eq!(runs.try_recv(), Err(TryRecvError::Disconnected));
    }
}
