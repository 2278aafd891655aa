//! Limits the work that a service does for one HTTP/1 connection before other connections run: [`Pace`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use accounting::Account;

use crate::long_turns::{LONG_BYTES, Ticket};
use crate::shard_state::ShardState;

/// Limits the work that the service does for one HTTP/1 connection in a turn, after which other connections
/// run. The bytes that the service examines count as work, and so do the bytes of its answers. The same rule
/// holds for HTTP/2 connections ([`crate::context::TurnWork`]).
pub(crate) struct Pace {
    account: Rc<Account>,
    shard: Rc<ShardState>,
    ticket: RefCell<Ticket>,
    /// Work done in this turn, in bytes.
    done: Cell<usize>,
    /// Limit for the work in this turn, in bytes.
    bytes_max: Cell<usize>,
    /// True after the limit was reached, until the connection is granted a long turn. Until then the service
    /// is not polled.
    waits: Cell<bool>,
}

impl Pace {
    pub(crate) fn new(account: Rc<Account>, shard: Rc<ShardState>) -> Pace {
        Pace {
            account,
            shard,
            ticket: RefCell::default(),
            done: Cell::new(0),
            bytes_max: Cell::new(LONG_BYTES),
            waits: Cell::new(false),
        }
    }

    /// Begins a turn: sets the work done to 0, because other connections have run since the last turn.
    pub(crate) fn begin_turn(&self) {
        self.begin_work(false);
    }

    fn begin_work(&self, has_waited: bool) {
        self.done.set(0);
        self.bytes_max.set(self.shard.long_turns.bytes_max(has_waited));
    }

    /// Polls the service with `go_on`, or returns `Pending` if the connection must wait until other
    /// connections have run.
    pub(crate) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        go_on: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if self.waits.get() {
            ready!(self.ticket.borrow_mut().poll(&self.shard.long_turns, cx));
            self.waits.set(false);
            self.begin_work(true);
        }
        let polled = {
            let _turn = self.account.begin_turn();
            self.account.allow_work(self.bytes_max.get().saturating_sub(self.done.get()));
            go_on(cx)
        };
        self.note(self.account.take_looked_at());
        polled
    }

    /// Counts bytes of work. At the limit, makes the connection wait for a long turn.
    pub(crate) fn note(&self, bytes: usize) {
        self.done.set(self.done.get().saturating_add(bytes));
        if self.done.get() >= self.bytes_max.get() {
            self.waits.set(true);
            self.shard.long_turns.note();
        }
    }
}
