//! Programs that test `replica/src/seat.rs`: a thread owns work and lends it, so that other threads may do
//! the work while the owner sleeps.

use std::time::Duration;

use loom::thread;

use crate::inbox::Inbox;
use crate::seat::{Borrower, Seat, Work};
use crate::sync::Arc;

/// Time after which a timer of [`Adding`] expires.
const SOON: Duration = Duration::from_secs(1);

/// Work that adds up the numbers that arrive in the inbox, and has ended when their sum is `all`. A new
/// number is first sent to the inbox again and counts only when it arrives a second time. This imitates the
/// log, which reports written entries back to the core.
struct Adding {
    inbox: Arc<Inbox<Number>>,
    sum: u8,
    all: u8,
    has_ended: bool,
    /// Number of further turns for which the owner lends the work to other threads.
    lent_for: u8,
    timer: Timer,
}

/// Timer of the work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Timer {
    /// The work has no timer.
    None,
    /// The first number that arrives will set the timer.
    Unset,
    /// The timer is set. The work does not end before the owner has woken to handle the timer.
    Set,
}

#[derive(Clone, Copy)]
enum Number {
    New(u8),
    Back(u8),
}

impl Work for Adding {
    type Item = Number;
    type End = u8;

    fn turn(&mut self, items: &mut Vec<Number>) -> Option<u8> {
        assert!(!self.has_ended, "there is a turn behind the end");
        self.lent_for = self.lent_for.saturating_sub(1);
        let mut new = 0;
        for item in items.drain(..) {
            match item {
                Number::New(number) => {
                    new += number;
                    if self.timer == Timer::Unset {
                        self.timer = Timer::Set;
                    }
                }
                Number::Back(number) => self.sum += number,
            }
        }
        if new > 0 {
            self.inbox.send(Number::Back(new));
        }
        self.has_ended = self.sum == self.all && self.timer == Timer::None;
        self.has_ended.then_some(self.sum)
    }

    /// Without a timer the owner sleeps without a limit. If no thread wakes the owner, it sleeps forever,
    /// which the model reports.
    fn before_sleep(&mut self) -> (Duration, usize) {
        (if self.timer == Timer::Set { SOON } else { Duration::MAX }, 1)
    }

    fn borrower(&self) -> Borrower {
        if self.lent_for > 0 { Borrower::ClusterThreads } else { Borrower::None }
    }
}

fn own(seat: &Seat<Adding>, inbox: &Arc<Inbox<Number>>, all: u8, lent_for: u8, timer: Timer) {
    inbox.receive_here();
    let mut adding =
        seat.sit_down(Adding { inbox: Arc::clone(inbox), sum: 0, all, has_ended: false, lent_for, timer });
    let sum = loop {
        let (patience, wanted) = adding.before_sleep();
        if patience == SOON {
            // The model has no time, so the timer counts as expired when the owner wakes.
            adding.timer = Timer::None;
        } else if let Some(sum) = adding.sleep(inbox, patience, wanted) {
            break sum;
        }
        adding.take(inbox);
        if let Some(sum) = adding.turn() {
            break sum;
        }
    };
    assert_eq!((sum, adding.leave().sum), (all, all));
}

/// Sends a number. If the owner sleeps, does the owner's work on this thread if the work is lent, and
/// otherwise wakes the owner.
fn borrow(seat: &Seat<Adding>, inbox: &Inbox<Number>, number: u8, is_done: bool) {
    if inbox.put_all(&mut vec![Number::New(number)], true) {
        if seat.is_lent_to(Borrower::ClusterThreads) {
            let _ = seat.work_here(inbox, || is_done);
        } else {
            inbox.wake_receiver();
        }
    }
}

fn with_a_borrower_and_a_sender(lent_for: u8, is_done: bool, timer: Timer) {
    let (seat, inbox) = (Arc::new(Seat::default()), Arc::new(Inbox::default()));
    let borrower = {
        let (seat, inbox) = (Arc::clone(&seat), Arc::clone(&inbox));
        thread::spawn(move || borrow(&seat, &inbox, 1, is_done))
    };
    let sender = {
        let inbox = Arc::clone(&inbox);
        thread::spawn(move || inbox.send(Number::New(2)))
    };
    own(&seat, &inbox, 3, lent_for, timer);
    borrower.join().expect("borrows");
    sender.join().expect("sends");
}

/// One thread borrows the work, and another thread only sends a number. Each number must be added up, by the
/// borrower or the owner, and the owner must learn that the work has ended.
pub fn what_comes_while_the_work_is_lent_is_done() {
    with_a_borrower_and_a_sender(u8::MAX, false, Timer::None);
}

/// A borrower stops after its first turn. The owner must be woken and do the rest.
pub fn what_a_borrower_leaves_is_done_by_the_owner() {
    with_a_borrower_and_a_sender(u8::MAX, true, Timer::None);
}

/// The borrower's turn sets a timer while the owner sleeps. The owner must be woken, because it sleeps
/// without a limit.
pub fn what_becomes_due_in_a_borrowed_turn_wakes_the_owner() {
    with_a_borrower_and_a_sender(u8::MAX, false, Timer::Unset);
}

/// A borrower and a sender, with work that is lent for only one turn. The owner must do the rest.
pub fn what_is_no_longer_lent_is_done_by_its_owner() {
    with_a_borrower_and_a_sender(1, false, Timer::None);
}

/// Two threads borrow the work. Only one of them may work at a time, and no number may be left over.
pub fn two_that_borrow_leave_nothing() {
    let (seat, inbox) = (Arc::new(Seat::default()), Arc::new(Inbox::default()));
    let borrowers: Vec<_> = [1_u8, 2]
        .map(|number| {
            let (seat, inbox) = (Arc::clone(&seat), Arc::clone(&inbox));
            thread::spawn(move || borrow(&seat, &inbox, number, false))
        })
        .into();
    own(&seat, &inbox, 3, u8::MAX, Timer::None);
    for borrower in borrowers {
        borrower.join().expect("borrows");
    }
}
