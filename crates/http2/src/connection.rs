//! [`Connection`]: what both directions share, and how a connection begins and ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buffers::Output;
use crate::flow::{self, Growth};
use crate::frame::{self, PREFACE, STREAM_MAX, WINDOW_BYTES, WINDOW_BYTES_MAX, kind, setting};
use crate::hpack::{Decoder, Encoder, TABLE_BYTES};
use crate::options::{Bucket, Limits, Options};
use crate::reason::{ConnectionError, Limit, Reason};
use crate::receive::Assembly;
use crate::stream::{Key, Stream, Streams};

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes requests.
    Server,
    /// Makes requests.
    Client,
}

/// What pings of the connection's own are recognised by when they are answered.
pub(crate) const SHUTDOWN_PING: u64 = 0x4d53_5348_5554_444f;
pub(crate) const GROWTH_PING: u64 = 0x4d53_4752_4f57_5448;

/// Windows of streams for which the connection's has room once they have grown: a consumer that stops holds one of them, and
/// the other streams go on with the rest.
const GROWN_STREAMS: u32 = 4;

/// Streams that were reset here and are remembered, since frames that were on their way may still come for them.
const RESETS_MAX: usize = 64;
/// Streams that ended otherwise and are remembered, to tell a frame that comes too late from one that never may.
const ENDED_MAX: usize = 4;

/// How a stream that is gone came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// This end reset it: frames that were on their way are no mistake.
    ResetHere,
    /// Both ends were done, or the other end reset it: nothing may follow.
    Ended,
    /// It is so long ago that it is not known, or it was never used.
    Unknown,
}

/// Time after which what was under way for a stream, when it was reset here, has come.
const UNDER_WAY_MS: u32 = 10_000;

/// Streams that are gone, as far as they are remembered.
#[derive(Default)]
struct Closed {
    ended: [u32; ENDED_MAX],
    next_ended: u8,
    resets: Option<Box<Resets>>,
}

/// Streams that this end reset.
#[derive(Default)]
struct Resets {
    list: Vec<u32>,
    /// Place of the next one, once there are as many as may be.
    next: u8,
    /// Time at which the last one was reset, in milliseconds as [`Connection::now`].
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

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The client's preface has to come.
    Preface,
    /// The other end's first SETTINGS have to come.
    FirstSettings,
    Open,
    /// GOAWAY was sent that ends everything.
    Over,
}

/// How far a graceful shutdown of this end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    No,
    /// The other end was told, and a ping tells when it must have heard.
    Announced,
    /// The last stream that is taken was told.
    Final,
}

/// Rates that are counted. A connection has them only while one of them was used and is not regained.
#[derive(Default)]
pub(crate) struct Buckets {
    pub(crate) early_resets: Bucket,
    pub(crate) provoked_resets: Bucket,
    pub(crate) settings: Bucket,
    pub(crate) pings: Bucket,
    pub(crate) empty_data: Bucket,
    pub(crate) goaways: Bucket,
    /// Bytes of calls that had been sent when the last PING came.
    pub(crate) sent_before_ping: u64,
}

impl Buckets {
    /// Returns true if as much is allowed as at the beginning.
    fn are_full(&self, limits: &Limits, now: u32) -> bool {
        self.early_resets.is_full(limits.early_resets, now)
            && self.provoked_resets.is_full(limits.provoked_resets, now)
            && self.settings.is_full(limits.settings, now)
            && self.pings.is_full(limits.pings, now)
            && self.empty_data.is_full(limits.empty_data, now)
            && self.goaways.is_full(limits.goaways, now)
    }
}

/// Lists of streams. A connection has them once a stream was in one, until it rests.
#[derive(Default)]
pub(crate) struct Lists {
    /// Those that have something to send, in the order of their turns. Some may be over.
    pub(crate) ready: VecDeque<Key>,
    /// Those of which the caller wants to know that there is room, and there is.
    pub(crate) writable: Vec<Key>,
    /// Those that GOAWAY ended.
    pub(crate) cut_off: Vec<Key>,
    pub(crate) queued: Queued,
}

/// Sums over all streams of what waits to be sent.
#[derive(Clone, Copy, Default)]
pub(crate) struct Queued {
    /// Bytes of bodies.
    pub(crate) bytes: usize,
    /// Of these, bytes that others send too.
    pub(crate) shared_bytes: usize,
    /// Pieces of bodies, and trailers.
    pub(crate) pieces: usize,
}

/// One HTTP/2 connection as seen from one end.
///
/// What it is: the state of the protocol (RFC 9113) with its streams, header tables and windows. What drives it: its owner,
/// in turns. A turn tells the time ([`Connection::begin_turn`]), hands over what was read ([`Connection::next`]), answers
/// events by commands, lets streams that wait send ([`Connection::gather`]), and writes [`Connection::output`].
///
/// What it trades: bodies are handed over where they were read, so the owner copies what it keeps, once and into memory of
/// the right size; a buffer for input is free again at the end of the turn. The alternative, slices that share the buffer,
/// saves that copy but lets five bytes keep 32 KiB alive, and needs a counter for each slice.
pub struct Connection {
    pub(crate) role: Role,
    pub(crate) phase: Phase,
    pub(crate) leaving: Leaving,
    pub(crate) options: Arc<Options>,
    /// Time at which the clock of milliseconds began.
    epoch: Instant,
    /// Milliseconds since then; they wrap.
    pub(crate) now: u32,
    pub(crate) turn: u32,
    /// Why the connection is over, if the other end caused it.
    pub(crate) error: Option<Box<ConnectionError>>,
    pub(crate) output: Output,
    pub(crate) decoder: Decoder,
    pub(crate) encoder: Encoder,
    pub(crate) streams: Streams,
    closed: Closed,
    /// A header block whose frames have not all come.
    pub(crate) assembly: Option<Box<Assembly>>,
    pub(crate) lists: Option<Box<Lists>>,
    /// Highest stream that the other end opened.
    pub(crate) last_peer_stream: u32,
    /// Highest stream of the other end that is taken, as it was told.
    last_taken: u32,
    /// Next stream that this end opens; above [`STREAM_MAX`] if there are none left.
    pub(crate) next_stream: u32,
    /// Streams that the other end allows at once.
    pub(crate) peer_streams_max: u32,
    /// Largest payload that is sent.
    pub(crate) payload_bytes_max: u32,
    /// Initial send window of streams.
    pub(crate) initial_window: u32,
    /// Highest value that a stream's `window_change` may have by now.
    pub(crate) window_change_max: i64,
    /// Bytes that this end may still send on all streams.
    pub(crate) may_send: i32,
    /// Bytes that the other end may still send on all streams.
    pub(crate) may_receive: i32,
    /// Bytes that were handed to the consumer and not released yet.
    pub(crate) unreleased: u64,
    pub(crate) growth: Growth,
    /// Receive window of new streams.
    pub(crate) receive_initial: u32,
    /// When the settings were sent that are not acknowledged yet.
    pub(crate) settings_sent: Option<u32>,
    /// The other end said that it takes no more streams.
    pub(crate) peer_is_leaving: bool,
    /// Highest stream of this end that the other end takes, as it told last.
    pub(crate) peer_last_taken: u32,
    pub(crate) buckets: Option<Box<Buckets>>,
}

impl Connection {
    /// Begins a connection at this end. Its first bytes are in the output: the settings, and before them a client's preface.
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
            // Until the other end has seen the settings, it may go by the usual window (section 6.9.3).
            receive_initial: window.max(WINDOW_BYTES),
            settings_sent: Some(0),
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

    /// Which end this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Begins a turn: time passes, for limits that are rates and for what is measured.
    pub fn begin_turn(&mut self, now: Instant) {
        // It wraps after 49 days, which all that compare it bear.
        self.now = now.saturating_duration_since(self.epoch).as_millis() as u32;
        self.turn = self.turn.wrapping_add(1);
    }

    /// Bytes to write. Bodies that wait in their streams come into it by [`Connection::gather`].
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Returns true if nothing is taken from the other end until it takes some of the output: it would cause answers that
    /// nobody reads. The owner should not read from the network either, and once it is not blocked any more, whole frames
    /// may be left of what was read before.
    pub fn is_blocked(&self) -> bool {
        self.output.len() >= self.options.output_bytes_max.saturating_mul(2)
    }

    /// Returns true if the connection has ended: what is in the output is the last.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Number of open streams.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Keys of all open streams, in no order.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.streams.iter().map(|(key, _)| key)
    }

    fn queued(&self) -> Queued {
        self.lists.as_ref().map_or(Queued::default(), |lists| lists.queued)
    }

    /// Bytes of bodies that wait in streams for windows or their turn.
    pub fn queued_bytes(&self) -> usize {
        self.queued().bytes
    }

    /// Of [`Connection::queued_bytes`], those of payloads that others send too ([`crate::Payload::shared`]).
    pub fn queued_shared_bytes(&self) -> usize {
        self.queued().shared_bytes
    }

    /// Pieces of bodies, and trailers, that wait in streams. Each takes some 60 bytes of memory besides its own.
    pub fn queued_pieces(&self) -> usize {
        self.queued().pieces
    }

    /// Returns true if the other end has begun a header block and not ended it.
    pub fn is_amid_header_block(&self) -> bool {
        self.assembly.is_some()
    }

    /// Bytes that were handed over as data, of all open streams, and not released yet.
    pub fn unreleased_bytes(&self) -> u64 {
        self.unreleased
    }

    /// Bytes of memory that the connection holds on the heap, besides bodies and buffers of its input.
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

    /// Gives back memory that only makes what follows cheaper. To be called when a connection was idle for a while.
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

    /// Says when [`Connection::tick`] is to be called, if it is.
    pub fn deadline(&self) -> Option<Instant> {
        let sent = self.settings_sent?;
        Some(self.epoch + Duration::from_millis(u64::from(sent)) + self.options.settings_timeout)
    }

    /// Does what is due at the time of this turn.
    ///
    /// # Errors
    ///
    /// SETTINGS_TIMEOUT if the other end has not acknowledged the settings in time.
    pub fn tick(&mut self) -> Result<(), ConnectionError> {
        if let Some(error) = &self.error {
            return Err(**error);
        }
        let timeout = self.options.settings_timeout.as_millis();
        let is_late = |sent: u32| u128::from(self.now.wrapping_sub(sent)) >= timeout;
        if self.phase != Phase::Over && self.settings_sent.is_some_and(is_late) {
            let what = "the settings were not acknowledged in time";
            return Err(self.fail(ConnectionError::violation(Reason::SETTINGS_TIMEOUT, what)));
        }
        Ok(())
    }

    /// Sends a PING; its answer comes as [`crate::Event::Pong`] with the same number.
    pub fn ping(&mut self, number: u64) {
        if self.phase != Phase::Over {
            self.output.frame(kind::PING, 0, 0, &number.to_be_bytes());
        }
    }

    /// Begins a graceful shutdown in two steps (RFC 9113, section 6.8): the other end is told that it should open no more
    /// streams; those that it opened before it heard that are still taken. When it must have heard, as the answer to a ping
    /// shows, it is told the last stream that is taken. [`Connection::open_streams`] falls to 0 at the end.
    pub fn shut_down(&mut self) {
        if self.phase == Phase::Over || self.leaving != Leaving::No {
            return;
        }
        self.leaving = Leaving::Announced;
        self.put_goaway(STREAM_MAX, Reason::NO_ERROR, b"");
        self.ping(SHUTDOWN_PING);
    }

    /// Returns true if a shutdown was begun and the other end knows which streams are the last.
    pub fn has_said_last_stream(&self) -> bool {
        self.leaving == Leaving::Final
    }

    /// The second step of a shutdown.
    pub(crate) fn say_last_stream(&mut self) {
        self.leaving = Leaving::Final;
        self.last_taken = self.last_peer_stream;
        self.put_goaway(self.last_taken, Reason::NO_ERROR, b"");
    }

    /// Ends the connection at once: all streams are over, and the other end is told why by GOAWAY.
    pub fn close(&mut self, reason: Reason, debug: &[u8]) {
        if self.phase != Phase::Over {
            // What was told once does not grow again (section 6.8).
            self.put_goaway(
                self.last_peer_stream.min(self.last_taken),
                reason,
                &debug[..debug.len().min(1024)],
            );
            self.end();
        }
    }

    /// Ends the connection for a mistake of the other end.
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
        self.settings_sent = None;
    }

    fn put_goaway(&mut self, last: u32, reason: Reason, debug: &[u8]) {
        self.output.write(frame::HEAD_BYTES + 8 + debug.len(), |out| {
            frame::put_head(out, 8 + debug.len(), kind::GOAWAY, 0, 0);
            out.extend_from_slice(&last.to_be_bytes());
            out.extend_from_slice(&reason.0.to_be_bytes());
            out.extend_from_slice(debug);
        });
    }

    /// Counts one against a limit.
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

    /// Adds a stream.
    pub(crate) fn add_stream(&mut self, id: u32) -> Key {
        // At most 2^31-1.
        self.streams.insert(Stream::new(id, self.turn, self.receive_initial as i32))
    }

    /// Forgets a stream, and gives what it held back to the connection's window.
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

    /// Returns true if a stream of this number was never opened.
    pub(crate) fn is_idle(&self, id: u32) -> bool {
        let is_peers = id.is_multiple_of(2) == (self.role == Role::Client);
        if is_peers { id > self.last_peer_stream } else { id >= self.next_stream }
    }

    /// Sends RST_STREAM.
    pub(crate) fn put_reset(&mut self, id: u32, reason: Reason) {
        self.output.frame(kind::RST_STREAM, 0, id, &reason.0.to_be_bytes());
    }

    /// What the connection's receive window should be.
    fn connection_target(&self) -> u32 {
        let stream = self.growth.target;
        let streams = if stream > self.options.stream_window() { GROWN_STREAMS } else { 1 };
        stream.saturating_mul(streams).min(WINDOW_BYTES_MAX).max(self.options.connection_window())
    }

    /// Gives the other end more of the connection's window, if it is worth a frame.
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

    /// Gives back so many bytes of a stream's data that the consumer is done with: the other end may send as many more, in
    /// time. Nothing happens for a stream that is over, whose bytes were given back when it ended.
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
                // Negative windows are small, positive ones were just bounded.
                state.may_receive = (i64::from(state.may_receive) + i64::from(more)) as i32;
                self.put_window_update(stream.id, more);
            }
        }
        self.update_window();
    }

    /// Bytes of a stream's data that were handed over and not released.
    pub fn stream_unreleased_bytes(&self, stream: Key) -> usize {
        self.streams.get(stream).map_or(0, |stream| stream.unreleased as usize)
    }
}
