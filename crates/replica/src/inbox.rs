//! Implements the queues between threads: [`Inbox`] from all threads to the core, and [`Outbox`] from the
//! core to one shard.
//!
//! The single receiver of a queue takes all waiting items together, so that items which arrived while it was
//! busy become one batch. The senders limit the length of both kinds of queue: a shard has at most
//! [`OPEN_REQUESTS_PER_SHARD_MAX`] requests open, and each request gets one reply.
//!
//! The `interleaving` crate runs this file under a memory model.

use std::sync::PoisonError;
use std::task::Waker;
use std::time::Duration;

use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, Thread, current, park_timeout};

/// Maximum number of open requests of one shard; further requests are answered with `too many requests`.
pub const OPEN_REQUESTS_PER_SHARD_MAX: usize = 65_536;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds one of these locks with half-changed data, so a poisoned lock still
    // guards a consistent value.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue with many senders and one receiving thread, which sleeps while the queue is empty.
pub struct Inbox<T> {
    waiting: Mutex<Waiting<T>>,
    receiver: Mutex<Option<Thread>>,
    /// 0 while the receiver is awake. While it sleeps, the number of waiting items at which it should be
    /// woken.
    asleep: AtomicUsize,
    closed: AtomicBool,
}

struct Waiting<T> {
    items: Vec<T>,
    /// True if one of the items is urgent. An urgent item wakes the receiver, however many items the receiver
    /// waits for.
    is_urgent: bool,
}

impl<T> Waiting<T> {
    fn is_enough(&self, wanted: usize) -> bool {
        self.is_urgent || self.items.len() >= wanted
    }
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Inbox {
            waiting: Mutex::new(Waiting { items: Vec::new(), is_urgent: false }),
            receiver: Mutex::new(None),
            asleep: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        }
    }
}

impl<T> Inbox<T> {
    /// Makes the calling thread the receiver.
    pub fn receive_here(&self) {
        *lock(&self.receiver) = Some(current());
    }

    /// Adds one urgent item and wakes the receiver.
    pub fn send(&self, item: impl Into<T>) {
        if self.put(item) {
            self.wake_receiver();
        }
    }

    /// Adds an item like [`Inbox::send`], but does not wake the receiver. Returns true in the same case as
    /// [`Inbox::put_all`], with the same duty of the caller.
    #[must_use]
    pub fn put(&self, item: impl Into<T>) -> bool {
        let mut waiting = lock(&self.waiting);
        if self.closed.load(Ordering::SeqCst) {
            // The item is dropped after the lock is released, because dropping it may call a method of this
            // queue, which would wait for the lock.
            drop(waiting);
            return false;
        }
        waiting.items.push(item.into());
        waiting.is_urgent = true;
        drop(waiting);
        self.is_to_wake(usize::MAX)
    }

    /// Adds all items and leaves `items` empty. If `urgent` is false, the receiver may continue to sleep
    /// until more items wait, see [`Inbox::drain`].
    pub fn send_all(&self, items: &mut Vec<T>, urgent: bool) {
        if self.put_all(items, urgent) {
            self.wake_receiver();
        }
    }

    /// Adds items like [`Inbox::send_all`], but does not wake the receiver. Returns true if the receiver
    /// sleeps and these items should wake it. The receiver then counts as woken, and the caller has to call
    /// [`Inbox::wake_receiver`] or do the receiver's work itself.
    #[must_use]
    pub fn put_all(&self, items: &mut Vec<T>, urgent: bool) -> bool {
        if items.is_empty() {
            return false;
        }
        let mut waiting = lock(&self.waiting);
        if self.closed.load(Ordering::SeqCst) {
            drop(waiting);
            items.clear();
            return false;
        }
        waiting.items.append(items);
        waiting.is_urgent |= urgent;
        let count = if urgent { usize::MAX } else { waiting.items.len() };
        drop(waiting);
        self.is_to_wake(count)
    }

    fn is_to_wake(&self, count: usize) -> bool {
        // The receiver sets `asleep` before it checks the queue for the last time. So either the sender sees
        // that the receiver sleeps, or the receiver sees the item. The sender that wakes the receiver resets
        // `asleep`, so no other sender wakes it for the same sleep.
        let wanted = self.asleep.load(Ordering::SeqCst);
        wanted != 0 && count >= wanted && self.asleep.swap(0, Ordering::SeqCst) != 0
    }

    /// Wakes the receiving thread if it is parked; otherwise its next attempt to park returns immediately.
    pub fn wake_receiver(&self) {
        if let Some(thread) = &*lock(&self.receiver) {
            thread.unpark();
        }
    }

    /// Drops all waiting items, and every item that is added later. If an item contains the sender of a
    /// reply, dropping it ends the call that waits for the reply with an error.
    pub fn close(&self) {
        let mut waiting = lock(&self.waiting);
        self.closed.store(true, Ordering::SeqCst);
        let dropped = std::mem::take(&mut waiting.items);
        waiting.is_urgent = false;
        drop(waiting);
        drop(dropped);
    }

    /// Marks the receiver as asleep, unless `wanted` items or an urgent item already wait.
    /// [`Inbox::is_asleep`] returns false once a sender has added items for which [`Inbox::drain`] would
    /// wake.
    pub fn fall_asleep(&self, wanted: usize) {
        let wanted = wanted.max(1);
        // A swap is used instead of a store. It costs the same, and in the memory model of the `interleaving`
        // crate it brings all changes into one order.
        self.asleep.swap(wanted, Ordering::SeqCst);
        if lock(&self.waiting).is_enough(wanted) {
            self.wake_up();
        }
    }

    /// Returns true if the receiver was marked as asleep and has not been woken since.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) != 0
    }

    /// Marks the receiver as awake.
    fn wake_up(&self) {
        self.asleep.swap(0, Ordering::SeqCst);
    }

    /// Returns true if fewer than `wanted` items wait and none of them is urgent, so that [`Inbox::drain`]
    /// would sleep.
    pub fn is_short_of(&self, wanted: usize) -> bool {
        !lock(&self.waiting).is_enough(wanted.max(1))
    }

    /// Sleeps until `wanted` items or an urgent item wait, but at most for `patience`. Then moves all waiting
    /// items into `into`, which must be empty.
    pub fn drain(&self, into: &mut Vec<T>, patience: Duration, wanted: usize) {
        self.sleep(patience, wanted, park_timeout);
        self.take(into);
    }

    /// Sleeps by calling `park` until `wanted` items or an urgent item wait, but at most for `patience`.
    /// Returns immediately if they already wait.
    pub fn sleep(&self, patience: Duration, wanted: usize, park: impl FnOnce(Duration)) {
        if patience.is_zero() || !self.is_short_of(wanted) {
            return;
        }
        self.fall_asleep(wanted);
        if self.is_asleep() {
            park(patience);
        }
        self.wake_up();
    }

    /// Returns true if more than `count` items wait.
    pub fn has_more_than(&self, count: usize) -> bool {
        lock(&self.waiting).items.len() > count
    }

    /// Moves all waiting items into `into`, which must be empty.
    pub fn take(&self, into: &mut Vec<T>) {
        debug_assert!(into.is_empty());
        let mut waiting = lock(&self.waiting);
        waiting.is_urgent = false;
        std::mem::swap(&mut waiting.items, into);
    }
}

/// A queue of items from the core to one shard. The shard is woken through the waker of its task.
pub struct Outbox<T> {
    waiting: Mutex<Vec<T>>,
    waker: Mutex<Option<Waker>>,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Outbox { waiting: Mutex::new(Vec::new()), waker: Mutex::new(None) }
    }
}

impl<T> Outbox<T> {
    /// Adds all items, leaves `items` empty, and wakes the shard.
    pub fn send_all(&self, items: &mut Vec<T>) {
        if items.is_empty() {
            return;
        }
        lock(&self.waiting).append(items);
        self.wake();
    }

    /// Returns true if no item waits for the shard.
    pub fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }

    /// Wakes the shard without adding an item.
    pub fn wake(&self) {
        // The lock is released before the wake-up, because the woken shard takes the lock as soon as it runs
        // and would otherwise wait for this thread.
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Moves all items into `into`, which must be empty, and registers the waker to be called when the next
    /// items are added.
    pub fn poll(&self, waker: &Waker, into: &mut Vec<T>) {
        *lock(&self.waker) = Some(waker.clone());
        std::mem::swap(&mut *lock(&self.waiting), into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn nothing_is_lost_between_many_senders_and_a_sleeper() {
        let inbox = Arc::new(Inbox::<u64>::default());
        let senders: Vec<_> = (0..4u64)
            .map(|s| {
                let inbox = Arc::clone(&inbox);
                std::thread::spawn(move || {
                    for n in 0..10_000u64 {
                        inbox.send(s * 10_000 + n);
                    }
                })
            })
            .collect();
        inbox.receive_here();
        let (mut seen, mut batch) = (Vec::new(), Vec::new());
        while seen.len() < 40_000 {
            inbox.drain(&mut batch, Duration::from_secs(60), 1);
            seen.append(&mut batch);
        }
        for sender in senders {
            sender.join().expect("sends");
        }
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..40_000));
    }

    #[test]
    fn who_waits_for_an_answer_hears_of_the_end() {
        let inbox = Inbox::default();
        let (before, answer_before) = std::sync::mpsc::channel::<()>();
        let (after, answer_after) = std::sync::mpsc::channel::<()>();
        inbox.send(before);
        inbox.close();
        inbox.send(after);
        assert!(answer_before.recv().is_err() && answer_after.recv().is_err());
        let (late, answer_late) = std::sync::mpsc::channel::<()>();
        let mut late = vec![late];
        inbox.send_all(&mut late, false);
        assert!(late.is_empty() && answer_late.recv().is_err());
    }
}
