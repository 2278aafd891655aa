//! The sending half of a request's stream: [`Responder`] sends heads, messages and ends, and resets the stream when it is
//! dropped before its end. It knows no calls.

use std::cell::Cell;
use std::rc::Rc;

use api::Status;
use bytes::Bytes;
use http::StatusCode;
use http::response::Parts;
use http2::{Key, Payload, Reason, SendError};

use crate::context::ConnectionContext;
use crate::messages::Messages;
use crate::reply::{Field, TEMPLATES};

/// What a stream had sent and had waiting, for those who look whether it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moves {
    /// Bytes that ever left.
    pub(crate) sent: u64,
    /// Bytes that wait.
    pub(crate) queued: usize,
}

/// The sending half of a request's stream.
///
/// Commands for a stream that is over do nothing: its client is gone, so that there is nobody to tell.
pub(crate) struct Responder {
    around: Rc<ConnectionContext>,
    key: Key,
    is_done: bool,
    /// True if [`Responder::open`] has sent the head.
    is_opened: Cell<bool>,
}

impl Responder {
    pub(crate) fn new(around: &Rc<ConnectionContext>, key: Key) -> Responder {
        Responder { around: around.clone(), key, is_done: false, is_opened: Cell::new(false) }
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    pub(crate) fn around(&self) -> &Rc<ConnectionContext> {
        &self.around
    }

    /// Sends the head of an answer that carries messages; false if the stream is over.
    pub(crate) fn open(&self, packed: bool) -> bool {
        let head = TEMPLATES.opening(packed);
        let is_sent = self.around.http2.borrow_mut().send_head(self.key, head, &[], false).is_ok();
        self.is_opened.set(is_sent);
        is_sent
    }

    /// Returns true if [`Responder::open`] has sent the head.
    pub(crate) fn is_opened(&self) -> bool {
        self.is_opened.get()
    }

    /// Sends a part of the answer; false if the stream is over.
    pub(crate) fn send(&self, payload: Payload) -> bool {
        let sent = self.around.http2.borrow_mut().send_data(self.key, payload, false);
        self.around.charge_waiting();
        sent.is_ok()
    }

    /// Sends a message that is charged to the budget already, as one that others wait for too.
    pub(crate) fn send_shared(&self, message: Bytes) -> bool {
        let leaves = self.around.http2.borrow().sends_at_once(self.key, message.len() + 5);
        let message = if leaves { message } else { self.around.account.wait_for(message) };
        self.send(Payload::message(message, false).shared())
    }

    /// Sends messages with their prefixes; false if the stream is over.
    pub(crate) fn send_messages(&self, messages: Messages) -> bool {
        let sent = self.around.http2.borrow_mut().try_send_short(self.key, messages.as_slice());
        match sent {
            // None of it waits, so there is nothing to charge.
            Ok(true) => true,
            Ok(false) => self.send(Payload::from(messages.into_bytes())),
            Err(_) => false,
        }
    }

    /// Sends an answer of one message.
    pub(crate) fn answer(mut self, message: Bytes, packed: bool) {
        self.is_done = true;
        {
            let mut http2 = self.around.http2.borrow_mut();
            let templates = &*TEMPLATES;
            let (head, payload) = (templates.opening(packed), Payload::message(message, packed));
            // A stream that is over has nobody who waits for it.
            let _ = http2.send_response(self.key, head, payload, templates.good_end());
            if http2.queued_pieces() == 0 {
                return;
            }
        }
        self.around.charge_waiting();
    }

    /// Ends an answer that was begun, with its status.
    pub(crate) fn finish(mut self, result: &Result<(), Status>) {
        self.is_done = true;
        TEMPLATES.with_trailers(result, |trailers, more| {
            self.told(self.around.http2.borrow_mut().send_trailers(self.key, trailers, more));
        });
        self.around.charge_waiting();
    }

    /// Answers with nothing but a status.
    pub(crate) fn refuse(mut self, http: StatusCode, status: &Status) {
        self.is_done = true;
        TEMPLATES.with_refusal(http, status, |head, more| {
            self.told(self.around.http2.borrow_mut().send_head(self.key, head, more, true));
        });
    }

    /// Sends the head of a page. `end` says that nothing follows. False if the stream is over.
    pub(crate) fn open_page(&mut self, head: &Parts, end: bool) -> bool {
        let mut fields: Vec<Field<'_>> = vec![(b":status", head.status.as_str().as_bytes())];
        // A header value may begin or end with white space in HTTP/1, which means nothing there.
        fields.extend(
            head.headers
                .iter()
                .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes().trim_ascii())),
        );
        let sent = self.around.http2.borrow_mut().send_head(self.key, &TEMPLATES.nothing, &fields, end);
        self.is_done |= end && sent.is_ok();
        sent.is_ok()
    }

    /// Ends a page.
    pub(crate) fn end_page(mut self) {
        self.is_done = true;
        let end = Payload::from(Bytes::new());
        self.told(self.around.http2.borrow_mut().send_data(self.key, end, true));
        self.around.charge_waiting();
    }

    /// Ends the stream with nothing but a reset.
    pub(crate) fn reset(mut self, reason: Reason) {
        self.is_done = true;
        self.around.http2.borrow_mut().reset(self.key, reason);
        self.around.charge_waiting();
    }

    /// A stream that is over needs nothing more.
    fn told(&self, sent: Result<(), SendError>) {
        debug_assert!(!matches!(sent, Err(SendError::NoHead | SendError::Invalid(_))), "{sent:?}");
    }

    /// Returns true if the stream is not over.
    pub(crate) fn is_open(&self) -> bool {
        self.around.http2.borrow().is_open(self.key)
    }

    /// Bytes of the answer that wait for the client.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.around.http2.borrow().stream_queued_bytes(self.key)
    }

    /// What was sent and what waits.
    pub(crate) fn moves(&self) -> Moves {
        moves(&self.around.http2.borrow(), self.key)
    }

    /// Bytes that the client and the connection's output take now.
    pub(crate) fn room(&self) -> usize {
        self.around.http2.borrow().room(self.key)
    }

    /// Lets the call be woken when nothing of it waits and there is room.
    pub(crate) fn want_room(&self) {
        self.around.http2.borrow_mut().want_room(self.key);
    }
}

/// What a stream had sent and has waiting.
pub(crate) fn moves(http2: &http2::Connection, key: Key) -> Moves {
    Moves { sent: http2.stream_sent_bytes(key), queued: http2.stream_queued_bytes(key) }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.is_done {
            self.around.http2.borrow_mut().reset(self.key, Reason::CANCEL);
            self.around.charge_waiting();
        }
    }
}
