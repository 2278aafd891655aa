//! The sending side of a streaming call: a service puts messages into [`Outbound`], the connection sends them. What is
//! unsent is bounded per stream. It knows neither the socket nor other calls.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use api::Status;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};

use crate::budget::Account;
use crate::call::{ConnectionContext, Made};
use crate::inbound::CANCELED;
use crate::ledger::Ledger;
use crate::outgoing::{Outgoing, check_len};
use crate::shard::ShardState;
use crate::{ShardCounters, exchange, gzip, reply};

/// Why a message was not taken.
#[derive(Debug)]
pub enum TrySend {
    /// The stream holds as much as it may, or nothing more is packed in this turn; the message comes back.
    Full(Bytes),
    /// The message is longer than a message may be; the call should end with this status.
    TooLong(Status),
    /// The call is over.
    Closed,
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
            self.sending.ledger.wake_on_release(cx.waker());
        } else {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Sends the answer's head before the first message, for clients that wait for it.
    pub fn open(&mut self) -> Result<(), Status> {
        self.sending.open()
    }

    /// Bytes taken and not yet handed to the socket: what a slow client makes the stream hold.
    pub fn queued_bytes(&self) -> usize {
        self.sending.ledger.queued()
    }

    /// Returns true if the call is over: cancelled by client, deadline or connection.
    pub fn is_closed(&self) -> bool {
        matches!(*self.sending.state.borrow(), State::Closed)
    }

    fn is_full(&self) -> bool {
        self.sending.ledger.queued() >= self.sending.bytes_max
    }

    /// Returns true if a message can be queued now. One that is to be packed may have to wait for the connection's next turn,
    /// however short it is when packed.
    fn has_room(&self) -> bool {
        let waits_for_turn = self.sending.gzip && self.sending.made.is_enough();
        !self.is_full() && !waits_for_turn
    }
}

enum State {
    Unopened(SendResponse<Outgoing>),
    Open(SendStream<Outgoing>),
    /// The call has no stream of HTTP/2: its messages are taken by [`crate::LocalStream`].
    Local(VecDeque<Outgoing>, Option<Waker>),
    Closed,
}

/// The sending side of a streaming call, shared by the service's [`Outbound`] and the connection.
pub(crate) struct Sending {
    state: RefCell<State>,
    pub(crate) ledger: Rc<Ledger>,
    connection: Rc<Ledger>,
    account: Rc<Account>,
    /// Most bytes held unsent, and of one message.
    bytes_max: usize,
    message_bytes_max: usize,
    gzip: bool,
    made: Rc<Made>,
    pub(crate) method: u16,
    counters: Arc<ShardCounters>,
}

impl Sending {
    pub(crate) fn new(
        respond: SendResponse<Outgoing>,
        around: &ConnectionContext,
        gzip: bool,
        method: u16,
    ) -> Rc<Sending> {
        Rc::new(Sending {
            state: RefCell::new(State::Unopened(respond)),
            ledger: Rc::new(Ledger::default()),
            connection: around.answers.clone(),
            account: around.account.clone(),
            bytes_max: around.shard.options.stream_buffer_bytes_max,
            message_bytes_max: around.shard.options.answer_message_bytes_max,
            gzip,
            made: around.made.clone(),
            method,
            counters: around.shard.counters.clone(),
        })
    }

    /// The sending side of a call without a stream of HTTP/2.
    pub(crate) fn local(shard: &ShardState, account: &Rc<Account>, method: u16) -> Rc<Sending> {
        Rc::new(Sending {
            state: RefCell::new(State::Local(VecDeque::new(), None)),
            ledger: Rc::new(Ledger::default()),
            connection: exchange::ledger(account),
            account: account.clone(),
            bytes_max: shard.options.stream_buffer_bytes_max,
            message_bytes_max: shard.options.answer_message_bytes_max,
            gzip: false,
            made: Rc::default(),
            method,
            counters: shard.counters.clone(),
        })
    }

    /// Takes the next message of a call without a stream of HTTP/2.
    pub(crate) fn poll_local(&self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let taken = match &mut *self.state.borrow_mut() {
            State::Local(queue, waker) => {
                let taken = queue.pop_front();
                if taken.is_none() {
                    *waker = Some(cx.waker().clone());
                }
                taken
            }
            State::Unopened(_) | State::Open(_) | State::Closed => None,
        };
        // Its bytes are released when it is dropped, which may wake the call.
        taken.map_or(Poll::Pending, |message| Poll::Ready(message.body()))
    }

    /// Closes a call without a stream of HTTP/2: whoever sends sees that it is over.
    pub(crate) fn close_local(&self) {
        drop(std::mem::replace(&mut *self.state.borrow_mut(), State::Closed));
        self.ledger.wake();
    }

    fn open(&self) -> Result<(), Status> {
        let mut state = self.state.borrow_mut();
        if let State::Unopened(respond) = &mut *state {
            *state = match respond.send_response(reply::opening(self.gzip), false) {
                Ok(send) => State::Open(send),
                Err(_) => State::Closed,
            };
        }
        if matches!(*state, State::Closed) { Err(CANCELED) } else { Ok(()) }
    }

    fn push(&self, message: Bytes, shared: bool) -> Result<(), TrySend> {
        self.open().map_err(|_| TrySend::Closed)?;
        // Packing into memory does not fail; if it did, an unpacked message is as good.
        let packed = if self.gzip {
            self.made.add(message.len());
            gzip::pack(&message).ok()
        } else {
            None
        };
        let compressed = packed.is_some();
        let message = packed.unwrap_or(message);
        let wire_bytes = message.len();
        check_len(wire_bytes, self.message_bytes_max).map_err(TrySend::TooLong)?;
        let out = if shared && !compressed {
            Outgoing::shared_message(message, &self.connection, &self.ledger)
        } else {
            Outgoing::message(message, compressed, &self.connection, Some(&self.ledger))
        };
        let mut state = self.state.borrow_mut();
        if let State::Local(queue, waker) = &mut *state {
            queue.push_back(out);
            waker.take().into_iter().for_each(Waker::wake);
            self.counters.sent(self.method, wire_bytes);
            return Ok(());
        }
        let State::Open(send) = &mut *state else { return Err(TrySend::Closed) };
        if send.send_data(out, false).is_err() {
            *state = State::Closed;
            return Err(TrySend::Closed);
        }
        self.counters.sent(self.method, wire_bytes);
        Ok(())
    }

    /// Ready when the client has reset the stream or is gone.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self.state.borrow_mut() {
            State::Unopened(respond) => respond.poll_reset(cx).map(|_| ()),
            State::Open(send) => send.poll_reset(cx).map(|_| ()),
            State::Local(..) => Poll::Pending,
            State::Closed => Poll::Ready(()),
        }
    }

    /// Ends the stream with a status. What is queued before it may still drain: then the handle to reset it
    /// comes back.
    pub(crate) fn finish(&self, result: &Result<(), Status>) -> Option<SendStream<Outgoing>> {
        let state = std::mem::replace(&mut *self.state.borrow_mut(), State::Closed);
        self.ledger.wake();
        // Errors of h2 here mean that the stream is gone, so that there is nobody to tell.
        match state {
            State::Unopened(mut respond) => match result {
                Ok(()) => {
                    let send = respond.send_response(reply::opening(self.gzip), false);
                    let _ = send.and_then(|mut send| send.send_trailers(reply::trailers(result)));
                    None
                }
                Err(status) => {
                    let _ = respond.send_response(reply::refusal(http::StatusCode::OK, status), true);
                    None
                }
            },
            State::Open(mut send) => {
                let sent = send.send_trailers(reply::trailers(result));
                (sent.is_ok() && self.ledger.queued() > 0).then_some(send)
            }
            State::Local(..) | State::Closed => None,
        }
    }

    /// Ends the stream with nothing but a reset.
    pub(crate) fn reset(&self, reason: Reason) {
        match std::mem::replace(&mut *self.state.borrow_mut(), State::Closed) {
            State::Unopened(mut respond) => respond.send_reset(reason),
            State::Open(mut send) => send.send_reset(reason),
            State::Local(..) | State::Closed => {}
        }
        self.ledger.wake();
    }
}
