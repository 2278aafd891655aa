//! Implements the sending direction of a connection: sends heads, bodies and trailers, queues in each stream
//! what cannot be sent immediately, and lets the streams with queued data send in rotation.

use std::fmt;

use bytes::Bytes;

use crate::buffers::{COPIED_BYTES_MAX, OUTPUT_BYTES};
use crate::connection::{Connection, Gone, Leaving, Phase, Role};
use crate::frame::{self, HEAD_BYTES, STREAM_MAX, flag, kind};
use crate::hpack::{Encoder, InvalidField, OwnedBlock, Template, check_all};
use crate::reason::Reason;
use crate::stream::{Key, PREFIX_BYTES, Payload, Piece, Stream, prefix};

/// Maximum payload that this end sends in one frame, in bytes, if the peer allows it. With larger frames, one
/// stream could delay the others too much.
pub(crate) const PAYLOAD_BYTES_MAX: u32 = 64 * 1024;

/// Capacity of a stream's queue, in entries, up to which the queue is not shrunk.
const PLACES_KEPT: usize = 64;

/// Reason why a command to send on a stream failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendError {
    /// Nothing can be sent on the stream any more: it was reset, the connection has ended, or this end has
    /// finished the stream.
    Closed,
    /// One of the fields that the caller passed in addition to the template is invalid in HTTP/2.
    Invalid(InvalidField),
    /// A body or trailers were to be sent before the head of the response. The stream was reset with
    /// INTERNAL_ERROR.
    NoHead,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Closed => f.write_str("the stream is closed"),
            SendError::Invalid(field) => field.fmt(f),
            SendError::NoHead => f.write_str("a body was sent before its head"),
        }
    }
}

impl std::error::Error for SendError {}

/// Reason why a client cannot open a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The server's limit of concurrent streams is reached. A stream can be opened when another one has
    /// ended.
    TooMany,
    /// The server accepts no more streams on this connection, the connection has ended, or its stream
    /// identifiers are used up. Another connection is needed.
    Leaving,
    /// One of the fields that the caller passed in addition to the template is invalid in HTTP/2.
    Invalid(InvalidField),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::TooMany => f.write_str("the server allows no more streams at once"),
            OpenError::Leaving => f.write_str("the connection takes no more streams"),
            OpenError::Invalid(field) => field.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

impl Connection {
    /// Opens a stream with a request: the fields of the template, then `more`, whose names must be lower
    /// case. `end` is true if no body follows. Before the first [`crate::Event::Settings`] the server's limit
    /// of streams is not known, and the server may refuse streams above it.
    ///
    /// # Errors
    ///
    /// Returns [`OpenError::Leaving`] if no more streams can be opened on this connection,
    /// [`OpenError::TooMany`] if none can be opened now, and [`OpenError::Invalid`] if a field of `more` is
    /// not allowed.
    ///
    /// # Panics
    ///
    /// If this end is a server.
    pub fn open(&mut self, head: &Template, more: &[(&[u8], &[u8])], end: bool) -> Result<Key, OpenError> {
        assert_eq!(self.role, Role::Client, "only clients open streams");
        check_all(head, more).map_err(OpenError::Invalid)?;
        let id = self.next_stream;
        if self.phase == Phase::Over || self.peer_is_leaving || self.leaving != Leaving::No || id > STREAM_MAX
        {
            return Err(OpenError::Leaving);
        }
        if self.streams.len() >= self.peer_streams_max as usize {
            return Err(OpenError::TooMany);
        }
        self.next_stream += 2;
        let key = self.add_stream(id);
        if let Some(stream) = self.streams.get_mut(key) {
            stream.sent_head = true;
            stream.sent_end = end;
            stream.is_head = head.get(b":method") == Some(b"HEAD");
        }
        self.put_headers(id, end, head, more);
        Ok(key)
    }

    /// Returns true if a client can open another stream now.
    pub fn may_open(&self) -> bool {
        self.phase != Phase::Over
            && !self.peer_is_leaving
            && self.leaving == Leaving::No
            && self.next_stream <= STREAM_MAX
            && self.streams.len() < self.peer_streams_max as usize
    }

    /// Sends the head of a response: the fields of the template, then `more`, whose names must be lower case.
    /// `end` is true if neither a body nor trailers follow. Heads of informational responses, with a status
    /// from 100 to 199, may be sent before the final head.
    ///
    /// # Errors
    ///
    /// Returns an error if the stream has ended or a field of `more` is not allowed.
    pub fn send_head(
        &mut self,
        stream: Key,
        head: &Template,
        more: &[(&[u8], &[u8])],
        end: bool,
    ) -> Result<(), SendError> {
        check_all(head, more).map_err(SendError::Invalid)?;
        let state = self.streams.get_mut(stream).filter(|state| !state.sent_end).ok_or(SendError::Closed)?;
        state.sent_head = true;
        self.put_headers(stream.id, end, head, more);
        if end {
            self.send_end(stream);
        }
        Ok(())
    }

    /// Sends a part of a body, which may be empty. It is queued if it cannot be sent now, because a window is
    /// too small, other streams are waiting to send, or the output is full. `end` is true if this is the last
    /// part and no trailers follow.
    ///
    /// # Errors
    ///
    /// Returns an error if the stream has ended, or if a server has not sent its head; the stream is reset in
    /// that case.
    pub fn send_data(&mut self, stream: Key, payload: Payload, end: bool) -> Result<(), SendError> {
        if !self.is_free(stream, payload.len())? {
            self.push(stream, Piece::Data { payload, end });
            return Ok(());
        }
        if !payload.is_empty() || end {
            self.put_data(stream, payload, end);
            if end {
                self.send_end(stream);
            }
        }
        Ok(())
    }

    /// Sends a short part of a body immediately in one frame, by copying the bytes. Returns false, and sends
    /// nothing, if the part would have to be queued, is empty or is too long; the caller then uses
    /// [`Connection::send_data`].
    ///
    /// # Errors
    ///
    /// Returns an error if the stream has ended, or if a server has not sent its head; the stream is reset in
    /// that case.
    pub fn try_send_short(&mut self, stream: Key, bytes: &[u8]) -> Result<bool, SendError> {
        let is_short = (1..=COPIED_BYTES_MAX).contains(&bytes.len());
        if !self.is_free(stream, bytes.len())? || !is_short {
            return Ok(false);
        }
        self.output.frame(kind::DATA, 0, stream.id, bytes);
        self.output.note_call();
        self.use_windows(stream, bytes.len());
        Ok(true)
    }

    /// Sends a gRPC message of `len` bytes. `write` must append the message to its argument, which is usually
    /// the output buffer, so that the message is encoded without being copied. `end` has the same meaning as
    /// in [`Connection::send_data`].
    ///
    /// # Errors
    ///
    /// Returns an error if the stream has ended, or if a server has not sent its head; the stream is reset in
    /// that case. `write` is then not called.
    ///
    /// # Panics
    ///
    /// If `write` does not append exactly `len` bytes, or if `len` is 4 GiB or more.
    pub fn send_message(
        &mut self,
        stream: Key,
        len: usize,
        end: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendError> {
        let prefix = prefix(len, false);
        let all = prefix.len() + len;
        if !self.is_free(stream, all)? || all + HEAD_BYTES > OUTPUT_BYTES {
            let mut message = Vec::with_capacity(len);
            write(&mut message);
            assert_eq!(message.len(), len, "a message was announced with another length");
            return self.send_data(stream, Payload::message(Bytes::from(message), false), end);
        }
        let flags = if end { flag::END_STREAM } else { 0 };
        self.output.write(HEAD_BYTES + all, |out| {
            frame::put_head(out, all, kind::DATA, flags, stream.id);
            out.extend_from_slice(&prefix);
            let start = out.len();
            write(out);
            assert_eq!(out.len() - start, len, "a message was announced with another length");
        });
        self.output.note_call();
        self.use_windows(stream, all);
        if end {
            self.send_end(stream);
        }
        Ok(())
    }

    /// Ends a body with trailers, which are sent after its queued parts: the fields of the template, then
    /// `more`, whose names must be lower case.
    ///
    /// # Errors
    ///
    /// Returns an error if the stream has ended, if a field of `more` is not allowed, or if a server has not
    /// sent its head; the stream is reset in the last case.
    pub fn send_trailers(
        &mut self,
        stream: Key,
        trailers: &Template,
        more: &[(&[u8], &[u8])],
    ) -> Result<(), SendError> {
        check_all(trailers, more).map_err(SendError::Invalid)?;
        // Trailers are queued only behind queued parts of the body, because flow control does not apply to
        // them.
        if !self.is_free(stream, 0)? {
            let owned = |(name, value): &(&[u8], &[u8])| ((*name).into(), (*value).into());
            let block = OwnedBlock { template: trailers.clone(), more: more.iter().map(owned).collect() };
            self.push(stream, Piece::Trailers(Box::new(block)));
            return Ok(());
        }
        self.put_headers(stream.id, true, trailers, more);
        self.send_end(stream);
        Ok(())
    }

    /// Sends a whole response: head, one part of a body, and trailers. The result is the same as with
    /// [`Connection::send_head`], [`Connection::send_data`] and [`Connection::send_trailers`], but this is
    /// cheaper: if the body need not be queued, the stream is looked up only once, and everything is appended
    /// to the output together.
    ///
    /// # Errors
    ///
    /// Returns an error if the stream has ended.
    ///
    /// # Panics
    ///
    /// If this end is a client.
    pub fn send_response(
        &mut self,
        stream: Key,
        head: &Template,
        body: Payload,
        trailers: &Template,
    ) -> Result<(), SendError> {
        assert_eq!(self.role, Role::Server, "only servers respond");
        let state = self.streams.get(stream).filter(|state| !state.sent_end).ok_or(SendError::Closed)?;
        let (id, len, received_end) = (stream.id, body.len(), state.received_end);
        let (prefix, bytes) = body.parts();
        let copied = if bytes.len() <= COPIED_BYTES_MAX { bytes.len() } else { 0 };
        let of_head = HEAD_BYTES + Encoder::bytes_max(head, std::iter::empty());
        let of_trailers = HEAD_BYTES + Encoder::bytes_max(trailers, std::iter::empty());
        let of_all = of_head + HEAD_BYTES + PREFIX_BYTES + copied + of_trailers;
        if len == 0 || of_all > OUTPUT_BYTES || !self.has_turn(state, len) {
            self.send_head(stream, head, &[], false)?;
            self.send_data(stream, body, false)?;
            return self.send_trailers(stream, trailers, &[]);
        }
        let (encoder, is_whole) = (&mut self.encoder, copied == bytes.len());
        self.output.write(of_all, |out| {
            put_block(out, encoder, id, 0, head, &[]);
            frame::put_head(out, len, kind::DATA, 0, id);
            out.extend_from_slice(prefix);
            out.extend_from_slice(&bytes[..copied]);
            if is_whole {
                put_block(out, encoder, id, flag::END_STREAM, trailers, &[]);
            }
        });
        if !is_whole {
            self.output.share(bytes.clone());
            self.output
                .write(of_trailers, |out| put_block(out, encoder, id, flag::END_STREAM, trailers, &[]));
        }
        self.output.note_call();
        // The cast is lossless, because a frame's length has 24 bits. The difference is not negative, because
        // `has_turn` has compared `len` with the window. The window of the stream need not be updated,
        // because the stream ends here.
        self.may_send -= len as i32;
        self.end_response(stream, received_end);
        Ok(())
    }

    /// Ends a stream immediately in both directions and drops its queued parts. Does nothing if it has
    /// already ended.
    pub fn reset(&mut self, stream: Key, reason: Reason) {
        if self.streams.get(stream).is_some() {
            self.put_reset(stream.id, reason);
            self.remove_stream(stream, Gone::ResetHere);
        }
    }

    /// Returns true if the stream is open and this end has sent the head of its message.
    pub fn has_begun(&self, stream: Key) -> bool {
        self.streams.get(stream).is_some_and(|state| state.sent_head)
    }

    /// Returns true if the stream is open.
    pub fn is_open(&self, stream: Key) -> bool {
        self.streams.get(stream).is_some()
    }

    /// Returns the number of body bytes that are queued on a stream.
    pub fn stream_queued_bytes(&self, stream: Key) -> usize {
        self.streams.get(stream).map_or(0, Stream::queued)
    }

    /// Returns the total number of body bytes of a stream that were moved to the output.
    pub fn stream_sent_bytes(&self, stream: Key) -> u64 {
        self.streams.get(stream).map_or(0, |stream| stream.sent)
    }

    /// Returns the number of bytes that could be sent on a stream now: the minimum of both windows and the
    /// free space of the output, minus the bytes that are queued on the stream.
    pub fn room(&self, stream: Key) -> usize {
        let Some(state) = self.streams.get(stream) else { return 0 };
        let window = self.smaller_window(state);
        let output = self.options.output_bytes_max.saturating_sub(self.output.len());
        window.min(output).saturating_sub(state.queued())
    }

    /// Returns the number of bytes that may be queued on a stream so that its next turn has something to
    /// send: what the output has space for beside everything that is queued on streams, but at least one
    /// frame within the windows. A stream whose owner waits for [`Connection::room`] would send nothing as
    /// long as others keep the output full.
    pub fn room_beside_others(&self, stream: Key) -> usize {
        let Some(state) = self.streams.get(stream) else { return 0 };
        let bytes_max = self.smaller_window(state).min(self.options.output_bytes_max);
        let free = bytes_max.saturating_sub(self.output.len() + self.queued_bytes());
        let frame = bytes_max.min(self.payload_bytes_max as usize).saturating_sub(state.queued());
        free.max(frame)
    }

    /// Returns the number of bytes that may be sent on a stream within both windows, minus those that are
    /// queued on it.
    pub fn window_left(&self, stream: Key) -> usize {
        let Some(state) = self.streams.get(stream) else { return 0 };
        self.smaller_window(state).saturating_sub(state.queued())
    }

    /// Returns the smaller of the windows of a stream and of the connection, in bytes; 0 if either is shut.
    fn smaller_window(&self, state: &Stream) -> usize {
        self.window(state.window_change).min(self.may_send.into()).max(0) as usize
    }

    /// Returns true if `bytes` bytes of a stream would go to the output immediately, without queueing.
    pub fn sends_at_once(&self, stream: Key, bytes: usize) -> bool {
        self.streams.get(stream).is_some_and(|state| self.has_turn(state, bytes))
    }

    /// Requests that [`Connection::next_writable`] return the stream once, as soon as nothing is queued on it
    /// and it may send.
    pub fn want_room(&mut self, stream: Key) {
        if let Some(state) = self.streams.get_mut(stream)
            && !state.sent_end
        {
            state.wants_room = true;
            self.wake(stream);
        }
    }

    /// Returns the next stream for which [`Connection::want_room`] was called and that can send now, as
    /// [`Connection::gather`] has found. The stream may have ended since.
    pub fn next_writable(&mut self) -> Option<Key> {
        self.lists.as_mut()?.writable.pop()
    }

    /// Lets streams with queued data send, in rotation, one frame each, until the windows or
    /// [`crate::Options::output_bytes_max`] are reached. To be called before the output is written, and again
    /// after bytes were written.
    pub fn gather(&mut self) {
        while self.output.len() < self.options.output_bytes_max
            && let Some(key) = self.lists.as_mut().and_then(|lists| lists.ready.pop_front())
        {
            if !self.take_turn(key) {
                self.lists.get_or_insert_default().ready.push_front(key);
                break;
            }
        }
    }

    /// Lets one stream send a frame, if its window allows that. Returns false if no stream can send data
    /// because the connection's window is closed.
    fn take_turn(&mut self, key: Key) -> bool {
        let initial = i64::from(self.initial_window);
        // A stream that has ended is skipped.
        let Some(stream) = self.streams.get_mut(key) else { return true };
        let window = initial + i64::from(stream.window_change);
        let allowed = window.min(self.may_send.into()).min(self.payload_bytes_max.into()).max(0) as usize;
        let first = stream.backlog.as_mut().and_then(|backlog| backlog.queue.front_mut());
        match first {
            None if !stream.wants_room => stream.is_ready = false,
            Some(Piece::Data { payload, .. }) if allowed == 0 && !payload.is_empty() => {
                if window > 0 {
                    return false;
                }
                // The stream leaves the list. It is added again when its window opens.
                stream.is_ready = false;
            }
            None if allowed == 0 => {
                if window > 0 {
                    return false;
                }
                stream.is_ready = false;
            }
            None => {
                (stream.is_ready, stream.wants_room) = (false, false);
                self.lists.get_or_insert_default().writable.push(key);
            }
            Some(Piece::Trailers(_)) => self.pop_trailers(key),
            Some(Piece::Data { payload, end }) => {
                let is_whole = payload.len() <= allowed;
                let (part, end) = if is_whole {
                    (std::mem::replace(payload, Payload::from(Bytes::new())), *end)
                } else {
                    (payload.split_to(allowed), false)
                };
                let queued = &mut self.lists.get_or_insert_default().queued;
                queued.bytes -= part.len();
                queued.shared_bytes -= part.shared_len();
                if let Some(backlog) = &mut stream.backlog {
                    backlog.bytes -= part.len();
                    backlog.shared_bytes -= part.shared_len();
                    if is_whole {
                        backlog.queue.pop_front();
                        queued.pieces -= 1;
                    }
                    // Frees the memory of a queue that was long and is now short.
                    let (len, places) = (backlog.queue.len(), backlog.queue.capacity());
                    if len == 0 {
                        stream.backlog = None;
                    } else if places > PLACES_KEPT && len < places / 4 {
                        backlog.queue.shrink_to(2 * len);
                    }
                }
                let trailers_follow = is_whole && matches!(stream.first(), Some(Piece::Trailers(_)));
                let goes_on = !stream.is_empty() || stream.wants_room;
                stream.is_ready = goes_on;
                self.put_data(key, part, end);
                if trailers_follow {
                    self.pop_trailers(key);
                } else if end {
                    self.send_end(key);
                } else if goes_on {
                    self.lists.get_or_insert_default().ready.push_back(key);
                }
            }
        }
        true
    }

    fn pop_trailers(&mut self, key: Key) {
        // The whole queue can be taken, because trailers are its last entry.
        let backlog = self.streams.get_mut(key).and_then(|stream| stream.backlog.take());
        if let Some(Piece::Trailers(block)) = backlog.and_then(|mut backlog| backlog.queue.pop_front()) {
            self.lists.get_or_insert_default().queued.pieces -= 1;
            let more: Vec<(&[u8], &[u8])> =
                block.more.iter().map(|(name, value)| (&**name, &**value)).collect();
            self.put_headers(key.id, true, &block.template, &more);
            self.send_end(key);
        }
    }

    /// Returns true if `bytes` bytes of a stream can be sent immediately: within the windows, and without
    /// overtaking data that is queued on this or another stream.
    fn is_free(&mut self, key: Key, bytes: usize) -> Result<bool, SendError> {
        let stream = self.streams.get(key).filter(|stream| !stream.sent_end).ok_or(SendError::Closed)?;
        if !stream.sent_head {
            // This is a bug of the caller. Only the stream is reset instead of a panic, so that other calls
            // continue.
            self.reset(key, Reason::INTERNAL_ERROR);
            return Err(SendError::NoHead);
        }
        if matches!(stream.last(), Some(Piece::Trailers(_) | Piece::Data { end: true, .. })) {
            return Err(SendError::Closed);
        }
        Ok(self.has_turn(stream, bytes))
    }

    fn has_turn(&self, stream: &Stream, bytes: usize) -> bool {
        let window = self.window(stream.window_change).min(self.may_send.into());
        stream.is_empty()
            && (bytes == 0
                || self.lists.as_ref().is_none_or(|lists| lists.ready.is_empty())
                    && bytes <= self.payload_bytes_max as usize
                    && bytes as i64 <= window
                    && self.output.len() < self.options.output_bytes_max)
    }

    /// Returns the send window of a stream in bytes; `change` is its [`Stream::window_change`].
    fn window(&self, change: i32) -> i64 {
        i64::from(self.initial_window) + i64::from(change)
    }

    fn push(&mut self, key: Key, piece: Piece) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if let Piece::Data { payload, end } = &piece
            && payload.is_empty()
        {
            // An end without data needs no window (RFC 9113, section 6.9.1), so it need not wait in a frame
            // of its own: it is attached to the last queued data instead of being queued.
            let last = stream.backlog.as_mut().and_then(|backlog| backlog.queue.back_mut());
            if let (true, Some(Piece::Data { end: last, .. })) = (*end, last) {
                *last = true;
                return;
            }
            if !*end {
                return;
            }
        }
        let backlog = stream.backlog.get_or_insert_default();
        let queued = &mut self.lists.get_or_insert_default().queued;
        if let Piece::Data { payload, .. } = &piece {
            backlog.bytes += payload.len();
            queued.bytes += payload.len();
            backlog.shared_bytes += payload.shared_len();
            queued.shared_bytes += payload.shared_len();
        }
        backlog.queue.push_back(piece);
        queued.pieces += 1;
        self.wake(key);
    }

    /// Adds a stream to the list of streams that are ready to send, if it has anything to send and its window
    /// is open.
    pub(crate) fn wake(&mut self, key: Key) {
        let initial = i64::from(self.initial_window);
        let Some(stream) = self.streams.get_mut(key) else { return };
        let is_open = initial + i64::from(stream.window_change) > 0;
        let needs_window = !matches!(stream.first(), Some(Piece::Trailers(_)));
        let has_work = !stream.is_empty() || stream.wants_room;
        if stream.is_ready || !has_work || needs_window && !is_open {
            return;
        }
        stream.is_ready = true;
        let ready = &mut self.lists.get_or_insert_default().ready;
        ready.push_back(key);
        // Streams that have ended are removed when the list has grown. Otherwise they would stay until they
        // are reached, which may never happen while the connection's window is closed.
        if ready.len() > 2 * self.streams.len() + 64 {
            let streams = &self.streams;
            ready.retain(|key| streams.get(*key).is_some());
        }
    }

    /// Adds the streams that were waiting for a larger initial window to the list of streams that are ready
    /// to send.
    pub(crate) fn wake_all(&mut self) {
        let waits = |(key, stream): (Key, &crate::stream::Stream)| {
            (!stream.is_ready && (!stream.is_empty() || stream.wants_room)).then_some(key)
        };
        let keys: Vec<Key> = self.streams.iter().filter_map(waits).collect();
        keys.into_iter().for_each(|key| self.wake(key));
    }

    fn put_data(&mut self, key: Key, payload: Payload, end: bool) {
        let flags = if end { flag::END_STREAM } else { 0 };
        let len = payload.len();
        let (prefix, body) = payload.parts();
        self.output.data(flags, key.id, prefix, body.clone());
        self.use_windows(key, len);
    }

    fn use_windows(&mut self, key: Key, bytes: usize) {
        // The casts are lossless, because a frame's length has 24 bits. The caller has compared `bytes` with
        // both windows, so the differences do not overflow.
        self.may_send -= bytes as i32;
        if let Some(stream) = self.streams.get_mut(key) {
            stream.window_change -= bytes as i32;
            stream.sent += bytes as u64;
        }
    }

    /// Notes that this end has finished a stream. Removes the stream if the peer has finished, too, or if
    /// this end is a server.
    fn send_end(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.sent_end = true;
        stream.wants_room = false;
        let received_end = stream.received_end;
        if self.role == Role::Server {
            self.end_response(key, received_end);
        } else if received_end {
            self.remove_stream(key, Gone::Ended);
        }
    }

    /// Removes a stream after the end of its response was sent.
    fn end_response(&mut self, key: Key, received_end: bool) {
        if let Some(buckets) = &mut self.buckets {
            buckets.early_resets.give_back();
        }
        if received_end {
            self.remove_stream(key, Gone::Ended);
        } else {
            // Tells the peer that the rest of the request is not needed (section 8.1).
            self.put_reset(key.id, Reason::NO_ERROR);
            self.remove_stream(key, Gone::ResetHere);
        }
    }

    /// Appends a header block in as many frames as needed.
    pub(crate) fn put_headers(&mut self, id: u32, end: bool, template: &Template, more: &[(&[u8], &[u8])]) {
        let flags = if end { flag::END_STREAM } else { 0 };
        let fields = || more.iter().copied();
        let bytes_max = HEAD_BYTES + Encoder::bytes_max(template, fields());
        let encoder = &mut self.encoder;
        if bytes_max <= OUTPUT_BYTES {
            self.output.write(bytes_max, |out| put_block(out, encoder, id, flags, template, more));
            self.output.note_call();
            return;
        }
        let mut block = Vec::with_capacity(bytes_max);
        encoder.encode(template, fields(), &mut block);
        // Payloads of this size are within the limit that each peer accepts.
        let mut parts = block.chunks(OUTPUT_BYTES - HEAD_BYTES).peekable();
        let (mut of_frame, mut flags) = (kind::HEADERS, flags);
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                flags |= flag::END_HEADERS;
            }
            self.output.frame(of_frame, flags, id, part);
            (of_frame, flags) = (kind::CONTINUATION, 0);
        }
        self.output.note_call();
    }
}

/// Appends a header block that fits one frame.
fn put_block(
    out: &mut Vec<u8>,
    encoder: &mut Encoder,
    id: u32,
    flags: u8,
    template: &Template,
    more: &[(&[u8], &[u8])],
) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    encoder.encode(template, more.iter().copied(), out);
    let head = frame::head(out.len() - start - HEAD_BYTES, kind::HEADERS, flags | flag::END_HEADERS, id);
    out[start..start + HEAD_BYTES].copy_from_slice(&head);
}
