//! Keeps the requests that one shard has sent to the core and that are not answered yet. [`Pending::ask`]
//! returns a future of the reply. All requests that are made in one turn of the shard are sent to the core
//! together, at the end of the turn.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use accounting::ShardCounters;
use api::Status;
use api::error;

use crate::inbox::OPEN_REQUESTS_PER_SHARD_MAX;
use crate::requests::{ClientRequest, CoreRequest, Reply, RequestId, Writer};
use crate::seat::Borrower;
use crate::shared::Shared;

enum State {
    Waiting(Option<Waker>),
    Answered(Box<Reply>),
    TimedOut,
    Free,
}

struct Slot {
    generation: u32,
    state: State,
    deadline: Instant,
    /// Time at which the request was made if it is a proposal; otherwise `None`.
    proposed: Option<Instant>,
}

/// The open requests of one shard. Requests made in this turn of the shard are sent to the core at its end.
pub struct Pending {
    shared: Arc<Shared>,
    shard: u16,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    outgoing: RefCell<Vec<CoreRequest>>,
    flusher: Cell<Option<Waker>>,
    /// Time of the last lease grant or renewal by a client of this shard.
    leases_kept: Cell<Option<Instant>>,
    /// Number of messages that the shard had received, and number of bytes that it had sent, when it last
    /// sent requests to the core.
    traffic: Cell<(u64, u64)>,
    /// Number of consecutive lone writes. A write is lone if the shard has received no other message and sent
    /// at most `GIVEN_ALONE` bytes since the write before.
    writes_alone: Cell<u32>,
}

/// Maximum bytes that a shard sends between two lone writes. A shard that sends more serves a stream, such as
/// a snapshot. If it ran turns of the core on its own thread, each turn would block the shard for a sync, and
/// the next chunk of the stream would wait for that time.
const GIVEN_ALONE: u64 = 16 << 10;

/// Number of consecutive lone writes after which a shard runs the core's turns on its own thread. After fewer
/// lone writes, the shard may well have other traffic, which would be delayed by each sync.
const WRITES_ALONE: u32 = 16;
/// Time after a lease grant or renewal during which a shard runs no turn of the core, because a renewal must
/// not wait for a disk that hangs: a client gives up a lease if its renewal is not answered before the TTL
/// ends. Clients renew every third of the TTL, so a shard runs no turn while it serves a lease with a TTL of
/// up to three times this duration.
const LEASES_KEPT: Duration = Duration::from_secs(60);

impl Pending {
    /// Returns the table of this shard, without open requests.
    pub fn new(shared: Arc<Shared>, shard: u16) -> Rc<Pending> {
        Rc::new(Pending {
            shared,
            shard,
            slots: RefCell::default(),
            free: RefCell::default(),
            outgoing: RefCell::default(),
            flusher: Cell::new(None),
            leases_kept: Cell::new(None),
            traffic: Cell::new((0, 0)),
            writes_alone: Cell::new(0),
        })
    }

    /// Sends a request to the core. `ask` builds the request from the id with which the reply will be marked.
    /// Returns a future of the reply.
    ///
    /// # Errors
    ///
    /// Returns etcd's `too many requests` if too many requests of this shard are open.
    pub fn ask<R: Into<CoreRequest>>(
        self: &Rc<Self>,
        ask: impl FnOnce(RequestId) -> R,
    ) -> Result<PendingReply, Status> {
        self.ask_at(self.shared.member.clock.now(), ask)
    }

    /// Sends a request like [`Pending::ask`], for callers that already know the time.
    ///
    /// # Errors
    ///
    /// As for [`Pending::ask`].
    pub fn ask_at<R: Into<CoreRequest>>(
        self: &Rc<Self>,
        now: Instant,
        ask: impl FnOnce(RequestId) -> R,
    ) -> Result<PendingReply, Status> {
        let mut slots = self.slots.borrow_mut();
        let slot = match self.free.borrow_mut().pop() {
            Some(slot) => slot,
            None if slots.len() < OPEN_REQUESTS_PER_SHARD_MAX => {
                slots.push(Slot { generation: 0, state: State::Free, deadline: now, proposed: None });
                (slots.len() - 1) as u32
            }
            None => return Err(error::TOO_MANY_REQUESTS),
        };
        let entry = &mut slots[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.state = State::Waiting(None);
        entry.deadline = now + self.shared.member.limits.request_timeout;
        let request_id = RequestId { shard: self.shard, slot, generation: entry.generation };
        let request = ask(request_id).into();
        entry.proposed = matches!(request, CoreRequest::Client(ClientRequest::Propose { .. })).then_some(now);
        drop(slots);
        self.tell(request);
        Ok(PendingReply { pending: Rc::clone(self), slot })
    }

    /// Sends the core a request that gets no reply.
    pub fn tell(&self, request: impl Into<CoreRequest>) {
        self.outgoing.borrow_mut().push(request.into());
        if let Some(flusher) = self.flusher.take() {
            flusher.wake();
        }
    }

    /// Sends the core the requests made since the last call. A separate task polls this method after the
    /// tasks that were ready before it, so that their requests are sent together. If the shard has a single
    /// open request, a turn of the core may run inside this call; on a member without others, it may take as
    /// long as a sync. `shard` has the counters of this shard.
    pub fn poll_flush(&self, context: &mut Context<'_>, shard: &ShardCounters) {
        let mut outgoing = self.outgoing.borrow_mut();
        // Requests that are not urgent do not wake the core. These are logins, which may wait to share a
        // batch, writes unless the core is gathering logins, and reads or renewals while others wait for a
        // ReadIndex round, because they share the next round.
        let urgent = outgoing.iter().any(|request| match request {
            CoreRequest::Client(ClientRequest::Propose { writer: Writer::Login(_), .. }) => false,
            CoreRequest::Client(ClientRequest::Propose { writer: Writer::Port(_), .. }) => {
                self.shared.core.wakes_for_writes()
            }
            CoreRequest::Client(ClientRequest::Read(_) | ClientRequest::KeepAlive(..)) => {
                self.shared.core.wakes_for_reads()
            }
            _ => true,
        });
        let works_here = self.is_of_one_writer(&outgoing, shard)
            && self.shared.core.seat.is_lent_to(Borrower::Shard)
            && !self.keeps_leases();
        // In a cluster a turn never waits for a disk, so the other connections are not delayed for long. With
        // more requests the core would make smaller batches.
        let is_lone = outgoing.len() == 1 && self.open() == 1;
        let is_to_wake = self.shared.core.inbox.put_all(&mut outgoing, urgent);
        drop(outgoing);
        self.flusher.set(Some(context.waker().clone()));
        let (seat, inbox) = (&self.shared.core.seat, &self.shared.core.inbox);
        let was_lent = if !is_to_wake {
            false
        } else if works_here {
            shard.stands_still.store(true, Relaxed);
            let answers = &self.shared.core.outboxes[usize::from(self.shard)];
            let was_lent = seat.work_here(inbox, || !answers.is_empty());
            shard.stands_still.store(false, Relaxed);
            was_lent
        } else if is_lone {
            self.shared.core.work_or_wake()
        } else {
            inbox.wake_receiver();
            false
        };
        if was_lent {
            self.shared.diagnostics.metrics.disk.core_lent.inc();
        }
    }

    /// Returns the number of requests that are not answered yet.
    fn open(&self) -> usize {
        self.slots.borrow().len() - self.free.borrow().len()
    }

    /// Records that a lease was granted or renewed for a client of this shard.
    pub fn note_lease(&self, now: Instant) {
        self.leases_kept.set(Some(now));
    }

    fn keeps_leases(&self) -> bool {
        let now = self.shared.member.clock.now();
        self.leases_kept.get().is_some_and(|at| now.saturating_duration_since(at) < LEASES_KEPT)
    }

    /// Returns true if `outgoing` is a single write on the only connection of this shard, the last
    /// [`WRITES_ALONE`] writes were lone writes, too, and another shard exists that can serve new
    /// connections.
    fn is_of_one_writer(&self, outgoing: &[CoreRequest], shard: &ShardCounters) -> bool {
        if outgoing.is_empty() {
            return false;
        }
        let traffic = (shard.messages_received.load(Relaxed), shard.bytes_sent.load(Relaxed));
        let before = self.traffic.replace(traffic);
        let (came, given) = (traffic.0.wrapping_sub(before.0), traffic.1.wrapping_sub(before.1));
        let is_one_write =
            matches!(outgoing, [CoreRequest::Client(ClientRequest::Propose { writer: Writer::Port(_), .. })]);
        let is_alone = self.shared.core.outboxes.len() > 1
            && shard.connections.load(Relaxed) == 1
            && came == 1
            && given <= GIVEN_ALONE
            && is_one_write
            && self.open() == 1;
        self.writes_alone.set(if is_alone { self.writes_alone.get().saturating_add(1) } else { 0 });
        self.writes_alone.get() > WRITES_ALONE
    }

    /// Delivers a reply to the call that waits for it. A reply that arrives after its call has ended is
    /// dropped.
    pub fn answered(&self, reply: Reply) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(reply.request_id.slot as usize) else { return };
        if slot.generation != reply.request_id.generation {
            return;
        }
        if let State::Waiting(waker) = &mut slot.state {
            let waker = waker.take();
            slot.state = State::Answered(Box::new(reply));
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Ends the requests whose deadline has passed. Their calls get etcd's timeout error.
    pub fn sweep(&self, now: Instant) {
        for slot in self.slots.borrow_mut().iter_mut() {
            if now >= slot.deadline
                && let State::Waiting(waker) = &mut slot.state
            {
                let waker = waker.take();
                slot.state = State::TimedOut;
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }

    /// Interval at which [`Pending::sweep`] should run.
    pub const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
}

/// A future of the reply to an open request. It resolves to the reply, or to etcd's timeout error.
pub struct PendingReply {
    pending: Rc<Pending>,
    slot: u32,
}

impl Future for PendingReply {
    type Output = Result<Reply, Status>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slots = self.pending.slots.borrow_mut();
        let slot = &mut slots[self.slot as usize];
        let state = &mut slot.state;
        match std::mem::replace(state, State::Free) {
            State::Answered(reply) => Poll::Ready(Ok(*reply)),
            State::TimedOut | State::Free => Poll::Ready(Err(match slot.proposed {
                Some(since) => self.pending.shared.timed_out(since),
                None => error::TIMEOUT,
            })),
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        self.pending.slots.borrow_mut()[self.slot as usize].state = State::Free;
        self.pending.free.borrow_mut().push(self.slot);
    }
}
