//! One call over a [`crate::Channel`]: [`Sender`] and [`Receiver`] are its two sides. Dropping the sending side before
//! its end cancels the call. It neither reconnects nor repeats.

use std::future::poll_fn;
use std::sync::Weak;
use std::time::Duration;

use api::{Code, Status};
use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::channel::broken;
use crate::messages::{Messages, framed};

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
    send: SendStream<Bytes>,
    finished: bool,
    message_bytes_max: usize,
}

impl Sender {
    pub(crate) fn new(send: SendStream<Bytes>, message_bytes_max: usize) -> Sender {
        Sender { send, finished: false, message_bytes_max }
    }

    /// Sends one message, as the server's window opens.
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
            // An error means that the call is over already.
            let _ = self.send.send_data(Bytes::new(), true);
        }
    }

    /// Cancels the call.
    pub fn cancel(&mut self) {
        self.finished = true;
        self.send.send_reset(Reason::CANCEL);
    }

    async fn send_framed(&mut self, message: &[u8], last: bool) -> Result<(), Status> {
        let mut rest = framed(message, self.message_bytes_max)?;
        while !rest.is_empty() {
            self.send.reserve_capacity(rest.len());
            let granted = match poll_fn(|cx| self.send.poll_capacity(cx)).await {
                Some(Ok(granted)) => granted.min(rest.len()),
                // The server answered early or reset the stream: its status comes from the receiver.
                Some(Err(_)) | None => return Ok(()),
            };
            let part = rest.split_to(granted);
            let end = last && rest.is_empty();
            self.finished |= end;
            if self.send.send_data(part, end).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.finished {
            self.send.send_reset(Reason::CANCEL);
        }
    }
}

enum Phase {
    Head(ResponseFuture),
    Body(RecvStream),
    Over(Result<(), Status>),
}

/// The receiving side of a call.
pub struct Receiver {
    phase: Phase,
    messages: Messages,
    head: HeaderMap,
    /// True if the server said that it never looked at the call.
    unprocessed: bool,
    /// Counts as an open call of its connection.
    _open: Weak<()>,
}

impl Receiver {
    pub(crate) fn new(response: ResponseFuture, message_bytes_max: usize, open: Weak<()>) -> Receiver {
        let messages = Messages::new(message_bytes_max);
        let phase = Phase::Head(response);
        Receiver { phase, messages, head: HeaderMap::new(), unprocessed: false, _open: open }
    }

    /// Returns true if the call failed and the server said that it never looked at it, so that even a write may be
    /// repeated.
    pub(crate) fn is_unprocessed(&self) -> bool {
        self.unprocessed
    }

    /// The answer's head; empty before the first message or status came.
    pub fn head(&self) -> &HeaderMap {
        &self.head
    }

    /// The next message; `None` when the call ended well.
    ///
    /// # Errors
    /// The server's status, or the client's own for a broken connection or a malformed answer.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            match &mut self.phase {
                Phase::Over(result) => return result.clone().map(|()| None),
                Phase::Head(response) => {
                    let response = response.await;
                    self.phase = match response {
                        Ok(response) => self.read_head_of(response),
                        Err(error) => {
                            self.unprocessed = is_unprocessed(&error);
                            Phase::Over(Err(broken(error)))
                        }
                    };
                }
                Phase::Body(recv) => {
                    match self.messages.next() {
                        Ok(Some(message)) => return Ok(Some(message)),
                        Ok(None) => {}
                        Err(status) => {
                            self.phase = Phase::Over(Err(status));
                            continue;
                        }
                    }
                    match recv.data().await {
                        Some(Ok(payload)) => {
                            // It fails only for a stream that is gone, which the next read reports.
                            let _ = recv.flow_control().release_capacity(payload.len());
                            self.messages.push(&payload);
                        }
                        Some(Err(error)) => self.phase = Phase::Over(Err(broken(error))),
                        None => {
                            let ended = match recv.trailers().await {
                                Err(error) => Err(broken(error)),
                                Ok(_) if self.messages.is_mid_message() => {
                                    Err(Status::new(Code::Internal, "unexpected EOF"))
                                }
                                Ok(Some(trailers)) => status_of(&trailers).unwrap_or(Err(NO_STATUS)),
                                Ok(None) => Err(NO_STATUS),
                            };
                            self.phase = Phase::Over(ended);
                        }
                    }
                }
            }
        }
    }

    fn read_head_of(&mut self, response: http::Response<RecvStream>) -> Phase {
        let (parts, body) = response.into_parts();
        self.head = parts.headers;
        match status_of(&self.head) {
            Some(result) => Phase::Over(result),
            None if parts.status == http::StatusCode::OK => Phase::Body(body),
            None => {
                let text = format!("unexpected HTTP status code received from server: {}", parts.status);
                Phase::Over(Err(Status::with(Code::Unknown, text)))
            }
        }
    }
}

/// An answer whose trailers do not say how it ended.
const NO_STATUS: Status = Status::new(Code::Internal, "server closed the stream without sending trailers");

/// Returns true if the server never looked at the call, by RFC 9113, sections 6.8 and 8.7: it refused the stream, or went
/// away before it came to it.
fn is_unprocessed(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    error.is_remote() && (refused || error.is_go_away())
}

fn status_of(headers: &HeaderMap) -> Option<Result<(), Status>> {
    let number = headers.get("grpc-status")?.to_str().ok().and_then(|text| text.parse().ok());
    let code = Code::from_number(number.unwrap_or(Code::Unknown as u32));
    if code == Code::Ok {
        return Some(Ok(()));
    }
    let message = headers.get("grpc-message").map_or(&b""[..], |value| value.as_bytes());
    Some(Err(Status::with(code, percent_decoded(message))))
}

fn percent_decoded(encoded: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((first, tail)) = rest.split_first() {
        let byte = match tail {
            [high, low, ..] if *first == b'%' => hex(*high).zip(hex(*low)).map(|(h, l)| h * 16 + l),
            _ => None,
        };
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_grpc_says() {
        assert_eq!(percent_decoded(b"100%25 %C3%BC%0A"), "100% ü\n");
        assert_eq!(percent_decoded(b"50% off %4"), "50% off %4");
    }
}
