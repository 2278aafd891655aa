//! One end of a connection, with helpers for tests.

use std::io::IoSlice;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use http2::{Connection, ConnectionError, Event, Input, Key, Options, Role, Template};

use crate::frames::{Frame, frames, greeting};

pub static REQUEST: LazyLock<Template> = LazyLock::new(|| {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/etcdserverpb.KV/Put"),
        (":authority", "localhost:2379"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    Template::new(fields).unwrap()
});
pub static RESPONSE: LazyLock<Template> =
    LazyLock::new(|| Template::new([(":status", "200"), ("content-type", "application/grpc")]).unwrap());
pub static TRAILERS: LazyLock<Template> = LazyLock::new(|| Template::new([("grpc-status", "0")]).unwrap());

pub struct End {
    pub connection: Connection,
    input: Input,
    start: Instant,
    /// True if the end releases received data immediately.
    pub releases: bool,
}

/// Received event that owns its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Head(Key, Vec<(String, String)>, bool),
    Informational(Key, u16),
    Data(Key, Vec<u8>, bool),
    Trailers(Key, Vec<(String, String)>),
    Reset(Key, u32, bool),
    Pinged,
    Pong(u64),
    Settings,
    GoAway(u32, u32, Vec<u8>),
}

fn texts(fields: &http2::Fields) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    fields.iter().map(|(name, value)| (text(name), text(value))).collect()
}

impl Seen {
    pub fn of(event: Event<'_>) -> Seen {
        match event {
            Event::Head { stream, fields, end } => Seen::Head(stream, texts(&fields), end),
            Event::Informational { stream, fields } => Seen::Informational(stream, fields.status().unwrap()),
            Event::Data { stream, bytes, end } => Seen::Data(stream, bytes.to_vec(), end),
            Event::Trailers { stream, fields } => Seen::Trailers(stream, texts(&fields)),
            Event::Reset { stream, reason, by_peer } => Seen::Reset(stream, reason.0, by_peer),
            Event::Pinged => Seen::Pinged,
            Event::Pong(number) => Seen::Pong(number),
            Event::Settings => Seen::Settings,
            Event::GoAway { last, reason, debug } => Seen::GoAway(last, reason.0, debug.to_vec()),
        }
    }

    pub fn stream(&self) -> Option<Key> {
        match self {
            Seen::Head(key, ..)
            | Seen::Informational(key, _)
            | Seen::Data(key, ..)
            | Seen::Trailers(key, _)
            | Seen::Reset(key, ..) => Some(*key),
            _ => None,
        }
    }
}

impl End {
    pub fn new(role: Role, options: &Options) -> End {
        let start = Instant::now();
        let connection = Connection::new(role, &Arc::new(options.clone()), start);
        End { connection, input: Input::default(), start, releases: true }
    }

    /// Creates a server that has processed a client's first bytes; its output so far is discarded.
    pub fn greeted(options: &Options) -> End {
        let mut server = End::new(Role::Server, options);
        assert_eq!(server.take(&greeting()), Ok(vec![Seen::Settings]));
        server.sent();
        server
    }

    /// Begins a turn at `ms` milliseconds after the start.
    pub fn turn(&mut self, ms: u64) {
        self.connection.begin_turn(self.start + Duration::from_millis(ms));
    }

    /// Passes bytes to the connection, in portions of limited size.
    pub fn take_by(
        &mut self,
        bytes: &[u8],
        mut most: impl FnMut() -> usize,
        seen: &mut Vec<Seen>,
    ) -> Result<(), ConnectionError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = self.input.space();
            let n = most().min(rest.len()).min(space.len());
            assert!(!space.is_empty(), "what is left of the input fills it");
            space[..n].copy_from_slice(&rest[..n]);
            self.input.filled(n);
            rest = &rest[n..];
            let mut at = 0;
            let result = loop {
                match self.connection.next(self.input.unread(), &mut at) {
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                    Ok(Some(event)) => {
                        if let Event::Data { stream, bytes, .. } = &event
                            && self.releases
                        {
                            self.connection.release(*stream, bytes.len());
                        }
                        seen.push(Seen::of(event));
                    }
                }
            };
            self.input.consume(at);
            result?;
        }
        Ok(())
    }

    pub fn take(&mut self, bytes: &[u8]) -> Result<Vec<Seen>, ConnectionError> {
        let mut seen = Vec::new();
        self.take_by(bytes, || usize::MAX, &mut seen)?;
        Ok(seen)
    }

    /// Returns all bytes that can be sent now.
    pub fn sent(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            self.connection.gather();
            let output = self.connection.output();
            if output.is_empty() {
                return all;
            }
            let mut slices = [IoSlice::new(&[]); 7];
            let count = output.slices(&mut slices);
            let part: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            output.advance(part.len());
            all.extend(part);
        }
    }

    pub fn sent_frames(&mut self) -> Vec<Frame> {
        frames(&self.sent())
    }
}

/// Carries bytes between two ends until neither has any; returns the events of each.
pub fn exchange(one: &mut End, other: &mut End) -> (Vec<Seen>, Vec<Seen>) {
    let (mut of_one, mut of_other) = (Vec::new(), Vec::new());
    loop {
        let (from_one, from_other) = (one.sent(), other.sent());
        if from_one.is_empty() && from_other.is_empty() {
            return (of_one, of_other);
        }
        of_other.extend(other.take(&from_one).unwrap());
        of_one.extend(one.take(&from_other).unwrap());
    }
}

/// Creates a client and a server that have exchanged their first bytes.
pub fn pair(client: &Options, server: &Options) -> (End, End) {
    let (mut client, mut server) = (End::new(Role::Client, client), End::new(Role::Server, server));
    exchange(&mut client, &mut server);
    (client, server)
}

/// Opens a call at the client, and returns its keys at both ends.
pub fn call(client: &mut End, server: &mut End, end: bool) -> (Key, Key) {
    let at_client = client.connection.open(&REQUEST, &[], end).unwrap();
    let (_, seen) = exchange(client, server);
    let begun = seen.iter().find_map(|seen| match seen {
        Seen::Head(key, ..) if key.id() == at_client.id() => Some(*key),
        _ => None,
    });
    (at_client, begun.unwrap())
}
