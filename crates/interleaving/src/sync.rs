//! The types of `loom`, under the names that the included files use.

use std::time::Duration;

use loom::sync::Notify;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering, fence};
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};

/// A thread that can be woken. A wake-up of the thread type of `loom` itself may also end a `join`; a wake-up
/// of this type ends only a sleep.
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

/// Sleeps until the thread is woken. The model has no time, so a thread that is not woken sleeps forever, and
/// the model reports this.
pub(crate) fn park_timeout(_: Duration) {
    let Thread(sleep) = current();
    sleep.wait();
}
