use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use crate::budget::Account;

/// Counts bytes that are held for a connection or a stream. A connection's ledger charges them to its account too.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    queued: Cell<usize>,
    /// Bytes that ever left: it moves exactly when there is progress.
    moved: Cell<u64>,
    waker: RefCell<Option<Waker>>,
    account: Option<Rc<Account>>,
}

impl Ledger {
    /// A ledger whose bytes are charged to this account.
    pub(crate) fn of(account: &Rc<Account>) -> Ledger {
        Ledger { account: Some(account.clone()), ..Ledger::default() }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued.get()
    }

    pub(crate) fn moved(&self) -> u64 {
        self.moved.get()
    }

    pub(crate) fn charge(&self, n: usize) {
        self.queued.set(self.queued.get() + n);
        if let Some(account) = &self.account {
            account.charge(n);
        }
    }

    pub(crate) fn release(&self, n: usize) {
        self.take(n);
        if let Some(account) = &self.account {
            account.release(n);
        }
    }

    /// As [`Ledger::charge`], for bytes that are charged to the budget already.
    pub(crate) fn charge_shared(&self, n: usize) {
        self.queued.set(self.queued.get() + n);
        if let Some(account) = &self.account {
            account.wait_for(n);
        }
    }

    /// Undoes [`Ledger::charge_shared`].
    pub(crate) fn release_shared(&self, n: usize) {
        self.take(n);
        if let Some(account) = &self.account {
            account.waited_for(n);
        }
    }

    fn take(&self, n: usize) {
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

/// Bytes on a ledger until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    ledger: Rc<Ledger>,
    bytes: usize,
}

impl Charge {
    pub(crate) fn new(ledger: &Rc<Ledger>) -> Charge {
        Charge { ledger: ledger.clone(), bytes: 0 }
    }

    pub(crate) fn raise_to(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.ledger.charge(bytes - self.bytes);
            self.bytes = bytes;
        }
    }

    pub(crate) fn clear(&mut self) {
        if self.bytes > 0 {
            self.ledger.release(std::mem::take(&mut self.bytes));
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.clear();
    }
}
