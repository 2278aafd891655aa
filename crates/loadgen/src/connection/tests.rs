//! Answers in pieces, damaged, and cut off.

use super::*;

fn frames(parts: &[(u8, u8, u32, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (kind, flags, stream, payload) in parts {
        frame::head(&mut out, payload.len(), *kind, *flags, *stream);
        out.extend_from_slice(payload);
    }
    out
}

/// A connection with three calls: one that wants its messages, one that does not, one stream.
fn begun() -> Connection {
    let mut connection = Connection::new(Options::new("host:1"));
    connection.call(Rpc::KvRange, b"one", 10, true, true);
    connection.call(Rpc::KvPut, b"two", 20, false, true);
    connection.call(Rpc::Watch, b"three", 30, true, false);
    connection
}

/// Feeds input in pieces as sockets may give it, and writes down what came.
fn seen(connection: &mut Connection, input: &[u8], piece: usize) -> Result<Vec<String>, Violation> {
    let (mut all, mut waiting) = (Vec::new(), Vec::new());
    for bytes in input.chunks(piece) {
        waiting.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(event) = connection.next(&waiting, &mut at)? {
            all.push(match event {
                Event::Message { tag, body } => format!("{tag}: {}", String::from_utf8_lossy(&body)),
                Event::Ended { tag, status } => format!("{tag} ended {} {}", status.code, status.message),
            });
        }
        waiting.drain(..at);
    }
    Ok(all)
}

fn answers() -> Vec<u8> {
    let (mut encoder, mut head, mut tail) = (Encoder::default(), Vec::new(), Vec::new());
    encoder.encode([(&b":status"[..], &b"200"[..]), (b"content-type", b"application/grpc")], &mut head);
    encoder.encode([(&b"grpc-status"[..], &b"0"[..]), (b"grpc-message", b"")], &mut tail);
    let (mut again, mut refused) = (Vec::new(), Vec::new());
    encoder.encode([(&b":status"[..], &b"200"[..]), (b"content-type", b"application/grpc")], &mut again);
    encoder.encode([(&b"grpc-status"[..], &b"5"[..]), (b"grpc-message", b"not%20there%")], &mut refused);
    let (split, rest) = refused.split_at(3);
    frames(&[
        (kind::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
        (kind::HEADERS, flag::END_HEADERS, 1, &head),
        // A message over three frames, the second of them padded; its prefix is cut too.
        (kind::DATA, 0, 1, &[0, 0, 0]),
        (kind::DATA, flag::PADDED, 1, &[2, 0, 6, b'a', b'b', 0, 0]),
        (kind::PING, 0, 0, &[1; 8]),
        (kind::DATA, 0, 1, b"cdef"),
        (kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &tail),
        (kind::HEADERS, flag::END_HEADERS, 5, &again),
        // Three messages in one frame, one of them empty.
        (kind::DATA, 0, 5, &[0, 0, 0, 0, 1, b'x', 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'y']),
        // A block that is continued, with trailers only.
        (kind::HEADERS, flag::END_STREAM, 3, split),
        (kind::CONTINUATION, flag::END_HEADERS, 3, rest),
        (99, 0, 7, b"nobody knows this frame"),
        (kind::RST_STREAM, 0, 5, &[0, 0, 0, 2]),
    ])
}

#[test]
fn answers_are_the_same_in_whatever_pieces_they_come() {
    let input = answers();
    for piece in 1..input.len() {
        let mut connection = begun();
        assert_eq!(
            seen(&mut connection, &input, piece).unwrap(),
            [
                "10: abcdef",
                "10 ended 0 ",
                "30: x",
                "30: ",
                "30: y",
                "20 ended 5 not there%",
                "30 ended 13 stream terminated by RST_STREAM with error code: 2",
            ],
            "in pieces of {piece}"
        );
        assert_eq!(connection.calls(), 0);
    }
}

/// Damage at each place: it is refused or borne, calls end once at most, and nothing panics.
#[test]
fn damaged_answers_are_borne() {
    let input = answers();
    for at in 0..input.len() {
        for change in [1, 0x80, 0xff] {
            let mut damaged = input.clone();
            damaged[at] ^= change;
            let mut connection = begun();
            let _ = seen(&mut connection, &damaged, 7);
            let (over, _) = connection.lose("gone");
            assert!(over.len() <= 3);
        }
    }
}

#[test]
fn a_farewell_ends_what_the_server_did_not_take_and_the_rest_goes_on() {
    let mut connection = begun();
    let mut goaway = [0; 8];
    goaway[3] = 3;
    let input = frames(&[(kind::GOAWAY, 0, 0, &goaway)]);
    let all = seen(&mut connection, &input, 100).unwrap();
    assert_eq!(all, ["30 ended 14 the server is going away (GOAWAY)"]);
    assert!(!connection.spent());
    connection.call(Rpc::KvPut, b"later", 40, false, true);
    assert_eq!(connection.calls(), 3);
    let (over, start) = connection.lose("the server is going away");
    assert_eq!(over.len(), 2, "the two that were under way");
    let mut fresh = Connection::new(Options::new("host:1"));
    start(&mut fresh);
    assert_eq!(fresh.calls(), 1, "the one that waited is begun anew");
}

#[test]
fn after_the_first_request_headers_are_a_few_bytes() {
    let mut connection = begun();
    connection.call(Rpc::KvPut, b"", 50, false, true);
    let before = connection.output.len();
    connection.call(Rpc::KvPut, b"", 60, false, true);
    // Seven headers of a byte or two, two frame heads, an empty message.
    assert!(connection.output.len() - before <= 9 + 8 + 9 + 5, "{}", connection.output.len() - before);
}
