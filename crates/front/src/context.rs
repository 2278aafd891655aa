//! State shared by the calls of one connection: [`ConnectionContext`] contains the HTTP/2 state through which
//! the calls send, the account that they charge, and the work count of the connection's turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use api::Status;

use crate::listener::Origin;
use crate::shard_state::ShardState;
use crate::turn::Turn;
use accounting::Account;

/// Work of a connection's turn, in bytes: decompressed messages, compressed answers, pieces of answers, and
/// data that services examined. All kinds count alike, because connections that wait for their turn are
/// delayed by any of them.
#[derive(Debug, Default)]
pub(crate) struct TurnWork {
    bytes: Cell<u32>,
    /// Work in bytes after which other connections have their turn.
    bytes_max: Cell<u32>,
}

impl TurnWork {
    /// Begins a turn with a limit of `bytes_max` bytes of work.
    pub(crate) fn begin_turn(&self, bytes_max: usize) {
        self.bytes_max.set(u32::try_from(bytes_max).unwrap_or(u32::MAX));
        self.bytes.set(0);
    }

    fn add(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX)));
    }

    /// Returns true if the turn's limit is reached. Services that work in slices use exactly the remaining
    /// work.
    pub(crate) fn is_enough(&self) -> bool {
        self.bytes.get() > 0 && self.bytes.get() >= self.bytes_max.get()
    }
}

/// Memory in bytes that a queued piece of an answer takes in addition to its content: an entry in the
/// stream's queue, and a share of the stream's state. Queued trailers take as much.
const PIECE_BYTES: usize = 512;

/// State that the calls of one connection share.
pub(crate) struct ConnectionContext {
    /// HTTP/2 state of the connection. Borrowed for one command at a time, and never while a call is stepped.
    pub(crate) http2: RefCell<http2::Connection>,
    pub(crate) origin: Origin,
    /// Set of calls that must be polled.
    pub(crate) turn: Arc<Turn>,
    /// Wakes the connection through [`Self::turn`] when its transport is ready.
    pub(crate) transport_waker: Waker,
    pub(crate) shard: Rc<ShardState>,
    /// Account of the connection, charged to the server's budget. It counts separately the bytes of
    /// [`crate::ledger::Charge`]: requests being assembled, unanswered unary calls, answers that wait to be
    /// queued, and a fixed amount per call in flight.
    pub(crate) account: Rc<Account>,
    /// Bytes charged for data queued in streams, in both directions.
    waiting_charged: Cell<usize>,
    /// Number of calls that wait for the client and may stall.
    pub(crate) stallable: Cell<u32>,
    /// Work of the connection's current turn.
    pub(crate) turn_work: TurnWork,
    /// True if all open calls and the newest call may wait a little, see [`crate::Service::may_wait`].
    pub(crate) may_wait: Cell<bool>,
}

impl ConnectionContext {
    /// Begins a turn, or the second half of a turn, with a limit of `bytes_max` bytes of work.
    pub(crate) fn begin_work(&self, bytes_max: usize) {
        self.turn_work.begin_turn(bytes_max);
        self.account.allow_work(bytes_max);
    }

    /// Counts bytes of work done by the front. They reduce the work that services may do in the rest of this
    /// turn.
    pub(crate) fn add_work(&self, bytes: usize) {
        self.turn_work.add(bytes);
        self.account.spend_work(bytes);
    }

    /// Counts the data that the service examined for a call as work of the turn. The service has already
    /// subtracted it from the work left.
    pub(crate) fn note_examined(&self) {
        self.turn_work.add(self.account.take_looked_at());
    }

    pub(crate) fn new(
        http2: http2::Connection,
        origin: Origin,
        shard: Rc<ShardState>,
        account: Rc<Account>,
    ) -> Rc<ConnectionContext> {
        let turn = Turn::new();
        Rc::new(ConnectionContext {
            http2: RefCell::new(http2),
            origin,
            transport_waker: Waker::from(turn.clone()),
            turn,
            waiting_charged: Cell::new(0),
            stallable: Cell::new(0),
            turn_work: TurnWork::default(),
            may_wait: Cell::new(false),
            shard,
            account,
        })
    }

    /// Returns the memory of the connection's HTTP/2 state in bytes: header tables, a partial header block,
    /// streams, and pending output.
    pub(crate) fn memory_bytes(&self) -> usize {
        let mut http2 = self.http2.borrow_mut();
        http2.heap_bytes() + http2.output().len()
    }

    /// Returns the bytes of answers queued in streams, with their overhead.
    pub(crate) fn answers_bytes(&self) -> usize {
        let http2 = self.http2.borrow();
        http2.queued_bytes() + http2.queued_pieces() * PIECE_BYTES
    }

    /// Returns true if another answer may be queued: the queued answers are below their limit.
    pub(crate) fn has_room(&self) -> bool {
        self.answers_bytes() < self.shard.options.answer_bytes_max
    }

    /// Charges the bytes that are queued in streams now: answers for the client, and request bytes that were
    /// not consumed. Must be called whenever one of these numbers may have changed. Shared answer bytes are
    /// already charged elsewhere.
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

    /// Fails with `too many requests` if the calls in flight on this connection exceed their memory limit, or
    /// if the connection must not begin further calls because memory is short.
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

/// Counts a call as one that may stall, until dropped.
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
