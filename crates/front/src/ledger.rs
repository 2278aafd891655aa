//! Reserves memory for data that is held for a client. A [`Charge`] is a reservation: it adds bytes to a
//! counter until it is dropped. The counter is either a [`Ledger`], for the queued messages of one call
//! without an HTTP/2 stream, or the number of request bytes in the connection's memory account. In both cases
//! the bytes are also reserved in that account, and so in the memory budget of all clients. This module does
//! not know sockets or frames.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use accounting::Account;

/// Bytes reserved for a call in flight in addition to its message: for its future, stream and metadata.
pub(crate) const CALL_BYTES: usize = 4 * 1024;
/// Bytes of metadata that [`CALL_BYTES`] includes.
pub(crate) const METADATA_BYTES: usize = 1024;

/// Returns the bytes that are reserved for a call with `metadata_bytes` bytes of metadata, in addition to its
/// message.
pub(crate) fn call_bytes(metadata_bytes: usize) -> usize {
    CALL_BYTES + metadata_bytes.saturating_sub(METADATA_BYTES)
}

/// Counts the bytes of the messages that are queued for the client of one call without an HTTP/2 stream. The
/// same bytes are also reserved in the connection's memory account.
#[derive(Debug)]
pub(crate) struct Ledger {
    queued: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    account: Rc<Account>,
}

impl Ledger {
    /// Creates a ledger without queued bytes. Bytes that a [`Charge`] adds to it are also reserved in
    /// `account`, the memory account of the connection.
    pub(crate) fn of(account: &Rc<Account>) -> Ledger {
        Ledger { queued: Cell::new(0), waker: RefCell::new(None), account: account.clone() }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued.get()
    }

    /// Wakes the task of `waker` at the next release or at [`Ledger::wake`]. A ledger keeps one waker only.
    pub(crate) fn wake_on_release(&self, waker: &Waker) {
        let mut slot = self.waker.borrow_mut();
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    pub(crate) fn wake(&self) {
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Counter to which a [`Charge`] can add bytes.
pub(crate) trait Count {
    fn charge(&self, n: usize);
    fn release(&self, n: usize);
}

impl Count for Ledger {
    fn charge(&self, n: usize) {
        self.queued.set(self.queued.get() + n);
        self.account.charge(n);
    }

    fn release(&self, n: usize) {
        let queued = self.queued.get();
        assert!(n <= queued, "released {n} of {queued} queued bytes");
        self.queued.set(queued - n);
        self.account.release(n);
        self.wake();
    }
}

/// Request bytes have no [`Ledger`]: the connection's account itself counts them
/// ([`Account::requests_bytes`]).
impl Count for Account {
    fn charge(&self, n: usize) {
        self.charge_request(n);
    }

    fn release(&self, n: usize) {
        self.release_request(n);
    }
}

/// Reservation of bytes, which lasts until this value is dropped: on a [`Ledger`], or by default as request
/// bytes of an account.
#[derive(Debug)]
pub(crate) struct Charge<L: Count = Account> {
    ledger: Rc<L>,
    bytes: usize,
}

impl<L: Count> Charge<L> {
    pub(crate) fn new(ledger: &Rc<L>) -> Charge<L> {
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

impl<L: Count> Drop for Charge<L> {
    fn drop(&mut self) {
        self.clear();
    }
}
