//! Programs that test the reclamation of objects: a writer retires and frees objects, while readers hold
//! views that may still see them.

use loom::cell::UnsafeCell;
use loom::thread;

use crate::epochs::{Epochs, Garbage};
use crate::sync::Arc;

/// An object that a view may see. Freeing the object writes to it, so that the model reports a thread that
/// reads it at the same time.
#[derive(Clone, Copy)]
struct Record(&'static UnsafeCell<u64>);

const FREED: u64 = u64::MAX;

impl Record {
    fn new(value: u64) -> Record {
        // Leaking is acceptable: the model runs the program once for each order, and each run leaks only a
        // few bytes.
        Record(Box::leak(Box::new(UnsafeCell::new(value))))
    }

    fn read(self) -> u64 {
        // SAFETY: the model checks that no thread writes at the same time.
        self.0.with(|value| unsafe { *value })
    }
}

impl Garbage for Record {
    type Ledger = ();

    unsafe fn free(self, (): &()) {
        // SAFETY: the model checks that no thread reads or writes at the same time.
        self.0.with_mut(|value| unsafe {
            assert_ne!(*value, FREED, "freed twice");
            *value = FREED;
        });
    }
}

// SAFETY: a record is a reference to a cell whose every access the model checks.
unsafe impl Send for Record {}

/// A reader holds the first view. In the meantime the writer retires an object that this view sees, publishes
/// several times, and frees all objects that no view sees. The object must not be freed while the reader
/// holds its view.
pub fn what_a_view_sees_is_not_freed() {
    let record = Record::new(7);
    let mut epochs = Epochs::new(());
    let view = epochs.publish();
    let reader = thread::spawn(move || {
        assert_eq!(record.read(), 7);
        drop(view);
    });
    epochs.retire(record);
    drop(epochs.publish());
    drop(epochs.publish());
    let left = epochs.reclaim(10);
    assert_eq!(left, 0);
    reader.join().expect("reads");
    // No view exists any more, so the object must be freed by this call.
    epochs.reclaim(10);
    assert_eq!(epochs.pending(), 0);
    assert_eq!(record.read(), FREED);
}

/// Two readers have views of different states, and each drops its view on its own thread. No object may be
/// freed while one of the views can still see it.
pub fn the_oldest_view_decides() {
    let (old, new) = (Record::new(1), Record::new(2));
    let mut epochs = Epochs::new(());
    let first = epochs.publish();
    epochs.retire(old);
    let second = epochs.publish();
    let early = thread::spawn(move || {
        assert_eq!((old.read(), new.read()), (1, 2));
        drop(first);
    });
    let late = thread::spawn(move || {
        assert_eq!(new.read(), 2);
        drop(second);
    });
    epochs.retire(new);
    drop(epochs.publish());
    epochs.reclaim(10);
    early.join().expect("reads");
    late.join().expect("reads");
    epochs.reclaim(10);
    assert_eq!((epochs.pending(), old.read(), new.read()), (0, FREED, FREED));
}

/// Two threads share a view, and drop it in any order. The object that the view sees must not be freed before
/// both have dropped it.
pub fn a_shared_view_holds_until_both_let_go() {
    let record = Record::new(5);
    let mut epochs = Epochs::new(());
    let view = epochs.publish();
    let other = Arc::clone(&view);
    epochs.retire(record);
    let reader = thread::spawn(move || {
        assert_eq!(record.read(), 5);
        drop(other);
    });
    assert_eq!(record.read(), 5);
    drop(view);
    epochs.reclaim(10);
    reader.join().expect("reads");
    epochs.reclaim(10);
    assert_eq!(epochs.pending(), 0);
}
