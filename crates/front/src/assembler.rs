//! Cutting DATA payloads into gRPC messages: [`Assembler`]. It reads prefixes and checks lengths and compression flags.
//! It neither unpacks messages nor charges memory; its callers do.

use api::{Code, Status};
use bytes::{Buf, Bytes, BytesMut};

use crate::gzip;
use crate::outgoing::PREFIX_BYTES;

/// Cuts DATA payloads into messages. A message that lies whole in one payload is a slice of it, not a copy.
#[derive(Debug)]
pub(crate) struct Assembler {
    message_bytes_max: usize,
    /// True if `grpc-encoding` announced gzip.
    gzip: bool,
    /// The payload being cut.
    current: Bytes,
    /// The beginning of a message that spans payloads, prefix included.
    partial: BytesMut,
}

/// A message and how long it was on the wire.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Assembled {
    pub(crate) message: Bytes,
    pub(crate) wire_bytes: usize,
}

impl Assembler {
    pub(crate) fn new(message_bytes_max: usize, gzip: bool) -> Assembler {
        Assembler { message_bytes_max, gzip, current: Bytes::new(), partial: BytesMut::new() }
    }

    /// Takes the next payload; the messages of the last one must have been taken out.
    pub(crate) fn push(&mut self, payload: Bytes) {
        assert!(self.current.is_empty(), "a payload was pushed before the last one was used up");
        self.current = payload;
    }

    /// Returns true if a message has begun and is not whole.
    pub(crate) fn is_mid_message(&self) -> bool {
        !self.current.is_empty() || !self.partial.is_empty()
    }

    /// Returns the announced length of the unfinished message, if its prefix has arrived.
    pub(crate) fn announced(&self) -> Option<usize> {
        match self.partial[..] {
            [_, a, b, c, d, ..] => Some(u32::from_be_bytes([a, b, c, d]) as usize),
            _ => None,
        }
    }

    /// The next whole message, or `None` until more payload comes. After an error the stream is of no use.
    pub(crate) fn next(&mut self) -> Result<Option<Assembled>, Status> {
        if self.partial.is_empty() {
            if let Some(len) = self.checked_len(&self.current)?
                && self.current.len() >= PREFIX_BYTES + len
            {
                let packed = self.current[0] == 1;
                self.current.advance(PREFIX_BYTES);
                let body = self.current.split_to(len);
                return self.finished(packed, body).map(Some);
            }
            if !self.current.is_empty() {
                self.partial.extend_from_slice(&self.current);
                self.current = Bytes::new();
            }
            return Ok(None);
        }
        if self.partial.len() < PREFIX_BYTES {
            self.gather(PREFIX_BYTES);
        }
        let Some(len) = self.checked_len(&self.partial)? else { return Ok(None) };
        self.gather(PREFIX_BYTES + len);
        if self.partial.len() < PREFIX_BYTES + len {
            return Ok(None);
        }
        let packed = self.partial[0] == 1;
        let mut body = std::mem::take(&mut self.partial).freeze();
        body.advance(PREFIX_BYTES);
        self.finished(packed, body).map(Some)
    }

    fn gather(&mut self, until: usize) {
        let n = until.saturating_sub(self.partial.len()).min(self.current.len());
        self.partial.extend_from_slice(&self.current.split_to(n));
    }

    fn checked_len(&self, bytes: &[u8]) -> Result<Option<usize>, Status> {
        let [flag, a, b, c, d, ..] = *bytes else { return Ok(None) };
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
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
        Ok(Some(len))
    }

    fn finished(&self, packed: bool, body: Bytes) -> Result<Assembled, Status> {
        let wire_bytes = body.len();
        let message = if packed { gzip::unpack(&body, self.message_bytes_max)? } else { body };
        Ok(Assembled { message, wire_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], step: usize, max: usize) -> Result<Vec<Bytes>, Status> {
        let (mut assembler, mut messages) = (Assembler::new(max, false), Vec::new());
        for part in bytes.chunks(step) {
            assembler.push(Bytes::copy_from_slice(part));
            while let Some(assembled) = assembler.next()? {
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
