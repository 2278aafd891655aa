//! Runs one HTTP/2 connection with all its calls, in turns. A turn is one poll of the connection's task, with
//! a limit on its work, after which other connections of the shard run. [`Connection::poll_turn`] runs one
//! turn. `Connection::work` takes new requests (`input`), steps the calls that are ready, and sends
//! everything in one write; `tending` has the timers. This module knows neither protobuf nor methods; only
//! the service does.

mod input;
mod tending;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use accounting::{Account, Held};
use http2::{Key, Limits, Rate, Reason, Role};

use self::input::InputOutcome;
use self::tending::Stalls;
use crate::admission::HeadCache;
use crate::call::{Call, Step, UnaryRequest};
use crate::calls::Calls;
use crate::context::ConnectionContext;
use crate::drains::DRAINED;
use crate::keepalive::{Heartbeat, PingPolicy};
use crate::long_turns::{LONG_BYTES, Ticket};
use crate::new_connection::SecureState;
use crate::shard_state::ShardState;
use crate::socket::{Socket, Transport};
use crate::turnstile::Pass;
use crate::{Options, Origin, Service};

/// Maximum number of rounds in one turn. A round steps the ready calls once and takes input once.
const ROUNDS_MAX: usize = 8;

/// Threshold, in bytes, for the output of a connection that is not written to the socket yet:
///
/// * From this number on, a round writes to the socket at once, and does not leave that to the turn's end.
/// * From this number on, message bodies of answers are not added to the output. They stay queued in their
///   HTTP/2 streams.
/// * From twice this number on, nothing more is read from the client.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// Number of written bytes at which [`Connection::flush`] stops, so that other connections run before the
/// rest is written.
const WRITTEN_AT_ONCE: u64 = LONG_BYTES as u64;

/// Number of open calls of an ending connection that are dropped before other connections run.
const FORGOTTEN_AT_ONCE: usize = 256;

/// Memory in bytes of the table entries for one call, in this crate and in the HTTP/2 engine. The entries
/// stay allocated when the call has ended, and are freed when the connection goes idle.
const TABLE_ENTRY_BYTES: usize = 1024;
/// Number of concurrent calls for whose table entries no memory is reserved separately, because the basic
/// reservation for a connection in its memory account includes them.
const TABLE_ENTRIES_FREE: usize = 16;

/// Rate limit for HTTP/2 streams that a client opens and cancels in the same turn. A client that exceeds the
/// limit is disconnected.
const EARLY_RESETS: Rate = Rate::new(256, 32);

/// Entry of the deadline heap, which pops the earliest deadline first.
type DeadlineEntry = Reverse<(Instant, Key)>;

/// Returns the HTTP/2 limits that a front sets for its clients.
pub(crate) fn engine_options(options: &Options) -> http2::Options {
    let list_bytes = options.header_list_bytes_max;
    let defaults = Limits::default();
    http2::Options {
        stream_window_bytes: options.stream_window_bytes,
        // The maximum equals the initial size, so that windows do not grow. Larger windows would not help:
        // clients' messages are small, or the service is what limits the throughput.
        stream_window_bytes_max: options.stream_window_bytes,
        connection_window_bytes: options.connection_window_bytes,
        streams_max: options.max_concurrent_streams,
        header_list_bytes_max: list_bytes,
        output_bytes_max: OUTPUT_BYTES_MAX,
        limits: Limits {
            early_resets: EARLY_RESETS,
            // The engine does not limit pings, because `PingPolicy` does.
            pings: Rate::new(u32::MAX, 0),
            block_bytes_max: defaults.block_bytes_max.max(list_bytes.saturating_add(list_bytes / 4)),
            ..defaults
        },
        ..http2::Options::default()
    }
}

/// State that a connection needs while it is in use. It is freed when the connection goes idle, unless open
/// calls need it.
#[derive(Default)]
struct Work {
    /// The unary call that began last, if its message has not arrived yet. The message may be in the bytes
    /// that were already read.
    opening: Option<Box<UnaryRequest>>,
    heads: HeadCache,
    /// Slots of the calls that must be polled in the next round.
    ready: Vec<u32>,
    /// Unary calls in the call table whose message is complete, or that are to be refused. They are served in
    /// the next round.
    gathered: Vec<Key>,
    /// Requests that wait to begin until [`Connection::admits`] allows it, oldest first. Some of the requests
    /// may have ended since.
    waiting: VecDeque<Key>,
    /// Calls with answers that wait until the connection's queued answers are below their limit, oldest
    /// first. Some of the calls may have ended since.
    finished: VecDeque<Key>,
    /// Number of calls that began in this round.
    begun: usize,
    /// Unary calls that were put into the call table in this round, because their message was not complete
    /// when another call began or the round ended.
    parked: Vec<Key>,
    deadlines: BinaryHeap<DeadlineEntry>,
    stalls: Option<Box<Stalls>>,
    /// Handle to the connection's entry in the shard's queue for long turns.
    ticket: Ticket,
    /// Time at which the newest call arrived.
    called_at: Option<Instant>,
    /// Time at which PING acknowledgements that are held back must be sent; `None` if none are held back.
    pongs_due: Option<Instant>,
    /// Time since which the connection has been idle; `None` while it is in use.
    idle_since: Option<Instant>,
    /// Largest number of concurrent calls since the tables were last shrunk, and the memory reservation for
    /// their table entries. `None` if the number was never above [`TABLE_ENTRIES_FREE`].
    table_entries: Option<(usize, Held)>,
}

impl Work {
    /// Returns true if no work is pending in this struct.
    fn is_quiet(&self) -> bool {
        self.opening.is_none()
            && self.ready.is_empty()
            && self.gathered.is_empty()
            && self.waiting.is_empty()
            && self.finished.is_empty()
            && self.parked.is_empty()
            && self.pongs_due.is_none()
            && self.stalls.is_none()
            && !self.ticket.is_waiting()
    }

    /// Returns the unary call that began last, if it belongs to the stream `key` and its message is not
    /// complete.
    fn opening(&mut self, key: Key) -> Option<&mut UnaryRequest> {
        self.opening.as_deref_mut().filter(|gathering| gathering.key() == key)
    }
}

/// One HTTP/2 connection with all its calls.
///
/// The struct holds the calls by stream, the lists of calls with pending work, and the timers. The
/// connection's task calls [`Connection::poll_turn`] once per turn. A turn passes the received bytes to the
/// HTTP/2 engine ([`http2::Connection::next`]) and each event immediately to its call. Most unary calls
/// receive their message in the same read as their head. If the service answers such a call immediately, it
/// needs no entry in a table.
pub(crate) struct Connection {
    pub(crate) around: Rc<ConnectionContext>,
    pub(crate) secured: Option<Box<SecureState>>,
    pub(crate) pass: Pass,
    service: Rc<dyn Service>,
    calls: Calls,
    /// `None` while the connection is idle, to save memory.
    work: Option<Box<Work>>,
    /// True if reading from the client was suspended at some time since the last stall check, because the
    /// client did not read its output.
    was_deaf: bool,
    /// `None` until the client sends its first PING, to save memory.
    ping_policy: Option<Box<PingPolicy>>,
    heartbeat: Heartbeat,
    /// Time at which the shard's clock wakes the connection; it may be earlier than necessary.
    alarm: Instant,
    is_resting: bool,
    is_closing: bool,
    /// True if the last turn was long. The connection then has to wait in the queue for long turns before its
    /// next turn, which may be long, too.
    was_long: bool,
    /// Index of the connection in [`ShardState::connections`] and in the shard's clock.
    index: u32,
}

impl Connection {
    pub(crate) fn new(
        origin: Origin,
        account: Rc<Account>,
        secured: Option<Box<SecureState>>,
        shard: Rc<ShardState>,
        service: Rc<dyn Service>,
    ) -> Connection {
        let now = Instant::now();
        let http2 = http2::Connection::new(Role::Server, &shard.http2, now);
        let around = ConnectionContext::new(http2, origin, shard, account);
        let (account, shard) = (&around.account, &around.shard);
        let transport_waker = &around.transport_waker;
        account.wake_when_doomed(transport_waker);
        if let Some(secured) = &secured {
            secured.validity().wake_when_over(transport_waker);
        }
        let alarm = now + shard.options.keepalive_interval;
        let index = shard.connections.borrow_mut().insert(transport_waker.clone()) as u32;
        accounting::add(&shard.counters.http2_connections, 1);
        shard.clock.set(index, None, alarm);
        Connection {
            around,
            pass: Pass::default(),
            secured,
            service,
            calls: Calls::default(),
            work: None,
            was_deaf: false,
            ping_policy: None,
            heartbeat: Heartbeat::new(now),
            alarm,
            is_resting: false,
            is_closing: false,
            was_long: false,
            index,
        }
    }

    /// Runs one turn: does the work that is ready, up to the limit for a turn, and then writes the output.
    /// Becomes ready when the connection has ended.
    pub(crate) fn poll_turn<S: Transport>(
        &mut self,
        socket: &mut Socket<S>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let around = self.around.clone();
        // Read before `poll_leave` resets it. If the last turn was long, `poll_leave` waits in the queue for
        // long turns, so this turn may be long, too.
        let has_waited = self.was_long;
        if self.poll_leave(cx).is_pending() && self.poll_over(cx).is_pending() {
            return Poll::Pending;
        }
        let _turn = around.account.begin_turn();
        self.around.turn.begin(cx.waker());
        socket.begin_turn();
        let work_max = around.shard.long_turns.bytes_max(has_waited);
        around.begin_work(work_max);
        let now = Instant::now();
        around.http2.borrow_mut().begin_turn(now);
        let written = around.http2.borrow_mut().output().written();
        let took = if self.is_over() { InputOutcome::All } else { self.work(socket, now, work_max)? };
        let was_cut = match took {
            InputOutcome::Ended => return Poll::Ready(Ok(())),
            InputOutcome::TooMuch(what) => return self.send_off(Reason::ENHANCE_YOUR_CALM, what),
            InputOutcome::Share => true,
            InputOutcome::All | InputOutcome::Blocked => false,
        };
        if around.account.is_doomed() {
            return self.send_off(Reason::ENHANCE_YOUR_CALM, b"memory");
        }
        if self.secured.as_ref().is_some_and(|secured| secured.validity().is_over()) {
            return self.send_off(Reason::NO_ERROR, b"certificate");
        }
        if self.departs_at().is_some_and(|deadline| deadline <= now) && !self.has_left() {
            return self.send_off(Reason::NO_ERROR, b"drained");
        }
        let is_ending_calls = self.end_endless_calls();
        let was_blocked = around.http2.borrow().is_blocked();
        let flushed = !self.holds_pongs_back(now) && self.flush(socket)?;
        let mut goes_on = flushed || was_cut || around.has_room() && self.has_waiting();
        goes_on |= is_ending_calls || was_blocked && !around.http2.borrow().is_blocked();
        let written = around.http2.borrow_mut().output().written() - written;
        if was_cut || written >= LONG_BYTES as u64 / 2 {
            self.was_long = true;
            around.shard.long_turns.note();
        }
        if goes_on {
            around.turn.stay_awake();
            if !self.was_long || self.poll_ticket(cx).is_ready() || self.poll_over(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        if self.is_closing && self.has_left() {
            return Poll::Ready(Ok(()));
        }
        // The timers run after the flush, because the stall timer must see only the output that the client
        // has not taken, which is what remains after the flush.
        self.tend_timers(socket, now, cx)?;
        around.account.set_buffers(socket.buffer_bytes() + around.memory_bytes());
        Poll::Pending
    }

    /// Becomes ready when the connection may have a turn: when the turnstile and the queue for long turns,
    /// which favor other connections, admit it.
    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let around = self.around.clone();
        if around.may_wait.get() && !around.shard.closing.get() {
            ready!(self.pass.poll(&around.shard.turnstile, around.origin.peer.ip(), cx));
        }
        if self.was_long {
            ready!(self.poll_ticket(cx));
            self.was_long = false;
        }
        Poll::Ready(())
    }

    /// Returns true if the connection must close: its certificate is no longer valid, or it must free memory.
    fn is_over(&self) -> bool {
        let is_refused = self.secured.as_ref().is_some_and(|secured| secured.validity().is_over());
        is_refused || self.around.account.is_doomed()
    }

    /// Becomes ready when the connection must close. A connection closes without waiting to be admitted to a
    /// turn, because other connections may need its memory. The waker of `cx` is used directly, so the task
    /// is woken even if [`crate::turn::Turn`] considers it awake.
    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(secured) = &self.secured
            && secured.validity().poll_over(cx).is_ready()
        {
            return Poll::Ready(());
        }
        self.around.account.poll_doomed(cx)
    }

    /// Becomes ready when the connection may have another long turn.
    fn poll_ticket(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.work.get_or_insert_default().ticket.poll(&self.around.shard.long_turns, cx)
    }

    /// Runs rounds until nothing is ready or the limits of the turn are reached; in the latter case returns
    /// [`InputOutcome::Share`]. Open calls and new calls have separate work limits, so that neither kind can
    /// use up the turn of the other.
    fn work<S: Transport>(
        &mut self,
        socket: &mut Socket<S>,
        now: Instant,
        work_max: usize,
    ) -> io::Result<InputOutcome> {
        let around = self.around.clone();
        // The shutdown is checked before the loop and not after it: most turns return from inside the loop,
        // so that a check after the loop might never run on a busy connection.
        if !self.is_closing && (around.shard.closing.get() || self.departs_at().is_some()) {
            self.is_closing = true;
            around.http2.borrow_mut().shut_down();
        }
        for _ in 0..ROUNDS_MAX {
            self.send_finished();
            let work = self.work.get_or_insert_default();
            // Sorted, so that calls run in the order in which the client began them, whatever the order in
            // which their messages were completed.
            work.gathered.sort_unstable_by_key(|key| key.id());
            work.ready.extend(work.gathered.drain(..).map(|key| key.slot() as u32));
            self.around.turn.take_ready(&mut work.ready);
            let mut ready = std::mem::take(&mut work.ready);
            let mut stepped = 0;
            for slot in &ready {
                if around.turn_work.is_enough() {
                    break;
                }
                self.step(*slot as usize);
                stepped += 1;
            }
            ready.drain(..stepped);
            // The calls that were not stepped stay first in the list; those that became ready in the meantime
            // are queued after them.
            let work = self.work.get_or_insert_default();
            ready.append(&mut work.ready);
            work.ready = ready;
            let made_enough = around.turn_work.is_enough();
            if made_enough {
                around.begin_work(work_max);
            }
            let took = self.take_input(socket, now);
            self.charge_parked();
            if matches!(took, InputOutcome::Ended | InputOutcome::TooMuch(_)) || around.account.is_doomed() {
                return Ok(took);
            }
            let mut goes_on = matches!(took, InputOutcome::Share);
            around.http2.borrow_mut().gather();
            if around.http2.borrow_mut().output().len() >= OUTPUT_BYTES_MAX {
                goes_on |= self.flush(socket)?;
                // If the connection was blocked because the client did not read its output, and is not
                // blocked any more, the turn continues: there may be input that was not taken.
                goes_on |= matches!(took, InputOutcome::Blocked) && !around.http2.borrow().is_blocked();
            } else {
                goes_on |= self.wake_writable();
            }
            if made_enough || around.turn_work.is_enough() {
                break;
            }
            if goes_on || self.has_ready() || around.has_room() && self.has_waiting() {
                continue;
            }
            if self.around.turn.end() {
                return Ok(took);
            }
        }
        Ok(InputOutcome::Share)
    }

    /// Returns true if calls must be polled.
    fn has_ready(&self) -> bool {
        self.work.as_ref().is_some_and(|work| !work.ready.is_empty() || !work.gathered.is_empty())
    }

    /// Returns true if calls wait until the connection's queued answers are below their limit.
    fn has_waiting(&self) -> bool {
        self.work.as_ref().is_some_and(|work| !work.finished.is_empty() || !work.waiting.is_empty())
    }

    /// Sends answers that waited until the connection's queued answers were below their limit.
    fn send_finished(&mut self) {
        while self.around.has_room()
            && !self.around.turn_work.is_enough()
            && let Some(work) = &mut self.work
            && let Some(key) = work.finished.pop_front()
        {
            if self.calls.contains(key) {
                self.step(key.slot());
            }
        }
    }

    /// If the number of open calls has reached a new maximum, raises the memory reservation for their table
    /// entries.
    fn note_table_entries(&mut self) {
        let open = self.calls.len();
        if open <= TABLE_ENTRIES_FREE {
            return;
        }
        let entries = &mut self.work.get_or_insert_default().table_entries;
        let (most, held) = entries.get_or_insert_with(|| (0, self.around.account.hold(0)));
        if open > *most {
            *most = open;
            held.set((open - TABLE_ENTRIES_FREE) * TABLE_ENTRY_BYTES);
        }
    }

    /// Notes activity of the connection, which keeps it from going idle.
    fn note_use(&mut self) {
        self.is_resting = false;
        if let Some(work) = &mut self.work {
            work.idle_since = None;
        }
    }

    /// Steps the call in a slot, if the slot has a call.
    fn step(&mut self, slot: usize) {
        // A streaming call is stepped where it is, because some streams are stepped for every event.
        if let Some((key, streaming, waker)) = self.calls.streaming(slot, &self.around.turn) {
            let polled = streaming.poll(&self.around, &mut Context::from_waker(waker));
            self.note_use();
            if polled.is_ready() {
                drop(self.calls.take(key));
            }
            return;
        }
        let Some(key) = self.calls.at(slot) else { return };
        let Some(call) = self.calls.take(key) else { return };
        self.note_use();
        let was_finished = call.is_finished();
        let mut cx = Context::from_waker(self.calls.waker(slot, &self.around.turn));
        if let Step::Wait(call) = call.step(&self.around, &self.service, &mut cx) {
            let is_finished = call.is_finished();
            self.calls.insert(key, call);
            if is_finished && !was_finished {
                add_to(&mut self.work.get_or_insert_default().finished, key, &self.calls);
            }
        }
    }

    /// Wakes the calls that can queue more output. Returns true if there are any.
    fn wake_writable(&mut self) -> bool {
        let mut any = false;
        loop {
            let Some(key) = self.around.http2.borrow_mut().next_writable() else { return any };
            match self.calls.get_mut(key) {
                None => continue,
                Some(Call::Streaming(streaming)) => streaming.sending.wake(),
                Some(_) => self.work.get_or_insert_default().ready.push(key.slot() as u32),
            }
            any = true;
        }
    }

    /// Writes output until the kernel accepts no more or [`WRITTEN_AT_ONCE`] is reached. Returns true if more
    /// work is ready now.
    fn flush<S: Transport>(&mut self, socket: &mut Socket<S>) -> io::Result<bool> {
        let mut is_enough = false;
        {
            let mut http2 = self.around.http2.borrow_mut();
            let before = http2.output().written();
            loop {
                http2.gather();
                let output = http2.output();
                if output.is_empty() {
                    break;
                }
                is_enough = output.written() - before >= WRITTEN_AT_ONCE;
                // With this waker, a write that is pending wakes the connection when the kernel accepts bytes
                // again.
                let mut cx = Context::from_waker(&self.around.transport_waker);
                if is_enough {
                    break;
                }
                if socket.poll_write(&mut cx, output)?.is_pending() {
                    output.note_refused();
                    break;
                }
            }
        }
        self.around.charge_waiting();
        Ok(self.wake_writable() || is_enough)
    }

    /// Returns the time at which the connection is cut off because it is drained; `None` if it is not.
    fn departs_at(&self) -> Option<Instant> {
        self.around.shard.departures.deadline(self.index)
    }

    /// If the connection is drained and its last stream was announced, ends some of the calls that would
    /// never end by themselves. Returns true if there may be more of them.
    fn end_endless_calls(&mut self) -> bool {
        if !self.is_closing
            || self.departs_at().is_none()
            || !self.around.http2.borrow().has_said_last_stream()
        {
            return false;
        }
        let is_endless =
            |call: &Call| call.begun_method().is_some_and(|method| self.service.is_endless(method));
        let calls = self.calls.iter_mut().filter(|(_, call)| is_endless(call));
        let endless: Vec<Key> = calls.map(|(key, _)| key).take(FORGOTTEN_AT_ONCE).collect();
        for key in &endless {
            if let Some(call) = self.calls.take(*key) {
                call.end(&self.around, &DRAINED);
                self.note_use();
            }
        }
        endless.len() == FORGOTTEN_AT_ONCE
    }

    /// Returns true if a shutdown was announced and the client has no open streams any more.
    fn has_left(&self) -> bool {
        let mut http2 = self.around.http2.borrow_mut();
        http2.has_said_last_stream() && http2.open_streams() == 0 && http2.output().is_empty()
    }

    fn add_deadline(&mut self, deadline: Instant, key: Key) {
        let deadlines = &mut self.work.get_or_insert_default().deadlines;
        deadlines.push(Reverse((deadline, key)));
        if deadlines.len() > 2 * self.calls.len() + 64 {
            deadlines.retain(|Reverse((_, key))| self.calls.contains(*key));
        }
    }

    /// Returns true if output waits for the client to read it. PING acknowledgements that are held back do
    /// not count.
    fn holds_unsent(&self) -> bool {
        let mut http2 = self.around.http2.borrow_mut();
        let is_held_back = self.pongs_due().is_some();
        http2.queued_pieces() > 0 || !http2.output().is_empty() && !is_held_back
    }

    /// Drops a call that has not ended, and counts it as cancelled.
    fn forget(&mut self, key: Key) {
        if let Some(method) = self.calls.take(key).and_then(|call| call.begun_method()) {
            self.around.shard.counters.handled(method, api::Code::Canceled);
        }
    }

    /// Drops some of the open calls of an ending connection, from slot `from` on. Returns the slot at which
    /// to continue after other connections ran; `None` if no call is left.
    pub(crate) fn forget_some(&mut self, from: usize) -> Option<usize> {
        if let Some(work) = &mut self.work {
            work.opening = None;
        }
        let slots = from..self.calls.slots();
        let open: Vec<Key> = slots.filter_map(|slot| self.calls.at(slot)).take(FORGOTTEN_AT_ONCE).collect();
        open.iter().for_each(|key| self.forget(*key));
        open.last().filter(|_| !self.calls.is_empty()).map(|last| last.slot() + 1)
    }

    /// Queues GOAWAY with a reason and a debug text, as grpc-go does after too many pings, and ends the
    /// connection.
    fn send_off(&mut self, reason: Reason, debug: &[u8]) -> Poll<io::Result<()>> {
        let mut http2 = self.around.http2.borrow_mut();
        if http2.is_blocked() {
            // No GOAWAY is queued, because it would not reach a client that does not even read earlier
            // output.
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        http2.close(reason, debug);
        // `serving::leave` writes the GOAWAY to the socket.
        Poll::Ready(Ok(()))
    }
}

/// Appends a call to a list of waiting calls. If the list has become long, removes the entries of ended
/// calls.
fn add_to(list: &mut VecDeque<Key>, key: Key, calls: &Calls) {
    list.push_back(key);
    if list.len() > 2 * calls.len() + 64 {
        list.retain(|key| calls.contains(*key));
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut from = Some(0);
        while let Some(slot) = from {
            from = self.forget_some(slot);
        }
        let shard = &self.around.shard;
        shard.clock.clear(self.index, self.alarm);
        shard.connections.borrow_mut().remove(self.index as usize);
        shard.departures.forget(self.index);
        // Adds -1: the counter wraps.
        accounting::add(&shard.counters.http2_connections, u64::MAX);
    }
}
