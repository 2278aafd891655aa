use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mainstay_front::Options;

use testkit::http2::{Connection, DATA, GOAWAY, PING, frame, message};

use crate::echo::{run, run_with};

const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 11];

#[test]
fn too_many_pings_are_answered_with_goaway_as_grpc_go_does() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[]);
    raw.call(1, "/test.Echo/Never", &[], &message(0, b"a"));
    for _ in 0..4 {
        raw.send(&frame(PING, 0, 0, b"12345678"));
    }
    let goaway = raw.next_of(GOAWAY);
    assert_eq!(goaway.payload[..4], [0, 0, 0, 1], "the last stream taken");
    assert_eq!(goaway.payload[4..8], ENHANCE_YOUR_CALM);
    assert_eq!(&goaway.payload[8..], b"too_many_pings");
    raw.closed();
    assert_eq!(running.front.counters()[0].too_many_pings.load(Relaxed), 1);
}

#[test]
fn answers_between_pings_clear_the_strikes() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[]);
    for call in 0..10_u32 {
        raw.send(&frame(PING, 0, 0, b"12345678"));
        raw.next_of(PING);
        raw.call(2 * call + 1, "/test.Echo/Unary", &[], &message(0, b"a"));
        assert_eq!(raw.next_of(DATA).payload, message(0, b"a"));
    }
}

#[test]
fn a_ping_beside_a_call_that_is_never_answered_is_answered() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[]);
    raw.call(1, "/test.Echo/Never", &[], &message(0, b"a"));
    for payload in [b"12345678", b"87654321"] {
        raw.send(&frame(PING, 0, 0, payload));
        assert_eq!(raw.next_of(PING).payload, payload);
    }
}

#[test]
fn permitted_pings_without_calls_are_fine() {
    let running = run_with(Options {
        shards: 1,
        keepalive_permit_without_stream: true,
        keepalive_min_time: Duration::ZERO,
        ..Options::default()
    });
    let mut raw = Connection::h2(running.address, &[]);
    for _ in 0..10 {
        raw.send(&frame(PING, 0, 0, b"12345678"));
        assert_eq!(raw.next_of(PING).payload, b"12345678");
    }
}

#[test]
fn a_dead_client_is_pinged_and_closed_and_a_live_one_stays() {
    let running = run_with(Options {
        shards: 1,
        keepalive_interval: Duration::from_millis(40),
        keepalive_timeout: Duration::from_secs(1),
        ..Options::default()
    });
    let mut dead = Connection::h2(running.address, &[]);
    let mut live = Connection::h2(running.address, &[]);
    let closing = std::thread::spawn(move || {
        assert_eq!(dead.next_of(PING).flags, 0);
        dead.closed();
    });
    while !closing.is_finished() {
        let ping = live.next_of(PING);
        assert_eq!(ping.flags, 0);
        live.send(&frame(PING, 1, 0, &ping.payload));
    }
    closing.join().expect("it was pinged, and closed");
}
