//! The modelled types, under the names that the files taken in use.

use std::time::Duration;

use loom::sync::Notify;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering, fence};
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};

/// A thread that can be woken. `loom` has its own, whose wake-up may also end a `join`; this one only ends a sleep.
#[derive(Clone)]
pub(crate) struct Thread(Arc<Notify>);

loom::thread_local! {
    static SLEEP: Arc<Notify> = Arc::new(Notify::new());
}

/// The calling thread.
pub(crate) fn current() -> Thread {
    Thread(SLEEP.with(Arc::clone))
}

impl Thread {
    pub(crate) fn unpark(&self) {
        self.0.notify();
    }
}

/// There is no time: a thread that is not woken sleeps for ever, and the model says so.
pub(crate) fn park_timeout(_: Duration) {
    let Thread(sleep) = current();
    sleep.wait();
}
