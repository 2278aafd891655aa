//! The thread that runs the proxy's background tasks: registering the proxy where other proxies find it
//! (`resolver`), and keeping the ownership of keys (`leasing`). The thread has its own connections to the
//! members.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;

use front::LocalBoxFuture;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use crate::members::Members;

/// Function that creates the future of a background task, called on the thread that runs the task.
pub(crate) type Task = Box<dyn FnOnce(Members) -> LocalBoxFuture<()> + Send>;

/// Handle of the running thread. Dropping the handle ends the tasks at their next await point.
#[derive(Debug)]
pub(crate) struct Background {
    /// Dropped with the handle, which ends the thread.
    _running: oneshot::Sender<()>,
}

impl Background {
    /// Starts a thread that runs these tasks. `members` is called on that thread to create its connections.
    ///
    /// # Errors
    /// Returns an error if the thread or its runtime cannot be created.
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
                // Nothing is ever sent; the wait ends when the sender is dropped.
                let _ = over.await;
            });
        })?;
        Ok(Background { _running: running })
    }
}

/// Returns a random share of one, for pauses that must not end at the same time in all proxies.
pub(crate) fn random_share() -> f64 {
    (RandomState::new().build_hasher().finish() % 1_000) as f64 / 1_000.0
}
