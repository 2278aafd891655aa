//! Runs inputs through a fuzz target: `replay <target> <file or folder>...`. The build decides on
//! instrumentation, such as coverage.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mainstay_fuzzing::find;

fn files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries: Result<Vec<_>, _> = std::fs::read_dir(path)?.map(|entry| entry.map(|e| e.path())).collect();
    entries.map(|mut paths| {
        paths.sort();
        paths
    })
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(target) = args.next().as_deref().and_then(find) else {
        eprintln!("usage: replay <target> <file or folder>...");
        return ExitCode::from(2);
    };
    for seed in (target.seeds)() {
        (target.run)(&seed);
    }
    for path in args {
        let inputs = files(Path::new(&path)).and_then(|files| files.iter().map(std::fs::read).collect());
        let inputs: Vec<Vec<u8>> = match inputs {
            Ok(inputs) => inputs,
            Err(error) => {
                eprintln!("{path}: {error}");
                return ExitCode::FAILURE;
            }
        };
        inputs.iter().for_each(|input| (target.run)(input));
    }
    ExitCode::SUCCESS
}
