//! One program for all targets: `MAINSTAY_FUZZ_TARGET` says which one runs under libFuzzer. `fuzz/run` sets it.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use mainstay_fuzzing::{TARGETS, find};

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

/// Chooses the target; with `MAINSTAY_FUZZ_SEEDS` writes its seeds into that folder first.
fn choose() {
    let name = std::env::var("MAINSTAY_FUZZ_TARGET").unwrap_or_default();
    let Some(target) = find(&name) else {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("MAINSTAY_FUZZ_TARGET has to be one of: {}", names.join(" "));
        std::process::exit(2);
    };
    if let Some(folder) = std::env::var_os("MAINSTAY_FUZZ_SEEDS") {
        for (number, seed) in (target.seeds)().iter().enumerate() {
            let path = std::path::Path::new(&folder).join(format!("seed-{number:02}"));
            if let Err(error) = std::fs::write(&path, seed) {
                eprintln!("{}: {error}", path.display());
                std::process::exit(2);
            }
        }
    }
    RUN.get_or_init(|| target.run);
}

fuzz_target!(init: choose(), |data: &[u8]| {
    if let Some(run) = RUN.get() {
        run(data);
    }
});
