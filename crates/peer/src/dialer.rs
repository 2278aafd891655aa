//! Opening connections to members, with TLS where their URLs say so: [`Dialer`].

use std::io;
use std::time::Duration;

use tls::ClientTls;
use tokio::net::TcpStream;

use crate::endpoint::Endpoint;
use crate::handshakes::{self, Failure, Handshakes, Met};
use crate::sessions::{Sessions, Side};
use crate::socket::Socket;
use crate::wire::Wire;

/// Opens connections to members.
pub(crate) struct Dialer {
    /// For `https` URLs.
    tls: Option<ClientTls>,
    pub(crate) sessions: Sessions,
    /// The thread that shakes hands; `None`: on this thread.
    pub(crate) handshakes: Option<Handshakes>,
}

impl Dialer {
    pub(crate) fn new(tls: Option<ClientTls>, handshakes: Option<Handshakes>) -> Dialer {
        Dialer { tls, sessions: Sessions::default(), handshakes }
    }

    /// Returns true if `https` URLs can be dialed.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Opens a connection. `dial_timeout` is for the connection of TCP; a handshake has its own time.
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
        dial_timeout: Duration,
        write_timeout: Duration,
    ) -> io::Result<Socket> {
        let dial = TcpStream::connect((endpoint.host.as_str(), endpoint.port));
        let stream = tokio::time::timeout(dial_timeout, dial)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "dial timed out"))??;
        if !endpoint.is_tls {
            return Ok(Socket::plain(Wire::new(stream, write_timeout)?));
        }
        let tls = self.tls.as_ref().ok_or_else(|| io::Error::other("no TLS settings"))?;
        let stream = stream.into_std()?;
        let met = match &self.handshakes {
            Some(thread) => thread.connect(stream, endpoint.host.clone(), tls.clone(), write_timeout).await,
            None => handshakes::connect(stream, &endpoint.host, tls, write_timeout).await,
        };
        let Met { stream, secured, session } = met?;
        let wire = Wire::new(TcpStream::from_std(stream)?, write_timeout)?;
        let watched = self.sessions.watch(Side::Dialed(tls.clone()), session, endpoint.authority.clone());
        let watched = watched.map_err(Failure::Refused)?;
        Ok(Socket::secured(wire, secured, watched))
    }
}
