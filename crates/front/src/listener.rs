//! Describes where connections come from: [`Listener`] is a socket on which connections are accepted, with
//! its TLS settings, [`Origin`] describes an accepted connection, and [`Rejection`] one that TLS does not
//! admit.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use transport::ListenerSocket;

/// Socket that accepts connections, with the settings for these connections.
#[derive(Debug)]
pub struct Listener {
    /// Socket on which connections are accepted.
    pub socket: ListenerSocket,
    /// TLS settings; `None` if connections are not encrypted.
    pub tls: Option<tls::ServerTls>,
    /// True if unencrypted connections are accepted in addition to those with TLS; the first byte of a
    /// connection shows which it is. Has no effect if `tls` is `None`.
    pub also_plain: bool,
    /// True if a client certificate must match the address that the client connects from, as etcd requires on
    /// listeners for metrics.
    pub checks_address: bool,
    /// Protocols that the listener serves.
    pub serves: Protocols,
}

/// Protocols that a listener serves. A connection that speaks another protocol is closed, as in etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocols {
    /// gRPC, and HTTP pages such as `/health` and `/metrics`.
    #[default]
    All,
    /// gRPC only; pages have a separate listener.
    Grpc,
    /// Pages only.
    Pages,
}

impl Protocols {
    /// Returns true if connections of this protocol are served. Pages are served over HTTP/2 only with TLS.
    pub(crate) fn takes(self, is_http2: bool, is_tls: bool) -> bool {
        match self {
            Protocols::All => true,
            Protocols::Grpc => is_http2,
            Protocols::Pages => !is_http2 || is_tls,
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Listener {
        Listener {
            socket: ListenerSocket::Tcp(listener),
            tls: None,
            also_plain: false,
            checks_address: false,
            serves: Protocols::All,
        }
    }
}

/// Properties of a connection that are known before its first request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Address of the client. A client of a Unix socket has no address: then the field is `0.0.0.0`, with a
    /// port number that distinguishes such connections; see [`shown_peer`].
    pub peer: SocketAddr,
    /// Common name in the client's verified certificate, empty if the certificate has none; `None` if the
    /// listener does not use it as the user name (`--client-cert-auth`).
    pub common_name: Option<Arc<str>>,
    /// True if the connection is encrypted.
    pub is_tls: bool,
    /// Protocols that the connection's listener serves.
    pub serves: Protocols,
}

impl Origin {
    /// Creates the origin of an unencrypted connection.
    pub fn plain(peer: SocketAddr) -> Origin {
        Origin { peer, common_name: None, is_tls: false, serves: Protocols::All }
    }

    /// Returns the placeholder address for a client of a Unix socket. Numbers repeat after 65,536
    /// connections.
    pub(crate) fn without_address(number: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, number))
    }
}

/// Formats a client's address for logs. A client of a Unix socket is shown as `@`, as in Go, and a number.
pub fn shown_peer(peer: SocketAddr) -> impl fmt::Display {
    struct Shown(SocketAddr);
    impl fmt::Display for Shown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0.ip().is_unspecified() {
                true => write!(f, "@{}", self.0.port()),
                false => self.0.fmt(f),
            }
        }
    }
    Shown(peer)
}

/// Connection that TLS did not admit, or that is closed because it would not be admitted any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Address of the client.
    pub remote: SocketAddr,
    /// Server name in the client's TLS handshake (SNI); empty if the client sent none.
    pub server_name: String,
    /// Reason why the connection was rejected, as etcd would log it.
    pub error: String,
    /// Names in the client's certificate, if the client presented one.
    pub names: Option<tls::PeerNames>,
    /// True if the client closed the connection itself without an error. Port probes do that, so the log
    /// level can be lower; etcd logs such connections on level `debug`.
    pub is_end_of_file: bool,
    /// True if the connection was admitted before and its certificate is not valid any more.
    pub was_admitted: bool,
    /// Number of connections that were rejected since the previous report, but not reported because of the
    /// rate limit.
    pub not_reported: u64,
}
