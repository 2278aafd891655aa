//! Reads values from the disk, on dedicated threads, for threads that must not wait for it: shards and the
//! core.
//!
//! A [`Reading`] fetches its values in portions of up to 1 MiB; neighboring values are read together as a
//! run. The threads serve the portions in rotation, one run at a time, so that a call that needs one value
//! does not wait for hundreds of values of another call. While too many bytes are being read, new portions
//! wait for admission in FIFO order. Memory for the bytes of portions is reserved in the clients' memory
//! budget.
//!
//! A call that is not polled does not delay others. A portion is admitted as soon as space becomes free, by
//! the call or thread that freed the space, and its bytes count against the limit only while they are being
//! read. Portions that were read but not taken by their calls have a separate limit. If this limit is
//! exceeded, the portion that was read first is revoked: its values are dropped, and its call waits for
//! admission again when the call is polled. A call that is polled slowly finishes nevertheless: when its
//! portion was read for the second time, it stays until it is taken, within a third limit.
//!
//! Blocks of the index (`--memory-budget`) are loaded by the same threads, before the values of clients
//! ([`Readers::load`]).
//!
//! The core has a separate lane (a queue of portions): its values are read first and without admission,
//! because all clients wait for the core. Neither lane may use all threads, so one thread is always left for
//! the other lane, however slow the disk is.

mod loading;
mod reading;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::thread;

use self::loading::BlockJob;
pub use self::loading::Loading;
pub use self::reading::Reading;
use accounting::{Budget, Charge};
use bytes::{Bytes, BytesMut};
use log::Wanted;
use machine::ReadError;
use mvcc::Value;
use planted::Bug;

pub use crate::shared_values::place_of;
use crate::shared_values::{SharedRead, SharedValues, place};

/// Maximum number of reader threads, which are started on demand.
const THREADS_MAX: usize = 8;
/// Maximum number of threads that one lane may use at a time.
const LANE_THREADS_MAX: usize = THREADS_MAX - 1;
/// Limit, in bytes of clients' values, for each of four amounts: values that are being read, values that were
/// read and may be revoked, values that were read and stay until they are taken, and values that several
/// responses share. A single portion may be larger.
const ADMITTED_BYTES_MAX: usize = 16 << 20;
/// The clients' memory budget divided by this number is a further limit for each of the four amounts that
/// [`ADMITTED_BYTES_MAX`] limits.
const BUDGET_PART: usize = 16;
/// The bytes of a value or the error of reading it, with the location of the value as one number
/// ([`place_of`]).
pub type ReadValue = (u64, Result<Bytes, ReadError>);

/// Neighboring values that are read with one read.
type Run = Vec<Wanted>;

/// The reader threads of one member.
pub struct Readers {
    inner: Arc<Inner>,
}

struct Inner {
    log: log::Values,
    /// True if there are no threads and the owner calls [`Readers::step`] instead.
    by_hand: bool,
    /// Number of threads after which starting a further one fails. Tests set it below [`THREADS_MAX`].
    startable: usize,
    /// The large values that several responses are sending from one buffer.
    shared: SharedValues,
    /// Memory budget in which the bytes of portions are reserved; unset until [`Readers::charge_to`] is
    /// called.
    budget: OnceLock<Budget>,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    portions: BTreeMap<u64, Portion>,
    /// Portions that wait for admission, in order of admission.
    waiting: BTreeSet<u64>,
    core: Lane,
    clients: Lane,
    /// Blocks of the index that wait to be loaded. They use threads of the lane of clients, and go before its
    /// values: without them, no call knows which values it needs. Each call queues a few.
    blocks: VecDeque<BlockJob>,
    /// Bytes of clients' portions that are being read.
    admitted_bytes: usize,
    /// Bytes of clients' portions that were read and stay until they are taken.
    staying_bytes: usize,
    /// Ids of the clients' portions that were read, not taken, and may be revoked. The key is a serial number
    /// in the order in which they were read.
    untaken: BTreeMap<u64, u64>,
    untaken_bytes: usize,
    serial: u64,
    threads: usize,
    /// Number of threads that are waiting for runs, including those that were notified and have not woken
    /// yet.
    idle: usize,
    /// True if starting a thread has ever failed, so that the existing threads may be all that there will be.
    start_failed: bool,
    closed: bool,
}

/// Queue of portions with runs to be read. A thread takes one run of the first portion, which then moves to
/// the end of the queue if it has more runs.
#[derive(Default)]
struct Lane {
    turns: VecDeque<u64>,
    /// Number of threads that are reading a run of this lane.
    threads: usize,
}

/// Stage of a portion, which determines against which limit the portion's bytes count.
enum Stage {
    /// The portion is the core's. Its bytes count against no limit.
    OfCore,
    /// The portion waits for admission. Its bytes do not count yet.
    Waiting,
    /// The portion is being read.
    Admitted,
    /// The portion was read and not taken. The number gives the order in which portions were read.
    Untaken(u64),
    /// The portion was read, and stays until it is taken.
    Staying,
}

struct Portion {
    stage: Stage,
    bytes: usize,
    runs: Arc<[Run]>,
    /// Positions of the runs that no thread has begun to read.
    left: std::ops::Range<usize>,
    /// Number of runs that threads are reading.
    reading: usize,
    arrived: Vec<ReadValue>,
    waker: Option<Waker>,
    /// True if the call of the portion was dropped.
    abandoned: bool,
    /// True if the portion was revoked before, so that it is not revoked again.
    stays: bool,
    /// Memory reservation (charge) for the bytes of the portion, from its admission on.
    charge: Option<Charge>,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock with half-changed data, so the state is consistent even if
        // the lock is poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the limit, in bytes, for each of the four amounts that [`ADMITTED_BYTES_MAX`] describes.
    fn bytes_max(&self) -> usize {
        let of_budget = self.budget.get().map_or(usize::MAX, |budget| budget.bytes_max() / BUDGET_PART);
        of_budget.min(ADMITTED_BYTES_MAX)
    }

    fn read(&self, run: &[Wanted]) -> Vec<ReadValue> {
        let mut arrived = Vec::with_capacity(run.len());
        self.log.read_run(run, |wanted, outcome| {
            let outcome = outcome.map_err(|error| match error {
                log::ReadError::Moved => ReadError::Moved,
                other => ReadError::Failed(other.to_string()),
            });
            arrived.push((place(wanted.location.segment(), wanted.location.offset()), outcome));
        });
        arrived
    }

    /// Reads the next queued run. Returns false if no run is queued, or if runs are queued only in lanes that
    /// may not use another thread.
    fn step(self: &Arc<Inner>) -> bool {
        let mut state = self.state();
        if let Some(job) = state.next_block() {
            if state.has_turns() {
                self.rouse(&mut state, 1);
            }
            drop(state);
            job.run();
            self.state().clients.threads -= 1;
            return true;
        }
        let Some((id, runs, at)) = state.next_run() else { return false };
        if state.has_turns() {
            // Wakes another thread for the remaining runs. Possibly no thread was woken when they were
            // queued: the thread that now reads this run may have been notified already, and counted as idle.
            self.rouse(&mut state, 1);
        }
        drop(state);
        let arrived = self.read(&runs[at]);
        let mut state = self.state();
        state.settle(id, arrived, self.bytes_max());
        self.admit(&mut state);
        true
    }

    fn work(self: &Arc<Inner>) {
        loop {
            if self.step() {
                continue;
            }
            let mut state = self.state();
            while !state.has_turns() {
                if state.closed {
                    return;
                }
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    /// Admits waiting portions in order, until the next one would exceed the limit for bytes that are being
    /// read. Called whenever that amount may have decreased or a portion was queued.
    fn admit(self: &Arc<Inner>, state: &mut State) {
        let bytes_max = self.bytes_max();
        let mut runs = 0;
        while let Some(&id) = state.waiting.first() {
            let Some(portion) = state.portions.get_mut(&id) else { break };
            if state.admitted_bytes > 0 && state.admitted_bytes + portion.bytes > bytes_max {
                break;
            }
            portion.stage = Stage::Admitted;
            portion.charge = self.budget.get().map(|budget| budget.charge(portion.bytes));
            state.admitted_bytes += portion.bytes;
            runs += portion.left.len();
            state.waiting.pop_first();
            state.clients.turns.push_back(id);
        }
        self.rouse(state, runs);
        if runs > 0 && self.has_no_thread(state) {
            // Without threads, each call reads its own portion when it is polled. So the calls of the
            // admitted portions are woken.
            let admitted = state.clients.turns.iter().filter_map(|id| state.portions.get(id));
            admitted.filter_map(|portion| portion.waker.as_ref()).for_each(Waker::wake_by_ref);
        }
    }

    /// Wakes or starts threads for `runs` newly queued runs.
    fn rouse(self: &Arc<Inner>, state: &mut State, runs: usize) {
        if self.by_hand || runs == 0 {
            return;
        }
        for _ in state.idle..runs.min(THREADS_MAX) {
            if state.threads == THREADS_MAX {
                break;
            }
            let inner = Arc::clone(self);
            let thread = thread::Builder::new().name("reader".to_owned());
            if state.threads >= self.startable || thread.spawn(move || inner.work()).is_err() {
                state.start_failed = true;
                break;
            }
            state.threads += 1;
        }
        if runs > 1 {
            self.work.notify_all();
        } else {
            self.work.notify_one();
        }
    }

    /// Returns true if no thread exists and none can be started. Calls then have to read by themselves, which
    /// is slow but works.
    fn has_no_thread(&self, state: &State) -> bool {
        state.start_failed && state.threads == 0 && !self.by_hand
    }

    /// If no reader threads exist and none can be started, reads queued runs on this thread until the portion
    /// `id` is complete. If another call is reading a run of that portion, or is holding up its admission,
    /// returns earlier; that other call wakes this one when it is done.
    fn read_without_threads<'a>(
        self: &'a Arc<Inner>,
        mut state: MutexGuard<'a, State>,
        id: u64,
    ) -> MutexGuard<'a, State> {
        while self.has_no_thread(&state) && state.portions.get(&id).is_some_and(|portion| !portion.is_done())
        {
            drop(state);
            let has_read = self.step();
            state = self.state();
            if !has_read {
                break;
            }
        }
        state
    }
}

impl State {
    /// Returns the next run to read: the id of its portion, the runs of the portion, and the position of the
    /// run.
    fn next_run(&mut self) -> Option<(u64, Arc<[Run]>, usize)> {
        let threads_max = self.lane_threads_max();
        let State { portions, core, clients, .. } = self;
        for lane in [core, clients] {
            while lane.may_go_on(threads_max)
                && let Some(id) = lane.turns.pop_front()
            {
                let Some(portion) = portions.get_mut(&id) else { continue };
                let Some(at) = portion.left.next() else { continue };
                portion.reading += 1;
                lane.threads += 1;
                if !portion.left.is_empty() {
                    lane.turns.push_back(id);
                }
                return Some((id, Arc::clone(&portion.runs), at));
            }
        }
        None
    }

    /// Returns the next block to load, unless values of the core go first.
    fn next_block(&mut self) -> Option<BlockJob> {
        let threads_max = self.lane_threads_max();
        if self.core.may_go_on(threads_max) || self.clients.threads >= threads_max {
            return None;
        }
        let job = self.blocks.pop_front()?;
        self.clients.threads += 1;
        Some(job)
    }

    fn has_turns(&self) -> bool {
        let threads_max = self.lane_threads_max();
        let has_block = !self.blocks.is_empty() && self.clients.threads < threads_max;
        has_block || self.core.may_go_on(threads_max) || self.clients.may_go_on(threads_max)
    }

    /// Returns the maximum number of threads that one lane may use: all threads but one, and at least one.
    fn lane_threads_max(&self) -> usize {
        match self.threads {
            _ if !self.start_failed => LANE_THREADS_MAX,
            // Without threads, each call reads on its own thread, so there is no limit.
            0 => usize::MAX,
            threads => (threads - 1).max(1),
        }
    }

    /// Adds the values of a run that was read to its portion. If the portion is complete, wakes its call and
    /// moves the portion's bytes to the next limit.
    fn settle(&mut self, id: u64, arrived: Vec<ReadValue>, bytes_max: usize) {
        let Some(portion) = self.portions.get_mut(&id) else { return };
        let lane = if matches!(portion.stage, Stage::OfCore) { &mut self.core } else { &mut self.clients };
        lane.threads -= 1;
        portion.reading -= 1;
        portion.arrived.extend(arrived);
        if !portion.is_done() {
            return;
        }
        if portion.abandoned {
            self.release(id);
            return;
        }
        if let Some(waker) = portion.waker.take() {
            waker.wake();
        }
        if !matches!(portion.stage, Stage::Admitted) || planted::is(Bug::UntakenHoldsUpReads) {
            return;
        }
        self.admitted_bytes -= portion.bytes;
        let has_room = self.staying_bytes == 0 || self.staying_bytes + portion.bytes <= bytes_max;
        if portion.stays && has_room {
            portion.stage = Stage::Staying;
            self.staying_bytes += portion.bytes;
        } else {
            self.serial += 1;
            portion.stage = Stage::Untaken(self.serial);
            self.untaken_bytes += portion.bytes;
            self.untaken.insert(self.serial, id);
            self.take_back(bytes_max);
        }
    }

    /// Revokes portions, in the order in which they were read, until at most `bytes_max` bytes are not taken.
    /// Never revokes the portion that was read last.
    fn take_back(&mut self, bytes_max: usize) {
        while self.untaken_bytes > bytes_max
            && self.untaken.len() > 1
            && let Some((_, &id)) = self.untaken.first_key_value()
        {
            self.release(id);
        }
    }

    /// Removes a portion, and subtracts its bytes from the limit against which they count. No thread may be
    /// reading one of its runs.
    fn release(&mut self, id: u64) -> Option<Portion> {
        let portion = self.portions.remove(&id)?;
        match portion.stage {
            Stage::OfCore => {}
            Stage::Waiting => {
                self.waiting.remove(&id);
            }
            Stage::Admitted => self.admitted_bytes -= portion.bytes,
            Stage::Untaken(since) => {
                self.untaken.remove(&since);
                self.untaken_bytes -= portion.bytes;
            }
            Stage::Staying => self.staying_bytes -= portion.bytes,
        }
        Some(portion)
    }
}

impl Lane {
    fn may_go_on(&self, threads_max: usize) -> bool {
        self.threads < threads_max && !self.turns.is_empty()
    }
}

impl Portion {
    fn is_done(&self) -> bool {
        self.left.is_empty() && self.reading == 0
    }
}

impl Readers {
    /// Returns readers of this log that start their own threads.
    pub fn new(log: log::Values) -> Arc<Readers> {
        Readers::of(log, false, THREADS_MAX)
    }

    /// Returns readers without threads, for simulations. They read only when [`Readers::step`] is called.
    pub fn by_hand(log: log::Values) -> Arc<Readers> {
        Readers::of(log, true, 0)
    }

    fn of(log: log::Values, by_hand: bool, startable: usize) -> Arc<Readers> {
        let (budget, state) = (OnceLock::new(), Mutex::default());
        let shared = SharedValues::default();
        let inner = Inner { log, by_hand, startable, shared, budget, state, work: Condvar::new() };
        Arc::new(Readers { inner: Arc::new(inner) })
    }

    /// Reserves the bytes of portions in this budget from now on, and limits them to a part of it. Only the
    /// first call has an effect.
    pub fn charge_to(&self, budget: &Budget) {
        let _ = self.inner.budget.set(budget.clone());
    }

    /// Notes that a response begins to send a large value; see [`SharedValues::join`].
    pub fn join(&self, value: Value) -> SharedRead {
        self.inner.shared.join(value)
    }

    /// Reads a large value for several responses with `read`, if that is possible; see [`SharedRead::fill`].
    ///
    /// # Errors
    ///
    /// Returns the error of `read`.
    pub fn fill(
        &self,
        shared: &mut SharedRead,
        read: impl FnOnce(&mut BytesMut) -> Result<bool, ReadError>,
    ) -> Result<(), ReadError> {
        shared.fill(self.inner.bytes_max(), self.inner.budget.get(), read)
    }

    /// Reads one queued run. Returns `false` if none is queued.
    pub fn step(&self) -> bool {
        self.inner.step()
    }

    /// Returns true if a run is queued that no thread has started.
    pub fn has_work(&self) -> bool {
        self.inner.state().has_turns()
    }

    /// Returns true if a portion was read that its call has not taken.
    pub fn holds_untaken(&self) -> bool {
        let state = self.inner.state();
        state.untaken_bytes + state.staying_bytes > 0
    }

    /// Returns a [`Reading`] whose values have already arrived. For tests, which supply the values.
    pub fn arrived(self: &Arc<Self>, arrived: Vec<ReadValue>) -> Reading {
        let mut reading = self.read(&[]);
        reading.arrived = arrived;
        reading
    }

    /// Returns a future that reads values. If a value has moved or is damaged, the other values are read
    /// nevertheless.
    pub fn read(self: &Arc<Self>, values: &[Value]) -> Reading {
        let wanted =
            values.iter().map(|value| Wanted { location: value.location, len: value.len, crc: value.crc });
        let mut wanted: Vec<Wanted> = wanted.collect();
        let lens = log::runs(&mut wanted);
        let mut rest = wanted.as_slice();
        let mut runs = Vec::with_capacity(lens.len());
        for len in lens {
            let (run, behind) = rest.split_at(len);
            runs.push(run.to_vec());
            rest = behind;
        }
        Reading {
            readers: Arc::clone(self),
            is_first: false,
            runs: runs.into(),
            through: 0,
            portion: None,
            taken_back: 0,
            arrived: Vec::new(),
            charges: Vec::new(),
        }
    }

    /// Reads values like [`Readers::read`], for the core: before all other portions, and without admission.
    /// That is acceptable because the core reads only few bytes at a time.
    pub fn read_first(self: &Arc<Self>, values: &[Value]) -> Reading {
        let mut reading = self.read(values);
        reading.is_first = !planted::is(Bug::CoreReadsInTheQueue);
        reading
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.inner.state().closed = true;
        self.inner.work.notify_all();
    }
}

#[cfg(test)]
mod tests;
