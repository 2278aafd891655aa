//! The listeners of the console.

use std::net::IpAddr;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::time::Duration;

use std::io;

use telemetry::logging::Value;
use tls::ServerTls;

use crate::connection;
use crate::service::Service;
use crate::slots::Slots;
use crate::socket::{Stream, prepare};

/// Pause after a connection could not be accepted, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener of the console, whose socket listens already.
#[derive(Debug)]
pub struct Listener {
    /// Socket that listens.
    pub socket: ListenerSocket,
    /// TLS settings; `None` for plain HTTP.
    pub tls: Option<ServerTls>,
    /// Host of the listener's URL.
    pub host: String,
}

/// A socket that listens.
#[derive(Debug)]
pub enum ListenerSocket {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// Settings that the connections of a listener share.
pub(crate) struct Listening {
    pub(crate) tls: Option<ServerTls>,
    pub(crate) host: String,
}

/// A socket that is registered with the runtime.
pub(crate) enum Registered {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Registered {
    /// Registers a socket. Must be called inside the runtime.
    pub(crate) fn new(socket: ListenerSocket) -> io::Result<Registered> {
        match socket {
            ListenerSocket::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(socket).map(Registered::Tcp)
            }
            ListenerSocket::Unix(socket) => {
                socket.set_nonblocking(true)?;
                tokio::net::UnixListener::from_std(socket).map(Registered::Unix)
            }
        }
    }

    /// Accepts the next connection; returns it with its client's address, if it has one.
    async fn accept(&self) -> io::Result<(Stream, Option<IpAddr>)> {
        match self {
            Registered::Tcp(socket) => {
                let (stream, address) = socket.accept().await?;
                prepare(&stream);
                Ok((Stream::Tcp(stream), Some(address.ip().to_canonical())))
            }
            Registered::Unix(socket) => Ok((Stream::Unix(socket.accept().await?.0), None)),
        }
    }
}

/// Accepts connections as long as the future is polled.
pub(crate) async fn accept(
    socket: Registered,
    listening: Rc<Listening>,
    service: Rc<Service>,
    slots: Rc<Slots>,
) {
    loop {
        match socket.accept().await {
            Ok((stream, address)) => match slots.take(address) {
                Some(slot) => {
                    let serving = connection::serve(stream, Rc::clone(&listening), Rc::clone(&service), slot);
                    tokio::task::spawn_local(serving);
                }
                None => service.logger.warn_of_strangers(
                    "closed a connection to the console: all others have requests under way",
                    &[("connections", Value::Uint(service.dialer.limits.connections_max as u64))],
                ),
            },
            Err(error) => {
                let error = error.to_string();
                let fields = [("error", Value::Str(&error))];
                service.logger.warn_of_strangers("failed to accept a connection to the console", &fields);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
