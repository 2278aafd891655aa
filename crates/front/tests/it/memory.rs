//! The memory held for all clients together is bounded. A client that holds much is closed, and not the
//! clients that hold little.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use accounting::Budget;
use client::Channel;
use mainstay_front::Options;

use testkit::http2::{
    CONTINUATION, Connection, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, WINDOW_UPDATE,
    call_block, frame, message,
};

use crate::echo::{Running, block_on, run_with, until};

const MIB: usize = 1 << 20;
/// Settings with an initial window of 0: no answer's body can be sent.
const SHUT: [u8; 6] = [0, 4, 0, 0, 0, 0];
/// Error code of a connection that is closed for its memory.
const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 11];

fn run(budget: &Budget, options: Options) -> Running {
    run_with(Options { shards: 1, budget: budget.clone(), ..options })
}

/// Checks that another client is served.
fn serves_others(running: &Running) {
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        assert_eq!(channel.unary("/test.Echo/Unary", "a".into()).await, Ok("a".into()));
    });
}

/// Waits for the GOAWAY of a connection that is closed for its memory.
fn sent_off(raw: &mut Connection) {
    let goaway = raw.next_of(GOAWAY);
    assert_eq!(goaway.payload[4..8], ENHANCE_YOUR_CALM);
}

#[test]
fn unfinished_messages_of_all_streams_are_bounded() {
    let budget = Budget::new(16 * MIB);
    let running = run(&budget, Options::default());
    let mut raw = Connection::h2(running.address, &[]);
    // The server enlarges the window of the connection first.
    raw.next_of(WINDOW_UPDATE);
    let begun = &message(0, &vec![0; 1_900_000])[..15_000];
    for stream in 0..20_u32 {
        raw.send(&frame(HEADERS, END_HEADERS, 2 * stream + 1, &call_block("/test.Echo/Bidi", &[])));
        raw.send(&frame(DATA, 0, 2 * stream + 1, begun));
    }
    // Memory is short from the seventh connection on; further messages are refused first.
    let refused = loop {
        let frame = raw.next_of(HEADERS);
        if frame.flags & END_STREAM != 0 {
            break frame;
        }
    };
    assert!(refused.stream > 1);
    assert!(budget.held_bytes() <= budget.bytes_max(), "{budget:?}");
    serves_others(&running);
}

#[test]
fn who_holds_most_of_all_connections_is_closed() {
    const EACH: usize = 700_000;
    let budget = Budget::new(16 * MIB);
    let running = run(&budget, Options::default());
    let begun = &message(0, &[0; EACH])[..15_000];
    // All connections are opened first, because near the limit new connections are refused.
    let mut all: Vec<Connection> = (0..24).map(|_| Connection::h2(running.address, &[])).collect();
    let counters = running.front.counters()[0].clone();
    block_on(until("all are open", || counters.connections.load(Relaxed) == 24));
    for (connection, raw) in all.iter_mut().enumerate() {
        // The fourth connection holds twice as much as the others.
        for stream in 0..if connection == 3 { 2 } else { 1_u32 } {
            raw.send(&frame(HEADERS, END_HEADERS, 2 * stream + 1, &call_block("/test.Echo/Unary", &[])));
            raw.send(&frame(DATA, 0, 2 * stream + 1, begun));
        }
        let least = connection * EACH;
        block_on(until("it is charged", || budget.held_bytes() > least || budget.connections_shed() > 0));
    }
    sent_off(&mut all[3]);
    block_on(until("memory is within its bound", || budget.held_bytes() <= budget.bytes_max()));
    serves_others(&running);
    // A connection that was not closed can finish its calls: the last connection holds less than those that
    // were closed.
    drop(all.drain(..23));
    let last = &mut all[0];
    last.send(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
    last.call(3, "/test.Echo/Unary", &[], &message(0, b"a"));
    drop(all);
    block_on(until("all is given back", || budget.held_bytes() < MIB));
}

#[test]
fn calls_opened_without_end_are_bounded() {
    let budget = Budget::new(16 * MIB);
    let running = run(&budget, Options::default());
    let mut raw = Connection::h2(running.address, &[]);
    let value = "v".repeat(1000);
    let block = call_block("/test.Echo/Unary", &[("x-much", &value)]);
    let mut opened = 0;
    for call in 0..20_000_u32 {
        raw.send(&frame(HEADERS, END_HEADERS, 2 * call + 1, &block));
        opened += 1;
        if opened % 500 == 0 {
            assert!(budget.held_bytes() <= budget.bytes_max() + MIB, "{budget:?}");
        }
    }
    // Each call counts with its header block; beyond three quarters of the budget, calls are refused.
    let refused = raw.next_of(HEADERS);
    assert_eq!(refused.flags & END_STREAM, END_STREAM);
    serves_others(&running);
    drop(raw);
    block_on(until("all is given back", || budget.held_bytes() < MIB));
}

#[test]
fn answers_in_pieces_are_charged_while_they_wait() {
    let budget = Budget::new(16 * MIB);
    let running = run(&budget, Options::default());
    let mut raw = Connection::h2(running.address, &SHUT);
    let call = |stream: u32, text: &str| {
        let mut call = frame(HEADERS, END_HEADERS, stream, &call_block("/test.Echo/Pieces", &[]));
        call.extend(frame(DATA, END_STREAM, stream, &message(0, text.as_bytes())));
        call
    };
    let calls: Vec<u8> = (0..1000).flat_map(|n| call(2 * n + 1, "100000")).collect();
    raw.send(&calls);
    for _ in 0..1000 {
        raw.next_of(HEADERS);
    }
    assert!(budget.held_bytes() > 1000 * 4 * 1024, "{budget:?}");
    raw.send(&call(2001, "100000/5000000"));
    raw.next_of(HEADERS);
    assert!(budget.held_bytes() > 1000 * 4 * 1024 + 5_000_000, "{budget:?}");
    // Further calls are refused.
    let calls: Vec<u8> = (1001..4000).flat_map(|n| call(2 * n + 1, "100000")).collect();
    raw.send(&calls);
    while raw.next_of(HEADERS).flags & END_STREAM == 0 {}
    serves_others(&running);
    drop(raw);
    block_on(until("all is given back", || budget.held_bytes() < MIB));
}

#[test]
fn what_a_service_holds_for_a_call_is_charged_to_its_client() {
    let budget = Budget::new(16 * MIB);
    let running = run(&budget, Options::default());
    let mut raws: Vec<Connection> = (0..2).map(|_| Connection::h2(running.address, &[])).collect();
    let call = |bytes: usize| {
        let mut call = frame(HEADERS, END_HEADERS, 1, &call_block("/test.Echo/Holds", &[]));
        call.extend(frame(DATA, END_STREAM, 1, &message(0, bytes.to_string().as_bytes())));
        call
    };
    raws[0].send(&call(7 * MIB));
    block_on(until("it is charged", || budget.held_bytes() > 7 * MIB));
    raws[1].send(&call(10 * MIB));
    // The connection that holds most is closed.
    sent_off(&mut raws[1]);
    block_on(until("it is given back", || budget.held_bytes() < 8 * MIB));
    assert!(budget.held_bytes() > 7 * MIB && budget.connections_shed() == 1);
    serves_others(&running);
    drop(raws);
    block_on(until("all is given back", || budget.held_bytes() < MIB));
}

#[test]
fn what_calls_leave_behind_is_charged() {
    const CALLS: usize = 2000;
    let budget = Budget::new(64 * MIB);
    let running = run(&budget, Options::default());
    let mut raw = Connection::h2(running.address, &[]);
    let block = call_block("/test.Echo/Bidi", &[]);
    for call in 0..CALLS as u32 {
        raw.send(&frame(HEADERS, END_HEADERS, 2 * call + 1, &block));
    }
    block_on(until("all are open", || running.seen.alive.load(SeqCst) == CALLS));
    for call in 0..CALLS as u32 {
        raw.send(&frame(RST_STREAM, 0, 2 * call + 1, &[0, 0, 0, 8]));
    }
    block_on(until("all are over", || running.seen.alive.load(SeqCst) == 0));
    assert!(budget.held_bytes() > CALLS * 1000, "{budget:?}");
    // The connection goes idle after a while without calls.
    block_on(until("it rests", || budget.held_bytes() < MIB / 4));
    raw.call(2 * CALLS as u32 + 1, "/test.Echo/Unary", &[], &message(0, b"a"));
    assert_eq!(raw.next_of(DATA).payload, message(0, b"a"));
    drop(raw);
    block_on(until("all is given back", || budget.held_bytes() == 0));
}

#[test]
fn a_client_that_reads_nothing_is_not_read_from() {
    let budget = Budget::new(16 * MIB);
    let running = run(&budget, Options::default());
    let mut raw = Connection::h2(running.address, &[]);
    // A refusal has no body, so no window delays it. Each refusal has a different text, so that header
    // compression cannot reuse it.
    let (mut stream, mut taken) = (1, 0);
    while taken < 64 * MIB {
        let mut calls = Vec::new();
        for _ in 0..50 {
            let path = format!("/test.Echo/{stream}{}", "x".repeat(2000));
            calls.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &call_block(&path, &[])));
            stream += 2;
        }
        let n = raw.flood(&calls);
        taken += n;
        if n < calls.len() {
            break;
        }
    }
    assert!(taken < 64 * MIB, "the server never stopped reading");
    assert!(budget.held_bytes() <= 2 * MIB, "{budget:?}");
    serves_others(&running);
}

#[test]
fn requests_that_do_not_go_on_are_given_up() {
    let options = Options { request_timeout: Duration::from_millis(80), ..Options::default() };
    let running = run(&Budget::new(64 * MIB), options);
    // A call without any message bytes, and a call with a partial message.
    let mut raw = Connection::h2(running.address, &[]);
    raw.send(&frame(HEADERS, END_HEADERS, 1, &call_block("/test.Echo/Unary", &[])));
    assert_eq!(raw.next_of(RST_STREAM).stream, 1);
    raw.send(&frame(HEADERS, END_HEADERS, 3, &call_block("/test.Echo/Unary", &[])));
    raw.send(&frame(DATA, 0, 3, &message(0, b"abc")[..6]));
    assert_eq!(raw.next_of(RST_STREAM).stream, 3);
    // The connection stays open.
    raw.call(5, "/test.Echo/Unary", &[], &message(0, b"a"));
    assert_eq!(raw.next_of(DATA).payload, message(0, b"a"));
    // A partial frame, and a header block that is not ended, close the connection.
    raw.send(&frame(DATA, 0, 7, b"abc")[..5]);
    raw.closed();
    for kind in [HEADERS, CONTINUATION] {
        let mut raw = Connection::h2(running.address, &[]);
        let block = call_block("/test.Echo/Unary", &[]);
        raw.send(&frame(HEADERS, 0, 1, &block[..20]));
        if kind == CONTINUATION {
            raw.send(&frame(CONTINUATION, 0, 1, &block[20..40]));
        }
        raw.closed();
    }
}

#[test]
fn an_answer_too_long_fails_its_call_only() {
    let options = Options { answer_message_bytes_max: 1000, ..Options::default() };
    let running = run(&Budget::new(64 * MIB), options);
    let mut raw = Connection::h2(running.address, &[]);
    for (stream, path) in [(1, "/test.Echo/Big"), (3, "/test.Echo/Pieces"), (5, "/test.Echo/LaterBig")] {
        raw.call(stream, path, &[], &message(0, b"1001"));
        let refused = raw.next_of(HEADERS);
        assert_eq!((refused.stream, refused.flags & END_STREAM), (stream, END_STREAM), "{path}");
    }
    // The same limit holds for a stream of answers.
    raw.call(7, "/test.Echo/Flood", &[], &message(0, b""));
    assert_eq!(raw.next_of(HEADERS).flags & END_STREAM, 0, "the head");
    assert_eq!(raw.next_of(HEADERS).flags & END_STREAM, END_STREAM, "the status");
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        let status = channel.unary("/test.Echo/Big", "1001".into()).await.expect_err("it is too long");
        assert_eq!(status.code, api::Code::ResourceExhausted);
        assert_eq!(status.message, "grpc: trying to send message larger than max (1001 vs. 1000)");
        assert_eq!(channel.unary("/test.Echo/Big", "1000".into()).await.map(|answer| answer.len()), Ok(1000));
    });
}

#[test]
fn connections_are_refused_when_the_budget_is_full() {
    let budget = Budget::new(MIB);
    let running = run(&budget, Options::default());
    let mut open = Vec::new();
    // Each connection takes at least the memory of an idle one. Several connections that are accepted before
    // their buffers are charged may exceed the budget together; then some are closed.
    while running.front.connections_refused().load(Relaxed) + budget.connections_shed() == 0 {
        assert!(open.len() < 100, "{budget:?}");
        let mut raw = Connection::silent(running.address);
        raw.send(b"PRI");
        open.push(raw);
        let counters = running.front.counters()[0].clone();
        let refused = running.front.connections_refused();
        let count = open.len();
        block_on(until("it is taken or refused", || {
            let closed = (refused.load(Relaxed) + budget.connections_shed()) as usize;
            counters.connections.load(Relaxed) + closed >= count
                && (budget.held_bytes() >= 64 * 1024 * (count.min(10) - 1) || closed > 0)
        }));
    }
    block_on(until("memory is within its bound", || budget.held_bytes() <= budget.bytes_max() + 128 * 1024));
    drop(open);
    block_on(until("there is room again", || budget.held_bytes() < MIB / 2));
    serves_others(&running);
}

#[test]
fn bodies_of_http_1_are_charged() {
    let budget = Budget::new(8 * MIB);
    let running = run(&budget, Options::default());
    block_on(async {
        // Opened first: later the budget may be nearly full, and connections from the same address are then
        // refused.
        let other = Channel::connect(running.address).await.expect("a connection");
        let mut all = Vec::new();
        for _ in 0..10 {
            let mut raw = Connection::silent(running.address);
            raw.send(b"POST /x HTTP/1.1\r\nHost: test\r\nContent-Length: 4000000\r\n\r\n");
            raw.send(&vec![b'x'; 1_000_000]);
            all.push(raw);
        }
        until("who holds most is closed", || budget.connections_shed() > 0).await;
        until("memory is within its bound", || budget.held_bytes() <= budget.bytes_max()).await;
        assert_eq!(other.unary("/test.Echo/Unary", "a".into()).await, Ok("a".into()));
        drop(all);
        until("all is given back", || budget.held_bytes() < MIB).await;
    });
}

#[test]
fn a_body_of_http_1_that_is_held_stays_charged_beside_its_answer() {
    const HELD: usize = 3_900_000;
    let budget = Budget::new(64 * MIB);
    let running = run(&budget, Options::default());
    let mut raw = Connection::silent(running.address);
    raw.send(format!("POST /holds/{HELD} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n").as_bytes());
    block_on(until("a piece of the answer has gone", || running.seen.pieces.load(SeqCst) > 1));
    let held = budget.held_bytes();
    assert!(held >= HELD, "{held} bytes are charged");
    drop(raw);
    block_on(until("all is given back", || budget.held_bytes() < MIB));
}

#[test]
fn a_bomb_is_unpacked_a_turn_at_a_time() {
    let budget = Budget::new(16 * MIB);
    let running = run(&budget, Options::default());
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut encoder, &vec![0; 2_000_000]).expect("memory takes everything");
    let packed = encoder.finish().expect("memory takes everything");
    let mut raw = Connection::h2(running.address, &SHUT);
    let mut calls = Vec::new();
    for call in 0..30_u32 {
        let block = call_block("/test.Echo/Never", &[("grpc-encoding", "gzip")]);
        calls.extend(frame(HEADERS, END_HEADERS, 2 * call + 1, &block));
        calls.extend(frame(DATA, END_STREAM, 2 * call + 1, &message(1, &packed)));
    }
    raw.send(&calls);
    // 30 calls decompress to 60 MB: the decompressed size is charged, and calls are refused while memory is
    // short.
    assert_eq!(raw.next_of(HEADERS).flags & END_STREAM, END_STREAM);
    assert!(budget.held_bytes() <= budget.bytes_max(), "{budget:?}");
    serves_others(&running);
}
