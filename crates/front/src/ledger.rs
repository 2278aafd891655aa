use std::cell::{Cell, RefCell};
use std::task::Waker;

/// Counts bytes that are queued in the transport and not yet handed to the socket.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    queued: Cell<usize>,
    /// Bytes that ever left the queue: it moves exactly when there is progress.
    moved: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

impl Ledger {
    pub(crate) fn queued(&self) -> usize {
        self.queued.get()
    }

    pub(crate) fn moved(&self) -> u64 {
        self.moved.get()
    }

    pub(crate) fn charge(&self, n: usize) {
        self.queued.set(self.queued.get() + n);
    }

    pub(crate) fn release(&self, n: usize) {
        let queued = self.queued.get();
        assert!(n <= queued, "released {n} of {queued} queued bytes");
        self.queued.set(queued - n);
        self.moved.set(self.moved.get() + n as u64);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Wakes this one task at the next release, or [`Ledger::wake`].
    pub(crate) fn wake_on_release(&self, waker: &Waker) {
        let mut slot = self.waker.borrow_mut();
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}
