//! Holds the state of a browser's connection that its requests and the other connections use:
//! [`ConnectionState`].

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::task::{Context, Waker};

use tokio::time::Instant;

/// State of a browser's connection. A connection has at most one request in flight.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    /// Address of the browser; `None` if it came through a Unix socket.
    pub(crate) address: Option<IpAddr>,
    has_request: Cell<bool>,
    /// Time until which the body of the current request must arrive; `None` if it has arrived or there is no
    /// request.
    body_until: Cell<Option<Instant>>,
    is_evicted: Cell<bool>,
    /// Waker of the task that serves this connection.
    waker: RefCell<Option<Waker>>,
}

impl ConnectionState {
    pub(crate) fn of(address: Option<IpAddr>) -> ConnectionState {
        ConnectionState { address, ..ConnectionState::default() }
    }

    /// Returns true while a request is in flight: from the arrival of its headers to the end of its response.
    pub(crate) fn has_request(&self) -> bool {
        self.has_request.get()
    }

    /// Records that a request begins. Its body must arrive before `body_until`.
    pub(crate) fn begin(&self, body_until: Instant) {
        self.has_request.set(true);
        self.body_until.set(Some(body_until));
    }

    /// Records that the response to the request has ended.
    pub(crate) fn end(&self) {
        self.has_request.set(false);
        self.body_until.set(None);
    }

    /// Returns the time until which the body of the current request must arrive; `None` if it has arrived or
    /// there is no request.
    pub(crate) fn body_until(&self) -> Option<Instant> {
        self.body_until.get()
    }

    /// Records that the whole body of the request has arrived.
    pub(crate) fn body_arrived(&self) {
        if self.body_until.take().is_some() {
            self.wake();
        }
    }

    /// Tells the connection to close, so that another one can use its slot.
    pub(crate) fn evict(&self) {
        self.is_evicted.set(true);
        self.wake();
    }

    /// Returns true if the connection has been told to close.
    pub(crate) fn is_evicted(&self) -> bool {
        self.is_evicted.get()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Registers the task that serves the connection. It is woken when the body has arrived, or the
    /// connection must close.
    pub(crate) fn wake_on_change(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }
}
