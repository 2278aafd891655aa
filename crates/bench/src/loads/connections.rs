//! Defines the load of `connections`: many connections that are open at the same time, each with a lease and
//! watches, and measures what they cost the server. With a storm, all of them reconnect at once, while
//! established clients measure what they notice of it.

use std::fmt::Write as _;
use std::io;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use api::Rpc;

use crate::Error;
use crate::loadgen::calls::{Calls, Handler, Target};
use crate::loadgen::histogram::Histogram;
use crate::loadgen::status::Status;
use crate::loadgen::wire::Message;
use crate::usage::{Meter, Usage};

use super::fleet::{Counts, Fleet, Habits};

/// Longest time for a phase, apart from the one whose length is an option.
const PATIENCE: Duration = Duration::from_secs(900);
/// Time that the server has after a change until its memory is read: it frees what busy connections keep.
const SETTLE: Duration = Duration::from_secs(3);
/// Time for which established clients are measured before a storm.
const QUIET: Duration = Duration::from_secs(5);

/// Size of the load.
#[derive(Clone, Debug)]
pub struct Connections {
    /// Number of connections.
    pub connections: usize,
    /// TTL of the lease of each client in seconds; 0 for none.
    pub ttl: u64,
    /// Number of watches of each client, on one stream.
    pub watches: usize,
    /// Maximum number of clients that connect at the same time, before the storm.
    pub at_once: usize,
    /// Time for which the connections are only open, while the server's CPU time is measured.
    pub hold: Duration,
    /// True if clients resume their TLS sessions when they reconnect.
    pub resumes: bool,
    /// True if all clients reconnect at once at the end.
    pub storm: bool,
    /// Number of established clients that send requests while the others reconnect.
    pub established: usize,
    /// Number of requests of all established clients together in a second.
    pub rate: u64,
}

/// Percentiles of the latencies of established clients, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latencies {
    pub count: u64,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// Figures of a storm.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// Number of clients that were ready again, and the time until the last of them was.
    pub ready: usize,
    pub took: Duration,
    /// Counters of the storm alone.
    pub counts: Counts,
    pub before: Latencies,
    pub during: Latencies,
    pub cpu_s: Option<f64>,
}

/// Results of the load.
#[derive(Clone, Debug)]
pub struct Report {
    pub size: Connections,
    /// Number of clients that had their lease and their watches.
    pub ready: usize,
    pub connected_in: Duration,
    pub counts: Counts,
    pub watches: usize,
    /// Resident memory of the server in bytes: before, with all connections with one watch each, and with all
    /// watches.
    pub memory: [Option<u64>; 3],
    /// CPU time of the server while the connections were open, in seconds.
    pub held_cpu_s: Option<f64>,
    pub renewals: u64,
    pub storm: Option<Storm>,
}

impl Connections {
    /// Runs the load. `say` gets a line at the end of each phase.
    ///
    /// # Errors
    /// Returns an error if this machine cannot open the connections, or if established clients cannot.
    pub fn run(&self, target: &Target, meter: &Meter, say: &dyn Fn(&str)) -> Result<Report, Error> {
        let failed = |error: io::Error| Error::Load(crate::loadgen::Error::Poll(error));
        let before = meter.before();
        let first = self.watches.min(1);
        let habits = Habits { ttl: self.ttl, watches: first, at_once: self.at_once, resumes: self.resumes };
        let mut fleet = Fleet::new(target.clone(), self.connections, habits).map_err(failed)?;
        let began = Instant::now();
        fleet.connect_all();
        fleet.run(began + PATIENCE, |fleet| fleet.ready() == fleet.size()).map_err(failed)?;
        let connected_in = began.elapsed();
        let ready = fleet.ready();
        say(&format!("{ready} connections after {:.1} s", connected_in.as_secs_f64()));
        let rest =
            |fleet: &mut Fleet, time: Duration| fleet.run(Instant::now() + time, |_| false).map_err(failed);
        rest(&mut fleet, SETTLE)?;
        let with_connections = meter.since(Usage::default()).rss_bytes;
        let mut with_watches = with_connections;
        if self.watches > first {
            fleet.raise_watches(self.watches);
            fleet.run(Instant::now() + PATIENCE, |fleet| fleet.ready() >= ready).map_err(failed)?;
            say(&format!("{} watches after {:.1} s", fleet.watches(), began.elapsed().as_secs_f64()));
            rest(&mut fleet, SETTLE)?;
            with_watches = meter.since(Usage::default()).rss_bytes;
        }
        let watches = fleet.watches();
        let (counts, held) = (fleet.counts(), meter.before());
        rest(&mut fleet, self.hold)?;
        let held_cpu_s = meter.since(held).cpu_s;
        let renewals = fleet.counts().renewals - counts.renewals;
        let lost = fleet.counts().lost;
        let storm = if self.storm { Some(self.storm(&mut fleet, target, meter)?) } else { None };
        Ok(Report {
            size: self.clone(),
            ready,
            connected_in,
            counts: Counts { lost, ..counts },
            watches,
            memory: [before.rss_bytes, with_connections, with_watches],
            held_cpu_s,
            renewals,
            storm,
        })
    }

    fn storm(&self, fleet: &mut Fleet, target: &Target, meter: &Meter) -> Result<Storm, Error> {
        let failed = |error: io::Error| Error::Load(crate::loadgen::Error::Poll(error));
        let probe = Probe::default();
        std::thread::scope(|scope| {
            let (probe, rate, established) = (&probe, self.rate, self.established);
            let probing = scope.spawn(move || probe.run(target, established, rate));
            let stormed = (|| {
                // The other clients run at the lowest priority, so that delays of established clients come from
                // the server. The error is ignored: a sandbox may forbid it.
                let _ = rustix::process::setpriority_process(None, 19);
                fleet.run(Instant::now() + QUIET, |_| false)?;
                let (counts, usage) = (fleet.counts(), meter.before());
                let was_ready = fleet.ready();
                probe.phase.store(1, Relaxed);
                let began = Instant::now();
                fleet.storm();
                fleet.run(began + PATIENCE, |fleet| fleet.ready() >= was_ready)?;
                let (took, now) = (began.elapsed(), fleet.counts());
                probe.phase.store(2, Relaxed);
                let counts = Counts {
                    failed: now.failed - counts.failed,
                    lost: now.lost - counts.lost,
                    full: now.full - counts.full,
                    resumed: now.resumed - counts.resumed,
                    renewals: now.renewals - counts.renewals,
                };
                Ok((fleet.ready(), took, counts, meter.since(usage).cpu_s))
            })();
            probe.stop.store(true, Relaxed);
            let probed = probing.join().map_err(|_| Error::ThreadGone("established clients"))?;
            probed.map_err(failed)?;
            let (ready, took, counts, cpu_s) = stormed.map_err(failed)?;
            Ok(Storm { ready, took, counts, before: probe.latencies(0), during: probe.latencies(1), cpu_s })
        })
    }
}

/// Established clients: requests at fixed times over a few connections.
#[derive(Default)]
struct Probe {
    /// Index of the phase to which requests that begin now belong: before, during or after the storm.
    phase: AtomicUsize,
    stop: AtomicBool,
    phases: [Mutex<Option<Histogram>>; 3],
}

/// Requests that are under way, by their tag.
struct Probing<'a> {
    probe: &'a Probe,
    due: std::collections::HashMap<u64, (Instant, usize)>,
    failed: u64,
}

impl Handler for Probing<'_> {
    fn message(&mut self, _: &mut Calls, _: u64, _: &[u8]) {}

    fn ended(&mut self, _: &mut Calls, tag: u64, status: Status) {
        let Some((due, phase)) = self.due.remove(&tag) else { return };
        self.failed += u64::from(status.code != 0);
        let nanos = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut histogram = self.probe.phases[phase].lock().unwrap_or_else(PoisonError::into_inner);
        histogram.get_or_insert_with(|| Histogram::new(Histogram::FINE)).record(nanos);
    }

    fn turned(&mut self, _: &mut Calls) {}
}

impl Probe {
    /// Sends linearizable reads of one key until it is stopped, and then waits for the answers.
    fn run(&self, target: &Target, connections: usize, rate: u64) -> io::Result<()> {
        let mut calls = Calls::open(target.clone(), connections)?;
        let mut probing = Probing { probe: self, due: std::collections::HashMap::new(), failed: 0 };
        let mut message = Vec::new();
        Message(&mut message).bytes(1, b"w");
        let (interval, mut due, mut tag) =
            (Duration::from_secs(1) / rate.max(1) as u32, Instant::now(), 0_u64);
        let mut last = None;
        loop {
            let now = Instant::now();
            if self.stop.load(Relaxed) {
                let since = *last.get_or_insert(now);
                if probing.due.is_empty() || now.duration_since(since) > Duration::from_secs(10) {
                    break;
                }
            }
            while last.is_none() && due <= now {
                probing.due.insert(tag, (due, self.phase.load(Relaxed)));
                calls.call(tag as usize % connections, Rpc::KvRange, &message, tag, false);
                (tag, due) = (tag + 1, due + interval);
            }
            calls.wake_at(now, due.max(now + Duration::from_micros(50)))?;
            calls.turn(Duration::from_millis(10), &mut probing)?;
        }
        match probing.failed + probing.due.len() as u64 {
            0 => Ok(()),
            failed => Err(io::Error::other(format!("{failed} requests of established clients failed"))),
        }
    }

    fn latencies(&self, phase: usize) -> Latencies {
        let histogram = self.phases[phase].lock().unwrap_or_else(PoisonError::into_inner);
        let Some(histogram) = &*histogram else { return Latencies::default() };
        let ms = |nanos: u64| nanos as f64 / 1e6;
        Latencies {
            count: histogram.count(),
            p50: ms(histogram.percentile(50.0)),
            p99: ms(histogram.percentile(99.0)),
            max: ms(histogram.max()),
        }
    }
}

impl Report {
    /// Memory of the server for each connection, with its lease and its first watch, in bytes.
    pub fn bytes_per_connection(&self) -> Option<f64> {
        let (before, with) = self.memory[0].zip(self.memory[1])?;
        (self.ready > 0).then(|| (with as f64 - before as f64) / self.ready as f64)
    }

    /// Memory of the server for each watch beyond the first of its connection, in bytes.
    pub fn bytes_per_watch(&self) -> Option<f64> {
        let (before, with) = self.memory[1].zip(self.memory[2])?;
        let more = self.watches.checked_sub(self.ready).filter(|more| *more > 0)?;
        Some((with as f64 - before as f64) / more as f64)
    }

    /// Returns the report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let shown = |value: Option<f64>, unit: &str| match value {
            Some(value) => format!("{value:.0} {unit}"),
            None => "unknown".to_owned(),
        };
        let mib = |bytes: Option<u64>| match bytes {
            Some(bytes) => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
            None => "unknown".to_owned(),
        };
        let seconds = self.connected_in.as_secs_f64();
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            text,
            "Connections: {} of {} in {seconds:.2} s ({:.0} a second), {} attempts failed, {} lost later",
            self.ready,
            self.size.connections,
            self.ready as f64 / seconds.max(1e-9),
            self.counts.failed,
            self.counts.lost,
        );
        let _ = writeln!(
            text,
            "Server memory: {} before, {} with connections, {} with {} watches",
            mib(self.memory[0]),
            mib(self.memory[1]),
            mib(self.memory[2]),
            self.watches,
        );
        let _ = writeln!(
            text,
            "Per connection: {}; per further watch: {}",
            shown(self.bytes_per_connection(), "B"),
            shown(self.bytes_per_watch(), "B"),
        );
        let hold = self.size.hold.as_secs_f64();
        let _ = writeln!(
            text,
            "Held for {hold:.0} s: {} ms of CPU a second, {} renewals",
            self.held_cpu_s.map_or("unknown".to_owned(), |cpu| format!("{:.1}", cpu / hold.max(1e-9) * 1e3)),
            self.renewals,
        );
        if let Some(storm) = &self.storm {
            let times = storm.during.p99 / storm.before.p99.max(1e-9);
            let _ = writeln!(
                text,
                "Storm: {} clients ready again in {:.2} s, {} attempts failed, {} full handshakes, {} resumed, CPU {} s",
                storm.ready,
                storm.took.as_secs_f64(),
                storm.counts.failed,
                storm.counts.full,
                storm.counts.resumed,
                storm.cpu_s.map_or("unknown".to_owned(), |cpu| format!("{cpu:.2}")),
            );
            let _ = writeln!(
                text,
                "Established clients: p50 {:.2} ms before, {:.2} ms during; p99 {:.2} ms before, {:.2} ms during ({times:.2} \
                 times); max {:.2} ms ({} requests)",
                storm.before.p50,
                storm.during.p50,
                storm.before.p99,
                storm.during.p99,
                storm.during.max,
                storm.during.count,
            );
        }
        text
    }

    /// Returns the report as a JSON object. Unknown figures are null.
    pub fn json(&self) -> String {
        let number = |value: Option<f64>| value.map_or("null".to_owned(), |value| format!("{value:.3}"));
        let bytes = |value: Option<u64>| value.map_or("null".to_owned(), |value| value.to_string());
        let mut fields = vec![
            ("connections", self.size.connections.to_string()),
            ("ready", self.ready.to_string()),
            ("connected_s", number(Some(self.connected_in.as_secs_f64()))),
            ("failed", self.counts.failed.to_string()),
            ("lost", self.counts.lost.to_string()),
            ("watches", self.watches.to_string()),
            ("rss_before_bytes", bytes(self.memory[0])),
            ("rss_connections_bytes", bytes(self.memory[1])),
            ("rss_watches_bytes", bytes(self.memory[2])),
            ("bytes_per_connection", number(self.bytes_per_connection())),
            ("bytes_per_watch", number(self.bytes_per_watch())),
            ("hold_s", number(Some(self.size.hold.as_secs_f64()))),
            ("hold_cpu_s", number(self.held_cpu_s)),
            ("renewals", self.renewals.to_string()),
        ];
        if let Some(storm) = &self.storm {
            fields.extend([
                ("storm_ready", storm.ready.to_string()),
                ("storm_s", number(Some(storm.took.as_secs_f64()))),
                ("storm_failed", storm.counts.failed.to_string()),
                ("storm_full", storm.counts.full.to_string()),
                ("storm_resumed", storm.counts.resumed.to_string()),
                ("storm_cpu_s", number(storm.cpu_s)),
                ("p50_before_ms", number(Some(storm.before.p50))),
                ("p50_during_ms", number(Some(storm.during.p50))),
                ("p99_before_ms", number(Some(storm.before.p99))),
                ("p99_during_ms", number(Some(storm.during.p99))),
                ("max_during_ms", number(Some(storm.during.max))),
            ]);
        }
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}\n", fields.join(","))
    }
}
