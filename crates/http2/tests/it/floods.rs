//! Abusive peers: each attack ends its connection or costs nothing.

use bytes::Bytes;
use http2::{Cause, ConnectionError, Limit, Options, Payload, Rate, Reason};

use crate::ends::{End, RESPONSE, Seen};
use crate::frames::*;

/// Sends a frame repeatedly until the connection ends; returns the number of frames and the error.
fn flood(
    server: &mut End,
    most: usize,
    mut next: impl FnMut(usize) -> Vec<u8>,
) -> (usize, Option<ConnectionError>) {
    for count in 0..most {
        if let Err(error) = server.take(&next(count)) {
            let frames = server.sent_frames();
            let goaway = frames.last().unwrap();
            assert_eq!((goaway.kind, goaway.number()), (GOAWAY, error.reason.0));
            assert_eq!(&goaway.payload[8..], error.text().as_bytes());
            assert_eq!(server.connection.open_streams(), 0);
            // The connection stays closed.
            assert_eq!(server.take(&next(count)), Err(error));
            assert!(server.sent().is_empty());
            return (count + 1, Some(error));
        }
        server.sent();
    }
    (most, None)
}

fn limited(limit: Limit) -> Option<ConnectionError> {
    Some(ConnectionError { reason: Reason::ENHANCE_YOUR_CALM, cause: Cause::Limit(limit) })
}

fn id(count: usize) -> u32 {
    2 * count as u32 + 1
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

#[test]
fn streams_that_are_reset_at_once_are_counted() {
    let mut server = End::greeted(&Options::default());
    let next = |count| [frame(HEADERS, END_HEADERS, id(count), GET), reset(id(count))].concat();
    assert_eq!(flood(&mut server, 10_000, next), (257, limited(Limit::EarlyResets)));
}

#[test]
fn streams_that_are_reset_later_or_made_up_for_are_not() {
    let mut server = End::greeted(&Options::default());
    for count in 0..10_000 {
        server.turn(0);
        server.take(&frame(HEADERS, END_HEADERS, id(count), GET)).unwrap();
        server.turn(0);
        server.take(&reset(id(count))).unwrap();
        assert_eq!(server.connection.open_streams(), 0);
    }
    // A client whose calls are answered as often as it resets calls, all in one turn.
    let mut server = End::greeted(&Options::default());
    for count in 0..10_000 {
        let answered = frame(HEADERS, END_HEADERS | END_STREAM, id(2 * count), GET);
        let seen = server.take(&answered).unwrap();
        server.connection.send_head(seen[0].stream().unwrap(), &RESPONSE, &[], true).unwrap();
        let early = [frame(HEADERS, END_HEADERS, id(2 * count + 1), GET), reset(id(2 * count + 1))].concat();
        server.take(&early).unwrap();
        server.sent();
    }
}

#[test]
fn resets_that_are_provoked_are_counted() {
    let provocations: [fn(u32) -> Vec<u8>; 5] = [
        // Causes of stream errors: a window above 2^31-1, a window update of 0, data after the end of the
        // request, and others.
        |id| frame(WINDOW_UPDATE, 0, id, &0x7fff_ffff_u32.to_be_bytes()),
        |id| frame(WINDOW_UPDATE, 0, id, &[0; 4]),
        |id| frame(DATA, 0, id, b"more"),
        |id| frame(PRIORITY, 0, id, &[0; 4]),
        |id| frame(HEADERS, END_HEADERS, id, &field("x", "y")),
    ];
    for provoke in provocations {
        let mut server = End::greeted(&Options::default());
        let next =
            |count| [frame(HEADERS, END_HEADERS | END_STREAM, id(count), GET), provoke(id(count))].concat();
        assert_eq!(flood(&mut server, 10_000, next), (1025, limited(Limit::ProvokedResets)));
    }
    // Malformed or refused requests.
    for (options, block) in [
        (Options::default(), &GET[1..]),
        (Options { streams_max: 0, ..Options::default() }, GET),
        (Options { header_list_bytes_max: 50, ..Options::default() }, GET),
    ] {
        let mut server = End::greeted(&options);
        let next = |count| frame(HEADERS, END_HEADERS, id(count), block);
        assert_eq!(flood(&mut server, 10_000, next), (1025, limited(Limit::ProvokedResets)));
    }
}

#[test]
fn header_blocks_without_end_are_ended() {
    for (payload, flags, expected) in [
        (&b""[..], 0, (17, Limit::Continuations)),
        (&[0x82; 100], 0, (17, Limit::Continuations)),
        (&[0x82; 16_384], 0, (5, Limit::HeaderBlock)),
        (&[0x82; 16_384], PADDED, (5, Limit::HeaderBlock)),
    ] {
        let mut server = End::greeted(&Options::default());
        server.take(&frame(HEADERS, 0, 1, &[0x82; 100])).unwrap();
        let result = flood(&mut server, 10_000, |_| frame(CONTINUATION, flags, 1, payload));
        assert_eq!(result, (expected.0, limited(expected.1)));
        assert!(server.connection.heap_bytes() < 50_000);
    }
}

#[test]
fn settings_and_pings_and_empty_data_are_counted() {
    let mut server = End::greeted(&Options::default());
    let result = flood(&mut server, 10_000, |_| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]));
    // The first SETTINGS, with which every connection begins, is not counted.
    assert_eq!(result, (101, limited(Limit::Settings)));
    let mut server = End::greeted(&Options::default());
    assert_eq!(flood(&mut server, 10_000, |_| frame(PING, 0, 0, &[1; 8])), (1001, limited(Limit::Pings)));
    let mut server = End::greeted(&Options::default());
    server.take(&frame(HEADERS, END_HEADERS, 1, GET)).unwrap();
    let result = flood(&mut server, 10_000, |count| match count % 3 {
        0 => frame(DATA, 0, 1, b""),
        1 => frame(DATA, PADDED, 1, &[0]),
        _ => frame(DATA, PADDED, 1, &[3, 0, 0, 0]),
    });
    assert_eq!(result, (1001, limited(Limit::EmptyData)));
}

#[test]
fn goaways_are_counted() {
    let mut server = End::greeted(&Options::default());
    server.take(&frame(HEADERS, END_HEADERS, 1, GET)).unwrap();
    let result = flood(&mut server, 10_000, |_| frame(GOAWAY, 0, 0, &[0; 8]));
    assert_eq!(result, (13, limited(Limit::GoAways)));
}

/// gRPC clients send PINGs during a large answer to measure the network.
#[test]
fn pings_between_answers_are_not_counted() {
    let mut server = End::greeted(&Options::default());
    let key = server.take(&frame(HEADERS, END_HEADERS, 1, GET)).unwrap()[0].stream().unwrap();
    server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
    for count in 0..10_000 {
        if count % 900 == 0 {
            server.connection.send_data(key, Payload::from(Bytes::from_static(b"a part")), false).unwrap();
        }
        server.take(&frame(PING, 0, 0, &[1; 8])).unwrap();
        server.sent();
    }
    assert_eq!(flood(&mut server, 10_000, |_| frame(PING, 0, 0, &[1; 8])).1, limited(Limit::Pings));
}

#[test]
fn what_means_nothing_leaves_nothing() {
    let mut server = End::greeted(&Options::default());
    server.take(&frame(HEADERS, END_HEADERS, 1, GET)).unwrap();
    server.sent();
    let held = server.connection.heap_bytes();
    let next = |count: usize| match count % 6 {
        0 => frame(PRIORITY, 0, id(count), &[0, 0, 0, 0, 7]),
        1 => frame(0x17, 0xff, count as u32, b"unknown"),
        2 => frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
        3 => frame(SETTINGS, ACK, 0, &[]),
        4 => frame(PING, ACK, 0, &[9; 8]),
        _ => frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
    };
    assert_eq!(flood(&mut server, 100_000, next), (100_000, None));
    assert_eq!(server.connection.heap_bytes(), held);
}

#[test]
fn a_client_that_takes_no_answers_is_not_listened_to() {
    let limits = http2::Limits { pings: Rate::new(u32::MAX, 0), ..http2::Limits::default() };
    let options = Options { output_bytes_max: 10_000, limits, ..Options::default() };
    let mut server = End::greeted(&options);
    let ping = frame(PING, 0, 0, &[7; 8]);
    let mut answered = 0;
    while !server.connection.is_blocked() {
        answered += server.take(&ping).unwrap().len();
    }
    // Each acknowledgement has 17 bytes.
    assert_eq!(answered, 20_000_usize.div_ceil(17));
    let mut at = 0;
    assert_eq!(server.connection.next(&ping, &mut at), Ok(None));
    assert_eq!(at, 0);
    // The connection continues when acknowledgements are taken.
    server.connection.output().advance(1_000);
    assert!(!server.connection.is_blocked());
    assert!(matches!(server.connection.next(&ping, &mut at), Ok(Some(_))));
}

#[test]
fn a_list_that_is_too_large_is_answered_and_the_tables_stay() {
    let options = Options { header_list_bytes_max: 8_000, ..Options::default() };
    let mut server = End::greeted(&options);
    // An entry of 4,000 bytes, referenced seven times: 28 KB.
    let mut block = [GET, &[0x40, 1, b'x', 127, 0xa1, 0x1e][..], &[b'v'; 4_000]].concat();
    assert!(matches!(server.take(&frame(HEADERS, END_HEADERS, 1, &block)).unwrap()[..], [Seen::Head(..)]));
    let held = server.connection.heap_bytes();
    block = [GET, &[0xbe; 7][..]].concat();
    assert_eq!(server.take(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &block)).unwrap(), []);
    let frames = server.sent_frames();
    assert_eq!(frames.len(), 1);
    assert_eq!((frames[0].kind, frames[0].flags, frames[0].stream), (HEADERS, END_HEADERS | END_STREAM, 3));
    assert!(frames[0].payload.ends_with(b"431"));
    // A request whose body has not arrived yet is also told that the body is not needed.
    assert_eq!(server.take(&frame(HEADERS, END_HEADERS, 5, &block)).unwrap(), []);
    let frames = server.sent_frames();
    assert_eq!((frames[1].kind, frames[1].number()), (RST_STREAM, Reason::NO_ERROR.0));
    assert_eq!(server.take(&frame(DATA, END_STREAM, 5, b"body")).unwrap(), []);
    assert!(server.connection.heap_bytes() <= held + 1_000);
    block.truncate(4);
    assert!(matches!(server.take(&frame(HEADERS, END_HEADERS, 7, &block)).unwrap()[..], [Seen::Head(..)]));
    // 40 MB when decoded.
    block = [GET, &[0xbe; 10_000][..]].concat();
    let error = server.take(&frame(HEADERS, END_HEADERS, 9, &block)).unwrap_err();
    assert_eq!(Some(error), limited(Limit::HeaderList));
}

/// Blocks for streams that were reset here are decoded without building a list, and large ones are counted.
#[test]
fn large_blocks_of_streams_that_are_over_are_counted() {
    let mut server = End::greeted(&Options::default());
    let block = [GET, &[0x40, 1, b'x', 127, 0xa1, 0x1e][..], &[b'v'; 4_000]].concat();
    let key = server.take(&frame(HEADERS, END_HEADERS, 1, &block)).unwrap()[0].stream().unwrap();
    server.connection.reset(key, Reason::CANCEL);
    server.sent();
    let held = server.connection.heap_bytes();
    for count in 0..10_000 {
        let block = [0xbe; 16];
        server.take(&frame(HEADERS, END_HEADERS, 1, &block[..1 + count % 15])).unwrap();
        assert_eq!(server.connection.heap_bytes(), held);
    }
    let result = flood(&mut server, 10_000, |_| frame(HEADERS, END_HEADERS, 1, &[0xbe; 17]));
    assert_eq!(result, (1025, limited(Limit::ProvokedResets)));
}

/// Streams with queued answers are reset repeatedly while the window stays closed.
#[test]
fn turns_of_streams_that_are_over_do_not_pile_up() {
    let limits = http2::Limits { early_resets: Rate::new(u32::MAX, 0), ..http2::Limits::default() };
    let mut server = End::greeted(&Options { limits, ..Options::default() });
    // The first answer uses up the connection's window.
    server.take(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])).unwrap();
    let mut answer = |count| {
        let seen = server.take(&frame(HEADERS, END_HEADERS | END_STREAM, id(count), GET)).unwrap();
        let key = seen[0].stream().unwrap();
        server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
        server.connection.send_data(key, Payload::from(Bytes::from(vec![0; 100_000])), true).unwrap();
        if count > 0 {
            server.take(&reset(id(count))).unwrap();
        }
        server.sent();
        (server.connection.heap_bytes(), server.connection.queued_bytes())
    };
    answer(0);
    answer(1);
    let held = answer(2);
    for count in 3..20_000 {
        let now = answer(count);
        assert!(now.0 < held.0 + 5_000 && now.1 == held.1, "{now:?} {held:?}");
    }
}

#[test]
fn so_many_small_frames_as_a_window_allows_hold_what_they_carry() {
    let mut server = End::greeted(&Options::default());
    server.releases = false;
    server.take(&frame(HEADERS, END_HEADERS, 1, GET)).unwrap();
    let held = server.connection.heap_bytes();
    let (count, error) = flood(&mut server, 1_000_000, |_| frame(DATA, 0, 1, b"x"));
    // More data than the stream's window allows: the stream ends.
    assert_eq!((count, error), (1_000_000, None));
    assert_eq!(server.connection.open_streams(), 0);
    assert!(server.connection.heap_bytes() <= held + 1_000);
}
