//! Defines the numbers of frame types, flags and settings (RFC 9113, section 4), and encodes and parses the
//! nine-byte frame header.

/// Frame types (section 6).
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

/// Frame flags (section 6).
pub(crate) mod flag {
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// SETTINGS identifiers (section 6.5.2).
pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Connection preface: the first bytes that a client sends (section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Size of the frame header before each payload, in bytes.
pub(crate) const HEAD_BYTES: usize = 9;
/// Maximum payload in bytes that each implementation of HTTP/2 must accept (section 4.2). This crate accepts
/// no larger payloads.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 16_384;
/// Default flow-control window in bytes (section 6.9.2).
pub(crate) const WINDOW_BYTES: u32 = 65_535;
/// Largest flow-control window in bytes (section 6.9.1).
pub(crate) const WINDOW_BYTES_MAX: u32 = 0x7fff_ffff;
/// Largest stream identifier (section 5.1.1).
pub(crate) const STREAM_MAX: u32 = 0x7fff_ffff;

/// Header of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Length of the payload in bytes.
    pub(crate) length: usize,
    /// Frame type: one of [`kind`], or an unknown type.
    pub(crate) kind: u8,
    /// Flags of the frame: bits of [`flag`].
    pub(crate) flags: u8,
    /// Identifier of the stream; 0 if the frame concerns the whole connection.
    pub(crate) stream: u32,
}

impl Head {
    /// Parses a frame header; `None` if there are fewer than nine bytes.
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> Option<Head> {
        let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
        Some(Head {
            length: usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]),
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & STREAM_MAX,
        })
    }

    /// Returns true if the flag is set.
    #[inline]
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Encodes a frame header.
#[inline]
pub(crate) fn head(length: usize, kind: u8, flags: u8, stream: u32) -> [u8; HEAD_BYTES] {
    debug_assert!(length < 1 << 24, "a frame's length has 24 bits");
    let [_, a, b, c] = (length as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    [a, b, c, kind, flags, d, e, f, g]
}

/// Appends a frame header.
#[inline]
pub(crate) fn put_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&head(length, kind, flags, stream));
}

/// Returns the first four bytes of a payload as a big-endian number; `None` if there are fewer.
pub(crate) fn read_u32(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|four| u32::from_be_bytes(*four))
}

/// Removes the padding from a payload (section 6.1); `None` if the padding is not shorter than the payload.
#[inline]
pub(crate) fn unpadded(head: Head, payload: &[u8]) -> Option<&[u8]> {
    if !head.has(flag::PADDED) {
        return Some(payload);
    }
    let (padding, rest) = payload.split_first()?;
    rest.get(..rest.len().checked_sub(usize::from(*padding))?)
}
