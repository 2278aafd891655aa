//! Threads that read values from the disk for threads that must not wait for it: shards and the core.
//!
//! A [`Reading`] fetches its values in portions; neighbouring values are read together as a run. The threads
//! take turns among the portions, one run at a time, so that a call that needs one value does not wait behind
//! hundreds of another call. Portions wait for admission in FIFO order while too many bytes are being read.
//! The bytes of portions are charged to the clients' memory budget.
//!
//! A call that is not polled does not delay others: a portion is admitted whenever space becomes free, by the
//! call that freed it, and bytes count as being read only until they are read. Portions that were read and
//! not taken by their calls have a separate bound: beyond it the one that was read first is revoked, and its
//! call waits for admission again when it is polled. A call that is polled slowly finishes nevertheless: the
//! second time its portion stays until it is taken, within a separate bound for portions that stay.
//!
//! The core has a separate lane: its values are read first, and wait for no admission, because all clients
//! wait for the core, and calls of clients may be slow to take their portions. Neither lane may use all
//! threads: one thread is always left for the other, however slow the disk is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use accounting::{Budget, Charge};
use bytes::Bytes;
use log::Wanted;
use machine::ReadError;
use mvcc::Value;
use planted::Bug;

/// Maximum number of threads, which are started on demand.
const THREADS_MAX: usize = 8;
/// Maximum number of threads that one lane may use at a time.
const LANE_THREADS_MAX: usize = THREADS_MAX - 1;
/// Maximum bytes of values that are being read; also the maximum bytes that were read and not taken, and the
/// maximum bytes that stay until they are taken. A single portion may be larger.
const ADMITTED_BYTES_MAX: usize = 16 << 20;
/// Divisor of the clients' memory budget that further limits each of the three amounts.
const BUDGET_PART: usize = 16;
/// Maximum bytes of a portion; a single value may be larger.
const PORTION_BYTES: usize = 1 << 20;
/// Number of times that a portion may be revoked; then it stays until its call takes it.
const TAKEN_BACK_MAX: u32 = 1;

/// Returns the location of a value as one number. A location in the log never contains another value later.
pub fn place_of(value: Value) -> u64 {
    place(value.location.segment, value.location.offset)
}

fn place(segment: u32, offset: u32) -> u64 {
    (u64::from(segment) << 32) | u64::from(offset)
}

/// A value that was read, or the error, with its location as one number.
pub type Arrived = (u64, Result<Bytes, ReadError>);

/// Neighbouring values that are read together.
type Run = Vec<Wanted>;

/// The reader threads of one member.
pub struct Readers {
    inner: Arc<Inner>,
}

struct Inner {
    log: log::Values,
    /// True if there are no threads, and the owner calls [`Readers::step`] instead.
    by_hand: bool,
    /// Maximum number of threads that can be started, for tests; starting another one fails.
    startable: usize,
    /// Memory budget to which the bytes are charged.
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
    /// Bytes of clients' portions that are being read.
    admitted_bytes: usize,
    /// Bytes of clients' portions that were read and stay until they are taken.
    staying_bytes: usize,
    /// Other clients' portions that were read and not taken: id of each portion by the order in which they
    /// were read.
    untaken: BTreeMap<u64, u64>,
    untaken_bytes: usize,
    serial: u64,
    threads: usize,
    /// Number of threads that wait, including those that were notified and have not woken yet.
    idle: usize,
    /// True if starting a thread has failed once; then the number of threads may never grow.
    start_failed: bool,
    closed: bool,
}

/// Queue of portions with unread runs. A thread takes one run of the first portion, which then moves to the
/// end.
#[derive(Default)]
struct Lane {
    turns: VecDeque<u64>,
    /// Number of threads that are reading one of the lane's runs.
    threads: usize,
}

/// State of a portion, which decides how its bytes count.
enum Stage {
    /// A portion of the core, whose bytes do not count.
    OfCore,
    /// The portion waits for admission; its bytes do not count yet.
    Waiting,
    /// The portion is being read.
    Admitted,
    /// The portion was read and not taken; the number is the order in which portions were read.
    Untaken(u64),
    /// The portion was read, and is kept until it is taken.
    Staying,
}

struct Portion {
    stage: Stage,
    bytes: usize,
    runs: Arc<[Run]>,
    /// Runs that no thread has started.
    left: std::ops::Range<usize>,
    /// Number of runs that threads are reading.
    reading: usize,
    arrived: Vec<Arrived>,
    waker: Option<Waker>,
    /// True if the call of the portion was dropped.
    abandoned: bool,
    /// True if the portion was revoked before and is not revoked again.
    stays: bool,
    /// Charge for the portion's bytes, from admission on.
    charge: Option<Charge>,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic half-way, so the state is consistent even if the lock is
        // poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the maximum bytes that may be read at a time, which is also the maximum that may be untaken,
    /// and that may stay.
    fn bytes_max(&self) -> usize {
        let of_budget = self.budget.get().map_or(usize::MAX, |budget| budget.bytes_max() / BUDGET_PART);
        of_budget.min(ADMITTED_BYTES_MAX)
    }

    fn read(&self, run: &[Wanted]) -> Vec<Arrived> {
        let mut arrived = Vec::with_capacity(run.len());
        self.log.read_run(run, |wanted, outcome| {
            let outcome = outcome.map_err(|error| match error {
                log::ReadError::Moved => ReadError::Moved,
                other => ReadError::Failed(other.to_string()),
            });
            arrived.push((place(wanted.location.segment, wanted.location.offset), outcome));
        });
        arrived
    }

    /// Reads the next run. Returns false if no run is queued.
    fn step(self: &Arc<Inner>) -> bool {
        let mut state = self.state();
        let Some((id, runs, at)) = state.next_run() else { return false };
        if state.has_turns() {
            // The caller that queued the other runs may have counted on a thread that was notified for this
            // run.
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

    /// Admits waiting portions in order while there is space. Called whenever space becomes free.
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
            // Without threads each call reads its own portion when it is polled.
            let admitted = state.clients.turns.iter().filter_map(|id| state.portions.get(id));
            admitted.filter_map(|portion| portion.waker.as_ref()).for_each(Waker::wake_by_ref);
        }
    }

    /// Wakes or starts threads for queued runs.
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

    /// Returns true if cannot start a thread, so that calls have to read themselves, which is slow but
    /// works.
    fn has_no_thread(&self, state: &State) -> bool {
        state.start_failed && state.threads == 0 && !self.by_hand
    }

    /// If no threads exist, reads queued runs until this portion is complete. If another call is reading a
    /// run of the portion, or delays its admission, that call wakes this one when it is done.
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
    /// Returns the next run: the id of its portion, the portion's runs, and the position of the run.
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

    fn has_turns(&self) -> bool {
        let threads_max = self.lane_threads_max();
        self.core.may_go_on(threads_max) || self.clients.may_go_on(threads_max)
    }

    /// Returns the maximum number of threads that one lane may use: all possible threads but one.
    fn lane_threads_max(&self) -> usize {
        match self.threads {
            _ if !self.start_failed => LANE_THREADS_MAX,
            // Every call reads for itself.
            0 => usize::MAX,
            threads => (threads - 1).max(1),
        }
    }

    /// Adds the values of a run to its portion.
    fn settle(&mut self, id: u64, arrived: Vec<Arrived>, bytes_max: usize) {
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

    /// Revokes portions, in the order in which they were read, until at most `bytes_max` bytes are untaken.
    /// Never revokes the portion that was read last.
    fn take_back(&mut self, bytes_max: usize) {
        while self.untaken_bytes > bytes_max
            && self.untaken.len() > 1
            && let Some((_, &id)) = self.untaken.first_key_value()
        {
            self.release(id);
        }
    }

    /// Removes a portion that no thread is reading, so that others may be admitted.
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
    /// Returns readers of this log with their own threads.
    pub fn new(log: log::Values) -> Arc<Readers> {
        Readers::of(log, false, THREADS_MAX)
    }

    /// Returns readers without threads, which read when [`Readers::step`] is called.
    pub fn by_hand(log: log::Values) -> Arc<Readers> {
        Readers::of(log, true, 0)
    }

    fn of(log: log::Values, by_hand: bool, startable: usize) -> Arc<Readers> {
        let (budget, state) = (OnceLock::new(), Mutex::default());
        let inner = Inner { log, by_hand, startable, budget, state, work: Condvar::new() };
        Arc::new(Readers { inner: Arc::new(inner) })
    }

    /// Charges the bytes to this budget from now on, and limits them to a part of it.
    pub fn charge_to(&self, budget: &Budget) {
        let _ = self.inner.budget.set(budget.clone());
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

    /// Returns a reading whose values have arrived already, for tests with their own values.
    pub fn arrived(self: &Arc<Self>, arrived: Vec<Arrived>) -> Reading {
        let mut reading = self.read(&[]);
        reading.arrived = arrived;
        reading
    }

    /// Reads values. A value that has moved or is damaged does not affect the others.
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
    /// The core reads few bytes at a time.
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

/// A future of values that are being read: resolves to the value or error of each. When it is dropped, no
/// further runs of it are started.
pub struct Reading {
    readers: Arc<Readers>,
    /// True for a reading of the core, which is read first and needs no admission.
    is_first: bool,
    runs: Arc<[Run]>,
    /// Number of runs that have arrived.
    through: usize,
    /// Id of the current portion, and the number of runs that will have arrived with it.
    portion: Option<(u64, usize)>,
    /// Number of times that the current portion was revoked before this call took it.
    taken_back: u32,
    arrived: Vec<Arrived>,
    /// Charges for the values that have arrived.
    charges: Vec<Charge>,
}

impl Reading {
    /// Returns the charges for the values that this future resolved to; the caller keeps them as long as the
    /// values.
    pub fn take_charges(&mut self) -> Vec<Charge> {
        std::mem::take(&mut self.charges)
    }

    /// Returns the end of the next portion as a run number, and its bytes.
    fn next_portion(&self) -> (usize, usize) {
        let (mut end, mut bytes) = (self.through, 0);
        for run in &self.runs[self.through..] {
            let len: usize = run.iter().map(|wanted| wanted.len as usize).sum();
            if end > self.through && bytes + len > PORTION_BYTES {
                break;
            }
            (end, bytes) = (end + 1, bytes + len);
        }
        (end, bytes)
    }

    /// Queues the next portion.
    fn ask(&mut self, context: &Context<'_>) {
        let (end, bytes) = self.next_portion();
        let inner = &self.readers.inner;
        let mut state = inner.state();
        state.serial += 1;
        let id = state.serial;
        let left = self.through..end;
        let runs = left.len();
        let portion = Portion {
            stage: if self.is_first { Stage::OfCore } else { Stage::Waiting },
            bytes,
            runs: Arc::clone(&self.runs),
            left,
            reading: 0,
            arrived: Vec::new(),
            waker: Some(context.waker().clone()),
            abandoned: false,
            stays: self.taken_back >= TAKEN_BACK_MAX,
            charge: if self.is_first { inner.budget.get().map(|budget| budget.charge(bytes)) } else { None },
        };
        state.portions.insert(id, portion);
        if self.is_first {
            state.core.turns.push_back(id);
            inner.rouse(&mut state, runs);
        } else {
            state.waiting.insert(id);
            inner.admit(&mut state);
        }
        drop(inner.read_without_threads(state, id));
        self.portion = Some((id, end));
    }

    /// Takes the current portion, if it is complete.
    fn take(&mut self, id: u64, end: usize, context: &Context<'_>) -> Poll<()> {
        let inner = &self.readers.inner;
        let mut state = inner.read_without_threads(inner.state(), id);
        match state.portions.get_mut(&id) {
            Some(portion) if !portion.is_done() => {
                portion.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Some(_) => {
                let portion = state.release(id);
                inner.admit(&mut state);
                drop(state);
                if let Some(portion) = portion {
                    self.arrived.extend(portion.arrived);
                    self.charges.extend(portion.charge);
                }
                (self.through, self.taken_back) = (end, 0);
            }
            // The portion was revoked.
            None => self.taken_back += 1,
        }
        self.portion = None;
        Poll::Ready(())
    }
}

impl Future for Reading {
    type Output = Vec<Arrived>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Arrived>> {
        loop {
            if let Some((id, end)) = self.portion
                && self.take(id, end, context).is_pending()
            {
                return Poll::Pending;
            }
            if self.through == self.runs.len() {
                return Poll::Ready(std::mem::take(&mut self.arrived));
            }
            self.ask(context);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let Some((id, _)) = self.portion else { return };
        let inner = &self.readers.inner;
        let mut state = inner.state();
        let Some(portion) = state.portions.get_mut(&id) else { return };
        let had_turns = !portion.left.is_empty() && !matches!(portion.stage, Stage::Waiting);
        portion.left = 0..0;
        portion.abandoned = true;
        if portion.is_done() || matches!(portion.stage, Stage::Waiting) {
            state.release(id);
        }
        if had_turns {
            state.core.turns.retain(|turn| *turn != id);
            state.clients.turns.retain(|turn| *turn != id);
        }
        inner.admit(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use disk::MemDisk;

    use numbers::{ClusterId, Index, MemberId};

    use super::*;

    /// Returns readers of an empty log, in which every value has moved.
    fn readers() -> (Arc<Readers>, log::Log) {
        let options = log::Options { by_hand: true, ..log::Options::new("/log", ClusterId(1), MemberId(2)) };
        let disk = Arc::new(MemDisk::new(1));
        let (log, _) = log::Log::open(options, disk, Index(1), &mut |_| {}, Box::new(|_| {})).expect("opens");
        (Readers::by_hand(log.values()), log)
    }

    fn value(segment: u32, len: u32) -> Value {
        Value { location: mvcc::Location { segment, offset: 1 << 20 }, len, crc: 0 }
    }

    fn poll(reading: &mut Reading) -> Poll<Vec<Arrived>> {
        Pin::new(reading).poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Returns the number of admitted portions and their bytes, including those that were read.
    fn admitted(readers: &Readers) -> (usize, usize) {
        let state = readers.inner.state();
        let bytes = state.admitted_bytes + state.untaken_bytes + state.staying_bytes;
        (state.portions.len() - state.waiting.len(), bytes)
    }

    #[test]
    fn what_does_not_fit_waits_and_all_come_to_their_turn() {
        let (readers, _log) = readers();
        // Each call has three portions; together far more bytes than may be held at a time.
        let values: Vec<Value> = (100..103).map(|segment| value(segment, 900_000)).collect();
        let mut readings: Vec<Option<Reading>> = (0..200).map(|_| Some(readers.read(&values))).collect();
        // A call that is dropped while it waits, or while its values are read, does not delay others.
        for (at, place) in readings.iter_mut().enumerate() {
            assert!(place.as_mut().is_some_and(|reading| poll(reading).is_pending()));
            if at % 9 == 4 {
                *place = None;
            }
        }
        let mut rounds = 0;
        while readings.iter().any(Option::is_some) {
            let (_, bytes) = admitted(&readers);
            assert!(bytes <= 2 * ADMITTED_BYTES_MAX && bytes > 0, "{bytes}");
            assert!(readers.step(), "somebody waits, and nothing is read");
            for place in &mut readings {
                if let Some(reading) = place
                    && let Poll::Ready(arrived) = poll(reading)
                {
                    assert_eq!(arrived.len(), 3);
                    assert!(arrived.iter().all(|(_, outcome)| *outcome == Err(ReadError::Moved)));
                    *place = None;
                }
            }
            rounds += 1;
            assert!(rounds <= 600);
        }
        assert_eq!(admitted(&readers), (0, 0));
        assert!(!readers.has_work());
    }

    #[test]
    fn what_is_read_is_charged_and_keeps_to_its_part_of_the_budget() {
        let (readers, _log) = readers();
        let budget = Budget::new(64 << 20);
        readers.charge_to(&budget);
        let values: Vec<Value> = (100..103).map(|segment| value(segment, 900_000)).collect();
        let mut readings: Vec<Option<Reading>> = (0..40).map(|_| Some(readers.read(&values))).collect();
        let (mut rounds, mut most) = (0, 0);
        while readings.iter().any(Option::is_some) {
            for (at, place) in readings.iter_mut().enumerate() {
                if place.as_mut().is_some_and(|reading| poll(reading).is_ready()) || at == 7 + rounds {
                    *place = None;
                }
            }
            let (_, bytes) = admitted(&readers);
            // Taken values are charged for as long as they are held.
            let taken: usize = readings.iter().flatten().map(|reading| reading.through * 900_000).sum();
            assert_eq!(budget.held_bytes(), bytes + taken);
            most = most.max(bytes);
            readers.step();
            rounds += 1;
            assert!(rounds <= 600);
        }
        assert!(most > 3 << 20 && most <= 4 << 20, "{most}");
        assert_eq!((budget.held_bytes(), budget.connections_shed()), (0, 0));
    }

    #[test]
    fn the_core_waits_for_nobody_who_reads() {
        let (readers, _log) = readers();
        let values: Vec<Value> = (100..103).map(|segment| value(segment, 900_000)).collect();
        let mut readings: Vec<Reading> = (0..200).map(|_| readers.read(&values)).collect();
        assert!(readings.iter_mut().all(|reading| poll(reading).is_pending()));
        // Clients that do not take their portions, and others that wait behind them.
        assert!((0..10).all(|_| readers.step()));
        let (_, held) = admitted(&readers);
        assert!(held > 22 << 20 && !readers.inner.state().waiting.is_empty());
        let (values, mut more) = ([value(7, 900_000), value(8, 900_000)], readers.read(&[value(9, 10)]));
        assert!(poll(&mut more).is_pending());
        let mut first = readers.read_first(&values);
        let mut steps = 0;
        let arrived = loop {
            if let Poll::Ready(arrived) = poll(&mut first) {
                break arrived;
            }
            assert!(readers.step(), "it is read at once");
            steps += 1;
        };
        assert_eq!((arrived.len(), steps), (2, 2));
        // The core is also ahead of clients that were admitted earlier.
        readings.truncate(100);
        assert!(readings.iter_mut().all(|reading| poll(reading).is_pending()));
        let mut first = readers.read_first(&values[..1]);
        assert!(poll(&mut first).is_pending() && readers.step() && poll(&mut first).is_ready());
        drop(readings);
        drop(more);
        while readers.step() {}
        assert_eq!(admitted(&readers), (0, 0));
    }

    #[test]
    fn a_reading_that_nobody_polls_holds_up_no_other() {
        let (readers, _log) = readers();
        let budget = Budget::new(64 << 20);
        readers.charge_to(&budget);
        let values: Vec<Value> = (100..103).map(|segment| value(segment, 900_000)).collect();
        let mut kept: Vec<Reading> = (0..150).map(|_| readers.read(&values)).collect();
        let mut polled: Vec<Reading> = (0..50).map(|_| readers.read(&values)).collect();
        // The kept calls wait before the others and are never polled again, neither when they are admitted
        // nor when they are read.
        assert!(kept.iter_mut().chain(&mut polled).all(|reading| poll(reading).is_pending()));
        let mut rounds = 0;
        while !polled.is_empty() {
            assert!(readers.step(), "somebody waits, and nothing is read");
            polled.retain_mut(|reading| poll(reading).is_pending());
            let (_, bytes) = admitted(&readers);
            let taken: usize = polled.iter().map(|reading| reading.through * 900_000).sum();
            assert!(budget.held_bytes() == bytes + taken && bytes <= 8 << 20, "{bytes}");
            rounds += 1;
            assert!(rounds <= 150 + 3 * 50, "{rounds}");
        }
        while readers.step() {}
        drop(kept);
        assert_eq!((admitted(&readers), budget.held_bytes()), ((0, 0), 0));
    }

    #[test]
    fn a_reading_that_is_polled_late_comes_to_its_end() {
        let (readers, _log) = readers();
        let mut late = readers.read(&[value(7, 900_000), value(8, 900_000)]);
        let mut others: Vec<Reading> = Vec::new();
        let (mut rounds, mut again) = (0, 0);
        let arrived = loop {
            if let Poll::Ready(arrived) = poll(&mut late) {
                break arrived;
            }
            again = again.max(late.taken_back);
            // Before the late call is polled again, others read more than may be untaken.
            others.extend((0..40).map(|n| readers.read(&[value(100 + n, 900_000)])));
            assert!(others.iter_mut().rev().take(40).all(|reading| poll(reading).is_pending()));
            while readers.step() {}
            rounds += 1;
            assert!(rounds <= 2 * (TAKEN_BACK_MAX + 1), "it is taken back without end");
        };
        assert_eq!((arrived.len(), again), (2, TAKEN_BACK_MAX));
        let (portions, bytes) = admitted(&readers);
        assert!(bytes <= ADMITTED_BYTES_MAX && portions == bytes / 900_000, "{portions} {bytes}");
        drop(others);
        assert_eq!(admitted(&readers), (0, 0));
    }

    #[test]
    fn those_that_stay_and_are_not_taken_hold_up_no_other() {
        let (readers, _log) = readers();
        let mut kept: Vec<Reading> =
            (100..160).map(|segment| readers.read(&[value(segment, 900_000)])).collect();
        assert!(kept.iter_mut().all(|reading| poll(reading).is_pending()));
        while readers.step() {}
        // Most portions were revoked, and stay when they are read again; their calls are not polled any more.
        kept.retain_mut(|reading| poll(reading).is_pending());
        assert!(kept.len() > 40 && kept.iter().all(|reading| reading.taken_back == 1));
        let mut other = readers.read(&[value(7, 900_000)]);
        let mut steps = 0;
        while poll(&mut other).is_pending() {
            assert!(readers.step(), "it waits, and nothing is read");
            steps += 1;
        }
        assert!(steps <= kept.len() + 1, "{steps}");
        let state = readers.inner.state();
        assert!(state.staying_bytes > ADMITTED_BYTES_MAX / 2 && state.staying_bytes <= ADMITTED_BYTES_MAX);
        assert!(state.admitted_bytes == 0 && state.untaken_bytes <= ADMITTED_BYTES_MAX);
        drop(state);
        drop(kept);
        assert_eq!(admitted(&readers), (0, 0));
    }

    #[test]
    fn where_few_threads_can_be_started_one_is_left_for_either_lane() {
        let (readers, _log) = readers();
        let values: Vec<Value> = (100..120).map(|segment| value(segment, 10)).collect();
        let (mut reading, mut first) = (readers.read(&values), readers.read_first(&values));
        for (threads, of_each) in [(4, 3), (2, 1)] {
            {
                let mut state = readers.inner.state();
                (state.threads, state.start_failed) = (threads, true);
                (state.core.threads, state.clients.threads) = (0, 0);
            }
            let begun = || std::iter::from_fn(|| readers.inner.state().next_run()).count();
            assert!(poll(&mut reading).is_pending());
            assert_eq!(begun(), of_each);
            assert!(poll(&mut first).is_pending());
            assert_eq!(begun(), of_each);
            (reading, first) = (readers.read(&values), readers.read_first(&values));
        }
    }

    #[test]
    fn without_threads_a_call_reads_until_it_has_its_own() {
        let (by_hand, log) = readers();
        drop(by_hand);
        let readers = Readers::of(log.values(), false, 0);
        let values: Vec<Value> = (100..200).map(|segment| value(segment, 10)).collect();
        let (mut long, mut short) = (readers.read(&values), readers.read(&values[..1]));
        // As if a thread had been started to read the portion, and had ended.
        readers.inner.state().threads = 1;
        assert!(poll(&mut long).is_pending());
        readers.inner.state().threads = 0;
        assert!(poll(&mut short).is_ready());
        let left = |readers: &Readers| -> usize {
            readers.inner.state().portions.values().map(|portion| portion.left.len()).sum()
        };
        assert!(left(&readers) >= 98, "it reads for another");
        assert!(poll(&mut long).is_ready() && left(&readers) == 0);
    }

    #[test]
    fn neither_the_core_nor_its_clients_keep_a_thread_from_the_other() {
        let (readers, _log) = readers();
        let values: Vec<Value> = (100..120).map(|segment| value(segment, 10)).collect();
        let mut readings: Vec<Reading> = (0..20).map(|_| readers.read(&values)).collect();
        assert!(readings.iter_mut().all(|reading| poll(reading).is_pending()));
        // Threads that wait for a slow disk.
        let begun = || std::iter::from_fn(|| readers.inner.state().next_run());
        assert_eq!(begun().count(), THREADS_MAX - 1, "one is left for the core");
        assert!(!readers.has_work());
        let mut first = readers.read_first(&values);
        assert!(poll(&mut first).is_pending() && readers.has_work());
        assert_eq!(begun().count(), THREADS_MAX - 1, "one would be left for clients");
        assert!(!readers.has_work());
    }

    #[test]
    fn one_that_is_larger_than_all_room_is_read_alone() {
        let (readers, _log) = readers();
        let (mut large, mut small) =
            (readers.read(&[value(1, ADMITTED_BYTES_MAX as u32 + 1)]), readers.read(&[value(2, 1)]));
        assert!(poll(&mut large).is_pending() && poll(&mut small).is_pending());
        assert_eq!(admitted(&readers).0, 1);
        assert!(readers.step());
        assert!(poll(&mut large).is_ready() && poll(&mut small).is_pending());
        assert!(readers.step());
        assert!(poll(&mut small).is_ready());
    }

    #[test]
    fn runs_that_counted_on_a_thread_that_was_notified_for_another_get_one() {
        let (by_hand, log) = readers();
        drop(by_hand);
        let readers = Readers::new(log.values());
        let (mut one, mut other) = (readers.read(&[value(1, 10)]), readers.read(&[value(2, 10)]));
        // A thread that waits, is notified, and does not wake before both portions are queued.
        readers.inner.state().idle = 1;
        assert!(poll(&mut one).is_pending() && poll(&mut other).is_pending());
        assert_eq!(readers.inner.state().threads, 0);
        readers.inner.state().idle = 0;
        assert!(readers.step());
        assert_eq!(readers.inner.state().threads, 1, "nobody reads the other");
        assert_eq!(crate::block_on::block_on(other).len(), 1);
        assert!(poll(&mut one).is_ready());
    }

    #[test]
    fn threads_read_and_end_with_their_readers() {
        let (by_hand, log) = readers();
        drop(by_hand);
        let readers = Readers::new(log.values());
        let values: Vec<Value> = (0..100).map(|segment| value(segment, 10)).collect();
        let arrived = crate::block_on::block_on(readers.read(&values));
        assert_eq!(arrived.len(), 100);
        let inner = Arc::downgrade(&readers.inner);
        assert!(readers.inner.state().threads <= THREADS_MAX);
        drop(readers);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while inner.strong_count() > 0 {
            assert!(std::time::Instant::now() < deadline, "a thread goes on");
            thread::yield_now();
        }
    }
}
