//! Tests with responses in pieces, damaged, and cut off.

use testkit::http2::block;

use super::*;

// Types and flags of frames (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

fn frames(parts: &[(u8, u8, u32, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (kind, flags, stream, payload) in parts {
        out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        out.extend_from_slice(&[*kind, *flags]);
        out.extend_from_slice(&stream.to_be_bytes());
        out.extend_from_slice(payload);
    }
    out
}

fn fresh() -> Connection {
    Connection::new(Options::new("host:1"), Instant::now())
}

/// Returns a connection with three calls: one that keeps its messages, one that does not, and one stream.
fn begun() -> Connection {
    let mut connection = fresh();
    connection.call(Rpc::KvRange, b"one", 10, true, true);
    connection.call(Rpc::KvPut, b"two", 20, false, true);
    connection.call(Rpc::Watch, b"three", 30, true, false);
    connection
}

/// Feeds input in pieces as sockets may deliver it, and returns the events as text.
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
    let head = block(&[(":status", "200"), ("content-type", "application/grpc")]);
    let tail = block(&[("grpc-status", "0"), ("grpc-message", "")]);
    let refused = block(&[(":status", "200"), ("grpc-status", "5"), ("grpc-message", "not%20there%")]);
    let (split, rest) = refused.split_at(3);
    frames(&[
        (SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
        (HEADERS, END_HEADERS, 1, &head),
        // A message in three frames, the second of them padded; the message prefix is cut as well.
        (DATA, 0, 1, &[0, 0, 0]),
        (DATA, PADDED, 1, &[2, 0, 6, b'a', b'b', 0, 0]),
        (PING, 0, 0, &[1; 8]),
        (DATA, 0, 1, b"cdef"),
        (HEADERS, END_HEADERS | END_STREAM, 1, &tail),
        (HEADERS, END_HEADERS, 5, &head),
        // Three messages in one frame, one of them empty.
        (DATA, 0, 5, &[0, 0, 0, 0, 1, b'x', 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'y']),
        // A header block continued in a second frame, with trailers only.
        (HEADERS, END_STREAM, 3, split),
        (CONTINUATION, END_HEADERS, 3, rest),
        (99, 0, 7, b"nobody knows this frame"),
        (RST_STREAM, 0, 5, &[0, 0, 0, 2]),
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

/// Damages every byte: the input is refused or tolerated, each call ends at most once, and nothing panics.
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
    let input = frames(&[(SETTINGS, 0, 0, &[]), (GOAWAY, 0, 0, &goaway)]);
    let all = seen(&mut connection, &input, 100).unwrap();
    assert_eq!(all, ["30 ended 14 the server is going away (GOAWAY)"]);
    assert!(!connection.spent());
    connection.call(Rpc::KvPut, b"later", 40, false, true);
    assert_eq!(connection.calls(), 3);
    let (over, start) = connection.lose("the server is going away");
    assert_eq!(over.len(), 2, "the two that were under way");
    let mut next = fresh();
    start(&mut next);
    assert_eq!(next.calls(), 1, "the one that waited is begun again");
}

#[test]
fn after_the_first_request_headers_are_a_few_bytes() {
    let mut connection = begun();
    connection.call(Rpc::KvPut, b"", 50, false, true);
    let before = connection.output().len();
    connection.call(Rpc::KvPut, b"", 60, false, true);
    // Seven headers of one or two bytes, two frame headers, and an empty message.
    assert!(connection.output().len() - before <= 9 + 8 + 9 + 5, "{}", connection.output().len() - before);
}

/// After the last bytes of a stream have arrived, HTTP/2 considers the stream closed and its slot free,
/// although not all of its messages have been delivered yet.
#[test]
fn a_call_that_is_begun_meanwhile_takes_nobodys_place() {
    let mut connection = fresh();
    connection.call(Rpc::KvRange, b"one", 10, true, true);
    let head = block(&[(":status", "200"), ("content-type", "application/grpc")]);
    let input = frames(&[
        (SETTINGS, 0, 0, &[]),
        (HEADERS, END_HEADERS, 1, &head),
        (DATA, END_STREAM, 1, &[0, 0, 0, 0, 1, b'x', 0, 0, 0, 0, 1, b'y']),
    ]);
    let (mut at, mut all, mut next) = (0, Vec::new(), 20);
    while let Some(event) = connection.next(&input, &mut at).unwrap() {
        all.push(match event {
            Event::Message { tag, body } => format!("{tag}: {}", String::from_utf8_lossy(&body)),
            Event::Ended { tag, status } => format!("{tag} ended {}", status.code),
        });
        connection.call(Rpc::KvPut, b"two", next, false, true);
        next += 10;
    }
    assert_eq!(all, ["10: x", "10: y", "10 ended 13"]);
    assert_eq!(connection.calls(), 3);
    let (over, _) = connection.lose("gone");
    assert_eq!(over.len(), 3, "all three were begun");
}
