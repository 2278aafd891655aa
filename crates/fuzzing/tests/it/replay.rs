//! Replays the corpus, so that bugs once found stay tested.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use mainstay_fuzzing::TARGETS;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

fn sorted(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_seed_is_taken() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        for seed in seeds {
            (target.run)(&seed);
        }
    }
}

#[test]
fn every_file_of_every_corpus_is_taken() {
    let names: BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
    let folders: BTreeSet<String> = sorted(&corpus())
        .iter()
        .filter_map(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
        .collect();
    assert!(folders.iter().map(String::as_str).eq(names.iter().copied()), "{folders:?} are not {names:?}");
    let mut failed = Vec::new();
    for target in TARGETS {
        let files = sorted(&corpus().join(target.name));
        assert!(!files.is_empty(), "the corpus of {} is empty", target.name);
        for path in files {
            let input = fs::read(&path).expect("reads");
            if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
                failed.push(path);
            }
        }
    }
    assert!(failed.is_empty(), "these inputs are not taken: {failed:#?}");
}

/// Few inputs hit the part of a file that a write has just changed, so many random inputs are tried.
#[test]
fn damage_anywhere_in_a_log_is_refused_or_costs_what_the_limit_says() {
    let target = TARGETS.iter().find(|target| target.name == "log_damage").expect("is a target");
    let mut number = 0x1234_5678_9abc_def1u64;
    for nth in 0..6_000 {
        let draw = |_| {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
            (number >> 24) as u8
        };
        (target.run)(&(0..20 + nth % 150).map(draw).collect::<Vec<u8>>());
    }
}
