//! [`Pace`]: the limit on the work that a service does for one HTTP/1 connection before other connections
//! have their turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use accounting::Account;

use crate::long_turns::{LONG_BYTES, Ticket};
use crate::shard_state::ShardState;

/// Limits the work of the service for one connection before other connections have their turn. The bytes that
/// the service examines count as work, and so do the bytes of its answers. HTTP/2 connections follow the same
/// rule.
pub(crate) struct Pace {
    account: Rc<Account>,
    shard: Rc<ShardState>,
    ticket: RefCell<Ticket>,
    /// Work done in this turn, in bytes.
    done: Cell<usize>,
    /// Work in bytes after which other connections have their turn.
    bytes_max: Cell<usize>,
    /// True after a long turn, until the connection is granted another long turn. Meanwhile the service does
    /// not continue.
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

    /// Notes that other connections have had their turn.
    pub(crate) fn begin_turn(&self) {
        self.begin_work(false);
    }

    fn begin_work(&self, has_waited: bool) {
        self.done.set(0);
        self.bytes_max.set(self.shard.long_turns.bytes_max(has_waited));
    }

    /// Polls the service with `go_on`, unless other connections have their turn first.
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

    /// Counts bytes of work.
    pub(crate) fn note(&self, bytes: usize) {
        self.done.set(self.done.get().saturating_add(bytes));
        if self.done.get() >= self.bytes_max.get() {
            self.waits.set(true);
            self.shard.long_turns.note();
        }
    }
}
