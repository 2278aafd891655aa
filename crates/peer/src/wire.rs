//! [`Wire`]: a connection that gives others their turn, and that is given up when the other end takes no bytes in time.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::ReadBuf;

use crate::stream::Stream;
use crate::turn::{TURN_BYTES, end_turn};

/// Interval of TCP keepalive, as in etcd.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A connection. Reads and writes are pending after [`TURN_BYTES`], so that others get their turn, and a write fails when
/// the kernel has taken nothing for the time that it is given.
pub(crate) struct Wire {
    stream: Stream,
    write_timeout: Duration,
    /// While a write waits for the kernel.
    stalled: Option<Pin<Box<tokio::time::Sleep>>>,
    /// Bytes read and written since the connection last had to wait.
    read_bytes: usize,
    written_bytes: usize,
}

impl Wire {
    pub(crate) fn new(stream: Stream, write_timeout: Duration) -> io::Result<Wire> {
        if let Stream::Tcp(stream) = &stream {
            stream.set_nodelay(true)?;
            let socket = socket2::SockRef::from(stream);
            socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(KEEPALIVE))?;
            // Bytes that a vanished host does not acknowledge would otherwise look sent for many minutes.
            #[cfg(target_os = "linux")]
            socket.set_tcp_user_timeout(Some(write_timeout))?;
        }
        Ok(Wire { stream, write_timeout, stalled: None, read_bytes: 0, written_bytes: 0 })
    }

    /// Takes a TCP connection out of its runtime, so that another one can take it over.
    pub(crate) fn into_std(self) -> io::Result<std::net::TcpStream> {
        match self.stream {
            Stream::Tcp(stream) => stream.into_std(),
            Stream::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The address at the other end; a Unix socket has none.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match &self.stream {
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip().to_canonical()),
            Stream::Unix(_) => None,
        }
    }

    /// Reads; nothing is the end.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.read_bytes >= TURN_BYTES {
            self.read_bytes = 0;
            end_turn(cx);
            return Poll::Pending;
        }
        let mut buffer = ReadBuf::new(into);
        let polled = self.stream.poll_read(cx, &mut buffer);
        let bytes = buffer.filled().len();
        self.read_bytes = if polled.is_ready() { self.read_bytes + bytes } else { 0 };
        polled.map_ok(|()| bytes)
    }

    /// What was read has cost as much as so many bytes more.
    pub(crate) fn count_as_read(&mut self, bytes: usize) {
        self.read_bytes += bytes;
    }

    /// Writes the parts one after the other, as far as the kernel takes them; returns how many bytes it took.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.written_bytes >= TURN_BYTES {
            self.written_bytes = 0;
            end_turn(cx);
            return Poll::Pending;
        }
        let polled = self.stream.poll_write(cx, parts);
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

    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_shutdown(cx)
    }
}
