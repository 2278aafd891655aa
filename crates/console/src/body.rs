//! Bodies of requests and responses: bytes in memory, or pieces that arrive from the other side.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Reason why a body ends early.
pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

/// A body that arrives in pieces.
pub(crate) trait Pieces {
    /// Returns the next piece.
    ///
    /// # Errors
    /// The body was interrupted, or is too large.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>>;

    /// Returns true if no more pieces follow.
    fn is_ended(&self) -> bool;

    /// Returns the number of remaining bytes, as far as it is known.
    fn size_hint(&self) -> SizeHint;
}

/// The body of a request or a response.
pub(crate) enum PassedOn<P> {
    /// Bytes in memory; `None` once they are taken.
    Whole(Option<Bytes>),
    /// A body that arrives in pieces.
    Forwarded(Box<P>),
}

impl<P> PassedOn<P> {
    pub(crate) fn of(bytes: impl Into<Bytes>) -> PassedOn<P> {
        PassedOn::Whole(Some(bytes.into()).filter(|bytes| !bytes.is_empty()))
    }
}

impl<P: Pieces> Body for PassedOn<P> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            PassedOn::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            PassedOn::Forwarded(pieces) => {
                pieces.poll_piece(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            PassedOn::Whole(bytes) => bytes.is_none(),
            PassedOn::Forwarded(pieces) => pieces.is_ended(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            PassedOn::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            PassedOn::Forwarded(pieces) => pieces.size_hint(),
        }
    }
}
