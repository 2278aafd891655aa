//! HTTP by hand, to see every byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::kit::DEADLINE;

/// Names and values.
pub type Headers = Vec<(&'static str, &'static str)>;

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// As sent, one line each, lowercase names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// Opens a connection to `http://host:port`.
pub fn connect(url: &str) -> TcpStream {
    let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// The same, from this address.
pub fn connect_from(address: [u8; 4], url: &str) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    let to: SocketAddr = url.strip_prefix("http://").unwrap().parse().unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

pub fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    (head + "\r\n").into_bytes()
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

/// The same with one replaced, added, or left out (an empty value).
pub fn with(mut headers: Headers, name: &'static str, value: &'static str) -> Headers {
    headers.retain(|header| header.0 != name);
    if !value.is_empty() {
        headers.push((name, value));
    }
    headers
}

/// One request on a connection of its own.
pub fn request(url: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = connect(url);
    let length = body.len().to_string();
    let mut headers = headers.to_vec();
    headers.push(("Connection", "close"));
    if method != "GET" {
        headers.push(("Content-Length", &length));
    }
    stream.write_all(&head(method, path, &headers)).unwrap();
    stream.write_all(body).unwrap();
    read_answer(&mut stream)
}

/// Reads a head; what came behind it is left.
pub fn read_head(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(
            stream.read(&mut byte).unwrap(),
            1,
            "closed within the head: {}",
            String::from_utf8_lossy(&bytes)
        );
        bytes.push(byte[0]);
    }
    let text = String::from_utf8(bytes).unwrap();
    let mut lines = text.trim_end().split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_lowercase(), value.to_owned())
    });
    Answer { status, headers: headers.collect(), body: Vec::new() }
}

/// Reads an answer whose connection closes behind it.
pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut answer = read_head(stream);
    match answer.header("content-length").map(|length| length.parse().unwrap()) {
        Some(length) => {
            answer.body = vec![0; length];
            stream.read_exact(&mut answer.body).unwrap();
        }
        None => {
            stream.read_to_end(&mut answer.body).unwrap();
        }
    }
    answer
}

/// One chunk of a chunked body; empty at its end, None when the connection ended.
pub fn read_chunk(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => line.push(byte[0]),
            _ => return None,
        }
    }
    let length = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim_end(), 16).unwrap();
    let mut chunk = vec![0; length + 2];
    stream.read_exact(&mut chunk).ok()?;
    chunk.truncate(length);
    Some(chunk)
}

/// A chunk to write.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}
