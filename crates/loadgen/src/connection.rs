//! One HTTP/2 connection as a client sees it: bytes in, events out, and bytes to send. It does no IO.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use api::Rpc;

use crate::frame::{self, Head, flag, kind, setting};
use crate::hpack::{Decoder, Encoder, Name};
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
}

struct Stream {
    tag: u64,
    keep: bool,
    status: Option<u32>,
    message: String,
    /// Prefix of the message that is being received, as far as it has arrived.
    prefix: [u8; 5],
    prefix_bytes: usize,
    missing: usize,
    body: Vec<u8>,
    unacknowledged: u32,
    send_window: i64,
    unsent: Vec<u8>,
    sent: usize,
    /// True if nothing follows after `unsent`.
    complete: bool,
}

struct Waiting {
    method: Rpc,
    tag: u64,
    keep: bool,
    complete: bool,
    message: Vec<u8>,
}

/// Stream numbers are dense: mixing them a little is enough.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(20);
    }
}

type Streams = HashMap<u32, Stream, BuildHasherDefault<Mixer>>;

/// The largest message that is kept. Those that are only counted may be of any size.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// A client's end. Calls are given with [`Connection::call`]; what arrives is fed to [`Connection::next`]; what is to be
/// sent gathers in [`Connection::output`].
pub struct Connection {
    options: Options,
    /// Bytes to send next; the sender takes them from the front.
    pub output: Vec<u8>,
    streams: Streams,
    /// Streams that more may be sent on later, by tag.
    open: HashMap<u64, u32>,
    waiting: VecDeque<Waiting>,
    blocked: VecDeque<u32>,
    next_stream: u32,
    decoder: Decoder,
    encoder: Encoder,
    blocks: [Vec<u8>; Rpc::ALL.len()],
    blocks_state: (usize, usize),
    send_window: i64,
    stream_send_window: i64,
    payload_bytes_max: usize,
    streams_max: usize,
    unacknowledged: u32,
    /// Set while a DATA payload holds more than one message: its stream, how much is left of it, whether it is the last.
    data: Option<(u32, usize, bool)>,
    padding: usize,
    headers: Option<(u32, bool, Vec<u8>)>,
    /// Calls that have to be reported as ended.
    cut_off: Vec<(u64, Status)>,
    going_away: bool,
}

impl Connection {
    /// A connection whose first bytes (preface, settings) are in `output`.
    pub fn new(options: Options) -> Self {
        let mut output = Vec::with_capacity(4096);
        output.extend_from_slice(frame::PREFACE);
        frame::settings(
            &mut output,
            &[(setting::ENABLE_PUSH, 0), (setting::INITIAL_WINDOW_SIZE, options.stream_window)],
        );
        let more = options.connection_window.saturating_sub(frame::WINDOW_BYTES as u32);
        if more > 0 {
            frame::window_update(&mut output, 0, more);
        }
        Self {
            options,
            output,
            streams: Streams::default(),
            open: HashMap::new(),
            waiting: VecDeque::new(),
            blocked: VecDeque::new(),
            next_stream: 1,
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            blocks: std::array::from_fn(|_| Vec::new()),
            blocks_state: (usize::MAX, 0),
            send_window: frame::WINDOW_BYTES,
            stream_send_window: frame::WINDOW_BYTES,
            payload_bytes_max: frame::PAYLOAD_BYTES_MAX,
            streams_max: usize::MAX,
            unacknowledged: 0,
            data: None,
            padding: 0,
            headers: None,
            cut_off: Vec::new(),
            going_away: false,
        }
    }

    /// Returns the number of calls that are in flight or wait.
    pub fn calls(&self) -> usize {
        self.streams.len() + self.waiting.len()
    }

    /// The server takes no more calls here, and the last one is answered.
    pub fn spent(&self) -> bool {
        self.going_away && self.streams.is_empty()
    }

    /// Starts a call with its first message. `complete` says that no other message follows. Without `keep` the answers'
    /// messages are counted but empty. Waits its turn where the server limits the streams of a connection.
    pub fn call(&mut self, method: Rpc, message: &[u8], tag: u64, keep: bool, complete: bool) {
        if self.streams.len() >= self.streams_max || self.going_away || self.next_stream > 0x7fff_0000 {
            // Stream numbers last for a billion calls; then the connection is renewed as if the server had asked for it.
            self.going_away |= self.next_stream > 0x7fff_0000;
            self.waiting.push_back(Waiting { method, tag, keep, complete, message: message.to_vec() });
            return;
        }
        let id = self.next_stream;
        self.next_stream += 2;
        let mut block = std::mem::take(&mut self.blocks[method as usize]);
        if self.blocks_state != self.encoder.state() || block.is_empty() {
            block.clear();
            self.encode(method, &mut block);
            if self.blocks_state != self.encoder.state() {
                // The table grew, so that all blocks made before name wrong entries; and in this one there are whole
                // headers, which need not be sent again.
                self.blocks.iter_mut().for_each(Vec::clear);
                self.blocks_state = self.encoder.state();
                frame::head(&mut self.output, block.len(), kind::HEADERS, flag::END_HEADERS, id);
                self.output.extend_from_slice(&block);
                block.clear();
            }
        }
        if !block.is_empty() {
            frame::head(&mut self.output, block.len(), kind::HEADERS, flag::END_HEADERS, id);
            self.output.extend_from_slice(&block);
        }
        self.blocks[method as usize] = block;
        let mut stream = Stream {
            tag,
            keep,
            status: None,
            message: String::new(),
            prefix: [0; 5],
            prefix_bytes: 0,
            missing: 0,
            body: Vec::new(),
            unacknowledged: 0,
            send_window: self.stream_send_window,
            unsent: Vec::new(),
            sent: 0,
            complete,
        };
        let size = message.len() + 5;
        if size <= self.payload_bytes_max
            && size as i64 <= self.send_window.min(stream.send_window)
            && self.blocked.is_empty()
        {
            let flags = if complete { flag::END_STREAM } else { 0 };
            frame::head(&mut self.output, size, kind::DATA, flags, id);
            prefix(&mut self.output, message);
            self.send_window -= size as i64;
            stream.send_window -= size as i64;
        } else {
            prefix(&mut stream.unsent, message);
            self.blocked.push_back(id);
        }
        if !complete {
            self.open.insert(tag, id);
        }
        self.streams.insert(id, stream);
        if !self.blocked.is_empty() {
            self.unblock();
        }
    }

    /// Sends a further message of a call that is not complete; says whether there is such a call.
    pub fn send(&mut self, tag: u64, message: &[u8]) -> bool {
        let Some(id) = self.open.get(&tag).copied() else { return false };
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        if stream.unsent.is_empty() {
            self.blocked.push_back(id);
        }
        prefix(&mut stream.unsent, message);
        self.unblock();
        true
    }

    /// Ends a call without waiting for its end; nothing more is heard of it.
    pub fn cancel(&mut self, tag: u64) {
        if let Some(id) = self.open.remove(&tag) {
            if self.streams.remove(&id).is_some() {
                frame::reset(&mut self.output, id, frame::CANCEL);
            }
            self.start_waiting();
        }
    }

    /// The connection is lost: all calls under way are over; those that wait are handed back to be started on a new one.
    pub fn lose(mut self, why: &str) -> (Vec<(u64, Status)>, impl FnOnce(&mut Connection)) {
        let mut over = std::mem::take(&mut self.cut_off);
        over.extend(self.streams.drain().map(|(_, stream)| (stream.tag, Status::unavailable(why))));
        let waiting = self.waiting;
        (over, move |fresh: &mut Connection| {
            for call in waiting {
                fresh.call(call.method, &call.message, call.tag, call.keep, call.complete);
            }
        })
    }

    fn encode(&mut self, method: Rpc, block: &mut Vec<u8>) {
        let scheme: &[u8] = if self.options.tls { b"https" } else { b"http" };
        let mut headers: Vec<(&[u8], &[u8])> = vec![
            (b":method", b"POST"),
            (b":scheme", scheme),
            (b":path", method.path().as_bytes()),
            (b":authority", self.options.authority.as_bytes()),
            (b"content-type", b"application/grpc"),
            (b"user-agent", concat!("mainstay-bench/", env!("CARGO_PKG_VERSION")).as_bytes()),
            (b"te", b"trailers"),
        ];
        if let Some(token) = &self.options.token {
            headers.push((b"token", token.as_bytes()));
        }
        self.encoder.encode(headers, block);
    }

    /// Sends what the windows allow of bodies that did not fit at once, in turn.
    fn unblock(&mut self) {
        while let Some(&id) = self.blocked.front() {
            let Some(stream) = self.streams.get_mut(&id) else {
                self.blocked.pop_front();
                continue;
            };
            let left = stream.unsent.len() - stream.sent;
            let room = self.send_window.min(stream.send_window).max(0) as usize;
            let size = left.min(room).min(self.payload_bytes_max);
            if size == 0 && left > 0 {
                if self.send_window <= 0 {
                    return;
                }
                // Only this stream's window is full: the others need not wait behind it.
                self.blocked.pop_front();
                if self
                    .blocked
                    .iter()
                    .all(|id| self.streams.get(id).is_none_or(|stream| stream.send_window <= 0))
                {
                    self.blocked.push_back(id);
                    return;
                }
                self.blocked.push_back(id);
                continue;
            }
            let last = size == left;
            let flags = if last && stream.complete { flag::END_STREAM } else { 0 };
            frame::head(&mut self.output, size, kind::DATA, flags, id);
            self.output.extend_from_slice(&stream.unsent[stream.sent..stream.sent + size]);
            stream.sent += size;
            stream.send_window -= size as i64;
            self.send_window -= size as i64;
            if last {
                stream.unsent = Vec::new();
                stream.sent = 0;
                self.blocked.pop_front();
            }
        }
    }

    fn start_waiting(&mut self) {
        while !self.going_away && self.streams.len() < self.streams_max {
            let Some(call) = self.waiting.pop_front() else { return };
            self.call(call.method, &call.message, call.tag, call.keep, call.complete);
        }
    }

    /// Takes the next event out of what arrived; `at` is how far it was read. Nothing means that the rest, if any, has to
    /// be given again in front of what arrives next.
    pub fn next<'a>(&mut self, input: &'a [u8], at: &mut usize) -> Result<Option<Event<'a>>, Violation> {
        loop {
            if let Some((tag, status)) = self.cut_off.pop() {
                return Ok(Some(Event::Ended { tag, status }));
            }
            if let Some(event) = self.data_event(input, at)? {
                return Ok(Some(event));
            }
            let rest = input.get(*at..).unwrap_or_default();
            let Some(head) = Head::read(rest) else { return Ok(None) };
            if head.length > frame::PAYLOAD_BYTES_MAX {
                return Err(Violation("a frame is larger than allowed"));
            }
            let Some(payload) = rest.get(frame::HEAD_BYTES..frame::HEAD_BYTES + head.length) else {
                return Ok(None);
            };
            *at += frame::HEAD_BYTES;
            if head.kind == kind::DATA {
                self.begin_data(head, payload, at)?;
                continue;
            }
            *at += head.length;
            if let Some(event) = self.frame(head, payload)? {
                return Ok(Some(event));
            }
        }
    }

    fn begin_data(&mut self, head: Head, payload: &[u8], at: &mut usize) -> Result<(), Violation> {
        let body = frame::unpadded(head, payload).ok_or(Violation("padding is longer than its frame"))?;
        let length = head.length as u32;
        self.unacknowledged += length;
        if self.unacknowledged > self.options.connection_window / 2 {
            frame::window_update(&mut self.output, 0, self.unacknowledged);
            self.unacknowledged = 0;
        }
        let last = head.flags & flag::END_STREAM != 0;
        if let Some(stream) = self.streams.get_mut(&head.stream) {
            stream.unacknowledged += length;
            if !last && stream.unacknowledged > self.options.stream_window / 2 {
                frame::window_update(&mut self.output, head.stream, stream.unacknowledged);
                stream.unacknowledged = 0;
            }
        }
        let before = if head.flags & flag::PADDED != 0 { 1 } else { 0 };
        *at += before;
        self.padding = head.length - before - body.len();
        self.data = Some((head.stream, body.len(), last));
        Ok(())
    }

    /// Goes on within a DATA payload.
    fn data_event<'a>(&mut self, input: &'a [u8], at: &mut usize) -> Result<Option<Event<'a>>, Violation> {
        while let Some((id, left, last)) = self.data {
            let Some(stream) = self.streams.get_mut(&id) else {
                // A call that was cancelled here.
                *at += left + self.padding;
                self.data = None;
                return Ok(None);
            };
            if left == 0 {
                *at += self.padding;
                self.data = None;
                if last {
                    // A server ends with trailers; without them nobody knows how the call went.
                    let status = Status { code: 13, message: "the stream ended without a status".to_owned() };
                    return Ok(self.end(id, Some(status)));
                }
                return Ok(None);
            }
            let payload = &input[*at..*at + left];
            if stream.prefix_bytes < 5 {
                let size = (5 - stream.prefix_bytes).min(left);
                stream.prefix[stream.prefix_bytes..stream.prefix_bytes + size]
                    .copy_from_slice(&payload[..size]);
                stream.prefix_bytes += size;
                *at += size;
                self.data = Some((id, left - size, last));
                if stream.prefix_bytes < 5 {
                    continue;
                }
                if stream.prefix[0] != 0 {
                    return Err(Violation("a message is compressed, which nobody asked for"));
                }
                let [_, a, b, c, d] = stream.prefix;
                stream.missing = u32::from_be_bytes([a, b, c, d]) as usize;
                if stream.keep && stream.missing > MESSAGE_BYTES_MAX {
                    return Err(Violation("a message is larger than anybody can want"));
                }
                if stream.missing > 0 {
                    continue;
                }
                stream.prefix_bytes = 0;
                return Ok(Some(Event::Message { tag: stream.tag, body: Cow::Borrowed(&[]) }));
            }
            let size = stream.missing.min(left);
            *at += size;
            self.data = Some((id, left - size, last));
            let whole = stream.missing == size;
            stream.missing -= size;
            if stream.keep && !(whole && stream.body.is_empty()) {
                stream.body.extend_from_slice(&payload[..size]);
            }
            if whole {
                stream.prefix_bytes = 0;
                let body = if !stream.keep {
                    Cow::Borrowed(&[][..])
                } else if stream.body.is_empty() {
                    Cow::Borrowed(&payload[..size])
                } else {
                    Cow::Owned(std::mem::take(&mut stream.body))
                };
                return Ok(Some(Event::Message { tag: stream.tag, body }));
            }
        }
        Ok(None)
    }

    fn frame(&mut self, head: Head, payload: &[u8]) -> Result<Option<Event<'static>>, Violation> {
        if self.headers.is_some() && head.kind != kind::CONTINUATION {
            return Err(Violation("a header block was not continued"));
        }
        match head.kind {
            kind::HEADERS => {
                let block =
                    frame::unpadded(head, payload).ok_or(Violation("padding is longer than its frame"))?;
                let last = head.flags & flag::END_STREAM != 0;
                if head.flags & flag::END_HEADERS == 0 {
                    self.headers = Some((head.stream, last, block.to_vec()));
                    return Ok(None);
                }
                return self.header_block(head.stream, last, block);
            }
            kind::CONTINUATION => return self.continuation(head, payload),
            kind::RST_STREAM => {
                let code = frame::read_u32(payload).ok_or(Violation("a reset without a code"))?;
                return Ok(self.end(head.stream, Some(reset_status(code))));
            }
            kind::SETTINGS if head.flags & flag::ACK == 0 => self.settings(payload)?,
            kind::PING if head.flags & flag::ACK == 0 => {
                if payload.len() != 8 {
                    return Err(Violation("a ping without its eight bytes"));
                }
                frame::head(&mut self.output, 8, kind::PING, flag::ACK, 0);
                self.output.extend_from_slice(payload);
            }
            kind::GOAWAY => self.goaway(payload)?,
            kind::WINDOW_UPDATE => {
                let more =
                    i64::from(frame::read_u32(payload).ok_or(Violation("a window update of nothing"))?);
                if head.stream == 0 {
                    self.send_window += more;
                } else if let Some(stream) = self.streams.get_mut(&head.stream) {
                    stream.send_window += more;
                }
                if !self.blocked.is_empty() {
                    self.unblock();
                }
            }
            kind::PUSH_PROMISE => return Err(Violation("a push, which was refused")),
            // Acknowledgements, PRIORITY and what is not known.
            _ => {}
        }
        Ok(None)
    }

    /// Appends to a header block that did not fit into one frame.
    fn continuation(&mut self, head: Head, payload: &[u8]) -> Result<Option<Event<'static>>, Violation> {
        let Some((id, last, mut block)) = self.headers.take() else {
            return Err(Violation("there is no header block to continue"));
        };
        if id != head.stream || block.len() > 1 << 20 {
            return Err(Violation("a header block is continued wrongly"));
        }
        block.extend_from_slice(payload);
        if head.flags & flag::END_HEADERS == 0 {
            self.headers = Some((id, last, block));
            return Ok(None);
        }
        self.header_block(id, last, &block)
    }

    /// Takes no new calls any more; those that the server did not take are over.
    fn goaway(&mut self, payload: &[u8]) -> Result<(), Violation> {
        let last = frame::read_u32(payload).ok_or(Violation("a GOAWAY that names no stream"))? & 0x7fff_ffff;
        self.going_away = true;
        let ids: Vec<u32> = self.streams.keys().copied().filter(|id| *id > last).collect();
        for id in ids {
            if let Some(stream) = self.streams.remove(&id) {
                self.open.remove(&stream.tag);
                self.cut_off.push((stream.tag, Status::unavailable("the server is going away (GOAWAY)")));
            }
        }
        Ok(())
    }

    fn settings(&mut self, payload: &[u8]) -> Result<(), Violation> {
        for (name, value) in frame::read_settings(payload) {
            match name {
                setting::HEADER_TABLE_SIZE => self.encoder.set_limit(value as usize),
                setting::MAX_CONCURRENT_STREAMS => self.streams_max = value as usize,
                setting::MAX_FRAME_SIZE => {
                    self.payload_bytes_max = (value as usize).clamp(frame::PAYLOAD_BYTES_MAX, 1 << 20);
                }
                setting::INITIAL_WINDOW_SIZE => {
                    if value > 0x7fff_ffff {
                        return Err(Violation("a window is larger than allowed"));
                    }
                    let change = i64::from(value) - self.stream_send_window;
                    self.stream_send_window = i64::from(value);
                    for stream in self.streams.values_mut() {
                        stream.send_window += change;
                    }
                }
                _ => {}
            }
        }
        frame::head(&mut self.output, 0, kind::SETTINGS, flag::ACK, 0);
        self.unblock();
        self.start_waiting();
        Ok(())
    }

    fn header_block(
        &mut self,
        id: u32,
        last: bool,
        block: &[u8],
    ) -> Result<Option<Event<'static>>, Violation> {
        // Blocks of calls that are over count too: both ends' tables go on.
        let mut stream = self.streams.get_mut(&id);
        let mut http = None;
        self.decoder
            .decode(block, |name, value| match (name, &mut stream) {
                (Name::GrpcStatus, Some(stream)) => {
                    stream.status = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                }
                (Name::GrpcMessage, Some(stream)) => stream.message = unescape(value),
                (Name::Status, _) if value != b"200" => {
                    http = Some(String::from_utf8_lossy(value).into_owned())
                }
                _ => {}
            })
            .map_err(|_| Violation("a header block is damaged"))?;
        if let Some(code) = http {
            let status = Status {
                code: 2,
                message: format!("unexpected HTTP status code received from server: {code}"),
            };
            return Ok(self.end(id, Some(status)));
        }
        Ok(if last { self.end(id, None) } else { None })
    }

    fn end(&mut self, id: u32, status: Option<Status>) -> Option<Event<'static>> {
        let mut stream = self.streams.remove(&id)?;
        if !stream.complete {
            self.open.remove(&stream.tag);
        }
        let status = status.unwrap_or_else(|| match stream.status {
            Some(code) => Status { code, message: std::mem::take(&mut stream.message) },
            None => Status { code: 2, message: "the server sent no status".to_owned() },
        });
        if !self.waiting.is_empty() {
            self.start_waiting();
        }
        Some(Event::Ended { tag: stream.tag, status })
    }
}

/// The status of a call whose stream the server reset, in grpc-go's words; REFUSED_STREAM is "not begun".
fn reset_status(code: u32) -> Status {
    match code {
        7 => Status::unavailable("the server refused the stream (REFUSED_STREAM)"),
        8 => Status { code: 1, message: "stream terminated by RST_STREAM with error code: CANCEL".into() },
        _ => Status { code: 13, message: format!("stream terminated by RST_STREAM with error code: {code}") },
    }
}

fn prefix(out: &mut Vec<u8>, message: &[u8]) {
    out.push(0);
    out.extend_from_slice(&(message.len() as u32).to_be_bytes());
    out.extend_from_slice(message);
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
