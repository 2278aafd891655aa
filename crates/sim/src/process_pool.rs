//! Runs many seeds in several child processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use mainstay_sim::run as live;

use crate::arguments::Arguments;

/// Runs seeds one after the other and reports each seed on standard output, with one line at its start and
/// one at its end.
pub fn work(from: u64, step: u64, arguments: &Arguments) -> ExitCode {
    let mut out = std::io::stdout().lock();
    let mut seed = from;
    let mut left = arguments.seeds.unwrap_or(u64::MAX);
    while left > 0 {
        left -= 1;
        // Writing fails if the parent process has ended; then the results are not needed.
        if writeln!(out, "begin {seed}").and_then(|()| out.flush()).is_err() {
            return ExitCode::SUCCESS;
        }
        let report = live(seed, &arguments.options);
        let violation = report.violation.unwrap_or_default().replace('\n', " | ");
        let answered = report.counts.answered;
        let line = format!(
            "end {seed} {} {} {answered} {} {violation}",
            report.lasted, report.events, report.undecided
        );
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            return ExitCode::SUCCESS;
        }
        seed += step;
    }
    ExitCode::SUCCESS
}

/// Result of a finished seed.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Seed number.
    pub seed: u64,
    /// Duration of the run in virtual nanoseconds.
    pub lasted: u64,
    /// Number of events.
    pub events: u64,
    /// Number of operations answered.
    pub answered: u64,
    /// Number of possible violations that the oracle could neither confirm nor rule out, because the order of
    /// writes with unknown outcomes is not certain.
    pub undecided: u64,
    /// Text of the violation; empty if there was none.
    pub violation: String,
}

/// Child processes that run seeds.
pub struct ProcessPool {
    children: Vec<Child>,
    ended: Receiver<Ended>,
}

impl ProcessPool {
    /// Starts child processes that run seeds from `from` on.
    ///
    /// # Errors
    ///
    /// Returns an error if a process cannot be started.
    pub fn start(
        words: &[String],
        from: u64,
        jobs: u64,
        seeds: Option<u64>,
        quiet: bool,
    ) -> Result<ProcessPool, String> {
        let program = std::env::current_exe().map_err(|e| format!("who am I: {e}"))?;
        let (sender, ended) = channel();
        let mut children = Vec::new();
        for job in 0..jobs {
            let mut command = Command::new(&program);
            command.args(words).arg(format!("--worker={jobs}")).arg(format!("--from={}", from + job));
            if let Some(seeds) = seeds {
                let own = seeds / jobs + u64::from(job < seeds % jobs);
                if own == 0 {
                    continue;
                }
                command.arg(format!("--seeds={own}"));
            }
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            if quiet {
                command.stderr(Stdio::null());
            }
            let mut child = command.spawn().map_err(|e| format!("cannot start a process: {e}"))?;
            let Some(out) = child.stdout.take() else { return Err("a process without output".to_owned()) };
            children.push(child);
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut begun = None;
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if let Some(seed) = line.strip_prefix("begin ") {
                        begun = seed.parse().ok();
                    } else if let Some(ended) = line.strip_prefix("end ").and_then(parse) {
                        begun = None;
                        if sender.send(ended).is_err() {
                            return;
                        }
                    }
                }
                if let Some(seed) = begun {
                    let violation = "the process aborted".to_owned();
                    let ended = Ended { seed, lasted: 0, events: 0, answered: 0, undecided: 0, violation };
                    // Sending fails if the receiver was dropped; then the result is not needed.
                    let _ = sender.send(ended);
                }
            });
        }
        Ok(ProcessPool { children, ended })
    }

    /// Waits for the next finished seed. Returns `None` if all seeds are finished or the time is over.
    pub fn next(&self, until: Option<Instant>) -> Option<Ended> {
        match until {
            None => self.ended.recv().ok(),
            Some(until) => self.ended.recv_timeout(until.saturating_duration_since(Instant::now())).ok(),
        }
    }
}

impl Drop for ProcessPool {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Killing fails if the child has already ended; then it only has to be waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn parse(line: &str) -> Option<Ended> {
    let mut words = line.splitn(6, ' ');
    let mut number = || words.next()?.parse().ok();
    Some(Ended {
        seed: number()?,
        lasted: number()?,
        events: number()?,
        answered: number()?,
        undecided: number()?,
        violation: words.next().unwrap_or("").to_owned(),
    })
}

/// Runs many seeds and prints the results. Returns true if there was no violation.
fn run_many(arguments: &Arguments) -> Result<bool, String> {
    let began = Instant::now();
    let until = arguments.time.map(|time| began + time);
    let seeds = arguments.seeds.or(if until.is_none() { Some(100) } else { None });
    let process_pool = ProcessPool::start(&arguments.words(), arguments.from, arguments.jobs, seeds, false)?;
    let (mut count, mut lasted, mut events, mut answered, mut undecided, mut bad) =
        (0_u64, 0_u64, 0, 0, 0, 0);
    let mut told = Instant::now();
    while let Some(ended) = process_pool.next(until) {
        count += 1;
        lasted += ended.lasted / 1_000_000;
        events += ended.events;
        answered += ended.answered;
        undecided += ended.undecided;
        if !ended.violation.is_empty() {
            bad += 1;
            println!("seed {}: {}", ended.seed, ended.violation);
            println!("  again: mainstay-sim --seed {} {}--trace", ended.seed, arguments.again());
            if !arguments.keep_going {
                break;
            }
        }
        if told.elapsed().as_secs() >= 30 {
            told = Instant::now();
            println!("{}", rate(count, lasted, events, answered, bad, began));
        }
    }
    println!("{}", rate(count, lasted, events, answered, bad, began));
    if undecided > 0 {
        println!("questions that the oracle left open: {undecided}");
    }
    Ok(bad == 0)
}

fn rate(count: u64, lasted_ms: u64, events: u64, answered: u64, bad: u64, began: Instant) -> String {
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    format!(
        "{count} seeds in {minutes:.1} minutes ({:.0} per minute), {:.2} virtual hours, {:.1} million events, \
         {answered} operations answered, {bad} failed",
        count as f64 / minutes.max(1e-9),
        lasted_ms as f64 / 3.6e6,
        events as f64 / 1e6
    )
}

/// Runs many seeds as the command line asks.
pub fn run(arguments: &Arguments) -> ExitCode {
    match run_many(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}
