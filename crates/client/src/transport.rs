//! Connects to a server, and checks by pings that the connection is alive. [`Transport`] connects over TCP or
//! a Unix socket, with or without TLS, within time limits. [`Keepalive`] configures the HTTP/2 pings. The
//! rest of HTTP/2 is in `session`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConnection;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout};
use transport::{Ending, Stream, ThreadBuffers, Wire, connect};

use crate::endpoint::{Address, Endpoint, Security, split_host_port};
use crate::session::Session;
use crate::tls::{PeerCertificates, Tls, TlsFiles};

/// Settings for connecting to a server, and size limits for messages.
#[derive(Clone, Debug)]
pub struct Transport {
    /// TLS settings for all endpoints except `http` ones. If `None`, only `https` and `unixs` endpoints use
    /// TLS, with default settings.
    pub tls: Option<Tls>,
    /// Time limit for connecting, including the TLS handshake; `None` or zero for no limit.
    pub dial_timeout: Option<Duration>,
    /// Settings for pings on a connection that receives nothing; `None` for no pings.
    pub keepalive: Option<Keepalive>,
    /// Size limit of a sent message in bytes.
    pub send_bytes_max: usize,
    /// Size limit of a received message in bytes.
    pub receive_bytes_max: usize,
    /// Receive window of a stream in bytes.
    pub window_bytes: u32,
}

impl Default for Transport {
    /// Returns the limits of etcd's client: 2 MiB for requests, 2 GiB for responses. There is no TLS, there
    /// are no pings, and only the operating system limits the time for connecting.
    fn default() -> Transport {
        Transport {
            tls: None,
            dial_timeout: None,
            keepalive: None,
            send_bytes_max: 2 * 1024 * 1024,
            receive_bytes_max: i32::MAX as usize,
            window_bytes: 4 * 1024 * 1024,
        }
    }
}

impl Transport {
    /// Returns the receive window of a connection in bytes. It is hundreds of times larger than the window of
    /// a stream: a stream whose receiver does not read uses up as much of the connection window as its own
    /// window, and hundreds of such streams must not delay other calls.
    pub(crate) fn connection_window_bytes(&self) -> u32 {
        self.window_bytes.saturating_mul(512)
    }
}

/// Settings for HTTP/2 pings on a connection that receives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Time without received data after which a ping is sent.
    pub time: Duration,
    /// Time limit for the response to a ping, after which the connection is closed.
    pub timeout: Duration,
    /// True if connections without open calls are pinged, too.
    pub without_calls: bool,
}

impl Keepalive {
    /// Returns ping settings by gRPC's rules, or `None` if `time` is zero. A shorter `time` than 10 s is
    /// raised to 10 s, because servers close the connections of clients that ping more often than every 5 s.
    /// A `timeout` of zero means 20 s.
    pub fn for_grpc(time: Duration, timeout: Duration) -> Option<Keepalive> {
        let time = Some(time).filter(|time| !time.is_zero())?.max(Duration::from_secs(10));
        let timeout = if timeout.is_zero() { Duration::from_secs(20) } else { timeout };
        Some(Keepalive { time, timeout, without_calls: false })
    }
}

/// Maximum number of bytes per read of TLS.
const READ_BYTES: usize = 64 * 1024;

/// ALPN protocol name of HTTP/2.
pub(crate) const HTTP2: &[u8] = b"h2";

/// Open connection on which HTTP/2 has not been started yet.
pub(crate) struct Dialled {
    pub(crate) wire: Wire<Stream>,
    pub(crate) peer: Option<PeerCertificates>,
}

impl Transport {
    /// Connects to the endpoint. The error messages are those of Go, which users of etcd know.
    pub(crate) async fn dial(&self, endpoint: &Endpoint) -> io::Result<Dialled> {
        self.bounded(endpoint, self.dial_unbounded(endpoint, HTTP2)).await
    }

    /// Connects as [`Transport::dial`] does, but offers another ALPN protocol.
    pub(crate) async fn dial_for(&self, endpoint: &Endpoint, protocol: &[u8]) -> io::Result<Dialled> {
        self.bounded(endpoint, self.dial_unbounded(endpoint, protocol)).await
    }

    /// Runs `dialling` to its end, or returns an error after the dial timeout.
    pub(crate) async fn bounded<T>(
        &self,
        endpoint: &Endpoint,
        dialling: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        match self.dial_timeout.filter(|timeout| !timeout.is_zero()) {
            None => dialling.await,
            Some(within) => timeout(within, dialling).await.unwrap_or_else(|_| {
                let text = match &endpoint.address {
                    Address::Tcp(address) => format!("dial tcp {address}: i/o timeout"),
                    Address::Unix(path) => format!("dial unix {}: i/o timeout", path.display()),
                };
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }),
        }
    }

    async fn dial_unbounded(&self, endpoint: &Endpoint, protocol: &[u8]) -> io::Result<Dialled> {
        let stream = match &endpoint.address {
            Address::Tcp(address) => Stream::Tcp(dial_tcp(address).await?),
            Address::Unix(path) => Stream::Unix(
                UnixStream::connect(path)
                    .await
                    .map_err(|error| said(&error, &format!("dial unix {}: connect", path.display())))?,
            ),
        };
        self.secured(endpoint, stream, protocol).await
    }

    /// Runs the TLS handshake on an open connection if the endpoint requires TLS; otherwise returns the
    /// connection unchanged.
    pub(crate) async fn secured(
        &self,
        endpoint: &Endpoint,
        stream: Stream,
        protocol: &[u8],
    ) -> io::Result<Dialled> {
        let system;
        let tls = match (endpoint.security, &self.tls) {
            (Security::Plain, _) | (Security::AsConfigured, None) => None,
            (_, Some(tls)) => Some(tls),
            (Security::Tls, None) => {
                system = TlsFiles::default().load().map_err(io::Error::other)?;
                Some(&system)
            }
        };
        let Some(tls) = tls else { return Ok(Dialled { wire: Wire::Plain(stream), peer: None }) };
        let name = tls.name_of(endpoint.host_name());
        let mut config = tls.config.clone();
        if protocol != HTTP2 {
            Arc::make_mut(&mut config).alpn_protocols = vec![protocol.to_vec()];
        }
        let secured = async {
            let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
            connect(stream, connection, ThreadBuffers(READ_BYTES), Ending::Announced).await
        };
        let stream = secured.await.map_err(|error| {
            io::Error::new(error.kind(), format!("authentication handshake failed: {error}"))
        })?;
        let connection = stream.connection();
        // Check the protocol that the server has selected by ALPN only for HTTP/2, because gRPC requires the
        // selection. Servers of other protocols may ignore ALPN, since the client offers only one protocol.
        if protocol == HTTP2 && connection.alpn_protocol() != Some(HTTP2) {
            let text = "authentication handshake failed: credentials: cannot check peer: missing selected ALPN property";
            return Err(io::Error::other(text));
        }
        let peer = PeerCertificates::of(connection);
        Ok(Dialled { wire: Wire::Tls(Box::new(stream)), peer: Some(peer) })
    }
}

async fn dial_tcp(address: &str) -> io::Result<TcpStream> {
    let malformed = |why: String| io::Error::new(io::ErrorKind::InvalidInput, format!("dial tcp: {why}"));
    let (host, port) = split_host_port(address).map_err(|error| malformed(error.to_string()))?;
    let number: u16 = port.parse().map_err(|_| malformed(format!("lookup tcp/{port}: unknown port")))?;
    // An empty host means the local host, as in Go.
    let host = if host.is_empty() { "localhost" } else { host };
    let found = tokio::net::lookup_host((host, number))
        .await
        .map_err(|_| malformed(format!("lookup {host}: no such host")))?;
    let mut last = malformed(format!("lookup {host}: no such host"));
    for at in found {
        match TcpStream::connect(at).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = said(&error, &format!("dial tcp {at}: connect")),
        }
    }
    Err(last)
}

/// Returns an error whose message consists of the attempted action and the reason. Common reasons are in Go's
/// words, which users of etcd know.
fn said(error: &io::Error, tried: &str) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{tried}: {why}"))
}

/// Sends keep-alive pings. Returns when a ping was not answered in time; the caller must then close the
/// connection.
pub(crate) async fn watch_over(session: &Session, keepalive: Keepalive) {
    let mut seen = session.received();
    let mut quiet_since = Instant::now();
    loop {
        sleep(keepalive.time.saturating_sub(quiet_since.elapsed())).await;
        let now = session.received();
        if now != seen || !(keepalive.without_calls || session.calls() > 0) {
            seen = now;
            quiet_since = Instant::now();
            continue;
        }
        if timeout(keepalive.timeout, session.ping()).await.is_err() {
            return;
        }
        seen = session.received();
        quiet_since = Instant::now();
    }
}
