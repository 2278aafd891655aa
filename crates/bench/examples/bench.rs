//! The benchmark tool as a standalone program: `cargo run --release -p mainstay-bench --example bench -- put …`

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    mainstay_bench::run(&args)
}
