//! The thread for the proxy's background tasks, which have connections of their own to the members:
//! registration among the proxies, and ownership of keys.

use std::io;

use front::LocalBoxFuture;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use crate::members::Members;

/// Creates the future of a task, on the thread that drives it.
pub(crate) type Task = Box<dyn FnOnce(Members) -> LocalBoxFuture<()> + Send>;

/// Handle of the running thread. Dropping the handle ends the tasks at their next await point.
#[derive(Debug)]
pub(crate) struct Background {
    /// Dropped to end the thread.
    _running: oneshot::Sender<()>,
}

impl Background {
    /// Starts the thread with these tasks. `members` is called on the thread.
    ///
    /// # Errors
    /// The thread or its runtime cannot be created.
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
                // The sender never sends; the wait ends when the sender is dropped.
                let _ = over.await;
            });
        })?;
        Ok(Background { _running: running })
    }
}
