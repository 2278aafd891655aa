//! Wraps the socket of a connection between members, so that a busy connection does not delay the others, and
//! a connection whose other end accepts no bytes ends: [`FairStream`].

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use transport::{Detached, Stream, end_turn};

/// Number of bytes that one connection reads or writes before the other connections may proceed. Without this
/// limit, raft's heartbeats to other members would wait while the long queue of one connection is sent.
pub(crate) const TURN_BYTES: usize = 512 * 1024;

/// Time without data after which the kernel sends TCP keepalive probes; the same as in etcd.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Socket of a connection between members. After [`TURN_BYTES`] in one direction a read or write is pending
/// once, so that other connections may proceed. A write fails if the kernel accepts no bytes within the write
/// timeout.
#[derive(Debug)]
pub(crate) struct FairStream {
    stream: Stream,
    write_timeout: Duration,
    /// Timer of the write timeout; `None` unless a write waits for the kernel.
    stalled: Option<Pin<Box<tokio::time::Sleep>>>,
    /// Bytes that were read since a read was last pending; `written_bytes` is the same for writes.
    read_bytes: usize,
    written_bytes: usize,
}

impl FairStream {
    pub(crate) fn new(stream: Stream, write_timeout: Duration) -> io::Result<FairStream> {
        if let Stream::Tcp(stream) = &stream {
            stream.set_nodelay(true)?;
            let socket = socket2::SockRef::from(stream);
            socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(KEEPALIVE))?;
            // Limit the time for which the kernel waits for an acknowledgement of sent bytes. By default, it
            // would continue to accept bytes for many minutes after the other host has vanished.
            #[cfg(target_os = "linux")]
            socket.set_tcp_user_timeout(Some(write_timeout))?;
        }
        Ok(FairStream { stream, write_timeout, stalled: None, read_bytes: 0, written_bytes: 0 })
    }

    /// Removes the socket from the event loop of this thread, so that another thread can register it.
    pub(crate) fn detach(self) -> io::Result<Detached> {
        self.stream.detach()
    }

    /// Returns the address of the other end; `None` for a Unix socket.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.stream.peer_address().map(|address| address.ip().to_canonical())
    }

    /// Counts `bytes` more bytes as read, for data that is more expensive to process than its size says.
    pub(crate) fn count_as_read(&mut self, bytes: usize) {
        self.read_bytes += bytes;
    }
}

impl AsyncRead for FairStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read_bytes >= TURN_BYTES {
            self.read_bytes = 0;
            end_turn(cx);
            return Poll::Pending;
        }
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, into);
        let bytes = into.filled().len() - before;
        self.read_bytes = if polled.is_ready() { self.read_bytes + bytes } else { 0 };
        polled
    }
}

impl AsyncWrite for FairStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.written_bytes >= TURN_BYTES {
            self.written_bytes = 0;
            end_turn(cx);
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        if let Poll::Ready(result) = polled {
            self.stalled = None;
            self.written_bytes += result.as_ref().map_or(0, |written| *written);
            return Poll::Ready(result);
        }
        self.written_bytes = 0;
        let timeout = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
