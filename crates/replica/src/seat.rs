//! Chooses the thread on which the core works: [`Seat`].
//!
//! As a rule the core works on its own thread. But when one client waits for one write, two threads have to
//! be woken one after the other, for the request and for the answer, which is half of the write's cost apart
//! from the disk. So a shard that serves nothing else does the core's work on the shard's thread while the
//! core's thread sleeps.
//!
//! The `interleaving` crate runs this file under a memory model.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::inbox::Inbox;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, park_timeout};

/// Maximum number of turns that a borrowing thread does. A write takes two: the first turn writes it to the
/// log, the second answers it.
const TURNS_MAX: usize = 4;
/// Time by which the owner may oversleep after other threads have done its work: two readings of the clock
/// for the same deadline differ by about this much.
const OVERSLEEPS: Duration = Duration::from_micros(100);

/// Work that is done in turns, by one thread at a time.
pub trait Work {
    /// A request or an event; a turn takes any number of them.
    type Item;
    /// The result with which the work ends.
    type End;

    /// Does one turn with these items, and leaves `items` empty. Returns the result if the work has ended.
    fn turn(&mut self, items: &mut Vec<Self::Item>) -> Option<Self::End>;

    /// Returns the time that may pass before the next turn, and the number of waiting items that justify an
    /// earlier turn.
    fn before_sleep(&mut self) -> (Duration, usize);

    /// Returns true if, while the owner sleeps, threads that send items may do the next turns themselves.
    fn is_for_others(&self) -> bool;
}

/// Holds the work. The owner thread does it, and lends it to other threads while it sleeps.
pub struct Seat<W: Work> {
    place: Mutex<Option<Place<W>>>,
    /// True if other threads may do the work: a hint that spares them a useless attempt to lock.
    is_lent: AtomicBool,
}

struct Place<W: Work> {
    work: W,
    items: Vec<W::Item>,
    /// Time at which the sleeping owner wakes by itself; `None` for never.
    wakes_at: Option<Instant>,
    /// Result of the work, if it ended in a turn of another thread and the owner has not taken the result
    /// yet.
    end: Option<W::End>,
}

impl<W: Work> Default for Seat<W> {
    fn default() -> Self {
        Seat { place: Mutex::new(None), is_lent: AtomicBool::new(false) }
    }
}

impl<W: Work> Seat<W> {
    fn lock(&self) -> MutexGuard<'_, Option<Place<W>>> {
        self.place.lock().expect("no turn has ended with a panic: there is no going on from half a one")
    }

    /// Puts the work here. The calling thread becomes its owner and the receiver of the items.
    pub fn sit_down(&self, work: W) -> Owner<'_, W> {
        let mut place = self.lock();
        *place = Some(Place { work, items: Vec::new(), wakes_at: None, end: None });
        Owner { seat: self, place: Some(place) }
    }

    /// Returns true if a thread that has sent an item may try [`Seat::work_here`].
    pub fn is_lent(&self) -> bool {
        self.is_lent.load(Ordering::SeqCst)
    }

    /// Does the next turns on the calling thread. Stops when `is_done` returns true, when nothing is left to
    /// do, or when other threads have sent items, because the caller should not wait for their work. The
    /// caller must have put items into the inbox and got true from [`Inbox::put_all`]; this function wakes
    /// the receiver if the owner has to continue. Returns true if the owner sleeps on.
    pub fn work_here(&self, inbox: &Inbox<W::Item>, is_done: impl Fn() -> bool) -> bool {
        // A thread that holds the lock is the owner, about to sleep or to check for items, or another
        // borrower: the owner is woken for these items.
        if let Ok(mut place) = self.place.try_lock()
            && let Some(place) = &mut *place
            && self.works_off(place, inbox, is_done)
        {
            return true;
        }
        inbox.wake_receiver();
        false
    }

    /// Returns true if the owner may sleep on.
    fn works_off(&self, place: &mut Place<W>, inbox: &Inbox<W::Item>, is_done: impl Fn() -> bool) -> bool {
        // An earlier borrower's turn may have ended the work, and the owner has not taken the result yet.
        if place.end.is_some() {
            return false;
        }
        for _ in 0..TURNS_MAX {
            inbox.take(&mut place.items);
            place.end = place.work.turn(&mut place.items);
            if place.end.is_some() {
                return false;
            }
            let (patience, wanted) = place.work.before_sleep();
            if !patience.is_zero() && inbox.is_short_of(wanted) {
                if !place.owner_wakes_within(patience) {
                    return false;
                }
                self.lend(&place.work);
                inbox.fall_asleep(wanted);
                if inbox.is_asleep() {
                    return true;
                }
            }
            // Work that continues sends itself one item per turn; a second item is from another thread.
            if is_done() || inbox.has_more_than(1) {
                return false;
            }
        }
        false
    }

    fn lend(&self, work: &W) {
        let lends = work.is_for_others();
        if self.is_lent() != lends {
            self.is_lent.store(lends, Ordering::SeqCst);
        }
    }
}

impl<W: Work> Place<W> {
    /// Returns true if the sleeping owner wakes in time for work that is due after `patience`.
    fn owner_wakes_within(&self, patience: Duration) -> bool {
        let Some(due) = Instant::now().checked_add(patience.saturating_add(OVERSLEEPS)) else { return true };
        self.wakes_at.is_some_and(|wakes_at| wakes_at <= due)
    }
}

/// The awake owner of the work: no other thread does a turn.
pub struct Owner<'s, W: Work> {
    seat: &'s Seat<W>,
    /// Lock on the work; `None` only while the owner sleeps.
    place: Option<MutexGuard<'s, Option<Place<W>>>>,
}

impl<W: Work> Owner<'_, W> {
    fn place(&mut self) -> &mut Place<W> {
        let place = self.place.as_mut().and_then(|place| place.as_mut());
        place.expect("only leaving takes the work, and only a sleeper is without")
    }

    /// Takes the waiting items out of the inbox for the next turn, and returns them.
    pub fn take(&mut self, inbox: &Inbox<W::Item>) -> &[W::Item] {
        let place = self.place();
        inbox.take(&mut place.items);
        &place.items
    }

    /// Does a turn with the items taken. Returns the result if the work has ended.
    pub fn turn(&mut self) -> Option<W::End> {
        let place = self.place();
        place.work.turn(&mut place.items)
    }

    /// Sleeps up to `patience` until `wanted` items or an urgent item wait, and lends the work to other
    /// threads while it sleeps. Returns the result if the work has ended in the meantime.
    pub fn sleep(&mut self, inbox: &Inbox<W::Item>, patience: Duration, wanted: usize) -> Option<W::End> {
        inbox.sleep(patience, wanted, |patience| {
            let seat = self.seat;
            let place = self.place();
            place.wakes_at = Instant::now().checked_add(patience);
            seat.lend(&place.work);
            self.place = None;
            park_timeout(patience);
            self.place = Some(seat.lock());
        });
        self.place().end.take()
    }

    /// Takes the work out of the seat and returns it.
    pub fn leave(mut self) -> W {
        self.take_away().expect("only leaving takes the work, and only a sleeper is without")
    }

    fn take_away(&mut self) -> Option<W> {
        self.seat.is_lent.store(false, Ordering::SeqCst);
        let place = self.place.as_mut()?.take()?;
        Some(place.work)
    }
}

/// Takes the work out of the seat. The work may hold a reference to the structure that contains the seat, so
/// that neither would ever be freed.
impl<W: Work> Drop for Owner<'_, W> {
    fn drop(&mut self) {
        // Only a sleeper is without the lock. It is dropped if a turn of another thread has panicked; what
        // that turn left of the work is dropped too, and not worked on.
        if self.place.is_none() {
            self.place = Some(self.seat.place.lock().unwrap_or_else(PoisonError::into_inner));
        }
        drop(self.take_away());
    }
}

impl<W: Work> Deref for Owner<'_, W> {
    type Target = W;

    fn deref(&self) -> &W {
        let place = self.place.as_ref().and_then(|place| place.as_ref());
        &place.expect("only leaving takes the work, and only a sleeper is without").work
    }
}

impl<W: Work> DerefMut for Owner<'_, W> {
    fn deref_mut(&mut self) -> &mut W {
        &mut self.place().work
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Work whose turns panic, and that shows by its reference if it was dropped.
    struct Failing(#[allow(dead_code, reason = "only the count of references is read")] Arc<()>);

    impl Work for Failing {
        type Item = ();
        type End = ();

        fn turn(&mut self, _: &mut Vec<()>) -> Option<()> {
            panic!("this test plants a bug in the work")
        }

        fn before_sleep(&mut self) -> (Duration, usize) {
            (Duration::from_secs(60), 1)
        }

        fn is_for_others(&self) -> bool {
            true
        }
    }

    #[test]
    fn work_is_dropped_after_a_panic_in_a_turn_of_another_thread() {
        let exists = Arc::new(());
        let (seat, inbox) = (Arc::new(Seat::default()), Arc::new(Inbox::default()));
        let (owned, waiting, work) = (Arc::clone(&seat), Arc::clone(&inbox), Failing(Arc::clone(&exists)));
        let owner = std::thread::spawn(move || {
            waiting.receive_here();
            let mut owner = owned.sit_down(work);
            while owner.sleep(&waiting, Duration::from_millis(10), 1).is_none() {}
        });
        let borrowed = Arc::clone(&seat);
        let borrower = std::thread::spawn(move || {
            while !borrowed.is_lent() || !inbox.put_all(&mut vec![()], true) {
                std::thread::yield_now();
            }
            while !borrowed.work_here(&inbox, || false) {}
        });
        assert!(borrower.join().is_err() && owner.join().is_err());
        assert_eq!(Arc::strong_count(&exists), 1, "the seat still holds the work");
    }
}
