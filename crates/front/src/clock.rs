//! Wakes each connection of a shard at the time for which its alarm is set: [`Clock`]. One timer of the
//! runtime serves all connections, because a separate timer would cost an idle connection more than a hundred
//! bytes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use slab::Slab;
use stdx::race;
use tokio::time::sleep_until;

/// Maximum number of connections that are woken before other tasks of the shard run.
const WOKEN_AT_ONCE: usize = 256;

/// Alarms of a shard's connections, at most one per connection. The task [`Clock::keep`] wakes each
/// connection at the time of its alarm.
#[derive(Default)]
pub(crate) struct Clock(RefCell<Alarms>);

struct Alarms {
    /// Instant from which the times in `set` are counted.
    epoch: Instant,
    /// Times of the alarms in nanoseconds since `epoch`, each with the connection's index in
    /// `ShardState::connections`.
    set: BTreeSet<(u64, u32)>,
    /// Waker of the task [`Clock::keep`], which waits for the earliest alarm.
    keeper: Option<Waker>,
}

impl Default for Alarms {
    fn default() -> Alarms {
        Alarms { epoch: Instant::now(), set: BTreeSet::new(), keeper: None }
    }
}

impl Alarms {
    fn nanoseconds(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Clock {
    /// Sets the alarm of a connection to `at`, replacing the alarm at `before`.
    pub(crate) fn set(&self, connection: u32, before: Option<Instant>, at: Instant) {
        let alarms = &mut *self.0.borrow_mut();
        if let Some(before) = before {
            alarms.set.remove(&(alarms.nanoseconds(before), connection));
        }
        let at = alarms.nanoseconds(at);
        alarms.set.insert((at, connection));
        if alarms.set.first() == Some(&(at, connection))
            && let Some(keeper) = alarms.keeper.take()
        {
            keeper.wake();
        }
    }

    /// Removes the alarm of a connection that has ended.
    pub(crate) fn clear(&self, connection: u32, at: Instant) {
        let alarms = &mut *self.0.borrow_mut();
        alarms.set.remove(&(alarms.nanoseconds(at), connection));
    }

    /// Removes and returns an alarm that is due.
    fn due(&self, now: Instant) -> Option<u32> {
        let alarms = &mut *self.0.borrow_mut();
        let now = alarms.nanoseconds(now);
        let first = alarms.set.first().filter(|(at, _)| *at <= now).copied()?;
        alarms.set.remove(&first);
        Some(first.1)
    }

    fn first(&self) -> Option<Instant> {
        let alarms = self.0.borrow();
        alarms.set.first().map(|(at, _)| alarms.epoch + Duration::from_nanos(*at))
    }

    /// Wakes each connection at the time of its alarm. Never returns. `connections` holds the wakers.
    pub(crate) async fn keep(&self, connections: &RefCell<Slab<Waker>>) -> Infallible {
        loop {
            let now = Instant::now();
            for _ in 0..WOKEN_AT_ONCE {
                let Some(connection) = self.due(now) else { break };
                if let Some(waker) = connections.borrow().get(connection as usize) {
                    waker.wake_by_ref();
                }
            }
            // Resolves when another alarm becomes the earliest one, so that the task must wait for another
            // time.
            let first = self.first();
            let changed = poll_fn(|cx| {
                if self.first() != first {
                    return Poll::Ready(());
                }
                self.0.borrow_mut().keeper = Some(cx.waker().clone());
                Poll::Pending
            });
            match first {
                None => changed.await,
                Some(at) if at <= now => tokio::task::yield_now().await,
                Some(at) => drop(race(changed, sleep_until(at.into())).await),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_are_due_in_order_and_once() {
        let (clock, now) = (Clock::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        clock.set(7, None, at(20));
        clock.set(8, None, at(10));
        clock.set(9, None, at(10));
        // One alarm moves earlier, the other later.
        clock.set(7, Some(at(20)), at(5));
        clock.set(8, Some(at(10)), at(30));
        assert_eq!(clock.first(), Some(at(5)));
        assert_eq!((clock.due(at(4)), clock.due(at(15)), clock.due(at(15))), (None, Some(7), Some(9)));
        assert_eq!(clock.due(at(15)), None);
        clock.clear(8, at(30));
        assert_eq!((clock.due(at(99)), clock.first()), (None, None));
    }
}
