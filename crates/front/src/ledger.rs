//! Counting of the bytes that are held for a connection or a stream. [`Ledger`] is one count; a [`Charge`] holds bytes on
//! it until it is dropped. It knows no sockets and frames; the connection's ledger also charges its account in `budget`.

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
    /// Messages that wait, and the most that ever did.
    messages: Cell<usize>,
    messages_max: Cell<usize>,
}

/// Memory that the transport's queue takes for a message besides its bytes. It never gives that back.
const MESSAGE_BYTES: usize = 512;
/// Messages for which a connection is charged anyway.
const MESSAGES_FREE: usize = 64;

impl Ledger {
    /// A ledger whose bytes are charged to this account.
    pub(crate) fn of(account: &Rc<Account>) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.account = Some(account.clone());
        ledger
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

    /// A message joins those that wait. Their places stay with the connection and are charged as long.
    pub(crate) fn message_waits(&self) {
        let messages = self.messages.get() + 1;
        self.messages.set(messages);
        if messages > self.messages_max.get() {
            self.messages_max.set(messages);
            if messages > MESSAGES_FREE
                && let Some(account) = &self.account
            {
                account.charge(MESSAGE_BYTES);
            }
        }
    }

    /// A message has gone.
    pub(crate) fn message_went(&self) {
        self.messages.set(self.messages.get() - 1);
    }

    /// Charges bytes as [`Ledger::charge`] does, if they are charged to the budget already.
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

impl Drop for Ledger {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.release(self.messages_max.get().saturating_sub(MESSAGES_FREE) * MESSAGE_BYTES);
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

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        self.raise_to(bytes);
        if bytes < self.bytes {
            self.ledger.release(self.bytes - bytes);
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
