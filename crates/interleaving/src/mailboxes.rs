//! Programs that test two kinds of queues between threads: the inbox of a thread that sleeps while it is
//! empty, and the outbox of an event loop that is woken by a waker.

use std::task::Wake;
use std::time::Duration;

use loom::thread;

use crate::inbox::{Inbox, Outbox};
use crate::sync::{Arc, AtomicBool, Ordering};

/// A timeout that never passes. A receiver that no sender wakes therefore sleeps forever, which the model
/// reports.
const PATIENCE: Duration = Duration::MAX;

/// Two senders, and a receiver that sleeps while the inbox is empty. No message may be lost, and the receiver
/// must never sleep while a message waits.
pub fn every_send_is_received() {
    let inbox = Arc::new(Inbox::<u8>::default());
    inbox.receive_here();
    let senders: Vec<_> = (0..2_u8)
        .map(|number| {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || inbox.send(number))
        })
        .collect();
    let (mut seen, mut batch) = (Vec::new(), Vec::new());
    while seen.len() < 2 {
        inbox.drain(&mut batch, PATIENCE, 1);
        seen.append(&mut batch);
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1]);
    for sender in senders {
        sender.join().expect("sends");
    }
}

/// A receiver that sleeps until two messages have arrived must be woken by the second one.
pub fn who_wants_two_is_woken_by_the_second() {
    let inbox = Arc::new(Inbox::default());
    inbox.receive_here();
    let senders: Vec<_> = (0..2_u8)
        .map(|number| {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || inbox.send_all(&mut vec![number], false))
        })
        .collect();
    let (mut seen, mut batch) = (Vec::new(), Vec::new());
    while seen.len() < 2 {
        inbox.drain(&mut batch, PATIENCE, 2 - seen.len());
        seen.append(&mut batch);
    }
    for sender in senders {
        sender.join().expect("sends");
    }
}

/// A receiver that sleeps until more messages have arrived than are ever sent must be woken by an urgent
/// message, at whatever time the message is sent.
pub fn who_waits_for_more_is_woken_by_what_is_urgent() {
    let inbox = Arc::new(Inbox::default());
    inbox.receive_here();
    let sender = {
        let inbox = Arc::clone(&inbox);
        thread::spawn(move || {
            inbox.send_all(&mut vec![0_u8], false);
            inbox.send(1_u8);
        })
    };
    let (mut seen, mut batch) = (Vec::new(), Vec::new());
    while !seen.contains(&1) {
        inbox.drain(&mut batch, PATIENCE, usize::MAX);
        seen.append(&mut batch);
    }
    sender.join().expect("sends");
}

/// A message that is sent while the inbox is being closed must be dropped, and must not stay in the inbox.
pub fn nothing_stays_in_a_closed_inbox() {
    let inbox = Arc::new(Inbox::<Arc<()>>::default());
    let alive = Arc::new(());
    let sender = {
        let (inbox, item) = (Arc::clone(&inbox), Arc::clone(&alive));
        thread::spawn(move || inbox.send(item))
    };
    inbox.close();
    sender.join().expect("sends");
    assert_eq!(Arc::strong_count(&alive), 1);
}

/// The task of an event loop, which records whether it was woken.
struct Task {
    woken: AtomicBool,
}

/// A waker for a task. The waker has to be a type of the standard library, but the flag that it sets in the
/// task is a type of `loom`, so that the model sees the access.
struct Bell(Arc<Task>);

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Bell>) {
        self.0.woken.store(true, Ordering::Release);
    }
}

/// An event loop polls its outbox while the core thread sends a message. The loop must either get the
/// message, or be woken after the poll.
pub fn a_loop_that_found_nothing_is_woken() {
    let outbox = Arc::new(Outbox::default());
    let task = Arc::new(Task { woken: AtomicBool::new(false) });
    let core = {
        let outbox = Arc::clone(&outbox);
        thread::spawn(move || outbox.send_all(&mut vec![1_u8]))
    };
    let waker = std::sync::Arc::new(Bell(Arc::clone(&task))).into();
    let mut seen = Vec::new();
    outbox.poll(&waker, &mut seen);
    core.join().expect("sends");
    assert!(!seen.is_empty() || task.woken.load(Ordering::Acquire), "it sleeps with a message waiting");
}
