//! A connection in the form that hyper needs, with or without TLS: [`Socket`]. It is given up when the peer
//! accepts no bytes for too long. It can be read ahead of hyper, which otherwise would not notice during a
//! response that the browser has gone.

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

/// Number of bytes read at once.
const READ_BYTES: usize = 8 * 1024;

/// Idle time after which the kernel probes the peer.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// A byte stream in both directions.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Wire for T {}

/// Enables TCP keepalive, to detect a dead peer, and sends small responses without delay.
pub(crate) fn prepare(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    // If an option cannot be set, the connection still works.
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    let _ = stream.set_nodelay(true);
}

/// An operating system stream.
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

/// A connection that can be read ahead, and whose writes must make progress.
pub(crate) struct Socket {
    wire: Box<dyn Wire>,
    /// Bytes read ahead of hyper.
    ahead: VecDeque<u8>,
    ahead_bytes_max: usize,
    stall_timeout: Duration,
    /// Timer that runs while the peer accepts no bytes.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(crate) fn new(wire: Box<dyn Wire>, ahead_bytes_max: usize, stall_timeout: Duration) -> Socket {
        Socket { wire, ahead: VecDeque::new(), ahead_bytes_max, stall_timeout, stalled: None }
    }

    /// Reads ahead what the peer sends. Ready when the peer has gone, or has sent more than the buffer holds.
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
            // Some servers end a TLS connection without close_notify. HTTP itself shows whether the response
            // is complete.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            polled => polled,
        }
    }

    /// Checks the progress of a write or a flush; returns an error if there was none for too long.
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

/// Implements hyper's clock with tokio's.
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
