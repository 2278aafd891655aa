//! Requirements of RFC 9113 for a receiver, section by section: each error is answered with the code that the
//! section names.

use http2::{Options, Reason, Role};

use crate::ends::{End, REQUEST, Seen, call, pair};
use crate::frames::*;

const OPEN: u8 = END_HEADERS;
const WHOLE: u8 = END_HEADERS | END_STREAM;

/// Frames that are sent in order after the client's first bytes.
struct Case {
    what: &'static str,
    frames: Vec<Vec<u8>>,
}

fn case<const N: usize>(what: &'static str, frames: [Vec<u8>; N]) -> Case {
    Case { what, frames: frames.to_vec() }
}

fn headers(flags: u8, stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, flags, stream, block)
}

fn get_with(name: &str, value: &str) -> Vec<u8> {
    headers(WHOLE, 1, &[GET, &field(name, value)].concat())
}

fn setting(name: u16, value: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

fn number(kind: u8, stream: u32, number: u32) -> Vec<u8> {
    frame(kind, 0, stream, &number.to_be_bytes())
}

/// Checks that each case ends the connection with this code.
fn ends_connection(reason: Reason, cases: Vec<Case>) {
    for Case { what, frames } in cases {
        let mut server = End::greeted(&Options::default());
        let result = server.take(&frames.concat());
        assert_eq!(result.map_err(|error| error.reason), Err(reason), "{what}");
        let last = server.sent_frames().pop().unwrap();
        assert_eq!((last.kind, last.number()), (GOAWAY, reason.0), "{what}");
        assert!(server.connection.is_over());
    }
}

/// Checks that each case ends stream 1 with this code and that another stream continues.
fn ends_stream(reason: Reason, cases: Vec<Case>) {
    for Case { what, frames } in cases {
        let mut server = End::greeted(&Options::default());
        server.take(&frames.concat()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let last = server.sent_frames().into_iter().find(|frame| frame.kind == RST_STREAM);
        assert_eq!(last.map(|frame| (frame.stream, frame.number())), Some((1, reason.0)), "{what}");
        assert_eq!(server.connection.open_streams(), 0, "{what}");
        let next = server.take(&headers(WHOLE, 9, GET)).unwrap();
        assert!(matches!(next[..], [Seen::Head(..)]), "{what}");
    }
}

#[test]
fn prefaces() {
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r!", b"x"] {
        let mut server = End::new(Role::Server, &Options::default());
        assert_eq!(server.take(bytes).unwrap_err().reason, Reason::PROTOCOL_ERROR);
    }
    for first in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, ACK, 0, &[]), headers(WHOLE, 1, GET)] {
        let mut server = End::new(Role::Server, &Options::default());
        server.take(http2::PREFACE).unwrap();
        assert_eq!(server.take(&first).unwrap_err().reason, Reason::PROTOCOL_ERROR);
    }
}

#[test]
fn violations_that_end_the_connection() {
    let unknown = frame(0x42, 0xff, 1, b"x");
    ends_connection(
        Reason::PROTOCOL_ERROR,
        vec![
            case("5.1 DATA on an idle stream", [frame(DATA, 0, 1, b"x")]),
            case("5.1 RST_STREAM on an idle stream", [number(RST_STREAM, 1, 8)]),
            case("5.1 WINDOW_UPDATE on an idle stream", [number(WINDOW_UPDATE, 1, 8)]),
            case("5.1 on a stream that only the server may open", [number(WINDOW_UPDATE, 2, 8)]),
            case("5.1.1 an even stream", [headers(WHOLE, 2, GET)]),
            case("5.1.1 a lower stream", [headers(OPEN, 5, GET), headers(OPEN, 3, GET)]),
            case("6.1 DATA for no stream", [frame(DATA, 0, 0, b"x")]),
            case("6.1 padding", [headers(OPEN, 1, GET), frame(DATA, PADDED, 1, &[2, 0])]),
            case("6.1 no padding", [headers(OPEN, 1, GET), frame(DATA, PADDED, 1, &[])]),
            case("6.2 HEADERS for no stream", [headers(WHOLE, 0, GET)]),
            case("6.2 padding", [headers(OPEN | PADDED, 1, &[4, 0x82, 0x84, 0x86])]),
            case("6.2 another frame within a block", [headers(0, 1, GET), frame(PING, 0, 0, &[0; 8])]),
            case("6.2 an unknown frame within a block", [headers(0, 1, GET), unknown]),
            case("6.2 another stream's", [headers(0, 1, GET), frame(CONTINUATION, OPEN, 3, &[])]),
            case("6.2 HEADERS within a block", [headers(0, 1, GET), headers(OPEN, 3, GET)]),
            case("6.3 PRIORITY for no stream", [frame(PRIORITY, 0, 0, &[0; 5])]),
            case("6.3 PRIORITY of an idle stream on itself", [frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 0])]),
            case("6.4 RST_STREAM for no stream", [number(RST_STREAM, 0, 8)]),
            case("6.5 SETTINGS for a stream", [frame(SETTINGS, 0, 1, &[])]),
            case("6.5.2 ENABLE_PUSH", [setting(2, 2)]),
            case("6.5.2 MAX_FRAME_SIZE too small", [setting(5, 16_383)]),
            case("6.5.2 MAX_FRAME_SIZE too large", [setting(5, 1 << 24)]),
            case("6.6 PUSH_PROMISE", [frame(PUSH_PROMISE, OPEN, 1, &[0, 0, 0, 2])]),
            case("6.7 PING for a stream", [frame(PING, 0, 1, &[0; 8])]),
            case("6.8 GOAWAY for a stream", [frame(GOAWAY, 0, 1, &[0; 8])]),
            case("6.9 WINDOW_UPDATE of nothing", [number(WINDOW_UPDATE, 0, 0)]),
            case("6.10 CONTINUATION of nothing", [frame(CONTINUATION, OPEN, 1, GET)]),
            case("6.10 behind a whole block", [headers(OPEN, 1, GET), frame(CONTINUATION, OPEN, 1, GET)]),
        ],
    );
    ends_connection(
        Reason::FRAME_SIZE_ERROR,
        vec![
            case("4.2 a frame that is too large", [frame(DATA, 0, 1, &[0; 16_385])]),
            case("4.2 an unknown frame, too", [frame(0x42, 0, 1, &[0; 16_385])]),
            case("6.2 HEADERS without its priority", [headers(OPEN | WITH_PRIORITY, 1, &[0; 4])]),
            case("6.3 PRIORITY of an idle stream", [frame(PRIORITY, 0, 1, &[0; 4])]),
            case("6.4 RST_STREAM", [headers(OPEN, 1, GET), frame(RST_STREAM, 0, 1, &[0; 3])]),
            case("6.5 SETTINGS", [frame(SETTINGS, 0, 0, &[0; 7])]),
            case("6.5 an acknowledgement", [frame(SETTINGS, ACK, 0, &[0; 6])]),
            case("6.7 PING", [frame(PING, 0, 0, &[0; 7])]),
            case("6.8 GOAWAY", [frame(GOAWAY, 0, 0, &[0; 7])]),
            case("6.9 WINDOW_UPDATE", [frame(WINDOW_UPDATE, 0, 0, &[0; 3])]),
            case("6.9 of a stream", [headers(OPEN, 1, GET), frame(WINDOW_UPDATE, 0, 1, &[0; 5])]),
        ],
    );
    ends_connection(
        Reason::FLOW_CONTROL_ERROR,
        vec![
            case("6.5.2 INITIAL_WINDOW_SIZE", [setting(4, 1 << 31)]),
            case("6.9.1 the connection's window", [number(WINDOW_UPDATE, 0, 0x7fff_ffff)]),
        ],
    );
    ends_connection(
        Reason::COMPRESSION_ERROR,
        vec![
            case("4.3 a block that is damaged", [headers(WHOLE, 1, &[0x80])]),
            case(
                "4.3 of a stream that is over",
                [headers(OPEN, 1, GET), number(RST_STREAM, 1, 8), headers(WHOLE, 1, &[0xff])],
            ),
        ],
    );
    let closed = [headers(OPEN, 1, GET), number(RST_STREAM, 1, 8), headers(WHOLE, 1, GET)];
    ends_connection(Reason::STREAM_CLOSED, vec![case("5.1 HEADERS on a closed stream", closed)]);
}

#[test]
fn more_data_than_the_connection_allows() {
    let options = Options {
        connection_window_bytes: 65_535,
        stream_window_bytes: 1 << 20,
        stream_window_bytes_max: 0,
        ..Options::default()
    };
    let mut server = End::new(Role::Server, &options);
    server.releases = false;
    server.take(&[greeting(), headers(OPEN, 1, GET)].concat()).unwrap();
    // The connection's window is at least as large as a stream's.
    for _ in 0..64 {
        server.take(&frame(DATA, 0, 1, &[0; 16_384])).unwrap();
    }
    let error = server.take(&[headers(OPEN, 3, GET), frame(DATA, 0, 3, b"x")].concat()).unwrap_err();
    assert_eq!(error.reason, Reason::FLOW_CONTROL_ERROR);
}

#[test]
fn violations_that_end_a_stream() {
    let length = |text: &str| [GET, &field("content-length", text)].concat();
    ends_stream(
        Reason::PROTOCOL_ERROR,
        vec![
            case(
                "5.3.1 a stream that depends on itself",
                [headers(WHOLE | WITH_PRIORITY, 1, &[&[0, 0, 0, 1, 0], GET].concat())],
            ),
            case("5.3.1 PRIORITY", [headers(OPEN, 1, GET), frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 0])]),
            case("6.9 WINDOW_UPDATE of nothing", [headers(OPEN, 1, GET), number(WINDOW_UPDATE, 1, 0)]),
            case("8.1 trailers that do not end", [headers(OPEN, 1, GET), headers(OPEN, 1, &field("x", "y"))]),
            case(
                "8.1 trailers with a pseudo-header field",
                [headers(OPEN, 1, GET), headers(WHOLE, 1, &[0x82])],
            ),
            case("8.1.1 less content", [headers(OPEN, 1, &length("2")), frame(DATA, END_STREAM, 1, b"x")]),
            case(
                "8.1.1 less content than the greatest number",
                [headers(OPEN, 1, &length("18446744073709551615")), frame(DATA, END_STREAM, 1, b"x")],
            ),
            case("8.1.1 more content", [headers(OPEN, 1, &length("2")), frame(DATA, 0, 1, b"xyz")]),
            case("8.1.1 no content", [headers(WHOLE, 1, &length("1"))]),
            case(
                "8.1.1 less before trailers",
                [headers(OPEN, 1, &length("1")), headers(WHOLE, 1, &field("x", "y"))],
            ),
            case("8.2.1 capitals", [get_with("X", "y")]),
            case("8.2.1 characters of names", [get_with("x y", "z")]),
            case("8.2.1 characters of values", [get_with("x", "a\nb")]),
            case("8.2.2 connection", [get_with("connection", "keep-alive")]),
            case("8.2.2 te", [get_with("te", "gzip")]),
            case("8.3 an unknown pseudo-header field", [get_with(":x", "y")]),
            case("8.3 that of responses", [get_with(":status", "200")]),
            case("8.3 behind others", [headers(WHOLE, 1, &[&field("x", "y"), GET].concat())]),
            case("8.3.1 twice", [headers(WHOLE, 1, &[GET, &[0x82]].concat())]),
            case("8.3.1 no method", [headers(WHOLE, 1, &GET[1..])]),
            case("8.3.1 no scheme", [headers(WHOLE, 1, &GET[..2])]),
            case("8.3.1 no path", [headers(WHOLE, 1, &[0x82, 0x86])]),
            case(
                "8.3.1 an empty path",
                [headers(WHOLE, 1, &[&[0x82, 0x86][..], &field(":path", "")].concat())],
            ),
        ],
    );
    ends_stream(
        Reason::STREAM_CLOSED,
        vec![
            case("5.1 DATA behind the end", [headers(WHOLE, 1, GET), frame(DATA, 0, 1, b"x")]),
            case("5.1 HEADERS behind the end", [headers(WHOLE, 1, GET), headers(WHOLE, 1, &field("x", "y"))]),
            case(
                "5.1 DATA behind RST_STREAM",
                [headers(OPEN, 1, GET), number(RST_STREAM, 1, 8), frame(DATA, 0, 1, b"x")],
            ),
        ],
    );
    let over = number(WINDOW_UPDATE, 1, 0x7fff_ffff);
    ends_stream(Reason::FLOW_CONTROL_ERROR, vec![case("6.9.1", [headers(OPEN, 1, GET), over])]);
    ends_stream(
        Reason::FRAME_SIZE_ERROR,
        vec![case("6.3", [headers(OPEN, 1, GET), frame(PRIORITY, 0, 1, &[0; 6])])],
    );
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let mut server = End::greeted(&Options { streams_max: 2, ..Options::default() });
    for id in [1, 3] {
        server.take(&headers(WHOLE, id, GET)).unwrap();
    }
    assert_eq!(server.take(&headers(WHOLE, 5, GET)).unwrap(), []);
    assert_eq!(server.sent_frames()[0].number(), Reason::REFUSED_STREAM.0);
    server.take(&number(RST_STREAM, 1, 8)).unwrap();
    assert_eq!(server.take(&headers(WHOLE, 7, GET)).unwrap().len(), 1);
}

#[test]
fn what_is_allowed_is_taken() {
    let mut server = End::greeted(&Options::default());
    let block = [GET, &field("x", &"y".repeat(200))].concat();
    let padded = [&[5][..], &[0x80, 0, 0, 0, 16], &block, &[0; 5]].concat();
    let mut block = headers(0, 3, &block[..1]);
    block.extend(frame(CONTINUATION, 0, 3, &[]));
    block.extend(frame(CONTINUATION, 0, 3, &GET[1..2]));
    block.extend(frame(CONTINUATION, END_HEADERS, 3, &GET[2..]));
    let all = [
        frame(0x16, 7, 0, b"an unknown frame"),
        frame(PRIORITY, 0, 77, &[0, 0, 0, 5, 1]),
        frame(SETTINGS, 0, 0, &[0xff, 0, 1, 2, 3, 4]),
        headers(OPEN | PADDED | WITH_PRIORITY, 1, &padded),
        frame(DATA, PADDED, 1, &[3, b'a', b'b', 0, 0, 0]),
        block,
        number(WINDOW_UPDATE, 1, 100),
        frame(PING, 0xfe, 0, &[1, 2, 3, 4, 5, 6, 7, 8]),
        headers(WHOLE, 1, &field("trailer", "t")),
        // Frames that may arrive late.
        number(RST_STREAM, 1, 8),
        number(RST_STREAM, 1, 8),
        number(WINDOW_UPDATE, 1, 100),
        frame(PRIORITY, 0, 1, &[0, 0, 0, 5, 1]),
        frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\x02text"),
    ];
    let seen = server.take(&all.concat()).unwrap();
    let [
        Seen::Settings,
        Seen::Head(one, fields, false),
        Seen::Data(_, data, false),
        Seen::Head(..),
        rest @ ..,
    ] = &seen[..]
    else {
        panic!("{seen:?}")
    };
    assert_eq!((fields.len(), &data[..]), (4, &b"ab"[..]));
    assert_eq!(
        rest,
        [
            Seen::Pinged,
            Seen::Trailers(*one, vec![("trailer".to_owned(), "t".to_owned())]),
            Seen::Reset(*one, 8, true),
            Seen::GoAway(0, 2, b"text".to_vec()),
        ]
    );
}

/// Responses that a client accepts and refuses.
#[test]
fn responses() {
    let response = |status: &str, more: &[(&str, &str)]| {
        let more: Vec<u8> = more.iter().flat_map(|(name, value)| field(name, value)).collect();
        [field(":status", status), more].concat()
    };
    let wrong = [
        headers(WHOLE, 1, GET),
        headers(WHOLE, 1, &response("2000", &[])),
        headers(WHOLE, 1, &response("100", &[])),
        headers(OPEN, 1, &response("101", &[])),
        headers(WHOLE, 1, &response("200", &[("content-length", "1")])),
        frame(DATA, 0, 1, b"early"),
        [headers(OPEN, 1, &response("204", &[])), frame(DATA, 0, 1, b"x")].concat(),
        [headers(OPEN, 1, &response("200", &[("content-length", "1")])), frame(DATA, END_STREAM, 1, b"")]
            .concat(),
    ];
    for frames in wrong {
        let (mut client, _) = pair(&Options::default(), &Options::default());
        let key = client.connection.open(&REQUEST, &[], false).unwrap();
        let seen = client.take(&frames).unwrap();
        assert_eq!(seen.last(), Some(&Seen::Reset(key, Reason::PROTOCOL_ERROR.0, false)), "{frames:?}");
    }
    let (mut client, _) = pair(&Options::default(), &Options::default());
    let key = client.connection.open(&REQUEST, &[], true).unwrap();
    let frames = [
        headers(OPEN, 1, &response("103", &[])),
        headers(OPEN, 1, &response("100", &[])),
        headers(OPEN, 1, &response("200", &[("content-length", "2")])),
        frame(DATA, 0, 1, b"ok"),
        headers(WHOLE, 1, &field("grpc-status", "0")),
    ];
    let seen = client.take(&frames.concat()).unwrap();
    assert_eq!(seen[..2], [Seen::Informational(key, 103), Seen::Informational(key, 100)]);
    assert!(matches!(seen[2..], [Seen::Head(..), Seen::Data(..), Seen::Trailers(..)]), "{seen:?}");
    // Frames that a server must never send.
    for frames in [
        frame(PUSH_PROMISE, OPEN, 1, &[0, 0, 0, 2]),
        setting(2, 1),
        headers(WHOLE, 2, &response("200", &[])),
        headers(WHOLE, 99, &response("200", &[])),
        frame(DATA, 0, 99, b"x"),
    ] {
        let (mut client, mut server) = pair(&Options::default(), &Options::default());
        call(&mut client, &mut server, true);
        assert_eq!(client.take(&frames).unwrap_err().reason, Reason::PROTOCOL_ERROR, "{frames:?}");
    }
}

/// In a response to HEAD, `content-length` announces no body (RFC 9113, section 8.1.1).
#[test]
fn a_response_to_head_has_no_content() {
    let (mut client, _) = pair(&Options::default(), &Options::default());
    let head = http2::Template::new([(":method", "HEAD"), (":scheme", "http"), (":path", "/")]).unwrap();
    for (id, rest) in [(1, vec![]), (3, frame(DATA, END_STREAM, 3, b""))] {
        client.connection.open(&head, &[], true).unwrap();
        let block = [field(":status", "200"), field("content-length", "100")].concat();
        let flags = if rest.is_empty() { WHOLE } else { OPEN };
        let seen = client.take(&[headers(flags, id, &block), rest].concat()).unwrap();
        assert!(matches!(seen[0], Seen::Head(..)));
        assert_eq!(client.connection.open_streams(), 0);
    }
}

#[test]
fn answers_to_calls_that_were_cancelled_are_passed_over() {
    let (mut client, _) = pair(&Options::default(), &Options::default());
    for count in 0..500 {
        let key = client.connection.open(&REQUEST, &[], true).unwrap();
        client.connection.reset(key, Reason::CANCEL);
        assert_eq!(key.id(), 2 * count + 1);
    }
    client.sent();
    for count in 0..500 {
        let id = 2 * count + 1;
        let late = [
            headers(OPEN, id, &field(":status", "200")),
            frame(DATA, 0, id, b"late"),
            headers(WHOLE, id, &field("grpc-status", "0")),
        ];
        assert_eq!(client.take(&late.concat()).unwrap(), []);
    }
}
