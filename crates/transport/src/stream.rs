//! Provides byte streams over TCP and Unix sockets: [`Stream`] is registered in the event loop of a thread,
//! [`Detached`] in none, so that it can move to another thread.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// Connected socket that is registered in no event loop.
#[derive(Debug)]
pub enum Detached {
    /// A TCP connection.
    Tcp(std::net::TcpStream),
    /// A connection through a Unix socket.
    Unix(std::os::unix::net::UnixStream),
}

/// Connected socket that is registered in this thread's event loop.
#[derive(Debug)]
pub enum Stream {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A connection through a Unix socket.
    Unix(UnixStream),
}

impl Detached {
    /// Registers the socket in this thread's event loop.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system, for a broken socket.
    pub fn attach(self) -> io::Result<Stream> {
        Ok(match self {
            Detached::Tcp(stream) => Stream::Tcp(TcpStream::from_std(stream)?),
            Detached::Unix(stream) => Stream::Unix(UnixStream::from_std(stream)?),
        })
    }
}

impl Stream {
    /// Returns the local address of the socket; `None` for a Unix socket.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Stream::Tcp(stream) => stream.local_addr().ok(),
            Stream::Unix(_) => None,
        }
    }

    /// Returns the address of the other end; `None` for a Unix socket.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        match self {
            Stream::Tcp(stream) => stream.peer_addr().ok(),
            Stream::Unix(_) => None,
        }
    }

    /// Waits for the next byte and returns it without consuming it; `None` at the end of the stream.
    pub fn poll_first_byte(&self, cx: &mut Context<'_>) -> Poll<io::Result<Option<u8>>> {
        let mut byte = [0];
        let read = loop {
            match self {
                Stream::Tcp(stream) => {
                    break ready!(stream.poll_peek(cx, &mut ReadBuf::new(&mut byte)))?;
                }
                Stream::Unix(stream) => {
                    ready!(stream.poll_read_ready(cx))?;
                    // Treat the socket as a TCP socket in order to call `peek`, which the standard library
                    // has only for TCP. The system call (`recv` with `MSG_PEEK`) works on any socket.
                    let socket = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?);
                    match stream.try_io(Interest::READABLE, || socket.peek(&mut byte)) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        peeked => break peeked?,
                    }
                }
            }
        };
        Poll::Ready(Ok((read > 0).then_some(byte[0])))
    }

    /// Removes the socket from the event loop of this thread, so that another one can register it.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system, for a broken socket.
    pub fn detach(self) -> io::Result<Detached> {
        Ok(match self {
            Stream::Tcp(stream) => Detached::Tcp(stream.into_std()?),
            Stream::Unix(stream) => Detached::Unix(stream.into_std()?),
        })
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
