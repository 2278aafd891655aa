//! On whose thread the core works: [`Seat`].
//!
//! As a rule on its own. But where one client waits for one write, the way there and back takes two threads to be woken, one after
//! the other, which is half of what the write costs beside the disk. So a shard which serves nobody else does the work on its own thread,
//! while the core's sleeps.
//!
//! The `interleaving` crate runs this file under a model of the memory.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use crate::inbox::Inbox;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, park_timeout};

/// Turns that a borrower does at most. A write takes two: in one it is written to the log, in the next one it is answered.
const TURNS_MAX: usize = 4;
/// By so much the owner may sleep too long after others have done its work: as much as one look at the clock differs from the next.
const OVERSLEEPS: Duration = Duration::from_micros(100);

/// Work in turns, which one thread at a time does.
pub trait Work {
    /// A request or an event, of which a turn takes any number.
    type Item;
    /// The result with which the work ends.
    type End;

    /// Does one turn with these items, and leaves `items` empty. Returns what the work has ended with, if it has.
    fn turn(&mut self, items: &mut Vec<Self::Item>) -> Option<Self::End>;

    /// Returns the time that may pass before the next turn, and the number of items that are worth doing one sooner.
    fn before_sleep(&mut self) -> (Duration, usize);

    /// Returns true if, while it sleeps, threads that have something for it may do its next turns themselves.
    fn is_for_others(&self) -> bool;
}

/// Where the work is: with its owner, who sleeps between turns, and lends it then.
pub struct Seat<W: Work> {
    place: Mutex<Option<Place<W>>>,
    /// True if others may do the work: a hint, so that they need not look in vain.
    is_lent: AtomicBool,
}

struct Place<W: Work> {
    work: W,
    items: Vec<W::Item>,
    /// When the owner, who sleeps, wakes by itself; `None` for never.
    wakes_at: Option<Instant>,
    /// The result of the work, if it ended in a turn of another thread and the owner has not heard of it.
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

    /// Puts the work here. The calling thread owns it, and is the receiver of the items.
    pub fn sit_down(&self, work: W) -> Owner<'_, W> {
        let mut place = self.lock();
        *place = Some(Place { work, items: Vec::new(), wakes_at: None, end: None });
        Owner { seat: self, place: Some(place) }
    }

    /// Returns true if a thread that has an item may try [`Seat::work_here`].
    pub fn is_lent(&self) -> bool {
        self.is_lent.load(Ordering::SeqCst)
    }

    /// Does the next turns on the calling thread, until `is_done`, nothing is left to do, or others have brought something: their work
    /// is not the caller's to wait for. The caller has put items into the inbox and was told to wake the receiver
    /// ([`Inbox::put_all`]); that is done where the owner is to go on. Returns true if the owner sleeps on.
    pub fn work_here(&self, inbox: &Inbox<W::Item>, is_done: impl Fn() -> bool) -> bool {
        // Who holds it is about to sleep, or to look for items.
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
        // Another borrower may have been here, and the owner, who is to hear of it, not yet.
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
            // What the work itself has brought in a turn is one item.
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
    /// Returns true if the owner, who sleeps, wakes in time for what is due after `patience`.
    fn owner_wakes_within(&self, patience: Duration) -> bool {
        let Some(due) = Instant::now().checked_add(patience.saturating_add(OVERSLEEPS)) else { return true };
        self.wakes_at.is_some_and(|wakes_at| wakes_at <= due)
    }
}

/// The owner of work, awake: nobody else does a turn.
pub struct Owner<'s, W: Work> {
    seat: &'s Seat<W>,
    /// Absent only while it sleeps.
    place: Option<MutexGuard<'s, Option<Place<W>>>>,
}

impl<W: Work> Owner<'_, W> {
    fn place(&mut self) -> &mut Place<W> {
        let place = self.place.as_mut().and_then(|place| place.as_mut());
        place.expect("only leaving takes the work, and only a sleeper is without")
    }

    /// Takes what waits in the inbox for the next turn, and returns it.
    pub fn take(&mut self, inbox: &Inbox<W::Item>) -> &[W::Item] {
        let place = self.place();
        inbox.take(&mut place.items);
        &place.items
    }

    /// Does a turn with what was taken. Returns what the work has ended with, if it has.
    pub fn turn(&mut self) -> Option<W::End> {
        let place = self.place();
        place.work.turn(&mut place.items)
    }

    /// Sleeps up to `patience` until `wanted` items wait, or an urgent one, and lends the work meanwhile. Returns what it has ended with,
    /// if it has.
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

    /// Takes the work away.
    pub fn leave(mut self) -> W {
        self.take_away().expect("only leaving takes the work, and only a sleeper is without")
    }

    fn take_away(&mut self) -> Option<W> {
        self.seat.is_lent.store(false, Ordering::SeqCst);
        let place = self.place.as_mut()?.take()?;
        Some(place.work)
    }
}

/// Work may lead back to its seat, and would keep it for ever.
impl<W: Work> Drop for Owner<'_, W> {
    fn drop(&mut self) {
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
