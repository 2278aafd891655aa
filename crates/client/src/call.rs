//! Sends and receives the messages of one call over a [`crate::Channel`]. [`Sender`] and [`Receiver`] are the
//! two sides of the call. Dropping the sender before it has finished cancels the call. This module neither
//! reconnects nor retries.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use crate::messages::framed;
use crate::session::Session;

/// Options of a call.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// Metadata to send, in this order.
    pub metadata: Vec<(HeaderName, HeaderValue)>,
    /// Time limit of the whole call; `None` for no limit. The server receives it as the `grpc-timeout`
    /// header.
    pub timeout: Option<Duration>,
    /// Size limit of a response message in bytes. The limit of the transport applies if it is lower.
    pub message_bytes_max: usize,
    /// Number of endpoints to pass over in the order of a client's [`crate::Preference`], for a caller that
    /// makes a call again because it did not like the response. Clients without a preference, which use their
    /// endpoints in turn anyway, ignore it.
    pub passed_over: usize,
}

impl Default for CallOptions {
    fn default() -> CallOptions {
        CallOptions {
            metadata: Vec::new(),
            timeout: None,
            message_bytes_max: i32::MAX as usize,
            passed_over: 0,
        }
    }
}

impl CallOptions {
    /// Adds one metadata entry.
    #[must_use]
    pub fn with(mut self, key: HeaderName, value: HeaderValue) -> CallOptions {
        self.metadata.push((key, value));
        self
    }

    /// Sets the time limit of the call.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> CallOptions {
        self.timeout = Some(timeout);
        self
    }
}

/// The sending side of a call. Dropping it before [`Sender::finish`] cancels the call.
pub struct Sender {
    session: Arc<Session>,
    place: usize,
    finished: bool,
    /// True while a message is being sent. Stays true if the caller drops the future of `send` before the
    /// message is complete, so that the next `send` cancels the call.
    is_cut: bool,
    message_bytes_max: usize,
}

impl Sender {
    /// Sends one message. If the server's flow-control window is too small, waits until the server extends
    /// it. If the future is dropped before it is ready, the server may have received a part of the message;
    /// the next `send` then cancels the call.
    ///
    /// # Errors
    /// Returns `ResourceExhausted` for a message above the transport's limit. The end of the call is not an
    /// error here: the [`Receiver`] returns the call's status.
    pub async fn send(&mut self, message: Bytes) -> Result<(), Status> {
        self.send_framed(&message, false).await
    }

    /// Sends one message and closes the sending side.
    ///
    /// # Errors
    /// Returns the same errors as [`Sender::send`].
    pub async fn send_last(&mut self, message: Bytes) -> Result<(), Status> {
        self.send_framed(&message, true).await
    }

    /// Closes the sending side of the call.
    pub fn finish(&mut self) {
        if !self.finished {
            self.finished = true;
            self.session.finish(self.place);
        }
    }

    /// Cancels the call.
    pub fn cancel(&mut self) {
        self.finished = true;
        self.session.cancel(self.place);
    }

    async fn send_framed(&mut self, message: &[u8], is_last: bool) -> Result<(), Status> {
        let mut rest = framed(message, self.message_bytes_max)?;
        if std::mem::replace(&mut self.is_cut, true) {
            self.cancel();
        }
        // `sent` is false if the server has responded early or reset the stream. This is no error: the rest
        // of the message is not needed, and the receiver returns the status of the call.
        let sent = poll_fn(|cx| self.session.poll_send(cx, self.place, &mut rest, is_last)).await;
        self.is_cut = false;
        self.finished |= sent && is_last;
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.finished {
            self.session.cancel(self.place);
        }
        self.session.drop_sender(self.place);
    }
}

/// The receiving side of a call.
pub struct Receiver {
    session: Arc<Session>,
    place: usize,
    /// True if the server has confirmed that it did not process the call.
    unprocessed: bool,
}

impl Receiver {
    /// Returns true if the call failed and the server has confirmed that it did not process the call. In this
    /// case, even a write may be retried.
    pub(crate) fn is_unprocessed(&self) -> bool {
        self.unprocessed
    }

    /// Returns the next message, or `None` when the call ended with status OK. If the future is dropped, no
    /// message is lost; the method may be called again.
    ///
    /// # Errors
    /// Returns the status that the server sent. For a broken connection or a malformed response, returns a
    /// status that the client creates.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        poll_fn(|cx| self.session.poll_next(cx, self.place)).await.map_err(|failed| {
            self.unprocessed = failed.is_unprocessed;
            failed.status
        })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.session.drop_receiver(self.place);
    }
}

/// Returns the sending and the receiving side of the call with index `place` in the session.
pub(crate) fn sides(session: &Arc<Session>, place: usize, send_bytes_max: usize) -> (Sender, Receiver) {
    let sender = Sender {
        session: session.clone(),
        place,
        finished: false,
        is_cut: false,
        message_bytes_max: send_bytes_max,
    };
    (sender, Receiver { session: session.clone(), place, unprocessed: false })
}
