//! Runs `doctor ...` and `check disk|network ...` as standalone programs.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|word| word.to_str()) {
        Some("check") => doctor::check(&args[1..]),
        Some("doctor") => doctor::run(&args[1..]),
        _ => doctor::run(&args),
    }
}
