//! Does the timed work of a connection: ends calls whose deadline has passed, detects stalled streams, pings
//! a silent client, sends PING acknowledgements that were held back, and frees memory once the connection is
//! idle.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Context;
use std::time::{Duration, Instant};

use http2::{Key, Reason};

use super::{Connection, TABLE_ENTRIES_FREE, TABLE_ENTRY_BYTES};
use crate::call::DEADLINE;
use crate::keepalive::Pulse;
use crate::progress::{Progress, StallCheck, StreamProgress};
use crate::responder::stream_bytes;
use crate::socket::{Socket, Transport};

/// Time without activity after which a connection frees memory that it keeps only to make the next call
/// cheaper.
///
/// Allocating the memory again costs the next call only a few microseconds. The time is short to limit the
/// fragmentation of memory: if thousands of clients connect at the same time, the memory that they keep until
/// they go idle lies between longer-lived allocations, and leaves gaps there when it is freed.
const REST_AFTER: Duration = Duration::from_millis(250);

/// Maximum time for which a PING acknowledgement is held back until the answer of a recent call is ready, so
/// that one write sends both. To measure bandwidth, gRPC clients send a PING for each answer, together with
/// the next request. If the acknowledgement were written immediately, there would be two writes for each
/// answer.
const PONG_PATIENCE: Duration = Duration::from_millis(10);

/// Progress of data that the client has yet to read, and of incomplete frames that the client has yet to
/// complete. Allocated only while there is such data or such a frame.
#[derive(Default)]
pub(super) struct Stalls {
    /// Progress of the answers of all streams together.
    progress: Progress,
    /// Progress of an incoming frame or header block that has arrived only in part.
    incoming: Progress,
    /// Progress of each stream whose call has ended and whose answer waits for the client.
    undelivered: BTreeMap<Key, StreamProgress>,
    next_check: Option<Instant>,
}

impl Connection {
    /// Runs the timers that are due, and sets the connection's alarm to the next due time.
    pub(super) fn tend_timers<S: Transport>(
        &mut self,
        socket: &Socket<S>,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> io::Result<()> {
        if self.around.http2.borrow().is_blocked() {
            // Input is not read from a client that does not read its output, so the client must not be
            // considered silent.
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
                    // Requests another turn, which sends the ping: the output of this turn is already
                    // written.
                    self.around.turn.yield_now(cx.waker());
                }
            }
            next = next.min(self.check_stalls(socket, now)?.unwrap_or(next));
            next = next.min(self.rest_when_idle(now).unwrap_or(next));
            next = next.min(self.pongs_due().unwrap_or(next));
            // A turn after this time closes the connection, and does not get here.
            next = next.min(self.departs_at().filter(|at| *at > now).unwrap_or(next));
            // The alarm is moved only if it must become earlier or has passed. An alarm that is too early
            // causes one extra check, which costs less than moving the alarm in every turn.
            if next < self.alarm || self.alarm <= now {
                self.around.shard.clock.set(self.index, Some(self.alarm), next);
                self.alarm = next;
            }
            if next > now {
                // No timer is due. The clock wakes the connection at `next` or earlier, and the turn that
                // follows runs the timers again.
                return Ok(());
            }
        }
    }

    /// Returns true if the output should not be written yet: it consists of PING acknowledgements only, and
    /// an answer is expected soon, so that one write can send both. Returns false if the open calls take
    /// long, or if another answer is being sent: the client is then measuring the bandwidth, and needs the
    /// acknowledgement immediately.
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

    /// Returns the time at which the PING acknowledgements that are held back must be sent; `None` if there
    /// are none.
    pub(super) fn pongs_due(&self) -> Option<Instant> {
        self.work.as_ref().and_then(|work| work.pongs_due)
    }

    /// Frees memory if the connection has been idle for [`REST_AFTER`]. If it is idle, but not that long yet,
    /// returns the time at which the memory can be freed.
    fn rest_when_idle(&mut self, now: Instant) -> Option<Instant> {
        if self.is_resting {
            // The memory was freed before, and there was no activity since. The turn has only allocated
            // `work` again.
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

    /// Returns true if the connection is idle: nothing waits for the client and no work is pending. Streaming
    /// calls may be open.
    fn is_quiet(&self) -> bool {
        self.around.stallable.get() == 0
            && self.work.as_ref().is_none_or(|work| work.is_quiet())
            && !self.holds_unsent()
    }

    /// Frees the state that only an active connection needs, except what open calls need.
    fn release_work(&mut self) {
        let Some(work) = &mut self.work else { return };
        if !work.is_quiet() {
            return;
        }
        let calls = &self.calls;
        work.deadlines.retain(|Reverse((_, key))| calls.contains(*key));
        let deadlines = std::mem::take(&mut work.deadlines);
        // The memory reservation for the table entries is only reduced, and not dropped, because
        // `Calls::rest` keeps all slots up to that of the last open call.
        let kept = calls.slots();
        let entries = work.table_entries.take().filter(|_| kept > TABLE_ENTRIES_FREE);
        self.work = None;
        if !deadlines.is_empty() {
            let work = self.work.get_or_insert_default();
            work.deadlines = deadlines;
            work.deadlines.shrink_to_fit();
        }
        if let Some((_, held)) = entries {
            held.set((kept - TABLE_ENTRIES_FREE) * TABLE_ENTRY_BYTES);
            self.work.get_or_insert_default().table_entries = Some((kept, held));
        }
    }

    /// Ends the calls whose deadline has passed. Returns the next deadline; if there is none, the end of a
    /// keepalive interval that begins now.
    fn expire_deadlines(&mut self, now: Instant) -> Instant {
        while let Some(work) = &mut self.work
            && let Some(Reverse((deadline, key))) = work.deadlines.peek().copied()
        {
            if deadline > now {
                return deadline;
            }
            work.deadlines.pop();
            if let Some(call) = self.calls.take(key) {
                call.end(&self.around, &DEADLINE);
                self.note_use();
                // Wakes the connection, because the status is sent only in the next turn.
                self.around.transport_waker.wake_by_ref();
            }
        }
        now + self.around.shard.options.keepalive_interval
    }

    /// Resets streams whose data has made no progress for too long. Returns an error if the whole connection
    /// is stalled: if a partial frame has made no progress for [`crate::Options::request_timeout`], or all
    /// answers together have made none for [`crate::Options::stall_timeout`]. The checks run a few times per
    /// timeout, and only while there are unsent answers, calls that wait for the client, or a partial frame.
    /// Returns the time of the next check.
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
        // The counters exclude acknowledgements of PING and SETTINGS frames: otherwise a client that reads no
        // answers could avoid the timeout by sending pings.
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
        let check = StallCheck { now, options: &options, queued, sent, stands_still, was_deaf };
        let mut over = Vec::new();
        for (key, call) in self.calls.iter_mut() {
            if call.is_stalled(&check) {
                over.push(key);
            }
        }
        over.extend(self.stalled_answers(&check));
        for key in over {
            accounting::add(stalled, 1);
            self.forget(key);
            self.around.http2.borrow_mut().reset(key, Reason::CANCEL);
            self.around.transport_waker.wake_by_ref();
        }
        self.around.charge_waiting();
        // If a stream was reset, the other streams get a new timeout, because the stream that was reset may
        // have held them up.
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

    /// Returns the stalled streams among those whose calls have ended.
    fn stalled_answers(&mut self, check: &StallCheck<'_>) -> Vec<Key> {
        let http2 = self.around.http2.borrow();
        let stalls = self.work.get_or_insert_default().stalls.get_or_insert_default();
        let (mut seen, mut over) = (BTreeMap::new(), Vec::new());
        for key in http2.keys() {
            let bytes = stream_bytes(&http2, key);
            if bytes.queued == 0 || self.calls.contains(key) {
                continue;
            }
            let mut progress = stalls.undelivered.remove(&key).unwrap_or_default();
            if progress.is_stalled(bytes, check) {
                over.push(key);
            } else {
                seen.insert(key, progress);
            }
        }
        stalls.undelivered = seen;
        over
    }
}
