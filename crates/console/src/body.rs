//! Bodies of requests and of answers: bytes at hand, or what the other side sends piece by piece.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Why a body ends early.
pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

/// What comes piece by piece.
pub(crate) trait Pieces {
    /// The next piece.
    ///
    /// # Errors
    /// It broke off, or is too large.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>>;

    /// Returns true if nothing more comes.
    fn is_ended(&self) -> bool;

    /// Number of bytes to come, as far as that is known.
    fn size_hint(&self) -> SizeHint;
}

/// A body.
pub(crate) enum PassedOn<P> {
    /// Bytes at hand; `None` once they are handed out.
    Whole(Option<Bytes>),
    /// What the other side sends.
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
