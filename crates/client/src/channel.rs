//! One connection to one server: [`Channel`] dials it, drives HTTP/2, and starts calls whose messages are opaque bytes.
//! It neither reconnects nor repeats anything; [`crate::Client`] does.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use stdx::race;

use api::{Code, Status};
use bytes::Bytes;
use http::uri;
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::task::JoinHandle;

use crate::call::{CallOptions, Receiver, Sender, sides};
use crate::endpoint::Endpoint;
use crate::session::{Driver, Session};
use crate::tls::PeerCertificates;
use crate::transport::{Transport, Wire, watch_over};

/// One connection to a server. Clones share it; it closes when the last clone and call are gone.
#[derive(Clone)]
pub struct Channel {
    held: Arc<Held>,
    peer: Option<Arc<PeerCertificates>>,
    send_bytes_max: usize,
    receive_bytes_max: usize,
}

/// What keeps a connection open that has no calls.
struct Held(Arc<Session>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl Channel {
    /// Connects over plain TCP. Must run in a tokio runtime, which then drives the connection.
    ///
    /// # Errors
    /// The address cannot be reached, or its server does not speak HTTP/2.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Channel> {
        let window_bytes = Transport::default().window_bytes;
        Channel::connect_with(address, window_bytes).await.map(|(channel, _)| channel)
    }

    /// Connects as [`Channel::connect`] does, with this receive window per stream and connection, in bytes. Also returns
    /// the task that drives the connection: it ends with the connection, and aborting it breaks the connection. Messages
    /// that are sent have no size limit.
    ///
    /// # Errors
    ///
    /// As [`Channel::connect`].
    pub async fn connect_with(
        address: impl ToSocketAddrs,
        window_bytes: u32,
    ) -> io::Result<(Channel, JoinHandle<()>)> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let authority = stream.peer_addr()?.to_string().parse().map_err(io::Error::other)?;
        let transport = Transport { window_bytes, send_bytes_max: usize::MAX, ..Transport::default() };
        Channel::start(Box::new(stream), authority, None, &transport, window_bytes).await
    }

    /// Connects to an endpoint of any kind. Must run in a tokio runtime, which then drives the connection.
    ///
    /// # Errors
    /// The endpoint is malformed, cannot be reached in time, its certificate is not trusted, or its server does
    /// not speak HTTP/2; the texts are those that etcd's users know from Go.
    pub async fn open(endpoint: &Endpoint, transport: &Transport) -> io::Result<Channel> {
        let dialled = transport.dial(endpoint).await?;
        let authority = endpoint.host.parse().unwrap_or(uri::Authority::from_static("localhost"));
        let peer = dialled.peer.map(Arc::new);
        let window_bytes = transport.connection_window_bytes();
        Channel::start(dialled.wire, authority, peer, transport, window_bytes)
            .await
            .map(|(channel, _)| channel)
    }

    pub(crate) async fn start(
        wire: Box<dyn Wire>,
        authority: uri::Authority,
        peer: Option<Arc<PeerCertificates>>,
        transport: &Transport,
        connection_window_bytes: u32,
    ) -> io::Result<(Channel, JoinHandle<()>)> {
        let options = http2::Options {
            stream_window_bytes: transport.window_bytes,
            // The window is what the caller said.
            stream_window_bytes_max: 0,
            connection_window_bytes,
            ..http2::Options::default()
        };
        let scheme = if peer.is_some() { "https" } else { "http" };
        let session = Arc::new(Session::new(scheme, authority.to_string(), &Arc::new(options)));
        let driver = Driver::new(session.clone(), wire);
        let (watched, keepalive) = (session.clone(), transport.keepalive);
        let driver = tokio::spawn(async move {
            // Every call hears of a broken connection by itself.
            match keepalive {
                None => driver.await,
                Some(keepalive) => _ = race(driver, watch_over(&watched, keepalive)).await,
            }
        });
        let (send_bytes_max, receive_bytes_max) = (transport.send_bytes_max, transport.receive_bytes_max);
        let held = Arc::new(Held(session));
        Ok((Channel { held, peer, send_bytes_max, receive_bytes_max }, driver))
    }

    /// Returns the certificates of the server from the TLS handshake; `None` without TLS.
    pub fn peer(&self) -> Option<&PeerCertificates> {
        self.peer.as_deref()
    }

    /// Returns true if the connection takes no more calls: it is gone, or a call found its server going away.
    pub fn is_closed(&self) -> bool {
        *self.held.0.closed().borrow()
    }

    /// Returns when the connection takes no more calls. Holds none of it open.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closed = self.held.0.closed().subscribe();
        // An error means that all who could use it are gone.
        async move { _ = closed.wait_for(|closed| *closed).await }
    }

    /// Calls a unary method.
    ///
    /// # Errors
    /// The server's status, or the client's own: `Unavailable` when the connection is broken.
    pub async fn unary(&self, path: &str, message: Bytes) -> Result<Bytes, Status> {
        self.unary_with(path, &CallOptions::default(), message).await
    }

    /// Makes a call as [`Channel::unary`] does, with metadata and a deadline.
    ///
    /// # Errors
    ///
    /// As [`Channel::unary`], and `DeadlineExceeded`.
    pub async fn unary_with(
        &self,
        path: &str,
        options: &CallOptions,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        self.attempt(path, options, message).await.map_err(|failure| failure.status)
    }

    /// A unary call that tells, when it fails, whether the server may have acted on it.
    pub(crate) async fn attempt(
        &self,
        path: &str,
        options: &CallOptions,
        message: Bytes,
    ) -> Result<Bytes, Failure> {
        let call = async {
            // Without a stream, or with a message too large, nothing was said yet.
            let (mut sender, mut receiver) =
                self.stream_with(path, options).await.map_err(Failure::unsent)?;
            sender.send_last(message).await.map_err(Failure::sent)?;
            let answer = receiver.next().await;
            let unsent = receiver.is_unprocessed();
            let answer = answer.map_err(|status| Failure { status, unsent })?;
            let malformed = |text| Failure::sent(Status::new(Code::Internal, text));
            match answer {
                Some(answer) => match receiver.next().await.map_err(Failure::sent)? {
                    None => Ok(answer),
                    Some(_) => Err(malformed("more than one answer to a unary call")),
                },
                None => Err(malformed("no answer to a unary call")),
            }
        };
        let late = || Err(Failure::sent(Status::new(Code::DeadlineExceeded, "context deadline exceeded")));
        match options.timeout {
            None => call.await,
            Some(timeout) => tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| late()),
        }
    }

    /// Opens a streaming call of either kind.
    ///
    /// # Errors
    /// `Unavailable` when the connection is broken.
    pub async fn stream(&self, path: &str) -> Result<(Sender, Receiver), Status> {
        self.stream_with(path, &CallOptions::default()).await
    }

    /// Opens a stream as [`Channel::stream`] does, with metadata and a deadline, which the server keeps.
    ///
    /// # Errors
    ///
    /// As [`Channel::stream`].
    pub async fn stream_with(&self, path: &str, options: &CallOptions) -> Result<(Sender, Receiver), Status> {
        let timeout = options.timeout.map(grpc_timeout);
        let timeout = timeout.as_ref().map(|timeout| (&b"grpc-timeout"[..], timeout.as_bytes()));
        // White space at an end is no part of a value, and HTTP/2 does not carry it.
        let metadata = options
            .metadata
            .iter()
            .map(|(key, value)| (key.as_str().as_bytes(), value.as_bytes().trim_ascii()));
        let more: Vec<(&[u8], &[u8])> = timeout.into_iter().chain(metadata).collect();
        let receive_bytes_max = options.message_bytes_max.min(self.receive_bytes_max);
        let session = &self.held.0;
        let place = session.open(path, &more, receive_bytes_max).await?;
        Ok(sides(session, place, self.send_bytes_max))
    }
}

/// The failure of a call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// True if the server certainly did nothing for it.
    pub(crate) unsent: bool,
}

impl Failure {
    pub(crate) fn sent(status: Status) -> Failure {
        Failure { status, unsent: false }
    }

    pub(crate) fn unsent(status: Status) -> Failure {
        Failure { status, unsent: true }
    }
}

/// The header's form: at most 8 digits and a unit.
fn grpc_timeout(timeout: Duration) -> String {
    let micros = timeout.as_micros();
    if micros < 100_000_000 {
        format!("{}u", micros.max(1))
    } else if timeout.as_millis() < 100_000_000 {
        format!("{}m", timeout.as_millis())
    } else {
        format!("{}S", timeout.as_secs().min(99_999_999))
    }
}
