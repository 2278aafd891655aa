//! Client side of gRPC calls over one HTTP/2 connection, without IO: the caller passes in the received bytes,
//! and gets events and the bytes to send.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use api::Rpc;
use http2::{ConnectionError, Fields, InvalidField, Key, OpenError, Output, Reason, Role, Template};

use crate::loadgen::status::Status;

/// An event that received bytes have caused.
#[derive(Debug)]
pub enum Event<'a> {
    /// A response message is complete. `body` is empty if the call was started without `keep`.
    Message {
        /// Tag that the caller gave to the call.
        tag: u64,
        /// Message without gRPC's length prefix.
        body: Cow<'a, [u8]>,
    },
    /// A call has ended.
    Ended {
        /// Tag that the caller gave to the call.
        tag: u64,
        /// Status of the call.
        status: Status,
    },
}

/// A violation of the protocol by the server, described by the text. The connection must be closed.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

impl From<ConnectionError> for Violation {
    fn from(error: ConnectionError) -> Violation {
        Violation(error.text())
    }
}

/// Options of a connection: header fields of its requests, and the flow-control windows that it grants the
/// server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Value of `:authority`.
    pub authority: String,
    /// True if `:scheme` is https.
    pub tls: bool,
    /// Auth token, as `Authenticate` returns it, which is sent with each call; `None` for no token.
    pub token: Option<String>,
    /// Number of bytes that the server may send on a stream before the client extends the window.
    pub stream_window: u32,
    /// Number of bytes that the server may send on the connection before the client extends the window.
    pub connection_window: u32,
}

impl Options {
    /// Returns options with large windows, and without TLS and token.
    pub fn new(authority: impl Into<String>) -> Self {
        Self {
            authority: authority.into(),
            tls: false,
            token: None,
            stream_window: 8 << 20,
            connection_window: 256 << 20,
        }
    }

    /// Checks that the authority and the token are valid header values.
    ///
    /// # Errors
    ///
    /// Returns the first field that is not a valid header value as an error.
    pub fn check(&self) -> Result<(), InvalidField> {
        template(Rpc::KvRange, self).map(drop)
    }
}

/// Number of unsent output bytes above which no more request bodies are added to the output. It is far more
/// than a socket accepts at a time.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Maximum size in bytes of a message whose contents are kept. A message that is only counted may be larger.
const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// Length in bytes of the prefix that gRPC puts before each message.
const PREFIX_BYTES: usize = 5;

/// A call that has been started and has not ended.
struct Call {
    key: Key,
    tag: u64,
    keep: bool,
    /// The prefix of the current message; its first `prefix_bytes` bytes have been received.
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    missing: usize,
    body: Vec<u8>,
    /// True if the client will send no further message on this call.
    complete: bool,
}

struct Waiting {
    method: Rpc,
    tag: u64,
    keep: bool,
    complete: bool,
    message: Vec<u8>,
}

/// The part of a received DATA frame that [`Connection::next`] has not delivered yet.
#[derive(Clone, Copy)]
struct Data {
    key: Key,
    /// Offset of this part in the input; `left` is its length in bytes.
    at: usize,
    left: usize,
    /// True if the frame ends the stream.
    is_last: bool,
}

/// Client side of an HTTP/2 connection. [`Connection::call`] starts a call, [`Connection::next`] processes
/// received bytes, and [`Connection::output`] returns the bytes to send.
pub struct Connection {
    options: Options,
    http2: http2::Connection,
    /// Templates of the request headers, by method; `None` for methods that have not been called yet.
    heads: [Option<Template>; Rpc::ALL.len()],
    /// Calls in flight, by [`Key::slot`].
    calls: Vec<Option<Call>>,
    under_way: usize,
    /// Calls on which further messages may be sent, by tag.
    open: HashMap<u64, Key>,
    waiting: VecDeque<Waiting>,
    data: Option<Data>,
    going_away: bool,
}

impl Connection {
    /// Creates a connection whose output already contains the first bytes to send: the preface and the
    /// settings.
    pub fn new(options: Options, now: Instant) -> Self {
        let settings = http2::Options {
            stream_window_bytes: options.stream_window,
            // 0 disables the growth of stream windows, because their size is part of the measured setup.
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

    /// Must be called before received bytes are processed. `now` is the current time, for timeouts of the
    /// HTTP/2 connection.
    pub fn begin_turn(&mut self, now: Instant) {
        self.http2.begin_turn(now);
    }

    /// Returns the bytes to send. The caller sends some of them, and removes these from the front.
    pub fn output(&mut self) -> &mut Output {
        self.http2.gather();
        self.http2.output()
    }

    /// Returns true if input must not be processed before the server accepts some of the output. See
    /// [`http2::Connection::is_blocked`].
    pub fn is_blocked(&self) -> bool {
        self.http2.is_blocked()
    }

    /// Returns the number of calls that have not ended, including those that wait for a free stream.
    pub fn calls(&self) -> usize {
        self.under_way + self.waiting.len()
    }

    /// Returns true if the connection must be replaced: the server accepts no more calls on it, and all calls
    /// on it have ended.
    pub fn spent(&self) -> bool {
        self.going_away && self.under_way == 0
    }

    /// Starts a call with its first message. If `complete` is true, the client sends no further message on
    /// it. If `keep` is false, response messages are delivered with an empty body. If the server's limit of
    /// concurrent streams is reached, the call waits until a stream is free.
    pub fn call(&mut self, method: Rpc, message: &[u8], tag: u64, keep: bool, complete: bool) {
        if self.hands_over_the_last() {
            self.waiting.push_back(Waiting { method, tag, keep, complete, message: message.to_vec() });
            return;
        }
        let head = self.heads[method as usize].get_or_insert_with(|| head(method, &self.options));
        let key = match self.http2.open(head, &[], false) {
            Ok(key) => key,
            Err(error) => {
                // A connection has enough stream ids for a billion calls. After that, replace the connection,
                // as after a GOAWAY frame.
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
        // Ignore an error: sending fails only if the server has ended the stream, and an event will report
        // that.
        let write = |out: &mut Vec<u8>| out.extend_from_slice(message);
        let _ = self.http2.send_message(key, message.len(), complete, write);
    }

    /// Sends a further message on the call with this tag. Returns false if there is no such call, or it was
    /// started as complete.
    pub fn send(&mut self, tag: u64, message: &[u8]) -> bool {
        let Some(key) = self.open.get(&tag).copied() else { return false };
        self.put_message(key, message, false);
        true
    }

    /// Cancels the call with this tag. No further event is delivered for it.
    pub fn cancel(&mut self, tag: u64) {
        if let Some(key) = self.open.get(&tag).copied() {
            self.forget(key);
        }
    }

    /// Ends a connection that was lost. Returns the tags of the calls in flight, each with its status, and a
    /// function that starts the waiting calls on a new connection.
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

    /// Returns true while the last frame of a stream is being delivered. During this time no new stream may
    /// be opened, because it could take the slot in `calls` that is still needed.
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

    /// Returns the next event from the received input. `at` is the offset up to which the input has been
    /// processed. After the function has returned `None`, the caller must keep the rest of the input, and
    /// pass it again, followed by newly received bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the server has violated the protocol.
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

    /// Handles the headers of a response. If `end` is true, the response consists of nothing else, so they
    /// contain the status.
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

    /// Returns the next event from the DATA frame that is being delivered; `None` if it contains no further
    /// event.
    fn data_event<'a>(&mut self, input: &'a [u8]) -> Result<Option<Event<'a>>, Violation> {
        while let Some(Data { key, at, left, is_last }) = self.data {
            let Some(call) = self.call_of(key) else {
                // This client has cancelled the call, so drop the rest of the frame.
                self.data = None;
                self.start_waiting();
                return Ok(None);
            };
            if left == 0 {
                self.data = None;
                if is_last {
                    // The server has ended the stream without trailers, which would contain the status.
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

    /// Removes a call, resets its stream if that is still open, and returns the call's tag.
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

/// Number of bytes taken from a frame, and the message that they complete, if any.
type Taken<'a> = (usize, Option<Cow<'a, [u8]>>);

impl Call {
    /// Takes bytes from the front of `payload`. Returns how many were taken, and the message that they
    /// complete, if any.
    fn take<'a>(&mut self, payload: &'a [u8]) -> Result<Taken<'a>, Violation> {
        if self.prefix_bytes < PREFIX_BYTES {
            let size = (PREFIX_BYTES - self.prefix_bytes).min(payload.len());
            self.prefix[self.prefix_bytes..self.prefix_bytes + size].copy_from_slice(&payload[..size]);
            self.prefix_bytes += size;
            if self.prefix_bytes < PREFIX_BYTES {
                return Ok((size, None));
            }
            if self.prefix[0] != 0 {
                return Err(Violation("a message is compressed, although compression was not requested"));
            }
            let [_, a, b, c, d] = self.prefix;
            self.missing = u32::from_be_bytes([a, b, c, d]) as usize;
            if self.keep && self.missing > MESSAGE_BYTES_MAX {
                return Err(Violation("a message is larger than the limit"));
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

/// Returns the template of the request headers of a method.
///
/// # Panics
///
/// Panics if [`Options::check`] fails. Callers check the options before they connect, so this does not
/// happen.
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

/// Returns the status of a call from the trailers of its response.
fn status_of(fields: &Fields) -> Status {
    let code = fields.get(b"grpc-status").and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    match code {
        Some(code) => Status { code, message: fields.get(b"grpc-message").map(unescape).unwrap_or_default() },
        None => Status { code: 2, message: "the server sent no status".to_owned() },
    }
}

/// Returns the status of a call whose stream the server has reset, with the same message as grpc-go.
/// REFUSED_STREAM means that the server has not processed the call, so its status is "unavailable".
fn reset_status(Reason(code): Reason) -> Status {
    match code {
        7 => Status::unavailable("the server refused the stream (REFUSED_STREAM)"),
        8 => Status { code: 1, message: "stream terminated by RST_STREAM with error code: CANCEL".into() },
        _ => Status { code: 13, message: format!("stream terminated by RST_STREAM with error code: {code}") },
    }
}

/// Decodes the percent-encoding of the header `grpc-message`.
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
