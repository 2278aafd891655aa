//! Events and responses do not depend on how the input bytes are split.

use bytes::Bytes;
use http2::{Connection, ConnectionError, Options, Payload, Reason, Role};
use testkit::Random;

use crate::ends::{End, REQUEST, RESPONSE, Seen, TRAILERS};

type Outcome = (Vec<Seen>, Result<(), ConnectionError>, Vec<u8>);

fn replay(role: Role, bytes: &[u8], opened: usize, most: impl FnMut() -> usize) -> Outcome {
    let mut end = End::new(role, &options());
    for _ in 0..opened {
        end.connection.open(&REQUEST, &[], false).unwrap();
    }
    let mut seen = Vec::new();
    let result = end.take_by(bytes, most, &mut seen);
    (seen, result, end.sent())
}

fn options() -> Options {
    // Windows small enough to be used up; the limits are not reached.
    Options { stream_window_bytes: 5_000, stream_window_bytes_max: 50_000, ..Options::default() }
}

fn bodies(connection: &mut Connection, keys: &[http2::Key], random: &mut Random) {
    for _ in 0..random.index(6) {
        let Some(key) = keys.get(random.index(keys.len().max(1))).copied() else { return };
        let len = [0, 1, 100, 3_000, 20_000][random.index(5)];
        let body = Bytes::from(random.bytes(len));
        let payload = if random.percent(50) { Payload::from(body) } else { Payload::message(body, false) };
        // The stream may have ended, which is an error that does not matter here.
        let _ = connection.send_data(key, payload, random.one_in(8));
        if random.one_in(8) {
            let _ = connection.send_trailers(key, &TRAILERS, &[(b"grpc-message", b"a text")]);
        }
        if random.one_in(16) {
            connection.reset(key, Reason::CANCEL);
        }
    }
}

/// Runs a random exchange between two ends. Returns the bytes of the client, the bytes of the server, and the
/// number of calls.
fn conversation(seed: u64) -> (Vec<u8>, Vec<u8>, usize) {
    let random = &mut Random::new(seed);
    let mut client = End::new(Role::Client, &options());
    let mut server = End::new(Role::Server, &options());
    let (mut said, mut answered) = (Vec::new(), Vec::new());
    let (mut opened, mut taken) = (Vec::new(), Vec::new());
    // All calls are opened first, so that the client's end can be replayed.
    for _ in 0..1 + random.index(20) {
        opened.push(client.connection.open(&REQUEST, &[], false).unwrap());
    }
    for _ in 0..30 {
        bodies(&mut client.connection, &opened, random);
        bodies(&mut server.connection, &taken, random);
        if random.one_in(5) {
            server.connection.ping(random.below(1000));
            client.connection.ping(random.below(1000));
        }
        let (from_client, from_server) = (client.sent(), server.sent());
        for seen in server.take(&from_client).unwrap() {
            if let Seen::Head(key, ..) = seen {
                // The stream may have ended already.
                if server.connection.send_head(key, &RESPONSE, &[(b"x", b"y")], false).is_ok() {
                    taken.push(key);
                }
            }
        }
        client.take(&from_server).unwrap();
        said.extend(from_client);
        answered.extend(from_server);
    }
    (said, answered, opened.len())
}

#[test]
fn whole_conversations_in_any_cuts() {
    for seed in 0..40 {
        let (said, answered, calls) = conversation(seed);
        for (role, bytes, opened) in [(Role::Server, &said, 0), (Role::Client, &answered, calls)] {
            let whole = replay(role, bytes, opened, || usize::MAX);
            assert_eq!(whole.1, Ok(()));
            assert!(whole.0.len() > 1, "{:?}", whole.0);
            for most in [1, 10, 1_000, 20_000] {
                let mut random = Random::new(seed);
                let cut = replay(role, bytes, opened, || random.index(most) + 1);
                assert!(cut == whole, "seed {seed}, {role:?}, cuts up to {most}");
            }
        }
    }
}

#[test]
fn damaged_conversations_in_any_cuts() {
    let mut failed = 0;
    for seed in 0..300 {
        let (said, answered, calls) = conversation(seed % 20);
        let mut random = Random::new(seed);
        for (role, bytes, opened) in [(Role::Server, said, 0), (Role::Client, answered, calls)] {
            let mut bytes = bytes;
            for _ in 0..=random.index(60) {
                let at = random.index(bytes.len());
                bytes[at] ^= 1 << random.index(8);
            }
            let whole = replay(role, &bytes, opened, || usize::MAX);
            failed += usize::from(whole.1.is_err());
            for most in [3, 3_000] {
                let cut = replay(role, &bytes, opened, || random.index(most) + 1);
                assert!(
                    cut == whole,
                    "seed {seed}, {role:?}, cuts up to {most}:\n{:?}\n{:?}",
                    cut.1,
                    whole.1
                );
            }
        }
    }
    assert!(failed > 100, "{failed}");
}
