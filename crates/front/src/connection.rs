//! One HTTP/2 connection with all its calls: [`serve`] runs it, and `Connection::work` is one turn, which takes new
//! requests, steps the calls that are ready, and sends everything in one write. It knows no protobuf and no methods;
//! those are the service's.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use http2::{Event, Fields, Key, Limits, Rate, Reason, Role};
use tokio::time::Sleep;

use crate::admission::{self, Begun, Seen};
use crate::budget::{Account, Held};
use crate::call::{Call, Gathering, Look, Progress, Step, StreamProgress, Waiting, call_bytes};
use crate::calls::Calls;
use crate::context::ConnectionContext;
use crate::counters;
use crate::keepalive::{Heartbeat, PingPolicy, Pulse};
use crate::ledger::Charge;
use crate::responder::{Responder, moves};
use crate::shard::{Registration, ShardState};
use crate::socket::{ALLOWANCE_BYTES, Socket, Transport};
use crate::standing::Standing;
use crate::turn::Turn;
use crate::turnstile::Pass;
use crate::{Options, Origin, Service};

/// Rounds of one turn before other connections get theirs.
const ROUNDS_MAX: usize = 8;

/// Calls begun by the client after which a round takes no more.
const BEGUN_PER_ROUND_MAX: usize = 256;

/// Bytes that wait to be written, after which a round writes, bodies wait in their streams, and beyond twice of which the
/// client is not read from.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// Bytes written in one go, after which other connections get their turn.
const WRITTEN_AT_ONCE: u64 = 1024 * 1024;

/// Open calls of a connection that closes which are ended before others get their turn.
const FORGOTTEN_AT_ONCE: usize = 256;

/// Bytes that a finished call leaves in tables here and in the engine, until the connection rests.
const PLACE_BYTES: usize = 1024;
/// Calls at once for whose places a connection is charged anyway.
const PLACES_FREE: usize = 16;

/// Time without calls after which a connection gives back memory that only makes the next call cheaper.
const REST_AFTER: Duration = Duration::from_secs(1);

/// Time that a closed connection still reads, so that its last frame arrives.
const LINGER: Duration = Duration::from_secs(1);

/// HTTP/2 streams cancelled by the client in the turn in which they came that are tolerated at once.
const EARLY_RESETS: Rate = Rate::new(256, 32);

/// A deadline in the heap.
type DeadlineEntry = Reverse<(Instant, Key)>;

/// What HTTP/2 allows the clients of a front.
pub(crate) fn engine_options(options: &Options) -> http2::Options {
    let list_bytes = options.header_list_bytes_max;
    let defaults = Limits::default();
    http2::Options {
        stream_window_bytes: options.stream_window_bytes,
        // Windows do not grow: what clients send is small, or waits for a service.
        stream_window_bytes_max: options.stream_window_bytes,
        connection_window_bytes: options.connection_window_bytes,
        streams_max: options.max_concurrent_streams,
        header_list_bytes_max: list_bytes,
        output_bytes_max: OUTPUT_BYTES_MAX,
        limits: Limits {
            early_resets: EARLY_RESETS,
            // Judged by `PingPolicy`.
            pings: Rate::new(u32::MAX, 0),
            block_bytes_max: defaults.block_bytes_max.max(list_bytes.saturating_add(list_bytes / 4)),
            ..defaults
        },
        ..http2::Options::default()
    }
}

/// What became of the bytes that a client sent.
enum Took {
    /// All that is there was taken; more wakes the connection.
    All,
    /// A round's share was taken.
    Share,
    /// The client takes nothing, so nothing is taken from it.
    Blocked,
    /// The connection is over, and the client was told if it was by its mistake.
    Ended,
    /// The client has to go, for this reason.
    TooMuch(&'static [u8]),
}

/// What comes after an event.
enum Next {
    Event,
    /// Others get their turn.
    Pause,
    TooMuch(&'static [u8]),
}

/// A place for a unary call that came last, and whose message may be in the bytes behind its head. It has memory only while
/// the connection is used.
#[derive(Default)]
struct Opening(Option<Box<Option<Gathering>>>);

impl Opening {
    fn put(&mut self, gathering: Gathering) {
        **self.0.get_or_insert_default() = Some(gathering);
    }

    fn take(&mut self) -> Option<Gathering> {
        self.0.as_mut()?.take()
    }

    /// The call, if it is the one of this stream.
    fn get_mut(&mut self, key: Key) -> Option<&mut Gathering> {
        let gathering = (**self.0.as_mut()?).as_mut()?;
        (gathering.key() == key).then_some(gathering)
    }

    fn is_some(&self) -> bool {
        self.0.as_ref().is_some_and(|opening| opening.is_some())
    }
}

/// What is known of things that wait, while there are any.
#[derive(Default)]
struct Stalls {
    /// Progress of all answers.
    progress: Progress,
    /// Progress of a frame or header block that the client has begun.
    incoming: Progress,
    /// Progress of streams whose calls are over, and whose answers wait for the client.
    undelivered: BTreeMap<Key, StreamProgress>,
    next_check: Option<Instant>,
}

/// One HTTP/2 connection with all its calls.
///
/// What it is: the calls by their streams, the lists of those that have something to do, and the timers. What drives it: its
/// task, in turns ([`Connection::poll_turn`]). A turn hands what was read to the engine ([`http2::Connection::next`]) and each
/// event at once to its call. A unary call whose message comes in the same read as its head, as most do, is answered without
/// a place in any table.
struct Connection {
    around: Rc<ConnectionContext>,
    origin: Origin,
    standing: Option<Rc<Standing>>,
    pass: Pass,
    /// The most calls that were open at once, and what their places take.
    places: usize,
    places_held: Held,
    turn: Arc<Turn>,
    transport_waker: Waker,
    calls: Calls,
    opening: Opening,
    seen: Option<Box<Seen>>,
    /// Places of calls that have something to do.
    ready: Vec<u32>,
    /// Unary calls whose message became whole behind other frames.
    gathered: Vec<Key>,
    /// Requests that wait for room among the answers. Some may be over.
    waiting: VecDeque<Key>,
    /// Calls whose answers wait for room among the answers, the first to be sent first. Some may be over.
    finished: VecDeque<Key>,
    /// Calls begun in this round.
    begun: usize,
    /// Unary calls of this round that were given a place because other frames came before their messages.
    parked: Vec<Key>,
    deadlines: BinaryHeap<DeadlineEntry>,
    stalls: Option<Box<Stalls>>,
    /// True if the client was not read from for a time since the last look for stalled streams, because it takes nothing.
    was_deaf: bool,
    ping_policy: PingPolicy,
    /// What had been sent of calls when the last ping came.
    sent_before_ping: u64,
    heartbeat: Heartbeat,
    timer: Pin<Box<Sleep>>,
    timer_at: Instant,
    /// The timer was polled since it was set, so that it wakes the connection.
    is_timer_armed: bool,
    /// Time since which nothing is open; `None` if that is not known, or the connection rests already.
    idle_since: Option<Instant>,
    is_resting: bool,
    is_closing: bool,
    _registration: Registration,
}

/// Serves a connection that has sent HTTP/2's preface until it ends.
pub(crate) fn serve<S: Transport + 'static>(
    mut socket: Socket<S>,
    origin: Origin,
    account: Rc<Account>,
    standing: Option<Rc<Standing>>,
    shard: Rc<ShardState>,
    service: Rc<dyn Service>,
) -> impl Future<Output = io::Result<()>> {
    let presence = service.connected(&origin);
    let mut connection = Connection::new(origin, &account, standing, &shard, service);
    async move {
        let _presence = presence;
        let result = poll_fn(|cx| connection.poll_turn(&mut socket, cx)).await;
        // Thousands may end at once. Memory that others need does not wait.
        if !account.is_doomed() {
            connection.pass.through(&shard.turnstile).await;
        }
        // A client decides how many calls are open.
        let mut from = Some(0);
        while let Some(place) = from {
            from = connection.forget_some(place);
            if from.is_some() {
                tokio::task::yield_now().await;
            }
        }
        let around = connection.around.clone();
        drop(connection);
        // What is left is at most the last frames on their way.
        around.charge_waiting();
        account.set_buffers(socket.buffer_bytes() + memory(&around));
        if result.is_ok() {
            let lingering = async {
                poll_fn(|cx| socket.poll_write(cx, around.http2.borrow_mut().output())).await?;
                poll_fn(|cx| socket.poll_close(cx)).await?;
                poll_fn(|cx| socket.poll_discard(cx)).await
            };
            // Neither a time-out nor an error matters: the connection is over. Few linger at a time.
            let _ = Box::pin(tokio::time::timeout(LINGER, lingering)).await;
        }
        result
    }
}

/// Bytes of memory of the connection's HTTP/2: header tables, a header block that has begun, streams, and what waits to be
/// written.
fn memory(around: &ConnectionContext) -> usize {
    let mut http2 = around.http2.borrow_mut();
    http2.heap_bytes() + http2.output().len()
}

impl Connection {
    fn new(
        origin: Origin,
        account: &Rc<Account>,
        standing: Option<Rc<Standing>>,
        shard: &Rc<ShardState>,
        service: Rc<dyn Service>,
    ) -> Connection {
        let turn = Turn::new();
        let transport_waker = Waker::from(turn.clone());
        account.wake_when_doomed(&transport_waker);
        if let Some(standing) = &standing {
            standing.wake_when_over(&transport_waker);
        }
        let now = Instant::now();
        let timer_at = now + shard.options.keepalive_interval;
        let http2 = http2::Connection::new(Role::Server, &shard.http2, now);
        Connection {
            around: ConnectionContext::new(http2, shard.clone(), service, account.clone()),
            pass: Pass::new(origin.peer.ip()),
            origin,
            standing,
            places: PLACES_FREE,
            places_held: account.hold(0),
            turn,
            transport_waker: transport_waker.clone(),
            calls: Calls::default(),
            opening: Opening::default(),
            seen: None,
            ready: Vec::new(),
            gathered: Vec::new(),
            waiting: VecDeque::new(),
            finished: VecDeque::new(),
            begun: 0,
            parked: Vec::new(),
            deadlines: BinaryHeap::new(),
            stalls: None,
            was_deaf: false,
            ping_policy: PingPolicy::new(),
            sent_before_ping: 0,
            heartbeat: Heartbeat::new(now),
            timer: Box::pin(tokio::time::sleep_until(timer_at.into())),
            timer_at,
            is_timer_armed: false,
            idle_since: None,
            is_resting: false,
            is_closing: false,
            _registration: Registration::new(shard, transport_waker),
        }
    }

    /// One turn: everything that is ready, then one write.
    fn poll_turn<S: Transport>(
        &mut self,
        socket: &mut Socket<S>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let around = self.around.clone();
        if around.may_wait.get() && !around.shard.closing.get() {
            ready!(self.pass.poll(&around.shard.turnstile, cx));
        }
        let _turn = around.account.begin_turn();
        self.turn.begin(cx.waker());
        socket.begin_turn();
        around.made.reset();
        let now = Instant::now();
        around.http2.borrow_mut().begin_turn(now);
        match self.work(socket, now, cx)? {
            Took::Ended => return Poll::Ready(Ok(())),
            Took::TooMuch(what) => return self.send_off(Reason::ENHANCE_YOUR_CALM, what),
            Took::All | Took::Share | Took::Blocked => {}
        }
        if around.account.is_doomed() {
            return self.send_off(Reason::ENHANCE_YOUR_CALM, b"memory");
        }
        if self.standing.as_ref().is_some_and(|standing| standing.is_over()) {
            return self.send_off(Reason::NO_ERROR, b"certificate");
        }
        let was_blocked = around.http2.borrow().is_blocked();
        let goes_on = self.flush(socket)? || around.has_room() && self.has_waiting();
        if goes_on || was_blocked && !around.http2.borrow().is_blocked() {
            self.turn.yield_now(cx.waker());
        }
        if self.is_closing && self.has_left() {
            return Poll::Ready(Ok(()));
        }
        // After sending: what the output still holds, the client does not take.
        self.tend_timers(socket, now, cx)?;
        around.account.set_buffers(socket.buffer_bytes() + memory(&around));
        Poll::Pending
    }

    /// Rounds of calls and transport until nothing is ready. Calls that have begun may make as much as a turn may, and so may
    /// those that the client sends: neither keeps the others waiting.
    fn work<S: Transport>(
        &mut self,
        socket: &mut Socket<S>,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> io::Result<Took> {
        let around = self.around.clone();
        // Before all else, since the rounds of a turn may end anywhere: those of a busy connection always do.
        if around.shard.closing.get() && !self.is_closing {
            self.is_closing = true;
            around.http2.borrow_mut().shut_down();
        }
        for _ in 0..ROUNDS_MAX {
            self.send_finished();
            // In the order in which the client began them, whatever the order of their last bytes.
            self.gathered.sort_unstable_by_key(|key| key.id());
            self.ready.extend(self.gathered.drain(..).map(|key| key.slot() as u32));
            self.turn.take_ready(&mut self.ready);
            let mut ready = std::mem::take(&mut self.ready);
            let mut stepped = 0;
            for place in &ready {
                if around.made.is_enough() {
                    break;
                }
                self.step(*place as usize);
                stepped += 1;
            }
            ready.drain(..stepped);
            // Those that became ready meanwhile come behind.
            ready.append(&mut self.ready);
            self.ready = ready;
            let made_enough = around.made.is_enough();
            if made_enough {
                around.made.reset();
            }
            let took = self.take_input(socket, now);
            self.charge_parked();
            if matches!(took, Took::Ended | Took::TooMuch(_)) || around.account.is_doomed() {
                return Ok(took);
            }
            let mut goes_on = matches!(took, Took::Share);
            around.http2.borrow_mut().gather();
            if around.http2.borrow_mut().output().len() >= OUTPUT_BYTES_MAX {
                goes_on |= self.flush(socket)?;
                // A client that takes some again is read from again.
                goes_on |= matches!(took, Took::Blocked) && !around.http2.borrow().is_blocked();
            } else {
                goes_on |= self.wake_writable();
            }
            if made_enough || around.made.is_enough() {
                break;
            }
            if goes_on || self.has_ready() || around.has_room() && self.has_waiting() {
                continue;
            }
            if self.turn.end() {
                return Ok(took);
            }
        }
        self.turn.yield_now(cx.waker());
        Ok(Took::Share)
    }

    /// Returns true if calls have something to do.
    fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.gathered.is_empty()
    }

    /// Returns true if calls wait for room.
    fn has_waiting(&self) -> bool {
        !self.finished.is_empty() || !self.waiting.is_empty()
    }

    /// Sends answers that waited for room.
    fn send_finished(&mut self) {
        while self.around.has_room()
            && !self.around.made.is_enough()
            && let Some(key) = self.finished.pop_front()
        {
            if self.calls.contains(key) {
                self.step(key.slot());
            }
        }
    }

    /// Takes what the client sent, up to a round's share.
    fn take_input<S: Transport>(&mut self, socket: &mut Socket<S>, now: Instant) -> Took {
        let mut taken = socket.unread().len();
        self.begun = 0;
        self.turn.transport_seen();
        loop {
            let mut at = 0;
            let next = loop {
                self.admit_waiting(now);
                if self.begun >= BEGUN_PER_ROUND_MAX
                    || self.around.made.is_enough()
                    || self.around.account.is_doomed()
                {
                    break Next::Pause;
                }
                let event = self.around.http2.borrow_mut().next(socket.unread(), &mut at);
                match event {
                    Ok(Some(event)) => match self.take(event, now) {
                        Next::Event => {}
                        next => break next,
                    },
                    Ok(None) => break Next::Event,
                    // The client was told what was wrong.
                    Err(_) => return Took::Ended,
                }
            };
            socket.consume(at);
            match next {
                Next::Pause => return Took::Share,
                Next::TooMuch(what) => return Took::TooMuch(what),
                Next::Event => {}
            }
            if self.around.http2.borrow().is_blocked() {
                return Took::Blocked;
            }
            if taken >= ALLOWANCE_BYTES {
                return Took::Share;
            }
            match socket.poll_fill(&mut Context::from_waker(&self.transport_waker)) {
                Poll::Pending => return Took::All,
                Poll::Ready(Ok(0) | Err(_)) => return Took::Ended,
                Poll::Ready(Ok(cost)) => {
                    taken += cost;
                    self.heartbeat.received(now);
                    (self.idle_since, self.is_resting) = (None, false);
                }
            }
        }
    }

    fn take(&mut self, event: Event<'_>, now: Instant) -> Next {
        match event {
            Event::Head { stream, fields, end } => {
                self.park_opening();
                self.begun += 1;
                self.receive(stream, fields, end, now);
            }
            Event::Data { stream, bytes, end } => self.receive_body(stream, bytes, end),
            Event::Trailers { stream, .. } => self.receive_body(stream, &[], true),
            Event::Reset { stream, .. } => self.receive_reset(stream),
            Event::Pinged => {
                let sent = self.around.http2.borrow_mut().output().appended_of_calls();
                if std::mem::replace(&mut self.sent_before_ping, sent) != sent {
                    self.ping_policy.forgive();
                }
                let has_calls = !self.calls.is_empty() || self.opening.is_some();
                if self.ping_policy.is_too_many(now, has_calls, &self.around.shard.options) {
                    counters::add(&self.around.shard.counters.too_many_pings, 1);
                    return Next::TooMuch(b"too_many_pings");
                }
            }
            // They may cost a look at each stream, so the next ones come with the next round.
            Event::Settings => return Next::Pause,
            Event::Pong(_) | Event::GoAway { .. } | Event::Informational { .. } => {}
        }
        Next::Event
    }

    /// Returns true if the answers held unsent, and what was made in this turn, allow a new call.
    fn admits(&self) -> bool {
        self.around.has_room() && self.finished.is_empty() && !self.around.made.is_enough()
    }

    fn receive(&mut self, key: Key, fields: Arc<Fields>, end: bool, now: Instant) {
        let responder = Responder::new(&self.around, key);
        if self.admits() && self.calls.waiting() == 0 {
            self.admit(responder, fields, &[], end, now, now);
        } else if self.calls.waiting() < self.around.shard.options.waiting_requests_max {
            let mut charge = Charge::new(&self.around.requests);
            charge.raise_to(call_bytes(fields.heap_bytes()));
            let waiting = Waiting { responder, fields, body: Vec::new(), is_ended: end, charge, since: now };
            self.calls.insert(key, Call::Waiting(Box::new(waiting)));
            add_to(&mut self.waiting, key, &self.calls);
            self.note_places();
        } else {
            responder.reset(Reason::REFUSED_STREAM);
        }
    }

    /// Begins calls that waited for room, as far as there is some.
    fn admit_waiting(&mut self, now: Instant) {
        while self.begun < BEGUN_PER_ROUND_MAX
            && self.calls.waiting() > 0
            && self.admits()
            && let Some(key) = self.waiting.pop_front()
        {
            // One that its client has cancelled meanwhile is there no more.
            if let Some(Call::Waiting(waiting)) = self.calls.take(key) {
                self.begun += 1;
                self.park_opening();
                let Waiting { responder, fields, body, is_ended, charge, since } = *waiting;
                drop(charge);
                self.around.http2.borrow_mut().release(key, body.len());
                self.admit(responder, fields, &body, is_ended, since, now);
            }
        }
        if self.calls.waiting() == 0 {
            self.waiting.clear();
        }
    }

    /// Begins a call that came at `since`, and of whose body this has come.
    fn admit(
        &mut self,
        responder: Responder,
        fields: Arc<Fields>,
        body: &[u8],
        end: bool,
        since: Instant,
        now: Instant,
    ) {
        let key = responder.key();
        // Not beside a call that may not, and such a one ends it.
        let can_wait = self.around.may_wait.get() || self.calls.is_empty();
        let seen = self.seen.get_or_insert_default();
        let begun = admission::begin(&self.around, seen, fields, responder, &self.origin, since, now);
        if !can_wait {
            self.around.may_wait.set(false);
        }
        match begun {
            None => {}
            Some(Begun::Gathering(mut gathering)) => {
                if (end || !body.is_empty()) && gathering.take(&self.around, body, end) {
                    self.serve(gathering);
                } else {
                    self.opening.put(gathering);
                }
            }
            Some(Begun::Streaming(streaming)) => {
                fill(&streaming.inbox, body, end);
                let deadline = streaming.deadline();
                self.keep(key, Call::Streaming(streaming), deadline);
                // Its first message is likely to come behind its head.
                self.ready.push(key.slot() as u32);
            }
            Some(Begun::Page(page)) => {
                fill(&page.inbox, body, end);
                self.keep(key, Call::Page(page), None);
                self.step(key.slot());
            }
        }
    }

    /// Gives a call a place whose message is not in the bytes behind its head.
    fn park_opening(&mut self) {
        if let Some(gathering) = self.opening.take() {
            let (key, deadline) = (gathering.key(), gathering.deadline());
            self.keep(key, Call::Gathering(Box::new(gathering)), deadline);
            self.parked.push(key);
        }
    }

    /// Lets those calls wait for their clients whose messages were not in what the round read either.
    fn charge_parked(&mut self) {
        self.park_opening();
        for key in self.parked.drain(..) {
            if let Some(Call::Gathering(gathering)) = self.calls.get_mut(key)
                && !gathering.is_gathered()
                && gathering.wait(&self.around)
            {
                self.gathered.push(key);
            }
        }
    }

    /// Answers a call whose message is whole, or refuses it.
    fn serve(&mut self, gathering: Gathering) {
        let (key, deadline) = (gathering.key(), gathering.deadline());
        let mut cx = Context::from_waker(self.calls.waker(key.slot(), &self.turn));
        match gathering.serve(&self.around, &mut cx) {
            Step::Over => {}
            Step::Wait(call) => {
                let is_finished = call.is_finished();
                self.keep(key, call, deadline);
                if is_finished {
                    add_to(&mut self.finished, key, &self.calls);
                }
            }
        }
    }

    /// Gives a call a place in the table.
    fn keep(&mut self, key: Key, call: Call, deadline: Option<Instant>) {
        self.calls.insert(key, call);
        self.note_places();
        if let Some(deadline) = deadline {
            self.add_deadline(deadline, key);
        }
    }

    fn receive_body(&mut self, key: Key, bytes: &[u8], end: bool) {
        if let Some(opening) = self.opening.get_mut(key) {
            self.around.http2.borrow_mut().release(key, bytes.len());
            if opening.take(&self.around, bytes, end)
                && let Some(opening) = self.opening.take()
            {
                if self.parked.is_empty() {
                    self.serve(opening);
                } else {
                    // Those before it come first, if their bodies come with this one.
                    let deadline = opening.deadline();
                    self.keep(key, Call::Gathering(Box::new(opening)), deadline);
                    self.gathered.push(key);
                }
            }
            return;
        }
        let is_kept = match self.calls.get_mut(key) {
            Some(Call::Gathering(gathering)) => {
                // Not at once: the client may cancel it with its last bytes.
                if gathering.take(&self.around, bytes, end) {
                    self.gathered.push(key);
                }
                false
            }
            Some(Call::Waiting(waiting)) => {
                waiting.body.extend_from_slice(bytes);
                waiting.is_ended |= end;
                true
            }
            Some(Call::Streaming(streaming)) => fill(&streaming.inbox, bytes, end),
            Some(Call::Page(page)) => fill(&page.inbox, bytes, end),
            _ => false,
        };
        if !is_kept {
            self.around.http2.borrow_mut().release(key, bytes.len());
        }
    }

    /// The client has cancelled a call, or made a mistake with its stream.
    fn receive_reset(&mut self, key: Key) {
        if self.opening.get_mut(key).is_some() {
            drop(self.opening.take());
        }
        match self.calls.get_mut(key) {
            None => {}
            // It was not begun, even if its message is whole.
            Some(Call::Waiting(_) | Call::Gathering(_)) => self.forget(key),
            Some(call) => {
                match call {
                    Call::Streaming(streaming) => {
                        streaming.inbox.cut_off();
                        streaming.sending.close();
                    }
                    Call::Page(page) => page.inbox.cut_off(),
                    _ => {}
                }
                // It sees that its stream is over.
                self.step(key.slot());
                self.forget(key);
            }
        }
    }

    /// Charges the table entries of the open calls, if there were never so many.
    fn note_places(&mut self) {
        let open = self.calls.len();
        if open > self.places {
            self.places = open;
            self.places_held.set((open - PLACES_FREE) * PLACE_BYTES);
        }
    }

    /// Polls the call in a place, if there still is one.
    fn step(&mut self, place: usize) {
        let Some(key) = self.calls.at(place) else { return };
        let Some(call) = self.calls.take(key) else { return };
        let was_finished = call.is_finished();
        let mut cx = Context::from_waker(self.calls.waker(place, &self.turn));
        if let Step::Wait(call) = call.step(&self.around, &mut cx) {
            let is_finished = call.is_finished();
            self.calls.insert(key, call);
            if is_finished && !was_finished {
                add_to(&mut self.finished, key, &self.calls);
            }
        }
    }

    /// Lets calls go on for which the client has room. Returns true if there are any.
    fn wake_writable(&mut self) -> bool {
        let mut any = false;
        loop {
            let Some(key) = self.around.http2.borrow_mut().next_writable() else { return any };
            match self.calls.get_mut(key) {
                None => continue,
                Some(Call::Streaming(streaming)) => streaming.sending.wake(),
                Some(_) => self.ready.push(key.slot() as u32),
            }
            any = true;
        }
    }

    /// Writes what the client takes. Returns true if there is more to do at once.
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
                // Pending means that the kernel takes no more; its wake comes through the transport.
                let mut cx = Context::from_waker(&self.transport_waker);
                if is_enough || socket.poll_write(&mut cx, output)?.is_pending() {
                    break;
                }
            }
        }
        self.around.charge_waiting();
        Ok(self.wake_writable() || is_enough)
    }

    /// Returns true if a shutdown was announced and the client has no calls any more.
    fn has_left(&self) -> bool {
        let mut http2 = self.around.http2.borrow_mut();
        http2.has_said_last_stream() && http2.open_streams() == 0 && http2.output().is_empty()
    }

    fn add_deadline(&mut self, deadline: Instant, key: Key) {
        self.deadlines.push(Reverse((deadline, key)));
        if self.deadlines.len() > 2 * self.calls.len() + 64 {
            let calls = &self.calls;
            self.deadlines.retain(|Reverse((_, key))| calls.contains(*key));
        }
    }

    /// Does what is due and sets the one timer to what is due next.
    fn tend_timers<S: Transport>(
        &mut self,
        socket: &Socket<S>,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> io::Result<()> {
        if self.around.http2.borrow().is_blocked() {
            // What the client may have sent is not read, so it cannot be called silent.
            self.heartbeat.received(now);
            self.was_deaf = true;
        }
        loop {
            let mut next = self.expire_deadlines(now);
            match self.heartbeat.pulse(now, &self.around.shard.options) {
                Pulse::Dead => return Err(io::ErrorKind::TimedOut.into()),
                Pulse::Wait(at) => next = next.min(at),
                Pulse::Ping(at) => {
                    next = next.min(at);
                    self.around.http2.borrow_mut().ping(0);
                    // Another turn sends it.
                    self.turn.yield_now(cx.waker());
                }
            }
            next = next.min(self.check_stalls(socket, now)?.unwrap_or(next));
            next = next.min(self.rest_when_idle(now).unwrap_or(next));
            // A timer that is set too early is only looked at again; moving it later each turn would cost more.
            if next < self.timer_at || self.timer_at <= now {
                self.timer_at = next;
                self.timer.as_mut().reset(next.into());
                self.is_timer_armed = false;
            }
            if self.is_timer_armed {
                return Ok(());
            }
            // The timer wakes the transport, so that a turn follows.
            let mut timer_cx = Context::from_waker(&self.transport_waker);
            // A task that has used up its share of the runtime's turn is not told of the timer, and polled again.
            let is_looked_at = tokio::task::coop::has_budget_remaining();
            if self.timer.as_mut().poll(&mut timer_cx).is_pending() {
                self.is_timer_armed = is_looked_at;
                return Ok(());
            }
            if self.timer_at > now {
                // It is due since this turn began: the next turn sees a later now.
                self.turn.yield_now(cx.waker());
                return Ok(());
            }
        }
    }

    /// Gives back memory once nothing was open for a while. Returns when that will be.
    fn rest_when_idle(&mut self, now: Instant) -> Option<Instant> {
        if self.is_resting || !self.calls.is_empty() || self.around.http2.borrow().open_streams() > 0 {
            self.idle_since = None;
            return None;
        }
        let since = *self.idle_since.get_or_insert(now);
        if now < since + REST_AFTER {
            return Some(since + REST_AFTER);
        }
        self.is_resting = true;
        self.around.http2.borrow_mut().rest();
        self.turn.rest();
        self.calls.rest();
        (self.seen, self.opening) = (None, Opening::default());
        (self.waiting, self.finished) = (VecDeque::new(), VecDeque::new());
        (self.ready, self.gathered, self.parked) = (Vec::new(), Vec::new(), Vec::new());
        self.deadlines = BinaryHeap::new();
        self.places = PLACES_FREE;
        self.places_held.set(0);
        None
    }

    /// Ends calls that are too late; returns when the next one will be, or a time far off.
    fn expire_deadlines(&mut self, now: Instant) -> Instant {
        while let Some(Reverse((deadline, key))) = self.deadlines.peek().copied() {
            if deadline > now {
                return deadline;
            }
            self.deadlines.pop();
            if let Some(call) = self.calls.take(key) {
                call.expire(&self.around);
                // What it said goes out with the next turn.
                self.transport_waker.wake_by_ref();
            }
        }
        now + self.around.shard.options.keepalive_interval
    }

    /// Resets streams that hold data without progress, and fails for a connection that holds all it may without any. Looks
    /// a few times per time-out, and only while anything is held; returns the time of the next look.
    fn check_stalls<S: Transport>(
        &mut self,
        socket: &Socket<S>,
        now: Instant,
    ) -> io::Result<Option<Instant>> {
        let is_amid_frame = socket.is_amid() || self.around.http2.borrow().is_amid_header_block();
        if !self.holds_unsent() && self.around.stallable.get() == 0 && !is_amid_frame {
            self.stalls = None;
            return Ok(None);
        }
        let options = self.around.shard.options.clone();
        let timeout = options.stall_timeout;
        let stalls = self.stalls.get_or_insert_default();
        let due = *stalls.next_check.get_or_insert(now);
        if now < due {
            return Ok(Some(due));
        }
        let counters = self.around.shard.counters.clone();
        let stalled = &counters.stalled_streams;
        let stalled_before = stalled.load(Relaxed);
        let next = now + timeout.min(options.request_timeout) / 4;
        stalls.next_check = Some(next);
        let was_deaf = std::mem::take(&mut self.was_deaf);
        if !is_amid_frame || was_deaf {
            stalls.incoming = Progress::default();
        } else if stalls.incoming.is_stalled(socket.received_bytes(), now, options.request_timeout) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Acknowledgements are no progress: a client that pings would have them go on for ever.
        let (written, sent) = {
            let mut http2 = self.around.http2.borrow_mut();
            let output = http2.output();
            (output.written_of_calls(), output.appended_of_calls())
        };
        let holds_unsent = self.holds_unsent();
        let stalls = self.stalls.get_or_insert_default();
        let stands_still = holds_unsent && stalls.progress.is_stalled(written, now, timeout);
        if stands_still && !self.around.has_room() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let queued = self.around.http2.borrow().queued_bytes();
        let look = Look { now, options: &options, queued, sent, stands_still, was_deaf };
        let mut over = Vec::new();
        for (key, call) in self.calls.iter_mut() {
            if call.is_stalled(&look) {
                over.push(key);
            }
        }
        over.extend(self.stalled_answers(&look));
        for key in over {
            counters::add(stalled, 1);
            self.forget(key);
            self.around.http2.borrow_mut().reset(key, Reason::CANCEL);
            self.transport_waker.wake_by_ref();
        }
        self.around.charge_waiting();
        // A stream that was reset just now leaves the others their own chance.
        if !self.holds_unsent() || stalled.load(Relaxed) != stalled_before {
            self.stalls.get_or_insert_default().progress = Progress::default();
        } else if stands_still {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some(next))
    }

    /// Streams whose calls are over, and whose answers stand still.
    fn stalled_answers(&mut self, look: &Look<'_>) -> Vec<Key> {
        let http2 = self.around.http2.borrow();
        let stalls = self.stalls.get_or_insert_default();
        let (mut seen, mut over) = (BTreeMap::new(), Vec::new());
        for key in http2.keys() {
            let moves = moves(&http2, key);
            if moves.queued == 0 || self.calls.contains(key) {
                continue;
            }
            let mut progress = stalls.undelivered.remove(&key).unwrap_or_default();
            if progress.is_stalled(moves, look) {
                over.push(key);
            } else {
                seen.insert(key, progress);
            }
        }
        stalls.undelivered = seen;
        over
    }

    /// Returns true if the client has something to take.
    fn holds_unsent(&self) -> bool {
        let mut http2 = self.around.http2.borrow_mut();
        http2.queued_pieces() > 0 || !http2.output().is_empty()
    }

    /// Drops a call that did not end by itself.
    fn forget(&mut self, key: Key) {
        if let Some(method) = self.calls.take(key).and_then(|call| call.begun_method()) {
            self.around.shard.counters.handled(method, api::Code::Canceled);
        }
    }

    /// Ends some of the calls that are open, from this place on. Returns where to go on after others had their turn; `None`
    /// if no call is left.
    fn forget_some(&mut self, from: usize) -> Option<usize> {
        drop(self.opening.take());
        let places = from..self.calls.places();
        let open: Vec<Key> =
            places.filter_map(|place| self.calls.at(place)).take(FORGOTTEN_AT_ONCE).collect();
        open.iter().for_each(|key| self.forget(*key));
        open.last().filter(|_| !self.calls.is_empty()).map(|last| last.slot() + 1)
    }

    /// Tells a client why, as grpc-go does when there are too many pings, and ends the connection.
    fn send_off(&mut self, reason: Reason, debug: &[u8]) -> Poll<io::Result<()>> {
        let mut http2 = self.around.http2.borrow_mut();
        if http2.is_blocked() {
            // The client does not even read what it was sent before.
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        http2.close(reason, debug);
        // What the kernel does not take now goes out while the connection lingers.
        Poll::Ready(Ok(()))
    }
}

/// Puts what came into an inbox; false if nobody takes it.
fn fill(inbox: &crate::inbox::Inbox, bytes: &[u8], end: bool) -> bool {
    let is_kept = bytes.is_empty() || inbox.push(bytes);
    if end {
        inbox.end();
    }
    is_kept
}

/// Adds a call to a list of those that wait, which loses those that are over from time to time.
fn add_to(list: &mut VecDeque<Key>, key: Key, calls: &Calls) {
    list.push_back(key);
    if list.len() > 2 * calls.len() + 64 {
        list.retain(|key| calls.contains(*key));
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut from = Some(0);
        while let Some(place) = from {
            from = self.forget_some(place);
        }
    }
}
