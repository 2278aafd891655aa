//! [`Turns`]: futures that cost processor time, polled one at a time and fairly by who asked for them.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Futures that are polled by turns: each origin `O` that has some to be polled gets one poll, then the next origin. So one
/// address that opens many connections holds up the others by one poll each, however many those are.
///
/// After each poll the processor is offered to other threads. A thread that has always something to do would hold up one that
/// wakes up until its slice of time is over, which takes the kernel up to several milliseconds; so it is for the rest of a poll.
/// A lower priority does not replace that: it does not shorten the slice, and leaves next to nothing beside threads that are
/// always busy.
pub struct Turns<O> {
    ready: Arc<Ready<O>>,
    tasks: HashMap<u64, (Task, Waker)>,
    next: u64,
    give_way: fn(),
}

/// The tasks that were woken.
struct Ready<O> {
    queues: Mutex<Queues<O>>,
}

struct Queues<O> {
    /// Origins that have tasks below, each once, the next one first.
    origins: VecDeque<O>,
    of: HashMap<O, VecDeque<Arc<Ticket<O>>>>,
    waker: Option<Waker>,
}

/// Wakes one task.
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
    /// Without tasks.
    pub fn new() -> Turns<O> {
        let queues = Queues { origins: VecDeque::new(), of: HashMap::new(), waker: None };
        Turns {
            ready: Arc::new(Ready { queues: Mutex::new(queues) }),
            tasks: HashMap::new(),
            next: 0,
            give_way: std::thread::yield_now,
        }
    }

    /// Adds a task, which is polled when its turn comes.
    pub fn add(&mut self, origin: O, task: Task) {
        let id = self.next;
        self.next += 1;
        let ready = Arc::clone(&self.ready);
        let ticket = Arc::new(Ticket { id, origin, is_queued: AtomicBool::new(false), ready });
        let waker = Waker::from(ticket);
        waker.wake_by_ref();
        self.tasks.insert(id, (task, waker));
    }

    /// Polls one task, the next one, and then offers the processor to other threads. Pending if none is to be polled: then the
    /// caller is woken when one is.
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
        // From here on it can be woken again.
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
