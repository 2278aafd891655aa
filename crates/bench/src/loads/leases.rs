//! Defines the loads of `leases`: many leases are granted, renewed at a fixed rate, or end together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::Rpc;

use crate::Error;
use crate::loadgen::calls::{Calls, Handler, Target};
use crate::loadgen::drive::{Request, Step, Workload, done};
use crate::loadgen::samples::Series;
use crate::loadgen::status::Status;
use crate::loadgen::wire::{Fields, Message};

/// Prefix of the keys that are attached to the sampled leases.
const SAMPLE_PREFIX: &[u8] = b"lease-sample/";
/// Longest wait of a thread that measures for the next message or the next due operation.
const TURN: Duration = Duration::from_millis(20);

/// Determines the TTL of granted leases.
#[derive(Clone, Copy, Debug)]
pub enum Ttl {
    /// All leases have this TTL in seconds.
    Seconds(i64),
    /// Each lease gets the shortest TTL in whole seconds with which it does not end before this time. So all
    /// leases end within the second that follows.
    EndsAt(Instant),
}

/// Ids of the leases of one run.
#[derive(Clone, Copy, Debug)]
pub struct Ids {
    /// Id of the first lease.
    pub first: u64,
    /// True if the ids are spread over their whole range; false if they ascend.
    pub random: bool,
}

impl Ids {
    /// Returns the id of the lease with this number.
    pub fn id(&self, number: u64) -> u64 {
        let id = self.first + number;
        // An odd factor maps different numbers to different ids. The topmost bit is cleared, because etcd's
        // clients print ids as signed numbers.
        if self.random { (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1).max(1) } else { id }
    }
}

/// Every n-th lease of a run has one key, so that a watch shows when the lease ended.
#[derive(Debug)]
pub struct Sample {
    /// Number of leases per sampled lease.
    every: u64,
    /// For each sampled lease: the earliest time at which its TTL may be over.
    due: Mutex<Vec<Option<Instant>>>,
}

impl Sample {
    /// Returns a sample of `total` leases, of which every `every`-th is sampled.
    pub fn new(total: u64, every: u64) -> Sample {
        let every = every.max(1);
        Sample { every, due: Mutex::new(vec![None; total.div_ceil(every) as usize]) }
    }

    fn at(&self, number: u64) -> Option<usize> {
        number.is_multiple_of(self.every).then_some((number / self.every) as usize)
    }

    fn note(&self, number: u64, due: Instant) {
        let at = self.at(number);
        let mut all = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = at.and_then(|at| all.get_mut(at)) {
            *slot = Some(due);
        }
    }

    fn due(&self) -> Vec<Option<Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A workload in which each operation grants one lease, and attaches a key to it if the lease is sampled.
pub struct Grants {
    /// Ids of the leases.
    pub ids: Ids,
    /// TTL of the leases.
    pub ttl: Ttl,
    /// The sampled leases.
    pub sample: Arc<Sample>,
}

impl Workload for Grants {
    /// Number of the lease for which the client has to put a key.
    type Client = Option<u64>;

    fn begin(&mut self, key_of: &mut Option<u64>, number: u64, request: &mut Request) -> Step {
        let now = Instant::now();
        let ttl = match self.ttl {
            Ttl::Seconds(ttl) => ttl,
            Ttl::EndsAt(at) => at.saturating_duration_since(now).as_millis().div_ceil(1000).max(1) as i64,
        };
        *key_of = self.sample.at(number).map(|_| number);
        if key_of.is_some() {
            self.sample.note(number, now + Duration::from_secs(ttl as u64));
        }
        request.method = Rpc::LeaseGrant;
        Message(&mut request.message).int(1, ttl).uint(2, self.ids.id(number));
        Step::Call
    }

    fn answered(&mut self, key_of: &mut Option<u64>, status: &Status, request: &mut Request) -> Step {
        match key_of.take() {
            Some(number) if status.code == 0 => {
                request.method = Rpc::KvPut;
                let key = [SAMPLE_PREFIX, number.to_string().as_bytes()].concat();
                Message(&mut request.message).bytes(1, &key).bytes(2, b"x").uint(3, self.ids.id(number));
                Step::Call
            }
            _ => done(status),
        }
    }
}

/// A workload in which each operation puts another key of one lease.
pub struct KeysOfOne {
    /// Id of the lease.
    pub lease: u64,
}

impl Workload for KeysOfOne {
    type Client = ();

    fn begin(&mut self, _: &mut (), number: u64, request: &mut Request) -> Step {
        request.method = Rpc::KvPut;
        let key = format!("lease-key/{number:08}");
        Message(&mut request.message).bytes(1, key.as_bytes()).bytes(2, b"x").uint(3, self.lease);
        Step::Call
    }

    fn answered(&mut self, _: &mut (), status: &Status, _: &mut Request) -> Step {
        done(status)
    }
}

/// Measures how late the sampled leases end. `since` is the time of the earliest end; the wait lasts up to
/// `longest` after it. Returns the lateness of each lease that ended, and the number of those that did not.
pub fn lateness(
    target: Target,
    sample: &Sample,
    since: Instant,
    longest: Duration,
) -> Result<(Series, usize), Error> {
    let mut calls = Calls::open(target, 1).map_err(crate::loadgen::Error::Dial)?;
    let mut ends = Ends { numbers: Vec::new(), failed: None };
    let mut message = Vec::new();
    let mut end = SAMPLE_PREFIX.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    Message(&mut message).message(1, |create| {
        create.bytes(1, SAMPLE_PREFIX).bytes(2, &end);
    });
    calls.open_stream(0, Rpc::Watch, &message, 0);
    let due = sample.due();
    let mut ended = vec![false; due.len()];
    let mut left = due.iter().flatten().count();
    let mut series = Series::default();
    while left > 0 && Instant::now() < since + longest {
        calls.turn(TURN, &mut ends).map_err(crate::loadgen::Error::Poll)?;
        if let Some(error) = ends.failed.take() {
            return Err(error);
        }
        for (number, at) in ends.numbers.drain(..) {
            let Some(slot) = sample.at(number) else { continue };
            let (Some(Some(due)), Some(ended)) = (due.get(slot), ended.get_mut(slot)) else { continue };
            if !std::mem::replace(ended, true) {
                left -= 1;
                series.record(0, at.saturating_duration_since(*due).as_nanos() as u64);
            }
        }
    }
    Ok((series, left))
}

/// The deletions that a watch has reported: the numbers of the leases and the times of arrival.
struct Ends {
    numbers: Vec<(u64, Instant)>,
    failed: Option<Error>,
}

impl Handler for Ends {
    fn message(&mut self, _: &mut Calls, _: u64, body: &[u8]) {
        let now = Instant::now();
        for (field, event) in Fields(body) {
            let event = Fields(event.bytes());
            if field == 11 && event.number(1) == 1 {
                let key = Fields(event.bytes(2)).bytes(1);
                let number = key.strip_prefix(SAMPLE_PREFIX).and_then(|text| std::str::from_utf8(text).ok());
                self.numbers.extend(number.and_then(|text| text.parse().ok()).map(|number| (number, now)));
            }
        }
    }

    fn ended(&mut self, _: &mut Calls, _: u64, status: Status) {
        self.failed = Some(Error::WatchEnded(status));
    }

    fn turned(&mut self, _: &mut Calls) {}
}

/// The load that renews leases at a fixed rate, on streams that stay open.
#[derive(Clone, Copy, Debug)]
pub struct Renew {
    /// Ids of the leases, which are renewed in turn.
    pub ids: Ids,
    /// Number of the leases.
    pub total: u64,
    /// Number of streams.
    pub streams: usize,
    /// Renewals per second.
    pub rate: f64,
    /// Time for which renewals begin.
    pub duration: Duration,
}

impl Renew {
    /// Runs the load. Returns the latencies, each from the time at which a renewal was due, and the time that
    /// the load took.
    pub fn run(&self, target: Target, connections: usize) -> Result<(Series, Duration), Error> {
        let mut calls = Calls::open(target, connections).map_err(crate::loadgen::Error::Dial)?;
        let mut renewals =
            Renewals { due: vec![VecDeque::new(); self.streams], series: Series::default(), failed: None };
        let mut links: Vec<Option<usize>> = vec![None; self.streams];
        let total = (self.rate * self.duration.as_secs_f64()) as u64;
        let (mut next, mut message) = (0_u64, Vec::new());
        let began = Instant::now();
        while next < total || renewals.due.iter().any(|stream| !stream.is_empty()) {
            let now = Instant::now();
            if now > began + self.duration + Duration::from_secs(30) {
                return Err(Error::NoEvent);
            }
            while next < total {
                let due = began + Duration::from_secs_f64(next as f64 / self.rate);
                if due > now {
                    let wake = due.max(now + Duration::from_micros(200));
                    calls.wake_at(now, wake).map_err(crate::loadgen::Error::Poll)?;
                    break;
                }
                let stream = (next % self.streams as u64) as usize;
                message.clear();
                Message(&mut message).uint(1, self.ids.id(next % self.total));
                match links[stream] {
                    Some(link) => drop(calls.send(link, stream as u64, &message)),
                    None => {
                        let connection = stream % connections;
                        let link =
                            calls.open_stream(connection, Rpc::LeaseKeepAlive, &message, stream as u64);
                        links[stream] = Some(link);
                    }
                }
                renewals.due[stream].push_back(due);
                next += 1;
            }
            calls.turn(TURN, &mut renewals).map_err(crate::loadgen::Error::Poll)?;
            if let Some(error) = renewals.failed.take() {
                return Err(error);
            }
        }
        Ok((renewals.series, began.elapsed()))
    }
}

/// The renewals that are not answered yet, by stream; a stream is answered in the order of its requests.
struct Renewals {
    due: Vec<VecDeque<Instant>>,
    series: Series,
    failed: Option<Error>,
}

impl Handler for Renewals {
    fn message(&mut self, _: &mut Calls, stream: u64, body: &[u8]) {
        let Some(due) = self.due.get_mut(stream as usize).and_then(VecDeque::pop_front) else { return };
        // The response says TTL 0 if the lease does not exist.
        if Fields(body).number(3) == 0 {
            self.series.fail("the lease does not exist".to_owned());
        } else {
            self.series.record(0, due.elapsed().as_nanos() as u64);
        }
    }

    fn ended(&mut self, _: &mut Calls, _: u64, status: Status) {
        self.failed = Some(Error::WatchEnded(status));
    }

    fn turned(&mut self, _: &mut Calls) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_different_and_positive() {
        for random in [false, true] {
            let ids = Ids { first: 1 << 40, random };
            let mut all: Vec<u64> = (0..10_000).map(|number| ids.id(number)).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 10_000);
            assert!(all.iter().all(|id| (1..=i64::MAX as u64).contains(id)));
        }
    }

    #[test]
    fn leases_end_within_one_second() {
        let at = Instant::now() + Duration::from_secs(50);
        let sample = Arc::new(Sample::new(10, 2));
        let mut grants = Grants { ids: Ids { first: 7, random: false }, ttl: Ttl::EndsAt(at), sample };
        let mut request = Request { method: Rpc::KvPut, message: Vec::new(), keep: false };
        for number in 0..10 {
            request.message.clear();
            grants.begin(&mut None, number, &mut request);
            let fields = Fields(&request.message);
            assert_eq!((fields.number(1), fields.number(2)), (50, 7 + number));
        }
        let due = grants.sample.due();
        assert_eq!(due.iter().flatten().count(), 5);
        assert!(due.iter().flatten().all(|due| *due >= at && *due <= at + Duration::from_secs(1)));
    }
}
