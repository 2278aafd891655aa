//! HTTP/2 by hand: for what no well-behaved client does.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("a small payload").to_be_bytes();
    let mut bytes = vec![len[1], len[2], len[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header block without compression.
pub fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        bytes.push(0);
        for text in [name, value] {
            // An integer with a prefix of 7 bits (RFC 7541, section 5.1).
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

/// The header block of a call.
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

/// One message with its prefix.
pub fn message(flag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![flag];
    bytes.extend(u32::try_from(body.len()).expect("a small message").to_be_bytes());
    bytes.extend(body);
    bytes
}

pub struct Raw {
    stream: TcpStream,
}

impl Raw {
    /// A socket that has sent nothing.
    pub fn silent(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a read time-out");
        Raw { stream }
    }

    /// A socket that has sent preface and settings.
    pub fn h2(address: SocketAddr, settings: &[u8]) -> Raw {
        let mut raw = Raw::silent(address);
        raw.send(PREFACE);
        raw.send(&frame(SETTINGS, 0, 0, settings));
        raw
    }

    /// Writes; a server that has closed already is no failure.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Writes; returns how many bytes were taken before the server took no more.
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

    /// Sends a unary call, all at once: one that comes in parts may be looked at after the next.
    pub fn call(&mut self, stream: u32, path: &str, more: &[(&str, &str)], body: &[u8]) {
        let mut frames = frame(HEADERS, END_HEADERS, stream, &call_block(path, more));
        frames.extend(frame(DATA, END_STREAM, stream, body));
        self.send(&frames);
    }

    /// The next frame; `None` when the server has closed.
    pub fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.fill(&mut head)?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; len as usize];
        self.fill(&mut payload)?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(buffer) {
            Ok(()) => Some(()),
            Err(error) => {
                let timed_out = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!timed_out, "the server neither answered nor closed");
                None
            }
        }
    }

    /// The next frame of this kind, others passed over.
    pub fn next_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().expect("the server did not close");
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// All that comes until the server closes.
    pub fn read_to_close(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        match self.stream.read_to_end(&mut all) {
            Ok(_) => {}
            Err(error) => {
                let timed_out = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!timed_out, "the server did not close");
            }
        }
        all
    }

    /// Waits until the server has closed.
    pub fn closed(mut self) {
        while self.next().is_some() {}
    }

    /// Shuts the sending side.
    pub fn finish(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }
}
