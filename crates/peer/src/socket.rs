//! Dialing a member, and a connection in the form that hyper needs: [`connect`] and [`Socket`]. The other end must take
//! bytes in time, or the connection is given up. TLS between members would begin here.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::ReadBufCursor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::endpoint::Endpoint;
use crate::turn::{TURN_BYTES, end_turn};

/// Bytes read at once.
const READ_BYTES: usize = 128 * 1024;
/// Interval of TCP keepalive, as in etcd.
const KEEPALIVE: Duration = Duration::from_secs(30);

thread_local! {
    /// Buffer that a read goes through on its way into hyper's, which cannot be read into without `unsafe`.
    static SPACE: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// Opens a connection to a member. TLS would begin here.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    dial_timeout: Duration,
    write_timeout: Duration,
) -> io::Result<Socket> {
    if endpoint.is_tls {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let dial = TcpStream::connect((endpoint.host.as_str(), endpoint.port));
    let stream = tokio::time::timeout(dial_timeout, dial)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "dial timed out"))??;
    Socket::new(stream, write_timeout)
}

/// A connection in the form that hyper needs; it is given up when the other end takes no bytes for too long.
pub(crate) struct Socket {
    stream: TcpStream,
    write_timeout: Duration,
    /// While a write waits for the kernel.
    stalled: Option<Pin<Box<tokio::time::Sleep>>>,
    /// Bytes read and written since the connection last had to wait.
    read_bytes: usize,
    written_bytes: usize,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, write_timeout: Duration) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        let socket = socket2::SockRef::from(&stream);
        socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(KEEPALIVE))?;
        // Bytes that a vanished host does not acknowledge would otherwise look sent for many minutes.
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(write_timeout))?;
        Ok(Socket { stream, write_timeout, stalled: None, read_bytes: 0, written_bytes: 0 })
    }

    /// The address at the other end.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.stream.peer_addr().ok().map(|address| address.ip().to_canonical())
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.written_bytes >= TURN_BYTES {
            self.written_bytes = 0;
            end_turn(cx);
            return Poll::Pending;
        }
        let polled = write(Pin::new(&mut self.stream), cx);
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
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no bytes")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl hyper::rt::Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read_bytes >= TURN_BYTES {
            self.read_bytes = 0;
            end_turn(cx);
            return Poll::Pending;
        }
        SPACE.with_borrow_mut(|space| {
            let room = into.remaining().min(space.len());
            let mut buffer = ReadBuf::new(&mut space[..room]);
            let polled = Pin::new(&mut self.stream).poll_read(cx, &mut buffer);
            into.put_slice(buffer.filled());
            self.read_bytes = if polled.is_ready() { self.read_bytes + buffer.filled().len() } else { 0 };
            polled
        })
    }
}

impl hyper::rt::Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream, cx| stream.poll_write_vectored(cx, parts))
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

/// hyper's view of tokio's clock.
#[derive(Clone, Copy)]
pub(crate) struct Clock;

struct Alarm(Pin<Box<tokio::time::Sleep>>);

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
