//! Defines the state that the connections of one shard share: [`ShardState`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use accounting::ShardCounters;
use slab::Slab;

use crate::Options;
use crate::admissions::Admissions;
use crate::clock::Clock;
use crate::drains::Departures;
use crate::long_turns::LongTurns;
use crate::socket::SocketShared;
use crate::turnstile::Turnstile;

/// State that the connections of one shard share.
pub(crate) struct ShardState {
    pub(crate) options: Arc<Options>,
    /// HTTP/2 limits for clients.
    pub(crate) http2: Arc<http2::Options>,
    pub(crate) counters: Arc<ShardCounters>,
    pub(crate) sockets: Rc<SocketShared>,
    pub(crate) closing: Cell<bool>,
    /// Wakers of all HTTP/2 connections: the clock wakes each at its alarm, and the beginning of a shutdown
    /// wakes all.
    pub(crate) connections: RefCell<Slab<Waker>>,
    /// Alarms of the connections.
    pub(crate) clock: Clock,
    /// Connections that were told to end, by an order to drain.
    pub(crate) departures: Departures,
    /// Connections that TLS has admitted.
    pub(crate) admissions: Rc<Admissions>,
    /// Throttle for work that may wait: connections that begin, end or only log in.
    pub(crate) turnstile: Turnstile,
    /// Queue of the connections whose next turn takes long.
    pub(crate) long_turns: LongTurns,
}

impl ShardState {
    pub(crate) fn wake_all(&self) {
        for (_, waker) in self.connections.borrow().iter() {
            waker.wake_by_ref();
        }
    }
}
