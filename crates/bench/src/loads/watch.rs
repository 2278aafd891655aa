//! Defines the loads of `watch`, `watch-get` and `watch-latency`. Each uses only one thread, because it
//! measures when events arrive, and not how many calls are possible.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::loadgen::calls::{Calls, Handler, Target};
use crate::loadgen::drive::outcome;
use crate::loadgen::samples::Series;
use crate::loadgen::status::Status;
use crate::loadgen::wire::{Fields, Message};
use api::Rpc;

use super::random_from_clock;
use crate::Error;

/// Bit in the tags of unary calls. Tags without this bit belong to watch streams.
const UNARY: u64 = 1 << 63;
const TURN: Duration = Duration::from_millis(100);

fn unix_second() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64)
}

/// Measurements of one kind, and how long the measuring took.
pub type Measured = (Series, Duration);

/// Watch streams, and the events and responses that have arrived and are not handled yet.
struct Watching {
    /// For each stream, the index of the connection that carries it; `None` if the stream is not open.
    links: Vec<Option<usize>>,
    /// For each creation of a watch that the server has confirmed: the index of the stream.
    created: Vec<usize>,
    /// Events that arrived in one message: the stream, the watch on this stream, the number of events, and
    /// the arrival time.
    events: Vec<(usize, usize, usize, Instant)>,
    /// Tags and results of unary calls that have ended.
    answers: Vec<(u64, Result<(), crate::loadgen::Error>)>,
    bodies: Vec<(u64, i64)>,
    failed: Option<Error>,
}

impl Watching {
    fn new(streams: usize) -> Self {
        Self {
            links: vec![None; streams],
            created: Vec::new(),
            events: Vec::new(),
            answers: Vec::new(),
            bodies: Vec::new(),
            failed: None,
        }
    }

    /// Requests another watch on a stream. Opens the stream if it is not open.
    fn create(&mut self, calls: &mut Calls, stream: usize, key: &[u8], revision: i64, prev_kv: bool) {
        let mut message = Vec::new();
        Message(&mut message).message(1, |create| {
            create.bytes(1, key).int(3, revision).flag(6, prev_kv);
        });
        match self.links[stream] {
            Some(link) => {
                calls.send(link, stream as u64, &message);
            }
            None => {
                let connection = stream % calls.connections();
                self.links[stream] = Some(calls.open_stream(connection, Rpc::Watch, &message, stream as u64));
            }
        }
    }

    fn turn(&mut self, calls: &mut Calls, deadline: Instant) -> Result<(), Error> {
        calls.turn(TURN, self).map_err(crate::loadgen::Error::Poll)?;
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if Instant::now() > deadline { Err(Error::NoEvent) } else { Ok(()) }
    }
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

impl Handler for Watching {
    fn message(&mut self, _: &mut Calls, tag: u64, body: &[u8]) {
        if tag & UNARY != 0 {
            self.bodies.push((tag, Fields(Fields(body).bytes(1)).number(3) as i64));
            return;
        }
        let answer = Fields(body);
        if answer.number(4) != 0 {
            self.failed = Some(Error::WatchCanceled(String::from_utf8_lossy(answer.bytes(6)).into_owned()));
        } else if answer.number(3) != 0 {
            self.created.push(tag as usize);
        } else {
            let count = answer.filter(|(field, _)| *field == 11).count();
            if count > 0 {
                self.events.push((tag as usize, answer.number(2) as usize, count, Instant::now()));
            }
        }
    }

    fn ended(&mut self, _: &mut Calls, tag: u64, status: Status) {
        if tag & UNARY != 0 {
            self.answers.push((tag, outcome(&status)));
        } else {
            self.failed = Some(Error::WatchEnded(status));
        }
    }

    fn turned(&mut self, _: &mut Calls) {}
}

/// A rate limiter that allows bursts: operations that were allowed but not made can be made up later, up to
/// `burst` of them at a time.
struct Pace {
    interval: Duration,
    burst: u32,
    next: Instant,
}

impl Pace {
    fn new(rate: u64, burst: u64) -> Option<Self> {
        let (now, burst) = (Instant::now(), u32::try_from(burst.max(1)).unwrap_or(u32::MAX));
        let interval = Duration::from_secs_f64(1.0 / rate.max(1) as f64);
        // Allow a full burst at the start.
        let next = now.checked_sub(interval * (burst - 1)).unwrap_or(now);
        (rate > 0).then_some(Self { interval, burst, next })
    }

    /// Takes a token for an operation. If there is none, returns the time at which there will be one.
    fn take(&mut self, now: Instant) -> Result<(), Instant> {
        if self.next > now {
            return Err(self.next);
        }
        let saved = self.interval * (self.burst - 1);
        self.next = self.next.max(now.checked_sub(saved).unwrap_or(now)) + self.interval;
        Ok(())
    }
}

/// The load of `watch`: measures the creation of watches, and the handling of their events.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Number of streams.
    pub streams: usize,
    /// Number of watches on each stream.
    pub per_stream: usize,
    /// Watched keys, which are assigned to the watches in turn.
    pub keys: Vec<Vec<u8>>,
    /// Puts per second; 0 for no limit.
    pub put_rate: u64,
    /// Number of puts.
    pub put_total: u64,
    /// Number of clients that put keys concurrently.
    pub clients: usize,
}

impl Watch {
    /// Creates the watches; on each stream one after the other, because etcd's tool also waits for each watch
    /// before it requests the next. Calls `between`. Then puts keys, and measures how long handling each
    /// event takes. Returns the measurements of the creations and of the events.
    pub fn run(
        &self,
        target: Target,
        connections: usize,
        between: impl FnOnce(),
    ) -> Result<[Measured; 2], Error> {
        let mut calls = Calls::open(target, connections).map_err(crate::loadgen::Error::Dial)?;
        let mut watching = Watching::new(self.streams);
        let watchers = self.streams * self.per_stream;
        let mut series = Series::default();
        let began = Instant::now();
        let mut asked: Vec<(usize, Instant)> = Vec::new();
        let mut number = 0;
        for stream in 0..self.streams.min(watchers) {
            watching.create(&mut calls, stream, &self.keys[number % self.keys.len()], 0, false);
            number += 1;
            asked.push((1, Instant::now()));
        }
        let mut left = watchers;
        let mut until = deadline();
        while left > 0 {
            watching.turn(&mut calls, until)?;
            for stream in std::mem::take(&mut watching.created) {
                until = deadline();
                left -= 1;
                let (count, since) = &mut asked[stream];
                series.record(unix_second(), since.elapsed().as_nanos() as u64);
                if *count < self.per_stream {
                    *count += 1;
                    *since = Instant::now();
                    watching.create(&mut calls, stream, &self.keys[number % self.keys.len()], 0, false);
                    number += 1;
                }
            }
        }
        let made = (series, began.elapsed());
        between();
        // The keys were assigned to the watches in turn, so the numbers of watches per key differ by at most
        // one.
        let watchers_of = |key: usize| (watchers + self.keys.len() - 1 - key) / self.keys.len();
        let events: usize = (0..self.put_total).map(|put| watchers_of(put as usize % self.keys.len())).sum();
        Ok([made, self.put(&mut calls, &mut watching, events)?])
    }

    fn put(&self, calls: &mut Calls, watching: &mut Watching, events: usize) -> Result<Measured, Error> {
        let mut series = Series::default();
        let began = Instant::now();
        let mut pace = Pace::new(self.put_rate, 1);
        let (mut put, mut free, mut left) = (0_u64, self.clients, events);
        let mut message = Vec::new();
        let mut until = deadline();
        // Wait for the responses to all puts, even if there are no more events to wait for. Otherwise a late
        // put could affect the next run.
        while left > 0 || put < self.put_total || free < self.clients {
            while free > 0 && put < self.put_total {
                let now = Instant::now();
                if let Some(Err(later)) = pace.as_mut().map(|pace| pace.take(now)) {
                    calls.wake_at(now, later).map_err(crate::loadgen::Error::Poll)?;
                    break;
                }
                message.clear();
                Message(&mut message).bytes(1, &self.keys[put as usize % self.keys.len()]).bytes(2, b"data");
                calls.call(free % calls.connections(), Rpc::KvPut, &message, UNARY | put, false);
                put += 1;
                free -= 1;
            }
            watching.turn(calls, until)?;
            for (_, answer) in watching.answers.drain(..) {
                answer.map_err(Error::Put)?;
                free += 1;
                until = deadline();
            }
            watching.bodies.clear();
            for (_, _, count, _) in watching.events.drain(..) {
                until = deadline();
                // Start measuring only now, after the message was received, as etcd's tool does.
                let (start, second) = (Instant::now(), unix_second());
                for _ in 0..count.min(left) {
                    series.record(second, start.elapsed().as_nanos() as u64);
                }
                left = left.saturating_sub(count);
            }
        }
        Ok((series, began.elapsed()))
    }
}

/// The load of `watch-get`: one client makes serializable reads while many watches catch up on old events.
#[derive(Clone, Copy, Debug)]
pub struct WatchGet {
    /// Number of watches.
    pub watchers: usize,
    /// Number of streams.
    pub streams: usize,
    /// Number of events that each watch has to catch up on.
    pub events: usize,
}

impl WatchGet {
    /// Runs the load. Returns the measurements of the reads.
    pub fn run(&self, target: Target, connections: usize) -> Result<Measured, Error> {
        let mut calls = Calls::open(target.clone(), connections).map_err(crate::loadgen::Error::Dial)?;
        let mut reader = Calls::open(target, 1).map_err(crate::loadgen::Error::Dial)?;
        let mut watching = Watching::new(self.streams);
        let mut revision = 0;
        let mut message = Vec::new();
        let until = deadline();
        for event in 0..self.events {
            message.clear();
            Message(&mut message).bytes(1, b"watchkey").bytes(2, event.to_string().as_bytes());
            calls.call(0, Rpc::KvPut, &message, UNARY, true);
            while watching.answers.is_empty() {
                watching.turn(&mut calls, until)?;
            }
            if let Some((_, answer)) = watching.answers.pop() {
                answer.map_err(Error::Put)?;
            }
            if let Some((_, at)) = watching.bodies.pop()
                && event == 0
            {
                revision = at;
            }
        }
        let mut series = Series::default();
        let began = Instant::now();
        for watcher in 0..self.watchers {
            watching.create(&mut calls, watcher % self.streams, b"watchkey", revision, false);
        }
        let mut left: usize = self.watchers * self.events;
        let mut until = deadline();
        message.clear();
        Message(&mut message).bytes(1, b"abc").flag(7, true);
        let mut reads = Watching::new(0);
        let mut since: Option<Instant> = None;
        while left > 0 {
            let start = *since.get_or_insert_with(|| {
                reader.call(0, Rpc::KvRange, &message, UNARY, false);
                Instant::now()
            });
            // Poll the reads and the watches in turn, so that each of them waits at most for one turn of the
            // other.
            reader.turn(Duration::from_millis(1), &mut reads).map_err(crate::loadgen::Error::Poll)?;
            reads.bodies.clear();
            if let Some((_, answer)) = reads.answers.pop() {
                match answer {
                    Ok(()) => series.record(unix_second(), start.elapsed().as_nanos() as u64),
                    Err(error) => series.fail(error.to_string()),
                }
                since = None;
            }
            calls.turn(Duration::ZERO, &mut watching).map_err(crate::loadgen::Error::Poll)?;
            if let Some(error) = watching.failed.take() {
                return Err(error);
            }
            watching.created.clear();
            for (_, _, count, _) in watching.events.drain(..) {
                left = left.saturating_sub(count);
                until = deadline();
            }
            if Instant::now() > until {
                return Err(Error::NoEvent);
            }
        }
        Ok((series, began.elapsed()))
    }
}

/// The load of `watch-latency`: measures the time from the response to a put until each of the watches has
/// received its event.
#[derive(Clone, Copy, Debug)]
pub struct WatchLatency {
    /// Number of streams.
    pub streams: usize,
    /// Number of watches on each stream.
    pub per_stream: usize,
    /// True if events contain the previous value of the key.
    pub prev_kv: bool,
    /// Number of puts.
    pub put_total: u64,
    /// Puts per second.
    pub put_rate: u64,
    /// Size of the key in bytes.
    pub key_bytes: usize,
    /// Size of the value in bytes.
    pub value_bytes: usize,
}

impl WatchLatency {
    /// Runs the load. Returns the measurements of the puts and of the events.
    pub fn run(&self, target: Target, connections: usize) -> Result<[Measured; 2], Error> {
        let mut random = random_from_clock(3);
        let (key, value) = (random.bytes(self.key_bytes), random.bytes(self.value_bytes));
        let mut calls = Calls::open(target.clone(), connections).map_err(crate::loadgen::Error::Dial)?;
        let mut watching = Watching::new(self.streams);
        for stream in 0..self.streams {
            for _ in 0..self.per_stream {
                watching.create(&mut calls, stream, &key, 0, self.prev_kv);
            }
        }
        let watchers = self.streams * self.per_stream;
        let (mut created, until) = (0, deadline());
        while created < watchers {
            watching.turn(&mut calls, until)?;
            created += watching.created.drain(..).count();
        }
        let mut puts = Series::default();
        let mut answered: Vec<Instant> = Vec::new();
        // Arrival times of the events, by stream and watch; for each watch in the order of the puts.
        let mut came: Vec<Vec<Vec<Instant>>> = vec![vec![Vec::new(); self.per_stream]; self.streams];
        let mut pace = Pace::new(self.put_rate, self.put_rate);
        let (began, mut until) = (Instant::now(), deadline());
        let mut left = self.put_total as usize * watchers;
        let (mut put, mut since) = (0, None);
        let mut puts_took = Duration::ZERO;
        let mut message = Vec::new();
        Message(&mut message).bytes(1, &key).bytes(2, &value);
        while left > 0 || since.is_some() {
            if since.is_none() && put < self.put_total {
                let now = Instant::now();
                match pace.as_mut().map_or(Ok(()), |pace| pace.take(now)) {
                    Ok(()) => {
                        put += 1;
                        since = Some(now);
                        calls.call(0, Rpc::KvPut, &message, UNARY, false);
                    }
                    Err(later) => calls.wake_at(now, later).map_err(crate::loadgen::Error::Poll)?,
                }
            }
            watching.turn(&mut calls, until)?;
            watching.bodies.clear();
            if let Some((_, answer)) = watching.answers.pop() {
                answer.map_err(Error::LatencyPut)?;
                let now = Instant::now();
                answered.push(now);
                if let Some(start) = since.take() {
                    puts.record(unix_second(), (now - start).as_nanos() as u64);
                }
                puts_took = began.elapsed();
                until = deadline();
            }
            for (stream, watch, count, at) in watching.events.drain(..) {
                until = deadline();
                let times = came.get_mut(stream).and_then(|watches| watches.get_mut(watch));
                let times = times.ok_or(Error::UnknownWatch)?;
                times.extend(std::iter::repeat_n(at, count));
                left = left.saturating_sub(count);
            }
        }
        let mut events = Series::default();
        for times in came.iter().flatten() {
            for (event, put) in times.iter().zip(&answered) {
                // An event may arrive before the response to its put. In this case its latency counts as 0.
                events.record(unix_second(), event.saturating_duration_since(*put).as_nanos() as u64);
            }
        }
        Ok([(puts, puts_took), (events, began.elapsed())])
    }
}
