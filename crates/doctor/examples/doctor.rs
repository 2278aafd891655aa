//! `doctor ...` and `check disk|network ...` as programs of their own.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let env = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    match args.first().and_then(|word| word.to_str()) {
        Some("check") => doctor::check(&args[1..], env),
        Some("doctor") => doctor::run(&args[1..], env),
        _ => doctor::run(&args, env),
    }
}
