use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// Set of calls that must be polled in the next turn of a connection.
///
/// The connection's task is woken only once between two turns, however many calls become ready. If a call
/// becomes ready during a turn, the task is not woken at all, because the turn checks for ready calls before
/// it ends.
#[derive(Debug)]
pub(crate) struct Turn {
    /// True if the transport was woken since it was last polled.
    transport: AtomicBool,
    /// True if the task is running or was already woken.
    awake: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Slots of calls to poll. A slot may occur twice, and may belong to a newer call by now, which is then
    /// polled unnecessarily. `None` for an idle connection, to save memory.
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
        // No code under this lock can panic halfway, so the queue is consistent even if the lock is poisoned.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a turn of the task: from now on, wakes of calls and of the transport do not wake the task.
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

    /// Clears the transport's wake flag; called right before the transport is polled.
    pub(crate) fn clear_transport_wake(&self) {
        self.transport.store(false, SeqCst);
    }

    /// Ends the turn if nothing became ready during it. Otherwise returns false, and the turn continues.
    pub(crate) fn end(&self) -> bool {
        let queue = self.queue();
        if queue.ready.as_ref().is_some_and(|ready| !ready.is_empty()) || self.transport.load(SeqCst) {
            return false;
        }
        // No wake-up is lost between this function and a wake of the transport from another thread: the other
        // thread stores `transport` and then reads `awake`, and this code stores `awake` and then reads
        // `transport`. So at least one of the two threads sees the store of the other.
        self.awake.store(false, SeqCst);
        if self.transport.load(SeqCst) {
            self.awake.store(true, SeqCst);
            return false;
        }
        true
    }

    /// Suppresses wakes of the task by calls and the transport until the next turn. The caller must make sure
    /// that the task runs another turn.
    pub(crate) fn stay_awake(&self) {
        self.awake.store(true, SeqCst);
    }

    /// Makes the task run another turn after the current one.
    pub(crate) fn yield_now(&self, task: &Waker) {
        self.awake.store(true, SeqCst);
        task.wake_by_ref();
    }

    /// Frees memory that is kept only to make the next turn cheaper.
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

/// Waker for one call of a connection. Later calls in the same slot reuse it.
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
