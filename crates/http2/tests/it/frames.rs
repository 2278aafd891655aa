//! Hand-made frames, for input that no well-behaved peer sends.

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const WITH_PRIORITY: u8 = 0x20;

/// Header block of a GET request for `/` over http.
pub const GET: &[u8] = &[0x82, 0x84, 0x86];

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut out = vec![length[1], length[2], length[3], kind, flags];
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// Encodes a field as a literal without indexing and without Huffman codes.
pub fn field(name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![0];
    for text in [name, value] {
        assert!(text.len() < 127 + 128, "a longer text has another length");
        if text.len() < 127 {
            out.push(text.len() as u8);
        } else {
            out.extend([127, (text.len() - 127) as u8]);
        }
        out.extend(text.as_bytes());
    }
    out
}

/// Returns the first bytes of a client.
pub fn greeting() -> Vec<u8> {
    [http2::PREFACE.as_slice(), &frame(SETTINGS, 0, 0, &[])].concat()
}

/// Parsed frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Returns the error code of RST_STREAM and GOAWAY, or the increment of WINDOW_UPDATE.
    pub fn number(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// Splits bytes into frames, after a preface if there is one.
pub fn frames(bytes: &[u8]) -> Vec<Frame> {
    let mut rest = bytes.strip_prefix(http2::PREFACE).unwrap_or(bytes);
    let mut frames = Vec::new();
    while let Some((head, behind)) = rest.split_at_checked(9) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap());
        frames.push(Frame { kind: head[3], flags: head[4], stream, payload: behind[..length].to_vec() });
        rest = &behind[length..];
    }
    assert!(rest.is_empty(), "the output ends with a part of a frame");
    frames
}
