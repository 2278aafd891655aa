//! Compacts the store at intervals while a load runs (`--compact-interval`).

use std::time::Duration;

use api::Rpc;
use cli::Failure;

use crate::loadgen::ask::Asker;
use crate::loadgen::calls::Target;
use crate::loadgen::wire::Fields;

/// A thread that compacts the store at intervals, until it is stopped or a request of it fails.
pub struct Compactor {
    stop: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<Result<(), crate::loadgen::Error>>,
}

impl Compactor {
    /// Connects to the server, and starts a thread. After each interval, the thread compacts at `delta`
    /// revisions below the current revision.
    pub fn start(target: Target, interval: Duration, delta: i64) -> Result<Self, Failure> {
        let mut asker = Asker::new(target).map_err(Failure::error)?;
        let (stop, stopped) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
                let answer = asker.ask(Rpc::KvRange, |message| {
                    message.bytes(1, b"foo");
                })?;
                let revision = Fields(Fields(&answer).bytes(1)).number(3) as i64;
                asker.ask(Rpc::KvCompact, |message| {
                    message.int(1, revision.saturating_sub(delta).max(0));
                })?;
            }
            Ok(())
        });
        Ok(Self { stop, thread })
    }

    /// Stops the thread. Returns the error of a compaction, if one failed.
    pub fn stop(self) -> Result<(), Failure> {
        drop(self.stop);
        match self.thread.join() {
            Ok(result) => result.map_err(|error| Failure::error(format!("compaction: {error}"))),
            Err(_) => Err(Failure::error("compaction: its thread is gone")),
        }
    }
}
