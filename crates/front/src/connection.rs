//! One HTTP/2 connection with all its calls: [`serve`] runs it, and `Connection::work` is one turn, which takes new
//! requests, steps the calls that are ready, and sends everything in one write. It knows no protobuf and no methods;
//! those are the service's.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use h2::server::SendResponse;
use h2::{PingPong, Reason, RecvStream};
use http::Request;
use slab::Slab;
use tokio::time::Sleep;

use crate::budget::{Account, Held};
use crate::call::{Call, ConnectionContext, Look, Progress, Step, Tracked, call_bytes};
use crate::counters;
use crate::keepalive::{Heartbeat, PingPolicy, Pulse};
use crate::ledger::Charge;
use crate::outgoing::Outgoing;
use crate::settings_policy::SettingsPolicy;
use crate::shard::{Registration, ShardState};
use crate::socket::{SharedSocket, Socket, Transport};
use crate::standing::Standing;
use crate::turn::{SlotWake, Turn};
use crate::turnstile::Pass;
use crate::{Origin, Service, admission};

/// Rounds of one turn before other connections get theirs.
const ROUNDS_MAX: usize = 8;

/// New calls taken in one round.
const ADMITTED_PER_ROUND_MAX: usize = 256;

/// Open calls of a connection that closes which are ended before others get their turn.
const FORGOTTEN_AT_ONCE: usize = 256;

/// Bytes that a finished call leaves in tables here and in the library, which do not shrink.
const PLACE_BYTES: usize = 1024;
/// Calls at once for whose places a connection is charged anyway.
const PLACES_FREE: usize = 16;

/// Time that a closed connection still reads, so that its last frame arrives.
const LINGER: Duration = Duration::from_secs(1);

/// HTTP/2 streams cancelled by the client before the server looked at them that are tolerated at once.
const PENDING_RESETS_MAX: usize = 256;

/// A call: its slot, and which of those that used the slot it is.
type CallId = (u32, u64);

/// A deadline in the heap.
type DeadlineEntry = Reverse<(Instant, CallId)>;

/// A request that waits for room among the answers.
struct Waiting {
    request: Request<RecvStream>,
    respond: SendResponse<Outgoing>,
    charge: Charge,
    /// Time of its arrival, from which its deadline counts.
    since: Instant,
}

struct Slot {
    /// Empty while the call is being stepped.
    call: Option<Call>,
    /// Tells calls apart that used the same slot.
    serial: u64,
}

/// One HTTP/2 connection with all its calls.
pub(crate) struct Connection<S: Transport> {
    h2: h2::server::Connection<SharedSocket<S>, Outgoing>,
    socket: Rc<RefCell<Socket<S>>>,
    origin: Origin,
    standing: Option<Rc<Standing>>,
    pass: Pass,
    around: ConnectionContext,
    /// The most calls that were open at once, and what their places take.
    places: usize,
    places_held: Held,
    turn: Arc<Turn>,
    transport_waker: Waker,
    slots: Slab<Slot>,
    slot_wakers: Vec<Waker>,
    next_serial: u64,
    /// Slots taken from the turn; kept for its memory.
    ready: Vec<u32>,
    /// Requests that wait for room among the answers.
    waiting: VecDeque<Waiting>,
    /// Calls whose answers wait for room among the answers, the first to be sent first. Some may be over.
    finished: VecDeque<CallId>,
    /// True if all requests that the HTTP/2 library had were taken.
    accepted_all: bool,
    tracked: Vec<Tracked>,
    tracked_swept: usize,
    deadlines: BinaryHeap<DeadlineEntry>,
    progress: Progress,
    /// Progress of a frame or header block that the client has begun.
    incoming: Progress,
    /// True if the client was not read from for a time since the last look for stalled streams, because it takes nothing.
    was_deaf: bool,
    next_stall_check: Option<Instant>,
    ping_policy: PingPolicy,
    settings_policy: SettingsPolicy,
    heartbeat: Heartbeat,
    pings: Option<PingPong>,
    timer: Pin<Box<Sleep>>,
    timer_at: Instant,
    is_closing: bool,
    _registration: Registration,
}

/// Serves a connection that has sent HTTP/2's preface until it ends.
pub(crate) async fn serve<S: Transport + 'static>(
    socket: Socket<S>,
    origin: Origin,
    account: Rc<Account>,
    standing: Option<Rc<Standing>>,
    shard: Rc<ShardState>,
    service: Rc<dyn Service>,
) -> io::Result<()> {
    let socket = Rc::new(RefCell::new(socket));
    socket.borrow_mut().watch_frames();
    let options = shard.options.clone();
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(options.stream_window_bytes)
        .initial_connection_window_size(options.connection_window_bytes)
        .max_header_list_size(options.header_list_bytes_max)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX);
    if options.max_concurrent_streams < u32::MAX {
        builder.max_concurrent_streams(options.max_concurrent_streams);
    }
    let mut h2 = builder.handshake(SharedSocket(socket.clone())).await.map_err(io::Error::other)?;

    let _presence = service.connected(&origin);
    let turn = Turn::new();
    let transport_waker = Waker::from(turn.clone());
    account.wake_when_doomed(&transport_waker);
    if let Some(standing) = &standing {
        standing.wake_when_over(&transport_waker);
    }
    let now = Instant::now();
    let timer_at = now + options.keepalive_interval;
    let pings = h2.ping_pong();
    let mut connection = Connection {
        h2,
        socket: socket.clone(),
        pass: Pass::new(origin.peer.ip()),
        origin,
        standing,
        around: ConnectionContext::new(shard.clone(), service, account.clone()),
        places: PLACES_FREE,
        places_held: account.hold(0),
        turn,
        transport_waker: transport_waker.clone(),
        slots: Slab::new(),
        slot_wakers: Vec::new(),
        next_serial: 0,
        ready: Vec::new(),
        waiting: VecDeque::new(),
        finished: VecDeque::new(),
        accepted_all: true,
        tracked: Vec::new(),
        tracked_swept: 0,
        deadlines: BinaryHeap::new(),
        progress: Progress::default(),
        incoming: Progress::default(),
        was_deaf: false,
        next_stall_check: None,
        ping_policy: PingPolicy::new(),
        settings_policy: SettingsPolicy::new(now),
        heartbeat: Heartbeat::new(now),
        pings,
        timer: Box::pin(tokio::time::sleep_until(timer_at.into())),
        timer_at,
        is_closing: false,
        _registration: Registration::new(&shard, transport_waker),
    };
    let result = poll_fn(|cx| connection.poll_turn(cx)).await;
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
    drop(connection);
    // What is left is at most the last frames on their way.
    account.set_buffers(socket.borrow().buffer_bytes());
    if result.is_ok() {
        let lingering = async {
            poll_fn(|cx| socket.borrow_mut().poll_close(cx)).await?;
            poll_fn(|cx| socket.borrow_mut().poll_discard(cx)).await
        };
        // Neither a time-out nor an error matters: the connection is over.
        let _ = tokio::time::timeout(LINGER, lingering).await;
    }
    result
}

impl<S: Transport> Connection<S> {
    /// One turn: everything that is ready, then one write.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.around.may_wait.get() && !self.around.shard.closing.get() {
            ready!(self.pass.poll(&self.around.shard.turnstile, cx));
        }
        let _turn = self.around.account.begin_turn();
        self.turn.begin(cx.waker());
        self.socket.borrow_mut().begin_turn();
        self.around.made.reset();
        let now = Instant::now();
        let ended = self.work(now, cx);
        let traffic = self.socket.borrow_mut().take_traffic();
        if traffic.received {
            self.heartbeat.received(now);
        }
        if traffic.sent_calls {
            self.ping_policy.forgive();
        }
        let has_calls = !self.slots.is_empty() || !self.waiting.is_empty();
        for _ in 0..traffic.pings {
            if self.ping_policy.is_too_many(now, has_calls, &self.around.shard.options) {
                counters::add(&self.around.shard.counters.too_many_pings, 1);
                return self.send_off(Reason::ENHANCE_YOUR_CALM, b"too_many_pings");
            }
        }
        if traffic.settings > 0 && self.settings_policy.is_too_many(traffic.settings, now) {
            return self.send_off(Reason::ENHANCE_YOUR_CALM, b"too_many_settings");
        }
        if ended {
            return Poll::Ready(Ok(()));
        }
        if self.around.account.is_doomed() {
            return self.send_off(Reason::ENHANCE_YOUR_CALM, b"memory");
        }
        if self.standing.as_ref().is_some_and(|standing| standing.is_over()) {
            return self.send_off(Reason::NO_ERROR, b"certificate");
        }
        // Pending means that the kernel takes no more; its wake comes through the transport.
        if let Poll::Ready(Err(error)) =
            self.socket.borrow_mut().poll_send(&mut Context::from_waker(&self.transport_waker))
        {
            return Poll::Ready(Err(error));
        }
        // After sending: what the socket still holds, the client does not take.
        self.tend_timers(now, cx)?;
        self.around.account.set_buffers(self.socket.borrow().buffer_bytes());
        Poll::Pending
    }

    /// Rounds of calls and transport until nothing is ready; true when the connection has ended. Calls that have begun may
    /// make as much as a turn may, and so may those that the client sends: neither keeps the others waiting.
    fn work(&mut self, now: Instant, cx: &mut Context<'_>) -> bool {
        // Before all else, since the rounds of a turn may end anywhere: those of a busy connection always do.
        if self.around.shard.closing.get() && !self.is_closing {
            self.is_closing = true;
            self.h2.graceful_shutdown();
        }
        for _ in 0..ROUNDS_MAX {
            self.send_finished();
            self.turn.take_ready(&mut self.ready);
            let mut ready = std::mem::take(&mut self.ready);
            let mut stepped = 0;
            for slot in &ready {
                if self.around.made.is_enough() {
                    break;
                }
                self.step(*slot);
                stepped += 1;
            }
            ready.drain(..stepped);
            self.ready = ready;
            let made_enough = self.around.made.is_enough();
            if made_enough {
                self.around.made.reset();
            }
            if self.poll_transport(now) {
                return true;
            }
            if self.around.account.is_doomed() {
                return false;
            }
            if made_enough || self.around.made.is_enough() {
                break;
            }
            if self.around.has_room() && !self.finished.is_empty() {
                continue;
            }
            if self.turn.end() {
                return false;
            }
        }
        self.turn.yield_now(cx.waker());
        false
    }

    /// Sends answers that waited for room.
    fn send_finished(&mut self) {
        while self.around.has_room()
            && !self.around.made.is_enough()
            && let Some(id) = self.finished.pop_front()
        {
            if is_current(&self.slots, id) {
                self.step(id.0);
            }
        }
    }

    fn poll_transport(&mut self, now: Instant) -> bool {
        let waker = self.transport_waker.clone();
        let mut cx = Context::from_waker(&waker);
        // Until what came in is taken out of the library, no more comes in.
        if self.accepted_all {
            self.socket.borrow_mut().renew_allowance();
        }
        self.accepted_all = false;
        let mut polled = false;
        for _ in 0..ADMITTED_PER_ROUND_MAX {
            // Polled once in any case: what is made waits for nothing else if the client takes it.
            if polled && self.around.made.is_enough() {
                break;
            }
            if self.admits()
                && let Some(waiting) = self.waiting.pop_front()
            {
                self.admit_waiting(waiting, now);
                continue;
            }
            polled = true;
            self.turn.transport_seen();
            match self.h2.poll_accept(&mut cx) {
                // What it sent or dropped may have made room for those who wait.
                Poll::Pending if self.admits() && !self.waiting.is_empty() => {}
                Poll::Pending => {
                    self.accepted_all = true;
                    if self.socket.borrow().is_paused() {
                        waker.wake_by_ref();
                    }
                    return false;
                }
                Poll::Ready(Some(Ok((request, respond)))) => self.receive(request, respond, now),
                // h2 has told the client what was wrong, if anything was.
                Poll::Ready(Some(Err(_)) | None) => return true,
            }
        }
        waker.wake_by_ref();
        false
    }

    /// Returns true if the answers held unsent, and what was made in this turn, allow a new call.
    fn admits(&self) -> bool {
        self.around.has_room() && self.finished.is_empty() && !self.around.made.is_enough()
    }

    fn receive(&mut self, request: Request<RecvStream>, mut respond: SendResponse<Outgoing>, now: Instant) {
        if self.admits() && self.waiting.is_empty() {
            self.admit(request, respond, now, now);
        } else if self.waiting.len() < self.around.shard.options.waiting_requests_max {
            let mut charge = Charge::new(&self.around.requests.ledger);
            charge.raise_to(call_bytes(request.headers()));
            self.waiting.push_back(Waiting { request, respond, charge, since: now });
            self.note_places();
        } else {
            respond.send_reset(Reason::REFUSED_STREAM);
        }
    }

    fn admit_waiting(&mut self, waiting: Waiting, now: Instant) {
        let Waiting { request, mut respond, charge, since } = waiting;
        drop(charge);
        // The library still gives the whole request of a client that has cancelled it meanwhile.
        if respond.poll_reset(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.admit(request, respond, since, now);
        }
    }

    /// Begins a call that came at `since`.
    fn admit(
        &mut self,
        request: Request<RecvStream>,
        respond: SendResponse<Outgoing>,
        since: Instant,
        now: Instant,
    ) {
        // Not beside a call that may not, and such a one ends it.
        let can_wait = self.around.may_wait.get() || self.slots.is_empty();
        // Most calls are over after their first step and never take the slot whose waker they are polled with.
        let entry = self.slots.vacant_entry();
        let key = entry.key();
        let slot = u32::try_from(key).unwrap_or_else(|_| unreachable!("HTTP/2 has no 2^32 streams"));
        if key == self.slot_wakers.len() {
            self.slot_wakers.push(Waker::from(Arc::new(SlotWake { turn: self.turn.clone(), slot })));
        }
        let mut cx = Context::from_waker(&self.slot_wakers[key]);
        let begun = admission::begin(&self.around, request, respond, &self.origin, since, now, &mut cx);
        if !can_wait {
            self.around.may_wait.set(false);
        }
        match begun {
            None => {}
            Some((Step::Over(tracked), _)) => self.track(tracked),
            Some((Step::Wait(call), deadline)) => {
                let id = (slot, self.next_serial);
                self.next_serial += 1;
                let is_finished = call.is_finished();
                entry.insert(Slot { call: Some(call), serial: id.1 });
                self.note_places();
                if let Some(deadline) = deadline {
                    self.add_deadline(deadline, id);
                }
                if is_finished {
                    self.add_finished(id);
                }
            }
        }
    }

    /// Charges the table entries of the open calls, if there were never so many.
    fn note_places(&mut self) {
        let open = self.slots.len() + self.waiting.len();
        if open > self.places {
            self.places = open;
            self.places_held.set((open - PLACES_FREE) * PLACE_BYTES);
        }
    }

    /// Polls the call in a slot, if there still is one.
    fn step(&mut self, slot: u32) {
        let key = slot as usize;
        let Some(place) = self.slots.get_mut(key) else { return };
        let Some(call) = place.call.take() else { return };
        let was_finished = call.is_finished();
        let mut cx = Context::from_waker(&self.slot_wakers[key]);
        match call.step(&self.around, &mut cx) {
            Step::Wait(call) => {
                let is_finished = call.is_finished();
                place.call = Some(call);
                if is_finished && !was_finished {
                    let id = (slot, place.serial);
                    self.add_finished(id);
                }
            }
            Step::Over(tracked) => {
                self.slots.remove(key);
                self.track(tracked);
            }
        }
    }

    fn track(&mut self, tracked: Option<Tracked>) {
        self.tracked.extend(tracked);
        // Sweeping when the list has doubled keeps it within twice what is really on its way.
        if self.tracked.len() > 2 * self.tracked_swept + 32 {
            self.tracked.retain(|tracked| !tracked.is_drained());
            self.tracked_swept = self.tracked.len();
        }
    }

    fn add_deadline(&mut self, deadline: Instant, id: CallId) {
        self.deadlines.push(Reverse((deadline, id)));
        if self.deadlines.len() > 2 * self.slots.len() + 64 {
            let slots = &self.slots;
            self.deadlines.retain(|Reverse((_, id))| is_current(slots, *id));
        }
    }

    fn add_finished(&mut self, id: CallId) {
        self.finished.push_back(id);
        if self.finished.len() > 2 * self.slots.len() + 64 {
            let slots = &self.slots;
            self.finished.retain(|id| is_current(slots, *id));
        }
    }

    /// Does what is due and sets the one timer to what is due next.
    fn tend_timers(&mut self, now: Instant, cx: &mut Context<'_>) -> io::Result<()> {
        if self.socket.borrow().is_full() {
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
                    if let Some(pings) = &mut self.pings {
                        // An answer to the last ping must be taken before h2 sends another.
                        let _ = pings.poll_pong(&mut Context::from_waker(Waker::noop()));
                        // It fails only while an earlier ping is unanswered, which serves as well.
                        let _ = pings.send_ping(h2::Ping::opaque());
                    }
                }
            }
            next = next.min(self.check_stalls(now)?.unwrap_or(next));
            // A timer that is set too early is only looked at again; moving it later each turn would cost more.
            if next < self.timer_at || self.timer_at <= now {
                self.timer_at = next;
                self.timer.as_mut().reset(next.into());
            }
            // The timer wakes the transport, so that a turn follows.
            let mut timer_cx = Context::from_waker(&self.transport_waker);
            if self.timer.as_mut().poll(&mut timer_cx).is_pending() {
                return Ok(());
            }
            if self.timer_at > now {
                // It is due since this turn began: the next turn sees a later now.
                self.turn.yield_now(cx.waker());
                return Ok(());
            }
        }
    }

    /// Ends calls that are too late; returns when the next one will be, or a time far off.
    fn expire_deadlines(&mut self, now: Instant) -> Instant {
        while let Some(Reverse((deadline, id))) = self.deadlines.peek().copied() {
            if deadline > now {
                return deadline;
            }
            self.deadlines.pop();
            if is_current(&self.slots, id) {
                let call = self.slots.remove(id.0 as usize).call;
                let tracked = call.and_then(|call| call.expire(&self.around));
                self.track(tracked);
            }
        }
        now + self.around.shard.options.keepalive_interval
    }

    /// Resets streams that hold data without progress, and fails for a connection that holds all it may without any. Looks
    /// a few times per time-out, and only while anything is held; returns the time of the next look.
    fn check_stalls(&mut self, now: Instant) -> io::Result<Option<Instant>> {
        let holds =
            self.holds_unsent() || self.around.stallable.get() > 0 || self.socket.borrow().is_amid_frame();
        if !holds {
            self.next_stall_check = None;
            (self.incoming, self.progress) = (Progress::default(), Progress::default());
            return Ok(None);
        }
        let options = self.around.shard.options.clone();
        let timeout = options.stall_timeout;
        let due = *self.next_stall_check.get_or_insert(now);
        if now < due {
            return Ok(Some(due));
        }
        let counters = self.around.shard.counters.clone();
        let stalled = &counters.stalled_streams;
        let stalled_before = stalled.load(Relaxed);
        let next = now + timeout.min(options.request_timeout) / 4;
        self.next_stall_check = Some(next);
        let (amid_frame, received) = {
            let socket = self.socket.borrow();
            (socket.is_amid_frame(), socket.received_bytes())
        };
        let was_deaf = std::mem::take(&mut self.was_deaf);
        if !amid_frame || was_deaf {
            self.incoming = Progress::default();
        } else if self.incoming.is_stalled(received, now, options.request_timeout) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Acknowledgements are no progress: a client that pings would have them go on for ever.
        let moved = self.around.answers.moved() + self.socket.borrow().sent_call_bytes();
        let stands_still = self.holds_unsent() && self.progress.is_stalled(moved, now, timeout);
        if stands_still && !self.around.has_room() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let look = Look { now, options: &options, answers: &self.around.answers, stands_still, was_deaf };
        self.tracked.retain_mut(|tracked| {
            let reset = !tracked.is_drained() && tracked.reset_if_stalled(&look);
            if reset {
                counters::add(stalled, 1);
            }
            !tracked.is_drained()
        });
        let mut over = Vec::new();
        for (key, slot) in &mut self.slots {
            if slot.call.as_mut().is_some_and(|call| call.reset_if_stalled(&look)) {
                over.push(key);
            }
        }
        for key in over {
            counters::add(stalled, 1);
            self.forget(key);
        }
        // What small answers hold has no handle to reset: if nothing at all moves, the connection goes. A stream that
        // was reset just now leaves the others their own chance.
        if !self.holds_unsent() || stalled.load(Relaxed) != stalled_before {
            self.progress = Progress::default();
        } else if stands_still {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some(next))
    }

    /// Returns true if the client has something to take.
    fn holds_unsent(&self) -> bool {
        self.around.answers.queued() > 0 || self.socket.borrow().has_unsent()
    }

    /// Drops a call that did not end by itself.
    fn forget(&mut self, key: usize) {
        if let Some(method) = self.slots.remove(key).call.and_then(|call| call.begun_method()) {
            self.around.shard.counters.handled(method, api::Code::Canceled);
        }
    }

    /// Ends some of the calls that are open, from this place on. Returns where to go on after others had their turn; `None`
    /// if no call is left.
    fn forget_some(&mut self, from: usize) -> Option<usize> {
        let places = from..self.slots.capacity();
        let open: Vec<usize> =
            places.filter(|key| self.slots.contains(*key)).take(FORGOTTEN_AT_ONCE).collect();
        open.iter().for_each(|key| self.forget(*key));
        open.last().filter(|_| !self.slots.is_empty()).map(|last| last + 1)
    }

    /// Tells a client why, as grpc-go does when there are too many pings, and ends the connection.
    fn send_off(&mut self, reason: Reason, debug: &[u8]) -> Poll<io::Result<()>> {
        const GOAWAY: u8 = 7;
        let mut socket = self.socket.borrow_mut();
        let mut frame = vec![0, 0, 8 + debug.len() as u8, GOAWAY, 0, 0, 0, 0, 0];
        frame.extend(socket.last_stream().to_be_bytes());
        frame.extend(u32::from(reason).to_be_bytes());
        frame.extend(debug);
        if !socket.inject(&frame) {
            // The client does not even read what it was sent before.
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        // What the kernel does not take now goes out while the connection lingers.
        Poll::Ready(Ok(()))
    }
}

fn is_current(slots: &Slab<Slot>, (slot, serial): CallId) -> bool {
    slots.get(slot as usize).is_some_and(|slot| slot.serial == serial)
}

impl<S: Transport> Drop for Connection<S> {
    fn drop(&mut self) {
        let keys: Vec<usize> = self.slots.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.forget(key);
        }
    }
}
