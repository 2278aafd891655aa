//! A client that takes no answers: its calls complete and release shared resources, and the memory and time
//! that it costs the server are bounded.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use accounting::Budget;
use api::Code;
use client::Channel;
use mainstay_front::Options;

use testkit::http2::{
    Connection, DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    call_block, frame, message,
};

use crate::echo::{Running, WRITTEN, block_on, id_of, run_with, until};

const MIB: usize = 1 << 20;
const EACH: usize = 100_000;
/// Number of answers of [`EACH`] bytes after which the connection's queued answers are at their limit.
const SENT: u32 = 3;
/// Settings with an initial window of 0: no answer's body can be sent.
const SHUT: [u8; 6] = [0, 4, 0, 0, 0, 0];

fn run(options: Options) -> Running {
    run_with(Options { shards: 1, answer_bytes_max: SENT as usize * EACH, ..options })
}

/// Begins calls that wait at the gate, for answers of `bytes` bytes each.
fn wait_at_gate(running: &Running, raw: &mut Connection, calls: u32, bytes: usize, more: &[(&str, &str)]) {
    for call in 0..calls {
        raw.call(2 * call + 1, "/test.Echo/Gate", more, &message(0, bytes.to_string().as_bytes()));
    }
    block_on(until("all calls wait", || running.seen.alive.load(SeqCst) == calls as usize));
}

fn cancel(raw: &mut Connection, stream: u32) {
    raw.send(&frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
}

/// Returns the streams of the HEADERS received so far, after the server has processed all input.
fn heads(raw: &mut Connection) -> Vec<u32> {
    let mut heads = Vec::new();
    // The first PING may be acknowledged before calls that arrived with it are processed.
    for _ in 0..2 {
        raw.send(&frame(PING, 0, 0, b"12345678"));
        loop {
            let frame = raw.next().expect("the server did not close");
            match frame.kind {
                PING => break,
                HEADERS => heads.push(frame.stream),
                _ => {}
            }
        }
    }
    heads
}

/// Sends PINGs as fast as they are acknowledged, until the server closes.
fn ping_until_closed(raw: &mut Connection) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while raw.next().is_some() {
        assert!(Instant::now() < deadline, "the server lets the connection be");
        raw.send(&frame(PING, 0, 0, b"12345678"));
    }
}

fn unheeded_pings() -> Options {
    Options {
        keepalive_permit_without_stream: true,
        keepalive_min_time: Duration::ZERO,
        ..Options::default()
    }
}

#[test]
fn what_a_call_holds_is_let_go_though_its_client_takes_no_answers() {
    const CALLS: u32 = 40;
    let budget = Budget::new(64 * MIB);
    let running = run(Options { budget: budget.clone(), ..unheeded_pings() });
    let mut raw = Connection::h2(running.address, &SHUT);
    wait_at_gate(&running, &mut raw, CALLS, EACH, &[]);
    running.seen.open_gate();
    block_on(until("their futures are dropped", || running.seen.alive.load(SeqCst) == 0));
    // The waiting answers are charged and count when a new call arrives.
    assert!(budget.held_bytes() > CALLS as usize * EACH, "{budget:?}");
    raw.call(2 * CALLS + 1, "/test.Echo/Unary", &[], &message(0, b"a"));
    assert_eq!(heads(&mut raw), [1, 3, 5]);
    let started = &running.front.counters()[0].methods[id_of("/test.Echo/Unary")].started;
    assert_eq!(started.load(Relaxed), 0);
    // A cancelled call is removed immediately. As queued answers are sent, the other calls are answered in
    // the order in which their answers were made.
    let gate = &running.front.counters()[0].methods[id_of("/test.Echo/Gate")];
    let canceled = || gate.handled[Code::Canceled as usize].load(Relaxed);
    cancel(&mut raw, 9);
    assert_eq!((heads(&mut raw), canceled()), (vec![], 1));
    for (stream, next) in [(1, 7), (3, 11)] {
        cancel(&mut raw, stream);
        assert_eq!(heads(&mut raw), [next]);
    }
    assert_eq!(started.load(Relaxed), 0);
    for call in 6..CALLS {
        cancel(&mut raw, 2 * call + 1);
    }
    assert_eq!((heads(&mut raw), canceled()), (vec![], u64::from(CALLS) - 5));
    cancel(&mut raw, 5);
    assert_eq!(heads(&mut raw), [2 * CALLS + 1]);
    assert_eq!(gate.handled[0].load(Relaxed), 5);
    cancel(&mut raw, 7);
    cancel(&mut raw, 11);
    block_on(until("all is given back", || budget.held_bytes() < MIB));
}

#[test]
fn kept_answers_go_out_when_the_client_takes_them() {
    const CALLS: u32 = 20;
    let running = run(Options::default());
    let mut raw = Connection::h2(running.address, &SHUT);
    wait_at_gate(&running, &mut raw, CALLS, EACH, &[]);
    running.seen.open_gate();
    block_on(until("their futures are dropped", || running.seen.alive.load(SeqCst) == 0));
    // Opens the windows of all streams and of the connection.
    raw.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0x7f, 0xff, 0xff]));
    raw.send(&frame(WINDOW_UPDATE, 0, 0, &[0, 0x7f, 0, 0]));
    let (mut bytes, mut ended) = (0, 0);
    while ended < CALLS {
        let frame = raw.next().expect("the server did not close");
        match frame.kind {
            DATA => bytes += frame.payload.len(),
            HEADERS if frame.flags & END_STREAM != 0 => ended += 1,
            _ => {}
        }
    }
    assert_eq!(bytes, CALLS as usize * (EACH + 5));
}

#[test]
fn an_answer_made_at_once_for_a_call_that_was_gathered_waits_for_room_too() {
    let running = run(unheeded_pings());
    let mut raw = Connection::h2(running.address, &SHUT);
    let late = [(101, "/test.Echo/Big"), (103, "/test.Echo/Pieces")];
    for (stream, path) in late {
        raw.send(&frame(HEADERS, END_HEADERS, stream, &call_block(path, &[])));
    }
    // Stream ids must increase, so the calls whose answers reach the limit follow here.
    for call in 0..SENT {
        raw.call(105 + 2 * call, "/test.Echo/Big", &[], &message(0, EACH.to_string().as_bytes()));
    }
    assert_eq!(heads(&mut raw), [105, 107, 109]);
    for (stream, _) in late {
        raw.send(&frame(DATA, END_STREAM, stream, &message(0, EACH.to_string().as_bytes())));
    }
    assert_eq!(heads(&mut raw), []);
    cancel(&mut raw, 105);
    cancel(&mut raw, 107);
    assert_eq!(heads(&mut raw), [101, 103]);
}

#[test]
fn a_call_whose_answer_waits_for_room_ends_at_its_deadline() {
    let running = run(Options::default());
    let mut raw = Connection::h2(running.address, &SHUT);
    wait_at_gate(&running, &mut raw, 10, EACH, &[("grpc-timeout", "3S")]);
    running.seen.open_gate();
    block_on(until("their futures are dropped", || running.seen.alive.load(SeqCst) == 0));
    for _ in SENT..10 {
        while raw.next_of(HEADERS).flags & END_STREAM == 0 {}
    }
    let gate = &running.front.counters()[0].methods[id_of("/test.Echo/Gate")];
    assert_eq!(gate.handled[Code::DeadlineExceeded as usize].load(Relaxed), u64::from(10 - SENT));
    assert_eq!(gate.handled[0].load(Relaxed), u64::from(SENT));
}

#[test]
fn pings_do_not_keep_a_connection_that_takes_no_answers() {
    // Small answers, and answers large enough to be reset one by one.
    for bytes in [10_000, EACH] {
        let running = run(Options { stall_timeout: Duration::from_millis(200), ..unheeded_pings() });
        let mut raw = Connection::h2(running.address, &SHUT);
        wait_at_gate(&running, &mut raw, 60, bytes, &[]);
        running.seen.open_gate();
        ping_until_closed(&mut raw);
    }
}

/// PING acknowledgements may wait for the answer of a call, but not once the client has stopped reading.
#[test]
fn nor_do_pings_beside_a_call_that_is_never_answered() {
    let running = run(Options { stall_timeout: Duration::from_millis(200), ..unheeded_pings() });
    let mut raw = Connection::h2(running.address, &[]);
    raw.call(1, "/test.Echo/Never", &[], &message(0, b"a"));
    let ping = frame(PING, 0, 0, b"12345678");
    block_on(until("the call is there", || running.seen.alive.load(SeqCst) == 1));
    // Sends until the server stops reading.
    raw.flood(&ping.repeat(1_000_000));
    block_on(until("the connection is over", || running.seen.alive.load(SeqCst) == 0));
}

#[test]
fn pings_keep_a_connection_that_has_nothing_to_take() {
    let timeout = Duration::from_millis(20);
    let running = run(Options { stall_timeout: timeout, ..unheeded_pings() });
    let mut raw = Connection::h2(running.address, &[]);
    let begun = Instant::now();
    while begun.elapsed() < 15 * timeout {
        heads(&mut raw);
    }
}

#[test]
fn beyond_what_its_calls_may_hold_a_client_hears_that_there_was_an_answer() {
    const CALLS: usize = 24;
    let budget = Budget::new(64 * MIB);
    // The limit allows nine answers in addition to all calls. A tenth answer does not fit, even if no other
    // answer waited.
    let request_bytes_max = 10 * EACH + EACH / 8;
    let running = run(Options { request_bytes_max, budget: budget.clone(), ..Options::default() });
    block_on(async {
        // The client does not read, so its windows stay closed.
        let (channel, _driver) = Channel::connect_with(running.address, 1000).await.expect("a connection");
        let mut calls = Vec::new();
        for call in 0..CALLS {
            let path = ["/test.Echo/Gate", "/test.Echo/GateWrite"][call % 2];
            let (mut sender, receiver) = channel.stream(path).await.expect("a call");
            sender.send_last(EACH.to_string().into()).await.expect("a sent message");
            calls.push((sender, receiver));
        }
        until("all calls wait", || running.seen.alive.load(SeqCst) == CALLS).await;
        running.seen.open_gate();
        // Twelve of the first calls are sent or kept, not exactly in order. The last six are refused, and a
        // refusal needs no window.
        let mut refused = calls.split_off(CALLS - 6);
        for pair in refused.chunks_mut(2) {
            assert_eq!(pair[0].1.next().await, Err(api::error::TOO_MANY_REQUESTS));
            assert_eq!(pair[1].1.next().await, Err(WRITTEN));
        }
        assert_eq!(running.seen.alive.load(SeqCst), 0);
        assert!(budget.held_bytes() < 20 * EACH, "{budget:?}");
        // The kept answers arrive complete.
        let calls = calls.into_iter().map(|(sender, mut receiver)| {
            tokio::spawn(async move {
                let _sender = sender;
                receiver.next().await
            })
        });
        let mut whole = 0;
        for call in calls.collect::<Vec<_>>() {
            if let Ok(answer) = call.await.expect("the call's task") {
                assert_eq!(answer.map(|answer| answer.len()), Some(EACH));
                whole += 1;
            }
        }
        assert_eq!(whole, 12);
    });
}

fn started(running: &Running, path: &str) -> u64 {
    running.front.counters()[0].methods[id_of(path)].started.load(Relaxed)
}

/// Fills the connection's queue of answers to its limit, with the calls 1, 3 and 5.
fn fill(raw: &mut Connection) {
    for call in 0..SENT {
        raw.call(2 * call + 1, "/test.Echo/Big", &[], &message(0, EACH.to_string().as_bytes()));
    }
    assert_eq!(heads(raw), [1, 3, 5]);
}

#[test]
fn a_request_that_is_cancelled_while_it_waits_is_not_carried_out() {
    let running = run(unheeded_pings());
    let mut raw = Connection::h2(running.address, &SHUT);
    fill(&mut raw);
    raw.call(7, "/test.Echo/Unary", &[], &message(0, b"a"));
    raw.call(9, "/test.Echo/Fail", &[], &message(0, b"a"));
    assert_eq!(heads(&mut raw), []);
    cancel(&mut raw, 7);
    cancel(&mut raw, 1);
    // The request queued behind the cancelled one runs.
    assert_eq!(heads(&mut raw), [9]);
    assert_eq!((started(&running, "/test.Echo/Unary"), started(&running, "/test.Echo/Fail")), (0, 1));
}

#[test]
fn a_request_that_is_cancelled_with_its_last_bytes_is_not_carried_out() {
    let running = run(unheeded_pings());
    let mut raw = Connection::h2(running.address, &[]);
    raw.send(&frame(HEADERS, END_HEADERS, 1, &call_block("/test.Echo/Unary", &[])));
    assert_eq!(heads(&mut raw), []);
    let mut rest = frame(DATA, END_STREAM, 1, &message(0, b"a"));
    rest.extend(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
    raw.send(&rest);
    assert_eq!((heads(&mut raw), started(&running, "/test.Echo/Unary")), (vec![], 0));
}

#[test]
fn the_time_of_a_request_runs_while_it_waits() {
    let running = run(unheeded_pings());
    let mut raw = Connection::h2(running.address, &SHUT);
    fill(&mut raw);
    raw.call(7, "/test.Echo/Unary", &[("grpc-timeout", "1m")], &message(0, b"a"));
    assert_eq!(heads(&mut raw), []);
    let begun = Instant::now();
    block_on(until("its time is up", || begun.elapsed() > Duration::from_millis(1)));
    cancel(&mut raw, 1);
    assert_eq!((heads(&mut raw), started(&running, "/test.Echo/Unary")), (vec![7], 0));
}

#[test]
fn a_small_answer_is_kept_however_much_other_calls_hold() {
    const SMALL: u32 = 6;
    // The waiting calls reach this limit, and the request of the last call exceeds it.
    let running = run(Options { request_bytes_max: 42_000, ..unheeded_pings() });
    let mut raw = Connection::h2(running.address, &SHUT);
    wait_at_gate(&running, &mut raw, SENT, EACH, &[]);
    let behind = 2 * SENT + 1;
    for call in 0..SMALL {
        raw.call(behind + 2 * call, "/test.Echo/GateWrite", &[], &message(0, b"30"));
    }
    block_on(until("these wait", || running.seen.alive.load(SeqCst) == (SENT + SMALL) as usize));
    raw.call(behind + 2 * SMALL, "/test.Echo/Never", &[], &message(0, &[0; 16_000]));
    block_on(until("all calls wait", || running.seen.alive.load(SeqCst) == (SENT + SMALL + 1) as usize));
    running.seen.open_gate();
    block_on(until("answers are made", || running.seen.alive.load(SeqCst) == 1));
    assert_eq!(heads(&mut raw), [1, 3, 5]);
    let writes = &running.front.counters()[0].methods[id_of("/test.Echo/GateWrite")];
    assert_eq!(writes.handled[WRITTEN.code as usize].load(Relaxed), 0);
    cancel(&mut raw, 1);
    assert_eq!(heads(&mut raw).len(), SMALL as usize);
    assert_eq!(writes.handled[0].load(Relaxed), u64::from(SMALL));
}

#[test]
fn a_call_whose_answer_waits_keeps_nothing_of_the_window_for_requests() {
    const CALLS: u32 = 4;
    let running = run(Options { connection_window_bytes: 65_535, ..unheeded_pings() });
    let mut raw = Connection::h2(running.address, &SHUT);
    for call in 0..CALLS {
        raw.send(&frame(HEADERS, END_HEADERS, 2 * call + 1, &call_block("/test.Echo/Big", &[])));
    }
    // Stream ids must increase, so the calls whose answers reach the limit follow here.
    for call in CALLS..CALLS + SENT {
        raw.call(2 * call + 1, "/test.Echo/Big", &[], &message(0, EACH.to_string().as_bytes()));
    }
    assert_eq!(heads(&mut raw), [9, 11, 13]);
    let text = format!("{EACH:016000}");
    for call in 0..CALLS {
        raw.send(&frame(DATA, END_STREAM, 2 * call + 1, &message(0, text.as_bytes())));
    }
    assert_eq!(raw.next_of(WINDOW_UPDATE).stream, 0);
}

#[test]
fn a_call_that_is_answered_at_once_keeps_nothing_of_the_window_for_requests() {
    const CALLS: u32 = 3;
    // Answers in pieces (here one piece), and complete answers, which are checked for stalls until they are
    // delivered.
    for (path, answer_bytes) in [("/test.Echo/Pieces", 10_000), ("/test.Echo/Big", 17_000)] {
        let running = run(Options { connection_window_bytes: 65_535, ..unheeded_pings() });
        let mut raw = Connection::h2(running.address, &[]);
        let text = format!("{answer_bytes:016000}");
        for call in 0..CALLS {
            raw.call(2 * call + 1, path, &[], &message(0, text.as_bytes()));
        }
        let mut answered = 0;
        let mut given_back = false;
        while answered < CALLS {
            let next = raw.next().expect("the server did not close");
            answered += u32::from(next.kind == HEADERS && next.flags & END_STREAM > 0);
            given_back |= next.kind == WINDOW_UPDATE && next.stream == 0;
        }
        for _ in 0..2 {
            raw.send(&frame(PING, 0, 0, b"12345678"));
            while let next = raw.next().expect("the server did not close")
                && next.kind != PING
            {
                given_back |= next.kind == WINDOW_UPDATE && next.stream == 0;
            }
        }
        assert!(given_back, "{path}: the window of three quarters of what may be sent was not given back");
    }
}
