//! `watch`, `watch-get` and `watch-latency`. They run in one thread: what counts is when events come.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::Rpc;
use loadgen::calls::{Calls, Handler, Target};
use loadgen::drive::outcome;
use loadgen::samples::Series;
use loadgen::status::Status;
use loadgen::wire::{Fields, Message};

use super::random_from_clock;
use crate::Error;

/// Calls of this kind have this bit in their tag; the others are streams of watches.
const UNARY: u64 = 1 << 63;
const TURN: Duration = Duration::from_millis(100);

fn unix_second() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64)
}

/// What a measurement gave: a series, and how long it took.
pub type Measured = (Series, Duration);

/// The streams that watch, and what came on them.
struct Watching {
    /// Where each stream is, once it is open.
    links: Vec<Option<usize>>,
    /// Answers to creations, each with its stream, not taken yet.
    created: Vec<usize>,
    /// Events that came at once: stream, watch on it, how many, when.
    events: Vec<(usize, usize, usize, Instant)>,
    /// Unary calls that ended.
    answers: Vec<(u64, Result<(), loadgen::Error>)>,
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

    /// Asks for one more watch on a stream.
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
        calls.turn(TURN, self).map_err(loadgen::Error::Poll)?;
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

/// Lets through so many per second, some at once if they were not used.
struct Pace {
    interval: Duration,
    burst: u32,
    next: Instant,
}

impl Pace {
    fn new(rate: u64, burst: u64) -> Option<Self> {
        let (now, burst) = (Instant::now(), u32::try_from(burst.max(1)).unwrap_or(u32::MAX));
        let interval = Duration::from_secs_f64(1.0 / rate.max(1) as f64);
        // What may be saved up is there from the start.
        let next = now.checked_sub(interval * (burst - 1)).unwrap_or(now);
        (rate > 0).then_some(Self { interval, burst, next })
    }

    /// Takes a token, or says when there is one.
    fn take(&mut self, now: Instant) -> Result<(), Instant> {
        if self.next > now {
            return Err(self.next);
        }
        let saved = self.interval * (self.burst - 1);
        self.next = self.next.max(now.checked_sub(saved).unwrap_or(now)) + self.interval;
        Ok(())
    }
}

/// `watch`
#[derive(Clone, Debug)]
pub struct Watch {
    /// How many streams.
    pub streams: usize,
    /// How many watches each has.
    pub per_stream: usize,
    /// The keys watched.
    pub keys: Vec<Vec<u8>>,
    /// Puts per second, 0 for no limit.
    pub put_rate: u64,
    /// How many puts.
    pub put_total: u64,
    /// How many clients put.
    pub clients: usize,
}

impl Watch {
    /// Creates the watches: one after the other on each stream, since the client that etcd's tool uses waits for each.
    /// Then puts; each event is noted with the time it took to take it up. Gives the measurements of both.
    /// `between` is called when the watches are made.
    pub fn run(
        &self,
        target: Target,
        connections: usize,
        between: impl FnOnce(),
    ) -> Result<[Measured; 2], Error> {
        let mut calls = Calls::open(target, connections).map_err(loadgen::Error::Dial)?;
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
        // Every key has as many watchers as come to it in turn.
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
        // All puts, though the last of them may be of keys that nobody watches: the next run must not see them.
        while left > 0 || put < self.put_total || free < self.clients {
            while free > 0 && put < self.put_total {
                let now = Instant::now();
                if let Some(Err(later)) = pace.as_mut().map(|pace| pace.take(now)) {
                    calls.wake_at(now, later).map_err(loadgen::Error::Poll)?;
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
                // As in etcd's tool: from taking a response up to having counted its event.
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

/// `watch-get`: serializable reads by one client while many watches catch up with the past.
#[derive(Clone, Copy, Debug)]
pub struct WatchGet {
    /// How many watches.
    pub watchers: usize,
    /// Over how many streams.
    pub streams: usize,
    /// How many events each has to catch up with.
    pub events: usize,
}

impl WatchGet {
    /// Gives the measurement of the reads.
    pub fn run(&self, target: Target, connections: usize) -> Result<Measured, Error> {
        let mut calls = Calls::open(target.clone(), connections).map_err(loadgen::Error::Dial)?;
        let mut reader = Calls::open(target, 1).map_err(loadgen::Error::Dial)?;
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
            // Both are looked at in turn: neither waits for the other longer than a turn takes.
            reader.turn(Duration::from_millis(1), &mut reads).map_err(loadgen::Error::Poll)?;
            reads.bodies.clear();
            if let Some((_, answer)) = reads.answers.pop() {
                match answer {
                    Ok(()) => series.record(unix_second(), start.elapsed().as_nanos() as u64),
                    Err(error) => series.fail(error.to_string()),
                }
                since = None;
            }
            calls.turn(Duration::ZERO, &mut watching).map_err(loadgen::Error::Poll)?;
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

/// `watch-latency`: from the answer to a put until its event is at each watcher.
#[derive(Clone, Copy, Debug)]
pub struct WatchLatency {
    /// How many streams.
    pub streams: usize,
    /// How many watches each has.
    pub per_stream: usize,
    /// True if events carry what was before.
    pub prev_kv: bool,
    /// How many puts.
    pub put_total: u64,
    /// How many per second.
    pub put_rate: u64,
    /// Of the key.
    pub key_bytes: usize,
    /// Of the value.
    pub value_bytes: usize,
}

impl WatchLatency {
    /// Gives the measurements of the puts and of the events.
    pub fn run(&self, target: Target, connections: usize) -> Result<[Measured; 2], Error> {
        let mut random = random_from_clock(3);
        let (key, value) = (random.bytes(self.key_bytes), random.bytes(self.value_bytes));
        let mut calls = Calls::open(target.clone(), connections).map_err(loadgen::Error::Dial)?;
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
        // When each watcher's events came, in order: they come in the order of the puts.
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
                    Err(later) => calls.wake_at(now, later).map_err(loadgen::Error::Poll)?,
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
                // An event may be here before the answer to the put is.
                events.record(unix_second(), event.saturating_duration_since(*put).as_nanos() as u64);
            }
        }
        Ok([(puts, puts_took), (events, began.elapsed())])
    }
}
