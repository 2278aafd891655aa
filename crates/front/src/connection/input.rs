//! Takes the bytes that the client of a connection has sent, begins new calls, and passes bytes of request
//! bodies to their calls.

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

/// Number of calls begun in a round after which the round takes no more input.
const BEGUN_PER_ROUND_MAX: usize = 256;

/// Reason why a round stopped taking input from the client.
pub(super) enum InputOutcome {
    /// All available input was taken; more input wakes the connection.
    All,
    /// The round has taken as much input, begun as many calls, or done as much work as it may; more input may
    /// be available.
    Share,
    /// The client does not read its output, so no input is taken from it.
    Blocked,
    /// The connection has ended. If a protocol error of the client is the cause, GOAWAY was queued.
    Ended,
    /// The client broke a limit; the connection closes with this debug text.
    TooMuch(&'static [u8]),
}

/// Result of handling one HTTP/2 event: how the round continues.
enum EventOutcome {
    /// The next event may be handled.
    Continue,
    /// The round takes no more input, so that other connections run soon.
    Pause,
    TooMuch(&'static [u8]),
}

impl Connection {
    /// Takes input from the client until none is available or the limits of a round are reached.
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
                    // No GOAWAY is sent here: the engine has already queued one for the protocol error.
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
            // A SETTINGS frame may require a change to every stream, so further frames wait for the next
            // round.
            Event::Settings => return EventOutcome::Pause,
            Event::Pong(_) | Event::GoAway { .. } | Event::Informational { .. } => {}
        }
        EventOutcome::Continue
    }

    /// Returns true if a new call may begin: no finished answer waits, and the queued answers and the work of
    /// this turn are below their limits.
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

    /// Begins waiting calls while [`Connection::admits`] allows that.
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
            // The call is no longer in the table if its client has cancelled it.
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

    /// Begins a call whose head arrived at `since`, with the part of its body that has arrived.
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
        // `begin` sets the flag `may_wait` for the new call alone. The connection may be throttled only if
        // all its calls may wait, so the flag stays cleared if it was cleared before and calls are open.
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
                // The call is polled only in the next round, because its first message often follows directly
                // after the head.
                self.work.get_or_insert_default().ready.push(key.slot() as u32);
            }
            Some(admission::AdmittedRequest::Page(page)) => {
                fill(&page.inbox, body, end);
                self.keep(key, Call::Page(page), None);
                self.step(key.slot());
            }
        }
    }

    /// Puts the unary call that began last into the table if its message is not complete. Called before
    /// another call begins, and at the end of the round.
    fn park_opening(&mut self) {
        if let Some(work) = &mut self.work
            && let Some(gathering) = work.opening.take()
        {
            let (key, deadline) = (gathering.key(), gathering.deadline());
            work.parked.push(key);
            self.keep(key, Call::Gathering(gathering), deadline);
        }
    }

    /// Marks the unary calls whose messages were not completed in this round as waiting for the client, and
    /// reserves memory for them in the connection's memory account.
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

    /// Passes a unary call to the service, or refuses it. The message must be complete, or the refusal must
    /// have been decided.
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
                    // The call is not served now, but queued with the other complete ones: the client began
                    // other calls earlier in this round, whose messages may be complete or be completed soon,
                    // and calls run in the order in which the client began them.
                    work.gathered.push(key);
                    let deadline = opening.deadline();
                    self.keep(key, Call::Gathering(opening), deadline);
                }
            }
            return;
        }
        let is_kept = match self.calls.get_mut(key) {
            Some(Call::Gathering(gathering)) => {
                // The call is served in the next round and not immediately, because the client may cancel it
                // with the next bytes.
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

    /// Handles a stream that the client has reset, or that the engine has reset because of a protocol error.
    fn receive_reset(&mut self, key: Key) {
        if let Some(work) = &mut self.work
            && work.opening(key).is_some()
        {
            work.opening = None;
        }
        match self.calls.get_mut(key) {
            None => {}
            // The service does not know these calls yet, so they are dropped.
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
                // One more step lets the service notice that the stream has ended, before the call is
                // dropped.
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
