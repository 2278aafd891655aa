//! Calls of gRPC over one HTTP/2 connection as a client sees it: bytes in, events out, and bytes to send. It does no IO.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use api::Rpc;
use http2::{ConnectionError, Fields, InvalidField, Key, OpenError, Output, Reason, Role, Template};

use crate::status::Status;

/// An event of a connection.
#[derive(Debug)]
pub enum Event<'a> {
    /// A whole message of a call's answer; empty if the call wanted none.
    Message {
        /// Tag as given with the call.
        tag: u64,
        /// The message, without gRPC's prefix.
        body: Cow<'a, [u8]>,
    },
    /// A call is over.
    Ended {
        /// Tag as given with the call.
        tag: u64,
        /// Result of the call.
        status: Status,
    },
}

/// A violation of the protocol by the server; the connection cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

impl From<ConnectionError> for Violation {
    fn from(error: ConnectionError) -> Violation {
        Violation(error.text())
    }
}

/// The settings that a connection sends to the server, and the flow-control windows it grants.
#[derive(Clone, Debug)]
pub struct Options {
    /// `:authority`
    pub authority: String,
    /// True if `:scheme` is https.
    pub tls: bool,
    /// A token of `Authenticate`, sent with each call.
    pub token: Option<String>,
    /// Bytes that the server may send on a stream before the window is extended.
    pub stream_window: u32,
    /// Bytes that the server may send on the connection before the window is extended.
    pub connection_window: u32,
}

impl Options {
    /// Generous windows, no token.
    pub fn new(authority: impl Into<String>) -> Self {
        Self {
            authority: authority.into(),
            tls: false,
            token: None,
            stream_window: 8 << 20,
            connection_window: 256 << 20,
        }
    }

    /// Checks that requests can be sent with the authority and the token.
    ///
    /// # Errors
    ///
    /// For the first of them that no header can carry.
    pub fn check(&self) -> Result<(), InvalidField> {
        template(Rpc::KvRange, self).map(drop)
    }
}

/// Output beyond which bodies wait: far more than a socket takes at once.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// The largest message that is kept. Those that are only counted may be of any size.
const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// Bytes of gRPC's prefix of a message.
const PREFIX_BYTES: usize = 5;

/// A call under way.
struct Call {
    key: Key,
    tag: u64,
    keep: bool,
    /// Prefix of the message that is being received, as far as it has arrived.
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    missing: usize,
    body: Vec<u8>,
    /// True if nothing more is sent.
    complete: bool,
}

struct Waiting {
    method: Rpc,
    tag: u64,
    keep: bool,
    complete: bool,
    message: Vec<u8>,
}

/// What is left of the body that [`Connection::next`] hands over message by message.
#[derive(Clone, Copy)]
struct Data {
    key: Key,
    /// Where it begins in the input, and its bytes.
    at: usize,
    left: usize,
    /// Nothing follows.
    is_last: bool,
}

/// A client's end. Calls are given with [`Connection::call`]; what arrives is fed to [`Connection::next`]; what is to be
/// sent gathers in [`Connection::output`].
pub struct Connection {
    options: Options,
    http2: http2::Connection,
    /// Heads of requests, by method.
    heads: [Option<Template>; Rpc::ALL.len()],
    /// By [`Key::slot`].
    calls: Vec<Option<Call>>,
    under_way: usize,
    /// Calls that more may be sent on later, by tag.
    open: HashMap<u64, Key>,
    waiting: VecDeque<Waiting>,
    data: Option<Data>,
    going_away: bool,
}

impl Connection {
    /// A connection whose first bytes (preface, settings) are in the output.
    pub fn new(options: Options, now: Instant) -> Self {
        let settings = http2::Options {
            stream_window_bytes: options.stream_window,
            // The windows are the load's.
            stream_window_bytes_max: 0,
            connection_window_bytes: options.connection_window,
            output_bytes_max: OUTPUT_BYTES_MAX,
            ..http2::Options::default()
        };
        Self {
            options,
            http2: http2::Connection::new(Role::Client, &Arc::new(settings), now),
            heads: [const { None }; Rpc::ALL.len()],
            calls: Vec::new(),
            under_way: 0,
            open: HashMap::new(),
            waiting: VecDeque::new(),
            data: None,
            going_away: false,
        }
    }

    /// Begins a turn, in which what arrived is taken.
    pub fn begin_turn(&mut self, now: Instant) {
        self.http2.begin_turn(now);
    }

    /// Bytes to send next; the sender takes them from the front.
    pub fn output(&mut self) -> &mut Output {
        self.http2.gather();
        self.http2.output()
    }

    /// Returns true if nothing is taken until the server takes some of the output, see [`http2::Connection::is_blocked`].
    pub fn is_blocked(&self) -> bool {
        self.http2.is_blocked()
    }

    /// Returns the number of calls that are in flight or wait.
    pub fn calls(&self) -> usize {
        self.under_way + self.waiting.len()
    }

    /// The server takes no more calls here, and the last one is answered.
    pub fn spent(&self) -> bool {
        self.going_away && self.under_way == 0
    }

    /// Starts a call with its first message. `complete` says that no other message follows. Without `keep` the answers'
    /// messages are counted but empty. Waits its turn where the server limits the streams of a connection.
    pub fn call(&mut self, method: Rpc, message: &[u8], tag: u64, keep: bool, complete: bool) {
        if self.hands_over_the_last() {
            self.waiting.push_back(Waiting { method, tag, keep, complete, message: message.to_vec() });
            return;
        }
        let head = self.heads[method as usize].get_or_insert_with(|| head(method, &self.options));
        let key = match self.http2.open(head, &[], false) {
            Ok(key) => key,
            Err(error) => {
                // Stream numbers last for a billion calls; then the connection is renewed as if the server had asked for it.
                self.going_away |= error == OpenError::Leaving;
                self.waiting.push_back(Waiting { method, tag, keep, complete, message: message.to_vec() });
                return;
            }
        };
        self.put_message(key, message, complete);
        if self.calls.len() <= key.slot() {
            self.calls.resize_with(key.slot() + 1, || None);
        }
        let (prefix, body) = ([0; PREFIX_BYTES], Vec::new());
        self.calls[key.slot()] =
            Some(Call { key, tag, keep, prefix, prefix_bytes: 0, missing: 0, body, complete });
        self.under_way += 1;
        if !complete {
            self.open.insert(tag, key);
        }
    }

    fn put_message(&mut self, key: Key, message: &[u8], complete: bool) {
        // The stream is open, as far as this end knows; its end is told as an event.
        let write = |out: &mut Vec<u8>| out.extend_from_slice(message);
        let _ = self.http2.send_message(key, message.len(), complete, write);
    }

    /// Sends a further message of a call that is not complete; says whether there is such a call.
    pub fn send(&mut self, tag: u64, message: &[u8]) -> bool {
        let Some(key) = self.open.get(&tag).copied() else { return false };
        self.put_message(key, message, false);
        true
    }

    /// Ends a call without waiting for its end; nothing more is heard of it.
    pub fn cancel(&mut self, tag: u64) {
        if let Some(key) = self.open.get(&tag).copied() {
            self.forget(key);
        }
    }

    /// The connection is lost: all calls under way are over; those that wait are handed back to be started on a new one.
    pub fn lose(self, why: &str) -> (Vec<(u64, Status)>, impl FnOnce(&mut Connection)) {
        let calls = self.calls.into_iter().flatten();
        let over = calls.map(|call| (call.tag, Status::unavailable(why))).collect();
        let waiting = self.waiting;
        (over, move |fresh: &mut Connection| {
            for call in waiting {
                fresh.call(call.method, &call.message, call.tag, call.keep, call.complete);
            }
        })
    }

    /// Returns true while a body is handed over whose stream is over: the place of its call is not free yet.
    fn hands_over_the_last(&self) -> bool {
        self.data.is_some_and(|data| data.is_last)
    }

    fn start_waiting(&mut self) {
        while !self.hands_over_the_last()
            && self.http2.may_open()
            && let Some(call) = self.waiting.pop_front()
        {
            self.call(call.method, &call.message, call.tag, call.keep, call.complete);
        }
    }

    fn call_of(&mut self, key: Key) -> Option<&mut Call> {
        self.calls.get_mut(key.slot())?.as_mut().filter(|call| call.key == key)
    }

    /// Takes the next event out of what arrived; `at` is how far it was read. Nothing means that the rest, if any, has to
    /// be given again in front of what arrives next.
    ///
    /// # Errors
    ///
    /// What the server did wrong.
    pub fn next<'a>(&mut self, input: &'a [u8], at: &mut usize) -> Result<Option<Event<'a>>, Violation> {
        loop {
            if let Some(event) = self.data_event(input)? {
                return Ok(Some(event));
            }
            let Some(event) = self.http2.next(input, at)? else { return Ok(None) };
            let ended = match event {
                http2::Event::Head { stream, fields, end } => self.head(stream, &fields, end),
                http2::Event::Data { stream, bytes, end } => {
                    self.http2.release(stream, bytes.len());
                    let at = bytes.as_ptr() as usize - input.as_ptr() as usize;
                    self.data = Some(Data { key: stream, at, left: bytes.len(), is_last: end });
                    None
                }
                http2::Event::Trailers { stream, fields } => self.end(stream, status_of(&fields)),
                http2::Event::Reset { stream, reason, .. } => {
                    let refused = self.going_away && reason == Reason::REFUSED_STREAM;
                    let status = if refused {
                        Status::unavailable("the server is going away (GOAWAY)")
                    } else {
                        reset_status(reason)
                    };
                    self.end(stream, status)
                }
                http2::Event::GoAway { .. } => {
                    self.going_away = true;
                    None
                }
                http2::Event::Settings => {
                    self.start_waiting();
                    None
                }
                http2::Event::Informational { .. } | http2::Event::Pinged | http2::Event::Pong(_) => None,
            };
            if ended.is_some() {
                return Ok(ended);
            }
        }
    }

    /// The head of an answer came; with trailers only, it is the whole.
    fn head(&mut self, key: Key, fields: &Fields, end: bool) -> Option<Event<'static>> {
        match fields.status() {
            Some(200) if end => self.end(key, status_of(fields)),
            Some(200) => None,
            other => {
                let text = other.map_or_else(String::new, |code| code.to_string());
                let message = format!("unexpected HTTP status code received from server: {text}");
                self.end(key, Status { code: 2, message })
            }
        }
    }

    /// Goes on within a body.
    fn data_event<'a>(&mut self, input: &'a [u8]) -> Result<Option<Event<'a>>, Violation> {
        while let Some(Data { key, at, left, is_last }) = self.data {
            let Some(call) = self.call_of(key) else {
                // It was cancelled here.
                self.data = None;
                self.start_waiting();
                return Ok(None);
            };
            if left == 0 {
                self.data = None;
                if is_last {
                    // A server ends with trailers; without them nobody knows how the call went.
                    let message = "the stream ended without a status".to_owned();
                    return Ok(self.end(key, Status { code: 13, message }));
                }
                return Ok(None);
            }
            let payload = &input[at..at + left];
            let (taken, message) = call.take(payload)?;
            let event = message.map(|body| Event::Message { tag: call.tag, body });
            self.data = Some(Data { key, at: at + taken, left: left - taken, is_last });
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    fn end(&mut self, key: Key, status: Status) -> Option<Event<'static>> {
        let tag = self.forget(key)?;
        Some(Event::Ended { tag, status })
    }

    /// Forgets a call, and ends its stream if that is not over; returns its tag.
    fn forget(&mut self, key: Key) -> Option<u64> {
        let call = self.calls.get_mut(key.slot())?.take_if(|call| call.key == key)?;
        self.under_way -= 1;
        if !call.complete {
            self.open.remove(&call.tag);
        }
        self.http2.reset(key, Reason::CANCEL);
        if !self.waiting.is_empty() {
            self.start_waiting();
        }
        Some(call.tag)
    }
}

/// How many bytes of a body were taken, and the message that is whole with them.
type Taken<'a> = (usize, Option<Cow<'a, [u8]>>);

impl Call {
    /// Takes some of the answer's body: how much, and the message that is whole with it.
    fn take<'a>(&mut self, payload: &'a [u8]) -> Result<Taken<'a>, Violation> {
        if self.prefix_bytes < PREFIX_BYTES {
            let size = (PREFIX_BYTES - self.prefix_bytes).min(payload.len());
            self.prefix[self.prefix_bytes..self.prefix_bytes + size].copy_from_slice(&payload[..size]);
            self.prefix_bytes += size;
            if self.prefix_bytes < PREFIX_BYTES {
                return Ok((size, None));
            }
            if self.prefix[0] != 0 {
                return Err(Violation("a message is compressed, which nobody asked for"));
            }
            let [_, a, b, c, d] = self.prefix;
            self.missing = u32::from_be_bytes([a, b, c, d]) as usize;
            if self.keep && self.missing > MESSAGE_BYTES_MAX {
                return Err(Violation("a message is larger than anybody can want"));
            }
            if self.missing > 0 {
                return Ok((size, None));
            }
            self.prefix_bytes = 0;
            return Ok((size, Some(Cow::Borrowed(&[]))));
        }
        let size = self.missing.min(payload.len());
        let is_whole = self.missing == size;
        self.missing -= size;
        if self.keep && !(is_whole && self.body.is_empty()) {
            self.body.extend_from_slice(&payload[..size]);
        }
        if !is_whole {
            return Ok((size, None));
        }
        self.prefix_bytes = 0;
        let body = if !self.keep {
            Cow::Borrowed(&[][..])
        } else if self.body.is_empty() {
            Cow::Borrowed(&payload[..size])
        } else {
            Cow::Owned(std::mem::take(&mut self.body))
        };
        Ok((size, Some(body)))
    }
}

/// The head of requests of a method.
///
/// # Panics
///
/// If [`Options::check`] fails, which is asked before there is a connection.
fn head(method: Rpc, options: &Options) -> Template {
    template(method, options).unwrap_or_else(|field| panic!("{field}"))
}

fn template(method: Rpc, options: &Options) -> Result<Template, InvalidField> {
    let mut fields: Vec<(&str, &str)> = vec![
        (":method", "POST"),
        (":scheme", if options.tls { "https" } else { "http" }),
        (":path", method.path()),
        (":authority", &options.authority),
        ("content-type", "application/grpc"),
        ("user-agent", concat!("mainstay-bench/", env!("CARGO_PKG_VERSION"))),
        ("te", "trailers"),
    ];
    if let Some(token) = &options.token {
        fields.push(("token", token));
    }
    Template::new(fields)
}

/// The status that the end of an answer tells.
fn status_of(fields: &Fields) -> Status {
    let code = fields.get(b"grpc-status").and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    match code {
        Some(code) => Status { code, message: fields.get(b"grpc-message").map(unescape).unwrap_or_default() },
        None => Status { code: 2, message: "the server sent no status".to_owned() },
    }
}

/// The status of a call whose stream the server reset, in grpc-go's words; REFUSED_STREAM is "not begun".
fn reset_status(Reason(code): Reason) -> Status {
    match code {
        7 => Status::unavailable("the server refused the stream (REFUSED_STREAM)"),
        8 => Status { code: 1, message: "stream terminated by RST_STREAM with error code: CANCEL".into() },
        _ => Status { code: 13, message: format!("stream terminated by RST_STREAM with error code: {code}") },
    }
}

/// Undoes the percent encoding of `grpc-message`.
fn unescape(value: &[u8]) -> String {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((byte, after)) = rest.split_first() {
        let escaped = after
            .get(..2)
            .filter(|_| *byte == b'%')
            .and_then(|two| std::str::from_utf8(two).ok())
            .and_then(|two| u8::from_str_radix(two, 16).ok());
        match escaped {
            Some(value) => {
                out.push(value);
                rest = &after[2..];
            }
            None => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests;
