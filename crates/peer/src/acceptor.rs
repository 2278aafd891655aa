use std::io;
use std::net::SocketAddr;

use tls::ServerTls;
use transport::{ListenerSocket, Stream};

use crate::options::Listener;

/// Listener for other members, registered in the event loop of the peer thread.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: transport::Listener,
    /// TLS settings; `None` for plain HTTP.
    pub(crate) tls: Option<ServerTls>,
}

impl Acceptor {
    /// Registers a listener in this thread's event loop.
    ///
    /// # Errors
    ///
    /// Returns an error if the socket cannot be registered, or if TLS is configured for a Unix socket.
    pub(crate) fn new(listener: Listener) -> io::Result<Acceptor> {
        let Listener { socket, tls } = listener;
        if matches!(socket, ListenerSocket::Unix(_)) && tls.is_some() {
            let text = "members do not use TLS over a Unix socket";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(Acceptor { listener: transport::Listener::new(socket)?, tls })
    }

    /// Waits for the next connection. Returns its socket and the address of its client, which is `None` for a
    /// Unix socket.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, Option<SocketAddr>)> {
        self.listener.accept().await
    }
}
