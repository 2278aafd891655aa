//! Cuts the payloads of HTTP/2 DATA frames into gRPC messages: [`Assembler`]. It reads the prefixes of
//! messages, checks lengths and compression flags, and decompresses. It does not reserve memory in the
//! connection's account and does not count work; its callers do.

use api::{Code, Status};
use bytes::{Buf, Bytes, BytesMut};

use crate::gzip;

/// Size of gRPC's message prefix in bytes: one flag byte and four bytes of length, big-endian.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Cuts DATA payloads into messages.
#[derive(Debug)]
pub(crate) struct Assembler {
    /// Length limit of a message, in bytes. It is a `u32` because a length on the wire has four bytes.
    message_bytes_max: u32,
    /// True if `grpc-encoding` announced gzip.
    gzip: bool,
    /// Received part, with the prefix, of a message that spans several payloads; never empty. It is boxed to
    /// save memory, because few messages span payloads, and idle streams may stay open for days.
    partial: Option<Box<BytesMut>>,
}

/// Message, decompressed, with its length on the wire without the prefix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Assembled {
    pub(crate) message: Bytes,
    pub(crate) wire_bytes: usize,
}

impl Assembler {
    pub(crate) fn new(message_bytes_max: usize, gzip: bool) -> Assembler {
        let message_bytes_max = u32::try_from(message_bytes_max).unwrap_or(u32::MAX);
        Assembler { message_bytes_max, gzip, partial: None }
    }

    /// Returns true if a message has begun and is incomplete.
    pub(crate) fn is_mid_message(&self) -> bool {
        self.partial.is_some()
    }

    /// Returns the announced length of the unfinished message, if its prefix has arrived.
    pub(crate) fn announced(&self) -> Option<u32> {
        match self.partial.as_deref()?[..] {
            [_, a, b, c, d, ..] => Some(u32::from_be_bytes([a, b, c, d])),
            _ => None,
        }
    }

    /// Cuts the next complete message off the front of a payload. If the payload contains no complete
    /// message, returns `None` and keeps the payload as the beginning of a message. The returned message does
    /// not keep the memory of the payload. The cost of decompression, in bytes, is added to `work`, even if
    /// the message is refused. After an error the stream cannot be used any more.
    pub(crate) fn cut(&mut self, payload: &mut &[u8], work: &mut usize) -> Result<Option<Assembled>, Status> {
        if self.partial.is_none()
            && let Some(len) = self.checked_len(payload)?
            && let Some((whole, rest)) = payload.split_at_checked(PREFIX_BYTES + len)
        {
            *payload = rest;
            let body = &whole[PREFIX_BYTES..];
            let message = match whole[0] {
                1 => self.unpacked(body, work)?,
                _ => Bytes::copy_from_slice(body),
            };
            return Ok(Some(Assembled { message, wire_bytes: len }));
        }
        if payload.is_empty() && self.partial.is_none() {
            return Ok(None);
        }
        let mut partial = self.partial.take().unwrap_or_default();
        gather(&mut partial, PREFIX_BYTES, payload);
        let len = self.checked_len(&partial)?;
        if let Some(len) = len {
            gather(&mut partial, PREFIX_BYTES + len, payload);
        }
        let Some(len) = len.filter(|len| partial.len() == PREFIX_BYTES + len) else {
            self.partial = Some(partial);
            return Ok(None);
        };
        let whole = *partial;
        let message = if whole[0] == 1 {
            self.unpacked(&whole[PREFIX_BYTES..], work)?
        } else {
            let mut body = whole.freeze();
            body.advance(PREFIX_BYTES);
            body
        };
        Ok(Some(Assembled { message, wire_bytes: len }))
    }

    fn checked_len(&self, bytes: &[u8]) -> Result<Option<usize>, Status> {
        let [flag, a, b, c, d, ..] = *bytes else { return Ok(None) };
        let len = u32::from_be_bytes([a, b, c, d]);
        match flag {
            0 => {}
            1 if self.gzip => {}
            1 => {
                let text = "grpc: compressed flag set with identity or empty encoding";
                return Err(Status::new(Code::Internal, text));
            }
            other => {
                let text = format!("grpc: received unexpected payload format {other}");
                return Err(Status::with(Code::Internal, text));
            }
        }
        if len > self.message_bytes_max {
            let text =
                format!("grpc: received message larger than max ({len} vs. {})", self.message_bytes_max);
            return Err(Status::with(Code::ResourceExhausted, text));
        }
        Ok(Some(len as usize))
    }

    fn unpacked(&self, body: &[u8], work: &mut usize) -> Result<Bytes, Status> {
        gzip::unpack(body, self.message_bytes_max as usize, work)
    }
}

/// Appends bytes of the payload to a partial message until it has `until` bytes.
fn gather(partial: &mut BytesMut, until: usize, payload: &mut &[u8]) {
    let n = until.saturating_sub(partial.len()).min(payload.len());
    if n > 0 {
        partial.reserve(until - partial.len());
        partial.extend_from_slice(&payload[..n]);
        *payload = &payload[n..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], step: usize, max: usize) -> Result<Vec<Bytes>, Status> {
        let (mut assembler, mut messages) = (Assembler::new(max, false), Vec::new());
        for part in bytes.chunks(step) {
            let mut part = part;
            while let Some(assembled) = assembler.cut(&mut part, &mut 0)? {
                messages.push(assembled.message);
            }
        }
        assert!(!assembler.is_mid_message());
        Ok(messages)
    }

    #[test]
    fn messages_come_out_however_they_are_cut() {
        let bytes = b"\0\0\0\0\x03abc\0\0\0\0\0\0\0\0\0\x01d";
        for step in 1..=bytes.len() {
            let expected = vec![Bytes::from("abc"), Bytes::new(), Bytes::from("d")];
            assert_eq!(all(bytes, step, 3), Ok(expected));
        }
    }

    #[test]
    fn what_grpc_forbids_is_refused_with_its_text() {
        let text =
            |bytes: &[u8]| all(bytes, 1, 3).map_err(|status| (status.code, status.message.into_owned()));
        let larger = "grpc: received message larger than max (4 vs. 3)".to_owned();
        assert_eq!(text(b"\0\0\0\0\x04abcd"), Err((Code::ResourceExhausted, larger)));
        let flag = "grpc: compressed flag set with identity or empty encoding".to_owned();
        assert_eq!(text(b"\x01\0\0\0\x01a"), Err((Code::Internal, flag)));
        let format = "grpc: received unexpected payload format 7".to_owned();
        assert_eq!(text(b"\x07\0\0\0\x01a"), Err((Code::Internal, format)));
    }
}
