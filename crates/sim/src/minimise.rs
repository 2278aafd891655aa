//! Shrinks a failure: finds the fewest faults, the least work and the shortest time with which a seed still
//! fails.

use std::process::{Command, ExitCode, Stdio};

use mainstay_sim::profile::{Fault, Profile, Work};

use crate::arguments::Arguments;

fn fails(seed: u64, arguments: &Arguments) -> bool {
    let Ok(program) = std::env::current_exe() else { return false };
    let status = Command::new(program)
        .args(arguments.words())
        .arg(format!("--seed={seed}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| !status.success())
}

/// Shrinks a failure, and prints the command line that reproduces the smallest one.
pub fn run(seed: u64, arguments: &Arguments) -> ExitCode {
    let mut least = arguments.clone();
    if !fails(seed, &least) {
        println!("seed {seed} does not fail");
        return ExitCode::SUCCESS;
    }
    let profile = Profile::of(seed);
    for fault in Fault::ALL.iter().filter(|fault| profile.fails(**fault)) {
        let mut fewer = least.clone();
        fewer.options.without_faults.push(*fault);
        if fails(seed, &fewer) {
            println!("not needed: {}", fault.name());
            least = fewer;
        }
    }
    for work in Work::ALL.iter().filter(|work| profile.works(**work) && **work != Work::Put) {
        let mut fewer = least.clone();
        fewer.options.without_work.push(*work);
        if fails(seed, &fewer) {
            println!("not needed: {}", work.name());
            least = fewer;
        }
    }
    let mut chaos = least.options.chaos.unwrap_or(profile.chaos) / 1_000_000_000;
    while chaos > 1 {
        let mut shorter = least.clone();
        shorter.options.chaos = Some((chaos - (chaos / 4).max(1)) * 1_000_000_000);
        if !fails(seed, &shorter) {
            break;
        }
        chaos -= (chaos / 4).max(1);
        least = shorter;
    }
    for clients in 1..profile.clients {
        let mut fewer = least.clone();
        fewer.options.clients_max = Some(clients);
        if fails(seed, &fewer) {
            least = fewer;
            break;
        }
    }
    println!("mainstay-sim --seed {seed} {}--trace", least.again());
    ExitCode::FAILURE
}
