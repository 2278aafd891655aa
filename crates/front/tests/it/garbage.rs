use client::Channel;
use mainstay_front::Options;

use testkit::Random;
use testkit::http2::{
    CONTINUATION, Connection, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, block, call_block, frame, message,
};

use crate::echo::{Running, block_on, run, run_with};

/// Checks that the front still serves another client.
fn still_serves(running: &Running) {
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        assert_eq!(channel.unary("/test.Echo/Unary", "alive".into()).await, Ok("alive".into()));
    });
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    Random::new(seed).bytes(len)
}

#[test]
fn random_bytes_close_only_their_connection() {
    let running = run();
    for seed in 0..64 {
        let mut raw = Connection::silent(running.address);
        raw.send(&noise(seed, 1 + 37 * seed as usize));
        raw.finish();
        raw.read_to_close();
        let mut raw = Connection::h2(running.address, &[]);
        raw.send(&noise(seed, 1 + 37 * seed as usize));
        raw.finish();
        raw.read_to_close();
    }
    still_serves(&running);
}

#[test]
fn a_call_cut_or_flipped_anywhere_closes_only_its_connection() {
    let running = run();
    let mut whole = PREFACE.to_vec();
    whole.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]));
    whole.extend(frame(HEADERS, END_HEADERS, 1, &call_block("/test.Echo/Unary", &[("grpc-timeout", "5S")])));
    whole.extend(frame(DATA, END_STREAM, 1, &message(0, b"abc")));
    for at in 0..whole.len() {
        let mut cut = Connection::silent(running.address);
        cut.send(&whole[..at]);
        cut.finish();
        cut.read_to_close();
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        let mut raw = Connection::silent(running.address);
        raw.send(&flipped);
        raw.finish();
        raw.read_to_close();
    }
    still_serves(&running);
}

#[test]
fn a_wrong_preface_is_an_http1_error() {
    let running = run();
    let mut raw = Connection::silent(running.address);
    raw.send(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n");
    raw.finish();
    let answer = raw.read_to_close();
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
    still_serves(&running);
}

#[test]
fn silence_and_a_lone_half_preface_are_closed_in_time() {
    let running = run_with(Options {
        shards: 1,
        first_bytes_timeout: std::time::Duration::from_secs(1),
        ..Options::default()
    });
    let silent: Vec<Connection> = (0..50).map(|_| Connection::silent(running.address)).collect();
    let mut half = Connection::silent(running.address);
    half.send(&PREFACE[..7]);
    let mut slow_http = Connection::silent(running.address);
    slow_http.send(b"GET / HTTP/1.1\r\nhost: a\r\n");
    // A connection that has sent its preface may stay open.
    let mut idle = Connection::h2(running.address, &[]);
    for raw in silent {
        raw.closed();
    }
    half.closed();
    slow_http.read_to_close();
    idle.call(1, "/test.Echo/Unary", &[], &message(0, b"still here"));
    assert_eq!(idle.next_of(DATA).payload, message(0, b"still here"));
    still_serves(&running);
}

#[test]
fn headers_over_the_limit_are_refused() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[]);
    let huge = "a".repeat(100_000);
    let block = call_block("/test.Echo/Unary", &[("x-huge", &huge)]);
    let mut parts = block.chunks(16_384).peekable();
    let first = parts.next().expect("a first part");
    raw.send(&frame(HEADERS, END_STREAM, 1, first));
    while let Some(part) = parts.next() {
        let flags = if parts.peek().is_none() { END_HEADERS } else { 0 };
        raw.send(&frame(CONTINUATION, flags, 1, part));
    }
    raw.finish();
    let answer = raw.read_to_close();
    // The status 431 may be encoded as plain or Huffman-coded digits; a reset or GOAWAY is accepted too. Only
    // an echo is a failure.
    assert!(!answer.is_empty());
    still_serves(&running);
}

#[test]
fn a_flood_of_continuations_ends_the_connection() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[]);
    raw.send(&frame(HEADERS, 0, 1, &call_block("/test.Echo/Unary", &[])));
    let part = frame(CONTINUATION, 0, 1, &[]);
    for _ in 0..20_000 {
        raw.send(&part);
    }
    raw.closed();
    still_serves(&running);
}

#[test]
fn a_rapid_reset_ends_the_connection_or_costs_nothing() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[]);
    let block = call_block("/test.Echo/Never", &[]);
    for call in 0..5_000_u32 {
        let stream = 2 * call + 1;
        let mut bytes = frame(HEADERS, END_HEADERS, stream, &block);
        bytes.extend(frame(DATA, END_STREAM, stream, &message(0, b"a")));
        bytes.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
        raw.send(&bytes);
    }
    raw.finish();
    raw.read_to_close();
    still_serves(&running);
    block_on(crate::echo::until("no call is left", || {
        running.seen.alive.load(std::sync::atomic::Ordering::SeqCst) == 0
    }));
}

#[test]
fn broken_rules_end_the_connection_with_goaway() {
    let running = run();
    for broken in [
        frame(DATA, 0, 1, b"data on an idle stream"),
        frame(DATA, 0, 0, b"data on no stream"),
        frame(HEADERS, END_HEADERS, 2, &call_block("/test.Echo/Unary", &[])),
        frame(HEADERS, END_HEADERS, 1, &[0xff; 20]),
        frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 0]),
        frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
        frame(PING, 0, 0, b"short"),
        frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]),
        vec![0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1],
    ] {
        let mut raw = Connection::h2(running.address, &[]);
        raw.send(&broken);
        let mut goaway = false;
        while let Some(frame) = raw.next() {
            goaway |= frame.kind == GOAWAY;
        }
        assert!(goaway, "{broken:?}");
    }
    still_serves(&running);
}

#[test]
fn bodies_that_break_grpcs_rules_get_a_status() {
    let running = run();
    // In the header block a status code follows its length, as plain digits or Huffman coded.
    let (unknown, internal) = ([&b"\x012"[..], b"\x81\x17"], [&b"\x0213"[..], b"\x82\x0b\x3f"]);
    let cut = &message(0, b"message")[..8];
    for (body, code) in
        [(cut, unknown), (b"", unknown), (b"\x01\0\0\0\x01a", internal), (b"\x09\0\0\0\0", internal)]
    {
        let mut raw = Connection::h2(running.address, &[]);
        raw.call(1, "/test.Echo/Unary", &[], body);
        let head = raw.next_of(HEADERS);
        assert_eq!(head.flags & END_STREAM, END_STREAM, "trailers only");
        assert!(code.iter().any(|code| contains(&head.payload, code)), "{head:?}");
        raw.call(3, "/test.Echo/Unary", &[], &message(0, b"fine"));
        assert_eq!(raw.next_of(DATA).payload, message(0, b"fine"));
    }
}

#[test]
fn the_first_message_of_a_unary_call_counts() {
    let running = run();
    let two = [message(0, b"one"), message(0, b"two")].concat();
    let mut raw = Connection::h2(running.address, &[]);
    raw.call(1, "/test.Echo/Unary", &[], &two);
    assert_eq!(raw.next_of(DATA).payload, message(0, b"one"));
    raw.call(3, "/test.Echo/Unary", &[("grpc-timeout", "0n")], &message(0, b"late"));
    let head = raw.next_of(HEADERS);
    let head = if head.flags & END_STREAM == 0 || head.stream != 3 { raw.next_of(HEADERS) } else { head };
    // Status code 4 is DeadlineExceeded.
    assert!([&b"\x014"[..], b"\x81\x6b"].iter().any(|code| contains(&head.payload, code)), "{head:?}");
}

fn contains(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

#[test]
fn heads_that_break_grpcs_rules_get_an_http_status() {
    let running = run();
    let with = |method: &str, content_type: &str, timeout: &str| {
        block(&[
            (":method", method),
            (":scheme", "http"),
            (":path", "/test.Echo/Unary"),
            (":authority", "test"),
            ("content-type", content_type),
            ("grpc-timeout", timeout),
        ])
    };
    // The `:status` value is an index into the static table, plain digits, or Huffman coded.
    let (unsupported, not_allowed) = ([&b"415"[..], &[0x68, 0x2d, 0xff]], [&b"405"[..], &[0x68, 0x0d, 0xff]]);
    let (bad, fine) = ([&[0x8c][..]; 2], [&[0x88][..]; 2]);
    for (head, status) in [
        (with("POST", "application/json", "1S"), unsupported),
        (with("POST", "application/grpcx", "1S"), unsupported),
        (with("GET", "application/grpc", "1S"), not_allowed),
        (with("POST", "application/grpc", "soon"), bad),
        (with("POST", "application/grpc+proto", "1S"), fine),
    ] {
        let mut raw = Connection::h2(running.address, &[]);
        raw.send(&frame(HEADERS, END_HEADERS, 1, &head));
        raw.send(&frame(DATA, END_STREAM, 1, &message(0, b"a")));
        let answer = raw.next_of(HEADERS);
        let is_told = status.iter().any(|status| contains(&answer.payload, status));
        assert!(is_told, "{status:?} {answer:?}");
        assert_eq!(answer.flags & END_STREAM == 0, status == fine);
    }
}
