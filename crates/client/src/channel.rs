//! Opens one connection to one server, drives HTTP/2 on it, and starts calls whose messages are opaque bytes
//! ([`Channel`]). This module neither reconnects nor retries; [`crate::Client`] does both.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use stdx::race;

use api::{Code, Status};
use bytes::Bytes;
use http::uri;
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::task::JoinHandle;
use transport::{Stream, Wire};

use crate::call::{CallOptions, Receiver, Sender, sides};
use crate::endpoint::Endpoint;
use crate::session::{Driver, Session};
use crate::tls::PeerCertificates;
use crate::transport::{Transport, watch_over};

/// Connection to one server. Clones share the connection. It closes when the last clone and the last call are
/// dropped.
#[derive(Clone)]
pub struct Channel {
    held: Arc<Held>,
    peer: Option<Arc<PeerCertificates>>,
    send_bytes_max: usize,
    receive_bytes_max: usize,
}

/// Keeps the connection open while there are no calls. All clones of a [`Channel`] share this value.
struct Held(Arc<Session>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl Channel {
    /// Connects over plain TCP. Must be called in a tokio runtime, which then drives the connection.
    ///
    /// # Errors
    /// Fails if the address cannot be reached or the server does not speak HTTP/2.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Channel> {
        let window_bytes = Transport::default().window_bytes;
        Channel::connect_with(address, window_bytes).await.map(|(channel, _)| channel)
    }

    /// Connects as [`Channel::connect`] does, with `window_bytes` as the receive window in bytes of each
    /// stream and of the connection, and without a limit on the size of requests. Also returns the task that
    /// drives the connection. The task ends with the connection, and aborting the task closes the connection.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Channel::connect`].
    pub async fn connect_with(
        address: impl ToSocketAddrs,
        window_bytes: u32,
    ) -> io::Result<(Channel, JoinHandle<()>)> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let authority = stream.peer_addr()?.to_string().parse().map_err(io::Error::other)?;
        let transport = Transport { window_bytes, send_bytes_max: usize::MAX, ..Transport::default() };
        Channel::start(Wire::Plain(Stream::Tcp(stream)), authority, None, &transport, window_bytes).await
    }

    /// Connects to an endpoint of any kind. Must be called in a tokio runtime, which then drives the
    /// connection.
    ///
    /// # Errors
    /// Fails if the endpoint is malformed or cannot be reached in time, its certificate is not trusted, or
    /// the server does not speak HTTP/2. The error messages are those of Go's gRPC, which users of etcd know.
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
        wire: Wire<Stream>,
        authority: uri::Authority,
        peer: Option<Arc<PeerCertificates>>,
        transport: &Transport,
        connection_window_bytes: u32,
    ) -> io::Result<(Channel, JoinHandle<()>)> {
        let options = http2::Options {
            stream_window_bytes: transport.window_bytes,
            // Zero turns off the automatic growth of the window, because the caller has chosen its size.
            stream_window_bytes_max: 0,
            connection_window_bytes,
            ..http2::Options::default()
        };
        let scheme = if peer.is_some() { "https" } else { "http" };
        let session = Arc::new(Session::new(scheme, authority.to_string(), &Arc::new(options)));
        let driver = Driver::new(session.clone(), wire);
        let (watched, keepalive) = (session.clone(), transport.keepalive);
        let driver = tokio::spawn(async move {
            // The driver returns no error. When the connection breaks, every open call gets an error from the
            // session.
            match keepalive {
                None => driver.await,
                Some(keepalive) => _ = race(driver, watch_over(&watched, keepalive)).await,
            }
        });
        let (send_bytes_max, receive_bytes_max) = (transport.send_bytes_max, transport.receive_bytes_max);
        let held = Arc::new(Held(session));
        Ok((Channel { held, peer, send_bytes_max, receive_bytes_max }, driver))
    }

    /// Returns the certificates that the server sent in the TLS handshake; `None` without TLS.
    pub fn peer(&self) -> Option<&PeerCertificates> {
        self.peer.as_deref()
    }

    /// Returns true if the connection accepts no more calls: it is closed, or the server has said that it is
    /// shutting down (GOAWAY).
    pub fn is_closed(&self) -> bool {
        *self.held.0.closed().borrow()
    }

    /// Waits until the connection accepts no more calls. The future does not keep the connection open.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closed = self.held.0.closed().subscribe();
        // An error means that the session was dropped, so the connection is closed.
        async move { _ = closed.wait_for(|closed| *closed).await }
    }

    /// Calls a unary method.
    ///
    /// # Errors
    /// Returns the status that the server sent, `Unavailable` if the connection is broken, or
    /// `ResourceExhausted` for a message above a size limit.
    pub async fn unary(&self, path: &str, message: Bytes) -> Result<Bytes, Status> {
        self.unary_with(path, &CallOptions::default(), message).await
    }

    /// Calls a unary method as [`Channel::unary`] does, with metadata and a deadline.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Channel::unary`], and `DeadlineExceeded` after the timeout of `options`.
    pub async fn unary_with(
        &self,
        path: &str,
        options: &CallOptions,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        self.attempt(path, options, message).await.map_err(|failure| failure.status)
    }

    /// Makes a unary call. The [`Failure`] also says if the server has certainly not acted on the request.
    pub(crate) async fn attempt(
        &self,
        path: &str,
        options: &CallOptions,
        message: Bytes,
    ) -> Result<Bytes, Failure> {
        let call = async {
            // If no stream could be opened, no part of the request was sent, so the call may be retried.
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

    /// Opens a streaming call (client, server or bidirectional).
    ///
    /// # Errors
    /// Returns `Unavailable` if the connection is broken.
    pub async fn stream(&self, path: &str) -> Result<(Sender, Receiver), Status> {
        self.stream_with(path, &CallOptions::default()).await
    }

    /// Opens a streaming call as [`Channel::stream`] does, with metadata and a deadline that the server
    /// enforces.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Channel::stream`], and `InvalidArgument` if a metadata entry is not allowed in
    /// HTTP/2.
    pub async fn stream_with(&self, path: &str, options: &CallOptions) -> Result<(Sender, Receiver), Status> {
        let timeout = options.timeout.map(grpc_timeout);
        let timeout = timeout.as_ref().map(|timeout| (&b"grpc-timeout"[..], timeout.as_bytes()));
        // Remove white space at the beginning and end of a header value, which HTTP/2 does not allow.
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

/// Failure of a unary call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// True if the server has certainly not acted on the request.
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

/// Returns the value of the `grpc-timeout` header: at most 8 digits and a unit.
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
