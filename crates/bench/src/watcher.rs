//! Observes a running load: measures the resources that the server uses in each run, and draws the progress
//! on a terminal.

use std::time::{Duration, Instant};

use cli::Matches;

use crate::given::PID;
use crate::loadgen::calls::Target;
use crate::loadgen::drive::{Generator, Observer, Plan, thread_times};
use crate::loadgen::histogram::Histogram;
use crate::render::short;
use crate::usage::{Meter, Usage};

/// Measures the resources that the server uses in each run, and draws the progress on a terminal.
pub struct Watcher {
    meter: Option<Meter>,
    before: Usage,
    /// Resources that the server used in each run; `None` for a run in which they are unknown.
    pub usages: Vec<Option<Usage>>,
    progress: cli::Progress,
    total: Option<u64>,
    repeat: usize,
    times: (Duration, Duration),
    began: Instant,
    /// For loads that run in this thread: the duration of each run, and the resources that this thread used
    /// in it.
    pub own: Vec<(Duration, Generator)>,
}

impl Watcher {
    /// Creates a watcher. It measures the server at the first endpoint of the target.
    pub fn new(matches: &Matches, target: &Target, plan: &Plan) -> Self {
        let pid = u32::try_from(matches.get(PID)).ok().filter(|pid| *pid > 0);
        let total = plan.duration.is_none().then_some(plan.total);
        let name = matches.path.last().copied().unwrap_or("load");
        Self {
            meter: target.endpoints.first().map(|endpoint| Meter::new(endpoint, pid)),
            before: Usage::default(),
            usages: Vec::new(),
            progress: cli::Progress::of_things(name, total),
            total,
            repeat: plan.repeat,
            times: Default::default(),
            began: Instant::now(),
            own: Vec::new(),
        }
    }
}

impl Observer for Watcher {
    fn begins(&mut self, _: usize) {
        self.before = self.meter.as_ref().map(Meter::before).unwrap_or_default();
        self.times = thread_times();
        self.began = Instant::now();
    }

    fn ends(&mut self, _: usize) {
        // Read this thread's CPU time. It is the only measure of the load generator's own cost for loads that
        // run in this thread.
        let (cpu, starved) = thread_times();
        let cpu = cpu.saturating_sub(self.times.0);
        let took = self.began.elapsed();
        let generator = Generator {
            cpu,
            starved: starved.saturating_sub(self.times.1),
            busiest: cpu.as_secs_f64() / took.as_secs_f64().max(1e-9),
            lost: 0,
            timers: 0,
            segment_bytes: None,
        };
        self.own.push((took, generator));
        let usage = self.meter.as_ref().map(|meter| meter.since(self.before));
        self.usages.push(usage.filter(|usage| *usage != Usage::default()));
        self.progress.finish();
    }

    fn progress(&mut self, run: usize, recent: &Histogram, over: Duration, done: u64) {
        let rate = recent.count() as f64 / over.as_secs_f64().max(1e-9);
        let mut note = format!("now {rate:.0}/s, p99 {} ms", short(recent.percentile(99.0) as f64 / 1e6));
        if self.repeat > 1 {
            note += &format!(", run {} of {}", run + 1, self.repeat);
        }
        if let Some(total) = self.total {
            self.progress.set_total(total);
        }
        self.progress.at(done, &note);
    }
}
