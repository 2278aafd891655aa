//! Queues connections whose next turn takes long, for example because they send megabytes of answers or take
//! thousands of requests, so that they do not delay the others. Between two polls of the network, only one of
//! these connections has its turn. So a connection with little work waits for at most one long turn. Without
//! this queue the runtime would poll the network only after about sixty turns.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Limit for the work of a long turn, in bytes of answers produced or written, after which other connections
/// run: about 0.1 ms.
pub(crate) const LONG_BYTES: usize = 64 * 1024;

/// Limit for the work of a turn, in bytes, if the connection has not queued for a long turn and another
/// connection has already had one since the last poll of the network. The number is small, because all
/// connections of the shard may have such turns before the next poll.
const UNANNOUNCED_BYTES: usize = LONG_BYTES / 8;

/// Queue of the connections of a shard whose next turn may be long.
#[derive(Default)]
pub(crate) struct LongTurns {
    /// Waiting connections, the next one first. Some of them may have ended.
    waiting: RefCell<VecDeque<Rc<QueueEntry>>>,
    /// True if a connection has had a long turn since the last poll of the network.
    is_used: Cell<bool>,
    /// Waker of the task [`LongTurns::keep`] while it waits until a connection has a long turn.
    keeper: RefCell<Option<Waker>>,
    /// True if each connection may have long turns without queueing.
    is_open: bool,
    yields: Yields,
}

/// Duration of a yield that is too long: more than other threads of this member usually take.
const YIELD_MAX: Duration = Duration::from_micros(500);
/// After a yield that was too long, there is none for one long turn for each such time that it took: so all
/// yields together take at most a twelfth of the time of long turns, which take 0.1 ms each.
const YIELD_PER_TURN: Duration = Duration::from_micros(8);

/// Decides whether a shard yields the processor (`std::thread::yield_now`) after a long turn.
///
/// While a connection has one long turn after the other, as for a long list, its shard never sleeps. Threads
/// that are woken meanwhile, such as the core, other shards and clients on this machine, then wait for a tick
/// of the kernel, which may be 4 ms, and the shard itself waits as long once its share of the processor is
/// used up. A yield lets them run at once. But a thread of another program that only computes would take
/// milliseconds at each yield, and most of the processor. So after a yield that took long, there is none for
/// a while. Nor is there one if no connection waits for a long turn: the shard then sleeps soon.
#[derive(Default)]
struct Yields {
    /// Number of long turns after which there is no yield.
    pause: Cell<u32>,
}

impl Yields {
    /// Called between two long turns. `give_way` yields the processor, and returns how long that took.
    fn between_long_turns(&self, give_way: impl FnOnce() -> Duration) {
        if let Some(left) = self.pause.get().checked_sub(1) {
            return self.pause.set(left);
        }
        let took = give_way();
        if took > YIELD_MAX {
            let pause = took.as_micros() / YIELD_PER_TURN.as_micros();
            self.pause.set(u32::try_from(pause).unwrap_or(u32::MAX));
        }
    }
}

/// Yields the processor to other threads; returns how long that took.
fn give_way() -> Duration {
    let began = Instant::now();
    std::thread::yield_now();
    began.elapsed()
}

/// Entry of one waiting connection.
#[derive(Debug)]
struct QueueEntry {
    is_through: Cell<bool>,
    waker: RefCell<Waker>,
}

impl LongTurns {
    /// Creates a queue in which no connection ever waits, for connections without a shard.
    pub(crate) fn open() -> LongTurns {
        LongTurns { is_open: true, ..LongTurns::default() }
    }

    /// Notes that a connection has had a long turn, so that the next one must wait for a poll of the network.
    pub(crate) fn note(&self) {
        self.is_used.set(true);
        if let Some(keeper) = self.keeper.borrow_mut().take() {
            keeper.wake();
        }
    }

    /// Returns true if a connection may have a long turn now without queueing.
    fn are_free(&self) -> bool {
        self.is_open || !self.is_used.get()
    }

    /// Returns the work in bytes that a connection may do in a turn: [`LONG_BYTES`] if the connection has
    /// queued for a long turn, or if no connection has had one since the last poll of the network; otherwise
    /// [`UNANNOUNCED_BYTES`].
    pub(crate) fn bytes_max(&self, has_waited: bool) -> usize {
        if has_waited || self.are_free() { LONG_BYTES } else { UNANNOUNCED_BYTES }
    }

    /// Grants one long turn after each poll of the network to the next waiting connection. Never returns.
    pub(crate) async fn keep(&self) {
        loop {
            poll_fn(|cx| self.poll_used(cx)).await;
            // `yield_now` resumes only after the runtime has polled the network and has run the tasks that
            // this poll woke.
            tokio::task::yield_now().await;
            match self.pop() {
                Some(entry) => {
                    self.yields.between_long_turns(give_way);
                    entry.is_through.set(true);
                    entry.waker.borrow().wake_by_ref();
                }
                None => self.is_used.set(false),
            }
        }
    }

    fn poll_used(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_used.get() {
            return Poll::Ready(());
        }
        *self.keeper.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Removes and returns the next waiting connection that still exists.
    fn pop(&self) -> Option<Rc<QueueEntry>> {
        let mut waiting = self.waiting.borrow_mut();
        // An entry that only the queue still references is skipped, because its connection was dropped.
        std::iter::from_fn(|| waiting.pop_front()).find(|entry| Rc::strong_count(entry) > 1)
    }
}

/// Handle of one connection to its entry in the queue; empty if the connection is not queued.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Option<Rc<QueueEntry>>);

impl Ticket {
    /// Returns true if the connection is queued.
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.is_some()
    }

    /// Becomes ready when the connection may have a long turn. The next call requests another one.
    pub(crate) fn poll(&mut self, turns: &LongTurns, cx: &Context<'_>) -> Poll<()> {
        match &self.0 {
            None if turns.are_free() => {
                turns.note();
                Poll::Ready(())
            }
            None => {
                let waker = RefCell::new(cx.waker().clone());
                let entry = Rc::new(QueueEntry { is_through: Cell::new(false), waker });
                turns.waiting.borrow_mut().push_back(entry.clone());
                self.0 = Some(entry);
                Poll::Pending
            }
            Some(entry) if entry.is_through.get() => {
                self.0 = None;
                Poll::Ready(())
            }
            Some(entry) => {
                entry.waker.borrow_mut().clone_from(cx.waker());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn is_through(turns: &LongTurns, ticket: &mut Ticket) -> bool {
        ticket.poll(turns, &Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn yields_take_a_twelfth_of_the_time_at_most() {
        let (yields, count) = (Yields::default(), Cell::new(0));
        let turns = |turns, took| {
            for _ in 0..turns {
                yields.between_long_turns(|| {
                    count.set(count.get() + 1);
                    took
                });
            }
            count.take()
        };
        assert_eq!(turns(1000, YIELD_MAX), 1000);
        assert_eq!(turns(1 + 125, Duration::from_millis(1)), 1);
        assert_eq!(turns(1 + 500, Duration::from_millis(4)), 1);
        assert_eq!(turns(10, YIELD_MAX), 10);
    }

    #[test]
    fn one_long_turn_between_two_looks_at_the_network() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let turns = LongTurns::default();
            let mut keeping = pin!(turns.keep());
            let (mut one, mut two, mut gone) = (Ticket::default(), Ticket::default(), Ticket::default());
            assert!(turns.are_free() && is_through(&turns, &mut one), "nobody has had one");
            assert!(!turns.are_free());
            assert!(
                !is_through(&turns, &mut gone)
                    && !is_through(&turns, &mut two)
                    && !is_through(&turns, &mut one)
            );
            assert!(!is_through(&turns, &mut two), "it waits already");
            drop(gone);
            assert_eq!(turns.waiting.borrow().len(), 3);
            let mut order = Vec::new();
            while order.len() < 2 {
                let step = poll_fn(|cx| {
                    let _ = keeping.as_mut().poll(cx);
                    Poll::Ready(())
                });
                step.await;
                let through = [(1, &mut one), (2, &mut two)].map(|(name, ticket)| {
                    // Polled only while queued, since polling a granted ticket queues again.
                    (ticket.is_waiting() && is_through(&turns, ticket)).then_some(name)
                });
                let now: Vec<_> = through.into_iter().flatten().collect();
                assert!(now.len() <= 1, "{now:?} at once");
                order.extend(now);
                tokio::task::yield_now().await;
            }
            assert_eq!(order, [2, 1], "in the order in which they came");
        });
    }

    #[test]
    fn nobody_waits_where_it_is_open() {
        let turns = LongTurns::open();
        let mut ticket = Ticket::default();
        assert!(is_through(&turns, &mut ticket) && is_through(&turns, &mut ticket));
    }
}
