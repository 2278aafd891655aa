//! Work that its owner lends while it sleeps.

use std::time::Duration;

use loom::thread;

use crate::inbox::Inbox;
use crate::seat::{Seat, Work};
use crate::sync::Arc;

/// Adds up what comes, until that is all: then the work has ended.
struct Adding {
    sum: u8,
    all: u8,
    has_ended: bool,
}

impl Work for Adding {
    type Item = u8;
    type End = u8;

    fn turn(&mut self, items: &mut Vec<u8>) -> Option<u8> {
        assert!(!self.has_ended, "there is a turn behind the end");
        self.sum += items.drain(..).sum::<u8>();
        self.has_ended = self.sum == self.all;
        self.has_ended.then_some(self.sum)
    }

    /// Nothing is due by itself: a sleeper whom nobody wakes sleeps for ever, which the model finds.
    fn before_sleep(&mut self) -> (Duration, usize) {
        (Duration::MAX, 1)
    }

    fn is_for_others(&self) -> bool {
        true
    }
}

fn own(seat: &Seat<Adding>, inbox: &Inbox<u8>, all: u8) {
    inbox.receive_here();
    let mut adding = seat.sit_down(Adding { sum: 0, all, has_ended: false });
    let mut items = Vec::new();
    let sum = loop {
        let (patience, wanted) = adding.before_sleep();
        if let Some(sum) = adding.sleep(inbox, patience, wanted) {
            break sum;
        }
        inbox.take(&mut items);
        if let Some(sum) = adding.turn(&mut items) {
            break sum;
        }
    };
    assert_eq!((sum, adding.leave().sum), (all, all));
}

/// Puts a number in, and does the turn for it, if the owner sleeps and lends.
fn borrow(seat: &Seat<Adding>, inbox: &Inbox<u8>, number: u8) {
    if inbox.put_all(&mut vec![number], true) {
        if seat.is_lent() {
            seat.work_here(inbox, || true);
        } else {
            inbox.wake_receiver();
        }
    }
}

/// A thread that borrows, and one that only sends: all is added up, by whomever, and the owner hears of the end.
pub fn what_comes_while_the_work_is_lent_is_done() {
    let (seat, inbox) = (Arc::new(Seat::default()), Arc::new(Inbox::default()));
    let borrower = {
        let (seat, inbox) = (Arc::clone(&seat), Arc::clone(&inbox));
        thread::spawn(move || borrow(&seat, &inbox, 1))
    };
    let sender = {
        let inbox = Arc::clone(&inbox);
        thread::spawn(move || inbox.send(2_u8))
    };
    own(&seat, &inbox, 3);
    borrower.join().expect("borrows");
    sender.join().expect("sends");
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
    own(&seat, &inbox, 3);
    for borrower in borrowers {
        borrower.join().expect("borrows");
    }
}
