//! Implements the receiving direction of a connection: [`Connection::next`] takes frames and returns events.

use std::sync::{Arc, LazyLock};

use crate::assembly::Assembly;
use crate::connection::{Connection, GROWTH_PING, Gone, Leaving, Phase, Role, SHUTDOWN_PING};
use crate::event::Event;
use crate::fields::{Fields, Refused, Use};
use crate::flow;
use crate::frame::{
    self, HEAD_BYTES, Head, PAYLOAD_BYTES_MAX, PREFACE, STREAM_MAX, WINDOW_BYTES_MAX, flag, kind, setting,
};
use crate::hpack::{Template, Undecoded};
use crate::options::Bucket;
use crate::reason::{ConnectionError, Limit, Reason};
use crate::stream::{ContentLeft, Key};

type Taken<'a> = Result<Option<Event<'a>>, ConnectionError>;

const fn protocol(what: &'static str) -> ConnectionError {
    ConnectionError::violation(Reason::PROTOCOL_ERROR, what)
}

const fn frame_size(what: &'static str) -> ConnectionError {
    ConnectionError::violation(Reason::FRAME_SIZE_ERROR, what)
}

const fn flow_control(what: &'static str) -> ConnectionError {
    ConnectionError::violation(Reason::FLOW_CONTROL_ERROR, what)
}

const fn stream_closed(what: &'static str) -> ConnectionError {
    ConnectionError::violation(Reason::STREAM_CLOSED, what)
}

fn undecoded(why: Undecoded) -> ConnectionError {
    match why {
        Undecoded::Damaged => {
            ConnectionError::violation(Reason::COMPRESSION_ERROR, "a header block cannot be decoded")
        }
        Undecoded::Excessive => ConnectionError::limit(Limit::HeaderList),
    }
}

const WINDOW_TOO_LARGE: ConnectionError = flow_control("SETTINGS_INITIAL_WINDOW_SIZE is too large");

impl Connection {
    /// Takes the next event from received bytes. `at` is the position up to which the bytes were already
    /// taken; this call advances it. Returns `None` if the rest is less than a frame, which must be passed
    /// again, followed by newly read bytes, or if the connection [is blocked](Connection::is_blocked) or [has
    /// ended](Connection::is_over).
    ///
    /// # Errors
    ///
    /// Returns an error if the peer violates the protocol or exceeds a limit. The output then contains a
    /// GOAWAY, all streams have ended, and further calls return the same error.
    ///
    /// # Panics
    ///
    /// If `at` is beyond the end of the bytes.
    pub fn next<'a>(&mut self, input: &'a [u8], at: &mut usize) -> Taken<'a> {
        if let Some(error) = &self.error {
            return Err(**error);
        }
        loop {
            if let Some(lists) = &mut self.lists
                && let Some(stream) = lists.cut_off.pop()
            {
                if self.streams.get(stream).is_none() {
                    continue;
                }
                self.remove_stream(stream, Gone::ResetHere);
                return Ok(Some(Event::Reset { stream, reason: Reason::REFUSED_STREAM, by_peer: true }));
            }
            if self.phase == Phase::Over || self.is_blocked() {
                return Ok(None);
            }
            let rest = &input[*at..];
            if self.phase == Phase::Preface {
                let seen = rest.len().min(PREFACE.len());
                if rest[..seen] != PREFACE[..seen] {
                    return Err(self.fail(protocol("the client's preface is not that of HTTP/2")));
                }
                if seen < PREFACE.len() {
                    return Ok(None);
                }
                *at += PREFACE.len();
                self.phase = Phase::FirstSettings;
                continue;
            }
            let Some(head) = Head::read(rest) else { return Ok(None) };
            if head.length > PAYLOAD_BYTES_MAX {
                return Err(self.fail(frame_size("a frame is larger than allowed")));
            }
            let Some(payload) = rest.get(HEAD_BYTES..HEAD_BYTES + head.length) else { return Ok(None) };
            *at += HEAD_BYTES + head.length;
            match self.frame(head, payload) {
                Ok(None) => {}
                Ok(event) => return Ok(event),
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    fn frame<'a>(&mut self, head: Head, payload: &'a [u8]) -> Taken<'a> {
        let is_first = self.phase == Phase::FirstSettings;
        if is_first {
            if head.kind != kind::SETTINGS || head.has(flag::ACK) {
                return Err(protocol("the first frame is not SETTINGS"));
            }
            self.phase = Phase::Open;
        }
        if let Some(assembly) = &self.assembly
            && (head.kind != kind::CONTINUATION || head.stream != assembly.stream)
        {
            return Err(protocol("a header block is not continued in the next frame"));
        }
        match head.kind {
            kind::DATA => self.data(head, payload),
            kind::HEADERS => self.headers(head, payload),
            kind::PRIORITY => self.priority(head, payload),
            kind::RST_STREAM => self.reset_came(head, payload),
            kind::SETTINGS => self.settings(head, payload, is_first),
            kind::PUSH_PROMISE => Err(protocol("a push, which was not allowed")),
            kind::PING => self.ping_came(head, payload),
            kind::GOAWAY => self.goaway(head, payload),
            kind::WINDOW_UPDATE => self.window_update(head, payload),
            kind::CONTINUATION => self.continuation(head, payload),
            // Unknown frame types are ignored (section 4.1).
            _ => Ok(None),
        }
    }

    fn data<'a>(&mut self, head: Head, payload: &'a [u8]) -> Taken<'a> {
        if head.stream == 0 {
            return Err(protocol("DATA for no stream"));
        }
        let Some(bytes) = frame::unpadded(head, payload) else {
            return Err(protocol("padding is not shorter than its frame"));
        };
        // The length includes the padding, which also counts for flow control (section 6.1).
        let length = head.length as i32;
        if length > self.may_receive {
            return Err(flow_control("more data than the connection's window allows"));
        }
        let Some(key) = self.streams.find(head.stream) else {
            if self.is_idle(head.stream) {
                return Err(protocol("DATA for a stream that was not opened"));
            }
            self.may_receive -= length;
            self.update_window();
            return match self.how_gone(head.stream) {
                // The data is ignored, because it may have been in flight when this end reset the stream,
                // even if the reset is too old to be remembered.
                Gone::ResetHere | Gone::Unknown => Ok(None),
                Gone::Ended => {
                    self.count(Limit::ProvokedResets)?;
                    self.put_reset(head.stream, Reason::STREAM_CLOSED);
                    self.note_closed(head.stream, Gone::ResetHere);
                    Ok(None)
                }
            };
        };
        self.may_receive -= length;
        let now = self.now;
        let end = head.has(flag::END_STREAM);
        let Some(stream) = self.streams.get_mut(key) else {
            unreachable!("a stream that was found is there")
        };
        let wrong = if stream.received_end {
            Some(Reason::STREAM_CLOSED)
        } else if length > stream.may_receive {
            Some(Reason::FLOW_CONTROL_ERROR)
        } else if !stream.received_head {
            Some(Reason::PROTOCOL_ERROR)
        } else {
            let is_enough = stream.content_left.came(bytes.len() as u64);
            (!is_enough || end && stream.content_left.is_short()).then_some(Reason::PROTOCOL_ERROR)
        };
        if let Some(reason) = wrong {
            self.update_window();
            return self.stream_error(key, reason);
        }
        stream.may_receive -= length;
        stream.unreleased += bytes.len() as u32;
        let (may_receive, unreleased) = (i64::from(stream.may_receive), stream.unreleased);
        if !end {
            // Updates the stream's window for the padding, which the consumer never releases, and for bytes
            // that were released before, when an update was not worth a frame. This cannot wait until the
            // consumer releases more bytes: it may need the rest of a message first.
            let more = flow::update(self.growth.target, may_receive, unreleased.into());
            if more > 0 {
                stream.may_receive = (may_receive + i64::from(more)).min(WINDOW_BYTES_MAX.into()) as i32;
                self.put_window_update(head.stream, more);
            }
        }
        self.unreleased += bytes.len() as u64;
        self.update_window();
        if self.growth.received(length as u32, may_receive, unreleased, now) {
            self.ping(GROWTH_PING);
        }
        if end {
            self.receive_end(key);
        } else if bytes.is_empty() {
            self.count(Limit::EmptyData)?;
            return Ok(None);
        }
        Ok(Some(Event::Data { stream: key, bytes, end }))
    }

    /// Notes that the peer has finished its side of a stream. Removes the stream if this end has finished,
    /// too.
    fn receive_end(&mut self, key: Key) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.received_end = true;
            if stream.sent_end {
                self.remove_stream(key, Gone::Ended);
            }
        }
    }

    fn headers<'a>(&mut self, head: Head, payload: &'a [u8]) -> Taken<'a> {
        if head.stream == 0 {
            return Err(protocol("HEADERS for no stream"));
        }
        if self.role == Role::Server && head.stream.is_multiple_of(2) {
            return Err(protocol("a client opened a stream with an even number"));
        }
        let Some(mut block) = frame::unpadded(head, payload) else {
            return Err(protocol("padding is not shorter than its frame"));
        };
        let mut depends_on_itself = false;
        if head.has(flag::PRIORITY) {
            let Some((priority, rest)) = block.split_at_checked(5) else {
                return Err(frame_size("HEADERS is too short for its priority"));
            };
            depends_on_itself =
                frame::read_u32(priority).is_some_and(|parent| parent & STREAM_MAX == head.stream);
            block = rest;
        }
        let ends_stream = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.header_block(head.stream, ends_stream, depends_on_itself, block);
        }
        self.assembly = Some(Box::new(Assembly {
            stream: head.stream,
            ends_stream,
            depends_on_itself,
            continuations: 0,
            block: block.to_vec(),
        }));
        Ok(None)
    }

    fn continuation<'a>(&mut self, head: Head, payload: &'a [u8]) -> Taken<'a> {
        let Some(mut assembly) = self.assembly.take() else {
            return Err(protocol("CONTINUATION of nothing"));
        };
        assembly.continuations += 1;
        let limits = &self.options.limits;
        if assembly.continuations > limits.continuations_max {
            return Err(ConnectionError::limit(Limit::Continuations));
        }
        if assembly.block.len() + payload.len() > limits.block_bytes_max as usize {
            return Err(ConnectionError::limit(Limit::HeaderBlock));
        }
        assembly.block.extend_from_slice(payload);
        if !head.has(flag::END_HEADERS) {
            self.assembly = Some(assembly);
            return Ok(None);
        }
        let Assembly { stream, ends_stream, depends_on_itself, block, .. } = *assembly;
        self.header_block(stream, ends_stream, depends_on_itself, &block)
    }

    fn decode(
        &mut self,
        block: &[u8],
        what_for: Use,
    ) -> Result<Result<Arc<Fields>, Refused>, ConnectionError> {
        self.decoder.decode(block, what_for).map_err(undecoded)
    }

    /// Handles a complete header block. It is decoded even if its stream has ended, because the tables of
    /// both ends must stay equal.
    fn header_block<'a>(&mut self, id: u32, end: bool, depends_on_itself: bool, block: &[u8]) -> Taken<'a> {
        if self.role == Role::Server && self.is_idle(id) {
            return self.request(id, end, depends_on_itself, block);
        }
        if let Some(key) = self.streams.find(id) {
            let is_trailers = self.streams.get(key).is_some_and(|stream| stream.received_head);
            let what_for = if is_trailers { Use::Trailers } else { Use::Response };
            let decoded = self.decode(block, what_for)?;
            if depends_on_itself {
                return self.stream_error(key, Reason::PROTOCOL_ERROR);
            }
            return if is_trailers {
                self.trailers(key, end, decoded)
            } else {
                self.response(key, end, decoded)
            };
        }
        // The stream does not exist, so the block is decoded only to keep the table up to date.
        let is_small = self.decoder.pass_over(block).map_err(undecoded)?;
        if self.is_idle(id) || id.is_multiple_of(2) {
            return Err(protocol("HEADERS for a stream that was not opened"));
        }
        if !is_small {
            // Counts as a provoked reset, as on an open stream, which a list of this size would reset.
            self.count(Limit::ProvokedResets)?;
        }
        match self.how_gone(id) {
            Gone::ResetHere => Ok(None),
            // Ignored: the response to a call that was cancelled long ago may still arrive.
            Gone::Unknown if self.role == Role::Client => Ok(None),
            Gone::Ended => Err(stream_closed("HEADERS for a stream that is closed")),
            Gone::Unknown => Err(protocol("a stream has a lower number than an earlier one")),
        }
    }

    fn request<'a>(&mut self, id: u32, end: bool, depends_on_itself: bool, block: &[u8]) -> Taken<'a> {
        let decoded = self.decode(block, Use::Request)?;
        self.last_peer_stream = id;
        let refusal = if depends_on_itself {
            Some(Reason::PROTOCOL_ERROR)
        } else if self.leaving == Leaving::Final {
            // The stream was opened after the last one that the second GOAWAY has announced (section 6.8).
            Some(Reason::REFUSED_STREAM)
        } else if self.streams.len() >= self.options.streams_max as usize {
            Some(Reason::REFUSED_STREAM)
        } else {
            None
        };
        let fields = match (refusal, decoded) {
            (Some(reason), _) => return self.refuse(id, reason),
            (None, Err(Refused::Malformed(_))) => return self.refuse(id, Reason::PROTOCOL_ERROR),
            (None, Err(Refused::TooLarge)) => return self.refuse_large(id, end),
            (None, Ok(fields)) => fields,
        };
        let content = fields.content_length();
        if end && content.is_some_and(|length| length > 0) {
            return self.refuse(id, Reason::PROTOCOL_ERROR);
        }
        let key = self.add_stream(id);
        if let Some(stream) = self.streams.get_mut(key) {
            stream.received_head = true;
            stream.received_end = end;
            stream.content_left = ContentLeft::of(content);
        }
        Ok(Some(Event::Head { stream: key, fields, end }))
    }

    /// Resets a stream of the peer for which no event was returned.
    fn refuse<'a>(&mut self, id: u32, reason: Reason) -> Taken<'a> {
        self.count(Limit::ProvokedResets)?;
        self.put_reset(id, reason);
        self.note_closed(id, Gone::ResetHere);
        Ok(None)
    }

    /// Answers a request whose header list is too large with status 431 (RFC 9113, section 10.5.1).
    fn refuse_large<'a>(&mut self, id: u32, end: bool) -> Taken<'a> {
        static NOTHING: LazyLock<Option<Template>> =
            LazyLock::new(|| Template::new(std::iter::empty::<(&str, &str)>()).ok());
        self.count(Limit::ProvokedResets)?;
        if let Some(nothing) = &*NOTHING {
            self.put_headers(id, true, nothing, &[(b":status", b"431")]);
        }
        if !end {
            self.put_reset(id, Reason::NO_ERROR);
        }
        self.note_closed(id, Gone::ResetHere);
        Ok(None)
    }

    fn response<'a>(&mut self, key: Key, end: bool, decoded: Result<Arc<Fields>, Refused>) -> Taken<'a> {
        let fields = match decoded {
            Ok(fields) => fields,
            Err(Refused::Malformed(_)) => return self.stream_error(key, Reason::PROTOCOL_ERROR),
            Err(Refused::TooLarge) => return self.stream_error(key, Reason::ENHANCE_YOUR_CALM),
        };
        let status = fields.status().unwrap_or(0);
        if (100..200).contains(&status) {
            // An informational response cannot end a stream (section 8.1), and HTTP/2 has no protocol upgrade
            // (section 8.6).
            if end || status == 101 {
                return self.stream_error(key, Reason::PROTOCOL_ERROR);
            }
            return Ok(Some(Event::Informational { stream: key, fields }));
        }
        let Some(stream) = self.streams.get_mut(key) else {
            unreachable!("a stream that was found is there")
        };
        stream.received_head = true;
        let has_content = !stream.is_head && status != 204 && status != 304;
        stream.content_left = ContentLeft::of(if has_content { fields.content_length() } else { Some(0) });
        if end && stream.content_left.is_short() {
            return self.stream_error(key, Reason::PROTOCOL_ERROR);
        }
        if end {
            self.receive_end(key);
        }
        Ok(Some(Event::Head { stream: key, fields, end }))
    }

    fn trailers<'a>(&mut self, key: Key, end: bool, decoded: Result<Arc<Fields>, Refused>) -> Taken<'a> {
        let Some(stream) = self.streams.get(key) else { unreachable!("a stream that was found is there") };
        if stream.received_end {
            return self.stream_error(key, Reason::STREAM_CLOSED);
        }
        let is_short = stream.content_left.is_short();
        let fields = match decoded {
            Ok(fields) if end && !is_short => fields,
            Err(Refused::TooLarge) => return self.stream_error(key, Reason::ENHANCE_YOUR_CALM),
            Ok(_) | Err(Refused::Malformed(_)) => return self.stream_error(key, Reason::PROTOCOL_ERROR),
        };
        self.receive_end(key);
        Ok(Some(Event::Trailers { stream: key, fields }))
    }

    /// Ends a stream because of an error of the peer (RFC 9113, section 5.4.2).
    #[cold]
    fn stream_error<'a>(&mut self, stream: Key, reason: Reason) -> Taken<'a> {
        self.count(Limit::ProvokedResets)?;
        self.put_reset(stream.id, reason);
        self.remove_stream(stream, Gone::ResetHere);
        Ok(Some(Event::Reset { stream, reason, by_peer: false }))
    }

    fn priority<'a>(&mut self, head: Head, payload: &[u8]) -> Taken<'a> {
        if head.stream == 0 {
            return Err(protocol("PRIORITY for no stream"));
        }
        let depends_on_itself =
            frame::read_u32(payload).is_some_and(|parent| parent & STREAM_MAX == head.stream);
        let reason = match (payload.len(), depends_on_itself) {
            (5, false) => return Ok(None),
            (5, true) => Reason::PROTOCOL_ERROR,
            _ => Reason::FRAME_SIZE_ERROR,
        };
        match self.streams.find(head.stream) {
            Some(key) => self.stream_error(key, reason),
            // The connection ends, because this end must not send RST_STREAM for an idle stream (section
            // 6.4).
            None if self.is_idle(head.stream) => {
                Err(ConnectionError::violation(reason, "PRIORITY is malformed"))
            }
            None => self.refuse(head.stream, reason),
        }
    }

    fn reset_came<'a>(&mut self, head: Head, payload: &[u8]) -> Taken<'a> {
        let reason = match frame::read_u32(payload) {
            Some(code) if payload.len() == 4 => Reason(code),
            _ => return Err(frame_size("RST_STREAM has not four bytes")),
        };
        if head.stream == 0 {
            return Err(protocol("RST_STREAM for no stream"));
        }
        let Some(key) = self.streams.find(head.stream) else {
            if self.is_idle(head.stream) {
                return Err(protocol("RST_STREAM for a stream that was not opened"));
            }
            return Ok(None);
        };
        let is_early = self.streams.get(key).is_some_and(|stream| stream.turn == self.turn);
        if is_early && self.role == Role::Server {
            self.count(Limit::EarlyResets)?;
        }
        self.remove_stream(key, Gone::Ended);
        Ok(Some(Event::Reset { stream: key, reason, by_peer: true }))
    }

    fn settings<'a>(&mut self, head: Head, payload: &[u8], is_first: bool) -> Taken<'a> {
        if head.stream != 0 {
            return Err(protocol("SETTINGS for a stream"));
        }
        if head.has(flag::ACK) {
            if !payload.is_empty() {
                return Err(frame_size("an acknowledgement of SETTINGS has a payload"));
            }
            self.settings_acknowledged();
            return Ok(None);
        }
        // The first SETTINGS, with which each connection begins, are not counted, because the counters would
        // have to be allocated, and most connections never need them.
        if !is_first {
            self.count(Limit::Settings)?;
        }
        let (pairs, []) = payload.as_chunks::<6>() else {
            return Err(frame_size("the length of SETTINGS is not a multiple of six bytes"));
        };
        // Only the last value of the initial window in the frame is applied. A frame may repeat a setting a
        // thousand times, and each change of the initial window makes this end visit all streams.
        let (mut smallest_table, mut last_table, mut window) = (u32::MAX, None, None);
        for pair in pairs {
            let [a, b, c, d, e, f] = *pair;
            let value = u32::from_be_bytes([c, d, e, f]);
            match u16::from_be_bytes([a, b]) {
                setting::HEADER_TABLE_SIZE => {
                    (smallest_table, last_table) = (smallest_table.min(value), Some(value));
                }
                setting::INITIAL_WINDOW_SIZE if value > WINDOW_BYTES_MAX => return Err(WINDOW_TOO_LARGE),
                setting::INITIAL_WINDOW_SIZE => window = Some(value),
                name => self.setting(name, value)?,
            }
        }
        if let Some(last) = last_table {
            // The smallest size is set first, because the next block must announce it, too (RFC 7541, section
            // 4.2).
            self.encoder.set_limit(smallest_table);
            self.encoder.set_limit(last);
        }
        if let Some(value) = window {
            self.set_initial_window(value)?;
        }
        self.output.frame(kind::SETTINGS, flag::ACK, 0, &[]);
        Ok(Some(Event::Settings))
    }

    fn setting(&mut self, name: u16, value: u32) -> Result<(), ConnectionError> {
        match name {
            setting::ENABLE_PUSH if value > 1 || value == 1 && self.role == Role::Client => {
                return Err(protocol("SETTINGS_ENABLE_PUSH has a value that is not allowed"));
            }
            setting::MAX_CONCURRENT_STREAMS => self.peer_streams_max = value,
            setting::MAX_FRAME_SIZE => {
                if !(PAYLOAD_BYTES_MAX as u32..1 << 24).contains(&value) {
                    return Err(protocol("SETTINGS_MAX_FRAME_SIZE has a value that is not allowed"));
                }
                self.payload_bytes_max = value.min(crate::send::PAYLOAD_BYTES_MAX);
            }
            // MAX_HEADER_LIST_SIZE is only advisory, so it is ignored like unknown settings (section 6.5.2).
            _ => {}
        }
        Ok(())
    }

    fn set_initial_window(&mut self, value: u32) -> Result<(), ConnectionError> {
        let max = i64::from(WINDOW_BYTES_MAX);
        if i64::from(value) + self.window_change_max > max {
            // `window_change_max` is only an upper bound, which may come from a stream that has ended. Before
            // the peer is accused of an error, it is computed again from the open streams.
            let changes = self.streams.iter().map(|(_, stream)| i64::from(stream.window_change));
            self.window_change_max = changes.max().unwrap_or(0).max(0);
            if i64::from(value) + self.window_change_max > max {
                return Err(WINDOW_TOO_LARGE);
            }
        }
        let grows = value > self.initial_window;
        self.initial_window = value;
        if grows {
            self.wake_all();
        }
        Ok(())
    }

    /// Applies this end's settings once the peer has acknowledged them.
    fn settings_acknowledged(&mut self) {
        if !std::mem::take(&mut self.awaits_settings_ack) {
            return;
        }
        let window = self.options.stream_window();
        let less = self.receive_initial as i32 - window as i32;
        self.receive_initial = window;
        if less <= 0 {
            return;
        }
        // The windows of open streams shrink now. This can close the window of a stream whose consumer has
        // already released all bytes. No later event would reopen such a window, so updates are sent here.
        let (target, output) = (self.growth.target, &mut self.output);
        for (key, stream) in self.streams.iter_mut() {
            stream.may_receive -= less;
            if stream.received_end {
                continue;
            }
            let more = flow::update(target, stream.may_receive.into(), stream.unreleased.into());
            if more > 0 {
                // The cast is lossless: after the update, the window is `target` minus the bytes that the
                // consumer holds.
                stream.may_receive = (i64::from(stream.may_receive) + i64::from(more)) as i32;
                output.frame(kind::WINDOW_UPDATE, 0, key.id, &more.to_be_bytes());
            }
        }
    }

    fn ping_came<'a>(&mut self, head: Head, payload: &[u8]) -> Taken<'a> {
        if head.stream != 0 {
            return Err(protocol("PING for a stream"));
        }
        let Ok(eight) = <[u8; 8]>::try_from(payload) else {
            return Err(frame_size("PING has not eight bytes"));
        };
        if !head.has(flag::ACK) {
            let sent = self.output.appended_of_calls();
            let buckets = self.buckets.get_or_insert_default();
            if std::mem::replace(&mut buckets.sent_before_ping, sent) != sent {
                buckets.pings = Bucket::default();
            }
            self.count(Limit::Pings)?;
            self.output.pong(eight);
            return Ok(Some(Event::Pinged));
        }
        match u64::from_be_bytes(eight) {
            SHUTDOWN_PING if self.leaving == Leaving::Announced => self.say_last_stream(),
            GROWTH_PING => self.growth.measured(self.now),
            number => return Ok(Some(Event::Pong(number))),
        }
        Ok(None)
    }

    fn goaway<'a>(&mut self, head: Head, payload: &'a [u8]) -> Taken<'a> {
        if head.stream != 0 {
            return Err(protocol("GOAWAY for a stream"));
        }
        let (Some(last), Some(reason)) =
            (frame::read_u32(payload), payload.get(4..).and_then(frame::read_u32))
        else {
            return Err(frame_size("GOAWAY has not eight bytes"));
        };
        self.count(Limit::GoAways)?;
        let last = last & STREAM_MAX;
        self.peer_is_leaving = true;
        // Only a client has opened streams, which a GOAWAY of the peer can refuse.
        if self.role == Role::Client {
            if last > self.peer_last_taken {
                return Err(protocol("GOAWAY names a higher stream than an earlier one"));
            }
            if last < self.peer_last_taken {
                self.peer_last_taken = last;
                let cut_off = self.streams.iter().map(|(key, _)| key).filter(|key| key.id > last).collect();
                self.lists.get_or_insert_default().cut_off = cut_off;
            }
        }
        Ok(Some(Event::GoAway { last, reason: Reason(reason), debug: &payload[8..] }))
    }

    fn window_update<'a>(&mut self, head: Head, payload: &[u8]) -> Taken<'a> {
        let more = match frame::read_u32(payload) {
            Some(more) if payload.len() == 4 => more & WINDOW_BYTES_MAX,
            _ => return Err(frame_size("WINDOW_UPDATE has not four bytes")),
        };
        if head.stream == 0 {
            if more == 0 {
                return Err(protocol("WINDOW_UPDATE of nothing"));
            }
            // The sum is computed with 64 bits, because both values can be up to 2^31-1. The conversion fails
            // if the sum is too large for a window.
            self.may_send = i32::try_from(i64::from(self.may_send) + i64::from(more))
                .map_err(|_| flow_control("the connection's window is larger than 2^31-1"))?;
            return Ok(None);
        }
        let Some(key) = self.streams.find(head.stream) else {
            if self.is_idle(head.stream) {
                return Err(protocol("WINDOW_UPDATE for a stream that was not opened"));
            }
            return Ok(None);
        };
        if more == 0 {
            return self.stream_error(key, Reason::PROTOCOL_ERROR);
        }
        let initial = i64::from(self.initial_window);
        let Some(stream) = self.streams.get_mut(key) else {
            unreachable!("a stream that was found is there")
        };
        let change = i64::from(stream.window_change) + i64::from(more);
        if initial + change > i64::from(WINDOW_BYTES_MAX) {
            return self.stream_error(key, Reason::FLOW_CONTROL_ERROR);
        }
        // The cast is lossless: `change` is at most 2^31-1, because `initial + change` was just checked and
        // `initial` is not negative; and it is not below the old value, which has 32 bits.
        stream.window_change = change as i32;
        self.window_change_max = self.window_change_max.max(change);
        self.wake(key);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::options::{Options, Rate};

    /// Returns a server with `streams` open streams and without limits on SETTINGS and GOAWAY frames.
    fn server(streams: u32) -> Connection {
        let mut options = Options::default();
        (options.limits.settings, options.limits.goaways) = (Rate::new(u32::MAX, 0), Rate::new(u32::MAX, 0));
        let mut server = Connection::new(Role::Server, &Arc::new(options), Instant::now());
        let settings = frame::head(0, kind::SETTINGS, 0, 0);
        take(&mut server, &[&PREFACE[..], &settings].concat());
        for count in 0..streams {
            let head = frame::head(3, kind::HEADERS, flag::END_HEADERS, 2 * count + 1);
            take(&mut server, &[&head[..], &[0x82, 0x84, 0x86]].concat());
        }
        assert_eq!(server.open_streams(), streams as usize);
        server
    }

    fn take(connection: &mut Connection, bytes: &[u8]) {
        let mut at = 0;
        while connection.next(bytes, &mut at).unwrap().is_some() {}
        assert_eq!(at, bytes.len());
        let output = connection.output();
        output.advance(output.len());
    }

    #[test]
    fn goaway_looks_at_no_stream_of_a_server() {
        let mut server = server(1_000);
        let before = server.streams.looks();
        for _ in 0..100 {
            take(&mut server, &[&frame::head(8, kind::GOAWAY, 0, 0)[..], &[0; 8]].concat());
        }
        assert_eq!(server.streams.looks(), before);
    }

    #[test]
    fn a_frame_that_changes_the_window_again_and_again_looks_at_each_stream_once() {
        let mut server = server(1_000);
        let before = server.streams.looks();
        let values: Vec<u8> = (0..2_730_u32)
            .flat_map(|count| [&[0, 4], &(100_000 + count % 2).to_be_bytes()[..]].concat())
            .collect();
        take(&mut server, &[&frame::head(values.len(), kind::SETTINGS, 0, 0)[..], &values].concat());
        assert_eq!(server.initial_window, 100_001);
        assert!(server.streams.looks() - before <= 2 * 1_024, "{}", server.streams.looks() - before);
    }
}
