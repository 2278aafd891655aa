//! Checks the code that reads and writes the bodies of gRPC-Web calls, which browsers make.

use api::{Code, Status};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use rpc::grpc_web::frames::{Form, Writer, decoded, next_message, only};

/// Fuzz target: the first byte of the input limits the size of a message, the second byte decides where a
/// response is flushed and with which status it ends, and the rest is the body of a request. The body is read
/// in both forms (binary and base64), and the result is compared with that of a simple reader. After that,
/// the messages are written as a response, in both forms. Reading this response must give the same messages
/// and the same status.
pub fn run(input: &[u8]) {
    let [bound, cut, body @ ..] = input else { return };
    let bytes_max = usize::from(*bound) * 4;
    match (decoded(body), simply_decoded(body)) {
        (Ok(bytes), Some(expected)) => {
            assert_eq!(bytes, expected);
            frames(&bytes, bytes_max, *cut);
        }
        (Err(_), None) => {}
        (read, expected) => panic!("{read:?} is not {expected:?}"),
    }
    frames(body, bytes_max, *cut);
}

/// Decodes base64, each group of four characters separately (a simple reader for comparison).
fn simply_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let groups: Option<Vec<_>> = text.chunks(4).map(|group| STANDARD.decode(group).ok()).collect();
    groups.map(|groups| groups.concat())
}

/// Splits a body into messages (a simple reader for comparison). Returns the messages, and true if nothing
/// follows the last one.
fn simply_cut(mut body: &[u8], bytes_max: usize) -> (Vec<&[u8]>, bool) {
    let mut messages = Vec::new();
    while let [0, a, b, c, d, rest @ ..] = body {
        let len = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let Some((message, behind)) = rest.split_at_checked(len).filter(|_| len <= bytes_max) else { break };
        messages.push(message);
        body = behind;
    }
    (messages, body.is_empty())
}

fn frames(body: &[u8], bytes_max: usize, cut: u8) {
    let (expected, is_whole) = simply_cut(body, bytes_max);
    let mut rest = Bytes::copy_from_slice(body);
    let mut messages = Vec::new();
    let ended = loop {
        match next_message(&mut rest, bytes_max) {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => break Ok(()),
            Err(status) => break Err(status),
        }
    };
    assert_eq!(
        (&messages[..], ended.is_ok()),
        (&expected.iter().map(|m| Bytes::copy_from_slice(m)).collect::<Vec<_>>()[..], is_whole)
    );
    let one = only(Bytes::copy_from_slice(body), bytes_max);
    assert_eq!(one.is_ok(), messages.len() == 1 && is_whole, "{one:?}");
    // The message of the final status is taken from the input, so that it may contain any characters.
    let text = String::from_utf8_lossy(body.get(..64).unwrap_or(body)).into_owned();
    let code = Code::ALL[usize::from(cut) % Code::ALL.len()];
    let end = if code == Code::Ok { Ok(()) } else { Err(Status::with(code, text)) };
    for form in [Form::Bytes, Form::Base64] {
        written(form, &messages, &end, cut);
    }
}

/// Writes a response, and reads it again as a client does.
fn written(form: Form, messages: &[Bytes], end: &Result<(), Status>, cut: u8) {
    let (mut writer, mut sent) = (Writer::new(form), Vec::new());
    for (at, message) in messages.iter().enumerate() {
        if (at & 1 == 0) == (cut & 1 == 0) {
            writer.message(message);
        } else {
            writer.begin_message(message.len());
            for piece in message.chunks(usize::from(cut >> 4) + 1) {
                writer.put(piece);
                sent.extend_from_slice(&writer.take());
            }
        }
        if cut & 2 > 0 {
            sent.extend_from_slice(&writer.flush());
        }
    }
    writer.end(end);
    sent.extend_from_slice(&writer.flush());
    assert!(writer.is_empty());
    let mut body = match form {
        Form::Bytes => Bytes::from(sent),
        Form::Base64 => decoded(&sent).expect("base64 of our own can be read"),
    };
    for message in messages {
        assert_eq!(next_message(&mut body, usize::MAX).as_ref(), Ok(&Some(message.clone())));
    }
    let [0x80, a, b, c, d, told @ ..] = &body[..] else { panic!("no end: {body:?}") };
    assert_eq!(u32::from_be_bytes([*a, *b, *c, *d]) as usize, told.len());
    let told = std::str::from_utf8(told).expect("an end is text");
    let lines: Vec<&str> = told.strip_suffix("\r\n").expect("each line ends").split("\r\n").collect();
    let code = end.as_ref().map_or_else(|status| status.code, |()| Code::Ok);
    assert_eq!(lines[0], format!("grpc-status:{}", code as i32));
    // The message of the status must be encoded as one line, whatever it contains.
    let expected = end.as_ref().err().map(|status| format!("grpc-message:{}", percent(&status.message)));
    assert_eq!(lines.get(1).copied(), expected.as_deref());
    assert!(lines.len() <= 2, "{lines:?}");
}

/// Encodes a text in gRPC's percent encoding: the percent sign, and all bytes that are not printable ASCII,
/// become a percent sign and two hexadecimal digits.
fn percent(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Returns seeds with bodies as browsers send them.
pub fn seeds() -> Vec<Vec<u8>> {
    let call = |cut: u8, body: &[u8]| [&[255, cut][..], body].concat();
    let frames = b"\0\0\0\0\x03\x0a\x01k\0\0\0\0\0\0\0\0\0\x05\x0a\x03key";
    vec![
        call(0, frames),
        call(0x37, frames),
        call(5, STANDARD.encode(frames).as_bytes()),
        call(2, [&frames[..8], &frames[8..]].map(|piece| STANDARD.encode(piece)).concat().as_bytes()),
        call(3, b"\x01\0\0\0\0"),
        call(4, b"\x80\0\0\0\x10grpc-status:0\r\n\r\n%"),
        call(6, b"\0\0\0\xff\xffcut"),
    ]
}
