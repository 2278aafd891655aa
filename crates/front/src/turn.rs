use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The calls that must be polled in a connection's next turn.
///
/// The task is woken once however many calls became ready, and not at all for what happens inside its own turn: the turn
/// looks again before it ends.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The transport has something to do.
    transport: AtomicBool,
    /// The task runs or was woken already.
    awake: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Slots of calls to poll; a slot may stand here twice or belong to a newer call by now. In a box, which a connection that
    /// rests does without.
    #[expect(clippy::box_collection, reason = "an idle connection has two words less")]
    ready: Option<Box<Vec<u32>>>,
    task: Option<Waker>,
}

impl Turn {
    pub(crate) fn new() -> Arc<Turn> {
        Arc::new(Turn {
            transport: AtomicBool::new(true),
            awake: AtomicBool::new(true),
            queue: Mutex::default(),
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing inside the lock can panic half-way, so what it guards is whole even when poisoned.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn begins: wakes from now on need no wake of the task.
    pub(crate) fn begin(&self, task: &Waker) {
        self.awake.store(true, SeqCst);
        let mut queue = self.queue();
        if !queue.task.as_ref().is_some_and(|old| old.will_wake(task)) {
            queue.task = Some(task.clone());
        }
    }

    /// Moves the ready slots into `slots`.
    pub(crate) fn take_ready(&self, slots: &mut Vec<u32>) {
        if let Some(ready) = &mut self.queue().ready {
            slots.append(ready);
        }
    }

    /// Forgets the transport's wakes so far, because it is about to be polled.
    pub(crate) fn transport_seen(&self) {
        self.transport.store(false, SeqCst);
    }

    /// Ends the turn if nothing became ready meanwhile; otherwise returns false and the turn goes on.
    pub(crate) fn end(&self) -> bool {
        let queue = self.queue();
        if queue.ready.as_ref().is_some_and(|ready| !ready.is_empty()) || self.transport.load(SeqCst) {
            return false;
        }
        // A transport wake from another thread stores its flag first and looks at `awake` second; this stores
        // and looks in the opposite order, so one of the two sees the other.
        self.awake.store(false, SeqCst);
        if self.transport.load(SeqCst) {
            self.awake.store(true, SeqCst);
            return false;
        }
        true
    }

    /// Wakes of calls and the transport need no wake of the task, whose next turn comes anyway although this one may have ended.
    pub(crate) fn go_on(&self) {
        self.awake.store(true, SeqCst);
    }

    /// Lets the task run again after this turn although the turn was not ended.
    pub(crate) fn yield_now(&self, task: &Waker) {
        self.awake.store(true, SeqCst);
        task.wake_by_ref();
    }

    /// Gives back memory that only makes the next turn cheaper.
    pub(crate) fn rest(&self) {
        let ready = &mut self.queue().ready;
        if ready.as_ref().is_some_and(|slots| slots.is_empty()) {
            *ready = None;
        }
    }

    fn push(&self, slot: u32) {
        let mut queue = self.queue();
        queue.ready.get_or_insert_default().push(slot);
        if !self.awake.swap(true, SeqCst) {
            Turn::wake_task(queue);
        }
    }

    fn wake_transport(&self) {
        self.transport.store(true, SeqCst);
        if !self.awake.load(SeqCst) && !self.awake.swap(true, SeqCst) {
            Turn::wake_task(self.queue());
        }
    }

    fn wake_task(queue: MutexGuard<'_, Queue>) {
        let task = queue.task.clone();
        drop(queue);
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Wake for Turn {
    fn wake(self: Arc<Turn>) {
        self.wake_transport();
    }

    fn wake_by_ref(self: &Arc<Turn>) {
        self.wake_transport();
    }
}

/// Wakes one call of a connection. It is kept and reused by the calls that follow in the same slot.
pub(crate) struct SlotWake {
    pub(crate) turn: Arc<Turn>,
    pub(crate) slot: u32,
}

impl Wake for SlotWake {
    fn wake(self: Arc<SlotWake>) {
        self.turn.push(self.slot);
    }

    fn wake_by_ref(self: &Arc<SlotWake>) {
        self.turn.push(self.slot);
    }
}
