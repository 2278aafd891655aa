//! HTTP/2 frames (RFC 9113): the numbers, and the nine bytes before each.

/// Types of frames.
pub mod kind {
    #![allow(missing_docs)]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub mod flag {
    #![allow(missing_docs)]
    pub const END_STREAM: u8 = 1;
    pub const ACK: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 0x20;
}

/// Settings.
pub mod setting {
    #![allow(missing_docs)]
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
}

/// The bytes that a client sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes before each frame's payload.
pub const HEAD_BYTES: usize = 9;
/// The largest payload anybody takes without having said so.
pub const PAYLOAD_BYTES_MAX: usize = 16_384;
/// The flow-control window where nothing else was agreed.
pub const WINDOW_BYTES: i64 = 65_535;
/// RST_STREAM's code for a call nobody waits for any more.
pub const CANCEL: u32 = 8;

/// The head of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Bytes of payload that follow.
    pub length: usize,
    /// One of [`kind`].
    pub kind: u8,
    /// Bits of [`flag`].
    pub flags: u8,
    /// 0 for the whole connection.
    pub stream: u32,
}

impl Head {
    /// Reads a head, if there are enough bytes.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
        Some(Self {
            length: usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]),
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff,
        })
    }
}

/// Appends a head.
pub fn head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    debug_assert!(length < 1 << 24, "a frame's length has 24 bits");
    let [_, a, b, c] = (length as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
}

/// Appends SETTINGS.
pub fn settings(out: &mut Vec<u8>, pairs: &[(u16, u32)]) {
    head(out, pairs.len() * 6, kind::SETTINGS, 0, 0);
    for (name, value) in pairs {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends WINDOW_UPDATE.
pub fn window_update(out: &mut Vec<u8>, stream: u32, more: u32) {
    head(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&more.to_be_bytes());
}

/// Appends RST_STREAM.
pub fn reset(out: &mut Vec<u8>, stream: u32, code: u32) {
    head(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&code.to_be_bytes());
}

/// Goes through the pairs of a SETTINGS payload.
pub fn read_settings(payload: &[u8]) -> impl Iterator<Item = (u16, u32)> + '_ {
    payload
        .as_chunks::<6>()
        .0
        .iter()
        .map(|p| (u16::from_be_bytes([p[0], p[1]]), u32::from_be_bytes([p[2], p[3], p[4], p[5]])))
}

/// The first four bytes of a payload as a number.
pub fn read_u32(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|four| u32::from_be_bytes(*four))
}

/// Takes padding and priority off a DATA or HEADERS payload.
pub fn unpadded(head: Head, mut payload: &[u8]) -> Option<&[u8]> {
    let mut padding = 0;
    if head.flags & flag::PADDED != 0 {
        let (first, rest) = payload.split_first()?;
        (padding, payload) = (usize::from(*first), rest);
    }
    if head.kind == kind::HEADERS && head.flags & flag::PRIORITY != 0 {
        payload = payload.get(5..)?;
    }
    payload.get(..payload.len().checked_sub(padding)?)
}
