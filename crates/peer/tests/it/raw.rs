//! Hand-written HTTP as members use it among themselves: requests to `http://host:port` with the members'
//! headers.

use std::net::{SocketAddr, TcpStream};

use testkit::http1;
pub use testkit::http1::{Answer, chunk, head, read_chunk, read_head};

/// Names and values of headers.
pub type Headers = Vec<(&'static str, &'static str)>;

fn address(url: &str) -> SocketAddr {
    url.strip_prefix("http://").unwrap().parse().unwrap()
}

/// Opens a connection to `http://host:port`.
pub fn connect(url: &str) -> TcpStream {
    http1::connect(address(url))
}

/// Opens a connection to `http://host:port` from a given local address.
pub fn connect_from(from: [u8; 4], url: &str) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&address(url).into()).unwrap();
    http1::with_timeouts(TcpStream::from(socket))
}

/// Returns the headers that a member with this id sends.
pub fn headers(from: &'static str) -> Headers {
    vec![
        ("X-Server-From", from),
        ("X-Server-Version", "3.7.1"),
        ("X-Min-Cluster-Version", "3.0.0"),
        ("X-Etcd-Cluster-ID", "c1"),
    ]
}

/// Returns the headers with one replaced or added; an empty value removes it.
pub fn with(mut headers: Headers, name: &'static str, value: &'static str) -> Headers {
    headers.retain(|header| header.0 != name);
    if !value.is_empty() {
        headers.push((name, value));
    }
    headers
}

/// Sends one request on a separate connection.
pub fn request(url: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    http1::request(address(url), method, path, headers, body)
}
