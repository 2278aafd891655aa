//! Input of a connection: takes what the client has sent, begins new calls, and passes further bytes to their calls.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http2::{Event, Fields, Key, Reason};

use super::{Connection, add_to};
use crate::admission;
use crate::call::{Call, Step, UnaryRequest, WaitingRequest};
use crate::inbox::Inbox;
use crate::ledger::{Charge, call_bytes};
use crate::responder::Responder;
use crate::socket::{ALLOWANCE_BYTES, Socket, Transport};

/// Number of new calls after which a round takes no more input.
const BEGUN_PER_ROUND_MAX: usize = 256;

/// Result of taking a client's input in one round.
pub(super) enum InputOutcome {
    /// All available input was taken; more input wakes the connection.
    All,
    /// The round's allowance was used up; more input may be available.
    Share,
    /// The client does not read its output, so no input is taken from it.
    Blocked,
    /// The connection has ended. If a protocol error of the client is the cause, GOAWAY was queued.
    Ended,
    /// The client broke a limit; the connection closes with this debug text.
    TooMuch(&'static [u8]),
}

/// Result of one event.
enum EventOutcome {
    /// The next event may follow.
    Continue,
    /// Other connections have their turn.
    Pause,
    TooMuch(&'static [u8]),
}

impl Connection {
    /// Takes the client's input, up to the allowance of a round.
    pub(super) fn take_input<S: Transport>(&mut self, socket: &mut Socket<S>, now: Instant) -> InputOutcome {
        let mut taken = socket.unread().len();
        self.work.get_or_insert_default().begun = 0;
        self.around.turn.clear_transport_wake();
        loop {
            let mut at = 0;
            let next = loop {
                self.admit_waiting(now);
                if self.work.as_ref().is_some_and(|work| work.begun >= BEGUN_PER_ROUND_MAX)
                    || self.around.turn_work.is_enough()
                    || self.around.account.is_doomed()
                {
                    break EventOutcome::Pause;
                }
                let event = self.around.http2.borrow_mut().next(socket.unread(), &mut at);
                match event {
                    Ok(Some(event)) => match self.take(event, now) {
                        EventOutcome::Continue => {}
                        next => break next,
                    },
                    Ok(None) => break EventOutcome::Continue,
                    // The engine has queued the GOAWAY frame for the protocol error.
                    Err(_) => return InputOutcome::Ended,
                }
            };
            socket.consume(at);
            match next {
                EventOutcome::Pause => return InputOutcome::Share,
                EventOutcome::TooMuch(what) => return InputOutcome::TooMuch(what),
                EventOutcome::Continue => {}
            }
            if self.around.http2.borrow().is_blocked() {
                return InputOutcome::Blocked;
            }
            if taken >= ALLOWANCE_BYTES {
                return InputOutcome::Share;
            }
            match socket.poll_fill(&mut Context::from_waker(&self.around.transport_waker)) {
                Poll::Pending => return InputOutcome::All,
                Poll::Ready(Ok(0) | Err(_)) => return InputOutcome::Ended,
                Poll::Ready(Ok(cost)) => {
                    taken += cost;
                    self.heartbeat.received(now);
                    self.note_use();
                }
            }
        }
    }

    fn take(&mut self, event: Event<'_>, now: Instant) -> EventOutcome {
        match event {
            Event::Head { stream, fields, end } => {
                self.park_opening();
                self.work.get_or_insert_default().begun += 1;
                self.receive(stream, fields, end, now);
            }
            Event::Data { stream, bytes, end } => self.receive_body(stream, bytes, end),
            Event::Trailers { stream, .. } => self.receive_body(stream, &[], true),
            Event::Reset { stream, .. } => self.receive_reset(stream),
            Event::Pinged => {
                let sent = self.around.http2.borrow_mut().output().appended_of_calls();
                let is_opening = self.work.as_ref().is_some_and(|work| work.opening.is_some());
                let has_calls = !self.calls.is_empty() || is_opening;
                let policy = self.ping_policy.get_or_insert_default();
                policy.note_sent(sent);
                if policy.is_too_many(now, has_calls, &self.around.shard.options) {
                    accounting::add(&self.around.shard.counters.too_many_pings, 1);
                    return EventOutcome::TooMuch(b"too_many_pings");
                }
            }
            // A SETTINGS frame may cost a visit to every stream, so further frames wait for the next round.
            Event::Settings => return EventOutcome::Pause,
            Event::Pong(_) | Event::GoAway { .. } | Event::Informational { .. } => {}
        }
        EventOutcome::Continue
    }

    /// Returns true if a new call may begin: the unsent answers and the work of this turn are below their
    /// limits.
    fn admits(&self) -> bool {
        let has_finished = self.work.as_ref().is_some_and(|work| !work.finished.is_empty());
        self.around.has_room() && !has_finished && !self.around.turn_work.is_enough()
    }

    fn receive(&mut self, key: Key, fields: Arc<Fields>, end: bool, now: Instant) {
        self.work.get_or_insert_default().called_at = Some(now);
        let responder = Responder::new(&self.around, key);
        if self.admits() && self.calls.waiting() == 0 {
            self.admit(responder, fields, &[], end, now, now);
        } else if self.calls.waiting() < self.around.shard.options.waiting_requests_max {
            let mut charge = Charge::new(&self.around.account);
            charge.raise_to(call_bytes(fields.heap_bytes()));
            let waiting =
                WaitingRequest { responder, fields, body: Vec::new(), is_ended: end, charge, since: now };
            self.calls.insert(key, Call::Waiting(Box::new(waiting)));
            add_to(&mut self.work.get_or_insert_default().waiting, key, &self.calls);
            self.note_table_entries();
        } else {
            responder.reset(Reason::REFUSED_STREAM);
        }
    }

    /// Begins waiting calls, as long as the unsent answers are below their limit.
    fn admit_waiting(&mut self, now: Instant) {
        if self.calls.waiting() == 0 {
            return;
        }
        while self.calls.waiting() > 0
            && self.admits()
            && let Some(work) = &mut self.work
            && work.begun < BEGUN_PER_ROUND_MAX
            && let Some(key) = work.waiting.pop_front()
        {
            // A call that its client has cancelled is no longer in the table.
            if let Some(Call::Waiting(waiting)) = self.calls.take(key) {
                work.begun += 1;
                self.park_opening();
                let WaitingRequest { responder, fields, body, is_ended, charge, since } = *waiting;
                drop(charge);
                self.around.http2.borrow_mut().release(key, body.len());
                self.admit(responder, fields, &body, is_ended, since, now);
            }
        }
        if self.calls.waiting() == 0
            && let Some(work) = &mut self.work
        {
            work.waiting.clear();
        }
    }

    /// Begins a call that arrived at `since`, with the part of its body that has arrived.
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
        // The connection may be throttled only if all its calls may be: the first call of another kind clears
        // the flag.
        let can_wait = self.around.may_wait.get() || self.calls.is_empty();
        let heads = &mut self.work.get_or_insert_default().heads;
        let begun = admission::begin(&self.around, &self.service, heads, fields, responder, since, now);
        if !can_wait {
            self.around.may_wait.set(false);
        }
        match begun {
            None => {}
            Some(admission::AdmittedRequest::Unary(mut gathering)) => {
                if (end || !body.is_empty()) && gathering.take(&self.around, body, end) {
                    self.serve(gathering);
                } else {
                    self.work.get_or_insert_default().opening = Some(gathering);
                }
            }
            Some(admission::AdmittedRequest::Streaming(streaming, deadline)) => {
                fill(&streaming.inbox, body, end);
                self.keep(key, Call::Streaming(streaming), deadline);
                // The first message often follows directly behind the head.
                self.work.get_or_insert_default().ready.push(key.slot() as u32);
            }
            Some(admission::AdmittedRequest::Page(page)) => {
                fill(&page.inbox, body, end);
                self.keep(key, Call::Page(page), None);
                self.step(key.slot());
            }
        }
    }

    /// Puts the newest call into the table if its message did not follow directly behind its head.
    fn park_opening(&mut self) {
        if let Some(work) = &mut self.work
            && let Some(gathering) = work.opening.take()
        {
            let (key, deadline) = (gathering.key(), gathering.deadline());
            work.parked.push(key);
            self.keep(key, Call::Gathering(gathering), deadline);
        }
    }

    /// Makes the unary calls whose messages this round did not complete wait for their clients, and charges
    /// their memory.
    pub(super) fn charge_parked(&mut self) {
        self.park_opening();
        let Some(work) = &mut self.work else { return };
        for key in work.parked.drain(..) {
            if let Some(Call::Gathering(gathering)) = self.calls.get_mut(key)
                && !gathering.is_gathered()
                && gathering.wait(&self.around)
            {
                work.gathered.push(key);
            }
        }
    }

    /// Serves a call whose message is complete, or refuses it.
    fn serve(&mut self, gathering: Box<UnaryRequest>) {
        let (key, deadline) = (gathering.key(), gathering.deadline());
        let mut cx = Context::from_waker(self.calls.waker(key.slot(), &self.around.turn));
        match gathering.serve(&self.around, &self.service, &mut cx) {
            Step::Over => {}
            Step::Wait(call) => {
                let is_finished = call.is_finished();
                self.keep(key, call, deadline);
                if is_finished {
                    add_to(&mut self.work.get_or_insert_default().finished, key, &self.calls);
                }
            }
        }
    }

    /// Puts a call into the table.
    fn keep(&mut self, key: Key, call: Call, deadline: Option<Instant>) {
        self.calls.insert(key, call);
        self.note_table_entries();
        if let Some(deadline) = deadline {
            self.add_deadline(deadline, key);
        }
    }

    fn receive_body(&mut self, key: Key, bytes: &[u8], end: bool) {
        if let Some(work) = &mut self.work
            && let Some(opening) = work.opening(key)
        {
            self.around.http2.borrow_mut().release(key, bytes.len());
            if opening.take(&self.around, bytes, end)
                && let Some(opening) = work.opening.take()
            {
                if work.parked.is_empty() {
                    self.serve(opening);
                } else {
                    // The client began other calls earlier in this turn, and their messages may still be
                    // completed in it. Calls run in the order in which the client began them, so this call is
                    // not served now, but queued among the gathered ones.
                    work.gathered.push(key);
                    let deadline = opening.deadline();
                    self.keep(key, Call::Gathering(opening), deadline);
                }
            }
            return;
        }
        let is_kept = match self.calls.get_mut(key) {
            Some(Call::Gathering(gathering)) => {
                // Not served immediately: the client may cancel the call with its next bytes.
                if gathering.take(&self.around, bytes, end) {
                    self.work.get_or_insert_default().gathered.push(key);
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

    /// Handles a stream that the client has reset, or whose frames broke the protocol.
    fn receive_reset(&mut self, key: Key) {
        if let Some(work) = &mut self.work
            && work.opening(key).is_some()
        {
            work.opening = None;
        }
        match self.calls.get_mut(key) {
            None => {}
            // The call has not begun, even if its message is complete.
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
                // The step lets the call see that its stream has ended.
                self.step(key.slot());
                self.forget(key);
            }
        }
    }
}

/// Adds received bytes to an inbox. Returns false if the inbox is closed and the bytes are dropped.
fn fill(inbox: &Inbox, bytes: &[u8], end: bool) -> bool {
    let is_kept = bytes.is_empty() || inbox.push(bytes);
    if end {
        inbox.end();
    }
    is_kept
}
