//! Checks repeatedly whether clients that TLS has admitted would still be admitted, because certificates
//! expire and the files of trusted and revoked certificates change. [`Admissions`] holds the admitted
//! connections of a shard, and checks them in batches.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use slab::Slab;
use tokio::sync::watch;

use crate::Rejection;
use crate::rejections::Rejections;

/// Maximum number of connections that are checked before other tasks of the shard run.
const CHECKED_AT_ONCE: usize = 64;

/// TLS settings and session with which a connection was admitted.
pub(crate) struct Admission {
    pub(crate) tls: tls::ServerTls,
    pub(crate) session: tls::Session,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Records whether an admitted connection may stay open. The connection and the table of its shard share this
/// value.
pub(crate) struct SessionValidity {
    admission: Admission,
    remote: SocketAddr,
    is_over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl SessionValidity {
    /// Returns true if the connection must close.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Wakes the task of `waker` when the connection must close.
    pub(crate) fn wake_when_over(&self, waker: &Waker) {
        let mut slot = self.waker.borrow_mut();
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    /// Resolves when the connection must close.
    pub(crate) fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_over() {
            return Poll::Ready(());
        }
        self.wake_when_over(cx.waker());
        Poll::Pending
    }

    /// Checks whether the client would be admitted now. If not, reports that, and wakes the connection, which
    /// then closes.
    fn check(&self, rejections: &Rejections) {
        if self.is_over() {
            return;
        }
        let Err(refusal) = self.admission.tls.still_valid(&self.admission.session) else { return };
        self.is_over.set(true);
        let rejected = Rejection { was_admitted: true, ..Rejection::new(self.remote, refusal.to_string()) };
        rejections.report(rejected, Instant::now());
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Admitted connections of one shard.
pub(crate) struct Admissions {
    sessions: RefCell<Slab<Rc<SessionValidity>>>,
    rejections: Arc<Rejections>,
}

/// Registration of a connection in the table of its shard's admitted connections. Removes the connection from
/// the table when dropped.
pub(crate) struct Registration {
    admissions: Rc<Admissions>,
    key: usize,
    pub(crate) validity: Rc<SessionValidity>,
}

impl Registration {
    pub(crate) fn new(admissions: &Rc<Admissions>, admission: Admission, remote: SocketAddr) -> Registration {
        let validity = Rc::new(SessionValidity {
            admission,
            remote,
            is_over: Cell::new(false),
            waker: RefCell::new(None),
        });
        let key = admissions.sessions.borrow_mut().insert(validity.clone());
        // Checks the connection once now: if the files were reloaded after the handshake, the shard may have
        // checked its connections before this one was added.
        validity.check(&admissions.rejections);
        Registration { admissions: admissions.clone(), key, validity }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.admissions.sessions.borrow_mut().remove(self.key);
    }
}

impl Admissions {
    /// Creates an empty table. Connections that must close are reported to `rejections`.
    pub(crate) fn new(rejections: Arc<Rejections>) -> Admissions {
        Admissions { sessions: RefCell::new(Slab::new()), rejections }
    }

    /// Checks all connections at intervals of `every` and after each reload of TLS files, until the front is
    /// dropped.
    pub(crate) async fn watch(&self, every: Duration, mut reloads: watch::Receiver<u64>) {
        loop {
            // The outer error is the timeout, which means that the periodic check is due. The inner result is
            // Ok if files were reloaded, and an error if the front was dropped.
            if let Ok(Err(_)) = tokio::time::timeout(every, reloads.changed()).await {
                return;
            }
            let mut from = Some(0);
            while let Some(slot) = from {
                from = self.check_some(slot);
                tokio::task::yield_now().await;
            }
        }
    }

    /// Checks some connections, from slot `from` on. Returns the slot to continue at; `None` after the last
    /// slot.
    fn check_some(&self, from: usize) -> Option<usize> {
        // The connections are copied out of the table, because the checks wake tasks and call back, and the
        // table must not be borrowed meanwhile.
        let (to, some): (usize, Vec<Rc<SessionValidity>>) = {
            let sessions = self.sessions.borrow();
            let to = (from + CHECKED_AT_ONCE).min(sessions.capacity());
            (to, (from..to).filter_map(|key| sessions.get(key).cloned()).collect())
        };
        some.iter().for_each(|validity| validity.check(&self.rejections));
        (to < self.sessions.borrow().capacity()).then_some(to)
    }
}
