//! Sends and reads HTTP/1.1 without an HTTP library, for tests that need control over every byte: builds
//! request headers and chunks, and reads responses.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::TIMEOUT;

/// A response, or only its header.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Header names in lower case with their values, in the order sent.
    pub headers: Vec<(String, String)>,
    /// Body, if it was read.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns the value of the first header with this name. The name must be in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    /// Returns the body as text.
    ///
    /// # Panics
    ///
    /// Panics if the body is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }
}

/// Opens a connection whose reads and writes fail after [`TIMEOUT`].
///
/// # Panics
///
/// Panics if the connection cannot be opened.
pub fn connect(address: SocketAddr) -> TcpStream {
    with_timeouts(TcpStream::connect(address).expect("a connection"))
}

/// Returns the connection with timeouts: its reads and writes fail after [`TIMEOUT`].
pub fn with_timeouts(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(TIMEOUT)).expect("a read time-out");
    stream.set_write_timeout(Some(TIMEOUT)).expect("a write time-out");
    stream
}

/// Returns the header of a request, including a host.
pub fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    (head + "\r\n").into_bytes()
}

/// Returns one chunk of a chunked body; an empty chunk ends the body.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Sends one request on a new connection, asks the server to close it, and reads the response.
///
/// # Panics
///
/// Panics if the response is not complete.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut stream = connect(address);
    let length = body.len().to_string();
    let mut headers = headers.to_vec();
    headers.push(("Connection", "close"));
    if method != "GET" {
        headers.push(("Content-Length", &length));
    }
    stream.write_all(&head(method, path, &headers)).expect("the server reads");
    stream.write_all(body).expect("the server reads");
    read_answer(&mut stream)
}

/// Sends a GET request on a new connection, and reads the response.
///
/// # Panics
///
/// Panics if the response is not complete.
pub fn get(address: SocketAddr, path: &str) -> Answer {
    request(address, "GET", path, &[], b"")
}

/// Reads the header of a response, and leaves the body unread.
///
/// # Panics
///
/// Panics if the header is not complete or not HTTP.
pub fn read_head(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        let read = stream.read(&mut byte).expect("the server answers in time");
        assert_eq!(read, 1, "closed within the head: {}", String::from_utf8_lossy(&bytes));
        bytes.push(byte[0]);
    }
    let text = String::from_utf8(bytes).expect("a head is text");
    let mut lines = text.trim_end().split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status line");
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(": ").expect("a name and a value");
        (name.to_lowercase(), value.to_owned())
    });
    Answer { status, headers: headers.collect(), body: Vec::new() }
}

/// Reads a response with its body, whose length is that of `Content-Length` or, without this header, extends
/// to the end of the connection.
///
/// # Panics
///
/// Panics if the response is not complete or not HTTP.
pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut answer = read_head(stream);
    match answer.header("content-length").map(|length| length.parse().expect("a length is a number")) {
        Some(length) => {
            answer.body = vec![0; length];
            stream.read_exact(&mut answer.body).expect("the body is whole");
        }
        None => {
            stream.read_to_end(&mut answer.body).expect("the body ends");
        }
    }
    answer
}

/// Reads one chunk of a chunked body. Returns an empty chunk at the end of the body, and `None` if the
/// connection has ended.
///
/// # Panics
///
/// Panics if the length of the chunk is not a number.
pub fn read_chunk(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => line.push(byte[0]),
            _ => return None,
        }
    }
    let line = std::str::from_utf8(&line).expect("a length is text").trim_end();
    let length = usize::from_str_radix(line, 16).expect("a length is a number");
    let mut chunk = vec![0; length + 2];
    stream.read_exact(&mut chunk).ok()?;
    chunk.truncate(length);
    Some(chunk)
}
