//! Lets hyper run on tokio: implements hyper's I/O traits for [`Wire`], and its timer trait with [`Clock`].

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::ReadBufCursor;
use tokio::io::{AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::buffers::Buffers;
use crate::scratch;
use crate::wire::{ByteStream, Wire};

/// Bytes are copied into hyper's buffer, because reading into it directly would need `unsafe`. With TLS,
/// decrypted bytes are copied from rustls; without TLS, bytes are read into the scratch buffer first.
impl<S: ByteStream, P: Buffers + Unpin> hyper::rt::Read for Wire<S, P> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => scratch::with(|scratch| {
                let room = into.remaining().min(scratch.len());
                let mut space = ReadBuf::new(&mut scratch[..room]);
                ready!(stream.poll_read_unpin(cx, &mut space))?;
                into.put_slice(space.filled());
                Poll::Ready(Ok(()))
            }),
            Wire::Tls(stream) => stream.poll_read(cx, into.remaining(), |bytes| into.put_slice(bytes)),
        }
    }
}

impl<S: ByteStream, P: Buffers + Unpin> hyper::rt::Write for Wire<S, P> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(self, cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write_vectored(self, cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(self, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(self, cx)
    }
}

/// Adapts tokio's clock to hyper's timer trait.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

struct Alarm(Pin<Box<Sleep>>);

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl hyper::rt::Sleep for Alarm {}

impl hyper::rt::Timer for Clock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Alarm(Box::pin(tokio::time::sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Alarm(Box::pin(tokio::time::sleep_until(deadline.into()))))
    }
}
