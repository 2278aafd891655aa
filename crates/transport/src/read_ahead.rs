//! Reads from a client for an HTTP/1 server that hyper runs: [`ReadAhead`] reads before hyper asks for bytes
//! and keeps them, [`poll_read_bounded`] reads when hyper asks.
//!
//! Reading in advance is needed to notice that a client has disconnected: while hyper answers a request, it
//! reads only the first bytes of the next request.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::ReadBufCursor;
use tokio::io::{AsyncRead, ReadBuf};

/// Maximum number of bytes of one read. It is small, because the head of a request may exceed hyper's limit
/// by this number: hyper checks the size of its buffer only between two reads.
const READ_BYTES: usize = 8 * 1024;

/// Bytes of a client that were read before hyper asked for them.
#[derive(Debug, Default)]
pub struct ReadAhead {
    bytes: VecDeque<u8>,
}

impl ReadAhead {
    /// Returns the number of bytes that hyper has not taken yet.
    pub fn held_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Reads until the stream is pending or more than `bytes_max` bytes are held, and in the latter case
    /// returns `Ok`. Before each read it polls `poll_turn`, which is ready if the connection may read now.
    ///
    /// # Errors
    ///
    /// Returns the error of the stream, or [`io::ErrorKind::UnexpectedEof`] at its end.
    pub fn poll_fill(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
        bytes_max: usize,
        mut poll_turn: impl FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<io::Result<()>> {
        let mut space = [0; READ_BYTES];
        while self.bytes.len() <= bytes_max {
            ready!(poll_turn(cx));
            let mut buffer = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.bytes.extend(buffer.filled());
            // Wake the task, because hyper may already be waiting for these bytes.
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    /// Moves held bytes into hyper's buffer. Returns false if there are none.
    pub fn take(&mut self, into: &mut ReadBufCursor<'_>) -> bool {
        let (part, _) = self.bytes.as_slices();
        let part = &part[..part.len().min(into.remaining())];
        into.put_slice(part);
        let taken = part.len();
        self.bytes.drain(..taken);
        taken > 0
    }
}

/// Reads once into hyper's buffer, at most 8 KiB (`READ_BYTES`), as [`ReadAhead::poll_fill`] does.
///
/// # Errors
///
/// Returns the error of the stream.
pub fn poll_read_bounded(
    stream: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    mut into: ReadBufCursor<'_>,
) -> Poll<io::Result<()>> {
    let mut space = [0; READ_BYTES];
    let room = into.remaining().min(READ_BYTES);
    let mut buffer = ReadBuf::new(&mut space[..room]);
    let polled = Pin::new(stream).poll_read(cx, &mut buffer);
    into.put_slice(buffer.filled());
    polled
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Takes at most `room` of the held bytes, as hyper does.
    fn take(ahead: &mut ReadAhead, room: usize) -> Vec<u8> {
        let mut space = vec![0; room];
        let mut buffer = hyper::rt::ReadBuf::new(&mut space);
        let is_taken = ahead.take(&mut buffer.unfilled());
        assert_eq!(is_taken, !buffer.filled().is_empty());
        buffer.filled().to_vec()
    }

    #[test]
    fn bytes_are_read_up_to_the_limit_and_taken_in_order() {
        let cx = &mut Context::from_waker(Waker::noop());
        let (mut ahead, mut stream) = (ReadAhead::default(), &[7; 20_000][..]);
        assert!(matches!(ahead.poll_fill(&mut stream, cx, 10_000, |_| Poll::Ready(())), Poll::Ready(Ok(()))));
        assert_eq!((ahead.held_bytes(), stream.len()), (2 * READ_BYTES, 20_000 - 2 * READ_BYTES));
        assert_eq!(take(&mut ahead, 100), [7; 100]);
        assert_eq!(take(&mut ahead, 20_000).len(), 2 * READ_BYTES - 100);
        assert_eq!(take(&mut ahead, 100), b"");
    }

    #[test]
    fn the_end_of_the_stream_is_an_error_and_bytes_before_it_stay() {
        let cx = &mut Context::from_waker(Waker::noop());
        let (mut ahead, mut stream) = (ReadAhead::default(), &b"next"[..]);
        assert!(ahead.poll_fill(&mut stream, cx, 100, |_| Poll::Pending).is_pending());
        assert_eq!(ahead.held_bytes(), 0);
        let Poll::Ready(Err(error)) = ahead.poll_fill(&mut stream, cx, 100, |_| Poll::Ready(())) else {
            panic!("the stream has ended")
        };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(take(&mut ahead, 100), b"next");
    }
}
