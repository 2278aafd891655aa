//! How many seeds it takes to find each planted bug.

use std::process::ExitCode;
use std::time::Instant;

use planted::Bug;

use crate::arguments::Arguments;
use crate::crew::Crew;

/// Seeds for each bug, unless the command line says otherwise.
const BUDGET: u64 = 200;

/// Hunts, and prints a table.
pub fn run(arguments: &Arguments) -> ExitCode {
    let budget = arguments.seeds.unwrap_or(BUDGET);
    let bugs: Vec<Bug> =
        Bug::ALL.iter().copied().filter(|bug| arguments.bug.is_none_or(|one| one == *bug)).collect();
    let mut missed = 0;
    println!("| bug | seeds to find | seconds | found as |\n|---|---|---|---|");
    for bug in bugs {
        let began = Instant::now();
        let mut planted = arguments.clone();
        planted.bug = Some(bug);
        let crew = match Crew::start(&planted.words(), arguments.from, arguments.jobs, Some(budget), true) {
            Ok(crew) => crew,
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::from(2);
            }
        };
        let mut count = 0;
        let found = std::iter::from_fn(|| crew.next(None))
            .inspect(|_| count += 1)
            .find(|ended| !ended.violation.is_empty());
        let seconds = began.elapsed().as_secs();
        match found {
            Some(ended) => {
                let what: String = ended.violation.chars().take(100).collect();
                println!("| {} | {count} (seed {}) | {seconds} | {what} |", bug.name(), ended.seed);
            }
            None => {
                missed += 1;
                println!("| {} | not in {count} | {seconds} | |", bug.name());
            }
        }
    }
    if missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
