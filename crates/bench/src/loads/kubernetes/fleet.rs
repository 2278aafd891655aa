//! Measures a cluster: connects its API servers, writes what is missing, lists, watches, and runs the load.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use api::Rpc;

use crate::Error;
use crate::loadgen::calls::{Calls, Target};
use crate::loadgen::drive::{Generator, Observer, thread_times};
use crate::loadgen::histogram::Histogram;

use super::measured::{Measured, Window};
use super::state::{State, WATCH};
use super::{Cluster, PREFIXES, Resource, population, wire};

/// Longest duration of a turn. A timer or a response ends a turn earlier.
pub(super) const TURN: Duration = Duration::from_millis(50);
/// Time after which a server that does not answer while the load is prepared counts as gone.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// The API servers, with their connections.
pub struct Fleet {
    pub(super) calls: Calls,
    pub(super) state: State,
}

enum Notice {
    Begins,
    Recent(Histogram, Duration, u64),
    Ends,
}

impl Fleet {
    /// Connects the API servers of a cluster; each to one of the endpoints in turn. Deletes the objects of an
    /// earlier run.
    ///
    /// # Errors
    ///
    /// Fails if the store has objects of another program, which the load would overwrite.
    pub fn connect(target: Target, cluster: Cluster) -> Result<Self, Error> {
        population::clear(target.clone())?;
        let calls = Calls::open_single(target, cluster.api_servers).map_err(crate::loadgen::Error::Dial)?;
        let state = State::new(cluster);
        Ok(Self { calls, state })
    }

    /// Writes the objects that are missing for this many nodes, lists and watches them, and measures the
    /// load. `observer` is told when the window begins and ends, and how it goes.
    pub fn measure(&mut self, window: Window, observer: &mut dyn Observer) -> Result<Measured, Error> {
        let (notices, told) = channel();
        let (result, ()) = std::thread::scope(|scope| {
            let load = std::thread::Builder::new()
                .name("load 0".to_owned())
                .spawn_scoped(scope, move || self.measure_here(window, &notices));
            // The observer works in this thread: reading metrics must not delay an operation.
            for notice in told {
                match notice {
                    Notice::Begins => observer.begins(0),
                    Notice::Recent(recent, over, done) => observer.progress(0, &recent, over, done),
                    Notice::Ends => observer.ends(0),
                }
            }
            let result = match load {
                Ok(load) => load.join().unwrap_or(Err(crate::loadgen::Error::ThreadGone.into())),
                Err(error) => Err(crate::loadgen::Error::NoThread(error).into()),
            };
            (result, ())
        });
        result
    }

    fn measure_here(&mut self, window: Window, notices: &Sender<Notice>) -> Result<Measured, Error> {
        let began = Instant::now();
        let population = self.populate(window.nodes)?;
        let populated = began.elapsed();
        self.list()?;
        self.watch()?;
        self.run(window, notices)?;
        self.unwatch();
        let mut measured = std::mem::take(&mut self.state.measured);
        (measured.populated, measured.population) = (populated, population);
        measured.lists = std::mem::take(&mut self.state.listed);
        Ok(measured)
    }

    /// Runs turns until `done` returns true. Fails if nothing is answered for [`PATIENCE`].
    pub(super) fn turn_until(&mut self, mut done: impl FnMut(&State) -> bool) -> Result<(), Error> {
        let (mut answered, mut since) = (self.state.answered, Instant::now());
        while !done(&self.state) {
            self.turn()?;
            if self.state.answered != answered {
                (answered, since) = (self.state.answered, Instant::now());
            } else if since.elapsed() > PATIENCE {
                return Err(crate::loadgen::Error::NotPrepared.into());
            }
        }
        Ok(())
    }

    pub(super) fn turn(&mut self) -> Result<(), Error> {
        self.calls.turn(TURN, &mut self.state).map_err(crate::loadgen::Error::Poll)?;
        self.state.failed.take().map_or(Ok(()), Err)
    }

    /// Creates the watches of all API servers, each on its one stream, from the revision of its lists.
    fn watch(&mut self) -> Result<(), Error> {
        let mut wanted = 0;
        for server in 0..self.state.servers.len() {
            let events = self.state.cluster.watches_events;
            self.state.servers[server].watches.clear();
            self.state.servers[server].created = 0;
            wanted = 0;
            for (resource, prefix) in PREFIXES.iter().enumerate() {
                if resource == Resource::Events as usize && !events {
                    continue;
                }
                let revision = self.state.listed.revision(server, resource);
                let mut message = Vec::new();
                wire::watch(&mut message, prefix.as_bytes(), revision + 1);
                let tag = WATCH | server as u64;
                match self.state.servers[server].stream {
                    Some(link) => {
                        self.calls.send(link, tag, &message);
                    }
                    None => {
                        let link = self.calls.open_stream(server, Rpc::Watch, &message, tag);
                        self.state.servers[server].stream = Some(link);
                    }
                }
                wanted += 1;
            }
        }
        self.turn_until(|state| state.servers.iter().all(|server| server.created == wanted))
    }

    fn unwatch(&mut self) {
        for (number, server) in self.state.servers.iter_mut().enumerate() {
            if let Some(link) = server.stream.take() {
                self.calls.cancel(link, WATCH | number as u64);
            }
            server.progress_since = None;
        }
    }

    fn run(&mut self, window: Window, notices: &Sender<Notice>) -> Result<(), Error> {
        let start = Instant::now();
        let begin = start + window.warm_up;
        let end = begin + window.duration;
        self.state.prepare(window, start, (begin, end));
        let told = |notice| {
            // The receiver lives as long as this thread, except after a panic of its own.
            let _ = notices.send(notice);
        };
        let (mut times, mut timers) = (thread_times(), self.calls.timers);
        let lost = self.calls.lost;
        let mut pushed = begin;
        let mut has_begun = false;
        let mut done = 0;
        self.state.dispatch(&mut self.calls);
        while Instant::now() < end {
            self.turn()?;
            let now = Instant::now();
            if !has_begun && now >= begin {
                has_begun = true;
                (times, timers) = (thread_times(), self.calls.timers);
                self.state.measured.began = Some(SystemTime::now());
                self.state.recent = Histogram::new(Histogram::COARSE);
                told(Notice::Begins);
            }
            if has_begun && now - pushed > Duration::from_millis(500) {
                let recent = std::mem::replace(&mut self.state.recent, Histogram::new(Histogram::COARSE));
                done += recent.count();
                told(Notice::Recent(recent, now - pushed, done));
                pushed = now;
            }
        }
        let after = thread_times();
        told(Notice::Ends);
        self.state.agenda = None;
        self.state.measured.unanswered = self.state.in_flight as u64;
        let ended = Instant::now();
        while !self.state.has_caught_up() && ended.elapsed() < window.catch_up_max {
            self.turn()?;
        }
        let state = &mut self.state;
        state.measured.catch_up = ended.elapsed();
        state.measured.differences = state.differences();
        let cpu = after.0.saturating_sub(times.0);
        state.measured.generator = Generator {
            cpu,
            starved: after.1.saturating_sub(times.1),
            busiest: cpu.as_secs_f64() / window.duration.as_secs_f64().max(1e-9),
            lost: self.calls.lost - lost,
            timers: self.calls.timers - timers,
            segment_bytes: self.calls.segment_bytes(),
        };
        Ok(())
    }
}
