//! Runs a gRPC server that does no work: it answers every request with the same bytes. A measurement of this
//! server shows the cost of the client and the network alone, which is the baseline for other servers. To
//! test the client, the server can also be made to misbehave.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::Rpc;
use bytes::Bytes;
use http2::{Event, Key, Payload, Reason, Role, SendError, Template};

use crate::loadgen::poller::Poller;
use crate::loadgen::socket::Socket;
use crate::loadgen::wire::{Fields, Message};

/// Options of the responder: its responses, its flow-control windows, and how it misbehaves.
#[derive(Clone)]
pub struct Options {
    /// Size in bytes of the value that the response to a read contains.
    pub value_bytes: usize,
    /// TLS settings; `None` to serve without TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Value of the HTTP/2 setting `SETTINGS_INITIAL_WINDOW_SIZE`.
    pub stream_window: u32,
    /// Flow-control window of a connection in bytes; at least 65,535.
    pub connection_window: u32,
    /// Value of the HTTP/2 setting `SETTINGS_MAX_CONCURRENT_STREAMS`; 0 for no limit.
    pub streams_max: u32,
    /// Value of the HTTP/2 setting `SETTINGS_HEADER_TABLE_SIZE`.
    pub table_bytes: u32,
    /// If set, the responder pauses once: after this number of requests, for this time.
    pub stall: Option<(u64, Duration)>,
    /// If set to n, every n-th stream is reset instead of answered.
    pub reset_every: Option<u64>,
    /// If set, the responder sends GOAWAY on a connection after this number of requests. Then it answers the
    /// requests that it has accepted, and closes the connection.
    pub goaway_after: Option<u64>,
    /// If set, every n-th request is refused, with this status code and message: n, code and message.
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

/// A responder that listens on an address.
pub struct Responder {
    listener: TcpListener,
    poller: Poller,
    options: Options,
    protocol: Arc<http2::Options>,
    answers: Answers,
    connections: HashMap<u64, Connection>,
    next: u64,
    requests: u64,
}

const LISTENER: u64 = 0;
/// Maximum size in bytes of an incomplete message on a stream with several messages. If it is larger, the
/// connection is closed.
const PARTIAL_BYTES_MAX: usize = 4 << 20;
/// Maximum number of concurrent streams of a connection, unless the options set a limit.
const STREAMS_MAX: u32 = 1 << 20;
/// Number of unsent output bytes of a connection above which no more responses are added to the output.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

impl Responder {
    /// Listens on `HOST:PORT`. With port 0, the operating system chooses a free port.
    pub fn bind(address: &str, options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER)?;
        let answers = Answers::new(options.value_bytes).map_err(io::Error::other)?;
        let protocol = Arc::new(http2::Options {
            stream_window_bytes: options.stream_window,
            stream_window_bytes_max: 0,
            connection_window_bytes: options.connection_window,
            streams_max: if options.streams_max > 0 { options.streams_max } else { STREAMS_MAX },
            header_table_bytes: options.table_bytes,
            output_bytes_max: OUTPUT_BYTES_MAX,
            ..http2::Options::default()
        });
        let connections = HashMap::new();
        Ok(Self { listener, poller, options, protocol, answers, connections, next: 1, requests: 0 })
    }

    /// Returns the address that the responder listens on.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers requests until `stop` is set. Checks `stop` at least ten times per second.
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
                let mut call =
                    Context { answers: &self.answers, options: &self.options, requests: &mut self.requests };
                if connection.serve(&mut buffer, &mut call).is_err() {
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
                    self.connections.insert(token, Connection::new(socket, &self.protocol));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

struct Answers {
    head: Template,
    trailers: Template,
    refusal: Template,
    header_only: Bytes,
    range: Bytes,
    range_stream: Bytes,
    txn: Bytes,
    grant: Bytes,
    keep_alive: Bytes,
    authenticate: Bytes,
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
    fn new(value_bytes: usize) -> Result<Self, http2::InvalidField> {
        let make = |write: &dyn Fn(&mut Message)| {
            let mut out = Vec::new();
            write(&mut Message(&mut out));
            Bytes::from(out)
        };
        let range = make(&|message| {
            header(message);
            message
                .message(2, |kv| {
                    kv.bytes(1, b"key").uint(2, 1).uint(3, 1).uint(4, 1).bytes(5, &vec![b'v'; value_bytes]);
                })
                .uint(4, 1);
        });
        let grpc = [(":status", "200"), ("content-type", "application/grpc")];
        Ok(Self {
            head: Template::new(grpc)?,
            refusal: Template::new(grpc)?,
            trailers: Template::new([("grpc-status", "0")])?,
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
        })
    }
}

/// A call whose response has not been sent completely.
struct Call {
    key: Key,
    kind: Kind,
    /// On a stream with several messages: the bytes received so far of an incomplete message.
    partial: Vec<u8>,
    watches: u64,
}

struct Connection {
    socket: Socket,
    http2: http2::Connection,
    /// Received bytes that were not processed yet: an incomplete frame, or frames that must wait until the
    /// client accepts output.
    input: Vec<u8>,
    held_up: bool,
    /// Calls in flight, by [`Key::slot`].
    calls: Vec<Option<Call>>,
    requests: u64,
}

/// State that all connections of the responder share.
struct Context<'a> {
    answers: &'a Answers,
    options: &'a Options,
    /// Number of requests so far, over all connections.
    requests: &'a mut u64,
}

/// The connection has ended, for whatever reason.
struct Gone;

impl From<io::Error> for Gone {
    fn from(_: io::Error) -> Self {
        Gone
    }
}

impl Connection {
    fn new(socket: Socket, protocol: &Arc<http2::Options>) -> Self {
        Self {
            socket,
            http2: http2::Connection::new(Role::Server, protocol, Instant::now()),
            input: Vec::new(),
            held_up: false,
            calls: Vec::new(),
            requests: 0,
        }
    }

    /// Reads requests, answers them and sends the responses, until the socket would block.
    fn serve(&mut self, buffer: &mut [u8], context: &mut Context<'_>) -> Result<(), Gone> {
        self.http2.begin_turn(Instant::now());
        loop {
            let is_sent = self.flush()?;
            if self.http2.has_said_last_stream() && self.http2.open_streams() == 0 && is_sent {
                return Err(Gone);
            }
            if self.http2.is_blocked() {
                self.held_up = true;
                return Ok(());
            }
            // If processing had stopped with input left over, process that input first, before newly read
            // bytes.
            if std::mem::take(&mut self.held_up) {
                self.take(&[], context)?;
                continue;
            }
            match self.socket.read(buffer) {
                Ok(0) => return Err(Gone),
                Ok(count) => self.take(&buffer[..count], context)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Gone),
            }
        }
    }

    /// Answers the requests in the received bytes. Input that is left over from earlier calls comes first.
    fn take(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Result<(), Gone> {
        let mut joined = std::mem::take(&mut self.input);
        let input = if joined.is_empty() {
            bytes
        } else {
            joined.extend_from_slice(bytes);
            &joined[..]
        };
        let mut at = 0;
        while let Some(event) = self.http2.next(input, &mut at).map_err(|_| Gone)? {
            self.handle(event, context)?;
        }
        self.held_up = self.http2.is_blocked();
        if joined.is_empty() {
            joined.extend_from_slice(&bytes[at..]);
        } else {
            joined.drain(..at);
        }
        self.input = joined;
        Ok(())
    }

    fn handle(&mut self, event: Event<'_>, context: &mut Context<'_>) -> Result<(), Gone> {
        match event {
            Event::Head { stream, fields, end } => {
                if self.calls.len() <= stream.slot() {
                    self.calls.resize_with(stream.slot() + 1, || None);
                }
                let kind = Kind::of(fields.path());
                self.calls[stream.slot()] = Some(Call { key: stream, kind, partial: Vec::new(), watches: 0 });
                if end {
                    self.finish(stream, context);
                }
            }
            Event::Data { stream, bytes, end } => {
                self.http2.release(stream, bytes.len());
                let Some(call) = self.call_of(stream) else { return Ok(()) };
                if matches!(call.kind, Kind::Watch | Kind::KeepAlive) {
                    call.partial.extend_from_slice(bytes);
                    self.messages(stream, context.answers)?;
                }
                if end {
                    self.finish(stream, context);
                }
            }
            Event::Trailers { stream, .. } => self.finish(stream, context),
            Event::Reset { stream, .. } => drop(self.forget(stream)),
            Event::Informational { .. }
            | Event::Pinged
            | Event::Pong(_)
            | Event::Settings
            | Event::GoAway { .. } => {}
        }
        Ok(())
    }

    fn call_of(&mut self, key: Key) -> Option<&mut Call> {
        self.calls.get_mut(key.slot())?.as_mut().filter(|call| call.key == key)
    }

    fn forget(&mut self, key: Key) -> Option<Call> {
        self.calls.get_mut(key.slot())?.take_if(|call| call.key == key)
    }

    /// Answers each complete message that a stream has received.
    fn messages(&mut self, key: Key, answers: &Answers) -> Result<(), Gone> {
        let Some(call) = self.call_of(key) else { return Ok(()) };
        let mut out = Vec::new();
        let mut rest = &call.partial[..];
        while let Some((prefix, behind)) = rest.split_first_chunk::<5>() {
            let [_, a, b, c, d] = *prefix;
            let Some((message, after)) = behind.split_at_checked(u32::from_be_bytes([a, b, c, d]) as usize)
            else {
                break;
            };
            if call.kind == Kind::KeepAlive {
                out.push(answers.keep_alive.clone());
            } else if Fields(message).any(|(field, _)| field == 1) {
                let mut created = Vec::new();
                let mut answer = Message(&mut created);
                header(&mut answer);
                answer.uint(2, call.watches).flag(3, true);
                call.watches += 1;
                out.push(created.into());
            }
            rest = after;
        }
        let taken = call.partial.len() - rest.len();
        call.partial.drain(..taken);
        if call.partial.len() > PARTIAL_BYTES_MAX {
            return Err(Gone);
        }
        for answer in out {
            // Ignore an error: sending fails only if the stream has ended, and then no response is needed.
            let _ = self.answer(key, answers, answer);
        }
        Ok(())
    }

    /// Sends a response message, after the response headers if they were not sent yet.
    fn answer(&mut self, key: Key, answers: &Answers, message: Bytes) -> Result<(), SendError> {
        if !self.http2.has_begun(key) {
            self.http2.send_head(key, &answers.head, &[], false)?;
        }
        self.http2.send_data(key, Payload::message(message, false), false)
    }

    /// Counts a request that was received completely, and answers it or misbehaves as the options say.
    fn finish(&mut self, key: Key, context: &mut Context<'_>) {
        let Some(call) = self.forget(key) else { return };
        *context.requests += 1;
        self.requests += 1;
        let (requests, options) = (*context.requests, context.options);
        if let Some((after, length)) = options.stall
            && requests == after
        {
            std::thread::sleep(length);
        }
        if options.reset_every.is_some_and(|every| requests.is_multiple_of(every)) {
            self.http2.reset(key, Reason::CANCEL);
            return;
        }
        // Ignore an error: sending fails only if the stream has ended, and then no response is needed.
        let _ = self.conclude(&call, requests, context);
        if options.goaway_after.is_some_and(|after| self.requests >= after) {
            self.http2.shut_down();
        }
    }

    /// Sends the response with its trailers. If the stream has already sent messages, sends only what is
    /// missing.
    fn conclude(&mut self, call: &Call, requests: u64, context: &Context<'_>) -> Result<(), SendError> {
        let (key, answers) = (call.key, context.answers);
        let refused = context.options.refuse_every.as_ref();
        let refusal = match refused.filter(|(every, ..)| requests.is_multiple_of(*every)) {
            Some((_, code, text)) => Some((*code, text.as_str())),
            None => (call.kind == Kind::Unknown).then_some((12, "unknown method")),
        };
        if let Some((code, text)) = refusal {
            let code = code.to_string();
            let fields: [(&[u8], &[u8]); 2] =
                [(b"grpc-status", code.as_bytes()), (b"grpc-message", text.as_bytes())];
            return self.http2.send_head(key, &answers.refusal, &fields, true);
        }
        let answer = match call.kind {
            Kind::HeaderOnly | Kind::Unknown => Some(&answers.header_only),
            Kind::Range => Some(&answers.range),
            Kind::RangeStream => Some(&answers.range_stream),
            Kind::Txn => Some(&answers.txn),
            Kind::Grant => Some(&answers.grant),
            Kind::Authenticate => Some(&answers.authenticate),
            Kind::KeepAlive | Kind::Watch => None,
        };
        if let Some(answer) = answer {
            self.answer(key, answers, answer.clone())?;
        } else if !self.http2.has_begun(key) {
            self.http2.send_head(key, &answers.head, &[], false)?;
        }
        self.http2.send_trailers(key, &answers.trailers, &[])
    }

    /// Sends as much output as the socket accepts. Returns true if nothing is left.
    fn flush(&mut self) -> Result<bool, Gone> {
        loop {
            self.http2.gather();
            let output = self.http2.output();
            let is_last = output.is_empty();
            match self.socket.send(output) {
                Ok(()) if is_last => return Ok(true),
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(_) => return Err(Gone),
            }
        }
    }
}
