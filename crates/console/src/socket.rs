//! A connection in the form that hyper needs, with TLS or without: [`Socket`]. It is given up when the other end takes no bytes for too
//! long, and it can be read ahead of hyper, which would not see otherwise that a browser has gone while its answer goes on.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::ReadBufCursor;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Sleep, sleep};

/// Bytes read at once.
const READ_BYTES: usize = 8 * 1024;

/// Silence after which the kernel finds out whether the other end is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Bytes in both directions.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Wire for T {}

/// Has small answers sent at once, and the kernel find out that the other end is gone.
pub(crate) fn prepare(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    // Without them the connection still works.
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    let _ = stream.set_nodelay(true);
}

/// A stream of the system.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(crate) fn boxed(self) -> Box<dyn Wire> {
        match self {
            Stream::Tcp(stream) => Box::new(stream),
            Stream::Unix(stream) => Box::new(stream),
        }
    }
}

/// A connection whose reads can be done ahead, and whose writes have to get on.
pub(crate) struct Socket {
    wire: Box<dyn Wire>,
    /// Read ahead of hyper.
    ahead: VecDeque<u8>,
    ahead_bytes_max: usize,
    stall_timeout: Duration,
    /// Runs while the other end takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(crate) fn new(wire: Box<dyn Wire>, ahead_bytes_max: usize, stall_timeout: Duration) -> Socket {
        Socket { wire, ahead: VecDeque::new(), ahead_bytes_max, stall_timeout, stalled: None }
    }

    /// Reads what the other end sends before anybody asks for it. Ready when it has gone, or has sent more than is kept.
    pub(crate) fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut space = [0; READ_BYTES];
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            let read = ready!(Pin::new(&mut self.wire).poll_read(cx, &mut buffer));
            let bytes = buffer.filled();
            if read.is_err() || bytes.is_empty() || self.ahead.len() + bytes.len() > self.ahead_bytes_max {
                return Poll::Ready(());
            }
            self.ahead.extend(bytes);
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let (ahead, _) = self.ahead.as_slices();
        if !ahead.is_empty() {
            let count = ahead.len().min(into.remaining());
            into.put_slice(&ahead[..count]);
            self.ahead.drain(..count);
            return Poll::Ready(Ok(()));
        }
        let mut space = [0; READ_BYTES];
        let room = into.remaining().min(READ_BYTES);
        let mut buffer = ReadBuf::new(&mut space[..room]);
        let polled = Pin::new(&mut self.wire).poll_read(cx, &mut buffer);
        into.put_slice(buffer.filled());
        match polled {
            // Some servers end a TLS connection without TLS's own goodbye. Whether the answer is whole, HTTP says.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            polled => polled,
        }
    }

    /// What became of a write or a flush: an error if nothing got on for too long.
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

/// The socket as hyper reads and writes it. Clones share it.
#[derive(Clone)]
pub(crate) struct SharedSocket(pub(crate) Rc<RefCell<Socket>>);

impl hyper::rt::Read for SharedSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_read(cx, &mut into)
    }
}

impl hyper::rt::Write for SharedSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut socket = self.0.borrow_mut();
        let polled = Pin::new(&mut socket.wire).poll_write(cx, bytes);
        socket.written(cx, polled)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut socket = self.0.borrow_mut();
        let polled = Pin::new(&mut socket.wire).poll_flush(cx);
        socket.written(cx, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut socket = self.0.borrow_mut();
        let polled = Pin::new(&mut socket.wire).poll_shutdown(cx);
        socket.written(cx, polled)
    }
}

/// hyper's view of tokio's clock.
#[derive(Clone, Copy)]
pub(crate) struct Clock;

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
        Box::pin(Alarm(Box::pin(sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Alarm(Box::pin(tokio::time::sleep_until(deadline.into()))))
    }
}
