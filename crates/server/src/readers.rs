//! Threads that read values from the disk for others that must not wait for it: shards and the core.
//!
//! A reading brings the values it wants in portions; what lies close together is read at once. The threads take turns
//! among the portions, a run of neighbours each time, so that a call that wants one value does not wait behind another's
//! hundreds. Portions wait for admission, first come first served, while those admitted would hold too many bytes; what
//! they hold is charged to the clients' memory.
//!
//! The core has a lane of its own: what it wants is read before all else, and waits for no admission. For all clients wait
//! for the core, and those who read may be slow to take what was read for them.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use bytes::Bytes;
use front::{Budget, Charge};
use log::Wanted;
use machine::ReadError;
use mvcc::Value;
use planted::Bug;

/// Threads, which are started as they are needed.
const THREADS_MAX: usize = 8;
/// Bytes of values that are being read or wait to be taken; a single portion may be larger.
const ADMITTED_BYTES_MAX: usize = 32 << 20;
/// They are at most this part of the clients' memory.
const BUDGET_PART: usize = 8;
/// Bytes of a portion; a single value may be larger.
const PORTION_BYTES: usize = 1 << 20;

/// A place in the log as one number. It never comes to hold another value.
pub(crate) fn place_of(value: Value) -> u64 {
    place(value.location.segment, value.location.offset)
}

fn place(segment: u32, offset: u32) -> u64 {
    (u64::from(segment) << 32) | u64::from(offset)
}

/// What became of a value, by its place.
pub(crate) type Arrived = (u64, Result<Bytes, ReadError>);

/// The readers of one member.
pub struct Readers {
    inner: Arc<Inner>,
}

struct Inner {
    log: log::Values,
    /// Whether there are no threads, and somebody calls [`Readers::step`].
    by_hand: bool,
    /// What the bytes are charged to.
    budget: OnceLock<Budget>,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    portions: BTreeMap<u64, Portion>,
    /// Portions of which something is left to read. A reader takes one run of the first, which goes to the end.
    turns: VecDeque<u64>,
    /// The same of those that are read before all others.
    first_turns: VecDeque<u64>,
    /// Readings that wait for admission, the first first.
    waiting: VecDeque<(u64, Option<Waker>)>,
    admitted_bytes: usize,
    serial: u64,
    threads: usize,
    idle: usize,
    closed: bool,
}

struct Portion {
    /// Bytes that were admitted for it.
    bytes: usize,
    left: Vec<Vec<Wanted>>,
    /// Runs that a reader is at.
    reading: usize,
    arrived: Vec<Arrived>,
    waker: Option<Waker>,
    /// Nobody waits for it any more.
    abandoned: bool,
    /// Of one that was abandoned; before, the [`Reading`] has it.
    charge: Option<Charge>,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing inside the lock can panic half-way, so what it guards is whole even when poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admitted_bytes_max(&self) -> usize {
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

    /// Reads one run of the portion whose turn it is; `false`: there is none.
    fn step(&self) -> bool {
        let Some((id, run)) = self.state().next_run() else { return false };
        let arrived = self.read(&run);
        self.state().settle(id, arrived);
        true
    }

    fn work(&self) {
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
}

impl State {
    fn next_run(&mut self) -> Option<(u64, Vec<Wanted>)> {
        let first = self.first_turns.pop_front();
        let turns = if first.is_some() { &mut self.first_turns } else { &mut self.turns };
        let id = first.or_else(|| turns.pop_front())?;
        let portion = self.portions.get_mut(&id)?;
        let run = portion.left.pop()?;
        portion.reading += 1;
        if !portion.left.is_empty() {
            turns.push_back(id);
        }
        Some((id, run))
    }

    fn has_turns(&self) -> bool {
        !self.turns.is_empty() || !self.first_turns.is_empty()
    }

    fn settle(&mut self, id: u64, arrived: Vec<Arrived>) {
        let Some(portion) = self.portions.get_mut(&id) else { return };
        portion.reading -= 1;
        portion.arrived.extend(arrived);
        if !portion.is_done() {
            return;
        }
        if portion.abandoned {
            self.release(id);
        } else if let Some(waker) = portion.waker.take() {
            waker.wake();
        }
    }

    /// Forgets a portion that nobody reads for any more; the next may be admitted.
    fn release(&mut self, id: u64) -> Option<Portion> {
        let portion = self.portions.remove(&id)?;
        self.admitted_bytes -= portion.bytes;
        self.wake_first();
        Some(portion)
    }

    fn wake_first(&mut self) {
        if let Some((_, waker)) = self.waiting.front_mut()
            && let Some(waker) = waker.take()
        {
            waker.wake();
        }
    }

    fn has_room(&self, bytes: usize, bytes_max: usize) -> bool {
        self.admitted_bytes == 0 || self.admitted_bytes + bytes <= bytes_max
    }

    fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}

impl Portion {
    fn is_done(&self) -> bool {
        self.left.is_empty() && self.reading == 0
    }
}

impl Readers {
    /// Readers of this log, on threads of their own.
    pub fn new(log: log::Values) -> Arc<Readers> {
        Readers::of(log, false)
    }

    /// Readers that read when [`Readers::step`] is called.
    pub fn by_hand(log: log::Values) -> Arc<Readers> {
        Readers::of(log, true)
    }

    fn of(log: log::Values, by_hand: bool) -> Arc<Readers> {
        let (budget, state) = (OnceLock::new(), Mutex::default());
        let inner = Inner { log, by_hand, budget, state, work: Condvar::new() };
        Arc::new(Readers { inner: Arc::new(inner) })
    }

    /// Charges what is read to this budget from now on, and keeps to a part of it.
    pub fn charge_to(&self, budget: &Budget) {
        let _ = self.inner.budget.set(budget.clone());
    }

    /// Does one read that somebody waits for; `false`: there are none.
    pub fn step(&self) -> bool {
        self.inner.step()
    }

    /// Whether there is something to read that no thread is at.
    pub fn has_work(&self) -> bool {
        self.inner.state().has_turns()
    }

    /// Reads values. A value that was moved, or is damaged, holds up none of the others.
    pub(crate) fn read(self: &Arc<Self>, values: &[Value]) -> Reading {
        let wanted = values.iter().map(|value| Wanted {
            location: log::Location { segment: value.location.segment, offset: value.location.offset },
            len: value.len,
            crc: value.crc,
        });
        let mut wanted: Vec<Wanted> = wanted.collect();
        let runs = log::runs(&mut wanted);
        let mut rest = wanted.as_slice();
        let mut left = VecDeque::with_capacity(runs.len());
        for len in runs {
            let (run, behind) = rest.split_at(len);
            left.push_back(run.to_vec());
            rest = behind;
        }
        let (arrived, stage) = (Vec::new(), Stage::Between);
        Reading { readers: Arc::clone(self), is_first: false, left, arrived, stage, charge: None }
    }

    /// As [`Readers::read`], for the core: before all others, and whatever they hold. It asks for little at a time.
    pub(crate) fn read_first(self: &Arc<Self>, values: &[Value]) -> Reading {
        let mut reading = self.read(values);
        reading.is_first = !planted::is(Bug::CoreReadsInTheQueue);
        reading
    }

    /// Has somebody look at what was queued.
    fn rouse(&self, state: &mut State, runs: usize) {
        if self.inner.by_hand {
            return;
        }
        for _ in state.idle..runs.min(THREADS_MAX) {
            if state.threads == THREADS_MAX {
                break;
            }
            let inner = Arc::clone(&self.inner);
            let thread = thread::Builder::new().name("reader".to_owned());
            if thread.spawn(move || inner.work()).is_err() {
                break;
            }
            state.threads += 1;
        }
        if runs > 1 {
            self.inner.work.notify_all();
        } else {
            self.inner.work.notify_one();
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.inner.state().closed = true;
        self.inner.work.notify_all();
    }
}

/// Values on their way: resolves to what became of each. Dropped, it has no more read than is being read.
pub struct Reading {
    readers: Arc<Readers>,
    /// It is read before all others and needs no admission.
    is_first: bool,
    left: VecDeque<Vec<Wanted>>,
    arrived: Vec<Arrived>,
    stage: Stage,
    /// For the portion that is being read.
    charge: Option<Charge>,
}

enum Stage {
    /// The next portion is to be made.
    Between,
    /// It waits for admission.
    Waiting(u64),
    /// It is being read.
    Reading(u64),
}

impl Reading {
    /// How many runs, and bytes, the next portion has.
    fn next_portion(&self) -> (usize, usize) {
        let (mut runs, mut bytes) = (0, 0);
        for run in &self.left {
            let len: usize = run.iter().map(|wanted| wanted.len as usize).sum();
            if runs > 0 && bytes + len > PORTION_BYTES {
                break;
            }
            (runs, bytes) = (runs + 1, bytes + len);
        }
        (runs, bytes)
    }

    fn admit(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (runs, bytes) = self.next_portion();
        let readers = Arc::clone(&self.readers);
        let mut state = readers.inner.state();
        if self.is_first {
            self.begin_portion(&readers, state, (runs, bytes), context);
            return Poll::Ready(());
        }
        let ticket = if let Stage::Waiting(ticket) = self.stage { Some(ticket) } else { None };
        let first = state.waiting.front().map(|(ticket, _)| *ticket);
        if first != ticket || !state.has_room(bytes, readers.inner.admitted_bytes_max()) {
            let ticket = ticket.unwrap_or_else(|| {
                let ticket = state.serial();
                state.waiting.push_back((ticket, None));
                ticket
            });
            self.stage = Stage::Waiting(ticket);
            let place = state.waiting.iter_mut().find(|(waiting, _)| *waiting == ticket);
            if let Some((_, waker)) = place {
                *waker = Some(context.waker().clone());
            }
            return Poll::Pending;
        }
        if ticket.is_some() {
            state.waiting.pop_front();
        }
        state.admitted_bytes += bytes;
        // It may fit too.
        state.wake_first();
        self.begin_portion(&readers, state, (runs, bytes), context);
        Poll::Ready(())
    }

    fn begin_portion(
        &mut self,
        readers: &Readers,
        mut state: MutexGuard<'_, State>,
        (runs, bytes): (usize, usize),
        context: &Context<'_>,
    ) {
        let id = state.serial();
        // Taken from the end.
        let left: Vec<Vec<Wanted>> = self.left.drain(..runs).rev().collect();
        let waker = Some(context.waker().clone());
        let arrived = Vec::new();
        let admitted = if self.is_first { 0 } else { bytes };
        let portion =
            Portion { bytes: admitted, left, reading: 0, arrived, waker, abandoned: false, charge: None };
        state.portions.insert(id, portion);
        if self.is_first {
            state.first_turns.push_back(id);
        } else {
            state.turns.push_back(id);
        }
        self.stage = Stage::Reading(id);
        readers.rouse(&mut state, runs);
        let threads = state.threads;
        drop(state);
        self.charge = readers.inner.budget.get().map(|budget| budget.charge(bytes));
        if threads == 0 && !readers.inner.by_hand {
            // No thread could be started: better late than never.
            while readers.step() {}
        }
    }
}

impl Future for Reading {
    type Output = Vec<Arrived>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Arrived>> {
        loop {
            if let Stage::Reading(id) = self.stage {
                let readers = Arc::clone(&self.readers);
                let mut state = readers.inner.state();
                let Some(portion) = state.portions.get_mut(&id) else { return Poll::Pending };
                if !portion.is_done() {
                    portion.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
                let portion = state.release(id);
                drop(state);
                self.charge = None;
                self.arrived.extend(portion.into_iter().flat_map(|portion| portion.arrived));
                self.stage = Stage::Between;
            }
            if self.left.is_empty() {
                return Poll::Ready(std::mem::take(&mut self.arrived));
            }
            if self.admit(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let charge = self.charge.take();
        let mut state = self.readers.inner.state();
        match self.stage {
            Stage::Between => {}
            Stage::Waiting(ticket) => {
                state.waiting.retain(|(waiting, _)| *waiting != ticket);
                state.wake_first();
            }
            Stage::Reading(id) => {
                state.turns.retain(|turn| *turn != id);
                state.first_turns.retain(|turn| *turn != id);
                if let Some(portion) = state.portions.get_mut(&id) {
                    portion.left.clear();
                    (portion.abandoned, portion.charge) = (true, charge);
                    if portion.is_done() {
                        state.release(id);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use disk::MemDisk;

    use super::*;

    /// Readers of a log that holds nothing: every value has been moved away.
    fn readers() -> (Arc<Readers>, log::Log) {
        let options = log::Options { by_hand: true, ..log::Options::new("/log", 1, 2) };
        let disk = Arc::new(MemDisk::new(1));
        let (log, _) = log::Log::open(options, disk, 1, &mut |_| {}, Box::new(|_| {})).expect("opens");
        (Readers::by_hand(log.values()), log)
    }

    fn value(segment: u32, len: u32) -> Value {
        Value { location: mvcc::Location { segment, offset: 1 << 20 }, len, crc: 0 }
    }

    fn poll(reading: &mut Reading) -> Poll<Vec<Arrived>> {
        Pin::new(reading).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn admitted(readers: &Readers) -> (usize, usize) {
        let state = readers.inner.state();
        (state.portions.len(), state.admitted_bytes)
    }

    #[test]
    fn what_does_not_fit_waits_and_all_come_to_their_turn() {
        let (readers, _log) = readers();
        // Each of three portions; far more than may be held at a time.
        let values: Vec<Value> = (100..103).map(|segment| value(segment, 900_000)).collect();
        let mut readings: Vec<Option<Reading>> = (0..200).map(|_| Some(readers.read(&values))).collect();
        // Who gives up while others wait, or while it is read for, stands in nobody's way.
        for (at, place) in readings.iter_mut().enumerate() {
            assert!(place.as_mut().is_some_and(|reading| poll(reading).is_pending()));
            if at % 9 == 4 {
                *place = None;
            }
        }
        let mut rounds = 0;
        while readings.iter().any(Option::is_some) {
            let (_, bytes) = admitted(&readers);
            assert!(bytes <= ADMITTED_BYTES_MAX && bytes > 0, "{bytes}");
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
            assert_eq!(budget.held_bytes(), bytes);
            most = most.max(bytes);
            readers.step();
            rounds += 1;
            assert!(rounds <= 600);
        }
        assert!(most > 7 << 20 && most <= 8 << 20, "{most}");
        assert_eq!((budget.held_bytes(), budget.connections_shed()), (0, 0));
    }

    #[test]
    fn the_core_waits_for_nobody_who_reads() {
        let (readers, _log) = readers();
        let values: Vec<Value> = (100..103).map(|segment| value(segment, 900_000)).collect();
        let mut readings: Vec<Reading> = (0..200).map(|_| readers.read(&values)).collect();
        assert!(readings.iter_mut().all(|reading| poll(reading).is_pending()));
        // Clients that take nothing of what was read for them, and others that wait behind them.
        while readers.step() {}
        let (_, held) = admitted(&readers);
        assert!(held > 30 << 20 && !readers.inner.state().waiting.is_empty());
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
        // It is ahead of those who were admitted before it, too.
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
