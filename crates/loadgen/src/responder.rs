//! A gRPC server that does nothing: it answers every request with the same bytes. What is measured against it is the
//! client and the network, so it is the bare baseline that other servers are compared with; and it can misbehave on
//! purpose, for tests of the client.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::Rpc;

use crate::frame::{self, Head, flag, kind, setting};
use crate::hpack::{Decoder, Encoder, Name};
use crate::poller::Poller;
use crate::socket::Socket;
use crate::wire::{Fields, Message};

/// The responder's answers and windows.
#[derive(Clone)]
pub struct Options {
    /// Bytes of the value of a key that is read.
    pub value_bytes: usize,
    /// TLS, if any.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// `SETTINGS_INITIAL_WINDOW_SIZE`
    pub stream_window: u32,
    /// Window of a connection in bytes; at least 65,535.
    pub connection_window: u32,
    /// `SETTINGS_MAX_CONCURRENT_STREAMS`, 0 for no limit.
    pub streams_max: u32,
    /// `SETTINGS_HEADER_TABLE_SIZE`
    pub table_bytes: u32,
    /// Number of requests after which it stalls once, and for how long.
    pub stall: Option<(u64, Duration)>,
    /// Resets each nth stream instead of answering.
    pub reset_every: Option<u64>,
    /// Number of requests on a connection after which it sends GOAWAY, answers those that it took, and closes it.
    pub goaway_after: Option<u64>,
    /// Refuses each nth request with this code and text.
    pub refuse_every: Option<(u64, u32, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            value_bytes: 1024,
            tls: None,
            stream_window: 16 << 20,
            connection_window: 256 << 20,
            streams_max: 0,
            table_bytes: 4096,
            stall: None,
            reset_every: None,
            goaway_after: None,
            refuse_every: None,
        }
    }
}

/// A listening responder.
pub struct Responder {
    listener: TcpListener,
    poller: Poller,
    options: Options,
    answers: Answers,
    connections: HashMap<u64, Connection>,
    next: u64,
    requests: u64,
}

const LISTENER: u64 = 0;
/// Of a message that is not whole yet, on a stream that takes several.
const PARTIAL_BYTES_MAX: usize = 4 << 20;
/// Of one connection.
const STREAMS_MAX: usize = 1 << 20;

impl Responder {
    /// Listens on `HOST:PORT`; port 0 is any free one.
    pub fn bind(address: &str, options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER)?;
        let answers = Answers::new(options.value_bytes);
        Ok(Self { listener, poller, options, answers, connections: HashMap::new(), next: 1, requests: 0 })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop` is set (looked at ten times a second).
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut ready = Vec::new();
        let mut buffer = vec![0; 256 << 10];
        while !stop.load(Ordering::Relaxed) {
            self.poller.wait(Some(Duration::from_millis(100)), &mut ready)?;
            for one in &ready {
                if one.token == LISTENER {
                    self.accept()?;
                    continue;
                }
                let Some(connection) = self.connections.get_mut(&one.token) else { continue };
                let gone = one.readable
                    && connection
                        .read(&mut buffer, &self.answers, &self.options, &mut self.requests)
                        .is_err();
                if gone || connection.flush().is_err() {
                    self.connections.remove(&one.token);
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let socket = Socket::accepted(stream, self.options.tls.as_ref())?;
                    let token = self.next;
                    self.next += 1;
                    self.poller.add(&socket, token)?;
                    self.connections.insert(token, Connection::new(socket, &self.options));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

struct Answers {
    header_only: Vec<u8>,
    range: Vec<u8>,
    range_stream: Vec<u8>,
    txn: Vec<u8>,
    grant: Vec<u8>,
    keep_alive: Vec<u8>,
    authenticate: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    HeaderOnly,
    Range,
    RangeStream,
    Txn,
    Grant,
    Authenticate,
    KeepAlive,
    Watch,
    Unknown,
}

impl Kind {
    fn of(path: &[u8]) -> Self {
        let is = |rpc: Rpc| path == rpc.path().as_bytes();
        if is(Rpc::KvRange) {
            Kind::Range
        } else if is(Rpc::KvRangeStream) {
            Kind::RangeStream
        } else if is(Rpc::KvTxn) {
            Kind::Txn
        } else if is(Rpc::LeaseGrant) {
            Kind::Grant
        } else if is(Rpc::LeaseKeepAlive) {
            Kind::KeepAlive
        } else if is(Rpc::Watch) {
            Kind::Watch
        } else if is(Rpc::Authenticate) {
            Kind::Authenticate
        } else if path.starts_with(b"/etcdserverpb.") {
            Kind::HeaderOnly
        } else {
            Kind::Unknown
        }
    }
}

fn header(message: &mut Message) {
    message.message(1, |header| {
        header.uint(1, 1).uint(2, 1).uint(3, 1).uint(4, 1);
    });
}

impl Answers {
    fn new(value_bytes: usize) -> Self {
        let make = |write: &dyn Fn(&mut Message)| {
            let mut out = Vec::new();
            write(&mut Message(&mut out));
            out
        };
        let range = make(&|message| {
            header(message);
            message
                .message(2, |kv| {
                    kv.bytes(1, b"key").uint(2, 1).uint(3, 1).uint(4, 1).bytes(5, &vec![b'v'; value_bytes]);
                })
                .uint(4, 1);
        });
        Self {
            header_only: make(&header),
            range_stream: make(&|message| {
                message.bytes(1, &range);
            }),
            range,
            txn: make(&|message| {
                header(message);
                message.flag(2, true);
            }),
            grant: make(&|message| {
                header(message);
                message.uint(2, 1).uint(3, 100);
            }),
            keep_alive: make(&|message| {
                header(message);
                message.uint(2, 1).uint(3, 100);
            }),
            authenticate: make(&|message| {
                header(message);
                message.bytes(2, b"token.1");
            }),
        }
    }
}

struct Stream {
    kind: Kind,
    /// A prefix and a message, as far as they came.
    partial: Vec<u8>,
    watches: u64,
    window: i64,
    unsent: Vec<u8>,
    /// Trailers follow `unsent`.
    ended: bool,
}

struct Connection {
    socket: Socket,
    output: Vec<u8>,
    input: Vec<u8>,
    greeted: bool,
    decoder: Decoder,
    encoder: Encoder,
    head_block: Vec<u8>,
    tail_block: Vec<u8>,
    window: i64,
    stream_window: i64,
    streams: HashMap<u32, Stream>,
    unacknowledged: u32,
    requests: u64,
    last_stream: u32,
    leaving: bool,
}

/// The connection is over.
struct Gone;

impl From<io::Error> for Gone {
    fn from(_: io::Error) -> Self {
        Gone
    }
}

impl Connection {
    fn new(socket: Socket, options: &Options) -> Self {
        let mut output = Vec::new();
        let mut settings = vec![(setting::INITIAL_WINDOW_SIZE, options.stream_window)];
        if options.streams_max > 0 {
            settings.push((setting::MAX_CONCURRENT_STREAMS, options.streams_max));
        }
        if options.table_bytes != 4096 {
            settings.push((setting::HEADER_TABLE_SIZE, options.table_bytes));
        }
        frame::settings(&mut output, &settings);
        let more = options.connection_window.saturating_sub(frame::WINDOW_BYTES as u32);
        if more > 0 {
            frame::window_update(&mut output, 0, more);
        }
        Self {
            socket,
            output,
            input: Vec::new(),
            greeted: false,
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            head_block: Vec::new(),
            tail_block: Vec::new(),
            window: frame::WINDOW_BYTES,
            stream_window: frame::WINDOW_BYTES,
            streams: HashMap::new(),
            unacknowledged: 0,
            requests: 0,
            last_stream: 0,
            leaving: false,
        }
    }

    fn read(
        &mut self,
        buffer: &mut [u8],
        answers: &Answers,
        options: &Options,
        requests: &mut u64,
    ) -> Result<(), Gone> {
        loop {
            let count = match self.socket.read(buffer) {
                Ok(0) => return Err(Gone),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Err(Gone),
            };
            let mut joined = std::mem::take(&mut self.input);
            let input = if joined.is_empty() {
                &buffer[..count]
            } else {
                joined.extend_from_slice(&buffer[..count]);
                &joined[..]
            };
            let mut at = 0;
            if !self.greeted && input.len() >= frame::PREFACE.len() {
                if !input.starts_with(frame::PREFACE) {
                    return Err(Gone);
                }
                at = frame::PREFACE.len();
                self.greeted = true;
            }
            while self.greeted {
                let rest = &input[at..];
                let Some(head) = Head::read(rest) else { break };
                if head.length > frame::PAYLOAD_BYTES_MAX {
                    return Err(Gone);
                }
                let Some(payload) = rest.get(frame::HEAD_BYTES..frame::HEAD_BYTES + head.length) else {
                    break;
                };
                self.frame(head, payload, answers, options, requests)?;
                at += frame::HEAD_BYTES + head.length;
            }
            self.input = input[at..].to_vec();
            self.flush()?;
            if self.leaving && self.streams.is_empty() && self.output.is_empty() {
                return Err(Gone);
            }
        }
    }

    fn frame(
        &mut self,
        head: Head,
        payload: &[u8],
        answers: &Answers,
        options: &Options,
        requests: &mut u64,
    ) -> Result<(), Gone> {
        match head.kind {
            kind::HEADERS => self.headers(head, payload, answers, options, requests)?,
            kind::DATA => self.data(head, payload, answers, options, requests)?,
            kind::RST_STREAM => {
                self.streams.remove(&head.stream);
            }
            kind::SETTINGS if head.flags & flag::ACK == 0 => self.settings(payload),
            kind::PING if head.flags & flag::ACK == 0 => {
                frame::head(&mut self.output, payload.len(), kind::PING, flag::ACK, 0);
                self.output.extend_from_slice(payload);
            }
            kind::WINDOW_UPDATE => self.window_update(head, payload)?,
            _ => {}
        }
        Ok(())
    }

    /// Begins a call.
    fn headers(
        &mut self,
        head: Head,
        payload: &[u8],
        answers: &Answers,
        options: &Options,
        requests: &mut u64,
    ) -> Result<(), Gone> {
        // Our own client never needs CONTINUATION, and nobody else is served.
        if head.flags & flag::END_HEADERS == 0 {
            return Err(Gone);
        }
        let block = frame::unpadded(head, payload).ok_or(Gone)?;
        let mut kind = Kind::Unknown;
        self.decoder
            .decode(block, |name, value| {
                if name == Name::Path {
                    kind = Kind::of(value);
                }
            })
            .map_err(|_| Gone)?;
        if self.leaving {
            return Ok(());
        }
        if self.streams.len() >= STREAMS_MAX {
            return Err(Gone);
        }
        self.last_stream = head.stream;
        self.streams.insert(
            head.stream,
            Stream {
                kind,
                partial: Vec::new(),
                watches: 0,
                window: self.stream_window,
                unsent: Vec::new(),
                ended: false,
            },
        );
        if head.flags & flag::END_STREAM != 0 {
            self.finish(head.stream, answers, options, requests);
        }
        Ok(())
    }

    /// Takes a piece of a request, and grants the client as much again.
    fn data(
        &mut self,
        head: Head,
        payload: &[u8],
        answers: &Answers,
        options: &Options,
        requests: &mut u64,
    ) -> Result<(), Gone> {
        let body = frame::unpadded(head, payload).ok_or(Gone)?;
        self.unacknowledged += head.length as u32;
        if self.unacknowledged > options.connection_window / 2 {
            frame::window_update(&mut self.output, 0, self.unacknowledged);
            self.unacknowledged = 0;
        }
        let last = head.flags & flag::END_STREAM != 0;
        let Some(stream) = self.streams.get_mut(&head.stream) else { return Ok(()) };
        if !last && head.length > 0 {
            frame::window_update(&mut self.output, head.stream, head.length as u32);
        }
        if matches!(stream.kind, Kind::Watch | Kind::KeepAlive) {
            stream.partial.extend_from_slice(body);
            self.messages(head.stream, answers);
            if self.streams.get(&head.stream).is_some_and(|s| s.partial.len() > PARTIAL_BYTES_MAX) {
                return Err(Gone);
            }
        }
        if last {
            self.finish(head.stream, answers, options, requests);
        }
        Ok(())
    }

    /// Takes over the client's settings, and acknowledges them.
    fn settings(&mut self, payload: &[u8]) {
        for (name, value) in frame::read_settings(payload) {
            match name {
                setting::HEADER_TABLE_SIZE => self.encoder.set_limit(value as usize),
                setting::INITIAL_WINDOW_SIZE => {
                    let change = i64::from(value) - self.stream_window;
                    self.stream_window = i64::from(value);
                    self.streams.values_mut().for_each(|stream| stream.window += change);
                }
                _ => {}
            }
        }
        frame::head(&mut self.output, 0, kind::SETTINGS, flag::ACK, 0);
    }

    /// Sends what a larger window now allows, of one stream or of all.
    fn window_update(&mut self, head: Head, payload: &[u8]) -> Result<(), Gone> {
        let more = i64::from(frame::read_u32(payload).ok_or(Gone)?);
        if head.stream == 0 {
            self.window += more;
            let waiting: Vec<u32> =
                self.streams.iter().filter(|(_, s)| !s.unsent.is_empty()).map(|(id, _)| *id).collect();
            for id in waiting {
                self.send(id);
            }
        } else if let Some(stream) = self.streams.get_mut(&head.stream) {
            stream.window += more;
            self.send(head.stream);
        }
        Ok(())
    }

    /// Answers each whole message of a stream.
    fn messages(&mut self, id: u32, answers: &Answers) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let mut out = Vec::new();
        while let Some(length) = stream.partial.get(1..5).and_then(frame::read_u32) {
            let Some(message) = stream.partial.get(5..5 + length as usize) else { break };
            if stream.kind == Kind::KeepAlive {
                put_message(&mut out, &answers.keep_alive);
            } else if Fields(message).any(|(field, _)| field == 1) {
                let mut created = Vec::new();
                let mut answer = Message(&mut created);
                header(&mut answer);
                answer.uint(2, stream.watches).flag(3, true);
                stream.watches += 1;
                put_message(&mut out, &created);
            }
            stream.partial.drain(..5 + length as usize);
        }
        if !out.is_empty() {
            self.begin(id);
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.unsent.extend_from_slice(&out);
            }
            self.send(id);
        }
    }

    /// The client has said all of a request.
    fn finish(&mut self, id: u32, answers: &Answers, options: &Options, requests: &mut u64) {
        *requests += 1;
        self.requests += 1;
        if let Some((after, length)) = options.stall
            && *requests == after
        {
            std::thread::sleep(length);
        }
        if options.reset_every.is_some_and(|every| requests.is_multiple_of(every)) {
            self.streams.remove(&id);
            frame::reset(&mut self.output, id, frame::CANCEL);
            return;
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let refusal = options.refuse_every.as_ref().filter(|(every, ..)| requests.is_multiple_of(*every));
        if refusal.is_some() || stream.kind == Kind::Unknown {
            let (code, text) =
                refusal.map_or((12, "unknown method"), |(_, code, text)| (*code, text.as_str()));
            self.streams.remove(&id);
            let mut block = Vec::new();
            self.encoder.encode(
                [
                    (&b":status"[..], &b"200"[..]),
                    (b"content-type", b"application/grpc"),
                    (b"grpc-status", code.to_string().as_bytes()),
                    (b"grpc-message", text.as_bytes()),
                ],
                &mut block,
            );
            self.forget_blocks();
            frame::head(
                &mut self.output,
                block.len(),
                kind::HEADERS,
                flag::END_HEADERS | flag::END_STREAM,
                id,
            );
            self.output.extend_from_slice(&block);
            return;
        }
        let answer = match stream.kind {
            Kind::HeaderOnly | Kind::Unknown => &answers.header_only,
            Kind::Range => &answers.range,
            Kind::RangeStream => &answers.range_stream,
            Kind::Txn => &answers.txn,
            Kind::Grant => &answers.grant,
            Kind::Authenticate => &answers.authenticate,
            Kind::KeepAlive | Kind::Watch => {
                stream.ended = true;
                self.send(id);
                return;
            }
        };
        put_message(&mut stream.unsent, answer);
        stream.ended = true;
        self.begin(id);
        self.send(id);
        if options.goaway_after.is_some_and(|after| self.requests >= after) && !self.leaving {
            self.leaving = true;
            frame::head(&mut self.output, 8, kind::GOAWAY, 0, 0);
            self.output.extend_from_slice(&self.last_stream.to_be_bytes());
            self.output.extend_from_slice(&0_u32.to_be_bytes());
        }
    }

    fn forget_blocks(&mut self) {
        self.head_block.clear();
        self.tail_block.clear();
    }

    /// Sends the headers of an answer.
    fn begin(&mut self, id: u32) {
        if self.head_block.is_empty() {
            // Twice: whatever the first puts into the table moves what is in it, and the second is the short form.
            for _ in 0..2 {
                let mut head = Vec::new();
                let state = self.encoder.state();
                self.encoder.encode(
                    [(&b":status"[..], &b"200"[..]), (b"content-type", b"application/grpc")],
                    &mut head,
                );
                if self.encoder.state() != state {
                    self.tail_block.clear();
                    frame::head(&mut self.output, head.len(), kind::HEADERS, flag::END_HEADERS, id);
                    self.output.extend_from_slice(&head);
                    return;
                }
                self.head_block = head;
            }
        }
        frame::head(&mut self.output, self.head_block.len(), kind::HEADERS, flag::END_HEADERS, id);
        self.output.extend_from_slice(&self.head_block);
    }

    /// Sends what the windows allow, and the trailers behind it.
    fn send(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let mut sent = 0;
        while sent < stream.unsent.len() {
            let room = self.window.min(stream.window).max(0) as usize;
            let size = (stream.unsent.len() - sent).min(room).min(frame::PAYLOAD_BYTES_MAX);
            if size == 0 {
                break;
            }
            frame::head(&mut self.output, size, kind::DATA, 0, id);
            self.output.extend_from_slice(&stream.unsent[sent..sent + size]);
            sent += size;
            self.window -= size as i64;
            stream.window -= size as i64;
        }
        if sent < stream.unsent.len() {
            stream.unsent.drain(..sent);
            return;
        }
        stream.unsent.clear();
        if !stream.ended {
            return;
        }
        self.streams.remove(&id);
        let mut block = std::mem::take(&mut self.tail_block);
        let state = self.encoder.state();
        if block.is_empty() {
            self.encoder.encode([(&b"grpc-status"[..], &b"0"[..]), (b"grpc-message", b"")], &mut block);
        }
        frame::head(&mut self.output, block.len(), kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, id);
        self.output.extend_from_slice(&block);
        if self.encoder.state() == state {
            self.tail_block = block;
        } else {
            self.forget_blocks();
        }
    }

    fn flush(&mut self) -> Result<(), Gone> {
        let mut sent = 0;
        while sent < self.output.len() {
            match self.socket.write(&self.output[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Gone),
            }
        }
        self.output.drain(..sent);
        match self.socket.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(Gone),
            _ => Ok(()),
        }
    }
}

fn put_message(out: &mut Vec<u8>, message: &[u8]) {
    out.push(0);
    out.extend_from_slice(&(message.len() as u32).to_be_bytes());
    out.extend_from_slice(message);
}
