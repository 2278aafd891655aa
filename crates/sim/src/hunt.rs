//! Measures how many seeds it takes to find each planted bug.

use std::process::ExitCode;
use std::time::Instant;

use mainstay_sim::profile::Fault;
use planted::Bug;

use crate::arguments::Arguments;
use crate::process_pool::ProcessPool;

/// Default number of seeds for each bug.
const BUDGET: u64 = 1000;
/// Bugs for the smoke run: they are found quickly, and each is detected in a different way. Every change to
/// the code must keep them detectable.
const SMOKE: &[Bug] = &[
    Bug::AckBeforeSync,
    Bug::DirectoryNotSynced,
    Bug::ChecksumIgnored,
    Bug::ApplyDependsOnMember,
    Bug::CompactionDropsCurrent,
    Bug::ProposedAgainEarly,
    Bug::PromiseBeforeSync,
    Bug::RemovedVoterCounted,
    Bug::LeaseRevived,
    Bug::TransactionCutShort,
    Bug::CompareOnOldState,
    Bug::StaleRead,
    Bug::SecondBranchUngated,
    Bug::UnappliedFed,
    Bug::ObserverReadWithoutRound,
    Bug::AutopilotIgnoresQuorum,
];
/// Bugs that only worlds with observers have. They are hunted in such worlds only.
const OF_OBSERVERS: &[Bug] = &[
    Bug::ObserverReadWithoutRound,
    Bug::ObserverReadWithoutIndex,
    Bug::UnappliedFed,
    Bug::ObserverProposalUnbound,
    Bug::ObserverNamedInSnapshot,
    Bug::ObserverRaisesAlarm,
    Bug::StalenessFromAnswer,
];
/// Bugs that only worlds with autopilots have.
const OF_AUTOPILOTS: &[Bug] =
    &[Bug::AutopilotIgnoresQuorum, Bug::AutopilotPromotesEarly, Bug::AutopilotForgetsAnswers];
/// Default number of seeds for each bug of the smoke run.
const SMOKE_BUDGET: u64 = 300;

/// Hunts for planted bugs and prints a table.
pub fn run(arguments: &Arguments) -> ExitCode {
    let wanted = |bug: &&Bug| arguments.bug.is_none_or(|one| one == **bug);
    let bugs: Vec<Bug> = Bug::ALL.iter().filter(wanted).copied().collect();
    hunt(&bugs, arguments.seeds.unwrap_or(BUDGET), arguments)
}

/// Bugs that show only beside a witness.
const OF_WITNESSES: &[Bug] = &[Bug::WitnessCountsAlways, Bug::WitnessCampaigns, Bug::WitnessVotesBehind];

/// Hunts for the planted bugs that are found quickly.
pub fn smoke(arguments: &Arguments) -> ExitCode {
    hunt(SMOKE, arguments.seeds.unwrap_or(SMOKE_BUDGET), arguments)
}

fn hunt(bugs: &[Bug], budget: u64, arguments: &Arguments) -> ExitCode {
    let mut missed = 0;
    println!("| bug | seeds to find | seconds | found as |\n|---|---|---|---|");
    for bug in bugs.iter().copied() {
        let began = Instant::now();
        let mut planted = arguments.clone();
        planted.bug = Some(bug);
        if OF_OBSERVERS.contains(&bug) {
            planted.options.with_faults.push(Fault::Observers);
        }
        if OF_AUTOPILOTS.contains(&bug) {
            planted.options.with_faults.push(Fault::Autopilot);
        }
        if OF_WITNESSES.contains(&bug) {
            planted.options.with_faults.push(Fault::Witness);
        }
        let process_pool =
            match ProcessPool::start(&planted.words(), arguments.from, arguments.jobs, Some(budget), true) {
                Ok(process_pool) => process_pool,
                Err(why) => {
                    eprintln!("{why}");
                    return ExitCode::from(2);
                }
            };
        let mut count = 0;
        let found = std::iter::from_fn(|| process_pool.next(arguments.time.map(|time| began + time)))
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
