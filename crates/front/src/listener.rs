//! Where connections come from: [`Listener`] is a socket to accept on and whether it speaks TLS, [`Origin`] what is known of
//! a connection from then on, [`Rejected`] a connection that TLS does not let in.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

/// A socket that accepts connections, and what holds for those.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: ListenerSocket,
    /// `None`: connections are not encrypted.
    pub tls: Option<tls::ServerTls>,
    /// Beside those with TLS it takes connections that are not encrypted: their first byte tells. It says nothing where there is
    /// no TLS.
    pub also_plain: bool,
    /// Clients' certificates are compared with the address that the client comes from, as etcd does on listeners for
    /// metrics.
    pub checks_address: bool,
    /// What is served there.
    pub serves: Serves,
}

/// What a listener serves. A connection that speaks something else is closed, as in etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Serves {
    /// gRPC and pages.
    #[default]
    All,
    /// gRPC: pages have a listener of their own.
    Grpc,
    /// Pages.
    Pages,
}

impl Serves {
    /// True if connections of HTTP/2 or of HTTP/1 are served. Pages are served over HTTP/2 with TLS only.
    pub(crate) fn takes(self, is_http2: bool, is_tls: bool) -> bool {
        match self {
            Serves::All => true,
            Serves::Grpc => is_http2,
            Serves::Pages => !is_http2 || is_tls,
        }
    }
}

/// A socket that listens already.
#[derive(Debug)]
pub enum ListenerSocket {
    /// For `http` and `https`.
    Tcp(TcpListener),
    /// For `unix` and `unixs`.
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Listener {
        Listener {
            socket: ListenerSocket::Tcp(listener),
            tls: None,
            also_plain: false,
            checks_address: false,
            serves: Serves::All,
        }
    }
}

/// What is known of a connection before it says anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Address of the client. Connections of Unix sockets have none: for them it is `0.0.0.0`, with a number that tells them
    /// apart as the port; see [`shown_peer`].
    pub peer: SocketAddr,
    /// Common name in the client's verified certificate, if the listener says that it is the user (`--client-cert-auth`). Empty
    /// for a certificate without one.
    pub common_name: Option<Arc<str>>,
    /// The connection is encrypted.
    pub is_tls: bool,
    /// What its listener serves.
    pub serves: Serves,
}

impl Origin {
    /// That of a connection which is not encrypted.
    pub fn plain(peer: SocketAddr) -> Origin {
        Origin { peer, common_name: None, is_tls: false, serves: Serves::All }
    }

    /// That of a Unix socket's client, which has none. Of 65,536 connections two have the same.
    pub(crate) fn without_address(number: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, number))
    }
}

/// A client's address for logs: `@` and a number for that of a Unix socket, which has none. Go shows an `@`, too.
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

/// A connection that was not let in by TLS, or is closed because it would not be let in any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Address of the client.
    pub remote: SocketAddr,
    /// The name of the server that the client asked for; empty if it did not say.
    pub server_name: String,
    /// Why, in etcd's words.
    pub error: String,
    /// The names in the client's certificate, if it has shown one.
    pub names: Option<tls::PeerNames>,
    /// The client has closed the connection itself without an error. Probes of ports do so; etcd logs them on level `debug`.
    pub is_end_of_file: bool,
    /// True if the connection was let in before, and its certificate does not count any more.
    pub was_admitted: bool,
    /// Connections that were rejected since the last report and not reported, since there were too many.
    pub not_reported: u64,
}
