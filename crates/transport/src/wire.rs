//! Lets code use a connection with or without TLS in the same way: [`Wire`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buffers::{Buffers, ThreadBuffers};
use crate::tls_stream::TlsStream;

/// Any byte stream in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin {
    /// Reads as [`AsyncRead::poll_read`] does, without a pin.
    fn poll_read_unpin(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(self).poll_read(cx, into)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> ByteStream for T {}

/// Byte stream of a connection: without TLS, or with TLS after the handshake.
#[derive(Debug)]
pub enum Wire<S, P: Buffers = ThreadBuffers> {
    /// A stream without TLS.
    Plain(S),
    /// A stream with TLS.
    Tls(Box<TlsStream<S, P>>),
}

impl<S: ByteStream, P: Buffers> Wire<S, P> {
    /// Returns the stream below TLS, or the plain stream.
    pub fn below(&self) -> &S {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(stream) => stream.below(),
        }
    }

    /// Returns the number of bytes of memory that TLS holds for data at the moment; 0 without TLS.
    pub fn held_bytes(&self) -> usize {
        match self {
            Wire::Plain(_) => 0,
            Wire::Tls(stream) => stream.held_bytes(),
        }
    }

    /// Returns the additional processor time that reading took since the last call, for small TLS records. It
    /// is expressed as the number of bytes of data that take the same time; 0 without TLS.
    pub fn take_surplus(&mut self) -> usize {
        match self {
            Wire::Plain(_) => 0,
            Wire::Tls(stream) => stream.take_surplus(),
        }
    }

    /// Returns true if a part of a TLS record has arrived, and the rest has not.
    pub fn is_amid_record(&self) -> bool {
        matches!(self, Wire::Tls(stream) if stream.is_amid_record())
    }

    /// Returns true if both ends agreed on HTTP/2 by ALPN.
    pub fn has_agreed_on_h2(&self) -> bool {
        matches!(self, Wire::Tls(stream) if stream.alpn_protocol() == Some(b"h2"))
    }

    /// Returns the total number of bytes received through TLS, including its overhead; 0 without TLS.
    pub fn record_bytes(&self) -> u64 {
        match self {
            Wire::Plain(_) => 0,
            Wire::Tls(stream) => stream.record_bytes(),
        }
    }

    /// Reads bytes that the caller will discard, without decrypting them.
    pub fn poll_discard(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Wire::Plain(stream) => stream.poll_read_unpin(cx, into),
            Wire::Tls(stream) => stream.poll_discard(cx, into),
        }
    }
}

impl<S: ByteStream, P: Buffers + Unpin> AsyncRead for Wire<S, P> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => stream.poll_read_unpin(cx, into),
            Wire::Tls(stream) => stream.poll_read(cx, into.remaining(), |bytes| into.put_slice(bytes)),
        }
    }
}

impl<S: ByteStream, P: Buffers + Unpin> AsyncWrite for Wire<S, P> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Wire::Tls(stream) => stream.poll_write(cx, &[IoSlice::new(bytes)]),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Wire::Tls(stream) => stream.poll_write(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Tls(stream) => stream.poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Tls(stream) => stream.poll_shutdown(cx),
        }
    }
}
