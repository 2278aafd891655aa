//! Requests that are not gRPC calls, over HTTP/2 with TLS: their memory is charged, and answers are produced
//! only as fast as the client takes them.

use std::sync::atomic::Ordering::SeqCst;

use accounting::Budget;
use mainstay_front::{Listener, ListenerSocket, Options, Protocols};
use testkit::http2::{
    Connection, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, RST_STREAM, WINDOW_UPDATE, block, frame,
    message,
};

use crate::echo::{Running, block_on, run_on, until};
use crate::pki::Pki;
use crate::tunnel::{Tunnel, WHOLE};

const MIB: usize = 1 << 20;
/// Settings with an initial window of 0: no answer's body can be sent.
const SHUT: [u8; 6] = [0, 4, 0, 0, 0, 0];

/// Front with TLS, and a tunnel through which tests speak plain HTTP/2 to it.
struct Secured {
    running: Running,
    tunnel: Tunnel,
    _pki: Pki,
}

fn secured(options: Options, serves: Protocols) -> Secured {
    let pki = Pki::new();
    let (tls, _) = pki.load(pki.settings());
    let (listener, address) = testkit::ports::listen();
    let socket = ListenerSocket::Tcp(listener);
    let listener = Listener { socket, tls: Some(tls), also_plain: false, checks_address: false, serves };
    let running = run_on(Options { shards: 1, ..options }, address, vec![listener]);
    let tunnel = Tunnel::to(address, pki.client(None), WHOLE);
    Secured { running, tunnel, _pki: pki }
}

fn get(path: &str, stream: u32) -> Vec<u8> {
    let headers = [(":method", "GET"), (":scheme", "https"), (":path", path), (":authority", "test")];
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&headers))
}

fn ask(raw: &mut Connection, path: &str, stream: u32) {
    raw.send(&get(path, stream));
}

fn pages(running: &Running) -> usize {
    running.seen.told.lock().unwrap().iter().filter(|told| **told == "page").count()
}

/// Returns the body of an answer, read to its end.
fn body(raw: &mut Connection, stream: u32) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let Frame { payload, flags, stream: of, .. } = raw.next_of(DATA);
        assert_eq!(of, stream);
        if flags & END_STREAM == 0 && !payload.is_empty() {
            let more = u32::try_from(payload.len()).unwrap().to_be_bytes();
            raw.send(&[frame(WINDOW_UPDATE, 0, 0, &more), frame(WINDOW_UPDATE, 0, stream, &more)].concat());
        }
        body.extend(payload);
        if flags & END_STREAM != 0 {
            return body;
        }
    }
}

#[test]
fn answers_that_wait_for_a_window_are_charged() {
    const EACH: usize = 100_000;
    let budget = Budget::new(16 * MIB);
    let secured = secured(Options { budget: budget.clone(), ..Options::default() }, Protocols::All);
    let mut raw = Connection::h2(secured.tunnel.address, &SHUT);
    for call in 0..50 {
        ask(&mut raw, "/whole/100000", 2 * call + 1);
    }
    block_on(until("all are answered", || pages(&secured.running) == 50));
    let held = budget.held_bytes();
    assert!(held >= 50 * EACH, "{held} bytes are charged");
    // Further requests are refused before the budget is full.
    for call in 50..1000 {
        ask(&mut raw, "/whole/100000", 2 * call + 1);
    }
    block_on(until("some are refused", || {
        let held = budget.held_bytes();
        assert!(held <= budget.bytes_max(), "{budget:?}");
        budget.connections_shed() > 0 || held > budget.bytes_max() / 2
    }));
    drop(raw);
    block_on(until("all is given back", || budget.held_bytes() < MIB));
}

#[test]
fn bodies_count_against_what_the_calls_of_a_connection_may_hold() {
    const PART: usize = 50_000;
    let budget = Budget::new(64 * MIB);
    let options = Options { budget: budget.clone(), request_bytes_max: 2 * PART - 1, ..Options::default() };
    let secured = secured(options, Protocols::All);
    let mut raw = Connection::h2(secured.tunnel.address, &SHUT);
    let post = [(":method", "POST"), (":scheme", "https"), (":path", "/whole/1"), (":authority", "test")];
    raw.send(&frame(HEADERS, END_HEADERS, 1, &block(&post)));
    let is_refused = |raw: &mut Connection, stream| {
        ask(raw, "/whole/1", stream);
        let answer = raw.next_of(HEADERS);
        assert_eq!(answer.stream, stream);
        // An answer that is not a refusal has a body.
        answer.flags & END_STREAM != 0
    };
    for (parts, stream) in [(1, 3), (2, 5)] {
        for piece in [0; PART].chunks(10_000) {
            raw.send(&frame(DATA, 0, 1, piece));
        }
        block_on(until("the body is charged", || budget.held_bytes() >= parts * PART));
        assert_eq!(is_refused(&mut raw, stream), parts == 2, "{parts} parts are held");
    }
    raw.send(&frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()));
    block_on(until("the body is given up", || budget.held_bytes() < PART));
    assert!(!is_refused(&mut raw, 7));
}

#[test]
fn pieces_are_made_only_for_an_open_window() {
    const CALLS: u32 = 20;
    let budget = Budget::new(64 * MIB);
    let secured = secured(Options { budget: budget.clone(), ..Options::default() }, Protocols::All);
    let made = || secured.running.seen.pieces.load(SeqCst);
    let mut raw = Connection::h2(secured.tunnel.address, &SHUT);
    for call in 0..CALLS {
        ask(&mut raw, "/chunks/100000", 2 * call + 1);
        assert_ne!(raw.next_of(HEADERS).flags & END_HEADERS, 0);
    }
    // This request is refused for its headers. Its answer shows that all earlier requests were stepped.
    ask(&mut raw, "/whole/0", 2 * CALLS + 1);
    assert_eq!(raw.next_of(HEADERS).flags & END_STREAM, END_STREAM);
    assert_eq!(made(), 0);
    let before = budget.held_bytes();
    let byte = 1_u32.to_be_bytes();
    for call in 0..CALLS {
        raw.send(&frame(WINDOW_UPDATE, 0, 2 * call + 1, &byte));
        assert_eq!(raw.next_of(DATA).payload.len(), 1);
    }
    ask(&mut raw, "/whole/0", 2 * CALLS + 3);
    assert_eq!(raw.next_of(HEADERS).flags & END_STREAM, END_STREAM);
    assert_eq!(made(), CALLS as usize);
    let held = budget.held_bytes() - before;
    assert!(held >= CALLS as usize * 99_000, "{held} bytes are charged for them");
    for call in 0..CALLS {
        raw.send(&frame(RST_STREAM, 0, 2 * call + 1, &[0, 0, 0, 8]));
    }
    block_on(until("it is given back", || budget.held_bytes() < before + MIB));
}

#[test]
fn an_answer_arrives_whole() {
    let secured = secured(Options::default(), Protocols::All);
    let mut raw = Connection::h2(secured.tunnel.address, &[]);
    for (call, path) in ["/whole/300000", "/chunks/100000", "/whole/1"].into_iter().enumerate() {
        let stream = 2 * u32::try_from(call).unwrap() + 1;
        ask(&mut raw, path, stream);
        let len = [300_000, 300_000, 1][call];
        assert_eq!(body(&mut raw, stream).len(), len, "{path}");
    }
}

#[test]
fn a_listener_for_one_of_both_serves_no_other() {
    let apart = secured(Options::default(), Protocols::Pages);
    let mut raw = Connection::h2(apart.tunnel.address, &[]);
    ask(&mut raw, "/whole/5", 1);
    assert_eq!(body(&mut raw, 1).len(), 5);
    // On a listener for pages, a request with a gRPC content type is a page too.
    raw.call(3, "/test.Echo/Unary", &[], &message(0, b"a"));
    assert!(body(&mut raw, 3).starts_with(b"POST"));

    let apart = secured(Options::default(), Protocols::Grpc);
    let mut raw = Connection::h2(apart.tunnel.address, &[]);
    ask(&mut raw, "/whole/5", 1);
    assert_eq!(raw.next_of(HEADERS).flags & END_STREAM, END_STREAM, "it is refused as a call");
    raw.call(3, "/test.Echo/Unary", &[], &message(0, b"a"));
    assert_eq!(raw.next_of(DATA).payload, message(0, b"a"));
}
