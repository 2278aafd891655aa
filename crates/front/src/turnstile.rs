//! Throttles work of a shard that may wait a little while other calls are answered: the beginning and end of
//! connections, of which there may be thousands at the same time, and turns of connections whose clients only
//! make calls for which [`crate::Service::may_wait`] is true (they log in).
//!
//! This work is done in turns. A step of the turnstile admits [`TURNS`] turns, in rotation over the client
//! addresses. Between two steps the shard polls the network, so other calls wait for the turns of one step
//! and not for all. While other calls arrive, on any shard, a step also lasts at least [`STEP`]: the
//! throttled work then uses only a part of the processor cores, and leaves the rest to other calls.
//!
//! Every waiting turn is admitted in bounded time, and a closing shard admits all of them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use accounting::ShardCounters;
use accounting::party;

/// Number of turns that are admitted per step.
pub(crate) const TURNS: usize = 16;
/// Minimum duration of a step while other calls arrive.
const STEP: Duration = Duration::from_millis(1);
/// Minimum interval between two checks whether other calls have arrived.
const LOOK: Duration = Duration::from_millis(10);
/// Time for which further calls are expected after the arrival of a call that must not be delayed.
const GOING_ON: Duration = Duration::from_millis(100);

/// Admits a limited number of turns per step, and queues the turns above the limit.
pub(crate) struct Turnstile {
    queue: RefCell<Queue>,
    /// True for methods whose calls may wait, indexed by method id.
    may_wait: Vec<bool>,
    /// Counters of all shards.
    counters: Vec<Arc<ShardCounters>>,
}

struct Queue {
    /// Number of turns that the current step can still admit.
    left: usize,
    /// True once all turns are admitted without waiting; never reset.
    is_open: bool,
    /// Waiting turns by address; no queue in the map is empty.
    waiting: HashMap<IpAddr, VecDeque<Rc<QueueEntry>>>,
    /// Addresses that have waiting turns, in the order in which they are served.
    order: VecDeque<IpAddr>,
    /// Waker of the task [`Turnstile::keep`] while no step is needed.
    stepper: Option<Waker>,
}

/// Entry of one waiting turn.
struct QueueEntry {
    is_through: Cell<bool>,
    waker: RefCell<Waker>,
}

impl Queue {
    /// Removes and returns the next waiting turn whose connection still exists.
    fn pop(&mut self) -> Option<Rc<QueueEntry>> {
        loop {
            let address = self.order.pop_front()?;
            let Some(of_address) = self.waiting.get_mut(&address) else { continue };
            let entry = of_address.pop_front();
            if of_address.is_empty() {
                self.waiting.remove(&address);
            } else {
                self.order.push_back(address);
            }
            // An entry that only the queue still references is skipped, because its connection was dropped.
            if let Some(entry) = entry.filter(|entry| Rc::strong_count(entry) > 1) {
                return Some(entry);
            }
        }
    }
}

impl Turnstile {
    /// Creates the turnstile of a shard. `may_wait` is indexed by method id; `counters` are the counters of
    /// all shards. The turnstile works only while [`Turnstile::keep`] runs.
    pub(crate) fn new(may_wait: Vec<bool>, counters: Vec<Arc<ShardCounters>>) -> Turnstile {
        let queue = Queue {
            left: TURNS,
            is_open: false,
            waiting: HashMap::new(),
            order: VecDeque::new(),
            stepper: None,
        };
        Turnstile { queue: RefCell::new(queue), may_wait, counters }
    }

    /// Creates a turnstile that admits everything immediately.
    pub(crate) fn open() -> Turnstile {
        let turnstile = Turnstile::new(Vec::new(), Vec::new());
        turnstile.queue.borrow_mut().is_open = true;
        turnstile
    }

    /// Returns true if calls of this method may wait.
    pub(crate) fn may_wait(&self, method: u16) -> bool {
        self.may_wait.get(usize::from(method)).is_some_and(|may_wait| *may_wait)
    }

    /// Admits all waiting and future turns.
    pub(crate) fn release(&self) {
        self.queue.borrow_mut().is_open = true;
        self.let_through(usize::MAX);
    }

    /// Performs steps while turns are requested. Never returns.
    pub(crate) async fn keep(&self) {
        let mut others = Others { seen: self.others_received(), looked: None, until: None };
        loop {
            poll_fn(|cx| self.poll_used(cx)).await;
            let now = Instant::now();
            if others.go_on(now, || self.others_received()) {
                tokio::time::sleep(STEP).await;
            } else {
                // No other calls are arriving, so the next step begins as soon as the runtime has polled the
                // network.
                tokio::task::yield_now().await;
            }
            self.step();
        }
    }

    /// Becomes ready when the current step has admitted a turn, so that another step is needed.
    fn poll_used(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.queue.borrow_mut();
        if queue.left < TURNS {
            return Poll::Ready(());
        }
        queue.stepper = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Begins the next step and admits waiting turns, oldest first, in rotation over the addresses.
    fn step(&self) {
        self.queue.borrow_mut().left = TURNS;
        self.let_through(TURNS);
    }

    fn let_through(&self, turns: usize) {
        for _ in 0..turns {
            let mut queue = self.queue.borrow_mut();
            let Some(entry) = queue.pop() else { return };
            queue.left = queue.left.saturating_sub(1);
            drop(queue);
            entry.is_through.set(true);
            entry.waker.borrow().wake_by_ref();
        }
    }

    /// Returns `None` if the turn is admitted now; otherwise queues it and returns its entry.
    fn enter(&self, party: IpAddr, waker: &Waker) -> Option<Rc<QueueEntry>> {
        let queue = &mut *self.queue.borrow_mut();
        if queue.is_open {
            return None;
        }
        if queue.left > 0 && queue.order.is_empty() {
            queue.left -= 1;
            if let Some(stepper) = queue.stepper.take() {
                stepper.wake();
            }
            return None;
        }
        let entry = Rc::new(QueueEntry { is_through: Cell::new(false), waker: RefCell::new(waker.clone()) });
        let of_address = queue.waiting.entry(party).or_default();
        if of_address.is_empty() {
            queue.order.push_back(party);
        }
        of_address.push_back(entry.clone());
        Some(entry)
    }

    /// Returns the number of messages that all shards have received for methods whose calls must not be
    /// delayed.
    fn others_received(&self) -> u64 {
        let methods = self.counters.iter().flat_map(|shard| shard.methods.iter().enumerate());
        let others = methods.filter(|(id, _)| !self.may_wait.get(*id).is_some_and(|may_wait| *may_wait));
        others.fold(0, |sum: u64, (_, method)| sum.wrapping_add(method.messages_received.load(Relaxed)))
    }
}

/// Detects whether calls that must not be delayed are arriving.
struct Others {
    /// Number of messages of calls that must not be delayed, at the last check.
    seen: u64,
    looked: Option<Instant>,
    /// Time until which calls that must not be delayed are assumed to continue to arrive.
    until: Option<Instant>,
}

impl Others {
    fn go_on(&mut self, now: Instant, received: impl FnOnce() -> u64) -> bool {
        if self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK) {
            self.looked = Some(now);
            let received = received();
            if received != self.seen {
                self.seen = received;
                self.until = Some(now + GOING_ON);
            }
        }
        self.until.is_some_and(|until| now < until)
    }
}

/// Handle with which a connection requests admission by a turnstile, once per turn.
#[derive(Default)]
pub(crate) struct Pass(Option<Rc<QueueEntry>>);

impl Pass {
    /// Becomes ready when the turn is admitted, for a client at address `peer`. The next call requests
    /// another turn.
    pub(crate) fn poll(&mut self, turnstile: &Turnstile, peer: IpAddr, cx: &Context<'_>) -> Poll<()> {
        match &self.0 {
            None => self.0 = turnstile.enter(party(peer), cx.waker()),
            Some(entry) if entry.is_through.get() => self.0 = None,
            Some(entry) => entry.waker.borrow_mut().clone_from(cx.waker()),
        }
        if self.0.is_none() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until the turn is admitted.
    pub(crate) async fn through(mut self, turnstile: &Turnstile, peer: IpAddr) {
        poll_fn(|cx| self.poll(turnstile, peer, cx)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::AtomicU64;

    use super::*;

    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    /// Returns the names of the passes that are admitted now.
    fn through(turnstile: &Turnstile, passes: &mut [(usize, IpAddr, Pass)]) -> Vec<usize> {
        let cx = Context::from_waker(Waker::noop());
        let pass = |(name, peer, pass): &mut (usize, IpAddr, Pass)| {
            pass.poll(turnstile, *peer, &cx).is_ready().then_some(*name)
        };
        passes.iter_mut().filter_map(pass).collect()
    }

    #[test]
    fn a_step_lets_so_many_through_and_the_addresses_in_turn() {
        let turnstile = Turnstile::new(vec![], vec![]);
        let mut passes: Vec<_> = (0..100).map(|name| (name, ONE, Pass::default())).collect();
        assert_eq!(through(&turnstile, &mut passes), (0..TURNS).collect::<Vec<_>>());
        // An admitted pass may queue again, and is then the last.
        passes.drain(..TURNS);
        passes.extend((100..104).map(|name| (name, OTHER, Pass::default())));
        assert_eq!(through(&turnstile, &mut passes), []);
        turnstile.step();
        let next = through(&turnstile, &mut passes);
        let of_other = next.iter().filter(|name| **name >= 100).count();
        assert_eq!((next.len(), of_other), (TURNS, 4), "{next:?}");
        // A dropped pass uses no turn.
        passes.retain(|(name, ..)| !next.contains(name));
        passes.drain(..50);
        turnstile.step();
        assert_eq!(through(&turnstile, &mut passes).len(), TURNS);
        turnstile.release();
        passes.retain(|(_, _, pass)| pass.0.is_some());
        assert_eq!(through(&turnstile, &mut passes).len(), passes.len());
        assert!(turnstile.queue.borrow().waiting.is_empty() && turnstile.queue.borrow().order.is_empty());
    }

    #[test]
    fn steps_are_spaced_out_while_other_calls_come() {
        let received = AtomicU64::new(7);
        let begun = Instant::now();
        let mut others = Others { seen: 7, looked: None, until: None };
        let mut go_on = |ms| others.go_on(begun + Duration::from_millis(ms), || received.load(Relaxed));
        assert!(!go_on(0) && !go_on(20));
        received.store(8, Relaxed);
        assert!(go_on(40) && go_on(130));
        assert!(!go_on(145));
        received.store(9, Relaxed);
        assert!(go_on(160));
    }
}
