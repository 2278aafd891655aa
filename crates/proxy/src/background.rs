//! The thread for what the proxy does by itself, with connections of its own to the members: its registration among proxies,
//! and its ownership of keys.

use std::io;

use front::LocalBoxFuture;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use crate::members::Members;

/// Makes the future of a task, on the thread that drives it.
pub(crate) type Task = Box<dyn FnOnce(Members) -> LocalBoxFuture<()> + Send>;

/// The running thread. Dropping it ends the tasks at their next wait.
#[derive(Debug)]
pub(crate) struct Background {
    /// Dropped to end the thread.
    _running: oneshot::Sender<()>,
}

impl Background {
    /// Starts the thread with these tasks. `members` is called on it.
    ///
    /// # Errors
    /// The thread or its runtime cannot be made.
    pub(crate) fn start(
        members: impl FnOnce() -> Members + Send + 'static,
        tasks: Vec<Task>,
    ) -> io::Result<Background> {
        let (running, over) = oneshot::channel::<()>();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("background".to_owned()).spawn(move || {
            LocalSet::new().block_on(&runtime, async move {
                let members = members();
                for task in tasks {
                    spawn_local(task(members.clone()));
                }
                // The sender is dropped, never used.
                let _ = over.await;
            });
        })?;
        Ok(Background { _running: running })
    }
}
