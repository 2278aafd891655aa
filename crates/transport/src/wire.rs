//! The byte stream of a connection, with TLS or without: [`Wire`].

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

/// Byte stream of a connection: plain, or TLS after the handshake.
#[derive(Debug)]
pub enum Wire<S, P: Buffers = ThreadBuffers> {
    /// Without TLS.
    Plain(S),
    /// With TLS.
    Tls(Box<TlsStream<S, P>>),
}

impl<S: ByteStream, P: Buffers> Wire<S, P> {
    /// Returns the stream below TLS.
    pub fn below(&self) -> &S {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(stream) => stream.below(),
        }
    }

    /// Returns the bytes of the buffers held now.
    pub fn held_bytes(&self) -> usize {
        match self {
            Wire::Plain(_) => 0,
            Wire::Tls(stream) => stream.held_bytes(),
        }
    }

    /// Returns the cost of reading since the last call beyond the bytes read, as a number of bytes of equal
    /// cost.
    pub fn take_surplus(&mut self) -> usize {
        match self {
            Wire::Plain(_) => 0,
            Wire::Tls(stream) => stream.take_surplus(),
        }
    }

    /// Returns true if a TLS record has arrived in part.
    pub fn is_amid_record(&self) -> bool {
        matches!(self, Wire::Tls(stream) if stream.is_amid_record())
    }

    /// Returns true if both ends agreed on HTTP/2 by ALPN.
    pub fn has_agreed_on_h2(&self) -> bool {
        matches!(self, Wire::Tls(stream) if stream.alpn_protocol() == Some(b"h2"))
    }

    /// Returns the total bytes of TLS records received.
    pub fn record_bytes(&self) -> u64 {
        match self {
            Wire::Plain(_) => 0,
            Wire::Tls(stream) => stream.record_bytes(),
        }
    }

    /// Reads bytes that will be discarded, without decrypting them.
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
