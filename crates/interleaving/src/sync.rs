//! Provides the types of `loom` under the names that the included files use.

use std::time::Duration;

use loom::sync::Notify;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicUsize, Ordering, fence};
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};

/// A thread that can be woken from [`park_timeout`]. It is used in place of the thread type of `loom`, whose
/// wake-ups may also end a `join`.
#[derive(Clone)]
pub(crate) struct Thread(Arc<Notify>);

loom::thread_local! {
    static SLEEP: Arc<Notify> = Arc::new(Notify::new());
}

/// Returns the calling thread.
pub(crate) fn current() -> Thread {
    Thread(SLEEP.with(Arc::clone))
}

impl Thread {
    pub(crate) fn unpark(&self) {
        self.0.notify();
    }
}

/// Sleeps until the thread is woken, and ignores the timeout: the model has no time. A thread that is not
/// woken sleeps forever, which the model reports.
pub(crate) fn park_timeout(_: Duration) {
    let Thread(sleep) = current();
    sleep.wait();
}
