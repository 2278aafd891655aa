//! Work that its owner lends while it sleeps.

use std::time::Duration;

use loom::thread;

use crate::inbox::Inbox;
use crate::seat::{Seat, Work};
use crate::sync::Arc;

/// Adds up what comes, until that is all: then the work has ended. Each number comes back once, as the core's log tells it of what it
/// wrote, and counts then.
struct Adding {
    inbox: Arc<Inbox<Number>>,
    sum: u8,
    all: u8,
    has_ended: bool,
    /// Turns after which it is no longer for others.
    lent_for: u8,
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
                Number::New(number) => new += number,
                Number::Back(number) => self.sum += number,
            }
        }
        if new > 0 {
            self.inbox.send(Number::Back(new));
        }
        self.has_ended = self.sum == self.all;
        self.has_ended.then_some(self.sum)
    }

    /// Nothing is due by itself: a sleeper whom nobody wakes sleeps for ever, which the model finds.
    fn before_sleep(&mut self) -> (Duration, usize) {
        (Duration::MAX, 1)
    }

    fn is_for_others(&self) -> bool {
        self.lent_for > 0
    }
}

fn own(seat: &Seat<Adding>, inbox: &Arc<Inbox<Number>>, all: u8, lent_for: u8) {
    inbox.receive_here();
    let mut adding =
        seat.sit_down(Adding { inbox: Arc::clone(inbox), sum: 0, all, has_ended: false, lent_for });
    let sum = loop {
        let (patience, wanted) = adding.before_sleep();
        if let Some(sum) = adding.sleep(inbox, patience, wanted) {
            break sum;
        }
        adding.take(inbox);
        if let Some(sum) = adding.turn() {
            break sum;
        }
    };
    assert_eq!((sum, adding.leave().sum), (all, all));
}

/// Puts a number in, and does turns for it, if the owner sleeps and lends.
fn borrow(seat: &Seat<Adding>, inbox: &Inbox<Number>, number: u8) {
    if inbox.put_all(&mut vec![Number::New(number)], true) {
        if seat.is_lent() {
            let _ = seat.work_here(inbox, || false);
        } else {
            inbox.wake_receiver();
        }
    }
}

fn with_a_borrower_and_a_sender(lent_for: u8) {
    let (seat, inbox) = (Arc::new(Seat::default()), Arc::new(Inbox::default()));
    let borrower = {
        let (seat, inbox) = (Arc::clone(&seat), Arc::clone(&inbox));
        thread::spawn(move || borrow(&seat, &inbox, 1))
    };
    let sender = {
        let inbox = Arc::clone(&inbox);
        thread::spawn(move || inbox.send(Number::New(2)))
    };
    own(&seat, &inbox, 3, lent_for);
    borrower.join().expect("borrows");
    sender.join().expect("sends");
}

/// A thread that borrows, and one that only sends: all is added up, by whomever, and the owner hears of the end.
pub fn what_comes_while_the_work_is_lent_is_done() {
    with_a_borrower_and_a_sender(u8::MAX);
}

/// A borrower and a sender, with work that is lent for one turn only, so that the owner does the rest.
pub fn what_is_no_longer_lent_is_done_by_its_owner() {
    with_a_borrower_and_a_sender(1);
}

/// Two threads that borrow: only one works at a time, and nothing is left over.
pub fn two_that_borrow_leave_nothing() {
    let (seat, inbox) = (Arc::new(Seat::default()), Arc::new(Inbox::default()));
    let borrowers: Vec<_> = [1_u8, 2]
        .map(|number| {
            let (seat, inbox) = (Arc::clone(&seat), Arc::clone(&inbox));
            thread::spawn(move || borrow(&seat, &inbox, number))
        })
        .into();
    own(&seat, &inbox, 3, u8::MAX);
    for borrower in borrowers {
        borrower.join().expect("borrows");
    }
}
