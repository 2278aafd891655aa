//! HTTP by hand, as members speak it to each other: to `http://host:port`, with their headers.

use std::net::{SocketAddr, TcpStream};

use testkit::http1;
pub use testkit::http1::{Answer, chunk, head, read_chunk, read_head};

/// Names and values.
pub type Headers = Vec<(&'static str, &'static str)>;

fn address(url: &str) -> SocketAddr {
    url.strip_prefix("http://").unwrap().parse().unwrap()
}

/// Opens a connection to `http://host:port`.
pub fn connect(url: &str) -> TcpStream {
    http1::connect(address(url))
}

/// Opens a connection to `http://host:port` from this address.
pub fn connect_from(from: [u8; 4], url: &str) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&address(url).into()).unwrap();
    http1::with_timeouts(TcpStream::from(socket))
}

/// Headers that a member with this id sends.
pub fn headers(from: &'static str) -> Headers {
    vec![
        ("X-Server-From", from),
        ("X-Server-Version", "3.7.1"),
        ("X-Min-Cluster-Version", "3.0.0"),
        ("X-Etcd-Cluster-ID", "c1"),
    ]
}

/// These headers with one replaced, added, or left out (an empty value).
pub fn with(mut headers: Headers, name: &'static str, value: &'static str) -> Headers {
    headers.retain(|header| header.0 != name);
    if !value.is_empty() {
        headers.push((name, value));
    }
    headers
}

/// One request on a connection of its own.
pub fn request(url: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    http1::request(address(url), method, path, headers, body)
}
