//! The tool as a program of its own, for tests that kill it and for trials without the whole of Mainstay.

fn main() -> std::process::ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    utl::run(&args)
}
