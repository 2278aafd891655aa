//! Adapts a connection, with or without TLS, to hyper: [`Socket`]. A write fails if the other end accepts no
//! bytes for too long. The connection can be read ahead of hyper, which otherwise would not notice during a
//! response that the browser has disconnected.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use transport::{ReadAhead, Stream, ThreadBuffers, Wire, poll_read_bounded};

/// Size of each thread's buffers for TLS.
pub(crate) const TLS_BUFFERS: ThreadBuffers = ThreadBuffers(16 * 1024);

/// Time without traffic after which the kernel sends keepalive probes to the other end, and the time between
/// the probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Enables TCP keepalive, so that a dead peer is noticed, and disables the delay of small packets.
pub(crate) fn prepare(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    // Ignore errors: the connection works without these options too.
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    let _ = stream.set_nodelay(true);
}

/// A connection that can be read ahead, and whose writes must make progress.
pub(crate) struct Socket {
    wire: Wire<Stream>,
    /// Bytes that were read ahead of hyper, which gets them first.
    ahead: ReadAhead,
    ahead_bytes_max: usize,
    stall_timeout: Duration,
    /// Timer that runs while a write makes no progress.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(crate) fn new(wire: Wire<Stream>, ahead_bytes_max: usize, stall_timeout: Duration) -> Socket {
        Socket { wire, ahead: ReadAhead::default(), ahead_bytes_max, stall_timeout, stalled: None }
    }

    /// Reads what the browser sends, ahead of hyper. Resolves when the browser has disconnected, or has sent
    /// more than the buffer can hold.
    pub(crate) fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ahead.poll_fill(&mut self.wire, cx, self.ahead_bytes_max, |_| Poll::Ready(())).map(drop)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if self.ahead.take(&mut into) {
            return Poll::Ready(Ok(()));
        }
        poll_read_bounded(&mut self.wire, cx, into)
    }

    /// Must be called with the result of each write and flush. Returns an error if they have made no progress
    /// for too long.
    fn written<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let stall_timeout = self.stall_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(stall_timeout)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// The socket in the form in which hyper reads and writes it. Clones refer to the same socket.
#[derive(Clone)]
pub(crate) struct SharedSocket(pub(crate) Rc<RefCell<Socket>>);

impl Read for SharedSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_read(cx, into)
    }
}

impl Write for SharedSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut socket = self.0.borrow_mut();
        let polled = Write::poll_write(Pin::new(&mut socket.wire), cx, bytes);
        socket.written(cx, polled)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut socket = self.0.borrow_mut();
        let polled = Write::poll_flush(Pin::new(&mut socket.wire), cx);
        socket.written(cx, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut socket = self.0.borrow_mut();
        let polled = Write::poll_shutdown(Pin::new(&mut socket.wire), cx);
        socket.written(cx, polled)
    }
}
