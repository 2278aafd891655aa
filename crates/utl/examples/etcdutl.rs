//! The tool as a standalone program, for tests that kill it and for trials without the whole Mainstay binary.

fn main() -> std::process::ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    utl::run(&args)
}
