use std::io;

use http::uri;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use transport::{Stream, Wire};

use crate::channel::Channel;
use crate::endpoint::Endpoint;
use crate::tls::PeerCertificates;
use crate::transport::{HTTP2, Transport};

/// Connection to an endpoint for a protocol other than gRPC. No bytes have been exchanged on it yet, except
/// for the TLS handshake.
pub struct RawConnection {
    wire: Wire<Stream>,
    /// Certificates that the server sent in the TLS handshake; `None` without TLS.
    pub peer: Option<PeerCertificates>,
}

impl RawConnection {
    /// Connects to the endpoint. With TLS, the client offers only HTTP/1.1 (ALPN).
    ///
    /// # Errors
    /// Returns the same errors as [`Channel::open`].
    pub async fn open(endpoint: &Endpoint, transport: &Transport) -> io::Result<RawConnection> {
        let dialled = transport.dial_for(endpoint, b"http/1.1").await?;
        Ok(RawConnection { wire: dialled.wire, peer: dialled.peer })
    }

    /// Returns the byte stream of the connection, for reading and writing.
    pub fn stream(&mut self) -> &mut (impl AsyncRead + AsyncWrite + Send + Unpin + use<>) {
        &mut self.wire
    }
}

impl Channel {
    /// Starts gRPC on a TCP connection that the caller has opened, with TLS if the endpoint requires it. This
    /// serves callers that need access to the socket, for example to inspect it.
    ///
    /// # Errors
    /// Returns the errors of [`Channel::open`], except those of opening the connection.
    pub async fn over(stream: TcpStream, endpoint: &Endpoint, transport: &Transport) -> io::Result<Channel> {
        let securing = transport.secured(endpoint, Stream::Tcp(stream), HTTP2);
        let dialled = transport.bounded(endpoint, securing).await?;
        let authority = endpoint.host.parse().unwrap_or(uri::Authority::from_static("localhost"));
        let peer = dialled.peer.map(std::sync::Arc::new);
        let window_bytes = transport.connection_window_bytes();
        Channel::start(dialled.wire, authority, peer, transport, window_bytes)
            .await
            .map(|(channel, _)| channel)
    }
}
