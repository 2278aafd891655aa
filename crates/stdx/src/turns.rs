//! Polls futures that use much processor time, such as TLS handshakes, one at a time and fairly by their
//! origin: [`Turns`].

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A set of futures, each with an origin `O`, such as the address of a client. The origins are served in
/// turn: one future of an origin is polled once, then one of the next origin. So an origin with many futures
/// delays each poll for another origin by one poll only.
///
/// After each poll the thread yields the processor. Otherwise, if this thread always has work, another thread
/// that wakes up might have to wait several milliseconds, until the kernel ends the time slice of this
/// thread. With yielding, it waits at most for the end of one poll. A lower priority of this thread would not
/// help: it does not shorten the time slice, and it leaves this thread almost no processor time while other
/// threads are busy.
pub struct Turns<O> {
    ready: Arc<Ready<O>>,
    tasks: HashMap<u64, (Task, Waker)>,
    next: u64,
    give_way: fn(),
}

/// The tasks that were woken and must be polled.
struct Ready<O> {
    queues: Mutex<Queues<O>>,
}

struct Queues<O> {
    /// Origins with tasks in `of`, each listed once. The first one is served next.
    origins: VecDeque<O>,
    of: HashMap<O, VecDeque<Arc<Ticket<O>>>>,
    waker: Option<Waker>,
}

/// Waker of one task, which queues the task for a poll.
struct Ticket<O> {
    id: u64,
    origin: O,
    is_queued: AtomicBool,
    ready: Arc<Ready<O>>,
}

impl<O> Ready<O> {
    fn lock(&self) -> MutexGuard<'_, Queues<O>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O: Copy + Eq + Hash + Send + Sync + 'static> Wake for Ticket<O> {
    fn wake(self: Arc<Self>) {
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let ready = Arc::clone(&self.ready);
        let mut queues = ready.lock();
        let Queues { origins, of, waker } = &mut *queues;
        let queue = of.entry(self.origin).or_default();
        if queue.is_empty() {
            origins.push_back(self.origin);
        }
        queue.push_back(self);
        let waker = waker.take();
        drop(queues);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<O: Copy + Eq + Hash> Queues<O> {
    fn pop(&mut self) -> Option<Arc<Ticket<O>>> {
        let origin = self.origins.pop_front()?;
        let queue = self.of.get_mut(&origin)?;
        let ticket = queue.pop_front();
        if queue.is_empty() {
            self.of.remove(&origin);
        } else {
            self.origins.push_back(origin);
        }
        ticket
    }
}

impl<O: Copy + Eq + Hash + Send + Sync + 'static> Default for Turns<O> {
    fn default() -> Turns<O> {
        Turns::new()
    }
}

impl<O: Copy + Eq + Hash + Send + Sync + 'static> Turns<O> {
    /// Returns an empty set of futures.
    pub fn new() -> Turns<O> {
        let queues = Queues { origins: VecDeque::new(), of: HashMap::new(), waker: None };
        Turns {
            ready: Arc::new(Ready { queues: Mutex::new(queues) }),
            tasks: HashMap::new(),
            next: 0,
            give_way: std::thread::yield_now,
        }
    }

    /// Adds a task. It is queued for its first poll immediately.
    pub fn add(&mut self, origin: O, task: Task) {
        let id = self.next;
        self.next += 1;
        let ready = Arc::clone(&self.ready);
        let ticket = Arc::new(Ticket { id, origin, is_queued: AtomicBool::new(false), ready });
        let waker = Waker::from(ticket);
        waker.wake_by_ref();
        self.tasks.insert(id, (task, waker));
    }

    /// Polls the next task, and then yields the processor to other threads. If no task must be polled,
    /// returns pending, and wakes the caller when there is one.
    pub fn poll_one(&mut self, cx: &Context<'_>) -> Poll<()> {
        let ticket = {
            let mut queues = self.ready.lock();
            match queues.pop() {
                Some(ticket) => ticket,
                None => {
                    queues.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        };
        // Reset the flag before the poll, so that a wake-up during the poll queues the task again.
        ticket.is_queued.store(false, Ordering::Release);
        if let Some((task, waker)) = self.tasks.get_mut(&ticket.id) {
            if task.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                self.tasks.remove(&ticket.id);
            }
            (self.give_way)();
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::poll_fn;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn the_processor_is_offered_to_other_threads_after_each_poll() {
        thread_local! {
            static OFFERS: Cell<usize> = const { Cell::new(0) };
        }
        let polls = Rc::new(Cell::new(0));
        let mut turns = Turns { give_way: || OFFERS.set(OFFERS.get() + 1), ..Turns::new() };
        for origin in [1, 1, 2] {
            let (mut left, polls) = (10, polls.clone());
            let task = poll_fn(move |cx| {
                assert_eq!(polls.replace(polls.get() + 1), OFFERS.get());
                left -= 1;
                cx.waker().wake_by_ref();
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            });
            turns.add(origin, Box::pin(task));
        }
        let cx = Context::from_waker(Waker::noop());
        while turns.poll_one(&cx).is_ready() {}
        assert_eq!((polls.get(), OFFERS.get()), (30, 30));
    }

    #[test]
    fn one_address_with_many_tasks_holds_up_the_others_by_one_poll() {
        let mut turns = Turns::new();
        let polled = Rc::new(RefCell::new(Vec::new()));
        let mut add = |origin: &'static str, name: u32, polls: u32| {
            let polled = Rc::clone(&polled);
            let mut left = polls;
            let task = poll_fn(move |cx| {
                polled.borrow_mut().push(name);
                left -= 1;
                if left == 0 {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            });
            turns.add(origin, Box::pin(task));
        };
        for name in 0..100 {
            add("many", name, 3);
        }
        add("few", 1000, 3);
        add("own", 2000, 2);
        let cx = Context::from_waker(Waker::noop());
        for _ in 0..8 {
            assert!(turns.poll_one(&cx).is_ready());
        }
        assert_eq!(*polled.borrow(), [0, 1000, 2000, 1, 1000, 2000, 2, 1000]);
        while turns.poll_one(&cx).is_ready() {}
        assert_eq!((polled.borrow().len(), turns.tasks.len()), (305, 0));
        assert!(turns.ready.lock().of.is_empty());
    }
}
