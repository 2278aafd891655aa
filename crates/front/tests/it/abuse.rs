//! HTTP/2 input whose single frames are valid and that is meant to be expensive: the work and memory it
//! causes are bounded, and other connections are served. `docs/attacks.md` lists all such attacks, including
//! those tested in other files.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use accounting::Budget;
use client::Channel;
use mainstay_front::Options;
use testkit::http2::{
    CONTINUATION, Connection, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, block, call_block, frame, message,
};

use crate::echo::{Running, block_on, run, run_with, until};
use crate::turns::{Client, calls, run as in_turns, turn};

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;
/// PRIORITY frame type, which is deprecated and ignored (RFC 9113, section 5.3).
const PRIORITY: u8 = 2;
const PROTOCOL_ERROR: u8 = 1;
const ENHANCE_YOUR_CALM: u8 = 11;

/// Checks that another connection is served.
fn serves_others(running: &Running) {
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        assert_eq!(channel.unary("/test.Echo/Unary", "alive".into()).await, Ok("alive".into()));
    });
}

/// Reads until the server closes; returns all frames.
fn frames_to_close(raw: &mut Connection) -> Vec<Frame> {
    std::iter::from_fn(|| raw.next()).collect()
}

fn reason_of_goaway(frames: &[Frame]) -> Option<u8> {
    frames.iter().rfind(|frame| frame.kind == GOAWAY).map(|frame| frame.payload[7])
}

fn settings(id: u8, value: u32) -> Vec<u8> {
    let [a, b, c, d] = value.to_be_bytes();
    frame(SETTINGS, 0, 0, &[0, id, a, b, c, d])
}

/// Each change of the initial window costs a visit to every stream.
#[test]
fn settings_are_taken_one_a_round_and_a_hundred_in_all() {
    in_turns(async {
        let mut client = Client::new(Options::default(), MIB, &[]).await;
        client.send(&calls("/test.Echo/Never", 0, 500, &[], "a")).await;
        let mut flood = Vec::new();
        for number in 0..4_000_u32 {
            flood.extend(settings(4, 65_535 + number % 2));
        }
        let before =
            client.frames().iter().filter(|frame| frame.kind == SETTINGS && frame.flags == 1).count();
        client.send(&flood).await;
        let mut answers = Vec::new();
        while !client.served.is_finished() {
            answers.extend(client.frames());
            turn().await;
        }
        answers.extend(client.frames());
        let taken = answers.iter().filter(|frame| frame.kind == SETTINGS && frame.flags == 1).count();
        assert!(before + taken <= 110, "{taken} changes of settings were carried out");
        let goaway = answers.iter().rfind(|frame| frame.kind == GOAWAY).expect("a GOAWAY");
        assert_eq!(&goaway.payload[8..], b"too_many_settings");
        assert_eq!(client.seen.alive.load(SeqCst), 0);
    });
}

/// Some clients measure the network and enlarge their window in several steps.
#[test]
fn settings_that_follow_what_a_client_measures_are_taken() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[]);
    for change in 0..20_u32 {
        raw.send(&settings(4, 65_536 << (change % 8)));
        raw.call(2 * change + 1, "/test.Echo/Unary", &[], &message(0, b"a"));
        assert_eq!(raw.next_of(DATA).payload, message(0, b"a"));
    }
}

/// A PING needs an acknowledgement, so a client that does not read is no longer read from. Frames without a
/// response are discarded.
#[test]
fn floods_of_frames_that_are_answered_or_ignored_hold_nothing() {
    let floods: [(&str, Vec<u8>, bool); 3] = [
        ("PING", frame(PING, 0, 0, b"12345678"), true),
        ("DATA on a closed stream", frame(DATA, 0, 1, b"a"), false),
        ("WINDOW_UPDATE on a closed stream", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), false),
    ];
    for (name, each, is_answered) in floods {
        in_turns(async move {
            let options = Options {
                keepalive_min_time: std::time::Duration::ZERO,
                keepalive_permit_without_stream: true,
                ..Options::default()
            };
            let budget = options.budget.clone();
            let mut client = Client::new(options, 4 * KIB, &[]).await;
            client.send(&calls("/test.Echo/Unary", 0, 1, &[], "a")).await;
            let taken = client.send(&each.repeat(200_000)).await;
            assert!(taken < MIB || !is_answered, "{taken} bytes of {name} were taken");
            assert!(budget.held_bytes() < MIB, "{name}: {budget:?}");
        });
    }
}

/// CVE-2025-8671, "MadeYouReset": the client provokes resets by the server, so that streams do not count as
/// open while their calls continue.
#[test]
fn resets_that_a_client_provokes_are_counted() {
    let running = run();
    let block = call_block("/test.Echo/Never", &[]);
    let provoke: [fn(u32) -> Vec<u8>; 3] = [
        |stream| frame(WINDOW_UPDATE, 0, stream, &[0, 0, 0, 0]),
        |stream| frame(WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff]),
        |stream| frame(DATA, END_STREAM, stream, b"behind the end"),
    ];
    for provoke in provoke {
        let mut raw = Connection::h2(running.address, &[]);
        for call in 0..20_000_u32 {
            let stream = 2 * call + 1;
            let mut bytes = frame(HEADERS, END_HEADERS, stream, &block);
            bytes.extend(frame(DATA, END_STREAM, stream, &message(0, b"a")));
            bytes.extend(provoke(stream));
            if !raw.send(&bytes) {
                break;
            }
        }
        raw.finish();
        let answers = frames_to_close(&mut raw);
        let resets = answers.iter().filter(|frame| frame.kind == RST_STREAM).count();
        assert!(resets <= 1_100, "{resets} streams were reset");
        block_on(until("no call is left", || running.seen.alive.load(SeqCst) == 0));
    }
    serves_others(&running);
}

/// A client resets its own calls right after they have begun: the calls end and leave no memory behind.
#[test]
fn calls_that_are_reset_as_soon_as_they_run_leave_nothing_behind() {
    in_turns(async {
        let budget = Budget::new(64 * MIB);
        let options = Options { budget: budget.clone(), ..Options::default() };
        let mut client = Client::new(options, MIB, &[]).await;
        let mut alive_max = 0;
        for round in 0..200_u32 {
            client.send(&calls("/test.Echo/Never", 50 * round, 50, &[], "a")).await;
            alive_max = alive_max.max(client.seen.alive.load(SeqCst));
            let resets: Vec<u8> = (50 * round..50 * round + 50)
                .flat_map(|call| frame(RST_STREAM, 0, 2 * call + 1, &[0, 0, 0, 8]))
                .collect();
            client.send(&resets).await;
            client.frames();
            if client.served.is_finished() {
                break;
            }
        }
        for _ in 0..100 {
            turn().await;
        }
        assert_eq!(client.seen.alive.load(SeqCst), 0);
        assert!((1..=100).contains(&alive_max), "{alive_max} calls at once");
        assert!(budget.held_bytes() < MIB, "{budget:?}");
    });
}

#[test]
fn a_flood_of_priorities_and_of_unknown_frames_holds_nothing() {
    let budget = Budget::new(64 * MIB);
    let running = run_with(Options { shards: 1, budget: budget.clone(), ..Options::default() });
    let mut raw = Connection::h2(running.address, &[]);
    for part in 0..100_u32 {
        let mut bytes = Vec::new();
        for number in 0..1_000 {
            let stream = 2 * (1_000 * part + number) + 100_001;
            bytes.extend(frame(PRIORITY, 0, stream, &[0, 0, 0, 0, 15]));
            // Frame types of HTTP/2 extensions and unknown types, some with a payload that is too short for
            // the type.
            bytes.extend(frame(0x0a + (number % 6) as u8, 0xff, stream, b""));
            bytes.extend(frame(0xfa, 0xff, stream, b"what is this"));
        }
        assert!(raw.send(&bytes));
    }
    raw.call(1, "/test.Echo/Unary", &[], &message(0, b"after it"));
    assert_eq!(raw.next_of(DATA).payload, message(0, b"after it"));
    assert!(budget.held_bytes() < MIB, "{budget:?}");
    serves_others(&running);
}

/// Empty frames do not consume the flow-control window, so only a limit on their number bounds them.
#[test]
fn a_flood_of_empty_data_ends_the_connection() {
    let budget = Budget::new(64 * MIB);
    let running = run_with(Options { shards: 1, budget: budget.clone(), ..Options::default() });
    // An empty payload, and a payload of padding only.
    for (flags, payload) in [(0, &b""[..]), (8, &b"\0"[..])] {
        let mut raw = Connection::h2(running.address, &[]);
        raw.send(&frame(HEADERS, END_HEADERS, 1, &call_block("/test.Echo/Bidi", &[])));
        let flood = frame(DATA, flags, 1, payload).repeat(1_000);
        for _ in 0..300 {
            if !raw.send(&flood) {
                break;
            }
        }
        raw.finish();
        assert_eq!(reason_of_goaway(&frames_to_close(&mut raw)), Some(ENHANCE_YOUR_CALM), "{flags}");
        assert!(budget.held_bytes() < MIB, "{budget:?}");
    }
    serves_others(&running);
}

/// Unread data is stored as bytes, so its memory does not depend on the number of frames. The flow-control
/// windows bound the bytes.
#[test]
fn data_in_single_bytes_that_nobody_takes_costs_no_more_than_its_bytes() {
    let budget = Budget::new(64 * MIB);
    let running = run_with(Options { shards: 1, budget: budget.clone(), ..Options::default() });
    let mut raw = Connection::h2(running.address, &[]);
    let mut opened = Vec::new();
    for number in 0..16 {
        let block = call_block("/test.Echo/UntilClosing", &[]);
        opened.extend(frame(HEADERS, END_HEADERS, 2 * number + 1, &block));
    }
    raw.send(&opened);
    // Fills the windows of all streams, and nearly the whole window of the connection.
    for number in 0..16 {
        assert!(raw.send(&frame(DATA, 0, 2 * number + 1, b"x").repeat(65_535)));
    }
    raw.call(33, "/test.Echo/Unary", &[], &message(0, b"a"));
    assert_eq!(raw.next_of(DATA).payload, message(0, b"a"));
    // The data is charged to the budget.
    assert!((MIB - 16..2 * MIB).contains(&budget.held_bytes()), "{budget:?}");
    // One more byte exceeds the window, which is a protocol error.
    raw.send(&frame(DATA, 0, 1, b"x"));
    raw.finish();
    assert_eq!(reason_of_goaway(&frames_to_close(&mut raw)), None);
    serves_others(&running);
}

/// The code must not read the host of a request before it has checked that a host is present.
#[test]
fn a_request_without_a_host_is_answered_like_others() {
    let running = run();
    for named in [&[][..], &[("host", "")], &[(":authority", "")]] {
        let mut raw = Connection::h2(running.address, &[]);
        let mut headers = vec![(":method", "POST"), (":scheme", "http"), (":path", "/test.Echo/Unary")];
        headers.extend(named);
        headers.extend([("content-type", "application/grpc"), ("te", "trailers")]);
        raw.send(&frame(HEADERS, END_HEADERS, 1, &block(&headers)));
        raw.send(&frame(DATA, END_STREAM, 1, &message(0, b"a")));
        let answer = raw.next().into_iter().chain(std::iter::from_fn(|| raw.next()));
        let first = answer.into_iter().find(|frame| [DATA, RST_STREAM, GOAWAY].contains(&frame.kind));
        // A request that HTTP/2 considers malformed is reset; the connection stays open.
        assert!(first.is_some_and(|frame| frame.kind != GOAWAY), "{named:?}");
        serves_others(&running);
    }
}

/// With a maximum frame size of 0, headers could never be sent.
#[test]
fn a_largest_frame_of_no_byte_is_refused() {
    let running = run();
    for size in [0, 1, 16_383, 1 << 24] {
        let mut raw = Connection::h2(running.address, &[]);
        raw.send(&settings(5, size));
        raw.call(1, "/test.Echo/Unary", &[], &message(0, b"a"));
        raw.finish();
        assert_eq!(reason_of_goaway(&frames_to_close(&mut raw)), Some(PROTOCOL_ERROR), "{size}");
    }
    serves_others(&running);
}

/// HPACK bomb: a field of 4,000 bytes is added to the dynamic table and then referenced with one byte each.
#[test]
fn a_header_block_that_unpacks_to_megabytes_is_not_unpacked() {
    let budget = Budget::new(64 * MIB);
    let running = run_with(Options { shards: 1, budget: budget.clone(), ..Options::default() });
    let started = running.front.counters()[0].clone();
    let mut block = call_block("/test.Echo/Unary", &[]);
    // Literal field with indexing: a name of one byte and a value of 4,000 bytes.
    block.extend([0x40, 1, b'x', 0x7f]);
    let rest = 4_000_u32 - 127;
    block.extend([(rest % 128) as u8 | 0x80, (rest / 128) as u8]);
    block.extend(vec![b'v'; 4_000]);
    // References to the newest entry, 12,000 times: 48 MB when decoded.
    block.extend([0xbe; 12_000]);
    let mut raw = Connection::h2(running.address, &[]);
    raw.send(&frame(HEADERS, END_STREAM, 1, &block[..10_000]));
    raw.send(&frame(CONTINUATION, END_HEADERS, 1, &block[10_000..]));
    raw.finish();
    let answers = frames_to_close(&mut raw);
    assert!(!answers.iter().any(|frame| frame.kind == DATA), "it was served");
    assert!(started.methods.iter().all(|method| method.started.load(Relaxed) == 0));
    assert!(budget.held_bytes() < MIB, "{budget:?}");
    serves_others(&running);
}

/// The server limits its own HPACK table, whatever size the client allows.
#[test]
fn a_huge_header_table_is_not_used() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[0, 1, 0xff, 0xff, 0xff, 0xff]);
    raw.call(1, "/test.Echo/Unary", &[], &message(0, b"a"));
    let head = raw.next_of(HEADERS).payload;
    // A block begins with a table size update if the size changes: bits 001, then an integer with a prefix of
    // 5 bits.
    if head[0] & 0xe0 == 0x20 {
        let mut size = usize::from(head[0] & 0x1f);
        if size == 0x1f {
            for (place, byte) in head[1..].iter().enumerate() {
                size += usize::from(byte & 0x7f) << (7 * place);
                if byte & 0x80 == 0 {
                    break;
                }
            }
        }
        assert!(size <= 4 * KIB, "a table of {size} bytes");
    }
    assert_eq!(raw.next_of(DATA).payload, message(0, b"a"));
}

/// A client may open its window one byte at a time; each step costs the server one DATA frame.
#[test]
fn a_window_opened_byte_by_byte_costs_a_frame_each() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[0, 4, 0, 0, 0, 0]);
    raw.call(1, "/test.Echo/Big", &[], &message(0, b"100000"));
    raw.next_of(HEADERS);
    for _ in 0..1_000 {
        raw.send(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]));
    }
    let mut bytes = 0;
    while bytes < 1_000 {
        bytes += raw.next_of(DATA).payload.len();
    }
    assert_eq!(bytes, 1_000);
    raw.call(3, "/test.Echo/Fail", &[], &message(0, b"a"));
    assert_eq!(raw.next_of(HEADERS).stream, 3);
    serves_others(&running);
}

/// Requests that never become complete end after a timeout; until then their memory is charged.
#[test]
fn trailers_and_bodies_without_end_open_no_second_call() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[]);
    let block = call_block("/test.Echo/Unary", &[]);
    // HEADERS in the middle of a body without END_STREAM, which is also a second request head on the same
    // stream.
    raw.send(&frame(HEADERS, END_HEADERS, 1, &block));
    raw.send(&frame(HEADERS, END_HEADERS, 1, &block));
    let reset = raw.next_of(RST_STREAM);
    assert_eq!(reset.stream, 1);
    assert_eq!(
        running.front.counters()[0].methods[crate::echo::id_of("/test.Echo/Unary")].started.load(Relaxed),
        0
    );
    serves_others(&running);
}

#[test]
fn one_address_does_not_take_the_places_of_all() {
    let options =
        Options { shards: 1, connections_max: 10, connections_per_address_max: 4, ..Options::default() };
    let budget = options.budget.clone();
    let running = run_with(options);
    let mut open: Vec<Connection> = (0..4)
        .map(|_| {
            let mut raw = Connection::h2(running.address, &[]);
            raw.call(1, "/test.Echo/Unary", &[], &message(0, b"a"));
            raw.next_of(DATA);
            raw
        })
        .collect();
    Connection::silent(running.address).closed();
    assert_eq!((running.front.connections_refused().load(Relaxed), budget.connections_refused()), (1, 1));
    // A closed connection makes room for another.
    drop(open.pop());
    let counters = running.front.counters()[0].clone();
    block_on(until("a place is free", || counters.connections.load(Relaxed) == 3));
    serves_others(&running);
}
