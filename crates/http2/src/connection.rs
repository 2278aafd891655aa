//! Defines [`Connection`], one end of an HTTP/2 connection: the state that both directions share, and the
//! beginning and end of the connection. The modules `receive` and `send` implement the two directions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::assembly::Assembly;
use crate::buffers::Output;
use crate::flow::{self, Growth};
use crate::frame::{self, PREFACE, STREAM_MAX, WINDOW_BYTES, WINDOW_BYTES_MAX, kind, setting};
use crate::hpack::{Decoder, Encoder, TABLE_BYTES};
use crate::options::{Bucket, Limits, Options};
use crate::reason::{ConnectionError, Limit, Reason};
use crate::stream::{Key, Stream, Streams};

/// Role of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Receives requests and sends responses.
    Server,
    /// Sends requests and receives responses.
    Client,
}

/// Payloads of the PINGs that this end sends for its own purposes, by which it recognizes their
/// acknowledgements.
pub(crate) const SHUTDOWN_PING: u64 = 0x4d53_5348_5554_444f;
pub(crate) const GROWTH_PING: u64 = 0x4d53_4752_4f57_5448;

/// Minimum size of the connection's window, in stream windows, once stream windows have grown. A stream whose
/// consumer stops uses up one stream window, and the other streams continue with the rest.
const GROWN_STREAMS: u32 = 4;

/// This end remembers at most this many streams that it has reset, the latest ones: frames that were in
/// flight at the reset may still arrive for them, and are no error.
const RESETS_MAX: usize = 64;
/// This end remembers at most this many streams that have ended in another way, the latest ones: a frame for
/// one of them is an error, because the peer has ended its side of the stream.
const ENDED_MAX: usize = 4;

/// Way in which a stream has ended, as far as it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// This end reset the stream: frames that were in flight are no error.
    ResetHere,
    /// Both ends have finished the stream, or the peer has reset it: no frame may follow.
    Ended,
    /// The stream is no longer remembered, or was never used.
    Unknown,
}

/// Time in milliseconds after which all frames that were in flight at a reset are assumed to have arrived.
const UNDER_WAY_MS: u32 = 10_000;

/// The latest streams that have ended.
#[derive(Default)]
struct Closed {
    ended: [u32; ENDED_MAX],
    next_ended: u8,
    resets: Option<Box<Resets>>,
}

/// The latest streams that this end reset.
#[derive(Default)]
struct Resets {
    list: Vec<u32>,
    /// Index of the oldest element, which is overwritten next once the list is full.
    next: u8,
    /// Time of the last reset, in milliseconds as in [`Connection::now`].
    last: u32,
}

impl Closed {
    fn add_ended(&mut self, id: u32) {
        self.ended[usize::from(self.next_ended)] = id;
        self.next_ended = (self.next_ended + 1) % ENDED_MAX as u8;
    }

    fn add_reset(&mut self, id: u32, now: u32) {
        let resets = self.resets.get_or_insert_default();
        resets.last = now;
        if resets.list.len() < RESETS_MAX {
            resets.list.push(id);
        } else {
            resets.list[usize::from(resets.next)] = id;
            resets.next = (resets.next + 1) % RESETS_MAX as u8;
        }
    }

    fn heap_bytes(&self) -> usize {
        let resets = |resets: &Resets| size_of::<Resets>() + resets.list.capacity() * size_of::<u32>();
        self.resets.as_deref().map_or(0, resets)
    }

    fn find(&self, id: u32) -> Gone {
        if self.resets.as_ref().is_some_and(|resets| resets.list.contains(&id)) {
            Gone::ResetHere
        } else if self.ended.contains(&id) {
            Gone::Ended
        } else {
            Gone::Unknown
        }
    }
}

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A server waits for the client's preface.
    Preface,
    /// This end waits for the peer's first SETTINGS.
    FirstSettings,
    Open,
    /// The connection has ended: GOAWAY was sent, and no frame is processed or sent any more.
    Over,
}

/// Progress of a graceful shutdown by this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    No,
    /// GOAWAY was sent, and a PING whose acknowledgement shows that the peer has received it.
    Announced,
    /// The last accepted stream was announced.
    Final,
}

/// Counters of the rate limits. Allocated only while at least one limit does not allow its full burst.
#[derive(Default)]
pub(crate) struct Buckets {
    pub(crate) early_resets: Bucket,
    pub(crate) provoked_resets: Bucket,
    pub(crate) settings: Bucket,
    pub(crate) pings: Bucket,
    pub(crate) empty_data: Bucket,
    pub(crate) goaways: Bucket,
    /// Value of [`Output::appended_of_calls`] when the last PING arrived.
    pub(crate) sent_before_ping: u64,
}

impl Buckets {
    /// Returns true if every limit allows its full burst again.
    fn are_full(&self, limits: &Limits, now: u32) -> bool {
        self.early_resets.is_full(limits.early_resets, now)
            && self.provoked_resets.is_full(limits.provoked_resets, now)
            && self.settings.is_full(limits.settings, now)
            && self.pings.is_full(limits.pings, now)
            && self.empty_data.is_full(limits.empty_data, now)
            && self.goaways.is_full(limits.goaways, now)
    }
}

/// Lists of streams with work to do. Allocated when a stream enters one of the lists, freed when the
/// connection is idle.
#[derive(Default)]
pub(crate) struct Lists {
    /// Streams with data to send, in the order in which they send one frame each. Some of the streams may
    /// have ended.
    pub(crate) ready: VecDeque<Key>,
    /// Streams that can send again, and that the caller asked for with [`Connection::want_room`].
    pub(crate) writable: Vec<Key>,
    /// Streams that a GOAWAY of the peer refuses. An event ends each of them.
    pub(crate) cut_off: Vec<Key>,
    pub(crate) queued: Queued,
}

/// Totals over all streams of data queued for sending.
#[derive(Clone, Copy, Default)]
pub(crate) struct Queued {
    /// Number of queued bytes of bodies.
    pub(crate) bytes: usize,
    /// Number of those bytes whose payloads are shared with other streams.
    pub(crate) shared_bytes: usize,
    /// Number of queue entries: each is a payload of a body, or the trailers of a stream.
    pub(crate) pieces: usize,
}

/// One HTTP/2 connection, seen from one end.
///
/// Holds the protocol state (RFC 9113) with its streams, header tables and windows. The owner drives it in
/// turns. A turn passes the time ([`Connection::begin_turn`]) and received bytes ([`Connection::next`]),
/// handles events by calling commands, lets queued streams send ([`Connection::gather`]), and writes
/// [`Connection::output`].
///
/// Trade-off: bodies are returned as slices of the input, so the owner copies what it keeps, once, into
/// memory of the right size, and the input buffer is free again at the end of the turn. The rejected
/// alternative, reference-counted slices of the buffer, saves that copy, but then a slice of five bytes could
/// keep 32 KiB of memory alive, and each slice would need a counter.
///
/// The fields are many and small. They are not grouped into structs, because that could enlarge the
/// connection, whose size a test bounds, and because most frames need fields of several such groups.
pub struct Connection {
    pub(crate) role: Role,
    pub(crate) phase: Phase,
    pub(crate) leaving: Leaving,
    pub(crate) options: Arc<Options>,
    /// Instant from which `now` is counted.
    epoch: Instant,
    /// Time of the current turn in milliseconds since `epoch`; wraps after 49 days.
    pub(crate) now: u32,
    pub(crate) turn: u32,
    /// Error of the peer that has ended the connection; further calls of [`Connection::next`] return it
    /// again.
    pub(crate) error: Option<Box<ConnectionError>>,
    pub(crate) output: Output,
    pub(crate) decoder: Decoder,
    pub(crate) encoder: Encoder,
    pub(crate) streams: Streams,
    closed: Closed,
    /// Header block whose frames have not all arrived.
    pub(crate) assembly: Option<Box<Assembly>>,
    pub(crate) lists: Option<Box<Lists>>,
    /// Highest identifier of a stream that the peer has opened.
    pub(crate) last_peer_stream: u32,
    /// Highest identifier of a stream of the peer that is accepted, as announced in GOAWAY.
    last_taken: u32,
    /// Identifier of the next stream that this end opens; above [`STREAM_MAX`] if no identifiers are left.
    pub(crate) next_stream: u32,
    /// Maximum number of concurrent streams that the peer allows.
    pub(crate) peer_streams_max: u32,
    /// Maximum payload of a frame that this end sends, in bytes.
    pub(crate) payload_bytes_max: u32,
    /// Initial send window of streams, in bytes.
    pub(crate) initial_window: u32,
    /// Upper bound on the `window_change` of all streams.
    pub(crate) window_change_max: i64,
    /// Send window of the connection, in bytes.
    pub(crate) may_send: i32,
    /// Receive window of the connection, in bytes.
    pub(crate) may_receive: i32,
    /// Data bytes of all open streams that were passed to the consumer and not released yet.
    pub(crate) unreleased: u64,
    pub(crate) growth: Growth,
    /// Initial receive window of new streams, in bytes.
    pub(crate) receive_initial: u32,
    /// True until the peer has acknowledged this end's settings. The peer may take any time for it, as at
    /// etcd: until then each stream has at least the default window, and all other limits hold.
    pub(crate) awaits_settings_ack: bool,
    /// True once the peer has sent GOAWAY: it accepts no further streams.
    pub(crate) peer_is_leaving: bool,
    /// Highest identifier of a stream of this end that the peer still serves, as announced in the peer's last
    /// GOAWAY.
    pub(crate) peer_last_taken: u32,
    pub(crate) buckets: Option<Box<Buckets>>,
}

impl Connection {
    /// Creates one end of a connection. Its output already contains the first bytes to write: the settings,
    /// preceded by the preface if this end is a client.
    pub fn new(role: Role, options: &Arc<Options>, now: Instant) -> Connection {
        let window = options.stream_window();
        let mut connection = Connection {
            role,
            phase: if role == Role::Server { Phase::Preface } else { Phase::FirstSettings },
            leaving: Leaving::No,
            options: options.clone(),
            epoch: now,
            now: 0,
            turn: 0,
            error: None,
            output: Output::default(),
            decoder: Decoder::new(options.header_list_bytes_max),
            encoder: Encoder::new(),
            streams: Streams::default(),
            closed: Closed::default(),
            assembly: None,
            lists: None,
            last_peer_stream: 0,
            last_taken: STREAM_MAX,
            next_stream: if role == Role::Client { 1 } else { 2 },
            peer_streams_max: u32::MAX,
            payload_bytes_max: frame::PAYLOAD_BYTES_MAX as u32,
            initial_window: WINDOW_BYTES,
            window_change_max: 0,
            may_send: WINDOW_BYTES as i32,
            may_receive: WINDOW_BYTES as i32,
            unreleased: 0,
            growth: Growth::new(window, options.stream_window_bytes_max),
            // Not below the default window, which the peer may use until it has received the settings
            // (section 6.9.3).
            receive_initial: window.max(WINDOW_BYTES),
            awaits_settings_ack: true,
            peer_is_leaving: false,
            peer_last_taken: STREAM_MAX,
            buckets: None,
        };
        connection.greet();
        connection
    }

    fn greet(&mut self) {
        let options = self.options.clone();
        let mut settings = Vec::with_capacity(5);
        settings.push((setting::INITIAL_WINDOW_SIZE, options.stream_window()));
        settings.push((setting::MAX_HEADER_LIST_SIZE, options.header_list_bytes_max));
        match self.role {
            Role::Client => settings.push((setting::ENABLE_PUSH, 0)),
            Role::Server if options.streams_max < u32::MAX => {
                settings.push((setting::MAX_CONCURRENT_STREAMS, options.streams_max));
            }
            Role::Server => {}
        }
        if options.header_table_bytes < TABLE_BYTES as u32 {
            settings.push((setting::HEADER_TABLE_SIZE, options.header_table_bytes));
        }
        let is_client = self.role == Role::Client;
        self.output.write(128, |out| {
            if is_client {
                out.extend_from_slice(PREFACE);
            }
            frame::put_head(out, settings.len() * 6, kind::SETTINGS, 0, 0);
            for (name, value) in settings {
                out.extend_from_slice(&name.to_be_bytes());
                out.extend_from_slice(&value.to_be_bytes());
            }
        });
        let more = self.connection_target() - WINDOW_BYTES;
        if more > 0 {
            self.may_receive += more as i32;
            self.put_window_update(0, more);
        }
    }

    /// Returns the role of this end.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Begins a turn at the time `now`, which rate limits, measurements and the settings timeout use.
    pub fn begin_turn(&mut self, now: Instant) {
        // The cast wraps after 49 days, which all comparisons of these times tolerate.
        self.now = now.saturating_duration_since(self.epoch).as_millis() as u32;
        self.turn = self.turn.wrapping_add(1);
    }

    /// Returns the output, which contains the bytes to write. [`Connection::gather`] moves queued bodies from
    /// their streams into it.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Returns true if so much output is pending that no input is processed: the peer does not read the
    /// output, and further input would cause further output. While this is so, the owner should not read from
    /// the network. When the connection is no longer blocked, the owner must first pass the input that it has
    /// read before, which may still contain complete frames.
    pub fn is_blocked(&self) -> bool {
        self.output.len() >= self.options.output_bytes_max.saturating_mul(2)
    }

    /// Returns true if the connection has ended; the output then contains its last bytes.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Returns the number of open streams.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the keys of all open streams, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.streams.iter().map(|(key, _)| key)
    }

    fn queued(&self) -> Queued {
        self.lists.as_ref().map_or(Queued::default(), |lists| lists.queued)
    }

    /// Returns the bytes of bodies that are queued in streams.
    pub fn queued_bytes(&self) -> usize {
        self.queued().bytes
    }

    /// Returns the part of [`Connection::queued_bytes`] that belongs to shared payloads
    /// ([`crate::Payload::shared`]).
    pub fn queued_shared_bytes(&self) -> usize {
        self.queued().shared_bytes
    }

    /// Returns the number of payloads and trailers that are queued in streams. Each takes about 60 bytes of
    /// memory in addition to its content.
    pub fn queued_pieces(&self) -> usize {
        self.queued().pieces
    }

    /// Returns true if a header block has arrived in part.
    pub fn is_amid_header_block(&self) -> bool {
        self.assembly.is_some()
    }

    /// Returns the data bytes of all open streams that were passed to the consumer and not released yet.
    pub fn unreleased_bytes(&self) -> u64 {
        self.unreleased
    }

    /// Returns the heap memory of the connection in bytes, without bodies and input buffers.
    pub fn heap_bytes(&self) -> usize {
        let lists = |lists: &Lists| {
            let keys = lists.ready.capacity() + lists.writable.capacity() + lists.cut_off.capacity();
            size_of::<Lists>() + keys * size_of::<Key>()
        };
        self.output.heap_bytes()
            + self.decoder.heap_bytes()
            + self.encoder.heap_bytes()
            + self.streams.heap_bytes()
            + self.lists.as_deref().map_or(0, lists)
            + self.buckets.as_ref().map_or(0, |_| size_of::<Buckets>())
            + self.closed.heap_bytes()
            + self.assembly.as_ref().map_or(0, |assembly| size_of::<Assembly>() + assembly.heap_bytes())
    }

    /// Frees memory that is kept only to make further work cheaper. To be called when the connection has been
    /// idle for a while.
    pub fn rest(&mut self) {
        self.output.rest();
        self.decoder.rest();
        self.encoder.rest();
        self.streams.rest();
        let is_unused = |lists: &Lists| {
            let is_listed =
                !(lists.ready.is_empty() && lists.writable.is_empty() && lists.cut_off.is_empty());
            !is_listed && lists.queued.pieces == 0
        };
        if self.lists.as_deref().is_some_and(is_unused) {
            self.lists = None;
        }
        let (limits, now) = (&self.options.limits, self.now);
        if self.buckets.as_ref().is_some_and(|buckets| buckets.are_full(limits, now)) {
            self.buckets = None;
        }
        let is_past = |resets: &Resets| now.wrapping_sub(resets.last) >= UNDER_WAY_MS;
        if self.closed.resets.as_deref().is_some_and(is_past) {
            self.closed.resets = None;
        }
    }

    /// Sends a PING. Its acknowledgement arrives as [`crate::Event::Pong`] with the same number.
    pub fn ping(&mut self, number: u64) {
        if self.phase != Phase::Over {
            self.output.frame(kind::PING, 0, 0, &number.to_be_bytes());
        }
    }

    /// Begins a graceful shutdown in two steps (RFC 9113, section 6.8). The first GOAWAY asks the peer to
    /// open no more streams; streams opened before the peer receives it are still accepted. When the
    /// acknowledgement of a PING shows that the peer has received it, a second GOAWAY announces the last
    /// accepted stream. [`Connection::open_streams`] falls to 0 at the end.
    pub fn shut_down(&mut self) {
        if self.phase == Phase::Over || self.leaving != Leaving::No {
            return;
        }
        self.leaving = Leaving::Announced;
        self.put_goaway(STREAM_MAX, Reason::NO_ERROR, b"");
        self.ping(SHUTDOWN_PING);
    }

    /// Returns true if a shutdown has begun and the last accepted stream was announced.
    pub fn has_said_last_stream(&self) -> bool {
        self.leaving == Leaving::Final
    }

    /// Performs the second step of a graceful shutdown: announces the last accepted stream.
    pub(crate) fn say_last_stream(&mut self) {
        self.leaving = Leaving::Final;
        self.last_taken = self.last_peer_stream;
        self.put_goaway(self.last_taken, Reason::NO_ERROR, b"");
    }

    /// Ends the connection immediately: all streams end, and a GOAWAY with `reason` and `debug` is appended
    /// to the output.
    pub fn close(&mut self, reason: Reason, debug: &[u8]) {
        if self.phase != Phase::Over {
            // The minimum is taken because the last stream in a GOAWAY must not be higher than in an earlier
            // one (section 6.8).
            self.put_goaway(
                self.last_peer_stream.min(self.last_taken),
                reason,
                &debug[..debug.len().min(1024)],
            );
            self.end();
        }
    }

    /// Ends the connection because of an error of the peer.
    #[cold]
    pub(crate) fn fail(&mut self, error: ConnectionError) -> ConnectionError {
        self.put_goaway(self.last_peer_stream.min(self.last_taken), error.reason, error.text().as_bytes());
        self.error = Some(Box::new(error));
        self.end();
        error
    }

    fn end(&mut self) {
        self.phase = Phase::Over;
        self.streams = Streams::default();
        self.assembly = None;
        self.lists = None;
        self.unreleased = 0;
    }

    fn put_goaway(&mut self, last: u32, reason: Reason, debug: &[u8]) {
        self.output.write(frame::HEAD_BYTES + 8 + debug.len(), |out| {
            frame::put_head(out, 8 + debug.len(), kind::GOAWAY, 0, 0);
            out.extend_from_slice(&last.to_be_bytes());
            out.extend_from_slice(&reason.0.to_be_bytes());
            out.extend_from_slice(debug);
        });
    }

    /// Counts one occurrence against a rate limit, and fails if the limit is exceeded. Always fails for a
    /// limit that is not a rate.
    pub(crate) fn count(&mut self, limit: Limit) -> Result<(), ConnectionError> {
        let (limits, buckets) = (&self.options.limits, self.buckets.get_or_insert_default());
        let (bucket, rate) = match limit {
            Limit::EarlyResets => (&mut buckets.early_resets, limits.early_resets),
            Limit::ProvokedResets => (&mut buckets.provoked_resets, limits.provoked_resets),
            Limit::Settings => (&mut buckets.settings, limits.settings),
            Limit::Pings => (&mut buckets.pings, limits.pings),
            Limit::EmptyData => (&mut buckets.empty_data, limits.empty_data),
            Limit::GoAways => (&mut buckets.goaways, limits.goaways),
            Limit::Continuations | Limit::HeaderBlock | Limit::HeaderList => {
                return Err(ConnectionError::limit(limit));
            }
        };
        if bucket.take(rate, self.now) { Ok(()) } else { Err(ConnectionError::limit(limit)) }
    }

    /// Adds a stream and returns its key.
    pub(crate) fn add_stream(&mut self, id: u32) -> Key {
        // The cast is lossless, because the initial window is at most 2^31-1.
        self.streams.insert(Stream::new(id, self.turn, self.receive_initial as i32))
    }

    /// Removes a stream, and returns its unreleased bytes to the connection's window.
    pub(crate) fn remove_stream(&mut self, key: Key, how: Gone) {
        let Some(stream) = self.streams.remove(key) else { return };
        match how {
            Gone::ResetHere => self.closed.add_reset(key.id, self.now),
            Gone::Ended | Gone::Unknown => self.closed.add_ended(key.id),
        }
        if let Some(backlog) = &stream.backlog {
            let queued = &mut self.lists.get_or_insert_default().queued;
            queued.bytes -= backlog.bytes;
            queued.shared_bytes -= backlog.shared_bytes;
            queued.pieces -= backlog.queue.len();
        }
        if stream.unreleased > 0 {
            self.unreleased -= u64::from(stream.unreleased);
            self.update_window();
        }
        if self.streams.len() == 0 {
            self.window_change_max = 0;
            if let Some(lists) = &mut self.lists {
                lists.ready.clear();
            }
        }
    }

    pub(crate) fn note_closed(&mut self, id: u32, how: Gone) {
        match how {
            Gone::ResetHere => self.closed.add_reset(id, self.now),
            Gone::Ended | Gone::Unknown => self.closed.add_ended(id),
        }
    }

    pub(crate) fn how_gone(&self, id: u32) -> Gone {
        self.closed.find(id)
    }

    /// Returns true if a stream with this identifier was never opened.
    pub(crate) fn is_idle(&self, id: u32) -> bool {
        let is_peers = id.is_multiple_of(2) == (self.role == Role::Client);
        if is_peers { id > self.last_peer_stream } else { id >= self.next_stream }
    }

    /// Appends RST_STREAM.
    pub(crate) fn put_reset(&mut self, id: u32, reason: Reason) {
        self.output.frame(kind::RST_STREAM, 0, id, &reason.0.to_be_bytes());
    }

    /// Returns the size that the connection's receive window should have.
    fn connection_target(&self) -> u32 {
        let stream = self.growth.target;
        let streams = if stream > self.options.stream_window() { GROWN_STREAMS } else { 1 };
        stream.saturating_mul(streams).min(WINDOW_BYTES_MAX).max(self.options.connection_window())
    }

    /// Sends the peer an update of the connection's receive window, if the increase is worth a frame.
    pub(crate) fn update_window(&mut self) {
        let target = self.connection_target();
        let more = flow::update(target, self.may_receive.into(), self.unreleased);
        if more > 0 {
            let more = more.min(WINDOW_BYTES_MAX - self.may_receive.max(0) as u32);
            self.may_receive += more as i32;
            self.put_window_update(0, more);
        }
    }

    pub(crate) fn put_window_update(&mut self, stream: u32, more: u32) {
        self.output.frame(kind::WINDOW_UPDATE, 0, stream, &more.to_be_bytes());
    }

    /// Returns `bytes` bytes of a stream's data to the flow-control windows. The consumer calls this when it
    /// no longer needs them, so that the peer may send as many more. Does nothing for a stream that has
    /// ended, because its bytes were returned when it ended.
    pub fn release(&mut self, stream: Key, bytes: usize) {
        let target = self.growth.target;
        let Some(state) = self.streams.get_mut(stream) else { return };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(state.unreleased);
        state.unreleased -= bytes;
        self.unreleased -= u64::from(bytes);
        if !state.received_end {
            let more = flow::update(target, state.may_receive.into(), state.unreleased.into());
            if more > 0 {
                let more = more.min(WINDOW_BYTES_MAX - state.may_receive.max(0) as u32);
                // The cast is lossless: a negative window plus at most 2^31-1 fits 32 bits, and for other
                // windows `more` was limited in the line above.
                state.may_receive = (i64::from(state.may_receive) + i64::from(more)) as i32;
                self.put_window_update(stream.id, more);
            }
        }
        self.update_window();
    }

    /// Returns the data bytes of a stream that were passed to the consumer and not released.
    pub fn stream_unreleased_bytes(&self, stream: Key) -> usize {
        self.streams.get(stream).map_or(0, |stream| stream.unreleased as usize)
    }
}
