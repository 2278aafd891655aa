//! Runs many seeds, runs seeds that once found a bug, and runs some seeds twice.

use mainstay_sim::{Options, Report, run};

/// Number of seeds in a normal run. `MAINSTAY_SEEDS` sets another number, and `MAINSTAY_SEED` selects a
/// single seed.
const SEEDS: u64 = 40;

/// Seeds that once failed, and the bug that each one found.
const FOUND: &[(u64, &str)] = &[
    (32, "a slow watcher was taken for one that is told nothing any more"),
    (207, "a leader that had not applied a grant yet answered that the lease was gone"),
    (282, "the hash of a compaction names the compaction before it"),
    (312, "a member that stopped before its first entry could not answer anybody afterwards"),
    (326, "nobody took the alarm back after disks had room again"),
    (1090, "a watcher whose next look was ten seconds away was taken for one that is told nothing any more"),
    (20733, "a watch stream that ended told of progress beyond an event that could not be read"),
    (20744, "values in small segments were moved without end, for room that their headers take"),
    (20782, "a watcher that came back at the end was judged before it could be told"),
    (21618, "nobody started a member whose addition left too few to answer clients"),
    (800450, "a slow read of the faulty half went on behind the end of the run"),
    (902206, "an answer to an old leader was judged by entries that had replaced its own"),
    (906794, "a range whose member took over another's state was told of a compaction"),
    (907258, "a lock was judged that somebody else had ended by revoking its lease"),
    (907332, "one of two had forgotten a removal that the other one had heard of"),
    (909295, "a member that was removed before it knew anybody was waited for"),
    (1102608, "a leader of two removed itself and ended before the other one heard of it"),
    (1120242, "six votes in a row got lost since the voter did not know who had asked"),
    (1402892, "a lease was held to be gone because a put that perhaps never was had its key"),
    (1607907, "the last record that a member had found at its start decayed and was taken for a torn write"),
    (1712818, "a sound member was removed while the disk of another one was damaged"),
    (1610965, "the operation of a client of a burst was under way at the end and so was not in the history"),
    (1904837, "an empty transaction was judged as a linearizable call, and its token was void"),
    (1910849, "there were more live segments, all of the smallest size, than one of them can list"),
    (1421337, "the run that the manifest names was removed after a commit that failed half-way"),
    (90003600, "a log that could not make a segment when a sync failed never tried again"),
];

/// Seeds that failed with a witness.
const FOUND_WITH_WITNESS: &[(u64, &str)] =
    &[(1300, "nobody ran a log again whose batches waited for space that a checkpoint was taking")];

fn check(report: &Report) {
    if let Some(violation) = &report.violation {
        panic!(
            "seed {}: {violation}\n{}\nagain: cargo run --release -p mainstay-sim -- --seed {} --trace",
            report.seed,
            report.last.join("\n"),
            report.seed
        );
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn seeds() {
    let (from, count) = match number("MAINSTAY_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("MAINSTAY_SEEDS").unwrap_or(SEEDS)),
    };
    let halves = [0, 1].map(|half| {
        std::thread::spawn(move || {
            let seeds = (from..from + count).filter(|seed| seed % 2 == half);
            seeds.map(|seed| run(seed, &Options::default())).collect::<Vec<Report>>()
        })
    });
    let reports: Vec<Report> = halves.into_iter().flat_map(|half| half.join().expect("no panic")).collect();
    reports.iter().for_each(check);
    if count >= SEEDS {
        // A fault that never happens is not tested.
        let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
        assert!(sum(|r| r.counts.answered) > 100 * count);
        assert!(sum(|r| r.counts.observed) > count);
        assert!(sum(|r| r.counts.crashes) > count);
        assert!(sum(|r| r.counts.faults) > 5 * count);
        assert!(sum(|r| r.counts.snapshots) > count / 10);
        assert!(sum(|r| r.counts.watches) > 10 * count);
        assert!(sum(|r| r.counts.terms) > 2 * count);
    }
}

#[test]
fn what_was_found_stays_found() {
    // Worlds with a witness came later: these seeds stay the worlds that they were.
    let options = Options { without_faults: vec![mainstay_sim::Fault::Witness], ..Options::default() };
    for (seed, what) in FOUND {
        let report = run(*seed, &options);
        assert!(report.violation.is_none(), "seed {seed} ({what}): {:?}", report.violation);
    }
    let options = Options { with_faults: vec![mainstay_sim::Fault::Witness], ..Options::default() };
    for (seed, what) in FOUND_WITH_WITNESS {
        let report = run(*seed, &options);
        assert!(report.violation.is_none(), "seed {seed} ({what}): {:?}", report.violation);
    }
}

#[test]
fn a_seed_twice_is_the_same_on_any_thread() {
    for seed in 0..4 {
        let here = run(seed, &Options::default());
        let there = std::thread::spawn(move || run(seed, &Options::default())).join().expect("no panic");
        assert_eq!((here.digest, here.events, here.lasted), (there.digest, there.events, there.lasted));
        assert_eq!(here.counts, there.counts);
        assert_ne!(here.digest, run(seed + 100, &Options::default()).digest);
    }
}
