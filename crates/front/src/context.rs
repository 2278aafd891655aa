//! Defines the state that the calls of one connection share: [`ConnectionContext`] contains the HTTP/2 engine
//! through which the calls send, the account in which they reserve memory, and the work done in the
//! connection's turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use api::Status;

use crate::listener::Origin;
use crate::shard_state::ShardState;
use crate::turn::Turn;
use accounting::Account;

/// Amount of work done in a connection's turn, in bytes: of decompressed messages, compressed answers, chunks
/// of large answers, and data that services examined. All kinds count alike, because any of them delays the
/// turns of other connections.
#[derive(Debug, Default)]
pub(crate) struct TurnWork {
    bytes: Cell<u32>,
    /// Limit for `bytes`, at which the turn ends, so that other connections run.
    bytes_max: Cell<u32>,
}

impl TurnWork {
    /// Resets the count at the beginning of a turn, with a limit of `bytes_max` bytes of work.
    pub(crate) fn begin_turn(&self, bytes_max: usize) {
        self.bytes_max.set(u32::try_from(bytes_max).unwrap_or(u32::MAX));
        self.bytes.set(0);
    }

    fn add(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX)));
    }

    /// Returns true if the turn's limit is reached. The limit need not be exceeded, because services that
    /// split their work stop exactly at the limit.
    pub(crate) fn is_enough(&self) -> bool {
        self.bytes.get() > 0 && self.bytes.get() >= self.bytes_max.get()
    }
}

/// Memory in bytes that each queued payload of an answer takes in addition to its content: an entry in the
/// stream's queue, and a part of the stream's state. Queued trailers take as much.
const PIECE_BYTES: usize = 512;

/// State that the calls of one connection share.
pub(crate) struct ConnectionContext {
    /// HTTP/2 engine of the connection. It must be borrowed only for one command at a time, and never while a
    /// call is stepped, because the call borrows it, too.
    pub(crate) http2: RefCell<http2::Connection>,
    pub(crate) origin: Origin,
    /// Set of calls that must be stepped in the connection's next round.
    pub(crate) turn: Arc<Turn>,
    /// Wakes the connection through [`Self::turn`] when its transport is ready.
    pub(crate) transport_waker: Waker,
    pub(crate) shard: Rc<ShardState>,
    /// Memory account of the connection, whose bytes count against the server's memory budget. It counts
    /// separately the request bytes ([`crate::ledger::Charge`]): requests being assembled, unanswered unary
    /// calls, answers that wait to be queued, and a fixed amount per call in flight.
    pub(crate) account: Rc<Account>,
    /// Bytes that are reserved in [`Self::account`] for data queued in streams, both received and to be sent.
    waiting_charged: Cell<usize>,
    /// Number of calls that wait for the client, so that stall checks are needed.
    pub(crate) stallable: Cell<u32>,
    /// Amount of work done in the connection's current turn.
    pub(crate) turn_work: TurnWork,
    /// True if all open calls, including the newest one, may be delayed a little; see
    /// [`crate::Service::may_wait`].
    pub(crate) may_wait: Cell<bool>,
}

impl ConnectionContext {
    /// Allows `bytes_max` bytes of work, at the beginning of a turn, and once more in a turn between stepping
    /// open calls and taking new ones.
    pub(crate) fn begin_work(&self, bytes_max: usize) {
        self.turn_work.begin_turn(bytes_max);
        self.account.allow_work(bytes_max);
    }

    /// Counts bytes of work that the front itself has done, which reduces the work that services may do in
    /// the rest of this turn.
    pub(crate) fn add_work(&self, bytes: usize) {
        self.turn_work.add(bytes);
        self.account.spend_work(bytes);
    }

    /// Counts the data that the service has examined for a call as work of the turn. It is not subtracted
    /// from the work that services may still do, because [`Account::looked_at`], with which the service
    /// reported it, has subtracted it already.
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

    /// Returns the memory of the answers that are queued in streams, in bytes.
    pub(crate) fn answers_bytes(&self) -> usize {
        let http2 = self.http2.borrow();
        http2.queued_bytes() + http2.queued_pieces() * PIECE_BYTES
    }

    /// Returns true if another answer may be queued: the queued answers are below their limit.
    pub(crate) fn has_room(&self) -> bool {
        self.answers_bytes() < self.shard.options.answer_bytes_max
    }

    /// Adjusts the connection's memory reservation to the bytes that are queued in streams now: answers for
    /// the client, and received bytes that were not consumed. Must be called whenever one of these numbers
    /// may have changed. Answer bytes that several streams share are left out, because [`Account::share`] has
    /// reserved them once for all streams.
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

/// Counts a call in [`ConnectionContext::stallable`] until dropped.
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
