//! Accepts connections: [`ListenerSocket`] is a listening socket that is not registered in an event loop yet,
//! [`Listener`] is one that is.

use std::io;
use std::net::SocketAddr;

use crate::stream::Stream;

/// Listening socket that is registered in no event loop.
#[derive(Debug)]
pub enum ListenerSocket {
    /// TCP socket.
    Tcp(std::net::TcpListener),
    /// Unix socket.
    Unix(std::os::unix::net::UnixListener),
}

impl From<std::net::TcpListener> for ListenerSocket {
    fn from(socket: std::net::TcpListener) -> ListenerSocket {
        ListenerSocket::Tcp(socket)
    }
}

/// Listening socket that is registered in this thread's event loop.
#[derive(Debug)]
pub enum Listener {
    /// TCP socket.
    Tcp(tokio::net::TcpListener),
    /// Unix socket.
    Unix(tokio::net::UnixListener),
}

impl Listener {
    /// Registers the socket in this thread's event loop.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn new(socket: ListenerSocket) -> io::Result<Listener> {
        Ok(match socket {
            ListenerSocket::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                Listener::Tcp(tokio::net::TcpListener::from_std(socket)?)
            }
            ListenerSocket::Unix(socket) => {
                socket.set_nonblocking(true)?;
                Listener::Unix(tokio::net::UnixListener::from_std(socket)?)
            }
        })
    }

    /// Waits for the next connection. Returns its stream and the address of its client, which is `None` for a
    /// Unix socket.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub async fn accept(&self) -> io::Result<(Stream, Option<SocketAddr>)> {
        Ok(match self {
            Listener::Tcp(socket) => {
                let (stream, from) = socket.accept().await?;
                (Stream::Tcp(stream), Some(from))
            }
            Listener::Unix(socket) => (Stream::Unix(socket.accept().await?.0), None),
        })
    }
}
