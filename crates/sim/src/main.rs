//! The simulator's command line: runs many seeds, runs one seed step by step, or hunts for planted bugs.
//!
//! Seeds run in child processes, so that a seed whose process aborts does not end the other seeds.

mod arguments;
mod hunt;
mod minimise;
mod process_pool;

use std::process::ExitCode;

use arguments::{Arguments, Mode};
use mainstay_sim::{Report, run};

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("{why}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    planted::plant(arguments.bug);
    match arguments.mode {
        Mode::Help => {
            println!("{}", arguments::USAGE);
            ExitCode::SUCCESS
        }
        Mode::Bugs => {
            for bug in planted::Bug::ALL {
                println!("{:32} {}", bug.name(), bug.about());
            }
            ExitCode::SUCCESS
        }
        Mode::One(seed) => one(seed, &arguments),
        Mode::Worker { from, step } => process_pool::work(from, step, &arguments),
        Mode::Many => process_pool::run(&arguments),
        Mode::Minimise(seed) => minimise::run(seed, &arguments),
        Mode::Hunt => hunt::run(&arguments),
        Mode::Smoke => hunt::smoke(&arguments),
    }
}

fn one(seed: u64, arguments: &Arguments) -> ExitCode {
    let report = run(seed, &arguments.options);
    describe(&report, arguments);
    if report.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn describe(report: &Report, arguments: &Arguments) {
    println!(
        "seed {}: {} virtual seconds, {} events, digest {:016x}, undecided {}",
        report.seed,
        report.lasted / 1_000_000_000,
        report.events,
        report.digest,
        report.undecided
    );
    println!("{:?}, events of each kind {:?}", report.counts, report.kinds);
    if let Some(violation) = &report.violation {
        if !arguments.options.prints {
            report.last.iter().for_each(|line| println!("  {line}"));
        }
        println!("violation: {violation}");
        println!("again: mainstay-sim --seed {} {}--trace", report.seed, arguments.again());
    }
}
