//! Tells the open streams of a shard that the server is shutting down. There is one [`Ending`] per shard;
//! each stream waits with an [`Ended`].
//!
//! A stream could wait for [`front::Closing`] itself. But then each stream would take a lock that all shards
//! share when it starts to wait and when it ends, and it would hold about 100 bytes more. The locks matter
//! because a client may open a stream for each renewal of a lease.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

/// State of the shutdown, and the streams of one shard that wait for it.
#[derive(Default)]
pub(super) struct Ending {
    has_begun: Cell<bool>,
    /// One waker per waiting stream.
    waiting: RefCell<Slab<Waker>>,
}

impl Ending {
    /// Begins the shutdown: wakes all waiting streams.
    pub fn begin(&self) {
        self.has_begun.set(true);
        // The wakers are cloned and not removed: each stream removes its own entry when it is dropped.
        let wakers: Vec<Waker> = self.waiting.borrow().iter().map(|(_, waker)| waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns a future that resolves when the server shuts down.
    pub fn begun(self: &Rc<Self>) -> Ended {
        Ended { ending: Rc::clone(self), place: None }
    }
}

/// Future that resolves when the server shuts down.
pub(super) struct Ended {
    ending: Rc<Ending>,
    /// Index of this future's waker in [`Ending`] while the future waits. It is a `u32` to save memory,
    /// because every open stream holds this future.
    place: Option<u32>,
}

impl Ended {
    /// Returns true if the shutdown has begun.
    pub fn is_due(&self) -> bool {
        self.ending.has_begun.get()
    }
}

impl Future for Ended {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.ending.has_begun.get() {
            return Poll::Ready(());
        }
        let replaced = {
            let mut waiting = self.ending.waiting.borrow_mut();
            match self.place.map(|place| &mut waiting[place as usize]) {
                Some(waker) if waker.will_wake(cx.waker()) => None,
                Some(waker) => Some(std::mem::replace(waker, cx.waker().clone())),
                None => {
                    let place = waiting.insert(cx.waker().clone());
                    drop(waiting);
                    self.place = Some(u32::try_from(place).expect("fewer than 2^32 streams fit in memory"));
                    None
                }
            }
        };
        // Dropped only after the borrow has ended: dropping the last waker of a task may drop the task's
        // streams, which borrow this table again.
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let mut waiting = self.ending.waiting.borrow_mut();
            let waker = waiting.try_remove(place as usize);
            if waiting.is_empty() {
                // Frees the memory that thousands of streams may have taken.
                waiting.shrink_to_fit();
            }
            drop(waiting);
            // Dropped only after the borrow has ended, because the waker may hold the last reference to a
            // task whose streams borrow this table.
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn all_that_wait_are_woken_and_nothing_is_left_of_them() {
        let ending = Rc::new(Ending::default());
        let woken = [(); 3].map(|()| Arc::new(Woken::default()));
        let mut streams: Vec<Ended> = woken.iter().map(|_| ending.begun()).collect();
        let poll = |stream: &mut Ended, woken: &Arc<Woken>| {
            Pin::new(stream).poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken)))).is_ready()
        };
        for (stream, woken) in streams.iter_mut().zip(&woken) {
            assert!(!poll(stream, woken));
        }
        // Another task polls the first stream.
        assert!(!poll(&mut streams[0], &woken[2]));
        drop(streams.remove(1));
        assert_eq!(ending.waiting.borrow().len(), 2, "a place each, however often they are polled");
        ending.begin();
        let times = woken.each_ref().map(|woken| woken.0.load(Ordering::Relaxed));
        assert_eq!(times, [0, 0, 2]);
        assert!(streams.iter_mut().all(|stream| poll(stream, &woken[0])));
        assert!(poll(&mut ending.begun(), &woken[0]), "it has begun already");
        drop(streams);
        assert_eq!((ending.waiting.borrow().len(), ending.waiting.borrow().capacity()), (0, 0));
        assert!(woken.iter().all(|woken| Arc::strong_count(woken) == 1));
    }
}
