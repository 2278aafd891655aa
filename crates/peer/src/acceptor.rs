use std::io;
use std::net::SocketAddr;

use tls::ServerTls;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use transport::Stream;

use crate::options::{Listener, ListenerSocket};

/// Listener that is registered in the event loop of the peer thread.
#[derive(Debug)]
pub(crate) enum Acceptor {
    Tcp(TcpListener, Option<ServerTls>),
    /// Unix socket, without TLS.
    Unix(UnixListener),
}

/// Accepted connection.
pub(crate) enum Accepted {
    Plain(Stream, Option<SocketAddr>),
    /// Connection whose TLS handshake must be performed.
    Secured(TcpStream, SocketAddr, ServerTls),
}

impl Acceptor {
    /// Registers a listener in this thread's event loop.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses the socket, or for a Unix socket with TLS.
    pub(crate) fn new(listener: Listener) -> io::Result<Acceptor> {
        match (listener.socket, listener.tls) {
            (ListenerSocket::Tcp(socket), tls) => {
                socket.set_nonblocking(true)?;
                Ok(Acceptor::Tcp(TcpListener::from_std(socket)?, tls))
            }
            (ListenerSocket::Unix(socket), None) => {
                socket.set_nonblocking(true)?;
                Ok(Acceptor::Unix(UnixListener::from_std(socket)?))
            }
            (ListenerSocket::Unix(_), Some(_)) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "members speak no TLS through a Unix socket"))
            }
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Acceptor::Tcp(listener, tls) => {
                let (stream, from) = listener.accept().await?;
                Ok(match tls {
                    Some(tls) => Accepted::Secured(stream, from, tls.clone()),
                    None => Accepted::Plain(Stream::Tcp(stream), Some(from)),
                })
            }
            Acceptor::Unix(listener) => Ok(Accepted::Plain(Stream::Unix(listener.accept().await?.0), None)),
        }
    }
}

impl Accepted {
    /// Returns the address of the other end; `None` for a Unix socket.
    pub(crate) fn from(&self) -> Option<SocketAddr> {
        match self {
            Accepted::Plain(_, from) => *from,
            Accepted::Secured(_, from, _) => Some(*from),
        }
    }
}
