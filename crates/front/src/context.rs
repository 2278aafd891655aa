//! What the calls of one connection share: [`ConnectionContext`] has the HTTP/2 state that they send with, the accounts that
//! they charge, and the work of the connection's turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use api::Status;

use crate::shard::ShardState;
use crate::turn::Turn;
use crate::{Origin, Service};
use accounting::Account;

/// Work of a connection's turn, in bytes: messages unpacked, answers that were packed or made in pieces, and what services looked at,
/// whatever they looked for. One rule for all calls, since who waits for the turn's end does not care what takes it.
#[derive(Debug, Default)]
pub(crate) struct Made {
    bytes: Cell<u32>,
    /// Bytes after which other connections get their turn.
    bytes_max: Cell<u32>,
}

impl Made {
    /// A turn begins, in which so many bytes may be made.
    pub(crate) fn begin_turn(&self, bytes_max: usize) {
        self.bytes_max.set(u32::try_from(bytes_max).unwrap_or(u32::MAX));
        self.bytes.set(0);
    }

    fn add(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX)));
    }

    /// Returns true if it is as much as a turn may make. Services that work in slices take exactly what is left.
    pub(crate) fn is_enough(&self) -> bool {
        self.bytes.get() > 0 && self.bytes.get() >= self.bytes_max.get()
    }
}

/// Memory that a piece of an answer, or its trailers, take besides their bytes while they wait: a place in the stream's queue,
/// and a part of the stream, which stays open for them.
const PIECE_BYTES: usize = 512;

/// State that the calls of one connection share.
pub(crate) struct ConnectionContext {
    /// The connection's HTTP/2. It is borrowed for one command at a time, and never while a call is stepped.
    pub(crate) http2: RefCell<http2::Connection>,
    pub(crate) origin: Origin,
    /// Calls that have something to do.
    pub(crate) turn: Arc<Turn>,
    pub(crate) shard: Rc<ShardState>,
    pub(crate) service: Rc<dyn Service>,
    /// Account of the connection, which is charged to the server's budget. It counts apart what a [`crate::ledger::Charge`]
    /// holds: request bytes in assembly and in unanswered unary calls, answers that wait for room, and something for each call
    /// in flight.
    pub(crate) account: Rc<Account>,
    /// Bytes charged for what waits in streams, both ways.
    waiting_charged: Cell<usize>,
    /// Calls that wait for the client and may stall.
    pub(crate) stallable: Cell<u32>,
    /// Work of the connection's turn.
    pub(crate) made: Made,
    /// The calls that are open, and the last one, may wait a little, see [`Service::may_wait`].
    pub(crate) may_wait: Cell<bool>,
}

impl ConnectionContext {
    /// A turn begins, or another half of it: so many bytes of work may be done.
    pub(crate) fn begin_work(&self, bytes_max: usize) {
        self.made.begin_turn(bytes_max);
        self.account.allow_work(bytes_max);
    }

    /// Counts bytes of work that the front does: a service in this turn has so many less left.
    pub(crate) fn add_work(&self, bytes: usize) {
        self.made.add(bytes);
        self.account.spend_work(bytes);
    }

    /// Counts what the service has looked at for a call as work of the turn: of what is left it has taken that already.
    pub(crate) fn note_looked_at(&self) {
        self.made.add(self.account.take_looked_at());
    }

    pub(crate) fn new(
        http2: http2::Connection,
        origin: Origin,
        shard: Rc<ShardState>,
        service: Rc<dyn Service>,
        account: Rc<Account>,
    ) -> Rc<ConnectionContext> {
        Rc::new(ConnectionContext {
            http2: RefCell::new(http2),
            origin,
            turn: Turn::new(),
            waiting_charged: Cell::new(0),
            stallable: Cell::new(0),
            made: Made::default(),
            may_wait: Cell::new(false),
            shard,
            service,
            account,
        })
    }

    /// Bytes of answers that wait in streams for their client, with what they take besides.
    pub(crate) fn answers_bytes(&self) -> usize {
        let http2 = self.http2.borrow();
        http2.queued_bytes() + http2.queued_pieces() * PIECE_BYTES
    }

    /// Returns true if the answers that wait leave room for another.
    pub(crate) fn has_room(&self) -> bool {
        self.answers_bytes() < self.shard.options.answer_bytes_max
    }

    /// Charges what waits in streams now: answers for the client, and bytes of requests for whoever takes them. To be called
    /// when either may have changed. Bytes that others wait for too are charged already.
    pub(crate) fn charge_waiting(&self) {
        let received = self.http2.borrow().unreleased_bytes() as usize;
        let now = self.answers_bytes() - self.http2.borrow().queued_shared_bytes() + received;
        let before = self.waiting_charged.replace(now);
        if now > before {
            self.account.charge(now - before);
        } else if now < before {
            self.account.release(before - now);
        }
    }

    /// Refuses when the calls in flight hold as much as they may together, or all clients nearly do.
    pub(crate) fn check_requests(&self) -> Result<(), Status> {
        if self.account.requests_bytes() > self.shard.options.request_bytes_max || self.account.is_pressed() {
            return Err(api::error::TOO_MANY_REQUESTS);
        }
        Ok(())
    }
}

impl Drop for ConnectionContext {
    fn drop(&mut self) {
        self.account.release(self.waiting_charged.get());
    }
}

/// Counts a call among those that may stall, until it is dropped.
pub(crate) struct Stallable(Rc<ConnectionContext>);

impl Stallable {
    pub(crate) fn new(around: &Rc<ConnectionContext>) -> Stallable {
        around.stallable.set(around.stallable.get() + 1);
        Stallable(around.clone())
    }
}

impl Drop for Stallable {
    fn drop(&mut self) {
        self.0.stallable.set(self.0.stallable.get() - 1);
    }
}
