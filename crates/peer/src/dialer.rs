//! Opens connections to members, with TLS if their URLs require it: [`Dialer`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tls::ClientTls;
use tokio::net::{TcpSocket, TcpStream, UnixStream, lookup_host};
use transport::Stream;

use crate::endpoint::{Address, Endpoint};
use crate::fair_stream::FairStream;
use crate::handshakes::{self, Failure, Handshakes};
use crate::sessions::{Sessions, Side};
use crate::socket::Socket;

/// Opens connections to members.
pub(crate) struct Dialer {
    /// TLS settings for `https` URLs.
    tls: Option<ClientTls>,
    pub(crate) sessions: Sessions,
    /// Handle of the thread that performs TLS handshakes; `None` if they are performed on the thread that
    /// dials.
    pub(crate) handshakes: Option<Handshakes>,
    /// Local address for connections; `None` if the operating system chooses it.
    local: Option<IpAddr>,
}

impl Dialer {
    pub(crate) fn new(tls: Option<ClientTls>, handshakes: Option<Handshakes>) -> Dialer {
        Dialer { tls, sessions: Sessions::default(), handshakes, local: None }
    }

    /// Sets the local address for connections.
    pub(crate) fn bound_to(self, local: Option<IpAddr>) -> Dialer {
        Dialer { local, ..self }
    }

    /// Returns true if `https` URLs can be dialed.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Opens a connection. `dial_timeout` limits the time for resolving the host name and connecting the
    /// socket; the TLS handshake has a separate time limit.
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
        dial_timeout: Duration,
        write_timeout: Duration,
    ) -> io::Result<Socket> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "dial timed out");
        let (host, port) = match &endpoint.address {
            Address::Tcp { host, port } => (host, *port),
            Address::Unix { path } => {
                let stream =
                    tokio::time::timeout(dial_timeout, UnixStream::connect(path)).await.map_err(late)??;
                return Ok(Socket::plain(FairStream::new(Stream::Unix(stream), write_timeout)?));
            }
        };
        let stream = tokio::time::timeout(dial_timeout, self.dial(host, port)).await.map_err(late)??;
        if !endpoint.is_tls {
            return Ok(Socket::plain(FairStream::new(Stream::Tcp(stream), write_timeout)?));
        }
        let tls = self.tls.as_ref().ok_or_else(|| io::Error::other("no TLS settings"))?;
        let stream = Stream::Tcp(stream).detach()?;
        let met = match &self.handshakes {
            Some(thread) => thread.connect(stream, host.clone(), tls.clone(), write_timeout).await,
            None => handshakes::connect(stream, host, tls, write_timeout).await,
        };
        let (wire, session) = met?.attach(write_timeout)?;
        let watched = self.sessions.watch(Side::Dialed(tls.clone()), session, endpoint.authority.clone());
        let watched = watched.map_err(Failure::Refused)?;
        Ok(Socket::secured(wire, watched))
    }

    async fn dial(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let Some(local) = self.local else { return TcpStream::connect((host, port)).await };
        let mut fault = None;
        for address in lookup_host((host, port)).await? {
            let socket = match address {
                SocketAddr::V4(_) if local.is_ipv4() => TcpSocket::new_v4()?,
                SocketAddr::V6(_) if local.is_ipv6() => TcpSocket::new_v6()?,
                // Skip an address of the other IP version, which cannot be reached from the configured local
                // address.
                _ => continue,
            };
            socket.bind((local, 0).into())?;
            match socket.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => fault = Some(error),
            }
        }
        Err(fault.unwrap_or_else(|| {
            io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                format!("{host} has no address that is reachable from {local}"),
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn connections_come_from_the_address_that_they_are_bound_to() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let dial = |local: Option<&str>| {
            let local = local.map(|text| text.parse().expect("an address"));
            runtime.block_on(Dialer::new(None, None).bound_to(local).dial("127.0.0.1", port))
        };
        for (local, seen) in [(None, "127.0.0.1"), (Some("127.0.0.7"), "127.0.0.7")] {
            let stream = dial(local).expect("connects");
            assert_eq!(listener.accept().expect("accepts").1.ip().to_string(), seen);
            drop(stream);
        }
        let why = dial(Some("::1")).expect_err("cannot reach it").to_string();
        assert_eq!(why, "127.0.0.1 has no address that is reachable from ::1");
    }
}
