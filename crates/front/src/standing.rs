//! Revalidation of clients that TLS has admitted: certificates expire, and files change. Every shard checks
//! its own connections, some at a time.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use slab::Slab;
use tokio::sync::watch;

use crate::Rejected;
use crate::shard::ShardState;

/// Maximum number of connections checked before other tasks run.
const LOOKED_AT_ONCE: usize = 64;

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

/// Validity of an admitted connection, registered with its shard.
pub(crate) struct Standing {
    admission: Admission,
    remote: SocketAddr,
    is_over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Standing {
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

    /// Closes the connection if its client would not be admitted now.
    fn look(&self, shard: &ShardState) {
        if self.is_over() {
            return;
        }
        let Err(refusal) = self.admission.tls.still_valid(&self.admission.session) else { return };
        self.is_over.set(true);
        let rejected = Rejected { was_admitted: true, ..Rejected::new(self.remote, refusal.to_string()) };
        shard.rejections.report(rejected, Instant::now());
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Registration of a connection among the admitted ones of its shard; removed when dropped.
pub(crate) struct Admitted {
    shard: Rc<ShardState>,
    key: usize,
    pub(crate) standing: Rc<Standing>,
}

impl Admitted {
    pub(crate) fn new(shard: &Rc<ShardState>, admission: Admission, remote: SocketAddr) -> Admitted {
        let standing =
            Rc::new(Standing { admission, remote, is_over: Cell::new(false), waker: RefCell::new(None) });
        let key = shard.admitted.borrow_mut().insert(standing.clone());
        // The files may have been reloaded after the handshake, and the shard may have checked its
        // connections before this one was added.
        standing.look(shard);
        Admitted { shard: shard.clone(), key, standing }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.shard.admitted.borrow_mut().remove(self.key);
    }
}

/// Checks all connections periodically and after each reload, until the front is dropped.
pub(crate) async fn watch(shard: Rc<ShardState>, mut reloads: watch::Receiver<u64>) {
    let every = shard.options.certificates_checked_every;
    loop {
        // On a timeout the periodic check is due; on a change, the reload check. An inner error means that
        // the front is gone.
        if let Ok(Err(_)) = tokio::time::timeout(every, reloads.changed()).await {
            return;
        }
        let mut from = Some(0);
        while let Some(place) = from {
            from = look_at_some(&shard, place);
            tokio::task::yield_now().await;
        }
    }
}

/// Checks some connections, from slot `from` on. Returns the slot to continue at; `None` after the last slot.
fn look_at_some(shard: &ShardState, from: usize) -> Option<usize> {
    let (to, some) = {
        let admitted = shard.admitted.borrow();
        let to = (from + LOOKED_AT_ONCE).min(admitted.capacity());
        (to, places(&admitted, from, to))
    };
    some.iter().for_each(|standing| standing.look(shard));
    (to < shard.admitted.borrow().capacity()).then_some(to)
}

fn places(admitted: &Slab<Rc<Standing>>, from: usize, to: usize) -> Vec<Rc<Standing>> {
    (from..to).filter_map(|key| admitted.get(key).cloned()).collect()
}
