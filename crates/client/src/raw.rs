use std::io;

use http::uri;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::channel::Channel;
use crate::endpoint::Endpoint;
use crate::tls::PeerCertificates;
use crate::transport::{HTTP2, Transport, Wire};

/// A connection to an endpoint on which nothing was said yet, for protocols other than gRPC.
pub struct RawConnection {
    wire: Box<dyn Wire>,
    /// Certificates of the server from the TLS handshake; `None` without TLS.
    pub peer: Option<PeerCertificates>,
}

impl RawConnection {
    /// Connects; with TLS, only HTTP/1.1 is offered to the server.
    ///
    /// # Errors
    /// As [`Channel::open`].
    pub async fn open(endpoint: &Endpoint, transport: &Transport) -> io::Result<RawConnection> {
        let dialled = transport.dial_for(endpoint, b"http/1.1").await?;
        Ok(RawConnection { wire: dialled.wire, peer: dialled.peer })
    }

    /// The bytes in both directions.
    pub fn stream(&mut self) -> &mut (impl AsyncRead + AsyncWrite + Send + Unpin + use<>) {
        &mut self.wire
    }
}

impl Channel {
    /// Speaks gRPC on a TCP connection that the caller made, with TLS if the endpoint is one that does: for callers that
    /// look at the socket meanwhile.
    ///
    /// # Errors
    /// As [`Channel::open`], save what belongs to connecting.
    pub async fn over(stream: TcpStream, endpoint: &Endpoint, transport: &Transport) -> io::Result<Channel> {
        let securing = transport.secured(endpoint, Box::new(stream), HTTP2);
        let dialled = transport.bounded(endpoint, securing).await?;
        let authority = endpoint.host.parse().unwrap_or(uri::Authority::from_static("localhost"));
        let peer = dialled.peer.map(std::sync::Arc::new);
        let window_bytes = transport.connection_window_bytes();
        Channel::start(dialled.wire, authority, peer, transport, window_bytes)
            .await
            .map(|(channel, _)| channel)
    }
}
