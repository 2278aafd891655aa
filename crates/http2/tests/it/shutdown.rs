//! Ends of connections: GOAWAY and pings.

use http2::{OpenError, Options, Reason, Role, SendError};

use crate::ends::{REQUEST, RESPONSE, Seen, TRAILERS, call, exchange, pair};
use crate::frames::*;

#[test]
fn a_shutdown_takes_what_was_on_its_way_and_nothing_after() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    let (_, first) = call(&mut client, &mut server, false);
    // One request is in flight when the server begins its shutdown.
    let second = client.connection.open(&REQUEST, &[], true).unwrap();
    let on_its_way = client.sent();
    server.connection.shut_down();
    assert!(!server.connection.has_said_last_stream());
    let said = server.sent();
    assert_eq!(client.take(&said).unwrap(), [Seen::GoAway(0x7fff_ffff, 0, vec![]), Seen::Pinged]);
    assert_eq!(client.connection.open(&REQUEST, &[], true), Err(OpenError::Leaving));
    assert!(!client.connection.may_open());
    assert!(
        matches!(server.take(&on_its_way).unwrap()[..], [Seen::Head(key, _, true)] if key.id() == second.id())
    );
    // The acknowledgement of the PING shows that no further request can be in flight.
    server.take(&client.sent()).unwrap();
    assert!(server.connection.has_said_last_stream());
    assert_eq!(client.take(&server.sent()).unwrap(), [Seen::GoAway(second.id(), 0, vec![])]);
    // A client that opens a stream anyway is refused, and further frames of the stream are ignored.
    let late = [frame(HEADERS, END_HEADERS, 5, GET), frame(DATA, END_STREAM, 5, b"x")].concat();
    assert_eq!(server.take(&late).unwrap(), []);
    let refused = server.sent_frames();
    assert_eq!((refused.len(), refused[0].stream, refused[0].number()), (1, 5, Reason::REFUSED_STREAM.0));
    // The open calls end normally.
    for key in server.connection.keys().collect::<Vec<_>>() {
        server.connection.send_head(key, &RESPONSE, &[], true).unwrap();
    }
    assert_eq!(server.connection.open_streams(), 0);
    assert!(!server.connection.is_open(first));
    // A later error does not change the announced last stream.
    server.connection.close(Reason::ENHANCE_YOUR_CALM, b"enough");
    let last = server.sent_frames().pop().unwrap();
    assert_eq!(last.payload, [&second.id().to_be_bytes()[..], &[0, 0, 0, 11], b"enough"].concat());
}

#[test]
fn streams_above_the_last_one_were_never_looked_at() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    let keys: Vec<_> = (0..5).map(|_| client.connection.open(&REQUEST, &[], false).unwrap()).collect();
    let goaway = frame(GOAWAY, 0, 0, &[0, 0, 0, 5, 0, 0, 0, 0, b'w']);
    let mut seen = client.take(&goaway).unwrap();
    assert_eq!(seen.remove(0), Seen::GoAway(5, 0, b"w".to_vec()));
    seen.sort_by_key(Seen::stream);
    assert_eq!(seen, [Seen::Reset(keys[3], 7, true), Seen::Reset(keys[4], 7, true)]);
    assert_eq!(client.connection.open_streams(), 3);
    // The other streams continue.
    server.take(&client.sent()).unwrap();
    let first = server.connection.keys().find(|key| key.id() == 1).unwrap();
    server.connection.send_head(first, &RESPONSE, &[], false).unwrap();
    server.connection.send_trailers(first, &TRAILERS, &[]).unwrap();
    let (seen, _) = exchange(&mut client, &mut server);
    assert!(matches!(seen[1], Seen::Trailers(key, _) if key == keys[0]));
}

/// The announced last stream must not increase (RFC 9113, section 6.8).
#[test]
fn a_last_stream_that_rises_is_an_error() {
    let (mut client, _) = pair(&Options::default(), &Options::default());
    let keys: Vec<_> = (0..3).map(|_| client.connection.open(&REQUEST, &[], false).unwrap()).collect();
    let goaway = |last: u8| frame(GOAWAY, 0, 0, &[0, 0, 0, last, 0, 0, 0, 0]);
    for _ in 0..2 {
        assert_eq!(client.take(&goaway(5)).unwrap(), [Seen::GoAway(5, 0, vec![])]);
    }
    let seen = client.take(&goaway(3)).unwrap();
    assert_eq!(seen, [Seen::GoAway(3, 0, vec![]), Seen::Reset(keys[2], 7, true)]);
    assert_eq!(client.take(&goaway(5)).unwrap_err().reason, Reason::PROTOCOL_ERROR);
}

#[test]
fn commands_for_what_is_over_fail() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    let (at_client, at_server) = call(&mut client, &mut server, true);
    assert_eq!(
        client.connection.send_data(at_client, bytes::Bytes::from("x").into(), false),
        Err(SendError::Closed)
    );
    server.connection.send_head(at_server, &RESPONSE, &[], true).unwrap();
    assert_eq!(server.connection.send_head(at_server, &RESPONSE, &[], true), Err(SendError::Closed));
    assert_eq!(server.connection.send_trailers(at_server, &TRAILERS, &[]), Err(SendError::Closed));
    server.connection.close(Reason::NO_ERROR, b"");
    assert!(server.connection.is_over());
    server.connection.ping(1);
    server.connection.shut_down();
    assert_eq!(server.sent_frames().last().unwrap().kind, GOAWAY);
    assert_eq!(server.take(&frame(PING, 0, 0, &[0; 8])), Ok(vec![]));
    client.connection.close(Reason::NO_ERROR, b"");
    assert_eq!(client.connection.open(&REQUEST, &[], true), Err(OpenError::Leaving));
}

/// A bug of the caller costs the call and nothing else.
#[test]
fn a_body_before_its_head_resets_the_stream() {
    for how in 0..3 {
        let (mut client, mut server) = pair(&Options::default(), &Options::default());
        let (at_client, key) = call(&mut client, &mut server, true);
        let sent = match how {
            0 => server.connection.send_data(key, bytes::Bytes::from("x").into(), false),
            1 => server.connection.send_message(key, 1, true, |_| panic!("the message is not asked for")),
            _ => server.connection.send_trailers(key, &TRAILERS, &[]),
        };
        assert_eq!(sent, Err(SendError::NoHead));
        let (seen, _) = exchange(&mut client, &mut server);
        assert_eq!(seen, [Seen::Reset(at_client, Reason::INTERNAL_ERROR.0, true)]);
        assert_eq!(server.connection.open_streams(), 0);
        call(&mut client, &mut server, true);
    }
}

#[test]
fn fields_that_cannot_be_sent_leave_everything_as_it_was() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    assert!(matches!(
        client.connection.open(&REQUEST, &[(b"x", b"a\nb")], true),
        Err(OpenError::Invalid(invalid)) if invalid.name == "x"
    ));
    let (_, key) = call(&mut client, &mut server, true);
    assert!(matches!(
        server.connection.send_head(key, &RESPONSE, &[(b"X", b"")], true),
        Err(SendError::Invalid(_))
    ));
    server.connection.send_head(key, &RESPONSE, &[], true).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(client.connection.open_streams(), 0);
}

#[test]
fn a_client_opens_as_many_as_it_may() {
    let (mut client, mut server) =
        pair(&Options::default(), &Options { streams_max: 2, ..Options::default() });
    let (_, first) = call(&mut client, &mut server, true);
    call(&mut client, &mut server, true);
    assert_eq!(client.connection.open(&REQUEST, &[], true), Err(OpenError::TooMany));
    assert!(!client.connection.may_open());
    server.connection.send_head(first, &RESPONSE, &[], true).unwrap();
    exchange(&mut client, &mut server);
    assert!(client.connection.may_open());
    call(&mut client, &mut server, true);
}

#[test]
fn an_answer_before_the_end_of_the_request_asks_for_no_more_of_it() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    let (at_client, key) = call(&mut client, &mut server, false);
    server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
    server.connection.send_trailers(key, &TRAILERS, &[]).unwrap();
    let (seen, _) = exchange(&mut client, &mut server);
    assert!(matches!(seen[1], Seen::Trailers(..)));
    assert_eq!(seen[2], Seen::Reset(at_client, 0, true));
    assert_eq!((client.connection.open_streams(), server.connection.open_streams()), (0, 0));
}

#[test]
fn pings_are_answered_and_told() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    client.connection.ping(7);
    let (at_client, at_server) = exchange(&mut client, &mut server);
    assert_eq!((at_client, at_server), (vec![Seen::Pong(7)], vec![Seen::Pinged]));
    assert_eq!(client.connection.role(), Role::Client);
}

/// A client may move its connection to another thread.
#[test]
fn a_connection_may_move_to_another_thread() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    client.connection.ping(1);
    let said = client.sent();
    let seen = std::thread::spawn(move || server.take(&said)).join().unwrap();
    assert_eq!(seen, Ok(vec![Seen::Pinged]));
}
