//! The tool by itself, for trying it and for `interop/etcdctl_same.py`: the product has it in its one binary.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    ctl::run(&args)
}
