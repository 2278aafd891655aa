//! Checks the crate `http2`, as client and as server, without sockets: a connection receives frames, executes
//! commands in between, and must do the same however the received bytes are divided.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http2::{Connection, Event, Input, Key, Options, Payload, Reason, Role, Template};

use crate::front_port;
use crate::script::{Scribe, Script, pieces};

/// Size in bytes of the body that one command sends.
const BODY_BYTES: usize = 40_000;
/// Maximum memory in bytes that a connection may hold besides bodies and buffers. It is far above what header
/// blocks, header tables and streams need.
const HEAP_BYTES_MAX: usize = 4 << 20;

fn template(fields: &[(&str, &str)]) -> Template {
    Template::new(fields.iter().copied()).expect("fields that can be sent")
}

struct End {
    connection: Connection,
    request: Template,
    response: Template,
    trailers: Template,
    keys: Vec<Key>,
    /// The events so far as text, for comparison. Body data is shown by its length and the sum of its bytes.
    seen: Vec<String>,
    sent: Vec<u8>,
    commands: Vec<u8>,
    next_command: usize,
}

impl End {
    fn new(role: Role, small: bool, commands: &[u8], start: Instant) -> End {
        let mut options = Options { stream_window_bytes_max: 1 << 20, ..Options::default() };
        if small {
            options.stream_window_bytes = 100;
            options.streams_max = 3;
            options.header_list_bytes_max = 300;
            options.output_bytes_max = 2_000;
        }
        let get = [(":method", "POST"), (":scheme", "http"), (":path", "/t.E/Unary"), ("te", "trailers")];
        let mut end = End {
            connection: Connection::new(role, &Arc::new(options), start),
            request: template(&get),
            response: template(&[(":status", "200"), ("content-type", "application/grpc")]),
            trailers: template(&[("grpc-status", "0")]),
            keys: Vec::new(),
            seen: Vec::new(),
            sent: Vec::new(),
            commands: commands.to_vec(),
            next_command: 0,
        };
        if role == Role::Client {
            for _ in 0..8 {
                let opened = end.connection.open(&end.request, &[], false);
                end.keys.push(opened.expect("nobody has bounded streams yet"));
            }
        }
        end
    }

    /// Executes the next command. Called after each event and not after each piece, so that commands are
    /// executed at the same points however the bytes are divided.
    fn command(&mut self) {
        let Some(command) = self.commands.get(self.next_command).copied() else { return };
        self.next_command = (self.next_command + 1) % self.commands.len();
        let connection = &mut self.connection;
        let Some(key) = self.keys.get(usize::from(command >> 4) % self.keys.len().max(1)).copied() else {
            return;
        };
        let begun = connection.has_begun(key);
        match command & 0x0f {
            0 | 1 if !begun => drop(connection.send_head(key, &self.response, &[(b"a", b"b")], false)),
            2 if !begun => drop(connection.send_head(key, &self.response, &[], true)),
            3 if begun => {
                let body = Payload::from(Bytes::from(vec![command; BODY_BYTES]));
                drop(connection.send_data(key, body, false));
            }
            4 if begun => drop(connection.send_message(key, 50, false, |out| out.extend([command; 50]))),
            5 if begun => drop(connection.send_data(key, Payload::from(Bytes::new()), true)),
            6 if begun => drop(connection.send_trailers(key, &self.trailers, &[(b"grpc-message", b"m")])),
            7 => connection.reset(key, Reason::CANCEL),
            8 => connection.release(key, 50),
            9 => connection.release(key, usize::MAX),
            10 => connection.want_room(key),
            11 => connection.ping(u64::from(command)),
            12 => connection.shut_down(),
            13 => connection.rest(),
            14 => drop(connection.open_streams()),
            _ => {}
        }
    }

    fn see(&mut self, event: &Event<'_>) {
        if let Event::Head { stream, .. } = event
            && !self.keys.contains(stream)
        {
            self.keys.push(*stream);
        }
        self.seen.push(format!("{event:?}"));
        // Take the output before each command, so that the order of the sent bytes is the same however the
        // received bytes are divided.
        self.send();
        self.command();
        self.connection.gather();
        while self.connection.next_writable().is_some() {}
        self.send();
    }

    fn send(&mut self) {
        let output = self.connection.output();
        while !output.is_empty() {
            let mut slices = [IoSlice::new(&[]); 3];
            let count = output.slices(&mut slices);
            let mut n = 0;
            for slice in &slices[..count] {
                n += slice.len();
                self.sent.extend_from_slice(slice);
            }
            output.advance(n);
        }
    }

    /// Passes all pieces to the connection. Returns the events and the sent bytes.
    fn run(
        mut self,
        pieces: impl Iterator<Item = impl AsRef<[u8]>>,
        start: Instant,
    ) -> (Vec<String>, Vec<u8>) {
        self.connection.begin_turn(start + Duration::from_millis(1));
        let mut input = Input::default();
        'all: for piece in pieces {
            let mut rest = piece.as_ref();
            while !rest.is_empty() {
                let space = input.space();
                assert!(!space.is_empty(), "there is no room for the rest of a frame");
                let n = space.len().min(rest.len());
                space[..n].copy_from_slice(&rest[..n]);
                input.filled(n);
                rest = &rest[n..];
                loop {
                    let mut at = 0;
                    let unread = input.unread().to_vec();
                    let result = self.connection.next(&unread, &mut at);
                    let goes_on = matches!(result, Ok(Some(_)));
                    match &result {
                        Ok(Some(event)) => self.see(event),
                        Ok(None) => {}
                        Err(error) => self.seen.push(error.to_string()),
                    }
                    let is_over = result.is_err();
                    input.consume(at);
                    let was_blocked = self.connection.is_blocked();
                    self.send();
                    assert!(self.connection.heap_bytes() < HEAP_BYTES_MAX, "memory without bound");
                    if is_over {
                        assert!(self.connection.is_over() && self.connection.open_streams() == 0);
                        break 'all;
                    }
                    if !goes_on && !was_blocked {
                        break;
                    }
                }
            }
        }
        let keys: Vec<Key> = self.connection.keys().collect();
        let unreleased: usize = keys.iter().map(|key| self.connection.stream_unreleased_bytes(*key)).sum();
        let queued: usize = keys.iter().map(|key| self.connection.stream_queued_bytes(*key)).sum();
        assert_eq!(unreleased as u64, self.connection.unreleased_bytes());
        assert_eq!(queued, self.connection.queued_bytes());
        for key in keys {
            self.connection.reset(key, Reason::CANCEL);
        }
        assert_eq!((self.connection.unreleased_bytes(), self.connection.queued_bytes()), (0, 0));
        (self.seen, self.sent)
    }
}

/// Fuzz target: passes the same frames to two equal connections, undivided to one and in pieces to the other.
/// Both must return the same events and send the same bytes. The script contains the role, the limits, the
/// commands, and frames in the format of `front_http2`.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let (role, small) = (if script.flip() { Role::Client } else { Role::Server }, script.flip());
    let commands = script.run();
    let (bytes, cut) = front_port::http2(script.rest());
    // A client receives the frames of a server, which sends no preface, so leave it out.
    let bytes = if role == Role::Client { &bytes[http2::PREFACE.len()..] } else { &bytes };
    let start = Instant::now();
    let whole = End::new(role, small, commands, start).run(pieces(bytes, 0), start);
    let in_pieces = End::new(role, small, commands, start).run(pieces(bytes, cut), start);
    assert_eq!(whole.0, in_pieces.0);
    assert!(whole.1 == in_pieces.1, "what is sent depends on how the bytes are cut");
}

/// Returns the seeds of `front_http2` with additional commands, for both roles.
pub fn seeds() -> Vec<Vec<u8>> {
    let commands: Vec<u8> =
        (0..=255).map(|number: u8| number.wrapping_mul(7).wrapping_add(number >> 3)).collect();
    let status = |stream: u8, flags: u8| {
        Scribe::default().u8(1).u8(flags).u8(stream).run(b"\x88\x40\x0bgrpc-status\x010").done()
    };
    let mut seeds = Vec::new();
    for (number, frames) in front_port::seeds_http2().into_iter().enumerate() {
        let commands = if number % 2 == 0 { &commands[..] } else { &commands[..number * 5] };
        let begin = Scribe::default().u8(0).u8(number as u8 / 2).run(commands).done();
        seeds.push([begin, frames].concat());
    }
    let mut answers =
        Scribe::default().u8(1).u8(0).run(&commands).u8(1).u8(17).u8(4).u8(0).u8(0).run(&[]).done();
    for stream in [1, 3, 5, 7] {
        answers.extend(status(stream, 4));
        answers.extend(Scribe::default().u8(0x10).u8(0).u8(stream).run(b"an answer").done());
        answers.extend(Scribe::default().u8(8).u8(0).u8(stream).run(&[0, 1, 0, 0]).done());
    }
    answers.extend(Scribe::default().u8(7).u8(0).u8(0).run(&[0, 0, 0, 5, 0, 0, 0, 0]).done());
    answers.extend(Scribe::default().u8(3).u8(0).u8(1).run(&[0, 0, 0, 7]).done());
    seeds.push(answers);
    seeds
}
