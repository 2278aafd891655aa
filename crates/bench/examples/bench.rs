//! The tool by itself, for those who work on it: `cargo run --release -p mainstay-bench --example bench -- put …`

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let env: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    mainstay_bench::run(&args, &env)
}
