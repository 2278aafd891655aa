use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use client::Channel;
use mainstay_front::Options;

use testkit::http2::{
    Connection, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, SETTINGS, call_block, frame, message,
};

use crate::echo::{block_on, run_with, until};

/// Settings with an initial window of 0: no answer's body can be sent.
const SHUT: [u8; 6] = [0, 4, 0, 0, 0, 0];

#[test]
fn unread_answers_stop_the_connection_from_asking_for_more() {
    let running = run_with(Options { shards: 1, answer_bytes_max: 100_000, ..Options::default() });
    let mut raw = Connection::h2(running.address, &SHUT);
    let mut calls = Vec::new();
    for call in 0..200_u32 {
        calls.extend(frame(HEADERS, END_HEADERS, 2 * call + 1, &call_block("/test.Echo/Big", &[])));
        calls.extend(frame(DATA, END_STREAM, 2 * call + 1, &message(0, b"30000")));
    }
    raw.send(&calls);
    for _ in 0..4 {
        raw.next_of(HEADERS);
    }
    let counters = running.front.counters()[0].clone();
    let started = || counters.methods[crate::echo::id_of("/test.Echo/Big")].started.load(Relaxed);
    assert_eq!(started(), 4, "4 answers of 30,000 bytes reach a limit of 100,000");
    // Cancelled calls release their memory, so the next calls are accepted.
    for call in 0..4_u32 {
        raw.send(&frame(RST_STREAM, 0, 2 * call + 1, &[0, 0, 0, 8]));
    }
    for _ in 0..4 {
        raw.next_of(HEADERS);
    }
    assert_eq!(started(), 8);
}

#[test]
fn pieces_are_made_only_as_the_window_opens() {
    let running = run_with(Options { shards: 1, ..Options::default() });
    let mut raw = Connection::h2(running.address, &[0, 4, 0, 0, 0x40, 0]);
    raw.call(1, "/test.Echo/Pieces", &[], &message(0, b"10000000"));
    let mut received = 0;
    while received < 0x4000 {
        received += raw.next_of(DATA).payload.len();
    }
    // Another call runs while this one waits for its client.
    raw.call(3, "/test.Echo/Unary", &[], &message(0, b"a"));
    assert_eq!(raw.next_of(DATA).payload, message(0, b"a"));
    assert_eq!(received, 0x4000);
    assert!(running.seen.pieces.load(SeqCst) <= 3, "{} pieces", running.seen.pieces.load(SeqCst));
}

#[test]
fn what_a_source_waited_for_is_taken_though_the_window_was_shut_meanwhile() {
    let options = Options { shards: 1, stall_timeout: Duration::from_millis(300), ..Options::default() };
    let running = run_with(options);
    let mut raw = Connection::h2(running.address, &[0, 4, 0, 0, 0x40, 0]);
    raw.call(1, "/test.Echo/Pieces", &[], &message(0, b"1000000/0/1"));
    block_on(until("the second piece is waited for", || running.seen.waits_at_gate()));
    // The first DATA frame proves that the first settings were applied.
    raw.next_of(DATA);
    raw.send(&frame(SETTINGS, 0, 0, &SHUT));
    while raw.next_of(SETTINGS).flags & 1 == 0 {}
    let pieces = running.seen.pieces.load(SeqCst);
    running.seen.open_gate();
    block_on(until("the source gives what it has", || running.seen.pieces.load(SeqCst) == pieces + 1));
    // From here on the answer waits for the client.
    assert_eq!(raw.next_of(RST_STREAM).stream, 1);
    assert_eq!(running.seen.pieces.load(SeqCst), pieces + 1);
}

#[test]
fn a_stream_that_stands_still_is_reset() {
    let running =
        run_with(Options { shards: 1, stall_timeout: Duration::from_millis(80), ..Options::default() });
    for path in ["/test.Echo/Big", "/test.Echo/Pieces", "/test.Echo/Flood"] {
        let mut raw = Connection::h2(running.address, &SHUT);
        raw.call(1, path, &[], &message(0, b"50000"));
        let reset = raw.next_of(RST_STREAM);
        assert_eq!(reset.stream, 1, "{path}");
    }
    assert_eq!(running.front.counters()[0].stalled_streams.load(Relaxed), 3);
}

#[test]
fn requests_over_their_bytes_are_refused() {
    let running = run_with(Options { shards: 1, request_bytes_max: 1_000_000, ..Options::default() });
    let mut raw = Connection::h2(running.address, &[]);
    // Each call announces 600,000 bytes and sends a few; the call that is checked second exceeds the limit.
    let begun = &message(0, &vec![0; 600_000])[..1000];
    for stream in [1, 3] {
        raw.send(&frame(HEADERS, END_HEADERS, stream, &call_block("/test.Echo/Unary", &[])));
        raw.send(&frame(DATA, 0, stream, begun));
    }
    let refused = raw.next_of(HEADERS);
    assert_eq!(refused.flags & END_STREAM, END_STREAM);
    let other = 4 - refused.stream;
    raw.send(&frame(DATA, END_STREAM, other, &[0; 15_000]));
    // The refused call releases its bytes, so the next call is accepted. The message of the refused call was
    // incomplete, and the call still ends with a status.
    assert_eq!(raw.next_of(HEADERS).stream, other);
    raw.send(&frame(HEADERS, END_HEADERS, 5, &call_block("/test.Echo/Unary", &[])));
    raw.send(&frame(DATA, 0, 5, begun));
    raw.call(7, "/test.Echo/Unary", &[], &message(0, b"a"));
    assert_eq!(raw.next_of(DATA).payload, message(0, b"a"));
}

#[test]
fn connections_over_their_number_are_closed_at_once() {
    let running = run_with(Options { shards: 2, connections_max: 3, ..Options::default() });
    block_on(async {
        let mut open = Vec::new();
        for _ in 0..3 {
            let channel = Channel::connect(running.address).await.expect("a connection");
            assert_eq!(channel.unary("/test.Echo/Unary", "a".into()).await, Ok("a".into()));
            open.push(channel);
        }
        Connection::silent(running.address).closed();
        assert_eq!(running.front.connections_refused().load(Relaxed), 1);
        open.pop();
        let counters = running.front.counters();
        until("one has gone", || {
            counters.iter().map(|shard| shard.connections.load(Relaxed)).sum::<usize>() == 2
        })
        .await;
        let channel = Channel::connect(running.address).await.expect("a connection");
        assert_eq!(channel.unary("/test.Echo/Unary", "a".into()).await, Ok("a".into()));
    });
}

#[test]
fn streams_over_their_number_are_refused() {
    let running = run_with(Options { shards: 1, max_concurrent_streams: 2, ..Options::default() });
    let mut raw = Connection::h2(running.address, &[]);
    for stream in [1, 3, 5] {
        raw.call(stream, "/test.Echo/Never", &[], &message(0, b"a"));
    }
    let reset = raw.next_of(RST_STREAM);
    assert_eq!((reset.stream, &reset.payload[..]), (5, &[0, 0, 0, 7][..]));
}

#[test]
fn calls_in_flight_are_bounded_even_without_bytes() {
    let running = run_with(Options { shards: 1, request_bytes_max: 100_000, ..Options::default() });
    let mut raw = Connection::h2(running.address, &[]);
    for call in 0..60_u32 {
        let path = if call % 2 == 0 { "/test.Echo/Never" } else { "/test.Echo/UntilClosing" };
        raw.call(2 * call + 1, path, &[], &message(0, b""));
    }
    let mut refused = 0;
    while refused < 35 {
        refused += usize::from(raw.next_of(HEADERS).flags & END_STREAM != 0);
    }
    // 25 calls of 4 KiB exceed the limit; which of the calls are refused depends on the arrival of the bytes.
    assert_eq!(running.seen.alive.load(SeqCst), 25);
}
