//! One call over a [`crate::Channel`]: [`Sender`] and [`Receiver`] are its two sides. Dropping the sending side before
//! its end cancels the call. It neither reconnects nor repeats.

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
    /// Metadata to send, in order.
    pub metadata: Vec<(HeaderName, HeaderValue)>,
    /// Time limit of the whole call; the server is told.
    pub timeout: Option<Duration>,
    /// Largest answer taken, in bytes.
    pub message_bytes_max: usize,
}

impl Default for CallOptions {
    fn default() -> CallOptions {
        CallOptions { metadata: Vec::new(), timeout: None, message_bytes_max: i32::MAX as usize }
    }
}

impl CallOptions {
    /// Adds a piece of metadata.
    #[must_use]
    pub fn with(mut self, key: HeaderName, value: HeaderValue) -> CallOptions {
        self.metadata.push((key, value));
        self
    }

    /// Sets how long the call may take.
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
    /// A message was begun, and whoever sent it gave up before its end.
    is_cut: bool,
    message_bytes_max: usize,
}

impl Sender {
    /// Sends one message, as the server's window opens. If the result is dropped before it is ready, the call is cancelled by
    /// the next message: part of this one may be on its way.
    ///
    /// # Errors
    /// `ResourceExhausted` for a message above the transport's limit. That the call is over is no error here: its
    /// [`Receiver`] knows why.
    pub async fn send(&mut self, message: Bytes) -> Result<(), Status> {
        self.send_framed(&message, false).await
    }

    /// Sends one message and closes this side.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub async fn send_last(&mut self, message: Bytes) -> Result<(), Status> {
        self.send_framed(&message, true).await
    }

    /// Closes this side.
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
        // Where the server answered early or reset the stream, its status comes from the receiver.
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
    /// True if the server said that it never looked at the call.
    unprocessed: bool,
}

impl Receiver {
    /// Returns true if the call failed and the server said that it never looked at it, so that even a write may be
    /// repeated.
    pub(crate) fn is_unprocessed(&self) -> bool {
        self.unprocessed
    }

    /// The next message; `None` when the call ended well. May be dropped and called again without loss.
    ///
    /// # Errors
    /// The server's status, or the client's own for a broken connection or a malformed answer.
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

/// The two sides of the call at this place.
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
