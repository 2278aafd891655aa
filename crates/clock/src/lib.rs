//! Source of a member's time ([`Clock`]): either the clocks of the machine, or clocks that a test moves by
//! hand.
//!
//! All code whose decisions depend on time must read the member's [`Clock`] (invariant I17 in
//! `ARCHITECTURE.md`), so that a simulation can control the time. Durations that are only counted for metrics
//! may be measured with `Instant::now()`. Raft and leases use monotonic time only. The time of day is used
//! for tokens (JWT), certificates, the id of an added member and log lines. It may jump.
//!
//! The crate does not know what the time is used for. Start reading with [`Clock`] and [`HandClock`]. Tests:
//! beside the code, and `server/tests/it/stepped.rs`.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A member's clocks. All clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    hand: Option<Arc<HandClock>>,
}

impl Clock {
    /// Returns the machine's clocks.
    pub fn real() -> Clock {
        Clock::default()
    }

    /// Returns clocks that show the time of `hand` and move only when it is moved.
    pub fn by_hand(hand: &Arc<HandClock>) -> Clock {
        Clock { hand: Some(Arc::clone(hand)) }
    }

    /// Returns the monotonic time.
    #[inline]
    pub fn now(&self) -> Instant {
        match &self.hand {
            None => Instant::now(),
            Some(hand) => hand.now(),
        }
    }

    /// Returns the time of day.
    pub fn wall(&self) -> SystemTime {
        match &self.hand {
            None => SystemTime::now(),
            Some(hand) => hand.wall(),
        }
    }

    /// Returns the time of day, in seconds since 1970.
    pub fn unix_seconds(&self) -> u64 {
        self.wall().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// Returns a future that resolves after `time`. With the machine's clocks, the future has to be polled
    /// inside a tokio runtime with a timer.
    pub fn sleep(&self, time: Duration) -> Sleep {
        Sleep(match &self.hand {
            None => Kind::Real(Box::pin(tokio::time::sleep(time))),
            Some(hand) => {
                let due_ns = hand.now_ns().saturating_add(nanoseconds(time));
                Kind::Hand(HandSleep { hand: Arc::clone(hand), due_ns, timer: None })
            }
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Clocks that stand still until a test moves them, and the timers that wait for them.
///
/// Timers that are due fire in the order of their times. Timers with equal times fire in the order in which
/// they were registered.
#[derive(Debug)]
pub struct HandClock {
    epoch: Instant,
    /// Monotonic time, in nanoseconds since the epoch.
    now_ns: AtomicU64,
    /// Time of day, in nanoseconds since 1970.
    wall_ns: AtomicU64,
    timers: Mutex<Timers>,
}

#[derive(Debug, Default)]
struct Timers {
    /// Wakers of the timers, by due time in nanoseconds and number of the timer.
    waiting: BTreeMap<(u64, u64), Waker>,
    next: u64,
}

impl HandClock {
    /// Returns clocks that show `epoch` and `wall`. Clocks whose times are compared with each other must be
    /// created with the same epoch.
    pub fn new(epoch: Instant, wall: SystemTime) -> Arc<HandClock> {
        let wall = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        Arc::new(HandClock {
            epoch,
            now_ns: AtomicU64::new(0),
            wall_ns: AtomicU64::new(nanoseconds(wall)),
            timers: Mutex::default(),
        })
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    /// Returns the monotonic time.
    pub fn now(&self) -> Instant {
        self.epoch + self.elapsed()
    }

    /// Returns the monotonic time since the epoch.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.now_ns())
    }

    /// Returns the time of day.
    pub fn wall(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.wall_ns.load(Ordering::Relaxed))
    }

    /// Advances the monotonic time and the time of day by `by`, and fires the timers that become due.
    pub fn advance(&self, by: Duration) {
        self.now_ns.fetch_add(nanoseconds(by), Ordering::Relaxed);
        self.wall_ns.fetch_add(nanoseconds(by), Ordering::Relaxed);
        self.fire();
    }

    /// Sets the time of day, forwards or back. The monotonic time does not change.
    pub fn set_wall(&self, wall: SystemTime) {
        let wall = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.wall_ns.store(nanoseconds(wall), Ordering::Relaxed);
    }

    /// Returns the time until the next timer is due; `None` if no timer waits.
    pub fn next_timer(&self) -> Option<Duration> {
        let (due_ns, _) = *self.timers().waiting.first_key_value()?.0;
        Some(Duration::from_nanos(due_ns.saturating_sub(self.now_ns())))
    }

    fn fire(&self) {
        loop {
            let mut timers = self.timers();
            let Some(first) = timers.waiting.first_entry().filter(|first| first.key().0 <= self.now_ns())
            else {
                return;
            };
            let waker = first.remove();
            // The lock is released before the waker is called, because the waker may use this clock, which
            // needs the lock.
            drop(timers);
            waker.wake();
        }
    }
}

/// A future that resolves after a time.
#[derive(Debug)]
pub struct Sleep(Kind);

#[derive(Debug)]
enum Kind {
    Real(Pin<Box<tokio::time::Sleep>>),
    Hand(HandSleep),
}

#[derive(Debug)]
struct HandSleep {
    hand: Arc<HandClock>,
    due_ns: u64,
    /// Number of the registered timer; `None` if none is registered.
    timer: Option<u64>,
}

impl Sleep {
    /// Restarts the wait: the future resolves when `time` has passed from now.
    pub fn reset(&mut self, time: Duration) {
        match &mut self.0 {
            Kind::Real(sleep) => sleep.as_mut().reset(tokio::time::Instant::now() + time),
            Kind::Hand(sleep) => {
                sleep.forget();
                sleep.due_ns = sleep.hand.now_ns().saturating_add(nanoseconds(time));
            }
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Kind::Real(sleep) => sleep.as_mut().poll(context),
            Kind::Hand(sleep) => sleep.poll(context),
        }
    }
}

impl HandSleep {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.hand.now_ns() >= self.due_ns {
            self.forget();
            return Poll::Ready(());
        }
        let mut timers = self.hand.timers();
        let number = self.timer.unwrap_or_else(|| {
            timers.next += 1;
            timers.next
        });
        self.timer = Some(number);
        timers.waiting.insert((self.due_ns, number), context.waker().clone());
        Poll::Pending
    }

    fn forget(&mut self) {
        if let Some(number) = self.timer.take() {
            let forgotten = self.hand.timers().waiting.remove(&(self.due_ns, number));
            // Dropped after the lock is released, because dropping a waker may use this clock, which needs
            // the lock.
            drop(forgotten);
        }
    }
}

impl Drop for HandSleep {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn timers_fire_when_they_are_due_and_not_before() {
        let hand = HandClock::new(Instant::now(), UNIX_EPOCH + Duration::from_secs(1_000));
        let clock = Clock::by_hand(&hand);
        let began = clock.now();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let mut sleeps: Vec<Sleep> =
            [30, 10, 20].into_iter().map(|ms| clock.sleep(Duration::from_millis(ms))).collect();
        for sleep in &mut sleeps {
            assert!(Pin::new(sleep).poll(&mut context).is_pending());
        }
        assert_eq!(hand.next_timer(), Some(Duration::from_millis(10)));
        hand.advance(Duration::from_millis(20));
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert_eq!(clock.now() - began, Duration::from_millis(20));
        let ready: Vec<bool> =
            sleeps.iter_mut().map(|sleep| Pin::new(sleep).poll(&mut context).is_ready()).collect();
        assert_eq!(ready, [false, true, true]);
        sleeps[0].reset(Duration::from_millis(50));
        assert!(Pin::new(&mut sleeps[0]).poll(&mut context).is_pending());
        assert_eq!(hand.next_timer(), Some(Duration::from_millis(50)));
        drop(sleeps);
        assert_eq!(hand.next_timer(), None, "who is gone waits no more");
        hand.set_wall(UNIX_EPOCH);
        hand.advance(Duration::from_secs(5));
        assert_eq!(clock.unix_seconds(), 5);
    }
}
