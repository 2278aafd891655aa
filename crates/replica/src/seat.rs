//! Chooses the thread on which the core runs its turns: [`Seat`] lends the core to other threads.
//!
//! As a rule the core works on its own thread. But when one client waits for one write, two threads have to
//! be woken: the core's thread for the request, and the shard's thread for the reply. Apart from the disk,
//! these wake-ups are half of the cost of the write. So a shard that serves nothing else runs the core's
//! turns on its own thread while the core's thread sleeps.
//!
//! In a cluster, most turns begin with a message of another member, such as an append or the response to one.
//! The thread that receives these messages also sends the core's. So it runs the core's turn itself while the
//! core's thread sleeps, which saves two wake-ups: the core's for the message, and its own for the response.
//! It runs a single turn, and none if clients have sent much, because the network waits meanwhile: longer
//! work is the owner's. A turn of a cluster's member never waits for a sync (`writing.rs`). In the same way
//! the log's thread runs the turn that follows the sync of a single entry, and a shard the turn for its only
//! open request. With more entries or requests the next batch would only be smaller.
//!
//! The `interleaving` crate also compiles this file and runs it under a model of memory.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::inbox::Inbox;
use crate::sync::{AtomicU8, Mutex, MutexGuard, Ordering, park_timeout};

/// Maximum number of turns in a row that a borrowing thread runs. A write takes two turns: the first appends
/// the write to the log, the second answers it.
const TURNS_MAX: usize = 4;
/// Tolerance between the time at which the owner wakes by itself and the time at which work is due. Both come
/// from separate readings of the clock for the same deadline, which differ by about this much. Without the
/// tolerance, the owner would be woken only to set the same deadline again.
const OVERSLEEPS: Duration = Duration::from_micros(100);

/// Work that is done in turns. At any time at most one thread does a turn.
pub trait Work {
    /// A request or an event; a turn takes any number of them.
    type Item;
    /// The result with which the work ends.
    type End;

    /// Runs one turn with these items, and leaves `items` empty. Returns the result of the work if the work
    /// has ended; `None` if it continues.
    fn turn(&mut self, items: &mut Vec<Self::Item>) -> Option<Self::End>;

    /// Returns the time that may pass before the next turn, and the number of waiting items from which on the
    /// next turn should not wait for that time.
    fn before_sleep(&mut self) -> (Duration, usize);

    /// Returns the threads that may run the next turns while the owner sleeps.
    fn borrower(&self) -> Borrower;
}

/// Threads that may run turns while the owner of the work sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Borrower {
    /// No thread.
    None,
    /// A shard whose only client writes, and waits for each answer.
    Shard,
    /// The threads that bring a member of a cluster its work: the one that receives the messages of other
    /// members, the log's after the sync of a single entry, and a shard that has a single open request.
    ClusterThreads,
}

/// Holds the work. The owner thread runs the turns, and lends the work to other threads while the owner
/// sleeps.
pub struct Seat<W: Work> {
    place: Mutex<Option<Place<W>>>,
    /// The [`Borrower`] of the work. This is only a hint, which saves the others a useless attempt to lock.
    borrower: AtomicU8,
}

struct Place<W: Work> {
    work: W,
    items: Vec<W::Item>,
    /// Time at which the sleeping owner wakes by itself; `None` for never.
    wakes_at: Option<Instant>,
    /// Result of the work, if the work ended in a turn of another thread and the owner has not taken the
    /// result yet.
    end: Option<W::End>,
}

impl<W: Work> Default for Seat<W> {
    fn default() -> Self {
        Seat { place: Mutex::new(None), borrower: AtomicU8::new(Borrower::None as u8) }
    }
}

impl<W: Work> Seat<W> {
    fn lock(&self) -> MutexGuard<'_, Option<Place<W>>> {
        self.place.lock().expect("no turn has ended with a panic: there is no going on from half a one")
    }

    /// Puts the work into the seat. The calling thread becomes the owner of the work and the receiver of the
    /// items.
    pub fn sit_down(&self, work: W) -> Owner<'_, W> {
        let mut place = self.lock();
        *place = Some(Place { work, items: Vec::new(), wakes_at: None, end: None });
        Owner { seat: self, place: Some(place) }
    }

    /// Returns true if this thread may try [`Seat::work_here`] after it has sent an item.
    pub fn is_lent_to(&self, borrower: Borrower) -> bool {
        self.borrower.load(Ordering::SeqCst) == borrower as u8
    }

    /// Runs the next turns on the calling thread. The caller must have put items into the inbox, and
    /// [`Inbox::put_all`] must have returned true.
    ///
    /// Stops when `is_done` returns true, when nothing is left to do, or when other threads have sent items,
    /// because the caller should not have to wait until those are processed. Returns true if the owner may
    /// continue to sleep. Otherwise wakes the owner, which continues the work, and returns false.
    pub fn work_here(&self, inbox: &Inbox<W::Item>, is_done: impl Fn() -> bool) -> bool {
        // If the lock is taken, the owner is about to sleep or to check for items, or another thread is
        // borrowing the work. In each of these cases the owner is woken to process the items.
        let mut wakes = WakesOwner(Some(inbox));
        if let Ok(mut place) = self.place.try_lock()
            && let Some(place) = &mut *place
            && self.works_off(place, inbox, is_done)
        {
            wakes.0 = None;
            return true;
        }
        false
    }

    /// Runs turns on borrowed work, at most [`TURNS_MAX`]. Returns true if the owner may continue to sleep.
    fn works_off(&self, place: &mut Place<W>, inbox: &Inbox<W::Item>, is_done: impl Fn() -> bool) -> bool {
        // A turn of an earlier borrower has ended the work. The owner must wake to take the result.
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
            // If two items wait, another thread has sent one of them: work that has to continue sends itself
            // only one item per turn. The owner then continues, so that the caller does not process items of
            // others.
            if is_done() || inbox.has_more_than(1) {
                return false;
            }
        }
        false
    }

    fn lend(&self, work: &W) {
        let borrower = work.borrower();
        if !self.is_lent_to(borrower) {
            self.borrower.store(borrower as u8, Ordering::SeqCst);
        }
    }
}

/// Wakes the owner when dropped, unless it was emptied before. It also does so if a turn has panicked:
/// otherwise the owner would notice the panic only when its own timer ends its sleep.
struct WakesOwner<'i, T>(Option<&'i Inbox<T>>);

impl<T> Drop for WakesOwner<'_, T> {
    fn drop(&mut self) {
        if let Some(inbox) = self.0 {
            inbox.wake_receiver();
        }
    }
}

impl<W: Work> Place<W> {
    /// Returns true if the sleeping owner will wake by itself when work is due, `patience` from now.
    fn owner_wakes_within(&self, patience: Duration) -> bool {
        let Some(due) = Instant::now().checked_add(patience.saturating_add(OVERSLEEPS)) else { return true };
        self.wakes_at.is_some_and(|wakes_at| wakes_at <= due)
    }
}

/// Access of the owner thread to the work. While the owner is awake, no other thread runs a turn.
pub struct Owner<'s, W: Work> {
    seat: &'s Seat<W>,
    /// Guard of the lock on the work; `None` only while the owner sleeps.
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

    /// Runs a turn with the items that [`Owner::take`] has taken. Returns the result if the work has ended.
    pub fn turn(&mut self) -> Option<W::End> {
        let place = self.place();
        place.work.turn(&mut place.items)
    }

    /// Sleeps until `wanted` items or an urgent item wait, but at most for `patience`, and lends the work to
    /// other threads while it sleeps. Returns the result if the work has ended in the meantime.
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
        self.seat.borrower.store(Borrower::None as u8, Ordering::SeqCst);
        let place = self.place.as_mut()?.take()?;
        Some(place.work)
    }
}

/// Dropping the owner takes the work out of the seat and drops it. Otherwise the work might never be freed,
/// because it may hold a reference to the structure that contains the seat.
impl<W: Work> Drop for Owner<'_, W> {
    fn drop(&mut self) {
        // `place` is `None` only if `seat.lock()` has panicked after a sleep, because a turn of another
        // thread had panicked. The remains of the work are dropped here, and no further turn runs.
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

    /// Work whose turns panic. Its reference shows whether the work was dropped.
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

        fn borrower(&self) -> Borrower {
            Borrower::ClusterThreads
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
            // Only a wake-up ends this sleep. If the owner is awake when an item arrives, it drops the item,
            // and the borrower sends another one.
            while owner.sleep(&waiting, Duration::from_secs(3600), 1).is_none() {
                owner.take(&waiting);
                owner.place().items.clear();
            }
        });
        let borrowed = Arc::clone(&seat);
        let borrower = std::thread::spawn(move || {
            loop {
                if borrowed.is_lent_to(Borrower::ClusterThreads) && inbox.put_all(&mut vec![()], true) {
                    borrowed.work_here(&inbox, || false);
                }
                std::thread::yield_now();
            }
        });
        assert!(borrower.join().is_err() && owner.join().is_err());
        assert_eq!(Arc::strong_count(&exists), 1, "the seat still holds the work");
    }
}
