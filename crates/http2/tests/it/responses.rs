//! Whole responses sent by one command.

use bytes::Bytes;
use http2::{Options, Payload, SendError};

use crate::ends::{RESPONSE, Seen, TRAILERS, call, exchange, pair};

#[test]
fn a_whole_response_is_what_its_parts_are() {
    // Bodies that are empty, copied, referenced, or larger than a window; with and without the end of the
    // request.
    let cases = [0, 1, 2_043, 2_048, 2_049, 16_300, 30_000, 100_000].map(|len| [(len, true), (len, false)]);
    let (mut client, mut whole) = pair(&Options::default(), &Options::default());
    let (mut other, mut parts) = pair(&Options::default(), &Options::default());
    for (len, end) in cases.into_iter().flatten() {
        let body = Bytes::from(vec![7; len]);
        let message = || Payload::message(body.clone(), false);
        let (at_client, key) = call(&mut client, &mut whole, end);
        whole.connection.send_response(key, &RESPONSE, message(), &TRAILERS).unwrap();
        let (_, same) = call(&mut other, &mut parts, end);
        parts.connection.send_head(same, &RESPONSE, &[], false).unwrap();
        parts.connection.send_data(same, message(), false).unwrap();
        parts.connection.send_trailers(same, &TRAILERS, &[]).unwrap();
        let (at_once, sent) = (whole.sent(), parts.sent());
        assert!(at_once == sent, "{len} bytes, {end}");
        let written = |end: &mut crate::ends::End| end.connection.output().written_of_calls();
        assert_eq!(written(&mut whole), written(&mut parts));
        let mut seen = client.take(&at_once).unwrap();
        other.take(&sent).unwrap();
        seen.extend(exchange(&mut client, &mut whole).0);
        exchange(&mut other, &mut parts);
        let is_body = |seen: &Seen| matches!(seen, Seen::Data(key, ..) if *key == at_client);
        let came: usize = seen
            .iter()
            .filter(|seen| is_body(seen))
            .map(|seen| if let Seen::Data(_, bytes, _) = seen { bytes.len() } else { 0 })
            .sum();
        assert_eq!(came, len + 5);
        assert!(seen.iter().any(|seen| matches!(seen, Seen::Trailers(key, _) if *key == at_client)));
        assert_eq!((whole.connection.open_streams(), parts.connection.open_streams()), (0, 0));
    }
}

#[test]
fn a_stream_that_is_over_gets_no_response() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    let (_, key) = call(&mut client, &mut server, true);
    let message = || Payload::message(Bytes::from_static(b"a"), false);
    assert_eq!(server.connection.send_response(key, &RESPONSE, message(), &TRAILERS), Ok(()));
    server.sent();
    let again = server.connection.send_response(key, &RESPONSE, message(), &TRAILERS);
    assert_eq!(again, Err(SendError::Closed));
    assert!(server.sent().is_empty());
}

#[test]
fn responses_do_not_overtake_those_that_wait() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    let (_, first) = call(&mut client, &mut server, true);
    let (at_client, second) = call(&mut client, &mut server, true);
    let message = |len: usize| Payload::message(Bytes::from(vec![7; len]), false);
    // The first response uses up the connection's window.
    server.connection.send_response(first, &RESPONSE, message(100_000), &TRAILERS).unwrap();
    server.connection.send_response(second, &RESPONSE, message(10), &TRAILERS).unwrap();
    assert!(server.connection.stream_queued_bytes(second) == 15 && server.connection.is_open(second));
    let (seen, _) = exchange(&mut client, &mut server);
    assert!(seen.iter().any(|seen| matches!(seen, Seen::Trailers(key, _) if *key == at_client)));
    assert_eq!(server.connection.open_streams(), 0);
}
