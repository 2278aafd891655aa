//! Defines the bodies of requests and responses: bytes in memory, or chunks that arrive from the other side.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Reason why a body ends early.
pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

/// A body that arrives in chunks.
pub(crate) trait BodyStream {
    /// Returns the next chunk; `None` at the end of the body.
    ///
    /// # Errors
    /// Returns an error if the body was interrupted or is too large.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>>;

    /// Returns true if no more chunks follow.
    fn is_ended(&self) -> bool;

    /// Returns bounds of the number of remaining bytes.
    fn size_hint(&self) -> SizeHint;
}

/// The body of a request or a response.
pub(crate) enum MessageBody<P> {
    /// Bytes in memory; `None` if there are none, or they have been taken.
    Whole(Option<Bytes>),
    /// A body that arrives in chunks.
    Stream(Box<P>),
}

impl<P> MessageBody<P> {
    pub(crate) fn of(bytes: impl Into<Bytes>) -> MessageBody<P> {
        MessageBody::Whole(Some(bytes.into()).filter(|bytes| !bytes.is_empty()))
    }
}

impl<P: BodyStream> Body for MessageBody<P> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            MessageBody::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            MessageBody::Stream(pieces) => {
                pieces.poll_piece(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            MessageBody::Whole(bytes) => bytes.is_none(),
            MessageBody::Stream(pieces) => pieces.is_ended(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            MessageBody::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            MessageBody::Stream(pieces) => pieces.size_hint(),
        }
    }
}
