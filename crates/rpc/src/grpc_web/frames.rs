//! Encodes and decodes the bodies of gRPC-Web: frames, in binary or in base64. This module only transforms
//! bytes, without calls or sockets.
//!
//! ```text
//! frame   = flags (1 byte: 0 a message, 0x80 the end) length (4 bytes, big endian) bytes
//! request = messages; one, or as many as a streaming method takes
//! answer  = messages, then the end: "grpc-status:N\r\n" and, for an error, "grpc-message:TEXT\r\n"
//! ```
//!
//! Tests: beside the code, and the fuzz target `grpc_web`.

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderMap, HeaderValue, Method};
use api::{Code, Status};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::local_call::check_len;

/// Common prefix of the content types.
const TYPE: &str = "application/grpc-web";

/// Length of a frame header in bytes: flags and length.
const PREFIX_BYTES: usize = 5;
/// Flags of the frame that ends a response.
const END: u8 = 0x80;

/// Encoding of the bodies of a request and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Binary frames: `application/grpc-web`.
    Bytes,
    /// Frames in base64: `application/grpc-web-text`.
    Base64,
}

impl Form {
    /// Returns true for a gRPC-Web request.
    pub fn is_asked(method: &Method, headers: &HeaderMap) -> bool {
        *method == Method::POST && Form::of(headers).is_some()
    }

    /// Returns the form of a request's body; `None` if its content type is not gRPC-Web with protobuf.
    pub fn of(headers: &HeaderMap) -> Option<Form> {
        let value = headers.get(CONTENT_TYPE)?.to_str().ok()?.to_ascii_lowercase();
        let kind = value.split(';').next()?.trim().strip_prefix(TYPE)?;
        match kind.strip_suffix("+proto").unwrap_or(kind) {
            "" => Some(Form::Bytes),
            "-text" => Some(Form::Base64),
            _ => None,
        }
    }

    /// Returns the content type of a response in this form.
    pub fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Form::Bytes => "application/grpc-web+proto",
            Form::Base64 => "application/grpc-web-text+proto",
        })
    }
}

/// Takes the next message of at most `bytes_max` bytes from a request's body; `None` at its end.
///
/// # Errors
///
/// Returns an error if the message is too large, compressed or truncated, or if a frame is not a message.
/// After an error, the rest of the body cannot be decoded.
pub fn next_message(body: &mut Bytes, bytes_max: usize) -> Result<Option<Bytes>, Status> {
    if body.is_empty() {
        return Ok(None);
    }
    let malformed = |why: &'static str| Err(Status::new(Code::Internal, why));
    if body.len() < PREFIX_BYTES {
        return malformed("mainstay: the body ends within the prefix of a message");
    }
    let (flags, len) = (body.get_u8(), body.get_u32() as usize);
    check_len(len, bytes_max)?;
    match flags {
        0 => {}
        1 => return malformed("grpc: compressed flag set with identity or empty encoding"),
        _ => return malformed("mainstay: a frame of the request is not a message"),
    }
    if len > body.len() {
        return malformed("mainstay: the body ends within a message");
    }
    Ok(Some(body.split_to(len)))
}

/// Returns the message of a request that must contain exactly one.
///
/// # Errors
///
/// Returns the errors of [`next_message`], or an error if the request contains no message or more than one.
pub fn only(mut body: Bytes, bytes_max: usize) -> Result<Bytes, Status> {
    let message = next_message(&mut body, bytes_max)?
        .ok_or(Status::new(Code::Internal, "mainstay: the body contains no message"))?;
    if !body.is_empty() {
        return Err(Status::new(Code::Internal, "mainstay: the body contains more than one message"));
    }
    Ok(message)
}

/// Decodes base64. The text may consist of several pieces, each with its own padding.
///
/// # Errors
///
/// Returns `Internal` with the reason if the text is not valid base64.
pub fn decoded(text: &[u8]) -> Result<Bytes, Status> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let mut rest = text;
    while !rest.is_empty() {
        // A piece ends with the group of four characters that contains its padding. Without padding, it is
        // the rest of the text.
        let end = rest.iter().position(|byte| *byte == b'=').map_or(rest.len(), |at| (at / 4 + 1) * 4);
        let (piece, behind) = rest.split_at(end.min(rest.len()));
        STANDARD.decode_vec(piece, &mut out).map_err(|error| {
            Status::with(Code::Internal, format!("mainstay: the body is not valid base64: {error}"))
        })?;
        rest = behind;
    }
    // A text with much padding is much shorter when decoded. The unused capacity is freed, because memory is
    // reserved only for the length.
    out.shrink_to_fit();
    Ok(out.into())
}

/// Writes the frames of a response. Base64 is padded only in [`Writer::flush`], after which the client can
/// decode all bytes so far.
pub struct Writer {
    form: Form,
    /// Encoded bytes that have not been taken yet.
    out: BytesMut,
    /// Up to two bytes that do not fill a base64 group yet.
    rest: Vec<u8>,
}

impl Writer {
    /// Returns an empty writer.
    pub fn new(form: Form) -> Writer {
        Writer { form, out: BytesMut::new(), rest: Vec::new() }
    }

    /// Writes bytes of a message that was begun with [`Writer::begin_message`].
    pub fn put(&mut self, mut bytes: &[u8]) {
        if self.form == Form::Bytes {
            self.out.put_slice(bytes);
            return;
        }
        if !self.rest.is_empty() {
            let (first, others) = bytes.split_at((3 - self.rest.len()).min(bytes.len()));
            self.rest.extend_from_slice(first);
            bytes = others;
            if self.rest.len() < 3 {
                return;
            }
            self.out.put_slice(STANDARD.encode(&self.rest).as_bytes());
            self.rest.clear();
        }
        let (whole, rest) = bytes.split_at(bytes.len() / 3 * 3);
        self.out.put_slice(STANDARD.encode(whole).as_bytes());
        self.rest.extend_from_slice(rest);
    }

    /// Writes the header of a message of `len` bytes; the caller then writes the bytes.
    pub fn begin_message(&mut self, len: usize) {
        let mut prefix = [0; PREFIX_BYTES];
        // The length fits into 32 bits: `check_sent_len` has refused longer responses.
        (&mut prefix[1..]).put_u32(u32::try_from(len).unwrap_or(u32::MAX));
        self.put(&prefix);
    }

    /// Writes a whole message.
    pub fn message(&mut self, message: &[u8]) {
        self.begin_message(message.len());
        self.put(message);
    }

    /// Writes the frame with the final status.
    pub fn end(&mut self, result: &Result<(), Status>) {
        let mut text = String::new();
        for (name, value) in &front::trailers(result) {
            text += name.as_str();
            text += ":";
            text += value.to_str().unwrap_or_default();
            text += "\r\n";
        }
        let mut prefix = [END, 0, 0, 0, 0];
        (&mut prefix[1..]).put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.put(&prefix);
        self.put(text.as_bytes());
    }

    /// Returns the number of bytes that [`Writer::take`] would return.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Returns true if [`Writer::take`] would return nothing.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Takes the bytes written so far, in the middle of a message. In base64, up to two bytes that do not
    /// fill a group remain.
    pub fn take(&mut self) -> Bytes {
        self.out.split().freeze()
    }

    /// Takes all written bytes, and pads base64.
    pub fn flush(&mut self) -> Bytes {
        if !self.rest.is_empty() {
            self.out.put_slice(STANDARD.encode(std::mem::take(&mut self.rest)).as_bytes());
        }
        self.out.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_comes_in_any_pieces() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("QQ==", b"A"),
            ("QQ==QkM=REVG", b"ABCDEF"),
            ("QUI=QUI=", b"ABAB"),
            ("QUJDREVG", b"ABCDEF"),
        ] {
            assert_eq!(decoded(text.as_bytes()).as_deref(), Ok(bytes), "{text}");
        }
        // The text of single bytes is four times as long as the bytes; the unused capacity is freed.
        let mut padded = decoded("QQ==".repeat(1000).as_bytes()).expect("it is base64").try_into_mut();
        assert_eq!(padded.as_mut().map(|bytes| (bytes.len(), bytes.capacity())), Ok((1000, 1000)));
        for text in ["Q", "QQ", "QQ=", "=", "Q===", "QQ==Q", "QQ=Q", "Q\nQQ", "QQ==="] {
            assert!(decoded(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_piece_by_piece_is_what_was_put() {
        for step in 1..8 {
            let mut writer = Writer::new(Form::Base64);
            let bytes: Vec<u8> = (0..=255).collect();
            let mut text = Vec::new();
            writer.begin_message(bytes.len());
            for (at, piece) in bytes.chunks(step).enumerate() {
                writer.put(piece);
                if at % 3 == 0 {
                    text.extend_from_slice(&writer.take());
                }
            }
            assert!(!text.contains(&b'='), "no padding within a message");
            writer.end(&Err(Status::new(Code::NotFound, "g\u{f6}ne")));
            text.extend_from_slice(&writer.flush());
            let mut read = decoded(&text).expect("it is base64");
            assert_eq!(next_message(&mut read, 300), Ok(Some(bytes.into())), "{step}");
            assert_eq!(read.split_to(PREFIX_BYTES)[..], [END, 0, 0, 0, 39]);
            assert_eq!(read, "grpc-status:5\r\ngrpc-message:g%C3%B6ne\r\n");
        }
    }

    #[test]
    fn messages_are_cut_from_a_body_one_by_one() {
        let mut body = Bytes::from_static(b"\0\0\0\0\x01a\0\0\0\0\0\0\0\0\0\x02bc");
        for message in [&b"a"[..], b"", b"bc"] {
            assert_eq!(
                next_message(&mut body, 2).map(|message| message.map(Vec::from)),
                Ok(Some(message.to_vec()))
            );
        }
        assert_eq!(next_message(&mut body, 2), Ok(None));
        let mut large = Bytes::from_static(b"\0\0\0\0\x03abc");
        assert_eq!(next_message(&mut large, 2).map_err(|status| status.code), Err(Code::ResourceExhausted));
    }
}
