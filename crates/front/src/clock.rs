//! Alarms of a shard's connections: [`Clock`] wakes each at its time. One timer of the runtime serves them all, since a timer
//! of its own costs an idle connection more than a hundred bytes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use crate::shard::ShardState;
use stdx::race;

/// When the connections of a shard want to be woken: each has one alarm at most. [`keep`] wakes them.
#[derive(Default)]
pub(crate) struct Clock(RefCell<Alarms>);

struct Alarms {
    /// Time at which the clock began.
    epoch: Instant,
    /// Nanoseconds since then, with places of connections in [`ShardState::connections`].
    set: BTreeSet<(u64, u32)>,
    /// Of the task that waits for the first of them.
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
    /// Sets the alarm of a connection, in place of the one at `before`.
    pub(crate) fn set(&self, place: u32, before: Option<Instant>, at: Instant) {
        let alarms = &mut *self.0.borrow_mut();
        if let Some(before) = before {
            alarms.set.remove(&(alarms.nanoseconds(before), place));
        }
        let at = alarms.nanoseconds(at);
        alarms.set.insert((at, place));
        if alarms.set.first() == Some(&(at, place))
            && let Some(keeper) = alarms.keeper.take()
        {
            keeper.wake();
        }
    }

    /// Removes the alarm of a connection that is over.
    pub(crate) fn clear(&self, place: u32, at: Instant) {
        let alarms = &mut *self.0.borrow_mut();
        alarms.set.remove(&(alarms.nanoseconds(at), place));
    }

    /// Takes out an alarm that is due.
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
}

/// Connections woken before others have their turn.
const WOKEN_AT_ONCE: usize = 256;

/// Wakes the shard's connections at their times, for ever.
pub(crate) async fn keep(shard: &ShardState) -> Infallible {
    loop {
        let now = Instant::now();
        for _ in 0..WOKEN_AT_ONCE {
            let Some(place) = shard.clock.due(now) else { break };
            if let Some(waker) = shard.connections.borrow().get(place as usize) {
                waker.wake_by_ref();
            }
        }
        // An earlier alarm may be set meanwhile, or the first one.
        let first = shard.clock.first();
        let changed = poll_fn(|cx| {
            if shard.clock.first() != first {
                return Poll::Ready(());
            }
            shard.clock.0.borrow_mut().keeper = Some(cx.waker().clone());
            Poll::Pending
        });
        match first {
            None => changed.await,
            Some(at) if at <= now => tokio::task::yield_now().await,
            Some(at) => drop(race(changed, sleep_until(at.into())).await),
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
        // Moved, both ways.
        clock.set(7, Some(at(20)), at(5));
        clock.set(8, Some(at(10)), at(30));
        assert_eq!(clock.first(), Some(at(5)));
        assert_eq!((clock.due(at(4)), clock.due(at(15)), clock.due(at(15))), (None, Some(7), Some(9)));
        assert_eq!(clock.due(at(15)), None);
        clock.clear(8, at(30));
        assert_eq!((clock.due(at(99)), clock.first()), (None, None));
    }
}
