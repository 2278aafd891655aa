//! Sends and reads HTTP/2 without an HTTP library, for tests that need control over every byte: frames,
//! uncompressed header blocks, gRPC messages, and a blocking connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::TIMEOUT;

/// First bytes that a client sends (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Type of a frame with message bytes.
pub const DATA: u8 = 0;
/// Type of a frame with the header or trailers of a call.
pub const HEADERS: u8 = 1;
/// Type of a frame that aborts a stream.
pub const RST_STREAM: u8 = 3;
/// Type of a frame with the sender's settings.
pub const SETTINGS: u8 = 4;
/// Type of a frame that the receiver has to send back.
pub const PING: u8 = 6;
/// Type of a frame that announces the end of the connection.
pub const GOAWAY: u8 = 7;
/// Type of a frame that allows its receiver to send more bytes of DATA.
pub const WINDOW_UPDATE: u8 = 8;
/// Type of a frame that continues a header block.
pub const CONTINUATION: u8 = 9;

/// Flag of DATA and HEADERS frames: the sender sends no further frame on this stream.
pub const END_STREAM: u8 = 1;
/// Flag of HEADERS and CONTINUATION frames: the header block is complete.
pub const END_HEADERS: u8 = 4;

/// Received frame.
#[derive(Debug)]
pub struct Frame {
    /// Frame type.
    pub kind: u8,
    /// Flag bits.
    pub flags: u8,
    /// Stream number; 0 means the whole connection.
    pub stream: u32,
    /// Bytes after the nine-byte frame header.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Takes the frame at the front of `bytes`. Returns `None` if the frame is incomplete.
    pub fn take(bytes: &mut &[u8]) -> Option<Frame> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let (payload, rest) = rest.split_at_checked(payload_bytes(head))?;
        *bytes = rest;
        Some(Frame::of(head, payload.to_vec()))
    }

    fn of(head: &[u8; HEAD_BYTES], payload: Vec<u8>) -> Frame {
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Frame { kind: head[3], flags: head[4], stream, payload }
    }
}

const HEAD_BYTES: usize = 9;

fn payload_bytes(head: &[u8; HEAD_BYTES]) -> usize {
    u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize
}

/// Encodes a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("a small payload").to_be_bytes();
    let mut bytes = vec![len[1], len[2], len[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Encodes a header block without compression: each field is literal, not indexed, and without Huffman coding
/// (RFC 7541, section 6.2.2).
pub fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    literals(0, headers)
}

/// Encodes a header block whose fields the receiver adds to its dynamic table (RFC 7541, section 6.2.1).
/// Clients use this encoding when they send a field for the first time.
pub fn indexed_block(headers: &[(&str, &str)]) -> Vec<u8> {
    literals(0x40, headers)
}

/// Encodes fields with literal names and values; `kind` is the byte that selects the representation.
fn literals(kind: u8, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        bytes.push(kind);
        for text in [name, value] {
            // Integer with a prefix of 7 bits (RFC 7541, section 5.1).
            if text.len() < 127 {
                bytes.push(text.len() as u8);
            } else {
                bytes.push(127);
                let mut rest = text.len() - 127;
                while rest >= 128 {
                    bytes.push((rest % 128) as u8 | 128);
                    rest /= 128;
                }
                bytes.push(rest as u8);
            }
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// Returns the header block of a gRPC call, with additional fields after the usual ones.
pub fn call_block(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut headers = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    headers.extend(more);
    block(&headers)
}

/// Returns a gRPC message with its prefix. `flag` is 1 if the message is compressed, otherwise 0.
pub fn message(flag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![flag];
    bytes.extend(u32::try_from(body.len()).expect("a small message").to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Returns the frames of a unary call with this request message.
pub fn call(stream: u32, path: &str, request: &[u8]) -> Vec<u8> {
    let mut bytes = frame(HEADERS, END_HEADERS, stream, &call_block(path, &[]));
    bytes.extend(frame(DATA, END_STREAM, stream, &message(0, request)));
    bytes
}

/// Client side of a connection. After its creation, it sends only the bytes that the test passes to it, which
/// may also be HTTP/1.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Opens a connection without sending anything.
    pub fn silent(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a read time-out");
        Connection { stream }
    }

    /// Opens a connection, and sends the preface and these settings (six bytes each).
    pub fn h2(address: SocketAddr, settings: &[u8]) -> Connection {
        let mut connection = Connection::silent(address);
        connection.send(PREFACE);
        connection.send(&frame(SETTINGS, 0, 0, settings));
        connection
    }

    /// Opens a connection, and sets all flow-control windows to the maximum.
    pub fn greedy(address: SocketAddr) -> Connection {
        let window_max = (i32::MAX as u32).to_be_bytes();
        let mut connection = Connection::h2(address, &[&[0, 4][..], &window_max].concat());
        connection.send(&frame(WINDOW_UPDATE, 0, 0, &(i32::MAX as u32 - 65_535).to_be_bytes()));
        connection
    }

    /// Writes bytes. Returns false if the server has closed the connection.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Writes bytes until all are written, the server has accepted none for 300 ms, or the server has closed
    /// the connection. Returns the number of bytes written.
    pub fn flood(&mut self, bytes: &[u8]) -> usize {
        self.stream.set_write_timeout(Some(Duration::from_millis(300))).expect("a write time-out");
        let mut taken = 0;
        while taken < bytes.len() {
            match self.stream.write(&bytes[taken..]) {
                Ok(n) => taken += n,
                Err(_) => break,
            }
        }
        taken
    }

    /// Sends a unary call with `body` as its data, in a single write, so that the server is likely to receive
    /// all frames at the same time.
    pub fn call(&mut self, stream: u32, path: &str, more: &[(&str, &str)], body: &[u8]) {
        let mut frames = frame(HEADERS, END_HEADERS, stream, &call_block(path, more));
        frames.extend(frame(DATA, END_STREAM, stream, body));
        self.send(&frames);
    }

    /// Returns the next frame, or `None` if the server has closed the connection.
    ///
    /// # Panics
    ///
    /// Panics if nothing arrives for [`TIMEOUT`].
    #[expect(clippy::should_implement_trait, reason = "a test reads a frame; it does not iterate")]
    pub fn next(&mut self) -> Option<Frame> {
        let mut head = [0; HEAD_BYTES];
        self.fill(&mut head)?;
        let mut payload = vec![0; payload_bytes(&head)];
        self.fill(&mut payload)?;
        Some(Frame::of(&head, payload))
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(buffer) {
            Ok(()) => Some(()),
            Err(error) => {
                assert!(!is_timeout(&error), "the server neither answered nor closed");
                None
            }
        }
    }

    /// Returns the next frame of this type. Frames of other types before it are dropped.
    ///
    /// # Panics
    ///
    /// Panics if the server closes the connection before it has sent such a frame, or nothing arrives for
    /// [`TIMEOUT`].
    pub fn next_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().expect("the server did not close");
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Returns all bytes that arrive until the server closes the connection.
    ///
    /// # Panics
    ///
    /// Panics if nothing arrives for [`TIMEOUT`] although the server has not closed the connection.
    pub fn read_to_close(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        if let Err(error) = self.stream.read_to_end(&mut all) {
            assert!(!is_timeout(&error), "the server did not close");
        }
        all
    }

    /// Reads and drops frames until the server has closed the connection.
    pub fn closed(mut self) {
        while self.next().is_some() {}
    }

    /// Returns the underlying stream.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Shuts down the sending side.
    pub fn finish(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Opens a connection, sends bytes, and shuts down the sending side. Returns the bytes that arrived until the
/// server closed the connection.
///
/// # Panics
///
/// Panics if the server does not close the connection.
pub fn send_garbage(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut connection = Connection::silent(address);
    connection.send(bytes);
    connection.finish();
    connection.read_to_close()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let bytes = [frame(PING, 1, 0, b"12345678"), call(3, "/a/B", b"xy")].concat();
        let mut rest = &bytes[..];
        let frames: Vec<Frame> = std::iter::from_fn(|| Frame::take(&mut rest)).collect();
        assert!(rest.is_empty());
        let seen: Vec<_> = frames.iter().map(|frame| (frame.kind, frame.flags, frame.stream)).collect();
        assert_eq!(seen, [(PING, 1, 0), (HEADERS, END_HEADERS, 3), (DATA, END_STREAM, 3)]);
        assert_eq!(frames[2].payload, b"\0\0\0\0\x02xy");
        let mut cut = &bytes[..16];
        assert!(Frame::take(&mut cut).is_none());
        assert_eq!(cut.len(), 16, "what is not whole is left");
    }

    #[test]
    fn long_texts_have_a_length_of_several_bytes() {
        // 1337 = 127 + (1210 % 128) + 128 * 9
        let text = "x".repeat(1337);
        assert_eq!(block(&[("a", &text)])[..6], [0, 1, b'a', 127, 0xba, 9]);
    }
}
