//! HTTP/2 by hand, for what no well-behaved client does.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const SETTINGS: u8 = 4;
pub const WINDOW_UPDATE: u8 = 8;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("a small payload").to_be_bytes();
    let mut bytes = vec![len[1], len[2], len[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The frames of a unary call, whose header block is not compressed.
pub fn call(stream: u32, path: &str, message: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).ok().filter(|len| *len < 127).expect("short texts"));
            block.extend(text.as_bytes());
        }
    }
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).expect("a small message").to_be_bytes());
    body.extend(message);
    let mut bytes = frame(HEADERS, END_HEADERS, stream, &block);
    bytes.extend(frame(DATA, END_STREAM, stream, &body));
    bytes
}

/// A connection whose client opens its windows as far as they go.
pub fn greedy(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let window_max = (i32::MAX as u32).to_be_bytes();
    let mut settings = vec![0, 4];
    settings.extend(window_max);
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &settings));
    bytes.extend(frame(WINDOW_UPDATE, 0, 0, &(i32::MAX as u32 - 65_535).to_be_bytes()));
    stream.write_all(&bytes).expect("the server reads");
    stream
}

/// Sends bytes, shuts the sending side, and reads until the server closes; it has to. Gives what came.
pub fn send_garbage(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time-out can be set");
    // A server that has closed already is no failure.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        let kind = error.kind();
        assert_eq!(kind, std::io::ErrorKind::ConnectionReset, "the server neither answered nor closed");
    }
    answer
}
