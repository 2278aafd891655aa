//! The work that a connection does by the clock: it ends calls that are too late, finds streams that stand still, pings a silent client,
//! holds answers to pings back for a moment, and gives memory back once it rests.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Context;
use std::time::{Duration, Instant};

use http2::{Key, Reason};

use super::{Connection, PLACE_BYTES, PLACES_FREE};
use crate::call::{Look, Progress, StreamProgress};
use crate::keepalive::Pulse;
use crate::responder::moves;
use crate::socket::{Socket, Transport};

/// Time without calls after which a connection gives back memory that only makes the next call cheaper.
///
/// To get it again costs a call some microseconds. The time is short because thousands of clients may come at once: what each has
/// until its connection rests lies among what stays, where it leaves gaps.
const REST_AFTER: Duration = Duration::from_millis(250);

/// Time for which, about, an answer to a PING waits for the answer of a call that came no longer ago, with which it shares a write.
/// A client of gRPC pings for each answer that it gets, to measure the network, and sends its next request with that: a write for
/// the ping alone, and one for the request's answer, would be twice as many.
const PONG_PATIENCE: Duration = Duration::from_millis(10);

/// What is known of things that wait, while there are any.
#[derive(Default)]
pub(super) struct Stalls {
    /// Progress of all answers.
    progress: Progress,
    /// Progress of a frame or header block that the client has begun.
    incoming: Progress,
    /// Progress of streams whose calls are over, and whose answers wait for the client.
    undelivered: BTreeMap<Key, StreamProgress>,
    next_check: Option<Instant>,
}

impl Connection {
    /// Does what is due and sets the one timer to what is due next.
    pub(super) fn tend_timers<S: Transport>(
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
                    self.around.turn.yield_now(cx.waker());
                }
            }
            next = next.min(self.check_stalls(socket, now)?.unwrap_or(next));
            next = next.min(self.rest_when_idle(now).unwrap_or(next));
            next = next.min(self.pongs_due().unwrap_or(next));
            // An alarm that is set too early is only looked at again; moving it later each turn would cost more.
            if next < self.alarm || self.alarm <= now {
                self.around.shard.clock.set(self.place, Some(self.alarm), next);
                self.alarm = next;
            }
            if next > now {
                // The clock wakes the transport, so that a turn follows.
                return Ok(());
            }
        }
    }

    /// Returns true if nothing is to be sent but answers to PING, and an answer of a call is awaited with which they can go: not one
    /// that takes long, nor while another is under way, whose network the client measures.
    pub(super) fn holds_pongs_back(&mut self, now: Instant) -> bool {
        let is_pongs = {
            let mut http2 = self.around.http2.borrow_mut();
            http2.output().is_pongs_only() && http2.queued_pieces() == 0
        };
        let before = self.pongs_due();
        let called_at = self.work.as_ref().and_then(|work| work.called_at);
        let is_expected = before.is_some() || called_at.is_some_and(|at| now < at + PONG_PATIENCE);
        let may_wait = is_pongs && is_expected && !self.is_closing && self.calls.awaits_answer();
        let due = before.unwrap_or(now + PONG_PATIENCE);
        let waits = may_wait && now < due;
        if waits || before.is_some() {
            self.work.get_or_insert_default().pongs_due = waits.then_some(due);
        }
        waits
    }

    /// Returns the time at which answers to PING that are held back go out; `None` if there are none.
    pub(super) fn pongs_due(&self) -> Option<Instant> {
        self.work.as_ref().and_then(|work| work.pongs_due)
    }

    /// Gives back memory once nothing was open for a while. Returns when that will be.
    fn rest_when_idle(&mut self, now: Instant) -> Option<Instant> {
        if self.is_resting {
            // A turn in which nothing happened.
            self.release_work();
            return None;
        }
        let is_quiet = self.is_quiet();
        let idle_since = &mut self.work.get_or_insert_default().idle_since;
        if !is_quiet {
            *idle_since = None;
            return None;
        }
        let since = *idle_since.get_or_insert(now);
        if now < since + REST_AFTER {
            return Some(since + REST_AFTER);
        }
        self.is_resting = true;
        self.around.http2.borrow_mut().rest();
        self.around.turn.rest();
        self.calls.rest();
        self.release_work();
        None
    }

    /// Returns true if nothing waits: neither for the client, nor for anything here. Calls may be open.
    fn is_quiet(&self) -> bool {
        self.around.stallable.get() == 0
            && self.work.as_ref().is_none_or(|work| work.is_quiet())
            && !self.holds_unsent()
    }

    /// Gives back what is only of use while something happens, but for what open calls need.
    fn release_work(&mut self) {
        let Some(work) = &mut self.work else { return };
        if !work.is_quiet() {
            return;
        }
        let calls = &self.calls;
        work.deadlines.retain(|Reverse((_, key))| calls.contains(*key));
        let deadlines = std::mem::take(&mut work.deadlines);
        // As many as there are entries for: a rest leaves those in front of the last call.
        let kept = calls.places();
        let places = work.places.take().filter(|_| kept > PLACES_FREE);
        self.work = None;
        if !deadlines.is_empty() {
            let work = self.work.get_or_insert_default();
            work.deadlines = deadlines;
            work.deadlines.shrink_to_fit();
        }
        if let Some((_, mut held)) = places {
            held.set((kept - PLACES_FREE) * PLACE_BYTES);
            self.work.get_or_insert_default().places = Some((kept, held));
        }
    }

    /// Ends calls that are too late; returns when the next one will be, or a time far off.
    fn expire_deadlines(&mut self, now: Instant) -> Instant {
        while let Some(work) = &mut self.work
            && let Some(Reverse((deadline, key))) = work.deadlines.peek().copied()
        {
            if deadline > now {
                return deadline;
            }
            work.deadlines.pop();
            if let Some(call) = self.calls.take(key) {
                call.expire(&self.around);
                self.note_use();
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
            if let Some(work) = &mut self.work {
                work.stalls = None;
            }
            return Ok(None);
        }
        let options = self.around.shard.options.clone();
        let timeout = options.stall_timeout;
        let stalls = self.stalls();
        let due = *stalls.next_check.get_or_insert(now);
        if now < due {
            return Ok(Some(due));
        }
        let counters = self.around.shard.counters.clone();
        let stalled = &counters.stalled_streams;
        let stalled_before = stalled.load(Relaxed);
        let next = now + timeout.min(options.request_timeout) / 4;
        self.stalls().next_check = Some(next);
        let was_deaf = std::mem::take(&mut self.was_deaf);
        let stalls = self.stalls();
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
        let stalls = self.stalls();
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
            accounting::add(stalled, 1);
            self.forget(key);
            self.around.http2.borrow_mut().reset(key, Reason::CANCEL);
            self.transport_waker.wake_by_ref();
        }
        self.around.charge_waiting();
        // A stream that was reset just now leaves the others their own chance.
        if !self.holds_unsent() || stalled.load(Relaxed) != stalled_before {
            self.stalls().progress = Progress::default();
        } else if stands_still {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some(next))
    }

    fn stalls(&mut self) -> &mut Stalls {
        self.work.get_or_insert_default().stalls.get_or_insert_default()
    }

    /// Streams whose calls are over, and whose answers stand still.
    fn stalled_answers(&mut self, look: &Look<'_>) -> Vec<Key> {
        let http2 = self.around.http2.borrow();
        let stalls = self.work.get_or_insert_default().stalls.get_or_insert_default();
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
}
