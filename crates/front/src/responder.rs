//! Implements the sending half of a request's HTTP/2 stream: [`Responder`] sends heads, messages and
//! trailers, and resets the stream if it is dropped before the answer is complete. This module does not know
//! calls.

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

/// Maximum size in bytes of a chunk of a large answer, after which other calls run.
pub(crate) const PIECE_BYTES: usize = 64 * 1024;

/// Numbers of bytes that a stream has sent and has queued, for detecting stalled streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamBytes {
    /// Total number of bytes ever sent on the stream.
    pub(crate) sent: u64,
    /// Number of bytes that are queued on the stream.
    pub(crate) queued: usize,
}

/// The sending half of a request's stream.
///
/// Commands for a stream that has ended do nothing: its client no longer waits for an answer.
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

    /// Sends the head of an answer that carries messages. Returns false if the stream has ended.
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

    /// Sends or queues a part of the answer. Returns false if the stream has ended.
    pub(crate) fn send(&self, payload: Payload) -> bool {
        let sent = self.around.http2.borrow_mut().send_data(self.key, payload, false);
        self.around.charge_waiting();
        sent.is_ok()
    }

    /// Sends or queues a message that several streams share and whose memory is already reserved in the
    /// budget. Returns false if the stream has ended.
    pub(crate) fn send_shared(&self, message: Bytes) -> bool {
        let leaves = self.around.http2.borrow().sends_at_once(self.key, message.len() + 5);
        let message = if leaves { message } else { self.around.account.wait_for(message) };
        self.send(Payload::message(message, false).shared())
    }

    /// Sends or queues several messages as one payload. Returns false if the stream has ended.
    pub(crate) fn send_messages(&self, messages: Messages) -> bool {
        let sent = self.around.http2.borrow_mut().try_send_short(self.key, messages.as_slice());
        match sent {
            // The messages went into the output and none was queued in the stream, so no memory need be
            // reserved for them.
            Ok(true) => true,
            Ok(false) => self.send(Payload::from(messages.into_bytes())),
            Err(_) => false,
        }
    }

    /// Sends an answer that consists of one message.
    pub(crate) fn answer(mut self, message: Bytes, packed: bool) {
        self.is_done = true;
        {
            let mut http2 = self.around.http2.borrow_mut();
            let templates = &*TEMPLATES;
            let (head, payload) = (templates.opening(packed), Payload::message(message, packed));
            // The error is ignored: it means that the stream has ended, so that no answer is needed.
            let _ = http2.send_response(self.key, head, payload, templates.good_end());
            if http2.queued_pieces() == 0 {
                return;
            }
        }
        self.around.charge_waiting();
    }

    /// Ends an answer whose head was sent: sends the trailers with the status.
    pub(crate) fn finish(mut self, result: &Result<(), Status>) {
        self.is_done = true;
        TEMPLATES.with_trailers(result, |trailers, more| {
            self.ignore_end(self.around.http2.borrow_mut().send_trailers(self.key, trailers, more));
        });
        self.around.charge_waiting();
    }

    /// Answers with a status only, without messages.
    pub(crate) fn refuse(mut self, http: StatusCode, status: &Status) {
        self.is_done = true;
        TEMPLATES.with_refusal(http, status, |head, more| {
            self.ignore_end(self.around.http2.borrow_mut().send_head(self.key, head, more, true));
        });
    }

    /// Sends the head of a page's answer. `end` is true if no body follows. Returns false if the stream has
    /// ended.
    pub(crate) fn open_page(&mut self, head: &Parts, end: bool) -> bool {
        let mut fields: Vec<Field<'_>> = vec![(b":status", head.status.as_str().as_bytes())];
        // White space around values is removed: HTTP/1 allows it and gives it no meaning, HTTP/2 forbids it.
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
        self.ignore_end(self.around.http2.borrow_mut().send_data(self.key, end, true));
        self.around.charge_waiting();
    }

    /// Ends the stream with a reset and no status.
    pub(crate) fn reset(mut self, reason: Reason) {
        self.is_done = true;
        self.around.http2.borrow_mut().reset(self.key, reason);
        self.around.charge_waiting();
    }

    /// Ignores the error that a stream has ended. Any other error is a bug, for which debug builds panic.
    fn ignore_end(&self, sent: Result<(), SendError>) {
        debug_assert!(!matches!(sent, Err(SendError::NoHead | SendError::Invalid(_))), "{sent:?}");
    }

    /// Returns true if the stream has not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.around.http2.borrow().is_open(self.key)
    }

    /// Returns the number of queued bytes of the answer.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.around.http2.borrow().stream_queued_bytes(self.key)
    }

    /// Returns the bytes sent and queued on the stream.
    pub(crate) fn stream_bytes(&self) -> StreamBytes {
        stream_bytes(&self.around.http2.borrow(), self.key)
    }

    /// Returns the number of bytes that can be sent on the stream now, within the client's flow-control
    /// windows and the limit of the connection's output.
    pub(crate) fn room(&self) -> usize {
        self.around.http2.borrow().room(self.key)
    }

    /// Returns the space for the stream's next messages.
    pub(crate) fn stream_room(&self) -> Room {
        let http2 = self.around.http2.borrow();
        let buffer = self.around.shard.options.stream_buffer_bytes_max;
        let left = buffer.saturating_sub(http2.stream_queued_bytes(self.key));
        let soon = http2.room_beside_others(self.key).min(left);
        Room { soon, most: http2.window_left(self.key).min(left).max(soon) }
    }

    /// Requests that the call be stepped again when nothing of its answer is queued and the window is open.
    pub(crate) fn want_room(&self) {
        self.around.http2.borrow_mut().want_room(self.key);
    }
}

/// Space for the next messages of a stream, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that leave the stream's buffer in its next turns: 0 if the client takes nothing now.
    pub soon: usize,
    /// Bytes that the client's flow-control windows and the stream's buffer allow, at least `soon`.
    pub most: usize,
}

impl Room {
    /// No space at all.
    pub const NONE: Room = Room { soon: 0, most: 0 };
}

/// Returns the bytes sent and queued on a stream.
pub(crate) fn stream_bytes(http2: &http2::Connection, key: Key) -> StreamBytes {
    StreamBytes { sent: http2.stream_sent_bytes(key), queued: http2.stream_queued_bytes(key) }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.is_done {
            self.around.http2.borrow_mut().reset(self.key, Reason::CANCEL);
            self.around.charge_waiting();
        }
    }
}
