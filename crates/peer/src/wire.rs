//! [`Wire`]: a connection that yields to other connections, and fails when the other end takes no bytes in
//! time.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::ReadBuf;

use crate::stream::Stream;
use crate::turn::{TURN_BYTES, end_turn};

/// Interval of TCP keepalive probes, as in etcd.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A connection. Reads and writes are pending after [`TURN_BYTES`], so that other connections have their
/// turn. A write fails if the kernel takes no bytes for the write timeout.
pub(crate) struct Wire {
    stream: Stream,
    write_timeout: Duration,
    /// Write timeout; set while a write waits for the kernel.
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
            // Without this, bytes to a vanished host would count as sent for many minutes.
            #[cfg(target_os = "linux")]
            socket.set_tcp_user_timeout(Some(write_timeout))?;
        }
        Ok(Wire { stream, write_timeout, stalled: None, read_bytes: 0, written_bytes: 0 })
    }

    /// Removes a TCP connection from its runtime, so that another runtime can register it.
    pub(crate) fn into_std(self) -> io::Result<std::net::TcpStream> {
        match self.stream {
            Stream::Tcp(stream) => stream.into_std(),
            Stream::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns the address of the other end; `None` for a Unix socket.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match &self.stream {
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip().to_canonical()),
            Stream::Unix(_) => None,
        }
    }

    /// Reads bytes. Returns 0 at the end of the stream.
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

    /// Counts additional cost of the last read, as if `bytes` more bytes had been read.
    pub(crate) fn count_as_read(&mut self, bytes: usize) {
        self.read_bytes += bytes;
    }

    /// Writes the parts in order, as far as the kernel takes them. Returns the number of bytes taken.
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
