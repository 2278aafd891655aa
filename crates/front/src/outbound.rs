//! Implements the sending side of a streaming call: a service puts messages into [`Outbound`], and the
//! connection sends them. Unsent bytes are bounded per stream. This module knows neither the socket nor other
//! calls.

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
use crate::responder::{Responder, Room, StreamBytes};
use crate::shard_state::ShardState;
use crate::try_send::TrySend;
use accounting::Account;

/// Sends the answer messages of a streaming call. Unsent bytes are bounded by
/// [`crate::Options::stream_buffer_bytes_max`] plus one message.
pub struct Outbound {
    sending: Rc<Sending>,
}

impl Outbound {
    pub(crate) fn new(sending: Rc<Sending>) -> Outbound {
        Outbound { sending }
    }

    /// Waits until the stream's buffer has space, and sends one message. Fails when the call has ended.
    pub async fn send(&mut self, message: Bytes) -> Result<(), Status> {
        self.ready().await?;
        self.sending.push(message, false).map_err(|refused| match refused {
            TrySend::TooLong(status) => status,
            TrySend::Full(_) | TrySend::Closed => CANCELED,
        })
    }

    /// Sends one message if the stream's buffer has space now.
    pub fn try_send(&mut self, message: Bytes) -> Result<(), TrySend> {
        if !self.has_room() {
            return Err(TrySend::Full(message));
        }
        self.sending.push(message, false)
    }

    /// Sends a message from [`Account::share`], whose memory is already reserved, if the stream's buffer has
    /// space now.
    pub fn try_send_shared(&mut self, message: Bytes) -> Result<(), TrySend> {
        if !self.has_room() {
            return Err(TrySend::Full(message));
        }
        self.sending.push(message, true)
    }

    /// Sends several messages if the stream's buffer has space now. They are sent in one frame if possible,
    /// which compression or the client's window can prevent. On a stream without compression, either all
    /// messages are queued or none. On a stream with compression, the first ones may be queued and the others
    /// returned in the error.
    pub fn try_send_messages(&mut self, messages: Messages) -> Result<(), TrySend<Messages>> {
        if !self.has_room() {
            return Err(TrySend::Full(messages));
        }
        if !self.sending.takes_together(&messages) {
            return self.try_send_each(messages);
        }
        self.sending.push_together(messages).map_err(|Gone| TrySend::Closed)
    }

    /// Sends the messages one by one, until one cannot be queued.
    fn try_send_each(&mut self, mut messages: Messages) -> Result<(), TrySend<Messages>> {
        while !messages.is_empty() {
            messages = messages.send_first(|message| self.try_send(message))?;
        }
        Ok(())
    }

    /// Returns the memory account of the connection, in which a service reserves the memory that it holds for
    /// the call.
    pub fn account(&self) -> Rc<Account> {
        self.sending.account.clone()
    }

    /// Resolves when the stream's buffer has space for a message; fails when the call has ended.
    pub async fn ready(&mut self) -> Result<(), Status> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// Polls for the result of [`Outbound::ready`]. For hand-written futures.
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

    /// Becomes ready when the client can take more ([`Outbound::room`]); fails when the call has ended.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if self.is_closed() {
            return Poll::Ready(Err(CANCELED));
        }
        if self.sending.room().soon > 0 {
            return Poll::Ready(Ok(()));
        }
        self.sending.wake_when_empty(cx.waker());
        Poll::Pending
    }

    /// Returns a function that tells how many bytes the client can take now; none if it takes nothing or the
    /// call has ended. A service that makes its messages from what it has anyway need not hold them for a
    /// client that is slow: it can wait for [`Outbound::poll_room`] first.
    pub fn room(&self) -> impl Fn() -> Room + use<> {
        let sending = Rc::clone(&self.sending);
        move || sending.room()
    }

    /// Sends the head of the answer now instead of with the first message, for clients that wait for the
    /// head.
    pub fn open(&mut self) -> Result<(), Status> {
        self.sending.open()
    }

    /// Returns the number of queued bytes that the client has not taken yet.
    pub fn queued_bytes(&self) -> usize {
        self.sending.queued_bytes()
    }

    /// Returns true if the call has ended, for example because the client cancelled it, its deadline passed
    /// or the connection ended.
    pub fn is_closed(&self) -> bool {
        matches!(*self.sending.state.borrow(), State::Closed)
    }

    fn is_full(&self) -> bool {
        self.sending.is_full()
    }

    /// Returns true if a message can be queued now. On a stream with compression, a message must also wait
    /// for the connection's next turn if the work limit of this turn is reached.
    fn has_room(&self) -> bool {
        let waits_for_turn = self.sending.gzip && self.sending.has_packed_enough();
        !self.is_full() && !waits_for_turn
    }
}

/// Error: the call has ended.
struct Gone;

enum State {
    /// The call has an HTTP/2 stream. The head of the answer is possibly not sent yet.
    Wire(Responder),
    /// The call has no HTTP/2 stream; a [`crate::LocalStream`] takes its messages.
    Local(Box<Local>),
    Closed,
}

/// Queue of messages for a [`crate::LocalStream`].
struct Local {
    queue: VecDeque<(Bytes, Charge<Ledger>)>,
    ledger: Rc<Ledger>,
    shard: Rc<ShardState>,
    /// Waker of the task that takes the messages.
    waker: Option<Waker>,
}

impl State {
    /// Returns the shard of the call; `None` once the call has ended.
    fn shard(&self) -> Option<&Rc<ShardState>> {
        match self {
            State::Wire(responder) => Some(&responder.around().shard),
            State::Local(local) => Some(&local.shard),
            State::Closed => None,
        }
    }
}

/// Sending side of a streaming call, which the service's [`Outbound`] and the connection share. Each open
/// stream has one, so its size matters.
pub(crate) struct Sending {
    state: RefCell<State>,
    /// Waker of the task that waits until the stream's buffer has space.
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

    /// Creates the sending side of a call without an HTTP/2 stream.
    pub(crate) fn local(shard: &Rc<ShardState>, account: &Rc<Account>, method: u16) -> Rc<Sending> {
        let ledger = Rc::new(Ledger::of(account));
        let local = Local { queue: VecDeque::new(), ledger, shard: shard.clone(), waker: None };
        Sending::of(State::Local(Box::new(local)), account.clone(), false, method)
    }

    fn of(state: State, account: Rc<Account>, gzip: bool, method: u16) -> Rc<Sending> {
        Rc::new(Sending { state: RefCell::new(state), waker: Cell::new(None), account, gzip, method })
    }

    /// Returns the number of queued bytes that the client has not taken yet.
    fn queued_bytes(&self) -> usize {
        match &*self.state.borrow() {
            State::Wire(responder) => responder.queued_bytes(),
            State::Local(local) => local.ledger.queued(),
            State::Closed => 0,
        }
    }

    /// Returns true if the stream's buffer is full.
    fn is_full(&self) -> bool {
        let bytes_max = |shard: &ShardState| shard.options.stream_buffer_bytes_max;
        match &*self.state.borrow() {
            State::Wire(responder) => responder.queued_bytes() >= bytes_max(&responder.around().shard),
            State::Local(local) => local.ledger.queued() >= bytes_max(&local.shard),
            State::Closed => false,
        }
    }

    /// See [`Outbound::room`].
    fn room(&self) -> Room {
        match &*self.state.borrow() {
            State::Wire(responder) => responder.stream_room(),
            // A message counts as taken when the other side takes it out of the queue.
            State::Local(local) if local.ledger.queued() == 0 => {
                let bytes = local.shard.options.stream_buffer_bytes_max;
                Room { soon: bytes, most: bytes }
            }
            State::Local(_) | State::Closed => Room::NONE,
        }
    }

    /// Returns the numbers of bytes sent and queued on the stream; `None` for a call that has sent no head
    /// yet or has no HTTP/2 stream.
    pub(crate) fn stream_bytes(&self) -> Option<StreamBytes> {
        match &*self.state.borrow() {
            State::Wire(responder) if responder.is_opened() => Some(responder.stream_bytes()),
            State::Wire(_) | State::Local(_) | State::Closed => None,
        }
    }

    fn has_packed_enough(&self) -> bool {
        match &*self.state.borrow() {
            State::Wire(responder) => responder.around().turn_work.is_enough(),
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

    /// Wakes the task that waits until the stream's buffer has space or the call has ended.
    pub(crate) fn wake(&self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Takes the next message of a call without an HTTP/2 stream.
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
        // The charge (the message's memory reservation) is dropped only after the borrow of `state` has
        // ended, because releasing its bytes wakes a task, which may use `state`.
        taken.map_or(Poll::Pending, |(message, _charge)| Poll::Ready(message))
    }

    /// Closes the call: later sends fail with [`TrySend::Closed`].
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
        // Compression into memory does not fail. If it did, the message would be sent uncompressed.
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

    /// Returns true if the messages can be sent as one payload: if the call has an HTTP/2 stream without
    /// compression, and no message exceeds the length limit.
    fn takes_together(&self, messages: &Messages) -> bool {
        match &*self.state.borrow() {
            State::Wire(responder) if !self.gzip => {
                messages.longest() <= responder.around().shard.options.answer_message_bytes_max
            }
            State::Wire(_) | State::Local(_) => false,
            // The value does not matter: sending together and sending one by one both report that the call
            // has ended.
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

    /// Returns true if the client has reset the stream or has disconnected.
    pub(crate) fn is_gone(&self) -> bool {
        match &*self.state.borrow() {
            State::Wire(responder) => !responder.is_open(),
            State::Local(_) => false,
            State::Closed => true,
        }
    }

    /// Ends the stream with a status. Messages queued before it are still sent.
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

    /// Ends the stream with a reset and no status.
    pub(crate) fn reset(&self, reason: Reason) {
        match std::mem::replace(&mut *self.state.borrow_mut(), State::Closed) {
            State::Wire(responder) => responder.reset(reason),
            State::Local(_) | State::Closed => {}
        }
        self.wake();
    }
}

/// Memory in bytes that a message takes in addition to its content while it waits until a
/// [`crate::LocalStream`] takes it.
const MESSAGE_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sending_half_of_a_stream_is_small() {
        // With the 16 bytes of the `Rc` header this makes 80, which is a size class of the allocator.
        assert!(size_of::<Sending>() <= 64, "{} bytes", size_of::<Sending>());
    }
}
