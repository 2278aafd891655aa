//! [`Sessions`]: the TLS connections that are open, and whether their other ends would still be let in.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};

use tls::{ClientTls, Refusal, ServerTls, Session};

use crate::places::Guest;

/// All TLS connections of the peer thread.
#[derive(Default)]
pub(crate) struct Sessions {
    open: RefCell<Vec<Weak<Watched>>>,
}

/// Which end this member is, and what says who may be at the other.
pub(crate) enum Side {
    /// A connection that was accepted, and its place.
    Accepted(ServerTls, Rc<Guest>),
    /// A connection that this member has opened.
    Dialed(ClientTls),
}

/// One TLS connection.
pub(crate) struct Watched {
    side: Side,
    session: Session,
    /// Address or name of the other end, for the log.
    remote: String,
    ended: Cell<bool>,
    /// The task that reads and writes the connection.
    waker: RefCell<Option<Waker>>,
}

impl Watched {
    /// Keeps the task that is to be woken when the connection must end.
    ///
    /// # Errors
    ///
    /// It must end now.
    pub(crate) fn check(&self, cx: &Context<'_>) -> io::Result<()> {
        if self.ended.get() {
            let text = "the certificate of the other end is not good any more";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Ok(())
    }

    fn still_valid(&self) -> Result<(), Refusal> {
        match &self.side {
            Side::Accepted(tls, _) => tls.still_valid(&self.session),
            Side::Dialed(tls) => tls.still_valid(&self.session),
        }
    }

    fn end(&self) {
        self.ended.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
        if let Side::Accepted(_, guest) = &self.side {
            guest.cut.notify_one();
        }
    }
}

impl Sessions {
    /// Watches a connection whose other end was let in.
    pub(crate) fn watch(&self, side: Side, session: Session, remote: String) -> Rc<Watched> {
        let watched = Watched { side, session, remote, ended: Cell::new(false), waker: RefCell::default() };
        let watched = Rc::new(watched);
        let mut open = self.open.borrow_mut();
        // Those that are closed are forgotten now and then, so that the list is at most twice as long as it has to be.
        if open.len() == open.capacity() {
            open.retain(|one| one.strong_count() > 0);
        }
        open.push(Rc::downgrade(&watched));
        watched
    }

    /// Ends those whose other ends would not be let in now; `say` hears of each: its other end, and why.
    pub(crate) fn end_invalid(&self, mut say: impl FnMut(&str, &Refusal)) {
        self.open.borrow_mut().retain(|one| match one.upgrade() {
            Some(one) if !one.ended.get() => {
                if let Err(refusal) = one.still_valid() {
                    one.end();
                    say(&one.remote, &refusal);
                }
                true
            }
            Some(_) => true,
            None => false,
        });
    }
}
