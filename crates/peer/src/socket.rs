//! Provides connections between members, with or without TLS, to hyper: [`Socket`] implements hyper's I/O
//! traits.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use transport::Wire;

use crate::fair_stream::FairStream;
use crate::sessions::TlsConnection;

/// Connection with hyper's I/O traits. A write fails if the kernel accepts no bytes within the write timeout,
/// and any operation fails if the other end is no longer trusted.
pub(crate) struct Socket {
    wire: Wire<FairStream>,
    /// State of the TLS connection, which tells whether the other end is still trusted; `None` without TLS.
    tls: Option<Rc<TlsConnection>>,
}

impl Socket {
    pub(crate) fn plain(stream: FairStream) -> Socket {
        Socket { wire: Wire::Plain(stream), tls: None }
    }

    /// Creates the socket for a TLS connection whose handshake is complete.
    pub(crate) fn secured(wire: Wire<FairStream>, tls: Rc<TlsConnection>) -> Socket {
        Socket { wire, tls: Some(tls) }
    }

    /// Returns the address of the other end; `None` for a Unix socket.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.wire.below().address()
    }

    fn check(&self, cx: &Context<'_>) -> io::Result<()> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.check(cx))
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let polled = Read::poll_read(Pin::new(&mut self.wire), cx, into);
        let Wire::Tls(stream) = &mut self.wire else { return polled };
        // Count additional bytes as read for small TLS records, which are expensive to process.
        let surplus = stream.take_surplus();
        stream.below_mut().count_as_read(surplus);
        // Some TLS records must be answered, for example key updates. Send the answer here, because this end
        // may have no data to write. If sending fails, that is returned only if the read is pending;
        // otherwise the result of the read is returned.
        let answered = stream.poll_answer(cx);
        if polled.is_pending() {
            let _ = answered?;
        }
        polled.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the peer closed the connection"),
            _ => error,
        })
    }
}

impl Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Write::poll_write(Pin::new(&mut self.wire), cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Write::poll_write_vectored(Pin::new(&mut self.wire), cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Write::poll_flush(Pin::new(&mut self.wire), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Write::poll_shutdown(Pin::new(&mut self.wire), cx)
    }
}
