//! Flow control: consumers that stop senders, windows that grow, and turns of streams.

use bytes::Bytes;
use http2::{Options, Payload, Reason, Role, SendError};
use testkit::Random;

use crate::ends::{End, RESPONSE, Seen, TRAILERS, call, exchange, pair};
use crate::frames::*;

fn body(len: usize) -> Payload {
    Payload::from(Bytes::from(vec![b'x'; len]))
}

fn data_bytes(seen: &[Seen]) -> usize {
    seen.iter().map(|seen| if let Seen::Data(_, bytes, _) = seen { bytes.len() } else { 0 }).sum()
}

#[test]
fn a_consumer_that_releases_nothing_stops_the_sender() {
    for (stream, connection) in [(10_000, 1 << 20), (100_000, 65_535), (0, 100_000)] {
        let options = Options {
            stream_window_bytes: stream,
            stream_window_bytes_max: 0,
            connection_window_bytes: connection,
            ..Options::default()
        };
        let (mut client, mut server) = pair(&Options::default(), &options);
        server.releases = false;
        let (at_client, at_server) = call(&mut client, &mut server, false);
        client.connection.send_data(at_client, body(1 << 20), true).unwrap();
        let (_, seen) = exchange(&mut client, &mut server);
        // The connection's window is never smaller than a stream's.
        let window = stream as usize;
        assert_eq!(data_bytes(&seen), window);
        assert_eq!(client.connection.queued_bytes(), (1 << 20) - window);
        assert_eq!(server.connection.unreleased_bytes(), window as u64);
        assert_eq!(server.connection.stream_unreleased_bytes(at_server), window);
        // The sender cannot continue without an update, so a third of the window is worth a frame.
        server.connection.release(at_server, window / 3);
        assert_eq!(data_bytes(&exchange(&mut client, &mut server).1), window / 3);
        server.connection.release(at_server, window);
        assert_eq!(data_bytes(&exchange(&mut client, &mut server).1), window);
        assert_eq!(server.connection.unreleased_bytes(), window as u64);
    }
}

/// Some calls hold more than half of the connection's window; the other calls continue with the rest, however
/// much they send.
#[test]
fn what_some_calls_hold_keeps_no_others_from_using_the_rest() {
    let options = Options { stream_window_bytes_max: 0, ..Options::default() };
    let (mut client, mut server) = pair(&Options::default(), &options);
    server.releases = false;
    for _ in 0..9 {
        let (at_client, _) = call(&mut client, &mut server, false);
        client.connection.send_data(at_client, body(65_535), false).unwrap();
        assert_eq!(data_bytes(&exchange(&mut client, &mut server).1), 65_535);
    }
    server.releases = true;
    for _ in 0..2_000 {
        let (at_client, at_server) = call(&mut client, &mut server, false);
        client.connection.send_data(at_client, body(1_000), true).unwrap();
        assert_eq!(data_bytes(&exchange(&mut client, &mut server).1), 1_000);
        server.connection.send_head(at_server, &RESPONSE, &[], true).unwrap();
        exchange(&mut client, &mut server);
    }
    assert_eq!(server.connection.unreleased_bytes(), 9 * 65_535);
}

/// Short parts that can be sent immediately keep the order with queued parts, and are sent only if all of
/// their bytes fit.
#[test]
fn short_parts_overtake_nothing_and_wait_for_nothing() {
    let options = Options { stream_window_bytes: 5_000, stream_window_bytes_max: 0, ..Options::default() };
    let (mut client, mut server) = pair(&Options::default(), &options);
    let (at_client, _) = call(&mut client, &mut server, false);
    let random = &mut Random::new(7);
    let (mut sent, mut came, mut at_once, mut refused) = (Vec::new(), Vec::new(), 0, 0);
    for round in 0..500 {
        for _ in 0..random.index(5) {
            let len = [1, 300, 2_000, 3_000][random.index(4)];
            let part = random.bytes(len);
            let waits = client.connection.queued_bytes();
            if client.connection.try_send_short(at_client, &part).unwrap() {
                assert!(waits == 0 && part.len() <= 2_048, "{waits} bytes wait");
                assert_eq!(client.connection.queued_bytes(), 0);
                at_once += 1;
            } else {
                client
                    .connection
                    .send_data(at_client, Payload::from(Bytes::from(part.clone())), false)
                    .unwrap();
                refused += 1;
            }
            sent.extend(part);
        }
        if round % 3 == 0 {
            for seen in exchange(&mut client, &mut server).1 {
                if let Seen::Data(_, bytes, _) = seen {
                    came.extend(bytes);
                }
            }
            assert_eq!(came, sent);
        }
    }
    assert!(at_once > 100 && refused > 100, "{at_once} and {refused}");
    assert_eq!(client.connection.try_send_short(at_client, b""), Ok(false));
    client.connection.send_data(at_client, body(0), true).unwrap();
    assert_eq!(client.connection.try_send_short(at_client, b"late"), Err(SendError::Closed));
}

/// A message that fits into the window arrives complete, although its consumer releases nothing of it before
/// the end.
#[test]
fn a_message_of_nearly_a_window_comes_behind_another() {
    let options = Options { stream_window_bytes_max: 0, ..Options::default() };
    let (mut client, mut server) = pair(&Options::default(), &options);
    let (at_client, _) = call(&mut client, &mut server, false);
    client.connection.send_data(at_client, body(30_000), false).unwrap();
    exchange(&mut client, &mut server);
    server.releases = false;
    client.connection.send_data(at_client, body(60_000), true).unwrap();
    assert_eq!(data_bytes(&exchange(&mut client, &mut server).1), 60_000);
}

#[test]
fn what_a_stream_held_is_given_back_when_it_is_over() {
    let options = Options { connection_window_bytes: 65_535, ..Options::default() };
    let (mut client, mut server) = pair(&Options::default(), &options);
    server.releases = false;
    for round in 0..20 {
        let (at_client, at_server) = call(&mut client, &mut server, false);
        client.connection.send_data(at_client, body(60_000), round % 3 == 0).unwrap();
        assert_eq!(data_bytes(&exchange(&mut client, &mut server).1), 60_000);
        match round % 3 {
            0 => server.connection.send_head(at_server, &RESPONSE, &[], true).unwrap(),
            1 => server.connection.reset(at_server, Reason::CANCEL),
            _ => client.connection.reset(at_client, Reason::CANCEL),
        }
        exchange(&mut client, &mut server);
        assert_eq!((client.connection.open_streams(), server.connection.open_streams()), (0, 0));
        assert_eq!(server.connection.unreleased_bytes(), 0);
        // Releasing bytes of an ended stream has no effect.
        server.connection.release(at_server, 60_000);
        assert_eq!(server.sent(), []);
    }
}

#[test]
fn data_that_comes_for_streams_that_were_reset_is_given_back() {
    let mut server = End::greeted(&Options::default());
    for count in 0..1_000 {
        let id = 2 * count + 1;
        let seen = server.take(&frame(HEADERS, END_HEADERS, id, GET)).unwrap();
        server.connection.reset(seen[0].stream().unwrap(), Reason::CANCEL);
        assert_eq!(server.take(&frame(DATA, 0, id, &[0; 16_000])).unwrap(), []);
    }
    let given = |frame: &Frame| if frame.kind == WINDOW_UPDATE { u64::from(frame.number()) } else { 0 };
    let sum: u64 = server.sent_frames().iter().map(given).sum();
    assert!(sum > 16_000_000 - (1 << 20), "{sum}");
}

#[test]
fn padding_is_given_back_by_itself() {
    let options = Options { stream_window_bytes: 20_000, ..Options::default() };
    let mut server = End::greeted(&options);
    server.releases = false;
    server.take(&frame(SETTINGS, ACK, 0, &[])).unwrap();
    server.take(&frame(HEADERS, END_HEADERS, 1, GET)).unwrap();
    let mut padded = vec![255, b'x'];
    padded.extend([0; 255]);
    let mut allowed = 20_000_i64;
    for _ in 0..5_000 {
        allowed -= padded.len() as i64;
        assert!(allowed >= 0);
        assert_eq!(data_bytes(&server.take(&frame(DATA, PADDED, 1, &padded)).unwrap()), 1);
        for frame in
            server.sent_frames().iter().filter(|frame| frame.kind == WINDOW_UPDATE && frame.stream == 1)
        {
            allowed += i64::from(frame.number());
        }
    }
    assert_eq!(server.connection.unreleased_bytes(), 5_000);
}

#[test]
fn a_window_grows_while_the_delay_is_the_bound() {
    let options = Options { stream_window_bytes_max: 1 << 20, ..Options::default() };
    let (mut client, mut server) = pair(&Options::default(), &options);
    let (at_client, _) = call(&mut client, &mut server, false);
    client.connection.send_data(at_client, body(20 << 20), true).unwrap();
    let (mut rounds, mut came, mut most) = (0, 0, 0);
    while client.connection.open_streams() > 0 && came < 20 << 20 {
        // A round trip of 50 ms: each end reads everything that the other has sent.
        rounds += 1;
        client.turn(rounds * 50);
        server.turn(rounds * 50);
        let said = client.sent();
        let now = data_bytes(&server.take(&said).unwrap());
        (came, most) = (came + now, most.max(now));
        client.take(&server.sent()).unwrap();
    }
    assert_eq!(came, 20 << 20);
    // A window of 64 KiB would need 320 round trips.
    assert!(most > 500_000 && rounds < 60, "{most} {rounds}");
}

/// The consumer of a stream with a grown window stops: it occupies its own window, and other streams
/// continue.
#[test]
fn a_stream_whose_window_has_grown_holds_not_all_of_the_connections() {
    let options =
        Options { stream_window_bytes_max: 1 << 20, connection_window_bytes: 65_535, ..Options::default() };
    let (mut client, mut server) = pair(&Options::default(), &options);
    let (at_client, at_server) = call(&mut client, &mut server, false);
    client.connection.send_data(at_client, body(50 << 20), false).unwrap();
    for round in 1..40 {
        client.turn(round * 50);
        server.turn(round * 50);
        let said = client.sent();
        server.take(&said).unwrap();
        client.take(&server.sent()).unwrap();
    }
    // The window has grown; from here on the consumer releases nothing.
    server.releases = false;
    exchange(&mut client, &mut server);
    assert_eq!(server.connection.stream_unreleased_bytes(at_server), 1 << 20);
    assert!(client.connection.stream_queued_bytes(at_client) > 0);
    let (at_client, _) = call(&mut client, &mut server, false);
    client.connection.send_data(at_client, body(60_000), true).unwrap();
    assert_eq!(data_bytes(&exchange(&mut client, &mut server).1), 60_000);
}

#[test]
fn a_window_does_not_grow_for_a_slow_consumer() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    server.releases = false;
    let (at_client, at_server) = call(&mut client, &mut server, false);
    client.connection.send_data(at_client, body(20 << 20), true).unwrap();
    for round in 0..200 {
        server.turn(round * 50);
        let (_, seen) = exchange(&mut client, &mut server);
        assert!(data_bytes(&seen) < 200_000);
        // A tenth of a window per round trip.
        server.connection.release(at_server, 6_000);
    }
    assert!(server.connection.unreleased_bytes() < 200_000, "{}", server.connection.unreleased_bytes());
}

#[test]
fn streams_take_turns() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    let calls: Vec<_> = (0..5).map(|_| call(&mut client, &mut server, true).1).collect();
    for key in &calls {
        server.connection.send_head(*key, &RESPONSE, &[], false).unwrap();
        server.connection.send_data(*key, body(200_000), false).unwrap();
        server.connection.send_trailers(*key, &TRAILERS, &[]).unwrap();
    }
    let mut order = Vec::new();
    let mut ended = 0;
    while ended < calls.len() {
        let said = server.sent();
        order.extend(frames(&said).into_iter().filter(|frame| frame.kind == DATA));
        ended += client.take(&said).unwrap().iter().filter(|seen| matches!(seen, Seen::Trailers(..))).count();
        server.take(&client.sent()).unwrap();
    }
    // No stream gets two frames ahead of another while the windows let all of them send.
    let mut sent = vec![0; calls.len()];
    for frame in &order[..15] {
        sent[(frame.stream as usize - 1) / 2] += 1;
        assert!(sent.iter().max().unwrap() - sent.iter().min().unwrap() <= 1, "{sent:?}");
    }
    assert_eq!(order.iter().map(|frame| frame.payload.len()).sum::<usize>(), 1_000_000);
    assert_eq!((server.connection.queued_bytes(), server.connection.open_streams()), (0, 0));
}

#[test]
fn a_stream_whose_window_is_shut_keeps_nobody_waiting() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    client.releases = false;
    let (_, shut) = call(&mut client, &mut server, true);
    server.connection.send_head(shut, &RESPONSE, &[], false).unwrap();
    server.connection.send_data(shut, body(300_000), true).unwrap();
    assert_eq!(data_bytes(&exchange(&mut client, &mut server).0), 65_535);
    for _ in 0..10 {
        let (at_client, other) = call(&mut client, &mut server, true);
        server.connection.send_head(other, &RESPONSE, &[], false).unwrap();
        server.connection.send_data(other, body(60_000), false).unwrap();
        server.connection.send_trailers(other, &TRAILERS, &[]).unwrap();
        let (seen, _) = exchange(&mut client, &mut server);
        assert_eq!(data_bytes(&seen), 60_000);
        assert!(matches!(seen.last(), Some(Seen::Trailers(key, _)) if *key == at_client));
    }
    assert_eq!(server.connection.stream_queued_bytes(shut), 300_000 - 65_535);
}

/// A frame without data needs no window (RFC 9113, section 6.9.1).
#[test]
fn an_end_behind_data_waits_for_no_window_of_its_own() {
    let mut server = End::greeted(&Options::default());
    server.take(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])).unwrap();
    let keys: Vec<_> = (0..2)
        .map(|count| {
            let seen = server.take(&frame(HEADERS, END_HEADERS | END_STREAM, 2 * count + 1, GET)).unwrap();
            let key = seen[0].stream().unwrap();
            server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
            key
        })
        .collect();
    // Uses up the window of the connection.
    server.connection.send_data(keys[0], body(65_535 + 1_000), false).unwrap();
    server.sent();
    server.connection.send_data(keys[1], body(100), false).unwrap();
    server.connection.send_data(keys[1], body(0), true).unwrap();
    // Opens the window for one frame of the first stream and for all data of the second.
    server.take(&frame(WINDOW_UPDATE, 0, 0, &1_100_u32.to_be_bytes())).unwrap();
    let sent: Vec<_> =
        server.sent_frames().iter().map(|frame| (frame.stream, frame.payload.len(), frame.flags)).collect();
    assert_eq!(sent, [(1, 1_000, 0), (3, 100, END_STREAM)]);
    assert!(!server.connection.is_open(keys[1]));
}

#[test]
fn a_change_of_the_initial_window_is_for_streams_that_are_open() {
    let window = |bytes: u32| frame(SETTINGS, 0, 0, &[&[0, 4], &bytes.to_be_bytes()[..]].concat());
    let sent = |server: &mut End| -> usize {
        server.sent_frames().iter().filter(|frame| frame.kind == DATA).map(|frame| frame.payload.len()).sum()
    };
    let mut server = End::greeted(&Options::default());
    server.take(&window(100)).unwrap();
    let key = server.take(&frame(HEADERS, END_HEADERS | END_STREAM, 1, GET)).unwrap()[0].stream().unwrap();
    server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
    server.connection.send_data(key, body(10_000), true).unwrap();
    assert_eq!(sent(&mut server), 100);
    // The window is now -40 (RFC 9113, section 6.9.2), so 30 more bytes do not open it.
    server.take(&window(60)).unwrap();
    server.take(&frame(WINDOW_UPDATE, 0, 1, &30_u32.to_be_bytes())).unwrap();
    assert_eq!(sent(&mut server), 0);
    server.take(&frame(WINDOW_UPDATE, 0, 1, &15_u32.to_be_bytes())).unwrap();
    assert_eq!(sent(&mut server), 5);
    server.take(&window(1_000)).unwrap();
    assert_eq!(sent(&mut server), 940);
    server.take(&window(100_000)).unwrap();
    assert_eq!(sent(&mut server), 10_000 - 100 - 5 - 940);
    assert_eq!(server.connection.open_streams(), 0);
}

#[test]
fn of_a_setting_that_occurs_twice_the_last_counts_and_each_is_checked() {
    let settings = |values: &[u32]| {
        let entries = values.iter().flat_map(|value| [&[0, 4], &value.to_be_bytes()[..]].concat());
        frame(SETTINGS, 0, 0, &entries.collect::<Vec<u8>>())
    };
    let mut server = End::greeted(&Options::default());
    server.take(&settings(&[70_000, 0, 100])).unwrap();
    let key = server.take(&frame(HEADERS, END_HEADERS | END_STREAM, 1, GET)).unwrap()[0].stream().unwrap();
    assert_eq!(server.connection.room(key), 100);
    let error = server.take(&settings(&[100, 1 << 31, 100])).unwrap_err();
    assert_eq!(error.reason, Reason::FLOW_CONTROL_ERROR);
}

#[test]
fn a_window_beyond_the_largest_is_an_error() {
    let mut server = End::greeted(&Options::default());
    server.take(&frame(HEADERS, END_HEADERS, 1, GET)).unwrap();
    server.take(&frame(WINDOW_UPDATE, 0, 1, &(0x7fff_ffff_u32 - 65_535).to_be_bytes())).unwrap();
    // A stream with an enlarged window that has ended does not count.
    let more = |bytes: u32| frame(SETTINGS, 0, 0, &[&[0, 4], &bytes.to_be_bytes()[..]].concat());
    assert_eq!(server.take(&more(65_535)), Ok(vec![Seen::Settings]));
    assert_eq!(server.take(&more(65_536)).unwrap_err().reason, Reason::FLOW_CONTROL_ERROR);
    let mut server = End::greeted(&Options::default());
    server.take(&frame(HEADERS, END_HEADERS, 1, GET)).unwrap();
    server.take(&frame(HEADERS, END_HEADERS, 3, GET)).unwrap();
    server.take(&frame(WINDOW_UPDATE, 0, 1, &(0x7fff_ffff_u32 - 65_535).to_be_bytes())).unwrap();
    server.take(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])).unwrap();
    assert_eq!(server.take(&more(0x7fff_ffff)), Ok(vec![Seen::Settings]));
}

#[test]
fn who_wants_room_is_told_once_when_there_is_some() {
    // The output has room for everything that the windows allow.
    let options = Options { stream_window_bytes_max: 0, output_bytes_max: 1 << 20, ..Options::default() };
    let (mut client, mut server) = pair(&options, &options);
    client.releases = false;
    let (at_client, key) = call(&mut client, &mut server, true);
    server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
    assert_eq!(server.connection.room(key), 65_535);
    server.connection.want_room(key);
    server.connection.gather();
    assert_eq!((server.connection.next_writable(), server.connection.next_writable()), (Some(key), None));
    server.connection.send_data(key, body(100_000), false).unwrap();
    server.connection.want_room(key);
    exchange(&mut client, &mut server);
    assert_eq!((server.connection.next_writable(), server.connection.room(key)), (None, 0));
    // The window opens, and queued data is sent first.
    client.connection.release(at_client, 40_000);
    let (seen, _) = exchange(&mut client, &mut server);
    assert_eq!(data_bytes(&seen), 100_000 - 65_535);
    assert_eq!(server.connection.next_writable(), Some(key));
    assert_eq!(server.connection.room(key), 40_000 - (100_000 - 65_535));
    // A stream that has ended is not reported.
    server.connection.want_room(key);
    client.connection.reset(at_client, Reason::CANCEL);
    exchange(&mut client, &mut server);
    assert_eq!(server.connection.send_data(key, body(1), false), Err(SendError::Closed));
}

#[test]
fn a_stream_may_queue_a_frame_beside_others_that_keep_the_output_full() {
    let options = Options { stream_window_bytes_max: 0, output_bytes_max: 30_000, ..Options::default() };
    let (mut client, mut server) = pair(&options, &options);
    client.releases = false;
    let (_, key) = call(&mut client, &mut server, true);
    let (_, other) = call(&mut client, &mut server, true);
    for key in [key, other] {
        server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
    }
    exchange(&mut client, &mut server);
    assert_eq!(server.connection.room_beside_others(key), 30_000);
    server.connection.send_data(other, body(60_000), false).unwrap();
    server.connection.gather();
    let rooms = |server: &End, key| (server.connection.room(key), server.connection.room_beside_others(key));
    assert_eq!((rooms(&server, key), server.connection.window_left(key)), ((0, 16_384), 65_535));
    server.connection.send_data(key, body(10_000), false).unwrap();
    assert_eq!((rooms(&server, key), server.connection.window_left(key)), ((0, 6_384), 55_535));
    // A stream that has a frame waiting, or a shut window, has no room.
    server.connection.send_data(key, body(6_384), false).unwrap();
    assert_eq!((rooms(&server, key), rooms(&server, other)), ((0, 0), (0, 0)));
    exchange(&mut client, &mut server);
    assert_eq!((rooms(&server, key), rooms(&server, other)), ((30_000, 30_000), (5_535, 5_535)));
    server.connection.send_data(other, body(10_000), false).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!((rooms(&server, key).1, rooms(&server, other)), (30_000 - 4_465, (0, 0)));
    assert_eq!(server.connection.window_left(other), 0);
}

/// The sender used the default window until it received the settings with a smaller one (RFC 9113, section
/// 6.9.3).
#[test]
fn what_was_sent_before_the_settings_were_heard_does_not_stop_a_stream() {
    for sent in [16_000, 58_000, 65_535] {
        let options =
            Options { stream_window_bytes: 10_000, stream_window_bytes_max: 0, ..Options::default() };
        let mut server = End::greeted(&options);
        let body = vec![b'x'; sent];
        server.take(&frame(HEADERS, END_HEADERS, 1, GET)).unwrap();
        for part in body.chunks(16_384) {
            server.take(&frame(DATA, 0, 1, part)).unwrap();
        }
        server.take(&frame(SETTINGS, ACK, 0, &[])).unwrap();
        let given: i64 = server
            .sent_frames()
            .iter()
            .filter(|frame| frame.kind == WINDOW_UPDATE && frame.stream == 1)
            .map(|frame| i64::from(frame.number()))
            .sum();
        // The client's window once it has applied the settings.
        assert_eq!(10_000 - sent as i64 + given, 10_000, "{sent}");
    }
}

#[test]
fn a_message_is_the_same_however_it_is_sent() {
    let mut random = Random::new(5);
    for len in [0, 1, 5, 2_000, 2_100, 16_300, 16_384, 40_000, 200_000] {
        let message = random.bytes(len);
        let (mut client, mut server) = pair(&Options::default(), &Options::default());
        for how in 0..3 {
            let (at_client, key) = call(&mut client, &mut server, true);
            server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
            match how {
                0 => server.connection.send_message(key, len, false, |out| out.extend(&message)).unwrap(),
                1 => {
                    let payload = Payload::message(Bytes::from(message.clone()), false);
                    server.connection.send_data(key, payload, false).unwrap();
                }
                _ => {
                    let (first, second) = message.split_at(len / 3);
                    let first = Payload::message_start(len, Bytes::copy_from_slice(first), false);
                    server.connection.send_data(key, first, false).unwrap();
                    server.connection.send_data(key, Bytes::copy_from_slice(second).into(), false).unwrap();
                }
            }
            server.connection.send_trailers(key, &TRAILERS, &[]).unwrap();
            let (seen, _) = exchange(&mut client, &mut server);
            let mut came = Vec::<u8>::new();
            for seen in &seen {
                if let Seen::Data(_, bytes, _) = seen {
                    came.extend(bytes);
                }
            }
            assert_eq!(came, [&[0], &(len as u32).to_be_bytes()[..], &message].concat());
            assert_eq!(seen.last().and_then(Seen::stream), Some(at_client));
        }
    }
}

#[test]
fn the_output_is_bounded_and_bodies_are_referred_to() {
    let options = Options { output_bytes_max: 50_000, ..Options::default() };
    let mut server = End::new(Role::Server, &options);
    server.take(&greeting()).unwrap();
    server.take(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])).unwrap();
    server.take(&frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes())).unwrap();
    let key = server.take(&frame(HEADERS, END_HEADERS | END_STREAM, 1, GET)).unwrap()[0].stream().unwrap();
    server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
    server.connection.send_data(key, body(10 << 20), true).unwrap();
    server.connection.gather();
    let len = server.connection.output().len();
    assert!((50_000..50_000 + 17_000).contains(&len), "{len}");
    assert!(server.connection.output().heap_bytes() < 40_000);
    assert_eq!(frames(&server.sent()).iter().filter(|frame| frame.kind == DATA).count(), 640);
}

/// A stalled client reads acknowledgements and no answers, so the written bytes of both are counted
/// separately.
#[test]
fn what_is_taken_of_calls_is_told_apart() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    let (_, key) = call(&mut client, &mut server, true);
    let before = server.connection.output().written_of_calls();
    server.connection.ping(1);
    server.sent();
    assert_eq!(server.connection.output().written_of_calls(), before);
    server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
    server.connection.send_data(key, body(10), false).unwrap();
    server.connection.ping(2);
    let len = server.connection.output().len();
    server.connection.output().advance(len - 17);
    let after = server.connection.output().written_of_calls();
    assert_eq!(server.connection.output().written(), after);
    server.sent();
    assert_eq!(server.connection.output().written_of_calls(), after);
    assert_eq!(server.connection.stream_sent_bytes(key), 10);
}

/// A client that receives a large answer over a slow network sends a PING and must get the acknowledgement
/// soon.
#[test]
fn the_answer_to_a_ping_is_not_far_behind_a_large_body() {
    let wide =
        Options { stream_window_bytes: 16 << 20, connection_window_bytes: 16 << 20, ..Options::default() };
    let (mut client, mut server) = pair(&wide, &Options::default());
    let (_, at_server) = call(&mut client, &mut server, true);
    server.connection.send_head(at_server, &RESPONSE, &[], false).unwrap();
    server.connection.send_data(at_server, body(10 << 20), true).unwrap();
    server.connection.gather();
    client.connection.ping(7);
    let asked = client.sent();
    server.take(&asked).unwrap();
    server.connection.gather();
    let before = server.connection.output().len();
    assert!((16 << 10..=128 << 10).contains(&before), "{before} bytes are before the answer or behind it");
    exchange(&mut client, &mut server);
}

/// Queued bytes and pieces are counted until they are sent or their stream ends, and it is known in advance
/// whether a part would be queued.
#[test]
fn what_waits_is_counted() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    server.releases = false;
    let calls = [(); 2].map(|()| call(&mut client, &mut server, false).0);
    let window = 65_535;
    for key in calls {
        let sender = &client.connection;
        assert!(sender.sends_at_once(key, 16_384) && !sender.sends_at_once(key, 16_385));
    }
    for key in calls {
        let sender = &mut client.connection;
        sender.send_data(key, body(window), false).unwrap();
        sender.send_data(key, body(100), false).unwrap();
        assert!(!sender.sends_at_once(key, 1));
    }
    assert_eq!(
        (client.connection.queued_bytes(), client.connection.queued_pieces()),
        (2 * (window + 100), 4)
    );
    exchange(&mut client, &mut server);
    assert_eq!((client.connection.queued_bytes(), client.connection.queued_pieces()), (200, 2));
    client.connection.reset(calls[0], Reason::CANCEL);
    assert_eq!((client.connection.queued_bytes(), client.connection.queued_pieces()), (100, 1));
    client.connection.close(Reason::NO_ERROR, b"");
    assert_eq!((client.connection.queued_bytes(), client.connection.queued_pieces()), (0, 0));
}

/// Payloads shared by several streams are counted separately while they are queued.
#[test]
fn what_waits_of_shared_payloads_is_counted_apart() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    server.releases = false;
    let (key, at_server) = call(&mut client, &mut server, false);
    client.connection.send_data(key, body(100_000).shared(), false).unwrap();
    client.connection.send_data(key, body(1_000), false).unwrap();
    let counted = |client: &End| (client.connection.queued_bytes(), client.connection.queued_shared_bytes());
    assert_eq!(counted(&client), (101_000, 100_000));
    exchange(&mut client, &mut server);
    let left = 100_000 - 65_535;
    assert_eq!(counted(&client), (left + 1_000, left));
    server.releases = true;
    server.connection.release(at_server, 65_535);
    exchange(&mut client, &mut server);
    assert_eq!(counted(&client), (0, 0));
    client.connection.send_data(key, body(200_000).shared(), false).unwrap();
    assert!(counted(&client).1 > 0);
    client.connection.reset(key, Reason::CANCEL);
    assert_eq!(counted(&client), (0, 0));
}
