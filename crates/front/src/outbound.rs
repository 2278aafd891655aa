//! The sending side of a streaming call: a service puts messages into [`Outbound`], the connection sends them. What is
//! unsent is bounded per stream. It knows neither the socket nor other calls.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use api::Status;
use bytes::Bytes;
use http::StatusCode;
use http2::{Payload, Reason};

use crate::assembler::PREFIX_BYTES;
use crate::gzip;
use crate::inbound::CANCELED;
use crate::ledger::{Charge, Ledger};
use crate::messages::Messages;
use crate::reply::check_len;
use crate::responder::{Moves, Responder};
use crate::shard::ShardState;
use accounting::Account;

/// Why a message was not taken; `M` is the message, or the messages.
#[derive(Debug)]
pub enum TrySend<M = Bytes> {
    /// The stream holds as much as it may, or nothing more is packed in this turn; the message comes back. Of several
    /// messages those come back that were not taken.
    Full(M),
    /// The message is longer than a message may be; the call should end with this status.
    TooLong(Status),
    /// The call is over.
    Closed,
}

impl<M> TrySend<M> {
    /// Wraps what comes back, the message or the messages, by `wrap`.
    pub fn map<N>(self, wrap: impl FnOnce(M) -> N) -> TrySend<N> {
        match self {
            TrySend::Full(message) => TrySend::Full(wrap(message)),
            TrySend::TooLong(status) => TrySend::TooLong(status),
            TrySend::Closed => TrySend::Closed,
        }
    }
}

/// The messages that a streaming call gives. What it holds unsent is bounded by
/// [`crate::Options::stream_buffer_bytes_max`] plus one message.
pub struct Outbound {
    sending: Rc<Sending>,
}

impl Outbound {
    pub(crate) fn new(sending: Rc<Sending>) -> Outbound {
        Outbound { sending }
    }

    /// Waits for room and sends one message. Fails when the call is over.
    pub async fn send(&mut self, message: Bytes) -> Result<(), Status> {
        self.ready().await?;
        self.sending.push(message, false).map_err(|refused| match refused {
            TrySend::TooLong(status) => status,
            TrySend::Full(_) | TrySend::Closed => CANCELED,
        })
    }

    /// Sends one message if there is room now.
    pub fn try_send(&mut self, message: Bytes) -> Result<(), TrySend> {
        if !self.has_room() {
            return Err(TrySend::Full(message));
        }
        self.sending.push(message, false)
    }

    /// Queues a message as [`Outbound::try_send`] does, for a message from [`Account::share`], which is charged already.
    pub fn try_send_shared(&mut self, message: Bytes) -> Result<(), TrySend> {
        if !self.has_room() {
            return Err(TrySend::Full(message));
        }
        self.sending.push(message, true)
    }

    /// Sends some messages if there is room now, in one frame unless the stream packs them or the client has no room for
    /// all of them. All are taken or none, except where each is packed: then those come back for which there was no room.
    pub fn try_send_messages(&mut self, messages: Messages) -> Result<(), TrySend<Messages>> {
        if !self.has_room() {
            return Err(TrySend::Full(messages));
        }
        if !self.sending.takes_together(&messages) {
            return self.try_send_each(messages);
        }
        self.sending.push_together(messages).map_err(|Gone| TrySend::Closed)
    }

    /// Sends messages one by one.
    fn try_send_each(&mut self, mut messages: Messages) -> Result<(), TrySend<Messages>> {
        while !messages.is_empty() {
            messages = messages.send_first(|message| self.try_send(message))?;
        }
        Ok(())
    }

    /// The account of the connection, to charge what a service holds for the call.
    pub fn account(&self) -> Rc<Account> {
        self.sending.account.clone()
    }

    /// Resolves when there is room for a message; fails when the call is over.
    pub async fn ready(&mut self) -> Result<(), Status> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// Polls for what [`Outbound::ready`] returns, for a hand-written future.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if self.is_closed() {
            return Poll::Ready(Err(CANCELED));
        }
        if self.has_room() {
            return Poll::Ready(Ok(()));
        }
        if self.is_full() {
            self.sending.wake_when_empty(cx.waker());
        } else {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Sends the answer's head before the first message, for clients that wait for it.
    pub fn open(&mut self) -> Result<(), Status> {
        self.sending.open()
    }

    /// Bytes taken that wait for the client: what a slow one makes the stream hold.
    pub fn queued_bytes(&self) -> usize {
        self.sending.queued_bytes()
    }

    /// Returns true if the call is over: cancelled by client, deadline or connection.
    pub fn is_closed(&self) -> bool {
        matches!(*self.sending.state.borrow(), State::Closed)
    }

    fn is_full(&self) -> bool {
        self.sending.is_full()
    }

    /// Returns true if a message can be queued now. One that is to be packed may have to wait for the connection's next turn,
    /// however short it is when packed.
    fn has_room(&self) -> bool {
        let waits_for_turn = self.sending.gzip && self.sending.has_packed_enough();
        !self.is_full() && !waits_for_turn
    }
}

/// The call is over.
struct Gone;

enum State {
    /// The call has a stream of HTTP/2, whose head may still have to be sent.
    Wire(Responder),
    /// The call has no stream of HTTP/2: its messages are taken by [`crate::LocalStream`].
    Local(Box<Local>),
    Closed,
}

/// Messages that wait for a [`crate::LocalStream`].
struct Local {
    queue: VecDeque<(Bytes, Charge<Ledger>)>,
    ledger: Rc<Ledger>,
    shard: Rc<ShardState>,
    /// Of whoever takes them.
    waker: Option<Waker>,
}

impl State {
    /// The shard of the call; `None` once it is over.
    fn shard(&self) -> Option<&Rc<ShardState>> {
        match self {
            State::Wire(responder) => Some(&responder.around().shard),
            State::Local(local) => Some(&local.shard),
            State::Closed => None,
        }
    }
}

/// The sending side of a streaming call, shared by the service's [`Outbound`] and the connection. Each open stream has one.
pub(crate) struct Sending {
    state: RefCell<State>,
    /// Of whoever waits until the stream holds less.
    waker: Cell<Option<Waker>>,
    pub(crate) account: Rc<Account>,
    gzip: bool,
    pub(crate) method: u16,
}

impl Sending {
    pub(crate) fn new(responder: Responder, gzip: bool, method: u16) -> Rc<Sending> {
        let account = responder.around().account.clone();
        Sending::of(State::Wire(responder), account, gzip, method)
    }

    /// The sending side of a call without a stream of HTTP/2.
    pub(crate) fn local(shard: &Rc<ShardState>, account: &Rc<Account>, method: u16) -> Rc<Sending> {
        let ledger = Rc::new(Ledger::of(account));
        let local = Local { queue: VecDeque::new(), ledger, shard: shard.clone(), waker: None };
        Sending::of(State::Local(Box::new(local)), account.clone(), false, method)
    }

    fn of(state: State, account: Rc<Account>, gzip: bool, method: u16) -> Rc<Sending> {
        Rc::new(Sending { state: RefCell::new(state), waker: Cell::new(None), account, gzip, method })
    }

    /// Bytes taken that wait for the client.
    fn queued_bytes(&self) -> usize {
        match &*self.state.borrow() {
            State::Wire(responder) => responder.queued_bytes(),
            State::Local(local) => local.ledger.queued(),
            State::Closed => 0,
        }
    }

    /// Returns true if the stream holds as much as it may.
    fn is_full(&self) -> bool {
        let bytes_max = |shard: &ShardState| shard.options.stream_buffer_bytes_max;
        match &*self.state.borrow() {
            State::Wire(responder) => responder.queued_bytes() >= bytes_max(&responder.around().shard),
            State::Local(local) => local.ledger.queued() >= bytes_max(&local.shard),
            State::Closed => false,
        }
    }

    /// What was sent and what waits; `None` for a call that sends nothing.
    pub(crate) fn moves(&self) -> Option<Moves> {
        match &*self.state.borrow() {
            State::Wire(responder) if responder.is_opened() => Some(responder.moves()),
            State::Wire(_) | State::Local(_) | State::Closed => None,
        }
    }

    fn has_packed_enough(&self) -> bool {
        match &*self.state.borrow() {
            State::Wire(responder) => responder.around().made.is_enough(),
            State::Local(_) | State::Closed => false,
        }
    }

    fn wake_when_empty(&self, waker: &Waker) {
        match &*self.state.borrow() {
            State::Closed => {}
            State::Wire(responder) => responder.want_room(),
            State::Local(local) => return local.ledger.wake_on_release(waker),
        }
        let before = self.waker.take().filter(|old| old.will_wake(waker));
        self.waker.set(Some(before.unwrap_or_else(|| waker.clone())));
    }

    /// Wakes whoever waits until the stream holds less, or is over.
    pub(crate) fn wake(&self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Takes the next message of a call without a stream of HTTP/2.
    pub(crate) fn poll_local(&self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let taken = match &mut *self.state.borrow_mut() {
            State::Local(local) => {
                let taken = local.queue.pop_front();
                if taken.is_none() {
                    local.waker = Some(cx.waker().clone());
                }
                taken
            }
            State::Wire(_) | State::Closed => None,
        };
        // Its bytes are released when the charge is dropped, which may wake the call.
        taken.map_or(Poll::Pending, |(message, _charge)| Poll::Ready(message))
    }

    /// Closes the call: whoever sends sees that it is over.
    pub(crate) fn close(&self) {
        let before = std::mem::replace(&mut *self.state.borrow_mut(), State::Closed);
        if let State::Local(local) = &before {
            local.ledger.wake();
        }
        drop(before);
        self.wake();
    }

    fn open(&self) -> Result<(), Status> {
        let mut state = self.state.borrow_mut();
        if let State::Wire(responder) = &*state
            && !responder.is_opened()
            && !responder.open(self.gzip)
        {
            *state = State::Closed;
        }
        if matches!(*state, State::Closed) { Err(CANCELED) } else { Ok(()) }
    }

    fn push(&self, message: Bytes, shared: bool) -> Result<(), TrySend> {
        self.open().map_err(|_| TrySend::Closed)?;
        // Packing into memory does not fail; if it did, an unpacked message is as good.
        let packed = match &*self.state.borrow() {
            State::Wire(responder) if self.gzip => {
                responder.around().add_work(message.len());
                gzip::pack(&message).ok()
            }
            _ => None,
        };
        let compressed = packed.is_some();
        let message = packed.unwrap_or(message);
        let wire_bytes = message.len();
        let mut state = self.state.borrow_mut();
        let shard = state.shard().ok_or(TrySend::Closed)?;
        check_len(wire_bytes, shard.options.answer_message_bytes_max).map_err(TrySend::TooLong)?;
        let is_sent = match &mut *state {
            State::Local(local) => {
                let mut charge = Charge::new(&local.ledger);
                charge.raise_to(wire_bytes + MESSAGE_BYTES);
                local.queue.push_back((message, charge));
                local.waker.take().into_iter().for_each(Waker::wake);
                true
            }
            State::Wire(responder) if shared && !compressed => responder.send_shared(message),
            State::Wire(responder) => responder.send(Payload::message(message, compressed)),
            State::Closed => false,
        };
        if !is_sent {
            *state = State::Closed;
            return Err(TrySend::Closed);
        }
        if let Some(shard) = state.shard() {
            shard.counters.sent(self.method, wire_bytes);
        }
        Ok(())
    }

    /// Returns true if these messages can go out as they are: nobody packs them or takes them one by one, and none is too
    /// long.
    fn takes_together(&self, messages: &Messages) -> bool {
        match &*self.state.borrow() {
            State::Wire(responder) if !self.gzip => {
                messages.longest() <= responder.around().shard.options.answer_message_bytes_max
            }
            State::Wire(_) | State::Local(_) => false,
            // Whichever way it is tried, it is found to be over.
            State::Closed => true,
        }
    }

    fn push_together(&self, messages: Messages) -> Result<(), Gone> {
        let count = messages.len();
        let bytes = messages.wire_bytes() - count * PREFIX_BYTES;
        self.open().map_err(|_| Gone)?;
        let mut state = self.state.borrow_mut();
        if let State::Wire(responder) = &*state
            && responder.send_messages(messages)
        {
            responder.around().shard.counters.sent_together(self.method, count, bytes);
            return Ok(());
        }
        *state = State::Closed;
        Err(Gone)
    }

    /// Returns true if the client has reset the stream or is gone.
    pub(crate) fn is_gone(&self) -> bool {
        match &*self.state.borrow() {
            State::Wire(responder) => !responder.is_open(),
            State::Local(_) => false,
            State::Closed => true,
        }
    }

    /// Ends the stream with a status. What is queued before it may still drain.
    pub(crate) fn finish(&self, result: &Result<(), Status>) {
        let state = std::mem::replace(&mut *self.state.borrow_mut(), State::Closed);
        self.wake();
        match (state, result) {
            (State::Wire(responder), _) if responder.is_opened() => responder.finish(result),
            (State::Wire(responder), Ok(())) => {
                responder.open(self.gzip);
                responder.finish(result);
            }
            (State::Wire(responder), Err(status)) => responder.refuse(StatusCode::OK, status),
            (State::Local(_) | State::Closed, _) => {}
        }
    }

    /// Ends the stream with nothing but a reset.
    pub(crate) fn reset(&self, reason: Reason) {
        match std::mem::replace(&mut *self.state.borrow_mut(), State::Closed) {
            State::Wire(responder) => responder.reset(reason),
            State::Local(_) | State::Closed => {}
        }
        self.wake();
    }
}

/// Memory that a message takes besides its bytes while it waits for a [`crate::LocalStream`].
const MESSAGE_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sending_half_of_a_stream_is_small() {
        // With the 16 bytes of a counted pointer it is 80, and the allocator has pieces of this size.
        assert!(size_of::<Sending>() <= 64, "{} bytes", size_of::<Sending>());
    }
}
