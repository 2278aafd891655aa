//! Where connections wait that have more to do than a turn may: answers of megabytes, thousands of requests at once. One of them
//! has its turn between two looks at the network, whatever the number of those that wait, so that whoever asks for little waits for
//! one long turn at most. The runtime by itself looks at the network only after some sixty turns.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Bytes that a turn makes of answers, and those that it writes, before others have theirs: a tenth of a millisecond or so.
pub(crate) const LONG_BYTES: usize = 64 * 1024;

/// Bytes in a turn for which a connection has not waited although there was a long one since the last look at the network: as many
/// connections as there are may have such turns one after the other.
const UNANNOUNCED_BYTES: usize = LONG_BYTES / 8;

/// The connections of a shard whose next turn may be long.
#[derive(Default)]
pub(crate) struct LongTurns {
    /// Who waits, the next one first. Some may be gone.
    waiting: RefCell<VecDeque<Rc<Place>>>,
    /// There was a long turn since the last look at the network.
    is_used: Cell<bool>,
    /// Of the task that lets the next one through, while nobody waits for it.
    keeper: RefCell<Option<Waker>>,
    /// All go through at once.
    is_open: bool,
}

/// One who waits.
#[derive(Debug)]
struct Place {
    is_through: Cell<bool>,
    waker: RefCell<Waker>,
}

impl LongTurns {
    /// Where nobody ever waits, for connections without a shard.
    pub(crate) fn open() -> LongTurns {
        LongTurns { is_open: true, ..LongTurns::default() }
    }

    /// A turn was long: the next one comes behind a look at the network.
    pub(crate) fn note(&self) {
        self.is_used.set(true);
        if let Some(keeper) = self.keeper.borrow_mut().take() {
            keeper.wake();
        }
    }

    /// Returns true if a turn may be long without having waited for it.
    fn are_free(&self) -> bool {
        self.is_open || !self.is_used.get()
    }

    /// Returns the bytes of work that a connection may do in a turn: as many as in a long one if it has waited for that, or need not.
    pub(crate) fn bytes_max(&self, has_waited: bool) -> usize {
        if has_waited || self.are_free() { LONG_BYTES } else { UNANNOUNCED_BYTES }
    }

    /// Lets one after the other through, for ever.
    pub(crate) async fn keep(&self) {
        loop {
            poll_fn(|cx| self.poll_used(cx)).await;
            // This goes on behind a look at the network, and behind those whom that woke.
            tokio::task::yield_now().await;
            match self.pop() {
                Some(place) => {
                    place.is_through.set(true);
                    place.waker.borrow().wake_by_ref();
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

    /// The next one who waits and was not dropped meanwhile.
    fn pop(&self) -> Option<Rc<Place>> {
        let mut waiting = self.waiting.borrow_mut();
        // Held here only: its connection is gone.
        std::iter::from_fn(|| waiting.pop_front()).find(|place| Rc::strong_count(place) > 1)
    }
}

/// A connection's place among those who wait.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Option<Rc<Place>>);

impl Ticket {
    /// Returns true if it waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.is_some()
    }

    /// Ready when the connection may have a long turn; the next call is about the next one.
    pub(crate) fn poll(&mut self, turns: &LongTurns, cx: &Context<'_>) -> Poll<()> {
        match &self.0 {
            None if turns.are_free() => {
                turns.note();
                Poll::Ready(())
            }
            None => {
                let waker = RefCell::new(cx.waker().clone());
                let place = Rc::new(Place { is_through: Cell::new(false), waker });
                turns.waiting.borrow_mut().push_back(place.clone());
                self.0 = Some(place);
                Poll::Pending
            }
            Some(place) if place.is_through.get() => {
                self.0 = None;
                Poll::Ready(())
            }
            Some(place) => {
                place.waker.borrow_mut().clone_from(cx.waker());
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
                    // Not asked anew: that would be another place.
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
