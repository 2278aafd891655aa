//! Runs a load and measures it. Each client of the load makes one operation at a time. A schedule determines
//! when operations begin. Several threads share the clients and the connections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::Rpc;

use crate::loadgen::Error;
use crate::loadgen::calls::{Calls, Handler, Target};
use crate::loadgen::histogram::Histogram;
use crate::loadgen::samples::Series;
use crate::loadgen::status::Status;

/// The next request of an operation, which the workload fills in.
pub struct Request {
    /// RPC to call.
    pub method: Rpc,
    /// Encoded request message. It is empty when the workload gets it, and replaced for each request.
    pub message: Vec<u8>,
    /// True if the workload needs the contents of the response messages; otherwise they are only counted.
    pub keep: bool,
}

/// Next step of a client in an operation.
#[derive(Debug)]
pub enum Step {
    /// Send the request.
    Call,
    /// Send the request on a stream that stays open until [`Workload::message`] returns true.
    Open,
    /// End the operation. The fields are the index of the series in which it counts, and its result.
    Done(usize, Result<(), Error>),
}

/// Defines the operations that the clients of a load make. Each thread has its own instance.
pub trait Workload: Send {
    /// State that belongs to one client, and is kept from one operation to the next.
    type Client: Send + Default;

    /// Returns the number of series of measurements.
    fn series(&self) -> usize {
        1
    }

    /// Returns the next step in the preparation of a client. Each client is prepared once, before all runs,
    /// and this is not measured. The method is called again with the status of each request until it returns
    /// `Done`.
    fn prepare(&mut self, _: &mut Self::Client, _: Option<&Status>, _: &mut Request) -> Step {
        Step::Done(0, Ok(()))
    }

    /// Begins an operation. Operations are numbered from 0 over all clients and threads.
    fn begin(&mut self, client: &mut Self::Client, number: u64, request: &mut Request) -> Step;

    /// Handles a response message of a request with `keep`. If it returns true, the operation succeeds, and
    /// its open stream is cancelled.
    fn message(&mut self, _: &mut Self::Client, _: &[u8]) -> bool {
        false
    }

    /// Handles the end of a request, which has this status. Most operations consist of one request, and end
    /// now.
    fn answered(&mut self, client: &mut Self::Client, status: &Status, request: &mut Request) -> Step;
}

/// Returns the step that ends an operation after a request with this status.
pub fn done(status: &Status) -> Step {
    Step::Done(0, outcome(status))
}

/// Converts the status of a call to a result: an error unless the code is 0.
pub fn outcome(status: &Status) -> Result<(), Error> {
    if status.code == 0 { Ok(()) } else { Err(Error::Status(status.clone())) }
}

/// Determines when the operations of a load begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// Each client begins its next operation when the last one has ended, so the server determines the rate.
    /// While a server stalls, it gets hardly any requests. So few requests show the stall, and the measured
    /// latencies are better than those that users would experience.
    Flat,
    /// This many operations begin per second, at fixed times, whatever the server does. Latency counts from
    /// the time at which an operation was due, even if it began later because no client was free.
    Open(f64),
    /// At most this many operations begin per second, and latency counts from the time at which an operation
    /// really began. etcd's tool does this with `--rate`.
    Paced(f64),
}

/// Size and schedule of a load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of operations per run; ignored if `duration` is set.
    pub total: u64,
    /// Time during which operations begin; `None` to begin `total` operations.
    pub duration: Option<Duration>,
    /// Determines when operations begin.
    pub schedule: Schedule,
    /// Number of clients. It is also the maximum number of operations in flight.
    pub clients: usize,
    /// Number of connections that the clients share.
    pub connections: usize,
    /// Number of threads that run the clients.
    pub threads: usize,
    /// Time for which the load runs before the measurement begins.
    pub warmup: Duration,
    /// Number of measured runs.
    pub repeat: usize,
    /// Longest wait for the responses to outstanding operations, after the last operation has begun.
    pub drain_max: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            total: 10_000,
            duration: None,
            schedule: Schedule::Flat,
            clients: 1,
            connections: 1,
            threads: 1,
            warmup: Duration::ZERO,
            repeat: 1,
            drain_max: Duration::from_secs(60),
        }
    }
}

/// Measurements of one run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Measurements for each kind of operation.
    pub series: Vec<Series>,
    /// Time when the run began.
    pub began: SystemTime,
    /// Time from the start to the last response, but at least `duration` of the plan.
    pub elapsed: Duration,
    /// Resources that the load generator itself used.
    pub generator: Generator,
}

/// Resources that the load generator itself has used in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Generator {
    /// CPU time of all threads of the load generator.
    pub cpu: Duration,
    /// Time for which threads of the load generator were ready to run, but waited for a CPU.
    pub starved: Duration,
    /// CPU time of the busiest thread, as a fraction of the duration of the run, from 0 to 1.
    pub busiest: f64,
    /// Number of connections that were lost.
    pub lost: u64,
    /// Number of times that a timer was set.
    pub timers: u64,
    /// TCP segment size of the first connection, in bytes; `None` if unknown.
    pub segment_bytes: Option<u32>,
}

/// Receives notifications about the progress of a load.
pub trait Observer {
    /// Called when a run begins.
    fn begins(&mut self, _run: usize) {}
    /// Called when a run has ended.
    fn ends(&mut self, _run: usize) {}
    /// Called about every half second during a run, with the latencies since the last call, the time since
    /// the last call, and the number of operations done in this run.
    fn progress(&mut self, _run: usize, _recent: &Histogram, _over: Duration, _done: u64) {}
}

/// An observer that does nothing.
pub struct Nobody;

impl Observer for Nobody {}

#[derive(Default)]
struct Shared {
    next: AtomicU64,
    done: AtomicU64,
    stop: AtomicBool,
    recent: Mutex<Option<Histogram>>,
}

enum Order {
    Prepare,
    Run { start: Instant, began: SystemTime, duration: Option<Duration>, total: u64 },
}

struct Ran {
    series: Vec<Series>,
    last: Instant,
    cpu: Duration,
    starved: Duration,
    lost: u64,
    timers: u64,
    segment_bytes: Option<u32>,
}

impl Ran {
    /// Adds the measurements that another thread made in the same run.
    fn add(&mut self, part: Ran) {
        self.last = self.last.max(part.last);
        self.cpu += part.cpu;
        self.starved += part.starved;
        self.lost += part.lost;
        self.timers += part.timers;
        self.segment_bytes = self.segment_bytes.or(part.segment_bytes);
        if self.series.is_empty() {
            self.series = part.series;
        } else {
            self.series.iter_mut().zip(part.series).for_each(|(all, more)| all.add(more));
        }
    }
}

/// Runs a load, and returns a [`Run`] for each repetition. `make` creates the workload for a thread, given
/// its index.
pub fn measure<W: Workload>(
    plan: &Plan,
    target: &Target,
    make: impl Fn(usize) -> W,
    observer: &mut dyn Observer,
) -> Result<Vec<Run>, Error> {
    let threads = plan.threads.clamp(1, plan.connections.max(1));
    let shared = Shared::default();
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for thread in 0..threads {
            let (orders, inbox) = channel();
            let (replies, answers) = channel();
            let (workload, shared, target, plan) = (make(thread), &shared, target.clone(), plan.clone());
            std::thread::Builder::new()
                .name(format!("load {thread}"))
                .spawn_scoped(scope, move || {
                    worker(workload, thread, threads, &plan, target, shared, &inbox, &replies)
                })
                .map_err(Error::NoThread)?;
            workers.push((orders, answers));
        }
        let result = conduct(plan, &shared, &workers, observer);
        shared.stop.store(true, Ordering::Relaxed);
        // Dropping the workers closes the channels for orders, which ends the threads.
        drop(workers);
        result
    })
}

type Worker = (Sender<Order>, Receiver<Result<Option<Ran>, Error>>);

fn conduct(
    plan: &Plan,
    shared: &Shared,
    workers: &[Worker],
    observer: &mut dyn Observer,
) -> Result<Vec<Run>, Error> {
    // Wait twice: until all threads have connected, and then until they have prepared their clients. So no
    // client's preparation is measured.
    all_ready(workers)?;
    order_all(workers, || Order::Prepare)?;
    all_ready(workers)?;
    let mut runs = Vec::new();
    if !plan.warmup.is_zero() {
        one_run(plan, Some(plan.warmup), shared, workers, &mut |_, _, _| {})?;
    }
    for run in 0..plan.repeat {
        observer.begins(run);
        let measured = one_run(plan, plan.duration, shared, workers, &mut |recent, over, done| {
            observer.progress(run, recent, over, done);
        })?;
        observer.ends(run);
        runs.push(measured);
    }
    Ok(runs)
}

/// Sends an order to each thread.
fn order_all(workers: &[Worker], order: impl Fn() -> Order) -> Result<(), Error> {
    for (orders, _) in workers {
        orders.send(order()).map_err(|_| Error::ThreadGone)?;
    }
    Ok(())
}

/// Waits until each thread has carried out its last order.
fn all_ready(workers: &[Worker]) -> Result<(), Error> {
    for (_, answers) in workers {
        answers.recv().map_err(|_| Error::ThreadGone)??;
    }
    Ok(())
}

/// Runs the load once in all threads, and adds up their measurements. Calls `progress` every half second with
/// the latencies since the last call, the time since the last call, and the number of operations done so far.
fn one_run(
    plan: &Plan,
    duration: Option<Duration>,
    shared: &Shared,
    workers: &[Worker],
    progress: &mut dyn FnMut(&Histogram, Duration, u64),
) -> Result<Run, Error> {
    shared.next.store(0, Ordering::Relaxed);
    shared.done.store(0, Ordering::Relaxed);
    let (start, began) = (Instant::now(), SystemTime::now());
    let total = match (duration, plan.schedule) {
        (None, _) => plan.total,
        // Under an open schedule, the total is the number of operations that are due within the duration.
        (Some(time), Schedule::Open(rate)) => (time.as_secs_f64() * rate).ceil() as u64,
        (Some(_), _) => u64::MAX,
    };
    order_all(workers, || Order::Run { start, began, duration, total })?;
    let mut ran = Ran {
        series: Vec::new(),
        last: start,
        cpu: Duration::ZERO,
        starved: Duration::ZERO,
        lost: 0,
        timers: 0,
        segment_bytes: None,
    };
    let mut busiest = Duration::ZERO;
    let mut looked = Instant::now();
    for (_, answers) in workers {
        let part = loop {
            match answers.recv_timeout(Duration::from_millis(500)) {
                Ok(answer) => break answer?.ok_or(Error::ThreadGone)?,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    let recent = shared.recent.lock().unwrap_or_else(PoisonError::into_inner).take();
                    let recent = recent.unwrap_or_else(|| Histogram::new(Histogram::COARSE));
                    progress(&recent, looked.elapsed(), shared.done.load(Ordering::Relaxed));
                    looked = Instant::now();
                }
                Err(_) => return Err(Error::ThreadGone),
            }
        };
        busiest = busiest.max(part.cpu);
        ran.add(part);
    }
    // With a duration, use all of it to compute the rate, even if the last response came earlier.
    let elapsed = (ran.last - start).max(duration.unwrap_or_default());
    Ok(Run {
        series: ran.series,
        began,
        elapsed,
        generator: Generator {
            cpu: ran.cpu,
            starved: ran.starved,
            busiest: busiest.as_secs_f64() / elapsed.as_secs_f64().max(1e-9),
            lost: ran.lost,
            timers: ran.timers,
            segment_bytes: ran.segment_bytes,
        },
    })
}

#[allow(clippy::too_many_arguments)]
fn worker<W: Workload>(
    workload: W,
    thread: usize,
    threads: usize,
    plan: &Plan,
    target: Target,
    shared: &Shared,
    orders: &Receiver<Order>,
    replies: &Sender<Result<Option<Ran>, Error>>,
) {
    let share = |count: usize| (count + threads - 1 - thread) / threads;
    let connections = share(plan.connections);
    // Client c uses connection c mod `connections`, as in etcd's tool. Each thread gets the clients of its
    // connections.
    let clients = (0..plan.clients).filter(|client| client % plan.connections % threads == thread);
    let clients: Vec<usize> = clients.map(|client| client % plan.connections / threads).collect();
    let mut calls = match Calls::open(target, connections) {
        Ok(calls) => calls,
        Err(error) => {
            let _ = replies.send(Err(Error::Dial(error)));
            return;
        }
    };
    if replies.send(Ok(None)).is_err() {
        return;
    }
    let series = workload.series();
    let mut driver = Driver {
        workload,
        slots: clients
            .into_iter()
            .map(|connection| Slot {
                connection,
                client: W::Client::default(),
                started: Instant::now(),
                open: None,
            })
            .collect(),
        idle: Vec::new(),
        request: Request { method: Rpc::KvPut, message: Vec::new(), keep: false },
        preparing: false,
        failed: None,
        shared,
        thread: thread as u64,
        threads: threads as u64,
        schedule: plan.schedule,
        start: Instant::now(),
        began: 0.0,
        until: None,
        total: 0,
        next: 0,
        token: Instant::now(),
        outstanding: 0,
        last: Instant::now(),
        series: Vec::new(),
        recent: Histogram::new(Histogram::COARSE),
        pushed: Instant::now(),
    };
    while let Ok(order) = orders.recv() {
        let reply = match order {
            Order::Prepare => driver.prepare(&mut calls, plan.drain_max).map(|()| None),
            Order::Run { start, began, duration, total } => {
                driver.series = (0..series).map(|_| Series::default()).collect();
                driver.start = start;
                driver.began = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
                driver.until = duration.map(|time| start + time);
                driver.total = total;
                driver.run(&mut calls, plan).map(Some)
            }
        };
        if replies.send(reply).is_err() {
            return;
        }
    }
}

struct Slot<C> {
    connection: usize,
    client: C,
    started: Instant,
    /// Index of the real connection that carries the client's open stream; `None` if it has none.
    open: Option<usize>,
}

struct Driver<'a, W: Workload> {
    workload: W,
    slots: Vec<Slot<W::Client>>,
    /// Idle clients, as a stack: the last one, which became idle most recently, begins the next operation.
    idle: Vec<usize>,
    request: Request,
    preparing: bool,
    failed: Option<Error>,
    shared: &'a Shared,
    thread: u64,
    threads: u64,
    schedule: Schedule,
    start: Instant,
    /// Unix time at which the run started.
    began: f64,
    until: Option<Instant>,
    total: u64,
    /// Number of this thread's next operation, if operations begin at fixed times.
    next: u64,
    token: Instant,
    outstanding: usize,
    last: Instant,
    series: Vec<Series>,
    recent: Histogram,
    pushed: Instant,
}

/// Shortest time for which a thread sleeps until an operation is due under an open schedule. Operations that
/// become due meanwhile begin together, if no response wakes the thread before. So at more than 10,000
/// operations per second they begin up to this late, which their latencies include. A timer for each
/// operation would occupy a processor with nothing but timers at some 60,000 per second.
pub const SLEEP_MIN: Duration = Duration::from_micros(100);

/// Longest duration of a turn. A timer or a response ends a turn earlier.
const TURN: Duration = Duration::from_millis(200);

impl<W: Workload> Driver<'_, W> {
    fn prepare(&mut self, calls: &mut Calls, longest: Duration) -> Result<(), Error> {
        self.preparing = true;
        for at in 0..self.slots.len() {
            let step = self.workload.prepare(&mut self.slots[at].client, None, self.request.clear());
            self.outstanding += 1;
            self.step(calls, at, step);
        }
        let deadline = Instant::now() + longest;
        while self.outstanding > 0 && self.failed.is_none() {
            if Instant::now() > deadline {
                return Err(Error::NotPrepared);
            }
            calls.turn(TURN, self).map_err(Error::Poll)?;
        }
        self.preparing = false;
        self.failed.take().map_or(Ok(()), Err)
    }

    fn run(&mut self, calls: &mut Calls, plan: &Plan) -> Result<Ran, Error> {
        let (cpu, starved) = thread_times();
        let (lost, timers) = (calls.lost, calls.timers);
        self.next = self.thread;
        self.token = self.start;
        self.last = self.start;
        self.idle = (0..self.slots.len()).rev().collect();
        self.outstanding = 0;
        self.dispatch(calls);
        let mut drain: Option<Instant> = None;
        while self.outstanding > 0 || self.more(Instant::now()) {
            calls.turn(TURN, self).map_err(Error::Poll)?;
            if self.shared.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let now = Instant::now();
            // Under an open schedule, operations that became due while no client was free must still begin,
            // but only for `drain_max`.
            let over = self.until.is_some_and(|until| now >= until) || !self.more(now);
            if over && now > *drain.get_or_insert(now + plan.drain_max) {
                let left = if let Schedule::Open(_) = self.schedule { self.unserved() } else { 0 };
                if left == 0 {
                    return Err(Error::Unanswered {
                        operations: self.outstanding,
                        seconds: plan.drain_max.as_secs(),
                    });
                }
                // The server was too slow for the rate. Count the operations that have not begun as failed.
                for _ in 0..left {
                    self.note(0, now, now, Err(Error::NotBegun));
                }
                self.total = self.next;
                drain = None;
            }
        }
        self.push();
        let (cpu_after, starved_after) = thread_times();
        Ok(Ran {
            series: std::mem::take(&mut self.series),
            last: self.last,
            cpu: cpu_after.saturating_sub(cpu),
            starved: starved_after.saturating_sub(starved),
            lost: calls.lost - lost,
            timers: calls.timers - timers,
            segment_bytes: calls.segment_bytes(),
        })
    }

    fn unserved(&self) -> u64 {
        self.total.saturating_sub(self.next).div_ceil(self.threads)
    }

    /// Returns true if this thread still has to begin operations in this run.
    fn more(&self, now: Instant) -> bool {
        match self.schedule {
            Schedule::Open(_) => self.next < self.total,
            _ => {
                self.until.is_none_or(|until| now < until)
                    && self.shared.next.load(Ordering::Relaxed) < self.total
            }
        }
    }

    /// Begins the operations that are due, while there are idle clients. Sets the timer for the next
    /// operation.
    fn dispatch(&mut self, calls: &mut Calls) {
        while let Some(&at) = self.idle.last() {
            let now = Instant::now();
            let (number, started) = match self.schedule {
                Schedule::Flat => {
                    if self.until.is_some_and(|until| now >= until) {
                        return;
                    }
                    let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
                    if number >= self.total {
                        return;
                    }
                    (number, now)
                }
                Schedule::Open(rate) => {
                    if self.next >= self.total {
                        return;
                    }
                    let due = self.start + Duration::from_secs_f64(self.next as f64 / rate);
                    if due > now {
                        // Ignore an error: without the timer, the thread checks less often which operations
                        // are due.
                        let _ = calls.wake_at(now, due.max(now + SLEEP_MIN));
                        return;
                    }
                    self.next += self.threads;
                    (self.next - self.threads, due)
                }
                Schedule::Paced(rate) => {
                    if self.until.is_some_and(|until| now >= until) {
                        return;
                    }
                    if self.token > now {
                        let _ = calls.wake_at(now, self.token);
                        return;
                    }
                    let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
                    if number >= self.total {
                        return;
                    }
                    let interval = Duration::from_secs_f64(self.threads as f64 / rate);
                    // Keep at most one unused token, so that operations do not begin in a burst after a
                    // pause.
                    self.token = self.token.max(now.checked_sub(interval).unwrap_or(now)) + interval;
                    (number, now)
                }
            };
            self.idle.pop();
            let slot = &mut self.slots[at];
            slot.started = started;
            self.outstanding += 1;
            let step = self.workload.begin(&mut slot.client, number, self.request.clear());
            self.step(calls, at, step);
        }
    }

    fn step(&mut self, calls: &mut Calls, at: usize, step: Step) {
        match step {
            Step::Call => {
                let slot = &self.slots[at];
                let request = &self.request;
                calls.call(slot.connection, request.method, &request.message, at as u64, request.keep);
            }
            Step::Open => {
                let slot = &mut self.slots[at];
                let request = &self.request;
                let link = calls.open_stream(slot.connection, request.method, &request.message, at as u64);
                slot.open = Some(link);
            }
            Step::Done(series, result) => {
                self.outstanding -= 1;
                if self.preparing {
                    if let Err(error) = result {
                        self.failed.get_or_insert(error);
                    }
                    return;
                }
                let slot = &mut self.slots[at];
                let started = slot.started;
                self.note(series, Instant::now(), started, result);
                self.idle.push(at);
            }
        }
    }

    fn note(&mut self, series: usize, now: Instant, started: Instant, result: Result<(), Error>) {
        self.last = self.last.max(now);
        let latency = now.saturating_duration_since(started).as_nanos() as u64;
        let second = (self.began + started.saturating_duration_since(self.start).as_secs_f64()) as i64;
        let Some(series) = self.series.get_mut(series) else { return };
        match result {
            Ok(()) => {
                series.record(second, latency);
                self.recent.record(latency);
            }
            Err(error) => series.fail(error.to_string()),
        }
        if now.saturating_duration_since(self.pushed) > TURN {
            self.pushed = now;
            self.push();
        }
    }

    /// Passes the measurements since the last call to the observer's thread.
    fn push(&mut self) {
        self.shared.done.fetch_add(self.recent.count(), Ordering::Relaxed);
        let recent = std::mem::replace(&mut self.recent, Histogram::new(Histogram::COARSE));
        let mut all = self.shared.recent.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *all {
            Some(all) => all.add(&recent),
            None => *all = Some(recent),
        }
    }
}

impl Request {
    fn clear(&mut self) -> &mut Self {
        self.message.clear();
        self.keep = false;
        self
    }
}

impl<W: Workload> Handler for Driver<'_, W> {
    fn message(&mut self, calls: &mut Calls, tag: u64, body: &[u8]) {
        let Some(slot) = self.slots.get_mut(tag as usize) else { return };
        if self.workload.message(&mut slot.client, body)
            && let Some(link) = slot.open
        {
            calls.cancel(link, tag);
            self.ended(calls, tag, Status::default());
        }
    }

    fn ended(&mut self, calls: &mut Calls, tag: u64, status: Status) {
        let at = tag as usize;
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.open = None;
        let request = self.request.clear();
        let step = if self.preparing {
            self.workload.prepare(&mut slot.client, Some(&status), request)
        } else {
            self.workload.answered(&mut slot.client, &status, request)
        };
        self.step(calls, at, step);
        if !self.preparing {
            self.dispatch(calls);
        }
    }

    fn turned(&mut self, calls: &mut Calls) {
        if !self.preparing {
            self.dispatch(calls);
        }
    }
}

/// Returns the CPU time of this thread, and the time for which it has waited for a CPU, both since its start.
/// Returns zero if the kernel does not report them.
pub fn thread_times() -> (Duration, Duration) {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let mut nanos = told.split_ascii_whitespace().map(|word| Duration::from_nanos(word.parse().unwrap_or(0)));
    (nanos.next().unwrap_or_default(), nanos.next().unwrap_or_default())
}
