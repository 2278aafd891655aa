//! Programs that test watches: a watch that starts while the core publishes a new state, and the removal of
//! old versions, which must wait until all watches have seen them.

use loom::thread;
use numbers::Revision;

use crate::attendance::Attendance;
use crate::sync::{Arc, AtomicI64, Ordering};

/// The newest state, which is only a revision here. Mainstay's state contains more, but is published in the
/// same way.
struct State(AtomicI64);

/// A watch is counted before it reads the state, and the core publishes the state before it reads the count.
/// So either the watch must see the new state, or the core must see the watch and wake it.
pub fn a_watch_sees_what_was_published_or_is_woken() {
    let attendance = Arc::new(Attendance::new(1));
    let state = Arc::new(State(AtomicI64::new(1)));
    let core = {
        let (attendance, state) = (Arc::clone(&attendance), Arc::clone(&state));
        thread::spawn(move || {
            state.0.store(2, Ordering::Release);
            attendance.is_watched(0)
        })
    };
    attendance.watch_begins(0);
    let seen = state.0.load(Ordering::Acquire);
    let woken = core.join().expect("publishes");
    assert!(woken || seen == 2, "the watch never hears of revision 2");
}

/// The core must not remove a version before every counted watch has seen it.
pub fn nothing_is_removed_before_all_were_told() {
    let attendance = Arc::new(Attendance::new(1));
    attendance.watch_begins(0);
    let told = Arc::new(AtomicI64::new(0));
    let shard = {
        let (attendance, told) = (Arc::clone(&attendance), Arc::clone(&told));
        thread::spawn(move || {
            told.store(5, Ordering::Relaxed);
            attendance.saw(0, Revision(5));
        })
    };
    if attendance.all_saw(Revision(5)) {
        assert_eq!(told.load(Ordering::Relaxed), 5, "removed before it was told");
    }
    shard.join().expect("tells");
    assert!(attendance.all_saw(Revision(5)));
    attendance.watch_ends(0);
    assert!(attendance.all_saw(Revision(9)), "nobody watches");
}
